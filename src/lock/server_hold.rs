//! One id that the server has for this client: its lease, its confirmations, and the callers that wait for them.

use std::{mem, time::Duration};

use super::{
    requests::{ConfirmWaiter, ConfirmWaiters, Failure},
    types::{
        Action, Config, Cx, HoldId, Loss, Mode, Moment, Nanos, Numbers, Outcome, Reply, Request, RequestId, Terms,
        Token, earliest,
    },
};

/// Readers may join a hold for this long after a request that would have admitted them. A writer waits at most this much longer.
const OPEN: Duration = Duration::from_millis(10);
const LONGEST_OPEN: Duration = Duration::from_millis(100);
/// The shortest time between two confirmations.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
/// The longest that a confirmation waits for other tasks to run, so that it, or a release, serves them, too.
const GATHERING: Duration = Duration::from_millis(1);
/// A hold stays open for at most this many times as long.
const OPENINGS: u32 = 10;

/// From the grant until this client gives the id up. Several holders of this client may have it, one after the other or at once, without
/// a request. A caller that has left is then notified by the next request that is sent after that. If that request finds the id, the server
/// had it all the time, because an id that is gone never returns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ServerHold {
    pub(crate) id: HoldId,
    /// `None`: it is exclusive.
    sharing: Option<Box<Sharing>>,
    pub(crate) token: Option<Token>,
    /// The count on the server, by its last reply.
    pub(crate) count: u32,
    /// The last request whose reply showed that the server had it.
    found_by: RequestId,
    /// The hold is certain until then.
    pub(crate) certain_until: Moment,
    /// The lease ends then, by the clock of this client, if no other program shortens it.
    lease_end: Moment,
    /// The last request by which the server had it was sent then.
    pub(crate) last_confirmed: Moment,
    /// After this time the server has nothing left of it.
    pub(crate) gone_by: Moment,
    /// The lock stays held until then, because of a `min_hold`.
    pub(crate) not_before: Moment,
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

/// What only shared holds have. In a box, because most holds are exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Sharing {
    /// Further readers may join it until then, and no later than `limit`.
    open_until: Moment,
    limit: Moment,
    /// No other program has ended the lease before that.
    sure_until: Moment,
}

impl Sharing {
    fn new(sent: Moment, cx: &Cx<'_>) -> Sharing {
        let limit = if cx.rules.waits.are_for_permits() { Moment::ZERO } else { sent + open(cx.config) * OPENINGS };
        let sure_until = cx.rules.sure.map_or(Moment::FAR, |sure| sent + sure);
        Sharing { open_until: Moment::ZERO, limit, sure_until }
    }
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
            sharing: (mode == Mode::Shared).then(|| Box::new(Sharing::new(sent, cx))),
            token,
            count: 1,
            found_by: request,
            certain_until: Moment::ZERO,
            lease_end: Moment::ZERO,
            last_confirmed: sent,
            gone_by: cx.gone_by(lease),
            not_before: Moment::ZERO,
            clean: !in_doubt,
            every: every.into(),
            confirmation: Confirmation::PlannedFor(Moment::FAR),
            waiting: ConfirmWaiters::default(),
            extension: None,
            counting: None,
            gathers_until: Moment::ZERO,
        };
        server.lasts(Some(lease), sent, cx);
        server.confirmation = Confirmation::PlannedFor(server.next_after(sent));
        server
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.sharing.is_some() { Mode::Shared } else { Mode::Exclusive }
    }

    /// True if this waiter may acquire it from its last owner, in memory.
    pub(crate) fn suits(&self, terms: &Terms) -> bool {
        let is_same = self.mode() == terms.mode && self.count == u32::from(terms.permits.max(1));
        is_same && terms.has_own_hold() && terms.accepts_any_hold()
    }

    /// True if no nested acquisition is left, by the last reply.
    pub(crate) fn is_last(&self) -> bool {
        self.count == 1
    }

    // ---- readers that join ----

    /// A request that was sent at `sent` would have admitted any reader.
    pub(crate) fn admits(&mut self, sent: Moment, config: &Config) {
        if let Some(sharing) = self.sharing.as_mut().filter(|_| config.handovers > 0) {
            sharing.open_until = (sent + open(config)).min(sharing.limit);
        }
    }

    pub(crate) fn close(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            (sharing.open_until, sharing.limit) = (Moment::ZERO, Moment::ZERO);
        }
    }

    /// True if a request that is sent at `at` may admit readers of other owners.
    pub(crate) fn is_open(&self, at: Moment) -> bool {
        self.clean && self.sharing.as_ref().is_some_and(|sharing| at < sharing.open_until)
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
        is_usual && (config.watchdog / 2..=config.watchdog).contains(&self.lease_end.since(now))
    }

    pub(crate) fn keep_until(&mut self, min_hold: Option<Duration>, now: Moment) {
        self.not_before = self.not_before.max(min_hold.map_or(Moment::ZERO, |min| now + min));
    }

    /// A request about the count was sent. `lease`: the lease that it requests.
    pub(crate) fn count_requested(&mut self, request: RequestId, lease: Option<Duration>, cx: &Cx<'_>) {
        (self.clean, self.counting) = (false, Some(request));
        self.gone_by = self.gone_by.max(lease.map_or(Moment::ZERO, |lease| cx.gone_by(lease)));
    }

    /// The server has this count, by a request that was sent at `sent`.
    pub(crate) fn counted(&mut self, count: u32, lease: Option<Duration>, sent: Moment, cx: &Cx<'_>) {
        self.count = count;
        self.lasts(lease, sent, cx);
    }

    fn lasts(&mut self, lease: Option<Duration>, sent: Moment, cx: &Cx<'_>) {
        self.last_confirmed = self.last_confirmed.max(sent);
        if let Some(lease) = lease {
            self.lease_end = self.lease_end.max(sent + cx.config.certain(lease));
            self.gone_by = self.gone_by.max(cx.gone_by(lease));
        }
        self.certain_until = self.lease_end.min(self.sure_until());
    }

    /// No other program has ended the lease before that.
    fn sure_until(&self) -> Moment {
        self.sharing.as_ref().map_or(Moment::FAR, |sharing| sharing.sure_until)
    }

    /// The lease ends then, unless another program has shortened it.
    pub(crate) fn lease_end(&self) -> Moment {
        self.lease_end
    }

    /// The server had this much left of the lease of a shared hold when it ran a request that was sent at `sent`. If that is less than this
    /// client had confirmed, another program has shortened the lease, and may do so again at once. But the server may have run the request
    /// at any time between `sent` and now, and only proof makes the time shorter that a holder was told.
    fn note_left(&mut self, left: Option<Duration>, sent: Moment, cx: &Cx<'_>) {
        let (Some(usual), Some(sharing)) = (cx.rules.sure, &mut self.sharing) else { return };
        let time = |left| usual.min(cx.config.certain(left));
        sharing.sure_until = match left {
            Some(left) if cx.now + left < self.lease_end => sent + time(left),
            Some(left) if sent + left < self.lease_end => self.certain_until.max(sent + time(left)),
            _ => sharing.sure_until.max(sent + usual),
        };
    }

    /// The time of the next confirmation after one that was sent at `sent`, before other programs may have ended the lease.
    fn next_after(&self, sent: Moment) -> Moment {
        let every = Duration::from(self.every).min(part_of(self.sure_until().since(sent))).max(SHORTEST_PERIOD);
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
        self.gone_by = self.gone_by.max(lease.map_or(Moment::ZERO, |lease| cx.gone_by(lease)));
        let waiters = mem::take(&mut self.waiting);
        let sent = SentConfirmation { request, sent: cx.now, lease, extension, waiters };
        self.confirmation = Confirmation::UnderWay(Box::new(sent));
        let lease = lease.max(self.to_repair(cx.now));
        let request_for = Request::Renew { id: self.id, mode: self.mode(), lease, count: self.count };
        cx.actions.push(Action::Send(request, request_for));
    }

    /// Another program may have shortened the lease of a shared hold. Each confirmation requests what is left of it.
    fn to_repair(&self, now: Moment) -> Option<Duration> {
        Some(self.lease_end.since(now)).filter(|left| self.mode() == Mode::Shared && !left.is_zero())
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
        self.note_left(left, sent, cx);
        self.lasts(lease, sent, cx);
        self.found_by = request;
        waiters.notify(cx, Outcome::Confirmed);
        let planned = self.next_after(sent);
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
        self.close();
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

    /// False once the server has nothing left of it.
    pub(crate) fn may_be_there(&self, shared_until: Moment, now: Moment) -> bool {
        self.gone_by.max(self.kept_until(shared_until)) > now
    }

    /// The server may have it until then. `shared_until`: shared holds beside an exclusive one have extended the lease of both.
    pub(crate) fn kept_until(&self, shared_until: Moment) -> Moment {
        if self.sharing.is_some() { self.certain_until } else { shared_until }
    }

    /// The time at which the owners of a lost hold no longer need it, if the server may have it for longer: a hold beside it has extended the
    /// lease of both.
    pub(crate) fn spent(&self, has_held: bool, shared_until: Moment) -> Option<Moment> {
        (has_held || self.certain_until < self.kept_until(shared_until)).then_some(self.certain_until)
    }

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

fn open(config: &Config) -> Duration {
    (config.round_trip * 4).clamp(OPEN, LONGEST_OPEN)
}
