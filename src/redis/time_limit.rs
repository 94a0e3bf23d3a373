//! Time limits of requests.

use std::time::Duration;

use tokio::{runtime::Handle, time::sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::contained::with_contained_waker;

/// The runtime of the client's tasks, whose timers bound what a request waits for.
///
/// A request begins in its caller's runtime, but a task of the client may go on with it, even when that runtime has ended. A timer of that
/// runtime would panic there.
#[derive(Debug, Clone)]
pub(super) struct TimeLimits(Handle);

impl TimeLimits {
    /// Call it on the runtime of the client's tasks.
    pub(super) fn here() -> TimeLimits {
        TimeLimits(Handle::current())
    }

    /// `None` if `work` is not done in this time. The time begins when `work` has been polled once, so work that need not wait costs
    /// no timer. The tasks that replace connections and read the map of a cluster wake such work. If the runtime of the client's tasks has
    /// ended, the time is over at once.
    pub(super) async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let timer = async move { sleep(limit).await }; // it belongs to the runtime that first polls this
        let over = async { AbortOnDropHandle::new(self.0.spawn(timer)).await };
        with_contained_waker(async {
            tokio::select! {
                biased;
                done = work => Some(done),
                _ = over => None,
            }
        })
        .await
    }
}
