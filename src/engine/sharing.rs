//! Which hold others of this process may join in memory, where several may hold a lock at once.
//!
//! They may for a moment after the server granted it, and only if it would have granted it to anybody: a writer that has come
//! to wait since then keeps new readers out by a mark, which the server looks at with every grant, and those who join ask nobody.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use dashmap::DashMap;

use super::{hold::Hold, queue::LineKey, tenure::Tenure};
use crate::{
    clock::Moment,
    stats::Counters,
    sync::{dashmap, std},
};

/// For how long others may join: what a writer waits for at most because of that. Measured, see docs/benchmarks.md.
const OPEN: Duration = Duration::from_millis(10);
/// Where an answer takes longer than that: for so many round trips.
const OPEN_ROUND_TRIPS: u32 = 4;
const LONGEST_OPEN: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Sharing {
    by_line: DashMap<LineKey, Weak<Tenure>>,
    counters: Arc<Counters>,
}

impl Sharing {
    pub(super) fn new(counters: Arc<Counters>) -> Sharing {
        Sharing { by_line: DashMap::new(), counters }
    }

    /// Others may join it for a moment: it was granted by a request sent then, and so would they have been. Where there is such a
    /// one already, that stays the one.
    pub(super) fn open(&self, hold: &Arc<Hold>, sent: Moment) {
        let mut shared = self.by_line.entry(hold.line()).or_default();
        if !shared.upgrade().is_some_and(|tenure| tenure.is_open()) {
            let tenure = hold.begin_tenure(&self.counters);
            let open = (self.counters.round_trip.get() * OPEN_ROUND_TRIPS).clamp(OPEN, LONGEST_OPEN);
            tenure.open(sent + open);
            *shared = Arc::downgrade(tenure);
        }
    }

    /// Joins what somebody else here has, or what rests.
    pub(super) fn join(&self, hold: &Arc<Hold>) -> bool {
        self.get(&hold.line()).is_some_and(|tenure| tenure.join(hold))
    }

    /// Nobody joins what is there now.
    pub(super) fn close(&self, line: &LineKey) {
        self.get(line).inspect(|tenure| tenure.close());
    }

    fn get(&self, line: &LineKey) -> Option<Arc<Tenure>> {
        self.by_line.get(line).and_then(|shared| shared.upgrade())
    }

    /// Forgets what nobody has any more.
    pub(super) fn sweep(&self) {
        self.by_line.retain(|_, shared| shared.strong_count() > 0);
    }
}
