//! The places of this client in a queue on the server: one for each owner that waits.

use std::time::Duration;

use super::{
    index::{Index, Key, Keyed},
    listening::Listening,
    release::PendingRelease,
    requests::{Failure, PendingRequest},
    types::{Action, Channel, Cx, HoldId, How, Mode, Moment, Numbers, Owner, Queueing, Request, RequestId, Ticket},
};

/// By their ids. A place ends by [`remove`](Places::remove) or [`leave`](Places::leave), which also end its messages.
pub(crate) type Places = Index<Place>;

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

impl Keyed for Place {
    fn keys(&self) -> impl Iterator<Item = Key> {
        let keys = match self {
            Place::Waiting(Waiting { owner, next, .. }) => {
                let [due, awaits, silent] = match next {
                    Next::LookAt(at) => [Some(Key::Due(*at)), None, None],
                    Next::After(request) => [Some(Key::After(*request)), None, None],
                    Next::Asking(asking) => {
                        let PlaceRequest { request, .. } = &**asking;
                        let (awaits, silent) = (request.under_way(), request.silent_since());
                        [request.due().map(Key::Due), awaits.map(Key::Awaits), silent.map(Key::Silent)]
                    }
                };
                [Some(Key::Owner(*owner)), due, awaits, silent]
            }
            Place::Left(release) => [release.due().map(Key::Due), release.awaited().map(Key::Awaits), None, None],
        };
        keys.into_iter().flatten()
    }

    /// Its owner waits no longer.
    fn is_release(&self) -> bool {
        matches!(self, Place::Left(_))
    }
}

impl Place {
    /// This request ended, whatever its result.
    pub(crate) fn request_ended(&mut self, request: RequestId) {
        if let Place::Left(release) = self {
            release.request_ended(request);
        }
    }
}

impl Places {
    /// Changes a place whose owner waits.
    pub(crate) fn change_waiting<R>(&mut self, id: HoldId, change: impl FnOnce(&mut Waiting) -> R) -> Option<R> {
        let change = |place: &mut Place| if let Place::Waiting(waiting) = place { Some(change(waiting)) } else { None };
        self.change(id, change).flatten()
    }

    /// The place ends here, because the server has it no longer, or as a hold.
    pub(crate) fn remove(&mut self, id: HoldId, cx: &mut Cx<'_>) {
        if let Some(Place::Waiting(waiting)) = self.take(id) {
            waiting.stop_listening(id, cx);
        }
    }

    /// The places of owners that wait, in the order in which they joined.
    pub(crate) fn waiting_ids(&self) -> impl Iterator<Item = HoldId> {
        self.iter().filter(|(_, place)| !place.is_release()).map(|(id, _)| id)
    }

    pub(crate) fn waiting(&self, id: HoldId) -> Option<&Waiting> {
        self.get(id).and_then(|place| if let Place::Waiting(waiting) = place { Some(waiting) } else { None })
    }

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
        while let Some(id) = self.find(Key::After(request)) {
            self.change_waiting(id, |waiting| waiting.release_ended(now));
        }
    }

    /// The place that joined first.
    pub(crate) fn look_first(&mut self, at: Moment) {
        let first = self.waiting_ids().next();
        first.into_iter().for_each(|id| _ = self.change_waiting(id, |waiting| waiting.look(at)));
    }

    pub(crate) fn reconnected(&mut self, now: Moment) {
        let waiting: Vec<_> = self.waiting_ids().collect();
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
