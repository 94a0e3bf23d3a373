//! What one client has of a server in memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::watch, task::yield_now, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Arrived, Connected, MemoryServer, Mood, Subscribed};
use crate::{
    config::{Config, PubSub},
    redis::{
        fault::Fault,
        hub::Listener,
        script::{Answer, Part, Script},
    },
    stats::Counters,
};

#[derive(Debug)]
pub(in crate::redis) struct MemoryLink {
    server: MemoryServer,
    number: u64,
    connected: Arc<Connected>,
    command_timeout: Duration,
    pubsub: PubSub,
    counters: Arc<Counters>,
    closed: CancellationToken,
    runtime: Handle,
}

impl MemoryLink {
    pub(in crate::redis) fn new(
        server: &MemoryServer,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> MemoryLink {
        let connected = Arc::new(Connected { changes: watch::Sender::new(0) });
        server.state().links.push(Arc::downgrade(&connected));
        let pubsub = if config.pubsub == PubSub::Auto { PubSub::Classic } else { config.pubsub };
        MemoryLink {
            server: server.clone(),
            number: server.number(),
            connected,
            command_timeout: config.command_timeout,
            pubsub,
            counters: Arc::clone(counters),
            closed: closed.clone(),
            runtime: Handle::current(),
        }
    }

    /// The server has it when this is first polled: requests arrive in that order.
    pub(in crate::redis) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        if self.closed.is_cancelled() {
            return Err(Fault::Closed);
        }
        if part.is_recalled() {
            return Err(Fault::NotSent(super::super::source("it was recalled")));
        }
        self.counters.calls.up();
        self.counters.requests.up();
        let arrived = self.server.state().arrive(script, part);
        let told = match arrived {
            Arrived::Answered(answer) => {
                yield_now().await; // as with a real server, other tasks run until the reply is there
                return answer;
            }
            Arrived::Waits(told) => told,
        };
        let answered = async {
            tokio::select! {
                answer = timeout(self.command_timeout, told) => answer,
                () = self.closed.cancelled() => Ok(Ok(Err(Fault::Closed))),
            }
        };
        match answered.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::unknown("the server has restarted")),
            Err(_) => {
                self.counters.timeouts.up();
                Err(Fault::unknown(&format!("no reply within {:?}", self.command_timeout)))
            }
        }
    }

    pub(in crate::redis) async fn ping(&self) -> Result<(), Fault> {
        match &self.server.state().mood {
            Mood::Well => return Ok(()),
            Mood::Denying => {
                return Err(Fault::said("NOPERM User default has no permissions to run the 'ping' command"));
            }
            Mood::Frozen(_) => {}
        }
        tokio::time::sleep(self.command_timeout).await;
        Err(Fault::unknown(&format!("no reply within {:?}", self.command_timeout)))
    }

    pub(in crate::redis) fn changes(&self) -> &watch::Sender<u64> {
        &self.connected.changes
    }

    pub(in crate::redis) fn pubsub(&self) -> PubSub {
        self.pubsub
    }

    /// Subscribes; the listener is told when it is done. Returns the number of the subscription, and whether messages arrive.
    pub(in crate::redis) fn listen(&self, channel: &str, listener: Arc<dyn Listener>) -> (u64, Arc<AtomicBool>) {
        let (number, live) = (self.server.number(), Arc::<AtomicBool>::default());
        if self.pubsub == PubSub::Off {
            return (number, live);
        }
        let ear = Subscribed {
            listener,
            live: Arc::clone(&live),
            runtime: self.runtime.clone(),
            counters: Arc::clone(&self.counters),
        };
        let mut state = self.server.state();
        if !matches!(state.mood, Mood::Frozen(_)) {
            ear.subscribed();
        }
        self.counters.subscriptions.up();
        state.listening.insert((channel.to_owned(), self.number, number), ear);
        (number, live)
    }

    pub(in crate::redis) fn leave(&self, channel: &str, number: u64) {
        let ear = self.server.state().listening.remove(&(channel.to_owned(), self.number, number));
        // Dropped here, without the mutex: it may own the last of other subscriptions.
        ear.inspect(|_| self.counters.subscriptions.down());
    }

    pub(in crate::redis) fn hears(&self, channel: &str) -> bool {
        let state = self.server.state();
        let own = (channel.to_owned(), self.number, 0)..=(channel.to_owned(), self.number, u64::MAX);
        state.listening.range(own).any(|(_, ear)| ear.live.load(Ordering::Acquire))
    }
}
