//! Asking a holder to release its lock: one that ignores it, one that obeys, one that is dead, a JVM.

use std::time::Duration;

use leasehold::{AskOutcome, Client, Error, PubSub};
use tokio::time::timeout;

use crate::support::{
    Server, client,
    deployment::{cluster::Cluster, sentinels::Sentinels},
    ms, plain,
    process::Process,
    until, within,
};

const SOON: Duration = ms(5_000);

/// Asks until a holder listens: its subscription takes a round trip.
async fn heard(client: &Client, name: &str, reason: &str) {
    let begun = tokio::time::Instant::now();
    while client.mutex(name).ask(reason).await.expect("the server replies") != AskOutcome::Heard {
        assert!(begun.elapsed() < SOON, "nobody listens");
    }
}

#[tokio::test]
async fn a_holder_that_obeys() {
    let server = Server::start();
    let asking = Client::builder().url(server.url()).client_name("deploy").connect().await.expect("it answers");
    let holding = plain(&server).await;
    assert_eq!(asking.mutex("a").ask("why").await.expect("it answers"), AskOutcome::Free);
    let guard = holding.mutex("a").lock().await.expect("free");
    let obeying = tokio::spawn(async move {
        let request = guard.asked().await;
        guard.unlock().await.expect("held");
        request
    });
    heard(&asking, "a", "a deploy, 100 % sure").await;
    let (request, _) = within("it to obey", SOON, obeying).await;
    let request = request.expect("no panic");
    assert_eq!(request.reason, "a deploy, 100 % sure");
    let by = request.by.expect("it says who it is");
    assert_eq!((by.pid, by.label.as_deref()), (std::process::id(), Some("deploy")));
    asking.mutex("a").lock().await.expect("free").unlock().await.expect("held");
}

/// Most holders do not listen. One that does may go on, and gets the next request.
#[tokio::test]
async fn a_holder_that_ignores_it() {
    let server = Server::start();
    let (asking, holding) = (plain(&server).await, plain(&server).await);
    let guard = holding.mutex("a").lock().await.expect("free");
    assert_eq!(asking.mutex("a").ask("why").await.expect("it answers"), AskOutcome::NotHeard);
    assert!(timeout(ms(50), guard.asked()).await.is_err(), "nobody asks");
    heard(&asking, "a", "one").await;
    heard(&asking, "a", "two").await;
    let (one, two) = (guard.asked().await, guard.asked().await);
    assert_eq!((&*one.reason, &*two.reason, one.by), ("one", "two", None), "one that does not say who it is");
    assert!(!guard.is_lost());
    guard.unlock().await.expect("held");
    until("its channel to be given up", SOON, || holding.stats().now.subscriptions == 0).await;
    let next = holding.mutex("a").lock().await.expect("free");
    assert_eq!(asking.mutex("a").ask("why").await.expect("it answers"), AskOutcome::NotHeard);
    drop(next);
}

#[tokio::test]
async fn readers_and_other_kinds() {
    let server = Server::start();
    let (asking, holding) = (plain(&server).await, plain(&server).await);
    let readers = (
        holding.rw_lock("a").read().await.expect("free"),
        asking.rw_lock("a").owner(&leasehold::Owner::new()).read().await.expect("shared"),
    );
    let both = async { tokio::join!(readers.0.asked(), readers.1.asked()) };
    let ask = async {
        loop {
            heard(&asking, "a", "write").await; // one may listen before the other
            tokio::time::sleep(ms(10)).await;
        }
    };
    tokio::select! {
        (one, other) = both => assert_eq!((&*one.reason, &*other.reason), ("write", "write")),
        never = ask => never,
    }
    let fair = holding.fair_lock("b").lock().await.expect("free");
    assert!(timeout(ms(50), fair.asked()).await.is_err(), "nobody asks");
    heard(&asking, "b", "it is your turn").await;
    assert_eq!(fair.asked().await.reason, "it is your turn");
}

/// The process of a holder that was killed listens no more, and the lock stays for its lease.
#[tokio::test]
async fn a_holder_that_is_dead() {
    let server = Server::start();
    let asking = plain(&server).await;
    let mut holder = Process::start("release::asking::a_process_that_listens", &server.url());
    until("it to hold the lock", ms(20_000), || server.exists("a")).await;
    heard(&asking, "a", "why").await;
    holder.kill();
    let begun = tokio::time::Instant::now();
    while asking.mutex("a").ask("why").await.expect("it answers") != AskOutcome::NotHeard {
        assert!(begun.elapsed() < SOON, "it is dead");
    }
    assert!(server.exists("a"));
}

#[tokio::test]
#[ignore = "run by others, in a process of its own"]
async fn a_process_that_listens() {
    let client = Client::connect(&Process::url()).await.expect("the server answers");
    let guard = client.mutex("a").lock().await.expect("free");
    loop {
        guard.asked().await;
    }
}

/// JVMs have no such channel. This is the hash that Redisson writes.
#[tokio::test]
async fn a_jvm_that_holds_it() {
    let server = Server::start();
    let asking = plain(&server).await;
    server.ask::<u64>(&["HSET", "a", "285475da-9152-4c83-822a-67ee2f116a79:52", "1"]);
    assert_eq!(asking.mutex("a").ask("why").await.expect("it answers"), AskOutcome::NotHeard);
}

#[tokio::test]
async fn what_cannot_be_asked() {
    let server = Server::start();
    let silent = client(&server, |builder| builder.pubsub(PubSub::Off)).await;
    assert!(silent.mutex("a").ask("why").await.is_err());
    let asking = plain(&server).await;
    assert!(asking.mutex("a").ask(&"x".repeat(1_001)).await.is_err());
    server.ask::<()>(&["SET", "b", "1"]);
    let no_lock = asking.mutex("b").ask("").await;
    assert!(matches!(no_lock, Err(Error::Conflict { .. })), "{no_lock:?}");
    let rests = asking.mutex("c").min_hold(ms(60_000));
    rests.lock().await.expect("free").unlock().await.expect("held");
    assert!(server.exists("c"));
    assert_eq!(rests.ask("").await.expect("it answers"), AskOutcome::Free, "nobody works");
}

#[tokio::test]
async fn without_the_permission_for_the_channel() {
    let server = Server::start();
    server.ask::<u64>(&["HSET", "a", "285475da-9152-4c83-822a-67ee2f116a79:52", "1"]);
    server.set_user("u", &["on", ">p", "resetchannels", "&redisson_*", "~*", "+@all"]);
    let asking = Client::connect(&server.url_as("u", "p")).await.expect("the user may log in");
    let denied = asking.mutex("a").ask("why").await.expect_err("it may not publish").to_string();
    assert!(denied.contains(" &leasehold:ask:{a}"), "{denied}");
}

#[tokio::test]
async fn behind_sentinels_and_in_a_cluster() {
    let (sentinels, cluster) = (Sentinels::start().await, Cluster::start().await);
    for url in [sentinels.url(), cluster.url()] {
        let connect = || async { Client::connect(&url).await.expect("it answers") };
        let (asking, holding) = (connect().await, connect().await);
        for name in ["a", "b", "c"] {
            let guard = holding.mutex(name).lock().await.expect("free");
            assert!(timeout(ms(10), guard.asked()).await.is_err(), "nobody asks");
            heard(&asking, name, "why").await;
            let (request, _) = within("to be asked", SOON, guard.asked()).await;
            assert_eq!(request.by.map(|by| by.pid), Some(std::process::id()));
        }
    }
}
