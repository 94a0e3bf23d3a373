//! Ids that this client gives up: released for all, or handed over to the next waiter by a request.

use std::time::Duration;

use super::{
    hold::Hold,
    requests::{ConfirmWaiters, Failure, PendingRequest},
    server_hold::{ServerHold, not_found},
    types::{Action, Cx, HoldId, Loss, Mode, Moment, Numbers, Outcome, Request, RequestId, earliest},
};

/// A mark on the server lasts for this long.
const MARK: Duration = Duration::from_secs(3);
/// A place in a queue on the server lasts for this long. A dead one beside JVMs lasts longer.
const PLACE: Duration = Duration::from_secs(30);

/// An id that no owner here holds, until the server has nothing left of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PendingRelease {
    id: HoldId,
    mode: Mode,
    /// The time at which this client began to give the id up.
    since: Moment,
    /// The server must run these requests before the release.
    before: [Option<RequestId>; 2],
    /// It was certain until then. Zero: perhaps it was not granted.
    until: Moment,
    /// After this time the server has nothing left of it.
    bound: Moment,
    /// The lock stays held until then.
    not_before: Moment,
    request: PendingRequest,
    waiters: ConfirmWaiters,
    /// The last guard of a hold that a caller has seen has left, and the reply shows whether the hold was lost before.
    ends_hold: bool,
}

impl PendingRelease {
    pub(crate) fn new(mut server: ServerHold, ends_hold: bool, cx: &Cx<'_>) -> PendingRelease {
        PendingRelease {
            id: server.id,
            mode: server.mode(),
            since: cx.now,
            before: server.before_release(server.not_before > cx.now),
            until: server.until,
            bound: server.bound,
            not_before: server.not_before,
            request: PendingRequest::new(cx.now),
            waiters: server.take_waiters(),
            ends_hold,
        }
    }

    /// Of a request for a new hold that no waiter wants anymore. The server may have granted it, or may keep the mark of the waiter.
    pub(crate) fn of_attempt(id: HoldId, mode: Mode, lease: Duration, cx: &Cx<'_>) -> PendingRelease {
        let request = PendingRequest::new(cx.now);
        let bound = cx.gone_by(lease.max(MARK));
        let (before, waiters) = ([None; 2], ConfirmWaiters::default());
        PendingRelease {
            id,
            mode,
            since: cx.now,
            before,
            until: Moment::ZERO,
            bound,
            not_before: Moment::ZERO,
            request,
            waiters,
            ends_hold: false,
        }
    }

    /// The lock stays held until then.
    pub(crate) fn resting_until(self, not_before: Moment) -> PendingRelease {
        PendingRelease { not_before, ..self }
    }

    /// Of a place in a queue on the server, and of the hold that it may have become. `before`: the server must run this request first,
    /// because it could create the place again. `in_doubt`: an earlier try of that request may have created it.
    pub(crate) fn of_place(
        id: HoldId,
        lease: Duration,
        (before, in_doubt): (Option<RequestId>, bool),
        cx: &Cx<'_>,
    ) -> PendingRelease {
        let release = PendingRelease::of_attempt(id, Mode::Exclusive, lease.max(PLACE), cx);
        PendingRelease { before: [before, None], request: PendingRequest::in_doubt(cx.now, in_doubt), ..release }
    }

    /// Of an id that the server no longer has: this notifies the waiter behind one that did not come.
    pub(crate) fn again(id: HoldId, at: Moment, cx: &Cx<'_>) -> PendingRelease {
        PendingRelease { request: PendingRequest::new(at), ..PendingRelease::of_place(id, PLACE, (None, false), cx) }
    }

    /// The release is under way, and nothing else is to be done.
    pub(crate) fn calm_request(&self) -> Option<RequestId> {
        self.request.under_way().filter(|_| self.before == [None; 2])
    }

    /// The request that this waits for.
    pub(crate) fn awaited(&self) -> Option<RequestId> {
        self.before[0].or(self.request.under_way())
    }

    /// Sends the release if it is due.
    pub(crate) fn send(&mut self, cx: &mut Cx<'_>, numbers: &mut Numbers) {
        if self.before == [None; 2] && self.request.is_due(cx.now) {
            let rest = self.not_before.since(cx.now);
            let granted = self.until > Moment::ZERO;
            let request = Request::Release { id: self.id, mode: self.mode, count: 0, rest, granted };
            self.request.send(cx, numbers, request);
        }
    }

    pub(crate) fn id(&self) -> HoldId {
        self.id
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn bound(&self) -> Moment {
        self.bound
    }

    /// A request for a shared hold may keep an exclusive one of the same client on the server until then.
    pub(crate) fn is_kept_until(&mut self, bound: Moment) {
        if self.mode == Mode::Exclusive {
            self.bound = self.bound.max(bound);
        }
    }

    pub(crate) fn sent(&self, request: RequestId) -> Option<Moment> {
        self.request.sent(request)
    }

    /// The pause before the next try. It grows with each failure.
    pub(crate) fn pause(&self) -> Duration {
        self.request.pause()
    }

    /// An earlier request may have reached its id.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.request.is_in_doubt()
    }

    /// No reply yet, and no failure.
    pub(crate) fn is_at_first_try(&self) -> bool {
        self.request.silent_since().is_none()
    }

    /// The time at which it began, if there is no reply yet, and no failure.
    pub(crate) fn first_try(&self) -> Option<Moment> {
        self.is_at_first_try().then_some(self.since)
    }

    /// The server replied. `found`: it had the id.
    pub(crate) fn ended(mut self, found: bool, cx: &mut Cx<'_>) {
        // If it did not after a try without a reply: that try worked, or the lease had ended. Nobody can know.
        let was_held = found || self.request.is_in_doubt();
        let outcome = if was_held { Outcome::Confirmed } else { not_found(self.until, cx.now) };
        self.waiters.notify(cx, outcome);
        self.ends(if let Outcome::Lost(loss) = outcome { Some(loss) } else { None }, cx);
    }

    fn ends(&self, loss: Option<Loss>, cx: &mut Cx<'_>) {
        if self.ends_hold {
            cx.actions.push(Action::Ended(self.mode, loss));
        }
    }

    /// The callers learn of a refusal. The release is tried again.
    pub(crate) fn failed(&mut self, cx: &mut Cx<'_>, failure: Failure) {
        self.request.failed(cx.now, failure);
        if failure == Failure::Refused {
            self.waiters.notify(cx, Outcome::Refused);
        }
    }

    /// This request ended, whatever its result.
    pub(crate) fn request_ended(&mut self, request: RequestId) {
        self.before.iter_mut().filter(|before| **before == Some(request)).for_each(|before| *before = None);
    }

    /// False once the server has nothing left of it.
    pub(crate) fn expire(&mut self, cx: &mut Cx<'_>) -> bool {
        self.waiters.expire(cx);
        let is_over = self.bound <= cx.now && !self.request.is_under_way() && !self.is_at_first_try();
        if is_over {
            self.waiters.notify(cx, Outcome::Unconfirmed);
            self.ends(None, cx);
        }
        !is_over
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        let request = self.request.due().filter(|_| self.before == [None; 2]);
        earliest([request, self.waiters.due()])
    }
}

/// An exclusive hold moves to a new id, for the waiter that is first in the queue at the reply.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct HandOver {
    pub(crate) from: HoldId,
    pub(crate) to: HoldId,
    pub(crate) lease: Duration,
    /// `from` was certain until then.
    pub(crate) until: Moment,
    bound: Moment,
    request: PendingRequest,
    waiters: ConfirmWaiters,
    /// The same as of a release.
    pub(crate) ends_hold: bool,
}

impl HandOver {
    pub(crate) fn new(mut server: ServerHold, hold: &Hold, (to, lease): (HoldId, Duration), cx: &Cx<'_>) -> HandOver {
        let ends_hold = hold.is_shown();
        let bound = server.bound.max(cx.gone_by(lease));
        let (waiters, until) = (server.take_waiters(), server.until);
        HandOver { from: server.id, to, lease, until, bound, request: PendingRequest::new(cx.now), waiters, ends_hold }
    }

    pub(crate) fn send(&mut self, cx: &mut Cx<'_>, numbers: &mut Numbers) {
        if self.request.is_due(cx.now) {
            self.bound = cx.gone_by(self.lease).max(self.bound);
            self.request.send(cx, numbers, Request::HandOver { id: self.from, to: self.to, lease: self.lease });
        }
    }

    pub(crate) fn request(&self) -> &PendingRequest {
        &self.request
    }

    pub(crate) fn failed(&mut self, now: Moment, failure: Failure) {
        self.request.failed(now, failure);
    }

    pub(crate) fn waiters(&mut self) -> &mut ConfirmWaiters {
        &mut self.waiters
    }

    /// The server refused it. Both ids are released, because an earlier try may have worked.
    pub(crate) fn releases(self, cx: &Cx<'_>) -> impl Iterator<Item = PendingRelease> {
        let in_doubt = self.request.is_in_doubt();
        let release = |id, waiters| PendingRelease {
            id,
            since: cx.now,
            mode: Mode::Exclusive,
            before: [None; 2],
            until: self.until,
            bound: self.bound,
            not_before: Moment::ZERO,
            request: PendingRequest::in_doubt(cx.now, in_doubt && id == self.from),
            waiters,
            ends_hold: self.ends_hold && id == self.from,
        };
        let from = release(self.from, self.waiters);
        let to = in_doubt.then(|| release(self.to, ConfirmWaiters::default()));
        std::iter::once(from).chain(to)
    }

    /// False once the server has nothing left of it.
    pub(crate) fn expire(&mut self, cx: &mut Cx<'_>) -> bool {
        self.waiters.expire(cx);
        let is_over = self.bound <= cx.now && !self.request.is_under_way();
        if is_over {
            self.waiters.notify(cx, Outcome::Unconfirmed);
            self.ends(None, cx);
        }
        !is_over
    }

    pub(crate) fn ends(&self, loss: Option<Loss>, cx: &mut Cx<'_>) {
        if self.ends_hold {
            cx.actions.push(Action::Ended(Mode::Exclusive, loss));
        }
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        earliest([self.request.due(), self.waiters.due()])
    }
}
