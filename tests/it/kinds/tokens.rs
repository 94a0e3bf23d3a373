//! Very many grants of a fenced lock in several processes, through cuts, hand-overs and kills: the tokens grow strictly.
//!
//! The long one: `scripts/tokens --grants 1000000`.

use std::{env, time::Duration};

use leasehold::{Client, FencedGuard, Owner};
use redis::{Connection, Script};

use crate::support::{
    Server, before, ms,
    process::Process,
    proxy::{Fault, Schedule, Way, Which},
    until,
};

const PROCESSES: usize = 4;
const TASKS: usize = 8;
/// Short, for a child that is killed while it holds the lock keeps the others waiting for so long.
const LEASE: Duration = ms(1_500);
const AIM: &str = "LEASEHOLD_TEST_GRANTS";
/// How many grants, and how many of them came with a token that was not greater than the one before.
const GRANTS: &str = "grants";
const WRONG: &str = "wrong";
/// Where the proxy is. What is written goes past it: that is not what is tried out here.
const PROXY: &str = "proxy";

/// The resource: takes a token if it is greater than all before. Answers how many it has taken; 0: refused.
const WRITE: &str = "
    if tonumber(ARGV[1]) <= tonumber(redis.call('GET', 'newest') or 0) then return 0 end
    redis.call('SET', 'newest', ARGV[1])
    return redis.call('INCR', 'grants')";

fn aim() -> u64 {
    env::var(AIM).map_or(5_000, |aim| aim.parse().expect("a number"))
}

/// How many grants there are between two kills, at least: each costs the others a lease.
fn between_kills() -> u64 {
    (aim() / 100).max(2_000)
}

/// Writes with that token, and says how many have. One that came late is refused; if it still has the lock, that is wrong.
async fn write(guard: &FencedGuard, raw: &mut Connection) -> u64 {
    let script = Script::new(WRITE);
    let taken: u64 = script.prepare_invoke().arg(guard.token()).invoke(raw).expect("answered");
    if taken == 0 && guard.check().await.is_ok() {
        redis::cmd("INCR").arg(WRONG).exec(raw).expect("answered");
    }
    taken
}

/// Not a test: what each child process does, until there are enough grants or somebody kills it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by others, in a process of its own"]
async fn takes_tokens() {
    let server = redis::Client::open(Process::url()).expect("a good address");
    let proxy: String =
        server.get_connection().and_then(|mut raw| redis::cmd("GET").arg(PROXY).query(&mut raw)).expect("put there");
    let client = Client::builder().url(proxy).watchdog(LEASE).command_timeout(ms(500)).connect_timeout(ms(10_000));
    let client = client.connect().await.expect("the server is there");
    let tasks = (0..TASKS).map(|_| {
        let (lock, raw) = (client.fenced_lock("x"), server.get_connection());
        tokio::spawn(async move {
            let (mut raw, mut taken, aim) = (raw.expect("it answers"), 0, aim());
            while taken < aim {
                let guard = lock.clone().owner(&Owner::new()).lock().await.expect("in turn");
                taken = write(&guard, &mut raw).await.max(taken);
                let _ = guard.unlock().await; // lost, perhaps, while its client was cut off
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
}

/// Cuts of each kind in a thousand requests.
fn cuts() -> Schedule {
    let chances = vec![(0.002, Fault::Cut(Way::There)), (0.002, Fault::Cut(Way::Back))];
    Schedule { seed: 1, which: Which::Any, chances }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grow_through_cuts_hand_overs_and_kills() {
    let server = Server::start();
    let proxy = before(&server);
    let _: String = server.ask(&["SET", PROXY, &proxy.url()]);
    proxy.schedule(cuts());
    let begin = || Process::start("kinds::tokens::takes_tokens", &server.url());
    let mut children: Vec<_> = (0..PROCESSES).map(|_| begin()).collect();
    let grants = || server.ask::<Option<u64>>(&["GET", GRANTS]).unwrap_or(0);
    let mut kills = 0;
    while (kills + 1) * between_kills() <= aim() {
        let enough = || {
            children.iter_mut().for_each(|child| _ = child.is_done()); // panics if one has failed
            grants() >= (kills + 1) * between_kills()
        };
        until("grants", ms(120_000), enough).await;
        let child = &mut children[kills as usize % PROCESSES];
        child.kill();
        *child = begin();
        kills += 1;
    }
    until("all to be done", ms(120_000), || children.iter_mut().all(Process::is_done)).await;
    let (newest, tally): (u64, _) = (server.ask(&["GET", "newest"]), proxy.tally());
    println!("{} grants, {newest} tokens, {kills} kills, {} handed over, {tally:?}", grants(), server.calls("hdel"));
    assert!(!server.exists(WRONG), "{} tokens were too small", server.ask::<u64>(&["GET", WRONG]));
    assert!(grants() >= aim() && newest >= grants() && kills > 0);
    assert!(server.calls("hdel") > 0 && tally.cut_there > 0 && tally.cut_back > 0, "{tally:?}");
}
