//! The lock protocol as a model: for now what the scripts do, held against the scripts.

mod lua;
mod rules;
#[allow(dead_code)]
#[path = "../support/server.rs"]
mod server;
