//! What statistics, metrics and logs say about a name. A recorder or a subscriber may itself use the lock, so nothing is said under the mutex.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{
    error::Lost,
    stats::{Counters, Subject},
    sync::std,
};

/// What the gauges have of one name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NameGauges {
    pub(super) holds: u32,
    pub(super) waiting: u32,
    pub(super) releasing: u32,
}

#[derive(Debug)]
pub(super) enum Note {
    /// It is known what became of a hold: it was released, or lost.
    Ended(Option<Lost>),
    /// The last guard of an owner has left after this time.
    HeldFor(Duration),
    /// A request found the lock held by another client.
    Refused,
    Renewed,
    Gauges {
        before: NameGauges,
        now: NameGauges,
    },
    StillWaiting {
        waited: Duration,
        holder: Option<Box<str>>,
        by_this_client: bool,
        /// In a queue on the server, 1 for the next waiter.
        place: Option<u64>,
    },
}

impl Note {
    /// A panic of a recorder or a subscriber ends here: the tasks of the client keep the locks of others.
    pub(super) fn say(self, subject: Subject<'_>, all: &Counters) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.say_it(subject, all)));
    }

    fn say_it(self, subject: Subject<'_>, all: &Counters) {
        let counters = all.of(subject);
        match self {
            Note::Ended(None) => {
                counters.released();
                tracing::debug!(target: "leasehold::lock", name = subject.name, "released");
            }
            Note::Ended(Some(reason)) => {
                counters.lost(reason);
                tracing::warn!(target: "leasehold::lock", name = subject.name, %reason, "lost");
            }
            Note::HeldFor(time) => counters.held_for(time),
            Note::Refused => counters.refused(),
            Note::Renewed => counters.renewed(),
            Note::Gauges { before, now } => {
                counters.holds(before.holds, now.holds);
                counters.waiting(before.waiting, now.waiting);
                all.releasing.moves(before.releasing, now.releasing);
            }
            Note::StillWaiting { waited, holder, by_this_client, place } => {
                let name = subject.name;
                tracing::warn!(target: "leasehold::lock", name, ?waited, ?holder, by_this_client, place, "still waiting");
            }
        }
    }
}
