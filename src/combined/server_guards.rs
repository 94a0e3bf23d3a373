//! The guards of a quorum lock, one for each server, and the time for which a majority of them is certain.

use std::{
    future::{pending, poll_fn},
    mem,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{sync::Notify, time::Instant};

use super::tally::{is_unbroken, time_of_majority};
use crate::{
    clock::Moment,
    error::{Lost, Result},
    guard::Guard,
    primitives::Lock,
    sync::tokio,
    task_runtime::pass_until,
};

/// How long the requests of one vote may be under way: round trips are shorter, also between distant places.
///
/// A server that gives no reply for longer is silent. A vote that is granted later than this after a majority counts from then on: meanwhile,
/// another owner may have acquired the lock with that server and one that lost it, and may have released it again. A server that loses its
/// data within this time goes unnoticed.
pub(super) const ONE_VOTE: Duration = Duration::from_millis(300);

/// Requests for the lock, each with its server. A request that is dropped is taken back.
pub(super) type Votes = FuturesUnordered<BoxFuture<'static, (usize, Result<Option<Guard>>)>>;

pub(super) fn vote_of((server, lock): (usize, Lock)) -> BoxFuture<'static, (usize, Result<Option<Guard>>)> {
    Box::pin(async move { (server, lock.try_lock().await) })
}

/// The guards by server. The caller's guard and the task that looks after them share these.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) name: String,
    state: Mutex<ServerGuards>,
    /// The votes that are still to come. Only the keeper polls them. Here, so that they end with the guard although its task does not run.
    late: Mutex<Votes>,
    /// Until then, late votes count from the start.
    one_vote: Instant,
    /// Notified when a guard was added.
    changed: Notify,
}

/// Invariant: while it is not lost, a majority of the guards has been certain without a break. A guard that is not certain stays so, and
/// one is added only while the others are a majority, under the same mutex.
///
/// A guard that was found removed may have been gone since its last confirmation. So it counts as a loss unless a majority of others has
/// been held since then: a server that was asked again after that does not stand for both.
#[derive(Debug)]
pub(super) struct ServerGuards {
    pub(super) guards: Vec<Option<ServerGuard>>,
    lost: Option<Lost>,
    /// The task that looks after the guards has seen that it is lost.
    is_loss_seen: bool,
    /// The guards have been taken out: none is added any more, and what is lost stays as it is.
    released: bool,
    /// Servers on which the lease expired, and which may have lost the lock before another got it again: when they had it last.
    doubts: Vec<Moment>,
}

/// What is taken out when the lock is released.
pub(super) struct Released {
    pub(super) guards: Vec<Option<ServerGuard>>,
    pub(super) doubts: Vec<Moment>,
    pub(super) late: Votes,
    /// Why it was lost before.
    pub(super) lost: Option<Lost>,
}

/// The guard of one server.
#[derive(Debug, Clone)]
pub(super) struct ServerGuard {
    pub(super) guard: Arc<Guard>,
    /// When it was granted, if the server was asked again or was late; else it has been there from the start.
    pub(super) since: Option<Moment>,
}

/// The time for which a hold on a server is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    pub(super) since: Option<Moment>,
    pub(super) last_confirmed: Moment,
}

impl ServerGuard {
    /// Of the vote that won.
    pub(super) fn first(guard: Guard) -> ServerGuard {
        ServerGuard { guard: Arc::new(guard), since: None }
    }

    pub(super) fn term(&self) -> Term {
        Term { since: self.since, last_confirmed: self.guard.last_confirmed() }
    }

    fn look(&self) -> Look {
        self.guard.loss().map_or(Look::Certain(self.since), |why| Look::Lost(why, self.guard.last_confirmed()))
    }
}

impl ServerGuards {
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Guard>> {
        self.guards.iter().flatten().map(|of| &of.guard)
    }

    fn certain(&self) -> impl Iterator<Item = &Arc<Guard>> {
        self.all().filter(|guard| !guard.is_lost())
    }

    /// Why it is lost; decided here, for good.
    fn settle(&mut self) -> Option<Lost> {
        self.look();
        self.lost
    }

    /// One look at each guard, so that what is decided and what is done about it agree.
    fn look(&mut self) -> Looks {
        let looks = Looks(self.guards.iter().map(|of| of.as_ref().map(ServerGuard::look)).collect());
        if self.lost.is_none() && !self.released && !looks.is_whole() {
            self.lost = Some(looks.reason());
        }
        looks
    }

    /// Takes out the guards of which that look found this.
    fn take(&mut self, looks: &Looks, is_it: impl Fn(Look) -> bool) -> Vec<Option<ServerGuard>> {
        let is_it = |look: &Option<Look>| look.is_some_and(&is_it);
        self.guards.iter_mut().zip(&looks.0).map(|(guard, look)| guard.take_if(|_| is_it(look))).collect()
    }
}

/// What one look found of a guard.
#[derive(Debug, Clone, Copy)]
enum Look {
    /// Since then, or from the start.
    Certain(Option<Moment>),
    /// For that reason; when the server had it last.
    Lost(Lost, Moment),
}

impl Look {
    fn is_certain(self) -> bool {
        matches!(self, Look::Certain(_))
    }
}

/// By server.
struct Looks(Vec<Option<Look>>);

impl Looks {
    fn certain(&self) -> Vec<Option<Moment>> {
        let certain = |look: &Look| if let Look::Certain(since) = look { Some(*since) } else { None };
        self.0.iter().flatten().filter_map(certain).collect()
    }

    fn lost(&self) -> impl Iterator<Item = (Lost, Moment)> {
        self.0
            .iter()
            .flatten()
            .filter_map(|look| if let Look::Lost(why, had) = look { Some((*why, *had)) } else { None })
    }

    /// Whether a majority is certain, and was without a break.
    fn is_whole(&self) -> bool {
        let gone: Vec<_> = self.lost().filter(|(why, _)| *why == Lost::Removed).map(|(_, had)| had).collect();
        is_unbroken(&self.certain(), &gone, self.0.len())
    }

    fn reason(&self) -> Lost {
        let is_said = |reason: &Lost| self.lost().any(|(why, _)| why == *reason);
        [Lost::Closed, Lost::MaxHold, Lost::Expired].into_iter().find(is_said).unwrap_or(Lost::Removed)
    }

    /// Of the servers that are lost: where it matters whether they lost it before their lease expired.
    fn doubts(&self) -> impl Iterator<Item = Moment> {
        let certain = self.certain();
        self.lost().map(|(_, had)| had).filter(move |had| !is_unbroken(&certain, &[*had], self.0.len()))
    }
}

impl Servers {
    /// Of a majority. Votes that are granted within `one_vote` count from the start.
    pub(super) fn new(name: String, guards: Vec<Option<Guard>>, late: Votes, one_vote: Duration) -> Servers {
        let guards = guards.into_iter().map(|guard| guard.map(ServerGuard::first)).collect();
        let state =
            Mutex::new(ServerGuards { guards, lost: None, is_loss_seen: false, released: false, doubts: Vec::new() });
        let one_vote = Instant::now() + one_vote;
        Servers { name, state, late: Mutex::new(late), one_vote, changed: Notify::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ServerGuards> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn loss(&self) -> Option<Lost> {
        self.state().settle()
    }

    /// The same, unless its guard is gone, or about to be.
    pub(super) fn loss_of_a_holder(&self) -> Option<Lost> {
        let mut state = self.state();
        if state.released { None } else { state.settle() }
    }

    pub(super) fn nodes(&self) -> usize {
        self.state().certain().count()
    }

    /// How long a majority is certain.
    pub(super) fn remaining(&self) -> Duration {
        let mut state = self.state();
        if state.settle().is_some() || state.released {
            return Duration::ZERO;
        }
        let of = |of: &Option<ServerGuard>| of.as_ref().map_or(Duration::ZERO, |of| of.guard.remaining());
        time_of_majority(state.guards.iter().map(of).collect())
    }

    /// From when on a vote counts that is granted now.
    pub(super) fn since(&self) -> Option<Moment> {
        (Instant::now() > self.one_vote).then(Moment::now)
    }

    pub(super) async fn next_vote(&self) -> Option<(usize, Result<Option<Guard>>)> {
        poll_fn(|cx| self.late().poll_next_unpin(cx)).await
    }

    pub(super) fn late(&self) -> MutexGuard<'_, Votes> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the clock at each poll: timers and tokens are late if the workers of the runtime are busy.
    pub(super) async fn lost(&self) -> Lost {
        loop {
            let changed = self.changed.notified();
            let begun = Instant::now(); // before the looks, so a pause here makes the wait shorter, not longer
            let tokens: Vec<_> = self.state().certain().map(|guard| guard.lost_token()).collect();
            let watched = tokens.iter().map(|token| Box::pin(token.cancelled())).collect::<FuturesUnordered<_>>();
            let mut news = pin!(async {
                tokio::select! {
                    () = changed => {}
                    Some(()) = watched.into_future().map(|(first, _)| first) => {}
                    () = pass_until(begun + self.remaining()) => {}
                }
            });
            let look = poll_fn(|cx| match self.loss() {
                None => news.as_mut().poll(cx).map(|()| None),
                lost => Poll::Ready(lost),
            });
            if let Some(reason) = look.await {
                return reason;
            }
            if self.state().released {
                return pending().await; // its guard is gone, or about to be
            }
        }
    }

    /// Adds a guard, unless the lock is lost: a majority that is gone does not come back. False then.
    pub(super) fn add(&self, server: usize, guard: ServerGuard) -> bool {
        let mut state = self.state();
        let adds = state.settle().is_none() && !state.released;
        let unused = if adds { state.guards[server].replace(guard) } else { Some(guard) };
        drop(state);
        drop(unused); // outside of the mutex: it sends a release
        self.changed.notify_waiters();
        adds
    }

    /// Takes the guards and the late votes out, and says whether it was lost before. A late vote that is dropped is taken back.
    pub(super) fn release(&self) -> Released {
        let late = mem::take(&mut *self.late());
        let mut state = self.state();
        let lost = state.settle();
        state.released = true;
        Released { guards: mem::take(&mut state.guards), doubts: mem::take(&mut state.doubts), late, lost }
    }

    /// The servers that do not have it, as far as is known; none once it is lost. Drops the lost guards, for their owner must release them
    /// before it can acquire the lock there again. If it was lost already at the call before, drops the others, which would be renewed: the
    /// holder has had the time between to stop.
    pub(super) fn missing(&self) -> Vec<usize> {
        let mut state = self.state();
        let looks = state.look();
        let is_lost = state.lost.is_some();
        let was_lost = mem::replace(&mut state.is_loss_seen, is_lost);
        let (dropped, missing) = if state.released || is_lost && !was_lost {
            (Vec::new(), Vec::new())
        } else if is_lost {
            (state.take(&looks, Look::is_certain), Vec::new())
        } else {
            state.doubts.extend(looks.doubts());
            let lost = state.take(&looks, |look| !look.is_certain());
            (lost, (0..state.guards.len()).filter(|server| state.guards[*server].is_none()).collect())
        };
        drop(state);
        drop(dropped); // outside of the mutex: it sends releases
        missing
    }
}
