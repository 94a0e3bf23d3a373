//! A job that runs once per period across a fleet, by the server's clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::{ask::Pauses, config::Lease, error::Result, guard::Guard, primitives::Lock, sync::tokio};

/// What [`Lock::run_once_per`] did.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use std::time::Duration;
///
/// use leasehold::Once;
///
/// let report = client.mutex("hourly-report");
/// let hour = Duration::from_secs(3600);
/// assert_eq!(report.run_once_per(hour, async || 42).await?, Once::Ran(42));
/// let again = report.run_once_per(hour, async || 42).await?;
/// assert!(matches!(again, Once::AlreadyRan { next_in } if next_in <= hour));
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it says whether the work ran here"]
pub enum Once<T> {
    /// The work ran here, with this result.
    Ran(T),
    /// Another caller ran the work in this period, or runs it now, or is about to: the server has granted it the lock. If that call is
    /// dropped before its work begins, nobody runs the work, and the lock is free again.
    AlreadyRan {
        /// The time until the next run is due, by the server's clock: at least 1 ms, and never more than the period. It is an estimate if
        /// the work still runs. Of [`run_once_per`](Lock::run_once_per) the next run is then due when the work is done, but not before the
        /// end of the period. Of [`try_run_once_per`](Lock::try_run_once_per) this is then at most what is left of the lease, 30 s by
        /// default: the work may still fail, so look again.
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
    /// What `work` returns makes no difference: a job that failed has used up the period. [`try_run_once_per`](Lock::try_run_once_per) is for
    /// a job that is to be tried again.
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
        match self.first_in_period(self.clone().min_hold(period), period).await? {
            Once::Ran(guard) => guard.protect(work()).await.map(Once::Ran),
            Once::AlreadyRan { next_in } => Ok(Once::AlreadyRan { next_in }),
        }
    }

    /// As [`run_once_per`](Lock::run_once_per), for work that can fail: only if it returns `Ok`, the period counts as used. After an `Err`, a
    /// panic, or if this future is dropped, the next call may run the work at once; if the process dies or the lock is lost, when the lease
    /// has expired, by default 30 s after the last renewal. So the work may run several times in a period, but never at the same time.
    ///
    /// Between two tries of one process, wait for a time that suits the reason.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::time::Duration;
    ///
    /// use leasehold::Once;
    ///
    /// let import = client.mutex("import");
    /// let hour = Duration::from_secs(3600);
    /// let first = import.try_run_once_per(hour, async || Err::<(), _>("the disk is full")).await?;
    /// assert!(matches!(first, Once::Ran(Err("the disk is full"))));
    /// let second = import.try_run_once_per(hour, async || Ok::<_, &str>(())).await?;
    /// assert!(matches!(second, Once::Ran(Ok(()))), "the failure has left it to this call");
    /// let third = import.try_run_once_per(hour, async || Ok::<_, &str>(())).await?;
    /// assert!(matches!(third, Once::AlreadyRan { .. }));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`run_once_per`](Lock::run_once_per). With [`Lost`](crate::Error::Lost), the work may have returned `Ok` a moment before. If the server
    /// does not confirm the end of the work before the lease expires, this returns what the work returned, the client logs a warning, and the
    /// period may not count as used.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The period does not count as used.
    pub async fn try_run_once_per<T, E, W: Future<Output = std::result::Result<T, E>>>(
        &self,
        period: Duration,
        work: impl FnOnce() -> W,
    ) -> Result<Once<std::result::Result<T, E>>> {
        Lease::new("period", period)?;
        match self.first_in_period(self.clone(), period).await? {
            Once::Ran(guard) => {
                let since = Instant::now();
                let done = guard.until_lost(work()).await?;
                let rest = period.saturating_sub(since.elapsed());
                if done.is_ok() && !rest.is_zero() {
                    guard.stay_held(rest.max(Lease::SHORTEST))?;
                }
                guard.unlock_after(done).await.into_value().map(Once::Ran)
            }
            Once::AlreadyRan { next_in } => Ok(Once::AlreadyRan { next_in }),
        }
    }

    /// A guard of this lock, with these settings, unless it is held.
    async fn first_in_period(&self, lock: Lock, period: Duration) -> Result<Once<Guard>> {
        let lock = lock.non_reentrant(); // a caller that re-enters would run the work beside itself
        let mut pauses = Pauses::default();
        loop {
            if let Some(guard) = lock.try_lock().await? {
                return Ok(Once::Ran(guard));
            }
            if let Some(holder) = lock.inspect().await? {
                let next_in = holder.remaining.map_or(period, |left| left.clamp(Lease::SHORTEST, period));
                return Ok(Once::AlreadyRan { next_in });
            }
            // Free again between the two requests. Or this client believes that it holds the lock, and has lost it.
            lock.said_to_be_free()?;
            tokio::time::sleep(pauses.next()).await;
        }
    }
}
