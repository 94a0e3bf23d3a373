//! A soak: very many calls through a proxy that cuts, swallows, delays and rewrites at random. Afterwards everything is
//! as it was before. Alone in its binary, since it looks at its own process, and at what Linux says of it.
//!
//! The long one: `SOAK_CALLS=1000000 cargo test --release --test soak -- --ignored --nocapture`

#![cfg(target_os = "linux")]

#[allow(dead_code)]
#[path = "support/mod.rs"]
mod support;

use std::{
    env, fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Guard, Stats};
use support::{
    Server, before, behind, ms,
    proxy::{Fault, Proxy, Schedule, Way, Which, wrong_nonce},
    until,
};
use tokio::runtime::Handle;

const WORKERS: usize = 64;
/// Names that all workers want; every fourth call asks for one of them, the others for a name of their own.
const WANTED: usize = 8;
/// What memory may have grown by at the end, with millions of names seen: no more than the allocator's untidiness.
const UNTIDY: u64 = 4 << 20;

/// What must be at the end as at the start.
#[derive(Debug, PartialEq)]
struct Footprint {
    tasks: usize,
    /// Open files of the process, sockets too.
    files: usize,
    /// Connections of the server, keys and channels.
    connections: usize,
    keys: u64,
    channels: usize,
    /// Holds, waiters, releases and subscriptions of the client.
    client: [u64; 4],
}

impl Footprint {
    fn of(server: &Server, client: &Client) -> Footprint {
        Footprint {
            tasks: Handle::current().metrics().num_alive_tasks(),
            files: fs::read_dir("/proc/self/fd").expect("it is Linux").count(),
            connections: server.ask::<String>(&["CLIENT", "LIST"]).lines().count(),
            keys: server.ask(&["DBSIZE"]),
            channels: server.channels().len(),
            client: under_way(client.stats()),
        }
    }
}

fn under_way(stats: Stats) -> [u64; 4] {
    [stats.now.holds, stats.now.waiting, stats.now.releasing, stats.now.subscriptions]
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("it is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory is listed");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// So many cuts of each kind in a thousand requests, and half as many of other faults. Silence costs the patience of a
/// command each time, so it is rare.
fn faults(seed: u64, cuts: f64) -> Schedule {
    let chance = cuts / 1_000.0;
    let chances = vec![
        (chance, Fault::Cut(Way::There)),
        (chance, Fault::Cut(Way::Back)),
        (chance / 50.0, Fault::Swallow(Way::There)),
        (chance / 50.0, Fault::Swallow(Way::Back)),
        (chance / 2.0, Fault::Delay(Way::Back, ms(5))),
        (chance / 2.0, Fault::Trickle(Way::Back, 64)),
        (chance / 2.0, Fault::Rewrite(wrong_nonce)),
    ];
    Schedule { seed, which: Which::Any, chances }
}

/// Calls that are still to be made, and who is inside each of the wanted locks.
struct Work {
    client: Client,
    next: AtomicU64,
    end: u64,
    inside: [AtomicBool; WANTED],
}

impl Work {
    async fn run(self: Arc<Self>) {
        loop {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            if n >= self.end {
                return;
            }
            let wanted = n.is_multiple_of(4).then_some((n / 4) as usize % WANTED);
            let name = wanted.map_or_else(|| format!("once-{n}"), |wanted| format!("wanted-{wanted}"));
            let lock = self.client.lock(&name);
            let guard = lock.lock().await.expect("it rides out all of this");
            let inside = wanted.map(|wanted| &self.inside[wanted]);
            inside.inspect(|inside| assert!(!inside.swap(true, Ordering::Relaxed), "{name}: two at once"));
            if n % 16 == 5 {
                give_back(n + 3, lock.lock().await.expect("re-entered")).await;
            }
            inside.inspect(|inside| inside.store(false, Ordering::Relaxed));
            give_back(n, guard).await;
        }
    }
}

/// One in eight is dropped.
async fn give_back(n: u64, guard: Guard) {
    if n % 8 == 3 {
        drop(guard);
    } else {
        guard.unlock().await.expect("ours to the end");
    }
}

/// So many calls by many workers; back when nothing is under way any more.
async fn work(client: &Client, start: u64, calls: u64) {
    let (next, end, inside) = (AtomicU64::new(start), start + calls, Default::default());
    let work = Arc::new(Work { client: client.clone(), next, end, inside });
    let workers: Vec<_> = (0..WORKERS).map(|_| tokio::spawn(Arc::clone(&work).run())).collect();
    for worker in workers {
        worker.await.expect("no panic");
    }
    until("nothing to be under way", Duration::from_secs(10), || under_way(client.stats()) == [0; 4]).await;
}

async fn soak(calls: u64, cuts: f64) {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(500))).await;
    // A tenth of it first, with the same faults: what is allocated once is there then.
    proxy.schedule(faults(1, cuts));
    work(&client, 0, calls / 10).await;
    let (before, memory, started) = (at_rest(&server, &client, &proxy).await, resident(), Instant::now());
    let tally = proxy.tally();
    proxy.schedule(faults(2, cuts));
    work(&client, calls / 10, calls).await;
    let took = started.elapsed();
    let after = at_rest(&server, &client, &proxy).await;
    let grown = resident().saturating_sub(memory);
    let stats = client.stats();
    println!("{calls} calls in {took:.1?}, memory {} KiB and then {} more", memory >> 10, grown >> 10);
    println!("before {tally:?}\nafter {:?}\n{before:?}\n{stats:?}", proxy.tally());

    assert_eq!(before, after);
    assert!(grown <= UNTIDY, "memory has grown by {grown} bytes");
    assert_eq!((stats.total.released, stats.total.lost), (stats.total.acquired, 0));
    assert!(stats.total.acquired >= calls + calls / 10);
    let cuts = proxy.tally();
    assert!(cuts.cut_there > tally.cut_there && cuts.cut_back > tally.cut_back, "it was cut");
}

/// The footprint, when the faults have ceased and both connections stand.
async fn at_rest(server: &Server, client: &Client, proxy: &Proxy) -> Footprint {
    proxy.calm();
    // Of another client: behind its own a waiter needs no messages.
    let _: u32 = server.ask(&["HSET", "rest", "b983c153-7421-469a-addb-44fb92259a1b:7", "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "rest", "60000"]);
    let next = client.lock("rest");
    let waiting = tokio::spawn(async move { next.lock().await.expect("answered").unlock().await });
    until("a subscription", Duration::from_secs(5), || !server.channels().is_empty()).await;
    let _: u32 = server.ask(&["DEL", "rest"]);
    let _: u32 = server.ask(&["PUBLISH", "redisson_lock__channel:{rest}", "0"]);
    waiting.await.expect("no panic").expect("ours");
    let mut now = Footprint::of(server, client);
    until("peace", Duration::from_secs(5), || {
        // For requests, for messages, and the one that asks.
        (now.connections, now.channels, now.client) == (3, 0, [0; 4]) || {
            now = Footprint::of(server, client);
            false
        }
    })
    .await;
    now
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_calls() {
    soak(20_000, 4.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; SOAK_CALLS says how many calls"]
async fn a_million_calls() {
    let calls = env::var("SOAK_CALLS").map_or(1_000_000, |calls| calls.parse().expect("SOAK_CALLS is a number"));
    soak(calls, 1.0).await;
}
