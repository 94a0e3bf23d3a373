//! A job that all machines are told to run at the same time, and one of them does: the others skip it.
//!
//! `scripts/with-redis cargo run --example cron`

use std::time::Duration;

use leasehold::Client;
use tokio::time::{Instant, sleep, sleep_until};

/// Clocks differ: a machine that is late must still find the lock taken, however short the job was.
const AT_LEAST: Duration = Duration::from_millis(500);
/// A job that takes longer has gone wrong. It is stopped, and its lock ends with the lease.
const AT_MOST: Duration = Duration::from_secs(60 * 60);

/// True if it was done here.
async fn nightly(client: &Client, machine: &str) -> leasehold::Result<bool> {
    let lock = client.mutex("nightly-report").max_hold(AT_MOST);
    let Some(guard) = lock.try_lock().await? else {
        println!("{machine}: skipped, another machine is at it");
        return Ok(false);
    };
    let begun = Instant::now();
    guard
        .protect(async {
            println!("{machine}: does the job");
            sleep(Duration::from_millis(100)).await; // the job
            sleep_until(begun + AT_LEAST).await;
        })
        .await?;
    Ok(true)
}

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let machines = ["one", "two", "three"];
    let (a, b, c) = tokio::join!(Client::connect(&url), Client::connect(&url), Client::connect(&url));
    let clients = [a?, b?, c?];
    for night in 1..=3 {
        println!("night {night}");
        let mut tasks = Vec::new();
        for (late, (client, machine)) in clients.iter().cloned().zip(machines).enumerate() {
            tasks.push(tokio::spawn(async move {
                sleep(Duration::from_millis(50) * u32::try_from(late).expect("three machines")).await;
                nightly(&client, machine).await
            }));
        }
        let mut done = 0;
        for task in tasks {
            done += u32::from(task.await.expect("the job does not panic")?);
        }
        assert_eq!(done, 1);
    }
    for client in clients {
        client.close().await?;
    }
    Ok(())
}
