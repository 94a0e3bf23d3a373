//! The rights that docs/permissions.md lists for a JVM are enough for its locks, also to renew them.

use serial_test::parallel;

use crate::{
    SOON,
    jvm::Jvm,
    support::{Server, ms, permissions, until},
};

const NAME: &str = "billing:x";
/// Redisson tries these once for itself: a command, and scripts with keys of its own.
const TRIED: [&str; 3] = ["eval", "test1", "test2"];

/// A server with the user `jvm`, and a JVM that is this user. `rows`: the first cells of rows of the page.
async fn as_user(rows: &[&str]) -> (Server, Jvm) {
    let rules: Vec<_> =
        permissions::of_a_lock().into_iter().chain(rows.iter().copied().flat_map(permissions::of_row)).collect();
    let server = Server::start();
    server.set_user("jvm", &[&["on", ">p"], &rules[..]].concat());
    let jvm = Jvm::at(&server.url_as("jvm", "p"), ms(3_000)).await;
    (server, jvm)
}

fn assert_nothing_was_refused(server: &Server) {
    let log: Vec<std::collections::HashMap<String, redis::Value>> = server.ask(&["ACL", "LOG", "100"]);
    let objects = log.iter().map(|entry| redis::from_redis_value_ref::<String>(&entry["object"]).expect("a text"));
    let refused: Vec<_> = objects.filter(|object| !TRIED.contains(&&**object)).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

/// Locks it twice, waits for a renewal, and has another thread wait for it.
async fn lock_renew_and_pass_on(server: &Server, jvm: &Jvm, kind: &str, other: &str) {
    for _ in 0..2 {
        jvm.call(1, &format!("lock:{kind} {NAME} -1")).await;
    }
    let waiting = jvm.ask(2, &format!("lock:{other} {NAME} -1"));
    until("the lease to be shorter", SOON * 5, || server.pttl(NAME) < 2_500).await;
    until("a renewal", SOON * 5, || server.pttl(NAME) > 2_800).await;
    for _ in 0..2 {
        jvm.call(1, &format!("unlock:{kind} {NAME}")).await;
    }
    waiting.done().await;
    jvm.call(2, &format!("unlock:{other} {NAME}")).await;
    jvm.call(1, &format!("lock:{kind} {NAME} -1")).await;
    jvm.call(1, &format!("forceUnlock:{kind} {NAME}")).await;
    assert_nothing_was_refused(server);
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn plain_and_fenced() {
    let (server, jvm) = as_user(&["`RLock`, `RFencedLock`"]).await;
    lock_renew_and_pass_on(&server, &jvm, "plain", "plain").await;
    let (server, jvm) = as_user(&["`fenced_lock`", "`RLock`, `RFencedLock`"]).await;
    lock_renew_and_pass_on(&server, &jvm, "fenced", "fenced").await;
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn fair() {
    let (server, jvm) = as_user(&["`fair_lock`", "`RFairLock`"]).await;
    lock_renew_and_pass_on(&server, &jvm, "fair", "fair").await;

    // One leaves the queue, and those behind it move up.
    let in_line = || server.ask::<usize>(&["LLEN", &format!("redisson_lock_queue:{{{NAME}}}")]);
    jvm.call(1, &format!("lock:fair {NAME} -1")).await;
    let leaving = jvm.ask(2, &format!("tryLock:fair {NAME} 1000 -1"));
    until("it to wait", SOON, || in_line() == 1).await;
    let waiting = jvm.ask(3, &format!("lock:fair {NAME} -1"));
    assert_eq!(leaving.done().await.outcome, Ok("false".to_owned()));
    jvm.call(1, &format!("unlock:fair {NAME}")).await;
    waiting.done().await;
    jvm.call(3, &format!("unlock:fair {NAME}")).await;
    assert_nothing_was_refused(&server);
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn readers_and_writers() {
    let (server, jvm) = as_user(&["`rw_lock`", "`RReadWriteLock`"]).await;
    lock_renew_and_pass_on(&server, &jvm, "read", "write").await;
    lock_renew_and_pass_on(&server, &jvm, "write", "read").await;
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn semaphores() {
    const ON_THE_JVM: &str = "`RPermitExpirableSemaphore`, `RSemaphore`";
    let (server, jvm) = as_user(&["`semaphore`", ON_THE_JVM]).await;
    jvm.call(1, &format!("permits:trySetPermits {NAME} 1")).await;
    let id: String = jvm.get(1, &format!("permits:acquire {NAME} 1 60000")).await;
    let waiting = jvm.ask(2, &format!("permits:acquire {NAME} 1 200"));
    jvm.call(1, &format!("permits:release {NAME} {id}")).await;
    waiting.done().await;
    jvm.call(1, &format!("permits:addPermits {NAME} 1")).await;
    assert!(jvm.get::<u32>(1, &format!("permits:available {NAME}")).await >= 1);
    assert_nothing_was_refused(&server);

    let (server, jvm) = as_user(&["`plain_semaphore`", ON_THE_JVM]).await;
    for command in ["trySetPermits", "acquire", "release", "addPermits", "acquire"] {
        jvm.call(1, &format!("counter:{command} {NAME} 1")).await;
    }
    jvm.call(1, &format!("counter:drain {NAME}")).await;
    assert_nothing_was_refused(&server);
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn latches() {
    let (server, jvm) = as_user(&["`latch`", "`RCountDownLatch`"]).await;
    jvm.call(1, &format!("latch:trySetCount {NAME} 1")).await;
    let waiting = jvm.ask(2, &format!("latch:await {NAME}"));
    jvm.call(1, &format!("latch:countDown {NAME}")).await;
    waiting.done().await;
    jvm.call(1, &format!("latch:trySetCount {NAME} 1")).await;
    jvm.call(1, &format!("latch:delete {NAME}")).await;
    assert_nothing_was_refused(&server);
}
