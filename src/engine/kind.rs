//! What differs between kinds of locks: their scripts and keys. A table, not a trait: each kind is one static.

use crate::redis::{Part, Script};

/// One kind of lock. Its scripts have one signature: keys are the lock and its channel; arguments are the hold's id,
/// a lease in ms, a level, and one more that depends on the script.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) channel: fn(&str) -> String,
    pub(crate) acquire: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    pub(crate) hand_over: Script,
    pub(crate) inspect: Script,
    pub(crate) force_unlock: Script,
}

impl Kind {
    /// The request of one hold to one of the scripts.
    pub(crate) fn part(&self, key: &str, id: &str, lease: u64, level: u32, more: &str) -> Part {
        let keys = vec![key.to_owned(), (self.channel)(key)];
        Part::new(keys, vec![id.to_owned(), lease.to_string(), level.to_string(), more.to_owned()])
    }
}
