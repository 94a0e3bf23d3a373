//! The crate redisson: one client for the process, a connection for each task, since a waiter keeps its connection
//! while it sleeps.

use std::sync::Arc;

use peers::{Args, Outcome};
use redisson::{AsyncRLock, AsyncRedissonClient, RedissonConfig};

#[derive(Clone)]
struct Client(Arc<AsyncRedissonClient>);

struct Lock(AsyncRLock);

impl peers::Client for Client {
    type Lock = Lock;
    type Held = AsyncRLock;

    async fn connect(args: &Args) -> Outcome<Client> {
        let connections = if args.section == "held" { 1 } else { args.tasks };
        let config = RedissonConfig::single_server(&args.url).with_pool_size(u32::try_from(connections)?.max(10));
        Ok(Client(Arc::new(AsyncRedissonClient::new(config).await?)))
    }

    fn lock(&self, name: &str) -> Lock {
        Lock(self.0.get_lock(name))
    }

    async fn hold(&self, name: String) -> Outcome<AsyncRLock> {
        let lock = self.0.get_lock(&name);
        lock.lock().await?;
        Ok(lock)
    }
}

impl peers::Lock for Lock {
    async fn lock(&mut self) -> Outcome<()> {
        Ok(self.0.lock().await?)
    }

    /// Its answer is `false` for every lock that was held and is now free, so it tells nothing.
    async fn unlock(&mut self) -> Outcome<()> {
        self.0.unlock().await?;
        Ok(())
    }
}

fn main() -> Outcome<()> {
    peers::run::<Client>(&["redisson", "redis", "tokio"])
}
