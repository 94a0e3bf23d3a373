//! The semaphore: n permits or none, on all machines together, and those of a dead process come back by themselves.

use std::{
    fs,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use leasehold::{Builder, Client, Error, Lost, Permits, Semaphore};
use tokio::task::JoinHandle;

use crate::support::{
    Server, before, begin, behind, client,
    deployment::cluster::Cluster,
    has_rights_like, ms, plain, poll_and_drop, poll_once,
    proxy::{Fault, Mode, Rule, Way, Which},
    until, with_rights, within,
};

const SOON: Duration = ms(3_000);
/// The longest sleep of a waiter that nobody notifies, and what a busy machine adds.
const LONGEST_NAP: Duration = ms(5_500);
const TAKEN: &str = "{x}:timeout";
const MARK: &str = "leasehold_semaphore_waits:{x}";

type Waiting = JoinHandle<leasehold::Result<Permits>>;

async fn semaphore(client: &Client, permits: u32) -> Semaphore {
    let semaphore = client.semaphore("x");
    assert!(semaphore.try_set_permits(permits).await.expect("answered"));
    semaphore
}

fn spawn(semaphore: &Semaphore, n: u32) -> Waiting {
    let semaphore = semaphore.clone();
    tokio::spawn(async move { semaphore.acquire(n).await })
}

/// A task of that client that wants so many sleeps until it is notified, or behind others.
async fn waiter(client: &Client, n: u32) -> Waiting {
    let before = client.stats();
    let waiting = spawn(&client.semaphore("x"), n);
    let looks = if before.now.waiting == 0 { 2 } else { 0 };
    until("it to wait", SOON, || {
        let now = client.stats();
        now.now.waiting == before.now.waiting + 1 && now.total.refused >= before.total.refused + looks
    })
    .await;
    waiting
}

async fn got(waiting: Waiting, limit: Duration) -> Permits {
    within("to acquire", limit, waiting).await.0.expect("no panic").expect("acquired")
}

fn taken(server: &Server) -> usize {
    server.ask(&["ZCARD", TAKEN])
}

fn free(server: &Server) -> i64 {
    server.ask(&["GET", "x"])
}

/// All permits are free, and nothing remains but the semaphore and receipts.
async fn clean(server: &Server, client: &Client, permits: i64) {
    let idle = || {
        let now = client.stats().now;
        (now.holds, now.waiting, now.subscriptions, now.releasing) == (0, 0, 0, 0)
    };
    until("the client to be idle", LONGEST_NAP, idle).await;
    until("the permits to be free", SOON, || free(server) == permits && taken(server) == 0).await;
    until("the channels to be left", SOON, || server.channels().is_empty()).await;
    assert!(client.held().is_empty() && !server.exists(MARK));
    let left: Vec<String> = server.ask(&["KEYS", "*"]);
    assert!(left.iter().all(|key| key == "x" || key.starts_with("leasehold_receipt:")), "{left:?}");
}

#[tokio::test]
async fn acquires_so_many_or_none() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.semaphore("x");
    assert_eq!(
        (x.available().await.expect("answered"), x.try_acquire(1).await.expect("answered").is_none()),
        (0, true)
    );
    assert!(x.try_set_permits(5).await.expect("answered"));
    assert!(!x.try_set_permits(7).await.expect("answered"));
    let three = x.acquire(3).await.expect("free");
    assert_eq!((three.count(), three.name(), x.available().await.expect("answered")), (3, "x", 2));
    assert!(x.try_acquire(3).await.expect("answered").is_none());
    let two = x.try_acquire(2).await.expect("answered").expect("free");
    assert!(x.try_acquire_for(1, ms(50)).await.expect("answered").is_none());
    assert_eq!((free(&server), taken(&server), client.stats().now.holds), (0, 5, 2));
    three.release().await.expect("held");
    assert_eq!((free(&server), taken(&server)), (3, 2));
    drop(two);
    clean(&server, &client, 5).await;
    for n in [0, 10_001, u32::MAX] {
        assert!(matches!(x.acquire(n).await, Err(Error::InvalidConfig { .. })));
    }
    let stats = client.stats();
    assert_eq!((stats.total.acquired, stats.total.released, stats.total.lost), (2, 2, 0));
}

#[tokio::test]
async fn permits_can_be_added_and_removed() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.semaphore("x");
    x.add_permits(2).await.expect("answered");
    let held = x.acquire(2).await.expect("free");
    x.set_permits(5).await.expect("answered");
    assert_eq!(x.available().await.expect("answered"), 3);
    x.set_permits(1).await.expect("answered");
    assert_eq!(x.available().await.expect("answered"), -1);
    assert!(x.try_acquire(1).await.expect("answered").is_none());
    let waiting = waiter(&client, 2).await;
    x.add_permits(3).await.expect("answered");
    let more = got(waiting, ms(1_000)).await;
    x.add_permits(-1).await.expect("answered");
    held.release().await.expect("held");
    more.release().await.expect("held");
    clean(&server, &client, 3).await;
    x.set_permits(0).await.expect("answered");
    assert!(x.try_acquire(1).await.expect("answered").is_none());
}

/// What other programs see is what Redisson does.
#[tokio::test]
async fn keys_and_messages_are_those_of_redisson() {
    let server = Server::start();
    let client = client(&server, |builder| builder.prefix("app:")).await;
    for (name, taken, channel) in [("x", "{app:x}:timeout", "{app:x}"), ("{t}x", "app:{t}x:timeout", "app:{t}x")] {
        let mut raw = server.raw();
        let mut messages = raw.as_pubsub();
        messages.set_read_timeout(Some(SOON)).expect("it is a socket");
        messages.subscribe(format!("redisson_sc:{channel}")).expect("subscribed");
        let mut told = || messages.get_message().expect("a message").get_payload::<String>().expect("a text");
        let (x, key) = (client.semaphore(name), format!("app:{name}"));
        x.try_set_permits(300).await.expect("answered");
        assert_eq!((told(), server.ask::<u32>(&["GET", &key])), ("300".to_owned(), 300));
        let permits = x.acquire(290).await.expect("free");
        let ids: Vec<Vec<u8>> = server.ask(&["ZRANGE", taken, "0", "-1"]);
        let hex = |id: &Vec<u8>| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let wanted: Vec<_> = (0..290).map(|n| format!("{}{n:04x}", permits.id())).collect();
        assert_eq!(ids.iter().map(hex).collect::<Vec<_>>(), wanted);
        let time: (i64, i64) = server.ask(&["TIME"]);
        let score: Vec<(Vec<u8>, String)> = server.ask(&["ZRANGE", taken, "0", "0", "WITHSCORES"]);
        let left = score[0].1.parse::<i64>().expect("in ms") - time.0 * 1_000 - time.1 / 1_000;
        assert!((25_000..=30_000).contains(&left), "{left}");
        assert_eq!(server.ask::<u32>(&["GET", &key]), 10);
        permits.release().await.expect("held");
        assert_eq!((told(), server.ask::<u32>(&["GET", &key])), ("300".to_owned(), 300));
        x.add_permits(-1).await.expect("answered");
        x.add_permits(2).await.expect("answered");
        assert_eq!(told(), "301");
    }
}

#[tokio::test]
async fn a_release_wakes_a_waiter_elsewhere() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let theirs = semaphore(&other, 4).await;
    let (two, one) = (theirs.acquire(2).await.expect("free"), theirs.acquire(1).await.expect("free"));
    let waiting = waiter(&client, 3).await;
    assert_eq!(server.channels(), ["redisson_sc:{x}"]);
    one.release().await.expect("held");
    tokio::time::sleep(ms(50)).await;
    assert!(!waiting.is_finished());
    two.release().await.expect("held");
    let (permits, took) = within("to acquire", SOON, waiting).await;
    assert!(took < ms(500), "{took:?}");
    permits.expect("no panic").expect("acquired").release().await.expect("held");
    clean(&server, &client, 4).await;
}

/// In the order of the calls: small requests behind a large one wait, until it leaves.
#[tokio::test]
async fn waiters_of_a_client_are_served_in_order() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = semaphore(&client, 4).await;
    let held = x.acquire(2).await.expect("free");
    let large = waiter(&client, 4).await;
    let small = [waiter(&client, 1).await, waiter(&client, 2).await];
    assert!(x.try_acquire(1).await.expect("answered").is_none());
    assert!(small.iter().all(|one| !one.is_finished()));
    large.abort();
    let mut small = small.into_iter();
    let first = got(small.next().expect("two"), ms(1_000)).await;
    let second = small.next().expect("two");
    assert!(!second.is_finished() && free(&server) == 1);
    held.release().await.expect("held");
    drop((first, got(second, ms(1_000)).await));
    clean(&server, &client, 4).await;
}

/// A limit that ends lets those behind it go on.
#[tokio::test]
async fn the_end_of_a_limit_lets_smaller_requests_pass() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = semaphore(&client, 4).await;
    let held = x.acquire(2).await.expect("free");
    let large = tokio::spawn({
        let x = x.clone();
        async move { x.try_acquire_for(4, ms(300)).await }
    });
    until("it to wait", SOON, || client.stats().now.waiting == 1).await;
    let small = waiter(&client, 1).await;
    let (ended, took) = within("its limit", SOON, large).await;
    assert!(ended.expect("no panic").expect("answered").is_none() && took < ms(1_000));
    drop(got(small, ms(1_000)).await);
    held.release().await.expect("held");
    clean(&server, &client, 4).await;
}

/// Of other processes, too: what is released is left to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_is_not_starved_by_small_ones_elsewhere() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let (x, theirs) = (semaphore(&client, 4).await, other.semaphore("x"));
    let small: Vec<_> = (0..8)
        .map(|_| {
            let theirs = theirs.clone();
            tokio::spawn(async move {
                loop {
                    let one = theirs.acquire(1).await.expect("acquired");
                    tokio::time::sleep(ms(5)).await;
                    one.release().await.expect("held");
                }
            })
        })
        .collect();
    until("them to be busy", SOON, || other.stats().total.acquired > 20).await;
    for _ in 0..5 {
        let (all, took) = within("all four", ms(2_000), x.acquire(4)).await;
        assert!(took < ms(1_500), "{took:?}");
        all.expect("acquired").release().await.expect("held");
        let before = other.stats().total.acquired;
        until("the others", SOON, || other.stats().total.acquired > before + 8).await;
    }
    small.iter().for_each(|one| one.abort());
    clean(&server, &client, 4).await;
}

/// A waiter that dies with its mark keeps the others out for three seconds.
#[tokio::test]
async fn a_mark_ends_with_its_waiter() {
    let server = Server::start();
    let (client, proxy) = (plain(&server).await, before(&server));
    let x = semaphore(&client, 4).await;
    let dies = behind(&proxy, |builder| builder).await;
    let held = x.acquire(2).await.expect("free");
    let waiting = spawn(&dies.semaphore("x"), 4);
    until("it to wait", SOON, || dies.stats().total.refused >= 2).await;
    for _ in 0..6 {
        x.try_acquire(1).await.expect("answered").into_iter().for_each(drop);
        tokio::time::sleep(ms(20)).await;
    }
    until("its mark", SOON, || server.exists(MARK)).await;
    assert!(x.try_acquire(1).await.expect("answered").is_none(), "they are left to it");
    proxy.refuse();
    proxy.cut_all();
    drop(got(spawn(&x, 1), ms(4_500)).await);
    waiting.abort();
    proxy.accept();
    let again = spawn(&dies.semaphore("x"), 4);
    held.release().await.expect("held");
    drop(got(again, LONGEST_NAP).await);
    clean(&server, &client, 4).await;
}

#[tokio::test]
async fn nobody_re_enters() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = semaphore(&client, 2).await;
    let (one, other) = (x.acquire(1).await.expect("free"), x.acquire(1).await.expect("free"));
    assert_ne!(one.id(), other.id());
    assert!(x.try_acquire(1).await.expect("answered").is_none());
    drop((one, other));
    assert_eq!(x.with(2, async || 7).await.expect("free"), 7);
    clean(&server, &client, 2).await;
}

// ---- leases ----

#[tokio::test]
async fn permits_are_renewed_and_a_loss_is_noticed() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(3_000))).await;
    let x = semaphore(&client, 3).await;
    let (kept, gone) = (x.acquire(1).await.expect("free"), x.acquire(2).await.expect("free"));
    tokio::time::sleep(ms(4_000)).await;
    kept.check().await.expect("renewed");
    gone.check().await.expect("renewed");
    let ids: Vec<Vec<u8>> = server.ask(&["ZRANGE", TAKEN, "0", "-1"]);
    let prefix: Vec<u8> = (0..14).map(|n| u8::from_str_radix(&gone.id()[2 * n..2 * n + 2], 16).expect("hex")).collect();
    let mut raw = server.raw();
    for id in ids.iter().filter(|id| id.starts_with(&prefix)) {
        let _: u32 = redis::cmd("ZREM").arg(TAKEN).arg(id).query(&mut raw).expect("removed");
    }
    let token = gone.lost_token();
    let (lost, _) = within("to notice", ms(1_500), gone.lost()).await;
    assert!(lost == Lost::Removed && gone.is_lost() && gone.remaining().is_zero());
    within("the token", ms(100), token.cancelled()).await;
    assert!(matches!(gone.release().await, Err(Error::Lost { reason: Lost::Removed, .. })));
    assert!(!kept.is_lost() && kept.remaining() > ms(300));
    kept.release().await.expect("held");
}

/// Its permits come back at the end of their lease, and wake the waiter then.
#[tokio::test]
async fn permits_of_a_dead_process_come_back_by_themselves() {
    const LEASE: Duration = ms(1_500);
    let server = Server::start();
    let (client, proxy) = (plain(&server).await, before(&server));
    let x = semaphore(&client, 4).await;
    let dies = behind(&proxy, |builder| builder.watchdog(LEASE)).await;
    let held = dies.semaphore("x").acquire(3).await.expect("free");
    let waiting = waiter(&client, 4).await;
    proxy.refuse();
    proxy.cut_all();
    let died = tokio::time::Instant::now();
    let permits = got(waiting, LEASE + ms(500)).await;
    assert!(died.elapsed() > ms(500), "{:?}", died.elapsed());
    assert!(held.is_lost(), "it knows by its own clock");
    permits.release().await.expect("held");
    proxy.accept();
    drop(held);
    clean(&server, &dies, 4).await;
    assert_eq!(x.available().await.expect("answered"), 4);
}

#[tokio::test]
async fn a_fixed_lease_and_a_max_hold_end() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(900))).await;
    let x = semaphore(&client, 2).await;
    let fixed = x.clone().lease(ms(400)).acquire(1).await.expect("free");
    let capped = x.clone().max_hold(ms(300)).acquire(1).await.expect("free");
    assert_eq!(within("its limit", ms(600), capped.lost()).await.0, Lost::MaxHold);
    assert_eq!(within("its lease", ms(600), fixed.lost()).await.0, Lost::Expired);
    assert!(matches!(fixed.release().await, Err(Error::Lost { reason: Lost::Expired, .. })));
    let is_back = async || while x.available().await.expect("answered") == 0 {};
    within("its permit", ms(600), is_back()).await;
    assert_eq!(x.available().await.expect("answered"), 1, "the other may need the rest of its lease to stop");
    tokio::time::sleep(ms(1_000)).await;
    assert_eq!(x.available().await.expect("answered"), 2, "it was not renewed");
    drop(capped);
    let since = tokio::time::Instant::now();
    let long = x.clone().lease(ms(10_000)).acquire(2).await.expect("free"); // longer than the watchdog's
    tokio::time::sleep(ms(1_500)).await;
    let (left, spent) = (long.remaining(), since.elapsed());
    assert!(left <= ms(8_500) && left + spent > ms(9_500), "{left:?} after {spent:?}");
    long.release().await.expect("held");
    clean(&server, &client, 2).await;
}

// ---- parts ----

#[tokio::test]
async fn a_part_is_released_alone() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(900))).await;
    let x = semaphore(&client, 6).await;
    let mut permits = x.acquire(5).await.expect("free");
    assert!(permits.split(0).is_none() && permits.split(5).is_none());
    let (two, mut other) = (permits.split(2).expect("it has five"), permits.split(2).expect("it has three"));
    let last = other.split(1).expect("it has two");
    assert_eq!([&permits, &two, &other, &last].map(Permits::count), [1, 2, 1, 1]);
    assert_eq!((x.available().await.expect("answered"), client.held()[0].holds), (1, 5));
    let waiting = waiter(&client, 3).await;
    two.release().await.expect("held");
    drop(got(waiting, ms(1_000)).await);
    drop(permits);
    until("a second part", SOON, || taken(&server) == 2).await;
    tokio::time::sleep(ms(2_000)).await;
    other.check().await.expect("renewed");
    assert_eq!((taken(&server), client.held()[0].holds), (2, 2));
    let _: u32 = server.ask(&["DEL", TAKEN]);
    for part in [other, last] {
        assert_eq!(within("to notice", ms(700), part.lost()).await.0, Lost::Removed);
        assert!(matches!(part.release().await, Err(Error::Lost { .. })));
    }
}

#[tokio::test]
async fn a_part_is_released_once_whatever_is_lost() {
    everywhere("release", async |server, client, cut| {
        let x = semaphore(client, 3).await;
        let mut permits = x.acquire(3).await.expect("free");
        let part = permits.split(1).expect("it has three");
        cut();
        within("the answer", SOON, part.release()).await.0.expect("held");
        assert_eq!((free(server), taken(server)), (1, 2));
        permits.release().await.expect("held");
    })
    .await;
}

/// The server looks at a few permits of a hold for each request, however many it has.
#[tokio::test]
async fn many_permits_cost_the_server_little_until_they_are_granted_or_released() {
    const MANY: u32 = 2_000;
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let (x, theirs) = (semaphore(&client, MANY).await, other.semaphore("x"));
    let looks = || server.calls("zscore");
    let one = theirs.acquire(1).await.expect("free");
    let waiting = waiter(&client, MANY).await;
    let before = looks();
    for _ in 0..20 {
        drop(theirs.try_acquire(1).await.expect("answered")); // each release notifies the waiter
    }
    until("all releases", SOON, || other.stats().now.releasing == 0).await;
    assert!(looks() - before < 1_000, "{} looks", looks() - before);
    one.release().await.expect("held");
    let mut all = got(waiting, SOON).await;
    let parts: Vec<_> = (1..MANY).map(|_| all.split(1).expect("it has more")).collect();
    let before = looks();
    for part in parts {
        part.release().await.expect("held");
    }
    assert!(looks() - before < 10 * u64::from(MANY), "{} looks", looks() - before);
    assert_eq!((x.available().await.expect("answered"), taken(&server)), (i64::from(MANY) - 1, 1));
    all.release().await.expect("held");
    clean(&server, &client, MANY.into()).await;
}

// ---- lost requests and replies ----

/// Loads a script, so that no call of it is answered with NOSCRIPT, and says which it is.
fn script(server: &Server, name: &str) -> Which {
    let receipt: &[_] = if name == "change" { &["primitives/receipt"] } else { &[] };
    let own = format!("primitives/semaphore/{name}");
    let files = [&["redis/frame"], receipt, &["primitives/semaphore/permits", &own]].concat();
    let read = |file| fs::read_to_string(format!("{}/src/{file}.lua", env!("CARGO_MANIFEST_DIR")));
    let source: String = files.into_iter().map(|file| read(file).expect("a script of ours")).collect();
    Which::Script(server.ask(&["SCRIPT", "LOAD", &source]))
}

/// The requests to one script are cut, once and three times, before they arrive and after they ran. There are three permits then.
async fn everywhere(name: &str, test: impl AsyncFn(&Server, &Client, &dyn Fn())) {
    for (way, times) in [(Way::There, 1), (Way::There, 3), (Way::Back, 1), (Way::Back, 3)] {
        let server = Server::start();
        let cut = Rule::new(script(&server, name), Fault::Cut(way)).times(times);
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder.watchdog(ms(3_000))).await;
        test(&server, &client, &|| proxy.rule(cut.clone())).await;
        until("the cuts", SOON, || proxy.is_spent()).await;
        clean(&server, &client, 3).await;
    }
}

#[tokio::test]
async fn nothing_is_taken_twice_whatever_is_lost() {
    everywhere("acquire", async |server, client, cut| {
        let x = semaphore(client, 3).await;
        cut();
        let permits = within("the answer", SOON, x.acquire(2)).await.0.expect("acquired");
        assert_eq!((free(server), taken(server)), (1, 2));
        permits.release().await.expect("held");
    })
    .await;
    everywhere("acquire", async |server, client, cut| {
        let x = semaphore(client, 3).await;
        cut();
        let mut calling = Box::pin(x.acquire(2));
        begin(server, calling.as_mut());
        tokio::time::sleep(ms(3)).await;
        drop(calling); // what it may have acquired is released
        until("the cuts", SOON, || server.calls("evalsha") > 3).await;
        drop(within("the others", SOON, x.acquire(3)).await.0.expect("acquired"));
        x.acquire(1).await.expect("acquired").release().await.expect("held");
        x.acquire(1).await.expect("acquired").release().await.expect("held");
        x.acquire(1).await.expect("acquired").release().await.expect("held");
    })
    .await;
    everywhere("release", async |server, client, cut| {
        let x = semaphore(client, 3).await;
        let permits = x.acquire(2).await.expect("free");
        cut();
        within("the answer", SOON, permits.release()).await.0.expect("held");
        assert_eq!((free(server), taken(server)), (3, 0));
    })
    .await;
    everywhere("renew", async |_, client, cut| {
        let x = semaphore(client, 3).await;
        let permits = x.acquire(2).await.expect("free");
        cut();
        within("the answer", SOON, permits.check()).await.0.expect("held");
        permits.release().await.expect("held");
    })
    .await;
    everywhere("change", async |server, client, cut| {
        let x = client.semaphore("x");
        cut();
        assert!(within("the answer", SOON, x.try_set_permits(1)).await.0.expect("answered"));
        x.add_permits(2).await.expect("answered");
        assert_eq!(free(server), 3);
    })
    .await;
}

/// What ran late has ended with its lease.
#[tokio::test]
async fn an_acquire_that_runs_late_ends_with_its_lease() {
    let server = Server::start();
    let (proxy, other) = (before(&server), plain(&server).await);
    let theirs = semaphore(&other, 2).await;
    let client = behind(&proxy, |builder| builder.command_timeout(ms(200)).watchdog(ms(1_000))).await;
    proxy.rule(Rule::new(script(&server, "acquire"), Fault::Delay(Way::There, ms(400))));
    let mut calling = Box::pin(client.semaphore("x").acquire_owned());
    assert!(poll_once(calling.as_mut()).is_pending());
    tokio::time::sleep(ms(5)).await;
    drop(calling);
    tokio::time::sleep(ms(600)).await;
    let both = within("its end", ms(4_000), theirs.acquire(2)).await.0.expect("acquired");
    both.release().await.expect("held");
    clean(&server, &client, 2).await;
}

trait Owned {
    fn acquire_owned(self) -> impl Future<Output = leasehold::Result<Permits>>;
}

impl Owned for Semaphore {
    async fn acquire_owned(self) -> leasehold::Result<Permits> {
        self.acquire(1).await
    }
}

// ---- outages ----

#[tokio::test]
async fn waiters_and_holders_ride_an_outage_out() {
    let server = Server::start();
    let (proxy, other) = (before(&server), plain(&server).await);
    let theirs = semaphore(&other, 4).await;
    let client = behind(&proxy, |builder| builder).await;
    let (held, two) = (client.semaphore("x").acquire(2).await.expect("free"), theirs.acquire(2).await.expect("free"));
    let waiting = waiter(&client, 1).await;
    proxy.refuse();
    proxy.cut_all();
    two.release().await.expect("held"); // it cannot hear of it
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished());
    proxy.accept();
    drop(got(waiting, SOON).await);
    held.check().await.expect("held");
    held.release().await.expect("held");
    clean(&server, &client, 4).await;
}

#[tokio::test]
async fn waiters_give_up_after_the_outage_timeout() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.outage_timeout(ms(1_000)).command_timeout(ms(300))).await;
    let x = semaphore(&client, 1).await;
    let held = x.acquire(1).await.expect("free");
    let waiting = waiter(&client, 1).await;
    proxy.set(Mode::Swallow);
    let ended = within("giving up", LONGEST_NAP + ms(3_000), waiting).await.0.expect("no panic");
    let Err(Error::Unavailable { tried, .. }) = &ended else { panic!("{ended:?}") };
    assert!(tried.contains("acquiring permits \"x\""), "{tried}");
    let limited = within("its limit", SOON, x.try_acquire_for(1, ms(100))).await.0;
    assert!(matches!(limited, Err(Error::Unavailable { .. })), "{limited:?}");
    let released = within("the release", SOON, held.release()).await.0;
    assert!(matches!(released, Err(Error::Unavailable { .. })), "{released:?}");
    proxy.set(Mode::Pass);
    until("the release", LONGEST_NAP, || taken(&server) == 0).await;
}

/// What the server has lost is lost, and waiters go on when it is set again.
#[tokio::test]
async fn a_server_that_forgets_loses_the_permits() {
    let mut server = Server::start();
    let client = plain(&server).await;
    let x = semaphore(&client, 1).await;
    let held = x.acquire(1).await.expect("free");
    let waiting = waiter(&client, 1).await;
    server.restart();
    assert_eq!(within("to notice", ms(10_000), held.lost()).await.0, Lost::Removed);
    assert!(x.try_set_permits(1).await.expect("answered"));
    drop(got(waiting, LONGEST_NAP).await);
}

// ---- callers that leave ----

#[tokio::test]
async fn calls_can_be_dropped_at_every_await() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let (x, theirs) = (semaphore(&client, 3).await, other.semaphore("x"));
    for times in 0.. {
        let done = poll_and_drop(times, x.acquire(2)).await;
        clean(&server, &client, 3).await;
        if done && times > 1 {
            break;
        }
    }
    for times in 0..12 {
        let held = theirs.acquire(2).await.expect("free");
        assert!(!poll_and_drop(times, x.acquire(2)).await);
        assert!(!poll_and_drop(times, x.try_acquire_for(3, SOON)).await);
        held.release().await.expect("held");
        clean(&server, &client, 3).await;
        let held = theirs.acquire(2).await.expect("free");
        let release = held.release();
        if times > 0 {
            poll_and_drop(times.min(3), release).await;
        } else {
            drop(release);
        }
        clean(&server, &other, 3).await;
    }
}

/// Also on a plain thread, without a runtime.
#[tokio::test(flavor = "multi_thread")]
async fn permits_can_be_dropped_anywhere() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = semaphore(&client, 3).await;
    let mut permits = x.acquire(3).await.expect("free");
    let part = permits.split(1).expect("it has three");
    std::thread::spawn(move || drop(part)).join().expect("no panic");
    until("its release", SOON, || free(&server) == 1).await;
    let panicking = tokio::spawn(async move {
        let _permits = permits;
        panic!("as meant");
    });
    assert!(panicking.await.is_err());
    clean(&server, &client, 3).await;
}

/// The others pass it over.
#[tokio::test]
async fn a_waiter_that_is_not_polled_stops_nobody() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let x = semaphore(&client, 2).await;
    let held = other.semaphore("x").acquire(2).await.expect("free");
    let mut kept = pin!(x.acquire(2));
    assert!(poll_once(kept.as_mut()).is_pending());
    let behind = spawn(&x, 2);
    until("both to wait", SOON, || client.stats().now.waiting == 2 && client.stats().total.refused >= 2).await;
    held.release().await.expect("held");
    drop(got(behind, ms(2_000)).await);
    drop(within("the one that was away", SOON, kept).await.0.expect("acquired"));
    clean(&server, &client, 2).await;
}

#[tokio::test]
async fn closing_ends_calls_and_releases_permits() {
    let server = Server::start();
    for shuts_down in [false, true] {
        let client = plain(&server).await;
        let x = client.semaphore("x");
        x.set_permits(3).await.expect("answered");
        let mut held = x.acquire(2).await.expect("free");
        let part = held.split(1).expect("it has two");
        let waiting = waiter(&client, 2).await;
        let closed = if shuts_down { client.shutdown(ms(200)).await } else { client.close().await };
        drop(closed);
        let ended = within("its end", ms(1_000), waiting).await.0.expect("no panic");
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        assert!(matches!(held.release().await, Err(Error::Lost { reason: Lost::Closed, .. })));
        assert!(part.is_lost() && matches!(x.acquire(1).await, Err(Error::Closed)));
        until("the release", SOON, || free(&server) == 3 && taken(&server) == 0).await;
    }
}

#[test]
fn the_end_of_the_runtime_ends_calls() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let first = runtime().expect("a runtime");
    let client = first.block_on(client(&server, |builder: Builder| builder.own_thread(false).watchdog(ms(1_500))));
    runtime().expect("a runtime").block_on(async {
        let x = semaphore(&client, 1).await;
        let held = x.acquire(1).await.expect("free");
        let waiting = waiter(&client, 1).await;
        first.shutdown_background();
        let ended = within("its end", SOON, waiting).await.0.expect("no panic");
        assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
        assert_eq!(within("its lease", SOON, held.lost()).await.0, Lost::Expired);
    });
}

// ---- what others are told ----

#[tokio::test]
async fn holders_are_listed() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let x = semaphore(&client, 10).await;
    assert!(x.inspect().await.expect("answered").is_empty());
    let (three, two) = (x.acquire(3).await.expect("free"), other.semaphore("x").acquire(2).await.expect("free"));
    let mut raw = server.raw();
    let foreign = [0xff_u8, 1, 2, 3, 10, 0, 0, 13, 32, 9, 10, 11, 12, 13, 14, 15];
    let _: u32 = redis::cmd("ZADD").arg(TAKEN).arg("922337203685477").arg(&foreign).query(&mut raw).expect("added");
    let holders = x.inspect().await.expect("answered");
    let of = |id: &str| holders.iter().find(|holder| holder.id.starts_with(id)).map(|one| (one.holds, one.remaining));
    assert_eq!(holders.len(), 3);
    assert!(matches!(of(three.id()), Some((3, Some(left))) if left > ms(25_000)));
    assert!(matches!(of(two.id()), Some((2, Some(_)))));
    assert_eq!(of("ff010203"), Some((1, None)));
    let held = client.held();
    assert_eq!((held.len(), &*held[0].name, &*held[0].id, held[0].holds), (1, "x", three.id(), 3));
    let text = format!("{x:?} {three:?}");
    assert!(text.contains("Semaphore") && text.contains(three.id()), "{text}");
}

#[tokio::test]
async fn what_is_not_a_semaphore_is_a_conflict() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.semaphore("x");
    let others = ["many", "1.5", "9007199254740993", "9223372036854775808", "-9007199254740992"];
    let others = others.map(|text| vec!["SET", "x", text]).into_iter().chain([vec!["HSET", "x", "field", "1"]]);
    for put in others {
        let put = &put[..];
        let _: redis::Value = server.ask(put);
        let dump = || server.ask::<Vec<u8>>(&["DUMP", "x"]);
        let before = dump();
        let results = [
            x.try_set_permits(1).await.map(drop),
            x.set_permits(1).await,
            x.add_permits(1).await,
            x.available().await.map(drop),
            x.inspect().await.map(drop),
            x.acquire(1).await.map(drop),
            x.try_acquire(1).await.map(drop),
        ];
        assert!(results.iter().all(|one| matches!(one, Err(Error::Conflict { .. }))), "{put:?}: {results:?}");
        assert_eq!(dump(), before);
        let _: u32 = server.ask(&["DEL", "x"]);
    }
}

/// What a user may not do is named, and nothing is half done.
#[tokio::test]
async fn a_missing_permission_is_named_and_nothing_is_half_done() {
    const ALL: &str = "+@all";
    let server = Server::start();
    let cases: [(&[&str], &str, &[&str]); 7] = [
        (&["~*", "&*", ALL, "-zadd"], "+zadd", &["acquire", "reap"]),
        (&["~*", "&*", ALL, "-incrby"], "+incrby", &["acquire", "reap", "release", "set"]),
        (&["~*", "&*", ALL, "-zrem"], "+zrem", &["reap", "release"]),
        (&["~*", "&*", ALL, "-publish"], "+publish", &["reap", "release", "set"]),
        (&["~*", "resetchannels", ALL], "&redisson_sc:", &["reap", "release", "set"]),
        (
            &["resetkeys", "~x", "~{x}:timeout", "~leasehold_receipt:*", "&*", ALL],
            "~leasehold_semaphore_waits:",
            &["acquire", "reap", "release"],
        ),
        (&["~*", "&*", ALL, "-zrangebyscore"], "+zrangebyscore", &["acquire", "reap", "set", "available"]),
    ];
    for (rights, named, denied) in cases.into_iter().filter(|(_, named, _)| has_rights_like(named)) {
        let client = with_rights(&server, rights).await;
        let x = client.semaphore("x");
        for what in ["acquire", "reap", "release", "set", "available"] {
            for words in [&["DEL", "x", TAKEN, MARK][..], &["SET", "x", "3"]] {
                let _: redis::Value = server.ask(words);
            }
            if what == "reap" {
                let _: u32 = server.ask(&["ZADD", TAKEN, "5", "1234567890123456"]);
            }
            let held = if what == "release" && !denied.contains(&"acquire") { x.acquire(2).await.ok() } else { None };
            if what == "release" && held.is_none() {
                continue;
            }
            let before = (free(&server), taken(&server));
            let result = match (what, held) {
                ("release", Some(held)) => held.release().await,
                ("set", _) => x.add_permits(1).await,
                ("available", _) => x.available().await.map(drop),
                _ => x.acquire(2).await.map(drop),
            };
            match result {
                Ok(()) => assert!(!denied.contains(&what), "{named}: {what}"),
                Err(Error::Denied { reason, .. }) => {
                    assert!(denied.contains(&what) && reason.contains(named), "{named}: {what}: {reason}");
                    let after = (free(&server), taken(&server));
                    let is_reaped = what == "reap" && after == (before.0 + 1, before.1 - 1);
                    assert!(is_reaped || after == before, "{named}: {what}: {before:?}, {after:?}");
                }
                Err(other) => panic!("{named}: {what}: {other:?}"),
            }
        }
    }
}

/// The reply to a change that was refused half-way is lost. The second run must not take the receipt of the first for that of a change that
/// was made.
#[tokio::test]
async fn a_refused_change_whose_reply_is_lost_was_not_made() {
    let server = Server::start();
    for rights in [["-publish", "-del"], ["-incrby", "-del"]] {
        let proxy = before(&server);
        server.set_user("u", &[&["on", ">p", "~*", "&*", "+@all"], &rights[..]].concat());
        let client = behind(&proxy, |builder| builder.url(proxy.url().replace("redis://", "redis://u:p@"))).await;
        let _: String = server.ask(&["SET", "x", "3"]);
        for how in 0..2 {
            proxy.rule(Rule::new(script(&server, "change"), Fault::Cut(Way::Back)));
            let x = client.semaphore("x");
            let result = if how == 0 { x.add_permits(1).await } else { x.set_permits(7).await };
            assert!(proxy.is_spent(), "{rights:?}");
            assert!(matches!(result, Err(Error::Denied { .. })), "{rights:?}: {result:?}");
            assert_eq!(server.ask::<u32>(&["GET", "x"]), 3, "{rights:?}");
        }
    }
}

// ---- many ----

/// Never more than there are, and all come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowds_never_hold_more_than_there_are() {
    const ALL: i64 = 5;
    let server = Server::start();
    let clients = [plain(&server).await, plain(&server).await, plain(&server).await];
    let _x = semaphore(&clients[0], 5).await;
    let inside = Arc::new(AtomicI64::new(0));
    let tasks: Vec<_> = (0..18)
        .map(|task: u32| {
            let (x, inside) = (clients[task as usize % 3].semaphore("x"), Arc::clone(&inside));
            tokio::spawn(async move {
                for turn in 0..8 {
                    let n = (task + turn) % 4 + 1;
                    let mut permits = x.acquire(n).await.expect("acquired");
                    assert!(inside.fetch_add(i64::from(n), Ordering::SeqCst) + i64::from(n) <= ALL);
                    tokio::task::yield_now().await;
                    if let Some(part) = permits.split(n / 2) {
                        inside.fetch_sub(i64::from(part.count()), Ordering::SeqCst);
                        part.release().await.expect("held");
                    }
                    inside.fetch_sub(i64::from(permits.count()), Ordering::SeqCst);
                    permits.release().await.expect("held");
                }
            })
        })
        .collect();
    for task in tasks {
        within("all turns", ms(30_000), task).await.0.expect("no assertion failed");
    }
    for client in &clients {
        clean(&server, client, ALL).await;
        assert_eq!((client.stats().total.acquired, client.stats().total.released), (48, 48));
    }
}

/// A request that spans keys waits until the slot has moved.
#[tokio::test]
async fn permits_whose_slot_moves_stay_held() {
    let cluster = Cluster::start().await;
    let client = Client::builder().url(cluster.url()).announce(false).connect().await.expect("it answers");
    let (x, slot) = (client.semaphore("x"), cluster.slot_of("x"));
    let to = (cluster.owner_of(slot) + 1) % 3;
    x.try_set_permits(3).await.expect("answered");
    let held = x.acquire(2).await.expect("free");
    let migration = cluster.begin_migration(slot, to);
    let waiting = spawn(&x, 1);
    tokio::time::sleep(ms(200)).await;
    cluster.move_keys(&migration);
    cluster.end_migration(migration);
    drop(got(waiting, ms(15_000)).await);
    held.check().await.expect("held");
    held.release().await.expect("held");
    assert_eq!(x.available().await.expect("answered"), 3);
}
