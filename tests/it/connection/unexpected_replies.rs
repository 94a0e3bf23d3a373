//! Answers that no server of ours gives. They are refusals: nothing may panic, and nobody else may suffer.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use leasehold::{Builder, Client};
use tokio::task::JoinSet;

use crate::support::{
    Server, chain,
    fake::{Fake, Said, array, error, int, slots},
    ms, until, within,
};

/// A cluster of one server. Its next answers to requests for locks can be chosen.
struct Odd {
    _server: Server,
    fake: Fake,
    next: Arc<Mutex<VecDeque<Vec<u8>>>>,
}

impl Odd {
    fn start() -> Odd {
        let (server, next) = (Server::start(), Arc::<Mutex<VecDeque<Vec<u8>>>>::default());
        let fake = Fake::before(&server, |_| Said::Pass);
        let (layout, answers) = (slots(&[(0, 16_383, fake.port(), "one")]), Arc::clone(&next));
        fake.becomes(move |words| match &*words[0].to_ascii_uppercase() {
            "CLUSTER" => Said::Reply(layout.clone()),
            "EVALSHA" => answers.lock().expect("no panic").pop_front().map_or(Said::Pass, Said::Reply),
            _ => Said::Pass,
        });
        Odd { _server: server, fake, next }
    }

    fn builder(&self) -> Builder {
        let url = format!("redis-cluster://127.0.0.1:{}", self.fake.port());
        Client::builder().url(url).command_timeout(ms(300)).outage_timeout(ms(1_000))
    }

    fn says(&self, answer: Vec<u8>) {
        self.next.lock().expect("no panic").push_back(answer);
    }

    fn has_said_all(&self) -> bool {
        self.next.lock().expect("no panic").is_empty()
    }
}

#[tokio::test]
async fn to_a_caller_are_errors() {
    let odd = Odd::start();
    let client = odd.builder().connect().await.expect("it answers");
    client.lock("x").lock().await.expect("free").unlock().await.expect("ours"); // it knows the scripts
    let words = [
        "MOVED 20000 127.0.0.1:1",
        "MOVED 16384 127.0.0.1:1",
        "MOVED -1 127.0.0.1:1",
        "MOVED 1",
        "MOVED",
        "MOVED 1 :0",
        "MOVED 1 127.0.0.1:99999",
        "MOVED 1 nowhere",
        "ASK 65535 127.0.0.1:1",
        "ASK 1 ::::",
        "",
    ];
    let others = [int(5), array(&[]), b"$-1\r\n".to_vec(), b"*-1\r\n".to_vec(), b"+OK\r\n".to_vec(), array(&[int(1)])];
    for answer in words.into_iter().map(error).chain(others) {
        odd.says(answer.clone());
        let lock = client.mutex("x");
        let asked = tokio::spawn(async move { lock.try_lock().await });
        let (asked, _) = within("an answer", ms(5_000), asked).await;
        drop(asked.unwrap_or_else(|panic| panic!("{}: {panic}", String::from_utf8_lossy(&answer))));
        until("it to be given back", ms(5_000), || client.stats().now.releasing == 0).await;
    }
    assert!(odd.has_said_all());
    client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
}

/// All locks of a client are renewed together.
#[tokio::test]
async fn to_one_renewal_leave_the_other_locks_alone() {
    const LOCKS: usize = 60;
    let odd = Odd::start();
    let client = odd.builder().watchdog(ms(1_500)).connect().await.expect("it answers");
    let mut taking = JoinSet::new();
    for n in 0..LOCKS {
        let lock = client.mutex(&format!("lock-{n}"));
        taking.spawn(async move { lock.lock().await.expect("free") });
    }
    let guards = taking.join_all().await;
    let renewed = client.stats().total.renewals;
    until("all to be renewed", ms(3_000), || client.stats().total.renewals >= renewed + LOCKS as u64).await;
    for _ in 0..3 {
        odd.says(error("MOVED 20000 127.0.0.1:1"));
        until("a renewal to be answered so", ms(3_000), || odd.has_said_all()).await;
    }
    // Twice as long as the lease: whoever is renewed no more is lost by then.
    let renewed = client.stats().total.renewals;
    until("the renewals of two leases", ms(8_000), || client.stats().total.renewals >= renewed + 6 * LOCKS as u64)
        .await;
    let lost: Vec<_> = guards.iter().filter(|guard| guard.is_lost()).map(|guard| guard.name().to_owned()).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test]
async fn maps_of_a_cluster_are_refused_or_read() {
    let server = Server::start();
    let fake = Fake::before(&server, |_| Said::Pass);
    let one = |first: u16, last: u16| slots(&[(first, last, fake.port(), "one")]);
    let odd = [one(20_000, 30_000), one(9, 3), one(0, 65_535), int(1), array(&[int(1)]), array(&[array(&[])])];
    for layout in odd {
        fake.becomes(move |words| match &*words[0].to_ascii_uppercase() {
            "CLUSTER" => Said::Reply(layout.clone()),
            _ => Said::Pass,
        });
        let url = format!("redis-cluster://127.0.0.1:{}", fake.port());
        let connecting = tokio::spawn(async move {
            let client = Client::builder().url(url).command_timeout(ms(300)).outage_timeout(ms(300)).connect().await?;
            client.lock("x").lock().await?.unlock().await
        });
        drop(within("an answer", ms(5_000), connecting).await.0.expect("no panic"));
    }
}

/// Each master that is named costs a client tasks and connections.
#[tokio::test]
async fn a_cluster_of_twenty_thousand_masters_is_refused() {
    let layout: Vec<_> = (0..20_000u16).map(|n| (n % 16_384, n % 16_384, 1_000 + n, "one")).collect();
    let layout = slots(&layout);
    let fake = Fake::alone(move |words| match &*words[0].to_ascii_uppercase() {
        "CLUSTER" => Said::Reply(layout.clone()),
        _ => Said::Pass,
    });
    let url = format!("redis-cluster://127.0.0.1:{}", fake.port());
    let (refused, _) = within("an answer", ms(10_000), Client::connect(&url)).await;
    let refused = refused.expect_err("that is no cluster");
    assert!(chain(&refused).contains("20000 masters"), "{}", chain(&refused));
}
