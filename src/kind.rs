//! The differences between kinds of locks: their scripts and keys, and a few rules. A table, not a trait: each kind is one static.

use std::{
    fmt::Display,
    hash::{Hash, Hasher},
    ptr,
};

use crate::{
    decimal::Decimal,
    events::KindLabel,
    lock::{self, Mode, Waits},
    redis::{ChannelName, Part, PartBuilder, Script, prefixed},
};

/// One kind of lock. All scripts have one signature. The first key is the lock. The arguments are the id of the hold, a lease in ms, a
/// hold count, one more argument that depends on the script, and the channel; a script may omit the last of them. The channel is an argument and not a key: while a cluster
/// moves a slot, it refuses calls that name both an existing and a missing key, and a channel never exists as a key.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) channel: ChannelName,
    pub(crate) acquire: KindScript,
    pub(crate) release: KindScript,
    pub(crate) renew: KindScript,
    /// Hands the lock over to another hold of this client. `None` only if several may hold it, or if its waiters wait in line.
    pub(crate) hand_over: Option<KindScript>,
    pub(crate) inspect: KindScript,
    pub(crate) force_unlock: KindScript,
    /// An owner that holds a lock of this other kind and the same name need not wait. The last argument of `acquire` is the id of that
    /// hold, or empty.
    pub(crate) beside: Option<&'static Kind>,
    /// An owner that holds a lock of this other kind and the same name would wait for itself.
    pub(crate) barred_by: Option<&'static Kind>,
    pub(crate) rules: Rules,
}

/// A script, and the keys that it needs beside the lock itself. Only keys that must change together with the lock are listed: each listed
/// key that does not exist makes the script wait while a cluster moves the slot.
#[derive(Debug)]
pub(crate) struct KindScript {
    pub(crate) script: Script,
    keys: &'static [ExtraKey],
    args: Args,
}

/// The arguments that a script gets. Each word of a request costs the client a thousand instructions, and a renewal is sent often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Args {
    /// The id and the lease.
    Lease,
    /// All but the channel.
    NoChannel,
    All,
}

/// An additional key in the slot of the lock.
#[derive(Debug)]
pub(crate) enum ExtraKey {
    /// The lock's key with this prefix, as for the channel.
    Prefixed(&'static str),
    /// The lock's key, the id of the hold, and this suffix.
    OfHold(&'static str),
    /// The lock's key with this prefix, and the id of the request.
    OfRequest(&'static str),
    /// The lock's key with this suffix.
    Suffixed(&'static str),
}

/// Kinds that share keys on the server must not share numbers of holds: one would take a hold of the other for its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbering {
    Lock,
    Fenced,
    Fair,
    /// Of fair locks whose names have a brace: `a` and `{a}` are two locks that share one queue and its channels.
    FairWithBrace,
    ReadWrite,
    /// The same for read-write locks: these two share the keys that say when a reader's lease ends.
    ReadWriteWithBrace,
}

/// The numbers of one numbering are this far apart.
pub(crate) const NUMBERINGS: u64 = Numbering::LAST as u64 + 1;

impl Numbering {
    const LAST: Numbering = Numbering::ReadWriteWithBrace;

    /// The number of the `n`-th hold of this key.
    pub(crate) fn number(self, key: &str, n: u64) -> u64 {
        let numbering = match self {
            Numbering::Fair if key.contains('{') => Numbering::FairWithBrace,
            Numbering::ReadWrite if key.contains('{') => Numbering::ReadWriteWithBrace,
            numbering => numbering,
        };
        n * NUMBERINGS + numbering as u64
    }
}

/// Rules in which the kinds differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Its name in metrics and spans.
    pub(crate) label: KindLabel,
    /// The suffix of the ids of its holds.
    pub(crate) suffix: &'static str,
    /// Several owners may hold it at once. Owners of one client then share one hold on the server, which counts it once, unless the machine's
    /// rules are [for permits](lock::Waits::are_for_permits).
    pub(crate) shared: bool,
    /// The numbers of its holds.
    pub(crate) numbering: Numbering,
    /// The server returns a fencing token when it grants the lock or hands it over.
    pub(crate) has_token: bool,
    /// Those that the state machine follows. Two kinds of one lock have the same.
    pub(crate) machine: lock::Rules,
}

/// The suffix of the field of a hold that was released before its `min_hold` was over.
const REST: &str = ":rest";

impl Rules {
    /// The rules of a lock that one owner holds at a time, and whose waiters wait in a queue of this process.
    pub(crate) const PLAIN: Rules = Rules {
        label: KindLabel::Lock,
        suffix: "",
        shared: false,
        numbering: Numbering::Lock,
        has_token: false,
        machine: lock::Rules { waits: Waits::Here, passes_on: true, sure: None },
    };

    /// True if this is the id of a hold of this kind, held or resting. Ids do not distinguish kinds without a suffix.
    pub(crate) fn is_of_kind(&self, id: &str) -> bool {
        id.strip_suffix(REST).unwrap_or(id).ends_with(self.suffix)
    }
}

impl KindScript {
    pub(crate) const fn new(source: &'static str, keys: &'static [ExtraKey]) -> KindScript {
        KindScript { script: Script::new(source), keys, args: Args::All }
    }

    /// A script that gets the id and the lease only.
    pub(crate) const fn of_lease(source: &'static str, keys: &'static [ExtraKey]) -> KindScript {
        KindScript { script: Script::new(source), keys, args: Args::Lease }
    }

    /// The same. The server then tells if others change the lock.
    pub(crate) const fn tracked(source: &'static str, keys: &'static [ExtraKey]) -> KindScript {
        KindScript { script: Script::tracked(source), keys, args: Args::Lease }
    }

    /// A script that gets no channel.
    pub(crate) const fn without_channel(source: &'static str, keys: &'static [ExtraKey]) -> KindScript {
        KindScript { script: Script::new(source), keys, args: Args::NoChannel }
    }

    /// A script that also reads keys of other holds, which it finds by itself.
    pub(crate) const fn of_other_holds(source: &'static str, keys: &'static [ExtraKey]) -> KindScript {
        KindScript { script: Script::of_other_keys(source), keys, args: Args::All }
    }
}

impl Kind {
    /// The request of one hold for one of the scripts.
    pub(crate) fn part(
        &self,
        script: &KindScript,
        key: &str,
        (id, lease, count): (impl Display, impl Display, impl Display),
        more: impl Display,
    ) -> Part {
        self.words(script, key, (id, lease, count), more).done()
    }

    pub(crate) fn words(
        &self,
        script: &KindScript,
        key: &str,
        (id, lease, count): (impl Display, impl Display, impl Display),
        more: impl Display,
    ) -> PartBuilder {
        let keys = script.keys.iter().fold(Part::of(key), |part, extra| match extra {
            ExtraKey::Prefixed(prefix) => part.key(format_args!("{}", prefixed(prefix, key))),
            ExtraKey::OfRequest(prefix) => part.key(format_args!("{}:{id}", prefixed(prefix, key))),
            ExtraKey::Suffixed(suffix) if key.contains('{') => part.key(format_args!("{key}:{suffix}")),
            ExtraKey::Suffixed(suffix) => part.key(format_args!("{{{key}}}:{suffix}")),
            ExtraKey::OfHold(suffix) if key.contains('{') => part.key(format_args!("{key}:{id}:{suffix}")),
            ExtraKey::OfHold(suffix) => part.key(format_args!("{{{key}}}:{id}:{suffix}")),
        });
        let words = keys.arg(id).arg(lease);
        match script.args {
            Args::Lease => words,
            Args::NoChannel => words.arg(count).arg(more),
            Args::All => words.arg(count).arg(more).arg(self.channel.of(key)),
        }
    }

    /// A request that confirms a hold and extends its lease (0: only confirms).
    pub(crate) fn renew_part(&self, key: &str, (id, lease): (impl Display, impl Display), count: u32) -> Part {
        self.part(&self.renew, key, (id, lease, Decimal(count.into())), "")
    }

    /// The two kinds of one lock that several may hold at once, and the one kind of others.
    pub(crate) fn of_mode(&'static self, mode: Mode) -> &'static Kind {
        match mode {
            Mode::Exclusive => self.beside.unwrap_or(self),
            Mode::Shared => self.barred_by.unwrap_or(self),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.rules.shared { Mode::Shared } else { Mode::Exclusive }
    }

    /// The channel on which releases of this key are published.
    pub(crate) fn channel(&self, key: &str) -> String {
        self.channel.of(key).to_string()
    }
}

/// Each kind is one static, so two references are equal if they have the same address.
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
