//! The wall clock of the server is moved by minutes. Redis ends leases by that clock.

use std::{future::Future, time::Duration};

use leasehold::{Client, Guard, Owner, Permits};
use tokio::time::{Instant, sleep};

use crate::support::{
    Server, before, behind, client,
    clock::Clock,
    ms,
    proxy::{Fault, Proxy, Rule, Way, Which},
    script, until, within,
};

const LEASE: Duration = ms(2_000);
const MINUTES: i64 = 600;
const HOUR: Duration = ms(3_600_000);
/// Until a renewal, and until the lease of a dead holder is over.
const SOON: Duration = ms(6_000);

/// A server, and a process that can be cut off from it for good.
struct Scene {
    clock: Clock,
    server: Server,
    holders: Proxy,
    holder: Client,
    waiter: Client,
}

impl Scene {
    async fn set() -> Scene {
        let clock = Clock::new(0);
        let server = Server::within(clock.environment(), &[]);
        let holders = before(&server);
        let holder = behind(&holders, |builder| builder.watchdog(LEASE).command_timeout(ms(500))).await;
        let waiter = client(&server, |builder| builder.watchdog(LEASE)).await;
        Scene { clock, server, holders, holder, waiter }
    }

    /// The server's clock is set back while `held` is held. The holder renews it, and dies.
    async fn set_back<T>(&self, held: T, keys: &[&str]) {
        self.clock.move_by(-MINUTES);
        let left = || keys.iter().map(|key| self.server.pttl(key)).max().expect("a key");
        assert!(left() > 1_000 * (MINUTES - 10), "the clock was not set back: {} ms are left", left());
        until("a renewal to correct the lease", SOON, || left() <= 2_000).await;
        self.die(held);
    }

    fn die<T>(&self, held: T) {
        self.holders.refuse();
        self.holders.cut_all();
        std::mem::forget(held);
    }
}

async fn soon<T>(work: impl Future<Output = leasehold::Result<T>>) {
    drop(within("the lock of a dead holder", SOON, work).await.0.expect("it expires"));
}

#[tokio::test]
async fn a_dead_holder_keeps_a_lock_no_longer_than_its_lease() {
    let scene = Scene::set().await;
    scene.set_back(scene.holder.lock("x").lock().await.expect("free"), &["x"]).await;
    soon(scene.waiter.lock("x").lock()).await;
}

#[tokio::test]
async fn nor_a_fair_or_a_fenced_lock() {
    let scene = Scene::set().await;
    let held = (scene.holder.fair_lock("f").lock().await, scene.holder.fenced_lock("t").lock().await);
    assert!(held.0.is_ok() && held.1.is_ok(), "{held:?}");
    scene.set_back(held, &["f", "t"]).await;
    soon(scene.waiter.fair_lock("f").lock()).await;
    soon(scene.waiter.fenced_lock("t").lock()).await;
}

#[tokio::test]
async fn nor_a_reader_or_a_writer() {
    let scene = Scene::set().await;
    let (r, w) = (scene.holder.rw_lock("r"), scene.holder.rw_lock("w"));
    let held = (r.read().await, w.write().await);
    assert!(held.0.is_ok() && held.1.is_ok(), "{held:?}");
    scene.set_back(held, &["r", "w"]).await;
    soon(scene.waiter.rw_lock("r").write()).await;
    soon(scene.waiter.rw_lock("w").write()).await;
}

#[tokio::test]
async fn nor_permits() {
    let scene = Scene::set().await;
    scene.waiter.semaphore("s").set_permits(3).await.expect("reachable");
    let held = scene.holder.semaphore("s").acquire(3).await.expect("free");
    scene.clock.move_by(-MINUTES);
    let renewals = scene.holder.stats().total.renewals;
    until("three renewals", SOON, || scene.holder.stats().total.renewals >= renewals + 3).await;
    scene.die(held);
    soon(scene.waiter.semaphore("s").acquire(3)).await;
}

/// A longer lease that a caller has asked for is none of the clock's.
#[tokio::test]
async fn a_longer_lease_of_the_callers_stays() {
    let scene = Scene::set().await;
    let (lock, permits) = held_for_an_hour(&scene.holder).await;
    scene.clock.move_by(-MINUTES);
    let hour = 3_600_000;
    until("a renewal to correct the lease", SOON, || scene.server.pttl("x") <= hour).await;
    assert!(scene.server.pttl("x") > hour - 60_000 && !lock.is_lost() && !permits.is_lost());
}

async fn held_for_an_hour(client: &Client) -> (Guard, Permits) {
    client.semaphore("s").set_permits(1).await.expect("reachable");
    let (lock, permits) = (client.lock("x").lease(ms(3_600_000)).lock().await, client.semaphore("s").acquire(1).await);
    (lock.expect("free"), permits.expect("free"))
}

/// The correction of a lease is sent while a nested acquisition with a longer lease is under way, and runs after it. Then the holder is
/// certain for an hour, the server keeps the lock for two seconds, and an outage of three gives it to another.
#[tokio::test]
async fn a_correction_does_not_shorten_a_nested_lease_that_is_under_way() {
    let scene = Scene::set().await;
    let owner = Owner::new();
    let lock = scene.holder.lock("x").owner(&owner);
    let outer = lock.lock().await.expect("free");
    let acquire = script(&scene.server, "acquire");
    scene.clock.move_by(-600);
    let renewals = scene.holder.stats().total.renewals;
    until("a renewal that sees it", ms(3_000), || scene.holder.stats().total.renewals > renewals).await;
    scene.holders.rule(Rule::new(acquire, Fault::Delay(Way::Back, ms(70))));
    sleep(ms(555)).await; // the correction is due after 0.6 s
    let inner = lock.clone().lease(HOUR).lock().await.expect("ours");
    sleep(ms(50)).await;
    let cut = Instant::now();
    scene.holders.refuse();
    scene.holders.cut_all();
    let other = scene.waiter.mutex("x").try_lock_for(ms(4_000)).await.expect("reachable");
    let certain = (inner.remaining(), outer.remaining(), other.as_ref().map(|other| other.remaining()));
    assert!(
        other.is_none() || inner.is_lost() || inner.remaining().is_zero(),
        "two certain holders {:?} after the cut: {certain:?}",
        cut.elapsed()
    );
}

/// Certain means: a thousandth of the lease less than the server keeps it, for clocks whose rates differ.
#[tokio::test]
async fn a_corrected_lease_keeps_the_margin_for_the_rates_of_clocks() {
    let scene = Scene::set().await;
    let guard = scene.holder.lock("x").lease(HOUR).lock().await.expect("free");
    let margin = |guard: &leasehold::Guard| {
        let left = scene.server.pttl("x");
        left - i64::try_from(guard.remaining().as_millis()).expect("an hour")
    };
    let usual = margin(&guard);
    scene.clock.move_by(-600);
    until("a correction", SOON, || scene.server.pttl("x") <= 3_610_000).await;
    let corrected = margin(&guard);
    assert!(corrected >= usual / 2, "the margin was {usual} ms, and is {corrected} ms after the correction");
}

/// The correction waits on its way, and the client may not close the connection that it was sent on. A longer lease was set meanwhile.
async fn late_correction(scene: &Scene, key: &str) {
    let _: String = scene.server.ask(&["ACL", "SETUSER", "default", "-client|kill"]);
    scene.clock.move_by(-MINUTES);
    let renewals = scene.holder.stats().total.renewals;
    until("a renewal that sees it", ms(3_000), || scene.holder.stats().total.renewals > renewals).await;
    scene.holders.rule(Rule::new(Which::Command("EVALSHA"), Fault::Delay(Way::There, ms(1_600))));
    until("the retry to correct it", ms(3_000), || scene.server.pttl(key) < 10_000).await;
}

/// All the time until the correction has arrived: the next renewal would repair the lease.
async fn an_hour_is_left(scene: &Scene) {
    let begun = Instant::now();
    while begun.elapsed() < ms(2_000) {
        let left = scene.server.pttl("x");
        assert!(left > 3_000_000, "{left} ms are left on the server after {:?}", begun.elapsed());
        sleep(ms(10)).await;
    }
}

#[tokio::test]
async fn a_late_correction_leaves_the_lease_that_was_set_meanwhile() {
    let scene = Scene::set().await;
    let guard = scene.holder.mutex("x").lock().await.expect("free");
    late_correction(&scene, "x").await;
    guard.extend(HOUR).await.expect("ours");
    an_hour_is_left(&scene).await;
    guard.unlock().await.expect("ours");
}

#[tokio::test]
async fn a_late_correction_leaves_a_readers_lease_that_was_set_meanwhile() {
    let scene = Scene::set().await;
    let guard = scene.holder.rw_lock("x").read().await.expect("free");
    late_correction(&scene, "x").await;
    guard.extend(HOUR).await.expect("ours");
    an_hour_is_left(&scene).await;
    guard.unlock().await.expect("ours");
}
