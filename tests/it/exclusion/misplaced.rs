//! Replies that belong to another request: nobody takes one for his, and the connection it came on is replaced.

use std::future::Future;

use leasehold::{Client, Guard, Owner};

use crate::support::{
    Server, before, behind, ms,
    proxy::{Fault, Proxy, Rule, Which, twice, wrong_nonce},
    script, until, within,
};

struct Scene {
    server: Server,
    proxy: Proxy,
    client: Client,
}

impl Scene {
    async fn set() -> Scene {
        let server = Server::start();
        for name in ["acquire", "release", "renew"] {
            script(&server, name);
        }
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder).await;
        Scene { server, proxy, client }
    }

    /// The next replies to this script are rewritten.
    fn rewrite(&self, name: &str, times: u64, other: fn(&[u8]) -> Option<Vec<u8>>) {
        self.proxy.rule(Rule::new(script(&self.server, name), Fault::Rewrite(other)).times(times));
    }

    async fn taken(&self, name: &str) -> Guard {
        self.client.lock(name).lock().await.expect("free")
    }

    /// The results of these calls. All their requests have left the client before the server replies to the first one.
    async fn together<T>(&self, requests: u64, calls: impl Future<Output = T>) -> T {
        let before = self.proxy.tally().requests;
        self.server.freeze();
        let there = async {
            until("all to be under way", ms(1_000), || self.proxy.tally().requests - before >= requests).await;
            self.server.thaw();
        };
        soon("all answers", async { tokio::join!(calls, there) }).await.0
    }

    /// So many connections were replaced for that reason, and the old ones are closed.
    async fn replaced(&self, count: u64) {
        until("the new connection", ms(1_000), || self.client.stats().total.reconnects == count).await;
        let stats = self.client.stats();
        assert_eq!((stats.total.misplaced, stats.total.timeouts, stats.total.lost), (count, 0, 0));
        assert_eq!(self.proxy.tally().connections, 1 + count);
        let connections = || self.server.ask::<String>(&["CLIENT", "LIST"]).lines().count();
        until("the old one to be closed", ms(1_000), || connections() == 2).await; // ours, and the one that asks
    }
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    within(what, ms(1_000), work).await.0
}

#[tokio::test]
async fn an_answer_with_a_wrong_nonce_is_nobodys() {
    let scene = Scene::set().await;
    scene.rewrite("acquire", 2, wrong_nonce);
    let guard = soon("the lock", scene.client.lock("x").lock()).await.expect("asked again");
    assert_eq!(scene.server.lock("x"), [(guard.id().to_owned(), 1)]);
    scene.replaced(2).await;
    scene.rewrite("renew", 1, wrong_nonce);
    soon("an answer", guard.check()).await.expect("ours");
    scene.replaced(3).await;
    scene.rewrite("release", 1, wrong_nonce);
    soon("the release", guard.unlock()).await.expect("ours to the end");
    scene.replaced(4).await;
    assert!(!scene.server.exists("x"));
}

#[tokio::test]
async fn no_good_news_from_somebody_elses_reply() {
    let scene = Scene::set().await;
    let _: u32 = scene.server.ask(&["HSET", "taken", "b983c153-7421-469a-addb-44fb92259a1b:7", "1"]);
    // One reply too many: all later ones on that connection are shifted by one, so that who asks for what is taken
    // gets "granted", which was said to somebody else.
    scene.rewrite("acquire", 1, twice);
    let owner = Owner::new();
    let (free, taken) = (scene.client.lock("free"), scene.client.lock("taken").owner(&owner));
    let (granted, refused) = scene.together(2, async { tokio::join!(free.try_lock(), taken.try_lock()) }).await;
    let granted = granted.expect("answered").expect("free");
    assert!(refused.expect("answered").is_none(), "somebody else has it");
    assert_eq!(scene.server.lock("free"), [(granted.id().to_owned(), 1)]);
    assert_eq!(scene.server.lock("taken").len(), 1);
    scene.replaced(1).await;
}

#[tokio::test]
async fn no_bad_news_either() {
    let scene = Scene::set().await;
    let (mine, other) = (scene.taken("mine").await, scene.taken("other").await);
    let _: u32 = scene.server.ask(&["DEL", "other"]);
    scene.rewrite("renew", 1, twice);
    let (gone, kept) = scene.together(2, async { tokio::join!(other.check(), mine.check()) }).await;
    gone.expect_err("it was deleted");
    kept.expect("the other one's loss is not ours");
    assert!(other.is_lost() && !mine.is_lost());
    assert_eq!(
        (scene.client.stats().total.misplaced, scene.client.stats().total.reconnects, scene.client.stats().total.lost),
        (1, 1, 1)
    );
}

#[tokio::test]
async fn a_crowd_behind_a_shifted_reply() {
    let scene = Scene::set().await;
    let theirs = "b983c153-7421-469a-addb-44fb92259a1b:7";
    for n in (1..100).step_by(2) {
        let _: u32 = scene.server.ask(&["HSET", &format!("lock-{n}"), theirs, "1"]);
    }
    scene.rewrite("acquire", 1, twice);
    scene.proxy.rule(Rule::new(Which::Any, Fault::Rewrite(wrong_nonce)).after(8));
    let asking: Vec<_> = (0..100)
        .map(|n| {
            let lock = scene.client.lock(&format!("lock-{n}"));
            tokio::spawn(async move { (n, lock.try_lock().await) })
        })
        .collect();
    for task in asking {
        let (n, taken) = soon("an answer", task).await.expect("no panic");
        let guard = taken.expect("answered");
        let expected = guard.as_ref().map_or(theirs, Guard::id).to_owned();
        assert_eq!((guard.is_some(), scene.server.lock(&format!("lock-{n}"))), (n % 2 == 0, vec![(expected, 1)]));
    }
    assert!(scene.client.stats().total.misplaced >= 1);
    until("the client to be idle", ms(1_000), || scene.client.stats().now.releasing == 0).await;
    assert_eq!(scene.client.stats().now.holds, 0);
    assert_eq!(scene.server.ask::<u32>(&["DBSIZE"]), 50, "all of ours were given back");
}
