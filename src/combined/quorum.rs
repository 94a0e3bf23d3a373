//! One lock over several servers that do not know of each other: held while a majority of them has it.

use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use dashmap::DashMap;
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::{Instant, sleep, timeout_at},
};

use super::{
    quorum_guard::{QuorumGuard, Seeding, Votes, vote_of},
    signal::Releases,
};
use crate::{
    client::Client,
    clock::Moment,
    engine::{ASKING, Guard, TaskRuntime, WaitLimit},
    error::{Error, Result},
    owner::Owner,
    primitives::{ActsFor, Lock},
    redis::spread,
    sync::tokio,
};

/// The first pause after a vote without a majority, and the longest. A release message ends a pause early.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// The servers announce one release at slightly different moments; a waiter that is awake lets them all do so.
const SETTLE: Duration = Duration::from_millis(2);
/// How much longer than a majority the others may take to vote, beside as long again.
const STRAGGLERS: Duration = Duration::from_millis(20);
/// What a vote gets at least that begins when the time of its call is over.
const LAST_VOTE: Duration = Duration::from_millis(200);

/// Several independent servers that grant locks by majority (Redlock). Cheap to clone.
///
/// A quorum is for locks that must survive the loss of a server without waiting for a failover. It costs one request for each server
/// where a [`Lock`] costs one, and it needs an odd number of servers, at least three, that share nothing: no replication, no machine.
///
/// # What it does not give
///
/// * A server that restarts without its data can grant a lock that it had granted before. Then two owners can hold the lock: until the
///   first one's next renewal, at most a third of its lease later, or with a fixed [`lease`](QuorumLock::lease) until that expires. Run the
///   servers with `appendfsync always`, or, if a server has lost its data, wait for the longest lease
///   before you start it again.
/// * It does not protect a resource from a holder that was paused: use a [`FencedLock`](crate::FencedLock) on one server for that.
/// * If one server with a replica is enough, [`Builder::replicas`](crate::Builder::replicas) is simpler and costs less.
///
/// The algorithm is Salvatore Sanfilippo's (*Distributed Locks with Redis*, redis.io); Martin Kleppmann's *How to do distributed locking*
/// (2016) says what it cannot promise.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// # let (two, three) = (server::Server::start(), server::Server::start());
/// # let (b, c) = (leasehold::Client::connect(&two.url()).await?, leasehold::Client::connect(&three.url()).await?);
/// # let a = client;
/// use leasehold::Quorum;
///
/// let quorum = Quorum::new([a, b, c])?; // a client of each server
/// let guard = quorum.lock("invoice:42").non_reentrant().lock().await?;
/// assert!(guard.nodes() >= 2);
/// guard.unlock().await?;
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
pub struct Quorum {
    clients: Arc<[Client]>,
    lines: Arc<DashMap<Arc<str>, Weak<Mutex<()>>>>,
}

impl Quorum {
    /// The servers of these clients. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] unless the number of clients is odd and at least three, or if two of them lead to the same address.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Result<Quorum> {
        let clients: Arc<[Client]> = clients.into_iter().collect();
        if clients.len() < 3 || clients.len().is_multiple_of(2) {
            let reason =
                format!("a quorum needs an odd number of servers, at least 3, and these are {}", clients.len());
            return Err(Error::config("clients", reason));
        }
        let mut places: Vec<_> = clients.iter().map(Client::place).collect();
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::config("clients", "two of them lead to the same server, which would vote twice"));
        }
        Ok(Quorum { clients, lines: Arc::default() })
    }

    /// The lock of this name. Sends nothing; the first call reports a name that cannot be used.
    ///
    /// One task is one owner and re-enters, as with [`Client::lock`]; with [`non_reentrant`](QuorumLock::non_reentrant) every call is an
    /// owner of its own.
    pub fn lock(&self, name: &str) -> QuorumLock {
        let locks = self.clients.iter().map(|client| client.lock(name)).collect();
        QuorumLock {
            quorum: self.clone(),
            name: name.into(),
            locks,
            acts_for: ActsFor::Current,
            renewed: true,
            max_hold: None,
        }
    }

    /// The place in this process where the callers of one name queue: one of them votes at a time.
    fn line(&self, name: &Arc<str>) -> Arc<Mutex<()>> {
        let mut line = self.lines.entry(Arc::clone(name)).or_default();
        line.upgrade().unwrap_or_else(|| {
            let fresh = Arc::new(Mutex::new(()));
            *line = Arc::downgrade(&fresh);
            fresh
        })
    }

    fn forget_line(&self, name: &str) {
        self.lines.remove_if(name, |_, line| line.strong_count() == 0);
    }
}

/// A lock over the servers of a [`Quorum`], with settings. Cheap to clone. It holds nothing itself.
#[derive(Debug, Clone)]
#[must_use = "this only names a lock and holds nothing: call `.lock().await?` on it"]
pub struct QuorumLock {
    quorum: Quorum,
    name: Arc<str>,
    /// One for each server.
    locks: Vec<Lock>,
    acts_for: ActsFor,
    /// The watchdog keeps it: there is no fixed lease.
    renewed: bool,
    max_hold: Option<Duration>,
}

/// The votes of one attempt.
enum Vote {
    /// A majority granted it; votes that are still to come.
    Won(Vec<Option<Guard>>, Votes),
    /// A majority answered and did not grant it.
    Taken,
    /// No majority answered.
    Unavailable(Error),
}

impl QuorumLock {
    /// Sets a fixed lease, as [`Lock::lease`]. If a server comes back without its data, the client does not request the lock there again.
    pub fn lease(self, d: Duration) -> QuorumLock {
        QuorumLock { renewed: false, ..self.each(|lock| lock.lease(d)) }
    }

    /// Limits how long the lock is held, as [`Lock::max_hold`].
    pub fn max_hold(self, d: Duration) -> QuorumLock {
        QuorumLock { max_hold: Some(d), ..self.each(|lock| lock.max_hold(d)) }
    }

    /// Acquires the lock for this owner, as [`Lock::owner`].
    pub fn owner(self, o: &Owner) -> QuorumLock {
        QuorumLock { acts_for: ActsFor::This(o.clone()), ..self }
    }

    /// Makes every call an owner of its own, as [`Lock::non_reentrant`].
    pub fn non_reentrant(self) -> QuorumLock {
        QuorumLock { acts_for: ActsFor::EachCall, ..self }
    }

    fn each(self, set: impl Fn(Lock) -> Lock) -> QuorumLock {
        QuorumLock { locks: self.locks.into_iter().map(set).collect(), ..self }
    }

    /// The name, without the clients' prefixes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Acquires the lock on a majority of the servers; waits for as long as another owner holds it.
    ///
    /// # Errors
    ///
    /// * [`Error::Unavailable`]: no majority answered for [`outage_timeout`](crate::Builder::outage_timeout) of the first client.
    /// * [`Error::Lost`]: this owner held the lock and lost it.
    /// * Others as [`Error`] says. In each case this call acquired nothing. If a server that does not reply has granted the lock to it, the
    ///   client releases it there in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind. Await the future or drop it: while you keep it unpolled, other callers of this process
    /// wait for it.
    pub async fn lock(&self) -> Result<QuorumGuard> {
        let acquired = self.acquire(WaitLimit::Forever).await?;
        Ok(acquired.expect("a wait without limit ends with the lock or an error"))
    }

    /// Makes one attempt; `None` if a majority answered and another owner holds the lock, or two callers that started together split the
    /// servers among them.
    ///
    /// # Errors
    ///
    /// As [`lock`](QuorumLock::lock), but the call gives up after [`command_timeout`](crate::Builder::command_timeout).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](QuorumLock::lock).
    pub async fn try_lock(&self) -> Result<Option<QuorumGuard>> {
        self.acquire(WaitLimit::Once).await
    }

    /// Waits for at most `limit`; `None` if another owner held the lock all that time.
    ///
    /// # Errors
    ///
    /// As [`lock`](QuorumLock::lock), but the call gives up when the limit ends.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](QuorumLock::lock).
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<QuorumGuard>> {
        self.acquire(WaitLimit::of(limit)).await
    }

    /// As [`try_lock_for`](QuorumLock::try_lock_for), with a deadline: an `Instant` of tokio or of the standard library.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](QuorumLock::try_lock_for).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](QuorumLock::lock).
    pub async fn try_lock_until(&self, deadline: impl Into<Instant>) -> Result<Option<QuorumGuard>> {
        self.acquire(WaitLimit::Until(deadline.into())).await
    }

    /// Acquires the lock, runs `work` under its [protection](QuorumGuard::protect), and releases the lock.
    ///
    /// # Errors
    ///
    /// As [`lock`](QuorumLock::lock), and as [`QuorumGuard::protect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the lock.
    pub async fn with<T, W: Future<Output = T>>(&self, work: impl FnOnce() -> W) -> Result<T> {
        self.lock().await?.protect(work()).await
    }

    /// Releases the lock on every server on behalf of its holder, and wakes the waiters; true if this call released it on one of them, see
    /// [`Lock::force_unlock`]. It does not wait for a server that replies much later than a majority. That server may keep the lock until
    /// the holder notices that it has lost the majority, and releases the rest.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or the error of a server if no majority answered.
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, the lock may or may not be forced open.
    pub async fn force_unlock(&self) -> Result<bool> {
        TaskRuntime::around("force_unlock")?;
        let (mut held, mut answers, mut failed) = (false, 0, Vec::new());
        let mut asked: FuturesUnordered<_> = self.locks.iter().map(Lock::force_unlock).collect();
        let (began, mut last) = (Instant::now(), None);
        while let Some(answer) = before(last, asked.next()).await {
            match answer {
                Ok(was_held) => (held, answers) = (held | was_held, answers + 1),
                Err(error) => failed.push(error),
            }
            last = last.or_else(|| (answers > self.minority()).then(|| after_a_majority(began)));
        }
        match failed.into_iter().nth(self.minority()) {
            Some(error) => Err(error),
            None => Ok(held),
        }
    }

    /// The most servers that can be without it.
    fn minority(&self) -> usize {
        self.locks.len() / 2
    }

    async fn acquire(&self, limit: WaitLimit) -> Result<Option<QuorumGuard>> {
        TaskRuntime::around(ASKING)?;
        let owner = self.acts_for.owner();
        let locks: Vec<_> = self.locks.iter().map(|lock| lock.clone().owner(&owner)).collect();
        self.check_lost(&locks, &owner)?;
        let _turn = self.turn(&locks, &owner, limit).await;
        let outage_ends = || Instant::now() + self.quorum.clients[0].outage_timeout();
        let mut gives_up = outage_ends();
        let (mut releases, mut pause) = (None, FIRST_PAUSE);
        loop {
            let ends = self.max_hold.map(|d| Moment::now() + d);
            releases.iter().for_each(Releases::forget);
            match self.vote(&locks, limit).await? {
                Vote::Won(guards, late) => return Ok(Some(QuorumGuard::new(locks, guards, late, self.seeding(ends)))),
                Vote::Taken if limit.is_over() => return Ok(None),
                Vote::Unavailable(error) if limit.is_over() || Instant::now() >= gives_up => return Err(error),
                Vote::Taken => gives_up = outage_ends(),
                Vote::Unavailable(_) => {}
            }
            // The next vote comes right after the subscriptions, for a release may have been announced before them.
            let Some(releases) = &releases else {
                releases = Some(Releases::of(&locks)?);
                continue;
            };
            tokio::select! {
                () = releases.heard() => sleep(spread(SETTLE)).await,
                () = tokio::time::sleep_until(limit.before(Instant::now() + spread(pause))) => pause = (pause * 2).min(LAST_PAUSE),
            }
        }
    }

    fn seeding(&self, ends: Option<Moment>) -> Seeding {
        if self.renewed { Seeding::Until(ends.unwrap_or(Moment::FAR)) } else { Seeding::Never }
    }

    /// An owner that has lost the lock does not acquire it afresh while it has a guard of it: a majority of the servers may grant it.
    fn check_lost(&self, locks: &[Lock], owner: &Owner) -> Result<()> {
        let lost = locks.iter().filter_map(|lock| lock.lost_by(owner)).next();
        let certain = || locks.iter().filter(|lock| lock.is_held_by(owner) && lock.lost_by(owner).is_none()).count();
        match lost {
            Some(reason) if certain() <= self.minority() => Err(Error::lost(&self.name, reason)),
            _ => Ok(()),
        }
    }

    /// The right of this process to vote for this name. An owner that holds the lock votes without it, and so do a single attempt and the
    /// last attempt of a call whose time is over.
    async fn turn(&self, locks: &[Lock], owner: &Owner, limit: WaitLimit) -> Option<LocalTurn> {
        if matches!(limit, WaitLimit::Once) || locks.iter().any(|lock| lock.is_held_by(owner)) {
            return None;
        }
        // Made first: whenever this future is dropped, the queue of the name is forgotten with its last caller.
        let mut turn = LocalTurn { quorum: self.quorum.clone(), name: Arc::clone(&self.name), held: None };
        let line = self.quorum.line(&self.name).lock_owned();
        turn.held = match limit {
            WaitLimit::Until(end) => timeout_at(end, line).await.ok(),
            WaitLimit::Once | WaitLimit::Forever => Some(line.await),
        };
        turn.held.is_some().then_some(turn)
    }

    /// Asks all servers at once. Ends as soon as a majority granted it, or cannot any more; votes without a majority are dropped, and so
    /// taken back on every server, also those that are still to come.
    async fn vote(&self, locks: &[Lock], limit: WaitLimit) -> Result<Vote> {
        let mut asked: Votes = locks.iter().cloned().enumerate().map(vote_of).collect();
        let mut guards: Vec<Option<Guard>> = locks.iter().map(|_| None).collect();
        let (mut refused, mut failed) = (0, 0);
        let began = Instant::now();
        let mut last = limit.end().map(|end| end.max(began + LAST_VOTE));
        let answers = |guards: &[Option<Guard>], refused| guards.iter().flatten().count() + refused;
        while let Some((server, answer)) = before(last, asked.next()).await {
            let failure = match answer {
                Ok(Some(guard)) => {
                    guards[server] = Some(guard);
                    None
                }
                Ok(None) => {
                    refused += 1;
                    None
                }
                Err(error) if !is_of_one_server(&error) => return Err(error),
                Err(error) => {
                    failed += 1;
                    Some(error)
                }
            };
            if answers(&guards, refused) == self.minority() + 1 {
                last = last.into_iter().chain([after_a_majority(began)]).min();
            }
            let granted = guards.iter().flatten().filter(|guard| !guard.is_lost()).count();
            if granted > self.minority() {
                return Ok(Vote::Won(guards, asked));
            }
            if refused > 0 && granted + refused > self.minority() && granted + asked.len() <= self.minority() {
                return Ok(Vote::Taken);
            }
            match failure.filter(|_| failed > self.minority()) {
                Some(error) if error.is_unavailable() => return Ok(Vote::Unavailable(error)),
                Some(error) => return Err(error),
                None => {}
            }
        }
        if answers(&guards, refused) > self.minority() {
            return Ok(Vote::Taken); // not all of them granted the lock
        }
        Ok(Vote::Unavailable(Error::silent(ASKING, &self.name, began.elapsed(), None)))
    }
}

/// The next answer, if one comes before that.
async fn before<T>(last: Option<Instant>, next: impl Future<Output = Option<T>>) -> Option<T> {
    match last {
        Some(last) => timeout_at(last, next).await.unwrap_or_default(),
        None => next.await,
    }
}

/// Once a majority has answered, the others have as long again, and a little: a frozen server delays nobody for long.
fn after_a_majority(began: Instant) -> Instant {
    Instant::now() + began.elapsed() + STRAGGLERS
}

/// Whether the other servers may still make a majority without the one that says so.
fn is_of_one_server(error: &Error) -> bool {
    !matches!(error, Error::InvalidName { .. } | Error::InvalidConfig { .. } | Error::Closed)
}

/// Leaves the queue of its name when dropped.
struct LocalTurn {
    quorum: Quorum,
    name: Arc<str>,
    held: Option<OwnedMutexGuard<()>>,
}

impl Drop for LocalTurn {
    fn drop(&mut self) {
        drop(self.held.take());
        self.quorum.forget_line(&self.name);
    }
}
