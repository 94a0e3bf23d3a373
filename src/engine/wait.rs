//! The one loop that waits for a lock: try, join the line, try again when woken or when the lease of the holder ends.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::MutexGuard,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    Engine,
    ask::{Pauses, Question, unexpected},
    guard::Guard,
    hold::{Claim, Hold, Terms},
    kind::Kind,
    queue::{Asking, Call, News, Place},
};
use crate::{
    clock::Moment,
    config::{Lease, Name},
    error::{Error, Result},
    owner::Owner,
    redis::{Code, Word},
    stats::{Counters, Way},
    sync::{std, tokio},
};

/// The longest sleep between two attempts: what a message lost on the way can cost, if the lease does not end sooner.
pub(crate) const LONGEST_NAP: Duration = Duration::from_secs(5);
/// The same while the server would not tell us of a release.
const UNTOLD_NAP: Duration = Duration::from_millis(200);

/// What a caller wants.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) kind: &'static Kind,
    /// A fixed lease instead of the watchdog's.
    pub(crate) lease: Option<Lease>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) patience: Patience,
}

/// How long to wait while somebody else has it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    Once,
    Until(Instant),
    Forever,
}

impl Patience {
    /// A wait too long for the clock is one without end.
    pub(crate) fn of(time: Duration) -> Patience {
        Instant::now().checked_add(time).map_or(Patience::Forever, Patience::Until)
    }

    fn end(self) -> Option<Instant> {
        match self {
            Patience::Until(end) => Some(end),
            Patience::Once | Patience::Forever => None,
        }
    }

    fn is_over(self) -> bool {
        match self {
            Patience::Once => true,
            Patience::Until(end) => Instant::now() >= end,
            Patience::Forever => false,
        }
    }
}

/// How often in a row the lock may be granted too late to be of use, before the caller is told so.
const TOO_LATE: u32 = 3;

/// What came of waiting.
enum Outcome {
    Granted(Way),
    TimeOver,
    /// The waiter did not look for so long that the others went on without it.
    PassedOver,
}

/// A waiter with a time limit: many of these may run out of it at once.
struct Limited<'a>(&'a Counters);

impl Limited<'_> {
    fn new(counters: &Counters) -> Limited<'_> {
        counters.limited.up();
        Limited(counters)
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        self.0.limited.down();
    }
}

/// What came of waiting for the right to ask about a hold.
enum Turn<'a> {
    Mine(MutexGuard<'a, ()>),
    Taken,
    None,
}

/// Whether a waiter whose time is over must ask.
enum Last<'a> {
    Taken,
    Ask(Option<Asking<'a>>),
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
    Busy { left: Option<Duration>, holder: Option<String> },
}

impl Engine {
    /// Takes the lock; `None` if somebody else has it for longer than the patience lasts.
    pub(crate) async fn take(self: &Arc<Self>, wish: &Wish) -> Result<Option<Guard>> {
        if self.is_closed() {
            return Err(self.closed(ASKING));
        }
        let taken = self.enter(wish).await;
        // What was granted while the client closed goes back with its guard.
        if self.is_closed() { Err(self.closed(ASKING)) } else { taken }
    }

    async fn enter(self: &Arc<Self>, wish: &Wish) -> Result<Option<Guard>> {
        let mut too_late = 0;
        loop {
            let fresh =
                || Hold::new(wish.name.clone(), wish.owner.clone(), self.new_id(), wish.kind, self.config.watchdog);
            let hold = self.registry.enter(&wish.name, &wish.owner, fresh);
            let _turn = match self.turn(&hold, wish.patience).await? {
                Turn::Mine(turn) => turn,
                Turn::Taken => return Ok(None),
                Turn::None => continue, // whoever has it does not look: afresh
            };
            if self.is_closed() {
                return Err(self.closed(ASKING)); // and whoever closes sees this hold, or has seen it
            }
            let claim = hold.claim();
            match claim {
                Claim::First => {}
                Claim::Again => return self.enter_again(Guard::of_claim(self, &hold), wish).await.map(Some),
                Claim::Lost(reason) => return Err(Error::lost(&wish.name, reason)),
                Claim::Over => continue, // its last guard went while we waited for the turn
            }
            match self.enter_first(Guard::of_claim(self, &hold), wish).await? {
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

    /// One more level of a hold that we have.
    async fn enter_again(self: &Arc<Self>, mut guard: Guard, wish: &Wish) -> Result<Guard> {
        match Box::pin(self.attempt(&mut guard, wish, "again", (Instant::now(), self.give_up(wish.patience)))).await? {
            Attempt::Granted(sent) => self.granted(&mut guard, wish, sent),
            Attempt::Busy { .. } => unreachable!("`again` is granted or lost"),
        }
        guard.check_clock()?;
        self.counters.reentered.up();
        Ok(guard)
    }

    async fn enter_first(self: &Arc<Self>, mut guard: Guard, wish: &Wish) -> Result<Entered> {
        let started = Instant::now();
        let hold = Arc::clone(guard.hold());
        // What this process is giving back must not look like somebody else's. Half of the time at most: the rest is for
        // asking. Who can wait for the lock need not wait for long here.
        let soon = self.give_up(Patience::Once);
        let half = started + (wish.patience.end().map_or(soon, |end| end.min(soon)) - started) / 2;
        let _ = timeout_at(half, self.releaser.clear(hold.name.key())).await;
        let outcome = match wish.patience {
            Patience::Once => match Box::pin(self.attempt(&mut guard, wish, "first", (started, soon))).await? {
                Attempt::Granted(sent) => {
                    self.granted(&mut guard, wish, sent);
                    Outcome::Granted(Way::FirstTry)
                }
                Attempt::Busy { .. } => Outcome::TimeOver,
            },
            Patience::Until(_) | Patience::Forever => self.wait_in_line(&mut guard, wish, started).await?,
        };
        match outcome {
            Outcome::Granted(way) => {
                self.counters.acquired(way, started.elapsed());
                Ok(Entered::Ours(guard))
            }
            Outcome::TimeOver => Ok(Entered::Taken),
            Outcome::PassedOver => {
                hold.came_again(); // whatever it got meanwhile goes back with its guard
                Ok(Entered::PassedOver)
            }
        }
    }

    async fn wait_in_line(&self, guard: &mut Guard, wish: &Wish, started: Instant) -> Result<Outcome> {
        let hold = Arc::clone(guard.hold());
        let _limited = wish.patience.end().map(|_| Limited::new(&self.counters));
        let place = self.queues.join(&hold, self.lease(wish));
        let outcome = {
            let mut wait = pin!(self.wait(&place, guard, wish));
            poll_fn(|cx| {
                place.attend(cx.waker());
                wait.as_mut().poll(cx)
            })
            .await?
        };
        let way = if let Outcome::Granted(way) = outcome { Some(way) } else { None };
        self.waited(&place, started.elapsed(), way);
        if way.is_some() {
            place.leave_granted();
        }
        Ok(outcome)
    }

    /// Says so if it took long, and who had the lock.
    fn waited(&self, place: &Place<'_>, waited: Duration, way: Option<Way>) {
        if waited >= self.config.slow_wait {
            let (name, holder) = (place.name(), place.holder());
            tracing::warn!(target: "leasehold::lock", name, ?waited, ?way, ?holder, "slow");
        }
    }

    /// Waits in line. Who is first in line tries at once, with no subscription and no timer.
    async fn wait(&self, place: &Place<'_>, guard: &mut Guard, wish: &Wish) -> Result<Outcome> {
        let mut look_again = None;
        let mut woken = if place.is_head() { Woken::First } else { self.sleep(place, &mut look_again, wish).await? };
        loop {
            match place.call() {
                Call::Yours(sent) => {
                    self.granted(guard, wish, sent);
                    return Ok(Outcome::Granted(Way::HandedOver));
                }
                Call::TooLate => return Ok(Outcome::PassedOver),
                Call::Wait if woken.needs_nothing(place) => _ = place.outage_ends(self.config.outage_timeout)?,
                Call::Try | Call::Wait => {
                    let asking = match woken {
                        Woken::OutOfTime => Box::pin(self.last_word(place)).await,
                        _ => Last::Ask(None),
                    };
                    let Last::Ask(asking) = asking else { return Ok(Outcome::TimeOver) };
                    self.let_others_go_first(place, wish.patience).await;
                    let told = place.is_told();
                    match self.attempt_in_line(place, asking, guard, wish).await? {
                        Attempt::Granted(sent) if place.accept() => {
                            self.granted(guard, wish, sent);
                            return Ok(Outcome::Granted(woken.way()));
                        }
                        Attempt::Granted(_) => return Ok(Outcome::PassedOver),
                        Attempt::Busy { left, holder } => {
                            holder.inspect(|holder| place.seen(holder));
                            look_again = Some(Instant::now() + nap(left, told));
                        }
                    }
                    if wish.patience.is_over() {
                        return Ok(Outcome::TimeOver);
                    }
                    place.listen(&self.redis);
                }
            }
            woken = self.sleep(place, &mut look_again, wish).await?;
        }
    }

    /// What a waiter whose time is over knows from others of its line. All whose time ends together share one question:
    /// thousands of them would have thousands answered too late. The head has its own, for the lock would be its.
    async fn last_word<'a>(&self, place: &'a Place<'_>) -> Last<'a> {
        let due = self.last_attempt();
        let ends = Instant::now() + due;
        while !place.is_head() {
            match place.news(due / 2) {
                News::Taken => return Last::Taken,
                News::Asking(answered) => {
                    if timeout_at(ends, answered).await.is_err() {
                        break;
                    }
                }
                News::Yours(asking) => return Last::Ask(Some(asking)),
            }
        }
        Last::Ask(None)
    }

    async fn attempt_in_line(
        &self,
        place: &Place<'_>,
        asking: Option<Asking<'_>>,
        guard: &mut Guard,
        wish: &Wish,
    ) -> Result<Attempt> {
        let asking = asking.unwrap_or_else(|| place.asking());
        let give_up = self.give_up(wish.patience).min(place.outage_ends(self.config.outage_timeout)?);
        let tried = Box::pin(self.attempt(guard, wish, "first", (place.asks_since(&asking), give_up))).await;
        asking.ended(&tried);
        tried
    }

    async fn sleep(&self, place: &Place<'_>, look_again: &mut Option<Instant>, wish: &Wish) -> Result<Woken> {
        place.queued();
        // Set once: whoever is woken for nothing must not put it off.
        let look_again = *look_again.get_or_insert_with(|| Instant::now() + LONGEST_NAP);
        let alarm = place.alarm(look_again, self.config.outage_timeout);
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(self.closed(ASKING)),
            woken = sleep(place, alarm, wish.patience) => Ok(woken),
        }
    }

    /// Unless the time is over: then the last attempt is due.
    async fn let_others_go_first(&self, place: &Place<'_>, patience: Patience) {
        if let Some(until) = place.after_you()
            && until > Instant::now()
        {
            sleep_until(patience.end().map_or(until, |end| until.min(end))).await;
        }
    }

    /// What an attempt after the deadline may take: a few of the round trips seen lately. Where thousands wait, what it
    /// takes until their tasks have run, for the answer comes to one of these, and until all their requests have gone out.
    fn last_attempt(&self) -> Duration {
        let crowd = u32::try_from(self.counters.limited.get()).unwrap_or(u32::MAX);
        let round_trips = self.counters.round_trip.get().saturating_mul(4 + crowd / AT_ONCE);
        round_trips.max(LAST_ATTEMPT).max(A_TASK.saturating_mul(crowd)).min(self.config.command_timeout)
    }

    fn lease(&self, wish: &Wish) -> Lease {
        wish.lease.unwrap_or(self.config.watchdog)
    }

    /// Counts the guard's level as held since `sent`.
    fn granted(&self, guard: &mut Guard, wish: &Wish, sent: Moment) {
        let terms = Terms { renewed: wish.lease.is_none(), cap: wish.max_hold.map(|max| sent + max) };
        guard.granted(sent, self.lease(wish), terms);
    }

    /// The right to ask about this hold. The lock is taken if the patience ends first, or if it is for one attempt and the
    /// hold's own asker has found it taken.
    async fn turn<'a>(&self, hold: &'a Hold, patience: Patience) -> Result<Turn<'a>> {
        if let Ok(turn) = hold.turn.try_lock() {
            return Ok(Turn::Mine(turn));
        }
        let started = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.closing.cancelled() => return Err(self.closed(ASKING)),
                turn = hold.turn.lock() => return Ok(Turn::Mine(turn)),
                () = hold.evicted() => return Ok(Turn::None),
                () = hold.queued(), if matches!(patience, Patience::Once) => return Ok(Turn::Taken),
                () = sleep_until(self.give_up(patience)) => {}
            }
            // Whoever has the turn waits for the lock as we do, or for a server that does not answer.
            match (hold.is_queued(), patience.is_over()) {
                (true, false) => {}
                (true, true) => return Ok(Turn::Taken),
                (false, _) => return Err(Error::silent("waiting behind a request", started.elapsed(), None)),
            }
        }
    }

    /// Asks the server once, through outages. Its callers box it, so that who only waits does not carry the room for a
    /// request along.
    async fn attempt(
        &self,
        guard: &mut Guard,
        wish: &Wish,
        first: &'static str,
        (since, give_up): (Instant, Instant),
    ) -> Result<Attempt> {
        let hold = Arc::clone(guard.hold());
        let lease = self.lease(wish);
        let replicas = if first == "first" { self.config.replicas } else { 0 };
        guard.asked();
        let heard = Question {
            name: &hold.name,
            hold: Some((&hold, lease)),
            script: &hold.kind.acquire,
            part: hold.part(lease.millis(), hold.levels(), first),
            replicas,
            what: ASKING,
            pauses: Pauses::default(),
            insists: false,
            since,
            give_up,
        }
        .ask(&self.redis)
        .await?;
        match heard.answer.code {
            Code::Granted if heard.replicas < replicas => {
                Err(Error::Replicas { wanted: replicas, got: heard.replicas })
            }
            Code::Granted => Ok(Attempt::Granted(heard.sent)),
            Code::Busy => {
                self.counters.refused.up();
                guard.refused();
                Ok(busy(heard.answer.value.list()))
            }
            Code::Lost => {
                let removed = self.found_lost(&hold);
                Err(hold.check().err().unwrap_or(removed))
            }
            Code::Conflict => {
                guard.refused();
                Err(Error::Conflict { name: hold.name.to_string() })
            }
            _ => Err(unexpected(&heard.answer)),
        }
    }

    /// How long one question is asked: a single attempt for as long as a command may take, else through an outage,
    /// but never long beyond the caller's patience.
    fn give_up(&self, patience: Patience) -> Instant {
        let now = Instant::now();
        match patience {
            Patience::Once => now + self.config.command_timeout.min(self.config.outage_timeout),
            Patience::Until(end) => end.max(now + self.last_attempt()).min(now + self.config.outage_timeout),
            Patience::Forever => now + self.config.outage_timeout,
        }
    }
}

const ASKING: &str = "asking for the lock";
/// What the attempt after the deadline may take at least.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);
/// How many requests are under way at once on one connection.
const AT_ONCE: u32 = 384;
/// What each of thousands of tasks that wake at once adds to the way of an answer, on a machine that is busy with others
/// too: 50 µs were too few for a thousand (one in twenty was told so) beside twelve processes on two cores.
const A_TASK: Duration = Duration::from_micros(200);

/// From milliseconds left, where there is an end, and the holder's id.
fn busy(words: &[Word]) -> Attempt {
    let left = words.first().and_then(Word::int).and_then(|left| u64::try_from(left).ok());
    let holder = words.get(1).and_then(Word::text).map(str::to_owned);
    Attempt::Busy { left: left.map(Duration::from_millis), holder }
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
    fn needs_nothing(self, place: &Place<'_>) -> bool {
        match self {
            Woken::Called => true,
            Woken::Alarm => !place.is_head(),
            Woken::First | Woken::OutOfTime => false,
        }
    }

    fn way(self) -> Way {
        match self {
            Woken::First => Way::FirstTry,
            Woken::Called => Way::Woken,
            Woken::Alarm | Woken::OutOfTime => Way::Timer,
        }
    }
}

async fn sleep(place: &Place<'_>, alarm: Option<Instant>, patience: Patience) -> Woken {
    let end = patience.end();
    let Some(until) = [alarm, end].into_iter().flatten().min() else {
        place.woken().await;
        return Woken::Called;
    };
    tokio::select! {
        biased;
        () = place.woken() => Woken::Called,
        () = sleep_until(until) => if end == Some(until) { Woken::OutOfTime } else { Woken::Alarm },
    }
}

/// How long to sleep beside a holder whose lease has `left` to go.
fn nap(left: Option<Duration>, told: bool) -> Duration {
    let longest = if told { LONGEST_NAP } else { UNTOLD_NAP };
    // A millisecond more: Redis deletes a key only after the millisecond in which it ends.
    left.map_or(longest, |left| (left + Duration::from_millis(1)).min(longest))
}
