//! Each failure is its own variant, and comes in time.

use std::{net::TcpListener, time::Duration};

use leasehold::{Client, Error};
use tokio::task::JoinSet;

use crate::support::{Server, chain, client, master, ms, plain, replica_of, with_rights, within};

#[tokio::test]
async fn nothing_listening() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let (connected, _) = within("a refusal", ms(1_000), Client::connect(&format!("redis://127.0.0.1:{port}"))).await;
    let Err(Error::Unavailable { tried, source: Some(_), .. }) = connected else { panic!("{connected:?}") };
    assert!(tried.contains("connecting"), "{tried}");
}

#[tokio::test]
async fn somebody_listens_but_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let connecting = Client::builder().url(url).command_timeout(ms(300)).connect();
    let (connected, _) = within("giving up", ms(1_000), connecting).await;
    assert!(matches!(connected, Err(Error::Unavailable { .. })), "{connected:?}");
}

#[tokio::test]
async fn wrong_password() {
    let server = Server::with(&["--requirepass", "right"]);
    for url in [server.url_as("", "wrong"), server.url_as("nobody", "right"), server.url()] {
        let connected = match Client::connect(&url).await {
            // Without a password we are let in and may do nothing.
            Ok(client) => client.lock("x").lock().await.map(|_| ()),
            Err(error) => Err(error),
        };
        let Err(error) = connected else { panic!("let in") };
        let Error::Denied { reason, .. } = &error else { panic!("{error:?}") };
        assert!(reason.contains("password"), "{reason}");
        assert!(!format!("{error} {error:?}").contains("wrong"), "no password in it");
    }
    plain_with(&server.url_as("default", "right")).await;
}

async fn plain_with(url: &str) -> Client {
    Client::connect(url).await.expect("welcome")
}

#[tokio::test]
async fn a_user_without_the_right_to_run_scripts() {
    let server = Server::start();
    let client = with_rights(&server, &["~*", "&*", "+@all", "-evalsha"]).await;
    let (taken, _) = within("a refusal", ms(1_000), client.lock("x").lock()).await;
    let denied = taken.expect_err("not allowed");
    assert_eq!(denied.to_string(), "the server denies access: this user lacks +evalsha");
    assert!(chain(&denied).contains("NOPERM"), "{}", chain(&denied));
    assert_eq!(client.stats().now.holds, 0);
}

/// Requests that gather go out in one call, which the server refuses as a whole for the sake of one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_not_allowed_costs_others_nothing() {
    const NAMES: usize = 300;
    let server = Server::start();
    let client = with_rights(&server, &["~ours:*", "&*", "+@all"]).await;
    let mut tasks = JoinSet::new();
    for n in 0..NAMES {
        let lock = client.lock(&if n % 10 == 0 { format!("theirs:{n}") } else { format!("ours:{n}") });
        tasks.spawn(
            async move { lock.lock().await.map(|guard| guard.name().to_owned()).map_err(|error| (lock, error)) },
        );
    }
    let (mut granted, mut denied) = (0, 0);
    while let Some(ended) = tasks.join_next().await {
        match ended.expect("no panic") {
            Ok(name) => granted += usize::from(name.starts_with("ours:")),
            Err((lock, Error::Denied { reason, .. })) => {
                assert_eq!(reason, format!("this user lacks ~{}", lock.name()));
                assert!(lock.name().starts_with("theirs:"));
                denied += 1;
            }
            Err((lock, other)) => panic!("{}: {other:?}", lock.name()),
        }
    }
    assert_eq!((granted, denied), (NAMES - NAMES / 10, NAMES / 10));
    assert!(client.stats().total.calls < client.stats().total.requests, "some gathered");
}

#[tokio::test]
async fn a_user_without_the_right_to_publish_does_not_lose_the_lock_half_way() {
    let server = Server::start();
    let client = with_rights(&server, &["~*", "&*", "+@all", "-publish"]).await;
    let guard = client.lock("x").lock().await.expect("free");
    let given_back = guard.unlock().await;
    assert!(matches!(given_back, Err(Error::Denied { .. })), "{given_back:?}");
    assert!(server.exists("x"), "still locked rather than gone with nobody woken");
}

#[tokio::test]
async fn keys_that_are_no_locks() {
    let server = Server::start();
    let client = plain(&server).await;
    let _: String = server.ask(&["SET", "string", "x"]);
    let _: u32 = server.ask(&["RPUSH", "list", "x"]);
    let _: u32 = server.ask(&["HSET", "hash", "color", "blue"]);
    let _: u32 = server.ask(&["HSET", "hash2", "a:1", "1", "mode", "read"]);
    for name in ["string", "list", "hash", "hash2"] {
        let before: String = server.ask(&["TYPE", name]);
        let lock = client.lock(name);
        assert!(matches!(lock.lock().await, Err(Error::Conflict { .. })), "{name}");
        assert!(matches!(lock.try_lock().await, Err(Error::Conflict { .. })), "{name}");
        assert!(matches!(lock.inspect().await, Err(Error::Conflict { .. })), "{name}");
        assert!(matches!(lock.force_unlock().await, Err(Error::Conflict { .. })), "{name}");
        assert_eq!(server.ask::<String>(&["TYPE", name]), before);
    }
    assert_eq!((client.stats().now.holds, client.stats().now.waiting), (0, 0));
}

/// The message has the key by which the server is asked; the error has the name that the program knows.
#[tokio::test]
async fn a_conflict_names_the_key_on_the_server() {
    let server = Server::start();
    let client = client(&server, |builder| builder.prefix("app:")).await;
    let _: u32 = server.ask(&["SADD", "app:x", "member"]);
    let conflicts = [
        client.lock("x").lock().await.map(drop),
        client.mutex("x").try_lock().await.map(drop),
        client.lock("x").inspect().await.map(drop),
        client.fair_lock("x").lock().await.map(drop),
        client.fenced_lock("x").force_unlock().await.map(drop),
        client.rw_lock("x").read().await.map(drop),
        client.rw_lock("x").inspect().await.map(drop),
        client.semaphore("x").acquire(1).await.map(drop),
        client.semaphore("x").available().await.map(drop),
        client.plain_semaphore("x").add_permits(1).await,
        client.latch("x").wait().await,
        client.latch("x").count_down().await.map(drop),
    ];
    for conflict in conflicts {
        let error = conflict.expect_err("a set is none of these");
        assert_eq!(error.name(), Some("x"));
        assert!(error.to_string().starts_with("the key \"app:x\" holds something that is not a "), "{error}");
    }
    let command = client.servers().await.expect("it is connected").remove(0);
    let refused = command.command(&["GET", "app:x"]).await.expect_err("a set is no text");
    assert!(matches!(refused, Error::Server { .. }) && refused.to_string().contains("WRONGTYPE"), "{refused}");
}

#[tokio::test]
async fn a_frozen_server() {
    let server = Server::start();
    let settings = |builder: leasehold::Builder| builder.command_timeout(ms(200)).outage_timeout(ms(600));
    let client = client(&server, settings).await;
    server.freeze();
    let lock = client.lock("x");
    let (taken, took) = within("giving up", ms(900), lock.lock()).await;
    assert!(matches!(taken, Err(Error::Unavailable { .. })), "{taken:?}");
    assert!(took > ms(500), "ridden out: {took:?}");
    let (taken, _) = within("one attempt", ms(400), lock.try_lock()).await;
    assert!(matches!(taken, Err(Error::Unavailable { .. })), "{taken:?}");
    let (taken, _) = within("its own deadline", ms(500), lock.try_lock_for(ms(100))).await;
    assert!(matches!(taken, Err(Error::Unavailable { .. })), "{taken:?}");
    let (asked, _) = within("giving up", ms(900), lock.is_locked()).await;
    assert!(matches!(asked, Err(Error::Unavailable { .. })), "{asked:?}");
    server.thaw();
    // What was asked in vain is taken back.
    crate::support::until("it to be free", ms(3_000), || client.stats().now.releasing == 0 && !server.exists("x"))
        .await;
}

#[tokio::test]
async fn values_that_cannot_be() {
    let server = Server::start();
    let client = plain(&server).await;
    for name in ["", "a{b", "a}b", "}", "{}x", &"n".repeat(1025)] {
        assert!(matches!(client.lock(name).lock().await, Err(Error::InvalidName { .. })), "{name:?}");
        assert!(matches!(client.lock(name).inspect().await, Err(Error::InvalidName { .. })), "{name:?}");
    }
    let too_long = Duration::from_secs(366 * 24 * 60 * 60);
    for lease in [Duration::ZERO, Duration::from_micros(999), too_long, Duration::MAX] {
        let taken = client.lock("x").lease(lease).lock().await;
        assert!(matches!(taken, Err(Error::InvalidConfig { setting: "lease", .. })), "{taken:?}");
    }
    assert_eq!(client.stats().total.requests, 0, "refused before anything was sent");
    for builder in [
        Client::builder().url("http://127.0.0.1"),
        Client::builder().watchdog(Duration::ZERO),
        Client::builder().command_timeout(Duration::ZERO),
        Client::builder().connections(0),
    ] {
        assert!(matches!(builder.connect().await, Err(Error::InvalidConfig { .. })));
    }
}

#[tokio::test]
async fn other_answers_keep_the_servers_words() {
    let server = Server::start();
    let client = plain(&server).await;
    let _: String = server.ask(&["SET", "redisson_lock_token:{x}", "no number"]);
    let taken = client.fenced_lock("x").lock().await;
    let error = taken.expect_err("no token can be given");
    assert_eq!(chain(&error).matches("not an integer").count(), 1, "{}", chain(&error));
    assert!(error.to_string().contains(&format!("127.0.0.1:{}", server.port())), "{error}");
    let Error::Server { source, .. } = &error else { panic!("{error:?}") };
    assert!(error.to_string().ends_with(&source.to_string()), "the words are in the message: {error}");
}

#[tokio::test]
async fn too_few_replicas() {
    let server = master();
    let one = client(&server, |builder| builder.replicas(1).command_timeout(ms(2_000))).await;
    let taken = one.lock("x").lock().await;
    assert!(matches!(taken, Err(Error::Replicas { wanted: 1, got: 0, .. })), "{taken:?}");
    crate::support::until("it to be given back", ms(500), || !server.exists("x")).await;

    let replica = replica_of(&server).await;
    let guard = one.lock("x").lock().await.expect("confirmed by one replica");
    assert!(replica.exists("x"));
    guard.unlock().await.expect("ours");
}

#[tokio::test]
async fn over_a_unix_socket() {
    let server = Server::start();
    let client = plain_with(&server.socket_url()).await;
    let guard = client.lock("socket").lock().await.expect("free");
    assert!(server.exists("socket"));
    guard.unlock().await.expect("ours");
}

#[tokio::test]
async fn scripts_flushed_away_are_loaded_again() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    let _: String = server.ask(&["SCRIPT", "FLUSH"]);
    guard.unlock().await.expect("ours");
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn who_waits_behind_a_request_of_his_own_owner_keeps_his_deadline() {
    let server = Server::start();
    let settings = |builder: leasehold::Builder| builder.command_timeout(ms(200)).outage_timeout(ms(600));
    let client = client(&server, settings).await;
    let lock = client.lock("x").lease(Duration::from_secs(3_600));
    let _outer = lock.lock().await.expect("free");
    let inner = lock.lock().await.expect("re-entered");
    server.freeze();
    drop(inner); // its release cannot be answered
    let (taken, _) = within("one attempt", ms(500), lock.try_lock()).await;
    assert!(matches!(taken, Err(Error::Unavailable { .. })), "never `None`: {taken:?}");
    let (taken, _) = within("its own deadline", ms(550), lock.try_lock_for(ms(250))).await;
    assert!(matches!(taken, Err(Error::Unavailable { .. })), "never `None`: {taken:?}");
    let (taken, _) = within("the outage", ms(1_000), lock.lock()).await;
    assert!(matches!(taken, Err(Error::Unavailable { .. })), "{taken:?}");
}

#[tokio::test]
async fn without_patience_for_outages_a_call_still_gets_its_answer() {
    let server = Server::start();
    let client = client(&server, |builder| builder.outage_timeout(Duration::ZERO)).await;
    for _ in 0..50 {
        client.lock("x").lock().await.expect("answered").unlock().await.expect("answered");
    }
}

#[tokio::test]
async fn what_a_hold_of_no_time_would_be_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let client = plain(&server).await;
    for lock in [client.lock("x").max_hold(Duration::ZERO), client.lock("x").lease(Duration::ZERO)] {
        let refused = lock.lock().await.expect_err("no time");
        assert!(matches!(refused, Error::InvalidConfig { .. }), "{refused:?}");
    }
    assert_eq!(client.stats().total.calls, 0);
}

#[tokio::test]
async fn a_source_is_printed_once_and_errors_say_which_lock() {
    let server = Server::with(&["--requirepass", "right"]);
    let denied = Client::connect(&server.url_as("", "wrong")).await.expect_err("wrong password");
    assert_eq!(chain(&denied).matches("WRONGPASS").count(), 1, "{}", chain(&denied));
    assert_eq!(denied.name(), None);

    let full = Server::with(&["--maxmemory", "1"]);
    let refused = client(&full, |builder| builder.outage_timeout(ms(100))).await;
    let refused = refused.lock("x").lock().await.expect_err("no memory");
    assert_eq!(chain(&refused).matches("OOM").count(), 1, "{}", chain(&refused));

    let mut gone = Server::start();
    let client = client(&gone, |builder| builder.outage_timeout(ms(100)).command_timeout(ms(50))).await;
    gone.crash();
    let silent = client.lock("x").lock().await.expect_err("nobody is there");
    assert!(silent.is_unavailable() && !silent.is_lost());
    assert_eq!(silent.name(), Some("x"));
    let causes = chain(&silent);
    assert!(causes.matches("refused").count() <= 1, "{causes}");

    let server = Server::start();
    let _: u32 = server.ask(&["SADD", "set", "x"]);
    let client = plain(&server).await;
    let conflict = client.lock("set").lock().await.expect_err("not a lock");
    assert_eq!(conflict.name(), Some("set"));
    let guard = client.lock("gone").lock().await.expect("free");
    let _: u32 = server.ask(&["DEL", "gone"]);
    let lost = guard.unlock().await.expect_err("gone");
    assert!(lost.is_lost() && lost.name() == Some("gone"), "{lost:?}");
}

/// What another program calls its hold need not be text. It is only not ours.
#[tokio::test]
async fn a_holder_that_is_no_text() {
    let server = Server::start();
    let client = plain(&server).await;
    let _: u32 = redis::cmd("HSET").arg("x").arg(b"\xff\xfe:1").arg(1).query(&mut server.raw()).expect("it can be put");
    let lock = client.lock("x");
    assert!(lock.try_lock().await.expect("answered").is_none());
    assert!(matches!(lock.inspect().await, Err(Error::Conflict { .. })));
    assert!(matches!(lock.force_unlock().await, Err(Error::Conflict { .. })));
    let total = client.stats().total;
    assert_eq!((total.misplaced, total.reconnects), (0, 0));
}

/// Numbers that others wrote are told as they are, or the key is not a lock: to `try_lock` as to `inspect`.
#[tokio::test]
async fn numbers_of_others() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.lock("x");
    let _: u32 = server.ask(&["HSET", "x", "somebody:1", "100000000000000"]);
    let _: u32 = server.ask(&["PEXPIRE", "x", "100000000000001"]);
    let holder = lock.inspect().await.expect("answered").expect("held");
    assert_eq!(holder.holds, 100_000_000_000_000);
    assert!(holder.remaining.is_some_and(|left| left > Duration::from_secs(99_999_999_000)));
    for count in ["1.5", "-1", "many"] {
        let _: u32 = server.ask(&["HSET", "x", "somebody:1", count]);
        assert!(matches!(lock.try_lock().await, Err(Error::Conflict { .. })), "{count}");
        assert!(matches!(lock.inspect().await, Err(Error::Conflict { .. })), "{count}");
    }
}
