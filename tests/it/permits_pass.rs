//! Permits that pass from a task to the next of the same client without a request, and what ends that.

use std::time::Duration;

use leasehold::{Client, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Server, client, ms, plain, until, within};

const SOON: Duration = ms(5_000);

fn waits(client: &Client) -> u64 {
    client.stats().now.waiting
}

fn taken(server: &Server) -> i64 {
    server.ask(&["ZCARD", "{x}:timeout"])
}

/// A call that waits behind all others.
async fn called(client: &Client, x: &Semaphore, n: u32) -> JoinHandle<leasehold::Permits> {
    let (x, before) = (x.clone(), waits(client));
    let task = tokio::spawn(async move { x.acquire(n).await.expect("they are released") });
    until("it waits", SOON, || waits(client) > before).await;
    task
}

#[tokio::test]
async fn to_a_waiter_for_as_many() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.semaphore("x");
    x.try_set_permits(2).await.expect("answered");
    let first = x.acquire(2).await.expect("free");
    let (second, third) = (called(&client, &x, 2).await, called(&client, &x, 1).await);
    let (id, acquisitions) = (first.id().to_owned(), server.calls("zadd"));
    first.release().await.expect("held until then");
    let second = within("the second", SOON, second).await.0.expect("no panic");
    assert_eq!((second.id(), second.count()), (&*id, 2));
    second.check().await.expect("held");
    assert_eq!((taken(&server), waits(&client)), (2, 1));
    assert!(server.calls("zadd") <= acquisitions + 4, "only renewals");
    second.release().await.expect("held until then");
    let third = within("the third", SOON, third).await.0.expect("no panic");
    assert_ne!(third.id(), id, "it wants another number");
    assert_eq!(taken(&server), 1);
    third.release().await.expect("held until then");
    assert_eq!(taken(&server), 0);
}

/// The holder learns that it was gone, and so does the one that got it in memory.
#[tokio::test]
async fn what_was_gone_is_lost_for_both() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.semaphore("x");
    x.try_set_permits(1).await.expect("answered");
    let first = x.acquire(1).await.expect("free");
    let second = called(&client, &x, 1).await;
    let _: u32 = server.ask(&["DEL", "{x}:timeout"]);
    let released = first.release().await;
    assert!(matches!(released, Err(leasehold::Error::Lost { .. })), "{released:?}");
    let _: String = server.ask(&["SET", "x", "1"]);
    let second = within("the second acquires another one", SOON, second).await.0.expect("no panic");
    if second.check().await.is_ok() {
        assert_eq!(taken(&server), 1);
    } else {
        assert!(second.is_lost(), "it had what was gone, and knows");
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

/// The mark of a waiter that wants all permits ends the rows of the others.
#[tokio::test]
async fn until_a_large_request_waits_elsewhere() {
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
    let first = x.acquire(1).await.expect("free");
    let id = first.id().to_owned();
    let second = called(&client, &x, 1).await;
    first.release().await.expect("held until then");
    assert_ne!(within("the second", SOON, second).await.0.expect("no panic").id(), id);
}

/// The client remembers what its callers have kept while it uses the semaphore.
#[tokio::test]
async fn returned_permits_of_a_plain_semaphore() {
    let server = Server::start();
    let client = plain(&server).await;
    let x = client.plain_semaphore("x");
    let wait = |n| {
        let x = x.clone();
        tokio::spawn(async move { x.acquire(n).await.expect("they are released") })
    };
    let first = wait(2);
    until("it waits", SOON, || waits(&client) == 1).await;
    let second = wait(2);
    until("both wait", SOON, || waits(&client) == 2).await;
    x.try_set_permits(2).await.expect("answered");
    within("the first", SOON, first).await.0.expect("no panic");
    let third = wait(1);
    until("two wait", SOON, || waits(&client) == 2).await;
    let changes = server.calls("incrby");
    x.release(2).await.expect("there is one");
    within("the second", SOON, second).await.0.expect("no panic");
    assert_eq!(server.calls("incrby"), changes, "without a request");
    x.release(2).await.expect("there is one");
    within("the third", SOON, third).await.0.expect("no panic");
    assert_eq!((server.calls("incrby"), x.available().await.expect("answered")), (changes + 2, 1));
}
