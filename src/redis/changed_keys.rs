//! Keys that other connections have changed, as the servers tell it ("client-side caching"). A server tells it once for each time that a
//! connection has read the key on purpose.

use std::{
    collections::HashSet,
    mem,
    sync::{Mutex, PoisonError},
};

use tokio::sync::Notify;

use super::conn::Reply;
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
    /// The server has sent this unasked. It is `invalidate` and a list of keys; without a list, all keys are meant.
    pub(super) fn told(&self, push: &[Reply]) {
        let [what, changed] = push else { return };
        if what.text() != Some("invalidate") {
            return;
        }
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        match changed {
            Reply::List(changed) => changed.iter().filter_map(Reply::text).for_each(|key| keys.add(key)),
            _ => *keys = Keys::All,
        }
        drop(keys);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.as_bytes().into())
    }

    #[tokio::test]
    async fn what_servers_tell() {
        let changed = ChangedKeys::default();
        changed.told(&[text("message"), Reply::List(vec![text("a")])]);
        changed.told(&[text("invalidate"), Reply::List(vec![text("b"), text("c")])]);
        let keys = changed.next().await;
        assert!(keys.contains("b") && keys.contains("c") && !keys.contains("a"), "{keys:?}");
        changed.told(&[text("invalidate"), Reply::Nothing]);
        assert!(changed.next().await.contains("a"));
        (0..=MOST).for_each(|n| changed.told(&[text("invalidate"), Reply::List(vec![text(&n.to_string())])]));
        assert!(changed.next().await.contains("a"), "more than it keeps");
    }
}
