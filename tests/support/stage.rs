//! Child processes that write logs, and some of which are killed. The checker of histories reads the logs.

use std::{
    env,
    fs::{self, File},
    io::Write,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use fastrand::Rng;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{
    Server,
    history::{Event, History, What},
    process::Process,
};

const LOG: &str = "LEASEHOLD_TEST_LOG";
const SEED: &str = "LEASEHOLD_TEST_SEED";
const MILLIS: &str = "LEASEHOLD_TEST_MILLIS";

fn told(name: &str) -> String {
    env::var(name).expect("started by another test")
}

/// Nanoseconds on a clock that all processes of the machine share.
pub(crate) fn clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("shorter than centuries")
}

/// In a child: the log of one of its tasks.
#[derive(Clone)]
pub(crate) struct Log {
    file: Arc<Mutex<File>>,
    task: u32,
}

impl Log {
    pub(crate) fn of_this_child() -> Log {
        Log { file: Arc::new(Mutex::new(File::create(told(LOG)).expect("a log"))), task: 0 }
    }

    /// For another task, with dice of its own.
    pub(crate) fn of_task(&self, task: u32) -> (Log, Rng) {
        let seed: u64 = told(SEED).parse().expect("a number");
        (Log { file: Arc::clone(&self.file), task }, Rng::with_seed(seed + u64::from(task) * 1_000))
    }

    /// In one write, so that the log of a killed process is complete.
    pub(crate) fn note<'a>(&self, all: impl IntoIterator<Item = (&'a str, What)>) {
        let event = |(name, what)| Event { at: clock(), task: self.task, name: String::from(name), what };
        let lines: String = all.into_iter().map(|one| format!("{}\n", event(one))).collect();
        self.file.lock().expect("no panic").write_all(lines.as_bytes()).expect("the log can be written");
    }

    /// When the children end.
    pub(crate) fn ends() -> Instant {
        Instant::now() + Duration::from_millis(told(MILLIS).parse().expect("a number"))
    }
}

struct Child {
    name: String,
    process: Process,
}

/// The processes, and the history that they write.
pub(crate) struct Stage {
    /// The test that each process runs.
    test: &'static str,
    pub(crate) server: Server,
    folder: TempDir,
    pub(crate) history: History,
    random: Rng,
    ends: Instant,
    children: Vec<Child>,
    /// What the next process is called.
    next: u32,
}

impl Stage {
    pub(crate) fn new(test: &'static str, server: Server, history: History, time: Duration) -> Stage {
        let folder = TempDir::new().expect("a temporary folder");
        let (random, ends, children) = (Rng::new(), Instant::now() + time, Vec::new());
        Stage { test, server, folder, history, random, ends, children, next: 0 }
    }

    pub(crate) fn start(&mut self) {
        let name = format!("process-{}", self.next);
        let left = self.ends.saturating_duration_since(Instant::now()).as_millis().to_string();
        let log = self.folder.path().join(&name).display().to_string();
        let more = [(LOG, log.as_str()), (SEED, &self.next.to_string()), (MILLIS, &left)];
        let process = Process::start_with(self.test, &self.server.url(), &more);
        self.next += 1;
        self.children.push(Child { name, process });
    }

    /// So many processes until the end; one of them is killed about so often, and another starts. In the last moments all live.
    pub(crate) async fn run(&mut self, processes: usize, kills: Duration, calm: Duration) {
        (0..processes).for_each(|_| self.start());
        while Instant::now() + calm < self.ends {
            sleep(kills.mul_f64(self.random.f64() * 2.0)).await;
            self.kill_one();
            self.start();
        }
    }

    /// At a moment at which it may be anywhere in a call.
    pub(crate) fn kill_one(&mut self) {
        let mut child = self.children.swap_remove(self.random.usize(..self.children.len()));
        child.process.kill();
        self.history.killed.insert(child.name.clone(), clock());
        self.read(&child.name);
    }

    pub(crate) fn all_are_done(&mut self) -> bool {
        self.children.iter_mut().all(|child| child.process.is_done())
    }

    /// Reads the logs of those that were not killed.
    pub(crate) fn read_logs(&mut self) {
        for name in self.children.iter().map(|child| child.name.clone()).collect::<Vec<_>>() {
            self.read(&name);
        }
    }

    fn read(&mut self, name: &str) {
        let log = self.folder.path().join(name);
        let events = if log.exists() { events(&log) } else { Vec::new() }; // killed before it began
        self.history.clients.insert(name.to_owned(), events);
    }

    /// How many calls ended in that way.
    pub(crate) fn count(&self, how: &str) -> u64 {
        let words = self.history.count(|what| match what {
            What::Ended { how, .. } => Some(how.clone()),
            _ => None,
        });
        words.get(how).copied().unwrap_or_default()
    }
}

/// The last line of a killed process may be torn.
fn events(log: &Path) -> Vec<Event> {
    let text = fs::read_to_string(log).expect("our own file");
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| line.parse().expect(line)).collect()
}
