//! The guards of a quorum lock, one for each server, and the time for which a majority of them is certain.

use std::{
    future::{pending, poll_fn},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    /// Notified when a guard was added, or the lock is lost.
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
    /// The guards have been taken out: none is added any more, and what is lost stays as it is.
    released: bool,
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
        if self.lost.is_none() && !self.released && !self.is_whole() {
            let reasons: Vec<_> = self.all().filter_map(|guard| guard.loss()).collect();
            let is_said = |reason: &Lost| reasons.contains(reason);
            let reason = [Lost::Closed, Lost::MaxHold, Lost::Expired].into_iter().find(is_said);
            self.lost = Some(reason.unwrap_or(Lost::Removed));
        }
        self.lost
    }

    /// Whether a majority is certain, and was without a break.
    fn is_whole(&self) -> bool {
        let gone = self.all().filter(|guard| guard.loss() == Some(Lost::Removed)).map(|guard| guard.last_confirmed());
        let certain = self.guards.iter().flatten().filter(|of| !of.guard.is_lost()).map(|of| of.since);
        is_unbroken(&certain.collect::<Vec<_>>(), &gone.collect::<Vec<_>>(), self.guards.len())
    }
}

impl Servers {
    /// Of a majority. Votes that are granted within `one_vote` count from the start.
    pub(super) fn new(name: String, guards: Vec<Option<Guard>>, late: Votes, one_vote: Duration) -> Servers {
        let guards = guards.into_iter().map(|guard| guard.map(ServerGuard::first)).collect();
        let state = Mutex::new(ServerGuards { guards, lost: None, released: false });
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

    pub(super) async fn lost(&self) -> Lost {
        loop {
            let changed = self.changed.notified();
            let begun = Instant::now(); // before the looks, so a pause here makes the wait shorter, not longer
            if let Some(reason) = self.loss() {
                return reason;
            }
            if self.state().released {
                return pending().await; // its guard is gone, or about to be
            }
            let tokens: Vec<_> = self.state().certain().map(|guard| guard.lost_token()).collect();
            let watched = tokens.iter().map(|token| Box::pin(token.cancelled())).collect::<FuturesUnordered<_>>();
            tokio::select! {
                () = changed => {}
                Some(()) = watched.into_future().map(|(first, _)| first) => {}
                () = pass_until(begun + self.remaining()) => {}
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
    pub(super) fn release(&self) -> (Vec<Option<ServerGuard>>, Votes, Option<Lost>) {
        let late = mem::take(&mut *self.late());
        let mut state = self.state();
        let lost = state.settle();
        state.released = true;
        (mem::take(&mut state.guards), late, lost)
    }

    /// The servers that do not have it, as far as is known; none once it is lost. Drops the lost guards, for their owner must release them
    /// before it can acquire the lock there again.
    pub(super) fn missing(&self) -> Vec<usize> {
        let mut state = self.state();
        if state.settle().is_some() || state.released {
            return Vec::new();
        }
        let lost: Vec<_> = state.guards.iter_mut().map(|guard| guard.take_if(|of| of.guard.is_lost())).collect();
        let missing = (0..state.guards.len()).filter(|server| state.guards[*server].is_none()).collect();
        drop(state);
        drop(lost);
        missing
    }
}
