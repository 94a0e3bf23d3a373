//! The plain semaphore: a bare counter that nobody owns. Each request runs once, and a caller that leaves leaves no permit behind.

use std::{
    fs,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use leasehold::{Builder, Client, Error, Lost, PlainSemaphore, PubSub};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::support::{
    Server, before, begin, behind, client,
    deployment::{cluster::Cluster, sentinels::Sentinels},
    has_rights_like, ms, plain, poll_and_drop, poll_once, poll_until,
    proxy::{Fault, Mode, Proxy, Rule, Way, Which},
    server::version,
    until, with_rights, within,
};

const SOON: Duration = ms(3_000);
/// The longest sleep of a waiter that nobody notifies, and what a busy machine adds.
const LONGEST_NAP: Duration = ms(7_000);

type Waiting = JoinHandle<leasehold::Result<()>>;

async fn semaphore(client: &Client, permits: u32) -> PlainSemaphore {
    let semaphore = client.plain_semaphore("x");
    assert!(semaphore.try_set_permits(permits).await.expect("answered"));
    semaphore
}

fn spawn(semaphore: &PlainSemaphore, n: u32) -> Waiting {
    let semaphore = semaphore.clone();
    tokio::spawn(async move { semaphore.acquire(n).await })
}

/// A task of that client that wants so many sleeps until it is notified, or behind others.
async fn waiter(client: &Client, n: u32) -> Waiting {
    let before = client.stats();
    let waiting = spawn(&client.plain_semaphore("x"), n);
    let looks = if before.now.waiting == 0 { 2 } else { 0 };
    until("it to wait", SOON, || {
        let now = client.stats();
        now.now.waiting == before.now.waiting + 1 && now.total.refused >= before.total.refused + looks
    })
    .await;
    waiting
}

/// Work that has acquired so many, and never ends.
async fn begin_work(
    x: &PlainSemaphore,
    n: u32,
) -> Pin<Box<impl Future<Output = leasehold::Result<()>> + Send + use<>>> {
    let begun = Arc::new(AtomicBool::new(false));
    let mut working = Box::pin({
        let (x, begun) = (x.clone(), Arc::clone(&begun));
        async move {
            let work = async || {
                begun.store(true, Ordering::SeqCst);
                std::future::pending().await
            };
            x.with(n, work).await
        }
    });
    let works = || poll_once(working.as_mut()).is_pending() && begun.load(Ordering::SeqCst);
    until("it to work", SOON, works).await;
    working
}

async fn got(waiting: Waiting, limit: Duration) {
    within("to acquire", limit, waiting).await.0.expect("no panic").expect("acquired");
}

fn free(server: &Server) -> i64 {
    server.ask(&["GET", "x"])
}

/// So many permits are free, and nothing remains but the semaphore and receipts.
async fn clean(server: &Server, client: &Client, permits: i64) {
    let idle = || {
        let now = client.stats().now;
        (now.holds, now.waiting, now.subscriptions, now.releasing) == (0, 0, 0, 0)
    };
    until("the client to be idle", LONGEST_NAP, idle).await;
    until("the permits to be free", SOON, || free(server) == permits).await;
    until("the channels to be left", SOON, || server.channels().is_empty()).await;
    assert!(client.held().is_empty());
    let left: Vec<String> = server.ask(&["KEYS", "*"]);
    let receipts = || left.iter().filter(|key| key.starts_with("leasehold_receipt:{x}:"));
    assert!(receipts().count() + 1 == left.len(), "{left:?}");
    assert!(receipts().all(|key| (40_000..=90_000).contains(&server.pttl(key))), "{left:?}");
}

#[tokio::test]
async fn acquires_so_many_or_none() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.plain_semaphore("x");
    assert_eq!((x.available().await.expect("answered"), x.try_acquire(1).await.expect("answered")), (0, false));
    assert_eq!(x.drain().await.expect("answered"), 0);
    assert!(x.try_set_permits(5).await.expect("answered"));
    assert!(!x.try_set_permits(7).await.expect("answered"));
    x.acquire(3).await.expect("free");
    assert_eq!((x.available().await.expect("answered"), free(&server), server.pttl("x")), (2, 2, -1));
    assert!(!x.try_acquire(3).await.expect("answered"));
    assert!(x.try_acquire(2).await.expect("answered"));
    assert!(!x.try_acquire_for(1, ms(50)).await.expect("answered"));
    assert_eq!((client.stats().now.holds, client.held().len()), (0, 0), "the client has nothing of them");
    x.release(4).await.expect("answered");
    x.release(1).await.expect("answered");
    assert_eq!(x.drain().await.expect("answered"), 5);
    assert_eq!((x.drain().await.expect("answered"), free(&server)), (0, 0));
    x.add_permits(-2).await.expect("answered");
    assert_eq!(x.available().await.expect("answered"), -2);
    assert_eq!((x.drain().await.expect("answered"), free(&server)), (0, -2));
    x.release(7).await.expect("answered");
    for n in [0, 10_001, u32::MAX] {
        assert!(matches!(x.acquire(n).await, Err(Error::InvalidConfig { .. })));
    }
    assert!(matches!(x.release(0).await, Err(Error::InvalidConfig { .. })));
    clean(&server, &client, 5).await;
    let stats = client.stats();
    assert_eq!((stats.total.passed, stats.total.acquired, stats.total.released, stats.total.lost), (2, 0, 0, 0));
    assert_eq!((x.name(), format!("{x:?}").contains("PlainSemaphore")), ("x", true));
}

/// A JVM's `release` creates it; ours says that there is none.
#[tokio::test]
async fn a_release_creates_no_semaphore() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.plain_semaphore("x");
    let released = x.release(1).await;
    assert!(matches!(&released, Err(Error::Lost { name, reason: Lost::Removed, .. }) if name == "x"), "{released:?}");
    assert!(!server.exists("x"));
    x.add_permits(2).await.expect("answered");
    let refused = x.add_permits(1 << 60).await.expect_err("Lua could not count with it");
    assert!(matches!(refused, Error::InvalidConfig { .. }), "{refused:?}");
    x.release(1).await.expect("answered");
    assert_eq!(free(&server), 3);
}

/// What other programs see is what Redisson does.
#[tokio::test]
async fn keys_and_messages_are_those_of_redisson() {
    let server = Server::start();
    let client = client(&server, |builder| builder.prefix("app:")).await;
    for (name, channel) in [("x", "{app:x}"), ("{t}x", "app:{t}x")] {
        let mut raw = server.raw();
        let mut messages = raw.as_pubsub();
        messages.set_read_timeout(Some(SOON)).expect("it is a socket");
        messages.subscribe(format!("redisson_sc:{channel}")).expect("subscribed");
        let mut told = || messages.get_message().expect("a message").get_payload::<String>().expect("a text");
        let (x, key) = (client.plain_semaphore(name), format!("app:{name}"));
        let there = || server.ask::<String>(&["GET", &key]);
        x.try_set_permits(300).await.expect("answered");
        assert_eq!((told(), there()), ("300".to_owned(), "300".to_owned()));
        x.acquire(290).await.expect("free");
        assert_eq!(there(), "10");
        x.release(289).await.expect("answered");
        assert_eq!((told(), there()), ("299".to_owned(), "299".to_owned()));
        x.add_permits(-300).await.expect("answered");
        x.release(1).await.expect("answered"); // a JVM reads no number below one
        x.add_permits(4).await.expect("answered");
        assert_eq!((told(), there()), ("4".to_owned(), "4".to_owned()));
        let _: u32 = server.ask(&["PEXPIRE", &key, "60000"]); // as a JVM may create it
        x.acquire(1).await.expect("free");
        x.release(1).await.expect("answered");
        assert_eq!((told(), server.pttl(&key) > 50_000), ("4".to_owned(), true));
    }
}

#[tokio::test]
async fn a_release_wakes_a_waiter_elsewhere() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let theirs = semaphore(&other, 4).await;
    theirs.acquire(3).await.expect("free");
    let waiting = waiter(&client, 3).await;
    assert_eq!(server.channels(), ["redisson_sc:{x}"]);
    theirs.release(1).await.expect("answered");
    tokio::time::sleep(ms(50)).await;
    assert!(!waiting.is_finished());
    theirs.release(1).await.expect("answered");
    let (acquired, took) = within("to acquire", SOON, waiting).await;
    acquired.expect("no panic").expect("acquired");
    assert!(took < ms(500), "{took:?}");
    clean(&server, &client, 0).await;
    let waiting = waiter(&client, 2).await;
    theirs.add_permits(2).await.expect("answered");
    got(waiting, ms(1_000)).await;
    assert_eq!(client.stats().total.passed, 2);
}

#[tokio::test]
async fn without_messages_it_requests_again_and_again() {
    let server = Server::start();
    let client = client(&server, |builder| builder.pubsub(PubSub::Off)).await;
    let x = semaphore(&client, 0).await;
    let waiting = spawn(&x, 1);
    until("it to look", SOON, || client.stats().total.refused >= 5).await;
    x.release(1).await.expect("answered");
    got(waiting, ms(700)).await;
    assert_eq!(server.calls("publish"), 0);
    clean(&server, &client, 0).await;
}

/// In the order of the calls: small requests behind a large one wait, until it leaves or its limit ends.
#[tokio::test]
async fn waiters_of_a_client_are_served_in_order() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = semaphore(&client, 2).await;
    let large = waiter(&client, 4).await;
    let small = [waiter(&client, 1).await, waiter(&client, 2).await];
    assert!(!x.try_acquire(1).await.expect("answered"));
    assert!(small.iter().all(|one| !one.is_finished()));
    large.abort();
    let mut small = small.into_iter();
    got(small.next().expect("two"), ms(1_000)).await;
    let second = small.next().expect("two");
    assert!(!second.is_finished() && free(&server) == 1);
    x.release(1).await.expect("answered");
    got(second, ms(1_000)).await;
    x.release(3).await.expect("answered");
    let limited = tokio::spawn({
        let x = x.clone();
        async move { x.try_acquire_for(4, ms(300)).await }
    });
    until("it to wait", SOON, || client.stats().now.waiting == 1).await;
    let behind = waiter(&client, 3).await;
    let (ended, took) = within("its limit", SOON, limited).await;
    assert!(!ended.expect("no panic").expect("answered") && took < ms(1_000));
    got(behind, ms(1_000)).await;
    clean(&server, &client, 0).await;
}

// ---- lost requests and replies ----

/// Loads a script, so that no call of it is answered with NOSCRIPT, and says which it is.
fn script(server: &Server, name: &str) -> Which {
    let receipt = (name != "available").then(|| "plain_semaphore/receipt".to_owned());
    let files = ["latch/latch".to_owned()].into_iter().chain(receipt).chain([format!("plain_semaphore/{name}")]);
    let files = files.map(|file| format!("primitives/{file}"));
    let files = ["redis/frame".to_owned()].into_iter().chain(files);
    let read = |file| fs::read_to_string(format!("{}/src/{file}.lua", env!("CARGO_MANIFEST_DIR")));
    let source: String = files.map(|file| read(file).expect("a script of ours")).collect();
    Which::Script(server.ask(&["SCRIPT", "LOAD", &source]))
}

/// The requests to one script are cut, once and three times, before they arrive and after they ran. There are three permits then.
async fn everywhere(name: &str, test: impl AsyncFn(&Server, &Client, &dyn Fn())) {
    for (way, times) in [(Way::There, 1), (Way::There, 3), (Way::Back, 1), (Way::Back, 3)] {
        let server = Server::start();
        let cut = Rule::new(script(&server, name), Fault::Cut(way)).times(times);
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder).await;
        test(&server, &client, &|| proxy.rule(cut.clone())).await;
        until("the cuts", SOON, || proxy.is_spent()).await;
        clean(&server, &client, 3).await;
    }
}

#[tokio::test]
async fn each_request_runs_once_whatever_is_lost() {
    everywhere("acquire", async |server, client, cut| {
        let x = semaphore(client, 5).await;
        cut();
        within("the answer", SOON, x.acquire(2)).await.0.expect("acquired");
        assert_eq!(free(server), 3);
    })
    .await;
    everywhere("acquire", async |server, client, cut| {
        let x = semaphore(client, 2).await;
        let waiting = waiter(client, 3).await;
        cut(); // the request after the message
        plain(server).await.plain_semaphore("x").release(4).await.expect("answered");
        got(waiting, LONGEST_NAP).await;
        assert_eq!(free(server), 3);
        assert!(x.try_acquire(3).await.expect("answered"));
        x.release(3).await.expect("answered");
    })
    .await;
    everywhere("change", async |_, client, cut| {
        let x = client.plain_semaphore("x");
        cut();
        assert!(within("the answer", SOON, x.try_set_permits(1)).await.0.expect("answered"));
        cut();
        within("the answer", SOON, x.add_permits(5)).await.0.expect("answered");
        cut();
        within("the answer", SOON, x.release(2)).await.0.expect("answered");
        cut();
        assert_eq!(within("the answer", SOON, x.drain()).await.0.expect("answered"), 8);
        x.release(3).await.expect("answered");
    })
    .await;
    everywhere("available", async |_, client, cut| {
        let x = semaphore(client, 3).await;
        cut();
        assert_eq!(within("the answer", SOON, x.available()).await.0.expect("answered"), 3);
    })
    .await;
}

/// The caller has left, and what its request may have taken returns, whatever is lost.
#[tokio::test]
async fn what_nobody_has_seen_returns_whatever_is_lost() {
    for lost in ["acquire", "release"] {
        for (way, times) in [(Way::There, 1), (Way::Back, 1), (Way::Back, 3)] {
            let server = Server::start();
            let (name, release) = (script(&server, lost), script(&server, "release"));
            let proxy = before(&server);
            let client = behind(&proxy, |builder| builder).await;
            let x = semaphore(&client, 3).await;
            let slow = Rule::new(script(&server, "acquire"), Fault::Delay(Way::Back, ms(100)));
            proxy.rule(if lost == "acquire" { Rule::new(name, Fault::Cut(way)).times(times) } else { slow });
            if lost == "release" {
                proxy.rule(Rule::new(release, Fault::Cut(way)).times(times));
            }
            let mut calling = Box::pin(x.acquire(2));
            begin(&server, calling.as_mut());
            drop(calling);
            if lost == "release" {
                until("the faults", SOON, || proxy.is_spent()).await;
            }
            clean(&server, &client, 3).await;
            x.acquire(3).await.expect("free");
            x.release(3).await.expect("answered");
        }
    }
}

/// A client whose requests may run late: it may not close the connection that it has given up.
async fn without_kill(server: &Server, proxy: &Proxy) -> Client {
    let few: &[&str] = &["-client", "+client|setname", "+client|id"]; // before 7.0, only a whole command can be taken away
    let but_kill = if version() >= (7, 0) { &["-client|kill"] } else { few };
    server.set_user("u", &[&["on", ">p", "~*", "&*", "+@all"], but_kill].concat());
    let url = proxy.url().replace("redis://", "redis://u:p@");
    behind(proxy, |builder| builder.url(url).command_timeout(ms(500))).await
}

/// A request that was held back arrives, and runs.
async fn runs_late(server: &Server, proxy: &Proxy) {
    let before = server.calls("evalsha");
    until("it to run late", ms(10_000), || proxy.tally().delayed == 1 && server.calls("evalsha") > before).await;
}

/// The caller has left, and the release of its request came first: it takes nothing when it runs.
#[tokio::test]
async fn an_acquire_that_runs_after_its_release_takes_nothing() {
    let server = Server::start();
    let (proxy, other) = (before(&server), plain(&server).await);
    let _x = semaphore(&other, 3).await;
    let client = without_kill(&server, &proxy).await;
    proxy.rule(Rule::new(script(&server, "acquire"), Fault::Delay(Way::There, ms(6_000))));
    let x = client.plain_semaphore("x");
    let mut calling = Box::pin(async move { x.acquire(2).await });
    assert!(poll_once(calling.as_mut()).is_pending());
    tokio::time::sleep(ms(5)).await;
    drop(calling);
    until("its release", SOON, || client.stats().now.releasing == 0).await;
    let receipts: Vec<String> = server.ask(&["KEYS", "leasehold_receipt:{x}:*"]);
    assert!(receipts.iter().any(|key| server.ask::<String>(&["GET", key]) == "void"));
    runs_late(&server, &proxy).await;
    clean(&server, &client, 3).await;
}

/// Its retry found too few permits, and the caller has gone on.
#[tokio::test]
async fn a_first_try_that_is_late_takes_nothing_after_its_retry_was_refused() {
    let server = Server::start();
    let (proxy, other) = (before(&server), plain(&server).await);
    let theirs = semaphore(&other, 3).await;
    let client = without_kill(&server, &proxy).await;
    proxy.rule(Rule::new(script(&server, "acquire"), Fault::Delay(Way::There, ms(6_000))));
    let x = client.plain_semaphore("x");
    let trying = tokio::spawn(async move { x.try_acquire_for(2, ms(2_500)).await });
    tokio::time::sleep(ms(50)).await;
    theirs.acquire(3).await.expect("free");
    assert!(!within("its limit", ms(5_000), trying).await.0.expect("no panic").expect("answered"));
    theirs.release(3).await.expect("answered");
    runs_late(&server, &proxy).await;
    clean(&server, &client, 3).await;
}

/// The semaphore of today is another one.
#[tokio::test]
async fn a_request_that_runs_late_changes_no_later_semaphore() {
    let server = Server::start();
    let (proxy, other) = (before(&server), plain(&server).await);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(300))).await;
    let (x, theirs) = (client.plain_semaphore("x"), other.plain_semaphore("x"));
    for what in ["set", "release", "drain"] {
        let _: u32 = server.ask(&["DEL", "x"]);
        if what == "drain" {
            theirs.try_set_permits(7).await.expect("answered");
        }
        proxy.rule(Rule::new(script(&server, "change"), Fault::Delay(Way::Back, ms(1_000))));
        let receipts = || server.ask::<Vec<String>>(&["KEYS", "leasehold_receipt:*"]).len();
        let ran = receipts();
        let calling = tokio::spawn({
            let x = x.clone();
            async move {
                match what {
                    "set" => x.try_set_permits(5).await.map(u64::from),
                    "release" => x.release(5).await.map(|()| 0),
                    _ => x.drain().await,
                }
            }
        });
        until("its first run", SOON, || receipts() > ran).await;
        let _: u32 = server.ask(&["DEL", "x"]);
        theirs.try_set_permits(2).await.expect("answered");
        let said = within("its reply", SOON, calling).await.0.expect("no panic");
        match what {
            "set" => assert_eq!(said.expect("answered"), 1),
            "release" => assert!(matches!(said, Err(Error::Lost { .. })), "there was none: {said:?}"),
            _ => assert_eq!(said.expect("answered"), 7),
        }
        assert_eq!(free(&server), 2, "{what}: the second run finds the receipt");
    }
}

// ---- outages ----

#[tokio::test]
async fn waiters_ride_an_outage_out() {
    let server = Server::start();
    let (proxy, other) = (before(&server), plain(&server).await);
    let theirs = semaphore(&other, 4).await;
    theirs.acquire(4).await.expect("free");
    let client = behind(&proxy, |builder| builder).await;
    let waiting = waiter(&client, 1).await;
    proxy.refuse();
    proxy.cut_all();
    theirs.release(4).await.expect("answered"); // it cannot hear of it
    let releasing = tokio::spawn({
        let x = client.plain_semaphore("x");
        async move { x.release(1).await }
    });
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished() && !releasing.is_finished());
    proxy.accept();
    got(waiting, SOON).await;
    got(releasing, SOON).await;
    clean(&server, &client, 4).await;
}

#[tokio::test]
async fn calls_give_up_after_the_outage_timeout_and_take_nothing() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.outage_timeout(ms(1_000)).command_timeout(ms(300))).await;
    let x = semaphore(&client, 2).await;
    let waiting = waiter(&client, 3).await;
    proxy.set(Mode::Swallow);
    let ended = within("giving up", LONGEST_NAP + ms(3_000), waiting).await.0.expect("no panic");
    let Err(Error::Unavailable { tried, .. }) = &ended else { panic!("{ended:?}") };
    assert!(tried.contains("acquiring permits \"x\""), "{tried}");
    let limited = within("its limit", SOON, x.try_acquire_for(1, ms(100))).await.0;
    assert!(matches!(limited, Err(Error::Unavailable { .. })), "{limited:?}");
    let released = within("the release", SOON, x.release(1)).await.0;
    assert!(matches!(released, Err(Error::Unavailable { .. })), "{released:?}");
    proxy.set(Mode::Pass);
    until("the client to be idle", LONGEST_NAP, || client.stats().now.releasing == 0).await;
    assert_eq!(free(&server), 2);
}

/// Each time it runs, its reply is lost: when the call has given up, the permits return.
#[tokio::test]
async fn a_grant_without_a_reply_returns_after_the_outage() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.outage_timeout(ms(1_000)).command_timeout(ms(300))).await;
    let x = semaphore(&client, 2).await;
    for script in [script(&server, "acquire"), script(&server, "release")] {
        proxy.rule(Rule::new(script, Fault::Cut(Way::Back)).times(10_000));
    }
    let trying = tokio::spawn(async move { x.acquire(2).await });
    until("it to run", SOON, || free(&server) == 0).await;
    let ended = within("giving up", ms(4_000), trying).await.0.expect("no panic");
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
    proxy.calm();
    clean(&server, &client, 2).await;
}

/// Waiters go on when it is set again.
#[tokio::test]
async fn a_server_that_forgets_keeps_waiters_waiting() {
    let mut server = Server::start();
    let client = plain(&server).await;
    let x = semaphore(&client, 0).await;
    let waiting = waiter(&client, 1).await;
    server.restart();
    assert!(x.try_set_permits(1).await.expect("answered"));
    got(waiting, LONGEST_NAP).await;
    clean(&server, &client, 0).await;
}

// ---- callers that leave ----

#[tokio::test]
async fn calls_can_be_dropped_at_every_await() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let (x, theirs) = (semaphore(&client, 3).await, other.plain_semaphore("x"));
    for times in 0.. {
        let done = poll_and_drop(times, x.acquire(2)).await;
        if done {
            x.release(2).await.expect("answered");
        }
        clean(&server, &client, 3).await;
        if done && times > 1 {
            break;
        }
    }
    for times in 0..12 {
        theirs.acquire(2).await.expect("free");
        assert!(!poll_and_drop(times, x.acquire(2)).await);
        assert!(!poll_and_drop(times, x.try_acquire_for(3, SOON)).await);
        theirs.release(2).await.expect("answered");
        clean(&server, &client, 3).await;
    }
}

/// A release that has begun goes on.
#[tokio::test]
async fn a_release_that_has_begun_goes_on() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = semaphore(&client, 100).await;
    let mut released = 0;
    for times in 0..6 {
        poll_and_drop(times, x.release(1)).await;
        released += i64::from(times > 0);
        clean(&server, &client, 100 + released).await;
    }
    for way in [Way::There, Way::Back] {
        let proxy = before(&server);
        let behind = behind(&proxy, |builder| builder).await;
        proxy.rule(Rule::new(script(&server, "change"), Fault::Cut(way)));
        poll_and_drop(1, behind.plain_semaphore("x").release(1)).await;
        until("the cut", SOON, || proxy.is_spent()).await;
        released += 1;
        clean(&server, &behind, 100 + released).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_followed_by_a_release() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = semaphore(&client, 3).await;
    let seen = x.with(2, async || free(&server)).await.expect("acquired");
    assert_eq!(seen, 1);
    clean(&server, &client, 3).await;
    for times in 0..6 {
        poll_and_drop(times, x.with(3, async || tokio::task::yield_now().await)).await;
        clean(&server, &client, 3).await;
    }
    let panicking = tokio::spawn({
        let x = x.clone();
        async move { x.with(3, async || panic!("as meant")).await }
    });
    assert!(panicking.await.is_err());
    clean(&server, &client, 3).await;
    let working = begin_work(&x, 2).await;
    std::thread::spawn(move || drop(working)).join().expect("no panic");
    clean(&server, &client, 3).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    x.try_set_permits(1).await.expect("answered");
    let value = x.with(1, async || server.ask::<u32>(&["DEL", "x"])).await;
    assert_eq!(value.expect("the value is not lost"), 1);
    assert!(!server.exists("x"));
}

/// The others pass it over.
#[tokio::test]
async fn a_waiter_that_is_not_polled_stops_nobody() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let x = semaphore(&client, 0).await;
    let mut kept = pin!(x.acquire(2));
    assert!(poll_once(kept.as_mut()).is_pending());
    let behind = spawn(&x, 2);
    until("both to wait", SOON, || client.stats().now.waiting == 2 && client.stats().total.refused >= 2).await;
    other.plain_semaphore("x").release(2).await.expect("answered");
    got(behind, ms(2_000)).await;
    x.release(2).await.expect("answered");
    within("the one that was away", SOON, kept).await.0.expect("acquired");
    clean(&server, &client, 0).await;
}

#[tokio::test]
async fn closing_ends_calls_and_waits_for_releases() {
    let server = Server::start();
    for shuts_down in [false, true] {
        let _: u32 = server.ask(&["DEL", "x"]);
        let client = plain(&server).await;
        let x = semaphore(&client, 3).await;
        x.acquire(1).await.expect("free");
        let working = begin_work(&x, 2).await;
        let waiting = waiter(&client, 3).await; // more than the work returns, which may be before the client closes
        drop(working);
        let closed = if shuts_down { client.shutdown(SOON).await } else { client.close().await };
        closed.expect("answered");
        assert_eq!(free(&server), 2, "the release of the work was sent before");
        let ended = within("its end", ms(1_000), waiting).await.0.expect("no panic");
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        assert!(matches!(x.acquire(1).await, Err(Error::Closed)));
        assert!(matches!(x.release(1).await, Err(Error::Closed)));
    }
}

/// A release takes long to arrive, and the client is closed meanwhile.
#[tokio::test]
async fn closing_waits_for_a_slow_release() {
    let server = Server::start();
    for shuts_down in [false, true] {
        let _: u32 = server.ask(&["DEL", "x"]);
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder).await;
        let x = semaphore(&client, 3).await;
        let working = begin_work(&x, 2).await;
        proxy.rule(Rule::new(script(&server, "change"), Fault::Delay(Way::There, ms(400))));
        drop(working);
        assert_eq!(client.stats().now.releasing, 1);
        let closed = if shuts_down { client.shutdown(SOON).await } else { client.close().await };
        closed.expect("answered");
        assert_eq!(free(&server), 3);
    }
}

/// A caller waits for the result of its release.
#[tokio::test]
async fn closing_waits_for_a_release_that_somebody_waits_for() {
    let server = Server::start();
    for shuts_down in [false, true] {
        let _: u32 = server.ask(&["DEL", "x"]);
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder).await;
        let x = semaphore(&client, 3).await;
        x.acquire(2).await.expect("free");
        proxy.rule(Rule::new(script(&server, "change"), Fault::Delay(Way::There, ms(400))));
        let releasing = tokio::spawn(async move { x.release(2).await });
        until("it to be on its way", SOON, || proxy.tally().delayed == 1).await;
        let closed = if shuts_down { client.shutdown(SOON).await } else { client.close().await };
        closed.expect("answered");
        releasing.await.expect("no panic").expect("it had begun");
        assert_eq!(free(&server), 3);
    }
}

/// Work with two of three permits, until it is told to end.
async fn work_with_two(server: &Server, client: &Client) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let x = semaphore(client, 3).await;
    let ((begun, begins), (end, ends)) = (oneshot::channel(), oneshot::channel());
    let work = async || {
        begun.send(()).expect("somebody waits");
        ends.await.expect("it is told");
    };
    let work = tokio::spawn(async move { x.with(2, work).await.expect("free") });
    begins.await.expect("it begins"); // the server has granted them before the caller knows of it
    assert_eq!(free(server), 1);
    (end, work)
}

/// Its grace is for the work of `with`, as for that of a guard.
#[tokio::test]
async fn shutdown_waits_for_the_work_of_with() {
    let server = Server::start();
    let client = plain(&server).await;
    let (end, work) = work_with_two(&server, &client).await;
    let mut stopping = pin!(client.shutdown(SOON));
    assert!(tokio::time::timeout(ms(100), stopping.as_mut()).await.is_err(), "the work has not ended");
    end.send(()).expect("it waits");
    within("the end", SOON, stopping).await.0.expect("all was given back");
    work.await.expect("no panic");
    assert_eq!(free(&server), 3);
}

/// Nobody has a connection for the release. The end does not wait for such work.
#[tokio::test]
async fn work_that_outlasts_its_client_loses_permits() {
    let server = Server::start();
    let client = plain(&server).await;
    let (end, work) = work_with_two(&server, &client).await;
    within("the end", ms(1_500), client.shutdown(ms(100))).await.0.expect("nothing is under way");
    end.send(()).expect("it waits");
    work.await.expect("no panic");
    assert_eq!(free(&server), 1);
}

/// The client is dropped with its last handle, and a release that has begun is sent before that.
#[tokio::test]
async fn the_last_handle_waits_for_releases() {
    let server = Server::start();
    let other = plain(&server).await;
    let _x = semaphore(&other, 3).await;
    let client = plain(&server).await;
    let working = begin_work(&client.plain_semaphore("x"), 2).await;
    drop(client);
    drop(working);
    until("its release", SOON, || free(&server) == 3).await;
}

#[test]
fn the_end_of_the_runtime_ends_calls() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let first = runtime().expect("a runtime");
    let client = first.block_on(client(&server, |builder: Builder| builder.own_thread(false)));
    runtime().expect("a runtime").block_on(async {
        let x = semaphore(&client, 1).await;
        let working = begin_work(&x, 1).await;
        let waiting = waiter(&client, 1).await;
        first.shutdown_background();
        let ended = within("its end", SOON, waiting).await.0.expect("no panic");
        assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
        drop(working);
        let released = within("its end", SOON, x.release(1)).await.0;
        assert!(matches!(released, Err(Error::Unavailable { .. })), "{released:?}");
        assert_eq!(free(&server), 0, "nobody can send the release anymore");
    });
}

// ---- what others are told ----

#[tokio::test]
async fn what_is_not_a_semaphore_is_a_conflict() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.plain_semaphore("x");
    for put in [&["SET", "x", "many"][..], &["SET", "x", "1.5"], &["SET", "x", "007"], &["HSET", "x", "field", "1"]] {
        let _: redis::Value = server.ask(put);
        let dump = || server.ask::<Vec<u8>>(&["DUMP", "x"]);
        let before = dump();
        let results = [
            x.try_set_permits(1).await.map(drop),
            x.add_permits(1).await,
            x.available().await.map(drop),
            x.drain().await.map(drop),
            x.acquire(1).await,
            x.try_acquire(1).await.map(drop),
            x.release(1).await,
            x.with(1, async || ()).await,
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
    let cases: [(&[&str], &str, &[&str]); 5] = [
        (&["~*", "&*", ALL, "-incrby"], "+incrby", &["acquire", "release", "drain", "add", "set"]),
        (&["~*", "&*", ALL, "-set"], "+set", &["acquire", "release", "drain", "add", "set"]),
        (&["~*", "&*", ALL, "-publish"], "+publish", &["release", "add", "set"]),
        (&["~*", "resetchannels", ALL], "&redisson_sc:", &["release", "add", "set"]),
        (&["resetkeys", "~x", "&*", ALL], "~leasehold_receipt:", &["acquire", "release", "drain", "add", "set"]),
    ];
    for (rights, named, denied) in cases.into_iter().filter(|(_, named, _)| has_rights_like(named)) {
        let client = with_rights(&server, rights).await;
        let x = client.plain_semaphore("x");
        for what in ["acquire", "release", "drain", "add", "set", "available"] {
            let _: redis::Value = server.ask(if what == "set" { &["DEL", "x"][..] } else { &["SET", "x", "3"] });
            let before: Option<i64> = server.ask(&["GET", "x"]);
            let result = match what {
                "acquire" => x.acquire(2).await,
                "release" => x.release(1).await,
                "drain" => x.drain().await.map(drop),
                "add" => x.add_permits(1).await,
                "set" => x.try_set_permits(3).await.map(drop),
                _ => x.available().await.map(drop),
            };
            match result {
                Ok(()) => assert!(!denied.contains(&what), "{named}: {what}"),
                Err(Error::Denied { reason, .. }) => {
                    let is_named = reason.contains(named) || named == "+set" && version() < (7, 0); // docs/permissions.md
                    assert!(denied.contains(&what) && is_named, "{named}: {what}: {reason}");
                    assert_eq!(server.ask::<Option<i64>>(&["GET", "x"]), before, "{named}: {what}");
                }
                Err(other) => panic!("{named}: {what}: {other:?}"),
            }
        }
    }
}

// ---- many ----

/// Never more than there are, and all come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowds_never_have_more_than_there_are() {
    const ALL: i64 = 5;
    let server = Server::start();
    let clients = [plain(&server).await, plain(&server).await, plain(&server).await];
    let _x = semaphore(&clients[0], 5).await;
    let inside = Arc::new(AtomicI64::new(0));
    let tasks: Vec<_> = (0..18)
        .map(|task: u32| {
            let (x, inside) = (clients[task as usize % 3].plain_semaphore("x"), Arc::clone(&inside));
            tokio::spawn(async move {
                for turn in 0..8 {
                    let n = (task + turn) % 4 + 1;
                    x.with(n, async || {
                        assert!(inside.fetch_add(i64::from(n), Ordering::SeqCst) + i64::from(n) <= ALL);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(i64::from(n), Ordering::SeqCst);
                    })
                    .await
                    .expect("acquired");
                }
            })
        })
        .collect();
    for task in tasks {
        within("all turns", ms(30_000), task).await.0.expect("no assertion failed");
    }
    for client in &clients {
        clean(&server, client, ALL).await;
        assert_eq!((client.stats().total.passed, client.stats().total.lost), (48, 0));
    }
}

// ---- deployments ----

/// A request that spans keys waits until the slot has moved.
#[tokio::test]
async fn permits_whose_slot_moves_are_counted_once() {
    let cluster = Cluster::start().await;
    let client = Client::builder().url(cluster.url()).announce(false).connect().await.expect("it answers");
    for name in ["x", "{t}x"] {
        let (x, slot) = (client.plain_semaphore(name), cluster.slot_of(name));
        let to = (cluster.owner_of(slot) + 1) % 3;
        x.try_set_permits(3).await.expect("answered");
        x.acquire(2).await.expect("free");
        let migration = cluster.begin_migration(slot, to);
        let waiting = spawn(&x, 2);
        let releasing = tokio::spawn({
            let x = x.clone();
            async move { x.release(2).await }
        });
        tokio::time::sleep(ms(200)).await;
        cluster.move_keys(&migration);
        cluster.end_migration(migration);
        got(releasing, ms(15_000)).await;
        got(waiting, ms(15_000)).await;
        assert_eq!(x.available().await.expect("answered"), 1);
    }
}

#[tokio::test]
async fn it_outlives_its_master() {
    let mut sentinels = Sentinels::start().await;
    let client = Client::builder().url(sentinels.url()).announce(false).connect().await.expect("it answers");
    let x = semaphore(&client, 1).await;
    x.acquire(1).await.expect("free");
    let waiting = waiter(&client, 1).await;
    let master = sentinels.master_at();
    let has_it = |server: &Server| server.ask::<Option<u32>>(&["GET", "x"]) == Some(0);
    until("the replicas to have it", SOON, || sentinels.servers().iter().all(has_it)).await;
    sentinels.server_mut(master).crash();
    sentinels.heir_of(master).await;
    within("the release", ms(25_000), x.release(1)).await.0.expect("answered");
    got(waiting, ms(10_000)).await;
}

/// A busy client acquires its permit again at once. The waiters of another client get theirs all the same, whether or not the first of them is
/// polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_client_leaves_a_permit_to_those_behind_a_waiter_that_is_not_polled() {
    let server = Server::start();
    let (busy, away) = (plain(&server).await, plain(&server).await);
    let permits = semaphore(&busy, 1).await;
    permits.acquire(1).await.expect("free");
    let waits = away.plain_semaphore("x");
    let mut kept = pin!(waits.acquire(1));
    let refused = || away.stats().total.refused >= 2;
    poll_until("it to wait", kept.as_mut(), refused).await;
    let turns = tokio::spawn(async move {
        loop {
            tokio::time::sleep(ms(50)).await; // the work
            permits.release(1).await.expect("released");
            permits.acquire(1).await.expect("granted");
        }
    });
    for _ in 0..3 {
        within("a permit", ms(4_000), waits.acquire(1)).await.0.expect("granted");
        waits.release(1).await.expect("released");
    }
    turns.abort();
}
