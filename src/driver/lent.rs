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

/// In the order in which they were lent. Most names have none, so an empty list takes little memory.
#[derive(Debug)]
pub(super) struct LentRequests {
    requests: Option<Box<Lent>>,
    suspended_until: Moment,
}

type Lent = SmallVec<[(Ticket, Arc<Slot>); 2]>;

impl Default for LentRequests {
    fn default() -> LentRequests {
        LentRequests { requests: None, suspended_until: Moment::PAST }
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
        let now = Moment::now();
        if taken.first().is_some_and(|(_, slot)| slot.sent + QUICK <= now) {
            self.suspend(now);
        }
        taken.into_iter().map(|(_, slot)| slot).collect()
    }

    /// A caller was slow.
    pub(super) fn suspend(&mut self, now: Moment) {
        self.suspended_until = now + SUSPENDED;
    }

    pub(super) fn are_suspended(&self, now: Moment) -> bool {
        now < self.suspended_until
    }
}

/// True if the caller that polls this request sees its reply too late.
pub(super) fn is_late(slot: &Slot, now: Moment) -> bool {
    slot.sent + LATE <= now
}
