//! A release on one side wakes who waits on the other, at once.

use std::time::Duration;

use leasehold::Client;
use serial_test::serial;

use crate::{
    asleep, between, both,
    jvm::{Jvm, clock},
    soon,
    support::{Server, client, ms},
    wait_for,
};

/// The longest from the call that releases to the grant on the other side.
const AT_ONCE: Duration = ms(50);
const ROUNDS: u32 = 5;
/// Plain, with a hash tag, with braces that are none, beyond ASCII.
const NAMES: [&str; 4] = ["plain", "{tag}x", "x}y{z}", "Schloß"];

/// The JVM locks, we wait, it releases: how long until we have it.
async fn by_redisson(server: &Server, jvm: &Jvm, client: &Client, key: &str, name: &str) -> Duration {
    jvm.call(1, &format!("lock {key} -1")).await;
    let waiting = asleep(server, || wait_for(&client.lock(name))).await;
    let released = jvm.call(1, &format!("unlock {key}")).await;
    let (guard, granted) = soon("our turn", waiting).await.expect("no panic");
    assert_eq!(server.lock(key), [(guard.id().to_owned(), 1)]);
    guard.unlock().await.expect("ours");
    between(released.began, granted)
}

/// We lock, the JVM waits, we release: how long until it has it.
async fn by_us(server: &Server, jvm: &Jvm, client: &Client, key: &str, name: &str) -> Duration {
    let guard = client.lock(name).lock().await.expect("free");
    let waiting = asleep(server, || jvm.ask(2, &format!("lock {key} -1"))).await;
    let released = clock();
    guard.unlock().await.expect("ours");
    let granted = soon("the JVM's turn", waiting.done()).await;
    let owner = jvm.get::<String>(2, &format!("owner {key}")).await;
    assert_eq!(server.lock(key), [(owner, 1)]);
    jvm.call(2, &format!("unlock {key}")).await;
    between(released, granted.ended)
}

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn redisson_releases_and_we_have_it() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    by_redisson(&server, &jvm, &client, "first", "first").await; // the JVM loads its classes
    let mut took = Vec::new();
    for name in NAMES {
        for _ in 0..ROUNDS {
            took.push(by_redisson(&server, &jvm, &client, name, name).await);
        }
    }
    check("Redisson to leasehold", took);
}

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn we_release_and_redisson_has_it() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    by_us(&server, &jvm, &client, "first", "first").await; // the JVM loads its classes
    let mut took = Vec::new();
    for name in NAMES {
        for _ in 0..ROUNDS {
            took.push(by_us(&server, &jvm, &client, name, name).await);
        }
    }
    check("leasehold to Redisson", took);
}

/// Our prefix is what their `nameMapper` would put before the name.
#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn with_a_prefix_too() {
    let server = Server::start();
    let jvm = Jvm::start(&server).await;
    let client = client(&server, |builder| builder.prefix("app:")).await;
    by_redisson(&server, &jvm, &client, "app:first", "first").await;
    by_us(&server, &jvm, &client, "app:first", "first").await;
    let took = by_redisson(&server, &jvm, &client, "app:name", "name").await;
    check("Redisson to leasehold with a prefix", vec![took]);
    let took = by_us(&server, &jvm, &client, "app:name", "name").await;
    check("leasehold to Redisson with a prefix", vec![took]);
}

fn check(way: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{way}: granted {median:.1?} after the release (median of {}), at most {longest:.1?}", took.len());
    assert!(longest <= AT_ONCE, "{way}: {took:?}");
}
