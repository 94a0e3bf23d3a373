//! What all handles of one client share: its settings, its connections, and the driver of its locks.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

#[cfg(feature = "test-util")]
use crate::redis::MemoryServer;
use crate::{
    ask::{Asked, Doubt, Pauses},
    config::Config,
    contained::conn_event,
    deadlock::DeadlockWatch,
    driver::Driver,
    error::{Error, Result},
    failed::{self, silent},
    record::{self, ClientRecord, REMOVAL},
    redis::{Answer, Fault, Listener, Redis, Subscription, Url},
    stats::Counters,
    sync::{std, tokio},
    task_runtime::TaskRuntime,
};

const CONNECTING: &str = "connecting";
const CLOSING_CLIENT: &str = "closing the client";
/// The time that an attempt to connect gets at least, even if less is left.
const ONE_ATTEMPT: Duration = Duration::from_millis(100);
/// The time that closing waits for the releases.
const CLOSING: Duration = Duration::from_millis(1500);

/// It is dropped with the last handle and guard, and that closes the client: its tasks keep parts of it, never the engine itself.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) id: Uuid,
    pub(crate) config: Config,
    pub(crate) counters: Arc<Counters>,
    pub(crate) driver: Arc<Driver>,
    redis: Arc<Redis>,
    /// Cancelled when the connections end.
    closed: CancellationToken,
    /// The result of the first `close`, which is that of all.
    ended: OnceLock<Result<()>>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.driver.close();
    }
}

/// Random, but with another UUID version than Redisson's ids. By the version, scripts recognize the entries of leasehold clients.
fn new_client_id() -> Uuid {
    uuid::Builder::from_custom_bytes(Uuid::new_v4().into_bytes()).into_uuid()
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
                Ok(Err(fault @ (Fault::Unknown(_) | Fault::Unclear(_) | Fault::NotSent(_) | Fault::NotReady(_)))) => {
                    last = fault.source()
                }
                Ok(Err(fault)) => return Err(failed::error(fault, CONNECTING, since.elapsed(), ("", ""))),
                Err(_) => {}
            }
            let left = || config.connect_timeout.saturating_sub(since.elapsed());
            if left().is_zero() {
                let connecting = format!("{CONNECTING} to {}", url.place());
                return Err(Error::silent(&connecting, "", since.elapsed(), last));
            }
            conn_event!(info, ?last, "cannot connect yet; the client tries again");
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
        let (id, redis) = (new_client_id(), Arc::new(redis));
        let driver =
            Driver::start(id.as_hyphenated().to_string(), config.clone(), Arc::clone(&redis), Arc::clone(&counters));
        let (locks, end) = (Arc::clone(&driver), closed.clone());
        let watch = DeadlockWatch::new(locks, Arc::clone(&redis), id, &config);
        let last_task = tokio::spawn(async move {
            watch.run().await;
            end.cancel(); // closes the connections
        });
        let ended = OnceLock::new();
        (Arc::new(Engine { id, config, counters, driver, redis, closed, ended }), last_task)
    }

    /// The same as [`publish`](Engine::publish), also if this is the first request to a cluster. Then it waits for the map of the cluster,
    /// for no longer than that.
    pub(crate) async fn publish_when_known(&self, give_up: Instant) -> &'static str {
        let mut pauses = Pauses::default();
        let goes_on = || Instant::now() < give_up && !self.driver.is_closed() && !self.driver.is_abandoned();
        let knows = async || timeout_at(give_up, self.redis.knows_channels()).await.unwrap_or(false);
        while goes_on() && TaskRuntime::around("").is_ok() && !knows().await {
            sleep(pauses.next()).await; // it does not wait if the runtime of the client has just ended
        }
        self.publish()
    }

    /// The command that publishes a release; empty if releases are not published.
    pub(crate) fn publish(&self) -> &'static str {
        self.redis.publish()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.redis.is_cluster()
    }

    /// Acquires no more locks, waits for at most `grace` until all holds are released, and closes.
    pub(crate) async fn shutdown(&self, grace: Duration) -> Result<()> {
        TaskRuntime::around(CLOSING_CLIENT)?;
        self.driver.stop();
        let _ = timeout(grace, self.driver.idle()).await; // then all holders are notified
        self.close().await
    }

    /// Notifies every holder, releases all locks, and disconnects; within two seconds, even if the server does not reply.
    pub(crate) async fn close(&self) -> Result<()> {
        TaskRuntime::around(CLOSING_CLIENT)?;
        self.driver.close();
        if self.driver.is_abandoned() {
            return Err(self.driver.closed("releasing all locks", ""));
        }
        let done = timeout(CLOSING, self.driver.idle()).await;
        let ended = match done {
            _ if self.driver.is_abandoned() => Err(self.driver.closed("releasing all locks", "")), // meanwhile
            done => done.map_err(|_| Error::silent("releasing all locks", "", CLOSING, self.driver.trouble())),
        };
        let ended = self.ended.get().cloned().unwrap_or(ended);
        let _ = self.ended.set(ended.clone()); // before nothing is under way anymore, which another call may wait for
        self.driver.give_up();
        let _ = timeout(REMOVAL, self.closed.cancelled()).await; // the program may end after this
        ended
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.driver.is_stopping()
    }

    /// Resolves when it acquires no more locks.
    pub(crate) async fn stops(&self) {
        self.driver.stopped().await;
    }

    /// True if the server of `key` has given no reply for this long, or cannot be connected to.
    pub(crate) fn is_unwell(&self, key: &str, late: Duration) -> bool {
        self.redis.is_unwell(key, late)
    }

    /// Notifies the listener of each message on a channel, until the subscription is dropped.
    pub(crate) fn listen(&self, channel: &str, listener: Arc<dyn Listener>) -> Subscription {
        self.redis.listen(channel, listener)
    }

    /// The time until which a call that begins now retries if the server does not reply.
    pub(crate) fn outage_ends(&self) -> Instant {
        Instant::now() + self.config.outage_timeout
    }

    /// Sends a request about a lock itself, not about a hold.
    pub(crate) async fn tell(&self, asked: Asked<'_>, give_up: Instant) -> Result<Answer> {
        self.driver.refuse_if_closed(asked.what, asked.name)?;
        self.tell_at_last(asked, give_up).await
    }

    /// The same, and whether an earlier attempt may have been executed.
    pub(crate) async fn tell_with_doubt(&self, asked: Asked<'_>, give_up: Instant) -> Result<(Answer, Doubt)> {
        self.driver.refuse_if_closed(asked.what, asked.name)?;
        Box::pin(asked.ask(&self.redis, give_up)).await
    }

    /// The same as [`tell`](Engine::tell), also while the client closes.
    pub(crate) async fn tell_at_last(&self, asked: Asked<'_>, give_up: Instant) -> Result<Answer> {
        Box::pin(asked.ask(&self.redis, give_up)).await.map(|(answer, _)| answer)
    }

    /// Checks now that the server replies on every connection.
    pub(crate) async fn ping(&self) -> Result<()> {
        self.within_a_timeout("ping", self.redis.ping()).await
    }

    /// A connection to each server that has keys.
    #[cfg(not(leasehold_explore))]
    pub(crate) async fn servers(&self) -> Result<Vec<Arc<crate::redis::ServerLink>>> {
        self.within_a_timeout("connecting to each server", self.redis.servers()).await
    }

    async fn within_a_timeout<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = ::std::result::Result<T, Fault>>,
    ) -> Result<T> {
        self.driver.refuse_if_closed(what, "")?;
        TaskRuntime::around(what)?;
        let since = Instant::now();
        match timeout(self.config.command_timeout, request).await {
            Ok(answered) => answered.map_err(|fault| failed::error(fault, what, since.elapsed(), ("", ""))),
            Err(_) => Err(silent(what, "", since.elapsed(), self.redis.trouble("", None))),
        }
    }

    /// What this client says of itself, if it does.
    pub(crate) fn own_record(&self) -> Option<ClientRecord> {
        self.config.announce.then(|| ClientRecord::here(self.config.client_name.as_deref()))
    }

    /// What the client with this hold says of itself. A client that says nothing does not ask either.
    pub(crate) async fn record_of(&self, id: &str) -> Option<ClientRecord> {
        let client = record::client_of(id).filter(|_| self.config.announce)?;
        record::look_up(&self.redis, client, self.config.command_timeout).await
    }

    #[cfg(feature = "bench")]
    pub(crate) async fn raw(&self, source: &str) -> Result<crate::redis::Raw> {
        self.redis.raw(source).await.map_err(|fault| failed::error(fault, "loading a script", Duration::ZERO, ("", "")))
    }
}
