//! Readers of JVMs beside ours: they set the end of the lock, and older ones that of our reader, to their own lease.

use std::time::Duration;

use leasehold::{Client, Guard, Owner, RwLock};

use crate::support::{Server, ms, plain, poll_once, until};

fn lock(client: &Client) -> RwLock {
    client.rw_lock("x").owner(&Owner::new())
}

fn lives(guard: &Guard) -> String {
    format!("{{x}}:{}:rwlock_timeout:1", guard.id())
}

/// What Redisson's multi-lock does with each of its locks, and the watchdog of a reader with the lock that it reads.
fn ends_in(server: &Server, key: &str, millis: u64) {
    assert!(server.ask::<bool>(&["PEXPIRE", key, &millis.to_string()]));
}

/// A multi-lock of a JVM with a lease of three seconds, or a reader whose watchdog has three: it may do the same again at once, and
/// be killed then.
#[tokio::test]
async fn a_look_makes_certain_for_no_longer_than_a_jvm_lets_the_lock_last() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = lock(&client).read().await.expect("free");
    guard.check().await.expect("ours");
    assert!(guard.remaining() > ms(28_000), "nobody has brought the end nearer: {:?}", guard.remaining());
    ends_in(&server, "x", 3_000);
    guard.check().await.expect("ours");
    assert!(guard.remaining() <= ms(3_000), "{:?}", guard.remaining());
    assert!(server.pttl("x") > 28_000, "it was mended");
    ends_in(&server, "x", 3_000);
    until("the watchdog to look in time", ms(2_500), || server.pttl("x") > 28_000).await;
    assert!(!guard.is_lost());
    guard.check().await.expect("ours");
    assert!(guard.remaining() > ms(28_000), "it has done so no more");
    guard.unlock().await.expect("ours to the end");
}

/// Redisson before 4.4 renews the expiry keys of all readers, to its own lease. Ours has a longer one.
#[tokio::test]
async fn a_look_mends_the_readers_own_end() {
    const LEASE: Duration = ms(120_000);
    let server = Server::start();
    let client = plain(&server).await;
    let guard = lock(&client).lease(LEASE).read().await.expect("free");
    for key in ["x", &lives(&guard)] {
        ends_in(&server, key, 30_000);
    }
    guard.check().await.expect("ours");
    for key in ["x", &lives(&guard)] {
        assert!((118_000..=120_000).contains(&server.pttl(key)), "{key}: {}", server.pttl(key));
    }
    guard.unlock().await.expect("ours to the end");
}

/// The reply to the first request comes before the JVM shortens the lease, but its caller looks at it after another request has found that.
#[tokio::test]
async fn a_reply_that_is_looked_at_late_makes_nothing_certain_again() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = lock(&client).read().await.expect("free");
    guard.check().await.expect("ours"); // from now on, the server has the script
    let mut before = server.calls("evalsha");
    let mut late = Box::pin(guard.check());
    while poll_once(late.as_mut()).is_ready() {
        (before, late) = (server.calls("evalsha"), Box::pin(guard.check())); // the machine paused, and the reply was there
    }
    until("the first request to run", ms(2_500), || server.calls("evalsha") > before).await;
    ends_in(&server, "x", 3_000);
    guard.check().await.expect("ours");
    late.await.expect("ours");
    assert!(guard.remaining() <= ms(3_000), "{:?}", guard.remaining());
    until("the watchdog to look in time", ms(2_500), || guard.remaining() > ms(28_000)).await;
    guard.unlock().await.expect("ours to the end");
}

/// A nested acquisition sends the same request as a look. If its reply says that the lease was shortened, the JVM may do that once more.
#[tokio::test]
async fn a_nested_read_makes_certain_for_no_longer_than_a_jvm_lets_the_lock_last() {
    let server = Server::start();
    let client = plain(&server).await;
    let owner = Owner::new();
    let lock = client.rw_lock("x").owner(&owner);
    let guard = lock.read().await.expect("free");
    ends_in(&server, "x", 3_000);
    let nested = lock.read().await.expect("nested");
    assert!(guard.remaining() <= ms(3_000), "{:?}", guard.remaining());
    assert!(server.pttl("x") > 28_000, "it was mended");
    until("the watchdog to look in time", ms(2_500), || guard.remaining() > ms(28_000)).await;
    let again = lock.read().await.expect("nested");
    assert!(guard.remaining() > ms(28_000), "{:?}", guard.remaining());
    for guard in [again, nested, guard] {
        guard.unlock().await.expect("ours to the end");
    }
}
