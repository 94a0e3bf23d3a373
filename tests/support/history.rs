//! What client processes did, as they wrote it down, and the checker that looks for what must not have happened.
//!
//! All times are nanoseconds of one clock of the machine. A client notes what it is about to do before, and what it was
//! told after: so a hold is *certain* from the moment its grant is noted until it is noted that it will be given back,
//! that it was lost, or until the last `remaining()` that it was told ran out. Two such intervals must not overlap.
//!
//! Keys that were deleted under their holders (`Wiped`) break holds by force; those are excused from exclusion, but must not
//! be believed in for longer than a lease.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    str::{FromStr, SplitWhitespace},
    time::Duration,
};

/// One line of a client's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: u64,
    /// Who asks: a number within the client.
    pub(crate) task: u32,
    pub(crate) name: String,
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// It is about to ask.
    Asked,
    /// It was given a level, certain until that moment.
    Granted { id: String, until: u64 },
    /// It was told again until when it certainly has it.
    Sure { id: String, until: u64 },
    /// It asked the server, beginning at that moment, how many levels it has; none if it does not have the lock.
    Counted { id: String, since: u64, believed: u64, counted: u64 },
    /// It is about to give back a level; so many are left then.
    Releasing { id: String, left: u64 },
    /// The server confirmed that.
    Released { id: String },
    /// It was told that the lock is gone.
    Lost { id: String },
    /// It asked and left without: out of time or cancelled.
    Left,
    /// It asked and was given an error.
    Failed { error: String },
}

/// All that is known of one run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) clients: BTreeMap<String, Vec<Event>>,
    pub(crate) wipes: Vec<Wipe>,
    /// When clients were killed: certain of nothing any more.
    pub(crate) killed: HashMap<String, u64>,
    /// Times without faults, in which the lock must go on at once: begin and end.
    pub(crate) calm: Vec<(u64, u64)>,
    /// The longest lease that anybody asks for.
    pub(crate) longest_lease: Duration,
}

/// A key was deleted, or all of them, between two moments.
#[derive(Debug, Clone)]
pub(crate) struct Wipe {
    pub(crate) name: Option<String>,
    pub(crate) since: u64,
    pub(crate) at: u64,
}

/// What must not have happened.
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
    /// The server counts other levels than the holder.
    Level,
    /// Waiting while nobody had it, in calm times.
    Idle,
    /// An error in calm times.
    Failure,
    /// A hold that remains when all is over.
    Leftover,
    /// A client that does not end.
    Stuck,
}

/// How long a lock may lie free while somebody waits, in calm times.
const AT_ONCE: Duration = Duration::from_millis(500);
/// How late a request can still be answered that was sent before a wipe.
const ON_ITS_WAY: Duration = Duration::from_secs(3);

/// One outermost hold, put together from a client's events.
#[derive(Debug)]
struct Hold {
    client: String,
    id: String,
    asked: u64,
    granted: u64,
    /// The end of the certain interval.
    end: u64,
    /// The end of the last `remaining()`.
    until: u64,
    /// Broken by force between these moments.
    wiped: Option<(u64, u64)>,
}

/// Somebody waits.
#[derive(Debug)]
struct Wait {
    client: String,
    since: u64,
    until: u64,
}

impl History {
    pub(crate) fn check(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for (name, holds) in self.holds() {
            found.extend(overlaps(&name, &holds));
            found.extend(self.beliefs(&name, &holds));
            found.extend(self.levels(&name, &holds));
            found.extend(self.idle(&name, &holds));
        }
        found.extend(self.failures());
        found
    }

    /// How often a lock was taken by an outermost hold.
    pub(crate) fn turns(&self) -> usize {
        self.holds().values().map(Vec::len).sum()
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
            holds.iter_mut().for_each(|hold| self.wipe(name, hold));
            holds.sort_by_key(|hold| hold.granted);
        }
        by_name
    }

    /// Breaks a hold that the server may have granted before a wipe and that was believed in after it.
    fn wipe(&self, name: &str, hold: &mut Hold) {
        let hit = |wipe: &&Wipe| {
            let is_name = wipe.name.as_deref().is_none_or(|wiped| wiped == name);
            let was_there = hold.asked < wipe.at && hold.granted < wipe.at + nanos(ON_ITS_WAY);
            is_name && was_there && hold.end > wipe.since
        };
        hold.wiped = self.wipes.iter().find(hit).map(|wipe| (wipe.since, wipe.at));
    }

    fn beliefs(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let too_long = |hold: &&Hold| {
            // One that was granted after all is not broken: it was on its way when the wipe came.
            hold.wiped.is_some_and(|(since, at)| {
                hold.granted < since && hold.end.min(hold.until) > at + nanos(self.longest_lease)
            })
        };
        let say = |hold: &Hold| {
            let beyond = hold.end.min(hold.until) - hold.wiped.map_or(0, |(_, at)| at);
            violation(Kind::Belief, name, format!("{hold} was deleted and believed in for {} more", seconds(beyond)))
        };
        holds.iter().filter(too_long).map(say).collect()
    }

    fn levels(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let by_id: HashMap<_, _> = holds.iter().map(|hold| (hold.id.as_str(), hold)).collect();
        let events = self.clients.values().flatten().filter(|event| event.name == name);
        events.filter_map(|event| wrong_count(event, &by_id)).collect()
    }

    /// Calm times in which somebody waited and nobody had it.
    fn idle(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let waits = self.waits(name);
        let mut found = Vec::new();
        // First what is rare, else the three lists would be gone through for each other.
        let long = |(since, until): &(u64, u64)| until - since > nanos(AT_ONCE);
        for (since, until) in free(holds).into_iter().filter(long) {
            for (calm, over) in self.calm.iter().filter(|(calm, over)| *calm < until && *over > since) {
                let stuck = waits.iter().find(|wait| {
                    let from = since.max(*calm).max(wait.since);
                    until.min(*over).min(wait.until).saturating_sub(from) > nanos(AT_ONCE)
                });
                if let Some(wait) = stuck {
                    let free = seconds(until.min(wait.until) - since.max(wait.since));
                    let details = format!("{} waited from {} while it was free for {free}", wait.client, wait.since);
                    found.push(violation(Kind::Idle, name, details));
                }
            }
        }
        found
    }

    fn waits(&self, name: &str) -> Vec<Wait> {
        let mut waits = Vec::new();
        for (client, events) in &self.clients {
            let mut asked = HashMap::new();
            for event in events.iter().filter(|event| event.name == name) {
                match event.what {
                    What::Asked => _ = asked.insert(event.task, event.at),
                    What::Granted { .. } | What::Left | What::Failed { .. } => {
                        let since = asked.remove(&event.task);
                        waits.extend(since.map(|since| Wait { client: client.clone(), since, until: event.at }));
                    }
                    _ => {}
                }
            }
            let end = self.killed.get(client).copied().unwrap_or(u64::MAX);
            waits.extend(asked.into_values().map(|since| Wait { client: client.clone(), since, until: end }));
        }
        waits
    }

    fn failures(&self) -> Vec<Violation> {
        let is_calm = |at: u64| self.calm.iter().any(|(since, until)| (*since..*until).contains(&at));
        let mut found = Vec::new();
        for (client, events) in &self.clients {
            for event in events.iter().filter(|event| is_calm(event.at)) {
                if let What::Failed { error } = &event.what {
                    found.push(violation(Kind::Failure, &event.name, format!("{client} was told: {error}")));
                }
            }
        }
        found
    }
}

/// Puts the events of one client together to holds, each with its name.
fn holds_of(client: &str, events: &[Event], killed: Option<u64>) -> Vec<(String, Hold)> {
    let mut asked: HashMap<(u32, &str), u64> = HashMap::new();
    let mut holds: Vec<(String, Hold)> = Vec::new();
    let mut by_id: HashMap<&str, usize> = HashMap::new();
    for event in events {
        let key = (event.task, event.name.as_str());
        match &event.what {
            What::Asked => _ = asked.insert(key, event.at),
            What::Granted { id, until } => {
                let at = *by_id.entry(id).or_insert_with(|| {
                    let asked = asked.get(&key).copied().unwrap_or(event.at);
                    holds.push((event.name.clone(), Hold::new(client, id, asked, event.at, killed)));
                    holds.len() - 1
                });
                holds[at].1.sure(*until);
            }
            What::Sure { id, until } => {
                if let Some(at) = by_id.get(id.as_str()) {
                    holds[*at].1.sure(*until);
                }
            }
            What::Releasing { id, left: 0 } | What::Lost { id } => {
                if let Some(at) = by_id.get(id.as_str()) {
                    holds[*at].1.ends(event.at);
                }
            }
            _ => {}
        }
    }
    for (_, hold) in &mut holds {
        hold.end = hold.end.min(hold.until);
    }
    holds
}

impl Hold {
    fn new(client: &str, id: &str, asked: u64, granted: u64, killed: Option<u64>) -> Hold {
        let end = killed.unwrap_or(u64::MAX);
        Hold { client: client.to_owned(), id: id.to_owned(), asked, granted, end, until: 0, wiped: None }
    }

    fn sure(&mut self, until: u64) {
        self.until = self.until.max(until);
    }

    fn ends(&mut self, at: u64) {
        self.end = self.end.min(at);
    }
}

/// Neighbours whose certain intervals overlap, those broken by force left out.
fn overlaps(name: &str, holds: &[Hold]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut last: Option<&Hold> = None;
    for hold in holds.iter().filter(|hold| hold.wiped.is_none()) {
        if let Some(last) = last.filter(|last| last.end > hold.granted && hold.end > hold.granted) {
            let both = seconds(last.end.min(hold.end) - hold.granted);
            found.push(violation(Kind::Overlap, name, format!("{last} and {hold} had it both for {both}")));
        }
        if last.is_none_or(|last| hold.end > last.end) {
            last = Some(hold);
        }
    }
    found
}

fn wrong_count(event: &Event, holds: &HashMap<&str, &Hold>) -> Option<Violation> {
    let What::Counted { id, since, believed, counted } = &event.what else { return None };
    let hold = holds.get(id.as_str())?;
    // Only where nobody could have taken it away meanwhile.
    let certain = hold.wiped.is_none() && hold.granted <= *since && event.at < hold.end;
    let details = || format!("{hold} believes in {believed} levels, the server counts {counted}");
    (certain && believed != counted).then(|| violation(Kind::Level, &event.name, details()))
}

/// The times in which nobody had it, as far as anybody knows.
fn free(holds: &[Hold]) -> Vec<(u64, u64)> {
    let (mut free, mut since) = (Vec::new(), 0);
    for hold in holds {
        if hold.granted > since {
            free.push((since, hold.granted));
        }
        since = since.max(hold.end);
    }
    free.push((since, u64::MAX));
    free
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

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, from {} to {})", self.client, self.id, self.granted, self.end)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {}", self.kind, self.name, self.details)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} ", self.at, self.task, self.name)?;
        match &self.what {
            What::Asked => write!(f, "asked"),
            What::Granted { id, until } => write!(f, "granted {id} {until}"),
            What::Sure { id, until } => write!(f, "sure {id} {until}"),
            What::Counted { id, since, believed, counted } => write!(f, "counted {id} {since} {believed} {counted}"),
            What::Releasing { id, left } => write!(f, "releasing {id} {left}"),
            What::Released { id } => write!(f, "released {id}"),
            What::Lost { id } => write!(f, "lost {id}"),
            What::Left => write!(f, "left"),
            What::Failed { error } => write!(f, "failed {}", error.split_whitespace().collect::<Vec<_>>().join(" ")),
        }
    }
}

/// A line that was cut short by the end of its writer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Torn;

impl FromStr for Event {
    type Err = Torn;

    fn from_str(line: &str) -> Result<Event, Torn> {
        let mut words = line.split_whitespace();
        let (at, task, name) = (number(&mut words)?, number(&mut words)?, word(&mut words)?);
        let task = u32::try_from(task).map_err(|_| Torn)?;
        let what = match words.next().ok_or(Torn)? {
            "asked" => What::Asked,
            "granted" => What::Granted { id: word(&mut words)?, until: number(&mut words)? },
            "sure" => What::Sure { id: word(&mut words)?, until: number(&mut words)? },
            "counted" => What::Counted {
                id: word(&mut words)?,
                since: number(&mut words)?,
                believed: number(&mut words)?,
                counted: number(&mut words)?,
            },
            "releasing" => What::Releasing { id: word(&mut words)?, left: number(&mut words)? },
            "released" => What::Released { id: word(&mut words)? },
            "lost" => What::Lost { id: word(&mut words)? },
            "left" => What::Left,
            "failed" => What::Failed { error: words.collect::<Vec<_>>().join(" ") },
            _ => return Err(Torn),
        };
        Ok(Event { at, task, name, what })
    }
}

fn word(words: &mut SplitWhitespace<'_>) -> Result<String, Torn> {
    words.next().map(str::to_owned).ok_or(Torn)
}

fn number(words: &mut SplitWhitespace<'_>) -> Result<u64, Torn> {
    words.next().and_then(|word| word.parse().ok()).ok_or(Torn)
}
