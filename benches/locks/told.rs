//! What it costs that servers tell a holder of changes by others, and how soon it learns of them.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use leasehold::{Client, Guard};

use crate::{
    report::{Outcome, Report},
    support::Server,
};

const HELD: usize = 100_000;
const DELETED: usize = 1_000;
const PAIRS: usize = 20_000;
const ROUNDS: usize = 3;

/// A number that the server says of itself.
fn said(server: &Server, section: &str, field: &str) -> f64 {
    let info: String = server.ask(&["INFO", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).expect("the server says it")
}

async fn connect(server: &Server, tracking: bool) -> Outcome<Client> {
    Ok(Client::builder().url(server.url()).announce(false).tracking(tracking).connect().await?)
}

/// Held for long enough that the server knows whom to tell.
async fn hold(client: &Client, names: usize) -> Outcome<Vec<Guard>> {
    let before = client.stats().total.renewals;
    let taking: Vec<_> = (0..names)
        .map(|n| {
            let lock = client.mutex(&format!("held:{n}"));
            tokio::spawn(async move { lock.lock().await })
        })
        .collect();
    let mut guards = Vec::with_capacity(names);
    for taken in taking {
        guards.push(taken.await??);
    }
    while client.stats().total.renewals < before + names as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(guards)
}

/// The time from a `DEL` of another connection until the holder is told.
async fn latency(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = connect(server, true).await?;
    let (guards, mut times) = (hold(&client, DELETED).await?, Histogram::<u64>::new(3)?);
    let mut other = server.raw();
    for guard in &guards {
        let begun = Instant::now();
        redis::cmd("DEL").arg(guard.name()).query::<u64>(&mut other)?;
        guard.lost().await;
        times.record(u64::try_from(begun.elapsed().as_micros())?)?;
    }
    let [half, most] = [0.5, 0.99].map(|part| times.value_at_quantile(part));
    report.row("from a `DEL` by another client to `Guard::lost`, p50, p99", format!("{half}, {most} µs"), None, None);
    drop(guards);
    Ok(client.close().await?)
}

/// Acquisitions and releases per second by a client of its own, while that many locks are held.
async fn pairs(server: &Server) -> Outcome<(f64, f64)> {
    let client = connect(server, false).await?;
    let lock = client.mutex("pairs");
    let (begun, used) = (Instant::now(), said(server, "cpu", "used_cpu_user_main_thread"));
    for _ in 0..PAIRS {
        lock.lock().await?.unlock().await?;
    }
    let rate = PAIRS as f64 / begun.elapsed().as_secs_f64();
    let used = said(server, "cpu", "used_cpu_user_main_thread") - used;
    client.close().await?;
    Ok((rate, used * 1e6 / PAIRS as f64))
}

pub(crate) async fn told(server: &Server, report: &mut Report) -> Outcome<()> {
    latency(server, report).await?;
    let (mut memory, mut cost) = ([0.0; 2], [const { Vec::new() }; 2]);
    for round in 0..ROUNDS {
        for tracking in [false, true] {
            let server = Server::start();
            let client = connect(&server, tracking).await?;
            let guards = hold(&client, HELD).await?;
            if round == 0 {
                memory[usize::from(tracking)] = said(&server, "memory", "used_memory") / HELD as f64;
                let tracked = said(&server, "stats", "tracking_total_keys");
                let name = format!("100,000 held locks, `tracking` {tracking}: keys that the server tracks");
                report.row(name, format!("{tracked}"), None, None);
            }
            cost[usize::from(tracking)].push(pairs(&server).await?);
            drop(guards);
            while client.stats().now.releasing > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            client.close().await?;
        }
    }
    let [without, with] = memory;
    let bytes = format!("{without:.0}, {with:.0} bytes");
    report.row("memory of the server for a held lock, `tracking` off and on", bytes, None, None);
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let [without, with] = cost.map(|rounds| {
        let (rates, used) = rounds.into_iter().unzip();
        (median(rates), median(used))
    });
    let rates = format!("{:.0}, {:.0}, ratio {:.2}", without.0, with.0, with.0 / without.0);
    let name = "another client beside 100,000 held locks, `tracking` off and on: pairs per second";
    report.row(name, rates, None, None);
    let used = format!("{:.1}, {:.1} µs", without.1, with.1);
    let name = "another client beside 100,000 held locks, `tracking` off and on: time of the server for a pair";
    report.row(name, used, None, None);
    Ok(())
}
