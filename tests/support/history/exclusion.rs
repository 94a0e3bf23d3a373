//! Holds that were broken: another holder was certain too, the server did not have the hold, or the server said that it was gone.
//! Holds that the director deleted are excused before. A client that forces a lock open may have broken one hold.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use super::{
    Event, History, Hold, Kind, Losses, ON_ITS_WAY, Violation, What, failover::Failovers, nanos, permits::crowds,
    seconds, violation, voters::Members,
};

/// How often the choice between two that may have been broken is repeated.
const GUESSES: usize = 50;

/// What shows that a hold was broken: that one, or one of these.
pub(super) struct Evidence<'a> {
    pub(super) hold: &'a Hold,
    pub(super) or: Vec<&'a Hold>,
    /// From when on it shows, and until when.
    pub(super) at: u64,
    pub(super) until: u64,
    /// The observer has seen it.
    pub(super) is_sight: bool,
    pub(super) violation: Violation,
}

impl<'a> Evidence<'a> {
    pub(super) fn of(hold: &'a Hold, at: u64, violation: Violation) -> Evidence<'a> {
        Evidence { hold, or: Vec::new(), at, until: at, is_sight: false, violation }
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = &'a Hold> {
        std::iter::once(self.hold).chain(self.or.iter().copied())
    }
}

/// A client forces a lock open: a hold that was there before the call returned may be gone, and no other.
pub(super) struct Force {
    pub(super) since: u64,
    pub(super) at: u64,
}

impl Force {
    /// Whether it can have broken that hold.
    fn may_hit(&self, hold: &Hold) -> bool {
        hold.requested < self.at && self.since < hold.end
    }
}

impl History {
    pub(super) fn exclusion(
        &self,
        name: &str,
        holds: &[Hold],
        members: &Members<'_>,
        losses: &mut Losses,
    ) -> Vec<Violation> {
        let mut evidence = match self.rooms.get(name) {
            Some(room) => crowds(name, *room, holds),
            None => overlaps(name, holds),
        };
        evidence.extend(self.unseen(name, holds, members));
        evidence.extend(holds.iter().filter_map(|hold| removed(name, hold)));
        evidence.extend(self.counts(name, holds));
        evidence.retain(|evidence| evidence.hold.wiped.is_none());
        Failovers::of(self, name).excuse(&mut evidence, losses);
        self.excuse_emptied(name, &mut evidence, losses);
        let forces = self.forces(name);
        let excused = match self.shared.contains(name) {
            true => hit(&forces, &evidence),
            false => excused(&forces, &evidence),
        };
        let stays = |evidence: &Evidence<'_>| !evidence.holds().any(|hold| excused.contains(hold.id.as_str()));
        evidence.retain(|evidence| evidence.violation.kind == Kind::Level || stays(evidence));
        evidence.into_iter().map(|evidence| evidence.violation).collect()
    }

    /// Holds that were certain while the server had another holder, or none.
    fn unseen<'a>(&self, name: &str, holds: &'a [Hold], members: &Members<'_>) -> Vec<Evidence<'a>> {
        let mut found: HashMap<usize, Evidence<'a>> = HashMap::new();
        let longest = holds.iter().map(|hold| hold.end.saturating_sub(hold.granted)).max().unwrap_or(0);
        for seen in self.seen.get(name).into_iter().flatten() {
            let first = holds.partition_point(|hold| hold.granted + longest < seen.since);
            let past = holds.partition_point(|hold| hold.granted <= seen.since);
            for (at, hold) in holds.iter().enumerate().take(past).skip(first) {
                if hold.spans(seen.since, seen.at) && !seen.has(hold, members) {
                    let evidence = found.entry(at).or_insert_with(|| {
                        let had = seen.holders();
                        let details = format!("{hold} was certain at {}, when the server had {had}", seen.at);
                        let violation = violation(Kind::Hollow, name, details);
                        Evidence { is_sight: true, ..Evidence::of(hold, seen.at, violation) }
                    });
                    evidence.until = seen.at;
                }
            }
        }
        found.into_values().collect()
    }

    /// Hold counts that differ from the count on the server, where no other client could have changed it meanwhile.
    fn counts<'a>(&self, name: &str, holds: &'a [Hold]) -> Vec<Evidence<'a>> {
        let mut by_id: HashMap<&str, Vec<&Hold>> = HashMap::new();
        holds.iter().for_each(|hold| by_id.entry(&hold.holder).or_default().push(hold));
        let events = self.clients.values().flatten().filter(|event| event.name == name);
        events.filter_map(|event| miscounted(event, &by_id)).collect()
    }

    pub(super) fn forces(&self, name: &str) -> Vec<Force> {
        let mut forces = Vec::new();
        for (client, events) in &self.clients {
            let mut begun = HashMap::new();
            for event in events.iter().filter(|event| event.name == name) {
                match event.what {
                    What::Forcing => _ = begun.insert(event.task, event.at),
                    What::Spared => _ = begun.remove(&event.task),
                    What::Forced => {
                        let since = begun.remove(&event.task);
                        forces.extend(since.map(|since| Force { since, at: event.at }));
                    }
                    _ => {}
                }
            }
            let end = self.killed.get(client).map_or(u64::MAX, |killed| killed + nanos(ON_ITS_WAY));
            forces.extend(begun.into_values().map(|since| Force { since, at: end }));
        }
        forces
    }
}

/// Pairs that were certain at once. One of them was broken: the answer to the first request can be the later one.
fn overlaps<'a>(name: &str, holds: &'a [Hold]) -> Vec<Evidence<'a>> {
    let mut found = Vec::new();
    let mut certain: Vec<&Hold> = Vec::new();
    for hold in holds.iter().filter(|hold| hold.wiped.is_none() && hold.was_certain()) {
        certain.retain(|first| first.end > hold.granted);
        for first in certain.iter().filter(|first| !first.lets_in(hold)) {
            let until = first.end.min(hold.end);
            let both = seconds(until - hold.granted);
            let details = format!("{first} and {hold} were both certain for {both}");
            let violation = violation(Kind::Overlap, name, details);
            found.push(Evidence { or: vec![hold], until, ..Evidence::of(first, hold.granted, violation) });
        }
        certain.push(hold);
    }
    found
}

fn removed<'a>(name: &str, hold: &'a Hold) -> Option<Evidence<'a>> {
    let at = hold.removed?;
    let early = seconds(hold.until - at);
    let details = format!("{hold} was gone {early} before its lease ended, and nothing had removed it");
    Some(Evidence::of(hold, at, violation(Kind::Taken, name, details)))
}

fn miscounted<'a>(event: &Event, holds: &HashMap<&str, Vec<&'a Hold>>) -> Option<Evidence<'a>> {
    let What::Counted { id, since, believed, counted } = &event.what else { return None };
    let hold = holds.get(id.as_str())?.iter().find(|hold| hold.spans(*since, event.at))?;
    let details = || format!("{hold} has the hold count {believed}, and {counted} on the server");
    // A count of zero may come from a client that forced the lock open.
    let kind = if *counted == 0 { Kind::Hollow } else { Kind::Level };
    (believed != counted).then(|| Evidence::of(hold, event.at, violation(kind, &event.name, details())))
}

/// The ids whose end a forced unlock can explain, where it takes the lock from all holders that share it.
fn hit<'a>(forces: &[Force], evidence: &[Evidence<'a>]) -> HashSet<&'a str> {
    let hit = |hold: &&Hold| forces.iter().any(|force| force.may_hit(hold));
    evidence.iter().flat_map(Evidence::holds).filter(hit).map(|hold| hold.id.as_str()).collect()
}

/// The ids whose end a forced unlock can explain: as many as possible, with one forced unlock for each.
fn excused<'a>(forces: &[Force], evidence: &[Evidence<'a>]) -> HashSet<&'a str> {
    let mut may: HashMap<&str, Vec<usize>> = HashMap::new();
    for hold in evidence.iter().flat_map(Evidence::holds) {
        let by = forces.iter().enumerate().filter(|(_, force)| force.may_hit(hold));
        may.entry(&hold.id).or_default().extend(by.map(|(at, _)| at));
    }
    let mut order = most_telling_first(evidence);
    let mut best = (usize::MAX, HashSet::new());
    // Which of a pair was broken is a guess, and an unlucky one can take the force that another needs: then that other
    // chooses first.
    for _ in 0..GUESSES {
        let ids = broken(&order, &may);
        let (explained, left): (Vec<_>, Vec<_>) =
            order.into_iter().partition(|choice| choice.iter().any(|id| ids.contains(id)));
        if left.len() < best.0 {
            best = (left.len(), ids);
        }
        if left.is_empty() {
            break;
        }
        order = [left, explained].concat();
    }
    best.1
}

/// The ids that may have been broken, for each piece of evidence. Ids that were certainly broken come first, because one of a pair is
/// often among them. Then come the ids that overlap with most others: a hold that was broken before its client knew of the grant
/// overlaps with all that come until the client does.
fn most_telling_first<'a>(evidence: &[Evidence<'a>]) -> Vec<Vec<&'a str>> {
    let mut often: HashMap<&str, usize> = HashMap::new();
    evidence.iter().flat_map(Evidence::holds).for_each(|hold| *often.entry(&hold.id).or_default() += 1);
    let choice = |evidence: &Evidence<'a>| {
        let mut ids: Vec<&str> = evidence.holds().map(|hold| hold.id.as_str()).collect();
        ids.sort_by_key(|id| Reverse(often[id]));
        ids
    };
    let mut order: Vec<_> = evidence.iter().map(choice).collect();
    order.sort_by_key(|ids| if ids.len() == 1 { Reverse(usize::MAX) } else { Reverse(often[ids[0]]) });
    order
}

/// Those that are broken if each piece of evidence, in this order, takes a force for one of its ids.
fn broken<'a>(order: &[Vec<&'a str>], may: &HashMap<&'a str, Vec<usize>>) -> HashSet<&'a str> {
    let mut used: HashMap<usize, &str> = HashMap::new();
    for ids in order {
        if !ids.iter().any(|id| used.values().any(|used| used == id)) {
            let _ = ids.iter().any(|id| assign(id, may, &mut used, &mut HashSet::new()));
        }
    }
    used.into_values().collect()
}

/// Finds a force for this id, moving others to another of theirs where that helps.
fn assign<'a>(
    id: &'a str,
    broken: &HashMap<&'a str, Vec<usize>>,
    used: &mut HashMap<usize, &'a str>,
    tried: &mut HashSet<usize>,
) -> bool {
    for &force in &broken[id] {
        if !tried.insert(force) {
            continue;
        }
        let free = match used.get(&force).copied() {
            Some(other) => assign(other, broken, used, tried),
            None => true,
        };
        if free {
            used.insert(force, id);
            return true;
        }
    }
    false
}
