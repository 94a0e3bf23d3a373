//! Several names at once: by a `MultiLock`, and the same names one by one.

use std::{
    collections::BTreeSet,
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Guard, MultiGuard, MultiLock};

use crate::{
    processes::{PROCESSES, lines, spawn},
    report::{Outcome, Report, nanos, raw_round_trip},
    support::Server,
};

const RUN: Duration = Duration::from_secs(5);
/// Of each process.
const TASKS: usize = 2;
/// How often the held names are counted.
const LOOK: Duration = Duration::from_millis(1);

/// How a worker acquires its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Together,
    OneByOne,
}

/// What one load came to.
struct Load {
    /// Of each task of each process, in order.
    turns: Vec<u64>,
    /// For how long the names were held without work, for each turn, in milliseconds; of all names together.
    unused: f64,
}

pub(crate) async fn several(server: &Server, report: &mut Report) -> Outcome<()> {
    let raw = raw_round_trip(&Client::connect(&server.url()).await?).await?;
    for work in [0, 1] {
        beside_one_by_one(server, report, raw, (3, 6), work)?;
    }
    for names in [2, 4, 6, 8] {
        beside_one_by_one(server, report, raw, (names, 12), 1)?;
    }
    many_beside_few(server, report, raw)
}

fn beside_one_by_one(
    server: &Server,
    report: &mut Report,
    raw: f64,
    (names, of): (usize, usize),
    work: u64,
) -> Outcome<()> {
    let load = |how| Load::of(server, of, workers(server, how, &format!("{names}/{of}"), work)?, names);
    let (together, singly) = (load(How::Together)?, load(How::OneByOne)?);
    let (rate, other) = (together.a_second(), singly.a_second());
    let name = format!("8 processes of 2 tasks, random {names} of {of} names, {work} ms of work");
    let measured = format!("{rate:.0}, {:.2} times the {other:.0} of the same names one by one", rate / other);
    report.row(format!("{name}: turns per second of a `MultiLock`"), measured, Some(raw), None);
    let measured = format!("{:.2} of its fair share; one by one: {:.2}", together.least(), singly.least());
    report.row(format!("{name}: the task with the fewest turns"), measured, Some(raw), None);
    let measured = format!("{:.1} ms; one by one: {:.1} ms", together.unused, singly.unused);
    report.row(
        format!("{name}: time that each turn holds names without work, all names together"),
        measured,
        Some(raw),
        None,
    );
    Ok(())
}

/// One task wants eight names; eight others want one of them each.
fn many_beside_few(server: &Server, report: &mut Report, raw: f64) -> Outcome<()> {
    let all = (0..8).map(|n| n.to_string()).collect::<Vec<_>>();
    let wanted = [vec![all.join(",")], all].concat();
    let workers = wanted.iter().map(|names| worker_for(server, How::Together, &format!("={names}"), 1, 1));
    let load = Load::of(server, 8, workers.collect::<Outcome<_>>()?, 1)?;
    let a_second = |turns: u64| turns as f64 / RUN.as_secs_f64();
    let (many, few) = (load.turns[0], &load.turns[1..]);
    let (least, most) = (few.iter().min().ok_or("eight")?, few.iter().max().ok_or("eight")?);
    let measured = format!("{:.0}, beside {:.0} to {:.0}", a_second(many), a_second(*least), a_second(*most));
    let name = "a task that wants 8 names beside 8 tasks that want one of them each, 1 ms of work: turns per second";
    report.row(name, measured, Some(raw), Some(("at least one", many as f64 >= RUN.as_secs_f64())));
    Ok(())
}

fn workers(server: &Server, how: How, wanted: &str, work: u64) -> Outcome<Vec<Child>> {
    (0..PROCESSES).map(|_| worker_for(server, how, wanted, work, TASKS)).collect()
}

fn worker_for(server: &Server, how: How, wanted: &str, work: u64, tasks: usize) -> Outcome<Child> {
    let how = if how == How::Together { "together" } else { "one-by-one" };
    spawn(&["several", &server.url(), how, wanted, &work.to_string(), &tasks.to_string()])
}

impl Load {
    /// Of workers that run already, when they have ended. `names`: how many each turn holds.
    fn of(server: &Server, all: usize, workers: Vec<Child>, names: usize) -> Outcome<Load> {
        let over = Arc::new(AtomicBool::new(false));
        let counter = thread::spawn({
            let (raw, over) = (server.raw(), Arc::clone(&over));
            move || name_seconds(raw, all, &over)
        });
        let (mut turns, mut spent) = (Vec::new(), 0);
        for worker in workers {
            for line in lines(worker)? {
                let (taken, worked) = line.split_once(' ').ok_or("two numbers")?;
                turns.push(taken.parse()?);
                spent += worked.parse::<u64>()?;
            }
        }
        over.store(true, Ordering::Relaxed);
        let held = counter.join().map_err(|_| "the counter panicked")??;
        let used = spent as f64 / 1e9 * names as f64;
        let unused = (held - used) * 1e3 / turns.iter().sum::<u64>() as f64;
        Ok(Load { turns, unused })
    }

    fn total(&self) -> u64 {
        self.turns.iter().sum()
    }

    fn a_second(&self) -> f64 {
        self.total() as f64 / RUN.as_secs_f64()
    }

    /// Beside an even share.
    fn least(&self) -> f64 {
        let least = self.turns.iter().min().copied().unwrap_or_default();
        least as f64 * self.turns.len() as f64 / self.total() as f64
    }
}

/// For how many seconds the names were held, all together: the server counts them again and again.
fn name_seconds(mut raw: redis::Connection, all: usize, over: &AtomicBool) -> Outcome<f64> {
    let (mut sum, mut last) = (0.0, Instant::now());
    while !over.load(Ordering::Relaxed) {
        let held: u32 = redis::cmd("EXISTS").arg((0..all).map(name_of).collect::<Vec<_>>()).query(&mut raw)?;
        sum += f64::from(held) * last.elapsed().as_secs_f64();
        last = Instant::now();
        thread::sleep(LOOK);
    }
    Ok(sum)
}

fn name_of(n: usize) -> String {
    format!("several-{n}")
}

/// What one turn wants.
#[derive(Debug, Clone)]
enum Wanted {
    /// So many of so many, at random.
    Random(usize, usize),
    These(Vec<usize>),
}

impl Wanted {
    fn read(text: &str) -> Outcome<Wanted> {
        if let Some(these) = text.strip_prefix('=') {
            return Ok(Wanted::These(these.split(',').map(str::parse).collect::<Result<_, _>>()?));
        }
        let (names, of) = text.split_once('/').ok_or("NAMES/OF")?;
        Ok(Wanted::Random(names.parse()?, of.parse()?))
    }

    /// In the order in which a caller that has no `MultiLock` acquires them, for else two callers could wait for each other.
    fn names(&self) -> Vec<String> {
        let numbers: BTreeSet<usize> = match self {
            Wanted::Random(names, of) => fastrand::choose_multiple(0..*of, *names).into_iter().collect(),
            Wanted::These(these) => these.iter().copied().collect(),
        };
        numbers.into_iter().map(name_of).collect()
    }
}

enum Held {
    Together(MultiGuard),
    OneByOne(Vec<Guard>),
}

async fn acquire(client: &Client, how: How, names: &[String]) -> leasehold::Result<Held> {
    let locks = names.iter().map(|name| client.mutex(name));
    if how == How::Together {
        return Ok(Held::Together(MultiLock::new(locks).lock().await?));
    }
    let mut guards = Vec::new();
    for lock in locks {
        guards.push(lock.lock().await?);
    }
    Ok(Held::OneByOne(guards))
}

impl Held {
    async fn release(self) -> leasehold::Result<()> {
        match self {
            Held::Together(guard) => guard.unlock().await,
            Held::OneByOne(guards) => {
                for guard in guards.into_iter().rev() {
                    guard.unlock().await?;
                }
                Ok(())
            }
        }
    }
}

/// `worker several URL together|one-by-one NAMES/OF|=N,N… WORK_MS TASKS`; a line for each task.
pub(crate) async fn worker(args: &[String]) -> Outcome<()> {
    let [url, how, wanted, work, tasks] = args else { return Err("URL HOW WANTED WORK_MS TASKS".into()) };
    let how = if how == "together" { How::Together } else { How::OneByOne };
    let (wanted, work) = (Wanted::read(wanted)?, Duration::from_millis(work.parse()?));
    let client = Client::connect(url).await?;
    let end = Instant::now() + RUN;
    let tasks: Vec<_> = (0..tasks.parse()?)
        .map(|_: usize| tokio::spawn(take_turns(client.clone(), how, wanted.clone(), work, end)))
        .collect();
    for task in tasks {
        let (turns, spent) = task.await??;
        println!("{turns} {spent}");
    }
    Ok(client.close().await?)
}

/// How many turns there were, and how long the work in them took, in nanoseconds.
async fn take_turns(client: Client, how: How, wanted: Wanted, work: Duration, end: Instant) -> Outcome<(u64, u64)> {
    let (mut turns, mut spent) = (0, 0);
    while Instant::now() < end {
        let held = acquire(&client, how, &wanted.names()).await?;
        let begun = Instant::now();
        if !work.is_zero() {
            tokio::time::sleep(work).await;
        }
        spent += nanos(begun);
        held.release().await?;
        turns += 1;
    }
    Ok((turns, spent))
}
