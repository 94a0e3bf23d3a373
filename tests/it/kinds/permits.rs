//! Permits whose keys are half deleted, whose server is out of memory, or whose user may not do all.

use std::time::Duration;

use leasehold::{Error, Lost};

use crate::support::{
    Server, before, behind, client, ms, plain,
    proxy::{Fault, Rule, Way, Which},
    until, with_rights, within,
};

const SOON: Duration = ms(3_000);
const TAKEN: &str = "{x}:timeout";

fn free(server: &Server) -> i64 {
    server.ask(&["GET", "x"])
}

fn taken(server: &Server) -> i64 {
    server.ask(&["ZCARD", TAKEN])
}

/// All permits, free and taken, at one moment.
fn sum(server: &Server) -> i64 {
    server.ask(&["EVAL", "return redis.call('GET', 'x') + redis.call('ZCARD', '{x}:timeout')", "0"])
}

/// `ZADD` needs memory, and permits are held for longer than one lease.
#[tokio::test]
async fn a_server_without_memory_renews_and_releases() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(1_000))).await;
    let x = client.semaphore("x");
    x.try_set_permits(5).await.expect("answered");
    let mut held = x.acquire(3).await.expect("free");
    let _: String = server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    tokio::time::sleep(ms(2_500)).await;
    assert!(!held.is_lost());
    held.check().await.expect("held");
    let part = held.split(2).expect("it has three");
    part.release().await.expect("held");
    held.release().await.expect("held");
    assert_eq!((free(&server), taken(&server)), (5, 0));
    let waits = x.try_acquire_for(1, ms(200)).await;
    assert!(matches!(waits, Err(Error::Unavailable { .. })), "{waits:?}");
    let _: String = server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    x.acquire(5).await.expect("free").release().await.expect("held");
}

/// The permits that are held are in a key of their own. Without the semaphore they are lost, and come back to none that is created later.
#[tokio::test]
async fn permits_do_not_outlive_their_semaphore() {
    for (how, sees_it_first) in [("DEL", true), ("DEL", false), ("PEXPIRE", true), ("PEXPIRE", false)] {
        let server = Server::start();
        let client = client(&server, |builder| builder.watchdog(ms(3_000))).await;
        let x = client.semaphore("x");
        x.try_set_permits(5).await.expect("answered");
        let (held, other) = (x.acquire(3).await.expect("free"), x.acquire(1).await.expect("free"));
        let _: u32 = server.ask(&[&[how, "x"][..], if how == "DEL" { &[] } else { &["1"] }].concat());
        until("its end", SOON, || !server.exists("x")).await;
        if sees_it_first {
            let checked = held.check().await;
            assert!(matches!(checked, Err(Error::Lost { reason: Lost::Removed, .. })), "{checked:?}");
        }
        assert!(x.try_set_permits(5).await.expect("answered"));
        let all = within("all five", SOON, x.acquire(5)).await.0.expect("acquired");
        assert_eq!(within("to notice", ms(2_000), held.lost()).await.0, Lost::Removed, "{how}");
        for lost in [held, other] {
            let released = lost.release().await;
            assert!(matches!(released, Err(Error::Lost { reason: Lost::Removed, .. })), "{released:?}");
        }
        all.release().await.expect("held");
        until("the releases", SOON, || client.stats().now.releasing == 0).await;
        assert_eq!((free(&server), taken(&server)), (5, 0), "{how}");
    }
}

/// The sorted set would expire with the time that the semaphore had at the grant.
#[tokio::test]
async fn permits_last_as_long_as_a_semaphore_with_an_expiry_time() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(900))).await;
    let x = client.semaphore("x");
    x.try_set_permits(2).await.expect("answered");
    let _: u32 = server.ask(&["PEXPIRE", "x", "1500"]);
    let held = x.acquire(1).await.expect("free");
    for _ in 0..4 {
        tokio::time::sleep(ms(500)).await;
        let _: u32 = server.ask(&["PEXPIRE", "x", "1500"]);
    }
    held.release().await.expect("held");
    assert_eq!((free(&server), taken(&server)), (2, 0));
}

/// They share one sorted set, as in Redisson.
#[tokio::test]
async fn a_name_and_the_same_name_in_braces_have_permits_of_their_own() {
    let server = Server::start();
    let client = plain(&server).await;
    let names = [client.semaphore("x"), client.semaphore("{x}")];
    for name in &names {
        name.try_set_permits(3).await.expect("answered");
    }
    let (plain, braces) = (names[0].acquire(3).await.expect("free"), names[1].acquire(3).await.expect("free"));
    assert_ne!(plain.id(), braces.id());
    assert_eq!((taken(&server), free(&server), server.ask::<i64>(&["GET", "{x}"])), (6, 0, 0));
    assert!(names[1].try_acquire(1).await.expect("answered").is_none());
    plain.release().await.expect("held");
    braces.check().await.expect("held");
    braces.release().await.expect("held");
    assert_eq!((taken(&server), free(&server), server.ask::<i64>(&["GET", "{x}"])), (0, 3, 3));
}

/// A user who may not take back what was done before the refusal.
#[tokio::test]
async fn no_permit_vanishes_whatever_two_commands_are_refused() {
    const COMMANDS: [&str; 12] = [
        "zadd",
        "zrem",
        "incrby",
        "publish",
        "del",
        "set",
        "pexpire",
        "zscore",
        "zrangebyscore",
        "zrange",
        "pttl",
        "zcard",
    ];
    let server = Server::start();
    let pairs = COMMANDS.iter().enumerate().flat_map(|(at, one)| COMMANDS[at..].iter().map(move |other| (one, other)));
    let mut refused = 0;
    for (one, other) in pairs {
        let client = with_rights(&server, &["~*", "&*", "+@all", &format!("-{one}"), &format!("-{other}")]).await;
        let x = client.semaphore("x");
        for what in ["acquire", "acquire with an end", "return what is over", "add", "release"] {
            for words in [&["FLUSHALL"][..], &["SET", "x", "3"]] {
                let _: String = server.ask(words);
            }
            let mut all = 3;
            match what {
                "acquire with an end" => _ = server.ask::<u32>(&["EXPIRE", "x", "100"]),
                "return what is over" => all += server.ask::<i64>(&["ZADD", TAKEN, "5", "1234567890123456"]),
                _ => {}
            }
            let done = match what {
                "add" => x.add_permits(1).await.map(|()| all += 1),
                "release" => async { x.acquire(2).await?.release().await }.await,
                _ => x.acquire(2).await.map(drop),
            };
            refused += usize::from(done.is_err());
            assert_eq!(sum(&server), all, "{what} without {one} and {other}: {done:?}");
        }
    }
    assert!(refused > 100, "{refused}");
}

/// The reply to a refused change is lost, and its receipt cannot be deleted. It was not made.
#[tokio::test]
async fn a_refused_change_is_refused_again() {
    let server = Server::start();
    let proxy = before(&server);
    server.set_user("u", &["on", ">p", "~*", "&*", "+@all", "-incrby", "-del"]);
    let client = behind(&proxy, |builder| builder.url(proxy.url().replace("//", "//u:p@"))).await;
    let x = client.semaphore("x");
    let _: String = server.ask(&["SET", "x", "3"]);
    let first = x.add_permits(1).await; // the script is loaded from here on
    assert!(matches!(first, Err(Error::Denied { .. })), "{first:?}");
    proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Cut(Way::Back)));
    let again = within("the answer", SOON, x.add_permits(1)).await.0;
    assert!(proxy.is_spent() && matches!(again, Err(Error::Denied { .. })), "{again:?}");
    assert_eq!(free(&server), 3);
}

#[tokio::test]
async fn changes_are_numbers_that_every_program_can_read() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.semaphore("x");
    for n in [i64::MAX, i64::MIN, 1 << 32, -(1 << 32)] {
        let added = x.add_permits(n).await;
        assert!(matches!(added, Err(Error::InvalidConfig { setting: "permits", .. })), "{added:?}");
    }
    assert!(!server.exists("x"));
    x.add_permits(i64::from(u32::MAX)).await.expect("answered");
    x.add_permits(-i64::from(u32::MAX)).await.expect("answered");
    assert_eq!(x.available().await.expect("answered"), 0);
    let _: String = server.ask(&["SET", "x", "007"]); // INCRBY reads no number there
    assert!(matches!(x.acquire(1).await, Err(Error::Conflict { .. })));
}

/// Errors say what is true of permits.
#[tokio::test]
async fn errors_are_about_permits() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(200)).outage_timeout(ms(600))).await;
    let x = client.semaphore("x");
    x.try_set_permits(3).await.expect("answered");
    let (lost, kept) = (x.acquire(1).await.expect("free"), x.acquire(1).await.expect("free"));
    let _: u32 = server.ask(&["DEL", TAKEN]);
    let text = |result: leasehold::Result<()>| result.expect_err("an error").to_string();
    let gone = text(lost.check().await);
    assert_eq!(
        gone,
        "the hold of permits of \"x\" is lost: the server no longer has it; stop the work, others may hold these permits"
    );
    assert_eq!(text(lost.release().await), gone);
    assert!(text(kept.check().await).starts_with("the hold of permits"));
    let _: String = server.ask(&["SET", "x", "many"]);
    assert_eq!(
        text(x.acquire(1).await.map(drop)),
        "the key \"x\" holds something that is not a semaphore; choose another name"
    );
    assert_eq!(text(x.available().await.map(drop)), text(x.set_permits(1).await));
    let _: String = server.ask(&["SET", "x", "3"]);
    let held = x.acquire(1).await.expect("free");
    proxy.refuse();
    proxy.cut_all();
    let (checked, released) = (text(held.check().await), text(held.release().await));
    assert!(checked.contains("confirming permits") && released.contains("releasing permits"), "{checked}; {released}");
}
