//! The losses of a failover. Redis confirms a write before its replicas have received it. So a replica that takes over may not know
//! of a recent grant or a recent release. A failover excuses nothing else, and the holder of a lost lock must be notified soon.

use std::collections::{BTreeSet, HashMap};

use super::{History, Hold, Kind, ON_ITS_WAY, Seen, Violation, exclusion::Evidence, nanos, seconds, violation};

/// Another server took over these names: from the beginning of the trouble until all knew it and nobody else took their
/// writes any more.
#[derive(Debug, Clone)]
pub(crate) struct Failover {
    pub(crate) names: Vec<String>,
    pub(crate) since: u64,
    pub(crate) until: u64,
}

/// What servers lost when others took over from them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Locks that were gone, by the ids that had them.
    pub(crate) gone: BTreeSet<String>,
    /// Locks that were held again after their release.
    pub(crate) back: BTreeSet<String>,
    /// Holds whose count fell back.
    pub(crate) counts: BTreeSet<String>,
    /// What was seen of holds that a server of several had granted before it lost its data.
    pub(crate) emptied: Vec<Violation>,
}

/// The failovers of one name, and what was seen after them.
pub(super) struct Failovers<'a> {
    all: Vec<&'a Failover>,
    looks: &'a [Seen],
    /// When each id was last seen on the server.
    last: HashMap<&'a str, u64>,
    /// How long after a failover a client may still be certain of a hold that it lost.
    told: u64,
}

impl Failover {
    pub(super) fn is_of(&self, name: &str) -> bool {
        self.names.iter().any(|of| of == name)
    }
}

impl<'a> Failovers<'a> {
    pub(super) fn of(history: &'a History, name: &str) -> Failovers<'a> {
        let all: Vec<_> = history.failovers.iter().filter(|failover| failover.is_of(name)).collect();
        let looks = history.seen.get(name).map_or(&[][..], Vec::as_slice);
        let seen = looks.iter().filter(|_| !all.is_empty());
        let last = seen.flat_map(|seen| seen.ids.iter().map(|id| (id.as_str(), seen.since))).collect();
        Failovers { all, looks, last, told: nanos(history.longest_lease + history.late_after_failover) }
    }

    /// Those at which this hold may have been lost, if its id was never seen again.
    fn lost<'b>(&'b self, hold: &'b Hold) -> impl Iterator<Item = &'a Failover> + 'b {
        let seen_after = |until| self.last.get(hold.id.as_str()).is_some_and(|last| *last > until);
        let lost = move |failover: &&Failover| {
            hold.requested < failover.until && failover.since < hold.end && !seen_after(failover.until)
        };
        self.all.iter().copied().filter(lost)
    }

    /// Takes out what a failover accounts for.
    pub(super) fn excuse(&self, evidence: &mut Vec<Evidence<'_>>, losses: &mut Losses) {
        if !self.all.is_empty() {
            evidence.retain(|evidence| !self.is_excused(evidence, losses));
        }
    }

    fn is_excused(&self, evidence: &Evidence<'_>, losses: &mut Losses) -> bool {
        if evidence.violation.kind == Kind::Level {
            return self.is_older(evidence, losses);
        }
        let in_time = |failover: &Failover| (failover.since..=failover.until + self.told).contains(&evidence.at);
        let lost = evidence.holds().find(|hold| self.lost(hold).any(in_time));
        losses.gone.extend(lost.map(|hold| hold.id.clone()));
        lost.is_some() || self.is_of_two_masters(evidence)
    }

    /// For how long a client was certain of a hold after a failover had lost it, if that was too long. A hold that was granted later
    /// was not lost; and the observer must have looked.
    fn believed_after(&self, failover: &Failover, hold: &Hold, end: u64) -> Option<u64> {
        let told = failover.until + self.told;
        let is_known = || self.looks.iter().any(|seen| told < seen.since && seen.at < end);
        let is_too_long = hold.granted < failover.until && told < end && is_known();
        is_too_long.then(|| end - failover.until)
    }

    /// Seen while the old master may have answered beside the new one.
    fn is_of_two_masters(&self, evidence: &Evidence<'_>) -> bool {
        evidence.is_sight && self.all.iter().any(|failover| (failover.since..=failover.until).contains(&evidence.at))
    }

    /// A count from before what was lost.
    fn is_older(&self, evidence: &Evidence<'_>, losses: &mut Losses) -> bool {
        let hold = evidence.hold;
        let is_older = self.all.iter().any(|failover| hold.asked < failover.until && failover.since < evidence.at);
        is_older.then(|| losses.counts.insert(hold.holder.clone()));
        is_older
    }
}

impl History {
    /// Holds that were lost at a failover, and believed in for long after it.
    pub(super) fn beliefs_after_failovers(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let failovers = Failovers::of(self, name);
        if failovers.all.is_empty() {
            return Vec::new();
        }
        let beyond = |hold: &Hold| {
            let end = hold.end.min(hold.until);
            let after = |failover: &Failover| failovers.believed_after(failover, hold, end);
            let most = failovers.lost(hold).filter_map(after).max()?;
            let stood_still = self.stood_still(&hold.client, end - most, end);
            Some(most - stood_still).filter(|beyond| *beyond > failovers.told)
        };
        let say = |hold: &Hold| {
            let beyond = seconds(beyond(hold)?);
            let details = format!("{hold} was lost by a failover, and its client was certain of it for {beyond} more");
            Some(violation(Kind::Belief, name, details))
        };
        holds.iter().filter(|hold| hold.wiped.is_none()).filter_map(say).collect()
    }

    /// Whether a lock that was released then is held again because a failover lost the release.
    pub(super) fn came_back(&self, name: &str, given_back: u64) -> bool {
        // It is noted before it is asked for.
        let lost = |failover: &Failover| {
            failover.is_of(name) && given_back + nanos(ON_ITS_WAY) > failover.since && given_back < failover.until
        };
        self.failovers.iter().any(lost)
    }
}
