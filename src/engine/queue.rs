//! Who waits for a name in this process: first in, first out. Only the head talks to the server, and a lock that is
//! given back here can go straight to it.
//!
//! A head that got there because the one before it was granted the lock is not woken for that: the holder is in this
//! process, and whatever ends its hold (release, hand-over, loss) rings here.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
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
}

#[derive(Debug, Default)]
struct Line {
    waiters: VecDeque<Arc<Waiter>>,
    /// Hand-overs since it was last time to release the lock for all.
    in_a_row: u32,
    /// Who was last seen to have the lock.
    holder: Option<Box<str>>,
    /// Since when the head of the line has asked the server in vain, and how that ended for the last one.
    silence: Option<(Instant, Error)>,
}

/// One who waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) hold: Arc<Hold>,
    pub(crate) lease: Lease,
    woken: Notify,
    /// A wake-up that has not been used yet: it is kept until the waiter looks.
    rung: AtomicBool,
    offer: Mutex<Offer>,
}

/// Whether the lock is being handed to this waiter.
///
/// | offer | means                                               | next                                |
/// |-------|-----------------------------------------------------|-------------------------------------|
/// | None  | waits                                               | Made; Taken, by an attempt of his   |
/// | Made  | asked of the server, no answer yet                  | Taken; None, came to nothing; Gone  |
/// | Taken | it is his, by a request sent then                   | -                                   |
/// | Gone  | left empty-handed: whoever hands over passes on     | -                                   |
///
/// One who is being handed the lock may at the same time ask for it himself, and be answered first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offer {
    None,
    Made,
    Taken(Moment),
    Gone,
}

/// Why a waiter tries now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// There may be something to get.
    Try,
    /// It was handed over, with a request sent at that moment.
    Yours(Moment),
    /// Nothing yet.
    Wait,
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

impl Queues {
    pub(crate) fn new(handovers: u32, counters: Arc<Counters>) -> Queues {
        let manners = Arc::new(Manners::new(Arc::clone(&counters)));
        Queues { by_key: DashMap::new(), handovers, manners, counters }
    }

    /// Goes to the end of the line for what `hold` asks for.
    pub(crate) fn join(&self, hold: &Arc<Hold>, lease: Lease) -> Place<'_> {
        let waiter = Arc::new(Waiter::new(Arc::clone(hold), lease));
        let key = hold.name.key();
        let fresh = || Arc::new(Queue::new(key, &self.manners));
        let queue = self.by_key.entry(Arc::clone(key)).or_insert_with(fresh).join(&waiter);
        self.counters.waiting.up();
        Place { queues: self, queue, waiter, joined: Instant::now(), granted: false }
    }

    /// Offers the lock that `hold` gives back to the head of the line, unless it is time for other processes.
    pub(crate) fn heir(&self, hold: &Hold) -> Option<Arc<Waiter>> {
        let queue = self.get(hold)?;
        let mut line = queue.line();
        if line.in_a_row >= self.handovers {
            line.in_a_row = 0;
            return None;
        }
        let head = Arc::clone(line.waiters.front()?);
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

    /// Wakes every head every now and then, so that each has its timer set: for the case that nobody thought of.
    pub(crate) async fn nudge(self: Arc<Queues>, pause: Duration) {
        loop {
            sleep(pause).await;
            for queue in self.by_key.iter() {
                if let Some(head) = queue.line().waiters.front() {
                    head.woken.notify_one();
                }
            }
            self.manners.sweep();
        }
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
    fn new(key: &Arc<str>, manners: &Arc<Manners>) -> Queue {
        let (line, bell) = (Mutex::default(), Mutex::default());
        Queue { key: Arc::clone(key), manners: Arc::clone(manners), line, bell }
    }

    fn join(self: &Arc<Queue>, waiter: &Arc<Waiter>) -> Arc<Queue> {
        self.line().waiters.push_back(Arc::clone(waiter));
        Arc::clone(self)
    }

    fn ring(&self) {
        if let Some(head) = self.line().waiters.front() {
            head.ring();
        }
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
        Waiter { hold, lease, woken, rung, offer }
    }

    /// The server has moved the lock to him. False if he has left without: it must go on to the next.
    pub(crate) fn hand(&self, sent: Moment) -> bool {
        let mut offer = self.offer();
        if offer.change(Offer::Made, Offer::Taken(sent)) {
            self.hold.given();
            self.woken.notify_one();
        }
        *offer != Offer::Gone
    }

    /// The hand-over came to nothing: he looks for himself.
    pub(crate) fn withdraw(&self) {
        self.offer().change(Offer::Made, Offer::None);
        self.ring();
    }

    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.woken.notify_one();
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

    /// He goes to sleep: to another branch of his task the lock is taken.
    pub(crate) fn queued(&self) {
        self.waiter.hold.set_queued();
    }

    /// Sleeps until somebody calls this waiter.
    pub(crate) async fn woken(&self) {
        self.waiter.woken.notified().await;
    }

    /// What there is to do. A wake-up is used up by looking.
    pub(crate) fn call(&self) -> Call {
        match *self.waiter.offer() {
            Offer::Taken(sent) => Call::Yours(sent),
            _ if self.waiter.rung.swap(false, Ordering::AcqRel) => Call::Try,
            _ => Call::Wait,
        }
    }

    /// The server says who has it.
    pub(crate) fn seen(&self, holder: &str) {
        self.queue.line().holder = Some(holder.into());
    }

    /// How an attempt begun then has ended. Silence goes on from one head of the line to the next, who asks at once.
    pub(crate) fn asked(&self, begun: Instant, failure: Option<&Error>) {
        let mut line = self.queue.line();
        line.silence = match (failure, line.silence.take()) {
            (Some(error @ Error::Unavailable { .. }), before) if line.is_head(&self.waiter) => {
                Some((before.map_or(begun, |(since, _)| since), error.clone()))
            }
            (Some(Error::Unavailable { .. }), before) => before,
            _ => None,
        };
    }

    /// When an outage has lasted long enough for this waiter, who has been in it since he joined or it began, although
    /// others asked; their error if that is past. Else each in line would begin to wait for the server in his turn.
    pub(crate) fn outage_ends(&self, timeout: Duration) -> Result<Instant> {
        let now = Instant::now();
        match &self.queue.line().silence {
            Some((since, error)) if *since.max(&self.joined) + timeout <= now => Err(error.clone()),
            Some((since, _)) => Ok(*since.max(&self.joined) + timeout),
            None => Ok(now + timeout),
        }
    }

    /// Who was last seen to have it, here or elsewhere.
    pub(crate) fn holder(&self) -> Option<Box<str>> {
        self.queue.line().holder.clone()
    }

    /// The lock is ours: the next in line is called when it is given back, not now.
    pub(crate) fn leave_granted(mut self) {
        *self.waiter.offer() = Offer::Taken(Moment::now());
        let mut line = self.queue.line();
        line.silence = None;
        line.holder = Some(self.waiter.hold.id.clone());
        drop(line);
        self.queue.manners.taken(&self.queue.key);
        self.granted = true;
    }
}

impl Line {
    fn is_head(&self, waiter: &Arc<Waiter>) -> bool {
        self.waiters.front().is_some_and(|head| Arc::ptr_eq(head, waiter))
    }

    fn leave(&mut self, waiter: &Arc<Waiter>) {
        if self.is_head(waiter) {
            self.waiters.pop_front();
        } else {
            self.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        }
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
            && let Some(next) = line.waiters.front()
        {
            next.ring();
        }
        drop(line);
        let key = self.waiter.hold.name.key();
        let is_done = |queue: &Arc<Queue>| Arc::ptr_eq(queue, &self.queue) && queue.line().waiters.is_empty();
        if self.queues.by_key.remove_if(key, |_, queue| is_done(queue)).is_some() {
            drop(self.queue.bell().take()); // the hub and the queue hold each other through it
        }
    }
}
