//! How the lock passes from owner to owner: acquired, passed on, released, lost.

use std::time::Duration;

use super::{
    hold::{Hold, Holders, NestedCall, Readers, Reentry},
    lost::LostHold,
    on_server::{OnServer, ParkedUntil},
    queue::Waiter,
    rare::Rare,
    release::{NextHold, PendingRelease},
    requests::{ConfirmWaiter, ConfirmWaiters},
    server_hold::ServerHold,
    state::{Life, LockState, Wanted},
    types::{Action, Cx, Loss, Mode, Moment, Outcome, Owner, Terms, Ticket},
};

/// How often in a row the lease of a grant, or its `max_hold`, may have ended before the caller is notified of that.
const TOO_LATE: u8 = 3;

impl LockState {
    // ---- acquired ----

    /// The next waiter acquires this id, by a request that was sent at `sent`. Without a waiter the id is released.
    pub(super) fn grant(&mut self, server: ServerHold, sent: Moment, cx: &mut Cx<'_>) {
        let receiver = self.receiver(server.mode());
        self.grant_to(receiver, server, sent, cx);
    }

    /// This waiter acquires this id, unless it was requested for another one with a longer lease.
    pub(super) fn grant_requested(
        &mut self,
        receiver: Option<Ticket>,
        server: ServerHold,
        (lease, sent): (Duration, Moment),
        cx: &mut Cx<'_>,
    ) {
        match receiver.and_then(|ticket| self.queue.get(ticket)) {
            Some(waiter) if !waiter.terms.accepts_lease(lease, cx.config) => self.release(server, cx),
            _ => self.grant_to(receiver, server, sent, cx),
        }
    }

    /// This waiter acquires this id, by a request that was sent at `sent`. Without one the id is released.
    pub(super) fn grant_to(&mut self, receiver: Option<Ticket>, server: ServerHold, sent: Moment, cx: &mut Cx<'_>) {
        match receiver {
            None => self.release(server, cx),
            Some(ticket) if self.is_too_late(ticket, &server, sent, cx) => {
                self.granted_too_late(ticket, &server, cx);
                self.release(server, cx);
            }
            Some(ticket) if server.mode() == Mode::Exclusive || cx.rules.waits.are_for_permits() => {
                self.grant_to_one(server, ticket, sent, cx);
            }
            Some(ticket) => {
                self.grant_to_readers(server, ticket, sent, cx);
                self.written_by_readers(cx);
            }
        }
        self.confirm_disputed(cx);
        self.refuse(cx);
    }

    /// They have the same key as a writer of the same owner.
    fn written_by_readers(&mut self, cx: &Cx<'_>) {
        for one in &mut self.on_server {
            if let OnServer::Held(server, _) = one
                && server.mode() == Mode::Exclusive
            {
                server.confirmations.written(cx.now, cx.config);
            }
        }
    }

    /// An exclusive id was granted. If that is certain, the server has no hold of another owner.
    pub(super) fn lose_others(&mut self, granted: &ServerHold, cx: &mut Cx<'_>) {
        while granted.lease.certain_until > cx.now
            && let Some(at) = self.find_held(|_, _| true)
        {
            self.lose(at, Loss::Removed, cx);
        }
    }

    /// Another request must show whether the server has these ids.
    pub(super) fn confirm_disputed(&mut self, cx: &Cx<'_>) {
        let forced_after = self.forced_after;
        for one in &mut self.on_server {
            if let OnServer::Held(server, _) = one
                && !server.is_found_since(forced_after)
            {
                server.lease.close();
                server.confirmations.look_by(cx.now);
            }
        }
    }

    fn grant_to_one(&mut self, mut server: ServerHold, ticket: Ticket, sent: Moment, cx: &mut Cx<'_>) {
        let Some(waiter) = self.queue.leave(ticket) else { return };
        let mut hold = Hold::new(waiter.owner, server.mode(), sent);
        hold.add((ticket, waiter.terms), sent, cx);
        server.count = hold.count();
        let mut reentry = Rare::<Reentry>::default();
        for (branch, other) in self.branches(waiter.owner) {
            match other.mode() {
                Mode::Exclusive => reentry.reenter(nested_branch(branch, &other, cx)),
                Mode::Shared => self.queue.put_back(branch, other), // it reads beside this hold
            }
        }
        lengthen(&mut server, waiter.terms, sent, cx);
        if cx.rules.waits.are_for_permits() {
            self.calm.add_guard(ticket, server.id);
        }
        self.put(OnServer::Held(server, Holders::One(hold, reentry)));
    }

    fn grant_to_readers(&mut self, mut server: ServerHold, first: Ticket, sent: Moment, cx: &mut Cx<'_>) {
        let Some(waiter) = self.queue.leave(first) else { return };
        if !waiter.terms.accepts_any_hold() {
            server.lease.close();
        }
        lengthen(&mut server, waiter.terms, sent, cx);
        let (mut readers, earlier) = (Holders::readers(), cx.actions.len());
        self.enter(first, waiter, &mut server, &mut readers, sent, cx);
        self.admit(&mut server, &mut readers, sent, cx);
        if cx.has_notified_several(earlier) {
            server.confirmations.gather(cx);
        }
        self.put(OnServer::Held(server, Holders::Readers(readers)));
    }

    /// Readers that are next in the queue join an id, if they called before a request that would have admitted them, too.
    pub(super) fn admit(&mut self, server: &mut ServerHold, readers: &mut Readers, sent: Moment, cx: &mut Cx<'_>) {
        let may_join = |waiter: &Waiter| waiter.terms.accepts_any_hold() && waiter.joined <= sent;
        while server.is_open(sent)
            && let Some(ticket) = self.receiver(Mode::Shared)
            && !self.is_too_late(ticket, server, sent, cx)
            && self.next_waiter().is_some_and(|(_, waiter)| may_join(waiter))
            && let Some(waiter) = self.queue.leave(ticket)
        {
            self.enter(ticket, waiter, server, readers, sent, cx);
        }
    }

    fn enter(
        &mut self,
        ticket: Ticket,
        waiter: Waiter,
        server: &mut ServerHold,
        readers: &mut Readers,
        sent: Moment,
        cx: &mut Cx<'_>,
    ) {
        readers.admit(waiter.owner, (ticket, waiter.terms), sent, cx);
        for (branch, other) in self.branches(waiter.owner) {
            match other.mode() {
                Mode::Exclusive => cx.notify(branch, Outcome::Upgrade),
                Mode::Shared => {
                    readers.reenter(nested_branch(branch, &other, cx), server, cx);
                }
            }
        }
    }

    /// Other waiters of the same owner.
    fn branches(&mut self, owner: Owner) -> Vec<(Ticket, Waiter)> {
        std::iter::from_fn(|| self.queue.take_of(owner)).collect()
    }

    /// The lease, or the `max_hold` of this waiter, has ended before it can be notified.
    fn is_too_late(&self, ticket: Ticket, server: &ServerHold, sent: Moment, cx: &Cx<'_>) -> bool {
        server.lease.certain_until <= cx.now
            || self.queue.get(ticket).is_some_and(|waiter| waiter.terms.cap(sent) <= cx.now)
    }

    fn granted_too_late(&mut self, ticket: Ticket, server: &ServerHold, cx: &mut Cx<'_>) {
        let Some(mut waiter) = self.queue.leave(ticket) else { return };
        waiter.too_late += 1;
        let loss = if server.lease.certain_until <= cx.now { Loss::Expired } else { Loss::MaxHold };
        match waiter.too_late {
            TOO_LATE => cx.notify(ticket, Outcome::Lost(loss)),
            _ => self.queue.put_back(ticket, waiter),
        }
    }

    /// Waiters that wait for the next reply only need none while an owner of this client holds the lock.
    pub(super) fn refuse(&mut self, cx: &mut Cx<'_>) {
        if !self.queue.needs_reply() || self.held().any(|(server, _)| self.is_disputed(server)) {
            return;
        }
        match self.writer() {
            Some((_, owner)) => self.queue.refuse(Ticket::LAST, Mode::Shared, Some(owner), cx),
            None if self.held().next().is_some() => self.queue.refuse(Ticket::LAST, Mode::Exclusive, None, cx),
            None => {}
        }
    }

    // ---- left ----

    /// The last guard of a held id has left: the next waiter acquires it in memory or by a request, or it is parked, or it is released.
    pub(super) fn pass_or_release(
        &mut self,
        at: usize,
        may_pass: bool,
        waiter: Option<ConfirmWaiter>,
        cx: &mut Cx<'_>,
    ) {
        match self.on_server.swap_remove(at) {
            OnServer::Held(mut server, Holders::One(hold, mut reentry)) => {
                hold.left(cx);
                let nested = reentry.take_waiters();
                if !nested.is_empty() {
                    server.confirmations.confirm_for(nested, cx.now);
                }
                match self.wanted {
                    Wanted::One(_) => self.pass_or_release_one(server, &hold, may_pass, waiter, cx),
                    Wanted::Places(_) => self.release_for(waiter, server, &hold, cx), // the server decides which waiter is next
                }
            }
            OnServer::Held(server, Holders::Readers(_)) => {
                self.park_or_release_shared(server, may_pass, waiter, cx);
            }
            other => self.put(other),
        }
    }

    fn pass_or_release_one(
        &mut self,
        mut server: ServerHold,
        hold: &Hold,
        may_pass: bool,
        waiter: Option<ConfirmWaiter>,
        cx: &mut Cx<'_>,
    ) {
        let may_stay = self.has_turn(cx) && server.lease.not_before <= cx.now;
        let is_certain = server.is_clean() && server.has_long_lease(cx.now, cx.config) && !self.is_disputed(&server);
        let may_pass = may_pass && may_stay && is_certain && cx.rules.passes_on;
        let may_park = may_pass && !self.others.may_wait && self.life == Life::Open;
        match self.queue.first().map(|(_, next)| next.terms) {
            Some(next) if may_pass && server.suits(&next) => {
                server.confirmations.gather_row(cx);
                server.confirmations.confirm_for(waiter, cx.now);
                hold.ended(None, cx);
                self.others.took_turn(cx.now);
                self.grant(server, cx.now, cx);
            }
            Some(next) if next.mode == Mode::Exclusive && may_stay && server.is_last() && !self.has_held() => {
                self.others.took_turn(cx.now);
                let next = NextHold { id: self.numbers.hold(), lease: next.requested_lease(cx.config) };
                let release = PendingRelease::new(server, hold.is_shown(), cx).handing_over(next, waiter);
                self.put(OnServer::Releasing(release));
            }
            None if may_park && server.confirmations.has_waiters() => {
                hold.ended(None, cx);
                self.put(OnServer::Parked(server, waiter.into(), ParkedUntil::Confirmed));
            }
            _ => self.release_for(waiter, server, hold, cx),
        }
    }

    fn has_turn(&self, cx: &Cx<'_>) -> bool {
        match cx.rules.waits.are_for_permits() {
            true => self.others.permit_quick_turn(cx.now, cx.config),
            false => self.others.permit_turn(cx.now, cx.config),
        }
    }

    /// The last guard of this hold has left. The reply to the release notifies this caller.
    fn release_for(&mut self, waiter: Option<ConfirmWaiter>, mut server: ServerHold, hold: &Hold, cx: &mut Cx<'_>) {
        server.confirmations.confirm_for(waiter, cx.now);
        self.release_hold(server, hold.is_shown(), cx);
    }

    fn park_or_release_shared(
        &mut self,
        mut server: ServerHold,
        may_pass: bool,
        waiter: Option<ConfirmWaiter>,
        cx: &mut Cx<'_>,
    ) {
        let may_pass = may_pass && !self.lost.has_of(server.id);
        let is_open = server.may_admit(cx.now) && server.has_long_lease(cx.now, cx.config);
        let may_park = may_pass
            && is_open
            && !self.is_disputed(&server)
            && server.lease.not_before <= cx.now
            && self.life == Life::Open;
        let is_wanted = match self.queue.first() {
            Some((_, next)) => next.mode() == Mode::Shared && next.terms.accepts_any_hold(),
            None => server.confirmations.has_waiters(),
        };
        if may_park && is_wanted {
            return self.put(OnServer::Parked(server, waiter.into(), ParkedUntil::Confirmed));
        }
        server.confirmations.confirm_for(waiter, cx.now);
        self.release_or_lose(server, cx);
    }

    /// No owner here wants it anymore. The next waiter sends its request when this has a reply, or has failed once.
    pub(super) fn release(&mut self, server: ServerHold, cx: &mut Cx<'_>) {
        self.release_hold(server, false, cx);
    }

    /// `ends_hold`: the last guard of a hold has left.
    pub(super) fn release_hold(&mut self, server: ServerHold, ends_hold: bool, cx: &mut Cx<'_>) {
        self.put(OnServer::Releasing(PendingRelease::new(server, ends_hold, cx)));
        self.look(cx.now);
    }

    /// An id that is parked is released.
    pub(super) fn release_parked(&mut self, at: usize, cx: &mut Cx<'_>) {
        match self.on_server.swap_remove(at) {
            OnServer::Parked(server, waiters, _) => self.release_unused(server, waiters, cx),
            other => self.put(other),
        }
    }

    /// The other tasks have run. The callers that were notified together have called, so their confirmation may be sent. No task acquired the
    /// ids that are parked: one more confirmation, and then they are released.
    pub(super) fn yielded(&mut self, cx: &Cx<'_>) {
        for one in &mut self.on_server {
            one.server_hold().into_iter().for_each(|server| server.confirmations.gathered());
            if let OnServer::Parked(server, _, until @ ParkedUntil::OthersHaveRun) = one {
                *until = ParkedUntil::ConfirmedAgain;
                server.confirmations.hurry(cx.now);
            }
        }
    }

    /// The server has confirmed an id that is parked.
    pub(super) fn parked_on(
        &mut self,
        server: ServerHold,
        waiters: ConfirmWaiters,
        until: ParkedUntil,
        cx: &mut Cx<'_>,
    ) {
        match until {
            ParkedUntil::Confirmed => cx.actions.push(Action::Yield),
            ParkedUntil::OthersHaveRun => {}
            ParkedUntil::ConfirmedAgain => return self.release_unused(server, waiters, cx),
        }
        self.put(OnServer::Parked(server, waiters, ParkedUntil::OthersHaveRun));
    }

    fn release_unused(&mut self, mut server: ServerHold, waiters: ConfirmWaiters, cx: &mut Cx<'_>) {
        server.confirmations.confirm_for(waiters, cx.now);
        self.release(server, cx);
    }

    pub(super) fn release_all_parked(&mut self, cx: &mut Cx<'_>) {
        let parked = |state: &LockState| state.on_server.iter().position(|one| matches!(one, OnServer::Parked(..)));
        while let Some(at) = parked(self) {
            self.release_parked(at, cx);
        }
    }

    // ---- lost ----

    /// The id has ended before its guards were dropped. The next waiter may send a request. The server may have the id for the rest of its
    /// lease.
    pub(super) fn lose(&mut self, at: usize, loss: Loss, cx: &mut Cx<'_>) {
        match self.on_server.swap_remove(at) {
            OnServer::Held(server, holders) => self.lose_held(server, holders, loss, cx),
            OnServer::Parked(mut server, mut waiters, _) => {
                waiters.notify(cx, Outcome::Lost(loss));
                server.confirmations.take_waiters().notify(cx, Outcome::Lost(loss));
                self.release(server, cx);
            }
            other => self.put(other),
        }
    }

    fn lose_held(&mut self, mut server: ServerHold, holders: Holders, loss: Loss, cx: &mut Cx<'_>) {
        if server.mode() == Mode::Exclusive {
            let beside: Vec<_> = holders.owners().flat_map(|owner| self.branches(owner)).collect();
            beside.into_iter().for_each(|(ticket, _)| cx.notify(ticket, Outcome::Lost(loss)));
        }
        holders.guards().for_each(|guard| self.calm.remove_guard(guard));
        let holds = holders.lose(loss, &mut server, cx);
        self.note_lost(LostHold::all(holds, loss, &server));
        server.lease.close();
        server.confirmations.lose(loss, cx);
        self.release_or_lose(server, cx);
        self.look_for_next(cx.now);
    }

    /// Its owners no longer need the lease.
    pub(super) fn release_lost(&mut self, at: usize, cx: &mut Cx<'_>) {
        match self.on_server.swap_remove(at) {
            OnServer::Lost(server) => self.release(server, cx),
            other => self.put(other),
        }
    }

    /// No owner holds it. If guards of lost holds are left, it stays until these are dropped.
    fn release_or_lose(&mut self, mut server: ServerHold, cx: &mut Cx<'_>) {
        match self.lost.needed_until(server.id) {
            Some(until) => {
                server.lease.ends_by(until);
                self.put(OnServer::Lost(server));
            }
            None => self.release(server, cx),
        }
    }
}

fn nested_branch(ticket: Ticket, waiter: &Waiter, cx: &Cx<'_>) -> NestedCall {
    let (owner, terms, by) = (waiter.owner, waiter.terms, waiter.nested_by(cx));
    NestedCall { ticket, owner, terms, since: cx.now, by }
}

/// A hold that was requested for another waiter at `sent` may have too short a lease. The watchdog renews it, but not a fixed lease, and not
/// if the holder dies before its `min_hold`.
fn lengthen(server: &mut ServerHold, terms: Terms, sent: Moment, cx: &Cx<'_>) {
    let lease = terms.requested_lease(cx.config);
    let least = if terms.accepts_any_hold() { cx.now + lease / 2 } else { sent + cx.config.certain(lease) };
    if server.lease.end < least {
        server.confirmations.extend(Some(lease));
        server.confirmations.hurry(cx.now);
    }
}
