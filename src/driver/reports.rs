//! Logs waits that are slow: when one becomes slow, and then at every doubling.

use std::time::Duration;

use super::named::{Inner, NamedLock};
use crate::{
    lock::{Moment, Ticket},
    stats::AcquiredBy,
    sync::std,
};

/// The first waiter of a name logs. Thousands of others would log the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reporter {
    ticket: Ticket,
    started: Moment,
    due: Moment,
    has_spoken: bool,
}

impl Reporter {
    fn new(ticket: Ticket, started: Moment, slow: Duration) -> Reporter {
        Reporter { ticket, started, due: started + slow, has_spoken: false }
    }

    pub(super) fn due(&self) -> Moment {
        self.due
    }

    fn put_off(&mut self, now: Moment) {
        self.has_spoken = true;
        let waited = now.since(self.started).max(Duration::from_millis(10));
        self.due = self.started + waited * 2;
    }
}

impl Inner {
    /// Logs if it is time. Returns the reporter of the present first waiter.
    pub(super) fn report(&mut self, lock: &NamedLock, now: Moment, slow: Duration) {
        let first = self.first_waiter();
        if self.reporter.map(|reporter| reporter.ticket) != first.map(|(ticket, _)| ticket) {
            self.reporter = first.map(|(ticket, started)| Reporter::new(ticket, started, slow));
        }
        let Some(reporter) = self.reporter.as_mut().filter(|reporter| reporter.due <= now) else { return };
        reporter.put_off(now);
        let waited = now.since(reporter.started);
        let (holder, by_this_client) = self.holder_now(lock);
        tracing::warn!(target: "leasehold::lock", name = &*lock.name, ?waited, ?holder, by_this_client, "still waiting");
    }

    /// Logs the end of a wait, if it was slow.
    pub(super) fn report_end(&self, lock: &NamedLock, call: (Ticket, Moment), slow: Duration, way: Option<AcquiredBy>) {
        let ((ticket, started), now) = (call, super::named::now());
        let waited = now.since(started);
        if waited < slow {
            return;
        }
        let (name, (holder, by_this_client)) = (&*lock.name, self.holder_now(lock));
        if self.reporter.is_some_and(|reporter| reporter.ticket == ticket && reporter.has_spoken) {
            tracing::warn!(target: "leasehold::lock", name, ?waited, ?holder, by_this_client, ?way, "slow wait ended");
        } else {
            tracing::debug!(target: "leasehold::lock", name, ?waited, ?holder, by_this_client, ?way, "slow wait ended");
        }
    }

    /// The holder: of this client, or the one that the server named last.
    fn holder_now(&self, lock: &NamedLock) -> (Option<Box<str>>, bool) {
        match self.state.holds().next() {
            Some((hold, _)) => (Some(lock.field(hold)), true),
            None => (self.holder().map(Box::from), false),
        }
    }
}
