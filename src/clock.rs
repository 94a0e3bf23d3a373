//! The clock for leases. It continues while the machine sleeps.
//!
//! `std::time::Instant` stops during suspend on Linux and on Apple's systems. With it, a laptop that wakes up would still consider
//! leases valid that expired long ago. On Linux, `CLOCK_BOOTTIME` continues. On Apple's systems `CLOCK_MONOTONIC` continues, by its
//! manual; the clock of that name on Linux does not. All other systems use `Instant`; on Windows it continues, too.

use std::{ops::Add, time::Duration};
#[cfg(feature = "test-util")]
use std::{sync::OnceLock, time::Instant};

use crate::sync::tokio::{select, time};

/// Leases are counted on tokio's clock, which tests can pause: since this moment.
#[cfg(feature = "test-util")]
static ON_TOKIO: OnceLock<(Moment, Instant)> = OnceLock::new();

/// From now on leases are counted on tokio's clock, in the whole process.
#[cfg(feature = "test-util")]
pub(crate) fn count_on_tokio() {
    ON_TOKIO.get_or_init(|| (Moment::of_the_machine(), Instant::now()));
}

#[cfg(feature = "test-util")]
pub(crate) fn is_tokios() -> bool {
    ON_TOKIO.get().is_some()
}

/// Sleeps, and a little longer if that took much longer, because the process was paused: then replies may be there that no task has read.
pub(crate) async fn nap(length: Duration) {
    let begun = time::Instant::now();
    time::sleep(length).await;
    if begun.elapsed() > length * 2 {
        time::sleep(length / 10).await;
    }
}

/// `None` if `work` is not done in this time, during which the process runs.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    select! {
        biased;
        done = work => Some(done),
        () = nap(limit) => None,
    }
}

/// A point in time since boot; includes sleep if the system can measure it. In nanoseconds, which last for 584 years and need half the
/// space of a `Duration`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) const FAR: Moment = Moment(u64::MAX);
    pub(crate) const PAST: Moment = Moment(0);

    #[cfg(leasehold_explore)]
    pub(crate) fn now() -> Moment {
        Moment(nanos(crate::sync::now()))
    }

    #[cfg(not(leasehold_explore))]
    pub(crate) fn now() -> Moment {
        #[cfg(feature = "test-util")]
        if let Some(begun) = ON_TOKIO.get() {
            return Moment::of_tokio(*begun);
        }
        Moment::of_the_machine()
    }

    #[cfg(all(any(target_os = "linux", target_os = "android", target_vendor = "apple"), not(leasehold_explore)))]
    fn of_the_machine() -> Moment {
        #[cfg(not(target_vendor = "apple"))]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(target_vendor = "apple")]
        let clock = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(clock);
        Moment(nanos(Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple", leasehold_explore)))]
    fn of_the_machine() -> Moment {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        Moment(nanos(START.get_or_init(std::time::Instant::now).elapsed()))
    }

    /// Goes on from the machine's clock, so that clients that hold locks already notice nothing. A runtime with a paused clock has a time of
    /// its own.
    #[cfg(feature = "test-util")]
    fn of_tokio((begun, at): (Moment, Instant)) -> Moment {
        let now = tokio::time::Instant::now().into_std();
        match now.checked_duration_since(at) {
            Some(since) => begun + since,
            None => Moment(begun.0.saturating_sub(nanos(at - now))),
        }
    }

    /// The time from now until this moment; zero if it is past.
    pub(crate) fn left(self) -> Duration {
        self.since(Moment::now())
    }

    pub(crate) fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    pub(crate) fn nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(time)))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
