//! A cluster whose masters die, freeze and hand over, and whose slots move, under locks that are held and waited for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Guard};
use tokio::{task::JoinSet, time::sleep};

use crate::support::{Server, Stopwatch, deployment::cluster::Cluster, ms, server::version, until, within};

/// How long a server may be silent before the others elect another (`cluster-node-timeout` of the tests' clusters), and what
/// may be added to it until we know.
const NODE_TIMEOUT: Duration = ms(1_000);
const TO_KNOW: Duration = ms(2_000);
/// What a machine that does other things, too, may add to anything.
const BUSY: Duration = ms(4_000);
const LOCKS: usize = 200;
const LEASE: Duration = ms(9_000);

async fn connect(cluster: &Cluster) -> Client {
    Client::builder().url(cluster.url()).watchdog(LEASE).connect().await.expect("the cluster answers")
}

/// Names over all slots, each held.
async fn holding(client: &Client) -> Vec<Guard> {
    let mut taking = JoinSet::new();
    for n in 0..LOCKS {
        let lock = client.mutex(&format!("lock-{n}"));
        taking.spawn(async move { lock.lock().await.expect("free") });
    }
    taking.join_all().await
}

/// The guards whose locks this master has, and the others.
fn with_master(cluster: &Cluster, at: usize, guards: Vec<Guard>) -> (Vec<Guard>, Vec<Guard>) {
    guards.into_iter().partition(|guard| cluster.owner_of(cluster.slot_of(guard.name())) == at)
}

/// Looks at locks whose server is well for as long as this lives: the least that any had left.
struct Watched {
    least: Arc<AtomicU64>,
    guards: tokio::task::JoinHandle<Vec<Guard>>,
    done: Arc<AtomicBool>,
    clock: Stopwatch,
}

impl Watched {
    fn start(guards: Vec<Guard>) -> Watched {
        let (least, done) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicBool::new(false)));
        let (seen, ended) = (Arc::clone(&least), Arc::clone(&done));
        let guards = tokio::spawn(async move {
            while !ended.load(Ordering::Relaxed) {
                let left = guards.iter().map(|guard| guard.remaining().as_millis()).min().unwrap_or(0);
                seen.fetch_min(u64::try_from(left).expect("a lease"), Ordering::Relaxed);
                sleep(ms(10)).await;
            }
            guards
        });
        Watched { least, guards, done, clock: Stopwatch::start() }
    }

    /// The guards, if none was ever renewed late: by the second third of its lease, and a little. The time in which the machine stood still
    /// does not count.
    async fn end(self) -> Vec<Guard> {
        self.done.store(true, Ordering::Relaxed);
        let least = self.least.load(Ordering::Relaxed);
        println!("the least that was left of a lease of {LEASE:?} on the other servers: {least} ms");
        let stalled = self.clock.stalled();
        assert!(
            ms(least) + stalled > ms(4_500),
            "a renewal on a server that is well came late: {least} ms of {LEASE:?} were left; the machine stood still for {stalled:?}"
        );
        self.guards.await.expect("it only looks")
    }
}

/// Waits until every lock is held again: those that the failover lost are taken anew.
async fn all_held_again(client: &Client, guards: Vec<Guard>) -> (Vec<Guard>, usize) {
    let mut taking = JoinSet::new();
    for guard in guards {
        let client = client.clone();
        taking.spawn(async move {
            match guard.check().await {
                Ok(()) => (guard, false),
                Err(Error::Lost { .. }) => {
                    let lock = client.mutex(guard.name());
                    drop(guard);
                    (lock.lock().await.expect("free again"), true)
                }
                Err(error) => panic!("{}: {error:?}", guard.name()),
            }
        });
    }
    let all = taking.join_all().await;
    let lost = all.iter().filter(|(_, lost)| *lost).count();
    (all.into_iter().map(|(guard, _)| guard).collect(), lost)
}

async fn give_back(guards: Vec<Guard>) {
    let mut giving = JoinSet::new();
    guards.into_iter().for_each(|guard| _ = giving.spawn(guard.unlock()));
    for given in giving.join_all().await {
        given.expect("ours to the end");
    }
}

/// What becomes of two hundred locks when one master is no more: those on the others do not notice.
async fn without_master(harm: impl FnOnce(&mut Cluster), heal: impl FnOnce(&mut Cluster)) {
    let mut cluster = Cluster::start().await;
    let client = connect(&cluster).await;
    let (theirs, others) = with_master(&cluster, 0, holding(&client).await);
    assert!(theirs.len() > LOCKS / 6 && others.len() > LOCKS / 3, "the names are badly chosen");
    let watched = Watched::start(others);
    let since = Instant::now();
    harm(&mut cluster);
    let again = all_held_again(&client, theirs);
    let ((theirs, lost), took) = within("the locks to be certain again", NODE_TIMEOUT + TO_KNOW + BUSY, again).await;
    println!("{} locks without a server for {took:?}; {lost} lost ({:?} since)", theirs.len(), since.elapsed());
    cluster.heir_of(0).await;
    let others = watched.end().await;
    heal(&mut cluster);
    cluster.settled().await;
    give_back(theirs).await;
    give_back(others).await;
    client.close().await.expect("all given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_is_killed() {
    without_master(|cluster| cluster.node_mut(0).crash(), |cluster| cluster.node_mut(0).revive()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_is_frozen() {
    without_master(|cluster| cluster.nodes()[0].freeze(), |cluster| cluster.nodes()[0].thaw()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_hand_over_when_told() {
    let cluster = Cluster::start().await;
    let client = connect(&cluster).await;
    let watched = Watched::start(holding(&client).await);
    for master in [0, 1, 2] {
        cluster.fail_over(master).await;
    }
    let guards = watched.end().await;
    for guard in &guards {
        guard.check().await.expect("handed over with everything");
    }
    give_back(guards).await;
}

/// Tasks of two clients take turns at locks whose slots move to and fro.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_under_load() {
    const NAMES: usize = 12;
    const MOVES: usize = 2 * (NAMES + 1);
    let cluster = Cluster::start().await;
    let clients = [connect(&cluster).await, connect(&cluster).await];
    let kept = clients[0].lock("kept").lock().await.expect("free");
    let inside: Arc<Vec<AtomicBool>> = Arc::new((0..NAMES).map(|_| AtomicBool::new(false)).collect());
    let (mut tasks, stop) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    for task in 0..NAMES * 4 {
        let lock = clients[task % 2].mutex(&format!("moved-{}", task % NAMES));
        let (inside, stop) = (Arc::clone(&inside), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut turns = 0;
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.lock().await.expect("granted");
                assert!(!inside[task % NAMES].swap(true, Ordering::SeqCst), "two at a time");
                tokio::task::yield_now().await;
                inside[task % NAMES].store(false, Ordering::SeqCst);
                guard.unlock().await.expect("ours to the end");
                turns += 1;
            }
            turns
        });
    }
    to_and_fro(&cluster, NAMES, MOVES).await;
    stop.store(true, Ordering::Relaxed);
    let turns: Vec<u32> = within("the last turns", ms(20_000), tasks.join_all()).await.0;
    println!(
        "{} turns in {MOVES} moves of slots, the fewest of a task {:?}",
        turns.iter().sum::<u32>(),
        turns.iter().min()
    );
    assert!(turns.iter().all(|turns| *turns > 0));
    let announced: u64 = cluster.nodes().iter().map(|node| node.calls("asking")).sum();
    assert!(announced > 0, "no request followed its slot half way");
    kept.unlock().await.expect("its slot moved, too, and it was never lost");
}

/// Moves the slots of those names from master to master, so often in all, each in three steps with some time between them.
async fn to_and_fro(cluster: &Cluster, names: usize, moves: usize) {
    let slots: Vec<_> = (0..names).map(|n| format!("moved-{n}")).chain(["kept".to_owned()]).collect();
    for slot in slots.iter().map(|name| cluster.slot_of(name)).cycle().take(moves) {
        cluster.heard_of_epochs().await;
        let migration = cluster.begin_migration(slot, (cluster.owner_of(slot) + 1) % 3);
        sleep(ms(20)).await;
        cluster.move_keys(&migration);
        sleep(ms(20)).await;
        cluster.move_keys(&migration);
        cluster.end_migration(migration);
    }
}

/// Whether somebody listens to that lock where it is; before 7.0 that may be anywhere.
fn is_heard(cluster: &Cluster, name: &str) -> bool {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let on = |server: &Server, kind: &str| server.ask::<(String, usize)>(&["PUBSUB", kind, &channel]).1 > 0;
    if version() < (7, 0) {
        return cluster.nodes().iter().any(|node| on(node, "NUMSUB"));
    }
    on(cluster.master_of(name), "SHARDNUMSUB")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_woken_after_the_slot_has_moved() {
    let cluster = Cluster::start().await;
    let (holder, waiter) = (connect(&cluster).await, connect(&cluster).await);
    for name in ["stays", "moves"] {
        let guard = holder.lock(name).lock().await.expect("free");
        let lock = waiter.lock(name);
        let waiting = tokio::spawn(async move { lock.lock().await });
        let slot = cluster.slot_of(name);
        until("it to listen", ms(5_000), || is_heard(&cluster, name)).await;
        if name == "moves" {
            cluster.migrate(slot, (cluster.owner_of(slot) + 1) % 3);
            until("it to listen where the slot is now", ms(8_000), || is_heard(&cluster, name)).await;
        }
        guard.unlock().await.expect("ours");
        let (taken, took) = within("to be woken", ms(2_000), waiting).await;
        taken.expect("no panic").expect("granted").unlock().await.expect("ours");
        assert!(took < ms(500), "{name}: {took:?}");
    }
}

/// With that setting the server lets a script in, because it takes it for a reader, and refuses what it writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_down_but_may_be_read_is_waited_for() {
    let mut cluster =
        Cluster::with(&["--cluster-require-full-coverage", "yes", "--cluster-allow-reads-when-down", "yes"]).await;
    let client = connect(&cluster).await;
    let name = (0..).map(|n| format!("x-{n}")).find(|name| cluster.owner_of(cluster.slot_of(name)) == 1);
    let lock = client.lock(&name.expect("endless"));
    let heir = cluster.partner_of(0);
    [0, heir].into_iter().for_each(|at| cluster.node_mut(at).crash());
    let is_down = || cluster.nodes()[1].ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:fail");
    until("the cluster to be down", NODE_TIMEOUT + BUSY, is_down).await;
    let before = cluster.nodes()[1].calls("evalsha");
    let asking = tokio::spawn(async move { lock.lock().await });
    until("it to be refused", BUSY, || cluster.nodes()[1].calls("evalsha") > before + 1 || asking.is_finished()).await;
    assert!(!asking.is_finished(), "{:?}", asking.await);
    [0, heir].into_iter().for_each(|at| cluster.node_mut(at).revive());
    let (asked, _) = within("its turn", 2 * NODE_TIMEOUT + BUSY, asking).await;
    asked.expect("no panic").expect("free").unlock().await.expect("ours");
}
