//! The ways in which a request can fail, by two questions: may it have run, and does it make sense to send it again?

use std::{fmt, sync::Arc, time::Duration};

use super::{
    denial::{Denial, Right},
    keys::SLOTS,
    script::{Part, Script},
};
use crate::error::Source;

/// The reason for which there is no usable reply.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// No reply, or the reply to another request: the script may have run, may still run later, or neither.
    Unknown(Source),
    /// An error that does not say whether the script has run.
    Unclear(Source),
    /// There was no connection to send it on: it has not run.
    NotSent(Source),
    /// Refused for now (loading, busy, read-only after a failover): it has not run.
    NotReady(Source),
    /// Its memory is full: it has not run.
    NoMemory(Source),
    /// A cluster keeps the key elsewhere: it has not run.
    Elsewhere(Arc<Redirection>, Source),
    /// The user lacks a permission.
    Denied(Denial),
    /// The key is of another type.
    Conflict,
    /// Any other refusal.
    Server(Source),
    /// This client has closed its connections.
    Closed,
    /// The runtime of the connections has ended.
    Abandoned,
}

/// The place to which a server of a cluster redirects a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(super) slot: u16,
    /// `host:port`. If the host is empty, it is the host of the server that replied.
    pub(super) to: String,
    /// True for ASK: the slot is being moved. Only this request goes there, after an ASKING.
    pub(super) asking: bool,
}

impl Redirection {
    /// From `MOVED slot host:port` and `ASK slot host:port`.
    fn read(words: &str) -> Option<Redirection> {
        let mut words = words.split(' ');
        let asking = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let slot = words.next()?.parse().ok().filter(|slot| *slot < SLOTS)?;
        Some(Redirection { slot, to: words.next()?.to_owned(), asking })
    }
}

/// The beginnings of error messages that mean "try again later".
const NOT_READY: [&str; 11] = [
    "LOADING",
    "BUSY ",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "UNBLOCKED",
    "MISCONF",
    NO_SCRIPT, // forgotten again since it was loaded
    "ERR max number of clients",
];

/// Words of errors that no retry would change. Redis writes the first two, the others are those of services that have not every command.
const FOR_GOOD: [&str; 7] = [
    "unknown command",
    "unknown subcommand",
    "not supported",
    "unsupported",
    "not allowed",
    "not available",
    "disabled",
];
const NO_SCRIPT: &str = "NOSCRIPT";
/// The error for a call whose keys are in several slots of a cluster.
const ACROSS_SLOTS: &str = "CROSSSLOT";
/// The error for a script that reads a key that it does not name, while the slot of that key is being moved.
const IS_MOVING: &str = "access a non local key in a cluster node";
/// The server's error for a script that writes while the cluster is down. With `cluster-allow-reads-when-down` the server starts the script,
/// as if it only read.
const IS_DOWN: &str = "while the cluster is down";
/// The longest pause after a refused login. It is longer than other pauses: each attempt costs the server a login, and the reason lasts.
pub(super) const LAST_PAUSE_OUTSIDE: Duration = Duration::from_secs(5);

/// The refusals after which a request is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// Temporary ones.
    Usual,
    /// Temporary ones, except a lack of memory: the sender can work without this request.
    Modest,
    /// All of them: a release is sent until it succeeds.
    Insistent,
}

impl Fault {
    /// The longest pause between two attempts after this fault; `usual` is the longest one after other faults.
    pub(crate) fn last_pause(&self, usual: Duration) -> Duration {
        if matches!(self, Fault::Denied(_)) { LAST_PAUSE_OUTSIDE } else { usual }
    }

    /// True if there will be no connection soon.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Fault::Denied(_) | Fault::Closed)
    }

    /// True if it makes sense to send the same request again later.
    pub(crate) fn is_for_now(&self, persistence: Persistence) -> bool {
        match self {
            Fault::NotReady(_) => true,
            Fault::NoMemory(_) => persistence != Persistence::Modest,
            Fault::Server(_) => persistence == Persistence::Insistent,
            _ => false,
        }
    }

    /// The message behind it, if there is one.
    pub(crate) fn source(self) -> Option<Source> {
        match self {
            Fault::Unknown(source)
            | Fault::Unclear(source)
            | Fault::NotSent(source)
            | Fault::NotReady(source)
            | Fault::NoMemory(source)
            | Fault::Elsewhere(_, source)
            | Fault::Server(source) => Some(source),
            Fault::Denied(denial) => Some(denial.source),
            Fault::Conflict | Fault::Closed | Fault::Abandoned => None,
        }
    }

    /// Reads the error message of the server; `source` is the error that contains it.
    pub(crate) fn refused(words: &str, source: Source) -> Fault {
        let words = unwrapped(words);
        let starts = |list: &[&str]| list.iter().any(|word| words.starts_with(word));
        if starts(&NOT_READY) || words.contains(IS_MOVING) || words.contains(IS_DOWN) {
            Fault::NotReady(source)
        } else if starts(&["OOM "]) {
            Fault::NoMemory(source)
        } else if let Some(right) = Right::read(words) {
            Fault::Denied(Denial { right, source })
        } else if let Some(redirection) = Redirection::read(words) {
            Fault::Elsewhere(Arc::new(redirection), source)
        } else if words.starts_with("WRONGTYPE") || words.contains("hash value is not an integer") {
            Fault::Conflict
        } else {
            Fault::Server(source)
        }
    }

    /// Reads the error message of one failed part of a script.
    pub(crate) fn said(words: &str) -> Fault {
        Fault::refused(words, source(words))
    }

    /// Adds the names that the server has left out, from the request.
    pub(super) fn of(self, script: &Script, part: &Part) -> Fault {
        match self {
            Fault::Denied(denial) => Fault::Denied(denial.of(script, part)),
            other => other,
        }
    }

    /// Adds the keys that the user may not access, if the server does not name them. An empty list means unknown.
    pub(super) fn lacking(self, keys: Vec<String>) -> Fault {
        match self {
            Fault::Denied(Denial { right: Right::Keys(names), source }) if names.is_empty() => {
                Fault::Denied(Denial { right: Right::Keys(keys), source })
            }
            other => other,
        }
    }

    /// The fault of a whole call of a script. A proxy may write an error of its own after the server has run the call, for example because it
    /// lost its connection to the server. So an error with other words than those of Redis does not say whether the script has run.
    pub(super) fn of_whole_call(self) -> Fault {
        let is_known = |words: &str| words.contains(ACROSS_SLOTS) || FOR_GOOD.iter().any(|known| words.contains(known));
        match self {
            Fault::Server(source) if !is_known(&source.to_string()) => Fault::Unclear(source),
            other => other,
        }
    }

    /// True if only a replica refuses so. It says `MASTERDOWN` while it has no copy of its master, with `replica-serve-stale-data no`.
    pub(super) fn is_by_a_replica(&self) -> bool {
        let says = |words: &str| words.contains("READONLY") || words.contains("MASTERDOWN");
        matches!(self, Fault::NotReady(source) if says(&source.to_string()))
    }

    /// True if the server refuses, or does not know, the command that was sent, and serves others.
    pub(super) fn is_about_this_command(&self) -> bool {
        match self {
            Fault::Denied(denial) => matches!(denial.right, Right::Commands(_)),
            Fault::Server(source) => source.to_string().starts_with("ERR "),
            _ => false,
        }
    }

    /// True if the server has forgotten the script, or was never told it.
    pub(super) fn is_of_an_unknown_script(&self) -> bool {
        matches!(self, Fault::NotReady(source) if source.to_string().contains(NO_SCRIPT))
    }

    /// True if the server refuses a whole call because of some of its parts.
    pub(super) fn is_for_some_keys(&self) -> bool {
        matches!(self, Fault::Denied(Denial { right: Right::Keys(_), .. }))
    }

    /// True if the server is a cluster, and the keys of a call are in several slots.
    pub(super) fn is_across_slots(&self) -> bool {
        matches!(self, Fault::Server(source) if source.to_string().contains(ACROSS_SLOTS))
    }

    /// Adds the server that the fault is about, unless it is there already.
    pub(super) fn at(self, server: impl fmt::Display) -> Fault {
        self.with_source(|cause| if server_in(&cause).is_some() { cause } else { source_at(&server, cause) })
    }

    pub(super) fn with_source(self, new: impl FnOnce(Source) -> Source) -> Fault {
        match self {
            Fault::Unknown(cause) => Fault::Unknown(new(cause)),
            Fault::Unclear(cause) => Fault::Unclear(new(cause)),
            Fault::NotSent(cause) => Fault::NotSent(new(cause)),
            Fault::NotReady(cause) => Fault::NotReady(new(cause)),
            Fault::NoMemory(cause) => Fault::NoMemory(new(cause)),
            Fault::Elsewhere(there, cause) => Fault::Elsewhere(there, new(cause)),
            Fault::Server(cause) => Fault::Server(new(cause)),
            Fault::Denied(Denial { right, source }) => Fault::Denied(Denial { right, source: new(source) }),
            Fault::Conflict | Fault::Closed | Fault::Abandoned => self,
        }
    }

    pub(crate) fn unknown(what: &str) -> Fault {
        Fault::Unknown(source(what))
    }

    pub(crate) fn not_sent(why: &str) -> Fault {
        Fault::NotSent(source(why))
    }
}

/// A cause, and the server that it is about.
#[derive(Debug, thiserror::Error)]
#[error("{server}: {cause}")]
struct At {
    server: String,
    cause: Source,
}

pub(crate) fn source_at(server: &impl fmt::Display, cause: Source) -> Source {
    Arc::new(At { server: server.to_string(), cause })
}

/// The server that a cause is about, if the cause names it.
pub(crate) fn server_in(cause: &Source) -> Option<&str> {
    cause.downcast_ref::<At>().map(|at| &*at.server)
}

/// A message as the cause of an error.
pub(crate) fn source(words: &str) -> Source {
    Source::from(Box::<dyn std::error::Error + Send + Sync>::from(words))
}

/// The error message of a command inside a script. Before version 7, Redis writes the place in the script before it, as in
/// `@user_script: 9: -READONLY You can't write ..`, and sometimes twice.
fn unwrapped(words: &str) -> &str {
    let Some((_, after)) = words.rsplit_once("@user_script:") else { return words };
    let rest = after.trim_start().trim_start_matches(|char: char| char.is_ascii_digit()).strip_prefix(':');
    match rest.map(|rest| rest.trim_start().trim_start_matches('-')) {
        Some(rest) if !rest.is_empty() => rest,
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_server() {
        assert!(matches!(Fault::said("LOADING Redis is loading the dataset in memory"), Fault::NotReady(_)));
        assert!(matches!(Fault::said("NOPERM this user has no permissions"), Fault::Denied(_)));
        let inside = "ERR The user executing the script can't run this command or subcommand";
        assert!(matches!(Fault::said(inside), Fault::Denied(_)));
        assert!(matches!(Fault::said("WRONGTYPE Operation against a key"), Fault::Conflict));
        assert!(matches!(Fault::said("MISCONF Redis is configured to save RDB snapshots"), Fault::NotReady(_)));
        assert!(matches!(Fault::said("ERR max number of clients reached"), Fault::NotReady(_)));
        assert!(matches!(Fault::said("NOSCRIPT No matching script. Please use EVAL."), Fault::NotReady(_)));
        let old = "@user_script: 9: @user_script: 9: -READONLY You can't write against a read only replica.";
        assert!(matches!(Fault::said(old), Fault::NotReady(_)));
        let old = "ERR Error running script (call to f_6b1): @user_script:7: WRONGTYPE Operation against a key";
        assert!(matches!(Fault::said(old), Fault::Conflict));
        let new = "WRONGTYPE Operation against a key script: 6b1, on @user_script:7.";
        assert!(matches!(Fault::said(new), Fault::Conflict));
        let to = |asking| Redirection { slot: 7, to: "h:1".into(), asking };
        assert!(matches!(Fault::said("MOVED 7 h:1"), Fault::Elsewhere(there, _) if *there == to(false)));
        assert!(matches!(Fault::said("ASK 7 h:1"), Fault::Elsewhere(there, _) if *there == to(true)));
        for odd in ["MOVED 16384 h:1", "MOVED -1 h:1", "ASK 70000 h:1", "MOVED h:1", "MOVED"] {
            assert!(matches!(Fault::said(odd), Fault::Server(_)), "{odd}");
        }
        let moving = "ERR Script attempted to access a non local key in a cluster node script: 6b1, on @user_script:9.";
        assert!(matches!(Fault::said(moving), Fault::NotReady(_)));
        for down in ["Lua script attempted to execute a write command", "Script attempted to execute a write command"] {
            let down = format!("ERR {down} while the cluster is down and readonly script: 6b1, on @user_script:9.");
            assert!(matches!(Fault::said(&down), Fault::NotReady(_)));
        }
        let full = Fault::said("OOM command not allowed");
        assert!(matches!(full, Fault::NoMemory(_)) && full.is_for_now(Persistence::Usual));
        assert!(!full.is_for_now(Persistence::Modest));
        let other = Fault::said("ERR value is not an integer or out of range");
        assert!(other.is_for_now(Persistence::Insistent) && !other.is_for_now(Persistence::Usual));
    }
}
