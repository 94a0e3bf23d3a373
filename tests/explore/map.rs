//! A map with the names of dashmap's and one lock for all of it. What is done under a shard's lock there is done under
//! the one lock here: an entry, a removal with its condition, an iteration.

use std::{
    borrow::Borrow,
    ops::{Deref, DerefMut},
    rc::Rc,
};

use super::locks::{Mutex, MutexGuard};

/// In the order of arrival, so that every execution can be repeated.
type Entries<K, V> = Vec<(K, V)>;

#[derive(Debug)]
pub(crate) struct DashMap<K, V>(Mutex<Entries<K, V>>);

impl<K, V> Default for DashMap<K, V> {
    fn default() -> DashMap<K, V> {
        DashMap(Mutex::new(Vec::new()))
    }
}

impl<K: Eq, V> DashMap<K, V> {
    pub(crate) fn new() -> DashMap<K, V> {
        DashMap::default()
    }

    pub(crate) fn entry(&self, key: K) -> Entry<'_, K, V> {
        let entries = self.lock();
        match find(&entries, &key) {
            Some(at) => Entry::Occupied(Ref { entries, at }),
            None => Entry::Vacant(entries, key),
        }
    }

    pub(crate) fn get<Q: Eq + ?Sized>(&self, key: &Q) -> Option<Ref<'_, K, V>>
    where
        K: Borrow<Q>,
    {
        let entries = self.lock();
        let at = find(&entries, key)?;
        Some(Ref { entries, at })
    }

    pub(crate) fn get_mut<Q: Eq + ?Sized>(&self, key: &Q) -> Option<Ref<'_, K, V>>
    where
        K: Borrow<Q>,
    {
        self.get(key)
    }

    pub(crate) fn insert(&self, key: K, value: V) -> Option<V> {
        let mut entries = self.lock();
        match find(&entries, &key) {
            Some(at) => Some(std::mem::replace(&mut entries[at].1, value)),
            None => {
                entries.push((key, value));
                None
            }
        }
    }

    pub(crate) fn remove<Q: Eq + ?Sized>(&self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        self.remove_if_mut(key, |_, _| true)
    }

    pub(crate) fn remove_if<Q: Eq + ?Sized>(&self, key: &Q, is_due: impl FnOnce(&K, &V) -> bool) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        self.remove_if_mut(key, |key, value| is_due(key, value))
    }

    pub(crate) fn remove_if_mut<Q: Eq + ?Sized>(
        &self,
        key: &Q,
        is_due: impl FnOnce(&K, &mut V) -> bool,
    ) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let mut entries = self.lock();
        let at = find(&entries, key)?;
        let (key, value) = &mut entries[at];
        is_due(key, value).then(|| entries.remove(at))
    }

    pub(crate) fn retain(&self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.lock().retain_mut(|(key, value)| keep(key, value));
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        Iter { entries: Rc::new(self.lock()), next: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Entries<K, V>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn find<K: Borrow<Q>, V, Q: Eq + ?Sized>(entries: &Entries<K, V>, key: &Q) -> Option<usize> {
    entries.iter().position(|(known, _)| known.borrow() == key)
}

pub(crate) enum Entry<'a, K, V> {
    Occupied(Ref<'a, K, V>),
    Vacant(MutexGuard<'a, Entries<K, V>>, K),
}

impl<'a, K, V> Entry<'a, K, V> {
    pub(crate) fn or_default(self) -> Ref<'a, K, V>
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    pub(crate) fn or_insert(self, value: V) -> Ref<'a, K, V> {
        self.or_insert_with(|| value)
    }

    pub(crate) fn or_insert_with(self, make: impl FnOnce() -> V) -> Ref<'a, K, V> {
        match self {
            Entry::Occupied(entry) => entry,
            vacant => vacant.insert(make()),
        }
    }

    pub(crate) fn insert(self, value: V) -> Ref<'a, K, V> {
        match self {
            Entry::Occupied(mut entry) => {
                *entry = value;
                entry
            }
            Entry::Vacant(mut entries, key) => {
                entries.push((key, value));
                let at = entries.len() - 1;
                Ref { entries, at }
            }
        }
    }
}

/// One entry, with the map locked.
pub(crate) struct Ref<'a, K, V> {
    entries: MutexGuard<'a, Entries<K, V>>,
    at: usize,
}

impl<K, V> Ref<'_, K, V> {
    pub(crate) fn get(&self) -> &V {
        self
    }
}

impl<K, V> Deref for Ref<'_, K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.entries[self.at].1
    }
}

impl<K, V> DerefMut for Ref<'_, K, V> {
    fn deref_mut(&mut self) -> &mut V {
        &mut self.entries[self.at].1
    }
}

pub(crate) struct Iter<'a, K, V> {
    entries: Rc<MutexGuard<'a, Entries<K, V>>>,
    next: usize,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = Item<'a, K, V>;

    fn next(&mut self) -> Option<Item<'a, K, V>> {
        let at = self.next;
        self.next += 1;
        (at < self.entries.len()).then(|| Item { entries: Rc::clone(&self.entries), at })
    }
}

pub(crate) struct Item<'a, K, V> {
    entries: Rc<MutexGuard<'a, Entries<K, V>>>,
    at: usize,
}

impl<K, V> Item<'_, K, V> {
    pub(crate) fn key(&self) -> &K {
        &self.entries[self.at].0
    }
}

impl<K, V> Deref for Item<'_, K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.entries[self.at].1
    }
}
