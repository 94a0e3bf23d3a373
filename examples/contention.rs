//! Many tasks share one lock. No task polls: the client passes the lock on to the next task, or the server wakes a waiter.
//!
//! Run: scripts/with-redis cargo run --release --example contention

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use leasehold::{Client, Result};

const TASKS: u64 = 64;
const TURNS: u64 = 50;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    run(Client::connect(&url).await?).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(client: Client) -> Result<()> {
    let inside = Arc::new(AtomicU64::new(0));
    let started = Instant::now();

    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(take_turns(client.clone(), Arc::clone(&inside)))).collect();
    for task in tasks {
        task.await.expect("does not panic")?;
    }

    let (took, stats) = (started.elapsed(), client.stats());
    println!("{} turns of {TASKS} tasks in {took:.2?}", TASKS * TURNS);
    println!("{:.0} turns per second", (TASKS * TURNS) as f64 / took.as_secs_f64());
    println!(
        "{:.2} requests per turn, {} wake-ups by message",
        stats.total.requests as f64 / (TASKS * TURNS) as f64,
        stats.total.wakeups
    );
    client.close().await
}

async fn take_turns(client: Client, inside: Arc<AtomicU64>) -> Result<()> {
    for _ in 0..TURNS {
        let guard = client.mutex("the-one").lock().await?;
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
        inside.fetch_sub(1, Ordering::SeqCst);
        guard.unlock().await?;
    }
    Ok(())
}
