//! A server that has forgotten what it confirmed: a failover, a crash that loses the last seconds, a partition. Here
//! exclusion breaks, as docs/guarantees.md says: for what was forgotten and for nothing else, until the holder is told.

use std::{fs, path::PathBuf, time::Duration};

use leasehold::{Client, Error, Guard, Lost};

use crate::support::{
    Server, before, behind, client, master, ms, proxy::Proxy, replica_of, server::version, until, within,
};

/// So long that no lease ends and no renewal is due by itself: who is told, is told because there is a connection again.
const LEASE: Duration = ms(30_000);
/// A reconnection and what follows it, on a busy machine.
const SOON: Duration = ms(4_000);

/// A holder and somebody else, each with a network of its own.
struct Scene {
    holders: Proxy,
    others: Proxy,
    holder: Client,
    other: Client,
}

impl Scene {
    async fn set(server: &Server, replicas: u8) -> Scene {
        let (holders, others) = (before(server), before(server));
        let settings =
            |builder: leasehold::Builder| builder.watchdog(LEASE).replicas(replicas).command_timeout(ms(800));
        let holder = behind(&holders, settings).await;
        let other = behind(&others, |builder| builder).await;
        Scene { holders, others, holder, other }
    }

    async fn taken(&self, name: &str) -> Guard {
        let (taken, _) = within("a free lock", SOON, self.holder.lock(name).lock()).await;
        taken.expect("free")
    }

    /// The holder cannot come back before it may.
    fn keep_holder_away(&self) {
        self.holders.refuse();
        self.holders.cut_all();
    }

    fn lead_to(&self, server: &Server) {
        let address = ([127, 0, 0, 1], server.port());
        self.holders.lead_to(address);
        self.others.lead_to(address);
    }

    /// Both are certain of it, until the holder can ask.
    async fn breaks(&self, forgotten: Guard) {
        let (taken, _) = within("the other to get it", SOON, self.other.lock(forgotten.name()).lock()).await;
        let taken = taken.expect("forgotten");
        assert!(!forgotten.is_lost() && !forgotten.remaining().is_zero(), "nobody could tell the holder");
        self.holders.accept();
        let (lost, _) = within("the holder to be told", SOON, forgotten.lost()).await;
        assert_eq!(lost, Lost::Removed);
        taken.unlock().await.expect("theirs is left alone");
    }

    /// This hold has survived.
    async fn goes_on(&self, kept: Guard) {
        kept.check().await.expect("the server knows it");
        assert!(self.other.lock(kept.name()).try_lock().await.expect("answered").is_none(), "it is taken");
        kept.unlock().await.expect("ours to the end");
    }
}

/// From here on the replica hears nothing of its master, and keeps what it has.
fn cut_off(replica: &Server) {
    let _: String = replica.ask(&["REPLICAOF", "127.0.0.1", "1"]);
}

fn promote(replica: &Server) {
    let _: String = replica.ask(&["REPLICAOF", "NO", "ONE"]);
}

#[tokio::test]
async fn after_a_failover_a_lock_that_the_replica_had_not_heard_of_breaks() {
    let mut server = master();
    let (replica, scene) = (replica_of(&server).await, Scene::set(&server, 0).await);
    let heard = scene.taken("heard of").await;
    until("the replica to hear of it", SOON, || replica.exists("heard of")).await;
    cut_off(&replica);
    let unheard = scene.taken("not heard of").await;
    scene.keep_holder_away();
    server.crash();
    promote(&replica);
    scene.lead_to(&replica);
    scene.breaks(unheard).await;
    scene.goes_on(heard).await;
}

#[tokio::test]
async fn a_lock_that_must_be_on_a_replica_survives_the_failover_or_was_not_granted() {
    let mut server = master();
    let (replica, scene) = (replica_of(&server).await, Scene::set(&server, 1).await);
    let confirmed = scene.taken("confirmed").await;
    cut_off(&replica); // at once: it has it already
    let (refused, _) = within("an answer", SOON, scene.holder.lock("unconfirmed").lock()).await;
    assert!(matches!(refused, Err(Error::Replicas { wanted: 1, got: 0, .. })), "{refused:?}");
    server.crash();
    promote(&replica);
    scene.lead_to(&replica);
    until("the holder to be back", SOON, || scene.holder.stats().total.reconnects > 0).await;
    scene.goes_on(confirmed).await;
    let taken = scene.other.lock("unconfirmed").try_lock().await.expect("answered");
    assert!(taken.is_some(), "nobody has it");
}

/// Writes down every command before it answers.
fn durable() -> Server {
    Server::with(&["--appendonly", "yes", "--appendfsync", "always"])
}

/// What the server has written since it was started.
fn log_of(server: &Server) -> PathBuf {
    if version() < (7, 0) {
        return server.folder().join("appendonly.aof");
    }
    let files = fs::read_dir(server.folder().join("appendonlydir")).expect("it appends");
    let mut files = files.map(|file| file.expect("readable").path());
    files.find(|path| path.to_string_lossy().ends_with(".incr.aof")).expect("the part that grows")
}

#[tokio::test]
async fn after_a_crash_that_loses_nothing_all_go_on() {
    let mut server = durable();
    let scene = Scene::set(&server, 0).await;
    let guard = scene.taken("x").await;
    let lock = scene.other.lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to be subscribed", SOON, || !server.channels().is_empty()).await;
    server.restart();
    until("the subscription to be restored", SOON, || !server.channels().is_empty()).await;
    guard.check().await.expect("still ours");
    assert!(!waiting.is_finished());
    guard.unlock().await.expect("ours to the end");
    let (taken, took) = within("the waiter's turn", SOON, waiting).await;
    drop(taken.expect("no panic").expect("given back"));
    assert!(took < ms(1_000), "woken, not by timer: {took:?}");
}

/// `appendfsync everysec` and a power failure, in effect: the end of what was written is cut off.
#[tokio::test]
async fn after_a_crash_that_loses_the_last_second_a_lock_taken_in_it_breaks() {
    let mut server = durable();
    let scene = Scene::set(&server, 0).await;
    let kept = scene.taken("written").await;
    let log = log_of(&server);
    let written = fs::metadata(&log).expect("there").len();
    let lost = scene.taken("not written").await;
    scene.keep_holder_away();
    server.crash();
    let file = fs::OpenOptions::new().write(true).open(log).expect("our own file");
    assert!(file.metadata().expect("there").len() > written, "there is something to lose");
    file.set_len(written).expect("our own file");
    server.revive();
    scene.breaks(lost).await;
    scene.goes_on(kept).await;
}

#[tokio::test]
async fn in_a_partition_both_sides_go_on_until_the_old_master_steps_down() {
    const LEASE: Duration = ms(1_500);
    let (server, settings) = (master(), |builder: leasehold::Builder| builder.watchdog(LEASE));
    let (replica, holder) = (replica_of(&server).await, client(&server, settings).await);
    let guard = holder.lock("x").lock().await.expect("free");
    until("the replica to hear of it", SOON, || replica.exists("x")).await;
    promote(&replica);
    let other = client(&replica, |builder| builder).await;
    let (taken, _) = within("its lease to end on that side", LEASE + SOON, other.lock("x").lock()).await;
    let taken = taken.expect("nobody renews it there");
    guard.check().await.expect("on its own side the holder goes on");
    assert!(!guard.remaining().is_zero() && !taken.remaining().is_zero(), "both are certain");
    let _: String = server.ask(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]);
    // Refused for now until the old master has caught up, and then the lock is somebody else's.
    let (lost, _) = within("the holder to be told", LEASE + SOON, guard.lost()).await;
    assert!(matches!(lost, Lost::Removed | Lost::Expired), "{lost}");
    taken.unlock().await.expect("theirs is left alone");
}
