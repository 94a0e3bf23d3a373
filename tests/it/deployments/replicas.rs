//! Holds that replicas must confirm, and the time that takes: others do not wait for it.

use std::{pin::pin, time::Duration};

use leasehold::{Client, Error, Owner};

use crate::support::{Server, client, master, ms, poll_until, replica_of, server::version, until, within};

const COMMAND: Duration = ms(1_000);
/// What one question may take, and what a busy machine adds.
const IN_TIME: Duration = ms(2_000);

async fn confirmed_by_one(server: &Server) -> Client {
    client(server, |builder| builder.replicas(1).command_timeout(COMMAND)).await
}

/// Who waits until it is decided: names of their own, asked for at once, and too few replicas for any.
async fn nobody_waits_for_the_others(client: &Client) {
    let calls = (0..8).map(|n| {
        let lock = client.lock(&format!("lock-{n}"));
        tokio::spawn(async move { within("an answer", IN_TIME, lock.lock()).await.0 })
    });
    for call in calls.collect::<Vec<_>>() {
        let ended = call.await.expect("in its time");
        assert!(matches!(ended, Err(Error::Replicas { wanted: 1, got: 0, .. })), "{ended:?}");
    }
    until("all to be given back", ms(3_000), || client.stats().now.releasing == 0).await;
}

/// Who tries once has no time for more than that.
async fn nobody_tries_for_longer(client: &Client) {
    let calls = (0..5).map(|n| {
        let lock = client.lock(&format!("lock-{n}"));
        tokio::spawn(async move { within("an answer", IN_TIME, lock.try_lock()).await.0 })
    });
    for call in calls.collect::<Vec<_>>() {
        let ended = call.await.expect("in its time");
        assert!(matches!(ended, Err(Error::Replicas { .. } | Error::Unavailable { .. })), "{ended:?}");
    }
    until("all to be given back", ms(3_000), || client.stats().now.releasing == 0).await;
}

#[tokio::test]
async fn without_a_replica_calls_do_not_queue_behind_each_other() {
    let server = Server::start();
    let client = confirmed_by_one(&server).await;
    nobody_waits_for_the_others(&client).await;
    nobody_tries_for_longer(&client).await;
    until("the holds to be released", ms(2_000), || server.ask::<u32>(&["DBSIZE"]) == 0).await;
}

/// A replica that has just come may take a while to say what it has.
async fn confirmed(client: &Client) {
    let confirmed = async {
        loop {
            match client.lock("x").lock().await {
                Ok(guard) => break guard,
                Err(error) => assert!(matches!(error, Error::Replicas { .. }), "{error}"),
            }
        }
    };
    let (guard, _) = within("the replica to confirm", ms(10_000), confirmed).await;
    guard.unlock().await.expect("ours");
}

/// After a failover, the new master has no replica for a while.
#[tokio::test]
async fn a_candidate_campaigns_until_a_replica_confirms() {
    let server = master();
    let client = confirmed_by_one(&server).await;
    let leader = client.leader("x");
    let campaign = tokio::spawn(leader.run(async |_: &leasehold::Guard| 42));
    until("it to have been refused", ms(5_000), || server.calls("wait") > 0).await;
    until("that to be released", ms(5_000), || !server.exists("x")).await;
    let _replica = replica_of(&server).await;
    let (led, _) = within("its turn", ms(10_000), campaign).await;
    assert_eq!(led.expect("no panic").expect("it leads"), 42);
}

#[tokio::test]
async fn nor_with_a_replica_that_is_cut_off() {
    let server = master();
    let (replica, client) = (replica_of(&server).await, confirmed_by_one(&server).await);
    confirmed(&client).await;
    replica.freeze();
    nobody_waits_for_the_others(&client).await;
    nobody_tries_for_longer(&client).await;
    until("the holds to be released", ms(2_000), || server.ask::<u32>(&["DBSIZE"]) == 0).await;
}

#[tokio::test]
async fn a_call_that_is_not_polled_does_not_keep_others_from_theirs() {
    let server = master();
    let (replica, client) = (replica_of(&server).await, confirmed_by_one(&server).await);
    client.lock("x").lock().await.expect("confirmed").unlock().await.expect("ours");
    replica.freeze();
    let lock = client.lock("kept").owner(&Owner::new());
    let mut kept = pin!(lock.lock());
    let blocked = || server.ask::<String>(&["INFO", "clients"]).contains("blocked_clients:1\r");
    poll_until("the server to wait for the replica", kept.as_mut(), blocked).await;
    replica.thaw();
    let other = client.lock("other");
    let (taken, _) = within("another call", IN_TIME, other.try_lock()).await;
    let taken = taken.expect("a replica is there").expect("free");
    assert!(replica.exists("other"));
    taken.unlock().await.expect("ours");
}

/// Only a replica that writes to its disk confirms. Older servers are named, and nothing is left on them.
#[tokio::test]
async fn a_replica_confirms_what_is_on_its_disk() {
    let server = master();
    let forgetful = replica_of(&server).await;
    let client = client(&server, |builder| builder.replicas_fsynced(1).command_timeout(COMMAND)).await;
    let refused = client.lock("x").try_lock().await;
    if version() < (7, 2) {
        let Err(Error::Server { source, .. }) = &refused else { panic!("{refused:?}") };
        assert!(source.to_string().contains("WAITAOF"), "{source}");
    } else {
        assert!(matches!(refused, Err(Error::Replicas { wanted: 1, got: 0, .. })), "{refused:?}");
        let port = server.port().to_string();
        // `everysec` takes longer than half of `COMMAND`.
        let writes = ["--appendonly", "yes", "--appendfsync", "always"];
        let careful = Server::with(&[&["--replicaof", "127.0.0.1", &port], &writes[..]].concat());
        confirmed(&client).await;
        drop(careful);
    }
    until("nothing to be left", ms(5_000), || !server.exists("x") && client.stats().now.releasing == 0).await;
    drop(forgetful);
}
