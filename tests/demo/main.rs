//! The main job, by several processes: raise one number in one file, each raise under the lock, and lose none, though
//! one process is killed while it holds the lock. `--no-lock` does the same without the lock, to show that the check
//! can fail. Run by scripts/demo.
//!
//! The parent hands out turns and collects one line for each finished one; the children know nothing of each other.

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    str::FromStr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{Client, Guard, Lock};

const PROCESSES: usize = 4;
const TASKS: usize = 8;
const TURNS: usize = 2_000;
/// How soon a dead holder is replaced; short, so that one need not wait long to see it.
const LEASE: Duration = Duration::from_secs(3);
const NAME: &str = "demo:counter";
/// The whole demonstration must be over by then.
const LIMIT: Duration = Duration::from_secs(120);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => parent(true),
        ["--no-lock"] => parent(false),
        ["worker", lock, counter] => worker(lock == "lock", counter.into()),
        _ => Err("usage: demo [--no-lock]".into()),
    }
}

// ---- The parent -----------------------------------------------------------------------------------------------

/// What a child says, one line each.
enum Said {
    /// A turn is done: when the lock was had, and when it was let go, in microseconds since boot.
    Turn(u64, u64),
    /// It holds the lock and has renewed it so many times, and does nothing else any more.
    Holding(u64),
    /// It has ended, with its renewals.
    Bye(u64),
}

impl FromStr for Said {
    type Err = Box<dyn Error + Send + Sync>;

    fn from_str(line: &str) -> Outcome<Said> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["turn", had, left] => Ok(Said::Turn(had.parse()?, left.parse()?)),
            ["holding", renewals] => Ok(Said::Holding(renewals.parse()?)),
            ["bye", renewals] => Ok(Said::Bye(renewals.parse()?)),
            _ => Err(format!("a child said {line:?}").into()),
        }
    }
}

struct Worker {
    child: Child,
    orders: ChildStdin,
    /// Turns given to it and not reported yet.
    open: usize,
}

/// What the parent has seen.
#[derive(Default)]
struct Seen {
    /// When the lock was had, to when it was let go.
    turns: BTreeMap<u64, u64>,
    done: usize,
    killed_at: Option<u64>,
    renewals: u64,
    byes: usize,
}

fn parent(lock: bool) -> Outcome<ExitCode> {
    let dir = tempfile::tempdir()?;
    let counter = dir.path().join("counter");
    fs::write(&counter, "0")?;
    println!(
        "{PROCESSES} processes of {TASKS} tasks raise a number in a file {TURNS} times{}.",
        if lock {
            format!(
                ", each time under the lock {NAME:?}.\nHalf-way one of them is killed while it holds the lock; its lease is {LEASE:?}"
            )
        } else {
            " without any lock".to_owned()
        }
    );
    let (sender, inbox) = mpsc::channel();
    let mut workers = (0..PROCESSES).map(|n| spawn(n, lock, &counter, &sender)).collect::<Outcome<Vec<_>>>()?;
    let seen = conduct(&mut workers, &inbox, lock);
    for worker in &mut workers {
        let _ = worker.child.kill(); // those that ended by themselves are not hurt
        worker.child.wait()?;
    }
    report(&seen?, read(&counter)?, lock)
}

fn spawn(n: usize, lock: bool, counter: &Path, said: &mpsc::Sender<(usize, Outcome<Said>)>) -> Outcome<Worker> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["worker", if lock { "lock" } else { "no-lock" }])
        .arg(counter)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let said = said.clone();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if said.send((n, line.parse())).is_err() {
                return;
            }
        }
    });
    let orders = child.stdin.take().ok_or("no input")?;
    Ok(Worker { child, orders, open: 0 })
}

/// Hands out all turns, kills one process half-way, and waits until the others have done the rest.
fn conduct(workers: &mut [Worker], inbox: &mpsc::Receiver<(usize, Outcome<Said>)>, lock: bool) -> Outcome<Seen> {
    let bar = ProgressBar::new(TURNS as u64).with_style(ProgressStyle::with_template("{bar:50} {pos}/{len} {msg}")?);
    let mut seen = Seen::default();
    for worker in workers.iter_mut() {
        give(worker, TURNS / PROCESSES)?;
    }
    let mut asked_to_hold = !lock;
    while seen.done < TURNS {
        let (n, said) = inbox.recv_timeout(LIMIT)?;
        match said? {
            Said::Turn(had, left) => {
                workers[n].open -= 1;
                seen.done += 1;
                seen.turns.insert(had, left);
                bar.set_position(seen.done as u64);
            }
            Said::Holding(renewals) => {
                seen.renewals += renewals;
                seen.killed_at = Some(now()?);
                bar.set_message("one killed; waiting for its lease to end");
                let left = kill(&mut workers[n])?;
                give(&mut workers[(n + 1) % PROCESSES], left)?;
            }
            Said::Bye(_) => return Err("a child ended early".into()),
        }
        if !asked_to_hold && seen.done >= TURNS / 2 {
            asked_to_hold = true;
            writeln!(workers[PROCESSES - 1].orders, "hold")?;
        }
    }
    bar.finish_and_clear();
    let living = PROCESSES - usize::from(seen.killed_at.is_some());
    for worker in workers.iter_mut() {
        let _ = writeln!(worker.orders, "end"); // one of them is dead
    }
    while seen.byes < living {
        if let Said::Bye(renewals) = inbox.recv_timeout(LIMIT)?.1? {
            seen.renewals += renewals;
            seen.byes += 1;
        }
    }
    Ok(seen)
}

fn give(worker: &mut Worker, turns: usize) -> Outcome<()> {
    worker.open += turns;
    Ok(writeln!(worker.orders, "{turns}")?)
}

/// SIGKILL; with the turns it still had to do.
fn kill(worker: &mut Worker) -> Outcome<usize> {
    worker.child.kill()?;
    worker.child.wait()?;
    Ok(std::mem::take(&mut worker.open))
}

fn report(seen: &Seen, counted: u64, lock: bool) -> Outcome<ExitCode> {
    let (first, last) = match (seen.turns.first_key_value(), seen.turns.last_key_value()) {
        (Some((first, _)), Some((_, last))) => (*first, *last),
        _ => return Err("nothing happened".into()),
    };
    let right = counted == TURNS as u64;
    println!("\n  expected          {TURNS}\n  counted           {counted}");
    println!("  turns per second  {:.0}", seen.turns.len() as f64 * 1e6 / (last - first - idle(seen)) as f64);
    if lock {
        let times = handovers(seen)?;
        let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        println!("  hand-over         p50 {:.2} ms, p99 {:.2} ms", at(0.5), at(0.99));
        println!("  acquired          {:.2} s after the kill, by a lease of {LEASE:?}", pause(seen) as f64 / 1e6);
        println!("  renewals          {}", seen.renewals);
    }
    println!(
        "\n{}",
        match (right, lock) {
            (true, _) => "Nothing was lost.".to_owned(),
            (false, true) => "RAISES WERE LOST.".to_owned(),
            (false, false) => format!("{} raises were lost: this is what the lock is for.", TURNS as u64 - counted),
        }
    );
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// From the kill to the next turn.
fn pause(seen: &Seen) -> u64 {
    let next = seen.killed_at.and_then(|killed| Some((killed, seen.turns.range(killed..).next()?)));
    next.map_or(0, |(killed, (next, _))| next - killed)
}

/// How long one process sat on the lock, and was waited for after its death.
fn idle(seen: &Seen) -> u64 {
    let around = seen.killed_at.and_then(|killed| {
        let (before, after) = (seen.turns.range(..killed).next_back()?, seen.turns.range(killed..).next()?);
        Some(after.0 - before.1)
    });
    around.unwrap_or(0)
}

/// From each release to the next turn, without the one that had to wait for the lease.
fn handovers(seen: &Seen) -> Outcome<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    for ((_, left), (had, _)) in seen.turns.iter().zip(seen.turns.iter().skip(1)) {
        let killed_between = seen.killed_at.is_some_and(|killed| (*left..*had).contains(&killed));
        if !killed_between {
            times.record(had.saturating_sub(*left))?;
        }
    }
    Ok(times)
}

// ---- A child --------------------------------------------------------------------------------------------------

#[tokio::main]
async fn worker(lock: bool, counter: PathBuf) -> Outcome<ExitCode> {
    let url = std::env::var("REDIS_URL")?;
    let client = Client::builder().url(url).watchdog(LEASE).connect().await?;
    let job = Arc::new(Job {
        lock: lock.then(|| client.lock(NAME)),
        counter,
        turns: AtomicI64::new(0),
        more: tokio::sync::Semaphore::new(0),
        output: Mutex::new(io::stdout()),
    });
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(take_turns(Arc::clone(&job)))).collect();
    let (sender, mut orders) = tokio::sync::mpsc::unbounded_channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    while let Some(order) = orders.recv().await {
        match order.as_str() {
            "hold" => hold(&job, &client).await?,
            "end" => break,
            turns => job.more.add_permits(turns.parse()?),
        }
    }
    // A turn is said before its lock is released, and a closed client would take the lock from it.
    job.more.close();
    for task in tasks {
        task.await?;
    }
    job.say(format!("bye {}", client.stats().total.renewals))?;
    client.close().await?;
    Ok(ExitCode::SUCCESS)
}

struct Job {
    lock: Option<Lock>,
    counter: PathBuf,
    turns: AtomicI64,
    /// Turns to take.
    more: tokio::sync::Semaphore,
    output: Mutex<io::Stdout>,
}

impl Job {
    fn say(&self, line: String) -> Outcome<()> {
        let mut output = self.output.lock().map_err(|_| "a task panicked")?;
        writeln!(output, "{line}")?;
        Ok(output.flush()?)
    }
}

async fn take_turns(job: Arc<Job>) {
    while let Ok(turn) = job.more.acquire().await {
        turn.forget();
        if let Err(error) = take_turn(&job).await {
            eprintln!("a turn failed: {error}");
            std::process::exit(1);
        }
    }
}

async fn take_turn(job: &Job) -> Outcome<()> {
    let guard = match &job.lock {
        Some(lock) => Some(lock.lock().await?),
        None => None,
    };
    let had = now()?;
    // Every fifth turn asks for the lock once more on the way down, as code does that calls other code.
    let nested = job.turns.fetch_add(1, Ordering::Relaxed) % 5 == 0;
    let inner = if nested { again(job).await? } else { None };
    raise(&job.counter).await?;
    if let Some(inner) = inner {
        inner.unlock().await?;
    }
    // Said before the lock is let go: a turn that is written is a turn that is counted.
    job.say(format!("turn {had} {}", now()?))?;
    if let Some(guard) = guard {
        guard.unlock().await?;
    }
    Ok(())
}

/// Reads the number and writes the next one. Other tasks run in between, as they would around any await.
async fn raise(counter: &Path) -> Outcome<()> {
    let number = read(counter)?;
    tokio::task::yield_now().await;
    let new = counter.with_extension(format!("{}-{:?}", std::process::id(), thread::current().id()));
    fs::write(&new, (number + 1).to_string())?;
    // Renamed, so that without the lock others read an old number, but never half of one.
    Ok(fs::rename(new, counter)?)
}

async fn again(job: &Job) -> Outcome<Option<Guard>> {
    match &job.lock {
        Some(lock) => Ok(Some(lock.lock().await?)),
        None => Ok(None),
    }
}

/// Takes the lock, keeps it until it has been renewed twice, and waits for the end.
async fn hold(job: &Job, client: &Client) -> Outcome<()> {
    let _guard = client.lock(NAME).lock().await?;
    let before = client.stats().total.renewals;
    while client.stats().total.renewals < before + 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    job.say(format!("holding {}", client.stats().total.renewals))?;
    std::future::pending().await
}

fn read(counter: &Path) -> Outcome<u64> {
    Ok(fs::read_to_string(counter)?.parse()?)
}

/// Microseconds on a clock that all processes of the machine share.
fn now() -> Outcome<u64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Ok(u64::try_from(time.tv_sec)? * 1_000_000 + u64::try_from(time.tv_nsec)? / 1_000)
}
