//! Locks for many readers or one writer.

use std::time::{Duration, Instant};

use super::{
    guard::{ReadGuard, WriteGuard},
    lock::settings,
    wait::wait,
};
use crate::{
    error::Result,
    owner::Owner,
    primitives::{self, RwState},
};

/// A lock for many readers or one writer: see [`leasehold::RwLock`](primitives::RwLock).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let prices = client.rw_lock("prices").non_reentrant();
/// let (one, other) = (prices.read()?, prices.read()?); // at the same time
/// assert!(prices.try_write()?.is_none());
/// # drop((one, other));
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct RwLock(primitives::RwLock);

settings!(RwLock, "rw_lock");

macro_rules! acquiring {
    ($lock:ident, $try:ident, $try_for:ident, $try_until:ident, $with:ident -> $guard:ident, $what:literal) => {
        impl RwLock {
            #[doc = concat!("Acquires the lock for ", $what, "; waits for as long as other owners prevent it.")]
            ///
            /// # Errors
            ///
            /// As the method of [`leasehold::RwLock`](primitives::RwLock). In each case this call acquired nothing.
            pub fn $lock(&self) -> Result<$guard> {
                wait(self.0.$lock()).map($guard::new)
            }

            #[doc = concat!("Makes one attempt to acquire the lock for ", $what, "; `None` if other owners prevent it.")]
            ///
            /// # Errors
            ///
            /// As the method of [`leasehold::RwLock`](primitives::RwLock).
            pub fn $try(&self) -> Result<Option<$guard>> {
                Ok(wait(self.0.$try())?.map($guard::new))
            }

            #[doc = concat!("Waits for at most `limit` to acquire the lock for ", $what, ".")]
            ///
            /// # Errors
            ///
            /// As the method of [`leasehold::RwLock`](primitives::RwLock).
            pub fn $try_for(&self, limit: Duration) -> Result<Option<$guard>> {
                Ok(wait(self.0.$try_for(limit))?.map($guard::new))
            }

            /// The same, with a deadline.
            ///
            /// # Errors
            ///
            /// As the method of [`leasehold::RwLock`](primitives::RwLock).
            pub fn $try_until(&self, deadline: Instant) -> Result<Option<$guard>> {
                Ok(wait(self.0.$try_until(deadline))?.map($guard::new))
            }

            #[doc = concat!("Acquires the lock for ", $what, ", runs `work`, and releases the lock. The value of `work` is returned even if")]
            /// the lock was lost meanwhile or the release fails.
            ///
            /// # Errors
            ///
            /// As the method that acquires the lock: then `work` did not run.
            ///
            /// # Panics
            ///
            /// If `work` panics; the lock is released before.
            pub fn $with<T>(&self, work: impl FnOnce(&$guard) -> T) -> Result<T> {
                let guard = self.$lock()?;
                let value = work(&guard);
                guard.completed(value).into_value()
            }
        }
    };
}

acquiring!(read, try_read, try_read_for, try_read_until, with_read -> ReadGuard, "reading");
acquiring!(write, try_write, try_write_for, try_write_until, with_write -> WriteGuard, "writing");

impl RwLock {
    /// The present readers, or the present writer.
    ///
    /// # Errors
    ///
    /// As [`leasehold::RwLock::inspect`](primitives::RwLock::inspect).
    pub fn inspect(&self) -> Result<RwState> {
        wait(self.0.inspect())
    }
}
