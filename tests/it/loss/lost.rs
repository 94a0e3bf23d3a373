//! Holders are told when the lock is gone.

use std::{
    pin::Pin,
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Guard, Lost, Owner};
use tokio::runtime::Builder as RuntimeBuilder;

use crate::support::{Server, Stopwatch, client, ms, plain, poll_once, until, within};

const LEASE: Duration = ms(3_000);

async fn held(server: &Server) -> (Client, Guard) {
    let client = client(server, |builder| builder.watchdog(LEASE)).await;
    let guard = client.lock("held").lock().await.expect("free");
    (client, guard)
}

/// Told within a third of the lease, with that reason, and again by `unlock`.
async fn told(guard: Guard, reason: Lost) {
    let (lost, _) = within("to be told", LEASE / 3 + ms(200), guard.lost()).await;
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

/// The caller's runtime does not run, so a task on the client's own thread must watch.
#[test]
fn a_token_is_cancelled_while_the_callers_runtime_does_not_run() {
    let server = Server::start();
    let runtime = RuntimeBuilder::new_current_thread().enable_all().build().expect("a runtime");
    let (_client, guard, token) = runtime.block_on(async {
        let (client, guard) = held(&server).await;
        let token = guard.lost_token();
        (client, guard, token)
    });
    let _: u32 = server.ask(&["DEL", "held"]);
    let started = Stopwatch::start();
    while !token.is_cancelled() {
        assert!(started.elapsed() < LEASE, "nobody has cancelled it");
        thread::sleep(ms(5));
    }
    assert!(guard.is_lost());
}

type Unlocking = Pin<Box<dyn Future<Output = leasehold::Result<()>>>>;

/// A token whose guard is being unlocked, and whose lock was deleted before.
async fn unlocking_what_is_gone(server: &Server, client: &Client) -> (tokio_util::sync::CancellationToken, Unlocking) {
    loop {
        let guard = client.lock("held").lock().await.expect("free");
        let token = guard.lost_token();
        let _: u32 = server.ask(&["DEL", "held"]);
        let mut unlocking: Unlocking = Box::pin(guard.unlock());
        if poll_once(unlocking.as_mut()).is_pending() {
            return (token, unlocking);
        } // else the reply was there at once
    }
}

/// The release finds that, and nobody awaits it any more.
#[tokio::test]
async fn a_token_is_cancelled_although_the_unlock_was_dropped() {
    let server = Server::start();
    let client = plain(&server).await;
    let (token, unlocking) = unlocking_what_is_gone(&server, &client).await;
    drop(unlocking);
    within("the token", ms(5_000), token.cancelled()).await;
}

/// The same if the reply was there when the future was dropped.
#[tokio::test]
async fn a_token_is_cancelled_although_the_result_of_the_unlock_was_not_looked_at() {
    let server = Server::start();
    let client = plain(&server).await;
    let (token, unlocking) = unlocking_what_is_gone(&server, &client).await;
    // A call that is not polled loses its request to a task of the client.
    until("the reply", ms(5_000), || client.stats().total.lost == client.stats().total.acquired).await;
    assert!(!token.is_cancelled());
    drop(unlocking);
    within("the token", ms(5_000), token.cancelled()).await;
}

/// Neither does a dropped `unlock` look like a loss.
#[tokio::test]
async fn a_dropped_unlock_cancels_no_token() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("held").lock().await.expect("free");
    let token = guard.lost_token();
    let _ = poll_once(Box::pin(guard.unlock()).as_mut());
    until("the release", ms(5_000), || client.stats().total.released == 1).await;
    tokio::time::sleep(ms(50)).await;
    assert!(!token.is_cancelled());
}

/// Tasks that watch for the tokens look at the lock while its guards are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_does_not_look_like_a_loss_to_the_task_that_watches() {
    const GUARDS: usize = 200;
    let server = Server::start();
    let client = client(&server, |builder| builder.own_thread(true)).await;
    for _ in 0..20 {
        let lock = client.lock("held").owner(&Owner::new()).lease(ms(400));
        let nested = futures_util::future::join_all((0..GUARDS).map(|_| lock.lock())).await;
        let guards: Vec<_> = nested.into_iter().map(|guard| guard.expect("free, or nested")).collect();
        let tokens: Vec<_> = guards.iter().map(Guard::lost_token).collect();
        let wakes = Instant::now() + guards[0].remaining(); // then the tasks look, unless they are told of the extension
        guards[0].extend(ms(60_000)).await.expect("ours");
        let dropping = tokio::task::spawn_blocking(move || {
            thread::sleep(wakes.saturating_duration_since(Instant::now()));
            drop(guards);
        });
        dropping.await.expect("no panic");
        until("the release", ms(5_000), || !server.exists("held")).await;
        tokio::time::sleep(ms(5)).await;
        let cancelled = tokens.iter().filter(|token| token.is_cancelled()).count();
        assert_eq!(cancelled, 0, "of {GUARDS} tokens, although nothing was lost");
    }
}
