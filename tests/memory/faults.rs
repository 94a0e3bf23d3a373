//! Each failure, with each kind of lock and each call.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use leasehold::{Client, Error, FencedGuard, Guard, Lost, MemoryServer, MultiLock, Owner, Result};
use tokio::{
    runtime::Builder,
    task::JoinHandle,
    time::{Instant, advance, sleep, timeout},
};

use crate::{
    HOUR,
    support::{ms, poll_once},
    two,
};

const SECOND: Duration = ms(1_000);

fn is_unavailable<T>(outcome: &Result<T>) -> bool {
    outcome.as_ref().is_err_and(Error::is_unavailable)
}

/// The requests that were sent wait, or fail, in the background.
async fn settled() {
    sleep(ms(20)).await;
}

fn locking(client: &Client, name: &'static str) -> JoinHandle<Result<Guard>> {
    tokio::spawn(client.mutex(name).into_future())
}

fn taking_turns(acquire: impl Future<Output = Result<Guard>> + Send + 'static) -> JoinHandle<Result<()>> {
    tokio::spawn(async move { acquire.await?.unlock().await })
}

#[tokio::test(start_paused = true)]
async fn connections_that_end_while_the_server_is_frozen_lose_replies_and_nothing_else() {
    let (server, client, other) = two();
    let held = client.mutex("held").lock().await.expect("it is free");
    let waiting = locking(&other, "held");
    settled().await;
    server.freeze();
    let lock = locking(&client, "ledger");
    settled().await;
    let (sent, waited) = (client.stats().total.requests, other.stats().total.requests);
    server.cut();
    settled().await;
    assert!(client.stats().total.requests > sent, "the call without a reply sends its request again at once");
    assert_eq!(
        other.stats().total.requests,
        waited + 1,
        "the waiter asks once, because the server may have lost the lock"
    );
    server.thaw();
    let guard = lock.await.expect("no panic").expect("it is free");
    assert_eq!(server.keys(), ["held", "ledger"]);
    guard.unlock().await.expect("held");
    held.unlock().await.expect("held");
    timeout(SECOND, waiting)
        .await
        .expect("woken")
        .expect("no panic")
        .expect("it is free")
        .unlock()
        .await
        .expect("held");
    assert!(server.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_arrives_while_the_server_is_frozen_is_executed_later() {
    let (server, client, _) = two();
    server.freeze();
    let lock = locking(&client, "ledger");
    settled().await;
    server.deny(); // it executes nothing, so it denies nothing either
    settled().await;
    server.thaw();
    settled().await;
    assert_eq!(client.stats().total.requests, 1);
    lock.await.expect("no panic").expect("it is free").unlock().await.expect("held");
    assert!(server.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_lost_when_the_request_is_executed() {
    let (server, client, _) = two();
    server.freeze();
    let lock = locking(&client, "ledger");
    settled().await;
    server.lose_replies(1);
    server.thaw();
    let guard = lock.await.expect("no panic").expect("it sends the request again");
    assert_eq!(client.stats().total.requests, 2);
    guard.unlock().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_ping_waits_for_a_frozen_server() {
    let (server, client, _) = two();
    client.ping().await.expect("it replies");
    server.freeze();
    let pinging = client.clone();
    let pinged = tokio::spawn(async move { pinging.ping().await });
    sleep(SECOND).await;
    let started = Instant::now();
    server.thaw();
    pinged.await.expect("no panic").expect("it replies now");
    assert!(started.elapsed() < ms(50));
    server.freeze();
    assert!(is_unavailable(&client.ping().await));
    let pinging = client.clone();
    let pinged = tokio::spawn(async move { pinging.ping().await });
    settled().await;
    let started = Instant::now();
    client.close().await.expect("nothing to release");
    assert!(matches!(pinged.await.expect("no panic"), Err(Error::Closed)));
    assert!(started.elapsed() < ms(50));
}

/// The campaign's request has failed, and nobody has looked at that before the client closes.
#[tokio::test(start_paused = true)]
async fn a_campaign_that_nobody_polls_until_the_client_is_closed() {
    let (server, client, _) = two();
    server.freeze();
    let mut leads = Box::pin(client.leader("job").run(async |_: &Guard| ()));
    assert!(poll_once(leads.as_mut()).is_pending());
    sleep(HOUR).await;
    assert!(client.close().await.is_ok());
    let led = timeout(SECOND, leads).await.expect("it ends");
    assert!(matches!(led, Err(Error::Closed)), "{led:?}");
}

/// As a real server does that has none.
#[tokio::test(start_paused = true)]
async fn replicas_never_confirm() {
    let server = MemoryServer::new();
    for builder in [Client::builder().replicas(2), Client::builder().replicas_fsynced(2)] {
        let client = builder.connect_in_memory(&server).expect("valid settings");
        let outcome = client.mutex("ledger").lock().await;
        assert!(matches!(outcome, Err(Error::Replicas { wanted: 2, got: 0, .. })), "{outcome:?}");
        settled().await;
        assert!(server.keys().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_in_its_last_millisecond() {
    let (server, client, other) = two();
    let left = || server.command(&["PTTL", "ledger"]).expect("it replies").concat();
    advance(ms(1) - Duration::from_nanos(1)).await; // wherever in a millisecond the clock stood
    let guard = client.mutex("ledger").lease(ms(20)).lock().await.expect("it is free");
    advance(ms(19)).await;
    assert_eq!(left(), "1");
    advance(ms(1)).await;
    assert!(guard.is_lost(), "the holder is early");
    assert_eq!(left(), "0", "and the server late, as Redis is");
    assert!(other.mutex("ledger").try_lock().await.expect("it replies").is_none());
    advance(ms(1)).await;
    assert_eq!(left(), "-2");
    drop(other.mutex("ledger").try_lock().await.expect("it replies").expect("it is free"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_while_the_server_is_frozen() {
    let (server, client, other) = two();
    let held = client.mutex("ledger").lock().await.expect("it is free");
    let waiting = locking(&other, "ledger");
    settled().await;
    server.freeze();
    let asking = locking(&client, "another");
    settled().await;
    let started = Instant::now();
    assert!(is_unavailable(&client.close().await));
    assert!(started.elapsed() < 2 * SECOND);
    assert!(matches!(asking.await.expect("no panic"), Err(Error::Closed)));
    assert_eq!(held.lost().await, Lost::Closed);
    sleep(SECOND).await;
    server.thaw();
    waiting.await.expect("no panic").expect("the release was executed").unlock().await.expect("held");
    sleep(HOUR).await;
    assert!(server.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_dropped_while_the_server_is_frozen() {
    let (server, client, other) = two();
    let held = client.mutex("ledger").lock().await.expect("it is free");
    let nested = (client.lock("nested").lock().await.expect("free"), client.lock("nested").lock().await.expect("free"));
    server.freeze();
    let abandoned = locking(&client, "another");
    settled().await;
    abandoned.abort();
    drop((held, nested, client));
    sleep(10 * SECOND).await;
    server.thaw();
    sleep(SECOND).await;
    assert_eq!(server.keys(), Vec::<String>::new());
    drop(other.mutex("another").try_lock().await.expect("it replies").expect("it is free"));
}

#[tokio::test(start_paused = true)]
async fn waiters_of_all_kinds_get_through_a_restart() {
    let (server, client, other) = two();
    let guards = (
        client.mutex("plain").lock().await.expect("it is free"),
        client.fair_lock("fair").lock().await.expect("it is free"),
        client.fenced_lock("fenced").lock().await.expect("it is free"),
        client.rw_lock("rw").write().await.expect("it is free"),
    );
    let mut waiting = Vec::new();
    for client in [&client, &other, &other] {
        waiting.push(taking_turns(client.mutex("plain").into_future()));
        waiting.push(taking_turns(client.fair_lock("fair").into_future()));
        let (fenced, rw) = (client.fenced_lock("fenced"), client.rw_lock("rw"));
        waiting.push(taking_turns(async move { fenced.lock().await.map(Guard::from) }));
        let read = rw.clone();
        waiting.push(taking_turns(async move { rw.write().await.map(Guard::from) }));
        waiting.push(taking_turns(async move { read.read().await.map(Guard::from) }));
    }
    sleep(SECOND).await;
    server.restart();
    let started = Instant::now();
    for waiter in waiting {
        waiter.await.expect("no panic").expect("it is free, and held");
    }
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    assert!(guards.0.is_lost() && guards.1.is_lost() && guards.2.is_lost() && guards.3.is_lost());
    drop(guards);
    settled().await;
    assert_eq!(server.keys(), ["redisson_lock_token:{fenced}"]);
}

/// A waker that asks the server.
struct Asking(MemoryServer, AtomicUsize);

impl Wake for Asking {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        assert!(self.0.keys().is_empty());
    }
}

#[test]
fn a_waker_may_ask_the_server() {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            for end in [MemoryServer::thaw, MemoryServer::restart, MemoryServer::cut] {
                let (server, client, _) = two();
                server.freeze();
                let asking = Arc::new(Asking(server.clone(), AtomicUsize::new(0)));
                let latch = client.latch("x");
                let (mut waiting, waker) = (pin!(latch.wait()), Waker::from(Arc::clone(&asking)));
                for _ in 0..3 {
                    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()); // it also yields
                }
                let before = asking.1.load(Ordering::SeqCst);
                end(&server);
                sleep(60 * SECOND).await;
                assert!(asking.1.load(Ordering::SeqCst) > before, "it was woken");
            }
        });
        tell.send(()).expect("the test waits");
    });
    told.recv_timeout(Duration::from_secs(10)).expect("no deadlock");
}

/// As on a real server without its data: resources must not trust tokens then.
#[tokio::test(start_paused = true)]
async fn tokens_begin_anew_after_a_restart() {
    let (server, client, _) = two();
    let token = async || client.fenced_lock("ledger").lock().await.map(|guard: FencedGuard| guard.token());
    assert_eq!((token().await.expect("free"), token().await.expect("free")), (1, 2));
    server.restart();
    assert_eq!(token().await.expect("free"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_finds_a_forgotten_lock_free_when_its_lease_would_end() {
    let (server, client, other) = two();
    let guard = client.mutex("ledger").lease(20 * SECOND).lock().await.expect("it is free");
    let (started, waiting) = (Instant::now(), locking(&other, "ledger"));
    settled().await;
    server.forget("ledger");
    waiting.await.expect("no panic").expect("it is free").unlock().await.expect("held");
    assert!(started.elapsed() <= 21 * SECOND, "{:?}", started.elapsed());
    drop(guard);
}

/// Each call of each kind, by number; `None` if there is no such call.
async fn call(client: &Client, number: u32) -> Option<Result<()>> {
    let rw = client.rw_lock("rw").non_reentrant();
    let both = MultiLock::new([client.mutex("a"), client.mutex("b")]);
    let owner = Owner::new();
    Some(match number {
        0 => client.mutex("plain").try_lock().await.map(drop),
        1 => client.mutex("plain").try_lock_for(SECOND).await.map(drop),
        2 => client.mutex("plain").lock().await.map(drop),
        3 => client.mutex("plain").is_locked().await.map(drop),
        4 => client.mutex("plain").inspect().await.map(drop),
        5 => client.mutex("plain").force_unlock().await.map(drop),
        6 => client.fair_lock("fair").lock().await.map(drop),
        7 => client.fair_lock("fair").waiters().await.map(drop),
        8 => client.fair_lock("fair").force_unlock().await.map(drop),
        9 => client.fenced_lock("fenced").lock().await.map(drop),
        10 => rw.read().await.map(drop),
        11 => rw.write().await.map(drop),
        12 => rw.inspect().await.map(drop),
        13 => rw.force_unlock().await.map(drop),
        14 => both.lock().await.map(drop),
        15 => both.try_lock().await.map(drop),
        16 => client.ping().await,
        17 => client.mutex("once").run_once_per(HOUR, async || ()).await.map(drop),
        18 => client.mutex("plain").min_hold(SECOND).lock().await.map(drop),
        19 => client.lock("plain").owner(&owner).lock().await.map(drop),
        _ => return None,
    })
}

async fn is_clean(server: &MemoryServer, clients: &[&Client]) {
    sleep(2 * SECOND).await; // longer than any release and any `min_hold`
    for client in clients {
        let now = client.stats().now;
        assert_eq!((now.holds, now.waiting, now.subscriptions, now.releasing), (0, 0, 0, 0));
    }
    let remains = |key: &String| !key.contains("token") && !key.contains("forced") && key != "once";
    let keys: Vec<_> = server.keys().into_iter().filter(remains).collect();
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test(start_paused = true)]
async fn every_call_sends_its_request_again_after_a_lost_reply() {
    for lost in 1..6 {
        for number in 0.. {
            let (server, client, _) = two();
            server.lose_replies(lost);
            let Some(outcome) = call(&client, number).await else { break };
            assert!(outcome.is_ok(), "call {number}: {outcome:?}");
            is_clean(&server, &[&client]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_is_denied() {
    for number in 0.. {
        let (server, client, _) = two();
        server.deny();
        let Some(outcome) = call(&client, number).await else { break };
        assert!(matches!(outcome, Err(Error::Denied { .. })), "call {number}: {outcome:?}");
        server.thaw();
        is_clean(&server, &[&client]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_gives_up_on_a_frozen_server_and_leaves_nothing() {
    for number in 0.. {
        let (server, client, other) = two();
        server.freeze();
        let started = Instant::now();
        let Some(outcome) = call(&client, number).await else { break };
        assert!(is_unavailable(&outcome), "call {number}: {outcome:?}");
        // Several locks: those that may be held by now are released first.
        assert!(started.elapsed() <= 35 * SECOND, "call {number}: {:?}", started.elapsed());
        server.thaw();
        is_clean(&server, &[&client]).await;
        call(&other, number).await.expect("the same call").expect("it replies and is free");
    }
}

/// A guard's calls.
#[tokio::test(start_paused = true)]
async fn guards_of_a_server_that_denies_all() {
    let (server, client, _) = two();
    let guard = client.fenced_lock("ledger").lock().await.expect("it is free");
    let writing = client.rw_lock("rw").write().await.expect("it is free");
    let unlocked = client.mutex("unlocked").lock().await.expect("it is free");
    server.deny();
    let denied = [
        guard.check().await,
        guard.extend(HOUR).await,
        guard.write_if_held("result", "7").await,
        writing.downgrade().await.map(drop),
        unlocked.unlock().await,
    ];
    assert!(denied.iter().all(|outcome| matches!(outcome, Err(Error::Denied { .. }))), "{denied:?}");
    sleep(10 * SECOND).await;
    assert!(!guard.is_lost(), "a renewal that is denied is tried again");
    server.thaw();
    sleep(10 * SECOND).await;
    guard.unlock().await.expect("held");
    is_clean(&server, &[&client]).await;
}

/// Its place in the queue ends by time at the latest, as on a real server: it may have been left while the runtime ended.
#[test]
fn a_waiter_whose_runtime_has_ended() {
    let server = MemoryServer::new();
    let runtime = || Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let (one, other) = (runtime(), runtime());
    let holder = one.block_on(async { Client::in_memory(&server).expect("valid settings") });
    let guard = one.block_on(holder.fair_lock("ledger").lock()).expect("it is free");
    other.block_on(async {
        let client = Client::in_memory(&server).expect("valid settings");
        let waiting = tokio::spawn(client.fair_lock("ledger").into_future());
        settled().await;
        assert_eq!(client.fair_lock("ledger").waiters().await.expect("it replies").len(), 1);
        assert!(!waiting.is_finished());
    });
    drop(other);
    one.block_on(async {
        assert!(holder.fair_lock("ledger").waiters().await.expect("it replies").len() <= 1);
        guard.unlock().await.expect("held");
        let next = timeout(HOUR, holder.fair_lock("ledger").lock()).await;
        next.expect("the dead waiter is passed over").expect("it replies").unlock().await.expect("held");
    });
}

/// Four runtimes with a thread each, and the machine's clock.
#[test]
fn several_runtimes_exclude_each_other() {
    const TURNS: u32 = 100;
    let (server, count) = (MemoryServer::new(), std::sync::Mutex::new(0));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    let client = Client::in_memory(&server).expect("valid settings");
                    for _ in 0..TURNS {
                        let guard = client.mutex("ledger").lock().await.expect("it replies");
                        let before = *count.lock().expect("no panic");
                        tokio::task::yield_now().await;
                        *count.lock().expect("no panic") = before + 1;
                        guard.unlock().await.expect("held");
                    }
                    client.close().await.expect("it replies");
                });
            });
        }
    });
    assert_eq!(*count.lock().expect("no panic"), 4 * TURNS);
    assert!(server.keys().is_empty());
}

/// The machine was asleep, or the caller was not polled, for longer than the server remembers what it has run.
#[tokio::test(start_paused = true)]
async fn a_count_down_is_not_sent_again_when_its_receipt_is_over() {
    for (away, result) in [(20 * SECOND, Some(2)), (HOUR, None)] {
        let (server, client, _) = two();
        let latch = client.latch("ready");
        latch.try_set_count(3).await.expect("it replies");
        server.lose_replies(1);
        let mut counting = Box::pin(latch.count_down());
        assert!(poll_once(counting.as_mut()).is_pending());
        settled().await;
        assert_eq!(latch.count().await.expect("it replies"), 2, "it has run");
        advance(away).await;
        match (counting.await, result) {
            (Ok(left), Some(result)) => assert_eq!(left, result),
            (Err(error), None) => assert!(error.is_unavailable(), "{error}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(latch.count().await.expect("it replies"), 2, "after {away:?}");
    }
}
