//! Locks taken several times: each side reads the other's count, and gets the lock after the last level only.

use serial_test::parallel;

use crate::{asleep, both, jvm::Jvm, soon, support::Server, wait_for};

async fn holders(jvm: &Jvm) -> String {
    jvm.get(9, "holders nested").await
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn redisson_three_levels_deep() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let lock = client.lock("nested");
    let owner: String = jvm.get(1, "owner nested").await;
    for count in 1..=3 {
        jvm.call(1, "lock nested -1").await;
        let holder = lock.inspect().await.expect("answered").expect("held");
        assert_eq!((&holder.id, holder.holds), (&owner, count));
        assert_eq!(jvm.get::<u64>(1, "holdCount nested").await, count);
    }
    let waiting = asleep(&server, || wait_for(&lock)).await;
    for count in [2, 1] {
        jvm.call(1, "unlock nested").await;
        assert_eq!(lock.inspect().await.expect("answered").expect("held").holds, count);
        assert_eq!(server.lock("nested"), [(owner.clone(), u32::try_from(count).expect("small"))]);
        assert!(!waiting.is_finished());
    }
    jvm.call(1, "unlock nested").await;
    let (guard, _) = soon("our turn", waiting).await.expect("no panic");
    guard.unlock().await.expect("ours");
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn leasehold_three_levels_deep() {
    let server = Server::start();
    let (jvm, client) = both(&server).await;
    let lock = client.lock("nested");
    let mut guards = Vec::new();
    for count in 1..=3 {
        guards.push(lock.lock().await.expect("free or ours"));
        assert_eq!(holders(&jvm).await, format!("{{{}={count}}}", guards[0].id()));
    }
    let waiting = asleep(&server, || jvm.ask(1, "lock nested -1")).await;
    let id = guards[0].id().to_owned();
    for count in [2, 1] {
        guards.swap_remove(0).unlock().await.expect("ours"); // in any order
        assert_eq!(holders(&jvm).await, format!("{{{id}={count}}}"));
    }
    guards.swap_remove(0).unlock().await.expect("ours");
    soon("the JVM's turn", waiting.done()).await;
    let owner: String = jvm.get(1, "owner nested").await;
    assert_eq!(lock.inspect().await.expect("answered").expect("held").id, owner);
}
