//! All machines start the same job at the same time. One machine runs it, and the others skip it.
//!
//! `scripts/with-redis cargo run --example cron`

use std::time::Duration;

use leasehold::Client;
use tokio::time::sleep;

/// Clocks differ. A machine whose clock is late must still find the lock held, however short the job was. This must be true even if the
/// machine that ran the job has died since. This value is short because this is an example. Use minutes:
/// the clocks of machines, and the times at which processes start, differ by more than this.
const AT_LEAST: Duration = Duration::from_millis(500);
/// A job that takes longer than this hangs. leasehold then stops the job and releases the lock. If the job blocks its thread, the lease expires.
const AT_MOST: Duration = Duration::from_secs(60 * 60);

/// True if the job ran here. If the server is unreachable, this is an error, not `None`: then start it again later, for otherwise no machine
/// may run the job.
async fn nightly(client: &Client, machine: &str) -> leasehold::Result<bool> {
    let lock = client.mutex("nightly-report").min_hold(AT_LEAST).max_hold(AT_MOST);
    let Some(guard) = lock.try_lock().await? else {
        println!("{machine}: skipped, another machine runs it or ran it");
        return Ok(false);
    };
    let job = async {
        println!("{machine}: runs the job");
        sleep(Duration::from_millis(100)).await;
    };
    guard.protect(job).await?; // releases the lock; it stays held until AT_LEAST is over
    Ok(true)
}

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let (a, b, c) = tokio::join!(Client::connect(&url), Client::connect(&url), Client::connect(&url));
    run([a?, b?, c?]).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(clients: [Client; 3]) -> leasehold::Result<()> {
    let machines = ["one", "two", "three"];
    for night in 1..=3 {
        println!("night {night}");
        let mut tasks = Vec::new();
        for (late, (client, machine)) in clients.iter().cloned().zip(machines).enumerate() {
            tasks.push(tokio::spawn(async move {
                sleep(Duration::from_millis(125) * u32::try_from(late).expect("three machines")).await;
                nightly(&client, machine).await
            }));
        }
        let mut done = 0;
        for task in tasks {
            done += u32::from(task.await.expect("the job does not panic")?);
        }
        assert_eq!(done, 1);
        sleep(AT_LEAST).await; // until the next night
    }
    for client in clients {
        client.close().await?;
    }
    Ok(())
}
