//! `mutex`: every call is an owner of its own; and who is one owner where it is not used.

use futures_util::{
    StreamExt,
    future::join_all,
    stream::{self, FuturesUnordered},
};
use leasehold::{Client, Lock, Owner};
use std::cell::Cell;

use crate::support::{Server, ms, plain, until, within};

/// The most that were inside at once.
struct Room(Cell<u32>, Cell<u32>);

impl Room {
    fn new() -> Room {
        Room(Cell::new(0), Cell::new(0))
    }

    async fn visit(&self, lock: &Lock) {
        let guard = lock.lock().await.expect("sooner or later free");
        self.0.set(self.0.get() + 1);
        self.1.set(self.1.get().max(self.0.get()));
        tokio::time::sleep(ms(5)).await; // the work
        self.0.set(self.0.get() - 1);
        guard.unlock().await.expect("ours");
    }

    fn most(&self) -> u32 {
        self.1.get()
    }
}

/// How many of six branches of one task are inside at once, in each of the usual ways to run branches.
async fn at_once(lock: &Lock) -> [u32; 3] {
    let (joined, unordered, buffered) = (Room::new(), Room::new(), Room::new());
    join_all((0..6).map(|_| joined.visit(lock))).await;
    let branches: FuturesUnordered<_> = (0..6).map(|_| unordered.visit(lock)).collect();
    branches.collect::<Vec<_>>().await;
    stream::iter(0..6).map(|_| buffered.visit(lock)).buffer_unordered(6).collect::<Vec<_>>().await;
    [joined, unordered, buffered].map(|room| room.most())
}

#[tokio::test]
async fn branches_of_one_task_exclude_each_other() {
    let server = Server::start();
    let client = plain(&server).await;
    assert_eq!(within("all branches", ms(10_000), at_once(&client.mutex("m"))).await.0, [1, 1, 1]);
    let one_owner = within("all branches", ms(10_000), at_once(&client.lock("l"))).await.0;
    assert!(one_owner.iter().all(|most| *most > 1), "{one_owner:?}");
}

#[tokio::test]
async fn it_is_the_same_lock_in_redis() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.mutex("x").lock().await.expect("free");
    assert_eq!(server.lock("x"), [(guard.id().to_owned(), 1)]);
    assert!(client.lock("x").try_lock().await.expect("answered").is_none(), "not even for the task that has it");
    assert!(client.mutex("x").try_lock().await.expect("answered").is_none());
    guard.unlock().await.expect("ours");
    let _guard = client.lock("x").lock().await.expect("free");
    assert!(client.mutex("x").try_lock().await.expect("answered").is_none());
}

#[tokio::test]
async fn an_owner_given_to_it_re_enters() {
    let server = Server::start();
    let client = plain(&server).await;
    let owner = Owner::new();
    let lock = client.mutex("x").owner(&owner);
    let (first, second) = (lock.lock().await.expect("free"), lock.lock().await.expect("re-entered"));
    assert_eq!((first.owner(), second.holds()), (&owner, 2));
}

#[tokio::test]
async fn its_waiters_are_served_in_turn_and_cancelled_without_a_trace() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.mutex("x").lock().await.expect("free");
    let lock = client.mutex("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(1_000), || client.stats().now.waiting == 1).await;
    waiting.abort();
    until("it to leave", ms(1_000), || client.stats().now.waiting == 0).await;
    guard.unlock().await.expect("ours");
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn the_task_that_took_a_lock_re_enters_after_its_guard_has_moved_away() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.lock("x");
    let guard = lock.lock().await.expect("free");
    let (give, given) = tokio::sync::oneshot::channel();
    let elsewhere = tokio::spawn(async move {
        given.await.expect("told");
        guard.unlock().await
    });
    let again = lock.try_lock().await.expect("answered").expect("the same owner");
    assert_eq!(again.holds(), 2);
    give.send(()).expect("it waits");
    elsewhere.await.expect("no panic").expect("ours");
    assert_eq!(again.holds(), 1);
}

#[tokio::test]
async fn two_clients_in_one_task_are_two_owners() {
    let server = Server::start();
    let (one, two): (Client, Client) = (plain(&server).await, plain(&server).await);
    let _guard = one.lock("x").lock().await.expect("free");
    assert!(two.lock("x").try_lock().await.expect("answered").is_none());
}
