//! Logs waits that are slow: when one becomes slow, and then at every doubling.

use std::time::Duration;

use super::{
    named::{Inner, NamedLock},
    notes::Note,
};
use crate::{
    lock::{Moment, Ticket},
    sync::std,
};

/// The first waiter of a name logs. Thousands of others would log the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reporter {
    ticket: Ticket,
    started: Moment,
    due: Moment,
}

impl Reporter {
    fn new(ticket: Ticket, started: Moment, slow: Duration) -> Reporter {
        Reporter { ticket, started, due: started + slow }
    }

    pub(super) fn due(&self) -> Moment {
        self.due
    }

    fn put_off(&mut self, now: Moment) {
        let waited = now.since(self.started).max(Duration::from_millis(10));
        self.due = self.started + waited * 2;
    }
}

impl Inner {
    /// What is to be logged now about the first waiter.
    pub(super) fn report(&mut self, lock: &NamedLock, now: Moment) -> Option<Note> {
        let first = self.state.first_waiter();
        if self.reporter.map(|reporter| reporter.ticket) != first.map(|(ticket, _)| ticket) {
            let slow = lock.driver.config.slow_wait;
            self.reporter = first.map(|(ticket, started)| Reporter::new(ticket, started, slow));
        }
        let reporter = self.reporter.as_mut().filter(|reporter| reporter.due <= now)?;
        reporter.put_off(now);
        let (ticket, waited) = (reporter.ticket, now.since(reporter.started));
        self.reported = Some(ticket);
        let (holder, by_this_client) = self.holder_now(lock);
        Some(Note::StillWaiting { waited, holder, by_this_client, place: self.position(ticket) })
    }

    /// True if a warning about this waiter was logged.
    pub(super) fn has_reported(&self, ticket: Ticket) -> bool {
        self.reported == Some(ticket)
    }

    /// The holder, and whether it is of this client: else the server has named it last.
    pub(super) fn holder_now(&self, lock: &NamedLock) -> (Option<Box<str>>, bool) {
        match self.state.holds().next() {
            Some(((hold, mode), _)) => (Some(lock.field(hold, mode)), true),
            None => (self.holder().map(Box::from), false),
        }
    }
}
