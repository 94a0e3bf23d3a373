//! Values of which a client may have thousands. So each is found by its keys, and one event costs the same however many there are.

use std::collections::{BTreeMap, BTreeSet};

use super::types::{HoldId, Moment, Owner, RequestId};

/// By what a value is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// The time at which it needs attention.
    Due(Moment),
    /// The request whose reply it waits for.
    Awaits(RequestId),
    /// The request after which it goes on. That releases another hold.
    After(RequestId),
    /// The time since which the server has not replied.
    Silent(Moment),
    /// The time at which its release began, if that got no reply yet, and did not fail.
    FirstTry(Moment),
    /// Its release took more than one try.
    Failed,
    /// The owner that waits for it.
    Owner(Owner),
}

pub(crate) trait Keyed {
    fn keys(&self) -> impl Iterator<Item = Key>;

    /// It is only to be released.
    fn is_release(&self) -> bool;
}

/// Values by id, and their keys. A value changes by [`change`](Index::change) only, which keeps the keys right.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Index<V> {
    values: BTreeMap<HoldId, V>,
    keys: BTreeSet<(Key, HoldId)>,
    releases: usize,
}

impl<V> Default for Index<V> {
    fn default() -> Index<V> {
        Index { values: BTreeMap::new(), keys: BTreeSet::new(), releases: 0 }
    }
}

impl<V: Keyed> Index<V> {
    /// The index has no value with this id.
    pub(crate) fn put(&mut self, id: HoldId, value: V) {
        self.keys.extend(value.keys().map(|key| (key, id)));
        self.releases += usize::from(value.is_release());
        self.values.insert(id, value);
    }

    pub(crate) fn take(&mut self, id: HoldId) -> Option<V> {
        let value = self.values.remove(&id)?;
        value.keys().for_each(|key| _ = self.keys.remove(&(key, id)));
        self.releases -= usize::from(value.is_release());
        Some(value)
    }

    pub(crate) fn change<R>(&mut self, id: HoldId, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let mut value = self.take(id)?;
        let result = change(&mut value);
        self.put(id, value);
        Some(result)
    }

    pub(crate) fn get(&self, id: HoldId) -> Option<&V> {
        self.values.get(&id)
    }

    /// The first id with this key.
    pub(crate) fn find(&self, key: Key) -> Option<HoldId> {
        self.between(key, key).map(|(_, id)| id)
    }

    /// The first time of this kind, and its id.
    pub(crate) fn first(&self, kind: fn(Moment) -> Key) -> Option<(Moment, HoldId)> {
        match self.between(kind(Moment::ZERO), kind(Moment::FAR))? {
            (Key::Due(at) | Key::Silent(at) | Key::FirstTry(at), id) => Some((at, id)),
            _ => None,
        }
    }

    /// The first id that needs attention now.
    pub(crate) fn due(&self, now: Moment) -> Option<HoldId> {
        self.first(Key::Due).filter(|(due, _)| *due <= now).map(|(_, id)| id)
    }

    fn between(&self, from: Key, to: Key) -> Option<(Key, HoldId)> {
        self.keys.range((from, HoldId(0))..).next().copied().filter(|(key, _)| *key <= to)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (HoldId, &V)> {
        self.values.iter().map(|(id, value)| (*id, value))
    }

    pub(crate) fn into_values(self) -> impl Iterator<Item = V> {
        self.values.into_values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The number of values that are only to be released.
    pub(crate) fn releases(&self) -> usize {
        self.releases
    }
}
