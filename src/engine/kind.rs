//! What differs between kinds of locks: their scripts and keys. A table, not a trait: each kind is one static.

use crate::redis::{Part, PartBuilder, Script, prefixed};

/// One kind of lock. Its scripts have one signature: keys are the lock and its channel; arguments are the hold's id,
/// a lease in ms, a hold count, and one more that depends on the script.
#[derive(Debug)]
pub(crate) struct Kind {
    /// What stands before the key in the name of the channel, see [`Kind::channel`].
    pub(crate) channel: &'static str,
    pub(crate) acquire: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    pub(crate) hand_over: Script,
    pub(crate) inspect: Script,
    pub(crate) force_unlock: Script,
}

impl Kind {
    /// The request of one hold to one of the scripts.
    pub(crate) fn part(&self, key: &str, id: &str, lease: u64, count: u32, more: &str) -> Part {
        self.words(key, id, lease, count, more).done()
    }

    pub(crate) fn words(&self, key: &str, id: &str, lease: u64, count: u32, more: &str) -> PartBuilder {
        Part::of(key).key(format_args!("{}", prefixed(self.channel, key))).arg(id).arg(lease).arg(count).arg(more)
    }

    /// Where releases of this key are published.
    pub(crate) fn channel(&self, key: &str) -> String {
        prefixed(self.channel, key).to_string()
    }
}
