//! The calls about one name that wait for a result.

use std::{collections::BTreeMap, task::Waker};

use tokio_util::sync::CancellationToken;

use crate::{
    lock::{Moment, Outcome, Ticket},
    redis::Fault,
    stats::AcquiredBy,
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

/// Who is notified of the end of a call, after the mutex is unlocked: wakers are foreign code, and may drop a guard of this lock.
#[derive(Debug)]
pub(super) enum Notified {
    Caller(Waker),
    Token(CancellationToken),
}

impl Notified {
    pub(super) fn notify(self) {
        match self {
            Notified::Caller(waker) => waker.wake(),
            Notified::Token(token) => token.cancel(),
        }
    }
}

/// What a caller gets when it polls.
#[derive(Debug)]
pub(super) enum Polled {
    Ended(CallResult, Moment),
    Pending { replaced: Option<Waker> },
}

#[derive(Debug, Default)]
pub(super) struct Calls(BTreeMap<Ticket, PendingCall>);

impl Calls {
    pub(super) fn begin(&mut self, ticket: Ticket, since: Moment) {
        self.0.insert(ticket, PendingCall { caller: Caller::Polled(None), since, result: None });
    }

    /// The guard with this ticket was dropped. Its token is cancelled if the lock was lost before.
    pub(super) fn begin_left(&mut self, ticket: Ticket, token: CancellationToken, since: Moment) {
        self.0.insert(ticket, PendingCall { caller: Caller::Left(token), since, result: None });
    }

    /// The result, if there is one. Else the waker is kept. The waker that it replaces must be dropped after the mutex is unlocked: it can be
    /// the last that keeps a task, and with it a guard.
    pub(super) fn poll(&mut self, ticket: Ticket, waker: &Waker) -> Polled {
        let Some(call) = self.0.get_mut(&ticket) else { return Polled::Pending { replaced: None } };
        if call.result.is_some() {
            let ended = self.0.remove(&ticket).and_then(|call| Some((call.result?, call.since)));
            return ended.map_or(Polled::Pending { replaced: None }, |(result, since)| Polled::Ended(result, since));
        }
        match &mut call.caller {
            Caller::Polled(Some(before)) if before.will_wake(waker) => Polled::Pending { replaced: None },
            Caller::Polled(before) => Polled::Pending { replaced: before.replace(waker.clone()) },
            Caller::Left(_) => Polled::Pending { replaced: None },
        }
    }

    /// Drop what it returns after the mutex is unlocked.
    pub(super) fn forget(&mut self, ticket: Ticket) -> Option<PendingCall> {
        self.0.remove(&ticket)
    }

    /// The call has ended.
    pub(super) fn end(&mut self, ticket: Ticket, result: CallResult) -> Option<Notified> {
        let call = self.0.get_mut(&ticket)?;
        match &mut call.caller {
            Caller::Polled(waker) => {
                call.result = Some(result);
                waker.take().map(Notified::Caller)
            }
            Caller::Left(token) => {
                let token = token.clone();
                self.0.remove(&ticket);
                matches!(result.outcome, Outcome::Lost(_)).then_some(Notified::Token(token))
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
