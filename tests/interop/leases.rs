//! Leases: kept past their end by either watchdog, and over when the holder is gone.

use std::time::{Duration, Instant};

use serial_test::serial;

use crate::{
    asleep, between, both,
    jvm::{Jvm, clock},
    soon,
    support::{Server, client, ms, plain, within},
    wait_for,
    workers::Worker,
};

/// Longer than the thirty seconds for which both sides take a lock.
const LONG: Duration = ms(35_000);
/// Of a holder that will be killed.
const SHORT: Duration = ms(2_000);
/// How much later than the lease's end the next may come.
const LATE: Duration = ms(300);

// Only sleeps, so that it may run beside the others.
#[tokio::test(flavor = "multi_thread")]
async fn each_watchdog_keeps_the_other_side_out() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    jvm.call(1, "lock theirs -1").await;
    let guard = client.lock("ours").lock().await.expect("free");

    let they_wait = jvm.ask(2, &format!("tryLock ours {} -1", LONG.as_millis()));
    let theirs = client.lock("theirs");
    let (we_got, least) = tokio::join!(theirs.try_lock_for(LONG), least_left(&server, ["ours", "theirs"], LONG));
    assert!(we_got.expect("answered").is_none());
    let they_waited = they_wait.done().await;
    assert!(!they_waited.value::<bool>() && between(they_waited.began, they_waited.ended) >= LONG);
    assert!(least > 15_000, "renewed late: down to {least} ms");

    assert!(jvm.get::<bool>(1, "isHeldByCurrentThread theirs").await);
    guard.unlock().await.expect("never lost");
    jvm.call(1, "unlock theirs").await;
    assert!(jvm.get::<bool>(2, "tryLock ours 0 -1").await);
    assert!(theirs.try_lock().await.expect("answered").is_some());
}

/// The least that was left of any of these leases, in milliseconds.
async fn least_left(server: &Server, names: [&str; 2], time: Duration) -> i64 {
    let (started, mut least) = (Instant::now(), i64::MAX);
    while started.elapsed() < time {
        least = names.iter().map(|name| server.pttl(name)).fold(least, i64::min);
        tokio::time::sleep(ms(100)).await;
    }
    least
}

/// When the lock's lease will be over, or a little earlier: by as much as the answer took.
pub(crate) fn ends(server: &Server, name: &str) -> u64 {
    let before = clock();
    let left = u64::try_from(server.pttl(name)).expect("it has an end");
    before + left * 1_000_000
}

/// The next may come when the lease is over, not before and not long after.
pub(crate) fn in_time(name: &str, ends: u64, granted: u64, patience: Duration) {
    let (early, late) = (between(granted, ends), between(ends, granted));
    println!("{name}: {early:.1?} before, {late:.1?} after the lease's end");
    assert!(early <= ms(5) && late <= patience, "{name}: {early:?} before, {late:?} after the lease's end");
}

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn a_killed_jvm_is_followed_by_us() {
    let server = Server::start();
    let client = plain(&server).await;
    let mut jvm = Jvm::with_watchdog(&server, SHORT).await;
    jvm.call(1, "lock killed -1").await;
    let waiting = asleep(&server, || wait_for(&client.lock("killed"))).await;
    jvm.kill();
    let ends = ends(&server, "killed");
    let (guard, granted) = within("the lease to end", 2 * SHORT, waiting).await.0.expect("no panic");
    in_time("killed", ends, granted, LATE);
    guard.unlock().await.expect("ours");
}

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn we_are_followed_by_redisson_when_killed() {
    let server = Server::start();
    let jvm = Jvm::start(&server).await;
    let mut holder = Worker::start(&["hold", "plain", &server.url(), "killed", &SHORT.as_millis().to_string()]);
    crate::support::until("it to hold the lock", 10 * crate::SOON, || server.exists("killed")).await;
    let waiting = asleep(&server, || jvm.ask(1, "lock killed -1")).await;
    holder.kill();
    let ends = ends(&server, "killed");
    let granted = within("the lease to end", 2 * SHORT, waiting.done()).await.0.ended;
    in_time("killed", ends, granted, LATE);
    jvm.call(1, "unlock killed").await;
}

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn fixed_leases_end_by_themselves() {
    let server = Server::start();
    let jvm = Jvm::start(&server).await;
    let client = client(&server, |builder| builder.watchdog(SHORT)).await;
    jvm.call(1, "lock theirs 1000").await;
    let theirs_end = ends(&server, "theirs");
    let (guard, granted) = within("theirs to end", SHORT, wait_for(&client.lock("theirs"))).await.0.expect("no panic");
    in_time("theirs", theirs_end, granted, LATE);
    let refusal = jvm.ask(1, "unlock theirs").refused().await;
    assert!(refusal.contains("IllegalMonitorStateException"), "{refusal}");
    guard.unlock().await.expect("theirs did not touch it");

    let guard = client.lock("ours").lease(ms(1_000)).lock().await.expect("free");
    let ours_ends = ends(&server, "ours");
    let granted = within("ours to end", SHORT, jvm.call(2, "lock ours -1")).await.0.ended;
    in_time("ours", ours_ends, granted, LATE);
    guard.unlock().await.expect_err("it is theirs now");
    soon("theirs is left alone", jvm.call(2, "unlock ours")).await;
}
