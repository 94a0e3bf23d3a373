//! Maps that seldom have more than one entry.

use std::{collections::BTreeMap, mem, ops::RangeBounds};

/// A sorted map. It needs no memory of its own until it has two entries: most names have one waiter at most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) enum Few<K, V> {
    #[default]
    Empty,
    One(K, V),
    /// Two at least.
    Many(BTreeMap<K, V>),
}

impl<K: Ord + Copy, V> Few<K, V> {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Few::Empty)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Few::Empty => 0,
            Few::One(..) => 1,
            Few::Many(all) => all.len(),
        }
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        match self {
            Few::One(one, value) => (*one == key).then_some(value),
            Few::Empty => None,
            Few::Many(all) => all.get(&key),
        }
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        match self {
            Few::One(one, value) => (*one == key).then_some(value),
            Few::Empty => None,
            Few::Many(all) => all.get_mut(&key),
        }
    }

    pub(crate) fn last_key(&self) -> Option<K> {
        match self {
            Few::Empty => None,
            Few::One(key, _) => Some(*key),
            Few::Many(all) => all.last_key_value().map(|(key, _)| *key),
        }
    }

    pub(crate) fn first(&self) -> Option<(K, &V)> {
        match self {
            Few::Empty => None,
            Few::One(key, value) => Some((*key, value)),
            Few::Many(all) => all.first_key_value().map(|(key, value)| (*key, value)),
        }
    }

    /// All entries whose keys are in this range, in their order.
    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> impl Iterator<Item = (K, &V)> {
        let (one, many) = match self {
            Few::Empty => (None, None),
            Few::One(key, value) => (range.contains(key).then_some((*key, value)), None),
            Few::Many(all) => (None, Some(all.range(range))),
        };
        one.into_iter().chain(many.into_iter().flatten().map(|(key, value)| (*key, value)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.range(..)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let (one, many) = match self {
            Few::Empty => (None, None),
            Few::One(_, value) => (Some(value), None),
            Few::Many(all) => (None, Some(all.values_mut())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Replaces an entry that has this key.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self {
            Few::Many(all) => _ = all.insert(key, value),
            Few::One(one, _) if *one != key => {
                if let Few::One(one, earlier) = mem::take(self) {
                    *self = Few::Many(BTreeMap::from([(one, earlier), (key, value)]));
                }
            }
            Few::Empty | Few::One(..) => *self = Few::One(key, value),
        }
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        if let Few::Many(all) = self {
            let removed = all.remove(&key);
            if let Some((last, value)) = (all.len() == 1).then(|| all.pop_first()).flatten() {
                *self = Few::One(last, value);
            }
            return removed;
        }
        match mem::take(self) {
            Few::One(one, value) if one == key => Some(value),
            other => {
                *self = other;
                None
            }
        }
    }
}
