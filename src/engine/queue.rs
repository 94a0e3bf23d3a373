//! Who waits for a name in this process: first in, first out. Only the head talks to the server, and a lock that is
//! given back here can go straight to it.
//!
//! A head that got there because the one before it was granted the lock is not woken for that: the holder is in this
//! process, and whatever ends its hold (release, hand-over, loss) wakes the head here.
//!
//! A waiter is a future that somebody must poll. One that is not polled for long loses what it blocks, see
//! [`Queues::inspect`].

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use dashmap::DashMap;
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

use super::{
    hold::{Grant, Hold},
    queue_state::{Others, QueueState},
    releaser::ReleaseJob,
    sharing::{Resumed, Sharing},
    tenure::Tenure,
    waiter::{Offer, Waiter},
    yielding::Yielding,
};
use crate::{
    clock::Moment,
    config::Lease,
    error::{Error, Result},
    kind::{Kind, Rules},
    redis::{Listener, Redis, Subscription},
    stats::Counters,
    sync::{dashmap, std, tokio},
};

/// Each kind of lock has queues of its own: nothing goes from one to another.
pub(super) type LineKey = (Arc<str>, &'static Kind);

/// All queues of a client; a queue without waiters is soon gone.
#[derive(Debug)]
pub(crate) struct Queues {
    by_key: DashMap<(LineKey, u64), Arc<Queue>>,
    /// How many times in a row a lock may be handed over.
    handovers: u32,
    sharing: Sharing,
    yielding: Arc<Yielding>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Queue {
    key: Arc<str>,
    yielding: Arc<Yielding>,
    state: Mutex<QueueState>,
    /// One subscription for all who ever wait here.
    subscription: Mutex<Option<Subscription>>,
    /// Told when an attempt has ended.
    answered: Notify,
}

/// Why a waiter tries now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// There may be something to get.
    Try,
    /// It was handed over.
    HandedOver(Grant),
    /// It was passed over, for it did not look.
    PassedOver,
    /// Nothing yet.
    Wait,
}

/// What a waiter whose time is over can know of the lock without asking.
pub(crate) enum SharedAnswer<'a> {
    /// Somebody was answered a moment ago, and the lock was not to be had for those behind.
    Taken,
    /// Somebody asks: the answer tells all.
    Pending(Notified<'a>),
    /// Nobody has asked: it must itself, for all.
    Unknown(OngoingAttempt<'a>),
}

/// A waiter's place in the queue; left when dropped.
#[derive(Debug)]
pub(crate) struct QueueEntry<'a> {
    queues: &'a Queues,
    queue: Arc<Queue>,
    waiter: Arc<Waiter>,
    joined: Instant,
    granted: bool,
}

/// An attempt under way; over when dropped.
#[derive(Debug)]
pub(crate) struct OngoingAttempt<'a> {
    queue: &'a Queue,
    waiter: &'a Waiter,
    begun: Instant,
}

/// How old an answer may be to tell a waiter whose time is over that the lock is taken, beside the time it takes to come.
const FRESH: Duration = Duration::from_millis(100);
/// How often queues are inspected.
pub(crate) const INSPECTION: Duration = Duration::from_secs(1);

impl Queues {
    pub(crate) fn new(handovers: u32, counters: Arc<Counters>) -> Queues {
        let yielding = Arc::new(Yielding::new(Arc::clone(&counters)));
        let sharing = Sharing::new(Arc::clone(&counters));
        Queues { by_key: DashMap::new(), handovers, sharing, yielding, counters }
    }

    /// Goes to the end of the queue for what `hold` asks for.
    pub(crate) fn join(&self, hold: &Arc<Hold>, lease: Lease, inherits: bool) -> QueueEntry<'_> {
        let (waiter, joined) = (Arc::new(Waiter::new(Arc::clone(hold), (lease, inherits))), Instant::now());
        let fresh = || Arc::new(Queue::new(hold.name.key(), &self.yielding, joined));
        let queue = self.by_key.entry(hold.queue()).or_insert_with(fresh).join(&waiter);
        self.counters.of(hold.subject()).waiting(0, 1);
        QueueEntry { queues: self, queue, waiter, joined, granted: false }
    }

    /// Offers the lock that `hold` gives back to the head of the queue, unless it is time for other processes.
    pub(crate) fn heir(&self, hold: &Hold) -> Option<Arc<Waiter>> {
        let queue = self.get(&hold.queue())?;
        let mut state = queue.state();
        if !state.goes_on(self.handovers) {
            return None; // the row ends when it is released
        }
        let head = Arc::clone(state.head()?);
        let offered = head.offer().change(Offer::None, Offer::Made);
        state.count_handover(offered);
        offered.then_some(head)
    }

    /// The server granted it, by a request sent then, as it would have granted it to anybody who can hold it as well.
    pub(super) fn open(&self, hold: &Arc<Hold>, sent: Moment) {
        if self.handovers > 0 {
            self.sharing.open(hold, sent);
        }
    }

    /// Somebody here has forced all locks of this name open, or has tried to: what is held here is not passed on, and nobody joins it.
    pub(super) fn forced(&self, name: &Arc<str>) {
        self.sharing.close(name);
        let queues = self.by_key.iter().filter(|queue| queue.key().0.0 == *name);
        queues.for_each(|queue| queue.state().named.forget());
    }

    /// The reply to a request sent then names a holder.
    pub(super) fn named(&self, line: LineKey, holder: &str, sent: Moment) {
        self.get(&(line, 0)).inspect(|queue| queue.state().named.name(holder, sent));
    }

    /// Gives it back in memory: leaves it to those who have it as well, or passes it on to the head of the queue, unless it is time
    /// for other processes or the server must be asked. Where nobody waits it rests for a moment if others are about to come; else
    /// `release` is what is to be done in the end.
    pub(super) fn pass_on(&self, hold: &Arc<Hold>, release: impl FnOnce() -> ReleaseJob) -> Option<Arc<Tenure>> {
        if hold.kind.rules.shared {
            let called = self.get(&hold.queue()).is_some_and(|queue| queue.is_waited_in());
            return hold.tenure().filter(|tenure| tenure.leave(hold, called, release)).map(Arc::clone);
        }
        if !hold.may_pass_on() {
            return None;
        }
        let queue = self.get(&hold.queue())?;
        let mut state = queue.state();
        if !state.goes_on(self.handovers) || !state.named.is(hold.id()) {
            return None;
        }
        let tenure = hold.begin_tenure(&self.counters);
        let passed = match state.head().map(Arc::clone) {
            Some(head) => head.pass(tenure, hold),
            None if state.others == Others::Wait || !tenure.rest(hold, release) => false,
            None => {
                state.resting = Some(Arc::clone(tenure));
                true
            }
        };
        state.count_handover(passed);
        passed.then(|| Arc::clone(tenure))
    }

    /// Takes what is in this process already: what others have that may have it as well, or a lock that rests. Who waits has come
    /// too late for that, and hears of it when it is given back.
    pub(super) fn resume(&self, hold: &Arc<Hold>) -> Resumed {
        if hold.kind.rules.shared {
            return self.sharing.join(hold);
        }
        let Some(queue) = self.get(&hold.queue()) else { return Resumed::No };
        let mut state = queue.state();
        let resting = state.resting.take().filter(|tenure| state.named.is(tenure.id()));
        drop(state);
        if resting.is_some_and(|tenure| tenure.resume(hold)) { Resumed::Yes } else { Resumed::No }
    }

    /// The lock was released for all, and so many `others` heard of it; `None` where nobody can be told. Where we hear of it too there
    /// is no need to wake the head.
    pub(crate) fn released(&self, hold: &Hold, others: Option<u64>) {
        let (queue, mut beside) = (self.get(&hold.queue()), self.beside(hold));
        let hears = queue.as_ref().is_some_and(|queue| queue.is_told());
        let beside = u64::from(beside.any(|queue| queue.is_waited_in()));
        let row =
            queue.as_ref().map_or(Duration::ZERO, |queue| queue.state().released(others.map(|told| told + beside)));
        match others {
            _ if !hold.kind.rules.yields() => {}
            Some(told) => self.yielding.owe(hold.name.key(), told + beside, hears),
            None => self.yielding.pause_after(hold.name.key(), row),
        }
        queue.into_iter().chain(self.beside(hold)).filter(|queue| !queue.is_told()).for_each(|queue| queue.wake_head());
    }

    /// A hold of this process ended other than by a release: the head looks.
    pub(crate) fn wake_head(&self, hold: &Hold) {
        self.get(&hold.queue()).into_iter().chain(self.beside(hold)).for_each(|queue| queue.wake_head());
    }

    /// Something has changed for the one who waits for this hold.
    pub(super) fn wake(&self, hold: &Arc<Hold>) {
        if let Some(queue) = self.get(&hold.queue()) {
            queue
                .state()
                .waiters
                .values()
                .filter(|waiter| Arc::ptr_eq(&waiter.hold, hold))
                .for_each(|waiter| waiter.wake());
        }
    }

    fn beside(&self, hold: &Hold) -> impl Iterator<Item = Arc<Queue>> {
        hold.other_lines().filter_map(|line| self.get(&(line, 0)))
    }

    /// Looks after every queue, every [`INSPECTION`]: for the cases that nobody thought of, and for waiters that are not
    /// polled. Returns the holds of those passed over: the server may have them, so they must be given back.
    pub(crate) fn inspect(&self) -> Vec<Arc<Hold>> {
        let now = Instant::now();
        let passed_over = self.by_key.iter().flat_map(|queue| queue.inspect(now)).collect();
        self.by_key.retain(|_, queue| !queue.state().is_done());
        self.yielding.sweep();
        self.sharing.sweep();
        passed_over
    }

    /// All who wait look at what is new: the client stops.
    pub(super) fn wake_all(&self) {
        self.by_key
            .iter()
            .for_each(|queue| queue.state().waiters.values().for_each(|waiter| waiter.woken.notify_one()));
    }

    fn get(&self, queue: &(LineKey, u64)) -> Option<Arc<Queue>> {
        self.by_key.get(queue).map(|queue| Arc::clone(&queue))
    }
}

impl Queue {
    fn new(key: &Arc<str>, yielding: &Arc<Yielding>, now: Instant) -> Queue {
        let (state, subscription, answered) = (Mutex::new(QueueState::new(now)), Mutex::default(), Notify::new());
        Queue { key: Arc::clone(key), yielding: Arc::clone(yielding), state, subscription, answered }
    }

    fn join(self: &Arc<Queue>, waiter: &Arc<Waiter>) -> Arc<Queue> {
        self.state().join(waiter);
        Arc::clone(self)
    }

    fn wake_head(&self) {
        let head = self.state().head().map(Arc::clone);
        head.inspect(|head| head.wake());
    }

    /// A head that took over from one that was granted at once has never asked, and nobody listens for it.
    fn inspect(&self, now: Instant) -> Vec<Arc<Hold>> {
        let listens = self.subscription().is_some();
        self.state().inspect(now, listens)
    }

    fn is_waited_in(&self) -> bool {
        !self.state().waiters.is_empty()
    }

    fn is_told(&self) -> bool {
        self.subscription().as_ref().is_some_and(Subscription::is_live)
    }

    fn subscription(&self) -> MutexGuard<'_, Option<Subscription>> {
        self.subscription.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock was released, or may have been: the head looks.
impl Listener for Queue {
    fn message(&self) {
        self.yielding.heard(&self.key);
        self.wake_head();
    }

    fn subscribed(&self) {
        self.wake_head();
    }
}

impl QueueEntry<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.waiter.hold.name
    }

    pub(crate) fn key(&self) -> &str {
        &self.queue.key
    }

    pub(crate) fn is_head(&self) -> bool {
        self.queue.state().is_head(&self.waiter)
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.waiter.hold.kind.rules
    }

    /// Another's answer does not say that there is nothing for this one.
    pub(crate) fn is_shared(&self) -> bool {
        self.waiter.hold.kind.rules.shared
    }

    /// Has the server tell us of releases. Wakes the head once it does.
    pub(crate) fn listen(&self, redis: &Redis) {
        if self.queue.subscription().is_some() {
            return;
        }
        let hold = &self.waiter.hold;
        let listener = Arc::clone(&self.queue) as Arc<dyn Listener>;
        let subscription = redis.listen(&hold.channel(), listener);
        *self.queue.subscription() = Some(subscription);
    }

    /// Before this moment others should go first.
    pub(crate) fn yield_until(&self) -> Option<Instant> {
        self.yields().and_then(|yielding| yielding.yield_until(&self.queue.key))
    }

    fn yields(&self) -> Option<&Yielding> {
        self.waiter.hold.kind.rules.yields().then_some(&self.queue.yielding)
    }

    /// Since when it waits.
    pub(crate) fn joined(&self) -> Instant {
        self.joined
    }

    /// Whether the server tells us of releases now.
    pub(crate) fn is_told(&self) -> bool {
        self.queue.is_told()
    }

    /// It goes to sleep: to another branch of its task the lock is taken.
    pub(crate) fn queued(&self) {
        self.waiter.hold.set_queued();
    }

    /// Shows that the waiter's future is polled.
    pub(crate) fn attend(&self, waker: &Waker) {
        self.waiter.unseen.store(0, Ordering::Relaxed);
        self.waiter.waker.register(waker);
    }

    /// Sleeps until somebody calls this waiter.
    pub(crate) async fn woken(&self) {
        self.waiter.woken.notified().await;
    }

    /// What there is to do. A wake-up is used up by looking, and what was handed over is had from then on.
    pub(crate) fn signal(&self) -> Signal {
        let mut offer = self.waiter.offer();
        match *offer {
            Offer::Given(grant) => {
                *offer = Offer::Had;
                Signal::HandedOver(grant)
            }
            Offer::Revoked => Signal::PassedOver,
            _ if self.waiter.wake_pending.swap(false, Ordering::AcqRel) => Signal::Try,
            _ => Signal::Wait,
        }
    }

    /// The reply to a request sent then says who has it, and which place this waiter has in the server's queue.
    pub(crate) fn seen(&self, holder: &str, sent: Moment, place: Option<u64>) {
        let mut state = self.queue.state();
        state.named.name(holder, sent);
        state.place = place;
        drop(state);
        self.yields().inspect(|yielding| yielding.refused(&self.queue.key));
    }

    /// Whether it may join others of this process that have it, where several may, instead of asking. Not if something of it is in doubt.
    pub(crate) fn may_join(&self) -> bool {
        let Waiter { hold, inherits, .. } = &*self.waiter;
        self.is_shared() && *inherits && hold.is_clean()
    }

    /// An attempt begins, unless the waiter has been given the lock.
    pub(crate) fn asking(&self) -> Option<OngoingAttempt<'_>> {
        let mut state = self.queue.state();
        let is_given = matches!(*self.waiter.offer(), Offer::Given(_));
        (!is_given).then(|| self.begin(&mut state))
    }

    fn begin(&self, state: &mut QueueState) -> OngoingAttempt<'_> {
        let begun = Instant::now();
        (state.asking, state.asked) = (Some(begun), begun);
        self.waiter.asks.store(true, Ordering::Relaxed);
        OngoingAttempt { queue: &self.queue, waiter: &self.waiter, begun }
    }

    /// What can be known without asking, by a waiter whose time was over at that moment; `due` is how soon an answer should be there. An
    /// answer that has come since then counts, however late this waiter runs.
    pub(crate) fn shared_answer(&self, over: Instant, due: Duration) -> SharedAnswer<'_> {
        let answered = self.queue.answered.notified();
        let mut state = self.queue.state();
        let fresh =
            |answered: Instant| answered >= self.joined && over.saturating_duration_since(answered) <= FRESH + due;
        match state.asking {
            _ if state.answered.is_some_and(fresh) => SharedAnswer::Taken,
            Some(begun) if begun.elapsed() < due => SharedAnswer::Pending(answered),
            _ => SharedAnswer::Unknown(self.begin(&mut state)),
        }
    }

    /// Since when this waiter asks: with others that were not answered, or for itself.
    pub(crate) fn asks_since(&self, asking: &OngoingAttempt<'_>) -> Instant {
        let state = self.queue.state();
        state.silence.as_ref().map_or(asking.begun, |silence| self.joined.max(silence.since))
    }

    /// When an outage has lasted long enough for this waiter, which has been in it since it joined or the outage began,
    /// although others asked; their error if that is past. Else each in the queue would begin to wait for the server in turn.
    pub(crate) fn outage_ends(&self, timeout: Duration) -> Result<Instant> {
        let mut state = self.queue.state();
        match (state.outage_ends(self.joined, timeout), &state.silence) {
            (Some(end), Some(silence)) if end <= Instant::now() => Err(silence.error.clone()),
            (Some(end), _) => Ok(end),
            (None, _) => Ok(Instant::now() + timeout),
        }
    }

    /// When this waiter, asleep, must look even if nobody calls it: the head of the queue at `look_again`, the others at the
    /// end of an outage.
    pub(crate) fn alarm(&self, look_again: Instant, timeout: Duration) -> Option<Instant> {
        let mut state = self.queue.state();
        let end = state.outage_ends(self.joined, timeout);
        if state.is_head(&self.waiter) { Some(end.map_or(look_again, |end| end.min(look_again))) } else { end }
    }

    /// Who was last seen to have it, here or elsewhere.
    pub(crate) fn holder(&self) -> Option<Box<str>> {
        self.queue.state().named.holder().map(Box::from)
    }

    /// Which place it had when it last asked, in a line of the server's.
    pub(crate) fn place(&self) -> Option<u64> {
        self.queue.state().place
    }

    /// The server has granted it to this waiter, by a request sent then.
    pub(crate) fn granted(&self, sent: Moment) {
        self.queue.state().named.name(self.waiter.hold.id(), sent);
    }

    /// An attempt of this waiter was granted. False if it was passed over meanwhile: the lock is not to be used then.
    pub(crate) fn accept(&self) -> bool {
        let mut offer = self.waiter.offer();
        let accepted = *offer != Offer::Revoked;
        if accepted {
            *offer = Offer::Had;
        }
        accepted
    }

    /// The lock is ours: the next in the queue is called when it is given back, not now; but all of them where they can have it
    /// beside us.
    pub(crate) fn leave_granted(mut self) {
        let mut state = self.queue.state();
        state.silence = None;
        if self.waiter.hold.kind.rules.shared {
            state.call_all();
        }
        drop(state);
        self.yields().inspect(|yielding| yielding.taken(&self.queue.key));
        self.granted = true;
    }
}

impl OngoingAttempt<'_> {
    /// How it ended. Silence goes on from one who asks to the next; who waits behind learns that it has begun.
    pub(crate) fn ended<T>(self, answer: &Result<T>) {
        let mut state = self.queue.state();
        match answer {
            Ok(_) => (state.silence, state.answered) = (None, Some(self.begun)),
            Err(error @ Error::Unavailable { .. }) => state.silent(self.begun, error),
            Err(_) => state.silence = None,
        }
    }
}

impl Drop for OngoingAttempt<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        self.waiter.asks.store(false, Ordering::Relaxed);
        if state.asking == Some(self.begun) {
            state.asking = None;
        }
        drop(state);
        self.queue.answered.notify_waiters();
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        self.queues.counters.of(self.waiter.hold.subject()).waiting(1, 0);
        let mut state = self.queue.state();
        let was_head = state.is_head(&self.waiter);
        state.leave(&self.waiter);
        if !self.granted {
            *self.waiter.offer() = Offer::Gone;
        }
        let unused = self.waiter.wake_pending.load(Ordering::Acquire);
        let next = state.head().filter(|_| was_head && (unused || !self.granted || self.is_shared())).map(Arc::clone);
        drop(state);
        next.inspect(|next| next.wake());
        let key = &self.waiter.hold.queue();
        let ours = |queue: &Arc<Queue>| Arc::ptr_eq(queue, &self.queue);
        self.queues.by_key.remove_if(key, |_, queue| ours(queue) && queue.state().is_done());
        // One that was passed over may have listened for a queue that is gone.
        let is_in_use = |queue: &Arc<Queue>| ours(queue) && !queue.state().waiters.is_empty();
        if !self.queues.by_key.get(key).is_some_and(|queue| is_in_use(&queue)) {
            drop(self.queue.subscription().take()); // the hub and the queue hold each other through it
        }
    }
}
