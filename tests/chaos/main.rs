//! Client processes on their worst days: locks taken in every way, while the server, the network and the clients
//! themselves are cut off, frozen, killed and emptied. In the end the checker reads what the clients wrote down.
//!
//! `scripts/chaos --seconds N --seed S`. The seed decides what is done, not how the processes interleave.

mod director;
#[path = "../support/history/mod.rs"]
mod history;
mod observer;
mod player;
#[allow(dead_code)]
#[path = "../support/proxy.rs"]
mod proxy;
mod refusals;
mod report;
mod scribe;
#[allow(dead_code)]
#[path = "../support/server.rs"]
mod server;
mod troubles;
mod ways;
mod worker;

use std::{process::ExitCode, time::Duration};

/// The lease that the watchdogs keep; also the longest that anybody asks for, but for one name.
const LEASE: Duration = Duration::from_millis(1_500);
const LONG_LEASE: Duration = Duration::from_secs(20);
/// Names of locks: some are held for long, some are wanted by everybody, one is wanted now and then.
const SLOW: &[&str] = &["ledger", "report"];
const BUSY: &[&str] = &["invoice", "stock"];
const QUIET: &str = "mail";
/// Two that share a channel.
const TWINS: [&str; 2] = ["route", "{route}"];
/// Each for one way to use it: by owners with several tasks, by futures that are not polled, by crowds, with
/// `max_hold`, by clients whose runtime ends, with a long lease.
const TOOL: &str = "tool";
const PARCEL: &str = "parcel";
const GATE: &str = "gate";
const OVEN: &str = "oven";
const AWAY: &str = "away";
const ARCHIVE: &str = "archive";
const NAMES: [&str; 13] =
    [SLOW[0], SLOW[1], BUSY[0], BUSY[1], QUIET, TWINS[0], TWINS[1], TOOL, PARCEL, GATE, OVEN, AWAY, ARCHIVE];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.split_first() {
        Some((first, rest)) if first == "worker" => worker::run(rest).map(|()| true),
        _ => settings(&args).and_then(|(seconds, seed)| director::run(Duration::from_secs(seconds), seed)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::from(2)
        }
    }
}

/// `--seconds N --seed S`.
fn settings(args: &[String]) -> Result<(u64, u64), Box<dyn std::error::Error>> {
    let (mut seconds, mut seed) = (60, fastrand::u64(..1_000_000));
    for pair in args.chunks(2) {
        match pair {
            [name, value] if name == "--seconds" => seconds = value.parse()?,
            [name, value] if name == "--seed" => seed = value.parse()?,
            _ => return Err("usage: chaos [--seconds N] [--seed S]".into()),
        }
    }
    Ok((seconds, seed))
}

/// Nanoseconds on the clock that the locks use, the same for all processes.
fn clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
