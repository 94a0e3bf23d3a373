//! leasehold: one client for the process, default settings.

use leasehold::{FairLock, Guard, RwLock, WriteGuard};
use peers::{Args, Kind, Outcome};

#[derive(Clone)]
struct Client {
    client: leasehold::Client,
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
}

enum Held {
    Guard(Guard),
    Write(WriteGuard),
}

impl peers::Client for Client {
    type Lock = Lock;
    type Held = Guard;
    const KINDS: &[Kind] = &[Kind::Lock, Kind::Read, Kind::Write, Kind::Fair];

    async fn connect(args: &Args) -> Outcome<Client> {
        Ok(Client { client: leasehold::Client::connect(&args.url).await?, kind: args.kind })
    }

    fn lock(&self, name: &str) -> Lock {
        let lock = match self.kind {
            Kind::Lock => OfKind::Lock(self.client.lock(name)),
            Kind::Read => OfKind::Read(self.client.rw_lock(name)),
            Kind::Write => OfKind::Write(self.client.rw_lock(name)),
            Kind::Fair => OfKind::Fair(self.client.fair_lock(name)),
        };
        Lock { lock, held: None }
    }

    async fn hold(&self, name: String) -> Outcome<Guard> {
        Ok(self.client.lock(&name).lock().await?)
    }
}

impl peers::Lock for Lock {
    async fn lock(&mut self) -> Outcome<()> {
        self.held = Some(match &self.lock {
            OfKind::Lock(lock) => Held::Guard(lock.lock().await?),
            OfKind::Read(lock) => Held::Guard(lock.read().await?),
            OfKind::Write(lock) => Held::Write(lock.write().await?),
            OfKind::Fair(lock) => Held::Guard(lock.lock().await?),
        });
        Ok(())
    }

    async fn unlock(&mut self) -> Outcome<()> {
        match self.held.take().ok_or("not locked")? {
            Held::Guard(guard) => guard.unlock().await?,
            Held::Write(guard) => guard.unlock().await?,
        }
        Ok(())
    }
}

fn main() -> Outcome<()> {
    peers::run::<Client>(&["leasehold", "fred", "tokio"])
}
