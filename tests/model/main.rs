//! What the scripts do, as pure rules that are compared with the scripts on a real server; and the rules of a quorum, in every order of events.
//! `tests/simulation` has the rules of the scripts as its server. docs/dev/verification.md says what this covers.

mod family;
mod lua;
mod quorum;
mod rules;
#[allow(dead_code)]
#[path = "../support/server.rs"]
mod server;
#[path = "../../src/combined/tally.rs"]
mod tally;
mod units;

/// Steps after which an exploration is stopped and its test fails: more than the largest size has.
const CAP: usize = 400_000_000;
