//! A server that refuses for now: out of memory, no room for connections, unable to save, read-only. What it refuses is
//! asked again, not too often, and nothing stays locked that was given back.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::{Builder, Client, Error, Guard, Owner};
use redis::{Connection, FromRedisValue};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::support::{
    Server, before, behind, chain, client, ms, plain,
    proxy::{Fault, Proxy, Rule, Which},
    script,
    server::version,
    stall::{LAST_ATTEMPT, unless_stalled},
    until, with_rights, within,
};

/// A lease that nobody waits for.
const AN_HOUR: Duration = Duration::from_secs(3_600);
/// The longest pause between two tries, and what a busy machine adds.
const AGAIN: Duration = ms(6_000);

/// One command on a connection that is there already.
fn say<T: FromRedisValue>(raw: &mut Connection, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    command.query(raw).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn set(server: &Server, setting: &str, value: &str) {
    let _: String = server.ask(&["CONFIG", "SET", setting, value]);
}

/// The server has been asked several times since then.
async fn tried_again(client: &Client, before: u64) {
    until("it to be tried again", ms(3_000), || client.stats().total.requests >= before + 3).await;
}

/// One of this client waits for `x`, and has nothing to ask for now.
async fn waiter(client: &Client) -> JoinHandle<leasehold::Result<Guard>> {
    let lock = client.lock("x").owner(&Owner::new());
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(2_000), || client.stats().now.waiting == 1).await;
    waiting
}

/// Only this client has it, with a release that the server refuses: that is no other holder.
#[tokio::test]
async fn a_lock_of_which_the_own_release_is_refused_is_not_said_to_be_held_by_another() {
    unless_stalled(LAST_ATTEMPT, own_release_is_refused).await;
}

async fn own_release_is_refused() {
    let server = Server::start();
    let client = client(&server, |builder| builder.command_timeout(ms(300))).await;
    let lock = client.mutex("x");
    let guard = lock.lock().await.expect("free");
    let _: String = server.ask(&["ACL", "SETUSER", "default", "-del"]);
    drop(guard);
    let (at_once, later) = (Duration::ZERO, ms(400));
    for taken in [lock.try_lock_for(at_once).await, lock.try_lock_for(later).await, lock.try_lock().await] {
        is_unclear(&taken.expect_err("nobody knows"));
    }
    let _: String = server.ask(&["ACL", "SETUSER", "default", "+del"]);
    until("the lock to be free", AGAIN, || !server.exists("x")).await;
    lock.try_lock().await.expect("answered").expect("free").unlock().await.expect("ours");
}

fn is_unclear(error: &Error) {
    assert!(error.is_unavailable() && chain(error).contains("earlier release by this client"), "{}", chain(error));
}

/// The same for the other kinds, also where a call does not wait for such releases first.
#[tokio::test]
async fn nor_is_one_of_another_kind() {
    unless_stalled(LAST_ATTEMPT, own_release_of_another_kind_is_refused).await;
}

async fn own_release_of_another_kind_is_refused() {
    let server = Server::start();
    let client = client(&server, |builder| builder).await;
    let (fenced, fair) = (client.fenced_lock("fenced").non_reentrant(), client.fair_lock("fair").non_reentrant());
    let rw = client.rw_lock("rw").non_reentrant();
    let held = (fenced.lock().await.expect("free"), fair.lock().await.expect("free"), rw.write().await.expect("free"));
    let _: String = server.ask(&["ACL", "SETUSER", "default", "-del"]);
    drop(held);
    let later = ms(400);
    is_unclear(&fenced.try_lock_for(later).await.expect_err("nobody knows"));
    is_unclear(&fair.try_lock_for(later).await.expect_err("nobody knows"));
    is_unclear(&rw.try_write_for(later).await.expect_err("nobody knows"));
    is_unclear(&rw.try_read_for(later).await.expect_err("nobody knows"));
}

/// While this client tries to release what it no longer has, the server names another holder.
#[tokio::test]
async fn a_lock_of_another_is_taken_although_an_own_release_was_refused() {
    let server = Server::start();
    server.set_user("u", &["on", ">p", "~*", "&*", "+@all"]);
    let url = server.url_as("u", "p");
    let own = Client::builder().announce(false).url(url).command_timeout(ms(800)).connect().await.expect("let in");
    let other = plain(&server).await;
    for round in 0..3 {
        let guard = own.mutex("x").lock().await.expect("free");
        server.set_user("u", &["-del"]);
        drop(guard);
        sleep(ms(1_000 + 250 * round)).await; // the pause between two attempts is now longer than a call waits for them
        let _: u32 = server.ask(&["DEL", "x"]);
        let theirs = other.mutex("x").lock().await.expect("free");
        assert!(own.mutex("x").try_lock().await.expect("the server names the holder").is_none());
        theirs.unlock().await.expect("ours");
        server.set_user("u", &["+del"]);
        until("nothing to be on its way back", AGAIN, || own.stats().now.releasing == 0).await;
    }
}

/// At `maxmemory`, with a guard that would go to the next in line of its own client.
async fn no_memory() -> (Server, Client, Guard, JoinHandle<leasehold::Result<Guard>>) {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lease(AN_HOUR).lock().await.expect("free");
    let waiting = waiter(&client).await;
    set(&server, "maxmemory", "1");
    (server, client, guard, waiting)
}

#[tokio::test]
async fn out_of_memory_a_lock_is_handed_over() {
    let (server, _client, guard, waiting) = no_memory().await;
    let (given_back, _) = within("the release", ms(2_000), guard.unlock()).await;
    given_back.expect("one field for another needs no memory");
    let next = within("the next to have it", ms(2_000), waiting).await.0.expect("no panic").expect("handed over");
    assert_eq!(server.lock("x"), [(next.id().to_owned(), 1)]);
}

/// With two fields it would be no lock.
#[tokio::test]
async fn a_lock_that_may_not_be_handed_over_nor_released_keeps_its_field() {
    let server = Server::start();
    let client = with_rights(&server, &["~*", "&*", "+@all", "-hdel", "-del"]).await;
    let guard = client.lock("x").lease(AN_HOUR).lock().await.expect("free");
    let (id, _waiting) = (guard.id().to_owned(), waiter(&client).await);
    let refused = guard.unlock().await.expect_err("not permitted");
    assert!(matches!(refused, Error::Denied { .. }), "{refused:?}");
    assert_eq!(server.lock("x"), [(id, 1)]);
}

#[tokio::test]
async fn out_of_memory_a_dropped_guard_frees_it_and_the_next_has_it_when_there_is_room() {
    let (server, client, guard, waiting) = no_memory().await;
    let id = guard.id().to_owned();
    drop(guard);
    let is_free = || !server.lock("x").iter().any(|(holder, _)| *holder == id);
    until("it to be free", ms(2_000), is_free).await;
    until("nothing to be on its way back", ms(2_000), || client.stats().now.releasing == 0).await;
    set(&server, "maxmemory", "0");
    let next = within("the next to have it", AGAIN, waiting).await.0.expect("no panic").expect("there is room");
    assert_eq!(server.lock("x"), [(next.id().to_owned(), 1)]);
}

#[tokio::test]
async fn out_of_memory_an_inner_level_is_given_back_later() {
    let server = Server::start();
    let client = plain(&server).await;
    let outer = client.lock("x").lock().await.expect("free");
    let inner = client.lock("x").lock().await.expect("re-entered");
    set(&server, "maxmemory", "1");
    let before = client.stats().total.requests;
    drop(inner);
    tried_again(&client, before).await;
    assert_eq!(server.lock("x")[0].1, 2, "counting down needs memory too");
    set(&server, "maxmemory", "0");
    until("the level to be given back", AGAIN, || server.lock("x")[0].1 == 1).await;
    outer.unlock().await.expect("ours to the end");
    assert!(!server.exists("x"));
}

/// A server that has room for one connection, which is ours, after all others were cut off.
struct Full {
    _server: Server,
    raw: Connection,
    _proxy: Proxy,
    client: Client,
    guard: Option<Guard>,
}

impl Full {
    async fn set() -> Full {
        let server = Server::start();
        let (mut raw, proxy) = (server.raw(), before(&server));
        let settings = |builder: Builder| builder.command_timeout(ms(200)).outage_timeout(ms(20_000));
        let client = behind(&proxy, settings).await;
        let guard = client.lock("x").lease(AN_HOUR).lock().await.expect("free");
        let _: String = say(&mut raw, &["CONFIG", "SET", "maxclients", "1"]);
        proxy.cut_all();
        Full { _server: server, raw, _proxy: proxy, client, guard: Some(guard) }
    }

    /// Until calls have found, several times over, that nobody is let in.
    async fn for_a_while(&self) {
        let lock = self.client.lock("somebody else's").owner(&Owner::new());
        let mut failed = 0;
        while failed < 4 {
            failed += u32::from(lock.try_lock().await.is_err()); // the first may still be on its way
        }
    }

    fn is_free(&mut self) -> bool {
        !say::<bool>(&mut self.raw, &["EXISTS", "x"])
    }

    fn make_room(&mut self) {
        let _: String = say(&mut self.raw, &["CONFIG", "SET", "maxclients", "1000"]);
    }
}

#[tokio::test]
async fn with_no_room_for_a_connection_calls_ride_it_out() {
    let mut full = Full::set().await;
    let (free, held) = (full.client.lock("free"), full.client.lock("x"));
    let calls = tokio::spawn(async move { tokio::join!(free.lock(), held.inspect()) });
    full.for_a_while().await;
    full.make_room();
    let (ended, _) = within("the calls to be answered", AGAIN, calls).await;
    let (taken, seen) = ended.expect("no panic");
    taken.expect("ridden out").unlock().await.expect("ours");
    assert_eq!(seen.expect("ridden out").expect("held").id, full.guard.as_ref().expect("still there").id());
}

#[tokio::test]
async fn with_no_room_for_a_connection_an_unlock_rides_it_out() {
    let mut full = Full::set().await;
    let unlocking = tokio::spawn(full.guard.take().expect("not given back yet").unlock());
    full.for_a_while().await;
    full.make_room();
    let (ended, _) = within("the release", AGAIN, unlocking).await;
    ended.expect("no panic").expect("ridden out");
    assert!(full.is_free());
}

#[tokio::test]
async fn with_no_room_for_a_connection_dropped_guards_are_given_back_later() {
    let mut full = Full::set().await;
    drop(full.guard.take());
    full.for_a_while().await;
    assert!(!full.is_free(), "there was no connection");
    full.make_room();
    until("it to be given back", AGAIN, || full.is_free()).await;
}

/// A server whose last snapshot failed, and which takes no writes until that is mended.
struct CannotSave {
    server: Server,
    client: Client,
}

impl CannotSave {
    async fn set() -> CannotSave {
        let server = Server::start();
        let client = plain(&server).await;
        CannotSave { server, client }
    }

    /// From here on writes are refused.
    async fn fails(&self) {
        let [_, folder]: [String; 2] = self.server.ask(&["CONFIG", "GET", "dir"]);
        // A folder where the file should be: nobody can replace it by one, not even root.
        fs::create_dir_all(Path::new(&folder).join("dump.rdb/in the way")).expect("our own folder");
        set(&self.server, "save", "3600 1000000");
        let _: String = self.server.ask(&["BGSAVE"]);
        let failed = || self.server.ask::<String>(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err");
        until("the snapshot to fail", ms(5_000), failed).await;
    }

    fn mend(&self) {
        set(&self.server, "stop-writes-on-bgsave-error", "no");
    }
}

#[tokio::test]
async fn unable_to_save_a_dropped_guard_is_given_back_later() {
    let scene = CannotSave::set().await;
    let guard = scene.client.lock("x").lease(AN_HOUR).lock().await.expect("free");
    scene.fails().await;
    let before = scene.client.stats().total.requests;
    drop(guard);
    tried_again(&scene.client, before).await;
    assert!(scene.server.exists("x"), "no writes, so no release");
    scene.mend();
    until("it to be given back", AGAIN, || !scene.server.exists("x")).await;
    until("nothing to be on its way back", ms(1_000), || scene.client.stats().now.releasing == 0).await;
}

#[tokio::test]
async fn unable_to_save_an_unlock_rides_it_out() {
    let scene = CannotSave::set().await;
    let guard = scene.client.lock("x").lease(AN_HOUR).lock().await.expect("free");
    scene.fails().await;
    let before = scene.client.stats().total.requests;
    let unlocking = tokio::spawn(guard.unlock());
    tried_again(&scene.client, before).await;
    scene.mend();
    let (ended, _) = within("the release", AGAIN, unlocking).await;
    ended.expect("no panic").expect("ridden out");
    assert!(!scene.server.exists("x"));
}

/// So many tasks, each with a name of its own.
const CROWD: usize = 500;
/// What they may send in a second: six tries each, which is plenty.
const AT_MOST: u64 = 3_000;

/// Read-only from here on, as after a failover that left a client behind: its master does not answer.
fn read_only(server: &Server) {
    let _: String = server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
}

fn writable(server: &Server) {
    let _: String = server.ask(&["REPLICAOF", "NO", "ONE"]);
}

/// Requests in a second, once the first of it is over.
async fn in_a_second(client: &Client) -> u64 {
    sleep(ms(1_000)).await;
    let before = client.stats().total.requests;
    sleep(ms(1_000)).await;
    client.stats().total.requests - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_not_stormed_by_those_who_ask() {
    let server = Server::start();
    let client = client(&server, |builder| builder).await;
    read_only(&server);
    let mut waiting = JoinSet::new();
    for n in 0..CROWD {
        let lock = client.lock(&format!("lock-{n}"));
        waiting.spawn(async move { lock.lock().await });
    }
    let (calls, asked, sent) = (server.calls("evalsha"), server.calls("role"), in_a_second(&client).await);
    let (calls, asked) = (server.calls("evalsha") - calls, server.calls("role") - asked);
    assert!(sent <= AT_MOST, "{sent} requests in a second from {CROWD} who wait ({calls} calls in two)");
    assert!(calls <= AT_MOST, "{calls} calls in two seconds");
    assert!(asked > 0, "it is asked whether it is the master again");
    writable(&server);
    let all = async {
        while let Some(taken) = waiting.join_next().await {
            taken.expect("no panic").expect("ridden out").unlock().await.expect("ours");
        }
    };
    within("all to have their turn", AGAIN, all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_not_stormed_by_what_is_given_back() {
    let server = Server::start();
    let client = client(&server, |builder| builder).await;
    let mut guards = Vec::new();
    for n in 0..CROWD {
        guards.push(client.lock(&format!("lock-{n}")).lease(AN_HOUR).lock().await.expect("free"));
    }
    read_only(&server);
    drop(guards);
    let sent = in_a_second(&client).await;
    assert!(sent <= AT_MOST, "{sent} requests in a second for {CROWD} releases");
    writable(&server);
    until("all to be given back", AGAIN, || server.ask::<u32>(&["DBSIZE"]) == 0).await;
}

/// Releases that the server refuses (no right to publish on those channels) do not stop those that it would take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_that_are_refused_keep_no_others_waiting() {
    if version() < (6, 2) {
        return; // it knows no rights to channels
    }
    const REFUSED: usize = 4_096;
    let server = Server::start();
    let client = with_rights(&server, &["+@all", "~*", "resetchannels", "&redisson_lock__channel:{ok}"]).await;
    let ok = client.mutex("ok").lock().await.expect("free");
    let mut guards = Vec::new();
    for n in 0..REFUSED {
        guards.push(client.mutex(&format!("no-{n}")).lease(AN_HOUR).lock().await.expect("free"));
    }
    drop(guards);
    sleep(ms(1_000)).await;
    drop(ok);
    until("the lock that may be given back to be", ms(8_000), || !server.exists("ok")).await;
}

/// What Redis 6.0 and 6.2 make of READONLY inside a script (`luaPushError` puts source and line in front).
fn words_of_redis_6(reply: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(reply).ok()?;
    let at = text.find("READONLY ")?;
    let head = text[..at].trim_end_matches(|c: char| c != '$'); // the length of the words stands there
    let words = "@user_script: 31: -READONLY You can't write against a read only replica.\r\n";
    Some(format!("{head}{}\r\n{words}\r\n", words.len()).into_bytes())
}

#[tokio::test]
async fn read_only_as_redis_6_says_it_is_ridden_out() {
    let server = Server::start();
    script(&server, "acquire");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let _: String = server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Rewrite(words_of_redis_6)).times(u64::MAX));
    let lock = client.mutex("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    sleep(ms(1_500)).await;
    assert!(proxy.tally().rewritten > 0, "the words were put in: {:?}", proxy.tally());
    let _: String = server.ask(&["REPLICAOF", "NO", "ONE"]);
    proxy.calm();
    let (ended, _) = within("the lock", ms(5_000), waiting).await;
    drop(ended.expect("no panic").expect("ridden out, as on Redis 7"));
}

/// Another program empties the script cache again and again (a deployment's `SCRIPT FLUSH`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_again_and_again_are_loaded_again() {
    let server = Server::start();
    let client = plain(&server).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (flushing, mut raw) = (Arc::clone(&stop), server.raw());
    let flusher = std::thread::spawn(move || {
        while !flushing.load(Ordering::Relaxed) {
            let _: String = redis::cmd("SCRIPT").arg("FLUSH").query(&mut raw).expect("flushed");
            // Sometimes long enough for a script to be loaded and called, also on a busy machine.
            std::thread::sleep(Duration::from_micros(fastrand::u64(200..8_000)));
        }
    });
    let (mut refused, mut first) = (0, None);
    for n in 0..100 {
        match client.mutex(&format!("x-{n}")).lock().await {
            Ok(guard) => drop(guard),
            Err(error) => {
                refused += 1;
                first.get_or_insert(format!("{error:?}"));
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    flusher.join().expect("no panic");
    assert_eq!(refused, 0, "of 100 locks, the server there all the time: {first:?}");
}

/// A user that is locked out for a second while its connections are closed (a password is changed in two steps, an ACL file
/// is loaded): `docs/dev/connection.md` says that what the server says to a new connection is for now.
#[tokio::test]
async fn locked_out_for_a_second_calls_ride_it_out() {
    let server = Server::start();
    let holder = plain(&server).await;
    let held = holder.lock("x").lock().await.expect("free");
    let client = with_rights(&server, &["+@all", "~*", "&*"]).await;
    let lock = client.mutex("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(3_000), || client.stats().total.refused >= 2).await;
    let _: String = server.ask(&["ACL", "SETUSER", "u", "off"]);
    let _: u32 = server.ask(&["CLIENT", "KILL", "USER", "u"]);
    sleep(ms(1_000)).await;
    let lock = client.mutex("y");
    let meanwhile = tokio::spawn(async move { lock.try_lock_for(ms(3_000)).await.map(|taken| taken.is_some()) });
    sleep(ms(300)).await;
    let _: String = server.ask(&["ACL", "SETUSER", "u", "on"]);
    let other = meanwhile.await.expect("no panic");
    sleep(ms(6_000)).await;
    held.unlock().await.expect("ours");
    let (waited, _) = within("the waiter", ms(8_000), waiting).await;
    let waited = waited.expect("no panic");
    assert!(waited.is_ok() && other.is_ok(), "the waiter: {waited:?}; one that asked meanwhile: {other:?}");
}

/// A reader that may not release its lock. A writer of the same client waits for it, and asks rarely.
#[tokio::test]
async fn behind_a_refused_release_of_its_own_client_a_writer_asks_rarely() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.rw_lock("x").owner(&Owner::new()).read().await.expect("free");
    let _: String = server.ask(&["ACL", "SETUSER", "default", "-del"]);
    drop(guard);
    let lock = client.rw_lock("x").owner(&Owner::new());
    let waiting = tokio::spawn(async move { lock.write().await });
    let requests = in_a_second(&client).await;
    assert!(requests < 20, "{requests} requests in a second");
    let _: String = server.ask(&["ACL", "SETUSER", "default", "+del"]);
    let (writing, took) = within("its turn", AGAIN, waiting).await;
    writing.expect("no panic").expect("free").unlock().await.expect("ours");
    assert!(took < ms(1_500), "{took}");
}

/// A user loses a permission while it reads. A nested read says which one, and at once.
#[tokio::test]
async fn a_nested_read_that_is_refused_says_so() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.rw_lock("x").owner(&Owner::new());
    let outer = lock.read().await.expect("free");
    let _: String = server.ask(&["ACL", "SETUSER", "default", "-pexpire"]);
    let (nested, _) = within("the reply", ms(2_000), lock.read()).await;
    assert!(matches!(nested, Err(Error::Denied { .. })), "{nested:?}");
    let _: String = server.ask(&["ACL", "SETUSER", "default", "+pexpire"]);
    lock.read().await.expect("nested").unlock().await.expect("ours");
    outer.unlock().await.expect("ours to the end");
}

/// A proxy that lost its server writes an error of its own, with words that Redis has not.
const OF_A_PROXY: &[u8] = b"-upstream failure\r\n";

fn fails(_reply: &[u8]) -> Option<Vec<u8>> {
    Some(OF_A_PROXY.to_vec())
}

/// The server has run the request. So the client asks again, and nothing of it stays.
#[tokio::test]
async fn an_error_of_a_proxy_does_not_say_that_nothing_was_done() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(9_000))).await;
    let fail = |name, times| proxy.rule(Rule::new(script(&server, name), Fault::Rewrite(fails)).times(times));
    fail("acquire", 1);
    let guard = client.lock("x").lock().await.expect("granted, though the first reply was an error");
    assert_eq!(server.lock("x"), [(guard.id().to_owned(), 1)]);
    fail("release", 1);
    guard.unlock().await.expect("held to the end");
    assert!(!server.exists("x"));

    let client = behind(&proxy, |builder| builder.watchdog(ms(9_000)).outage_timeout(ms(500))).await;
    fail("acquire", u64::MAX);
    let error = client.lock("x").lock().await.expect_err("an error each time");
    assert!(error.is_unavailable() && chain(&error).contains("upstream failure"), "{}", chain(&error));
    until("what the server granted to be released", ms(2_000), || !server.exists("x")).await;
}

fn busy(_: &[u8]) -> Option<Vec<u8>> {
    Some(b"-BUSY Redis is busy running a script\r\n".to_vec())
}

/// What a client with 200 releases sends behind a proxy that answers each call with that, once pauses have grown.
async fn sent_in_three_seconds(words: fn(&[u8]) -> Option<Vec<u8>>) -> u64 {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.outage_timeout(ms(3_000))).await;
    let mut guards = Vec::new();
    for n in 0..200 {
        guards.push(client.mutex(&format!("l{n}")).lease(AN_HOUR).lock().await.expect("free"));
    }
    proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Rewrite(words)).times(u64::MAX));
    drop(guards);
    sleep(ms(5_000)).await;
    let before = client.stats().total.requests;
    sleep(ms(3_000)).await;
    let sent = client.stats().total.requests - before;
    std::mem::forget(client); // it would wait for its releases
    sent
}

/// A proxy that answers each call with an error of its own is asked no more often than a server that refuses for now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_a_proxy_are_asked_again_as_rarely_as_refusals() {
    let sent: [u64; 2] = tokio::join!(sent_in_three_seconds(busy), sent_in_three_seconds(fails)).into();
    assert!(sent[1] <= sent[0] * 3 + 30, "requests in 3 s, refused for now and by a proxy: {sent:?}");
}
