//! A job that runs once per period across a fleet, by the server's clock.

use std::time::Duration;

use crate::{ask::Pauses, error::Result, primitives::Lock, sync::tokio};

/// What [`Lock::run_once_per`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it says whether the work ran here"]
pub enum Once<T> {
    /// The work ran here, with this result.
    Ran(T),
    /// Another caller ran the work in this period, or runs it now, or is about to: the server has granted it the lock. If that call is
    /// dropped before its work begins, nobody runs the work, and the lock is free again.
    AlreadyRan {
        /// The time until the next run is due, by the server's clock, and never more than the period. It is an estimate if the work still
        /// runs: then the next run is due when the work is done, but not before the end of the period.
        next_in: Duration,
    },
}

impl Lock {
    /// Runs `work`, unless a call for this name, in this or any other process, started it less than `period` ago or still
    /// runs it. So a fleet runs a job once per period, whatever the clocks of its machines say: the server counts the time.
    ///
    /// The lock stays held until `period` has passed since the start ([`min_hold`](Lock::min_hold)), or until `work` is done, whichever is
    /// later. If the process dies in the middle of the work, or just before it, the lock stays held until `period` has passed since the
    /// server granted it, or until the lease expires (by default 30 s after the last renewal), whichever is later. If the server loses the
    /// lock, the job can run twice in a period. If the release after the work reaches the server late, for example because the server is
    /// paused, the period is longer by that delay.
    ///
    /// Use a name for this alone, and the same period everywhere. Every call is an owner of its own, also with
    /// [`Client::lock`](crate::Client::lock).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::time::Duration;
    ///
    /// use leasehold::Once;
    ///
    /// let report = client.mutex("hourly-report");
    /// match report.run_once_per(Duration::from_secs(3600), async || { /* the report */ }).await? {
    ///     Once::Ran(()) => println!("this machine made the report"),
    ///     Once::AlreadyRan { next_in } => println!("made elsewhere, due again in {next_in:?}"),
    ///     _ => {}
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Lock::try_lock) and [`Guard::protect`](crate::Guard::protect); [`Error::InvalidConfig`](crate::Error::InvalidConfig)
    /// if `period` is not between 1 ms and one year, or longer than a [`lease`](Lock::lease) of this lock. If the
    /// server refuses the lock and then does not reply, the call gives up after [`outage_timeout`](crate::Builder::outage_timeout).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. If it had begun, the period counts as used.
    pub async fn run_once_per<T, W: Future<Output = T>>(
        &self,
        period: Duration,
        work: impl FnOnce() -> W,
    ) -> Result<Once<T>> {
        // A caller that re-enters would run the work beside itself.
        let lock = self.clone().non_reentrant().min_hold(period);
        let mut pauses = Pauses::default();
        loop {
            if let Some(guard) = lock.try_lock().await? {
                return guard.protect(work()).await.map(Once::Ran);
            }
            if let Some(holder) = lock.inspect().await? {
                return Ok(Once::AlreadyRan { next_in: holder.remaining.map_or(period, |left| left.min(period)) });
            }
            // Free again between the two requests. Or this client believes that it holds the lock, and has lost it.
            lock.said_to_be_free()?;
            tokio::time::sleep(pauses.next()).await;
        }
    }
}
