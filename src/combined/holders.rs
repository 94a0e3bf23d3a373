//! The guards of each owner in this process: an owner that has lost the lock does not acquire it afresh while it has a guard of it.

use std::sync::{Arc, Weak};

use dashmap::{DashMap, Entry};

use super::server_guards::Servers;
use crate::{error::Lost, owner::Owner};

type Key = (Arc<str>, Owner);

/// By the names of the locks and the owners.
#[derive(Debug, Clone, Default)]
pub(super) struct Holders(Arc<DashMap<Key, Vec<Weak<Servers>>>>);

/// Removes a guard from them when dropped.
#[derive(Debug)]
pub(super) struct Listed {
    holders: Holders,
    key: Key,
    guard: Weak<Servers>,
}

impl Holders {
    /// Why one of the guards that this owner has is lost.
    pub(super) fn loss(&self, name: &Arc<str>, owner: &Owner) -> Option<Lost> {
        let key = (Arc::clone(name), owner.clone());
        // Not asked inside: what is dropped there last may send releases.
        let guards: Vec<_> = self.0.get(&key)?.iter().filter_map(Weak::upgrade).collect();
        guards.iter().find_map(|guard| guard.loss_of_a_holder())
    }

    pub(super) fn list(&self, name: &Arc<str>, owner: &Owner, guard: &Arc<Servers>) -> Listed {
        let (key, guard) = ((Arc::clone(name), owner.clone()), Arc::downgrade(guard));
        self.0.entry(key.clone()).or_default().push(Weak::clone(&guard));
        Listed { holders: self.clone(), key, guard }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let Entry::Occupied(mut guards) = self.holders.0.entry(self.key.clone()) else { return };
        guards.get_mut().retain(|guard| !Weak::ptr_eq(guard, &self.guard));
        if guards.get().is_empty() {
            guards.remove();
        }
    }
}
