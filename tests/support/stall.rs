//! How long the machine kept this process from running, so that a bound of time is not charged with it.
//!
//! A thread sleeps for a few milliseconds again and again, and adds up how much later than asked it runs. On an idle machine that
//! is nearly nothing. Beside other load each step of a test, here and in its servers, is late by about as much.

use std::{
    cmp::Ordering::{self, Equal},
    fmt,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use futures_util::FutureExt;

const BEAT: Duration = Duration::from_millis(4);
/// A timer may be as late as that on any machine.
const GRAIN: Duration = Duration::from_micros(200);
/// How often a test may find that the machine did not run.
const ATTEMPTS: u32 = 4;

/// All stalls since the process began, in microseconds; and the beat that is under way.
static STALLED: AtomicU64 = AtomicU64::new(0);
static BEATING: LazyLock<Mutex<Instant>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            *beat() = Instant::now();
            thread::sleep(BEAT);
            let late = lateness(*beat());
            STALLED.fetch_add(u64::try_from(late.as_micros()).expect("no centuries"), Relaxed);
        }
    });
    Mutex::new(Instant::now())
});

fn beat() -> std::sync::MutexGuard<'static, Instant> {
    BEATING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lateness(since: Instant) -> Duration {
    since.elapsed().saturating_sub(BEAT + GRAIN)
}

/// With the stall of this moment, of which the thread does not know yet.
fn stalled() -> Duration {
    let under_way = lateness(*beat());
    Duration::from_micros(STALLED.load(Relaxed)) + under_way
}

/// A moment, from which it measures how long something took, and for how much of that the machine stood still.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    started: Instant,
    stalled: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        let stalled = stalled();
        Stopwatch { started: Instant::now(), stalled }
    }

    pub(crate) fn elapsed(&self) -> Took {
        let elapsed = self.started.elapsed();
        Took { elapsed, stalled: self.stalled() }
    }

    /// From an earlier moment to this one.
    pub(crate) fn since(&self, earlier: &Stopwatch) -> Took {
        let stalled = self.stalled.saturating_sub(earlier.stalled);
        Took { elapsed: self.started.saturating_duration_since(earlier.started), stalled }
    }

    /// For how long the machine stood still since the start.
    pub(crate) fn stalled(&self) -> Duration {
        stalled().saturating_sub(self.stalled)
    }
}

/// How long something took. Compared with an upper bound, the time in which the machine stood still does not count; compared with
/// a lower bound, it does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    pub(crate) elapsed: Duration,
    pub(crate) stalled: Duration,
}

impl Took {
    fn least(&self) -> Duration {
        self.elapsed.saturating_sub(self.stalled)
    }
}

impl PartialEq<Duration> for Took {
    fn eq(&self, other: &Duration) -> bool {
        self.partial_cmp(other) == Some(Equal)
    }
}

impl PartialOrd<Duration> for Took {
    /// Equal, if only the machine can tell.
    fn partial_cmp(&self, other: &Duration) -> Option<Ordering> {
        Some(if self.elapsed < *other {
            Ordering::Less
        } else if self.least() > *other {
            Ordering::Greater
        } else {
            Equal
        })
    }

    fn lt(&self, other: &Duration) -> bool {
        self.least() < *other
    }

    fn le(&self, other: &Duration) -> bool {
        self.least() <= *other
    }

    fn gt(&self, other: &Duration) -> bool {
        self.elapsed > *other
    }

    fn ge(&self, other: &Duration) -> bool {
        self.elapsed >= *other
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, in which the machine stood still for {:?}", self.elapsed, self.stalled)
    }
}

/// For a test whose leases are so short that a machine that stands still for a moment ends them: if it fails and the machine stood
/// still for that long in all, the attempt showed nothing, and the test runs again.
pub(crate) async fn unless_stalled(allowed: Duration, test: impl AsyncFn()) {
    for attempt in 1.. {
        let watch = Stopwatch::start();
        match AssertUnwindSafe(test()).catch_unwind().await {
            Ok(()) => return,
            Err(_) if attempt < ATTEMPTS && watch.stalled() > allowed => {
                eprintln!("attempt {attempt} shows nothing: the machine stood still for {:?}", watch.stalled());
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}
