//! Callers whose runtime is busy, or that are quicker than others expect, get their turns beside a busy client.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Lock, Owner};
use tokio::{runtime::Builder, task::yield_now, time::sleep};

use crate::support::{Server, ms, plain};

/// Tasks that acquire the lock again and again, and the number of their turns.
fn busy_tasks(client: &Client, tasks: usize, hold: Duration) -> Arc<AtomicU64> {
    let turns = Arc::new(AtomicU64::new(0));
    for _ in 0..tasks {
        let (lock, turns) = (client.lock("x").owner(&Owner::new()), Arc::clone(&turns));
        tokio::spawn(async move {
            loop {
                let guard = lock.lock().await.expect("granted");
                turns.fetch_add(1, Relaxed);
                sleep(hold).await;
                guard.unlock().await.expect("ours");
            }
        });
    }
    turns
}

/// The turns that others have while this client waits, for each of its turns.
async fn turns_of_others(lock: &Lock, others: &AtomicU64) -> u64 {
    let before = others.load(Relaxed);
    let guard = lock.lock().await.expect("granted");
    let turns = others.load(Relaxed) - before;
    guard.unlock().await.expect("ours");
    turns
}

/// Runs `work` on a runtime of its own, whose one thread another task keeps for this long again and again.
fn on_a_busy_runtime<T: Send>(every: Duration, work: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("it starts");
        runtime.spawn(async move {
            loop {
                thread::sleep(every);
                yield_now().await;
            }
        });
        runtime.block_on(work())
    };
    thread::scope(|threads| threads.spawn(run).join().expect("no panic"))
}

/// Each call gets one message. If it sent its request only when its task runs, the other client would have the lock again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn limited_attempts_from_a_busy_runtime_get_their_turns() {
    let server = Server::start();
    let busy = plain(&server).await;
    busy_tasks(&busy, 1, ms(30));
    let granted = on_a_busy_runtime(ms(15), async || {
        let away = plain(&server).await;
        let lock = away.lock("x").owner(&Owner::new());
        let mut granted = 0;
        for _ in 0..40 {
            match lock.try_lock_for(ms(40)).await {
                Ok(Some(guard)) => {
                    granted += 1;
                    guard.unlock().await.expect("ours");
                }
                Ok(None) => {}
                Err(late) => assert!(late.is_unavailable(), "{late}"), // the machine is busy
            }
        }
        granted
    });
    assert!(granted > 20, "{granted} of 40");
}

/// The next message comes more than a second after the client has found that this caller is slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_busy_runtime_gets_its_turns_beside_long_holds() {
    let server = Server::start();
    let busy = plain(&server).await;
    let others = busy_tasks(&busy, 1, ms(1_200));
    let turns = on_a_busy_runtime(ms(37), async || {
        let away = plain(&server).await;
        let lock = away.lock("x").owner(&Owner::new());
        let mut turns = 0;
        for _ in 0..4 {
            turns += turns_of_others(&lock, &others).await;
        }
        turns
    });
    assert!(turns <= 4, "{turns} turns of others while it waited for 4");
}

/// Works for a while at each poll, as `join!` with other work does, so that the lock's replies are seen late.
struct Burns<F>(Pin<Box<F>>, Duration);

impl<F: Future> Future for Burns<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let polled = self.0.as_mut().poll(cx);
        thread::sleep(self.1);
        polled
    }
}

/// The waiters behind a slow one are as quick as if it were not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_sees_replies_late_does_not_stop_those_behind_it() {
    let server = Server::start();
    let away = plain(&server).await;
    let mut all = Vec::new();
    for _ in 0..4 {
        let busy = plain(&server).await;
        all.push((busy_tasks(&busy, 1, ms(1)), busy));
    }
    let slow = away.lock("x").owner(&Owner::new());
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("it starts");
        runtime.block_on(async {
            while let Ok(guard) = Burns(Box::pin(slow.lock()), ms(20)).await {
                let _ = guard.unlock().await; // the client may be closed
            }
        });
    });
    let lock = away.lock("x").owner(&Owner::new());
    let (mut turns, begun) = (0, Instant::now());
    for _ in 0..40 {
        let before: u64 = all.iter().map(|(turns, _)| turns.load(Relaxed)).sum();
        let guard = lock.lock().await.expect("granted");
        turns += all.iter().map(|(turns, _)| turns.load(Relaxed)).sum::<u64>() - before;
        guard.unlock().await.expect("ours");
        sleep(ms(20)).await;
    }
    away.close().await.expect("nothing is held");
    assert!(turns < 40 * 9, "{turns} turns of others while it waited for 40, in {:?}", begun.elapsed());
}

/// It acquires and releases within the pause that a busy client makes for it. The busy client must not take that for a pause in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_with_short_turns_gets_them_after_each_row() {
    let server = Server::start();
    let (busy, away) = (plain(&server).await, plain(&server).await);
    let others = busy_tasks(&busy, 2, ms(3));
    let lock = away.lock("x").owner(&Owner::new());
    let (mut most, begun) = (0, Instant::now());
    while begun.elapsed() < ms(8_000) {
        most = most.max(turns_of_others(&lock, &others).await);
    }
    assert!(most < 100, "{most} turns of others in a row");
}
