//! Code of the program that runs inside of the client: subscribers, recorders, wakers.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

/// A panic of such code ends here: the tasks of the client go on, for the locks of others. The program's panic hook has reported it.
pub(crate) fn contained(code: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(code));
}

/// A waker of the program.
struct Contained(Waker);

impl Wake for Contained {
    fn wake(self: Arc<Self>) {
        contained(|| self.0.wake_by_ref());
    }
}

/// For work that a task of the client wakes while it does something else that must be done: a panic of the program's waker does not end that
/// task.
pub(crate) async fn with_contained_waker<T>(work: impl Future<Output = T>) -> T {
    let (mut work, mut last) = (pin!(work), None);
    poll_fn(|cx| {
        drop(last.take_if(|(of, _): &mut (Waker, Waker)| !of.will_wake(cx.waker())));
        let (_, waker) = last.get_or_insert_with(|| {
            let of = cx.waker().clone();
            (of.clone(), Waker::from(Arc::new(Contained(of))))
        });
        work.as_mut().poll(&mut Context::from_waker(waker))
    })
    .await
}

/// An event about a connection: `conn_event!(warn, server = %address, "connection lost")`. The task that reports it goes on if the program's
/// subscriber panics.
macro_rules! conn_event {
    ($level:ident, $($fields:tt)+) => {
        $crate::contained::contained(|| tracing::$level!(target: "leasehold::conn", $($fields)+))
    };
}
pub(crate) use conn_event;
