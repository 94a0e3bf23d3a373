//! The places of this client in a queue on the server: one for each owner that waits.
//!
//! Thousands of places may be left at one moment. So whatever looks for a place uses an index, and each change of a place goes through
//! [`Places::change`], which keeps the indexes right.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    release::PendingRelease,
    requests::{Failure, PendingRequest},
    types::{Action, Channel, Cx, HoldId, How, Mode, Moment, Numbers, Owner, Queueing, Request, RequestId, Ticket},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Listening {
    Off,
    /// No message can arrive yet, and this many requests have found the lock held.
    Requested(u8),
    On,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Places {
    places: BTreeMap<HoldId, Place>,
    /// The places of owners that wait.
    owners: BTreeMap<Owner, HoldId>,
    /// The place that waits for this request.
    requests: BTreeMap<RequestId, HoldId>,
    /// Single attempts that wait for the end of this request.
    after: BTreeSet<(RequestId, HoldId)>,
    /// By the time of the next request.
    due: BTreeSet<(Moment, HoldId)>,
    /// By the time since which the server has not replied.
    silent: BTreeSet<(Moment, HoldId)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Waiting(Waiting),
    /// Its owner waits no longer.
    Left(PendingRelease),
}

/// The place of an owner that waits. It becomes the hold of that owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Waiting {
    owner: Owner,
    next: Next,
    /// By its last reply, the server has this place.
    queued: bool,
    listening: Listening,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Next {
    LookAt(Moment),
    /// The next request is sent after the end of this one, which releases a hold of this client.
    After(RequestId),
    Asking(Box<PlaceRequest>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PlaceRequest {
    request: PendingRequest,
    /// Of the last try.
    how: Queueing,
    lease: Duration,
    /// A message arrived after the last try was sent.
    woken: bool,
    /// The waiter that had joined last when the last try was sent. The reply says nothing to later ones.
    last: Ticket,
}

/// The request of an owner that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaceTerms {
    pub(crate) lease: Duration,
    /// The owner waits for longer than the reply.
    pub(crate) waits: bool,
    /// The waiter that has joined last.
    pub(crate) last: Ticket,
}

/// The request that got a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) request: RequestId,
    pub(crate) sent: Moment,
    pub(crate) lease: Duration,
    pub(crate) in_doubt: bool,
    /// The waiter that had joined last when the last try was sent.
    pub(crate) last: Ticket,
}

impl Waiting {
    fn new(owner: Owner, now: Moment) -> Waiting {
        let (next, listening) = (Next::LookAt(now), Listening::Off);
        Waiting { owner, next, queued: false, listening }
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) fn listening(&self) -> Listening {
        self.listening
    }

    fn request(&self) -> Option<&PendingRequest> {
        match &self.next {
            Next::LookAt(_) | Next::After(_) => None,
            Next::Asking(asking) => Some(&asking.request),
        }
    }

    fn due(&self) -> Option<Moment> {
        match &self.next {
            Next::LookAt(at) => Some(*at),
            Next::After(_) => None,
            Next::Asking(asking) => asking.request.due(),
        }
    }

    /// It has its place, no message has arrived, and the next one will.
    pub(crate) fn is_behind_others(&self, now: Moment) -> bool {
        let is_asleep = matches!(self.next, Next::LookAt(at) if at > now);
        is_asleep && self.queued && self.listening == Listening::On
    }

    /// The next request is sent no later than that.
    pub(crate) fn look(&mut self, at: Moment) {
        match &mut self.next {
            Next::LookAt(look_at) => *look_at = at.min(*look_at),
            Next::After(_) => {}
            Next::Asking(asking) => asking.woken = true,
        }
    }

    /// The next request is sent no later than that. If a request is under way, its reply is soon enough.
    pub(crate) fn look_if_asleep(&mut self, now: Moment) {
        if let Next::LookAt(look_at) = &mut self.next {
            *look_at = now.min(*look_at);
        }
    }

    pub(crate) fn subscribed(&mut self, now: Moment) {
        if self.listening != Listening::Off {
            self.listening = Listening::On;
            self.look(now);
        }
    }

    pub(crate) fn unsubscribed(&mut self, now: Moment) {
        if self.listening == Listening::On {
            self.listening = Listening::Requested(0);
            self.look(now);
        }
    }

    /// A single attempt must not find a hold of this client that is about to be released. True if it now waits for that release.
    pub(crate) fn waits_for(&mut self, release: RequestId) -> bool {
        let is_first = matches!(self.next, Next::LookAt(_)) && !self.queued;
        if is_first {
            self.next = Next::After(release);
        }
        is_first
    }

    fn release_ended(&mut self, now: Moment) {
        if let Next::After(_) = self.next {
            self.next = Next::LookAt(now);
        }
    }

    fn send(&mut self, id: HoldId, terms: PlaceTerms, cx: &mut Cx<'_>, numbers: &mut Numbers) {
        let PlaceTerms { lease, waits, last } = terms;
        let how = match (self.queued, waits) {
            (true, _) => Queueing::Stay,
            (false, true) => Queueing::Join,
            (false, false) => Queueing::Never,
        };
        if let Next::LookAt(at) = self.next {
            let request = PendingRequest::new(at);
            self.next = Next::Asking(Box::new(PlaceRequest { request, how, lease, woken: false, last }));
        }
        if let Next::Asking(asking) = &mut self.next {
            // An earlier try, for a call that has left since, may have got a longer lease. The server keeps that.
            let lease = if asking.request.is_in_doubt() { lease.max(asking.lease) } else { lease };
            (asking.how, asking.lease, asking.woken, asking.last) = (how, lease, false, last);
            let how = How::Queue(how);
            let request = Request::Acquire { id, mode: Mode::Exclusive, lease, count: 1, how };
            asking.request.send(cx, numbers, request);
        }
    }

    /// The request under way, which got a reply.
    pub(crate) fn asked(&self, request: RequestId) -> Option<Asked> {
        let Next::Asking(asking) = &self.next else { return None };
        let sent = asking.request.sent(request)?;
        let (lease, last, in_doubt) = (asking.lease, asking.last, asking.request.is_in_doubt());
        Some(Asked { request, sent, lease, in_doubt, last })
    }

    /// The server has this place. The next request is sent after `nap`, or at once if a message has arrived.
    pub(crate) fn queued(&mut self, id: HoldId, nap: Duration, cx: &mut Cx<'_>) {
        let woken = matches!(&self.next, Next::Asking(asking) if asking.woken);
        self.queued = true;
        self.next = Next::LookAt(if woken { cx.now } else { cx.now + nap });
        if self.listening == Listening::Off {
            self.listening = Listening::Requested(0);
            cx.actions.push(Action::Subscribe(Channel::Place(id)));
        }
    }

    /// The server does not have this place.
    pub(crate) fn not_queued(&mut self, now: Moment) {
        self.queued = false;
        self.next = Next::LookAt(now);
    }

    /// The request was refused, and has created no place. The server has the place that an earlier try has created, or may have. The next
    /// request is sent then.
    pub(crate) fn refused(&mut self, look_at: Moment) {
        self.queued |= matches!(&self.next, Next::Asking(asking) if asking.request.is_in_doubt());
        self.next = Next::LookAt(look_at);
    }

    pub(crate) fn failed(&mut self, now: Moment, failure: Failure) {
        if let Next::Asking(asking) = &mut self.next {
            asking.request.failed(now, failure);
        }
    }

    pub(crate) fn waited_for_since(&mut self, since: Moment) {
        if let Next::Asking(asking) = &mut self.next {
            asking.request.waited_for_since(since);
        }
    }

    fn stop_listening(&self, id: HoldId, cx: &mut Cx<'_>) {
        if self.listening != Listening::Off {
            cx.actions.push(Action::Unsubscribe(Channel::Place(id)));
        }
    }

    /// Its owner waits no longer. What the server may have of it is released, after a request under way that could create a place.
    fn leave(&self, id: HoldId, cx: &Cx<'_>) -> Option<PendingRelease> {
        let (before, in_doubt, lease) = match &self.next {
            Next::LookAt(_) | Next::After(_) => (None, false, Duration::ZERO),
            Next::Asking(asking) => {
                let before = asking.request.under_way().filter(|_| asking.how != Queueing::Stay);
                (before, asking.request.is_in_doubt(), asking.lease)
            }
        };
        let may_be_there = self.queued || in_doubt || before.is_some();
        may_be_there.then(|| PendingRelease::of_place(id, lease, (before, in_doubt), cx))
    }
}

impl Place {
    /// The request that this place waits for.
    fn awaited(&self) -> Option<RequestId> {
        match self {
            Place::Waiting(waiting) => waiting.request().and_then(PendingRequest::under_way),
            Place::Left(release) => release.awaited(),
        }
    }

    /// The release of another hold that this place waits for.
    fn after(&self) -> Option<RequestId> {
        match self {
            Place::Waiting(Waiting { next: Next::After(request), .. }) => Some(*request),
            _ => None,
        }
    }

    fn due(&self) -> Option<Moment> {
        match self {
            Place::Waiting(waiting) => waiting.due(),
            Place::Left(release) => release.due(),
        }
    }

    fn silent_since(&self) -> Option<Moment> {
        match self {
            Place::Waiting(waiting) => waiting.request().and_then(PendingRequest::silent_since),
            Place::Left(_) => None,
        }
    }

    /// This request ended, whatever its result.
    pub(crate) fn request_ended(&mut self, request: RequestId) {
        if let Place::Left(release) = self {
            release.request_ended(request);
        }
    }
}

impl Places {
    // ---- the indexes ----

    fn index(&mut self, id: HoldId) {
        let Some(place) = self.places.get(&id) else { return };
        if let Place::Waiting(waiting) = place {
            self.owners.insert(waiting.owner, id);
        }
        self.after.extend(place.after().map(|request| (request, id)));
        self.requests.extend(place.awaited().map(|request| (request, id)));
        self.due.extend(place.due().map(|at| (at, id)));
        self.silent.extend(place.silent_since().map(|since| (since, id)));
    }

    fn unindex(&mut self, id: HoldId) {
        let Some(place) = self.places.get(&id) else { return };
        if let Place::Waiting(waiting) = place {
            self.owners.remove(&waiting.owner);
        }
        place.after().map(|request| self.after.remove(&(request, id)));
        place.awaited().map(|request| self.requests.remove(&request));
        place.due().map(|at| self.due.remove(&(at, id)));
        place.silent_since().map(|since| self.silent.remove(&(since, id)));
    }

    /// The one way to change a place.
    pub(crate) fn change<R>(&mut self, id: HoldId, change: impl FnOnce(&mut Place) -> R) -> Option<R> {
        self.unindex(id);
        let result = self.places.get_mut(&id).map(change);
        self.index(id);
        result
    }

    /// Changes a place whose owner waits.
    pub(crate) fn change_waiting<R>(&mut self, id: HoldId, change: impl FnOnce(&mut Waiting) -> R) -> Option<R> {
        let change = |place: &mut Place| if let Place::Waiting(waiting) = place { Some(change(waiting)) } else { None };
        self.change(id, change).flatten()
    }

    fn put(&mut self, id: HoldId, place: Place) {
        self.places.insert(id, place);
        self.index(id);
    }

    /// The place ends here, because the server has it no longer, or as a hold.
    pub(crate) fn remove(&mut self, id: HoldId, cx: &mut Cx<'_>) {
        self.unindex(id);
        if let Some(Place::Waiting(waiting)) = self.places.remove(&id) {
            waiting.stop_listening(id, cx);
        }
    }

    // ---- questions ----

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The number of places that are to be released.
    pub(crate) fn left(&self) -> usize {
        self.places.len() - self.owners.len()
    }

    pub(crate) fn get(&self, id: HoldId) -> Option<&Place> {
        self.places.get(&id)
    }

    #[allow(dead_code, reason = "the simulation uses it")]
    pub(crate) fn waiting_ids(&self) -> impl Iterator<Item = HoldId> {
        self.owners.values().copied()
    }

    pub(crate) fn waiting(&self, id: HoldId) -> Option<&Waiting> {
        self.get(id).and_then(|place| if let Place::Waiting(waiting) = place { Some(waiting) } else { None })
    }

    /// The place of an owner that waits.
    pub(crate) fn of(&self, owner: Owner) -> Option<HoldId> {
        self.owners.get(&owner).copied()
    }

    /// The place that waits for this request.
    pub(crate) fn awaiting(&self, request: RequestId) -> Option<HoldId> {
        self.requests.get(&request).copied()
    }

    /// The server may have this place, or a hold that it has become.
    pub(crate) fn may_be_there(&self, id: HoldId) -> bool {
        self.places.contains_key(&id)
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(crate) fn next_due(&self, now: Moment) -> Option<HoldId> {
        self.due.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    /// The place that has been without a reply for longest, and since when.
    pub(crate) fn silent(&self) -> Option<(Moment, HoldId)> {
        self.silent.first().copied()
    }

    // ---- changes ----

    pub(crate) fn join(&mut self, owner: Owner, id: HoldId, now: Moment) {
        self.put(id, Place::Waiting(Waiting::new(owner, now)));
    }

    /// The owner of this place waits no longer.
    pub(crate) fn leave(&mut self, id: HoldId, cx: &mut Cx<'_>) {
        let release = self.waiting(id).and_then(|waiting| waiting.leave(id, cx));
        self.remove(id, cx);
        release.into_iter().for_each(|release| self.put(id, Place::Left(release)));
    }

    /// The release of a hold ended, whatever its result.
    pub(crate) fn release_ended(&mut self, request: RequestId, now: Moment) {
        while let Some((_, id)) = self.after.range((request, HoldId(0))..=(request, HoldId(u64::MAX))).next().copied() {
            self.change_waiting(id, |waiting| waiting.release_ended(now));
        }
    }

    /// The place that joined first.
    pub(crate) fn look_first(&mut self, at: Moment) {
        let mut waiting = self.places.iter().filter(|(_, place)| matches!(place, Place::Waiting(_)));
        let first = waiting.next().map(|(id, _)| *id);
        first.into_iter().for_each(|id| _ = self.change_waiting(id, |waiting| waiting.look(at)));
    }

    pub(crate) fn reconnected(&mut self, now: Moment) {
        let mut waiting: Vec<_> = self.owners.values().copied().collect();
        waiting.sort();
        waiting.into_iter().for_each(|id| _ = self.change_waiting(id, |waiting| waiting.look(now)));
    }

    /// Sends the request of this place, which is due.
    pub(crate) fn send(&mut self, id: HoldId, terms: Option<PlaceTerms>, cx: &mut Cx<'_>, numbers: &mut Numbers) {
        let sent = self.change(id, |place| match (place, terms) {
            (Place::Waiting(waiting), Some(terms)) => {
                waiting.send(id, terms, cx, numbers);
                true
            }
            (Place::Waiting(_), None) => false,
            (Place::Left(release), _) => {
                let goes_on = release.expire(cx);
                if goes_on {
                    release.send(cx, numbers);
                }
                goes_on
            }
        });
        if sent == Some(false) {
            self.remove(id, cx);
        }
    }
}
