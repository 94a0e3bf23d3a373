//! The fair lock: one line for both sides.

use futures_util::future::join_all;
use serial_test::parallel;

use crate::{
    SOON, TURN, between, both,
    sides::{Kind, Side, Taking},
    support::{Server, ms, until},
};

const WAITERS: usize = 10;

/// When it was granted; it is given back at once.
async fn has_its_turn(taking: Taking<'_>) -> u64 {
    let held = taking.granted("its turn", TURN).await;
    let granted = held.granted;
    held.release().await;
    granted
}

/// Two of ours, one of theirs, and so on: every pair of neighbours is among them.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn those_who_wait_are_served_in_their_order() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let sides = [Side::Redisson(&jvm), Side::Leasehold(&client)];
    for holder in sides {
        let name = format!("line-{holder}");
        let held = holder.has(Kind::Fair, &name).await;
        let mut waiting = Vec::new();
        for number in 0..WAITERS {
            waiting.push(sides[number / 2 % 2].waits(&server, Kind::Fair, &name).await);
        }
        assert_eq!(client.fair_lock(&name).waiters().await.expect("answered").len(), WAITERS);
        let released = held.release().await;
        let turns = join_all(waiting.into_iter().map(has_its_turn)).await;
        assert!(released < turns[0] && turns.is_sorted(), "{holder} had it: {released}, {turns:?}");
    }
}

/// One that tries does not pass those who wait, and one that gives up leaves the line.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn one_that_gives_up_is_out_of_the_line() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let ours = client.fair_lock("line");
    let held = Side::Redisson(&jvm).has(Kind::Fair, "line").await;
    let waiting = Side::Leasehold(&client).waits(&server, Kind::Fair, "line").await;
    let they_give_up = Kind::Fair.one_more_waits(&server, "line", || jvm.ask(1, "tryLock:fair line 1000 -1")).await;
    assert!(!they_give_up.done().await.value::<bool>());
    assert!(ours.try_lock_for(ms(100)).await.expect("answered").is_none());
    until("both to have left", SOON, || Kind::Fair.waiting(&server, "line") == 1).await;
    let they_wait = Side::Redisson(&jvm).waits(&server, Kind::Fair, "line").await;
    assert_eq!(ours.waiters().await.expect("answered").len(), 2);
    let released = held.release().await;
    let (we, they) = tokio::join!(has_its_turn(waiting), has_its_turn(they_wait));
    assert!(released < we && we < they, "{released}, {we}, {they}");
    assert!(between(released, they) < 3 * SOON, "all were told: nobody waits for the five seconds of a look");
}
