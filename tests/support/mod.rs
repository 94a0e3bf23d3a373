//! Private servers and what the tests look at them with.

pub(crate) mod proxy;
pub(crate) mod server;

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold::{Builder, Client};

pub(crate) use server::Server;

/// A client of that server with the settings of the test.
pub(crate) async fn client(server: &Server, settings: impl FnOnce(Builder) -> Builder) -> Client {
    settings(Client::builder().url(server.url())).connect().await.expect("the private server answers")
}

/// A client with default settings.
pub(crate) async fn plain(server: &Server) -> Client {
    client(server, |builder| builder).await
}

/// Waits for a condition, and fails the test when it does not come true in time.
pub(crate) async fn until(what: &str, patience: Duration, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < patience, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits for a future, and fails the test when it does not end in time; with how long it took.
pub(crate) async fn within<T>(what: &str, patience: Duration, work: impl Future<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    match tokio::time::timeout(patience, work).await {
        Ok(done) => (done, started.elapsed()),
        Err(_) => panic!("not within {patience:?}: {what}"),
    }
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
