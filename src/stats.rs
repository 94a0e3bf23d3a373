//! Gauges, counters and times of a client.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use hdrhistogram::Histogram;

use crate::{
    error::{Failure, Lost},
    events::{AcquiredBy, LockEvent, LockGauge, LockTime, Subject},
    export::{CounterHandle, Exporter, GaugeHandle, HistogramHandle},
    sync::std,
};

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
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let _guard = client.mutex("invoice:42").lock().await?;
/// assert_eq!(client.stats().now.holds, 1);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Gauges {
    /// Held locks; nested acquisitions count once. So do the permits that one call acquired.
    pub holds: u64,
    /// Calls that wait for a lock, permits or a latch, including calls at their first attempt.
    pub waiting: u64,
    /// Channels that the client subscribes to. It leaves a channel half a second after the last waiter.
    pub subscriptions: u64,
    /// Releases in progress, including those in the background.
    pub releasing: u64,
}

/// Counters of a client since it was connected.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// client.mutex("invoice:42").lock().await?.unlock().await?;
/// let total = client.stats().total;
/// assert_eq!((total.acquired, total.lost), (1, 0));
/// # Ok(()) }) }
/// ```
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
    /// Waits for a latch that ended because it was open, and for permits of a plain semaphore that were acquired. The client holds nothing
    /// of them.
    pub passed: u64,
    /// Holds released, including releases that could not be confirmed.
    pub released: u64,
    /// Holds lost before their release, or found gone at their release.
    pub lost: u64,
    /// Calls for a lock, and waits for a latch, that ended with an error, for example because the server did not reply. A call that ended
    /// at its wait limit is none of them.
    pub failed: u64,
    /// Requests of the watchdog that the server confirmed: renewals, and for holds with a fixed lease, checks that the lock is still there.
    pub renewals: u64,
    /// Requests that found the lock held by another owner, or the latch not open.
    pub refused: u64,
    /// Wake-ups by a message about a release, or about a latch.
    pub wakeups: u64,
    /// Deadlocks found in which the youngest wait is one of this client, see [`Builder::on_deadlock`](crate::Builder::on_deadlock).
    pub deadlocks: u64,
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
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// client.mutex("invoice:42").lock().await?.unlock().await?;
/// let wait = client.stats().wait;
/// println!("{} acquired, half of them within {:?}, 99 % within {:?}", wait.count, wait.p50, wait.p99);
/// # assert_eq!(wait.count, 1);
/// # Ok(()) }) }
/// ```
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

/// The counters behind [`Stats`]. With the feature `metrics` they are also the one source of the metrics.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) holds: Count,
    pub(crate) waiting: Count,
    pub(crate) subscriptions: Level,
    pub(crate) releasing: Level,
    acquired_by: [Count; 4],
    reentered: Count,
    passed: Count,
    released: Count,
    lost: Count,
    failed: Count,
    renewals: Count,
    refused: Count,
    pub(crate) wakeups: Total,
    pub(crate) deadlocks: Total,
    pub(crate) calls: Total,
    pub(crate) requests: Total,
    pub(crate) timeouts: Total,
    pub(crate) reconnects: Total,
    pub(crate) misplaced: Total,
    pub(crate) round_trip: RoundTrip,
    /// A failed renewal was logged, and none has succeeded since.
    pub(crate) renewals_fail: AtomicBool,
    /// The same of releases that the server refuses.
    pub(crate) releases_fail: AtomicBool,
    wait: Record,
    hold: Record,
    exporter: Exporter,
}

impl Counters {
    /// Their recorder is the one that is installed now, for this thread if it has its own; that of a kind of lock is the one at the first use
    /// of that kind. `by_name`: the metrics of events have the names of locks.
    pub(crate) fn new(by_name: bool) -> Counters {
        Counters {
            holds: Count::default(),
            waiting: Count::default(),
            subscriptions: Level::exported("leasehold_subscriptions"),
            releasing: Level::exported("leasehold_releasing"),
            acquired_by: Default::default(),
            reentered: Count::default(),
            passed: Count::default(),
            released: Count::default(),
            lost: Count::default(),
            failed: Count::default(),
            renewals: Count::default(),
            refused: Count::default(),
            wakeups: Total::exported("leasehold_wakeups_total"),
            deadlocks: Total::exported("leasehold_deadlocks_total"),
            calls: Total::exported("leasehold_calls_total"),
            requests: Total::exported("leasehold_requests_total"),
            timeouts: Total::exported("leasehold_timeouts_total"),
            reconnects: Total::exported("leasehold_reconnects_total"),
            misplaced: Total::exported("leasehold_misplaced_total"),
            round_trip: RoundTrip::exported("leasehold_round_trip_seconds"),
            renewals_fail: AtomicBool::new(false),
            releases_fail: AtomicBool::new(false),
            wait: Record::default(),
            hold: Record::default(),
            exporter: Exporter::new(by_name),
        }
    }

    pub(crate) fn of<'a>(&'a self, lock: Subject<'a>) -> LockCounters<'a> {
        LockCounters { all: self, lock }
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
            passed: self.passed.get(),
            released: self.released.get(),
            lost: self.lost.get(),
            failed: self.failed.get(),
            renewals: self.renewals.get(),
            refused: self.refused.get(),
            wakeups: self.wakeups.get(),
            deadlocks: self.deadlocks.get(),
            calls: self.calls.get(),
            requests: self.requests.get(),
            timeouts: self.timeouts.get(),
            reconnects: self.reconnects.get(),
            misplaced: self.misplaced.get(),
        };
        Stats { now, total, round_trip: self.round_trip.get(), wait: self.wait.times(), hold: self.hold.times() }
    }
}

#[cfg(test)]
impl Default for Counters {
    fn default() -> Counters {
        Counters::new(false)
    }
}

/// The numbers that are about locks, for one lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockCounters<'a> {
    all: &'a Counters,
    lock: Subject<'a>,
}

impl LockCounters<'_> {
    pub(crate) fn acquired(self, way: AcquiredBy, waited: Duration) {
        self.count(LockEvent::Acquired(way));
        self.all.wait.note(waited);
        self.all.exporter.time(self.lock, LockTime::Wait, waited);
    }

    pub(crate) fn reentered(self) {
        self.count(LockEvent::Reentered);
    }

    /// A wait for a latch, or for permits that the client does not hold, is over. Such waits are not among those for locks, because they may
    /// last as long as any work.
    pub(crate) fn passed(self, waited: Duration) {
        self.count(LockEvent::Passed);
        self.all.exporter.time(self.lock, LockTime::Wait, waited);
    }

    pub(crate) fn released(self) {
        self.count(LockEvent::Released);
    }

    pub(crate) fn lost(self, reason: Lost) {
        self.count(LockEvent::Lost(reason));
    }

    /// A call for the lock failed.
    pub(crate) fn failed(self, failure: Failure) {
        self.count(LockEvent::Failed(failure));
    }

    pub(crate) fn renewed(self) {
        self.count(LockEvent::Renewed);
    }

    /// An attempt found the lock held by another owner.
    pub(crate) fn refused(self) {
        self.count(LockEvent::Refused);
    }

    /// The length of a hold that is over.
    pub(crate) fn held_for(self, time: Duration) {
        self.all.hold.note(time);
        self.all.exporter.time(self.lock, LockTime::Hold, time);
    }

    /// The holds of this lock were `before`, and are `now`.
    pub(crate) fn holds(self, before: u32, now: u32) {
        self.moves(LockGauge::Holds, before, now);
    }

    /// The calls that wait for this lock were `before`, and are `now`.
    pub(crate) fn waiting(self, before: u32, now: u32) {
        self.moves(LockGauge::Waiting, before, now);
    }

    fn moves(self, gauge: LockGauge, before: u32, now: u32) {
        if before == now {
            return;
        }
        match gauge {
            LockGauge::Holds => self.all.holds.moves(before, now),
            LockGauge::Waiting => self.all.waiting.moves(before, now),
        }
        self.all.exporter.gauge(self.lock, gauge, f64::from(now) - f64::from(before));
    }

    fn count(self, event: LockEvent) {
        match event {
            LockEvent::Acquired(way) => &self.all.acquired_by[way as usize],
            LockEvent::Reentered => &self.all.reentered,
            LockEvent::Passed => &self.all.passed,
            LockEvent::Released => &self.all.released,
            LockEvent::Lost(_) => &self.all.lost,
            LockEvent::Failed(_) => &self.all.failed,
            LockEvent::Renewed => &self.all.renewals,
            LockEvent::Refused => &self.all.refused,
        }
        .up();
        self.all.exporter.count(self.lock, event);
    }
}

/// A moving mean in microseconds: each new value counts for an eighth, as in TCP (RFC 6298).
#[derive(Debug)]
pub(crate) struct RoundTrip {
    mean: AtomicU64,
    handle: HistogramHandle,
}

impl RoundTrip {
    fn exported(name: &'static str) -> RoundTrip {
        RoundTrip { mean: AtomicU64::new(0), handle: HistogramHandle::new(name) }
    }

    /// A request has its reply.
    pub(crate) fn note(&self, micros: u64) {
        self.estimate(micros);
        self.handle.record(Duration::from_micros(micros));
    }

    /// Moves the mean. No request was measured.
    pub(crate) fn estimate(&self, micros: u64) {
        let mean = self.mean.load(Ordering::Relaxed);
        let next = if mean == 0 { micros } else { (mean * 7 + micros) / 8 };
        self.mean.store(next, Ordering::Relaxed); // a value lost between two threads is no loss
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_micros(self.mean.load(Ordering::Relaxed))
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
    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn up(&self) {
        self.add(1);
    }

    /// One part of it was `before`, and is `now`.
    fn moves(&self, before: u32, now: u32) {
        self.add(u64::from(now).wrapping_sub(u64::from(before)));
    }

    /// Two threads may report two moves of one part in the wrong order. Until both are there, the number may be below zero.
    pub(crate) fn get(&self) -> u64 {
        let count = self.0.load(Ordering::Relaxed);
        if count > u64::MAX / 2 { 0 } else { count }
    }
}

/// A number that only grows, and is not about one lock.
#[derive(Debug)]
pub(crate) struct Total {
    count: Count,
    handle: CounterHandle,
}

impl Total {
    fn exported(name: &'static str) -> Total {
        Total { count: Count::default(), handle: CounterHandle::new(name) }
    }

    pub(crate) fn add(&self, n: u64) {
        self.count.add(n);
        self.handle.add(n);
    }

    pub(crate) fn up(&self) {
        self.add(1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.count.get()
    }
}

/// A number that goes up and down, and is not about one lock.
#[derive(Debug)]
pub(crate) struct Level {
    count: Count,
    handle: GaugeHandle,
}

impl Level {
    fn exported(name: &'static str) -> Level {
        Level { count: Count::default(), handle: GaugeHandle::new(name) }
    }

    pub(crate) fn up(&self) {
        self.moves(0, 1);
    }

    pub(crate) fn down(&self) {
        self.moves(1, 0);
    }

    /// One part of it was `before`, and is `now`.
    pub(crate) fn moves(&self, before: u32, now: u32) {
        if before != now {
            self.count.moves(before, now);
            self.handle.add(f64::from(now) - f64::from(before));
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.count.get()
    }
}

/// All clients of a process share the gauge of the recorder. A client that ends, perhaps with its runtime and in the middle of
/// something, must leave nothing in it.
impl Drop for Level {
    fn drop(&mut self) {
        self.handle.add(-(self.get() as f64));
    }
}
