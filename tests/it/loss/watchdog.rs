//! Leases: the watchdog's, fixed ones, and the cap.

use std::time::Duration;

use leasehold::{Error, Lost};
use serial_test::serial;

use crate::support::{Server, Stopwatch, client, ms, plain, until, within};

/// A lease that a test waits for. A machine that stands still for a moment does not end it: two of three renewals may fail.
const SHORT: Duration = ms(1_000);

#[tokio::test]
async fn without_a_lease_it_starts_at_thirty_seconds() {
    let server = Server::start();
    let client = plain(&server).await;
    let started = Stopwatch::start();
    let guard = client.lock("default").lock().await.expect("free");
    let (left, remaining) = (ms(server.pttl("default").try_into().expect("held")), guard.remaining());
    let most = ms(30_000);
    let since = started.elapsed().elapsed;
    assert!(left <= most && left + since + ms(1) >= most, "{left:?} after {since:?}");
    assert!(remaining < most && remaining + since + ms(200) >= most, "{remaining:?} after {since:?}");
}

#[tokio::test]
#[serial(cores)]
async fn a_short_watchdog_keeps_it_for_long() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(900))).await;
    let guard = client.lock("kept").lock().await.expect("free");
    let (started, mut renewed, mut renewals) = (Stopwatch::start(), Stopwatch::start(), 0);
    while renewals < 15 {
        assert!(started.elapsed() < ms(5_000), "{renewals} renewals in {}", started.elapsed());
        let left = ms(server.pttl("kept").try_into().expect("held"));
        // A third of the lease has passed when it is renewed, and no more than that is late.
        assert!(left + renewed.stalled() >= ms(400), "down to {left:?}, and {} since the renewal", renewed.elapsed());
        assert!(!guard.is_lost());
        let now = client.stats().total.renewals;
        if now > renewals {
            (renewed, renewals) = (Stopwatch::start(), now);
        }
        tokio::time::sleep(ms(5)).await;
    }
    guard.unlock().await.expect("never lost");
}

#[tokio::test]
async fn a_fixed_lease_is_not_renewed() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(90))).await;
    let started = Stopwatch::start();
    let guard = client.lock("fixed").lease(ms(600)).lock().await.expect("free");
    let (lost, _) = within("the lease to end", ms(700), guard.lost()).await;
    assert_eq!(lost, Lost::Expired);
    assert!(started.elapsed() > ms(550));
    until("the key to end", ms(200), || !server.exists("fixed")).await;
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::Expired, .. })));
}

#[tokio::test]
async fn a_fixed_lease_can_be_extended_but_not_shortened() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("extended").lease(ms(2_000)).lock().await.expect("free");
    guard.extend(ms(10_000)).await.expect("ours");
    assert!(server.pttl("extended") > 9_500 && guard.remaining() > ms(9_500));
    guard.extend(ms(1_000)).await.expect("ours");
    assert!(server.pttl("extended") > 9_000 && guard.remaining() > ms(9_000));
    guard.extend(ms(0)).await.expect_err("no lease");
    guard.check().await.expect("ours");
}

#[tokio::test]
async fn the_cap_ends_it() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(SHORT)).await;
    let started = Stopwatch::start();
    let guard = client.lock("capped").max_hold(ms(2_000)).lock().await.expect("free");
    let (lost, _) = within("the cap", ms(2_500), guard.lost()).await;
    assert_eq!(lost, Lost::MaxHold);
    assert!(started.elapsed() > ms(1_950), "renewed until then: {}", started.elapsed());
    assert_eq!(guard.remaining(), ms(0));
    until("the lease to end unrenewed", ms(1_200), || !server.exists("capped")).await;
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::MaxHold, .. })));
}

#[tokio::test]
async fn a_nested_level_without_a_lease_is_kept_while_it_lives() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(SHORT)).await;
    let outer = client.lock("mixed").lease(ms(1_200)).lock().await.expect("free");
    let inner = client.lock("mixed").lock().await.expect("re-entered");
    tokio::time::sleep(ms(2_000)).await; // both leases
    assert!(!outer.is_lost() && server.exists("mixed"));
    inner.unlock().await.expect("ours");
    let (lost, _) = within("the last renewal to end", ms(1_300), outer.lost()).await;
    assert_eq!(lost, Lost::Expired);
}

#[tokio::test]
async fn many_locks_are_kept_in_few_calls() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(1_500))).await;
    let mut guards = Vec::new();
    for n in 0..1_000 {
        guards.push(client.lock(&format!("many-{n}")).lock().await.expect("free"));
    }
    let before = client.stats();
    let renewals = || client.stats().total.renewals - before.total.renewals;
    until("each to be renewed four times", ms(10_000), || renewals() >= 4_000).await;
    let (calls, renewals) = (client.stats().total.calls - before.total.calls, renewals());
    assert!(calls * 8 < renewals, "{calls} calls for {renewals} renewals");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    assert_eq!(client.stats().now.holds, 1_000);
}

#[tokio::test]
async fn an_inner_cap_ends_with_its_guard() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(SHORT)).await;
    let outer = client.lock("caps").lock().await.expect("free");
    let inner = client.lock("caps").max_hold(ms(700)).lock().await.expect("re-entered");
    inner.unlock().await.expect("ours");
    tokio::time::sleep(ms(900)).await; // the cap
    assert!(!outer.is_lost());
    let _inner = client.lock("caps").max_hold(ms(700)).lock().await.expect("re-entered");
    let (lost, _) = within("the inner cap", ms(900), outer.lost()).await;
    assert_eq!(lost, Lost::MaxHold);
}
