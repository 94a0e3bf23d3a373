//! Ids that this client gives up: released for all, or handed over to the next waiter by a request.

use std::time::Duration;

use super::{
    lease::Lease,
    requests::{ConfirmWaiter, ConfirmWaiters, Failure, PendingRequest},
    server_hold::{Granted, ServerHold, was_held},
    types::{Action, Cx, HoldId, Mode, Moment, Numbers, Outcome, Reply, Request, RequestId, earliest},
};

/// A mark on the server lasts for this long, see `mark_turn` in `rwlock.lua` and `permits.lua`.
const MARK: Duration = Duration::from_secs(3);
/// A place in a queue on the server lasts for this long. A dead one beside JVMs lasts longer.
const PLACE: Duration = Duration::from_secs(30);

/// An id that no owner here holds, until the server has nothing left of it. It is released for all, or moves to the next waiter's id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PendingRelease {
    id: HoldId,
    pub(crate) lease: Lease,
    /// The time at which this client began to give the id up.
    since: Moment,
    /// The server must run these requests before the release.
    before: [Option<RequestId>; 2],
    request: PendingRequest,
    waiters: ConfirmWaiters,
    /// The last guard of a hold that a caller has seen has left, and the reply shows whether the hold was lost before.
    ends_hold: bool,
    hand_over: Option<NextHold>,
}

/// The id of the waiter that is first in the queue at the reply, and its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NextHold {
    pub(crate) id: HoldId,
    pub(crate) lease: Duration,
}

/// What the reply to a hand-over says.
#[derive(Debug)]
pub(crate) enum HandedOver {
    /// The next hold exists.
    Granted(Granted),
    Gone,
    /// It is released instead, and perhaps the next hold, too: an earlier try may have created it.
    Released(Option<PendingRelease>),
}

impl PendingRelease {
    pub(crate) fn new(mut server: ServerHold, ends_hold: bool, cx: &Cx<'_>) -> PendingRelease {
        PendingRelease {
            before: server.before_release(server.lease.not_before > cx.now),
            waiters: server.confirmations.take_waiters(),
            ends_hold,
            ..PendingRelease::of(server.id, server.lease, cx)
        }
    }

    fn of(id: HoldId, lease: Lease, cx: &Cx<'_>) -> PendingRelease {
        let (request, waiters) = (PendingRequest::new(cx.now), ConfirmWaiters::default());
        PendingRelease {
            id,
            lease,
            since: cx.now,
            before: [None; 2],
            request,
            waiters,
            ends_hold: false,
            hand_over: None,
        }
    }

    /// Of a request for a new hold that no waiter wants anymore. The server may have granted it, or may keep the mark of the waiter.
    pub(crate) fn of_attempt(id: HoldId, mode: Mode, lease: Duration, cx: &Cx<'_>) -> PendingRelease {
        PendingRelease::of(id, Lease::requested_only(mode, lease.max(MARK), cx), cx)
    }

    /// It moves to the next waiter's id. Its reply notifies this caller.
    pub(crate) fn handing_over(mut self, next: NextHold, waiter: Option<ConfirmWaiter>) -> PendingRelease {
        self.waiters.append(waiter);
        PendingRelease { hand_over: Some(next), ..self }
    }

    pub(crate) fn is_handing_over(&self) -> bool {
        self.hand_over.is_some()
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
        if self.before != [None; 2] || !self.request.is_due(cx.now) {
            return;
        }
        let request = match self.hand_over {
            Some(NextHold { id: to, lease }) => {
                self.lease.requested(Some(lease), cx);
                Request::HandOver { id: self.id, to, lease }
            }
            None => {
                // Until then the server knows whether it has run an earlier try, also of a kind without leases.
                let is_remembered = cx.now < self.since + cx.config.outage_timeout;
                let rest = self.lease.not_before.since(cx.now);
                let granted = self.lease.certain_until > Moment::ZERO && is_remembered;
                Request::Release { id: self.id, mode: self.mode(), count: 0, rest, granted }
            }
        };
        self.request.send(cx, numbers, request);
    }

    pub(crate) fn id(&self) -> HoldId {
        self.id
    }

    pub(crate) fn has_id(&self, id: HoldId) -> bool {
        self.id == id || self.hand_over.is_some_and(|next| next.id == id)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.lease.mode()
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

    /// The server has not replied since then, if a try has failed.
    pub(crate) fn silent_since(&self) -> Option<Moment> {
        self.request.silent_since()
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
        let outcome = was_held(found, self.request.is_in_doubt(), self.lease.certain_until, cx.now);
        self.end(outcome, cx);
    }

    fn end(&mut self, outcome: Outcome, cx: &mut Cx<'_>) {
        self.waiters.notify(cx, outcome);
        if self.ends_hold {
            let loss = if let Outcome::Lost(loss) = outcome { Some(loss) } else { None };
            cx.actions.push(Action::Ended(self.mode(), loss));
        }
    }

    /// The server replied to the request to hand it over.
    pub(crate) fn handed_over(&mut self, request: RequestId, reply: Reply, cx: &mut Cx<'_>) -> HandedOver {
        let in_doubt = self.request.is_in_doubt();
        match (reply, self.hand_over, self.request.sent(request)) {
            (Reply::Handed(token), Some(NextHold { id, lease }), Some(sent)) => {
                self.end(Outcome::Confirmed, cx);
                HandedOver::Granted(Granted { id, mode: Mode::Exclusive, token, request, sent, lease, in_doubt })
            }
            (Reply::Gone, ..) => {
                self.end(was_held(false, in_doubt, self.lease.certain_until, cx.now), cx);
                HandedOver::Gone
            }
            _ => HandedOver::Released(self.release_instead(cx)),
        }
    }

    /// The server has not handed it over, so it is released. Returns the release of the next hold, which an earlier try may have created.
    pub(crate) fn release_instead(&mut self, cx: &Cx<'_>) -> Option<PendingRelease> {
        let next = self.hand_over.take()?;
        let in_doubt = self.request.is_in_doubt();
        self.request = PendingRequest::in_doubt(cx.now, in_doubt);
        let mut release = PendingRelease::of_attempt(next.id, Mode::Exclusive, next.lease, cx);
        release.lease.is_kept_until(self.lease.gone_by);
        in_doubt.then_some(release)
    }

    /// The callers learn of a refusal. The release is tried again.
    pub(crate) fn failed(&mut self, cx: &mut Cx<'_>, failure: Failure) {
        self.request.failed(cx.now, failure);
        if failure == Failure::Refused && self.hand_over.is_none() {
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
        let is_over = self.lease.gone_by <= cx.now && !self.request.is_under_way() && !self.is_at_first_try();
        if is_over {
            self.end(Outcome::Unconfirmed, cx);
        }
        !is_over
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        let request = self.request.due().filter(|_| self.before == [None; 2]);
        earliest([request, self.waiters.due()])
    }
}
