//! Several processes, one name. Workers are this program again, told what to do by their arguments.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold::{Client, FairLock, Guard, Lock, Quorum, QuorumGuard, QuorumLock, RwLock};

use crate::{
    report::{Outcome, Report, calls, clock, median, micros, nanos, raw_round_trip},
    support::Server,
};

pub(crate) const PROCESSES: usize = 8;
pub(crate) const TASKS: usize = 8;
/// Who asked at least this long before the release was waiting when it came, in nanoseconds.
const ASKED_BEFORE: u64 = 1_000_000;
pub(crate) const RUN: Duration = Duration::from_secs(10);

pub(crate) async fn all(server: &Server, report: &mut Report) -> Outcome<()> {
    for work in [0, 1] {
        share(server, report, work).await?;
    }
    killed(server, report, "hold", "holder killed").await?;
    killed(server, report, "pass", "process killed while it hands over between its tasks").await
}

/// `worker share URL WORK_MS KIND TASKS`, `worker turns URL`, `worker hold URL`, `worker pass URL`.
pub(crate) async fn worker(args: &[String]) -> Outcome<()> {
    let [kind, url, rest @ ..] = args else { return Err("worker KIND URL".into()) };
    match (kind.as_str(), rest) {
        ("share", [work, kind, tasks]) => shared(url, Duration::from_millis(work.parse()?), kind, tasks.parse()?).await,
        ("turns", []) => turns(url).await,
        ("hold", []) => hold(url).await,
        ("pass", []) => pass(url).await,
        _ => Err("no such worker".into()),
    }
}

pub(crate) fn spawn(args: &[&str]) -> Outcome<Child> {
    let program = std::env::current_exe()?;
    Ok(Command::new(program).arg("worker").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

/// All that a worker says, when it has ended.
pub(crate) fn lines(mut child: Child) -> Outcome<Vec<String>> {
    let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines().collect::<Result<_, _>>()?;
    if child.wait()?.success() { Ok(lines) } else { Err("a worker failed".into()) }
}

/// What workers of one kind came to.
#[derive(Default)]
pub(crate) struct Shares {
    turns: Vec<f64>,
    /// With work, in nanoseconds.
    spent: f64,
}

impl Shares {
    /// Of workers that run already, when they have ended.
    pub(crate) fn of(workers: Vec<Child>) -> Outcome<Shares> {
        let mut shares = Shares::default();
        for worker in workers {
            let said = lines(worker)?;
            let (taken, worked) = said.last().and_then(|line| line.split_once(' ')).ok_or("two numbers")?;
            shares.turns.push(taken.parse()?);
            shares.spent += worked.parse::<f64>()?;
        }
        Ok(shares)
    }

    fn total(&self) -> f64 {
        self.turns.iter().sum()
    }

    pub(crate) fn a_second(&self) -> f64 {
        self.total() / RUN.as_secs_f64()
    }

    /// Of the process that had the fewest turns, beside an even share.
    pub(crate) fn least(&self) -> f64 {
        self.turns.iter().copied().fold(f64::MAX, f64::min) / (self.total() / self.turns.len() as f64)
    }
}

/// Eight processes that share so many tasks, each of which takes turns for ten seconds.
pub(crate) fn sharing(server: &Server, kind: &str, work: u64, tasks: usize) -> Outcome<Vec<Child>> {
    let of = |n| (tasks + n) / PROCESSES;
    (0..PROCESSES).map(|n| spawn(&["share", &server.url(), &work.to_string(), kind, &of(n).to_string()])).collect()
}

async fn share(server: &Server, report: &mut Report, work: u64) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let raw = raw_round_trip(&client).await?;
    let before: u64 = calls(server).values().sum();
    let shares = Shares::of(sharing(server, "lock", work, PROCESSES * TASKS)?)?;
    let commands = calls(server).values().sum::<u64>() - before;
    let (total, spent, least) = (shares.total(), shares.spent, shares.least());
    // What is asked to take a millisecond takes as long as tokio's timer makes it.
    let ideal = 1e6 / (raw + if work == 0 { 0.0 } else { spent / total / 1e3 });
    let name = format!("8 processes of 8 tasks, {work} ms of work");
    let met = least >= 0.5;
    let measured = format!("{least:.2} of its fair share");
    report.row(format!("{name}: the process with the fewest turns"), measured, Some(raw), Some(("at least 0.5", met)));
    let a_second = shares.a_second();
    let measured = format!("{a_second:.0}, {:.2} per work and raw round trip", a_second / ideal);
    report.row(format!("{name}: turns per second"), measured, Some(raw), None);
    // What scripts call counts too: an acquire is four commands, a hand-over five.
    report.row(
        format!("{name}: commands per turn, including those in scripts"),
        format!("{:.1}", commands as f64 / total),
        Some(raw),
        None,
    );
    Ok(())
}

/// What the workers want.
enum Wanted {
    Lock(Lock),
    Fair(FairLock),
    Reading(RwLock),
}

impl Wanted {
    fn of(client: &Client, kind: &str) -> Outcome<Wanted> {
        Ok(match kind {
            "lock" => Wanted::Lock(client.lock("shared")),
            "fair" => Wanted::Fair(client.fair_lock("shared-fairly")),
            "read" => Wanted::Reading(client.rw_lock("read-and-written")),
            _ => return Err("no such kind".into()),
        })
    }

    async fn take(&self, limit: Duration) -> leasehold::Result<Option<Guard>> {
        match self {
            Wanted::Lock(lock) => lock.try_lock_for(limit).await,
            Wanted::Fair(lock) => lock.try_lock_for(limit).await,
            Wanted::Reading(lock) => Ok(lock.try_read_for(limit).await?.map(Guard::from)),
        }
    }
}

async fn shared(url: &str, work: Duration, kind: &str, tasks: usize) -> Outcome<()> {
    let client = Client::connect(url).await?;
    let end = Instant::now() + RUN;
    let tasks = (0..tasks)
        .map(|_| {
            let wanted = Wanted::of(&client, kind)?;
            Ok(tokio::spawn(async move {
                let (mut turns, mut spent) = (0_u64, 0);
                while let Some(left) = end.checked_duration_since(Instant::now()) {
                    let Some(guard) = wanted.take(left).await? else { break };
                    if !work.is_zero() {
                        let begun = Instant::now();
                        tokio::time::sleep(work).await;
                        spent += nanos(begun);
                    }
                    guard.unlock().await?;
                    turns += 1;
                }
                Outcome::Ok((turns, spent))
            }))
        })
        .collect::<Outcome<Vec<_>>>()?;
    let (mut turns, mut spent) = (0, 0);
    for task in tasks {
        let done = task.await??;
        (turns, spent) = (turns + done.0, spent + done.1);
    }
    client.close().await?; // what was handed to a waiter out of time is still on its way back
    println!("{turns} {spent}");
    Ok(())
}

pub(crate) async fn hand_over(server: &Server, report: &mut Report) -> Outcome<()> {
    let HandOvers { p50, p99, raw, count } = HandOvers::over(&server.url())?;
    let measured =
        format!("{p50:.0}, {p99:.0} µs, {:.1} and {:.1} round trips ({count} measured)", p50 / raw, p99 / raw);
    let aim = Some(("at most 4, 10 round trips", p50 <= 4.0 * raw && p99 <= 10.0 * raw));
    report.row("hand-over between processes, p50, p99", measured, Some(raw), aim);
    Ok(())
}

/// The same over three servers, beside the one in turn, since the machine has moods.
pub(crate) async fn hand_over_by_majority(server: &Server, report: &mut Report) -> Outcome<()> {
    let more = [Server::start(), Server::start()];
    let three = [server.url(), more[0].url(), more[1].url()].join(",");
    let (mut ratios, mut single, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let (one, all) = (HandOvers::over(&server.url())?, HandOvers::over(&three)?);
        ratios.push(all.p50 / one.p50);
        single.push(one.p50);
        whole.push(all);
    }
    let (ratio, single) = (median(ratios), median(single));
    let of = |figure: fn(&HandOvers) -> f64| median(whole.iter().map(figure).collect());
    let (p50, p99, raw) = (of(|all| all.p50), of(|all| all.p99), of(|all| all.raw));
    let measured = format!("{p50:.0}, {p99:.0} µs; p50 {ratio:.2} times the {single:.0} µs of one server");
    let aim = Some(("p50 under twice that of one server", ratio < 2.0));
    report.row("hand-over between processes over three servers, p50, p99", measured, Some(raw), aim);
    Ok(())
}

/// In microseconds.
struct HandOvers {
    p50: f64,
    p99: f64,
    raw: f64,
    count: u64,
}

impl HandOvers {
    /// From `unlock()` called in one process to `lock()` returned in another: both always want it, and neither asks again
    /// before the other had the chance.
    fn over(urls: &str) -> Outcome<HandOvers> {
        let (turns, raws) = turns_of([spawn(&["turns", urls])?, spawn(&["turns", urls])?])?;
        let mut times = Histogram::<u64>::new(3)?;
        for pair in turns.windows(2) {
            let [(_, left, _, one), (had, _, asked, other)] = [pair[0], pair[1]];
            if one != other && asked + ASKED_BEFORE < left {
                times.record(had.saturating_sub(left))?;
            }
        }
        let (p50, p99) = (micros(&times, 0.5), micros(&times, 0.99));
        Ok(HandOvers { p50, p99, raw: median(raws), count: times.len() })
    }
}

/// When each turn began and ended, when it was asked for, and by which process, in order; and raw round trips in microseconds.
type Turns = (Vec<(u64, u64, u64, usize)>, Vec<f64>);

fn turns_of(workers: [Child; 2]) -> Outcome<Turns> {
    let mut raws = Vec::new();
    let mut turns: Vec<(u64, u64, u64, usize)> = Vec::new();
    for (n, worker) in workers.into_iter().enumerate() {
        for line in lines(worker)? {
            let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
            let [asked, had, left, raw] = numbers[..] else { return Err("four numbers".into()) };
            raws.push(raw as f64 / 1e3);
            turns.push((had, left, asked, n));
        }
    }
    turns.sort_unstable();
    Ok((turns, raws))
}

/// A lock on one server, or over several.
enum ToAndFro {
    One(Lock),
    Majority(QuorumLock),
}

enum Turn {
    One(Guard),
    Majority(QuorumGuard),
}

impl ToAndFro {
    fn of(clients: Vec<Client>) -> Outcome<ToAndFro> {
        const NAME: &str = "to-and-fro";
        Ok(match &clients[..] {
            [client] => ToAndFro::One(client.lock(NAME)),
            _ => ToAndFro::Majority(Quorum::new(clients)?.lock(NAME)),
        })
    }

    async fn lock(&self) -> leasehold::Result<Turn> {
        Ok(match self {
            ToAndFro::One(lock) => Turn::One(lock.lock().await?),
            ToAndFro::Majority(lock) => Turn::Majority(lock.lock().await?),
        })
    }
}

impl Turn {
    async fn unlock(self) -> leasehold::Result<()> {
        match self {
            Turn::One(guard) => guard.unlock().await,
            Turn::Majority(guard) => guard.unlock().await,
        }
    }
}

/// `urls`: of one server, or of several.
async fn turns(urls: &str) -> Outcome<()> {
    let mut clients = Vec::new();
    for url in urls.split(',') {
        clients.push(Client::connect(url).await?);
    }
    let nothing = clients[0].raw_script("return 1").await?;
    let lock = ToAndFro::of(clients)?;
    let mut turns = Vec::new();
    tokio::spawn(async move {
        for _ in 0..1_500 {
            let asked = clock();
            let guard = lock.lock().await?;
            let had = clock();
            tokio::time::sleep(Duration::from_millis(3)).await;
            // The raw round trip of this very moment, by the one who has the lock.
            let begun = Instant::now();
            nothing.call(vec!["raw".to_owned()], Vec::new()).await?;
            let (raw, left) = (nanos(begun), clock());
            guard.unlock().await?;
            turns.push((asked, had, left, raw));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        turns.iter().for_each(|(asked, had, left, raw)| println!("{asked} {had} {left} {raw}"));
        Ok(())
    })
    .await?
}

/// A process killed with SIGKILL: how long after the end of its lease the next one has the lock.
async fn killed(server: &Server, report: &mut Report, worker: &str, name: &str) -> Outcome<()> {
    let client = Client::connect(&server.url()).await?;
    let raw = raw_round_trip(&client).await?;
    let mut late = Vec::new();
    for n in 0..5 {
        let mut holder = spawn(&[worker, &server.url()])?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let lock = client.lock("to-be-killed");
        let waiting = tokio::spawn(async move { lock.lock().await });
        // Not at the same point of a hand-over each time.
        tokio::time::sleep(Duration::from_millis(100) + Duration::from_micros(n * 37)).await;
        holder.kill()?;
        holder.wait()?;
        let left = server.pttl("to-be-killed").try_into().unwrap_or(0);
        let ends = Instant::now() + Duration::from_millis(left);
        let guard = waiting.await??;
        late.push(Instant::now().saturating_duration_since(ends).as_secs_f64() * 1e3);
        guard.unlock().await?;
    }
    let most = late.iter().copied().fold(0.0, f64::max);
    let measured = format!("at most {most:.1} ms in {} tries", late.len());
    let aim = Some(("at most 200 ms", most <= 200.0));
    report.row(format!("{name}: from the end of the lease to the next holder"), measured, Some(raw), aim);
    Ok(())
}

async fn hold(url: &str) -> Outcome<()> {
    let client = Client::builder().url(url).watchdog(Duration::from_millis(1_500)).connect().await?;
    let _guard = client.lock("to-be-killed").lock().await?;
    println!("holding");
    tokio::time::sleep(Duration::from_secs(60)).await;
    Err("nobody killed me".into())
}

/// Tasks that hand the lock to each other for ever, and never to others.
async fn pass(url: &str) -> Outcome<()> {
    let builder = Client::builder().url(url).watchdog(Duration::from_millis(1_500)).handovers(u32::MAX);
    let client = builder.connect().await?;
    for _ in 0..TASKS {
        let lock = client.lock("to-be-killed");
        tokio::spawn(async move {
            loop {
                lock.lock().await?.unlock().await?;
            }
            #[allow(unreachable_code)]
            Outcome::Ok(())
        });
    }
    println!("passing");
    tokio::time::sleep(Duration::from_secs(60)).await;
    Err("nobody killed me".into())
}
