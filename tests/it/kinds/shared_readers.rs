//! Readers of one client that come soon after each other share one hold on the server.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Error, Lost, Owner, ReadGuard, RwLock, RwState};

use crate::{
    kinds::family::{Way as Kind, clean, idle},
    kinds::family_faults,
    support::{
        Server, Stopwatch, before, behind, client, ms, plain, poll_once,
        proxy::{Fault, Mode, Rule, Way, Which},
        until, within,
    },
};

const SOON: Duration = ms(2_000);

/// For somebody else each time.
fn lock(client: &Client) -> RwLock {
    client.rw_lock("x").owner(&Owner::new())
}

fn script(server: &Server, name: &str) -> Which {
    family_faults::script(server, Kind::Read, name)
}

/// Two that share, the first of them with these settings: the second must come in time, which a busy machine may not let it.
async fn two(client: &Client, with: impl Fn(RwLock) -> RwLock) -> (ReadGuard, ReadGuard) {
    let started = Stopwatch::start();
    loop {
        assert!(started.elapsed() < ms(20_000), "they never share");
        // Its `max_hold` may end before it is here, or before the second has come.
        let first = match with(lock(client)).read().await {
            Err(Error::Lost { reason: Lost::MaxHold, .. }) => continue,
            first => first.expect("free"),
        };
        let second = lock(client).read().await.expect("shared");
        if first.id() == second.id() {
            return (first, second);
        }
        let unlocked = first.unlock().await;
        let is_capped = matches!(unlocked, Err(Error::Lost { reason: Lost::MaxHold, .. }));
        assert!(unlocked.is_ok() || is_capped, "{unlocked:?}");
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
    let started = Stopwatch::start();
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

/// The outer guard is given back while an inner acquisition is under way, which is cancelled then.
#[tokio::test]
async fn an_inner_acquisition_that_is_cancelled_ends_nothing() {
    let server = Server::start();
    let (renew, proxy) = (script(&server, "renew"), before(&server)); // nested reads send it, too
    let one = behind(&proxy, |builder| builder).await;
    let owner = Owner::new();
    let (first, second) = two(&one, |lock| lock.owner(&owner)).await;
    proxy.rule(Rule::new(renew, Fault::Delay(Way::There, ms(300))));
    let inner = tokio::spawn({
        let lock = one.rw_lock("x").owner(&owner);
        async move { lock.read().await }
    });
    until("it to be under way", SOON, || first.holds() == 2).await;
    let mut unlocking = Box::pin(first.unlock());
    assert!(poll_once(unlocking.as_mut()).is_pending());
    inner.abort();
    within("the answer", ms(5_000), unlocking).await.0.expect("it was there all the time");
    second.check().await.expect("still ours");
    second.unlock().await.expect("ours to the end");
    idle(&one).await;
    clean(&server, &plain(&server).await).await;
}

/// Gives back both at the same moment, from two threads.
async fn at_once(one: ReadGuard, other: ReadGuard) -> [Result<(), Error>; 2] {
    let barrier = Arc::new(Barrier::new(2));
    let unlocking = [one, other].map(|guard| {
        let barrier = Arc::clone(&barrier);
        tokio::spawn(async move {
            barrier.wait();
            guard.unlock().await
        })
    });
    let [one, other] = unlocking;
    [one.await.expect("no panic"), other.await.expect("no panic")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guards_of_one_owner_given_back_at_once_were_both_its_own() {
    let server = Server::start();
    let one = plain(&server).await;
    for _ in 0..300 {
        let owner = Owner::new();
        let (outer, other) = two(&one, |lock| lock.owner(&owner)).await;
        let inner = one.rw_lock("x").owner(&owner).read().await.expect("nested");
        for answer in at_once(outer, inner).await {
            answer.expect("ours to the end");
        }
        other.unlock().await.expect("ours to the end");
    }
    idle(&one).await;
    let total = one.stats().total;
    assert_eq!((total.lost, total.released), (0, total.acquired));
    clean(&server, &one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_lost_and_goes_at_the_same_moment_takes_nothing_along() {
    let server = Server::start();
    let one = plain(&server).await;
    for _ in 0..100 {
        // So short that the client waits for nothing else. The second reader joins only after a further request, so on a busy machine
        // the first may be lost before that. Then they do not share, and `two` tries again.
        let (lost, other) = two(&one, |lock| lock.max_hold(ms(8))).await;
        lost.lost().await;
        let [lost, other] = at_once(lost, other).await;
        assert!(lost.is_err());
        other.expect("ours to the end");
    }
    idle(&one).await;
    clean(&server, &one).await;
}

/// The reply about an inner acquisition, or the request, is lost; all others are given back meanwhile.
#[tokio::test]
async fn an_inner_release_that_is_lost_is_still_of_something_that_was_there() {
    for fault in [Fault::Cut(Way::There), Fault::Cut(Way::Back), Fault::Swallow(Way::There)] {
        let server = Server::start();
        let (release, proxy) = (script(&server, "release"), before(&server));
        let one = behind(&proxy, |builder| builder.command_timeout(ms(500))).await;
        let owner = Owner::new();
        let (outer, other) = two(&one, |lock| lock.owner(&owner)).await;
        let inner = one.rw_lock("x").owner(&owner).read().await.expect("nested");
        proxy.rule(Rule::new(release, fault));
        let mut unlocking = Vec::new();
        for guard in [inner, outer, other] {
            unlocking.push(tokio::spawn(guard.unlock()));
            tokio::task::yield_now().await;
        }
        for unlocking in unlocking {
            let answer = within("the answer", ms(10_000), unlocking).await.0.expect("no panic");
            answer.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        }
        idle(&one).await;
        assert!(!server.exists("x"));
    }
}

/// What this client knows to be gone is not had by anybody who comes later.
#[tokio::test]
async fn nobody_joins_what_is_known_to_be_gone() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    for by_force in [true, false] {
        let (first, second) = two(&one, |lock| lock).await;
        if by_force {
            assert!(lock(&one).force_unlock().await.expect("answered"));
        } else {
            let _: u32 = server.ask(&["DEL", "x"]);
            assert!(matches!(first.check().await, Err(Error::Lost { .. })));
            assert!(second.is_lost(), "all are told by what one has found");
        }
        let third = lock(&one).read().await.expect("free");
        assert!(third.id() != first.id() && third.check().await.is_ok());
        assert!(lock(&other).try_write().await.expect("answered").is_none());
        third.unlock().await.expect("ours to the end");
        drop((first, second));
        idle(&one).await;
    }
    server.ask::<()>(&["FLUSHALL"]);
    clean(&server, &one).await;
}

/// One has asked for a long lease and left; the last of them tries to give it back for as long as that.
#[tokio::test]
async fn a_long_lease_of_one_is_given_back_by_the_last() {
    let server = Server::start();
    script(&server, "release");
    let proxy = before(&server);
    let one = behind(&proxy, |builder| builder.watchdog(ms(1_000)).command_timeout(ms(200))).await;
    let (first, second) = two(&one, |lock| lock).await;
    first.extend(ms(600_000)).await.expect("ours");
    first.unlock().await.expect("ours to the end");
    proxy.set(Mode::Swallow);
    drop(second);
    tokio::time::sleep(ms(2_000)).await; // a watchdog's lease itself
    assert_eq!(one.stats().now.releasing, 1, "it tries on");
    proxy.set(Mode::Pass);
    proxy.cut_all();
    until("it to be given back", ms(5_000), || !server.exists("x")).await;
    idle(&one).await;
}

/// One is lost by its `max_hold` and keeps its guard: when the other has left, the lock is free at the end of its lease.
#[tokio::test]
async fn a_lost_one_that_stays_keeps_it_for_no_longer_than_a_lease() {
    let server = Server::start();
    let one = client(&server, |builder| builder.watchdog(ms(1_500))).await;
    let (lost, other) = two(&one, |lock| lock.max_hold(ms(100))).await;
    tokio::time::sleep(ms(2_500)).await; // its lease itself, and a renewal of the other
    assert!(lost.is_lost());
    other.unlock().await.expect("ours to the end");
    until("the end of the lease", ms(3_000), || !server.exists("x")).await;
    drop(lost);
    idle(&one).await;
}

/// Who asks nobody lets others run all the same.
#[tokio::test]
async fn a_loop_of_readers_lets_others_run() {
    let server = Server::start();
    let one = plain(&server).await;
    let has_run = Arc::new(AtomicBool::new(false));
    let first = lock(&one).read().await.expect("free");
    let others = tokio::spawn({
        let has_run = Arc::clone(&has_run);
        async move { has_run.store(true, Ordering::Relaxed) }
    });
    let mut turns = 0;
    while !has_run.load(Ordering::Relaxed) {
        drop(lock(&one).read().await.expect("shared"));
        turns += 1;
        assert!(turns < 1_000, "nobody else runs");
    }
    others.await.expect("no panic");
    drop(first);
    idle(&one).await;
    clean(&server, &one).await;
}

#[test]
fn nothing_is_left_where_the_runtime_has_ended() {
    let server = Server::start();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (ends, stays) = (runtime(), runtime());
    let one = ends.block_on(client(&server, |builder| builder.watchdog(ms(1_500))));
    let (first, second) = ends.block_on(two(&one, |lock| lock));
    ends.shutdown_timeout(ms(500));
    stays.block_on(async {
        for guard in [first, second] {
            assert!(within("the answer", SOON, guard.unlock()).await.0.is_err());
        }
        assert_eq!(one.stats().now.releasing, 0);
    });
}

/// Forced open by another client, which writes then. A reader that asks after that must not have a part in what is gone, as long as
/// this client can know it.
#[tokio::test]
async fn nobody_joins_beside_a_writer_that_was_granted_before() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    for _ in 0..20 {
        let first = lock(&one).read().await.expect("free");
        assert!(lock(&other).force_unlock().await.expect("answered"));
        let writer = lock(&other).try_write().await.expect("answered").expect("forced open");
        let second = lock(&one).try_read().await.expect("answered");
        assert!(second.is_none(), "{second:?} beside {writer:?}");
        assert!(!writer.is_lost());
        assert!(matches!(first.unlock().await, Err(Error::Lost { .. })));
        writer.unlock().await.expect("ours");
    }
    idle(&one).await;
    clean(&server, &one).await;
}

/// Forced open by another client while a writer of the same client waits. Its grant shows that the readers have lost the lock.
#[tokio::test]
async fn no_reader_is_certain_beside_a_writer_of_its_own_client() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let (first, second) = two(&one, |lock| lock).await;
    let writing = tokio::spawn({
        let lock = lock(&one);
        async move { lock.write().await.expect("in the end") }
    });
    until("it to wait", SOON, || one.stats().total.refused >= 2).await;
    assert!(lock(&other).force_unlock().await.expect("answered"));
    let writer = within("its turn", SOON, writing).await.0.expect("no panic");
    assert!(first.is_lost() && second.is_lost() && !writer.is_lost());
    writer.unlock().await.expect("ours");
    drop((first, second));
    idle(&one).await;
}
