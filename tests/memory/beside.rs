//! The same calls on a real server and in memory: the same results.

use fastrand::Rng;
use leasehold::{Builder, Client, Error, Guard, MemoryServer, Owner, RwState};
use tokio::time::sleep;

use crate::{
    HOUR,
    support::{Server, ms},
};

/// A step that a client and an owner take, on both servers alike.
#[derive(Debug, Clone, Copy)]
enum Step {
    TryLock,
    TryFenced,
    TryFair,
    TryRead,
    TryWrite,
    Unlock,
    Drop,
    Check,
    Extend,
    Inspect,
    InspectRw,
    Force,
    ForceRw,
    Waiters,
}

const STEPS: [Step; 14] = [
    Step::TryLock,
    Step::TryFenced,
    Step::TryFair,
    Step::TryRead,
    Step::TryWrite,
    Step::Unlock,
    Step::Drop,
    Step::Check,
    Step::Extend,
    Step::Inspect,
    Step::InspectRw,
    Step::Force,
    Step::ForceRw,
    Step::Waiters,
];

/// Whether readers of one client may share a hold on the server. They do if they come within some milliseconds, which depends on the
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readers {
    MayShare,
    AreAlone,
}

impl Readers {
    fn settings(self, builder: Builder) -> Builder {
        match self {
            Readers::MayShare => builder,
            Readers::AreAlone => builder.handovers(0),
        }
    }

    /// The number of holds that the server shows, as far as it is certain.
    fn count(self, readers: usize) -> String {
        match self {
            Readers::MayShare => "some".to_owned(),
            Readers::AreAlone => readers.to_string(),
        }
    }
}

/// One world: two clients with two owners each, and what they hold.
struct World {
    readers: Readers,
    clients: [Client; 2],
    owners: [[Owner; 2]; 2],
    held: Vec<(usize, usize, Guard)>,
}

fn said<T>(outcome: Result<T, Error>, how: impl FnOnce(T) -> String) -> String {
    match outcome {
        Ok(value) => how(value),
        Err(Error::Lost { reason, .. }) => format!("lost: {reason}"),
        Err(Error::Conflict { .. }) => "conflict".to_owned(),
        Err(Error::Upgrade { .. }) => "upgrade".to_owned(),
        Err(error) => format!("{error}"),
    }
}

impl World {
    fn new(readers: Readers, clients: [Client; 2]) -> World {
        World { readers, clients, owners: [(); 2].map(|()| [(); 2].map(|()| Owner::new())), held: Vec::new() }
    }

    async fn step(&mut self, step: Step, (client, owner): (usize, usize), name: &str) -> String {
        let (at, who) = (&self.clients[client], &self.owners[client][owner]);
        let taken = match step {
            Step::TryLock => at.lock(name).owner(who).try_lock().await,
            Step::TryFenced => at.fenced_lock(name).owner(who).try_lock().await.map(|guard| guard.map(Guard::from)),
            Step::TryFair => at.fair_lock(name).owner(who).try_lock().await,
            Step::TryRead => at.rw_lock(name).owner(who).try_read().await.map(|guard| guard.map(Guard::from)),
            Step::TryWrite => at.rw_lock(name).owner(who).try_write().await.map(|guard| guard.map(Guard::from)),
            other => return self.other(other, (client, owner), name).await,
        };
        said(taken, |guard| match guard {
            None => "none".to_owned(),
            Some(guard) => {
                let holds = guard.holds();
                self.held.push((client, owner, guard));
                format!("acquired {holds}")
            }
        })
    }

    /// A client that forced a lock open asks in the background what it still holds. What it says of its own guards depends on the time
    /// until it knows.
    async fn settle(&self, client: usize, name: &str) {
        for (of, _, guard) in &self.held {
            if (*of, guard.name()) == (client, name) {
                let _ = guard.check().await; // the steps that follow show the result
            }
        }
    }

    async fn other(&mut self, step: Step, (client, owner): (usize, usize), name: &str) -> String {
        let at = &self.clients[client];
        let holder = |found: leasehold::Holder| format!("{} left {}", found.holds, found.remaining.is_some());
        let own = self.held.iter().position(|(a, b, guard)| (*a, *b, guard.name()) == (client, owner, name));
        match (step, own) {
            (Step::Unlock, Some(own)) => said(self.held.remove(own).2.unlock().await, |()| "unlocked".to_owned()),
            (Step::Drop, Some(own)) => {
                drop(self.held.remove(own));
                while at.stats().now.releasing > 0 {
                    sleep(ms(1)).await;
                }
                "dropped".to_owned()
            }
            (Step::Check, Some(own)) => said(self.held[own].2.check().await, |()| "there".to_owned()),
            (Step::Extend, Some(own)) => said(self.held[own].2.extend(HOUR).await, |()| "extended".to_owned()),
            (Step::Inspect, _) => said(at.lock(name).inspect().await, |found| found.map_or("free".to_owned(), holder)),
            (Step::InspectRw, _) => said(at.rw_lock(name).inspect().await, |state| match state {
                RwState::Free => "free".to_owned(),
                RwState::Read(readers) => format!("{} read", self.readers.count(readers.len())),
                RwState::Write { readers, .. } => format!("written, {} read", readers.len()),
            }),
            (Step::Force, _) => {
                let forced = at.lock(name).force_unlock().await;
                self.settle(client, name).await;
                said(forced, |done| format!("forced {done}"))
            }
            (Step::ForceRw, _) => {
                let forced = at.rw_lock(name).force_unlock().await;
                self.settle(client, name).await;
                said(forced, |done| format!("forced {done}"))
            }
            (Step::Waiters, _) => said(at.fair_lock(name).waiters().await, |waiters| format!("{} wait", waiters.len())),
            _ => "nothing to do".to_owned(),
        }
    }
}

/// `MEMORY_CASES=10000 cargo test --test memory --features test-util` for more.
#[tokio::test]
async fn random_calls_have_the_same_results_on_a_real_server() {
    let cases = std::env::var("MEMORY_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(1_000);
    let (server, memory) = (Server::start(), MemoryServer::new());
    let mut random = Rng::with_seed(7);
    let (mut steps, mut acquired) = (0, 0);
    let mut worlds = Vec::new();
    for readers in [Readers::MayShare, Readers::AreAlone] {
        let real = || readers.settings(Client::builder().url(server.url())).connect();
        let real = [real().await, real().await].map(|client| client.expect("the private server replies"));
        let in_memory = || readers.settings(Client::builder()).connect_in_memory(&memory).expect("valid settings");
        worlds.push((readers, real, [in_memory(), in_memory()]));
    }
    for case in 0..cases {
        let (readers, real, in_memory) = &worlds[usize::from(case % 2 == 1)];
        let (mut one, mut other) = (World::new(*readers, real.clone()), World::new(*readers, in_memory.clone()));
        let name = format!("case-{case}");
        let kinds = [&STEPS[..], &STEPS[3..]][random.usize(..2)]; // half of them with more reading and writing
        let mut diary = Vec::new();
        for _ in 0..random.usize(2..12) {
            let (step, who) = (kinds[random.usize(..kinds.len())], (random.usize(..2), random.usize(..2)));
            let there = one.step(step, who, &name).await;
            let here = other.step(step, who, &name).await;
            diary.push(format!("{step:?} by {who:?}: {there}"));
            assert_eq!(here, there, "case {case}: {diary:#?}");
            (steps, acquired) = (steps + 1, acquired + u32::from(there.starts_with("acquired")));
        }
    }
    assert!(acquired > cases, "{acquired} of {steps} steps acquired a lock");
}
