//! The state machine of a lock (`src/lock`), simulated and explored. The server is the set of rules that `tests/model` compares with the
//! scripts on a real server. `scripts/simulation` builds this alone, in release mode.
//!
//! * `seeds` runs clients, a network and a server from a seed: clocks of different speed, lost and late requests, closed connections, a
//!   server that restarts or loses its data, callers that are cancelled or not polled. It checks the rules below after every step. Settings:
//!   `SEEDS=n` or `SIMULATION_SECONDS=n` for the length, `FROM=s` for the first seed (else new ones), `SEED=s` prints one seed step by step,
//!   `STEPS=n` (800), `KIND=plain`, `fenced`, `read-write`, `fair` or `latch`, `FIRST=1` stops at the first finding.
//! * `crowd` lets thousands of waiters for a fair lock leave at once, and counts requests.
//! * `latch` checks who passes at a latch, and what is sent. `permits` runs clients of a semaphore, with rules of their own.
//! * `exclusive_orders`, `read_write_orders`, `fair_orders`, `latch_orders` and `permit_orders` run every order of events for small sizes, to
//!   the end. `larger_orders` needs minutes.
//!   Settings: `ONLY=text` for sizes with this text in their names, `MOST=n` for the number of states that a size may have, `ENOUGH=n` to
//!   stop each size after so many, `FIRST=1`.
//!
//! `docs/dev/machine.md` has the rules that are checked after every step.
//!
//! `scripts/simulation-mutants` adds the defects in `mutants/` one at a time and prints what finds them.

mod crowd;
mod explore;
mod few;
mod latch;
// Ids are copied here; in tests/model they are text.
#[allow(dead_code, clippy::clone_on_copy, clippy::redundant_closure)]
#[path = "../model/family/rules/mod.rs"]
mod family;
#[allow(dead_code)]
#[path = "../../src/lock/mod.rs"]
mod lock;
mod permit_orders;
mod permits;
mod repairs;
#[allow(dead_code)]
#[path = "../model/rules.rs"]
mod rules;
mod seeds;
mod server;
mod units;
mod world;
