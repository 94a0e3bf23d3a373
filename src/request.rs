//! A call for a lock: what it wants, and how long it waits.

use std::time::Duration;

use tokio::time::Instant;

use crate::{config::Name, kind::Kind, lock::Terms, owner::Owner, sync::tokio};

/// A call that acquires a lock.
#[derive(Debug)]
pub(crate) struct AcquireRequest {
    /// For error messages.
    pub(crate) what: &'static str,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) kind: &'static Kind,
    pub(crate) terms: Terms,
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
