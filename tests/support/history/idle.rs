//! Locks that are free while a waiter waits, and locks that are not free though they were released.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use super::{
    History, Hold, Kind, Losses, Room, Violation, What,
    calls::{last, overlap, pauses},
    nanos, on_server, seconds, violation,
    voters::{Members, client_of},
};

/// How long a lock may be free while a waiter waits, in a calm period.
const AT_ONCE: Duration = Duration::from_millis(500);
/// And whatever happens: the longest sleep of a waiter, an outage ridden out, a lease, a client that was stopped.
const AT_LAST: Duration = Duration::from_secs(13);
/// How long waiters in a queue on the server may sleep, and a little more.
const LINE_UP: Duration = Duration::from_millis(5_500);
/// The time that each waiter that is first in a queue and does not come, except one, costs the others: it died, or had left the
/// queue that a failover has brought back.
const GRACE: Duration = Duration::from_secs(5);
/// How long something may be on its way back, in calm times.
pub(super) const GIVEN_BACK: Duration = Duration::from_secs(2);

/// A waiter, from its request to its result.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) client: String,
    pub(super) since: u64,
    pub(super) until: u64,
}

impl History {
    /// Times in which a waiter waited and the lock was free.
    pub(super) fn idle(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let slack = self.slack.get(name).copied().unwrap_or_default();
        let at_once = nanos(AT_ONCE + slack);
        let mut windows: Vec<_> = self.calm.iter().map(|(calm, over)| (*calm, *over, at_once)).collect();
        let spared = self.spared.iter().filter(|spared| spared.names.iter().any(|of| of == name));
        windows.extend(spared.map(|spared| (spared.since, spared.until, at_once)));
        windows.push((0, u64::MAX, nanos(AT_LAST + slack)));
        let overloaded = self.overloaded();
        let waits = self.waits(name);
        let mut found = Vec::new();
        // First what is rare, else the three lists would be gone through for each other.
        let long = |(since, until): &(u64, u64)| until - since > at_once;
        for (since, until) in self.free(name, holds).into_iter().filter(long) {
            let more = nanos(GRACE) * self.absent(name, since, until).saturating_sub(1);
            for (calm, over, most) in windows.iter().filter(|(calm, over, _)| *calm < until && *over > since) {
                let stuck = waits.iter().find(|wait| {
                    let (from, to) = (since.max(*calm).max(wait.since), until.min(*over).min(wait.until));
                    let waited = to.saturating_sub(from);
                    let excused = || match *most == at_once {
                        true => overlap(&overloaded, from, to),
                        false => self.stood_still(&wait.client, from, to),
                    };
                    waited > *most + more && waited - excused() > *most + more
                });
                if let Some(wait) = stuck {
                    let free = seconds(until.min(wait.until) - since.max(wait.since));
                    let details =
                        format!("{} waited from {} while the lock was free for {free}", wait.client, wait.since);
                    found.push(violation(Kind::Idle, name, details));
                }
            }
        }
        found
    }

    /// When any process was paused, and the moment after. The script pauses no process in a calm period, so the machine was too
    /// busy, and the process may have been the one that had to wake the others.
    fn overloaded(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = self.clients.values().flat_map(|events| pauses(events)).collect();
        all.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (since, until) in all.into_iter().map(|(since, until)| (since, until + nanos(AT_ONCE))) {
            match merged.last_mut() {
                Some((_, end)) if since <= *end => *end = until.max(*end),
                _ => merged.push((since, until)),
            }
        }
        merged
    }

    /// For how long a client was paused meanwhile.
    pub(super) fn stood_still(&self, client: &str, since: u64, until: u64) -> u64 {
        self.clients.get(client).map_or(0, |events| overlap(&pauses(events), since, until))
    }

    /// How many waiters were seen at the head of its queue then and did not acquire the lock.
    fn absent(&self, name: &str, since: u64, until: u64) -> u64 {
        let looks = self.seen.get(name).into_iter().flatten().filter(|seen| seen.since >= since && seen.at <= until);
        let mut heads: HashSet<&str> = looks.filter_map(|seen| seen.line.first()).map(String::as_str).collect();
        for event in self.clients.values().flatten().filter(|event| event.at >= since && event.name == name) {
            if let What::Granted { id, .. } = &event.what {
                heads.remove(on_server(id));
            }
        }
        heads.len() as u64
    }

    pub(super) fn waits(&self, name: &str) -> Vec<Wait> {
        let mut waits = Vec::new();
        for (client, events) in &self.clients {
            let mut asked = HashMap::new();
            for event in events.iter().filter(|event| event.name == name) {
                match event.what {
                    What::Asked => _ = asked.insert(event.task, event.at),
                    What::Granted { .. } | What::Kept | What::Left | What::Failed { .. } => {
                        let since = asked.remove(&event.task);
                        waits.extend(since.map(|since| Wait { client: client.clone(), since, until: event.at }));
                    }
                    _ => {}
                }
            }
            let end = self.killed.get(client).copied().unwrap_or(self.end());
            waits.extend(asked.into_values().map(|since| Wait { client: client.clone(), since, until: end }));
        }
        waits
    }

    /// When the last was heard of anything.
    fn end(&self) -> u64 {
        let events = self.clients.values().map(|events| last(events));
        events.chain(self.calm.iter().map(|(_, over)| *over)).max().unwrap_or(0)
    }

    /// The times in which the lock was free, as far as the logs and the looks show; of a semaphore, in which it had enough for any request.
    fn free(&self, name: &str, holds: &[Hold]) -> Vec<(u64, u64)> {
        let mut taken: Vec<_> = holds.iter().map(|hold| (hold.granted, hold.end, hold.permits)).collect();
        // It may have been granted just before that was noted.
        let rests = holds.iter().filter(|hold| hold.rests > 0);
        let mut whole: Vec<_> = rests.map(|hold| (hold.granted, hold.granted + (hold.rests - hold.asked))).collect();
        whole.extend(self.orphaned(name));
        whole.extend(self.returned(name));
        whole.extend(self.scattered(name));
        let room = self.rooms.get(name).copied().unwrap_or(Room::LOCK);
        taken.extend(whole.into_iter().map(|(since, until)| (since, until, room.all)));
        room.free(&taken)
    }

    /// For a lease after a client was killed the server may have what it held, or had asked for.
    fn orphaned(&self, name: &str) -> Vec<(u64, u64)> {
        let touched =
            |client: &&String| self.clients.get(*client).is_some_and(|all| all.iter().any(|event| event.name == name));
        let killed = self.killed.iter().filter(|(client, _)| touched(client));
        killed.map(|(_, killed)| (*killed, killed + self.lease(name))).collect()
    }

    /// For a lease after a failover the server may have locks that had been released.
    fn returned(&self, name: &str) -> impl Iterator<Item = (u64, u64)> {
        let failovers = self.failovers.iter().filter(move |failover| failover.is_of(name));
        failovers.map(move |failover| (failover.since, failover.until + self.lease(name)))
    }

    /// When a queue was deleted, its waiters do not know which of them is next until all have looked again.
    fn scattered(&self, name: &str) -> impl Iterator<Item = (u64, u64)> {
        let has_line = self.has_line(name);
        let wipes = self.wipes.iter().filter(move |wipe| has_line && wipe.is_of(name, true));
        wipes.map(|wipe| (wipe.since, wipe.at + nanos(LINE_UP)))
    }

    /// Locks that the server had at the end, when all clients were gone.
    pub(super) fn left_in_the_end(&self, members: &Members<'_>) -> Vec<Violation> {
        let given_back = self.given_back();
        let mut found = Vec::new();
        for (name, id, at) in &self.left {
            let lives = client_of(id, members).is_some_and(|client| !self.killed.contains_key(client));
            let is_excused = match given_back.get(&(name.as_str(), id.as_str())) {
                Some(since) => self.came_back(name, *since),
                None => !lives && self.orphaned(name).iter().any(|(killed, until)| (*killed..*until).contains(at)),
            };
            if !is_excused {
                found.push(violation(Kind::Leftover, name, format!("{id} is on the server at the end")));
            }
        }
        found
    }

    /// Locks that the server still had in a calm period, though their holders released them long before.
    pub(super) fn leftovers(&self, losses: &mut Losses) -> Vec<Violation> {
        let given_back = self.given_back();
        let (mut found, mut known) = (Vec::new(), HashSet::new());
        for (name, all) in &self.seen {
            for seen in all.iter().filter(|seen| self.is_calm(seen.since)) {
                for id in &seen.ids {
                    let Some(since) = given_back.get(&(name.as_str(), id.as_str())) else { continue };
                    if since + nanos(GIVEN_BACK) + self.rest(name) >= seen.since || !known.insert(id) {
                        continue;
                    }
                    if self.came_back(name, *since) {
                        losses.back.insert(id.clone());
                    } else {
                        let late = seconds(seen.since - since);
                        let details = format!("{id} was released at {since}, and is on the server {late} later");
                        found.push(violation(Kind::Leftover, name, details));
                    }
                }
            }
        }
        found
    }

    /// When the last level of each id was released, by clients that were not killed. An id is unique for its name only.
    fn given_back(&self) -> HashMap<(&str, &str), u64> {
        let mut levels: HashMap<(&str, &str), (u32, u64)> = HashMap::new();
        for (_, events) in self.clients.iter().filter(|(client, _)| !self.killed.contains_key(*client)) {
            for event in events {
                match &event.what {
                    What::Granted { id, .. } => levels.entry((&event.name, on_server(id))).or_default().0 += 1,
                    What::Releasing { id } => {
                        let (levels, at) = levels.entry((&event.name, on_server(id))).or_default();
                        (*levels, *at) = (levels.saturating_sub(1), event.at);
                    }
                    _ => {}
                }
            }
        }
        levels.into_iter().filter(|(_, (levels, _))| *levels == 0).map(|(id, (_, at))| (id, at)).collect()
    }
}
