//! The fenced lock's tokens: they grow with every grant, however it came.

use std::sync::{Arc, Mutex};

use leasehold::{Error, Owner};

use crate::{
    kinds::family::{Way as Kind, idle},
    kinds::family_faults::script,
    support::{
        Server, before, behind, ms, plain,
        proxy::{Fault, Rule, Way},
        until, within,
    },
};

const TOKEN: &str = "redisson_lock_token:{x}";

#[tokio::test]
async fn grows_with_each_outermost_hold_and_no_nested_one() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    let lock = one.fenced_lock("x");
    let outer = lock.lock().await.expect("free");
    let inner = lock.lock().await.expect("re-entered");
    assert_eq!((outer.token(), inner.token(), server.ask::<u64>(&["GET", TOKEN])), (1, 1, 1));
    inner.unlock().await.expect("ours");
    outer.unlock().await.expect("ours");
    let again = two.fenced_lock("x").lock().await.expect("free");
    assert_eq!(again.token(), 2);
    let _: u64 = server.ask(&["INCRBY", TOKEN, "9007199254740993"]); // a number that a float does not have
    again.unlock().await.expect("ours");
    assert_eq!(lock.lock().await.expect("free").token(), 9_007_199_254_740_996);
}

#[tokio::test]
async fn grows_when_handed_over() {
    let server = Server::start();
    let client = plain(&server).await;
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let turns = (0..100).map(|_| {
        let (lock, tokens) = (client.fenced_lock("x").owner(&Owner::new()), Arc::clone(&tokens));
        tokio::spawn(async move {
            let guard = lock.lock().await.expect("in turn");
            tokens.lock().expect("no panic").push(guard.token());
            guard.unlock().await.expect("ours to the end");
        })
    });
    for turn in turns.collect::<Vec<_>>() {
        within("its turn", ms(5_000), turn).await.0.expect("no panic");
    }
    let tokens = tokens.lock().expect("no panic").clone();
    assert_eq!(tokens, (1..=100).collect::<Vec<_>>());
    assert!(client.stats().total.handed_over > 50, "{:?}", client.stats().total);
}

/// A plain lock of the same name is the same lock in Redis; it is not passed on to those who need a token.
#[tokio::test]
async fn excludes_the_plain_lock_and_has_nothing_from_it() {
    let server = Server::start();
    let client = plain(&server).await;
    let plain = client.lock("x").lock().await.expect("free");
    let lock = client.fenced_lock("x");
    assert!(lock.try_lock().await.expect("answered").is_none());
    let waiting = tokio::spawn(async move { lock.lock().await.expect("in turn") });
    until("it to sleep", ms(2_000), || client.stats().total.refused >= 3).await;
    plain.unlock().await.expect("ours");
    let guard = within("its turn", ms(2_000), waiting).await.0.expect("no panic");
    assert_eq!(guard.token(), 1);
    assert!(client.lock("x").try_lock().await.expect("answered").is_none());
}

#[tokio::test]
async fn writes_only_while_it_is_held() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.fenced_lock("x").lock().await.expect("free");
    guard.write_if_held("report", "two words").await.expect("ours");
    assert_eq!(server.ask::<String>(&["GET", "report"]), "two words");
    let _: u32 = server.ask(&["DEL", "x"]);
    let refused = guard.write_if_held("report", "late").await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    assert_eq!(server.ask::<String>(&["GET", "report"]), "two words");
    assert!(guard.is_lost());
}

/// The server writes, and its reply is late. The retry finds that the lock is gone.
#[tokio::test]
async fn a_write_without_a_reply_is_not_said_to_be_none() {
    let server = Server::start();
    let (write, proxy) = (script(&server, Kind::Fenced, "write"), before(&server));
    let client = behind(&proxy, |builder| builder.command_timeout(ms(1_000))).await;
    let guard = client.fenced_lock("x").lock().await.expect("free");
    proxy.rule(Rule::new(write, Fault::Delay(Way::Back, ms(3_000))));
    let writes = async { guard.write_if_held("report", "done").await };
    let deletes = async {
        until("the write", ms(5_000), || server.exists("report")).await;
        let _: u32 = server.ask(&["DEL", "x"]);
    };
    let (written, ()) = tokio::join!(writes, deletes);
    assert!(written.as_ref().is_err_and(Error::is_unavailable), "{written:?}");
    assert!(guard.is_lost());
}

#[tokio::test]
async fn a_token_that_is_no_number_grants_nothing() {
    let server = Server::start();
    let client = plain(&server).await;
    let _: String = server.ask(&["SET", TOKEN, "x"]);
    let refused = client.fenced_lock("x").lock().await;
    assert!(matches!(refused, Err(Error::Server { .. })), "{refused:?}");
    until("nothing to be held", ms(2_000), || client.stats().now.releasing == 0).await;
    assert!(!server.exists("x"));
}

/// The server hands the lock over, and the reply is later than the client waits for it. Meanwhile that hold is gone, another client has
/// the lock and gives it back, and the server grants it again to the same waiter, by a request of its own.
#[tokio::test]
async fn a_late_hand_over_leaves_the_token_of_the_grant_that_counts() {
    let server = Server::start();
    let (hand_over, proxy) = (script(&server, Kind::Fenced, "hand_over"), before(&server));
    let (one, other) = (behind(&proxy, |builder| builder.command_timeout(ms(500))).await, plain(&server).await);
    let token = || server.ask::<u64>(&["GET", TOKEN]);
    let (mut good, mut rounds) = (0, 0);
    while good < 2 {
        rounds += 1;
        assert!(rounds <= 20, "the waiter was granted only what was handed over");
        let held = one.fenced_lock("x").lock().await.expect("free");
        let lock = one.fenced_lock("x").owner(&Owner::new());
        let waiting = tokio::spawn(async move { lock.lock().await });
        until("it to wait", ms(2_000), || one.stats().now.waiting == 1).await;
        proxy.rule(Rule::new(hand_over.clone(), Fault::Delay(Way::Back, ms(1_000))));
        let unlocking = tokio::spawn(held.unlock());
        let handed = token() + 1;
        until("the hand-over", ms(2_000), || token() == handed).await;
        let _: u32 = server.ask(&["DEL", "x"]);
        let between = other.fenced_lock("x").try_lock().await.expect("answered").expect("free");
        assert_eq!(between.token(), handed + 1);
        between.unlock().await.expect("ours");
        let is_granted = || token() == handed + 2;
        until("the waiter to be granted", ms(3_000), || is_granted() || waiting.is_finished()).await;
        let in_time = is_granted(); // else the reply has come before that
        let guard = within("the lock", ms(5_000), waiting).await.0.expect("no panic").expect("free");
        if in_time {
            assert_eq!((guard.token(), token()), (handed + 2, handed + 2));
            guard.check().await.expect("ours");
            good += 1;
        }
        drop(guard);
        idle(&one).await;
        unlocking.await.expect("no panic").expect("it was handed over");
    }
}
