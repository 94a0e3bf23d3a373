//! The holds of this process, held or requested: one entry for each name, kind of lock and owner.

use std::sync::Arc;

use dashmap::{DashMap, Entry};

use super::hold::Hold;
use crate::{kind::Kind, owner::Owner, sync::dashmap};

/// The name, the kind of lock, and the owner of a hold. Locks of one name but of different kinds are independent here.
pub(crate) type HoldKey = (Arc<str>, &'static Kind, Owner);

#[derive(Debug, Default)]
pub(crate) struct Registry {
    holds: DashMap<HoldKey, Arc<Hold>>,
}

impl Registry {
    /// The hold of this owner. Makes a new one if there is none that can be entered: a hold that has ended is about to be removed, and
    /// a hold whose waiter was passed over is being released.
    pub(crate) fn enter(&self, key: HoldKey, make: impl FnOnce() -> Hold) -> Arc<Hold> {
        match self.holds.entry(key) {
            Entry::Occupied(entry) if !entry.get().is_closed() => Arc::clone(entry.get()),
            entry => Arc::clone(&entry.insert(Arc::new(make()))),
        }
    }

    /// The hold that this owner has, lost or not.
    pub(crate) fn granted(&self, key: &HoldKey) -> Option<Arc<Hold>> {
        let found = self.holds.get(key).map(|hold| Arc::clone(&hold));
        found.filter(|hold| hold.is_granted())
    }

    /// The hold that this owner is requesting.
    pub(crate) fn asked(&self, key: &HoldKey) -> Option<Arc<Hold>> {
        let found = self.holds.get(key).map(|hold| Arc::clone(&hold));
        found.filter(|hold| hold.is_asked())
    }

    /// Removes this hold, but not a newer one under the same key.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let key = (Arc::clone(hold.name.key()), hold.kind, hold.owner.clone());
        self.holds.remove_if(&key, |_, found| Arc::ptr_eq(found, hold));
    }

    /// True if no guard is alive. Callers may still wait for holds.
    pub(crate) fn has_no_guards(&self) -> bool {
        !self.holds.iter().any(|hold| hold.is_granted())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Hold>> {
        self.holds.iter().map(|entry| Arc::clone(&entry)).collect()
    }
}
