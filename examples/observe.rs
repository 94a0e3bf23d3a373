//! How to observe the locks of a service: `tracing` events and spans, gauges and counters, and the list of held locks.
//!
//! `scripts/with-redis cargo run --example observe`

use std::time::Duration;

use leasehold::{Client, Stats};
use tokio::time::{interval, sleep};

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    // The target `leasehold::lock` has the events of locks, `leasehold::conn` those of connections. Neither ever prints a URL.
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).init();
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    // If a wait takes longer than this, the client logs it while it lasts, with the holder of the lock.
    run(Client::builder().url(url).slow_wait(Duration::from_millis(200)).connect().await?).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(client: Client) -> leasehold::Result<()> {
    let observed = client.clone();
    let observer = tokio::spawn(async move {
        let mut tick = interval(Duration::from_millis(500));
        while !observed.is_closed() {
            tick.tick().await;
            print(&observed.stats());
            for held in observed.held() {
                println!("  {}: held for {:.1?}, hold count {}", held.name, held.since.elapsed(), held.holds);
            }
        }
    });
    let workers: Vec<_> = (0..4).map(|_| tokio::spawn(work(client.clone()))).collect();
    for worker in workers {
        worker.await.expect("it does not panic")?;
    }
    client.shutdown(Duration::from_secs(5)).await?;
    observer.await.expect("it does not panic");
    Ok(())
}

async fn work(client: Client) -> leasehold::Result<()> {
    for _ in 0..3 {
        client.mutex("printer").with(async || sleep(Duration::from_millis(150)).await).await?;
    }
    Ok(())
}

/// Gauges for a dashboard, counters for rates, and the wait times that users notice.
fn print(Stats { now, total, wait, .. }: &Stats) {
    println!("{} held, {} waiting, {} acquired, {} lost", now.holds, now.waiting, total.acquired, total.lost);
    println!("  wait times: p50 {:.0?}, p99 {:.0?}", wait.p50, wait.p99);
}
