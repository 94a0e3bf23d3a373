//! What a recorder of the crate `metrics` costs. Only with the feature `metrics`.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use leasehold::Client;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::{
    report::{Outcome, Report, cpu, median, micros, nanos},
    support::Server,
};

const ROUNDS: usize = 9;
const PAIRS: u32 = 3_000;
const TASKS: u32 = 16;
const BOUNDS: [f64; 12] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 15.0, 60.0];

/// Two clients without a recorder, to see how far equal clients differ, and one with a recorder.
struct Clients {
    without: Client,
    twin: Client,
    recorded: Client,
    recorder: PrometheusHandle,
}

impl Clients {
    async fn new(url: &str) -> Outcome<Clients> {
        let (without, twin) = (used(url).await?, used(url).await?);
        let bounds = Matcher::Suffix("_seconds".to_owned());
        let recorder = PrometheusBuilder::new().set_buckets_for_metric(bounds, &BOUNDS)?.install_recorder()?;
        Ok(Clients { without, twin, recorded: used(url).await?, recorder })
    }
}

/// A client that has its metrics: it asks the recorder for those of a kind of lock at its first use.
async fn used(url: &str) -> Outcome<Client> {
    let client = Client::connect(url).await?;
    pair(&client, "first").await?;
    Ok(client)
}

async fn pair(client: &Client, name: &str) -> Outcome<()> {
    Ok(client.lock(name).lock().await?.unlock().await?)
}

pub(crate) async fn cost(server: &Server, report: &mut Report) -> Outcome<()> {
    let clients = Clients::new(&server.url()).await?;
    let (mut recorded, mut twin) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let times = by_turns([&clients.without, &clients.recorded, &clients.twin]).await?;
        clients.recorder.run_upkeep();
        recorded.push(times[1] / times[0]);
        twin.push(times[2] / times[0]);
    }
    let aim = Some(("at most 1.02", median(recorded.clone()) <= 1.02));
    report.row("lock + unlock with a recorder, p50 divided by that without", spread(&mut recorded), None, aim);
    report.row("the same for two clients without a recorder", spread(&mut twin), None, None);

    let (mut recorded, mut twin) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let without = work(&clients.without, None).await?;
        recorded.push(work(&clients.recorded, Some(&clients.recorder)).await? / without);
        twin.push(work(&clients.twin, None).await? / without);
    }
    let aim = Some(("at most 1.02", median(recorded.clone()) <= 1.02));
    report.row(
        "CPU time of a pair with a recorder, 16 tasks, divided by that without",
        spread(&mut recorded),
        None,
        aim,
    );
    report.row("the same for two clients without a recorder", spread(&mut twin), None, None);
    Ok(())
}

/// The p50 of a pair of each client, in microseconds: one pair of each in turn.
async fn by_turns(clients: [&Client; 3]) -> Outcome<[f64; 3]> {
    let clients = clients.map(Client::clone);
    tokio::spawn(async move {
        let mut times = [Histogram::<u64>::new(3)?, Histogram::new(3)?, Histogram::new(3)?];
        for _ in 0..PAIRS {
            for (client, times) in clients.iter().zip(&mut times) {
                let started = Instant::now();
                pair(client, "pair").await?;
                times.record(nanos(started))?;
            }
        }
        Outcome::Ok(times.map(|times| micros(&times, 0.5)))
    })
    .await?
}

/// The CPU time of this process for a pair, in microseconds, while several tasks use names of their own; with the recorder's own work.
async fn work(client: &Client, recorder: Option<&PrometheusHandle>) -> Outcome<f64> {
    let before: Duration = cpu()?;
    let all: Vec<_> = (0..TASKS)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                let name = format!("task-{task}");
                for _ in 0..PAIRS {
                    pair(&client, &name).await?;
                }
                Outcome::Ok(())
            })
        })
        .collect();
    for task in all {
        task.await??;
    }
    recorder.into_iter().for_each(PrometheusHandle::run_upkeep);
    Ok((cpu()? - before).as_secs_f64() * 1e6 / f64::from(TASKS * PAIRS))
}

/// The median of the rounds, and their extremes.
fn spread(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:.3} ({:.3} to {:.3})", values[values.len() / 2], values[0], values[values.len() - 1])
}
