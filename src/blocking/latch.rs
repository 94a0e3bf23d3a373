//! The count-down latch.

use std::time::Duration;

use super::wait::wait;
use crate::{error::Result, primitives};

/// A count-down latch by name: see [`leasehold::Latch`](primitives::Latch). Cheap to clone.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let ready = client.latch("import:ready");
/// ready.try_set_count(1)?;
/// let waiting = std::thread::spawn({
///     let ready = ready.clone();
///     move || ready.wait()
/// });
/// assert_eq!(ready.count_down()?, 0);
/// waiting.join().expect("it does not panic")?;
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "this only names a latch: call `.wait()?` or another method on it"]
pub struct Latch(primitives::Latch);

impl Latch {
    pub(super) fn new(latch: primitives::Latch) -> Latch {
        Latch(latch)
    }

    /// Creates the latch with this count; false if there is one already.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Latch`](primitives::Latch#errors).
    pub fn try_set_count(&self, n: u32) -> Result<bool> {
        wait(self.0.try_set_count(n))
    }

    /// Counts down by one, and returns the count that is left.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Latch`](primitives::Latch#errors).
    pub fn count_down(&self) -> Result<u64> {
        wait(self.0.count_down())
    }

    /// The count: 0 if there is no latch.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Latch`](primitives::Latch#errors).
    pub fn count(&self) -> Result<u64> {
        wait(self.0.count())
    }

    /// Waits until the count is zero.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Latch`](primitives::Latch#errors).
    pub fn wait(&self) -> Result<()> {
        wait(self.0.wait())
    }

    /// The same, but for no longer than `limit`; false if the count was above zero all that time.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Latch`](primitives::Latch#errors).
    pub fn wait_for(&self, limit: Duration) -> Result<bool> {
        wait(self.0.wait_for(limit))
    }

    /// Deletes the latch; true if there was one. All waiters of leasehold pass.
    ///
    /// # Errors
    ///
    /// See [`leasehold::Latch`](primitives::Latch#errors).
    pub fn delete(&self) -> Result<bool> {
        wait(self.0.delete())
    }

    /// The name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }
}
