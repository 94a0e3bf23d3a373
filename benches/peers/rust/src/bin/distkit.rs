//! distkit: one connection manager for the process, default settings. Each task has a lock of its own, since two tasks
//! that share an `RwLock` both write: its owner is the lock, not the guard.

use std::sync::Arc;

use distkit::{
    DistkitRedisKey,
    lock::{LockGuardState, LockOptions, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
};
use peers::{Args, Kind, Outcome};
use redis::aio::ConnectionManager;

#[derive(Clone)]
struct Client {
    connection: ConnectionManager,
    kind: Kind,
}

struct Lock {
    lock: OfKind,
    held: Option<Held>,
}

enum OfKind {
    Lock(Arc<Mutex>),
    Read(Arc<RwLock>),
    Write(Arc<RwLock>),
}

enum Held {
    Lock(MutexGuard),
    Read(RwLockReadGuard),
    Write(RwLockWriteGuard),
}

impl Client {
    /// It accepts no colon in a name.
    fn options(&self, name: &str) -> LockOptions {
        LockOptions::new(DistkitRedisKey::sanitize_or_panic(name.to_owned()), self.connection.clone())
    }
}

impl peers::Client for Client {
    type Lock = Lock;
    type Held = MutexGuard;
    const KINDS: &[Kind] = &[Kind::Lock, Kind::Read, Kind::Write];

    async fn connect(args: &Args) -> Outcome<Client> {
        let connection = redis::Client::open(args.url.as_str())?.get_connection_manager().await?;
        Ok(Client { connection, kind: args.kind })
    }

    fn lock(&self, name: &str) -> Lock {
        let options = self.options(name);
        let lock = match self.kind {
            Kind::Read => OfKind::Read(RwLock::new(options)),
            Kind::Write => OfKind::Write(RwLock::new(options)),
            _ => OfKind::Lock(Mutex::new(options)),
        };
        Lock { lock, held: None }
    }

    async fn hold(&self, name: String) -> Outcome<MutexGuard> {
        Ok(Mutex::new(self.options(&name)).lock().await?)
    }
}

impl peers::Lock for Lock {
    async fn lock(&mut self) -> Outcome<()> {
        self.held = Some(match &self.lock {
            OfKind::Lock(lock) => Held::Lock(lock.lock().await?),
            OfKind::Read(lock) => Held::Read(lock.read().await?),
            OfKind::Write(lock) => Held::Write(lock.write().await?),
        });
        Ok(())
    }

    async fn unlock(&mut self) -> Outcome<()> {
        let state = match self.held.take().ok_or("not locked")? {
            Held::Lock(guard) => guard.release().await?,
            Held::Read(guard) => guard.release().await?,
            Held::Write(guard) => guard.release().await?,
        };
        if state == LockGuardState::Released { Ok(()) } else { Err("lost".into()) }
    }
}

fn main() -> Outcome<()> {
    peers::run::<Client>(&["distkit", "redis", "tokio"])
}
