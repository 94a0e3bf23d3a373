//! A master with sentinels that dies, freezes and hands over, under locks that are held and waited for.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lost};
use tokio::time::sleep;

use crate::support::{
    Stopwatch,
    deployment::sentinels::{Passwords, Sentinels},
    ms, until, within,
};

/// Two seconds after the new master is known, and what a machine that does other things may add.
const SERVED: Duration = ms(2_000 + 4_000);
const LEASE: Duration = ms(60_000);

async fn connect(sentinels: &Sentinels) -> Client {
    Client::builder().url(sentinels.url()).watchdog(LEASE).connect().await.expect("the master answers")
}

/// What happens when the master is no more: a holder keeps its lock, which the replicas have; a waiter gets another that is
/// given back through the new master, soon after that is known.
async fn without_master(harm: impl AsyncFnOnce(&mut Sentinels), heal: impl FnOnce(&mut Sentinels)) {
    let mut sentinels = Sentinels::start().await;
    let (holder, other) = (connect(&sentinels).await, connect(&sentinels).await);
    let kept = holder.lock("kept").lock().await.expect("free");
    let given = holder.lock("given").lock().await.expect("free");
    let lock = other.lock("given");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(5_000), || other.stats().total.refused >= 2).await;
    replicated(&sentinels, &["kept", "given"]).await;
    let (was, epoch) = (sentinels.master_at(), sentinels.epoch());
    harm(&mut sentinels).await;
    sentinels.heir_of(was).await;
    let known = Instant::now();
    // A release that the old master ran last is lost with it: replication is asynchronous.
    let has_changed = |client: &Client| client.stats().total.reconnects >= 1;
    until("both to have a new connection", SERVED, || has_changed(&holder) && has_changed(&other)).await;
    let released = within("giving back", SERVED, given.unlock()).await.0;
    released.unwrap_or_else(|error| panic!("{error:?} after {} failovers", sentinels.epoch() - epoch));
    let (taken, _) = within("the waiter to be served", SERVED, waiting).await;
    taken.expect("no panic").expect("granted").unlock().await.expect("ours");
    println!("served {:?} after the new master was known", known.elapsed());
    kept.check().await.expect("the replica had it");
    assert!(sentinels.master().exists("kept"));
    heal(&mut sentinels);
    sentinels.settled().await;
    assert!(!kept.is_lost());
    kept.unlock().await.expect("ours to the end");
    assert!(!sentinels.master().exists("kept"), "a request went to one that was the master once");
}

/// All replicas have those keys.
async fn replicated(sentinels: &Sentinels, names: &[&str]) {
    let all_have = || sentinels.servers().iter().all(|server| names.iter().all(|name| server.exists(name)));
    until("the replicas to have it", ms(10_000), all_have).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_killed() {
    without_master(async |all| all.server_mut(0).crash(), |all| all.server_mut(0).revive()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_frozen() {
    without_master(async |all| all.servers()[0].freeze(), |all| all.servers()[0].thaw()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sentinels_are_told_to_fail_over() {
    without_master(async |all| _ = all.fail_over().await, |_| {}).await;
}

/// A connection to the old master that was begun before anybody knew of another: that one would take it when it thaws, and
/// grants locks until it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_begun_before_the_switch_is_not_kept() {
    let sentinels = Sentinels::start().await;
    sentinels.servers()[0].freeze();
    let builder = Client::builder().url(sentinels.url()).command_timeout(LEASE);
    let client = builder.connect_lazy().expect("a good URL");
    let lock = client.lock("x");
    let asking = tokio::spawn(async move { lock.lock().await });
    sentinels.heir_of(0).await;
    let (asked, _) = within("it to be granted elsewhere", SERVED, asking).await;
    sentinels.servers()[0].thaw();
    let guard = asked.expect("no panic").expect("free");
    assert!(sentinels.master().exists("x"));
    guard.unlock().await.expect("ours to the end");
}

/// The sentinel that leads a failover names the old master beside the new epoch, in one of its answers, until the other
/// replicas follow: here one of them cannot, and the old master thaws meanwhile. Of two of one epoch the greater address would
/// win, so that is the old master's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sentinel_that_leads_a_failover_is_understood() {
    let sentinels = Sentinels::start().await;
    let servers = sentinels.servers();
    let was = (0..3).max_by_key(|at| servers[*at].port()).expect("three");
    make_master(&sentinels, was).await;
    let (heir, other) = ((was + 1) % 3, (was + 2) % 3);
    prefer(&sentinels, heir).await;
    let _: String = servers[other].ask(&["CONFIG", "SET", "masterauth", "that no server has"]);
    servers[was].freeze();
    assert_eq!(sentinels.heir_of(was).await, heir);
    servers[was].thaw();
    for _ in 0..5 {
        let client = connect(&sentinels).await;
        let guard = client.lock("x").lock().await.expect("free");
        assert!(servers[heir].exists("x"), "a new client went to the old master");
        guard.unlock().await.expect("ours to the end");
    }
}

async fn make_master(sentinels: &Sentinels, at: usize) {
    prefer(sentinels, at).await;
    if sentinels.master_at() != at {
        assert_eq!(sentinels.fail_over().await, at);
        sentinels.settled().await;
    }
}

/// No other takes over, once the sentinels have heard of it.
async fn prefer(sentinels: &Sentinels, heir: usize) {
    for (at, server) in sentinels.servers().iter().enumerate() {
        let priority = if at == heir { "100" } else { "0" };
        let _: String = server.ask(&["CONFIG", "SET", "replica-priority", priority]);
    }
    sleep(ms(1_500)).await;
}

/// What the new master does not know is lost, and its holder is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_replicated_is_lost_and_told() {
    let mut sentinels = Sentinels::start().await;
    let client = Client::connect(&sentinels.url()).await.expect("the master answers"); // with time for all that comes
    let kept = client.lock("kept").lock().await.expect("free");
    replicated(&sentinels, &["kept"]).await;
    cut_off(&sentinels);
    let lost = client.lock("lost").lock().await.expect("free");
    sentinels.server_mut(0).crash();
    sentinels.servers()[1..].iter().for_each(|replica| replica.thaw());
    sentinels.heir_of(0).await;
    let (reason, _) = within("to be told", SERVED + ms(1_000), lost.lost()).await;
    assert_eq!(reason, Lost::Removed);
    kept.check().await.expect("the replica had it");
    drop(client.lock("lost").lock().await.expect_err("its owner still has the guard"));
    drop(lost);
    drop(client.lock("lost").lock().await.expect("free"));
}

/// Nothing that is written from now on gets through to the replicas, not even later.
fn cut_off(sentinels: &Sentinels) {
    sentinels.servers()[1..].iter().for_each(|replica| replica.freeze());
    let _: u32 = sentinels.master().ask(&["CLIENT", "KILL", "TYPE", "replica"]);
}

/// With a replica that must confirm, nobody gets a lock that the failover could lose.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_what_no_replica_has() {
    let sentinels = Sentinels::start().await;
    let builder = Client::builder().url(sentinels.url()).replicas(1).watchdog(LEASE).command_timeout(ms(1_000));
    let client = builder.connect().await.expect("the master answers");
    confirmed(&client).await;
    cut_off(&sentinels);
    let refused = client.lock("x").try_lock().await;
    assert!(matches!(refused, Err(Error::Replicas { wanted: 1, got: 0, .. })), "{refused:?}");
    sentinels.servers()[1..].iter().for_each(|replica| replica.thaw());
    confirmed(&client).await;
}

/// A lock is confirmed by a replica, soon: one that has just come back may need a second.
async fn confirmed(client: &Client) {
    let since = Stopwatch::start();
    loop {
        match client.lock("x").try_lock().await {
            Ok(Some(guard)) => return guard.unlock().await.expect("ours"),
            other => assert!(since.elapsed() < ms(10_000), "{other:?}"),
        }
        sleep(ms(50)).await;
    }
}

/// Sentinels and servers have users of their own, and one sentinel that is gone or frozen does not matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_have_passwords_of_their_own_and_one_may_be_gone() {
    let (servers, watchers) = (Some("of-servers".to_owned()), Some("of-sentinels".to_owned()));
    let mut sentinels = Sentinels::with(Passwords { servers, sentinels: watchers }).await;
    let without = Client::connect(&sentinels.url()).await;
    assert!(without.is_err(), "{without:?}");
    let url = format!("{}?sentinel_password=of-sentinels", sentinels.url());
    let first = Client::connect(&url).await.expect("let in by both");
    first.lock("x").lock().await.expect("free").unlock().await.expect("ours");
    sentinels.sentinels()[1].freeze();
    let client = Client::connect(&url).await.expect("two of three sentinels are enough");
    client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
    sentinels.sentinels()[1].thaw();
    sentinels.sentinel_mut(0).crash();
    let client = Client::connect(&url).await.expect("two of three sentinels are enough");
    client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
}
