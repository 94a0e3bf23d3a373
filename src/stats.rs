//! Counters since the client was connected.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// What a client has done since it was connected, and what it holds now; see [`Client::stats`](crate::Client::stats).
///
/// The numbers are read one after the other while work goes on, so they need not add up to the last one.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let stats = client.stats();
/// println!("{} held, {} waiting, {} renewals", stats.holds, stats.waiting, stats.renewals);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Locks held now; nested levels count once.
    pub holds: u64,
    /// Calls that wait for a lock now.
    pub waiting: u64,
    /// Channels subscribed or being subscribed now. A channel stays for half a second after its last waiter.
    pub subscriptions: u64,
    /// Releases under way now, also in the background.
    pub releasing: u64,
    /// Outermost holds granted.
    pub acquired: u64,
    /// Nested levels granted.
    pub reentered: u64,
    /// Outermost holds given back.
    pub released: u64,
    /// Holds lost before they were given back.
    pub lost: u64,
    /// Renewals and checks that the server confirmed.
    pub renewals: u64,
    /// Requests for a free lock that found it taken.
    pub refused: u64,
    /// Wake-ups by a published release.
    pub wakeups: u64,
    /// Script calls sent; one can carry many gathered requests.
    pub calls: u64,
    /// Requests sent in those calls.
    pub requests: u64,
    /// Requests without an answer in time.
    pub timeouts: u64,
    /// Connections replaced.
    pub reconnects: u64,
    /// Replies that belonged to another request; each costs its connection.
    pub misplaced: u64,
    /// What a request takes, as seen lately.
    pub round_trip: Duration,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) holds: Count,
    pub(crate) waiting: Count,
    pub(crate) subscriptions: Count,
    pub(crate) releasing: Count,
    pub(crate) acquired: Count,
    pub(crate) reentered: Count,
    pub(crate) released: Count,
    pub(crate) lost: Count,
    pub(crate) renewals: Count,
    pub(crate) refused: Count,
    pub(crate) wakeups: Count,
    pub(crate) calls: Count,
    pub(crate) requests: Count,
    pub(crate) timeouts: Count,
    pub(crate) reconnects: Count,
    pub(crate) misplaced: Count,
    pub(crate) round_trip: RoundTrip,
}

impl Counters {
    pub(crate) fn snapshot(&self) -> Stats {
        Stats {
            holds: self.holds.get(),
            waiting: self.waiting.get(),
            subscriptions: self.subscriptions.get(),
            releasing: self.releasing.get(),
            acquired: self.acquired.get(),
            reentered: self.reentered.get(),
            released: self.released.get(),
            lost: self.lost.get(),
            renewals: self.renewals.get(),
            refused: self.refused.get(),
            wakeups: self.wakeups.get(),
            calls: self.calls.get(),
            requests: self.requests.get(),
            timeouts: self.timeouts.get(),
            reconnects: self.reconnects.get(),
            misplaced: self.misplaced.get(),
            round_trip: self.round_trip.get(),
        }
    }
}

/// A moving mean in microseconds: each new value counts for an eighth, as in TCP (RFC 6298).
#[derive(Debug, Default)]
pub(crate) struct RoundTrip(AtomicU64);

impl RoundTrip {
    pub(crate) fn note(&self, micros: u64) {
        let mean = self.0.load(Ordering::Relaxed);
        let next = if mean == 0 { micros } else { (mean * 7 + micros) / 8 };
        self.0.store(next, Ordering::Relaxed); // a value lost between two threads is no loss
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A number that many tasks move.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn up(&self) {
        self.add(1);
    }

    pub(crate) fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
