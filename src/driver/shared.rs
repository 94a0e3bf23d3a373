//! What the names of one client share: its connections and settings, the list of its names, and how far it has come.

use std::{
    future::{Future, poll_fn},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use dashmap::DashMap;
use tokio::sync::Notify;

use super::{timers::Timers, watchers::Changes};
use crate::{
    config::Config,
    error::{Error, Result},
    kind::Kind,
    lock::{self, Event},
    redis::Redis,
    spawner::Spawner,
    stats::Counters,
    sync::{dashmap, std, tokio},
};

/// A name, and the kind of its exclusive holds.
pub(super) type NameKey = (Arc<str>, &'static Kind);

/// `L` is the lock of one name.
#[derive(Debug)]
pub(crate) struct Shared<L> {
    /// The id of the client.
    pub(super) client: Box<str>,
    pub(super) config: Config,
    pub(super) redis: Arc<Redis>,
    pub(super) counters: Arc<Counters>,
    pub(super) runtime: Spawner,
    pub(super) names: DashMap<NameKey, Arc<L>>,
    pub(super) timers: Timers<L>,
    /// Notified when a caller uses a name.
    pub(crate) first_use: Notify,
    /// Notified when a wait has become slow.
    pub(crate) slow: Notify,
    /// No name that was forgotten has used a number above this one.
    used: AtomicU64,
    life: AtomicU8,
    /// The process whose threads run the tasks.
    process: u32,
    /// The runtime of the client has ended.
    abandoned: AtomicBool,
    /// The client has closed although releases were under way.
    gave_up: AtomicBool,
    /// What the end of the client waits for beside names.
    errands: AtomicU64,
    /// The same, until it is closed.
    works: AtomicU64,
    /// Notified when the client stops, closes or ends, and from then on when a name was forgotten.
    changes: Changes,
}

/// The stages of [`Shared::life`].
/// A lock that is held for longer than this costs one more request, after which the server tells of changes by others.
const TRACKED_AFTER: Duration = Duration::from_millis(200);

const OPEN: u8 = 0;
pub(super) const STOPPING: u8 = 1;
pub(super) const CLOSED: u8 = 2;
/// Closed, and nothing is held, wanted or under way anymore.
const DONE: u8 = 3;

impl<L> Shared<L> {
    /// For tasks on the present runtime.
    pub(super) fn new(client: String, config: Config, redis: Arc<Redis>, counters: Arc<Counters>) -> Shared<L> {
        Shared {
            client: client.into(),
            config,
            redis,
            counters,
            runtime: Spawner::here(),
            names: DashMap::new(),
            timers: Timers::new(),
            first_use: Notify::new(),
            slow: Notify::new(),
            used: AtomicU64::new(0),
            life: AtomicU8::new(OPEN),
            process: ::std::process::id(),
            abandoned: AtomicBool::new(false),
            gave_up: AtomicBool::new(false),
            errands: AtomicU64::new(0),
            works: AtomicU64::new(0),
            changes: Changes::default(),
        }
    }

    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Runs `work` in the background. The end of the client waits for it.
    pub(crate) fn run_errand(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static)
    where
        L: Send + Sync + 'static,
    {
        let errand = self.errand();
        self.spawn(async move {
            work.await;
            drop(errand);
        });
    }

    /// The end of the client waits until this is dropped.
    pub(crate) fn errand(self: &Arc<Self>) -> Errand<L> {
        self.errands.fetch_add(1, Ordering::SeqCst);
        self.counters.releasing.up();
        Errand(Arc::clone(self))
    }

    /// A caller works with what it has acquired, and no name says so. The grace of `shutdown` is for it, too.
    pub(crate) fn work(self: &Arc<Self>) -> Work<L> {
        self.works.fetch_add(1, Ordering::SeqCst);
        Work(Arc::clone(self))
    }

    /// A request waits for its turn for at most this long, and then for its reply for as long.
    pub(super) fn request_limit(&self) -> Duration {
        lock::step_of_request(self.config.command_timeout)
    }

    pub(crate) fn machine_config(&self) -> lock::Config {
        lock::Config {
            watchdog: *self.config.watchdog,
            command_timeout: self.config.command_timeout,
            outage_timeout: self.config.outage_timeout,
            // Replicas do not confirm a hand-over. So if replicas must confirm, there are no hand-overs.
            handovers: if self.config.replicas == 0 { self.config.handovers } else { 0 },
            round_trip: self.counters.round_trip.get(),
            publishes: !self.redis.publish().is_empty(),
            first_confirmation: self.config.tracking.then_some(TRACKED_AFTER),
        }
    }

    // ---- names ----

    /// What a lock must know that was made after the client was stopped or closed.
    pub(super) fn life_event(&self) -> Option<Event> {
        match self.life.load(Ordering::SeqCst) {
            OPEN => None,
            STOPPING => Some(Event::Stop),
            _ => Some(Event::Close),
        }
    }

    /// Removes a lock from the map. Its numbers must not be used again. [`notify_forgotten`](Shared::notify_forgotten) must follow.
    pub(super) fn forget(&self, key: &NameKey, lock: &L, used: u64) {
        self.used.fetch_max(used, Ordering::SeqCst);
        self.names.remove_if(key, |_, other| ptr::eq(&**other, lock));
    }

    /// Notifies those that wait for the end. Their wakers are code of the caller: not under the mutex of a name.
    pub(super) fn notify_forgotten(&self) {
        if self.is_stopping() {
            self.changes.notify_all();
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    pub(super) fn all(&self) -> Vec<Arc<L>> {
        self.names.iter().map(|entry| Arc::clone(&entry)).collect()
    }

    // ---- the end ----

    /// The client acquires no more locks.
    pub(crate) fn is_stopping(&self) -> bool {
        self.life.load(Ordering::SeqCst) != OPEN || self.abandoned.load(Ordering::SeqCst)
    }

    /// No task of the client runs here anymore: its runtime has ended, or this is a forked process, which has no threads of the other.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst) || self.is_forked()
    }

    fn is_forked(&self) -> bool {
        ::std::process::id() != self.process
    }

    /// No call gets a result anymore.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended_here() || self.is_forked()
    }

    /// The same in a process that has just been looked at: that costs a call of the system.
    pub(super) fn has_ended_here(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst) || self.gave_up.load(Ordering::SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.life.load(Ordering::SeqCst) >= CLOSED
    }

    /// Once true, it stays true: a call that comes later is refused, although its name is in the map for a moment.
    pub(crate) fn is_done(&self) -> bool {
        if self.is_closed() && self.is_idle() {
            self.life.fetch_max(DONE, Ordering::SeqCst);
        }
        self.life.load(Ordering::SeqCst) == DONE
    }

    /// Nothing is held, wanted or under way.
    fn is_idle(&self) -> bool {
        let has_errands = self.errands.load(Ordering::SeqCst) > 0 && !self.has_ended();
        let has_works = self.works.load(Ordering::SeqCst) > 0 && !self.is_closed();
        self.names.is_empty() && !has_errands && !has_works
    }

    pub(super) fn raise_life(&self, life: u8) {
        self.life.fetch_max(life, Ordering::SeqCst);
    }

    pub(super) fn set_gave_up(&self) {
        self.gave_up.store(true, Ordering::SeqCst);
    }

    pub(super) fn set_abandoned(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    /// Notifies all that wait for a stage.
    pub(super) fn notify_changed(&self) {
        self.changes.notify_all();
    }

    /// Resolves once the client acquires no more locks.
    pub(crate) async fn stopped(&self) {
        self.until(Shared::is_stopping).await;
    }

    /// Resolves when nothing is held, wanted or under way. After [`stop`](Shared::stop).
    pub(crate) async fn idle(&self) {
        self.until(|shared| shared.is_done() || shared.is_idle() || shared.is_abandoned()).await;
    }

    /// Resolves when the client is closed and nothing is under way.
    pub(crate) async fn done(&self) {
        self.until(Shared::is_done).await;
    }

    pub(super) async fn until(&self, is_so: impl Fn(&Shared<L>) -> bool) {
        let mut watching = self.changes.watch();
        let look = |cx: &mut Context<'_>| {
            watching.keep(cx.waker());
            if is_so(self) { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(look).await;
    }

    /// An error after the client was closed.
    pub(crate) fn refuse_if_closed(&self, what: &str, name: &str) -> Result<()> {
        if self.is_closed() || self.is_abandoned() { Err(self.closed(what, name)) } else { Ok(()) }
    }

    /// The error for calls after the client was closed, or has ended.
    pub(crate) fn closed(&self, what: &str, name: &str) -> Error {
        match () {
            () if self.is_forked() => Error::forked(what, name),
            () if self.is_abandoned() => Error::abandoned(what, name),
            () => Error::Closed,
        }
    }
}

/// Something that the end of the client waits for.
#[derive(Debug)]
pub(crate) struct Errand<L>(Arc<Shared<L>>);

impl<L> Drop for Errand<L> {
    fn drop(&mut self) {
        self.0.counters.releasing.down();
        self.0.errands.fetch_sub(1, Ordering::SeqCst);
        self.0.notify_forgotten();
    }
}

/// A caller works with what it has acquired.
#[derive(Debug)]
pub(crate) struct Work<L>(Arc<Shared<L>>);

impl<L> Drop for Work<L> {
    fn drop(&mut self) {
        self.0.works.fetch_sub(1, Ordering::SeqCst);
        self.0.notify_forgotten();
    }
}
