//! Client processes that use locks in every way, while servers, connections and the processes themselves are cut off,
//! frozen, killed and emptied. At the end, the checker reads the logs of the clients. docs/dev/verification.md describes it.
//!
//! `scripts/chaos --deployment single|hidden|cluster|sentinel|quorum --seconds N --seed S`. The seed decides what the script does, not how
//! the processes interleave.

mod clocks;
mod director;
mod locks;
mod observer;
mod player;
mod refusals;
mod report;
mod scene;
mod scribe;
// Used in part here, in part by the other tests.
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;
mod troubles;
mod voted;
mod ways;
mod worker;

use std::{process::ExitCode, sync::atomic::Ordering, time::Duration};

use scene::{Alone, HIDDEN, Independent, Realm, Watched};
use support::{
    history::{self, Room},
    proxy, server,
};

/// The lease that the watchdogs keep; except for a few names, also the longest that a task asks for.
const LEASE: Duration = Duration::from_millis(1_500);
const LONG_LEASE: Duration = Duration::from_secs(20);
/// Names of locks: some are held for long, some are used by all tasks, one is used now and then.
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
/// Locks of the other kinds: a fenced lock, read-write locks, and fair locks with a queue on the server. Of the fair locks, all
/// tasks use the first and few use the second.
const FENCED: &str = "serial";
const SHARED: [&str; 3] = ["prices", "map", ATLAS];
/// One that is read with leases of any length, and written now and then.
const ATLAS: &str = "atlas";
const LINES: [&str; 2] = ["printer", "desk"];
/// The tag of many locks that are released at once, on one master of a cluster.
const HEAP: &str = "heap";
/// A lock with a `min_hold` and a lease of its own; and the longest `min_hold`.
const CELLAR: &str = "cellar";
const CELLAR_LEASE: Duration = Duration::from_secs(6);
const REST: Duration = Duration::from_millis(2_500);
/// Semaphores, with the permits that each has, and the most that one call asks for. All tasks use the first, few use the second.
const PERMITS: [(&str, Room); 2] = [("slots", Room { all: 5, most: 3 }), ("seats", Room { all: 2, most: 1 })];
const NAMES: [&str; 22] = [
    SLOW[0],
    SLOW[1],
    BUSY[0],
    BUSY[1],
    QUIET,
    TWINS[0],
    TWINS[1],
    TOOL,
    PARCEL,
    GATE,
    OVEN,
    AWAY,
    ARCHIVE,
    FENCED,
    SHARED[0],
    SHARED[1],
    SHARED[2],
    LINES[0],
    LINES[1],
    CELLAR,
    PERMITS[0].0,
    PERMITS[1].0,
];

/// On a cluster and with sentinels, also these: watchdogs keep them with a lease that outlasts a failover. Each master of a
/// cluster has some.
const VAULT_LEASE: Duration = Duration::from_secs(30);
const VAULTS: [&str; 24] = [
    "vault-1", "vault-2", "vault-3", "vault-4", "vault-5", "vault-6", "vault-7", "vault-8", "vault-9", "vault-10",
    "vault-11", "vault-12", "vault-13", "vault-14", "vault-15", "vault-16", "vault-17", "vault-18", "vault-19",
    "vault-20", "vault-21", "vault-22", "vault-23", "vault-24",
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.split_first() {
        Some((first, rest)) if first == "worker" => worker::run(rest).map(|()| true),
        _ => Settings::read(&args).and_then(|settings| settings.run()),
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

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: chaos [--deployment single|hidden|cluster|sentinel|quorum] [--seconds N] [--seed S]";

struct Settings {
    deployment: String,
    time: Duration,
    seed: u64,
}

impl Settings {
    fn read(args: &[String]) -> Outcome<Settings> {
        let (deployment, time) = ("single".to_owned(), Duration::from_secs(60));
        let mut settings = Settings { deployment, time, seed: fastrand::u64(..1_000_000) };
        for pair in args.chunks(2) {
            match pair {
                [name, value] if name == "--deployment" => settings.deployment.clone_from(value),
                [name, value] if name == "--seconds" => settings.time = Duration::from_secs(value.parse()?),
                [name, value] if name == "--seed" => settings.seed = value.parse()?,
                _ => return Err(USAGE.into()),
            }
        }
        Ok(settings)
    }

    fn run(&self) -> Outcome<bool> {
        match &*self.deployment {
            "single" => director::run::<Alone>(self.time, self.seed),
            "hidden" => {
                HIDDEN.store(true, Ordering::Relaxed);
                director::run::<Alone>(self.time, self.seed)
            }
            "cluster" => director::run::<Realm>(self.time, self.seed),
            "quorum" => director::run::<Independent>(self.time, self.seed),
            "sentinel" => director::run::<Watched>(self.time, self.seed),
            _ => Err(USAGE.into()),
        }
    }
}

/// Nanoseconds on the clock that the locks use, the same for all processes.
fn clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
