//! The rules of the model against the scripts on a real server: the same replies and the same lock after every step.
//! A tick is so long here that the time a test takes is none.

use std::{
    collections::HashSet,
    mem::{Discriminant, discriminant},
    thread::sleep,
    time::{Duration, Instant},
};

use redis::{Connection, FromRedisValue};

use crate::{
    rules::{Id, Lock, Reply, Request, Ticks, What, pass, resting, run},
    server::Server,
    units::RESTING,
};

const TICK: i64 = 1_000_000; // milliseconds

/// Two holds of one client, and one of another.
const IDS: [&str; 3] = [
    "6b1c7d3e-0000-4000-8000-000000000001:1",
    "6b1c7d3e-0000-4000-8000-000000000001:2",
    "ffffffff-0000-4000-8000-000000000002:1",
];
/// What stays of each that is released early.
const RESTS: [&str; 3] = [
    "6b1c7d3e-0000-4000-8000-000000000001:1:rest",
    "6b1c7d3e-0000-4000-8000-000000000001:2:rest",
    "ffffffff-0000-4000-8000-000000000002:1:rest",
];

const LEVELS: std::ops::RangeInclusive<u8> = 1..=3;
const LEASES: std::ops::RangeInclusive<Ticks> = 1..=3;

macro_rules! script {
    ($name:literal) => {
        concat!(
            include_str!("../../src/redis/frame.lua"),
            include_str!("../../src/primitives/lock/holder.lua"),
            include_str!("../../src/primitives/lock/move.lua"),
            include_str!("../../src/primitives/lock/rest.lua"),
            include_str!("../../src/primitives/lock/forced.lua"),
            include_str!("../../src/primitives/lock/ends.lua"),
            include_str!(concat!("../../src/primitives/lock/", $name, ".lua"))
        )
    };
}

/// One lock on a server of its own.
struct Real {
    server: Server,
    raw: Connection,
    /// Releases that should have been published so far.
    published: u64,
    /// The kinds of replies that came.
    seen: HashSet<Discriminant<Reply>>,
}

impl Real {
    fn start() -> Real {
        let server = Server::start();
        let raw = server.raw();
        Real { server, raw, published: 0, seen: HashSet::new() }
    }

    fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(word));
        command.query(&mut self.raw).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn put(&mut self, lock: Option<Lock>) {
        let _: u32 = self.ask(&["DEL", "lock"]);
        let Some(Lock { id, count, left }) = lock else { return };
        let _: u32 = self.ask(&["HSET", "lock", text(id), &count.to_string()]);
        if let Some(left) = left {
            let _: u32 = self.ask(&["PEXPIRE", "lock", &millis(left).to_string()]);
        }
    }

    fn lock(&mut self) -> Option<Lock> {
        let fields: Vec<(String, u8)> = self.ask(&["HGETALL", "lock"]);
        assert!(fields.len() <= 1, "a lock has one field: {fields:?}");
        let (id, count) = fields.first()?;
        let left = self.ask(&["PTTL", "lock"]);
        Some(Lock { id: number(id), count: *count, left: ticks(left) })
    }

    fn run(&mut self, Request { id, what }: Request) -> Reply {
        let (source, lease, level, more) = match what {
            What::Acquire { level, lease, again } => {
                (script!("acquire"), lease, level, if again { "again" } else { "first" })
            }
            What::Renew { lease } => (script!("renew"), lease, 0, ""),
            What::Release { level } => (script!("release"), 0, level, "PUBLISH"),
            What::ReleaseEarly { rest } => (script!("release"), rest, 0, "PUBLISH"),
            What::HandOver { heir, lease } => (script!("hand_over"), lease, 0, text(heir)),
            What::ForceUnlock => (script!("force_unlock"), 0, 0, "PUBLISH"),
            What::Inspect => (script!("inspect"), 0, 0, ""),
        };
        self.invoke(id, source, (millis(lease).to_string(), level, more))
    }

    fn invoke(&mut self, id: Id, source: &str, (lease, level, more): (String, u8, &str)) -> Reply {
        let script = redis::Script::new(source);
        let mut call = script.prepare_invoke();
        call.key("lock").arg(1).arg("nonce");
        call.arg(text(id)).arg(lease).arg(level).arg(more).arg("redisson_lock__channel:{lock}");
        let answer: String = call.invoke(&mut self.raw).expect("it runs");
        reply(answer.strip_prefix("nonce ").expect("the nonce first"))
    }

    /// One step of both. The lock after it.
    fn step(&mut self, lock: Option<Lock>, request: Request, of: &str) -> Option<Lock> {
        let after = run(lock, request);
        let really = (self.run(request), self.lock());
        assert_eq!(really, (after.reply, after.lock), "the scripts, and the rules, {of}: {request:?} of {lock:?}");
        self.published += u64::from(after.published);
        self.seen.insert(discriminant(&after.reply));
        after.lock
    }

    fn assert_all_was_seen(&self) {
        assert_eq!(self.server.calls("publish"), self.published, "releases published");
        assert_eq!(self.seen.len(), 11, "kinds of replies");
    }

    /// The lease ends on the server's own clock.
    fn expire(&mut self) {
        let _: u32 = self.ask(&["PEXPIRE", "lock", "1"]);
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.ask::<bool>(&["EXISTS", "lock"]) {
            assert!(Instant::now() < deadline, "the lock does not expire");
            sleep(Duration::from_millis(1));
        }
    }
}

fn millis(time: Ticks) -> i64 {
    i64::from(time) * TICK
}

/// Times left run down between two looks, by much less than a tick.
fn ticks(left: i64) -> Option<Ticks> {
    (left >= 0).then(|| Ticks::try_from((left + TICK - 1) / TICK).expect("a few ticks"))
}

fn text(id: Id) -> &'static str {
    let at = usize::from(id % RESTING);
    if id < RESTING { IDS[at] } else { RESTS[at] }
}

fn number(id: &str) -> Id {
    let at = |ids: &[&str; 3]| ids.iter().position(|known| *known == id).map(|at| Id::try_from(at).expect("a handful"));
    at(&IDS).or_else(|| at(&RESTS).map(resting)).expect("an id of this test")
}

fn reply(answer: &str) -> Reply {
    let level = |count: &str| count.parse().expect("a count");
    let left = |left: &str| ticks(left.parse().expect("a time"));
    match *answer.split(' ').collect::<Vec<_>>() {
        ["granted", count] => Reply::Granted(level(count)),
        ["lost"] => Reply::Lost,
        ["busy", rest, id] => Reply::Busy(left(rest), number(id)),
        ["kept", rest] => Reply::Kept(left(rest)),
        ["gone"] => Reply::Gone,
        ["released"] | ["released", _] => Reply::Released,
        ["handed"] => Reply::Handed,
        ["handed", "before"] => Reply::HandedBefore,
        ["deeper", count] => Reply::Deeper(level(count)),
        ["free"] => Reply::Free,
        ["held", count, rest, id] => Reply::Held(number(id), level(count), left(rest)),
        _ => panic!("no reply of a script: {answer}"),
    }
}

fn ids() -> impl Iterator<Item = Id> {
    (0..IDS.len()).map(|id| Id::try_from(id).expect("a handful"))
}

fn all_locks() -> Vec<Option<Lock>> {
    let mut all = vec![None];
    all.extend(ids().map(|id| Some(Lock { id: resting(id), count: 1, left: Some(1) })));
    for id in ids() {
        for count in LEVELS {
            let lefts = LEASES.map(Some).chain([None]);
            all.extend(lefts.map(|left| Some(Lock { id, count, left })));
        }
    }
    all
}

fn all_requests() -> Vec<Request> {
    let mut all = vec![What::ForceUnlock, What::Inspect, What::Renew { lease: 0 }, What::Release { level: 0 }];
    all.extend(LEVELS.map(|level| What::Release { level }));
    for lease in LEASES {
        all.extend([What::Renew { lease }, What::ReleaseEarly { rest: lease }]);
        all.extend(ids().map(|heir| What::HandOver { heir, lease }));
        for level in LEVELS {
            all.extend([true, false].map(|again| What::Acquire { level, lease, again }));
        }
    }
    let rests = ids().map(|id| Request { id: resting(id), what: What::ForceUnlock });
    all.iter().flat_map(|what| ids().map(|id| Request { id, what: *what })).chain(rests).collect()
}

#[test]
fn every_request_to_every_lock() {
    let mut real = Real::start();
    for lock in all_locks() {
        for request in all_requests() {
            real.put(lock);
            real.step(lock, request, "alone");
        }
    }
    real.assert_all_was_seen();
}

/// Long sequences, in which a lock gets where no test would put it. Time passes by steps, and sometimes really.
#[test]
fn random_sequences() {
    let mut real = Real::start();
    for seed in 1..=4 {
        random_sequence(&mut real, seed, 1_000);
    }
    real.assert_all_was_seen();
}

fn random_sequence(real: &mut Real, seed: u64, steps: usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let requests = all_requests();
    real.put(None);
    let mut lock = None;
    for step in 0..steps {
        lock = match rng.u8(..) {
            0 => {
                real.expire();
                None
            }
            1..40 => {
                let later = pass(lock, rng.u8(1..=2));
                real.put(later);
                later
            }
            _ => {
                let request = *rng.choice(&requests).expect("there are some");
                real.step(lock, request, &format!("seed {seed}, step {step}"))
            }
        };
    }
}
