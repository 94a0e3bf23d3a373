//! The client of plain threads.

use std::time::Duration;

use uuid::Uuid;

use super::{
    latch::Latch,
    lock::{FairLock, FencedLock, Lock},
    plain_semaphore::PlainSemaphore,
    rw::RwLock,
    semaphore::Semaphore,
    wait::wait,
};
use crate::{
    client::{self, Builder, Held},
    error::Result,
    stats::Stats,
};

/// A connection to Redis or Valkey, for plain threads: see [`leasehold::Client`](client::Client). Clones are cheap and share it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// use std::time::Duration;
///
/// // let client = leasehold::Client::builder().url("redis://127.0.0.1:6379").connect_blocking()?;
/// if let Some(guard) = client.mutex("nightly-report").try_lock_for(Duration::from_secs(1))? {
///     // one holder on all machines
///     guard.unlock()?; // an error if the lock was lost before
/// }
/// client.close()?;
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct Client(client::Client);

impl Client {
    /// Connects with the default settings. For others: [`Builder::connect_blocking`].
    ///
    /// # Errors
    ///
    /// As [`leasehold::Client::connect`](client::Client::connect).
    pub fn connect(url: &str) -> Result<Client> {
        wait(client::Client::connect(url)).map(Client)
    }

    /// Connects to the URL in the environment variable `REDIS_URL`.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Client::from_env`](client::Client::from_env).
    pub fn from_env() -> Result<Client> {
        wait(client::Client::from_env()).map(Client)
    }

    /// A client of a server in this process, with default settings. Time is the machine's, also for leases: threads cannot wait for a
    /// paused clock. For other settings, convert a client of [`Builder::connect_in_memory`].
    ///
    /// ```
    /// # fn main() -> leasehold::Result<()> {
    /// use leasehold::{MemoryServer, blocking::Client};
    ///
    /// let server = MemoryServer::new();
    /// let (client, other) = (Client::in_memory(&server)?, Client::in_memory(&server)?);
    /// let guard = client.mutex("invoice:42").lock()?;
    /// assert!(other.mutex("invoice:42").try_lock()?.is_none());
    /// server.restart();
    /// assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Builder::connect_in_memory`].
    #[cfg(feature = "test-util")]
    pub fn in_memory(server: &crate::MemoryServer) -> Result<Client> {
        wait(async { client::Client::in_memory(server) }).map(Client)
    }

    /// A reentrant lock. Sends nothing. See [`leasehold::Client::lock`](client::Client::lock); the owner is the thread.
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.0.lock(name))
    }

    /// A lock that is not reentrant. Sends nothing. See [`leasehold::Client::mutex`](client::Client::mutex).
    #[must_use]
    pub fn mutex(&self, name: &str) -> Lock {
        Lock::new(self.0.mutex(name))
    }

    /// A lock that is acquired in the order of requests. Sends nothing. See
    /// [`leasehold::Client::fair_lock`](client::Client::fair_lock).
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> FairLock {
        FairLock::new(self.0.fair_lock(name))
    }

    /// A lock whose holds have fencing tokens. Sends nothing. See [`leasehold::Client::fenced_lock`](client::Client::fenced_lock).
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        FencedLock::new(self.0.fenced_lock(name))
    }

    /// A lock for many readers or one writer. Sends nothing. See [`leasehold::Client::rw_lock`](client::Client::rw_lock).
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock::new(self.0.rw_lock(name))
    }

    /// A count-down latch. Sends nothing. See [`leasehold::Client::latch`](client::Client::latch).
    pub fn latch(&self, name: &str) -> Latch {
        Latch::new(self.0.latch(name))
    }

    /// A semaphore whose permits have leases. Sends nothing. See [`leasehold::Client::semaphore`](client::Client::semaphore).
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(self.0.semaphore(name))
    }

    /// A plain semaphore, to share with JVMs that use `RSemaphore`. Sends nothing. See
    /// [`leasehold::Client::plain_semaphore`](client::Client::plain_semaphore).
    pub fn plain_semaphore(&self, name: &str) -> PlainSemaphore {
        PlainSemaphore::new(self.0.plain_semaphore(name))
    }

    /// The first half of every id of a hold in Redis.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.0.id()
    }

    /// Counters since the start, and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// What this client holds now.
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        self.0.held()
    }

    /// True if the client acquires no more locks. See [`leasehold::Client::is_closed`](client::Client::is_closed).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Checks that the server replies on every connection for commands.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Client::ping`](client::Client::ping).
    pub fn ping(&self) -> Result<()> {
        wait(self.0.ping())
    }

    /// Releases all locks and disconnects. Guards that are still alive are lost.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Client::close`](client::Client::close).
    pub fn close(self) -> Result<()> {
        wait(self.0.close())
    }

    /// Acquires no more locks, waits for at most `grace` until all guards are released, then closes.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Client::close`](client::Client::close).
    pub fn shutdown(self, grace: Duration) -> Result<()> {
        wait(self.0.shutdown(grace))
    }
}

/// The same client: its tasks stay on the runtime that it was connected on.
impl From<client::Client> for Client {
    fn from(client: client::Client) -> Client {
        Client(client)
    }
}

/// The same client, for async code.
impl From<Client> for client::Client {
    fn from(client: Client) -> client::Client {
        client.0
    }
}

impl Builder {
    /// Checks the settings and connects a client for plain threads. The background thread of [`blocking`](crate::blocking) serves it,
    /// whatever [`own_thread`](Builder::own_thread) says.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run_blocking(|client| {
    /// # let url = client_url();
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::builder().url(url).watchdog(Duration::from_secs(10)).connect_blocking()?;
    /// client.ping()?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`connect`](Builder::connect).
    pub fn connect_blocking(self) -> Result<Client> {
        wait(self.own_thread(false).connect()).map(Client)
    }
}
