//! The fenced lock: one row of tokens for both sides.

use futures_util::future::join_all;
use serial_test::parallel;

use crate::{
    SOON, TURN, both,
    jvm::Jvm,
    sides::{Held, Kind, Side, Taking},
    support::{Server, until},
};

/// When it was granted and with which token; it is given back at once.
async fn has_its_turn(taking: Taking<'_>) -> (u64, u64) {
    let held = taking.granted("its turn", TURN).await;
    let turn = (held.granted, token(&held));
    held.release().await;
    turn
}

fn token(held: &Held<'_>) -> u64 {
    held.token.expect("fenced locks have one")
}

async fn counted(jvm: &Jvm) -> u64 {
    jvm.get(1, "token:fenced fenced").await
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn tokens_grow_turn_about() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let sides = [Side::Redisson(&jvm), Side::Leasehold(&client)];
    for turn in 1..=20 {
        let held = sides[turn / 2 % 2].has(Kind::Fenced, "fenced").await;
        assert_eq!(token(&held), counted(&jvm).await);
        assert_eq!(token(&held), turn as u64);
        held.release().await;
    }
}

/// Those of our process hand it over in there, while a JVM wants it, too.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn tokens_grow_where_we_hand_over() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let (redisson, leasehold) = (Side::Redisson(&jvm), Side::Leasehold(&client));
    let mut turns = Vec::new();
    for _ in 0..10 {
        let held = leasehold.has(Kind::Fenced, "fenced").await;
        turns.push((held.granted, token(&held)));
        let waiting: Vec<_> =
            [redisson, leasehold, leasehold, redisson].map(|side| side.take(Kind::Fenced, "fenced")).into();
        until("ours to queue up", SOON, || client.stats().now.waiting == 2).await;
        held.release().await;
        turns.extend(join_all(waiting.into_iter().map(has_its_turn)).await);
    }
    turns.sort_unstable();
    assert!(turns.is_sorted_by_key(|(_, token)| *token), "{turns:?}");
    assert_eq!(counted(&jvm).await, turns.len() as u64, "one for each, and none twice");
    assert!(client.stats().total.handed_over > 0, "handed over in here");
}
