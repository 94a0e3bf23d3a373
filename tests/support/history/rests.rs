//! A lock with a `min_hold`: no other owner acquires it before that time, however early it was released, and though its holder died.

use super::{History, Hold, Kind, Violation, seconds, tokens::overlaps, violation};

impl History {
    pub(super) fn woken(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        if holds.iter().all(|hold| hold.rests == 0) {
            return Vec::new();
        }
        let breaks = self.breaks(name);
        let mut found = Vec::new();
        for (at, first) in holds.iter().enumerate().filter(|(_, hold)| hold.rests > 0 && hold.was_certain()) {
            let next = holds[at + 1..].iter().find(|next| next.holder != first.holder && next.was_certain());
            let Some(next) = next.filter(|next| next.granted < first.rests) else { continue };
            if !overlaps(&breaks, first.requested, next.granted) {
                let early = seconds(first.rests - next.granted);
                found.push(violation(
                    Kind::Early,
                    name,
                    format!("{next} acquired it {early} before the min_hold of {first} ended"),
                ));
            }
        }
        found
    }
}
