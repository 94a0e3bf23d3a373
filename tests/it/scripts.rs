//! Every script, run twice with the same arguments, gives the state and the answer of one run.

use redis::{Connection, Value};

use crate::support::Server;

const FRAME: &str = include_str!("../../src/redis/frame.lua");
const HOLDER: &str = include_str!("../../src/primitives/lock/holder.lua");
const ME: &str = "6b1c7d3e-0000-4000-8000-000000000001:1";
const HEIR: &str = "6b1c7d3e-0000-4000-8000-000000000001:2";
const OTHER: &str = "ffffffff-0000-4000-8000-000000000002:9";

macro_rules! script {
    ($name:literal) => {
        Bench { name: $name, source: include_str!(concat!("../../src/primitives/lock/", $name, ".lua")) }
    };
}

struct Bench {
    name: &'static str,
    source: &'static str,
}

/// What a script answered: its code and value.
#[derive(Debug, PartialEq)]
struct Reply(String, Value);

impl Bench {
    /// Runs it once for one part: lease 30 s, and the level and last argument given.
    fn run(&self, raw: &mut Connection, level: u32, more: &str) -> Reply {
        let script = redis::Script::new(&[FRAME, HOLDER, self.source].concat());
        let mut call = script.prepare_invoke();
        call.key("lock").key("redisson_lock__channel:{lock}");
        call.arg(1).arg("nonce").arg(ME).arg(30_000).arg(level).arg(more);
        let (nonce, code, value): (String, String, Value) = call.invoke(raw).expect("it runs");
        assert_eq!(nonce, "nonce");
        Reply(code, value)
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
        assert_eq!((server.lock("lock"), rough(second)), (state.clone(), rough(first_of(&first))), "{}", self.name);
        assert!((server.pttl("lock") - end).abs() < 200, "{}: the same end", self.name);
        (state, first)
    }
}

fn first_of(reply: &Reply) -> Reply {
    Reply(reply.0.clone(), reply.1.clone())
}

/// Times left run down between two runs: in whole seconds they are the same.
fn rough(reply: Reply) -> Reply {
    let value = match reply.1 {
        Value::Array(words) => Value::Array(words.into_iter().map(seconds).collect()),
        other => seconds(other),
    };
    Reply(reply.0, value)
}

fn seconds(value: Value) -> Value {
    match value {
        Value::Int(left) if left > 1_000 => Value::Int((left + 500) / 1_000),
        other => other,
    }
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
    let (state, Reply(code, value)) = ACQUIRE.twice(&[], 1, "first");
    assert_eq!((state, code.as_str(), value), (one(ME, 1), "granted", Value::Int(1)));
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
    let (state, Reply(code, value)) = ACQUIRE.twice(&[(OTHER, 1)], 1, "first");
    assert_eq!((state, code.as_str()), (one(OTHER, 1), "busy"));
    let Value::Array(words) = value else { panic!("{value:?}") };
    assert!(matches!(words[0], Value::Int(19_000..=20_000)), "{words:?}");
    assert_eq!(words[1], Value::BulkString(OTHER.into()));
}

#[test]
fn acquire_of_a_lock_without_end_waits() {
    let server = Server::start();
    let _: u32 = server.ask(&["HSET", "lock", OTHER, "1"]);
    let Reply(code, Value::Array(words)) = ACQUIRE.run(&mut server.raw(), 1, "first") else { panic!("no list") };
    assert_eq!((code.as_str(), &words[0]), ("busy", &Value::Int(-1)));
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
    let (state, Reply(code, value)) = RENEW.twice(&[(ME, 2)], 0, "");
    assert_eq!((state, code.as_str(), value), (one(ME, 2), "kept", Value::Int(30_000)));
    let (state, Reply(code, _)) = RENEW.twice(&[(OTHER, 1)], 0, "");
    assert_eq!((state, code.as_str()), (one(OTHER, 1), "gone"));
}

#[test]
fn hand_over() {
    let (state, Reply(code, _)) = HAND_OVER.twice(&[(ME, 1)], 0, HEIR);
    assert_eq!((state, code.as_str()), (one(HEIR, 1), "handed"));
    let (state, Reply(code, value)) = HAND_OVER.twice(&[(ME, 2)], 0, HEIR);
    assert_eq!((state, code.as_str(), value), (one(ME, 2), "deeper", Value::Int(2)));
    let (state, Reply(code, _)) = HAND_OVER.twice(&[(OTHER, 1)], 0, HEIR);
    assert_eq!((state, code.as_str()), (one(OTHER, 1), "gone"));
}

#[test]
fn a_late_hand_over_does_not_shorten_the_new_holders_lease() {
    let server = Server::start();
    let mut raw = server.raw();
    let _: u32 = server.ask(&["HSET", "lock", ME, "1"]);
    assert_eq!(HAND_OVER.run(&mut raw, 0, HEIR).0, "handed");
    let _: u32 = server.ask(&["PEXPIRE", "lock", "3600000"]);
    assert_eq!(HAND_OVER.run(&mut raw, 0, HEIR).0, "handed");
    assert!(server.pttl("lock") > 3_500_000);
}

#[test]
fn inspect() {
    let (_, Reply(code, value)) = INSPECT.twice(&[(OTHER, 3)], 0, "");
    let Value::Array(words) = value else { panic!("{value:?}") };
    assert_eq!((code.as_str(), &words[1]), ("held", &Value::Int(3)));
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
    let script = redis::Script::new(&[FRAME, HOLDER, ACQUIRE.source].concat());
    let mut call = script.prepare_invoke();
    for key in ["a", "wrong", "b"] {
        call.key(key).key(format!("redisson_lock__channel:{{{key}}}"));
    }
    call.arg(3);
    for nonce in ["1", "2", "3"] {
        call.arg(nonce).arg(ME).arg(30_000).arg(1).arg("first");
    }
    let reply: Vec<String> = call.invoke(&mut server.raw()).expect("it runs");
    assert_eq!((&*reply[0], &*reply[1]), ("1", "granted"));
    assert_eq!((&*reply[3], &*reply[4]), ("2", "error"));
    assert!(reply[5].starts_with("WRONGTYPE"), "{}", reply[5]);
    assert_eq!((&*reply[6], &*reply[7]), ("3", "granted"));
    assert!(server.exists("a") && server.exists("b"));
}
