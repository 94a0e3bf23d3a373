//! Requests that waiters are to poll, until they take them.

use std::{mem, sync::Arc, time::Duration};

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

/// Most names have none, and their callers were never slow. They need no memory for this.
#[derive(Debug, Default)]
pub(super) struct LentRequests(Option<Box<Lending>>);

#[derive(Debug)]
struct Lending {
    /// In the order in which they were lent.
    requests: Lent,
    suspended_until: Moment,
    /// How often in a row a caller was slow when nothing was suspended, up to [`DOUBLED`] + 1.
    late: u8,
}

type Lent = SmallVec<[(Ticket, Arc<Slot>); 2]>;

/// What a waiter takes.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) requests: Slots,
    pub(super) is_late: bool,
}

impl Default for Lending {
    fn default() -> Lending {
        Lending { requests: Lent::new(), suspended_until: Moment::PAST, late: 0 }
    }
}

impl LentRequests {
    pub(super) fn push(&mut self, waiter: Ticket, slot: Arc<Slot>) {
        self.0.get_or_insert_default().requests.push((waiter, slot));
    }

    /// This waiter takes its requests.
    pub(super) fn take_of(&mut self, waiter: Ticket) -> Taken {
        let Some(lending) = &mut self.0 else { return Taken::default() };
        let requests = lending.take_of(waiter);
        let Some(first) = requests.first() else { return Taken::default() };
        let now = Moment::now();
        let is_late = lending.were_taken(first.sent, now);
        self.0.take_if(|lending| lending.is_over(now));
        Taken { requests, is_late }
    }

    /// A caller was slow.
    pub(super) fn suspend(&mut self, now: Moment) {
        self.0.get_or_insert_default().suspend(now);
    }

    pub(super) fn are_suspended(&self, now: Moment) -> bool {
        self.0.as_ref().is_some_and(|lending| lending.is_suspended(now))
    }
}

impl Lending {
    fn take_of(&mut self, waiter: Ticket) -> Slots {
        let (taken, left): (Lent, Lent) = mem::take(&mut self.requests).into_iter().partition(|(of, _)| *of == waiter);
        self.requests = left;
        taken.into_iter().map(|(_, slot)| slot).collect()
    }

    /// A waiter has just taken a request that was lent to it at this moment. True if that is too late.
    fn were_taken(&mut self, sent: Moment, now: Moment) -> bool {
        let is_late = sent + QUICK <= now;
        if is_late {
            self.suspend(now);
        } else {
            self.late = 0;
        }
        is_late
    }

    fn suspend(&mut self, now: Moment) {
        if !self.is_suspended(now) {
            self.late = (self.late + 1).min(DOUBLED + 1);
        }
        self.suspended_until = now + SUSPENDED * (1 << self.late.saturating_sub(1));
    }

    fn is_suspended(&self, now: Moment) -> bool {
        now < self.suspended_until
    }

    /// Nothing of it matters anymore.
    fn is_over(&self, now: Moment) -> bool {
        self.requests.is_empty() && self.late == 0 && !self.is_suspended(now)
    }
}

/// True if the caller that polls this request sees its reply too late.
pub(super) fn is_late(slot: &Slot, now: Moment) -> bool {
    slot.sent + LATE <= now
}
