//! The one function that everything goes through.

use super::{
    listening::Listening,
    lost::LostHold,
    on_server::OnServer,
    release::PendingRelease,
    requests::{ConfirmWaiter, Failure, PendingRequest},
    state::{Asking, Attempt, Idle, Life, LockState, Wanted},
    types::{Action, Channel, Config, Cx, Event, How, Loss, Mode, Moment, Request, earliest},
};

impl LockState {
    /// First everything ends whose time is over. Then one fact changes. Then follow the next actions, from one look at all facts. So the order
    /// in which facts become known makes no difference, and no look is followed by a separate act.
    pub(crate) fn handle(&mut self, event: Event, cx: &mut Cx<'_>) {
        if let Event::Seen(ticket) = event
            && self.note_seen(ticket, cx.now)
        {
            return;
        }
        self.wake(&event, cx.now);
        self.expire(cx); // first, so that no late reply keeps what is lost
        self.change(event, cx);
        self.pass_over_absent(cx); // the event may be that a caller looks, or that its hold is gone
        self.expire(cx); // a new grant may be over already
        self.end_waits(cx); // an owner that has stopped writing may read no longer
        self.next_actions(cx);
        if cx.rules.waits.are_for_permits() {
            self.calm_down();
        }
    }

    /// What the event is about needs attention, and so does everything whose time has come.
    fn wake(&mut self, event: &Event, now: Moment) {
        if self.calm.is_empty() {
            return;
        }
        match *event {
            Event::Seen(guard) | Event::Dropped(guard) | Event::Unlock(guard) | Event::Check { guard, .. } => {
                self.on_server.extend(self.calm.take_with(guard));
            }
            Event::Replied(request, _)
            | Event::Unknown(request)
            | Event::Unclear(request)
            | Event::NotNow(request)
            | Event::Refused(request) => {
                self.on_server.extend(self.calm.take_awaiting(request));
            }
            Event::Reconnected | Event::Forced | Event::Close => self.on_server.extend(self.calm.take_all()),
            _ => {}
        }
        self.on_server.extend(self.calm.take_due(now));
    }

    /// Each hold of permits is independent of the others, so most of them need no attention at most events.
    fn calm_down(&mut self) {
        let time = self.time_to_see.into();
        for one in self.on_server.extract_if(.., |one| one.calm_request().is_some()) {
            let (due, calm) = (one.due(time), one.calm_request());
            if let Some((id, request)) = calm {
                self.calm.put(id, one, due, request);
            }
        }
    }

    fn change(&mut self, event: Event, cx: &mut Cx<'_>) {
        match event {
            Event::Acquire { ticket, owner, terms, limit } => self.acquire(ticket, (owner, terms, limit), cx),
            Event::Seen(ticket) => self.seen(ticket, cx.now),
            Event::Dropped(ticket) => self.leave(ticket, None, cx),
            Event::Unlock(ticket) => self.leave(ticket, Some(ConfirmWaiter::new(ticket, cx)), cx),
            Event::Check { guard, ticket, lease } => self.check(guard, ticket, lease, cx),
            Event::GiveBack(permits) => self.give_back(permits, cx),
            Event::Replied(request, reply) => self.replied(request, reply, cx),
            Event::Unknown(request) => self.failed(request, Failure::Unknown, cx),
            Event::Unclear(request) => self.failed(request, Failure::Unclear, cx),
            Event::NotNow(request) => self.failed(request, Failure::NotNow, cx),
            Event::Refused(request) => self.failed(request, Failure::Refused, cx),
            Event::Message(channel) => self.received_message(channel, cx),
            Event::Subscribed(channel) => self.subscribed(channel, cx),
            Event::Unsubscribed(channel) => self.unsubscribed(channel, cx),
            Event::Due => {}
            Event::Yielded => self.yielded(cx),
            Event::Reconnected => self.reconnected(cx),
            Event::Forced => self.forced(cx),
            Event::Stop => self.stop(Life::Stopping, cx),
            Event::Close => self.close(cx),
        }
    }

    // ---- time ----

    fn expire(&mut self, cx: &mut Cx<'_>) {
        for at in (0..self.on_server.len()).rev() {
            self.expire_one(at, cx);
        }
        if !self.queue.is_empty() {
            let silent_since = self.silent_since();
            if self.queue.expire(cx, silent_since)
                && let Wanted::One(Attempt::Asking(asking)) = &mut self.wanted
            {
                asking.request.hurry(cx.now); // the last chance of these waiters
            }
            self.expire_places(cx);
            self.refuse(cx);
        }
    }

    fn expire_one(&mut self, at: usize, cx: &mut Cx<'_>) {
        match &mut self.on_server[at] {
            OnServer::Held(server, holders) => match holders.end(server) {
                (end, loss) if end <= cx.now => self.lose(at, loss, cx),
                _ => {
                    let holds = holders.expire(server, cx);
                    let lost = LostHold::all(holds, Loss::MaxHold, server);
                    self.note_lost(lost);
                }
            },
            OnServer::Parked(server, waiters, _) => {
                waiters.expire(cx);
                server.confirmations.expire(cx);
                if server.lease.certain_until <= cx.now {
                    self.release_parked(at, cx);
                }
            }
            OnServer::Lost(server) => {
                server.confirmations.expire(cx);
                if server.lease.over() <= cx.now {
                    self.release_lost(at, cx);
                }
            }
            OnServer::Releasing(release) => {
                if !release.expire(cx) {
                    self.on_server.swap_remove(at);
                    self.look(cx.now);
                }
            }
        }
    }

    /// Others go first where callers do not look. Each time this leaves less time to the others, so it looks again.
    fn pass_over_absent(&mut self, cx: &mut Cx<'_>) {
        loop {
            let mut absent = Vec::new();
            self.held().for_each(|(_, holders)| holders.add_absent(cx.now, self.time_to_see.into(), &mut absent));
            if absent.is_empty() {
                return;
            }
            self.pass_over(absent, cx);
        }
    }

    /// The time at which [`Event::Due`] is needed if nothing else happens.
    pub(crate) fn due(&self, config: &Config) -> Option<Moment> {
        let on_server =
            self.on_server.iter().filter_map(|one| one.due(self.time_to_see.into())).chain(self.calm.due()).min();
        let queue = self.queue.due(self.silent_since(), config.outage_timeout);
        let places = self.places_due(config);
        earliest([on_server, self.attempt_due(Moment::FAR), places, queue])
    }

    // ---- next actions ----

    /// Whether a request is due is not remembered. It follows from the facts.
    fn next_actions(&mut self, cx: &mut Cx<'_>) {
        self.release_empty(cx);
        self.use_parked(cx);
        self.drop_attempt(cx);
        self.settle_places(cx);
        self.confirm_for_next(cx);
        for one in &mut self.on_server {
            one.send(cx, &mut self.numbers);
        }
        self.send_attempt(cx);
        self.note_shared(cx);
        self.send_places(cx);
        self.queue.forget_if_empty();
        if self.queue.is_empty() && self.listening != Listening::Off {
            self.listening = Listening::Off;
            cx.actions.push(Action::Unsubscribe(Channel::Name));
        }
    }

    /// An exclusive id remains on the server for as long as a shared hold beside it, whose requests extend the lease of both. So its release
    /// is sent again for as long.
    fn note_shared(&mut self, cx: &Cx<'_>) {
        let asking = match &self.wanted {
            Wanted::One(Attempt::Asking(asking)) if asking.only.is_some() => Some(cx.gone_by(asking.lease)),
            _ => None,
        };
        let shared = self.on_server.iter().map(OnServer::lease).filter(|lease| lease.mode() == Mode::Shared);
        if let Some(until) = shared.map(|lease| lease.gone_by).chain(asking).max() {
            self.on_server.iter_mut().for_each(|one| one.lease_mut().is_kept_until(until));
        }
    }

    /// The last nested call of a hold may have failed after its last guard was dropped.
    fn release_empty(&mut self, cx: &mut Cx<'_>) {
        while let Some(at) = self.find_held(|_, holders| holders.is_empty()) {
            self.pass_or_release(at, false, None, cx);
        }
    }

    /// The next waiter acquires an id that is parked, or the id is released for it.
    fn use_parked(&mut self, cx: &mut Cx<'_>) {
        let Some((_, next)) = self.next_waiter() else { return };
        let (terms, mut parked) = (next.terms, self.on_server.iter().filter(|one| matches!(one, OnServer::Parked(..))));
        if parked.any(|one| one.may_admit(next, cx.now)) {
            return; // a reader, at the next confirmation
        }
        let suits = |one: &OnServer| matches!(one, OnServer::Parked(server, ..) if server.suits(&terms));
        let Some(at) = self.on_server.iter().position(suits) else { return self.release_all_parked(cx) };
        if let OnServer::Parked(mut server, waiters, _) = self.on_server.swap_remove(at) {
            if server.mode() == Mode::Exclusive {
                self.others.took_turn(cx.now);
            }
            server.confirmations.confirm_for(waiters, cx.now);
            self.grant(server, cx.now, cx);
        }
    }

    /// A reader that may join a hold needs a confirmation, not a request of its own.
    fn confirm_for_next(&mut self, cx: &mut Cx<'_>) {
        let admitting = self.next_waiter().and_then(|(_, next)| self.admitting(next, cx.now));
        if let Some(server) = admitting.and_then(|at| self.on_server[at].server_hold()) {
            server.confirmations.hurry(cx.now);
        }
    }

    /// A new hold that no waiter wants anymore must not remain on the server: neither a grant in doubt nor a mark.
    fn drop_attempt(&mut self, cx: &mut Cx<'_>) {
        let is_wanted = |asking: &Asking| self.next_waiter().is_some_and(|(_, next)| asking.serves(next, cx.config));
        if let Wanted::One(Attempt::Asking(asking)) = &self.wanted
            && !asking.request.is_under_way()
            && !is_wanted(asking)
        {
            let (mark, in_doubt) = (asking.mark, asking.may_leave_a_hold());
            let release = PendingRelease::of_attempt(asking.id, asking.demand.mode, asking.lease, cx);
            let has_mark = mark.is_some_and(|mark| mark.id == asking.id);
            self.wanted = Wanted::One(Idle::until(cx.now, mark.filter(|_| !has_mark)));
            if in_doubt || has_mark {
                self.put(OnServer::Releasing(release));
            }
        }
        if let Wanted::One(Attempt::Idle(Idle { mark: Some(mark), .. })) = &self.wanted
            && !self.wants_mark(*mark)
        {
            self.release_mark(cx);
        }
    }

    fn release_mark(&mut self, cx: &Cx<'_>) {
        if let Wanted::One(Attempt::Idle(idle)) = &mut self.wanted
            && let Some(mark) = idle.mark.take()
        {
            let release = PendingRelease::of_attempt(mark.id, mark.demand.mode, Default::default(), cx);
            self.put(OnServer::Releasing(release));
        }
    }

    /// Requests a new hold for the next waiter.
    fn send_attempt(&mut self, cx: &mut Cx<'_>) {
        if self.attempt_due(cx.now).is_none_or(|due| due > cx.now) {
            return;
        }
        let Some((_, next)) = self.next_waiter() else { return };
        let (owner, terms, mode, lease, how) =
            (next.owner, next.terms, next.mode(), next.terms.requested_lease(cx.config), self.how(next, cx));
        let last = self.queue.last();
        let Wanted::One(attempt) = &mut self.wanted else { return };
        if let Attempt::Idle(idle) = attempt {
            let Idle { look_at: planned, mark, called, .. } = *idle;
            let of_mark = mark.filter(|mark| mark.demand == terms.demand()).map(|mark| mark.id);
            let id = of_mark.unwrap_or_else(|| self.numbers.hold_for(&terms));
            let request = PendingRequest::new(cx.now);
            let (demand, only, woken) = (terms.demand(), None, false);
            let asking = Asking { id, demand, only, lease, how, request, last, called, woken, mark, planned };
            *attempt = Attempt::Asking(Box::new(asking));
        }
        if let Attempt::Asking(asking) = attempt {
            // This lease is no shorter than that of an earlier try, see `Terms::accepts_lease`.
            (asking.lease, asking.how, asking.woken, asking.last) = (lease, how, false, last);
            asking.only = asking.only.or_else(|| matches!(how, How::Beside(_)).then_some(owner));
            let request = Request::Acquire { id: asking.id, mode, lease, count: 1, how };
            asking.request.send(cx, &mut self.numbers, request);
        }
    }
}
