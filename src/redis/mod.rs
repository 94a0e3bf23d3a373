//! Layer 1, the servers: sends requests, receives replies and messages. Knows nothing about locks.

mod answer;
mod changed_keys;
mod confirm;
#[cfg_attr(leasehold_explore, path = "../../tests/explore/conn.rs")]
mod conn;
mod denial;
#[cfg_attr(leasehold_explore, path = "../../tests/explore/deployment.rs")]
mod deployment;
mod fault;
mod gather;
mod hub;
mod keys;
mod listener;
#[cfg(feature = "test-util")]
mod memory;
mod node;
mod node_settings;
mod pending;
#[cfg(feature = "bench")]
mod raw;
mod reply_to;
mod script;
mod url;
mod window;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use answer::{Answer, Code};
pub(crate) use changed_keys::Keys as ChangedKeys;
pub(crate) use conn::spread;
#[cfg(not(leasehold_explore))]
pub(crate) use conn::{Asks, Link as ServerLink, RawReply};
#[cfg(not(leasehold_explore))]
pub(crate) use fault::source;
pub(crate) use fault::{Fault, Persistence, server_in};
pub(crate) use hub::Subscription;
pub(crate) use keys::{ASK_CHANNEL, ChannelName, LOCK_CHANNEL, prefixed};
pub(crate) use listener::Listener;
#[cfg(feature = "test-util")]
pub use memory::MemoryServer;
pub(crate) use pending::{Later, OnReply, PendingRequest, Urgency};
#[cfg(feature = "bench")]
pub(crate) use raw::Raw;
pub(crate) use script::{Part, PartBuilder, Script};
pub(crate) use url::Url;

use crate::{
    config::{Config, PubSub},
    error::Source,
    spawner::Spawner,
    stats::Counters,
};
use deployment::Deployment;
use hub::Hub;
use node::Node;
use reply_to::ReplyTo;

/// All servers of one URL, as the engine sees them.
#[derive(Debug)]
pub(crate) struct Redis {
    servers: Backend,
    runtime: Spawner,
    command_timeout: Duration,
}

#[derive(Debug)]
enum Backend {
    /// Real ones, and the messages from them.
    Deployed(Arc<Deployment>, Arc<Hub>),
    /// One in this process.
    #[cfg(feature = "test-util")]
    InMemory(Arc<memory::MemoryLink>),
}

/// The way in which a request is sent.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// As soon as that is efficient.
    Now,
    /// Confirmed by this number of replicas.
    Replicated(u8),
}

/// Returns the number of replicas that have the write, too.
async fn send(node: &Node, script: &'static Script, part: Part, way: Way) -> Result<(Answer, u8), Fault> {
    match way {
        Way::Now => node.request(script, part).await.map(|answer| (answer, 0)),
        Way::Replicated(wanted) => Box::pin(node.replicated(script, part, wanted)).await,
    }
}

impl Redis {
    /// Connects, so that a wrong address or password is reported at once. The connection for messages is opened when a caller first
    /// waits. `closed` ends all of it.
    pub(crate) async fn connect(
        url: &Url,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Result<Redis, Fault> {
        let deployment = Deployment::connect(url, config, counters, closed).await?;
        Ok(Redis::over(deployment, config, counters, closed))
    }

    /// As [`connect`](Redis::connect), but opens each connection when it is first needed.
    pub(crate) fn lazy(url: &Url, config: &Config, counters: &Arc<Counters>, closed: &CancellationToken) -> Redis {
        Redis::over(Deployment::lazy(url, config, counters, closed), config, counters, closed)
    }

    fn over(deployment: Deployment, config: &Config, counters: &Arc<Counters>, closed: &CancellationToken) -> Redis {
        let deployment = Arc::new(deployment);
        let hub = Hub::start(Arc::clone(&deployment), Arc::clone(counters), closed.clone());
        let (servers, command_timeout) = (Backend::Deployed(deployment, hub), config.command_timeout);
        Redis { servers, runtime: Spawner::here(), command_timeout }
    }

    /// A server in this process. Call it on the runtime of the client's tasks.
    #[cfg(feature = "test-util")]
    pub(crate) fn in_memory(
        server: &MemoryServer,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Redis {
        let link = memory::MemoryLink::new(server, config, counters, closed);
        let (servers, command_timeout) = (Backend::InMemory(Arc::new(link)), config.command_timeout);
        Redis { servers, runtime: Spawner::here(), command_timeout }
    }

    /// Checks that the servers reply on all connections for commands.
    pub(crate) async fn ping(&self) -> Result<(), Fault> {
        match &self.servers {
            Backend::Deployed(deployment, _) => {
                let deployment = Arc::clone(deployment);
                self.there(async move { deployment.ping().await }).await?
            }
            #[cfg(feature = "test-util")]
            Backend::InMemory(link) => link.ping().await,
        }
    }

    /// A connection to each server that has keys.
    #[cfg(not(leasehold_explore))]
    pub(crate) async fn servers(&self) -> Result<Vec<Arc<ServerLink>>, Fault> {
        match &self.servers {
            Backend::Deployed(deployment, _) => {
                let deployment = Arc::clone(deployment);
                self.there(async move { deployment.links().await }).await?
            }
            #[cfg(feature = "test-util")]
            Backend::InMemory(_) => Ok(Vec::new()),
        }
    }

    /// Sends one request. Requests about one key keep their order.
    pub(crate) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        let (request, answer) = PendingRequest::awaited(script, part);
        if let Some(later) = self.submit(request) {
            later.go();
        }
        answer.await.unwrap_or(Err(Fault::Abandoned))
    }

    /// The same without waiting for the reply. The caller may hold locks, so it does what this returns after they are unlocked.
    pub(crate) fn submit(&self, request: PendingRequest) -> Option<Later> {
        match &self.servers {
            Backend::Deployed(deployment, _) => deployment.submit(request),
            #[cfg(feature = "test-util")]
            Backend::InMemory(link) => Some(link.submit(request)),
        }
    }

    /// As [`request`](Self::request), then waits until `wanted` replicas have its writes. Returns their number, too. For a task of the client.
    pub(crate) async fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> Result<(Answer, u8), Fault> {
        match &self.servers {
            Backend::Deployed(deployment, _) => deployment.replicated(script, part, wanted).await,
            #[cfg(feature = "test-util")]
            Backend::InMemory(link) => link.request(script, part).await.map(|answer| (answer, 0)),
        }
    }

    /// Work that waits for connections, on the client's runtime: its timers bound that.
    async fn there<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, Fault> {
        let (reply, receiver) = ReplyTo::new();
        self.runtime.spawn(async move { reply.send(work.await) });
        receiver.await.map_err(|_| Fault::Abandoned)
    }

    /// The reason for which a request about `key` has no reply yet, with its server. `last` is the failure of its last attempt.
    pub(crate) fn trouble(&self, key: &str, last: Option<Source>) -> Source {
        match &self.servers {
            Backend::Deployed(deployment, _) => deployment.trouble(key, last),
            #[cfg(feature = "test-util")]
            Backend::InMemory(_) => last.unwrap_or_else(|| source("the server in memory has not replied")),
        }
    }

    /// True if the server of `key` has given no reply for this long, or if a caller waits for a connection to it that cannot be opened.
    pub(crate) fn is_unwell(&self, key: &str, late: Duration) -> bool {
        match &self.servers {
            Backend::Deployed(deployment, _) => deployment.is_unwell(key, late),
            #[cfg(feature = "test-util")]
            Backend::InMemory(_) => false,
        }
    }

    /// Counts up whenever a server may have lost some keys: after a reconnection, or when keys moved to another server.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        match &self.servers {
            Backend::Deployed(deployment, _) => deployment.changes(),
            #[cfg(feature = "test-util")]
            Backend::InMemory(link) => link.changes().subscribe(),
        }
    }

    /// True if this may have happened to `key` since the count was `changes`.
    pub(crate) fn changed_since(&self, key: &str, changes: u64) -> bool {
        match &self.servers {
            Backend::Deployed(deployment, _) => deployment.changed_since(key, changes),
            #[cfg(feature = "test-util")]
            Backend::InMemory(link) => *link.changes().borrow() > changes,
        }
    }

    /// Waits until a server tells that others have changed keys which this client reads on purpose. Cancel safe.
    pub(crate) async fn changed_keys(&self) -> ChangedKeys {
        let changed = match &self.servers {
            Backend::Deployed(deployment, _) => deployment.changed_keys(),
            #[cfg(feature = "test-util")]
            Backend::InMemory(_) => None,
        };
        match changed {
            Some(changed) => changed.next().await,
            None => std::future::pending().await,
        }
    }

    /// True if keys in different slots may be on different servers.
    pub(crate) fn is_cluster(&self) -> bool {
        match &self.servers {
            Backend::Deployed(deployment, _) => deployment.is_cluster(),
            #[cfg(feature = "test-util")]
            Backend::InMemory(_) => false,
        }
    }

    /// The longest time that the client waits for one reply.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// Waits until [`publish`](Redis::publish) is certain, for at most the command timeout. False if it is not.
    pub(crate) async fn knows_channels(&self) -> bool {
        match &self.servers {
            Backend::Deployed(deployment, _) => {
                let deployment = Arc::clone(deployment);
                self.there(async move { deployment.knows_channels().await }).await.unwrap_or(false)
            }
            #[cfg(feature = "test-util")]
            Backend::InMemory(_) => true,
        }
    }

    /// The command that scripts publish with; empty if they do not publish.
    pub(crate) fn publish(&self) -> &'static str {
        let pubsub = match &self.servers {
            Backend::Deployed(deployment, _) => deployment.pubsub(),
            #[cfg(feature = "test-util")]
            Backend::InMemory(link) => link.pubsub(),
        };
        match pubsub {
            PubSub::Sharded => "SPUBLISH",
            PubSub::Off => "",
            PubSub::Auto | PubSub::Classic => "PUBLISH",
        }
    }

    /// Subscribes to a channel until the subscription is dropped.
    pub(crate) fn listen(&self, channel: &str, listener: Arc<dyn Listener>) -> Subscription {
        match &self.servers {
            Backend::Deployed(_, hub) => hub.join(channel, listener),
            #[cfg(feature = "test-util")]
            Backend::InMemory(link) => Subscription::in_memory(link, channel, listener),
        }
    }

    /// True if messages on this channel reach this process, even if no listener is left.
    pub(crate) fn hears(&self, channel: &str) -> bool {
        match &self.servers {
            Backend::Deployed(_, hub) => hub.hears(channel),
            #[cfg(feature = "test-util")]
            Backend::InMemory(link) => link.hears(channel),
        }
    }
}
