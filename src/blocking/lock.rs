//! Locks that one owner holds at a time.

use std::time::{Duration, Instant};

use super::{
    guard::{FencedGuard, Guard},
    wait::wait,
};
use crate::{
    error::Result,
    guard::Outcome,
    owner::Owner,
    primitives::{self, Holder},
};

/// A handle of a lock: its settings and its name.
macro_rules! settings {
    ($lock:ident, $new:literal) => {
        impl $lock {
            pub(super) fn new(lock: primitives::$lock) -> $lock {
                $lock(lock)
            }

            /// Sets a fixed lease, which the client does not renew. See [`leasehold::Lock::lease`](crate::Lock::lease).
            #[must_use = "the setting is in the value that this returns"]
            pub fn lease(self, d: Duration) -> Self {
                $lock(self.0.lease(d))
            }

            /// Limits how long the lock is held. See [`leasehold::Lock::max_hold`](crate::Lock::max_hold).
            #[must_use = "the setting is in the value that this returns"]
            pub fn max_hold(self, d: Duration) -> Self {
                $lock(self.0.max_hold(d))
            }

            /// Keeps the lock held for at least `d`. See [`leasehold::Lock::min_hold`](crate::Lock::min_hold).
            #[must_use = "the setting is in the value that this returns"]
            pub fn min_hold(self, d: Duration) -> Self {
                $lock(self.0.min_hold(d))
            }

            /// Sets the owner for which calls acquire the lock. Defaults to the calling thread.
            #[must_use = "the setting is in the value that this returns"]
            pub fn owner(self, o: &Owner) -> Self {
                $lock(self.0.owner(o))
            }

            /// Makes every call an owner of its own: a thread that holds the lock and acquires it again waits for itself forever.
            #[must_use = "the setting is in the value that this returns"]
            pub fn non_reentrant(self) -> Self {
                $lock(self.0.non_reentrant())
            }

            /// The name, without the client's prefix.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.name()
            }

            /// Whether any owner holds the lock now.
            ///
            /// # Errors
            ///
            /// As [`inspect`](Self::inspect).
            pub fn is_locked(&self) -> Result<bool> {
                wait(self.0.is_locked())
            }

            /// Asks the holder to release the lock, and says why. See [`leasehold::Lock::ask`](crate::Lock::ask).
            ///
            /// # Errors
            ///
            /// As [`leasehold::Lock::ask`](crate::Lock::ask).
            pub fn ask(&self, reason: &str) -> Result<crate::release_request::AskOutcome> {
                wait(self.0.ask(reason))
            }

            /// Releases the lock on behalf of its holder, and wakes the waiters. Returns true if this call released it. See
            /// [`leasehold::Lock::force_unlock`](crate::Lock::force_unlock).
            ///
            /// # Errors
            ///
            /// As [`inspect`](Self::inspect).
            pub fn force_unlock(&self) -> Result<bool> {
                wait(self.0.force_unlock())
            }
        }
    };
}
pub(super) use settings;

macro_rules! exclusive {
    ($lock:ident, $new:literal -> $guard:ident) => {
        settings!($lock, $new);

        impl $lock {
            /// Acquires the lock; waits for as long as another owner holds it.
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run_blocking(|client| {
            #[doc = concat!("let guard = client.", $new, "(\"ledger\").lock()?;")]
            /// // only one holder on all machines
            /// guard.unlock()?; // an error if the lock was lost before
            /// # Ok(()) }) }
            /// ```
            ///
            /// # Errors
            ///
            /// As [`leasehold::Lock::lock`](crate::Lock::lock). In each case this call acquired nothing.
            pub fn lock(&self) -> Result<$guard> {
                wait(self.0.lock()).map($guard::new)
            }

            /// Makes one attempt; `None` if another owner holds the lock.
            ///
            /// # Errors
            ///
            /// As [`leasehold::Lock::try_lock`](crate::Lock::try_lock).
            pub fn try_lock(&self) -> Result<Option<$guard>> {
                Ok(wait(self.0.try_lock())?.map($guard::new))
            }

            /// Waits for at most `limit`; `None` if another owner held the lock all that time.
            ///
            /// # Errors
            ///
            /// As [`leasehold::Lock::try_lock_for`](crate::Lock::try_lock_for).
            pub fn try_lock_for(&self, limit: Duration) -> Result<Option<$guard>> {
                Ok(wait(self.0.try_lock_for(limit))?.map($guard::new))
            }

            /// As [`try_lock_for`](Self::try_lock_for), with a deadline.
            ///
            /// # Errors
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<$guard>> {
                Ok(wait(self.0.try_lock_until(deadline))?.map($guard::new))
            }

            /// Acquires the lock, runs `work`, and releases the lock. The value of `work` is returned even if the lock was lost meanwhile or
            /// the release fails; [`with_outcome`](Self::with_outcome) says which.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock): then `work` did not run.
            ///
            /// # Panics
            ///
            /// If `work` panics; the lock is released before.
            pub fn with<T>(&self, work: impl FnOnce(&$guard) -> T) -> Result<T> {
                self.with_outcome(work)?.into_value()
            }

            /// As [`with`](Self::with), and says whether the lock was held until its release. Never [`Outcome::Stopped`].
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock): then `work` did not run.
            ///
            /// # Panics
            ///
            /// As [`with`](Self::with).
            pub fn with_outcome<T>(&self, work: impl FnOnce(&$guard) -> T) -> Result<Outcome<T>> {
                let guard = self.lock()?;
                let value = work(&guard);
                Ok(guard.completed(value))
            }

            /// The holder, its hold count and the time left on its lease; `None` if the lock is free.
            ///
            /// # Errors
            ///
            /// As [`leasehold::Lock::inspect`](crate::Lock::inspect).
            pub fn inspect(&self) -> Result<Option<Holder>> {
                wait(self.0.inspect())
            }
        }
    };
}

/// A reentrant lock for threads: see [`leasehold::Lock`](primitives::Lock).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let ledger = client.lock("ledger");
/// let outer = ledger.lock()?;
/// let inner = ledger.lock()?; // the same thread re-enters
/// assert_eq!(outer.holds(), 2);
/// std::thread::scope(|threads| {
///     threads.spawn(|| assert!(ledger.try_lock().expect("the server replies").is_none())); // another thread
/// });
/// # drop((inner, outer));
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct Lock(primitives::Lock);

exclusive!(Lock, "lock" -> Guard);

/// A lock that is acquired in the order of requests: see [`leasehold::FairLock`](primitives::FairLock).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let printer = client.fair_lock("printer");
/// let pages = printer.with(|_guard| 3)?; // after all that called before, on all machines
/// # assert_eq!(pages, 3);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct FairLock(primitives::FairLock);

exclusive!(FairLock, "fair_lock" -> Guard);

impl FairLock {
    /// The ids of the waiters, the next one first.
    ///
    /// # Errors
    ///
    /// As [`inspect`](FairLock::inspect).
    pub fn waiters(&self) -> Result<Vec<String>> {
        wait(self.0.waiters())
    }
}

/// A lock whose holds have fencing tokens: see [`leasehold::FencedLock`](primitives::FencedLock).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let invoice = client.fenced_lock("invoice:42");
/// let guard = invoice.lock()?;
/// println!("write with the token {}", guard.token());
/// guard.unlock()?;
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct FencedLock(primitives::FencedLock);

exclusive!(FencedLock, "fenced_lock" -> FencedGuard);

impl Lock {
    pub(super) fn into_inner(self) -> primitives::Lock {
        self.0
    }
}
