//! Code of the program that runs inside of the client: subscribers, recorders, wakers. And tasks of the client that must outlive a panic.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::sleep;

use crate::sync::tokio;

/// A panic of such code ends here: the tasks of the client go on, for the locks of others. The program's panic hook has reported it.
pub(crate) fn contained(code: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(code));
}

/// The result of `work`; `None` if it panics.
pub(crate) async fn caught<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let poll = |cx: &mut Context<'_>| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Some),
        Err(_panic) => Poll::Ready(None),
    };
    poll_fn(poll).await
}

/// The pause after a panic.
pub(crate) const AFTER_PANIC: Duration = Duration::from_millis(100);

/// Work that the client cannot do without: it begins again if it panics.
pub(crate) async fn lasting<W: Future<Output = ()>>(mut work: impl FnMut() -> W) {
    while caught(work()).await.is_none() {
        sleep(AFTER_PANIC).await;
    }
}

/// An event about a connection: `conn_event!(warn, server = %address, "connection lost")`. The task that reports it goes on if the program's
/// subscriber panics.
macro_rules! conn_event {
    ($level:ident, $($fields:tt)+) => {
        $crate::contained::contained(|| tracing::$level!(target: "leasehold::conn", $($fields)+))
    };
}
pub(crate) use conn_event;
