//! A JVM with the real Redisson and this crate share locks. Run by `scripts/interop`, which builds the JVM's side
//! (`jvm/`) and says in the environment where it is: see [`jvm`].

mod acl;
mod agree;
mod contention;
mod fair;
mod fenced;
mod forced;
mod jvm;
mod killed;
mod latch;
mod leases;
mod nested;
mod plain_semaphore;
mod rw;
mod semaphore;
mod sides;
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;
mod wakes;
mod workers;

use std::time::Duration;

use leasehold::{Client, Guard, Lock};
use tokio::task::JoinHandle;

use jvm::{Jvm, clock};
use support::{Server, ms, plain, until, within};

/// How long anything may take that should happen at once, on a busy machine too.
const SOON: Duration = ms(1_000);
/// For the turns of all who wait. A JVM's first turn alone can take 2.8 s where eight JVMs start at once.
const TURN: Duration = ms(20_000);

/// Both sides with their default settings.
async fn both(server: &Server) -> (Jvm, Client) {
    (Jvm::start(server).await, plain(server).await)
}

/// Waits for the lock in a task of its own; with the moment when it was granted.
fn wait_for(lock: &Lock) -> JoinHandle<(Guard, u64)> {
    let lock = lock.clone();
    tokio::spawn(async move {
        let guard = lock.lock().await.expect("the holder goes");
        (guard, clock())
    })
}

/// Runs `start`, which waits for a taken lock, until the waiter is asleep: on both sides it asks, subscribes, and
/// asks once more. Every refusal reads the time left.
async fn asleep<T>(server: &Server, start: impl FnOnce() -> T) -> T {
    let before = server.calls("pttl");
    let waiting = start();
    until("two attempts", 10 * SOON, || server.calls("pttl") >= before + 2).await;
    waiting
}

/// What one who waits for a moment at most has come to.
async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    within(what, SOON, work).await.0
}

/// From a moment of one process to a moment of another.
fn between(earlier: u64, later: u64) -> Duration {
    Duration::from_nanos(later.saturating_sub(earlier))
}
