//! leasehold: one client for the process, default settings.

use peers::{Args, Outcome};

#[derive(Clone)]
struct Client(leasehold::Client);

struct Lock {
    lock: leasehold::Lock,
    guard: Option<leasehold::Guard>,
}

impl peers::Client for Client {
    type Lock = Lock;
    type Held = leasehold::Guard;

    async fn connect(args: &Args) -> Outcome<Client> {
        Ok(Client(leasehold::Client::connect(&args.url).await?))
    }

    fn lock(&self, name: &str) -> Lock {
        Lock { lock: self.0.lock(name), guard: None }
    }

    async fn hold(&self, name: String) -> Outcome<leasehold::Guard> {
        Ok(self.0.lock(&name).lock().await?)
    }
}

impl peers::Lock for Lock {
    async fn lock(&mut self) -> Outcome<()> {
        self.guard = Some(self.lock.lock().await?);
        Ok(())
    }

    async fn unlock(&mut self) -> Outcome<()> {
        Ok(self.guard.take().ok_or("not locked")?.unlock().await?)
    }
}

fn main() -> Outcome<()> {
    peers::run::<Client>(&["leasehold", "fred", "tokio"])
}
