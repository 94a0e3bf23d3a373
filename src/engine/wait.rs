//! The one loop that waits for a lock: try, join the queue, try again when woken or when the lease of the holder ends.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::MutexGuard,
    task::consume_budget,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    Engine, TaskRuntime,
    ask::{Pauses, ScriptRequest, unexpected},
    guard::Guard,
    hold::{Claim, Hold, LeaseTerms},
    kind::{Kind, Waits},
    queue::{LineKey, OngoingAttempt, QueueEntry, SharedAnswer, Signal},
    registry::HoldKey,
};
use crate::{
    clock::Moment,
    config::{Lease, Name, PubSub},
    error::{Error, Result},
    owner::Owner,
    redis::{Answer, Code},
    stats::AcquiredBy,
    sync::{std, tokio},
};

/// Where locks are logged.
const TARGET: &str = "leasehold::lock";

/// The longest sleep between two attempts while the server would not tell us of a release.
const UNTOLD_NAP: Duration = Duration::from_millis(200);

/// What a caller wants.
#[derive(Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) kind: &'static Kind,
    /// A fixed lease instead of the watchdog's.
    pub(crate) lease: Option<Lease>,
    pub(crate) max_hold: Option<Duration>,
    /// For so long nobody else gets it, however soon it is given back.
    pub(crate) min_hold: Option<Lease>,
    pub(crate) wait_limit: WaitLimit,
}

impl AcquireRequest {
    /// Whether an id that another hold passes on in memory will do. What is left of its lease is not known to be enough for a fixed
    /// lease, or for the time for which nobody else may have the lock: the server must be asked for those.
    fn may_inherit(&self) -> bool {
        self.lease.is_none() && self.min_hold.is_none()
    }

    fn hold_key(&self) -> HoldKey {
        self.hold_key_of(self.kind)
    }

    fn hold_key_of(&self, kind: &'static Kind) -> HoldKey {
        (Arc::clone(self.name.key()), kind, self.owner.clone())
    }

    /// Whose way back it waits for: of what its owner may have dropped a moment ago. Those who share it are not waited for; others
    /// of them come and go all the time.
    fn lines(&self) -> impl Iterator<Item = LineKey> {
        let own = (!self.kind.rules.shared).then_some(self.kind);
        let other = if matches!(self.wait_limit, WaitLimit::Once) { self.kind.barred_by } else { None };
        let kinds = own.into_iter().chain(self.kind.beside).chain(other);
        kinds.map(|kind| (Arc::clone(self.name.key()), kind))
    }
}

/// As what an acquisition is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// As the outermost one, of a hold that does not wait.
    Once,
    /// The same, by one that waits: for the first time, or once more.
    ToJoin,
    ToStay,
    /// The same, by one that was refused so often that it claims the next turn.
    ToClaim,
    /// The same, where no JVM has the lock: JVMs do not know of claims, which would keep away only ours.
    ToClaimLate,
    /// As a nested one.
    Again,
}

impl Asked {
    fn word(self, waits: Waits) -> &'static str {
        match self {
            Asked::Again => "again",
            Asked::ToJoin if waits != Waits::Here => "join",
            Asked::ToStay if waits != Waits::Here => "stay",
            Asked::ToClaim => "turn",
            Asked::ToClaimLate => "late",
            Asked::Once | Asked::ToJoin | Asked::ToStay => "first",
        }
    }

    fn claims(self) -> bool {
        matches!(self, Asked::ToClaim | Asked::ToClaimLate)
    }
}

/// How often a waiter is refused although it was woken, before it claims the next turn: by then others are always quicker.
const BEATEN: u32 = 3;

/// How long to wait while somebody else has it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WaitLimit {
    Once,
    Until(Instant),
    Forever,
}

impl WaitLimit {
    /// A wait too long for the clock is one without end.
    pub(crate) fn of(time: Duration) -> WaitLimit {
        Instant::now().checked_add(time).map_or(WaitLimit::Forever, WaitLimit::Until)
    }

    fn end(self) -> Option<Instant> {
        match self {
            WaitLimit::Until(end) => Some(end),
            WaitLimit::Once | WaitLimit::Forever => None,
        }
    }

    fn is_over(self) -> bool {
        match self {
            WaitLimit::Once => true,
            WaitLimit::Until(end) => Instant::now() >= end,
            WaitLimit::Forever => false,
        }
    }
}

/// How often in a row the lock may be granted too late to be of use, before the caller is told so.
const TOO_LATE: u32 = 3;

/// What came of waiting.
enum WaitOutcome {
    Granted(AcquiredBy),
    TimeOver,
    /// The waiter did not look for so long that the others went on without it.
    PassedOver,
}

/// When a wait tells its length: first when it is slow, then at every doubling.
struct Reports {
    started: Instant,
    slow: Duration,
    spoke: bool,
    /// Never, for a time that the clock cannot count to.
    due: Option<Instant>,
}

impl Reports {
    fn new(started: Instant, slow: Duration) -> Reports {
        Reports { started, slow, spoke: false, due: started.checked_add(slow) }
    }

    fn is_slow(&self) -> bool {
        self.started.elapsed() >= self.slow
    }

    fn put_off(&mut self, now: Instant) {
        self.spoke = true;
        let waited = (now - self.started).max(Duration::from_millis(10));
        self.due = self.started.checked_add(waited * 2);
    }
}

/// What came of waiting for the right to ask about a hold.
enum Turn<'a> {
    Mine(MutexGuard<'a, ()>),
    Taken,
    None,
}

/// Whether a waiter whose time is over must ask.
enum FinalAttempt<'a> {
    Taken,
    /// Until then: who has waited for another's answer has had a part of its time.
    Ask(Option<OngoingAttempt<'a>>, Option<Instant>),
}

/// The same for the caller.
enum Entered {
    Ours(Guard),
    Taken,
    PassedOver,
}

/// What came of an attempt.
enum Attempt {
    /// By a request sent then. Nothing is held until it is accepted.
    Granted(Moment),
    /// Somebody has it, for so long as far as is known.
    Busy { left: Option<Duration>, place: Option<u64>, holder: Option<String> },
}

impl Engine {
    /// Takes the lock; `None` if somebody else has it for longer than the wait limit.
    pub(crate) async fn take(self: &Arc<Self>, request: &AcquireRequest) -> Result<Option<Guard>> {
        if self.is_closed() {
            return Err(self.closed(ASKING, &request.name));
        }
        TaskRuntime::around(ASKING)?;
        let taken = self.enter(request).await;
        // What was granted while the client closed goes back with its guard.
        if self.is_closed() { Err(self.closed(ASKING, &request.name)) } else { taken }
    }

    async fn enter(self: &Arc<Self>, request: &AcquireRequest) -> Result<Option<Guard>> {
        let mut too_late = 0;
        self.check_barred(request)?;
        loop {
            let fresh = || {
                Hold::new(
                    request.name.clone(),
                    request.owner.clone(),
                    self.new_id(request.kind),
                    request.kind,
                    self.config.watchdog,
                )
            };
            let hold = self.registry.enter(request.hold_key(), fresh);
            let _turn = match self.turn(&hold, request.wait_limit).await? {
                Turn::Mine(turn) => turn,
                Turn::Taken => return Ok(None),
                Turn::None => continue, // whoever has it does not look: afresh
            };
            if self.is_closed() {
                return Err(self.closed(ASKING, &request.name)); // and whoever closes sees this hold, or has seen it
            }
            let claim = hold.claim();
            match claim {
                Claim::First => {}
                Claim::Again => return self.enter_again(Guard::of_claim(self, &hold), request).await.map(Some),
                Claim::Lost(reason) => return Err(Error::lost(&request.name, reason)),
                Claim::Over => continue, // its last guard went while we waited for the turn
            }
            let mut entering = pin!(self.enter_first(Guard::of_claim(self, &hold), request));
            match poll_fn(|cx| self.poll_unless_recalled(&hold, entering.as_mut(), cx)).await? {
                Entered::Ours(_) if self.is_stopping() => return Err(self.closed(ASKING, &request.name)),
                Entered::Ours(guard) => match guard.check_clock() {
                    // Nobody looked at the answer for a lease, or the lease is shorter than the way of an answer.
                    Err(lost) if too_late == TOO_LATE => return Err(lost),
                    Err(_) => too_late += 1,
                    Ok(()) => return Ok(Some(guard)),
                },
                Entered::Taken => return Ok(None),
                Entered::PassedOver => {}
            }
        }
    }

    /// Refuses what its owner would wait for itself for; not a nested acquisition.
    fn check_barred(&self, request: &AcquireRequest) -> Result<()> {
        let holds = |kind| self.registry.granted(&request.hold_key_of(kind));
        match request.kind.barred_by.and_then(holds) {
            Some(other) if holds(request.kind).is_none() => {
                other.check()?;
                Err(Error::Upgrade { name: request.name.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Ends a first acquisition whenever nobody would use it any more. It is looked at whenever it is polled, and who waits for
    /// an answer is: ten times within the command timeout.
    fn poll_unless_recalled(
        &self,
        hold: &Hold,
        entering: Pin<&mut impl Future<Output = Result<Entered>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Entered>> {
        if hold.recall.is_called() {
            Poll::Ready(Ok(Entered::PassedOver))
        } else if self.is_stopping() {
            Poll::Ready(Err(self.closed(ASKING, &hold.name)))
        } else {
            entering.poll(cx)
        }
    }

    /// One more acquisition of a hold that we have.
    async fn enter_again(self: &Arc<Self>, mut guard: Guard, request: &AcquireRequest) -> Result<Guard> {
        match Box::pin(self.attempt(
            &mut guard,
            request,
            Asked::Again,
            (Instant::now(), self.give_up(request.wait_limit)),
        ))
        .await?
        {
            Attempt::Granted(sent) => self.granted(&mut guard, request, sent),
            Attempt::Busy { .. } => unreachable!("`again` is granted or lost"),
        }
        guard.check_clock()?;
        self.counters.reentered.up();
        Ok(guard)
    }

    async fn enter_first(self: &Arc<Self>, mut guard: Guard, request: &AcquireRequest) -> Result<Entered> {
        let started = Instant::now();
        let hold = Arc::clone(guard.hold());
        let has_beside =
            request.kind.beside.is_some_and(|kind| self.registry.granted(&request.hold_key_of(kind)).is_some());
        if request.kind.rules.shared {
            consume_budget().await; // who asks nobody would else never let others run
        }
        if !has_beside && request.may_inherit() && self.queues.resume(&hold) {
            self.granted(&mut guard, request, Moment::now());
            self.counters.acquired(AcquiredBy::HandedOver, started.elapsed());
            return Ok(Entered::Ours(guard));
        }
        if has_beside {
            // What its owner has lets it in, past all who wait for that.
            let give_up = self.give_up(request.wait_limit);
            let entered = Box::pin(self.attempt(&mut guard, request, Asked::Once, (started, give_up))).await?;
            if let Attempt::Granted(sent) = entered {
                self.granted(&mut guard, request, sent);
                self.counters.acquired(AcquiredBy::FirstTry, started.elapsed());
                return Ok(Entered::Ours(guard));
            }
        }
        // What this process is giving back must not look like somebody else's. Half of the time at most: the rest is for
        // asking. Who can wait for the lock need not wait for long here.
        let soon = self.give_up(WaitLimit::Once);
        let half = started + (request.wait_limit.end().map_or(soon, |end| end.min(soon)) - started) / 2;
        tokio::select! {
            biased;
            () = self.clear(request) => {}
            () = self.stopping.cancelled() => return Err(self.closed(ASKING, &hold.name)), // whoever closes waits for us
            () = sleep_until(half.max(started + LAST_ATTEMPT.min(soon - started))) => {}
        }
        let outcome = match request.wait_limit {
            WaitLimit::Once => match Box::pin(self.attempt(&mut guard, request, Asked::Once, (started, soon))).await? {
                Attempt::Granted(sent) => {
                    self.granted(&mut guard, request, sent);
                    WaitOutcome::Granted(AcquiredBy::FirstTry)
                }
                Attempt::Busy { .. } => WaitOutcome::TimeOver,
            },
            WaitLimit::Until(_) | WaitLimit::Forever => self.wait_in_queue(&mut guard, request, started).await?,
        };
        match outcome {
            WaitOutcome::Granted(way) => {
                self.counters.acquired(way, started.elapsed());
                Ok(Entered::Ours(guard))
            }
            WaitOutcome::TimeOver => Ok(Entered::Taken),
            WaitOutcome::PassedOver => {
                hold.came_again(); // whatever it got meanwhile goes back with its guard
                Ok(Entered::PassedOver)
            }
        }
    }

    /// Resolves when nothing that its owner could have dropped is on its way back.
    async fn clear(&self, request: &AcquireRequest) {
        for line in request.lines() {
            self.releaser.clear(&line).await;
        }
    }

    async fn wait_in_queue(
        &self,
        guard: &mut Guard,
        request: &AcquireRequest,
        started: Instant,
    ) -> Result<WaitOutcome> {
        let hold = Arc::clone(guard.hold());
        let _crowd = request.wait_limit.end().map(|end| self.crowd.join(end));
        let entry = self.queues.join(&hold, self.lease(request), request.may_inherit());
        let mut reports = Reports::new(started, self.config.slow_wait);
        let outcome = {
            let mut wait = pin!(self.wait(&entry, guard, request, &mut reports));
            poll_fn(|cx| {
                entry.attend(cx.waker());
                wait.as_mut().poll(cx)
            })
            .await?
        };
        let way = if let WaitOutcome::Granted(way) = outcome { Some(way) } else { None };
        if reports.is_slow() {
            self.report(&entry, &reports, Some(way));
        }
        if way.is_some() {
            entry.leave_granted();
        }
        Ok(outcome)
    }

    /// Says how long it takes, or took, and who has the lock, or had. Loud for who has spoken before, the head of its queue:
    /// where thousands wait, the others would say the same.
    fn report(&self, entry: &QueueEntry<'_>, reports: &Reports, ended: Option<Option<AcquiredBy>>) {
        let (name, waited, holder) = (entry.name(), reports.started.elapsed(), entry.holder());
        let place = entry.place();
        let is_own = |holder: &str| holder.starts_with(&*self.id.as_hyphenated().to_string());
        let by_this_client = holder.as_deref().is_some_and(is_own);
        match ended {
            None => tracing::warn!(target: TARGET, name, ?waited, ?holder, by_this_client, place, "still waiting"),
            Some(way) if reports.spoke => {
                tracing::warn!(target: TARGET, name, ?waited, ?holder, by_this_client, place, ?way, "slow wait ended");
            }
            Some(way) => {
                tracing::debug!(target: TARGET, name, ?waited, ?holder, by_this_client, place, ?way, "slow wait ended")
            }
        }
    }

    /// Waits in the queue. Who is first in the queue tries at once, with no subscription and no timer.
    async fn wait(
        &self,
        entry: &QueueEntry<'_>,
        guard: &mut Guard,
        request: &AcquireRequest,
        reports: &mut Reports,
    ) -> Result<WaitOutcome> {
        let (mut look_again, mut pauses, mut beaten) = (None, Pauses::default(), 0);
        let mut woken =
            if entry.is_head() { Woken::First } else { self.sleep(entry, &mut look_again, request, reports).await? };
        loop {
            match entry.signal() {
                Signal::HandedOver(sent) => {
                    self.granted(guard, request, sent);
                    return Ok(WaitOutcome::Granted(AcquiredBy::HandedOver));
                }
                Signal::PassedOver => return Ok(WaitOutcome::PassedOver),
                Signal::Try | Signal::Wait if entry.joins_others() => {
                    self.granted(guard, request, Moment::now());
                    return Ok(WaitOutcome::Granted(AcquiredBy::HandedOver));
                }
                Signal::Wait if woken.needs_nothing(entry) => _ = entry.outage_ends(self.config.outage_timeout)?,
                Signal::Try | Signal::Wait => {
                    let asking = match woken {
                        Woken::OutOfTime => Box::pin(self.last_word(entry, request.wait_limit)).await?,
                        _ => FinalAttempt::Ask(None, None),
                    };
                    let FinalAttempt::Ask(asking, until) = asking else { return Ok(WaitOutcome::TimeOver) };
                    self.let_others_go_first(entry, request.wait_limit).await;
                    let told = entry.is_told();
                    let Some(asking) = asking.or_else(|| entry.asking()) else { continue }; // it has the lock
                    let asked = self.asked(entry, woken, beaten);
                    match self.attempt_in_queue(entry, (asking, until), guard, (request, asked)).await? {
                        Attempt::Granted(sent) if entry.accept() => {
                            self.granted(guard, request, sent);
                            return Ok(WaitOutcome::Granted(woken.way()));
                        }
                        Attempt::Granted(_) => return Ok(WaitOutcome::PassedOver),
                        Attempt::Busy { left, place, holder } => {
                            holder.as_ref().inspect(|holder| entry.seen(holder, place));
                            beaten += u32::from(woken == Woken::Called || !told);
                            let longest = match told {
                                true => request.kind.rules.longest_nap(holder.as_deref(), place, asked.claims()),
                                false => self.untold_nap(&mut pauses),
                            };
                            look_again = Some(Instant::now() + nap(left, longest));
                        }
                    }
                    if request.wait_limit.is_over() {
                        return Ok(WaitOutcome::TimeOver);
                    }
                    entry.listen(&self.redis);
                }
            }
            woken = self.sleep(entry, &mut look_again, request, reports).await?;
        }
    }

    /// What a waiter whose time is over knows from others of its queue. All whose time ends together share one question:
    /// thousands of them would have thousands answered too late. The head has its own, for the lock would be its.
    async fn last_word<'a>(&self, entry: &'a QueueEntry<'_>, wait_limit: WaitLimit) -> Result<FinalAttempt<'a>> {
        let (began, due) = (Instant::now(), self.last_attempt(wait_limit.end().unwrap_or_else(Instant::now)));
        let until = began + due + LATE;
        while !entry.is_head() && !entry.is_shared() {
            match entry.shared_answer(due / 2) {
                SharedAnswer::Taken => return Ok(FinalAttempt::Taken),
                SharedAnswer::Pending(answered) => {
                    let answered = timeout_at(until, answered).await;
                    answered.map_err(|_| Error::silent(ASKING, entry.name(), began.elapsed(), None))?;
                }
                SharedAnswer::Unknown(asking) => return Ok(FinalAttempt::Ask(Some(asking), Some(until))),
            }
        }
        Ok(FinalAttempt::Ask(None, Some(until)))
    }

    /// Where nothing is ever published pauses grow, so that a short hold is not waited for long.
    fn untold_nap(&self, pauses: &mut Pauses) -> Duration {
        match self.config.pubsub {
            PubSub::Off => pauses.next().min(UNTOLD_NAP),
            _ => UNTOLD_NAP,
        }
    }

    async fn attempt_in_queue(
        &self,
        entry: &QueueEntry<'_>,
        (asking, until): (OngoingAttempt<'_>, Option<Instant>),
        guard: &mut Guard,
        (request, asked): (&AcquireRequest, Asked),
    ) -> Result<Attempt> {
        let give_up = self.give_up(request.wait_limit).min(entry.outage_ends(self.config.outage_timeout)?);
        let give_up = until.map_or(give_up, |until| give_up.min(until.max(Instant::now() + LAST_ATTEMPT)));
        let tried = Box::pin(self.attempt(guard, request, asked, (entry.asks_since(&asking), give_up))).await;
        asking.ended(&tried);
        tried
    }

    /// Beside JVMs one leaves a mark for no longer than a lease, see [`Asked::ToClaimLate`].
    fn asked(&self, entry: &QueueEntry<'_>, woken: Woken, beaten: u32) -> Asked {
        let rules = entry.rules();
        let is_late = entry.joined().elapsed() > *self.config.watchdog;
        match woken {
            _ if rules.has_mark() && is_late && (beaten >= BEATEN || rules.waits == Waits::Marked) => {
                Asked::ToClaimLate
            }
            _ if rules.has_mark() && beaten >= BEATEN => Asked::ToClaim,
            Woken::First => Asked::ToJoin,
            _ => Asked::ToStay,
        }
    }

    async fn sleep(
        &self,
        entry: &QueueEntry<'_>,
        look_again: &mut Option<Instant>,
        request: &AcquireRequest,
        reports: &mut Reports,
    ) -> Result<Woken> {
        entry.queued();
        // Set once: whoever is woken for nothing must not put it off.
        let look_again =
            *look_again.get_or_insert_with(|| Instant::now() + request.kind.rules.longest_nap(None, None, false));
        loop {
            let alarm = entry.alarm(look_again, self.config.outage_timeout);
            let report_at = reports.due.filter(|_| entry.is_head());
            if self.is_stopping() {
                return Err(self.closed(ASKING, entry.name())); // whoever stops has woken those who were here before
            }
            let woken = sleep(entry, earlier(alarm, report_at), request.wait_limit).await;
            let now = Instant::now();
            if woken != Woken::Alarm || alarm.is_some_and(|alarm| alarm <= now) {
                return Ok(woken);
            }
            self.report(entry, reports, None);
            reports.put_off(now);
        }
    }

    /// Unless the time is over: then the last attempt is due.
    async fn let_others_go_first(&self, entry: &QueueEntry<'_>, wait_limit: WaitLimit) {
        if let Some(until) = entry.yield_until()
            && until > Instant::now()
        {
            sleep_until(wait_limit.end().map_or(until, |end| until.min(end))).await;
        }
    }

    /// What an attempt after the deadline may take: a few of the round trips seen lately. Where thousands have that deadline,
    /// what it takes until their tasks have run, for the answer comes to one of these, and until all their requests have gone
    /// out.
    fn last_attempt(&self, end: Instant) -> Duration {
        let crowd = self.crowd.at(end);
        let round_trips = self.counters.round_trip.get().saturating_mul(4 + crowd / AT_ONCE);
        let all = A_TASK.saturating_mul(crowd).min(LONGEST_LAST_ATTEMPT);
        round_trips.max(LAST_ATTEMPT).max(all).min(self.config.command_timeout)
    }

    /// What the server is asked for: no less than the time for which nobody else may have it, for its holder may die now.
    fn lease(&self, request: &AcquireRequest) -> Lease {
        let lease = request.lease.unwrap_or(self.config.watchdog);
        request.min_hold.map_or(lease, |min| lease.max(min))
    }

    /// Counts the guard's acquisition as held since `sent`.
    fn granted(&self, guard: &mut Guard, request: &AcquireRequest, sent: Moment) {
        let terms = LeaseTerms { renewed: request.lease.is_none(), cap: request.max_hold.map(|max| sent + max) };
        request.min_hold.inspect(|min| guard.hold().not_before(sent + **min));
        guard.granted(sent, self.lease(request), terms);
    }

    /// The right to ask about this hold. The lock is taken if the wait limit is over first, or if it is for one attempt and the
    /// hold's own asker has found it taken.
    async fn turn<'a>(&self, hold: &'a Hold, wait_limit: WaitLimit) -> Result<Turn<'a>> {
        match hold.turn.try_lock() {
            Ok(turn) => Ok(Turn::Mine(turn)),
            Err(_) => Box::pin(self.wait_for_turn(hold, wait_limit)).await,
        }
    }

    async fn wait_for_turn<'a>(&self, hold: &'a Hold, wait_limit: WaitLimit) -> Result<Turn<'a>> {
        let started = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.closing.cancelled() => return Err(self.closed(ASKING, &hold.name)),
                () = self.stopping.cancelled(), if !hold.is_granted() => return Err(self.closed(ASKING, &hold.name)),
                turn = hold.turn.lock() => return Ok(Turn::Mine(turn)),
                () = hold.evicted() => return Ok(Turn::None),
                () = hold.queued(), if matches!(wait_limit, WaitLimit::Once) => return Ok(Turn::Taken),
                () = sleep_until(self.give_up(wait_limit)) => {}
            }
            // Whoever has the turn waits for the lock as we do, or for a server that does not answer.
            match (hold.is_queued(), wait_limit.is_over()) {
                (true, false) => {}
                (true, true) => return Ok(Turn::Taken),
                (false, _) => {
                    return Err(Error::silent(
                        "waiting for an earlier request about",
                        &hold.name,
                        started.elapsed(),
                        None,
                    ));
                }
            }
        }
    }

    /// Asks the server once, through outages. Its callers box it, so that who only waits does not carry the room for a
    /// request along.
    async fn attempt(
        &self,
        guard: &mut Guard,
        request: &AcquireRequest,
        asked: Asked,
        (since, give_up): (Instant, Instant),
    ) -> Result<Attempt> {
        let hold = Arc::clone(guard.hold());
        let (lease, waits) = (self.lease(request), request.kind.rules.waits);
        let replicas = if asked == Asked::Again { 0 } else { self.config.replicas };
        let beside = request.kind.beside.and_then(|kind| self.registry.granted(&request.hold_key_of(kind)));
        let beside = beside.filter(|_| asked != Asked::Again);
        beside.as_ref().map_or(Ok(()), |beside| beside.check())?;
        let claim = if asked == Asked::Again { hold.lengthening(lease) } else { String::new() };
        let last = match &beside {
            _ if waits == Waits::InLine => self.redis.publish(),
            Some(beside) => beside.id(),
            None => &claim,
        };
        guard.asked();
        let part = hold.ask_part((lease.millis(), hold.hold_count()), asked.word(waits), last);
        let question = ScriptRequest::new(ASKING, &hold.name, (&hold.kind.acquire.script, part), (since, give_up));
        let question = ScriptRequest { hold: Some((&hold, lease)), replicas, ..question };
        let reply = question.ask(&self.redis).await.inspect_err(|_| hold.in_doubt())?;
        if reply.again {
            hold.in_doubt();
        }
        match reply.answer.code {
            Code::Granted if reply.replicas < replicas => {
                Err(Error::Replicas { name: hold.name.to_string(), wanted: replicas, got: reply.replicas })
            }
            Code::Granted => {
                hold.take_fence(reply.answer.number());
                let is_as_anybodys = beside.is_none() && asked != Asked::Again && !reply.again;
                if is_as_anybodys && request.kind.rules.shared && request.lease.is_none() {
                    self.queues.open(&hold, reply.sent);
                }
                Ok(Attempt::Granted(reply.sent))
            }
            Code::Out => Box::pin(self.attempt(guard, request, Asked::ToJoin, (since, give_up))).await,
            Code::Busy | Code::Queued => {
                self.counters.refused.up();
                let notes = waits != Waits::Here || asked.claims();
                guard.refused(notes && !matches!(request.wait_limit, WaitLimit::Once));
                Ok(busy(&reply.answer))
            }
            // Its owner has given back the other hold meanwhile.
            Code::Lost if beside.as_ref().is_some_and(|beside| beside.is_over()) => {
                Box::pin(self.attempt(guard, request, asked, (since, give_up))).await
            }
            Code::Lost => Err(self.found_lost(beside.as_ref().unwrap_or(&hold))),
            Code::Conflict => {
                guard.refused(false);
                Err(Error::Conflict { name: hold.name.to_string() })
            }
            _ => Err(unexpected(&reply.answer)),
        }
    }

    /// How long one question is asked: a single attempt for as long as a command may take, else through an outage,
    /// but never long beyond the caller's wait limit.
    fn give_up(&self, wait_limit: WaitLimit) -> Instant {
        let now = Instant::now();
        match wait_limit {
            WaitLimit::Once => now + self.config.command_timeout.min(self.config.outage_timeout),
            WaitLimit::Until(end) => end.max(now + self.last_attempt(end)).min(now + self.config.outage_timeout),
            WaitLimit::Forever => now + self.config.outage_timeout,
        }
    }
}

const ASKING: &str = "acquiring the lock";
/// What the attempt after the deadline may take at least.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);
/// However many have the same deadline.
const LONGEST_LAST_ATTEMPT: Duration = Duration::from_millis(1_000);
/// How much later than whoever asks for all the others may hear of it.
const LATE: Duration = Duration::from_millis(200);
/// How many requests are under way at once on one connection.
const AT_ONCE: u32 = 384;
/// What each of thousands of tasks that wake at once adds to the way of an answer, on a machine that is busy with others
/// too: 50 µs were too few for a thousand (one in twenty was told so) beside twelve processes on two cores.
const A_TASK: Duration = Duration::from_micros(200);

/// From milliseconds left, where there is an end, the place in line, where there is one, and the holder's id.
fn busy(answer: &Answer) -> Attempt {
    let (left, place, holder) = match answer.code {
        Code::Queued => answer.words().map(|[left, place, holder]| (left, place.parse().ok(), holder)),
        _ => answer.words().map(|[left, holder]| (left, None, holder)),
    }
    .unwrap_or_default();
    let left = left.parse().ok().map(Duration::from_millis);
    Attempt::Busy { left, place, holder: Some(holder).filter(|holder| !holder.is_empty()).map(str::to_owned) }
}

/// What ended a waiter's sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// It never slept.
    First,
    Called,
    Alarm,
    OutOfTime,
}

impl Woken {
    /// A wake-up without a call concerns the head at its alarm, and whose time is over.
    fn needs_nothing(self, entry: &QueueEntry<'_>) -> bool {
        match self {
            Woken::Called => true,
            Woken::Alarm => !entry.is_head(),
            Woken::First | Woken::OutOfTime => false,
        }
    }

    fn way(self) -> AcquiredBy {
        match self {
            Woken::First => AcquiredBy::FirstTry,
            Woken::Called => AcquiredBy::Woken,
            Woken::Alarm | Woken::OutOfTime => AcquiredBy::Timer,
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}

async fn sleep(entry: &QueueEntry<'_>, alarm: Option<Instant>, wait_limit: WaitLimit) -> Woken {
    let end = wait_limit.end();
    let Some(until) = earlier(alarm, end) else {
        entry.woken().await;
        return Woken::Called;
    };
    // Boxed, so that the thousands that have no timer do not carry the room for one.
    match Box::pin(timeout_at(until, entry.woken())).await {
        Ok(()) => Woken::Called,
        Err(_) if end == Some(until) => Woken::OutOfTime,
        Err(_) => Woken::Alarm,
    }
}

/// How long to sleep beside a holder whose lease has `left` to go.
fn nap(left: Option<Duration>, longest: Duration) -> Duration {
    // A millisecond more: Redis deletes a key only after the millisecond in which it ends.
    left.map_or(longest, |left| (left + Duration::from_millis(1)).min(longest))
}
