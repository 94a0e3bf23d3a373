//! A call that acquires a lock, and other calls that wait for a result.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    By, Driver, HeldLock,
    calls::{AcquiredHow, CallResult, Cause, PendingCall, Polled},
    lost,
    named::{NamedLock, now},
    slot::Slot,
};
use crate::{
    error::{Error, Result},
    failed::{self, ASKING, silent},
    lock::{Event, Limit, Moment, Outcome, Owner, Terms, Ticket},
    redis::Fault,
    request::{AcquireRequest, WaitLimit},
    sync::{std, tokio},
    task_runtime::TaskRuntime,
};

/// Acquires the lock; `None` if another owner holds it for longer than the wait limit.
pub(crate) async fn acquire(driver: &Arc<Driver>, request: &AcquireRequest) -> Result<Option<HeldLock>> {
    if driver.is_abandoned() {
        return Err(driver.closed(ASKING, &request.name));
    }
    TaskRuntime::around(ASKING)?;
    let limit = limit_of(request.wait_limit);
    loop {
        let lock = driver.named(&request.name, request.kind);
        let Some(mut call) = begin(&lock, request, limit) else {
            if driver.is_stopping() || driver.has_ended() {
                return Err(driver.closed(ASKING, &request.name));
            }
            continue;
        };
        let (result, began) = poll_fn(|cx| call.poll(cx)).await?;
        report_end(&lock, call.ticket, began, &result);
        match result.outcome {
            Outcome::Acquired => {
                if let Some(held) = held(&lock, request, &call, &result, began) {
                    call.ending = OnDrop::GoesOn; // it has a guard now
                    return Ok(Some(held));
                }
            }
            Outcome::Busy => return Ok(None),
            Outcome::StartAgain => {}
            _ => return Err(error(&lock, ASKING, &result, began)),
        }
    }
}

fn report_end(lock: &NamedLock, ticket: Ticket, began: Moment, result: &CallResult) {
    let slow = lock.driver.config.slow_wait;
    if now().since(began) < slow {
        return; // without the mutex
    }
    let way = match result {
        CallResult { outcome: Outcome::Acquired, way: AcquiredHow::First(way), .. } => Some(*way),
        _ => None,
    };
    let inner = lock.inner();
    let (has_reported, (holder, by_this_client)) = (inner.has_reported(ticket), inner.holder_now(lock));
    drop(inner);
    let (name, waited) = (&*lock.name, now().since(began));
    if has_reported {
        tracing::warn!(target: "leasehold::lock", name, ?waited, ?holder, by_this_client, ?way, "slow wait ended");
    } else {
        tracing::debug!(target: "leasehold::lock", name, ?waited, ?holder, by_this_client, ?way, "slow wait ended");
    }
}

/// `None` if the lock is about to be forgotten.
fn begin(lock: &Arc<NamedLock>, request: &AcquireRequest, limit: Limit) -> Option<Call> {
    let owner = Owner(request.owner.number());
    let terms = terms_of(request);
    let (ticket, slots) = lock.with(By::Caller, |inner, fed| {
        if inner.is_forgotten() {
            return None;
        }
        let ticket = inner.next_ticket();
        inner.calls.begin(ticket, now());
        inner.handle(lock, Event::Acquire { ticket, owner, terms, limit }, fed);
        Some(ticket)
    });
    Some(Call { what: ASKING, lock: Arc::clone(lock), ticket: ticket?, slots, ending: OnDrop::Leaves })
}

/// The caller has seen that it acquired the lock. `None` if it was lost before that.
fn held(
    lock: &Arc<NamedLock>,
    request: &AcquireRequest,
    call: &Call,
    result: &CallResult,
    began: Moment,
) -> Option<HeldLock> {
    let ticket = call.ticket;
    let (hold, slots) = lock.with(By::Caller, |inner, fed| {
        inner.handle(lock, Event::Seen(ticket), fed);
        inner.state.hold_of(ticket)
    });
    leave(lock, slots);
    let (hold, mode, token) = hold?;
    // Before anything that can panic: from here on, its drop releases the lock.
    let held = HeldLock::new(Arc::clone(lock), ticket, request.owner.clone(), (hold, mode), token);
    let counters = lock.driver.counters.of(lock.subject(mode));
    match result.way {
        AcquiredHow::Nested => counters.reentered(),
        AcquiredHow::First(way) => {
            counters.acquired(way, now().since(began));
            tracing::debug!(target: "leasehold::lock", name = &*lock.name, id = &*lock.field(hold, mode), "acquired");
        }
    }
    Some(held)
}

fn terms_of(request: &AcquireRequest) -> Terms {
    Terms {
        mode: request.kind.mode(),
        lease: request.lease.map(|lease| *lease),
        max_hold: request.max_hold,
        min_hold: request.min_hold.map(|min| *min),
    }
}

/// By the clock of the state machine. It is read last, so a pause between the two readings makes the wait longer, not shorter.
fn limit_of(limit: WaitLimit) -> Limit {
    match limit {
        WaitLimit::Once => Limit::Once,
        WaitLimit::Forever => Limit::Forever,
        WaitLimit::Until(end) => {
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            Limit::Until(now() + left)
        }
    }
}

/// What it means that a call is dropped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnDrop {
    /// The waiter leaves.
    Leaves,
    /// Nothing: the client goes on with it.
    GoesOn,
}

/// A call that waits for its result. It polls the requests that it made.
pub(super) struct Call {
    /// For error messages.
    pub(super) what: &'static str,
    pub(super) lock: Arc<NamedLock>,
    pub(super) ticket: Ticket,
    pub(super) slots: Vec<Arc<Slot>>,
    pub(super) ending: OnDrop,
}

impl Call {
    /// The result, and when the call began. An error if the runtime of the client has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(CallResult, Moment)>> {
        let polled = loop {
            self.poll_requests(cx);
            match self.lock.inner().calls.poll(self.ticket, cx.waker()) {
                Polled::Pending { replaced, lent } if !lent.is_empty() => {
                    self.slots.extend(lent);
                    drop(replaced);
                }
                polled => break polled,
            }
        };
        match polled {
            Polled::Ended(result, since, lent) => {
                self.slots.extend(lent);
                if result.outcome != Outcome::Acquired {
                    self.ending = OnDrop::GoesOn; // it has left already
                }
                Poll::Ready(Ok((result, since)))
            }
            Polled::Pending { .. } if self.lock.driver.has_ended() => {
                Poll::Ready(Err(self.lock.driver.closed(self.what, &self.lock.name)))
            }
            Polled::Pending { replaced, .. } => {
                drop(replaced);
                Poll::Pending
            }
        }
    }

    fn poll_requests(&mut self, cx: &mut Context<'_>) {
        let mut at = 0;
        while let Some(slot) = self.slots.get(at) {
            match slot.poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(replied) => {
                    let slot = self.slots.swap_remove(at);
                    if let Some(replied) = replied {
                        let more = self.lock.replied(slot.id, &slot.request, replied, By::Caller);
                        self.slots.extend(more);
                    }
                }
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        leave(&self.lock, std::mem::take(&mut self.slots));
        let (lock, ticket, ending) = (&self.lock, self.ticket, self.ending);
        let (call, _) = lock.with(By::Client, |inner, fed| {
            let call = inner.calls.forget(ticket);
            if ending == OnDrop::Leaves {
                inner.handle(lock, Event::Dropped(ticket), fed);
            }
            call // dropped after the mutex is unlocked
        });
        leave(lock, call.map(PendingCall::into_lent).unwrap_or_default());
    }
}

/// A task of the client goes on with these requests.
pub(super) fn leave(lock: &NamedLock, slots: Vec<Arc<Slot>>) {
    slots.iter().for_each(|slot| lock.carry(slot));
}

/// The error of a call that began then.
pub(super) fn error(lock: &NamedLock, what: &str, result: &CallResult, began: Moment) -> Error {
    let (name, waited) = (&*lock.name, now().since(began));
    let fault = match result.cause.as_deref() {
        Some(Cause::Fault(fault)) => Some(fault.clone()),
        Some(Cause::OwnRelease) => Some(Fault::unknown("an earlier release by this client has no reply yet")),
        Some(Cause::Replicas(_)) | None => None,
    };
    match (result.outcome, fault) {
        (Outcome::Lost(loss), _) => Error::lost(name, lost(loss)),
        (Outcome::Upgrade, _) => Error::Upgrade { name: name.to_owned() },
        (Outcome::TooFewReplicas, None) => too_few_replicas(lock, result),
        (Outcome::Unconfirmed, _) => Error::unconfirmed(name),
        (Outcome::Closed, _) => lock.driver.closed(what, name),
        (Outcome::Refused | Outcome::TooFewReplicas, Some(fault)) => failed::error(fault, what, waited, name),
        (_, fault) => {
            let last = fault.and_then(Fault::source);
            silent(what, name, waited, lock.driver.redis.trouble(lock.name.key(), last))
        }
    }
}

fn too_few_replicas(lock: &NamedLock, result: &CallResult) -> Error {
    let got = match result.cause.as_deref() {
        Some(Cause::Replicas(got)) => *got,
        _ => 0,
    };
    Error::Replicas { name: lock.name.to_string(), wanted: lock.driver.config.replicas, got }
}
