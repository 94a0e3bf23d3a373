//! Thousands at once: who waits for one name with a server that is gone, or with a patience that ends together.

use std::{
    pin::Pin,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Guard, Owner};
use serial_test::serial;
use tokio::time::sleep;

use crate::support::{
    Server, Stopwatch, before, behind, client, ms, plain,
    proxy::{Fault, Rule, Way},
    script,
    stall::{Slack, unless_stalled},
    until, within,
};

/// Those who ask a server that is gone: so many that their requests do not go out at once.
const CROWD: usize = 8_000;
/// Those who wait for one lock.
const LINE: usize = 5_000;
const COMMAND: Duration = ms(200);
const OUTAGE: Duration = ms(2_000);
/// What thousands of tasks may need on a busy machine.
const LATE: Duration = ms(2_000);
/// The same for thousands of locks, which retry alone. The last was told 1.0 s late beside a build, 2.8 s late beside four busy processes.
const LATE_ALONE: Duration = ms(4_000);
/// A machine that stood still for a quarter of that is too busy for so many tasks.
const MANY_ATTEMPTS: Slack = Slack { left: ms(1_000), within: ms(6_000) };
/// The last attempts of so many may take a second. A machine that stood still for a quarter of that is too busy for them, and then the
/// client rightly says that the server did not reply.
const LAST_ATTEMPTS: Slack = Slack { left: ms(250), within: ms(1_000) };

/// All who ask, over some time, are told in theirs that nobody answers.
async fn all_are_told_in_time(gone: impl FnOnce(&mut Server), late: Duration, name: impl Fn(usize) -> String) {
    let mut server = Server::start();
    let client = client(&server, |builder| builder.command_timeout(COMMAND).outage_timeout(OUTAGE)).await;
    client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
    gone(&mut server);
    let mut calls = Vec::new();
    for n in 0..CROWD {
        let lock = client.lock(&name(n));
        calls.push(tokio::spawn(async move {
            let started = Stopwatch::start();
            (lock.lock().await, started.elapsed())
        }));
        if n % 25 == 0 {
            sleep(ms(1)).await;
        }
    }
    for call in calls {
        let (ended, took) = within("a call to end", ms(60_000), call).await.0.expect("no panic");
        assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
        assert!(took <= OUTAGE + late, "{took} with an outage timeout of {OUTAGE:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
#[ignore = "nightly"]
async fn a_frozen_server_is_given_up_in_time_by_all_who_want_one_lock() {
    all_are_told_in_time(|server| server.freeze(), LATE, |_| "x".to_owned()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
async fn a_frozen_server_is_given_up_in_time_by_all_who_want_locks_of_their_own() {
    unless_stalled(MANY_ATTEMPTS, async || {
        all_are_told_in_time(|server| server.freeze(), LATE_ALONE, |n| format!("lock-{n}")).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
async fn a_crashed_server_is_given_up_in_time_by_all_who_want_locks_of_their_own() {
    unless_stalled(MANY_ATTEMPTS, async || {
        all_are_told_in_time(Server::crash, LATE_ALONE, |n| format!("lock-{n}")).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
#[ignore = "nightly"]
async fn who_runs_out_of_patience_behind_others_was_refused_and_not_ignored() {
    unless_stalled(LAST_ATTEMPTS, refused_and_not_ignored).await;
}

async fn refused_and_not_ignored() {
    let server = Server::start();
    let (holder, client) = (plain(&server).await, plain(&server).await);
    let held = holder.lock("x").lock().await.expect("free");
    let patience = ms(1_500);
    let calls: Vec<_> = (0..LINE)
        .map(|_| {
            let lock = client.lock("x");
            tokio::spawn(async move {
                let started = Stopwatch::start();
                (lock.try_lock_for(patience).await, started.elapsed())
            })
        })
        .collect();
    let mut untrue = Vec::new();
    for call in calls {
        let (ended, took) = within("a call to end", ms(30_000), call).await.0.expect("no panic");
        untrue.extend(ended.map(|taken| assert!(taken.is_none(), "it is held")).err());
        assert!(took <= patience + LATE, "{took} with a patience of {patience:?}");
    }
    assert!(untrue.is_empty(), "the server is well, and {} were told: {}", untrue.len(), untrue[0]);
    held.unlock().await.expect("ours");
}

type Waiting<'a> = Pin<Box<dyn Future<Output = leasehold::Result<Guard>> + 'a>>;

/// How long it takes until so many have left the line, in any order.
async fn leaving(client: &Client, count: usize) -> Duration {
    until("nothing to be on its way back", ms(10_000), || client.stats().now.releasing == 0).await;
    let locks: Vec<_> = (0..count).map(|_| client.lock("x").owner(&Owner::new())).collect();
    let mut context = Context::from_waker(Waker::noop());
    let mut waiting: Vec<Waiting<'_>> = Vec::with_capacity(count);
    for lock in &locks {
        waiting.push(Box::pin(lock.lock()));
        let joined = waiting.last_mut().expect("just put there").as_mut().poll(&mut context);
        assert!(joined.is_pending(), "it is held");
    }
    assert_eq!(client.stats().now.waiting, count as u64);
    fastrand::Rng::with_seed(1).shuffle(&mut waiting);
    let started = Instant::now();
    drop(waiting);
    started.elapsed()
}

/// With eight times as many it takes eight times as long, or 64 times if each looks at all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
#[ignore = "nightly"]
async fn leaving_the_line_does_not_take_longer_for_being_many() {
    let server = Server::start();
    let (holder, client) = (plain(&server).await, plain(&server).await);
    let _held = holder.lock("x").lock().await.expect("free");
    let (mut few, mut many) = (Duration::MAX, Duration::MAX);
    for _ in 0..10 {
        few = few.min(leaving(&client, 2_000).await);
        many = many.min(leaving(&client, 16_000).await);
        if many < few * 20 {
            return; // the machine can only make either longer
        }
    }
    panic!("{few:?} for 2,000, {many:?} for 16,000");
}

/// An answer is as old as its way is long; it tells all who waited for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
#[ignore = "nightly"]
async fn nor_is_one_who_waits_for_a_server_that_is_far_away() {
    unless_stalled(LAST_ATTEMPTS, far_away).await;
}

async fn far_away() {
    let server = Server::start();
    let (acquire, proxy) = (script(&server, "acquire"), before(&server));
    let (holder, client) = (plain(&server).await, behind(&proxy, |builder| builder).await);
    let _held = holder.lock("x").lock().await.expect("free");
    proxy.rule(Rule::new(acquire, Fault::Delay(Way::Back, ms(200))).times(u64::MAX));
    let patience = ms(2_500);
    let calls = (0..3_000).map(|_| {
        let lock = client.lock("x").owner(&Owner::new());
        tokio::spawn(async move { lock.try_lock_for(patience).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let taken = call.await.expect("no panic");
        assert!(matches!(taken, Ok(None)), "{taken:?}");
    }
}

/// A crowd whose time ends together beside a server that froze a moment before: nobody waits for long beyond its limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
#[ignore = "nightly"]
async fn ten_thousand_with_one_deadline_beside_a_frozen_server_end_in_time() {
    const CROWD: usize = 10_000;
    let server = Server::start();
    let (holder, client) = (plain(&server).await, plain(&server).await);
    let _held = holder.lock("x").lock().await.expect("free");
    let deadline = Instant::now() + ms(6_000);
    let calls: Vec<_> = (0..CROWD)
        .map(|_| {
            let lock = client.mutex("x");
            tokio::spawn(async move {
                let ended = lock.try_lock_until(deadline).await;
                (ended.map(|taken| taken.is_some()), Stopwatch::start())
            })
        })
        .collect();
    until("all to wait", ms(5_500), || client.stats().now.waiting == CROWD as u64).await;
    sleep((deadline - ms(500)).saturating_duration_since(Instant::now())).await;
    server.freeze();
    let frozen = Stopwatch::start();
    for call in calls {
        let took = call.await.expect("no panic").1.since(&frozen);
        assert!(took <= ms(500 + 2_000), "{took} from 500 ms before the limit");
    }
}

/// The limit of one call beside a frozen server, while many others of the client wait for another name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
#[ignore = "nightly"]
async fn one_with_a_limit_of_its_own_is_not_delayed_by_a_crowd_for_another_name() {
    const CROWD: usize = 15_000;
    let server = Server::start();
    let (holder, client) = (plain(&server).await, plain(&server).await);
    let _held = holder.lock("x").lock().await.expect("free");
    let calls: Vec<_> = (0..CROWD)
        .map(|_| {
            let lock = client.mutex("x");
            tokio::spawn(async move { lock.try_lock_for(Duration::from_secs(600)).await.is_ok() })
        })
        .collect();
    until("all to wait", ms(20_000), || client.stats().now.waiting == CROWD as u64).await;
    sleep(ms(500)).await;
    server.freeze();
    let started = Stopwatch::start();
    let ended = client.mutex("y").try_lock_for(ms(100)).await;
    let took = started.elapsed();
    calls.iter().for_each(|call| call.abort());
    assert!(took <= ms(2_100), "{took} with a limit of 100 ms: {ended:?}");
}
