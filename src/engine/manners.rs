//! After its turns a process lets others go first.
//!
//! All who wait are told of a release at the same moment, and the process that just had the lock is the quickest to ask
//! again, because it is awake, or because it need not wait to be told. So after a release for all it hesitates for as many
//! releases as there are others before it asks; who owes nothing asks at once. This is remembered per key and not in the
//! queue: a process whose tasks come and go one by one has no queue when it asks again.

use std::{sync::Arc, time::Duration};

use dashmap::DashMap;
use tokio::time::Instant;

use crate::{
    stats::Counters,
    sync::{dashmap, tokio},
};

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

#[cfg(test)]
mod tests {
    use super::*;

    fn owing(others: u64, hears: bool) -> (Manners, Arc<str>) {
        let (manners, key) = (Manners::new(Arc::default()), Arc::from("x"));
        manners.owe(&key, others, hears);
        (manners, key)
    }

    /// How many releases it hesitates at, its own included.
    fn hesitations(others: u64, hears: bool) -> u64 {
        let (manners, key) = owing(others, hears);
        let mut count = u64::from(!hears); // at its own, which it does not hear
        manners.heard(&key);
        while manners.after_you(&key).is_some() {
            count += 1;
            manners.heard(&key);
        }
        count
    }

    #[test]
    fn it_hesitates_once_for_each_of_the_others() {
        for others in 1..=8 {
            assert_eq!(hesitations(others, true), others, "and hears its own release");
            assert_eq!(hesitations(others, false), others, "and does not hear its own release");
        }
    }

    #[test]
    fn a_debt_counts_at_once_and_without_a_line() {
        let (manners, key) = owing(1, false);
        let until = manners.after_you(&key).expect("somebody else goes first");
        assert!(until > Instant::now() && until <= Instant::now() + LONGEST_PAUSE);
        assert_eq!(manners.after_you("y"), None, "the debt is that of one key");
    }

    #[test]
    fn who_was_alone_or_has_it_again_owes_nothing() {
        let (alone, key) = owing(0, true);
        assert_eq!(alone.after_you(&key), None);
        let (again, key) = owing(3, true);
        again.taken(&key);
        assert_eq!(again.after_you(&key), None);
    }

    #[test]
    fn only_what_is_over_is_forgotten() {
        let (manners, key) = owing(3, true);
        manners.sweep();
        assert!(manners.after_you(&key).is_some());
        std::thread::sleep(LONGEST_PAUSE + Duration::from_millis(1)); // the pause itself
        manners.sweep();
        assert!(manners.debts.is_empty());
    }
}
