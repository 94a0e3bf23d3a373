//! What one client has of a server in memory.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio::{sync::watch, task::yield_now};
use tokio_util::sync::CancellationToken;

use super::{MemoryServer, MemoryState, channels::Connected};
use crate::{
    config::{Config, PubSub},
    redis::{
        answer::Answer,
        fault::Fault,
        listener::Listener,
        script::{Part, Script},
        time_limit::TimeLimits,
    },
    stats::Counters,
};

#[derive(Debug)]
pub(in crate::redis) struct MemoryLink {
    server: MemoryServer,
    connected: Arc<Connected>,
    command_timeout: Duration,
    limits: TimeLimits,
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
            limits: TimeLimits::here(),
            pubsub,
            closed: closed.clone(),
        }
    }

    /// The server has it when this is first polled: requests arrive in that order.
    pub(in crate::redis) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        self.connected.counters.calls.up();
        self.connected.counters.requests.up();
        self.exchange(move |state| state.execute(script, &part)).await
    }

    pub(in crate::redis) async fn ping(&self) -> Result<(), Fault> {
        self.exchange(|state| state.permissions.check("ping")).await
    }

    /// The server does this work, and the client waits for the reply.
    async fn exchange<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut MemoryState) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        if self.closed.is_cancelled() {
            return Err(Fault::Closed);
        }
        let mut changes = self.connected.changes.subscribe();
        let replied = self.server.state().arrive(work);
        yield_now().await; // as with a real server, other tasks run until the reply is there
        let ended = async {
            tokio::select! {
                biased;
                reply = replied => reply.unwrap_or_else(|_| Err(Fault::unknown("the server has restarted"))),
                () = self.closed.cancelled() => Err(Fault::Closed),
                _ = changes.changed() => Err(Fault::unknown("the connection has ended")),
            }
        };
        self.limits.within(self.command_timeout, ended).await.unwrap_or_else(|| {
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
