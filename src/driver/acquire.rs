//! Acquires a lock.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use super::{
    call::{Call, OnDrop, error},
    calls::{AcquiredHold, AcquiredHow, CallResult, EndedCall},
    held::HeldLock,
    named::{Driver, NamedLock},
    translate::now,
};
use crate::{
    error::{Error, Result},
    lock::{Event, Limit, Moment, Outcome, Owner, Ticket},
    request::{AcquireRequest, WaitLimit},
    sync::{std, tokio},
    task_runtime::TaskRuntime,
};

/// A call that has begun.
struct Begun<'a> {
    driver: &'a Arc<Driver>,
    request: &'a AcquireRequest,
    /// By the clock of the state machine, as `began`.
    limit: Limit,
    began: Moment,
}

/// Acquires the lock; `None` if another owner holds it for longer than the wait limit.
pub(crate) async fn acquire(driver: &Arc<Driver>, request: &AcquireRequest) -> Result<Option<HeldLock>> {
    start(driver, request, now())?.acquired().await
}

/// The same. Tries again after an outage while `may_retry` permits it.
pub(crate) async fn acquire_through_outages(
    driver: &Arc<Driver>,
    request: &AcquireRequest,
    may_retry: impl Fn() -> bool,
) -> Result<Option<HeldLock>> {
    let began = now(); // an error states the time of all tries
    loop {
        let held = start(driver, request, began)?.acquired().await;
        if !held.as_ref().is_err_and(Error::is_unavailable) || !may_retry() {
            return held;
        }
    }
}

/// Waits until the caller may pass, or keeps what it acquires; false if that takes longer than the wait limit. The client then has nothing
/// of it.
pub(crate) async fn pass(driver: &Arc<Driver>, request: &AcquireRequest) -> Result<bool> {
    let begun = start(driver, request, now())?;
    loop {
        let (mut call, EndedCall { result, .. }) = begun.called().await?;
        match result.outcome {
            Outcome::Acquired if !call.keep() => {} // it was lost before the caller looked
            Outcome::Passed | Outcome::Acquired => {
                driver.counters.of(call.lock.subject(request.kind.mode())).passed(now().since(begun.began));
                return Ok(true);
            }
            Outcome::Busy => return Ok(false),
            Outcome::StartAgain => {}
            _ => return Err(error(&call.lock, request.what, &result, begun.began)),
        }
    }
}

fn start<'a>(driver: &'a Arc<Driver>, request: &'a AcquireRequest, began: Moment) -> Result<Begun<'a>> {
    if driver.is_abandoned() {
        return Err(driver.closed(request.what, &request.name));
    }
    TaskRuntime::around(request.what)?;
    Ok(Begun { driver, request, limit: limit_of(request.wait_limit), began })
}

impl Begun<'_> {
    async fn acquired(&self) -> Result<Option<HeldLock>> {
        loop {
            let (mut call, EndedCall { result, acquired, .. }) = self.called().await?;
            match result.outcome {
                Outcome::Acquired => {
                    if let Some(acquired) = acquired.or_else(|| too_late(&call.lock, call.ticket)) {
                        call.ending = OnDrop::Ended; // it has a guard now
                        return Ok(Some(held(&call, self.request, acquired, result.way, self.began)));
                    }
                }
                Outcome::Busy => return Ok(None),
                Outcome::StartAgain => {}
                _ => return Err(error(&call.lock, self.request.what, &result, self.began)),
            }
        }
    }

    /// The call with its result.
    async fn called(&self) -> Result<(Call, EndedCall)> {
        let mut call = poll_fn(|cx| Poll::Ready(self.begin_call(cx.waker()))).await?;
        let ended = poll_fn(|cx| call.poll(cx)).await?;
        report_end(&call.lock, call.ticket, self.began, &ended.result);
        Ok((call, ended))
    }

    /// If the client is about to forget the lock, the call begins again with a new one.
    fn begin_call(&self, waker: &Waker) -> Result<Call> {
        loop {
            let lock = self.driver.lock_of(&self.request.name, self.request.kind);
            if let Some(call) = begin(&lock, self.request, (self.limit, self.began), waker) {
                return Ok(call);
            }
            if self.driver.is_stopping() || self.driver.has_ended() {
                return Err(self.driver.closed(self.request.what, &self.request.name));
            }
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

/// A call that may have begun before, and starts again. `None` if the lock is about to be forgotten.
fn begin(
    lock: &Arc<NamedLock>,
    request: &AcquireRequest,
    (limit, began): (Limit, Moment),
    waker: &Waker,
) -> Option<Call> {
    let owner = Owner(request.owner.number());
    let terms = request.terms;
    let begun = lock.with(|inner, fed| {
        if inner.is_forgotten() {
            return None;
        }
        let ticket = inner.next_ticket();
        inner.calls.begin(ticket, began);
        inner.handle(lock, Event::Acquire { ticket, owner, terms, limit }, fed);
        Some((ticket, inner.calls.wait(ticket, waker)))
    });
    let (ticket, waits) = begun?;
    Some(Call { what: request.what, lock: Arc::clone(lock), ticket, ending: OnDrop::Leaves, waits })
}

/// The hold was lost, or may have been, before the caller saw that it acquired it.
/// The drop of the call then also releases what is lost.
fn too_late(lock: &Arc<NamedLock>, ticket: Ticket) -> Option<AcquiredHold> {
    lock.with(|inner, fed| {
        inner.handle(lock, Event::Seen(ticket), fed);
        inner.state.hold_of(ticket)
    })
}

fn held(call: &Call, request: &AcquireRequest, hold: AcquiredHold, way: AcquiredHow, began: Moment) -> HeldLock {
    let (lock, (hold, mode, token)) = (&call.lock, hold);
    // Before anything that can panic: from here on, its drop releases the lock.
    let held = HeldLock::new(Arc::clone(lock), call.ticket, request.owner.clone(), (hold, mode), token);
    let counters = lock.driver.counters.of(lock.subject(mode));
    match way {
        AcquiredHow::Nested => counters.reentered(),
        AcquiredHow::First(way) => {
            counters.acquired(way, now().since(began));
            tracing::debug!(target: "leasehold::lock", name = &*lock.name, id = &*lock.field(hold, mode), "acquired");
        }
    }
    held
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
