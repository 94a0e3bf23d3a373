//! The semaphore.

use std::{future::Future, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    kept::{AsyncGuard, Kept},
    wait::{enter, wait},
};
use crate::{
    error::{Lost, Result},
    guard::Outcome,
    primitives::{self, Holder},
};

/// A semaphore by name: see [`leasehold::Semaphore`](primitives::Semaphore). Cheap to clone.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let downloads = client.semaphore("downloads");
/// downloads.try_set_permits(10)?;
/// let page = downloads.with(1, |_permits| "page")?;
/// # assert_eq!(page, "page");
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "this only names a semaphore: call `.acquire(n)?` or another method on it"]
pub struct Semaphore(primitives::Semaphore);

impl Semaphore {
    pub(super) fn new(semaphore: primitives::Semaphore) -> Semaphore {
        Semaphore(semaphore)
    }

    /// Sets a fixed lease, which the client does not renew.
    pub fn lease(self, d: Duration) -> Self {
        Semaphore(self.0.lease(d))
    }

    /// Limits how long permits are held.
    pub fn max_hold(self, d: Duration) -> Self {
        Semaphore(self.0.max_hold(d))
    }

    /// Creates the semaphore with so many permits; false if there is one already.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Semaphore`](primitives::Semaphore#errors).
    pub fn try_set_permits(&self, n: u32) -> Result<bool> {
        wait(self.0.try_set_permits(n))
    }

    /// Sets how many permits there are in all.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Semaphore`](primitives::Semaphore#errors).
    pub fn set_permits(&self, n: u32) -> Result<()> {
        wait(self.0.set_permits(n))
    }

    /// Adds so many permits, or removes them if `n` is negative.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Semaphore`](primitives::Semaphore#errors).
    pub fn add_permits(&self, n: i64) -> Result<()> {
        wait(self.0.add_permits(n))
    }

    /// The number of free permits.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Semaphore`](primitives::Semaphore#errors).
    pub fn available(&self) -> Result<i64> {
        wait(self.0.available())
    }

    /// The holders of permits.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Semaphore`](primitives::Semaphore#errors).
    pub fn inspect(&self) -> Result<Vec<Holder>> {
        wait(self.0.inspect())
    }

    /// Acquires `n` permits; waits until so many are free at once.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Semaphore`](primitives::Semaphore#errors).
    pub fn acquire(&self, n: u32) -> Result<Permits> {
        wait(self.0.acquire(n)).map(Permits::new)
    }

    /// Makes one attempt; `None` if fewer than `n` permits are free, or if others wait.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Semaphore`](primitives::Semaphore#errors).
    pub fn try_acquire(&self, n: u32) -> Result<Option<Permits>> {
        Ok(wait(self.0.try_acquire(n))?.map(Permits::new))
    }

    /// Waits for `n` permits, but for no longer than `limit`; then `None`.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Semaphore`](primitives::Semaphore#errors).
    pub fn try_acquire_for(&self, n: u32, limit: Duration) -> Result<Option<Permits>> {
        Ok(wait(self.0.try_acquire_for(n, limit))?.map(Permits::new))
    }

    /// Acquires `n` permits, runs `work`, and releases them. The value of `work` is returned even if the permits were lost meanwhile.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire): then `work` did not run.
    ///
    /// # Panics
    ///
    /// If `work` panics; the permits are released before.
    pub fn with<T>(&self, n: u32, work: impl FnOnce(&Permits) -> T) -> Result<T> {
        let permits = self.acquire(n)?;
        let value = work(&permits);
        permits.completed(value).into_value()
    }

    /// The name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }
}

/// Permits that are held, until [`release`](Permits::release) or drop: see [`leasehold::Permits`](primitives::Permits).
/// Dropping them releases them before `drop` returns, unless the server does not reply: see [the module](super).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let licences = client.semaphore("licences");
/// licences.try_set_permits(5)?;
/// let mut permits = licences.acquire(3)?;
/// let one = permits.split(1).expect("it has three"); // for another thread
/// permits.release()?;
/// assert_eq!((one.count(), licences.available()?), (1, 4));
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the permits are released when this is dropped: write `let _permits = …`"]
pub struct Permits(Kept<primitives::Permits>);

impl AsyncGuard for primitives::Permits {
    fn names(&self) -> String {
        self.name().to_owned()
    }

    fn unlock(self) -> impl Future<Output = Result<()>> + Send {
        self.release()
    }

    fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
        self.guard().watch()
    }

    fn command_timeout(&self) -> Duration {
        self.guard().command_timeout()
    }
}

impl Permits {
    fn new(permits: primitives::Permits) -> Permits {
        Permits(Kept::new(permits))
    }

    fn completed<T>(self, value: T) -> Outcome<T> {
        self.0.completed(value)
    }

    /// The number of permits that this value has.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.get().count()
    }

    /// Splits `n` permits off, with a value of their own; `None` unless both then have at least one.
    #[must_use = "the permits that were split off are released when they are dropped"]
    pub fn split(&mut self, n: u32) -> Option<Permits> {
        enter(|_| self.0.get_mut().split(n)).map(Permits::new)
    }

    /// Releases the permits. `Ok` means that they were held until the release, as the server confirmed.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Permits::release`](primitives::Permits::release).
    pub fn release(self) -> Result<()> {
        self.0.unlock()
    }

    /// Runs `callback` on a thread of its own when the client learns that the permits are lost. See [`Guard::on_lost`](super::Guard::on_lost).
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        self.0.on_lost(callback);
    }

    /// A token that is cancelled when the permits are lost, for other threads and tasks.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        enter(|_| self.0.get().lost_token())
    }

    /// True if the permits are lost, as far as the client knows. Sends no request.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.get().is_lost()
    }

    /// The time for which the permits are certainly held. Sends no request.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.get().remaining()
    }

    /// Checks now on the server that the permits are still held.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Permits::check`](primitives::Permits::check).
    pub fn check(&self) -> Result<()> {
        wait(self.0.get().check())
    }

    /// The id of this hold.
    #[must_use]
    pub fn id(&self) -> &str {
        self.0.get().id()
    }

    /// The name of the semaphore, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.get().name()
    }
}
