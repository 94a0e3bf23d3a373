//! The numbers of a client for the recorder of the crate `metrics` (feature `metrics`).
//!
//! A client gets its handles from the recorder once: those that are not about locks when it is created, and those of a kind of lock when
//! it first uses that kind. An update is then one call and one atomic operation. Only metrics with names of locks are looked up at each
//! event, because a handle for each name would stay forever.

use std::{sync::OnceLock, time::Duration};

use metrics::{Counter, Gauge, Histogram, Label, Unit, counter, gauge, histogram};

use crate::{
    contained::contained,
    error::{Failure, Lost},
    events::{AcquiredBy, KindLabel, LockEvent, LockGauge, LockTime, Subject},
};

const HOLDS: &str = "leasehold_holds";
const WAITING: &str = "leasehold_waiting";
const ACQUIRED: &str = "leasehold_acquired_total";
const REENTERED: &str = "leasehold_reentered_total";
const PASSED: &str = "leasehold_passed_total";
const RELEASED: &str = "leasehold_released_total";
const LOST: &str = "leasehold_lost_total";
const FAILED: &str = "leasehold_failed_total";
const RENEWALS: &str = "leasehold_renewals_total";
const REFUSED: &str = "leasehold_refused_total";
const WAIT: &str = "leasehold_wait_seconds";
const HOLD: &str = "leasehold_hold_seconds";

const GAUGES: [(&str, &str); 4] = [
    (HOLDS, "Held locks; nested acquisitions count once, and so do the permits that one call acquired"),
    (WAITING, "Calls that wait for a lock, permits or a latch, including calls at their first attempt"),
    ("leasehold_subscriptions", "Channels that the client subscribes to"),
    ("leasehold_releasing", "Releases in progress, including those in the background"),
];

const COUNTERS: [(&str, &str); 15] = [
    (ACQUIRED, "Holds acquired, without nested acquisitions"),
    (REENTERED, "Nested acquisitions"),
    (
        PASSED,
        "Waits for a latch that ended because it was open, and for permits of a plain semaphore that were acquired",
    ),
    (RELEASED, "Holds released, including releases that could not be confirmed"),
    (LOST, "Holds lost before their release, or found gone at their release"),
    (FAILED, "Calls for a lock and waits for a latch that ended with an error"),
    (RENEWALS, "Renewals and checks of held locks that the server confirmed"),
    (REFUSED, "Requests that found the lock held by another owner, or the latch not open"),
    ("leasehold_wakeups_total", "Wake-ups by a message about a release or a latch"),
    ("leasehold_deadlocks_total", "Deadlocks found, each by the client with the youngest wait"),
    ("leasehold_calls_total", "Script calls sent; one call can carry many requests"),
    ("leasehold_requests_total", "Requests sent in those calls"),
    ("leasehold_timeouts_total", "Requests without a reply in time"),
    ("leasehold_reconnects_total", "Connections replaced"),
    ("leasehold_misplaced_total", "Replies that belonged to another request"),
];

const HISTOGRAMS: [(&str, &str); 3] = [
    (WAIT, "Times from a call to the hold that it acquired, without nested acquisitions"),
    (HOLD, "Times from the start of a hold to the release of its last guard"),
    ("leasehold_round_trip_seconds", "Times from a request to its reply"),
];

/// Each client describes them anew, since its recorder may be another.
fn describe() {
    GAUGES.iter().for_each(|(name, text)| metrics::describe_gauge!(*name, Unit::Count, *text));
    COUNTERS.iter().for_each(|(name, text)| metrics::describe_counter!(*name, Unit::Count, *text));
    HISTOGRAMS.iter().for_each(|(name, text)| metrics::describe_histogram!(*name, Unit::Seconds, *text));
}

/// The metrics that are about locks.
#[derive(Debug)]
pub(crate) struct Exporter {
    by_kind: [OnceLock<Handles>; KindLabel::NUMBER],
    names: LockNames,
}

/// Whether metrics have the names of locks.
#[derive(Debug)]
enum LockNames {
    Hidden,
    Shown,
}

impl Exporter {
    pub(crate) fn new(by_name: bool) -> Exporter {
        describe();
        Exporter { by_kind: Default::default(), names: if by_name { LockNames::Shown } else { LockNames::Hidden } }
    }

    pub(crate) fn count(&self, lock: Subject<'_>, event: LockEvent) {
        contained(|| match self.names {
            LockNames::Hidden => self.of(lock.kind).counter(event).increment(1),
            LockNames::Shown => count_by_name(lock, event),
        });
    }

    /// Gauges never have names. A recorder may forget a metric that was not used for a while, and then a gauge would go below zero.
    pub(crate) fn gauge(&self, lock: Subject<'_>, gauge: LockGauge, change: f64) {
        contained(|| {
            let handles = self.of(lock.kind);
            let handle = match gauge {
                LockGauge::Holds => &handles.holds,
                LockGauge::Waiting => &handles.waiting,
            };
            handle.increment(change);
        });
    }

    pub(crate) fn time(&self, lock: Subject<'_>, time: LockTime, length: Duration) {
        contained(|| match (&self.names, time) {
            (LockNames::Hidden, LockTime::Wait) => self.of(lock.kind).wait.record(length),
            (LockNames::Hidden, LockTime::Hold) => self.of(lock.kind).hold.record(length),
            (LockNames::Shown, time) => time.register(labels(lock.kind, Some(lock.name))).record(length),
        });
    }

    /// The handles of a kind are made when the client first uses that kind: most programs use one or two.
    fn of(&self, kind: KindLabel) -> &Handles {
        self.by_kind[kind as usize].get_or_init(|| Handles::new(kind, &self.names))
    }
}

const LOSSES: [Lost; 4] = [Lost::Removed, Lost::Expired, Lost::MaxHold, Lost::Closed];

/// A name with a hold gets its counters of losses, at zero: a lock is hardly ever lost twice, and Prometheus does not see the first
/// increment of a counter that was not there before.
fn count_by_name(lock: Subject<'_>, event: LockEvent) {
    let register = |event: LockEvent| event.register(labels(lock.kind, Some(lock.name)));
    register(event).increment(1);
    if let LockEvent::Acquired(_) = event {
        let _at_zero = LOSSES.map(|reason| register(LockEvent::Lost(reason)));
    }
}

/// The metrics of one kind of lock.
#[derive(Debug)]
struct Handles {
    holds: Gauge,
    waiting: Gauge,
    acquired: [Counter; 4],
    lost: [Counter; 4],
    failed: [Counter; Failure::ALL.len()],
    reentered: Counter,
    passed: Counter,
    released: Counter,
    renewals: Counter,
    refused: Counter,
    wait: Histogram,
    hold: Histogram,
}

impl Handles {
    /// All begin at zero, because Prometheus does not see the first increment of a counter that was not there before. With names, only
    /// the gauges are registered here.
    fn new(kind: KindLabel, names: &LockNames) -> Handles {
        let counter = |event: LockEvent| match names {
            LockNames::Hidden => event.register(labels(kind, None)),
            LockNames::Shown => Counter::noop(),
        };
        let histogram = |time: LockTime| match names {
            LockNames::Hidden => time.register(labels(kind, None)),
            LockNames::Shown => Histogram::noop(),
        };
        let ways = [AcquiredBy::FirstTry, AcquiredBy::Woken, AcquiredBy::HandedOver, AcquiredBy::Timer];
        Handles {
            holds: gauge!(HOLDS, labels(kind, None)),
            waiting: gauge!(WAITING, labels(kind, None)),
            acquired: ways.map(|way| counter(LockEvent::Acquired(way))),
            lost: LOSSES.map(|reason| counter(LockEvent::Lost(reason))),
            failed: Failure::ALL.map(|failure| counter(LockEvent::Failed(failure))),
            reentered: counter(LockEvent::Reentered),
            passed: counter(LockEvent::Passed),
            released: counter(LockEvent::Released),
            renewals: counter(LockEvent::Renewed),
            refused: counter(LockEvent::Refused),
            wait: histogram(LockTime::Wait),
            hold: histogram(LockTime::Hold),
        }
    }

    fn counter(&self, event: LockEvent) -> &Counter {
        match event {
            LockEvent::Acquired(way) => &self.acquired[way as usize],
            LockEvent::Lost(reason) => &self.lost[reason as usize],
            LockEvent::Failed(failure) => &self.failed[failure as usize],
            LockEvent::Reentered => &self.reentered,
            LockEvent::Passed => &self.passed,
            LockEvent::Released => &self.released,
            LockEvent::Renewed => &self.renewals,
            LockEvent::Refused => &self.refused,
        }
    }
}

impl LockEvent {
    fn register(self, mut labels: Vec<Label>) -> Counter {
        let (name, more) = match self {
            LockEvent::Acquired(way) => (ACQUIRED, Some(("way", way.label()))),
            LockEvent::Lost(reason) => (LOST, Some(("reason", reason.label()))),
            LockEvent::Failed(failure) => (FAILED, Some(("reason", failure.label()))),
            LockEvent::Reentered => (REENTERED, None),
            LockEvent::Passed => (PASSED, None),
            LockEvent::Released => (RELEASED, None),
            LockEvent::Renewed => (RENEWALS, None),
            LockEvent::Refused => (REFUSED, None),
        };
        labels.extend(more.map(|(key, value)| Label::from_static_parts(key, value)));
        counter!(name, labels)
    }
}

impl LockTime {
    fn register(self, labels: Vec<Label>) -> Histogram {
        match self {
            LockTime::Wait => histogram!(WAIT, labels),
            LockTime::Hold => histogram!(HOLD, labels),
        }
    }
}

impl AcquiredBy {
    fn label(self) -> &'static str {
        match self {
            AcquiredBy::FirstTry => "first_try",
            AcquiredBy::Woken => "woken",
            AcquiredBy::HandedOver => "handed_over",
            AcquiredBy::Timer => "by_timer",
        }
    }
}

fn labels(kind: KindLabel, name: Option<&str>) -> Vec<Label> {
    let kind = Label::from_static_parts("kind", kind.label());
    [Some(kind), name.map(|name| Label::new("name", name.to_owned()))].into_iter().flatten().collect()
}

/// A counter that is not about locks.
#[derive(Debug)]
pub(crate) struct CounterHandle(Counter);

impl CounterHandle {
    pub(crate) fn new(name: &'static str) -> CounterHandle {
        CounterHandle(counter!(name))
    }

    pub(crate) fn add(&self, n: u64) {
        contained(|| self.0.increment(n));
    }
}

/// A gauge that is not about locks.
#[derive(Debug)]
pub(crate) struct GaugeHandle(Gauge);

impl GaugeHandle {
    pub(crate) fn new(name: &'static str) -> GaugeHandle {
        GaugeHandle(gauge!(name))
    }

    pub(crate) fn add(&self, change: f64) {
        contained(|| self.0.increment(change));
    }
}

/// Times that are not about locks.
#[derive(Debug)]
pub(crate) struct HistogramHandle(Histogram);

impl HistogramHandle {
    pub(crate) fn new(name: &'static str) -> HistogramHandle {
        HistogramHandle(histogram!(name))
    }

    pub(crate) fn record(&self, time: Duration) {
        contained(|| self.0.record(time));
    }
}
