//! Money moves from one account to another: both accounts are locked, or none, in whatever order they are named.
//!
//! `scripts/with-redis cargo run --example transfer`

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use leasehold::{Client, MultiLock, Result};

/// Stands for a database without transactions.
type Accounts = Arc<Mutex<HashMap<&'static str, i64>>>;

async fn transfer(
    client: &Client,
    accounts: &Accounts,
    from: &'static str,
    to: &'static str,
    amount: i64,
) -> Result<()> {
    let both = MultiLock::new([from, to].map(|account| client.mutex(&format!("account:{account}"))));
    let guard = both.lock().await?;
    let balance = |account| accounts.lock().expect("no panic")[account];
    let (was_from, was_to) = (balance(from), balance(to));
    tokio::task::yield_now().await; // the database is slow
    accounts.lock().expect("no panic").extend([(from, was_from - amount), (to, was_to + amount)]);
    // An error names the lock that was lost. The money has moved, so do not transfer it again.
    guard.unlock().await
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    run(Client::connect(&url).await?).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(client: Client) -> Result<()> {
    let names = ["ada", "bob", "eve"];
    let accounts: Accounts = Arc::new(Mutex::new(names.map(|name| (name, 100)).into()));
    let mut tasks = Vec::new();
    for turn in 0..60 {
        let (client, accounts) = (client.clone(), Arc::clone(&accounts));
        let (from, to) = (names[turn % 3], names[(turn + 1 + turn % 2) % 3]);
        tasks.push(tokio::spawn(async move { transfer(&client, &accounts, from, to, 1).await }));
    }
    for task in tasks {
        task.await.expect("no panic")?;
    }
    let total: i64 = accounts.lock().expect("no panic").values().sum();
    println!("60 transfers, {total} in all accounts");
    assert_eq!(total, 300, "no transfer was lost");
    client.close().await
}
