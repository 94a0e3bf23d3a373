//! The semaphore: Redisson's `RPermitExpirableSemaphore`, byte for byte in Redis. Each permit has a lease, by the server's clock.

use std::time::Duration;

use super::{
    handle::Handle,
    methods::{acquiring, named},
    permits::Permits,
};
use crate::{
    client::Client,
    error::Result,
    events::KindLabel,
    kind::{ExtraKey, Kind, Rules},
    lock::{self, Waits},
    redis::ChannelName,
    request::WaitLimit,
};

pub(super) const TAKEN: ExtraKey = ExtraKey::Suffixed("timeout");
const MARK: ExtraKey = ExtraKey::Prefixed("leasehold_semaphore_waits");

/// Its holds are shared, and owners of one client do not join them: each has permits of its own.
pub(super) static SEMAPHORE: Kind = Kind {
    channel: ChannelName::Prefixed("redisson_sc"),
    acquire: script!("semaphore/permits.lua", "semaphore/acquire.lua"; TAKEN, MARK),
    release: script!("semaphore/permits.lua", "semaphore/release.lua"; TAKEN, MARK),
    renew: script!(without_channel: "semaphore/permits.lua", "semaphore/renew.lua"; TAKEN),
    hand_over: None,
    inspect: script!("semaphore/permits.lua", "semaphore/inspect.lua"; TAKEN),
    force_unlock: script!("semaphore/permits.lua", "semaphore/inspect.lua"; TAKEN),
    beside: None,
    barred_by: None,
    rules: Rules {
        label: KindLabel::Semaphore,
        shared: true,
        machine: lock::Rules { waits: Waits::ForPermits, passes_on: true, sure: None },
        ..Rules::PLAIN
    },
};

impl Client {
    /// The semaphore of this name: so many permits for all machines together. Sends nothing; the first call reports a name that cannot
    /// be used.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let downloads = client.semaphore("downloads");
    /// downloads.try_set_permits(10).await?; // each process: the first one sets them
    /// let permits = downloads.acquire(1).await?; // waits while ten downloads run, on all machines
    /// assert_eq!(downloads.available().await?, 9);
    /// permits.release().await?; // an error if the permit was lost before
    /// # Ok(()) }) }
    /// ```
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore(Handle::new(self, name).non_reentrant())
    }
}

/// A semaphore by name. Its permits are set once, by [`try_set_permits`](Semaphore::try_set_permits). While they are not set, calls wait.
///
/// * **A permit has a lease.** The client renews it while the [`Permits`] exist. If the process dies, its permits come back when the
///   lease expires, after 30 s by default, and a waiter acquires them then.
/// * **All or none.** A call for several permits acquires all of them at once. Waiters of one client are served in the order of their
///   calls, so one that wants many is not passed by others that want few, and a `try_acquire` behind a waiter gets `None`. Among clients,
///   a waiter that was refused at several releases leaves a mark on the server. Then released permits are left to it. JVMs ignore the mark.
/// * **Nobody re-enters.** Each call acquires further permits. A task that holds all permits and calls again waits for itself.
/// * **Use a name for one kind only.** A latch, or Redisson's `RSemaphore`, of the same name is a number, too: the server cannot tell.
///   Nor use both `a` and `{a}`: Redisson keeps the permits of both in one set, and permits whose lease has expired come back to the wrong
///   one.
/// * **A call for more permits than there are** waits, and so do all calls behind it in this client, until more are added.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let downloads = client.semaphore("downloads");
/// downloads.try_set_permits(2).await?;
/// let both = downloads.acquire(2).await?;
/// assert!(downloads.try_acquire(1).await?.is_none());
/// both.release().await?;
/// # Ok(()) }) }
/// ```
///
/// # Errors
///
/// [`Conflict`](crate::Error::Conflict) if the key is not a semaphore. [`Unavailable`](crate::Error::Unavailable) if the server does not
/// reply for [`outage_timeout`](crate::Builder::outage_timeout), in calls with a limit sooner, as
/// [`Lock::try_lock_for`](crate::Lock::try_lock_for) says: no permit was acquired then. After any error, a change was made once or not at
/// all.
/// [`InvalidConfig`](crate::Error::InvalidConfig) if a call wants no permits, or more than 10,000. Others as [`Error`](crate::Error) says.
///
/// # Cancel safety
///
/// If you drop the future of a change, it was made once or not at all. Dropping another future leaves nothing behind: no permits, and no
/// place in the queue. Do not keep a future that acquires permits without polling it: see [`Lock::lock`](crate::Lock::lock).
#[derive(Clone)]
#[must_use = "this only names a semaphore: call `.acquire(n).await?` or another method on it"]
pub struct Semaphore(pub(super) Handle);

named!(Semaphore);
acquiring!(Semaphore -> Permits, Option<Permits>; "`None`", "others", |permits| permits.expect("without a limit it waits"));

impl Semaphore {
    /// Sets a fixed lease for permits that are acquired with this value. The client does not renew it, and it cannot be extended. See
    /// [`Lock::lease`](crate::Lock::lease).
    #[must_use = "the setting is in the value that this returns"]
    pub fn lease(self, d: Duration) -> Self {
        Semaphore(self.0.lease(d))
    }

    /// Limits how long permits are held: then they are lost, and the client stops renewing. See [`Lock::max_hold`](crate::Lock::max_hold).
    #[must_use = "the setting is in the value that this returns"]
    pub fn max_hold(self, d: Duration) -> Self {
        Semaphore(self.0.max_hold(d))
    }

    async fn take(&self, n: u32, what: &'static str, limit: WaitLimit) -> Result<Option<Permits>> {
        let guard = self.0.take_permits(&SEMAPHORE, n, what, limit).await?;
        Ok(guard.map(|guard| Permits::new(guard, n)))
    }

    /// Acquires `n` permits, runs `work`, and releases them. If they are lost, `work` is dropped at its next `await`. `Ok` says that the work
    /// was completed, not that the permits were held to its end: [`Permits::protect_outcome`] says both.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let downloads = client.semaphore("downloads");
    /// # downloads.try_set_permits(10).await?;
    /// let page = downloads.with(1, async || "page").await?;
    /// # assert_eq!(page, "page");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Semaphore::acquire), and as [`Permits::protect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases the permits.
    pub async fn with<T, W: Future<Output = T>>(&self, n: u32, work: impl FnOnce() -> W) -> Result<T> {
        self.acquire(n).await?.protect(work()).await
    }
}
