//! The hash that a lock is in Redis, and what scripts are asked and answer.

use std::fmt;

use crate::units::{FieldId as Id, FieldRef, is_hold};

/// Its fields stand in the order in which they came, as in a small hash of Redis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hash {
    /// Of a read-write lock.
    pub(crate) mode: Option<&'static str>,
    pub(crate) fields: Vec<(Id, u64)>,
    /// -1 without an end.
    pub(crate) left: i64,
}

impl Hash {
    pub(crate) fn of(mode: Option<&'static str>, id: &FieldRef, count: u64, left: i64) -> Hash {
        Hash { mode, fields: vec![(id.to_owned(), count)], left }
    }

    pub(crate) fn count(&self, id: &FieldRef) -> Option<u64> {
        self.fields.iter().find(|(field, _)| field == id).map(|(_, count)| *count)
    }

    pub(crate) fn set(&mut self, id: &FieldRef, count: u64) {
        match self.fields.iter_mut().find(|(field, _)| field == id) {
            Some(field) => field.1 = count,
            None => self.fields.push((id.to_owned(), count)),
        }
    }

    pub(crate) fn remove(&mut self, id: &FieldRef) {
        self.fields.retain(|(field, _)| field != id);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.mode.is_none()
    }

    /// Moves the end, never nearer.
    pub(crate) fn lasts(&mut self, lease: i64) {
        self.left = self.left.max(lease);
    }

    /// Of a lock that one has at a time; `None` where it is no such lock.
    pub(crate) fn holder(&self) -> Option<&Id> {
        match &*self.fields {
            [(id, _)] if self.mode.is_none() && is_hold(id) => Some(id),
            _ => None,
        }
    }

    pub(crate) fn later(self, time: i64) -> Option<Hash> {
        Some(Hash { left: later(self.left, time)?, ..self })
    }
}

/// Time passes for something that has an end, or none (-1).
pub(crate) fn later(left: i64, time: i64) -> Option<i64> {
    match left {
        -1 => Some(-1),
        left => (left > time).then(|| left - time),
    }
}

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    First,
    /// A writer leaves a mark beside readers: `join` and `stay`. For a fair lock: `join`.
    Wait,
    /// A waiter keeps its place in the queue of a fair lock.
    Stay,
    Turn,
    Late,
    Again,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With the count, or the token.
    Granted(u64),
    Lost,
    Conflict,
    Busy(i64, Id),
    Released,
    Forced,
    Gone,
    /// What was left before, and whether a new reader could enter.
    Kept(i64, bool),
    /// What is left now.
    KeptFor(i64),
    /// What a fenced lock writes.
    Written,
    Handed,
    HandedBefore,
    HandedWith(u64),
    HandedBeforeWith(u64),
    Deeper(u64),
    Free,
    /// Count, time left and id of each.
    Held(Vec<(u64, i64, Id)>),
}

/// As the scripts say it, without the number of those who were told.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Granted(number) => write!(f, "granted {number}"),
            Answer::Lost => f.write_str("lost"),
            Answer::Conflict => f.write_str("conflict"),
            Answer::Busy(left, id) => write!(f, "busy {left} {id}"),
            Answer::Released => f.write_str("released 0"),
            Answer::Forced => f.write_str("released"),
            Answer::Gone => f.write_str("gone"),
            Answer::Kept(before, lets_in) => write!(f, "kept {before} {}", if *lets_in { "yes" } else { "no" }),
            Answer::KeptFor(left) => write!(f, "kept {left}"),
            Answer::Written => f.write_str("kept"),
            Answer::Handed => f.write_str("handed"),
            Answer::HandedBefore => f.write_str("handed before"),
            Answer::HandedWith(token) => write!(f, "handed {token}"),
            Answer::HandedBeforeWith(token) => write!(f, "handed before {token}"),
            Answer::Deeper(count) => write!(f, "deeper {count}"),
            Answer::Free => f.write_str("free"),
            Answer::Held(holders) => {
                let lines: Vec<_> = holders.iter().map(|(count, left, id)| format!("{count} {left} {id}")).collect();
                write!(f, "held {}", lines.join("\n"))
            }
        }
    }
}
