//! Several locks, held all or none.

use std::{
    future::{Future, poll_fn},
    mem,
    task::Poll,
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{join_all, select_all},
    stream::FuturesUnordered,
};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    any_lost::AnyLost,
    protect::{Holding, protecting},
};
use crate::{
    clock::Moment,
    error::{Error, Lost, Result},
    failed::ASKING,
    guard::Guard,
    primitives::Lock,
    request::WaitLimit,
    sync::tokio,
    task_runtime::TaskRuntime,
};

/// What a round of requests gets at least that begins when the time of its call is over.
const LAST_ROUND: Duration = Duration::from_millis(200);

/// Several locks of one client or of several clients, which are held all or none.
///
/// # Order and waiting
///
/// You may name the locks in any order: a `MultiLock` waits for them in one fixed order, and keeps no later lock while it waits for an
/// earlier one. So two callers never wait for each other in a circle. The order is by name, and for one name on several servers or
/// databases by the address in the client's URL: write it in the same way in all programs. Each lock keeps its settings; a reentrant lock
/// is acquired for the caller's owner. If you name a lock of one client twice, it is acquired once, with the settings of the first. Two
/// clients are two owners. So if you name the same lock through two clients with the same address in their URLs, the call that acquires it
/// returns an error. If the addresses differ and lead to the same server (`localhost`, `127.0.0.1`), the call waits for itself.
///
/// A call first requests all locks at once, which takes one round trip if they are free. If one is not free, the call keeps the locks
/// before it in the order, releases those after it, and waits for it. Then it requests the rest again. If it loses a lock while it waits,
/// it acquires that lock and all after it again. While it waits, it extends the [`lease`](Lock::lease) of the locks that it keeps. But a
/// [`max_hold`](Lock::max_hold) counts from the moment at which that lock was acquired: if it is shorter than the wait for the next lock, the
/// call cannot acquire both.
///
/// So the call waits for one lock at a time, in the same way as for a single [`Lock`]. Others that keep acquiring single locks delay it no
/// more than they delay a caller of one `Lock`. The price: while it waits, the locks that it keeps are unused. A call that released them
/// instead would have to find all of them free at one moment, which may never come.
///
/// Each lock has the guarantees of a [`Lock`]. If one of them is lost, [`MultiGuard::lost`] resolves; the others stay held until you
/// release the guard.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::MultiLock;
///
/// let accounts = MultiLock::new([client.mutex("account:7"), client.mutex("account:3")]);
/// let both = accounts.lock().await?;
/// // move money from one account to the other
/// both.unlock().await?; // an error names the lock that was lost
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "this only names locks and holds nothing: call `.lock().await?` on it"]
pub struct MultiLock {
    /// In the order in which every process acquires them; each once.
    locks: Vec<Lock>,
}

impl MultiLock {
    /// All these locks together. Sends nothing.
    ///
    /// A lock with [`min_hold`](Lock::min_hold) is refused when the locks are acquired: it would stay held after an attempt that could
    /// not acquire the others.
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> MultiLock {
        let mut locks: Vec<_> = locks.into_iter().collect();
        locks.sort_by(|one, other| one.rank().cmp(&other.rank()));
        locks.dedup_by(|later, earlier| later.rank() == earlier.rank());
        MultiLock { locks }
    }

    /// Acquires all locks; waits for as long as other owners hold one of them.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`]. [`Error::InvalidConfig`] if there is no lock, one with [`min_hold`](Lock::min_hold), or the same lock of two
    /// clients. In each case this call acquired none of the locks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point leaves nothing behind. As with [`Lock::lock`], await the future or drop it: a future that you
    /// keep without polling it may hold some of the locks.
    pub async fn lock(&self) -> Result<MultiGuard> {
        let acquired = self.acquire(WaitLimit::Forever).await?;
        Ok(acquired.expect("a wait without limit ends with the locks or an error"))
    }

    /// Makes one attempt; `None` if another owner holds one of the locks.
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock). If a server does not reply, the call gives up after
    /// [`command_timeout`](crate::Builder::command_timeout).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](MultiLock::lock).
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.acquire(WaitLimit::Once).await
    }

    /// Waits for at most `limit`, for all locks together; `None` if other owners still hold one of them.
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock). If a server does not reply, the call gives up soon after `limit`, or after
    /// `outage_timeout` if that is sooner.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](MultiLock::lock).
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard>> {
        self.acquire(WaitLimit::of(limit)).await
    }

    /// As [`try_lock_for`](MultiLock::try_lock_for), with a deadline: an `Instant` of tokio or of the standard library.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](MultiLock::try_lock_for).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](MultiLock::lock).
    pub async fn try_lock_until(&self, deadline: impl Into<Instant>) -> Result<Option<MultiGuard>> {
        self.acquire(WaitLimit::Until(deadline.into())).await
    }

    /// Acquires all locks, runs `work` while they are held, and releases them; see [`MultiGuard::protect`].
    ///
    /// # Errors
    ///
    /// As [`lock`](MultiLock::lock), and as [`MultiGuard::protect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the locks.
    pub async fn with<T, W: Future<Output = T>>(&self, work: impl FnOnce() -> W) -> Result<T> {
        self.lock().await?.protect(work()).await
    }

    /// Locks that were acquired in an attempt that failed are dropped, and so released at once and together.
    async fn acquire(&self, limit: WaitLimit) -> Result<Option<MultiGuard>> {
        self.check()?;
        TaskRuntime::around(ASKING)?;
        let mut guards: Vec<Guard> = Vec::with_capacity(self.locks.len());
        loop {
            let round = in_order(&self.locks[guards.len()..], limit).await?;
            guards.extend(round.granted);
            if let Some((first, reason)) = first_lost(&guards) {
                if matches!(limit, WaitLimit::Once) {
                    return Err(Error::lost(guards[first].name(), reason));
                }
                guards.truncate(first); // it would wait for a lock while it holds one behind it
            }
            let Some(missing) = self.locks.get(guards.len()) else { return Ok(Some(MultiGuard::new(guards))) };
            if round.is_last {
                return Ok(None);
            }
            let waits = async {
                match limit {
                    WaitLimit::Until(end) => missing.try_lock_until(end).await,
                    WaitLimit::Once | WaitLimit::Forever => missing.lock().await.map(Some),
                }
            };
            let Some(guard) = extending(&self.locks, &guards, waits).await? else { return Ok(None) };
            guards.push(guard);
        }
    }

    fn check(&self) -> Result<()> {
        if self.locks.is_empty() {
            return Err(Error::config("locks", "there is no lock to acquire"));
        }
        if self.locks.iter().any(Lock::has_min_hold) {
            return Err(Error::config("min_hold", "a lock that is held together with others cannot have one"));
        }
        let rank = |at: usize| self.locks[at].rank();
        if (1..self.locks.len()).any(|at| rank(at).0 == rank(at - 1).0) {
            return Err(Error::config(
                "locks",
                "two of them are the same lock of two clients, which exclude each other",
            ));
        }
        Ok(())
    }
}

/// Extends the fixed leases of the guards, which are those of the first locks, while the call waits. Else a lease that is shorter than the wait
/// for the next lock would expire each time.
async fn extending<T>(locks: &[Lock], guards: &[Guard], waits: impl Future<Output = T>) -> T {
    let extend = async |lease: Duration, guard: &Guard| {
        loop {
            sleep(lease / 3).await;
            _ = guard.extend(lease).await; // a loss shows after the wait
        }
    };
    let fixed = locks.iter().zip(guards).filter_map(|(lock, guard)| Some(extend(lock.fixed_lease()?, guard)));
    let mut extended: FuturesUnordered<_> = fixed.collect();
    tokio::select! {
        waited = waits => waited,
        Some(()) = extended.next() => unreachable!("it goes on"),
    }
}

fn first_lost(guards: &[Guard]) -> Option<(usize, Lost)> {
    guards.iter().enumerate().find_map(|(at, guard)| guard.loss().map(|reason| (at, reason)))
}

/// One request for each lock.
struct Round {
    /// The locks before the first that was not granted.
    granted: Vec<Guard>,
    /// The wait limit is over: there is no other round.
    is_last: bool,
}

/// Requests all these locks at once and keeps those before the first that was refused. A wait rides out an outage, so a waiter takes a
/// server that does not answer for a refusal, unless its limit is over.
async fn in_order(locks: &[Lock], limit: WaitLimit) -> Result<Round> {
    let (answers, is_last) = match limit {
        WaitLimit::Until(end) => match timeout_at(end.max(Instant::now() + LAST_ROUND), requested(locks)).await {
            Ok(answers) => (answers, limit.is_over()),
            Err(_) => (requested_at_the_end(locks, end).await, true),
        },
        WaitLimit::Once => (requested(locks).await, true),
        WaitLimit::Forever => (requested(locks).await, false),
    };
    let mut granted = Vec::with_capacity(locks.len());
    for answer in answers {
        match answer {
            Ok(Some(guard)) => granted.push(guard),
            Ok(None) => break,
            Err(error) if error.is_unavailable() && !is_last => break,
            Err(error) => return Err(error),
        }
    }
    Ok(Round { granted, is_last })
}

async fn requested(locks: &[Lock]) -> Vec<Result<Option<Guard>>> {
    join_all(locks.iter().map(Lock::try_lock)).await
}

/// The last requests of a wait, together: one after the other, each would get a time of its own beyond the limit.
async fn requested_at_the_end(locks: &[Lock], end: Instant) -> Vec<Result<Option<Guard>>> {
    join_all(locks.iter().map(|lock| lock.try_lock_until(end))).await
}

/// The guards of all locks of a [`MultiLock`]. Released by [`unlock`](MultiGuard::unlock), or in the background when dropped.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::MultiLock;
///
/// let accounts = MultiLock::new([client.mutex("account:7"), client.mutex("account:3")]);
/// let guard = accounts.lock().await?;
/// assert_eq!(guard.names().collect::<Vec<_>>(), ["account:3", "account:7"]);
/// guard.unlock().await?; // an error names the lock that was lost
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped: write `let _guard = …`"]
pub struct MultiGuard {
    /// At least one, until `unlock`.
    guards: Vec<Guard>,
    token: AnyLost,
}

impl MultiGuard {
    fn new(guards: Vec<Guard>) -> MultiGuard {
        MultiGuard { guards, token: AnyLost::default() }
    }

    /// Releases all locks together. If the release of one of them fails, the others are released all the same.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the name of a lock that was lost before; else the first error, as of [`Guard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Once polled it cannot be undone: dropping the future leaves the rest to the background.
    pub async fn unlock(mut self) -> Result<()> {
        self.cancel_if_lost();
        let guards = mem::take(&mut self.guards);
        let answers = join_all(guards.into_iter().map(Guard::unlock)).await;
        let errors: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        if !errors.is_empty() {
            self.token.cancel();
        }
        let lost = errors.iter().position(Error::is_lost);
        errors.into_iter().nth(lost.unwrap_or_default()).map_or(Ok(()), Err)
    }

    /// The task that watches ends with this guard, perhaps before it has seen the loss.
    fn cancel_if_lost(&self) {
        if self.is_lost() {
            self.token.cancel();
        }
    }

    /// As [`lost`](MultiGuard::lost), without the guard.
    #[cfg(feature = "blocking")]
    pub(crate) fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
        let watches: Vec<_> = self.guards.iter().map(|guard| Box::pin(guard.watch())).collect();
        async move { select_all(watches).await.0 }
    }

    /// The longest of their clients.
    #[cfg(feature = "blocking")]
    pub(crate) fn command_timeout(&self) -> Duration {
        self.guards.iter().map(Guard::command_timeout).max().unwrap_or_default()
    }

    /// Resolves as soon as any of the locks is lost. For `select!`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; you can call it again.
    pub async fn lost(&self) -> Lost {
        let mut losses: FuturesUnordered<_> = self.guards.iter().map(Guard::lost).collect();
        let mut certain_until = Moment::PAST;
        poll_fn(|cx| {
            // A look at the clock at each poll, because timers are late if the workers of the runtime are busy. A look at all locks only when
            // one may have expired.
            let now = Moment::now();
            if now >= certain_until {
                if let Some((_, reason)) = first_lost(&self.guards) {
                    return Poll::Ready(reason);
                }
                certain_until = now + self.remaining();
            }
            losses.poll_next_unpin(cx).map(|lost| lost.expect("there is at least one lock"))
        })
        .await
    }

    /// A token that is cancelled when [`lost`](MultiGuard::lost) would resolve, for other tasks; see [`Guard::lost_token`]. Call it inside
    /// a tokio runtime: a task there watches the locks while this guard lives.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        let token = self.token.when(|| {
            let tokens: Vec<_> = self.guards.iter().map(Guard::lost_token).collect();
            async move { _ = select_all(tokens.iter().map(|token| Box::pin(token.cancelled()))).await }
        });
        self.cancel_if_lost(); // now, and not when that task runs
        token
    }

    /// Whether one of the locks is lost, as far as the client knows. Sends no request.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(Guard::is_lost)
    }

    /// How long all locks are certainly held if no server replies any more: the smallest [`Guard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Asks the servers now whether all locks are still held.
    ///
    /// # Errors
    ///
    /// As [`Guard::check`], of the first lock that has an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn check(&self) -> Result<()> {
        join_all(self.guards.iter().map(Guard::check)).await.into_iter().collect()
    }

    /// The names of the locks, in the order in which they are acquired.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.guards.iter().map(Guard::name)
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        self.cancel_if_lost();
    }
}

impl Holding for MultiGuard {
    fn name(&self) -> String {
        self.names().collect::<Vec<_>>().join(", ")
    }

    async fn lost(&self) -> Lost {
        MultiGuard::lost(self).await
    }

    async fn unlock(self) -> Result<()> {
        MultiGuard::unlock(self).await
    }
}

protecting!(MultiGuard, "the locks", "one of the locks is lost");
