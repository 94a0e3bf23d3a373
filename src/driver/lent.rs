//! Requests that waiters are to poll, until they take them.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::slot::{Slot, Slots};
use crate::{clock::Moment, lock::Ticket, sync::std};

/// A waiter that takes a request later than this is slow. Nobody has sent the request before, and another client may have acquired the lock
/// meanwhile.
const QUICK: Duration = Duration::from_millis(1);
/// So is a caller that sees a reply later than this. If it was the network that took so long, a change of tasks costs little in comparison.
const LATE: Duration = Duration::from_millis(5);
/// After a caller was slow, nothing is lent for so long. Often all callers of a runtime are slow, and each call has one chance only.
const SUSPENDED: Duration = Duration::from_secs(1);
/// If the next request after that is taken late, too, this time doubles, so many times: other holders may need longer than a second.
const DOUBLED: u8 = 6;

/// In the order in which they were lent. Most names have none, so an empty list takes little memory.
#[derive(Debug)]
pub(super) struct LentRequests {
    requests: Option<Box<Lent>>,
    suspended_until: Moment,
    /// How often in a row a caller was slow when nothing was suspended, up to [`DOUBLED`] + 1.
    late: u8,
}

type Lent = SmallVec<[(Ticket, Arc<Slot>); 2]>;

impl Default for LentRequests {
    fn default() -> LentRequests {
        LentRequests { requests: None, suspended_until: Moment::PAST, late: 0 }
    }
}

impl LentRequests {
    pub(super) fn push(&mut self, waiter: Ticket, slot: Arc<Slot>) {
        self.requests.get_or_insert_default().push((waiter, slot));
    }

    /// This waiter takes its requests.
    pub(super) fn take_of(&mut self, waiter: Ticket) -> Slots {
        let Some(lent) = self.requests.take() else { return Slots::new() };
        let (taken, left): (Lent, Lent) = (*lent).into_iter().partition(|(ticket, _)| *ticket == waiter);
        self.requests = (!left.is_empty()).then(|| Box::new(left));
        let taken: Slots = taken.into_iter().map(|(_, slot)| slot).collect();
        match taken.first() {
            Some(_) if are_late(&taken) => self.suspend(Moment::now()),
            Some(_) => self.late = 0,
            None => {}
        }
        taken
    }

    /// A caller was slow.
    pub(super) fn suspend(&mut self, now: Moment) {
        if !self.are_suspended(now) {
            self.late = (self.late + 1).min(DOUBLED + 1);
        }
        self.suspended_until = now + SUSPENDED * (1 << self.late.saturating_sub(1));
    }

    pub(super) fn are_suspended(&self, now: Moment) -> bool {
        now < self.suspended_until
    }
}

/// True if their waiter takes them too late.
pub(super) fn are_late(taken: &Slots) -> bool {
    taken.first().is_some_and(|slot| slot.sent + QUICK <= Moment::now())
}

/// True if the caller that polls this request sees its reply too late.
pub(super) fn is_late(slot: &Slot, now: Moment) -> bool {
    slot.sent + LATE <= now
}
