//! Layer 1, the server: requests out, answers and messages in. Knows nothing of locks.

#[cfg_attr(leasehold_explore, path = "../../tests/explore/conn.rs")]
mod conn;
mod fault;
mod gather;
mod hub;
mod keys;
mod script;

use std::{
    future::Future,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use conn::{Target, spread};
pub(crate) use fault::Fault;
pub(crate) use hub::{Bell, Listener};
pub(crate) use keys::{LOCK_CHANNEL, prefixed};
pub(crate) use script::{Answer, Code, Part, Script, Word};

use crate::{config::Config, stats::Counters};
use conn::{Conn, Link};
use gather::Line;
use hub::Hub;

/// How locks publish. Sharded channels are for clusters only, where this will be decided per deployment.
pub(crate) const PUBLISH: &str = "PUBLISH";

/// One server (or deployment) as the engine sees it.
#[derive(Debug)]
pub(crate) struct Redis {
    lines: Box<[Arc<Line>]>,
    generation: watch::Sender<u64>,
    hub: Arc<Hub>,
    patience: Duration,
}

impl Redis {
    /// Connects every command connection, so that a wrong address or password is known at once. The subscriber
    /// connection is opened when somebody first waits. All of it ends with `closed`.
    pub(crate) async fn connect(
        target: Arc<Target>,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Result<Redis, Fault> {
        let generation = watch::Sender::new(0);
        let mut lines = Vec::with_capacity(config.connections);
        for _ in 0..config.connections {
            let conn = Conn::open(&target, config.command_timeout, counters, generation.clone(), closed).await?;
            lines.push(Line::start(conn, config.command_timeout, closed));
        }
        let hub = Hub::start(target, config.command_timeout, Arc::clone(counters), closed.clone());
        Ok(Redis { lines: lines.into(), generation, hub, patience: config.command_timeout })
    }

    /// Sends one request. One key always travels on the same connection, so that its requests keep their order.
    pub(crate) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        self.line(part.key()).request(script, part).await
    }

    /// Sends one request that is in no hurry, in one call with others like it.
    pub(crate) async fn request_gathered(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        self.line(part.key()).request_gathered(script, &part).await
    }

    /// Like [`request`](Self::request), then waits until `wanted` replicas have it; with their number.
    pub(crate) fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> BoxFuture<'_, Result<(Answer, u8), Fault>> {
        let line = self.line(part.key());
        Box::pin(line.replicated(script, part, wanted))
    }

    /// Changes its value whenever a connection has been replaced: what the server knew may be gone.
    pub(crate) fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// How long one request may take.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Listens on a channel until the bell is dropped.
    pub(crate) fn listen(&self, channel: &str, listener: Arc<dyn Listener>) -> Bell {
        self.hub.join(channel, listener)
    }

    /// Whether what is published there reaches this process, whether or not anybody listens.
    pub(crate) fn hears(&self, channel: &str) -> bool {
        self.hub.hears(channel)
    }

    /// A script on the bare first connection, to measure what the rest costs.
    pub(crate) async fn raw(&self, source: &str) -> Result<Raw, Fault> {
        let link = self.lines[0].link().await?;
        let sha = link.load_source(source).await?;
        Ok(Raw { link, sha })
    }

    fn line(&self, key: &str) -> &Arc<Line> {
        if let [only] = &*self.lines {
            return only;
        }
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(key);
        let count = u64::try_from(self.lines.len()).expect("few connections");
        &self.lines[usize::try_from(hash % count).expect("smaller than the count")]
    }
}

/// See [`Redis::raw`].
#[derive(Debug)]
pub(crate) struct Raw {
    link: Arc<Link>,
    sha: String,
}

impl Raw {
    pub(crate) fn call(&self, keys: Vec<String>, args: Vec<String>) -> impl Future<Output = Result<(), Fault>> + Send {
        self.link.raw(&self.sha, keys, args)
    }
}
