//! The server stands still for longer than the leases.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Guard, Lost};
use serial_test::serial;
use tokio::{task::JoinHandle, time::sleep};

use crate::support::{Server, Stopwatch, client, ms, until, within};

const LEASE: Duration = ms(3_000);
const FROZEN: Duration = ms(10_000);
/// Names that are worked on by six tasks each, and names that are held all the time.
const NAMES: usize = 6;
const HELD: usize = 20;
/// What a busy machine may need to run a task that has been woken.
const LATE: Duration = ms(100);

/// What the workers of all clients have in common: who is certain to hold each name, and how many turns there were.
#[derive(Default)]
struct Watch {
    certain: [Mutex<Option<Arc<Guard>>>; NAMES],
    turns: [AtomicU64; NAMES],
    lost: AtomicU64,
}

impl Watch {
    /// Nobody who was granted the lock before may still be certain of it.
    fn enter(&self, name: usize, guard: &Arc<Guard>) {
        let mut certain = self.certain[name].lock().unwrap_or_else(PoisonError::into_inner);
        let before = certain.replace(Arc::clone(guard));
        assert!(before.is_none_or(|before| before.is_lost()), "lock-{name} was granted beside a certain holder");
        self.turns[name].fetch_add(1, Ordering::Relaxed);
    }

    /// Certain until here. The next holder may have come already if this one was lost.
    fn leave(&self, name: usize, guard: &Arc<Guard>) {
        let mut certain = self.certain[name].lock().unwrap_or_else(PoisonError::into_inner);
        if certain.as_ref().is_some_and(|holder| Arc::ptr_eq(holder, guard)) {
            *certain = None;
        }
    }

    fn turns(&self) -> [u64; NAMES] {
        std::array::from_fn(|name| self.turns[name].load(Ordering::Relaxed))
    }
}

/// Takes a name again and again, for ten milliseconds or until the lock is lost.
async fn work(client: Client, name: usize, watch: Arc<Watch>) {
    loop {
        let guard = Arc::new(client.lock(&format!("lock-{name}")).lock().await.expect("it rides out the outage"));
        watch.enter(name, &guard);
        tokio::select! {
            () = sleep(ms(10)) => {}
            _ = guard.lost() => {}
        }
        watch.leave(name, &guard);
        let guard = Arc::try_unwrap(guard).expect("nobody else has it now");
        match guard.unlock().await {
            Ok(()) => {}
            // The lease may have expired before the release reached the server.
            Err(Error::Lost { .. } | Error::Unavailable { .. }) => _ = watch.lost.fetch_add(1, Ordering::Relaxed),
            Err(error) => panic!("{error}"),
        }
    }
}

/// When a holder is told, and how.
fn told(guard: Guard) -> JoinHandle<(Guard, Lost, Stopwatch)> {
    tokio::spawn(async move {
        let lost = guard.lost().await;
        (guard, lost, Stopwatch::start())
    })
}

/// Freezes the server. With the ends of the held leases as the server has them: from the moment they are read on it answers
/// nobody, so nothing is renewed in between.
async fn freeze(server: &Server) -> Vec<Instant> {
    let (mut raw, mut look) = (server.raw(), redis::pipe());
    look.atomic().cmd("CLIENT").arg("PAUSE").arg(FROZEN.as_millis() as u64 / 2).ignore();
    (0..HELD).for_each(|n| _ = look.cmd("PTTL").arg(format!("held-{n}")));
    let left: Vec<u64> = look.query(&mut raw).expect("held");
    let now = Instant::now(); // later than they were read, so no end is too early
    server.freeze();
    sleep(ms(50)).await; // replies under way arrive
    left.into_iter().map(|left| now + ms(left)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
async fn for_ten_seconds_with_a_lease_of_three() {
    let server = Server::start();
    let clients = [client(&server, |b| b.watchdog(LEASE)).await, client(&server, |b| b.watchdog(LEASE)).await];
    let watch = Arc::new(Watch::default());
    let workers: Vec<_> =
        (0..NAMES * 6).map(|n| tokio::spawn(work(clients[n % 2].clone(), n / 6, Arc::clone(&watch)))).collect();
    let mut guards = Vec::new();
    for n in 0..HELD {
        guards.push(clients[n % 2].lock(&format!("held-{n}")).lock().await.expect("free"));
    }
    until("work in all names", ms(5_000), || watch.turns().iter().all(|turns| *turns > 20)).await;

    let ends = freeze(&server).await;
    let (frozen, then) = (Instant::now(), Stopwatch::start());
    let before = watch.turns();
    for (guard, end) in guards.iter().zip(&ends) {
        let now = Instant::now();
        assert!(now + guard.remaining() <= *end, "{} promises more than the server", guard.name());
    }
    let holders: Vec<_> = guards.into_iter().map(told).collect();
    for (holder, end) in holders.into_iter().zip(ends) {
        let (told, _) = within("a holder to be told", LEASE, holder).await;
        let (guard, lost, when) = told.expect("no panic");
        assert_eq!(lost, Lost::Expired);
        let (took, least) = (when.since(&then), end.saturating_duration_since(frozen));
        assert!(
            took <= least + LATE,
            "{} was told {took} after the server froze, and had it for {least:?}",
            guard.name()
        );
        assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::Expired, .. })));
    }
    sleep(FROZEN.saturating_sub(frozen.elapsed())).await;
    let granted: u64 = watch.turns().iter().sum::<u64>() - before.iter().sum::<u64>();
    assert!(granted <= NAMES as u64, "{granted} grants from a server that stands still");

    server.thaw();
    let thawed = watch.turns();
    let all_on = || watch.turns().iter().zip(thawed).all(|(now, then)| *now > then + 20);
    until("all to go on", ms(5_000), all_on).await;
    // One client alone can have all these turns while the other still opens its connection.
    let reconnected = |client: &Client| client.stats().total.reconnects > 0;
    until("both clients to be back", ms(5_000), || clients.iter().all(reconnected)).await;
    assert!(workers.iter().all(|worker| !worker.is_finished()), "nobody gave up");
    workers.iter().for_each(JoinHandle::abort);
    for worker in workers {
        assert!(worker.await.expect_err("aborted").is_cancelled(), "no panic");
    }
    drop(watch); // with the guards of those who were at work
    let idle = |client: &Client| {
        (client.stats().now.holds, client.stats().now.waiting, client.stats().now.releasing) == (0, 0, 0)
    };
    until("all to be given back", ms(5_000), || clients.iter().all(idle)).await;
    until("Redis to be empty", LEASE + ms(500), || server.ask::<u32>(&["DBSIZE"]) == 0).await;
    for client in &clients {
        let stats = client.stats();
        assert_eq!(stats.total.misplaced, 0, "no reply reached another request");
        assert_eq!(stats.total.acquired, stats.total.released + stats.total.lost, "each was given back or lost");
    }
}
