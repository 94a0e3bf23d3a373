//! What is traced, and what never is. Alone in its binary: a subscriber is for the whole process.

#[allow(dead_code)]
#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use leasehold::Lock;
use support::{Server, log::Sink, ms, until};

/// Waits in vain for a lock that another owner holds. The last attempt has 20 ms for its reply, which a busy machine may need for
/// something else: then it waits once more.
async fn wait_in_vain(lock: Lock, limit: Duration) {
    for _ in 0..20 {
        match lock.try_lock_for(limit).await {
            Ok(acquired) => return assert!(acquired.is_none(), "another owner holds it"),
            Err(error) => assert!(error.is_unavailable(), "{error}"),
        }
    }
    panic!("no reply to any of the last attempts");
}

/// The times in milliseconds that follow these words.
fn waits(text: &str, words: &str) -> Vec<f64> {
    let time = |(at, _): (usize, &str)| {
        let (time, _) = text[at + words.len()..].split_once("ms").expect("a time of less than a second");
        time.parse().expect("a number")
    };
    text.match_indices(words).map(time).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_are_traced_and_secrets_are_not() {
    let sink = Sink::install(tracing::Level::TRACE);
    let text = || sink.text();

    let mut server = Server::with(&["--requirepass", "s3cret"]);
    let url = server.url_as("default", "s3cret");
    let client = leasehold::Client::connect(&url).await.expect("welcome");
    let guard = client.lock("traced").lock().await.expect("free");
    guard.unlock().await.expect("ours");
    let lost = client.lock("lost").lock().await.expect("free");
    server.restart();
    until("the loss to be noticed", ms(5_000), || lost.is_lost()).await;
    let settings = leasehold::Client::builder().url(url.clone()).slow_wait(ms(50));
    let (other, waiter) = (client.lock("slow"), settings.connect().await.expect("welcome"));
    let guard = other.lock().await.expect("free");
    wait_in_vain(waiter.lock("slow"), ms(100)).await;
    let same = leasehold::Client::builder().url(url.clone()).slow_wait(ms(20)).command_timeout(ms(20_000));
    let same = same.connect().await.expect("welcome");
    let held = same.mutex("same").lock().await.expect("free");
    wait_in_vain(same.mutex("same"), ms(200)).await;
    drop(held);
    let holder = format!("holder=Some({:?})", guard.id());
    leasehold::Client::connect(&url.replace("s3cret", "s3cret2")).await.expect_err("wrong password");

    let text = text();
    for expected in [
        "leasehold::lock",
        "acquire{lock.name=\"traced\" lock.kind=\"lock\" lock.method=\"lock\"",
        "acquired",
        "released",
        "connection lost",
        "slow wait ended name=\"slow\" waited=",
        "still waiting name=\"slow\" waited=",
        &holder,
        "by_this_client=false",
        "still waiting name=\"same\" waited=",
        "by_this_client=true",
        "setting out of range, the nearest allowed value is used setting=\"command_timeout\" wanted=20s used=10s",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in\n{text}");
    }
    // After 20, 40, 80 and 160 ms; a busy machine leaves some out.
    let times = waits(&text, "still waiting name=\"same\" waited=");
    assert!(times.len() >= 2 && times[0] >= 20.0 && times.is_sorted_by(|one, next| *next >= one * 1.9), "{times:?}");
    assert!(waits(&text, "slow wait ended name=\"slow\" waited=")[0] >= 100.0);
    assert!(!text.contains("s3cret"), "a password in\n{text}");
    assert!(!text.contains("redis://"), "a URL in\n{text}");
}
