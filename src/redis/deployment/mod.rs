//! Finds the server of a key, and notices when that changes. Each server is a [`Node`] with this client's own connections. An address,
//! sentinels, or a cluster only provide the addresses for these.

mod access;
mod cluster;
mod member;
mod sentinel;
mod slots;
mod standalone;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Way,
    answer::Answer,
    changed_keys::ChangedKeys,
    conn::{Asks, Dialer, Link, Locator, Reconnected, is_cluster_with_all_keys},
    fault::Fault,
    node::Node,
    node_settings::{Company, NodeSettings},
    pending::{Later, PendingRequest},
    script::{Part, Script},
    url::{Address, Shape, Url},
};
use crate::{
    config::{Config, PubSub},
    contained::{conn_event, lasting},
    error::Source,
    stats::Counters,
};
use access::Access;
use cluster::Cluster;
use sentinel::Sentinels;
use standalone::Fixed;

/// The servers of a URL.
#[derive(Debug)]
pub(super) enum Deployment {
    /// One master, found by its address or by sentinels.
    One(One),
    /// Many servers, each with some of the keys.
    Cluster(Arc<Cluster>, PubSub),
}

#[derive(Debug)]
pub(super) struct One {
    node: Arc<Node>,
    dial: Dialer,
    changes: watch::Sender<u64>,
    pubsub: PubSub,
    changed: Option<Arc<ChangedKeys>>,
    /// No sentinel names its address.
    is_fixed: bool,
}

impl Deployment {
    /// Connects, so that a wrong address or password is reported at once.
    pub(super) async fn connect(
        url: &Url,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Result<Deployment, Fault> {
        let place = Place::of(url, config, counters, closed);
        match place {
            Place::Cluster(cluster) => {
                cluster.connect().await?;
                cluster.start();
                Ok(Deployment::Cluster(cluster, config.pubsub))
            }
            Place::One(dial, parts) => {
                let (changes, reconnected) = counted();
                let node = Node::connect(&dial, settings(config, Company::Any), &reconnected, closed).await?;
                if let (None, Some(link)) = (&parts.sentinels, node.links().next()) {
                    warn_of_cluster(&link, &config.prefix).await?;
                }
                Ok(One::start(node, dial, changes, parts, config, closed))
            }
        }
    }

    /// As [`connect`](Deployment::connect), but connects when it is first needed.
    pub(super) fn lazy(url: &Url, config: &Config, counters: &Arc<Counters>, closed: &CancellationToken) -> Deployment {
        match Place::of(url, config, counters, closed) {
            Place::Cluster(cluster) => {
                cluster.start();
                Deployment::Cluster(cluster, config.pubsub)
            }
            Place::One(dial, parts) => {
                let (changes, reconnected) = counted();
                let node = Node::lazy(&dial, settings(config, Company::Any), &reconnected, closed);
                One::start(node, dial, changes, parts, config, closed)
            }
        }
    }

    pub(super) async fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> Result<(Answer, u8), Fault> {
        match self {
            Deployment::One(one) => one.node.replicated(script, part, wanted).await,
            Deployment::Cluster(cluster, _) => cluster.send(script, part, Way::Replicated(wanted)).await,
        }
    }

    /// The same without waiting for the reply.
    pub(super) fn submit(&self, request: PendingRequest) -> Option<Later> {
        match self {
            Deployment::One(one) => one.node.submit(request),
            Deployment::Cluster(cluster, _) => cluster.submit(request),
        }
    }

    /// Where servers tell it; `None` if they are not to tell it.
    pub(super) fn changed_keys(&self) -> Option<Arc<ChangedKeys>> {
        match self {
            Deployment::One(one) => one.changed.clone(),
            Deployment::Cluster(cluster, _) => cluster.changed_keys(),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Deployment::Cluster(..))
    }

    /// True if the URL names one address: a name or a balancer that may lead to another server after a failover.
    pub(super) fn is_behind_one_address(&self) -> bool {
        matches!(self, Deployment::One(one) if one.is_fixed)
    }

    pub(super) async fn ping(&self) -> Result<(), Fault> {
        match self {
            Deployment::One(one) => one.node.ping().await,
            Deployment::Cluster(cluster, _) => cluster.ping().await,
        }
    }

    /// The reason for which a request about `key` has no reply yet, with its server. `last` is the failure of its last attempt.
    pub(super) fn trouble(&self, key: &str, last: Option<Source>) -> Source {
        match self {
            Deployment::One(one) => one.node.trouble(key, last),
            Deployment::Cluster(cluster, _) => cluster.trouble(key, last),
        }
    }

    /// True if the server of `key` has given no reply for this long, or if a caller waits for a connection to it that cannot be opened.
    pub(super) fn is_unwell(&self, key: &str, late: Duration) -> bool {
        match self {
            Deployment::One(one) => one.node.is_unwell(late),
            Deployment::Cluster(cluster, _) => cluster.is_unwell(key, late),
        }
    }

    /// Counts up whenever a server may have lost keys: all of them, or some.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        match self {
            Deployment::One(one) => one.changes.subscribe(),
            Deployment::Cluster(cluster, _) => cluster.changes(),
        }
    }

    /// True if this may have happened to `key` since the count was `changes`.
    pub(super) fn changed_since(&self, key: &str, changes: u64) -> bool {
        match self {
            Deployment::One(one) => *one.changes.borrow() > changes,
            Deployment::Cluster(cluster, _) => cluster.changed_since(key, changes),
        }
    }

    /// Waits until the client knows which channels the servers have, for at most the command timeout. False if it does not know.
    pub(super) async fn knows_channels(&self) -> bool {
        match self {
            Deployment::Cluster(cluster, PubSub::Auto) => cluster.knows_channels().await,
            Deployment::One(_) | Deployment::Cluster(..) => true,
        }
    }

    /// The channels for messages about releases: sharded ones, classic ones, or none.
    pub(super) fn pubsub(&self) -> PubSub {
        match self {
            Deployment::One(One { pubsub: PubSub::Auto, .. }) => PubSub::Classic,
            Deployment::Cluster(cluster, PubSub::Auto) if cluster.is_sharded() => PubSub::Sharded,
            Deployment::Cluster(_, PubSub::Auto) => PubSub::Classic,
            Deployment::One(One { pubsub, .. }) | Deployment::Cluster(_, pubsub) => *pubsub,
        }
    }

    /// The line on which the messages of a channel arrive. Channels of one shard share a line; all classic channels share another.
    pub(super) fn line(&self, channel: &str) -> Line {
        match self {
            Deployment::Cluster(cluster, _) if self.pubsub() == PubSub::Sharded => {
                cluster.shard(channel).map_or(Line::None, Line::Shard)
            }
            _ => Line::Any,
        }
    }

    pub(super) fn dial(&self, line: &Line) -> Dialer {
        match (self, line) {
            (Deployment::One(one), _) => one.dial.clone(),
            (Deployment::Cluster(cluster, _), Line::Shard(address)) => cluster.dial_shard(address),
            (Deployment::Cluster(cluster, _), _) => cluster.dial_any(),
        }
    }

    /// True if `line` still leads to that server.
    pub(super) fn leads_to(&self, line: &Line, address: &Address) -> bool {
        match (self, line) {
            (Deployment::One(one), _) => one.node.links().all(|link| link.address() == address),
            (Deployment::Cluster(cluster, _), Line::Any) => cluster.has(address),
            (Deployment::Cluster(cluster, _), Line::Shard(shard)) => shard == address && cluster.has(address),
            (Deployment::Cluster(..), Line::None) => false,
        }
    }

    /// A server has redirected a request.
    pub(super) fn may_be_old(&self) {
        if let Deployment::Cluster(cluster, _) = self {
            cluster.may_be_old();
        }
    }

    /// A connection to each server that has keys.
    pub(super) async fn links(&self) -> Result<Vec<Arc<Link>>, Fault> {
        match self {
            Deployment::One(one) => Ok(vec![one.node.link().await?]),
            Deployment::Cluster(cluster, _) => cluster.links().await,
        }
    }

    /// A connection, for measurements.
    #[cfg(feature = "bench")]
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        match self {
            Deployment::One(one) => one.node.link().await,
            Deployment::Cluster(cluster, _) => cluster.link().await,
        }
    }
}

/// The connection on which the messages of a channel arrive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// None: the server of its slot is not known yet.
    None,
    /// A connection to any server.
    Any,
    /// A connection to the server of its slot.
    Shard(Address),
}

impl One {
    fn start(
        node: Node,
        dial: Dialer,
        changes: watch::Sender<u64>,
        OneParts { sentinels, changed }: OneParts,
        config: &Config,
        closed: &CancellationToken,
    ) -> Deployment {
        let (node, is_fixed) = (Arc::new(node), sentinels.is_none());
        if let Some(sentinels) = sentinels {
            let watched = Arc::clone(&node);
            let watching = lasting(move || Arc::clone(&sentinels).watch(Arc::clone(&watched)));
            tokio::spawn(closed.clone().run_until_cancelled_owned(watching));
        }
        Deployment::One(One { node, dial, changes, pubsub: config.pubsub, changed, is_fixed })
    }
}

/// The result of a URL and its settings.
enum Place {
    One(Dialer, OneParts),
    Cluster(Arc<Cluster>),
}

/// What one master needs beside its connections.
struct OneParts {
    /// Those that name it.
    sentinels: Option<Arc<Sentinels>>,
    changed: Option<Arc<ChangedKeys>>,
}

impl Place {
    fn of(url: &Url, config: &Config, counters: &Arc<Counters>, closed: &CancellationToken) -> Place {
        let (access, command_timeout) = (Access::new(url, config), config.command_timeout);
        let dialer = |locator: Arc<dyn Locator>| Dialer::new(locator, command_timeout, counters);
        let changed = access.changed_keys();
        match &url.shape {
            Shape::One(address) => {
                let fixed = Fixed { access, address: address.clone(), wants_master: true };
                Place::One(dialer(Arc::new(fixed)), OneParts { sentinels: None, changed })
            }
            Shape::Sentinel { sentinels, service, credentials } => {
                let sentinels = Arc::new(Sentinels {
                    access,
                    addresses: once_each(sentinels),
                    service: service.clone(),
                    credentials: credentials.clone(),
                    command_timeout,
                    counters: Arc::clone(counters),
                    master: watch::Sender::new(None),
                    reached: Mutex::default(),
                    looking: tokio::sync::Mutex::default(),
                });
                let dial = dialer(Arc::clone(&sentinels) as Arc<dyn Locator>);
                Place::One(dial, OneParts { sentinels: Some(sentinels), changed })
            }
            Shape::Cluster(seeds) => {
                let settings = settings(config, Company::OfOneSlot);
                Place::Cluster(Cluster::new(access, seeds.clone(), settings, counters, closed))
            }
        }
    }
}

/// One server was meant. A server of a cluster is refused unless it serves all keys.
async fn warn_of_cluster(link: &Link, prefix: &str) -> Result<(), Fault> {
    if is_cluster_with_all_keys(link, prefix).await? {
        conn_event!(warn, server = %link.address(),
            "the URL names one server, but this is a cluster, which serves all slots here; each request has the locks of one slot. \
             If the cluster may get more servers, use redis-cluster://");
    }
    Ok(())
}

fn settings(config: &Config, company: Company) -> NodeSettings {
    let Config { connections, command_timeout, confirmed, .. } = *config;
    NodeSettings { connections, command_timeout, company, confirmed }
}

/// A sentinel that the URL names twice has one vote.
fn once_each(sentinels: &[Address]) -> Vec<Address> {
    sentinels.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect()
}

/// A counter, and a function that increments it.
fn counted() -> (watch::Sender<u64>, Reconnected) {
    let changes = watch::Sender::new(0);
    let counted = changes.clone();
    (changes, Arc::new(move || counted.send_modify(|count| *count += 1)))
}
