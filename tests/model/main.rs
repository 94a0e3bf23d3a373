//! The lock protocol as a model: every order of events, for small sizes. docs/design.md says what it covers.
//!
//! `cargo test --test model -- --nocapture` prints how many worlds there are.

mod hold;
mod lua;
mod mutations;
mod properties;
mod protocol;
mod rules;
#[allow(dead_code)]
#[path = "../support/server.rs"]
mod server;
mod step;

use std::time::Instant;

use stateright::{Checker, Model};

use protocol::Protocol;

/// Steps after which an exploration is stopped and its test fails: more than the largest size has.
const CAP: usize = 400_000_000;

/// Given-up requests may run after later ones.
const OVERTAKING: Protocol = Protocol { late: 1, overtaking: true, ..Protocol::BASE };

/// Explores every world there is and checks all properties. A model that explores too little fails too.
fn explore(name: &str, protocol: Protocol, floor: usize) {
    let started = Instant::now();
    let checked = protocol.checker().threads(2).target_state_count(CAP).spawn_bfs().join();
    let (worlds, steps) = (checked.unique_state_count(), checked.state_count());
    println!("{name}: {worlds} worlds, {steps} steps, {:.1?}", started.elapsed());
    checked.assert_properties();
    assert!(steps < CAP, "{name}: not all was explored");
    assert!(worlds >= floor, "{name}: only {worlds} worlds");
}

#[test]
fn two_processes_that_come_twice() {
    explore("two processes, twice", Protocol { holds: 2, late: 1, ..Protocol::BASE }, 1);
}

#[test]
fn two_levels() {
    explore("two levels", Protocol { levels: 2, late: 1, ..Protocol::BASE }, 1);
}

#[test]
fn three_processes() {
    explore("three processes", Protocol { tasks: &[0, 1, 2], vanishing: true, ..Protocol::BASE }, 1);
}

#[test]
fn hand_over() {
    let protocol = Protocol { tasks: &[0, 0, 1], told: true, vanishing: true, ..Protocol::BASE };
    explore("hand-over, and another process", protocol, 1);
    explore("hand-over, two levels", Protocol { tasks: &[0, 0], levels: 2, ..Protocol::BASE }, 1);
}

#[test]
fn overtaking() {
    let two = Protocol { late: 2, vanishing: true, ..OVERTAKING };
    explore("overtaking, two processes", two, 1);
    explore("overtaking, two levels, twice", Protocol { tasks: &[0], holds: 2, levels: 2, ..OVERTAKING }, 1);
    explore("overtaking, hand-over", Protocol { tasks: &[0, 0], ..OVERTAKING }, 1);
}

#[test]
fn force() {
    let forced = Protocol { late: 1, told: true, force: true, ..Protocol::BASE };
    explore("force, two processes", forced, 1);
    explore("force, hand-over", Protocol { tasks: &[0, 0], ..forced }, 1);
}

/// Who claims a level, or takes what was handed over, has looked a step before.
#[test]
fn looking() {
    let looking = Protocol { levels: 2, looks: true, ..Protocol::BASE };
    explore("looking, one task, twice", Protocol { tasks: &[0], holds: 2, late: 1, ..looking }, 1);
    explore("looking, two processes", looking, 1);
    explore("looking, hand-over", Protocol { tasks: &[0, 0], levels: 1, ..looking }, 1);
}

#[test]
fn caps() {
    explore("caps", Protocol { levels: 2, caps: true, ..Protocol::BASE }, 1);
}

#[test]
#[ignore = "minutes: run it in release mode"]
fn larger() {
    let base = Protocol::BASE;
    explore("longer lease", Protocol { levels: 2, lease: 3, ..base }, 1);
    explore("hand-over, late requests", Protocol { tasks: &[0, 0, 1], told: true, late: 1, ..base }, 1);
    explore("overtaking, twice", Protocol { holds: 2, ..OVERTAKING }, 1);
    explore("overtaking, two levels", Protocol { levels: 2, ..OVERTAKING }, 1);
    explore("overtaking, hand-over, two levels", Protocol { tasks: &[0, 0], levels: 2, ..OVERTAKING }, 1);
    explore("two levels, twice", Protocol { holds: 2, levels: 2, ..base }, 1);
}
