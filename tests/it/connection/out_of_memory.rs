//! A server whose memory is full: whatever is held can be released, and waiting goes on.

use std::time::Duration;

use leasehold::{Client, Owner};

use crate::{
    kinds::family::{Held, How, Way as Kind},
    support::{
        Server, ms, plain,
        stall::{LAST_ATTEMPT, unless_stalled},
        until, within,
    },
};

const SOON: Duration = ms(2_000);

fn memory(server: &Server, bytes: &str) {
    let _: String = server.ask(&["CONFIG", "SET", "maxmemory", bytes]);
}

/// From here on the server refuses all that needs memory.
async fn released_without_memory(server: &Server, held: Held) {
    memory(server, "1");
    within("the release", SOON, held.unlock()).await.0.expect("ours to the end");
}

#[tokio::test]
async fn a_writer_that_reads_as_well_releases() {
    let server = Server::start();
    let client = plain(&server).await;
    let writer = Kind::Write.lock(&client, "x").await;
    let reader = Kind::Read.lock(&client, "x").await;
    released_without_memory(&server, writer).await;
    assert_eq!(server.ask::<String>(&["HGET", "x", "mode"]), "read");
    reader.check().await.expect("ours");
    within("the release", SOON, reader.unlock()).await.0.expect("ours to the end");
    assert!(!server.exists("x"));
}

/// One of two readers that share a hold needs a longer lease. That the server cannot note this must not cost the other one its lease.
#[tokio::test]
async fn readers_that_share_are_renewed_although_one_extends_its_lease() {
    let server = Server::start();
    let client = crate::support::client(&server, |builder| builder.watchdog(ms(3_000))).await;
    let lock = client.rw_lock("x").non_reentrant();
    let (one, other) = loop {
        let (one, other) = (lock.read().await.expect("free"), lock.read().await.expect("beside it"));
        if one.id() == other.id() {
            break (one, other); // the second came soon enough to share
        }
    };
    memory(&server, "1");
    within("the longer lease", SOON, one.extend(ms(60_000))).await.0.expect("ours");
    assert!(server.pttl("x") > 50_000);
    within("the release", SOON, one.unlock()).await.0.expect("ours to the end");
    tokio::time::sleep(ms(3_500)).await; // a whole lease
    other.check().await.expect("ours");
    within("the release", SOON, other.unlock()).await.0.expect("ours to the end");
    assert!(!server.exists("x"));
}

/// A JVM stands next in the queue: it is called, and its place in the queue gets a nearer end.
async fn before_a_jvm(server: &Server) {
    let jvm = "6b1c7d3e-0000-4000-8000-000000000001:7";
    let (seconds, _): (u64, u64) = server.ask(&["TIME"]);
    let till = ((seconds + 300) * 1_000).to_string();
    let _: u32 = server.ask(&["RPUSH", "redisson_lock_queue:{x}", jvm]);
    let _: u32 = server.ask(&["ZADD", "redisson_lock_timeout:{x}", &till, jvm]);
}

#[tokio::test]
async fn a_fair_lock_before_a_jvm_is_released() {
    let server = Server::start();
    let client = plain(&server).await;
    let held = Kind::Fair.lock(&client, "x").await;
    before_a_jvm(&server).await;
    released_without_memory(&server, held).await;
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn a_fair_lock_is_forced_open() {
    let server = Server::start();
    let client = plain(&server).await;
    let _held = Kind::Fair.lock(&client, "x").await;
    before_a_jvm(&server).await;
    memory(&server, "1");
    assert!(within("an answer", SOON, client.fair_lock("x").force_unlock()).await.0.expect("answered"));
    assert!(!server.exists("x"));
}

/// Whether it waits with a limit or without.
async fn has_it_when_there_is_room(client: Client, server: &Server, how: How) {
    memory(server, "1");
    let refused = server.calls("evalsha");
    let waiting = tokio::spawn(async move { Kind::Plain.take(&client, "x", how).await });
    until("it to be refused", SOON, || server.calls("evalsha") >= refused + 3).await;
    assert!(!waiting.is_finished(), "it is refused for now");
    memory(server, "0");
    let held = within("the lock", SOON, waiting).await.0.expect("no panic");
    held.expect("answered").expect("free").unlock().await.expect("ours");
}

#[tokio::test]
async fn a_waiter_rides_it_out() {
    let server = Server::start();
    for patience in [Some(ms(20_000)), None] {
        let how = How { patience, owner: Some(Owner::new()), ..How::default() };
        has_it_when_there_is_room(plain(&server).await, &server, how).await;
    }
}

/// The pauses grow to a second. Whatever the pause, the last attempt is made when the limit ends, and has time for its reply.
#[tokio::test]
async fn waiters_have_it_at_their_limit() {
    unless_stalled(LAST_ATTEMPT, last_attempts).await;
}

async fn last_attempts() {
    let server = Server::start();
    let client = plain(&server).await;
    memory(&server, "1");
    let waiting = (0..20).map(|n| {
        let lock = client.mutex(&format!("x-{n}"));
        tokio::spawn(async move { lock.try_lock_for(ms(2_000)).await })
    });
    let waiting: Vec<_> = waiting.collect();
    tokio::time::sleep(ms(1_500)).await; // half of them have a pause from here to their limit
    memory(&server, "0");
    for waiting in waiting {
        let taken = within("the last attempt", SOON, waiting).await.0.expect("no panic");
        taken.expect("there is room").expect("free").unlock().await.expect("ours");
    }
}
