//! The hold that other owners of this process may join in memory, for locks that several owners may hold at once.
//!
//! They may join only for a moment after the server granted the hold, and only if the server would then have granted it to any owner.
//! The reason: a writer that has begun to wait since then leaves a mark that keeps new readers out. The server checks the mark at every
//! grant, but not at a confirmation.
//!
//! Also, a request that was sent after their call must have found the hold on the server. Otherwise the hold could have been forced open,
//! and a writer could have acquired the lock, before their call.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use dashmap::DashMap;

use super::{
    hold::Hold,
    queue::LineKey,
    tenure::{Joined, Tenure},
};
use crate::{
    clock::Moment,
    stats::Counters,
    sync::{dashmap, std},
};

/// The time for which others may join. A writer waits at most this much longer because of it. Measured, see docs/benchmarks.md.
const OPEN: Duration = Duration::from_millis(10);
/// If a reply takes longer than that: the time, in round trips.
const OPEN_ROUND_TRIPS: u32 = 4;
const LONGEST_OPEN: Duration = Duration::from_millis(100);

/// The result of trying to join a hold of this process.
pub(super) enum Resumed {
    Yes,
    No,
    /// Other owners of this process have the hold, but the server must confirm it first.
    OnceConfirmed(Arc<Tenure>),
}

#[derive(Debug)]
pub(super) struct Sharing {
    by_line: DashMap<LineKey, Weak<Tenure>>,
    counters: Arc<Counters>,
}

impl Sharing {
    pub(super) fn new(counters: Arc<Counters>) -> Sharing {
        Sharing { by_line: DashMap::new(), counters }
    }

    /// Opens a hold for a moment, so that others may join it. The request that granted it was sent at `sent`, and would have granted the
    /// lock to them, too. If another hold is open already, that one stays open instead.
    pub(super) fn open(&self, hold: &Arc<Hold>, sent: Moment) {
        let mut shared = self.by_line.entry(hold.line()).or_default();
        if !shared.upgrade().is_some_and(|tenure| tenure.is_open()) {
            let tenure = hold.begin_tenure(&self.counters);
            let open = (self.counters.round_trip.get() * OPEN_ROUND_TRIPS).clamp(OPEN, LONGEST_OPEN);
            tenure.open(sent, open);
            *shared = Arc::downgrade(tenure);
        }
    }

    /// Joins a hold that another owner of this process has, or one that rests.
    pub(super) fn join(&self, hold: &Arc<Hold>) -> Resumed {
        match self.get(&hold.line()) {
            Some(tenure) if tenure.is_open() => match tenure.join(hold) {
                Joined::Yes => Resumed::Yes,
                Joined::No => Resumed::No,
                Joined::NotYet => Resumed::OnceConfirmed(tenure),
            },
            _ => Resumed::No,
        }
    }

    /// Closes the present holds of a name: no other owner may join them anymore.
    pub(super) fn close(&self, name: &Arc<str>) {
        let lines = self.by_line.iter().filter(|line| line.key().0 == *name);
        lines.filter_map(|shared| shared.upgrade()).for_each(|tenure| tenure.close());
    }

    fn get(&self, line: &LineKey) -> Option<Arc<Tenure>> {
        self.by_line.get(line).and_then(|shared| shared.upgrade())
    }

    /// Removes entries whose holds have ended.
    pub(super) fn sweep(&self) {
        self.by_line.retain(|_, shared| shared.strong_count() > 0);
    }
}
