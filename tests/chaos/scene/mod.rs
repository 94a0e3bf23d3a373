//! Where the servers are: one behind proxies, a cluster, some that sentinels watch, or several
//! that do not know of each other. And what can happen there.

mod alone;
mod cluster;
mod independent;
mod sentinels;

use std::{
    future::Future,
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use redis::{FromRedisValue, RedisError};
use tokio::runtime::{Builder, Runtime};

pub(crate) use alone::{Alone, HIDDEN, is_hidden};
pub(crate) use cluster::Realm;
pub(crate) use independent::Independent;
pub(crate) use sentinels::Watched;

use crate::{VAULTS, director::Stage, observer::Eye, server::Server};

/// With its name and how often it is chosen.
pub(crate) type Trouble<S> = (&'static str, u32, fn(&mut Stage<S>, &mut Rng));

pub(crate) trait Scene: Sized + 'static {
    /// What the locks are called.
    const NAMES: &'static [&'static str];
    const TROUBLES: &'static [Trouble<Self>];
    /// How many troubles in a row, then a calm time; and how many in a short run.
    const IN_A_ROW: (u32, u32);
    /// How much longer than with one server a lock may be free, and a lost lock be believed in: many servers share the cores with
    /// the clients.
    const SLACK: Duration;
    /// Whether each server has all locks.
    const ALL_HAVE_ALL: bool = false;

    fn set() -> Self;
    /// Where the client in that place finds the servers.
    fn url(&self, slot: usize) -> String;
    fn eye(&self) -> Box<dyn Eye>;
    /// Those that can be written to.
    fn masters(&self) -> Vec<&Server>;
    /// The one that has this lock.
    fn server_of(&self, name: &str) -> &Server;
    /// Asks the master that has this lock. Another may take over at any time, which the director did not mean or has not heard of
    /// yet: then it asks again.
    fn ask<T: FromRedisValue>(&self, name: &str, words: &[&str]) -> T {
        let begun = Instant::now();
        loop {
            match self.server_of(name).try_ask(words) {
                Err(error) if is_elsewhere(&error) && begun.elapsed() < ELSEWHERE => thread::sleep(AGAIN),
                answer => return answer.unwrap_or_else(|error| panic!("{words:?}: {error}")),
            }
        }
    }
    /// How releases are published.
    fn publish(&self) -> &'static str;
    /// Passes a time in which nothing is wrong: from when to when.
    fn calm(stage: &mut Stage<Self>) -> Option<(u64, u64)>;
    /// What it counted, for the report.
    fn rows(&self) -> Vec<(&'static str, u64)>;
}

/// The names of a deployment in which masters come and go.
const NAMES: [&str; ALONE + VAULTS.len()] = {
    let mut names = [""; ALONE + VAULTS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = if at < ALONE { crate::NAMES[at] } else { VAULTS[at - ALONE] };
        at += 1;
    }
    names
};
const ALONE: usize = crate::NAMES.len();

/// Every write is handed to the system before it is confirmed, so it survives the server's end.
const KEPT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "no"];

const BUSY_MACHINE: Duration = Duration::from_millis(500);
/// After a failover, the holders have this time to notice a loss, without other troubles.
const QUIET_TIME: Duration = Duration::from_millis(2_300);
/// How long the director looks for the master of a lock, and how often.
const ELSEWHERE: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(20);
/// How long an observer waits for one server of several.
const PATIENCE: Duration = Duration::from_millis(100);

/// Whether another server has taken over, or is about to.
fn is_elsewhere(error: &RedisError) -> bool {
    let moves = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING"];
    error.code().is_none_or(|code| moves.contains(&code))
}

/// What is asked of a deployment is asked in tasks; the director has none.
struct Patience(Runtime);

impl Patience {
    fn new() -> Patience {
        Patience(Builder::new_current_thread().enable_all().build().expect("a runtime"))
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.0.block_on(work)
    }
}
