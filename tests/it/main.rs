//! The lock on real servers, each test with one of its own. One folder for each promise.

#[path = "../support/mod.rs"]
mod support;

mod connection;
mod deployments;
mod exclusion;
mod interface;
mod kinds;
mod loss;
mod release;
mod tools;
mod waiting;
