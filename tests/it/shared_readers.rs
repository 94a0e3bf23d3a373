//! Readers of one client that come soon after each other share one hold on the server.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard, Lost, Owner, RwLock, RwState};

use crate::{
    family::{clean, idle},
    support::{Server, client, ms, plain, until, within},
};

const SOON: Duration = ms(2_000);

/// For somebody else each time.
fn lock(client: &Client) -> RwLock {
    client.rw_lock("x").owner(&Owner::new())
}

/// Two that share, the first of them with these settings: the second must come in time, which a busy machine may not let it.
async fn two(client: &Client, with: impl Fn(RwLock) -> RwLock) -> (Guard, Guard) {
    let started = Instant::now();
    loop {
        let first = with(lock(client)).read().await.expect("free");
        let second = lock(client).read().await.expect("shared");
        if first.id() == second.id() {
            return (first, second);
        }
        assert!(started.elapsed() < ms(20_000), "they never share");
        first.unlock().await.expect("ours");
        second.unlock().await.expect("ours");
    }
}

/// How many the server knows of.
async fn readers(client: &Client) -> usize {
    match lock(client).inspect().await.expect("answered") {
        RwState::Read(readers) => readers.len(),
        RwState::Free => 0,
        state => panic!("{state:?}"),
    }
}

#[tokio::test]
async fn the_last_of_them_gives_it_back() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    for first_goes_first in [true, false] {
        let (first, second) = two(&one, |lock| lock).await;
        assert_eq!(readers(&other).await, 1);
        let (goes, stays) = if first_goes_first { (first, second) } else { (second, first) };
        goes.unlock().await.expect("ours to the end");
        assert!(lock(&other).try_write().await.expect("answered").is_none());
        stays.check().await.expect("still ours");
        stays.unlock().await.expect("ours to the end");
        lock(&other).try_write().await.expect("answered").expect("free").unlock().await.expect("ours");
    }
    idle(&one).await;
    clean(&server, &other).await;
}

#[tokio::test]
async fn dropped_guards_are_given_back_by_the_last_too() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let (first, second) = two(&one, |lock| lock).await;
    drop(first);
    assert!(lock(&other).try_write().await.expect("answered").is_none());
    second.check().await.expect("still ours");
    drop(second);
    let writer = within("its end", SOON, lock(&other).write()).await.0.expect("free");
    writer.unlock().await.expect("ours");
    idle(&one).await;
    clean(&server, &other).await;
}

/// They ask nobody, so they must not do it for long: a writer that has come to wait would never have its turn.
#[tokio::test]
async fn who_comes_later_asks_the_server() {
    let server = Server::start();
    let one = plain(&server).await;
    let first = lock(&one).read().await.expect("free");
    let started = Instant::now();
    loop {
        let second = lock(&one).read().await.expect("shared");
        let is_late = first.id() != second.id();
        assert!(is_late || started.elapsed() < SOON, "it shares for ever");
        second.unlock().await.expect("ours");
        if is_late {
            break;
        }
    }
    first.unlock().await.expect("ours");
    idle(&one).await;
    clean(&server, &one).await;
}

#[tokio::test]
async fn all_of_them_are_told_that_it_is_gone() {
    let server = Server::start();
    let one = client(&server, |builder| builder.watchdog(ms(1_500))).await;
    let (first, second) = two(&one, |lock| lock).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    assert!(matches!(first.unlock().await, Err(Error::Lost { reason: Lost::Removed, .. })));
    assert_eq!(within("the news", SOON, second.lost()).await.0, Lost::Removed);
    drop(second);
    until("them to be done with", SOON, || one.stats().now.releasing == 0).await;
    let (first, second) = two(&one, |lock| lock).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    for guard in [&first, &second] {
        assert_eq!(within("the watchdog", SOON, guard.lost()).await.0, Lost::Removed);
    }
    drop((first, second));
    idle(&one).await;
    server.ask::<()>(&["FLUSHALL"]);
    clean(&server, &one).await;
}

/// One that is lost gives nothing back as long as others have it.
#[tokio::test]
async fn the_end_of_one_is_not_that_of_the_others() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let (first, second) = two(&one, |lock| lock.max_hold(ms(200))).await;
    assert_eq!(within("its end", SOON, first.lost()).await.0, Lost::MaxHold);
    assert!(matches!(first.unlock().await, Err(Error::Lost { .. })));
    until("it to be given up", SOON, || one.stats().now.releasing == 0).await;
    second.check().await.expect("still ours");
    assert!(lock(&other).try_write().await.expect("answered").is_none());
    second.unlock().await.expect("ours to the end");
    lock(&other).try_write().await.expect("answered").expect("free").unlock().await.expect("ours");
    idle(&one).await;
    clean(&server, &other).await;
}

#[tokio::test]
async fn inner_acquisitions_are_each_ones_own() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let owner = Owner::new();
    let (first, second) = two(&one, |lock| lock.owner(&owner)).await;
    let inner = one.rw_lock("x").owner(&owner).read().await.expect("nested");
    assert_eq!((first.holds(), second.holds()), (2, 1));
    second.unlock().await.expect("ours to the end");
    first.unlock().await.expect("ours to the end");
    assert!(lock(&other).try_write().await.expect("answered").is_none());
    inner.unlock().await.expect("ours to the end");
    lock(&other).try_write().await.expect("answered").expect("free").unlock().await.expect("ours");
    idle(&one).await;
    clean(&server, &other).await;
}

/// What a writer reads below its own writing is nobody else's.
#[tokio::test]
async fn nobody_shares_what_is_read_below_a_writer() {
    let server = Server::start();
    let one = plain(&server).await;
    let rw = lock(&one);
    for _ in 0..20 {
        let writer = rw.write().await.expect("free");
        let below = rw.read().await.expect("below its own");
        assert!(lock(&one).try_read().await.expect("answered").is_none());
        below.unlock().await.expect("ours");
        writer.unlock().await.expect("ours");
        // And a reader that others may join is not what it gets below its next writing.
        lock(&one).read().await.expect("free").unlock().await.expect("ours");
    }
    idle(&one).await;
    clean(&server, &one).await;
}

/// A turn costs a part of a script only: of those that are told together some come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_side_by_side_cost_less_than_a_script_each() {
    const TURNS: u64 = 200;
    let server = Server::start();
    let one = plain(&server).await;
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let lock = lock(&one);
            tokio::spawn(async move {
                for _ in 0..TURNS {
                    lock.read().await.expect("shared").unlock().await.expect("ours to the end");
                }
            })
        })
        .collect();
    for task in tasks {
        within("its turns", ms(30_000), task).await.0.expect("no panic");
    }
    let (turns, requests) = (16 * TURNS, one.stats().total.requests);
    assert!(requests < turns, "{requests} requests for {turns} turns");
    idle(&one).await;
    clean(&server, &one).await;
}

#[tokio::test]
async fn closing_gives_back_what_they_share() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let guards = two(&one, |lock| lock).await;
    one.close().await.expect("in time");
    assert!(guards.0.is_lost() && guards.1.is_lost());
    assert!(!server.exists("x"));
    drop(guards);
    clean(&server, &other).await;
}
