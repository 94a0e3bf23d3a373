//! Untrue results of `unlock`: Ok for a hold that had been deleted, "expired" for one that had not expired, or "could not be confirmed"
//! for one that could.

use std::time::Duration;

use super::{
    Event, History, Hold, Kind, Violation, What,
    calls::{overlap, pauses},
    nanos, seconds,
    tokens::overlaps,
    violation,
};

/// In calm times, a release gets its reply within this, also on a busy machine.
const REPLY: Duration = Duration::from_secs(1);

impl History {
    /// `unlock` returned Ok, though the lock was gone when the request was sent, and no reply was lost. Only for holds of one level:
    /// deeper levels may be granted again after a deletion. Not for a shared read hold, which the last of its readers releases.
    pub(super) fn untrue_releases(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let lost = |hold: &&Hold| {
            let (Some(hit), Some(released)) = (hold.wiped, hold.confirmed) else { return false };
            let since = hit.since;
            let was_there = hit.is_certain && hit.at < released && hold.levels == 1 && !hold.shared;
            let is_alone = || holds.iter().filter(|other| other.id == hold.id && other.end > since).count() == 1;
            was_there && is_alone() && !overlaps(&self.replaced(name).collect::<Vec<_>>(), since, released)
        };
        let say =
            |hold: &Hold| violation(Kind::Untrue, name, format!("{hold} was deleted, and its unlock returned Ok"));
        holds.iter().filter(lost).map(say).collect()
    }

    /// `unlock` returned Ok, though another owner had acquired the lock since it had expired. The rules of exclusion are about earlier times.
    pub(super) fn taken_over(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        if self.rooms.contains_key(name) {
            return Vec::new();
        }
        let replaced: Vec<_> = self.replaced(name).collect();
        let is_excused = |since, until| {
            let is_emptied = self.emptied.iter().any(|emptied| since <= emptied.down && emptied.since <= until);
            is_emptied || overlaps(&replaced, since, until)
        };
        let say = |hold: &Hold| {
            let released =
                hold.confirmed.filter(|released| hold.wiped.is_none() && !is_excused(hold.granted, *released))?;
            // They are in order of their grants.
            let later = &holds[holds.partition_point(|other| other.granted < hold.end)..];
            let meanwhile = later.iter().take_while(|other| other.granted < released);
            let is_another = |other: &&Hold| other.id != hold.id && other.wiped.is_none() && other.was_certain();
            let other = meanwhile.filter(is_another).find(|other| !hold.lets_in(other) && !other.lets_in(hold))?;
            let details = format!("{hold} was released at {released}, after {other}, and its unlock returned Ok");
            Some(violation(Kind::Untrue, name, details))
        };
        holds.iter().filter_map(say).collect()
    }

    /// Holds that were reported as expired before their end. Of a shared hold a new master may have only a shorter lease.
    pub(super) fn hasty_ends(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let replaced: Vec<_> = self.replaced(name).collect();
        let say = |hold: &Hold| {
            let at = hold.hasty.filter(|at| !(hold.shared && overlaps(&replaced, hold.granted, *at)))?;
            let early = seconds(hold.until - at);
            Some(violation(Kind::Untrue, name, format!("{hold} was reported as expired {early} before its end")))
        };
        holds.iter().filter_map(say).collect()
    }

    /// Releases that "could not be confirmed before the lease expired", though the lease had not expired, or though it lasted for long
    /// enough in calm times. A quorum may be in doubt when a server had trouble for most of a lease: if the hold expired there, and was
    /// granted later on others, then only that server could tell whether a majority had it all the time. No later renewal ends such a doubt.
    pub(super) fn unconfirmed_releases(&self) -> Vec<Violation> {
        let of_client = |(client, events): (&String, &Vec<Event>)| {
            let pauses = pauses(events);
            let found = events.iter().filter_map(|event| self.unconfirmed(client, events, event, &pauses));
            found.collect::<Vec<_>>()
        };
        self.clients.iter().flat_map(of_client).collect()
    }

    fn unconfirmed(&self, client: &str, events: &[Event], event: &Event, pauses: &[(u64, u64)]) -> Option<Violation> {
        let What::Unconfirmed { id, since, until } = &event.what else { return None };
        let is_grant = |event: &&Event| matches!(&event.what, What::Granted { id: of, .. } if of == id);
        let granted = || events.iter().find(is_grant).map(|grant| grant.at);
        let is_of_several = events.iter().any(|event| matches!(event.what, What::Voter { .. }));
        if is_of_several && granted().is_some_and(|granted| self.may_be_in_doubt(granted, event, pauses)) {
            return None;
        }
        let calm = self.calm_within(*since, *until, pauses);
        let why = if event.at < *until {
            format!("{} before the end of the lease", seconds(until - event.at))
        } else if calm > nanos(REPLY) {
            format!("although nothing was wrong for {} of its last lease", seconds(calm))
        } else {
            return None;
        };
        let details =
            format!("{client} got the error that the release of {id} could not be confirmed at {}, {why}", event.at);
        Some(violation(Kind::Failure, &event.name, details))
    }

    /// Whether there was trouble for long enough since the grant for a lease to expire on one of the servers.
    fn may_be_in_doubt(&self, granted: u64, released: &Event, pauses: &[(u64, u64)]) -> bool {
        let trouble = released.at - granted - self.calm_within(granted, released.at, pauses);
        trouble >= self.lease(&released.name) / 2
    }

    /// For how long it was calm between two moments and the client was not paused.
    fn calm_within(&self, since: u64, until: u64, pauses: &[(u64, u64)]) -> u64 {
        let within = |(from, to): &(u64, u64)| (since.max(*from), until.min(*to));
        let calm = self.calm.iter().map(within).filter(|(from, to)| from < to);
        calm.map(|(from, to)| to - from - overlap(pauses, from, to)).sum()
    }
}
