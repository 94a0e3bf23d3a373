//! The kinds of locks and what is built on them.

mod failing_jobs;
mod fair;
mod fair_processes;
pub(crate) mod family;
mod family_cluster;
pub(crate) mod family_faults;
pub(crate) mod family_scripts;
mod fenced;
mod jvm_readers;
pub(crate) mod latch;
mod leader;
mod leader_processes;
mod multi;
mod multi_processes;
mod permit_processes;
mod permits;
mod permits_pass;
mod plain_semaphore;
mod rw;
mod semaphore;
mod shared_readers;
mod tokens;
