//! A hold that has lasted for as long as it may is lost, and stays so; who still works under it is not robbed.

use leasehold::{Client, Error, Guard, Lost, Owner};

use crate::support::{
    Server, before, behind, ms, plain,
    proxy::{Fault, Rule, Way},
    script, until, within,
};

/// An outer guard without a cap, and an inner one whose cap has passed.
async fn capped(client: &Client) -> (Guard, Guard) {
    let outer = client.lock("x").lock().await.expect("free");
    let inner = client.lock("x").max_hold(ms(100)).lock().await.expect("re-entered");
    let (lost, _) = within("the cap", ms(1_000), outer.lost()).await;
    assert_eq!(lost, Lost::MaxHold);
    (outer, inner)
}

/// The rest of the lease is that guard's time to stop: nobody else has the lock before it has.
async fn has_its_time(server: &Server, client: &Client, guard: Guard) {
    until("nothing to be on its way back", ms(2_000), || client.stats().now.releasing == 0).await;
    assert!(server.exists("x"), "free while a guard is there");
    let stranger = client.lock("x").owner(&Owner::new());
    assert!(stranger.try_lock().await.expect("answered").is_none(), "granted under a guard");
    assert!(matches!(guard.unlock().await, Err(Error::Lost { reason: Lost::MaxHold, .. })));
    until("it to be free", ms(1_000), || !server.exists("x")).await;
}

#[tokio::test]
async fn an_inner_guard_dropped_after_it_does_not_free_the_lock_under_the_outer() {
    let server = Server::start();
    let client = plain(&server).await;
    let (outer, inner) = capped(&client).await;
    drop(inner);
    has_its_time(&server, &client, outer).await;
}

#[tokio::test]
async fn nor_does_an_inner_guard_that_is_unlocked() {
    let server = Server::start();
    let client = plain(&server).await;
    let (outer, inner) = capped(&client).await;
    assert!(matches!(inner.unlock().await, Err(Error::Lost { reason: Lost::MaxHold, .. })));
    has_its_time(&server, &client, outer).await;
}

#[tokio::test]
async fn nor_does_the_outer_guard_under_the_inner() {
    let server = Server::start();
    let client = plain(&server).await;
    let (outer, inner) = capped(&client).await;
    drop(outer);
    has_its_time(&server, &client, inner).await;
}

/// The server replies in time that it has the lock, but the reply arrives after the cap, or after a fixed lease. Its caller looks after that.
#[tokio::test]
async fn a_check_whose_reply_comes_after_it_is_lost() {
    let server = Server::start();
    let (renew, proxy) = (script(&server, "renew"), before(&server));
    let client = behind(&proxy, |builder| builder).await;
    let capped = client.lock("x").max_hold(ms(300));
    let fixed = client.lock("x").lease(ms(300));
    for (lock, reason, extends) in
        [(&capped, Lost::MaxHold, false), (&capped, Lost::MaxHold, true), (&fixed, Lost::Expired, false)]
    {
        let guard = lock.lock().await.expect("free");
        proxy.rule(Rule::new(renew.clone(), Fault::Delay(Way::Back, ms(600))));
        let asked = async { if extends { guard.extend(ms(100)).await } else { guard.check().await } };
        let (told, _) = within("a reply", ms(5_000), asked).await;
        assert!(matches!(told, Err(Error::Lost { reason: lost, .. }) if lost == reason), "{told:?}");
        assert!(guard.unlock().await.is_err(), "it was lost");
    }
}

/// The only thread is busy, so the client's own tasks have not looked yet when the guard with the cap goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_hold_ended_by_its_cap_stays_lost_when_that_guard_goes() {
    let server = Server::start();
    let client = plain(&server).await;
    let task = tokio::spawn(async move {
        let outer = client.lock("x").lock().await.expect("free");
        let inner = client.lock("x").max_hold(ms(50)).lock().await.expect("re-entered");
        while !inner.is_lost() {
            std::hint::spin_loop();
        }
        assert!(outer.is_lost(), "they are one hold");
        drop(inner);
        assert!(outer.is_lost(), "what was lost is not found again");
        assert!(outer.remaining().is_zero());
        let (lost, _) = within("to be told", ms(1_000), outer.lost()).await;
        assert_eq!(lost, Lost::MaxHold);
        assert!(matches!(outer.unlock().await, Err(Error::Lost { reason: Lost::MaxHold, .. })));
    });
    task.await.expect("no assertion failed");
    until("it to be free", ms(1_000), || !server.exists("x")).await;
}

/// The reply comes after the cap of the nested call. That call has no guard, so nothing of it remains when the outer guard is dropped.
#[tokio::test]
async fn a_nested_call_that_is_lost_at_once_leaves_nothing() {
    let server = Server::start();
    let acquire = script(&server, "acquire");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let outer = client.lock("x").lock().await.expect("free");
    proxy.rule(Rule::new(acquire, Fault::Delay(Way::There, ms(300))));
    let inner = client.lock("x").max_hold(ms(100)).lock().await;
    assert!(matches!(inner, Err(Error::Lost { reason: Lost::MaxHold, .. })), "{inner:?}");
    drop(outer);
    until("nothing to be left", ms(2_000), || client.stats().now.holds == 0 && !server.exists("x")).await;
    client.shutdown(ms(2_000)).await.expect("nothing is held");
}
