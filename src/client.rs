//! The client and its settings.

use std::{
    fmt,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

use uuid::Uuid;

#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::{
    clock::Moment,
    config::{Config, Confirmed, Lease, OnDeadlock, PubSub},
    contained::conn_event,
    credentials::{Credentials, CredentialsProvider},
    driver::HeldNow,
    engine::Engine,
    error::{Error, Result},
    redis::Url,
    stats::Stats,
    task_runtime::TaskRuntime,
    tls::TlsContext,
};

/// A connection to a Redis or Valkey deployment: the source of locks. Cheap to clone; all clones are one client.
///
/// End a program with [`close`](Client::close), which releases all locks and reports whether that worked. Or use
/// [`shutdown`](Client::shutdown), which first waits until the guards are released. Without either, the background tasks end with `main`:
/// a guard that was dropped just before may leave its lock on the server until the lease expires, 30 s by default.
///
/// When its last clone, lock value and guard are dropped, the client finishes its releases in the background and closes its connections.
///
/// A client does not survive `fork`, because its tasks stay in the parent: in the child each call returns [`Error::Unavailable`] at once, and
/// dropping a guard releases nothing. Connect a client in the child. The locks stay those of the parent.
///
/// ```no_run
/// # async fn run() -> leasehold::Result<()> {
/// let client = leasehold::Client::connect("redis://127.0.0.1:6379").await?;
/// let guard = client.mutex("invoice:42").lock().await?;
/// // one holder at a time, on all machines
/// guard.unlock().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    engine: Arc<Engine>,
    prefix: Arc<str>,
    /// The addresses in the URL, without the login.
    place: Arc<str>,
    database: u8,
}

impl Client {
    /// Connects with default settings.
    ///
    /// | the URL | connects to |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/db]` | one server |
    /// | `redis+unix://[user:password@]/path[?db=n]` | one server on this machine |
    /// | `redis-sentinel://[user:password@]host[:port],host[:port],../service[/db]` | the master that more than half of these sentinels name; the login for the sentinels: `?sentinel_user=..&sentinel_password=..` |
    /// | `redis-cluster://[user:password@]host[:port],host[:port],..` | a cluster; name some of its servers |
    ///
    /// Write `rediss` instead of `redis` to encrypt the connections (feature `tls`); this does not work for unix sockets. `valkey`
    /// means the same as `redis`. In a user name or a password, write each character that is not a letter or digit as `%` and two
    /// hexadecimal digits.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidConfig`]: the URL is not valid.
    /// * [`Error::Unavailable`]: no server replied at that address.
    /// * [`Error::Denied`]: the server did not accept the user or the password.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Client> {
        Client::builder().url(url).connect().await
    }

    /// A client of a server in this process, with default settings. For others: [`Builder::connect_in_memory`].
    ///
    /// # Errors
    ///
    /// As [`Builder::connect_in_memory`].
    #[cfg(feature = "test-util")]
    pub fn in_memory(server: &crate::MemoryServer) -> Result<Client> {
        Client::builder().connect_in_memory(server)
    }

    /// Connects with default settings to the URL in the environment variable `REDIS_URL`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the variable is not set; else as [`connect`](Client::connect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn from_env() -> Result<Client> {
        let url = std::env::var("REDIS_URL")
            .map_err(|_| Error::config("REDIS_URL", "it is not set, or is not valid UTF-8"))?;
        Client::connect(&url).await
    }

    /// Starts with the default settings, which you can change before you connect.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The id of this client: the first part of the id of each of its holds in Redis, see [`Guard::id`](crate::Guard::id). The ids of permits
    /// begin with its first 12 hex digits, without hyphens.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.engine.id
    }

    /// Counters since the client was connected, and gauges for this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.counters.snapshot()
    }

    /// Closes this client and all its clones: releases all locks, then disconnects.
    ///
    /// Guards that are still alive are lost at once ([`Lost::Closed`](crate::Lost::Closed)). Calls that wait return
    /// [`Error::Closed`]. `close` returns within two seconds, even if the server does not reply.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the server did not confirm every release. The locks that remain there expire. Later calls return the same
    /// error.
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, the client stays closed and releases its locks in the background, if the server replies.
    pub async fn close(self) -> Result<()> {
        self.engine.close().await
    }

    /// Lets the holders finish, then [closes](Client::close) this client and all its clones.
    ///
    /// 1. From now on the client acquires no more locks: such calls, and calls that already wait, return [`Error::Closed`]. Locks
    ///    that are held are still renewed, and their owners can still re-enter. Only a [leader](Client::leader) is stopped at once: its
    ///    work is dropped, so that the next candidate can lead.
    /// 2. `shutdown` waits until all guards are released or dropped and all releases are done, but for at most `grace`. A guard that
    ///    has lost its lock also counts until it is dropped, because its work may still be stopping. So does the work of
    ///    [`PlainSemaphore::with`](crate::PlainSemaphore::with).
    /// 3. `shutdown` closes the client. Guards that are still alive are lost ([`Lost::Closed`](crate::Lost::Closed)), and their
    ///    locks are released. That takes up to two seconds more.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::time::Duration;
    ///
    /// let guard = client.mutex("invoice:42").lock().await?;
    /// let job = tokio::spawn(guard.protect(async { /* half a second of work */ }));
    /// client.clone().shutdown(Duration::from_secs(5)).await?; // the job finishes first
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
    /// If you drop the future, the client still acquires no more locks. The guards stay as they are.
    pub async fn shutdown(self, grace: Duration) -> Result<()> {
        self.engine.shutdown(grace).await
    }

    /// True if the client acquires no more locks, because it is closed or is being [shut down](Client::shutdown). Also true if the
    /// runtime that it was connected on has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.engine.is_stopping()
    }

    /// Checks that the server replies on every connection for commands. Use it for readiness probes.
    ///
    /// # Errors
    ///
    /// * [`Error::Unavailable`]: the server did not reply within [`command_timeout`](Builder::command_timeout).
    /// * [`Error::Denied`]: the server does not accept the user or the password.
    /// * [`Error::Closed`]: the client is closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn ping(&self) -> Result<()> {
        self.engine.ping().await
    }

    /// The locks, and permits of semaphores, that this client holds now, in no particular order. Sends no request.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let _guard = client.mutex("invoice:42").lock().await?;
    /// for held in client.held() {
    ///     println!("{}: held for {:?}, certain for {:?} more", held.name, held.since.elapsed(), held.remaining);
    /// }
    /// # assert_eq!(client.held().len(), 1);
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        self.engine.driver.held().into_iter().filter_map(Held::of).collect()
    }

    /// A script on a bare connection of this client. Benchmarks use it to measure the cost of everything else. Not part of the
    /// public interface: it may change at any time.
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

    /// The same for two clients of one address.
    pub(crate) fn place(&self) -> Arc<str> {
        Arc::clone(&self.place)
    }

    /// The number of the database on that server.
    pub(crate) fn database(&self) -> u8 {
        self.database
    }

    pub(crate) fn outage_timeout(&self) -> Duration {
        self.engine.config.outage_timeout
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id()).field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// A lock that a client holds, see [`Client::held`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let guard = client.mutex("invoice:42").lock().await?;
/// let held = client.held();
/// assert_eq!((&*held[0].name, &*held[0].id, held[0].holds), ("invoice:42", guard.id(), 1));
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Held {
    /// The lock's name, without the client's prefix.
    pub name: String,
    /// The id of the hold in Redis, see [`Guard::id`](crate::Guard::id).
    pub id: String,
    /// The hold count: the first acquisition and the nested ones. Of a semaphore: the number of permits.
    pub holds: u32,
    /// The time at which the lock was acquired. If the machine slept after that, this is earlier by the length of the sleep, so that
    /// `since.elapsed()` counts the sleep, too.
    pub since: Instant,
    /// The lock is certainly held for this long, see [`Guard::remaining`](crate::Guard::remaining).
    pub remaining: Duration,
    /// Why the last request about this lock has failed, for example its renewal, in the words of the server. `None` if it has succeeded.
    pub trouble: Option<String>,
}

impl Held {
    fn of(held: HeldNow) -> Option<Held> {
        let since = Instant::now().checked_sub(Moment::now().since(held.since))?;
        Some(Held {
            name: held.name.to_string(),
            id: held.id.into(),
            holds: held.count,
            since,
            remaining: held.until.left(),
            trouble: held.trouble.map(|trouble| trouble.to_string()),
        })
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

/// Settings of a client. [`connect`](Builder::connect) checks them.
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
#[must_use = "a builder does nothing until you call `.connect().await?` on it"]
pub struct Builder {
    url: String,
    prefix: String,
    watchdog: Duration,
    command_timeout: Duration,
    outage_timeout: Duration,
    connect_timeout: Duration,
    slow_wait: Duration,
    on_deadlock: OnDeadlock,
    replicas: u8,
    confirmed: Confirmed,
    handovers: u32,
    connections: usize,
    own_thread: Option<bool>,
    pubsub: PubSub,
    client_name: Option<String>,
    announce: bool,
    tracking: bool,
    credentials: Option<CredentialsProvider>,
    metrics_with_names: bool,
    #[cfg(feature = "tls")]
    tls: Tls,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            url: "redis://127.0.0.1:6379".to_owned(),
            prefix: String::new(),
            watchdog: Duration::from_secs(30),
            command_timeout: COMMAND_TIMEOUT,
            outage_timeout: OUTAGE_TIMEOUT,
            connect_timeout: Duration::ZERO,
            slow_wait: Duration::from_secs(1),
            on_deadlock: OnDeadlock::Report,
            replicas: 0,
            confirmed: Confirmed::Received,
            handovers: 16,
            connections: 1,
            own_thread: None,
            pubsub: PubSub::Auto,
            client_name: None,
            announce: true,
            tracking: true,
            credentials: None,
            metrics_with_names: false,
            #[cfg(feature = "tls")]
            tls: Tls::new(),
        }
    }
}

impl Builder {
    /// The address of the server, see [`Client::connect`]. Never printed, because it can contain a password. Defaults to
    /// `redis://127.0.0.1:6379`.
    pub fn url(self, url: impl Into<String>) -> Self {
        Builder { url: url.into(), ..self }
    }

    /// The client writes this before every lock name. It separates the locks of several applications on one server. If a JVM shares
    /// these locks, its Redisson `nameMapper` must add the same prefix. Defaults to nothing.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Builder { prefix: prefix.into(), ..self }
    }

    /// The lease of a lock for which you set no [`lease`](crate::Lock::lease). The client renews it after less than a third of this
    /// time, for as long as a guard lives. With a shorter lease, the lock of a crashed process is free sooner; but a pause of the
    /// process or of the network also loses the lock sooner. Between 30 ms and one year. Defaults to 30 s, as in Redisson.
    pub fn watchdog(self, lease: Duration) -> Self {
        Builder { watchdog: lease, ..self }
    }

    /// The longest time that the client waits for the reply to one request. After that the outcome of the request is unknown, and the
    /// client sends it again until the call gives up: after the `outage_timeout`, or sooner for `try_lock` and for calls with a time
    /// limit. If the connection delivered no other reply in the meantime, the client replaces it.
    ///
    /// At most a third of [`watchdog`](Builder::watchdog), so that a dead connection does not cost the lock. A longer time is lowered
    /// to that with a warning. Defaults to 3 s.
    pub fn command_timeout(self, t: Duration) -> Self {
        Builder { command_timeout: t, ..self }
    }

    /// The longest time that a call retries while the server is unreachable. Then it fails with [`Error::Unavailable`]. Between the
    /// `command_timeout` and one year; any other value is changed to the nearer of the two with a warning. Defaults to 30 s.
    pub fn outage_timeout(self, t: Duration) -> Self {
        Builder { outage_timeout: t, ..self }
    }

    /// The time for which [`connect`](Builder::connect) retries while the server does not reply or is not ready. Use it for services
    /// that start before Redis does. A wrong password fails at once.
    ///
    /// The first attempt is always completed, even if `t` is shorter: it can take one `command_timeout` for each of the
    /// [`connections`](Builder::connections). Otherwise the call ends at most 0.1 s after `t`: at `t` it makes a last attempt, which may
    /// take 0.1 s. Defaults to zero: one attempt.
    pub fn connect_timeout(self, t: Duration) -> Self {
        Builder { connect_timeout: t, ..self }
    }

    /// A call that waits longer than this for a lock logs warnings (target `leasehold::lock`), each with the length of the wait and the
    /// holder. It logs one after this time, one at every doubling of it, and one when the wait ends. If several calls of this client wait
    /// for one name, only the first of them logs warnings. The others log one event at debug level when their wait ends. Defaults to 1 s.
    pub fn slow_wait(self, t: Duration) -> Self {
        Builder { slow_wait: t, ..self }
    }

    /// What happens if owners wait for each other in a circle, so that none of them ever goes on.
    ///
    /// The client looks for such a circle if a wait is longer than [`slow_wait`](Builder::slow_wait) and its owner holds other locks. It
    /// logs each circle once as an error (target `leasehold::lock`), counts it ([`Totals::deadlocks`](crate::Totals::deadlocks)), and shows it
    /// in its [record](crate::ClientRecord::waits). The client with the youngest wait of the circle does that. With [`OnDeadlock::Fail`] it also ends
    /// that wait with [`Error::Deadlock`]; so set it in all programs that share these locks. Circles through a [`mutex`](Client::mutex) are not
    /// found: use [`lock`](Client::lock) where a task holds several locks. [The guide](crate::guide::observing#deadlocks) says which circles are found.
    ///
    /// An owner that waits is assumed to do nothing else. If a task holds a lock in one branch of `join!` and waits in another, that is not
    /// so. Use `Fail` only if no task does that, or if it gives each branch an [owner](crate::Owner) of its own. Defaults to
    /// [`OnDeadlock::Report`].
    ///
    /// ```no_run
    /// # async fn run() -> leasehold::Result<()> {
    /// use leasehold::{Client, Error, OnDeadlock};
    ///
    /// let client = Client::builder().on_deadlock(OnDeadlock::Fail).connect().await?;
    /// let from = client.lock("account:1").lock().await?;
    /// match client.lock("account:2").lock().await {
    ///     Ok(to) => { /* transfer */ }
    ///     Err(Error::Deadlock { .. }) => from.unlock().await?, // then begin again
    ///     Err(other) => return Err(other),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn on_deadlock(self, then: OnDeadlock) -> Self {
        Builder { on_deadlock: then, ..self }
    }

    /// The number of replicas that must confirm a new hold (`WAIT`) before the lock is granted. It makes it less likely that a failover
    /// loses the lock. The replicas have half the `command_timeout` for that; if too few confirm, the call returns
    /// [`Error::Replicas`]. Defaults to 0.
    pub fn replicas(self, n: u8) -> Self {
        Builder { replicas: n, confirmed: Confirmed::Received, ..self }
    }

    /// As [`replicas`](Builder::replicas), but a replica confirms only after it wrote the hold to its disk (`WAITAOF`). Needs Redis 7.2
    /// or Valkey, and `appendonly yes` on the replicas; an older server refuses with [`Error::Server`]. With `appendfsync everysec`, the
    /// default, a replica does that once per second, so each acquisition takes up to a second. With `appendfsync always` it takes as long
    /// as the disk needs. If you set both `replicas` and this, the last one counts. Defaults to 0.
    pub fn replicas_fsynced(self, n: u8) -> Self {
        Builder { replicas: n, confirmed: Confirmed::Fsynced, ..self }
    }

    /// How often in a row a lock may go from task to task of this client before other clients get their chance.
    ///
    /// If tasks of this client wait for a lock that another of its tasks releases, the client gives it to the first of them directly,
    /// without a message to other clients. After `n` such turns it releases the lock for all, and the server says how many other clients
    /// received the message. If none did, nobody else seems to wait. Then the client may pass the lock on more than `n` times before it
    /// next releases it for all: until there have been `n` turns and 10 ms have passed since the first of them.
    ///
    /// More turns mean fewer messages, and longer waits in other clients. With 0 the client releases the lock for all after every turn. It
    /// has no effect on a [`FairLock`](crate::FairLock), or if [`replicas`](Builder::replicas) is set: these are always released for all.
    /// Defaults to 16.
    pub fn handovers(self, n: u32) -> Self {
        Builder { handovers: n, ..self }
    }

    /// The number of connections for commands; one lock name always uses the same connection. More connections help if the bandwidth
    /// of one is the limit. From 1 to 1024. Defaults to 1. The client opens one more connection for messages when a call first waits.
    pub fn connections(self, n: usize) -> Self {
        Builder { connections: n, ..self }
    }

    /// Whether the client runs its connections, renewals and releases on a thread of its own. Then it renews leases even while your
    /// code blocks all threads of your runtime, and time limits of calls hold then. It costs a switch of threads per request. Defaults to true if there is no
    /// runtime, and on a current-thread runtime, because that does not run between two calls of `block_on`; else to false.
    ///
    /// With `false` on a current-thread runtime, calls from other runtimes make no progress while nothing drives that runtime, and their
    /// time limits may not end them.
    pub fn own_thread(self, own: bool) -> Self {
        Builder { own_thread: Some(own), ..self }
    }

    /// How a waiter is notified that a lock is free. All programs that share locks must use the same way, also those that use Redisson. If
    /// they do not, their waiters notice a release only by a timer. Defaults to [`PubSub::Auto`].
    pub fn pubsub(self, p: PubSub) -> Self {
        Builder { pubsub: p, ..self }
    }

    /// The name of this client's connections in `CLIENT LIST`. No spaces, only ASCII. Defaults to nothing.
    pub fn client_name(self, name: impl Into<String>) -> Self {
        Builder { client_name: Some(name.into()), ..self }
    }

    /// Whether the client writes a record of itself to the server, from which others learn which process holds a lock, and reads the records
    /// of others ([`Holder::client`](crate::Holder::client)). A record has the host, the process id, the program, the
    /// [`client_name`](Builder::client_name) and the time of the start, in the key `leasehold:client:{id}`. The client writes it 200 ms
    /// after its first use of a lock, renews it three times per [`watchdog`](Builder::watchdog) time, and removes it when it is closed. After
    /// a crash it expires with the locks. A lock costs nothing more. If the server does not permit that key, there is no record; a line in the log says so. Clients of a server in
    /// memory write none.
    ///
    /// Defaults to true.
    pub fn announce(self, on: bool) -> Self {
        Builder { announce: on, ..self }
    }

    /// Whether servers tell the client when others change a lock that it holds. If such a lock is deleted, evicted or forced open,
    /// [`Guard::lost`](crate::Guard::lost) resolves within a few round trips. Without this, the next renewal finds it, within a third of the
    /// lease. It is for locks with one holder: the loss of read locks and permits is found by their renewals.
    ///
    /// The connections then speak version 3 of the protocol, with `CLIENT TRACKING`. The client confirms each lock for the first time when it
    /// was held for 200 ms; from then on the server tells of changes. A server that does not know or permit this (it is older than
    /// 6.0, or the user lacks `client|tracking` or `client|caching`) is no error.
    ///
    /// Defaults to true.
    pub fn tracking(self, on: bool) -> Self {
        Builder { tracking: on, ..self }
    }

    /// Sets a function that returns the user and the password. The client calls it for each new connection. Use it for managed servers
    /// whose passwords are tokens that expire.
    ///
    /// It replaces the login in the URL, but not the login for sentinels. If the function fails, panics, or takes longer than a
    /// `command_timeout`, the client tries to connect again, as if the server had not replied. Defaults to the login in the URL.
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

    /// Whether the [metrics](crate::guide::observing) of events have the label `name`, with the name of the lock without the
    /// [prefix](Builder::prefix). Most recorders keep each name forever, so set it only if the service uses few names. It also costs
    /// look-ups in the recorder for each event. Gauges never have this label. Defaults to false.
    #[cfg(feature = "metrics")]
    pub fn metrics_with_names(self, with: bool) -> Self {
        Builder { metrics_with_names: with, ..self }
    }

    /// The settings of encrypted connections. They apply only if the URL begins with `rediss` or `valkeys`. Defaults to [`Tls::new`].
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: Tls) -> Self {
        Builder { tls, ..self }
    }

    /// Checks the settings and connects.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`]; also [`Error::InvalidConfig`] if another setting is not valid, or if a TLS file cannot be used.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Client> {
        let url = Url::parse(&self.url)?;
        let config = self.config(&url)?;
        let runtime = TaskRuntime::find(self.own_thread)?;
        let (place, database) = (url.place().into(), url.database());
        let engine = Engine::start(url, config, runtime).await?;
        Ok(Client { engine, prefix: self.prefix.into(), place, database })
    }

    /// Checks the settings. The client connects when you first use it, so a wrong address or password shows only then. This call needs
    /// no runtime; without one the client's tasks run on a [thread of their own](Builder::own_thread).
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
    /// [`Error::InvalidConfig`] if a setting is not valid.
    pub fn connect_lazy(self) -> Result<Client> {
        let url = Url::parse(&self.url)?;
        let config = self.config(&url)?;
        let runtime = TaskRuntime::find(self.own_thread)?;
        let (place, database) = (url.place().into(), url.database());
        let engine = Engine::start_lazy(url, config, runtime);
        Ok(Client { engine, prefix: self.prefix.into(), place, database })
    }

    /// Checks the settings. The client's tasks run on the present runtime, whatever [`own_thread`](Builder::own_thread) says, so that they
    /// share its clock. The URL and everything about connections are not used.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let server = leasehold::MemoryServer::new();
    /// let client = leasehold::Client::builder().watchdog(Duration::from_secs(5)).connect_in_memory(&server)?;
    /// client.ping().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if a setting is not valid.
    #[cfg(feature = "test-util")]
    pub fn connect_in_memory(self, server: &crate::MemoryServer) -> Result<Client> {
        let url = Url::parse(IN_MEMORY)?;
        let at = crate::spans::ServerLabel { address: server.place().into(), ..Default::default() };
        let config = Config { server: at, announce: false, tracking: false, ..self.config(&url)? };
        let engine = Engine::start_in_memory(server, config, TaskRuntime::find(Some(false))?);
        Ok(Client { engine, prefix: self.prefix.into(), place: server.place().into(), database: 0 })
    }

    fn config(&self, url: &Url) -> Result<Config> {
        let watchdog = Lease::new("watchdog", self.watchdog)?;
        if *watchdog < Duration::from_millis(30) {
            return Err(Error::config(
                "watchdog",
                "it must be at least 30 ms: a shorter lease can expire before it is renewed",
            ));
        }
        if self.command_timeout.is_zero() {
            return Err(Error::config("command_timeout", "it must be greater than zero"));
        }
        if !(1..=1024).contains(&self.connections) {
            return Err(Error::config("connections", "it must be from 1 to 1024"));
        }
        // The names that CLIENT SETNAME accepts: printable, without spaces.
        if self
            .client_name
            .as_deref()
            .is_some_and(|name| name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Error::config(
                "client_name",
                "it must not be empty, and must not contain spaces or characters outside ASCII",
            ));
        }
        if self.pubsub == PubSub::Sharded && !url.is_cluster() {
            return Err(Error::config("pubsub", "PubSub::Sharded needs a cluster"));
        }
        let command_timeout =
            moved("command_timeout", self.command_timeout, COMMAND_TIMEOUT, Duration::ZERO..=*watchdog / 3);
        Ok(Config {
            watchdog,
            command_timeout,
            outage_timeout: moved("outage_timeout", self.outage_timeout, OUTAGE_TIMEOUT, command_timeout..=A_YEAR),
            connect_timeout: self.connect_timeout,
            slow_wait: self.slow_wait,
            on_deadlock: self.on_deadlock,
            replicas: self.replicas,
            confirmed: self.confirmed,
            handovers: self.handovers,
            connections: self.connections,
            pubsub: self.pubsub,
            credentials: self.credentials.clone(),
            tls: url.is_encrypted().then(|| self.tls_context()).transpose()?,
            client_name: self.client_name.clone(),
            announce: self.announce,
            tracking: self.tracking,
            prefix: self.prefix.clone(),
            metrics_with_names: self.metrics_with_names,
            server: url.server(),
        })
    }

    #[cfg(feature = "tls")]
    fn tls_context(&self) -> Result<TlsContext> {
        TlsContext::new(&self.tls)
    }

    #[cfg(not(feature = "tls"))]
    fn tls_context(&self) -> Result<TlsContext> {
        Err(Error::config("url", "an encrypted connection needs the feature `tls` of leasehold"))
    }
}

/// A URL that is valid and not used.
#[cfg(feature = "test-util")]
const IN_MEMORY: &str = "redis://in.memory";
/// The defaults that other settings may move.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The setting, or the bound that it exceeds. A default that exceeds it is not the caller's doing, so it is logged at debug level.
fn moved(setting: &'static str, wanted: Duration, default: Duration, bounds: RangeInclusive<Duration>) -> Duration {
    let used = wanted.clamp(*bounds.start(), *bounds.end());
    if used != wanted && wanted == default {
        conn_event!(debug, setting, ?wanted, ?used, "default out of range, the nearest allowed value is used");
    } else if used != wanted {
        conn_event!(warn, setting, ?wanted, ?used, "setting out of range, the nearest allowed value is used");
    }
    used
}

/// The longest `outage_timeout`. The clock can count that far.
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
            .field("on_deadlock", &self.on_deadlock)
            .field("announce", &self.announce)
            .field("tracking", &self.tracking)
            .field("replicas", &self.replicas)
            .field("confirmed", &self.confirmed)
            .field("handovers", &self.handovers)
            .field("connections", &self.connections)
            .field("own_thread", &self.own_thread)
            .field("pubsub", &self.pubsub)
            .field("client_name", &self.client_name)
            .field("metrics_with_names", &self.metrics_with_names)
            .finish_non_exhaustive()
    }
}
