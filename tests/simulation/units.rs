//! What the rules of `tests/model` leave open: how the simulation names holds, and its time, in nanoseconds.

use std::fmt;

use crate::lock::{HoldId, Mode};

/// A field of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FieldId {
    pub(crate) client: u8,
    pub(crate) id: HoldId,
    pub(crate) mode: Mode,
    /// It was released early.
    rests: bool,
}

pub(crate) type FieldRef = FieldId;
pub(crate) type Id = FieldId;
pub(crate) type Ticks = u64;

pub(crate) const MARKED: i64 = 3_000_000_000;
pub(crate) const SOON: i64 = 100_000_000;
pub(crate) const PLACE: i64 = 30_000_000_000;
pub(crate) const GRACE: i64 = 5_000_000_000;
/// There are no JVMs here.
pub(crate) const JVM: i64 = 0;
/// Of a waiter that never had a place.
pub(crate) const NEVER: i64 = -1_000_000_000_000_000;

impl FieldId {
    pub(crate) fn new(client: u8, id: HoldId, mode: Mode) -> FieldId {
        FieldId { client, id, mode, rests: false }
    }
}

impl FieldId {
    /// Its number, if this client holds it.
    pub(crate) fn own(self, client: u8) -> Option<HoldId> {
        (self.client == client && !self.rests).then_some(self.id)
    }
}

impl fmt::Display for FieldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

pub(crate) fn resting(id: FieldId) -> FieldId {
    rest_of(&id)
}

pub(crate) fn rest_of(id: &FieldId) -> FieldId {
    FieldId { rests: true, ..*id }
}

pub(crate) fn is_rest(id: &FieldId) -> bool {
    id.rests
}

pub(crate) fn is_of_one_client(one: &FieldId, other: &FieldId) -> bool {
    one.client == other.client
}

pub(crate) fn writes(id: &FieldId) -> bool {
    id.mode == Mode::Exclusive
}

/// There are no other programs here.
pub(crate) fn ours(_: &FieldId) -> bool {
    true
}

pub(crate) fn is_hold(_: &FieldId) -> bool {
    true
}
