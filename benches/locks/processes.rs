//! Several processes, one name. Workers are this program again, told what to do by their arguments.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold::Client;

use crate::{
    report::{Outcome, Report, calls, clock, median, micros, raw_round_trip},
    server::Server,
};

const PROCESSES: usize = 8;
const TASKS: usize = 8;
const RUN: Duration = Duration::from_secs(10);

pub(crate) async fn all(server: &Server, report: &mut Report) -> Outcome<()> {
    for work in [0, 1] {
        share(server, report, work).await?;
    }
    hand_over(server, report).await?;
    killed(server, report).await
}

/// `worker share URL WORK_MS`, `worker turns URL`, `worker hold URL`.
pub(crate) async fn worker(args: &[String]) -> Outcome<()> {
    let [kind, url, rest @ ..] = args else { return Err("worker KIND URL".into()) };
    match (kind.as_str(), rest) {
        ("share", [work]) => shared(url, Duration::from_millis(work.parse()?)).await,
        ("turns", []) => turns(url).await,
        ("hold", []) => hold(url).await,
        _ => Err("no such worker".into()),
    }
}

fn spawn(args: &[&str]) -> Outcome<Child> {
    let program = std::env::current_exe()?;
    Ok(Command::new(program).arg("worker").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

/// All that a worker says, when it has ended.
fn lines(mut child: Child) -> Outcome<Vec<String>> {
    let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines().collect::<Result<_, _>>()?;
    if child.wait()?.success() { Ok(lines) } else { Err("a worker failed".into()) }
}

/// Eight processes of eight tasks for ten seconds.
async fn share(server: &Server, report: &mut Report, work: u64) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let raw = raw_round_trip(&client).await?;
    let before: u64 = calls(server).values().sum();
    let workers = (0..PROCESSES).map(|_| spawn(&["share", &server.url(), &work.to_string()]));
    let workers = workers.collect::<Outcome<Vec<_>>>()?;
    let mut turns = Vec::new();
    for worker in workers {
        turns.push(lines(worker)?.last().ok_or("a worker said nothing")?.parse::<f64>()?);
    }
    let commands = calls(server).values().sum::<u64>() - before;
    let total: f64 = turns.iter().sum();
    let least = turns.iter().copied().fold(f64::MAX, f64::min) / (total / PROCESSES as f64);
    let ideal = 1e6 / (raw + work as f64 * 1e3);
    let name = format!("8 processes of 8 tasks, {work} ms of work");
    let met = least >= 0.5;
    let measured = format!("{least:.2} of its fair share");
    report.row(format!("{name}: the least lucky process"), measured, Some(raw), Some(("at least 0.5", met)));
    let a_second = total / RUN.as_secs_f64();
    let measured = format!("{a_second:.0}, {:.2} of 1 / (work + raw round trip)", a_second / ideal);
    report.row(format!("{name}: turns a second"), measured, Some(raw), None);
    // What scripts call counts too: an acquire is four commands, a hand-over five.
    report.row(
        format!("{name}: commands a turn, scripts' own included"),
        format!("{:.1}", commands as f64 / total),
        Some(raw),
        None,
    );
    Ok(())
}

async fn shared(url: &str, work: Duration) -> Outcome<()> {
    let client = Client::connect(url).await?;
    let end = Instant::now() + RUN;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let lock = client.lock("shared");
            tokio::spawn(async move {
                let mut turns = 0_u64;
                while let Some(left) = end.checked_duration_since(Instant::now()) {
                    let Some(guard) = lock.try_lock_for(left).await? else { break };
                    if !work.is_zero() {
                        tokio::time::sleep(work).await;
                    }
                    guard.unlock().await?;
                    turns += 1;
                }
                Outcome::Ok(turns)
            })
        })
        .collect();
    let mut turns = 0;
    for task in tasks {
        turns += task.await??;
    }
    println!("{turns}");
    Ok(())
}

/// From `unlock()` called in one process to `lock()` returned in another: both always want it, and neither asks again
/// before the other had the chance.
async fn hand_over(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let workers = [spawn(&["turns", &server.url()])?, spawn(&["turns", &server.url()])?];
    let mut raws = vec![raw_round_trip(&client).await?];
    let mut turns: Vec<(u64, u64, usize)> = Vec::new();
    for (n, worker) in workers.into_iter().enumerate() {
        for line in lines(worker)? {
            let (had, left) = line.split_once(' ').ok_or("two numbers")?;
            turns.push((had.parse()?, left.parse()?, n));
        }
    }
    turns.sort_unstable();
    let mut times = Histogram::<u64>::new(3)?;
    for pair in turns.windows(2) {
        if pair[0].2 != pair[1].2 {
            times.record(pair[1].0.saturating_sub(pair[0].1))?;
        }
    }
    raws.push(raw_round_trip(&client).await?);
    let (raw, p50, p99) = (median(raws), micros(&times, 0.5), micros(&times, 0.99));
    let measured =
        format!("{p50:.0}, {p99:.0} µs, {:.1} and {:.1} round trips ({} of them)", p50 / raw, p99 / raw, times.len());
    let aim = Some(("at most 4, 10 round trips", p50 <= 4.0 * raw && p99 <= 10.0 * raw));
    report.row("hand-over between processes, p50, p99", measured, Some(raw), aim);
    Ok(())
}

async fn turns(url: &str) -> Outcome<()> {
    let client = Client::connect(url).await?;
    let lock = client.lock("to-and-fro");
    let mut turns = Vec::new();
    tokio::spawn(async move {
        for _ in 0..1_500 {
            let guard = lock.lock().await?;
            let had = clock();
            tokio::time::sleep(Duration::from_millis(1)).await;
            let left = clock();
            guard.unlock().await?;
            turns.push((had, left));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        turns.iter().for_each(|(had, left)| println!("{had} {left}"));
        Ok(())
    })
    .await?
}

/// A holder killed with SIGKILL: how long after the end of its lease the next one has the lock.
async fn killed(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let raw = raw_round_trip(&client).await?;
    let mut late = Vec::new();
    for _ in 0..5 {
        let mut holder = spawn(&["hold", &server.url()])?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let lock = client.lock("to-be-killed");
        let waiting = tokio::spawn(async move { lock.lock().await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        holder.kill()?;
        holder.wait()?;
        let ends = Instant::now() + Duration::from_millis(server.pttl("to-be-killed").try_into()?);
        let guard = waiting.await??;
        late.push(Instant::now().saturating_duration_since(ends).as_secs_f64() * 1e3);
        guard.unlock().await?;
    }
    let most = late.iter().copied().fold(0.0, f64::max);
    let aim = Some(("at most 200 ms", most <= 200.0));
    report.row(
        "holder killed: the next has it after the lease's end by",
        format!("at most {most:.1} ms of 5"),
        Some(raw),
        aim,
    );
    Ok(())
}

async fn hold(url: &str) -> Outcome<()> {
    let client = Client::builder().url(url).watchdog(Duration::from_millis(1_500)).connect().await?;
    let _guard = client.lock("to-be-killed").lock().await?;
    println!("holding");
    tokio::time::sleep(Duration::from_secs(60)).await;
    Err("nobody killed me".into())
}
