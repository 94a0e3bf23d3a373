//! The calls about one name that wait for a result.

use std::{sync::Arc, task::Waker};

use tokio_util::sync::CancellationToken;

use crate::{
    contained::contained,
    error::{Blocked, Source},
    events::AcquiredBy,
    lock::{Few, HoldId, Mode, Moment, Outcome, Ticket, Token},
    redis::Fault,
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
}

impl PendingCall {
    fn new(caller: Caller, since: Moment) -> PendingCall {
        PendingCall { caller, since, result: None }
    }

    fn into_ended(self) -> Option<EndedCall> {
        Some(EndedCall { result: self.result?, since: self.since, acquired: None })
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
    /// It waited in this circle.
    Deadlock(Arc<[Blocked]>),
}

impl Cause {
    /// The server has replied; no reply is no trouble of this name alone.
    pub(super) fn is_a_refusal(&self) -> bool {
        !matches!(self, Cause::Fault(Fault::Unknown(_) | Fault::NotSent(_)))
    }

    pub(super) fn source(&self) -> Option<Source> {
        match self {
            Cause::Fault(fault) => fault.clone().source(),
            Cause::Replicas(_) | Cause::OwnRelease | Cause::Deadlock(_) => None,
        }
    }
}

/// A call that has ended.
#[derive(Debug)]
pub(super) struct EndedCall {
    pub(super) result: CallResult,
    /// The time at which it began.
    pub(super) since: Moment,
    /// What it acquired, if that was not lost before the caller looked.
    pub(super) acquired: Option<AcquiredHold>,
}

/// The id, the mode and the token of a hold.
pub(super) type AcquiredHold = (HoldId, Mode, Option<Token>);

/// What a caller gets when it polls.
#[derive(Debug)]
pub(super) enum Polled {
    Ended(EndedCall),
    /// The waker that was kept before.
    Pending(Option<Waker>),
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
        contained(|| match self {
            Notice::Wake(waker) => waker.wake(),
            Notice::Cancel(token) => token.cancel(),
        });
    }
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    pending: Few<Ticket, Box<PendingCall>>,
}

/// The rest of a call that ended before its caller looked. Drop it after the mutex is unlocked: its waker can be the last that keeps a task.
#[must_use = "it is dropped after the mutex is unlocked"]
pub(super) struct LeftCall {
    _call: Option<Box<PendingCall>>,
}

impl Calls {
    pub(super) fn begin(&mut self, ticket: Ticket, since: Moment) {
        self.insert(ticket, PendingCall::new(Caller::Polled(None), since));
    }

    fn insert(&mut self, ticket: Ticket, call: PendingCall) {
        self.pending.insert(ticket, Box::new(call));
    }

    /// The guard with this ticket was dropped. Its token is cancelled if the lock was lost before.
    pub(super) fn begin_left(&mut self, ticket: Ticket, token: CancellationToken, since: Moment) {
        self.insert(ticket, PendingCall::new(Caller::Left(token), since));
    }

    /// The result, if there is one. Else the waker is kept. The waker that it replaces must be dropped after the mutex is unlocked: it can be
    /// the last that keeps a task, and with it a guard.
    pub(super) fn poll(&mut self, ticket: Ticket, waker: &Waker) -> Polled {
        let Some(call) = self.pending.get_mut(ticket) else { return Polled::Pending(None) };
        if call.result.is_some() {
            let ended = self.pending.remove(ticket).and_then(|call| call.into_ended());
            return ended.map_or(Polled::Pending(None), Polled::Ended);
        }
        Polled::Pending(match &mut call.caller {
            Caller::Polled(Some(before)) if before.will_wake(waker) => None,
            Caller::Polled(before) => before.replace(waker.clone()),
            Caller::Left(_) => None,
        })
    }

    /// Keeps the waker of a call that has just begun. False if it has a result already.
    pub(super) fn wait(&mut self, ticket: Ticket, waker: &Waker) -> bool {
        let call = self.pending.get_mut(ticket).filter(|call| call.result.is_none());
        call.map(|call| call.caller = Caller::Polled(Some(waker.clone()))).is_some()
    }

    /// The caller has dropped its future. The token of its guard is cancelled if the result is, or will be, that the lock was lost.
    pub(super) fn leave(&mut self, ticket: Ticket, token: CancellationToken) -> (LeftCall, Option<Notice>) {
        let Some(call) = self.pending.remove(ticket) else { return (LeftCall { _call: None }, None) };
        self.begin_left(ticket, token, call.since);
        let notice = call.result.clone().and_then(|result| self.end(ticket, result));
        (LeftCall { _call: Some(call) }, notice)
    }

    pub(super) fn forget(&mut self, ticket: Ticket) -> LeftCall {
        LeftCall { _call: self.pending.remove(ticket) }
    }

    /// The call has ended.
    pub(super) fn end(&mut self, ticket: Ticket, result: CallResult) -> Option<Notice> {
        let call = self.pending.get_mut(ticket)?;
        if let Caller::Polled(waker) = &mut call.caller {
            call.result = Some(result);
            return waker.take().map(Notice::Wake);
        }
        match self.pending.remove(ticket)?.caller {
            Caller::Left(token) if matches!(result.outcome, Outcome::Lost(_)) => Some(Notice::Cancel(token)),
            Caller::Left(_) | Caller::Polled(_) => None,
        }
    }

    /// The client has ended. All callers are to look.
    pub(super) fn end_all(&mut self) -> Vec<Notice> {
        let waker = |call: &mut Box<PendingCall>| match &mut call.caller {
            Caller::Polled(waker) => waker.take().map(Notice::Wake),
            Caller::Left(_) => None,
        };
        self.pending.values_mut().filter_map(waker).collect()
    }
}
