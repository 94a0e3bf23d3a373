//! A lease longer than the watchdog's, or one that is lost, is over when its guard is given back or its time has passed, whoever else
//! has a part in the lock.

use std::time::Duration;

use leasehold::Owner;

use crate::{
    family::idle,
    support::{
        Server, before, behind, client, ms, plain, poll_until,
        proxy::{Fault, Rule, Way},
        script, until, within,
    },
};

const SOON: Duration = ms(3_000);
const HOUR: Duration = ms(3_600_000);

/// The request is on its way when its caller leaves, so what it comes to is known to nobody: the lock is not passed on in memory.
#[tokio::test]
async fn an_extension_that_was_cancelled_does_not_stay_with_the_next_holder() {
    let server = Server::start();
    let renew = script(&server, "renew");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(2_000))).await;
    let guard = client.mutex("x").lock().await.expect("free");
    let waiting = tokio::spawn({
        let lock = client.mutex("x");
        async move { lock.lock().await.expect("in the end") }
    });
    until("it to wait", SOON, || client.stats().total.refused >= 1).await;
    proxy.rule(Rule::new(renew, Fault::Delay(Way::There, ms(300))));
    {
        let mut extending = Box::pin(guard.extend(HOUR));
        poll_until("it to be under way", extending.as_mut(), || proxy.tally().delayed == 1).await;
    }
    drop(guard);
    let next = within("its turn", SOON, waiting).await.0.expect("no panic");
    next.check().await.expect("ours");
    assert!((1..=2_000).contains(&server.pttl("x")), "{}", server.pttl("x"));
    next.unlock().await.expect("ours");
}

/// The writing is lost, but its guard is kept, and its owner goes on reading.
#[tokio::test]
async fn a_writing_that_was_lost_ends_beside_its_owners_reading() {
    let server = Server::start();
    let (one, other) = (client(&server, |builder| builder.watchdog(ms(400))).await, plain(&server).await);
    let lock = one.rw_lock("x").owner(&Owner::new());
    for capped in [true, false] {
        let writing = if capped { lock.clone().max_hold(ms(100)) } else { lock.clone().lease(ms(300)) };
        let writing = writing.write().await.expect("free");
        let reading = lock.read().await.expect("below its own writing");
        within("its end", SOON, writing.lost()).await;
        let beside = within("its turn", SOON, other.rw_lock("x").read()).await.0.expect("nobody writes");
        reading.check().await.expect("still ours");
        assert!(writing.unlock().await.is_err(), "it was lost");
        reading.check().await.expect("still ours");
        beside.unlock().await.expect("ours");
        reading.unlock().await.expect("ours to the end");
        idle(&one).await;
        until("the lock to be free", SOON, || !server.exists("x")).await;
    }
    let total = one.stats().total;
    assert_eq!((total.lost, total.acquired), (2, total.released + total.lost), "{total:?}");
}
