//! Layer 4: what stands on locks and clients and knows nothing of the engine: several locks at once, a quorum of servers, a leader, a job that runs once
//! per period.

mod any_lost;
mod holders;
mod leader;
mod multi;
mod periodic;
mod protect;
mod quorum;
mod quorum_guard;
mod signal;
mod tally;
mod turns;

pub use leader::Leader;
pub use multi::{MultiGuard, MultiLock};
pub use periodic::Once;
pub use quorum::{Quorum, QuorumLock};
pub use quorum_guard::QuorumGuard;
