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
//! These rules hold after every step:
//!
//! * If a guard is certain, the server has its hold, with the count that the client expects. If it is exclusive, no other owner is certain.
//! * A guard that is no longer certain was notified. A reason is given only if it can be the reason. After `max_hold`, the server has the
//!   hold for the rest of the lease that replies have confirmed.
//! * Each call ends by its limit. An unlock returns success only if the lock was held, and reports no loss that did not happen.
//! * Waiters acquire the lock in the order of their calls. An owner that writes may read before them. An owner that reads never waits to
//!   write. No reader acquires the lock half a second after a writer has left a mark.
//! * Waiters for a fair lock acquire it in the order of the queue on the server. The server passes over no waiter that is alive.
//! * A reader that joins, and a nested call, acquire only what the server confirmed after the call. Tokens grow.
//! * No lock is free for longer than 60 ms after a release, while a waiter could acquire it. Behind a waiter that was killed it
//!   may be free for five seconds longer. A caller that does not look is passed over.
//! * A waiter passes a latch only if the latch was open since its call, and all waiters of a client need one request. No waiter sleeps while
//!   the latch is open, and none gives up at its limit while the latch has been open since before. Requests only look.
//! * For each hold that a guard showed, the client reports once that its last guard has gone, and once what became of it.
//! * A timer that was served is not due again at once. In the end nothing is left, on the server or in the clients.
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
