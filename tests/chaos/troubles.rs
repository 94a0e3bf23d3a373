//! What can go wrong with one server and its proxies, what can go wrong anywhere, and how it is done.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;

use crate::{
    LEASE, NAMES, SLOW, clock, clocks,
    director::Stage,
    history::Wipe,
    locks::{channel_of, keys_beside, keys_of},
    proxy::{Fault, Mode, Schedule, Way, Which},
    refusals,
    scene::{Alone, Scene, Trouble},
};

/// By how much a client is farther away, for how long, and from when on that is looked at.
const FARTHER: Duration = Duration::from_millis(10);
const FAR_AWAY: Duration = Duration::from_millis(3_000);
const BEFORE_IT_COUNTS: Duration = Duration::from_millis(500);

/// How often each kind happened.
pub(crate) type Tally = BTreeMap<&'static str, u64>;

pub(crate) const TROUBLES: [Trouble<Alone>; 27] = [
    ("server frozen", 3, freeze),
    ("server crashed, data kept", 2, restart),
    ("server crashed, data lost", 1, restart_empty),
    ("SCRIPT FLUSH", 2, |stage, _| stage.ask_all(&["SCRIPT", "FLUSH"])),
    ("CLIENT KILL TYPE normal", 2, |stage, _| stage.ask_all(&["CLIENT", "KILL", "TYPE", "normal"])),
    ("CLIENT KILL TYPE pubsub", 3, |stage, _| stage.ask_all(&["CLIENT", "KILL", "TYPE", "pubsub"])),
    ("FLUSHALL", 1, wipe_all),
    ("DEL of a lock", 6, delete),
    ("lock forced open", 6, force_open),
    ("client killed", 3, |stage, random| stage.kill(random)),
    ("client stopped", 3, stop_for_a_moment),
    ("client stopped beyond its lease", 2, stop_beyond_the_lease),
    ("connections cut", 3, |stage, random| stage.scene.proxy(random).cut_all()),
    ("not read", 2, |stage, random| silent(stage, random, Mode::Stall)),
    ("swallowed", 2, |stage, random| silent(stage, random, Mode::Swallow)),
    ("refused", 2, refuse),
    ("client farther away", 3, farther_away),
    ("slow, then silent", 4, slow_then_silent),
    ("requests hit at random", 4, at_random),
    ("replies lost", 4, replies_lost),
    ("maxmemory", 3, refusals::no_memory),
    ("maxclients", 3, refusals::no_connections),
    ("MISCONF", 3, refusals::no_snapshot),
    ("read-only", 3, refusals::read_only),
    ("renewals refused", 3, refusals::no_renewals),
    ("clock of the server set ahead", 2, clocks::set_ahead),
    ("clock of the server set back", 2, clocks::set_back),
];

/// First one of each, in an order of the seed, then by weight.
pub(crate) struct Deck<S: Scene> {
    first: Vec<&'static Trouble<S>>,
    pub(crate) tally: Tally,
}

impl<S: Scene> Deck<S> {
    pub(crate) fn new(random: &mut Rng) -> Deck<S> {
        let mut first: Vec<_> = S::TROUBLES.iter().collect();
        random.shuffle(&mut first);
        Deck { first, tally: Tally::new() }
    }

    /// One trouble, chosen by the seed; with its name.
    pub(crate) fn trouble(&mut self, stage: &mut Stage<S>, random: &mut Rng) -> &'static str {
        let (name, _, trouble) = self.first.pop().unwrap_or_else(|| drawn(random));
        *self.tally.entry(name).or_default() += 1;
        trouble(stage, random);
        name
    }
}

fn drawn<S: Scene>(random: &mut Rng) -> &'static Trouble<S> {
    let all: u32 = S::TROUBLES.iter().map(|(_, weight, _)| weight).sum();
    let mut drawn = random.u32(..all);
    for trouble in S::TROUBLES {
        if drawn < trouble.1 {
            return trouble;
        }
        drawn -= trouble.1;
    }
    unreachable!("less than the sum of all weights")
}

fn freeze(stage: &mut Stage<Alone>, random: &mut Rng) {
    // Mostly short, as freezes are.
    let time = if random.u32(..4) == 0 { millis(random, 1_000..=5_000) } else { millis(random, 100..=1_000) };
    stage.scene.server.freeze();
    stage.pause(time);
    stage.scene.server.thaw();
}

fn restart(stage: &mut Stage<Alone>, random: &mut Rng) {
    stage.scene.server.crash();
    stage.pause(millis(random, 0..=500));
    stage.scene.server.revive();
}

fn restart_empty(stage: &mut Stage<Alone>, random: &mut Rng) {
    let since = clock();
    stage.scene.server.crash();
    stage.pause(millis(random, 0..=500));
    stage.scene.server.forget();
    stage.scene.server.revive();
    stage.wiped(Wipe { name: None, beside: false, all_from: 0, since, at: clock() });
}

pub(crate) fn wipe_all<S: Scene>(stage: &mut Stage<S>, _random: &mut Rng) {
    let since = clock();
    stage.ask_all(&["FLUSHALL", "SYNC"]);
    stage.wiped(Wipe { name: None, beside: false, all_from: 0, since, at: clock() });
}

/// The lock itself, or what stands beside it.
fn wipe<S: Scene>(stage: &mut Stage<S>, name: &str, beside: bool) {
    let since = clock();
    let keys = if beside { keys_beside(name) } else { keys_of(&stage.scene, name) };
    // All at once: what a semaphore has belongs together.
    let words: Vec<&str> = std::iter::once("DEL").chain(keys.iter().map(String::as_str)).collect();
    let _: redis::Value = stage.scene.ask(name, &words);
    stage.wiped(Wipe { name: Some(name.to_owned()), beside, all_from: 0, since, at: clock() });
}

pub(crate) fn delete<S: Scene>(stage: &mut Stage<S>, random: &mut Rng) {
    let name = NAMES[random.usize(..NAMES.len())];
    wipe(stage, name, !keys_beside(name).is_empty() && random.bool());
}

/// Deleted and published, so that another owner acquires it at once. Mostly locks that are held for long.
pub(crate) fn force_open<S: Scene>(stage: &mut Stage<S>, random: &mut Rng) {
    for name in SLOW.iter().chain([&NAMES[random.usize(..NAMES.len())]]) {
        wipe(stage, name, false);
        let channel = channel_of(&stage.scene, name);
        let _: redis::Value = stage.scene.ask(name, &[stage.scene.publish(), &channel, "0"]);
        stage.pause(millis(random, 0..=500));
    }
}

pub(crate) fn stop_for_a_moment<S: Scene>(stage: &mut Stage<S>, random: &mut Rng) {
    let time = millis(random, 100..=500);
    stage.stop(random, time);
}

pub(crate) fn stop_beyond_the_lease<S: Scene>(stage: &mut Stage<S>, random: &mut Rng) {
    let time = millis(random, 1_600..=3_000);
    stage.stop(random, time);
}

fn silent(stage: &mut Stage<Alone>, random: &mut Rng, mode: Mode) {
    let (slot, time) = (stage.scene.slot(random), millis(random, 100..=2_500));
    stage.scene.proxies[slot].set(mode);
    stage.pause(time);
    stage.scene.proxies[slot].set(Mode::Pass);
}

fn refuse(stage: &mut Stage<Alone>, random: &mut Rng) {
    let (slot, time) = (stage.scene.slot(random), millis(random, 100..=2_500));
    stage.scene.proxies[slot].refuse();
    stage.scene.proxies[slot].cut_all();
    stage.pause(time);
    stage.scene.proxies[slot].accept();
}

/// Everything takes longer for one client than for the others: it must have its turns all the same.
fn farther_away(stage: &mut Stage<Alone>, random: &mut Rng) {
    let slot = stage.scene.slot(random);
    let late = Fault::Delay(Way::Back, FARTHER);
    let schedule = Schedule { seed: random.u64(..), which: Which::Command("EVALSHA"), chances: vec![(1.0, late)] };
    stage.scene.proxies[slot].schedule(schedule);
    stage.pause(BEFORE_IT_COUNTS);
    let since = clock();
    stage.pause(FAR_AWAY);
    stage.far(slot, (since, clock()));
    stage.scene.proxies[slot].calm();
}

/// Every reply is late, then none comes. A client that counts its lease from the replies is certain for too long.
fn slow_then_silent(stage: &mut Stage<Alone>, random: &mut Rng) {
    let slot = stage.scene.slot(random);
    let late = Fault::Delay(Way::Back, millis(random, 150..=350));
    let schedule = Schedule { seed: random.u64(..), which: Which::Command("EVALSHA"), chances: vec![(1.0, late)] };
    stage.scene.proxies[slot].schedule(schedule);
    stage.pause(millis(random, 600..=1_200));
    stage.scene.proxies[slot].set(Mode::Swallow);
    stage.scene.proxies[slot].calm();
    stage.pause(LEASE + millis(random, 100..=600));
    stage.scene.proxies[slot].set(Mode::Pass);
}

/// Single requests of one client are hit for a while.
fn at_random(stage: &mut Stage<Alone>, random: &mut Rng) {
    let slot = stage.scene.slot(random);
    let chances = at_random_faults(random);
    stage.scene.proxies[slot].schedule(Schedule { seed: random.u64(..), which: Which::Any, chances });
    stage.pause(millis(random, 1_000..=3_000));
    stage.scene.proxies[slot].calm();
}

/// With the chance of each.
pub(crate) fn at_random_faults(random: &mut Rng) -> Vec<(f64, Fault)> {
    let delay = millis(random, 1..=200);
    vec![
        (0.01, Fault::Cut(Way::There)),
        (0.02, Fault::Cut(Way::Back)),
        (0.0005, Fault::Swallow(Way::There)),
        (0.0005, Fault::Swallow(Way::Back)),
        (0.01, Fault::Delay(Way::There, delay)),
        (0.01, Fault::Delay(Way::Back, delay)),
        (0.02, Fault::Trickle(Way::There, 7)),
        (0.02, Fault::Trickle(Way::Back, 3)),
    ]
}

/// One client hears of much of what was done for it only when it asks again.
fn replies_lost(stage: &mut Stage<Alone>, random: &mut Rng) {
    let slot = stage.scene.slot(random);
    let chances = vec![(0.25, Fault::Cut(Way::Back))];
    stage.scene.proxies[slot].schedule(Schedule { seed: random.u64(..), which: Which::Command("EVALSHA"), chances });
    stage.pause(millis(random, 500..=2_000));
    stage.scene.proxies[slot].calm();
}

pub(crate) fn millis(random: &mut Rng, range: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(random.u64(range))
}
