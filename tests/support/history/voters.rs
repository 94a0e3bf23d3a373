//! A lock that a majority of several servers grants. What a server that came back without its data can break is excused and counted;
//! without a majority no call succeeds, none says that another owner holds the lock, and each ends in its own time.

use std::collections::HashMap;

use super::{
    History, Hold, Kind, Losses, Seen, Violation, What,
    calls::{Call, MARGIN, overlap},
    exclusion::Evidence,
    idle::GIVEN_BACK,
    nanos, seconds,
    tokens::Span,
    violation,
};

/// One of the servers lost its data: it ended between these moments, and came back empty.
#[derive(Debug, Clone)]
pub(crate) struct Emptied {
    pub(crate) since: u64,
    pub(crate) down: u64,
}

/// No majority of the servers could answer between these moments: that client, or any.
#[derive(Debug, Clone)]
pub(crate) struct Silent {
    pub(crate) client: Option<String>,
    pub(crate) since: u64,
    pub(crate) until: u64,
}

impl Silent {
    fn is_for(&self, client: &str) -> bool {
        self.client.as_deref().is_none_or(|of| of == client)
    }

    /// How long a time from that moment to that one was within it.
    fn within(&self, since: u64, until: u64) -> u64 {
        until.min(self.until).saturating_sub(since.max(self.since))
    }
}

impl Emptied {
    /// Whether it accounts for what shows of these holds: the server had granted the one, granted the other when it was empty, and the
    /// first cannot have been confirmed there later.
    fn accounts_for(&self, evidence: &Evidence<'_>, lease: u64) -> bool {
        let (one, or) = (evidence.hold, evidence.or.first().copied());
        let is_broken = |hold: &Hold, other: Option<&Hold>| {
            hold.asked < self.down && other.is_none_or(|other| other.granted >= self.since)
        };
        let is_of_these = is_broken(one, or) || or.is_some_and(|or| is_broken(or, Some(one)));
        is_of_these && self.since <= evidence.at && evidence.until <= self.down + lease
    }
}

/// A client of one of the servers, by the first part of its hold ids.
pub(super) type Members<'a> = HashMap<&'a str, &'a str>;

impl History {
    pub(super) fn members(&self) -> Members<'_> {
        let mut members = Members::new();
        for (client, events) in &self.clients {
            for event in events {
                if let What::Voter { id } = &event.what {
                    members.insert(id, client);
                }
            }
        }
        members
    }

    /// Takes out what a server that came back empty accounts for.
    pub(super) fn excuse_emptied(&self, name: &str, evidence: &mut Vec<Evidence<'_>>, losses: &mut Losses) {
        let lease = self.lease(name);
        evidence.retain(|evidence| {
            let is_excused = self.emptied.iter().any(|emptied| emptied.accounts_for(evidence, lease));
            losses.emptied.extend(is_excused.then(|| evidence.violation.clone()));
            !is_excused
        });
    }

    /// What happened though no majority could answer.
    pub(super) fn without_a_majority(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let (mut found, lease) = (Vec::new(), self.lease(name));
        for silent in &self.silent {
            for hold in holds.iter().filter(|hold| silent.is_for(&hold.client) && hold.was_certain()) {
                if hold.asked >= silent.since && hold.granted < silent.until {
                    let details = format!("{hold} was granted without a majority");
                    found.push(violation(Kind::Untrue, name, details));
                }
                let beyond = silent.within(silent.since + lease, hold.end);
                if hold.granted < silent.since && beyond > 0 {
                    let beyond = seconds(beyond);
                    let details = format!("{hold} was certain for {beyond} more than a lease without a majority");
                    found.push(violation(Kind::Belief, name, details));
                }
            }
        }
        found
    }

    /// `unlock` returned Ok, though no majority could reply from before it began until it had returned.
    pub(super) fn released_in_silence(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for (client, events) in &self.clients {
            let mut began = HashMap::new();
            for event in events {
                match &event.what {
                    What::Releasing { id } => _ = began.insert((&event.name, id), event.at),
                    What::Released { id } => {
                        let Some(since) = began.remove(&(&event.name, id)) else { continue };
                        let has_no_majority = |silent: &Silent| silent.since <= since && event.at <= silent.until;
                        if self.silent.iter().any(|silent| silent.is_for(client) && has_no_majority(silent)) {
                            let details =
                                format!("{client}: unlock of {id}, begun at {since}, returned Ok without a majority");
                            found.push(violation(Kind::Untrue, &event.name, details));
                        }
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// A call that said that another owner holds the lock, or rode out the silence for too long. While its own client is certain to hold
    /// the lock for another caller, the call has an answer, and the silence begins later.
    pub(super) fn in_silence(
        &self,
        client: &str,
        call: &Call<'_>,
        holds: &[Hold],
        pauses: &[Span],
    ) -> Option<Violation> {
        let silent = || self.silent.iter().filter(|silent| silent.is_for(client));
        let is_within = |silent: &Silent| silent.since <= call.begun && call.ended <= silent.until;
        let (what, begun) = (call.what, call.begun);
        if call.how == "none" && silent().any(is_within) {
            let details = format!("{client}: {what}, begun at {begun}, found the lock taken without a majority");
            return Some(violation(Kind::Untrue, call.name, details));
        }
        let most = nanos(self.outage + MARGIN);
        let is_late = |silent: &&Silent| {
            let to = call.ended.min(silent.until);
            let had =
                holds.iter().filter(|hold| hold.client == client && hold.granted < to).map(|hold| hold.end.min(to));
            let from = call.begun.max(silent.since).max(had.max().unwrap_or_default());
            to.saturating_sub(from) > most && to - from - overlap(pauses, from, to) > most
        };
        let late = silent().find(|silent| call.limit == 0 && is_late(silent))?;
        let waited = seconds(late.within(call.begun, call.ended));
        let details = format!("{client}: {what}, begun at {begun}, waited for {waited} without a majority");
        Some(violation(Kind::Late, call.name, details))
    }

    /// Ids that a server still had in calm times, long after the attempt or the hold that they belong to.
    pub(super) fn left_behind(&self, name: &str, holds: &[Hold], members: &Members<'_>) -> Vec<Violation> {
        let looks = || self.seen.get(name).into_iter().flatten().filter(|seen| !seen.voters.is_empty());
        if looks().next().is_none() {
            return Vec::new();
        }
        let waits = self.waits(name);
        let waits = waits.iter().map(|wait| (wait.client.as_str(), wait.since, wait.until));
        let uses: Vec<_> = waits.chain(holds.iter().map(|hold| (hold.client.as_str(), hold.asked, hold.end))).collect();
        let mut found = Vec::new();
        for (calm, over) in &self.calm {
            for (id, (first, last)) in spans(looks().filter(|seen| *calm <= seen.since && seen.at <= *over)) {
                let lives = |client: &&str| !self.killed.contains_key(*client);
                let Some(client) = client_of(id, members).filter(lives) else { continue };
                let is_of = |(of, since, until): &(&str, u64, u64)| {
                    *of == client && *since <= first && last <= until.saturating_add(nanos(GIVEN_BACK))
                };
                if !uses.iter().any(is_of) {
                    let details = format!("{id} of {client} is on a server from {first} to {last}, and nobody uses it");
                    found.push(violation(Kind::Leftover, name, details));
                }
            }
        }
        found
    }
}

/// Each id that was seen on a server, with the first and the last moment.
fn spans<'a>(looks: impl Iterator<Item = &'a Seen>) -> HashMap<&'a str, (u64, u64)> {
    let mut spans: HashMap<&str, (u64, u64)> = HashMap::new();
    for seen in looks {
        for id in seen.voters.iter().flatten().flatten() {
            spans.entry(id).or_insert((seen.at, seen.since)).1 = seen.since;
        }
    }
    spans
}

/// The process that has that hold on one of the servers.
pub(super) fn client_of<'a>(id: &str, members: &Members<'a>) -> Option<&'a str> {
    members.get(id.split_once(':').map_or(id, |(owner, _)| owner)).copied()
}

impl Seen {
    /// Whether the server had this hold, with as many permits, or a majority of the servers may have had one of its client.
    pub(super) fn has(&self, hold: &Hold, members: &Members<'_>) -> bool {
        if self.voters.is_empty() {
            return self.ids.iter().filter(|id| **id == hold.id).count() as u64 >= hold.permits;
        }
        let is_its = |id: &String| client_of(id, members) == Some(&hold.client);
        let may = self.voters.iter().filter(|ids| ids.as_ref().is_none_or(|ids| ids.iter().any(is_its)));
        may.count() > self.voters.len() / 2
    }

    /// In words.
    pub(super) fn holders(&self) -> String {
        let said = |ids: &[String]| if ids.is_empty() { "no holder".to_owned() } else { ids.join(" ") };
        let by_server = self.voters.iter().map(|ids| ids.as_deref().map_or_else(|| "no answer".to_owned(), said));
        if self.voters.is_empty() { said(&self.ids) } else { by_server.collect::<Vec<_>>().join(", ") }
    }
}
