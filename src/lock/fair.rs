//! Waiters in a queue on the server. Each owner that waits has a place there, with requests and messages of its own. The server decides
//! which place is next, so nothing passes from owner to owner in this process.

use std::time::Duration;

use super::{
    index::Key,
    listening::{Listening, until_next},
    on_server::OnServer,
    places::{Asked, Place, PlaceTerms, Waiting},
    requests::Failure,
    server_hold::{Granted, ServerHold},
    state::{LockState, Wanted},
    types::{Config, Cx, HoldId, Mode, Moment, Outcome, Owner, Reply, RequestId, earliest},
};

impl LockState {
    // ---- owners that wait have a place, others have none ----

    pub(super) fn settle_places(&mut self, cx: &mut Cx<'_>) {
        loop {
            let changed = self.queue.take_changed();
            if changed.is_empty() || matches!(self.wanted, Wanted::One(_)) {
                return;
            }
            changed.into_iter().for_each(|owner| self.settle_place(owner, cx));
        }
    }

    fn settle_place(&mut self, owner: Owner, cx: &mut Cx<'_>) {
        let Wanted::Places(places) = &mut self.wanted else { return };
        let waits = self.queue.first_of(owner).is_some();
        match places.find(Key::Owner(owner)) {
            None if waits => places.join(owner, self.numbers.hold(), cx.now),
            Some(id) if !waits => places.leave(id, cx),
            Some(id) => self.answer_soon(id, owner, cx),
            None => {}
        }
    }

    /// Waiters of this owner that wait for the next reply only need none if the place is behind others.
    fn answer_soon(&mut self, id: HoldId, owner: Owner, cx: &mut Cx<'_>) {
        let has_failed_release = self.has_failed_release();
        let Wanted::Places(places) = &mut self.wanted else { return };
        if !has_failed_release && places.waiting(id).is_some_and(|waiting| waiting.is_behind_others(cx.now)) {
            let last = self.queue.last();
            return self.queue.refuse_owner(owner, last, cx);
        }
        if self.queue.of(owner).any(|(_, waiter)| !waiter.keeps_waiting()) {
            places.change_waiting(id, |waiting| waiting.look_if_asleep(cx.now));
        }
    }

    // ---- time ----

    /// Waiters that waited long enough for a server that does not reply get `Unavailable`.
    pub(super) fn expire_places(&mut self, cx: &mut Cx<'_>) {
        while let Wanted::Places(places) = &mut self.wanted
            && let Some((since, id)) =
                places.first(Key::Silent).filter(|(since, _)| *since + cx.config.outage_timeout <= cx.now)
            && let Some(owner) = places.waiting(id).map(Waiting::owner)
        {
            let since = self.queue.end_outage(owner, since, cx).unwrap_or(cx.now);
            places.change_waiting(id, |waiting| waiting.waited_for_since(since));
        }
    }

    pub(super) fn places_due(&self, config: &Config) -> Option<Moment> {
        let Wanted::Places(places) = &self.wanted else { return None };
        let outage = places.first(Key::Silent).map(|(since, _)| since + config.outage_timeout);
        earliest([places.first(Key::Due).map(|(due, _)| due), outage])
    }

    // ---- requests ----

    /// Sends the requests of all places that are due.
    pub(super) fn send_places(&mut self, cx: &mut Cx<'_>) {
        while let Wanted::Places(places) = &mut self.wanted
            && let Some(id) = places.due(cx.now)
        {
            let first = places.waiting(id).and_then(|waiting| self.queue.first_of(waiting.owner()));
            let terms = first.map(|(_, first)| {
                let waits = self.queue.of(first.owner).any(|(_, waiter)| waiter.keeps_waiting());
                let (lease, last) = (first.terms.requested_lease(cx.config), self.queue.last());
                PlaceTerms { lease, waits, last }
            });
            let release = terms.filter(|terms| !terms.waits).and_then(|_| own_release(&self.on_server));
            let waits_for = |release| places.change_waiting(id, |waiting| waiting.waits_for(release));
            if release.and_then(waits_for) != Some(true) {
                places.send(id, terms, cx, &mut self.numbers);
            }
        }
    }

    /// Places that wait for the end of this request go on.
    pub(super) fn release_ended(&mut self, request: RequestId, now: Moment) {
        if let Wanted::Places(places) = &mut self.wanted {
            places.release_ended(request, now);
        }
    }

    pub(super) fn place_awaiting(&self, request: RequestId) -> Option<HoldId> {
        if let Wanted::Places(places) = &self.wanted { places.find(Key::Awaits(request)) } else { None }
    }

    pub(super) fn place_replied(&mut self, id: HoldId, request: RequestId, reply: Reply, cx: &mut Cx<'_>) {
        let Wanted::Places(places) = &mut self.wanted else { return };
        match places.get(id) {
            Some(Place::Waiting(waiting)) => {
                let asked = waiting.asked(request).map(|asked| (waiting.owner(), waiting.listening(), asked));
                asked.into_iter().for_each(|asked| self.waiter_replied(id, asked, reply, cx));
            }
            Some(Place::Left(release)) if release.sent(request).is_some() => places.remove(id, cx),
            // The last request for a place that was left. An earlier try may have created the place.
            Some(Place::Left(release)) if matches!(reply, Reply::Busy { .. }) && !release.is_in_doubt() => {
                places.remove(id, cx);
            }
            Some(_) => _ = places.change(id, |place| place.request_ended(request)),
            None => {}
        }
    }

    fn waiter_replied(
        &mut self,
        id: HoldId,
        (owner, listening, asked): (Owner, Listening, Asked),
        reply: Reply,
        cx: &mut Cx<'_>,
    ) {
        self.release_forgotten(reply, cx);
        if let Some(pause) = self.unclear_for(owner, reply) {
            return self.behind_own_release(id, reply, pause, cx);
        }
        let Wanted::Places(places) = &mut self.wanted else { return };
        match reply {
            Reply::Queued { left, place, .. } => {
                let nap = until_next(left, listening.nap_at(place));
                places.change_waiting(id, |waiting| waiting.queued(id, nap, cx));
                self.queue.refuse_owner(owner, asked.last, cx);
                self.answer_soon(id, owner, cx);
            }
            Reply::Busy { .. } => {
                places.change_waiting(id, |waiting| waiting.refused(cx.now));
                self.queue.refuse_owner(owner, asked.last, cx);
            }
            Reply::Out => _ = places.change_waiting(id, |waiting| waiting.not_queued(cx.now)),
            Reply::Granted(_) | Reply::TooFewReplicas => {
                places.remove(id, cx);
                self.place_granted(id, (owner, asked), reply, cx);
            }
            _ => {
                places.change_waiting(id, |waiting| waiting.refused(cx.now));
                places.leave(id, cx);
                self.end_first_of(owner, Outcome::Refused, cx);
            }
        }
    }

    /// The server has not run a release of this client yet, so whether another owner holds the lock is unknown. The pause before the
    /// next request, if a waiter of this owner needs to know that.
    fn unclear_for(&self, owner: Owner, reply: Reply) -> Option<Duration> {
        let (Reply::Queued { own, .. } | Reply::Busy { own, .. }) = reply else { return None };
        let pause = self.pause_behind(own?)?;
        self.queue.of(owner).any(|(_, waiter)| !waiter.keeps_waiting()).then_some(pause)
    }

    /// Such waiters learn nothing from that, as those for other locks.
    fn behind_own_release(&mut self, id: HoldId, reply: Reply, pause: Duration, cx: &mut Cx<'_>) {
        let Wanted::Places(places) = &mut self.wanted else { return };
        places.change_waiting(id, |waiting| match reply {
            Reply::Queued { .. } => waiting.queued(id, pause, cx),
            _ => waiting.refused(cx.now + pause),
        });
    }

    /// The place has become a hold. Its owner acquires it.
    fn place_granted(&mut self, id: HoldId, (owner, asked): (Owner, Asked), reply: Reply, cx: &mut Cx<'_>) {
        let token = if let Reply::Granted(token) = reply { token } else { None };
        let Asked { request, sent, lease, in_doubt, .. } = asked;
        let server = ServerHold::new(Granted { id, mode: Mode::Exclusive, token, request, sent, lease, in_doubt }, cx);
        self.lose_others(&server, cx);
        if reply == Reply::TooFewReplicas {
            self.end_first_of(owner, Outcome::TooFewReplicas, cx);
            return self.release(server, cx);
        }
        let receiver = self.queue.first_of(owner).map(|(ticket, _)| ticket);
        if receiver.is_some() {
            self.queue.used_place(owner);
        }
        self.grant_requested(receiver, server, (lease, sent), cx);
    }

    pub(super) fn place_failed(&mut self, id: HoldId, request: RequestId, failure: Failure, cx: &mut Cx<'_>) {
        let Wanted::Places(places) = &mut self.wanted else { return };
        places.change(id, |place| match place {
            Place::Waiting(waiting) => waiting.failed(cx.now, failure),
            Place::Left(release) if release.sent(request).is_some() => release.failed(cx, failure),
            Place::Left(release) => release.request_ended(request),
        });
        let owner = places.waiting(id).map(Waiting::owner).filter(|_| failure == Failure::Refused);
        owner.into_iter().for_each(|owner| self.end_first_of(owner, Outcome::Refused, cx));
    }

    fn end_first_of(&mut self, owner: Owner, outcome: Outcome, cx: &mut Cx<'_>) {
        if let Some((ticket, _)) = self.queue.first_of(owner) {
            self.queue.end(ticket, cx, outcome);
        }
    }
}

/// The release of a hold of this client that is under way for the first time.
fn own_release(on_server: &[OnServer]) -> Option<RequestId> {
    on_server.iter().find_map(|one| match one {
        OnServer::Releasing(release) if release.is_at_first_try() => release.awaited(),
        _ => None,
    })
}
