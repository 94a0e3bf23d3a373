//! The one loop that waits for a lock: try, join the queue, and try again when woken or when the lease of the holder expires.

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
    Engine,
    ask::{Pauses, ScriptRequest},
    guard::EngineGuard,
    hold::{Claim, Grant, Hold, LeaseTerms},
    queue::{OngoingAttempt, QueueEntry, SharedAnswer, Signal},
    registry::HoldKey,
    releaser::Leftovers,
    sharing::Resumed,
    tenure::Joined,
};
use crate::{
    clock::Moment,
    config::{Lease, PubSub},
    error::{Error, Result},
    failed::{ASKING, silent, unexpected},
    kind::{Kind, Waits},
    redis::{Answer, Code, source},
    request::{AcquireRequest, WaitLimit},
    stats::AcquiredBy,
    sync::{std, tokio},
    task_runtime::TaskRuntime,
};

/// The tracing target of events about locks.
const TARGET: &str = "leasehold::lock";

/// The longest sleep between two attempts while no message about a release can arrive.
const UNTOLD_NAP: Duration = Duration::from_millis(200);

impl AcquireRequest {
    /// True if this call accepts an id that another hold passes on in memory, and lets other owners share its own. A fixed lease and a
    /// `min_hold` need an id of their own: the time left on the lease of another one may be too short, and they do not end with others.
    fn may_inherit(&self) -> bool {
        self.lease.is_none() && self.min_hold.is_none()
    }

    fn hold_key(&self) -> HoldKey {
        self.hold_key_of(self.kind)
    }

    fn hold_key_of(&self, kind: &'static Kind) -> HoldKey {
        (Arc::clone(self.name.key()), kind, self.owner.clone())
    }

    /// The queues whose releases this call waits for first: its owner may have dropped a guard a moment ago. It does not wait for
    /// releases of holds that it could share, because other owners acquire and release these all the time. It does not wait for the traces
    /// of waiters of other owners either.
    fn leftovers(&self) -> impl Iterator<Item = Leftovers> {
        let own = (!self.kind.rules.shared).then_some(self.kind);
        let of_all = matches!(self.wait_limit, WaitLimit::Once).then_some(self.kind.barred_by).flatten();
        let all = own.into_iter().chain(self.kind.beside).chain(of_all).map(|kind| (kind, None));
        let of_owner = [self.kind].into_iter().chain(self.kind.beside).chain(self.kind.barred_by);
        let of_owner = of_owner.map(|kind| (kind, Some(self.owner.clone())));
        all.chain(of_owner).map(|(kind, owner)| ((Arc::clone(self.name.key()), kind), owner))
    }
}

/// The kind of a request for an acquisition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// The outermost acquisition of a hold that does not wait.
    Once,
    /// The outermost acquisition of a waiter: its first request, or a later one.
    ToJoin,
    ToStay,
    /// A later request of a waiter that was refused so often that it claims the next turn.
    ToClaim,
    /// The same, but it claims only if no JVM holds the lock. JVMs do not know claims, so a claim would keep out only leasehold clients.
    ToClaimLate,
    /// A nested acquisition.
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

/// A waiter that was woken and still refused this many times claims the next turn: other processes are always faster.
const BEATEN: u32 = 3;

/// The number of grants in a row that may be too late to use, before the caller gets an error.
const TOO_LATE: u32 = 3;

/// The result of waiting.
enum WaitOutcome {
    Granted(AcquiredBy),
    /// The server has named this holder.
    TimeOver {
        holder: Option<Box<str>>,
    },
    /// The waiter was not polled for so long that the others have passed it over.
    PassedOver,
}

/// The times at which a wait is logged: when it becomes slow, and then at every doubling.
struct Reports {
    started: Instant,
    slow: Duration,
    spoke: bool,
    /// `None` if the clock cannot count that far.
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

/// The result of waiting for the right to send requests about a hold.
enum Turn<'a> {
    Mine(MutexGuard<'a, ()>),
    Taken,
    None,
}

/// Tells a waiter whose wait limit has ended whether it must send a request of its own.
enum FinalAttempt<'a> {
    Taken,
    /// Send a request, until the given time. A waiter that has waited for the reply to another waiter has used a part of its time.
    Ask(Option<OngoingAttempt<'a>>, Option<Instant>),
}

/// The result for the caller.
enum Entered {
    Ours(EngineGuard),
    Taken,
    PassedOver,
}

/// The result of an attempt.
enum Attempt {
    /// Nothing is held until it is accepted.
    Granted(Grant),
    /// Another owner holds the lock. `left` is the time left on its lease, as far as it is known.
    Busy { sent: Moment, left: Option<Duration>, place: Option<u64>, holder: Option<String> },
}

impl Engine {
    /// Acquires the lock; `None` if another owner holds it for longer than the wait limit.
    pub(crate) async fn take(self: &Arc<Self>, request: &AcquireRequest) -> Result<Option<EngineGuard>> {
        if self.is_closed() {
            return Err(self.closed(ASKING, &request.name));
        }
        TaskRuntime::around(ASKING)?;
        let taken = self.enter(request).await;
        // If the lock was granted while the client closed, dropping the guard releases it.
        if self.is_closed() { Err(self.closed(ASKING, &request.name)) } else { taken }
    }

    async fn enter(self: &Arc<Self>, request: &AcquireRequest) -> Result<Option<EngineGuard>> {
        let mut too_late = 0;
        loop {
            self.check_barred(request)?;
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
            let _turn = match self.turn(&hold, request).await? {
                Turn::Mine(turn) => turn,
                Turn::Taken => return Ok(None),
                Turn::None => continue, // the task that has the turn is not polled: start again with a new hold
            };
            if self.is_closed() {
                return Err(self.closed(ASKING, &request.name)); // closing sees this hold, or has seen it already
            }
            let claim = hold.claim();
            match claim {
                Claim::First => {}
                Claim::Again => return self.enter_again(EngineGuard::of_claim(self, &hold), request).await.map(Some),
                Claim::Lost(reason) => return Err(Error::lost(&request.name, reason)),
                Claim::Over => continue, // its last guard was dropped while this call waited for the turn
            }
            let mut entering = pin!(self.enter_first(EngineGuard::of_claim(self, &hold), request));
            match poll_fn(|cx| self.poll_unless_recalled(&hold, entering.as_mut(), cx)).await? {
                Entered::Ours(_) if self.is_stopping() => return Err(self.closed(ASKING, &request.name)),
                Entered::Ours(guard) => match guard.check_clock() {
                    // This call was not polled for a whole lease, or the lease is shorter than a round trip.
                    Err(lost) if too_late == TOO_LATE => return Err(lost),
                    Err(_) => too_late += 1,
                    Ok(()) => return Ok(Some(guard)),
                },
                Entered::Taken => return Ok(None),
                Entered::PassedOver => {}
            }
        }
    }

    /// Refuses a call that would wait for its own owner forever. Permits nested acquisitions. The engine checks this again while the call
    /// waits: its owner may acquire the other kind, or release the outer acquisition, in the meantime.
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

    /// Ends a first acquisition as soon as no caller would use it anymore. This checks at every poll, and a task that waits for a reply is
    /// polled ten times within the command timeout.
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

    /// One more acquisition of a hold that this owner has.
    async fn enter_again(self: &Arc<Self>, mut guard: EngineGuard, request: &AcquireRequest) -> Result<EngineGuard> {
        match Box::pin(self.attempt(&mut guard, request, Asked::Again, (Instant::now(), self.give_up(request)))).await?
        {
            Attempt::Granted(grant) => self.granted(&mut guard, request, grant),
            Attempt::Busy { .. } => unreachable!("`again` is granted or lost"),
        }
        guard.check_clock()?;
        self.counters.of(request.subject()).reentered();
        Ok(guard)
    }

    async fn enter_first(self: &Arc<Self>, mut guard: EngineGuard, request: &AcquireRequest) -> Result<Entered> {
        let started = Instant::now();
        let hold = Arc::clone(guard.hold());
        let has_beside =
            request.kind.beside.is_some_and(|kind| self.registry.granted(&request.hold_key_of(kind)).is_some());
        if request.kind.rules.shared {
            consume_budget().await; // a call without a request would otherwise never yield to other tasks
        }
        if !has_beside && request.may_inherit() && self.resume(&hold, request).await? {
            self.granted(&mut guard, request, Grant::without_token(Moment::now()));
            self.counters.of(request.subject()).acquired(AcquiredBy::HandedOver, started.elapsed());
            return Ok(Entered::Ours(guard));
        }
        if has_beside {
            // The other hold of this owner lets it enter before all waiters.
            let give_up = self.give_up(request);
            let entered = Box::pin(self.attempt(&mut guard, request, Asked::Once, (started, give_up))).await?;
            if let Attempt::Granted(grant) = entered {
                self.granted(&mut guard, request, grant);
                self.counters.of(request.subject()).acquired(AcquiredBy::FirstTry, started.elapsed());
                return Ok(Entered::Ours(guard));
            }
        }
        // Wait for releases of this process, so that they do not look like locks of other owners. For at most half of the time: the rest
        // is for the request. A call that can wait for the lock need not wait for long here.
        let soon = match request.wait_limit {
            WaitLimit::Once => self.give_up(request),
            WaitLimit::Until(_) | WaitLimit::Forever => started + self.an_attempt(),
        };
        let half = started + (request.wait_limit.end().map_or(soon, |end| end.min(soon)) - started) / 2;
        let cleared = tokio::select! {
            biased;
            () = self.clear(request) => true,
            () = self.stopping.cancelled() => return Err(self.closed(ASKING, &hold.name)), // closing waits for this call
            () = sleep_until(half.max(started + LAST_ATTEMPT.min(soon - started))) => false,
        };
        let outcome = match request.wait_limit {
            WaitLimit::Once => match Box::pin(self.attempt_once(&mut guard, request, (started, half, soon))).await? {
                Attempt::Granted(grant) => {
                    self.queues.named(hold.line(), hold.id(), grant.sent);
                    self.granted(&mut guard, request, grant);
                    WaitOutcome::Granted(AcquiredBy::FirstTry)
                }
                Attempt::Busy { sent, holder, .. } => {
                    holder.as_ref().inspect(|holder| self.queues.named(hold.line(), holder, sent));
                    self.check_barred(request)?;
                    WaitOutcome::TimeOver { holder: holder.map(String::into_boxed_str) }
                }
            },
            WaitLimit::Until(_) | WaitLimit::Forever => self.wait_in_queue(&mut guard, request, started).await?,
        };
        match outcome {
            WaitOutcome::Granted(way) => {
                self.counters.of(request.subject()).acquired(way, started.elapsed());
                Ok(Entered::Ours(guard))
            }
            WaitOutcome::TimeOver { holder: Some(holder) }
                if self.is_releasing(&holder, (cleared, half), request.wait_limit) =>
            {
                let cause = source("an earlier release by this client has no reply yet");
                Err(Error::silent(ASKING, &hold.name, started.elapsed(), Some(cause)))
            }
            WaitOutcome::TimeOver { .. } => Ok(Entered::Taken),
            WaitOutcome::PassedOver => {
                hold.came_again(); // if the server granted it in the meantime, dropping the guard releases it
                Ok(Entered::PassedOver)
            }
        }
    }

    /// One attempt. If a release of the holder that the server names is under way, it waits for that as for earlier ones, and tries again.
    async fn attempt_once(
        &self,
        guard: &mut EngineGuard,
        request: &AcquireRequest,
        (started, half, soon): (Instant, Instant, Instant),
    ) -> Result<Attempt> {
        let first = self.attempt(guard, request, Asked::Once, (started, soon)).await?;
        let Attempt::Busy { holder: Some(holder), .. } = &first else { return Ok(first) };
        if self.releaser.began(holder).is_none() {
            return Ok(first);
        }
        tokio::select! {
            biased;
            () = self.releaser.has_left(holder) => self.attempt(guard, request, Asked::Once, (started, soon)).await,
            () = self.stopping.cancelled() => Err(self.closed(ASKING, &request.name)),
            () = sleep_until(half) => Ok(first),
        }
    }

    /// True if this holder is of this client, and a release of it has been under way for longer than usual: whether another owner holds
    /// the lock is then unknown. A release that the call has already waited for in vain has taken longer. A single attempt waits for it
    /// until half of its time is over.
    fn is_releasing(&self, holder: &str, (cleared, half): (bool, Instant), wait_limit: WaitLimit) -> bool {
        let usual = match wait_limit {
            WaitLimit::Once if Instant::now() < half => return false,
            _ if !cleared => Duration::ZERO,
            _ => self.last_attempt(wait_limit.end().unwrap_or_else(Instant::now)),
        };
        self.releaser.began(holder).is_some_and(|began| began.elapsed() >= usual)
    }

    /// Tries to join or resume a hold of this process. False if a request to the server is needed.
    async fn resume(&self, hold: &Arc<Hold>, request: &AcquireRequest) -> Result<bool> {
        let tenure = match self.queues.resume(hold) {
            Resumed::Yes => return Ok(true),
            Resumed::No => return Ok(false),
            Resumed::OnceConfirmed(tenure) => tenure,
        };
        let now = Instant::now();
        let half = now + (self.give_up(request) - now) / 2; // the rest is for a request
        let confirmed = Box::pin(self.next_word(&tenure, &hold.name, false, half));
        tokio::select! {
            biased;
            _ = confirmed => Ok(tenure.join(hold) == Joined::Yes), // `join` checks the result
            () = self.stopping.cancelled() => Err(self.closed(ASKING, &hold.name)),
        }
    }

    /// Resolves when no release is under way for a guard that this owner may have dropped.
    async fn clear(&self, request: &AcquireRequest) {
        self.releaser.clear(|| request.leftovers()).await;
    }

    async fn wait_in_queue(
        &self,
        guard: &mut EngineGuard,
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

    /// Logs the length of the wait and the holder. A warning for the head of the queue, and for a waiter that has logged a warning before;
    /// a debug event for all others, because thousands of waiters would log the same.
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

    /// Waits in the queue. The first waiter tries at once, without a subscription or a timer.
    async fn wait(
        &self,
        entry: &QueueEntry<'_>,
        guard: &mut EngineGuard,
        request: &AcquireRequest,
        reports: &mut Reports,
    ) -> Result<WaitOutcome> {
        let (mut look_again, mut pauses, mut beaten, mut has_mark) = (None, Pauses::default(), 0, false);
        let mut woken =
            if entry.is_head() { Woken::First } else { self.sleep(entry, &mut look_again, request, reports).await? };
        loop {
            self.check_barred(request)?;
            let signal = entry.signal();
            let looks = matches!(signal, Signal::Try | Signal::Wait);
            // A waiter that has left a mark sends a request: that removes the mark, which would keep others out of the free lock.
            if looks && !has_mark && entry.may_join() && self.resume(guard.hold(), request).await? {
                let accepted = entry.accept();
                self.granted(guard, request, Grant::without_token(Moment::now()));
                return Ok(if accepted {
                    WaitOutcome::Granted(AcquiredBy::HandedOver)
                } else {
                    WaitOutcome::PassedOver
                });
            }
            match signal {
                Signal::HandedOver(grant) => {
                    if guard.hold().tenure().is_none() {
                        entry.granted(grant.sent); // else there was no request
                    }
                    self.granted(guard, request, grant);
                    return Ok(WaitOutcome::Granted(AcquiredBy::HandedOver));
                }
                Signal::PassedOver => return Ok(WaitOutcome::PassedOver),
                Signal::Wait if woken.needs_nothing(entry) => _ = entry.outage_ends(self.config.outage_timeout)?,
                Signal::Try | Signal::Wait => {
                    let asking = match woken {
                        Woken::OutOfTime => Box::pin(self.last_word(entry, request.wait_limit)).await?,
                        _ => FinalAttempt::Ask(None, None),
                    };
                    let FinalAttempt::Ask(asking, until) = asking else {
                        return Ok(WaitOutcome::TimeOver { holder: entry.holder() });
                    };
                    self.let_others_go_first(entry, request.wait_limit).await;
                    let told = entry.is_told();
                    let Some(asking) = asking.or_else(|| entry.asking()) else { continue }; // this waiter has the lock already
                    let asked = self.asked(entry, woken, beaten);
                    has_mark |= asked.claims();
                    match self.attempt_in_queue(entry, (asking, until), guard, (request, asked)).await? {
                        Attempt::Granted(grant) if entry.accept() => {
                            entry.granted(grant.sent);
                            self.granted(guard, request, grant);
                            return Ok(WaitOutcome::Granted(woken.way()));
                        }
                        Attempt::Granted(_) => return Ok(WaitOutcome::PassedOver),
                        Attempt::Busy { sent, left, place, holder } => {
                            holder.as_ref().inspect(|holder| entry.seen(holder, sent, place));
                            beaten += u32::from(woken == Woken::Called || !told);
                            let longest = match told {
                                true => request.kind.rules.longest_nap(holder.as_deref(), place, asked.claims()),
                                false => self.untold_nap(&mut pauses),
                            };
                            look_again = Some(Instant::now() + nap(left, longest));
                        }
                    }
                    self.check_barred(request)?;
                    if request.wait_limit.is_over() {
                        return Ok(WaitOutcome::TimeOver { holder: entry.holder() });
                    }
                    entry.listen(&self.redis);
                }
            }
            woken = self.sleep(entry, &mut look_again, request, reports).await?;
        }
    }

    /// The knowledge that a waiter whose wait limit has ended gets from other waiters of its queue. Waiters whose limits end together share
    /// one request: with thousands of requests, most replies would be too late. The head sends a request of its own, because the lock
    /// would be granted to it.
    async fn last_word<'a>(&self, entry: &'a QueueEntry<'_>, wait_limit: WaitLimit) -> Result<FinalAttempt<'a>> {
        let (began, due) = (Instant::now(), self.last_attempt(wait_limit.end().unwrap_or_else(Instant::now)));
        let until = began + due + LATE;
        while !entry.is_head() && !entry.is_shared() {
            match entry.shared_answer(began, due / 2) {
                SharedAnswer::Taken => return Ok(FinalAttempt::Taken),
                SharedAnswer::Pending(answered) => {
                    let why = || self.redis.trouble(entry.key(), None);
                    let answered = timeout_at(until, answered).await;
                    answered.map_err(|_| silent(ASKING, entry.name(), began.elapsed(), why()))?;
                }
                SharedAnswer::Unknown(asking) => return Ok(FinalAttempt::Ask(Some(asking), Some(until))),
            }
        }
        Ok(FinalAttempt::Ask(None, Some(until)))
    }

    /// If nothing is ever published, the pauses grow from a short one, so that a waiter notices soon that a short hold has ended.
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
        guard: &mut EngineGuard,
        (request, asked): (&AcquireRequest, Asked),
    ) -> Result<Attempt> {
        let give_up = self.give_up(request).min(entry.outage_ends(self.config.outage_timeout)?);
        let give_up = until.map_or(give_up, |until| give_up.min(until.max(Instant::now() + LAST_ATTEMPT)));
        let tried = Box::pin(self.attempt(guard, request, asked, (entry.asks_since(&asking), give_up))).await;
        asking.ended(&tried);
        tried
    }

    /// While JVMs hold the lock, a waiter leaves a mark for at most one lease, see [`Asked::ToClaimLate`].
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
        // Set once: a wake-up without a reason must not postpone it.
        let look_again =
            *look_again.get_or_insert_with(|| Instant::now() + request.kind.rules.longest_nap(None, None, false));
        loop {
            let alarm = entry.alarm(look_again, self.config.outage_timeout);
            let report_at = reports.due.filter(|_| entry.is_head());
            if self.is_stopping() {
                return Err(self.closed(ASKING, entry.name())); // stopping has woken the earlier waiters
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

    /// Waits so that other processes go first. Not beyond the wait limit: then the last attempt is due.
    async fn let_others_go_first(&self, entry: &QueueEntry<'_>, wait_limit: WaitLimit) {
        if let Some(until) = entry.yield_until()
            && until > Instant::now()
        {
            sleep_until(wait_limit.end().map_or(until, |end| until.min(end))).await;
        }
    }

    /// The time that an attempt after the deadline may take: a few recent round trips. If thousands of waiters have the same deadline, it
    /// also covers the time until all their tasks have run, and until all their requests were sent.
    fn last_attempt(&self, end: Instant) -> Duration {
        let crowd = self.crowd.at(end);
        let round_trips = self.counters.round_trip.get().saturating_mul(4 + crowd / AT_ONCE);
        let all = A_TASK.saturating_mul(crowd).min(LONGEST_LAST_ATTEMPT);
        round_trips.max(LAST_ATTEMPT).max(all).min(self.config.command_timeout)
    }

    /// The time for a last attempt at the deadline, if the earlier attempts of a request fail until then. `None` if the request has
    /// started so late that its time includes this, or if its time ends before the deadline.
    fn attempt_at_limit(&self, wait_limit: WaitLimit, give_up: Instant) -> Option<Duration> {
        wait_limit.end().filter(|end| *end == give_up).map(|end| self.last_attempt(end))
    }

    /// The lease for the request. At least `min_hold`, because the holder may die at once.
    fn lease(&self, request: &AcquireRequest) -> Lease {
        let lease = request.lease.unwrap_or(self.config.watchdog);
        request.min_hold.map_or(lease, |min| lease.max(min))
    }

    /// Counts the guard's acquisition as held since the request for it was sent. Its `min_hold` begins at the reply.
    fn granted(&self, guard: &mut EngineGuard, request: &AcquireRequest, grant: Grant) {
        let sent = grant.sent;
        let terms = LeaseTerms { renewed: request.lease.is_none(), cap: request.max_hold.map(|max| sent + max) };
        // Counted from now: the server may have granted it long after the request was sent.
        request.min_hold.inspect(|min| guard.hold().not_before(Moment::now() + **min));
        guard.granted(grant, self.lease(request), terms);
        // If the same owner waits for the other kind, it can now enter, or has nothing to wait for anymore.
        for (_, kind) in guard.hold().other_lines() {
            self.registry.asked(&request.hold_key_of(kind)).inspect(|waiting| self.queues.wake(waiting));
        }
    }

    /// The right to send requests about this hold. `Taken` if the wait limit ends first. Also for a single attempt, if the task that has
    /// the right has found that another owner holds the lock.
    async fn turn<'a>(&self, hold: &'a Hold, request: &AcquireRequest) -> Result<Turn<'a>> {
        match hold.turn.try_lock() {
            Ok(turn) => Ok(Turn::Mine(turn)),
            Err(_) => Box::pin(self.wait_for_turn(hold, request)).await,
        }
    }

    async fn wait_for_turn<'a>(&self, hold: &'a Hold, request: &AcquireRequest) -> Result<Turn<'a>> {
        let wait_limit = request.wait_limit;
        let started = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.closing.cancelled() => return Err(self.closed(ASKING, &hold.name)),
                () = self.stopping.cancelled(), if !hold.is_granted() => return Err(self.closed(ASKING, &hold.name)),
                turn = hold.turn.lock() => return Ok(Turn::Mine(turn)),
                () = hold.evicted() => return Ok(Turn::None),
                () = hold.queued(), if matches!(wait_limit, WaitLimit::Once) => return Ok(Turn::Taken),
                () = sleep_until(self.give_up(request)) => {}
            }
            // The task that has the turn also waits for the lock, or for a server that does not reply.
            match (hold.is_queued(), wait_limit.is_over()) {
                (true, false) => {}
                (true, true) => return Ok(Turn::Taken),
                (false, _) => {
                    return Err(Error::silent(
                        "waiting for an earlier request about",
                        &hold.name,
                        started.elapsed(),
                        Some(self.redis.trouble(hold.name.key(), None)),
                    ));
                }
            }
        }
    }

    /// Sends one request, and retries it during an outage. The callers box this future, so that a task that only waits needs no room for a
    /// request.
    async fn attempt(
        &self,
        guard: &mut EngineGuard,
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
        beside.as_ref().inspect(|beside| beside.keeps_below(&hold));
        let claim = if asked == Asked::Again { hold.lengthening(lease) } else { String::new() };
        let last = match &beside {
            _ if waits == Waits::InLine => self.redis.publish(),
            Some(beside) => beside.id(),
            None => &claim,
        };
        guard.asked();
        let part = hold.ask_part((lease.millis(), hold.hold_count()), asked.word(waits), last);
        let question = ScriptRequest::new(ASKING, &hold.name, (&hold.kind.acquire.script, part), (since, give_up));
        let last_attempt = self.attempt_at_limit(request.wait_limit, give_up);
        let question = ScriptRequest { hold: Some((&hold, lease)), replicas, last_attempt, ..question };
        let reply = question.ask(&self.redis).await.inspect_err(|_| hold.in_doubt())?;
        if reply.again {
            hold.in_doubt();
        }
        match reply.answer.code {
            Code::Granted if reply.replicas < replicas => {
                Err(Error::Replicas { name: hold.name.to_string(), wanted: replicas, got: reply.replicas })
            }
            Code::Granted => {
                let is_as_anybodys = beside.is_none() && asked != Asked::Again && !reply.again;
                if is_as_anybodys && request.kind.rules.shared && request.may_inherit() {
                    self.queues.open(&hold, reply.sent);
                }
                Ok(Attempt::Granted(Grant { sent: reply.sent, token: reply.answer.number() }))
            }
            Code::Out => Box::pin(self.attempt(guard, request, Asked::ToJoin, (since, give_up))).await,
            Code::Busy | Code::Queued => {
                self.counters.of(request.subject()).refused();
                let notes = waits != Waits::Here || asked.claims();
                guard.refused(notes && !matches!(request.wait_limit, WaitLimit::Once));
                Ok(busy(&reply.answer, reply.sent))
            }
            // The owner has released the other hold in the meantime.
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

    fn an_attempt(&self) -> Duration {
        self.config.command_timeout.min(self.config.outage_timeout)
    }

    /// The time limit of one request. A single attempt may take one `command_timeout`. Other calls retry during an outage, but not long
    /// beyond the wait limit of the caller.
    fn give_up(&self, request: &AcquireRequest) -> Instant {
        let now = Instant::now();
        match request.wait_limit {
            WaitLimit::Once => request.since + self.an_attempt(),
            WaitLimit::Until(end) => end.max(now + self.last_attempt(end)).min(now + self.config.outage_timeout),
            WaitLimit::Forever => now + self.config.outage_timeout,
        }
    }
}

/// The time that the attempt after the deadline gets at least.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);
/// The longest such time, however many waiters have the same deadline.
const LONGEST_LAST_ATTEMPT: Duration = Duration::from_millis(1_000);
/// The delay with which the other waiters may see a shared reply.
const LATE: Duration = Duration::from_millis(200);
/// The number of requests that are under way at once on one connection.
const AT_ONCE: u32 = 384;
/// The delay that each of thousands of tasks that wake at once adds to a reply, on a machine that is also busy with other work. With
/// 50 µs, beside twelve processes on two cores, one in twenty of a thousand tasks got an error.
const A_TASK: Duration = Duration::from_micros(200);

/// Reads the milliseconds left (if the lock expires), the place in the queue (if there is one), and the id of the holder.
fn busy(answer: &Answer, sent: Moment) -> Attempt {
    let (left, place, holder) = match answer.code {
        Code::Queued => answer.words().map(|[left, place, holder]| (left, place.parse().ok(), holder)),
        _ => answer.words().map(|[left, holder]| (left, None, holder)),
    }
    .unwrap_or_default();
    let left = left.parse().ok().map(Duration::from_millis);
    Attempt::Busy { sent, left, place, holder: Some(holder).filter(|holder| !holder.is_empty()).map(str::to_owned) }
}

/// The reason for which a waiter's sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// It never slept.
    First,
    Called,
    Alarm,
    OutOfTime,
}

impl Woken {
    /// True if the wake-up requires nothing. Without a call, only the head at its alarm and a waiter at its limit must act.
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
    // Boxed, so that the thousands of waiters without a timer need no room for one.
    match Box::pin(timeout_at(until, entry.woken())).await {
        Ok(()) => Woken::Called,
        Err(_) if end == Some(until) => Woken::OutOfTime,
        Err(_) => Woken::Alarm,
    }
}

/// The time to sleep while another owner holds the lock and its lease has `left`.
fn nap(left: Option<Duration>, longest: Duration) -> Duration {
    // One millisecond more: Redis deletes a key only after the millisecond in which it expires.
    left.map_or(longest, |left| (left + Duration::from_millis(1)).min(longest))
}
