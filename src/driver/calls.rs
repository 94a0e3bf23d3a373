//! The calls about one name that wait for a result.

use std::{collections::BTreeMap, mem, sync::Arc, task::Waker};

use tokio_util::sync::CancellationToken;

use super::slot::Slot;
use crate::{
    lock::{Moment, Outcome, Ticket},
    redis::Fault,
    stats::AcquiredBy,
    sync::std,
};

/// How a caller learns its result.
#[derive(Debug)]
enum Caller {
    /// It is polled. `None`: not yet.
    Polled(Option<Waker>),
    /// It has dropped its guard. The token of the guard is cancelled if the lock was lost before.
    Left(CancellationToken),
}

#[derive(Debug)]
pub(super) struct PendingCall {
    caller: Caller,
    since: Moment,
    result: Option<CallResult>,
    /// Requests that the caller is to poll, until it takes them.
    lent: Vec<Arc<Slot>>,
}

impl PendingCall {
    fn new(caller: Caller, since: Moment) -> PendingCall {
        PendingCall { caller, since, result: None, lent: Vec::new() }
    }

    pub(super) fn into_lent(self) -> Vec<Arc<Slot>> {
        self.lent
    }
}

/// The result of a call.
#[derive(Debug, Clone)]
pub(super) struct CallResult {
    pub(super) outcome: Outcome,
    pub(super) way: AcquiredHow,
    pub(super) cause: Option<Box<Cause>>,
}

/// How a call acquired the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AcquiredHow {
    First(AcquiredBy),
    Nested,
}

/// What the server said that explains an outcome.
#[derive(Debug, Clone)]
pub(super) enum Cause {
    Fault(Fault),
    /// So many replicas confirmed a new hold.
    Replicas(u8),
    /// The server has not run an earlier release of this client.
    OwnRelease,
}

/// What a caller gets when it polls. With the result, the requests that it was to poll, which another task goes on with.
#[derive(Debug)]
pub(super) enum Polled {
    Ended(CallResult, Moment, Vec<Arc<Slot>>),
    /// It is to poll these requests.
    Pending {
        replaced: Option<Waker>,
        lent: Vec<Arc<Slot>>,
    },
}

impl Polled {
    fn pending(replaced: Option<Waker>) -> Polled {
        Polled::Pending { replaced, lent: Vec::new() }
    }
}

#[derive(Debug, Default)]
pub(super) struct Calls(BTreeMap<Ticket, PendingCall>);

impl Calls {
    pub(super) fn begin(&mut self, ticket: Ticket, since: Moment) {
        self.0.insert(ticket, PendingCall::new(Caller::Polled(None), since));
    }

    /// The guard with this ticket was dropped. Its token is cancelled if the lock was lost before.
    pub(super) fn begin_left(&mut self, ticket: Ticket, token: CancellationToken, since: Moment) {
        self.0.insert(ticket, PendingCall::new(Caller::Left(token), since));
    }

    /// The result, if there is one. Else the waker is kept. The waker that it replaces must be dropped after the mutex is unlocked: it can be
    /// the last that keeps a task, and with it a guard.
    pub(super) fn poll(&mut self, ticket: Ticket, waker: &Waker) -> Polled {
        let Some(call) = self.0.get_mut(&ticket) else { return Polled::pending(None) };
        if call.result.is_some() {
            let ended =
                self.0.remove(&ticket).and_then(|call| Some(Polled::Ended(call.result?, call.since, call.lent)));
            return ended.unwrap_or(Polled::pending(None));
        }
        let replaced = match &mut call.caller {
            Caller::Polled(Some(before)) if before.will_wake(waker) => None,
            Caller::Polled(before) => before.replace(waker.clone()),
            Caller::Left(_) => None,
        };
        Polled::Pending { replaced, lent: mem::take(&mut call.lent) }
    }

    /// Lets a caller that is polled go on with a request. Returns its waker, or nothing if there is no such caller.
    pub(super) fn lend(&mut self, ticket: Ticket, slot: &Arc<Slot>) -> Option<Waker> {
        let call = self.0.get_mut(&ticket).filter(|call| call.result.is_none())?;
        let Caller::Polled(waker) = &call.caller else { return None };
        let waker = waker.clone()?;
        call.lent.push(Arc::clone(slot));
        Some(waker)
    }

    /// Drop what it returns after the mutex is unlocked.
    pub(super) fn forget(&mut self, ticket: Ticket) -> Option<PendingCall> {
        self.0.remove(&ticket)
    }

    /// The call has ended. Returns its waker.
    pub(super) fn end(&mut self, ticket: Ticket, result: CallResult) -> Option<Waker> {
        let call = self.0.get_mut(&ticket)?;
        match &mut call.caller {
            Caller::Polled(waker) => {
                call.result = Some(result);
                waker.take()
            }
            Caller::Left(token) => {
                if matches!(result.outcome, Outcome::Lost(_)) {
                    token.cancel();
                }
                self.0.remove(&ticket);
                None
            }
        }
    }

    /// All wakers: the client has ended.
    pub(super) fn wakers(&mut self) -> Vec<Waker> {
        let waker = |call: &mut PendingCall| match &mut call.caller {
            Caller::Polled(waker) => waker.take(),
            Caller::Left(_) => None,
        };
        self.0.values_mut().filter_map(waker).collect()
    }
}
