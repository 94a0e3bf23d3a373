//! On a paused clock many things happen at one moment. A caller learns what is true when it calls, not what was true before.

use std::{convert::Infallible, future::Future, pin::pin, task::Poll, time::Duration};

use leasehold::{Client, Once, Owner};
use tokio::task::yield_now;

use super::{support::poll_once, two};

/// Another caller's request is on its way, and finds the lock held.
async fn on_its_way(call: &mut (impl Future + Unpin)) {
    assert!(poll_once(std::pin::Pin::new(call)).is_pending());
    for _ in 0..20 {
        yield_now().await; // the server has replied
    }
}

/// `call` begins after that, at the same moment.
async fn at_once<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    match poll_once(call.as_mut()) {
        Poll::Ready(result) => result,
        Poll::Pending => call.await,
    }
}

async fn is_free(client: &Client) -> bool {
    let lock = client.mutex("ledger");
    at_once(lock.try_lock()).await.expect("it replies").is_some()
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_finds_a_lock_free_that_was_released_before_it() {
    let (_server, client, other) = two();
    let guard = client.mutex("ledger").lock().await.expect("it is free");
    let lock = other.mutex("ledger");
    let mut before = Box::pin(lock.try_lock());
    on_its_way(&mut before).await;
    guard.unlock().await.expect("held");
    assert!(is_free(&other).await);
    assert!(before.await.expect("it replies").is_none(), "its request was earlier");
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_to_write_or_to_acquire_a_permit_does_so_too() {
    let (_server, client, other) = two();
    let guard = client.rw_lock("ledger").write().await.expect("it is free");
    let lock = other.rw_lock("ledger").owner(&Owner::new());
    let mut before = Box::pin(lock.try_write());
    on_its_way(&mut before).await;
    guard.unlock().await.expect("held");
    let lock = other.rw_lock("ledger").owner(&Owner::new());
    assert!(at_once(lock.try_write()).await.expect("it replies").is_some());
    assert!(before.await.expect("it replies").is_none(), "its request was earlier");

    client.plain_semaphore("seats").try_set_permits(1).await.expect("it replies");
    client.plain_semaphore("seats").acquire(1).await.expect("it is free");
    let seats = other.plain_semaphore("seats");
    let mut before = Box::pin(seats.try_acquire(1));
    on_its_way(&mut before).await;
    client.plain_semaphore("seats").release(1).await.expect("it replies");
    assert!(at_once(seats.try_acquire(1)).await.expect("it replies"));
}

#[tokio::test(start_paused = true)]
async fn a_single_attempt_for_a_fair_lock_does_so_too() {
    let (_server, client, other) = two();
    let guard = client.fair_lock("ledger").lock().await.expect("it is free");
    let lock = other.fair_lock("ledger").owner(&Owner::new());
    let mut before = Box::pin(lock.try_lock());
    on_its_way(&mut before).await;
    guard.unlock().await.expect("held");
    assert!(at_once(lock.try_lock()).await.expect("it replies").is_some());
    assert!(before.await.expect("it replies").is_none(), "its request was earlier");
}

#[tokio::test(start_paused = true)]
async fn a_latch_that_was_opened_before_lets_a_caller_pass() {
    let (_server, client, other) = two();
    client.latch("ready").try_set_count(1).await.expect("it replies");
    let latch = other.latch("ready");
    let mut before = Box::pin(latch.wait());
    on_its_way(&mut before).await;
    assert_eq!(client.latch("ready").count_down().await.expect("it replies"), 0);
    assert!(at_once(latch.wait_for(Duration::ZERO)).await.expect("it replies"));
    before.await.expect("it replies");
}

/// Else a caller that sleeps until then would not sleep at all, again and again, and the clock would stand.
#[tokio::test(start_paused = true)]
async fn the_next_run_is_not_due_in_no_time() {
    let (_server, client, other) = two();
    let minute = Duration::from_secs(60);
    let run = async |client: &Client| {
        client.mutex("report").try_run_once_per(minute, async || Ok::<_, Infallible>(())).await.expect("it replies")
    };
    assert!(matches!(run(&client).await, Once::Ran(Ok(()))));
    for _ in 0..10 {
        match run(&other).await {
            Once::AlreadyRan { next_in } => tokio::time::sleep(next_in).await,
            ran => return assert!(matches!(ran, Once::Ran(Ok(()))), "{ran:?}"),
        }
    }
    panic!("it is never due");
}
