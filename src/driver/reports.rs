//! Logs waits that are slow: when one becomes slow, and then at every doubling.

use std::time::Duration;

use crate::{
    lock::{Moment, Ticket},
    sync::std,
};

/// Only the first waiter of a name logs. Thousands of others would log the same. Most names have no waiter, and need no memory for this.
#[derive(Debug, Default)]
pub(super) struct Reporter(Option<Box<Reported>>);

#[derive(Debug, Default)]
struct Reported {
    first: Option<FirstWaiter>,
    /// A warning was last logged about this waiter.
    last: Option<Ticket>,
}

#[derive(Debug, Clone, Copy)]
struct FirstWaiter {
    ticket: Ticket,
    started: Moment,
    due: Moment,
}

impl FirstWaiter {
    fn put_off(&mut self, now: Moment) {
        let waited = now.since(self.started).max(Duration::from_millis(10));
        self.due = self.started + waited * 2;
    }
}

impl Reporter {
    pub(super) fn due(&self) -> Option<Moment> {
        self.0.as_ref()?.first.map(|first| first.due)
    }

    /// The waiter to log about now, and for how long it has waited. `first`: the first waiter, and when it joined.
    pub(super) fn report(
        &mut self,
        first: Option<(Ticket, Moment)>,
        slow: Duration,
        now: Moment,
    ) -> Option<(Ticket, Duration)> {
        if first.is_none() {
            self.0.take_if(|reported| reported.last.is_none());
        }
        let reported = if first.is_some() { self.0.get_or_insert_default() } else { self.0.as_mut()? };
        if reported.first.map(|first| first.ticket) != first.map(|(ticket, _)| ticket) {
            reported.first = first.map(|(ticket, started)| FirstWaiter { ticket, started, due: started + slow });
        }
        let first = reported.first.as_mut().filter(|first| first.due <= now)?;
        first.put_off(now);
        reported.last = Some(first.ticket);
        Some((first.ticket, now.since(first.started)))
    }

    /// True if a warning about this waiter was logged.
    pub(super) fn has_reported(&self, ticket: Ticket) -> bool {
        self.0.as_ref().is_some_and(|reported| reported.last == Some(ticket))
    }
}
