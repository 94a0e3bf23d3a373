//! Every script, run twice with the same arguments, gives the state and the answer of one run.

use std::{collections::BTreeSet, fs};

use redis::Connection;

use crate::support::{Server, server::version};

const FRAME: &str = include_str!("../../../src/redis/frame.lua");
const BEFORE: &str = concat!(
    include_str!("../../../src/primitives/lock/holder.lua"),
    include_str!("../../../src/primitives/lock/move.lua"),
    include_str!("../../../src/primitives/lock/rest.lua"),
    include_str!("../../../src/primitives/lock/forced.lua"),
    include_str!("../../../src/primitives/lock/ends.lua")
);
const ME: &str = "6b1c7d3e-0000-4000-8000-000000000001:1";
const HEIR: &str = "6b1c7d3e-0000-4000-8000-000000000001:2";
const OTHER: &str = "ffffffff-0000-4000-8000-000000000002:9";

macro_rules! script {
    ($name:literal) => {
        Bench { name: $name, source: include_str!(concat!("../../../src/primitives/lock/", $name, ".lua")) }
    };
}

struct Bench {
    name: &'static str,
    source: &'static str,
}

/// What a script answered: its code and the words after it.
#[derive(Debug, Clone, PartialEq)]
struct Reply(String, Vec<String>);

impl Reply {
    fn of(answer: &str) -> Reply {
        let mut words = answer.split(' ').map(str::to_owned);
        Reply(words.next().expect("a code"), words.collect())
    }

    fn number(&self, at: usize) -> i64 {
        self.1[at].parse().expect("a number")
    }
}

impl Bench {
    /// Runs it once for one part: lease 30 s, and the level and last argument given.
    fn run(&self, raw: &mut Connection, level: u32, more: &str) -> Reply {
        let script = redis::Script::new(&[FRAME, BEFORE, self.source].concat());
        let mut call = script.prepare_invoke();
        call.key("lock")
            .arg(1)
            .arg("nonce")
            .arg(ME)
            .arg(if self.name == "release" { 0 } else { 30_000 })
            .arg(level)
            .arg(more)
            .arg("redisson_lock__channel:{lock}");
        let answer: String = call.invoke(raw).expect("it runs");
        Reply::of(answer.strip_prefix("nonce ").expect("the nonce first"))
    }

    /// Puts the state of `before`, runs it, and runs it again: the same state and answer. Returns both.
    fn twice(&self, before: &[(&str, u32)], level: u32, more: &str) -> (Vec<(String, u32)>, Reply) {
        let server = Server::start();
        let mut raw = server.raw();
        for (id, count) in before {
            let _: u32 = server.ask(&["HSET", "lock", id, &count.to_string()]);
            let _: u32 = server.ask(&["PEXPIRE", "lock", "20000"]);
        }
        let first = self.run(&mut raw, level, more);
        let state = server.lock("lock");
        let end = server.pttl("lock");
        let second = self.run(&mut raw, level, more);
        assert_eq!((server.lock("lock"), rough(second)), (state.clone(), rough(first.clone())), "{}", self.name);
        assert!((server.pttl("lock") - end).abs() < 4_000, "{}: the same end", self.name); // leases differ by 10 s
        (state, first)
    }
}

/// Times left run down between two runs. They are of 20 or 30 s, and stay the same if the machine stands still for less than 4 s.
fn rough(Reply(code, words): Reply) -> Reply {
    let tens_of_seconds = |word: String| match word.parse::<i64>() {
        Ok(left) if left > 1_000 => ((left + 4_000) / 10_000).to_string(),
        _ => word,
    };
    Reply(code, words.into_iter().map(tens_of_seconds).collect())
}

fn one(id: &str, count: u32) -> Vec<(String, u32)> {
    vec![(id.to_owned(), count)]
}

const ACQUIRE: Bench = script!("acquire");
const RELEASE: Bench = script!("release");
const RENEW: Bench = script!("renew");
const HAND_OVER: Bench = script!("hand_over");
const INSPECT: Bench = script!("inspect");
const FORCE_UNLOCK: Bench = script!("force_unlock");

#[test]
fn acquire_first() {
    let (state, reply) = ACQUIRE.twice(&[], 1, "first");
    assert_eq!((state, reply), (one(ME, 1), Reply::of("granted 1")));
}

#[test]
fn acquire_nested() {
    let (state, Reply(code, _)) = ACQUIRE.twice(&[(ME, 1)], 2, "again");
    assert_eq!((state, code.as_str()), (one(ME, 2), "granted"));
    let (state, Reply(code, _)) = ACQUIRE.twice(&[(ME, 2)], 3, "again");
    assert_eq!((state, code.as_str()), (one(ME, 3), "granted"));
}

#[test]
fn acquire_of_a_lost_hold() {
    let (state, Reply(code, _)) = ACQUIRE.twice(&[], 2, "again");
    assert_eq!((state, code.as_str()), (vec![], "lost"));
    let (state, Reply(code, _)) = ACQUIRE.twice(&[(OTHER, 1)], 2, "again");
    assert_eq!((state, code.as_str()), (one(OTHER, 1), "lost"));
}

#[test]
fn acquire_of_a_taken_lock() {
    let (state, reply) = ACQUIRE.twice(&[(OTHER, 1)], 1, "first");
    assert_eq!((state, reply.0.as_str()), (one(OTHER, 1), "busy"));
    assert!(matches!(reply.number(0), 19_000..=20_000), "{reply:?}");
    assert_eq!(reply.1[1..], [OTHER]);
}

#[test]
fn acquire_of_a_lock_without_end_waits() {
    let server = Server::start();
    let _: u32 = server.ask(&["HSET", "lock", OTHER, "1"]);
    assert_eq!(ACQUIRE.run(&mut server.raw(), 1, "first"), Reply::of(&format!("busy -1 {OTHER}")));
}

#[test]
fn release_nested() {
    let (state, Reply(code, _)) = RELEASE.twice(&[(ME, 3)], 2, "PUBLISH");
    assert_eq!((state, code.as_str()), (one(ME, 2), "released"));
}

#[test]
fn release_of_a_lost_hold() {
    let (state, Reply(code, _)) = RELEASE.twice(&[(OTHER, 1)], 0, "PUBLISH");
    assert_eq!((state, code.as_str()), (one(OTHER, 1), "gone"));
}

/// The one answer that differs: the second run cannot know that the first did it. The client does, and reads "gone"
/// at a second try as done.
#[test]
fn release_of_the_last_level() {
    let server = Server::start();
    let mut raw = server.raw();
    let _: u32 = server.ask(&["HSET", "lock", ME, "1"]);
    assert_eq!(RELEASE.run(&mut raw, 0, "PUBLISH").0, "released");
    assert!(!server.exists("lock"));
    assert_eq!(RELEASE.run(&mut raw, 0, "PUBLISH").0, "gone");
    assert!(!server.exists("lock"));
    assert_eq!(server.calls("publish"), 1, "nobody is woken twice");
    let _: u32 = server.ask(&["HSET", "lock", OTHER, "1"]);
    assert_eq!(RELEASE.run(&mut raw, 0, "PUBLISH").0, "gone");
    assert_eq!(server.lock("lock"), one(OTHER, 1), "a late one leaves the next holder alone");
}

#[test]
fn renew() {
    let (state, reply) = RENEW.twice(&[(ME, 2)], 0, "");
    assert_eq!((state, reply), (one(ME, 2), Reply::of("kept 30000")));
    let (state, Reply(code, _)) = RENEW.twice(&[(OTHER, 1)], 0, "");
    assert_eq!((state, code.as_str()), (one(OTHER, 1), "gone"));
}

#[test]
fn hand_over() {
    let (state, reply) = HAND_OVER.twice(&[(HEIR, 1)], 0, HEIR);
    assert_eq!((state, reply), (one(HEIR, 1), Reply::of("handed before")));
    let (state, reply) = HAND_OVER.twice(&[(ME, 2)], 0, HEIR);
    assert_eq!((state, reply), (one(ME, 2), Reply::of("deeper 2")));
    let (state, Reply(code, _)) = HAND_OVER.twice(&[(OTHER, 1)], 0, HEIR);
    assert_eq!((state, code.as_str()), (one(OTHER, 1), "gone"));
}

#[test]
fn a_second_hand_over_says_so_and_does_not_shorten_the_new_holders_lease() {
    let server = Server::start();
    let mut raw = server.raw();
    let _: u32 = server.ask(&["HSET", "lock", ME, "1"]);
    assert_eq!(HAND_OVER.run(&mut raw, 0, HEIR), Reply::of("handed"));
    let _: u32 = server.ask(&["PEXPIRE", "lock", "3600000"]);
    assert_eq!(HAND_OVER.run(&mut raw, 0, HEIR), Reply::of("handed before"));
    assert!(server.pttl("lock") > 3_500_000);
}

#[test]
fn inspect() {
    let (_, reply) = INSPECT.twice(&[(OTHER, 3)], 0, "");
    assert_eq!((reply.0.as_str(), reply.number(0), &*reply.1[2]), ("held", 3, OTHER));
    assert_eq!(INSPECT.twice(&[], 0, "").1.0, "free");
}

/// As with the last release, only the first run finds something to do; nobody but the one meant is touched.
#[test]
fn force_unlock() {
    let server = Server::start();
    let mut raw = server.raw();
    let _: u32 = server.ask(&["HSET", "lock", OTHER, "4"]);
    assert_eq!(FORCE_UNLOCK.run(&mut raw, 0, "PUBLISH").0, "gone", "somebody else has it");
    assert!(server.exists("lock"));
    let _: u32 = server.ask(&["DEL", "lock"]);
    let _: u32 = server.ask(&["HSET", "lock", ME, "4"]);
    assert_eq!(FORCE_UNLOCK.run(&mut raw, 0, "PUBLISH").0, "released");
    assert_eq!(FORCE_UNLOCK.run(&mut raw, 0, "PUBLISH").0, "gone");
    assert!(!server.exists("lock"));
    assert_eq!(server.calls("publish"), 1);
}

#[test]
fn a_failing_part_leaves_the_others_alone() {
    let server = Server::start();
    let _: String = server.ask(&["SET", "wrong", "x"]);
    let script = redis::Script::new(&[FRAME, BEFORE, ACQUIRE.source].concat());
    let mut call = script.prepare_invoke();
    for key in ["a", "wrong", "b"] {
        call.key(key);
    }
    call.arg(3);
    for nonce in ["1", "2", "3"] {
        call.arg(nonce).arg(ME).arg(30_000).arg(1).arg("first").arg("channel");
    }
    let reply: Vec<String> = call.invoke(&mut server.raw()).expect("it runs");
    assert_eq!((reply.len(), &*reply[0], &*reply[2]), (3, "1 granted 1", "3 granted 1"));
    assert!(reply[1].starts_with("2 error WRONGTYPE"), "{}", reply[1]);
    assert!(server.exists("a") && server.exists("b"));
}

/// A connection of a user who may do all but that.
fn without(server: &Server, command: &str) -> Connection {
    let _: String = server.ask(&["ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", &format!("-{command}")]);
    let client = redis::Client::open(server.url_as("u", "p")).expect("a good URL");
    client.get_connection().expect("let in")
}

/// What one of them may not do leaves the lock as it was: no lock without end, and none with two fields.
#[test]
fn a_script_that_is_stopped_half_way_takes_back_what_it_did() {
    for (script, before, command) in
        [(ACQUIRE, None, "pexpire"), (HAND_OVER, Some(ME), "pexpire"), (HAND_OVER, Some(ME), "hdel")]
    {
        let server = Server::start();
        if let Some(id) = before {
            let _: u32 = server.ask(&["HSET", "lock", id, "1"]);
            let _: u32 = server.ask(&["PEXPIRE", "lock", "20000"]);
        }
        let more = if before.is_some() { HEIR } else { "first" };
        let Reply(code, words) = script.run(&mut without(&server, command), 1, more);
        assert_eq!(code, "error", "{}: {words:?}", script.name);
        let left: Vec<_> = before.into_iter().map(|id| (id.to_owned(), 1)).collect();
        assert_eq!(server.lock("lock"), left, "{} without {command}", script.name);
        assert!(before.is_none() || server.pttl("lock") > 0, "{} without {command}", script.name);
    }
}

/// A server before Redis 7.2 counts the PTTL of a script from its start, but not TIME.
#[test]
fn the_end_of_a_lease_is_the_one_that_the_server_keeps() {
    if version() < (7, 0) {
        return; // without PEXPIRETIME
    }
    let server = Server::start();
    let _: u32 = server.ask(&["HSET", "lock", ME, "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "lock", "20000"]);
    let end: i64 = server.ask(&["PEXPIRETIME", "lock"]);
    assert_eq!(INSPECT.run(&mut without(&server, "time"), 1, "ends").number(0), end);
    let computed = INSPECT.run(&mut without(&server, "pexpiretime"), 1, "ends").number(0);
    assert!((computed - end).abs() < 1_000, "{computed} for {end}");
}

/// Redis 7.0 does not say which command is not allowed, so the frame tries those that scripts call.
#[test]
fn the_frame_knows_all_commands_that_scripts_call() {
    let (_, list) = FRAME.split_once("local commands = [[").expect("the list");
    let known: BTreeSet<_> = list.split_once("]]").expect("its end").0.split_whitespace().map(str::to_owned).collect();
    let told = ["PUBLISH", "SPUBLISH"].map(str::to_owned); // by an argument
    let called: BTreeSet<_> = sources().iter().flat_map(|source| calls(source)).chain(told).collect();
    assert_eq!(known, called);
}

fn sources() -> Vec<String> {
    let kinds = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/primitives")).expect("our own sources");
    let folders = kinds.map(|kind| kind.expect("readable").path()).filter(|kind| kind.is_dir());
    let files = folders.flat_map(|folder| fs::read_dir(folder).expect("our own sources"));
    files.map(|file| fs::read_to_string(file.expect("readable").path()).expect("a script")).collect()
}

fn calls(source: &str) -> Vec<String> {
    let calls = source.split("call('").skip(1);
    calls.map(|call| call.split_once('\'').expect("its end").0.to_owned()).collect()
}
