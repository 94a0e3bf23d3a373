//! What differs between kinds of locks: their scripts and keys, and a few rules. A table, not a trait: each kind is one static.

use std::{
    hash::{Hash, Hasher},
    ptr,
    time::Duration,
};

use crate::redis::{Part, PartBuilder, Script, prefixed};

/// One kind of lock. Its scripts have one signature: the first key is the lock; arguments are the hold's id, a lease in ms, a
/// hold count, one more that depends on the script, and the channel. That is no key: while a cluster moves a slot it refuses
/// whatever names one key that is there and one that is not, and a channel never is.
#[derive(Debug)]
pub(crate) struct Kind {
    /// What stands before the key in the name of the channel, see [`Kind::channel`].
    pub(crate) channel: &'static str,
    pub(crate) acquire: KindScript,
    pub(crate) release: KindScript,
    pub(crate) renew: KindScript,
    /// To another hold of this client; `None` where that would help nobody.
    pub(crate) hand_over: Option<KindScript>,
    pub(crate) inspect: KindScript,
    pub(crate) force_unlock: KindScript,
    /// An owner that holds this kind of the same name need not wait: the last argument of `acquire` is the id of that hold, or
    /// nothing.
    pub(crate) beside: Option<&'static Kind>,
    /// An owner that holds this kind of the same name would wait for itself.
    pub(crate) barred_by: Option<&'static Kind>,
    pub(crate) rules: Rules,
}

/// A script, and the keys that it needs beside the lock itself. Only what must be in step with the lock is a key: each of them
/// that is not there keeps the script waiting while a cluster moves its slot.
#[derive(Debug)]
pub(crate) struct KindScript {
    pub(crate) script: Script,
    keys: &'static [ExtraKey],
}

/// A key beside the lock's, in the same slot.
#[derive(Debug)]
pub(crate) enum ExtraKey {
    /// Made from the lock's key with this before it, as the channel is.
    Prefixed(&'static str),
    /// Made from the lock's key and the hold's id with this after them.
    OfHold(&'static str),
}

/// Where those wait who find it taken, and what the server knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// In a queue of this process, whose head asks.
    Here,
    /// The same, and the head leaves a mark on the server beside holders of the other kind.
    Marked,
    /// In a line of the server's: each asks for itself, and is called on a channel of its own.
    InLine,
}

/// Where kinds behave differently.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// What ends the ids of its holds.
    pub(crate) suffix: &'static str,
    /// Several owners may hold it at once.
    pub(crate) shared: bool,
    pub(crate) waits: Waits,
    /// It may go from hold to hold in this process without the server being asked.
    pub(crate) passes_on: bool,
    /// The server names a fencing token when it grants it or hands it over.
    pub(crate) has_token: bool,
    /// Others may bring its end nearer, but not nearer than this: it is certain for no longer after each look.
    pub(crate) sure: Option<Duration>,
}

impl Rules {
    /// Of a lock that one owner has at a time, and that waits in a queue of this process.
    pub(crate) const PLAIN: Rules =
        Rules { suffix: "", shared: false, waits: Waits::Here, passes_on: true, has_token: false, sure: None };

    /// Its waiters may leave a mark on the server for three seconds, with which they claim the next turn.
    pub(super) fn has_mark(&self) -> bool {
        self.shared || self.waits == Waits::Marked
    }

    /// How long what a waiter leaves on the server can stay there by itself.
    pub(super) fn trace(&self) -> Duration {
        match self.waits {
            Waits::Here => Duration::ZERO, // a reader's claim does not make its holds last longer
            Waits::Marked => Duration::from_secs(3),
            Waits::InLine => Duration::from_secs(30),
        }
    }

    /// The longest sleep between two attempts beside that holder: what a message lost on the way can cost, if the lease does not
    /// end sooner. A mark must not end meanwhile, be it `claimed` or left beside a holder of the other kind; those who are next in a
    /// line notice in time that the one before them does not come.
    pub(crate) fn longest_nap(&self, holder: Option<&str>, place: Option<u64>, claimed: bool) -> Duration {
        let is_marked = || !holder.is_some_and(|holder| holder.ends_with(self.suffix));
        if claimed {
            return Duration::from_secs(1);
        }
        match self.waits {
            Waits::Marked if is_marked() => Duration::from_secs(1),
            Waits::InLine if place.is_none_or(|place| place <= 2) => Duration::from_millis(2_500),
            Waits::Here | Waits::Marked | Waits::InLine => Duration::from_secs(5),
        }
    }

    /// After a release others go first, for they are told of it at the same moment.
    pub(crate) fn yields(&self) -> bool {
        !self.shared && self.waits != Waits::InLine
    }
}

impl KindScript {
    pub(crate) const fn new(source: &'static str, keys: &'static [ExtraKey]) -> KindScript {
        KindScript { script: Script::new(source), keys }
    }
}

impl Kind {
    /// The request of one hold to one of the scripts.
    pub(crate) fn part(
        &self,
        script: &KindScript,
        key: &str,
        (id, lease, count): (&str, u64, u32),
        more: &str,
    ) -> Part {
        self.words(script, key, (id, lease, count), more).done()
    }

    pub(crate) fn words(
        &self,
        script: &KindScript,
        key: &str,
        (id, lease, count): (&str, u64, u32),
        more: &str,
    ) -> PartBuilder {
        let keys = script.keys.iter().fold(Part::of(key), |part, extra| match extra {
            ExtraKey::Prefixed(prefix) => part.key(format_args!("{}", prefixed(prefix, key))),
            ExtraKey::OfHold(suffix) if key.contains('{') => part.key(format_args!("{key}:{id}:{suffix}")),
            ExtraKey::OfHold(suffix) => part.key(format_args!("{{{key}}}:{id}:{suffix}")),
        });
        keys.arg(id).arg(lease).arg(count).arg(more).arg(prefixed(self.channel, key))
    }

    /// Whether `acquire` has an argument after the channel: [`Kind::beside`], or what is claimed, or the publish command, with which the next in a line
    /// is called.
    pub(super) fn has_last_word(&self) -> bool {
        self.beside.is_some() || self.rules.waits == Waits::InLine
    }

    /// On the server it has the lease of another kind too, which its owner may hold beside it and keep.
    pub(super) fn may_outlast_its_lease(&self) -> bool {
        self.barred_by.is_some()
    }

    /// Where releases of this key are published.
    pub(crate) fn channel(&self, key: &str) -> String {
        prefixed(self.channel, key).to_string()
    }
}

/// Each kind is one static, so it is the same if it is in the same place.
impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for Kind {}

impl Hash for Kind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::hash(self, state);
    }
}
