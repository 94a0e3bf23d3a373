//! One server: its connections for commands, over which keys are distributed.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::Duration,
};

use futures_util::future::{select_all, try_join_all};
use tokio_util::sync::CancellationToken;

use super::{
    answer::Answer,
    conn::{Conn, Dialer, Link, Reconnected},
    fault::Fault,
    gather::Dispatcher,
    node_settings::NodeSettings,
    pending::{Later, PendingRequest},
    script::{Part, Script},
};
use crate::error::Source;

/// One server.
#[derive(Debug)]
pub(super) struct Node {
    dispatchers: Box<[Arc<Dispatcher>]>,
}

impl Node {
    /// Opens all connections, so that a wrong address or password is reported at once.
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

    /// As [`connect`](Node::connect), but opens each connection when it is first needed.
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

    /// Sends one request. Requests about one key always use the same connection, so they keep their order.
    pub(super) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        self.dispatcher(part.key()).request(script, part).await
    }

    /// The same without waiting for the reply.
    pub(super) fn submit(&self, request: PendingRequest) -> Option<Later> {
        self.dispatcher(request.part.key()).submit(request)
    }

    /// Sends one request, then waits until `wanted` replicas have its writes. Returns their number, too.
    pub(super) async fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> Result<(Answer, u8), Fault> {
        self.dispatcher(part.key()).replicated(script, part, wanted).await
    }

    /// Checks that the server replies on all connections.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        try_join_all(self.dispatchers.iter().map(|dispatcher| dispatcher.ping())).await.map(drop)
    }

    /// The first connection.
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        self.dispatchers[0].link().await
    }

    /// Resolves when a caller has needed a connection.
    pub(super) async fn needed(&self) {
        select_all(self.dispatchers.iter().map(|dispatcher| Box::pin(dispatcher.needed()))).await;
    }

    /// The present links that are alive.
    pub(super) fn links(&self) -> impl Iterator<Item = Arc<Link>> + '_ {
        self.dispatchers.iter().filter_map(|dispatcher| dispatcher.link_now())
    }

    /// The reason for which a request about `key` has no reply yet. `last` is the failure of its last attempt.
    pub(super) fn trouble(&self, key: &str, last: Option<Source>) -> Source {
        self.dispatcher(key).trouble(last)
    }

    /// True if a caller waits for a connection that cannot be opened, or if a connection has given no reply for this long.
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
