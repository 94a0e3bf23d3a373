//! A lock taken away by the other side.

use std::time::Duration;

use leasehold::{Error, Lost};
use serial_test::serial;

use crate::{
    asleep, both,
    jvm::Jvm,
    soon,
    support::{Server, client, ms, within},
    wait_for,
};

const LEASE: Duration = ms(3_000);

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn redisson_takes_ours_away() {
    let server = Server::start();
    let jvm = Jvm::start(&server).await;
    let client = client(&server, |builder| builder.watchdog(LEASE)).await;
    let guard = client.lock("forced").lock().await.expect("free");
    let waiting = asleep(&server, || jvm.ask(2, "lock forced -1")).await;

    assert!(jvm.get::<bool>(1, "forceUnlock forced").await);
    soon("who waits to be woken", waiting.done()).await;
    let (lost, _) = within("to be told", LEASE / 3 + ms(50), guard.lost()).await;
    assert_eq!(lost, Lost::Removed);
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::Removed, .. })));

    assert_eq!(server.lock("forced"), [(jvm.get(2, "owner forced").await, 1)], "theirs is left alone");
    jvm.call(2, "unlock forced").await;
    assert!(!jvm.get::<bool>(1, "forceUnlock forced").await, "nobody has it now");
}

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn we_take_redissons_away() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let lock = client.lock("forced");
    jvm.call(1, "lock forced -1").await;
    let waiting = asleep(&server, || wait_for(&lock)).await;

    assert!(lock.force_unlock().await.expect("answered"));
    let (guard, _) = soon("who waits to be woken", waiting).await.expect("no panic");
    let refusal = jvm.ask(1, "unlock forced").refused().await;
    assert!(refusal.contains("IllegalMonitorStateException"), "{refusal}");

    guard.unlock().await.expect("theirs did not touch it");
    assert!(!lock.force_unlock().await.expect("answered"), "nobody has it now");
}

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn who_waits_is_woken_across() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let lock = client.lock("forced");
    jvm.call(1, "lock forced -1").await;
    let waiting = asleep(&server, || wait_for(&lock)).await;
    assert!(jvm.get::<bool>(2, "forceUnlock forced").await);
    let (guard, _) = soon("we to be woken by Redisson's", waiting).await.expect("no panic");

    let waiting = asleep(&server, || jvm.ask(3, "lock forced -1")).await;
    assert!(lock.force_unlock().await.expect("answered"));
    soon("Redisson to be woken by ours", waiting.done()).await;
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::Removed, .. })));
}
