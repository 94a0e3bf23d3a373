//! `close()` gives back everything.

use std::pin::pin;

use leasehold::{Client, Error, Lost, Owner};
use tokio::time::sleep;

use crate::support::{
    Server, before, behind, client, ms, plain, poll_once,
    proxy::{Fault, Rule, Way},
    script,
    server::free_port,
    until, within,
};

#[tokio::test]
async fn gives_back_all_that_is_held() {
    let server = Server::start();
    let client = plain(&server).await;
    let one = client.lock("one").lock().await.expect("free");
    let again = client.lock("one").lock().await.expect("re-entered");
    let two = client.lock("two").lock().await.expect("free");
    client.clone().close().await.expect("answered");
    assert!(!server.exists("one") && !server.exists("two"));
    assert_eq!(one.lost().await, Lost::Closed);
    for guard in [one, again, two] {
        assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::Closed, .. })));
    }
    assert!(matches!(client.lock("one").lock().await, Err(Error::Closed)));
    assert!(matches!(client.lock("one").inspect().await, Err(Error::Closed)));
    let connections = || server.ask::<String>(&["CLIENT", "LIST"]).lines().count();
    until("the connections to be closed", ms(1_000), || connections() == 1).await;
    client.close().await.expect("closing twice is fine");
}

#[tokio::test]
async fn ends_calls_that_wait() {
    let server = Server::start();
    let (holder, waiter) = (plain(&server).await, plain(&server).await);
    let _guard = holder.lock("busy").lock().await.expect("free");
    let lock = waiter.lock("busy");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(1_000), || waiter.stats().now.waiting == 1).await;
    waiter.close().await.expect("answered");
    let (ended, _) = within("the waiter to end", ms(1_000), waiting).await;
    assert!(matches!(ended.expect("no panic"), Err(Error::Closed)));
}

#[tokio::test]
async fn returns_in_time_with_the_server_frozen() {
    let server = Server::start();
    let client = client(&server, |builder| builder).await;
    let guard = client.lock("frozen").lock().await.expect("free");
    server.freeze();
    let (closed, _) = within("closing", ms(2_000), client.close()).await;
    assert!(matches!(closed, Err(Error::Unavailable { .. })), "{closed:?}");
    assert_eq!(guard.lost().await, Lost::Closed);
}

/// The first end is that of all calls: later ones do not say that all was released.
#[tokio::test]
async fn closing_after_a_shutdown_that_failed_fails_too() {
    let server = Server::start();
    let client = client(&server, |builder| builder).await;
    let _guard = client.lock("frozen").lock().await.expect("free");
    server.freeze();
    for closed in [client.clone().shutdown(ms(0)).await, client.clone().close().await, client.close().await] {
        assert!(matches!(closed, Err(Error::Unavailable { .. })), "{closed:?}");
    }
}

/// Their guards exist, and the server has nothing of them.
#[tokio::test]
async fn sends_nothing_about_locks_that_are_lost() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(900)).command_timeout(ms(300))).await;
    let mut guards = Vec::new();
    for name in 0..20 {
        guards.push(client.mutex(&format!("watched-{name}")).lock().await.expect("free"));
        guards.push(client.mutex(&format!("fixed-{name}")).lease(ms(1_500)).lock().await.expect("free"));
    }
    let names: Vec<String> = server.ask(&["KEYS", "watched-*"]);
    for name in names {
        let _: u32 = server.ask(&["DEL", &name]);
    }
    until("all to be lost", ms(5_000), || guards.iter().all(leasehold::Guard::is_lost)).await;
    sleep(ms(1_000)).await; // no request for them can arrive anymore
    client.mutex("x").lock().await.expect("free").unlock().await.expect("held"); // loads the script
    let held = client.mutex("held").lock().await.expect("free");
    let before = server.calls("evalsha");
    client.close().await.expect("answered");
    assert_eq!((server.calls("evalsha") - before, server.exists("held")), (1, false));
    drop((guards, held));
}

#[tokio::test]
async fn ends_everything_that_waits_for_an_answer() {
    closing_ends_calls(1).await;
}

/// The client's own thread ends before it has polled all tasks of its connections once more. That is no abandoned client.
#[tokio::test]
async fn ends_everything_that_waits_on_many_connections() {
    closing_ends_calls(32).await;
}

async fn closing_ends_calls(connections: usize) {
    let server = Server::start();
    let client = client(&server, |builder| builder.connections(connections)).await;
    server.freeze();
    let calls: Vec<_> = (0..60)
        .map(|n| {
            let lock = client.lock("asked"); // all on one connection, so that some are gathered
            tokio::spawn(async move {
                tokio::time::sleep(ms(n)).await;
                lock.inspect().await
            })
        })
        .collect();
    until("all to be under way", ms(1_000), || client.stats().total.calls >= 8).await;
    tokio::time::sleep(ms(100)).await;
    let (closed, _) = within("closing", ms(2_000), client.close()).await;
    closed.expect("nothing was held");
    for call in calls {
        let (ended, _) = within("a call to end", ms(2_000), call).await;
        let ended = ended.expect("no panic");
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    }
}

/// No server of the cluster replies, so no server of the slot is known.
#[tokio::test]
async fn ends_calls_that_wait_for_the_map_of_a_cluster() {
    let url = format!("redis-cluster://127.0.0.1:{}", free_port());
    let client = Client::builder().announce(false).url(url).connect_lazy().expect("good settings");
    let lock = client.lock("x");
    let mut waiting = pin!(lock.inspect());
    assert!(poll_once(waiting.as_mut()).is_pending());
    client.clone().close().await.expect("nothing was held");
    let (ended, _) = within("it to end", ms(1_000), waiting).await;
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
}

/// A nested call with a long lease got no reply in an outage that ended the hold. What it has left on the server is released.
#[tokio::test]
async fn releases_what_a_nested_call_without_a_reply_has_left() {
    let server = Server::start();
    let holders = before(&server);
    let holder = behind(&holders, |builder| builder.watchdog(ms(2_000)).command_timeout(ms(500))).await;
    let lock = holder.lock("x").owner(&Owner::new());
    let guard = lock.lock().await.expect("free");
    let acquire = script(&server, "acquire");
    holders.rule(Rule::new(acquire, Fault::Cut(Way::Back)).times(1_000)); // nor does a retry
    let nested = {
        let lock = lock.clone().lease(ms(3_600_000));
        tokio::spawn(async move { lock.lock().await.map(drop) })
    };
    until("the server to have it", ms(2_000), || server.pttl("x") > 10_000).await;
    holders.refuse();
    holders.cut_all();
    nested.abort();
    guard.lost().await;
    holders.accept();
    sleep(ms(1_500)).await;
    holder.close().await.expect("all is released");
    assert!(server.pttl("x") < 10_000, "the lock stays for {} ms", server.pttl("x"));
}
