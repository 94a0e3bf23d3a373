//! One lock over several servers that do not know of each other.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{Builder, Client, Error, Lost, Owner, Quorum, QuorumGuard, QuorumLock};
use tokio::{runtime, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::support::{
    Server, Stopwatch, before, behind, chain, client, late_polls, ms, one_worker, plain, poll_until,
    proxy::{Fault, Mode, Proxy, Rule, Way, Which},
    stall::{Slack, unless_stalled},
    until, within,
};

type Waiter = JoinHandle<leasehold::Result<()>>;

/// Three servers, and a quorum over clients of each with that lease.
struct Three {
    servers: [Server; 3],
}

impl Three {
    fn start() -> Three {
        Three { servers: [Server::start(), Server::start(), Server::start()] }
    }

    async fn quorum(&self) -> Quorum {
        self.with_lease(30_000).await
    }

    async fn with_lease(&self, lease: u64) -> Quorum {
        self.with(|builder| builder.watchdog(ms(lease)).outage_timeout(ms(3_000))).await
    }

    async fn with(&self, settings: impl Fn(Builder) -> Builder) -> Quorum {
        let mut clients = Vec::new();
        for server in &self.servers {
            clients.push(client(server, &settings).await);
        }
        Quorum::new(clients).expect("three servers")
    }

    /// A call of `lock` that waits for an owner of another client, with these timeouts. With that owner's guard.
    async fn waiter(&self, command_timeout: Duration, outage_timeout: Duration) -> (QuorumGuard, Waiter) {
        let guard = lock(&self.quorum().await).lock().await.expect("free");
        let settings = |builder: Builder| builder.command_timeout(command_timeout).outage_timeout(outage_timeout);
        let waits = lock(&self.with(settings).await);
        (guard, tokio::spawn(async move { waits.lock().await.map(drop) }))
    }

    fn holders(&self) -> usize {
        self.servers.iter().filter(|server| server.exists("x")).count()
    }

    async fn free(&self) {
        until("all servers to be free", ms(5_000), || self.holders() == 0).await;
    }
}

fn lock(quorum: &Quorum) -> QuorumLock {
    quorum.lock("x").non_reentrant()
}

#[tokio::test]
async fn a_majority_of_odd_numbers_of_different_servers() {
    let three = Three::start();
    let [a, b, c] = &three.servers;
    let (a, b, c, again) = (plain(a).await, plain(b).await, plain(c).await, plain(a).await);
    for wrong in [vec![], vec![a.clone()], vec![a.clone(), b.clone()], vec![a.clone(), b.clone(), again]] {
        let error = Quorum::new(wrong).expect_err("no quorum");
        assert!(matches!(error, Error::InvalidConfig { setting: "clients", .. }), "{error}");
    }
    Quorum::new([a, b, c]).expect("three servers");
}

#[tokio::test]
async fn it_excludes_others_and_wakes_them() {
    let three = Three::start();
    let (one, two) = (three.quorum().await, three.quorum().await);
    let guard = lock(&one).lock().await.expect("free");
    assert!(guard.nodes() >= 2 && !guard.is_lost() && guard.remaining() > ms(20_000));
    until("the third to have it", ms(3_000), || guard.nodes() == 3).await;
    guard.check().await.expect("held");
    assert!(lock(&two).try_lock().await.expect("answered").is_none());
    let waits = lock(&two);
    let waiting = tokio::spawn(async move { waits.lock().await });
    until("it to wait by message", ms(3_000), || three.servers.iter().all(|server| !server.channels().is_empty()))
        .await;
    guard.unlock().await.expect("held to the end");
    let (next, _) = within("the next holder", ms(3_000), waiting).await;
    next.expect("no panic").expect("acquired").unlock().await.expect("held to the end");
    three.free().await;
}

#[tokio::test]
async fn a_dead_server_delays_nobody() {
    let mut three = Three::start();
    let quorum = three.quorum().await;
    three.servers[1].crash();
    for _ in 0..3 {
        let (guard, took) = within("a majority", ms(5_000), lock(&quorum).lock()).await;
        let guard = guard.expect("two of three");
        assert!(took < ms(1_000), "{took:?}");
        assert_eq!(guard.nodes(), 2);
        let (released, took) = within("the release", ms(5_000), guard.unlock()).await;
        released.expect("two of three confirm it");
        assert!(took < ms(1_000), "{took:?}");
    }
}

#[tokio::test]
async fn without_a_majority_it_is_unavailable_in_its_own_time() {
    let mut three = Three::start();
    let quorum = three.quorum().await;
    three.servers[0].crash();
    three.servers[2].crash();
    let (answer, _) = within("an answer", ms(10_000), lock(&quorum).try_lock()).await;
    assert!(answer.expect_err("one of three").is_unavailable());
    let (answer, took) = within("an answer", ms(10_000), lock(&quorum).try_lock_for(ms(500))).await;
    assert!(answer.expect_err("one of three").is_unavailable());
    assert!(took < ms(5_000), "{took:?}");
    let (answer, _) = within("an answer", ms(15_000), lock(&quorum).lock()).await;
    assert!(answer.expect_err("one of three").is_unavailable());
    until("the one that is left to be free", ms(5_000), || !three.servers[1].exists("x")).await;
}

#[tokio::test]
async fn a_server_that_lost_it_is_seeded_again_by_the_next_renewal() {
    let three = Three::start();
    let quorum = three.with_lease(900).await;
    let guard = lock(&quorum).lock().await.expect("free");
    until("all to have it", ms(3_000), || guard.nodes() == 3).await;
    let _: u32 = three.servers[1].ask(&["DEL", "x"]);
    until("it to be there again", ms(3_000), || three.servers[1].exists("x") && guard.nodes() == 3).await;
    assert!(!guard.is_lost());
    guard.unlock().await.expect("held to the end");
    three.free().await;
}

/// A guard that two of three servers have just lost, and its token.
async fn losing_two(three: &Three) -> (QuorumGuard, CancellationToken) {
    let quorum = three.with_lease(900).await;
    let guard = lock(&quorum).lock().await.expect("free");
    until("all to have it", ms(3_000), || guard.nodes() == 3).await;
    let token = guard.lost_token();
    for server in &three.servers[..2] {
        let _: u32 = server.ask(&["DEL", "x"]);
    }
    (guard, token)
}

#[tokio::test]
async fn lost_on_a_majority_it_stays_lost() {
    let three = Three::start();
    let (guard, token) = losing_two(&three).await;
    assert_eq!(within("the loss", ms(3_000), guard.lost()).await.0, Lost::Removed);
    within("the token", ms(3_000), token.cancelled()).await;
    tokio::time::sleep(ms(600)).await; // two renewals
    assert!(guard.is_lost() && guard.remaining().is_zero());
    assert!(guard.unlock().await.expect_err("lost").is_lost());
    three.free().await;
}

/// A caller may see the loss, and drop the guard, before the task that watches for the token runs.
#[tokio::test]
async fn the_token_is_cancelled_although_the_guard_was_dropped_at_the_loss() {
    let three = Three::start();
    let (guard, token) = losing_two(&three).await;
    let (stopped, _) = within("the loss", ms(3_000), guard.protect(std::future::pending::<()>())).await;
    assert!(stopped.expect_err("lost").is_lost());
    within("the token", ms(3_000), token.cancelled()).await;
    three.free().await;
}

/// Else a holder that does not look would keep everybody out.
#[tokio::test]
async fn what_is_lost_is_released_although_its_guard_is_kept() {
    let three = Three::start();
    let (guard, _) = losing_two(&three).await;
    within("the loss", ms(3_000), guard.lost()).await;
    three.free().await;
    assert!(guard.is_lost() && guard.nodes() == 0);
    assert!(guard.unlock().await.expect_err("lost").is_lost());
}

/// Its holder has the rest of the lease to stop.
#[tokio::test]
async fn what_max_hold_ends_is_not_released_at_once() {
    let three = Three::start();
    let guard = lock(&three.with_lease(3_000).await).max_hold(ms(1_800)).lock().await.expect("free");
    assert_eq!(within("the end", ms(5_000), guard.lost()).await.0, Lost::MaxHold);
    tokio::time::sleep(ms(1_000)).await; // a renewal
    assert_eq!(three.holders(), 3);
    drop(guard);
    three.free().await;
}

#[tokio::test]
async fn a_token_that_is_asked_for_after_the_loss_is_cancelled_at_once() {
    let three = Three::start();
    let guard = lock(&three.with_lease(900).await).lock().await.expect("free");
    until("all to have it", ms(3_000), || guard.nodes() == 3).await;
    for server in &three.servers[..2] {
        let _: u32 = server.ask(&["DEL", "x"]);
    }
    within("the loss", ms(3_000), guard.lost()).await;
    assert!(guard.lost_token().is_cancelled());
    drop(guard);
    three.free().await;
}

#[tokio::test]
async fn an_owner_re_enters() {
    let three = Three::start();
    let (quorum, owner) = (three.quorum().await, Owner::new());
    let lock = quorum.lock("x").owner(&owner);
    let outer = lock.lock().await.expect("free");
    let inner = within("the inner one", ms(3_000), lock.lock()).await.0.expect("re-entered");
    inner.unlock().await.expect("held to the end");
    assert!(three.holders() >= 2);
    outer.unlock().await.expect("held to the end");
    three.free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_split_the_votes_succeed_in_the_end() {
    let three = Three::start();
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for quorum in [three.quorum().await, three.quorum().await, three.quorum().await] {
        for _ in 0..4 {
            let (lock, inside) = (lock(&quorum), Arc::clone(&inside));
            tasks.push(tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = lock.lock().await.expect("in the end");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.expect("held to the end");
                }
            }));
        }
    }
    for task in tasks {
        within("sixty turns", ms(60_000), task).await.0.expect("no panic");
    }
    three.free().await;
}

#[tokio::test]
async fn dropped_at_any_moment_it_leaves_nothing() {
    let three = Three::start();
    let quorum = three.quorum().await;
    for round in 0..40 {
        let attempt = lock(&quorum);
        let dropped = tokio::time::timeout(Duration::from_micros(50 * round), attempt.lock()).await;
        drop(dropped);
    }
    three.free().await;
}

#[tokio::test]
async fn forced_open_on_all_servers() {
    let three = Three::start();
    let (one, two) = (three.with_lease(900).await, three.quorum().await);
    let guard = lock(&one).lock().await.expect("free");
    assert!(lock(&two).force_unlock().await.expect("answered"));
    within("the loss", ms(3_000), guard.lost()).await;
    assert!(guard.unlock().await.is_err());
    three.free().await;
    assert!(!lock(&two).force_unlock().await.expect("answered"));
}

#[tokio::test]
async fn work_ends_with_the_loss() {
    let three = Three::start();
    let quorum = three.with_lease(900).await;
    assert_eq!(lock(&quorum).with(async || 42).await.expect("done"), 42);
    let guard = lock(&quorum).lock().await.expect("free");
    let endless = tokio::spawn(guard.protect(std::future::pending::<()>()));
    until("two to have it", ms(3_000), || three.holders() >= 2).await;
    for server in &three.servers {
        let _: u32 = server.ask(&["DEL", "x"]);
    }
    let (stopped, _) = within("the end of the work", ms(5_000), endless).await;
    assert!(stopped.expect("no panic").expect_err("lost").is_lost());
}

#[tokio::test]
async fn a_server_that_is_asked_again_does_not_prolong_max_hold() {
    let three = Three::start();
    let quorum = three.with_lease(600).await;
    let started = Stopwatch::start();
    let guard = lock(&quorum).max_hold(ms(1_500)).lock().await.expect("free");
    for server in &three.servers[..2] {
        until("all to have it", ms(3_000), || guard.nodes() == 3).await;
        // A renewal: until it is confirmed again, a server that lost it may have lost it before another one was asked again.
        tokio::time::sleep(ms(200)).await;
        let _: u32 = server.ask(&["DEL", "x"]);
        until("it to be there again", ms(3_000), || server.exists("x")).await;
    }
    until("all to have it again", ms(3_000), || guard.nodes() == 3).await;
    assert_eq!(within("the end", ms(3_000), guard.lost()).await.0, Lost::MaxHold);
    assert!(started.elapsed() < ms(2_500), "{}", started.elapsed());
    drop(guard);
    three.free().await;
}

#[test]
fn dropped_outside_of_its_runtime_it_is_released() {
    let three = Three::start();
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (_quorum, guard) = runtime.block_on(async {
        let quorum = three.with_lease(20_000).await;
        let guard = lock(&quorum).lock().await.expect("free");
        (quorum, guard)
    });
    drop(guard);
    runtime::Builder::new_current_thread().enable_all().build().expect("another one").block_on(three.free());
}

#[test]
fn a_token_made_outside_of_a_runtime_is_watched_from_the_next_call_inside() {
    let three = Three::start();
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let quorum = runtime.block_on(three.with_lease(900));
    let guard = runtime.block_on(lock(&quorum).lock()).expect("free");
    let first = guard.lost_token();
    runtime.block_on(async {
        let second = guard.lost_token();
        for server in &three.servers {
            let _: u32 = server.ask(&["DEL", "x"]);
        }
        within("the first token", ms(3_000), first.cancelled()).await;
        within("the second token", ms(3_000), second.cancelled()).await;
    });
}

#[tokio::test]
async fn frozen_servers_do_not_prolong_a_wait_limit() {
    let three = Three::start();
    let quorum = three.quorum().await;
    let frozen = &three.servers[..2];
    frozen.iter().for_each(Server::freeze);
    let (answer, took) = within("an answer", ms(5_000), lock(&quorum).try_lock_for(ms(300))).await;
    frozen.iter().for_each(Server::thaw);
    let error = answer.expect_err("one of three");
    assert!(error.is_unavailable() && chain(&error).contains("no majority"), "{}", chain(&error));
    assert!(took < ms(1_500), "{took:?}");
}

/// Else two voters of which each has one of the two other servers would wait for the third one, and refuse each other meanwhile.
#[tokio::test]
async fn a_vote_does_not_wait_for_a_server_that_was_silent_before() {
    let three = Three::start();
    let (quorum, other) = (three.quorum().await, plain(&three.servers[1]).await);
    let _elsewhere = other.lock("x").lock().await.expect("free");
    three.servers[0].freeze();
    for _ in 0..100 {
        let (vote, took) = within("a vote", ms(5_000), lock(&quorum).try_lock()).await;
        assert!(vote.expect("two of three have replied").is_none(), "one of three");
        if took < ms(20) {
            return three.servers[0].thaw();
        }
    }
    panic!("each vote waited for the silent server");
}

/// Servers far away: the third one's reply decides. It has not replied to another request either when a majority has voted.
#[tokio::test]
async fn a_server_that_is_only_far_away_is_waited_for() {
    let three = Three::start();
    let proxies = three.servers.each_ref().map(before);
    let mut clients = Vec::new();
    for proxy in &proxies {
        clients.push(behind(proxy, |builder| builder).await);
    }
    let quorum = Quorum::new(clients).expect("three servers");
    lock(&quorum).lock().await.expect("free").unlock().await.expect("held"); // from now on the servers know the scripts
    three.free().await;
    let other = plain(&three.servers[0]).await;
    let _elsewhere = other.lock("x").lock().await.expect("free");
    for _ in 0..5 {
        let late = |time| Rule::new(Which::Command("EVALSHA"), Fault::Delay(Way::Back, ms(time)));
        proxies[..2].iter().for_each(|proxy| proxy.rule(late(50).after(2))); // after the vote for `y` and its release
        proxies[2].rule(late(95));
        let before = quorum.lock("y").non_reentrant();
        let before = tokio::spawn(async move { before.try_lock().await.map(drop) });
        tokio::time::sleep(ms(35)).await; // so long before the next request
        let vote = lock(&quorum).try_lock().await.expect("all reply");
        before.await.expect("no panic").expect("all reply");
        if let Some(guard) = vote {
            return guard.unlock().await.expect("held");
        }
        let are_free = || {
            let is_free = |server: &Server| !server.exists("x") && !server.exists("y");
            three.servers[1..].iter().all(is_free)
                && !three.servers[0].exists("y")
                && proxies.iter().all(Proxy::is_spent)
        };
        until("the servers to be free", ms(5_000), are_free).await;
    }
    panic!("no vote waited for the third server");
}

#[tokio::test]
async fn behind_another_caller_unavailable_does_not_look_like_taken() {
    let mut three = Three::start();
    let quorum = three.quorum().await;
    three.servers[0].crash();
    three.servers[1].crash();
    let (first, second) = (lock(&quorum), lock(&quorum));
    let mut waits = pin!(first.lock());
    poll_until("it to ask", waits.as_mut(), || three.servers[2].exists("x")).await;
    let answer = tokio::select! {
        answer = second.try_lock_for(ms(300)) => answer,
        _ = waits => panic!("there is no majority"),
    };
    assert!(answer.expect_err("one of three").is_unavailable());
}

#[tokio::test]
async fn a_wait_of_any_length_rides_out_an_outage() {
    let three = Three::start();
    let (guard, waiting) = three.waiter(ms(300), ms(2_000)).await;
    tokio::time::sleep(ms(2_200)).await; // the outage_timeout
    let frozen = &three.servers[..2];
    frozen.iter().for_each(Server::freeze);
    tokio::time::sleep(ms(1_400)).await; // the pause before a vote, and a command_timeout
    frozen.iter().for_each(Server::thaw);
    drop(guard);
    within("the next holder", ms(10_000), waiting).await.0.expect("no panic").expect("acquired");
}

/// After some votes the pauses are about a second.
#[tokio::test]
async fn the_pause_before_a_vote_is_no_outage() {
    let three = Three::start();
    let (guard, waiting) = three.waiter(ms(200), ms(700)).await;
    tokio::time::sleep(ms(2_500)).await;
    let next_vote = async || {
        let before = three.servers[2].calls("evalsha");
        until("a vote", ms(5_000), || three.servers[2].calls("evalsha") > before).await;
    };
    next_vote().await;
    tokio::time::sleep(ms(100)).await; // its replies
    let frozen = &three.servers[..2];
    frozen.iter().for_each(Server::freeze);
    next_vote().await;
    tokio::time::sleep(ms(250)).await; // it has failed, and the one after it has not begun
    frozen.iter().for_each(Server::thaw);
    drop(guard);
    within("the next holder", ms(10_000), waiting).await.0.expect("no panic").expect("acquired");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_it_does_not_keep_the_waiters_busy() {
    let three = Three::start();
    let quorum = three.quorum().await;
    let guard = lock(&quorum).lock().await.expect("free");
    until("all to have it", ms(3_000), || guard.nodes() == 3).await;
    let _: u32 = three.servers[2].ask(&["DEL", "x"]); // each vote is granted there, and released
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let waits = lock(&three.quorum().await);
        waiting.push(tokio::spawn(async move { waits.lock().await.map(drop) }));
    }
    tokio::time::sleep(ms(1_500)).await; // the first pauses are short
    let before = three.servers[0].calls("evalsha");
    tokio::time::sleep(ms(2_000)).await;
    let votes = three.servers[0].calls("evalsha") - before;
    assert!(votes < 30, "{votes} in two seconds");
    guard.unlock().await.expect("held to the end");
    for waiter in waiting {
        within("the next holder", ms(5_000), waiter).await.0.expect("no panic").expect("acquired");
    }
}

#[tokio::test]
async fn an_owner_that_lost_it_does_not_acquire_it_afresh() {
    let three = Three::start();
    let quorum = three.with_lease(900).await;
    let lock = quorum.lock("x").owner(&Owner::new());
    let outer = lock.lock().await.expect("free");
    until("all to have it", ms(3_000), || outer.nodes() == 3).await;
    let [first, second, _] = &three.servers;
    let _: u32 = first.ask(&["DEL", "x"]);
    let _: u32 = first.ask(&["HSET", "x", "another:1", "1"]);
    until("the loss to be noticed", ms(3_000), || outer.nodes() == 2).await;
    tokio::time::sleep(ms(500)).await; // the server is asked again in vain
    let _: u32 = second.ask(&["DEL", "x"]);
    within("the loss", ms(3_000), outer.lost()).await;
    let _: u32 = first.ask(&["DEL", "x"]);
    assert!(lock.try_lock().await.expect_err("the outer one is lost").is_lost());
    drop(outer);
    until("it to be released", ms(3_000), || three.holders() == 0).await;
    lock.try_lock().await.expect("answered").expect("free").unlock().await.expect("held to the end");
}

#[tokio::test]
async fn an_inner_call_does_not_acquire_what_the_outer_one_lost_meanwhile() {
    let three = Three::start();
    let quorum = three.with_lease(900).await;
    let lock = quorum.lock("x").owner(&Owner::new());
    let outer = lock.lock().await.expect("free");
    until("all to have it", ms(3_000), || outer.nodes() == 3).await;
    let frozen = &three.servers[..2];
    frozen.iter().for_each(Server::freeze);
    let (inner, lost) = tokio::join!(lock.try_lock_for(ms(2_500)), async {
        let lost = outer.lost().await;
        frozen.iter().for_each(Server::thaw);
        lost
    });
    assert_eq!(lost, Lost::Expired);
    assert!(inner.expect_err("the outer one is lost").is_lost());
    drop(outer);
    three.free().await;
    lock.lock().await.expect("free").unlock().await.expect("held to the end");
}

#[tokio::test]
async fn a_server_asked_again_does_not_stand_for_the_time_before() {
    let three = Three::start();
    let quorum = three.with_lease(3_000).await;
    let guard = lock(&quorum).lock().await.expect("free");
    until("all to have it", ms(3_000), || guard.nodes() == 3).await;
    let [first, second, _] = &three.servers;
    for server in [first, second] {
        let _: u32 = server.ask(&["DEL", "x"]); // another owner could acquire it now
    }
    second.freeze(); // its renewal is late
    until("the first to have it again", ms(3_000), || first.exists("x") && guard.nodes() == 3).await;
    second.thaw();
    assert_eq!(within("the loss", ms(3_000), guard.lost()).await.0, Lost::Removed);
    assert!(guard.unlock().await.expect_err("it was lost").is_lost());
    three.free().await;
}

/// One server of that quorum is reached through this proxy.
async fn with_one_behind(three: &Three, far: usize, proxy: &Proxy) -> Quorum {
    // These losses are known at a renewal.
    let settings = |builder: Builder| builder.watchdog(ms(3_000)).tracking(false);
    Quorum::new(clients_of(three, far, proxy, settings).await).expect("three servers")
}

async fn clients_of(
    three: &Three,
    far: usize,
    proxy: &Proxy,
    settings: impl Fn(Builder) -> Builder + Copy,
) -> Vec<Client> {
    let mut clients = Vec::new();
    for (at, server) in three.servers.iter().enumerate() {
        clients.push(if at == far { behind(proxy, settings).await } else { client(server, settings).await });
    }
    clients
}

#[tokio::test]
async fn a_late_vote_does_not_stand_for_the_time_before() {
    let three = Three::start();
    let [_, second, third] = &three.servers;
    let proxy = before(third);
    let (quorum, others) = (with_one_behind(&three, 2, &proxy).await, three.quorum().await);
    proxy.set(Mode::Stall); // its request is late
    let guard = lock(&quorum).lock().await.expect("two of three");
    let _: u32 = second.ask(&["DEL", "x"]);
    let other = lock(&others).lock().await.expect("the other two of three");
    tokio::time::sleep(ms(350)).await; // longer than one vote
    other.unlock().await.expect("held to the end");
    proxy.set(Mode::Pass);
    until("the late vote", ms(900), || guard.nodes() == 3).await;
    assert_eq!(within("the loss", ms(3_000), guard.lost()).await.0, Lost::Removed);
    assert!(guard.unlock().await.expect_err("it was lost").is_lost());
    three.free().await;
}

#[tokio::test]
async fn an_unlock_finds_a_loss_that_a_server_asked_again_would_hide() {
    let three = Three::start();
    let [first, second, _] = &three.servers;
    let proxy = before(second);
    let (quorum, others) = (with_one_behind(&three, 1, &proxy).await, three.quorum().await);
    let guard = lock(&quorum).lock().await.expect("free");
    until("all to have it", ms(900), || guard.nodes() == 3).await;
    proxy.set(Mode::Stall); // no renewal shows the loss
    for server in [first, second] {
        let _: u32 = server.ask(&["DEL", "x"]);
    }
    let other = lock(&others).lock().await.expect("two of three");
    other.unlock().await.expect("held to the end");
    until("the first to have it again", ms(3_000), || first.exists("x") && guard.nodes() == 3).await;
    let mut unlocking = pin!(guard.unlock());
    poll_until("the other two to be free", unlocking.as_mut(), || three.holders() == 0).await;
    proxy.set(Mode::Pass);
    let (answer, _) = within("the answer", ms(5_000), unlocking).await;
    assert!(answer.expect_err("another owner had it meanwhile").is_lost());
}

/// As above, but the second server never replies: it may have lost the lock before the first one had it again, as here.
#[tokio::test]
async fn a_silent_server_that_may_hide_a_loss_does_not_confirm_it() {
    hidden_loss(async |_| {}).await;
}

/// That the lease has expired meanwhile shows nothing, nor that its guard is gone.
#[tokio::test]
async fn nor_does_one_whose_lease_has_expired() {
    let at_once = hidden_loss(async |guard| until("the lease to expire", ms(9_000), || guard.nodes() == 2).await);
    let later = hidden_loss(async |guard| {
        until("the lease to expire", ms(9_000), || guard.nodes() == 2).await;
        tokio::time::sleep(ms(2_100)).await; // a renewal
    });
    tokio::join!(at_once, later);
}

async fn hidden_loss(then: impl AsyncFnOnce(&QuorumGuard)) {
    let three = Three::start();
    let [first, second, _] = &three.servers;
    let proxy = before(second);
    let settings = |builder: Builder| builder.watchdog(ms(6_000)).outage_timeout(ms(1_000));
    let quorum = Quorum::new(clients_of(&three, 1, &proxy, settings).await).expect("three servers");
    let guard = lock(&quorum).lock().await.expect("free");
    until("all to have it", ms(1_500), || guard.nodes() == 3).await;
    proxy.set(Mode::Stall);
    for server in [first, second] {
        let _: u32 = server.ask(&["DEL", "x"]); // another owner could acquire it now
    }
    let mut check = Box::pin(guard.check());
    poll_until("the first loss to be noticed", check.as_mut(), || guard.nodes() == 2 || first.exists("x")).await;
    drop(check);
    until("the first to have it again", ms(3_000), || guard.nodes() == 3).await;
    then(&guard).await;
    let (answer, _) = within("the answer", ms(3_000), guard.unlock()).await;
    proxy.set(Mode::Pass);
    let error = answer.expect_err("nobody can tell");
    assert!(error.is_unavailable(), "{error}");
    three.free().await;
}

#[tokio::test]
async fn a_frozen_server_does_not_delay_an_unlock_that_finds_a_loss_on_a_majority() {
    for is_known in [false, true] {
        let three = Three::start();
        let quorum = three.with_lease(9_000).await;
        let guard = lock(&quorum).lock().await.expect("free");
        until("all to have it", ms(3_000), || guard.nodes() == 3).await;
        let [first, second, third] = &three.servers;
        third.freeze();
        for server in [first, second] {
            let _: u32 = server.ask(&["DEL", "x"]);
        }
        if is_known {
            within("the loss", ms(5_000), guard.lost()).await;
        }
        let (answer, _) = within("the answer", ms(1_500), guard.unlock()).await;
        third.thaw();
        assert!(answer.expect_err("two of three do not have it").is_lost());
        three.free().await;
    }
}

/// The release on the third server is sent again although nobody drives the caller's runtime.
#[test]
fn released_from_a_runtime_that_stops_running_nothing_is_left() {
    let three = Three::start();
    let third = &three.servers[2];
    let proxy = before(third);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (guard, _clients) = runtime.block_on(async {
        let clients = clients_of(&three, 2, &proxy, |builder| builder).await;
        let quorum = Quorum::new(clients.clone()).expect("three servers");
        let guard = lock(&quorum).lock().await.expect("free");
        until("all to have it", ms(3_000), || guard.nodes() == 3).await;
        proxy.refuse();
        proxy.cut_all();
        let known = async { while !chain(&clients[2].ping().await.expect_err("no server")).contains("refused") {} };
        within("the connection to be refused", ms(5_000), known).await;
        (guard, clients)
    });
    runtime.block_on(guard.unlock()).expect("two of three confirm it");
    proxy.accept();
    runtime::Builder::new_current_thread().enable_all().build().expect("another one").block_on(three.free());
}

#[tokio::test]
async fn a_server_that_froze_after_its_grant_does_not_delay_the_release() {
    let three = Three::start();
    let quorum = three.with(|builder| builder.watchdog(ms(30_000)).outage_timeout(ms(6_000))).await;
    let [_, second, third] = &three.servers;
    third.freeze();
    let guard = lock(&quorum).lock().await.expect("two of three");
    second.freeze();
    third.thaw(); // its vote is still to come
    within("the release", ms(4_000), guard.unlock()).await.0.expect("the first and the third had it to the end");
    second.thaw();
    three.free().await;
}

#[tokio::test]
async fn callers_in_a_queue_give_up_together() {
    let mut three = Three::start();
    let quorum = three.quorum().await;
    three.servers[0].crash();
    three.servers[1].crash();
    let calls = futures_util::future::join_all((0..4).map(|_| async { lock(&quorum).lock().await.map(drop) }));
    let (answers, took) = within("an answer for each", ms(20_000), calls).await;
    assert!(answers.into_iter().all(|answer| answer.expect_err("one of three").is_unavailable()));
    assert!(took < ms(7_000), "{took:?} with an outage_timeout of three seconds, and three for the last vote of each");
}

#[tokio::test]
async fn a_dead_server_does_not_delay_forcing_it_open() {
    let mut three = Three::start();
    let quorum = three.quorum().await;
    let guard = lock(&quorum).lock().await.expect("free");
    until("all to have it", ms(3_000), || guard.nodes() == 3).await;
    three.servers[2].crash();
    let (answer, took) = within("an answer", ms(10_000), lock(&quorum).force_unlock()).await;
    assert!(answer.expect("two of three"));
    assert!(took < ms(1_500), "{took:?}");
}

#[test]
fn protected_work_stops_although_the_worker_is_busy() {
    let three = Three::start();
    one_worker().block_on(async {
        let guard = lock(&three.quorum().await).lease(ms(400)).lock().await.expect("free");
        let late = late_polls(ms(400), |work| guard.protect(work)).await;
        assert!(late <= 1, "{late} polls after the leases had expired");
    });
}

/// The third server is so much farther away. All servers know the scripts.
async fn with_one_farther(three: &Three, by: u64) -> (Quorum, Proxy) {
    let proxy = before(&three.servers[2]);
    let quorum = with_one_behind(three, 2, &proxy).await;
    lock(&quorum).lock().await.expect("free").unlock().await.expect("held to the end");
    three.free().await;
    proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Delay(Way::Back, ms(by))).times(1_000));
    (quorum, proxy)
}

/// Another process died while it held the lock on one server.
#[tokio::test]
async fn a_server_that_is_farther_away_can_decide() {
    // An attempt has 200 ms, and the reply comes after 150 ms.
    unless_stalled(Slack { left: ms(40), within: ms(200) }, one_that_is_farther_away_decides).await;
}

async fn one_that_is_farther_away_decides() {
    let three = Three::start();
    let (quorum, _proxy) = with_one_farther(&three, 150).await;
    let _: u32 = three.servers[0].ask(&["HSET", "x", "another:1", "1"]);
    for _ in 0..3 {
        let owned = quorum.lock("x").owner(&Owner::new());
        let outer = owned.try_lock().await.expect("answered").expect("two of three grant it");
        let inner = owned.try_lock().await.expect("answered").expect("re-entered");
        inner.unlock().await.expect("held to the end");
        outer.unlock().await.expect("held to the end");
        until("the others to be free", ms(5_000), || three.holders() == 1).await;
    }
}

#[tokio::test]
async fn a_server_that_is_farther_away_stands_for_one_that_froze() {
    let three = Three::start();
    let (quorum, _proxy) = with_one_farther(&three, 150).await;
    let guard = lock(&quorum).lock().await.expect("free");
    until("all to have it", ms(800), || guard.nodes() == 3).await;
    three.servers[1].freeze();
    within("the release", ms(2_000), guard.unlock()).await.0.expect("a majority had it to the end");
    three.servers[1].thaw();
}

#[tokio::test]
async fn during_a_shutdown_an_owner_re_enters_although_a_server_is_down() {
    let mut three = Three::start();
    let mut clients = Vec::new();
    for server in &three.servers {
        clients.push(client(server, |builder| builder.outage_timeout(ms(3_000))).await);
    }
    let quorum = Quorum::new(clients.clone()).expect("three servers");
    three.servers[2].crash();
    let lock = quorum.lock("x").owner(&Owner::new());
    let outer = lock.lock().await.expect("two of three");
    let closing: Vec<_> = clients.iter().map(|client| tokio::spawn(client.clone().shutdown(ms(8_000)))).collect();
    for client in &clients {
        let is_closed = async { while client.mutex("y").try_lock().await.is_ok() {} };
        within("the shutdown to begin", ms(5_000), is_closed).await;
    }
    assert!(matches!(quorum.lock("y").lock().await, Err(Error::Closed)));
    let (inner, _) = within("the inner one", ms(3_000), lock.lock()).await;
    inner.expect("re-entered").unlock().await.expect("held to the end");
    outer.unlock().await.expect("held to the end");
    for closing in closing {
        _ = within("the end", ms(12_000), closing).await; // the crashed server may owe a release to the end of the grace
    }
}

#[tokio::test]
async fn closing_all_clients_ends_calls_that_wait() {
    let three = Three::start();
    let _guard = lock(&three.quorum().await).lock().await.expect("free");
    let mut clients = Vec::new();
    for server in &three.servers {
        clients.push(plain(server).await);
    }
    let waits = lock(&Quorum::new(clients.clone()).expect("three servers"));
    let waiting = tokio::spawn(async move { waits.lock().await.map(drop) });
    tokio::time::sleep(ms(2_500)).await; // the pauses between the votes are long now
    let votes = three.servers[2].calls("evalsha");
    until("a vote", ms(5_000), || three.servers[2].calls("evalsha") > votes).await;
    tokio::time::sleep(ms(50)).await; // the vote ends
    for client in clients {
        client.close().await.expect("nothing is held");
    }
    let (ended, _) = within("the call to end", ms(200), waiting).await;
    assert!(matches!(ended.expect("no panic"), Err(Error::Closed)));
}

#[tokio::test]
async fn after_an_outage_one_caller_of_a_process_votes_at_a_time() {
    let three = Three::start();
    let _guard = lock(&three.quorum().await).lock().await.expect("free");
    let settings = |builder: Builder| builder.command_timeout(ms(2_000)).outage_timeout(ms(1_000));
    let quorum = three.with(settings).await;
    let votes = || three.servers[2].calls("exists"); // one for each, also if one request has several
    let callers: Vec<_> = (0..30)
        .map(|_| {
            let waits = lock(&quorum);
            tokio::spawn(async move { waits.lock().await.map(drop) })
        })
        .collect();
    tokio::time::sleep(ms(500)).await; // they queue
    let frozen = &three.servers[..2];
    frozen.iter().for_each(Server::freeze);
    tokio::time::sleep(ms(2_000)).await; // an outage_timeout after the next vote, all vote out of turn
    frozen.iter().for_each(Server::thaw);
    tokio::time::sleep(ms(3_000)).await; // each has voted once more
    let before = votes();
    tokio::time::sleep(ms(3_000)).await;
    let votes = votes() - before;
    let waiting = callers.iter().filter(|caller| !caller.is_finished()).count();
    assert!(waiting > 15, "only {waiting} wait");
    assert!(votes < 30, "{votes} votes in three seconds");
}

#[tokio::test]
async fn a_nested_guard_with_a_lease_does_not_keep_a_server_out() {
    let three = Three::start();
    let quorum = three.with_lease(900).await;
    let lock = quorum.lock("x").owner(&Owner::new());
    let outer = lock.lock().await.expect("free");
    let inner = lock.clone().lease(ms(20_000)).lock().await.expect("re-entered");
    until("all to have it", ms(3_000), || outer.nodes() == 3 && inner.nodes() == 3).await;
    let _: u32 = three.servers[1].ask(&["DEL", "x"]);
    until("the loss to be noticed", ms(3_000), || outer.nodes() == 2).await;
    until("it to be there again", ms(4_000), || outer.nodes() == 3).await;
    inner.unlock().await.expect("two had it to the end");
    outer.unlock().await.expect("held to the end");
}
