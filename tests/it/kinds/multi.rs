//! Several locks at once: all or none, in whatever order they are named.

use leasehold::{Client, Error, Lost, MultiGuard, MultiLock, Owner};
use tokio_util::sync::CancellationToken;

use crate::support::{
    Server, before, behind, client, late_polls, ms, one_worker, plain, poll_once,
    proxy::{Fault, Schedule, Way, Which},
    until, within,
};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn all(client: &Client) -> MultiLock {
    MultiLock::new(NAMES.map(|name| client.mutex(name)))
}

async fn free(server: &Server) {
    until("all names to be free", ms(3_000), || NAMES.iter().all(|name| !server.exists(name))).await;
}

#[tokio::test]
async fn all_or_none() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    let guard = all(&one).lock().await.expect("free");
    assert!(NAMES.iter().all(|name| server.exists(name)));
    assert!(!guard.is_lost() && guard.remaining() > ms(20_000));
    guard.check().await.expect("held");
    assert!(all(&two).try_lock().await.expect("answered").is_none());
    guard.unlock().await.expect("held to the end");
    free(&server).await;
    let middle = two.mutex("b").lock().await.expect("free");
    assert!(all(&one).try_lock().await.expect("answered").is_none());
    until("the others to be free", ms(3_000), || !server.exists("a") && !server.exists("c")).await;
    middle.unlock().await.expect("held to the end");
}

#[tokio::test]
async fn a_name_given_twice_is_acquired_once() {
    let server = Server::start();
    let client = plain(&server).await;
    let twice = MultiLock::new(["b", "a", "b"].map(|name| client.mutex(name)));
    let guard = twice.lock().await.expect("it does not wait for itself");
    assert_eq!(guard.names().collect::<Vec<_>>(), ["a", "b"]);
    guard.unlock().await.expect("held to the end");
}

#[tokio::test]
async fn a_reentrant_lock_is_the_callers() {
    let server = Server::start();
    let client = plain(&server).await;
    Owner::new()
        .scope(async {
            let outer = client.lock("b").lock().await.expect("free");
            let guard = MultiLock::new(NAMES.map(|name| client.lock(name))).lock().await.expect("re-entered");
            assert_eq!(outer.holds(), 2);
            guard.unlock().await.expect("held to the end");
            assert_eq!(outer.holds(), 1);
            outer.unlock().await.expect("held to the end");
        })
        .await;
    free(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_do_not_deadlock_and_exclude_each_other() {
    let server = Server::start();
    let mut tasks = Vec::new();
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    for reversed in [false, true, false, true] {
        let (client, inside) = (plain(&server).await, inside.clone());
        tasks.push(tokio::spawn(async move {
            let mut names = NAMES;
            if reversed {
                names.reverse();
            }
            let locks = MultiLock::new(names.map(|name| client.mutex(name)));
            for _ in 0..50 {
                let guard = locks.lock().await.expect("sooner or later free");
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "one at a time");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                guard.unlock().await.expect("held to the end");
            }
        }));
    }
    for task in tasks {
        within("two hundred turns", ms(30_000), task).await.0.expect("no panic");
    }
    free(&server).await;
}

#[tokio::test]
async fn the_limit_is_that_of_the_whole() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    let first = two.mutex("a").lock().await.expect("free");
    let _last = two.mutex("c").lock().await.expect("free");
    let locks = all(&one);
    let waiting = tokio::spawn(async move { locks.try_lock_for(ms(600)).await });
    tokio::time::sleep(ms(300)).await; // half of its limit
    first.unlock().await.expect("held to the end");
    let (answer, took) = within("the limit", ms(5_000), waiting).await;
    assert!(answer.expect("no panic").expect("answered").is_none());
    assert!(took < ms(1_500), "{took:?}: each lock had a limit of its own");
    until("what it had to be free", ms(3_000), || !server.exists("a") && !server.exists("b")).await;
}

#[tokio::test]
async fn dropped_at_any_moment_it_leaves_nothing() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    for round in 0..60 {
        let busy = two.mutex(NAMES[round % 3]).lock().await.expect("free");
        let locks = all(&one);
        let dropped = tokio::time::timeout(std::time::Duration::from_micros(60 * round as u64), locks.lock()).await;
        assert!(dropped.is_err(), "one of them is held");
        busy.unlock().await.expect("held to the end");
    }
    free(&server).await;
    until("no call and no release", ms(3_000), || {
        let now = one.stats().now;
        (now.waiting, now.holds, now.releasing) == (0, 0, 0)
    })
    .await;
}

/// A guard of three locks, one of which was just deleted, and its token.
async fn losing_one(server: &Server) -> (MultiGuard, CancellationToken) {
    let client = client(server, |builder| builder.watchdog(ms(600))).await;
    let guard = all(&client).lock().await.expect("free");
    let token = guard.lost_token();
    let _: u32 = server.ask(&["DEL", "b"]);
    (guard, token)
}

#[tokio::test]
async fn a_loss_of_one_is_the_loss_of_all() {
    let server = Server::start();
    let (guard, token) = losing_one(&server).await;
    assert_eq!(within("the loss", ms(3_000), guard.lost()).await.0, Lost::Removed);
    within("the token", ms(3_000), token.cancelled()).await;
    assert!(guard.is_lost() && guard.remaining().is_zero());
    match guard.unlock().await {
        Err(Error::Lost { name, .. }) => assert_eq!(name, "b"),
        other => panic!("{other:?}"),
    }
    free(&server).await;
}

#[tokio::test]
async fn a_token_that_is_asked_for_after_the_loss_is_cancelled_at_once() {
    let server = Server::start();
    let guard = all(&client(&server, |builder| builder.watchdog(ms(600))).await).lock().await.expect("free");
    let _: u32 = server.ask(&["DEL", "b"]);
    within("the loss", ms(3_000), guard.lost()).await;
    assert!(guard.lost_token().is_cancelled());
    drop(guard);
    free(&server).await;
}

/// A caller may see the loss, and drop the guard, before the task that watches for the token runs.
#[tokio::test]
async fn the_token_is_cancelled_although_the_guard_was_dropped_at_the_loss() {
    let server = Server::start();
    let (guard, token) = losing_one(&server).await;
    let (stopped, _) = within("the loss", ms(3_000), guard.protect(std::future::pending::<()>())).await;
    assert!(stopped.expect_err("lost").is_lost());
    within("the token", ms(3_000), token.cancelled()).await;
    free(&server).await;
}

#[tokio::test]
async fn the_token_is_cancelled_although_an_unlock_was_dropped_after_the_loss() {
    let server = Server::start();
    let (guard, token) = losing_one(&server).await;
    let drops = async {
        guard.lost().await;
        let mut unlocking = Box::pin(guard.unlock()); // no task runs between the loss and the drop
        assert!(poll_once(unlocking.as_mut()).is_pending());
    };
    within("the loss", ms(3_000), drops).await;
    within("the token", ms(3_000), token.cancelled()).await;
    free(&server).await;
}

#[tokio::test]
async fn work_ends_with_the_first_loss() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(600))).await;
    let locks = all(&client);
    assert_eq!(locks.with(async || 42).await.expect("done"), 42);
    let endless = locks.lock().await.expect("free").protect(std::future::pending::<()>());
    let endless = tokio::spawn(endless);
    until("all to be held", ms(3_000), || NAMES.iter().all(|name| server.exists(name))).await;
    let _: u32 = server.ask(&["DEL", "c"]);
    let (stopped, _) = within("the end of the work", ms(3_000), endless).await;
    assert!(stopped.expect("no panic").expect_err("lost").is_lost());
}

#[tokio::test]
async fn locks_of_several_servers() {
    let (here, there) = (Server::start(), Server::start());
    let (one, two) = (plain(&here).await, plain(&there).await);
    let locks = MultiLock::new([one.mutex("a"), two.mutex("a"), two.mutex("b")]);
    let guard = locks.lock().await.expect("free");
    assert_eq!(guard.names().collect::<Vec<_>>(), ["a", "a", "b"]);
    assert!(here.exists("a") && there.exists("a") && there.exists("b"));
    guard.unlock().await.expect("held to the end");
}

#[tokio::test]
async fn what_cannot_be_held_together_is_refused() {
    let server = Server::start();
    let client = plain(&server).await;
    let error = MultiLock::new([]).lock().await.expect_err("nothing to hold");
    assert!(matches!(error, Error::InvalidConfig { setting: "locks", .. }), "{error}");
    let error = MultiLock::new([client.mutex("a").min_hold(ms(50))]).lock().await.expect_err("min_hold");
    assert!(matches!(error, Error::InvalidConfig { setting: "min_hold", .. }), "{error}");
    let error = MultiLock::new([client.mutex("a"), client.mutex("")]).lock().await.expect_err("no name");
    assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    let again = plain(&server).await;
    let of_two = MultiLock::new([client.mutex("a"), again.mutex("a")]);
    let (answer, _) = within("an error", ms(3_000), of_two.lock()).await;
    let error = answer.expect_err("it would wait for itself");
    assert!(matches!(error, Error::InvalidConfig { setting: "locks", .. }), "{error}");
    free(&server).await;
}

/// Tasks that acquire the same locks again and again, each by a value of its own.
async fn thirty_turns_each(all: Vec<MultiLock>) {
    let turns = all.into_iter().map(|locks| {
        tokio::spawn(async move {
            for _ in 0..30 {
                let guard = locks.lock().await.expect("sooner or later free");
                tokio::task::yield_now().await;
                guard.unlock().await.expect("held to the end");
            }
        })
    });
    for turns in turns.collect::<Vec<_>>() {
        within("thirty turns", ms(10_000), turns).await.0.expect("no panic");
    }
}

#[tokio::test]
async fn one_name_on_several_servers_is_acquired_in_the_same_order_by_all() {
    let (a, b) = (Server::start(), Server::start());
    for _ in 0..8 {
        let mut pairs = Vec::new();
        for _ in 0..2 {
            let (on_a, on_b) = (plain(&a).await, plain(&b).await);
            let both = MultiLock::new([on_a.mutex("x"), on_b.mutex("x")]);
            pairs.push(both);
        }
        thirty_turns_each(pairs).await;
    }
}

#[tokio::test]
async fn a_lock_lost_while_it_waits_for_the_next_is_acquired_anew() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    let other = two.mutex("b").lock().await.expect("free");
    let locks = MultiLock::new([one.mutex("a").lease(ms(700)), one.mutex("b"), one.mutex("c")]);
    let waiting = tokio::spawn(async move { locks.lock().await });
    until("it to have the first", ms(3_000), || server.exists("a")).await;
    let _: u32 = server.ask(&["DEL", "a"]);
    tokio::time::sleep(ms(700)).await; // an extension has found that
    other.unlock().await.expect("held to the end");
    let guard = within("all", ms(3_000), waiting).await.0.expect("no panic").expect("acquired");
    assert!(!guard.is_lost() && guard.remaining() > ms(100));
    guard.unlock().await.expect("held to the end");
    free(&server).await;
}

#[tokio::test]
async fn a_lease_shorter_than_the_wait_for_the_next_lock_is_extended() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    let other = two.mutex("b").lock().await.expect("free");
    let locks = MultiLock::new([one.mutex("a").lease(ms(300)), one.mutex("b")]);
    let waiting = tokio::spawn(async move { locks.lock().await });
    until("it to have the first", ms(3_000), || server.exists("a")).await;
    assert!(two.mutex("a").try_lock_for(ms(1_500)).await.expect("answered").is_none(), "it was not kept");
    other.unlock().await.expect("held to the end");
    let guard = within("both", ms(3_000), waiting).await.0.expect("no panic").expect("acquired");
    guard.unlock().await.expect("held to the end");
}

#[test]
fn protected_work_stops_although_the_worker_is_busy() {
    let server = Server::start();
    one_worker().block_on(async {
        let client = plain(&server).await;
        let locks = MultiLock::new([client.mutex("a"), client.mutex("b").lease(ms(400))]);
        let guard = locks.lock().await.expect("free");
        let late = late_polls(ms(400), |work| guard.protect(work)).await;
        assert!(late <= 1, "{late} polls after the lease had expired");
    });
}

#[tokio::test]
async fn one_name_in_several_databases_is_acquired_in_the_same_order_by_all() {
    let server = Server::start();
    for _ in 0..8 {
        let mut pairs = Vec::new();
        for _ in 0..2 {
            let zero = plain(&server).await;
            let one = Client::connect(&format!("{}/1", server.url())).await.expect("the private server answers");
            let both = MultiLock::new([zero.mutex("x"), one.mutex("x")]);
            pairs.push(both);
        }
        thirty_turns_each(pairs).await;
    }
}

#[tokio::test]
async fn slow_requests_do_not_add_up_after_a_wait_limit() {
    let server = Server::start();
    let (mut proxies, mut locks) = (Vec::new(), Vec::new());
    for number in 0..16 {
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder).await;
        locks.push(client.mutex(&format!("{number}")));
        proxies.push(proxy);
    }
    let locks = MultiLock::new(locks);
    locks.lock().await.expect("free").unlock().await.expect("held to the end"); // the server knows the scripts
    for proxy in &proxies {
        let chances = vec![(1.0, Fault::Delay(Way::There, ms(60)))];
        proxy.schedule(Schedule { seed: 1, which: Which::Command("EVALSHA"), chances });
    }
    // After the limit a request has 100 ms for its reply. A busy machine can need more than the 40 ms that are left of them.
    for _ in 0..5 {
        let (answer, took) = within("an answer", ms(10_000), locks.try_lock_for(ms(50))).await;
        assert!(took < ms(800), "{took:?}: each request had a time of its own");
        match answer {
            Ok(Some(_)) => return,
            Ok(None) => {} // the last try's locks are on their way back
            Err(error) => assert!(error.is_unavailable(), "{error}"),
        }
    }
    panic!("never acquired");
}

#[tokio::test]
async fn a_frozen_server_does_not_prolong_a_wait_limit() {
    let server = Server::start();
    let client = plain(&server).await;
    server.freeze();
    let (answer, took) = within("an answer", ms(5_000), all(&client).try_lock_for(ms(300))).await;
    server.thaw();
    assert!(answer.expect_err("no answer").is_unavailable());
    assert!(took < ms(1_500), "{took:?}");
    free(&server).await;
}
