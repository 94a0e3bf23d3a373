//! Requests that waiters are to poll, until they take them.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::slot::{Slot, Slots};
use crate::{clock::Moment, lock::Ticket, sync::std};

/// A waiter that takes a request later than this is slow. Nobody has sent the request before, and another client may have acquired the lock
/// meanwhile.
const QUICK: Duration = Duration::from_millis(1);

/// In the order in which they were lent. Most names have none, so an empty list takes little memory.
#[derive(Debug, Default)]
pub(super) struct LentRequests(Option<Box<Lent>>);

type Lent = SmallVec<[(Ticket, Arc<Slot>); 2]>;

impl LentRequests {
    pub(super) fn push(&mut self, waiter: Ticket, slot: Arc<Slot>) {
        self.0.get_or_insert_default().push((waiter, slot));
    }

    /// This waiter takes its requests.
    pub(super) fn take_of(&mut self, waiter: Ticket) -> Slots {
        let Some(lent) = self.0.take() else { return Slots::new() };
        let (taken, left): (Lent, Lent) = (*lent).into_iter().partition(|(ticket, _)| *ticket == waiter);
        self.0 = (!left.is_empty()).then(|| Box::new(left));
        taken.into_iter().map(|(_, slot)| slot).collect()
    }
}

/// True if a waiter takes one of these requests too late.
pub(super) fn are_late(taken: &Slots) -> bool {
    taken.first().is_some_and(|slot| slot.sent + QUICK <= Moment::now())
}
