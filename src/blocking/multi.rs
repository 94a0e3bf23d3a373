//! Several locks, all or none.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{
    kept::Kept,
    lock::Lock,
    wait::{enter, wait},
};
use crate::{
    combined,
    error::{Lost, Result},
};

/// Several locks that are acquired all or none: see [`leasehold::MultiLock`](combined::MultiLock).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// use leasehold::blocking::MultiLock;
///
/// let transfer = MultiLock::new([client.mutex("account:1"), client.mutex("account:2")]);
/// let guard = transfer.lock()?;
/// guard.unlock()?; // an error if one of them was lost before
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct MultiLock(combined::MultiLock);

impl MultiLock {
    /// All these locks together. Sends nothing.
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> MultiLock {
        MultiLock(combined::MultiLock::new(locks.into_iter().map(Lock::into_inner)))
    }

    /// Acquires all locks; waits for as long as other owners hold one of them.
    ///
    /// # Errors
    ///
    /// As [`leasehold::MultiLock::lock`](combined::MultiLock::lock). In each case this call acquired none of the locks.
    pub fn lock(&self) -> Result<MultiGuard> {
        wait(self.0.lock()).map(MultiGuard::new)
    }

    /// Makes one attempt; `None` if another owner holds one of the locks.
    ///
    /// # Errors
    ///
    /// As [`leasehold::MultiLock::try_lock`](combined::MultiLock::try_lock).
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        Ok(wait(self.0.try_lock())?.map(MultiGuard::new))
    }

    /// Waits for at most `limit`, for all locks together; `None` if other owners still hold one of them.
    ///
    /// # Errors
    ///
    /// As [`leasehold::MultiLock::try_lock_for`](combined::MultiLock::try_lock_for).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard>> {
        Ok(wait(self.0.try_lock_for(limit))?.map(MultiGuard::new))
    }

    /// As [`try_lock_for`](MultiLock::try_lock_for), with a deadline.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](MultiLock::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard>> {
        Ok(wait(self.0.try_lock_until(deadline))?.map(MultiGuard::new))
    }

    /// Acquires the locks, runs `work`, and releases them. The value of `work` is returned even if a lock was lost meanwhile or the release
    /// fails.
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock): then `work` did not run.
    ///
    /// # Panics
    ///
    /// If `work` panics; the locks are released before.
    pub fn with<T>(&self, work: impl FnOnce(&MultiGuard) -> T) -> Result<T> {
        let guard = self.lock()?;
        let value = work(&guard);
        guard.0.completed(value).into_value()
    }
}

/// The guards of all locks of a [`MultiLock`]. Dropping it releases them before `drop` returns, as with [`Guard`](super::Guard).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// use leasehold::blocking::MultiLock;
///
/// let accounts = MultiLock::new([client.mutex("account:7"), client.mutex("account:3")]);
/// let guard = accounts.lock()?;
/// assert_eq!(guard.names().collect::<Vec<_>>(), ["account:3", "account:7"]);
/// guard.unlock()?;
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped: write `let _guard = …`"]
pub struct MultiGuard(Kept<combined::MultiGuard>);

impl MultiGuard {
    fn new(guard: combined::MultiGuard) -> MultiGuard {
        MultiGuard(Kept::new(guard))
    }

    /// Releases all locks together. If the release of one of them fails, the others are released all the same.
    ///
    /// # Errors
    ///
    /// As [`leasehold::MultiGuard::unlock`](combined::MultiGuard::unlock).
    pub fn unlock(self) -> Result<()> {
        self.0.unlock()
    }

    /// Runs `callback` on a thread of its own as soon as any of the locks is lost. See [`Guard::on_lost`](super::Guard::on_lost).
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        self.0.on_lost(callback);
    }

    /// A token that is cancelled when any of the locks is lost.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        enter(|_| self.0.get().lost_token())
    }

    /// True if one of the locks is lost, as far as the client knows. Sends no request.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.get().is_lost()
    }

    /// The time for which all locks are certainly held. Sends no request.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.get().remaining()
    }

    /// Checks now on the servers that all locks are still held.
    ///
    /// # Errors
    ///
    /// As [`leasehold::MultiGuard::check`](combined::MultiGuard::check).
    pub fn check(&self) -> Result<()> {
        wait(self.0.get().check())
    }

    /// The names of the locks, without prefixes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.get().names()
    }
}
