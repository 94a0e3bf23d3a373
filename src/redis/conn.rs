//! The only file that names fred: one connection, and the supervision that replaces it.
//!
//! fred can reconnect by itself, but then resends scripts that may have run, and some of its states never end
//! (docs/design.md lists what was measured). So a [`Link`] is one connection for its whole life: no reconnect policy,
//! one attempt per command, every wait bounded, and once anything about it is doubtful it is thrown away. [`Conn`]
//! opens the next one. Requests are safe to send twice, so nothing is lost with a link.

use std::{
    fmt::Write,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use fred::{
    clients::Client,
    error::{Error as FredError, ErrorKind},
    interfaces::{ClientLike, EventInterface, FredResult, LuaInterface, PubsubInterface},
    types::{
        Builder, ClusterHash, CustomCommand, Key, Message, Value, config::Config as FredConfig,
        config::UnresponsiveConfig,
    },
};
use futures_util::future::{BoxFuture, join, join_all};
use tokio::{
    sync::{Notify, broadcast, watch},
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    fault::Fault,
    script::{Answer, Code, Part, Script, Word},
};
use crate::{
    error::{Error, Result, Source},
    stats::Counters,
};

/// Waits between attempts to reconnect double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that lives no longer than this has died young. After several of these in a row we wait before the next, but
/// no longer than this: a bad network is to be ridden out.
const YOUNG: Duration = Duration::from_secs(1);
const LAST_PAUSE_AFTER_YOUNG: Duration = Duration::from_millis(100);
/// How many times within the patience those who wait look at the clock.
const PULSES: u32 = 10;
/// Messages that may wait for us before we count as lagging. fred keeps eight such buffers per connection, and only
/// the subscriber's is ever filled.
const HEARD: usize = 4096;
const NOTHING_HEARD: usize = 16;

/// Where the server is and who we are there. Not printable: it can hold a password.
pub(crate) struct Target(FredConfig);

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Target(..)")
    }
}

impl Target {
    /// Reads `redis://[user:password@]host[:port][/db]` and `redis+unix://[user:password@]/path[?db=n]`, with
    /// `valkey` for `redis` where preferred.
    pub(crate) fn parse(url: &str) -> Result<Target> {
        let invalid = |reason: &str| Error::config("url", reason);
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it has no scheme such as redis://"))?;
        let scheme = match scheme {
            "redis" | "valkey" => "redis",
            "redis+unix" | "valkey+unix" => "redis+unix",
            "rediss" | "valkeys" | "redis-cluster" | "valkey-cluster" | "rediss-cluster" | "valkeys-cluster"
            | "redis-sentinel" | "valkey-sentinel" | "rediss-sentinel" | "valkeys-sentinel" => {
                return Err(invalid("TLS, cluster and sentinel are not supported by this version"));
            }
            _ => return Err(invalid("its scheme is none of redis://, redis+unix:// and their valkey twins")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // fred's error could repeat the URL, and with it a password.
        let mut config =
            FredConfig::from_url(&format!("{scheme}://{rest}")).map_err(|_| invalid("it is not a valid URL"))?;
        if !query.is_empty() {
            let db = query.strip_prefix("db=").and_then(|db| db.parse().ok());
            config.database = Some(db.ok_or_else(|| invalid("its only parameter is db=NUMBER"))?);
        }
        Ok(Target(config))
    }
}

/// One connection, never repaired.
pub(super) struct Link {
    client: Client,
    driver: AbortHandle,
    down: CancellationToken,
    patience: Duration,
    vitals: Arc<Vitals>,
    /// Told every now and then, so that those who wait for a reply look at the clock. A timer for each request would
    /// cost more than the request: tokio wakes a sleeping thread whenever an earlier timer is set.
    pulse: Arc<Notify>,
    nonce: AtomicU64,
    /// Who the server takes us for, where it says so.
    peer: OnceLock<Peer>,
    counters: Arc<Counters>,
}

/// One for each part of a call.
pub(super) type Answers = Vec<Result<Answer, Fault>>;

/// What tells a living connection from a dead one. Times in microseconds since it was opened.
#[derive(Debug)]
struct Vitals {
    opened: Instant,
    /// When the last reply came.
    heard: AtomicU64,
    /// Since when something that was sent has no answer; 0 if nothing has. Kept here and not with the request: its caller
    /// may leave before it is late.
    unanswered: AtomicU64,
    /// Callers that wait for an answer.
    waiting: AtomicU64,
}

impl Vitals {
    fn new() -> Vitals {
        let [heard, unanswered, waiting] = [0; 3].map(AtomicU64::new);
        Vitals { opened: Instant::now(), heard, unanswered, waiting }
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn sent(&self) -> Waiting<'_> {
        let sent = self.clock().max(1);
        let _ = self.unanswered.compare_exchange(0, sent, Ordering::Relaxed, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting { vitals: self, sent }
    }

    /// What else is under way has no answer since now.
    fn answered(&self) {
        let now = self.clock().max(1);
        self.heard.store(now, Ordering::Relaxed);
        let others = self.waiting.load(Ordering::Relaxed) > 1;
        self.unanswered.store(if others { now } else { 0 }, Ordering::Relaxed);
    }

    /// For how long nothing was heard although something was sent.
    fn silence(&self) -> Duration {
        match self.unanswered.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_micros(self.clock().saturating_sub(since)),
        }
    }
}

/// A caller that waits for an answer to what was sent then.
struct Waiting<'a> {
    vitals: &'a Vitals,
    sent: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.vitals.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection as its server knows it: CLIENT KILL takes both, so that a server that has begun to count anew since then
/// does not close somebody else's.
#[derive(Debug, Clone)]
struct Peer {
    id: String,
    addr: String,
}

impl Peer {
    /// From CLIENT INFO. Over a unix socket all have the same address, and none has one here.
    fn parse(info: &str) -> Option<Peer> {
        let field = |name: &str| info.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let (id, addr) = (field("id")?.to_owned(), field("addr")?.to_owned());
        (!addr.ends_with(":0")).then_some(Peer { id, addr })
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("down", &self.down.is_cancelled()).finish_non_exhaustive()
    }
}

/// Takes a link down when its task ends, also with the runtime that this ran on. What is under way fails then, whoever
/// keeps the link.
struct End {
    driver: AbortHandle,
    down: CancellationToken,
    pulse: Arc<Notify>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.down.cancel();
        self.driver.abort();
        self.pulse.notify_waiters();
    }
}

/// Closes the socket: fred's client would otherwise live on with its task.
impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Link {
    async fn open(target: &Target, patience: Duration, buffer: usize, counters: &Arc<Counters>) -> Result<Link, Fault> {
        let client = client(target, patience, buffer)?;
        let down = CancellationToken::new();
        let mut driver = client.connect();
        let link = Link {
            client,
            driver: driver.abort_handle(),
            down: down.clone(),
            patience,
            vitals: Arc::new(Vitals::new()),
            pulse: Arc::default(),
            nonce: AtomicU64::new(RandomState::new().hash_one(()) >> 32),
            peer: OnceLock::new(),
            counters: Arc::clone(counters),
        };
        let connected = async {
            tokio::select! {
                ended = &mut driver => Err(ended.map_or_else(|_| closed(), |end| end.err().unwrap_or_else(closed))),
                up = link.client.wait_for_connect() => up,
            }
        };
        match timeout(patience, connected).await {
            Ok(connected) => connected.map_err(fault)?,
            Err(_) => return Err(Fault::unknown(&format!("no connection within {patience:?}"))),
        }
        counters.round_trip.note(link.vitals.clock() / 4); // several went by while connecting: a first idea
        let end = End { driver: driver.abort_handle(), down, pulse: Arc::clone(&link.pulse) };
        let (vitals, client) = (Arc::clone(&link.vitals), link.client.clone());
        tokio::spawn(async move {
            // The driver's end is the one sign of life fred gives that can be trusted.
            tokio::select! {
                _ = driver => {}
                () = beat(&end.pulse, &vitals, &client, patience) => {}
            }
        });
        Ok(link)
    }

    /// Throws the link away: what is under way fails as unknown, and the supervisor opens another.
    fn give_up(&self) {
        self.down.cancel();
        self.driver.abort();
        self.pulse.notify_waiters();
    }

    /// Waits for a command, but no longer than the link lives and the patience lasts.
    ///
    /// Boxed by the caller where it is made: fred's futures are 5 KiB, and each async function that passed one on by
    /// value would copy it. It also keeps the compiler from its limit for nested types.
    async fn bounded<T>(&self, mut command: BoxFuture<'_, FredResult<T>>) -> Result<T, Fault> {
        let waiting = self.vitals.sent();
        loop {
            let pulse = self.pulse.notified(); // from here on no pulse is missed
            self.alive(waiting.sent)?;
            tokio::select! {
                biased;
                answer = &mut command => {
                    self.vitals.answered();
                    return answer.map_err(fault);
                }
                () = pulse => {}
            }
        }
    }

    /// Whether to go on waiting for what was sent then.
    fn alive(&self, sent: u64) -> Result<(), Fault> {
        if self.down.is_cancelled() {
            return Err(Fault::unknown("the connection was lost"));
        }
        if u128::from(self.vitals.clock() - sent) < self.patience.as_micros() {
            return Ok(());
        }
        self.counters.timeouts.up();
        if self.vitals.silence() >= self.patience {
            self.give_up();
        }
        Err(Fault::unknown(&format!("no reply within {:?}", self.patience)))
    }

    /// Runs a script over some parts; an answer for each. A server that does not know the script is told, once.
    pub(super) async fn run(&self, script: &Script, parts: &[Part]) -> Result<Answers, Fault> {
        if let Some(answers) = self.try_run(script, parts).await? {
            return Ok(answers);
        }
        self.load(script).await?;
        self.evalsha(script, parts).await
    }

    /// The same; `None` if the server does not know the script.
    pub(super) async fn try_run(&self, script: &Script, parts: &[Part]) -> Result<Option<Answers>, Fault> {
        match self.evalsha(script, parts).await {
            Err(Fault::Server(source)) if source.to_string().contains("NOSCRIPT") => Ok(None),
            answered => answered.map(Some),
        }
    }

    async fn evalsha(&self, script: &Script, parts: &[Part]) -> Result<Answers, Fault> {
        let sha = script.sha.get_or_init(|| fred::util::sha1_hash(script.source));
        let first = self.nonce.fetch_add(parts.len() as u64, Ordering::Relaxed);
        let (keys, args) = words(parts, first);
        self.counters.calls.up();
        self.counters.requests.add(parts.len() as u64);
        let sent = self.vitals.clock();
        let reply = self.bounded(Box::pin(self.client.evalsha(sha.as_str(), keys, args))).await?;
        self.counters.round_trip.note(self.vitals.clock() - sent);
        answers(reply, first, parts.len()).ok_or_else(|| {
            self.counters.misplaced.up();
            tracing::error!(target: "leasehold::conn", "a reply belongs to another request; replacing the connection");
            self.give_up();
            Fault::unknown("the reply belongs to another request")
        })
    }

    /// One call of a script as it is, for measurements: no nonce, no reading of the reply.
    pub(super) async fn raw(&self, sha: &str, keys: Vec<String>, args: Vec<String>) -> Result<(), Fault> {
        self.client.evalsha::<Value, _, _, _>(sha, keys, args).await.map(drop).map_err(fault)
    }

    pub(super) async fn load(&self, script: &Script) -> Result<(), Fault> {
        self.load_source(script.source).await.map(drop)
    }

    pub(super) async fn load_source(&self, source: &str) -> Result<String, Fault> {
        let load = CustomCommand::new_static("SCRIPT", ClusterHash::FirstKey, false);
        self.bounded(Box::pin(self.client.custom(load, vec!["LOAD", source]))).await
    }

    /// Asks the server who it takes us for. Servers before 6.2 do not say, nor those that do not allow it.
    async fn introduce(&self) {
        let client = CustomCommand::new_static("CLIENT", ClusterHash::FirstKey, false);
        let info: Result<String, _> = self.bounded(Box::pin(self.client.custom(client, vec!["INFO"]))).await;
        if let Some(peer) = info.as_deref().ok().and_then(Peer::parse) {
            let _ = self.peer.set(peer);
        }
    }

    /// Has the server close the connection before this one, whose last requests it may not have read yet: they must not
    /// overtake ours. Where that is not allowed they may, which `docs/design.md` bounds.
    /// False if that is not known, because this one is lost too.
    async fn bury(&self, Peer { id, addr }: &Peer) -> bool {
        let client = CustomCommand::new_static("CLIENT", ClusterHash::FirstKey, false);
        let args = vec!["KILL", "ID", id, "ADDR", addr];
        match self.bounded::<Value>(Box::pin(self.client.custom(client, args))).await {
            Err(Fault::Unknown(_)) => false,
            Err(fault) => {
                tracing::debug!(target: "leasehold::conn", ?fault, "the connection before is left to end by itself");
                true
            }
            Ok(_) => true,
        }
    }

    /// How many replicas have all that this connection wrote, after at most `time`. Keeps the connection busy meanwhile.
    pub(super) async fn confirmed(&self, wanted: u8, time: Duration) -> Result<u8, Fault> {
        let wait = CustomCommand::new_static("WAIT", ClusterHash::FirstKey, false);
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let args = vec![wanted.to_string(), millis.max(1).to_string()];
        let count: u64 = self.bounded(Box::pin(self.client.custom(wait, args))).await?;
        Ok(u8::try_from(count).unwrap_or(u8::MAX))
    }
}

/// Beats for as long as the connection lives. After half of the patience in silence it asks by itself: whoever waited for
/// an answer may have left, and its answer with it.
async fn beat(pulse: &Notify, vitals: &Vitals, client: &Client, patience: Duration) {
    while vitals.silence() < patience {
        sleep(patience / PULSES).await;
        pulse.notify_waiters();
        let silence = vitals.silence();
        if silence > patience / 2 {
            let ping = Box::pin(client.ping::<Value>(None));
            if let Ok(Ok(_)) = timeout(patience.saturating_sub(silence).min(patience / PULSES), ping).await {
                vitals.answered();
            }
        }
    }
}

/// The keys and arguments of a call, all slices of one buffer.
fn words(parts: &[Part], first: u64) -> (Vec<Key>, Vec<Value>) {
    let mut text = String::with_capacity(parts.iter().map(|part| part.text().len() + 20).sum::<usize>() + 8);
    let (mut keys, mut args) = (Vec::with_capacity(parts.len() * 2), Vec::with_capacity(parts.len() * 5 + 1));
    let number = |text: &mut String, number: u64| {
        let start = text.len();
        write!(text, "{number}").expect("a String takes everything");
        start..text.len()
    };
    args.push(number(&mut text, parts.len() as u64));
    for (nonce, part) in (first..).zip(parts) {
        args.push(number(&mut text, nonce));
        let start = text.len();
        text.push_str(part.text());
        keys.extend(part.keys().map(|word| start + word.start..start + word.end));
        args.extend(part.args().map(|word| start + word.start..start + word.end));
    }
    let text = Bytes::from(text);
    let keys = keys.into_iter().map(|word| Key::from(text.slice(word))).collect();
    (keys, args.into_iter().map(|word| Value::Bytes(text.slice(word))).collect())
}

/// Cuts a reply into one answer for each part; `None` where a nonce or the shape is not what was asked for.
fn answers(reply: Value, first: u64, parts: usize) -> Option<Answers> {
    let Value::Array(values) = reply else { return None };
    if values.len() != parts * 3 {
        return None;
    }
    let mut values = values.into_iter();
    let mut answers = Vec::with_capacity(parts);
    for nonce in (first..).take(parts) {
        let (named, code, value) = (values.next()?, values.next()?, values.next()?);
        if text_of(&named)?.parse() != Ok(nonce) {
            return None;
        }
        answers.push(match Code::of(text_of(&code)?)? {
            Code::Error => Err(Fault::said(text_of(&value)?)),
            code => Ok(Answer { code, value: word(value) }),
        });
    }
    Some(answers)
}

fn text_of(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn word(value: Value) -> Word {
    match value {
        Value::Integer(number) => Word::Int(number),
        Value::Array(values) => Word::List(values.into_iter().map(word).collect()),
        Value::Null => Word::Nothing,
        other => other.into_string().map_or(Word::Nothing, Word::Text),
    }
}

fn client(target: &Target, patience: Duration, buffer: usize) -> Result<Client, Fault> {
    Builder::from_config(target.0.clone())
        .with_connection_config(|conn| {
            conn.connection_timeout = patience;
            conn.internal_command_timeout = patience;
            conn.max_command_attempts = 1;
            conn.auto_client_setname = false;
            conn.unresponsive = UnresponsiveConfig::default();
            conn.tcp.nodelay = Some(true);
        })
        .with_performance_config(|perf| perf.broadcast_channel_capacity = buffer)
        .build()
        .map_err(fault)
}

/// How fred begins when it gives up a command. "channel closed" is what is left of one whose link was thrown away.
const LOST_ON_THE_WAY: [&str; 3] = ["Too many failed", "Failed to", "channel closed"];

/// fred's kinds sorted by the one question that counts: may it have run?
fn fault(error: FredError) -> Fault {
    let doubtful = match error.kind() {
        ErrorKind::IO | ErrorKind::Timeout | ErrorKind::Canceled | ErrorKind::Protocol | ErrorKind::Parse => true,
        // fred's own words share this kind with the server's.
        ErrorKind::Unknown => LOST_ON_THE_WAY.iter().any(|start| error.details().starts_with(start)),
        _ => false,
    };
    let denied = matches!(error.kind(), ErrorKind::Auth);
    let words = error.details().to_owned();
    let source = Arc::new(error) as Source;
    match (doubtful, denied) {
        (true, _) => Fault::Unknown(source),
        (_, true) => Fault::Denied(source),
        _ => Fault::refused(&words, source),
    }
}

fn closed() -> FredError {
    FredError::new(ErrorKind::IO, "the connection was closed")
}

/// A connection that comes back: the link of the moment, and a task that replaces it.
#[derive(Debug)]
pub(super) struct Conn {
    link: watch::Receiver<Result<Arc<Link>, Fault>>,
    patience: Duration,
}

impl Conn {
    /// Opens the first link; afterwards a task replaces lost ones until `closed`, and counts the generation up.
    pub(super) async fn open(
        target: &Arc<Target>,
        patience: Duration,
        counters: &Arc<Counters>,
        generation: watch::Sender<u64>,
        closed: &CancellationToken,
    ) -> Result<Conn, Fault> {
        let (target, counters) = (Arc::clone(target), Arc::clone(counters));
        let dial = Dial { target, patience, buffer: NOTHING_HEARD, counters };
        let first = Arc::new(dial.link().await?);
        let (slot, link) = watch::channel(Ok(Arc::clone(&first)));
        let closed = closed.clone();
        tokio::spawn(async move {
            closed.run_until_cancelled(supervise(dial, first, &slot, generation)).await;
            if let Ok(link) = slot.send_replace(Err(Fault::Closed)) {
                link.give_up();
            }
        });
        Ok(Conn { link, patience })
    }

    /// The link of the moment. Waits for one while there is none, unless we are not welcome.
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        let now = self.link.borrow().clone();
        match now {
            Ok(link) if !link.down.is_cancelled() => return Ok(link),
            Err(fault @ (Fault::Denied(_) | Fault::Closed)) => return Err(fault),
            _ => {}
        }
        let mut slot = self.link.clone();
        let usable = |now: &Result<Arc<Link>, Fault>| match now {
            Ok(link) => !link.down.is_cancelled(),
            Err(fault) => matches!(fault, Fault::Denied(_) | Fault::Closed),
        };
        let found = timeout(self.patience, slot.wait_for(usable)).await.map(|found| found.map(|now| now.clone()));
        match found {
            Ok(Ok(found)) => found,
            Ok(Err(_gone)) => Err(Fault::Abandoned), // nobody replaces links any more, and nobody has closed them
            Err(_late) => Err(self.none_yet()),
        }
    }

    /// Why there is no link: whatever the server refuses us now, nothing was sent.
    fn none_yet(&self) -> Fault {
        let last = self.link.borrow().as_ref().err().cloned().and_then(Fault::source);
        Fault::NotSent(last.unwrap_or_else(|| Arc::new(closed())))
    }
}

/// Replaces lost links for ever; ended by dropping it.
async fn supervise(
    dial: Dial,
    mut link: Arc<Link>,
    slot: &watch::Sender<Result<Arc<Link>, Fault>>,
    generation: watch::Sender<u64>,
) {
    let mut before: Vec<Peer> = Vec::new(); // those that may not be closed yet
    let mut pause = Duration::ZERO;
    loop {
        let opened = Instant::now();
        link.down.cancelled().await;
        // The first time at once; one that dies young again and again must not keep us busy.
        pause = if opened.elapsed() < YOUNG {
            (pause * 2).clamp(FIRST_PAUSE, LAST_PAUSE_AFTER_YOUNG)
        } else {
            Duration::ZERO
        };
        sleep(pause.saturating_sub(FIRST_PAUSE)).await;
        tracing::warn!(target: "leasehold::conn", "connection lost");
        let next = dial.until_open(|fault| _ = slot.send_replace(Err(fault))).await;
        before.extend(link.peer.get().cloned());
        while let Some(peer) = before.last()
            && next.bury(peer).await
        {
            before.pop();
        }
        link = Arc::new(next);
        tracing::info!(target: "leasehold::conn", "connected again");
        let _ = slot.send_replace(Ok(Arc::clone(&link)));
        generation.send_modify(|count| *count += 1);
    }
}

/// What it takes to open a link.
#[derive(Debug)]
struct Dial {
    target: Arc<Target>,
    patience: Duration,
    buffer: usize,
    counters: Arc<Counters>,
}

impl Dial {
    async fn link(&self) -> Result<Link, Fault> {
        let link = Link::open(&self.target, self.patience, self.buffer, &self.counters).await?;
        link.introduce().await;
        Ok(link)
    }

    /// Tries until it works, reporting each failure.
    async fn until_open(&self, failed: impl Fn(Fault)) -> Link {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.link().await {
                Ok(link) => {
                    self.counters.reconnects.up();
                    return link;
                }
                Err(fault) => failed(fault),
            }
            sleep(spread(pause)).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}

/// Half to one and a half of it, so that many do not come back in step.
pub(crate) fn spread(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    pause.mul_f64(0.5 + random)
}

/// A connection that only listens. Nothing else may be under way on it.
#[derive(Debug)]
pub(super) struct Subscriber {
    link: Link,
    messages: broadcast::Receiver<Message>,
}

/// What a subscriber hears.
#[derive(Debug)]
pub(super) enum Heard {
    /// Something was published on this channel.
    Message(String),
    /// More than we could take: any channel may have had something.
    TooMuch,
    /// The connection is gone.
    Silence,
}

impl Subscriber {
    pub(super) async fn open(target: &Target, patience: Duration, counters: &Arc<Counters>) -> Result<Self, Fault> {
        let link = Link::open(target, patience, HEARD, counters).await?;
        let messages = link.client.message_rx();
        Ok(Subscriber { link, messages })
    }

    /// Sends one SUBSCRIBE for each channel, each with a PING close behind: fred forgets a SUBSCRIBE once it is written
    /// and hands its refusal to whatever is in flight then. Done when the server has dealt with all of them; an error
    /// does not say which was refused.
    pub(super) async fn subscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        let all = channels.iter().map(|channel| async move {
            let subscribe = self.link.bounded(Box::pin(self.link.client.subscribe(channel.as_ref())));
            let (subscribed, answered) = join(subscribe, self.barrier()).await;
            subscribed.and(answered)
        });
        join_all(all).await.into_iter().collect()
    }

    pub(super) async fn unsubscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        for channel in channels {
            self.link.bounded(Box::pin(self.link.client.unsubscribe(channel.as_ref()))).await?;
        }
        Ok(())
    }

    /// Answered after the server has dealt with all before it.
    pub(super) async fn barrier(&self) -> Result<(), Fault> {
        self.link.bounded(Box::pin(self.link.client.ping::<Value>(None))).await.map(drop)
    }

    pub(super) async fn next(&mut self) -> Heard {
        tokio::select! {
            () = self.link.down.cancelled() => Heard::Silence,
            heard = self.messages.recv() => match heard {
                Ok(message) => Heard::Message(message.channel.to_string()),
                Err(broadcast::error::RecvError::Lagged(_)) => Heard::TooMuch,
                Err(broadcast::error::RecvError::Closed) => Heard::Silence,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for good in [
            "redis://h",
            "valkey://u:p@h:1/2",
            "redis://:p@[::1]:6380",
            "redis+unix:///run/r.sock",
            "valkey+unix:///r.sock?db=3",
        ] {
            Target::parse(good).expect(good);
        }
        for bad in ["", "h:6379", "http://h:1", "rediss://h", "redis-cluster://h", "redis://h:99999", "redis://h?x=1"] {
            Target::parse(bad).expect_err(bad);
        }
    }

    #[test]
    fn a_password_is_never_printed() {
        let target = Target::parse("redis://ann:s3cret@h").expect("good");
        assert!(!format!("{target:?}").contains("s3cret"));
        let error = Target::parse("redis://ann:s3cret@h:99999").expect_err("bad port");
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }

    #[test]
    fn who_the_server_takes_us_for() {
        let Peer { id, addr } = Peer::parse("id=7 addr=127.0.0.1:5000 laddr=127.0.0.1:6379 fd=8\n").expect("over TCP");
        assert_eq!((&*id, &*addr), ("7", "127.0.0.1:5000"));
        for other in ["id=7 addr=/run/r.sock:0 laddr=/run/r.sock:0", "ERR unknown", ""] {
            assert!(Peer::parse(other).is_none(), "{other}");
        }
    }

    #[test]
    fn replies_must_name_their_request() {
        let reply = |nonce: &str| Value::Array(vec![nonce.into(), "granted".into(), 1.into()]);
        assert!(answers(reply("7"), 7, 1).is_some());
        assert!(answers(reply("8"), 7, 1).is_none());
        assert!(answers(reply("7"), 7, 2).is_none());
        assert!(answers(Value::Integer(7), 7, 1).is_none());
    }
}
