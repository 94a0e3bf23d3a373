//! The client and how it is made.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use uuid::Uuid;

#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::{
    clock::Moment,
    config::{Config, Confirmed, Lease, PubSub},
    credentials::{Credentials, CredentialsProvider},
    engine::{Engine, Hold, TaskRuntime},
    error::{Error, Result},
    redis::Url,
    stats::Stats,
    tls::TlsContext,
};

/// A connection to one Redis or Valkey, from which locks are made. Cheap to clone; all clones are one client.
///
/// When the last clone and the last guard are gone, what is still being given back is finished in the background and
/// the connections are closed. [`close`](Client::close) does it at once and says whether it worked;
/// [`shutdown`](Client::shutdown) first waits for the guards.
///
/// End a program with one of these. Without it the runtime ends with `main`, and the background with it: a guard dropped in
/// the last moments may leave its lock on the server until the lease ends, 30 s by default.
///
/// ```no_run
/// # async fn run() -> leasehold::Result<()> {
/// let client = leasehold::Client::connect("redis://127.0.0.1:6379").await?;
/// let guard = client.lock("invoice:42").lock().await?;
/// // alone, on all machines
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    engine: Arc<Engine>,
    prefix: Arc<str>,
}

impl Client {
    /// Connects with default settings.
    ///
    /// | the URL | leads to |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/db]` | one server |
    /// | `redis+unix://[user:password@]/path[?db=n]` | one server on this machine |
    /// | `redis-sentinel://[user:password@]host[:port],host[:port],../service[/db]` | the master that these sentinels name; who we are to them: `?sentinel_user=..&sentinel_password=..` |
    /// | `redis-cluster://[user:password@]host[:port],host[:port],..` | a cluster, of which these are some servers |
    ///
    /// With `rediss` for `redis` connections are encrypted (feature `tls`), and `valkey` may stand for `redis`. What is not a
    /// letter or digit in a user or a password is written as `%` and two hexadecimal digits.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a URL that cannot be used, [`Error::Unavailable`] if nobody answers there,
    /// [`Error::Denied`] if we are not let in.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Client> {
        Client::builder().url(url).connect().await
    }

    /// Connects with default settings to where the environment says: the URL in `REDIS_URL`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] where it is missing, else as [`connect`](Client::connect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn from_env() -> Result<Client> {
        let url = std::env::var("REDIS_URL").map_err(|_| Error::config("REDIS_URL", "it is not set, or no text"))?;
        Client::connect(&url).await
    }

    /// For settings of one's own.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The first half of every id that this client writes into Redis.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.engine.id
    }

    /// What it has done since it was connected, and what it holds now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.counters.snapshot()
    }

    /// Takes no more locks, gives back all that is held, and disconnects, for all clones.
    ///
    /// Guards that are still alive are lost at once ([`Lost::Closed`](crate::Lost::Closed)); calls that wait end
    /// with [`Error::Closed`]. Returns within two seconds whatever the server does.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the server did not confirm that everything was given back; what it still has ends
    /// with its lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the client closed; what was held is given back if the server answers.
    pub async fn close(self) -> Result<()> {
        self.engine.close().await
    }

    /// Takes no more locks, waits for at most `grace` until no guard is alive and all is given back, and
    /// [closes](Client::close). Until then guards are kept, and their owners can still re-enter. A guard whose lock is lost
    /// counts as long as it is alive: its work may still be stopping.
    ///
    /// Calls for other locks, also those that wait already, end with [`Error::Closed`]. What is left after `grace` is lost
    /// ([`Lost::Closed`](crate::Lost::Closed)) and given back.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::time::Duration;
    ///
    /// let guard = client.lock("invoice:42").lock().await?;
    /// let job = tokio::spawn(guard.protect(async { /* half a second of work */ }));
    /// client.clone().shutdown(Duration::from_secs(5)).await?; // the job is let finish
    /// job.await.expect("it does not panic")?;
    /// assert!(client.is_closed());
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`close`](Client::close).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the client without new locks; the guards stay as they are.
    pub async fn shutdown(self, grace: Duration) -> Result<()> {
        self.engine.shutdown(grace).await
    }

    /// Whether it takes no more locks: it is closed, or is being [shut down](Client::shutdown).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.engine.is_stopping()
    }

    /// Whether the server answers, on each connection for commands: for readiness probes.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if it does not within [`command_timeout`](Builder::command_timeout), [`Error::Denied`] if we
    /// are not let in, [`Error::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn ping(&self) -> Result<()> {
        self.engine.ping().await
    }

    /// What this client holds now, in no particular order. Asks nobody but the clock.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let _guard = client.lock("invoice:42").lock().await?;
    /// for held in client.held() {
    ///     println!("{} for {:?}, certain for {:?} more", held.name, held.since.elapsed(), held.remaining);
    /// }
    /// # assert_eq!(client.held().len(), 1);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        self.engine.holds().iter().filter_map(|hold| Held::of(hold)).collect()
    }

    /// A script on this client's own bare connection, so that benchmarks can say what the rest costs. Not part of the
    /// public interface: it may change or go at any time.
    #[cfg(feature = "bench")]
    #[doc(hidden)]
    pub async fn raw_script(&self, source: &str) -> Result<RawScript> {
        Ok(RawScript(self.engine.raw(source).await?))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id()).field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// A lock that a client holds, see [`Client::held`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Held {
    /// The lock's name, without the client's prefix.
    pub name: String,
    /// The hash field in Redis, see [`Guard::id`](crate::Guard::id).
    pub id: String,
    /// The hold count: the outermost acquisition and the nested ones.
    pub holds: u32,
    /// Since when. Counted back on the clock of leases, so a suspend of the machine lies between it and now.
    pub since: Instant,
    /// Certainly held for this long, see [`Guard::remaining`](crate::Guard::remaining).
    pub remaining: Duration,
}

impl Held {
    fn of(hold: &Hold) -> Option<Held> {
        let (since, holds, remaining) = hold.held()?;
        let since = Instant::now().checked_sub(Moment::now().since(since))?;
        Some(Held { name: hold.name.to_string(), id: hold.id().to_owned(), holds, since, remaining })
    }
}

/// See [`Client::raw_script`].
#[cfg(feature = "bench")]
#[doc(hidden)]
#[derive(Debug)]
pub struct RawScript(crate::redis::Raw);

#[cfg(feature = "bench")]
impl RawScript {
    #[doc(hidden)]
    pub async fn call(&self, keys: Vec<String>, args: Vec<String>) -> Result<()> {
        let failed = |fault| Error::config("script", format!("{fault:?}"));
        self.0.call(keys, args).await.map_err(failed)
    }
}

/// Settings of a client. Values are checked by [`connect`](Builder::connect).
///
/// ```no_run
/// # async fn run() -> leasehold::Result<()> {
/// use std::time::Duration;
///
/// let client = leasehold::Client::builder()
///     .url("redis://cache.internal")
///     .prefix("billing:")
///     .outage_timeout(Duration::from_secs(10))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    url: String,
    prefix: String,
    watchdog: Duration,
    command_timeout: Duration,
    outage_timeout: Duration,
    connect_timeout: Duration,
    slow_wait: Duration,
    replicas: u8,
    confirmed: Confirmed,
    handovers: u32,
    connections: usize,
    own_thread: Option<bool>,
    pubsub: PubSub,
    client_name: Option<String>,
    credentials: Option<CredentialsProvider>,
    #[cfg(feature = "tls")]
    tls: Tls,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            url: "redis://127.0.0.1:6379".to_owned(),
            prefix: String::new(),
            watchdog: Duration::from_secs(30),
            command_timeout: Duration::from_secs(3),
            outage_timeout: Duration::from_secs(30),
            connect_timeout: Duration::ZERO,
            slow_wait: Duration::from_secs(1),
            replicas: 0,
            confirmed: Confirmed::Received,
            handovers: 16,
            connections: 1,
            own_thread: None,
            pubsub: PubSub::Auto,
            client_name: None,
            credentials: None,
            #[cfg(feature = "tls")]
            tls: Tls::new(),
        }
    }
}

impl Builder {
    /// Where the server is, see [`Client::connect`]. Never printed, since it can hold a password. Defaults to
    /// `redis://127.0.0.1:6379`.
    pub fn url(self, url: impl Into<String>) -> Self {
        Builder { url: url.into(), ..self }
    }

    /// Written before every lock name, to keep applications apart on one server. Redisson's `nameMapper` must do the
    /// same where locks are shared. Defaults to nothing.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Builder { prefix: prefix.into(), ..self }
    }

    /// The lease of a lock without one of its own, renewed every third of it while a guard lives. Shorter: a crashed
    /// holder is replaced sooner, and a pause of the process or the network loses the lock sooner. Between 30 ms and
    /// a year. Defaults to 30 s, as in Redisson.
    pub fn watchdog(self, lease: Duration) -> Self {
        Builder { watchdog: lease, ..self }
    }

    /// How long one script may take. After that its outcome counts as unknown, it is asked again within the
    /// `outage_timeout`, and a connection on which nothing else was answered meanwhile is replaced. Never more than
    /// a third of the watchdog's lease, so that a dead connection does not cost the lock: a longer one is lowered to that,
    /// and a warning says so. Defaults to 3 s.
    pub fn command_timeout(self, t: Duration) -> Self {
        Builder { command_timeout: t, ..self }
    }

    /// How long a call rides out an unreachable server before it fails with [`Error::Unavailable`]. Between the
    /// `command_timeout` and a year; what lies outside is moved there, and a warning says so. Defaults to 30 s.
    pub fn outage_timeout(self, t: Duration) -> Self {
        Builder { outage_timeout: t, ..self }
    }

    /// For how long [`connect`](Builder::connect) keeps trying while nobody answers or the server is not ready: for
    /// services that start before Redis does. The first attempt can take a `command_timeout` for each of the `connections` in any
    /// case, the last is made when the time is over and takes up to a tenth of a second; a wrong password is told at once.
    /// Defaults to zero: once.
    pub fn connect_timeout(self, t: Duration) -> Self {
        Builder { connect_timeout: t, ..self }
    }

    /// A wait for a lock that takes longer is logged while it lasts, with its length and who has the lock: when it is that
    /// long, at every doubling, and when it is over (warnings, target `leasehold::lock`). Of those who wait for one name it is the
    /// first in the queue that speaks; for the others there is an event at debug level when their wait is over. Defaults to 1 s.
    pub fn slow_wait(self, t: Duration) -> Self {
        Builder { slow_wait: t, ..self }
    }

    /// How many replicas must confirm a new hold (`WAIT`) before it counts, so that a failover is less likely to
    /// forget it. They have half the `command_timeout` for it; too few is [`Error::Replicas`]. Defaults to 0.
    pub fn replicas(self, n: u8) -> Self {
        Builder { replicas: n, confirmed: Confirmed::Received, ..self }
    }

    /// The same, but a replica confirms only what is on its disk (`WAITAOF`): of Redis 7.2 and Valkey, where replicas have
    /// `appendonly yes`. An older server is named in [`Error::Server`]. Of this and [`replicas`](Builder::replicas) the one that is
    /// set last counts. Defaults to 0.
    pub fn replicas_fsynced(self, n: u8) -> Self {
        Builder { replicas: n, confirmed: Confirmed::Fsynced, ..self }
    }

    /// Turns in a row that the tasks of one process may pass a contended lock among themselves before other
    /// processes get their chance, where any were told of its last release; else a row lasts up to 10 ms. More: fewer
    /// messages, and longer waits elsewhere. 0 gives every turn to whoever comes first. Defaults to 16.
    pub fn handovers(self, n: u32) -> Self {
        Builder { handovers: n, ..self }
    }

    /// Connections for commands; one name always uses the same one. More help when one connection's bandwidth is
    /// the limit. From 1 to 1024. Defaults to 1; one more is opened for messages when somebody first waits.
    pub fn connections(self, n: usize) -> Self {
        Builder { connections: n, ..self }
    }

    /// Whether the client's own work (connections, renewals, releases) runs on a thread of its own, so that leases
    /// are renewed even while all threads of your runtime are kept busy. Costs a switch of threads per request.
    /// Defaults to true on a current-thread runtime, which stands still between its `block_on`s, and else to false.
    pub fn own_thread(self, own: bool) -> Self {
        Builder { own_thread: Some(own), ..self }
    }

    /// How waiters learn that a lock is free. All programs that share locks must agree on it, Redisson's too, or wait for each
    /// other by timer. Defaults to [`PubSub::Auto`].
    pub fn pubsub(self, p: PubSub) -> Self {
        Builder { pubsub: p, ..self }
    }

    /// What the server calls our connections (`CLIENT LIST`). No spaces, only ASCII. Defaults to nothing.
    pub fn client_name(self, name: impl Into<String>) -> Self {
        Builder { client_name: Some(name.into()), ..self }
    }

    /// Who we are, asked anew for each connection: for managed servers whose passwords are tokens that end. Used instead of
    /// what the URL says, but not for sentinels. If it fails, panics, or takes longer than a `command_timeout`, the connection
    /// is tried again, as if nobody answered. Defaults to what the URL says.
    ///
    /// ```
    /// # async fn token() -> Result<String, std::io::Error> { Ok("s3cret".to_owned()) }
    /// use leasehold::{Client, Credentials};
    ///
    /// let builder = Client::builder()
    ///     .url("redis://cache.internal")
    ///     .credentials(async || Ok::<_, std::io::Error>(Credentials::new("billing", token().await?)));
    /// ```
    pub fn credentials<F, W, E>(self, provider: F) -> Self
    where
        F: Fn() -> W + Send + Sync + 'static,
        W: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Builder { credentials: Some(CredentialsProvider::new(provider)), ..self }
    }

    /// How connections are encrypted where the URL says that they are (`rediss://` and the like). Defaults to
    /// [`Tls::new`].
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: Tls) -> Self {
        Builder { tls, ..self }
    }

    /// Checks the settings and connects.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Client> {
        let url = Url::parse(&self.url)?;
        let config = self.config(&url)?;
        let runtime = TaskRuntime::find(self.own_thread)?;
        let engine = Engine::start(url, config, runtime).await?;
        Ok(Client { engine, prefix: self.prefix.into() })
    }

    /// Checks the settings and connects when the client is first used: no I/O, so nothing is known yet of the address or
    /// the password. Needs no runtime; without one the client's tasks run on a [thread of their own](Builder::own_thread).
    ///
    /// ```
    /// # async fn run() -> leasehold::Result<()> {
    /// let client = leasehold::Client::builder().url("redis://cache.internal").connect_lazy()?;
    /// let ready = client.ping().await; // connects
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a setting that cannot be used.
    pub fn connect_lazy(self) -> Result<Client> {
        let url = Url::parse(&self.url)?;
        let config = self.config(&url)?;
        let runtime = TaskRuntime::find(self.own_thread)?;
        Ok(Client { engine: Engine::start_lazy(url, config, runtime), prefix: self.prefix.into() })
    }

    fn config(&self, url: &Url) -> Result<Config> {
        let watchdog = Lease::new("watchdog", self.watchdog)?;
        if *watchdog < Duration::from_millis(30) {
            return Err(Error::config("watchdog", "under 30 ms the lease ends before it can be renewed"));
        }
        if self.command_timeout.is_zero() {
            return Err(Error::config("command_timeout", "nothing is answered in no time"));
        }
        if !(1..=1024).contains(&self.connections) {
            return Err(Error::config("connections", "must be from 1 to 1024"));
        }
        // What the server takes for a name (CLIENT SETNAME): printable, without spaces.
        if self
            .client_name
            .as_deref()
            .is_some_and(|name| name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Error::config("client_name", "it is empty, or has spaces or letters outside ASCII"));
        }
        if self.pubsub == PubSub::Sharded && !url.is_cluster() {
            return Err(Error::config("pubsub", "only a cluster has shards"));
        }
        let command_timeout = moved("command_timeout", self.command_timeout, Duration::ZERO, *watchdog / 3);
        Ok(Config {
            watchdog,
            command_timeout,
            outage_timeout: moved("outage_timeout", self.outage_timeout, command_timeout, A_YEAR),
            connect_timeout: self.connect_timeout,
            slow_wait: self.slow_wait,
            replicas: self.replicas,
            confirmed: self.confirmed,
            handovers: self.handovers,
            connections: self.connections,
            pubsub: self.pubsub,
            credentials: self.credentials.clone(),
            tls: url.is_encrypted().then(|| self.tls_context()).transpose()?,
            client_name: self.client_name.clone(),
        })
    }

    #[cfg(feature = "tls")]
    fn tls_context(&self) -> Result<TlsContext> {
        TlsContext::new(&self.tls)
    }

    #[cfg(not(feature = "tls"))]
    fn tls_context(&self) -> Result<TlsContext> {
        Err(Error::config("url", "TLS needs leasehold's feature `tls`"))
    }
}

/// The setting, or the bound it lies beyond.
fn moved(setting: &'static str, wanted: Duration, least: Duration, most: Duration) -> Duration {
    let used = wanted.clamp(least, most);
    if used != wanted {
        tracing::warn!(target: "leasehold::conn", setting, ?wanted, ?used, "a setting was moved into its bounds");
    }
    used
}

/// Longer outages are not ridden out by any call; a bound that the clock can count to.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("prefix", &self.prefix)
            .field("watchdog", &self.watchdog)
            .field("command_timeout", &self.command_timeout)
            .field("outage_timeout", &self.outage_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("slow_wait", &self.slow_wait)
            .field("replicas", &self.replicas)
            .field("confirmed", &self.confirmed)
            .field("handovers", &self.handovers)
            .field("connections", &self.connections)
            .field("own_thread", &self.own_thread)
            .field("pubsub", &self.pubsub)
            .field("client_name", &self.client_name)
            .finish_non_exhaustive()
    }
}
