//! The count-down latch: one count for both sides, and the last count-down wakes all waiters of both.

use leasehold::Latch;
use serial_test::parallel;
use tokio::task::JoinHandle;

use crate::{
    SOON, both,
    jvm::{Asked, Jvm},
    soon,
    support::{Server, ms, until},
};

/// Plain, with a hash tag, with braces that are none, beyond ASCII.
const NAMES: [&str; 4] = ["plain", "{tag}x", "x}y{z}", "Schloß"];

fn listening(server: &Server, name: &str) -> usize {
    let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
    server.ask::<(String, usize)>(&["PUBSUB", "NUMSUB", &channel]).1
}

/// A task and two threads wait, in two processes that the server notifies.
async fn all_wait(server: &Server, jvm: &Jvm, latch: &Latch) -> (JoinHandle<leasehold::Result<()>>, [Asked; 2]) {
    let name = latch.name();
    let task = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    let threads = [
        jvm.ask(jvm.thread(), &format!("latch:await {name}")),
        jvm.ask(jvm.thread(), &format!("latch:awaitFor {name} 60000")),
    ];
    until("both processes to listen", 10 * SOON, || listening(server, name) == 2).await;
    tokio::time::sleep(ms(100)).await; // both threads of the JVM have looked once more
    assert!(!task.is_finished() && !threads.iter().any(Asked::is_answered));
    (task, threads)
}

async fn all_pass((task, threads): (JoinHandle<leasehold::Result<()>>, [Asked; 2])) {
    soon("ours", task).await.expect("no panic").expect("passed");
    for thread in threads {
        let passed = soon("a thread of the JVM", thread.done()).await.outcome.expect("passed");
        assert!(["done", "true"].contains(&&*passed), "{passed}");
    }
}

async fn counts(jvm: &Jvm, latch: &Latch) -> (u64, u64) {
    (jvm.get(1, &format!("latch:count {}", latch.name())).await, latch.count().await.expect("answered"))
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn the_last_count_down_of_either_side_wakes_both() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    for name in NAMES {
        let latch = client.latch(name);
        for round in 0..4 {
            let (we_set, we_end) = (round % 2 == 0, round / 2 == 0);
            let set = format!("latch:trySetCount {name} 3");
            if we_set {
                assert!(latch.try_set_count(3).await.expect("answered"));
                assert!(!jvm.get::<bool>(1, &set).await);
            } else {
                assert!(jvm.get::<bool>(1, &set).await);
                assert!(!latch.try_set_count(3).await.expect("answered"));
            }
            assert_eq!(counts(&jvm, &latch).await, (3, 3));
            let waiting = all_wait(&server, &jvm, &latch).await;
            assert_eq!(latch.count_down().await.expect("answered"), 2);
            assert_eq!(counts(&jvm, &latch).await, (2, 2));
            jvm.call(1, &format!("latch:countDown {name}")).await;
            assert_eq!(counts(&jvm, &latch).await, (1, 1));
            assert!(!waiting.0.is_finished() && !waiting.1.iter().any(Asked::is_answered));
            if we_end {
                assert_eq!(latch.count_down().await.expect("answered"), 0);
            } else {
                jvm.call(1, &format!("latch:countDown {name}")).await;
            }
            all_pass(waiting).await;
            assert_eq!(counts(&jvm, &latch).await, (0, 0));
            assert!(!server.exists(name));
            until("both processes to leave the channel", 10 * SOON, || listening(&server, name) == 0).await;
        }
    }
}

/// After a delete by either side ours pass. A thread of a JVM waits on, as after a delete by its own.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn a_delete_lets_ours_pass() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let latch = client.latch("deleted");
    for we_delete in [true, false] {
        assert!(latch.try_set_count(2).await.expect("answered"));
        let waiting = tokio::spawn({
            let latch = latch.clone();
            async move { latch.wait().await }
        });
        let theirs = jvm.ask(jvm.thread(), "latch:awaitFor deleted 4000");
        until("both processes to listen", 10 * SOON, || listening(&server, "deleted") == 2).await;
        tokio::time::sleep(ms(100)).await;
        if we_delete {
            assert!(latch.delete().await.expect("answered"));
        } else {
            assert!(jvm.get::<bool>(1, "latch:delete deleted").await);
        }
        soon("ours", waiting).await.expect("no panic").expect("passed");
        assert!(!theirs.is_answered());
        theirs.done().await.outcome.expect("it has a limit");
        assert_eq!(counts(&jvm, &latch).await, (0, 0));
        until("both processes to leave the channel", 10 * SOON, || listening(&server, "deleted") == 0).await;
    }
}
