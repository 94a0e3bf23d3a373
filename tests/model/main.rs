//! The lock protocol as a model: every order of events, for small sizes. docs/design.md says what it covers.
//!
//! `cargo test --test model -- --nocapture` prints how many worlds there are.

mod family;
mod hold;
mod lua;
mod mutations;
mod properties;
mod protocol;
mod quorum;
mod rules;
#[allow(dead_code)]
#[path = "../support/server.rs"]
mod server;
mod step;
#[path = "../../src/combined/tally.rs"]
mod tally;
mod units;

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
    explore("two processes, twice", Protocol { holds: 2, late: 1, ..Protocol::BASE }, 120_000);
}

#[test]
fn two_levels() {
    explore("two levels", Protocol { levels: 2, late: 1, ..Protocol::BASE }, 260_000);
}

#[test]
fn three_processes() {
    explore("three processes", Protocol { tasks: &[0, 1, 2], vanishing: true, ..Protocol::BASE }, 75_000);
}

#[test]
fn hand_over() {
    let protocol = Protocol { tasks: &[0, 0, 1], told: true, vanishing: true, ..Protocol::BASE };
    explore("hand-over, and another process", protocol, 390_000);
    explore("hand-over, two levels", Protocol { tasks: &[0, 0], levels: 2, ..Protocol::BASE }, 90_000);
}

#[test]
fn overtaking() {
    let two = Protocol { late: 2, vanishing: true, ..OVERTAKING };
    explore("overtaking, two processes", two, 75_000);
    explore("overtaking, two levels, twice", Protocol { tasks: &[0], holds: 2, levels: 2, ..OVERTAKING }, 110_000);
    explore("overtaking, hand-over", Protocol { tasks: &[0, 0], ..OVERTAKING }, 75_000);
}

#[test]
fn force() {
    let forced = Protocol { late: 1, told: true, force: true, ..Protocol::BASE };
    explore("force, two processes", forced, 80_000);
    explore("force, hand-over", Protocol { tasks: &[0, 0], ..forced }, 160_000);
}

/// A lock passes on in memory, and those who gave it back are told later whether it was theirs.
#[test]
fn passing_on() {
    let passing = Protocol { tasks: &[0, 0], passes: 2, ..Protocol::BASE };
    explore("passing on", Protocol { late: 1, ..passing }, 50_000);
    explore("passing on, by force", Protocol { force: true, ..passing }, 170_000);
    explore("passing on, vanishing", Protocol { vanishing: true, ..passing }, 27_000);
    explore("passing on, two levels, caps", Protocol { levels: 2, caps: true, ..passing }, 200_000);
    explore("passing on, overtaking", Protocol { tasks: &[0, 0], passes: 2, ..OVERTAKING }, 150_000);
}

/// Who claims a level, or takes what was handed over, has looked a step before. Guards go at any moment in between.
#[test]
fn looking() {
    let looking = Protocol { levels: 2, looks: true, ..Protocol::BASE };
    explore("looking, one task, twice", Protocol { tasks: &[0], holds: 2, late: 1, ..looking }, 17_000);
    explore("looking, two processes", looking, 80_000);
    explore("looking, hand-over", Protocol { tasks: &[0, 0], ..looking }, 100_000);
}

#[test]
fn caps() {
    explore("caps", Protocol { levels: 2, caps: true, ..Protocol::BASE }, 100_000);
}

#[test]
#[ignore = "minutes: run it in release mode"]
fn larger() {
    let base = Protocol::BASE;
    explore("longer lease", Protocol { levels: 2, lease: 3, ..base }, 160_000);
    explore("hand-over, late requests", Protocol { tasks: &[0, 0, 1], told: true, late: 1, ..base }, 950_000);
    explore("overtaking, twice", Protocol { holds: 2, ..OVERTAKING }, 900_000);
    explore("overtaking, two levels", Protocol { levels: 2, ..OVERTAKING }, 1_800_000);
    explore("overtaking, hand-over, two levels", Protocol { tasks: &[0, 0], levels: 2, ..OVERTAKING }, 2_000_000);
    explore("looking, late requests", Protocol { levels: 2, looks: true, late: 1, ..base }, 300_000);
    let mates = Protocol { tasks: &[0, 0], late: 1, ..base };
    explore("hand-over, two levels, late requests", Protocol { levels: 2, looks: true, caps: true, ..mates }, 500_000);
    explore("hand-over, late requests, vanishing", Protocol { levels: 2, vanishing: true, ..mates }, 700_000);
    explore("hand-over, twice, looking", Protocol { tasks: &[0, 0], holds: 2, looks: true, ..base }, 3_500_000);
    let passing = Protocol { tasks: &[0, 0], passes: 2, ..base };
    explore("passing on, and another process", Protocol { tasks: &[0, 0, 1], told: true, ..passing }, 2_400_000);
    explore("force, overtaking", Protocol { tasks: &[0, 0], force: true, ..OVERTAKING }, 800_000);
    explore("two levels, twice", Protocol { holds: 2, levels: 2, ..base }, 12_500_000);
}
