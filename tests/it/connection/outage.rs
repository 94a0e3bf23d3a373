//! The server is away for a while: what waiters, holders and callers do meanwhile, and when it is back.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::{Client, Error, Guard, Lost, Owner};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::support::{
    Server, before, behind, client, ms, plain,
    proxy::{Fault, Mode, Proxy, Rule, Way, Which},
    script,
    stall::Took,
    until, within,
};

/// The longest sleep of a waiter whom nobody tells, and what a busy machine adds.
const LONGEST_NAP: Duration = ms(5_500);
/// What a busy machine may need to run a task that has been woken.
const LATE: Duration = ms(500);

/// What is left of a lease when the server is back: the longest pause between attempts to reconnect, and what a busy machine adds.
const LAST_CHANCE: Duration = ms(500).saturating_add(LATE);

/// Nobody gets through, and who was connected is cut off.
fn gone(proxy: &Proxy) {
    proxy.refuse();
    proxy.cut_all();
}

/// A lock held by a client with a network of its own.
async fn held_elsewhere(server: &Server, lease: Duration) -> (Client, Guard) {
    let holder = client(server, |builder| builder.watchdog(lease)).await;
    let guard = holder.lock("x").lock().await.expect("free");
    (holder, guard)
}

/// So many tasks of that client wait in line.
async fn waiters(client: &Client, count: u64) -> Vec<JoinHandle<leasehold::Result<Guard>>> {
    let waiters = (0..count).map(|_| {
        let lock = client.lock("x").owner(&Owner::new());
        tokio::spawn(async move { lock.lock().await })
    });
    let waiters = waiters.collect();
    until("all to wait", ms(2_000), || client.stats().now.waiting == count && client.stats().total.refused >= 2).await;
    waiters
}

#[tokio::test]
async fn waiters_ride_it_out() {
    let server = Server::start();
    let (proxy, (_holder, guard)) = (before(&server), held_elsewhere(&server, ms(30_000)).await);
    let client = behind(&proxy, |builder| builder.outage_timeout(ms(3_000))).await;
    let waiting = waiters(&client, 5).await;
    gone(&proxy);
    sleep(ms(1_000)).await;
    guard.unlock().await.expect("ours"); // they cannot hear of it
    assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
    proxy.accept();
    for waiter in waiting {
        let (taken, _) = within("a turn", LONGEST_NAP, waiter).await;
        taken.expect("no panic").expect("ridden out").unlock().await.expect("ours");
    }
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn waiters_give_up_after_the_outage_timeout() {
    let server = Server::start();
    // With a short lease they ask often, and notice soon.
    let (proxy, (_holder, guard)) = (before(&server), held_elsewhere(&server, ms(1_500)).await);
    let client = behind(&proxy, |builder| builder.outage_timeout(ms(1_000)).command_timeout(ms(300))).await;
    let waiting = waiters(&client, 5).await;
    let started = Instant::now();
    gone(&proxy);
    for waiter in waiting {
        let (ended, _) = within("giving up", ms(3_500), waiter).await;
        let ended = ended.expect("no panic");
        let Err(Error::Unavailable { tried, .. }) = &ended else { panic!("{ended:?}") };
        assert!(tried.contains("acquiring the lock \"x\"") && tried.contains(" failed after "), "{tried}");
        let took = started.elapsed();
        assert!((ms(1_000)..ms(3_500)).contains(&took), "after {took:?}"); // together, not one after the other
    }
    assert_eq!(client.stats().now.waiting, 0);
    proxy.accept();
    guard.unlock().await.expect("ours");
    until("nothing to be left", ms(5_000), || client.stats().now.releasing == 0 && !server.exists("x")).await;
}

#[tokio::test]
async fn waiters_keep_their_own_deadline() {
    let server = Server::start();
    let (proxy, (_holder, _guard)) = (before(&server), held_elsewhere(&server, ms(30_000)).await);
    let client = behind(&proxy, |builder| builder).await;
    let _in_front = waiters(&client, 2).await;
    let lock = client.lock("x").owner(&Owner::new());
    let waiting = tokio::spawn(async move { (lock.try_lock_for(ms(800)).await, Instant::now()) });
    let deadline = Instant::now() + ms(800);
    until("it to wait", ms(500), || client.stats().now.waiting == 3).await;
    gone(&proxy);
    let (ended, when) = within("the deadline", ms(2_000), waiting).await.0.expect("no panic");
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "an unreachable server is never `None`: {ended:?}");
    assert!(when >= deadline && when < deadline + LATE, "{:?} after it", when.saturating_duration_since(deadline));
}

/// Renewals fail in that way: tried again and again, and told at the end that was promised, not before.
async fn never_renewed(fault: Fault) {
    let server = Server::start();
    let renew = script(&server, "renew");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(1_500))).await;
    let guard = client.lock("x").lock().await.expect("free");
    until("a renewal", ms(1_000), || client.stats().total.renewals > 0).await;
    proxy.rule(Rule::new(renew, fault).times(u64::MAX));
    let promised = Instant::now() + guard.remaining();
    let left = ms(server.pttl("x").try_into().expect("held"));
    assert!(promised <= Instant::now() + left, "it promises more than the server");
    let attempts = || proxy.tally().cut_there + proxy.tally().rewritten;
    until("many attempts", ms(1_500), || attempts() >= 5).await;
    assert!(!guard.is_lost(), "not before it must be");
    let (lost, _) = within("to be told", ms(1_600), guard.lost()).await;
    let told = Instant::now();
    assert_eq!(lost, Lost::Expired);
    assert!(told + ms(1) >= promised, "{:?} before the promised end", promised - told);
    assert!(told <= promised + LATE, "{:?} after the promised end", told - promised);
    proxy.calm();
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::Expired, .. })));
}

#[tokio::test]
async fn holders_try_until_their_lease_is_certainly_over() {
    never_renewed(Fault::Cut(Way::There)).await;
}

#[tokio::test]
async fn holders_try_while_the_server_refuses_for_now() {
    never_renewed(Fault::Rewrite(|_| Some(b"-LOADING Redis is loading the dataset in memory\r\n".to_vec()))).await;
}

#[tokio::test]
async fn holders_are_saved_by_the_last_attempt() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(2_000))).await;
    let guard = client.lock("x").lock().await.expect("free");
    gone(&proxy);
    until("the lease to be nearly over", ms(2_000), || guard.remaining() < LAST_CHANCE).await;
    proxy.accept();
    until("a renewal", LAST_CHANCE, || guard.remaining() > ms(1_500)).await;
    assert_eq!((client.stats().total.lost, server.lock("x")), (0, vec![(guard.id().to_owned(), 1)]));
    guard.unlock().await.expect("ours to the end");
}

#[tokio::test]
async fn all_holds_are_confirmed_at_once_when_it_is_back() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let mut guards = Vec::new();
    for n in 0..300 {
        let lock = client.lock(&format!("held-{n}"));
        // Leases kept by the watchdog are renewed, the others looked at.
        let lock = if n % 2 == 0 { lock } else { lock.lease(ms(60_000)) };
        guards.push(lock.lock().await.expect("free"));
    }
    let before = client.stats();
    proxy.cut_all();
    until("all to be confirmed", ms(1_000), || client.stats().total.renewals >= before.total.renewals + 300).await;
    let calls = client.stats().total.calls - before.total.calls;
    assert!(calls <= 30, "{calls} calls");

    gone(&proxy);
    let _: String = server.ask(&["FLUSHALL"]);
    proxy.accept();
    for guard in guards {
        let (lost, _) = within("to be told", ms(1_500), guard.lost()).await;
        assert_eq!(lost, Lost::Removed);
    }
    assert_eq!((client.stats().total.lost, client.stats().now.holds), (300, 0));
}

#[tokio::test]
async fn a_call_says_what_it_tried_and_what_the_last_failure_was() {
    let server = Server::start();
    let proxy = before(&server);
    let settings = |builder: leasehold::Builder| builder.command_timeout(ms(200)).outage_timeout(ms(400));
    let client = behind(&proxy, settings).await;
    gone(&proxy);
    let ended = client.lock("x").lock().await;
    let Err(Error::Unavailable { tried, source, .. }) = ended else { panic!("{ended:?}") };
    assert!(tried.contains("acquiring the lock \"x\" at 127.0.0.1:"), "{tried}");
    assert!(tried.contains(" failed after 4") && tried.contains("ms"), "{tried}");
    let source = source.expect("the connection was refused").to_string();
    assert!(source.contains("refused") && !tried.contains(&source), "{tried}: {source}");
}

#[tokio::test]
async fn what_is_on_its_way_back_does_not_double_the_wait() {
    let server = Server::start();
    let proxy = before(&server);
    let settings = |builder: leasehold::Builder| builder.command_timeout(ms(300)).outage_timeout(ms(1_500));
    let client = behind(&proxy, settings).await;
    let locks: Vec<_> = (0..20).map(|n| client.lock(&format!("lock-{n}"))).collect();
    let mut guards = Vec::new();
    for lock in &locks {
        guards.push(lock.lock().await.expect("free"));
    }
    gone(&proxy);
    drop(guards);
    let asking: Vec<_> = locks.iter().cloned().map(|lock| tokio::spawn(async move { lock.lock().await })).collect();
    let started = Instant::now();
    for call in asking {
        let (ended, _) = within("giving up", ms(2_300), call).await;
        let ended = ended.expect("no panic");
        assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
        assert!(started.elapsed() >= ms(1_500));
    }
    // The old holds are handed to who asked in vain, while his own requests are taken back: in which order ever, both
    // come to nothing in the end.
    proxy.accept();
    until("all to be given back", ms(3_000), || client.stats().now.releasing == 0).await;
    assert_eq!(server.ask::<u32>(&["DBSIZE"]), 0);
    assert_eq!((client.stats().total.acquired, client.stats().total.released), (20, 20));
}

/// Waits elsewhere with that fault on its subscriber, for a lock that is given back; with how long it takes from there.
async fn deaf(fault: Rule) -> Took {
    let server = Server::start();
    let (proxy, (_holder, guard)) = (before(&server), held_elsewhere(&server, ms(30_000)).await);
    proxy.rule(fault);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(500))).await;
    let lock = client.lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("the fault", LONGEST_NAP, || proxy.is_spent()).await;
    until("it to have asked", ms(500), || client.stats().total.refused >= 1).await;
    guard.unlock().await.expect("ours");
    let (taken, took) = within("its turn", LONGEST_NAP, waiting).await;
    taken.expect("no panic").expect("answered").unlock().await.expect("ours");
    until("the channel to be left", ms(5_000), || server.channels().is_empty()).await;
    took
}

fn on(command: &'static str, fault: Fault) -> Rule {
    Rule::new(Which::Command(command), fault)
}

#[tokio::test]
async fn waiters_whose_subscription_fails_look_for_themselves() {
    for fault in [
        Fault::Cut(Way::There),
        Fault::Cut(Way::Back),
        Fault::Swallow(Way::There),
        Fault::Swallow(Way::Back),
        Fault::Delay(Way::Back, Duration::from_secs(60)),
        Fault::Rewrite(|_| Some(b"-NOPERM this user has no permissions\r\n".to_vec())),
        Fault::Rewrite(|_| Some(b"?!?\r\n".to_vec())),
    ] {
        let took = deaf(on("SUBSCRIBE", fault)).await;
        assert!(took < ms(1_500), "{fault:?}: {took:?}");
    }
}

#[tokio::test]
async fn waiters_whose_subscription_dies_later_notice() {
    // Both connections begin with a PING, the third follows the SUBSCRIBE, the fourth asks two seconds later whether the
    // connection lives.
    let faults = [
        (Fault::Cut(Way::There), 1),
        (Fault::Swallow(Way::There), 2),
        (Fault::Cut(Way::There), 3),
        (Fault::Swallow(Way::There), 3),
        (Fault::Swallow(Way::Back), 3),
    ];
    join_all(faults.map(async |(fault, skip)| {
        let took = deaf(on("PING", fault).after(skip)).await;
        assert!(took < ms(2_000), "{fault:?} after {skip}: {took:?}");
    }))
    .await;
}

#[tokio::test]
async fn a_release_that_nobody_could_hear_is_noticed_all_the_same() {
    let server = Server::start();
    let (proxy, (_holder, guard)) = (before(&server), held_elsewhere(&server, ms(30_000)).await);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(500))).await;
    let waiting = waiters(&client, 1).await;
    proxy.set(Mode::Swallow); // from here on these connections are silent, and do not know it
    guard.unlock().await.expect("ours");
    proxy.set(Mode::Pass);
    for waiter in waiting {
        let (taken, _) = within("its turn", LONGEST_NAP, waiter).await;
        taken.expect("no panic").expect("answered").unlock().await.expect("ours");
    }
    assert!(client.stats().total.reconnects >= 1);
    let other = plain(&server).await;
    other.lock("x").try_lock().await.expect("answered").expect("free").unlock().await.expect("ours");
}

/// Waiters at their limit that wait for the reply to the request of another one, which is lost. Thirty names, for that takes a request
/// that began a few milliseconds before the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_reply_was_to_come_to_another_names_the_cause() {
    const NAMES: u64 = 30;
    let server = Server::start();
    let (acquire, proxy) = (script(&server, "acquire"), before(&server));
    let (holder, client) = (plain(&server).await, behind(&proxy, |builder| builder).await);
    let (mut held, mut heads) = (Vec::new(), JoinSet::new());
    for at in 0..NAMES {
        let name = format!("name {at}");
        held.push(holder.mutex(&name).lock().await.expect("free"));
        let head = client.mutex(&name);
        heads.spawn(async move { head.lock().await.map(drop) });
    }
    until("the heads to wait", ms(3_000), || server.channels().len() >= held.len()).await;
    sleep(ms(400)).await; // their replies are too old to be shared
    let limit = Instant::now() + ms(600);
    let mut calls = JoinSet::new();
    for at in 0..NAMES {
        let lock = client.mutex(&format!("name {at}"));
        calls.spawn(async move { lock.try_lock_until(limit + ms(at)).await });
    }
    let channels = server.channels();
    let mut raw = server.raw();
    let mut wake = redis::pipe();
    channels.iter().for_each(|channel| _ = wake.cmd("PUBLISH").arg(channel).arg("0"));
    proxy.rule(Rule::new(acquire, Fault::Swallow(Way::Back)).times(u64::MAX));
    sleep(limit.saturating_duration_since(Instant::now())).await;
    wake.exec(&mut raw).expect("published");
    while let Some(ended) = calls.join_next().await {
        if let Err(error) = ended.expect("no panic") {
            assert!(std::error::Error::source(&error).is_some(), "{error}");
        }
    }
}
