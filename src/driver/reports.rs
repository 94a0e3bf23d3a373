//! Logs waits that are slow: when one becomes slow, and then at every doubling.

use std::time::Duration;

use crate::{
    lock::{Moment, Ticket},
    sync::std,
};

/// Only the first waiter of a name logs. Thousands of others would log the same. Most waits are short, and need no memory for this.
#[derive(Debug, Default)]
pub(super) struct Reporter(Option<Box<Reported>>);

/// The last warning.
#[derive(Debug)]
struct Reported {
    about: Ticket,
    /// The time of the next one about the same waiter.
    next: Moment,
}

impl Reporter {
    /// The time of the next warning. `first`: the first waiter, and when it joined.
    pub(super) fn due(&self, first: Option<(Ticket, Moment)>, slow: Duration) -> Option<Moment> {
        let (ticket, joined) = first?;
        let reported = self.0.as_ref().filter(|reported| reported.about == ticket);
        Some(reported.map_or(joined + slow, |reported| reported.next))
    }

    /// The waiter to log about now, and for how long it has waited.
    pub(super) fn report(
        &mut self,
        first: Option<(Ticket, Moment)>,
        slow: Duration,
        now: Moment,
    ) -> Option<(Ticket, Duration)> {
        self.due(first, slow).filter(|due| *due <= now)?;
        let (about, joined) = first?;
        let waited = now.since(joined);
        let next = joined + waited.max(Duration::from_millis(10)) * 2;
        self.0 = Some(Box::new(Reported { about, next }));
        Some((about, waited))
    }

    /// True if a warning about this waiter was logged.
    pub(super) fn has_reported(&self, ticket: Ticket) -> bool {
        self.0.as_ref().is_some_and(|reported| reported.about == ticket)
    }
}
