//! Replies that are lost, and requests that never arrive: each place, one cut and three in a row. Exactly one level is
//! taken or given, nothing is left over, and the caller is told the truth.

use std::{future::Future, time::Duration};

use leasehold::{Client, Error, Guard, Lock, Lost, Owner};
use tokio::task::JoinHandle;

use crate::support::{
    Server, before, behind, ms,
    proxy::{Fault, Proxy, Rule, Way, Which},
    script, until, within,
};

/// How long a call may take through three reconnections.
const SOON: Duration = ms(2_000);

/// A server, a client behind a proxy, and cuts at the next requests of one script.
struct Scene {
    server: Server,
    proxy: Proxy,
    client: Client,
    script: Which,
    way: Way,
    times: u64,
}

impl Scene {
    /// From here on the next requests of the script are cut.
    fn cut(&self) {
        self.proxy.rule(Rule::new(self.script.clone(), Fault::Cut(self.way)).times(self.times));
    }

    /// All cuts have happened, and nothing but what is listed here is in Redis.
    fn holds(&self, levels: &[(&str, u32)]) {
        assert!(self.proxy.is_spent(), "{} cuts were wanted: {:?}", self.times, self.proxy.tally());
        let found = self.levels();
        let found: Vec<_> = found.iter().map(|(id, count)| (id.as_str(), *count)).collect();
        assert_eq!(found, levels, "after {} cuts {:?}", self.times, self.way);
    }

    /// Of the lock that all of this is about.
    fn levels(&self) -> Vec<(String, u32)> {
        self.server.lock("x")
    }

    /// Nothing is left in Redis or in the client, and as much was given back as was taken.
    async fn clean(&self) {
        let idle = |stats: leasehold::Stats| (stats.now.holds, stats.now.waiting, stats.now.releasing) == (0, 0, 0);
        until("the client to be idle", SOON, || idle(self.client.stats())).await;
        assert_eq!(self.server.ask::<u32>(&["DBSIZE"]), 0, "{:?}", self.levels());
        let stats = self.client.stats();
        assert_eq!((stats.total.acquired, stats.total.lost, stats.total.misplaced), (stats.total.released, 0, 0));
        assert!(stats.total.reconnects >= self.times, "each cut costs a connection");
    }

    fn lock(&self) -> Lock {
        self.client.lock("x")
    }

    async fn taken(&self) -> Guard {
        self.lock().lock().await.expect("free")
    }

    /// Somebody else waits in line, in the same client.
    async fn waiter(&self) -> JoinHandle<Guard> {
        let lock = self.lock().owner(&Owner::new()).lease(ms(60_000)); // or it would be passed on in memory
        let waiting = tokio::spawn(async move { lock.lock().await.expect("sooner or later") });
        until("it to sleep", SOON, || self.client.stats().now.waiting == 1).await;
        waiting
    }
}

/// One cut and three, before the request arrives and after it ran. No lease comes near its end.
async fn everywhere(name: &str, test: impl AsyncFn(&Scene)) {
    everywhere_with(name, Duration::from_secs(30), test).await;
}

async fn everywhere_with(name: &str, watchdog: Duration, test: impl AsyncFn(&Scene)) {
    for (way, times) in [(Way::There, 1), (Way::There, 3), (Way::Back, 1), (Way::Back, 3)] {
        let server = Server::start();
        let [.., script] = ["acquire", "release", "renew", "hand_over", name].map(|name| script(&server, name));
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder.watchdog(watchdog)).await;
        let scene = Scene { server, proxy, client, script, way, times };
        test(&scene).await;
        scene.clean().await;
    }
}

/// The answer of a call that is expected to take no longer than a few reconnections.
async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    within(what, SOON, work).await.0
}

#[tokio::test]
async fn acquire() {
    everywhere("acquire", async |scene| {
        scene.cut();
        let before = scene.server.calls("evalsha");
        let guard = soon("the lock", scene.lock().lock()).await.expect("answered");
        scene.holds(&[(guard.id(), 1)]);
        let ran = scene.server.calls("evalsha") - before;
        assert_eq!(ran, if scene.way == Way::There { 1 } else { 1 + scene.times }, "runs of the script");
        assert_eq!(guard.holds(), 1);
        soon("the release", guard.unlock()).await.expect("ours");
    })
    .await;
}

#[tokio::test]
async fn acquire_in_one_attempt() {
    everywhere("acquire", async |scene| {
        scene.cut();
        let guard = soon("the lock", scene.lock().try_lock()).await.expect("answered").expect("free");
        scene.holds(&[(guard.id(), 1)]);
        soon("the release", guard.unlock()).await.expect("ours");
    })
    .await;
}

#[tokio::test]
async fn acquire_of_what_somebody_else_has() {
    everywhere("acquire", async |scene| {
        let theirs = "b983c153-7421-469a-addb-44fb92259a1b:7";
        let _: u32 = scene.server.ask(&["HSET", "x", theirs, "1"]);
        scene.cut();
        assert!(soon("an answer", scene.lock().try_lock()).await.expect("answered").is_none());
        scene.holds(&[(theirs, 1)]);
        let _: u32 = scene.server.ask(&["DEL", "x"]);
    })
    .await;
}

#[tokio::test]
async fn nested_acquire() {
    everywhere("acquire", async |scene| {
        let outer = scene.taken().await;
        scene.cut();
        let inner = soon("the second level", scene.lock().lock()).await.expect("re-entered");
        scene.holds(&[(outer.id(), 2)]);
        assert_eq!((outer.holds(), inner.holds()), (2, 2));
        inner.unlock().await.expect("ours");
        scene.holds(&[(outer.id(), 1)]);
        outer.unlock().await.expect("ours");
    })
    .await;
}

#[tokio::test]
async fn renew() {
    everywhere_with("renew", ms(1_500), async |scene| {
        let guard = scene.taken().await;
        scene.cut();
        until("the cuts", SOON, || scene.proxy.is_spent()).await;
        let before = scene.client.stats().total.renewals;
        until("a renewal after them", SOON, || scene.client.stats().total.renewals > before).await;
        scene.holds(&[(guard.id(), 1)]);
        assert!(!guard.is_lost() && scene.server.pttl("x") > 900);
        guard.unlock().await.expect("ours");
    })
    .await;
}

#[tokio::test]
async fn renew_on_demand() {
    everywhere("renew", async |scene| {
        let guard = scene.taken().await;
        scene.cut();
        soon("an answer", guard.check()).await.expect("ours");
        scene.holds(&[(guard.id(), 1)]);
        guard.unlock().await.expect("ours");
    })
    .await;
}

#[tokio::test]
async fn extend() {
    everywhere("renew", async |scene| {
        let guard = scene.lock().lease(ms(10_000)).lock().await.expect("free");
        scene.cut();
        soon("an answer", guard.extend(ms(60_000))).await.expect("ours");
        scene.holds(&[(guard.id(), 1)]);
        assert!(scene.server.pttl("x") > 50_000 && guard.remaining() > ms(50_000));
        guard.unlock().await.expect("ours");
    })
    .await;
}

#[tokio::test]
async fn release() {
    everywhere("release", async |scene| {
        let guard = scene.taken().await;
        scene.cut();
        soon("the release", guard.unlock()).await.expect("ours to the end");
        scene.holds(&[]);
    })
    .await;
}

#[tokio::test]
async fn release_of_an_inner_level() {
    everywhere("release", async |scene| {
        let (outer, inner) = (scene.taken().await, scene.taken().await);
        scene.cut();
        soon("the release", inner.unlock()).await.expect("ours");
        scene.holds(&[(outer.id(), 1)]);
        outer.unlock().await.expect("ours");
    })
    .await;
}

#[tokio::test]
async fn release_of_an_inner_level_that_is_gone() {
    let server = Server::start();
    let release = script(&server, "release");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let outer = client.lock("x").lock().await.expect("free");
    let inner = client.lock("x").lock().await.expect("re-entered");
    proxy.rule(Rule::new(release, Fault::Cut(Way::There)));
    let _: u32 = server.ask(&["DEL", "x"]);
    // Asked twice, but the first time cannot have deleted it.
    assert!(matches!(soon("the release", inner.unlock()).await, Err(Error::Lost { reason: Lost::Removed, .. })));
    assert!(outer.is_lost() && proxy.is_spent());
    assert_eq!((client.stats().total.lost, client.stats().total.released), (1, 0));
}

#[tokio::test]
async fn release_in_the_background() {
    everywhere("release", async |scene| {
        let guard = scene.taken().await;
        scene.cut();
        drop(guard);
        until("it to be free", SOON, || !scene.server.exists("x")).await;
        until("the cuts", SOON, || scene.proxy.is_spent()).await;
    })
    .await;
}

#[tokio::test]
async fn release_while_others_wait_elsewhere() {
    everywhere("release", async |scene| {
        let other = crate::support::plain(&scene.server).await;
        let guard = scene.taken().await;
        let lock = other.lock("x");
        let waiting = tokio::spawn(async move { lock.lock().await.expect("sooner or later") });
        until("a subscription", SOON, || !scene.server.channels().is_empty()).await;
        scene.cut();
        soon("the release", guard.unlock()).await.expect("ours to the end");
        let theirs = soon("their turn", waiting).await.expect("no panic");
        scene.holds(&[(theirs.id(), 1)]);
        theirs.unlock().await.expect("theirs is left alone");
    })
    .await;
}

#[tokio::test]
async fn hand_over() {
    everywhere("hand_over", async |scene| {
        let guard = scene.taken().await;
        let waiting = scene.waiter().await;
        scene.cut();
        soon("the release", guard.unlock()).await.expect("ours to the end");
        let next = soon("the hand-over", waiting).await.expect("no panic");
        scene.holds(&[(next.id(), 1)]);
        assert_eq!((next.holds(), scene.client.stats().total.handed_over), (1, 1));
        next.unlock().await.expect("ours");
    })
    .await;
}

#[tokio::test]
async fn hand_over_in_the_background() {
    everywhere("hand_over", async |scene| {
        let guard = scene.taken().await;
        let waiting = scene.waiter().await;
        scene.cut();
        drop(guard);
        let next = soon("the hand-over", waiting).await.expect("no panic");
        scene.holds(&[(next.id(), 1)]);
        next.unlock().await.expect("ours");
    })
    .await;
}

/// A call that is dropped when the server has granted it, before it hears so.
async fn granted_unheard(scene: &Scene, level: u32) {
    let acquire = script(&scene.server, "acquire");
    scene.proxy.rule(Rule::new(acquire, Fault::Delay(Way::Back, ms(200))));
    let lock = scene.lock();
    let asking = lock.lock();
    tokio::select! {
        _ = asking => panic!("its reply is held back"),
        () = until("the level in Redis", SOON, || scene.levels().first().is_some_and(|held| held.1 == level)) => {}
    }
}

#[tokio::test]
async fn forget() {
    everywhere("release", async |scene| {
        scene.cut();
        granted_unheard(scene, 1).await;
        until("it to be taken back", SOON, || !scene.server.exists("x")).await;
        until("the cuts", SOON, || scene.proxy.is_spent()).await;
        assert_eq!(scene.client.stats().total.acquired, 0);
    })
    .await;
}

#[tokio::test]
async fn forget_an_inner_level() {
    everywhere("release", async |scene| {
        let outer = scene.taken().await;
        scene.cut();
        granted_unheard(scene, 2).await;
        until("it to be taken back", SOON, || scene.levels()[0].1 == 1).await;
        until("the cuts", SOON, || scene.proxy.is_spent() && scene.client.stats().now.releasing == 0).await;
        scene.holds(&[(outer.id(), 1)]);
        assert_eq!(outer.holds(), 1);
        outer.unlock().await.expect("ours");
    })
    .await;
}
