//! The one loop that waits for a lock: try, join the line, try again when woken or when the lease of the holder ends.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::MutexGuard,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    Engine,
    ask::{Question, unexpected},
    guard::Guard,
    hold::{Hold, Phase, Terms},
    kind::Kind,
    queue::{Call, Place},
};
use crate::{
    clock::Moment,
    config::{Lease, Name},
    error::{Error, Result},
    owner::Owner,
    redis::{Code, Word},
    stats::Way,
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

/// How long he waits while somebody else has it.
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

/// What came of an attempt.
enum Attempt {
    Granted,
    /// Somebody has it, for so long as far as is known.
    Busy {
        left: Option<Duration>,
        holder: Option<String>,
    },
}

impl Engine {
    /// Takes the lock; `None` if somebody else has it for longer than the patience lasts.
    pub(crate) async fn take(self: &Arc<Self>, wish: &Wish) -> Result<Option<Guard>> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let taken = self.enter(wish).await;
        // What was granted while the client closed goes back with its guard.
        if self.is_closed() { Err(Error::Closed) } else { taken }
    }

    async fn enter(self: &Arc<Self>, wish: &Wish) -> Result<Option<Guard>> {
        loop {
            let fresh =
                || Hold::new(wish.name.clone(), wish.owner.clone(), self.new_id(), wish.kind, self.config.watchdog);
            let hold = self.registry.enter(&wish.name, &wish.owner, fresh);
            let Some(_turn) = self.turn(&hold, wish.patience).await? else { return Ok(None) };
            if self.is_closed() {
                return Err(Error::Closed); // and whoever closes sees this hold, or has seen it
            }
            match hold.phase() {
                Phase::Asked => return self.enter_first(&hold, wish).await,
                Phase::Held | Phase::Lost(_) => return self.enter_again(&hold, wish).await.map(Some),
                Phase::Over => tokio::task::yield_now().await, // about to leave the registry
            }
        }
    }

    /// One more level of a hold that we have.
    async fn enter_again(self: &Arc<Self>, hold: &Arc<Hold>, wish: &Wish) -> Result<Guard> {
        hold.check()?;
        let mut guard = Guard::claim(self, hold);
        match Box::pin(self.attempt(&mut guard, wish, "again", self.give_up(wish.patience))).await? {
            Attempt::Granted => {}
            Attempt::Busy { .. } => unreachable!("`again` is granted or lost"),
        }
        hold.check()?;
        self.counters.reentered.up();
        Ok(guard)
    }

    async fn enter_first(self: &Arc<Self>, hold: &Arc<Hold>, wish: &Wish) -> Result<Option<Guard>> {
        let started = Instant::now();
        let mut guard = Guard::claim(self, hold);
        // What this process is giving back must not look like somebody else's. Who can wait for the lock need not wait
        // for long here.
        let soon = self.give_up(Patience::Once);
        let no_longer = wish.patience.end().map_or(soon, |end| end.min(soon));
        let _ = timeout_at(no_longer, self.releaser.clear(hold.name.key())).await;
        let way = match wish.patience {
            Patience::Once => match Box::pin(self.attempt(&mut guard, wish, "first", soon)).await? {
                Attempt::Granted => Some(Way::FirstTry),
                Attempt::Busy { .. } => None,
            },
            Patience::Until(_) | Patience::Forever => {
                let place = self.queues.join(hold, self.lease(wish));
                let way = self.wait(&place, &mut guard, wish).await?;
                self.waited(&place, started.elapsed(), way);
                if way.is_some() {
                    place.leave_granted();
                }
                way
            }
        };
        let Some(way) = way else { return Ok(None) };
        self.counters.acquired(way, started.elapsed());
        Ok(Some(guard))
    }

    /// Says so if it took long, and who had the lock.
    fn waited(&self, place: &Place<'_>, waited: Duration, way: Option<Way>) {
        if waited >= self.config.slow_wait {
            let (name, holder) = (place.name(), place.holder());
            tracing::warn!(target: "leasehold::lock", name, ?waited, ?way, ?holder, "slow");
        }
    }

    /// Waits in line: how it was granted, `None` if the patience is over. Who is first in line tries at once, with no
    /// subscription and no timer.
    async fn wait(&self, place: &Place<'_>, guard: &mut Guard, wish: &Wish) -> Result<Option<Way>> {
        let mut look_again = None;
        let mut woken = if place.is_head() { Woken::First } else { self.sleep(place, look_again, wish).await? };
        loop {
            match place.call() {
                Call::Yours(sent) => {
                    self.granted(guard, wish, sent);
                    return Ok(Some(Way::HandedOver));
                }
                Call::Wait if woken == Woken::Called || woken == Woken::Alarm && !place.is_head() => {}
                Call::Try | Call::Wait => {
                    self.let_others_go_first(place, wish.patience).await;
                    let told = place.is_told();
                    match self.attempt_in_line(place, guard, wish).await? {
                        Attempt::Granted => return Ok(Some(woken.way())),
                        Attempt::Busy { left, holder } => {
                            holder.inspect(|holder| place.seen(holder));
                            look_again = Some(Instant::now() + nap(left, told));
                        }
                    }
                    if wish.patience.is_over() {
                        return Ok(None);
                    }
                    place.listen(&self.redis);
                }
            }
            woken = self.sleep(place, look_again, wish).await?;
        }
    }

    async fn attempt_in_line(&self, place: &Place<'_>, guard: &mut Guard, wish: &Wish) -> Result<Attempt> {
        let begun = Instant::now();
        let give_up = self.give_up(wish.patience).min(place.outage_ends(self.config.outage_timeout)?);
        let tried = Box::pin(self.attempt(guard, wish, "first", give_up)).await;
        place.asked(begun, tried.as_ref().err());
        tried
    }

    async fn sleep(&self, place: &Place<'_>, look_again: Option<Instant>, wish: &Wish) -> Result<Woken> {
        place.queued();
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(Error::Closed),
            woken = sleep(place, look_again, wish.patience) => Ok(woken),
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

    /// What an attempt after the deadline may take: a few of the round trips seen lately.
    fn last_attempt(&self) -> Duration {
        (self.counters.round_trip.get() * 4).max(LAST_ATTEMPT).min(self.config.command_timeout)
    }

    fn lease(&self, wish: &Wish) -> Lease {
        wish.lease.unwrap_or(self.config.watchdog)
    }

    /// Counts the guard's level as held since `sent`.
    fn granted(&self, guard: &mut Guard, wish: &Wish, sent: Moment) {
        let terms = Terms { renewed: wish.lease.is_none(), cap: wish.max_hold.map(|max| sent + max) };
        guard.granted(sent, self.lease(wish), terms);
    }

    /// The right to ask about this hold. `None` if the patience ends first, or if it is for one attempt and the
    /// hold's own asker has found it taken.
    async fn turn<'a>(&self, hold: &'a Hold, patience: Patience) -> Result<Option<MutexGuard<'a, ()>>> {
        if let Ok(turn) = hold.turn.try_lock() {
            return Ok(Some(turn));
        }
        let started = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.closing.cancelled() => return Err(Error::Closed),
                turn = hold.turn.lock() => return Ok(Some(turn)),
                () = hold.queued(), if matches!(patience, Patience::Once) => return Ok(None),
                () = sleep_until(self.give_up(patience)) => {}
            }
            // Whoever has the turn waits for the lock as we do, or for a server that does not answer.
            match (hold.is_queued(), patience) {
                (true, Patience::Forever) => {}
                (true, _) => return Ok(None),
                (false, _) => return Err(Error::silent("waiting behind a request", started.elapsed(), None)),
            }
        }
    }

    /// Asks the server once, through outages. Its callers box it, so that who only waits does not carry the room for a
    /// request with him.
    async fn attempt(&self, guard: &mut Guard, wish: &Wish, first: &'static str, give_up: Instant) -> Result<Attempt> {
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
            what: "asking for the lock",
            give_up,
        }
        .ask(&self.redis)
        .await?;
        match heard.answer.code {
            Code::Granted if heard.replicas < replicas => {
                Err(Error::Replicas { wanted: replicas, got: heard.replicas })
            }
            Code::Granted => {
                self.granted(guard, wish, heard.sent);
                Ok(Attempt::Granted)
            }
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

/// What the attempt after the deadline may take at least.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);

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
    fn way(self) -> Way {
        match self {
            Woken::First => Way::FirstTry,
            Woken::Called => Way::Woken,
            Woken::Alarm | Woken::OutOfTime => Way::Timer,
        }
    }
}

async fn sleep(place: &Place<'_>, look_again: Option<Instant>, patience: Patience) -> Woken {
    // Who is not the head is woken when he has something to do, and needs no timer.
    let alarm = place.is_head().then(|| look_again.unwrap_or_else(|| Instant::now() + LONGEST_NAP));
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
