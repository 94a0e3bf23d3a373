//! Whose turn is next: a client that is farther away than others, one that cannot be notified, and writers beside readers.

use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Owner, PubSub};
use tokio::{task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    kinds::family::{How, Way},
    support::{
        Server, before, behind, client, ms, plain,
        proxy::{Fault, Rule, Way as Hop, Which},
        until, within,
    },
};

const SOON: Duration = ms(5_000);
const MARK: &str = "leasehold_rwlock_waits:{x}";
const JVM: &str = "6b1c7d3e-0000-4000-8000-000000000001:7";

/// Clients that use a lock all the time.
struct Busy {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Each client has so many tasks, each of which uses the lock for so long.
    fn start(clients: &[Client], tasks: u32, way: Way, work: impl Fn(u32) -> Duration) -> Busy {
        let stop = CancellationToken::new();
        let all = clients.iter().flat_map(|client| (0..tasks).map(move |n| (client.clone(), n)));
        let start = |(client, n)| {
            let (stop, work) = (stop.clone(), work(n));
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    let held = way.take(&client, "x", How::for_other()).await;
                    let held = held.expect("answered").expect("a turn");
                    sleep(work).await;
                    held.unlock().await.expect("ours to the end");
                }
            })
        };
        let tasks = all.map(start).collect();
        Busy { stop, tasks }
    }

    async fn end(self) {
        self.stop.cancel();
        for task in self.tasks {
            within("its end", ms(20_000), task).await.0.expect("no panic");
        }
    }
}

/// A client whose requests are this much longer on their way, beside two others that hand the lock from task to task.
async fn is_not_starved(far: Way, farther: u64) {
    const TURNS: u32 = 4;
    let server = Server::start();
    let busy = [plain(&server).await, plain(&server).await];
    let proxy = before(&server);
    let away = behind(&proxy, |builder| builder).await;
    proxy.rule(Rule::new(Which::Any, Fault::Delay(Hop::There, ms(farther))).times(u64::MAX));
    let others = Busy::start(&busy, 4, Way::Write, |_| ms(5));
    until("them to hand it on", SOON, || busy[0].stats().total.handed_over > 0).await;
    let started = Instant::now();
    for _ in 0..TURNS {
        let turn = within("a turn of the client far away", ms(3_000), far.take(&away, "x", How::for_other())).await;
        turn.0.expect("answered").expect("its turn").unlock().await.expect("ours");
    }
    println!("{far:?}, {farther} ms farther away: {:?} for each turn", started.elapsed() / TURNS);
    others.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_far_away_is_not_starved_by_writers() {
    is_not_starved(Way::Write, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_far_away_is_not_starved_by_writers() {
    is_not_starved(Way::Read, 20).await;
}

/// Reads that overlap are no gap, however long a writer has waited: its mark stays, and readers wait behind it.
#[tokio::test]
async fn a_writer_that_waits_longer_than_a_lease_is_not_starved_by_readers() {
    const LEASE: Duration = ms(1_500);
    let server = Server::start();
    let short = |builder: Builder| builder.watchdog(LEASE);
    let (one, two) = (client(&server, short).await, client(&server, short).await);
    let reading = one.rw_lock("x").read().await.expect("free");
    let writing = tokio::spawn(async move { Way::Write.lock(&two, "x").await });
    until("its mark", SOON, || server.exists(MARK)).await;
    sleep(LEASE + ms(3_500)).await; // the mark of the last attempt of its first lease would be over
    let refused = one.rw_lock("x").owner(&Owner::new()).try_read().await.expect("answered");
    assert!(refused.is_none(), "it is the writer's turn");
    reading.unlock().await.expect("ours");
    within("its turn", SOON, writing).await.0.expect("no panic").unlock().await.expect("ours");
}

/// The writer asks while a reader has the next turn. That reader acquires the lock without a message and removes its mark, and readers
/// follow each other without a gap. So the writer must ask again soon, and leave a mark of its own.
#[tokio::test]
async fn a_writer_that_lets_a_marked_reader_go_first_is_not_starved_by_those_behind_it() {
    const READER: &str = "6b1c7d3e-0000-8000-8000-000000000001:7";
    for is_free in [true, false] {
        let server = Server::start();
        let (one, two) = (plain(&server).await, plain(&server).await);
        let _: String = server.ask(&["SET", MARK, READER, "PX", "60000"]);
        let other = if is_free { None } else { Some(one.rw_lock("x").read().await.expect("beside the marked reader")) };
        let writing = tokio::spawn({
            let two = two.clone();
            async move { Way::Write.lock(&two, "x").await }
        });
        until("it to be refused, also as a subscriber", SOON, || two.stats().total.refused >= 2).await;
        let reading = one.rw_lock("x").owner(&Owner::new()).read().await.expect("beside the marked reader");
        let _: u32 = server.ask(&["DEL", MARK]); // as its acquisition does
        let is_next = || server.ask::<Option<String>>(&["GET", MARK]).is_some_and(|id| id.ends_with(":write"));
        until("the mark of the writer", ms(500), is_next).await;
        drop((reading, other));
        within("its turn", SOON, writing).await.0.expect("no panic").unlock().await.expect("ours");
    }
}

/// A JVM that reads does not know the mark, which would keep away only readers of ours.
#[tokio::test]
async fn beside_a_jvm_a_waiting_writer_keeps_readers_away_for_a_lease_only() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(1_500))).await;
    let _: u32 = server.ask(&["HSET", "x", "mode", "read", JVM, "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "x", "60000"]);
    let _: String = server.ask(&["SET", &format!("{{x}}:{JVM}:rwlock_timeout:1"), "1", "PX", "60000"]);
    let lock = client.rw_lock("x").owner(&Owner::new());
    let writing = tokio::spawn(async move { lock.write().await });
    until("its mark", SOON, || server.exists(MARK)).await;
    assert!(client.rw_lock("x").try_read().await.expect("answered").is_none(), "it is the writer's turn");
    let reading = within("a read beside the JVM", ms(7_000), client.rw_lock("x").read()).await.0.expect("shared");
    assert!(!writing.is_finished() && !server.exists(MARK));
    writing.abort();
    drop(reading);
}

/// A waiter that was refused and has gone does not keep the others away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_goes_with_its_waiter() {
    for way in [Way::Write, Way::Read] {
        let server = Server::start();
        let (one, two) = (plain(&server).await, plain(&server).await);
        let others = Busy::start(std::slice::from_ref(&one), 2, Way::Write, |_| ms(20));
        let stop = CancellationToken::new();
        let waiting = tokio::spawn({
            let (two, stop) = (two.clone(), stop.clone());
            async move {
                while !stop.is_cancelled() {
                    drop(way.take(&two, "x", How::for_other().patience(ms(150))).await);
                }
            }
        });
        let _ = tokio::time::timeout(ms(600), async {
            while !server.exists(MARK) {
                sleep(ms(1)).await
            }
        })
        .await;
        stop.cancel();
        within("its end", SOON, waiting).await.0.expect("no panic");
        until("nothing to be left", SOON, || two.stats().now.releasing == 0).await;
        let mark: Option<String> = server.ask(&["GET", MARK]);
        let is_theirs = |mark: &str| mark.starts_with(&two.id().to_string());
        assert!(!mark.as_deref().is_some_and(is_theirs), "{way:?}: {mark:?}");
        others.end().await;
    }
}

/// Nobody is notified, so a row of turns in one process must leave the lock free for long enough that others find it so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_channels_a_row_leaves_the_lock_free_for_others() {
    let server = Server::start();
    let off = |builder: Builder| builder.pubsub(PubSub::Off);
    let (hot, other) = (client(&server, off).await, client(&server, off).await);
    let busy = Busy::start(&[hot], 8, Way::Plain, |_| ms(1));
    until("a row", SOON, || server.exists("x")).await;
    let (mut raw, started, mut looks, mut free) = (server.raw(), Instant::now(), 0_u32, 0_u32);
    while started.elapsed() < ms(1_500) {
        looks += 1;
        free += u32::from(!redis::cmd("EXISTS").arg("x").query::<bool>(&mut raw).expect("answered"));
        sleep(ms(1)).await;
    }
    println!("free at {free} of {looks} looks");
    assert!(free * 20 > looks, "free at {free} of {looks} looks");
    let (held, took) = within("its turn", ms(9_000), Way::Plain.lock(&other, "x")).await;
    println!("a turn after {took:?}");
    held.unlock().await.expect("ours");
    busy.end().await;
}

/// A waiter that was refused several times, so that it has left a mark.
async fn is_marked(server: &Server) {
    until("its mark", SOON, || {
        let _: u32 = server.ask(&["PUBLISH", "redisson_rwlock:{x}", "0"]);
        server.exists(MARK)
    })
    .await;
}

/// Its mark would keep writers out of a lock that is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_shares_leaves_no_mark() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    let lock = |client: &Client| client.rw_lock("x").owner(&Owner::new());
    let writing = lock(&two).write().await.expect("free");
    let waiting = tokio::spawn({
        let lock = lock(&one);
        async move { lock.read().await.expect("in the end") }
    });
    until("it to wait", SOON, || one.stats().total.refused >= 1).await;
    is_marked(&server).await;
    let _: u32 = server.ask(&["DEL", "x"]); // its lease ends
    let first = lock(&one).try_read().await.expect("answered").expect("free for readers");
    let _: u32 = server.ask(&["PUBLISH", "redisson_rwlock:{x}", "0"]);
    let second = within("its turn", SOON, waiting).await.0.expect("no panic");
    second.unlock().await.expect("ours");
    first.unlock().await.expect("ours");
    drop(writing);
    assert!(!server.exists(MARK));
    drop(lock(&two).try_write().await.expect("answered").expect("free"));
}

/// It is handed on to a third, which cannot remove the mark of the second. Behind a writer of their own client they need none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_to_which_the_lock_is_handed_over_leaves_no_mark() {
    let server = Server::start();
    let one = plain(&server).await;
    let lock = || one.rw_lock("x").owner(&Owner::new());
    let held = lock().write().await.expect("free");
    let waits = || {
        let lock = lock();
        tokio::spawn(async move { lock.write().await.expect("in the end") })
    };
    let second = waits();
    until("it to wait", SOON, || one.stats().now.waiting == 1).await;
    let third = waits();
    until("both to wait", SOON, || one.stats().now.waiting == 2).await;
    held.unlock().await.expect("ours");
    for waiting in [second, third] {
        let next = within("its turn", SOON, waiting).await.0.expect("no panic");
        assert!(!server.exists(MARK));
        next.unlock().await.expect("ours");
    }
    assert_eq!(one.stats().total.handed_over, 2);
}
