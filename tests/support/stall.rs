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

/// All stalls since the process began, in microseconds; each of them; and the beat that is under way.
static STALLED: AtomicU64 = AtomicU64::new(0);
static STALLS: Mutex<Vec<Stall>> = Mutex::new(Vec::new());
static BEATING: LazyLock<Mutex<Instant>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            *beat() = Instant::now();
            thread::sleep(BEAT);
            let late = lateness(*beat());
            STALLED.fetch_add(u64::try_from(late.as_micros()).expect("no centuries"), Relaxed);
            if !late.is_zero() {
                STALLS.lock().unwrap_or_else(PoisonError::into_inner).push(Stall { ended: Instant::now(), late });
            }
        }
    });
    Mutex::new(Instant::now())
});

/// The machine stood still for so long, until then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stall {
    pub(crate) ended: Instant,
    pub(crate) late: Duration,
}

/// Stalls that explain why a test failed: of so much in all, within a stretch of so long. Such a stretch of a test has a time limit, and
/// on a machine that runs there is that much left of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slack {
    pub(crate) left: Duration,
    pub(crate) within: Duration,
}

impl Slack {
    /// The most that the machine stood still within such a stretch, if that explains a failure.
    pub(crate) fn used_up(&self, stalls: &[Stall]) -> Option<Duration> {
        let ends_here = |(at, last): (usize, &Stall)| {
            let first = last.ended.checked_sub(self.within.max(last.late));
            let of_stretch =
                stalls[..=at].iter().rev().take_while(|stall| first.is_none_or(|first| stall.ended >= first));
            of_stretch.map(|stall| stall.late).sum::<Duration>()
        };
        stalls.iter().enumerate().map(ends_here).max().filter(|worst| *worst > self.left)
    }
}

/// The stalls since then, with that of this moment.
fn stalls(since: Instant) -> Vec<Stall> {
    let under_way = Stall { ended: Instant::now(), late: lateness(*beat()) };
    let all = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let later = all.iter().rev().take_while(|stall| stall.ended >= since).copied();
    let mut later: Vec<_> = std::iter::once(under_way).chain(later).collect();
    later.reverse();
    later
}

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

/// For what depends on a last attempt, which has 20 ms. A server that the machine keeps from answering in that time is one that does not
/// answer.
pub(crate) const LAST_ATTEMPT: Slack = Slack { left: Duration::from_millis(15), within: Duration::from_millis(20) };

/// For a test of a time limit that a machine that stands still for a moment exceeds. If it fails, and the machine stood still for longer
/// than the limit has left, the attempt showed nothing, and the test runs again. Any other failure is one at once.
pub(crate) async fn unless_stalled(slack: Slack, test: impl AsyncFn()) {
    LazyLock::force(&BEATING);
    for attempt in 1.. {
        let began = Instant::now();
        let Err(panic) = AssertUnwindSafe(test()).catch_unwind().await else { return };
        match slack.used_up(&stalls(began)) {
            Some(stalled) if attempt < ATTEMPTS => {
                let within = slack.within;
                eprintln!("attempt {attempt} shows nothing: the machine stood still for {stalled:?} within {within:?}");
            }
            _ => resume_unwind(panic),
        }
    }
}
