//! What statistics, metrics and logs say about a name. A recorder or a subscriber may itself use the lock, so nothing is said under the mutex.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    contained::contained,
    error::{Blocked, Lost, Source, told},
    events::Subject,
    kind::Kind,
    lock::Mode,
    stats::Counters,
    sync::std,
};

/// What the gauges have of one name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NameGauges {
    pub(super) exclusive: ModeGauges,
    pub(super) shared: ModeGauges,
    pub(super) releasing: u32,
}

/// The same of one mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ModeGauges {
    pub(super) holds: u32,
    pub(super) waiting: u32,
}

impl NameGauges {
    fn of(self, mode: Mode) -> ModeGauges {
        match mode {
            Mode::Exclusive => self.exclusive,
            Mode::Shared => self.shared,
        }
    }
}

#[derive(Debug)]
pub(super) enum Note {
    /// It is known what became of a hold: it was released, or lost. Why the last request about it has failed, if it has.
    Ended(Mode, Option<(Lost, Option<Source>)>),
    /// The last guard of an owner has left after this time.
    HeldFor(Mode, Duration),
    /// A request found the lock held by another client.
    Refused(Mode),
    Renewed(Mode),
    /// A renewal has failed, for this reason.
    NotRenewed(Source),
    /// The server has refused a release, for this reason.
    NotReleased(Source),
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
        /// The holder may have spawned the task that waits.
        may_wait_for_it: bool,
    },
    /// A wait of this name is the youngest of this circle.
    Deadlock {
        circle: Arc<[Blocked]>,
        /// The call ends.
        fails: bool,
    },
}

impl Note {
    /// A panic of a recorder or a subscriber ends here: the tasks of the client keep the locks of others.
    pub(super) fn say(self, kind: &'static Kind, name: &str, all: &Counters) {
        contained(|| self.say_it(kind, name, all));
    }

    fn say_it(self, kind: &'static Kind, name: &str, all: &Counters) {
        let of = |mode| all.of(Subject { kind: kind.of_mode(mode).rules.label, name });
        match self {
            Note::Ended(mode, None) => {
                of(mode).released();
                all.releases_fail.store(false, Ordering::Relaxed);
                tracing::debug!(target: "leasehold::lock", name, "released");
            }
            Note::Ended(mode, Some((reason, cause))) => {
                of(mode).lost(reason);
                let cause = cause.as_ref().map(tracing::field::display);
                tracing::warn!(target: "leasehold::lock", name, %reason, cause, "lost");
            }
            Note::HeldFor(mode, time) => of(mode).held_for(time),
            Note::Refused(mode) => of(mode).refused(),
            Note::Renewed(mode) => {
                of(mode).renewed();
                all.renewals_fail.store(false, Ordering::Relaxed);
            }
            Note::NotRenewed(cause) => warn_once(&all.renewals_fail, name, &cause, "cannot renew a held lock"),
            Note::NotReleased(cause) => warn_once(&all.releases_fail, name, &cause, "cannot release a lock"),
            Note::Gauges { before, now } => {
                for mode in [Mode::Exclusive, Mode::Shared] {
                    let (before, now) = (before.of(mode), now.of(mode));
                    of(mode).holds(before.holds, now.holds);
                    of(mode).waiting(before.waiting, now.waiting);
                }
                all.releasing.moves(before.releasing, now.releasing);
            }
            Note::Deadlock { circle, fails } => {
                all.deadlocks.up();
                let next = if fails { "this call ends with an error" } else { "all of them go on waiting" };
                tracing::error!(target: "leasehold::lock", name, circle = told(&circle), "deadlock; {next}");
            }
            Note::StillWaiting { waited, holder, by_this_client, place, may_wait_for_it } => {
                let hint = may_wait_for_it.then_some(HINT);
                tracing::warn!(target: "leasehold::lock", name, ?waited, ?holder, by_this_client, place, hint, "still waiting");
            }
        }
    }
}

/// The holder is an older task of this client, or a thread.
const HINT: &str = "the holder is an older task or a thread of this client; if it waits for the end of this task (`spawn(..).await` while it holds the \
    lock), neither goes on: pass its owner to this task with `Owner::scope`";

/// One warning for each outage, however many locks are held.
fn warn_once(fails: &AtomicBool, name: &str, cause: &Source, what: &str) {
    if !fails.swap(true, Ordering::Relaxed) {
        tracing::warn!(target: "leasehold::lock", name, %cause, "{what}; the client tries again until its lease expires");
    }
}
