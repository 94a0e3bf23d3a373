//! A server, the living of both sides, and the one that will be killed.

use std::time::Duration;

use leasehold::Client;

use crate::{
    SOON,
    jvm::Jvm,
    sides::{Kind, Side},
    support::{Server, client, ms, plain, until},
    workers::Worker,
};

/// The victim's leases.
pub(super) const SHORT: Duration = ms(2_000);
/// Those of the JVM that lives.
pub(super) const LIVING: Duration = ms(6_000);

pub(super) struct Scene {
    pub(super) server: Server,
    pub(super) client: Client,
    /// Renews as often as the victim, as docs/migration.md advises those who read beside JVMs with short leases.
    pub(super) reader: Client,
    pub(super) jvm: Jvm,
    pub(super) victim: Option<Victim>,
}

/// Takes locks until it is killed.
pub(super) enum Victim {
    Redisson(Jvm),
    /// A process for each lock.
    Leasehold(Vec<Worker>),
}

impl Scene {
    pub(super) async fn start(victim: impl AsyncFnOnce(&Server) -> Victim) -> Scene {
        let server = Server::start();
        let reader = client(&server, |builder| builder.watchdog(SHORT));
        let (client, reader, jvm) = tokio::join!(plain(&server), reader, Jvm::with_watchdog(&server, LIVING));
        let victim = Some(victim(&server).await);
        Scene { server, client, reader, jvm, victim }
    }

    pub(super) fn sides(&self) -> [Side<'_>; 2] {
        [Side::Redisson(&self.jvm), Side::Leasehold(&self.client)]
    }
}

impl Victim {
    pub(super) async fn redisson(server: &Server) -> Victim {
        Victim::Redisson(Jvm::with_watchdog(server, SHORT).await)
    }

    pub(super) async fn leasehold(_: &Server) -> Victim {
        Victim::Leasehold(Vec::new())
    }

    fn take(&mut self, server: &Server, kind: Kind, name: &str) {
        match self {
            Victim::Redisson(jvm) => drop(jvm.ask(jvm.thread(), &format!("lock:{kind} {name} -1"))),
            Victim::Leasehold(workers) => {
                let (kind, lease) = (kind.to_string(), SHORT.as_millis().to_string());
                workers.push(Worker::start(&["hold", &kind, &server.url(), name, &lease]));
            }
        }
    }

    pub(super) async fn has(&mut self, server: &Server, kind: Kind, name: &str) {
        let before = fields(server, name);
        self.take(server, kind, name);
        until("the victim to hold the lock", 10 * SOON, || fields(server, name) > before).await;
    }

    pub(super) async fn waits(&mut self, server: &Server, kind: Kind, name: &str) {
        kind.one_more_waits(server, name, || self.take(server, kind, name)).await;
    }

    pub(super) fn kill(self) {
        match self {
            Victim::Redisson(mut jvm) => jvm.kill(),
            Victim::Leasehold(workers) => drop(workers), // which kills them
        }
    }
}

/// One for each that has it, and of a read-write lock one more.
fn fields(server: &Server, name: &str) -> usize {
    server.ask(&["HLEN", name])
}
