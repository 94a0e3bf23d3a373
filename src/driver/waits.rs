//! Waits that last: what they wait for, and what their owners hold.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{
    named::{Driver, Inner, NamedLock},
    translate::{from_machine, now},
};
use crate::{
    error::Blocked,
    lock::{Mode, Moment, Owner, Ticket, Waits},
    record::{Wait, WallClock},
    sync::std,
};

/// The end of the ids of writers.
const WRITES: &str = ":write";

/// A call that has waited for longer than `slow_wait`, and whose owner holds other locks.
pub(crate) struct SlowWait {
    lock: Arc<NamedLock>,
    ticket: Ticket,
    pub(crate) wait: Wait,
}

/// A waiter, and when it joined.
type Waiter = (Ticket, (Owner, Mode), Moment);
/// The keys and ids that an owner holds.
type Holds = Vec<(String, String)>;

impl Driver {
    /// The slow waits of owners that hold other locks. `None` if no wait is slow.
    pub(crate) fn slow_waits(&self, clock: &WallClock) -> Option<Vec<SlowWait>> {
        let mut locks = self.all();
        locks.retain(|lock| has_owners(lock));
        let slow = SlowSince(now(), self.config.slow_wait);
        // Thousands may wait for one name: of most of them, only the owner is kept, and for a moment.
        let waiting: HashSet<Owner> = locks.iter().flat_map(|lock| slow.owners(&lock.inner())).collect();
        if waiting.is_empty() {
            return None;
        }
        let holds = holds_of(&locks, &waiting);
        Some(locks.iter().flat_map(|lock| slow.waits(lock, &holds, clock)).collect())
    }
}

/// A wait is slow if it is this long at this moment.
struct SlowSince(Moment, Duration);

impl SlowSince {
    fn waiters<'a>(&self, inner: &'a Inner) -> impl Iterator<Item = Waiter> + use<'_, 'a> {
        inner.state.waiters().filter(|(.., joined)| self.0.since(*joined) >= self.1)
    }

    fn owners(&self, inner: &Inner) -> HashSet<Owner> {
        self.waiters(inner).map(|(_, (owner, _), _)| owner).collect()
    }

    /// Of owners that hold other locks.
    fn waits(&self, lock: &Arc<NamedLock>, holds: &HashMap<Owner, Holds>, clock: &WallClock) -> Vec<SlowWait> {
        let inner = lock.inner();
        let waiters: Vec<_> = self.waiters(&inner).filter(|(_, (owner, _), _)| holds.contains_key(owner)).collect();
        if waiters.is_empty() {
            return Vec::new();
        }
        let known = Known::of(lock, &inner);
        waiters.into_iter().map(|waiter| SlowWait::new(lock, &known, waiter, (holds, clock))).collect()
    }
}

/// Permits and latches have none.
fn has_owners(lock: &NamedLock) -> bool {
    matches!(lock.kind.rules.machine.waits, Waits::Here | Waits::Marked | Waits::InLine)
}

fn holds_of(locks: &[Arc<NamedLock>], owners: &HashSet<Owner>) -> HashMap<Owner, Holds> {
    let mut holds = HashMap::<_, Holds>::default();
    for lock in locks {
        for ((id, mode), owner) in lock.inner().state.held_by().filter(|(_, owner)| owners.contains(owner)) {
            holds.entry(owner).or_default().push((lock.name.key().to_string(), lock.field(id, mode).into()));
        }
    }
    holds
}

/// An id that this client holds.
struct HeldId {
    id: String,
    mode: Mode,
    /// `None`: it has several owners.
    owner: Option<Owner>,
}

/// The holders of a name, as far as the client knows them.
struct Known {
    held: Vec<HeldId>,
    /// The one that the server has named last.
    named: Option<String>,
}

impl Known {
    fn of(lock: &NamedLock, inner: &Inner) -> Known {
        let mut ids = HashMap::<_, Option<Owner>>::default(); // the exploration has a hasher of its own
        for (id, owner) in inner.state.held_by() {
            ids.entry(id).and_modify(|known| *known = known.filter(|known| *known == owner)).or_insert(Some(owner));
        }
        let held = |((id, mode), owner)| HeldId { id: lock.field(id, mode).into(), mode, owner };
        Known { held: ids.into_iter().map(held).collect(), named: inner.named_holder().map(str::to_owned) }
    }

    /// The ids that keep this waiter out. A reader may wait behind a writer that waits; that one may leave, so it is none of them.
    fn keep_out(&self, (owner, mode): (Owner, Mode)) -> Vec<String> {
        let conflicts = |held: &&HeldId| mode == Mode::Exclusive || held.mode == Mode::Exclusive;
        let held = self.held.iter().filter(|held| held.owner != Some(owner)).filter(conflicts);
        let named = self.named.iter().filter(|holder| mode == Mode::Exclusive || holder.ends_with(WRITES));
        let mut all: Vec<String> = held.map(|held| &held.id).chain(named).cloned().collect();
        all.sort();
        all.dedup();
        all
    }
}

impl SlowWait {
    fn new(
        lock: &Arc<NamedLock>,
        known: &Known,
        (ticket, caller, joined): Waiter,
        (holds, clock): (&HashMap<Owner, Holds>, &WallClock),
    ) -> SlowWait {
        let wait = Wait {
            id: format!("{}-{}", joined.nanos(), ticket.0),
            name: lock.name.key().to_string(),
            since: clock.at(from_machine(joined)),
            holders: known.keep_out(caller),
            holds: holds.get(&caller.0).cloned().unwrap_or_default(),
            deadlock: Vec::new(),
        };
        SlowWait { lock: Arc::clone(lock), ticket, wait }
    }

    /// It is the youngest wait of this circle.
    pub(crate) fn is_deadlocked(&self, circle: &[Blocked], fails: bool) {
        let deadlock = (self.ticket, &circle.into(), fails);
        self.lock.with(|inner, fed| inner.is_deadlocked(&self.lock, deadlock, fed));
    }
}
