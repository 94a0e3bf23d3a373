//! The foundations of leasehold while interleavings are explored: small versions of time, tasks, locks and the server, all
//! under one scheduler. `scenarios.rs`, which drives the engine, is a module of the engine.

mod clock;
mod map;
mod scheduler;
pub(crate) mod server;
mod tasks;
pub(crate) mod world;

pub(crate) use clock::now;
pub(crate) use scheduler::explore;

/// In the place of the crate `std`: all of it, but for what threads meet at.
pub(crate) mod std {
    pub(crate) use ::std::*;

    pub(crate) mod sync {
        pub(crate) use ::std::sync::*;
        pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
    }
}

/// In the place of the crate `tokio`: what waits and wakes is tokio's own; tasks and time are not.
pub(crate) mod tokio {
    pub(crate) use super::tasks::spawn;
    pub(crate) use ::tokio::{runtime, select, sync};

    pub(crate) mod task {
        pub(crate) use crate::explore::tasks::{JoinHandle, JoinSet};
        pub(crate) use ::tokio::task::{AbortHandle, consume_budget};
        pub(crate) use shuttle::future::yield_now;
    }

    pub(crate) mod time {
        pub(crate) use crate::explore::clock::{Instant, interval, sleep, sleep_until, timeout, timeout_at};
    }
}

/// In the place of the crate `dashmap`.
pub(crate) mod dashmap {
    pub(crate) use super::map::{DashMap, Entry};
}
