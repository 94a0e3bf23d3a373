//! Layer 4: types that are built on locks, clients and guards: several locks at once, a quorum of servers, a leader, a job that runs once
//! per period. Of the engine they use the guard, the wait limit and the words of errors, and they send no request of their own.

mod any_lost;
mod holders;
mod leader;
mod multi;
mod periodic;
mod protect;
mod quorum;
mod quorum_guard;
mod server_guards;
mod signal;
mod tally;
mod turns;

pub use leader::Leader;
pub use multi::{MultiGuard, MultiLock};
pub use periodic::Once;
pub use quorum::{Quorum, QuorumLock};
pub use quorum_guard::QuorumGuard;
