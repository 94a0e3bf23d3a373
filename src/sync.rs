//! The source of threads, tasks, their locks, and time. `use crate::sync::{std, tokio};` imports these crates. When tests/explore explores
//! interleavings, it imports the replacements of these crates instead.

#[cfg(leasehold_explore)]
pub(crate) use crate::explore::{dashmap, now, std, tokio};
#[cfg(not(leasehold_explore))]
pub(crate) use {::dashmap, ::std, ::tokio};
