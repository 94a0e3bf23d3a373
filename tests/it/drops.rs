//! Dropped guards are given back from anywhere.

use std::time::Duration;

use crate::support::{Server, Stopwatch, ms, plain, until};

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
