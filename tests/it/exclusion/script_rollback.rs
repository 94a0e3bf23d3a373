//! A script is not rolled back: what it did before it came to a command that is not allowed it takes back by itself. Each command
//! is taken away in turn from each script that grants something, and nothing without a lease stays on the server.

use redis::Connection;

use crate::{
    kinds::family_scripts::{HEIR, ME, OTHER},
    support::{Server, server::version},
};

const FRAME: &str = include_str!("../../../src/redis/frame.lua");
const CHANNEL: &str = "redisson_lock__channel:{x}";
const TOKEN: &str = "redisson_lock_token:{x}";
const QUEUE: &str = "redisson_lock_queue:{x}";
const PLACES: &str = "redisson_lock_timeout:{x}";
const LIVES: &str = "{x}:6b1c7d3e-0000-8000-8000-000000000001:1:rwlock_timeout:1";
const MARK: &str = "leasehold_rwlock_waits:{x}";

type Words = &'static [&'static str];

/// One script with its arguments, and what is there before it.
struct Scene {
    name: &'static str,
    source: String,
    keys: Words,
    args: Words,
    before: &'static [Words],
    /// A command without which it would leave half of it, had it not taken that back.
    trap: &'static str,
}

macro_rules! source {
    ($($file:literal),+) => {
        [FRAME, $(include_str!(concat!("../../../src/primitives/", $file, ".lua"))),+].concat()
    };
}

const FREE: &[Words] = &[];
const MINE: &[Words] = &[&["HSET", "x", ME, "1"], &["PEXPIRE", "x", "60000"]];
const TAKEN: &[Words] = &[&["HSET", "x", OTHER, "1"], &["PEXPIRE", "x", "60000"]];
const I_WRITE: &[Words] = &[&["HSET", "x", "mode", "write", ME, "1"], &["PEXPIRE", "x", "60000"]];
const OTHER_READS: &[Words] = &[&["HSET", "x", "mode", "read", OTHER, "1"], &["PEXPIRE", "x", "1000"]];
/// Free, and the head of the line did not come when it was called.
const SECOND_IN_LINE: &[Words] = &[&["RPUSH", QUEUE, OTHER, ME], &["ZADD", PLACES, "1", OTHER, "99999999999999", ME]];
/// Free, and it is our turn.
const FIRST_IN_LINE: &[Words] =
    &[&["RPUSH", QUEUE, ME, OTHER], &["ZADD", PLACES, "99999999999999", ME, "99999999999999", OTHER]];

const TAKE: Words = &[ME, "30000", "1", "first", CHANNEL];
const READ: Words = &[ME, "30000", "1", "first", CHANNEL, ""];
const STAND_IN_LINE: Words = &[ME, "30000", "1", "join", CHANNEL, "PUBLISH"];
const TO_HEIR: Words = &[ME, "30000", "0", HEIR, CHANNEL];

fn scene(name: &'static str, source: String, keys: Words, args: Words, before: &'static [Words]) -> Scene {
    Scene { name, source, keys, args, before, trap: "PEXPIRE" }
}

fn scenes() -> Vec<Scene> {
    let lock = source!("lock/holder", "lock/acquire");
    let fenced = source!("lock/holder", "fenced/token", "fenced/acquire");
    let read = || source!("rw/rwlock", "rw/read_acquire");
    let write = source!("rw/rwlock", "rw/write_acquire");
    let fair = || source!("lock/holder", "fair/queue", "fair/acquire");
    let fair_keys = &["x", QUEUE, PLACES];
    let granted = [
        scene("lock", lock, &["x"], TAKE, FREE),
        scene("fenced", fenced, &["x", TOKEN], TAKE, FREE),
        scene("read", read(), &["x", LIVES, MARK], READ, FREE),
        scene("read beside another", read(), &["x", LIVES, MARK], READ, OTHER_READS),
        scene("write", write, &["x", MARK], TAKE, FREE),
        scene("fair", fair(), fair_keys, STAND_IN_LINE, FREE),
        scene("fair, by the next in line", fair(), fair_keys, STAND_IN_LINE, SECOND_IN_LINE),
        Scene { trap: "ZREM", ..scene("fair, by the first in line", fair(), fair_keys, STAND_IN_LINE, FIRST_IN_LINE) },
        Scene { trap: "ZADD", ..scene("a place in line", fair(), fair_keys, STAND_IN_LINE, TAKEN) },
    ];
    let handed = [
        scene("lock, to the next", source!("lock/move", "lock/hand_over"), &["x"], TO_HEIR, MINE),
        scene(
            "fenced, to the next",
            source!("lock/move", "fenced/token", "fenced/hand_over"),
            &["x", TOKEN],
            TO_HEIR,
            MINE,
        ),
        scene("write, to the next", source!("lock/move", "rw/write_hand_over"), &["x"], TO_HEIR, I_WRITE),
    ];
    let unmoved = handed.map(|scene| Scene { trap: "HDEL", ..scene });
    granted.into_iter().chain(unmoved).collect()
}

/// A user `u` who may do all but that, on a server that has what is there before.
fn without(command: &str, server: &Server, scene: &Scene) -> Connection {
    let _: String = server.ask(&["FLUSHALL"]);
    scene.before.iter().for_each(|words| _ = server.ask::<redis::Value>(words));
    let taken_away = format!("-{}", command.to_lowercase());
    let channels = if version() >= (6, 2) { "&*" } else { "~*" };
    let _: String = server.ask(&["ACL", "SETUSER", "u", "reset", "on", ">p", "~*", channels, "+@all", &taken_away]);
    let client = redis::Client::open(server.url_as("u", "p")).expect("a good address");
    client.get_connection().expect("let in")
}

fn run(raw: &mut Connection, scene: &Scene) -> String {
    let script = redis::Script::new(&scene.source);
    let mut call = script.prepare_invoke();
    scene.keys.iter().for_each(|key| _ = call.key(*key));
    call.arg(1).arg("nonce");
    scene.args.iter().for_each(|arg| _ = call.arg(*arg));
    let answer: String = call.invoke(raw).expect("it runs");
    answer.strip_prefix("nonce ").expect("the nonce first").to_owned()
}

/// All commands that any script calls, as the frame lists them.
fn commands() -> Vec<&'static str> {
    let listed = FRAME.split_once("[[").and_then(|(_, rest)| rest.split_once("]]")).expect("the list").0;
    let is_known = |name: &&str| version() >= (7, 0) || !["SPUBLISH", "PEXPIRETIME"].contains(name);
    listed.split_whitespace().filter(is_known).collect()
}

/// What has no lease; places that nobody stands at; and us, if we stand in line without a place. (Without LREM nobody can remove us. The
/// others then pass over us.)
fn left_behind(command: &str, server: &Server) -> Vec<String> {
    let keys: Vec<String> = server.ask(&["KEYS", "*"]);
    let has_no_lease = |key: &String| ![TOKEN, QUEUE, PLACES].contains(&&**key) && server.pttl(key) == -1;
    let line: Vec<String> = server.ask(&["LRANGE", QUEUE, "0", "-1"]);
    let places: Vec<String> = server.ask(&["ZRANGE", PLACES, "0", "-1"]);
    let is_idle = command != "LREM"
        && line.iter().any(|id| id == ME)
        && !places.iter().any(|id| id == ME)
        && !server.ask::<bool>(&["HEXISTS", "x", ME]);
    let left = keys.into_iter().filter(has_no_lease);
    let left = left.chain(places.into_iter().filter(|id| !line.contains(id)));
    left.chain(is_idle.then(|| ME.to_owned())).collect()
}

/// Two holds beside each other: none is sure whose it is.
fn is_torn(server: &Server) -> bool {
    let mode: Option<String> = server.ask(&["HGET", "x", "mode"]);
    let holds: usize = server.ask(&["HLEN", "x"]);
    match mode.as_deref() {
        Some("read") => false,
        Some(_) => holds > 2,
        None => holds > 1,
    }
}

#[test]
fn nothing_without_a_lease_stays() {
    let server = Server::start();
    for scene in scenes() {
        let mut refused = Vec::new();
        for command in commands() {
            let answer = run(&mut without(command, &server, &scene), &scene);
            let what = format!("{} without {command}: {answer}", scene.name);
            assert_eq!(left_behind(command, &server), [""; 0], "{what}");
            assert!(!is_torn(&server), "{what}: {:?}", server.lock("x"));
            if answer.starts_with("error ") {
                refused.push(command);
            }
        }
        assert!(refused.contains(&scene.trap), "{}: {refused:?}", scene.name);
    }
}

/// Its caller hears only the error, and so releases nothing.
#[test]
fn a_refused_call_leaves_no_hold_and_no_waiter_beside_others() {
    let server = Server::start();
    for name in ["read beside another", "a place in line"] {
        let scene = scenes().into_iter().find(|scene| scene.name == name).expect("it is there");
        let answer = run(&mut without("PEXPIRE", &server, &scene), &scene);
        assert!(answer.starts_with("error "), "{name}: {answer}");
        assert!(!server.ask::<bool>(&["HEXISTS", "x", ME]), "{name}");
        assert!(!server.ask::<Vec<String>>(&["LRANGE", QUEUE, "0", "-1"]).contains(&ME.to_owned()), "{name}");
        assert!(server.ask::<Option<f64>>(&["ZSCORE", PLACES, ME]).is_none(), "{name}");
    }
}

#[test]
fn a_fair_lock_that_cannot_be_granted_keeps_the_place() {
    let server = Server::start();
    let scene = scenes().into_iter().find(|scene| scene.name == "fair, by the first in line").expect("it is there");
    for command in ["PEXPIRE", "ZREM"] {
        let answer = run(&mut without(command, &server, &scene), &scene);
        assert!(answer.starts_with("error "), "{answer}");
        assert_eq!(run(&mut server.raw(), &scene), "granted 1", "without {command}: it is still its turn");
    }
}

const RECEIPT: &str = "leasehold_receipt:{x}:7";
const SHARED: &str = "redisson_sc:{x}";

/// The requests of a plain semaphore that change it. Their keys are the semaphore and the receipt.
fn plain_requests() -> Vec<(String, String, Words)> {
    let acquire = source!("latch/latch", "plain_semaphore/receipt", "plain_semaphore/acquire");
    let release = source!("latch/latch", "plain_semaphore/receipt", "plain_semaphore/release");
    let change = || source!("latch/latch", "plain_semaphore/receipt", "plain_semaphore/change");
    let name = |words: Words| words[words.len() - 1].to_owned();
    let changes: [Words; 4] = [
        &["7", "60000", "2", "PUBLISH", SHARED, "new"],
        &["7", "60000", "2", "PUBLISH", SHARED, "more"],
        &["7", "60000", "2", "PUBLISH", SHARED, "back"],
        &["7", "60000", "0", "PUBLISH", SHARED, "all"],
    ];
    let changes = changes.into_iter().map(|words| (name(words), change(), words));
    let holds: [(String, String, Words); 2] = [
        ("acquire".to_owned(), acquire, &["7", "60000", "2", "first", SHARED]),
        ("release".to_owned(), release, &["7", "60000", "0", "PUBLISH", SHARED]),
    ];
    holds.into_iter().chain(changes).collect()
}

/// A receipt says what has run. So a request that was refused half-way has changed nothing, and is refused again.
#[test]
fn no_receipt_is_left_of_a_plain_request_that_was_refused() {
    let server = Server::start();
    for command in ["GET", "SET", "INCRBY", "PUBLISH"] {
        let mut refused = Vec::new();
        for (name, source, args) in plain_requests() {
            for before in [FREE, &[&["SET", "x", "5"]]] {
                let scene = scene("plain", source.clone(), &["x", RECEIPT], args, before);
                let mut raw = without(command, &server, &scene);
                if name == "release" {
                    let _: String = server.ask(&["SET", RECEIPT, "2", "PX", "50000"]);
                }
                let state = || ["x", RECEIPT].map(|key| server.ask::<Option<String>>(&["GET", key]));
                let untouched = state();
                for _ in 0..2 {
                    let answer = run(&mut raw, &scene);
                    if answer.starts_with("error ") {
                        refused.push(name.clone());
                        assert_eq!(state(), untouched, "{name} without {command}: {answer}");
                    }
                }
            }
        }
        assert!(refused.len() >= 6, "{command}: {refused:?}");
    }
}
