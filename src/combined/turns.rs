//! The queues of this process: of the callers that want the same lock, one votes at a time.

use std::{
    pin::pin,
    sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use dashmap::DashMap;
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::{Instant, timeout_at},
};

use crate::{request::WaitLimit, sync::tokio};

/// By the names of the locks.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns(Arc<DashMap<Arc<str>, Weak<CallerQueue>>>);

#[derive(Debug)]
struct CallerQueue {
    turn: Arc<Mutex<()>>,
    silence: StdMutex<SilentSince>,
}

/// Since when no majority of the servers has replied to any of the callers.
#[derive(Debug)]
enum SilentSince {
    /// The last reply, or the start. Nobody has asked since, so the servers are not to blame.
    NotAsked(Instant),
    /// The first vote since then.
    Asked(Instant),
}

impl CallerQueue {
    fn new() -> CallerQueue {
        CallerQueue { turn: Arc::default(), silence: StdMutex::new(SilentSince::NotAsked(Instant::now())) }
    }

    fn silence(&self) -> MutexGuard<'_, SilentSince> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    pub(super) fn join(&self, name: &Arc<str>, outage_timeout: Duration) -> QueuePlace {
        let mut entry = self.0.entry(Arc::clone(name)).or_default();
        let queue = entry.upgrade().unwrap_or_else(|| {
            let queue = Arc::new(CallerQueue::new());
            *entry = Arc::downgrade(&queue);
            queue
        });
        drop(entry);
        let (turns, name) = (self.clone(), Arc::clone(name));
        QueuePlace { turns, name, queue: Some(queue), turn: None, joined: Instant::now(), outage_timeout }
    }
}

/// The place of a caller in the queue of its lock. The queue is forgotten with its last place.
pub(super) struct QueuePlace {
    turns: Turns,
    name: Arc<str>,
    /// `None` while it is dropped.
    queue: Option<Arc<CallerQueue>>,
    turn: Option<OwnedMutexGuard<()>>,
    joined: Instant,
    outage_timeout: Duration,
}

impl QueuePlace {
    /// Waits for its turn, but only until the limit, and only while a majority replies to the callers before it. After that, the caller
    /// votes out of turn, so that it has an answer of its own. Nothing to wait for if it is its turn already.
    pub(super) async fn turn(&mut self, limit: WaitLimit) {
        if self.turn.is_some() {
            return;
        }
        let mut turn = pin!(Arc::clone(&self.queue().turn).lock_owned());
        loop {
            let end = limit.before(self.gives_up());
            if let Ok(turn) = timeout_at(end, &mut turn).await {
                self.turn = Some(turn);
                return;
            }
            if limit.is_over() || self.is_hopeless() {
                return;
            }
        }
    }

    /// A vote begins.
    pub(super) fn asks(&self) {
        let mut silence = self.queue().silence();
        if matches!(*silence, SilentSince::NotAsked(_)) {
            *silence = SilentSince::Asked(Instant::now());
        }
    }

    /// A majority of the servers has replied.
    pub(super) fn replied(&self) {
        *self.queue().silence() = SilentSince::NotAsked(Instant::now());
    }

    /// Whether no majority has replied to any caller for the `outage_timeout`. The pause before the first vote that failed does not count.
    pub(super) fn is_hopeless(&self) -> bool {
        Instant::now() >= self.gives_up()
    }

    /// When the caller gives up if no majority replies until then; `None` if one has replied to the last vote.
    pub(super) fn last_vote(&self) -> Option<Instant> {
        let is_silent = matches!(*self.queue().silence(), SilentSince::Asked(_));
        is_silent.then(|| self.gives_up())
    }

    fn gives_up(&self) -> Instant {
        let (SilentSince::NotAsked(since) | SilentSince::Asked(since)) = *self.queue().silence();
        self.joined.max(since) + self.outage_timeout
    }

    fn queue(&self) -> &CallerQueue {
        self.queue.as_deref().expect("there until it is dropped")
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        drop(self.turn.take());
        let queue = &mut self.queue;
        self.turns.0.remove_if(&self.name, |_, others| {
            drop(queue.take()); // here, where no other caller joins or leaves
            others.strong_count() == 0
        });
    }
}
