//! A lock that goes from one waiter to the next in memory, while the server is asked only now and then.

use std::{task::Poll, time::Duration};

use leasehold::{Client, Error, Guard, Lost, Owner};
use tokio::task::JoinHandle;

use crate::support::{
    Server, before, behind, client, ms, plain, poll_once, poll_until,
    proxy::{Fault, Rule, Way},
    script, until, within,
};

type Waiting = JoinHandle<leasehold::Result<Guard>>;

/// A server that knows the scripts, and a client.
async fn scene() -> (Server, Client) {
    let server = Server::start();
    for name in ["acquire", "release", "renew", "hand_over"] {
        script(&server, name);
    }
    let client = plain(&server).await;
    (server, client)
}

/// A client that has the lock, and so many of its tasks that wait for it.
async fn row(client: &Client, waiters: u64) -> (Guard, Vec<Waiting>) {
    let held = client.lock("x").lock().await.expect("free");
    let mut waiting = Vec::new();
    for n in 1..=waiters {
        let lock = client.lock("x").owner(&Owner::new());
        waiting.push(tokio::spawn(async move { lock.lock().await }));
        until("it to wait", ms(2_000), || client.stats().now.waiting == n).await;
    }
    (held, waiting)
}

async fn taken(waiting: Waiting) -> Guard {
    let (taken, _) = within("a turn", ms(2_000), waiting).await;
    taken.expect("no panic").expect("it is passed on")
}

/// Each of so many tasks takes the lock so many times, and is told that it was its own.
async fn take_turns(client: &Client, tasks: u32, turns: u32) {
    let all: Vec<_> = (0..tasks)
        .map(|_| {
            let lock = client.lock("x");
            tokio::spawn(async move {
                for _ in 0..turns {
                    lock.lock().await.expect("answered").unlock().await.expect("ours");
                }
            })
        })
        .collect();
    for task in all {
        task.await.expect("no panic");
    }
}

/// All is given back, told and counted.
async fn is_clean(server: &Server, client: &Client) {
    let idle = |stats: leasehold::Stats| (stats.now.holds, stats.now.waiting, stats.now.releasing) == (0, 0, 0);
    until("the client to be idle", ms(2_000), || idle(client.stats())).await;
    until("the lock to be free", ms(2_000), || !server.exists("x")).await;
    let total = client.stats().total;
    assert_eq!(total.acquired, total.released + total.lost, "{total:?}");
}

#[tokio::test]
async fn asks_the_server_for_confirmations_only() {
    let (server, client) = scene().await;
    let (held, waiting) = row(&client, 8).await;
    let (id, before) = (held.id().to_owned(), server.calls("evalsha"));
    let renewed = client.stats().total.renewals;
    drop(held);
    for waiting in waiting {
        let guard = taken(waiting).await;
        assert_eq!((guard.id(), guard.holds(), server.lock("x")), (&*id, 1, vec![(id.clone(), 1)]));
        assert!(guard.remaining() > Duration::from_secs(15));
        drop(guard);
    }
    is_clean(&server, &client).await;
    let total = client.stats().total;
    let confirmed = total.renewals - renewed;
    assert_eq!(server.calls("evalsha") - before, 1 + confirmed, "the release of the last, and confirmations");
    assert!(confirmed <= 8, "one for all who let go before it was sent");
    assert_eq!(total.handed_over, 8);
}

#[tokio::test]
async fn unlock_is_told_by_one_confirmation() {
    let (server, client) = scene().await;
    let (held, mut waiting) = row(&client, 1).await;
    let before = server.calls("evalsha");
    held.unlock().await.expect("ours to the end");
    let next = taken(waiting.remove(0)).await;
    assert_eq!(server.calls("evalsha") - before, 1, "the confirmation");
    next.unlock().await.expect("ours to the end");
    is_clean(&server, &client).await;
}

/// The lock is gone when it is passed on: the one before learns it from the confirmation, and so does whoever has it.
#[tokio::test]
async fn what_was_gone_is_lost_for_both() {
    let (server, client) = scene().await;
    let (held, mut waiting) = row(&client, 1).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    let unlocked = held.unlock().await;
    assert!(matches!(unlocked, Err(Error::Lost { reason: Lost::Removed, .. })), "{unlocked:?}");
    let (next, _) = within("its turn, or another", ms(2_000), waiting.remove(0)).await;
    let next = next.expect("no panic").expect("it is free");
    if next.is_lost() {
        assert!(next.unlock().await.is_err());
    } else {
        assert_eq!(server.lock("x"), [(next.id().to_owned(), 1)], "it was taken anew");
        drop(next);
    }
    is_clean(&server, &client).await;
}

/// Nobody answers an `unlock()` from what was asked before it.
#[tokio::test]
async fn an_earlier_confirmation_tells_nothing() {
    let server = Server::start();
    let renew = script(&server, "renew");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let (first, mut waiting) = row(&client, 2).await;
    proxy.rule(Rule::new(renew, Fault::Delay(Way::Back, ms(300))));
    let first = tokio::spawn(first.unlock());
    let second = taken(waiting.remove(0)).await;
    until("the confirmation to be on its way back", ms(2_000), || proxy.tally().delayed == 1).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    let unlocked = second.unlock().await;
    first.await.expect("no panic").expect("it was there when that was asked");
    assert!(matches!(unlocked, Err(Error::Lost { .. })), "{unlocked:?}");
}

#[tokio::test]
async fn a_confirmation_that_is_lost_is_asked_again() {
    for (way, times) in [(Way::There, 1), (Way::There, 3), (Way::Back, 1), (Way::Back, 3)] {
        let server = Server::start();
        let renew = script(&server, "renew");
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder).await;
        let (held, mut waiting) = row(&client, 1).await;
        proxy.rule(Rule::new(renew, Fault::Cut(way)).times(times));
        held.unlock().await.expect("ours to the end");
        taken(waiting.remove(0)).await.unlock().await.expect("ours to the end");
        is_clean(&server, &client).await;
        assert_eq!(client.stats().total.lost, 0, "{way:?}, {times}");
    }
}

#[tokio::test]
async fn a_confirmation_that_never_comes_is_said_to_be_missing() {
    let server = Server::start();
    let client = client(&server, |builder| builder.outage_timeout(ms(1_000))).await;
    let (held, _waiting) = row(&client, 1).await;
    server.freeze();
    let (unlocked, _) = within("the answer", ms(6_000), held.unlock()).await;
    server.thaw();
    let error = unlocked.expect_err("nobody knows");
    assert!(error.is_unavailable() && std::error::Error::source(&error).is_some(), "{error}");
}

/// Sixty-four tasks, thousands of turns, ends of rows that overtake confirmations: each `unlock()` says Ok.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_turns() {
    let server = Server::start();
    let client = plain(&server).await;
    let turns: Vec<_> = (0..64)
        .map(|task| {
            let lock = client.lock("x");
            tokio::spawn(async move {
                for turn in 0..200 {
                    let guard = lock.lock().await.expect("answered");
                    assert!(!guard.is_lost());
                    if (task + turn) % 7 == 0 { drop(guard) } else { guard.unlock().await.expect("ours to the end") }
                }
            })
        })
        .collect();
    for task in turns {
        task.await.expect("no panic");
    }
    is_clean(&server, &client).await;
    let total = client.stats().total;
    assert_eq!((total.acquired, total.lost), (64 * 200, 0));
}

/// Whoever waits in another process is served although this one has enough of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_have_their_turn() {
    let server = Server::start();
    let (busy, other) = (plain(&server).await, plain(&server).await);
    let looping: Vec<_> = (0..16)
        .map(|_| {
            let lock = busy.lock("x");
            tokio::spawn(async move {
                loop {
                    lock.lock().await.expect("answered").unlock().await.expect("ours");
                }
            })
        })
        .collect();
    for _ in 0..20 {
        let (guard, _) = within("a turn", ms(2_000), other.lock("x").lock()).await;
        guard.expect("answered").unlock().await.expect("ours");
    }
    looping.iter().for_each(JoinHandle::abort);
}

/// What is kept and not polled, or dropped, holds up nobody and leaves nothing.
#[tokio::test]
async fn an_unlock_that_nobody_awaits() {
    let (server, client) = scene().await;
    let (held, waiting) = row(&client, 3).await;
    let mut kept = Vec::new();
    let mut begins = |guard: Guard| {
        let mut unlock = Box::pin(guard.unlock());
        match poll_once(unlock.as_mut()) {
            Poll::Pending => kept.push(unlock),
            // The answer can overtake a thread that a busy machine stops within the poll.
            Poll::Ready(ended) => ended.expect("ours to the end"),
        }
    };
    begins(held);
    for waiting in waiting {
        begins(taken(waiting).await);
    }
    until("the lock to be free", ms(2_000), || !server.exists("x")).await;
    drop(kept.pop());
    for unlock in kept {
        within("its answer", ms(2_000), unlock).await.0.expect("ours to the end");
    }
    is_clean(&server, &client).await;
}

/// A lock that rests for those who are about to come for it is there for `try_lock`, and is given back by `close`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_rests_is_free() {
    let server = Server::start();
    let client = plain(&server).await;
    for round in 0..50 {
        take_turns(&client, 4, 20).await;
        let free = client.lock("x").try_lock().await.expect("answered");
        assert!(free.is_some(), "nobody has it, round {round}");
    }
    client.clone().close().await.expect("given back");
    assert!(!server.exists("x"));
}

/// Leases of their own, nested acquisitions and caps go by the server.
#[tokio::test]
async fn what_is_not_alike_is_handed_over() {
    let server = Server::start();
    let client = client(&server, |builder| builder).await;
    let (held, _) = row(&client, 0).await;
    let id = held.id().to_owned();
    let lock = client.lock("x").owner(&Owner::new()).lease(Duration::from_secs(60));
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(2_000), || client.stats().now.waiting == 1).await;
    held.unlock().await.expect("ours");
    let next = taken(waiting).await;
    assert_ne!(next.id(), id);
    assert!(next.remaining() > Duration::from_secs(50));
    next.unlock().await.expect("ours");
    is_clean(&server, &client).await;
}

/// The last to whom it was passed has not looked, and leaves: the reply to that release says what it says of all who were before.
#[tokio::test]
async fn what_was_gone_is_lost_although_the_last_never_looked() {
    let server = Server::start();
    let renew = script(&server, "renew");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let (first, mut waiting) = row(&client, 1).await;
    let lock = client.lock("x").owner(&Owner::new());
    let mut last = Box::pin(lock.lock());
    poll_until("it to wait", last.as_mut(), || client.stats().now.waiting == 2).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    proxy.rule(Rule::new(renew, Fault::Delay(Way::Back, ms(300))));
    let first = tokio::spawn(first.unlock());
    let second = taken(waiting.remove(0)).await;
    until("the confirmation to be on its way back", ms(2_000), || proxy.tally().delayed == 1).await;
    let mut second = Box::pin(second.unlock());
    assert!(poll_once(second.as_mut()).is_pending(), "it is passed on, and no later request has a reply");
    drop(last);
    for unlocked in [second.await, first.await.expect("no panic")] {
        assert!(matches!(unlocked, Err(Error::Lost { reason: Lost::Removed, .. })), "{unlocked:?}");
    }
    is_clean(&server, &client).await;
}

/// A dropped guard waits for nothing, but whoever has the lock then learns at once that it was gone.
#[tokio::test]
async fn who_is_passed_what_was_gone_is_told_at_once() {
    let (server, client) = scene().await;
    let other = plain(&server).await;
    let (held, mut waiting) = row(&client, 1).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    let theirs = other.lock("x").try_lock().await.expect("answered").expect("free");
    drop(held);
    if let Ok(Ok(Ok(next))) = tokio::time::timeout(ms(1_000), waiting.remove(0)).await {
        let (reason, _) = within("to be told", ms(1_000), next.lost()).await;
        assert_eq!(reason, Lost::Removed);
    }
    assert!(!theirs.is_lost());
}

/// When all have been told that they gave it back, others find it free.
#[tokio::test]
async fn ok_means_free() {
    let (server, client) = scene().await;
    let other = plain(&server).await;
    for round in 0..200 {
        take_turns(&client, 6, 3).await;
        let free = other.lock("x").try_lock().await.expect("answered");
        free.unwrap_or_else(|| panic!("round {round}: {:?}", server.lock("x"))).unlock().await.expect("ours");
    }
}

/// The heir has taken the lock by itself, after it was gone: that says nothing good of the one before.
#[tokio::test]
async fn a_hand_over_to_one_who_has_it_already_is_no_proof() {
    let server = Server::start();
    let [.., hand_over] = ["acquire", "release", "renew", "hand_over"].map(|name| script(&server, name));
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let held = client.lock("x").lock().await.expect("free");
    let lock = client.lock("x").owner(&Owner::new()).lease(Duration::from_secs(60));
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(2_000), || client.stats().now.waiting == 1).await;
    proxy.rule(Rule::new(hand_over, Fault::Delay(Way::There, ms(300))));
    let unlock = tokio::spawn(held.unlock());
    until("the hand-over to be on its way", ms(2_000), || proxy.tally().delayed == 1).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    let _: u32 = server.ask(&["PUBLISH", "redisson_lock__channel:{x}", "0"]);
    let unlocked = unlock.await.expect("no panic");
    assert!(matches!(unlocked, Err(Error::Lost { .. })), "{unlocked:?}");
    taken(waiting).await.unlock().await.expect("ours");
}

/// Whatever could be passed on now, nobody here may have it: it does not come, and what is there is somebody else's.
async fn comes_later(waiting: &Waiting, holder: &Guard) {
    tokio::time::sleep(ms(50)).await;
    assert!(!waiting.is_finished(), "it has what is gone");
    holder.check().await.expect("the only holder");
}

#[tokio::test]
async fn what_this_client_forced_open_is_not_passed_on() {
    let (server, client) = scene().await;
    let (held, mut waiting) = row(&client, 2).await;
    assert!(client.lock("x").force_unlock().await.expect("answered"));
    let next = taken(waiting.remove(0)).await;
    assert_ne!(next.id(), held.id());
    assert!(matches!(held.unlock().await, Err(Error::Lost { reason: Lost::Removed, .. })));
    let last = waiting.remove(0);
    comes_later(&last, &next).await;
    next.unlock().await.expect("ours to the end");
    taken(last).await.unlock().await.expect("ours to the end");
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn what_the_server_says_is_another_s_is_not_passed_on() {
    let (server, client) = scene().await;
    let other = plain(&server).await;
    let (held, mut waiting) = row(&client, 1).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    let others = other.lock("x").try_lock().await.expect("answered").expect("free");
    let seen = client.lock("x").inspect().await.expect("answered").expect("held");
    assert_eq!(seen.id, others.id());
    assert!(matches!(held.unlock().await, Err(Error::Lost { reason: Lost::Removed, .. })));
    let last = waiting.remove(0);
    comes_later(&last, &others).await;
    others.unlock().await.expect("ours to the end");
    taken(last).await.unlock().await.expect("ours to the end");
}

/// A task acquires the lock again and again, and drops its guards. It never waits, so nothing else of a runtime with one thread runs. The client
/// must release the lock at the end of the row, as always: else a task that has unlocked would wait for up to half a lease.
#[tokio::test(flavor = "current_thread")]
async fn a_task_that_never_waits_does_not_stop_the_others() {
    let server = Server::start();
    let client = Client::builder().url(server.url()).own_thread(false).connect().await.expect("it replies");
    let busy = client.lock("x");
    let busy = tokio::spawn(async move {
        loop {
            drop(busy.lock().await.expect("it replies"));
        }
    });
    for _ in 0..20 {
        let held = client.lock("x").lock().await.expect("it replies");
        let (unlocked, took) = within("the confirmation", ms(10_000), held.unlock()).await;
        unlocked.expect("ours");
        assert!(took < ms(2_000), "{took:?}");
    }
    busy.abort();
}
