//! The wakers of those that wait for a loss, or for the end of the client. Each of them is woken although the waker of another panics, which
//! `Notify` does not do.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use super::calls::Notice;
use crate::sync::std;

/// Most names never have one, and need no memory for them.
#[derive(Debug, Default)]
pub(super) struct Watchers(Option<Box<Wakers>>);

#[derive(Debug, Default)]
struct Wakers {
    /// The number of the last watcher. One that was woken keeps its number, so no other may have it later.
    last: u64,
    /// By what they wait for: thousands may wait for other guards of the same name.
    wakers: BTreeMap<(u64, u64), Waker>,
}

impl Watchers {
    /// Wakes it once. Drop the waker that it replaces after the mutex is unlocked: it can be the last that keeps a task, and with it a guard.
    pub(super) fn keep(&mut self, of: u64, key: &mut Option<(u64, u64)>, waker: &Waker) -> Option<Waker> {
        let all = self.0.get_or_insert_default();
        let key = *key.get_or_insert_with(|| {
            all.last += 1;
            (of, all.last)
        });
        all.wakers.insert(key, waker.clone())
    }

    /// Drop what it returns after the mutex is unlocked.
    pub(super) fn remove(&mut self, key: Option<(u64, u64)>) -> Option<Waker> {
        self.0.as_mut()?.wakers.remove(&key?)
    }

    /// Give these notices after the mutex is unlocked. All watchers look, and those that still wait are kept again.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Notice> + use<> {
        let all = self.0.as_mut().map(|all| mem::take(&mut all.wakers)).unwrap_or_default();
        all.into_values().map(Notice::Wake)
    }

    /// The same of those that wait for this.
    pub(super) fn take_of(&mut self, of: u64) -> Vec<Notice> {
        let Some(all) = &mut self.0 else { return Vec::new() };
        let keys: Vec<_> = all.wakers.range((of, 0)..=(of, u64::MAX)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| all.wakers.remove(&key)).map(Notice::Wake).collect()
    }
}

/// A condition that others change.
#[derive(Debug, Default)]
pub(super) struct Changes(Mutex<Watchers>);

impl Changes {
    pub(super) fn notify_all(&self) {
        let notices = self.watchers().take_all();
        notices.for_each(Notice::give);
    }

    /// Keep the waker first, then look: so no change is missed.
    pub(super) fn watch(&self) -> Watching<'_> {
        Watching { changes: self, key: None }
    }

    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Watching<'a> {
    changes: &'a Changes,
    key: Option<(u64, u64)>,
}

impl Watching<'_> {
    pub(super) fn keep(&mut self, waker: &Waker) {
        let replaced = self.changes.watchers().keep(0, &mut self.key, waker);
        drop(replaced); // after the mutex is unlocked
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let waker = self.changes.watchers().remove(self.key);
        drop(waker); // after the mutex is unlocked
    }
}
