//! One id that the server has for this client: its lease, its confirmations, and the callers that wait for them.

use std::{mem, time::Duration};

use super::{
    lease::Lease,
    requests::{ConfirmWaiter, ConfirmWaiters, Failure},
    types::{
        Action, Config, Cx, HoldId, Loss, Mode, Moment, Nanos, Numbers, Outcome, Reply, Request, RequestId, Terms,
        Token, earliest,
    },
};

/// The shortest time between two confirmations.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
/// The longest that a confirmation waits for other tasks to run, so that it, or a release, serves them, too.
const GATHERING: Duration = Duration::from_millis(1);

/// From the grant until this client gives the id up. Several holders of this client may have it, one after the other or at once, without
/// a request. A caller that has left is then notified by the next request that is sent after that. If that request finds the id, the server
/// had it all the time, because an id that is gone never returns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ServerHold {
    pub(crate) id: HoldId,
    pub(crate) lease: Lease,
    pub(crate) token: Option<Token>,
    /// The count on the server, by its last reply.
    pub(crate) count: u32,
    /// The last request whose reply showed that the server had it.
    found_by: RequestId,
    /// Every request that can change this hold had a reply at its first try, and its count was never above one. So the server will
    /// not change it later.
    clean: bool,
    /// The time between two confirmations.
    every: Nanos,
    confirmation: Confirmation,
    /// Callers that the next confirmation notifies.
    waiting: ConfirmWaiters,
    /// The next confirmation requests at least this lease.
    extension: Option<Nanos>,
    /// A request about the count is under way.
    counting: Option<RequestId>,
    /// The client sends no confirmation before that, unless the other tasks have run.
    gathers_until: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Confirmation {
    PlannedFor(Moment),
    UnderWay(Box<SentConfirmation>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SentConfirmation {
    request: RequestId,
    sent: Moment,
    lease: Option<Duration>,
    /// The part of it that is not the usual one.
    extension: Option<Nanos>,
    waiters: ConfirmWaiters,
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
        let every = part_of(lease.min(cx.config.watchdog)).max(SHORTEST_PERIOD);
        let mut server = ServerHold {
            id,
            lease: Lease::new(mode, (lease, sent), cx),
            token,
            count: 1,
            found_by: request,
            clean: !in_doubt,
            every: every.into(),
            confirmation: Confirmation::PlannedFor(Moment::FAR),
            waiting: ConfirmWaiters::default(),
            extension: None,
            counting: None,
            gathers_until: Moment::ZERO,
        };
        server.confirmation = Confirmation::PlannedFor(server.next_after(sent));
        server
    }

    pub(crate) fn mode(&self) -> Mode {
        self.lease.mode()
    }

    /// True if this waiter may acquire it from its last owner, in memory.
    pub(crate) fn suits(&self, terms: &Terms) -> bool {
        let is_same = self.mode() == terms.mode && self.count == u32::from(terms.permits.max(1));
        is_same && terms.demand().is_for_one() && terms.accepts_any_hold()
    }

    /// True if no nested acquisition is left, by the last reply.
    pub(crate) fn is_last(&self) -> bool {
        self.count == 1
    }

    // ---- readers that join ----

    /// True if a request that is sent at `at` may admit readers of other owners.
    pub(crate) fn is_open(&self, at: Moment) -> bool {
        self.clean && self.lease.is_open(at)
    }

    /// True if the reply to a confirmation, under way, about to be sent or sent now, may admit readers of other owners.
    pub(crate) fn may_admit(&self, now: Moment) -> bool {
        match &self.confirmation {
            Confirmation::PlannedFor(at) if *at <= self.gathers_until => self.is_open(self.gathers_until),
            Confirmation::PlannedFor(_) => self.is_open(now),
            Confirmation::UnderWay(confirmation) => self.is_open(confirmation.sent),
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
        let requested = match &self.confirmation {
            Confirmation::UnderWay(confirmation) => confirmation.lease.max(self.extension.map(Duration::from)),
            Confirmation::PlannedFor(_) => self.extension.map(Duration::from),
        };
        let is_usual = requested.is_none_or(|lease| lease <= config.watchdog);
        is_usual && self.lease.is_long(now, config)
    }

    /// A request about the count was sent. `lease`: the lease that it requests.
    pub(crate) fn count_requested(&mut self, request: RequestId, lease: Option<Duration>, cx: &Cx<'_>) {
        (self.clean, self.counting) = (false, Some(request));
        self.lease.requested(lease, cx);
    }

    /// The server has this count, by a request that was sent at `sent`.
    pub(crate) fn counted(&mut self, count: u32, lease: Option<Duration>, sent: Moment, cx: &Cx<'_>) {
        self.count = count;
        self.lease.lasts(lease, sent, cx);
    }

    /// The time of the next confirmation after one that was sent at `sent`, before other programs may have ended the lease.
    fn next_after(&self, sent: Moment) -> Moment {
        let every = Duration::from(self.every).min(part_of(self.lease.sure_until().since(sent))).max(SHORTEST_PERIOD);
        (sent + every).floor(every / 16)
    }

    // ---- confirmations ----

    /// True if callers are about to be notified, which may soon want the lock again.
    pub(crate) fn has_waiters(&self) -> bool {
        let is_confirming = || self.under_way().is_some_and(|confirmation| !confirmation.waiters.is_empty());
        !self.waiting.is_empty() || is_confirming()
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
        self.extension = self.extension.max(lease.map(Nanos::of));
    }

    pub(crate) fn confirm_now(&mut self, now: Moment) {
        if let Confirmation::PlannedFor(at) = &mut self.confirmation {
            *at = now.min(*at);
        }
    }

    /// Sends a confirmation if it is due. `lease`: the lease that it renews.
    pub(crate) fn send_confirmation(&mut self, cx: &mut Cx<'_>, numbers: &mut Numbers, lease: Option<Duration>) {
        if !self.is_due(cx.now) {
            return;
        }
        let extension = self.extension.take();
        let lease = lease.max(extension.map(Duration::from));
        let request = numbers.request();
        self.lease.requested(lease, cx);
        let waiters = mem::take(&mut self.waiting);
        let sent = SentConfirmation { request, sent: cx.now, lease, extension, waiters };
        self.confirmation = Confirmation::UnderWay(Box::new(sent));
        let lease = lease.max(self.lease.to_repair(cx.now));
        let request_for = Request::Renew { id: self.id, mode: self.mode(), lease, count: self.count };
        cx.actions.push(Action::Send(request, request_for));
    }

    /// A lost hold is confirmed only for callers that wait.
    pub(crate) fn send_confirmation_of_lost(&mut self, cx: &mut Cx<'_>, numbers: &mut Numbers) {
        if !self.waiting.is_empty() {
            self.send_confirmation(cx, numbers, None);
        }
    }

    /// The time at which this confirmation was sent, if it is under way.
    pub(crate) fn sent(&self, request: RequestId) -> Option<Moment> {
        self.under_way().filter(|confirmation| confirmation.request == request).map(|confirmation| confirmation.sent)
    }

    /// The request under way, if it is a confirmation or none, and nothing waits until other tasks have run.
    pub(crate) fn calm_request(&self) -> Option<Option<RequestId>> {
        let is_calm = self.counting.is_none() && self.gathers_until == Moment::ZERO;
        is_calm.then(|| self.under_way().map(|confirmation| confirmation.request))
    }

    /// The client sends the next confirmation after the other tasks have run.
    pub(crate) fn gather(&mut self, cx: &mut Cx<'_>) {
        self.gathers_until = cx.now + GATHERING;
        cx.actions.push(Action::Yield);
    }

    /// The first confirmation of a row of turns waits in the same way, unless one is due already. If the row is released by then, that confirms them all.
    pub(crate) fn gather_row(&mut self, cx: &mut Cx<'_>) {
        if matches!(self.confirmation, Confirmation::PlannedFor(at) if at > cx.now) {
            self.gather(cx);
        }
    }

    /// The other tasks have run.
    pub(crate) fn gathered(&mut self) {
        self.gathers_until = Moment::ZERO;
    }

    /// The time at which the next confirmation is to be sent, if none is under way.
    fn planned(&self) -> Option<Moment> {
        match self.confirmation {
            Confirmation::PlannedFor(at) => Some(at.max(self.gathers_until)),
            Confirmation::UnderWay(_) => None,
        }
    }

    /// The time of the next confirmation if the one under way finds the hold.
    pub(crate) fn after_confirmation(&self) -> Option<Moment> {
        self.under_way().map(|confirmation| self.next_after(confirmation.sent))
    }

    /// A confirmation is to be sent.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.planned().is_some_and(|at| at <= now)
    }

    fn under_way(&self) -> Option<&SentConfirmation> {
        match &self.confirmation {
            Confirmation::UnderWay(confirmation) => Some(confirmation),
            Confirmation::PlannedFor(_) => None,
        }
    }

    /// The confirmation under way got a reply.
    pub(crate) fn confirmed(&mut self, cx: &mut Cx<'_>, reply: Reply) -> Confirmed {
        let Confirmation::UnderWay(confirmation) = &mut self.confirmation else { return Confirmed::Gone };
        let SentConfirmation { request, sent, lease, .. } = **confirmation;
        let mut waiters = mem::take(&mut confirmation.waiters);
        let Reply::Kept { admits, left } = reply else {
            self.confirmation = Confirmation::PlannedFor(Moment::FAR);
            waiters.append(mem::take(&mut self.waiting));
            self.waiting = waiters;
            return Confirmed::Gone;
        };
        self.lease.note_left(left, sent, cx);
        self.lease.lasts(lease, sent, cx);
        self.found_by = request;
        waiters.notify(cx, Outcome::Confirmed);
        let planned = self.next_after(sent);
        self.confirmation = Confirmation::PlannedFor(if self.waiting.is_empty() { planned } else { cx.now });
        if !admits {
            self.lease.close();
        } else if self.is_open(sent) {
            self.lease.admits(sent, cx.config);
        }
        Confirmed::Since(sent)
    }

    /// It failed. Callers that wait need the retry soon; other retries must not burden a server in trouble.
    pub(crate) fn confirmation_failed(&mut self, cx: &mut Cx<'_>, failure: Failure) {
        self.lease.close();
        let extension = self.under_way().and_then(|confirmation| confirmation.extension);
        self.extension = self.extension.max(extension); // a caller has requested it
        self.recall_waiters();
        if failure == Failure::Refused {
            self.waiting.notify(cx, Outcome::Refused);
            self.extension = None;
        }
        let is_urgent = failure == Failure::Unknown && !self.waiting.is_empty();
        let pause = if is_urgent { Duration::from_millis(10) } else { Duration::from(self.every) / 10 };
        self.confirmation = Confirmation::PlannedFor(cx.now + pause);
    }

    /// The next request notifies the callers that waited for the one under way, too.
    fn recall_waiters(&mut self) {
        if let Confirmation::UnderWay(confirmation) = &mut self.confirmation {
            let mut all = mem::take(&mut confirmation.waiters);
            all.append(mem::take(&mut self.waiting));
            self.waiting = all;
        }
    }

    pub(crate) fn expire_waiters(&mut self, cx: &mut Cx<'_>) {
        if let Confirmation::UnderWay(confirmation) = &mut self.confirmation {
            confirmation.waiters.expire(cx);
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
        self.lease.close();
        self.extension = None;
        if loss == Loss::Removed {
            self.notify_waiters(cx, Outcome::Lost(loss));
        }
    }

    /// The next time at which this needs attention while it is held.
    pub(crate) fn due(&self) -> Option<Moment> {
        earliest([self.planned(), self.waiters_due()])
    }

    /// The next time at which this needs attention while it is lost.
    pub(crate) fn due_for_waiters(&self) -> Option<Moment> {
        let planned = self.planned().filter(|_| !self.waiting.is_empty());
        earliest([planned, self.waiters_due()])
    }

    fn waiters_due(&self) -> Option<Moment> {
        let confirming = self.under_way().and_then(|confirmation| confirmation.waiters.due());
        earliest([confirming, self.waiting.due()])
    }

    // ---- its end ----

    /// Requests under way that could undo its release if the server ran them later. A renewal could only if the hold rests.
    pub(crate) fn before_release(&self, rests: bool) -> [Option<RequestId>; 2] {
        let confirming = self.under_way().filter(|_| rests).map(|confirmation| confirmation.request);
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

/// The part of a lease after which it is renewed.
fn part_of(lease: Duration) -> Duration {
    lease / 10 * 3
}
