//! Five servers that do not know of each other, with a proxy before each of them for each client.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use fastrand::Rng;

use super::{KEPT, PATIENCE, Scene, Trouble};
use crate::{
    ARCHIVE, BUSY, LEASE, QUIET, SLOW, TOOL, clock,
    director::{CALM, CLIENTS, SETTLE, Stage},
    history::{Emptied, Seen},
    observer::{Eye, Sight},
    proxy::{Fault, Mode, Proxy, Schedule, Way, Which},
    report,
    server::Server,
    troubles::{at_random_faults, millis, stop_beyond_the_lease, stop_for_a_moment},
    worker::SEPARATOR,
};

const SERVERS: usize = 5;
const MAJORITY: usize = SERVERS / 2 + 1;
/// How much later the replies of a server come that is far away, and for how long before that counts.
const FAR: Duration = Duration::from_millis(100);
const USED_TO_IT: Duration = Duration::from_secs(1);
/// A vote that waits for them takes as long, and holds the servers that have granted it. Callers that give up sooner than that split the
/// servers among their processes for a while.
const SPLITS: Duration = FAR.saturating_mul(20);
/// From a signal to its effect.
const SIGNALLED: Duration = Duration::from_millis(10);

pub(crate) struct Independent {
    servers: Vec<Server>,
    /// Those of each client, in the order of the servers.
    proxies: Vec<Vec<Proxy>>,
}

impl Scene for Independent {
    const NAMES: &'static [&'static str] = &[BUSY[0], SLOW[0], QUIET, ARCHIVE, TOOL];
    const TROUBLES: &'static [Trouble<Independent>] = &[
        ("server killed, data kept", 3, |stage, random| a_minority(stage, random, 1, Silence::Killed)),
        ("two servers killed, data kept", 2, |stage, random| a_minority(stage, random, 2, Silence::Killed)),
        ("majority killed, data kept", 3, |stage, random| a_majority(stage, random, Silence::Killed)),
        ("server killed, data lost", 6, restart_empty),
        ("server frozen", 2, |stage, random| a_minority(stage, random, 1, Silence::Frozen)),
        ("two servers frozen", 3, |stage, random| a_minority(stage, random, 2, Silence::Frozen)),
        ("two servers far away, two frozen", 4, far_and_frozen),
        ("majority frozen", 3, |stage, random| a_majority(stage, random, Silence::Frozen)),
        ("client cut off from a minority", 4, cut_off_minority),
        ("client cut off from a majority", 4, cut_off_majority),
        ("connections of a client cut", 2, |stage, random| stage.scene.of_any(random).iter().for_each(Proxy::cut_all)),
        ("CLIENT KILL TYPE normal", 2, |stage, _| stage.ask_all(&["CLIENT", "KILL", "TYPE", "normal"])),
        ("CLIENT KILL TYPE pubsub", 2, |stage, _| stage.ask_all(&["CLIENT", "KILL", "TYPE", "pubsub"])),
        ("SCRIPT FLUSH", 1, |stage, _| stage.ask_all(&["SCRIPT", "FLUSH"])),
        ("client killed", 3, |stage, random| stage.kill(random)),
        ("client stopped", 3, stop_for_a_moment),
        ("client stopped beyond its lease", 3, stop_beyond_the_lease),
        ("slow, then silent", 4, slow_then_silent),
        ("requests hit at random", 4, at_random),
        ("replies lost", 4, replies_lost),
    ];
    const IN_A_ROW: (u32, u32) = (3, 6);
    const SLACK: Duration = SPLITS;
    const ALL_HAVE_ALL: bool = true;

    fn set() -> Independent {
        let servers: Vec<_> = (0..SERVERS).map(|_| Server::with(&KEPT)).collect();
        let address = |server: &Server| SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
        let before = || servers.iter().map(|server| Proxy::start(address(server))).collect();
        Independent { proxies: (0..CLIENTS).map(|_| before()).collect(), servers }
    }

    fn url(&self, slot: usize) -> String {
        self.proxies[slot].iter().map(Proxy::url).collect::<Vec<_>>().join(&SEPARATOR.to_string())
    }

    fn eye(&self) -> Box<dyn Eye> {
        Box::new(Eyes(self.servers.iter().map(|server| Sight::of(&server.url(), PATIENCE)).collect()))
    }

    fn masters(&self) -> Vec<&Server> {
        self.servers.iter().collect()
    }

    fn server_of(&self, _name: &str) -> &Server {
        &self.servers[0]
    }

    fn publish(&self) -> &'static str {
        "PUBLISH"
    }

    /// Some servers are farther away than the others, and locks are acquired and released all the same.
    fn calm(stage: &mut Stage<Independent>) -> Option<(u64, u64)> {
        stage.pause(SETTLE - USED_TO_IT);
        stage.scene.far([0, 1], |proxy| proxy.schedule(late()));
        stage.pause(USED_TO_IT);
        let since = clock();
        stage.pause(CALM);
        let until = clock();
        stage.scene.far([0, 1], Proxy::calm);
        Some((since, until))
    }

    fn rows(&self) -> Vec<(&'static str, u64)> {
        report::requests(self.proxies.iter().flatten())
    }
}

impl Independent {
    /// Does something to the proxies of all clients before these servers.
    fn far(&self, servers: [usize; 2], set: impl Fn(&Proxy)) {
        self.proxies.iter().for_each(|all| servers.iter().for_each(|&server| set(&all[server])));
    }

    fn of_any(&self, random: &mut Rng) -> &[Proxy] {
        &self.proxies[random.usize(..CLIENTS)]
    }
}

fn late() -> Schedule {
    Schedule { seed: 0, which: Which::Command("EVALSHA"), chances: vec![(1.0, Fault::Delay(Way::Back, FAR))] }
}

/// The others are a majority only together with those that are far away.
fn far_and_frozen(stage: &mut Stage<Independent>, random: &mut Rng) {
    let all = some(random, 4);
    let far = [all[0], all[1]];
    stage.scene.far(far, |proxy| proxy.schedule(late()));
    all[2..].iter().for_each(|&server| stage.scene.servers[server].freeze());
    stage.pause(millis(random, 1_000..=4_000));
    all[2..].iter().for_each(|&server| stage.scene.servers[server].thaw());
    stage.scene.far(far, Proxy::calm);
}

fn some(random: &mut Rng, number: usize) -> Vec<usize> {
    random.choose_multiple(0..SERVERS, number)
}

fn majority(random: &mut Rng) -> usize {
    random.usize(MAJORITY..=SERVERS)
}

/// Now and then for longer than calls ride out an outage, and than leases last.
fn while_silent(random: &mut Rng) -> Duration {
    if random.u32(..3) == 0 { millis(random, 6_000..=8_000) } else { millis(random, 300..=3_000) }
}

/// How servers stop to reply. They keep their data.
#[derive(Clone, Copy)]
enum Silence {
    Killed,
    Frozen,
}

impl Silence {
    fn begin(self, server: &mut Server) {
        match self {
            Silence::Killed => server.crash(),
            Silence::Frozen => server.freeze(),
        }
    }

    fn end(self, server: &mut Server) {
        match self {
            Silence::Killed => server.revive(),
            Silence::Frozen => server.thaw(),
        }
    }
}

fn a_minority(stage: &mut Stage<Independent>, random: &mut Rng, number: usize, silence: Silence) {
    let silent = some(random, number);
    silent.iter().for_each(|at| silence.begin(&mut stage.scene.servers[*at]));
    let time = match silence {
        Silence::Killed => 0..=2_500,
        Silence::Frozen => 100..=4_000,
    };
    stage.pause(millis(random, time));
    silent.iter().for_each(|at| silence.end(&mut stage.scene.servers[*at]));
}

fn a_majority(stage: &mut Stage<Independent>, random: &mut Rng, silence: Silence) {
    let number = majority(random);
    let silent = some(random, number);
    silent.iter().for_each(|at| silence.begin(&mut stage.scene.servers[*at]));
    stage.pause(SIGNALLED);
    stage.silent(None, while_silent(random));
    silent.iter().for_each(|at| silence.end(&mut stage.scene.servers[*at]));
}

/// What it had granted before can be granted again.
fn restart_empty(stage: &mut Stage<Independent>, random: &mut Rng) {
    let (at, since) = (random.usize(..SERVERS), clock());
    stage.scene.servers[at].crash();
    stage.emptied(Emptied { since, down: clock() });
    stage.pause(millis(random, 0..=200));
    stage.scene.servers[at].forget();
    stage.scene.servers[at].revive();
}

fn cut_off_minority(stage: &mut Stage<Independent>, random: &mut Rng) {
    let (slot, number) = (random.usize(..CLIENTS), random.usize(1..MAJORITY));
    let cut = some(random, number);
    let mode = cut_off(stage, random, slot, &cut);
    stage.pause(millis(random, 100..=3_000));
    reconnect(stage, slot, &cut, mode);
}

fn cut_off_majority(stage: &mut Stage<Independent>, random: &mut Rng) {
    let (slot, number) = (random.usize(..CLIENTS), majority(random));
    let cut = some(random, number);
    let mode = cut_off(stage, random, slot, &cut);
    stage.silent(Some(slot), while_silent(random));
    reconnect(stage, slot, &cut, mode);
}

/// How a client is cut off: silently, or so that it knows.
fn cut_off(stage: &Stage<Independent>, random: &mut Rng, slot: usize, cut: &[usize]) -> Option<Mode> {
    let mode = [None, Some(Mode::Stall), Some(Mode::Swallow)][random.usize(..3)];
    for proxy in cut.iter().map(|at| &stage.scene.proxies[slot][*at]) {
        match mode {
            Some(mode) => proxy.set(mode),
            None => {
                proxy.refuse();
                proxy.cut_all();
            }
        }
    }
    stage.pause(SIGNALLED);
    mode
}

fn reconnect(stage: &Stage<Independent>, slot: usize, cut: &[usize], mode: Option<Mode>) {
    for proxy in cut.iter().map(|at| &stage.scene.proxies[slot][*at]) {
        match mode {
            Some(_) => proxy.set(Mode::Pass),
            None => proxy.accept(),
        }
    }
}

/// Every reply of some servers is late, then none comes. A client that counts its lease from the replies is certain for too long.
fn slow_then_silent(stage: &mut Stage<Independent>, random: &mut Rng) {
    let (slot, number) = (random.usize(..CLIENTS), random.usize(1..=SERVERS));
    let slow = some(random, number);
    let late = Fault::Delay(Way::Back, millis(random, 150..=350));
    on_some(stage, random, slot, &slow, Which::Command("EVALSHA"), &[(1.0, late)]);
    stage.pause(millis(random, 600..=1_200));
    for at in &slow {
        stage.scene.proxies[slot][*at].set(Mode::Swallow);
        stage.scene.proxies[slot][*at].calm();
    }
    stage.pause(SIGNALLED);
    let time = LEASE + millis(random, 100..=600);
    if number < MAJORITY {
        stage.pause(time)
    } else {
        stage.silent(Some(slot), time)
    }
    slow.iter().for_each(|at| stage.scene.proxies[slot][*at].set(Mode::Pass));
}

fn at_random(stage: &mut Stage<Independent>, random: &mut Rng) {
    let slot = random.usize(..CLIENTS);
    let chances = at_random_faults(random);
    on_some(stage, random, slot, &[0, 1, 2, 3, 4], Which::Any, &chances);
    stage.pause(millis(random, 1_000..=3_000));
    stage.scene.proxies[slot].iter().for_each(Proxy::calm);
}

fn replies_lost(stage: &mut Stage<Independent>, random: &mut Rng) {
    let slot = random.usize(..CLIENTS);
    on_some(stage, random, slot, &[0, 1, 2, 3, 4], Which::Command("EVALSHA"), &[(0.25, Fault::Cut(Way::Back))]);
    stage.pause(millis(random, 500..=2_000));
    stage.scene.proxies[slot].iter().for_each(Proxy::calm);
}

fn on_some(
    stage: &Stage<Independent>,
    random: &mut Rng,
    slot: usize,
    some: &[usize],
    which: Which,
    chances: &[(f64, Fault)],
) {
    for at in some {
        let (seed, which, chances) = (random.u64(..), which.clone(), chances.to_vec());
        stage.scene.proxies[slot][*at].schedule(Schedule { seed, which, chances });
    }
}

/// Looks at each of the servers, one after the other.
struct Eyes(Vec<Sight>);

impl Eye for Eyes {
    fn look(&mut self, names: &[&'static str]) -> Vec<(&'static str, Seen)> {
        let since = clock();
        let all: Vec<_> = self.0.iter_mut().map(|sight| sight.look(names)).collect();
        let of = |at: usize| all.iter().map(move |looks| looks.get(at).map(|(_, seen)| seen.ids.clone())).collect();
        let at = clock();
        names
            .iter()
            .enumerate()
            .map(|(of_name, name)| (*name, Seen { since, at, voters: of(of_name), ..Seen::default() }))
            .collect()
    }
}
