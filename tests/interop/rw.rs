//! The read-write lock: who waits for whom, across.

use std::time::Duration;

use leasehold::Owner;
use serial_test::parallel;

use crate::{
    SOON, between, both,
    jvm::clock,
    sides::{Held, Kind, Side, Taking},
    support::{Server, ms, plain, until},
};

/// Where nobody is told, we look by ourselves.
const BY_TIMER: Duration = ms(5_000);
const SIDES: [Kind; 2] = [Kind::Read, Kind::Write];

/// Lets the holder go and the other one in; with how long that took.
async fn hands_over(held: Held<'_>, waiting: Taking<'_>, patience: Duration) -> Duration {
    assert!(!waiting.is_over(), "let in too early");
    let released = held.release().await;
    let next = waiting.granted("to be let in", patience).await;
    assert!(next.granted > released, "let in too early");
    let took = between(released, next.granted);
    next.release().await;
    took
}

fn mode(server: &Server, name: &str) -> String {
    server.ask(&["HGET", name, "mode"])
}

/// Nothing is left but what Redisson notes of releases for a while.
async fn all_is_free(server: &Server) {
    let is_free =
        || server.ask::<Vec<String>>(&["KEYS", "*"]).iter().all(|key| key.starts_with("redisson_unlock_latch"));
    until("all to be given back", SOON, is_free).await;
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn a_writer_is_alone_and_readers_are_together() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let sides = [Side::Redisson(&jvm), Side::Leasehold(&client)];
    for [holder, other] in [sides, [sides[1], sides[0]]] {
        for (has, wants) in SIDES.into_iter().flat_map(|has| SIDES.map(|wants| (has, wants))) {
            let name = format!("{holder}-{has}-{wants}");
            let held = holder.has(has, &name).await;
            if (has, wants) == (Kind::Read, Kind::Read) {
                other.has(wants, &name).await.release().await;
                held.release().await;
                continue;
            }
            let waiting = other.waits(&server, wants, &name).await;
            let took = hands_over(held, waiting, SOON).await;
            println!("{holder} has a {has} lock, {other} wants a {wants} lock: {took:.1?} after the release");
        }
    }
    all_is_free(&server).await;
}

/// Whoever leaves first.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn a_writer_waits_for_the_last_reader() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let sides = [Side::Redisson(&jvm), Side::Leasehold(&client)];
    for [first, last] in [sides, [sides[1], sides[0]]] {
        for writer in sides {
            let name = format!("{first}-{last}-{writer}");
            let (first, last) = (first.has(Kind::Read, &name).await, last.has(Kind::Read, &name).await);
            let waiting = writer.waits(&server, Kind::Write, &name).await;
            first.release().await;
            assert_eq!(mode(&server, &name), "read", "{name}: a reader is left");
            hands_over(last, waiting, SOON).await;
        }
    }
    all_is_free(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn our_downgrade_lets_redissons_readers_in() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let (redisson, name) = (Side::Redisson(&jvm), "downgraded");
    let writing = client.rw_lock(name).owner(&Owner::new()).write().await.expect("free");
    let waiting = redisson.waits(&server, Kind::Read, name).await;
    let before = clock();
    let reading = writing.downgrade().await.expect("never lost");
    let reader = waiting.granted("Redisson's reader", SOON).await;
    println!("our downgrade: Redisson reads {:.1?} later", between(before, reader.granted));

    assert!(!jvm.get::<bool>(1, &format!("tryLock:write {name} 0 -1")).await, "no writer is let in");
    let waiting = redisson.waits(&server, Kind::Write, name).await;
    reader.release().await;
    assert_eq!(mode(&server, name), "read", "we still read");
    reading.unlock().await.expect("ours");
    waiting.granted("Redisson's writer", SOON).await.release().await;
    all_is_free(&server).await;
}

/// It tells nobody.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn redissons_downgrade_lets_our_readers_in_when_they_look() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let (leasehold, name) = (Side::Leasehold(&client), "downgraded");
    jvm.call(1, &format!("lock:write {name} -1")).await;
    jvm.call(1, &format!("lock:read {name} -1")).await;
    let waiting = leasehold.waits(&server, Kind::Read, name).await;
    assert!(!waiting.is_over(), "its writer has it");
    let began = jvm.call(1, &format!("unlock:write {name}")).await.began;
    let reader = waiting.granted("our reader", BY_TIMER + SOON).await;
    println!("Redisson's downgrade: we read {:.1?} later", between(began, reader.granted));

    assert!(client.rw_lock(name).try_write().await.expect("answered").is_none(), "no writer is let in");
    let other = plain(&server).await;
    until("our reader's client to leave the channel", 10 * SOON, || Kind::Read.waiting(&server, name) == 0).await;
    let waiting = Side::Leasehold(&other).waits(&server, Kind::Write, name).await;
    reader.release().await;
    assert_eq!(mode(&server, name), "read", "Redisson still reads");
    jvm.call(1, &format!("unlock:read {name}")).await;
    waiting.granted("our writer", SOON).await.release().await;
    all_is_free(&server).await;
}
