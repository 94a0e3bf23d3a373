//! Keys that other connections have changed, as the servers tell it ("client-side caching"). A server tells it once for each time that a
//! connection has read the key on purpose.

use std::{
    collections::HashSet,
    mem,
    sync::{Mutex, PoisonError},
};

use tokio::sync::Notify;

use crate::sync::{std, tokio};

/// More keys than this count as all.
const MOST: usize = 10_000;

/// Those that nobody has looked at yet.
#[derive(Debug, Default)]
pub(crate) struct ChangedKeys {
    keys: Mutex<Keys>,
    added: Notify,
}

#[derive(Debug)]
pub(crate) enum Keys {
    These(HashSet<Box<str>>),
    All,
}

impl Default for Keys {
    fn default() -> Keys {
        Keys::These(HashSet::new())
    }
}

impl Keys {
    pub(crate) fn contains(&self, key: &str) -> bool {
        match self {
            Keys::These(keys) => keys.contains(key),
            Keys::All => true,
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Keys::These(keys) if keys.is_empty())
    }

    fn add(&mut self, key: &str) {
        match self {
            Keys::These(keys) if keys.len() < MOST => _ = keys.insert(key.into()),
            keys => *keys = Keys::All,
        }
    }
}

impl ChangedKeys {
    pub(super) fn add<'a>(&self, changed: impl Iterator<Item = &'a str>) {
        self.change(|keys| changed.for_each(|key| keys.add(key)));
    }

    pub(super) fn add_all(&self) {
        self.change(|keys| *keys = Keys::All);
    }

    fn change(&self, change: impl FnOnce(&mut Keys)) {
        change(&mut self.keys.lock().unwrap_or_else(PoisonError::into_inner));
        self.added.notify_one();
    }

    /// Waits for some. Cancel safe.
    pub(crate) async fn next(&self) -> Keys {
        loop {
            let keys = mem::take(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner));
            if !keys.is_empty() {
                return keys;
            }
            self.added.notified().await;
        }
    }
}

#[cfg(all(test, not(leasehold_explore)))] // the exploration has a runtime of its own
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_that_nobody_has_looked_at() {
        let changed = ChangedKeys::default();
        changed.add(["b", "c"].into_iter());
        let keys = changed.next().await;
        assert!(keys.contains("b") && keys.contains("c") && !keys.contains("a"), "{keys:?}");
        changed.add_all();
        assert!(changed.next().await.contains("a"));
        let many: Vec<_> = (0..=MOST).map(|n| n.to_string()).collect();
        changed.add(many.iter().map(String::as_str));
        assert!(changed.next().await.contains("a"), "more than it keeps");
    }
}
