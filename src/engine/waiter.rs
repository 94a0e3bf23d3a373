//! One who waits, and what becomes of a lock that is being handed to it.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

use super::{
    hold::{Grant, Hold},
    tenure::Tenure,
};
use crate::{
    clock::Moment,
    config::Lease,
    sync::{std, tokio},
};

/// In how many inspections in a row a waiter must not have been polled to be passed over.
const UNATTENDED: u32 = 6;

/// One who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) hold: Arc<Hold>,
    pub(super) lease: Lease,
    /// The lock may be passed to it in memory, with what is left of its lease.
    pub(super) inherits: bool,
    /// Its place in the queue. Changed under the queue's lock only.
    pub(super) ticket: AtomicU64,
    pub(super) woken: Notify,
    /// A wake-up that has not been used yet: it is kept until the waiter looks.
    pub(super) wake_pending: AtomicBool,
    pub(super) offer: Mutex<Offer>,
    /// To see whether its future is polled.
    pub(super) waker: AtomicWaker,
    /// How many inspections ago it was polled last.
    pub(super) unseen: AtomicU32,
    /// An attempt of its own is under way.
    pub(super) asks: AtomicBool,
}

/// Whether the lock is being handed to this waiter.
///
/// | offer   | means                                               | next                                    |
/// |---------|-----------------------------------------------------|-----------------------------------------|
/// | None    | waits                                               | Made; Had, by an attempt of its own     |
/// | Made    | asked of the server, no answer yet                  | Given; None, came to nothing; Had; Gone |
/// | Given   | it was handed over, by a request sent then, or in memory | Had, when the waiter looks         |
/// | Had     | the waiter knows that it has the lock               | -                                       |
/// | Revoked | passed over: whatever it got or gets is given back  | -                                       |
/// | Gone    | left empty-handed: whoever hands over passes on     | -                                       |
///
/// A waiter that is being handed the lock may at the same time ask for it itself, and be answered first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    None,
    Made,
    Given(Grant),
    Had,
    Revoked,
    Gone,
}

impl Waiter {
    pub(super) fn new(hold: Arc<Hold>, (lease, inherits): (Lease, bool)) -> Waiter {
        let (woken, wake_pending, offer) = (Notify::new(), AtomicBool::new(false), Mutex::new(Offer::None));
        let (ticket, unseen) = (AtomicU64::new(0), AtomicU32::new(0));
        Waiter {
            hold,
            lease,
            inherits,
            ticket,
            woken,
            wake_pending,
            offer,
            waker: AtomicWaker::new(),
            unseen,
            asks: AtomicBool::new(false),
        }
    }

    /// Passes it the lock in memory, if it does nothing but wait and wants the same as whoever has it. Called under the queue's
    /// lock, and so never while it begins to ask.
    pub(super) fn pass(&self, tenure: &Arc<Tenure>, from: &Hold) -> bool {
        let mut offer = self.offer();
        let only_waits = *offer == Offer::None && !self.asks.load(Ordering::Relaxed);
        let passed = only_waits && self.inherits && self.hold.is_clean() && tenure.pass(from, &self.hold);
        if passed {
            *offer = Offer::Given(Grant::without_token(Moment::now()));
            self.woken.notify_one();
        }
        passed
    }

    /// The server has moved the lock to it. False if it will not give that back: it has left empty-handed, or had the
    /// lock by an attempt of its own and has given it back before. Then it must go on to the next.
    pub(super) fn hand(&self, grant: Grant) -> bool {
        let mut offer = self.offer();
        if offer.change(Offer::Made, Offer::Given(grant)) {
            self.hold.given();
            self.woken.notify_one();
        }
        let is_given_back = self.hold.is_over() && !self.hold.has_passed_on();
        let keeps = !matches!(*offer, Offer::Gone | Offer::Revoked) && !is_given_back;
        if !keeps {
            self.hold.came_again();
        }
        keeps
    }

    /// The hand-over came to nothing: it looks for itself.
    pub(super) fn withdraw(&self) {
        self.hold.in_doubt(); // it may yet arrive
        self.offer().change(Offer::Made, Offer::None);
        self.wake();
    }

    pub(super) fn wake(&self) {
        self.wake_pending.store(true, Ordering::Release);
        self.woken.notify_one();
    }

    /// Whether there is something to look at, or soon will be.
    pub(super) fn is_due(&self) -> bool {
        self.wake_pending.load(Ordering::Acquire)
            || self.asks.load(Ordering::Relaxed)
            || matches!(*self.offer(), Offer::Given(_))
    }

    /// Whether its future was polled in the last few inspections. Each has it polled, if anybody does that.
    pub(super) fn is_attended(&self) -> bool {
        let unseen = self.unseen.fetch_add(1, Ordering::Relaxed);
        self.waker.wake();
        unseen < UNATTENDED
    }

    /// It was not polled in the last inspection, nor in the one before.
    pub(super) fn seems_absent(&self) -> bool {
        self.unseen.load(Ordering::Relaxed) >= 2
    }

    /// Whatever it got or gets is not to be used, unless it knows already that it has the lock.
    pub(super) fn revoke(&self) -> bool {
        let mut offer = self.offer();
        let revoked = *offer != Offer::Had;
        if revoked {
            *offer = Offer::Revoked;
            self.hold.evict();
            self.woken.notify_one(); // it is in no queue any more, and nobody else will call it
        }
        revoked
    }

    pub(super) fn offer(&self) -> MutexGuard<'_, Offer> {
        self.offer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offer {
    pub(super) fn change(&mut self, from: Offer, to: Offer) -> bool {
        let fits = *self == from;
        if fits {
            *self = to;
        }
        fits
    }
}
