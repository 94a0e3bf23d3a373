//! `unlock()` says whether the lock was ours to the end: Ok if it was, lost if it was not, and neither where nobody can know.

use std::time::Duration;

use leasehold::{Client, Error, Lost, Owner, Result};

use crate::{
    kinds::family::{Way as Kind, clean, idle},
    kinds::family_faults,
    support::{
        Server, before, behind, chain, ms, plain, poll_until,
        proxy::{Fault, Mode, Rule, Way},
        script, until, within,
    },
};

const SOON: Duration = ms(3_000);

/// Each grant is balanced once.
async fn is_balanced(client: &Client) {
    until("the client to be idle", SOON, || {
        let now = client.stats().now;
        (now.holds, now.waiting, now.releasing) == (0, 0, 0)
    })
    .await;
    let total = client.stats().total;
    assert_eq!(total.acquired, total.released + total.lost, "{total:?}");
}

/// The client knows that it has no connection: the first ping may still have been written to the one that was cut.
async fn nothing_can_be_sent(client: &Client) {
    let known = async { while !chain(&client.ping().await.expect_err("no server")).contains("refused") {} };
    within("the connection to be refused", SOON, known).await;
}

fn is_removed(unlocked: &Result<()>) -> bool {
    matches!(unlocked, Err(Error::Lost { reason: Lost::Removed, .. }))
}

/// The last reply is lost, and the retry finds nothing: that is so for all of them, not only for the one that asked.
#[tokio::test]
async fn nested_guards_given_back_together_are_ours_although_the_last_reply_is_lost() {
    let server = Server::start();
    let release = script(&server, "release");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let lock = client.mutex("x").owner(&Owner::new());
    let first = lock.lock().await.expect("free");
    let (second, third) = (lock.lock().await.expect("nested"), lock.lock().await.expect("nested"));
    proxy.rule(Rule::new(release, Fault::Cut(Way::Back)).after(1));
    let unlocked = tokio::join!(first.unlock(), second.unlock(), third.unlock());
    assert!(proxy.is_spent());
    assert!(matches!(unlocked, (Ok(()), Ok(()), Ok(()))), "{unlocked:?}");
    is_balanced(&client).await;
    assert_eq!(client.stats().total.lost, 0);
    clean(&server, &client).await;
}

/// Two readers share. One of them has two guards and asks for a third, in vain; meanwhile the lock is deleted.
#[tokio::test]
async fn guards_of_an_owner_that_shares_are_all_told_that_it_was_gone() {
    let server = Server::start();
    let renew = family_faults::script(&server, Kind::Read, "renew"); // nested reads send it, too
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let (owner, other) = (Owner::new(), Owner::new());
    let lock = |owner: &Owner| client.rw_lock("x").owner(owner);
    let (first, beside) = loop {
        let (first, beside) = (lock(&owner).read().await.expect("free"), lock(&other).read().await.expect("free"));
        if first.id() == beside.id() {
            break (first, beside);
        }
    };
    let second = lock(&owner).read().await.expect("nested");
    proxy.rule(Rule::new(renew, Fault::Delay(Way::There, ms(300))));
    {
        let third = lock(&owner);
        let mut third = Box::pin(third.read());
        poll_until("it to be under way", third.as_mut(), || proxy.tally().delayed == 1).await;
    }
    let _: u32 = server.ask(&["DEL", "x"]);
    let unlocked = tokio::join!(first.unlock(), second.unlock());
    assert!(is_removed(&unlocked.0) && is_removed(&unlocked.1), "{unlocked:?}");
    assert!(is_removed(&beside.unlock().await));
    is_balanced(&client).await;
}

/// The user may not hand over, so the lock is released for all. Between the two it is deleted, and each request was answered.
#[tokio::test]
async fn a_lock_that_was_gone_is_lost_although_a_hand_over_was_refused_before() {
    let server = Server::start();
    server.set_user("u", &["on", ">p", "~*", "&*", "+@all", "-hdel"]);
    let release = script(&server, "release");
    script(&server, "hand_over");
    let proxy = before(&server);
    let url = proxy.url().replace("redis://", "redis://u:p@");
    let client = Client::connect(&url).await.expect("let in");
    let guard = client.mutex("x").lock().await.expect("free");
    let waiting = tokio::spawn({
        let lock = client.mutex("x").lease(ms(60_000)); // so it is not passed on in memory
        async move { lock.lock().await.expect("in the end") }
    });
    until("it to wait", SOON, || client.stats().now.waiting == 1).await;
    proxy.rule(Rule::new(release, Fault::Delay(Way::There, ms(300))));
    let unlocking = tokio::spawn(guard.unlock());
    until("the release to be under way", SOON, || proxy.tally().delayed == 1).await;
    let _: u32 = server.ask(&["DEL", "x"]);
    let unlocked = unlocking.await.expect("no panic");
    assert!(is_removed(&unlocked), "{unlocked:?}");
    within("its turn", ms(8_000), waiting).await.0.expect("no panic").unlock().await.expect("ours");
    is_balanced(&client).await;
    assert_eq!(client.stats().total.lost, 1);
}

/// It was passed on in memory; then the server was not heard for longer than the lease. It may have ended by itself since.
#[tokio::test]
async fn after_an_outage_that_outlasts_the_lease_nobody_can_know() {
    for waits in [true, false] {
        let server = Server::start();
        let proxy = before(&server);
        let settings = |builder: leasehold::Builder| builder.watchdog(ms(800)).command_timeout(ms(300));
        let client = behind(&proxy, settings).await;
        let guard = client.mutex("x").lock().await.expect("free");
        let waiting = waits.then(|| {
            let lock = client.mutex("x");
            tokio::spawn(async move { lock.lock().await })
        });
        until("it to wait", SOON, || client.stats().now.waiting == u64::from(waits)).await;
        proxy.set(Mode::Swallow);
        proxy.cut_all();
        proxy.refuse(); // what is asked now is known not to have been sent
        nothing_can_be_sent(&client).await;
        assert!(!guard.is_lost());
        let unlocking = tokio::spawn(guard.unlock());
        until("the end of the lease", SOON, || !server.exists("x")).await;
        proxy.set(Mode::Pass);
        proxy.accept();
        let (unlocked, _) = within("an answer", SOON, unlocking).await;
        let error = unlocked.expect("no panic").expect_err("nobody can know");
        assert!(error.is_unavailable() && error.to_string().contains("could not be confirmed"), "{error}");
        if let Some(waiting) = waiting {
            drop(within("its end", SOON, waiting).await.0.expect("no panic"));
        }
        is_balanced(&client).await;
    }
}

/// Nobody waits for the answer, so the statistics alone can say it.
#[tokio::test]
async fn a_dropped_guard_whose_lock_was_gone_is_counted_as_lost() {
    let server = Server::start();
    let client = plain(&server).await;
    for n in 1..=3 {
        let guard = client.mutex("x").lock().await.expect("free");
        let _: u32 = server.ask(&["DEL", "x"]);
        drop(guard);
        is_balanced(&client).await;
        assert_eq!(client.stats().total.lost, n);
    }
    idle(&client).await;
}
