//! One id that the server has for this client: its lease, its count and its confirmations.

use std::time::Duration;

use super::{
    confirmations::{Confirmations, SentConfirmation},
    lease::Lease,
    requests::Failure,
    types::{
        Action, Config, Cx, HoldId, Loss, Mode, Moment, Numbers, Outcome, Reply, Request, RequestId, Terms, Token,
    },
};

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
    /// A request about the count is under way.
    counting: Option<RequestId>,
    pub(crate) confirmations: Confirmations,
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

impl ServerHold {
    pub(crate) fn new(granted: Granted, cx: &Cx<'_>) -> ServerHold {
        let Granted { id, mode, token, request, sent, lease, in_doubt } = granted;
        let new_lease = Lease::new(mode, (lease, sent), cx);
        ServerHold {
            id,
            token,
            count: 1,
            found_by: request,
            clean: !in_doubt,
            counting: None,
            confirmations: Confirmations::new((lease, sent), &new_lease, cx.config),
            lease: new_lease,
        }
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
        self.is_open(self.confirmations.sent_at(now))
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
        let is_usual = self.confirmations.lease().is_none_or(|lease| lease <= config.watchdog);
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
        if self.mode() == Mode::Exclusive {
            self.confirmations.written(cx.now, cx.config);
        }
    }

    // ---- confirmations ----

    /// Sends a confirmation if it is due. `lease`: the lease that it renews.
    pub(crate) fn send_confirmation(&mut self, cx: &mut Cx<'_>, numbers: &mut Numbers, lease: Option<Duration>) {
        if self.confirmations.planned().is_none_or(|at| at > cx.now) {
            return;
        }
        let request = numbers.request();
        let lease = lease.filter(|renewed| !self.confirmations.only_looks(&self.lease, *renewed, cx));
        let lease = self.confirmations.send(request, lease, cx.now);
        self.lease.requested(lease, cx);
        let lease = lease.max(self.lease.to_repair(cx.now));
        let request_for = Request::Renew { id: self.id, mode: self.mode(), lease, count: self.count };
        cx.actions.push(Action::Send(request, request_for));
    }

    /// The confirmation under way got a reply. Returns the time at which it was sent, if the server had the hold after that.
    pub(crate) fn confirmed(&mut self, cx: &mut Cx<'_>, reply: Reply) -> Option<Moment> {
        let (Some(confirmation), Reply::Kept { admits, left }) = (self.confirmations.under_way(), reply) else {
            self.confirmations.gone();
            return None;
        };
        let SentConfirmation { request, sent, lease, .. } = *confirmation;
        self.lease.note_left(left, sent, cx);
        self.lease.lasts(lease, sent, cx);
        self.found_by = request;
        self.confirmations.confirmed(&self.lease, cx);
        if !admits {
            self.lease.close();
        } else if self.is_open(sent) {
            self.lease.admits(sent, cx.config);
        }
        Some(sent)
    }

    pub(crate) fn confirmation_failed(&mut self, cx: &mut Cx<'_>, failure: Failure) {
        self.lease.close();
        self.confirmations.failed(cx, failure);
    }

    /// The request under way, if it is a confirmation or none, and nothing waits until other tasks have run.
    pub(crate) fn calm_request(&self) -> Option<Option<RequestId>> {
        self.confirmations.calm_request().filter(|_| self.counting.is_none())
    }

    // ---- its end ----

    /// Requests under way that could undo its release if the server ran them later. A renewal could only if the hold rests.
    pub(crate) fn before_release(&self, rests: bool) -> [Option<RequestId>; 2] {
        let confirming = self.confirmations.under_way().filter(|_| rests).map(|confirmation| confirmation.request);
        [self.counting, confirming]
    }

    /// This request ended, whatever its result.
    pub(crate) fn request_ended(&mut self, request: RequestId) {
        self.counting = self.counting.filter(|under_way| *under_way != request);
    }
}

/// Whether the lock was held when the callers of an unlock called, by a request that was sent later. `in_doubt`: an earlier try had no reply.
/// `certain_until`: as it was when they called.
pub(crate) fn was_held(found: bool, in_doubt: bool, certain_until: Moment, now: Moment) -> Outcome {
    match found {
        true => Outcome::Confirmed,
        false if in_doubt => Outcome::Confirmed, // that try has released it, or the lease had ended: nobody can know
        false if certain_until <= now => Outcome::Unconfirmed, // the lease may have ended between the call and the request
        false => Outcome::Lost(Loss::Removed),
    }
}
