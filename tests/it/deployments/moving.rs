//! What is different while a slot of a cluster moves from one master to another.

use std::{task::Poll, time::Duration};

use leasehold::{Client, Error, FencedGuard, Guard, Owner, RwState};

use crate::support::{
    deployment::cluster::{Cluster, Migration},
    ms, poll_once,
    server::version,
    until, within,
};

/// What a busy machine may need for a few requests.
const SOON: Duration = ms(10_000);

async fn connect(cluster: &Cluster) -> Client {
    Client::connect(&cluster.url()).await.expect("the cluster answers")
}

/// As a user who may call all commands but HDEL.
async fn connect_without_hdel(cluster: &Cluster) -> Client {
    cluster.nodes().iter().for_each(|node| node.set_user("u", &["on", ">p", "~*", "&*", "+@all", "-hdel"]));
    Client::connect(&cluster.url().replace("://", "://u:p@")).await.expect("let in")
}

/// The slot of that name is on its way to another master.
fn begin(cluster: &Cluster, name: &str) -> Migration {
    let slot = cluster.slot_of(name);
    cluster.begin_migration(slot, (cluster.owner_of(slot) + 1) % 3)
}

fn end(cluster: &Cluster, migration: Migration) {
    cluster.move_keys(&migration);
    cluster.end_migration(migration);
}

/// A server ends subscriptions of a slot that leaves it. When the slot has come back before the map was read again, the map
/// shows nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_the_server_ended_is_made_again() {
    if version() < (7, 0) {
        return; // channels belong to no slot
    }
    let cluster = Cluster::of_masters().await;
    let (holder, waiter) = (connect(&cluster).await, connect(&cluster).await);
    let guard = holder.lock("x").lock().await.expect("free");
    let lock = waiter.lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    let slot = cluster.slot_of("x");
    let home = cluster.owner_of(slot);
    let heard =
        || cluster.nodes()[home].ask::<(String, usize)>(&["PUBSUB", "SHARDNUMSUB", "redisson_lock__channel:{x}"]).1;
    until("it to listen", SOON, || heard() == 1).await;
    cluster.migrate(slot, (home + 1) % 3);
    cluster.migrate(slot, home);
    until("it to listen again", ms(4_500), || heard() == 1).await;
    guard.unlock().await.expect("ours");
    let (taken, took) = within("to be woken", SOON, waiting).await;
    taken.expect("no panic").expect("granted").unlock().await.expect("ours");
    assert!(took < ms(1_000), "by message, not after {took:?}");
}

/// A request that follows its slot half-way is confirmed by replicas like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_confirmed_by_a_replica() {
    let cluster = Cluster::start().await;
    let client = Client::builder().url(cluster.url()).replicas(1).connect().await.expect("the cluster answers");
    let migration = begin(&cluster, "x");
    let guard = client.lock("x").try_lock().await.expect("a replica has it").expect("free");
    assert!(cluster.nodes()[migration.to].calls("wait") > 0);
    end(&cluster, migration);
    guard.unlock().await.expect("ours to the end");
}

/// The old master has the lock, and must not lose it when its field changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_released_early_stays_held() {
    stays_held(async |client| client.lock("x").min_hold(ms(20_000)).lock().await, Guard::unlock).await;
    stays_held(async |client| client.fenced_lock("x").min_hold(ms(20_000)).lock().await, FencedGuard::unlock).await;
}

async fn stays_held<G>(
    acquire: impl AsyncFnOnce(&Client) -> leasehold::Result<G>,
    unlock: impl AsyncFnOnce(G) -> leasehold::Result<()>,
) {
    let cluster = Cluster::of_masters().await;
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    let guard = acquire(&one).await.expect("free");
    let migration = begin(&cluster, "x");
    unlock(guard).await.expect("ours to the end");
    assert!(two.lock("x").try_lock().await.expect("answered").is_none(), "min_hold is not over");
    end(&cluster, migration);
    assert!(two.lock("x").try_lock().await.expect("answered").is_none(), "nor when the slot has moved");
}

/// Without permission for HDEL there is no way to exchange the fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_may_not_rest_stays_held() {
    let cluster = Cluster::of_masters().await;
    let (one, two) = (connect_without_hdel(&cluster).await, connect(&cluster).await);
    let guard = one.lock("x").min_hold(ms(20_000)).lock().await.expect("free");
    let migration = begin(&cluster, "x");
    let refused = guard.unlock().await.expect_err("not permitted");
    assert!(matches!(refused, Error::Denied { .. }), "{refused:?}");
    assert!(two.lock("x").try_lock().await.expect("answered").is_none(), "min_hold is not over");
    end(&cluster, migration);
    assert!(two.lock("x").try_lock().await.expect("answered").is_none(), "nor when the slot has moved");
}

/// Nor can it be handed over then. It is released for all waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_may_not_be_handed_over_is_released() {
    let cluster = Cluster::of_masters().await;
    let client = connect_without_hdel(&cluster).await;
    let lock = client.lock("x").non_reentrant().lease(ms(60_000)); // with a lease of its own it does not pass on in memory
    let guard = lock.lock().await.expect("free");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", SOON, || client.stats().now.waiting == 1).await;
    let migration = begin(&cluster, "x");
    guard.unlock().await.expect("ours to the end");
    let next = within("its turn", SOON, waiting).await.0.expect("no panic").expect("granted");
    end(&cluster, migration);
    next.unlock().await.expect("ours to the end");
}

/// A reader that rests has a key of its own, which the old master does not create. Until the slot has moved, its hold keeps its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_is_released_early_waits_for_the_slot() {
    let cluster = Cluster::of_masters().await;
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    let guard = one.rw_lock("x").min_hold(ms(60_000)).read().await.expect("free");
    let migration = begin(&cluster, "x");
    let mut leaving = tokio::spawn(guard.unlock());
    let early = tokio::time::timeout(ms(300), &mut leaving).await; // has it asked by then
    assert!(early.is_err(), "it waits until the slot has moved: {early:?}");
    end(&cluster, migration);
    within("the release", SOON, leaving).await.0.expect("no panic").expect("ours to the end");
    assert!(two.rw_lock("x").try_write().await.expect("answered").is_none(), "min_hold is not over");
}

/// Then it needs no other key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_min_hold_ends_meanwhile_is_released() {
    let cluster = Cluster::of_masters().await;
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    let guard = one.rw_lock("x").min_hold(ms(1_000)).read().await.expect("free");
    let migration = begin(&cluster, "x");
    within("the release", SOON, guard.unlock()).await.0.expect("ours to the end");
    end(&cluster, migration);
    assert!(two.rw_lock("x").try_write().await.expect("answered").is_some(), "min_hold is over");
}

fn lives(name: &str, id: &str) -> String {
    format!("{{{name}}}:{id}:rwlock_timeout:1")
}

/// A reader that goes while the new master has its keys, and not yet the other reader's, must not take that one for dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_leaves_the_others() {
    let cluster = Cluster::of_masters().await;
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    let first = one.rw_lock("x").read().await.expect("free");
    let second = two.rw_lock("x").read().await.expect("shared");
    let migration = begin(&cluster, "x");
    cluster.move_some(&migration, &["x", &lives("x", first.id())]);
    let mut leaving = tokio::spawn(first.unlock());
    let early = tokio::time::timeout(ms(300), &mut leaving).await; // has it asked by then
    assert!(early.is_err(), "it waits until the slot has moved: {early:?}");
    end(&cluster, migration);
    within("the release", SOON, leaving).await.0.expect("no panic").expect("ours to the end");
    second.check().await.expect("it reads on");
    assert!(one.rw_lock("x").owner(&Owner::new()).try_write().await.expect("answered").is_none(), "somebody reads");
    second.unlock().await.expect("ours to the end");
}

/// The keys of its readers are found out by the script, so they may be elsewhere already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_at_readers_and_forcing_them_open_wait_for_the_slot() {
    let cluster = Cluster::of_masters().await;
    let client = connect(&cluster).await;
    let held = [client.rw_lock("x").read().await.expect("free"), client.rw_lock("y").read().await.expect("free")];
    let migrations = ["x", "y"].map(|name| begin(&cluster, name));
    for (guard, migration) in held.iter().zip(&migrations) {
        cluster.move_some(migration, &[&lives(guard.name(), guard.id())]);
    }
    let (looked_at, forced) = (client.rw_lock("x"), client.rw_lock("y"));
    let mut looking = tokio::spawn(async move { looked_at.inspect().await });
    let mut forcing = tokio::spawn(async move { forced.force_unlock().await });
    let early = tokio::time::timeout(ms(300), &mut looking).await;
    assert!(early.is_err(), "{early:?}");
    let early = tokio::time::timeout(ms(1), &mut forcing).await;
    assert!(early.is_err(), "{early:?}");
    migrations.into_iter().for_each(|migration| end(&cluster, migration));
    let state = within("a look", SOON, looking).await.0.expect("no panic").expect("answered");
    assert!(matches!(state, RwState::Read(_)), "{state:?}");
    assert!(within("the force", SOON, forcing).await.0.expect("no panic").expect("answered"));
    assert!(!cluster.master_of("y").exists("y"));
}

/// Requests that follow their slot half-way go one after the other, but none waits for a caller that is not polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_is_not_polled_does_not_delay_the_others() {
    let cluster = Cluster::of_masters().await;
    let client = connect(&cluster).await;
    let kept = client.mutex("{x}").lock().await.expect("free");
    let migration = begin(&cluster, "{x}");
    cluster.move_keys(&migration);
    let lock = client.mutex("{x}:other");
    let asked = || cluster.nodes()[migration.to].calls("asking");
    // A call may end between two looks: then another one is made, until one is seen on its way.
    #[expect(clippy::async_yields_async, reason = "the call is kept, and not polled")]
    let on_its_way = async {
        loop {
            let (before, mut call) = (asked(), Box::pin(lock.lock()));
            loop {
                if let Poll::Ready(taken) = poll_once(call.as_mut()) {
                    break taken.expect("free").unlock().await.expect("ours");
                }
                if asked() > before {
                    return call;
                }
                tokio::task::yield_now().await;
            }
        }
    };
    let left_alone = within("a call to follow the slot", SOON, on_its_way).await.0;
    within("the others to be asked for", SOON, kept.check()).await.0.expect("it has moved");
    drop(left_alone);
    end(&cluster, migration);
    kept.unlock().await.expect("ours to the end");
}

/// Requests that follow their slot half-way go one after the other. Those that wait for a replica that never replies do not keep the
/// renewals from their turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_renewed_while_many_wait_for_replicas() {
    const LEASE: Duration = ms(4_000);
    let cluster = Cluster::start().await;
    let client = Client::builder().url(cluster.url()).watchdog(LEASE).command_timeout(ms(1_200)).replicas(1);
    let client = client.connect().await.expect("the cluster answers");
    let kept = client.mutex("{x}").lock().await.expect("a replica has it");
    let migration = begin(&cluster, "{x}");
    cluster.move_keys(&migration);
    let replica = &cluster.nodes()[cluster.partner_of(migration.to)];
    replica.freeze();
    let attempts = (0..60).map(|number| {
        let lock = client.mutex(&format!("{{x}}:{number}"));
        tokio::spawn(async move { lock.try_lock_for(ms(6_000)).await })
    });
    let attempts: Vec<_> = attempts.collect();
    for attempt in attempts {
        assert!(attempt.await.expect("no panic").is_err(), "no replica has confirmed it");
    }
    assert!(!kept.is_lost(), "it was not renewed");
    replica.thaw();
    end(&cluster, migration);
    kept.unlock().await.expect("ours to the end");
}
