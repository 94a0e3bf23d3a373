//! A job that takes longer than its lease. The client renews the lock; if the lock is lost, the job stops.
//!
//! Run: scripts/with-redis cargo run --example long_job

use std::time::Duration;

use leasehold::{Client, Error, Result};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    // A short lease, so that a job of a few seconds is a long one.
    run(Client::builder().url(url).watchdog(Duration::from_millis(900)).connect().await?).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(client: Client) -> Result<()> {
    let guard = client.mutex("nightly-report").lock().await?;
    guard.protect(report("undisturbed", 10)).await?;
    println!("done, {} renewals\n", client.stats().total.renewals);

    let guard = client.mutex("nightly-report").lock().await?;
    let operator = client.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(800)).await;
        println!("  an operator forces the lock open");
        operator.mutex("nightly-report").force_unlock().await
    });
    match guard.protect(report("disturbed", 10)).await {
        Err(Error::Lost { reason, .. }) => println!("stopped: {reason}"),
        other => println!("not stopped: {other:?}"),
    }
    client.close().await
}

async fn report(what: &str, pages: u32) {
    for page in 1..=pages {
        sleep(Duration::from_millis(300)).await;
        println!("{what}: page {page} of {pages}");
    }
}
