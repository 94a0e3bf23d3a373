//! When a connection is replaced and when not, and how often.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::Lock;
use tokio::{task::JoinSet, time::sleep};

use crate::support::{
    Server, Stopwatch, before, behind, client, ms, poll_once,
    proxy::{Fault, Rule, Way, Which},
    script, until,
};

/// Sends a request whose answer nobody takes. One that was answered before we could look is no such request.
fn unheard(lock: &Lock) {
    drop(under_way(lock));
}

/// The same, kept.
fn under_way(lock: &Lock) -> impl Future + use<'_> {
    loop {
        let mut inspect = Box::pin(lock.inspect());
        if poll_once(inspect.as_mut()).is_pending() {
            return inspect;
        }
    }
}

/// Nobody is there to take the answer; that is no sign that there was none.
#[tokio::test]
async fn a_call_that_is_dropped_does_not_cost_its_connection() {
    let server = Server::start();
    let client = client(&server, |builder| builder.command_timeout(ms(1_000))).await;
    let lock = client.lock("x");
    for _ in 0..3 {
        let _under_way = under_way(&lock);
        sleep(ms(2_200)).await; // twice the time after which a silent connection is replaced
    }
    assert_eq!((client.stats().total.reconnects, client.stats().total.timeouts), (0, 0));
}

/// An answer to an earlier request says nothing of a later one.
#[tokio::test]
async fn a_renewal_that_is_swallowed_behind_an_answer_does_not_cost_the_lock() {
    let server = Server::start();
    let (renew, inspect) = (script(&server, "renew"), script(&server, "inspect"));
    script(&server, "acquire");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(2_400)).command_timeout(ms(800))).await;
    let guard = client.lock("x").lock().await.expect("free");
    proxy.rule(Rule::new(inspect, Fault::Delay(Way::Back, ms(300))));
    proxy.rule(Rule::new(renew, Fault::Swallow(Way::There)));
    sleep(ms(560)).await; // the renewal is due at 0.3 of the lease
    let other = client.lock("other");
    tokio::spawn(async move { other.inspect().await });
    until("the renewal to be swallowed", ms(3_000), || proxy.tally().swallowed == 1).await;
    until("a renewal", ms(3_000), || client.stats().total.renewals > 0).await;
    assert!(!guard.is_lost());
    guard.unlock().await.expect("ours to the end");
}

/// One that dies young again and again is opened with growing pauses.
#[tokio::test]
async fn a_server_that_cuts_every_request_is_not_stormed() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.outage_timeout(ms(4_000))).await;
    proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Cut(Way::There)).times(u64::MAX));
    let calls = (0..100).map(|n| {
        let lock = client.lock(&format!("lock-{n}"));
        tokio::spawn(async move { lock.lock().await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic").expect_err("no request arrives");
    }
    let opened = proxy.tally().connections;
    assert!((3..60).contains(&opened), "{opened} connections in {:?}", Duration::from_secs(4));
}

/// A request behind the connection's own PING is swallowed: the connection is dead after one command timeout, not two.
#[tokio::test]
async fn a_request_swallowed_behind_the_ping_ends_the_connection_in_one_command_timeout() {
    let server = Server::start();
    let acquire = script(&server, "acquire");
    script(&server, "inspect");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(2_000))).await;
    client.lock("warm").lock().await.expect("free").unlock().await.expect("ours");
    let before = proxy.tally().requests;
    proxy.rule(Rule::new(Which::Command("PING"), Fault::Delay(Way::Back, ms(150))));
    let asks = client.clone();
    tokio::spawn(async move { asks.ping().await });
    until("the PING", ms(3_000), || proxy.tally().requests > before).await;
    proxy.rule(Rule::new(acquire, Fault::Swallow(Way::There)));
    let lock = client.lock("y");
    let started = Instant::now();
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to be swallowed", ms(1_000), || proxy.tally().swallowed == 1).await;
    until("the connection to be replaced", ms(10_000), || client.stats().total.reconnects > 0).await;
    let took = started.elapsed();
    drop(waiting.await.expect("no panic").expect("free"));
    assert!(took <= ms(2_600), "a connection on which nothing is answered was kept for {took:?}, command timeout 2 s");
}

/// A dropped call on a connection that answers everything, though not within a tenth of the command timeout.
#[tokio::test]
async fn a_call_that_is_dropped_does_not_cost_a_slow_connection_either() {
    let server = Server::start();
    script(&server, "inspect");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(2_000))).await;
    proxy.rule(Rule::new(Which::Any, Fault::Delay(Way::Back, ms(260))).times(u64::MAX));
    unheard(&client.lock("x"));
    sleep(ms(4_000)).await;
    assert_eq!(client.stats().total.reconnects, 0, "all was answered within 260 ms");
}

/// A dead connection must not cost the lock (`command_timeout` is at most a third of the lease for that). The renewal is
/// swallowed while the connection's own PING is under way.
async fn renewals_swallowed(delayed_ping: bool) -> usize {
    let server = Arc::new(Server::start());
    let renew = script(&server, "renew");
    script(&server, "inspect");
    script(&server, "acquire");
    let mut all = JoinSet::new();
    for n in 0..24 {
        let (server, renew) = (Arc::clone(&server), renew.clone());
        all.spawn(async move {
            let proxy = before(&server);
            let client = behind(&proxy, |builder| builder.watchdog(ms(6_000)).command_timeout(ms(2_000))).await;
            let guard = client.lock(&format!("x-{n}")).lock().await.expect("free");
            if delayed_ping {
                proxy.rule(Rule::new(Which::Command("PING"), Fault::Delay(Way::Back, ms(170))));
            }
            proxy.rule(Rule::new(renew, Fault::Swallow(Way::There)));
            sleep(ms(450 + 20 * n)).await;
            unheard(&client.lock("other"));
            until("the renewal to be swallowed", ms(3_000), || proxy.tally().swallowed == 1).await;
            until("a new connection", ms(8_000), || client.stats().total.reconnects > 0).await;
            sleep(ms(1_000)).await;
            usize::from(guard.is_lost())
        });
    }
    all.join_all().await.into_iter().sum()
}

/// A lock whose machine stands still for that long may be lost, so such a run says nothing.
async fn lost_on_a_running_machine(delayed_ping: bool) -> usize {
    let mut lost = 0;
    for _ in 0..5 {
        let started = Stopwatch::start();
        lost = renewals_swallowed(delayed_ping).await;
        if lost == 0 || started.stalled() < ms(200) {
            break;
        }
    }
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_swallowed_behind_the_ping_does_not_cost_the_lock() {
    assert_eq!(
        lost_on_a_running_machine(true).await,
        0,
        "of 24 locks, each on a connection that died once, with a healthy server"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_one_swallowed_behind_a_quick_ping() {
    assert_eq!(lost_on_a_running_machine(false).await, 0);
}

/// Whether the request or the connection itself is the first to notice.
#[tokio::test]
async fn a_request_without_a_reply_counts_even_if_its_connection_ends_for_that() {
    let server = Server::start();
    for _ in 0..5 {
        let client = client(&server, |builder| builder.command_timeout(ms(200))).await;
        server.freeze();
        let failed = client.lock("x").try_lock_for(ms(450)).await;
        server.thaw();
        let failed = failed.expect_err("frozen");
        assert!(failed.is_unavailable(), "{failed}");
        assert!(client.stats().total.timeouts > 0, "{failed:?}");
    }
}
