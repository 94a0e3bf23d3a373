//! One lock over several servers that do not know of each other.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use leasehold::{Error, Lost, Owner, Quorum, QuorumLock};

use crate::support::{Server, client, ms, plain, until, within};

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
        let mut clients = Vec::new();
        for server in &self.servers {
            clients.push(client(server, |builder| builder.watchdog(ms(lease)).outage_timeout(ms(3_000))).await);
        }
        Quorum::new(clients).expect("three servers")
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
    until("the loss to be noticed", ms(3_000), || guard.nodes() == 2).await;
    until("it to be there again", ms(3_000), || guard.nodes() == 3).await;
    assert!(!guard.is_lost() && three.servers[1].exists("x"));
    guard.unlock().await.expect("held to the end");
    three.free().await;
}

#[tokio::test]
async fn lost_on_a_majority_it_stays_lost() {
    let three = Three::start();
    let quorum = three.with_lease(900).await;
    let guard = lock(&quorum).lock().await.expect("free");
    until("all to have it", ms(3_000), || guard.nodes() == 3).await;
    let token = guard.lost_token();
    for server in &three.servers[..2] {
        let _: u32 = server.ask(&["DEL", "x"]);
    }
    assert_eq!(within("the loss", ms(3_000), guard.lost()).await.0, Lost::Removed);
    within("the token", ms(3_000), token.cancelled()).await;
    tokio::time::sleep(ms(600)).await; // two renewals
    assert!(guard.is_lost() && guard.remaining().is_zero());
    assert!(guard.unlock().await.expect_err("lost").is_lost());
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
        let dropped = tokio::time::timeout(std::time::Duration::from_micros(50 * round), attempt.lock()).await;
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
