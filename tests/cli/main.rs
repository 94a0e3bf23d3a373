//! The command `leasehold`, through its binary and real servers.

#[path = "../support/mod.rs"]
#[allow(dead_code, unused_imports)]
mod support;

mod beside_flock;
mod command;
mod deployments;
mod ends;
mod look;
mod nested;
mod options;
mod signals;
mod terminal;
