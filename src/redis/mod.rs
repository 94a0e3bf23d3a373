//! Layer 1, the server: requests out, answers and messages in. Knows nothing of locks.

#[cfg_attr(leasehold_explore, path = "../../tests/explore/conn.rs")]
mod conn;
mod fault;
mod gather;
mod hub;
mod keys;
#[cfg(feature = "bench")]
mod raw;
mod script;

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::Duration,
};

use futures_util::future::{BoxFuture, try_join_all};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use conn::{Target, spread};
pub(crate) use fault::Fault;
pub(crate) use hub::{Listener, Subscription};
pub(crate) use keys::{LOCK_CHANNEL, prefixed};
#[cfg(feature = "bench")]
pub(crate) use raw::Raw;
pub(crate) use script::{Answer, Code, Part, PartBuilder, Recall, Script, Word};

use crate::{config::Config, stats::Counters};
use conn::Conn;
use gather::Dispatcher;
use hub::Hub;

/// How locks publish. Sharded channels are for clusters only, where this will be decided per deployment.
pub(crate) const PUBLISH: &str = "PUBLISH";

/// One server (or deployment) as the engine sees it.
#[derive(Debug)]
pub(crate) struct Redis {
    dispatchers: Box<[Arc<Dispatcher>]>,
    generation: watch::Sender<u64>,
    hub: Arc<Hub>,
    command_timeout: Duration,
}

impl Redis {
    /// Connects every command connection, so that a wrong address or password is known at once. The subscriber
    /// connection is opened when somebody first waits. All of it ends with `closed`.
    pub(crate) async fn connect(
        target: &Arc<Target>,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Result<Redis, Fault> {
        let generation = watch::Sender::new(0);
        let mut conns = Vec::with_capacity(config.connections);
        for _ in 0..config.connections {
            conns.push(Conn::open(target, config.command_timeout, counters, generation.clone(), closed).await?);
        }
        Ok(Redis::over(conns, generation, target, config, counters, closed))
    }

    /// The same, but each connection is opened when it is first needed.
    pub(crate) fn lazy(
        target: &Arc<Target>,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Redis {
        let generation = watch::Sender::new(0);
        let lazy = |_| Conn::lazy(target, config.command_timeout, counters, generation.clone(), closed);
        let conns = (0..config.connections).map(lazy).collect();
        Redis::over(conns, generation, target, config, counters, closed)
    }

    fn over(
        conns: Vec<Conn>,
        generation: watch::Sender<u64>,
        target: &Arc<Target>,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Redis {
        let command_timeout = config.command_timeout;
        let dispatchers = conns.into_iter().map(|conn| Dispatcher::start(conn, command_timeout, closed)).collect();
        let hub = Hub::start(Arc::clone(target), command_timeout, Arc::clone(counters), closed.clone());
        Redis { dispatchers, generation, hub, command_timeout }
    }

    /// Whether the server answers on all command connections.
    pub(crate) async fn ping(&self) -> Result<(), Fault> {
        try_join_all(self.dispatchers.iter().map(|dispatcher| dispatcher.ping())).await.map(drop)
    }

    /// Sends one request. One key always travels on the same connection, so that its requests keep their order.
    pub(crate) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        self.dispatcher(part.key()).request(script, part).await
    }

    /// Sends one request that is in no hurry, in one call with others like it.
    pub(crate) async fn request_gathered(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        self.dispatcher(part.key()).request_gathered(script, &part).await
    }

    /// Like [`request`](Self::request), then waits until `wanted` replicas have it; with their number.
    pub(crate) fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> BoxFuture<'_, Result<(Answer, u8), Fault>> {
        let dispatcher = self.dispatcher(part.key());
        Box::pin(dispatcher.replicated(script, part, wanted))
    }

    /// Changes its value whenever a connection has been replaced: what the server knew may be gone.
    pub(crate) fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// How long one request may take.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// Listens on a channel until the subscription is dropped.
    pub(crate) fn listen(&self, channel: &str, listener: Arc<dyn Listener>) -> Subscription {
        self.hub.join(channel, listener)
    }

    /// Whether what is published there reaches this process, whether or not anybody listens.
    pub(crate) fn hears(&self, channel: &str) -> bool {
        self.hub.hears(channel)
    }

    fn dispatcher(&self, key: &str) -> &Arc<Dispatcher> {
        if let [only] = &*self.dispatchers {
            return only;
        }
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(key);
        let count = u64::try_from(self.dispatchers.len()).expect("few connections");
        &self.dispatchers[usize::try_from(hash % count).expect("smaller than the count")]
    }
}
