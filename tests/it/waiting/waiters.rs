//! Waiting: in order, woken by messages, and never much longer than asked.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use leasehold::{Client, Owner};

use crate::support::{Server, Stopwatch, client, ms, plain, until, with_rights, within};

#[tokio::test]
async fn a_release_in_another_process_wakes_the_waiter() {
    let server = Server::start();
    let (holder, waiter) = (plain(&server).await, plain(&server).await);
    let guard = holder.lock("woken").lock().await.expect("free");
    let lock = waiter.lock("woken");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to be subscribed", ms(2_000), || !server.channels().is_empty()).await;
    assert_eq!(server.channels(), ["redisson_lock__channel:{woken}"]);
    guard.unlock().await.expect("ours");
    let (taken, took) = within("to be woken", ms(1_000), waiting).await;
    drop(taken.expect("no panic").expect("granted"));
    assert!(took < ms(500), "{took:?}");
    until("the message", ms(1_000), || waiter.stats().total.wakeups >= 1).await; // it may have looked by itself just before
}

#[tokio::test]
async fn a_holder_that_dies_is_replaced_when_its_lease_ends() {
    let server = Server::start();
    let client = plain(&server).await;
    let _: u32 = server.ask(&["HSET", "dead", "b983c153-7421-469a-addb-44fb92259a1b:7", "1"]);
    let started = Stopwatch::start();
    let _: u32 = server.ask(&["PEXPIRE", "dead", "700"]);
    let (taken, _) = within("the lease to end", ms(900), client.lock("dead").lock()).await;
    drop(taken.expect("granted"));
    assert!(started.elapsed() > ms(600), "{}", started.elapsed());
}

#[tokio::test]
async fn patience_ends_in_time() {
    let server = Server::start();
    let (holder, waiter) = (plain(&server).await, plain(&server).await);
    let _guard = holder.lock("busy").lock().await.expect("free");
    for patience in [0, 1, 50, 300] {
        let lock = waiter.lock("busy");
        let asked = lock.try_lock_for(ms(patience));
        let (taken, took) = within("the patience to end", ms(patience + 100), asked).await;
        assert!(taken.expect("answered").is_none());
        assert!(took >= ms(patience), "{took:?} of {patience} ms");
    }
    assert_eq!(waiter.stats().now.waiting, 0);
    let (taken, _) = within("a very long patience", ms(1_000), async {
        let lock = waiter.lock("free");
        lock.try_lock_for(std::time::Duration::MAX).await
    })
    .await;
    assert!(taken.expect("answered").is_some());
}

#[tokio::test]
async fn the_last_attempt_comes_after_the_deadline() {
    let server = Server::start();
    let client = plain(&server).await;
    // It ends without anybody being told, just before the patience does.
    let _: u32 = server.ask(&["HSET", "late", "b983c153-7421-469a-addb-44fb92259a1b:7", "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "late", "290"]);
    let taken = client.lock("late").try_lock_for(ms(300)).await.expect("answered");
    assert!(taken.is_some());
}

/// Many tasks of some clients, one name: never two at a time, all get their turns.
async fn take_turns(clients: &[Client], tasks: u32, turns: u32) {
    let inside = Arc::new(AtomicU32::new(0));
    let all: Vec<_> = (0..tasks)
        .map(|task| {
            let lock = clients[task as usize % clients.len()].lock("turns");
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                for _ in 0..turns {
                    let guard = lock.lock().await.expect("granted");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.expect("ours");
                }
            })
        })
        .collect();
    for task in all {
        task.await.expect("no assertion failed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_process_pass_the_lock_on() {
    let server = Server::start();
    let client = plain(&server).await;
    take_turns(std::slice::from_ref(&client), 16, 50).await;
    let (stats, published) = (client.stats(), server.calls("publish"));
    assert_eq!((stats.total.acquired, stats.total.released), (800, 800));
    assert_eq!(stats.total.first_try + stats.total.woken + stats.total.handed_over + stats.total.by_timer, 800);
    assert!(stats.total.handed_over > 700, "{stats:?}");
    assert_eq!((stats.wait.count, stats.hold.count), (800, 800));
    assert!(stats.wait.p50 > stats.hold.p50 && stats.wait.max >= stats.wait.p99, "{stats:?}");
    assert!(published <= 800 / 12, "{published} messages for 800 turns");
    assert!(!server.exists("turns"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_handovers_every_turn_is_for_all() {
    let server = Server::start();
    let client = client(&server, |builder| builder.handovers(0)).await;
    take_turns(std::slice::from_ref(&client), 8, 20).await;
    assert_eq!(server.calls("publish"), 160);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share() {
    let server = Server::start();
    let clients = [plain(&server).await, plain(&server).await, plain(&server).await];
    take_turns(&clients, 12, 25).await;
    assert!(!server.exists("turns"));
}

#[tokio::test]
async fn waiters_of_one_process_are_served_in_order() {
    let server = Server::start();
    let (holder, client) = (plain(&server).await, plain(&server).await);
    let guard = holder.lock("order").lock().await.expect("free");
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..50_u64 {
        let (lock, served) = (client.lock("order"), Arc::clone(&served));
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock().await.expect("granted");
            served.lock().expect("nobody panicked").push(n);
            guard.unlock().await.expect("ours");
        }));
        until("it to wait", ms(1_000), || client.stats().now.waiting == n + 1).await;
    }
    until("it to be subscribed", ms(1_000), || !server.channels().is_empty()).await;
    assert_eq!(server.calls("subscribe"), 1, "one subscription for all");
    guard.unlock().await.expect("ours");
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(*served.lock().expect("nobody panicked"), (0..50).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_waiter_that_leaves_lets_the_next_one_pass() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("left").lock().await.expect("free");
    let lock = client.lock("left");
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    until("the first to wait", ms(1_000), || client.stats().now.waiting == 1).await;
    let second = tokio::spawn(async move { lock.lock().await });
    until("the second to wait", ms(1_000), || client.stats().now.waiting == 2).await;
    first.abort();
    until("the first to leave", ms(1_000), || client.stats().now.waiting == 1).await;
    guard.unlock().await.expect("ours");
    let (taken, _) = within("the second to pass", ms(1_000), second).await;
    drop(taken.expect("no panic").expect("granted"));
}

/// The next in line has no timer of its own until it is told that it is the first: here nobody else would tell it.
#[tokio::test]
async fn a_waiter_that_leaves_tells_the_next_one_to_watch_the_lease() {
    let server = Server::start();
    let client = plain(&server).await;
    let _: u32 = server.ask(&["HSET", "dead", "b983c153-7421-469a-addb-44fb92259a1b:7", "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "dead", "900"]);
    let (first, second) = (client.lock("dead"), client.lock("dead"));
    let first = tokio::spawn(async move { first.lock().await });
    // Subscribed and refused twice: it sleeps until the lease ends.
    until("the first to sleep", ms(800), || client.stats().total.refused == 2).await;
    let second = tokio::spawn(async move { second.lock().await });
    until("the second to wait", ms(800), || client.stats().now.waiting == 2).await;
    first.abort();
    let (taken, _) = within("the lease to end", ms(1_200), second).await;
    drop(taken.expect("no panic").expect("granted"));
}

#[tokio::test]
async fn waiting_goes_on_without_the_right_to_subscribe() {
    let server = Server::start();
    let holder = plain(&server).await;
    let waiter = with_rights(&server, &["~*", "&*", "+@all", "-subscribe"]).await;
    for _ in 0..2 {
        let guard = holder.lock("deaf").lock().await.expect("free");
        let lock = waiter.lock("deaf");
        let waiting = tokio::spawn(async move { lock.lock().await });
        until("it to wait", ms(1_000), || waiter.stats().now.waiting == 1).await;
        tokio::time::sleep(ms(300)).await;
        guard.unlock().await.expect("ours");
        let (taken, _) = within("the next look", ms(1_000), waiting).await;
        taken.expect("no panic").expect("granted").unlock().await.expect("ours");
    }
}

#[tokio::test]
async fn a_lost_local_hold_lets_the_next_one_pass() {
    let server = Server::start();
    let client = plain(&server).await;
    let lease = client.lock("expires").lease(ms(600));
    let guard = lease.lock().await.expect("free");
    let (first, second) = (lease.clone().owner(&Owner::new()), client.lock("expires").owner(&Owner::new()));
    let (first, second) = (first.lock(), second.lock());
    // The first is handed the lock and sits on it; the second must get it when that lease ends.
    let (first, second, ()) = tokio::join!(
        async { first.await.map(std::mem::forget) },
        async {
            until("the first to wait", ms(1_000), || client.stats().now.waiting == 1).await;
            within("the lease to end", ms(2_000), second).await.0
        },
        async {
            until("both to wait", ms(1_000), || client.stats().now.waiting == 2).await;
            guard.unlock().await.expect("ours");
        }
    );
    first.expect("granted");
    assert!(second.is_ok(), "{second:?}");
}

#[tokio::test]
async fn a_waiting_future_is_small() {
    let server = Server::start();
    let lock = plain(&server).await.lock("small");
    let size = size_of_val(&lock.lock());
    assert!(size <= 1_536, "{size} bytes");
}

/// The next in line is not woken when the one before it gets the lock; whatever ends that hold must wake it, however
/// it is found out.
#[tokio::test]
async fn the_next_in_line_passes_when_the_holder_finds_itself_lost() {
    for way in ["check", "nested", "inner first", "unlock"] {
        let server = Server::start();
        // Without a third hand-over the last release has nobody to go to.
        let client = client(&server, |builder| builder.handovers(1)).await;
        let first = client.lock("next").lock().await.expect("free");
        let (holder, next) = (Owner::new(), client.lock("next").owner(&Owner::new()));
        let second = client.lock("next").owner(&holder);
        let second = tokio::spawn(async move { second.lock().await });
        until("the second to wait", ms(1_000), || client.stats().now.waiting == 1).await;
        let third = tokio::spawn(async move { next.lock().await });
        until("the third to wait", ms(1_000), || client.stats().now.waiting == 2).await;
        first.unlock().await.expect("ours");
        let held = second.await.expect("no panic").expect("handed over");
        let again = client.lock("next").owner(&holder);
        let inner = again.lock().await.expect("re-entered");
        let _: u32 = server.ask(&["DEL", "next"]);
        match way {
            "check" => held.check().await.expect_err("lost"),
            "nested" => again.lock().await.map(drop).expect_err("lost"),
            "inner first" => inner.unlock().await.expect_err("lost"),
            _ => {
                drop(inner);
                held.unlock().await.expect_err("lost");
                let (third, _) = within("the third to pass", ms(1_000), third).await;
                drop(third.expect("no panic").expect("granted"));
                continue;
            }
        };
        let (third, _) = within("the third to pass", ms(1_000), third).await;
        drop(third.expect("no panic").expect("granted"));
    }
}
