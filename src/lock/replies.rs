//! What the server says: replies to requests, and requests that failed.

use std::time::Duration;

use super::{
    hold::Holders,
    listening::{Listening, until_next},
    on_server::OnServer,
    release::{HandedOver, PendingRelease},
    requests::Failure,
    server_hold::{Granted, ServerHold, was_held},
    state::{Asking, Attempt, Idle, LockState, Mark, Refusal, Wanted},
    types::{Action, Channel, Cx, Demand, HoldId, How, Loss, Mode, Moment, Outcome, Reply, RequestId, Ticket, Waits},
};

impl LockState {
    pub(super) fn replied(&mut self, request: RequestId, reply: Reply, cx: &mut Cx<'_>) {
        self.unanswered_since = None;
        self.request_ended(request, cx);
        if let Some(place) = self.place_awaiting(request) {
            return self.place_replied(place, request, reply, cx);
        }
        if let Wanted::One(Attempt::Asking(asking)) = &self.wanted
            && let Some(sent) = asking.request.sent(request)
        {
            return self.attempt_replied((request, sent), reply, cx);
        }
        let Some(at) = self.on_server.iter().position(|one| one.awaits(request)) else { return };
        match &mut self.on_server[at] {
            OnServer::Held(server, Holders::One(hold, reentry)) if reentry.is_counted_by(request) => {
                if !reentry.counted(hold, server, request, reply, cx) {
                    self.lose(at, Loss::Removed, cx);
                } else if cx.rules.waits.are_for_permits() {
                    self.called(cx); // permits were released
                }
            }
            OnServer::Held(..) | OnServer::Parked(..) => self.confirmed(at, reply, cx),
            OnServer::Lost(server) => confirmed_lost(server, reply, cx),
            OnServer::Releasing(release) if release.is_handing_over() => self.handed_over(at, request, reply, cx),
            OnServer::Releasing(_) => self.released(at, reply, cx),
        }
    }

    // ---- a new hold ----

    fn attempt_replied(&mut self, (request, sent): (RequestId, Moment), reply: Reply, cx: &mut Cx<'_>) {
        let idle = Wanted::One(Idle::until(cx.now, None));
        let Wanted::One(Attempt::Asking(asking)) = std::mem::replace(&mut self.wanted, idle) else { return };
        let is_granted = matches!(reply, Reply::Granted(_) | Reply::TooFewReplicas);
        let mark = asking.mark.filter(|mark| !is_granted || mark.id != asking.id); // the server removes it
        self.wanted = Wanted::One(Idle::until(cx.now, mark));
        let token = if let Reply::Granted(token) = reply { token } else { None };
        let Asking { id, demand: Demand { mode, .. }, lease, how, .. } = *asking;
        let in_doubt = asking.request.is_in_doubt();
        let granted = Granted { id, mode, token, request, sent, lease, in_doubt };
        if let Reply::Busy { by, .. } = reply {
            self.release_late(&asking, by, cx);
        }
        if !asking.is_named_in(reply) {
            self.release_forgotten(reply, cx);
        }
        match reply {
            Reply::Granted(_) => {
                if asking.demand.is_for_one() {
                    // not if a hold passes on in memory: others may still be about to acquire what was released
                    self.others.had_their_turn(cx.now, cx.config);
                }
                let mut server = ServerHold::new(granted, cx);
                if asking.only.is_none() {
                    server.lease.admits(sent, cx.config); // beside a writer, others are not admitted
                }
                if mode == Mode::Exclusive {
                    self.lose_others(&server, cx);
                }
                match self.next_waiter() {
                    Some((_, next)) if !asking.serves(next, cx.config) => self.release(server, cx),
                    _ => self.grant(server, sent, cx),
                }
            }
            Reply::TooFewReplicas => {
                self.end_next(cx, Outcome::TooFewReplicas);
                self.release(ServerHold::new(granted, cx), cx);
            }
            Reply::Busy { left, by, own } => match own.and_then(|own| self.pause_behind(own)) {
                Some(pause) => self.busy_by_own_release(&asking, by, cx.now + pause),
                None => self.busy(&asking, sent, (left, by, own), cx),
            },
            Reply::Lost => self.writer_lost(how, cx),
            Reply::Open => self.queue.pass(asking.last, cx),
            _ => self.end_served(&asking, Outcome::Refused, cx),
        }
        let passed = self.writer_passed(&asking, reply, cx);
        self.queue.changed().into_iter().for_each(|queue| queue.passed = passed);
    }

    /// An earlier try of a request that was refused may run later. Nobody would use what it acquires, unless its id is that of a mark: the next
    /// request has the same id.
    fn release_late(&mut self, asking: &Asking, by: Mode, cx: &Cx<'_>) {
        let is_marked = mark_after(asking, by).is_some_and(|mark| mark.id == asking.id);
        if asking.may_leave_a_hold() && !is_marked {
            self.put(OnServer::Releasing(PendingRelease::of_attempt(asking.id, asking.demand.mode, asking.lease, cx)));
        }
    }

    /// The server has a hold of this client that has ended here: a failover has lost its release, and nobody else will release it.
    pub(super) fn release_forgotten(&mut self, reply: Reply, cx: &Cx<'_>) {
        let (own, mode, left) = match reply {
            Reply::Busy { own: Some(own), by, left } => (own, by, left),
            Reply::Queued { own: Some(own), left, .. } => (own, Mode::Exclusive, left),
            _ => return,
        };
        if !self.is_known(own) {
            let lease = left.unwrap_or(cx.config.watchdog);
            self.put(OnServer::Releasing(PendingRelease::of_attempt(own, mode, lease, cx)));
        }
    }

    fn is_known(&self, id: HoldId) -> bool {
        let is_place = matches!(&self.wanted, Wanted::Places(places) if places.get(id).is_some());
        is_place || self.on_server.iter().any(|one| one.has_id(id))
    }

    fn busy(
        &mut self,
        asking: &Asking,
        sent: Moment,
        (left, by, own): (Option<Duration>, Mode, Option<HoldId>),
        cx: &mut Cx<'_>,
    ) {
        let is_own_mark = own.is_some() && own == asking.mark.map(|mark| mark.id);
        if asking.demand.is_for_one() {
            self.others.hold_it();
        }
        if by == Mode::Exclusive && !is_own_mark && self.held().any(|(server, _)| server.mode() == Mode::Shared) {
            self.forced(cx); // a writer and a reader exclude each other
        }
        self.count_beaten(asking, cx);
        match cx.rules.waits {
            Waits::ToPass => self.queue.shut(asking.last, sent, cx),
            _ => self.queue.refuse(
                asking.last,
                if by == Mode::Exclusive { Mode::Shared } else { asking.demand.mode },
                None,
                cx,
            ),
        }
        let mark = mark_after(asking, by);
        let nap = until_next(left, self.listening.nap(mark.is_some(), cx.config.publishes));
        let latest = match self.queue.passed {
            Some(_) if asking.demand.mode == Mode::Shared => asking.planned,
            _ => Moment::FAR,
        };
        let look_at = if asking.woken { cx.now } else { latest.min(cx.now + nap) };
        let called = cx.rules.waits.leave_marks() && asking.woken;
        let idle = Idle { look_at, called, refused: Refusal::Of(asking.demand), mark };
        self.wanted = Wanted::One(Attempt::Idle(idle));
        match &mut self.listening {
            Listening::Requested(looks) => *looks = looks.saturating_add(1),
            Listening::Off if !self.queue.is_empty() => {
                self.listening = Listening::Requested(1);
                cx.actions.push(Action::Subscribe(Channel::Name));
            }
            Listening::Off | Listening::On => {}
        }
    }

    /// The first waiter, if it is a writer that readers may pass now. The writer for which the request was sent may have left since.
    fn writer_passed(&self, asking: &Asking, reply: Reply, cx: &Cx<'_>) -> Option<Ticket> {
        let was_late = asking.how == How::Late && asking.demand.mode == Mode::Exclusive;
        let is_read = matches!(reply, Reply::Busy { by: Mode::Shared, .. });
        let (writer, _) = self.queue.first().filter(|(_, first)| was_late && is_read && first.lets_readers_pass(cx))?;
        Some(writer)
    }

    /// Another client was quicker after a release, or this client learns of none.
    fn count_beaten(&mut self, asking: &Asking, cx: &Cx<'_>) {
        let is_beaten = asking.called || self.listening != Listening::On;
        if cx.rules.waits.leave_marks()
            && is_beaten
            && let Some((ticket, _)) = self.next_waiter()
        {
            self.queue.beaten(ticket);
        }
    }

    /// Waiters learn nothing from that: another client may acquire the lock before them when the release arrives. If that takes too long,
    /// their calls end without a result.
    fn busy_by_own_release(&mut self, asking: &Asking, by: Mode, look_at: Moment) {
        let mark = mark_after(asking, by);
        let idle = Idle { look_at, called: asking.called, refused: Refusal::ByOwnRelease, mark };
        self.wanted = Wanted::One(Attempt::Idle(idle));
    }

    /// The server does not have the hold beside which an owner wanted to read.
    fn writer_lost(&mut self, how: How, cx: &mut Cx<'_>) {
        let is_it = |server: &ServerHold| how == How::Beside(server.id);
        if let Some(at) = self.find_held(|server, _| is_it(server)) {
            self.lose(at, Loss::Removed, cx);
        }
    }

    /// The reply is for all waiters that had joined when the request was sent, if it would have served them.
    fn end_served(&mut self, asking: &Asking, outcome: Outcome, cx: &mut Cx<'_>) {
        while let Some((ticket, next)) = self.next_waiter()
            && ticket <= asking.last
            && asking.serves(next, cx.config)
        {
            self.queue.end(ticket, cx, outcome);
        }
    }

    fn end_next(&mut self, cx: &mut Cx<'_>, outcome: Outcome) {
        if let Some((ticket, _)) = self.next_waiter() {
            self.queue.end(ticket, cx, outcome);
        }
    }

    // ---- confirmations ----

    fn confirmed(&mut self, at: usize, reply: Reply, cx: &mut Cx<'_>) {
        let Some(server) = self.on_server[at].server_hold() else { return };
        let (id, earlier) = (server.id, cx.actions.len());
        match server.confirmed(cx, reply) {
            None => self.lose(at, Loss::Removed, cx),
            Some(sent) => {
                self.admit_more(at, sent, cx);
                self.gather(id, earlier, cx);
                self.confirm_disputed(cx);
            }
        }
    }

    /// Callers that were notified together soon need a confirmation again, to leave or to enter. The client sends it after the other tasks have
    /// run, so one confirmation serves them all. The actions after `earlier` are about the reply for `id`. Only this id waits. If others did,
    /// their replies could prolong the wait of one another without end.
    fn gather(&mut self, id: HoldId, earlier: usize, cx: &mut Cx<'_>) {
        if cx.has_notified_several(earlier) {
            let servers = self.on_server.iter_mut().filter_map(OnServer::server_hold);
            servers.filter(|server| server.id == id).for_each(|server| server.confirmations.gather(cx));
        }
    }

    /// Readers enter that have waited for this confirmation. If no owner uses the id, it is parked until other tasks have run.
    fn admit_more(&mut self, at: usize, sent: Moment, cx: &mut Cx<'_>) {
        match self.on_server.swap_remove(at) {
            OnServer::Held(mut server, Holders::Readers(mut readers)) => {
                readers.confirmed(&mut server, sent, cx);
                self.admit(&mut server, &mut readers, sent, cx);
                self.put(OnServer::Held(server, Holders::Readers(readers)));
            }
            OnServer::Parked(mut server, waiters, until) if server.mode() == Mode::Shared => {
                let mut readers = Holders::readers();
                self.admit(&mut server, &mut readers, sent, cx);
                if readers.is_empty() {
                    return self.parked_on(server, waiters, until, cx);
                }
                server.confirmations.confirm_for(waiters, cx.now);
                self.put(OnServer::Held(server, Holders::Readers(readers)));
            }
            OnServer::Parked(server, waiters, until) => self.parked_on(server, waiters, until, cx),
            other => self.put(other),
        }
    }

    // ---- ids that are given up ----

    fn handed_over(&mut self, at: usize, request: RequestId, reply: Reply, cx: &mut Cx<'_>) {
        let OnServer::Releasing(mut release) = self.on_server.swap_remove(at) else { return };
        match release.handed_over(request, reply, cx) {
            HandedOver::Granted(granted) => {
                let receiver = self.receiver(Mode::Exclusive);
                let (server, asked) = (ServerHold::new(granted, cx), (granted.lease, granted.sent));
                self.grant_requested(receiver, server, asked, cx);
            }
            HandedOver::Gone => {}
            HandedOver::Released(next) => {
                self.put(OnServer::Releasing(release));
                next.into_iter().for_each(|next| self.put(OnServer::Releasing(next)));
                self.look(cx.now);
            }
        }
    }

    fn released(&mut self, at: usize, reply: Reply, cx: &mut Cx<'_>) {
        let OnServer::Releasing(release) = self.on_server.swap_remove(at) else { return };
        if let (Reply::Released { receivers }, Wanted::One(_)) = (reply, &self.wanted)
            && (release.mode() == Mode::Exclusive || cx.rules.passes_on)
        {
            self.others.released(receivers, self.listening == Listening::On, cx.now, cx.config);
        }
        release.ended(matches!(reply, Reply::Released { .. }), cx);
        self.called(cx);
    }

    // ---- failures ----

    pub(super) fn failed(&mut self, request: RequestId, failure: Failure, cx: &mut Cx<'_>) {
        self.note_silence(request, failure);
        self.request_ended(request, cx);
        if let Some(place) = self.place_awaiting(request) {
            return self.place_failed(place, request, failure, cx);
        }
        if let Wanted::One(Attempt::Asking(asking)) = &mut self.wanted
            && asking.request.is(request)
        {
            asking.request.failed(cx.now, failure);
            let refused = (failure == Failure::Refused).then(|| asking.clone());
            return refused.into_iter().for_each(|asking| self.end_served(&asking, Outcome::Refused, cx));
        }
        let Some(at) = self.on_server.iter().position(|one| one.awaits(request)) else { return };
        match &mut self.on_server[at] {
            OnServer::Held(_, Holders::One(_, reentry)) if reentry.is_counted_by(request) => {
                reentry.count_failed(cx, failure);
            }
            OnServer::Releasing(release) => {
                release.failed(cx, failure);
                if failure == Failure::Refused {
                    // A server without memory, for example, refuses a hand-over, but not a release.
                    let next = release.release_instead(cx);
                    next.into_iter().for_each(|next| self.put(OnServer::Releasing(next)));
                }
            }
            OnServer::Held(server, Holders::Readers(readers)) => {
                readers.confirmation_failed(server, request, failure, cx);
            }
            other => other.server_hold().into_iter().for_each(|server| server.confirmation_failed(cx, failure)),
        }
    }

    fn note_silence(&mut self, request: RequestId, failure: Failure) {
        let asked = match &self.wanted {
            Wanted::One(Attempt::Asking(asking)) => asking.request.sent(request),
            Wanted::One(Attempt::Idle(_)) | Wanted::Places(_) => None,
        };
        let sent = asked.or_else(|| self.on_server.iter().find_map(|one| one.sent(request)));
        self.unanswered_since = match failure {
            Failure::Refused => None,
            Failure::Unknown | Failure::Unclear | Failure::NotNow => self.unanswered_since.or(sent),
        };
    }

    /// What waits for the end of this request goes on, whatever its result.
    fn request_ended(&mut self, request: RequestId, cx: &Cx<'_>) {
        self.on_server.iter_mut().for_each(|one| one.request_ended(request));
        self.release_ended(request, cx.now);
    }
}

fn confirmed_lost(server: &mut ServerHold, reply: Reply, cx: &mut Cx<'_>) {
    if server.confirmed(cx, reply).is_none() {
        server.confirmations.take_waiters().notify(cx, was_held(false, false, server.lease.certain_until, cx.now));
    }
}

/// A writer that waits behind readers leaves a mark on the server, and so does a waiter that was refused several times.
fn mark_after(asking: &Asking, by: Mode) -> Option<Mark> {
    let is_left = match asking.how {
        How::Turn | How::Late => true,
        How::Wait => asking.demand.mode == Mode::Exclusive && by == Mode::Shared,
        How::Try | How::Queue(..) | How::Beside(_) | How::Again | How::Look => false,
    };
    let left = Mark { id: asking.id, demand: asking.demand };
    asking.mark.or(is_left.then_some(left))
}
