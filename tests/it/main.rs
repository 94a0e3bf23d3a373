//! The lock on real servers, each test with one of its own.

#[path = "../support/mod.rs"]
mod support;

mod cancelled;
mod closing;
mod concurrent;
mod drops;
mod dying;
mod errors;
mod faults;
mod frozen;
mod history;
mod lost;
mod misplaced;
mod nested;
mod outage;
mod overtaken;
mod proxy;
mod scripts;
mod waiting;
mod watchdog;
