//! What each kind of lock promises, wherever the server is.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lost, MultiLock, Once};
use tokio::task::JoinHandle;

use super::{SOON, place::Place, plain};
use crate::{
    kinds::family::{Held, How, Way},
    kinds::latch::opens,
    support::{ms, until, within},
};

const WAYS: [Way; 5] = [Way::Plain, Way::Fenced, Way::Fair, Way::Read, Way::Write];

/// Places are shared, so each case has names of its own; each way has its own, too.
fn name(case: &str, way: Way) -> String {
    format!("{case}, {way:?}")
}

/// A lock that excludes this one.
fn against(way: Way) -> Way {
    if way == Way::Read { Way::Write } else { way }
}

async fn try_take(way: Way, client: &Client, name: &str) -> Option<Held> {
    way.take(client, name, How::for_other().patience(Duration::ZERO)).await.expect("the server replies")
}

/// Waits for the lock in a task. That task has looked again after it subscribed, so it waits for nothing but a message.
async fn waiting(way: Way, client: &Client, name: &str) -> JoinHandle<Held> {
    let looked = client.stats().total.refused;
    let waiting = tokio::spawn({
        let (client, name) = (client.clone(), name.to_owned());
        async move { way.lock(&client, &name).await }
    });
    until("it to have looked", SOON, || client.stats().total.refused >= looked + 2).await;
    waiting
}

async fn is_clean(place: &Place, clients: &[&Client], names: &[String]) {
    for client in clients {
        let idle = || {
            let now = client.stats().now;
            (now.holds, now.waiting, now.subscriptions, now.releasing) == (0, 0, 0, 0)
        };
        until("the client to be idle", SOON, idle).await;
    }
    for name in names {
        assert!(!place.exists(name), "{name}");
    }
}

pub(super) async fn every_kind_excludes_others_and_re_enters(place: &Place) {
    let (client, other) = (plain(place).await, plain(place).await);
    let names = WAYS.map(|way| name("excludes", way));
    for (way, name) in WAYS.into_iter().zip(&names) {
        let outer = way.lock(&client, name).await;
        for client in [&client, &other] {
            assert!(try_take(against(way), client, name).await.is_none(), "{way:?}");
        }
        let inner = way.lock(&client, name).await;
        assert_eq!((outer.holds(), inner.id()), (2, outer.id()), "{way:?}");
        outer.unlock().await.expect("held");
        assert!(try_take(against(way), &other, name).await.is_none(), "{way:?}: one level is left");
        inner.unlock().await.expect("held");
        let next = try_take(against(way), &other, name).await.expect("it is free");
        next.unlock().await.expect("held");
    }
    is_clean(place, &[&client, &other], &names).await;
}

pub(super) async fn a_release_of_every_kind_wakes_a_waiter_elsewhere(place: &Place) {
    let (holder, waiter) = (plain(place).await, plain(place).await);
    let names = WAYS.map(|way| name("wakes", way));
    for (way, name) in WAYS.into_iter().zip(&names) {
        let held = against(way).lock(&holder, name).await;
        let waiting = waiting(way, &waiter, name).await;
        held.unlock().await.expect("held");
        let (next, took) = within("to be woken", ms(1_000), waiting).await;
        next.expect("no panic").unlock().await.expect("held");
        assert!(took < ms(500), "{way:?}: {took:?}");
    }
    is_clean(place, &[&holder, &waiter], &names).await;
}

pub(super) async fn every_kind_is_free_when_its_lease_ends(place: &Place) {
    let (holder, waiter) = (plain(place).await, plain(place).await);
    let names = WAYS.map(|way| name("expires", way));
    for (way, name) in WAYS.into_iter().zip(&names) {
        let started = Instant::now();
        let held =
            against(way).take(&holder, name, How::lease(ms(400))).await.expect("it replies").expect("it is free");
        let next = within("the end of the lease", SOON, way.lock(&waiter, name)).await.0;
        assert!(started.elapsed() >= ms(400), "{way:?}: {:?}", started.elapsed());
        assert!(held.is_lost(), "{way:?}");
        assert_eq!(held.lost().await, Lost::Expired);
        next.unlock().await.expect("held");
        assert!(matches!(held.unlock().await, Err(Error::Lost { reason: Lost::Expired, .. })), "{way:?}");
    }
    is_clean(place, &[&holder, &waiter], &names).await;
}

pub(super) async fn every_kind_is_renewed_and_notices_its_loss(place: &Place) {
    const LEASE: Duration = ms(3_000);
    let client = place.client(|builder| builder.watchdog(LEASE)).await;
    let (names, mut held) = (WAYS.map(|way| name("renewed", way)), Vec::new());
    for (way, name) in WAYS.into_iter().zip(&names) {
        held.push(way.lock(&client, name).await);
    }
    tokio::time::sleep(LEASE + ms(500)).await;
    for (held, name) in held.into_iter().zip(&names) {
        held.check().await.expect("renewed");
        let _: u32 = place.ask(name, &["DEL", name]);
        let (lost, _) = within("to notice", LEASE / 3 + ms(200), held.lost()).await;
        assert_eq!(lost, Lost::Removed, "{name}");
        assert!(matches!(held.unlock().await, Err(Error::Lost { .. })));
    }
    is_clean(place, &[&client], &names).await;
}

async fn force(way: Way, client: &Client, name: &str) -> bool {
    let forced = match way {
        Way::Plain => client.lock(name).force_unlock().await,
        Way::Fenced => client.fenced_lock(name).force_unlock().await,
        Way::Fair => client.fair_lock(name).force_unlock().await,
        Way::Read | Way::Write => client.rw_lock(name).force_unlock().await,
    };
    forced.expect("the server replies")
}

pub(super) async fn every_kind_can_be_forced_open(place: &Place) {
    let (holder, waiter) = (plain(place).await, plain(place).await);
    let names = WAYS.map(|way| name("forced", way));
    for (way, name) in WAYS.into_iter().zip(&names) {
        let held = against(way).lock(&holder, name).await;
        let waiting = waiting(way, &waiter, name).await;
        assert!(force(way, &waiter, name).await, "{way:?}");
        let next = within("to be woken", SOON, waiting).await.0.expect("no panic");
        assert!(held.check().await.is_err_and(|error| error.is_lost()), "{way:?}");
        next.unlock().await.expect("held");
        assert!(!force(way, &waiter, name).await, "{way:?}: it is free");
        drop(held);
    }
    is_clean(place, &[&holder, &waiter], &names).await;
}

pub(super) async fn tokens_grow_and_fence_writes(place: &Place) {
    let (client, other) = (plain(place).await, plain(place).await);
    let (name, result) = ("{tokens}", "{tokens}:result");
    let first = client.fenced_lock(name).lock().await.expect("it is free");
    let token = first.token();
    first.write_if_held(result, "one").await.expect("held");
    let nested = client.fenced_lock(name).lock().await.expect("re-entered");
    assert_eq!(nested.token(), token);
    nested.unlock().await.expect("held");
    assert!(other.fenced_lock(name).force_unlock().await.expect("the server replies"));
    let second = other.fenced_lock(name).lock().await.expect("it is free");
    assert!(second.token() > token);
    assert!(first.write_if_held(result, "late").await.is_err_and(|error| error.is_lost()));
    assert_eq!(place.ask::<String>(name, &["GET", result]), "one");
    drop(first);
    second.unlock().await.expect("held");
    is_clean(place, &[&client, &other], &[name.to_owned()]).await;
}

pub(super) async fn readers_share_and_a_writer_becomes_one(place: &Place) {
    let (one, other) = (plain(place).await, plain(place).await);
    let name = "readers";
    let readers = [one.rw_lock(name).read().await.expect("free"), other.rw_lock(name).read().await.expect("shared")];
    assert!(matches!(one.rw_lock(name).write().await, Err(Error::Upgrade { .. })));
    assert!(other.rw_lock(name).non_reentrant().try_write().await.expect("it replies").is_none());
    for reader in readers {
        reader.unlock().await.expect("held");
    }
    let writing = one.rw_lock(name).write().await.expect("it is free");
    assert!(other.rw_lock(name).try_read().await.expect("it replies").is_none());
    let reading = writing.downgrade().await.expect("held");
    other.rw_lock(name).try_read().await.expect("it replies").expect("shared").unlock().await.expect("held");
    assert!(other.rw_lock(name).try_write().await.expect("it replies").is_none());
    reading.unlock().await.expect("held");
    is_clean(place, &[&one, &other], &[name.to_owned()]).await;
}

pub(super) async fn a_fair_lock_goes_to_the_first_waiter(place: &Place) {
    let (one, other, name) = (plain(place).await, plain(place).await, "in order");
    let held = one.fair_lock(name).lock().await.expect("it is free");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for number in 0..6 {
        let (lock, tell) = ([&one, &other][number % 2].fair_lock(name), tell.clone());
        waiters.push(tokio::spawn(async move {
            let guard = lock.lock().await.expect("it replies");
            tell.send(number).expect("the test waits");
            guard.unlock().await.expect("held");
        }));
        let mut places = 0;
        let started = Instant::now();
        while places <= number && started.elapsed() < SOON {
            places = one.fair_lock(name).waiters().await.expect("it replies").len();
        }
        assert_eq!(places, number + 1);
    }
    held.unlock().await.expect("held");
    for number in 0..6 {
        assert_eq!(within("the next one", SOON, told.recv()).await.0, Some(number));
    }
    for waiter in waiters {
        waiter.await.expect("no panic");
    }
    is_clean(place, &[&one, &other], &[name.to_owned()]).await;
}

pub(super) async fn several_locks_are_held_all_or_none(place: &Place) {
    let (one, other) = (plain(place).await, plain(place).await);
    let names = ["several-a", "several-b", "several-c"].map(str::to_owned);
    let all = |client: &Client| MultiLock::new(names.each_ref().map(|name| client.mutex(name)));
    let held = one.mutex(&names[2]).lock().await.expect("it is free");
    assert!(all(&other).try_lock().await.expect("it replies").is_none());
    until("the others to be released", SOON, || !place.exists(&names[0]) && !place.exists(&names[1])).await;
    let waiting = tokio::spawn({
        let all = all(&other);
        async move { all.lock().await }
    });
    until("it to wait", SOON, || other.stats().now.waiting > 0).await;
    held.unlock().await.expect("held");
    let guard = within("all of them", SOON, waiting).await.0.expect("no panic").expect("they are free");
    assert!(all(&one).try_lock().await.expect("it replies").is_none());
    guard.unlock().await.expect("held");
    is_clean(place, &[&one, &other], &names).await;
}

pub(super) async fn a_hold_has_a_least_and_a_greatest_time(place: &Place) {
    let (one, other) = (plain(place).await, plain(place).await);
    let names = ["least", "greatest"].map(str::to_owned);
    let started = Instant::now();
    one.mutex(&names[0]).min_hold(ms(400)).lock().await.expect("it is free").unlock().await.expect("held");
    let next = within("the least time", SOON, other.mutex(&names[0]).into_future()).await.0.expect("it is free");
    assert!(started.elapsed() >= ms(400), "{:?}", started.elapsed());
    next.unlock().await.expect("held");
    let held = one.mutex(&names[1]).max_hold(ms(300)).lock().await.expect("it is free");
    let (lost, _) = within("the greatest time", SOON, held.lost()).await;
    assert_eq!(lost, Lost::MaxHold);
    drop(held);
    other.mutex(&names[1]).lock().await.expect("it is free").unlock().await.expect("held");
    is_clean(place, &[&one, &other], &names).await;
}

pub(super) async fn one_leads_and_work_is_done_once(place: &Place) {
    let (one, other) = (plain(place).await, plain(place).await);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let campaign = |client: &Client, number: u32| {
        let tell = tell.clone();
        tokio::spawn(client.leader("led").run::<(), _>(async move |_guard: &leasehold::Guard| {
            tell.send(number).expect("the test waits");
            std::future::pending().await
        }))
    };
    let campaigns = [campaign(&one, 1), campaign(&other, 2)];
    let first = within("a leader", SOON, told.recv()).await.0.expect("one of them");
    let (leads, follows) = if first == 1 { (&one, &other) } else { (&other, &one) };
    leads.clone().shutdown(SOON).await.expect("it replies");
    assert_eq!(within("the next leader", SOON, told.recv()).await.0, Some(3 - first));
    let once = async || follows.mutex("done once").run_once_per(ms(60_000), async || 7).await;
    assert!(matches!(once().await.expect("it replies"), Once::Ran(7)));
    assert!(matches!(once().await.expect("it replies"), Once::AlreadyRan { .. }));
    follows.clone().shutdown(SOON).await.expect("it replies");
    for campaign in campaigns {
        assert!(matches!(campaign.await.expect("no panic"), Err(Error::Closed)));
    }
    assert!(!place.exists("led"));
}

pub(super) async fn a_latch_lets_all_pass_when_it_is_counted_down(place: &Place) {
    let (one, other, name) = (plain(place).await, plain(place).await, "start");
    for _ in 0..3 {
        assert!(one.latch(name).try_set_count(2).await.expect("it replies"));
        assert!(!other.latch(name).try_set_count(2).await.expect("it replies"));
        assert!(!opens(&other.latch(name), ms(20)).await);
        let looked = other.stats().total.refused;
        let waiting: Vec<_> = (0..20)
            .map(|n| {
                let latch = [&other, &other, &one][n % 3].latch(name);
                tokio::spawn(async move { latch.wait().await })
            })
            .collect();
        until("them to have looked", SOON, || other.stats().total.refused >= looked + 2).await;
        assert_eq!((one.latch(name).count_down().await.ok(), place.ask::<u32>(name, &["GET", name])), (Some(1), 1));
        assert!(waiting.iter().all(|one| !one.is_finished()));
        assert_eq!(
            (other.latch(name).count_down().await.ok(), other.latch(name).count().await.ok()),
            (Some(0), Some(0))
        );
        for one in waiting {
            let (passed, took) = within("to pass", SOON, one).await;
            passed.expect("no panic").expect("it is open");
            assert!(took < ms(1_000), "{took:?}");
        }
        assert!(one.held().is_empty() && !one.latch(name).delete().await.expect("it replies"));
    }
    is_clean(place, &[&one, &other], &[name.to_owned()]).await;
}

pub(super) async fn permits_are_acquired_all_or_none_and_return_when_their_holder_dies(place: &Place) {
    let (one, other, name) = (plain(place).await, plain(place).await, "permits");
    let (mine, theirs) = (one.semaphore(name), other.semaphore(name));
    mine.set_permits(4).await.expect("it replies");
    let mut three = mine.acquire(3).await.expect("free");
    assert!(theirs.try_acquire(2).await.expect("it replies").is_none());
    let looked = other.stats().total.refused;
    let waiting = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.acquire(3).await }
    });
    until("it to have looked", SOON, || other.stats().total.refused >= looked + 2).await;
    assert!(three.split(2).expect("it has three").release().await.is_ok() && !three.is_lost());
    let (permits, took) = within("to be woken", SOON, waiting).await;
    permits.expect("no panic").expect("acquired").release().await.expect("held");
    assert!(took < ms(1_000), "{took:?}");
    three.release().await.expect("held");
    let forgotten = mine.clone().lease(ms(700)).acquire(4).await.expect("free");
    let next = within("the end of the lease", SOON, theirs.acquire(4)).await.0.expect("acquired");
    assert!(forgotten.release().await.is_err());
    next.release().await.expect("held");
    assert_eq!(place.ask::<u32>(name, &["GET", name]), 4);
    let _: u32 = place.ask(name, &["DEL", name]);
    is_clean(place, &[&one, &other], &[name.to_owned()]).await;
}

pub(super) async fn plain_permits_are_acquired_all_or_none_and_go_to_waiters_elsewhere(place: &Place) {
    let (one, other, name) = (plain(place).await, plain(place).await, "plain permits");
    let (mine, theirs) = (one.plain_semaphore(name), other.plain_semaphore(name));
    assert!(mine.try_set_permits(4).await.expect("it replies"));
    assert!(!theirs.try_set_permits(4).await.expect("it replies"));
    mine.acquire(3).await.expect("free");
    assert!(!theirs.try_acquire(2).await.expect("it replies"));
    let looked = other.stats().total.refused;
    let waiting = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.acquire(3).await }
    });
    until("it to have looked", SOON, || other.stats().total.refused >= looked + 2).await;
    mine.release(2).await.expect("it replies");
    let (acquired, took) = within("to be woken", SOON, waiting).await;
    acquired.expect("no panic").expect("acquired");
    assert!(took < ms(1_000), "{took:?}");
    assert_eq!((one.held().len(), other.held().len()), (0, 0));
    theirs.release(4).await.expect("it replies");
    assert_eq!(mine.with(1, async || place.ask::<u32>(name, &["GET", name])).await.expect("free"), 3);
    assert_eq!((theirs.drain().await.ok(), mine.available().await.ok()), (Some(4), Some(0)));
    let _: u32 = place.ask(name, &["DEL", name]);
    is_clean(place, &[&one, &other], &[name.to_owned()]).await;
}
