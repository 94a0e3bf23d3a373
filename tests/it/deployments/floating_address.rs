//! One address that leads to another server after a failover: a name, or a balancer of load. The fault proxy stands for it.

use std::time::Duration;

use leasehold::{Client, Guard, Lost};

use crate::support::{Server, before, behind, chain, master, ms, proxy::Proxy, replica_of, until, within};

const LEASE: Duration = ms(6_000);

/// A master, its replica, and a name that leads to the master. One lock is on both, one on the master alone.
struct Scene {
    old: Server,
    new: Server,
    name: Proxy,
    client: Client,
    copied: Guard,
    missing: Guard,
}

fn say(server: &Server, words: &[&str]) {
    let _: String = server.ask(words);
}

impl Scene {
    async fn set() -> Scene {
        let old = master();
        let new = replica_of(&old).await;
        let name = before(&old);
        let client = behind(&name, |builder| builder.watchdog(LEASE).command_timeout(ms(1_000))).await;
        let copied = client.lock("copied").lock().await.expect("free");
        until("the replica to have it", ms(2_000), || new.exists("copied")).await;
        say(&new, &["REPLICAOF", "NO", "ONE"]);
        let missing = client.lock("missing").lock().await.expect("free");
        assert!(old.exists("missing") && !new.exists("missing"));
        Scene { old, new, name, client, copied, missing }
    }

    fn move_name(&self) {
        self.name.lead_to(([127, 0, 0, 1], self.new.port()));
    }

    /// The new master is found before a lease has ended; what it has is kept, and who has what it lacks is told.
    async fn settles(self) {
        let (lost, _) = within("to be told", LEASE, self.missing.lost()).await;
        assert_eq!(lost, Lost::Removed);
        assert!(!self.copied.is_lost());
        self.copied.check().await.expect("still ours");
        assert!(self.new.lock("copied").iter().any(|(id, count)| id == self.copied.id() && *count == 1));
        assert!(self.client.stats().total.reconnects >= 1);
        self.copied.unlock().await.expect("ours");
        assert!(!self.new.exists("copied"));
        drop(self.missing); // while one of its guards lives, it is lost for its owner
        self.client.lock("missing").lock().await.expect("free there").unlock().await.expect("ours");
    }
}

#[tokio::test]
async fn a_replica_is_refused_when_connecting() {
    let server = master();
    let replica = replica_of(&server).await;
    for url in [replica.url(), replica.socket_url()] {
        let refused = within("the refusal", ms(2_000), Client::connect(&url)).await.0.expect_err("it is a replica");
        assert!(refused.is_unavailable() && chain(&refused).contains("replica"), "{}", chain(&refused));
    }
    // For so long as it is one, where there is time.
    let waiting = Client::builder().url(replica.url()).connect_timeout(ms(20_000)).connect();
    let waiting = tokio::spawn(waiting);
    let asked = || replica.calls("role") >= 4;
    until("it to have looked again", ms(5_000), asked).await;
    say(&replica, &["REPLICAOF", "NO", "ONE"]);
    let (connected, _) = within("the master", ms(5_000), waiting).await;
    let client = connected.expect("no panic").expect("it is a master now");
    client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
}

/// The old server lives on as a replica, and its connections with it.
#[tokio::test]
async fn a_master_that_becomes_a_replica_is_left() {
    let scene = Scene::set().await;
    say(&scene.old, &["REPLICAOF", "127.0.0.1", &scene.new.port().to_string()]);
    // The name is late: for a while it leads to what is a replica by now.
    let looked = scene.old.calls("role");
    until("it to be refused there", LEASE / 2, || scene.old.calls("role") > looked).await;
    assert!(!scene.copied.is_lost(), "it is there"); // of the other one the replica may have said so already
    scene.move_name();
    scene.settles().await;
}

/// A replica that has no copy of its master may refuse everything, for as long as it has none.
#[tokio::test]
async fn a_master_that_becomes_a_replica_without_a_copy_is_left() {
    let scene = Scene::set().await;
    say(&scene.old, &["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    scene.move_name();
    say(&scene.old, &["REPLICAOF", "127.0.0.1", "1"]);
    scene.settles().await;
}

#[tokio::test]
async fn a_master_that_dies_is_replaced() {
    let mut scene = Scene::set().await;
    scene.old.crash();
    scene.move_name();
    scene.settles().await;
}

/// Nothing of the old connection is left to see, and the old server answers as a master still.
#[tokio::test]
async fn a_name_that_moves_between_two_masters() {
    let scene = Scene::set().await;
    scene.move_name();
    scene.name.cut_all();
    scene.settles().await;
}

/// A lock that is wanted at that moment is waited for, not refused.
#[tokio::test]
async fn who_asks_meanwhile_gets_it_from_the_new_one() {
    let scene = Scene::set().await;
    say(&scene.old, &["REPLICAOF", "127.0.0.1", &scene.new.port().to_string()]);
    let lock = scene.client.lock("wanted");
    let asking = tokio::spawn(async move { lock.lock().await });
    until("it to be refused there", LEASE / 2, || scene.old.calls("role") >= 2).await;
    assert!(!asking.is_finished());
    scene.move_name();
    let (taken, _) = within("the lock", LEASE, asking).await;
    let guard = taken.expect("no panic").expect("free there");
    assert!(scene.new.exists("wanted"));
    guard.unlock().await.expect("ours");
}

/// A balancer keeps the connections that it has. Only those for commands are cut.
#[tokio::test]
async fn messages_come_from_the_new_master_too() {
    let scene = Scene::set().await;
    for server in [&scene.old, &scene.new] {
        let _: u32 = server.ask(&["HSET", "theirs", "somebody:1", "1"]);
    }
    let lock = scene.client.lock("theirs");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to listen", ms(5_000), || !scene.old.channels().is_empty()).await;
    scene.move_name();
    let _: u32 = scene.old.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    until("it to listen to the new master", ms(5_000), || !scene.new.channels().is_empty()).await;
    let _: u32 = scene.new.ask(&["DEL", "theirs"]);
    let _: u32 = scene.new.ask(&["PUBLISH", "redisson_lock__channel:{theirs}", "0"]);
    let (acquired, took) = within("the lock", ms(5_000), waiting).await;
    acquired.expect("no panic").expect("free there").unlock().await.expect("ours");
    assert!(took < ms(2_000), "it polled: {took}");
}
