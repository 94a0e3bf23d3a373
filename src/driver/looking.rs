//! Looking for a reply before sleeping. On one machine, to wake a thread takes several times as long as the request itself. So a caller whose
//! request was just sent to a server on the same machine lets the other tasks run, and looks again and again, for about as long as a reply takes.

use std::{sync::Arc, time::Duration};

use super::named::{Driver, NamedLock};
use crate::{
    sync::{std, tokio::task::yield_now},
    task_runtime::TaskRuntime,
};

/// Nobody looks for longer.
const LONGEST: Duration = Duration::from_micros(100);
/// A caller that looks for the reply to its request.
pub(super) struct Looking {
    driver: Arc<Driver>,
    // Of the machine, not of the runtime: a paused clock would never end it.
    begun: ::std::time::Instant,
}

impl Looking {
    /// `None` if it would gain nothing.
    pub(super) fn begin(lock: &NamedLock) -> Option<Looking> {
        let driver = &lock.driver;
        let can_look =
            driver.config.busy_poll && driver.payoff.is_good() && TaskRuntime::is_worker_of(driver.runtime.handle());
        (can_look && driver.redis.is_quick(lock.name.key()))
            .then(|| Looking { driver: Arc::clone(driver), begun: ::std::time::Instant::now() })
    }

    /// Lets the other tasks run. False when the time is over.
    pub(super) async fn goes_on(&self) -> bool {
        yield_now().await;
        let goes_on = self.begun.elapsed() < LONGEST;
        if !goes_on {
            self.driver.payoff.note(false);
        }
        goes_on
    }

    /// The result is there.
    pub(super) fn found(self) {
        self.driver.payoff.note(true);
    }
}
