//! The owners that hold one id of the server, and their guards.

use std::{mem, time::Duration};

use smallvec::SmallVec;

use super::{
    rare::{Rare, Usual},
    requests::{ConfirmWaiter, ConfirmWaiters, FIRST_PAUSE, Failure, PendingRequest},
    server_hold::ServerHold,
    types::{
        Action, Cx, How, Loss, Mode, Moment, Nanos, Numbers, Outcome, Owner, Reply, Request, RequestId, Terms, Ticket,
        earliest,
    },
};

/// One owner, with a guard for each acquisition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(crate) owner: Owner,
    mode: Mode,
    /// The time at which the request was sent that acquired the lock.
    since: Moment,
    /// A caller has seen that it acquired the lock. Statistics leave out other holds.
    shown: bool,
    /// A call has acquired it. Later ones are nested.
    acquired: bool,
    acquisitions: SmallVec<[Acquisition; 1]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Acquisition {
    ticket: Ticket,
    /// The number of its permits, else 1.
    share: u32,
    /// The client renews its lease.
    renewed: bool,
    /// Its owner held the lock already.
    nested: bool,
    /// `max_hold` ends it then.
    cap: Moment,
    /// The time of the notification, if the caller has not seen it.
    unseen_since: Option<Moment>,
    /// From the time at which the caller sees it: a caller that never looks has no use for it, and would itself wait for its end.
    min_hold: Option<Nanos>,
}

/// An owner acquires a lock that it holds already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NestedCall {
    pub(crate) ticket: Ticket,
    pub(crate) owner: Owner,
    pub(crate) terms: Terms,
    pub(crate) since: Moment,
    /// The caller stops waiting then.
    pub(crate) by: Moment,
}

impl Hold {
    pub(crate) fn new(owner: Owner, mode: Mode, since: Moment) -> Hold {
        Hold { owner, mode, since, shown: false, acquired: false, acquisitions: SmallVec::new() }
    }

    /// A request that was sent at `sent` has acquired the lock for this call.
    pub(crate) fn add(&mut self, (ticket, terms): (Ticket, Terms), sent: Moment, cx: &mut Cx<'_>) {
        let cap = terms.cap(sent);
        let (share, renewed) = (u32::from(terms.permits.max(1)), terms.lease.is_none());
        let nested = mem::replace(&mut self.acquired, true);
        let (unseen_since, min_hold) = (Some(cx.now), terms.min_hold);
        self.acquisitions.push(Acquisition { ticket, share, renewed, nested, cap, unseen_since, min_hold });
        cx.notify(ticket, Outcome::Acquired);
    }

    pub(crate) fn has(&self, ticket: Ticket) -> bool {
        self.acquisitions.iter().any(|one| one.ticket == ticket)
    }

    /// The count that the server is to have for it.
    pub(crate) fn count(&self) -> u32 {
        self.acquisitions.iter().map(|one| one.share).sum()
    }

    /// Another guard has so many permits of this one from now on. The server counts those of all guards of a hold.
    pub(crate) fn split(&mut self, guard: Ticket, (ticket, share): (Ticket, u32)) {
        let parts = self.acquisitions.iter_mut().find(|one| one.ticket == guard).map(|one| {
            one.share -= share;
            Acquisition { ticket, share, nested: true, ..*one }
        });
        self.acquisitions.extend(parts);
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn has_guards(&self) -> bool {
        !self.acquisitions.is_empty()
    }

    fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.acquisitions.iter().map(|one| one.ticket)
    }

    fn seen(&mut self, ticket: Ticket, server: &mut ServerHold, now: Moment) -> bool {
        let Some(one) = self.acquisitions.iter_mut().find(|one| one.ticket == ticket) else { return false };
        if one.unseen_since.take().is_some() {
            server.lease.keep_until(one.min_hold.map(Duration::from), now);
        }
        self.shown = true;
        true
    }

    pub(crate) fn is_shown(&self) -> bool {
        self.shown
    }

    /// Its last guard has left.
    pub(crate) fn left(&self, cx: &mut Cx<'_>) {
        if self.shown {
            cx.actions.push(Action::Left { mode: self.mode, since: self.since });
        }
    }

    pub(crate) fn ended(&self, loss: Option<Loss>, cx: &mut Cx<'_>) {
        if self.shown {
            cx.actions.push(Action::Ended(self.mode, loss));
        }
    }

    /// The time since which none of its callers has seen its notification. `None`, which is less than any time, if one has.
    fn unseen_since(&self) -> Option<Moment> {
        self.acquisitions.iter().map(|one| one.unseen_since).min().flatten()
    }

    /// `max_hold` ends it, or others go first if no caller has seen its notification by then.
    fn due(&self, time_to_see: Duration) -> Moment {
        let cap = self.cap();
        self.unseen_since().map_or(cap, |since| cap.min(since + time_to_see))
    }

    fn is_renewed(&self) -> bool {
        self.acquisitions.iter().any(|one| one.renewed)
    }

    fn cap(&self) -> Moment {
        self.acquisitions.iter().map(|one| one.cap).min().unwrap_or(Moment::FAR)
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Acquisition> {
        let at = self.acquisitions.iter().position(|one| one.ticket == ticket)?;
        Some(self.acquisitions.swap_remove(at))
    }

    /// It is lost, and so are the calls of its owner. Callers that have not seen that they acquired it start again. Returns it if it has guards.
    fn lose(self, loss: Loss, calls: &mut Vec<NestedCall>, cx: &mut Cx<'_>) -> Option<Hold> {
        let is_seen = self.unseen_since().is_none();
        self.ended(Some(loss), cx);
        let nested = if is_seen { Outcome::Lost(loss) } else { Outcome::StartAgain };
        calls.extract_if(.., |call| call.owner == self.owner).for_each(|call| cx.notify(call.ticket, nested));
        for guard in self.tickets() {
            cx.actions.push(if is_seen {
                Action::Lost(guard, loss)
            } else {
                Action::Notify(guard, Outcome::StartAgain)
            });
        }
        let has_guards = is_seen && !self.acquisitions.is_empty();
        if !has_guards {
            self.left(cx);
        }
        has_guards.then_some(self)
    }
}

/// What the removal of a ticket leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removed {
    /// This ticket is not here.
    Nothing,
    /// Others still hold it.
    Inner,
    /// Nobody holds it. `may_pass`: it had one acquisition only, which the client renewed, and its count is certain.
    Last { may_pass: bool },
}

/// The owners of one id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holders {
    One(Hold, Rare<Reentry>),
    Readers(Readers),
}

impl Holders {
    /// No owner yet.
    pub(crate) fn readers() -> Readers {
        Readers { holds: Vec::with_capacity(1), calls: Vec::new() }
    }

    fn holds(&self) -> &[Hold] {
        match self {
            Holders::One(hold, _) => std::slice::from_ref(hold),
            Holders::Readers(readers) => &readers.holds,
        }
    }

    fn holds_mut(&mut self) -> &mut [Hold] {
        match self {
            Holders::One(hold, _) => std::slice::from_mut(hold),
            Holders::Readers(readers) => &mut readers.holds,
        }
    }

    pub(crate) fn has(&self, ticket: Ticket) -> bool {
        self.holds().iter().any(|hold| hold.has(ticket))
    }

    /// The number of owners with guards.
    pub(crate) fn guarded(&self) -> usize {
        self.holds().iter().filter(|hold| hold.has_guards()).count()
    }

    pub(crate) fn has_owner(&self, owner: Owner) -> bool {
        self.holds().iter().any(|hold| hold.owner == owner)
    }

    pub(crate) fn owners(&self) -> impl Iterator<Item = Owner> {
        self.holds().iter().map(|hold| hold.owner)
    }

    pub(crate) fn seen(&mut self, ticket: Ticket, server: &mut ServerHold, now: Moment) -> bool {
        self.holds_mut().iter_mut().any(|hold| hold.seen(ticket, server, now))
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.holds().iter().any(Hold::is_renewed)
    }

    /// Nobody holds it, and no call is under way.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Holders::One(hold, reentry) => hold.acquisitions.is_empty() && reentry.calls.is_empty(),
            Holders::Readers(readers) => readers.holds.is_empty(),
        }
    }

    /// Each owner with a guard: since when it holds the lock, the number of its guards (or permits) and nested calls, and the time until which it is
    /// certain.
    pub(crate) fn each<'a>(&'a self, server: &'a ServerHold) -> impl Iterator<Item = (Moment, usize, Moment)> + 'a {
        let calls = match self {
            Holders::One(_, reentry) => &reentry.calls,
            Holders::Readers(readers) => &readers.calls,
        };
        let guarded = self.holds().iter().filter(|hold| !hold.acquisitions.is_empty());
        guarded.map(move |hold| {
            let nested = calls.iter().filter(|call| call.owner == hold.owner).count();
            (hold.since, hold.count() as usize + nested, hold.cap().min(server.lease.certain_until))
        })
    }

    /// The number of guards (or of their permits) and nested calls of the owner of this guard.
    pub(crate) fn count(&self, guard: Ticket) -> usize {
        let calls = match self {
            Holders::One(_, reentry) => &reentry.calls,
            Holders::Readers(readers) => &readers.calls,
        };
        let Some(hold) = self.holds().iter().find(|hold| hold.has(guard)) else { return 0 };
        hold.count() as usize + calls.iter().filter(|call| call.owner == hold.owner).count()
    }

    /// Another guard has so many permits of this one from now on.
    pub(crate) fn split(&mut self, guard: Ticket, part: (Ticket, u32)) {
        self.holds_mut().iter_mut().for_each(|hold| hold.split(guard, part));
    }

    /// True if the owner of this guard held the lock already.
    pub(crate) fn is_nested(&self, guard: Ticket) -> bool {
        let mut guards = self.holds().iter().flat_map(|hold| &hold.acquisitions);
        guards.any(|one| one.ticket == guard && one.nested)
    }

    /// The guards.
    pub(crate) fn guards(&self) -> impl Iterator<Item = Ticket> {
        self.holds().iter().flat_map(Hold::tickets)
    }

    /// Nothing is to be done for one owner before a time, a reply or a call.
    pub(crate) fn is_calm(&self) -> bool {
        match self {
            Holders::One(hold, reentry) => {
                !hold.acquisitions.is_empty() && hold.unseen_since().is_none() && reentry.is_level()
            }
            Holders::Readers(_) => false,
        }
    }

    /// Nothing about the count is under way.
    pub(crate) fn is_level(&self) -> bool {
        match self {
            Holders::One(_, reentry) => reentry.is_level(),
            Holders::Readers(_) => true,
        }
    }

    pub(crate) fn reenter(&mut self, call: NestedCall, server: &mut ServerHold, cx: &Cx<'_>) {
        match self {
            Holders::One(_, reentry) => reentry.reenter(call),
            Holders::Readers(readers) => readers.reenter(call, server, cx),
        }
    }

    /// Adds the callers that have not seen their notification for so long.
    pub(crate) fn add_absent(&self, now: Moment, time: Duration, absent: &mut Vec<Ticket>) {
        for hold in self.holds() {
            if hold.unseen_since().is_some_and(|since| since + time <= now) {
                absent.extend(hold.tickets());
            }
        }
    }

    /// The time until which the whole id is certain, and the loss that ends it. `max_hold` of one reader does not end the others.
    pub(crate) fn end(&self, server: &ServerHold) -> (Moment, Loss) {
        match self {
            Holders::One(hold, _) if hold.cap() <= server.lease.certain_until => (hold.cap(), Loss::MaxHold),
            _ => (server.lease.certain_until, Loss::Expired),
        }
    }

    /// The time until which the guard with this ticket is certain.
    pub(crate) fn certain_until(&self, guard: Ticket, server: &ServerHold) -> Option<Moment> {
        let hold = self.holds().iter().find(|hold| hold.has(guard))?;
        Some(hold.cap().min(server.lease.certain_until))
    }

    /// Returns the holds that their `max_hold` ends before the others.
    pub(crate) fn expire(&mut self, server: &mut ServerHold, cx: &mut Cx<'_>) -> Vec<Hold> {
        server.confirmations.expire(cx);
        match self {
            Holders::One(_, reentry) => {
                reentry.expire(cx);
                Vec::new()
            }
            Holders::Readers(readers) => readers.expire(cx),
        }
    }

    pub(crate) fn remove(
        &mut self,
        ticket: Ticket,
        waiter: Option<ConfirmWaiter>,
        server: &mut ServerHold,
        cx: &mut Cx<'_>,
    ) -> Removed {
        match self {
            Holders::One(hold, reentry) => reentry.remove(hold, ticket, waiter),
            Holders::Readers(readers) => readers.remove(ticket, waiter, server, cx),
        }
    }

    /// The id is lost. Returns the holds whose guards were not dropped.
    pub(crate) fn lose(self, loss: Loss, server: &mut ServerHold, cx: &mut Cx<'_>) -> Vec<Hold> {
        match self {
            Holders::One(hold, mut reentry) => {
                let calls = reentry.changed().map(|reentry| mem::take(&mut reentry.calls));
                let lost = hold.lose(loss, &mut calls.unwrap_or_default(), cx);
                server.confirmations.confirm_for(reentry.take_waiters(), cx.now);
                lost.into_iter().collect()
            }
            Holders::Readers(mut readers) => {
                readers.holds.drain(..).filter_map(|hold| hold.lose(loss, &mut readers.calls, cx)).collect()
            }
        }
    }

    pub(crate) fn due(&self, time_to_see: Duration) -> Option<Moment> {
        let calls = match self {
            Holders::One(_, reentry) => reentry.due(),
            Holders::Readers(readers) => readers.calls.iter().map(|call| call.by).min(),
        };
        self.holds().iter().map(|hold| hold.due(time_to_see)).chain(calls).min()
    }
}

/// Nested acquisitions of an exclusive hold, and their count on the server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reentry {
    calls: Vec<NestedCall>,
    /// Callers that released inner guards since the last request about the count.
    unlocked: ConfirmWaiters,
    counting: Option<Counting>,
}

impl Usual for Reentry {
    const USUAL: &'static Reentry = &Reentry { calls: Vec::new(), unlocked: ConfirmWaiters::NONE, counting: None };
}

/// The count on the server is being set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Counting {
    request: PendingRequest,
    count: u32,
    lease: Option<Duration>,
    /// The reply acquires the lock for the calls up to this one.
    last: Ticket,
    /// The reply notifies these.
    waiters: ConfirmWaiters,
}

impl Reentry {
    fn is_level(&self) -> bool {
        self.calls.is_empty() && self.unlocked.is_empty() && self.counting.is_none()
    }
}

impl Rare<Reentry> {
    pub(crate) fn reenter(&mut self, call: NestedCall) {
        self.calls.push(call);
    }

    fn remove(&mut self, hold: &mut Hold, ticket: Ticket, waiter: Option<ConfirmWaiter>) -> Removed {
        let had_one = hold.acquisitions.len() == 1;
        let removed = hold.remove(ticket);
        if removed.is_none() && !self.remove_call(ticket) {
            return Removed::Nothing;
        }
        if hold.acquisitions.is_empty() && self.calls.is_empty() {
            return Removed::Last { may_pass: had_one && removed.is_some_and(|one| one.renewed) && self.is_level() };
        }
        if waiter.is_some() {
            self.unlocked.append(waiter);
        }
        Removed::Inner
    }

    fn remove_call(&mut self, ticket: Ticket) -> bool {
        let is_it = |call: &mut NestedCall| call.ticket == ticket;
        self.changed().is_some_and(|reentry| reentry.calls.extract_if(.., is_it).next().is_some())
    }

    /// Sends the count to the server if the server has another one.
    pub(crate) fn send_count(&mut self, hold: &Hold, server: &mut ServerHold, cx: &mut Cx<'_>, numbers: &mut Numbers) {
        let count = hold.count() + self.calls.len() as u32;
        let is_wrong = count != server.count || !self.calls.is_empty() || !self.unlocked.is_empty();
        if self.counting.is_none() && is_wrong {
            self.counting = Some(Counting::new(count, cx.now));
        }
        let Some(Reentry { calls, unlocked, counting: Some(counting) }) = self.changed() else { return };
        if !counting.request.is_due(cx.now) {
            return;
        }
        counting.waiters.append(mem::take(unlocked));
        counting.last = calls.last().map_or(Ticket(0), |last| last.ticket);
        counting.lease = calls.iter().map(|call| call.terms.requested_lease(cx.config)).max();
        counting.count = count;
        let (id, mode, lease) = (server.id, hold.mode, counting.lease);
        let request = match lease {
            Some(lease) => Request::Acquire { id, mode, lease, count, how: How::Again },
            None => Request::Release { id, mode, count, rest: Duration::ZERO, granted: true },
        };
        let request = counting.request.send(cx, numbers, request);
        server.count_requested(request, lease, cx);
    }

    pub(crate) fn is_counted_by(&self, request: RequestId) -> bool {
        self.sent(request).is_some()
    }

    pub(crate) fn sent(&self, request: RequestId) -> Option<Moment> {
        self.counting.as_ref()?.request.sent(request)
    }

    /// The request about the count got a reply. False if the hold is gone.
    pub(crate) fn counted(
        &mut self,
        hold: &mut Hold,
        server: &mut ServerHold,
        request: RequestId,
        reply: Reply,
        cx: &mut Cx<'_>,
    ) -> bool {
        let Some(reentry) = self.changed() else { return true };
        let Some(mut counting) = reentry.counting.take() else { return true };
        let Some(sent) = counting.request.sent(request) else { return true };
        if !matches!(reply, Reply::Granted(_) | Reply::Released { .. }) {
            counting.waiters.notify(cx, Outcome::Lost(Loss::Removed));
            return false;
        }
        server.counted(counting.count, counting.lease, sent, cx);
        counting.waiters.notify(cx, Outcome::Confirmed);
        for call in reentry.calls.extract_if(.., |call| call.ticket <= counting.last) {
            hold.add((call.ticket, call.terms), sent, cx);
        }
        self.forget_if(Reentry::is_level);
        true
    }

    /// Only calls are refused. Releases are tried again.
    pub(crate) fn count_failed(&mut self, cx: &mut Cx<'_>, failure: Failure) {
        let Some(Reentry { calls, counting: Some(counting), .. }) = self.changed() else { return };
        if failure == Failure::Refused {
            let refused = calls.extract_if(.., |call| call.ticket <= counting.last);
            refused.for_each(|call| cx.notify(call.ticket, Outcome::Refused));
            counting.waiters.notify(cx, Outcome::Refused);
        }
        counting.request.failed(cx.now, failure);
    }

    /// The next request about the count also undoes the requests for calls that end here.
    fn expire(&mut self, cx: &mut Cx<'_>) {
        let Some(reentry) = self.changed() else { return };
        expire_calls(&mut reentry.calls, cx);
        reentry.unlocked.expire(cx);
        reentry.counting.iter_mut().for_each(|counting| counting.waiters.expire(cx));
    }

    pub(crate) fn take_waiters(&mut self) -> ConfirmWaiters {
        let Some(reentry) = self.changed() else { return ConfirmWaiters::NONE };
        let mut waiters = mem::take(&mut reentry.unlocked);
        reentry.counting.take().into_iter().for_each(|counting| waiters.append(counting.waiters));
        waiters
    }

    fn due(&self) -> Option<Moment> {
        let request = self.counting.as_ref().and_then(|counting| counting.request.due());
        let waiters = self.counting.as_ref().and_then(|counting| counting.waiters.due());
        let calls = self.calls.iter().map(|call| call.by).min();
        earliest([request, waiters, calls, self.unlocked.due()])
    }
}

impl Counting {
    fn new(count: u32, now: Moment) -> Counting {
        let request = PendingRequest::new(now);
        Counting { request, count, lease: None, last: Ticket(0), waiters: ConfirmWaiters::default() }
    }
}

/// Readers that share one id. Its count on the server is always one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Readers {
    holds: Vec<Hold>,
    /// Nested calls. The next confirmation that is sent after a call acquires the lock for it.
    calls: Vec<NestedCall>,
}

impl Readers {
    /// A request that was sent at `sent` has admitted this reader.
    pub(crate) fn admit(&mut self, owner: Owner, call: (Ticket, Terms), sent: Moment, cx: &mut Cx<'_>) {
        let mut hold = Hold::new(owner, Mode::Shared, sent);
        hold.add(call, sent, cx);
        self.holds.push(hold);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    pub(crate) fn reenter(&mut self, call: NestedCall, server: &mut ServerHold, cx: &Cx<'_>) {
        server.confirmations.extend(Some(call.terms.requested_lease(cx.config)));
        server.confirmations.hurry(cx.now);
        self.calls.push(call);
    }

    /// A confirmation that was sent at `sent` has found the id.
    pub(crate) fn confirmed(&mut self, server: &mut ServerHold, sent: Moment, cx: &mut Cx<'_>) {
        for call in self.calls.extract_if(.., |call| call.since <= sent) {
            if let Some(hold) = self.holds.iter_mut().find(|hold| hold.owner == call.owner) {
                hold.add((call.ticket, call.terms), sent, cx);
            }
        }
        if !self.calls.is_empty() {
            server.confirmations.hurry(cx.now);
        }
    }

    /// Nested calls wait for the retry, unless the server will not run that either.
    pub(crate) fn confirmation_failed(
        &mut self,
        server: &mut ServerHold,
        request: RequestId,
        failure: Failure,
        cx: &mut Cx<'_>,
    ) {
        let refused = server.confirmations.sent(request).filter(|_| failure == Failure::Refused);
        let is_refused = |call: &mut NestedCall| refused.is_some_and(|sent| call.since <= sent);
        self.calls.extract_if(.., is_refused).for_each(|call| cx.notify(call.ticket, Outcome::Refused));
        self.drop_unused(cx);
        server.confirmation_failed(cx, failure);
        for call in &self.calls {
            server.confirmations.extend(Some(call.terms.requested_lease(cx.config)));
        }
        if !self.calls.is_empty() && failure != Failure::NotNow {
            server.confirmations.hurry(cx.now + FIRST_PAUSE);
        }
    }

    fn remove(
        &mut self,
        ticket: Ticket,
        waiter: Option<ConfirmWaiter>,
        server: &mut ServerHold,
        cx: &mut Cx<'_>,
    ) -> Removed {
        let removed = self.holds.iter_mut().find_map(|hold| hold.remove(ticket));
        if removed.is_none() && self.calls.extract_if(.., |call| call.ticket == ticket).next().is_none() {
            return Removed::Nothing;
        }
        self.drop_unused(cx);
        if self.holds.is_empty() {
            return Removed::Last { may_pass: removed.is_some_and(|one| one.renewed) };
        }
        if waiter.is_some() {
            server.confirmations.confirm_for(waiter, cx.now);
        }
        Removed::Inner
    }

    fn drop_unused(&mut self, cx: &mut Cx<'_>) {
        let calls = &self.calls;
        let is_unused =
            |hold: &mut Hold| hold.acquisitions.is_empty() && !calls.iter().any(|call| call.owner == hold.owner);
        for left in self.holds.extract_if(.., is_unused) {
            left.left(cx);
            left.ended(None, cx);
        }
    }

    /// Returns the readers that reached their `max_hold`. They may use the rest of the lease to stop.
    fn expire(&mut self, cx: &mut Cx<'_>) -> Vec<Hold> {
        let (now, calls) = (cx.now, &mut self.calls);
        let capped = self.holds.extract_if(.., |hold| hold.cap() <= now);
        let lost = capped.filter_map(|hold| hold.lose(Loss::MaxHold, calls, cx)).collect();
        if !self.calls.is_empty() {
            expire_calls(&mut self.calls, cx);
            self.drop_unused(cx);
        }
        lost
    }
}

fn expire_calls(calls: &mut Vec<NestedCall>, cx: &mut Cx<'_>) {
    let now = cx.now;
    let ended = calls.extract_if(.., |call| call.by <= now);
    ended.for_each(|call| cx.notify(call.ticket, Outcome::Unavailable));
}
