//! What servers tell a holder at once: that others have changed its lock.

use std::time::Duration;

use leasehold::{Client, Guard, Lost};

use crate::support::{
    Server, before, behind, client,
    deployment::{cluster::Cluster, sentinels::Sentinels},
    ms, plain,
    proxy::{Fault, Rule, Way, Which},
    until, with_rights, within,
};

/// Far less than a third of the lease, and enough for a busy machine.
const SOON: Duration = ms(3_000);

/// The server knows that many keys whose changes it tells.
fn tracked(server: &Server) -> u64 {
    let stats: String = server.ask(&["INFO", "stats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    line.expect("the server says so").trim().parse().expect("a number")
}

async fn knows(server: &Server, keys: u64) {
    until("the server to know whom to tell", ms(5_000), || tracked(server) == keys).await;
}

async fn held(client: &Client, server: &Server, name: &str) -> Guard {
    let before = tracked(server);
    let guard = client.mutex(name).lock().await.expect("free");
    until("the server to know whom to tell", ms(5_000), || tracked(server) == before + 1).await;
    guard
}

async fn is_told(guard: &Guard) {
    let (lost, took) = within("to be told", SOON, guard.lost()).await;
    assert_eq!(lost, Lost::Removed);
    println!("told after {took:?}");
}

#[tokio::test]
async fn a_deleted_lock_is_lost_at_once() {
    let server = Server::start();
    let client = plain(&server).await;
    let (guard, other) = (held(&client, &server, "a").await, held(&client, &server, "b").await);
    server.ask::<u64>(&["DEL", "a"]);
    is_told(&guard).await;
    assert!(!other.is_lost());
    server.ask::<()>(&["FLUSHALL"]);
    is_told(&other).await;
}

#[tokio::test]
async fn a_lock_that_is_forced_open_is_lost_at_once() {
    let server = Server::start();
    let (holding, forcing) = (plain(&server).await, plain(&server).await);
    let guard = held(&holding, &server, "a").await;
    assert!(forcing.mutex("a").force_unlock().await.expect("it is there"));
    is_told(&guard).await;
}

#[tokio::test]
async fn an_evicted_lock_is_lost_at_once() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = held(&client, &server, "a").await;
    server.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", "1"]);
    is_told(&guard).await;
}

#[tokio::test]
async fn each_kind_with_one_holder_is_told() {
    let server = Server::start();
    let client = plain(&server).await;
    // The server also keeps a name that it did not find.
    let fair = client.fair_lock("a").lock().await.expect("free");
    knows(&server, 1).await;
    server.ask::<u64>(&["DEL", "a"]);
    is_told(&fair).await;
    let fenced = client.fenced_lock("b").lock().await.expect("free");
    knows(&server, 2).await;
    server.ask::<u64>(&["DEL", "b"]);
    is_told(&fenced).await;
    let writing = client.rw_lock("c").write().await.expect("free");
    knows(&server, 3).await;
    server.ask::<u64>(&["DEL", "c"]);
    is_told(&writing).await;
    let leased = client.mutex("d").lease(ms(60_000)).lock().await.expect("free");
    knows(&server, 4).await;
    server.ask::<u64>(&["DEL", "d"]);
    is_told(&leased).await;
}

/// Its own renewals and nested calls are no news, and what others do without harm costs one look.
#[tokio::test]
async fn a_lock_that_stays_is_not_lost() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(900))).await;
    let guard = held(&client, &server, "a").await;
    let again = client.lock("b").lock().await.expect("free");
    let nested = client.lock("b").lock().await.expect("re-entered");
    until("renewals", ms(10_000), || client.stats().total.renewals >= 20).await;
    assert_eq!(tracked(&server), 2, "also after renewals");
    server.ask::<u64>(&["PEXPIRE", "a", "60000"]);
    guard.check().await.expect("held");
    for guard in [guard, again, nested] {
        assert!(!guard.is_lost());
        guard.unlock().await.expect("held");
    }
    assert_eq!(tracked(&server), 0);
}

/// Requests of the holder itself write the key, and then the server must be asked anew.
#[tokio::test]
async fn a_lock_that_its_holder_has_changed_is_lost_at_once() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.lock("a");
    let guard = lock.lock().await.expect("free");
    knows(&server, 1).await;
    let nested = lock.lock().await.expect("re-entered");
    nested.unlock().await.expect("held");
    assert_eq!(tracked(&server), 0, "it was written");
    knows(&server, 1).await;
    server.ask::<u64>(&["DEL", "a"]);
    is_told(&guard).await;
    let both = client.rw_lock("b");
    let writing = both.write().await.expect("free");
    knows(&server, 2).await;
    let _reading = both.read().await.expect("its owner writes");
    knows(&server, 2).await;
    server.ask::<u64>(&["DEL", "b"]);
    is_told(&writing).await;
}

/// A server tells of a key in any of its databases. Clients must not answer each other.
#[tokio::test]
async fn two_databases_do_not_stir_each_other() {
    let server = Server::start();
    let url = |database: u8| format!("{}/{database}", server.url());
    let connect = async |database| Client::connect(&url(database)).await.expect("it answers");
    let clients = [connect(0).await, connect(1).await];
    let mut guards = Vec::new();
    for client in &clients {
        for n in 0..50 {
            guards.push(client.mutex(&format!("held:{n}")).lock().await.expect("free"));
        }
    }
    tokio::time::sleep(ms(3_000)).await;
    let renewals = clients.iter().map(|client| client.stats().total.renewals).sum::<u64>();
    assert!((100..400).contains(&renewals), "{renewals} for 100 locks");
}

/// Short holds cost nothing.
#[tokio::test]
async fn a_short_hold_costs_nothing() {
    let server = Server::start();
    let client = plain(&server).await;
    for _ in 0..20 {
        client.mutex("a").lock().await.expect("free").unlock().await.expect("held");
    }
    let said: String = server.ask(&["INFO", "commandstats"]);
    let calls = said.lines().find_map(|line| line.strip_prefix("cmdstat_client|caching:calls="));
    assert_eq!(calls.and_then(|rest| rest.split(',').next()), Some("1"), "at the login: {said}");
    assert_eq!(tracked(&server), 0);
}

#[tokio::test]
async fn a_new_connection_is_told_again() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let guard = held(&client, &server, "a").await;
    proxy.cut_all();
    until("another connection", ms(5_000), || client.stats().total.reconnects == 1).await;
    until("the server to know whom to tell", ms(5_000), || tracked(&server) == 1).await;
    server.ask::<u64>(&["DEL", "a"]);
    is_told(&guard).await;
}

/// The server is asked to tell of it by a command of its own, after the renewal.
#[tokio::test]
async fn a_lock_that_vanishes_between_the_two_commands_is_lost_at_once() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let _other = held(&client, &server, "b").await; // the server knows the script
    proxy.rule(Rule::new(Which::Command("EXISTS"), Fault::Delay(Way::There, ms(500))));
    let guard = client.mutex("a").lock().await.expect("free");
    until("the second command to be on its way", ms(5_000), || proxy.tally().delayed == 1).await;
    server.ask::<u64>(&["DEL", "a"]);
    is_told(&guard).await;
}

/// A server that does not tell is no error.
#[tokio::test]
async fn without_the_right_renewals_find_it() {
    let server = Server::start();
    for right in ["-client|tracking", "-client|caching"] {
        let client = with_rights(&server, &["~*", "&*", "+@all", right]).await;
        let guard = client.mutex("a").lock().await.expect("free");
        guard.check().await.expect("held");
        assert_eq!(tracked(&server), 0, "{right}");
        server.ask::<u64>(&["DEL", "a"]);
        assert!(guard.check().await.is_err_and(|error| error.is_lost()), "{right}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_want_it() {
    let server = Server::start();
    let client = client(&server, |builder| builder.tracking(false)).await;
    let guard = client.mutex("a").lock().await.expect("free");
    guard.check().await.expect("held");
    let said: String = server.ask(&["INFO", "commandstats"]);
    assert!(!said.contains("tracking") && !said.contains("hello"), "{said}");
}

#[tokio::test]
async fn behind_sentinels() {
    let sentinels = Sentinels::start().await;
    let client = Client::builder().url(sentinels.url()).connect().await.expect("the master answers");
    let guard = held(&client, sentinels.master(), "a").await;
    sentinels.master().ask::<u64>(&["DEL", "a"]);
    is_told(&guard).await;
}

/// A slot that moves takes the key away from one server, and the lock is not lost.
#[tokio::test]
async fn in_a_cluster() {
    let cluster = Cluster::start().await;
    let client = Client::builder().url(cluster.url()).connect().await.expect("the cluster answers");
    for name in ["a", "b", "c", "d"] {
        let guard = held(&client, cluster.master_of(name), name).await;
        cluster.master_of(name).ask::<u64>(&["DEL", name]);
        is_told(&guard).await;
    }
    let guard = held(&client, cluster.master_of("e"), "e").await;
    let slot = cluster.slot_of("e");
    let there = cluster.masters().into_iter().find(|at| *at != cluster.owner_of(slot)).expect("another");
    let before = tracked(&cluster.nodes()[there]);
    cluster.migrate(slot, there);
    until("the next server to know whom to tell", ms(10_000), || tracked(&cluster.nodes()[there]) > before).await;
    assert!(!guard.is_lost());
    cluster.nodes()[there].ask::<u64>(&["DEL", "e"]);
    is_told(&guard).await;
}
