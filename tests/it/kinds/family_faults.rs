//! Lost requests and lost replies at every script of every primitive: as tests/it/exclusion/faults.rs has it for the lock.

use std::{fs, time::Duration};

use leasehold::{Client, Owner};

use crate::{
    kinds::family::{Held, How, Way as Kind, clean},
    support::{
        Server, before, behind, ms,
        proxy::{Fault, Proxy, Rule, Way, Which},
        until, within,
    },
};

const SOON: Duration = ms(3_000);

/// The files of each script of a primitive, the one that its cuts are aimed at by its name.
fn files(kind: Kind, script: &str) -> Vec<String> {
    let own = |folder: &str, head: &[&str]| {
        head.iter().map(|&file| file.to_owned()).chain([format!("{folder}/{script}")]).collect()
    };
    match (kind, script) {
        (Kind::Fenced, "acquire") => own("fenced", &["lock/holder", "fenced/token"]),
        (Kind::Fenced, "hand_over") => own("fenced", &["lock/move", "fenced/token"]),
        (Kind::Read, _) => vec!["rw/rwlock".to_owned(), format!("rw/read_{script}")],
        (Kind::Plain | Kind::Fenced | Kind::Write, "renew") => vec!["lock/renew".to_owned()],
        (Kind::Write, "hand_over") => vec!["lock/move".to_owned(), "rw/write_hand_over".to_owned()],
        (Kind::Write, _) => vec!["rw/rwlock".to_owned(), format!("rw/write_{script}")],
        (Kind::Fair, "acquire") => own("fair", &["lock/holder", "fair/queue"]),
        (Kind::Fair, "release") => own("fair", &["lock/rest", "fair/queue"]),
        (Kind::Fair, _) => vec![format!("lock/{script}")],
        (Kind::Fenced, "write") => own("fenced", &[]),
        (Kind::Plain, "hand_over") => own("lock", &["lock/move"]),
        (Kind::Plain | Kind::Fenced, "release") => own("lock", &["lock/rest"]),
        (Kind::Plain | Kind::Fenced, _) => own("lock", &["lock/holder"]),
    }
}

/// Loads a script, so that no call of it is answered with NOSCRIPT, and says which it is.
pub(crate) fn script(server: &Server, kind: Kind, script: &str) -> Which {
    Which::Script(sha(server, kind, script))
}

/// The same, by its name on the server.
pub(crate) fn sha(server: &Server, kind: Kind, script: &str) -> String {
    let files = [vec!["../redis/frame".to_owned()], files(kind, script)].concat();
    let path = |file: String| format!("{}/src/primitives/{file}.lua", env!("CARGO_MANIFEST_DIR"));
    let source: String =
        files.into_iter().map(|file| fs::read_to_string(path(file)).expect("a script of ours")).collect();
    server.ask(&["SCRIPT", "LOAD", &source])
}

struct Scene {
    server: Server,
    proxy: Proxy,
    client: Client,
    cuts: Vec<Rule>,
}

impl Scene {
    /// From here on the next requests are cut.
    fn cut(&mut self) {
        self.cuts.drain(..).for_each(|rule| self.proxy.rule(rule));
    }

    async fn end(self) {
        until("the cuts", SOON, || self.proxy.is_spent()).await;
        clean(&self.server, &self.client).await;
        let total = self.client.stats().total;
        assert_eq!((total.acquired, total.lost), (total.released, 0));
    }
}

/// The requests to one script are cut, once and three times, before they arrive and after they ran.
async fn everywhere(kind: Kind, name: &str, test: impl AsyncFn(&mut Scene)) {
    for (way, times) in [(Way::There, 1), (Way::There, 3), (Way::Back, 1), (Way::Back, 3)] {
        let server = Server::start();
        for name in ["acquire", "release", "renew"] {
            script(&server, kind, name);
        }
        let cuts = vec![Rule::new(script(&server, kind, name), Fault::Cut(way)).times(times)];
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder.watchdog(ms(3_000))).await;
        let mut scene = Scene { server, proxy, client, cuts };
        test(&mut scene).await;
        scene.end().await;
    }
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    within(what, SOON, work).await.0
}

fn count(scene: &Scene, held: &Held) -> Option<u32> {
    scene.server.ask(&["HGET", "x", held.id()])
}

pub(crate) async fn acquire(kind: Kind) {
    everywhere(kind, "acquire", async |scene| {
        scene.cut();
        let held = soon("the lock", kind.lock(&scene.client, "x")).await;
        assert_eq!((count(scene, &held), held.holds()), (Some(1), 1));
        soon("the release", held.unlock()).await.expect("ours");
    })
    .await;
}

pub(crate) async fn nested_acquire(kind: Kind) {
    let script = if kind == Kind::Read { "renew" } else { "acquire" }; // one request for all nested reads that wait for it
    everywhere(kind, script, async |scene| {
        let outer = kind.lock(&scene.client, "x").await;
        scene.cut();
        let inner = soon("the second level", kind.lock(&scene.client, "x")).await;
        assert_eq!((count(scene, &inner), inner.holds()), (Some(kind.count_of(2)), 2));
        inner.unlock().await.expect("ours");
        assert_eq!(count(scene, &outer), Some(1));
        outer.unlock().await.expect("ours");
    })
    .await;
}

pub(crate) async fn renew(kind: Kind) {
    everywhere(kind, "renew", async |scene| {
        let held = kind.lock(&scene.client, "x").await;
        scene.cut();
        soon("an answer", held.check()).await.expect("ours");
        assert_eq!(count(scene, &held), Some(1));
        held.unlock().await.expect("ours");
    })
    .await;
}

pub(crate) async fn release(kind: Kind) {
    everywhere(kind, "release", async |scene| {
        let held = kind.lock(&scene.client, "x").await;
        scene.cut();
        soon("the release", held.unlock()).await.expect("ours to the end");
        assert!(!scene.server.exists("x"));
    })
    .await;
}

pub(crate) async fn forget(kind: Kind) {
    everywhere(kind, "release", async |scene| {
        let held = kind.lock(&scene.client, "x").await;
        scene.cut();
        drop(held);
        until("it to be free", SOON, || !scene.server.exists("x")).await;
    })
    .await;
}

/// One that waits in the server's line is cut off while it takes its place, or asks again.
pub(crate) async fn waiting(kind: Kind) {
    everywhere(kind, "acquire", async |scene| {
        let held = kind.lock(&scene.client, "x").await;
        scene.cut();
        let client = scene.client.clone();
        let waiting = tokio::spawn(async move { kind.take(&client, "x", How::for_other()).await.expect("answered") });
        until("it to stand in line", SOON, || scene.server.ask::<u32>(&["LLEN", "redisson_lock_queue:{x}"]) == 1).await;
        until("the cuts", SOON, || scene.proxy.is_spent()).await;
        held.unlock().await.expect("ours to the end");
        let next = soon("its turn", waiting).await.expect("no panic").expect("its turn");
        next.unlock().await.expect("ours");
    })
    .await;
}

/// One that leaves the line is cut off while it gives back its place.
pub(crate) async fn leaving(kind: Kind) {
    everywhere(kind, "release", async |scene| {
        let held = kind.lock(&scene.client, "x").await;
        let client = scene.client.clone();
        let waiting = tokio::spawn(async move { drop(kind.take(&client, "x", How::for_other()).await) });
        let in_line = |server: &Server| server.ask::<u32>(&["LLEN", "redisson_lock_queue:{x}"]);
        until("it to sleep", SOON, || in_line(&scene.server) == 1 && scene.client.stats().total.refused >= 2).await;
        scene.cut();
        waiting.abort();
        until("it to leave", SOON, || in_line(&scene.server) == 0).await;
        held.unlock().await.expect("ours to the end");
    })
    .await;
}

pub(crate) async fn hand_over(kind: Kind) {
    everywhere(kind, "hand_over", async |scene| {
        let held = kind.lock(&scene.client, "x").await;
        let (client, how) = (scene.client.clone(), How { owner: Some(Owner::new()), ..How::lease(ms(60_000)) });
        let waiting = tokio::spawn(async move { kind.take(&client, "x", how).await.expect("answered") });
        until("it to sleep", SOON, || Kind::sleeps_behind_own(&scene.client)).await;
        scene.cut();
        soon("the release", held.unlock()).await.expect("ours to the end");
        let next = soon("the hand-over", waiting).await.expect("no panic").expect("its turn");
        assert_eq!((count(scene, &next), scene.client.stats().total.handed_over), (Some(1), 1));
        next.unlock().await.expect("ours");
    })
    .await;
}

/// A hundred turns of ten tasks in two clients, one behind a proxy that cuts at random: the tokens grow in the order of the grants,
/// which is that in which the holders wrote them down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_through_cuts() {
    let server = Server::start();
    let proxy = before(&server);
    let clients = [behind(&proxy, |builder| builder).await, crate::support::plain(&server).await];
    for way in [Way::There, Way::Back] {
        for script in ["acquire", "hand_over", "release"].map(|name| script(&server, Kind::Fenced, name)) {
            proxy.rule(Rule::new(script, Fault::Cut(way)).times(4));
        }
    }
    let turns = (0..10).map(|n: usize| {
        let (lock, url) = (clients[n % 2].fenced_lock("x"), server.url());
        tokio::spawn(async move {
            let mut raw = redis::Client::open(url).expect("a good URL").get_connection().expect("it answers");
            for _ in 0..10 {
                let guard = lock.clone().owner(&Owner::new()).lock().await.expect("in turn");
                let _: u32 = redis::cmd("RPUSH").arg("written").arg(guard.token()).query(&mut raw).expect("written");
                guard.unlock().await.expect("ours to the end");
            }
        })
    });
    for turn in turns.collect::<Vec<_>>() {
        within("its turns", ms(20_000), turn).await.0.expect("no panic");
    }
    let written: Vec<u64> = server.ask(&["LRANGE", "written", "0", "-1"]);
    assert_eq!(written.len(), 100);
    assert!(written.is_sorted_by(|one, next| one < next), "{written:?}");
}

/// Where cuts are tried, for each primitive.
macro_rules! cut {
    ($($name:ident $kind:ident { $($case:ident)+ })+) => {
        $(mod $name {
            $(
                #[tokio::test]
                async fn $case() {
                    crate::kinds::family_faults::$case(crate::kinds::family::Way::$kind).await;
                }
            )+
        })+
    };
}

cut! {
    fenced Fenced { acquire nested_acquire renew release forget hand_over }
    read Read { acquire nested_acquire renew release forget }
    write Write { acquire nested_acquire renew release forget hand_over }
    fair Fair { acquire nested_acquire renew release forget waiting leaving }
}
