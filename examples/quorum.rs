//! One lock over three servers that do not know of each other. It is acquired although one of the clients leads nowhere.
//!
//! `scripts/with-redis scripts/with-redis scripts/with-redis cargo run --example quorum`

use std::time::Duration;

use leasehold::{Client, Error, Quorum, Result};

/// A client for each URL. With `connect_lazy`, a server may be down when the program starts.
fn clients<'a>(urls: impl Iterator<Item = &'a str>) -> Result<Vec<Client>> {
    let settings = |url| Client::builder().url(url).command_timeout(Duration::from_millis(500));
    urls.map(|url| settings(url).connect_lazy()).collect()
}

#[tokio::main]
async fn main() -> Result<()> {
    let urls = std::env::var("REDIS_URLS").unwrap_or_default();
    let here = clients(urls.split(',').take(3))?;
    // Another process, which cannot reach one of the servers; and one that cannot reach two of them.
    let others = clients(urls.split(',').take(2).chain(["redis://127.0.0.1:1"]))?;
    let alone = clients(urls.split(',').take(1).chain(["redis://127.0.0.1:1", "redis://127.0.0.1:2"]))?;
    run(here, others, alone).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(here: Vec<Client>, others: Vec<Client>, alone: Vec<Client>) -> Result<()> {
    let quorum = Quorum::new(here.clone())?;
    let guard = quorum.lock("invoice:42").non_reentrant().lock().await?;
    println!("held on {} servers for at least {:?}", guard.nodes(), guard.remaining());

    let other = Quorum::new(others)?.lock("invoice:42").non_reentrant();
    assert!(other.try_lock().await?.is_none(), "a majority replied that the lock is held");
    let waiting = tokio::spawn(async move { other.lock().await });
    guard.unlock().await?; // wakes it
    let guard = waiting.await.expect("no panic")?;
    println!("the next holder has it on {} servers", guard.nodes());
    guard.unlock().await?;

    // Two of three do not reply: nobody can know whether the lock is free.
    let answer = Quorum::new(alone)?.lock("invoice:42").try_lock().await;
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    for client in here {
        client.close().await?;
    }
    Ok(())
}
