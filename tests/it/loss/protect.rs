//! Work under a lock: stopped when it is lost, and never thrown away once it is done.

use std::{cell::RefCell, rc::Rc, time::Duration};

use leasehold::{Error, Lost, Outcome};

use crate::support::{Server, client, ms, plain, until, within};

#[tokio::test]
async fn done_and_ours_to_the_end() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    assert!(matches!(guard.protect_outcome(async { 42 }).await, Outcome::Done(42)));
    assert!(!server.exists("x"));
}

#[tokio::test]
async fn done_but_found_gone_keeps_the_value_and_says_so() {
    let server = Server::start();
    let client = plain(&server).await;
    let take_away = async {
        let _: u32 = server.ask(&["DEL", "x"]);
        42
    };
    let guard = client.lock("x").lock().await.expect("free");
    let outcome = guard.protect_outcome(take_away).await;
    let Outcome::Unconfirmed { value: 42, error } = &outcome else { panic!("{outcome:?}") };
    assert!(error.is_lost());
    assert!(outcome.into_confirmed().expect_err("not to the end").is_lost());

    let take_away = async {
        let _: u32 = server.ask(&["DEL", "x"]);
        42
    };
    let guard = client.lock("x").lock().await.expect("free");
    assert_eq!(guard.protect(take_away).await.expect("done"), 42);

    let take_away = async || {
        let _: u32 = server.ask(&["DEL", "x"]);
        42
    };
    let outcome = client.lock("x").with_outcome(take_away).await.expect("free");
    assert!(matches!(outcome, Outcome::Unconfirmed { value: 42, .. }), "{outcome:?}");
    assert!(matches!(client.fair_lock("y").with_outcome(async || 7).await, Ok(Outcome::Done(7))));
}

#[tokio::test]
async fn done_but_not_confirmed_as_given_back_keeps_the_value() {
    let server = Server::start();
    let client = client(&server, |builder| builder.outage_timeout(ms(300)).command_timeout(ms(100))).await;
    let guard = client.lock("x").lock().await.expect("free");
    let outcome = guard
        .protect_outcome(async {
            server.freeze();
            42
        })
        .await;
    server.thaw();
    let Outcome::Unconfirmed { value: 42, error } = &outcome else { panic!("{outcome:?}") };
    assert!(error.is_unavailable());
    assert_eq!(outcome.into_value().expect("done"), 42);
}

#[tokio::test]
async fn stopped_work_is_dropped_and_gives_no_value() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(300))).await;
    let guard = client.lock("x").lock().await.expect("free");
    let dropped = Rc::new(());
    let inside = Rc::clone(&dropped);
    let work = async move {
        let _inside = inside;
        let _: u32 = server.ask(&["DEL", "x"]);
        std::future::pending::<()>().await;
    };
    let (outcome, _) = within("to be told", ms(2_000), guard.protect_outcome(work)).await;
    assert!(matches!(outcome, Outcome::Stopped(Error::Lost { reason: Lost::Removed, .. })), "{outcome:?}");
    assert_eq!(Rc::strong_count(&dropped), 1);
}

#[tokio::test]
async fn work_that_fails_gives_one_flat_result_and_the_lock_back() {
    #[derive(Debug)]
    enum Failure {
        Work(&'static str),
        Lock(Error),
    }
    impl From<Error> for Failure {
        fn from(error: Error) -> Failure {
            Failure::Lock(error)
        }
    }
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.lock("x");
    let failed: Result<u32, Failure> = lock.try_with(async || Err(Failure::Work("no paper"))).await;
    assert!(matches!(failed, Err(Failure::Work("no paper"))), "{failed:?}");
    assert!(!server.exists("x"));
    let done: Result<u32, Failure> = lock.lock().await.expect("free").try_protect(async { Ok(42) }).await;
    assert!(matches!(done, Ok(42)), "{done:?}");
    let refused: Result<u32, Failure> = client.lock("").try_with(async || Ok(42)).await;
    assert!(matches!(refused, Err(Failure::Lock(Error::InvalidName { .. }))), "{refused:?}");
}

#[tokio::test]
async fn with_takes_the_lock_does_the_work_and_gives_it_back() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.lock("x");
    let counts = lock.with(async || server.lock("x").len()).await.expect("done");
    assert_eq!((counts, server.exists("x")), (1, false));
    // A closure that gives a future will do, and so will nesting.
    let name = lock.with(|| async { lock.with(async || lock.name().to_owned()).await }).await;
    assert_eq!(name.expect("done").expect("done"), "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_it_can_move_between_threads_depends_on_the_work() {
    let server = Server::start();
    let client = plain(&server).await;
    let (lock, guard) = (client.lock("x"), client.lock("y").lock().await.expect("free"));
    let moved = tokio::spawn(async move {
        let sum = lock.with(async || 40 + 2).await?;
        guard.protect(async move { sum }).await
    });
    assert_eq!(moved.await.expect("no panic").expect("done"), 42);
    // Work that stays on its thread is welcome too.
    let seen = Rc::new(RefCell::new(Vec::new()));
    client.lock("x").with(async || seen.borrow_mut().push("here")).await.expect("done");
    assert_eq!(*seen.borrow(), ["here"]);
}

#[tokio::test]
async fn a_token_tells_other_tasks_of_the_loss_and_not_of_the_end() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(300))).await;
    let guard = client.lock("kept").lock().await.expect("free");
    let kept = guard.lost_token();
    guard.unlock().await.expect("ours");

    let guard = client.lock("x").lock().await.expect("free");
    let token = guard.lost_token();
    assert!(!token.is_cancelled());
    let told = token.clone();
    let helper = tokio::spawn(async move { told.cancelled().await });
    let _: u32 = server.ask(&["DEL", "x"]);
    within("the helper to be told", ms(2_000), helper).await.0.expect("no panic");
    assert!(guard.is_lost() && guard.lost_token().is_cancelled());
    assert!(!kept.is_cancelled(), "that one was given back, not lost");
}

#[tokio::test]
async fn a_token_made_after_the_loss_is_cancelled() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lease(Duration::from_millis(20)).lock().await.expect("free");
    until("its end", ms(1_000), || guard.is_lost()).await;
    assert!(guard.lost_token().is_cancelled());
}

#[tokio::test]
async fn a_token_can_be_cancelled_for_itself_alone() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    let (one, other) = (guard.lost_token(), guard.lost_token());
    one.cancel(); // a helper is told to end
    assert!(!other.is_cancelled() && !guard.lost_token().is_cancelled() && !guard.is_lost());
}

#[tokio::test]
async fn a_token_is_cancelled_when_the_unlock_finds_the_lock_gone() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    let token = guard.lost_token();
    let _: u32 = server.ask(&["DEL", "x"]);
    assert!(guard.unlock().await.expect_err("gone").is_lost());
    assert!(token.is_cancelled());
}
