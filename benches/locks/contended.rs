//! One name that many tasks of one process want.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    task::{Context, Waker},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold::{Client, Guard, Owner};

use crate::{
    report::{Outcome, Report, calls, clock, median, micros, nanos, raw_round_trip, resident, since},
    support::Server,
};

const TASKS: usize = 64;
const TURNS: i64 = 20_000;
const SLICES: usize = 15;
const WAITING: usize = 10_000;

/// 64 tasks, 20,000 turns with nothing to do in them. The speed is measured beside the raw round trip in short slices,
/// since the machine has moods that last for a second.
pub(crate) async fn one_name(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let before = calls(server);
    let turns = take_turns(&client, TURNS).await?;
    let after = calls(server);
    let mut slices = Vec::new();
    for _ in 0..SLICES {
        let raw = raw_round_trip(&client).await?;
        let started = Instant::now();
        take_turns(&client, TURNS / 10).await?;
        slices.push((raw, started.elapsed().as_secs_f64() * 1e6 / (TURNS / 10) as f64));
    }
    let raw = median(slices.iter().map(|(raw, _)| *raw).collect());
    let turn = median(slices.iter().map(|(_, turn)| *turn).collect());
    let ratio = raw / turn;
    let raw = Some(raw);
    let scripts = since(&before, &after, "evalsha") / TURNS as f64;
    let publishes = since(&before, &after, "publish") / TURNS as f64 * 16.0;
    let (least, most) = (turns.iter().min().ok_or("tasks")?, turns.iter().max().ok_or("tasks")?);
    let spread = 100.0 * (most - least) as f64 / *most as f64;
    let name = "64 tasks, one name, 20,000 turns";
    report.row(
        format!("{name}: scripts per turn"),
        format!("{scripts:.3}"),
        raw,
        Some(("at most 1.1", scripts <= 1.1)),
    );
    let met = publishes <= 1.0;
    report.row(format!("{name}: `PUBLISH` in 16 turns"), format!("{publishes:.2}"), raw, Some(("at most 1", met)));
    let measured = format!("{:.0}, {ratio:.2} per raw round trip", 1e6 / turn);
    report.row(format!("{name}: turns per second"), measured, raw, Some(("at least 0.8", ratio >= 0.8)));
    let met = spread <= 2.0;
    report.row(format!("{name}: turns per task differ by"), format!("{spread:.1} %"), raw, Some(("at most 2 %", met)));
    Ok(())
}

async fn take_turns(client: &Client, turns: i64) -> Outcome<Vec<u64>> {
    let left = Arc::new(AtomicI64::new(turns));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (lock, left) = (client.lock("one-name"), Arc::clone(&left));
            tokio::spawn(async move {
                let mut turns = 0;
                while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                    lock.lock().await?.unlock().await?;
                    turns += 1;
                }
                Outcome::Ok(turns)
            })
        })
        .collect();
    let mut turns = Vec::new();
    for task in tasks {
        turns.push(task.await??);
    }
    Ok(turns)
}

/// 10,000 tasks wait for ten seconds for a lock that is held elsewhere, then all get it.
pub(crate) async fn many_waiting(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::builder().url(server.url()).announce(false).connect().await?; // its record is no attempt
    client.lock("warm").lock().await?.unlock().await?;
    let raw = Some(raw_round_trip(&client).await?);
    let _: u32 = server.ask(&["HSET", "waited-for", "b983c153-7421-469a-addb-44fb92259a1b:7", "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "waited-for", "60000"]);

    let (before, memory) = (calls(server), resident()?);
    let served = Arc::new(Mutex::new(Vec::with_capacity(WAITING)));
    let tasks: Vec<_> = (0..WAITING).map(|n| wait(&client, n, Arc::clone(&served))).collect();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (after, waiting) = (calls(server), client.stats().now.waiting);
    let each = (resident()? - memory) / WAITING as f64;
    if waiting != WAITING as u64 {
        return Err(format!("{waiting} waiting").into());
    }
    let name = "10,000 tasks wait 10 s for one name";
    let (subscribes, attempts) = (since(&before, &after, "subscribe"), since(&before, &after, "evalsha"));
    report.row(format!("{name}: `SUBSCRIBE`"), format!("{subscribes:.0}"), raw, Some(("1", subscribes == 1.0)));
    report.row(format!("{name}: attempts"), format!("{attempts:.0}"), raw, Some(("at most 5", attempts <= 5.0)));
    report.row(format!("{name}: bytes per task"), format!("{each:.0}"), raw, Some(("under 2,048", each < 2_048.0)));

    let started = Instant::now();
    let _: u32 = server.ask(&["DEL", "waited-for"]);
    let _: u32 = server.ask(&["PUBLISH", "redisson_lock__channel:{waited-for}", "0"]);
    for task in tasks {
        task.await??;
    }
    let took = started.elapsed();
    let in_order = served.lock().unwrap_or_else(PoisonError::into_inner).is_sorted();
    let measured = format!("{} in {took:.1?}", if in_order { "in order of arrival" } else { "out of order" });
    report.row(format!("{name}: then all acquire it"), measured, raw, Some(("in order", in_order)));
    Ok(())
}

/// A task that is in line before this returns, and notes its number when it is served.
fn wait(client: &Client, n: usize, served: Arc<Mutex<Vec<usize>>>) -> tokio::task::JoinHandle<Outcome<()>> {
    let lock = client.lock("waited-for").owner(&Owner::new());
    let mut waiting: Pin<Box<dyn Future<Output = leasehold::Result<Guard>> + Send>> =
        Box::pin(async move { lock.lock().await });
    let ready = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(!ready, "it is held elsewhere");
    tokio::spawn(async move {
        let guard = waiting.await?;
        served.lock().unwrap_or_else(PoisonError::into_inner).push(n);
        Ok(guard.unlock().await?)
    })
}

/// From `unlock()` called to `lock()` returned in another task, with two tasks that always want it.
pub(crate) async fn hand_over(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let nothing = Arc::new(client.raw_script("return 1").await?);
    let (released, raw) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Histogram::new(3)?)));
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let (lock, released) = (client.lock("hand-over"), Arc::clone(&released));
            let (nothing, raw) = (Arc::clone(&nothing), Arc::clone(&raw));
            tokio::spawn(async move {
                let mut times = Histogram::<u64>::new(3)?;
                for _ in 0..10_000 {
                    let guard = lock.lock().await?;
                    times.record(clock() - released.load(Ordering::Acquire) as u64)?;
                    // The raw round trip of this very moment, by the one who has the lock.
                    let started = Instant::now();
                    nothing.call(vec!["raw".to_owned()], Vec::new()).await?;
                    raw.lock().unwrap_or_else(PoisonError::into_inner).record(nanos(started))?;
                    released.store(usize::try_from(clock())?, Ordering::Release);
                    guard.unlock().await?;
                }
                Outcome::Ok(times)
            })
        })
        .collect();
    let mut times = Histogram::new(3)?;
    for task in tasks {
        times.add(task.await??)?;
    }
    let raw = micros(&raw.lock().unwrap_or_else(PoisonError::into_inner), 0.5);
    let (p50, p99) = (micros(&times, 0.5), micros(&times, 0.99));
    let measured = format!("{p50:.0}, {p99:.0} µs, {:.2} round trips", p50 / raw);
    let aim = Some(("p50 at most 1.5 round trips", p50 <= 1.5 * raw));
    report.row("hand-over inside a process, p50, p99", measured, Some(raw), aim);
    Ok(())
}
