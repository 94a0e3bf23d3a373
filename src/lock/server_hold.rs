//! One id that the server has for this client: its lease, its confirmations, and the callers that wait for them.

use std::{mem, time::Duration};

use super::{
    requests::{ConfirmWaiter, ConfirmWaiters, Failure},
    types::{Action, Config, Cx, HoldId, Loss, Mode, Moment, Numbers, Outcome, Reply, Request, RequestId, Token},
};

/// Readers may join a hold for this long after a request that would have admitted them. A writer waits at most this much longer.
const OPEN: Duration = Duration::from_millis(10);
const LONGEST_OPEN: Duration = Duration::from_millis(100);
/// A hold stays open for at most this many times as long.
const OPENINGS: u32 = 10;

/// From the grant until this client gives the id up. Several holders of this client may have it, one after the other or at once, without
/// a request. A caller that has left is then notified by the next request that is sent after that. If that request finds the id, the server
/// had it all the time, because an id that is gone never returns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ServerHold {
    pub(crate) id: HoldId,
    access: Access,
    pub(crate) token: Option<Token>,
    /// The count on the server, by its last reply.
    pub(crate) count: u32,
    /// The last request whose reply showed that the server had it.
    found_by: RequestId,
    /// The hold is certain until then.
    pub(crate) until: Moment,
    /// The last request by which the server had it was sent then.
    pub(crate) seen: Moment,
    /// After this time the server has nothing left of it.
    pub(crate) bound: Moment,
    /// The lock stays held until then, because of a `min_hold`.
    pub(crate) not_before: Moment,
    /// Every request that can change this hold had a reply at its first try, and its count was never above one. So the server will
    /// not change it later.
    clean: bool,
    /// The time between two confirmations.
    every: Duration,
    confirmation: Confirmation,
    /// Callers that the next confirmation notifies.
    waiting: ConfirmWaiters,
    /// The next confirmation requests at least this lease.
    extension: Option<Duration>,
    /// A request about the count is under way.
    counting: Option<RequestId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Access {
    Exclusive,
    /// Further readers may join it until then, and no later than `limit`.
    Shared {
        open_until: Moment,
        limit: Moment,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Confirmation {
    PlannedFor(Moment),
    UnderWay { request: RequestId, sent: Moment, lease: Option<Duration>, waiters: ConfirmWaiters },
}

/// The request that created a hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) id: HoldId,
    pub(crate) mode: Mode,
    pub(crate) token: Option<Token>,
    pub(crate) request: RequestId,
    pub(crate) sent: Moment,
    pub(crate) lease: Duration,
    /// An earlier try of the same request got no reply.
    pub(crate) in_doubt: bool,
}

/// The reply to a confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed {
    /// The server had the hold after the confirmation was sent.
    Since(Moment),
    Gone,
}

impl ServerHold {
    pub(crate) fn new(granted: Granted, cx: &Cx<'_>) -> ServerHold {
        let Granted { id, mode, token, request, sent, lease, in_doubt } = granted;
        let every = lease.min(cx.config.watchdog).mul_f64(0.3).max(Duration::from_millis(10));
        let access = match mode {
            Mode::Exclusive => Access::Exclusive,
            Mode::Shared => Access::Shared { open_until: Moment::ZERO, limit: sent + open(cx.config) * OPENINGS },
        };
        ServerHold {
            id,
            access,
            token,
            count: 1,
            found_by: request,
            until: sent + cx.config.certain(lease),
            seen: sent,
            bound: cx.gone_by(lease),
            not_before: Moment::ZERO,
            clean: !in_doubt,
            every,
            confirmation: Confirmation::PlannedFor((sent + every).floor(every / 16)),
            waiting: ConfirmWaiters::default(),
            extension: None,
            counting: None,
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.access {
            Access::Exclusive => Mode::Exclusive,
            Access::Shared { .. } => Mode::Shared,
        }
    }

    // ---- readers that join ----

    /// A request that was sent at `sent` would have admitted any reader.
    pub(crate) fn admits(&mut self, sent: Moment, config: &Config) {
        if let Access::Shared { open_until, limit } = &mut self.access {
            *open_until = (sent + open(config)).min(*limit);
        }
    }

    pub(crate) fn close(&mut self) {
        if let Access::Shared { open_until, limit } = &mut self.access {
            (*open_until, *limit) = (Moment::ZERO, Moment::ZERO);
        }
    }

    /// True if a request that is sent at `at` may admit readers of other owners.
    pub(crate) fn is_open(&self, at: Moment) -> bool {
        matches!(self.access, Access::Shared { open_until, .. } if at < open_until && self.clean)
    }

    /// True if the reply to a confirmation, under way or sent now, may admit readers of other owners.
    pub(crate) fn may_admit(&self, now: Moment) -> bool {
        match self.confirmation {
            Confirmation::PlannedFor(_) => self.is_open(now),
            Confirmation::UnderWay { sent, .. } => self.is_open(sent),
        }
    }

    // ---- certainty ----

    pub(crate) fn is_clean(&self) -> bool {
        self.clean
    }

    /// True if the server had it after all requests up to this one.
    pub(crate) fn is_found_since(&self, request: RequestId) -> bool {
        self.found_by > request
    }

    /// True if the lease is long enough for the next holder, and neither longer nor about to be made longer.
    pub(crate) fn has_long_lease(&self, now: Moment, config: &Config) -> bool {
        let requested = match self.confirmation {
            Confirmation::UnderWay { lease, .. } => lease.max(self.extension),
            Confirmation::PlannedFor(_) => self.extension,
        };
        let is_usual = requested.is_none_or(|lease| lease <= config.watchdog);
        is_usual && (config.watchdog / 2..=config.watchdog).contains(&self.until.since(now))
    }

    pub(crate) fn keep_until(&mut self, min_hold: Option<Duration>, now: Moment) {
        self.not_before = self.not_before.max(min_hold.map_or(Moment::ZERO, |min| now + min));
    }

    /// A request about the count was sent. `lease`: the lease that it requests.
    pub(crate) fn count_requested(&mut self, request: RequestId, lease: Option<Duration>, cx: &Cx<'_>) {
        (self.clean, self.counting) = (false, Some(request));
        self.bound = self.bound.max(lease.map_or(Moment::ZERO, |lease| cx.gone_by(lease)));
    }

    /// The server has this count, by a request that was sent at `sent`.
    pub(crate) fn counted(&mut self, count: u32, lease: Option<Duration>, sent: Moment, cx: &Cx<'_>) {
        self.count = count;
        self.lasts(lease, sent, cx);
    }

    fn lasts(&mut self, lease: Option<Duration>, sent: Moment, cx: &Cx<'_>) {
        self.seen = self.seen.max(sent);
        if let Some(lease) = lease {
            self.until = self.until.max(sent + cx.config.certain(lease));
            self.bound = self.bound.max(cx.gone_by(lease));
        }
    }

    // ---- confirmations ----

    /// True if callers are about to be notified, which may soon want the lock again.
    pub(crate) fn has_waiters(&self) -> bool {
        let is_confirming = matches!(&self.confirmation, Confirmation::UnderWay { waiters, .. } if !waiters.is_empty());
        !self.waiting.is_empty() || is_confirming
    }

    /// The next request notifies this caller. Without a caller it only confirms the hold.
    pub(crate) fn confirm_for(&mut self, waiter: Option<ConfirmWaiter>, now: Moment) {
        self.waiting.push(waiter);
        self.confirm_now(now);
    }

    pub(crate) fn confirm_for_all(&mut self, waiters: ConfirmWaiters, now: Moment) {
        self.waiting.append(waiters);
        self.confirm_now(now);
    }

    pub(crate) fn extend(&mut self, lease: Option<Duration>) {
        self.extension = self.extension.max(lease);
    }

    pub(crate) fn confirm_now(&mut self, now: Moment) {
        if let Confirmation::PlannedFor(at) = &mut self.confirmation {
            *at = now.min(*at);
        }
    }

    /// Sends a confirmation if it is due. `lease`: the lease that it renews. A lost hold is confirmed only for callers that wait.
    pub(crate) fn send_confirmation(&mut self, cx: &mut Cx<'_>, numbers: &mut Numbers, lease: Option<Duration>) {
        let Confirmation::PlannedFor(at) = self.confirmation else { return };
        if at > cx.now {
            return;
        }
        let lease = lease.max(self.extension.take());
        let request = numbers.request();
        self.bound = self.bound.max(lease.map_or(Moment::ZERO, |lease| cx.gone_by(lease)));
        let waiters = mem::take(&mut self.waiting);
        self.confirmation = Confirmation::UnderWay { request, sent: cx.now, lease, waiters };
        cx.actions.push(Action::Send(request, Request::Renew { id: self.id, mode: self.mode(), lease }));
    }

    pub(crate) fn send_confirmation_of_lost(&mut self, cx: &mut Cx<'_>, numbers: &mut Numbers) {
        if !self.waiting.is_empty() {
            self.send_confirmation(cx, numbers, None);
        }
    }

    /// The time at which this confirmation was sent, if it is under way.
    pub(crate) fn sent(&self, request: RequestId) -> Option<Moment> {
        match self.confirmation {
            Confirmation::UnderWay { request: under_way, sent, .. } if under_way == request => Some(sent),
            _ => None,
        }
    }

    /// The confirmation under way got a reply.
    pub(crate) fn confirmed(&mut self, cx: &mut Cx<'_>, reply: Reply) -> Confirmed {
        let Confirmation::UnderWay { request, sent, lease, waiters } = &mut self.confirmation else {
            return Confirmed::Gone;
        };
        let (request, sent, lease, mut waiters) = (*request, *sent, *lease, mem::take(waiters));
        let Reply::Kept { admits } = reply else {
            self.confirmation = Confirmation::PlannedFor(Moment::FAR);
            waiters.append(mem::take(&mut self.waiting));
            self.waiting = waiters;
            return Confirmed::Gone;
        };
        self.lasts(lease, sent, cx);
        self.found_by = request;
        waiters.notify(cx, Outcome::Confirmed);
        let planned = (sent + self.every).floor(self.every / 16);
        self.confirmation = Confirmation::PlannedFor(if self.waiting.is_empty() { planned } else { cx.now });
        if !admits {
            self.close();
        } else if self.is_open(sent) {
            self.admits(sent, cx.config);
        }
        Confirmed::Since(sent)
    }

    /// It failed. Callers that wait need the retry soon; other retries must not burden a server in trouble.
    pub(crate) fn confirmation_failed(&mut self, cx: &mut Cx<'_>, failure: Failure) {
        self.close();
        if let Confirmation::UnderWay { lease, waiters, .. } = &self.confirmation
            && !waiters.is_empty()
        {
            self.extension = self.extension.max(*lease); // a caller has requested it
        }
        self.recall_waiters();
        if failure == Failure::Refused {
            self.waiting.notify(cx, Outcome::Refused);
            self.extension = None;
        }
        let is_urgent = failure == Failure::Unknown && !self.waiting.is_empty();
        let pause = if is_urgent { Duration::from_millis(10) } else { self.every / 10 };
        self.confirmation = Confirmation::PlannedFor(cx.now + pause);
    }

    /// The next request notifies the callers that waited for the one under way, too.
    fn recall_waiters(&mut self) {
        if let Confirmation::UnderWay { waiters, .. } = &mut self.confirmation {
            let mut all = mem::take(waiters);
            all.append(mem::take(&mut self.waiting));
            self.waiting = all;
        }
    }

    pub(crate) fn expire_waiters(&mut self, cx: &mut Cx<'_>) {
        if let Confirmation::UnderWay { waiters, .. } = &mut self.confirmation {
            waiters.expire(cx);
        }
        self.waiting.expire(cx);
    }

    pub(crate) fn notify_waiters(&mut self, cx: &mut Cx<'_>, outcome: Outcome) {
        self.take_waiters().notify(cx, outcome);
    }

    pub(crate) fn take_waiters(&mut self) -> ConfirmWaiters {
        self.recall_waiters();
        mem::take(&mut self.waiting)
    }

    /// Its callers are notified as long as the server has the hold, and at once if it does not.
    pub(crate) fn lose(&mut self, loss: Loss, cx: &mut Cx<'_>) {
        self.close();
        if loss == Loss::Removed {
            self.notify_waiters(cx, Outcome::Lost(loss));
        }
    }

    /// The next time at which this needs attention while it is held.
    pub(crate) fn due(&self) -> Option<Moment> {
        let confirmation = match self.confirmation {
            Confirmation::PlannedFor(at) => Some(at),
            Confirmation::UnderWay { .. } => None,
        };
        [confirmation, self.waiters_due()].into_iter().flatten().min()
    }

    /// The same for a lost hold.
    pub(crate) fn due_for_waiters(&self) -> Option<Moment> {
        match self.confirmation {
            Confirmation::PlannedFor(at) if !self.waiting.is_empty() => Some(at.min(self.waiters_due()?)),
            _ => self.waiters_due(),
        }
    }

    fn waiters_due(&self) -> Option<Moment> {
        let confirming = match &self.confirmation {
            Confirmation::UnderWay { waiters, .. } => waiters.due(),
            Confirmation::PlannedFor(_) => None,
        };
        [confirming, self.waiting.due()].into_iter().flatten().min()
    }

    // ---- its end ----

    /// Requests under way that could undo its release if the server ran them later. A renewal could only if the hold rests.
    pub(crate) fn before_release(&self, rests: bool) -> [Option<RequestId>; 2] {
        let confirming = match self.confirmation {
            Confirmation::UnderWay { request, .. } if rests => Some(request),
            _ => None,
        };
        [self.counting, confirming]
    }

    /// This request ended, whatever its result.
    pub(crate) fn request_ended(&mut self, request: RequestId) {
        self.counting = self.counting.filter(|under_way| *under_way != request);
    }
}

/// What callers learn if the server does not have an id that was certain until `until` when they called. After that time the lease may have
/// expired between their call and the request, so nobody can know.
pub(crate) fn not_found(until: Moment, now: Moment) -> Outcome {
    if until <= now { Outcome::Unconfirmed } else { Outcome::Lost(Loss::Removed) }
}

fn open(config: &Config) -> Duration {
    (config.round_trip * 4).clamp(OPEN, LONGEST_OPEN)
}
