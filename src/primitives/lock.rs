//! The reentrant lock: Redisson's `RLock`, byte for byte in Redis.

use std::time::Duration;

use super::handle::{ActsFor, Handle, Holder, settings};
use crate::{
    client::Client,
    engine::{Guard, Kind, Rules, WaitLimit},
    error::{Error, Result},
    redis::LOCK_CHANNEL,
    sync::tokio,
};
use tokio::time::Instant;

static LOCK: Kind = Kind {
    channel: LOCK_CHANNEL,
    acquire: script!("lock/holder.lua", "lock/acquire.lua"),
    release: script!("lock/rest.lua", "lock/release.lua"),
    renew: script!("lock/holder.lua", "lock/renew.lua"),
    hand_over: Some(script!("lock/move.lua", "lock/hand_over.lua")),
    inspect: script!("lock/holder.lua", "lock/inspect.lua"),
    force_unlock: script!("lock/holder.lua", "lock/force_unlock.lua"),
    beside: None,
    barred_by: None,
    rules: Rules::PLAIN,
};

impl Client {
    /// The lock of this name. Sends nothing; a name that cannot be used is reported by the first call.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let _guard = client.lock("invoice:42").lock().await?;
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock {
        Lock(Handle::new(self, name, ActsFor::Current))
    }

    /// The lock of this name, not reentrant: every call is an owner of its own, as with `tokio::sync::Mutex`. The same lock
    /// in Redis as [`lock`](Client::lock): both exclude each other.
    ///
    /// Take this one where several pieces of work run in one task: branches of `join_all`, `FuturesUnordered` or
    /// `buffer_unordered`, and the requests of one connection in servers that poll them in one task, as hyper (and so axum)
    /// does over HTTP/1. A task that has it and asks for it again waits for itself.
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
    #[must_use]
    pub fn mutex(&self, name: &str) -> Lock {
        Lock(Handle::new(self, name, ActsFor::EachCall))
    }
}

/// A lock by name, with the settings for taking it. Cheap to clone and to make anew; nothing is held until
/// [`lock`](Lock::lock) and its like return a [`Guard`].
///
/// Without a [`lease`](Lock::lease) the lock is kept by the watchdog: it is taken for
/// [`Builder::watchdog`](crate::Builder::watchdog) and renewed while a guard lives.
///
/// # Reentrant or not
///
/// | | [`Client::lock`] | [`Client::mutex`] |
/// |---|---|---|
/// | who is one owner | a task, with all that is polled in it (see [`Owner`](crate::Owner)) | each call |
/// | taken again by the same owner | re-entered at once | waits, as for anybody |
/// | several branches or requests in one task | do **not** exclude each other | exclude each other |
/// | like | Redisson's `RLock`, Java's `synchronized` | `tokio::sync::Mutex` |
///
/// A first experiment with two `try_lock` in one test re-enters, so both succeed: take `mutex`, two tasks, or two clients.
/// Owners belong to one client: two clients in one task are two owners and exclude each other.
///
/// # Nesting
///
/// Acquired again by its owner, a lock keeps one lease on the server, and the hold ends with its last guard:
///
/// * Time left never gets shorter. An inner `lease` that is longer than what is left moves the end there; a shorter one
///   changes nothing.
/// * The watchdog renews as long as a guard without a `lease` is alive, outer or inner. When only guards with a `lease` are
///   left, the lease runs out as it then is.
/// * A `max_hold` ends the whole hold, for the outer guards too, while its own guard is alive; given back before that, it
///   has no effect.
/// * A hold that was lost stays lost: an inner call then fails with [`Error::Lost`] and takes nothing afresh.
#[derive(Clone)]
pub struct Lock(Handle);

settings!(Lock);

impl Lock {
    /// The lock stays held for at least this time after it was acquired, however soon it is released: a machine whose clock is a
    /// little behind does not repeat work that takes no time.
    ///
    /// If the lock is released earlier, it stays on the server for the rest of this time and then expires; `unlock` does not wait
    /// for that. The lock also stays held for this time if the process of its holder dies, or if a shorter
    /// [`max_hold`](Lock::max_hold) ends the hold: the client acquires it for at least this time, even if the
    /// [watchdog](crate::Builder::watchdog)'s lease is shorter.
    ///
    /// Must be between a millisecond and a year, and no longer than a [`lease`](Lock::lease); anything else is reported when the
    /// lock is acquired. If one owner acquires the lock several times, the latest of these moments counts.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::time::Duration;
    ///
    /// let nightly = client.mutex("nightly").min_hold(Duration::from_secs(300));
    /// if let Some(guard) = nightly.try_lock().await? {
    ///     // a second's work
    ///     guard.unlock().await?;
    /// }
    /// assert!(nightly.try_lock().await?.is_none()); // for five minutes
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn min_hold(self, d: Duration) -> Self {
        Lock(self.0.min_hold(d))
    }

    /// Waits until the lock is ours. An owner that has it already re-enters at once: its hold count grows by one.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let lock = client.lock("ledger");
    /// let outer = lock.lock().await?;
    /// let inner = lock.lock().await?; // the same task: re-entered, no waiting
    /// assert_eq!(inner.holds(), 2);
    /// inner.unlock().await?;
    /// outer.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if this owner had the lock and lost it, or was granted it too late four times in a row, which only a
    /// lease shorter than the way of an answer explains; [`Error::Unavailable`] if the server does not answer
    /// for [`outage_timeout`](crate::Builder::outage_timeout); others as [`Error`] says. Nothing is held then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point leaves nothing behind: no hold, no place in the queue, no subscription.
    ///
    /// A future that is kept but not polled (a branch of `select!` that is taken up again later) holds up the waiters behind
    /// it for six to eleven seconds; then they go on without it, and it begins anew when it is polled. A second `lock` of the
    /// same owner waits behind it all that time: await or drop the first before. A nested `lock`, or a `try_lock`, that is
    /// kept after it was granted keeps what it was granted until it is polled or dropped, or its lease ends.
    pub async fn lock(&self) -> Result<Guard> {
        let taken = self.take("lock", WaitLimit::Forever).await?;
        Ok(taken.expect("a wait without limit ends with a lock or an error"))
    }

    /// One attempt; `None` if somebody else has it.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// match client.lock("nightly-job").try_lock().await? {
    ///     Some(guard) => guard.protect(async { /* the job */ }).await?,
    ///     None => println!("another machine is at it"),
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), but a server that does not answer is given up after
    /// [`command_timeout`](crate::Builder::command_timeout).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Lock::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.take("try_lock", WaitLimit::Once).await
    }

    /// Waits for at most `limit`; `None` if somebody else had it all the time. The last attempt is made when the
    /// time is over, so a lock that comes free in the end is not missed.
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock); a server that does not answer is given up when the wait limit ends.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Lock::lock).
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.take("try_lock_for", WaitLimit::of(limit)).await
    }

    /// As [`try_lock_for`](Lock::try_lock_for), until a moment of tokio's clock or the standard library's.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::time::{Duration, Instant};
    ///
    /// let deadline = Instant::now() + Duration::from_secs(2); // of the whole request
    /// let Some(guard) = client.lock("stock:7").try_lock_until(deadline).await? else { return Ok(()) };
    /// # guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Lock::try_lock_for).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Lock::lock).
    pub async fn try_lock_until(&self, deadline: impl Into<Instant>) -> Result<Option<Guard>> {
        self.take("try_lock_until", WaitLimit::Until(deadline.into())).await
    }

    /// Waits for the lock, does `work` under its [protection](Guard::protect), and gives it back.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let total = client.lock("invoice:42").with(async || 40 + 2).await?;
    /// # assert_eq!(total, 42);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Lock::lock), and as [`Guard::protect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops what `work` has become; nothing is held then.
    pub async fn with<T>(&self, work: impl AsyncFnOnce() -> T) -> Result<T> {
        self.lock().await?.protect(work()).await
    }

    /// As [`with`](Lock::with), for work that can fail itself: one flat result.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// # type BoxError = Box<dyn std::error::Error + Send + Sync>;
    /// let total: Result<u32, BoxError> = client.lock("invoice:42").try_with(async || Ok("42".parse()?)).await;
    /// # assert_eq!(total.unwrap(), 42);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `work`, after the lock was given back; else as [`with`](Lock::with).
    ///
    /// # Cancel safety
    ///
    /// As [`with`](Lock::with).
    pub async fn try_with<T, E: From<Error>>(&self, work: impl AsyncFnOnce() -> Result<T, E>) -> Result<T, E> {
        self.with(work).await?
    }

    /// Whether anybody holds it.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.inspect().await?.is_some())
    }

    /// Who holds it, how often and for how much longer; `None` if nobody does.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if the key is not a lock; [`Error::Unavailable`] if the server does not answer for
    /// [`outage_timeout`](crate::Builder::outage_timeout); others as [`Error`] says.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Option<Holder>> {
        self.0.inspect(&LOCK).await
    }

    /// Takes the lock away from whoever has it and wakes the waiters; true if it was taken away. The holder is not asked:
    /// a leasehold client is told within a third of its lease, and may work on until then.
    ///
    /// It looks who has the lock and then takes it from that hold and from no other, however often the request is sent and
    /// however late it arrives: one that is given back in between is not replaced by the next, and the answer is false.
    /// (Redisson uses an id again when the same thread takes the lock again; a late request can then take that one.)
    ///
    /// # Errors
    ///
    /// As [`inspect`](Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the lock was taken away.
    pub async fn force_unlock(&self) -> Result<bool> {
        self.0.force_unlock(&LOCK).await
    }

    async fn take(&self, what: &'static str, limit: WaitLimit) -> Result<Option<Guard>> {
        self.0.take(&LOCK, what, limit).await
    }
}
