//! Who listens on the channels without wanting a lock does not slow those who do.

use std::time::{Duration, Instant};

use leasehold::Client;
use serial_test::serial;

use crate::support::{Server, plain};

/// How long a lone task needs for its turns.
async fn turns(client: &Client) -> Duration {
    let (lock, started) = (client.lock("x"), Instant::now());
    for _ in 0..100 {
        lock.lock().await.expect("free").unlock().await.expect("ours");
    }
    started.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
async fn a_listener_to_everything_is_not_taken_for_somebody_who_waits() {
    let server = Server::start();
    let client = plain(&server).await;
    let mut raw = server.raw();
    let (mut alone, mut overheard) = (Duration::MAX, Duration::MAX);
    // A busy machine can make a round slow. With a pause at each release, no round is quick.
    let deadline = Instant::now() + Duration::from_secs(30);
    while overheard >= alone.saturating_mul(3) && Instant::now() < deadline {
        alone = alone.min(turns(&client).await);
        let mut listener = raw.as_pubsub();
        listener.psubscribe("*").expect("it answers");
        overheard = overheard.min(turns(&client).await);
        listener.punsubscribe("*").expect("it answers");
    }
    assert!(overheard < alone * 3, "{alone:?} for a lone task, {overheard:?} with somebody who listens to everything");
}
