//! A master that sentinels know. Any of them may be asked; what it names must call itself the master.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{
    future::join_all,
    stream::{BoxStream, FuturesUnordered, StreamExt, iter, once},
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::access::Access;
use crate::{
    credentials::Credentials,
    redis::{
        conn::{Dialer, Link, Locator, NOTHING_HEARD, PubSubEvent, Subscriber, Target, spread},
        fault::Fault,
        node::Node,
        url::Address,
    },
    stats::Counters,
};

/// What a sentinel publishes when another server has become the master.
const SWITCHED: &str = "+switch-master";
/// How often a sentinel that says nothing is asked whether it lives.
const NOW_AND_THEN: Duration = Duration::from_secs(2);
/// Between two tries to listen to a sentinel.
const PAUSE: Duration = Duration::from_millis(500);
/// How much later than the first sentinel another may answer.
const BEHIND: Duration = Duration::from_millis(100);

/// Finds the master of a service.
#[derive(Debug)]
pub(super) struct Sentinels {
    pub(super) access: Access,
    pub(super) addresses: Vec<Address>,
    pub(super) service: String,
    pub(super) credentials: Credentials,
    pub(super) command_timeout: Duration,
    pub(super) counters: Arc<Counters>,
    /// The master that was named last when sentinels were heard.
    pub(super) master: watch::Sender<Option<Address>>,
}

impl Locator for Sentinels {
    fn find(&self) -> BoxStream<'_, Result<Target, Fault>> {
        let named = once(self.named()).flat_map(|named| match named {
            Ok(masters) => iter(masters).map(Ok).left_stream(),
            Err(fault) => iter([Err(fault)]).right_stream(),
        });
        named.then(async |master| self.access.to(master?).await).boxed()
    }

    fn place(&self) -> String {
        format!("the master of {}", self.service)
    }

    fn wants_master(&self) -> bool {
        true
    }

    fn switches(&self) -> Option<watch::Receiver<Option<Address>>> {
        Some(self.master.subscribe())
    }
}

/// One of them, to listen to.
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
    async fn ask(&self, sentinel: &Address) -> Result<(u64, Address), Fault> {
        let target = self.access.to_sentinel(sentinel, &self.credentials);
        let link = Link::open(&target, self.command_timeout, NOTHING_HEARD, &self.counters).await?;
        link.master_of(&self.service).await
    }

    /// The masters that sentinels name, the latest first: one sentinel may be behind the others. All are asked at once, and
    /// those that are much slower than the first are not waited for.
    async fn named(&self) -> Result<Vec<Address>, Fault> {
        let mut asked: FuturesUnordered<_> = self.addresses.iter().map(|sentinel| self.ask(sentinel)).collect();
        let (mut named, mut last) = (BTreeSet::new(), Fault::said("ERR there is no sentinel"));
        let mut patience = Duration::MAX;
        while let Ok(Some(answer)) = timeout(patience, asked.next()).await {
            match answer {
                Ok(master) => {
                    named.insert(master);
                    patience = BEHIND;
                }
                Err(fault) => last = fault,
            }
        }
        if named.is_empty() {
            return Err(last);
        }
        let mut latest: Vec<_> = named.into_iter().rev().map(|(_, master)| master).collect();
        latest.dedup();
        Ok(latest)
    }

    /// Throws connections away that lead to a server which is not the master any more, as soon as any sentinel says so. Runs
    /// until it is dropped, and begins when a connection is needed.
    pub(super) async fn watch(self: Arc<Self>, node: Arc<Node>) {
        node.needed().await;
        join_all(self.addresses.iter().map(|sentinel| self.listen(sentinel, &node))).await;
    }

    async fn listen(&self, sentinel: &Address, node: &Node) {
        let target = self.access.to_sentinel(sentinel, &self.credentials);
        let dial = Dialer::new(Arc::new(OneSentinel(target)), self.command_timeout, &self.counters);
        loop {
            if let Ok(mut heard) = Subscriber::open(&dial, false).await
                && heard.subscribe(&[SWITCHED.into()]).await.is_ok()
            {
                self.look(node).await; // something may have been said before
                while self.hears(&mut heard).await {
                    self.look(node).await;
                }
            }
            sleep(spread(PAUSE)).await;
        }
    }

    /// Until something is said; false if nobody is heard any more.
    async fn hears(&self, sentinel: &mut Subscriber) -> bool {
        loop {
            match timeout(NOW_AND_THEN, sentinel.next()).await {
                Ok(PubSubEvent::Silence) => return false,
                Ok(PubSubEvent::Message(_) | PubSubEvent::TooMuch) => return true,
                Err(_quiet) if sentinel.barrier().await.is_err() => return false,
                Err(_quiet) => {}
            }
        }
    }

    async fn look(&self, node: &Node) {
        if let Ok(masters) = self.named().await
            && let Some(master) = masters.first()
        {
            // First those that are not open yet.
            self.master.send_if_modified(|known| known.replace(master.clone()).as_ref() != Some(master));
            node.links()
                .filter(|link| link.address() != master)
                .for_each(|link| link.give_up("the sentinels name another master"));
        }
    }
}
