//! One lock over several servers that do not know of each other: held while a majority of them has it.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, timeout_at};

use super::{
    holders::Holders,
    quorum_guard::{QuorumGuard, Seeding},
    server_guards::{ONE_VOTE, Votes, vote_of},
    signal::Releases,
    tally::{Tally, Verdict, can_vote, is_majority},
    turns::Turns,
};
use crate::{
    client::Client,
    clock::Moment,
    error::{Error, Result},
    failed::ASKING,
    guard::Guard,
    owner::Owner,
    primitives::{ActsFor, Lock},
    redis::source,
    request::WaitLimit,
    sync::tokio,
    task_runtime::TaskRuntime,
};

/// The first pause after a vote without a majority; the next ones are longer. A release message ends a pause early.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// How much longer than a majority the others may take to reply, beside as long again.
const STRAGGLERS: Duration = Duration::from_millis(20);
/// What a vote gets at least that begins when the time of its call is over.
const LAST_VOTE: Duration = Duration::from_millis(200);

/// Several independent servers that grant locks by majority (Redlock). Cheap to clone.
///
/// A quorum is for locks that must survive the loss of a server without waiting for a failover. Where a [`Lock`] sends one request, a
/// quorum sends one to each server. It needs an odd number of servers, at least three, that share nothing: no replication, no machine.
///
/// [`connect_lazy`](crate::Builder::connect_lazy) lets a program start while a server is down. Make only one `Quorum` of these clients, and
/// clone it. If you make two of the same clients, and an owner loses a lock in one of them, the other does not know that, and can let this
/// owner acquire the lock again.
///
/// All programs must name the same servers: else the majorities of two programs need not have a server in common, and both can hold the lock.
/// docs/quorum.md shows how to change the list.
///
/// # What it does not give
///
/// * A server that restarts without its data can grant a lock that it had granted before. Then the holds of two owners can be certain at
///   once, until the first owner's next renewal (with a fixed [`lease`](QuorumLock::lease): its next check), at most a third of its lease
///   later. Run the servers with `appendfsync always`, or, if a server has lost its data, wait for the longest lease before you start it
///   again. If the wall clocks of a majority step ahead, the same can happen, because Redis ends leases by its wall clock.
/// * It does not protect a resource from a holder that was paused: use a [`FencedLock`](crate::FencedLock) on one server for that.
/// * If one server with a replica is enough, [`Builder::replicas`](crate::Builder::replicas) is simpler and costs less.
///
/// The algorithm is Salvatore Sanfilippo's (*Distributed Locks with Redis*, redis.io); Martin Kleppmann's *How to do distributed locking*
/// (2016) says what it cannot promise. More: [`guide::quorum`](crate::guide::quorum).
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
    turns: Turns,
    holders: Holders,
}

impl Quorum {
    /// The servers of these clients. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the number of clients is even or less than three, or if two of them lead to the same address.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Result<Quorum> {
        let clients: Arc<[Client]> = clients.into_iter().collect();
        if !can_vote(clients.len()) {
            let reason =
                format!("a quorum needs an odd number of servers, at least 3, and these are {}", clients.len());
            return Err(Error::config("clients", reason));
        }
        let mut places: Vec<_> = clients.iter().map(Client::place).collect();
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::config("clients", "two of them lead to the same server, which would vote twice"));
        }
        Ok(Quorum { clients, turns: Turns::default(), holders: Holders::default() })
    }

    /// Resolves when so many clients are closed, or about to be, that the others are no majority.
    async fn stops(&self) {
        let mut stopping: FuturesUnordered<_> = self.clients.iter().map(|client| client.engine().stops()).collect();
        while is_majority(stopping.len(), self.clients.len()) {
            stopping.next().await;
        }
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
}

/// A lock over the servers of a [`Quorum`], with settings. Cheap to clone. It holds nothing itself.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// # let (two, three) = (server::Server::start(), server::Server::start());
/// # let (b, c) = (leasehold::Client::connect(&two.url()).await?, leasehold::Client::connect(&three.url()).await?);
/// # let a = client;
///
/// use std::time::Duration;
///
/// let quorum = leasehold::Quorum::new([a, b, c])?; // a client of each server
/// let invoice = quorum.lock("invoice:42").non_reentrant();
/// match invoice.try_lock_for(Duration::from_secs(1)).await? {
///     Some(guard) => guard.unlock().await?,
///     None => println!("another owner holds it"),
/// }
/// # Ok(()) }) }
/// ```
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
    /// Sets a fixed lease, as [`Lock::lease`]. It cannot be extended. If a server comes back without its data, the client does not request
    /// the lock there again.
    pub fn lease(self, d: Duration) -> QuorumLock {
        QuorumLock { renewed: false, ..self.each(|lock| lock.lease(d)) }
    }

    /// Limits how long the lock is held, as [`Lock::max_hold`].
    pub fn max_hold(self, d: Duration) -> QuorumLock {
        QuorumLock { max_hold: Some(d), ..self.each(|lock| lock.max_hold(d)) }
    }

    /// Sets the owner for which calls acquire the lock, as [`Lock::owner`].
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
    /// * [`Error::Unavailable`]: no majority answered for [`outage_timeout`](crate::Builder::outage_timeout) of the first client, and to the last
    ///   vote, which takes [`command_timeout`](crate::Builder::command_timeout).
    /// * [`Error::Lost`]: this owner held the lock and lost it.
    /// * Others as [`Error`] says. In each case this call acquired nothing. If a server that does not reply has granted the lock to it, the
    ///   client releases it there in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind. Await the future or drop it: while you keep it unpolled, other callers of this process
    /// wait for it. If no majority has replied to any vote about this lock for
    /// [`outage_timeout`](crate::Builder::outage_timeout), they vote without waiting any longer. The reply of a majority to any caller, also to
    /// a call of `try_lock`, restarts that time.
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

    /// Waits for at most `limit`; `None` if another owner held the lock, or if callers kept splitting the servers among them.
    ///
    /// # Errors
    ///
    /// As [`lock`](QuorumLock::lock). If no majority replies, the call gives up as `lock` does, or when the limit ends if that is sooner.
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
            last = last.or_else(|| is_majority(answers, self.locks.len()).then(|| after_a_majority(began)));
        }
        match failed.pop().filter(|_| is_majority(failed.len() + 1, self.locks.len())) {
            Some(error) => Err(error),
            None => Ok(held),
        }
    }

    async fn acquire(&self, limit: WaitLimit) -> Result<Option<QuorumGuard>> {
        TaskRuntime::around(ASKING)?;
        let owner = self.acts_for.owner();
        let locks: Vec<_> = self.locks.iter().map(|lock| lock.clone().owner(&owner)).collect();
        self.check_lost(&owner)?;
        let mut place = self.quorum.turns.join(&self.name, self.quorum.clients[0].outage_timeout());
        let queues = self.queues(&locks, &owner, limit);
        let (mut releases, mut pause) = (None, FIRST_PAUSE);
        loop {
            if queues {
                place.turn(limit).await; // also after a vote out of turn
            }
            let ends = self.max_hold.map(|d| Moment::now() + d);
            releases.iter().for_each(Releases::forget);
            place.asks();
            let vote = self.vote(&locks, limit).await?;
            self.check_lost(&owner)?; // it may have lost it meanwhile
            if !matches!(vote, Vote::Unavailable(_)) {
                place.replied();
            }
            match vote {
                Vote::Won(guards, late) => {
                    return Ok(Some(self.guard(&owner, locks, guards, late, self.seeding(ends))));
                }
                Vote::Taken if limit.is_over() => return Ok(None),
                Vote::Unavailable(error) if limit.is_over() || place.is_hopeless() => return Err(error),
                Vote::Taken | Vote::Unavailable(_) => {}
            }
            // The next vote comes right after the subscriptions, for a release may have been announced before them.
            let Some(releases) = &releases else {
                releases = Some(Releases::of(&locks)?);
                continue;
            };
            tokio::select! {
                longer = releases.wait(limit, place.last_vote(), pause) => pause = longer,
                () = self.quorum.stops() => {} // the next vote says so
            }
        }
    }

    fn seeding(&self, ends: Option<Moment>) -> Seeding {
        if self.renewed { Seeding::Until(ends.unwrap_or(Moment::FAR)) } else { Seeding::Never }
    }

    fn guard(
        &self,
        owner: &Owner,
        locks: Vec<Lock>,
        votes: Vec<Option<Guard>>,
        late: Votes,
        seeding: Seeding,
    ) -> QuorumGuard {
        let guard = QuorumGuard::new(locks, votes, late, seeding);
        guard.listed(|servers| self.quorum.holders.list(&self.name, owner, servers))
    }

    /// An owner that has lost the lock does not acquire it afresh while it has a guard of it: a majority of the servers may grant it.
    fn check_lost(&self, owner: &Owner) -> Result<()> {
        let lost = self.quorum.holders.loss(&self.name, owner);
        lost.map_or(Ok(()), |reason| Err(Error::lost(&self.name, reason)))
    }

    /// Whether it waits for other callers of this process. An owner that holds the lock does not, and neither does a single attempt.
    fn queues(&self, locks: &[Lock], owner: &Owner, limit: WaitLimit) -> bool {
        !matches!(limit, WaitLimit::Once) && !locks.iter().any(|lock| lock.is_held_by(owner))
    }

    /// Asks all servers at once. Ends as soon as a majority granted it, or cannot any more; votes without a majority are dropped, and so
    /// taken back on every server, also those that are still to come.
    async fn vote(&self, locks: &[Lock], limit: WaitLimit) -> Result<Vote> {
        let mut asked: Votes = locks.iter().cloned().enumerate().map(vote_of).collect();
        let mut ballot = Ballot::of(locks.len());
        let mut last = limit.end().map(|end| end.max(ballot.began + LAST_VOTE));
        while let Some((server, answer)) = before(last, asked.next()).await {
            ballot.count(server, answer)?;
            match ballot.tally().verdict() {
                Verdict::Won => return Ok(Vote::Won(ballot.guards, asked)),
                Verdict::Open => {}
                verdict => return ballot.without_majority(verdict, &self.name),
            }
            if ballot.tally().has_replies() {
                last = last.into_iter().chain([last_reply(&ballot, locks)]).min();
            }
        }
        ballot.failed = None; // its time is over, whatever the others said
        let verdict = ballot.tally().verdict_at_the_end();
        ballot.without_majority(verdict, &self.name)
    }
}

/// The replies of the servers to one vote.
struct Ballot {
    began: Instant,
    /// The servers whose reply is still to come.
    pending: Vec<usize>,
    guards: Vec<Option<Guard>>,
    refused: usize,
    failures: usize,
    /// One that a later vote does not mend, or else the last one.
    failed: Option<Error>,
}

impl Ballot {
    fn of(servers: usize) -> Ballot {
        let guards = (0..servers).map(|_| None).collect();
        Ballot { began: Instant::now(), pending: (0..servers).collect(), guards, refused: 0, failures: 0, failed: None }
    }

    /// An error that every server would return ends the vote.
    fn count(&mut self, server: usize, answer: Result<Option<Guard>>) -> Result<()> {
        self.pending.retain(|one| *one != server);
        match answer {
            Ok(Some(guard)) => self.guards[server] = Some(guard),
            Ok(None) => self.refused += 1,
            Err(error) if !is_of_one_server(&error) => return Err(error),
            Err(error) => {
                self.failures += 1;
                if self.failed.as_ref().is_none_or(Error::is_unavailable) {
                    self.failed = Some(error);
                }
            }
        }
        Ok(())
    }

    fn tally(&self) -> Tally {
        let granted = || self.guards.iter().flatten();
        let certain = granted().filter(|guard| !guard.is_lost()).count();
        Tally {
            granted: granted().count(),
            certain,
            refused: self.refused,
            failed: self.failures,
            pending: self.pending.len(),
        }
    }

    fn without_majority(self, verdict: Verdict, name: &str) -> Result<Vote> {
        match self.failed {
            _ if verdict == Verdict::Taken => Ok(Vote::Taken),
            Some(error) if !error.is_unavailable() => Err(error),
            Some(error) => Ok(Vote::Unavailable(error)),
            None => {
                let cause = source("no majority of the servers replied in time");
                Ok(Vote::Unavailable(Error::silent(ASKING, name, self.began.elapsed(), Some(cause))))
            }
        }
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

/// For a vote, the others have the time of one vote at least: one of them can decide, and may be farther away. But a server that was silent
/// before the vote gets no time at all. A vote holds the servers that granted it while it waits for others. So if two voters wait for the
/// same silent server, each refuses the other, again and again.
fn last_reply(ballot: &Ballot, locks: &[Lock]) -> Instant {
    let late = ballot.began.elapsed() + ONE_VOTE;
    let are_silent = ballot.pending.iter().all(|server| locks[*server].has_unwell_server(late));
    if are_silent { Instant::now() } else { after_a_majority(ballot.began).max(ballot.began + ONE_VOTE) }
}

/// Whether the other servers may still make a majority without the one that says so. During a shutdown, a client in which this owner has no
/// hold is closed, and the others let it re-enter.
fn is_of_one_server(error: &Error) -> bool {
    !matches!(error, Error::InvalidName { .. } | Error::InvalidConfig { .. })
}
