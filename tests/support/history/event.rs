//! One line of a client's log.

use std::{
    fmt,
    str::{FromStr, SplitWhitespace},
};

use super::Kind;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: u64,
    /// The number of the caller within the client. Calls at the same time have different numbers.
    pub(crate) task: u32,
    pub(crate) name: String,
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// The caller is about to ask for the lock.
    Asked,
    /// It was granted a level, certain until that moment.
    Granted { id: String, until: u64 },
    /// With this fencing token.
    Token { id: String, token: u64 },
    /// It has so many permits of a semaphore.
    Permits { id: String, permits: u64 },
    /// No other owner may acquire the lock before so many nanoseconds have passed since the grant.
    Rests { id: String, least: u64 },
    /// It noted again until when it is certain.
    Sure { id: String, until: u64 },
    /// It asked the server, from that moment on, for its hold count; 0 if the server does not have the hold.
    Counted { id: String, since: u64, believed: u64, counted: u64 },
    /// It is about to release a level.
    Releasing { id: String },
    /// `unlock` returned that the lock was held to the end.
    Released { id: String },
    /// The same, in one request whose reply came at once: nothing was lost on the way.
    Confirmed { id: String },
    /// `unlock` returned that the release could not be confirmed before the lease expired. The release began at `since`, and the hold was
    /// then certain until `until`.
    Unconfirmed { id: String, since: u64, until: u64 },
    /// It was notified of the loss; `removed`: the server did not have the hold any more.
    Lost { id: String, removed: bool },
    /// It no longer polls its future: it does not wait, but may still be granted the lock.
    Kept,
    /// It asked and left without the lock: its wait limit ended, or the call was cancelled.
    Left,
    /// It asked and got an error.
    Failed { error: String },
    /// It is about to make a call that must end within so many nanoseconds; 0: when the lock is free.
    Begun { call: String, limit: u64 },
    /// The call ended with this: `ok`, `none`, `cancelled`, or the kind of its error.
    Ended { call: String, how: String },
    /// It is about to force a lock open.
    Forcing,
    /// It has forced the lock open, or may have.
    Forced,
    /// The server replied that the lock was not held, so the call broke no hold.
    Spared,
    /// The whole process was paused, or nearly, from that moment to this.
    Paused { since: u64 },
    /// One of the ways to use a lock is begun.
    Way { way: String },
    /// It has a client of one of several servers, whose hold ids begin like this.
    Voter { id: String },
    /// The client itself saw a violation.
    Wrong { kind: Kind, details: String },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.at, self.task, self.name, self.what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Asked => write!(f, "asked"),
            What::Granted { id, until } => write!(f, "granted {id} {until}"),
            What::Token { id, token } => write!(f, "token {id} {token}"),
            What::Permits { id, permits } => write!(f, "permits {id} {permits}"),
            What::Rests { id, least } => write!(f, "rests {id} {least}"),
            What::Sure { id, until } => write!(f, "sure {id} {until}"),
            What::Counted { id, since, believed, counted } => write!(f, "counted {id} {since} {believed} {counted}"),
            What::Releasing { id } => write!(f, "releasing {id}"),
            What::Released { id } => write!(f, "released {id}"),
            What::Confirmed { id } => write!(f, "confirmed {id}"),
            What::Unconfirmed { id, since, until } => write!(f, "unconfirmed {id} {since} {until}"),
            What::Lost { id, removed: true } => write!(f, "removed {id}"),
            What::Lost { id, removed: false } => write!(f, "lost {id}"),
            What::Kept => write!(f, "kept"),
            What::Left => write!(f, "left"),
            What::Failed { error } => write!(f, "failed {}", one_line(error)),
            What::Begun { call, limit } => write!(f, "begun {call} {limit}"),
            What::Ended { call, how } => write!(f, "ended {call} {how}"),
            What::Forcing => write!(f, "forcing"),
            What::Forced => write!(f, "forced"),
            What::Spared => write!(f, "spared"),
            What::Paused { since } => write!(f, "paused {since}"),
            What::Way { way } => write!(f, "way {}", one_line(way)),
            What::Voter { id } => write!(f, "voter {id}"),
            What::Wrong { kind, details } => write!(f, "wrong {kind:?} {}", one_line(details)),
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A line that is incomplete because its writer was killed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Torn;

impl FromStr for Event {
    type Err = Torn;

    fn from_str(line: &str) -> Result<Event, Torn> {
        let mut words = line.split_whitespace();
        let (at, task, name) = (number(&mut words)?, number(&mut words)?, word(&mut words)?);
        let task = u32::try_from(task).map_err(|_| Torn)?;
        Ok(Event { at, task, name, what: what(&mut words)? })
    }
}

fn what(words: &mut SplitWhitespace<'_>) -> Result<What, Torn> {
    Ok(match words.next().ok_or(Torn)? {
        "asked" => What::Asked,
        "granted" => What::Granted { id: word(words)?, until: number(words)? },
        "token" => What::Token { id: word(words)?, token: number(words)? },
        "permits" => What::Permits { id: word(words)?, permits: number(words)? },
        "rests" => What::Rests { id: word(words)?, least: number(words)? },
        "sure" => What::Sure { id: word(words)?, until: number(words)? },
        "counted" => {
            What::Counted { id: word(words)?, since: number(words)?, believed: number(words)?, counted: number(words)? }
        }
        "releasing" => What::Releasing { id: word(words)? },
        "released" => What::Released { id: word(words)? },
        "confirmed" => What::Confirmed { id: word(words)? },
        "unconfirmed" => What::Unconfirmed { id: word(words)?, since: number(words)?, until: number(words)? },
        "removed" => What::Lost { id: word(words)?, removed: true },
        "lost" => What::Lost { id: word(words)?, removed: false },
        "kept" => What::Kept,
        "left" => What::Left,
        "failed" => What::Failed { error: rest(words) },
        "begun" => What::Begun { call: word(words)?, limit: number(words)? },
        "ended" => What::Ended { call: word(words)?, how: word(words)? },
        "forcing" => What::Forcing,
        "forced" => What::Forced,
        "spared" => What::Spared,
        "paused" => What::Paused { since: number(words)? },
        "way" => What::Way { way: rest(words) },
        "voter" => What::Voter { id: word(words)? },
        "wrong" => What::Wrong { kind: Kind::named(&word(words)?).ok_or(Torn)?, details: rest(words) },
        _ => return Err(Torn),
    })
}

fn rest(words: &mut SplitWhitespace<'_>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

fn word(words: &mut SplitWhitespace<'_>) -> Result<String, Torn> {
    words.next().map(str::to_owned).ok_or(Torn)
}

fn number(words: &mut SplitWhitespace<'_>) -> Result<u64, Torn> {
    words.next().and_then(|word| word.parse().ok()).ok_or(Torn)
}
