//! Plain semaphores in memory: the same scripts, on a paused clock.

use std::time::Duration;

use leasehold::{Error, Lost};
use tokio::time::{Instant, sleep};

use crate::{HOUR, support::ms, two};

#[tokio::test(start_paused = true)]
async fn permits_are_kept_until_somebody_releases_them() {
    let (server, client, other) = two();
    let (mine, theirs) = (client.plain_semaphore("x"), other.plain_semaphore("x"));
    assert!(matches!(mine.release(1).await, Err(Error::Lost { reason: Lost::Removed, .. })));
    assert!(mine.try_set_permits(4).await.expect("answered") && !theirs.try_set_permits(4).await.expect("answered"));
    mine.acquire(3).await.expect("free");
    sleep(HOUR).await;
    assert_eq!(server.keys(), ["x"], "receipts have ended, and permits have no lease");
    assert!(!theirs.try_acquire(2).await.expect("answered"));
    let waiting = tokio::spawn(async move { theirs.with(2, async || Instant::now()).await });
    sleep(ms(100)).await;
    let released = Instant::now();
    other.plain_semaphore("x").release(1).await.expect("answered");
    let acquired = waiting.await.expect("no panic").expect("acquired");
    assert!(acquired.duration_since(released) < ms(50));
    assert_eq!((mine.available().await.expect("answered"), mine.drain().await.expect("answered")), (2, 2));
    mine.add_permits(-1).await.expect("answered");
    assert_eq!(mine.available().await.expect("answered"), -1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_takes_nothing_twice() {
    let (server, client, _other) = two();
    let x = client.plain_semaphore("x");
    for lost in 1..4 {
        x.add_permits(4).await.expect("answered");
        server.lose_replies(lost);
        x.acquire(3).await.expect("it sends the request again");
        assert_eq!(x.available().await.expect("answered"), 1);
        server.lose_replies(lost);
        x.release(2).await.expect("it sends the request again");
        server.lose_replies(lost);
        assert_eq!(x.drain().await.expect("it sends the request again"), 3);
    }
}

/// The permits return as soon as the server replies again. A receipt tells it for 90 s that they were taken.
#[tokio::test(start_paused = true)]
async fn what_an_outage_took_returns_while_its_receipt_lasts() {
    let (server, client, other) = two();
    let x = client.plain_semaphore("x");
    x.try_set_permits(3).await.expect("answered");
    for (outage, back) in [(Duration::from_secs(85), 3), (Duration::from_secs(125), 1)] {
        server.lose_replies(1);
        let calling = tokio::spawn({
            let x = x.clone();
            async move { x.acquire(2).await }
        });
        tokio::task::yield_now().await;
        while other.plain_semaphore("x").available().await.expect("answered") == 3 {}
        calling.abort();
        server.freeze();
        sleep(outage).await;
        server.thaw();
        sleep(Duration::from_secs(3)).await;
        let left = other.plain_semaphore("x").available().await.expect("answered");
        assert_eq!(left, back, "after {outage:?}");
    }
}
