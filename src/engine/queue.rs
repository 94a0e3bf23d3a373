//! Who waits for a name in this process: first in, first out. Only the head talks to the server, and a lock that is
//! given back here can go straight to it.
//!
//! A head that got there because the one before it was granted the lock is not woken for that: the holder is in this
//! process, and whatever ends its hold (release, hand-over, loss) rings here.
//!
//! A waiter is a future that somebody must poll. One that is not polled for long loses what it blocks, see
//! [`Queues::inspect`].

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use dashmap::DashMap;
use futures_util::task::AtomicWaker;
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

use super::{hold::Hold, manners::Manners};
use crate::{
    clock::Moment,
    config::Lease,
    error::{Error, Result},
    redis::{Bell, Listener, Redis},
    stats::Counters,
    sync::{dashmap, std, tokio},
};

/// All queues of a client, by key; a queue without waiters is gone.
#[derive(Debug)]
pub(crate) struct Queues {
    by_key: DashMap<Arc<str>, Arc<Queue>>,
    /// How many times in a row a lock may be handed over.
    handovers: u32,
    manners: Arc<Manners>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Queue {
    key: Arc<str>,
    manners: Arc<Manners>,
    line: Mutex<Line>,
    /// One subscription for all who ever wait here.
    bell: Mutex<Option<Bell>>,
    /// Told when an attempt has ended.
    answered: Notify,
}

#[derive(Debug)]
struct Line {
    /// By ticket: first come, first served, and whoever leaves leaves at once however many wait.
    waiters: BTreeMap<u64, Arc<Waiter>>,
    next_ticket: u64,
    /// Hand-overs since it was last time to release the lock for all.
    in_a_row: u32,
    /// Who was last seen to have the lock.
    holder: Option<Box<str>>,
    /// Since when the server was asked in vain, and how that ended for the last one who asked.
    silence: Option<Silence>,
    /// When the attempt under way was begun.
    asking: Option<Instant>,
    /// When the last attempt was begun, or the line was.
    asked: Instant,
    /// When the last attempt that was answered was begun.
    answered: Option<Instant>,
}

/// The server does not answer.
#[derive(Debug)]
struct Silence {
    since: Instant,
    /// When the last attempt ended in it.
    last: Instant,
    error: Error,
}

/// One who waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) hold: Arc<Hold>,
    pub(crate) lease: Lease,
    /// Its place in the line. Changed under the line's lock only.
    ticket: AtomicU64,
    woken: Notify,
    /// A wake-up that has not been used yet: it is kept until the waiter looks.
    rung: AtomicBool,
    offer: Mutex<Offer>,
    /// To see whether its future is polled.
    waker: AtomicWaker,
    /// How many inspections ago it was polled last.
    unseen: AtomicU32,
    /// An attempt of its own is under way.
    asks: AtomicBool,
}

/// Whether the lock is being handed to this waiter.
///
/// | offer   | means                                               | next                                    |
/// |---------|-----------------------------------------------------|-----------------------------------------|
/// | None    | waits                                               | Made; Had, by an attempt of its own     |
/// | Made    | asked of the server, no answer yet                  | Given; None, came to nothing; Had; Gone |
/// | Given   | it was handed over, by a request sent then          | Had, when the waiter looks              |
/// | Had     | the waiter knows that it has the lock               | -                                       |
/// | Revoked | passed over: whatever it got or gets is given back  | -                                       |
/// | Gone    | left empty-handed: whoever hands over passes on     | -                                       |
///
/// A waiter that is being handed the lock may at the same time ask for it itself, and be answered first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offer {
    None,
    Made,
    Given(Moment),
    Had,
    Revoked,
    Gone,
}

/// Why a waiter tries now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// There may be something to get.
    Try,
    /// It was handed over, with a request sent at that moment.
    Yours(Moment),
    /// It was passed over, for it did not look.
    TooLate,
    /// Nothing yet.
    Wait,
}

/// What a waiter whose time is over can know of the lock without asking.
pub(crate) enum News<'a> {
    /// Somebody was answered a moment ago, and the lock was not to be had for those behind.
    Taken,
    /// Somebody asks: the answer tells all.
    Asking(Notified<'a>),
    /// Nobody has asked: it must itself, for all.
    Yours(Asking<'a>),
}

/// A waiter's place in the line; left when dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    queues: &'a Queues,
    queue: Arc<Queue>,
    waiter: Arc<Waiter>,
    joined: Instant,
    granted: bool,
}

/// An attempt under way; over when dropped.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    queue: &'a Queue,
    waiter: &'a Waiter,
    begun: Instant,
}

/// How old an answer may be to tell a waiter whose time is over that the lock is taken, beside the time it takes to come.
const FRESH: Duration = Duration::from_millis(100);
/// A line whose head has not asked for so long is told to: a message may have been lost, and the alarm with it.
const OVERDUE: Duration = Duration::from_secs(4);
/// How often heads are inspected, and how often in a row one must not have been polled to be passed over.
pub(crate) const INSPECTION: Duration = Duration::from_secs(1);
const UNATTENDED: u32 = 6;
/// Those inspected in a line where something is due: with the head, those that would be next to keep the others waiting.
const INSPECTED: usize = 32;
/// After this, nobody has asked on in an outage: it may be over.
const STALE: Duration = Duration::from_secs(1);

impl Queues {
    pub(crate) fn new(handovers: u32, counters: Arc<Counters>) -> Queues {
        let manners = Arc::new(Manners::new(Arc::clone(&counters)));
        Queues { by_key: DashMap::new(), handovers, manners, counters }
    }

    /// Goes to the end of the line for what `hold` asks for.
    pub(crate) fn join(&self, hold: &Arc<Hold>, lease: Lease) -> Place<'_> {
        let (waiter, joined) = (Arc::new(Waiter::new(Arc::clone(hold), lease)), Instant::now());
        let key = hold.name.key();
        let fresh = || Arc::new(Queue::new(key, &self.manners, joined));
        let queue = self.by_key.entry(Arc::clone(key)).or_insert_with(fresh).join(&waiter);
        self.counters.waiting.up();
        Place { queues: self, queue, waiter, joined, granted: false }
    }

    /// Offers the lock that `hold` gives back to the head of the line, unless it is time for other processes.
    pub(crate) fn heir(&self, hold: &Hold) -> Option<Arc<Waiter>> {
        let queue = self.get(hold)?;
        let mut line = queue.line();
        if line.in_a_row >= self.handovers {
            line.in_a_row = 0;
            return None;
        }
        let head = Arc::clone(line.head()?);
        let offered = head.offer().change(Offer::None, Offer::Made);
        line.in_a_row += u32::from(offered);
        offered.then_some(head)
    }

    /// The lock was released for all, and so many `others` heard of it. Where we do too there is no need to ring.
    pub(crate) fn released(&self, hold: &Hold, others: u64) {
        let queue = self.get(hold);
        let hears = queue.as_ref().is_some_and(|queue| queue.is_told());
        self.manners.owe(hold.name.key(), others, hears);
        if !hears && let Some(queue) = queue {
            queue.ring();
        }
    }

    /// A hold of this process ended other than by a release: the head looks.
    pub(crate) fn ring(&self, hold: &Hold) {
        if let Some(queue) = self.get(hold) {
            queue.ring();
        }
    }

    /// Looks after every line, every [`INSPECTION`]: for the cases that nobody thought of, and for waiters that are not
    /// polled. Returns the holds of those passed over: the server may have them, so they must be given back.
    pub(crate) fn inspect(&self) -> Vec<Arc<Hold>> {
        let now = Instant::now();
        let passed_over = self.by_key.iter().flat_map(|queue| queue.inspect(now)).collect();
        self.manners.sweep();
        passed_over
    }

    #[cfg(leasehold_explore)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    fn get(&self, hold: &Hold) -> Option<Arc<Queue>> {
        self.by_key.get(hold.name.key()).map(|queue| Arc::clone(&queue))
    }
}

impl Queue {
    fn new(key: &Arc<str>, manners: &Arc<Manners>, now: Instant) -> Queue {
        let (line, bell, answered) = (Mutex::new(Line::new(now)), Mutex::default(), Notify::new());
        Queue { key: Arc::clone(key), manners: Arc::clone(manners), line, bell, answered }
    }

    fn join(self: &Arc<Queue>, waiter: &Arc<Waiter>) -> Arc<Queue> {
        self.line().join(waiter);
        Arc::clone(self)
    }

    fn ring(&self) {
        if let Some(head) = self.line().head() {
            head.ring();
        }
    }

    /// A head that took over from one that was granted at once has never asked, and nobody listens for it.
    fn inspect(&self, now: Instant) -> Vec<Arc<Hold>> {
        let listens = self.bell().is_some();
        self.line().inspect(now, listens)
    }

    fn is_told(&self) -> bool {
        self.bell().as_ref().is_some_and(Bell::is_live)
    }

    fn bell(&self) -> MutexGuard<'_, Option<Bell>> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock was released, or may have been: the head looks.
impl Listener for Queue {
    fn message(&self) {
        self.manners.heard(&self.key);
        self.ring();
    }

    fn subscribed(&self) {
        self.ring();
    }
}

impl Waiter {
    fn new(hold: Arc<Hold>, lease: Lease) -> Waiter {
        let (woken, rung, offer) = (Notify::new(), AtomicBool::new(false), Mutex::new(Offer::None));
        let (ticket, unseen) = (AtomicU64::new(0), AtomicU32::new(0));
        Waiter {
            hold,
            lease,
            ticket,
            woken,
            rung,
            offer,
            waker: AtomicWaker::new(),
            unseen,
            asks: AtomicBool::new(false),
        }
    }

    /// The server has moved the lock to it. False if it will not give that back: it has left empty-handed, or had the
    /// lock by an attempt of its own and has given it back before. Then it must go on to the next.
    pub(crate) fn hand(&self, sent: Moment) -> bool {
        let mut offer = self.offer();
        if offer.change(Offer::Made, Offer::Given(sent)) {
            self.hold.given();
            self.woken.notify_one();
        }
        let keeps = !matches!(*offer, Offer::Gone | Offer::Revoked) && !self.hold.is_over();
        if !keeps {
            self.hold.came_again();
        }
        keeps
    }

    /// The hand-over came to nothing: it looks for itself.
    pub(crate) fn withdraw(&self) {
        self.offer().change(Offer::Made, Offer::None);
        self.ring();
    }

    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.woken.notify_one();
    }

    /// Whether there is something to look at, or soon will be.
    fn is_due(&self) -> bool {
        self.rung.load(Ordering::Acquire)
            || self.asks.load(Ordering::Relaxed)
            || matches!(*self.offer(), Offer::Given(_))
    }

    /// Whether its future was polled in the last few inspections. Each has it polled, if anybody does that.
    fn is_attended(&self) -> bool {
        let unseen = self.unseen.fetch_add(1, Ordering::Relaxed);
        self.waker.wake();
        unseen < UNATTENDED
    }

    /// Whatever it got or gets is not to be used, unless it knows already that it has the lock.
    fn revoke(&self) -> bool {
        let mut offer = self.offer();
        let revoked = *offer != Offer::Had;
        if revoked {
            *offer = Offer::Revoked;
            self.hold.evict();
            self.woken.notify_one(); // it is in no line any more, and nobody else will call it
        }
        revoked
    }

    fn offer(&self) -> MutexGuard<'_, Offer> {
        self.offer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offer {
    fn change(&mut self, from: Offer, to: Offer) -> bool {
        let fits = *self == from;
        if fits {
            *self = to;
        }
        fits
    }
}

impl Place<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.waiter.hold.name
    }

    pub(crate) fn is_head(&self) -> bool {
        self.queue.line().is_head(&self.waiter)
    }

    /// Has the server tell us of releases. Rings once it does.
    pub(crate) fn listen(&self, redis: &Redis) {
        if self.queue.bell().is_some() {
            return;
        }
        let hold = &self.waiter.hold;
        let listener = Arc::clone(&self.queue) as Arc<dyn Listener>;
        let bell = redis.listen(&hold.kind.channel(hold.name.key()), listener);
        *self.queue.bell() = Some(bell);
    }

    /// Before this moment others should go first.
    pub(crate) fn after_you(&self) -> Option<Instant> {
        self.queue.manners.after_you(&self.queue.key)
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
    pub(crate) fn call(&self) -> Call {
        let mut offer = self.waiter.offer();
        match *offer {
            Offer::Given(sent) => {
                *offer = Offer::Had;
                Call::Yours(sent)
            }
            Offer::Revoked => Call::TooLate,
            _ if self.waiter.rung.swap(false, Ordering::AcqRel) => Call::Try,
            _ => Call::Wait,
        }
    }

    /// The server says who has it.
    pub(crate) fn seen(&self, holder: &str) {
        self.queue.line().holder = Some(holder.into());
        self.queue.manners.refused(&self.queue.key);
    }

    /// An attempt begins.
    pub(crate) fn asking(&self) -> Asking<'_> {
        self.begin(&mut self.queue.line())
    }

    fn begin(&self, line: &mut Line) -> Asking<'_> {
        let begun = Instant::now();
        (line.asking, line.asked) = (Some(begun), begun);
        self.waiter.asks.store(true, Ordering::Relaxed);
        Asking { queue: &self.queue, waiter: &self.waiter, begun }
    }

    /// What can be known without asking, by a waiter whose time is over; `due` is how soon an answer should be there.
    pub(crate) fn news(&self, due: Duration) -> News<'_> {
        let answered = self.queue.answered.notified();
        let now = Instant::now();
        let mut line = self.queue.line();
        let fresh = |answered: Instant| answered >= self.joined && now - answered <= FRESH + due;
        match line.asking {
            _ if line.answered.is_some_and(fresh) => News::Taken,
            Some(begun) if now - begun < due => News::Asking(answered),
            _ => News::Yours(self.begin(&mut line)),
        }
    }

    /// Since when this waiter asks: with others that were not answered, or for itself.
    pub(crate) fn asks_since(&self, asking: &Asking<'_>) -> Instant {
        let line = self.queue.line();
        line.silence.as_ref().map_or(asking.begun, |silence| self.joined.max(silence.since))
    }

    /// When an outage has lasted long enough for this waiter, which has been in it since it joined or the outage began,
    /// although others asked; their error if that is past. Else each in line would begin to wait for the server in turn.
    pub(crate) fn outage_ends(&self, timeout: Duration) -> Result<Instant> {
        let mut line = self.queue.line();
        match (line.outage_ends(self.joined, timeout), &line.silence) {
            (Some(end), Some(silence)) if end <= Instant::now() => Err(silence.error.clone()),
            (Some(end), _) => Ok(end),
            (None, _) => Ok(Instant::now() + timeout),
        }
    }

    /// When this waiter, asleep, must look even if nobody calls it: the head of the line at `look_again`, the others at the
    /// end of an outage.
    pub(crate) fn alarm(&self, look_again: Instant, timeout: Duration) -> Option<Instant> {
        let mut line = self.queue.line();
        let end = line.outage_ends(self.joined, timeout);
        if line.is_head(&self.waiter) { Some(end.map_or(look_again, |end| end.min(look_again))) } else { end }
    }

    /// Who was last seen to have it, here or elsewhere.
    pub(crate) fn holder(&self) -> Option<Box<str>> {
        self.queue.line().holder.clone()
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

    /// The lock is ours: the next in line is called when it is given back, not now.
    pub(crate) fn leave_granted(mut self) {
        let mut line = self.queue.line();
        line.silence = None;
        line.holder = Some(self.waiter.hold.id.clone());
        drop(line);
        self.queue.manners.taken(&self.queue.key);
        self.granted = true;
    }
}

impl Asking<'_> {
    /// How it ended. Silence goes on from one who asks to the next; who waits behind learns that it has begun.
    pub(crate) fn ended<T>(self, answer: &Result<T>) {
        let mut line = self.queue.line();
        match answer {
            Ok(_) => (line.silence, line.answered) = (None, Some(self.begun)),
            Err(error @ Error::Unavailable { .. }) => line.silent(self.begun, error),
            Err(_) => line.silence = None,
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut line = self.queue.line();
        self.waiter.asks.store(false, Ordering::Relaxed);
        if line.asking == Some(self.begun) {
            line.asking = None;
        }
        drop(line);
        self.queue.answered.notify_waiters();
    }
}

impl Line {
    fn new(now: Instant) -> Line {
        Line {
            waiters: BTreeMap::new(),
            next_ticket: 0,
            in_a_row: 0,
            holder: None,
            silence: None,
            asking: None,
            asked: now,
            answered: None,
        }
    }

    fn head(&self) -> Option<&Arc<Waiter>> {
        self.waiters.first_key_value().map(|(_, waiter)| waiter)
    }

    fn is_head(&self, waiter: &Arc<Waiter>) -> bool {
        self.head().is_some_and(|head| Arc::ptr_eq(head, waiter))
    }

    fn join(&mut self, waiter: &Arc<Waiter>) {
        waiter.ticket.store(self.next_ticket, Ordering::Relaxed);
        self.waiters.insert(self.next_ticket, Arc::clone(waiter));
        self.next_ticket += 1;
    }

    fn leave(&mut self, waiter: &Arc<Waiter>) {
        self.waiters.remove(&waiter.ticket.load(Ordering::Relaxed));
    }

    /// The server did not answer an attempt begun then.
    fn silent(&mut self, begun: Instant, error: &Error) {
        let begun = self.answered.map_or(begun, |answered| answered.max(begun));
        let since = match &self.silence {
            Some(silence) => begun.min(silence.since),
            None => {
                self.waiters.values().for_each(|waiter| waiter.woken.notify_one()); // they set an alarm
                begun
            }
        };
        self.silence = Some(Silence { since, last: Instant::now(), error: error.clone() });
    }

    /// For one who joined then; `None` while the server answers, as far as is known.
    fn outage_ends(&mut self, joined: Instant, timeout: Duration) -> Option<Instant> {
        let others_ask = self.asking.is_some();
        self.silence.take_if(|silence| !others_ask && silence.last.elapsed() > STALE);
        self.silence.as_ref().map(|silence| joined.max(silence.since) + timeout)
    }

    /// Rings a head that should have asked long ago. Where somebody has something to look at, it passes over those that are
    /// not polled.
    fn inspect(&mut self, now: Instant, listens: bool) -> Vec<Arc<Hold>> {
        let Some(head) = self.head() else { return Vec::new() };
        if (now - self.asked >= OVERDUE || !listens) && !head.asks.load(Ordering::Relaxed) {
            head.ring();
        }
        let first: Vec<_> = self.waiters.values().take(INSPECTED).map(Arc::clone).collect();
        if !first.iter().any(|waiter| waiter.is_due()) {
            return Vec::new();
        }
        let passed_over: Vec<_> = first.into_iter().filter(|waiter| !waiter.is_attended() && waiter.revoke()).collect();
        for waiter in &passed_over {
            self.leave(waiter);
        }
        if !passed_over.is_empty()
            && let Some(next) = self.head()
        {
            next.ring();
        }
        passed_over.iter().map(|waiter| Arc::clone(&waiter.hold)).collect()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queues.counters.waiting.down();
        let mut line = self.queue.line();
        let was_head = line.is_head(&self.waiter);
        line.leave(&self.waiter);
        if !self.granted {
            *self.waiter.offer() = Offer::Gone;
        }
        let unused = self.waiter.rung.load(Ordering::Acquire);
        if was_head
            && (unused || !self.granted)
            && let Some(next) = line.head()
        {
            next.ring();
        }
        drop(line);
        let key = self.waiter.hold.name.key();
        let ours = |queue: &Arc<Queue>| Arc::ptr_eq(queue, &self.queue);
        let is_done = |queue: &Arc<Queue>| ours(queue) && queue.line().waiters.is_empty();
        self.queues.by_key.remove_if(key, |_, queue| is_done(queue));
        // One that was passed over may have listened for a queue that is gone.
        if !self.queues.by_key.get(key).is_some_and(|queue| ours(&queue)) {
            drop(self.queue.bell().take()); // the hub and the queue hold each other through it
        }
    }
}
