//! Permits of semaphores, and locks that rest after an early release.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold::{Client, Lock, PlainSemaphore, Semaphore};

use crate::{
    report::{Outcome, Report, calls, median, micros, nanos, raw_round_trip, since},
    support::Server,
};

const ROUNDS: usize = 7;
const PAIRS: u32 = 1_500;
const TASKS: usize = 64;
const PERMITS: u32 = 4;
const TURNS: i64 = 20_000;
const REST: Duration = Duration::from_secs(1);

/// A permit that nobody else wants beside a lock that nobody else wants, then tasks that share four permits.
pub(crate) async fn permits(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    for (kind, wanted) in semaphores(&client, "alone").await? {
        let lock = Wanted::Lock(client.lock("lock"));
        compared(report, &format!("{kind}, acquire + release alone"), |_| lock.clone(), |_| wanted.clone()).await?;
    }
    for (kind, wanted) in semaphores(&client, "shared").await? {
        shared(server, &client, report, kind, &wanted).await?;
    }
    Ok(())
}

/// An early release of a lock with `min_hold` beside a release of one without, each of a name of its own.
pub(crate) async fn early(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let lock = client.lock("rests").min_hold(REST);
    lock.lock().await?.unlock().await?;
    if lock.try_lock().await?.is_some() {
        return Err("it does not rest".into());
    }
    let plain = |n: u32| Wanted::Lock(client.lock(&format!("early:{n}")));
    let resting = |n: u32| Wanted::Lock(client.lock(&format!("early:{n}:rests")).min_hold(REST));
    compared(report, "lock + unlock with `min_hold`", plain, resting).await
}

/// One of each kind, with four permits.
async fn semaphores(client: &Client, name: &str) -> Outcome<[(&'static str, Wanted); 2]> {
    let (semaphore, plain) = (client.semaphore(name), client.plain_semaphore(&format!("plain:{name}")));
    semaphore.try_set_permits(PERMITS).await?;
    plain.try_set_permits(PERMITS).await?;
    Ok([("`semaphore`", Wanted::Permit(semaphore)), ("`plain_semaphore`", Wanted::PlainPermit(plain))])
}

/// The p50 of both in turn, and their ratio. The number of a pair is given to its two halves.
async fn compared(
    report: &mut Report,
    name: &str,
    plain: impl Fn(u32) -> Wanted,
    other: impl Fn(u32) -> Wanted,
) -> Outcome<()> {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS as u32 {
        let numbers = round * PAIRS..(round + 1) * PAIRS;
        let pairs: Vec<_> = numbers.map(|n| (plain(n), other(n))).collect();
        rounds.push(tokio::spawn(a_round(pairs)).await??);
    }
    let of = |pick: fn(&(f64, f64)) -> f64| median(rounds.iter().map(pick).collect());
    let (plain, other, ratio) = (of(|r| r.0), of(|r| r.1), of(|r| r.1 / r.0));
    let measured = format!("{other:.0} µs, {ratio:.3} times the {plain:.0} µs of a plain lock");
    report.row(format!("{name}, p50, median of 7 rounds"), measured, None, None);
    Ok(())
}

async fn a_round(pairs: Vec<(Wanted, Wanted)>) -> Outcome<(f64, f64)> {
    let (mut plain, mut other) = (Histogram::new(3)?, Histogram::new(3)?);
    for (first, second) in pairs {
        plain.record(first.timed_turn().await?)?;
        other.record(second.timed_turn().await?)?;
    }
    Ok((micros(&plain, 0.5), micros(&other, 0.5)))
}

async fn shared(server: &Server, client: &Client, report: &mut Report, kind: &str, wanted: &Wanted) -> Outcome<()> {
    let raw = Some(raw_round_trip(client).await?);
    let (before, started) = (calls(server), Instant::now());
    take_turns(wanted).await?;
    let (took, after) = (started.elapsed(), calls(server));
    let name = format!("{kind}, 64 tasks, 4 permits, 20,000 turns");
    let a_second = TURNS as f64 / took.as_secs_f64();
    report.row(format!("{name}: turns per second"), format!("{a_second:.0}"), raw, None);
    let scripts = since(&before, &after, "evalsha") / TURNS as f64;
    report.row(format!("{name}: scripts per turn"), format!("{scripts:.3}"), raw, None);
    Ok(())
}

async fn take_turns(wanted: &Wanted) -> Outcome<()> {
    let left = Arc::new(AtomicI64::new(TURNS));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (wanted, left) = (wanted.clone(), Arc::clone(&left));
            tokio::spawn(async move {
                while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                    wanted.turn().await?;
                }
                Outcome::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// What a turn takes and gives back.
#[derive(Clone)]
enum Wanted {
    Lock(Lock),
    Permit(Semaphore),
    PlainPermit(PlainSemaphore),
}

impl Wanted {
    async fn turn(&self) -> leasehold::Result<()> {
        match self {
            Wanted::Lock(lock) => lock.lock().await?.unlock().await,
            Wanted::Permit(semaphore) => semaphore.acquire(1).await?.release().await,
            Wanted::PlainPermit(semaphore) => {
                semaphore.acquire(1).await?;
                semaphore.release(1).await
            }
        }
    }

    async fn timed_turn(&self) -> Outcome<u64> {
        let started = Instant::now();
        self.turn().await?;
        Ok(nanos(started))
    }
}
