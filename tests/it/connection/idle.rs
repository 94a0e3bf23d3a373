//! Connections that nobody has used for a while, and that a balancer of load or a NAT has forgotten meanwhile without a word.

use std::time::Duration;

use tokio::time::sleep;

use crate::support::{
    Server, Stopwatch, before, behind, ms,
    proxy::{Mode, Proxy},
    until, within,
};

const COMMAND_TIMEOUT: Duration = ms(3_000);

/// Every connection of this moment stays silent from here on; new ones work.
async fn forget_all(proxy: &Proxy) {
    proxy.set(Mode::Swallow);
    sleep(ms(100)).await; // each connection has seen it
    proxy.set(Mode::Pass);
}

#[tokio::test]
async fn the_first_call_after_a_silent_drop_is_answered() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(COMMAND_TIMEOUT)).await;
    client.lock("warm").lock().await.expect("free").unlock().await.expect("ours");
    sleep(COMMAND_TIMEOUT / 2).await;
    forget_all(&proxy).await;
    let (taken, took) = within("the lock", ms(10_000), client.lock("x").try_lock()).await;
    let guard = taken.expect("another connection answers").expect("free");
    assert!(took < COMMAND_TIMEOUT / 2, "{took:?}");
    assert_eq!(client.stats().total.reconnects, 1);
    guard.unlock().await.expect("ours");
}

#[tokio::test]
async fn a_ping_after_a_silent_drop_is_answered() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(COMMAND_TIMEOUT)).await;
    sleep(COMMAND_TIMEOUT / 2).await;
    forget_all(&proxy).await;
    client.ping().await.expect("another connection answers");
}

/// An idle connection is used now and then, so that nothing on the way forgets it; one that was forgotten is replaced
/// before a call needs it.
#[tokio::test]
async fn an_idle_connection_is_kept_warm_and_replaced_before_a_call_needs_it() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(300))).await;
    client.lock("warm").lock().await.expect("free").unlock().await.expect("ours");
    let pings = server.calls("ping");
    until("a PING", ms(3_000), || server.calls("ping") > pings).await;
    assert_eq!(client.stats().total.reconnects, 0);
    forget_all(&proxy).await;
    until("a new connection", ms(3_000), || client.stats().total.reconnects == 1).await;
}

/// A server that is slow for a moment keeps its connections: they are only left for one that answers sooner.
#[tokio::test]
async fn a_server_that_stalls_after_an_idle_time_keeps_its_connection() {
    let server = Server::start();
    let client = crate::support::client(&server, |builder| builder.command_timeout(COMMAND_TIMEOUT)).await;
    sleep(COMMAND_TIMEOUT / 2).await;
    server.freeze();
    let lock = client.lock("x");
    let asking = tokio::spawn(async move { lock.try_lock().await });
    sleep(COMMAND_TIMEOUT / 2).await;
    let thawed = Stopwatch::start();
    server.thaw();
    let guard = asking.await.expect("no panic").expect("answered").expect("free");
    assert!(thawed.elapsed() < COMMAND_TIMEOUT / 2);
    assert!(client.stats().total.reconnects <= 1);
    guard.unlock().await.expect("ours");
}
