//! Code of the program that runs inside of the client: subscribers, recorders, wakers.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic of such code ends here: the tasks of the client go on, for the locks of others. The program's panic hook has reported it.
pub(crate) fn contained(code: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(code));
}

/// An event about a connection: `conn_event!(warn, server = %address, "connection lost")`. The task that reports it goes on if the program's
/// subscriber panics.
macro_rules! conn_event {
    ($level:ident, $($fields:tt)+) => {
        $crate::contained::contained(|| tracing::$level!(target: "leasehold::conn", $($fields)+))
    };
}
pub(crate) use conn_event;
