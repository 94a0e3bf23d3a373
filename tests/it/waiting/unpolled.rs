//! A `lock()` future that is kept and not polled: it gets nothing for nothing, and does not stop others.

use std::{
    future::Future,
    pin::{Pin, pin},
    time::Duration,
};

use leasehold::{Builder, Client, Error, Guard, Lock, Owner};
use tokio::{task::JoinHandle, time::sleep};

use crate::support::{
    Server, before, begin, behind, client, ms, plain, poll_once, poll_until,
    proxy::{Fault, Rule, Way},
    script, until, within,
};

/// How long one may keep the first place without being there, and what a busy machine adds.
const PASSED_OVER: Duration = ms(11_000);

type Kept = Pin<Box<dyn Future<Output = leasehold::Result<Guard>>>>;

async fn waiter(client: &Client) -> JoinHandle<leasehold::Result<Guard>> {
    let (lock, before) = (client.lock("x").owner(&Owner::new()), client.stats().now.waiting);
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(2_000), || client.stats().now.waiting > before).await;
    waiting
}

#[tokio::test]
async fn a_lock_that_was_handed_over_and_ended_unseen_is_taken_anew() {
    let server = Server::start();
    // Short, since it has to end; a busy machine must still find the time to renew it.
    let client = client(&server, |builder: Builder| builder.watchdog(ms(900))).await;
    let held = client.lock("x").lock().await.expect("free");
    let lock = client.lock("x").owner(&Owner::new());
    let mut kept = pin!(lock.lock());
    poll_until("it to wait", kept.as_mut(), || client.stats().now.waiting == 1).await;
    held.unlock().await.expect("ours");
    let fields = || server.lock("x");
    until("what was handed over to end", ms(15_000), || !server.exists("x")).await;
    let (taken, _) = within("a lock", ms(3_000), kept).await;
    let guard = taken.expect("free");
    assert!(!guard.is_lost() && !guard.remaining().is_zero(), "lost from the start: {guard:?}");
    assert_eq!(fields(), [(guard.id().to_owned(), 1)]);
    guard.unlock().await.expect("ours to the end");
    assert!(!server.exists("x"));
}

/// `held` is given back, the first of the client's waiters is not there, and the next has the lock all the same.
async fn goes_to_the_next(server: &Server, client: &Client, held: Guard) {
    let lock = client.lock("x").owner(&Owner::new());
    let mut kept = pin!(lock.lock());
    let waits = || {
        let stats = client.stats();
        // Behind another client it asks the server, and asks again when its subscription stands.
        stats.now.waiting == 1 && (stats.now.holds == 1 || stats.total.refused >= 2)
    };
    poll_until("it to wait", kept.as_mut(), waits).await;
    let behind = waiter(client).await;
    held.unlock().await.expect("ours");
    let (taken, _) = within("the next in line to have it", PASSED_OVER, behind).await;
    let taken = taken.expect("no panic").expect("free");
    assert_eq!(server.lock("x"), [(taken.id().to_owned(), 1)]);
    taken.unlock().await.expect("ours");
    let (taken, _) = within("the turn of the one who was away", ms(3_000), kept).await;
    taken.expect("free").unlock().await.expect("ours");
    assert!(!server.exists("x"));
}

/// Releases by a busy client are messages for a waiter that is not polled. If its requests came late, the busy client would always have
/// the lock again, and the waiter behind it would never get a turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_client_leaves_a_turn_to_the_waiter_behind_one_that_is_not_polled() {
    let server = Server::start();
    let (busy, away) = (plain(&server).await, plain(&server).await);
    let turn = async |lock: Lock| loop {
        let guard = lock.lock().await.expect("granted");
        sleep(ms(30)).await;
        guard.unlock().await.expect("ours");
    };
    let tasks: Vec<_> =
        (0..4).map(|_| busy.lock("x").owner(&Owner::new())).map(|lock| tokio::spawn(turn(lock))).collect();
    let lock = away.lock("x").owner(&Owner::new());
    let mut kept = pin!(lock.lock());
    until("the others to have it", ms(2_000), || busy.stats().now.holds == 1).await;
    poll_until("it to wait", kept.as_mut(), || away.stats().now.waiting == 1 && away.stats().total.refused >= 2).await;
    let behind = waiter(&away).await;
    let (taken, _) = within("a turn", ms(6_000), behind).await;
    taken.expect("no panic").expect("granted").unlock().await.expect("ours");
    tasks.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn one_who_is_not_there_does_not_stop_the_line() {
    let server = Server::start();
    let (holder, client) = (plain(&server).await, plain(&server).await);
    let held = holder.lock("x").lock().await.expect("free");
    goes_to_the_next(&server, &client, held).await;
}

/// Given back in the same process, it is handed to the first.
#[tokio::test]
async fn a_lock_is_not_parked_with_one_who_is_not_there() {
    let server = Server::start();
    let client = plain(&server).await;
    let held = client.lock("x").lock().await.expect("free");
    goes_to_the_next(&server, &client, held).await;
}

/// A future that waits in line behind somebody else's lock, and is kept from then on.
async fn kept_in_line(
    client: &Client,
    lock: &leasehold::Lock,
) -> Pin<Box<dyn Future<Output = leasehold::Result<Guard>>>> {
    let lock = lock.clone();
    let (mut kept, before) = (Box::pin(async move { lock.lock().await }), client.stats().now.waiting);
    poll_until("it to wait", kept.as_mut(), || client.stats().now.waiting > before).await;
    kept
}

#[tokio::test]
async fn many_who_are_not_there_do_not_add_up() {
    let server = Server::start();
    let (client, holder) = (plain(&server).await, plain(&server).await);
    let held = holder.lock("x").lock().await.expect("free");
    let mut kept = Vec::new();
    for _ in 0..5 {
        kept.push(kept_in_line(&client, &client.lock("x").owner(&Owner::new())).await);
    }
    let behind = waiter(&client).await;
    held.unlock().await.expect("ours");
    let (taken, _) = within("the one who is there", PASSED_OVER + ms(3_000), behind).await;
    drop(taken.expect("no panic").expect("free"));
    drop(kept);
}

#[tokio::test]
async fn its_owner_is_not_kept_from_the_lock() {
    for comes_back in [true, false] {
        owner_is_not_kept_from_the_lock(comes_back).await;
    }
}

async fn owner_is_not_kept_from_the_lock(comes_back: bool) {
    let server = Server::start();
    let (client, holder) = (plain(&server).await, plain(&server).await);
    let held = holder.lock("x").lock().await.expect("free");
    let lock = client.lock("x").owner(&Owner::new());
    let kept = kept_in_line(&client, &lock).await;
    held.unlock().await.expect("ours");
    let taken = async {
        loop {
            // Until it is passed over this waits behind its own first call, and says so.
            match lock.try_lock().await {
                Ok(Some(guard)) => break guard,
                Ok(None) | Err(Error::Unavailable { .. }) => sleep(ms(100)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let (guard, _) = within("the lock that nobody has", PASSED_OVER + ms(4_000), taken).await;
    if comes_back {
        let again = within("one more level", ms(3_000), kept).await.0.expect("the same owner");
        assert_eq!(guard.holds(), 2);
        again.unlock().await.expect("ours");
        assert_eq!(guard.holds(), 1);
        guard.unlock().await.expect("ours to the end");
        assert!(!server.exists("x"));
    } else {
        // Its first call may have a level that it has not seen. That keeps the lock from nobody else.
        guard.unlock().await.expect("ours to the end");
        let (next, _) = within("the lock that nobody has", PASSED_OVER, holder.lock("x").lock()).await;
        next.expect("free").unlock().await.expect("ours to the end");
    }
}

/// Granted by a request that is sent again after all was taken back.
#[tokio::test]
async fn what_is_asked_for_after_it_was_taken_back_is_taken_back_too() {
    let server = Server::start();
    let acquire = script(&server, "acquire");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let lock = client.lock("x").owner(&Owner::new()).lease(Duration::from_secs(3_600));
    proxy.rule(Rule::new(acquire.clone(), Fault::Cut(Way::Back)));
    let mut kept = Box::pin(lock.lock());
    poll_until("it to be granted", kept.as_mut(), || proxy.is_spent()).await;
    until("it to be passed over", PASSED_OVER, || !server.exists("x")).await;
    proxy.rule(Rule::new(acquire, Fault::Delay(Way::Back, ms(300))));
    poll_until("it to be granted again", kept.as_mut(), || server.exists("x")).await;
    drop(kept);
    until("it to be given back", ms(5_000), || !server.exists("x")).await;
}

#[tokio::test]
async fn one_who_leaves_after_being_passed_over_leaves_no_subscription() {
    let server = Server::start();
    let (client, holder) = (plain(&server).await, plain(&server).await);
    let held = holder.lock("x").lock().await.expect("free");
    let lock = client.lock("x").owner(&Owner::new());
    let mut kept = Box::pin(lock.lock());
    let before = client.stats().total.calls;
    poll_until("it to have asked", kept.as_mut(), || client.stats().total.calls > before).await;
    // Whoever comes next is alone in line once the first was passed over, and takes the line with it.
    let next = client.lock("x").owner(&Owner::new());
    let ended = next.try_lock_for(PASSED_OVER).await; // on a busy machine the last reply may be too late for it
    assert!(matches!(&ended, Ok(None)) || ended.is_err_and(|error| error.is_unavailable()), "it is held");
    let _ = tokio::time::timeout(ms(300), kept.as_mut()).await;
    drop(kept);
    until("nobody to listen", ms(5_000), || client.stats().now.subscriptions == 0).await;
    held.unlock().await.expect("ours");
}

#[tokio::test]
async fn closing_does_not_wait_for_one_who_is_not_there() {
    let server = Server::start();
    let client = plain(&server).await;
    client.lock("y").lock().await.expect("free").unlock().await.expect("ours"); // the server knows the script
    let lock = client.lock("x").lease(Duration::from_secs(3_600));
    let mut kept = Box::pin(lock.lock());
    begin(&server, kept.as_mut());
    until("it to be granted", ms(5_000), || server.exists("x")).await;
    client.clone().close().await.expect("all was given back");
    assert!(!server.exists("x"));
    assert!(matches!(kept.await, Err(Error::Closed)));
    assert!(!server.exists("x"));
}

/// A hundred futures that nobody polls, as in a `buffer_unordered(100)` whose consumer is busy, before one that is polled.
#[tokio::test]
async fn a_hundred_who_are_not_there_do_not_add_up() {
    let server = Server::start();
    let (holder, client) = (plain(&server).await, plain(&server).await);
    let held = holder.lock("x").lock().await.expect("free");
    let mut kept: Vec<Kept> = Vec::new();
    for n in 0..100 {
        let lock = client.lock("x").owner(&Owner::new());
        let mut waits: Kept = Box::pin(async move { lock.lock().await });
        poll_until("it to wait", Pin::new(&mut waits), || client.stats().now.waiting > n).await;
        kept.push(waits);
    }
    let lock = client.lock("x").owner(&Owner::new());
    let behind = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(2_000), || client.stats().now.waiting > 100).await;
    held.unlock().await.expect("ours");
    let (taken, took) = within("the one who is there", ms(90_000), behind).await;
    drop(taken.expect("no panic").expect("free"));
    assert!(took <= ms(13_000), "a free lock with a waiter who is there stayed free for {took:?}");
}

/// A waiter that is not polled, or that leaves, has a request among those that gather while there is no connection. What takes it back must
/// not overtake it.
#[tokio::test]
async fn what_takes_a_request_back_does_not_come_before_it() {
    for leaves in [false, true] {
        takes_a_request_back_after_it(leaves).await;
    }
}

async fn takes_a_request_back_after_it(leaves: bool) {
    let server = Server::start();
    for name in ["acquire", "release", "hand_over", "inspect"] {
        script(&server, name);
    }
    for round in 0..2 {
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder.command_timeout(ms(10_000))).await;
        let name = format!("x-{round}");
        proxy.refuse();
        proxy.cut_all();
        until("the connection to be lost", ms(2_000), || proxy.tally().connections >= 1).await;
        sleep(ms(100)).await;
        let full = client.lock("full");
        let mut fillers: Vec<_> = (0..16).map(|_| Box::pin(full.inspect())).collect();
        fillers.iter_mut().for_each(|filler| _ = poll_once(filler.as_mut()));
        let lock = client.mutex(&name).lease(Duration::from_secs(3_600));
        let mut kept: Kept = Box::pin(async move { lock.lock().await });
        assert!(poll_once(kept.as_mut()).is_pending());
        let kept = (!leaves).then_some(kept);
        if leaves {
            until("its request to be taken back", ms(2_000), || client.stats().now.releasing > 0).await;
        }
        sleep(ms(200)).await; // a task of the client goes on with the request of one that is not polled
        let before = server.calls("evalsha");
        proxy.accept();
        until("the requests to arrive", ms(5_000), || server.calls("evalsha") > before).await;
        until("the lock to be free", PASSED_OVER, || {
            let now = client.stats().now;
            (now.waiting, now.releasing) == (0, 0) && !server.exists(&name)
        })
        .await;
        sleep(ms(500)).await;
        let left = server.pttl(&name);
        assert!(left < 0, "round {round}: given back, and has the lock for {left} ms more");
        drop((kept, fillers));
    }
}
