//! The server in memory: it behaves as a real one, and time passes as the test says.

#![cfg(feature = "test-util")]

#[path = "../support/mod.rs"]
#[allow(dead_code)]
mod support;

mod beside;
mod commands;
mod faults;
mod plain_semaphore;
mod same_moment;
mod semaphore;
mod several;
mod storms;

use std::time::Duration;

use leasehold::{Client, Error, Lost, MemoryServer};
use support::ms;
use tokio::time::{Instant, advance, sleep, timeout};

const HOUR: Duration = Duration::from_secs(3_600);

fn two() -> (MemoryServer, Client, Client) {
    let server = MemoryServer::new();
    let [one, other] = [(); 2].map(|()| Client::in_memory(&server).expect("valid settings"));
    (server, one, other)
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_renews_for_an_hour_in_no_time() {
    let (_server, client, other) = two();
    let guard = client.mutex("ledger").lock().await.expect("it is free");
    sleep(HOUR).await;
    assert!(!guard.is_lost() && guard.remaining() > Duration::from_secs(15));
    assert!(other.mutex("ledger").try_lock().await.expect("it replies").is_none());
    assert!(client.stats().total.renewals > 100);
    guard.unlock().await.expect("held");
    assert!(other.mutex("ledger").try_lock().await.expect("it replies").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_at_its_time() {
    let (_server, client, other) = two();
    let started = Instant::now();
    let guard = client.mutex("ledger").lease(Duration::from_secs(20)).lock().await.expect("it is free");
    let next = other.mutex("ledger").lock().await.expect("it replies");
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(20) && took < Duration::from_secs(21), "{took:?}");
    assert_eq!(guard.lost().await, Lost::Expired);
    assert!(matches!(guard.unlock().await, Err(Error::Lost { .. })));
    next.unlock().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_a_waiter_of_another_client() {
    let (_server, client, other) = two();
    let guard = client.mutex("ledger").lock().await.expect("it is free");
    let waiting = tokio::spawn(other.mutex("ledger").into_future());
    sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    guard.unlock().await.expect("held");
    waiting.await.expect("no panic").expect("it is free now").unlock().await.expect("held");
    assert!(started.elapsed() < ms(50), "by message, not by time: {:?}", started.elapsed());
    assert_eq!(other.stats().total.woken, 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_for_and_then_an_error() {
    let (server, client, _) = two();
    let guard = client.mutex("held").lock().await.expect("it is free");
    server.freeze();
    let waiting = tokio::spawn(client.mutex("ledger").into_future());
    sleep(Duration::from_secs(10)).await;
    server.thaw();
    waiting.await.expect("no panic").expect("it rode out the outage").unlock().await.expect("held");
    server.freeze();
    let started = Instant::now();
    let error = client.mutex("ledger").lock().await.expect_err("it does not reply");
    assert!(error.is_unavailable() && !error.to_string().contains("clock"), "the clock is paused on purpose: {error}");
    assert!(started.elapsed() >= Duration::from_secs(30), "outage_timeout: {:?}", started.elapsed());
    assert_eq!(guard.lost().await, Lost::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_restart_loses_all_and_holders_hear_of_it() {
    let (server, client, other) = two();
    let guard = client.mutex("ledger").lock().await.expect("it is free");
    server.restart();
    let lost = timeout(Duration::from_secs(1), guard.lost()).await;
    assert_eq!(lost, Ok(Lost::Removed), "without waiting for the next renewal");
    assert!(other.mutex("ledger").try_lock().await.expect("it replies").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_forgotten_is_lost_at_the_next_renewal() {
    let (server, client, _) = two();
    let guard = client.mutex("ledger").lock().await.expect("it is free");
    assert_eq!(server.keys(), ["ledger"]);
    assert!(server.forget("ledger") && !server.forget("ledger"));
    assert!(timeout(Duration::from_secs(11), guard.lost()).await.is_ok_and(|lost| lost == Lost::Removed));
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_takes_nothing_twice() {
    let (server, client, other) = two();
    for lost in 1..4 {
        server.lose_replies(lost);
        let guard = client.fenced_lock("ledger").lock().await.expect("it sends the request again");
        assert_eq!(client.fenced_lock("ledger").inspect().await.expect("it replies").expect("held").holds, 1);
        server.lose_replies(lost);
        guard.unlock().await.expect("held");
        assert!(!other.mutex("ledger").is_locked().await.expect("it replies"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_an_error_that_says_so() {
    let (server, client, _) = two();
    server.deny();
    assert!(matches!(client.mutex("ledger").try_lock().await, Err(Error::Denied { .. })));
    server.thaw();
    client.mutex("ledger").try_lock().await.expect("it replies").expect("it is free").unlock().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn time_passes_only_if_the_test_says_so() {
    let (_server, client, _) = two();
    let guard = client.mutex("ledger").lease(HOUR).lock().await.expect("it is free");
    let before = guard.remaining();
    std::thread::sleep(ms(20));
    assert_eq!(guard.remaining(), before);
    advance(HOUR / 2).await;
    assert!(guard.remaining() <= before / 2 + ms(1));
}
