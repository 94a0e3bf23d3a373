//! The semaphore whose permits end: counts agree, each side's release wakes the other, and permits of a killed process come back.

use leasehold::{Permits, Semaphore};
use serial_test::parallel;
use tokio::task::JoinHandle;

use crate::{
    SOON, both,
    jvm::{Asked, Jvm},
    soon,
    support::{Server, client, ms, plain, until},
};

/// Plain, with a hash tag, with braces that are none, beyond ASCII.
const NAMES: [&str; 4] = ["plain", "{tag}x", "x}y{z}", "Schloß"];

async fn free(jvm: &Jvm, semaphore: &Semaphore) -> (i64, i64) {
    let theirs = jvm.get(1, &format!("permits:available {}", semaphore.name())).await;
    (theirs, semaphore.available().await.expect("answered"))
}

fn listening(server: &Server, name: &str) -> usize {
    let channel = if name.contains('{') { format!("redisson_sc:{name}") } else { format!("redisson_sc:{{{name}}}") };
    server.ask::<(String, usize)>(&["PUBSUB", "NUMSUB", &channel]).1
}

/// A task waits for so many, and a thread of the JVM, in processes that the server notifies.
async fn ours_waits(server: &Server, semaphore: &Semaphore, n: u32) -> JoinHandle<leasehold::Result<Permits>> {
    let (name, before) = (semaphore.name().to_owned(), listening(server, semaphore.name()));
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(n).await }
    });
    until("it to listen", 10 * SOON, || listening(server, &name) > before).await;
    tokio::time::sleep(ms(100)).await; // it has looked once more
    assert!(!waiting.is_finished());
    waiting
}

async fn theirs_waits(server: &Server, jvm: &Jvm, name: &str, n: u32) -> Asked {
    let before = listening(server, name);
    let waiting = jvm.ask(jvm.thread(), &format!("permits:acquire {name} {n} 30000"));
    until("it to listen", 10 * SOON, || listening(server, name) > before).await;
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
        let semaphore = client.semaphore(name);
        let set = format!("permits:trySetPermits {name} 5");
        let (first, second) = if round % 2 == 0 {
            (semaphore.try_set_permits(5).await.expect("answered"), jvm.get::<bool>(1, &set).await)
        } else {
            (jvm.get::<bool>(1, &set).await, semaphore.try_set_permits(5).await.expect("answered"))
        };
        assert_eq!((first, second, free(&jvm, &semaphore).await), (true, false, (5, 5)));

        let mut ours = semaphore.acquire(3).await.expect("free");
        let theirs: String = jvm.get(1, &format!("permits:acquire {name} 2 30000")).await;
        assert_eq!(free(&jvm, &semaphore).await, (0, 0));
        let holders = semaphore.inspect().await.expect("answered");
        assert_eq!(holders.iter().map(|holder| holder.holds).sum::<u64>(), 5);
        let ids: Vec<_> = theirs.split(',').collect();
        assert!(ids.iter().all(|id| holders.iter().any(|holder| holder.id == **id)), "{ids:?}: {holders:?}");

        let waiting = theirs_waits(&server, &jvm, name, 1).await;
        ours.split(1).expect("it has three").release().await.expect("held");
        let one = soon("a thread of the JVM", waiting.done()).await.outcome.expect("acquired");
        assert_eq!(free(&jvm, &semaphore).await, (0, 0));

        let waiting = ours_waits(&server, &semaphore, 2).await;
        jvm.call(1, &format!("permits:release {name} {theirs}")).await;
        let two = soon("ours", waiting).await.expect("no panic").expect("acquired");
        jvm.call(1, &format!("permits:release {name} {one}")).await;
        ours.check().await.expect("held");
        ours.release().await.expect("held");
        two.release().await.expect("held");
        assert_eq!(free(&jvm, &semaphore).await, (5, 5));

        jvm.call(1, &format!("permits:addPermits {name} 2")).await;
        semaphore.add_permits(-3).await.expect("answered");
        assert_eq!(free(&jvm, &semaphore).await, (4, 4));
        semaphore.set_permits(1).await.expect("answered");
        assert_eq!(free(&jvm, &semaphore).await, (1, 1));
    }
}

/// By the end of their lease, without a message.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn permits_of_a_killed_jvm_come_back() {
    let server = Server::start();
    let (mut jvm, client) = both(&server).await;
    let semaphore = client.semaphore("killed");
    semaphore.try_set_permits(3).await.expect("answered");
    jvm.get::<String>(1, "permits:acquire killed 3 8000").await;
    let waiting = ours_waits(&server, &semaphore, 2).await;
    jvm.kill();
    let permits = crate::support::within("the end of the lease", ms(10_000), waiting).await.0;
    permits.expect("no panic").expect("acquired").release().await.expect("held");
    assert_eq!(semaphore.available().await.expect("answered"), 3);
}

/// A connection that is gone for good, as of a process that is killed.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn permits_of_ours_come_back_to_a_jvm() {
    let server = Server::start();
    let jvm = Jvm::start(&server).await;
    plain(&server).await.semaphore("dead").try_set_permits(3).await.expect("answered");
    let proxy = crate::support::before(&server);
    let dies = crate::support::behind(&proxy, |builder| builder.watchdog(ms(2_000))).await;
    let held = dies.semaphore("dead").acquire(3).await.expect("free");
    let waiting = theirs_waits(&server, &jvm, "dead", 2).await;
    proxy.refuse();
    proxy.cut_all();
    let (ids, _) = crate::support::within("the end of the lease", ms(4_000), waiting.done()).await;
    assert_eq!(ids.value::<String>().split(',').count(), 2);
    assert!(held.is_lost());
    let renewed = client(&server, |builder| builder.watchdog(ms(1_000))).await;
    let kept = renewed.semaphore("dead").acquire(1).await.expect("free");
    tokio::time::sleep(ms(2_500)).await;
    assert_eq!(jvm.get::<i64>(1, "permits:available dead").await, 0, "what is renewed does not come back");
    kept.release().await.expect("held");
}
