//! A read-write lock that is released before its `min_hold` is over, by readers beside others and by writers that also read.

use std::time::Duration;

use leasehold::{Client, Owner, ReadGuard, RwLock, RwState};
use redis::ConnectionLike;
use tokio::task::JoinHandle;

use crate::{
    kinds::family::{Way as Kind, clean, idle},
    kinds::family_faults,
    support::{
        Server, Stopwatch, before, behind, client, ms, plain,
        proxy::{Fault, Mode, Rule, Way, Which},
        stall::Took,
        until, within,
    },
};

const SOON: Duration = ms(3_000);
const CHANNEL: &str = "redisson_rwlock:{x}";
const LEAST: Duration = ms(1_500);
/// Later than this nobody should be let in.
const LATEST: Duration = ms(2_500);

/// For another owner each time.
fn lock(client: &Client) -> RwLock {
    client.rw_lock("x").owner(&Owner::new())
}

fn fields(server: &Server) -> Vec<String> {
    server.ask(&["HKEYS", "x"])
}

fn mode(server: &Server) -> String {
    server.ask::<Option<String>>(&["HGET", "x", "mode"]).unwrap_or_default()
}

/// When a task of this client comes to read.
fn reads(client: &Client) -> JoinHandle<Stopwatch> {
    let lock = lock(client);
    tokio::spawn(async move {
        let guard = lock.read().await.expect("in the end");
        let came = Stopwatch::start();
        guard.unlock().await.expect("ours");
        came
    })
}

/// When a task of this client comes to write.
fn writes(client: &Client) -> JoinHandle<Stopwatch> {
    let lock = lock(client);
    tokio::spawn(async move {
        let guard = lock.write().await.expect("in the end");
        let came = Stopwatch::start();
        guard.unlock().await.expect("ours");
        came
    })
}

async fn came(waiting: JoinHandle<Stopwatch>, since: &Stopwatch) -> Took {
    within("its turn", SOON, waiting).await.0.expect("no panic").since(since)
}

/// The ids of the readers that the server knows of.
async fn readers(client: &Client) -> Vec<String> {
    match lock(client).inspect().await.expect("answered") {
        RwState::Read(readers) => readers.into_iter().map(|reader| reader.id).collect(),
        state => panic!("{state:?}"),
    }
}

/// The reply to a script of one hold that comes when the hold has been released.
fn late(server: &Server, script: &str, second_key: &str, words: &[&str]) -> String {
    server.ask(&[&["EVALSHA", script, "2", "x", second_key, "1", "nonce"], words].concat())
}

/// It rests, for no longer than its `min_hold`, and can be forced open.
async fn rests_and_can_be_forced_open(server: &Server, other: &Client) {
    assert!((1..=1_000).contains(&server.pttl("x")), "{}", server.pttl("x"));
    assert!(lock(other).force_unlock().await.expect("answered"));
    lock(other).try_write().await.expect("answered").expect("free").unlock().await.expect("ours");
}

/// Whatever of the hold comes late does not find it: a renewal, a second release, and for the writer an acquisition.
#[tokio::test]
async fn what_rests_of_a_write_lock_cannot_be_renewed() {
    let server = Server::start();
    let [renew, release, acquire] =
        ["renew", "release", "acquire"].map(|name| family_faults::sha(&server, Kind::Write, name));
    let (one, other) = (plain(&server).await, plain(&server).await);
    let guard = lock(&one).min_hold(ms(1_000)).write().await.expect("free");
    let id = guard.id().to_owned();
    guard.unlock().await.expect("ours to the end");
    let late = |script: &str, lease: &str, count: &str, more: &str| {
        late(&server, script, "leasehold_rwlock_waits:{x}", &[&id, lease, count, more, CHANNEL])
    };
    assert_eq!(late(&renew, "30000", "0", ""), "nonce gone");
    assert!(late(&release, "60000", "0", "PUBLISH").starts_with("nonce released"), "as the first time");
    assert!(late(&acquire, "30000", "1", "first").starts_with("nonce busy"), "nobody has it again");
    match lock(&other).inspect().await.expect("answered") {
        RwState::Write { writer, readers } if readers.is_empty() => assert_eq!(writer.id, format!("{id}:rest")),
        state => panic!("{state:?}"),
    }
    assert!(lock(&other).is_locked().await.expect("answered"));
    assert!(lock(&other).try_read().await.expect("answered").is_none());
    rests_and_can_be_forced_open(&server, &other).await;
    idle(&one).await;
    clean(&server, &other).await;
}

#[tokio::test]
async fn what_rests_of_a_read_lock_cannot_be_renewed() {
    let server = Server::start();
    let [renew, release] = ["renew", "release"].map(|name| family_faults::sha(&server, Kind::Read, name));
    let (one, other) = (plain(&server).await, plain(&server).await);
    let guard = lock(&one).min_hold(ms(1_000)).read().await.expect("free");
    let id = guard.id().to_owned();
    guard.unlock().await.expect("ours to the end");
    let lives = format!("{{x}}:{id}:rwlock_timeout:1");
    let late = |script: &str, lease: &str, count: &str, more: &str| {
        late(&server, script, &lives, &[&id, lease, count, more, CHANNEL, "60000"])
    };
    assert_eq!(late(&renew, "30000", "0", ""), "nonce gone");
    assert!(late(&release, "60000", "0", "PUBLISH").starts_with("nonce released"), "as the first time");
    assert_eq!(readers(&other).await, [format!("{id}:rest")]);
    assert!(lock(&other).try_write().await.expect("answered").is_none());
    rests_and_can_be_forced_open(&server, &other).await;
    idle(&one).await;
    clean(&server, &other).await;
}

/// Readers enter beside what rests, here and elsewhere, and their releases neither shorten nor lengthen it.
#[tokio::test]
async fn readers_enter_beside_a_read_lock_that_rests() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let granted = Stopwatch::start();
    let rests = lock(&one).min_hold(LEAST).read().await.expect("free");
    let before = lock(&other).read().await.expect("beside it");
    rests.unlock().await.expect("ours to the end");
    let beside = [lock(&one).read().await, lock(&other).read().await];
    for guard in beside {
        guard.expect("beside it").unlock().await.expect("ours to the end");
    }
    before.unlock().await.expect("ours to the end");
    assert!((1..=1_500).contains(&server.pttl("x")), "{}", server.pttl("x"));
    assert!(came(reads(&other), &granted).await < LEAST);
    let wrote = came(writes(&other), &granted).await;
    assert!(wrote >= LEAST && wrote < LATEST, "{wrote:?}");
    idle(&one).await;
    clean(&server, &other).await;
}

/// One that is still read when the rest is over does not end with it, and leaves nothing of it.
#[tokio::test]
async fn a_reader_outlasts_the_rest_of_another() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let rests = lock(&one).min_hold(ms(300)).read().await.expect("free");
    let reads = lock(&other).read().await.expect("beside it");
    rests.unlock().await.expect("ours to the end");
    until("the end of the rest", SOON, || server.ask::<Vec<String>>(&["KEYS", "{x}*:rest:*"]).is_empty()).await;
    assert_eq!(readers(&one).await, [reads.id()]);
    assert!(lock(&one).try_write().await.expect("answered").is_none());
    reads.unlock().await.expect("ours to the end");
    assert!(!server.exists("x"));
    idle(&one).await;
    clean(&server, &other).await;
}

/// It does not end with others, so it shares no hold with them.
#[tokio::test]
async fn a_reader_with_a_min_hold_shares_with_nobody() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let first = lock(&one).min_hold(LEAST).read().await.expect("free");
    let next = lock(&one).read().await.expect("beside it");
    let last = lock(&one).min_hold(LEAST).read().await.expect("beside them");
    assert!(first.id() != next.id() && next.id() != last.id() && first.id() != last.id());
    let rest = [first.id(), last.id()].map(|id| format!("{id}:rest"));
    for guard in [first, next, last] {
        guard.unlock().await.expect("ours to the end");
    }
    assert_eq!(readers(&other).await, rest);
    until("their end", SOON, || !server.exists("x")).await;
    idle(&one).await;
    clean(&server, &other).await;
}

/// Two readers that share, and the owner of the first.
async fn two(client: &Client) -> (ReadGuard, ReadGuard, Owner) {
    loop {
        let owner = Owner::new();
        let first = client.rw_lock("x").owner(&owner).read().await.expect("free");
        let second = lock(client).read().await.expect("free");
        if first.id() == second.id() {
            return (first, second, owner);
        }
    }
}

/// The one that leaves last releases for all, with what the others were promised.
#[tokio::test]
async fn a_nested_min_hold_outlasts_the_readers_that_share_the_hold() {
    for (watchdog, dies) in [(ms(30_000), false), (ms(600), false), (ms(600), true)] {
        let server = Server::start();
        let proxy = before(&server);
        let (one, other) = (behind(&proxy, |builder| builder.watchdog(watchdog)).await, plain(&server).await);
        let (first, second, owner) = two(&one).await;
        let granted = Stopwatch::start();
        let nested = one.rw_lock("x").owner(&owner).min_hold(LEAST).read().await.expect("nested");
        nested.unlock().await.expect("ours");
        first.unlock().await.expect("ours to the end");
        if dies {
            proxy.set(Mode::Swallow);
        } else {
            second.check().await.expect("still ours");
            second.unlock().await.expect("ours to the end");
            assert!((1..=1_500).contains(&server.pttl("x")), "{}", server.pttl("x"));
        }
        let wrote = came(writes(&other), &granted).await;
        assert!(wrote >= LEAST && wrote < LATEST, "{wrote:?}, {watchdog:?}, {dies}");
    }
}

/// Writes with a `min_hold` and reads on without one: others read as soon as the former is over, however long the latter takes.
#[tokio::test]
async fn after_a_downgrade_each_side_rests_by_itself() {
    let server = Server::start();
    let (one, other) = (client(&server, |builder| builder.watchdog(ms(2_000))).await, plain(&server).await);
    let owner = Owner::new();
    let granted = Stopwatch::start();
    let writing = one.rw_lock("x").owner(&owner).min_hold(LEAST).write().await.expect("free");
    let reading = one.rw_lock("x").owner(&owner).read().await.expect("its own");
    writing.unlock().await.expect("ours to the end");
    assert!(lock(&one).try_read().await.expect("answered").is_none(), "the write lock rests");
    let read = came(reads(&other), &granted).await;
    assert!(read >= LEAST && read < LATEST, "{read:?}");
    assert_eq!(readers(&one).await, [reading.id()]);
    reading.check().await.expect("still ours");
    let writes = writes(&other);
    until("it to wait", SOON, || other.stats().now.waiting == 1).await;
    reading.unlock().await.expect("ours to the end");
    within("its turn", SOON, writes).await.0.expect("no panic");
    idle(&one).await;
    clean(&server, &other).await;
}

/// JVMs look at the mode, so it changes even if no leasehold client asks for the lock.
#[tokio::test]
async fn a_renewal_lets_redissons_readers_in_when_the_rest_is_over() {
    let server = Server::start();
    let one = client(&server, |builder| builder.watchdog(ms(900))).await;
    let owner = Owner::new();
    let writing = one.rw_lock("x").owner(&owner).min_hold(ms(400)).write().await.expect("free");
    let reading = one.rw_lock("x").owner(&owner).read().await.expect("its own");
    writing.unlock().await.expect("ours to the end");
    assert_eq!(mode(&server), "write");
    until("the end of the rest", SOON, || server.ask::<Vec<String>>(&["KEYS", "{x}*:rest:*"]).is_empty()).await;
    until("a renewal", SOON, || mode(&server) == "read").await;
    assert_eq!(fields(&server), ["mode", reading.id()]);
    reading.unlock().await.expect("ours to the end");
    clean(&server, &one).await;
}

/// The lock lasts as long as the write lock rests, and no longer, however long the leases of the readers were.
#[tokio::test]
async fn a_reader_that_leaves_first_leaves_the_rest_of_the_write_lock() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    for write_first in [true, false] {
        let owner = Owner::new();
        let granted = Stopwatch::start();
        let writing = one.rw_lock("x").owner(&owner).min_hold(LEAST).write().await.expect("free");
        let reading = one.rw_lock("x").owner(&owner).read().await.expect("its own");
        if write_first {
            writing.unlock().await.expect("ours to the end");
            reading.unlock().await.expect("ours to the end");
        } else {
            reading.unlock().await.expect("ours to the end");
            writing.unlock().await.expect("ours to the end");
        }
        assert_eq!(mode(&server), "write");
        assert!((1..=1_500).contains(&server.pttl("x")), "{}", server.pttl("x"));
        for waiting in [reads(&other), writes(&other)] {
            let came = came(waiting, &granted).await;
            assert!(came >= LEAST && came < LATEST, "{came:?}, {write_first}");
        }
        idle(&one).await;
        clean(&server, &other).await;
    }
}

/// The settings of the handle are those of both sides: others read when the time of the write lock is over, and write when that of the
/// read lock is.
#[tokio::test]
async fn a_downgraded_lock_has_a_min_hold_on_both_sides() {
    const LATER: Duration = ms(700);
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let wrote = Stopwatch::start();
    let writing = lock(&one).min_hold(LEAST).write().await.expect("free");
    tokio::time::sleep(LATER).await; // so that the two times differ
    let read = Stopwatch::start();
    let reading = writing.downgrade().await.expect("ours");
    reading.unlock().await.expect("ours to the end");
    // The writer comes later, because readers let a writer that waits go first.
    let (reads, writes) = (came(reads(&other), &wrote).await, came(writes(&other), &read).await);
    assert!(reads >= LEAST && reads < LEAST + LATER, "{reads:?}");
    assert!(writes >= LEAST && writes < LATEST, "{writes:?}");
    idle(&one).await;
    clean(&server, &other).await;
}

/// A read lock that rests below a write lock keeps out writers when that is released, and lets readers in.
#[tokio::test]
async fn a_read_lock_rests_below_a_write_lock() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let owner = Owner::new();
    let writing = one.rw_lock("x").owner(&owner).write().await.expect("free");
    let granted = Stopwatch::start();
    let reading = one.rw_lock("x").owner(&owner).min_hold(LEAST).read().await.expect("its own");
    reading.unlock().await.expect("ours to the end");
    writing.check().await.expect("still ours");
    assert!(lock(&other).try_read().await.expect("answered").is_none());
    writing.unlock().await.expect("ours to the end");
    let (reads, writes) = (came(reads(&other), &granted).await, came(writes(&other), &granted).await);
    assert!(reads < LEAST, "{reads:?}");
    assert!(writes >= LEAST && writes < LATEST, "{writes:?}");
    idle(&one).await;
    clean(&server, &other).await;
}

#[tokio::test]
async fn what_rests_on_both_sides_can_be_forced_open() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let writing = lock(&one).min_hold(LEAST).write().await.expect("free");
    let ids = [writing.id().to_owned(), writing.downgrade().await.expect("ours").id().to_owned()];
    until("its release", SOON, || fields(&server).len() == 3 && one.stats().now.releasing == 0).await;
    match lock(&other).inspect().await.expect("answered") {
        RwState::Write { writer, readers } => {
            assert_eq!([writer.id, readers[0].id.clone()], ids.map(|id| format!("{id}:rest")));
        }
        state => panic!("{state:?}"),
    }
    assert!(lock(&other).force_unlock().await.expect("answered"));
    lock(&other).try_write().await.expect("answered").expect("free").unlock().await.expect("ours");
    idle(&one).await;
    clean(&server, &other).await;
}

/// The server's clock, in ms.
fn clock(server: &Server) -> u64 {
    let (seconds, micros): (u64, u64) = server.ask(&["TIME"]);
    seconds * 1_000 + micros / 1_000
}

/// In its last millisecond the time left is 0, and the key is still there. Thousands of readers leave around that moment, each below a
/// write lock of its own: some of them leave in that millisecond.
#[tokio::test]
async fn a_reader_that_leaves_in_the_last_millisecond_of_a_rest_does_not_make_it_longer() {
    const WRITER: &str = "aaaaaaaa-aaaa-8aaa-8aaa-aaaaaaaaaaaa:1:write:rest";
    const READER: &str = "aaaaaaaa-aaaa-8aaa-8aaa-aaaaaaaaaaaa:2";
    const LOCKS: usize = 1_500;
    let server = Server::start();
    let release = family_faults::sha(&server, Kind::Read, "release");
    let lives = |n, id| format!("{{x{n}}}:{id}:rwlock_timeout:1");
    let end = clock(&server) + 1_500;
    let (mut locks, mut releases) = (redis::pipe(), redis::pipe());
    for n in 0..LOCKS {
        let lock = format!("x{n}");
        locks.cmd("HSET").arg(&lock).arg(&["mode", "write", WRITER, "1", READER, "1"]);
        locks.cmd("PEXPIRE").arg(&lock).arg(30_000);
        locks.cmd("SET").arg(lives(n, READER)).arg("1").arg("PX").arg(30_000);
        locks.cmd("SET").arg(lives(n, WRITER)).arg("1").arg("PX").arg(30_000);
        locks.cmd("PEXPIREAT").arg(lives(n, WRITER)).arg(end);
        let channel = format!("redisson_rwlock:{{{lock}}}");
        releases.cmd("EVALSHA").arg(&release).arg(2).arg(&lock).arg(lives(n, READER));
        releases.arg(&["1", "nonce", READER, "0", "0", "PUBLISH", &channel]);
    }
    let mut raw = server.raw();
    let _: redis::Value = locks.query(&mut raw).expect("no errors");
    let releases = releases.get_packed_pipeline(); // now, because this takes longer than the releases
    until("the rests to be nearly over", SOON, || clock(&server) + 10 >= end).await;
    raw.req_packed_commands(&releases, 0, LOCKS).expect("no errors");
    let longest = (0..LOCKS).map(|n| server.pttl(&format!("x{n}"))).max().expect("many");
    assert!(longest < 1_000, "{longest} ms");
}

/// Between its two requests a reader leaves, or comes and leaves. What rests of it lasts for its `min_hold` at most, not for the lease of
/// the writer.
#[tokio::test]
async fn what_begins_to_rest_while_the_lock_is_forced_open_lasts_no_longer() {
    let server = Server::start();
    let proxy = before(&server);
    let (one, other) = (plain(&server).await, behind(&proxy, |builder| builder).await);
    let warm = lock(&one).write().await.expect("free");
    assert!(lock(&other).force_unlock().await.expect("answered"), "its scripts are loaded now");
    drop(warm);
    for is_named in [true, false] {
        let owner = Owner::new();
        let writing = one.rw_lock("x").owner(&owner).write().await.expect("free");
        let reads = one.rw_lock("x").owner(&owner).min_hold(LEAST);
        let mut reading = if is_named { Some(reads.read().await.expect("its own")) } else { None };
        let calls = server.calls("evalsha");
        proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Delay(Way::There, ms(500))).after(1));
        let forced = lock(&other);
        let forced = tokio::spawn(async move { forced.force_unlock().await });
        until("the first request to run", SOON, || server.calls("evalsha") > calls).await;
        if reading.is_none() {
            reading = Some(reads.read().await.expect("its own"));
        }
        reading.expect("read before or since").unlock().await.expect("ours to the end");
        assert!(forced.await.expect("no panic").expect("answered"));
        assert!(server.pttl("x") <= if is_named { -2 } else { 1_500 }, "{}", server.pttl("x"));
        drop(writing);
        within("the next writer", SOON, lock(&other).write()).await.0.expect("free").unlock().await.expect("ours");
    }
}

/// A writer that rested was removed, and the user was not permitted to change the mode. Only readers are left.
#[tokio::test]
async fn readers_beside_the_mode_of_a_removed_writer_keep_no_reader_out() {
    let server = Server::start();
    let client = plain(&server).await;
    let reader = |n| format!("00000000-0000-8000-8000-000000000000:{n}");
    let _: u32 = server.ask(&["HSET", "x", "mode", "write", &reader(1), "1", &reader(2), "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "x", "60000"]);
    let read = client.rw_lock("x").try_read().await.expect("a reply");
    read.expect("no writer has it").unlock().await.expect("held");
}
