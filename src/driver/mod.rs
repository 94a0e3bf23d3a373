//! Carries out what the state machines of locks decide: sends their requests, waits for their timers, receives messages for them, and
//! notifies their callers.
//!
//! From the bottom up: `asked`, `translate`, `wire`, `notes`, `calls`, `timers`, `reports`, `channels`, `watchers`, `shared`, `named`, `call`, `held`,
//! `acquire`, `waits`. Each file imports only from those before it.

mod acquire;
mod asked;
mod call;
mod calls;
mod channels;
#[cfg(leasehold_explore)]
#[path = "../../tests/explore/scenarios.rs"]
mod explore;
mod held;
mod named;
mod notes;
mod reports;
mod shared;
mod timers;
mod translate;
mod waits;
mod watchers;
mod wire;

use std::sync::Arc;

use tokio::{sync::watch, time::sleep};

pub(crate) use acquire::{acquire, acquire_through_outages, pass};
pub(crate) use held::HeldLock;
pub(crate) use named::{Driver, DriverErrand, DriverWork};
pub(crate) use waits::SlowWait;

use crate::{
    clock::Moment,
    config::{Config, Name},
    error::Source,
    kind::Kind,
    lock::{self, Event, HoldId, Mode},
    owner::Owner,
    redis::{ChangedKeys, Redis},
    stats::Counters,
    sync::{std, tokio},
};
use named::NamedLock;
use shared::{CLOSED, STOPPING, Shared};
use translate::from_machine;

/// A lock that this client holds.
pub(crate) struct HeldNow {
    pub(crate) name: Name,
    pub(crate) id: Box<str>,
    pub(crate) since: Moment,
    /// The hold count.
    pub(crate) count: u32,
    /// It is certain until then.
    pub(crate) until: Moment,
    /// Why the last request about this name has failed, if none has succeeded since.
    pub(crate) trouble: Option<Source>,
}

impl Driver {
    /// Starts the task of the timers, on the present runtime.
    pub(crate) fn start(client: String, config: Config, redis: Arc<Redis>, counters: Arc<Counters>) -> Arc<Driver> {
        let mut changes = redis.changes();
        // Read here: locks can be acquired, and their server can change, before the task runs.
        let seen = *changes.borrow_and_update();
        let driver = Arc::new(Shared::new(client, config, redis, counters));
        let running = Running(Arc::clone(&driver));
        driver.spawn(async move { running.0.run(changes, seen).await });
        driver
    }

    async fn run(self: &Arc<Self>, mut changes: watch::Receiver<u64>, mut seen: u64) {
        let mut was_idle = false;
        while !self.is_done() {
            self.timers.take_due().into_iter().for_each(|(key, lock)| lock.due(key));
            let nap = self.timers.nap(was_idle);
            was_idle = false;
            tokio::select! {
                () = self.done() => {}
                () = sleep(nap) => was_idle = true,
                () = self.timers.woken() => {}
                keys = self.redis.changed_keys() => self.changed(&keys),
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

    /// Others have changed these keys: the lock was forced open or deleted, or something harmless happened.
    fn changed(&self, keys: &ChangedKeys) {
        self.all().iter().filter(|lock| keys.contains(lock.name.key())).for_each(|lock| lock.tell(Event::Forced));
    }

    // ---- names ----

    /// The lock of this name. A lock that is about to be forgotten is replaced.
    fn lock_of(self: &Arc<Self>, name: &Name, kind: &'static Kind) -> Arc<NamedLock> {
        let kind = kind.of_mode(Mode::Exclusive); // readers and writers have one lock
        let key = || (Arc::clone(name.key()), kind);
        if let Some(lock) = self.names.get(&key()) {
            return Arc::clone(&lock);
        }
        self.first_use.notify_one();
        // Made with its shard of the map locked: a client that stops sees it there, or it sees that the client stops.
        Arc::clone(&self.names.entry(key()).or_insert_with(|| NamedLock::new(self, name, kind)))
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

    /// True if a waiter of this client acquires permits that a caller returns. Else they are to be released on the server.
    pub(crate) fn give_back(&self, name: &Name, kind: &'static Kind, permits: u16) -> bool {
        self.known(name, kind).is_some_and(|lock| lock.give_back(permits))
    }

    /// The server has named the holder. If it is of another client, another request must confirm what this client holds.
    pub(crate) fn named_by_server(&self, name: &Name, kind: &'static Kind, holder: &str) {
        if let Some(lock) = self.known(name, kind).filter(|_| !holder.starts_with(&*self.client)) {
            lock.tell(Event::Forced);
        }
    }

    /// The server has said that the lock is free. If this client holds it, another request must confirm that.
    pub(crate) fn free_on_server(&self, name: &Name, kind: &'static Kind) {
        if let Some(lock) = self.known(name, kind) {
            lock.tell(Event::Reconnected); // not `Forced`: what rests may have begun after that reply
        }
    }

    /// Each held lock.
    pub(crate) fn held(&self) -> Vec<HeldNow> {
        let of = |lock: Arc<NamedLock>| {
            let inner = lock.inner();
            let (holds, trouble) = (inner.state.holds().collect::<Vec<_>>(), inner.trouble_now());
            drop(inner);
            let held =
                |((id, mode), (since, count, until)): ((HoldId, Mode), (lock::Moment, usize, lock::Moment))| HeldNow {
                    name: lock.name.clone(),
                    id: lock.field(id, mode),
                    since: from_machine(since),
                    count: u32::try_from(count).unwrap_or(u32::MAX),
                    until: from_machine(until),
                    trouble: trouble.clone(),
                };
            holds.into_iter().map(held).collect::<Vec<_>>()
        };
        self.all().into_iter().flat_map(of).collect()
    }

    /// Why a request has failed, for one of the names with such trouble.
    pub(crate) fn trouble(&self) -> Option<Source> {
        self.all().into_iter().find_map(|lock| lock.inner().trouble_now())
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
        self.raise_life(life);
        for lock in self.all() {
            self.life_event().into_iter().for_each(|event| lock.tell(event));
        }
        self.notify_changed();
    }

    /// Ends although releases are under way.
    pub(crate) fn give_up(&self) {
        self.set_gave_up();
        self.all().iter().for_each(|lock| lock.end());
        self.names.retain(|_, _| false);
        self.notify_changed();
    }

    /// The runtime has ended. Callers get an error, and nothing is sent anymore.
    fn abandon(&self) {
        self.set_abandoned();
        self.all().iter().for_each(|lock| lock.end());
        self.notify_changed();
        if self.is_closed() {
            self.give_up(); // if the client closes later, `close` does that
        }
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
