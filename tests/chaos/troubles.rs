//! What can go wrong, and how it is done.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;

use crate::{
    LEASE, NAMES, SLOW, clock,
    director::Stage,
    history::Wipe,
    proxy::{Fault, Mode, Schedule, Way, Which},
    refusals,
};

/// How often each kind happened.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

type Trouble = fn(&mut Stage, &mut Rng);

/// Each with its name and how often it is chosen.
const TROUBLES: [(&str, u32, Trouble); 23] = [
    ("server frozen", 3, freeze),
    ("server crashed, data kept", 2, restart),
    ("server crashed, data lost", 1, restart_empty),
    ("SCRIPT FLUSH", 2, |stage, _| stage.ask(&["SCRIPT", "FLUSH"])),
    ("CLIENT KILL TYPE normal", 2, |stage, _| stage.ask(&["CLIENT", "KILL", "TYPE", "normal"])),
    ("CLIENT KILL TYPE pubsub", 3, |stage, _| stage.ask(&["CLIENT", "KILL", "TYPE", "pubsub"])),
    ("FLUSHALL", 1, |stage, _| wipe(stage, None)),
    ("DEL of a lock", 6, |stage, random| wipe(stage, Some(NAMES[random.usize(..NAMES.len())]))),
    ("lock forced open", 6, force_open),
    ("client killed", 3, |stage, random| stage.kill(random)),
    ("client stopped", 3, |stage, random| stop(stage, random, 100..=500)),
    ("client stopped beyond its lease", 2, |stage, random| stop(stage, random, 1_600..=3_000)),
    ("connections cut", 3, |stage, random| stage.proxy(random).cut_all()),
    ("not read", 2, |stage, random| silent(stage, random, Mode::Stall)),
    ("swallowed", 2, |stage, random| silent(stage, random, Mode::Swallow)),
    ("refused", 2, refuse),
    ("slow, then silent", 4, slow_then_silent),
    ("requests hit at random", 4, at_random),
    ("replies lost", 4, replies_lost),
    ("maxmemory", 3, refusals::no_memory),
    ("maxclients", 3, refusals::no_connections),
    ("MISCONF", 3, refusals::no_snapshot),
    ("read-only", 3, refusals::read_only),
];

/// First one of each, in an order of the seed, then by weight.
pub(crate) struct Deck {
    first: Vec<usize>,
    pub(crate) tally: Tally,
}

impl Deck {
    pub(crate) fn new(random: &mut Rng) -> Deck {
        let mut first: Vec<_> = (0..TROUBLES.len()).collect();
        random.shuffle(&mut first);
        Deck { first, tally: Tally::new() }
    }

    /// One trouble, chosen by the seed; with its name.
    pub(crate) fn trouble(&mut self, stage: &mut Stage, random: &mut Rng) -> &'static str {
        let at = self.first.pop().unwrap_or_else(|| drawn(random));
        let (name, _, trouble) = TROUBLES[at];
        *self.tally.entry(name).or_default() += 1;
        trouble(stage, random);
        name
    }
}

fn drawn(random: &mut Rng) -> usize {
    let all: u32 = TROUBLES.iter().map(|(_, weight, _)| weight).sum();
    let mut drawn = random.u32(..all);
    for (at, (_, weight, _)) in TROUBLES.iter().enumerate() {
        if drawn < *weight {
            return at;
        }
        drawn -= weight;
    }
    unreachable!("less than the sum of all weights")
}

fn freeze(stage: &mut Stage, random: &mut Rng) {
    // Mostly short, as freezes are.
    let time = if random.u32(..4) == 0 { millis(random, 1_000..=5_000) } else { millis(random, 100..=1_000) };
    stage.server.freeze();
    stage.pause(time);
    stage.server.thaw();
}

fn restart(stage: &mut Stage, random: &mut Rng) {
    stage.server.crash();
    stage.pause(millis(random, 0..=500));
    stage.server.revive();
}

fn restart_empty(stage: &mut Stage, random: &mut Rng) {
    let since = clock();
    stage.server.crash();
    stage.pause(millis(random, 0..=500));
    stage.server.forget();
    stage.server.revive();
    stage.wiped(Wipe { name: None, since, at: clock() });
}

fn wipe(stage: &mut Stage, name: Option<&str>) {
    let since = clock();
    match name {
        Some(name) => stage.ask(&["DEL", name]),
        None => stage.ask(&["FLUSHALL", "SYNC"]),
    }
    stage.wiped(Wipe { name: name.map(str::to_owned), since, at: clock() });
}

/// Deleted and announced, so that somebody else has it at once. Those that are held for long are hit most.
fn force_open(stage: &mut Stage, random: &mut Rng) {
    for name in SLOW.iter().chain([&NAMES[random.usize(..NAMES.len())]]) {
        wipe(stage, Some(name));
        stage.ask(&["PUBLISH", &format!("redisson_lock__channel:{{{name}}}"), "0"]);
        stage.pause(millis(random, 0..=500));
    }
}

fn stop(stage: &mut Stage, random: &mut Rng, range: std::ops::RangeInclusive<u64>) {
    let time = millis(random, range);
    stage.stop(random, time);
}

fn silent(stage: &mut Stage, random: &mut Rng, mode: Mode) {
    let (slot, time) = (stage.slot(random), millis(random, 100..=2_500));
    stage.proxies[slot].set(mode);
    stage.pause(time);
    stage.proxies[slot].set(Mode::Pass);
}

fn refuse(stage: &mut Stage, random: &mut Rng) {
    let (slot, time) = (stage.slot(random), millis(random, 100..=2_500));
    stage.proxies[slot].refuse();
    stage.proxies[slot].cut_all();
    stage.pause(time);
    stage.proxies[slot].accept();
}

/// Every answer is late, then none comes: who counts his lease from the answers believes in it for too long.
fn slow_then_silent(stage: &mut Stage, random: &mut Rng) {
    let slot = stage.slot(random);
    let late = Fault::Delay(Way::Back, millis(random, 150..=350));
    let schedule = Schedule { seed: random.u64(..), which: Which::Command("EVALSHA"), chances: vec![(1.0, late)] };
    stage.proxies[slot].schedule(schedule);
    stage.pause(millis(random, 600..=1_200));
    stage.proxies[slot].set(Mode::Swallow);
    stage.proxies[slot].calm();
    stage.pause(LEASE + millis(random, 100..=600));
    stage.proxies[slot].set(Mode::Pass);
}

/// Single requests of one client are hit for a while.
fn at_random(stage: &mut Stage, random: &mut Rng) {
    let slot = stage.slot(random);
    let delay = millis(random, 1..=200);
    let chances = vec![
        (0.01, Fault::Cut(Way::There)),
        (0.02, Fault::Cut(Way::Back)),
        (0.0005, Fault::Swallow(Way::There)),
        (0.0005, Fault::Swallow(Way::Back)),
        (0.01, Fault::Delay(Way::There, delay)),
        (0.01, Fault::Delay(Way::Back, delay)),
        (0.02, Fault::Trickle(Way::There, 7)),
        (0.02, Fault::Trickle(Way::Back, 3)),
    ];
    stage.proxies[slot].schedule(Schedule { seed: random.u64(..), which: Which::Any, chances });
    stage.pause(millis(random, 1_000..=3_000));
    stage.proxies[slot].calm();
}

/// One client hears of much of what was done for it only when it asks again.
fn replies_lost(stage: &mut Stage, random: &mut Rng) {
    let slot = stage.slot(random);
    let chances = vec![(0.25, Fault::Cut(Way::Back))];
    stage.proxies[slot].schedule(Schedule { seed: random.u64(..), which: Which::Command("EVALSHA"), chances });
    stage.pause(millis(random, 500..=2_000));
    stage.proxies[slot].calm();
}

pub(crate) fn millis(random: &mut Rng, range: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(random.u64(range))
}
