//! Delivers messages to listeners, over one connection, or over one for each shard of a cluster. It sends one SUBSCRIBE per channel,
//! however many tasks wait. A channel without listeners stays subscribed for a moment, so that it is not subscribed again and again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, interval, sleep},
};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "test-util")]
use super::memory::MemoryLink;
use super::{
    conn::{PubSubEvent, Subscriber, spread},
    deployment::{Deployment, Line},
    fault::{Fault, source},
    listener::{Listener, each},
    url::Address,
};
use crate::{
    config::PubSub,
    contained::{conn_event, lasting},
    stats::Counters,
    sync::{std, tokio},
};

/// The time for which a channel without listeners stays subscribed.
const LINGER: Duration = Duration::from_millis(500);
/// The number of SUBSCRIBEs that are sent at once.
const AT_ONCE: usize = 64;
/// The intervals of the search for idle channels, and of the check that the connection is alive.
const TICK: Duration = Duration::from_millis(250);
const HEARTBEAT: Duration = Duration::from_secs(2);
/// The time after which a refused channel is subscribed again.
const REFUSED: Duration = Duration::from_secs(30);
/// The pauses between attempts to connect double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// If a connection worked for no longer than this, the next pause is longer than the one before.
const YOUNG: Duration = Duration::from_secs(1);

/// The subscription of one listener to a channel. Dropping it removes the listener.
#[derive(Debug)]
pub(crate) struct Subscription {
    at: MessagesFrom,
    channel: Arc<str>,
    number: u64,
    live: Arc<AtomicBool>,
}

/// Who delivers the messages.
#[derive(Debug)]
enum MessagesFrom {
    Hub(Arc<Hub>),
    #[cfg(feature = "test-util")]
    InMemory(Arc<MemoryLink>),
}

impl Subscription {
    /// True if messages arrive now. While they do not, waiters must poll.
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        match &self.at {
            MessagesFrom::Hub(hub) => hub.leave(&self.channel, self.number),
            #[cfg(feature = "test-util")]
            MessagesFrom::InMemory(link) => link.leave(&self.channel, self.number),
        }
    }
}

#[cfg(feature = "test-util")]
impl Subscription {
    pub(super) fn in_memory(link: &Arc<MemoryLink>, channel: &str, listener: Arc<dyn Listener>) -> Subscription {
        let (number, live) = link.listen(channel, listener);
        Subscription { at: MessagesFrom::InMemory(Arc::clone(link)), channel: channel.into(), number, live }
    }
}

#[derive(Debug)]
pub(crate) struct Hub {
    deployment: Arc<Deployment>,
    counters: Arc<Counters>,
    table: Mutex<HashMap<Arc<str>, Channel>>,
    /// Numbers the subscriptions, so that each removes its own listener.
    next_subscription: AtomicU64,
    /// Notified when a channel needs a SUBSCRIBE.
    wanted: Notify,
    /// One task for each line that is in use. Notified when one of its channels needs a SUBSCRIBE.
    lines: Mutex<BTreeMap<Line, Arc<Notify>>>,
    /// The client is closed, or its runtime has ended: no task forgets channels anymore.
    has_ended: AtomicBool,
}

/// The task of the lines ends.
struct Ends(Arc<Hub>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::SeqCst); // before the look at the table: later listeners see it when they leave
        self.0.forget_unused(&mut self.0.table());
    }
}

/// One subscribed channel. Without a listener it stays for a moment. It has several listeners if several names share it, as `a` and `{a}`
/// do.
#[derive(Debug)]
struct Channel {
    listeners: Vec<(u64, Arc<dyn Listener>)>,
    live: Arc<AtomicBool>,
    idle_since: Instant,
    refused: Option<Instant>,
    line: Line,
}

impl Hub {
    pub(super) fn start(deployment: Arc<Deployment>, counters: Arc<Counters>, closed: CancellationToken) -> Arc<Hub> {
        let (table, next_subscription, wanted) = (Mutex::default(), AtomicU64::new(0), Notify::new());
        let (lines, has_ended) = (Mutex::default(), AtomicBool::new(false));
        let hub = Arc::new(Hub { deployment, counters, table, next_subscription, wanted, lines, has_ended });
        let (ends, until) = (Ends(Arc::clone(&hub)), closed.clone());
        let keeping = async move { lasting(|| Arc::clone(&ends.0).keep_lines(closed.clone())).await };
        tokio::spawn(until.run_until_cancelled_owned(keeping));
        hub
    }

    /// Adds a listener to a channel, and notifies it when the channel is subscribed. That never happens if nothing is published.
    pub(super) fn join(self: &Arc<Self>, name: &str, listener: Arc<dyn Listener>) -> Subscription {
        let name: Arc<str> = name.into();
        let number = self.next_subscription.fetch_add(1, Ordering::Relaxed);
        if self.deployment.pubsub() == PubSub::Off {
            return Subscription {
                at: MessagesFrom::Hub(Arc::clone(self)),
                channel: name,
                number,
                live: Arc::default(),
            };
        }
        let mut table = self.table();
        let channel = table.entry(Arc::clone(&name)).or_insert_with(|| {
            self.counters.subscriptions.up();
            let line = self.deployment.line(&name);
            Channel { listeners: Vec::new(), live: Arc::default(), idle_since: Instant::now(), refused: None, line }
        });
        channel.listeners.push((number, Arc::clone(&listener)));
        let (at, live) = (MessagesFrom::Hub(Arc::clone(self)), Arc::clone(&channel.live));
        let subscription = Subscription { at, channel: name, number, live };
        drop(table); // listeners have locks of their own
        if subscription.is_live() {
            listener.subscribed();
        } else {
            self.wanted.notify_one();
        }
        subscription
    }

    fn leave(&self, channel: &str, subscription: u64) {
        let mut table = self.table();
        if let Some(channel) = table.get_mut(channel) {
            channel.listeners.retain(|(number, _)| *number != subscription);
            channel.idle_since = Instant::now();
        }
        if self.has_ended.load(Ordering::SeqCst) {
            self.forget_unused(&mut table);
        }
    }

    fn forget_unused(&self, table: &mut HashMap<Arc<str>, Channel>) {
        table.retain(|_, channel| {
            let is_used = !channel.listeners.is_empty();
            if !is_used {
                self.counters.subscriptions.down();
            }
            is_used
        });
    }

    pub(super) fn hears(&self, name: &str) -> bool {
        self.table().get(name).is_some_and(|channel| channel.live.load(Ordering::Acquire))
    }

    /// Keeps each channel on its line, and runs a task for each line.
    async fn keep_lines(self: Arc<Hub>, closed: CancellationToken) {
        let mut changes = self.deployment.changes();
        loop {
            tokio::select! {
                () = self.wanted.notified() => {}
                changed = changes.changed() => if changed.is_err() {
                    return;
                }
            }
            for line in self.lines_missing() {
                self.task_of(line, &closed).notify_one();
            }
        }
    }

    /// Moves channels to their present lines. Returns the lines that have channels to subscribe. Removes channels that have no listener and
    /// whose line has no task: that task would remove them.
    fn lines_missing(&self) -> BTreeSet<Line> {
        let served: BTreeSet<Line> = self.lines().keys().cloned().collect(); // only the caller adds to these
        let mut lines = BTreeSet::new();
        self.table().retain(|name, channel| {
            let line = self.deployment.line(name);
            if line != channel.line {
                (channel.line, channel.refused) = (line, None);
                channel.live.store(false, Ordering::Release);
            }
            if channel.is_missing() && channel.line != Line::None {
                lines.insert(channel.line.clone());
            }
            let keep = !channel.listeners.is_empty() || served.contains(&channel.line);
            if !keep {
                self.counters.subscriptions.down();
            }
            keep
        });
        lines
    }

    fn task_of(self: &Arc<Hub>, line: Line, closed: &CancellationToken) -> Arc<Notify> {
        let mut lines = self.lines();
        let wanted = lines.entry(line.clone()).or_insert_with(|| {
            let wanted = Arc::<Notify>::default();
            let (hub, notified) = (Arc::clone(self), Arc::clone(&wanted));
            let listen = move || Arc::clone(&hub).keep_listening(line.clone(), Arc::clone(&notified));
            let listening = lasting(listen);
            tokio::spawn(closed.clone().run_until_cancelled_owned(listening));
            wanted
        });
        Arc::clone(wanted)
    }

    /// Opens the connection for the first listener, and again whenever it is lost. Ends when it is lost and no channel needs it: a shard may
    /// have another address by now.
    async fn keep_listening(self: Arc<Hub>, line: Line, wanted: Arc<Notify>) {
        let (dial, sharded) = (self.deployment.dial(&line), matches!(line, Line::Shard(_)));
        let (mut one_by_one, mut pause, mut failing_since) = (false, FIRST_PAUSE, None::<Instant>);
        self.all_silent(&line); // after a panic
        wanted.notify_one();
        loop {
            wanted.notified().await;
            if !self.all_silent(&line) {
                failing_since = None;
                if self.ends(&line) {
                    return;
                }
                wanted.notify_one(); // for a channel that came just now: its listener may leave before it is looked at
                continue;
            }
            wanted.notify_one(); // still wanted once connected
            let (begun, changes) = (Instant::now(), self.deployment.changes());
            pause = match Subscriber::open(&dial, sharded).await {
                Ok(subscriber) => {
                    let there = subscriber.address().clone();
                    if let Some(since) = failing_since.take() {
                        conn_event!(warn, server = %there, after = ?since.elapsed(),
                                "the connection for messages is open again");
                    }
                    tokio::select! {
                        again = self.serve(&line, &wanted, subscriber, one_by_one) => one_by_one = again,
                        () = self.leads_elsewhere(&line, &there, changes) => {}
                    }
                    if begun.elapsed() < YOUNG { (pause * 2).min(LAST_PAUSE) } else { FIRST_PAUSE }
                }
                Err(fault) => {
                    self.note_failure(&line, &fault, failing_since.is_none());
                    failing_since.get_or_insert(begun);
                    (pause * 2).min(fault.last_pause(LAST_PAUSE))
                }
            };
            self.all_silent(&line);
            wanted.notify_one();
            sleep(spread(pause)).await;
        }
    }

    /// The connection could not be opened. One warning for each outage: there are about two attempts a second.
    fn note_failure(&self, line: &Line, fault: &Fault, is_first: bool) {
        let cause = fault.clone().source().unwrap_or_else(|| source("the client is closed"));
        if !is_first {
            return conn_event!(debug, %cause, "still cannot open the connection for messages");
        }
        conn_event!(warn, %cause,
            "cannot open the connection for messages; the client tries again, and waiters poll until then");
        // A server that replies also replies to waiters that poll.
        if !matches!(fault, Fault::NotSent(_) | Fault::Unknown(_)) {
            self.wake(line);
        }
    }

    /// Forgets the task of a line without channels. The lock makes sure that a channel that comes later finds no task, and gets a new one.
    fn ends(&self, line: &Line) -> bool {
        let mut lines = self.lines();
        let is_needed = self.table().values().any(|channel| channel.line == *line);
        if !is_needed {
            lines.remove(line);
        }
        !is_needed
    }

    /// Resolves when another server than `there` publishes the messages of a line, even if the connection to `there` still works. Behind one
    /// address there may be another server each time that the client reconnects. `changes`: as they were before this connection was opened.
    async fn leads_elsewhere(&self, line: &Line, there: &Address, mut changes: watch::Receiver<u64>) {
        while self.deployment.leads_to(line, there) {
            if changes.changed().await.is_err() || self.deployment.is_behind_one_address() {
                return;
            }
        }
    }

    /// Serves one connection until it is lost. Returns true if the channels should be subscribed one by one: the server refused one of
    /// several, and did not say which.
    async fn serve(&self, line: &Line, wanted: &Notify, mut subscriber: Subscriber, one_by_one: bool) -> bool {
        let mut tick = interval(TICK);
        let (mut asked, mut doubtful) = (Instant::now(), VecDeque::new());
        loop {
            tokio::select! {
                biased;
                event = subscriber.next() => match event {
                    PubSubEvent::Message { channel, text } => {
                        self.counters.wakeups.up();
                        each(&self.listeners(&channel), |listener| listener.message(&text));
                    }
                    PubSubEvent::TooMuch => self.wake_all(),
                    PubSubEvent::Silence => return one_by_one,
                },
                () = wanted.notified() => {
                    let some = self.missing(line, if one_by_one { 1 } else { AT_ONCE });
                    if let Err(fault) = self.subscribe(line, &subscriber, &some).await {
                        return self.refused(&some, &fault);
                    }
                    if !some.is_empty() {
                        wanted.notify_one(); // there may be more channels than were sent at once
                    }
                }
                _ = tick.tick() => {
                    if !self.missing(line, 1).is_empty() {
                        wanted.notify_one(); // for example a channel that was refused some time ago
                    }
                    match self.look_after(line, &subscriber, &mut asked).await {
                        Ok(true) if doubtful.is_empty() && matches!(line, Line::Shard(_)) => doubtful = self.live_on(line),
                        Ok(_) => {}
                        Err(_) => return one_by_one,
                    }
                    let again: Vec<_> = doubtful.drain(..doubtful.len().min(AT_ONCE)).collect();
                    let again: Vec<_> = again.into_iter().filter(|name| self.hears(name)).collect();
                    if let Err(fault) = subscriber.subscribe(&again).await {
                        return self.refused(&again, &fault);
                    }
                }
            }
        }
    }

    /// Unsubscribes channels without listeners, and checks now and then that the connection is alive. True if it was checked.
    async fn look_after(&self, line: &Line, subscriber: &Subscriber, asked: &mut Instant) -> Result<bool, Fault> {
        let idle = self.forget_idle(line);
        if idle.is_empty() && asked.elapsed() < HEARTBEAT {
            return Ok(false);
        }
        if !idle.is_empty() {
            subscriber.unsubscribe(&idle).await?;
        }
        *asked = Instant::now();
        subscriber.barrier().await.map(|()| true)
    }

    /// Subscribes these channels. A channel that has moved to another line in the meantime stays missing there.
    async fn subscribe(&self, line: &Line, subscriber: &Subscriber, channels: &[Arc<str>]) -> Result<(), Fault> {
        if channels.is_empty() {
            return Ok(());
        }
        subscriber.subscribe(channels).await?;
        for name in channels {
            let listeners = self.is_subscribed(line, name);
            each(&listeners, |listener| listener.subscribed());
        }
        Ok(())
    }

    /// Notes that a line delivers the messages of a channel. Returns its listeners.
    fn is_subscribed(&self, line: &Line, name: &str) -> Vec<Arc<dyn Listener>> {
        let mut table = self.table();
        let Some(channel) = table.get_mut(name).filter(|channel| channel.line == *line) else { return Vec::new() };
        channel.live.store(true, Ordering::Release);
        channel.refused = None;
        channel.listeners()
    }

    /// The subscribed channels. A server ends a subscription when the slot of the channel moves to another server, and fred does not report
    /// that. If the slot moves back before the client reads the map again, the map does not show it either. So the client subscribes to
    /// these channels again at intervals. That changes nothing for a channel that is still subscribed.
    fn live_on(&self, line: &Line) -> VecDeque<Arc<str>> {
        let table = self.table();
        let live = table.iter().filter(|(_, channel)| channel.line == *line && channel.live.load(Ordering::Acquire));
        live.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Some channels that are not subscribed yet.
    fn missing(&self, line: &Line, most: usize) -> Vec<Arc<str>> {
        let table = self.table();
        let missing = table.iter().filter(|(_, channel)| channel.line == *line && channel.is_missing());
        missing.map(|(name, _)| Arc::clone(name)).take(most).collect()
    }

    /// Notes a refusal, and wakes the waiters of that channel: from now on they poll. True if it is not known yet which channel was refused.
    fn refused(&self, channels: &[Arc<str>], fault: &Fault) -> bool {
        if matches!(fault, Fault::Unknown(_) | Fault::NotReady(_) | Fault::Elsewhere(..)) {
            self.deployment.may_be_old();
            return false;
        }
        let [only] = channels else { return true };
        let cause = fault.clone().source().unwrap_or_else(|| source("the client is closed"));
        conn_event!(warn, channel = %only, %cause,
                "the server refuses the subscription: waiters poll instead, and a holder cannot be asked to release its lock");
        if let Some(channel) = self.table().get_mut(only) {
            channel.refused = Some(Instant::now());
            channel.live.store(false, Ordering::Release);
        }
        each(&self.listeners(only), |listener| listener.subscribed());
        false
    }

    /// Removes channels that have had no listener for a while. Returns those that are still subscribed.
    fn forget_idle(&self, line: &Line) -> Vec<Arc<str>> {
        let mut live = Vec::new();
        self.table().retain(|name, channel| {
            let is_used = !channel.listeners.is_empty() || channel.idle_since.elapsed() < LINGER;
            let keep = is_used || channel.line != *line;
            if !keep {
                self.counters.subscriptions.down();
                if channel.live.load(Ordering::Acquire) {
                    live.push(Arc::clone(name));
                }
            }
            keep
        });
        live
    }

    /// The connection is lost, so all its channels must be subscribed again. True if there are any.
    fn all_silent(&self, line: &Line) -> bool {
        self.forget_idle(line);
        let table = self.table();
        let mut channels = table.values().filter(|channel| channel.line == *line).peekable();
        let are_any = channels.peek().is_some();
        channels.for_each(|channel| channel.live.store(false, Ordering::Release));
        are_any
    }

    fn listeners(&self, name: &str) -> Vec<Arc<dyn Listener>> {
        self.table().get(name).map(Channel::listeners).unwrap_or_default()
    }

    /// Wakes the waiters of a line that delivers nothing for now. They went to sleep when it still did, and do not know that they must poll.
    fn wake(&self, line: &Line) {
        let of_line = |channel: &&Channel| channel.line == *line;
        let listeners: Vec<_> = self.table().values().filter(of_line).flat_map(Channel::listeners).collect();
        each(&listeners, |listener| listener.subscribed());
    }

    fn wake_all(&self) {
        let listeners: Vec<_> = self.table().values().flat_map(Channel::listeners).collect();
        each(&listeners, |listener| listener.missed());
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<Line, Arc<Notify>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Arc<str>, Channel>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    fn listeners(&self) -> Vec<Arc<dyn Listener>> {
        self.listeners.iter().map(|(_, listener)| Arc::clone(listener)).collect()
    }

    fn is_missing(&self) -> bool {
        let refused = self.refused.is_some_and(|since| since.elapsed() < REFUSED);
        !self.live.load(Ordering::Acquire) && !refused && !self.listeners.is_empty()
    }
}

#[cfg(all(test, not(leasehold_explore)))] // the exploration has no connections
mod tests {
    use super::*;
    use crate::{config::Config, redis::url::Url};

    #[derive(Debug)]
    struct Nobody;

    impl Listener for Nobody {
        fn message(&self, _: &str) {}

        fn subscribed(&self) {}
    }

    /// A hub whose server does not reply.
    fn hub(closed: &CancellationToken) -> Arc<Hub> {
        let soon = Duration::from_secs(1);
        let config =
            Config { command_timeout: soon, outage_timeout: soon, ..Config::for_checks(Duration::from_secs(30)) };
        let (url, counters) = (Url::parse("redis://127.0.0.1:1").expect("a good URL"), Arc::default());
        let deployment = Arc::new(Deployment::lazy(&url, &config, &counters, closed));
        Hub::start(deployment, counters, closed.clone())
    }

    async fn until(what: &str, is_true: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_true() {
            assert!(started.elapsed() < Duration::from_secs(10), "{what}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn the_task_of_a_line_ends_when_nobody_listens_there() {
        let closed = CancellationToken::new();
        let hub = hub(&closed);
        for _ in 0..2 {
            let subscription = hub.join("x", Arc::new(Nobody));
            until("a task for the line", || hub.lines().len() == 1).await;
            drop(subscription);
            until("the end of the task", || hub.lines().is_empty()).await;
        }
        closed.cancel();
    }

    /// Its listener has left before the hub looked at it. No task serves the line, and none is needed.
    #[tokio::test]
    async fn a_channel_that_was_left_at_once_is_forgotten() {
        let closed = CancellationToken::new();
        let hub = hub(&closed);
        drop(hub.join("x", Arc::new(Nobody)));
        assert_eq!(hub.table().len(), 1);
        until("the channel to be forgotten", || hub.table().is_empty()).await;
        assert!(hub.lines().is_empty());
        assert_eq!(hub.counters.subscriptions.get(), 0);
        closed.cancel();
    }

    #[tokio::test]
    async fn the_task_of_a_line_stays_while_somebody_listens_there() {
        let closed = CancellationToken::new();
        let hub = hub(&closed);
        let first = hub.join("x", Arc::new(Nobody));
        until("a task for the line", || hub.lines().len() == 1).await;
        let _second = hub.join("y", Arc::new(Nobody));
        drop(first);
        until("the first channel to be left", || hub.table().len() == 1).await;
        assert!(!hub.ends(&Line::Any) && hub.lines().len() == 1);
        closed.cancel();
    }
}
