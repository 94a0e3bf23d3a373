//! What a thread holds.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    kept::Kept,
    wait::{enter, wait},
};
use crate::{
    error::{Lost, Result},
    guard::{self, Outcome},
    owner::Owner,
    primitives::{self, plain_inside, write_if_held},
    release_request::ReleaseRequest,
};

/// A lock that is held, until [`unlock`](Guard::unlock) or drop: see [`leasehold::Guard`](guard::Guard).
///
/// Dropping it releases the lock before `drop` returns, unless the server does not reply: see [the module](super).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
///
/// let guard = client.mutex("nightly-report").lock()?;
/// let stop = Arc::new(AtomicBool::new(false));
/// let stopping = Arc::clone(&stop);
/// guard.on_lost(move |reason| {
///     eprintln!("stop: {reason}");
///     stopping.store(true, Ordering::Relaxed);
/// });
/// for _page in 0..100 {
///     if stop.load(Ordering::Relaxed) {
///         break;
///     }
///     // a part of the work
/// }
/// guard.unlock()?; // an error if the lock was lost before
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct Guard(Kept<guard::Guard>);

impl Guard {
    pub(super) fn new(guard: guard::Guard) -> Guard {
        Guard(Kept::new(guard))
    }

    pub(super) fn completed<T>(self, value: T) -> Outcome<T> {
        self.0.completed(value)
    }

    /// Releases this acquisition. `Ok` means that this owner held the lock until the release, as the server confirmed.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Guard::unlock`](guard::Guard::unlock). After an error the client continues the release in the background.
    pub fn unlock(self) -> Result<()> {
        self.0.unlock()
    }

    /// Runs `callback` on a thread of its own when the client learns that the lock is lost, and at the latest when
    /// [`remaining`](Guard::remaining) is zero; at once if it is lost already. Never after the release, unless the release finds that the
    /// lock was lost, or could not be confirmed. You can set several.
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        self.0.on_lost(callback);
    }

    /// Waits for at most `time` until somebody asks for this lock: see [`leasehold::Guard::asked`](guard::Guard::asked). The client listens from
    /// the first call on.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if this thread may not wait.
    pub fn asked(&self, time: Duration) -> Result<Option<ReleaseRequest>> {
        wait(async { Ok(timeout(time, self.0.get().asked()).await.ok()) })
    }

    /// A token that is cancelled when the lock is lost, for other threads and tasks. See
    /// [`leasehold::Guard::lost_token`](guard::Guard::lost_token).
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        enter(|_| self.0.get().lost_token())
    }

    /// True if the lock is lost, as far as the client knows. Sends no request.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.get().is_lost()
    }

    /// The time for which this owner certainly holds the lock. Sends no request. See
    /// [`leasehold::Guard::remaining`](guard::Guard::remaining).
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.get().remaining()
    }

    /// Checks now on the server that this owner still holds the lock.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Guard::check`](guard::Guard::check).
    pub fn check(&self) -> Result<()> {
        wait(self.0.get().check())
    }

    /// Extends the lease: it expires `lease` from now. Never shortens the lease.
    ///
    /// # Errors
    ///
    /// As [`leasehold::Guard::extend`](guard::Guard::extend).
    pub fn extend(&self, lease: Duration) -> Result<()> {
        wait(self.0.get().extend(lease))
    }

    /// How many acquisitions this owner has now.
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.0.get().holds()
    }

    /// The id of the hold in Redis.
    #[must_use]
    pub fn id(&self) -> &str {
        self.0.get().id()
    }

    /// The owner of this hold, which can re-enter it.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        self.0.get().owner()
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.get().name()
    }
}

/// A [`Guard`] with something more, in its field `guard`.
macro_rules! guarding {
    ($more:ident) => {
        impl $more {
            /// As [`Guard::unlock`].
            ///
            /// # Errors
            ///
            /// As [`Guard::unlock`].
            pub fn unlock(self) -> Result<()> {
                self.guard.unlock()
            }

            pub(super) fn completed<T>(self, value: T) -> Outcome<T> {
                self.guard.completed(value)
            }
        }

        plain_inside!($more);
    };
}

/// A [`Guard`] with a fencing token: see [`leasehold::FencedGuard`](primitives::FencedGuard).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let lock = client.fenced_lock("ledger");
/// let first = lock.with(|guard| guard.token())?;
/// assert!(lock.lock()?.token() > first);
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct FencedGuard {
    guard: Guard,
    token: u64,
}

guarding!(FencedGuard);

impl FencedGuard {
    pub(super) fn new(guard: primitives::FencedGuard) -> FencedGuard {
        let token = guard.token();
        FencedGuard { guard: Guard::new(guard.into()), token }
    }

    /// The fencing token of this hold: greater than that of every earlier hold of this name, in all clients.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Sets a key on the same server to `value` if the server still has this hold. See
    /// [`leasehold::FencedGuard::write_if_held`](primitives::FencedGuard::write_if_held).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_if_held(&self, key: &str, value: &str) -> Result<()> {
        wait(write_if_held(self.guard.0.get(), key, value))
    }
}

/// The [`Guard`] of a read lock.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let prices = client.rw_lock("prices").non_reentrant();
/// let reading = prices.read()?;
/// assert!(!reading.is_lost()); // the methods of `Guard`
/// reading.unlock()?;
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct ReadGuard {
    guard: Guard,
}

guarding!(ReadGuard);

impl ReadGuard {
    pub(super) fn new(guard: primitives::ReadGuard) -> ReadGuard {
        ReadGuard { guard: Guard::new(guard.into()) }
    }
}

/// The [`Guard`] of a write lock.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run_blocking(|client| {
/// let writing = client.rw_lock("prices").write()?;
/// // new prices
/// let reading = writing.downgrade()?; // no other writer comes in between
/// reading.unlock()?;
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct WriteGuard {
    guard: Guard,
    downgrade: primitives::Downgrade,
}

guarding!(WriteGuard);

impl WriteGuard {
    pub(super) fn new(guard: primitives::WriteGuard) -> WriteGuard {
        let (guard, downgrade) = guard.split();
        WriteGuard { guard: Guard::new(guard), downgrade }
    }

    /// Atomically downgrades to a read lock. See [`leasehold::WriteGuard::downgrade`](primitives::WriteGuard::downgrade).
    ///
    /// # Errors
    ///
    /// As there. After an error the client releases both locks in the background.
    pub fn downgrade(mut self) -> Result<ReadGuard> {
        let writing = self.guard.0.take();
        wait(self.downgrade.run(writing)).map(ReadGuard::new)
    }
}
