//! Several locks at once among processes, some of which are killed. Every process writes a log, and the checker of histories reads them.
//!
//! For longer than five seconds: `MULTI_SECONDS=20 cargo test --release --test it multi_processes -- --nocapture`

use std::{collections::HashMap, env, time::Duration};

use fastrand::Rng;
use leasehold::{Client, Error, Lost, MultiGuard, MultiLock};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    Server, client,
    history::{History, What},
    ms,
    process::Process,
    stage::{Log, Stage, clock, nanos},
    until, within,
};

const PROCESSES: usize = 8;
const TASKS: u32 = 2;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// The names of a dead process are free after that.
const LEASE: Duration = ms(1_200);
/// A process is killed so often, and another one starts. At the end all of them live.
const KILLS: Duration = ms(700);
const CALM: Duration = ms(1_500);
/// A single attempt may take that long.
const COMMAND: Duration = ms(5_000);
/// How long the processes may take to start, and to end after their time.
const GRACE: Duration = ms(30_000);

/// A task of a child process.
struct Player {
    client: Client,
    log: Log,
    task: u32,
    random: Rng,
}

impl Player {
    fn note<'a>(&self, names: impl IntoIterator<Item = &'a str>, what: impl Fn(&str) -> What) {
        self.log.note(names.into_iter().map(|name| (name, what(name))));
    }

    fn note_call(&self, what: What) {
        self.note(["-"], |_| what.clone());
    }

    /// Three of the names in any order.
    fn triple(&mut self) -> MultiLock {
        let mut names = NAMES;
        self.random.shuffle(&mut names);
        MultiLock::new(names[..3].iter().map(|name| self.client.mutex(name)))
    }

    fn micros(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.random.u64(0..=most))
    }

    async fn turn(&mut self, turn: u32) {
        let Some(guard) = self.acquire().await else { return };
        let hold = format!("{}:{}:{turn}", std::process::id(), self.task);
        let names: Vec<_> = guard.names().map(str::to_owned).collect();
        let names = || names.iter().map(String::as_str);
        let until = clock() + nanos(guard.remaining());
        self.note(names(), |name| What::Granted { id: format!("{hold}:{name}"), until });
        sleep(self.micros(2_000)).await;
        self.note(names(), |name| What::Releasing { id: format!("{hold}:{name}") });
        if self.random.u8(..8) > 0 {
            self.unlock(guard).await;
        }
    }

    /// In each of the ways; a call is cancelled now and then.
    async fn acquire(&mut self) -> Option<MultiGuard> {
        let (locks, short, long) = (self.triple(), self.micros(4_000), self.micros(30_000));
        let (call, limit) = match self.random.u8(..6) {
            0 => ("cancelled", None),
            1 => ("try_lock", Some(COMMAND)),
            2 => ("try_lock_for", Some(long)),
            _ => ("lock", None),
        };
        self.note_call(What::Begun { call: call.to_owned(), limit: limit.map_or(0, |limit| nanos(limit).max(1)) });
        let acquired = match call {
            "cancelled" => timeout(short, locks.lock()).await.ok().transpose(),
            "try_lock" => locks.try_lock().await,
            "try_lock_for" => locks.try_lock_for(long).await,
            _ => locks.lock().await.map(Some),
        };
        let how = match &acquired {
            Ok(Some(_)) => "ok",
            Ok(None) if call == "cancelled" => "cancelled",
            Ok(None) => "none",
            Err(error) if error.is_unavailable() => "unavailable",
            Err(_) => "lost",
        };
        self.note_call(What::Ended { call: call.to_owned(), how: how.to_owned() });
        match acquired {
            // A server that is slow for a moment can outlast a short wait limit, and a command's time.
            Err(error) if error.is_unavailable() && call != "lock" => None,
            acquired => self.unless_stalled(acquired).flatten(),
        }
    }

    async fn unlock(&self, guard: MultiGuard) {
        let ends = Instant::now() + guard.remaining();
        match guard.unlock().await {
            Err(error) if error.is_unavailable() && Instant::now() >= ends => {} // nobody can know
            unlocked => _ = self.unless_stalled(unlocked),
        }
    }

    /// A machine that stands still for longer than a lease ends it.
    fn unless_stalled<T>(&self, outcome: leasehold::Result<T>) -> Option<T> {
        match outcome {
            Ok(done) => Some(done),
            Err(Error::Lost { reason: Lost::Expired, .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Not a test: what each child process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by others, in a process of its own"]
async fn acquires_triples() {
    let log = Log::of_this_child();
    let client = Client::builder().url(Process::url()).watchdog(LEASE).connect_timeout(GRACE).connect();
    let client = client.await.expect("the server is there");
    let ends = Log::ends();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (log, random) = log.of_task(task);
            let mut player = Player { client: client.clone(), log, task, random };
            tokio::spawn(async move {
                for turn in 0.. {
                    if Instant::now() >= ends {
                        break;
                    }
                    player.turn(turn).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    client.close().await.expect("nothing is left");
}

fn time() -> Duration {
    let seconds = env::var("MULTI_SECONDS").map_or(5, |seconds| seconds.parse().expect("MULTI_SECONDS is a number"));
    Duration::from_secs(seconds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn triples_of_killed_and_cancelled_callers_neither_deadlock_nor_overlap() {
    let (time, server) = (time(), Server::start());
    let history = History { longest_lease: LEASE, outage: GRACE, ..History::default() };
    let mut stage = Stage::new("kinds::multi_processes::acquires_triples", server, history, time);
    stage.run(PROCESSES, KILLS, CALM).await;
    until("all processes to end", time + GRACE, || stage.all_are_done()).await;
    until("no key to be left", LEASE + ms(3_000), || stage.server.ask::<u32>(&["DBSIZE"]) == 0).await;
    until("no channel to be left", ms(3_000), || stage.server.channels().is_empty()).await;
    stage.read_logs();
    let turns: HashMap<_, _> = stage.history.turns().into_iter().collect();
    println!("killed: {}, cancelled: {}", stage.history.killed.len(), stage.count("cancelled"));
    let [ok, none, unavailable] = ["ok", "none", "unavailable"].map(|how| stage.count(how));
    println!("turns by name: {turns:?}; calls: {ok} acquired, {none} did not, {unavailable} found no server");
    assert_eq!(stage.history.check(), []);
    let mut each = NAMES.map(|name| turns.get(name).copied().unwrap_or(0));
    each.sort_unstable();
    assert!(each[0] > 0 && each[5] < 5 * each[0], "no name has far fewer turns than others: {turns:?}");
    assert!(!stage.history.killed.is_empty() && stage.count("cancelled") > 0);
}

#[tokio::test]
async fn a_process_that_is_killed_in_the_middle_keeps_its_names_for_a_lease_and_no_longer() {
    let history = History::default();
    let mut stage = Stage::new("kinds::multi_processes::acquires_triples", Server::start(), history, 2 * GRACE);
    stage.start();
    until("it to hold some", GRACE, || stage.server.ask::<u32>(&["DBSIZE"]) > 0).await;
    stage.kill_one();
    let client = client(&stage.server, |builder| builder).await;
    let all = MultiLock::new(NAMES.map(|name| client.mutex(name)));
    let (guard, took) = within("all names", LEASE + ms(1_500), all.lock()).await;
    println!("all names after {took}");
    guard.expect("acquired").unlock().await.expect("held to the end");
}
