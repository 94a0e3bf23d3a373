//! Three candidates, one leader at a time. When the leader shuts down, the next one leads at once.
//!
//! `scripts/with-redis cargo run --example leader`

use std::time::Duration;

use leasehold::{Client, Error, Guard, Result};
use tokio::{sync::mpsc, time::sleep};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    run([Client::connect(&url).await?, Client::connect(&url).await?, Client::connect(&url).await?]).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(clients: [Client; 3]) -> Result<()> {
    let (elected, mut leaders) = mpsc::unbounded_channel();
    let mut campaigns = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let elected = elected.clone();
        let work = async move |_guard: &Guard| {
            elected.send(number).expect("main listens");
            loop {
                sleep(Duration::from_millis(50)).await; // work that only the leader does
            }
        };
        campaigns.push(tokio::spawn(client.leader("scheduler").run::<(), _>(work)));
    }
    for _ in 0..3 {
        let number = leaders.recv().await.expect("one of them leads");
        println!("candidate {number} leads; it shuts down");
        clients[number].clone().shutdown(Duration::from_secs(5)).await?;
    }
    for campaign in campaigns {
        assert!(matches!(campaign.await.expect("no panic"), Err(Error::Closed)));
    }
    Ok(())
}
