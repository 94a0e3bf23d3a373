//! A cluster of three masters with a replica each.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use redis::{Cmd, RedisResult};

use super::{BUSY_MACHINE, KEPT, NAMES, PATIENCE, Patience, QUIET_TIME, Scene, Trouble};
use crate::{
    HEAP, TWINS, clock,
    director::{CALM, SETTLE, Stage},
    history::{Failover, Seen},
    locks::{line_of, look_at, seen, tokens_of},
    observer::{Eye, Sight, command},
    server::{Server, version},
    support::deployment::cluster::{Cluster, Migration},
    troubles::{delete, force_open, millis, stop_beyond_the_lease, stop_for_a_moment, wipe_all},
};

/// How often the observer follows a lock that has moved.
const REDIRECTIONS: usize = 4;

pub(crate) struct Realm {
    cluster: Cluster,
    patience: Patience,
    /// The masters, and when this was read.
    known: (Vec<usize>, u64),
    /// Failovers that the script did not start, as on a machine that is too busy.
    unmeant: u64,
    /// Slots that were given to another master.
    moved: u64,
    /// The port at which a server of another cluster answers, or none.
    stranger: Arc<AtomicU16>,
}

impl Scene for Realm {
    const NAMES: &'static [&'static str] = &NAMES;
    const TROUBLES: &'static [Trouble<Realm>] = &[
        ("master killed", 3, kill_master),
        ("master killed, its last writes not replicated", 5, kill_unheard),
        ("master restarted at once", 2, restart_master),
        ("master frozen until another takes over", 3, freeze_master),
        ("master frozen for a moment", 2, freeze_for_a_moment),
        ("master of thousands of releases frozen", 3, freeze_the_heap),
        ("master killed, another cluster at its address", 3, kill_and_replace),
        ("ordered failover", 4, fail_over),
        ("slot migrated", 8, migrate),
        ("replica killed", 2, kill_replica),
        ("connections to all nodes killed", 3, |stage, _| kill_connections(stage, "normal")),
        ("subscribers' connections to all nodes killed", 3, |stage, _| kill_connections(stage, "pubsub")),
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

    fn set() -> Realm {
        let patience = Patience::new();
        let cluster = patience.wait(Cluster::with(&KEPT));
        let known = (cluster.masters(), clock());
        let realm = Realm { cluster, patience, known, unmeant: 0, moved: 0, stranger: Arc::default() };
        let has_some = |master: &usize| NAMES.iter().any(|name| realm.master_of(name) == *master);
        assert!(realm.cluster.masters().iter().all(has_some), "each master has some of the locks");
        realm
    }

    fn url(&self, _slot: usize) -> String {
        self.cluster.url()
    }

    fn eye(&self) -> Box<dyn Eye> {
        let ports: Vec<_> = self.cluster.nodes().iter().map(Server::port).collect();
        let sights =
            ports.iter().map(|port| (*port, Sight::of(&format!("redis://127.0.0.1:{port}"), PATIENCE))).collect();
        Box::new(Follower { ports, sights, places: HashMap::new(), stranger: Arc::clone(&self.stranger) })
    }

    fn masters(&self) -> Vec<&Server> {
        self.cluster.masters().into_iter().map(|at| &self.cluster.nodes()[at]).collect()
    }

    fn server_of(&self, name: &str) -> &Server {
        self.cluster.master_of(name)
    }

    /// As the clients do it.
    fn publish(&self) -> &'static str {
        if version() >= (7, 0) { "SPUBLISH" } else { "PUBLISH" }
    }

    /// A machine that is too busy can make masters change: then it was not calm.
    fn calm(stage: &mut Stage<Realm>) -> Option<(u64, u64)> {
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
        vec![("failovers that the script did not start", self.unmeant), ("slots moved to another master", self.moved)]
    }
}

impl Realm {
    fn master_of(&self, name: &str) -> usize {
        self.cluster.owner_of(self.cluster.slot_of(name))
    }

    fn names_of(&self, master: usize) -> Vec<String> {
        NAMES.iter().filter(|name| self.master_of(name) == master).map(|name| (*name).to_owned()).collect()
    }
}

/// Waits until all nodes run and agree, and looks whether the masters are those that we know.
fn ready(stage: &mut Stage<Realm>) {
    let realm = &mut stage.scene;
    realm.patience.wait(realm.cluster.settled());
    let (masters, since) = (realm.cluster.masters(), realm.known.1);
    if masters != realm.known.0 {
        realm.unmeant += 1;
        let names = NAMES.iter().map(|name| (*name).to_owned()).collect();
        stage.failed_over(Failover { names, since, until: clock() });
        stage.pause(QUIET_TIME);
    }
    stage.scene.known = (masters, clock());
}

/// One of the masters, with all nodes well.
fn any_master(stage: &mut Stage<Realm>, random: &mut Rng) -> usize {
    ready(stage);
    let masters = &stage.scene.known.0;
    masters[random.usize(..masters.len())]
}

/// Notes that another master has taken over these names since then, and gives the clients time to notice.
fn taken_over(stage: &mut Stage<Realm>, names: Vec<String>, since: u64) {
    stage.failed_over(Failover { names, since, until: clock() });
    stage.pause(QUIET_TIME);
}

fn well_again(stage: &mut Stage<Realm>) {
    let realm = &mut stage.scene;
    realm.patience.wait(realm.cluster.settled());
    realm.known = (realm.cluster.masters(), clock());
}

fn kill_master(stage: &mut Stage<Realm>, random: &mut Rng) {
    let master = any_master(stage, random);
    let (names, since) = (stage.scene.names_of(master), clock());
    kill_for_good(stage, random, master, names, since);
}

/// Its replica misses its last writes: it is frozen while the connection between them is cut.
fn kill_unheard(stage: &mut Stage<Realm>, random: &mut Rng) {
    let master = any_master(stage, random);
    let (names, since) = (stage.scene.names_of(master), clock());
    let replica = stage.scene.cluster.partner_of(master);
    stage.scene.cluster.nodes()[replica].freeze();
    let _: redis::Value = stage.scene.cluster.nodes()[master].ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    stage.pause(millis(random, 300..=800));
    stage.scene.cluster.node_mut(master).crash();
    stage.scene.cluster.nodes()[replica].thaw();
    wait_for_heir(stage, random, master, names, since);
}

fn kill_for_good(stage: &mut Stage<Realm>, random: &mut Rng, master: usize, names: Vec<String>, since: u64) {
    stage.scene.cluster.node_mut(master).crash();
    wait_for_heir(stage, random, master, names, since);
}

/// It comes back when another is master.
fn wait_for_heir(stage: &mut Stage<Realm>, random: &mut Rng, master: usize, names: Vec<String>, since: u64) {
    let realm = &stage.scene;
    realm.patience.wait(realm.cluster.heir_of(master));
    taken_over(stage, names, since);
    stage.pause(millis(random, 0..=500));
    stage.scene.cluster.node_mut(master).revive();
    well_again(stage);
}

/// Before a replica takes over. The master has kept its data, and the cluster does not accept it for two seconds.
fn restart_master(stage: &mut Stage<Realm>, random: &mut Rng) {
    let master = any_master(stage, random);
    stage.scene.cluster.node_mut(master).restart();
    ready(stage);
}

/// When the old master continues, it may act as a master until the others correct it.
fn freeze_master(stage: &mut Stage<Realm>, random: &mut Rng) {
    let master = any_master(stage, random);
    let names = stage.scene.names_of(master);
    freeze_until_another_takes_over(stage, random, master, names);
}

fn freeze_until_another_takes_over(stage: &mut Stage<Realm>, random: &mut Rng, master: usize, names: Vec<String>) {
    let (realm, since) = (&stage.scene, clock());
    realm.cluster.nodes()[master].freeze();
    realm.patience.wait(realm.cluster.heir_of(master));
    stage.pause(millis(random, 0..=1_500));
    stage.scene.cluster.nodes()[master].thaw();
    well_again(stage);
    taken_over(stage, names, since);
}

/// The master of the heap, most likely while one client holds these locks. Their releases must not delay other locks.
fn freeze_the_heap(stage: &mut Stage<Realm>, random: &mut Rng) {
    ready(stage);
    let master = stage.scene.master_of(HEAP);
    let (names, begun) = (stage.scene.names_of(master), clock());
    let spared = NAMES.iter().map(|name| (*name).to_owned()).filter(|name| !names.contains(name)).collect();
    freeze_until_another_takes_over(stage, random, master, names);
    stage.spared(spared, (begun, clock()));
}

/// As where addresses are used again: a node of another cluster, in which it has all slots, answers at the address of a dead
/// master.
fn kill_and_replace(stage: &mut Stage<Realm>, random: &mut Rng) {
    let master = any_master(stage, random);
    let (names, since) = (stage.scene.names_of(master), clock());
    let port = stage.scene.cluster.nodes()[master].port();
    stage.scene.stranger.store(port, Ordering::SeqCst);
    stage.scene.cluster.node_mut(master).crash();
    let stranger = Cluster::stranger_at(port);
    stage.scene.patience.wait(stage.scene.cluster.heir_of(master));
    taken_over(stage, names, since);
    // What it grants from here on is nobody's loss. For its first two seconds it takes no writes.
    stage.pause(millis(random, 1_000..=3_000));
    drop(stranger);
    stage.scene.cluster.node_mut(master).revive();
    stage.scene.stranger.store(0, Ordering::SeqCst);
    well_again(stage);
}

fn freeze_for_a_moment(stage: &mut Stage<Realm>, random: &mut Rng) {
    let master = any_master(stage, random);
    stage.scene.cluster.nodes()[master].freeze();
    stage.pause(millis(random, 50..=600));
    stage.scene.cluster.nodes()[master].thaw();
}

/// With its master's consent: nothing is lost, and so nothing is excused.
fn fail_over(stage: &mut Stage<Realm>, random: &mut Rng) {
    let master = any_master(stage, random);
    let realm = &stage.scene;
    realm.patience.wait(realm.cluster.fail_over(master));
    well_again(stage);
}

/// To another master, with pauses in which new locks are made at the new one and old ones are still at the old one. Often
/// two names share the slot.
fn migrate(stage: &mut Stage<Realm>, random: &mut Rng) {
    ready(stage);
    let name = if random.u32(..3) == 0 { TWINS[0] } else { NAMES[random.usize(..NAMES.len())] };
    let from = stage.scene.master_of(name);
    let others: Vec<_> = stage.scene.known.0.iter().copied().filter(|master| *master != from).collect();
    let to = others[random.usize(..others.len())];
    pass(stage, random, name, to);
    if random.bool() {
        stage.pause(millis(random, 0..=800));
        pass(stage, random, name, from);
    }
}

fn pass(stage: &mut Stage<Realm>, random: &mut Rng, name: &str, to: usize) {
    let slot = stage.scene.cluster.slot_of(name);
    let migration: Migration = stage.scene.cluster.begin_migration(slot, to);
    stage.pause(millis(random, 50..=600));
    stage.scene.cluster.move_keys(&migration);
    stage.pause(millis(random, 50..=600));
    stage.scene.cluster.move_keys(&migration);
    stage.scene.cluster.end_migration(migration);
    stage.scene.moved += 1;
}

fn kill_replica(stage: &mut Stage<Realm>, random: &mut Rng) {
    let master = any_master(stage, random);
    let replica = stage.scene.cluster.partner_of(master);
    stage.scene.cluster.node_mut(replica).crash();
    stage.pause(millis(random, 0..=2_000));
    stage.scene.cluster.node_mut(replica).revive();
}

fn kill_connections(stage: &mut Stage<Realm>, of: &str) {
    for node in stage.scene.cluster.nodes() {
        let _: redis::Value = node.ask(&["CLIENT", "KILL", "TYPE", of]);
    }
}

/// Looks at each lock where it is.
struct Follower {
    ports: Vec<u16>,
    sights: HashMap<u16, Sight>,
    /// Where each lock was last.
    places: HashMap<&'static str, u16>,
    /// The port at which a server of another cluster answers, or 0.
    stranger: Arc<AtomicU16>,
}

impl Eye for Follower {
    fn look(&mut self, names: &[&'static str]) -> Vec<(&'static str, Seen)> {
        let mut silent = Vec::new();
        names.iter().filter_map(|name| Some((*name, self.find(name, &mut silent)?))).collect()
    }
}

impl Follower {
    /// Goes where it is sent. A node that is silent is not asked again in this look.
    fn find(&mut self, name: &'static str, silent: &mut Vec<u16>) -> Option<Seen> {
        let since = clock();
        let (mut port, mut asking) = (*self.places.entry(name).or_insert(self.ports[0]), false);
        for _ in 0..=REDIRECTIONS {
            if silent.contains(&port) || self.stranger.load(Ordering::SeqCst) == port {
                break;
            }
            match self.ask(port, &command(&look_at(name)), asking) {
                Ok(ids) => {
                    let line = line_of(name)
                        .and_then(|line| self.ask(port, redis::cmd("LRANGE").arg(line).arg(0).arg(-1), asking).ok());
                    let token =
                        tokens_of(name).and_then(|count| self.ask(port, redis::cmd("MGET").arg(count), asking).ok());
                    let token = token.and_then(|count| count.first()?.parse().ok());
                    return Some(Seen { line: line.unwrap_or_default(), token, ..seen(name, (since, clock()), ids) });
                }
                Err(error) => match error.redirect_node().and_then(|(node, _)| node.rsplit_once(':')?.1.parse().ok()) {
                    Some(there) => {
                        asking = error.code() == Some("ASK");
                        port = there;
                        if !asking {
                            self.places.insert(name, port);
                        }
                    }
                    None => {
                        if error.code().is_none() {
                            silent.push(port);
                        }
                        break;
                    }
                },
            }
        }
        // Somebody else may know.
        let at = self.ports.iter().position(|known| *known == port).unwrap_or(0);
        self.places.insert(name, self.ports[(at + 1) % self.ports.len()]);
        None
    }

    fn ask(&mut self, port: u16, what: &Cmd, asking: bool) -> RedisResult<Vec<String>> {
        let sight = self.sights.get_mut(&port).expect("one of the nodes");
        sight.ask(|raw| {
            if asking {
                redis::cmd("ASKING").exec(raw)?;
            }
            what.query(raw)
        })
    }
}
