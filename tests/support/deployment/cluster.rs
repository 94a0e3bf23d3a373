//! A cluster: masters with a replica each, and slots that move between them.

use std::{
    convert::Infallible,
    ops::RangeInclusive,
    path::Path,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    addresses, follows, start_all,
    tls::{Certificates, LOOK},
};
use crate::support::{
    ms,
    server::{Look, Server, free_port, owned, usual, version},
    until,
};

const MASTERS: usize = 3;
const SLOTS: u16 = 16_384;
/// How long a node may be silent before the others hold it for dead. Shorter, and a busy machine would kill nodes.
const NODE_TIMEOUT: &str = "1000";
/// How long the nodes may take to agree on something.
const PATIENCE: Duration = ms(20_000);
/// A replica that was ordered to take over gives up after five seconds, and says so only in its log.
const GIVES_UP: Duration = ms(6_000);

/// Nodes are named by their place. At first the masters are 0, 1 and 2, and their replicas 3, 4 and 5 in that order.
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    /// The port at which each talks to the others, by which they name it. Since 7.2 a node that speaks TLS tells who asks without TLS no
    /// other port.
    buses: Vec<String>,
    /// Of those that speak TLS only.
    certificates: Option<Certificates>,
}

/// A slot on its way: until it has ended, the old owner answers with ASK for what has moved already.
#[derive(Debug)]
#[must_use = "until it is ended, the slot belongs to both"]
pub(crate) struct Migration {
    pub(crate) slot: u16,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

pub(crate) fn with_all_slots(server: Server) -> Server {
    let slots: Vec<_> = (0..SLOTS).map(|slot| slot.to_string()).collect();
    let slots: Vec<_> = slots.iter().map(String::as_str).collect();
    let _: String = server.ask(&[&["CLUSTER", "ADDSLOTS"], &slots[..]].concat());
    server
}

impl Cluster {
    /// Three masters with a replica each.
    pub(crate) async fn start() -> Cluster {
        Cluster::with(&[]).await
    }

    /// With more arguments for the command line of each.
    pub(crate) async fn with(args: &[&str]) -> Cluster {
        Cluster::of(2 * MASTERS, args, None).await
    }

    /// Where TLS is spoken and nothing else.
    pub(crate) async fn encrypted() -> Cluster {
        Cluster::of(2 * MASTERS, &[], Some(Certificates::here())).await
    }

    /// Three masters alone.
    pub(crate) async fn of_masters() -> Cluster {
        Cluster::of(MASTERS, &[], None).await
    }

    async fn of(nodes: usize, args: &[&str], certificates: Option<Certificates>) -> Cluster {
        let nodes = start_all(nodes, |_| node(args, certificates.as_ref()));
        let cluster = Cluster { buses: nodes.iter().map(bus_of).collect(), nodes, certificates };
        cluster.share_slots_out();
        tokio::select! {
            never = cluster.introductions() => match never {},
            () = cluster.arranged() => {}
        }
        cluster
    }

    /// A node of another cluster at that port of somebody who is gone: it has all slots, and knows nobody.
    pub(crate) fn stranger_at(port: u16) -> Server {
        with_all_slots(Server::at(port, |dir| arguments(port, dir, &[], None)))
    }

    /// One server in cluster mode, which has all slots.
    pub(crate) async fn of_one() -> Server {
        let server = with_all_slots(node(&[], None));
        let is_up = || server.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        until("the cluster to be up", PATIENCE, is_up).await;
        server
    }

    /// Names all nodes, replicas too.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}-cluster://{}", addresses(&self.nodes))
    }

    pub(crate) fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// For what a handle that is only looked at cannot do: `crash` and `revive`.
    pub(crate) fn node_mut(&mut self, at: usize) -> &mut Server {
        &mut self.nodes[at]
    }

    /// The nodes that own slots now.
    pub(crate) fn masters(&self) -> Vec<usize> {
        self.running().filter(|&at| self.own_entry(at).owns_any()).collect()
    }

    pub(crate) fn slot_of(&self, key: &str) -> u16 {
        self.anyone().ask(&["CLUSTER", "KEYSLOT", key])
    }

    /// The node that says the slot is its own. Of two that say so, as after a failover the other has slept through, the
    /// newer one.
    pub(crate) fn owner_of(&self, slot: u16) -> usize {
        let claims = self.running().map(|at| (self.own_entry(at), at)).filter(|(entry, _)| entry.owns(slot));
        let newest = claims.max_by_key(|(entry, _)| entry.epoch);
        newest.unwrap_or_else(|| panic!("no node says that slot {slot} is its own: {}", self.views())).1
    }

    /// What each node says of all.
    fn views(&self) -> String {
        self.running().map(|at| self.nodes[at].ask::<String>(&["CLUSTER", "NODES"])).collect::<Vec<_>>().join("\n")
    }

    /// The server that has this key.
    pub(crate) fn master_of(&self, key: &str) -> &Server {
        &self.nodes[self.owner_of(self.slot_of(key))]
    }

    /// The other one of a master and its replica, whichever is which.
    pub(crate) fn partner_of(&self, at: usize) -> usize {
        (at + MASTERS) % self.nodes.len()
    }

    /// The replica of that master takes over, with its master's consent: nothing that was written is lost. Says which it
    /// is, once all nodes know.
    pub(crate) async fn fail_over(&self, master: usize) -> usize {
        let heir = self.partner_of(master);
        let mut asked: Option<Instant> = None;
        let asks_again = || {
            let has_given_up = asked.is_none_or(|asked| asked.elapsed() > GIVES_UP);
            if has_given_up && !self.entry(heir, heir).owns_any() {
                let _: String = self.nodes[heir].ask(&["CLUSTER", "FAILOVER"]);
                asked = Some(Instant::now());
            }
            self.running().all(|at| self.entry(at, heir).owns_any())
        };
        until("the replica to take over", PATIENCE, asks_again).await;
        until("the old master to follow", PATIENCE, || follows(&self.nodes[master])).await;
        heir
    }

    /// Waits until the partner of a master, one that was killed or frozen, has taken over and all that run know.
    pub(crate) async fn heir_of(&self, master: usize) -> usize {
        let heir = self.partner_of(master);
        let known = |at: usize| self.entry(at, heir).owns_any();
        until("the replica to take over", PATIENCE, || self.running().all(known)).await;
        heir
    }

    /// Waits until all nodes run and agree, as at the start.
    pub(crate) async fn settled(&self) {
        until("all nodes to agree", PATIENCE, || (0..self.nodes.len()).all(|at| self.is_settled(at))).await;
    }

    /// Moves a slot with all that is in it.
    pub(crate) fn migrate(&self, slot: u16, to: usize) {
        let migration = self.begin_migration(slot, to);
        self.move_keys(&migration);
        self.end_migration(migration);
    }

    /// From here on new keys of the slot are made at its new owner, and the old one sends who asks for them there.
    pub(crate) fn begin_migration(&self, slot: u16, to: usize) -> Migration {
        let migration = Migration { slot, from: self.owner_of(slot), to };
        self.set_slot(to, slot, &["IMPORTING", &self.id(migration.from)]);
        self.set_slot(migration.from, slot, &["MIGRATING", &self.id(to)]);
        migration
    }

    /// Moves what is in the slot now. A note of a call that forced a lock open may be on both sides: see docs/operations.md.
    pub(crate) fn move_keys(&self, migration: &Migration) {
        let (from, to) = (&self.nodes[migration.from], self.nodes[migration.to].port().to_string());
        loop {
            let keys: Vec<String> = from.ask(&["CLUSTER", "GETKEYSINSLOT", &migration.slot.to_string(), "100"]);
            if keys.is_empty() {
                return;
            }
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            let _: String =
                from.ask(&[&["MIGRATE", "127.0.0.1", &to, "", "0", "5000", "REPLACE", "KEYS"], &keys[..]].concat());
        }
    }

    /// Moves these keys alone.
    pub(crate) fn move_some(&self, migration: &Migration, keys: &[&str]) {
        let (from, to) = (&self.nodes[migration.from], self.nodes[migration.to].port().to_string());
        let _: String = from.ask(&[&["MIGRATE", "127.0.0.1", &to, "", "0", "5000", "KEYS"], keys].concat());
    }

    /// All masters are told, the new owner first: until it knows, nobody may be sent there for good.
    pub(crate) fn end_migration(&self, migration: Migration) {
        let Migration { slot, from, to } = migration;
        let others = self.masters().into_iter().filter(|&at| at != from && at != to);
        for at in [to, from].into_iter().chain(others) {
            self.set_slot(at, slot, &["NODE", &self.id(to)]);
        }
    }

    /// Waits until every node knows the newest epoch of every master. Before 7.0 a node does not announce at once that it has a new slot. If
    /// another node gets a slot before it knows, both have the same epoch. One of them then raises its own, and with that takes back slots
    /// that it had given away.
    pub(crate) async fn heard_of_epochs(&self) {
        let knows =
            |at| self.masters().into_iter().all(|other| self.entry(at, other).epoch == self.own_entry(other).epoch);
        until("all to know the epochs", PATIENCE, || self.running().all(knows)).await;
    }

    fn set_slot(&self, at: usize, slot: u16, how: &[&str]) {
        let _: String = self.nodes[at].ask(&[&["CLUSTER", "SETSLOT", &slot.to_string()], how].concat());
    }

    fn share_slots_out(&self) {
        for (at, range) in shares().enumerate() {
            // Nodes that begin with one epoch quarrel for a while about who goes first.
            let _: String = self.nodes[at].ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
            let slots: Vec<_> = range.map(|slot| slot.to_string()).collect();
            let slots: Vec<_> = slots.iter().map(String::as_str).collect();
            let _: String = self.nodes[at].ask(&[&["CLUSTER", "ADDSLOTS"], &slots[..]].concat());
        }
    }

    /// A node forgets another that does not reply for a second after they met, as on a busy machine.
    async fn introductions(&self) -> Infallible {
        loop {
            self.introduce();
            sleep(ms(2_000)).await;
        }
    }

    async fn arranged(&self) {
        for master in 0..self.nodes.len() - MASTERS {
            self.make_replica(master).await;
        }
        self.settled().await;
    }

    /// Each meets all after it: to hear of one another takes longer.
    fn introduce(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            for (other, bus) in self.nodes.iter().zip(&self.buses).skip(at + 1) {
                let _: String = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string(), bus]);
            }
        }
    }

    async fn make_replica(&self, master: usize) {
        let (replica, id) = (&self.nodes[self.partner_of(master)], self.id(master));
        let made = || replica.try_ask::<String>(&["CLUSTER", "REPLICATE", &id]).is_ok();
        until("the replica to know its master", PATIENCE, made).await;
    }

    /// Whether that node knows all others, each for what it is, and is ready to serve.
    fn is_settled(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let state: String = node.ask(&["CLUSTER", "INFO"]);
        let (ready, view) = (state.contains("cluster_state:ok\r"), self.view(at));
        let all = view.len() == self.nodes.len() && view.iter().all(Entry::is_well);
        let pairs = view.iter().filter(|entry| entry.owns_any()).count() == MASTERS;
        let slots = view.iter().map(Entry::slots).sum::<usize>() == usize::from(SLOTS);
        ready && all && pairs && slots && (self.own_entry(at).owns_any() || follows(node))
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|&at| self.nodes[at].is_up())
    }

    fn anyone(&self) -> &Server {
        &self.nodes[self.running().next().expect("a node that runs")]
    }

    fn id(&self, at: usize) -> String {
        self.nodes[at].ask(&["CLUSTER", "MYID"])
    }

    /// What that node thinks of all nodes.
    fn view(&self, at: usize) -> Vec<Entry> {
        self.nodes[at].ask::<String>(&["CLUSTER", "NODES"]).lines().map(Entry::read).collect()
    }

    fn own_entry(&self, at: usize) -> Entry {
        self.entry(at, at)
    }

    /// What one node thinks of another.
    fn entry(&self, at: usize, other: usize) -> Entry {
        self.view(at).into_iter().find(|entry| entry.bus == self.buses[other]).expect("they have met")
    }
}

/// A line of CLUSTER NODES.
#[derive(Debug)]
struct Entry {
    bus: String,
    flags: String,
    epoch: u64,
    ranges: Vec<RangeInclusive<u16>>,
}

impl Entry {
    /// `id ip:port@bus[,hostname] flags master ping pong epoch link slot from-to [moving->-id]`
    fn read(line: &str) -> Entry {
        let words: Vec<_> = line.split(' ').collect();
        let bus = words[1].split_once('@').expect("an address").1;
        let ranges = words[8..].iter().filter(|range| !range.starts_with('['));
        Entry {
            bus: bus.split(',').next().expect("a port").to_owned(),
            flags: words[2].to_owned(),
            epoch: words[6].parse().expect("an epoch"),
            ranges: ranges.map(|range| read_range(range)).collect(),
        }
    }

    fn owns(&self, slot: u16) -> bool {
        self.is_master() && self.ranges.iter().any(|range| range.contains(&slot))
    }

    fn owns_any(&self) -> bool {
        self.is_master() && !self.ranges.is_empty()
    }

    fn is_master(&self) -> bool {
        self.flags.split(',').any(|flag| flag == "master")
    }

    fn is_well(&self) -> bool {
        !["fail", "handshake", "noaddr"].iter().any(|trouble| self.flags.contains(trouble))
    }

    fn slots(&self) -> usize {
        self.ranges.iter().map(|range| range.len()).sum()
    }
}

fn read_range(text: &str) -> RangeInclusive<u16> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    first.parse().expect("a slot")..=last.parse().expect("a slot")
}

/// The slots of each master.
fn shares() -> impl Iterator<Item = RangeInclusive<u16>> {
    let masters = MASTERS as u16;
    (0..masters).map(move |at| at * SLOTS / masters..=(at + 1) * SLOTS / masters - 1)
}

fn node(more: &[&str], certificates: Option<&Certificates>) -> Server {
    let look = if certificates.is_some() { LOOK } else { Look::default() };
    Server::made(look, |port, dir| arguments(port, dir, more, certificates))
}

fn arguments(port: u16, dir: &Path, more: &[&str], certificates: Option<&Certificates>) -> Vec<String> {
    let bus = if chooses_its_bus() { owned(&["--cluster-port", &free_port().to_string()]) } else { Vec::new() };
    let cluster = owned(&["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT]);
    // One master less must not stop the others.
    let partly = owned(&["--cluster-require-full-coverage", "no", "--cluster-announce-ip", "127.0.0.1"]);
    // Before 6.0.13 a replica whose master has never said anything does not take over when told.
    let soon = owned(&["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
    let tls = certificates.map(|certificates| [certificates.only_tls(port), owned(&["--tls-cluster", "yes"])].concat());
    [usual(port, dir), cluster, partly, soon, bus, tls.unwrap_or_default(), owned(more)].concat()
}

/// Before 7.0 nodes talk to each other 10,000 ports above. A port for which that is taken, or is none, is tried in vain.
fn chooses_its_bus() -> bool {
    version() >= (7, 0)
}

fn bus_of(node: &Server) -> String {
    if !chooses_its_bus() {
        return (node.port() + 10_000).to_string();
    }
    let (_, bus): (String, String) = node.ask(&["CONFIG", "GET", "cluster-port"]);
    bus
}
