//! Finds a master with the help of sentinels: the server that more than half of them name. That server must also report itself as master.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{
    future::{BoxFuture, join_all, ready},
    stream::{BoxStream, FuturesUnordered, StreamExt, iter, once},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::access::Access;
use crate::{
    credentials::Credentials,
    redis::{
        conn::{Asks, Dialer, Link, Locator, NOT_THE_MASTER, PubSubEvent, Subscriber, Target, master_of, spread},
        fault::{Fault, source},
        node::Node,
        url::Address,
    },
    stats::Counters,
};

/// The channel on which a sentinel announces a new master.
const SWITCHED: &str = "+switch-master";
/// The interval of the check that a silent sentinel is alive.
const NOW_AND_THEN: Duration = Duration::from_secs(2);
/// The pauses between two attempts to subscribe to a sentinel double from the first to the last.
const PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(4);

/// Finds the master of a service.
#[derive(Debug)]
pub(super) struct Sentinels {
    pub(super) access: Access,
    pub(super) addresses: Vec<Address>,
    pub(super) service: String,
    pub(super) credentials: Credentials,
    pub(super) command_timeout: Duration,
    pub(super) counters: Arc<Counters>,
    /// The master that the sentinels named last, after an event.
    pub(super) master: watch::Sender<Option<Address>>,
    /// The last server that was reached and reported itself as master.
    pub(super) reached: Mutex<Option<Address>>,
    /// Locked while this asks the sentinels after an event, so that replies are applied in order.
    pub(super) looking: tokio::sync::Mutex<()>,
}

impl Locator for Sentinels {
    fn find(&self) -> BoxStream<'_, Result<Target, Fault>> {
        once(async { self.access.to(self.master().await?).await }).boxed()
    }

    fn place(&self) -> String {
        format!("the master of {}", self.service)
    }

    fn wants_master(&self) -> bool {
        true
    }

    fn recognise<'a>(&'a self, server: &'a dyn Asks) -> BoxFuture<'a, Result<(), Fault>> {
        *self.reached() = Some(server.address().clone());
        Box::pin(ready(Ok(())))
    }

    fn switches(&self) -> Option<watch::Receiver<Option<Address>>> {
        Some(self.master.subscribe())
    }
}

/// One sentinel, for a subscription.
#[derive(Debug)]
struct OneSentinel(Target);

impl Locator for OneSentinel {
    fn find(&self) -> BoxStream<'_, Result<Target, Fault>> {
        iter([Ok(self.0.clone())]).boxed()
    }

    fn place(&self) -> String {
        self.0.address.to_string()
    }

    fn wants_master(&self) -> bool {
        false
    }
}

impl Sentinels {
    async fn ask(&self, sentinel: &Address) -> Result<Address, Fault> {
        let target = self.access.to_sentinel(sentinel, &self.credentials);
        let link = Link::open_at_any_address(target, self.command_timeout, &self.counters).await?;
        master_of(&link, &self.service).await
    }

    /// The present master: the one that the sentinels name, else the last one that was reached, if no sentinel names another, and they have
    /// named no other since. So no lock is lost if the sentinels do not reply while the master works.
    async fn master(&self) -> Result<Address, Fault> {
        let votes = self.ask_all().await;
        let reached = self.reached().clone();
        votes.winner().or_else(|| reached.filter(|reached| votes.allow(reached))).ok_or_else(|| votes.no_winner())
    }

    /// Asks all sentinels at once, until a majority agrees, but for at most the time of one request.
    async fn ask_all(&self) -> Votes<'_> {
        let ask = async |sentinel| (sentinel, self.ask(sentinel).await);
        let mut asked: FuturesUnordered<_> = self.addresses.iter().map(ask).collect();
        let mut votes = Votes { sentinels: self.addresses.len(), named: BTreeMap::new(), failed: Vec::new() };
        let give_up = Instant::now() + self.command_timeout;
        while !votes.has_majority()
            && let Ok(Some((sentinel, said))) = timeout_at(give_up, asked.next()).await
        {
            match said {
                Ok(master) => votes.named.entry(master).or_default().push(sentinel),
                Err(fault) => votes.failed.push(fault),
            }
        }
        votes
    }

    fn reached(&self) -> MutexGuard<'_, Option<Address>> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes connections to a server that is no longer the master. Asks the sentinels as soon as any of them announces a change. Runs
    /// until it is dropped, and begins when a connection is first needed.
    pub(super) async fn watch(self: Arc<Self>, node: Arc<Node>) {
        node.needed().await;
        join_all(self.addresses.iter().map(|sentinel| self.listen(sentinel, &node))).await;
    }

    async fn listen(&self, sentinel: &Address, node: &Node) {
        let target = self.access.to_sentinel(sentinel, &self.credentials);
        let dial = Dialer::new(Arc::new(OneSentinel(target)), self.command_timeout, &self.counters);
        let mut pause = PAUSE;
        loop {
            if let Ok(mut heard) = Subscriber::open(&dial, false).await
                && heard.subscribe(&[SWITCHED.into()]).await.is_ok()
            {
                self.look(node).await; // an event may have been missed before
                while self.hears(&mut heard).await {
                    self.look(node).await;
                }
                pause = PAUSE;
            }
            sleep(spread(pause)).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Waits for an event; false if the connection is lost.
    async fn hears(&self, sentinel: &mut Subscriber) -> bool {
        loop {
            match timeout(NOW_AND_THEN, sentinel.next()).await {
                Ok(PubSubEvent::Silence) => return false,
                Ok(PubSubEvent::Message { .. } | PubSubEvent::TooMuch) => return true,
                Err(_quiet) if sentinel.barrier().await.is_err() => return false,
                Err(_quiet) => {}
            }
        }
    }

    async fn look(&self, node: &Node) {
        let _one_at_a_time = self.looking.lock().await;
        if let Some(master) = self.ask_all().await.winner() {
            self.reached().take_if(|reached| *reached != master);
            // First the connections that are just being opened.
            self.master.send_if_modified(|known| known.replace(master.clone()).as_ref() != Some(&master));
            node.links().filter(|link| *link.address() != master).for_each(|link| link.give_up(NOT_THE_MASTER));
        }
    }
}

/// The replies of the sentinels so far.
#[derive(Debug)]
struct Votes<'a> {
    /// The number of sentinels in the URL.
    sentinels: usize,
    /// Each master named, and the sentinels that name it.
    named: BTreeMap<Address, Vec<&'a Address>>,
    failed: Vec<Fault>,
}

impl Votes<'_> {
    fn majority(&self) -> usize {
        self.sentinels / 2 + 1
    }

    fn has_majority(&self) -> bool {
        self.named.values().any(|sentinels| sentinels.len() >= self.majority())
    }

    /// The master that more than half of all sentinels name. A sentinel that is out of date, or that monitors other servers, must not
    /// decide. If there are two sentinels and only one replies, that one decides, because there is no majority without the other.
    fn winner(&self) -> Option<Address> {
        let first = self.named.iter().max_by_key(|(_, sentinels)| sentinels.len());
        let is_alone = self.sentinels == 2 && self.named.len() == 1;
        first.filter(|_| is_alone || self.has_majority()).map(|(master, _)| master.clone())
    }

    /// True if no sentinel names another master.
    fn allow(&self, master: &Address) -> bool {
        self.named.keys().all(|named| named == master)
    }

    /// The reason for which there is no master. Reports a refused login only if there is no majority without the sentinels that refuse it.
    fn no_winner(self) -> Fault {
        if !self.named.is_empty() {
            return Fault::NotReady(source(&self.dissent()));
        }
        let is_denied = |fault: &&Fault| matches!(fault, Fault::Denied(_));
        let denied = self.failed.iter().filter(is_denied).count();
        let decides = self.sentinels - denied < self.majority();
        let told = self.failed.iter().rev().find(|fault| is_denied(fault) == decides);
        told.cloned().unwrap_or_else(|| Fault::unknown("no sentinel has replied"))
    }

    fn dissent(&self) -> String {
        let mut words = format!("fewer than {} of {} sentinels name the same master", self.majority(), self.sentinels);
        for (master, sentinels) in &self.named {
            let sentinels: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
            words.push_str(&format!("; {} named by {}", master, sentinels.join(", ")));
        }
        words
    }
}
