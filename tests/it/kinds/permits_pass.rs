//! Permits that pass from a task to the next of the same client without a request, and what ends that.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::{Client, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::support::{Server, client, ms, plain, until, within};

const SOON: Duration = ms(5_000);

fn waits(client: &Client) -> u64 {
    client.stats().now.waiting
}

fn taken(server: &Server) -> i64 {
    server.ask(&["ZCARD", "{x}:timeout"])
}

/// Runs that many tasks for so many turns without work.
async fn turns(tasks: u64, each: u64, turn: impl AsyncFn() + Clone + Send + 'static) {
    let all: Vec<_> = (0..tasks).map(|_| turn.clone()).collect();
    let all = all.into_iter().map(async |turn| {
        for _ in 0..each {
            turn().await;
        }
    });
    within("all turns", SOON * 4, join_all(all)).await;
}

/// Most turns without work pass on. Each that does not needs two changes of the number of free permits.
#[tokio::test]
async fn to_a_waiter_for_as_many() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.semaphore("x");
    x.try_set_permits(4).await.expect("answered");
    let (changes, of_two) = (server.calls("incrby"), x.clone());
    turns(8, 100, async move || {
        let permits = of_two.acquire(2).await.expect("answered");
        assert_eq!(permits.count(), 2);
        permits.release().await.expect("held until then");
    })
    .await;
    let changed = server.calls("incrby") - changes;
    assert!(changed < 800, "{changed} changes in 800 turns");
    assert_eq!((taken(&server), x.available().await.expect("answered")), (0, 4));
}

/// Others may need them then.
#[tokio::test]
async fn not_after_a_long_hold() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.semaphore("x");
    x.try_set_permits(1).await.expect("answered");
    for _ in 0..3 {
        let first = x.acquire(1).await.expect("free");
        let (id, waiter) = (first.id().to_owned(), x.clone());
        let second = tokio::spawn(async move { waiter.acquire(1).await.expect("they are released") });
        until("it waits", SOON, || waits(&client) == 1).await;
        tokio::time::sleep(ms(20)).await; // the work
        first.release().await.expect("held until then");
        let second = within("the second", SOON, second).await.0.expect("no panic");
        assert_ne!(second.id(), id);
        second.release().await.expect("held until then");
    }
}

#[tokio::test]
async fn until_there_are_fewer() {
    let server = Server::start();
    let (one, admin) = (plain(&server).await, plain(&server).await);
    let x = one.semaphore("x");
    x.try_set_permits(2).await.expect("answered");
    let held = [x.acquire(1).await.expect("free"), x.acquire(1).await.expect("free")];
    let stop = CancellationToken::new();
    let tasks: Vec<_> = (0..6).map(|_| tokio::spawn(takes_turns(x.clone(), stop.clone()))).collect();
    until("they wait", SOON, || waits(&one) == 6).await;
    admin.semaphore("x").set_permits(1).await.expect("answered");
    for permits in held {
        permits.release().await.expect("held until then");
    }
    until("one permit less is taken", SOON, || taken(&server) <= 1 && server.ask::<i64>(&["GET", "x"]) >= 0).await;
    stop.cancel();
    for task in tasks {
        within("its last turn", SOON, task).await.0.expect("no panic");
    }
    assert_eq!((taken(&server), x.available().await.expect("answered")), (0, 1));
}

async fn takes_turns(x: Semaphore, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let permits = x.acquire(1).await.expect("answered");
        tokio::time::sleep(ms(1)).await; // the work
        permits.release().await.expect("held until then");
    }
}

/// A waiter that wants all permits has its turn beside tasks whose permits pass on.
#[tokio::test]
async fn while_a_large_request_waits_elsewhere() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let x = one.semaphore("x");
    x.try_set_permits(4).await.expect("answered");
    let stop = CancellationToken::new();
    let tasks: Vec<_> = (0..12).map(|_| tokio::spawn(takes_turns(x.clone(), stop.clone()))).collect();
    until("they wait", SOON, || waits(&one) > 4).await;
    for _ in 0..5 {
        let all = within("all four", SOON, other.semaphore("x").acquire(4)).await.0.expect("answered");
        all.release().await.expect("held until then");
    }
    stop.cancel();
    for task in tasks {
        within("its last turn", SOON, task).await.0.expect("no panic");
    }
}

/// With `handovers(0)` each holder releases for all.
#[tokio::test]
async fn not_without_handovers() {
    let server = Server::start();
    let client = client(&server, |builder| builder.handovers(0)).await;
    let x = client.semaphore("x");
    x.try_set_permits(1).await.expect("answered");
    let changes = server.calls("incrby");
    turns(4, 20, async move || {
        x.acquire(1).await.expect("answered").release().await.expect("held until then");
    })
    .await;
    assert!(server.calls("incrby") - changes >= 160);
}

#[tokio::test]
async fn returned_permits_of_a_plain_semaphore() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.plain_semaphore("x");
    x.try_set_permits(4).await.expect("answered");
    let (changes, of_two) = (server.calls("incrby"), x.clone());
    turns(8, 100, async move || {
        of_two.acquire(2).await.expect("answered");
        of_two.release(2).await.expect("there is one");
    })
    .await;
    let changed = server.calls("incrby") - changes;
    assert!(changed < 800, "{changed} changes in 800 turns");
    // A waiter that was given some may have acquired others meanwhile, which it returns.
    until("all to be back", SOON, || server.ask::<u32>(&["GET", "x"]) == 4).await;
}
