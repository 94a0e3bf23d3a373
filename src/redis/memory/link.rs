//! What one client has of a server in memory.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio::{
    sync::{oneshot, watch},
    task::yield_now,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{MemoryServer, MemoryState, channels::Connected};
use crate::{
    config::{Config, PubSub},
    redis::{
        answer::Answer,
        fault::Fault,
        listener::Listener,
        pending::{Later, PendingRequest},
        script::{Part, Script},
    },
    spawner::Spawner,
    stats::Counters,
};

#[derive(Debug)]
pub(in crate::redis) struct MemoryLink {
    server: MemoryServer,
    connected: Arc<Connected>,
    command_timeout: Duration,
    runtime: Spawner,
    pubsub: PubSub,
    closed: CancellationToken,
}

impl MemoryLink {
    /// Call it on the runtime of the client's tasks.
    pub(in crate::redis) fn new(
        server: &MemoryServer,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> MemoryLink {
        let connected = Arc::new(Connected::new(server.number(), counters));
        server.state().connect(&connected);
        let pubsub = if config.pubsub == PubSub::Auto { PubSub::Classic } else { config.pubsub };
        MemoryLink {
            server: server.clone(),
            connected,
            command_timeout: config.command_timeout,
            runtime: Spawner::here(),
            pubsub,
            closed: closed.clone(),
        }
    }

    /// The server has it when this returns: requests arrive in that order.
    pub(in crate::redis) fn request(
        self: &Arc<Self>,
        script: &'static Script,
        part: Part,
    ) -> impl Future<Output = Result<Answer, Fault>> + Send + 'static {
        self.connected.counters.calls.up();
        self.connected.counters.requests.up();
        self.exchange(move |state| state.execute(script, &part))
    }

    /// The same without waiting.
    pub(in crate::redis) fn submit(self: &Arc<Self>, request: PendingRequest) -> Later {
        let answer = self.request(request.script, request.part.clone());
        Later::task(&self.runtime, async move { request.end(answer.await) })
    }

    pub(in crate::redis) async fn ping(self: &Arc<Self>) -> Result<(), Fault> {
        self.exchange(|state| state.permissions.check("ping")).await
    }

    /// The server does this work, and the client waits for the reply.
    fn exchange<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut MemoryState) -> Result<T, Fault> + Send + 'static,
    ) -> impl Future<Output = Result<T, Fault>> + Send + 'static {
        let changes = self.connected.changes.subscribe();
        let replied = (!self.closed.is_cancelled()).then(|| self.server.state().arrive(work));
        let link = Arc::clone(self);
        async move { link.replied(replied.ok_or(Fault::Closed)?, changes).await }
    }

    async fn replied<T>(
        &self,
        replied: oneshot::Receiver<Result<T, Fault>>,
        mut changes: watch::Receiver<u64>,
    ) -> Result<T, Fault> {
        yield_now().await; // as with a real server, other tasks run until the reply is there
        let ended = async {
            tokio::select! {
                biased;
                reply = replied => reply.unwrap_or_else(|_| Err(Fault::unknown("the server has restarted"))),
                () = self.closed.cancelled() => Err(Fault::Closed),
                _ = changes.changed() => Err(Fault::unknown("the connection has ended")),
            }
        };
        timeout(self.command_timeout, ended).await.unwrap_or_else(|_| {
            self.connected.counters.timeouts.up();
            Err(Fault::unknown(&format!("no reply within {:?}", self.command_timeout)))
        })
    }

    pub(in crate::redis) fn changes(&self) -> &watch::Sender<u64> {
        &self.connected.changes
    }

    pub(in crate::redis) fn pubsub(&self) -> PubSub {
        self.pubsub
    }

    /// Subscribes; the listener is notified when that is done. Returns the number of the subscription, and whether messages arrive.
    pub(in crate::redis) fn listen(&self, channel: &str, listener: Arc<dyn Listener>) -> (u64, Arc<AtomicBool>) {
        let number = self.server.number();
        if self.pubsub == PubSub::Off {
            return (number, Arc::default());
        }
        let state = self.server.state();
        let live = state.data().channels.listen((channel, &self.connected), (number, listener), state.reception());
        (number, live)
    }

    pub(in crate::redis) fn leave(&self, channel: &str, number: u64) {
        let left = self.server.state().data().channels.leave(channel, self.connected.number, number);
        drop(left); // without the server's lock
    }

    pub(in crate::redis) fn hears(&self, channel: &str) -> bool {
        self.server.state().data().channels.hears(channel, self.connected.number)
    }
}
