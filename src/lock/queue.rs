//! The waiters of one name in this process, first in, first out.

use std::{mem, time::Duration};

use smallvec::SmallVec;

use super::{
    few::Few,
    rare::{Rare, Usual},
    types::{Cx, Limit, Mode, Moment, Outcome, Owner, Terms, Ticket, earliest},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Waiter {
    pub(crate) owner: Owner,
    pub(crate) terms: Terms,
    pub(crate) joined: Moment,
    limit: WaitLimit,
    /// How often its lease had ended before it could be notified.
    pub(crate) too_late: u8,
    /// The number of releases at which another client was quicker, up to [`BEATEN`].
    beaten: u8,
}

/// A waiter that was beaten so often leaves a mark: other clients are always quicker.
const BEATEN: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum WaitLimit {
    Forever,
    Until(Moment),
    /// Its limit ended at `since`. It waits for the next reply only, for no longer than `by`. `try_lock` begins like that.
    ForReply {
        since: Moment,
        by: Moment,
    },
}

impl WaitLimit {
    fn of(limit: Limit, cx: &Cx<'_>) -> WaitLimit {
        match limit {
            Limit::Forever => WaitLimit::Forever,
            Limit::Until(end) => WaitLimit::Until(end),
            Limit::Once => {
                let by = cx.now + cx.config.command_timeout.min(cx.config.outage_timeout);
                WaitLimit::ForReply { since: cx.now, by }
            }
        }
    }

    /// True if this limit has ended after a request was sent at `sent`: its reply says nothing about the end of the limit.
    fn needs_reply_after(self, sent: Moment) -> bool {
        matches!(self, WaitLimit::ForReply { since, .. } if since > sent)
    }

    /// The time until which a call waits for the server alone.
    fn server_by(self, cx: &Cx<'_>) -> Moment {
        let outage = cx.now + cx.config.outage_timeout;
        match self {
            WaitLimit::Forever => outage,
            WaitLimit::Until(end) => (end.max(cx.now) + cx.config.last_reply(0)).min(outage),
            WaitLimit::ForReply { by, .. } => by.min(outage),
        }
    }
}

/// The time until which a nested call waits: for the server, not for other owners.
pub(crate) fn nested_by(limit: Limit, cx: &Cx<'_>) -> Moment {
    WaitLimit::of(limit, cx).server_by(cx)
}

impl Waiter {
    /// The time until which this waiter waits for the server, if its owner has acquired the lock by another call.
    pub(crate) fn nested_by(&self, cx: &Cx<'_>) -> Moment {
        self.limit.server_by(cx)
    }

    /// True unless the next reply ends its wait.
    pub(crate) fn keeps_waiting(&self) -> bool {
        !matches!(self.limit, WaitLimit::ForReply { .. })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.terms.mode
    }

    /// A writer that has waited for a lease leaves a mark only if all holders know marks. Without it, readers may pass: the server decides.
    pub(crate) fn lets_readers_pass(&self, cx: &Cx<'_>) -> bool {
        cx.rules.waits.leave_marks() && self.mode() == Mode::Exclusive && self.joined + cx.config.watchdog <= cx.now
    }

    pub(crate) fn is_beaten(&self) -> bool {
        self.beaten >= BEATEN
    }
}

type ByTime = Few<(Moment, Ticket), ()>;
type Owners = SmallVec<[Owner; 2]>;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct WaitQueue {
    waiters: Few<Ticket, Waiter>,
    /// By owner: several branches of one task may wait.
    owners: Few<(Owner, Ticket), ()>,
    /// Waiters with a limit.
    limits: ByTime,
    /// Waiters that wait for the next reply only.
    for_reply: ByTime,
    /// The number of those that read.
    readers: usize,
    /// A writer that has waited for long leaves no mark beside holders that do not know marks. Then it would keep out the readers of its own
    /// client only. So after each request for this one, readers send one.
    pub(crate) passed: Option<Ticket>,
    /// Owners with waiters that have joined, left, or reached their limit since this was last taken.
    changed: Owners,
}

impl Usual for WaitQueue {
    const USUAL: &'static WaitQueue = &WaitQueue {
        waiters: Few::Empty,
        owners: Few::Empty,
        limits: Few::Empty,
        for_reply: Few::Empty,
        readers: 0,
        passed: None,
        changed: SmallVec::new_const(),
    };
}

impl Rare<WaitQueue> {
    pub(crate) fn forget_if_empty(&mut self) {
        self.forget_if(WaitQueue::is_empty);
    }

    /// Owners whose waiters are not the same as before, in the order of these changes.
    pub(crate) fn take_changed(&mut self) -> Owners {
        self.changed().map(|queue| mem::take(&mut queue.changed)).unwrap_or_default()
    }
}

impl WaitQueue {
    pub(crate) fn join(&mut self, ticket: Ticket, (owner, terms, limit): (Owner, Terms, Limit), cx: &Cx<'_>) {
        let limit = WaitLimit::of(limit, cx);
        self.put_back(ticket, Waiter { owner, terms, joined: cx.now, limit, too_late: 0, beaten: 0 });
    }

    /// Tickets are the order of the queue, so the waiter gets its earlier place.
    pub(crate) fn put_back(&mut self, ticket: Ticket, waiter: Waiter) {
        if let Some((set, at)) = self.index(waiter.limit) {
            set.insert((at, ticket), ());
        }
        self.owners.insert((waiter.owner, ticket), ());
        self.changed.push(waiter.owner);
        self.readers += usize::from(waiter.mode() == Mode::Shared);
        self.waiters.insert(ticket, waiter);
    }

    /// The place of this owner on the server has become a hold. Whoever waits after that needs another place.
    pub(crate) fn used_place(&mut self, owner: Owner) {
        self.changed.push(owner);
    }

    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(ticket)?;
        if let Some((set, at)) = self.index(waiter.limit) {
            set.remove((at, ticket));
        }
        self.owners.remove((waiter.owner, ticket));
        self.changed.push(waiter.owner);
        self.readers -= usize::from(waiter.mode() == Mode::Shared);
        Some(waiter)
    }

    fn index(&mut self, limit: WaitLimit) -> Option<(&mut ByTime, Moment)> {
        match limit {
            WaitLimit::Forever => None,
            WaitLimit::Until(end) => Some((&mut self.limits, end)),
            WaitLimit::ForReply { by, .. } => Some((&mut self.for_reply, by)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ticket, &Waiter)> {
        self.waiters.iter()
    }

    /// The number of waiters that read.
    pub(crate) fn readers(&self) -> usize {
        self.readers
    }

    pub(crate) fn first_reader(&self) -> Option<(Ticket, &Waiter)> {
        if self.readers == 0 {
            return None;
        }
        self.waiters.iter().find(|(_, waiter)| waiter.mode() == Mode::Shared)
    }

    /// Another client was quicker.
    pub(crate) fn beaten(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.get_mut(ticket) {
            waiter.beaten = (waiter.beaten + 1).min(BEATEN);
        }
    }

    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.waiters.get(ticket).is_some()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiters.get(ticket)
    }

    /// A waiter that one of the other lists has.
    fn waiter(&self, ticket: Ticket) -> &Waiter {
        self.waiters.get(ticket).expect("all lists have the same waiters")
    }

    pub(crate) fn first(&self) -> Option<(Ticket, &Waiter)> {
        self.waiters.first()
    }

    /// The waiters of one owner.
    pub(crate) fn of(&self, owner: Owner) -> impl Iterator<Item = (Ticket, &Waiter)> {
        let own = self.owners.range((owner, Ticket(0))..=(owner, Ticket(u64::MAX)));
        own.map(|((_, ticket), ())| (ticket, self.waiter(ticket)))
    }

    /// The first waiter of one owner.
    pub(crate) fn first_of(&self, owner: Owner) -> Option<(Ticket, &Waiter)> {
        self.of(owner).next()
    }

    pub(crate) fn take_of(&mut self, owner: Owner) -> Option<(Ticket, Waiter)> {
        let (ticket, _) = self.first_of(owner)?;
        self.leave(ticket).map(|waiter| (ticket, waiter))
    }

    /// True if a waiter needs a reply of this moment.
    pub(crate) fn needs_reply(&self) -> bool {
        !self.for_reply.is_empty()
    }

    /// The time at which the first of these waiters called.
    pub(crate) fn needs_reply_since(&self) -> Option<Moment> {
        self.for_reply.first().map(|((_, ticket), ())| self.waiter(ticket).joined)
    }

    /// The lock is held against this mode, by a request before which the waiters up to `last` had joined. Those that wait for the next reply
    /// only get `Busy`. A reader may enter beside readers, but not before an earlier writer. `except` may enter beside its own hold.
    pub(crate) fn refuse(&mut self, last: Ticket, mode: Mode, except: Option<Owner>, cx: &mut Cx<'_>) {
        if self.for_reply.is_empty() {
            return;
        }
        self.refuse_mode(last, Mode::Exclusive, except, cx);
        let keeps_readers_out = |first: &Waiter| first.mode() == Mode::Exclusive && !first.lets_readers_pass(cx);
        let has_writer_first = self.first().is_some_and(|(_, first)| keeps_readers_out(first));
        if mode == Mode::Shared || has_writer_first {
            self.refuse_mode(last, Mode::Shared, except, cx);
        }
    }

    fn refuse_mode(&mut self, last: Ticket, mode: Mode, except: Option<Owner>, cx: &mut Cx<'_>) {
        let is_refused = |waiter: &Waiter| waiter.mode() == mode && Some(waiter.owner) != except;
        let refused = self.for_reply.iter().map(|((_, ticket), ())| ticket);
        let refused: Vec<_> = refused.filter(|ticket| *ticket <= last && is_refused(self.waiter(*ticket))).collect();
        refused.into_iter().for_each(|ticket| self.end(ticket, cx, Outcome::Busy));
    }

    /// A request that was sent at `sent` found a latch shut, when the waiters up to `last` had joined. It may have been opened since. So a
    /// waiter that joined later, or whose limit ended later, gets no `Busy`. It needs another reply, and has as much time for that.
    pub(crate) fn shut(&mut self, last: Ticket, sent: Moment, cx: &mut Cx<'_>) {
        let by = cx.now + cx.config.last_reply(self.waiters.len());
        let tickets = self.for_reply.iter().map(|((_, ticket), ())| ticket);
        let (again, refused): (Vec<_>, Vec<_>) =
            tickets.partition(|ticket| *ticket > last || self.waiter(*ticket).limit.needs_reply_after(sent));
        again.into_iter().for_each(|ticket| self.wait_until(ticket, by));
        refused.into_iter().for_each(|ticket| self.end(ticket, cx, Outcome::Busy));
    }

    /// A waiter that waits for the next reply only has at least so much time for it.
    fn wait_until(&mut self, ticket: Ticket, at_least: Moment) {
        if let Some(Waiter { limit: WaitLimit::ForReply { by, .. }, .. }) = self.waiters.get_mut(ticket) {
            self.for_reply.remove((*by, ticket));
            *by = at_least.max(*by);
            self.for_reply.insert((*by, ticket), ());
        }
    }

    /// The place of this owner was refused: of its waiters, those up to `last` get that.
    pub(crate) fn refuse_owner(&mut self, owner: Owner, last: Ticket, cx: &mut Cx<'_>) {
        let own = self.of(owner).filter(|(ticket, waiter)| *ticket <= last && !waiter.keeps_waiting());
        let refused: Vec<_> = own.map(|(ticket, _)| ticket).collect();
        refused.into_iter().for_each(|ticket| self.end(ticket, cx, Outcome::Busy));
    }

    /// The server has not replied to this owner since then. Its waiters that waited long enough get `Unavailable`. Returns the time since
    /// which the first of the others has waited.
    pub(crate) fn end_outage(&mut self, owner: Owner, since: Moment, cx: &mut Cx<'_>) -> Option<Moment> {
        let latest = |waiter: &Waiter| waiter.joined.max(since) + cx.config.outage_timeout <= cx.now;
        let ended: Vec<_> = self.of(owner).filter(|(_, one)| latest(one)).map(|(ticket, _)| ticket).collect();
        ended.into_iter().for_each(|ticket| self.end(ticket, cx, Outcome::Unavailable));
        self.first_of(owner).map(|(_, first)| first.joined)
    }

    /// The waiter that joined last. Without waiters, each is later.
    pub(crate) fn last(&self) -> Ticket {
        self.waiters.last_key().unwrap_or(Ticket(0))
    }

    /// A request found the way open. The waiters up to this one joined before it was sent, so they pass.
    pub(crate) fn pass(&mut self, last: Ticket, cx: &mut Cx<'_>) {
        while self.first().is_some_and(|(ticket, _)| ticket <= last) {
            self.end_first(cx, Outcome::Passed);
        }
    }

    pub(crate) fn end(&mut self, ticket: Ticket, cx: &mut Cx<'_>, outcome: Outcome) {
        self.leave(ticket);
        cx.notify(ticket, outcome);
    }

    pub(crate) fn end_first(&mut self, cx: &mut Cx<'_>, outcome: Outcome) {
        if let Some((ticket, _)) = self.first() {
            self.end(ticket, cx, outcome);
        }
    }

    /// Ends the wait of all, but for these owners.
    pub(crate) fn end_all_but(&mut self, kept: &[Owner], cx: &mut Cx<'_>, outcome: Outcome) {
        let ended = self.waiters.iter().filter(|(_, waiter)| !kept.contains(&waiter.owner));
        let ended: Vec<_> = ended.map(|(ticket, _)| ticket).collect();
        ended.into_iter().for_each(|ticket| self.end(ticket, cx, outcome));
    }

    /// Waiters whose limit has ended now wait for one reply only. Waiters that waited long enough for a reply get `Unavailable`.
    /// True if the limit of a waiter has ended.
    pub(crate) fn expire(&mut self, cx: &mut Cx<'_>, silent_since: Option<Moment>) -> bool {
        let mut has_ended = false;
        while let Some((end, ticket)) = first_by(&self.limits, cx.now) {
            self.limits.remove((end, ticket));
            has_ended = true;
            let by = cx.now + cx.config.last_reply(self.waiters.len());
            self.for_reply.insert((by, ticket), ());
            let waiter = self.waiters.get_mut(ticket).expect("it is in the queue");
            waiter.limit = WaitLimit::ForReply { since: end.max(waiter.joined), by };
            self.changed.push(waiter.owner);
        }
        while let Some((_, ticket)) = first_by(&self.for_reply, cx.now) {
            self.end(ticket, cx, Outcome::Unavailable);
        }
        while self.outage_ends(silent_since, cx.config.outage_timeout).is_some_and(|end| end <= cx.now) {
            self.end_first(cx, Outcome::Unavailable);
        }
        has_ended
    }

    /// The time at which the first waiter stops waiting for a server that does not reply. Later waiters stop later.
    fn outage_ends(&self, since: Option<Moment>, timeout: Duration) -> Option<Moment> {
        since.zip(self.first()).map(|(since, (_, first))| first.joined.max(since) + timeout)
    }

    pub(crate) fn due(&self, silent_since: Option<Moment>, timeout: Duration) -> Option<Moment> {
        let limit = self.limits.first().map(|((end, _), ())| end);
        let reply = self.for_reply.first().map(|((by, _), ())| by);
        earliest([limit, reply, self.outage_ends(silent_since, timeout)])
    }
}

/// The first entry, if its time has come.
fn first_by(list: &ByTime, now: Moment) -> Option<(Moment, Ticket)> {
    list.first().map(|(entry, ())| entry).filter(|(at, _)| *at <= now)
}
