//! Where threads, tasks, their locks and the time come from. A file that says `use crate::sync::{std, tokio};` means
//! these crates; but where interleavings are explored (tests/explore), what stands in for them there.

#[cfg(leasehold_explore)]
pub(crate) use crate::explore::{dashmap, now, std, tokio};
#[cfg(not(leasehold_explore))]
pub(crate) use {::dashmap, ::std, ::tokio};
