//! What a lock costs, beside what the same requests cost bare: `cargo bench`. Ratios within one run are what counts;
//! the machine's mood is in both halves.

#[allow(dead_code)]
#[path = "../tests/support/server.rs"]
mod server;

use std::{
    error::Error,
    fs,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold::{Client, Guard, RawScript};
use server::Server;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 7;
const PAIRS: u32 = 3_000;
const HELD: usize = 100_000;

const ACQUIRE: &str = concat!(
    include_str!("../src/redis/frame.lua"),
    include_str!("../src/primitives/lock/holder.lua"),
    include_str!("../src/primitives/lock/acquire.lua")
);
const RELEASE: &str = concat!(
    include_str!("../src/redis/frame.lua"),
    include_str!("../src/primitives/lock/holder.lua"),
    include_str!("../src/primitives/lock/release.lua")
);

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let server = Server::start();
    runtime.block_on(async {
        uncontended(&server).await?;
        held(&server).await
    })
}

/// Lock and unlock beside two bare EVALSHA of the same scripts through the same client, pair about pair: where tokio
/// puts its tasks changes a round trip by a quarter, and so must be the same for both.
async fn uncontended(server: &Server) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let bare = (client.raw_script(ACQUIRE).await?, client.raw_script(RELEASE).await?);
    println!("\nuncontended, one task, {ROUNDS} rounds of {PAIRS} pairs of each");
    let mut ratios = Vec::new();
    // In a task, as most code is: the body of main has to be woken across threads for every answer.
    tokio::spawn(async move {
        for _ in 0..ROUNDS {
            let (mut raw, mut lock) = (Histogram::new(3)?, Histogram::new(3)?);
            for _ in 0..PAIRS {
                raw.record(bare_pair(&bare).await?)?;
                lock.record(lock_pair(&client).await?)?;
            }
            let ratio = micros(&lock, 0.5) / micros(&raw, 0.5);
            println!("  two EVALSHA {}   lock+unlock {}   ratio {ratio:.3}", spread(&raw), spread(&lock));
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        println!("  median ratio {:.3}", ratios[ROUNDS / 2]);
        Ok(())
    })
    .await?
}

async fn bare_pair((acquire, release): &(RawScript, RawScript)) -> Outcome<u64> {
    let id = "6b1c7d3e-0000-4000-8000-000000000001:1";
    let keys = || vec!["bare".to_owned(), "redisson_lock__channel:{bare}".to_owned()];
    let words = |words: [&str; 6]| words.map(str::to_owned).to_vec();
    let started = Instant::now();
    acquire.call(keys(), words(["1", "1", id, "30000", "1", "first"])).await?;
    release.call(keys(), words(["1", "1", id, "0", "0", "PUBLISH"])).await?;
    Ok(nanos(started))
}

async fn lock_pair(client: &Client) -> Outcome<u64> {
    let started = Instant::now();
    client.lock("pair").lock().await?.unlock().await?;
    Ok(nanos(started))
}

/// Memory for each held lock, and what keeping them costs.
async fn held(server: &Server) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    client.lock("warm").lock().await?.unlock().await?;
    let before = resident()?;
    let guards = take_all(&client).await?;
    let taken = resident()?;
    renewed(&client, HELD as u64).await?;
    let kept = resident()?;
    println!("\n{HELD} locks held by one client and renewed (lease 30 s)");
    println!("  bytes each, just taken        {:.0}", (taken - before) as f64 / HELD as f64);
    println!("  bytes each, after renewals    {:.0}", (kept - before) as f64 / HELD as f64);

    let (started, used, renewals, calls) = (Instant::now(), cpu()?, client.stats().renewals, client.stats().calls);
    renewed(&client, renewals + 2 * HELD as u64).await?;
    let (took, used) = (started.elapsed(), cpu()? - used);
    let (renewals, calls) = (client.stats().renewals - renewals, client.stats().calls - calls);
    println!("  share of one core             {:.1} %", 100.0 * used.as_secs_f64() / took.as_secs_f64());
    println!(
        "  renewals a second             {:.0}, {:.0} in a call",
        renewals as f64 / took.as_secs_f64(),
        renewals as f64 / calls as f64
    );
    println!("  lost                          {}", client.stats().lost);
    drop(guards);
    Ok(())
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
    while client.stats().renewals < wanted {
        if started.elapsed() > Duration::from_secs(60) {
            return Err("the watchdog does not keep up".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Resident memory of this process in bytes.
fn resident() -> Outcome<i64> {
    let pages: i64 = fs::read_to_string("/proc/self/statm")?.split(' ').nth(1).ok_or("no second field")?.parse()?;
    Ok(pages * i64::try_from(rustix::param::page_size())?)
}

/// CPU time of all threads of this process.
fn cpu() -> Outcome<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn micros(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e3
}

fn spread(times: &Histogram<u64>) -> String {
    format!("p50 {:5.1} p99 {:5.1} µs", micros(times, 0.5), micros(times, 0.99))
}
