//! Locks that nobody else wants: one, many names, and 100,000 held.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold::{Client, Guard, RawScript};

use crate::{
    report::{Outcome, Report, cpu, median, micros, nanos, resident},
    support::{Server, deployment::cluster::Cluster},
};

const ROUNDS: usize = 7;
const PAIRS: u32 = 3_000;
const HELD: usize = 100_000;
/// How long the bare pairs and the locks run in turn, and how often.
const WINDOW: Duration = Duration::from_millis(800);
const WINDOWS: usize = 5;

const ACQUIRE: &str = concat!(
    include_str!("../../src/redis/frame.lua"),
    include_str!("../../src/primitives/lock/holder.lua"),
    include_str!("../../src/primitives/lock/acquire.lua")
);
const RELEASE: &str = concat!(
    include_str!("../../src/redis/frame.lua"),
    include_str!("../../src/primitives/lock/holder.lua"),
    include_str!("../../src/primitives/lock/release.lua")
);

/// The same scripts through the same client, bare.
struct Bare {
    acquire: RawScript,
    release: RawScript,
}

impl Bare {
    async fn new(client: &Client) -> Outcome<Arc<Bare>> {
        let (acquire, release) = (client.raw_script(ACQUIRE).await?, client.raw_script(RELEASE).await?);
        Ok(Arc::new(Bare { acquire, release }))
    }

    async fn pair(&self, name: &str) -> Outcome<()> {
        let id = "6b1c7d3e-0000-4000-8000-000000000001:1";
        let (keys, channel) = (|| vec![name.to_owned()], format!("redisson_lock__channel:{{{name}}}"));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        self.acquire.call(keys(), words(&["1", "1", id, "30000", "1", "first"])).await?;
        self.release.call(keys(), words(&["1", "1", id, "0", "0", "PUBLISH", &channel])).await?;
        Ok(())
    }
}

/// Lock and unlock beside two bare EVALSHA of the same scripts, pair about pair: where tokio puts its tasks changes a
/// round trip by a quarter, and so must be the same for both.
pub(crate) async fn uncontended(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let bare = Bare::new(&client).await?;
    // In a task, as most code is: the body of main has to be woken across threads for every answer.
    let rounds = tokio::spawn(async move {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let (mut raw, mut lock) = (Histogram::new(3)?, Histogram::new(3)?);
            for _ in 0..PAIRS {
                let started = Instant::now();
                bare.pair("bare").await?;
                raw.record(nanos(started))?;
                let started = Instant::now();
                client.lock("pair").lock().await?.unlock().await?;
                lock.record(nanos(started))?;
            }
            rounds.push((raw, lock));
        }
        Outcome::Ok(rounds)
    })
    .await??;
    let of = |pick: fn(&(Histogram<u64>, Histogram<u64>)) -> f64| median(rounds.iter().map(pick).collect());
    let (raw, lock, tail) = (of(|r| micros(&r.0, 0.5)), of(|r| micros(&r.1, 0.5)), of(|r| micros(&r.1, 0.99)));
    let ratio = of(|r| micros(&r.1, 0.5) / micros(&r.0, 0.5));
    report.row("two bare `EVALSHA` of the same scripts, p50", format!("{raw:.0} µs"), Some(raw / 2.0), None);
    report.row("uncontended lock + unlock, p50, p99", format!("{lock:.0}, {tail:.0} µs"), Some(raw / 2.0), None);
    let aim = Some(("at most 1.15", ratio <= 1.15));
    let name = "uncontended lock + unlock, p50 divided by that of two bare `EVALSHA`";
    report.row(name, format!("{ratio:.3}"), Some(raw / 2.0), aim);
    Ok(())
}

/// Lock and unlock on a plain thread beside the same in a task, in turns. Each of the two clients has one background thread.
pub(crate) async fn blocking(server: &Server, report: &mut Report) -> Outcome<()> {
    let url = server.url();
    let ratios = tokio::task::spawn_blocking(move || blocking_rounds(&url)).await??;
    let of = |pick: fn(&(f64, f64)) -> f64| median(ratios.iter().map(pick).collect());
    let (task, thread, ratio) = (of(|r| r.0), of(|r| r.1), of(|r| r.1 / r.0));
    report.row("lock + unlock in a task, one worker thread, p50", format!("{task:.0} µs"), None, None);
    report.row("lock + unlock on a plain thread (`blocking`), p50", format!("{thread:.0} µs"), None, None);
    let aim = Some(("at most 1.3", ratio <= 1.3));
    report.row("p50 on a plain thread divided by that in a task", format!("{ratio:.3}"), None, aim);
    Ok(())
}

/// The p50 in a task, and on this thread.
fn blocking_rounds(url: &str) -> Outcome<Vec<(f64, f64)>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = runtime.block_on(Client::connect(url))?;
    let threads = leasehold::blocking::Client::connect(url)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let client = client.clone();
        let task = runtime.spawn(async move {
            let mut times = Histogram::new(3)?;
            for _ in 0..PAIRS {
                let started = Instant::now();
                client.lock("pair").lock().await?.unlock().await?;
                times.record(nanos(started))?;
            }
            Outcome::Ok(times)
        });
        let task: Histogram<u64> = runtime.block_on(task)??;
        let mut thread = Histogram::new(3)?;
        for _ in 0..PAIRS {
            let started = Instant::now();
            threads.lock("pair").lock()?.unlock()?;
            thread.record(nanos(started))?;
        }
        rounds.push((micros(&task, 0.5), micros(&thread, 0.5)));
    }
    Ok(rounds)
}

fn own_names(tasks: usize) -> String {
    format!("{tasks} task{}, one name per task", if tasks == 1 { "" } else { "s" })
}

/// Tasks with one name per task: pairs a second beside bare pairs, in turns.
pub(crate) async fn distinct(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let bare = Bare::new(&client).await?;
    for (tasks, aim) in [(1, 0.9), (16, 0.9)] {
        let (raw, lock) = mixed(&client, &bare, tasks).await?;
        let (ratio, met) = (raw / lock, raw / lock >= aim);
        let a_second = |micros: f64| 1e6 * tasks as f64 / micros;
        let measured = format!("{:.0} per second, bare {:.0}, ratio {ratio:.2}", a_second(lock), a_second(raw));
        let aim = format!("at least {aim}");
        report.row(own_names(tasks), measured, Some(raw / 2.0), Some((&aim, met)));
    }
    for (tasks, aim) in [(256, 1.5), (2_048, 1.5)] {
        let (mut raw, mut lock) = (Vec::new(), Vec::new());
        let bare_pair = {
            let bare = Arc::clone(&bare);
            move |name: String| {
                let bare = Arc::clone(&bare);
                async move { bare.pair(&name).await }
            }
        };
        let lock_pair = {
            let client = client.clone();
            move |name: String| lock_pair(client.clone(), name)
        };
        for _ in 0..WINDOWS {
            raw.push(pairs_a_second(WINDOW, tasks, bare_pair.clone()).await?);
            lock.push(pairs_a_second(WINDOW, tasks, lock_pair.clone()).await?);
        }
        let ratio = median(raw.iter().zip(&lock).map(|(raw, lock)| lock / raw).collect());
        let (raw, lock) = (median(raw), median(lock));
        let measured = format!("{lock:.0} per second, bare {raw:.0}, ratio {ratio:.2}");
        let met = ratio >= aim;
        report.row(own_names(tasks), measured, Some(5e5 / raw), Some((&format!("at least {aim}"), met)));
    }
    Ok(())
}

/// Names of their own on a cluster of three masters, beside one server: what a pair costs more.
pub(crate) async fn clustered(server: &Server, report: &mut Report) -> Outcome<()> {
    let cluster = Cluster::of_masters().await;
    let (one, three) = (Client::connect(&server.url()).await?, Client::connect(&cluster.url()).await?);
    let pair_of = |client: Client| move |name: String| lock_pair(client.clone(), name);
    for tasks in [1, 16, 256, 2_048] {
        let (mut alone, mut shared) = (Vec::new(), Vec::new());
        for _ in 0..WINDOWS {
            alone.push(pairs_a_second(WINDOW, tasks, pair_of(one.clone())).await?);
            shared.push(pairs_a_second(WINDOW, tasks, pair_of(three.clone())).await?);
        }
        let cost = median(alone.iter().zip(&shared).map(|(alone, shared)| alone / shared).collect());
        let measured =
            format!("{:.0} per second, one server {:.0}, cost {cost:.2} times", median(shared), median(alone));
        let aim = "at most 1.25 times";
        report.row(format!("{}, on a cluster of three", own_names(tasks)), measured, None, Some((aim, cost <= 1.25)));
    }
    Ok(())
}

/// Few tasks: each does a bare pair and a locked one in turn. With the mean time of each, in microseconds.
async fn mixed(client: &Client, bare: &Arc<Bare>, tasks: usize) -> Outcome<(f64, f64)> {
    let started = Instant::now();
    let all: Vec<_> = (0..tasks)
        .map(|task| {
            let (lock, bare) = (client.lock(&format!("mixed-{task}")), Arc::clone(bare));
            tokio::spawn(async move {
                let (mut raw, mut locked, mut pairs) = (0, 0, 0_u32);
                while started.elapsed() < WINDOW * 5 {
                    let begun = Instant::now();
                    bare.pair(&format!("bare-{task}")).await?;
                    raw += nanos(begun);
                    let begun = Instant::now();
                    lock.lock().await?.unlock().await?;
                    locked += nanos(begun);
                    pairs += 1;
                }
                Outcome::Ok((raw, locked, pairs))
            })
        })
        .collect();
    let (mut raw, mut locked, mut pairs) = (0, 0, 0);
    for task in all {
        let done = task.await??;
        (raw, locked, pairs) = (raw + done.0, locked + done.1, pairs + done.2);
    }
    let mean = |nanos: u64| nanos as f64 / f64::from(pairs) / 1e3;
    Ok((mean(raw), mean(locked)))
}

pub(crate) async fn lock_pair(client: Client, name: String) -> Outcome<()> {
    Ok(client.lock(&name).lock().await?.unlock().await?)
}

/// How many pairs such tasks make in a second, each with a name of its own.
pub(crate) async fn pairs_a_second<F>(
    window: Duration,
    tasks: usize,
    pair: impl Fn(String) -> F + Clone + Send + 'static,
) -> Outcome<f64>
where
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let started = Instant::now();
    let all: Vec<_> = (0..tasks)
        .map(|task| {
            let pair = pair.clone();
            tokio::spawn(async move {
                let mut pairs = 0_u32;
                while started.elapsed() < window {
                    pair(format!("distinct-{task}")).await?;
                    pairs += 1;
                }
                Outcome::Ok(pairs)
            })
        })
        .collect();
    let mut pairs = 0;
    for task in all {
        pairs += task.await??;
    }
    Ok(f64::from(pairs) / started.elapsed().as_secs_f64())
}

/// Memory for each held lock, and what keeping them costs.
pub(crate) async fn held(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    client.lock("warm").lock().await?.unlock().await?;
    let before = resident()?;
    let guards = take_all(&client).await?;
    renewed(&client, HELD as u64).await?;
    let each = (resident()? - before) / HELD as f64;
    report.row(
        "100,000 held and renewed locks, bytes each",
        format!("{each:.0}"),
        None,
        Some(("at most 1,024", each <= 1_024.0)),
    );

    let (started, used, before) = (Instant::now(), cpu()?, client.stats());
    renewed(&client, before.total.renewals + 2 * HELD as u64).await?;
    let (took, used, after) = (started.elapsed(), cpu()? - used, client.stats());
    let share = 100.0 * used.as_secs_f64() / took.as_secs_f64();
    let renewals = (after.total.renewals - before.total.renewals) as f64;
    let (a_second, in_a_call) =
        (renewals / took.as_secs_f64(), renewals / (after.total.calls - before.total.calls) as f64);
    let measured = format!("{share:.1} % ({a_second:.0} renewals per second, {in_a_call:.0} per call)");
    let name = "100,000 held and renewed locks, share of one core that renews them";
    report.row(name, measured, None, Some(("under 10 %", share < 10.0)));
    if after.total.lost > 0 {
        return Err("locks were lost".into());
    }
    drop(guards);
    while client.stats().now.releasing > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await; // the next section should not pay for it
    }
    Ok(client.close().await?)
}

async fn take_all(client: &Client) -> Outcome<Vec<Guard>> {
    let mut guards = Vec::with_capacity(HELD);
    for n in 0..HELD {
        guards.push(client.lock(&format!("bench:invoice:{n:06}")).lock().await?);
    }
    Ok(guards)
}

async fn renewed(client: &Client, wanted: u64) -> Outcome<()> {
    let started = Instant::now();
    while client.stats().total.renewals < wanted {
        if started.elapsed() > Duration::from_secs(60) {
            return Err("the watchdog does not keep up".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
