//! What callers want: to acquire, to look, to leave. And the end of the client.

use std::time::Duration;

use super::{
    hold::{NestedCall, Removed},
    listening::Listening,
    lost::LostHolds,
    on_server::OnServer,
    queue::nested_by,
    requests::ConfirmWaiter,
    server_hold::{Granted, ServerHold},
    state::{Idle, LEAST_TIME_TO_SEE, Life, LockState, TIME_TO_SEE, Wanted},
    types::{Action, Channel, Cx, Limit, Loss, Mode, Moment, Nanos, Outcome, Owner, Terms, Ticket, Waits},
};

impl LockState {
    pub(super) fn acquire(&mut self, ticket: Ticket, caller: (Owner, Terms, Limit), cx: &mut Cx<'_>) {
        let (owner, terms, limit) = caller;
        let own = |mode| self.find_held(|server, holders| server.mode() == mode && holders.has_owner(owner));
        if let Some(at) = own(terms.mode) {
            return self.reenter(at, (ticket, owner, terms), limit, cx);
        }
        if let Some(lost) = self.lost.by(owner) {
            return cx.notify(ticket, Outcome::Lost(lost.loss));
        }
        if terms.mode == Mode::Exclusive && own(Mode::Shared).is_some() {
            return cx.notify(ticket, Outcome::Upgrade);
        }
        let is_beside_own = own(Mode::Exclusive).is_some();
        if self.life == Life::Closed || self.life == Life::Stopping && !is_beside_own {
            return cx.notify(ticket, Outcome::Closed);
        }
        if self.queue.is_empty() || is_beside_own {
            self.look(cx.now);
        }
        self.queue.join(ticket, caller, cx);
    }

    fn reenter(&mut self, at: usize, caller: (Ticket, Owner, Terms), limit: Limit, cx: &mut Cx<'_>) {
        if let OnServer::Held(server, holders) = &mut self.on_server[at] {
            let (ticket, owner, terms) = caller;
            let call = NestedCall { ticket, owner, terms, since: cx.now, by: nested_by(limit, cx) };
            holders.reenter(call, server, cx);
        }
    }

    /// The caller knows that it acquired the lock, and still holds it. Nothing else follows from that, so it takes no look at all facts: this
    /// happens once a turn. False if the hold has ended, or may have.
    pub(crate) fn note_seen(&mut self, ticket: Ticket, now: Moment) -> bool {
        let is_held = self.certain_until(ticket, now).is_some();
        if is_held {
            self.seen(ticket, now);
        }
        is_held
    }

    pub(super) fn seen(&mut self, ticket: Ticket, now: Moment) {
        let is_seen = self.on_server.iter_mut().any(|one| match one {
            OnServer::Held(server, holders) => holders.seen(ticket, server, now),
            _ => false,
        });
        if is_seen {
            self.time_to_see = TIME_TO_SEE;
        }
    }

    /// The caller has what it acquired for itself from now on, and the client has nothing of it anymore. False if the client has released it,
    /// because the caller did not look, or because the client has closed. Then the caller has nothing.
    pub(crate) fn keep(&mut self, ticket: Ticket, now: Moment) -> bool {
        let is_held = self.certain_until(ticket, now).is_some();
        if is_held {
            self.on_server.extend(self.calm.take_with(ticket));
            let is_its = |one: &mut OnServer| matches!(one, OnServer::Held(_, holders) if holders.has(ticket));
            self.on_server.retain_mut(|one| !is_its(one));
            self.calm.remove_guard(ticket);
            self.time_to_see = TIME_TO_SEE;
        }
        is_held
    }

    /// The lock of this guard stays held until then, even after its release.
    pub(crate) fn stay_held(&mut self, guard: Ticket, until: Moment) {
        for one in &mut self.on_server {
            if let OnServer::Held(server, holders) = one
                && holders.has(guard)
            {
                server.lease.not_before = server.lease.not_before.max(until);
            }
        }
    }

    /// The next waiter acquires permits that another caller returns, if it wants as many. Whose permits they are makes no difference, because
    /// nobody owns them. So they get an id of their own, by which they return if that waiter never looks.
    pub(super) fn give_back(&mut self, permits: u16, cx: &mut Cx<'_>) {
        let next = self.next_waiter().filter(|(_, next)| next.terms.permits == permits);
        let Some((ticket, next)) = next.filter(|_| self.others.permit_quick_turn(cx.now, cx.config)) else {
            return self.others.end_row(cx.now); // others learn of the release
        };
        let (terms, request) = (next.terms, self.numbers.last());
        let (id, lease) = (self.numbers.hold_for(&terms), terms.requested_lease(cx.config));
        let granted = Granted { id, mode: terms.mode, token: None, request, sent: cx.now, lease, in_doubt: false };
        self.others.took_turn(cx.now);
        cx.actions.push(Action::PassedOn);
        self.grant_to(Some(ticket), ServerHold::new(granted, cx), cx.now, cx);
    }

    /// A waiter has left, or a guard was dropped or unlocked.
    pub(super) fn leave(&mut self, ticket: Ticket, waiter: Option<ConfirmWaiter>, cx: &mut Cx<'_>) {
        if self.queue.contains(ticket) {
            self.queue.leave(ticket);
            return;
        }
        self.calm.remove_guard(ticket);
        for at in 0..self.on_server.len() {
            let OnServer::Held(server, holders) = &mut self.on_server[at] else { continue };
            match holders.remove(ticket, waiter, server, cx) {
                Removed::Nothing => {}
                Removed::Inner => return,
                Removed::Last { may_pass } => return self.pass_or_release(at, may_pass, waiter, cx),
            }
        }
        self.leave_lost(ticket, waiter, cx);
    }

    /// Another guard of the same hold has so many of its permits from now on, lost or not. The server has the same permits as before.
    pub(crate) fn split(&mut self, guard: Ticket, part: (Ticket, u32)) {
        if !self.calm.split(guard, part) {
            self.on_server.iter_mut().for_each(|one| one.split(guard, part));
        }
        self.lost.changed().into_iter().for_each(|lost| lost.split(guard, part));
    }

    /// These callers do not look: others go first.
    pub(super) fn pass_over(&mut self, absent: Vec<Ticket>, cx: &mut Cx<'_>) {
        self.time_to_see = Nanos::of(Duration::from(self.time_to_see) / 2).max(LEAST_TIME_TO_SEE);
        for ticket in absent {
            cx.notify(ticket, Outcome::StartAgain);
            self.leave(ticket, None, cx);
        }
    }

    fn leave_lost(&mut self, ticket: Ticket, waiter: Option<ConfirmWaiter>, cx: &mut Cx<'_>) {
        let loss = self.loss_of(ticket);
        waiter.into_iter().for_each(|waiter| cx.notify(waiter.ticket, Outcome::Lost(loss)));
        let Some(of) = self.lost.changed().and_then(|lost| lost.remove(ticket, cx)) else { return };
        self.lost.forget_if(LostHolds::is_empty);
        let is_it = |one: &OnServer| matches!(one, OnServer::Lost(server) if server.id == of);
        let at = self.on_server.iter().position(is_it);
        at.into_iter().for_each(|at| self.release_lost(at, cx)); // the server may still have it
    }

    /// Why the guard with this ticket was lost.
    pub(crate) fn loss_of(&self, guard: Ticket) -> Loss {
        self.known_loss_of(guard).unwrap_or(Loss::Removed)
    }

    /// Why the guard with this ticket was lost; `None` if there is no such guard, because it was released.
    pub(crate) fn known_loss_of(&self, guard: Ticket) -> Option<Loss> {
        let known = self.lost.with(guard).map(|lost| lost.loss);
        known.or((self.life == Life::Closed).then_some(Loss::Closed))
    }

    pub(super) fn check(&mut self, guard: Ticket, ticket: Ticket, lease: Option<Duration>, cx: &mut Cx<'_>) {
        let Some(at) = self.find_held(|_, holders| holders.has(guard)) else {
            return cx.notify(ticket, Outcome::Lost(self.loss_of(guard)));
        };
        if let OnServer::Held(server, _) = &mut self.on_server[at] {
            server.confirmations.extend(lease);
            server.confirmations.confirm_for(Some(ConfirmWaiter::new(ticket, cx)), cx.now);
        }
    }

    // ---- the end ----

    pub(super) fn stop(&mut self, life: Life, cx: &mut Cx<'_>) {
        self.life = self.life.max(life);
        self.end_waits(cx);
        if let Wanted::One(attempt) = &mut self.wanted
            && cx.rules.waits == Waits::ToPass
        {
            // Nothing is left of a request that only looks, so the end of the client does not wait for its reply.
            *attempt = Idle::until(cx.now, None);
        }
        self.release_all_parked(cx);
    }

    /// Nobody acquires the lock anymore. While the client stops, an owner that writes may still read, as it may go on writing.
    pub(super) fn end_waits(&mut self, cx: &mut Cx<'_>) {
        if self.life == Life::Open || self.queue.is_empty() {
            return;
        }
        let may_read = self.life == Life::Stopping;
        let writers = self.held().filter(|(server, _)| may_read && server.mode() == Mode::Exclusive);
        let writers: Vec<_> = writers.flat_map(|(_, holders)| holders.owners()).collect();
        self.queue.end_all_but(&writers, cx, Outcome::Closed);
    }

    pub(super) fn close(&mut self, cx: &mut Cx<'_>) {
        self.stop(Life::Closed, cx);
        while let Some(at) = self.find_held(|_, _| true) {
            self.lose(at, Loss::Closed, cx);
        }
        // Guards that are dropped later find nothing to release.
        for at in (0..self.on_server.len()).rev() {
            let OnServer::Lost(server) = &mut self.on_server[at] else { continue };
            server.confirmations.take_waiters().notify(cx, Outcome::Closed);
            // A client may have lost thousands, and the server has nothing left of most.
            let is_gone = self.lost.of(server.id).all(|lost| lost.loss == Loss::Removed);
            match is_gone || server.lease.gone_by <= cx.now {
                true => _ = self.on_server.swap_remove(at),
                false => self.release_lost(at, cx),
            }
        }
        self.lost.changed().into_iter().for_each(|lost| lost.end(cx));
    }

    // ---- connections and messages ----

    pub(super) fn reconnected(&mut self, cx: &mut Cx<'_>) {
        for one in &mut self.on_server {
            if let OnServer::Held(server, _) | OnServer::Parked(server, ..) = one {
                server.confirmations.hurry(cx.now);
            }
        }
        match &mut self.wanted {
            Wanted::One(_) => self.look(cx.now),
            Wanted::Places(places) => places.reconnected(cx.now),
        }
    }

    /// The next confirmation shows what this client still holds. Until then it passes on nothing in memory.
    pub(super) fn forced(&mut self, cx: &mut Cx<'_>) {
        self.forced_after = self.numbers.last();
        self.release_all_parked(cx);
        self.confirm_disputed(cx);
        self.look(cx.now);
    }

    pub(super) fn received_message(&mut self, channel: Channel, cx: &Cx<'_>) {
        match (channel, &mut self.wanted) {
            (Channel::Place(id), Wanted::Places(places)) => {
                places.change_waiting(id, |waiting| waiting.look(cx.now));
            }
            _ => {
                self.others.received_message(cx.now, cx.config);
                self.called(cx);
            }
        }
    }

    pub(super) fn subscribed(&mut self, channel: Channel, cx: &Cx<'_>) {
        match (channel, &mut self.wanted) {
            (Channel::Place(id), Wanted::Places(places)) => {
                places.change_waiting(id, |waiting| waiting.subscribed(cx.now));
            }
            _ if self.listening != Listening::Off => {
                self.listening = Listening::On;
                self.look(cx.now); // a release may have been published before
            }
            _ => {}
        }
    }

    pub(super) fn unsubscribed(&mut self, channel: Channel, cx: &Cx<'_>) {
        match (channel, &mut self.wanted) {
            (Channel::Place(id), Wanted::Places(places)) => {
                places.change_waiting(id, |waiting| waiting.unsubscribed(cx.now));
            }
            _ if self.listening == Listening::On => {
                self.listening = Listening::Requested(0);
                self.look(cx.now);
            }
            _ => {}
        }
    }
}
