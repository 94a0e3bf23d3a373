//! The value of each metric, most of them under tokio's paused clock on the server in memory.

use std::time::Duration;

use leasehold::{Builder, Client, Lost, MemoryServer};
use tokio::{
    runtime,
    time::{sleep, timeout},
};

use crate::{
    recorder::Seen,
    support::{
        Server, before, behind, ms, plain,
        proxy::{Fault, Rule, wrong_nonce},
        script, until,
    },
};

const SECOND: Duration = Duration::from_secs(1);

/// A server, a client with a recorder, and another client.
struct Scene {
    server: MemoryServer,
    client: Client,
    seen: Seen,
    other: Client,
}

impl Scene {
    async fn set() -> Scene {
        Scene::with(|builder| builder).await
    }

    async fn with(settings: impl FnOnce(Builder) -> Builder) -> Scene {
        let (server, seen) = (MemoryServer::new(), Seen::default());
        let other = Client::in_memory(&server).expect("valid settings");
        // A client asks the recorder for the metrics of a kind at its first use: this one finds none.
        other.mutex("first").lock().await.expect("free").unlock().await.expect("held");
        let recorder = seen.here();
        let client = settings(Client::builder()).connect_in_memory(&server).expect("valid settings");
        drop(recorder);
        Scene { server, client, seen, other }
    }

    fn counter(&self, name: &str, labels: &str) -> u64 {
        self.seen.counter(&format!("leasehold_{name}_total"), labels)
    }

    fn gauge(&self, name: &str, labels: &str) -> f64 {
        self.seen.gauge(&format!("leasehold_{name}"), labels)
    }
}

/// The first use of the kind, on this thread: the recorder is that of one thread, and the thread of the client notes replies. It sends nothing.
pub(crate) async fn first_use(client: &Client) {
    client.mutex("x").lease(Duration::ZERO).lock().await.expect_err("no lease is that short");
}

/// Each number of [`leasehold::Stats`] beside the metric of that name, without labels.
fn assert_same(client: &Client, seen: &Seen) {
    let stats = client.stats();
    let counters = [
        ("acquired", stats.total.acquired),
        ("reentered", stats.total.reentered),
        ("passed", stats.total.passed),
        ("released", stats.total.released),
        ("lost", stats.total.lost),
        ("failed", stats.total.failed),
        ("renewals", stats.total.renewals),
        ("refused", stats.total.refused),
        ("wakeups", stats.total.wakeups),
        ("deadlocks", stats.total.deadlocks),
        ("calls", stats.total.calls),
        ("requests", stats.total.requests),
        ("timeouts", stats.total.timeouts),
        ("reconnects", stats.total.reconnects),
        ("misplaced", stats.total.misplaced),
    ];
    for (name, wanted) in counters {
        assert_eq!(seen.counter(&format!("leasehold_{name}_total"), ""), wanted, "{name}");
    }
    let gauges = [
        ("holds", stats.now.holds),
        ("waiting", stats.now.waiting),
        ("subscriptions", stats.now.subscriptions),
        ("releasing", stats.now.releasing),
    ];
    for (name, wanted) in gauges {
        assert_eq!(seen.gauge(&format!("leasehold_{name}"), ""), wanted as f64, "{name}");
    }
    for (name, wanted) in [("wait", stats.wait.count), ("hold", stats.hold.count)] {
        assert_eq!(seen.times(&format!("leasehold_{name}_seconds"), "").len() as u64, wanted, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_from_the_first_try_to_its_release() {
    let scene = Scene::set().await;
    let _recorder = scene.seen.here();
    let guard = scene.client.mutex("x").lock().await.expect("free");
    assert_eq!(scene.counter("acquired", "kind=lock,way=first_try"), 1);
    assert_eq!(scene.gauge("holds", "kind=lock"), 1.0);
    assert_eq!(scene.seen.times("leasehold_wait_seconds", "kind=lock"), [0.0]);
    sleep(25 * SECOND).await;
    assert_eq!(scene.counter("renewals", "kind=lock"), 2, "every nine seconds");
    guard.unlock().await.expect("held");
    assert_eq!((scene.counter("released", "kind=lock"), scene.gauge("holds", "kind=lock")), (1, 0.0));
    assert_eq!(scene.seen.times("leasehold_hold_seconds", "kind=lock"), [25.0]);
    assert_eq!((scene.counter("calls", ""), scene.counter("requests", "")), (4, 4), "two of them renewals");
    assert_same(&scene.client, &scene.seen);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_a_message_wakes() {
    let scene = Scene::set().await;
    let _recorder = scene.seen.here();
    let guard = scene.other.mutex("x").lock().await.expect("free");
    let waiting = tokio::spawn(scene.client.mutex("x").into_future());
    sleep(4 * SECOND).await; // the waiter's own next attempt is later
    assert_eq!((scene.gauge("waiting", "kind=lock"), scene.gauge("subscriptions", "")), (1.0, 1.0));
    guard.unlock().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("free");
    assert_eq!((scene.counter("acquired", "kind=lock,way=woken"), scene.counter("wakeups", "")), (1, 1));
    assert!(scene.counter("refused", "kind=lock") >= 1);
    assert_eq!(scene.gauge("waiting", "kind=lock"), 0.0);
    assert!(matches!(scene.seen.times("leasehold_wait_seconds", "kind=lock")[..], [waited] if waited >= 4.0));
    guard.unlock().await.expect("held");
    assert_same(&scene.client, &scene.seen);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_passes_in_memory_and_one_that_a_timer_gets() {
    let scene = Scene::set().await;
    let _recorder = scene.seen.here();
    let guard = scene.client.mutex("x").lock().await.expect("free");
    let waiting = tokio::spawn(scene.client.mutex("x").into_future());
    sleep(SECOND).await;
    guard.unlock().await.expect("held");
    waiting.await.expect("no panic").expect("passed on").unlock().await.expect("held");
    assert_eq!(scene.counter("acquired", "kind=lock,way=handed_over"), 1);

    // A holder that is dead: one that lives would release it.
    let dead = "285475da-9152-4c83-822a-67ee2f116a79:52";
    scene.server.command(&["HSET", "y", dead, "1"]).expect("the key is free");
    scene.server.command(&["PEXPIRE", "y", "10000"]).expect("it is a key");
    let guard = scene.client.mutex("y").lock().await.expect("its lease expires");
    assert_eq!(scene.counter("acquired", "kind=lock,way=by_timer"), 1);
    guard.unlock().await.expect("held");
    assert_same(&scene.client, &scene.seen);
}

#[tokio::test(start_paused = true)]
async fn kinds_of_locks_are_apart() {
    let scene = Scene::set().await;
    let _recorder = scene.seen.here();
    let client = &scene.client;
    let lock = client.lock("lock").lock().await.expect("free");
    let again = client.lock("lock").lock().await.expect("its own");
    assert_eq!((scene.counter("reentered", "kind=lock"), scene.counter("acquired", "kind=lock")), (1, 1));
    let fair = client.fair_lock("fair").lock().await.expect("free");
    let fenced = client.fenced_lock("fenced").lock().await.expect("free");
    let read = client.rw_lock("read").read().await.expect("free");
    let write = client.rw_lock("write").write().await.expect("free");
    for kind in ["lock", "fair", "fenced", "read", "write"] {
        let labels = format!("kind={kind}");
        assert_eq!((scene.counter("acquired", &labels), scene.gauge("holds", &labels)), (1, 1.0), "{kind}");
    }
    assert_same(client, &scene.seen);
    drop((lock, again, fair, fenced, read, write));
    sleep(SECOND).await;
    for kind in ["lock", "fair", "fenced", "read", "write"] {
        let labels = format!("kind={kind}");
        assert_eq!((scene.counter("released", &labels), scene.gauge("holds", &labels)), (1, 0.0), "{kind}");
    }
    assert_same(client, &scene.seen);
}

/// A wait for a latch counts by itself: it acquires nothing.
#[tokio::test(start_paused = true)]
async fn waits_for_a_latch() {
    let scene = Scene::set().await;
    let _recorder = scene.seen.here();
    let latch = scene.client.latch("x");
    latch.try_set_count(1).await.expect("answered");
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    assert!(!latch.wait_for(SECOND).await.expect("answered"));
    assert_eq!(scene.gauge("waiting", "kind=latch"), 1.0);
    sleep(SECOND).await;
    scene.other.latch("x").count_down().await.expect("answered");
    waiting.await.expect("no panic").expect("passed");
    assert_eq!((scene.counter("passed", "kind=latch"), scene.counter("acquired", "")), (1, 0));
    assert_eq!((scene.gauge("waiting", "kind=latch"), scene.gauge("holds", "")), (0.0, 0.0));
    assert_eq!(scene.seen.times("leasehold_wait_seconds", "kind=latch"), [2.0]);
    let stats = scene.client.stats();
    assert_eq!((stats.total.passed, stats.total.acquired, stats.wait.count), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn permits_of_a_semaphore() {
    let scene = Scene::set().await;
    let _recorder = scene.seen.here();
    let semaphore = scene.client.semaphore("x");
    assert!(semaphore.try_set_permits(3).await.expect("answered"));
    let held = semaphore.acquire(2).await.expect("free");
    assert_eq!(scene.gauge("holds", "kind=semaphore"), 1.0);
    assert!(semaphore.try_acquire(2).await.expect("answered").is_none());
    held.release().await.expect("held");
    let count = |name| scene.counter(name, "kind=semaphore");
    assert_eq!((count("acquired"), count("refused"), count("released")), (1, 1, 1));
    assert_same(&scene.client, &scene.seen);
}

/// Nothing is held, and a wait for permits counts as one for a latch.
#[tokio::test(start_paused = true)]
async fn permits_of_a_plain_semaphore() {
    let scene = Scene::set().await;
    let _recorder = scene.seen.here();
    let semaphore = scene.client.plain_semaphore("x");
    assert!(semaphore.try_set_permits(3).await.expect("answered"));
    semaphore.acquire(2).await.expect("free");
    assert!(!semaphore.try_acquire(2).await.expect("answered"));
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(2).await }
    });
    tokio::time::sleep(SECOND).await;
    let gauges = || ["waiting", "holds"].map(|name| scene.gauge(name, "kind=plain_semaphore"));
    assert_eq!(gauges(), [1.0, 0.0]);
    semaphore.release(2).await.expect("answered");
    waiting.await.expect("no panic").expect("acquired");
    assert_eq!(gauges(), [0.0, 0.0]);
    let count = |name| scene.counter(name, "kind=plain_semaphore");
    assert_eq!((count("passed"), count("acquired"), count("released"), count("lost")), (2, 0, 0, 0));
    assert_eq!(scene.seen.times("leasehold_wait_seconds", "kind=plain_semaphore"), [0.0, 1.0]);
    assert!(scene.client.stats().wait.count == 0 && scene.client.held().is_empty());
}

#[tokio::test(start_paused = true)]
async fn losses_by_their_reasons() {
    let scene = Scene::set().await;
    let _recorder = scene.seen.here();
    let client = scene.client.clone();
    let removed = client.mutex("removed").lock().await.expect("free");
    let expired = client.mutex("expired").lease(SECOND).lock().await.expect("free");
    let too_long = client.mutex("too long").max_hold(SECOND).lock().await.expect("free");
    let closed = client.mutex("closed").lock().await.expect("free");
    scene.server.forget("removed");
    assert_eq!(removed.lost().await, Lost::Removed);
    assert_eq!((expired.lost().await, too_long.lost().await), (Lost::Expired, Lost::MaxHold));
    let found_gone = client.mutex("found gone").lock().await.expect("free");
    scene.server.forget("found gone");
    found_gone.unlock().await.expect_err("it is gone");
    client.clone().close().await.expect("the server replies");
    assert_eq!(closed.lost().await, Lost::Closed);
    for (reason, wanted) in [("removed", 2), ("expired", 1), ("max_hold", 1), ("closed", 1)] {
        assert_eq!(scene.counter("lost", &format!("kind=lock,reason={reason}")), wanted, "{reason}");
    }
    assert_same(&client, &scene.seen);
}

#[tokio::test(start_paused = true)]
async fn failures_by_their_reasons() {
    let scene = Scene::set().await;
    let _recorder = scene.seen.here();
    let lock = scene.client.mutex("x");
    scene.server.deny();
    lock.lock().await.expect_err("denied");
    scene.server.freeze();
    lock.lock().await.expect_err("no reply");
    assert!(scene.counter("timeouts", "") >= 1);
    scene.server.restart();
    let _taken = scene.other.mutex("x").lock().await.expect("free");
    assert!(lock.try_lock().await.expect("it replies").is_none(), "no failure");
    scene.client.clone().close().await.expect("nothing is held");
    lock.lock().await.expect_err("closed");
    scene.client.mutex("x").lease(Duration::ZERO).lock().await.expect_err("no valid lease");
    for reason in ["denied", "unavailable", "closed", "invalid"] {
        assert_eq!(scene.counter("failed", &format!("kind=lock,reason={reason}")), 1, "{reason}");
    }
    assert_same(&scene.client, &scene.seen);
}

#[test]
fn a_client_that_ends_leaves_nothing_in_the_gauges() {
    let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let seen = runtime.block_on(async {
        let scene = Scene::set().await;
        let _recorder = scene.seen.here();
        let guard = scene.client.mutex("x").lock().await.expect("free");
        let _taken = scene.other.mutex("y").lock().await.expect("free");
        let waiting = scene.client.mutex("y");
        timeout(SECOND, waiting.lock()).await.expect_err("it is held");
        let _waits = tokio::spawn(waiting.into_future());
        sleep(SECOND).await;
        scene.server.freeze();
        drop(guard);
        sleep(ms(10)).await;
        assert_eq!((scene.gauge("releasing", ""), scene.gauge("subscriptions", "")), (1.0, 1.0));
        assert_eq!((scene.gauge("waiting", ""), scene.gauge("holds", "")), (1.0, 0.0));
        scene.seen.clone()
    });
    drop(runtime);
    for gauge in ["releasing", "subscriptions", "waiting", "holds"] {
        assert_eq!(seen.gauge(&format!("leasehold_{gauge}"), ""), 0.0, "{gauge}");
    }
}

/// The server in memory forgets a channel with its last waiter. A connection keeps it for half a second, and so the client may end sooner.
#[tokio::test]
async fn a_client_that_ends_leaves_no_channel_in_the_gauge() {
    let (server, seen) = (Server::start(), Seen::default());
    let holder = plain(&server).await;
    let _held = holder.mutex("x").lock().await.expect("free");
    let recorder = seen.here();
    let client = plain(&server).await;
    drop(recorder);
    let waiting = tokio::spawn(client.mutex("x").into_future());
    let channels = || seen.gauge("leasehold_subscriptions", "");
    until("the subscription", ms(5_000), || channels() == 1.0).await;
    waiting.abort();
    drop(client);
    until("the end of the client", ms(5_000), || channels() == 0.0).await;
}

#[tokio::test(start_paused = true)]
async fn names_are_labels_only_if_asked_for() {
    let scene = Scene::set().await;
    let recorder = scene.seen.here();
    scene.client.mutex("x").lock().await.expect("free").unlock().await.expect("held");
    drop(recorder);
    assert!(scene.seen.registered().values().flatten().all(|label| label != "name"));

    let named = Scene::with(|builder| builder.prefix("billing:").metrics_with_names(true)).await;
    let _recorder = named.seen.here();
    let guard = named.client.mutex("x").lock().await.expect("free");
    assert!(
        named.seen.has_counter("leasehold_lost_total", "kind=lock,reason=removed,name=x"),
        "at zero before the first loss"
    );
    named.client.mutex("y").lock().await.expect("free").unlock().await.expect("held");
    named.server.forget("billing:x");
    guard.lost().await;
    assert_eq!(named.counter("acquired", "kind=lock,way=first_try,name=x"), 1);
    assert_eq!(named.counter("lost", "kind=lock,reason=removed,name=x"), 1);
    assert_eq!((named.counter("released", "name=y"), named.counter("released", "name=x")), (1, 0));
    assert_eq!(named.seen.times("leasehold_hold_seconds", "kind=lock,name=y").len(), 1);
    assert_eq!(named.seen.times("leasehold_wait_seconds", "kind=lock,name=x").len(), 1);
    assert_eq!((named.gauge("holds", "kind=lock"), named.gauge("holds", "name=x")), (1.0, 0.0), "gauges have no names");
    drop(guard);
    named.client.mutex(&"z".repeat(200_000)).lock().await.expect_err("it is too long");
    assert_eq!(named.counter("failed", &format!("name={}", "z".repeat(64))), 1, "a part of it");
    assert_same(&named.client, &named.seen);
}

/// Only a real server has connections and times.
#[tokio::test]
async fn connections_and_round_trips() {
    let server = Server::start();
    for name in ["acquire", "release"] {
        script(&server, name);
    }
    let (proxy, seen) = (before(&server), Seen::default());
    let _recorder = seen.here();
    let client = behind(&proxy, |builder| builder).await;
    assert!(seen.times("leasehold_round_trip_seconds", "").is_empty(), "connecting is no request");
    first_use(&client).await;
    client.mutex("x").lock().await.expect("free").unlock().await.expect("held");
    let times = seen.times("leasehold_round_trip_seconds", "");
    assert!(times.len() == 2 && times.iter().all(|time| *time > 0.0 && *time < 10.0), "{times:?}");
    proxy.rule(Rule::new(script(&server, "acquire"), Fault::Rewrite(wrong_nonce)));
    client.mutex("x").lock().await.expect("asked again").unlock().await.expect("held");
    until("the new connection", ms(5_000), || client.stats().total.reconnects == 1).await;
    assert_eq!((seen.counter("leasehold_misplaced_total", ""), seen.counter("leasehold_reconnects_total", "")), (1, 1));
    assert_same(&client, &seen);
    let (unrecorded, before) = (plain(&server).await, seen.counter("leasehold_calls_total", ""));
    assert!(before > 0 && unrecorded.stats().total.calls == 0);
}
