//! The fair lock and its line.

use redis::Pipeline;

use super::{
    Hash, IDS, Real, Request, Rules, TICK, assert_seen, one_of,
    rules::{fair::Fair, hash::How},
    sources, walk,
};
use crate::units::{JVM, PLACE};

const LINE: &str = "redisson_lock_queue:{x}";
const PLACES: &str = "redisson_lock_timeout:{x}";

fn asked(how: &str) -> How {
    match how {
        "join" => How::Wait,
        "stay" => How::Stay,
        "again" => How::Again,
        _ => How::First,
    }
}

fn waiters(line: &[String]) -> String {
    if line.is_empty() { "free".to_owned() } else { format!("held {}", line.join("\n")) }
}

impl Rules for Fair {
    const CHANNEL: &'static str = "redisson_lock__channel:{x}";

    fn run(&mut self, request: &Request) -> (String, u64) {
        let Request { script, id, lease, level, more, .. } = request;
        let (answer, published) = match *script {
            "acquire" => {
                let (answer, published) = self.acquire(id, *lease, *level, asked(more));
                (answer.to_string(), published.len())
            }
            "release" => {
                let (answer, published) = self.release(id, *lease, *level);
                (answer.to_string(), published.len())
            }
            "force_unlock" => {
                let (found, published) = self.force_unlock(id);
                (if found { "released" } else { "gone" }.to_owned(), published.len())
            }
            _ => (waiters(&self.line), 0),
        };
        (answer, u64::try_from(published).expect("few"))
    }

    fn source(script: &str) -> String {
        sources! { script;
            "acquire": "lock/holder", "fair/queue", "fair/acquire";
            "release": "lock/rest", "fair/queue", "fair/release";
            "force_unlock": "lock/forced", "lock/ends", "fair/queue", "fair/force_unlock";
            "waiters": "fair/waiters";
        }
    }

    fn keys(request: &Request) -> Vec<String> {
        let keys = if request.script == "waiters" { &["x", LINE][..] } else { &["x", LINE, PLACES] };
        keys.iter().map(|&key| key.to_owned()).collect()
    }

    fn any(rng: &mut fastrand::Rng) -> Request {
        let scripts = ["acquire", "acquire", "acquire", "release", "release", "force_unlock", "waiters"];
        let (script, id) = (one_of(rng, &scripts), one_of(rng, &IDS));
        let more = match script {
            "acquire" => one_of(rng, &["join", "join", "stay", "stay", "first", "again"]),
            _ => "PUBLISH",
        };
        let level = if script == "release" { one_of(rng, &[0, 0, 1, 2]) } else { rng.u64(1..=3) };
        let last = (script == "acquire").then(|| "PUBLISH".to_owned());
        let lease = if script == "release" { one_of(rng, &[0, 0, 0, 2]) } else { rng.i64(1..=4) };
        Request { script, id: id.to_owned(), lease, level, more: more.to_owned(), last }
    }

    fn disturb(&mut self, rng: &mut fastrand::Rng) {
        let id = one_of(rng, &IDS);
        match rng.u8(..16) {
            0 => self.lock = Some(Hash::of(None, "no hold", 1, 3)),
            1 => self.lock.iter_mut().for_each(|lock| lock.left = -1),
            2..5 => self.lock = None,
            5 => _ = self.places.remove(id),
            6 => self.places.values_mut().for_each(|till| *till -= JVM), // a JVM has got the lock
            7 | 8 => self.stands_in_line(IDS[3], Some(PLACE + JVM)),
            9 => self.stands_in_line(id, None),
            10 => self.stands_in_line(id, Some(rng.i64(-1..=4))),
            _ => self.pass(rng.i64(1..=3)),
        }
    }

    fn put(&self, commands: &mut Pipeline, now: i64) {
        self.lock.iter().for_each(|lock| lock.put(commands, "x"));
        self.line.iter().for_each(|id| _ = commands.cmd("RPUSH").arg(LINE).arg(id));
        for (id, till) in &self.places {
            commands.cmd("ZADD").arg(PLACES).arg(now + till * TICK).arg(id);
        }
    }

    fn look(real: &mut Real) -> Fair {
        let now = real.now();
        let places: Vec<(String, i64)> = real.ask(&["ZRANGE", PLACES, "0", "-1", "WITHSCORES"]);
        // Rounded as times that are left, on both sides of now.
        let left = |till: i64| (till - now + TICK / 2).div_euclid(TICK);
        let found = Fair {
            lock: Hash::look(real, "x"),
            line: real.ask(&["LRANGE", LINE, "0", "-1"]),
            places: places.into_iter().map(|(id, till)| (id, left(till))).collect(),
            listening: real.listening.clone(),
        };
        let known = [found.lock.is_some(), !found.line.is_empty(), !found.places.is_empty()];
        assert_eq!(real.ask::<usize>(&["DBSIZE"]), known.iter().filter(|known| **known).count(), "no other keys");
        found
    }
}

/// With nobody who listens, and with half of them.
#[test]
fn random_sequences() {
    let mut real = Real::start();
    (1..=2).for_each(|seed| walk::<Fair>(&mut real, seed, 1_000));
    let _listening = real.listen(Fair::CHANNEL, &[IDS[0], IDS[3]]);
    (3..=4).for_each(|seed| walk::<Fair>(&mut real, seed, 1_000));
    let answers = [
        "acquire: busy",
        "acquire: conflict",
        "acquire: granted",
        "acquire: lost",
        "acquire: out",
        "acquire: queued",
        "force_unlock: gone",
        "force_unlock: released",
        "release: gone",
        "release: released",
        "waiters: free",
        "waiters: held",
    ];
    assert_seen(&real, &answers);
}
