//! Ways for a connection to die. While it is dead no call lasts longer than it may; when the server can be reached
//! again the client is back within five seconds, by itself, with all that it held.

use std::{future::Future, time::Duration};

use leasehold::{Builder, Client, Error, Guard, Owner};
use tokio::{task::JoinHandle, time::sleep};

use crate::support::{
    Server, before, behind, ms,
    proxy::{Fault, Mode, Proxy, Rule, Way, Which},
    until, within,
};

const COMMAND: Duration = ms(500);
const OUTAGE: Duration = ms(1_500);
/// What a busy machine may add to any of these.
const LATE: Duration = ms(1_000);
const BACK: Duration = ms(5_000);

const THEIRS: &str = "b983c153-7421-469a-addb-44fb92259a1b:7";

fn impatient(builder: Builder) -> Builder {
    builder.command_timeout(COMMAND).outage_timeout(OUTAGE)
}

/// A client with two levels of a lock, and others of its tasks busy with other locks.
struct Scene {
    server: Server,
    proxy: Proxy,
    client: Client,
    outer: Guard,
    inner: Guard,
    traffic: Vec<JoinHandle<()>>,
}

impl Scene {
    async fn set() -> Scene {
        let server = Server::start();
        let _: u32 = server.ask(&["HSET", "taken", THEIRS, "1"]);
        let proxy = before(&server);
        let client = behind(&proxy, impatient).await;
        let outer = client.lock("held").lock().await.expect("free");
        let inner = client.lock("held").lock().await.expect("re-entered");
        let traffic = (0..4).map(|n| tokio::spawn(traffic(client.clone(), n))).collect();
        until("traffic", BACK, || client.stats().total.released > 20).await;
        Scene { server, proxy, client, outer, inner, traffic }
    }

    /// Nothing is answered: every call ends in time, and says so.
    async fn while_dead(self) -> Back {
        let Scene { server, proxy, client, outer, inner, traffic } = self;
        let lock = |name: &str| client.lock(name).owner(&Owner::new());
        let (free, briefly, taken, nobodys) = (lock("free"), lock("taken"), lock("taken"), lock("nobody's"));
        tokio::join!(
            fails("connect", COMMAND, "connecting", behind_or_not(&proxy)),
            fails("try_lock", COMMAND, "acquiring the lock", free.try_lock()),
            fails("try_lock_for", ms(100), "acquiring the lock", briefly.try_lock_for(ms(100))),
            fails("lock", OUTAGE, "acquiring the lock", taken.lock()),
            fails("inspect", OUTAGE, "inspect", free.inspect()),
            fails("force_unlock", OUTAGE, "force_unlock", nobodys.force_unlock()),
            fails("check", OUTAGE, "confirming the lock", outer.check()),
            fails("unlock", OUTAGE, "releasing the lock", inner.unlock()),
        );
        assert!(!outer.is_lost() && outer.holds() == 1);
        Back { server, proxy, client, outer, traffic }
    }
}

/// The same scene once the server can be reached again; the inner level is given back in the background.
struct Back {
    server: Server,
    proxy: Proxy,
    client: Client,
    outer: Guard,
    traffic: Vec<JoinHandle<()>>,
}

impl Back {
    async fn comes_back(self) {
        let Back { server, proxy: _proxy, client, outer, traffic } = self;
        within("the client to be back", BACK, async {
            while client.lock("back").try_lock().await.is_err() {
                sleep(ms(1)).await;
            }
        })
        .await;
        outer.check().await.expect("still ours");
        let released = client.stats().total.released;
        until("traffic", BACK, || client.stats().total.released > released + 20).await;
        for task in traffic {
            task.abort();
            assert!(task.await.expect_err("it goes on for ever").is_cancelled(), "no panic");
        }
        // The requests of aborted calls may still be on their way.
        until("nothing to be under way", BACK, || client.stats().now.releasing == 0).await;
        let left = || server.ask::<Vec<String>>(&["KEYS", "*"]);
        until("what was asked in vain to be taken back", BACK, || left().len() == 2).await;
        until("the inner level to be given back", BACK, || server.lock("held") == [(outer.id().to_owned(), 1)]).await;
        outer.unlock().await.expect("ours to the end");
        assert_eq!(left(), ["taken"]);
        assert_eq!(server.lock("taken"), [(THEIRS.to_owned(), 1)]);
        assert_eq!((client.stats().now.holds, client.stats().total.lost), (0, 0));
    }
}

/// Takes a lock and gives it back, again and again, so that requests never cease.
async fn traffic(client: Client, n: usize) {
    loop {
        let done = match client.lock(&format!("traffic-{n}")).try_lock().await {
            Ok(Some(guard)) => guard.unlock().await,
            Ok(None) => Ok(()), // its own, on the way back
            Err(error) => Err(error),
        };
        assert!(matches!(done, Ok(()) | Err(Error::Unavailable { .. })), "{done:?}");
        sleep(ms(1)).await;
    }
}

async fn behind_or_not(proxy: &Proxy) -> leasehold::Result<Client> {
    impatient(Client::builder().announce(false).url(proxy.url())).connect().await
}

/// Ends with `Unavailable` no later than that, saying what was tried.
async fn fails<T: std::fmt::Debug>(
    what: &str,
    time: Duration,
    tried: &str,
    call: impl Future<Output = leasehold::Result<T>>,
) {
    let (ended, _) = within(what, time + LATE, call).await;
    match ended {
        Err(Error::Unavailable { tried: words, .. }) => assert!(words.contains(tried), "{what}: {words}"),
        other => panic!("{what}: {other:?}"),
    }
}

#[tokio::test]
async fn refused() {
    let scene = Scene::set().await;
    scene.proxy.refuse();
    scene.proxy.cut_all();
    let back = scene.while_dead().await;
    back.proxy.accept();
    back.comes_back().await;
}

#[tokio::test]
async fn silent() {
    let scene = Scene::set().await;
    scene.proxy.set(Mode::Swallow);
    let back = scene.while_dead().await;
    back.proxy.set(Mode::Pass);
    back.comes_back().await;
}

#[tokio::test]
async fn silent_on_the_way_back() {
    let scene = Scene::set().await;
    scene.proxy.rule(Rule::new(Which::Any, Fault::Swallow(Way::Back)).times(u64::MAX));
    let back = scene.while_dead().await;
    back.proxy.calm();
    back.comes_back().await;
}

#[tokio::test]
async fn slow_beyond_all_patience() {
    let scene = Scene::set().await;
    scene.proxy.rule(Rule::new(Which::Any, Fault::Delay(Way::Back, Duration::from_secs(60))).times(u64::MAX));
    let back = scene.while_dead().await;
    back.proxy.calm();
    back.comes_back().await;
}

#[tokio::test]
async fn stalled_and_delivered_late() {
    let scene = Scene::set().await;
    scene.proxy.set(Mode::Stall);
    let back = scene.while_dead().await;
    back.proxy.set(Mode::Pass);
    back.comes_back().await;
}

#[tokio::test]
async fn frozen() {
    let scene = Scene::set().await;
    scene.server.freeze();
    let back = scene.while_dead().await;
    back.server.thaw();
    back.comes_back().await;
}

/// With a script of its own, which can be as large as it takes: the feature is that of benchmarks.
#[cfg(feature = "bench")]
#[tokio::test]
async fn frozen_with_the_socket_full() {
    let scene = Scene::set().await;
    let raw = std::sync::Arc::new(scene.client.raw_script("return 1").await.expect("loaded"));
    scene.server.freeze();
    scene.proxy.set(Mode::Stall);
    let bulk: Vec<_> = (0..40)
        .map(|_| {
            let raw = std::sync::Arc::clone(&raw);
            tokio::spawn(async move { raw.call(vec![], vec!["x".repeat(1 << 20)]).await })
        })
        .collect();
    let back = scene.while_dead().await;
    for call in bulk {
        let (ended, _) = within("a call without a time of its own", LATE, call).await;
        ended.expect("no panic").expect_err("its connection was thrown away");
    }
    back.server.thaw();
    back.proxy.set(Mode::Pass);
    back.comes_back().await;
}

/// The connection alone, at once replaced: nobody notices.
async fn momentary(fault: impl AsyncFn(&mut Scene)) {
    let mut scene = Scene::set().await;
    let before = scene.client.stats().total.reconnects;
    fault(&mut scene).await;
    until("a new connection", BACK, || scene.client.stats().total.reconnects > before).await;
    let Scene { server, proxy, client, outer, inner, traffic } = scene;
    inner.unlock().await.expect("ours");
    Back { server, proxy, client, outer, traffic }.comes_back().await;
}

#[tokio::test]
async fn cut_under_traffic() {
    momentary(async |scene| scene.proxy.cut_all()).await;
}

#[tokio::test]
async fn cut_when_idle() {
    momentary(async |scene| {
        for task in scene.traffic.drain(..) {
            task.abort();
            let _ = task.await;
        }
        until("what it held to be given back", BACK, || scene.client.stats().now.releasing == 0).await;
        scene.proxy.cut_all();
        scene.traffic.push(tokio::spawn(traffic(scene.client.clone(), 0)));
    })
    .await;
}

#[tokio::test]
async fn killed_by_the_server() {
    momentary(async |scene| _ = scene.server.ask::<u32>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])).await;
}

#[tokio::test]
async fn garbage_for_a_reply() {
    momentary(async |scene| {
        scene.proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Rewrite(|_| Some(b"?!?\r\n".to_vec()))));
    })
    .await;
}

#[tokio::test]
async fn half_a_reply() {
    momentary(async |scene| {
        let half = |reply: &[u8]| Some(reply[..reply.len() / 2].to_vec());
        scene.proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Rewrite(half)));
    })
    .await;
}

#[tokio::test]
async fn everything_in_pieces_is_no_death() {
    let scene = Scene::set().await;
    for way in [Way::There, Way::Back] {
        scene.proxy.rule(Rule::new(Which::Any, Fault::Trickle(way, 50)).times(20));
    }
    until("the pieces", BACK, || scene.proxy.tally().in_pieces == 40).await;
    assert_eq!((scene.client.stats().total.timeouts, scene.client.stats().total.reconnects), (0, 0));
    let Scene { server, proxy, client, outer, inner, traffic } = scene;
    inner.unlock().await.expect("ours");
    Back { server, proxy, client, outer, traffic }.comes_back().await;
}
