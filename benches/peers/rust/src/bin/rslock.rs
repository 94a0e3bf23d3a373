//! rslock: one manager for the process and all servers, `acquire`, which waits for ever, and `using`, which renews.

use std::time::Duration;

use peers::{Args, Outcome};
use rslock::{LockGuard, LockManager};
use tokio::{sync::oneshot, task::JoinHandle};

/// What its documentation has in the examples.
const LEASE: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Client(LockManager);

struct Lock {
    manager: LockManager,
    name: String,
    guard: Option<LockGuard>,
}

impl peers::Client for Client {
    type Lock = Lock;
    type Held = JoinHandle<()>;

    async fn connect(args: &Args) -> Outcome<Client> {
        Ok(Client(LockManager::new(args.url.split(',').collect())))
    }

    fn lock(&self, name: &str) -> Lock {
        Lock { manager: self.0.clone(), name: name.to_owned(), guard: None }
    }

    async fn hold(&self, name: String) -> Outcome<JoinHandle<()>> {
        let (manager, (taken, is_taken)) = (self.0.clone(), oneshot::channel());
        let task = tokio::spawn(async move {
            let work = async || {
                _ = taken.send(());
                std::future::pending::<()>().await;
            };
            if let Err(error) = manager.using(name.as_bytes(), LEASE, work).await {
                eprintln!("{error}");
            }
        });
        is_taken.await?;
        Ok(task)
    }
}

impl peers::Lock for Lock {
    async fn lock(&mut self) -> Outcome<()> {
        self.guard = Some(self.manager.acquire(self.name.as_str(), LEASE).await?);
        Ok(())
    }

    async fn unlock(&mut self) -> Outcome<()> {
        self.guard.take().ok_or("not locked")?.release().await;
        Ok(())
    }
}

fn main() -> Outcome<()> {
    peers::run::<Client>(&["rslock", "redis", "tokio"])
}
