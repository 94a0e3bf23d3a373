//! Permits of a semaphore among processes, some of which are killed. Every process writes a log, and the checker of histories reads them.
//!
//! For longer than six seconds: `PERMITS_SECONDS=60 cargo test --release --test it permit_processes -- --nocapture`

use std::{
    collections::{BTreeMap, HashMap},
    env,
    time::Duration,
};

use fastrand::Rng;
use leasehold::{Client, Error, Lost, Permits, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    Server, client,
    history::{History, Room, What},
    ms,
    process::Process,
    stage::{Log, Stage, clock, nanos},
    until, within,
};

const PROCESSES: usize = 8;
const TASKS: u32 = 8;
const ROOM: Room = Room { all: 10, most: 4 };
/// The permits of a dead process come back after that.
const LEASE: Duration = ms(1_200);
/// A process is killed so often, and another one starts. At the end all of them live.
const KILLS: Duration = ms(1_000);
const CALM: Duration = ms(2_000);
/// A single attempt may take that long.
const COMMAND: Duration = ms(5_000);
/// How long the processes may take to start, and to end after their time.
const GRACE: Duration = ms(30_000);
/// The least served process has so much of its share, at least. A process counts if its share is so many permits, because a few turns
/// show nothing.
const LEAST: f64 = 0.7;
const COUNTS: f64 = 300.0;

/// A task of a child process.
struct Player {
    semaphore: Semaphore,
    log: Log,
    random: Rng,
}

impl Player {
    fn micros(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.random.u64(0..=most))
    }

    async fn turn(&mut self) {
        let Some(permits) = self.acquire().await else { return };
        let (id, until) = (permits.id().to_owned(), clock() + nanos(permits.remaining()));
        let has = What::Permits { id: id.clone(), permits: permits.count().into() };
        self.log.note([("x", What::Granted { id: id.clone(), until }), ("x", has)]);
        sleep(self.micros(2_000)).await;
        self.log.note([("x", What::Releasing { id })]);
        if self.random.u8(..8) > 0 {
            self.release(permits).await;
        }
    }

    /// In each of the ways; a call is cancelled now and then.
    async fn acquire(&mut self) -> Option<Permits> {
        let most = u32::try_from(ROOM.most).expect("few");
        let (n, short, long) = (self.random.u32(1..=most), self.micros(4_000), self.micros(30_000));
        let (call, limit) = match self.random.u8(..8) {
            0 => ("cancelled", None),
            1 => ("try_lock", Some(COMMAND)),
            2 => ("try_lock_for", Some(long)),
            _ => ("lock", None),
        };
        let begun = What::Begun { call: call.to_owned(), limit: limit.map_or(0, |limit| nanos(limit).max(1)) };
        self.log.note([("-", begun), ("x", What::Asked)]);
        let acquired = match call {
            "cancelled" => timeout(short, self.semaphore.acquire(n)).await.ok().transpose(),
            "try_lock" => self.semaphore.try_acquire(n).await,
            "try_lock_for" => self.semaphore.try_acquire_for(n, long).await,
            _ => self.semaphore.acquire(n).await.map(Some),
        };
        let how = match &acquired {
            Ok(Some(_)) => "ok",
            Ok(None) if call == "cancelled" => "cancelled",
            Ok(None) => "none",
            Err(error) if error.is_unavailable() => "unavailable",
            Err(_) => "lost",
        };
        let left = (how != "ok").then_some(("x", What::Left));
        let ended = What::Ended { call: call.to_owned(), how: how.to_owned() };
        self.log.note([("-", ended)].into_iter().chain(left));
        match acquired {
            // A server that is slow for a moment can outlast a short wait limit, and a command's time.
            Err(error) if error.is_unavailable() && call != "lock" => None,
            acquired => unless_stalled(acquired).flatten(),
        }
    }

    async fn release(&self, permits: Permits) {
        let ends = Instant::now() + permits.remaining();
        match permits.release().await {
            Err(error) if error.is_unavailable() && Instant::now() >= ends => {} // nobody can know
            released => _ = unless_stalled(released),
        }
    }
}

/// A machine that stands still for longer than a lease ends it.
fn unless_stalled<T>(outcome: leasehold::Result<T>) -> Option<T> {
    match outcome {
        Ok(done) => Some(done),
        Err(Error::Lost { reason: Lost::Expired, .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Not a test: what each child process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by others, in a process of its own"]
async fn acquires_permits() {
    let log = Log::of_this_child();
    let client = Client::builder().url(Process::url()).watchdog(LEASE).connect_timeout(GRACE).connect();
    let client = client.await.expect("the server is there");
    let ends = Log::ends();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (log, random) = log.of_task(task);
            let mut player = Player { semaphore: client.semaphore("x"), log, random };
            tokio::spawn(async move {
                while Instant::now() < ends {
                    player.turn().await;
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
    let seconds =
        env::var("PERMITS_SECONDS").map_or(6, |seconds| seconds.parse().expect("PERMITS_SECONDS is a number"));
    Duration::from_secs(seconds)
}

/// What one process got of the permits that were granted while it lived, and what it would have got if all that lived then had got
/// the same.
#[derive(Debug, Default)]
struct Served {
    got: f64,
    share: f64,
}

/// By process. A process lives from its first call until it is killed, or begins no more.
fn served(history: &History) -> BTreeMap<&str, Served> {
    let mut points = Vec::new();
    for (name, events) in &history.clients {
        let calls = || events.iter().filter(|event| matches!(event.what, What::Asked)).map(|event| event.at);
        let (Some(first), Some(last)) = (calls().next(), calls().next_back()) else { continue };
        points.push((first, name.as_str(), Point::Begins));
        points.push((history.killed.get(name).copied().unwrap_or(last), name, Point::Ends));
        points.extend(events.iter().filter_map(|event| match event.what {
            What::Permits { permits, .. } => Some((event.at, name.as_str(), Point::Got(permits))),
            _ => None,
        }));
    }
    points.sort_by_key(|(at, ..)| *at);
    let (mut alive, mut served): (Vec<&str>, BTreeMap<&str, Served>) = Default::default();
    for (_, name, point) in points {
        match point {
            Point::Begins => alive.push(name),
            Point::Ends => alive.retain(|other| *other != name),
            Point::Got(permits) if alive.contains(&name) => {
                served.entry(name).or_default().got += permits as f64;
                let share = permits as f64 / alive.len() as f64;
                alive.iter().for_each(|one| served.entry(one).or_default().share += share);
            }
            Point::Got(_) => {} // by a call that began before the end
        }
    }
    served
}

enum Point {
    Begins,
    Ends,
    Got(u64),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_permits_among_processes_that_are_killed_are_never_exceeded_nor_lost_and_each_has_its_share() {
    let (time, server) = (time(), Server::start());
    let watching = client(&server, |builder| builder).await.semaphore("x");
    let all = u32::try_from(ROOM.all).expect("few");
    assert!(watching.try_set_permits(all).await.expect("answered"));
    let rooms = HashMap::from([("x".to_owned(), ROOM)]);
    let history = History { longest_lease: LEASE, outage: GRACE, rooms, ..History::default() };
    let mut stage = Stage::new("kinds::permit_processes::acquires_permits", server, history, time);
    stage.run(PROCESSES, KILLS, CALM).await;
    until("all processes to end", time + GRACE, || stage.all_are_done()).await;
    let back = async {
        while watching.available().await.expect("answered") < i64::from(all) {
            sleep(ms(10)).await;
        }
    };
    let ((), took) = within("all permits to come back", LEASE, back).await;
    println!("all permits were free {took} after the end");
    assert_eq!(watching.available().await.expect("answered"), i64::from(all));
    watching.acquire(all).await.expect("free").release().await.expect("held to the end");
    stage.read_logs();

    let turns = stage.history.turns();
    println!("turns: {turns:?}, killed: {}, cancelled: {}", stage.history.killed.len(), stage.count("cancelled"));
    assert_eq!(stage.history.check(), []);
    let served = served(&stage.history);
    let parts: BTreeMap<_, _> = served.iter().map(|(name, of)| (name, (of.got / of.share, of.share))).collect();
    println!("of its share each process got: {parts:.2?}");
    let counted: Vec<_> = parts.values().filter(|(_, share)| *share > COUNTS).collect();
    // A busy machine makes so few turns in a short run that they say nothing of shares.
    let is_busy = served.values().map(|of| of.got).sum::<f64>() < 2.0 * COUNTS * PROCESSES as f64;
    assert!(counted.len() >= PROCESSES / 2 || is_busy, "{parts:?}");
    assert!(counted.iter().all(|(part, _)| *part >= LEAST), "{parts:?}");
    assert!(!stage.history.killed.is_empty() && stage.count("cancelled") > 0);
}

/// From their logs, with the moment at which one was killed.
fn logs<'a>(all: impl IntoIterator<Item = (&'a str, String, Option<u64>)>) -> History {
    let mut history = History::default();
    for (name, log, killed) in all {
        history.clients.insert(name.to_owned(), log.lines().map(|line| line.parse().expect(line)).collect());
        history.killed.extend(killed.map(|at| (name.to_owned(), at)));
    }
    history
}

/// It acquires so many permits at each of these moments.
fn acquires(permits: u64, moments: impl IntoIterator<Item = u64>) -> String {
    let turn = |at: u64| format!("{at} 0 x asked\n{at} 0 x granted p{at} 900\n{at} 0 x permits p{at} {permits}\n");
    moments.into_iter().map(turn).collect()
}

#[test]
fn a_share_is_what_a_process_would_have_if_all_that_live_then_had_the_same() {
    let history = logs([
        ("long", acquires(8, (100..200).step_by(10)), None),
        ("killed", acquires(4, [101, 111]), Some(115)),
        ("late", acquires(1, (151..200).step_by(10)), None),
    ]);
    let served = served(&history);
    let of = |name: &str| (served[name].got, served[name].share);
    assert_eq!(of("killed"), (8.0, 2.0 + 4.0 + 2.0));
    assert_eq!(of("long").1 + of("killed").1 + of("late").1, of("long").0 + of("killed").0 + of("late").0);
    assert!(of("late").0 / of("late").1 < LEAST && of("long").0 / of("long").1 > 1.0, "{served:?}");
}
