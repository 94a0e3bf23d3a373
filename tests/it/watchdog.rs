//! Leases: the watchdog's, fixed ones, and the cap.

use std::time::Instant;

use leasehold::{Error, Lost};
use serial_test::serial;

use crate::support::{Server, client, ms, plain, within};

#[tokio::test]
async fn without_a_lease_it_starts_at_thirty_seconds() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("default").lock().await.expect("free");
    let left = server.pttl("default");
    assert!((29_900..=30_000).contains(&left), "{left}");
    assert!(guard.remaining() > ms(29_800) && guard.remaining() < ms(30_000));
}

#[tokio::test]
#[serial(cores)]
async fn a_short_watchdog_keeps_it_for_long() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(900))).await;
    let guard = client.lock("kept").lock().await.expect("free");
    let (started, mut least) = (Instant::now(), i64::MAX);
    while started.elapsed() < ms(5_000) {
        least = least.min(server.pttl("kept"));
        assert!(!guard.is_lost());
        tokio::time::sleep(ms(5)).await;
    }
    assert!(least >= 400, "down to {least} ms");
    assert!(client.stats().total.renewals >= 15);
    guard.unlock().await.expect("never lost");
}

#[tokio::test]
async fn a_fixed_lease_is_not_renewed() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(90))).await;
    let guard = client.lock("fixed").lease(ms(600)).lock().await.expect("free");
    let started = Instant::now();
    let (lost, _) = within("the lease to end", ms(700), guard.lost()).await;
    assert_eq!(lost, Lost::Expired);
    assert!(started.elapsed() > ms(550));
    crate::support::until("the key to end", ms(200), || !server.exists("fixed")).await;
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
    let client = client(&server, |builder| builder.watchdog(ms(300))).await;
    let guard = client.lock("capped").max_hold(ms(1_000)).lock().await.expect("free");
    let (lost, took) = within("the cap", ms(1_500), guard.lost()).await;
    assert_eq!(lost, Lost::MaxHold);
    assert!(took > ms(950), "renewed until then: {took:?}");
    assert_eq!(guard.remaining(), ms(0));
    crate::support::until("the lease to end unrenewed", ms(500), || !server.exists("capped")).await;
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::MaxHold, .. })));
}

#[tokio::test]
async fn a_nested_level_without_a_lease_is_kept_while_it_lives() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(300))).await;
    let outer = client.lock("mixed").lease(ms(400)).lock().await.expect("free");
    let inner = client.lock("mixed").lock().await.expect("re-entered");
    tokio::time::sleep(ms(900)).await;
    assert!(!outer.is_lost() && server.exists("mixed"));
    inner.unlock().await.expect("ours");
    let (lost, _) = within("the last renewal to end", ms(500), outer.lost()).await;
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
    tokio::time::sleep(ms(3_000)).await;
    let after = client.stats();
    let (renewals, calls) = (after.total.renewals - before.total.renewals, after.total.calls - before.total.calls);
    assert!(renewals >= 4_000, "{renewals} renewals");
    assert!(calls * 8 < renewals, "{calls} calls for {renewals} renewals");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    assert_eq!(client.stats().now.holds, 1_000);
}

#[tokio::test]
async fn an_inner_cap_ends_with_its_guard() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(300))).await;
    let outer = client.lock("caps").lock().await.expect("free");
    let inner = client.lock("caps").max_hold(ms(200)).lock().await.expect("re-entered");
    inner.unlock().await.expect("ours");
    tokio::time::sleep(ms(400)).await;
    assert!(!outer.is_lost());
    let _inner = client.lock("caps").max_hold(ms(200)).lock().await.expect("re-entered");
    let (lost, _) = within("the inner cap", ms(400), outer.lost()).await;
    assert_eq!(lost, Lost::MaxHold);
}
