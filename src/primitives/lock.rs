//! The reentrant lock: Redisson's `RLock`, byte for byte in Redis.

use std::{sync::Arc, time::Duration};

use super::{
    handle::Handle,
    methods::{exclusive, settings, working},
};
use crate::{
    client::Client,
    error::Result,
    guard::Guard,
    kind::{Kind, Numbering, Rules},
    owner::Owner,
    redis::{LOCK_CHANNEL, Listener, Subscription},
};

static LOCK: Kind = Kind {
    channel: LOCK_CHANNEL,
    acquire: script!(without_channel: "lock/holder.lua", "lock/acquire.lua"),
    release: script!("lock/rest.lua", "lock/release.lua"),
    renew: script!(tracked: "lock/renew.lua"),
    hand_over: Some(script!(without_channel: "lock/move.lua", "lock/hand_over.lua")),
    inspect: script!("lock/holder.lua", "lock/ends.lua", "lock/inspect.lua"),
    force_unlock: script!("lock/forced.lua", "lock/ends.lua", "lock/force_unlock.lua"),
    beside: None,
    barred_by: None,
    rules: Rules { numbering: Numbering::Lock, ..Rules::PLAIN },
};

impl Client {
    /// The reentrant lock of this name. Sends nothing; the first call reports a name that cannot be used.
    ///
    /// One task is one owner, so `lock` does **not** provide exclusion between futures that run in the same task: branches of
    /// `join_all`, or the requests of one keep-alive connection in axum. Use [`mutex`](Client::mutex) unless functions that
    /// call each other acquire the same lock.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let ledger = client.lock("ledger");
    /// let outer = ledger.lock().await?;
    /// let inner = ledger.lock().await?; // the same task: re-entered, no waiting
    /// assert_eq!(inner.holds(), 2);
    /// inner.unlock().await?;
    /// outer.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    pub fn lock(&self, name: &str) -> Lock {
        Lock(Handle::new(self, name))
    }

    /// The lock of this name, not reentrant: short for `lock(name).non_reentrant()`. Every call is an owner of its own, as with
    /// `tokio::sync::Mutex`. In Redis it is the same lock as [`lock`](Client::lock): the two exclude each other.
    ///
    /// If in doubt, use this one. If a task that holds the mutex calls `lock()` on it again, it waits for itself forever.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let stock = client.mutex("stock:7");
    /// let first = stock.lock().await?;
    /// assert!(stock.try_lock().await?.is_none()); // with `lock` instead of `mutex` this would re-enter
    /// first.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    pub fn mutex(&self, name: &str) -> Lock {
        self.lock(name).non_reentrant()
    }
}

/// A lock by name, with settings. Cheap to clone. A `Lock` holds nothing: [`lock`](Lock::lock) and the other calls return the
/// [`Guard`] that does.
///
/// Without a [`lease`](Lock::lease) the lock has a lease of [`Builder::watchdog`](crate::Builder::watchdog) (30 s), and a background
/// task of the client, the watchdog, renews it while a guard lives.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use std::time::Duration;
///
/// let invoice = client.mutex("invoice:42"); // holds nothing
/// match invoice.try_lock_for(Duration::from_secs(1)).await? {
///     Some(guard) => guard.unlock().await?,
///     None => println!("held by {:?}", invoice.inspect().await?),
/// }
/// # Ok(()) }) }
/// ```
///
/// # Reentrant or not
///
/// | | [`Client::lock`] | [`Client::mutex`] |
/// |---|---|---|
/// | one owner is | a task, with all futures that run in it (see [`Owner`](crate::Owner)) | one call |
/// | the task that holds the lock acquires it again | re-enters at once | waits for itself forever |
/// | several branches or requests in one task | do **not** exclude each other | exclude each other |
/// | works like | Redisson's `RLock`, Java's `synchronized` | `tokio::sync::Mutex` |
///
/// In a test, two `try_lock` both succeed, since the whole test has one owner, and the second call re-enters. Use `mutex`, two tasks, or
/// two clients. A hold belongs to one client: if one task uses two clients, they exclude each other.
///
/// # Nesting
///
/// If an owner acquires the lock several times, all its guards belong to one hold, which has one lease on the server. The hold ends
/// with the release of the last guard.
///
/// * An acquisition never shortens the time left. If a nested call sets a `lease` longer than the time left, the lease becomes that
///   long; a shorter one changes nothing.
/// * The watchdog renews as long as one guard without a `lease` lives, outer or nested. When only guards with a `lease` are
///   left, it stops, and the lease expires when its time left is over.
/// * When the `max_hold` of one living guard is over, the whole hold is lost, for the other guards too. The `max_hold` of a guard that
///   was released has no effect.
/// * A lost hold stays lost: a nested call then fails with [`Error::Lost`](crate::Error::Lost) and does not acquire the lock again.
#[derive(Clone)]
#[must_use = "this only names a lock and holds nothing: call `.lock().await?` or `.await?` on it"]
pub struct Lock(Handle);

settings!(Lock, "lock");
exclusive!(Lock, "lock" -> Guard, LOCK, Ok);
working!(Lock, "lock");

impl Lock {
    /// The position of this lock in an order of locks: first what names it on its server, which is the same in all processes, then the
    /// id of the client.
    pub(crate) fn rank(&self) -> ((&str, &str, u8), uuid::Uuid) {
        self.0.rank()
    }

    /// Notifies the listener whenever the lock is released for all.
    pub(crate) fn listen(&self, listener: Arc<dyn Listener>) -> Result<Subscription> {
        self.0.listen(&LOCK, listener)
    }

    /// True if the server of this lock has given no reply for this long, or cannot be connected to.
    pub(crate) fn has_unwell_server(&self, late: Duration) -> bool {
        self.0.has_unwell_server(late)
    }

    /// True if that owner has a hold of this lock, lost or not.
    pub(crate) fn is_held_by(&self, owner: &Owner) -> bool {
        self.0.is_held_by(&LOCK, owner)
    }

    /// The interval at which the client renews this lock if it has no fixed lease.
    pub(crate) fn renewal(&self) -> Duration {
        self.0.renewal()
    }

    /// The server has said that the lock is free.
    pub(crate) fn said_to_be_free(&self) -> Result<()> {
        self.0.said_to_be_free(&LOCK)
    }

    pub(crate) fn has_min_hold(&self) -> bool {
        self.0.has_min_hold()
    }

    /// The lease of its own, if it is valid.
    pub(crate) fn fixed_lease(&self) -> Option<Duration> {
        self.0.fixed_lease()
    }

    /// Releases the lock on behalf of its holder and wakes the waiters; true if this call released it. The holder is not asked first. A
    /// leasehold client is notified within a third of its lease, and its work may continue until then.
    ///
    /// The call first looks up the id of the holder and the time at which its lease expires. Then it releases the lock, but only if the
    /// lock still has that id and that time. This also holds if the request is repeated or late. The result is false, and nothing was
    /// released, in three cases:
    ///
    /// * The lock was free.
    /// * The holder released the lock after the lookup. If there is a next holder, it keeps the lock.
    /// * The lease was renewed after the lookup. The holder may have done that, or a new holder that the server cannot distinguish from
    ///   it: tasks of one client may pass a lock on under one id, and a thread that uses Redisson has the same id each time. If
    ///   [`inspect`](Lock::inspect) shows that the lock is still held, call again.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, the lock may or may not be forced open.
    pub async fn force_unlock(&self) -> Result<bool> {
        self.0.force_unlock(&LOCK).await
    }
}
