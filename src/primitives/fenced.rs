//! The fenced lock: Redisson's `RFencedLock`, byte for byte in Redis. Each grant has a number greater than all before.

use super::handle::{ActsFor, Handle, exclusive, guarding, settings};
use crate::{
    client::Client,
    engine::{ExtraKey, Guard, Kind, KindScript, Rules},
    error::{Error, Result},
    redis::{LOCK_CHANNEL, Part},
};

const TOKEN: ExtraKey = ExtraKey::Prefixed("redisson_lock_token");

/// Every grant goes through the server, which counts the tokens.
static FENCED: Kind = Kind {
    channel: LOCK_CHANNEL,
    acquire: script!("lock/holder.lua", "fenced/token.lua", "fenced/acquire.lua"; TOKEN),
    release: script!("lock/rest.lua", "lock/release.lua"),
    renew: script!("lock/holder.lua", "lock/renew.lua"),
    hand_over: Some(script!("lock/move.lua", "fenced/token.lua", "fenced/hand_over.lua"; TOKEN)),
    inspect: script!("lock/holder.lua", "lock/inspect.lua"),
    force_unlock: script!("lock/holder.lua", "lock/force_unlock.lua"),
    beside: None,
    barred_by: None,
    rules: Rules { passes_on: false, has_token: true, ..Rules::PLAIN },
};

static WRITE: KindScript = script!("fenced/write.lua");

impl Client {
    /// The fenced lock of this name: its guard has a [token](FencedGuard::token), for resources that can refuse a late writer.
    /// Sends nothing; a name that cannot be used is reported by the first call.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let guard = client.fenced_lock("invoice:42").lock().await?;
    /// let fence = guard.token(); // UPDATE invoice SET …, fence = $fence WHERE id = 42 AND fence <= $fence
    /// # assert_eq!(fence, 1);
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        FencedLock(Handle::new(self, name, ActsFor::Current))
    }
}

/// A [`Lock`](crate::Lock) whose every new hold has a number greater than all before it: a fencing token.
///
/// A lock with a lease cannot stop a process that stood still between looking and writing. The thing that is written can: it
/// remembers the greatest token it has seen and refuses less. [How to do that](crate::guide::fencing) with SQL, an HTTP service
/// and Redis.
///
/// The token grows with every new outermost hold of the name, also when the lock goes from task to task of one client, and in
/// every other client and JVM; nested acquisitions have that of the outermost. It counts up in the key
/// `redisson_lock_token:{name}`, which has no end: **never delete it**, or tokens begin at 1 again and resources refuse them.
/// Nor is it safer than the server: one that loses its last second loses tokens, too.
///
/// Each grant is a request of its own, so a contended turn within one client costs a round trip that a
/// [`Lock`](crate::Lock) saves.
#[derive(Clone)]
pub struct FencedLock(Handle);

settings!(FencedLock);
exclusive!(FencedLock -> FencedGuard, FENCED, FencedGuard::of);

impl FencedLock {
    /// Waits for the lock, does `work` with its token under [protection](Guard::protect), and gives it back.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let written = client.fenced_lock("invoice:42").with(async |fence| fence > 0 /* write it */).await?;
    /// # assert!(written);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock), and as [`Guard::protect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops what `work` has become; nothing is held then.
    pub async fn with<T>(&self, work: impl AsyncFnOnce(u64) -> T) -> Result<T> {
        let FencedGuard { guard, token } = self.lock().await?;
        guard.protect(work(token)).await
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
#[must_use = "the lock is given back when the guard is dropped"]
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

    /// The number of this hold: greater than that of every hold of this name before it, in all clients.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Sets a key on the same server to `value`, if the lock is still ours there: one script looks and writes. Nobody can have
    /// taken the lock in between, however long this process stood still before.
    ///
    /// The key is written as given, without the client's prefix. In a cluster it must be in the slot of the lock's name:
    /// give both the same `{tag}`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let guard = client.fenced_lock("{report}:lock").lock().await?;
    /// guard.write_if_held("{report}:last", "2026-11-21").await?;
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is gone: nothing was written. [`Error::Unavailable`] if the server does not answer: then it may
    /// be written, or may yet be, for as long as the lock is held; give it back before something else is written there.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether it is written.
    pub async fn write_if_held(&self, key: &str, value: &str) -> Result<()> {
        let part = Part::of(self.guard.key()).key(format_args!("{key}")).arg(self.id()).arg(value).done();
        self.guard.while_held("writing under the lock", (&WRITE.script, part)).await
    }
}

guarding!(FencedGuard);
