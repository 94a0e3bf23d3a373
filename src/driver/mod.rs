//! Carries out what the state machines of locks decide: sends their requests, waits for their timers, receives messages for them, and
//! notifies their callers.
//!
//! From the bottom up: `wire`, `slot`, `notes`, `calls`, `lanes`, `timers`, `named`, `reports`, `acquire`, `held`.

mod acquire;
mod calls;
#[cfg(leasehold_explore)]
#[path = "../../tests/explore/scenarios.rs"]
mod explore;
mod held;
mod lanes;
mod named;
mod notes;
mod reports;
mod slot;
mod timers;
mod wire;

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

pub(crate) use acquire::acquire;
pub(crate) use held::HeldLock;

use crate::{
    clock::Moment,
    config::{Config, Name},
    error::{Error, Lost, Result},
    kind::Kind,
    lock::{self, Event, HoldId, Loss, Mode},
    owner::Owner,
    redis::Redis,
    stats::Counters,
    sync::{dashmap, std, tokio},
    task_runtime::Spawner,
};
use lanes::Lanes;
use named::{By, NamedLock, from_machine};
use timers::Timers;

/// The names that one client uses, and what they share.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The id of the client.
    client: Box<str>,
    config: Config,
    redis: Arc<Redis>,
    counters: Arc<Counters>,
    runtime: Spawner,
    names: DashMap<(Arc<str>, &'static Kind), Arc<NamedLock>>,
    timers: Timers,
    lanes: Lanes,
    /// No name that was forgotten has used a number above this one.
    used: AtomicU64,
    life: AtomicU8,
    /// The runtime of the client has ended.
    abandoned: AtomicBool,
    /// The client has closed although releases were under way.
    gave_up: AtomicBool,
    /// Notified when the client stops, closes or ends, and from then on when a name was forgotten.
    changed: Notify,
}

/// The stages of [`Driver::life`].
const OPEN: u8 = 0;
const STOPPING: u8 = 1;
const CLOSED: u8 = 2;
/// Closed, and nothing is held, wanted or under way anymore.
const DONE: u8 = 3;

impl Driver {
    /// Starts the task of the timers, on the present runtime.
    pub(crate) fn start(client: String, config: Config, redis: Arc<Redis>, counters: Arc<Counters>) -> Arc<Driver> {
        let mut changes = redis.changes();
        // Read here: locks can be acquired, and their server can change, before the task runs.
        let seen = *changes.borrow_and_update();
        let driver = Arc::new(Driver {
            client: client.into(),
            config,
            redis,
            counters,
            runtime: Spawner::here(),
            names: DashMap::new(),
            timers: Timers::new(),
            lanes: Lanes::default(),
            used: AtomicU64::new(0),
            life: AtomicU8::new(OPEN),
            abandoned: AtomicBool::new(false),
            gave_up: AtomicBool::new(false),
            changed: Notify::new(),
        });
        let running = Running(Arc::clone(&driver));
        driver.spawn(async move { running.0.run(changes, seen).await });
        driver
    }

    async fn run(&self, mut changes: watch::Receiver<u64>, mut seen: u64) {
        let mut was_idle = false;
        while !self.is_done() {
            let due = self.timers.take_due();
            due.into_iter().for_each(|(key, lock)| lock.due(key));
            let nap = self.timers.nap(was_idle);
            was_idle = false;
            tokio::select! {
                () = self.done() => {}
                () = sleep(nap) => was_idle = true,
                () = self.timers.woken() => {}
                Ok(()) = changes.changed() => {
                    let now = *changes.borrow_and_update();
                    self.reconnected(seen);
                    seen = now;
                }
            }
        }
    }

    /// The locks of a server that was reconnected to or replaced may be lost.
    fn reconnected(&self, since: u64) {
        for lock in self.all() {
            if self.redis.changed_since(lock.name.key(), since) {
                lock.tell(Event::Reconnected);
            }
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// A request waits for its turn for at most this long, and then for its reply for as long.
    fn request_limit(&self) -> Duration {
        lock::step_of_request(self.config.command_timeout)
    }

    fn machine_config(&self) -> lock::Config {
        lock::Config {
            watchdog: *self.config.watchdog,
            command_timeout: self.config.command_timeout,
            outage_timeout: self.config.outage_timeout,
            // Replicas do not confirm a hand-over. So if replicas must confirm, there are no hand-overs.
            handovers: if self.config.replicas == 0 { self.config.handovers } else { 0 },
            round_trip: self.counters.round_trip.get(),
            publishes: !self.redis.publish().is_empty(),
        }
    }

    fn rules_of(&self, kind: &'static Kind) -> lock::Rules {
        let reading = kind.of_mode(Mode::Shared);
        lock::Rules { passes_on: kind.rules.passes_on, has_marks: kind.rules.has_mark(), sure: reading.rules.sure }
    }

    // ---- names ----

    /// The lock of this name. A lock that is about to be forgotten is replaced.
    fn named(self: &Arc<Self>, name: &Name, kind: &'static Kind) -> Arc<NamedLock> {
        let kind = kind.of_mode(Mode::Exclusive); // readers and writers have one lock
        let key = || (Arc::clone(name.key()), kind);
        if let Some(lock) = self.names.get(&key()) {
            return Arc::clone(&lock);
        }
        // Made with its shard of the map locked: a client that stops sees it there, or it sees that the client stops.
        Arc::clone(&self.names.entry(key()).or_insert_with(|| NamedLock::new(self, name, kind)))
    }

    /// What a lock must know that was made after the client was stopped or closed.
    fn life_event(&self) -> Option<Event> {
        match self.life.load(Ordering::SeqCst) {
            OPEN => None,
            STOPPING => Some(Event::Stop),
            _ => Some(Event::Close),
        }
    }

    /// Removes a lock from the map. Its numbers must not be used again.
    fn forget(&self, lock: &NamedLock, used: u64) {
        self.used.fetch_max(used, Ordering::SeqCst);
        self.names.remove_if(&(Arc::clone(lock.name.key()), lock.kind), |_, other| std::ptr::eq(&**other, lock));
        if self.is_stopping() {
            self.changed.notify_waiters();
        }
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    fn all(&self) -> Vec<Arc<NamedLock>> {
        self.names.iter().map(|entry| Arc::clone(&entry)).collect()
    }

    /// The lock of this name, if this client uses it.
    fn known(&self, name: &Name, kind: &'static Kind) -> Option<Arc<NamedLock>> {
        self.names.get(&(Arc::clone(name.key()), kind.of_mode(Mode::Exclusive))).map(|lock| Arc::clone(&lock))
    }

    /// True if that owner has a hold of this lock, lost or not.
    pub(crate) fn is_held_by(&self, name: &Name, kind: &'static Kind, owner: &Owner) -> bool {
        let owner = lock::Owner(owner.number());
        self.known(name, kind).is_some_and(|lock| lock.inner().state.is_held_by(owner, kind.mode()))
    }

    /// The server has named the holder. If it is of another client, another request must confirm what this client holds.
    pub(crate) fn named_by_server(&self, name: &Name, kind: &'static Kind, holder: &str) {
        if let Some(lock) = self.known(name, kind).filter(|_| !holder.starts_with(&*self.client)) {
            lock.tell(Event::Forced);
        }
    }

    /// Each held lock: its name, its id, since when it is held, its hold count, and the time until which it is certain.
    pub(crate) fn held(&self) -> Vec<(Name, Box<str>, Moment, u32, Moment)> {
        let of = |lock: Arc<NamedLock>| {
            let holds: Vec<_> = lock.inner().state.holds().collect();
            let held = |((id, mode), (since, count, until)): ((HoldId, Mode), (lock::Moment, usize, lock::Moment))| {
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                (lock.name.clone(), lock.field(id, mode), from_machine(since), count, from_machine(until))
            };
            holds.into_iter().map(held).collect::<Vec<_>>()
        };
        self.all().into_iter().flat_map(of).collect()
    }

    /// The lock was forced open, or may have been.
    pub(crate) fn forced(&self, name: &Name) {
        for lock in self.all() {
            if lock.name.key() == name.key() {
                lock.tell(Event::Forced);
            }
        }
    }

    // ---- the end ----

    /// The client acquires no more locks.
    pub(crate) fn is_stopping(&self) -> bool {
        self.life.load(Ordering::SeqCst) != OPEN || self.is_abandoned()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// No call gets a result anymore.
    fn has_ended(&self) -> bool {
        self.is_abandoned() || self.gave_up.load(Ordering::SeqCst)
    }

    /// Once true, it stays true: a call that comes later is refused, although its name is in the map for a moment.
    fn is_done(&self) -> bool {
        if self.is_closed() && self.names.is_empty() {
            self.life.fetch_max(DONE, Ordering::SeqCst);
        }
        self.life.load(Ordering::SeqCst) == DONE
    }

    /// No new holds.
    pub(crate) fn stop(&self) {
        self.become_at_least(STOPPING);
    }

    /// All holds end, and are released.
    pub(crate) fn close(&self) {
        self.become_at_least(CLOSED);
        if self.is_abandoned() {
            self.give_up();
        }
    }

    fn become_at_least(&self, life: u8) {
        self.life.fetch_max(life, Ordering::SeqCst);
        for lock in self.all() {
            self.life_event().into_iter().for_each(|event| lock.tell(event));
        }
        self.changed.notify_waiters();
    }

    /// Resolves once the client acquires no more locks.
    pub(crate) async fn stopped(&self) {
        self.until(Driver::is_stopping).await;
    }

    /// Resolves when nothing is held, wanted or under way. After [`stop`](Driver::stop).
    pub(crate) async fn idle(&self) {
        self.until(|driver| driver.is_done() || driver.names.is_empty() || driver.is_abandoned()).await;
    }

    /// Resolves when the client is closed and nothing is under way.
    pub(crate) async fn done(&self) {
        self.until(Driver::is_done).await;
    }

    async fn until(&self, is_so: impl Fn(&Driver) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if is_so(self) {
                return;
            }
            changed.await;
        }
    }

    /// Ends although releases are under way.
    pub(crate) fn give_up(&self) {
        self.gave_up.store(true, Ordering::SeqCst);
        self.all().iter().for_each(|lock| lock.end());
        self.names.retain(|_, _| false);
        self.changed.notify_waiters();
    }

    /// The runtime has ended. Callers get an error, and nothing is sent anymore.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        self.all().iter().for_each(|lock| lock.end());
        self.changed.notify_waiters();
        if self.is_closed() {
            self.give_up(); // if the client closes later, `close` does that
        }
    }

    fn is_closed(&self) -> bool {
        self.life.load(Ordering::SeqCst) >= CLOSED
    }

    /// An error after the client was closed.
    pub(crate) fn refuse_if_closed(&self, what: &str, name: &str) -> Result<()> {
        if self.is_closed() || self.is_abandoned() { Err(self.closed(what, name)) } else { Ok(()) }
    }

    /// The error for calls after the client was closed.
    fn closed(&self, what: &str, name: &str) -> Error {
        if self.is_abandoned() { Error::abandoned(what, name) } else { Error::Closed }
    }
}

/// The task of the timers. If it is dropped before its end, its runtime has ended.
struct Running(Arc<Driver>);

impl Drop for Running {
    fn drop(&mut self) {
        if !self.0.is_done() {
            self.0.abandon();
        }
    }
}

fn lost(loss: Loss) -> Lost {
    match loss {
        Loss::Removed => Lost::Removed,
        Loss::Expired => Lost::Expired,
        Loss::MaxHold => Lost::MaxHold,
        Loss::Closed => Lost::Closed,
    }
}
