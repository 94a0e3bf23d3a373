//! Names that share a channel: Redisson gives `a` and `{a}` the same one.

use std::time::Duration;

use leasehold::{Client, Guard, Owner};
use tokio::{task::JoinHandle, time::sleep};

use crate::support::{
    Server, ms, plain,
    server::{beside, version},
    until, with_rights, within,
};

/// By message, not by a timer.
const AT_ONCE: Duration = ms(1_000);
/// Longer than a channel stays subscribed after its last waiter.
const LINGER: Duration = ms(1_000);

struct Scene {
    server: Server,
    _holder: Client,
    plain: Guard,
    braced: Guard,
    client: Client,
}

impl Scene {
    async fn set() -> Scene {
        let server = Server::start();
        let (holder, client) = (plain(&server).await, plain(&server).await);
        let first = holder.lock("a").lock().await.expect("free");
        let second = holder.lock("{a}").lock().await.expect("another name");
        Scene { server, _holder: holder, plain: first, braced: second, client }
    }

    /// One more who waits, and has nothing more to ask for now.
    async fn waiter(&self, name: &str) -> JoinHandle<leasehold::Result<Guard>> {
        let (lock, before) = (self.client.lock(name).owner(&Owner::new()), self.client.stats());
        let waiting = tokio::spawn(async move { lock.lock().await });
        let asleep = || {
            self.client.stats().now.waiting > before.now.waiting
                && self.client.stats().total.refused >= before.total.refused + 2
        };
        until("it to wait", ms(2_000), asleep).await;
        assert_eq!(self.server.channels(), [beside("redisson_lock__channel", name)], "as scripts/chaos calls it, too");
        assert_eq!(self.server.channels(), ["redisson_lock__channel:{a}"]);
        waiting
    }
}

async fn at_once(what: &str, waiting: JoinHandle<leasehold::Result<Guard>>) -> Guard {
    within(what, AT_ONCE, waiting).await.0.expect("no panic").expect("it was given back")
}

#[tokio::test]
async fn both_hear_of_their_own() {
    let scene = Scene::set().await;
    let (first, second) = (scene.waiter("a").await, scene.waiter("{a}").await);
    scene.plain.unlock().await.expect("ours");
    let first = at_once("the first to hear", first).await;
    assert!(!second.is_finished(), "that was not its lock");
    scene.braced.unlock().await.expect("ours");
    let second = at_once("the second to hear", second).await;
    assert_eq!((first.name(), second.name()), ("a", "{a}"));
}

#[tokio::test]
async fn in_the_other_order_too() {
    let scene = Scene::set().await;
    let (first, second) = (scene.waiter("{a}").await, scene.waiter("a").await);
    scene.plain.unlock().await.expect("ours");
    at_once("the second to hear", second).await.unlock().await.expect("ours");
    scene.braced.unlock().await.expect("ours");
    at_once("the first to hear", first).await.unlock().await.expect("ours");
}

#[tokio::test]
async fn the_first_hears_after_the_second_has_left() {
    let scene = Scene::set().await;
    let (first, second) = (scene.waiter("a").await, scene.waiter("{a}").await);
    second.abort();
    until("it to leave", AT_ONCE, || scene.client.stats().now.waiting == 1).await;
    sleep(LINGER).await;
    assert_eq!(scene.server.channels(), ["redisson_lock__channel:{a}"], "somebody still waits there");
    scene.plain.unlock().await.expect("ours");
    at_once("the first to hear", first).await.unlock().await.expect("ours");
}

#[tokio::test]
async fn the_second_hears_after_the_first_has_left() {
    let scene = Scene::set().await;
    let (first, second) = (scene.waiter("a").await, scene.waiter("{a}").await);
    first.abort();
    until("it to leave", AT_ONCE, || scene.client.stats().now.waiting == 1).await;
    sleep(LINGER).await;
    assert_eq!(scene.server.channels(), ["redisson_lock__channel:{a}"], "somebody still waits there");
    scene.braced.unlock().await.expect("ours");
    at_once("the second to hear", second).await.unlock().await.expect("ours");
    until("the channel to be left", ms(2_000), || scene.server.channels().is_empty()).await;
    assert_eq!(scene.client.stats().now.subscriptions, 0);
}

/// A channel refused for now is subscribed again once it is allowed.
#[tokio::test]
#[ignore = "nightly"]
async fn a_channel_that_is_allowed_again_is_subscribed() {
    if version() < (6, 2) {
        return; // it knows no rights to channels
    }
    let server = Server::start();
    let holder = plain(&server).await;
    let _held = holder.lock("x").lock().await.expect("free");
    let client = with_rights(&server, &["+@all", "~*", "resetchannels"]).await;
    let lock = client.mutex("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    sleep(ms(1_500)).await;
    let _: String = server.ask(&["ACL", "SETUSER", "u", "allchannels"]);
    let before = client.stats().total.requests;
    let told = async {
        while server.channels().is_empty() {
            sleep(ms(200)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(45), told).await;
    let asked = client.stats().total.requests - before;
    waiting.abort();
    assert!(told.is_ok(), "still not subscribed 45 s after it was allowed; {asked} requests instead");
}

/// A waiter that has slept since its channel was subscribed polls as soon as the server refuses to subscribe it again.
#[tokio::test]
async fn waiters_poll_once_their_channel_cannot_be_subscribed_again() {
    for change in [&["-subscribe"][..], &["resetpass", ">another"]] {
        let server = Server::start();
        let holder = plain(&server).await;
        let _held = holder.lock("x").lock().await.expect("free");
        let client = with_rights(&server, &["+@all", "~*", "&*"][..if version() < (6, 2) { 2 } else { 3 }]).await;
        let lock = client.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await });
        until("its channel to be subscribed", ms(5_000), || !server.channels().is_empty()).await;
        until("it to wait", ms(5_000), || client.stats().total.refused >= 2).await;
        let _: String = server.ask(&[&["ACL", "SETUSER", "u"], change].concat());
        let _: u32 = server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        until("the refusal", ms(5_000), || !server.ask::<Vec<redis::Value>>(&["ACL", "LOG"]).is_empty()).await;
        let _: u32 = server.ask(&["DEL", "x"]); // which no message announces
        drop(at_once("it to look", waiting).await);
    }
}
