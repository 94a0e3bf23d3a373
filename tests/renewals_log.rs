//! What an operator reads when the server refuses renewals. Alone in its binary: a subscriber is for the whole process.

#[allow(dead_code)]
#[path = "support/mod.rs"]
mod support;

use leasehold::{Client, Lost};
use support::{Server, chain, log::Sink, ms, until, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_renewals_are_told_once_and_with_the_servers_words() {
    let sink = Sink::install(tracing::Level::DEBUG);
    let server = Server::start();
    server.set_user("u", &["on", ">p", "~*", "&*", "+@all"]);
    let client = Client::builder().url(server.url_as("u", "p")).watchdog(ms(2_000)).connect().await.expect("let in");
    let guards = [client.mutex("a").lock().await.expect("free"), client.mutex("b").lock().await.expect("free")];
    until("a renewal", ms(5_000), || client.stats().total.renewals >= 2).await;
    assert!(client.held().iter().all(|held| held.trouble.is_none()));

    server.set_user("u", &["-hexists"]);
    let has_trouble =
        || client.held().iter().any(|held| held.trouble.as_ref().is_some_and(|why| why.contains("hexists")));
    until("the trouble to be seen", ms(5_000), has_trouble).await;
    let (lost, _) = within("the loss", ms(5_000), guards[0].lost()).await;
    assert_eq!(lost, Lost::Expired);
    within("the other loss", ms(5_000), guards[1].lost()).await;
    // Who was not waiting yet can see a loss a moment before it is logged.
    let losses = || sink.lines(&["WARN"]).iter().filter(|line| line.contains(" lost ")).cloned().collect::<Vec<_>>();
    until("both losses to be logged", ms(5_000), || losses().len() == 2).await;
    assert!(losses().iter().all(|line| line.contains("hexists")), "{:?}", losses());
    let lines = sink.lines(&["WARN", "ERROR"]);
    let told: Vec<_> = lines.iter().filter(|line| line.contains("cannot renew")).collect();
    assert!(told.len() == 1 && told[0].contains("hexists"), "{lines:?}");

    // A release that the server refuses is told, too, and so is the close that waits for it.
    server.set_user("u", &["+hexists"]);
    drop(guards);
    let client = Client::builder().url(server.url_as("u", "p")).connect().await.expect("let in");
    let dropped = client.mutex("c").lock().await.expect("free");
    server.set_user("u", &["-del"]);
    drop(dropped);
    let is_told = || sink.lines(&["WARN"]).iter().any(|line| line.contains("cannot release") && line.contains("del"));
    until("the refusal to be told", ms(5_000), is_told).await;
    let error = client.close().await.expect_err("a lock is left");
    assert!(chain(&error).contains("+del"), "{}", chain(&error));
}
