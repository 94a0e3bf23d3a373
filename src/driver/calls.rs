//! The calls about one name that wait for a result.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

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

/// What a caller gets when it polls.
#[derive(Debug)]
pub(super) enum Polled {
    Ended(CallResult, Moment),
    Pending { replaced: Option<Waker> },
}

/// How a caller is notified. That runs code of the caller, which may itself use the lock, so it is done after the mutex is unlocked.
#[derive(Debug)]
#[must_use = "the caller waits for it"]
pub(super) enum Notice {
    Wake(Waker),
    Cancel(CancellationToken),
}

impl Notice {
    /// A panic of a waker ends here: others wait for what follows.
    pub(super) fn give(self) {
        let _ = catch_unwind(AssertUnwindSafe(|| match self {
            Notice::Wake(waker) => waker.wake(),
            Notice::Cancel(token) => token.cancel(),
        }));
    }
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

    /// The caller has dropped its future. The token of its guard is cancelled if the result is, or will be, that the lock was lost.
    /// Drop the call after the mutex is unlocked.
    pub(super) fn leave(&mut self, ticket: Ticket, token: CancellationToken) -> (Option<PendingCall>, Option<Notice>) {
        let Some(call) = self.0.remove(&ticket) else { return (None, None) };
        self.begin_left(ticket, token, call.since);
        let notice = call.result.clone().and_then(|result| self.end(ticket, result));
        (Some(call), notice)
    }

    /// Drop what it returns after the mutex is unlocked.
    pub(super) fn forget(&mut self, ticket: Ticket) -> Option<PendingCall> {
        self.0.remove(&ticket)
    }

    /// The call has ended.
    pub(super) fn end(&mut self, ticket: Ticket, result: CallResult) -> Option<Notice> {
        let call = self.0.get_mut(&ticket)?;
        if let Caller::Polled(waker) = &mut call.caller {
            call.result = Some(result);
            return waker.take().map(Notice::Wake);
        }
        match self.0.remove(&ticket)?.caller {
            Caller::Left(token) if matches!(result.outcome, Outcome::Lost(_)) => Some(Notice::Cancel(token)),
            Caller::Left(_) | Caller::Polled(_) => None,
        }
    }

    /// The client has ended. All callers are to look.
    pub(super) fn end_all(&mut self) -> Vec<Notice> {
        let waker = |call: &mut PendingCall| match &mut call.caller {
            Caller::Polled(waker) => waker.take().map(Notice::Wake),
            Caller::Left(_) => None,
        };
        self.0.values_mut().filter_map(waker).collect()
    }
}
