//! The lock on real servers, each test with one of its own.

#[path = "../support/mod.rs"]
mod support;

mod cancelled;
mod channels;
mod closing;
mod concurrent;
mod crowd;
mod drops;
mod dying;
mod errors;
mod faults;
mod forced;
mod forgotten;
mod fresh_eyes;
mod frozen;
mod guarantees;
mod history;
mod links;
mod listeners;
mod lost;
mod max_hold;
mod misplaced;
mod mutex;
mod nested;
mod outage;
mod overtaken;
mod protect;
mod proxy;
mod refused;
mod replicas;
mod runtime_gone;
mod scripts;
mod shared_owner;
mod slow_release;
mod starting;
mod unheard;
mod unpolled;
mod waiting;
mod watchdog;
