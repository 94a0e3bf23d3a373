//! A `lock()` future that is kept and not polled: it gets nothing for nothing, and does not stop others.

use std::{pin::pin, time::Duration};

use leasehold::{Builder, Client, Guard, Owner};
use tokio::task::JoinHandle;

use crate::support::{Server, client, ms, plain, poll_until, until, within};

/// How long one may keep the first place without being there, and what a busy machine adds.
const PASSED_OVER: Duration = ms(11_000);

async fn waiter(client: &Client) -> JoinHandle<leasehold::Result<Guard>> {
    let (lock, before) = (client.lock("x").owner(&Owner::new()), client.stats().waiting);
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(2_000), || client.stats().waiting > before).await;
    waiting
}

#[tokio::test]
async fn a_lock_that_was_handed_over_and_ended_unseen_is_taken_anew() {
    let server = Server::start();
    let client = client(&server, |builder: Builder| builder.watchdog(ms(300))).await;
    let held = client.lock("x").lock().await.expect("free");
    let lock = client.lock("x").owner(&Owner::new());
    let mut kept = pin!(lock.lock());
    poll_until("it to wait", kept.as_mut(), || client.stats().refused >= 2).await;
    let id = held.id().to_owned();
    held.unlock().await.expect("ours");
    let fields = || server.lock("x");
    assert!(fields().iter().all(|(holder, _)| *holder != id), "it was given back");
    until("what was handed over to end", ms(15_000), || !server.exists("x")).await;
    let (taken, _) = within("a lock", ms(3_000), kept).await;
    let guard = taken.expect("free");
    assert!(!guard.is_lost() && !guard.remaining().is_zero(), "lost from the start: {guard:?}");
    assert_eq!(fields(), [(guard.id().to_owned(), 1)]);
    guard.unlock().await.expect("ours to the end");
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn one_who_is_not_there_does_not_stop_the_line() {
    let server = Server::start();
    let (holder, client) = (plain(&server).await, plain(&server).await);
    let held = holder.lock("x").lock().await.expect("free");
    let lock = client.lock("x").owner(&Owner::new());
    let mut kept = pin!(lock.lock());
    poll_until("it to wait", kept.as_mut(), || client.stats().refused >= 2).await;
    let behind = waiter(&client).await;
    held.unlock().await.expect("ours");
    let (taken, _) = within("the next in line to have it", PASSED_OVER, behind).await;
    let taken = taken.expect("no panic").expect("free");
    assert_eq!(server.lock("x"), [(taken.id().to_owned(), 1)]);
    taken.unlock().await.expect("ours");
    let (taken, _) = within("the turn of the one who was away", ms(3_000), kept).await;
    taken.expect("free").unlock().await.expect("ours");
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn a_lock_is_not_parked_with_one_who_is_not_there() {
    let server = Server::start();
    let client = plain(&server).await;
    let held = client.lock("x").lock().await.expect("free");
    let lock = client.lock("x").owner(&Owner::new());
    let mut kept = pin!(lock.lock());
    poll_until("it to wait", kept.as_mut(), || client.stats().refused >= 2).await;
    let behind = waiter(&client).await;
    held.unlock().await.expect("ours");
    let (taken, _) = within("the next in line to have it", PASSED_OVER, behind).await;
    let taken = taken.expect("no panic").expect("it was given back");
    assert_eq!(server.lock("x"), [(taken.id().to_owned(), 1)]);
    taken.unlock().await.expect("ours");
    let (taken, _) = within("the turn of the one who was away", ms(3_000), kept).await;
    taken.expect("free").unlock().await.expect("ours");
    assert!(!server.exists("x"));
}
