//! A master with two replicas, watched by three sentinels.

use std::time::Duration;

use fastrand::Rng;
use redis::RedisResult;

use super::{BUSY_MACHINE, KEPT, NAMES, PATIENCE, Patience, QUIET_TIME, Scene, Trouble};
use crate::{
    clock,
    director::{CALM, SETTLE, Stage},
    history::{Failover, Seen},
    observer::{Eye, Sight},
    server::Server,
    support::deployment::sentinels::{Passwords, Sentinels},
    troubles::{delete, force_open, millis, stop_beyond_the_lease, stop_for_a_moment, wipe_all},
};

pub(crate) struct Watched {
    all: Sentinels,
    patience: Patience,
    /// Which is the master, and when that was looked at.
    known: (usize, u64),
    /// Failovers that the script did not start, as on a machine that is too busy.
    unmeant: u64,
}

impl Scene for Watched {
    const NAMES: &'static [&'static str] = &NAMES;
    const TROUBLES: &'static [Trouble<Watched>] = &[
        ("master killed", 3, kill_master),
        ("master killed, its last writes not replicated", 5, kill_unheard),
        ("master restarted at once", 2, restart_master),
        ("master frozen until another takes over", 3, freeze_master),
        ("master frozen for a moment", 2, freeze_for_a_moment),
        ("SENTINEL FAILOVER", 4, fail_over),
        ("sentinel killed", 3, kill_sentinel),
        ("master killed while a sentinel is down", 2, kill_both),
        ("sentinel killed, a sentinel of another master at its address", 3, replace_sentinel),
        ("replica killed", 2, kill_replica),
        ("connections to all servers killed", 3, |stage, _| kill_connections(stage, "normal")),
        ("subscribers' connections to all servers killed", 3, |stage, _| kill_connections(stage, "pubsub")),
        ("SCRIPT FLUSH", 2, |stage, _| stage.ask_all(&["SCRIPT", "FLUSH"])),
        ("FLUSHALL", 1, wipe_all),
        ("DEL of a lock", 3, delete),
        ("lock forced open", 3, force_open),
        ("client killed", 2, |stage, random| stage.kill(random)),
        ("client stopped", 2, stop_for_a_moment),
        ("client stopped beyond its lease", 2, stop_beyond_the_lease),
    ];
    const IN_A_ROW: (u32, u32) = (3, 6);
    const SLACK: Duration = BUSY_MACHINE;

    fn set() -> Watched {
        let patience = Patience::new();
        let all = patience.wait(Sentinels::with_args(Passwords::default(), &KEPT));
        let known = (all.master_at(), clock());
        Watched { all, patience, known, unmeant: 0 }
    }

    fn url(&self, _slot: usize) -> String {
        self.all.url()
    }

    fn eye(&self) -> Box<dyn Eye> {
        let sight = |server: &Server| Sight::of(&server.url(), PATIENCE);
        let (sentinels, servers) = (self.all.sentinels().iter(), self.all.servers().iter());
        let servers = servers.map(|server| (server.port(), sight(server))).collect();
        Box::new(Asker { sentinels: sentinels.map(sight).collect(), servers, master: None })
    }

    fn masters(&self) -> Vec<&Server> {
        vec![self.all.master()]
    }

    fn server_of(&self, _name: &str) -> &Server {
        self.all.master()
    }

    fn publish(&self) -> &'static str {
        "PUBLISH"
    }

    /// A machine that is too busy can make masters change: then it was not calm.
    fn calm(stage: &mut Stage<Watched>) -> Option<(u64, u64)> {
        ready(stage);
        stage.pause(SETTLE);
        ready(stage);
        let (since, before) = (clock(), stage.scene.unmeant);
        stage.pause(CALM);
        let until = clock();
        ready(stage);
        (stage.scene.unmeant == before).then_some((since, until))
    }

    fn rows(&self) -> Vec<(&'static str, u64)> {
        vec![("failovers that the script did not start", self.unmeant)]
    }
}

fn failover(since: u64) -> Failover {
    Failover { names: NAMES.iter().map(|name| (*name).to_owned()).collect(), since, until: clock() }
}

/// Waits until all run and agree, looks whether the master is the one that we know, and says which it is.
fn ready(stage: &mut Stage<Watched>) -> usize {
    let scene = &mut stage.scene;
    scene.patience.wait(scene.all.settled());
    let (master, since) = (scene.all.master_at(), scene.known.1);
    if master != scene.known.0 {
        scene.unmeant += 1;
        taken_over(stage, since);
    }
    stage.scene.known = (master, clock());
    master
}

/// Notes that another master has taken over since then, and gives the clients time to notice.
fn taken_over(stage: &mut Stage<Watched>, since: u64) {
    stage.failed_over(failover(since));
    stage.pause(QUIET_TIME);
}

fn well_again(stage: &mut Stage<Watched>) {
    let scene = &mut stage.scene;
    scene.patience.wait(scene.all.settled());
    scene.known = (scene.all.master_at(), clock());
}

fn kill_master(stage: &mut Stage<Watched>, random: &mut Rng) {
    let master = ready(stage);
    let since = clock();
    stage.scene.all.server_mut(master).crash();
    wait_for_heir(stage, random, master, since);
}

/// The replicas miss its last writes: they are frozen while the connections between them are cut.
fn kill_unheard(stage: &mut Stage<Watched>, random: &mut Rng) {
    let master = ready(stage);
    let since = clock();
    let replicas: Vec<_> = (0..stage.scene.all.servers().len()).filter(|at| *at != master).collect();
    replicas.iter().for_each(|at| stage.scene.all.servers()[*at].freeze());
    let _: redis::Value = stage.scene.all.servers()[master].ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    stage.pause(millis(random, 300..=800));
    stage.scene.all.server_mut(master).crash();
    replicas.iter().for_each(|at| stage.scene.all.servers()[*at].thaw());
    wait_for_heir(stage, random, master, since);
}

/// It comes back when another is master.
fn wait_for_heir(stage: &mut Stage<Watched>, random: &mut Rng, master: usize, since: u64) {
    stage.scene.patience.wait(stage.scene.all.heir_of(master));
    taken_over(stage, since);
    stage.pause(millis(random, 0..=500));
    stage.scene.all.server_mut(master).revive();
    well_again(stage);
}

/// Before a replica takes over. The master has kept its data.
fn restart_master(stage: &mut Stage<Watched>, _random: &mut Rng) {
    let master = ready(stage);
    stage.scene.all.server_mut(master).restart();
    ready(stage);
}

/// When the old master continues, it acts as a master until a sentinel corrects it.
fn freeze_master(stage: &mut Stage<Watched>, random: &mut Rng) {
    let master = ready(stage);
    let since = clock();
    stage.scene.all.servers()[master].freeze();
    stage.scene.patience.wait(stage.scene.all.heir_of(master));
    stage.pause(millis(random, 0..=1_500));
    stage.scene.all.servers()[master].thaw();
    well_again(stage);
    taken_over(stage, since);
}

fn freeze_for_a_moment(stage: &mut Stage<Watched>, random: &mut Rng) {
    let master = ready(stage);
    stage.scene.all.servers()[master].freeze();
    stage.pause(millis(random, 50..=600));
    stage.scene.all.servers()[master].thaw();
}

/// The sentinels do not ask the master first, so it accepts writes until they correct it.
fn fail_over(stage: &mut Stage<Watched>, _random: &mut Rng) {
    ready(stage);
    let since = clock();
    stage.scene.patience.wait(stage.scene.all.fail_over());
    well_again(stage);
    taken_over(stage, since);
}

fn kill_sentinel(stage: &mut Stage<Watched>, random: &mut Rng) {
    ready(stage);
    let sentinel = crash_a_sentinel(stage, random);
    stage.pause(millis(random, 500..=2_500));
    stage.scene.all.revive_sentinel(sentinel);
}

/// As where addresses are used again: a sentinel of another master answers at the address of a dead sentinel.
fn replace_sentinel(stage: &mut Stage<Watched>, random: &mut Rng) {
    ready(stage);
    let sentinel = crash_a_sentinel(stage, random);
    let master = Server::start();
    let stranger = Sentinels::stranger_at(stage.scene.all.sentinels()[sentinel].port(), &master);
    // A client that reconnects asks the sentinels for the master.
    kill_connections(stage, "normal");
    stage.pause(millis(random, 1_000..=2_500));
    drop((stranger, master));
    stage.scene.all.revive_sentinel(sentinel);
}

fn kill_both(stage: &mut Stage<Watched>, random: &mut Rng) {
    let master = ready(stage);
    let sentinel = crash_a_sentinel(stage, random);
    let since = clock();
    stage.scene.all.server_mut(master).crash();
    stage.scene.patience.wait(stage.scene.all.heir_of(master));
    taken_over(stage, since);
    stage.scene.all.server_mut(master).revive();
    stage.scene.all.revive_sentinel(sentinel);
    well_again(stage);
}

fn crash_a_sentinel(stage: &mut Stage<Watched>, random: &mut Rng) -> usize {
    let sentinel = random.usize(..stage.scene.all.sentinels().len());
    stage.scene.all.sentinel_mut(sentinel).crash();
    sentinel
}

fn kill_replica(stage: &mut Stage<Watched>, random: &mut Rng) {
    let master = ready(stage);
    let servers = stage.scene.all.servers().len();
    let replica = (master + random.usize(1..servers)) % servers;
    stage.scene.all.server_mut(replica).crash();
    stage.pause(millis(random, 0..=2_000));
    stage.scene.all.server_mut(replica).revive();
}

fn kill_connections(stage: &mut Stage<Watched>, of: &str) {
    for server in stage.scene.all.servers() {
        let _: redis::Value = server.ask(&["CLIENT", "KILL", "TYPE", of]);
    }
}

/// Looks at the master that the sentinels name, as long as it calls itself so.
struct Asker {
    sentinels: Vec<Sight>,
    servers: Vec<(u16, Sight)>,
    /// Its place.
    master: Option<usize>,
}

impl Eye for Asker {
    fn look(&mut self, names: &[&'static str]) -> Vec<(&'static str, Seen)> {
        let Some(master) = self.master.or_else(|| self.ask()) else { return Vec::new() };
        let sight = &mut self.servers[master].1;
        let seen = if sight.ask(is_master).unwrap_or(false) { sight.look(names) } else { Vec::new() };
        self.master = Some(master).filter(|_| !seen.is_empty());
        seen
    }
}

impl Asker {
    /// The master that the first sentinel that replies names.
    fn ask(&mut self) -> Option<usize> {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg("mymaster");
        let named = |sight: &mut Sight| sight.ask(|raw| ask.query::<(String, u16)>(raw)).ok();
        let (_, port) = self.sentinels.iter_mut().find_map(named)?;
        self.servers.iter().position(|(known, _)| *known == port)
    }
}

fn is_master(raw: &mut redis::Connection) -> RedisResult<bool> {
    let role: redis::Value = redis::cmd("ROLE").query(raw)?;
    let redis::Value::Array(words) = role else { return Ok(false) };
    Ok(matches!(words.first(), Some(redis::Value::BulkString(word)) if word == b"master"))
}
