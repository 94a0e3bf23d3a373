//! Layer 2: taking, keeping and giving back, the same for every kind of lock.

mod ask;
#[cfg(leasehold_explore)]
#[path = "../../tests/explore/scenarios.rs"]
mod explore;
mod guard;
mod hold;
mod home;
mod kind;
mod manners;
mod queue;
mod registry;
mod releaser;
mod wait;
mod watchdog;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use guard::Guard;
pub(crate) use home::Home;
pub(crate) use kind::Kind;
pub(crate) use wait::{Patience, Wish};

use crate::{
    config::{Config, Name},
    error::{Error, Lost, Result},
    redis::{Answer, Part, Raw, Redis, Script, Target},
    stats::Counters,
    sync::{std, tokio},
};
use ask::{Pauses, Question};
use hold::Hold;
use queue::{INSPECTION, Queues};
use registry::Registry;
use releaser::{Errand, Releaser};
use watchdog::Watchdog;

/// How long closing waits for what is being given back.
const CLOSING: Duration = Duration::from_millis(1500);

/// All that the handles of one client share. Its end, with the last handle and guard, ends the tasks: they hold its
/// parts, never the engine itself.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) id: Uuid,
    pub(crate) config: Config,
    pub(crate) counters: Arc<Counters>,
    redis: Arc<Redis>,
    registry: Registry,
    queues: Arc<Queues>,
    watchdog: Arc<Watchdog>,
    releaser: Arc<Releaser>,
    /// No new holds.
    closing: CancellationToken,
    /// The runtime that the tasks lived on has ended; then it closes too.
    abandoned: Arc<AtomicBool>,
    next_hold: AtomicU64,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Looks after the lines until the client closes. Dropped before that, with the runtime it lives on, it tells all who
/// wait that nobody is left to answer them.
struct Caretaker {
    queues: Arc<Queues>,
    releaser: Arc<Releaser>,
    closing: CancellationToken,
    abandoned: Arc<AtomicBool>,
}

impl Caretaker {
    async fn run(self) {
        let inspections = async {
            loop {
                sleep(INSPECTION).await;
                let passed_over = self.queues.inspect();
                passed_over.iter().for_each(|hold| self.releaser.send(Errand::new(hold, true)));
            }
        };
        self.closing.run_until_cancelled(inspections).await;
    }
}

impl Drop for Caretaker {
    fn drop(&mut self) {
        if !self.closing.is_cancelled() {
            self.abandoned.store(true, Ordering::Release);
            self.closing.cancel();
        }
    }
}

impl Engine {
    /// Connects and starts the tasks, all on `home`.
    pub(crate) async fn start(target: Target, config: Config, home: Home) -> Result<Arc<Engine>> {
        let engine = home.run(Box::pin(Engine::build(target, config))).await?;
        let (engine, last_task) = engine?;
        home.keep_until(last_task);
        Ok(engine)
    }

    async fn build(target: Target, config: Config) -> Result<(Arc<Engine>, tokio::task::JoinHandle<()>)> {
        let counters = Arc::new(Counters::default());
        let (closing, closed) = (CancellationToken::new(), CancellationToken::new());
        let unfinished = closed.clone().drop_guard(); // closes what is open if this future is dropped
        let connected = Redis::connect(Arc::new(target), &config, &counters, &closed).await;
        let redis = Arc::new(connected.map_err(|fault| ask::error(fault, "connecting", config.command_timeout, ""))?);
        // A hand-over is not confirmed by replicas, so where they must confirm there is none.
        let handovers = if config.replicas == 0 { config.handovers } else { 0 };
        let queues = Arc::new(Queues::new(handovers, Arc::clone(&counters)));
        let watchdog = Watchdog::start(Arc::clone(&redis), Arc::clone(&queues), Arc::clone(&counters), closing.clone());
        let (releaser, releasing) = Releaser::start(Arc::clone(&redis), Arc::clone(&queues), Arc::clone(&counters));
        let (releaser, abandoned) = (Arc::new(releaser), Arc::new(AtomicBool::new(false)));
        let caretaker = Caretaker {
            queues: Arc::clone(&queues),
            releaser: Arc::clone(&releaser),
            closing: closing.clone(),
            abandoned: Arc::clone(&abandoned),
        };
        tokio::spawn(caretaker.run());
        let last_task = tokio::spawn(async move {
            let _ = releasing.await;
            closed.cancel(); // closes the connections
        });
        let engine = Engine {
            id: Uuid::new_v4(),
            config,
            counters,
            redis,
            registry: Registry::default(),
            queues,
            watchdog,
            releaser,
            closing,
            abandoned,
            next_hold: AtomicU64::new(1),
        };
        unfinished.disarm();
        Ok((Arc::new(engine), last_task))
    }

    /// Tells every holder, gives everything back, and disconnects: within two seconds, answered or not.
    pub(crate) async fn close(&self) -> Result<()> {
        self.closing.cancel();
        for hold in self.registry.all() {
            hold.doom(&self.counters);
            self.releaser.send(Errand::for_all(&hold));
        }
        if self.is_abandoned() {
            return Err(Error::abandoned("giving back what was held"));
        }
        let done = timeout(CLOSING, self.releaser.idle()).await;
        self.releaser.stop();
        done.map_err(|_| Error::silent("giving back what was held", CLOSING, None))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Why nothing new is begun.
    fn closed(&self, what: &str) -> Error {
        if self.is_abandoned() { Error::abandoned(what) } else { Error::Closed }
    }

    /// Until when a call that begins now rides out a server that does not answer.
    pub(crate) fn outage_ends(&self) -> Instant {
        Instant::now() + self.config.outage_timeout
    }

    /// A request found the hold gone: its holder is told, and whoever waits here looks.
    fn found_lost(&self, hold: &Hold) -> Error {
        hold.lose(Lost::Removed, &self.counters);
        self.queues.ring(hold);
        Error::lost(&hold.name, Lost::Removed)
    }

    /// Asks about a lock as such. True beside the answer: an earlier try may have done what was asked.
    pub(crate) async fn tell(
        &self,
        what: &'static str,
        name: &Name,
        (script, part): (&'static Script, Part),
        give_up: Instant,
    ) -> Result<(Answer, bool)> {
        if self.is_closed() {
            return Err(self.closed(what));
        }
        let question = Question {
            name,
            hold: None,
            script,
            part,
            replicas: 0,
            what,
            pauses: Pauses::default(),
            insists: false,
            since: Instant::now(),
            give_up,
        };
        let heard = Box::pin(question.ask(&self.redis)).await?;
        Ok((heard.answer, heard.again))
    }

    pub(crate) async fn raw(&self, source: &str) -> Result<Raw> {
        self.redis.raw(source).await.map_err(|fault| ask::error(fault, "loading a script", Duration::ZERO, ""))
    }

    /// An id that Redis has never seen.
    fn new_id(&self) -> (u64, Box<str>) {
        let number = self.next_hold.fetch_add(1, Ordering::Relaxed);
        (number, format!("{}:{number}", self.id.as_hyphenated()).into())
    }
}
