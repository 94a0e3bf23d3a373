//! A free lock that nobody is told of is found by those who look for themselves.

use std::time::Duration;

use leasehold::{Client, Guard, Owner};
use tokio::task::JoinHandle;

use crate::support::{Server, client, ms, plain, until, within};

/// A waiter behind a holder of its own client sends no request. It learns from the holder's next confirmation, after 0.3 of the watchdog's
/// lease. And what a busy machine adds.
const LONGEST_NAP: Duration = ms(10_000);

/// One who waits behind another, has inherited the first place since, and was not woken for it.
struct Scene {
    server: Server,
    _client: Client,
    _before: Guard,
    heir: JoinHandle<leasehold::Result<Guard>>,
}

impl Scene {
    async fn set() -> Scene {
        let server = Server::start();
        let holder = plain(&server).await;
        let client = client(&server, |builder| builder.tracking(false)).await; // nothing wakes it but its own look
        let held = holder.lock("x").lock().await.expect("free");
        // With a lease so long that its holder looks after it only in hours.
        let first = client.lock("x").lease(Duration::from_secs(24 * 3_600)).owner(&Owner::new());
        let first = tokio::spawn(async move { first.lock().await });
        until("the first to wait", ms(2_000), || client.stats().total.refused >= 2).await;
        let second = client.lock("x").owner(&Owner::new());
        let heir = tokio::spawn(async move { second.lock().await });
        until("the second to wait", ms(2_000), || client.stats().now.waiting == 2).await;
        held.unlock().await.expect("ours");
        let (first, _) = within("the first to have it", ms(2_000), first).await;
        let first = first.expect("no panic").expect("given back");
        assert_eq!(client.stats().now.waiting, 1);
        Scene { server, _client: client, _before: first, heir }
    }

    async fn finds_it(self) {
        let (taken, _) = within("the free lock to be found", LONGEST_NAP, self.heir).await;
        drop(taken.expect("no panic").expect("free"));
    }
}

#[tokio::test]
async fn a_lock_that_vanished_is_found_in_time() {
    let scene = Scene::set().await;
    let _: u32 = scene.server.ask(&["DEL", "x"]);
    scene.finds_it().await;
}

#[tokio::test]
async fn a_lock_that_somebody_else_had_and_lost_is_found_in_time() {
    let scene = Scene::set().await;
    let _: u32 = scene.server.ask(&["DEL", "x"]);
    let _: u32 = scene.server.ask(&["HSET", "x", "b983c153-7421-469a-addb-44fb92259a1b:7", "1"]);
    let _: u32 = scene.server.ask(&["PEXPIRE", "x", "300"]);
    until("it to end", ms(2_000), || !scene.server.exists("x")).await;
    scene.finds_it().await;
}
