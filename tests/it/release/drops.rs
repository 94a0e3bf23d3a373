//! Dropped guards are given back from anywhere.

use std::{sync::Arc, time::Duration};

use leasehold::{Client, Credentials, Owner};

use crate::support::{Server, Stopwatch, ms, plain, poll_once, poll_until, until};

const SOON: Duration = ms(100);

/// Waits on the test's own clock, without any runtime's help.
fn free_soon(server: &Server, name: &str) {
    let started = Stopwatch::start();
    while server.exists(name) {
        assert!(started.elapsed() < SOON, "{name} is still locked");
    }
}

#[tokio::test]
async fn in_a_task() {
    let server = Server::start();
    let client = plain(&server).await;
    drop(client.lock("dropped").lock().await.expect("free"));
    until("it to be free", SOON, || !server.exists("dropped")).await;
    until("nothing to be under way", SOON, || client.stats().now.releasing == 0).await;
    assert_eq!(client.stats().now.holds, 0);
}

#[tokio::test]
async fn one_level_of_several() {
    let server = Server::start();
    let client = plain(&server).await;
    let outer = client.lock("levels").lock().await.expect("free");
    drop(client.lock("levels").lock().await.expect("re-entered"));
    until("one level to go", SOON, || server.lock("levels")[0].1 == 1).await;
    outer.unlock().await.expect("still ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_plain_thread() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("thread").lock().await.expect("free");
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    free_soon(&server, "thread");
}

#[test]
fn after_block_on_returned() {
    for runtime in [
        tokio::runtime::Builder::new_multi_thread().enable_all().build(),
        tokio::runtime::Builder::new_current_thread().enable_all().build(),
    ] {
        let (server, runtime) = (Server::start(), runtime.expect("a runtime"));
        let (client, guard) = runtime.block_on(async {
            let client = plain(&server).await;
            let guard = client.lock("later").lock().await.expect("free");
            (client, guard)
        });
        drop(guard);
        free_soon(&server, "later");
        drop(client);
    }
}

#[test]
fn after_the_runtime_is_gone_when_the_client_has_its_own_thread() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (client, guard) = runtime.block_on(async {
        let client = crate::support::client(&server, |builder| builder.own_thread(true)).await;
        let guard = client.lock("orphan").lock().await.expect("free");
        (client, guard)
    });
    drop(runtime);
    drop(guard);
    free_soon(&server, "orphan");
    drop(client);
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_panic() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.lock("panic");
    let task = tokio::spawn(async move {
        let _guard = lock.lock().await.expect("free");
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    task.await.expect_err("it panicked");
    free_soon(&server, "panic");
}

#[tokio::test]
async fn with_the_last_handle_of_the_client() {
    let server = Server::start();
    let guard = plain(&server).await.lock("last").lock().await.expect("free");
    assert!(server.exists("last"));
    drop(guard);
    until("it to be free", SOON, || !server.exists("last")).await;
    let own = || server.ask::<String>(&["CLIENT", "LIST"]).lines().count();
    until("the connection to be closed", ms(1_000), || own() == 1).await;
}

#[tokio::test]
async fn who_drops_and_asks_again_finds_it_free() {
    let server = Server::start();
    let client = plain(&server).await;
    for _ in 0..200 {
        let guard = client.lock("again").try_lock().await.expect("answered");
        assert!(guard.is_some(), "the release of our own guard must come first");
    }
}

/// A client that keeps `kept` for as long as anything of it is left.
async fn keeping(kept: &Arc<()>, server: &Server) -> Client {
    server.set_user("u", &["on", ">p", "~*", "&*", "+@all"]);
    let kept = Arc::clone(kept);
    let credentials = move || {
        let _kept = Arc::clone(&kept);
        async { Ok::<_, std::io::Error>(Credentials::new("u", "p")) }
    };
    let builder = Client::builder().url(server.url()).credentials(credentials).own_thread(false);
    builder.connect().await.expect("let in")
}

/// Ways in which a program may leave a client without closing it.
async fn left_at_an_odd_moment(way: usize, client: Client) {
    let lock = client.lock("x").owner(&Owner::new());
    match way {
        0 => _ = poll_once(Box::pin(lock.lock()).as_mut()), // a quick reply may be there at once
        1 => {
            let guard = lock.lock().await.expect("free");
            let _ = poll_once(Box::pin(guard.unlock()).as_mut());
        }
        2 => {
            let guard = lock.lock().await.expect("free");
            drop((client, lock));
            std::thread::spawn(move || drop(guard)).join().expect("no panic");
        }
        3 => {
            let guard = lock.lock().await.expect("free");
            let _token = guard.lost_token();
            drop((client, lock));
            drop(guard);
        }
        4 => {
            let held = client.lock("held");
            let _guard = held.lock().await.expect("free");
            let other = client.lock("held").owner(&Owner::new());
            let mut waiting = Box::pin(other.lock());
            poll_until("it to wait", waiting.as_mut(), || client.stats().now.waiting == 1).await;
        }
        _ => {
            let taken = client.lock("taken");
            let mut waiting = Box::pin(taken.lock());
            poll_until("it to be refused", waiting.as_mut(), || client.stats().total.refused >= 2).await;
            drop(client);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_dropped_at_odd_moments_leave_nothing() {
    let server = Server::start();
    let (other, kept) = (plain(&server).await, Arc::new(()));
    let _taken = other.lock("taken").lock().await.expect("free");
    let connections =
        || server.ask::<String>(&["CLIENT", "LIST"]).lines().filter(|line| line.contains("user=u")).count();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for n in 0..240 {
        left_at_an_odd_moment(n % 6, keeping(&kept, &server).await).await;
    }
    until("all tasks to end", ms(20_000), || tasks() <= before).await;
    until("all connections to be closed", ms(20_000), || connections() == 0).await;
    // A connection that is closed, and a task that has ended, are still dropped for a moment.
    until("all clients to be dropped", ms(20_000), || Arc::strong_count(&kept) == 1).await;
    assert!(!server.exists("x") && !server.exists("held"));
}

/// The runtime of the client ends first, while calls wait on another one.
#[test]
fn a_client_whose_runtime_has_ended_leaves_nothing() {
    let server = Server::start();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (kept, here) = (Arc::new(()), runtime());
    let other = here.block_on(plain(&server));
    let _taken = here.block_on(other.lock("taken").lock()).expect("free");
    for closes in [false, true] {
        let elsewhere = runtime();
        let client = elsewhere.block_on(keeping(&kept, &server));
        let guard = here.block_on(client.lock("x").lock()).expect("free");
        let taken = client.lock("taken");
        let mut waiting = Box::pin(taken.lock());
        let refused = || client.stats().total.refused >= 2;
        here.block_on(poll_until("it to wait", waiting.as_mut(), refused));
        drop(elsewhere);
        if closes {
            here.block_on(client.clone().close()).expect_err("its runtime has ended");
        }
        drop(waiting);
        drop((guard, taken, client));
        here.block_on(until("all of it to be dropped", ms(5_000), || Arc::strong_count(&kept) == 1));
        let _: u32 = server.ask(&["DEL", "x"]);
    }
}
