//! The fenced lock: Redisson's `RFencedLock`, byte for byte in Redis. Each new hold gets a number greater than all earlier ones.

use super::{
    handle::Handle,
    methods::{exclusive, forcing, guarding, settings},
};
use crate::{
    client::Client,
    error::{Error, Result},
    events::KindLabel,
    guard::Guard,
    kind::{ExtraKey, Kind, KindScript, Numbering, Rules},
    lock::{self, Waits},
    redis::{LOCK_CHANNEL, Part},
};

const TOKEN: ExtraKey = ExtraKey::Prefixed("redisson_lock_token");

/// Every grant is a request to the server, because the server counts the tokens.
static FENCED: Kind = Kind {
    channel: LOCK_CHANNEL,
    acquire: script!(without_channel: "lock/holder.lua", "fenced/token.lua", "fenced/acquire.lua"; TOKEN),
    release: script!("lock/rest.lua", "lock/release.lua"),
    renew: script!(tracked: "lock/renew.lua"),
    hand_over: Some(script!(without_channel: "lock/move.lua", "fenced/token.lua", "fenced/hand_over.lua"; TOKEN)),
    inspect: script!("lock/holder.lua", "lock/ends.lua", "lock/inspect.lua"),
    force_unlock: script!("lock/forced.lua", "lock/ends.lua", "lock/force_unlock.lua"),
    beside: None,
    barred_by: None,
    rules: Rules {
        label: KindLabel::Fenced,
        numbering: Numbering::Fenced,
        machine: lock::Rules { waits: Waits::Here, passes_on: false, sure: None },
        has_token: true,
        ..Rules::PLAIN
    },
};

static WRITE: KindScript = script!("fenced/write.lua");

impl Client {
    /// The fenced lock of this name. Its guard has a [token](FencedGuard::token), by which a resource can refuse a late writer.
    /// Sends nothing; the first call reports a name that cannot be used.
    ///
    /// One task is one owner and re-enters, with the same token. For futures that run in one task (branches of `join_all`, requests
    /// of one keep-alive connection) add [`non_reentrant`](FencedLock::non_reentrant), or two of them write with one token.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let guard = client.fenced_lock("invoice:42").non_reentrant().lock().await?;
    /// let fence = guard.token(); // UPDATE invoice SET …, fence = $fence WHERE id = 42 AND fence <= $fence
    /// # assert_eq!(fence, 1);
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        FencedLock(Handle::new(self, name))
    }
}

/// A [`Lock`](crate::Lock) in which every hold has a fencing token: a number greater than those of all earlier holds.
///
/// A lock with a lease cannot stop a process that was paused after it checked the lock and before it wrote. The resource can: it remembers
/// the greatest token that it has seen and refuses smaller ones. [How to do that](crate::guide::fencing) with SQL, an HTTP service and
/// Redis.
///
/// The token grows with every hold of the name, in any task, client or JVM. A nested acquisition belongs to the same hold and has the
/// same token. The server counts tokens in the key
/// `redisson_lock_token:{name}`, which never expires. **Never delete that key**, or tokens start at 1 again and resources refuse
/// them. A server that loses its last second of writes forgets the tokens of that second and gives them out again.
///
/// If several tasks of one client wait for the lock, each turn costs one round trip more than with a [`Lock`](crate::Lock): the server
/// must count a token for it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let invoice = client.fenced_lock("invoice:42").non_reentrant();
/// let first = invoice.with(async |token| token).await?;
/// let second = invoice.with(async |token| token).await?;
/// assert!(second > first); // a resource that has seen `second` refuses `first`
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
#[must_use = "this only names a lock and holds nothing: call `.lock().await?` or `.await?` on it"]
pub struct FencedLock(Handle);

settings!(FencedLock, "fenced_lock");
exclusive!(FencedLock, "fenced_lock" -> FencedGuard, FENCED, FencedGuard::of);
forcing!(FencedLock, FENCED);

impl FencedLock {
    /// Acquires the lock, runs `work` with its token while the lock is held, and releases it. As [`Lock::with`](crate::Lock::with), it
    /// drops `work` if the lock is lost.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let invoice = client.fenced_lock("invoice:42").non_reentrant();
    /// let written = invoice.with(async |fence| fence > 0 /* write it */).await?;
    /// # assert!(written);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and as [`Guard::protect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the lock.
    pub async fn with<T, W: Future<Output = T>>(&self, work: impl FnOnce(u64) -> W) -> Result<T> {
        let FencedGuard { guard, token } = self.lock().await?;
        guard.protect(work(token)).await
    }

    /// As [`with`](Self::with), for work that returns a `Result`: its errors and those of the lock become one `Result`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// # type BoxError = Box<dyn std::error::Error + Send + Sync>;
    /// let invoice = client.fenced_lock("invoice:42").non_reentrant();
    /// let total = invoice.try_with(async |_fence| Ok::<_, BoxError>("42".parse::<u32>()?)).await;
    /// # assert_eq!(total.unwrap(), 42);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `work`, after the lock was released; else as [`with`](Self::with).
    ///
    /// # Cancel safety
    ///
    /// As [`with`](Self::with).
    pub async fn try_with<T, E: From<Error>, W: Future<Output = Result<T, E>>>(
        &self,
        work: impl FnOnce(u64) -> W,
    ) -> Result<T, E> {
        self.with(work).await?
    }
}

/// A [`Guard`] with a fencing token.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let lock = client.fenced_lock("ledger");
/// let first = lock.lock().await?.token();
/// let guard = lock.lock().await?; // the first was dropped
/// assert!(guard.token() > first);
/// assert_eq!(lock.lock().await?.token(), guard.token()); // nested: the same hold
/// guard.unlock().await?;
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct FencedGuard {
    guard: Guard,
    token: u64,
}

impl FencedGuard {
    fn of(guard: Guard) -> Result<FencedGuard> {
        match guard.fence() {
            Some(token) => Ok(FencedGuard { guard, token }),
            None => Err(Error::unexpected("a grant without a token")),
        }
    }

    /// The fencing token of this hold: greater than that of every earlier hold of this name, in all clients.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Sets a key on the same server to `value` if the server still has this hold. One script checks and writes, so no other
    /// holder can come in between, however long this process was paused before.
    ///
    /// The key is written as given, without the client's prefix. In a cluster it must be in the slot of the lock's name:
    /// give both the same `{tag}`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let guard = client.fenced_lock("{report}:lock").non_reentrant().lock().await?;
    /// guard.write_if_held("{report}:last", "monday").await?;
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is lost: nothing was written. [`Error::Unavailable`] if the server does not reply: the key may
    /// be written now or later, for as long as the lock is held. That late write could replace a newer value, so release the lock before
    /// anything else writes that key. Also `Unavailable` if the first request had no reply, and the next one found that the lock is lost.
    /// Then the key may be written, but no late write follows. After any other error the key may be written, too.
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, the key may or may not be written.
    pub async fn write_if_held(&self, key: &str, value: &str) -> Result<()> {
        write_if_held(&self.guard, key, value).await
    }
}

/// [`FencedGuard::write_if_held`], with the plain guard.
pub(crate) async fn write_if_held(guard: &Guard, key: &str, value: &str) -> Result<()> {
    let part = Part::of(guard.key()).key(format_args!("{key}")).arg(guard.id()).arg(value).done();
    guard.while_held("writing under the lock", (&WRITE.script, part)).await
}

guarding!(FencedGuard);
