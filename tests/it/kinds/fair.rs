//! The fair lock: first come, first served, by all clients together.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use leasehold::{Client, Error, FairLock, Guard, Owner};
use tokio::task::JoinHandle;

use crate::{
    kinds::family::{clean, idle},
    support::{Server, Stopwatch, ms, plain, poll_until, until, within},
};

const SOON: Duration = ms(3_000);
const QUEUE: &str = "redisson_lock_queue:{x}";
const PLACES: &str = "redisson_lock_timeout:{x}";
/// Waiters that will never ask again: one of ours, one of Redisson's.
const DEAD: &str = "6b1c7d3e-0000-8000-8000-000000000001:7";
const DEAD_JVM: &str = "6b1c7d3e-0000-4000-8000-000000000001:7";
/// The end of a place that does not end in this test.
const NEVER: u64 = 9_000_000_000_000_000;
/// What one that does not come costs the others, and how much more until they notice.
const GRACE: Duration = ms(5_000);

fn lock(client: &Client) -> FairLock {
    client.fair_lock("x").owner(&Owner::new())
}

fn waits(client: &Client) -> JoinHandle<Guard> {
    let lock = lock(client);
    tokio::spawn(async move { lock.lock().await.expect("in turn") })
}

async fn two_clients() -> (Server, Client, Client) {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    (server, one, two)
}

fn in_line(server: &Server) -> usize {
    server.ask(&["LLEN", QUEUE])
}

/// Puts a waiter at the end of the line by hand, with a place that lasts for so long from now.
fn stands_in_line(server: &Server, id: &str, place: Option<Duration>) {
    let _: u32 = server.ask(&["RPUSH", QUEUE, id]);
    let Some(place) = place else { return };
    let now: (u64, u64) = server.ask(&["TIME"]);
    let till = now.0 * 1_000 + u64::try_from(place.as_millis()).expect("short");
    let _: u32 = server.ask(&["ZADD", PLACES, &till.to_string(), id]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_in_the_order_of_the_line() {
    let (server, one, two) = two_clients().await;
    let first = lock(&one).lock().await.expect("free");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..40 {
        let (lock, order) = (lock(if n % 3 == 0 { &one } else { &two }), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = lock.lock().await.expect("in turn");
            order.lock().expect("no panic").push(guard.id().to_owned());
            guard.unlock().await.expect("ours to the end");
        }));
        until("it to stand in line", SOON, || in_line(&server) == n + 1).await;
    }
    let line = one.fair_lock("x").waiters().await.expect("answered");
    assert_eq!(line.len(), 40);
    assert!(lock(&two).try_lock().await.expect("answered").is_none());
    first.unlock().await.expect("ours");
    for task in tasks {
        within("its turn", SOON, task).await.0.expect("no panic");
    }
    // On a busy machine a waiter looks by itself now and then.
    let by_timer: u64 = [&one, &two].map(|client| client.stats().total.by_timer).iter().sum();
    assert!(by_timer < 4, "{by_timer} of 40 were not granted by a message");
    assert_eq!(*order.lock().expect("no panic"), line);
    idle(&one).await;
    clean(&server, &two).await;
}

#[tokio::test]
async fn trying_does_not_pass_those_who_wait() {
    let (server, one, two) = two_clients().await;
    stands_in_line(&server, DEAD, Some(ms(60_000)));
    assert!(lock(&one).try_lock().await.expect("answered").is_none(), "it is free, but somebody is before us");
    assert_eq!(in_line(&server), 1, "one attempt takes no place");
    let _: u32 = server.ask(&["DEL", QUEUE, PLACES]);
    lock(&two).try_lock().await.expect("answered").expect("free").unlock().await.expect("ours");
    clean(&server, &one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_that_leave_at_once_leave_nothing() {
    let (server, one, two) = two_clients().await;
    let guard = lock(&one).lock().await.expect("free");
    let tasks: Vec<_> = (0..1_000).map(|n| waits(if n % 2 == 0 { &one } else { &two })).collect();
    until("them to stand in line", ms(20_000), || in_line(&server) == 1_000).await;
    tasks.iter().for_each(|task| task.abort());
    let started = Stopwatch::start();
    until("the line to be empty", ms(10_000), || in_line(&server) == 0).await;
    assert!(started.elapsed() < ms(2_500), "{:?}", started.elapsed());
    join_all(tasks).await;
    guard.unlock().await.expect("ours");
    idle(&one).await;
    clean(&server, &two).await;
}

#[tokio::test]
async fn a_dead_head_costs_the_others_no_more_than_its_grace() {
    for dead in [DEAD, DEAD_JVM] {
        let (server, one, two) = two_clients().await;
        let guard = lock(&one).lock().await.expect("free");
        stands_in_line(&server, dead, Some(ms(60_000)));
        let waiting = waits(&two);
        until("it to stand in line", SOON, || in_line(&server) == 2).await;
        let called = Stopwatch::start();
        guard.unlock().await.expect("ours");
        let (next, _) = within("its turn", GRACE + ms(2_000), waiting).await;
        let took = called.elapsed();
        assert!(took > GRACE - ms(200) && took < GRACE + ms(500), "{took}");
        next.expect("no panic").unlock().await.expect("ours");
        clean(&server, &two).await;
    }
}

/// It is notified as the others are, and has half a second to look.
#[tokio::test]
async fn one_that_is_not_polled_is_passed_over_soon() {
    let (server, one, two) = two_clients().await;
    let (guard, kept) = (lock(&one).lock().await.expect("free"), lock(&one));
    let mut kept = Box::pin(kept.lock());
    poll_until("it to stand in line", kept.as_mut(), || in_line(&server) == 1).await;
    let waiting = waits(&two);
    until("the next to stand in line", SOON, || in_line(&server) == 2).await;
    let called = Stopwatch::start();
    guard.unlock().await.expect("ours");
    let (next, _) = within("its turn", SOON, waiting).await;
    assert!(called.elapsed() < ms(1_000), "{}", called.elapsed());
    next.expect("no panic").unlock().await.expect("ours");
    drop(kept);
    clean(&server, &two).await;
}

/// All of a killed process: when the first has not come, the others are passed over at once.
#[tokio::test]
async fn many_dead_waiters_of_one_client_cost_as_much_as_one() {
    let (server, one, two) = two_clients().await;
    let guard = lock(&one).lock().await.expect("free");
    dead_stand_in_line(&server, "x", 1_000, (NEVER, NEVER));
    let waiting = waits(&two);
    until("it to stand in line", SOON, || in_line(&server) == 1_001).await;
    let called = Stopwatch::start();
    guard.unlock().await.expect("ours");
    let (next, _) = within("its turn", GRACE + ms(4_000), waiting).await;
    let took = called.elapsed();
    assert!(took > GRACE - ms(200), "{took:?}");
    next.expect("no panic").unlock().await.expect("ours");
    clean(&server, &two).await;
}

/// As after a long outage. For each of them the server looks for more waiters of its client, but not at the whole queue each time.
#[tokio::test]
async fn dead_waiters_of_many_clients_do_not_block_the_server() {
    let (server, one, _two) = two_clients().await;
    for n in 0..1_000 {
        stands_in_line(&server, &format!("6b1c7d3e-{n:04x}-8000-8000-000000000001:7"), None);
    }
    let looks = || server.calls("lrange");
    let before = looks();
    let guard = lock(&one).try_lock().await.expect("answered").expect("no place is left");
    assert!((1..10).contains(&(looks() - before)), "{}", looks() - before);
    guard.unlock().await.expect("ours");
    clean(&server, &one).await;
}

/// Puts so many waiters of one dead client in a queue. The place of the first, and those of the others, end then.
fn dead_stand_in_line(server: &Server, name: &str, many: u32, (first, others): (u64, u64)) {
    const FILL: &str = "for n = 1, ARGV[1] do local id = '00000000-0000-8000-8000-00000000dead:' .. n; \
        redis.call('RPUSH', KEYS[1], id); redis.call('ZADD', KEYS[2], n == 1 and ARGV[3] or ARGV[2], id) end";
    let [queue, places] = queue_of(name);
    let numbers = [u64::from(many), others, first].map(|number| number.to_string());
    let _: () = server.ask(&["EVAL", FILL, "2", &queue, &places, &numbers[0], &numbers[1], &numbers[2]]);
}

fn queue_of(name: &str) -> [String; 2] {
    ["queue", "timeout"].map(|what| format!("redisson_lock_{what}:{{{name}}}"))
}

/// The server does nothing else meanwhile.
#[tokio::test]
async fn a_release_passes_over_4096_dead_waiters_and_no_more() {
    let (server, one, _two) = two_clients().await;
    let guard = lock(&one).lock().await.expect("free");
    dead_stand_in_line(&server, "x", 10_000, (1, 1));
    guard.unlock().await.expect("ours");
    assert_eq!(in_line(&server), 10_000 - 4_096);
    let free = within("all to be passed over", 3 * GRACE, lock(&one).lock()).await.0.expect("free");
    free.unlock().await.expect("ours");
    clean(&server, &one).await;
}

/// One call with requests for these locks.
fn acquire_together(server: &Server, names: &[&str]) -> Vec<String> {
    const ACQUIRE: [&str; 4] = [
        include_str!("../../../src/redis/frame.lua"),
        include_str!("../../../src/primitives/lock/holder.lua"),
        include_str!("../../../src/primitives/fair/queue.lua"),
        include_str!("../../../src/primitives/fair/acquire.lua"),
    ];
    let script = redis::Script::new(&ACQUIRE.concat());
    let mut call = script.prepare_invoke();
    call.arg(names.len());
    for name in names {
        call.key(*name);
        queue_of(name).iter().for_each(|key| _ = call.key(key));
        let channel = format!("redisson_lock__channel:{{{name}}}");
        ["nonce", DEAD, "30000", "1", "join", &channel, "PUBLISH"].iter().for_each(|arg| _ = call.arg(arg));
    }
    call.invoke(&mut server.raw()).expect("it runs")
}

/// Both have waiters of a dead client. The long one must not use up what the short one needs.
#[test]
fn a_short_queue_is_swept_beside_a_long_one() {
    let server = Server::start();
    for (name, many) in [("long", 5_000), ("short", 20)] {
        dead_stand_in_line(&server, name, many, (1, NEVER));
    }
    let answers = acquire_together(&server, &["long", "short"]);
    assert!(answers[0].starts_with("nonce queued") && answers[1] == "nonce granted 1", "{answers:?}");
}

#[test]
fn requests_for_one_queue_sweep_as_far_as_a_single_one() {
    let server = Server::start();
    dead_stand_in_line(&server, "x", 4_000, (1, NEVER));
    let answers = acquire_together(&server, &["x"; 100]);
    assert!(answers.iter().all(|answer| answer == "nonce granted 1"), "{answers:?}");
}

/// The others are empty, and need no part of what a call may look at.
#[test]
fn a_long_queue_is_swept_beside_many_that_need_nothing() {
    let server = Server::start();
    let names: Vec<String> = (0..128).map(|n| format!("lock {n}")).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    dead_stand_in_line(&server, names[9], 4_000, (1, NEVER));
    acquire_together(&server, &names);
    let left: usize = server.ask(&["LLEN", &queue_of(names[9])[0]]);
    assert!(left < 4_000 - 2_048, "{left}");
}

/// Each removal walks past the living, and the server does nothing else meanwhile.
#[test]
fn dead_waiters_behind_many_living_are_not_all_removed_at_once() {
    const LIVING: &str = "for n = 1, 2000 do local id = '00000000-0000-8000-8000-00000000a11e:' .. n; \
        redis.call('RPUSH', KEYS[1], id); redis.call('ZADD', KEYS[2], 9e15, id) end";
    let server = Server::start();
    let [queue, places] = &queue_of("x");
    dead_stand_in_line(&server, "x", 1, (1, 1));
    let _: () = server.ask(&["EVAL", LIVING, "2", queue, places]);
    dead_stand_in_line(&server, "x", 2_000, (1, 1));
    dead_stand_in_line(&server, "short", 20, (1, NEVER));
    let answers = acquire_together(&server, &["x", "short"]);
    assert_eq!(answers[1], "nonce granted 1", "the other has its part of the steps");
    let left: usize = server.ask(&["LLEN", queue]);
    assert!((3_000..3_700).contains(&left), "{left}");
}

/// The caller hears only the error, and would never give the lock back.
#[tokio::test]
async fn a_lock_whose_place_cannot_be_removed_is_not_kept() {
    let (server, one, _two) = two_clients().await;
    let _: () = server.ask(&["SET", PLACES, "not a place"]);
    let refused = lock(&one).try_lock().await;
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    assert_eq!(server.pttl("x"), -2);
}

/// The places of 128 queues have ended. One call passes over 4,096 of them all.
#[test]
fn a_call_about_many_queues_passes_over_no_more() {
    let server = Server::start();
    let names: Vec<String> = (0..128).map(|n| format!("lock {n}")).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    names.iter().for_each(|name| dead_stand_in_line(&server, name, 100, (1, 1)));
    acquire_together(&server, &names);
    let left = |name: &&str| server.ask::<usize>(&["LLEN", &queue_of(name)[0]]);
    let left: usize = names.iter().map(left).sum();
    assert!((12_800 - 2 * 4_096..12_800).contains(&left), "{left}");
}

/// What a killed process leaves in the queue of a lock that nobody uses any more ends by itself.
#[tokio::test]
async fn a_queue_that_nobody_comes_back_to_ends_by_itself() {
    let (server, one, two) = two_clients().await;
    let guard = lock(&one).lock().await.expect("free");
    stands_in_line(&server, DEAD_JVM, Some(ms(300_000)));
    let waiting = waits(&two);
    until("it to stand in line", SOON, || in_line(&server) == 2).await;
    for key in [QUEUE, PLACES] {
        let left = server.pttl(key);
        assert!((3_600_000..200_000_000).contains(&left), "{key}: {left} ms left");
    }
    drop((guard, waiting));
}

/// By Redisson's names these two locks share one queue: a waiter for one of them must not keep the other for ever.
#[tokio::test]
async fn a_free_lock_is_acquired_although_its_queue_is_shared_with_another_name() {
    let (server, one, two) = two_clients().await;
    let held = one.fair_lock("{a}").lock().await.expect("free");
    let other = two.fair_lock("{a}");
    let waiting = tokio::spawn(async move { other.lock().await.expect("in turn") });
    let queue = "redisson_lock_queue:{a}";
    until("it to stand in line", SOON, || server.ask::<usize>(&["LLEN", queue]) == 1).await;
    let (free, took) = within("a free lock", GRACE + ms(2_000), one.fair_lock("a").lock()).await;
    assert!(took > GRACE - ms(200) && took < GRACE + ms(500), "{took}");
    free.expect("free").unlock().await.expect("ours");
    held.unlock().await.expect("ours");
    let next = within("its turn", ms(9_000), waiting).await.0;
    next.expect("no panic").unlock().await.expect("ours");
}

/// One client waits for both. Each waiter has a place and a channel of its own.
#[tokio::test]
async fn waiters_of_one_client_for_two_names_of_one_queue_have_two_places() {
    let (server, one, two) = two_clients().await;
    let held = [one.fair_lock("a").lock().await.expect("free"), one.fair_lock("{a}").lock().await.expect("free")];
    let waiting = ["a", "{a}"].map(|name| {
        let lock = two.fair_lock(name);
        tokio::spawn(async move { lock.lock().await.expect("in turn").unlock().await.expect("ours") })
    });
    let queue = || server.ask::<Vec<String>>(&["LRANGE", "redisson_lock_queue:{a}", "0", "-1"]);
    until("both to stand in line", SOON, || queue().len() == 2).await;
    assert_ne!(queue()[0], queue()[1]);
    for guard in held {
        guard.unlock().await.expect("ours");
    }
    for waiting in waiting {
        within("its turn", GRACE + ms(4_000), waiting).await.0.expect("no panic");
    }
}

/// The waiter for the other name asks just after its turn, before anybody has passed it over.
#[tokio::test]
async fn a_turn_that_is_over_is_not_renewed_by_a_waiter_for_another_name() {
    let (server, one, two) = two_clients().await;
    let held = one.fair_lock("{a}").lock().await.expect("free");
    let other = two.fair_lock("{a}");
    let waiting = tokio::spawn(async move { other.lock().await.expect("in turn") });
    until("it to be refused, also as a subscriber", SOON, || two.stats().total.refused == 2).await;
    let waiters = one.fair_lock("{a}").waiters().await.expect("answered");
    let [waiter] = &waiters[..] else { panic!("{waiters:?}") };
    let now: (u64, u64) = server.ask(&["TIME"]);
    let over = now.0 * 1_000 + now.1 / 1_000;
    let _: u32 = server.ask(&["ZADD", "redisson_lock_timeout:{a}", &over.to_string(), waiter]);
    let _: u32 = server.ask(&["PUBLISH", &format!("redisson_lock__channel:{{a}}:{waiter}"), "0"]);
    until("it to ask again", SOON, || two.stats().total.refused == 3).await;
    let (free, took) = within("a free lock", GRACE, one.fair_lock("a").lock()).await;
    assert!(took < ms(500), "{took}");
    free.expect("free").unlock().await.expect("ours");
    held.unlock().await.expect("ours");
    let next = within("its turn", SOON, waiting).await.0;
    next.expect("no panic").unlock().await.expect("ours");
}

/// One whose place is over, and one that never had any: neither costs anything.
#[tokio::test]
async fn a_head_without_a_place_is_passed_over() {
    let (server, one, two) = two_clients().await;
    for place in [None, Some(Duration::ZERO)] {
        let guard = lock(&one).lock().await.expect("free");
        stands_in_line(&server, DEAD, place);
        let waiting = waits(&two);
        until("it to stand in line", SOON, || in_line(&server) == 2).await;
        guard.unlock().await.expect("ours");
        let (next, took) = within("its turn", SOON, waiting).await;
        assert!(took < ms(500), "{took:?}");
        next.expect("no panic").unlock().await.expect("ours");
        clean(&server, &two).await;
    }
}

/// A waiter whose place somebody took away finds that out, and goes to the end.
#[tokio::test]
async fn one_that_lost_its_place_takes_another() {
    let (server, one, two) = two_clients().await;
    let guard = lock(&one).lock().await.expect("free");
    let waiting = waits(&two);
    until("it to stand in line", SOON, || in_line(&server) == 1).await;
    let _: u32 = server.ask(&["DEL", QUEUE, PLACES]);
    until("it to stand in line again", ms(6_000), || in_line(&server) == 1).await;
    guard.unlock().await.expect("ours");
    let (next, took) = within("its turn", SOON, waiting).await;
    assert!(took < ms(500), "{took:?}");
    next.expect("no panic").unlock().await.expect("ours");
    clean(&server, &two).await;
}

/// Puts waiters before all others, as a new master does that did not have the last writes.
fn brings_back(server: &Server, ids: &[String]) {
    for id in ids {
        stands_in_line(server, id, Some(ms(60_000)));
        let _: u32 = server.ask(&["LREM", QUEUE, "1", id]);
        let _: u32 = server.ask(&["LPUSH", QUEUE, id]);
    }
    for kind in ["normal", "pubsub"] {
        let _: u32 = server.ask(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }
}

/// The places of a client that has had the lock so often.
async fn turns_of(client: &Client, turns: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..turns {
        let guard = lock(client).lock().await.expect("free");
        ids.push(guard.id().to_owned());
        guard.unlock().await.expect("ours");
    }
    ids
}

#[tokio::test]
async fn waiters_that_a_failover_brings_back_cost_as_much_as_one_that_is_dead() {
    let (server, one, two) = two_clients().await;
    let past = turns_of(&one, 4).await;
    let held = lock(&one).lock().await.expect("free");
    let waiting = waits(&two);
    until("it to stand in line", SOON, || in_line(&server) == 1).await;
    brings_back(&server, &past);
    until("it to listen again", SOON, || server.channels().len() == 1).await;
    let called = Stopwatch::start();
    held.unlock().await.expect("ours to the end");
    let (next, _) = within("its turn", GRACE + ms(2_000), waiting).await;
    let took = called.elapsed();
    assert!(took > GRACE - ms(200) && took < GRACE + ms(500), "{took}");
    next.expect("no panic").unlock().await.expect("ours");
    clean(&server, &two).await;
}

/// A request of their own client is no sign that the others of this client have died, too.
#[tokio::test]
async fn each_waiter_that_a_failover_brings_back_delays_its_own_client() {
    let (server, one, two) = two_clients().await;
    brings_back(&server, &turns_of(&one, 2).await);
    assert!(lock(&one).try_lock().await.expect("answered").is_none(), "another is the next");
    let (guard, took) = within("its turn", GRACE * 2 + ms(2_000), lock(&one).lock()).await;
    assert!(took > GRACE * 2 - ms(200) && took < GRACE * 2 + ms(500), "{took}");
    guard.expect("free").unlock().await.expect("ours");
    clean(&server, &two).await;
}

/// The new master did not have the release of the last holder.
#[tokio::test]
async fn a_hold_that_a_failover_brings_back_is_released_by_its_client() {
    let (server, one, _two) = two_clients().await;
    let first = lock(&one).lock().await.expect("free");
    let id = first.id().to_owned();
    first.unlock().await.expect("ours");
    for tries_once in [false, true] {
        for words in [&["HSET", "x", &id, "1"][..], &["PEXPIRE", "x", "30000"]] {
            let _: u32 = server.ask(words);
        }
        let next = async {
            if tries_once {
                lock(&one).try_lock().await.expect("answered").expect("free")
            } else {
                waits(&one).await.expect("no panic")
            }
        };
        let (guard, took) = within("the lock", SOON, next).await;
        assert!(took < ms(1_000), "{took}");
        guard.unlock().await.expect("ours");
    }
    clean(&server, &one).await;
}

/// A head that leaves when the lock is free for it calls the one behind it.
#[tokio::test]
async fn a_head_that_leaves_calls_the_next() {
    let (server, one, two) = two_clients().await;
    stands_in_line(&server, DEAD, Some(ms(60_000)));
    let (head, next) = (waits(&one), {
        until("one to stand in line", SOON, || in_line(&server) == 2).await;
        waits(&two)
    });
    until("both to stand in line", SOON, || in_line(&server) == 3).await;
    // By hand, as the dead one would leave it behind: free, and nobody called.
    let _: u32 = server.ask(&["LREM", QUEUE, "1", DEAD]);
    let _: u32 = server.ask(&["ZREM", PLACES, DEAD]);
    head.abort();
    let (next, took) = within("its turn", SOON, next).await;
    assert!(took < ms(1_000), "{took:?}");
    next.expect("no panic").unlock().await.expect("ours");
    let _ = head.await;
    idle(&one).await;
    clean(&server, &two).await;
}

#[tokio::test]
async fn excludes_the_plain_lock() {
    let (server, one, _) = two_clients().await;
    let guard = lock(&one).lock().await.expect("free");
    assert!(one.mutex("x").try_lock().await.expect("answered").is_none());
    guard.unlock().await.expect("ours");
    let guard = one.mutex("x").lock().await.expect("free");
    assert!(lock(&one).try_lock().await.expect("answered").is_none());
    guard.unlock().await.expect("ours");
    clean(&server, &one).await;
}

/// Its head is notified, which writes its place anew. That place is the only one.
#[tokio::test]
async fn a_queue_whose_head_is_called_and_does_not_come_ends_by_itself() {
    let (server, one, two) = two_clients().await;
    let guard = lock(&one).lock().await.expect("free");
    let waiting = waits(&two);
    until("it to stand in line", SOON, || in_line(&server) == 1).await;
    waiting.abort();
    until("it to leave", SOON, || in_line(&server) == 0 && two.stats().now.releasing == 0).await;
    stands_in_line(&server, DEAD, Some(ms(30_000)));
    for key in [QUEUE, PLACES] {
        let _: u32 = server.ask(&["PEXPIRE", key, "60000"]);
    }
    guard.unlock().await.expect("ours");
    for key in [QUEUE, PLACES] {
        let left = server.pttl(key);
        assert!((1..=60_000).contains(&left), "{key}: {left} ms left");
    }
}
