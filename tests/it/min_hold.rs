//! A lock that is given back early and had by nobody before its time.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Owner};

use crate::{
    family::{clean, idle},
    support::{Server, ms, plain, script, until, within},
};

const SOON: Duration = ms(3_000);
const LEAST: Duration = ms(1_500);

/// Taken and given back at once by a client, for somebody who waits in another and one who waits in the same. When it was taken.
macro_rules! given_back_early {
    ($make:ident) => {{
        let server = Server::start();
        let (one, other) = (plain(&server).await, plain(&server).await);
        let asked = Instant::now();
        let guard = one.$make("x").min_hold(LEAST).lock().await.expect("free");
        let granted = Instant::now();
        let waiting = [&one, &other].map(|client| {
            let lock = client.$make("x").owner(&Owner::new());
            tokio::spawn(async move {
                let guard = lock.lock().await.expect("in the end");
                let got = Instant::now();
                guard.unlock().await.expect("ours");
                got
            })
        });
        until("them to wait", SOON, || [&one, &other].iter().all(|client| client.stats().now.waiting == 1)).await;
        until("them to ask", SOON, || other.stats().total.refused == 1).await;
        guard.unlock().await.expect("ours to the end");
        assert!(granted.elapsed() < LEAST, "nobody waits for the rest of it");
        assert!(one.$make("x").try_lock().await.expect("answered").is_none());
        for waiting in waiting {
            let got = within("its turn", SOON, waiting).await.0.expect("no panic");
            assert!(got - asked >= LEAST, "{:?}", got - asked);
            assert!(got - granted < LEAST + ms(1_000), "{:?}", got - granted);
        }
        idle(&one).await;
        clean(&server, &other).await;
    }};
}

#[tokio::test]
async fn a_lock() {
    given_back_early!(lock);
}

#[tokio::test]
async fn a_mutex() {
    given_back_early!(mutex);
}

#[tokio::test]
async fn a_fair_lock() {
    given_back_early!(fair_lock);
}

#[tokio::test]
async fn a_fenced_lock() {
    given_back_early!(fenced_lock);
}

/// In this process, too, it is passed on as ever when the time is over.
#[tokio::test]
async fn given_back_late_it_goes_on_at_once() {
    let server = Server::start();
    let one = plain(&server).await;
    let guard = one.mutex("x").min_hold(ms(50)).lock().await.expect("free");
    let waiting = tokio::spawn({
        let lock = one.mutex("x");
        async move { lock.lock().await.expect("in the end") }
    });
    until("it to wait", SOON, || one.stats().now.waiting == 1).await;
    tokio::time::sleep(ms(60)).await; // its time itself
    guard.unlock().await.expect("ours");
    let next = within("its turn", SOON, waiting).await.0.expect("no panic");
    assert_eq!(one.stats().total.handed_over, 1);
    next.unlock().await.expect("ours");
    clean(&server, &one).await;
}

#[tokio::test]
async fn dropped_or_closed_it_stays_as_long() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    drop(one.mutex("dropped").min_hold(LEAST).lock().await.expect("free"));
    let guard = one.mutex("closed").min_hold(LEAST).lock().await.expect("free");
    one.close().await.expect("in time");
    drop(guard);
    for name in ["dropped", "closed"] {
        assert!(other.mutex(name).try_lock().await.expect("answered").is_none(), "{name}");
        assert!((0..=1_500).contains(&server.pttl(name)), "{name}: {}", server.pttl(name));
    }
    until("their end", SOON, || !server.exists("dropped") && !server.exists("closed")).await;
    clean(&server, &other).await;
}

/// It counts from the grant of each; the outermost guard gives back.
#[tokio::test]
async fn of_nested_ones_the_latest_counts() {
    let server = Server::start();
    let (one, owner) = (plain(&server).await, Owner::new());
    let lock = |client: &Client| client.lock("x").owner(&owner);
    let outer = lock(&one).lock().await.expect("free");
    lock(&one).min_hold(LEAST).lock().await.expect("nested").unlock().await.expect("ours");
    outer.unlock().await.expect("ours");
    assert!(matches!(server.pttl("x"), 1..=1_500));
    until("its end", SOON, || !server.exists("x")).await;
    clean(&server, &one).await;
}

/// The script may run twice: the second run finds the lock as the first has left it.
#[tokio::test]
async fn a_lost_reply_changes_nothing() {
    use crate::support::{
        before, behind,
        proxy::{Fault, Rule, Way},
    };
    let server = Server::start();
    let release = script(&server, "release");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(300))).await;
    let guard = client.mutex("x").min_hold(ms(1_500)).lock().await.expect("free");
    proxy.rule(Rule::new(release, Fault::Cut(Way::Back)));
    guard.unlock().await.expect("ours to the end");
    assert!(matches!(server.pttl("x"), 1..=1_500), "{}", server.pttl("x"));
    until("its end", SOON, || !server.exists("x")).await;
    clean(&server, &client).await;
}

#[tokio::test]
async fn what_cannot_be_is_refused() {
    let server = Server::start();
    let one = plain(&server).await;
    let bad = [
        one.lock("x").min_hold(Duration::ZERO),
        one.lock("x").min_hold(Duration::MAX),
        one.lock("x").lease(ms(100)).min_hold(ms(101)),
    ];
    for lock in bad {
        let error = lock.lock().await.expect_err("nonsense");
        assert!(matches!(error, Error::InvalidConfig { .. }) && error.to_string().contains("min_hold"), "{error}");
    }
    one.lock("x").lease(ms(100)).min_hold(ms(100)).lock().await.expect("good").unlock().await.expect("ours");
}
