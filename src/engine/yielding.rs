//! After its turns a process lets other processes go first.
//!
//! All waiting processes receive the message about a release at the same moment. The process that just held the lock is the quickest to
//! send the next request, because it is awake, or because it need not wait for the message. So after a release for all processes it
//! pauses before its next request: once for each of the other processes. Until then it *owes* turns. This debt is kept per key and not in
//! the queue, because a process whose tasks come one by one has no queue between them.
//!
//! A subscriber need not want the lock: a monitor that subscribes to all channels (`PSUBSCRIBE *`) receives every message. So a process
//! that has let others go first several times in a row, and no other process acquired the lock, does so only now and then.

use std::{sync::Arc, time::Duration};

use dashmap::DashMap;
use tokio::time::Instant;

use crate::{
    stats::Counters,
    sync::{dashmap, tokio},
};

/// The time for which others go first: a few round trips, in which they receive the message and send a request. A JVM that is woken takes
/// 1 to 2 ms for that (measured with Redisson 4.7.0).
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// If no message can be published, the lock stays free after a row of turns: for this part of the row's time, but at most this long.
const PART_OF_ROW: u32 = 4;
const LONGEST_FREE: Duration = Duration::from_millis(50);

/// After this many pauses in a row in which no other process acquired the lock, and then the number of releases without a pause.
const IN_VAIN: u32 = 8;
const NOW_AND_THEN: u32 = 16;
/// The time for which this is remembered.
const REMEMBERED: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Yielding {
    debts: DashMap<Arc<str>, Debt>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Debt {
    /// The number of releases at which to pause; `None` if no turn is owed.
    owed: Option<u64>,
    until: Instant,
    /// The number of pauses in a row in which no other process acquired the lock.
    in_vain: u32,
    /// The number of releases since then.
    passed: u32,
}

impl Yielding {
    pub(crate) fn new(counters: Arc<Counters>) -> Yielding {
        Yielding { debts: DashMap::new(), counters }
    }

    /// This process has released the lock for all, and `others` processes received the message. With `hears`, this process will, too.
    pub(crate) fn owe(&self, key: &Arc<str>, others: u64, hears: bool) {
        if others == 0 {
            return;
        }
        let until = Instant::now() + self.pause();
        let mut debt = self.debts.entry(Arc::clone(key)).or_insert(Debt { owed: None, until, in_vain: 0, passed: 0 });
        debt.passed += 1;
        if debt.in_vain < IN_VAIN || debt.passed > NOW_AND_THEN {
            // This release counts as the first one, or, if this process is subscribed, its own message does.
            (debt.owed, debt.until, debt.passed) = (Some(others - u64::from(!hears)), until, 0);
        }
    }

    /// This process has released the lock after a row of turns, and no message can be published. Others find the lock free only if they
    /// try at that moment. So it stays free for a part of the time of the row, whether or not another process comes.
    pub(crate) fn pause_after(&self, key: &Arc<str>, row: Duration) {
        let pause = (row / PART_OF_ROW).min(LONGEST_FREE);
        if !pause.is_zero() {
            let until = Instant::now() + pause;
            self.debts.insert(Arc::clone(key), Debt { owed: Some(0), until, in_vain: 0, passed: 0 });
        }
    }

    /// A message about a release has arrived.
    pub(crate) fn heard(&self, key: &str) {
        if let Some(mut debt) = self.debts.get_mut(key)
            && let Some(owed) = debt.owed
        {
            debt.owed = owed.checked_sub(1);
            debt.until = Instant::now() + self.pause();
        }
    }

    /// Until this moment other processes should go first.
    pub(crate) fn yield_until(&self, key: &str) -> Option<Instant> {
        self.owed_until(key).filter(|until| *until > Instant::now())
    }

    /// The same, also if it is over.
    fn owed_until(&self, key: &str) -> Option<Instant> {
        let debt = self.debts.get(key)?;
        debt.owed.map(|_| debt.until)
    }

    /// Another process holds the lock.
    pub(crate) fn refused(&self, key: &str) {
        if let Some(mut debt) = self.debts.get_mut(key) {
            debt.in_vain = 0;
        }
    }

    /// This process has acquired the lock again, so it owes nothing anymore.
    pub(crate) fn taken(&self, key: &str) {
        if let Some(mut debt) = self.debts.get_mut(key) {
            debt.in_vain += u32::from(debt.owed.take().is_some());
        }
    }

    /// Removes entries that no longer matter.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let matters = |debt: &Debt| debt.owed.is_some() && debt.until > now;
        self.debts.retain(|_, debt| matters(debt) || debt.in_vain > 0 && debt.until + REMEMBERED > now);
    }

    fn pause(&self) -> Duration {
        (self.counters.round_trip.get() * 4).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owing(others: u64, hears: bool) -> (Yielding, Arc<str>) {
        let (yielding, key) = (Yielding::new(Arc::default()), Arc::from("x"));
        yielding.owe(&key, others, hears);
        (yielding, key)
    }

    /// The number of releases at which it pauses, its own included.
    fn hesitations(others: u64, hears: bool) -> u64 {
        let (yielding, key) = owing(others, hears);
        let mut count = u64::from(!hears); // at its own, which it does not hear
        yielding.heard(&key);
        while yielding.owed_until(&key).is_some() {
            count += 1;
            yielding.heard(&key);
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
        let before = Instant::now();
        let (yielding, key) = owing(1, false);
        let until = yielding.owed_until(&key).expect("somebody else goes first");
        assert!(until >= before + SHORTEST_PAUSE && until <= Instant::now() + LONGEST_PAUSE);
        assert_eq!(yielding.owed_until("y"), None, "the debt is that of one key");
    }

    #[test]
    fn who_was_alone_or_has_it_again_owes_nothing() {
        let (alone, key) = owing(0, true);
        assert_eq!(alone.owed_until(&key), None);
        let (again, key) = owing(3, true);
        again.taken(&key);
        assert_eq!(again.owed_until(&key), None);
    }

    /// The number of pauses in this many turns, beside one subscriber. With `others_take_it`, another process acquires the lock in between.
    fn hesitates(turns: u32, others_take_it: bool) -> u32 {
        let (yielding, key) = (Yielding::new(Arc::default()), Arc::from("x"));
        let turn = |_| {
            yielding.owe(&key, 1, false);
            let hesitates = yielding.owed_until(&key).is_some();
            if others_take_it {
                yielding.refused(&key);
            }
            yielding.taken(&key);
            u32::from(hesitates)
        };
        (0..turns).map(turn).sum()
    }

    #[test]
    fn a_listener_that_never_takes_it_is_let_first_only_now_and_then() {
        assert_eq!(hesitates(IN_VAIN + 10 * (NOW_AND_THEN + 1), false), IN_VAIN + 10);
        assert_eq!(hesitates(300, true), 300);
    }

    #[test]
    fn only_what_is_over_is_forgotten() {
        let (yielding, key) = owing(3, true);
        let until = |until| yielding.debts.get_mut(&key).expect("it owes").until = until;
        until(Instant::now() + REMEMBERED);
        yielding.sweep();
        assert!(yielding.yield_until(&key).is_some());
        until(Instant::now());
        assert_eq!(yielding.yield_until(&key), None);
        yielding.sweep();
        assert!(yielding.debts.is_empty());
    }
}
