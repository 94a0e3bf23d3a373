//! A lease longer than the watchdog's, or one that is lost, is over when its guard is given back or its time has passed, whoever else
//! has a part in the lock.

use std::time::Duration;

use leasehold::{Client, Guard, Owner};
use tokio::task::JoinHandle;

use crate::{
    kinds::family::{Held, How, Way as Kind, idle},
    kinds::family_faults,
    support::{
        Server, before, behind, client, ms, plain, poll_until,
        proxy::{Fault, Proxy, Rule, Way, Which},
        script, until, within,
    },
};

const SOON: Duration = ms(6_000);
const HOUR: Duration = ms(3_600_000);

fn waits(client: &Client) -> JoinHandle<Guard> {
    let lock = client.mutex("x");
    tokio::spawn(async move { lock.lock().await.expect("in the end") })
}

/// The request is on its way when its caller leaves, so what it comes to is known to nobody: the lock is not passed on in memory.
#[tokio::test]
async fn an_extension_that_was_cancelled_does_not_stay_with_the_next_holder() {
    let server = Server::start();
    let renew = script(&server, "renew");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(2_000))).await;
    let guard = client.mutex("x").lock().await.expect("free");
    let waiting = waits(&client);
    until("it to wait", SOON, || client.stats().now.waiting == 1).await;
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

/// The next one would keep a lease that it never asked for, and if its process died, the lock would stay held for an hour.
#[tokio::test]
async fn a_lease_of_a_call_that_was_cancelled_does_not_stay_with_the_next_holder() {
    let server = Server::start();
    let acquire = script(&server, "acquire");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(2_000))).await;
    let long = [client.mutex("x").lease(HOUR), client.mutex("x").min_hold(HOUR)];
    for (at, long) in long.into_iter().enumerate() {
        proxy.rule(Rule::new(acquire.clone(), Fault::Delay(Way::Back, ms(300))));
        let mut asking = Box::pin(long.lock());
        poll_until("it to be under way", asking.as_mut(), || proxy.tally().delayed == at as u64 + 1).await;
        let waiting = waits(&client);
        until("it to wait", SOON, || client.stats().now.waiting == 2).await;
        drop(asking);
        let next = within("its turn", SOON, waiting).await.0.expect("no panic");
        assert!((1..=2_000).contains(&server.pttl("x")), "{}", server.pttl("x"));
        next.unlock().await.expect("ours");
    }
}

/// The call leaves while the lock is handed over to it.
#[tokio::test]
async fn nor_does_that_of_a_hand_over() {
    let server = Server::start();
    let hand_over = script(&server, "hand_over");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(2_000))).await;
    let guard = client.mutex("x").lock().await.expect("free");
    let asking = tokio::spawn({
        let long = client.mutex("x").lease(HOUR);
        async move { long.lock().await.map(drop) }
    });
    until("it to wait", SOON, || client.stats().now.waiting == 1).await;
    let waiting = waits(&client);
    until("both to wait", SOON, || client.stats().now.waiting == 2).await;
    proxy.rule(Rule::new(hand_over, Fault::Delay(Way::Back, ms(300))));
    drop(guard);
    until("it to be under way", SOON, || proxy.tally().delayed == 1).await;
    asking.abort();
    let next = within("its turn", SOON, waiting).await.0.expect("no panic");
    assert!((1..=2_000).contains(&server.pttl("x")), "{}", server.pttl("x"));
    next.unlock().await.expect("ours");
}

/// The call leaves while its place becomes the lock, and another branch of its owner waits for the same lock.
#[tokio::test]
async fn nor_does_that_of_a_place() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(2_000))).await;
    let owner = Owner::new();
    let lock = || client.fair_lock("x").owner(&owner);
    proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Delay(Way::Back, ms(300))));
    let (long, short) = (lock().lease(HOUR), lock());
    let mut asking = Box::pin(long.lock());
    poll_until("it to be under way", asking.as_mut(), || proxy.tally().delayed == 1).await;
    let mut waiting = Box::pin(short.lock());
    poll_until("the other branch to wait", waiting.as_mut(), || client.stats().now.waiting == 2).await;
    drop(asking);
    let next = within("its turn", SOON, waiting).await.0.expect("in the end");
    assert!((1..=2_000).contains(&server.pttl("x")), "{}", server.pttl("x"));
    next.unlock().await.expect("ours");
}

/// The writing is lost, but its guard is kept, and its owner goes on reading.
#[tokio::test]
async fn a_writing_that_was_lost_ends_beside_its_owners_reading() {
    let server = Server::start();
    let (one, other) = (client(&server, |builder| builder.watchdog(ms(1_200))).await, plain(&server).await);
    let lock = one.rw_lock("x").owner(&Owner::new());
    for capped in [true, false] {
        let writing = lock.clone().lease(ms(700));
        let writing = if capped { lock.clone().max_hold(ms(400)) } else { writing };
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

/// The same if its owner has stopped reading before. The lease of the reading was longer, and the server keeps it for both.
#[tokio::test]
async fn a_writing_that_was_lost_ends_after_its_owners_reading() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let lock = one.rw_lock("x").owner(&Owner::new());
    for capped in [true, false] {
        let writing = lock.clone().lease(ms(1_000));
        let writing = if capped { writing.max_hold(ms(600)) } else { writing };
        let writing = writing.write().await.expect("free");
        let reading = lock.read().await.expect("below its own writing");
        reading.unlock().await.expect("ours");
        within("its end", SOON, writing.lost()).await;
        let next = within("its turn", SOON, other.rw_lock("x").write()).await.0.expect("nobody writes");
        assert!(writing.unlock().await.is_err(), "it was lost");
        next.unlock().await.expect("ours");
        idle(&one).await;
    }
}

/// The same if the server cannot be reached before the lease of the writing is over.
#[tokio::test]
async fn a_writing_that_was_lost_in_an_outage_ends_beside_its_owners_reading() {
    let server = Server::start();
    let proxy = before(&server);
    let one = behind(&proxy, |builder| builder.watchdog(ms(1_000)).command_timeout(ms(300))).await;
    let two = plain(&server).await;
    let lock = one.rw_lock("x").owner(&Owner::new());
    let writing = lock.write().await.expect("free");
    let reading = lock.clone().lease(HOUR).read().await.expect("its own");
    proxy.refuse();
    proxy.cut_all();
    until("the end of the writing", SOON, || writing.is_lost()).await;
    tokio::time::sleep(ms(2_500)).await; // its lease, and a request
    proxy.accept();
    let other = two.rw_lock("x").owner(&Owner::new());
    let beside = within("another reader", SOON, other.read()).await.0.expect("let in");
    assert!(!reading.is_lost());
    drop((beside, reading, writing));
    idle(&one).await;
}

/// A call with this lease waits behind one without, which is cancelled while its request is under way.
async fn behind_a_cancelled_call(way: Kind, lease: Duration) -> (Server, Proxy, Client, Held) {
    let server = Server::start();
    let (acquire, proxy) = (family_faults::script(&server, way, "acquire"), before(&server));
    let client = behind(&proxy, |builder| builder).await;
    proxy.rule(Rule::new(acquire, Fault::Delay(Way::There, ms(300))));
    let asks = |how: How| {
        let client = client.clone();
        tokio::spawn(async move { way.take(&client, "x", how).await })
    };
    let first = asks(How::for_other());
    until("its request", SOON, || proxy.tally().delayed == 1).await;
    let second = asks(How { lease: Some(lease), ..How::for_other() });
    until("both to wait", SOON, || client.stats().now.waiting == 2).await;
    first.abort();
    let held = within("its turn", SOON, second).await.0.expect("no panic").expect("answered").expect("free");
    (server, proxy, client, held)
}

async fn released(server: &Server, client: &Client, held: Held) {
    held.unlock().await.expect("ours to the end");
    idle(client).await;
    assert!(!server.exists("x"));
}

/// A call acquires the lock by the request of another call, which needed less. Nothing renews a fixed lease.
#[tokio::test]
async fn a_fixed_lease_is_the_one_of_its_caller() {
    for way in [Kind::Plain, Kind::Fenced, Kind::Read, Kind::Write] {
        let (server, _proxy, client, held) = behind_a_cancelled_call(way, ms(50_000)).await;
        until("the lease that it asked for", ms(2_000), || server.pttl("x") > 49_000).await;
        released(&server, &client, held).await;
    }
}

/// The same with a lease that is shorter than the watchdog's.
#[tokio::test]
async fn nor_is_a_short_one_that_of_another_call() {
    for way in [Kind::Plain, Kind::Fenced, Kind::Write] {
        let (server, _proxy, client, held) = behind_a_cancelled_call(way, ms(2_000)).await;
        assert!(server.pttl("x") <= 2_000, "{way:?}: {}", server.pttl("x"));
        released(&server, &client, held).await;
    }
}

/// The connection is closed while a nested read asks for a longer lease than the outer one.
#[tokio::test]
async fn of_a_nested_read_a_lost_reply_takes_nothing() {
    for way in [Way::There, Way::Back] {
        let server = Server::start();
        let (renew, proxy) = (family_faults::script(&server, Kind::Read, "renew"), before(&server));
        let client = behind(&proxy, |builder| builder).await;
        let owner = Owner::new();
        let lock = client.rw_lock("x").owner(&owner);
        let outer = lock.read().await.expect("free");
        proxy.rule(Rule::new(renew, Fault::Cut(way)));
        let (nested, took) = within("the reply", SOON, lock.clone().lease(HOUR).read()).await;
        let nested = nested.expect("nested");
        assert!(took < ms(700), "{took}");
        outer.unlock().await.expect("ours to the end");
        assert!(server.pttl("x") > 3_500_000, "{}", server.pttl("x"));
        nested.unlock().await.expect("ours to the end");
        idle(&client).await;
        assert!(!server.exists("x"));
    }
}
