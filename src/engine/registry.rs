//! Who holds or asks for what in this process: one entry per name, kind of lock and owner.

use std::sync::Arc;

use dashmap::{DashMap, Entry};

use super::{hold::Hold, kind::Kind};
use crate::{owner::Owner, sync::dashmap};

/// Whose hold of what. Kinds of one name do not know of each other.
pub(crate) type HoldKey = (Arc<str>, &'static Kind, Owner);

#[derive(Debug, Default)]
pub(crate) struct Registry {
    holds: DashMap<HoldKey, Arc<Hold>>,
}

impl Registry {
    /// The hold of this owner, made now if there is none that can be entered: one that is over is about to be
    /// taken out, one whose asker was passed over is given back.
    pub(crate) fn enter(&self, key: HoldKey, make: impl FnOnce() -> Hold) -> Arc<Hold> {
        match self.holds.entry(key) {
            Entry::Occupied(entry) if !entry.get().is_closed() => Arc::clone(entry.get()),
            entry => Arc::clone(&entry.insert(Arc::new(make()))),
        }
    }

    /// The hold that an owner has there, lost or not.
    pub(crate) fn granted(&self, key: &HoldKey) -> Option<Arc<Hold>> {
        let found = self.holds.get(key).map(|hold| Arc::clone(&hold));
        found.filter(|hold| hold.is_granted())
    }

    /// Takes out this hold, and no other that may have taken its place.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let key = (Arc::clone(hold.name.key()), hold.kind, hold.owner.clone());
        self.holds.remove_if(&key, |_, found| Arc::ptr_eq(found, hold));
    }

    /// No guard is alive; holds may still be asked for.
    pub(crate) fn has_no_guards(&self) -> bool {
        !self.holds.iter().any(|hold| hold.is_granted())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Hold>> {
        self.holds.iter().map(|entry| Arc::clone(&entry)).collect()
    }
}
