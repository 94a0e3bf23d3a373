//! What the server has of this client, or may have: one value for each id.

use std::time::Duration;

use super::{
    hold::Holders,
    lease::Lease,
    queue::Waiter,
    release::PendingRelease,
    requests::ConfirmWaiters,
    server_hold::ServerHold,
    types::{Cx, HoldId, Mode, Moment, Numbers, RequestId, Ticket, earliest},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum OnServer {
    /// Owners of this client hold it.
    Held(ServerHold, Holders),
    /// No owner holds it for the moment: callers that are about to be notified may want it again. The callers that released it last are
    /// notified once it is acquired again, or released for all.
    Parked(ServerHold, ConfirmWaiters, ParkedUntil),
    /// It is lost, and its guards still exist. The server may have it: the holders need the rest of the lease to stop.
    Lost(ServerHold),
    /// No owner wants it anymore, or the next waiter gets it by a request.
    Releasing(PendingRelease),
}

/// What a parked id waits for. The callers that the first confirmation notified may not have called again when the other tasks have run, because
/// a worker without other tasks continues at once. A second confirmation gives them the time of a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ParkedUntil {
    /// A confirmation has notified callers.
    Confirmed,
    /// The other tasks have run.
    OthersHaveRun,
    /// The second confirmation has a reply.
    ConfirmedAgain,
}

impl OnServer {
    /// True if a request for this waiter makes no sense because of this id. An owner that writes may also read.
    pub(crate) fn keeps_out(&self, waiter: &Waiter) -> bool {
        match self {
            OnServer::Held(server, holders) => server.mode() == Mode::Exclusive && !holders.has_owner(waiter.owner),
            OnServer::Parked(server, ..) => server.mode() == Mode::Exclusive,
            OnServer::Releasing(release) => release.is_handing_over(),
            OnServer::Lost(_) => false,
        }
    }

    /// True if the next reply to a confirmation may admit this waiter.
    pub(crate) fn may_admit(&self, waiter: &Waiter, now: Moment) -> bool {
        match self {
            OnServer::Held(server, _) | OnServer::Parked(server, ..) => {
                waiter.mode() == Mode::Shared && waiter.terms.accepts_any_hold() && server.may_admit(now)
            }
            OnServer::Lost(_) | OnServer::Releasing(_) => false,
        }
    }

    pub(crate) fn held(&self) -> Option<(&ServerHold, &Holders)> {
        if let OnServer::Held(server, holders) = self { Some((server, holders)) } else { None }
    }

    /// Another guard has so many permits of this one from now on.
    pub(crate) fn split(&mut self, guard: Ticket, part: (Ticket, u32)) {
        if let OnServer::Held(_, holders) = self {
            holders.split(guard, part);
        }
    }

    pub(crate) fn server_hold(&mut self) -> Option<&mut ServerHold> {
        match self {
            OnServer::Held(server, _) | OnServer::Parked(server, ..) | OnServer::Lost(server) => Some(server),
            OnServer::Releasing(_) => None,
        }
    }

    pub(crate) fn lease(&self) -> &Lease {
        match self {
            OnServer::Held(server, _) | OnServer::Parked(server, ..) | OnServer::Lost(server) => &server.lease,
            OnServer::Releasing(release) => &release.lease,
        }
    }

    pub(crate) fn lease_mut(&mut self) -> &mut Lease {
        match self {
            OnServer::Held(server, _) | OnServer::Parked(server, ..) | OnServer::Lost(server) => &mut server.lease,
            OnServer::Releasing(release) => &mut release.lease,
        }
    }

    pub(crate) fn has_id(&self, id: HoldId) -> bool {
        match self {
            OnServer::Held(server, _) | OnServer::Parked(server, ..) | OnServer::Lost(server) => server.id == id,
            OnServer::Releasing(release) => release.has_id(id),
        }
    }

    /// The id, and the request under way, if nothing else of it needs attention before [`due`](OnServer::due).
    pub(crate) fn calm_request(&self) -> Option<(HoldId, Option<RequestId>)> {
        match self {
            OnServer::Held(server, holders) if holders.is_calm() => Some((server.id, server.calm_request()?)),
            OnServer::Releasing(release) => Some((release.id(), Some(release.calm_request()?))),
            _ => None,
        }
    }

    /// Its release got no reply yet, and did not fail.
    pub(crate) fn is_at_first_try(&self) -> bool {
        self.first_try().is_some()
    }

    /// The time at which its release began, if that got no reply yet, and did not fail.
    pub(crate) fn first_try(&self) -> Option<Moment> {
        if let OnServer::Releasing(release) = self { release.first_try() } else { None }
    }

    /// True if this request is about this id, and under way.
    pub(crate) fn awaits(&self, request: RequestId) -> bool {
        self.sent(request).is_some()
    }

    /// The time at which this request about this id was sent, if it is under way.
    pub(crate) fn sent(&self, request: RequestId) -> Option<Moment> {
        match self {
            OnServer::Held(_, Holders::One(_, reentry)) if reentry.is_counted_by(request) => reentry.sent(request),
            OnServer::Held(server, _) | OnServer::Parked(server, ..) | OnServer::Lost(server) => {
                server.confirmations.sent(request)
            }
            OnServer::Releasing(release) => release.sent(request),
        }
    }

    /// This request ended, whatever its result.
    pub(crate) fn request_ended(&mut self, request: RequestId) {
        match self {
            OnServer::Releasing(release) => release.request_ended(request),
            _ => self.server_hold().into_iter().for_each(|server| server.request_ended(request)),
        }
    }

    /// Sends the requests about this id that are due.
    pub(crate) fn send(&mut self, cx: &mut Cx<'_>, numbers: &mut Numbers) {
        match self {
            OnServer::Held(server, holders) => {
                if let Holders::One(hold, reentry) = holders {
                    reentry.send_count(hold, server, cx, numbers);
                }
                let lease = holders.is_renewed().then_some(cx.config.watchdog);
                server.send_confirmation(cx, numbers, lease);
            }
            OnServer::Parked(server, ..) => server.send_confirmation(cx, numbers, Some(cx.config.watchdog)),
            // A lost hold is confirmed only for callers.
            OnServer::Lost(server) if server.confirmations.has_waiters() => {
                server.send_confirmation(cx, numbers, None);
            }
            OnServer::Lost(_) => {}
            OnServer::Releasing(release) => release.send(cx, numbers),
        }
    }

    pub(crate) fn due(&self, time_to_see: Duration) -> Option<Moment> {
        match self {
            OnServer::Held(server, holders) => {
                earliest([server.confirmations.due(), holders.due(time_to_see), Some(server.lease.certain_until)])
            }
            OnServer::Parked(server, waiters, _) => {
                earliest([server.confirmations.due(), waiters.due(), Some(server.lease.certain_until)])
            }
            OnServer::Lost(server) => {
                let confirmation = server.confirmations.due().filter(|_| server.confirmations.has_waiters());
                earliest([confirmation, Some(server.lease.over())])
            }
            OnServer::Releasing(release) => release.due(),
        }
    }
}
