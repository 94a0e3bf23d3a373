//! Locks from plain threads, without async.
//!
//! `scripts/with-redis cargo run --features blocking --example threads`

use std::{thread, time::Duration};

use leasehold::{Result, blocking::Client};

fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    run(Client::connect(&url)?)
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) fn run(client: Client) -> Result<()> {
    thread::scope(|scope| {
        for number in 1..=3 {
            let client = &client;
            scope.spawn(move || job(client, number).expect("the server replies"));
        }
    });
    client.close()
}

/// Each call of `mutex` is an owner of its own. The lock is released before the thread continues.
fn job(client: &Client, number: u32) -> Result<()> {
    let guard = client.mutex("printer").lock()?;
    println!("thread {number} prints alone");
    thread::sleep(Duration::from_millis(50));
    guard.unlock()
}
