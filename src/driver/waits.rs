//! Waits that last: what they wait for, and what their owners hold.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    calls::Cause,
    named::{Driver, Inner, NamedLock},
    translate::{from_machine, now},
};
use crate::{
    contained::contained,
    error::{Blocked, told},
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
        let (now, slow) = (now(), self.config.slow_wait);
        let of = |lock: &Arc<NamedLock>| -> Vec<_> {
            let inner = lock.inner();
            let waits = inner.state.waiters().filter(|(.., joined)| now.since(*joined) >= slow);
            waits.map(|waiter| (Arc::clone(lock), waiter)).collect()
        };
        let waits: Vec<_> = locks.iter().flat_map(of).collect();
        if waits.is_empty() {
            return None;
        }
        let holds = holds_of(&locks, &waits.iter().map(|(_, (_, (owner, _), _))| *owner).collect());
        let slow = |(lock, waiter): (Arc<NamedLock>, Waiter)| {
            let holds = holds.get(&waiter.1.0)?.clone();
            Some(SlowWait::new(lock, waiter, holds, clock))
        };
        Some(waits.into_iter().filter_map(slow).collect())
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

/// The ids of the holders that keep this waiter out, as far as the client knows them. A reader may wait behind a writer that waits; that one
/// may leave, so it is none of them.
fn keep_out(lock: &NamedLock, inner: &Inner, (owner, mode): (Owner, Mode)) -> Vec<String> {
    let conflicts = |held: Mode| mode == Mode::Exclusive || held == Mode::Exclusive;
    let held = inner.state.held_by().filter(|((_, held), holder)| *holder != owner && conflicts(*held));
    let ids: HashSet<_> = held.map(|(id, _)| id).collect();
    let named = inner.named_holder().filter(|holder| mode == Mode::Exclusive || holder.ends_with(WRITES));
    let mut all: Vec<String> = ids.into_iter().map(|(id, mode)| lock.field(id, mode).into()).collect();
    all.extend(named.map(str::to_owned));
    all.sort();
    all.dedup();
    all
}

impl SlowWait {
    fn new(lock: Arc<NamedLock>, (ticket, caller, joined): Waiter, holds: Holds, clock: &WallClock) -> SlowWait {
        let wait = Wait {
            id: format!("{}-{}", joined.nanos(), ticket.0),
            name: lock.name.key().to_string(),
            since: clock.at(from_machine(joined)),
            holders: keep_out(&lock, &lock.inner(), caller),
            holds,
            deadlock: Vec::new(),
        };
        SlowWait { lock, ticket, wait }
    }

    /// It is the youngest wait of this circle.
    pub(crate) fn is_deadlocked(&self, circle: &[Blocked], fails: bool) {
        let (name, next) =
            (&*self.lock.name, if fails { "this call ends with an error" } else { "all of them go on waiting" });
        self.lock.driver.counters.deadlocks.up();
        contained(|| tracing::error!(target: "leasehold::lock", name, circle = told(circle), "deadlock; {next}"));
        if fails {
            let cause = Cause::Deadlock(circle.into());
            self.lock.with(|inner, fed| inner.end_wait(&self.lock, self.ticket, cause, fed));
        }
    }
}
