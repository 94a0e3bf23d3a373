//! What one client knows and wants of one lock, and the questions that this answers. Nothing here changes it but for the two smallest steps.

use std::time::Duration;

use super::{
    calm::Calm,
    hold::Holders,
    index::Key,
    listening::Listening,
    lost::{LostHold, LostHolds},
    on_server::OnServer,
    others::OtherClients,
    places::{Places, Waiting},
    queue::{WaitQueue, Waiter},
    rare::Rare,
    requests::PendingRequest,
    server_hold::ServerHold,
    types::{
        Channel, Config, Cx, Demand, HoldId, How, Mode, Moment, Nanos, Numbers, Owner, Reply, RequestId, Rules, Ticket,
        Token, Waits, earliest,
    },
};

/// A caller that was notified must look within this time. Otherwise others go first. It halves each time that a caller does not look, so
/// that the delays of thousands of such callers do not add up.
pub(crate) const TIME_TO_SEE: Nanos = Nanos::of(Duration::from_millis(400));
pub(crate) const LEAST_TIME_TO_SEE: Nanos = Nanos::of(Duration::from_millis(20));

/// The longest pause of a waiter behind a release that the server has not run. The reply to that release ends the pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LockState {
    pub(super) wanted: Wanted,
    pub(super) on_server: Vec<OnServer>,
    /// The ids of permits that need no attention now. `on_server` has the others.
    pub(super) calm: Calm,
    pub(super) lost: Rare<LostHolds>,
    pub(super) queue: Rare<WaitQueue>,
    pub(super) others: Rare<OtherClients>,
    pub(super) listening: Listening,
    pub(super) life: Life,
    pub(super) time_to_see: Nanos,
    /// The last request before the lock was forced open. What an earlier one found may be gone since.
    pub(super) forced_after: RequestId,
    /// The server has replied to no request about this lock that was sent since.
    pub(super) unanswered_since: Option<Moment>,
    pub(super) numbers: Numbers,
}

/// How this client gets new holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Wanted {
    /// By one request at a time, for the first waiter.
    One(Attempt),
    /// From a queue on the server. Each owner that waits has a place there, and the server decides which one is next.
    Places(Box<Places>),
}

/// The request for a new hold. The waiter that is next when the reply comes acquires it, so a waiter that leaves takes nothing along.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Attempt {
    Idle(Idle),
    Asking(Box<Asking>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Idle {
    /// The time of the next request.
    pub(super) look_at: Moment,
    /// The next request is sent because of a release.
    pub(super) called: bool,
    pub(super) refused: Refusal,
    pub(super) mark: Option<Mark>,
}

/// The server may keep a mark with this id, which was left for a waiter with this demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Mark {
    pub(super) id: HoldId,
    pub(super) demand: Demand,
}

/// Why the last request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Refusal {
    /// Other clients hold the lock. The time of the next request is right for requests that are refused if this one is.
    Of(Demand),
    /// The server has not run a release of this client yet. Whether the lock is free is unknown until then.
    ByOwnRelease,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Asking {
    pub(super) id: HoldId,
    pub(super) demand: Demand,
    /// Of the last try.
    pub(super) how: How,
    pub(super) lease: Duration,
    /// Only this owner may acquire it: a try asked for a hold beside its exclusive one.
    pub(super) only: Option<Owner>,
    pub(super) request: PendingRequest,
    /// The last waiter that had joined when the last try was sent. The reply says nothing to later ones, even at the same moment.
    pub(super) last: Ticket,
    /// The last try was sent because of a release.
    pub(super) called: bool,
    /// There may have been a release after the last try was sent.
    pub(super) woken: bool,
    /// It can have another id than this request, if readers ask while the mark of a writer is left.
    pub(super) mark: Option<Mark>,
    /// The time of the next request that was planned when this one became due. It is that of the first waiter, if readers ask before it.
    pub(super) planned: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Life {
    Open,
    /// No new holds.
    Stopping,
    Closed,
}

impl Asking {
    /// True if this waiter could acquire what was asked for.
    pub(super) fn serves(&self, waiter: &Waiter, config: &Config) -> bool {
        waiter.terms.demand() == self.demand
            && waiter.terms.accepts_lease(self.lease, config)
            && self.only.is_none_or(|owner| owner == waiter.owner)
    }

    /// An earlier try may have acquired a hold, or may acquire one later. A look at a latch never does.
    pub(super) fn may_leave_a_hold(&self) -> bool {
        self.request.is_in_doubt() && self.how != How::Look
    }

    /// True if a reply to this request names its own id, or that of its mark.
    pub(super) fn is_named_in(&self, reply: Reply) -> bool {
        matches!(reply, Reply::Busy { own: Some(own), .. } if own == self.id || self.mark.is_some_and(|mark| mark.id == own))
    }
}

impl Idle {
    pub(super) fn until(look_at: Moment, mark: Option<Mark>) -> Attempt {
        let refused = Refusal::Of(Demand { mode: Mode::Shared, permits: 0 }); // nobody demands less
        Attempt::Idle(Idle { look_at, called: false, refused, mark })
    }
}

impl LockState {
    pub(crate) fn new(rules: &Rules, numbers: Numbers) -> LockState {
        let wanted = match rules.waits {
            Waits::InLine => Wanted::Places(Box::default()),
            _ => Wanted::One(Idle::until(Moment::ZERO, None)),
        };
        LockState {
            wanted,
            on_server: Vec::new(),
            calm: Calm::default(),
            lost: Rare::default(),
            queue: Rare::default(),
            others: Rare::default(),
            listening: Listening::Off,
            life: Life::Open,
            time_to_see: TIME_TO_SEE,
            forced_after: RequestId::FIRST,
            unanswered_since: None,
            numbers,
        }
    }

    // ---- the smallest steps ----

    pub(super) fn put(&mut self, on_server: OnServer) {
        self.on_server.reserve_exact(1); // most locks have one id, and a vector begins with room for four
        self.on_server.push(on_server);
    }

    /// The next request is sent no later than that. Each place in a queue on the server has a message or a timer of its own.
    pub(super) fn look(&mut self, at: Moment) {
        match &mut self.wanted {
            Wanted::One(Attempt::Idle(idle)) => idle.look_at = at.min(idle.look_at),
            Wanted::One(Attempt::Asking(asking)) => asking.woken = true,
            Wanted::Places(_) => {}
        }
    }

    /// There was a release: the next request is sent now.
    pub(super) fn called(&mut self, cx: &Cx<'_>) {
        self.look(cx.now);
        if let Wanted::One(Attempt::Idle(idle)) = &mut self.wanted {
            idle.called = cx.rules.waits.leave_marks();
        }
    }

    /// The next request is sent no later than that, also for a place. No message arrives, because the server notifies nobody when a lease ends.
    pub(super) fn look_for_next(&mut self, at: Moment) {
        match &mut self.wanted {
            Wanted::One(_) => self.look(at),
            Wanted::Places(places) => places.look_first(at),
        }
    }

    // ---- holders ----

    pub(super) fn held(&self) -> impl Iterator<Item = (&ServerHold, &Holders)> {
        self.on_server.iter().filter_map(OnServer::held)
    }

    /// The hold with this guard.
    fn held_with(&self, guard: Ticket) -> Option<(&ServerHold, &Holders)> {
        self.calm.held_with(guard).or_else(|| self.held().find(|(_, holders)| holders.has(guard)))
    }

    pub(super) fn has_held(&self) -> bool {
        self.held().next().is_some() || self.calm.held_count() > 0
    }

    /// The exclusive hold of this client, and its owner.
    pub(super) fn writer(&self) -> Option<(HoldId, Owner)> {
        let (server, holders) = self.held().find(|(server, _)| server.mode() == Mode::Exclusive)?;
        Some((server.id, holders.owners().next()?))
    }

    pub(super) fn find_held(&self, is_meant: impl Fn(&ServerHold, &Holders) -> bool) -> Option<usize> {
        self.on_server
            .iter()
            .position(|one| matches!(one, OnServer::Held(server, holders) if is_meant(server, holders)))
    }

    /// These were lost. Most names never need the memory for that.
    pub(super) fn note_lost(&mut self, lost: Vec<LostHold>) {
        if !lost.is_empty() {
            self.lost.extend(lost);
        }
    }

    /// True if the lock was forced open since the server confirmed this id.
    pub(super) fn is_disputed(&self, server: &ServerHold) -> bool {
        !server.is_found_since(self.forced_after)
    }

    // ---- waiters ----

    /// The next waiter. The owner of the exclusive hold may also read, before all others.
    pub(super) fn next_waiter(&self) -> Option<(Ticket, &Waiter)> {
        if self.queue.is_empty() {
            return None;
        }
        let writer = || self.writer().filter(|_| self.queue.readers() > 0); // what else its owner wants is nested
        let beside = writer().and_then(|(_, owner)| self.queue.first_of(owner));
        let first = || self.queue.first();
        let reader =
            || first().filter(|(ticket, _)| self.queue.passed == Some(*ticket)).and_then(|_| self.queue.first_reader());
        beside.or_else(reader).or_else(first)
    }

    /// The waiter that acquires a hold of this mode.
    pub(super) fn receiver(&self, mode: Mode) -> Option<Ticket> {
        let (ticket, waiter) = self.next_waiter()?;
        (waiter.mode() == mode && !self.is_kept_out(waiter)).then_some(ticket)
    }

    pub(super) fn is_kept_out(&self, waiter: &Waiter) -> bool {
        self.on_server.iter().any(|one| one.keeps_out(waiter))
    }

    /// The id that may admit this waiter at the next confirmation.
    pub(super) fn admitting(&self, waiter: &Waiter, now: Moment) -> Option<usize> {
        self.on_server.iter().position(|one| one.may_admit(waiter, now))
    }

    /// How a new hold is requested for this waiter.
    pub(super) fn how(&self, waiter: &Waiter, cx: &Cx<'_>) -> How {
        let passes_a_writer = self.queue.passed.is_some() && waiter.mode() == Mode::Shared;
        let may_mark = cx.rules.waits.leave_marks() && !passes_a_writer;
        let is_late = waiter.joined + cx.config.watchdog <= cx.now;
        match self.writer() {
            Some((id, owner)) if owner == waiter.owner => How::Beside(id),
            _ if cx.rules.waits == Waits::ToPass => How::Look,
            _ if !waiter.keeps_waiting() => How::Try,
            _ if may_mark && is_late && (waiter.mode() == Mode::Exclusive || waiter.is_beaten()) => How::Late,
            _ if may_mark && waiter.is_beaten() => How::Turn,
            _ => How::Wait,
        }
    }

    /// True if a mark of that mode is of use to the waiters.
    pub(super) fn wants_mark(&self, mark: Mark) -> bool {
        let first = [self.queue.first(), self.next_waiter()];
        first.into_iter().flatten().any(|(_, waiter)| mark.demand == waiter.terms.demand())
    }

    // ---- requests ----

    /// The releases of this client must not look like holds of others, unless they take more than one try. A client may release permits
    /// all the time. So a request for permits waits only for the releases that had begun when there was a reason for it.
    fn waits_for_release(&self, idle: &Idle, next: &Waiter) -> bool {
        let first_tries = self.on_server.iter().filter_map(OnServer::first_try).chain(self.calm.first_try());
        let wanted_since = idle.look_at.max(next.joined).max(self.queue.needs_reply_since().unwrap_or(Moment::ZERO));
        first_tries.min().is_some_and(|since| next.terms.permits == 0 || since <= wanted_since)
    }

    /// The pause before the next request of a waiter, if this id keeps it out, whose release the server has not run yet.
    pub(super) fn pause_behind(&self, id: HoldId) -> Option<Duration> {
        self.on_server.iter().find_map(|one| match one {
            OnServer::Releasing(release) if release.id() == id => Some(release.pause().min(LONGEST_PAUSE)),
            _ => None,
        })
    }

    /// A release of this client took more than one try, and the server has not run it yet.
    pub(super) fn has_failed_release(&self) -> bool {
        let has_failed = |one: &OnServer| matches!(one, OnServer::Releasing(_)) && !one.is_at_first_try();
        self.calm.has_failed_release() || self.on_server.iter().any(has_failed)
    }

    /// The time of the next try for a new hold. `now` is far when only requests under way, or about to be sent, count.
    pub(super) fn attempt_due(&self, now: Moment) -> Option<Moment> {
        let idle = match &self.wanted {
            Wanted::One(Attempt::Idle(idle)) => idle,
            Wanted::One(Attempt::Asking(asking)) => return asking.request.due(),
            Wanted::Places(_) => return None,
        };
        let (_, next) = self.next_waiter()?;
        let is_pointless =
            self.waits_for_release(idle, next) || self.is_kept_out(next) || self.admitting(next, now).is_some();
        (!is_pointless).then(|| self.looks_at(idle, next.terms.demand()))
    }

    /// After a release for all, others go first. But a caller that needs a reply now gets it.
    fn looks_at(&self, idle: &Idle, next: Demand) -> Moment {
        match idle.refused {
            Refusal::ByOwnRelease => return idle.look_at,
            Refusal::Of(refused) if self.queue.needs_reply() || refused.is_harder_than(next) => return Moment::ZERO,
            Refusal::Of(_) => {}
        }
        let others = self.others.go_first_until().filter(|_| next.is_for_one());
        others.map_or(idle.look_at, |until| idle.look_at.max(until))
    }

    /// The time since which the server has not replied to the waiters. They may wait for a hold of this client, whose confirmations it does
    /// not reply to.
    pub(super) fn silent_since(&self) -> Option<Moment> {
        let asking = match &self.wanted {
            Wanted::One(Attempt::Asking(asking)) => asking.request.silent_since(),
            Wanted::One(Attempt::Idle(_)) | Wanted::Places(_) => None,
        };
        let handing_over = || {
            self.on_server.iter().find_map(|one| match one {
                OnServer::Releasing(release) if release.is_handing_over() => release.silent_since(),
                _ => None,
            })
        };
        earliest([asking.or_else(handing_over), self.unanswered_since])
    }

    // ---- for the driver ----

    /// The time until which the guard with this ticket is certain; `None` if it is lost.
    pub(crate) fn certain_until(&self, guard: Ticket, now: Moment) -> Option<Moment> {
        let (server, holders) = self.held_with(guard)?;
        let end = holders.certain_until(guard, server)?;
        (end > now).then_some(end)
    }

    /// The id, the mode and the token of the hold with this guard.
    pub(crate) fn hold_of(&self, guard: Ticket) -> Option<(HoldId, Mode, Option<Token>)> {
        let (server, _) = self.held_with(guard)?;
        Some((server.id, server.mode(), server.token))
    }

    /// True if the owner of this guard held the lock already when it acquired it by this call.
    pub(crate) fn is_nested(&self, guard: Ticket) -> bool {
        self.held_with(guard).is_some_and(|(_, holders)| holders.is_nested(guard))
    }

    /// The count of that hold: here, and on the server if no request about it is under way.
    pub(crate) fn count_of(&self, guard: Ticket) -> Option<(usize, Option<u32>)> {
        let (server, holders) = self.held_with(guard)?;
        Some((holders.count(guard), holders.is_level().then_some(server.count)))
    }

    /// Each owner that holds the lock: since when, with how many guards, and until when it is certain.
    pub(crate) fn holds(&self) -> impl Iterator<Item = ((HoldId, Mode), (Moment, usize, Moment))> + '_ {
        let all = self.held().chain(self.calm.held());
        all.flat_map(|(server, holders)| holders.each(server).map(|hold| ((server.id, server.mode()), hold)))
    }

    /// The number of owners with exclusive and with shared guards, also of those that have lost the lock.
    pub(crate) fn guarded(&self) -> (usize, usize) {
        let (mut exclusive, mut shared) = (0, self.calm.held_count());
        let mut add = |mode, owners| *(if mode == Mode::Shared { &mut shared } else { &mut exclusive }) += owners;
        for one in &self.on_server {
            match one {
                OnServer::Held(server, holders) => add(server.mode(), holders.guarded()),
                OnServer::Lost(_) | OnServer::Parked(..) | OnServer::Releasing(_) => {}
            }
        }
        self.lost.iter().for_each(|lost| add(lost.hold.mode(), 1));
        (exclusive, shared)
    }

    /// True if that owner has a hold of this mode, lost or not.
    pub(crate) fn is_held_by(&self, owner: Owner, mode: Mode) -> bool {
        let mut held = self.held().chain(self.calm.held());
        self.lost.has_by(owner, mode) || held.any(|(server, holders)| server.mode() == mode && holders.has_owner(owner))
    }

    /// The last request by which the server had the hold of this guard, lost or not, was sent then.
    pub(crate) fn last_seen(&self, guard: Ticket) -> Option<Moment> {
        let held = self.held_with(guard).map(|(server, _)| server.lease.last_confirmed);
        held.or_else(|| self.lost.with(guard).map(|lost| lost.last_confirmed))
    }

    /// Releases under way, and requests for new holds that no waiter wants anymore.
    pub(crate) fn releasing(&self) -> usize {
        let is_release = |one: &&OnServer| matches!(one, OnServer::Releasing(_));
        let unwanted = match &self.wanted {
            Wanted::One(Attempt::Asking(_)) => usize::from(self.queue.is_empty()),
            Wanted::One(Attempt::Idle(_)) => 0,
            Wanted::Places(places) => places.releases(),
        };
        self.on_server.iter().filter(is_release).count() + self.calm.releasing() + unwanted
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// The server has not run a release of this client yet, so requests for the lock are refused.
    pub(crate) fn is_behind_own_release(&self) -> bool {
        match &self.wanted {
            Wanted::One(Attempt::Idle(idle)) => idle.refused == Refusal::ByOwnRelease,
            Wanted::One(Attempt::Asking(_)) | Wanted::Places(_) => self.has_failed_release(),
        }
    }

    /// True while messages on this channel are needed.
    pub(crate) fn wants_messages(&self, channel: Channel) -> bool {
        let listening = match (channel, &self.wanted) {
            (Channel::Name, _) => Some(self.listening),
            (Channel::Place(id), Wanted::Places(places)) => places.waiting(id).map(Waiting::listening),
            (Channel::Place(_), Wanted::One(_)) => None,
        };
        listening.is_some_and(|listening| listening != Listening::Off)
    }

    /// The place of this waiter in the queue on the server.
    pub(crate) fn place_of(&self, ticket: Ticket) -> Option<HoldId> {
        let owner = self.queue.get(ticket)?.owner;
        if let Wanted::Places(places) = &self.wanted { places.find(Key::Owner(owner)) } else { None }
    }

    /// The places in the queue on the server of owners that wait.
    #[allow(dead_code, reason = "the simulation uses it")]
    pub(crate) fn places(&self) -> impl Iterator<Item = HoldId> {
        let places = if let Wanted::Places(places) = &self.wanted { Some(places.waiting_ids()) } else { None };
        places.into_iter().flatten()
    }

    pub(crate) fn is_waiting(&self, ticket: Ticket) -> bool {
        self.queue.contains(ticket)
    }

    /// The first waiter, unless its next reply ends its wait; and when it joined.
    pub(crate) fn first_waiter(&self) -> Option<(Ticket, Moment)> {
        self.queue.first().filter(|(_, first)| first.keeps_waiting()).map(|(ticket, first)| (ticket, first.joined))
    }

    /// The waiters, without those whose next reply ends their wait; and when they joined.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = (Ticket, (Owner, Mode), Moment)> + '_ {
        let waiting = self.queue.iter().filter(|(_, waiter)| waiter.keeps_waiting());
        waiting.map(|(ticket, waiter)| (ticket, (waiter.owner, waiter.mode()), waiter.joined))
    }

    /// The ids that owners of this client hold, each with all of its owners.
    pub(crate) fn held_by(&self) -> impl Iterator<Item = ((HoldId, Mode), Owner)> + '_ {
        self.held().flat_map(|(server, holders)| holders.owners().map(|owner| ((server.id, server.mode()), owner)))
    }

    /// The number of waiters, and the mode of the first one.
    #[allow(dead_code, reason = "the simulation uses it")]
    pub(crate) fn waiting(&self) -> (usize, Option<Mode>) {
        (self.queue.len(), self.queue.first().map(|(_, first)| first.mode()))
    }

    /// The number of waiters of this mode.
    pub(crate) fn waiting_of(&self, mode: Mode) -> usize {
        match mode {
            Mode::Exclusive => self.queue.len() - self.queue.readers(),
            Mode::Shared => self.queue.readers(),
        }
    }

    /// The time of the next confirmation if the one under way finds the hold. The driver sets its timer for it at once, and not again when
    /// the reply comes.
    pub(crate) fn next_confirmation(&self) -> Option<Moment> {
        self.on_server.iter().find_map(|one| match one {
            OnServer::Held(server, _) => server.confirmations.after_reply(&server.lease),
            _ => None,
        })
    }

    /// Nothing is held, wanted or under way.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_idle = match &self.wanted {
            Wanted::One(Attempt::Idle(idle)) => idle.mark.is_none(),
            Wanted::One(Attempt::Asking(_)) => false,
            Wanted::Places(places) => places.is_empty(),
        };
        is_idle && self.on_server.is_empty() && self.calm.is_empty() && self.lost.is_empty() && self.queue.is_empty()
    }

    /// Nothing is held, wanted, under way, or worth remembering.
    pub(crate) fn is_forgotten(&self, now: Moment) -> bool {
        self.is_quiet() && self.listening == Listening::Off && self.others.are_forgotten(now)
    }
}
