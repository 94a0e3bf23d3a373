//! The count-down latch: waiters pass when the count is zero, on all machines, and nothing is ever held.

use std::{fs, pin::pin, time::Duration};

use leasehold::{Builder, Client, Error, Latch, PubSub};
use tokio::task::JoinHandle;

use crate::support::{
    Server, before, behind, client,
    deployment::{cluster::Cluster, sentinels::Sentinels},
    has_rights_like, ms, plain, poll_and_drop, poll_once,
    proxy::{Fault, Mode, Rule, Way, Which},
    until, with_rights, within,
};

const SOON: Duration = ms(3_000);
/// The longest sleep of a waiter that nobody notifies, and what a busy machine adds.
const LONGEST_NAP: Duration = ms(7_000);
const CHANNEL: &str = "redisson_countdownlatch__channel__{x}";

type Waiting = JoinHandle<leasehold::Result<()>>;

fn spawn(latch: &Latch) -> Waiting {
    let latch = latch.clone();
    tokio::spawn(async move { latch.wait().await })
}

/// So many more tasks of that client wait. They look once more after they have subscribed, and then sleep.
async fn waiters(client: &Client, count: u64) -> Vec<Waiting> {
    let (before, latch) = (client.stats(), client.latch("x"));
    let waiting = (0..count).map(|_| spawn(&latch)).collect();
    let sleeps = || {
        let now = client.stats();
        let looks = if before.now.waiting == 0 { 2 } else { 0 };
        now.now.waiting == before.now.waiting + count && now.total.refused >= before.total.refused + looks
    };
    until("all to wait", SOON, sleeps).await;
    waiting
}

/// Whether it opens within the limit. A busy machine may be too slow for the last look of a short limit.
pub(crate) async fn opens(latch: &Latch, limit: Duration) -> bool {
    loop {
        match latch.wait_for(limit).await {
            Err(Error::Unavailable { .. }) => {}
            result => return result.expect("answered"),
        }
    }
}

async fn pass(waiting: impl IntoIterator<Item = Waiting>, limit: Duration) {
    for one in waiting {
        within("to pass", limit, one).await.0.expect("no panic").expect("passed");
    }
}

/// Nothing remains but receipts.
async fn clean(server: &Server, client: &Client) {
    let idle = || {
        let now = client.stats().now;
        (now.holds, now.waiting, now.subscriptions, now.releasing) == (0, 0, 0, 0)
    };
    until("the client to be idle", ms(5_000), idle).await;
    until("the channels to be left", SOON, || server.channels().is_empty()).await;
    assert!(client.held().is_empty());
    let left: Vec<String> = server.ask(&["KEYS", "*"]);
    assert!(left.iter().all(|key| key.starts_with("leasehold_receipt:")), "{left:?}");
    assert!(left.iter().all(|key| (60_000..=90_000).contains(&server.pttl(key))), "{left:?}");
}

/// All other keys are receipts, which end.
fn clean_but(server: &Server, key: &str) {
    let left: Vec<String> = server.ask(&["KEYS", "*"]);
    let is_receipt = |left: &String| left.starts_with("leasehold_receipt:") && server.pttl(left) > 60_000;
    assert!(left.iter().all(|left| left == key || is_receipt(left)), "{left:?}");
}

#[tokio::test]
async fn counts_down_to_zero_and_can_be_set_again() {
    let server = Server::start();
    let client = plain(&server).await;
    let latch = client.latch("x");
    assert_eq!((latch.count().await.expect("answered"), latch.count_down().await.expect("answered")), (0, 0));
    latch.wait().await.expect("a latch that does not exist is open");
    for _ in 0..2 {
        assert!(latch.try_set_count(2).await.expect("answered"));
        assert!(!latch.try_set_count(5).await.expect("answered"));
        assert_eq!((server.ask::<String>(&["GET", "x"]), server.pttl("x")), ("2".to_owned(), -1));
        assert!(!opens(&latch, ms(1)).await);
        assert_eq!(latch.count_down().await.expect("answered"), 1);
        assert_eq!((latch.count().await.expect("answered"), server.ask::<u32>(&["GET", "x"])), (1, 1));
        assert_eq!(latch.count_down().await.expect("answered"), 0);
        assert!(!server.exists("x"));
        assert!(opens(&latch, Duration::ZERO).await);
        assert_eq!(latch.count_down().await.expect("answered"), 0);
    }
    assert!(latch.try_set_count(0).await.expect("answered"));
    assert!(latch.try_set_count(0).await.expect("nothing was created"));
    assert!(!server.exists("x"));
    clean(&server, &client).await;
}

/// What other programs see is what Redisson does.
#[tokio::test]
async fn keys_and_messages_are_those_of_redisson() {
    let server = Server::start();
    let client = client(&server, |builder| builder.prefix("app:")).await;
    for (name, channel) in [("x", "{app:x}"), ("{t}x", "{app:{t}x}")] {
        let mut raw = server.raw();
        let mut messages = raw.as_pubsub();
        messages.set_read_timeout(Some(SOON)).expect("it is a socket");
        messages.subscribe(format!("redisson_countdownlatch__channel__{channel}")).expect("subscribed");
        let mut told = || messages.get_message().expect("a message").get_payload::<String>().expect("a text");
        let (latch, key) = (client.latch(name), format!("app:{name}"));
        latch.try_set_count(2).await.expect("answered");
        assert_eq!((told(), server.ask::<u32>(&["GET", &key])), ("1".to_owned(), 2));
        latch.count_down().await.expect("answered");
        latch.count_down().await.expect("answered");
        assert_eq!((told(), server.exists(&key)), ("0".to_owned(), false));
        latch.try_set_count(1).await.expect("answered");
        assert_eq!(told(), "1");
        assert!(latch.delete().await.expect("answered"));
        assert_eq!((told(), server.exists(&key)), ("1".to_owned(), false));
        assert!(!latch.delete().await.expect("answered"));
        assert_eq!((latch.name(), format!("{latch:?}").contains(name)), (name, true));
    }
}

#[tokio::test]
async fn the_last_count_down_wakes_a_waiter_elsewhere() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    other.latch("x").try_set_count(2).await.expect("answered");
    let waiting = waiters(&client, 1).await.remove(0);
    assert_eq!(server.channels(), [CHANNEL]);
    other.latch("x").count_down().await.expect("answered");
    tokio::time::sleep(ms(50)).await;
    assert!(!waiting.is_finished());
    other.latch("x").count_down().await.expect("answered");
    let (passed, took) = within("to pass", SOON, waiting).await;
    passed.expect("no panic").expect("passed");
    assert!(took < ms(500), "{took:?}");
    until("the message", SOON, || client.stats().total.wakeups >= 1).await; // it may have looked by itself just before
    clean(&server, &client).await;
}

/// Of one client, all waiters together send one request for each message.
#[tokio::test(flavor = "multi_thread")]
async fn wakes_a_thousand_in_two_clients() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    one.latch("x").try_set_count(1).await.expect("answered");
    let (first, second) = (waiters(&one, 500).await, waiters(&two, 500).await);
    let before = [one.stats().total.requests, two.stats().total.requests];
    assert!(before.iter().all(|requests| *requests < 60), "{before:?}");
    assert_eq!((one.stats().now.waiting, one.stats().now.holds), (500, 0));
    two.latch("x").count_down().await.expect("answered");
    pass(first.into_iter().chain(second), SOON).await;
    let after = [one.stats().total.requests, two.stats().total.requests];
    assert!(after[0] <= before[0] + 2 && after[1] <= before[1] + 3, "{before:?}, {after:?}");
    for client in [&one, &two] {
        let stats = client.stats();
        assert_eq!((stats.total.passed, stats.total.acquired, stats.total.released), (500, 0, 0));
        assert_eq!((stats.wait.count, stats.total.lost, stats.total.failed), (0, 0, 0));
        clean(&server, client).await;
    }
}

#[tokio::test]
async fn a_limit_ends_in_time() {
    let server = Server::start();
    let client = plain(&server).await;
    let latch = client.latch("x");
    latch.try_set_count(1).await.expect("answered");
    for limit in [0, 1, 50, 300] {
        let (passed, took) = within("the limit", ms(limit + 500), opens(&latch, ms(limit))).await;
        assert!(!passed && took >= ms(limit), "{took:?} of {limit} ms");
    }
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait_for(Duration::MAX).await }
    });
    until("it to wait", SOON, || client.stats().now.waiting == 1).await;
    latch.count_down().await.expect("answered");
    assert!(within("to pass", SOON, waiting).await.0.expect("no panic").expect("answered"));
    clean(&server, &client).await;
}

/// Nobody is notified when a key is changed by hand: the last look finds it.
#[tokio::test]
async fn looks_once_more_at_its_limit() {
    let server = Server::start();
    let client = plain(&server).await;
    let _: u32 = server.ask(&["INCR", "x"]);
    let _: u32 = server.ask(&["PEXPIRE", "x", "290"]);
    assert!(opens(&client.latch("x"), ms(300)).await);
}

/// A look before the limit finds it shut, and the reply comes after the limit. In between it was opened, and nobody was notified.
#[tokio::test]
async fn a_late_reply_does_not_end_the_wait() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let _: u32 = server.ask(&["INCR", "x"]);
    let limit = tokio::time::Instant::now() + ms(2_000);
    let waiting = tokio::spawn({
        let latch = client.latch("x");
        async move { opens(&latch, limit - tokio::time::Instant::now()).await }
    });
    until("it to wait", SOON, || client.stats().total.refused >= 2).await;
    tokio::time::sleep_until(limit - ms(400)).await; // so early that a busy machine looks before the limit, too
    let looks = server.calls("get");
    let after_the_limit = limit + ms(50) - tokio::time::Instant::now();
    proxy.rule(Rule::new(script(&server, "look"), Fault::Delay(Way::Back, after_the_limit)));
    let _: u32 = server.ask(&["PUBLISH", CHANNEL, "1"]);
    until("a look", SOON, || server.calls("get") > looks).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    assert!(within("its end", SOON, waiting).await.0.expect("no panic"));
}

#[tokio::test]
async fn delete_lets_all_pass() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    other.latch("x").try_set_count(7).await.expect("answered");
    let waiting = waiters(&client, 3).await;
    assert!(other.latch("x").delete().await.expect("answered"));
    pass(waiting, ms(500)).await;
    clean(&server, &client).await;
}

/// A latch that was set again keeps those that come later.
#[tokio::test]
async fn keeps_those_that_come_after_it_was_set_again() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let latch = other.latch("x");
    for _ in 0..20 {
        assert!(latch.try_set_count(1).await.expect("answered"));
        let first = waiters(&client, 2).await;
        latch.count_down().await.expect("answered");
        pass(first, SOON).await;
        assert!(latch.try_set_count(1).await.expect("answered"));
        let second = waiters(&client, 2).await;
        assert!(second.iter().all(|one| !one.is_finished()));
        latch.count_down().await.expect("answered");
        pass(second, SOON).await;
    }
    assert_eq!(client.stats().total.passed, 80);
}

#[tokio::test]
async fn without_messages_it_looks_again_and_again() {
    let server = Server::start();
    let client = client(&server, |builder| builder.pubsub(PubSub::Off)).await;
    let latch = client.latch("x");
    latch.try_set_count(1).await.expect("answered");
    let waiting = spawn(&latch);
    until("it to look", SOON, || client.stats().total.refused >= 5).await;
    latch.count_down().await.expect("answered");
    pass([waiting], ms(700)).await;
    assert_eq!(server.calls("publish"), 0);
    clean(&server, &client).await;
}

#[tokio::test]
async fn what_is_not_a_latch_is_a_conflict() {
    let server = Server::start();
    let client = plain(&server).await;
    let latch = client.latch("x");
    // The first count that Lua does not have exactly, and the greatest and least of the server.
    let counts = ["9007199254740992", "-9007199254740993", "9223372036854775807", "-9223372036854775808"];
    let texts = ["many", "1.5", "007", "99999999999999999999"].into_iter().chain(counts);
    let puts: Vec<_> = texts.map(|text| vec!["SET", "x", text]).chain([vec!["HSET", "x", "field", "1"]]).collect();
    for put in &puts {
        let _: redis::Value = server.ask(put);
        let dump = || server.ask::<Vec<u8>>(&["DUMP", "x"]);
        let before = dump();
        let results = [
            latch.try_set_count(1).await.map(drop),
            latch.count_down().await.map(drop),
            latch.count().await.map(drop),
            latch.delete().await.map(drop),
            latch.wait().await,
            latch.wait_for(SOON).await.map(drop),
        ];
        assert!(results.iter().all(|one| matches!(one, Err(Error::Conflict { .. }))), "{put:?}: {results:?}");
        assert_eq!(dump(), before);
        let _: u32 = server.ask(&["DEL", "x"]);
    }
    assert_eq!(client.stats().total.failed, 2 * puts.len() as u64);
    for count in ["0", "-3"] {
        let _: String = server.ask(&["SET", "x", count]);
        latch.wait().await.expect("it is not above zero");
        assert_eq!(latch.count().await.expect("answered"), 0);
        assert!(!latch.try_set_count(2).await.expect("there is one"));
        assert_eq!((latch.count_down().await.expect("answered"), server.exists("x")), (0, false));
    }
    let _: String = server.ask(&["SET", "x", "9007199254740991"]); // a JVM counts that far
    assert_eq!(latch.count().await.expect("answered"), 9_007_199_254_740_991);
    assert_eq!(latch.count_down().await.expect("answered"), 9_007_199_254_740_990);
}

// ---- lost requests and replies ----

/// Loads a script, so that no call of it is answered with NOSCRIPT, and says which it is.
fn script(server: &Server, name: &str) -> Which {
    let receipt: &[_] = if name == "look" { &[] } else { &["primitives/receipt"] };
    let own = format!("primitives/latch/{name}");
    let files = [&["redis/frame"], receipt, &["primitives/latch/latch", &own]].concat();
    let read = |file| fs::read_to_string(format!("{}/src/{file}.lua", env!("CARGO_MANIFEST_DIR")));
    let source: String = files.into_iter().map(|file| read(file).expect("a script of ours")).collect();
    Which::Script(server.ask(&["SCRIPT", "LOAD", &source]))
}

/// The requests to one script are cut, once and three times, before they arrive and after they ran.
async fn everywhere(name: &str, test: impl AsyncFn(&Server, &Client, &dyn Fn())) {
    for (way, times) in [(Way::There, 1), (Way::There, 3), (Way::Back, 1), (Way::Back, 3)] {
        let server = Server::start();
        let cut = Rule::new(script(&server, name), Fault::Cut(way)).times(times);
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder).await;
        test(&server, &client, &|| proxy.rule(cut.clone())).await;
        until("the cuts", SOON, || proxy.is_spent()).await;
        clean(&server, &client).await;
    }
}

#[tokio::test]
async fn each_change_is_made_once_whatever_is_lost() {
    everywhere("count_down", async |server, client, cut| {
        let latch = client.latch("x");
        latch.try_set_count(3).await.expect("answered");
        for left in [2, 1, 0] {
            cut();
            assert_eq!(within("the answer", SOON, latch.count_down()).await.0.expect("answered"), left);
            assert_eq!(server.ask::<Option<u64>>(&["GET", "x"]).unwrap_or_default(), left);
        }
    })
    .await;
    everywhere("set", async |_, client, cut| {
        let latch = client.latch("x");
        cut();
        assert!(within("the answer", SOON, latch.try_set_count(1)).await.0.expect("answered"));
        assert_eq!(latch.count_down().await.expect("answered"), 0);
    })
    .await;
    everywhere("delete", async |_, client, cut| {
        let latch = client.latch("x");
        latch.try_set_count(1).await.expect("answered");
        cut();
        assert!(within("the answer", SOON, latch.delete()).await.0.expect("answered"));
    })
    .await;
}

#[tokio::test]
async fn waiters_pass_whatever_is_lost() {
    everywhere("look", async |server, client, cut| {
        let _: u32 = server.ask(&["INCR", "x"]);
        cut();
        let waiting = [spawn(&client.latch("x")), spawn(&client.latch("x"))];
        until("them to wait", SOON, || client.stats().total.refused >= 2).await;
        plain(server).await.latch("x").count_down().await.expect("answered");
        pass(waiting, LONGEST_NAP).await;
    })
    .await;
    everywhere("look", async |server, client, cut| {
        let _: u32 = server.ask(&["INCR", "x"]);
        let waiting = waiters(client, 2).await;
        cut(); // the look after the message
        plain(server).await.latch("x").count_down().await.expect("answered");
        pass(waiting, LONGEST_NAP).await;
    })
    .await;
}

/// The client that asked has given up: its request runs late, and the latch of today is another one.
#[tokio::test]
async fn a_request_that_runs_late_changes_no_later_latch() {
    let server = Server::start();
    let (proxy, other) = (before(&server), plain(&server).await);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(300))).await;
    let (latch, theirs) = (client.latch("x"), other.latch("x"));
    for name in ["set", "count_down", "delete"] {
        theirs.try_set_count(1).await.expect("answered");
        proxy.rule(Rule::new(script(&server, name), Fault::Delay(Way::Back, ms(1_000))));
        let ran = server.calls("set");
        let calling = tokio::spawn({
            let (latch, name) = (latch.clone(), name.to_owned());
            async move {
                match &*name {
                    "set" => latch.try_set_count(5).await.map(u64::from),
                    "count_down" => latch.count_down().await,
                    _ => latch.delete().await.map(u64::from),
                }
            }
        });
        until("its first run", SOON, || server.calls("set") > ran).await;
        theirs.delete().await.expect("answered");
        theirs.try_set_count(2).await.expect("answered");
        let said = within("its reply", SOON, calling).await.0.expect("no panic").expect("answered");
        assert_eq!((name, said), (name, u64::from(name == "delete")));
        assert_eq!(theirs.count().await.expect("answered"), 2, "{name}: the second run finds the receipt");
        theirs.delete().await.expect("answered");
    }
}

// ---- outages ----

#[tokio::test]
async fn waiters_ride_an_outage_out_and_miss_nothing() {
    let server = Server::start();
    let (proxy, other) = (before(&server), plain(&server).await);
    let client = behind(&proxy, |builder| builder).await;
    other.latch("x").try_set_count(1).await.expect("answered");
    let waiting = waiters(&client, 5).await;
    proxy.refuse();
    proxy.cut_all();
    other.latch("x").count_down().await.expect("answered"); // they cannot hear of it
    tokio::time::sleep(ms(300)).await;
    assert!(waiting.iter().all(|one| !one.is_finished()));
    proxy.accept();
    pass(waiting, SOON).await;
    clean(&server, &client).await;
}

#[tokio::test]
async fn waiters_give_up_after_the_outage_timeout() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.outage_timeout(ms(1_000)).command_timeout(ms(300))).await;
    client.latch("x").try_set_count(1).await.expect("answered");
    let waiting = waiters(&client, 3).await;
    proxy.set(Mode::Swallow);
    for one in waiting {
        let ended = within("giving up", LONGEST_NAP + ms(3_000), one).await.0.expect("no panic");
        let Err(Error::Unavailable { tried, .. }) = &ended else { panic!("{ended:?}") };
        assert!(tried.contains("waiting for the latch \"x\""), "{tried}");
    }
    let counted = client.latch("x").count_down().await;
    assert!(matches!(counted, Err(Error::Unavailable { .. })), "{counted:?}");
    let limited = within("its limit", SOON, client.latch("x").wait_for(ms(100))).await.0;
    assert!(matches!(limited, Err(Error::Unavailable { .. })), "{limited:?}");
}

/// What the server has lost is open.
#[tokio::test]
async fn a_server_that_forgets_lets_all_pass() {
    let mut server = Server::start();
    let client = plain(&server).await;
    client.latch("x").try_set_count(1).await.expect("answered");
    let waiting = waiters(&client, 2).await;
    server.restart();
    pass(waiting, ms(10_000)).await;
}

// ---- waiters that leave ----

#[tokio::test]
async fn a_wait_can_be_dropped_at_every_await() {
    let server = Server::start();
    let client = plain(&server).await;
    let latch = client.latch("x");
    for times in 0.. {
        let done = poll_and_drop(times, latch.wait()).await;
        clean(&server, &client).await;
        if done && times > 1 {
            break;
        }
    }
    for times in 0..12 {
        latch.try_set_count(1).await.expect("answered");
        assert!(!poll_and_drop(times, latch.wait()).await);
        assert!(!poll_and_drop(times, latch.wait_for(SOON)).await);
        latch.delete().await.expect("answered");
        clean(&server, &client).await;
    }
}

/// A change that was dropped was made once or not at all.
#[tokio::test]
async fn a_change_can_be_dropped_at_every_await() {
    let server = Server::start();
    let client = plain(&server).await;
    let latch = client.latch("x");
    for times in 0..6 {
        latch.try_set_count(5).await.expect("answered");
        poll_and_drop(times, latch.count_down()).await;
        tokio::time::sleep(ms(20)).await;
        let count = latch.count().await.expect("answered");
        assert!(count == 4 || count == 5 && times < 3, "{count} after {times} polls");
        latch.delete().await.expect("answered");
    }
}

/// Also on a plain thread, without a runtime.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_can_be_dropped_anywhere() {
    let server = Server::start();
    let client = plain(&server).await;
    let latch = client.latch("x");
    latch.try_set_count(1).await.expect("answered");
    let mut waiting = Box::pin({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    assert!(poll_once(waiting.as_mut()).is_pending());
    std::thread::spawn(move || drop(waiting)).join().expect("no panic");
    latch.delete().await.expect("answered");
    clean(&server, &client).await;
}

/// Its request goes on in a task of the client, and the others pass.
#[tokio::test]
async fn a_waiter_that_is_not_polled_stops_nobody() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    other.latch("x").try_set_count(1).await.expect("answered");
    let latch = client.latch("x");
    let mut kept = pin!(latch.wait());
    assert!(poll_once(kept.as_mut()).is_pending());
    let behind = spawn(&latch);
    until("both to wait", SOON, || client.stats().now.waiting == 2 && client.stats().total.refused >= 2).await;
    other.latch("x").count_down().await.expect("answered");
    pass([behind], ms(1_000)).await;
    other.latch("x").try_set_count(1).await.expect("answered");
    within("the one that was away", ms(500), kept).await.0.expect("it had passed");
}

#[tokio::test]
async fn closing_ends_those_that_wait() {
    let server = Server::start();
    for shuts_down in [false, true] {
        let client = plain(&server).await;
        let latch = client.latch("x");
        latch.try_set_count(3).await.expect("answered");
        let waiting = waiters(&client, 2).await;
        let closed = if shuts_down { client.shutdown(SOON).await } else { client.close().await };
        closed.expect("answered");
        for one in waiting {
            let ended = within("its end", ms(1_000), one).await.0.expect("no panic");
            assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        }
        let results = [latch.wait().await, latch.count_down().await.map(drop), latch.count().await.map(drop)];
        assert!(results.iter().all(|one| matches!(one, Err(Error::Closed))), "{results:?}");
    }
}

/// A request that only looks leaves nothing on the server, so a client that closes does not wait for its reply.
#[tokio::test]
async fn closing_waits_for_no_look() {
    let server = Server::start();
    for leaves in [false, true] {
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder).await;
        client.latch("x").try_set_count(1).await.expect("answered");
        proxy.set(Mode::Stall);
        let waiting = spawn(&client.latch("x"));
        until("it to wait", SOON, || client.stats().now.waiting == 1).await;
        if leaves {
            waiting.abort();
            until("it to leave", SOON, || client.stats().now.waiting == 0).await;
        }
        within("the end", ms(1_000), client.close()).await.0.expect("nothing was held");
        proxy.set(Mode::Pass);
    }
}

/// A process that shuts down may still count down, as it may release locks.
#[tokio::test]
async fn a_client_that_shuts_down_can_count_down() {
    let server = Server::start();
    let client = plain(&server).await;
    let (latch, other) = (client.latch("x"), plain(&server).await.latch("x"));
    other.try_set_count(1).await.expect("answered");
    let guard = client.mutex("work").lock().await.expect("free");
    let closing = tokio::spawn(client.clone().shutdown(SOON));
    until("it to stop", SOON, || client.is_closed()).await;
    assert!(matches!(latch.wait().await, Err(Error::Closed)));
    assert_eq!(latch.count_down().await.expect("answered"), 0);
    guard.unlock().await.expect("held");
    closing.await.expect("no panic").expect("answered");
}

#[test]
fn the_end_of_the_runtime_ends_the_wait() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let first = runtime().expect("a runtime");
    let client = first.block_on(client(&server, |builder: Builder| builder.own_thread(false)));
    runtime().expect("a runtime").block_on(async {
        client.latch("x").try_set_count(1).await.expect("answered");
        let waiting = waiters(&client, 2).await;
        first.shutdown_background();
        for one in waiting {
            let ended = within("its end", SOON, one).await.0.expect("no panic");
            let Err(error @ Error::Unavailable { .. }) = &ended else { panic!("{ended:?}") };
            assert!(error.to_string().contains("runtime"), "{error}");
        }
        let ended = within("its end", SOON, client.latch("x").wait()).await.0;
        assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
    });
}

// ---- permissions ----

/// What a user may not do is named, and nothing is half done.
#[tokio::test]
async fn a_missing_permission_is_named_and_nothing_is_half_done() {
    const ALL: &str = "+@all";
    let server = Server::start();
    let cases: [(&[&str], &str, &[&str]); 7] = [
        (&["~*", "&*", ALL, "-decr"], "+decr", &["count_down"]),
        (&["~*", "&*", ALL, "-get"], "+get", &["set", "count_down", "last", "delete", "count", "wait"]),
        (&["~*", "&*", ALL, "-set"], "+set", &["set", "count_down", "last", "delete"]),
        (&["~*", "&*", ALL, "-del"], "+del", &["last", "delete"]),
        (&["~*", "&*", ALL, "-publish"], "+publish", &["set", "last", "delete"]),
        (&["~*", "resetchannels", ALL], "&redisson_countdownlatch__channel__", &["set", "last", "delete"]),
        (&["resetkeys", "~x", "&*", ALL], "~leasehold_receipt:", &["set", "count_down", "last", "delete"]),
    ];
    for (rights, named, denied) in cases.into_iter().filter(|(_, named, _)| has_rights_like(named)) {
        let client = with_rights(&server, rights).await;
        let latch = client.latch("x");
        for what in ["set", "count_down", "last", "delete", "count", "wait"] {
            let _: u32 = server.ask(&["DEL", "x"]);
            match what {
                "set" => {}
                "last" => _ = server.ask::<String>(&["SET", "x", "1"]),
                _ => _ = server.ask::<String>(&["SET", "x", "2"]),
            }
            let before: Option<u32> = server.ask(&["GET", "x"]);
            let result = match what {
                "set" => latch.try_set_count(2).await.map(drop),
                "delete" => latch.delete().await.map(drop),
                "count" => latch.count().await.map(drop),
                "wait" => latch.wait_for(ms(700)).await.map(drop),
                _ => latch.count_down().await.map(drop),
            };
            match result {
                Ok(()) => assert!(!denied.contains(&what), "{named}: {what}"),
                Err(Error::Denied { reason, .. }) => {
                    assert!(denied.contains(&what) && reason.contains(named), "{named}: {what}: {reason}");
                    assert_eq!(server.ask::<Option<u32>>(&["GET", "x"]), before, "{named}: {what}");
                }
                Err(other) => panic!("{named}: {what}: {other:?}"),
            }
        }
    }
}

/// The reply to a change that was refused half-way is lost. The second run makes the change or is refused, too: it must not take the receipt
/// of the first for that of a change that was made.
#[tokio::test]
async fn a_refused_change_whose_reply_is_lost_was_not_made() {
    let server = Server::start();
    let cases: [(&[&str], &[&str]); 4] = [
        (&["-publish"], &["set", "last", "delete"]),
        (&["-decr", "-del"], &["count_down", "last", "delete"]),
        (&["-publish", "-del"], &["set", "last", "delete"]),
        (
            &["-@all", "+@connection", "+evalsha", "+client", "+script", "+get", "+set"],
            &["count_down", "last", "delete"],
        ),
    ];
    for (rights, refused) in cases {
        let proxy = before(&server);
        server.set_user("u", &[&["on", ">p", "~x*", "~leasehold_receipt:*", "&*", "+@all"], rights].concat());
        let client = behind(&proxy, |builder| builder.url(proxy.url().replace("redis://", "redis://u:p@"))).await;
        let latch = client.latch("x");
        for what in refused {
            let _: u32 = server.ask(&["DEL", "x"]);
            match *what {
                "set" => {}
                "last" => _ = server.ask::<String>(&["SET", "x", "1"]),
                _ => _ = server.ask::<String>(&["SET", "x", "2"]),
            }
            let before: Option<u32> = server.ask(&["GET", "x"]);
            let file = if *what == "last" { "count_down" } else { what };
            proxy.rule(Rule::new(script(&server, file), Fault::Cut(Way::Back)));
            let result = match *what {
                "set" => latch.try_set_count(2).await.map(drop),
                "delete" => latch.delete().await.map(drop),
                _ => latch.count_down().await.map(drop),
            };
            assert!(proxy.is_spent(), "{rights:?}: {what}");
            assert!(matches!(result, Err(Error::Denied { .. })), "{rights:?}: {what}: {result:?}");
            assert_eq!(server.ask::<Option<u32>>(&["GET", "x"]), before, "{rights:?}: {what}");
        }
    }
}

/// Once the user has the permission, the second run makes the change.
#[tokio::test]
async fn a_change_is_made_by_its_second_run_if_the_first_was_refused() {
    let server = Server::start();
    let proxy = before(&server);
    server.set_user("u", &["on", ">p", "~x", "~leasehold_receipt:*", "&*", "+@all", "-decr"]);
    let url = proxy.url().replace("redis://", "redis://u:p@");
    let client = behind(&proxy, |builder| builder.url(url).command_timeout(ms(300))).await;
    let _: String = server.ask(&["SET", "x", "3"]);
    proxy.rule(Rule::new(script(&server, "count_down"), Fault::Delay(Way::Back, ms(1_000))));
    let ran = server.calls("set");
    let counting = tokio::spawn({
        let latch = client.latch("x");
        async move { latch.count_down().await }
    });
    until("its first run", SOON, || server.calls("set") > ran).await;
    server.set_user("u", &["+decr"]);
    assert_eq!(within("its reply", SOON, counting).await.0.expect("no panic").expect("permitted now"), 2);
    assert_eq!(server.ask::<u32>(&["GET", "x"]), 2);
    clean_but(&server, "x");
}

// ---- deployments ----

#[tokio::test]
async fn a_cluster_refuses_names_whose_channel_is_elsewhere() {
    let cluster = Cluster::start().await;
    let client = Client::builder().url(cluster.url()).announce(false).connect().await.expect("it answers");
    let prefixed =
        Client::builder().announce(false).url(cluster.url()).prefix("{app}:").connect().await.expect("it answers");
    for latch in [client.latch("{t}x"), client.latch("x}y{z}"), prefixed.latch("x")] {
        for refused in [latch.wait().await, latch.count().await.map(drop), latch.count_down().await.map(drop)] {
            assert!(matches!(refused, Err(Error::InvalidName { .. })), "{refused:?}");
        }
    }
    drop(client.mutex("{t}x").lock().await.expect("locks have no such rule"));
}

/// Neither the count nor a count-down is lost when the slot moves, nor counted twice.
#[tokio::test]
async fn a_latch_whose_slot_moves_counts_on() {
    let cluster = Cluster::start().await;
    let (client, other) = (
        Client::builder().url(cluster.url()).announce(false).connect().await.expect("it answers"),
        Client::builder().url(cluster.url()).announce(false).connect().await.expect("it answers"),
    );
    let (latch, slot) = (other.latch("x"), cluster.slot_of("x"));
    let to = (cluster.owner_of(slot) + 1) % 3;
    latch.try_set_count(2).await.expect("answered");
    let waiting = waiters(&client, 3).await;
    let migration = cluster.begin_migration(slot, to);
    let counting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.count_down().await }
    });
    tokio::time::sleep(ms(200)).await;
    cluster.move_keys(&migration);
    cluster.end_migration(migration);
    let left = within("the count-down", ms(15_000), counting).await.0.expect("no panic").expect("answered");
    assert_eq!((left, latch.count().await.expect("answered")), (1, 1));
    assert!(waiting.iter().all(|one| !one.is_finished()));
    assert_eq!(latch.count_down().await.expect("answered"), 0);
    pass(waiting, LONGEST_NAP).await;
}

#[tokio::test]
async fn a_latch_outlives_its_master() {
    let mut sentinels = Sentinels::start().await;
    let (client, other) = (
        Client::builder().url(sentinels.url()).announce(false).connect().await.expect("it answers"),
        Client::builder().url(sentinels.url()).announce(false).connect().await.expect("it answers"),
    );
    other.latch("x").try_set_count(2).await.expect("answered");
    let waiting = waiters(&client, 3).await;
    let master = sentinels.master_at();
    until("the replicas to have it", SOON, || sentinels.servers().iter().all(|server| server.exists("x"))).await;
    sentinels.server_mut(master).crash();
    sentinels.heir_of(master).await;
    for left in [1, 0] {
        assert_eq!(within("a count-down", ms(25_000), other.latch("x").count_down()).await.0.expect("answered"), left);
    }
    pass(waiting, ms(10_000)).await;
}

/// The first request of a client, before it knows which channels the cluster has.
#[tokio::test]
async fn the_first_count_down_of_a_lazy_client_wakes_those_that_wait() {
    let cluster = Cluster::of_masters().await;
    let one = Client::builder().url(cluster.url()).announce(false).connect().await.expect("it answers");
    one.latch("x").try_set_count(1).await.expect("answered");
    let waiting = waiters(&one, 1).await;
    let other = Client::builder().announce(false).url(cluster.url()).connect_lazy().expect("good settings");
    other.latch("x").count_down().await.expect("answered");
    pass(waiting, ms(2_000)).await; // without a message up to five seconds later
}
