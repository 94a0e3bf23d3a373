//! Calls that ended too late, or too soon, or with an untrue result; grants that were lost from the start.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::{Event, History, Hold, Kind, Violation, What, nanos, seconds, violation};

/// How much later than its own deadline a call may end on a busy machine.
pub(super) const MARGIN: Duration = Duration::from_secs(2);
/// How much sooner than it may it can seem to have ended: timers have milliseconds.
const GRAIN: Duration = Duration::from_millis(5);
/// A grant may be so old if its client was paused in the meantime.
const STOOD_STILL: Duration = Duration::from_secs(5);
/// So many grants of one client may end between its own look at the clock and the note of it: on a busy machine that is 10 ms
/// now and then (seen once in some 900,000 grants). A client that does not look has far more.
const STILLBORN: usize = 1;
/// How long after a lock was forced open a waiter of the same client can still be granted it.
const MOMENT: Duration = Duration::from_millis(50);
/// Of the calls with a wait limit that begin and end in one calm period, so few may end with `Unavailable`: so many, or so many
/// of a hundred.
const UNAVAILABLE: (u64, u64) = (10, 2);

const NEVER: &str = "never";

/// A call from its beginning to its end.
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) what: &'a str,
    pub(super) limit: u64,
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) how: &'a str,
}

impl History {
    pub(super) fn calls(&self, holds: &BTreeMap<String, Vec<Hold>>) -> Vec<Violation> {
        let mut found = Vec::new();
        for (client, events) in &self.clients {
            let pauses = pauses(events);
            let calls = calls_of(events);
            for call in &calls {
                found.extend(late(client, call, &pauses));
                found.extend(self.hasty(client, call));
                found.extend(self.endless(client, call));
                found.extend(self.in_silence(client, call, holds.get(call.name).map_or(&[], Vec::as_slice), &pauses));
            }
            found.extend(self.untrue(client, &calls));
        }
        found
    }

    /// A call that gave up before its wait limit, or with `Unavailable` before the `outage_timeout`.
    fn hasty(&self, client: &str, call: &Call<'_>) -> Option<Violation> {
        let took = call.ended - call.begun;
        let least = match (call.what, call.how) {
            ("try_lock_for", "none") => call.limit,
            ("lock", "unavailable") => nanos(self.outage),
            _ => return None,
        };
        let soon = took + nanos(GRAIN) < least;
        let details = || {
            let (what, how, took, least) = (call.what, call.how, seconds(took), seconds(least));
            format!("{client}: {what} ended with {how} at {}, after {took} instead of at least {least}", call.ended)
        };
        soon.then(|| violation(Kind::Hasty, call.name, details()))
    }

    /// A call that never ended, though its client lived to the end.
    fn endless(&self, client: &str, call: &Call<'_>) -> Option<Violation> {
        let endless = call.how == NEVER && call.limit == 0 && !self.killed.contains_key(client);
        let details = || format!("{client}: {}, begun at {}, never ended", call.what, call.begun);
        endless.then(|| violation(Kind::Stuck, call.name, details()))
    }

    /// A server that answers must not be called silent.
    fn untrue(&self, client: &str, calls: &[Call<'_>]) -> Vec<Violation> {
        let mut found = Vec::new();
        let patient = || calls.iter().filter(|call| call.what == "try_lock_for");
        for (since, until) in &self.calm {
            let in_calm = || patient().filter(|call| call.begun >= *since && call.ended < *until);
            let (all, untrue) =
                (in_calm().count() as u64, in_calm().filter(|call| call.how == "unavailable").count() as u64);
            let (least, percent) = UNAVAILABLE;
            if untrue > least && untrue * 100 > all * percent {
                let details = format!(
                    "{client}: {untrue} of {all} calls with a wait limit ended with `Unavailable` from {since} to {until}"
                );
                found.push(violation(Kind::Untrue, "-", details));
            }
        }
        found
    }

    /// Whether a client forced the lock open about then: a lock that passes on in memory at that moment is lost on arrival.
    fn is_being_forced(&self, name: &str, at: u64) -> bool {
        self.forces(name).iter().any(|force| force.since < at && at < force.at.saturating_add(nanos(MOMENT)))
    }

    /// Grants without any time left, more than now and then, in a client that was not paused.
    pub(super) fn stillborn(&self) -> Vec<Violation> {
        let mut all = Vec::new();
        for (client, events) in &self.clients {
            let mut found = Vec::new();
            let pauses = pauses(events);
            for event in events {
                let What::Granted { id, until } = &event.what else { continue };
                let stood_still = || overlap(&pauses, event.at.saturating_sub(nanos(STOOD_STILL)), event.at) > 0;
                if *until <= event.at && !stood_still() && !self.is_being_forced(&event.name, event.at) {
                    let details =
                        format!("{client}, task {}: {id} was lost when it was granted at {}", event.task, event.at);
                    found.push(violation(Kind::Stillborn, &event.name, details));
                }
            }
            if found.len() > STILLBORN {
                all.append(&mut found);
            }
        }
        all
    }
}

fn late(client: &str, call: &Call<'_>, pauses: &[(u64, u64)]) -> Option<Violation> {
    if call.limit == 0 {
        return None;
    }
    let deadline = call.begun + call.limit;
    let beyond = call.ended.saturating_sub(deadline);
    // First what is rare.
    let late = beyond > nanos(MARGIN) && beyond - overlap(pauses, deadline, call.ended) > nanos(MARGIN);
    late.then(|| {
        let (what, how, limit, beyond) = (call.what, call.how, seconds(call.limit), seconds(beyond));
        let details =
            format!("{client}: {what}, begun at {}, ended with {how}, {beyond} after its limit of {limit}", call.begun);
        violation(Kind::Late, call.name, details)
    })
}

fn calls_of(events: &[Event]) -> Vec<Call<'_>> {
    let (mut calls, mut begun) = (Vec::new(), HashMap::new());
    let last = last(events);
    for event in events {
        match &event.what {
            What::Begun { call, limit } => {
                let call =
                    Call { name: &event.name, what: call, limit: *limit, begun: event.at, ended: last, how: NEVER };
                begun.insert(event.task, call);
            }
            What::Ended { how, .. } => {
                let call = begun.remove(&event.task);
                calls.extend(call.map(|call| Call { ended: event.at, how, ..call }));
            }
            _ => {}
        }
    }
    calls.extend(begun.into_values());
    calls
}

/// When the last event of a client was noted. That is not always the last line: a task takes the time before it writes.
pub(super) fn last(events: &[Event]) -> u64 {
    events.iter().map(|event| event.at).max().unwrap_or(0)
}

/// When a client was paused.
pub(super) fn pauses(events: &[Event]) -> Vec<(u64, u64)> {
    let pause = |event: &Event| match event.what {
        What::Paused { since } => Some((since, event.at)),
        _ => None,
    };
    events.iter().filter_map(pause).collect()
}

pub(super) fn overlap(pauses: &[(u64, u64)], since: u64, until: u64) -> u64 {
    pauses.iter().map(|(from, to)| (*to).min(until).saturating_sub((*from).max(since))).sum()
}
