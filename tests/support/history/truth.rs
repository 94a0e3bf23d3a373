//! Untrue results of `unlock`: Ok for a hold that had been deleted, or "expired" for one that had not expired.

use super::{History, Hold, Kind, Violation, seconds, tokens::overlaps, violation};

impl History {
    /// `unlock` returned Ok, though the lock was gone when the request was sent, and no reply was lost. Only for holds of one level:
    /// deeper levels may be granted again after a deletion. Not for a shared read hold, which the last of its readers releases.
    pub(super) fn untrue_releases(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let lost = |hold: &&Hold| {
            let (Some((since, at)), Some(released)) = (hold.wiped, hold.confirmed) else { return false };
            let was_there = hold.granted < since && at < released && hold.levels == 1 && !hold.shared;
            let is_alone = || holds.iter().filter(|other| other.id == hold.id && other.end > since).count() == 1;
            was_there && is_alone() && !overlaps(&self.replaced(name).collect::<Vec<_>>(), since, released)
        };
        let say =
            |hold: &Hold| violation(Kind::Untrue, name, format!("{hold} was deleted, and its unlock returned Ok"));
        holds.iter().filter(lost).map(say).collect()
    }

    /// Holds that were reported as expired before their end.
    pub(super) fn hasty_ends(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let say = |hold: &Hold| {
            let early = seconds(hold.until - hold.hasty?);
            Some(violation(Kind::Untrue, name, format!("{hold} was reported as expired {early} before its end")))
        };
        holds.iter().filter_map(say).collect()
    }
}
