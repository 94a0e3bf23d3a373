//! Releasing permits of a plain semaphore: by a caller, after work, or in the background.

#[cfg(feature = "blocking")]
use std::time::Duration;

use super::{
    handle::{Change, Handle},
    plain_semaphore::{CHANGE, PLAIN, PlainSemaphore},
};
use crate::{
    driver::{DriverErrand, DriverWork},
    error::{About, Error, Result},
    redis::Code,
};

impl PlainSemaphore {
    /// Releases `n` permits, which any task or process may have acquired. If the first waiter of this client wants as many, it may acquire them
    /// without a request, for 10 ms in a row at most.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::Error::Lost) if the server says that there is no semaphore, because it was deleted: unlike Redisson, this does not
    /// create one. For others see [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// If you drop the future once it was polled, the client completes the release in the background. If that fails, the client logs it,
    /// and the permits are lost.
    pub async fn release(&self, n: u32) -> Result<()> {
        self.0.engine.driver.refuse_if_closed("release", self.name())?;
        self.owed(n, self.0.engine.driver.work())?.release().await
    }

    /// The same as `acquire`. The permits are released when the caller drops the result.
    pub(crate) async fn acquire_owed(&self, n: u32) -> Result<OwedPermits> {
        let work = self.0.engine.driver.work(); // from now on, so that it has begun before the request ends
        self.acquire(n).await?;
        self.owed(n, work)
    }

    fn owed(&self, n: u32, work: DriverWork) -> Result<OwedPermits> {
        if n == 0 {
            return Err(Error::config("permits", "it must be greater than zero"));
        }
        let change = self.0.plan("release", (&PLAIN, &CHANGE), i64::from(n), "back")?;
        Ok(OwedPermits { semaphore: self.0.clone(), permits: n, change: Some(change), _work: work, errand: None })
    }

    /// Acquires `n` permits, runs `work`, and releases them. If `work` panics, the client releases them in the background, and
    /// [`Client::close`](crate::Client::close) waits for that. The value of completed work is returned, even if the release then fails; the
    /// client logs that.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let downloads = client.plain_semaphore("downloads");
    /// # downloads.try_set_permits(10).await?;
    /// let page = downloads.with(1, async || "page").await?;
    /// # assert_eq!(page, "page");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](PlainSemaphore::acquire): then `work` did not begin.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, and the client releases the permits in the background, as after a panic.
    pub async fn with<T, W: Future<Output = T>>(&self, n: u32, work: impl FnOnce() -> W) -> Result<T> {
        let owed = self.acquire_owed(n).await?;
        let value = work().await;
        owed.release_after_work().await;
        Ok(value)
    }
}

/// Permits that are released in the background when this is dropped, unless a release has had its result.
pub(crate) struct OwedPermits {
    semaphore: Handle,
    permits: u32,
    change: Option<Change>,
    // Both count until they are dropped, which is after a release in the background has begun.
    _work: DriverWork,
    errand: Option<DriverErrand>,
}

impl OwedPermits {
    #[cfg(feature = "blocking")]
    pub(crate) fn command_timeout(&self) -> Duration {
        self.semaphore.engine.config.command_timeout
    }

    pub(crate) async fn release(mut self) -> Result<()> {
        if self.semaphore.give_back(&PLAIN, self.permits) {
            self.change = None; // a waiter of this client has them
            return Ok(());
        }
        let driver = &self.semaphore.engine.driver;
        self.errand = Some(driver.errand()); // before the look: a client that is not done waits for it
        if driver.is_done() {
            self.change = None;
            return Err(driver.closed("release", self.semaphore.name()));
        }
        let change = self.change.as_mut().expect("it is there until the result");
        let result = self.semaphore.make_at_last(change).await;
        self.change = None;
        match result?.code {
            Code::Granted => Ok(()),
            _ => Err(self.semaphore.conflict().of(About::Permits)),
        }
    }

    pub(crate) async fn release_after_work(self) {
        let semaphore = self.semaphore.clone();
        if let Err(error) = self.release().await {
            tracing::warn!(target: "leasehold::lock", name = semaphore.name(), %error, "permits were not released after the work");
        }
    }
}

impl Drop for OwedPermits {
    fn drop(&mut self) {
        if let Some(change) = self.change.take() {
            self.semaphore.make_in_background(change);
        }
    }
}
