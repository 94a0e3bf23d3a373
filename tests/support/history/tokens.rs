//! Fencing tokens grow with the grants of a name, and all levels of one hold have the same.

use super::{History, Hold, Kind, Violation, violation};

/// A token that is too small is too small beside one of those just before it.
const NEAR: usize = 64;

/// Something happened between these moments.
pub(super) type Span = (u64, u64);

impl History {
    pub(super) fn tokens(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let known: Vec<(&Hold, u64)> = holds.iter().filter_map(|hold| Some((hold, *hold.tokens.first()?))).collect();
        if known.is_empty() {
            return Vec::new();
        }
        let (breaks, resets) = (self.breaks(name), self.resets(name));
        let mut found: Vec<_> = known.iter().filter_map(|(hold, _)| changed(name, hold)).collect();
        for (at, (hold, token)) in known.iter().enumerate() {
            let whole = whole_since(&breaks, hold.granted);
            // One that was broken before it was asked for has a token of before.
            let asked = if overlaps(&breaks, hold.requested, hold.granted) { hold.requested } else { hold.asked };
            let before = known[at.saturating_sub(NEAR)..at].iter().filter(|(first, _)| {
                first.id != hold.id
                    && is_before(first, hold, asked, whole)
                    && !overlaps(&resets, first.requested, hold.granted)
            });
            if let Some((first, least)) = before.max_by_key(|(_, token)| *token).filter(|(_, least)| token <= least) {
                let details = format!("{hold} has token {token}, and the earlier {first} had token {least}");
                found.push(violation(Kind::Token, name, details));
            }
        }
        found
    }

    /// Holds that were certain with another token than the last that the server had issued.
    pub(super) fn tokens_seen(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let looks: Vec<_> =
            self.seen.get(name).into_iter().flatten().filter_map(|seen| Some((seen, seen.token?))).collect();
        let disturbed = [self.breaks(name), self.resets(name)].concat();
        let mut found = Vec::new();
        for hold in holds.iter().filter(|hold| hold.wiped.is_none()) {
            let Some(token) = hold.tokens.first() else { continue };
            let from = looks.partition_point(|(seen, _)| seen.since < hold.granted);
            let looks = looks[from..].iter().take_while(|(seen, _)| hold.spans(seen.since, seen.at));
            let differs = looks.copied().find(|(_, last)| last != token);
            let Some((seen, last)) = differs.filter(|(seen, _)| !overlaps(&disturbed, hold.requested, seen.at)) else {
                continue;
            };
            let details = format!("{hold} has token {token}, and the server had issued token {last} by {}", seen.at);
            found.push(violation(Kind::Token, name, details));
        }
        found
    }

    /// The times in which holds of that name may have been broken.
    pub(super) fn breaks(&self, name: &str) -> Vec<Span> {
        let wipes = self.wipes.iter().filter(|wipe| wipe.is_of(name, false)).map(|wipe| (wipe.since, wipe.at));
        let forces = self.forces(name).into_iter().map(|force| (force.since, force.at));
        wipes.chain(self.replaced(name)).chain(forces).collect()
    }

    /// The times in which what stands beside the lock may have been lost.
    pub(super) fn resets(&self, name: &str) -> Vec<Span> {
        let wipes = self.wipes.iter().filter(|wipe| wipe.is_of(name, true)).map(|wipe| (wipe.since, wipe.at));
        wipes.chain(self.replaced(name)).collect()
    }

    pub(super) fn replaced(&self, name: &str) -> impl Iterator<Item = Span> {
        let failovers = self.failovers.iter().filter(move |failover| failover.is_of(name));
        failovers.map(|failover| (failover.since, failover.until))
    }
}

pub(super) fn overlaps(spans: &[Span], since: u64, until: u64) -> bool {
    spans.iter().any(|(from, to)| *from < until && since < *to)
}

fn changed(name: &str, hold: &Hold) -> Option<Violation> {
    let is_another = hold.tokens.windows(2).any(|two| two[0] != two[1]);
    is_another
        .then(|| violation(Kind::Token, name, format!("the levels of {hold} have different tokens: {:?}", hold.tokens)))
}

/// A hold that was requested later than this, and is certain, was not broken before.
fn whole_since(breaks: &[Span], granted: u64) -> u64 {
    breaks.iter().filter(|(since, _)| *since <= granted).map(|(_, at)| *at).max().unwrap_or(0)
}

/// Whether the server granted the first one first: that was known before the second asked; or both were certain, which shows
/// the order of two holds that were not broken.
fn is_before(first: &Hold, second: &Hold, asked: u64, whole: u64) -> bool {
    let is_whole = |hold: &Hold| hold.was_certain() && hold.requested > whole;
    first.granted < asked || is_whole(first) && is_whole(second)
}
