//! Thousands of releases that a server does not answer, or refuses, do not delay the releases of other locks.

use std::time::Duration;

use leasehold::{Client, Guard, Owner};
use tokio::task::JoinSet;

use crate::support::{Server, deployment::cluster::Cluster, ms, server::version, until, with_rights, within};

/// A lease that nobody waits for.
const AN_HOUR: Duration = Duration::from_secs(3_600);
/// A few round trips on a busy machine.
const SOON: Duration = ms(1_000);
/// More than are under way at once.
const UNANSWERED: u64 = 4_500;
const REFUSED: u64 = 5_000;

/// Acquires `prefix-0`, `prefix-1` and so on.
async fn holding(client: &Client, prefix: &str, count: u64) -> Vec<Guard> {
    let mut acquiring = JoinSet::new();
    for n in 0..count {
        let lock = client.mutex(&format!("{prefix}-{n}")).lease(AN_HOUR);
        acquiring.spawn(async move { lock.lock().await.expect("free") });
    }
    acquiring.join_all().await
}

/// A name whose slot this master has.
fn name_on(cluster: &Cluster, master: usize) -> String {
    let names = (0..).map(|n| format!("{{{n}}}"));
    names.into_iter().find(|name| cluster.owner_of(cluster.slot_of(name)) == master).expect("each master has slots")
}

async fn dropped(client: &Client, guards: Vec<Guard>) {
    let count = u64::try_from(guards.len()).expect("few");
    drop(guards);
    until("the releases to be under way", ms(5_000), || client.stats().now.releasing >= count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_does_not_delay_the_releases_of_another() {
    let cluster = Cluster::of_masters().await;
    for node in cluster.nodes() {
        let _: String = node.ask(&["CONFIG", "SET", "cluster-node-timeout", "60000"]); // no failover in this test
    }
    let (client, other) = (cluster_client(&cluster).await, cluster_client(&cluster).await);
    let (frozen, well) = (name_on(&cluster, 0), name_on(&cluster, 1));
    let held = client.lock(&well).lock().await.expect("free");
    let passed_on = client.lock(&format!("{well}-row")).lock().await.expect("free");
    let waiter = client.lock(&format!("{well}-row")).owner(&Owner::new());
    let waiting = tokio::spawn(async move { waiter.lock().await });
    until("it to wait", SOON, || client.stats().now.waiting == 1).await;
    let guards = holding(&client, &frozen, UNANSWERED).await;
    cluster.nodes()[0].freeze();
    dropped(&client, guards).await;

    within("an unlock in memory", SOON, passed_on.unlock()).await.0.expect("ours");
    drop(held);
    let again = other.lock(&well);
    let (again, _) = within("the lock of the other master", SOON, again.lock()).await;
    again.expect("free").unlock().await.expect("ours");
    let next = within("its turn", SOON, waiting).await.0.expect("no panic");
    within("its release", SOON, next.expect("passed on").unlock()).await.0.expect("ours");

    cluster.nodes()[0].thaw();
    until("all to be released", ms(8_000), || client.stats().now.releasing == 0).await;
    let left: u32 = cluster.nodes()[0].ask(&["DBSIZE"]);
    assert_eq!(left, 0);
}

async fn cluster_client(cluster: &Cluster) -> Client {
    Client::builder().url(cluster.url()).announce(false).connect().await.expect("the cluster answers")
}

/// How many calls of scripts the server has refused before they ran. Redis counts them since 6.2; before, how many it was sent.
fn refused(server: &Server, client: &Client) -> u64 {
    if version() < (6, 2) {
        return client.stats().total.calls;
    }
    let info: String = server.ask(&["INFO", "commandstats"]);
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let count = line.split("rejected_calls=").nth(1).and_then(|rest| rest.split(',').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_releases_do_not_delay_an_allowed_one() {
    let server = Server::start();
    let client = with_rights(&server, &["+@all", "~*", "&*"]).await;
    let ok = client.mutex("ok").lock().await.expect("free");
    let guards = holding(&client, "no", REFUSED).await;
    server.set_user("u", &["resetkeys", "~ok"]);
    let before = refused(&server, &client);
    dropped(&client, guards).await;
    until("each to have been refused", ms(30_000), || refused(&server, &client) - before >= REFUSED).await;
    let earlier = refused(&server, &client);
    drop(ok);
    // Counted, because a machine can be busy: with one lane for all it is sent behind 4,800. As long as the lock is there, for the test may
    // look late.
    let mut behind = 0;
    let is_free = || {
        let until_now = refused(&server, &client) - earlier;
        let is_free = !server.exists("ok");
        behind = if is_free { behind } else { until_now };
        is_free
    };
    until("the lock that may be released to be free", ms(10_000), is_free).await;
    assert!(behind < REFUSED / 2, "behind {behind}");
    server.set_user("u", &["~*"]);
    until("all others to be released", ms(30_000), || server.ask::<u32>(&["DBSIZE"]) == 0).await;
}
