//! Who holds or asks for what in this process: one entry per (name, owner).

use std::sync::Arc;

use dashmap::{DashMap, Entry};

use super::hold::Hold;
use crate::{config::Name, owner::Owner, sync::dashmap};

#[derive(Debug, Default)]
pub(crate) struct Registry {
    holds: DashMap<(Arc<str>, Owner), Arc<Hold>>,
}

impl Registry {
    /// The hold of this owner, made now if there is none that can be entered: one that is over is about to be
    /// taken out, one whose asker was passed over is given back.
    pub(crate) fn enter(&self, name: &Name, owner: &Owner, make: impl FnOnce() -> Hold) -> Arc<Hold> {
        match self.holds.entry((Arc::clone(name.key()), owner.clone())) {
            Entry::Occupied(entry) if !entry.get().is_closed() => Arc::clone(entry.get()),
            entry => Arc::clone(&entry.insert(Arc::new(make()))),
        }
    }

    /// Takes out this hold, and no other that may have taken its place.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let key = (Arc::clone(hold.name.key()), hold.owner.clone());
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
