//! The requests that renew a hold, one after the other, and the callers that they notify.

use std::{mem, time::Duration};

use super::{
    lease::Lease,
    requests::{ConfirmWaiters, FIRST_PAUSE, Failure},
    types::{Action, Config, Cx, Loss, Mode, Moment, Nanos, Outcome, RequestId, earliest},
};

/// The shortest time between two confirmations.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
/// The longest that a confirmation waits for other tasks to run, so that it, or a release, serves them, too.
const GATHERING: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Confirmations {
    /// The time between two of them.
    every: Nanos,
    current: Confirmation,
    /// Callers that the next one notifies.
    waiting: ConfirmWaiters,
    /// The next one requests at least this lease.
    extension: Option<Nanos>,
    /// The client sends none before that, unless the other tasks have run.
    gathers_until: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Confirmation {
    PlannedFor(Moment, Purpose),
    UnderWay(Box<SentConfirmation>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Purpose {
    /// It extends the lease.
    Renew,
    /// It only looks, unless the lease was renewed long ago. A client that learns of each write of the others must not answer with one.
    Look,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SentConfirmation {
    pub(crate) request: RequestId,
    pub(crate) sent: Moment,
    pub(crate) lease: Option<Duration>,
    /// The part of it that is not the usual one.
    extension: Option<Nanos>,
    waiters: ConfirmWaiters,
}

impl Confirmations {
    /// Of a hold that was granted for this time by a request that was sent at `sent`.
    pub(crate) fn new((granted, sent): (Duration, Moment), lease: &Lease, config: &Config) -> Confirmations {
        let every = part_of(granted.min(config.watchdog)).max(SHORTEST_PERIOD);
        let current = Confirmation::PlannedFor(next_after(sent, every, lease), Purpose::Renew);
        let (waiting, gathers_until) = (ConfirmWaiters::default(), Moment::ZERO);
        let mut new = Confirmations { every: every.into(), current, waiting, extension: None, gathers_until };
        if lease.mode() == Mode::Exclusive {
            new.written(sent, config);
        }
        new
    }

    // ---- the next one ----

    /// It notifies these callers, and is sent now.
    pub(crate) fn confirm_for(&mut self, waiters: impl Into<ConfirmWaiters>, now: Moment) {
        self.waiting.append(waiters);
        self.hurry(now);
    }

    /// It is sent no later than this.
    pub(crate) fn hurry(&mut self, to: Moment) {
        if let Confirmation::PlannedFor(at, purpose) = &mut self.current {
            (*at, *purpose) = (to.min(*at), Purpose::Renew);
        }
    }

    /// The same, only to look whether the server has the hold.
    pub(crate) fn look_by(&mut self, to: Moment) {
        if let Confirmation::PlannedFor(at, purpose) = &mut self.current
            && to < *at
        {
            (*at, *purpose) = (to, Purpose::Look);
        }
    }

    /// A request that was sent at `sent` has written the hold. The server tells of changes by others only after the next confirmation.
    pub(crate) fn written(&mut self, sent: Moment, config: &Config) {
        if let Some(time) = config.first_confirmation {
            self.look_by((sent + time).floor(time / 16));
        }
    }

    /// True if the next one only looks: this lease was renewed not long ago.
    pub(crate) fn only_looks(&self, lease: &Lease, renewed: Duration, cx: &Cx<'_>) -> bool {
        let is_fresh = lease.end.since(cx.now) + Duration::from(self.every) / 4 >= cx.config.certain(renewed);
        is_fresh && matches!(self.current, Confirmation::PlannedFor(_, Purpose::Look))
    }

    pub(crate) fn extend(&mut self, lease: Option<Duration>) {
        self.extension = self.extension.max(lease.map(Nanos::of));
    }

    /// The client sends it after the other tasks have run.
    pub(crate) fn gather(&mut self, cx: &mut Cx<'_>) {
        self.gathers_until = cx.now + GATHERING;
        cx.actions.push(Action::Yield);
    }

    /// The first one of a row of turns waits in the same way, unless one is due already. If the row is released by then, that confirms them all.
    pub(crate) fn gather_row(&mut self, cx: &mut Cx<'_>) {
        if matches!(self.current, Confirmation::PlannedFor(at, _) if at > cx.now) {
            self.gather(cx);
        }
    }

    /// The other tasks have run.
    pub(crate) fn gathered(&mut self) {
        self.gathers_until = Moment::ZERO;
    }

    /// The time at which it is to be sent, if none is under way.
    pub(crate) fn planned(&self) -> Option<Moment> {
        match self.current {
            Confirmation::PlannedFor(at, _) => Some(at.max(self.gathers_until)),
            Confirmation::UnderWay(_) => None,
        }
    }

    /// It is sent with this request. Returns the lease that it requests: at least the one that it renews.
    pub(crate) fn send(&mut self, request: RequestId, renewed: Option<Duration>, now: Moment) -> Option<Duration> {
        let extension = self.extension.take();
        let lease = renewed.max(extension.map(Duration::from));
        let waiters = mem::take(&mut self.waiting);
        let confirmation = SentConfirmation { request, sent: now, lease, extension, waiters };
        self.current = Confirmation::UnderWay(Box::new(confirmation));
        lease
    }

    // ---- the one under way ----

    pub(crate) fn under_way(&self) -> Option<&SentConfirmation> {
        match &self.current {
            Confirmation::UnderWay(confirmation) => Some(confirmation),
            Confirmation::PlannedFor(..) => None,
        }
    }

    /// The time at which this request was sent, if it is the one under way.
    pub(crate) fn sent(&self, request: RequestId) -> Option<Moment> {
        self.under_way().filter(|confirmation| confirmation.request == request).map(|confirmation| confirmation.sent)
    }

    /// The request under way, if any, unless the next one waits until other tasks have run.
    pub(crate) fn calm_request(&self) -> Option<Option<RequestId>> {
        let request = self.under_way().map(|confirmation| confirmation.request);
        (self.gathers_until == Moment::ZERO).then_some(request)
    }

    /// The time at which the next one is sent if it finds the hold.
    pub(crate) fn after_reply(&self, lease: &Lease) -> Option<Moment> {
        self.under_way().map(|confirmation| next_after(confirmation.sent, self.every.into(), lease))
    }

    /// It has found the hold.
    pub(crate) fn confirmed(&mut self, lease: &Lease, cx: &mut Cx<'_>) {
        let Confirmation::UnderWay(confirmation) = &mut self.current else { return };
        confirmation.waiters.notify(cx, Outcome::Confirmed);
        let planned = self.after_reply(lease).filter(|_| self.waiting.is_empty());
        self.current = Confirmation::PlannedFor(planned.unwrap_or(cx.now), Purpose::Renew);
    }

    /// It has not found the hold.
    pub(crate) fn gone(&mut self) {
        self.recall();
        self.current = Confirmation::PlannedFor(Moment::FAR, Purpose::Renew);
    }

    /// It failed. Callers that wait need the retry soon; other retries must not burden a server in trouble.
    pub(crate) fn failed(&mut self, cx: &mut Cx<'_>, failure: Failure) {
        self.recall();
        if failure == Failure::Refused {
            self.waiting.notify(cx, Outcome::Refused);
            self.extension = None;
        }
        let is_urgent = failure == Failure::Unknown && !self.waiting.is_empty();
        let pause = if is_urgent { FIRST_PAUSE } else { Duration::from(self.every) / 10 };
        self.current = Confirmation::PlannedFor(cx.now + pause, Purpose::Renew);
    }

    /// The next one also does what callers wanted from it.
    fn recall(&mut self) {
        if let Confirmation::UnderWay(confirmation) = &mut self.current {
            let next = mem::replace(&mut self.waiting, mem::take(&mut confirmation.waiters));
            self.waiting.append(next);
            self.extension = self.extension.max(confirmation.extension.take());
        }
    }

    // ---- either of them ----

    /// The time at which the one under way was sent, or the next one is sent: now, or when it no longer waits for other tasks.
    pub(crate) fn sent_at(&self, now: Moment) -> Moment {
        match &self.current {
            Confirmation::PlannedFor(at, _) if *at <= self.gathers_until => self.gathers_until,
            Confirmation::PlannedFor(..) => now,
            Confirmation::UnderWay(confirmation) => confirmation.sent,
        }
    }

    /// The longest lease that the one under way requests, or that a caller wants from the next one.
    pub(crate) fn lease(&self) -> Option<Duration> {
        self.under_way().and_then(|confirmation| confirmation.lease).max(self.extension.map(Duration::from))
    }

    /// True if callers are about to be notified, which may soon want the lock again.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiting.is_empty() || self.under_way().is_some_and(|confirmation| !confirmation.waiters.is_empty())
    }

    pub(crate) fn take_waiters(&mut self) -> ConfirmWaiters {
        self.recall();
        mem::take(&mut self.waiting)
    }

    /// The hold is lost. The callers are notified as long as the server has it, and at once if it does not.
    pub(crate) fn lose(&mut self, loss: Loss, cx: &mut Cx<'_>) {
        if loss == Loss::Removed {
            self.take_waiters().notify(cx, Outcome::Lost(loss));
        }
        self.extension = None;
        if let Confirmation::UnderWay(confirmation) = &mut self.current {
            confirmation.extension = None; // its retry would request it again
        }
    }

    pub(crate) fn expire(&mut self, cx: &mut Cx<'_>) {
        if let Confirmation::UnderWay(confirmation) = &mut self.current {
            confirmation.waiters.expire(cx);
        }
        self.waiting.expire(cx);
    }

    /// The next time at which this needs attention.
    pub(crate) fn due(&self) -> Option<Moment> {
        let confirming = self.under_way().and_then(|confirmation| confirmation.waiters.due());
        earliest([self.planned(), confirming, self.waiting.due()])
    }
}

/// The time of the next one after one that was sent at `sent`, before other programs may have ended the lease.
fn next_after(sent: Moment, every: Duration, lease: &Lease) -> Moment {
    let every = every.min(part_of(lease.sure_until().since(sent))).max(SHORTEST_PERIOD);
    (sent + every).floor(every / 16)
}

/// The part of a lease after which it is renewed.
fn part_of(lease: Duration) -> Duration {
    lease / 10 * 3
}
