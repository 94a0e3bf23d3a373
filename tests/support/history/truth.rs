//! What `unlock` said of a hold: Ok of one that had been deleted, or that its time is over when it was not.

use super::{History, Hold, Kind, Violation, seconds, tokens::overlaps, violation};

impl History {
    /// An Ok by a request that was sent when the lock was gone, with nothing lost on the way. Of one level: deeper ones may be
    /// granted anew after a deletion. One that readers share is given back by the last of them.
    pub(super) fn untrue_releases(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let lost = |hold: &&Hold| {
            let (Some((since, at)), Some(released)) = (hold.wiped, hold.confirmed) else { return false };
            let was_there = hold.granted < since && at < released && hold.levels == 1 && !hold.shared;
            let is_alone = || holds.iter().filter(|other| other.id == hold.id && other.end > since).count() == 1;
            was_there && is_alone() && !overlaps(&self.replaced(name).collect::<Vec<_>>(), since, released)
        };
        let say = |hold: &Hold| violation(Kind::Untrue, name, format!("{hold} was deleted, and given back with Ok"));
        holds.iter().filter(lost).map(say).collect()
    }

    /// Told that its time is over. Whoever removes it says so.
    pub(super) fn hasty_ends(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let say = |hold: &Hold| {
            let early = seconds(hold.until - hold.hasty?);
            Some(violation(Kind::Untrue, name, format!("{hold} was told that its time is over, {early} before it was")))
        };
        holds.iter().filter_map(say).collect()
    }
}
