//! Release: each lock is released, however its guard or its client ends, and none stays forever.

mod asking;
mod backlog;
mod closing;
mod drops;
mod long_leases;
mod slow_release;
mod tiny_times;
