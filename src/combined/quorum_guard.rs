//! What a holder of a quorum lock has: the guards of its servers, and a task that looks after them.

use std::{mem, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::interval;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    any_lost::AnyLost,
    holders::Listed,
    protect::{Holding, protecting},
    server_guards::{ONE_VOTE, Released, ServerGuard, Servers, Term, Votes, vote_of},
    tally::is_unbroken,
};
use crate::{
    clock::Moment,
    error::{About, Error, Lost, Result},
    guard::Guard,
    primitives::Lock,
    sync::tokio,
    task_runtime::TaskRuntime,
};

/// Whether servers that do not have the lock are asked for it again.
#[derive(Debug, Clone, Copy)]
pub(super) enum Seeding {
    /// The lock has a fixed lease, and they would have it for longer.
    Never,
    /// Until its `max_hold` ends.
    Until(Moment),
}

/// The guard of a [`QuorumLock`](crate::QuorumLock). Released by [`unlock`](QuorumGuard::unlock), or in the background when dropped.
///
/// On each server, the client renews the hold in the same way as that of a [`Lock`](crate::Lock). If a server lost the lock, or did not
/// reply at first, the client requests the lock there again every third of a lease, and that server counts from then on. With a fixed
/// [`lease`](crate::QuorumLock::lease) the client neither renews nor requests again. Before a
/// [`max_hold`](crate::QuorumLock::max_hold) is over, the client releases the rest once the lock is lost on a majority, within two thirds of
/// a watchdog lease. The task that does this runs on the runtime on which the lock was acquired.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// # let (two, three) = (server::Server::start(), server::Server::start());
/// # let (b, c) = (leasehold::Client::connect(&two.url()).await?, leasehold::Client::connect(&three.url()).await?);
/// # let a = client;
///
/// let quorum = leasehold::Quorum::new([a, b, c])?; // a client of each server
/// let guard = quorum.lock("invoice:42").non_reentrant().lock().await?;
/// println!("certain on {} of 3 servers, for {:?}", guard.nodes(), guard.remaining());
/// guard.unlock().await?; // an error if the majority was lost before
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct QuorumGuard {
    servers: Arc<Servers>,
    token: AnyLost,
    /// Ends the task that looks after the servers.
    _keeper: DropGuard,
    listed: Option<Listed>,
}

impl QuorumGuard {
    /// Of a majority; `late` are the votes that are still to come.
    pub(super) fn new(locks: Vec<Lock>, guards: Vec<Option<Guard>>, late: Votes, seeding: Seeding) -> QuorumGuard {
        let name = locks.first().map(|lock| lock.name().to_owned()).unwrap_or_default();
        let one_vote = ONE_VOTE.min(renewal(&locks) / 2); // a server that is asked again is later
        let servers = Arc::new(Servers::new(name, guards, late, one_vote));
        let ended = CancellationToken::new();
        let keeping = keep(Arc::clone(&servers), locks, seeding);
        tokio::spawn(ended.clone().run_until_cancelled_owned(keeping));
        QuorumGuard { servers, token: AnyLost::default(), _keeper: ended.drop_guard(), listed: None }
    }

    /// With a place in a list, for as long as it lives.
    pub(super) fn listed(mut self, list: impl FnOnce(&Arc<Servers>) -> Listed) -> QuorumGuard {
        self.listed = Some(list(&self.servers));
        self
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn name(&self) -> &str {
        &self.servers.name
    }

    /// As [`lost`](QuorumGuard::lost), also if the guard is gone by then. Call it inside a runtime.
    #[cfg(feature = "blocking")]
    pub(crate) fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
        let (servers, token) = (Arc::clone(&self.servers), self.lost_token());
        async move {
            token.cancelled().await;
            servers.loss().unwrap_or(Lost::Removed) // a release that fails cancels it, too
        }
    }

    /// The longest of the clients.
    #[cfg(feature = "blocking")]
    pub(crate) fn command_timeout(&self) -> Duration {
        self.servers.state().all().map(|guard| guard.command_timeout()).max().unwrap_or_default()
    }

    /// On how many servers this owner [certainly](crate::Guard::remaining) holds the lock now.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.servers.nodes()
    }

    /// How long a majority certainly has the lock if no server replies any more; zero once the lock is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.servers.remaining()
    }

    /// True if [`lost`](QuorumGuard::lost) would resolve now. Sends no request.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.servers.loss().is_some()
    }

    /// Resolves when this owner no longer [certainly](crate::Guard::remaining) holds the lock on a majority of the servers. A majority that
    /// was lost once does not come back. Use it in `select!`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; you can call it again.
    pub async fn lost(&self) -> Lost {
        self.servers.lost().await
    }

    /// A token that is cancelled when [`lost`](QuorumGuard::lost) would resolve, for other tasks. Call it inside a tokio runtime: a task
    /// there watches the servers while this guard lives.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        let servers = Arc::clone(&self.servers);
        let token = self.token.when(|| async move { _ = servers.lost().await });
        if self.is_lost() {
            self.token.cancel(); // now, and not when that task runs
        }
        token
    }

    /// Asks the servers now whether a majority has the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if a majority no longer has it; [`Error::Unavailable`] if no majority replies.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn check(&self) -> Result<()> {
        if let Some(reason) = self.servers.loss() {
            return Err(Error::lost(&self.servers.name, reason));
        }
        let guards = self.servers.state().guards.clone();
        let check = async |server: usize, of: &ServerGuard| (server, of.guard.check().await);
        let asked = guards.iter().enumerate().filter_map(|(server, of)| Some(check(server, of.as_ref()?)));
        let (mut checks, mut count) = (asked.collect::<FuturesUnordered<_>>(), Answers::of(&guards));
        while let Some((server, answer)) = checks.next().await {
            count.add(server, answer);
            if count.is_there() || !count.can_be_held() {
                break;
            }
        }
        if count.is_there() { Ok(()) } else { Err(count.error(&self.servers.name)) }
    }

    /// Releases the lock on all servers. The answer comes as soon as a majority has confirmed it. If the client got the lock on one of
    /// these servers again meanwhile, `unlock` also waits for the replies of the other servers if only these can show that a majority had
    /// the lock before that.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if fewer than a majority had the lock to the end; [`Error::Unavailable`] if the servers that answered cannot tell, for
    /// example because the lease has expired on the one that could.
    /// The release goes on in the background where it was not answered.
    ///
    /// # Cancel safety
    ///
    /// Once polled it cannot be undone: dropping the future leaves the rest to the background. Await the future or drop it. If you keep it
    /// without polling it, the lock may stay held for as long as you keep it.
    pub async fn unlock(self) -> Result<()> {
        TaskRuntime::around(About::Lock.releasing())?; // it goes on in the background
        let released = match self.servers.release() {
            // Dropped guards are released in the background.
            Released { lost: Some(reason), .. } => Err(Error::lost(&self.servers.name, reason)),
            held => self.give_back(held).await,
        };
        released.inspect_err(|_| self.token.cancel())
    }

    async fn give_back(&self, Released { guards, doubts, mut late, .. }: Released) -> Result<()> {
        let mut count = Answers { expired: doubts, ..Answers::of(&guards) };
        let held = guards.into_iter().enumerate().filter_map(|(server, of)| Some((server, of?)));
        // Nobody else has a guard for longer than a call of this value's methods, and these are over.
        let held = held.filter_map(|(server, of)| Some((server, Arc::into_inner(of.guard)?)));
        let mut releases: FuturesUnordered<_> = held.map(released).collect();
        // A server that granted the lock may not reply any more: then one whose vote is still to come completes the majority.
        while !count.was_held() && (count.can_be_held() || !late.is_empty()) {
            tokio::select! {
                Some((server, answer)) = releases.next() => count.add(server, answer),
                Some((server, vote)) = late.next() => {
                    if let Ok(Some(guard)) = vote {
                        count.pending[server] = Some(Term { since: self.servers.since(), last_confirmed: guard.last_confirmed() });
                        releases.push(released((server, guard)));
                    }
                }
                else => break,
            }
        }
        if !releases.is_empty() && TaskRuntime::runs_on() {
            tokio::spawn(releases.for_each(async |_| {})); // else the clients' own tasks send them once more
        }
        if count.was_held() { Ok(()) } else { Err(count.error(&self.servers.name)) }
    }
}

impl Drop for QuorumGuard {
    fn drop(&mut self) {
        // Here and not with the keeper, which ends only if its runtime runs.
        if self.servers.release().lost.is_some() {
            self.token.cancel(); // the task that watches ends with it, perhaps before it has seen this loss
        }
    }
}

async fn released((server, guard): (usize, Guard)) -> (usize, Result<()>) {
    (server, guard.unlock().await)
}

/// The answers of the servers.
struct Answers {
    servers: usize,
    /// By server; `None` if there is no guard, or if it has answered.
    pending: Vec<Option<Term>>,
    /// Since when each server that confirmed it has had it.
    confirmed: Vec<Option<Moment>>,
    /// Servers that no longer have the lock: when they had it last. Another owner may have acquired it there since.
    gone: Vec<Moment>,
    /// Servers on which the lease has expired: when they had the lock last. They may have lost it before.
    expired: Vec<Moment>,
    /// Servers that returned an error, or did not reply in their time. They may have had the lock, or lost it.
    silent: Vec<Term>,
    /// The last error of these.
    error: Option<Error>,
}

impl Answers {
    fn of(guards: &[Option<ServerGuard>]) -> Answers {
        let pending = guards.iter().map(|of| of.as_ref().map(ServerGuard::term)).collect();
        let (confirmed, gone, expired, silent) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Answers { servers: guards.len(), pending, confirmed, gone, expired, silent, error: None }
    }

    fn add(&mut self, server: usize, answer: Result<()>) {
        let Some(term) = self.pending[server].take() else { return };
        match answer {
            Ok(()) => self.confirmed.push(term.since),
            Err(Error::Lost { reason: Lost::Removed, .. }) => self.gone.push(term.last_confirmed),
            Err(Error::Lost { .. }) => self.expired.push(term.last_confirmed),
            Err(error) => {
                self.silent.push(term);
                self.error = Some(error);
            }
        }
    }

    fn open(&self) -> impl Iterator<Item = &Term> {
        self.pending.iter().flatten().chain(&self.silent)
    }

    /// Whether a majority has it, and no answer shows a break.
    fn is_there(&self) -> bool {
        is_unbroken(&self.confirmed, &self.gone, self.servers)
    }

    /// The same, even if all servers that have not told have lost it.
    fn was_held(&self) -> bool {
        let gone = self.gone.iter().chain(&self.expired).copied().chain(self.open().map(|term| term.last_confirmed));
        is_unbroken(&self.confirmed, &gone.collect::<Vec<_>>(), self.servers)
    }

    /// The same, if all servers that have not told have it.
    fn can_be_held(&self) -> bool {
        let confirmed: Vec<_> = self.confirmed.iter().copied().chain(self.open().map(|term| term.since)).collect();
        is_unbroken(&confirmed, &self.gone, self.servers)
    }

    /// The error of a server that did not tell may hide that a majority had the lock, and so may a lease that has expired.
    fn error(self, name: &str) -> Error {
        if !self.can_be_held() || (self.error.is_none() && self.expired.is_empty()) {
            return Error::lost(name, Lost::Removed);
        }
        self.error.unwrap_or_else(|| Error::unconfirmed(name, None))
    }
}

/// Takes late votes in, and asks the servers that do not have it again, every third of a lease.
async fn keep(servers: Arc<Servers>, locks: Vec<Lock>, seeding: Seeding) {
    let mut tick = interval(renewal(&locks));
    tick.tick().await; // the first is at once
    loop {
        tokio::select! {
            Some(vote) = servers.next_vote() => {
                if let (server, Ok(Some(guard))) = vote {
                    servers.add(server, ServerGuard { since: servers.since(), ..ServerGuard::first(guard) });
                }
            }
            _ = tick.tick(), if seeding.goes_on() => {
                ask_again(&servers, &locks, seeding);
            }
            else => return,
        }
    }
}

fn renewal(locks: &[Lock]) -> Duration {
    locks.iter().map(Lock::renewal).min().unwrap_or(Duration::from_secs(10))
}

/// A vote that is still under way is asked for anew: the earlier one is dropped, and so taken back. Without seeding, this only drops the lost
/// guards: this owner may have other guards, and the tasks that look after them request the lock again.
fn ask_again(servers: &Servers, locks: &[Lock], seeding: Seeding) {
    let missing = servers.missing();
    if matches!(seeding, Seeding::Never) {
        return;
    }
    drop(mem::take(&mut *servers.late()));
    for server in missing {
        let Some(lock) = seeding.limit(locks[server].clone()) else { return };
        servers.late().push(vote_of((server, lock)));
    }
}

impl Seeding {
    fn goes_on(self) -> bool {
        !matches!(self, Seeding::Until(end) if end.left().is_zero())
    }

    /// That lock for no longer than the others; `None` if their time is over.
    fn limit(self, lock: Lock) -> Option<Lock> {
        match self {
            Seeding::Until(Moment::FAR) => Some(lock),
            Seeding::Until(end) if !end.left().is_zero() => Some(lock.max_hold(end.left())),
            Seeding::Until(_) | Seeding::Never => None,
        }
    }
}

impl Holding for QuorumGuard {
    fn name(&self) -> String {
        self.servers.name.clone()
    }

    async fn lost(&self) -> Lost {
        QuorumGuard::lost(self).await
    }

    async fn unlock(self) -> Result<()> {
        QuorumGuard::unlock(self).await
    }
}

protecting!(QuorumGuard, "the lock", "the lock is lost on a majority of the servers");
