//! Semaphores in memory: the same scripts, on a paused clock.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{HOUR, support::ms, two};

const FIXED: Duration = Duration::from_secs(50);

#[tokio::test(start_paused = true)]
async fn permits_are_renewed_and_split() {
    let (_server, client, other) = two();
    let (mine, theirs) = (client.semaphore("x"), other.semaphore("x"));
    assert!(mine.try_set_permits(4).await.expect("answered") && !theirs.try_set_permits(4).await.expect("answered"));
    let mut three = mine.acquire(3).await.expect("free");
    sleep(HOUR).await;
    assert!(!three.is_lost() && three.remaining() > Duration::from_secs(15));
    assert!(theirs.try_acquire(2).await.expect("answered").is_none());
    let part = three.split(2).expect("it has three");
    part.release().await.expect("held");
    assert_eq!(theirs.available().await.expect("answered"), 3);
    let two = theirs.acquire(2).await.expect("free");
    let holders = mine.inspect().await.expect("answered");
    let count = |id: &str| holders.iter().find(|holder| holder.id.starts_with(id)).map(|holder| holder.holds);
    assert_eq!((holders.len(), count(three.id()), count(two.id())), (2, Some(1), Some(2)));
    three.release().await.expect("held");
    two.release().await.expect("held");
    mine.set_permits(2).await.expect("answered");
    mine.add_permits(-1).await.expect("answered");
    assert_eq!(mine.available().await.expect("answered"), 1);
}

/// To the millisecond: nobody notifies the waiter.
#[tokio::test(start_paused = true)]
async fn permits_that_nobody_releases_come_back_at_the_end_of_their_lease() {
    let (_server, client, other) = two();
    let mine = client.semaphore("x");
    mine.try_set_permits(2).await.expect("answered");
    let began = Instant::now();
    let forgotten = mine.clone().lease(FIXED).acquire(2).await.expect("free");
    let permits = other.semaphore("x").acquire(1).await.expect("acquired");
    assert!(began.elapsed() >= FIXED && began.elapsed() < FIXED + ms(20), "{:?}", began.elapsed());
    assert!(forgotten.is_lost() && forgotten.release().await.is_err());
    permits.release().await.expect("held");
    assert_eq!(mine.available().await.expect("answered"), 2);
}
