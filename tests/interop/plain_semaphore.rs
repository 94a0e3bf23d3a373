//! The semaphore that is a bare counter: counts agree, each side's release wakes the other, and no permit is lost between them.

use leasehold::PlainSemaphore;
use serial_test::parallel;
use tokio::task::JoinHandle;

use crate::{
    SOON, both,
    jvm::{Asked, Jvm},
    soon,
    support::{Server, ms, until, within},
};

/// Plain, with a hash tag, with braces that are none, beyond ASCII.
const NAMES: [&str; 4] = ["plain", "{tag}x", "x}y{z}", "Schloß"];

async fn free(jvm: &Jvm, semaphore: &PlainSemaphore) -> (i64, i64) {
    let theirs = jvm.get(1, &format!("counter:available {}", semaphore.name())).await;
    (theirs, semaphore.available().await.expect("answered"))
}

fn listening(server: &Server, name: &str) -> usize {
    let channel = if name.contains('{') { format!("redisson_sc:{name}") } else { format!("redisson_sc:{{{name}}}") };
    server.ask::<(String, usize)>(&["PUBSUB", "NUMSUB", &channel]).1
}

/// A task waits for so many, and a thread of the JVM, in processes that the server notifies.
async fn ours_waits(server: &Server, semaphore: &PlainSemaphore, n: u32) -> JoinHandle<leasehold::Result<()>> {
    let name = semaphore.name().to_owned();
    until("the last waiter to have left", 10 * SOON, || listening(server, &name) == 0).await;
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(n).await }
    });
    until("it to listen", 10 * SOON, || listening(server, &name) == 1).await;
    tokio::time::sleep(ms(100)).await; // it has looked once more
    assert!(!waiting.is_finished());
    waiting
}

async fn theirs_waits(server: &Server, jvm: &Jvm, command: &str, name: &str) -> Asked {
    until("the last waiter to have left", 10 * SOON, || listening(server, name) == 0).await;
    let waiting = jvm.ask(jvm.thread(), command);
    until("it to listen", 10 * SOON, || listening(server, name) == 1).await;
    tokio::time::sleep(ms(100)).await;
    assert!(!waiting.is_answered());
    waiting
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn counts_agree_and_each_release_wakes_the_other() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    for (round, name) in NAMES.into_iter().enumerate() {
        let semaphore = client.plain_semaphore(name);
        let set = format!("counter:trySetPermits {name} 5");
        let (first, second) = if round % 2 == 0 {
            (semaphore.try_set_permits(5).await.expect("answered"), jvm.get::<bool>(1, &set).await)
        } else {
            (jvm.get::<bool>(1, &set).await, semaphore.try_set_permits(5).await.expect("answered"))
        };
        assert_eq!((first, second, free(&jvm, &semaphore).await), (true, false, (5, 5)));
        semaphore.acquire(3).await.expect("free");
        jvm.call(1, &format!("counter:acquire {name} 2")).await;
        assert_eq!(free(&jvm, &semaphore).await, (0, 0));

        let waiting = theirs_waits(&server, &jvm, &format!("counter:acquire {name} 2"), name).await;
        semaphore.release(1).await.expect("answered");
        tokio::time::sleep(ms(100)).await;
        assert!(!waiting.is_answered(), "one is too few");
        semaphore.add_permits(1).await.expect("answered");
        soon("a thread of the JVM", waiting.done()).await.outcome.expect("acquired");

        let waiting = theirs_waits(&server, &jvm, &format!("counter:tryAcquire {name} 1 60000"), name).await;
        semaphore.release(1).await.expect("answered");
        assert!(soon("a thread of the JVM", waiting.done()).await.value::<bool>());

        let waiting = ours_waits(&server, &semaphore, 2).await;
        jvm.call(1, &format!("counter:release {name} 1")).await;
        tokio::time::sleep(ms(100)).await;
        assert!(!waiting.is_finished(), "one is too few");
        jvm.call(1, &format!("counter:release {name} 1")).await;
        soon("ours", waiting).await.expect("no panic").expect("acquired");

        let waiting = ours_waits(&server, &semaphore, 1).await;
        jvm.call(1, &format!("counter:addPermits {name} 4")).await;
        soon("ours", waiting).await.expect("no panic").expect("acquired");
        assert_eq!(free(&jvm, &semaphore).await, (3, 3));
        assert_eq!((semaphore.drain().await.expect("answered"), free(&jvm, &semaphore).await), (3, (0, 0)));
        semaphore.add_permits(-2).await.expect("answered");
        assert_eq!(free(&jvm, &semaphore).await, (-2, -2));
        jvm.call(1, &format!("counter:release {name} 6")).await;
        assert_eq!(
            (jvm.get::<i64>(1, &format!("counter:drain {name}")).await, free(&jvm, &semaphore).await),
            (4, (0, 0))
        );
    }
}

/// A waiter of either side that leaves takes nothing along, and nothing is lost between the two.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn both_sides_take_turns_and_nothing_is_lost() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let semaphore = client.plain_semaphore("busy");
    semaphore.try_set_permits(3).await.expect("answered");
    let ours: Vec<_> = (0..6)
        .map(|task: u32| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move {
                for turn in 0..40 {
                    let n = (task + turn) % 3 + 1;
                    if turn % 5 == 0 {
                        let _ = tokio::time::timeout(ms(2), semaphore.with(n, std::future::pending::<()>)).await;
                    } else {
                        semaphore.with(n, async || tokio::task::yield_now().await).await.expect("acquired");
                    }
                }
            })
        })
        .collect();
    for turn in 0..40 {
        let n = turn % 3 + 1;
        if jvm.get::<bool>(2, &format!("counter:tryAcquire busy {n} 20000")).await {
            assert!(server.ask::<i64>(&["GET", "busy"]) <= 3 - n);
            jvm.call(2, &format!("counter:release busy {n}")).await;
        }
    }
    for one in ours {
        within("all turns", ms(60_000), one).await.0.expect("no panic");
    }
    until("the last release", 10 * SOON, || client.stats().now.releasing == 0).await;
    assert_eq!(free(&jvm, &semaphore).await, (3, 3));
}
