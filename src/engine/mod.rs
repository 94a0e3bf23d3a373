//! Layer 2: acquiring, renewing and releasing, the same for every kind of lock.

mod ask;
mod crowd;
mod guard;
mod hold;
mod queue;
mod queue_state;
mod registry;
mod releaser;
mod sharing;
mod tenure;
mod wait;
mod waiter;
mod watchdog;
mod yielding;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) use guard::EngineGuard;

#[cfg(feature = "test-util")]
use crate::redis::MemoryServer;
use crate::{
    clock::Moment,
    config::{Config, Name},
    driver::Driver,
    error::{Error, Lost, Result},
    failed::{self, GIVING_BACK, silent},
    kind::Kind,
    owner::Owner,
    redis::{Answer, Fault, Listener, Part, Redis, Script, Subscription, Url},
    stats::Counters,
    sync::{std, tokio},
    task_runtime::TaskRuntime,
};
use ask::{Pauses, ScriptRequest};
use crowd::Crowd;
use hold::Ending;
pub(crate) use hold::{Hold, pass};
use queue::{INSPECTION, Queues};
use registry::Registry;
use releaser::{ReleaseJob, Releaser};
use tenure::Tenure;
use watchdog::Watchdog;

const CONNECTING: &str = "connecting";
const CLOSING_CLIENT: &str = "closing the client";
/// The time that an attempt to connect gets at least, even if less is left.
const ONE_ATTEMPT: Duration = Duration::from_millis(100);
/// The time that closing waits for the releases.
const CLOSING: Duration = Duration::from_millis(1500);

/// The state that all handles of one client share. It is dropped with the last handle and guard, and that ends the tasks: they keep
/// parts of it, never the engine itself.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) id: Uuid,
    pub(crate) config: Config,
    pub(crate) counters: Arc<Counters>,
    redis: Arc<Redis>,
    /// The locks that run on the state machine.
    pub(crate) driver: Arc<Driver>,
    registry: Registry,
    queues: Arc<Queues>,
    watchdog: Arc<Watchdog>,
    releaser: Arc<Releaser>,
    crowd: Crowd,
    /// Cancelled when the client acquires no more locks. Existing holds are kept.
    stopping: CancellationToken,
    /// Cancelled when the client closes. This also cancels `stopping`.
    closing: CancellationToken,
    /// The same as `stopping`, for code that checks often.
    stopped: AtomicBool,
    /// The runtime of the tasks has ended; `closing` is then cancelled, too. The driver has the same value.
    abandoned: Arc<AtomicBool>,
    next_hold: AtomicU64,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.driver.close();
        self.closing.cancel();
    }
}

/// Random, but with another UUID version than Redisson's ids. By the version, scripts recognize the entries of leasehold clients.
fn new_client_id() -> Uuid {
    uuid::Builder::from_custom_bytes(Uuid::new_v4().into_bytes()).into_uuid()
}

/// Inspects the queues until the client closes. If it is dropped before that, its runtime has ended; it then notifies all waiters,
/// because no task is left to serve them.
struct QueueInspector {
    queues: Arc<Queues>,
    releaser: Arc<Releaser>,
    closing: CancellationToken,
    abandoned: Arc<AtomicBool>,
}

impl QueueInspector {
    async fn run(self) {
        let inspections = async {
            loop {
                sleep(INSPECTION).await;
                let passed_over = self.queues.inspect();
                passed_over.iter().for_each(|hold| self.releaser.send(ReleaseJob::new(hold, true)));
            }
        };
        self.closing.run_until_cancelled(inspections).await;
    }
}

impl Drop for QueueInspector {
    fn drop(&mut self) {
        if !self.closing.is_cancelled() {
            self.abandoned.store(true, Ordering::SeqCst);
            self.closing.cancel();
            self.queues.wake_all();
        }
    }
}

/// Sends a request until it has a reply, or until the time is over.
pub(crate) async fn ask(
    redis: &Redis,
    what: &'static str,
    name: &str,
    request: (&'static Script, Part),
    outage_timeout: Duration,
) -> Result<Answer> {
    let time = (Instant::now(), Instant::now() + outage_timeout);
    Ok(Box::pin(ScriptRequest::new(what, name, request, time).ask(redis)).await?.answer)
}

impl Engine {
    /// Connects and starts all tasks on `runtime`.
    pub(crate) async fn start(url: Url, config: Config, runtime: TaskRuntime) -> Result<Arc<Engine>> {
        let counters = Arc::new(Counters::new(config.metrics_with_names)); // on the thread of the caller, see there
        let engine = runtime.run(Box::pin(Engine::connect(url, config, counters))).await?;
        let (engine, last_task) = engine?;
        runtime.keep_until(last_task);
        Ok(engine)
    }

    /// Starts the tasks. The first request connects.
    pub(crate) fn start_lazy(url: Url, config: Config, runtime: TaskRuntime) -> Arc<Engine> {
        Engine::start_over(config, runtime, |config, counters, closed| Redis::lazy(&url, config, counters, closed))
    }

    /// Starts the tasks, for a server in this process.
    #[cfg(feature = "test-util")]
    pub(crate) fn start_in_memory(server: &MemoryServer, config: Config, runtime: TaskRuntime) -> Arc<Engine> {
        Engine::start_over(config, runtime, |config, counters, closed| {
            Redis::in_memory(server, config, counters, closed)
        })
    }

    fn start_over(
        config: Config,
        runtime: TaskRuntime,
        redis: impl FnOnce(&Config, &Arc<Counters>, &CancellationToken) -> Redis,
    ) -> Arc<Engine> {
        let counters = Arc::new(Counters::new(config.metrics_with_names));
        let build = || {
            let closed = CancellationToken::new();
            let redis = redis(&config, &counters, &closed);
            Engine::build(config, redis, counters, closed)
        };
        let (engine, last_task) = runtime.enter(build);
        runtime.keep_until(last_task);
        engine
    }

    /// Tries to connect until the `connect_timeout` is over. Makes at least one attempt, which may take as long as its connections need.
    /// Makes the last attempt when the time is over.
    async fn connect(url: Url, config: Config, counters: Arc<Counters>) -> Result<(Arc<Engine>, JoinHandle<()>)> {
        let closed = CancellationToken::new();
        let (since, mut pauses) = (Instant::now(), Pauses::default());
        let (mut limit, mut last) = (Duration::MAX, None); // each connection has a limit of its own
        loop {
            let attempt = closed.child_token();
            let unfinished = attempt.clone().drop_guard(); // closes what is open if this future is dropped
            match timeout(limit, Redis::connect(&url, &config, &counters, &attempt)).await {
                Ok(Ok(redis)) => {
                    unfinished.disarm();
                    return Ok(Engine::build(config, redis, counters, closed));
                }
                Ok(Err(fault @ (Fault::Unknown(_) | Fault::NotSent(_) | Fault::NotReady(_)))) => last = fault.source(),
                Ok(Err(fault)) => return Err(failed::error(fault, CONNECTING, since.elapsed(), "")),
                Err(_) => {}
            }
            let left = || config.connect_timeout.saturating_sub(since.elapsed());
            if left().is_zero() {
                let connecting = format!("{CONNECTING} to {}", url.place());
                return Err(Error::silent(&connecting, "", since.elapsed(), last));
            }
            tracing::info!(target: "leasehold::conn", ?last, "cannot connect yet; the client tries again");
            sleep(pauses.next().min(left())).await;
            limit = left().max(ONE_ATTEMPT);
        }
    }

    fn build(
        config: Config,
        redis: Redis,
        counters: Arc<Counters>,
        closed: CancellationToken,
    ) -> (Arc<Engine>, JoinHandle<()>) {
        let (redis, closing) = (Arc::new(redis), CancellationToken::new());
        // Replicas do not confirm a hand-over. So if replicas must confirm, there are no hand-overs.
        let handovers = if config.replicas == 0 { config.handovers } else { 0 };
        let queues = Arc::new(Queues::new(handovers, Arc::clone(&counters)));
        let (releaser, releasing) = Releaser::start(Arc::clone(&redis), Arc::clone(&queues), Arc::clone(&counters));
        let (releaser, abandoned) = (Arc::new(releaser), Arc::new(AtomicBool::new(false)));
        let watchdog = Watchdog::start(
            Arc::clone(&redis),
            Arc::clone(&queues),
            Arc::clone(&releaser),
            Arc::clone(&counters),
            closing.clone(),
        );
        let inspector = QueueInspector {
            queues: Arc::clone(&queues),
            releaser: Arc::clone(&releaser),
            closing: closing.clone(),
            abandoned: Arc::clone(&abandoned),
        };
        tokio::spawn(inspector.run());
        let id = new_client_id();
        let shared = (Arc::clone(&redis), Arc::clone(&counters));
        let driver = Driver::start(id.as_hyphenated().to_string(), config.clone(), shared, Arc::clone(&abandoned));
        let machines = Arc::clone(&driver);
        let last_task = tokio::spawn(async move {
            let _ = releasing.await;
            machines.idle().await;
            closed.cancel(); // closes the connections
        });
        let engine = Engine {
            id,
            config,
            counters,
            redis,
            driver,
            registry: Registry::default(),
            queues,
            watchdog,
            releaser,
            crowd: Crowd::new(),
            stopping: closing.child_token(),
            stopped: AtomicBool::new(false),
            closing,
            abandoned,
            next_hold: AtomicU64::new(1),
        };
        (Arc::new(engine), last_task)
    }

    /// The command that publishes a release; empty if releases are not published.
    pub(crate) fn publish(&self) -> &'static str {
        self.redis.publish()
    }

    /// Acquires no more locks, waits for at most `grace` until all holds are released, and closes.
    pub(crate) async fn shutdown(&self, grace: Duration) -> Result<()> {
        TaskRuntime::around(CLOSING_CLIENT)?;
        self.stop();
        let both = join(self.releaser.idle(|| self.registry.has_no_guards()), self.driver.idle());
        let given_back = timeout(grace, both);
        self.closing.run_until_cancelled(given_back).await; // or until the client is closed
        self.close().await
    }

    /// Notifies every holder, releases all locks, and disconnects; within two seconds, even if the server does not reply.
    pub(crate) async fn close(&self) -> Result<()> {
        TaskRuntime::around(CLOSING_CLIENT)?;
        self.stop();
        self.closing.cancel();
        self.driver.close();
        for hold in self.registry.all() {
            hold.doom(&self.counters);
            self.releaser.send(ReleaseJob::for_all(&hold));
        }
        if self.is_abandoned() {
            return Err(Error::abandoned("releasing all locks", ""));
        }
        let both = join(self.releaser.idle(|| true), self.driver.idle());
        let done = timeout(CLOSING, both).await;
        self.releaser.stop();
        self.driver.give_up();
        if self.is_abandoned() {
            return Err(Error::abandoned("releasing all locks", "")); // meanwhile
        }
        done.map(drop).map_err(|_| Error::silent("releasing all locks", "", CLOSING, None))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.stopping.cancel();
        self.driver.stop();
        self.queues.wake_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopped.load(Ordering::Acquire) || self.is_abandoned()
    }

    /// Notifies the listener of each message on a channel, until the subscription is dropped.
    pub(crate) fn listen(&self, channel: &str, listener: Arc<dyn Listener>) -> Subscription {
        self.redis.listen(channel, listener)
    }

    pub(crate) fn is_held_by(&self, name: &Name, kind: &'static Kind, owner: &Owner) -> bool {
        if kind.rules.on_machine {
            return self.driver.is_held_by(name, kind, owner);
        }
        self.registry.granted(&(Arc::clone(name.key()), kind, owner.clone())).is_some()
    }

    /// Resolves when it grants no new holds any more.
    pub(crate) async fn stops(&self) {
        self.stopping.cancelled().await;
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// The error for calls after the client was closed.
    fn closed(&self, what: &str, name: &str) -> Error {
        if self.is_abandoned() { Error::abandoned(what, name) } else { Error::Closed }
    }

    /// The time until which a call that begins now retries if the server does not reply.
    pub(crate) fn outage_ends(&self) -> Instant {
        Instant::now() + self.config.outage_timeout
    }

    /// A request found that the server no longer has the hold: notifies the holder, and wakes the first waiter in this process.
    fn found_lost(&self, hold: &Hold) -> Error {
        let reason = hold.loss().unwrap_or(Lost::Removed);
        match reason {
            Lost::Removed => hold.removed(&self.counters),
            Lost::Expired | Lost::MaxHold | Lost::Closed => hold.lose(reason, &self.counters),
        }
        hold.tell_token();
        self.queues.wake_head(hold);
        Error::lost(&hold.name, reason)
    }

    /// Whether this process still held the lock when it was passed on in memory. The next request about the lock shows that.
    /// `counts`: this release counts in the statistics.
    async fn word(&self, tenure: &Arc<Tenure>, name: &str, counts: bool) -> Result<Ending> {
        self.next_word(tenure, name, counts, self.outage_ends()).await
    }

    /// Waits for the next request about an id, which finds whether the server still has it.
    async fn next_word(&self, tenure: &Arc<Tenure>, name: &str, counts: bool, give_up: Instant) -> Result<Ending> {
        let (word, is_first) = tenure.word(counts);
        if is_first {
            self.releaser.confirm(tenure);
        }
        let since = Instant::now();
        let closed = async {
            self.closing.cancelled().await;
            sleep(if self.is_abandoned() { Duration::ZERO } else { CLOSING }).await;
        };
        tokio::select! {
            biased;
            Ok(told) = word => told,
            () = closed => Err(self.closed(GIVING_BACK, name)),
            () = sleep_until(give_up) => Err(silent(GIVING_BACK, name, since.elapsed(), self.redis.trouble(tenure.key(), None))),
        }
    }

    /// Sends a request about a lock itself, not about a hold.
    pub(crate) async fn tell(
        &self,
        what: &'static str,
        name: &Name,
        request: (&'static Script, Part),
        give_up: Instant,
    ) -> Result<Answer> {
        if self.is_closed() {
            return Err(self.closed(what, name));
        }
        let request = ScriptRequest::new(what, name, request, (Instant::now(), give_up));
        Ok(Box::pin(request.ask(&self.redis)).await?.answer)
    }

    /// Checks now that the server replies on every connection.
    pub(crate) async fn ping(&self) -> Result<()> {
        const PING: &str = "ping";
        if self.is_closed() {
            return Err(self.closed(PING, ""));
        }
        TaskRuntime::around(PING)?;
        let since = Instant::now();
        match timeout(self.config.command_timeout, self.redis.ping()).await {
            Ok(answered) => answered.map_err(|fault| failed::error(fault, PING, since.elapsed(), "")),
            Err(_) => Err(silent(PING, "", since.elapsed(), self.redis.trouble("", None))),
        }
    }

    /// The lock was forced open, or may have been. From now on, callers and releasing holders in this process send a request to the server.
    pub(crate) fn forced(&self, name: &Name) {
        self.queues.forced(name.key());
        self.driver.forced(name);
    }

    /// Notes the holder from the reply to a request that was sent at `sent`.
    pub(crate) fn named(&self, (name, kind): (&Name, &'static Kind), holder: &str, sent: Moment) {
        if kind.rules.on_machine {
            return self.driver.named_by_server(name, kind, holder);
        }
        self.queues.named((Arc::clone(name.key()), kind), holder, sent);
    }

    /// All holds, held or requested.
    pub(crate) fn holds(&self) -> Vec<Arc<Hold>> {
        self.registry.all()
    }

    #[cfg(feature = "bench")]
    pub(crate) async fn raw(&self, source: &str) -> Result<crate::redis::Raw> {
        self.redis.raw(source).await.map_err(|fault| failed::error(fault, "loading a script", Duration::ZERO, ""))
    }

    /// An id that Redis has never seen.
    fn new_id(&self, kind: &Kind) -> (u64, Box<str>) {
        let number = self.next_hold.fetch_add(1, Ordering::Relaxed);
        let shown = kind.rules.numbering.number(number);
        (number, format!("{}:{shown}{}", self.id.as_hyphenated(), kind.rules.suffix).into())
    }
}
