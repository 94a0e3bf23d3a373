//! Asking for a lock while our own release of it is slow.

use std::time::Duration;

use leasehold::{Error, Owner};

use crate::support::{
    Server, before, behind, ms,
    proxy::{Fault, Rule, Way},
    script, until, within,
};

const COMMAND: Duration = ms(1_000);

/// How long the server was tried, as the message has it: "... failed after 1.2ms ...".
fn said(words: &str) -> Duration {
    let (_, rest) = words.rsplit_once(" failed after ").expect("it says for how long");
    let time = rest.split([',', ' ']).next().expect("there is always a first");
    let digits = time.trim_end_matches(char::is_alphabetic);
    let factor = match &time[digits.len()..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        unit => panic!("{unit:?} in {words:?}"),
    };
    Duration::from_secs_f64(digits.parse::<f64>().expect("a number") * factor)
}

#[tokio::test]
async fn one_attempt_has_its_time_and_says_how_long_it_was() {
    let server = Server::start();
    let (release, proxy) = (script(&server, "release"), before(&server));
    let client = behind(&proxy, |builder| builder.command_timeout(COMMAND)).await;
    let guard = client.lock("x").lock().await.expect("free");
    proxy.rule(Rule::new(release, Fault::Swallow(Way::There)).times(u64::MAX));
    drop(guard);
    until("the release to be under way", ms(1_000), || proxy.tally().swallowed == 1).await;
    let lock = client.lock("x").owner(&Owner::new());
    let (taken, took) = within("one attempt", COMMAND + ms(500), lock.try_lock()).await;
    match taken {
        Ok(None) => {}
        Err(error @ Error::Unavailable { .. }) => {
            assert!(said(&error.to_string()) >= took.elapsed / 4, "it took {took:?}, and says: {error}");
        }
        other => panic!("{other:?}"),
    }
    proxy.calm();
    until("it to be given back", ms(5_000), || !server.exists("x")).await;
}
