//! Other processes of ours: this program again, told what to do by an environment variable.

use std::{
    env, fs,
    ops::Range,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use leasehold::{Client, Lock};
use tokio::time::sleep;

use crate::{between, jvm::clock, sides::Kind, support::ms};

const ORDERS: &str = "INTEROP_WORKER";

/// Ended when dropped.
pub(crate) struct Worker(Child);

impl Worker {
    pub(crate) fn start(orders: &[&str]) -> Worker {
        let program = env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--ignored", "--exact", "workers::worker", "--nocapture"])
            .env(ORDERS, orders.join(" "))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Worker(child.expect("this program can be started"))
    }

    /// Whether it ended well.
    pub(crate) fn wait(mut self) -> bool {
        self.0.wait().expect("our own child").success()
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("our own child");
        self.0.wait().expect("our own child");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "not a test but a process of the tests, which start it themselves"]
async fn worker() {
    let orders = env::var(ORDERS).expect("only the tests start workers");
    match orders.split(' ').collect::<Vec<_>>()[..] {
        ["hold", kind, url, name, lease] => hold(kind.parse().expect("a kind"), url, name, ms(number(lease))).await,
        ["turns", url, name, from, until, work, counter, log] => {
            let time = number(from)..number(until);
            let turns = Turns { time, work: ms(number(work)), counter: counter.as_ref(), log: log.as_ref() };
            let client = Client::connect(url).await.expect("the private server answers");
            turns.take(client.lock(name)).await;
        }
        _ => panic!("no such orders: {orders}"),
    }
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

/// Waits for the lock and holds it until it is killed.
async fn hold(kind: Kind, url: &str, name: &str, watchdog: Duration) {
    let client = Client::builder().url(url).watchdog(watchdog).connect().await.expect("the private server answers");
    let _guard = kind.lock(&client, name).await;
    sleep(Duration::from_secs(60)).await;
    panic!("nobody killed me");
}

/// What a contender does. The same as `turns` on the JVM's side, `jvm/`.
struct Turns<'a> {
    /// Begins and ends at these moments of [`clock`].
    time: Range<u64>,
    /// For how long each turn works.
    work: Duration,
    /// A number that all contenders share.
    counter: &'a Path,
    /// Where in the end it says from when until when the lock was certainly held.
    log: &'a Path,
}

impl Turns<'_> {
    async fn take(self, lock: Lock) {
        let mut turns = String::new();
        sleep(between(clock(), self.time.start)).await;
        while clock() < self.time.end {
            let guard = lock.lock().await.expect("the holders go");
            let granted = clock();
            self.count().await;
            let left = clock();
            guard.unlock().await.expect("ours");
            turns += &format!("{granted} {left}\n");
        }
        fs::write(self.log, turns).expect("the tests' folder can be written");
    }

    /// Counts one up, slowly: two at a time would be counted as one.
    async fn count(&self) {
        let counted = number(&fs::read_to_string(self.counter).expect("the tests have written it"));
        if !self.work.is_zero() {
            sleep(self.work).await;
        }
        fs::write(self.counter, (counted + 1).to_string()).expect("the tests' folder can be written");
    }
}
