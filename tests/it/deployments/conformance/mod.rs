//! What the lock promises, wherever the server is: one list of cases, each tried in every place.

mod kinds;
mod place;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Error, Lost, Owner};

use crate::support::{ms, poll_and_drop, until, within};
use kinds::*;
use place::Place;

/// How long something may take that is one round trip: in a cluster of six processes on a busy machine.
const SOON: Duration = ms(5_000);

/// Each case is a function below; places are shared, so each has names of its own.
macro_rules! cases {
    ($(# $mark:tt)? $place:ident: $($case:ident)*) => {
        cases! { @each [$(# $mark)?] $place: $($case)* }
    };
    (@each $mark:tt $place:ident: $($case:ident)*) => {
        $(cases! { @one $mark $place $case })*
    };
    (@one [$($mark:tt)*] $place:ident $case:ident) => {
        $($mark)*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            super::$case(&super::Place::$place().await).await;
        }
    };
}

/// The list of cases. What distinguishes some places from others is the connection only: there, `few` run, and the others at night.
macro_rules! cases_in {
    ($which:ident $place:ident) => {
        cases! { $place:
            nested_calls_re_enter
            tasks_of_two_clients_exclude_each_other
            a_release_wakes_who_waits_in_another_client
            closing_gives_everything_back
        }
        cases_in! { @others $which $place:
            calls_dropped_while_the_lock_is_free_leave_nothing
            calls_dropped_while_they_wait_leave_nothing
            what_is_not_a_lock_is_a_conflict
            every_kind_excludes_others_and_re_enters
            a_release_of_every_kind_wakes_a_waiter_elsewhere
            every_kind_is_free_when_its_lease_ends
            every_kind_is_renewed_and_notices_its_loss
            every_kind_can_be_forced_open
            tokens_grow_and_fence_writes
            readers_share_and_a_writer_becomes_one
            a_fair_lock_goes_to_the_first_waiter
            several_locks_are_held_all_or_none
            a_hold_has_a_least_and_a_greatest_time
            one_leads_and_work_is_done_once
            a_latch_lets_all_pass_when_it_is_counted_down
            permits_are_acquired_all_or_none_and_return_when_their_holder_dies
            plain_permits_are_acquired_all_or_none_and_go_to_waiters_elsewhere
        }
    };
    (@others all $place:ident: $($case:ident)*) => {
        cases! { $place: $($case)* }
    };
    (@others few $place:ident: $($case:ident)*) => {
        cases! { #[ignore = "nightly"] $place: $($case)* }
    };
}

/// One module of tests for each place, a line each.
macro_rules! everywhere {
    ($($(#[$when:meta])* $which:ident $place:ident)*) => {
        $($(#[$when])* mod $place {
            cases_in! { $which $place }
        })*
    };
}

everywhere! {
    all alone
    few unix_socket
    #[cfg(feature = "tls")] few tls
    all sentinels
    all cluster
    #[cfg(feature = "tls")] few sentinels_with_tls
    #[cfg(feature = "tls")] few cluster_with_tls
    #[cfg(feature = "test-util")] all memory
}

async fn plain(place: &Place) -> Client {
    place.client(|builder| builder).await
}

/// Nothing of ours remains, neither on the server nor in the client.
async fn clean(place: &Place, client: &Client, name: &str) {
    let idle = || {
        let now = client.stats().now;
        (now.holds, now.waiting, now.subscriptions, now.releasing) == (0, 0, 0, 0)
    };
    until("the client to be idle", SOON, idle).await;
    until("the channel to be left", SOON, || place.listeners(name) == 0).await;
    assert!(!place.exists(name), "{name}: {:?}", place.lock(name));
}

async fn nested_calls_re_enter(place: &Place) {
    let (client, name) = (plain(place).await, "nested");
    let lock = client.lock(name);
    let count = || place.lock(name).into_iter().map(|(_, count)| count).collect::<Vec<_>>();
    let first = lock.lock().await.expect("free");
    assert_eq!((count(), first.holds()), (vec![1], 1));
    let second = lock.lock().await.expect("re-entered");
    let third = lock.try_lock().await.expect("answered").expect("re-entered");
    assert_eq!((count(), first.holds()), (vec![3], 3));
    assert_eq!((place.lock(name)[0].0.as_str(), third.id()), (first.id(), first.id()));
    let stranger = Owner::new();
    assert!(lock.clone().owner(&stranger).try_lock().await.expect("answered").is_none());

    first.unlock().await.expect("ours");
    third.unlock().await.expect("ours");
    assert_eq!(count(), [1]);
    assert!(lock.owner(&stranger).try_lock().await.expect("answered").is_none());
    second.unlock().await.expect("ours");
    clean(place, &client, name).await;
}

async fn calls_dropped_while_the_lock_is_free_leave_nothing(place: &Place) {
    let (client, name) = (plain(place).await, "dropped, free");
    for times in 0.. {
        let done = poll_and_drop(times, client.lock(name).lock()).await;
        clean(place, &client, name).await;
        // On a busy machine the answer can be there at the first poll already.
        if done && times > 1 {
            break;
        }
    }
}

async fn calls_dropped_while_they_wait_leave_nothing(place: &Place) {
    let (client, holder, name) = (plain(place).await, plain(place).await, "dropped, taken");
    for times in 0..12 {
        let guard = holder.lock(name).lock().await.expect("free");
        assert!(!poll_and_drop(times, client.lock(name).lock()).await);
        guard.unlock().await.expect("ours");
    }
    clean(place, &client, name).await;
    clean(place, &holder, name).await;
}

/// Some names, so that in a cluster not all are with one master.
async fn tasks_of_two_clients_exclude_each_other(place: &Place) {
    const NAMES: [&str; 3] = ["turns-a", "turns-b", "turns-c"];
    const TURNS: u32 = 15;
    let clients = [plain(place).await, plain(place).await];
    let inside = NAMES.map(|_| Arc::new(AtomicU32::new(0)));
    let tasks = (0..12).map(|task| {
        let lock = clients[task % 2].lock(NAMES[task % 3]);
        let inside = Arc::clone(&inside[task % 3]);
        tokio::spawn(async move {
            for _ in 0..TURNS {
                let guard = lock.lock().await.expect("granted");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await.expect("ours");
            }
        })
    });
    let all = async {
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no assertion failed");
        }
    };
    within("all turns", ms(30_000), all).await;
    for (client, name) in clients.iter().flat_map(|client| NAMES.map(|name| (client, name))) {
        assert_eq!(client.stats().total.acquired, 6 * u64::from(TURNS));
        clean(place, client, name).await;
    }
}

async fn a_release_wakes_who_waits_in_another_client(place: &Place) {
    let (holder, waiter, name) = (plain(place).await, plain(place).await, "woken");
    let guard = holder.lock(name).lock().await.expect("free");
    let lock = waiter.lock(name);
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to be subscribed", SOON, || place.listeners(name) > 0).await;
    // Once it has looked again after that it waits for nothing but a message.
    until("it to have looked", SOON, || waiter.stats().total.refused >= 2).await;
    guard.unlock().await.expect("ours");
    let (taken, took) = within("to be woken", ms(1_000), waiting).await;
    taken.expect("no panic").expect("granted").unlock().await.expect("ours");
    assert!(took < ms(500), "{took:?}");
    until("the message", SOON, || waiter.stats().total.wakeups >= 1).await; // it may have looked by itself just before
    clean(place, &waiter, name).await;
}

async fn what_is_not_a_lock_is_a_conflict(place: &Place) {
    let (client, name) = (plain(place).await, "not a lock");
    let _: String = place.ask(name, &["SET", name, "x"]);
    let taken = client.lock(name).lock().await;
    assert!(matches!(taken, Err(Error::Conflict { .. })), "{taken:?}");
    assert!(matches!(client.lock(name).inspect().await, Err(Error::Conflict { .. })));
    let _: u32 = place.ask(name, &["DEL", name]);
    drop(client.lock(name).lock().await.expect("free"));
    clean(place, &client, name).await;
}

/// Enough names for every master of a cluster.
async fn closing_gives_everything_back(place: &Place) {
    let client = plain(place).await;
    let names: Vec<_> = (0..12).map(|n| format!("closed-{n}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(client.lock(name).lock().await.expect("free"));
        guards.push(client.lock(name).lock().await.expect("re-entered"));
    }
    let places: HashSet<_> = names.iter().map(|name| place.home_of(name)).collect();
    assert_eq!(places.len(), place.masters(), "the names are badly chosen");
    assert!(names.iter().all(|name| place.lock(name)[0].1 == 2));
    within("closing", SOON, client.clone().close()).await.0.expect("answered");
    assert!(!names.iter().any(|name| place.exists(name)));
    for guard in guards {
        assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::Closed, .. })));
    }
    assert!(matches!(client.lock(&names[0]).lock().await, Err(Error::Closed)));
}
