//! The history of a run, from the logs of its client processes, and the checker that looks for violations.
//!
//! All times are nanoseconds of one clock of the machine. A client notes each step before it begins, and each result afterwards. A
//! hold is *certain* from the moment its client notes the grant. It stays certain until the client notes that it is about to release
//! the last level, or that the hold was lost, or until the last `remaining()` that it noted has run out. Two such intervals must not
//! overlap.
//!
//! Keys that were deleted under their holders (`Wipe`) break holds. Exclusion excuses these holds, but a client must not be certain of
//! them for longer than a lease. A client that forces a lock open may break one hold, and no other; of a read-write lock, all holds of
//! that moment. A `Failover` may lose recent writes: these losses are excused and counted.
//!
//! Holders of a read-write lock *share* it if their ids do not end as a writer's id does. Tokens must grow with the grants of a name.
//! A semaphore has never more permits certain than there are, and keeps as many as it was given.
//! No waiter is passed in the queue of a fair lock. No other owner acquires a lock before its `min_hold` is over. A client with late
//! replies gets its turns. No key stays forever, except keys that count tokens.

mod calls;
mod event;
mod exclusion;
mod failover;
mod holds;
mod idle;
mod left;
mod line;
mod permits;
mod rests;
mod tokens;
mod truth;
mod turns;
mod voters;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    time::Duration,
};

pub(crate) use event::{Event, What};
pub(crate) use failover::{Failover, Losses};
use holds::{Hit, Hold, holds_of, on_server};
pub(crate) use left::Left;
pub(crate) use permits::Room;
pub(crate) use turns::Far;
pub(crate) use voters::{Emptied, Silent};

/// All that is known of one run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) clients: BTreeMap<String, Vec<Event>>,
    pub(crate) wipes: Vec<Wipe>,
    pub(crate) failovers: Vec<Failover>,
    /// Of several servers, those that lost their data; and when no majority of them could answer.
    pub(crate) emptied: Vec<Emptied>,
    pub(crate) silent: Vec<Silent>,
    /// What the server had, for each name in order of time.
    pub(crate) seen: HashMap<String, Vec<Seen>>,
    /// What was left on the server in the end: names, ids, and when that was.
    pub(crate) left: Vec<(String, String, u64)>,
    /// What keys were left then.
    pub(crate) keys: Vec<Left>,
    /// Times in which a client was farther away than the others.
    pub(crate) far: Vec<Far>,
    /// Times in which nothing was wrong with some of the names.
    pub(crate) spared: Vec<Spared>,
    /// When clients were killed: certain of nothing any more.
    pub(crate) killed: HashMap<String, u64>,
    /// Times without faults, in which the lock must go on at once: begin and end.
    pub(crate) calm: Vec<(u64, u64)>,
    /// The longest lease that a client asks for; and the leases of single names that are longer.
    pub(crate) longest_lease: Duration,
    pub(crate) leases: HashMap<String, Duration>,
    /// How long a client may be certain of a deleted lock, for names where that is longer than the longest lease.
    pub(crate) beliefs: HashMap<String, Duration>,
    /// How long a lock of that name may stay on the server after its release.
    pub(crate) rests: HashMap<String, Duration>,
    /// How much later than a lease after a failover a client may be notified of a loss.
    pub(crate) late_after_failover: Duration,
    /// How much longer than others a lock of that name may be free.
    pub(crate) slack: HashMap<String, Duration>,
    /// Semaphores.
    pub(crate) rooms: HashMap<String, Room>,
    /// Read-write locks.
    pub(crate) shared: HashSet<String>,
    /// How long a call rides out an outage.
    pub(crate) outage: Duration,
}

/// Keys were deleted between two moments: all of them, or of one lock.
#[derive(Debug, Clone)]
pub(crate) struct Wipe {
    pub(crate) name: Option<String>,
    /// Not the lock itself, but the keys beside it: its tokens, or its queue.
    pub(crate) beside: bool,
    /// Holds that were granted before may have been spared.
    pub(crate) all_from: u64,
    pub(crate) since: u64,
    pub(crate) at: u64,
}

impl Wipe {
    /// Whether it took what that name has there.
    fn is_of(&self, name: &str, beside: bool) -> bool {
        self.name.as_deref().is_none_or(|wiped| wiped == name && self.beside == beside)
    }
}

/// What went wrong between two moments was none of these names' business: they must go on at once.
#[derive(Debug, Clone)]
pub(crate) struct Spared {
    pub(crate) names: Vec<String>,
    pub(crate) since: u64,
    pub(crate) until: u64,
}

/// The ids that had a lock on the server at some moment between these two, and its queue there, the next waiter first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) since: u64,
    pub(crate) at: u64,
    pub(crate) ids: Vec<String>,
    pub(crate) line: Vec<String>,
    /// The last token that was given out, where it counts them.
    pub(crate) token: Option<u64>,
    /// The id of the waiter that has left a mark.
    pub(crate) mark: Option<String>,
    /// Of a semaphore, the number of permits that there are, free and taken. It may have an id once for each permit.
    pub(crate) permits: Option<i64>,
    /// The ids that each of several servers had instead; `None` for a server that did not answer.
    pub(crate) voters: Vec<Option<Vec<String>>>,
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) details: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// Two certain holders at once.
    Overlap,
    /// Certain of a hold for longer than a lease after it was deleted.
    Belief,
    /// The server counts other levels than the holder; a semaphore has other permits than it was given.
    Level,
    /// A guard that is not lost and has no time left; a certain hold that the server does not have.
    Hollow,
    /// A lock that was gone before its lease ended, though nothing had removed it.
    Taken,
    /// Granted, and lost from the start.
    Stillborn,
    /// A waiter waited while the lock was free.
    Idle,
    /// A call that ended too late.
    Late,
    /// A call that gave up too soon.
    Hasty,
    /// A result that is not true.
    Untrue,
    /// An error in a calm period; a release that could have been confirmed and was not.
    Failure,
    /// A hold that is on the server long after its release; a key without an expiry time.
    Leftover,
    /// A client, or a call, that does not end.
    Stuck,
    /// A fencing token that is not greater than those before.
    Token,
    /// A waiter in the queue of a fair lock that a later one passed.
    Passed,
    /// A lock that another owner acquired before its `min_hold` was over.
    Early,
    /// A client that never acquired the lock while others did again and again.
    Starved,
}

impl Kind {
    const ALL: [Kind; 17] = [
        Kind::Overlap,
        Kind::Belief,
        Kind::Level,
        Kind::Hollow,
        Kind::Taken,
        Kind::Stillborn,
        Kind::Idle,
        Kind::Late,
        Kind::Hasty,
        Kind::Untrue,
        Kind::Failure,
        Kind::Leftover,
        Kind::Stuck,
        Kind::Token,
        Kind::Passed,
        Kind::Early,
        Kind::Starved,
    ];

    fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| format!("{kind:?}") == name)
    }
}

/// How late a request can still be answered that was sent before a wipe.
const ON_ITS_WAY: Duration = Duration::from_secs(3);

impl History {
    pub(crate) fn check(&self) -> Vec<Violation> {
        self.judge().0
    }

    /// The violations, and the losses that are excused because failovers, or a server without its data, caused them.
    pub(crate) fn judge(&self) -> (Vec<Violation>, Losses) {
        let (mut found, mut losses) = (Vec::new(), Losses::default());
        let (members, by_name) = (self.members(), self.holds());
        for (name, holds) in &by_name {
            found.extend(self.exclusion(name, holds, &members, &mut losses));
            found.extend(self.without_a_majority(name, holds));
            found.extend(self.left_behind(name, holds, &members));
            found.extend(self.beliefs(name, holds));
            found.extend(self.beliefs_after_failovers(name, holds));
            found.extend(self.idle(name, holds));
            found.extend(self.other_permits(name));
            found.extend(self.tokens(name, holds));
            found.extend(self.tokens_seen(name, holds));
            found.extend(self.passed(name, holds));
            found.extend(self.woken(name, holds));
            found.extend(self.untrue_releases(name, holds));
            found.extend(self.taken_over(name, holds));
            found.extend(self.hasty_ends(name, holds));
            found.extend(self.starved(name, holds));
        }
        found.extend(self.calls(&by_name));
        found.extend(self.stillborn());
        found.extend(self.leftovers(&mut losses));
        found.extend(self.left_in_the_end(&members));
        found.extend(self.left_for_ever());
        found.extend(self.told());
        found.extend(self.unconfirmed_releases());
        found.extend(self.released_in_silence());
        (found, losses)
    }

    /// How often an outermost hold acquired each lock.
    pub(crate) fn turns(&self) -> BTreeMap<String, u64> {
        self.holds().into_iter().map(|(name, holds)| (name, holds.len() as u64)).collect()
    }

    /// How often each thing happened that the function has a word for.
    pub(crate) fn count<'a, F>(&'a self, mut word: F) -> BTreeMap<String, u64>
    where
        F: FnMut(&'a What) -> Option<String>,
    {
        let mut counts = BTreeMap::new();
        for event in self.clients.values().flatten() {
            word(&event.what).into_iter().for_each(|word| *counts.entry(word).or_default() += 1);
        }
        counts
    }

    /// The holds of each name in order of their grants.
    fn holds(&self) -> BTreeMap<String, Vec<Hold>> {
        let mut by_name: BTreeMap<String, Vec<Hold>> = BTreeMap::new();
        for (client, events) in &self.clients {
            for (name, hold) in holds_of(client, events, self.killed.get(client).copied()) {
                by_name.entry(name).or_default().push(hold);
            }
        }
        for (name, holds) in &mut by_name {
            ask_once_for_each_id(holds);
            let is_shared = self.shared.contains(name);
            for hold in holds.iter_mut() {
                hold.shared = is_shared && !hold.id.ends_with(":write");
                self.wipe(name, hold);
            }
            holds.sort_by_key(|hold| hold.granted);
        }
        by_name
    }

    /// Breaks a hold that the server may have granted before a wipe and that was believed in after it.
    fn wipe(&self, name: &str, hold: &mut Hold) {
        // So long an answer can be on its way, or somebody can pass on what nobody knows to be gone.
        let unheard = nanos(ON_ITS_WAY).max(self.beliefs.get(name).copied().map_or(0, nanos));
        let hit = |wipe: &&Wipe| {
            let was_there = hold.requested < wipe.at && hold.granted < wipe.at + unheard;
            wipe.is_of(name, false) && was_there && hold.end > wipe.since
        };
        hold.wiped = self.wipes.iter().find(hit).map(|wipe| Hit {
            since: wipe.since,
            at: wipe.at,
            is_certain: (wipe.all_from..wipe.since).contains(&hold.granted),
        });
    }

    fn beliefs(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let most = nanos(self.beliefs.get(name).copied().unwrap_or(self.longest_lease));
        let too_long = |hold: &&Hold| {
            // One that was granted after all is not broken: it was on its way when the wipe came.
            hold.wiped.is_some_and(|hit| hit.is_certain && hold.end.min(hold.until) > hit.at + most)
        };
        let say = |hold: &Hold| {
            let beyond = hold.end.min(hold.until) - hold.wiped.map_or(0, |hit| hit.at);
            violation(
                Kind::Belief,
                name,
                format!("{hold} was deleted, and its client was certain of it for {} more", seconds(beyond)),
            )
        };
        holds.iter().filter(too_long).map(say).collect()
    }

    /// What clients found by themselves, and errors in calm times.
    fn told(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for (client, events) in &self.clients {
            for event in events {
                match &event.what {
                    What::Failed { error } if self.is_calm(event.at) => {
                        let details = format!("{client} got an error at {}: {error}", event.at);
                        found.push(violation(Kind::Failure, &event.name, details));
                    }
                    What::Wrong { kind, details } => {
                        let details = format!("{client}, task {} at {}: {details}", event.task, event.at);
                        found.push(violation(*kind, &event.name, details));
                    }
                    _ => {}
                }
            }
        }
        found
    }

    fn is_calm(&self, at: u64) -> bool {
        self.calm.iter().any(|(since, until)| (*since..*until).contains(&at))
    }

    /// How long a lock of that name may stay on the server after its release.
    fn rest(&self, name: &str) -> u64 {
        nanos(self.rests.get(name).copied().unwrap_or_default())
    }

    fn lease(&self, name: &str) -> u64 {
        nanos(self.leases.get(name).copied().unwrap_or(self.longest_lease))
    }
}

/// A hold that got its id in memory counts as requested when that id was new.
fn ask_once_for_each_id(holds: &mut [Hold]) {
    let mut first: HashMap<String, (u64, u64)> = HashMap::new();
    for hold in holds.iter() {
        let (asked, requested) = first.entry(hold.id.clone()).or_insert((hold.asked, hold.requested));
        *asked = hold.asked.min(*asked);
        *requested = hold.requested.min(*requested);
    }
    holds.iter_mut().for_each(|hold| (hold.asked, hold.requested) = first[&hold.id]);
}

fn violation(kind: Kind, name: &str, details: String) -> Violation {
    Violation { kind, name: name.to_owned(), details }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("shorter than centuries")
}

fn seconds(nanos: u64) -> String {
    format!("{:.3} s", nanos as f64 / 1e9)
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {}", self.kind, self.name, self.details)
    }
}
