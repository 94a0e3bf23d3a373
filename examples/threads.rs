//! Locks from plain threads: one runtime in the background, and `Handle::block_on` in each thread.
//!
//! `scripts/with-redis cargo run --example threads`

use std::{thread, time::Duration};

use leasehold::{Client, Result};
use tokio::runtime::Runtime;

fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let runtime = Runtime::new().expect("threads can be started"); // lives longer than every thread that uses it
    let client = runtime.block_on(Client::connect(&url))?;
    thread::scope(|scope| {
        for number in 1..=3 {
            let (client, handle) = (&client, runtime.handle());
            scope.spawn(move || handle.block_on(job(client, number)).expect("the server answers"));
        }
    });
    runtime.block_on(client.close())
}

/// A thread is an owner, as a task is. The lock is released before the thread continues.
async fn job(client: &Client, number: u32) -> Result<()> {
    let guard = client.mutex("printer").lock().await?;
    println!("thread {number} prints alone");
    thread::sleep(Duration::from_millis(50)); // blocking work: the lock is renewed by the runtime's own threads
    guard.unlock().await
}
