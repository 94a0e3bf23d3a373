//! What this client knows about waiters of other processes.
//!
//! All waiters receive the message about a release at the same moment, and the process that just held the lock is the quickest to send
//! the next request. So after a release this process lets others go first, at as many releases as there are other processes.

use std::time::Duration;

use super::{
    rare::{Rare, Usual},
    types::{Config, Moment},
};

/// A timer is up to a millisecond late, so this is two milliseconds on average: a JVM that is woken needs one to two before its request.
const SHORTEST_PAUSE: Duration = Duration::from_micros(1_500);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// After so many pauses in a row in which no other process acquired the lock, there is none for so many times its length. Then one more such
/// pause is enough.
const IN_VAIN: u32 = 8;
const WITHOUT_PAUSE: u32 = 16;
/// For this long the lock may remain in this process if no other client received the last message.
const LONGEST_ROW: Duration = Duration::from_millis(10);
/// If no message is published, the lock stays free after several turns in a row: for this part of their time, but for at most this long.
const PART_OF_ROW: u32 = 4;
const LONGEST_FREE: Duration = Duration::from_millis(50);
/// After this time without a release the state is forgotten.
const REMEMBERED: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct OtherClients {
    /// Another client received the last message about a release, or may have.
    pub(crate) may_wait: bool,
    row: Option<Row>,
    debt: Option<Debt>,
    pauses: Pauses,
    last: Moment,
}

/// Turns in this process since the last release that was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    turns: u32,
    since: Moment,
}

/// What became of the last pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pauses {
    /// So many in a row were in vain.
    InVain(u32),
    /// There is none until then.
    LeftOutUntil(Moment),
}

/// At so many more releases others go first, now until this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Debt {
    releases: u32,
    until: Moment,
}

impl Usual for OtherClients {
    const USUAL: &'static OtherClients =
        &OtherClients { may_wait: true, row: None, debt: None, pauses: Pauses::InVain(0), last: Moment::ZERO };
}

impl Default for OtherClients {
    fn default() -> OtherClients {
        OtherClients::USUAL.clone()
    }
}

impl Rare<OtherClients> {
    /// Another client holds the lock.
    pub(crate) fn hold_it(&mut self) {
        self.changed().into_iter().for_each(|others| others.pauses = Pauses::InVain(0));
    }

    /// This client acquired the lock again: that ends its debt.
    pub(crate) fn had_their_turn(&mut self, now: Moment, config: &Config) {
        let Some(others) = self.changed() else { return };
        if others.debt.take().is_some() {
            others.pauses = match others.pauses {
                Pauses::InVain(pauses) if pauses + 1 < IN_VAIN => Pauses::InVain(pauses + 1),
                _ => Pauses::LeftOutUntil(now + pause(config) * WITHOUT_PAUSE),
            };
        }
    }
}

impl OtherClients {
    fn row(&self, now: Moment) -> Row {
        self.row.unwrap_or(Row { turns: 0, since: now })
    }

    /// Whether the lock may remain in this process for one more turn.
    pub(crate) fn permit_turn(&self, now: Moment, config: &Config) -> bool {
        let row = self.row(now);
        let is_short = row.turns < config.handovers || !self.may_wait && now.since(row.since) < LONGEST_ROW;
        config.handovers > 0 && is_short
    }

    /// Whether permits may remain in this process for one more turn, whether others wait or not: only for a short time after a release for all, and for a short time in a row.
    pub(crate) fn permit_quick_turn(&self, now: Moment, config: &Config) -> bool {
        let since = self.row.map_or(self.last, |row| row.since);
        self.permit_turn(now, config) && now.since(since) < LONGEST_ROW
    }

    /// A caller makes a release of its own.
    pub(crate) fn end_row(&mut self, now: Moment) {
        (self.row, self.last) = (None, now);
    }

    pub(crate) fn took_turn(&mut self, now: Moment) {
        let row = self.row(now);
        self.row = Some(Row { turns: row.turns + 1, ..row });
        self.last = now;
    }

    /// A release was published, and so many other clients received it. `subscribed`: this client receives it, too.
    pub(crate) fn released(&mut self, receivers: u32, subscribed: bool, now: Moment, config: &Config) {
        let row = self.row.take();
        (self.may_wait, self.last) = (receivers > 0 || !config.publishes, now);
        if !config.publishes {
            let free = row.map_or(Duration::ZERO, |row| now.since(row.since) / PART_OF_ROW).min(LONGEST_FREE);
            self.debt = (!free.is_zero()).then_some(Debt { releases: 0, until: now + free });
        } else if receivers > 0 {
            if matches!(self.pauses, Pauses::LeftOutUntil(end) if now < end) {
                return;
            }
            // A subscribed client counts this release when it receives the message.
            self.debt = Some(Debt { releases: receivers - u32::from(!subscribed), until: now + pause(config) });
        }
    }

    pub(crate) fn received_message(&mut self, now: Moment, config: &Config) {
        let until = now + pause(config);
        let next = |debt: Debt| Some(Debt { releases: debt.releases.checked_sub(1)?, until });
        self.debt = self.debt.and_then(next);
        self.last = now; // a release for all, of this client or another
    }

    /// Until this time others go first.
    pub(crate) fn go_first_until(&self) -> Option<Moment> {
        self.debt.map(|debt| debt.until)
    }

    pub(crate) fn are_forgotten(&self, now: Moment) -> bool {
        self.debt.is_none() && self.pauses == Pauses::InVain(0) || now.since(self.last) > REMEMBERED
    }
}

fn pause(config: &Config) -> Duration {
    (config.round_trip * 4).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}
