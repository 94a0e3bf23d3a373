//! Holds of this client that have ended, and keep the lock for the rest of their `min_hold`.
//!
//! On the server the release left them as `id:rest`. A failover may lose that release. Then the server has the hold again, and the client
//! releases it again for as long as it was to rest.

use super::{
    rare::Usual,
    types::{HoldId, Mode, Moment},
};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct RestingHolds(Vec<RestingHold>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RestingHold {
    id: HoldId,
    mode: Mode,
    until: Moment,
}

impl Usual for RestingHolds {
    const USUAL: &'static RestingHolds = &RestingHolds(Vec::new());
}

impl RestingHolds {
    /// Removes the holds that no longer matter: those that rest no longer, and the older ones of this mode that rest no longer than this one.
    pub(crate) fn add(&mut self, id: HoldId, mode: Mode, until: Moment, now: Moment) {
        self.0.retain(|one| one.until > now && (one.mode != mode || one.id > id || one.until > until));
        self.0.push(RestingHold { id, mode, until });
    }

    /// The time until which this hold keeps the lock, if a failover brings it back. Such a failover has lost all later holds of its mode, too,
    /// so their time counts. The time of an earlier hold does not count: the lock was forced open since.
    pub(crate) fn of(&self, id: HoldId, mode: Mode) -> Moment {
        latest(self.0.iter().filter(|one| one.mode == mode && one.id >= id))
    }

    /// Until then at least one of them keeps the lock.
    pub(crate) fn until(&self) -> Moment {
        latest(self.0.iter())
    }
}

fn latest<'a>(holds: impl Iterator<Item = &'a RestingHold>) -> Moment {
    holds.map(|one| one.until).max().unwrap_or(Moment::ZERO)
}
