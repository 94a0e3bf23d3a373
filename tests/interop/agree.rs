//! What each side says about a lock of the other.

use std::time::Duration;

use serial_test::parallel;

use crate::{
    both,
    support::{Server, ms},
};

const LEASE: Duration = ms(20_000);

/// Whether so much is left of a lease taken just now.
fn is_fresh(left: i64) -> bool {
    (10_000..=20_000).contains(&left)
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn about_redissons() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let lock = client.lock("theirs");
    assert!(!lock.is_locked().await.expect("answered"));
    jvm.call(1, &format!("lock theirs {}", LEASE.as_millis())).await;

    let holder = lock.inspect().await.expect("answered").expect("held");
    assert_eq!((holder.id, holder.holds), (jvm.get(1, "owner theirs").await, 1));
    let (ours, theirs) = (holder.remaining.expect("an end"), jvm.get::<i64>(1, "remainTimeToLive theirs").await);
    assert!(is_fresh(theirs) && is_fresh(ours.as_millis().try_into().expect("small")), "{ours:?}, {theirs} ms");
    assert!(lock.is_locked().await.expect("answered"));
    assert!(lock.try_lock().await.expect("answered").is_none());

    jvm.call(1, "unlock theirs").await;
    assert!(!lock.is_locked().await.expect("answered"));
    assert_eq!(lock.inspect().await.expect("answered"), None);
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn about_ours() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    assert!(!jvm.get::<bool>(1, "isLocked ours").await);
    let guard = client.lock("ours").lease(LEASE).lock().await.expect("free");

    assert!(jvm.get::<bool>(1, "isLocked ours").await);
    assert!(!jvm.get::<bool>(1, "isHeldByCurrentThread ours").await);
    assert_eq!(jvm.get::<u32>(1, "holdCount ours").await, 0);
    let left = jvm.get::<i64>(1, "remainTimeToLive ours").await;
    assert!(is_fresh(left), "{left} ms");
    assert!(!jvm.get::<bool>(1, "tryLock ours 0 -1").await);
    let refusal = jvm.ask(1, "unlock ours").refused().await;
    assert!(refusal.contains("IllegalMonitorStateException"), "{refusal}");
    guard.check().await.expect("still ours");

    guard.unlock().await.expect("ours");
    assert!(!jvm.get::<bool>(1, "isLocked ours").await);
    assert_eq!(jvm.get::<i64>(1, "remainTimeToLive ours").await, -2);
}
