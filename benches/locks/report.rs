//! Rows of the table, and what all sections measure with.

use std::{
    collections::HashMap,
    error::Error,
    fs,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold::Client;

use crate::support::Server;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What was measured, beside the raw round trip of the same moment.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<[String; 4]>,
}

impl Report {
    /// A figure with its aim, if there is one, and whether it was reached.
    pub(crate) fn row(
        &mut self,
        what: impl Into<String>,
        measured: String,
        raw: Option<f64>,
        aim: Option<(&str, bool)>,
    ) {
        let raw = raw.map_or(String::new(), |micros| format!("{micros:.0} µs"));
        let aim =
            aim.map_or(String::new(), |(aim, reached)| format!("{aim}{}", if reached { "" } else { ": not reached" }));
        let row = [what.into(), measured, raw, aim];
        eprintln!("  {}", row.join(" | "));
        self.rows.push(row);
    }

    pub(crate) fn print(&self) {
        println!("| what | measured | raw round trip | aim |\n|---|---|---|---|");
        for row in &self.rows {
            println!("| {} |", row.join(" | "));
        }
    }
}

/// The median round trip of a script that does nothing, through the same client, in microseconds.
pub(crate) async fn raw_round_trip(client: &Client) -> Outcome<f64> {
    median_round_trip(client, 2_000).await
}

pub(crate) async fn median_round_trip(client: &Client, count: usize) -> Outcome<f64> {
    let nothing = client.raw_script("return 1").await?;
    tokio::spawn(async move {
        let mut times = Histogram::new(3)?;
        for _ in 0..count {
            let started = Instant::now();
            nothing.call(vec!["raw".to_owned()], Vec::new()).await?;
            times.record(nanos(started))?;
        }
        Ok(micros(&times, 0.5))
    })
    .await?
}

/// Calls of each command so far, without those that ask.
pub(crate) fn calls(server: &Server) -> HashMap<String, u64> {
    let info: String = server.ask(&["INFO", "commandstats"]);
    let line = |line: &str| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((command.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    let mut calls: HashMap<String, u64> = info.lines().filter_map(line).collect();
    ["info", "ping", "client|setinfo"].iter().for_each(|own| _ = calls.remove(*own));
    calls
}

/// Calls of one command between two counts.
pub(crate) fn since(before: &HashMap<String, u64>, after: &HashMap<String, u64>, command: &str) -> f64 {
    let count = |calls: &HashMap<String, u64>| calls.get(command).copied().unwrap_or(0);
    (count(after) - count(before)) as f64
}

/// Resident memory of this process in bytes.
pub(crate) fn resident() -> Outcome<f64> {
    let pages: f64 = fs::read_to_string("/proc/self/statm")?.split(' ').nth(1).ok_or("no second field")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64)
}

/// CPU time of all threads of this process.
pub(crate) fn cpu() -> Outcome<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}

/// Nanoseconds on a clock that all processes of the machine share.
pub(crate) fn clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

pub(crate) fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn micros(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e3
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
