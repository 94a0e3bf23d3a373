//! At most ten downloads at once across the fleet: three machines share the permits of one semaphore. A large download counts as four.
//!
//! `scripts/with-redis cargo run --example downloads`

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use leasehold::{Client, Result};
use tokio::{task::JoinSet, time::sleep};

const AT_ONCE: u32 = 10;
static RUNNING: AtomicU32 = AtomicU32::new(0);

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    run([Client::connect(&url).await?, Client::connect(&url).await?, Client::connect(&url).await?]).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(machines: [Client; 3]) -> Result<()> {
    let mut downloads = JoinSet::new();
    for (number, machine) in (0..30).zip(machines.iter().cycle()) {
        downloads.spawn(download(machine.clone(), number));
    }
    downloads.join_all().await.into_iter().collect()
}

async fn download(machine: Client, number: u32) -> Result<()> {
    let permits = machine.semaphore("downloads");
    permits.try_set_permits(AT_ONCE).await?; // the first one sets them
    let weight = if number.is_multiple_of(5) { 4 } else { 1 };
    // If the permits are lost, for example because the server has lost its data, the download is dropped.
    let most = permits
        .with(weight, async || {
            let now = RUNNING.fetch_add(weight, Ordering::SeqCst) + weight;
            sleep(Duration::from_millis(50)).await; // the download
            RUNNING.fetch_sub(weight, Ordering::SeqCst);
            now
        })
        .await?;
    println!("download {number} is done; {most} of {AT_ONCE} permits were in use when it began");
    assert!(most <= AT_ONCE);
    Ok(())
}
