//! What the rules leave open: how holds are named, and time.

/// A hold of the plain lock.
pub(crate) type Id = u8;
/// Time of the plain lock, in the model's own unit.
pub(crate) type Ticks = u8;
/// Added to the id of a hold: what stays of it when it is released early.
pub(crate) const RESTING: Id = 100;

pub(crate) fn resting(id: Id) -> Id {
    RESTING + id
}

/// The field of a hold of the other kinds.
pub(crate) type FieldId = String;
pub(crate) type FieldRef = str;

/// For how long a waiting writer keeps readers away: three seconds, in ticks.
pub(crate) const MARKED: i64 = 1;
/// A tenth of a second, after which a writer looks again if a reader has the mark.
pub(crate) const SOON: i64 = 0;

/// The time that a place in the queue of a fair lock lasts, the time that a notified waiter has, and the time that a JVM subtracts. Of a
/// waiter that never had a place.
pub(crate) const PLACE: i64 = 12;
pub(crate) const GRACE: i64 = 2;
pub(crate) const JVM: i64 = 120;
pub(crate) const NEVER: i64 = -1_000_000;

pub(crate) fn is_of_one_client(one: &str, other: &str) -> bool {
    one.get(..37) == other.get(..37)
}

/// A client of ours has a UUID of version 8, Redisson's are of version 4.
pub(crate) fn ours(id: &str) -> bool {
    id[14..].starts_with('8')
}

pub(crate) fn writes(id: &str) -> bool {
    id.ends_with(":write") || id.ends_with(":write:rest")
}

/// The field of a hold that was released early.
pub(crate) fn rest_of(id: &str) -> String {
    format!("{id}:rest")
}

pub(crate) fn is_rest(id: &str) -> bool {
    id.ends_with(":rest")
}

pub(crate) fn is_hold(id: &str) -> bool {
    id.contains(':')
}
