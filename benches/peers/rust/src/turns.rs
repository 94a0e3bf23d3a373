//! Tasks that lock and unlock as often as they can.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{Args, Client, Lock, Outcome, nanos};

/// The time that counts, after the one to warm up.
#[derive(Clone, Copy)]
struct Window {
    opens: Instant,
    closes: Instant,
}

/// What one task did.
#[derive(Default)]
struct Tally {
    /// Turns that ended within the window.
    turns: u64,
    all_turns: u64,
    errors: u64,
    /// Locked while others had it, as many as may.
    violations: u64,
    /// From lock() called to unlock() returned.
    times: Vec<u64>,
}

/// Each task has a name of its own.
pub(crate) async fn own_names<C: Client>(client: &C, args: &Args) -> Outcome<String> {
    let names: Vec<_> = (0..args.tasks).map(|task| format!("{}-{task}", args.name)).collect();
    for name in &names {
        client.prepare(name).await?;
    }
    let window = Window::new(args);
    let tasks = names.iter().map(|name| {
        let holders = Holders { now: Arc::default(), most: 1 };
        tokio::spawn(turns(client.lock(name), window, Duration::ZERO, holders))
    });
    report(tasks.collect(), args).await
}

/// All want the same. Readers have it together.
pub(crate) async fn one_name<C: Client>(client: &C, args: &Args) -> Outcome<String> {
    client.prepare(&args.name).await?;
    let (window, all) = (Window::new(args), Arc::default());
    let tasks = (0..args.tasks).map(|_| {
        let (lock, work) = (client.lock(&args.name), args.work);
        let holders = Holders { now: Arc::clone(&all), most: args.kind.room() };
        tokio::spawn(turns(lock, window, work, holders))
    });
    report(tasks.collect(), args).await
}

/// How many have it now, and how many may.
struct Holders {
    now: Arc<AtomicU32>,
    most: u32,
}

impl Window {
    fn new(args: &Args) -> Window {
        let opens = Instant::now() + args.warm_up;
        Window { opens, closes: opens + args.seconds }
    }
}

async fn turns(mut lock: impl Lock, window: Window, work: Duration, holders: Holders) -> Tally {
    let mut tally = Tally::default();
    while Instant::now() < window.closes {
        let begun = Instant::now();
        match turn(&mut lock, work, &holders).await {
            Ok(alone) => tally.count(window, begun, alone),
            Err(error) => tally.failed(error.as_ref()).await,
        }
    }
    tally
}

/// Whether no more others had it meanwhile than may.
async fn turn(lock: &mut impl Lock, work: Duration, holders: &Holders) -> Outcome<bool> {
    lock.lock().await?;
    let others = holders.now.fetch_add(1, Ordering::SeqCst);
    spin(work);
    holders.now.fetch_sub(1, Ordering::SeqCst);
    lock.unlock().await?;
    Ok(others < holders.most)
}

/// Work that is equally long in every language; their timers are not.
fn spin(work: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < work {
        std::hint::spin_loop();
    }
}

impl Tally {
    fn count(&mut self, window: Window, begun: Instant, alone: bool) {
        let now = Instant::now();
        self.all_turns += 1;
        self.violations += u64::from(!alone);
        if now >= window.opens && now < window.closes {
            self.turns += 1;
            self.times.push(nanos(now - begun));
        }
    }

    async fn failed(&mut self, error: &(dyn std::error::Error + Send + Sync)) {
        if self.errors == 0 {
            eprintln!("{error}");
        }
        self.errors += 1;
        tokio::time::sleep(Duration::from_millis(1)).await; // not the busy loop that an error at once would make
    }
}

async fn report(tasks: Vec<tokio::task::JoinHandle<Tally>>, args: &Args) -> Outcome<String> {
    let mut tallies = Vec::new();
    for task in tasks {
        tallies.push(task.await?);
    }
    let sum = |pick: fn(&Tally) -> u64| tallies.iter().map(pick).sum::<u64>();
    let turns = tallies.iter().map(|tally| tally.turns);
    let (least, most) = (turns.clone().min().unwrap_or(0), turns.max().unwrap_or(0));
    let mut times: Vec<u64> = tallies.iter().flat_map(|tally| tally.times.iter().copied()).collect();
    times.sort_unstable();
    Ok(format!(
        r#""turns":{},"all_turns":{},"errors":{},"violations":{},"least":{least},"most":{most},"seconds":{},"p50":{},"p99":{}"#,
        sum(|tally| tally.turns),
        sum(|tally| tally.all_turns),
        sum(|tally| tally.errors),
        sum(|tally| tally.violations),
        args.seconds.as_secs_f64(),
        quantile(&times, 50),
        quantile(&times, 99),
    ))
}

fn quantile(sorted: &[u64], percent: usize) -> u64 {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or(0)
}
