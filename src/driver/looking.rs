//! Looking for a reply before sleeping. On one machine, to wake a thread takes several times as long as the request itself. So a caller whose
//! request was just sent to a server on the same machine lets the other tasks run, and looks again and again, for about as long as a reply takes.

use std::time::Duration;

use super::named::NamedLock;
use crate::{
    sync::{std, tokio::task::yield_now},
    task_runtime::TaskRuntime,
};

/// Nobody looks for longer.
const LONGEST: Duration = Duration::from_micros(100);

/// A caller that looks for the reply to its request.
pub(super) struct Looking {
    // Of the machine, not of the runtime: a paused clock would never end it.
    begun: ::std::time::Instant,
}

impl Looking {
    /// `None` if it would gain nothing.
    pub(super) fn begin(lock: &NamedLock) -> Option<Looking> {
        let driver = &lock.driver;
        let is_quick = || driver.config.busy_poll && TaskRuntime::runs_on() && driver.redis.is_quick(lock.name.key());
        is_quick().then(|| Looking { begun: ::std::time::Instant::now() })
    }

    /// Lets the other tasks run. False when the time is over.
    pub(super) async fn goes_on(&self) -> bool {
        yield_now().await;
        self.begun.elapsed() < LONGEST
    }
}
