//! leasehold: one client for the process and each server, default settings. Several servers are a quorum.

use leasehold::{
    FairLock, Guard, Permits, PlainSemaphore, Quorum, QuorumGuard, QuorumLock, RwLock, Semaphore, WriteGuard,
};
use peers::{Args, Kind, Outcome, PERMITS};

#[derive(Clone)]
struct Client {
    /// The first, if there are several.
    client: leasehold::Client,
    quorum: Option<Quorum>,
    kind: Kind,
}

struct Lock {
    lock: OfKind,
    held: Option<Held>,
}

enum OfKind {
    Lock(leasehold::Lock),
    Read(RwLock),
    Write(RwLock),
    Fair(FairLock),
    Quorum(QuorumLock),
    Semaphore(Semaphore),
    Plain(PlainSemaphore),
}

enum Held {
    Guard(Guard),
    Write(WriteGuard),
    Quorum(QuorumGuard),
    Permits(Permits),
    Plain(PlainSemaphore),
}

impl peers::Client for Client {
    type Lock = Lock;
    type Held = Guard;
    const KINDS: &[Kind] =
        &[Kind::Lock, Kind::Read, Kind::Write, Kind::Fair, Kind::Permits, Kind::Counter, Kind::Latch];

    async fn connect(args: &Args) -> Outcome<Client> {
        let mut clients = Vec::new();
        for url in args.url.split(',') {
            clients.push(leasehold::Client::connect(url).await?);
        }
        let client = clients[0].clone();
        let quorum = (clients.len() > 1).then(|| Quorum::new(clients)).transpose()?;
        Ok(Client { client, quorum, kind: args.kind })
    }

    fn lock(&self, name: &str) -> Lock {
        let lock = match (self.kind, &self.quorum) {
            (Kind::Lock | Kind::Latch, Some(quorum)) => OfKind::Quorum(quorum.lock(name)),
            (Kind::Lock | Kind::Latch, None) => OfKind::Lock(self.client.lock(name)),
            (Kind::Read, _) => OfKind::Read(self.client.rw_lock(name)),
            (Kind::Write, _) => OfKind::Write(self.client.rw_lock(name)),
            (Kind::Fair, _) => OfKind::Fair(self.client.fair_lock(name)),
            (Kind::Permits, _) => OfKind::Semaphore(self.client.semaphore(name)),
            (Kind::Counter, _) => OfKind::Plain(self.client.plain_semaphore(name)),
        };
        Lock { lock, held: None }
    }

    async fn hold(&self, name: String) -> Outcome<Guard> {
        Ok(self.client.lock(&name).lock().await?)
    }

    async fn prepare(&self, name: &str) -> Outcome<()> {
        match self.kind {
            Kind::Permits => self.client.semaphore(name).set_permits(PERMITS).await?,
            Kind::Counter => _ = self.client.plain_semaphore(name).try_set_permits(PERMITS).await?,
            _ => {}
        }
        Ok(())
    }

    async fn set(&self, name: &str) -> Outcome<()> {
        Ok(self.client.latch(name).try_set_count(1).await.map(drop)?)
    }

    async fn count_down(&self, name: &str) -> Outcome<()> {
        Ok(self.client.latch(name).count_down().await.map(drop)?)
    }

    async fn wait(&self, name: &str) -> Outcome<()> {
        Ok(self.client.latch(name).wait().await?)
    }
}

impl peers::Lock for Lock {
    async fn lock(&mut self) -> Outcome<()> {
        self.held = Some(match &self.lock {
            OfKind::Lock(lock) => Held::Guard(lock.lock().await?),
            OfKind::Read(lock) => Held::Guard(lock.read().await?.into()),
            OfKind::Write(lock) => Held::Write(lock.write().await?),
            OfKind::Fair(lock) => Held::Guard(lock.lock().await?),
            OfKind::Quorum(lock) => Held::Quorum(lock.lock().await?),
            OfKind::Semaphore(semaphore) => Held::Permits(semaphore.acquire(1).await?),
            OfKind::Plain(semaphore) => {
                semaphore.acquire(1).await?;
                Held::Plain(semaphore.clone())
            }
        });
        Ok(())
    }

    async fn unlock(&mut self) -> Outcome<()> {
        match self.held.take().ok_or("not locked")? {
            Held::Guard(guard) => guard.unlock().await?,
            Held::Write(guard) => guard.unlock().await?,
            Held::Quorum(guard) => guard.unlock().await?,
            Held::Permits(permits) => permits.release().await?,
            Held::Plain(semaphore) => semaphore.release(1).await?,
        }
        Ok(())
    }
}

fn main() -> Outcome<()> {
    peers::run::<Client>(&["leasehold", "fred", "tokio"])
}
