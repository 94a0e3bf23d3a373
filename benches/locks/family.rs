//! The other kinds of locks among processes, beside a plain lock in the same run.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use leasehold::Client;

use crate::{
    processes::{PROCESSES, RUN, Shares, TASKS, sharing},
    report::{Outcome, Report, micros, nanos, raw_round_trip},
    support::Server,
};

const ALL: usize = PROCESSES * TASKS;
/// Until the readers are at work.
const START: Duration = Duration::from_secs(1);
/// How often the writer asks.
const WRITES: Duration = Duration::from_millis(10);

/// Many readers without work, beside as many who exclude each other; then all but one of them beside a writer.
pub(crate) async fn readers(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let raw = raw_round_trip(&client).await?;
    let exclusive = Shares::of(sharing(server, "lock", 0, ALL)?)?.a_second();
    let reading = Shares::of(sharing(server, "read", 0, ALL)?)?.a_second();
    let ratio = reading / exclusive;
    let measured = format!("{reading:.0}, {ratio:.1} times the {exclusive:.0} of a plain lock");
    let aim = Some(("at least 3 times", ratio >= 3.0));
    report.row("8 processes of 8 tasks read one name: turns per second", measured, Some(raw), aim);

    let workers = sharing(server, "read", 0, ALL - 1)?;
    tokio::time::sleep(START).await;
    let waits = tokio::spawn(write_now_and_then(client)).await??;
    let reading = Shares::of(workers)?.a_second();
    let (p50, p99) = (micros(&waits, 0.5) / 1e3, micros(&waits, 0.99) / 1e3);
    let measured = format!(
        "{p50:.1}, {p99:.1} ms ({} measured), beside {reading:.0} turns of the readers per second",
        waits.len()
    );
    let name = "a writer every 10 ms beside 63 readers: its wait, p50, p99";
    report.row(name, measured, Some(raw), Some(("p99 at most 20 ms", p99 <= 20.0)));
    Ok(())
}

/// The waits of a writer until shortly before its readers end.
async fn write_now_and_then(client: Client) -> Outcome<Histogram<u64>> {
    let (lock, end) = (client.rw_lock("read-and-written"), Instant::now() + RUN - 2 * START);
    let (mut waits, mut next) = (Histogram::new(3)?, tokio::time::interval(WRITES));
    while Instant::now() < end {
        next.tick().await;
        let asked = Instant::now();
        let guard = lock.write().await?;
        waits.record(nanos(asked))?;
        guard.unlock().await?;
    }
    Ok(waits)
}

/// In the order of the line on the server, beside a plain lock.
pub(crate) async fn fair(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let raw = raw_round_trip(&client).await?;
    let plain = Shares::of(sharing(server, "lock", 0, ALL)?)?.a_second();
    let shares = Shares::of(sharing(server, "fair", 0, ALL)?)?;
    let (turns, least) = (shares.a_second(), shares.least());
    let name = "8 processes of 8 tasks, a fair lock";
    let measured = format!("{least:.2} of its fair share");
    report.row(
        format!("{name}: the process with the fewest turns"),
        measured,
        Some(raw),
        Some(("at least 0.9", least >= 0.9)),
    );
    let measured = format!("{turns:.0}, {:.1} raw round trips per turn; a plain lock {plain:.0}", 1e6 / turns / raw);
    report.row(format!("{name}: turns per second"), measured, Some(raw), None);
    Ok(())
}
