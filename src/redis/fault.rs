//! What can become of a request, in the only terms that matter: may it have run, and is it worth sending again.

use std::sync::Arc;

use super::{
    denial::{Denial, Right},
    script::{Part, Script},
};
use crate::error::Source;

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// No reply, or somebody else's: the script may have run, may yet run, or neither.
    Unknown(Source),
    /// There was no connection to send it on: it has not run.
    NotSent(Source),
    /// Refused for now (loading, busy, read-only after a failover): it has not run.
    NotReady(Source),
    /// A cluster keeps the key elsewhere: it has not run.
    Elsewhere(Arc<Redirection>, Source),
    /// Not allowed.
    Denied(Denial),
    /// The key is of another type.
    Conflict,
    /// Any other refusal.
    Server(Source),
    /// We have closed the connections ourselves.
    Closed,
    /// The runtime that the connections live on has ended.
    Abandoned,
}

/// Where a server of a cluster sends us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirection {
    pub(super) slot: u16,
    /// `host:port`; without a host it is that of the server which says so.
    pub(super) to: String,
    /// For this request alone, which must be announced there: the slot is on the move.
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
        Some(Redirection { slot: words.next()?.parse().ok()?, to: words.next()?.to_owned(), asking })
    }
}

/// First words of answers that mean "later".
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
    "NOSCRIPT", // forgotten again since it was loaded
    "ERR max number of clients",
];

impl Fault {
    /// Whether the same request may be answered otherwise later. A server without memory stays so for long, so that is
    /// told to who asks for something; who `insists` gives something back, and asks until it is taken.
    pub(crate) fn is_for_now(&self, insists: bool) -> bool {
        match self {
            Fault::NotReady(_) => true,
            Fault::Server(_) => insists,
            _ => false,
        }
    }

    /// The words behind it, where there are some.
    pub(crate) fn source(self) -> Option<Source> {
        match self {
            Fault::Unknown(source)
            | Fault::NotSent(source)
            | Fault::NotReady(source)
            | Fault::Elsewhere(_, source)
            | Fault::Server(source) => Some(source),
            Fault::Denied(denial) => Some(denial.source),
            Fault::Conflict | Fault::Closed | Fault::Abandoned => None,
        }
    }

    /// From the server's words, with the error that carries them.
    pub(crate) fn refused(words: &str, source: Source) -> Fault {
        let words = unwrapped(words);
        let starts = |list: &[&str]| list.iter().any(|word| words.starts_with(word));
        if starts(&NOT_READY) {
            Fault::NotReady(source)
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

    /// From the words of a failed part of a script.
    pub(crate) fn said(words: &str) -> Fault {
        Fault::refused(words, source(words))
    }

    /// Not let in, whatever the words.
    pub(super) fn not_let_in(words: &str, source: Source) -> Fault {
        Fault::Denied(Denial { right: Right::read(words).unwrap_or_else(Right::login), source })
    }

    /// With what the server has left out, from what it was asked.
    pub(super) fn of(self, script: &Script, part: &Part) -> Fault {
        match self {
            Fault::Denied(denial) => Fault::Denied(denial.of(script, part)),
            other => other,
        }
    }

    /// For want of these keys, where the server does not say which. None: it is not known.
    pub(super) fn lacking(self, keys: Vec<String>) -> Fault {
        match self {
            Fault::Denied(Denial { right: Right::Keys(names), source }) if names.is_empty() => {
                Fault::Denied(Denial { right: Right::Keys(keys), source })
            }
            other => other,
        }
    }

    /// Whether a call is refused as a whole for the sake of some of its parts.
    pub(super) fn is_for_some_keys(&self) -> bool {
        matches!(self, Fault::Denied(Denial { right: Right::Keys(_), .. }))
    }

    pub(crate) fn unknown(what: &str) -> Fault {
        Fault::Unknown(source(what))
    }

    pub(crate) fn not_sent(why: &str) -> Fault {
        Fault::NotSent(source(why))
    }
}

/// Words as the cause of something.
pub(super) fn source(words: &str) -> Source {
    Source::from(Box::<dyn std::error::Error + Send + Sync>::from(words))
}

/// What a command inside a script was refused with. Before version 7, Redis puts the place in the script before it, as in
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
        let full = Fault::said("OOM command not allowed");
        assert!(matches!(full, Fault::Server(_)) && full.is_for_now(true) && !full.is_for_now(false));
    }
}
