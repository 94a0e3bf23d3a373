//! How a client begins and ends: before its server, without I/O, and in peace.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lost, Owner};

use crate::support::{
    Server, Stopwatch, before, client, ms, plain, poll_until,
    proxy::{Fault, Rule, Way, Which},
    stall::{Slack, unless_stalled},
    until, within,
};

/// A server that is down, and where it will be.
fn down() -> Server {
    let mut server = Server::start();
    server.crash();
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_waits_for_a_server_that_comes_later() {
    let mut server = down();
    let connect = Client::builder().url(server.url()).connect_timeout(ms(20_000)).connect();
    let connecting = tokio::spawn(connect);
    tokio::time::sleep(ms(100)).await; // it has begun
    assert!(!connecting.is_finished());
    server.revive();
    let (client, _) = within("the connection", ms(5_000), connecting).await;
    let client = client.expect("no panic").expect("the server answers");
    client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
}

#[tokio::test]
async fn connecting_gives_up_in_time_and_at_once_where_waiting_is_no_use() {
    let server = down();
    let started = Stopwatch::start();
    let refused = Client::builder().url(server.url()).connect_timeout(ms(300)).connect().await;
    assert!(refused.expect_err("nobody is there").is_unavailable());
    assert!(started.elapsed() >= ms(300) && started.elapsed() < ms(1_500), "{:?}", started.elapsed());

    let server = Server::with(&["--requirepass", "s3cret"]);
    let denied = Client::builder().url(server.url()).connect_timeout(ms(20_000)).connect();
    let (denied, _) = within("the refusal", ms(2_000), denied).await;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
}

/// Each connection has a command timeout; many of them one after the other take longer than that.
#[tokio::test]
async fn many_connections_to_a_far_server_are_given_their_time() {
    let server = Server::start();
    let proxy = before(&server);
    proxy.rule(Rule::new(Which::Any, Fault::Delay(Way::Back, ms(40))).times(u64::MAX));
    let started = Instant::now();
    // A connection takes a twelfth of a second, so one of them is in time even if the machine pauses for a second.
    let builder = Client::builder().url(proxy.url()).connections(24).command_timeout(ms(1_500));
    let client = builder.connect().await.expect("each is answered in time");
    assert!(started.elapsed() > ms(1_500), "{:?}: too near to show anything", started.elapsed());
    client.ping().await.expect("all are there");
}

#[tokio::test]
async fn by_default_connecting_is_tried_once() {
    let server = down();
    let refused = within("the refusal", ms(1_000), Client::connect(&server.url())).await.0;
    assert!(refused.expect_err("nobody is there").is_unavailable());
}

/// Neither sentinels nor servers of a cluster, which other clients ask every five seconds.
#[tokio::test]
async fn a_lazy_client_asks_nobody_before_it_is_used() {
    // A port may have been that of another test's server, whose client still tries it. Of three ports one was not.
    let mut asked = Vec::new();
    let (listener, clients) = loop {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let urls = [
            format!("redis-cluster://{address}"),
            format!("redis-sentinel://{address}/main"),
            format!("redis://{address}"),
        ];
        let clients = urls.map(|url| Client::builder().url(url).connect_lazy().expect("good settings"));
        match tokio::time::timeout(ms(5_500), listener.accept()).await {
            Err(_) => break (listener, clients),
            Ok(connection) => asked.push(connection.expect("a connection").1),
        }
        assert!(asked.len() < 3, "each time somebody asked: {asked:?}");
    };
    for client in clients {
        let lock = client.lock("x");
        let used = tokio::spawn(async move { lock.try_lock_for(ms(100)).await.is_err() });
        let asked = tokio::time::timeout(ms(5_000), listener.accept()).await;
        asked.expect("once it is used").expect("somebody");
        assert!(used.await.expect("no panic"), "nobody answers there");
    }
}

#[test]
fn a_lazy_client_is_made_outside_a_runtime_and_connects_when_it_is_used() {
    let server = Server::start();
    let connections = || server.ask::<String>(&["CLIENT", "LIST"]).lines().count();
    let client = Client::builder().url(server.url()).connect_lazy().expect("good settings");
    assert_eq!(connections(), 1, "only the one that asks");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        client.ping().await.expect("it connects");
        let guard = client.lock("x").lock().await.expect("free");
        assert!(server.exists("x"));
        guard.unlock().await.expect("ours");
        assert_eq!(client.stats().total.reconnects, 0);
        client.close().await.expect("answered");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lazy_client_rides_out_a_server_that_is_not_there_yet() {
    let mut server = down();
    let client = Client::builder().url(server.url()).connect_lazy().expect("good settings");
    assert!(client.ping().await.expect_err("nobody is there").is_unavailable());
    let lock = client.lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(1_000), || client.stats().now.waiting == 1).await;
    server.revive();
    let (taken, _) = within("the lock", ms(5_000), waiting).await;
    taken.expect("no panic").expect("free").unlock().await.expect("ours");
}

#[tokio::test]
async fn a_lazy_client_that_is_not_welcome_says_so() {
    let server = Server::with(&["--requirepass", "s3cret"]);
    let client = Client::builder().url(server.url()).connect_lazy().expect("nothing was asked yet");
    let denied = within("the refusal", ms(5_000), client.lock("x").lock()).await.0;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    assert!(matches!(Client::builder().url("http://h").connect_lazy(), Err(Error::InvalidConfig { .. })));
}

#[tokio::test]
async fn a_ping_tells_whether_the_server_answers_on_all_connections() {
    let server = Server::start();
    let client = client(&server, |builder| builder.connections(3).command_timeout(ms(300))).await;
    client.ping().await.expect("answered");
    server.freeze();
    let (silent, _) = within("the ping", ms(1_000), client.ping()).await;
    assert!(silent.expect_err("frozen").is_unavailable());
    server.thaw();
    client.clone().close().await.expect("answered");
    assert!(matches!(client.ping().await, Err(Error::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_waits_for_the_guards_and_grants_nothing_new() {
    let server = Server::start();
    let (client, other) = (plain(&server).await, plain(&server).await);
    let _taken = other.lock("taken").lock().await.expect("free");
    let guard = client.lock("x").lock().await.expect("free");
    let waiting = tokio::spawn({
        let lock = client.lock("taken");
        async move { lock.lock().await }
    });
    until("it to wait", ms(1_000), || client.stats().now.waiting == 1).await;
    assert!(!client.is_closed());

    let closing = tokio::spawn(client.clone().shutdown(ms(20_000)));
    until("it to begin", ms(1_000), || client.is_closed()).await;
    let (ended, _) = within("the waiter", ms(1_000), waiting).await;
    assert!(matches!(ended.expect("no panic"), Err(Error::Closed)));
    assert!(matches!(client.lock("new").try_lock().await, Err(Error::Closed)));
    assert!(!server.exists("new"));
    let again = client.lock("x").lock().await.expect("its owner re-enters");
    again.unlock().await.expect("ours");
    assert!(!guard.is_lost() && !closing.is_finished());
    guard.check().await.expect("still kept");
    drop(guard);
    within("the end", ms(2_000), closing).await.0.expect("no panic").expect("all was given back");
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn a_lock_is_renewed_while_shutting_down() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(1_000))).await;
    let guard = client.lock("x").lock().await.expect("free");
    let work = guard.protect(tokio::time::sleep(ms(3_000))); // three leases
    let (closed, worked) = tokio::join!(client.shutdown(ms(20_000)), work);
    closed.expect("all was given back");
    worked.expect("ours to the end");
}

#[tokio::test]
async fn shutting_down_takes_away_what_is_left_after_the_grace() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    let (closed, waited) = within("the end", ms(2_000), client.shutdown(ms(200))).await;
    closed.expect("all was given back");
    assert!(waited >= ms(200), "{waited:?}");
    assert_eq!(guard.lost().await, Lost::Closed);
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn what_is_held_can_be_listed() {
    let server = Server::start();
    let client = client(&server, |builder| builder.prefix("app:")).await;
    assert!(client.held().is_empty());
    let started = Instant::now();
    let outer = client.lock("x").lock().await.expect("free");
    let _inner = client.lock("x").lock().await.expect("re-entered");
    let other = client.lock("y").owner(&Owner::new()).lease(ms(50)).lock().await.expect("free");
    let mut held = client.held();
    held.sort_by(|one, two| one.name.cmp(&two.name));
    let [x, y] = &held[..] else { panic!("{held:?}") };
    assert_eq!((&*x.name, &*x.id, x.holds), ("x", outer.id(), 2));
    assert!(x.since >= started - ms(1) && x.since <= Instant::now());
    assert!(x.remaining > ms(20_000) && y.remaining <= ms(50) && y.holds == 1);
    until("the lease to end", ms(1_000), || other.is_lost()).await;
    assert_eq!(client.held().len(), 1, "what is lost is not held");
}

#[tokio::test]
async fn a_deadline_can_be_of_either_clock() {
    let server = Server::start();
    let client = plain(&server).await;
    let _guard = client.mutex("x").lock().await.expect("free");
    let lock = client.mutex("x");
    let by_std = lock.try_lock_until(Instant::now() + ms(500)).await;
    let by_tokio = lock.try_lock_until(tokio::time::Instant::now() + ms(500)).await;
    for taken in [by_std, by_tokio] {
        assert!(taken.expect("answered").is_none());
    }
    // The one attempt after a deadline has 20 ms.
    let past = async || assert!(lock.try_lock_until(Instant::now() - ms(50)).await.expect("answered").is_none());
    unless_stalled(Slack { left: ms(15), within: ms(20) }, past).await;
}

/// Whoever closes must find every lock that a call is just getting: on the server nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn closing_under_load_leaves_nothing_behind() {
    let server = Server::start();
    for round in 0..12 {
        let client = plain(&server).await;
        let task = |n: usize| {
            let client = client.clone();
            tokio::spawn(async move {
                for turn in n.. {
                    let name = format!("k{}", turn % 4);
                    let lock = if n.is_multiple_of(2) { client.mutex(&name) } else { client.lock(&name) };
                    let taken = if n.is_multiple_of(3) { lock.try_lock().await } else { lock.lock().await.map(Some) };
                    match taken {
                        Ok(Some(guard)) if turn % 3 == 0 => _ = guard.unlock().await,
                        Ok(guard) => drop(guard),
                        Err(_) => return,
                    }
                }
            })
        };
        let tasks: Vec<_> = (0..24).map(task).collect();
        until("all to be at it", ms(5_000), || client.stats().total.acquired > 20 * round).await;
        let closing = client.clone();
        let closed = if round % 2 == 0 { closing.close().await } else { closing.shutdown(Duration::ZERO).await };
        closed.expect("all was given back");
        for task in tasks {
            within("the task", ms(3_000), task).await.0.expect("no panic");
        }
        let left: Vec<String> = server.ask(&["KEYS", "*"]);
        assert!(left.is_empty(), "round {round}: {left:?}");
    }
}

#[tokio::test]
async fn closing_does_not_wait_for_one_who_waits_for_its_own_release() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.mutex("x");
    drop(lock.lock().await.expect("free"));
    let ((taken, closed), took) = within("both", ms(2_000), async { tokio::join!(lock.lock(), client.close()) }).await;
    closed.expect("all was given back");
    assert!(matches!(taken, Err(Error::Closed)), "{taken:?}");
    assert!(took < ms(400) && !server.exists("x"), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_hears_that_the_client_was_closed_meanwhile() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    let stopping = tokio::spawn(client.clone().shutdown(Duration::MAX));
    until("it to begin", ms(1_000), || client.is_closed()).await;
    assert!(!guard.is_lost());
    client.clone().shutdown(Duration::ZERO).await.expect("all was given back");
    within("the first", ms(2_000), stopping).await.0.expect("no panic").expect("all was given back");
    assert_eq!(guard.lost().await, Lost::Closed);
}

#[tokio::test]
async fn calls_under_way_end_when_the_shutdown_begins() {
    let server = Server::start();
    let client = plain(&server).await;
    server.freeze();
    let (lock, stopping) = (client.lock("x"), client.clone());
    let asking = async {
        let ended = lock.lock().await;
        (ended, Instant::now())
    };
    let stop = async {
        tokio::time::sleep(ms(100)).await; // it asks
        let began = Instant::now();
        let _ = stopping.shutdown(ms(2_000)).await; // what is in doubt cannot be given back
        began
    };
    let ((ended, at), began) = tokio::join!(asking, stop);
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    assert!(at - began < ms(1_000), "{:?}", at - began);
}

#[tokio::test]
async fn a_close_that_failed_leaves_no_gauge_up() {
    let server = Server::start();
    let client = plain(&server).await;
    let _guard = client.lock("x").lock().await.expect("free");
    server.freeze();
    client.clone().close().await.expect_err("it does not answer");
    until("nothing to be under way", ms(1_000), || client.stats().now.releasing == 0).await;
    client.close().await.expect_err("it is not known to be released");
}

/// Nothing is held; a future that nobody polls waits for somebody else's lock.
#[tokio::test]
async fn shutting_down_does_not_wait_for_a_future_that_holds_nothing() {
    let server = Server::start();
    let (holder, client) = (plain(&server).await, plain(&server).await);
    let _held = holder.lock("x").lock().await.expect("free");
    let lock = client.mutex("x");
    let mut kept = Box::pin(lock.lock());
    poll_until("it to wait", kept.as_mut(), || client.stats().total.refused >= 1).await;
    let started = Instant::now();
    let _ = client.clone().shutdown(Duration::from_secs(20)).await;
    let took = started.elapsed();
    drop(kept);
    assert!(took <= ms(3_000), "no guard is alive, and shutdown waited for {took:?}");
}

/// A server that accepts and says nothing.
#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_when_the_connect_timeout_is_over() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", silent.local_addr().expect("bound"));
    let started = Instant::now();
    let connect = Client::builder().url(url).command_timeout(ms(1_000)).connect_timeout(ms(1_500)).connect();
    connect.await.expect_err("it says nothing");
    let took = started.elapsed();
    assert!(took >= ms(1_400) && took <= ms(2_400), "{took:?} with a connect_timeout of 1.5 s");
}

/// The error says what is missing.
#[test]
fn a_runtime_without_timers_or_connections_is_named() {
    let server = Server::start();
    let runtime = |all: fn(&mut tokio::runtime::Builder) -> &mut tokio::runtime::Builder| {
        all(tokio::runtime::Builder::new_multi_thread().worker_threads(1)).build().expect("a runtime")
    };
    for is_lazy in [false, true] {
        let builder = Client::builder().url(server.url());
        let connected = runtime(|builder| builder.enable_io())
            .block_on(async { if is_lazy { builder.connect_lazy() } else { builder.connect().await } });
        let Err(Error::InvalidConfig { setting, reason, .. }) = &connected else { panic!("{connected:?}") };
        assert!(*setting == "runtime" && reason.contains("timers"), "{setting}: {reason}");
    }
    let without = runtime(|builder| builder.enable_time());
    let connected = without.block_on(Client::builder().url(server.url()).connect()).expect_err("no connections");
    let causes = std::iter::successors(Some(&connected as &dyn std::error::Error), |error| error.source());
    assert!(causes.map(ToString::to_string).any(|cause| cause.contains("enable_io")), "{connected:?}");
}
