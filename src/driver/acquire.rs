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

/// Makes the calls for one request, one after the other, until one of them has a result for the caller.
struct Acquirer<'a> {
    driver: &'a Arc<Driver>,
    request: &'a AcquireRequest,
    /// By the clock of the state machine, as `began`.
    limit: Limit,
    began: Moment,
}

/// Acquires the lock; `None` if another owner holds it for longer than the wait limit.
pub(crate) async fn acquire(driver: &Arc<Driver>, request: &AcquireRequest) -> Result<Option<HeldLock>> {
    acquire_since(driver, request, now()).await
}

/// Acquires the lock, and tries again after an outage while `may_retry` permits it; `None` as for [`acquire`].
pub(crate) async fn acquire_through_outages(
    driver: &Arc<Driver>,
    request: &AcquireRequest,
    may_retry: impl Fn() -> bool,
) -> Result<Option<HeldLock>> {
    let began = now(); // an error states the time of all tries
    loop {
        let held = acquire_since(driver, request, began).await;
        if !held.as_ref().is_err_and(Error::is_unavailable) || !may_retry() {
            return held;
        }
    }
}

/// Waits until the caller may pass, or keeps what it acquires; false if that takes longer than the wait limit. The client then has nothing
/// of it.
pub(crate) async fn pass(driver: &Arc<Driver>, request: &AcquireRequest) -> Result<bool> {
    let acquirer = Acquirer::new(driver, request, now())?;
    loop {
        let (mut call, EndedCall { result, .. }) = acquirer.call().await?;
        match result.outcome {
            Outcome::Acquired if !call.keep() => {} // it was lost before the caller looked
            Outcome::Passed | Outcome::Acquired => {
                driver.counters.of(call.lock.subject(request.kind.mode())).passed(now().since(acquirer.began));
                return Ok(true);
            }
            Outcome::Busy => return Ok(false),
            Outcome::StartAgain => {}
            _ => return Err(error(&call.lock, request.what, &result, acquirer.began)),
        }
    }
}

/// Acquires the lock for a caller that has waited since `began`.
async fn acquire_since(driver: &Arc<Driver>, request: &AcquireRequest, began: Moment) -> Result<Option<HeldLock>> {
    let acquirer = Acquirer::new(driver, request, began)?;
    loop {
        let (mut call, EndedCall { result, acquired, .. }) = acquirer.call().await?;
        match result.outcome {
            Outcome::Acquired => {
                if let Some(acquired) = acquired.or_else(|| too_late(&call.lock, call.ticket)) {
                    call.ending = OnDrop::Ended; // it has a guard now
                    return Ok(Some(held(&call, request, acquired, result.way, began)));
                }
            }
            Outcome::Busy => return Ok(None),
            Outcome::StartAgain => {}
            _ => return Err(error(&call.lock, request.what, &result, began)),
        }
    }
}

impl<'a> Acquirer<'a> {
    fn new(driver: &'a Arc<Driver>, request: &'a AcquireRequest, began: Moment) -> Result<Acquirer<'a>> {
        if driver.is_abandoned() {
            return Err(driver.closed(request.what, &request.name));
        }
        TaskRuntime::around(request.what)?;
        Ok(Acquirer { driver, request, limit: limit_of(request.wait_limit), began })
    }

    /// Begins a call, and waits for its result.
    async fn call(&self) -> Result<(Call, EndedCall)> {
        let mut call = poll_fn(|cx| Poll::Ready(self.begin_call(cx.waker()))).await?;
        let ended = poll_fn(|cx| call.poll(cx)).await?;
        report_end(&call.lock, call.ticket, self.began, &ended.result);
        Ok((call, ended))
    }

    /// Begins a call, with a new [`NamedLock`] if the client is about to forget the one that it has.
    fn begin_call(&self, waker: &Waker) -> Result<Call> {
        let Acquirer { driver, request, limit, began } = *self;
        let (owner, terms) = (Owner(request.owner.number()), request.terms);
        loop {
            let lock = driver.lock_of(&request.name, request.kind);
            let begun = lock.with(|inner, fed| {
                if inner.is_forgotten() {
                    return None;
                }
                let ticket = inner.next_ticket();
                inner.calls.begin(ticket, began);
                inner.handle(&lock, Event::Acquire { ticket, owner, terms, limit }, fed);
                Some((ticket, inner.calls.wait(ticket, waker)))
            });
            if let Some((ticket, waits)) = begun {
                return Ok(Call { what: request.what, lock, ticket, ending: OnDrop::Leaves, waits });
            }
            if driver.is_stopping() || driver.has_ended() {
                return Err(driver.closed(request.what, &request.name));
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
