//! The read-write lock: Redisson's `RReadWriteLock`, byte for byte in Redis.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    handle::{Handle, Holder},
    methods::{guarding, settings},
};
use crate::{
    client::Client,
    error::{Error, Lost, Result},
    events::KindLabel,
    guard::Guard,
    kind::{ExtraKey, Kind, Numbering, Rules},
    lock::{self, Waits},
    redis::{Answer, ChannelName, Code},
    request::WaitLimit,
    sync::tokio,
};
use tokio::time::Instant;

const CHANNEL: ChannelName = ChannelName::Prefixed("redisson_rwlock");
const MARK: ExtraKey = ExtraKey::Prefixed("leasehold_rwlock_waits");
const LIVES: ExtraKey = ExtraKey::OfHold("rwlock_timeout:1");
/// If a JVM reads at the same time, its watchdog may shorten the lease of the whole lock to its own lease, 30 s by default. This is a
/// little less, because clocks differ.
const OF_OTHERS: Duration = Duration::from_millis(29_960);

const MACHINE: lock::Rules = lock::Rules { waits: Waits::Marked, passes_on: false, sure: Some(OF_OTHERS) };

static READ: Kind = Kind {
    channel: CHANNEL,
    acquire: script!("rw/rwlock.lua", "rw/read_acquire.lua"; LIVES, MARK),
    release: script!(of_other_holds: "rw/rwlock.lua", "rw/read_release.lua"; LIVES),
    renew: script!(of_lease: "rw/rwlock.lua", "rw/read_renew.lua"; LIVES),
    hand_over: None,
    inspect: script!(of_other_holds: "rw/rwlock.lua", "rw/inspect.lua"),
    force_unlock: script!(of_other_holds: "lock/forced.lua", "rw/rwlock.lua", "rw/force_unlock.lua"),
    beside: Some(&WRITE),
    barred_by: None,
    rules: Rules {
        label: KindLabel::Read,
        shared: true,
        numbering: Numbering::ReadWrite,
        machine: MACHINE,
        ..Rules::PLAIN
    },
};

static WRITE: Kind = Kind {
    channel: CHANNEL,
    acquire: script!("rw/rwlock.lua", "rw/write_acquire.lua"; MARK),
    release: script!(of_other_holds: "rw/rwlock.lua", "rw/write_release.lua"; MARK),
    renew: script!(tracked: "lock/renew.lua"),
    hand_over: Some(script!(without_channel: "lock/move.lua", "rw/write_hand_over.lua")),
    inspect: script!(of_other_holds: "rw/rwlock.lua", "rw/inspect.lua"),
    force_unlock: script!(of_other_holds: "lock/forced.lua", "rw/rwlock.lua", "rw/force_unlock.lua"),
    beside: None,
    barred_by: Some(&READ),
    rules: Rules {
        label: KindLabel::Write,
        suffix: ":write",
        numbering: Numbering::ReadWrite,
        machine: MACHINE,
        ..Rules::PLAIN
    },
};

impl Client {
    /// The read-write lock of this name. Sends nothing; the first call reports a name that cannot be used.
    ///
    /// One task is one owner and re-enters. For futures that run in one task (branches of `join_all`, requests of one keep-alive
    /// connection) add [`non_reentrant`](RwLock::non_reentrant), or two of them write at once.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let prices = client.rw_lock("prices").non_reentrant();
    /// let guard = prices.read().await?; // beside other readers
    /// guard.unlock().await?;
    /// let guard = prices.write().await?; // alone
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock(Handle::new(self, name))
    }
}

/// Many readers, or one writer. The settings are those of a [`Lock`](crate::Lock).
///
/// * **From writing to reading.** An owner that holds the write lock may also acquire the read lock, before all waiters. If it then
///   releases the write lock, it keeps the read lock. [`WriteGuard::downgrade`] is short for these two steps.
/// * **Not from reading to writing.** If an owner that holds the read lock requests the write lock, it would wait for itself: the call
///   returns [`Error::Upgrade`] at once. With [`non_reentrant`](RwLock::non_reentrant) every call is an owner of its own, so the client
///   cannot see that, and the call waits forever.
/// * **A lost write lock ends with its lease.** When its lease has expired, the write lock is over, even if its guard still exists. If its
///   owner also holds the read lock, that one remains: readers of other owners can enter, writers cannot.
/// * **Readers of different clients have leases of their own.** If the process of a reader dies, its read lock expires. Readers of other
///   clients do not renew it (but a JVM with Redisson before 4.4 does).
/// * **leasehold clients starve no waiter.** A writer that waits for readers leaves a mark on the server. New readers of all leasehold
///   clients then wait until this writer has released the lock. A waiter that was refused several times,
///   reader or writer, leaves such a mark, too: it acquires the lock next, even if its client is far from the server. If the process of
///   a waiter with a mark is killed, the others wait for up to three seconds.
/// * **JVMs ignore the mark.** If JVMs read without a gap, a writer waits until there is one, as in Redisson. Its mark keeps
///   readers of leasehold clients out for at most 30 s (the [`watchdog`](crate::Builder::watchdog)'s lease); then they read again.
/// * **Readers of one client share.** Readers that come soon after each other share one entry on the server, its lease, and one
///   [`id`](Guard::id), so together they send few requests. Each reader still has a guard of its own.
///
/// Use a name for one kind of lock only. If a [`Lock`](crate::Lock) of the same name is held, the calls here return
/// [`Error::Conflict`], and the reverse is true as well. But a JVM's read-write lock ignores a plain lock of the same name: it does not
/// exclude the holder. Do not use the names `a` and `{a}` together: they share the mark of waiters, so a waiter for one of them keeps others
/// out of the other, and the keys that say when the leases of readers end, which JVMs then mix up.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let prices = client.rw_lock("prices").non_reentrant();
/// let (one, other) = (prices.read().await?, prices.read().await?); // at the same time
/// assert!(prices.try_write().await?.is_none());
/// # drop((one, other));
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
#[must_use = "this only names a lock and holds nothing: call `.read().await?` or `.write().await?` on it"]
pub struct RwLock(Handle);

settings!(RwLock, "rw_lock");

/// The holders of a [read-write lock](RwLock), as the server knows them.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::RwState;
///
/// let prices = client.rw_lock("prices").non_reentrant();
/// let _guard = prices.read().await?;
/// match prices.inspect().await? {
///     RwState::Free => println!("free"),
///     RwState::Read(readers) => println!("{} read", readers.len()),
///     RwState::Write { writer, .. } => println!("{} writes", writer.id),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RwState {
    /// No holder.
    Free,
    /// Readers only. Readers of one client that came soon after each other share one entry.
    Read(Vec<Holder>),
    /// A writer, and perhaps its owner's read lock.
    Write {
        /// Its id ends in `:write`, as the [`Guard::id`] of its guard does. If it was released before its
        /// [`min_hold`](RwLock::min_hold) was over, it ends in `:write:rest`.
        writer: Holder,
        /// The read holds of the writer's owner.
        readers: Vec<Holder>,
    },
}

impl RwState {
    fn of(answer: &Answer) -> Option<RwState> {
        if answer.code == Code::Free {
            return Some(RwState::Free);
        }
        let [lines] = answer.words()?;
        let holders: Option<Vec<_>> = lines.lines().map(Holder::of).collect();
        let (mut writers, readers): (Vec<_>, Vec<_>) =
            holders?.into_iter().partition(|holder| WRITE.rules.is_of_kind(&holder.id));
        Some(match writers.pop() {
            Some(writer) => RwState::Write { writer, readers },
            None => RwState::Read(readers),
        })
    }

    /// The ids of all holders, one per line.
    fn ids(&self) -> String {
        let (writer, readers): (_, &[Holder]) = match self {
            RwState::Free => (None, &[]),
            RwState::Read(readers) => (None, readers),
            RwState::Write { writer, readers } => (Some(writer), readers),
        };
        writer.into_iter().chain(readers).map(|holder| &*holder.id).collect::<Vec<_>>().join("\n")
    }
}

/// Acquiring one side of the lock.
macro_rules! side {
    ($guard:ident, $wrap:ident, $doc:literal, $errors:literal, $what:literal:
     $lock:ident, $try:ident, $try_for:ident, $try_until:ident, $with:ident, $try_with:ident) => {
        impl RwLock {
            #[doc = concat!("Acquires the ", $what, " lock; ", $doc)]
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            #[doc = concat!("let guard = client.rw_lock(\"prices\").non_reentrant().", stringify!($lock), "().await?;")]
            /// guard.unlock().await?;
            /// # Ok(()) }) }
            /// ```
            ///
            /// # Errors
            ///
            #[doc = concat!($errors, "as [`Lock::lock`](crate::Lock::lock).")]
            ///
            /// # Cancel safety
            ///
            /// As [`Lock::lock`](crate::Lock::lock).
            pub async fn $lock(&self) -> Result<$guard> {
                let taken = self.$wrap(stringify!($lock), WaitLimit::Forever).await?;
                Ok(taken.expect("a wait without limit ends with a lock or an error"))
            }

            /// Makes one attempt; `None` if the lock cannot be acquired now.
            ///
            /// # Errors
            ///
            #[doc = concat!($errors, "as [`Lock::try_lock`](crate::Lock::try_lock).")]
            ///
            /// # Cancel safety
            ///
            /// As [`Lock::lock`](crate::Lock::lock).
            pub async fn $try(&self) -> Result<Option<$guard>> {
                self.$wrap(stringify!($try), WaitLimit::Once).await
            }

            /// Waits until the lock is acquired, but for no longer than `limit`; `None` if that was not possible.
            ///
            /// # Errors
            ///
            #[doc = concat!($errors, "as [`Lock::try_lock_for`](crate::Lock::try_lock_for).")]
            ///
            /// # Cancel safety
            ///
            /// As [`Lock::lock`](crate::Lock::lock).
            pub async fn $try_for(&self, limit: Duration) -> Result<Option<$guard>> {
                self.$wrap(stringify!($try_for), WaitLimit::of(limit)).await
            }

            #[doc = concat!("As [`", stringify!($try_for), "`](RwLock::", stringify!($try_for), "), with a deadline: an `Instant` of tokio or of the standard library.")]
            ///
            /// # Errors
            ///
            #[doc = concat!($errors, "as [`Lock::try_lock_until`](crate::Lock::try_lock_until).")]
            ///
            /// # Cancel safety
            ///
            /// As [`Lock::lock`](crate::Lock::lock).
            pub async fn $try_until(&self, deadline: impl Into<Instant>) -> Result<Option<$guard>> {
                self.$wrap(stringify!($try_until), WaitLimit::Until(deadline.into())).await
            }

            #[doc = concat!("Acquires the ", $what, " lock, runs `work` while it is held, and releases it. As [`Lock::with`](crate::Lock::with), it drops `work` if the lock is lost.")]
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            #[doc = concat!("let total = client.rw_lock(\"prices\").non_reentrant().", stringify!($with), "(async || 40 + 2).await?;")]
            /// # assert_eq!(total, 42);
            /// # Ok(()) }) }
            /// ```
            ///
            /// # Errors
            ///
            #[doc = concat!("As [`", stringify!($lock), "`](RwLock::", stringify!($lock), "), and as [`Guard::protect`].")]
            ///
            /// # Cancel safety
            ///
            /// Dropping the future drops the work and releases the lock.
            pub async fn $with<T, W: Future<Output = T>>(&self, work: impl FnOnce() -> W) -> Result<T> {
                self.$lock().await?.protect(work()).await
            }

            #[doc = concat!("As [`", stringify!($with), "`](RwLock::", stringify!($with), "), for work that returns a `Result`: its errors and those of the lock become one `Result`.")]
            ///
            /// # Errors
            ///
            /// The error of `work`, after the lock was released; else as the call without `try`.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future drops the work and releases the lock.
            pub async fn $try_with<T, E: From<Error>, W: Future<Output = Result<T, E>>>(
                &self,
                work: impl FnOnce() -> W,
            ) -> Result<T, E> {
                self.$with(work).await?
            }
        }
    };
}

side!(ReadGuard, reading, "waits while another owner writes, or an earlier writer waits.", "", "read":
    read, try_read, try_read_for, try_read_until, with_read, try_with_read);
side!(WriteGuard, writing, "waits while another owner reads or writes.",
    "[`Error::Upgrade`] if the same owner reads; else ", "write":
    write, try_write, try_write_for, try_write_until, with_write, try_with_write);

impl RwLock {
    /// Keeps the lock held for at least `d` after the call that acquired it returned, for reading or for writing, even if you release it
    /// sooner.
    ///
    /// A lock released early stays on the server for the rest of `d` and then expires; `unlock` does not wait for that. If the release
    /// reaches the server late, the lock stays for longer by that delay. It also stays for `d` if a shorter [`max_hold`](Self::max_hold)
    /// has passed. If the process dies or cannot reach the server, if the guard is kept after `max_hold`, or if a
    /// [`lease`](Self::lease) of the same length expires, `d` counts from the moment at which the server granted the lock. If the call
    /// that acquires it is dropped before it returns, or before its work begins, the lock does not stay. In this time
    ///
    /// * a read lock keeps out writers, and lets readers in;
    /// * a write lock keeps out all others, and new calls of its own owner. If this owner also holds the read lock, it keeps that.
    ///
    /// If one owner acquires the same side several times, it stays until the latest of these times has passed. A reader with a `min_hold`
    /// has an [`id`](Guard::id) of its own: it does not share a hold with other readers of its client.
    ///
    /// `d` must be between 1 ms and one year, and no longer than a fixed [`lease`](Self::lease). With any other value, the call that
    /// acquires the lock returns an error. Defaults to nothing.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::time::Duration;
    ///
    /// let prices = client.rw_lock("prices").non_reentrant().min_hold(Duration::from_secs(60));
    /// prices.read().await?.unlock().await?;
    /// assert!(prices.try_write().await?.is_none()); // for one minute
    /// prices.read().await?.unlock().await?; // beside it
    /// # Ok(()) }) }
    /// ```
    #[must_use = "the setting is in the value that this returns"]
    pub fn min_hold(self, d: Duration) -> Self {
        RwLock(self.0.min_hold(d))
    }

    async fn reading(&self, what: &'static str, limit: WaitLimit) -> Result<Option<ReadGuard>> {
        Ok(self.0.take(&READ, what, limit).await?.map(|guard| ReadGuard { guard }))
    }

    async fn writing(&self, what: &'static str, limit: WaitLimit) -> Result<Option<WriteGuard>> {
        let taken = self.0.take(&WRITE, what, limit).await?;
        let downgrade = |guard: &Guard| Downgrade { lock: Box::new(self.0.clone().owner(guard.owner())) };
        Ok(taken.map(|guard| WriteGuard { downgrade: downgrade(&guard), guard }))
    }

    /// Whether any owner holds the lock now, for reading or writing.
    ///
    /// # Errors
    ///
    /// As [`inspect`](RwLock::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.inspect().await? != RwState::Free)
    }

    /// The holders, and whether they read or write.
    ///
    /// # Errors
    ///
    /// As [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<RwState> {
        Ok(match self.look("inspect").await? {
            RwState::Free => RwState::Free,
            RwState::Read(readers) => RwState::Read(self.with_clients(readers).await),
            RwState::Write { writer, readers } => {
                let writer = self.0.with_client(writer).await;
                RwState::Write { writer, readers: self.with_clients(readers).await }
            }
        })
    }

    async fn with_clients(&self, holders: Vec<Holder>) -> Vec<Holder> {
        join_all(holders.into_iter().map(|holder| self.0.with_client(holder))).await
    }

    async fn look(&self, what: &'static str) -> Result<RwState> {
        let asked = self.0.tell(what, (&READ, &READ.inspect), ("", ""), self.0.engine.outage_ends());
        let state = RwState::of(&asked.await?).ok_or_else(|| self.0.conflict())?;
        if let RwState::Write { writer, .. } = &state {
            self.0.named(&WRITE, &writer.id)?;
        }
        Ok(state)
    }

    /// Releases the lock on behalf of its holders, readers and writer, and wakes all waiters; true if this call released it for one of
    /// them. The holders are not asked first, see [`Lock::force_unlock`](crate::Lock::force_unlock).
    ///
    /// The call first looks up the holders, then releases their holds and no others: an owner that acquires the lock after the lookup
    /// keeps it. There are two exceptions. A reader that acquires the lock after the lookup may share a hold with an earlier reader of its
    /// client: it loses the lock together with that reader. And a thread of a JVM that releases the lock after the lookup and acquires it again
    /// has the same id as before, so it loses its new hold.
    ///
    /// # Errors
    ///
    /// As [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, the lock may or may not be forced open.
    pub async fn force_unlock(&self) -> Result<bool> {
        let ids = self.look("force_unlock").await?.ids();
        if ids.is_empty() {
            return Ok(false);
        }
        let give_up = self.0.engine.outage_ends();
        Ok(self.0.force(&READ, &ids, "", give_up).await? == Code::Released)
    }
}

/// The [`Guard`] of a read lock.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let prices = client.rw_lock("prices").non_reentrant();
/// let reading = prices.read().await?;
/// assert!(!reading.is_lost()); // the methods of `Guard`
/// let total = reading.protect(async { 40 + 2 }).await?;
/// # assert_eq!(total, 42);
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct ReadGuard {
    guard: Guard,
}

guarding!(ReadGuard);

/// The [`Guard`] of a write lock.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let prices = client.rw_lock("prices").non_reentrant();
/// let writing = prices.write().await?;
/// // new prices
/// writing.unlock().await?; // an error if the lock was lost before
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct WriteGuard {
    guard: Guard,
    downgrade: Downgrade,
}

/// How a write lock becomes a read lock.
#[derive(Debug)]
pub(crate) struct Downgrade {
    /// A handle of the same owner. Boxed, because few guards need it.
    lock: Box<Handle>,
}

guarding!(WriteGuard);

impl WriteGuard {
    /// Atomically downgrades to a read lock: no other writer comes in between, and waiting readers may enter. If the write lock has a
    /// [`min_hold`](RwLock::min_hold), they wait until that time has passed. The read lock has the same settings, counted from now.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let writing = client.rw_lock("prices").non_reentrant().write().await?;
    /// // new prices
    /// let reading = writing.downgrade().await?;
    /// // still the same prices
    /// reading.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Guard::unlock`]: [`Error::Lost`] if the lock was lost before, or if the read lock was lost while the call waited for the server.
    /// [`Error::Unavailable`] if the server does not reply while the write lock is certainly held, but for no longer than the
    /// [`outage_timeout`](crate::Builder::outage_timeout). After an error the client releases both locks in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases everything.
    pub async fn downgrade(self) -> Result<ReadGuard> {
        self.downgrade.run(self.guard).await
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn split(self) -> (Guard, Downgrade) {
        (self.guard, self.downgrade)
    }
}

impl Downgrade {
    pub(crate) async fn run(self, writing: Guard) -> Result<ReadGuard> {
        let reading = self.read_beside(&writing).await?;
        writing.unlock().await?;
        let lost = |reason| Error::lost(self.lock.name(), reason);
        let guard = reading.ok_or_else(|| lost(Lost::Removed))?;
        // If the release of the write lock waited for the server, the lease of the read lock may have expired meanwhile.
        guard.loss().map_or(Ok(ReadGuard { guard }), |reason| Err(lost(reason)))
    }

    /// Retries while the write lock is certainly held, as its release does. A wait limit would also wait for another owner, which may have
    /// the lock since it was forced open. If the runtime of the client has ended, each try ends at once, and no later one can succeed.
    async fn read_beside(&self, writing: &Guard) -> Result<Option<Guard>> {
        let (engine, give_up) = (&self.lock.engine, self.lock.engine.outage_ends());
        let is_held = || !writing.remaining().is_zero() && Instant::now() < give_up;
        let has_runtime = || engine.driver.refuse_if_closed("downgrade", self.lock.name()).is_ok();
        self.lock.take_through_outages(&READ, "downgrade", || is_held() && has_runtime()).await
    }
}
