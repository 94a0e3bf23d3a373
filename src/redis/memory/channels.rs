//! The clients' connections, their subscriptions, and how a message reaches the listeners.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{runtime::Handle, sync::watch};

use crate::{
    redis::listener::{Listener, each},
    stats::Counters,
};

/// One client's connection.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) number: u64,
    /// Counts up when the connection is lost.
    pub(super) changes: watch::Sender<u64>,
    pub(super) counters: Arc<Counters>,
    /// Listeners are called by a task there: the caller may hold locks that a listener needs.
    runtime: Handle,
}

impl Connected {
    /// Call it on the runtime of the client's tasks.
    pub(super) fn new(number: u64, counters: &Arc<Counters>) -> Connected {
        let (changes, counters) = (watch::Sender::new(0), Arc::clone(counters));
        Connected { number, changes, counters, runtime: Handle::current() }
    }

    fn call(&self, listeners: Vec<Arc<dyn Listener>>, tell: impl Fn(&dyn Listener) + Send + 'static) {
        self.runtime.spawn(async move { each(&listeners, tell) });
    }
}

/// One client's subscription to a channel.
#[derive(Debug)]
struct Subscribed {
    client: Arc<Connected>,
    /// True while messages arrive.
    live: Arc<AtomicBool>,
    listeners: Vec<(u64, Arc<dyn Listener>)>,
}

impl Subscribed {
    fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// Notifies the listeners, also if messages do not arrive now: then the waiters poll.
    fn notify(&self, is_live: bool) {
        self.live.store(is_live, Ordering::Release);
        self.client.call(self.listeners(), |listener| listener.subscribed());
    }

    fn message(&self, text: &str) {
        self.client.counters.wakeups.up();
        let text = text.to_owned();
        self.client.call(self.listeners(), move |listener| listener.message(&text));
    }

    fn listeners(&self) -> Vec<Arc<dyn Listener>> {
        self.listeners.iter().map(|(_, listener)| Arc::clone(listener)).collect()
    }
}

/// How the server treats a new subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reception {
    Subscribed,
    /// The waiters poll.
    Refused,
    /// The server is frozen.
    NoReply,
}

/// All subscriptions, by channel and client.
#[derive(Debug, Default)]
pub(super) struct Channels(HashMap<String, BTreeMap<u64, Subscribed>>);

impl Channels {
    /// Sends a message to all listeners. Returns the number of clients that receive it.
    pub(super) fn publish(&self, channel: &str, text: &str) -> usize {
        self.live(channel).inspect(|one| one.message(text)).count()
    }

    /// Adds a listener. Returns whether messages arrive, which changes.
    pub(super) fn listen(
        &mut self,
        (channel, client): (&str, &Arc<Connected>),
        (number, listener): (u64, Arc<dyn Listener>),
        reception: Reception,
    ) -> Arc<AtomicBool> {
        let clients = self.0.entry(channel.to_owned()).or_default();
        let one = clients.entry(client.number).or_insert_with(|| {
            client.counters.subscriptions.up();
            let live = Arc::new(AtomicBool::new(reception == Reception::Subscribed));
            Subscribed { client: Arc::clone(client), live, listeners: Vec::new() }
        });
        one.listeners.push((number, Arc::clone(&listener)));
        if reception != Reception::NoReply {
            client.call(vec![listener], |listener| listener.subscribed());
        }
        Arc::clone(&one.live)
    }

    /// Removes a listener. The caller drops it later, without the server's lock: it may own the last of other subscriptions.
    pub(super) fn leave(&mut self, channel: &str, client: u64, number: u64) -> Option<Arc<dyn Listener>> {
        let clients = self.0.get_mut(channel)?;
        let one = clients.get_mut(&client)?;
        let at = one.listeners.iter().position(|(known, _)| *known == number)?;
        let (_, left) = one.listeners.swap_remove(at);
        if one.listeners.is_empty() {
            one.client.counters.subscriptions.down();
            clients.remove(&client);
        }
        if clients.is_empty() {
            self.0.remove(channel);
        }
        Some(left)
    }

    /// True if messages on this channel reach the client.
    pub(super) fn hears(&self, channel: &str, client: u64) -> bool {
        self.0.get(channel).and_then(|clients| clients.get(&client)).is_some_and(Subscribed::is_live)
    }

    /// The number of clients that subscribe to a channel.
    pub(super) fn count(&self, channel: &str) -> usize {
        self.0.get(channel).map_or(0, BTreeMap::len)
    }

    /// The connections have ended, and the clients connect again.
    pub(super) fn subscribe_again(&self, reception: Reception) {
        match reception {
            Reception::NoReply => self.all().for_each(|one| one.live.store(false, Ordering::Release)),
            _ => self.all().for_each(|one| one.notify(reception == Reception::Subscribed)),
        }
    }

    /// Subscribes what could not be subscribed until now.
    pub(super) fn subscribe_missing(&self) {
        self.all().filter(|one| !one.is_live()).for_each(|one| one.notify(true));
    }

    fn all(&self) -> impl Iterator<Item = &Subscribed> {
        self.0.values().flat_map(BTreeMap::values)
    }

    fn live(&self, channel: &str) -> impl Iterator<Item = &Subscribed> {
        self.0.get(channel).into_iter().flat_map(BTreeMap::values).filter(|one| one.is_live())
    }
}
