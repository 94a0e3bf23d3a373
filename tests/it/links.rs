//! When a connection is replaced and when not, and how often.

use std::time::Duration;

use crate::support::{
    Server, before, behind, client, ms,
    proxy::{Fault, Rule, Way, Which},
    script, until,
};

/// Nobody is there to take the answer; that is no sign that there was none.
#[tokio::test]
async fn a_call_that_is_dropped_does_not_cost_its_connection() {
    let server = Server::start();
    let client = client(&server, |builder| builder.command_timeout(ms(300))).await;
    let lock = client.lock("x");
    for _ in 0..3 {
        let mut inspect = std::pin::pin!(lock.inspect());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(inspect.as_mut().poll(&mut context).is_pending());
        tokio::time::sleep(ms(700)).await; // twice the time after which a silent connection is replaced
    }
    assert_eq!((client.stats().total.reconnects, client.stats().total.timeouts), (0, 0));
}

/// An answer to an earlier request says nothing of a later one.
#[tokio::test]
async fn a_renewal_that_is_swallowed_behind_an_answer_does_not_cost_the_lock() {
    let server = Server::start();
    let (renew, inspect) = (script(&server, "renew"), script(&server, "inspect"));
    script(&server, "acquire");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(2_400)).command_timeout(ms(800))).await;
    let guard = client.lock("x").lock().await.expect("free");
    proxy.rule(Rule::new(inspect, Fault::Delay(Way::Back, ms(300))));
    proxy.rule(Rule::new(renew, Fault::Swallow(Way::There)));
    tokio::time::sleep(ms(560)).await; // the renewal is due at 0.3 of the lease
    let other = client.lock("other");
    tokio::spawn(async move { other.inspect().await });
    until("the renewal to be swallowed", ms(3_000), || proxy.tally().swallowed == 1).await;
    until("a renewal", ms(3_000), || client.stats().total.renewals > 0).await;
    assert!(!guard.is_lost());
    guard.unlock().await.expect("ours to the end");
}

/// One that dies young again and again is opened with growing pauses.
#[tokio::test]
async fn a_server_that_cuts_every_request_is_not_stormed() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.outage_timeout(ms(4_000))).await;
    proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Cut(Way::There)).times(u64::MAX));
    let calls = (0..100).map(|n| {
        let lock = client.lock(&format!("lock-{n}"));
        tokio::spawn(async move { lock.lock().await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic").expect_err("no request arrives");
    }
    let opened = proxy.tally().connections;
    assert!((3..60).contains(&opened), "{opened} connections in {:?}", Duration::from_secs(4));
}
