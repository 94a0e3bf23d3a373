//! The time at which each name needs attention. One task waits for all of them.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    clock::Moment,
    sync::{std, tokio},
};

/// The longest sleep. Timers stop while the machine is suspended, so ended leases are noticed within this time after it wakes.
const NAP: Duration = Duration::from_secs(1);

/// The place of a name in the list.
pub(super) type TimerKey = (Moment, u64);

#[derive(Debug)]
pub(super) struct Timers<L> {
    list: Mutex<Schedule<L>>,
    /// Notified when a name becomes due before the sleep ends.
    wake: Notify,
}

#[derive(Debug)]
struct Schedule<L> {
    due: BTreeMap<TimerKey, Arc<L>>,
    numbers: u64,
    asleep_until: Moment,
}

impl<L> Timers<L> {
    pub(super) fn new() -> Timers<L> {
        let list = Schedule { due: BTreeMap::new(), numbers: 0, asleep_until: Moment::FAR };
        Timers { list: Mutex::new(list), wake: Notify::new() }
    }

    pub(super) fn add(&self, at: Moment, lock: &Arc<L>) -> TimerKey {
        let mut list = self.list();
        list.numbers += 1;
        let key = (at, list.numbers);
        list.due.insert(key, Arc::clone(lock));
        let is_sooner = at < list.asleep_until;
        drop(list);
        if is_sooner {
            self.wake.notify_one();
        }
        key
    }

    pub(super) fn remove(&self, key: TimerKey) {
        let removed = self.list().due.remove(&key);
        drop(removed); // after the list is unlocked
    }

    /// Removes and returns the names that are due by now.
    pub(super) fn take_due(&self) -> Vec<(TimerKey, Arc<L>)> {
        let mut list = self.list();
        let later = list.due.split_off(&(Moment::now(), u64::MAX));
        mem::replace(&mut list.due, later).into_iter().collect()
    }

    /// The time to sleep. The task sleeps until it is woken only after a nap in which nothing happened: locks that are held for a short time
    /// only must not wake it each time.
    pub(super) fn nap(&self, was_idle: bool) -> Duration {
        let mut list = self.list();
        let next = list.due.first_key_value().map(|((due, _), _)| *due);
        if next.is_none() && was_idle {
            list.asleep_until = Moment::FAR;
            return Duration::MAX;
        }
        let latest = Moment::now() + NAP;
        list.asleep_until = next.map_or(latest, |next| next.min(latest));
        list.asleep_until.left()
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    #[cfg(leasehold_explore)]
    pub(super) fn is_empty(&self) -> bool {
        self.list().due.is_empty()
    }

    fn list(&self) -> MutexGuard<'_, Schedule<L>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
