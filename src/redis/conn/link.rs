//! One connection, from its start to its end.

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    fmt::Write,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use fred::{
    clients::Client,
    error::{Error as FredError, ErrorKind},
    interfaces::{ClientLike, FredResult, LuaInterface},
    types::{Builder, ClusterHash, ConnectHandle, CustomCommand, FromValue, Key, Value, config::UnresponsiveConfig},
};
use futures_util::future::{BoxFuture, FutureExt, join_all};
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinError},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{addresses::at_any_address, target::Target};
use crate::{
    clock::nap,
    config::Confirmed,
    contained::{conn_event, with_contained_waker},
    error::Source,
    redis::{
        answer::Answer,
        fault::{Fault, source},
        script::{Part, Script},
        url::Address,
    },
    stats::Counters,
};

/// Why a link to a replica is closed.
const REPLICA: &str = "this server is no longer the master";
/// A digest that no script has.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";
/// The number of times within the command timeout at which waiting requests check the clock.
const PULSES: u32 = 10;

/// A connection is idle if it delivered nothing for this part of the command timeout.
const QUIET: u32 = 3;
/// An idle connection is doubtful if the next request has had no reply for this part of the command timeout.
const DOUBT: u32 = 10;
/// An idle connection sends a PING after this many command timeouts, but no later than the longest time. Load balancers and address
/// translators forget a connection that is not used.
const KEEP_WARM: u32 = 3;
const KEEP_WARM_AT_MOST: Duration = Duration::from_secs(10);
/// A round trip is long if it takes more than this part of the command timeout.
const LONG: u32 = 4;

/// One connection. It is never repaired.
pub(crate) struct Link {
    pub(super) client: Client,
    address: Address,
    driver: AbortHandle,
    pub(super) down: CancellationToken,
    /// The reason for which the link is down. It is set before `down`.
    end: Arc<OnceLock<Source>>,
    command_timeout: Duration,
    liveness: Arc<Liveness>,
    /// Notified at intervals, so that waiting requests check the clock. A timer for each request would cost more than the request: tokio
    /// wakes a sleeping thread whenever an earlier timer is set.
    pulse: Arc<Notify>,
    nonce: AtomicU64,
    /// The id and the address of this connection on the server, if the server says so.
    pub(super) peer: OnceLock<Peer>,
    /// The shortest time from a request to its reply so far, in microseconds: the time of the network, without that of a busy server.
    shortest: AtomicU64,
    /// The last one. Not a mean, because requests that are too many must be noticed before they come too late.
    last: AtomicU64,
    counters: Arc<Counters>,
}

/// The reply to a PING. It has another form once the connection is subscribed to a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pong {
    Plain,
    Subscribed,
}

/// One reply for each part of a call.
pub(crate) type Answers = Vec<Result<Answer, Fault>>;

/// Distinguishes a living connection from a dead one. Replies arrive in the order of the requests. So a reply proves that all earlier
/// requests were processed, and proves nothing about later ones.
#[derive(Debug)]
struct Liveness {
    opened: Instant,
    sent: Mutex<Sent>,
    /// Notified while the connection is [doubtful](Liveness::is_doubtful).
    doubted: Notify,
}

/// Times in microseconds since the connection was opened.
#[derive(Debug, Default)]
struct Sent {
    /// Counts requests.
    next: u64,
    /// The number and time of each request without a reply, the oldest first. Kept here and not with the requests, because a caller may
    /// leave before its request is late.
    unanswered: VecDeque<(u64, u64)>,
    /// The time of the last reply.
    heard: u64,
}

/// A request that was sent.
#[derive(Debug, Clone, Copy)]
struct Numbered {
    number: u64,
    at: u64,
}

impl Liveness {
    fn new() -> Liveness {
        Liveness { opened: Instant::now(), sent: Mutex::default(), doubted: Notify::new() }
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn sent(&self) -> Numbered {
        let at = self.clock();
        let mut sent = self.lock();
        let number = sent.next;
        sent.next += 1;
        sent.unanswered.push_back((number, at));
        Numbered { number, at }
    }

    fn answered(&self, request: Numbered) {
        let heard = self.clock();
        let mut sent = self.lock();
        sent.heard = heard;
        let answered = sent.unanswered.partition_point(|(number, _)| *number <= request.number);
        sent.unanswered.drain(..answered);
    }

    /// The time since the last reply, if a request waits for one; else zero.
    fn silence(&self) -> Duration {
        let sent = self.lock();
        let since = sent.unanswered.front().map(|(_, at)| sent.heard.max(*at));
        since.map_or(Duration::ZERO, |since| Duration::from_micros(self.clock().saturating_sub(since)))
    }

    /// The time for which nothing was sent and nothing received.
    fn quiet(&self) -> Duration {
        let sent = self.lock();
        let last = sent.unanswered.back().map_or(sent.heard, |(_, at)| sent.heard.max(*at));
        Duration::from_micros(self.clock().saturating_sub(last))
    }

    /// True if the first request after an idle time has had no reply for a while. A device between client and server may have forgotten
    /// the connection without a notification. Another connection may get a reply.
    fn is_doubtful(&self, command_timeout: Duration) -> bool {
        let sent = self.lock();
        let Some((_, first)) = sent.unanswered.front() else { return false };
        let quiet = Duration::from_micros(first.saturating_sub(sent.heard));
        let silence = Duration::from_micros(self.clock().saturating_sub(*first));
        quiet >= command_timeout / QUIET && silence >= command_timeout / DOUBT
    }

    fn lock(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The id and the address of a connection on its server. CLIENT KILL takes both: a server that was restarted uses the same ids again, and
/// must not close the connection of another client.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    id: String,
    addr: String,
}

impl Peer {
    /// Reads CLIENT INFO. `None` for a unix socket, because all its connections have the same address.
    pub(crate) fn parse(info: &str) -> Option<Peer> {
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

/// Takes a link down when its task ends, also if the runtime of the task ends. All requests under way fail then, even if the link itself is
/// kept.
struct LinkEnd {
    driver: AbortHandle,
    down: CancellationToken,
    pulse: Arc<Notify>,
}

impl Drop for LinkEnd {
    fn drop(&mut self) {
        self.down.cancel();
        self.driver.abort();
        self.pulse.notify_waiters();
    }
}

/// Closes the socket: fred's client would otherwise continue with its task.
impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Link {
    /// Opens the first address of this server that works.
    pub(crate) async fn open_at_any_address(
        target: Target,
        command_timeout: Duration,
        buffer: usize,
        counters: &Arc<Counters>,
    ) -> Result<Link, Fault> {
        let open = |place| Box::pin(async move { Link::open(&place, command_timeout, buffer, counters).await });
        at_any_address(target, command_timeout, open).await
    }

    pub(crate) async fn open(
        target: &Target,
        command_timeout: Duration,
        buffer: usize,
        counters: &Arc<Counters>,
    ) -> Result<Link, Fault> {
        let client = client(target, command_timeout, buffer)?;
        let down = CancellationToken::new();
        let (mut driver, up) = connecting(&client);
        let link = Link {
            client,
            address: target.address.clone(),
            driver: driver.abort_handle(),
            down: down.clone(),
            end: Arc::default(),
            command_timeout,
            liveness: Arc::new(Liveness::new()),
            pulse: Arc::default(),
            nonce: AtomicU64::new(RandomState::new().hash_one(()) >> 32),
            peer: OnceLock::new(),
            shortest: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
            counters: Arc::clone(counters),
        };
        let connected = async {
            tokio::select! {
                ended = &mut driver => Err(ended.map_or_else(|error| panicked(&error), |end| end.err().unwrap_or_else(closed))),
                up = up => up,
            }
        };
        match timeout(command_timeout, connected).await {
            Ok(Err(error)) if *error.kind() != ErrorKind::Timeout => {
                return Err(unopened(error, target).at(&target.address));
            }
            Ok(Ok(())) => {}
            // By this timer or by fred's.
            Ok(Err(_)) | Err(_) => return Err(Fault::unknown(&silent(command_timeout, target)).at(&target.address)),
        }
        let end = LinkEnd { driver: driver.abort_handle(), down, pulse: Arc::clone(&link.pulse) };
        let (liveness, client, why) = (Arc::clone(&link.liveness), link.client.clone(), Arc::clone(&link.end));
        tokio::spawn(async move {
            // The end of the driver task is the only state of fred that is reliable.
            let cause = tokio::select! {
                ended = driver => ended.ok().and_then(Result::err).map(|error| Arc::new(error) as Source),
                () = beat(&end.pulse, &liveness, &client, command_timeout) => {
                    Some(source(&format!("no reply within {command_timeout:?}")))
                }
            };
            cause.map(|cause| why.set(cause)); // unless it was given up before
        });
        link.introduce(target).await?; // only now: that task ends a request without a reply
        counters.round_trip.estimate(link.liveness.clock() / 4); // connecting takes several round trips: a first estimate
        Ok(link)
    }

    /// Closes the link: the outcome of all requests under way is unknown, and the supervisor opens another link.
    pub(crate) fn give_up(&self, why: &str) {
        let _ = self.end.set(source(why)); // the first reason stays
        self.down.cancel();
        self.driver.abort();
        self.pulse.notify_waiters();
    }

    /// The reason for which the connection ended: the reason for closing it, or the error of fred or of the server.
    pub(super) fn lost_by(&self) -> Source {
        self.end.get().cloned().unwrap_or_else(|| source("the connection was closed"))
    }

    /// Waits for a command, until the link is lost or the command timeout is over.
    ///
    /// The caller boxes the future where it creates it. fred's futures are 5 KiB, and each async function that passed one on by value would
    /// copy it. It also keeps the types below the compiler's limit for nesting.
    pub(super) async fn bounded<T>(&self, command: BoxFuture<'_, FredResult<T>>) -> Result<T, Fault> {
        self.answered(command).await.map_err(|fault| fault.at(&self.address))
    }

    async fn answered<T>(&self, command: BoxFuture<'_, FredResult<T>>) -> Result<T, Fault> {
        // Many tasks wake this, and fred may drop many commands at once.
        with_contained_waker(self.answered_or_late(command)).await
    }

    async fn answered_or_late<T>(&self, mut command: BoxFuture<'_, FredResult<T>>) -> Result<T, Fault> {
        let request = self.liveness.sent();
        loop {
            let pulse = self.pulse.notified(); // after this no pulse is missed
            self.alive(request.at)?;
            tokio::select! {
                biased;
                answer = &mut command => {
                    let answer = answer.map_err(|error| self.failed(error, request.at));
                    if !matches!(answer, Err(Fault::Unknown(_))) {
                        self.liveness.answered(request);
                    }
                    return answer;
                }
                () = pulse => {}
            }
        }
    }

    /// The failure of a request that was sent at `sent`.
    fn failed(&self, error: FredError, sent: u64) -> Fault {
        let failed = match error.kind() {
            ErrorKind::Canceled => Fault::Unknown(self.lost_by()), // with its link
            _ => fault(error),
        };
        match failed {
            Fault::Unknown(_) => self.late(sent).unwrap_or(failed),
            failed => failed,
        }
    }

    /// An error if a request that was sent at `sent` should wait no longer.
    fn alive(&self, sent: u64) -> Result<(), Fault> {
        match self.late(sent) {
            Some(late) => Err(late),
            None if self.down.is_cancelled() => Err(Fault::Unknown(self.lost_by())),
            None => Ok(()),
        }
    }

    /// The failure of a request whose time is over. It counts as one without a reply in time even if [`beat`] was the first to notice,
    /// and has taken the link down.
    fn late(&self, sent: u64) -> Option<Fault> {
        if u128::from(self.liveness.clock() - sent) < self.command_timeout.as_micros() {
            return None;
        }
        self.counters.timeouts.up();
        let late = format!("no reply within {:?}", self.command_timeout);
        if self.liveness.silence() >= self.command_timeout {
            self.give_up(&late);
        }
        Some(Fault::unknown(&late))
    }

    /// Runs a script over some parts; one reply for each. If the server does not know the script, loads it once.
    pub(crate) async fn run(&self, script: &Script, parts: &[Part]) -> Result<Answers, Fault> {
        if let Some(answers) = self.try_run(script, parts).await? {
            return Ok(answers);
        }
        self.load(script).await?;
        self.evalsha(script, parts).await
    }

    /// As [`run`](Link::run), but returns `None` if the server does not know the script.
    pub(crate) async fn try_run(&self, script: &Script, parts: &[Part]) -> Result<Option<Answers>, Fault> {
        match self.evalsha(script, parts).await {
            Err(Fault::NotReady(source)) if source.to_string().contains("NOSCRIPT") => Ok(None),
            answered => answered.map(Some),
        }
    }

    async fn evalsha(&self, script: &Script, parts: &[Part]) -> Result<Answers, Fault> {
        let sha = script.sha.get_or_init(|| fred::util::sha1_hash(script.source));
        let first = self.nonce.fetch_add(parts.len() as u64, Ordering::Relaxed);
        let (keys, args) = words(parts, first);
        self.counters.calls.up();
        self.counters.requests.add(parts.len() as u64);
        let sent = self.liveness.clock();
        let reply = self.bounded(Box::pin(self.client.evalsha(sha.as_str(), keys, args))).await;
        let reply = reply.map_err(Fault::of_whole_call);
        if reply.as_ref().is_err_and(|fault| fault.is_by_a_replica()) {
            self.give_up(REPLICA);
        }
        let reply = match (reply, parts) {
            (Err(fault), [only]) => return Err(Box::pin(self.explained(fault, script, only)).await),
            (reply, _) => reply?,
        };
        self.note_round_trip(self.liveness.clock() - sent);
        let mut answers = answers(reply, first, parts.len()).ok_or_else(|| {
            self.counters.misplaced.up();
            conn_event!(error, "a reply belongs to another request; the client replaces the connection");
            self.give_up("a reply belonged to another request");
            Fault::unknown("the reply belongs to another request").at(&self.address)
        })?;
        if answers.iter().any(|answer| answer.as_ref().is_err_and(Fault::is_by_a_replica)) {
            self.give_up(REPLICA);
        }
        for (answer, part) in answers.iter_mut().zip(parts) {
            if let Err(fault) = answer {
                *fault = fault.clone().at(&self.address).of(script, part);
            }
        }
        Ok(answers)
    }

    fn note_round_trip(&self, micros: u64) {
        self.counters.round_trip.note(micros);
        self.last.store(micros, Ordering::Relaxed);
        if micros < self.shortest.load(Ordering::Relaxed) {
            self.shortest.fetch_min(micros, Ordering::Relaxed);
        }
    }

    /// The shortest round trip so far. `None` before the first reply to a script. Also `None` if the last reply took much longer, and so long
    /// that some may come too late: then more requests under way would only wait in the network.
    pub(crate) fn shortest_round_trip(&self) -> Option<Duration> {
        let [shortest, last] =
            [&self.shortest, &self.last].map(|time| Duration::from_micros(time.load(Ordering::Relaxed)));
        let long = (self.command_timeout / LONG).max(shortest.saturating_mul(2));
        (shortest <= self.command_timeout && last <= long).then_some(shortest)
    }

    /// Adds the names that the server has left out. For a call with several keys, the server never says which key it refused. So this sends
    /// one call for each key, with the digest of a script that does not exist: nothing runs, whatever is permitted.
    async fn explained(&self, fault: Fault, script: &Script, part: &Part) -> Fault {
        if !fault.is_for_some_keys() || part.keys().count() == 1 {
            return fault.of(script, part);
        }
        let lacks = part.keys().map(|word| async move {
            let key = &part.text()[word];
            let answer: Result<Value, _> = self.custom("EVALSHA", &[NO_SCRIPT, "1", key]).await;
            matches!(answer, Err(Fault::Denied(_))).then(|| key.to_owned())
        });
        let keys: Vec<_> = join_all(lacks).await.into_iter().flatten().collect();
        fault.lacking(keys).of(script, part)
    }

    pub(crate) async fn ping(&self) -> Result<Pong, Fault> {
        let reply = self.bounded(Box::pin(self.client.ping::<Value>(None))).await?;
        Ok(if reply.is_array() { Pong::Subscribed } else { Pong::Plain })
    }

    /// One plain call of a script, for measurements: without a nonce, and without reading the reply.
    #[cfg(feature = "bench")]
    pub(crate) async fn raw(&self, sha: &str, keys: Vec<String>, args: Vec<String>) -> Result<(), Fault> {
        self.client.evalsha::<Value, _, _, _>(sha, keys, args).await.map(drop).map_err(fault)
    }

    pub(crate) async fn load(&self, script: &Script) -> Result<(), Fault> {
        self.load_source(script.source).await.map(drop)
    }

    pub(crate) async fn load_source(&self, source: &str) -> Result<String, Fault> {
        self.custom("SCRIPT", &["LOAD", source]).await
    }

    /// Sets the name of this connection on the server, for people who list its connections. If the server refuses, there is no name. It fails
    /// only without a reply: the link has ended.
    async fn introduce(&self, target: &Target) -> Result<(), Fault> {
        let Some(name) = &target.client_name else { return Ok(()) };
        let named: Result<Value, _> = self.custom("CLIENT", &["SETNAME", name]).await;
        match named {
            Ok(_) => {}
            Err(fault @ Fault::Unknown(_)) => return Err(fault),
            Err(fault) => {
                conn_event!(debug, ?fault, "the server refused the client name; this connection has none");
            }
        }
        Ok(())
    }

    /// True if the server says that it is a replica. If the server does not say, it counts as a master.
    pub(super) async fn is_replica(&self) -> bool {
        let role: Result<Value, _> = self.custom("ROLE", &[]).await;
        let role = role.ok().and_then(|role| role.into_array().into_iter().next()).and_then(|word| word.into_string());
        role.is_some_and(|role| role != "master")
    }

    /// Asks a sentinel for the master of a service. A sentinel that does not know the service may learn of it later.
    pub(crate) async fn master_of(&self, service: &str) -> Result<Address, Fault> {
        let master: Option<(String, u16)> = self.custom("SENTINEL", &["GET-MASTER-ADDR-BY-NAME", service]).await?;
        let unknown = || Fault::NotReady(source(&format!("sentinel {}: No such master with that name", self.address)));
        master.map(|(host, port)| Address::Tcp(host.into(), port)).ok_or_else(unknown)
    }

    /// Asks a server of a cluster for the masters of all slots.
    pub(crate) async fn slots(&self) -> Result<Layout, Fault> {
        let ranges: Value = self.custom("CLUSTER", &["SLOTS"]).await?;
        let ranges = ranges.into_array();
        let nodes = ranges.iter().flat_map(node_ids).collect();
        Ok(Layout { ranges: ranges.into_iter().filter_map(|range| self.slot_range(range)).collect(), nodes })
    }

    /// The id of this server in its cluster. `None` if it does not say: the client works without it.
    pub(crate) async fn node_id(&self) -> Option<String> {
        self.custom::<Value>("CLUSTER", &["MYID"]).await.ok()?.into_string()
    }

    /// Reads `first last [host port ..] ..`. A server that does not know its own host omits it.
    fn slot_range(&self, range: Value) -> Option<(u16, u16, Address)> {
        let mut words = range.into_array().into_iter();
        let number = |word: Option<Value>| u16::try_from(word?.as_u64()?).ok();
        let (first, last) = (number(words.next())?, number(words.next())?);
        let mut master = words.next()?.into_array().into_iter();
        let host = master.next()?.into_string().filter(|host| !host.is_empty() && host != "?");
        let port = number(master.next())?;
        let host = host.map(Arc::from).or_else(|| match &self.address {
            Address::Tcp(host, _) => Some(Arc::clone(host)),
            Address::Unix(_) => None,
        })?;
        Some((first, last, Address::Tcp(host, port)))
    }

    /// Checks that the server serves all keys: a server of a cluster redirects some of them. Returns true if it is a cluster of which one
    /// address serves all slots, as far as some keys from all over the slots show.
    pub(crate) async fn is_cluster_with_all_keys(&self, prefix: &str) -> Result<bool, Fault> {
        const TRIED: usize = 16;
        let keys: Vec<_> = (0..TRIED).map(|n| format!("{prefix}leasehold:{n}")).collect();
        match self.has_keys(&keys).await {
            Err(fault) if fault.is_across_slots() => {}
            Err(Fault::NotReady(_)) => return Ok(false),
            answer => return answer.map(|()| false),
        }
        // A cluster that is down has no slots, and says nothing about this.
        let all = join_all(keys.chunks(1).map(|key| self.has_keys(key))).await;
        match all.into_iter().collect::<Result<Vec<_>, _>>() {
            Err(Fault::NotReady(_)) => Ok(false),
            answers => answers.map(|_| true),
        }
    }

    /// Fails if the server does not serve these keys. A user who may not access them learns that later.
    async fn has_keys(&self, keys: &[String]) -> Result<(), Fault> {
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        match self.custom::<Value>("EXISTS", &keys).await {
            Err(fault @ (Fault::Elsewhere(..) | Fault::Unknown(_) | Fault::NotReady(_))) => Err(fault),
            Err(fault) if fault.is_across_slots() => Err(fault),
            _ => Ok(()),
        }
    }

    /// True if the server has sharded channels.
    pub(crate) async fn has_shard_channels(&self) -> Result<bool, Fault> {
        match self.custom::<Value>("PUBSUB", &["SHARDNUMSUB"]).await {
            Ok(_) => Ok(true),
            // Only a server that has this command can refuse it for lack of permission.
            Err(Fault::Denied(denial)) => Ok(denial.right.is_command("pubsub|shardnumsub")),
            Err(Fault::Server(_)) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Runs a script over one part whose slot is being moved to this server. No other request may be under way on this connection, because
    /// ASKING applies to the next command.
    pub(crate) async fn run_announced(&self, script: &Script, part: &Part) -> Result<Answer, Fault> {
        let mut announced = self.announced(script, part).await;
        if matches!(announced, Ok(None)) {
            self.load(script).await?;
            announced = self.announced(script, part).await;
        }
        announced?
            .and_then(|mut answers| answers.pop())
            .ok_or_else(|| Fault::said("NOSCRIPT although the script was just loaded"))?
    }

    async fn announced(&self, script: &Script, part: &Part) -> Result<Option<Answers>, Fault> {
        self.custom::<Value>("ASKING", &[]).await?;
        self.try_run(script, std::slice::from_ref(part)).await
    }

    async fn custom<T: FromValue>(&self, command: &'static str, args: &[&str]) -> Result<T, Fault> {
        let custom = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
        self.bounded(Box::pin(self.client.custom(custom, args.to_vec()))).await
    }

    /// The time since the last reply, if a request waits for one; else zero.
    pub(crate) fn silence(&self) -> Duration {
        self.liveness.silence()
    }

    /// Sends a PING whenever the connection was idle for a while. A PING without a reply counts as any other request.
    pub(super) async fn keep_warm(&self) -> Infallible {
        let keep_warm = (self.command_timeout * KEEP_WARM).min(KEEP_WARM_AT_MOST);
        loop {
            match keep_warm.checked_sub(self.liveness.quiet()).filter(|left| !left.is_zero()) {
                Some(left) => sleep(left).await,
                None => _ = self.ping().await,
            }
        }
    }

    /// Resolves when the connection may have become [doubtful](Self::is_doubtful).
    pub(super) async fn doubted(&self) {
        self.liveness.doubted.notified().await;
    }

    /// True if the connection was idle, and has not replied since.
    pub(super) fn is_doubtful(&self) -> bool {
        self.liveness.is_doubtful(self.command_timeout)
    }

    /// The address of the server.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Asks the server for the id and the address of this connection. Servers before 6.2 do not say, nor servers that do not permit it.
    pub(super) async fn learn_peer(&self) {
        let info: Result<String, _> = self.custom("CLIENT", &["INFO"]).await;
        if let Some(peer) = info.as_deref().ok().and_then(Peer::parse) {
            let _ = self.peer.set(peer);
        }
    }

    /// Makes the server close the previous connection. The server may not have read its last requests yet, and these must not run after
    /// requests of this connection. If this user may not do that, they can; `docs/design.md` says how late.
    /// False if the outcome is unknown, because this connection is lost too.
    pub(super) async fn close_predecessor(&self, Peer { id, addr }: &Peer) -> bool {
        match self.custom::<Value>("CLIENT", &["KILL", "ID", id, "ADDR", addr]).await {
            Err(Fault::Unknown(_)) => false,
            Err(fault) => {
                conn_event!(
                    debug,
                    ?fault,
                    "the server refused to close the previous connection; its last requests may still run"
                );
                true
            }
            Ok(_) => true,
        }
    }

    /// The number of replicas that have all writes of this connection, after at most `time`. No other request runs on this connection
    /// during that time.
    pub(crate) async fn confirmed(&self, confirmed: Confirmed, wanted: u8, time: Duration) -> Result<u8, Fault> {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1).to_string();
        let wanted = wanted.to_string();
        let count: u64 = match confirmed {
            Confirmed::Received => self.custom("WAIT", &[&wanted, &millis]).await?,
            Confirmed::Fsynced => {
                let (_here, there): (u64, u64) = self.custom("WAITAOF", &["0", &wanted, &millis]).await?;
                there
            }
        };
        Ok(u8::try_from(count).unwrap_or(u8::MAX))
    }
}

/// Notifies the waiting requests at intervals, for as long as the connection is alive. If there was no reply for half of the command
/// timeout, sends a PING, because the callers may have left. Sends it much sooner if the connection was idle.
async fn beat(pulse: &Notify, liveness: &Liveness, client: &Client, command_timeout: Duration) {
    while liveness.silence() < command_timeout {
        if liveness.silence() <= command_timeout / 2 && !liveness.is_doubtful(command_timeout) {
            nap(command_timeout / PULSES).await;
        } else {
            ask(pulse, liveness, client, command_timeout).await;
        }
        pulse.notify_waiters();
    }
}

/// Sends a PING and waits for its reply, however late, until the connection counts as lost. Notifies the waiting requests in the meantime.
async fn ask(pulse: &Notify, liveness: &Liveness, client: &Client, command_timeout: Duration) {
    let request = liveness.sent();
    let mut ping = Box::pin(client.ping::<Value>(None));
    while liveness.silence() < command_timeout {
        tokio::select! {
            biased;
            answer = &mut ping => {
                if answer.is_ok() {
                    liveness.answered(request);
                } else {
                    sleep(command_timeout / PULSES).await; // the loss of the connection is reported elsewhere
                }
                return;
            }
            () = nap(command_timeout / PULSES / 3) => pulse.notify_waiters(),
        }
        if liveness.is_doubtful(command_timeout) {
            liveness.doubted.notify_one();
        }
    }
}

/// The layout of a cluster, from one of its servers.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The first and the last slot of each range, and its master.
    pub(crate) ranges: Vec<(u16, u16, Address)>,
    /// The ids of all masters and replicas. Unlike addresses, they never change.
    pub(crate) nodes: BTreeSet<String>,
}

/// Reads the ids in `first last [host port id ..] ..`.
fn node_ids(range: &Value) -> impl Iterator<Item = String> {
    let servers = if let Value::Array(words) = range { words.get(2..).unwrap_or_default() } else { &[] };
    servers.iter().filter_map(|server| match server {
        Value::Array(words) => words.get(2)?.as_string(),
        _ => None,
    })
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

/// Reads a reply: one for each part. `None` if a nonce or the form does not match the request.
fn answers(reply: Value, first: u64, parts: usize) -> Option<Answers> {
    let replies = match reply {
        Value::Array(replies) => replies,
        one => vec![one],
    };
    let of_part = |(nonce, reply): (u64, &Value)| match Answer::read(reply.as_bytes()?)? {
        (named, answer) if named == nonce => Some(answer),
        _ => None,
    };
    (replies.len() == parts).then(|| (first..).zip(&replies).map(of_part).collect())?
}

fn client(target: &Target, command_timeout: Duration, buffer: usize) -> Result<Client, Fault> {
    Builder::from_config(target.config()?)
        .with_connection_config(|conn| {
            conn.connection_timeout = command_timeout;
            conn.internal_command_timeout = command_timeout;
            conn.max_command_attempts = 1;
            conn.auto_client_setname = false;
            conn.unresponsive = UnresponsiveConfig::default();
            conn.tcp.nodelay = Some(true);
        })
        .with_performance_config(|perf| perf.broadcast_channel_capacity = buffer)
        .build()
        .map_err(fault)
}

/// Starts to connect. The future resolves when the connection is open.
///
/// fred's `wait_for_connect` first checks whether the client is connected, and then subscribes to the notification about that. If the
/// connection opens in between, on another thread, it never resolves. So this polls it once before the client starts to connect: the
/// subscription is there before there is anything to miss.
fn connecting(client: &Client) -> (ConnectHandle, BoxFuture<'static, FredResult<()>>) {
    let waiting = client.clone();
    let mut up = async move { waiting.wait_for_connect().await }.boxed();
    let early = (&mut up).now_or_never();
    debug_assert!(early.is_none(), "a client that has not started to connect is not connected");
    (client.connect(), up)
}

/// The beginnings of fred's errors for commands that it gave up. "channel closed" is the error of a command whose link was closed.
const LOST_ON_THE_WAY: [&str; 3] = ["Too many failed", "Failed to", "channel closed"];

/// Sorts fred's errors by one question: may the command have run?
fn fault(error: FredError) -> Fault {
    sorted(&error.clone(), Arc::new(error))
}

/// As [`fault`], with a separate source to show.
fn sorted(error: &FredError, source: Source) -> Fault {
    let doubtful = match error.kind() {
        ErrorKind::IO | ErrorKind::Timeout | ErrorKind::Canceled | ErrorKind::Protocol | ErrorKind::Parse => true,
        // fred uses this kind for its own errors and for those of the server.
        ErrorKind::Unknown => LOST_ON_THE_WAY.iter().any(|start| error.details().starts_with(start)),
        _ => false,
    };
    let denied = matches!(error.kind(), ErrorKind::Auth);
    match (doubtful, denied) {
        (true, _) => Fault::Unknown(source),
        (_, true) => Fault::not_let_in(error.details(), source),
        _ if is_tls(error) => Fault::NotSent(source),
        _ => Fault::refused(error.details(), source),
    }
}

/// A connection that was closed before it was ready, with the most frequent cause as a hint, because neither side names the cause.
#[derive(Debug, thiserror::Error)]
#[error("the connection was closed before it was ready; {hint}")]
struct Unopened {
    hint: &'static str,
    source: FredError,
}

/// fred's errors for a connection that the server has closed; the last one if fred waited for the reply to AUTH.
const CLOSED: [&str; 4] = ["ConnectionReset", "BrokenPipe", "UnexpectedEof", "Expected string."];

/// The reason for which a connection could not be opened.
fn unopened(error: FredError, target: &Target) -> Fault {
    let is_end = CLOSED.iter().any(|word| error.details().contains(word));
    // Errors of the operating system or of TLS do not repeat what the client sent.
    let is_said = !matches!(error.kind(), ErrorKind::IO);
    let source: Source = match secret_from(error.details(), target).filter(|_| is_said) {
        Some(at) => source(&format!("{}.. (the rest may repeat a password)", &error.details()[..at])),
        None if is_end => Arc::new(Unopened { hint: hint(target), source: error.clone() }),
        None => Arc::new(error.clone()),
    };
    sorted(&error, source)
}

/// The position at which an error message may repeat a password or its beginning: a server may repeat what the client sent.
fn secret_from(words: &str, target: &Target) -> Option<usize> {
    const REPEATED: &str = "args beginning with";
    const ENOUGH: usize = 8;
    let password = target.credentials.password.as_deref().filter(|password| !password.is_empty())?;
    let start = password.char_indices().nth(ENOUGH).map_or(password, |(end, _)| &password[..end]);
    [REPEATED, start].into_iter().filter_map(|text| words.find(text)).min()
}

fn hint(target: &Target) -> &'static str {
    match target.tls {
        Some(_) => "does the server use TLS, and does it require a client certificate?",
        None => "does the server use TLS (rediss://)?",
    }
}

fn silent(command_timeout: Duration, target: &Target) -> String {
    let hint = if target.tls.is_some() { "; does the server use TLS?" } else { "" };
    format!("no connection within {command_timeout:?}{hint}")
}

#[cfg(feature = "tls")]
fn is_tls(error: &FredError) -> bool {
    matches!(error.kind(), ErrorKind::Tls)
}

#[cfg(not(feature = "tls"))]
fn is_tls(_error: &FredError) -> bool {
    false
}

pub(super) fn not_yet() -> FredError {
    FredError::new(ErrorKind::IO, "there was no connection yet")
}

pub(super) fn closed() -> FredError {
    FredError::new(ErrorKind::IO, "the connection was closed")
}

/// fred's task has ended by itself: the system may have refused a thread, or the runtime may have no I/O.
fn panicked(error: &JoinError) -> FredError {
    if error.is_panic() { FredError::new(ErrorKind::IO, error.to_string()) } else { closed() }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{SocketAddr, TcpListener},
        thread,
    };

    use super::*;
    use crate::credentials::Credentials;

    /// A server that replies `OK` to each request of one connection.
    fn obliging() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 1024];
            while stream.read(&mut request).is_ok_and(|length| length > 0) && stream.write_all(b"+OK\r\n").is_ok() {}
        });
        address
    }

    /// The moment between the check and the subscription of fred is too short for a test. So this test polls for the first time when the
    /// notification was sent long ago, and the state of the client is no longer "connected".
    #[tokio::test]
    async fn a_connection_that_opens_before_anybody_looks_is_noticed() {
        let at = obliging();
        let target = Target {
            address: Address::Tcp("127.0.0.1".into(), at.port()),
            ip: None,
            credentials: Credentials::new("", ""),
            database: None,
            tls: None,
            client_name: None,
        };
        let client = client(&target, Duration::from_secs(5), 16).expect("good settings");
        let (driver, up) = connecting(&client);
        while !client.is_connected() {
            sleep(Duration::from_millis(1)).await;
        }
        client.quit().await.expect("the server replies");
        driver.await.expect("no panic").expect("no error");
        assert!(!client.is_connected());
        timeout(Duration::from_secs(5), up).await.expect("at once").expect("it was connected");
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
    fn what_a_server_repeats_is_cut() {
        let target = |password: &str| Target {
            address: Address::Tcp("h".into(), 1),
            ip: None,
            credentials: Credentials::new("us", password),
            database: None,
            tls: None,
            client_name: None,
        };
        let shown = |password: &str, words: &str| {
            let fault = unopened(FredError::new(ErrorKind::Unknown, words.to_owned()), &target(password));
            (matches!(fault, Fault::Denied(_)), fault.source().expect("words").to_string())
        };
        let (_, words) = shown("pass-word-1", "ERR unknown command 'AUTH', with args beginning with: 'us' 'pass-wo");
        assert!(words.starts_with("ERR unknown command 'AUTH', with ..") && !words.contains("pass-wo"), "{words}");
        let (_, words) = shown("pass-word-1", "ERR what is pass-word-?");
        assert!(words.starts_with("ERR what is ..") && !words.contains("pass-wo"), "{words}");
        // However little is left to show, its meaning is still known.
        let (denied, words) = shown("W", "WRONGPASS invalid username-password pair");
        assert!(denied && !words.contains("WRONG"), "{words}");
        let (denied, words) = shown("", "WRONGPASS invalid username-password pair");
        assert!(denied && words.contains("username-password pair"), "{words}");
    }

    #[test]
    fn replies_must_name_their_request() {
        let reply = |text: &str| Value::from(text);
        let both = || Value::Array(vec![reply("7 granted 1"), reply("8 gone")]);
        assert!(answers(reply("7 granted 1"), 7, 1).is_some());
        assert!(answers(both(), 7, 2).is_some());
        assert!(answers(both(), 7, 1).is_none() && answers(both(), 8, 2).is_none());
        assert!(answers(reply("8 granted 1"), 7, 1).is_none());
        assert!(answers(reply("7 granted 1"), 7, 2).is_none());
        assert!(answers(Value::Integer(7), 7, 1).is_none());
    }
}
