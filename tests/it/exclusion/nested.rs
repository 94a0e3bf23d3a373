//! Nested `lock()` calls re-enter, wherever the task runs.

use leasehold::{Client, Error, Lost, Owner};

use crate::support::{Server, client, ms, plain, until, within};

/// Three levels up and down again, released in an order of its own, with somebody else trying meanwhile.
async fn nests(client: &Client, server: &Server, name: &str) {
    let lock = client.lock(name);
    let first = lock.lock().await.expect("free");
    let count = || server.lock(name).into_iter().map(|(_, count)| count).collect::<Vec<_>>();
    assert_eq!((count(), first.holds()), (vec![1], 1));

    let second = lock.lock().await.expect("re-entered");
    assert_eq!((count(), second.holds()), (vec![2], 2));
    let third = lock.try_lock().await.expect("answered").expect("re-entered");
    assert_eq!((count(), first.holds()), (vec![3], 3));
    assert_eq!((first.id(), second.id()), (second.id(), third.id()));
    assert_eq!(server.lock(name)[0].0, first.id());
    assert!(first.id().starts_with(&client.id().to_string()));

    let stranger = Owner::new();
    assert!(stranger.scope(lock.try_lock()).await.expect("answered").is_none());

    first.unlock().await.expect("ours");
    assert_eq!(count(), [2]);
    third.unlock().await.expect("ours");
    assert_eq!(count(), [1]);
    assert!(lock.clone().owner(&stranger).try_lock().await.expect("answered").is_none());
    second.unlock().await.expect("ours");
    assert!(!server.exists(name));
}

#[tokio::test]
async fn in_a_test_body() {
    let server = Server::start();
    nests(&plain(&server).await, &server, "body").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_test_body_with_many_threads() {
    let server = Server::start();
    nests(&plain(&server).await, &server, "body").await;
}

#[test]
fn in_block_on() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { nests(&plain(&server).await, &server, "block_on").await });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_tasks_that_move_between_threads() {
    let server = std::sync::Arc::new(Server::start());
    let client = plain(&server).await;
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (client, server) = (client.clone(), server.clone());
            tokio::spawn(async move {
                for round in 0..3 {
                    nests(&client, &server, &format!("task-{task}-{round}")).await;
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no assertion failed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_spawn_blocking() {
    let server = std::sync::Arc::new(Server::start());
    let client = plain(&server).await;
    let handle = tokio::runtime::Handle::current();
    let work = move || handle.block_on(nests(&client, &server, "blocking"));
    tokio::task::spawn_blocking(work).await.expect("no assertion failed");
}

#[tokio::test]
async fn in_a_local_set() {
    let server = std::rc::Rc::new(Server::start());
    let client = plain(&server).await;
    let local = tokio::task::LocalSet::new();
    local.run_until(nests(&client, &server, "local-body")).await;
    let in_task = {
        let (client, server) = (client.clone(), server.clone());
        local.spawn_local(async move { nests(&client, &server, "local-task").await })
    };
    local.await;
    in_task.await.expect("no assertion failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn across_spawn_by_scope() {
    let server = Server::start();
    let client = plain(&server).await;
    let outer = client.lock("shared").lock().await.expect("free");

    let (owner, lock) = (outer.owner().clone(), client.lock("shared"));
    let inside = tokio::spawn(async move { owner.scope(lock.try_lock()).await }).await.expect("no panic");
    let inner = inside.expect("answered").expect("re-entered");
    assert_eq!(server.lock("shared")[0].1, 2);

    let lock = client.lock("shared");
    let outside = tokio::spawn(async move { lock.try_lock().await }).await.expect("no panic");
    assert!(outside.expect("answered").is_none(), "a task of its own is somebody else");

    outer.unlock().await.expect("ours");
    inner.unlock().await.expect("ours");
    assert!(!server.exists("shared"));
}

#[tokio::test]
async fn branches_of_one_task_are_one_owner() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.lock("joined");
    let (one, two) = tokio::join!(lock.lock(), lock.lock());
    let (one, two) = (one.expect("free"), two.expect("re-entered"));
    assert_eq!((one.id(), server.lock("joined")[0].1), (two.id(), 2));
    let (one, two) = tokio::join!(one.unlock(), two.unlock());
    one.and(two).expect("ours");
    assert!(!server.exists("joined"));
}

#[tokio::test]
async fn branches_exclude_each_other_by_scope() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.lock("joined");
    let inside = std::cell::Cell::new(0);
    let turn = || async {
        let guard = lock.lock().await.expect("sooner or later");
        inside.set(inside.get() + 1);
        assert_eq!(inside.get(), 1);
        tokio::time::sleep(ms(5)).await;
        inside.set(inside.get() - 1);
        guard.unlock().await.expect("ours");
    };
    let (one, two) = (Owner::new(), Owner::new());
    tokio::join!(one.scope(turn()), two.scope(turn()));
    assert!(!server.exists("joined"));
}

#[tokio::test]
async fn a_second_branch_waits_with_the_first_and_gets_in_with_it() {
    let server = Server::start();
    let client = plain(&server).await;
    let stranger = Owner::new();
    let taken = client.lock("busy").owner(&stranger).lock().await.expect("free");
    let lock = client.lock("busy");
    let release = async {
        tokio::time::sleep(ms(50)).await;
        assert!(lock.try_lock().await.expect("answered").is_none(), "while the first branch waits");
        taken.unlock().await.expect("ours");
    };
    let (one, two, ()) = tokio::join!(lock.lock(), lock.lock(), release);
    assert_eq!(one.expect("granted").id(), two.expect("re-entered").id());
}

#[tokio::test]
async fn a_lost_outer_hold_fails_the_inner_lock() {
    let server = Server::start();
    let client = plain(&server).await;
    let outer = client.lock("gone").lock().await.expect("free");
    let () = server.ask::<redis::Value>(&["DEL", "gone"]).ne(&redis::Value::Nil).then_some(()).expect("deleted");
    let inner = client.lock("gone").lock().await;
    assert!(matches!(inner, Err(Error::Lost { reason: Lost::Removed, .. })), "{inner:?}");
    assert!(!server.exists("gone"), "not taken afresh");
    assert!(outer.is_lost());
    outer.unlock().await.expect_err("lost");

    let anew = client.lock("gone").lock().await.expect("after the last guard a new hold can begin");
    assert_eq!(anew.holds(), 1);
}

#[tokio::test]
async fn each_outermost_hold_has_a_new_id() {
    let server = Server::start();
    let client = plain(&server).await;
    let one = client.lock("again").lock().await.expect("free");
    let first = one.id().to_owned();
    one.unlock().await.expect("ours");
    assert_ne!(client.lock("again").lock().await.expect("free").id(), first);
}

#[tokio::test]
async fn re_entry_never_shortens_the_lease() {
    let server = Server::start();
    let client = plain(&server).await;
    let outer = client.lock("long").lock().await.expect("free");
    let inner = client.lock("long").lease(ms(200)).lock().await.expect("re-entered");
    assert!(server.pttl("long") > 29_000);
    assert!(outer.remaining() > ms(29_000));
    inner.unlock().await.expect("ours");
    assert!(server.pttl("long") > 29_000);
}

#[tokio::test]
async fn guards_given_back_all_at_once_are_all_told_that_it_was_theirs() {
    let server = Server::start();
    let client = plain(&server).await;
    for _ in 0..20 {
        let lock = client.lock("at-once");
        let guards = [lock.lock().await, lock.lock().await, lock.lock().await].map(|guard| guard.expect("ours"));
        let [one, two, three] = guards;
        let (one, two, three) = tokio::join!(one.unlock(), two.unlock(), three.unlock());
        one.and(two).and(three).expect("ours to the end");
        assert!(!server.exists("at-once"));
    }
    let stats = client.stats();
    assert_eq!(
        (stats.total.acquired, stats.total.reentered, stats.total.released, stats.total.lost, stats.now.holds),
        (20, 40, 20, 0, 0)
    );
}

#[tokio::test]
async fn an_inner_lease_moves_the_end_of_a_shorter_outer_one() {
    let server = Server::start();
    let client = plain(&server).await;
    let outer = client.lock("x").lease(ms(300)).lock().await.expect("free");
    let inner = client.lock("x").lease(ms(10_000)).lock().await.expect("re-entered");
    assert!(server.pttl("x") > 9_000 && outer.remaining() > ms(9_000));
    inner.unlock().await.expect("ours");
    assert!(server.pttl("x") > 9_000, "it stays there");
}

#[tokio::test]
async fn the_watchdog_keeps_a_fixed_outer_hold_while_an_inner_guard_asks_for_it() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(1_000))).await;
    let outer = client.lock("x").lease(ms(1_000)).lock().await.expect("free");
    let inner = client.lock("x").lock().await.expect("re-entered");
    let renewals = client.stats().total.renewals;
    until("three renewals", ms(9_000), || client.stats().total.renewals >= renewals + 3).await;
    outer.check().await.expect("kept far beyond its own lease");
    inner.unlock().await.expect("ours");
    let (lost, _) = within("the end of what is left", ms(2_000), outer.lost()).await;
    assert_eq!(lost, Lost::Expired);
}

#[tokio::test]
async fn an_inner_max_hold_that_is_given_back_in_time_has_no_effect() {
    let server = Server::start();
    let client = plain(&server).await;
    let outer = client.lock("x").lock().await.expect("free");
    let inner = client.lock("x").max_hold(ms(100)).lock().await.expect("re-entered");
    assert!(outer.remaining() <= ms(100), "while it is there it ends the hold");
    inner.unlock().await.expect("ours");
    assert!(outer.remaining() > ms(20_000));
}
