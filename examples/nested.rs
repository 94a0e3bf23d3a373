//! Nested `lock()` calls in one task: three functions that do not know about each other acquire the same lock.
//!
//! Run: scripts/with-redis cargo run --example nested

use leasehold::{Client, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    run(Client::connect(&url).await?).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(client: Client) -> Result<()> {
    bill(&client).await?;
    println!("afterwards locked: {}", client.lock("invoice:42").is_locked().await?);
    client.close().await
}

async fn bill(client: &Client) -> Result<()> {
    let guard = client.lock("invoice:42").lock().await?;
    println!("bill:   {} level(s) as {}", guard.holds(), guard.id());
    add_tax(client).await?;
    guard.unlock().await
}

async fn add_tax(client: &Client) -> Result<()> {
    let guard = client.lock("invoice:42").lock().await?;
    println!("tax:    {} level(s), re-entered without waiting", guard.holds());
    print(client).await?;
    guard.unlock().await
}

async fn print(client: &Client) -> Result<()> {
    let guard = client.lock("invoice:42").lock().await?;
    println!("print:  {} level(s)", guard.holds());

    // Another task is another owner.
    let (other, lock) = (guard.id().to_owned(), client.lock("invoice:42"));
    let taken = tokio::spawn(async move { lock.try_lock().await }).await.expect("does not panic")?;
    println!("another task meanwhile: {}", if taken.is_none() { "has to wait" } else { "acquired it too!" });
    assert_eq!(guard.id(), other);
    guard.unlock().await
}
