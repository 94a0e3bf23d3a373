//! The log of a client process, and its writers.
//!
//! A writer writes each line with one system call: before a step that the line announces, and after a result that it reports. So the
//! log of a killed process is complete.

use std::{
    fs::File,
    future::Future,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    io::Write,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use leasehold::{Error, Guard, Lost};
use tokio::time::timeout;

use crate::{
    LEASE, SHARED, clock,
    history::{Event, Kind, What},
    locks::{AnyGuard, Held},
};

/// A call that has not ended so long after its time never will.
const HOPELESS: Duration = Duration::from_secs(4);
/// How often a process checks whether it was paused, and how late the check must be to count as a pause.
const BEAT: Duration = Duration::from_millis(20);
const STOOD_STILL: Duration = Duration::from_millis(120);

#[derive(Debug)]
struct Log {
    file: Mutex<File>,
    callers: AtomicU32,
}

/// One caller, which makes one call at a time.
#[derive(Debug, Clone)]
pub(crate) struct Scribe {
    log: Arc<Log>,
    task: u32,
}

impl Scribe {
    pub(crate) fn create(path: &Path) -> std::io::Result<Scribe> {
        let log = Log { file: Mutex::new(File::create(path)?), callers: AtomicU32::new(1) };
        Ok(Scribe { log: Arc::new(log), task: 0 })
    }

    /// For another caller, which makes calls at the same time.
    pub(crate) fn other(&self) -> Scribe {
        Scribe { log: Arc::clone(&self.log), task: self.log.callers.fetch_add(1, Ordering::Relaxed) }
    }

    pub(crate) fn note(&self, name: &str, what: What) {
        let mut file = self.log.file.lock().unwrap_or_else(PoisonError::into_inner);
        let event = Event { at: clock(), task: self.task, name: name.to_owned(), what };
        file.write_all(format!("{event}\n").as_bytes()).expect("the log can be written");
    }

    pub(crate) fn way(&self, way: &str) {
        self.note("-", What::Way { way: way.to_owned() });
    }

    pub(crate) fn wrong(&self, name: &str, kind: Kind, details: impl Into<String>) {
        self.note(name, What::Wrong { kind, details: details.into() });
    }

    /// A call and when it must end; without a limit, it may wait only while another owner holds the lock. `None` if it does not end long
    /// after that.
    pub(crate) async fn call<T>(
        &self,
        name: &str,
        call: &'static str,
        limit: Option<Duration>,
        work: impl Future<Output = leasehold::Result<T>>,
        ended: impl FnOnce(&T) -> &'static str,
    ) -> Option<leasehold::Result<T>> {
        let nanos = limit.map_or(0, |limit| nanos(limit).max(1));
        let mut calling = Calling { scribe: self, name, call, how: "cancelled" };
        self.note(name, What::Begun { call: call.to_owned(), limit: nanos });
        let outcome = match limit {
            None => Some(work.await),
            Some(limit) => timeout(limit + HOPELESS, work).await.ok(),
        };
        calling.how = match &outcome {
            Some(Ok(done)) => ended(done),
            Some(Err(error)) => kind(error),
            None => "nothing",
        };
        outcome
    }

    /// What a guard says of itself must be possible. What it says first stays true: time only takes away.
    pub(crate) fn look(&self, guard: &impl Held) {
        let left = guard.remaining();
        if guard.is_lost() {
            if guard.lost().now_or_never().is_none() {
                self.wrong(
                    guard.name(),
                    Kind::Hollow,
                    format!("{} is lost, and lost() is still pending", guard.holder()),
                );
            }
        } else if left.is_zero() {
            self.wrong(guard.name(), Kind::Hollow, format!("{} is not lost, and has no time left", guard.holder()));
        }
    }

    /// It was granted, and until when it is certain.
    pub(crate) fn granted<G: AnyGuard>(&self, granted: &G) {
        let (guard, id) = (granted.guard(), granted.guard().holder());
        self.note(guard.name(), What::Granted { id: id.clone(), until: certain(guard) });
        granted.token().into_iter().for_each(|token| self.note(guard.name(), What::Token { id: id.clone(), token }));
        granted
            .permits()
            .into_iter()
            .for_each(|permits| self.note(guard.name(), What::Permits { id: id.clone(), permits }));
        self.look(guard);
    }

    pub(crate) fn sure(&self, guard: &impl Held) {
        self.note(guard.name(), What::Sure { id: guard.holder(), until: certain(guard) });
        self.look(guard);
    }

    /// It is about to be released. A reader that leaves gives up what it has requested beyond the watchdog's lease.
    pub(crate) fn releasing(&self, guard: &impl Held) -> Release {
        let id = guard.holder();
        self.note(guard.name(), What::Releasing { id: id.clone() });
        let (since, until) = (clock(), certain(guard));
        let reads = SHARED.contains(&guard.name()) && !id.contains(":write~");
        Release { id, since, until: if reads { until.min(since + nanos(LEASE)) } else { until } }
    }

    pub(crate) fn lost(&self, name: &str, id: &str, reason: Lost) {
        self.note(name, What::Lost { id: id.to_owned(), removed: reason == Lost::Removed });
    }

    /// Starts a plain thread that notes when the whole process was paused.
    pub(crate) fn watch_the_process(self) {
        thread::spawn(move || {
            loop {
                let since = clock();
                thread::sleep(BEAT);
                if clock() - since > nanos(STOOD_STILL) {
                    self.note("-", What::Paused { since });
                }
            }
        });
    }
}

/// A release that begins.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) id: String,
    pub(crate) since: u64,
    /// Until when the hold was certain then.
    pub(crate) until: u64,
}

/// `id~owner`: where an id passes on in memory, this tells its owners apart.
pub(crate) fn holder_of(guard: &Guard) -> String {
    let owner = BuildHasherDefault::<DefaultHasher>::new().hash_one(guard.owner());
    format!("{}~{owner:x}", guard.id())
}

/// Notes the end of a call, also when it is dropped.
struct Calling<'a> {
    scribe: &'a Scribe,
    name: &'a str,
    call: &'static str,
    how: &'static str,
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        let (call, how) = (self.call.to_owned(), self.how.to_owned());
        self.scribe.note(self.name, What::Ended { call, how });
    }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Lost { .. } => "lost",
        Error::Unavailable { .. } => "unavailable",
        Error::Denied { .. } => "denied",
        Error::Conflict { .. } => "conflict",
        Error::Server { .. } => "server",
        Error::Closed => "closed",
        Error::Upgrade { .. } => "upgrade",
        _ => "other",
    }
}

/// Until when the lock is certainly ours; never later than the guard says.
fn certain(guard: &impl Held) -> u64 {
    let now = clock();
    now + nanos(guard.remaining())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("shorter than centuries")
}
