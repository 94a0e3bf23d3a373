//! By which channels waiters learn that a lock is free, or that by none.

use std::time::Instant;

use futures_util::future::join_all;
use leasehold::{Builder, Client, Error, Owner, PubSub};
use tokio::{task::JoinHandle, time::sleep};

use crate::support::{Server, client, deployment::cluster::Cluster, ms, plain, server::version, until, within};

fn without(builder: Builder) -> Builder {
    builder.pubsub(PubSub::Off)
}

fn waiting_for(client: &Client, name: &str) -> JoinHandle<leasehold::Result<leasehold::Guard>> {
    let lock = client.lock(name).owner(&Owner::new());
    tokio::spawn(async move { lock.lock().await })
}

/// Nothing was published or subscribed, and no connection listens.
fn is_quiet(server: &Server) -> bool {
    let listening = server.ask::<String>(&["CLIENT", "LIST"]).lines().filter(|line| !line.contains(" sub=0 ")).count();
    let calls = ["publish", "subscribe", "spublish", "ssubscribe"].map(|command| server.calls(command));
    server.channels().is_empty() && listening == 0 && calls == [0; 4]
}

#[tokio::test]
async fn without_channels_waiters_look_for_themselves() {
    const HELD: u64 = 3_000;
    let server = Server::start();
    let (holder, waiter) = (client(&server, without).await, client(&server, without).await);
    let guard = holder.lock("x").lock().await.expect("free");
    let waiting: Vec<_> = (0..5).map(|_| waiting_for(&waiter, "x")).collect();
    until("all to wait", ms(2_000), || waiter.stats().now.waiting == 5).await;
    let (before, since) = (waiter.stats().total.requests, Instant::now());
    sleep(ms(HELD)).await;
    let (asked, took) = (waiter.stats().total.requests - before, since.elapsed());
    let most = took.as_millis() / 100 + 8; // pauses of 100 to 200 ms, and shorter ones at first
    assert!(asked >= 5 && u128::from(asked) <= most, "{asked} requests in {took:?}");
    assert!(is_quiet(&server));

    guard.unlock().await.expect("ours");
    for waiting in waiting {
        let (taken, _) = within("its turn", ms(1_500), waiting).await;
        taken.expect("no panic").expect("free").unlock().await.expect("ours");
    }
    assert!(is_quiet(&server));
    let now = waiter.stats().now;
    assert_eq!((now.subscriptions, now.waiting, now.holds), (0, 0, 0));
}

/// A short hold is not waited for as if it were a long one: four looks with pauses of 200 ms between them take longer.
#[tokio::test]
async fn without_channels_the_first_looks_are_soon() {
    let server = Server::start();
    let (holder, waiter) = (client(&server, without).await, client(&server, without).await);
    let guard = holder.lock("x").lock().await.expect("free");
    let waiting = waiting_for(&waiter, "x");
    until("it to have looked some times", ms(550), || waiter.stats().total.refused >= 4).await;
    guard.unlock().await.expect("ours");
    let (taken, _) = within("its turn", ms(1_000), waiting).await;
    taken.expect("no panic").expect("free").unlock().await.expect("ours");
}

/// A client that is told of nothing can still be beside one that is: it publishes nothing, and the other looks in time.
#[tokio::test]
async fn without_channels_nobody_else_is_told_either() {
    let server = Server::start();
    let (holder, waiter) = (client(&server, without).await, plain(&server).await);
    let guard = holder.lock("x").lease(ms(2_000)).lock().await.expect("free");
    let waiting = waiting_for(&waiter, "x");
    until("it to be subscribed", ms(2_000), || !server.channels().is_empty()).await;
    guard.unlock().await.expect("ours");
    let (taken, _) = within("the end of the lease it saw", ms(4_000), waiting).await;
    assert_eq!((server.calls("publish"), waiter.stats().total.wakeups), (0, 0));
    drop(taken.expect("no panic").expect("free"));
}

#[tokio::test]
async fn only_a_cluster_has_shards() {
    for url in ["redis://h", "redis+unix:///r.sock", "redis-sentinel://h/s"] {
        let refused = Client::builder().url(url).pubsub(PubSub::Sharded).connect().await;
        assert!(matches!(refused, Err(Error::InvalidConfig { setting: "pubsub", .. })), "{url}: {refused:?}");
    }
}

#[tokio::test]
async fn alone_it_is_classic_by_itself_or_when_told_so() {
    let server = Server::start();
    for way in [PubSub::Auto, PubSub::Classic] {
        let (holder, waiter) = (
            client(&server, |builder| builder.pubsub(way)).await,
            client(&server, |builder| builder.pubsub(way)).await,
        );
        let guard = holder.lock("x").lock().await.expect("free");
        let waiting = waiting_for(&waiter, "x");
        until("it to be subscribed", ms(2_000), || server.channels() == ["redisson_lock__channel:{x}"]).await;
        until("it to have looked", ms(2_000), || waiter.stats().total.refused >= 2).await;
        guard.unlock().await.expect("ours");
        let (taken, _) = within("the message", ms(1_000), waiting).await;
        drop(taken.expect("no panic").expect("free"));
        until("the channel to be left", ms(2_000), || server.channels().is_empty()).await;
    }
}

/// How many listen to the lock's channel on all servers, by `NUMSUB` or `SHARDNUMSUB`.
fn listeners(cluster: &Cluster, how: &str, name: &str) -> usize {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let on =
        |server: &Server| server.try_ask::<(String, usize)>(&["PUBSUB", how, &channel]).map_or(0, |(_, number)| number);
    cluster.nodes().iter().map(on).sum()
}

fn published(cluster: &Cluster, command: &str) -> u64 {
    cluster.nodes().iter().map(|node| node.calls(command)).sum()
}

async fn of(cluster: &Cluster, way: PubSub) -> Client {
    Client::builder().url(cluster.url()).pubsub(way).connect().await.expect("it answers")
}

/// One waits, hears and takes it. `by` is how it is found to listen, and how it is not; then what publishes, and what does not.
async fn is_woken(
    cluster: &Cluster,
    way: PubSub,
    name: &str,
    (by, not_by): (&str, &str),
    (says, silent): (&str, &str),
) {
    let (holder, waiter) = (of(cluster, way).await, of(cluster, way).await);
    let guard = holder.lock(name).lock().await.expect("free");
    let waiting = waiting_for(&waiter, name);
    until("it to be subscribed", ms(5_000), || listeners(cluster, by, name) == 1).await;
    assert_eq!(listeners(cluster, not_by, name), 0, "{way:?}");
    until("it to have looked", ms(5_000), || waiter.stats().total.refused >= 2).await;
    let (before, silent_before) = (published(cluster, says), published(cluster, silent));
    guard.unlock().await.expect("ours");
    let (taken, took) = within("the message", ms(2_000), waiting).await;
    taken.expect("no panic").expect("free").unlock().await.expect("ours");
    assert!(took < ms(1_000), "{way:?}: {took:?}");
    until("the message", ms(2_000), || waiter.stats().total.wakeups >= 1).await;
    assert!(published(cluster, says) > before && published(cluster, silent) == silent_before, "{way:?}");
    until("the channel to be left", ms(5_000), || listeners(cluster, by, name) == 0).await;
}

#[tokio::test]
async fn in_a_cluster_each_way_wakes() {
    let cluster = Cluster::start().await;
    let classic = (("NUMSUB", "SHARDNUMSUB"), ("publish", "spublish"));
    let sharded = (("SHARDNUMSUB", "NUMSUB"), ("spublish", "publish"));
    let has_shards = version() >= (7, 0);
    // Names of different masters.
    for name in ["a", "b", "c"] {
        is_woken(&cluster, PubSub::Classic, name, classic.0, classic.1).await;
        let auto = if has_shards { sharded } else { classic };
        is_woken(&cluster, PubSub::Auto, name, auto.0, auto.1).await;
        if has_shards {
            is_woken(&cluster, PubSub::Sharded, name, sharded.0, sharded.1).await;
        }
    }

    let before = (published(&cluster, "publish"), published(&cluster, "spublish"));
    let (holder, waiter) = (of(&cluster, PubSub::Off).await, of(&cluster, PubSub::Off).await);
    let guard = holder.lock("quiet").lock().await.expect("free");
    let waiting = waiting_for(&waiter, "quiet");
    until("it to wait", ms(2_000), || waiter.stats().total.refused >= 3).await;
    assert_eq!((listeners(&cluster, "NUMSUB", "quiet"), listeners(&cluster, "SHARDNUMSUB", "quiet")), (0, 0));
    guard.unlock().await.expect("ours");
    let (taken, _) = within("its turn", ms(1_500), waiting).await;
    drop(taken.expect("no panic").expect("free"));
    assert_eq!((published(&cluster, "publish"), published(&cluster, "spublish")), before);
}

/// The server is near: its refusal arrives before the client has sent anything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_subscription_is_noticed_each_time() {
    let server = Server::start();
    server.set_user("u", &["on", ">p", "~*", "&*", "+@all", "-subscribe"]);
    let (server, holder) = (&server, &plain(&server).await);
    // Of each name one after the other: each waiter is a new client.
    let slow = join_all(["a", "b", "c", "d"].map(async |name| {
        let mut slow = Vec::new();
        for round in 0..10 {
            let guard = holder.lock(name).lock().await.expect("free");
            let waiter = Client::connect(&server.url_as("u", "p")).await.expect("let in");
            let waiting = waiting_for(&waiter, name);
            until("it to wait", ms(5_000), || waiter.stats().now.waiting == 1).await;
            sleep(ms(50)).await; // for the refusal
            let released = Instant::now();
            guard.unlock().await.expect("held to the end");
            waiting.await.expect("no panic").expect("granted").unlock().await.expect("held to the end");
            if released.elapsed() > ms(1_500) {
                slow.push((name, round, released.elapsed()));
            }
        }
        slow
    }));
    let slow: Vec<_> = slow.await.into_iter().flatten().collect();
    assert!(slow.is_empty(), "these waiters did not poll: {slow:?}");
}
