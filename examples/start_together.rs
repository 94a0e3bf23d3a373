//! Four workers on several machines prepare at their own speed, and start together. A fifth party waits until all have finished.
//!
//! `scripts/with-redis cargo run --example start_together`

use std::time::Duration;

use leasehold::{Client, Result};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

const WORKERS: u32 = 4;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    run([Client::connect(&url).await?, Client::connect(&url).await?, Client::connect(&url).await?]).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(clients: [Client; 3]) -> Result<()> {
    let [coordinator, machines @ ..] = &clients;
    // Set both before the workers wait: a latch that does not exist is open.
    let (ready, finished) = (coordinator.latch("import:ready"), coordinator.latch("import:finished"));
    ready.try_set_count(WORKERS).await?;
    finished.try_set_count(WORKERS).await?;

    let began = Instant::now();
    let mut workers = JoinSet::new();
    for (number, client) in (1..=WORKERS).zip(machines.iter().cycle()) {
        workers.spawn(worker(client.clone(), number, began));
    }
    // A worker that dies never counts down, so the wait has a limit.
    if finished.wait_for(Duration::from_secs(60)).await? {
        println!("all have finished");
    } else {
        println!("{} have not finished; giving up", finished.count().await?);
        ready.delete().await?;
        finished.delete().await?;
    }
    workers.join_all().await.into_iter().collect()
}

async fn worker(client: Client, number: u32, began: Instant) -> Result<()> {
    sleep(Duration::from_millis(50) * number).await; // it prepares
    let left = client.latch("import:ready").count_down().await?;
    println!("worker {number} is ready, {left} are not");
    client.latch("import:ready").wait().await?;
    println!("worker {number} starts after {:?}", began.elapsed());
    sleep(Duration::from_millis(20)).await; // it works
    client.latch("import:finished").count_down().await?;
    Ok(())
}
