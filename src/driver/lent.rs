//! Requests that waiters are to poll, until they take them.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::slot::{Slot, Slots};
use crate::{clock::Moment, lock::Ticket, sync::std};

/// A waiter that does not take a request within this time loses it to a task of the client. Nobody has sent the request before, and another
/// client may acquire the lock meanwhile. So this is shorter than the time for requests that are on their way. Timers have milliseconds.
const UNTAKEN: Duration = Duration::from_millis(1);

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
        self.take_if(|(ticket, _)| *ticket == waiter)
    }

    /// Removes the requests that their waiters have not taken in time.
    pub(super) fn take_untaken(&mut self, now: Moment) -> Slots {
        self.take_if(|(_, slot)| slot.sent + UNTAKEN <= now)
    }

    /// The time at which the first of them has waited for too long.
    pub(super) fn due(&self) -> Option<Moment> {
        self.0.as_ref()?.first().map(|(_, slot)| slot.sent + UNTAKEN)
    }

    fn take_if(&mut self, is_meant: impl Fn(&(Ticket, Arc<Slot>)) -> bool) -> Slots {
        let Some(lent) = self.0.take() else { return Slots::new() };
        let (taken, left): (Lent, Lent) = (*lent).into_iter().partition(is_meant);
        self.0 = (!left.is_empty()).then(|| Box::new(left));
        taken.into_iter().map(|(_, slot)| slot).collect()
    }
}
