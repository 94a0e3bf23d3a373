//! Certain holds, put together from the events of one client.

use std::{collections::HashMap, fmt, time::Duration};

use super::{Event, What, nanos};

/// How late another caller may note that it acquired what a call had that has ended.
const PASSES_ON: Duration = Duration::from_secs(1);

/// A stretch of time in which a client was certain. An owner with several tasks can release the level that it believes to be its
/// last while another of its tasks goes deeper: then one hold of the server comes to several stretches.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) client: String,
    /// Its id on the server, which it may share with those before and after it.
    pub(crate) id: String,
    /// As the client calls it: `id` or `id~owner`.
    pub(crate) holder: String,
    /// When its first level was asked for.
    pub(crate) asked: u64,
    /// What the server granted may have been requested so early, for a caller that was dropped. So it may have been deleted before
    /// it was asked for.
    pub(crate) requested: u64,
    pub(crate) granted: u64,
    /// The end of the certain interval.
    pub(crate) end: u64,
    /// The end of the last `remaining()`.
    pub(crate) until: u64,
    /// When it was notified that the server does not have it any more, though it had not expired.
    pub(crate) removed: Option<u64>,
    /// When it was notified that it had expired, though it had not.
    pub(crate) hasty: Option<u64>,
    /// When it noted its release, if `unlock` then confirmed that it was held to the end, with nothing lost on the way.
    pub(crate) confirmed: Option<u64>,
    /// No other owner may acquire the lock before.
    pub(crate) rests: u64,
    /// How many permits of a semaphore it has; 1 for a lock.
    pub(crate) permits: u64,
    /// How many levels it was granted.
    pub(crate) levels: u32,
    /// Other holders may share it.
    pub(crate) shared: bool,
    /// The token of each level.
    pub(crate) tokens: Vec<u64>,
    /// Broken by force.
    pub(crate) wiped: Option<Hit>,
}

/// A hold was deleted between two moments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit {
    pub(crate) since: u64,
    pub(crate) at: u64,
    /// Else it was perhaps granted later, or spared.
    pub(crate) is_certain: bool,
}

/// So much sooner a time may seem to be over: timers have milliseconds.
const GRAIN: u64 = 5_000_000;
/// The call that brings a hold without asking for one.
const DOWNGRADE: &str = "downgrade";
/// How a call ended whose future was dropped.
const CANCELLED: &str = "cancelled";

/// What is known of one id of one name.
struct Known {
    asked: Asked,
    guards: u32,
    /// Its stretch, while it is certain.
    open: Option<usize>,
}

/// Each with its name.
pub(super) fn holds_of(client: &str, events: &[Event], killed: Option<u64>) -> Vec<(String, Hold)> {
    let mut asked: HashMap<(u32, &str), u64> = HashMap::new();
    let mut holds: Vec<(String, Hold)> = Vec::new();
    let mut by_id: HashMap<(&str, &str), Known> = HashMap::new();
    let mut unattended = Unattended::default();
    for event in events {
        let key = (event.task, event.name.as_str());
        unattended.note(event, &asked);
        match &event.what {
            What::Asked => _ = asked.entry(key).or_insert(event.at), // and not when it goes on asking
            What::Begun { call, .. } if call == DOWNGRADE => _ = asked.insert(key, event.at),
            What::Ended { call, how } if call == DOWNGRADE && how != "ok" => _ = asked.remove(&key),
            What::Left | What::Failed { .. } => _ = asked.remove(&key),
            What::Granted { id, until } => {
                let asked = unattended.first(event, asked.remove(&key).unwrap_or(event.at));
                let known = by_id.entry((&event.name, id)).or_insert(Known { asked, guards: 0, open: None });
                known.guards += 1;
                let at = *known.open.get_or_insert_with(|| {
                    holds.push((event.name.clone(), Hold::new(client, id, known.asked, event.at, killed)));
                    holds.len() - 1
                });
                holds[at].1.sure(event.at, *until);
                holds[at].1.levels += 1;
            }
            What::Permits { id, permits } => {
                let at = by_id.get(&(event.name.as_str(), id.as_str())).and_then(|known| known.open);
                at.inspect(|at| holds[*at].1.permits = *permits);
            }
            What::Rests { id, least } => {
                let at = by_id.get(&(event.name.as_str(), id.as_str())).and_then(|known| known.open);
                at.inspect(|at| holds[*at].1.rests = holds[*at].1.asked + least);
            }
            What::Confirmed { id } => {
                let ended = holds.iter_mut().rev().find(|(name, hold)| *name == event.name && hold.holder == *id);
                // The release of an inner level ends nothing.
                ended.into_iter().for_each(|(_, hold)| hold.confirmed = Some(hold.end).filter(|end| *end <= event.at));
            }
            What::Token { id, token } => {
                let at = by_id.get(&(event.name.as_str(), id.as_str())).and_then(|known| known.open);
                at.inspect(|at| holds[*at].1.tokens.push(*token));
            }
            What::Sure { id, until } => {
                let at = by_id.get(&(event.name.as_str(), id.as_str())).and_then(|known| known.open);
                at.inspect(|at| holds[*at].1.sure(event.at, *until));
            }
            What::Releasing { id } => {
                let Some(known) = by_id.get_mut(&(event.name.as_str(), id.as_str())) else { continue };
                known.guards = known.guards.saturating_sub(1);
                if known.guards == 0 {
                    let at = known.open.take();
                    at.inspect(|at| holds[*at].1.ends(event.at));
                }
            }
            What::Lost { id, removed } => {
                let at = by_id.get_mut(&(event.name.as_str(), id.as_str())).and_then(|known| known.open.take());
                at.inspect(|at| holds[*at].1.lost(event.at, *removed));
            }
            _ => {}
        }
    }
    for (_, hold) in &mut holds {
        hold.end = hold.end.min(hold.until);
    }
    holds
}

/// When a hold was asked for, and when it may have been requested.
#[derive(Clone, Copy)]
struct Asked {
    asked: u64,
    requested: u64,
}

/// Calls whose futures are not polled, or were dropped. What was requested for one of them passes on to others, which asked later.
#[derive(Default)]
struct Unattended<'a>(Vec<UnattendedCall<'a>>);

struct UnattendedCall<'a> {
    of: (u32, &'a str),
    asked: u64,
    fate: Fate,
}

#[derive(PartialEq, Eq)]
enum Fate {
    /// Nobody polls it.
    Kept,
    /// It had a result, or was dropped, after nobody had polled it.
    Ended(u64),
    Dropped(u64),
}

impl<'a> Unattended<'a> {
    fn note(&mut self, event: &'a Event, asked: &HashMap<(u32, &'a str), u64>) {
        let of = (event.task, event.name.as_str());
        match event.what {
            What::Kept => {
                let asked = asked.get(&of).copied().unwrap_or(event.at);
                self.0.push(UnattendedCall { of, asked, fate: Fate::Kept });
            }
            What::Ended { ref how, .. } if how == CANCELLED => {
                let fate = Fate::Dropped(event.at);
                self.0.extend(asked.get(&of).map(|asked| UnattendedCall { of, asked: *asked, fate }));
            }
            What::Granted { .. } | What::Left | What::Failed { .. } => {
                let calls = self.0.iter_mut().filter(|call| call.of == of && call.fate == Fate::Kept);
                calls.for_each(|call| call.fate = Fate::Ended(event.at));
            }
            _ => {}
        }
    }

    /// The hold of this event, which its caller asked for at `asked`. One that waits beside a call that nobody polls takes its turn.
    fn first(&mut self, granted: &Event, asked: u64) -> Asked {
        self.0.retain(|call| call.fate.passes_on(granted.at));
        let (mut first, mut requested) = (asked, asked);
        for call in self.0.iter().filter(|call| call.of.1 == granted.name) {
            requested = requested.min(call.asked);
            if !matches!(call.fate, Fate::Dropped(_)) {
                first = first.min(call.asked);
            }
        }
        Asked { asked: first, requested }
    }
}

impl Fate {
    fn passes_on(&self, at: u64) -> bool {
        match self {
            Fate::Kept => true,
            Fate::Ended(ended) | Fate::Dropped(ended) => at < ended.saturating_add(nanos(PASSES_ON)),
        }
    }
}

/// What the server knows of `id~owner`: the id stays the same where a lock passes on in memory from one owner to the next.
pub(crate) fn on_server(holder: &str) -> &str {
    holder.split_once('~').map_or(holder, |(id, _)| id)
}

impl Hold {
    fn new(client: &str, id: &str, asked: Asked, granted: u64, killed: Option<u64>) -> Hold {
        let Asked { asked, requested } = asked;
        let (holder, id) = (id.to_owned(), on_server(id).to_owned());
        let (client, end) = (client.to_owned(), killed.unwrap_or(u64::MAX));
        let (shared, tokens) = (false, Vec::new());
        let (removed, hasty, confirmed, wiped) = (None, None, None, None);
        let (until, rests, permits, levels) = (0, 0, 1, 0);
        Hold {
            client,
            id,
            holder,
            asked,
            requested,
            granted,
            end,
            until,
            removed,
            hasty,
            confirmed,
            rests,
            permits,
            levels,
            shared,
            tokens,
            wiped,
        }
    }

    /// A guard without time left notes an end that has passed. That adds nothing, however late it is noted.
    fn sure(&mut self, at: u64, until: u64) {
        if until > at {
            self.until = self.until.max(until);
        }
    }

    fn ends(&mut self, at: u64) {
        self.end = self.end.min(at);
    }

    fn lost(&mut self, at: u64, removed: bool) {
        self.ends(at);
        self.removed = (removed && at < self.until).then_some(at);
        self.hasty = (!removed && at + GRAIN < self.until).then_some(at);
    }

    /// Whether a later hold may be certain at the same time: another level of the same hold, a hold that shares the lock, or the same
    /// owner as a reader below its write lock.
    pub(super) fn lets_in(&self, later: &Hold) -> bool {
        let owner = |hold: &Hold| hold.holder.split_once('~').map(|(_, owner)| owner.to_owned());
        let is_same_owner = || self.client == later.client && owner(self).is_some() && owner(self) == owner(later);
        self.holder == later.holder || later.shared && (self.shared || is_same_owner())
    }

    /// Whether it was certain at all.
    pub(super) fn was_certain(&self) -> bool {
        self.granted < self.end
    }

    /// Whether it was certain all this time.
    pub(super) fn spans(&self, since: u64, until: u64) -> bool {
        self.granted <= since && until < self.end
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, from {} to {})", self.client, self.holder, self.granted, self.end)
    }
}
