//! Semaphores: never more permits are certain than there are, and none is lost or added.

use std::cmp::Reverse;

use super::{History, Hold, Kind, Violation, exclusion::Evidence, seconds, violation};

/// How many permits a semaphore has, and the most that one call asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) all: u64,
    pub(crate) most: u64,
}

impl Room {
    pub(super) const LOCK: Room = Room { all: 1, most: 1 };

    /// The times in which any request could have been granted, beside these: from when to when, and how many permits.
    pub(super) fn free(self, taken: &[(u64, u64, u64)]) -> Vec<(u64, u64)> {
        let mut points: Vec<(u64, i128)> = Vec::new();
        for (since, until, permits) in taken {
            points.extend([(*since, i128::from(*permits)), (*until.max(since), -i128::from(*permits))]);
        }
        // A grant ends a time in which it was free, however short the hold was.
        points.sort_unstable_by_key(|(at, change)| (*at, Reverse(*change)));
        let (mut free, mut since, mut sum) = (Vec::new(), Some(0), 0);
        for (at, change) in points {
            sum += change;
            match since {
                Some(from) if !self.has_room_beside(sum) => {
                    free.extend((at > from).then_some((from, at)));
                    since = None;
                }
                None if self.has_room_beside(sum) => since = Some(at),
                _ => {}
            }
        }
        free.extend(since.map(|from| (from, u64::MAX)));
        free
    }

    fn has_room_beside(self, taken: i128) -> bool {
        taken + i128::from(self.most) <= i128::from(self.all)
    }
}

/// Moments at which more permits were certain than there are. One of these holds was broken.
pub(super) fn crowds<'a>(name: &str, room: Room, holds: &'a [Hold]) -> Vec<Evidence<'a>> {
    let mut found = Vec::new();
    let mut certain: Vec<&Hold> = Vec::new();
    for hold in holds.iter().filter(|hold| hold.wiped.is_none() && hold.was_certain()) {
        certain.retain(|first| first.end > hold.granted);
        certain.push(hold);
        let sum: u64 = certain.iter().map(|hold| hold.permits).sum();
        if sum > room.all {
            found.push(crowd(name, room, hold, &certain, sum));
        }
    }
    found
}

fn crowd<'a>(name: &str, room: Room, last: &'a Hold, certain: &[&'a Hold], sum: u64) -> Evidence<'a> {
    let until = certain.iter().map(|hold| hold.end).min().unwrap_or(last.end);
    let (all, both) = (room.all, seconds(until - last.granted));
    let holders: Vec<_> = certain.iter().map(|hold| format!("{} of {hold}", hold.permits)).collect();
    let details = format!("{sum} permits of {all} were certain for {both}: {}", holders.join(", "));
    let violation = violation(Kind::Overlap, name, details);
    let or = certain.iter().copied().filter(|hold| !std::ptr::eq(*hold, last)).collect();
    Evidence { or, until, ..Evidence::of(last, last.granted, violation) }
}

impl History {
    /// Looks at which the server had more or fewer permits, free and taken together, than the semaphore was given. Nothing excuses that:
    /// each script is one step, also for the file and the replicas of the server.
    pub(super) fn other_permits(&self, name: &str) -> Option<Violation> {
        let room = self.rooms.get(name)?;
        let is_other = |permits: i64| u64::try_from(permits) != Ok(room.all);
        let mut looks = self.seen.get(name)?.iter().filter_map(|seen| Some((seen, seen.permits?)));
        let (seen, permits) = looks.find(|(_, permits)| is_other(*permits))?;
        let details = format!("there were {permits} permits at {}, free and taken, instead of {}", seen.at, room.all);
        Some(violation(Kind::Level, name, details))
    }
}
