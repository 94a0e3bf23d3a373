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
/// If a caller is slow again, and the last suspension has not been over for this long, the next one lasts twice as long, up to this: other
/// holders may need longer than a second.
const LONGEST: Duration = Duration::from_secs(64);

/// Most names have none, and their callers were never slow. They need no memory for this.
#[derive(Debug, Default)]
pub(super) struct LentRequests(Option<Box<Lending>>);

#[derive(Debug, Default)]
struct Lending {
    /// In the order in which they were lent.
    requests: Lent,
    /// `None`: no caller was slow, or since then one has taken a request in time.
    suspension: Option<Suspension>,
}

type Lent = SmallVec<[(Ticket, Arc<Slot>); 2]>;

#[derive(Debug, Clone, Copy)]
struct Suspension {
    until: Moment,
    length: Duration,
}

/// What a waiter takes.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) requests: Slots,
    pub(super) is_late: bool,
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
        self.forget_if_over();
        Taken { requests, is_late }
    }

    /// This waiter leaves without taking them.
    pub(super) fn remove_of(&mut self, waiter: Ticket) -> Slots {
        self.0.as_mut().map(|lending| lending.take_of(waiter)).unwrap_or_default()
    }

    /// Gives the memory back when it says nothing anymore.
    pub(super) fn forget_if_over(&mut self) {
        self.0.take_if(|lending| lending.is_over(Moment::now()));
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
            self.suspension = self.suspension.filter(|_| self.is_suspended(now));
        }
        is_late
    }

    fn suspend(&mut self, now: Moment) {
        let length = match self.suspension {
            Some(last) if now < last.until => last.length,
            Some(last) if last.is_recent(now) => (last.length * 2).min(LONGEST),
            Some(_) | None => SUSPENDED,
        };
        self.suspension = Some(Suspension { until: now + length, length });
    }

    fn is_suspended(&self, now: Moment) -> bool {
        self.suspension.is_some_and(|suspension| now < suspension.until)
    }

    /// Nothing of it matters anymore.
    fn is_over(&self, now: Moment) -> bool {
        self.requests.is_empty() && self.suspension.is_none_or(|suspension| !suspension.is_recent(now))
    }
}

impl Suspension {
    /// The next one is longer.
    fn is_recent(self, now: Moment) -> bool {
        now < self.until + LONGEST
    }
}

/// True if the caller that polls this request sees its reply too late.
pub(super) fn is_late(slot: &Slot, now: Moment) -> bool {
    slot.sent + LATE <= now
}

#[cfg(all(test, not(leasehold_explore)))]
mod tests {
    use super::*;

    fn after(seconds: u64) -> Moment {
        Moment::PAST + Duration::from_secs(seconds)
    }

    fn suspended(slow: &[u64]) -> u64 {
        let mut lending = Lending::default();
        slow.iter().for_each(|at| lending.suspend(after(*at)));
        let last = *slow.last().expect("some are slow");
        (1..).find(|seconds| !lending.is_suspended(after(last + seconds))).expect("it ends")
    }

    #[test]
    fn callers_that_are_slow_again_and_again_are_lent_nothing_for_longer() {
        assert_eq!(suspended(&[100]), 1);
        assert_eq!(suspended(&[100, 105]), 2);
        assert_eq!(suspended(&[100, 105, 110, 120, 140]), 16);
        assert_eq!(suspended(&[100, 105, 110, 120, 140, 180, 250, 370]), 64);
    }

    #[test]
    fn slow_callers_of_long_ago_do_not_count() {
        assert_eq!(suspended(&[1_000, 4_000, 8_000]), 1);
    }

    #[test]
    fn while_suspended_it_lasts_no_longer_each_time() {
        let mut lending = Lending::default();
        (0..100).for_each(|n| lending.suspend(Moment::PAST + Duration::from_millis(n)));
        assert!(!lending.is_suspended(after(2)));
    }

    #[test]
    fn what_says_nothing_anymore_takes_no_memory() {
        let mut lending = Lending::default();
        assert!(lending.is_over(after(0)));
        lending.suspend(after(100));
        assert_eq!([101, 164, 165].map(|at| lending.is_over(after(at))), [false, false, true]);
        lending.were_taken(after(110), after(110));
        assert!(lending.is_over(after(110)), "a request was taken in time");
    }
}
