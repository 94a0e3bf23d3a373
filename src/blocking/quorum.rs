//! One lock over several servers.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{
    client::Client,
    kept::Kept,
    wait::{enter, wait},
};
use crate::{
    combined,
    error::{Lost, Result},
    guard::Outcome,
    owner::Owner,
};

/// Several independent servers that grant locks by majority: see [`leasehold::Quorum`](combined::Quorum).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// # let (two, three) = (server::Server::start(), server::Server::start());
/// # let connect = |url: String| leasehold::blocking::Client::connect(&url);
/// # let (a, b, c) = (client, connect(two.url())?, connect(three.url())?);
/// use leasehold::blocking::Quorum;
///
/// let quorum = Quorum::new([a, b, c])?; // a client of each server
/// let guard = quorum.lock("invoice:42").lock()?;
/// assert!(guard.nodes() >= 2);
/// guard.unlock()?; // an error if the majority was lost before
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct Quorum(combined::Quorum);

impl Quorum {
    /// The servers of these clients. Sends nothing.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Quorum::new`](combined::Quorum::new).
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Result<Quorum> {
        combined::Quorum::new(clients.into_iter().map(Into::into)).map(Quorum)
    }

    /// The lock of this name. Sends nothing. The owner is the thread.
    pub fn lock(&self, name: &str) -> QuorumLock {
        QuorumLock(self.0.lock(name))
    }
}

/// A lock over the servers of a [`Quorum`]: see [`leasehold::QuorumLock`](combined::QuorumLock).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// # let (two, three) = (server::Server::start(), server::Server::start());
/// # let connect = |url: String| leasehold::blocking::Client::connect(&url);
/// # let (a, b, c) = (client, connect(two.url())?, connect(three.url())?);
///
/// use std::time::Duration;
///
/// let quorum = leasehold::blocking::Quorum::new([a, b, c])?; // a client of each server
/// if let Some(guard) = quorum.lock("invoice:42").try_lock_for(Duration::from_secs(1))? {
///     guard.unlock()?;
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "this only names a lock and holds nothing: call `.lock()?` on it"]
pub struct QuorumLock(combined::QuorumLock);

impl QuorumLock {
    /// Sets a fixed lease, which the client does not renew. See [`leasehold::QuorumLock::lease`](combined::QuorumLock::lease).
    pub fn lease(self, d: Duration) -> QuorumLock {
        QuorumLock(self.0.lease(d))
    }

    /// Limits how long the lock is held. See [`leasehold::Lock::max_hold`](crate::Lock::max_hold).
    pub fn max_hold(self, d: Duration) -> QuorumLock {
        QuorumLock(self.0.max_hold(d))
    }

    /// Sets the owner for which calls acquire the lock. Defaults to the calling thread.
    pub fn owner(self, o: &Owner) -> QuorumLock {
        QuorumLock(self.0.owner(o))
    }

    /// Makes every call an owner of its own: a thread that holds the lock and acquires it again waits for itself forever.
    pub fn non_reentrant(self) -> QuorumLock {
        QuorumLock(self.0.non_reentrant())
    }

    /// The name, without the clients' prefixes.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Acquires the lock on a majority of the servers; waits for as long as another owner holds it.
    ///
    /// # Errors
    ///
    /// As [`leasehold::QuorumLock::lock`](combined::QuorumLock::lock). In each case this call acquired nothing.
    pub fn lock(&self) -> Result<QuorumGuard> {
        wait(self.0.lock()).map(QuorumGuard::new)
    }

    /// Makes one attempt. See [`leasehold::QuorumLock::try_lock`](combined::QuorumLock::try_lock).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_lock(&self) -> Result<Option<QuorumGuard>> {
        Ok(wait(self.0.try_lock())?.map(QuorumGuard::new))
    }

    /// Waits for at most `limit`; `None` if another owner held the lock, or if callers kept splitting the servers among them.
    ///
    /// # Errors
    ///
    /// As [`leasehold::QuorumLock::try_lock_for`](combined::QuorumLock::try_lock_for).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<QuorumGuard>> {
        Ok(wait(self.0.try_lock_for(limit))?.map(QuorumGuard::new))
    }

    /// As [`try_lock_for`](QuorumLock::try_lock_for), with a deadline.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](QuorumLock::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<QuorumGuard>> {
        Ok(wait(self.0.try_lock_until(deadline))?.map(QuorumGuard::new))
    }

    /// Acquires the lock, runs `work`, and releases the lock. The value of `work` is returned even if the lock was lost meanwhile or the
    /// release fails; [`with_outcome`](QuorumLock::with_outcome) says which.
    ///
    /// # Errors
    ///
    /// As [`lock`](QuorumLock::lock): then `work` did not run.
    ///
    /// # Panics
    ///
    /// If `work` panics; the lock is released before.
    pub fn with<T>(&self, work: impl FnOnce(&QuorumGuard) -> T) -> Result<T> {
        self.with_outcome(work)?.into_value()
    }

    /// As [`with`](QuorumLock::with), and says whether the lock was held until its release. Never [`Outcome::Stopped`].
    ///
    /// # Errors
    ///
    /// As [`lock`](QuorumLock::lock): then `work` did not run.
    ///
    /// # Panics
    ///
    /// As [`with`](QuorumLock::with).
    pub fn with_outcome<T>(&self, work: impl FnOnce(&QuorumGuard) -> T) -> Result<Outcome<T>> {
        let guard = self.lock()?;
        let value = work(&guard);
        Ok(guard.0.completed(value))
    }

    /// Releases the lock on every server on behalf of its holder. See
    /// [`leasehold::QuorumLock::force_unlock`](combined::QuorumLock::force_unlock).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn force_unlock(&self) -> Result<bool> {
        wait(self.0.force_unlock())
    }
}

/// The guard of a [`QuorumLock`]. Dropping it releases the lock before `drop` returns, as with [`Guard`](super::Guard).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// # let (two, three) = (server::Server::start(), server::Server::start());
/// # let connect = |url: String| leasehold::blocking::Client::connect(&url);
/// # let (a, b, c) = (client, connect(two.url())?, connect(three.url())?);
///
/// let quorum = leasehold::blocking::Quorum::new([a, b, c])?; // a client of each server
/// let guard = quorum.lock("invoice:42").lock()?;
/// println!("certain on {} of 3 servers, for {:?}", guard.nodes(), guard.remaining());
/// guard.unlock()?; // an error if the majority was lost before
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct QuorumGuard(Kept<combined::QuorumGuard>);

impl QuorumGuard {
    fn new(guard: combined::QuorumGuard) -> QuorumGuard {
        QuorumGuard(Kept::new(guard))
    }

    /// Releases the lock on all servers; returns as soon as a majority has confirmed it.
    ///
    /// # Errors
    ///
    /// As [`leasehold::QuorumGuard::unlock`](combined::QuorumGuard::unlock).
    pub fn unlock(self) -> Result<()> {
        self.0.unlock()
    }

    /// Runs `callback` on a thread of its own when the majority is lost. See [`Guard::on_lost`](super::Guard::on_lost).
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        self.0.on_lost(callback);
    }

    /// A token that is cancelled when the majority is lost.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        enter(|_| self.0.get().lost_token())
    }

    /// True if the majority is lost, as far as the clients know. Sends no request.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.get().is_lost()
    }

    /// How long a majority certainly has the lock if no server replies anymore; zero once the lock is lost. Sends no request.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.get().remaining()
    }

    /// On how many servers this owner certainly holds the lock now. Sends no request.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.0.get().nodes()
    }

    /// Checks now on the servers that a majority has the lock.
    ///
    /// # Errors
    ///
    /// As [`leasehold::QuorumGuard::check`](combined::QuorumGuard::check).
    pub fn check(&self) -> Result<()> {
        wait(self.0.get().check())
    }
}
