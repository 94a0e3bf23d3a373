//! Many seeds, and what they found.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{server::Kind, world::World};

const KINDS: [Kind; 5] = [Kind::Plain, Kind::Fenced, Kind::ReadWrite, Kind::Fair, Kind::Latch];

fn var(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn kinds() -> Vec<Kind> {
    let only = std::env::var("KIND").unwrap_or_default();
    match &*only {
        "plain" => vec![Kind::Plain],
        "fenced" => vec![Kind::Fenced],
        "read-write" => vec![Kind::ReadWrite],
        "fair" => vec![Kind::Fair],
        "latch" => vec![Kind::Latch],
        _ => KINDS.to_vec(),
    }
}

/// New seeds each time, unless `FROM` says where to begin.
fn first_seed() -> u64 {
    let new = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() % 1_000_000 * 1_000_000);
    var("FROM").unwrap_or_else(new)
}

#[derive(Default)]
struct Findings {
    seeds: u64,
    steps: u64,
    grants: u64,
    confirmed: u64,
    handed: u64,
    passed: u64,
    bad: Vec<u64>,
    kinds: BTreeMap<String, u64>,
}

impl Findings {
    fn add(&mut self, seed: u64, world: &World, ended: Result<(), String>) {
        self.seeds += 1;
        self.steps += world.steps;
        self.grants += world.grants;
        self.confirmed += world.confirmed;
        self.handed += world.handed;
        self.passed += world.passed;
        let Err(error) = ended else { return };
        let kind: String = error.chars().filter(|c| c.is_alphabetic() || *c == ' ').take(40).collect();
        let times = self.kinds.entry(kind).or_insert(0);
        *times += 1;
        if *times < 3 {
            println!("seed {seed}, step {}: {}", world.steps, error.chars().take(400).collect::<String>());
        }
        self.bad.push(seed);
    }

    fn print(&self, from: u64, time: Duration) {
        let rate = |n: u64| n as f64 / time.as_secs_f64();
        println!(
            "{} seeds from {from} in {:.1} s: {:.0}/s, {:.0} steps/s, {} grants, {} unlocks confirmed, {} handed over, {} passed",
            self.seeds,
            time.as_secs_f64(),
            rate(self.seeds),
            rate(self.steps),
            self.grants,
            self.confirmed,
            self.handed,
            self.passed
        );
    }
}

fn aloud(seed: u64) {
    let mut world = World::new(seed, &kinds(), true);
    let ended = world.run(var("STEPS").unwrap_or(800));
    println!("{:#?}", world.seen);
    assert_eq!(ended, Ok(()));
}

#[test]
fn seeds() {
    if let Some(seed) = var("SEED") {
        return aloud(seed);
    }
    let (from, since, kinds) = (first_seed(), Instant::now(), kinds());
    let time = var("SIMULATION_SECONDS").map(Duration::from_secs);
    let seeds = var("SEEDS").unwrap_or(if time.is_some() {
        u64::MAX
    } else if cfg!(debug_assertions) {
        100
    } else {
        3_000
    });
    let mut findings = Findings::default();
    for seed in (from..).take(usize::try_from(seeds).unwrap_or(usize::MAX)) {
        if time.is_some_and(|time| since.elapsed() > time) {
            break;
        }
        let mut world = World::new(seed, &kinds, false);
        let ended = world.run(var("STEPS").unwrap_or(800));
        findings.add(seed, &world, ended);
        if var("FIRST").is_some() && !findings.bad.is_empty() {
            break;
        }
    }
    findings.print(from, since.elapsed());
    assert!(
        findings.bad.is_empty(),
        "bad seeds: {:?} {:#?}",
        &findings.bad[..findings.bad.len().min(20)],
        findings.kinds
    );
}
