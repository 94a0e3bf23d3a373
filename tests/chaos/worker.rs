//! One client process: tasks that take locks in every way there is, and a log of it.
//!
//! Every line is written, with one system call, before what it announces and after what it reports: so a process that is
//! killed has said all it knew.

use std::{
    fs::File,
    io::{BufRead, Write},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Error, Guard, Lock};
use tokio::{
    runtime::Builder,
    time::{Instant, sleep, timeout},
};

use crate::{
    BUSY, LEASE, QUIET, SLOW, clock,
    history::{Event, What},
};

const TASKS: u32 = 8;
const SLOW_TASKS: u32 = 2;
const QUIET_TASK: u32 = SLOW_TASKS;
/// How often a holder notes until when it is certain.
const NOTE: Duration = Duration::from_millis(20);
/// How long the client rides out an outage.
const OUTAGE: Duration = Duration::from_secs(3);
/// How long a cancelled request may take to be taken back.
const ON_ITS_WAY_BACK: Duration = Duration::from_secs(3);
/// The longest fixed lease, in milliseconds.
const FIXED: u64 = 1_200;

/// `worker URL LOG SEED`; ends when its standard input does.
pub(crate) fn run(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [url, log, seed] = args else { return Err("worker URL LOG SEED".into()) };
    let seed: u64 = seed.parse()?;
    // Every other client lives on a runtime that stands still between its `block_on`s.
    let mut builder = if seed.is_multiple_of(2) { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(2).enable_all().build()?.block_on(work(url, Path::new(log), seed))
}

async fn work(url: &str, log: &Path, seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    let log = Arc::new(Log(Mutex::new(File::create(log)?)));
    let client = connect(url).await?;
    let over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(task.into()));
            let player = Player { client: client.clone(), log: Arc::clone(&log), task, random };
            tokio::spawn(player.play(Arc::clone(&over)))
        })
        .collect();
    tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().for_each(drop)).await?;
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await?;
    }
    println!("{}", ways(&client));
    client.close().await?;
    Ok(())
}

/// The server may be away when a client starts.
async fn connect(url: &str) -> Result<Client, Error> {
    let ends = Instant::now() + Duration::from_secs(20);
    loop {
        let client = Client::builder().url(url).watchdog(LEASE).outage_timeout(OUTAGE).handovers(4);
        match client.command_timeout(Duration::from_millis(500)).connect().await {
            Err(Error::Unavailable { .. }) if Instant::now() < ends => sleep(Duration::from_millis(50)).await,
            connected => return connected,
        }
    }
}

fn ways(client: &Client) -> String {
    let stats = client.stats();
    let numbers = [stats.first_try, stats.woken, stats.handed_over, stats.by_timer, stats.reentered, stats.lost];
    numbers.map(|number| number.to_string()).join(" ")
}

struct Log(Mutex<File>);

/// One task.
struct Player {
    client: Client,
    log: Arc<Log>,
    task: u32,
    random: fastrand::Rng,
}

impl Player {
    async fn play(mut self, over: Arc<AtomicBool>) {
        while !over.load(Ordering::Relaxed) {
            if self.task == QUIET_TASK {
                self.now_and_then().await;
                continue;
            }
            // Long holds on a few names and by a few tasks, so that the others see many turns.
            let slow = self.task < SLOW_TASKS;
            let names = if slow { SLOW } else { BUSY };
            let lock = self.client.lock(names[self.random.usize(..names.len())]);
            match self.random.u32(..100) {
                0..20 if slow => self.long(&lock).await,
                20..40 if slow => self.fixed(&lock).await,
                0..25 => self.plain(&lock).await,
                25..50 => self.nested(&lock).await,
                50..65 => self.in_time(&lock).await,
                65..75 => self.cancelled(&lock).await,
                75..87 => self.cancelled_within(&lock).await,
                87..97 => self.dropped(&lock).await,
                _ => self.at_once(&lock).await,
            }
            sleep(self.millis(0..=10)).await;
        }
    }

    fn millis(&mut self, range: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range))
    }

    /// A name that few want: who misses his call is not saved by the next release.
    async fn now_and_then(&mut self) {
        sleep(self.millis(0..=1_500)).await;
        let Some(guard) = self.take(&self.client.lock(QUIET)).await else { return };
        let time = self.millis(30..=120);
        self.hold(&guard, time).await;
        self.give_back(guard).await;
    }

    async fn plain(&mut self, lock: &Lock) {
        let Some(guard) = self.take(lock).await else { return };
        let time = self.millis(0..=8);
        self.hold(&guard, time).await;
        if self.random.u32(..4) == 0 {
            self.count(lock, &guard).await;
        }
        self.give_back(guard).await;
    }

    /// Two or three levels, counted, and given back in any order.
    async fn nested(&mut self, lock: &Lock) {
        let Some(outer) = self.take(lock).await else { return };
        let mut guards = vec![outer];
        for _ in 0..self.random.u32(1..=2) {
            guards.extend(self.take(lock).await);
        }
        self.count(lock, &guards[0]).await;
        self.random.shuffle(&mut guards);
        for guard in guards {
            let time = self.millis(0..=5);
            self.hold(&guard, time).await;
            self.give_back(guard).await;
        }
    }

    async fn in_time(&mut self, lock: &Lock) {
        let patience = self.millis(0..=300);
        self.note(lock, What::Asked);
        match lock.try_lock_for(patience).await {
            // A server that is slow for a moment can outlast a short patience.
            Err(Error::Unavailable { .. }) => self.note(lock, What::Left),
            taken => self.taken_for(lock, taken, 10).await,
        }
    }

    async fn at_once(&mut self, lock: &Lock) {
        self.note(lock, What::Asked);
        let taken = lock.try_lock().await;
        self.taken_for(lock, taken, 10).await;
    }

    async fn taken_for(&mut self, lock: &Lock, taken: leasehold::Result<Option<Guard>>, most: u64) {
        let Some(guard) = self.taken(lock, taken) else { return };
        let time = self.millis(0..=most);
        self.hold(&guard, time).await;
        self.give_back(guard).await;
    }

    /// The future is dropped at some point; if it came to something before, that is given back.
    async fn cancelled(&mut self, lock: &Lock) {
        let patience = Duration::from_micros(self.random.u64(0..=30_000));
        self.note(lock, What::Asked);
        match timeout(patience, lock.lock()).await {
            Ok(taken) => self.taken_for(lock, taken.map(Some), 5).await,
            Err(_) => self.note(lock, What::Left),
        }
    }

    /// A nested call is dropped while the outer level is held.
    async fn cancelled_within(&mut self, lock: &Lock) {
        let Some(outer) = self.take(lock).await else { return };
        let patience = Duration::from_micros(self.random.u64(0..=400));
        if let Ok(Ok(inner)) = timeout(patience, lock.lock()).await {
            drop(inner);
        }
        if self.random.bool() {
            self.count(lock, &outer).await;
        }
        self.give_back(outer).await;
    }

    async fn dropped(&mut self, lock: &Lock) {
        let Some(guard) = self.take(lock).await else { return };
        let time = self.millis(0..=10);
        self.hold(&guard, time).await;
        self.note(lock, What::Releasing { id: guard.id().to_owned(), left: 0 });
        drop(guard);
    }

    /// Longer than the lease, which the watchdog keeps.
    async fn long(&mut self, lock: &Lock) {
        let Some(guard) = self.take(lock).await else { return };
        let time = self.millis(500..=4_000);
        self.hold(&guard, time).await;
        self.give_back(guard).await;
    }

    /// A lease of its own, sometimes shorter than the work.
    async fn fixed(&mut self, lock: &Lock) {
        let lease = self.millis(200..=FIXED);
        let Some(guard) = self.take(&lock.clone().lease(lease)).await else { return };
        let time = self.millis(0..=400);
        self.hold(&guard, time).await;
        self.give_back(guard).await;
    }

    async fn take(&self, lock: &Lock) -> Option<Guard> {
        self.note(lock, What::Asked);
        let taken = lock.lock().await.map(Some);
        self.taken(lock, taken)
    }

    fn taken(&self, lock: &Lock, taken: leasehold::Result<Option<Guard>>) -> Option<Guard> {
        match taken {
            Ok(Some(guard)) => {
                let until = certain(&guard);
                self.note(lock, What::Granted { id: guard.id().to_owned(), until });
                return Some(guard);
            }
            // An owner that had it and lost it is told so.
            Ok(None) | Err(Error::Lost { .. }) => self.note(lock, What::Left),
            Err(error) => self.note(lock, What::Failed { error: error.to_string() }),
        }
        None
    }

    /// Keeps it for that long, or until it is lost, and notes until when it is certain.
    async fn hold(&self, guard: &Guard, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || guard.is_lost() {
                return;
            }
            let id = guard.id().to_owned();
            self.note_name(guard.name(), What::Sure { id: id.clone(), until: certain(guard) });
            tokio::select! {
                biased;
                _ = guard.lost() => return self.note_name(guard.name(), What::Lost { id }),
                () = sleep(left.min(NOTE)) => {}
            }
        }
    }

    async fn give_back(&self, guard: Guard) {
        let (id, name, left) = (guard.id().to_owned(), guard.name().to_owned(), u64::from(guard.holds()) - 1);
        self.note_name(&name, What::Releasing { id: id.clone(), left });
        match guard.unlock().await {
            Ok(()) => self.note_name(&name, What::Released { id }),
            Err(Error::Lost { .. }) => self.note_name(&name, What::Lost { id }),
            Err(error) => self.note_name(&name, What::Failed { error: error.to_string() }),
        }
    }

    /// Asks the server for the levels. What was cancelled may still be on its way back, so it is given time.
    async fn count(&self, lock: &Lock, guard: &Guard) {
        let (since, id, believed) = (clock(), guard.id(), u64::from(guard.holds()));
        let ends = Instant::now() + ON_ITS_WAY_BACK;
        while let Ok(holder) = lock.inspect().await {
            let counted = holder.filter(|holder| holder.id == id).map_or(0, |holder| holder.holds);
            if counted == believed || guard.is_lost() || Instant::now() >= ends {
                return self.note(lock, What::Counted { id: id.to_owned(), since, believed, counted });
            }
            self.note(lock, What::Sure { id: id.to_owned(), until: certain(guard) });
            sleep(NOTE).await;
        }
    }

    fn note(&self, lock: &Lock, what: What) {
        self.note_name(lock.name(), what);
    }

    fn note_name(&self, name: &str, what: What) {
        let mut file = self.log.0.lock().unwrap_or_else(PoisonError::into_inner);
        let event = Event { at: clock(), task: self.task, name: name.to_owned(), what };
        file.write_all(format!("{event}\n").as_bytes()).expect("the log can be written");
    }
}

/// Until when the lock is certainly ours; never later than the guard says.
fn certain(guard: &Guard) -> u64 {
    let now = clock();
    now + u64::try_from(guard.remaining().as_nanos()).expect("a lease is shorter than centuries")
}
