//! Gauges, counters and times of a client.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hdrhistogram::Histogram;

use crate::sync::std;

/// Counters and gauges since the client was connected; see [`Client::stats`](crate::Client::stats).
///
/// The client reads the numbers one after the other while it works, so their sums may be off by the calls of that moment.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let stats = client.stats();
/// println!("{} held, {} waiting, {} renewals so far", stats.now.holds, stats.now.waiting, stats.total.renewals);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Gauges: they go up and down.
    pub now: Gauges,
    /// Counters: they only grow.
    pub total: Totals,
    /// The time from a request to its reply: a moving mean.
    pub round_trip: Duration,
    /// Times from a call to the hold that it acquired. Nested acquisitions do not count.
    pub wait: Times,
    /// Times from the start of a hold to the release of its last guard.
    pub hold: Times,
}

/// Gauges of a client.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Gauges {
    /// Held locks; nested acquisitions count once.
    pub holds: u64,
    /// Calls that wait for a lock, including calls at their first attempt.
    pub waiting: u64,
    /// Channels that the client subscribes to. It leaves a channel half a second after the last waiter.
    pub subscriptions: u64,
    /// Releases in progress, including those in the background.
    pub releasing: u64,
}

/// Counters of a client since it was connected.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Holds acquired, without nested acquisitions: the sum of the next four.
    pub acquired: u64,
    /// Acquired by the first attempt.
    pub first_try: u64,
    /// Acquired by an attempt after a release message, or after the waiter became the first of its queue.
    pub woken: u64,
    /// Acquired directly from another task of this client, see [`Builder::handovers`](crate::Builder::handovers).
    pub handed_over: u64,
    /// Acquired by an attempt at the end of a lease or of the wait limit.
    pub by_timer: u64,
    /// Nested acquisitions.
    pub reentered: u64,
    /// Holds released, including releases that could not be confirmed.
    pub released: u64,
    /// Holds lost before their release, or found gone at their release.
    pub lost: u64,
    /// Requests of the watchdog that the server confirmed: renewals, and for holds with a fixed lease, checks that the lock is still there.
    pub renewals: u64,
    /// Attempts that found the lock held by another owner.
    pub refused: u64,
    /// Wake-ups by a release message.
    pub wakeups: u64,
    /// Script calls sent; one call can carry many requests.
    pub calls: u64,
    /// Requests sent in those calls.
    pub requests: u64,
    /// Requests without a reply in time.
    pub timeouts: u64,
    /// Connections replaced.
    pub reconnects: u64,
    /// Replies that belonged to another request. The client replaces the connection each time.
    pub misplaced: u64,
}

/// Percentiles of a histogram with an error of at most 1 %.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Times {
    /// How many times were measured.
    pub count: u64,
    /// The median.
    pub p50: Duration,
    /// The 90th percentile.
    pub p90: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The longest time.
    pub max: Duration,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) holds: Count,
    pub(crate) waiting: Count,
    pub(crate) subscriptions: Count,
    pub(crate) releasing: Count,
    pub(crate) acquired_by: [Count; 4],
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
    pub(crate) wait: Record,
    pub(crate) hold: Record,
}

/// How an outermost hold was got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcquiredBy {
    FirstTry,
    Woken,
    HandedOver,
    Timer,
}

impl Counters {
    pub(crate) fn acquired(&self, way: AcquiredBy, waited: Duration) {
        self.acquired_by[way as usize].up();
        self.wait.note(waited);
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let [first_try, woken, handed_over, by_timer] = [0, 1, 2, 3].map(|way| self.acquired_by[way].get());
        let now = Gauges {
            holds: self.holds.get(),
            waiting: self.waiting.get(),
            subscriptions: self.subscriptions.get(),
            releasing: self.releasing.get(),
        };
        let total = Totals {
            acquired: first_try + woken + handed_over + by_timer,
            first_try,
            woken,
            handed_over,
            by_timer,
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
        };
        Stats { now, total, round_trip: self.round_trip.get(), wait: self.wait.times(), hold: self.hold.times() }
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

/// The longest time told apart from longer ones, in microseconds: a day.
const LONGEST: u64 = 24 * 60 * 60 * 1_000_000;

/// A histogram in microseconds that many tasks add to.
#[derive(Debug)]
pub(crate) struct Record(Mutex<Histogram<u64>>);

impl Default for Record {
    fn default() -> Record {
        Record(Mutex::new(Histogram::new_with_max(LONGEST, 2).expect("good bounds")))
    }
}

impl Record {
    pub(crate) fn note(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(micros);
    }

    fn times(&self) -> Times {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |quantile| Duration::from_micros(all.value_at_quantile(quantile));
        Times { count: all.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
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
