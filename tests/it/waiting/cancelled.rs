//! A `lock()` dropped anywhere leaves nothing behind.

use std::{
    future::Future,
    task::{Context, Waker},
    time::Duration,
};

use leasehold::{Client, Owner};
use serial_test::serial;

use crate::support::{Server, ms, plain, poll_and_drop, until};

/// Nothing of ours remains, neither in Redis nor in the client.
async fn clean(server: &Server, client: &Client, names: &[&str]) {
    let idle = |client: &Client| {
        let stats = client.stats();
        (stats.now.holds, stats.now.waiting, stats.now.subscriptions, stats.now.releasing) == (0, 0, 0, 0)
    };
    until("the client to be idle", ms(5_000), || idle(client)).await;
    until("the channels to be left", ms(2_000), || server.channels().is_empty()).await;
    for name in names {
        assert!(!server.exists(name), "{name}: {:?}", server.lock(name));
    }
}

/// Numbers without rhyme, the same in every run.
fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn two_thousand_at_random_moments() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let mut seed = 0x2545_f491_4f6c_dd1d;
    // Somebody else comes and goes, so that some of them wait.
    let busy = tokio::spawn({
        let lock = other.lock("contended");
        async move {
            loop {
                let guard = lock.lock().await.expect("sooner or later");
                tokio::time::sleep(ms(1)).await;
                guard.unlock().await.expect("ours");
                tokio::time::sleep(ms(1)).await;
            }
        }
    });
    let mut granted = 0;
    for batch in 0..100 {
        let tasks: Vec<_> = (0..20)
            .map(|n| {
                let lock = client.lock(if (batch + n) % 2 == 0 { "contended" } else { "free" });
                let patience = Duration::from_micros(random(&mut seed) % 3_000);
                tokio::spawn(async move { tokio::time::timeout(patience, lock.lock()).await.is_ok() })
            })
            .collect();
        for task in tasks {
            granted += u32::from(task.await.expect("no panic"));
        }
    }
    assert!(granted > 0 && granted < 2_000, "{granted} of 2,000 were granted: the moments are badly chosen");
    busy.abort();
    let _ = busy.await;
    clean(&server, &client, &["contended", "free"]).await;
    clean(&server, &other, &[]).await;
}

#[tokio::test]
async fn at_every_await_of_a_free_lock() {
    let server = Server::start();
    let client = plain(&server).await;
    for times in 0.. {
        let done = poll_and_drop(times, client.lock("free").lock()).await;
        clean(&server, &client, &["free"]).await;
        // On a busy machine the answer can be there at the first poll already; it must be dropped under way at least once.
        if done && times > 1 {
            break;
        }
    }
}

#[tokio::test]
async fn at_every_await_of_a_nested_lock() {
    let server = Server::start();
    let client = plain(&server).await;
    let outer = client.lock("nested").lock().await.expect("free");
    for times in 0.. {
        let done = poll_and_drop(times, client.lock("nested").lock()).await;
        until("the level to be taken back", ms(500), || server.lock("nested")[0].1 == 1).await;
        until("the guard to agree", ms(500), || outer.holds() == 1).await;
        if done {
            break;
        }
    }
    outer.unlock().await.expect("ours");
    clean(&server, &client, &["nested"]).await;
}

#[tokio::test]
async fn at_every_await_of_a_taken_lock() {
    let server = Server::start();
    let (client, holder) = (plain(&server).await, plain(&server).await);
    for times in 0..12 {
        let guard = holder.lock("taken").lock().await.expect("free");
        assert!(!poll_and_drop(times, client.lock("taken").lock()).await);
        guard.unlock().await.expect("ours");
    }
    clean(&server, &client, &["taken"]).await;
}

#[tokio::test]
async fn while_it_is_handed_over() {
    let server = Server::start();
    let client = plain(&server).await;
    for times in 0..12 {
        let guard = client.lock("handed").lock().await.expect("free");
        let lock = client.lock("handed").owner(&Owner::new());
        let mut waiting = Box::pin(lock.lock());
        let mut context = Context::from_waker(Waker::noop());
        while client.stats().now.waiting == 0 {
            assert!(waiting.as_mut().poll(&mut context).is_pending());
            tokio::time::sleep(ms(1)).await;
        }
        let mut releasing = Box::pin(guard.unlock());
        for _ in 0..times {
            if releasing.as_mut().poll(&mut context).is_ready() {
                break;
            }
            tokio::time::sleep(ms(1)).await;
        }
        if times % 2 == 0 {
            drop(waiting);
            drop(releasing);
        } else {
            drop(releasing);
            drop(waiting);
        }
        until("it to be free", ms(500), || !server.exists("handed")).await;
    }
    clean(&server, &client, &["handed"]).await;
}

#[tokio::test]
async fn an_unlock_once_polled_goes_on() {
    let server = Server::start();
    let client = plain(&server).await;
    for times in 1..4 {
        let guard = client.lock("unlock").lock().await.expect("free");
        poll_and_drop(times, guard.unlock()).await;
        until("it to be free", ms(500), || !server.exists("unlock")).await;
    }
    clean(&server, &client, &["unlock"]).await;
}
