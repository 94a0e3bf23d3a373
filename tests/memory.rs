//! The server in memory: it behaves as a real one, and time passes as the test says.

#![cfg(feature = "test-util")]

#[allow(dead_code)]
mod support;

use std::time::Duration;

use fastrand::Rng;
use leasehold::{Client, Error, Guard, Lost, MemoryServer, Owner, RwState};
use support::{Server, ms};
use tokio::time::{Instant, advance, sleep, timeout};

const HOUR: Duration = Duration::from_secs(3_600);

fn two() -> (MemoryServer, Client, Client) {
    let server = MemoryServer::new();
    let [one, other] = [(); 2].map(|()| Client::in_memory(&server).expect("valid settings"));
    (server, one, other)
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_renews_for_an_hour_in_no_time() {
    let (_server, client, other) = two();
    let guard = client.mutex("ledger").lock().await.expect("it is free");
    sleep(HOUR).await;
    assert!(!guard.is_lost() && guard.remaining() > Duration::from_secs(15));
    assert!(other.mutex("ledger").try_lock().await.expect("it replies").is_none());
    assert!(client.stats().total.renewals > 100);
    guard.unlock().await.expect("held");
    assert!(other.mutex("ledger").try_lock().await.expect("it replies").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_at_its_time() {
    let (_server, client, other) = two();
    let started = Instant::now();
    let guard = client.mutex("ledger").lease(Duration::from_secs(20)).lock().await.expect("it is free");
    let next = other.mutex("ledger").lock().await.expect("it replies");
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(20) && took < Duration::from_secs(21), "{took:?}");
    assert_eq!(guard.lost().await, Lost::Expired);
    assert!(matches!(guard.unlock().await, Err(Error::Lost { .. })));
    next.unlock().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_a_waiter_of_another_client() {
    let (_server, client, other) = two();
    let guard = client.mutex("ledger").lock().await.expect("it is free");
    let waiting = tokio::spawn(other.mutex("ledger").into_future());
    sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    guard.unlock().await.expect("held");
    waiting.await.expect("no panic").expect("it is free now").unlock().await.expect("held");
    assert!(started.elapsed() < ms(50), "by message, not by time: {:?}", started.elapsed());
    assert_eq!(other.stats().total.woken, 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_for_and_then_an_error() {
    let (server, client, _) = two();
    let guard = client.mutex("held").lock().await.expect("it is free");
    server.freeze();
    let waiting = tokio::spawn(client.mutex("ledger").into_future());
    sleep(Duration::from_secs(10)).await;
    server.thaw();
    waiting.await.expect("no panic").expect("it rode out the outage").unlock().await.expect("held");
    server.freeze();
    let started = Instant::now();
    let outcome = client.mutex("ledger").lock().await;
    assert!(outcome.is_err_and(|error| error.is_unavailable()));
    assert!(started.elapsed() >= Duration::from_secs(30), "outage_timeout: {:?}", started.elapsed());
    assert_eq!(guard.lost().await, Lost::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_restart_loses_all_and_holders_hear_of_it() {
    let (server, client, other) = two();
    let guard = client.mutex("ledger").lock().await.expect("it is free");
    server.restart();
    let lost = timeout(Duration::from_secs(1), guard.lost()).await;
    assert_eq!(lost, Ok(Lost::Removed), "without waiting for the next renewal");
    assert!(other.mutex("ledger").try_lock().await.expect("it replies").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_forgotten_is_lost_at_the_next_renewal() {
    let (server, client, _) = two();
    let guard = client.mutex("ledger").lock().await.expect("it is free");
    assert_eq!(server.keys(), ["ledger"]);
    assert!(server.forget("ledger") && !server.forget("ledger"));
    assert!(timeout(Duration::from_secs(11), guard.lost()).await.is_ok_and(|lost| lost == Lost::Removed));
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_takes_nothing_twice() {
    let (server, client, other) = two();
    for lost in 1..4 {
        server.lose_replies(lost);
        let guard = client.fenced_lock("ledger").lock().await.expect("it sends the request again");
        assert_eq!(client.fenced_lock("ledger").inspect().await.expect("it replies").expect("held").holds, 1);
        server.lose_replies(lost);
        guard.unlock().await.expect("held");
        assert!(!other.mutex("ledger").is_locked().await.expect("it replies"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_an_error_that_says_so() {
    let (server, client, _) = two();
    server.deny();
    assert!(matches!(client.mutex("ledger").try_lock().await, Err(Error::Denied { .. })));
    server.thaw();
    client.mutex("ledger").try_lock().await.expect("it replies").expect("it is free").unlock().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn time_passes_only_if_the_test_says_so() {
    let (_server, client, _) = two();
    let guard = client.mutex("ledger").lease(HOUR).lock().await.expect("it is free");
    let before = guard.remaining();
    std::thread::sleep(ms(20));
    assert_eq!(guard.remaining(), before);
    advance(HOUR / 2).await;
    assert!(guard.remaining() <= before / 2 + ms(1));
}

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

/// One world: two clients with two owners each, and what they hold.
struct World {
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
    fn new(clients: [Client; 2]) -> World {
        World { clients, owners: [(); 2].map(|()| [(); 2].map(|()| Owner::new())), held: Vec::new() }
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
                RwState::Read(readers) => format!("{} read", readers.len()),
                RwState::Write { readers, .. } => format!("written, {} read", readers.len()),
            }),
            (Step::Force, _) => said(at.lock(name).force_unlock().await, |done| format!("forced {done}")),
            (Step::ForceRw, _) => said(at.rw_lock(name).force_unlock().await, |done| format!("forced {done}")),
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
    let real = [Client::connect(&server.url()).await, Client::connect(&server.url()).await];
    let real = real.map(|client| client.expect("the private server replies"));
    let in_memory = [(); 2].map(|()| Client::in_memory(&memory).expect("valid settings"));
    for case in 0..cases {
        let (mut one, mut other) = (World::new(real.clone()), World::new(in_memory.clone()));
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
