//! Loss: a holder learns in time that it no longer holds its lock, and leases end when they must.

mod forced;
mod forgotten;
mod frozen;
mod guarantees;
mod lost;
mod max_hold;
mod protect;
mod tracking;
mod unlock_tells;
mod watchdog;
