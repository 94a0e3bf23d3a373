//! Holders are told when the lock is gone.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard, Lost};

use crate::support::{Server, Stopwatch, client, ms, until, within};

const LEASE: Duration = ms(3_000);

async fn held(server: &Server) -> (Client, Guard) {
    let client = client(server, |builder| builder.watchdog(LEASE)).await;
    let guard = client.lock("held").lock().await.expect("free");
    (client, guard)
}

/// Told within a third of the lease, with that reason, and again by `unlock`.
async fn told(guard: Guard, reason: Lost) {
    let (lost, _) = within("to be told", LEASE / 3 + ms(50), guard.lost()).await;
    assert_eq!(lost, reason);
    assert!(guard.is_lost());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(matches!(guard.check().await, Err(Error::Lost { reason: r, .. }) if r == reason));
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: r, .. }) if r == reason));
}

#[tokio::test]
async fn after_del() {
    let server = Server::start();
    let (client, guard) = held(&server).await;
    let _: u32 = server.ask(&["DEL", "held"]);
    told(guard, Lost::Removed).await;
    assert_eq!((client.stats().total.lost, client.stats().now.holds), (1, 0));
}

#[tokio::test]
async fn after_somebody_else_took_the_key() {
    let server = Server::start();
    let (_client, guard) = held(&server).await;
    let _: u32 = server.ask(&["DEL", "held"]);
    let _: u32 = server.ask(&["HSET", "held", "b983c153-7421-469a-addb-44fb92259a1b:7", "1"]);
    told(guard, Lost::Removed).await;
    assert_eq!(server.lock("held").len(), 1, "theirs is left alone");
}

#[tokio::test]
async fn after_the_key_became_something_else() {
    let server = Server::start();
    let (_client, guard) = held(&server).await;
    let _: String = server.ask(&["SET", "held", "x"]);
    told(guard, Lost::Removed).await;
}

#[tokio::test]
async fn after_force_unlock_from_elsewhere() {
    let server = Server::start();
    let (_client, guard) = held(&server).await;
    let other = client(&server, |builder| builder).await;
    assert!(other.lock("held").force_unlock().await.expect("answered"));
    assert!(!other.lock("held").force_unlock().await.expect("answered"), "nobody has it now");
    told(guard, Lost::Removed).await;
}

#[tokio::test]
async fn after_flushall() {
    let server = Server::start();
    let (_client, guard) = held(&server).await;
    let _: String = server.ask(&["FLUSHALL"]);
    told(guard, Lost::Removed).await;
}

#[tokio::test]
async fn after_a_restart_without_persistence() {
    let mut server = Server::start();
    let (client, guard) = held(&server).await;
    server.restart();
    told(guard, Lost::Removed).await;
    assert!(client.stats().total.reconnects >= 1);
    drop(client.lock("held").lock().await.expect("the client has come back by itself"));
}

#[tokio::test]
async fn a_lock_given_back_finds_out_too() {
    let server = Server::start();
    let (_client, guard) = held(&server).await;
    let _: u32 = server.ask(&["DEL", "held"]);
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::Removed, .. })));
}

#[tokio::test]
async fn with_the_server_frozen_it_ends_with_the_last_confirmed_lease() {
    let server = Server::start();
    let watched = client(&server, |builder| builder.watchdog(ms(1_200))).await;
    let asked = Instant::now();
    let guard = watched.lock("held").lock().await.expect("free");
    until("a renewal", ms(2_000), || watched.stats().total.renewals > 0).await;
    let (frozen, remaining) = (Stopwatch::start(), guard.remaining());
    server.freeze();
    let (lost, took) = within("the lease to end", ms(1_300), guard.lost()).await;
    assert_eq!(lost, Lost::Expired);
    assert!(took <= remaining + ms(20), "told {took} after {remaining:?} were left");
    assert!(frozen.elapsed() <= ms(1_200), "the server cannot have given it away yet");
    assert!(asked.elapsed() > ms(1_200), "the renewal counted");

    server.thaw();
    until("the key to go", ms(1_500), || !server.exists("held")).await;
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::Expired, .. })));
}

#[tokio::test]
async fn a_frozen_server_that_wakes_in_time_costs_nothing() {
    let server = Server::start();
    let (client, guard) = held(&server).await;
    server.freeze();
    tokio::time::sleep(ms(1_200)).await;
    server.thaw();
    let before = client.stats().total.renewals;
    until("a renewal after it", ms(2_000), || client.stats().total.renewals > before).await;
    assert!(!guard.is_lost());
    guard.unlock().await.expect("ours");
}

#[tokio::test]
async fn protected_work_is_dropped() {
    let server = Server::start();
    let (_client, guard) = held(&server).await;
    let _: u32 = server.ask(&["DEL", "held"]);
    let (done, _) = within("the work to be dropped", LEASE, guard.protect(std::future::pending::<()>())).await;
    assert!(matches!(done, Err(Error::Lost { reason: Lost::Removed, .. })));
}

#[tokio::test]
async fn protected_work_is_followed_by_the_release() {
    let server = Server::start();
    let (_client, guard) = held(&server).await;
    assert_eq!(guard.protect(async { 7 }).await.expect("ours to the end"), 7);
    assert!(!server.exists("held"));
}
