//! The plain semaphore.

use std::time::Duration;

use super::wait::{released, wait};
use crate::{
    error::Result,
    primitives::{self, OwedPermits},
};

/// A plain semaphore by name: see [`leasehold::PlainSemaphore`](primitives::PlainSemaphore). If a process dies, its
/// permits are lost forever. Cheap to clone.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let downloads = client.plain_semaphore("downloads");
/// downloads.try_set_permits(10)?;
/// let page = downloads.with(1, || "page")?;
/// # assert_eq!(page, "page");
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "this only names a semaphore: call `.acquire(n)?` or another method on it"]
pub struct PlainSemaphore(primitives::PlainSemaphore);

impl PlainSemaphore {
    pub(super) fn new(semaphore: primitives::PlainSemaphore) -> PlainSemaphore {
        PlainSemaphore(semaphore)
    }

    /// Creates the semaphore with so many permits; false if there is one already.
    ///
    /// # Errors
    ///
    /// See [`leasehold::PlainSemaphore`](primitives::PlainSemaphore#errors).
    pub fn try_set_permits(&self, n: u32) -> Result<bool> {
        wait(self.0.try_set_permits(n))
    }

    /// Adds so many permits, or removes them if `n` is negative. Without a semaphore it creates one.
    ///
    /// # Errors
    ///
    /// See [`leasehold::PlainSemaphore`](primitives::PlainSemaphore#errors).
    pub fn add_permits(&self, n: i64) -> Result<()> {
        wait(self.0.add_permits(n))
    }

    /// The number of free permits.
    ///
    /// # Errors
    ///
    /// See [`leasehold::PlainSemaphore`](primitives::PlainSemaphore#errors).
    pub fn available(&self) -> Result<i64> {
        wait(self.0.available())
    }

    /// Acquires all permits that are free, and returns their number.
    ///
    /// # Errors
    ///
    /// As [`leasehold::PlainSemaphore::drain`](primitives::PlainSemaphore::drain): the permits may be gone.
    pub fn drain(&self) -> Result<u64> {
        wait(self.0.drain())
    }

    /// Acquires `n` permits; waits until so many are free at once.
    ///
    /// # Errors
    ///
    /// See [`leasehold::PlainSemaphore`](primitives::PlainSemaphore#errors).
    pub fn acquire(&self, n: u32) -> Result<()> {
        wait(self.0.acquire(n))
    }

    /// Makes one attempt; false if fewer than `n` permits are free, or if others of this client wait.
    ///
    /// # Errors
    ///
    /// See [`leasehold::PlainSemaphore`](primitives::PlainSemaphore#errors).
    pub fn try_acquire(&self, n: u32) -> Result<bool> {
        wait(self.0.try_acquire(n))
    }

    /// Waits for `n` permits, but for no longer than `limit`; then false.
    ///
    /// # Errors
    ///
    /// See [`leasehold::PlainSemaphore`](primitives::PlainSemaphore#errors).
    pub fn try_acquire_for(&self, n: u32, limit: Duration) -> Result<bool> {
        wait(self.0.try_acquire_for(n, limit))
    }

    /// Releases `n` permits, which any thread or process may have acquired.
    ///
    /// # Errors
    ///
    /// As [`leasehold::PlainSemaphore::release`](primitives::PlainSemaphore::release).
    pub fn release(&self, n: u32) -> Result<()> {
        wait(self.0.release(n))
    }

    /// Acquires `n` permits, runs `work`, and releases them. The value of `work` is returned even if the release then fails; the client logs
    /// that.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire): then `work` did not run.
    ///
    /// # Panics
    ///
    /// If `work` panics; the permits are released before.
    pub fn with<T>(&self, n: u32, work: impl FnOnce() -> T) -> Result<T> {
        let _released = Owed(Some(wait(self.0.acquire_owed(n))?));
        Ok(work())
    }

    /// The name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }
}

/// Releases the permits when it is dropped, and waits for that as the guards of locks do.
struct Owed(Option<OwedPermits>);

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(owed) = self.0.take() {
            released(owed.command_timeout(), async {
                owed.release_after_work().await;
                Ok(())
            });
        }
    }
}
