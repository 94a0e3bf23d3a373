//! A call for a lock: what it wants, and how long it waits.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    config::{Lease, Name},
    kind::Kind,
    owner::Owner,
    sync::tokio,
};

/// A call that acquires a lock.
#[derive(Debug)]
pub(crate) struct AcquireRequest {
    /// For error messages.
    pub(crate) what: &'static str,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) kind: &'static Kind,
    /// A fixed lease instead of the watchdog's.
    pub(crate) lease: Option<Lease>,
    pub(crate) max_hold: Option<Duration>,
    /// The lock stays held for at least this long, even if it is released sooner.
    pub(crate) min_hold: Option<Lease>,
    /// Of a semaphore: all or none of so many. 0: it is a lock.
    pub(crate) permits: u16,
    pub(crate) wait_limit: WaitLimit,
}

/// The time to wait while another owner holds the lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WaitLimit {
    Once,
    Until(Instant),
    Forever,
}

impl WaitLimit {
    /// A limit that is too long for the clock means forever.
    pub(crate) fn of(time: Duration) -> WaitLimit {
        Instant::now().checked_add(time).map_or(WaitLimit::Forever, WaitLimit::Until)
    }

    pub(crate) fn end(self) -> Option<Instant> {
        match self {
            WaitLimit::Until(end) => Some(end),
            WaitLimit::Once | WaitLimit::Forever => None,
        }
    }

    /// That moment, or the end of the wait if it is sooner.
    pub(crate) fn before(self, moment: Instant) -> Instant {
        self.end().map_or(moment, |end| end.min(moment))
    }

    pub(crate) fn is_over(self) -> bool {
        match self {
            WaitLimit::Once => true,
            WaitLimit::Until(end) => Instant::now() >= end,
            WaitLimit::Forever => false,
        }
    }
}
