//! Every script of every primitive, run twice with the same arguments: the second run changes nothing and answers the same, but
//! for what the first has done for good.

use redis::Connection;

use crate::support::Server;

pub(crate) const ME: &str = "6b1c7d3e-0000-8000-8000-000000000001:1";
pub(crate) const HEIR: &str = "6b1c7d3e-0000-8000-8000-000000000001:2";
pub(crate) const OTHER: &str = "ffffffff-0000-4000-8000-000000000002:9";

macro_rules! source {
    ($($file:literal),+) => {
        concat!(include_str!("../../../src/redis/frame.lua"), $(include_str!(concat!("../../../src/primitives/", $file))),+)
    };
}

/// One server, one script, one set of arguments.
struct Bench {
    server: Server,
    raw: Connection,
}

impl Bench {
    fn new() -> Bench {
        let server = Server::start();
        let raw = server.raw();
        Bench { server, raw }
    }

    fn run(&mut self, source: &str, keys: &[&str], args: &[&str]) -> String {
        let script = redis::Script::new(source);
        let mut call = script.prepare_invoke();
        keys.iter().for_each(|key| _ = call.key(*key));
        call.arg(1).arg("nonce");
        args.iter().for_each(|arg| _ = call.arg(*arg));
        let answer: String = call.invoke(&mut self.raw).expect("it runs");
        answer.strip_prefix("nonce ").expect("the nonce first").to_owned()
    }

    /// Both answers; the second run must leave all as it was after the first.
    fn twice(&mut self, source: &str, keys: &[&str], args: &[&str]) -> (String, String) {
        let first = self.run(source, keys, args);
        let after = self.state();
        let second = self.run(source, keys, args);
        let now = self.state();
        let is_same = |(one, other): (&(String, String, i64), &(String, String, i64))| {
            (&one.0, &one.1) == (&other.0, &other.1) && one.2.abs_diff(other.2) <= 1 // a second may have begun
        };
        let are_same = now.len() == after.len() && now.iter().zip(&after).all(is_same);
        assert!(are_same, "{args:?}: {first}, {second}: {after:?}, {now:?}");
        (first, second)
    }

    /// All there is, with the seconds that each key has left.
    fn state(&self) -> Vec<(String, String, i64)> {
        let mut keys: Vec<String> = self.server.ask(&["KEYS", "*"]);
        keys.sort();
        let what = |key: &String| {
            let kind: String = self.server.ask(&["TYPE", key]);
            match &*kind {
                "hash" => {
                    let mut fields: Vec<(String, String)> = self.server.ask(&["HGETALL", key]);
                    fields.sort();
                    format!("{fields:?}")
                }
                "list" => format!("{:?}", self.server.ask::<Vec<String>>(&["LRANGE", key, "0", "-1"])),
                "zset" => format!("{:?}", self.server.ask::<Vec<String>>(&["ZRANGE", key, "0", "-1"])),
                _ => self.server.ask(&["GET", key]),
            }
        };
        keys.iter().map(|key| (key.clone(), what(key), (self.server.pttl(key) + 500) / 1_000)).collect()
    }

    fn put(&self, words: &[&str]) {
        let _: redis::Value = self.server.ask(words);
    }
}

mod latch {
    use super::*;

    const KEYS: [&str; 2] = ["x", "leasehold_receipt:{x}:7"];
    const LATER: [&str; 2] = ["x", "leasehold_receipt:{x}:8"];
    const CHANNEL: &str = "redisson_countdownlatch__channel__{x}";
    const SET: &str = source!("receipt.lua", "latch/latch.lua", "latch/set.lua");
    const COUNT_DOWN: &str = source!("receipt.lua", "latch/latch.lua", "latch/count_down.lua");
    const DELETE: &str = source!("receipt.lua", "latch/latch.lua", "latch/delete.lua");
    const LOOK: &str = source!("latch/latch.lua", "latch/look.lua");

    fn of(count: &str) -> [&str; 5] {
        ["7", "60000", count, "PUBLISH", CHANNEL]
    }

    fn both(said: &str) -> (String, String) {
        (said.to_owned(), said.to_owned())
    }

    #[test]
    fn each_request_runs_once() {
        let mut bench = Bench::new();
        assert_eq!(bench.twice(SET, &KEYS, &of("3")), both("granted"));
        assert_eq!(bench.twice(SET, &LATER, &of("5")), both("held"));
        bench.put(&["DEL", KEYS[1], LATER[1]]);
        assert_eq!(bench.twice(COUNT_DOWN, &KEYS, &of("0")), both("released 2"));
        bench.put(&["DEL", KEYS[1]]);
        assert_eq!(bench.twice(LOOK, &KEYS[..1], &of("0")), both("held 2"));
        assert_eq!(bench.twice(DELETE, &KEYS, &of("0")), both("released"));
        assert_eq!(bench.twice(LOOK, &KEYS[..1], &of("0")), both("free"));
        bench.put(&["DEL", KEYS[1]]);
        assert_eq!(bench.twice(DELETE, &KEYS, &of("0")), both("gone"));
        bench.put(&["DEL", KEYS[1]]);
        assert_eq!(bench.twice(COUNT_DOWN, &KEYS, &of("0")), both("gone"));
        bench.put(&["DEL", KEYS[1]]);
        assert_eq!(bench.twice(SET, &KEYS, &of("0")), both("granted"));
        assert!(!bench.server.exists("x"));
    }

    /// What ran once, whatever it did, does nothing when it runs late: the latch of then is gone.
    #[test]
    fn what_runs_late_changes_no_later_latch() {
        let mut bench = Bench::new();
        for (script, before, first) in [
            (SET, None, "granted"),
            (SET, Some("1"), "held"),
            (COUNT_DOWN, None, "gone"),
            (COUNT_DOWN, Some("1"), "released 0"),
            (DELETE, None, "gone"),
            (DELETE, Some("1"), "released"),
        ] {
            bench.put(&["DEL", "x", KEYS[1]]);
            before.into_iter().for_each(|count| bench.put(&["SET", "x", count]));
            assert_eq!(bench.run(script, &KEYS, &of("4")), first);
            for later in [&["SET", "x", "9"][..], &["DEL", "x"]] {
                bench.put(later);
                assert_eq!(bench.twice(script, &KEYS, &of("4")), both(first));
                assert_eq!(bench.server.exists("x"), later[0] == "SET");
            }
        }
    }

    #[test]
    fn what_is_not_a_latch_stays() {
        let mut bench = Bench::new();
        for text in ["many", "", "1.5", "0x10", "007", "-0", "9007199254740992", "-9223372036854775808"] {
            bench.put(&["SET", "x", text]);
            for (script, keys) in [(SET, &KEYS[..]), (COUNT_DOWN, &KEYS), (DELETE, &KEYS), (LOOK, &KEYS[..1])] {
                assert_eq!(bench.twice(script, keys, &of("4")), both("conflict"), "{text}");
            }
            assert_eq!(bench.server.ask::<String>(&["GET", "x"]), text);
            assert!(!bench.server.exists(KEYS[1]));
        }
    }
}

mod semaphore {
    use super::*;

    const KEYS: [&str; 3] = ["x", "{x}:timeout", "leasehold_semaphore_waits:{x}"];
    const CHANNEL: &str = "redisson_sc:{x}";
    const TWO: &str = "41414141414141414141414141410002";
    const THREE: &str = "42424242424242424242424242420003";
    const ACQUIRE: &str = source!("semaphore/permits.lua", "semaphore/acquire.lua");
    const RELEASE: &str = source!("semaphore/permits.lua", "semaphore/release.lua");
    const RENEW: &str = source!("semaphore/permits.lua", "semaphore/renew.lua");
    const INSPECT: &str = source!("semaphore/permits.lua", "semaphore/inspect.lua");
    const CHANGE: &str = source!("receipt.lua", "semaphore/permits.lua", "semaphore/change.lua");

    fn both(said: &str) -> (String, String) {
        (said.to_owned(), said.to_owned())
    }

    fn acquire<'a>(id: &'a str, how: &'a str) -> [&'a str; 6] {
        [id, "30000", "1", how, CHANNEL, "PUBLISH"]
    }

    fn keep<'a>(id: &'a str, count: &'a str) -> [&'a str; 5] {
        [id, "0", count, "PUBLISH", CHANNEL]
    }

    fn free(bench: &Bench) -> (i64, usize) {
        (bench.server.ask(&["GET", "x"]), bench.server.ask(&["ZCARD", KEYS[1]]))
    }

    #[test]
    fn permits_are_acquired_and_released_once() {
        let mut bench = Bench::new();
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &acquire(TWO, "first")), both("busy -1 "));
        bench.put(&["SET", "x", "4"]);
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &acquire(TWO, "first")), both("granted"));
        assert_eq!(free(&bench), (2, 2));
        let busy = bench.twice(ACQUIRE, &KEYS, &acquire(THREE, "first")).0;
        assert!(busy.starts_with("busy 2") || busy == "busy 30000 ", "{busy}");
        assert_eq!(bench.twice(RELEASE, &KEYS, &keep(TWO, "1")), both("released 0"));
        assert_eq!(free(&bench), (3, 1));
        let renew = [TWO, "60000", "0", "1", CHANNEL];
        assert_eq!((bench.twice(RENEW, &KEYS[..2], &renew), free(&bench)), (both("kept 60000"), (3, 1)));
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &acquire(THREE, "first")), both("granted"));
        assert_eq!(bench.run(RELEASE, &KEYS, &keep(TWO, "0")), "released 0");
        assert_eq!(bench.twice(RELEASE, &KEYS, &keep(TWO, "0")), both("gone 0"));
        assert_eq!(bench.twice(RENEW, &KEYS[..2], &renew), both("gone"));
        assert_eq!(bench.run(RELEASE, &KEYS, &keep(THREE, "0")), "released 0");
        assert_eq!((free(&bench), bench.server.exists(KEYS[2])), ((4, 0), false));
    }

    /// What others released late, or not at all, is returned once, by the script that finds it.
    #[test]
    fn permits_whose_time_is_over_are_returned_once() {
        let mut bench = Bench::new();
        bench.put(&["SET", "x", "0"]);
        for permit in ["1234567890123456", "BBBBBBBBBBBBBB\0\0", "BBBBBBBBBBBBBB\0\u{1}"] {
            bench.put(&["ZADD", KEYS[1], "5", permit]);
        }
        assert_eq!(bench.twice(RENEW, &KEYS[..2], &[THREE, "30000", "0", "3", CHANNEL]), both("gone"));
        assert_eq!(bench.run(INSPECT, &KEYS[..2], &["", "0", "0", ""]), "held 3");
        assert_eq!(bench.run(INSPECT, &KEYS[..2], &["", "0", "0", "free"]), "held 3");
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &acquire(THREE, "first")), both("granted"));
        assert_eq!(free(&bench), (0, 3));
    }

    #[test]
    fn a_mark_keeps_others_out_until_its_waiter_acquires_or_leaves() {
        let mut bench = Bench::new();
        bench.put(&["SET", "x", "3"]);
        assert_eq!(bench.run(ACQUIRE, &KEYS, &acquire(TWO, "first")), "granted");
        assert!(bench.twice(ACQUIRE, &KEYS, &acquire(THREE, "turn")).0.starts_with("busy "));
        assert_eq!(bench.server.ask::<String>(&["GET", KEYS[2]]), THREE[..28]);
        let one = "43434343434343434343434343430001";
        let busy = bench.twice(ACQUIRE, &KEYS, &acquire(one, "turn")).0;
        let left: u32 = busy.trim().rsplit(' ').next().expect("a word").parse().expect("ms");
        assert!((2_000..=3_000).contains(&left), "{busy}");
        bench.run(RELEASE, &KEYS, &keep(TWO, "0"));
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &acquire(THREE, "first")), both("granted"));
        assert!(!bench.server.exists(KEYS[2]));
        bench.put(&["SET", KEYS[2], &TWO[..28]]);
        assert_eq!(bench.twice(RELEASE, &KEYS, &keep(TWO, "0")), both("gone 0"));
        assert!(!bench.server.exists(KEYS[2]));
        let ten = "4444444444444444444444444444000a"; // more than there are
        assert!(
            bench.twice(ACQUIRE, &KEYS, &acquire(ten, "turn")).0.starts_with("busy ") && !bench.server.exists(KEYS[2])
        );
    }

    #[test]
    fn each_change_is_made_once() {
        let mut bench = Bench::new();
        for (number, (how, permits, said, left)) in [
            ("new", "3", "granted", 3),
            ("new", "5", "held", 3),
            ("more", "2", "granted", 5),
            ("all", "1", "granted", 1),
        ]
        .into_iter()
        .chain([("more", "-4", "granted", -3)])
        .enumerate()
        {
            let receipt = format!("leasehold_receipt:{{x}}:{number}");
            let keys = ["x", KEYS[1], &receipt];
            let number = number.to_string();
            let args = [&*number, "60000", permits, "PUBLISH", CHANNEL, how];
            assert_eq!(bench.twice(CHANGE, &keys, &args), both(said), "{how}");
            assert_eq!(bench.server.ask::<i64>(&["GET", "x"]), left, "{how}");
        }
    }

    #[test]
    fn what_is_not_a_semaphore_stays() {
        let mut bench = Bench::new();
        for text in ["many", "", "1.5", "0x10"] {
            bench.put(&["SET", "x", text]);
            assert_eq!(bench.twice(ACQUIRE, &KEYS, &acquire(TWO, "turn")), both("conflict"), "{text}");
            assert_eq!(bench.twice(RELEASE, &KEYS, &keep(TWO, "0")), both("conflict"), "{text}");
            assert_eq!(bench.twice(INSPECT, &KEYS[..2], &["", "0", "0", ""]), both("conflict"), "{text}");
            let args = ["7", "60000", "3", "PUBLISH", CHANNEL, "more"];
            assert_eq!(bench.twice(CHANGE, &["x", KEYS[1], "r"], &args), both("conflict"), "{text}");
            assert_eq!(bench.server.ask::<Vec<String>>(&["KEYS", "*"]), ["x"]);
        }
    }
}

mod fenced {
    use super::*;

    const KEYS: [&str; 2] = ["x", "redisson_lock_token:{x}"];
    const CHANNEL: &str = "redisson_lock__channel:{x}";
    const ACQUIRE: &str = source!("lock/holder.lua", "fenced/token.lua", "fenced/acquire.lua");
    const HAND_OVER: &str = source!("lock/move.lua", "fenced/token.lua", "fenced/hand_over.lua");
    const WRITE: &str = source!("fenced/write.lua");

    #[test]
    fn acquire() {
        let mut bench = Bench::new();
        let of = |count, more| [ME, "30000", count, more, CHANNEL];
        let granted = |token: &str| (format!("granted {token}"), format!("granted {token}"));
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &of("1", "first")), granted("1"));
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &of("2", "again")), granted("1"));
        let theirs = [OTHER, "30000", "1", "first", CHANNEL];
        let busy = bench.twice(ACQUIRE, &KEYS, &theirs).0;
        assert!(busy.starts_with("busy ") && busy.ends_with(ME), "{busy}");
        bench.put(&["DEL", "x"]);
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &of("2", "again")).0, "lost");
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &theirs), granted("2"));
        bench.put(&["DEL", KEYS[1]]);
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &theirs), granted("1"));
        bench.put(&["HSET", "x", "another", "field"]);
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &of("1", "first")).0, "conflict");
    }

    #[test]
    fn hand_over() {
        let mut bench = Bench::new();
        let to_heir = [ME, "30000", "0", HEIR, CHANNEL];
        assert_eq!(bench.twice(HAND_OVER, &KEYS, &to_heir).0, "gone");
        bench.put(&["HSET", "x", ME, "2"]);
        bench.put(&["SET", KEYS[1], "7"]);
        assert_eq!(bench.twice(HAND_OVER, &KEYS, &to_heir).0, "deeper 2");
        bench.put(&["HSET", "x", ME, "1"]);
        let handed = ("handed 8".to_owned(), "handed before 8".to_owned());
        assert_eq!(bench.twice(HAND_OVER, &KEYS, &to_heir), handed);
    }

    #[test]
    fn write() {
        let mut bench = Bench::new();
        assert_eq!(bench.twice(WRITE, &["x", "to"], &[ME, "value"]).0, "gone");
        bench.put(&["HSET", "x", ME, "1"]);
        let kept = ("kept".to_owned(), "kept".to_owned());
        assert_eq!(bench.twice(WRITE, &["x", "to"], &[ME, "value"]), kept);
        assert_eq!(bench.server.ask::<String>(&["GET", "to"]), "value");
    }
}

mod rw {
    use super::*;

    const CHANNEL: &str = "redisson_rwlock:{x}";
    const MARK: &str = "leasehold_rwlock_waits:{x}";
    const READ_ACQUIRE: &str = source!("rw/rwlock.lua", "rw/read_acquire.lua");
    const READ_RELEASE: &str = source!("rw/rwlock.lua", "rw/read_release.lua");
    const READ_RENEW: &str = source!("rw/rwlock.lua", "rw/read_renew.lua");
    const WRITE_ACQUIRE: &str = source!("rw/rwlock.lua", "rw/write_acquire.lua");
    const WRITE_RELEASE: &str = source!("rw/rwlock.lua", "rw/write_release.lua");
    const WRITE_HAND_OVER: &str = source!("lock/move.lua", "rw/write_hand_over.lua");
    const INSPECT: &str = source!("rw/rwlock.lua", "rw/inspect.lua");
    const FORCE_UNLOCK: &str = source!("lock/forced.lua", "rw/rwlock.lua", "rw/force_unlock.lua");
    const WRITER: &str = "6b1c7d3e-0000-8000-8000-000000000001:3:write";
    const NEXT: &str = "6b1c7d3e-0000-8000-8000-000000000001:4:write";

    fn lives(id: &str) -> String {
        format!("{{x}}:{id}:rwlock_timeout:1")
    }

    impl Bench {
        fn reads(&mut self, id: &str, count: &str, how: &str, below: &str) -> (String, String) {
            let args = [id, "30000", count, how, CHANNEL, below];
            self.twice(READ_ACQUIRE, &["x", &lives(id), MARK], &args)
        }

        fn writes(&mut self, id: &str, count: &str, how: &str) -> (String, String) {
            self.twice(WRITE_ACQUIRE, &["x", MARK], &[id, "30000", count, how, CHANNEL])
        }

        fn ends_reading(&mut self, id: &str, count: &str) -> (String, String) {
            self.twice(READ_RELEASE, &["x", &lives(id)], &[id, "0", count, "PUBLISH", CHANNEL])
        }

        fn ends_writing(&mut self, id: &str, count: &str) -> (String, String) {
            self.twice(WRITE_RELEASE, &["x", MARK], &[id, "0", count, "PUBLISH", CHANNEL])
        }
    }

    fn both(answer: &str) -> (String, String) {
        (answer.to_owned(), answer.to_owned())
    }

    fn once(answer: &str, then: &str) -> (String, String) {
        (answer.to_owned(), then.to_owned())
    }

    #[test]
    fn reading() {
        let mut bench = Bench::new();
        assert_eq!(bench.reads(ME, "1", "again", ""), both("lost"));
        assert_eq!(bench.reads(ME, "1", "first", ""), both("granted 1"));
        assert_eq!(bench.reads(ME, "2", "again", ""), both("granted 2"));
        assert_eq!(bench.reads(OTHER, "1", "first", ""), both("granted 1"));
        let refused = bench.writes(WRITER, "1", "first").0;
        assert!(refused.starts_with("busy ") && !bench.server.exists(MARK), "{refused}");
        assert_eq!(bench.ends_reading(ME, "1"), both("released 0"));
        assert_eq!(bench.ends_reading(ME, "0"), once("released 0", "gone"));
        assert_eq!(bench.server.calls("publish"), 0, "another reads");
        assert_eq!(bench.ends_reading(OTHER, "0"), once("released 0", "gone"));
        assert_eq!((bench.state().len(), bench.server.calls("publish")), (0, 1));
        bench.put(&["HSET", "x", "a", "1"]);
        assert_eq!(bench.reads(ME, "1", "first", ""), both("conflict"));
        assert_eq!(bench.writes(WRITER, "1", "first"), both("conflict"));
    }

    #[test]
    fn renewing() {
        let mut bench = Bench::new();
        let keys = ["x", &lives(ME)];
        assert_eq!(bench.twice(READ_RENEW, &keys, &[ME, "60000", "0", "", CHANNEL, "0"]), both("gone"));
        bench.reads(ME, "1", "first", "");
        let kept = |said: &str| -> Option<u32> { said.strip_prefix("kept ")?.strip_suffix(" yes")?.parse().ok() };
        let (first, second) = bench.twice(READ_RENEW, &keys, &[ME, "60000", "0", "", CHANNEL, "0"]);
        assert!(kept(&first) <= Some(30_000) && kept(&second) > Some(50_000), "{first}, {second}");
        bench.put(&["PEXPIRE", "x", "2000"]);
        let (said, _) = bench.twice(READ_RENEW, &keys, &[ME, "0", "0", "", CHANNEL, "0"]);
        assert!(kept(&said).is_some_and(|left| (1_000..=2_000).contains(&left)), "{said}");
        assert!(bench.server.pttl("x") > 50_000, "its end was mended");
        bench.put(&["DEL", &lives(ME)]);
        assert_eq!(bench.twice(READ_RENEW, &keys, &[ME, "60000", "0", "", CHANNEL, "0"]), both("gone"));
    }

    #[test]
    fn writing_and_its_mark() {
        let mut bench = Bench::new();
        bench.reads(OTHER, "1", "first", "");
        let busy = bench.writes(WRITER, "1", "join").0;
        assert!(busy.ends_with(OTHER) && bench.server.exists(MARK), "{busy}");
        let waits = bench.reads(ME, "1", "first", "").0;
        assert!(waits.starts_with("busy ") && waits.ends_with(WRITER), "{waits}");
        bench.ends_reading(OTHER, "0");
        assert!(bench.reads(ME, "1", "first", "").0.starts_with("busy "), "the writer is next");
        assert_eq!(bench.writes(WRITER, "1", "stay"), both("granted 1"));
        assert!(!bench.server.exists(MARK));
        assert_eq!(bench.writes(WRITER, "2", "again"), both("granted 2"));
        assert!(bench.writes(NEXT, "1", "join").0.ends_with(WRITER));
        assert_eq!(bench.ends_writing(WRITER, "1"), both("released 0"));
        assert_eq!(bench.ends_writing(WRITER, "0"), once("released 0", "gone"));
        assert!(bench.state().is_empty());
        bench.reads(OTHER, "1", "first", "");
        bench.writes(WRITER, "1", "join");
        let published = bench.server.calls("publish");
        assert_eq!(bench.ends_writing(WRITER, "0"), both("gone"));
        assert_eq!((bench.server.exists(MARK), bench.server.calls("publish")), (false, published + 1));
    }

    #[test]
    fn reading_below_writing() {
        let mut bench = Bench::new();
        assert_eq!(bench.reads(ME, "1", "first", WRITER), both("lost"));
        bench.writes(WRITER, "1", "first");
        assert!(bench.reads(OTHER, "1", "first", "").0.starts_with("busy "));
        assert_eq!(bench.reads(ME, "1", "first", WRITER), both("granted 1"));
        let next = [WRITER, "30000", "0", NEXT, CHANNEL];
        assert_eq!(bench.twice(WRITE_HAND_OVER, &["x"], &next), both("deeper 1"));
        assert_eq!(bench.ends_writing(WRITER, "0"), once("released 0", "gone"));
        assert_eq!(bench.server.ask::<String>(&["HGET", "x", "mode"]), "read");
        assert_eq!(bench.ends_reading(ME, "0"), once("released 0", "gone"));
        bench.writes(WRITER, "1", "first");
        assert_eq!(bench.twice(WRITE_HAND_OVER, &["x"], &next), once("handed", "handed before"));
        assert_eq!(bench.twice(WRITE_HAND_OVER, &["x"], &[WRITER, "1", "0", "u:9:write", CHANNEL]).0, "gone");
    }

    #[test]
    fn looking_and_forcing() {
        let mut bench = Bench::new();
        let look = |bench: &mut Bench| bench.run(INSPECT, &["x"], &["", "0", "0", "", CHANNEL]);
        let force =
            |bench: &mut Bench, ids: &str| bench.twice(FORCE_UNLOCK, &["x"], &[ids, "0", "0", "PUBLISH", CHANNEL]);
        assert_eq!(look(&mut bench), "free");
        bench.reads(ME, "2", "first", "");
        bench.reads(OTHER, "1", "first", "");
        let found = look(&mut bench);
        assert!(found.starts_with("held ") && found.lines().count() == 2 && found.contains(ME), "{found}");
        assert_eq!(force(&mut bench, WRITER), both("gone"));
        assert_eq!(force(&mut bench, ME), once("released", "gone"));
        assert!(!bench.server.exists(&lives(ME)) && bench.server.exists("x"), "the other was not meant");
        assert_eq!(force(&mut bench, &format!("{ME}\n{OTHER}")), once("released", "gone"));
        assert!(bench.state().is_empty());
        assert_eq!(bench.server.calls("publish"), 2, "who waits is told, once each time");
    }
}

mod fair {
    use super::*;

    const KEYS: [&str; 3] = ["x", "redisson_lock_queue:{x}", "redisson_lock_timeout:{x}"];
    const CHANNEL: &str = "redisson_lock__channel:{x}";
    const ACQUIRE: &str = source!("lock/holder.lua", "fair/queue.lua", "fair/acquire.lua");
    const RELEASE: &str = source!("lock/rest.lua", "fair/queue.lua", "fair/release.lua");
    const FORCE_UNLOCK: &str = source!("lock/forced.lua", "lock/ends.lua", "fair/queue.lua", "fair/force_unlock.lua");
    const WAITERS: &str = source!("fair/waiters.lua");

    impl Bench {
        fn asks(&mut self, id: &str, count: &str, how: &str) -> (String, String) {
            self.twice(ACQUIRE, &KEYS, &[id, "30000", count, how, CHANNEL, "PUBLISH"])
        }

        fn ends(&mut self, id: &str, count: &str) -> (String, String) {
            self.twice(RELEASE, &KEYS, &[id, "0", count, "PUBLISH", CHANNEL])
        }

        fn line(&self) -> Vec<String> {
            self.server.ask(&["LRANGE", KEYS[1], "0", "-1"])
        }

        /// How many seconds a place lasts.
        fn place(&self, id: &str) -> u64 {
            let till: u64 = self.server.ask(&["ZSCORE", KEYS[2], id]);
            let now: (u64, u64) = self.server.ask(&["TIME"]);
            (till + 500 - now.0 * 1_000 - now.1 / 1_000) / 1_000
        }
    }

    #[test]
    fn taking_and_waiting_in_line() {
        let mut bench = Bench::new();
        assert_eq!(bench.asks(ME, "1", "again").0, "lost");
        assert_eq!(bench.asks(ME, "1", "join"), ("granted 1".to_owned(), "granted 1".to_owned()));
        assert_eq!(bench.asks(ME, "2", "again"), ("granted 2".to_owned(), "granted 2".to_owned()));
        assert!(bench.asks(OTHER, "1", "first").0.starts_with("busy "));
        assert_eq!(bench.asks(OTHER, "1", "stay").0, "out");
        assert!(bench.line().is_empty(), "neither takes a place");
        let first = bench.run(ACQUIRE, &KEYS, &[OTHER, "30000", "1", "join", CHANNEL, "PUBLISH"]);
        let words: Vec<_> = first.split(' ').collect();
        assert_eq!((words[0], words[2], words[3]), ("queued", "1", ME), "{first}");
        let second = bench.run(ACQUIRE, &KEYS, &[HEIR, "30000", "1", "join", CHANNEL, "PUBLISH"]);
        let again = bench.run(ACQUIRE, &KEYS, &[HEIR, "30000", "1", "join", CHANNEL, "PUBLISH"]);
        assert_eq!((second.split(' ').nth(2), again.split(' ').nth(2)), (Some("2"), Some("2")));
        assert_eq!(bench.line(), [OTHER, HEIR]);
        assert_eq!((bench.place(OTHER), bench.place(HEIR)), (30, 330), "a JVM before it takes off five minutes");
        assert_eq!(bench.ends(ME, "1"), ("released".to_owned(), "released".to_owned()));
    }

    #[test]
    fn giving_back_calls_the_next() {
        let mut bench = Bench::new();
        bench.asks(ME, "1", "join");
        bench.run(ACQUIRE, &KEYS, &[HEIR, "30000", "1", "join", CHANNEL, "PUBLISH"]);
        assert_eq!(bench.ends(ME, "0"), ("released".to_owned(), "gone".to_owned()));
        assert_eq!(bench.place(HEIR), 5, "its time to come runs");
        assert!(bench.asks(OTHER, "1", "first").0.starts_with("busy "), "it is not its turn");
        assert_eq!(bench.asks(HEIR, "1", "stay"), ("granted 1".to_owned(), "granted 1".to_owned()));
        assert!(bench.line().is_empty());
        assert_eq!(bench.ends(HEIR, "0").0, "released");
        assert!(bench.state().is_empty());
    }

    #[test]
    fn leaving_the_line() {
        let mut bench = Bench::new();
        bench.asks(ME, "1", "join");
        bench.run(ACQUIRE, &KEYS, &[HEIR, "30000", "1", "join", CHANNEL, "PUBLISH"]);
        assert_eq!(bench.ends(HEIR, "0"), ("gone".to_owned(), "gone".to_owned()));
        assert!(bench.line().is_empty());
        bench.put(&["SET", KEYS[1], "text"]);
        let error = bench.run(ACQUIRE, &KEYS, &[HEIR, "30000", "1", "join", CHANNEL, "PUBLISH"]);
        assert!(error.starts_with("error WRONGTYPE"), "{error}");
    }

    #[test]
    fn looking_and_forcing() {
        let mut bench = Bench::new();
        let look = |bench: &mut Bench| bench.run(WAITERS, &KEYS[..2], &["", "0", "0", "", CHANNEL]);
        assert_eq!(look(&mut bench), "free");
        bench.asks(ME, "1", "join");
        bench.run(ACQUIRE, &KEYS, &[HEIR, "30000", "1", "join", CHANNEL, "PUBLISH"]);
        bench.run(ACQUIRE, &KEYS, &[OTHER, "30000", "1", "join", CHANNEL, "PUBLISH"]);
        assert_eq!(look(&mut bench), format!("held {HEIR}\n{OTHER}"));
        let force = |id| [id, "0", "0", "PUBLISH", CHANNEL];
        assert_eq!(bench.twice(FORCE_UNLOCK, &KEYS, &force(OTHER)).0, "gone");
        let forced = bench.twice(FORCE_UNLOCK, &KEYS, &force(ME));
        assert_eq!(forced, ("released".to_owned(), "gone".to_owned()));
        assert_eq!(bench.place(HEIR), 5, "it was called, and its time to come runs");
        assert_eq!(bench.asks(HEIR, "1", "stay").0, "granted 1");
    }
}

mod plain_semaphore {
    use super::*;

    const ID: &str = "41414141414141414141414141410002";
    const KEYS: [&str; 2] = ["x", "leasehold_receipt:{x}:7"];
    const CHANNEL: &str = "redisson_sc:{x}";
    const ACQUIRE: &str = source!("latch/latch.lua", "plain_semaphore/receipt.lua", "plain_semaphore/acquire.lua");
    const RELEASE: &str = source!("latch/latch.lua", "plain_semaphore/receipt.lua", "plain_semaphore/release.lua");
    const CHANGE: &str = source!("latch/latch.lua", "plain_semaphore/receipt.lua", "plain_semaphore/change.lua");
    const AVAILABLE: &str = source!("latch/latch.lua", "plain_semaphore/available.lua");
    const TAKE_TWO: [&str; 5] = [ID, "60000", "2", "first", CHANNEL];
    const GIVE_BACK: [&str; 5] = [ID, "60000", "0", "PUBLISH", CHANNEL];
    const HOWS: [&str; 4] = ["new", "more", "back", "all"];

    fn change<'a>(n: &'a str, how: &'a str) -> [&'a str; 6] {
        ["7", "60000", n, "PUBLISH", CHANNEL, how]
    }

    fn both(said: &str) -> (String, String) {
        (said.to_owned(), said.to_owned())
    }

    fn is_free(bench: &Bench, permits: i64) -> bool {
        bench.server.ask::<i64>(&["GET", "x"]) == permits
    }

    #[test]
    fn permits_are_taken_once_and_returned_once() {
        let mut bench = Bench::new();
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &TAKE_TWO), both("busy -1 "));
        bench.put(&["SET", "x", "1"]);
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &TAKE_TWO), both("busy -1 "));
        bench.put(&["SET", "x", "3"]);
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &TAKE_TWO), both("granted"));
        assert!(is_free(&bench, 1));
        bench.put(&["PEXPIRE", KEYS[1], "5000"]);
        assert_eq!(bench.run(ACQUIRE, &KEYS, &TAKE_TWO), "granted");
        assert!(bench.server.pttl(KEYS[1]) > 50_000, "a retry makes the receipt last longer");
        let (first, second) = bench.twice(RELEASE, &KEYS, &GIVE_BACK);
        assert_eq!((&*first, &*second, is_free(&bench, 3)), ("released", "gone", true));
        assert_eq!(bench.twice(ACQUIRE, &KEYS, &TAKE_TWO), both("lost"));
        assert!(is_free(&bench, 3));
    }

    /// The client knows that they were taken, and that longer ago than a receipt lasts.
    #[test]
    fn permits_return_once_after_their_receipt_has_ended() {
        let mut bench = Bench::new();
        bench.put(&["SET", "x", "3"]);
        let back: [&str; 5] = [ID, "60000", "2", "PUBLISH", CHANNEL];
        for has_receipt in [false, true] {
            assert_eq!(bench.run(ACQUIRE, &KEYS, &TAKE_TWO), "granted");
            if !has_receipt {
                bench.put(&["DEL", KEYS[1]]);
            }
            let (first, second) = bench.twice(RELEASE, &KEYS, &back);
            assert_eq!((&*first, &*second, is_free(&bench, 3)), ("released", "gone", true));
            bench.put(&["DEL", KEYS[1]]);
        }
        bench.put(&["DEL", "x"]);
        assert_eq!(bench.run(RELEASE, &KEYS, &back), "gone");
        assert!(!bench.server.exists("x"), "a release creates none");
    }

    /// In this order they may come if a connection was lost.
    #[test]
    fn a_release_that_comes_first_leaves_nothing_to_take() {
        let mut bench = Bench::new();
        for before in [&["DEL", "x"][..], &["SET", "x", "3"], &["SET", "x", "many"]] {
            bench.put(&["DEL", KEYS[1]]);
            bench.put(before);
            let said = if before[2..] == ["many"] { "conflict" } else { "gone" };
            assert_eq!(bench.twice(RELEASE, &KEYS, &GIVE_BACK), both(said));
            bench.put(&["SET", "x", "3"]);
            assert_eq!(bench.twice(ACQUIRE, &KEYS, &TAKE_TWO), both("lost"));
            assert!(is_free(&bench, 3));
        }
        bench.put(&["DEL", KEYS[1]]);
        assert_eq!(bench.run(ACQUIRE, &KEYS, &TAKE_TWO), "granted");
        bench.put(&["DEL", "x"]);
        assert_eq!(bench.twice(RELEASE, &KEYS, &GIVE_BACK), both("gone"));
        assert!(!bench.server.exists("x"), "a release creates none");
    }

    /// What ran once, whatever it did, does nothing when it runs late.
    #[test]
    fn each_change_runs_once() {
        let mut bench = Bench::new();
        let cases = [
            (None, "new", "granted 0", Some(4)),
            (None, "more", "granted 0", Some(4)),
            (None, "back", "gone", None),
            (None, "all", "granted 0", None),
            (Some("3"), "new", "held", Some(3)),
            (Some("3"), "more", "granted 3", Some(7)),
            (Some("3"), "back", "granted 3", Some(7)),
            (Some("3"), "all", "granted 3", Some(0)),
            (Some("-3"), "all", "granted -3", Some(-3)),
            (Some("-9"), "back", "granted -9", Some(-5)),
        ];
        for (before, how, said, after) in cases {
            bench.put(&["DEL", "x", KEYS[1]]);
            before.into_iter().for_each(|free| bench.put(&["SET", "x", free, "PX", "70000"]));
            assert_eq!(bench.twice(CHANGE, &KEYS, &change("4", how)), both(said), "{how}");
            assert_eq!(bench.server.ask::<Option<i64>>(&["GET", "x"]), after, "{before:?} {how}");
            assert_eq!(bench.server.pttl("x") > 0, before.is_some(), "the end of its life stays");
            for later in [&["SET", "x", "9"][..], &["DEL", "x"]] {
                bench.put(later);
                assert_eq!(bench.twice(CHANGE, &KEYS, &change("4", how)), both(said), "{how}");
                assert_eq!(bench.server.exists("x"), later[0] == "SET");
            }
        }
    }

    #[test]
    fn too_large_a_number_changes_nothing() {
        let mut bench = Bench::new();
        let cases = [
            ("9223372036854775807", "1", "conflict"),
            ("1", "9223372036854775807", "error "),
            ("-9223372036854775808", "-1", "conflict"),
        ];
        for (free, more, said) in cases {
            bench.put(&["SET", "x", free]);
            let (first, second) = bench.twice(CHANGE, &KEYS, &change(more, "more"));
            assert!(first.starts_with(said) && second == first, "{first}, {second}");
            assert!(!bench.server.exists(KEYS[1]));
            assert_eq!(bench.server.ask::<String>(&["GET", "x"]), free);
        }
    }

    #[test]
    fn what_is_not_a_semaphore_stays() {
        let mut bench = Bench::new();
        for text in ["many", "", "1.5", "0x10", "007", "-0"] {
            bench.put(&["SET", "x", text]);
            for how in HOWS {
                assert_eq!(bench.twice(CHANGE, &KEYS, &change("4", how)), both("conflict"), "{text}");
            }
            assert_eq!(bench.twice(ACQUIRE, &KEYS, &TAKE_TWO), both("conflict"), "{text}");
            assert_eq!(bench.twice(AVAILABLE, &KEYS[..1], &TAKE_TWO), both("conflict"), "{text}");
            assert_eq!(bench.server.ask::<String>(&["GET", "x"]), text);
            assert!(!bench.server.exists(KEYS[1]));
        }
    }
}
