//! A call that waits for its result.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use tokio_util::sync::CancellationToken;

use super::{
    calls::{CallResult, Cause, EndedCall, Notice, Polled},
    named::NamedLock,
    translate::{lost, now},
};
use crate::{
    error::{About, Error, Result},
    failed::{self, silent},
    lock::{Event, Moment, Outcome, Ticket},
    redis::Fault,
    sync::std,
};

/// What it means that a call is dropped before its end.
#[derive(Debug)]
pub(super) enum OnDrop {
    /// The waiter leaves.
    Leaves,
    /// The client goes on with it.
    GoesOn,
    /// Nothing: it has ended, and whoever has its result does the rest.
    Ended,
    /// The client goes on with the release, and cancels the token of the guard if the lock was lost before.
    Releases(CancellationToken),
}

/// A call that waits for its result.
pub(super) struct Call {
    /// For error messages.
    pub(super) what: &'static str,
    pub(super) lock: Arc<NamedLock>,
    pub(super) ticket: Ticket,
    pub(super) ending: OnDrop,
    /// It had no result when it began, and is woken when it has.
    pub(super) waits: bool,
}

impl Call {
    /// The result. An error if the runtime of the client has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<EndedCall>> {
        let has_begun_now = mem::take(&mut self.waits);
        let looked =
            if has_begun_now { Polled::Pending(None) } else { self.lock.inner().poll_call(self.ticket, cx.waker()) };
        match looked {
            Polled::Ended(ended) => {
                if ended.result.outcome != Outcome::Acquired {
                    self.ending = OnDrop::Ended; // it has left already
                }
                Poll::Ready(Ok(ended))
            }
            Polled::Pending(replaced) => {
                drop(replaced); // the mutex is unlocked
                let driver = &self.lock.driver;
                let has_ended = if has_begun_now { driver.has_ended_here() } else { driver.has_ended() };
                if has_ended { Poll::Ready(Err(driver.closed(self.what, &self.lock.name))) } else { Poll::Pending }
            }
        }
    }

    /// The caller keeps what it acquired, and the client has nothing of it anymore. False if it was lost before the caller looked. One look
    /// and act under the mutex.
    pub(super) fn keep(&mut self) -> bool {
        let is_kept = self.lock.with(|inner, fed| {
            let is_kept = inner.state.keep(self.ticket, now());
            inner.handle(&self.lock, Event::Due, fed);
            is_kept
        });
        if is_kept {
            self.ending = OnDrop::Ended;
        }
        is_kept
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let (lock, ticket) = (&self.lock, self.ticket);
        let ending = mem::replace(&mut self.ending, OnDrop::Ended);
        if matches!(ending, OnDrop::Ended) {
            return; // without the mutex
        }
        let (left, notice) = lock.with(|inner, fed| match ending {
            OnDrop::Releases(token) => inner.calls.leave(ticket, token),
            OnDrop::GoesOn | OnDrop::Ended => (inner.calls.forget(ticket), None),
            OnDrop::Leaves => {
                let left = inner.calls.forget(ticket);
                inner.handle(lock, Event::Dropped(ticket), fed);
                (left, None)
            }
        });
        drop(left);
        notice.into_iter().for_each(Notice::give);
    }
}

/// The error of a call that began then.
pub(super) fn error(lock: &NamedLock, what: &str, result: &CallResult, began: Moment) -> Error {
    let (name, waited) = (&*lock.name, now().since(began));
    let fault = match result.cause.as_deref() {
        Some(Cause::Fault(fault)) => Some(fault.clone()),
        Some(Cause::OwnRelease) => Some(Fault::unknown("an earlier release by this client has no reply yet")),
        Some(Cause::Deadlock(circle)) => return Error::Deadlock { name: name.to_owned(), circle: circle.to_vec() },
        Some(Cause::Replicas(_)) | None => None,
    };
    let error = match (result.outcome, fault) {
        (Outcome::Lost(loss), _) => Error::lost(name, lost(loss)),
        (Outcome::Upgrade, _) => Error::Upgrade { name: name.to_owned() },
        (Outcome::TooFewReplicas, None) => too_few_replicas(lock, result),
        (Outcome::Unconfirmed, fault) => Error::unconfirmed(name, fault.and_then(Fault::source)),
        (Outcome::Closed, _) => lock.driver.closed(what, name),
        (Outcome::Refused | Outcome::TooFewReplicas, Some(fault)) => {
            failed::error(fault, what, waited, (name, lock.name.key()))
        }
        (_, fault) => {
            let last = fault.and_then(Fault::source);
            silent(what, name, waited, lock.driver.redis.trouble(lock.name.key(), last))
        }
    };
    error.of(lock.kind.rules.label.about())
}

fn too_few_replicas(lock: &NamedLock, result: &CallResult) -> Error {
    let got = match result.cause.as_deref() {
        Some(Cause::Replicas(got)) => *got,
        _ => 0,
    };
    Error::Replicas { name: lock.name.to_string(), wanted: lock.driver.config.replicas, got, about: About::Lock }
}
