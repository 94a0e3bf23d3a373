//! Thousands of locks on one master of a cluster, dropped together, if possible while that master does not reply.

use futures_util::future::join_all;
use leasehold::{Guard, Lock};
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::{HEAP, LONG_LEASE, player::Player, worker::connect};

/// More than a client sends to one server at a time. They are confirmed every 0.45 s, as all locks of this client: of 5,000 that is 11,000
/// requests per second, and other requests of this client, whose build is not optimized, took a second. Of 2,000 they took 0.13 s in
/// the mean, and one took more than half a second.
const MANY: usize = 1_500;
/// While the master replies, they are acquired and released in parts, so that they delay no other lock.
const PART: usize = 250;
const BETWEEN: Duration = Duration::from_millis(30);
/// The next part waits until so few releases are under way.
const MOST_RELEASES: u64 = 50;
/// How long they are held at the most, and how long the master may take to answer.
const HELD: Duration = Duration::from_secs(6);
const ANSWERS: Duration = Duration::from_millis(300);
/// How many looks in a row it must leave without an answer: one may also be late because this process had no processor.
const SILENT: u32 = 3;

pub(super) async fn heap(player: &mut Player, url: &str) {
    let pause = player.millis(2_000..=4_000);
    sleep(pause).await;
    // Looks through connections of its own: those of the other client have thousands of requests under way.
    let Ok(eye) = connect(url).await else { return };
    hold(player, &eye.lock(&name(0))).await;
    let _ = eye.close().await; // it holds nothing
}

fn name(n: usize) -> String {
    format!("{{{HEAP}}}-{n}")
}

async fn hold(player: &mut Player, seen: &Lock) {
    let mut guards = taken(player).await;
    let (ends, mut silent) = (Instant::now() + HELD, 0);
    while !guards.is_empty() && Instant::now() < ends {
        silent = if timeout(ANSWERS, seen.inspect()).await.is_err() { silent + 1 } else { 0 };
        if silent == SILENT {
            player.scribe.way("thousands of releases for a master that does not reply");
            return drop(guards);
        }
        if silent == 0 {
            sleep(ANSWERS / 2).await;
        }
    }
    while !guards.is_empty() {
        guards.truncate(guards.len().saturating_sub(PART));
        sleep(BETWEEN).await;
        while player.client.stats().now.releasing > MOST_RELEASES {
            sleep(BETWEEN).await;
        }
    }
}

async fn taken(player: &Player) -> Vec<Guard> {
    let locks: Vec<_> = (0..MANY).map(|n| player.lock(&name(n)).lease(LONG_LEASE)).collect();
    let mut guards = Vec::with_capacity(MANY);
    for part in locks.chunks(PART) {
        let taken = join_all(part.iter().map(|lock| lock.try_lock())).await;
        guards.extend(taken.into_iter().filter_map(|taken| taken.ok().flatten()));
        sleep(BETWEEN).await;
    }
    guards
}
