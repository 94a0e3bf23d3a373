//! Permits of a semaphore, in the user's hands.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{
    error::{Lost, Result},
    guard::{Guard, Outcome},
};

/// Permits that are held, until [`release`](Permits::release) or drop. They have the methods of a [`Guard`], except `extend`,
/// `try_protect`, `holds` and `owner`. You may move them to another task, and drop them anywhere.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let licences = client.semaphore("licences");
/// licences.try_set_permits(5).await?;
/// let mut permits = licences.acquire(3).await?;
/// let one = permits.split(1).expect("it has three"); // for another task
/// permits.release().await?;
/// assert_eq!((one.count(), licences.available().await?), (1, 4));
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the permits are released when this is dropped: write `let _permits = …`"]
pub struct Permits {
    guard: Guard,
    count: u32,
}

impl Permits {
    pub(super) fn new(guard: Guard, count: u32) -> Permits {
        Permits { guard, count }
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The number of permits that this value has.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Splits `n` permits off, with a value of their own; `None` unless both then have at least one. Sends no request. The two are
    /// released one by one. They have one id and one lease, so they are lost together.
    #[must_use = "the permits that were split off are released when they are dropped"]
    pub fn split(&mut self, n: u32) -> Option<Permits> {
        if n == 0 || n >= self.count {
            return None;
        }
        self.count -= n;
        Some(Permits { guard: self.guard.split(n), count: n })
    }

    /// Releases the permits. `Ok` means that they were held until the release, as the server confirmed.
    ///
    /// # Errors
    ///
    /// As [`Guard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::unlock`].
    pub async fn release(self) -> Result<()> {
        self.guard.unlock().await
    }

    /// Resolves when the client learns that the permits are lost, and at the latest when [`remaining`](Permits::remaining) is zero.
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::lost`].
    pub async fn lost(&self) -> Lost {
        self.guard.lost().await
    }

    /// A token that is cancelled when the permits are lost, for other tasks. See [`Guard::lost_token`].
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        self.guard.lost_token()
    }

    /// True if [`lost`](Permits::lost) would resolve now. Sends no request.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// The time for which the permits are certainly held, even if the server never replies again. See [`Guard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Checks now on the server that the permits are still held.
    ///
    /// # Errors
    ///
    /// As [`Guard::check`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::check`].
    pub async fn check(&self) -> Result<()> {
        self.guard.check().await
    }

    /// Runs `work`, then releases the permits. If they are lost before, `work` is dropped.
    ///
    /// # Errors
    ///
    /// As [`Guard::protect`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::protect`].
    pub async fn protect<T>(self, work: impl Future<Output = T>) -> Result<T> {
        self.guard.protect(work).await
    }

    /// As [`protect`](Permits::protect), but says whether the permits were held until the release.
    ///
    /// # Errors
    ///
    /// They are in the [`Outcome`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::protect`].
    pub async fn protect_outcome<T>(self, work: impl Future<Output = T>) -> Outcome<T> {
        self.guard.protect_outcome(work).await
    }

    /// The id of this hold: 28 hex digits. In Redis, and in Redisson, the ids of its permits are these and four more.
    #[must_use]
    pub fn id(&self) -> &str {
        self.guard.id()
    }

    /// The name of the semaphore, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.guard.name()
    }
}
