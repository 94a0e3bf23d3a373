//! One server as we talk to it: its connections for commands, over which keys are spread.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::Duration,
};

use futures_util::future::{select_all, try_join_all};
use tokio_util::sync::CancellationToken;

use super::{
    conn::{Conn, Dialer, Link, Reconnected},
    fault::Fault,
    gather::{Company, Dispatcher},
    script::{Answer, Part, Script},
};
use crate::config::Confirmed;

/// One server.
#[derive(Debug)]
pub(super) struct Node {
    dispatchers: Box<[Arc<Dispatcher>]>,
}

/// How to talk to a server.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeSettings {
    pub(super) connections: usize,
    pub(super) command_timeout: Duration,
    pub(super) company: Company,
    pub(super) confirmed: Confirmed,
}

impl Node {
    /// Connects every connection, so that a wrong address or password is known at once.
    pub(super) async fn connect(
        dial: &Dialer,
        settings: NodeSettings,
        reconnected: &Reconnected,
        closed: &CancellationToken,
    ) -> Result<Node, Fault> {
        let mut conns = Vec::with_capacity(settings.connections);
        for _ in 0..settings.connections {
            conns.push(Conn::open(dial, reconnected, closed).await?);
        }
        Ok(Node::over(conns, settings, closed))
    }

    /// The same, but each connection is opened when it is first needed.
    pub(super) fn lazy(
        dial: &Dialer,
        settings: NodeSettings,
        reconnected: &Reconnected,
        closed: &CancellationToken,
    ) -> Node {
        let conns = (0..settings.connections).map(|_| Conn::lazy(dial, reconnected, closed)).collect();
        Node::over(conns, settings, closed)
    }

    fn over(conns: Vec<Conn>, settings: NodeSettings, closed: &CancellationToken) -> Node {
        let start = |conn| Dispatcher::start(conn, settings, closed);
        Node { dispatchers: conns.into_iter().map(start).collect() }
    }

    /// Sends one request. One key always travels on the same connection, so that its requests keep their order.
    pub(super) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        self.dispatcher(part.key()).request(script, part).await
    }

    /// Sends one request that is in no hurry, in one call with others like it.
    pub(super) async fn request_gathered(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        self.dispatcher(part.key()).request_gathered(script, &part).await
    }

    /// Sends one request, then waits until `wanted` replicas have it; with their number.
    pub(super) async fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> Result<(Answer, u8), Fault> {
        self.dispatcher(part.key()).replicated(script, part, wanted).await
    }

    /// Whether the server answers on all connections.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        try_join_all(self.dispatchers.iter().map(|dispatcher| dispatcher.ping())).await.map(drop)
    }

    /// The first connection, bare.
    #[cfg(feature = "bench")]
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        self.dispatchers[0].link().await
    }

    /// Resolves when somebody has needed a connection.
    pub(super) async fn needed(&self) {
        select_all(self.dispatchers.iter().map(|dispatcher| Box::pin(dispatcher.needed()))).await;
    }

    /// The links of the moment, those of them that live.
    pub(super) fn links(&self) -> impl Iterator<Item = Arc<Link>> + '_ {
        self.dispatchers.iter().filter_map(|dispatcher| dispatcher.link_now())
    }

    /// Whether somebody waits for a connection in vain, or one has been silent for so long although it was asked.
    pub(super) fn is_unwell(&self, late: Duration) -> bool {
        self.dispatchers.iter().any(|dispatcher| dispatcher.is_unwell(late))
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
