//! The queue of a fair lock: a waiter that was seen in it before another asked acquires the lock first.
//!
//! Only the looks at the server decide, and only of times that nothing has disturbed. A waiter rightly loses its place if it does not
//! come within five seconds of its notification, or does not look for thirty. It then gets a new place, at the end, under the same id.

use std::time::Duration;

use super::{
    History, Hold, Kind, Seen, Violation, nanos,
    tokens::{Span, overlaps},
    violation,
};

/// A waiter that was passed acquires the lock within so many holds.
const NEAR: usize = 64;
/// Between two looks that are farther apart, a waiter may have left the queue and joined it again.
const LOOKS: Duration = Duration::from_millis(200);
/// A lock that lay free for longer may have passed over one that was called: less than the five seconds, since a holder may have
/// believed in it for a while after it was gone.
const FREE: Duration = Duration::from_secs(3);
/// So long a place lasts, even if its waiter does not look.
const PLACE: Duration = Duration::from_secs(20);

impl History {
    pub(super) fn has_line(&self, name: &str) -> bool {
        self.seen.get(name).is_some_and(|looks| looks.iter().any(|seen| !seen.line.is_empty()))
    }

    pub(super) fn passed(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        if !self.has_line(name) {
            return Vec::new();
        }
        let (looks, disturbed) = (&self.seen[name], [self.breaks(name), self.resets(name)].concat());
        let mut found = Vec::new();
        for (at, second) in holds.iter().enumerate().filter(|(_, hold)| hold.was_certain()) {
            let waits = |first: &&Hold| first.asked < second.asked && first.id != second.id;
            for first in holds[at + 1..].iter().take(NEAR).filter(waits) {
                let Some(since) = stood_since(looks, first, second) else { continue };
                if !overlaps(&disturbed, since, second.granted) && !lay_free(&holds[..=at], since) {
                    let details = format!(
                        "{second} asked at {} and passed {first}, which was in the queue at {since}",
                        second.asked
                    );
                    found.push(violation(Kind::Passed, name, details));
                }
            }
        }
        found
    }
}

/// The last look that saw the first in the queue before the second asked, if all later looks saw it too, until the second had the lock.
fn stood_since(looks: &[Seen], first: &Hold, second: &Hold) -> Option<u64> {
    let from = looks.partition_point(|seen| seen.at < second.asked).checked_sub(1)?;
    let to = looks.partition_point(|seen| seen.at <= second.granted);
    let looks = &looks[from..to];
    let is_there = |seen: &Seen| seen.line.contains(&first.id);
    let are_close = |since: u64, at: u64| at - since <= nanos(LOOKS);
    let stood = looks.iter().all(is_there)
        && looks.windows(2).all(|two| are_close(two[0].since, two[1].at))
        && are_close(looks.last()?.since, second.granted)
        && second.granted - first.asked <= nanos(PLACE);
    stood.then(|| looks[0].since)
}

/// Whether no hold was certain for long, between the last one before that moment and the last of these.
fn lay_free(holds: &[Hold], since: u64) -> bool {
    let from = holds.partition_point(|hold| hold.granted <= since);
    let spans: Vec<Span> = holds[from.saturating_sub(NEAR)..].iter().map(|hold| (hold.granted, hold.end)).collect();
    let mut end = None;
    for (granted, until) in spans {
        if granted > since && end.is_none_or(|end: u64| granted.saturating_sub(end) > nanos(FREE)) {
            return true;
        }
        end = end.max(Some(until));
    }
    false
}
