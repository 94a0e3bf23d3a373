//! The foundations of leasehold while interleavings are explored: small versions of time, tasks, locks and the server, all
//! under one scheduler. `scenarios.rs`, which uses locks through the public interface, is a module of the driver, so that it also sees what
//! is left there.

mod clock;
mod locks;
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

    pub(crate) mod collections {
        use ::std::{collections::hash_map::DefaultHasher, hash::BuildHasherDefault};

        pub(crate) use ::std::collections::*;

        /// In the same order in every execution.
        pub(crate) type HashMap<K, V> = ::std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
    }

    pub(crate) mod sync {
        pub(crate) use crate::explore::locks::{Mutex, MutexGuard};
        pub(crate) use ::std::sync::*;
        pub(crate) use shuttle::sync::atomic;
    }
}

/// In the place of the crate `tokio`: what waits and wakes is tokio's own; tasks and time are not.
pub(crate) mod tokio {
    pub(crate) use super::{select_in_order as select, tasks::spawn};
    pub(crate) use ::tokio::sync;

    pub(crate) mod runtime {
        pub(crate) use crate::explore::tasks::Handle;
    }

    pub(crate) mod task {
        pub(crate) use crate::explore::tasks::{AbortHandle, JoinHandle};
        pub(crate) use shuttle::future::yield_now;
    }

    pub(crate) mod time {
        pub(crate) use crate::explore::clock::{Instant, interval, sleep, sleep_until, timeout, timeout_at};
    }
}

/// tokio's draws the first branch by its own random numbers, and then no execution could be repeated.
macro_rules! select_in_order {
    (biased; $($branches:tt)*) => { ::tokio::select! { biased; $($branches)* } };
    ($($branches:tt)*) => { ::tokio::select! { biased; $($branches)* } };
}
pub(crate) use select_in_order;

/// In the place of the crate `dashmap`.
pub(crate) mod dashmap {
    pub(crate) use super::map::DashMap;
}
