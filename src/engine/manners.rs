//! After its turns a process lets others go first.
//!
//! All who wait are told of a release at the same moment, and the process that just had the lock is the quickest to ask
//! again, because it is awake, or because it need not wait to be told. So after a release for all it hesitates for as many
//! releases as there are others before it asks; who owes nothing asks at once. This is remembered per key and not in the
//! queue: a process whose tasks come and go one by one has no queue when it asks again.

use std::{sync::Arc, time::Duration};

use dashmap::DashMap;
use tokio::time::Instant;

use crate::stats::Counters;

/// How long to let others go first: a few round trips, in which they hear of it and ask. A JVM that is woken takes one to
/// two milliseconds to ask (measured with Redisson 4.7.0 beside this).
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Manners {
    debts: DashMap<Arc<str>, Debt>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Debt {
    /// Releases for which to hesitate still.
    owed: u64,
    until: Instant,
}

impl Manners {
    pub(crate) fn new(counters: Arc<Counters>) -> Manners {
        Manners { debts: DashMap::new(), counters }
    }

    /// We released it for all, and so many `others` heard of it. `hears`: so will we.
    pub(crate) fn owe(&self, key: &Arc<str>, others: u64, hears: bool) {
        if others > 0 {
            // This release is the first of them, or else our own message will be.
            let owed = others - u64::from(!hears);
            self.debts.insert(Arc::clone(key), Debt { owed, until: Instant::now() + self.pause() });
        }
    }

    /// A release was heard of.
    pub(crate) fn heard(&self, key: &str) {
        self.debts.remove_if_mut(key, |_, debt| {
            let paid = debt.owed == 0;
            debt.owed = debt.owed.saturating_sub(1);
            debt.until = Instant::now() + self.pause();
            paid
        });
    }

    /// Before this moment others should go first.
    pub(crate) fn after_you(&self, key: &str) -> Option<Instant> {
        self.debts.get(key).map(|debt| debt.until).filter(|until| *until > Instant::now())
    }

    /// It is ours again: nothing is owed any more.
    pub(crate) fn taken(&self, key: &str) {
        self.debts.remove(key);
    }

    /// Forgets what can make no difference any more.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        self.debts.retain(|_, debt| debt.until > now);
    }

    fn pause(&self) -> Duration {
        (self.counters.round_trip.get() * 4).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }
}
