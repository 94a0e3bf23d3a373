//! The fair lock and its line.

use std::collections::BTreeMap;

use redis::Pipeline;

use super::{Hash, IDS, Real, Request, Rules, TICK, assert_seen, one_of, ours, sources, walk};

const LINE: &str = "redisson_lock_queue:{x}";
const PLACES: &str = "redisson_lock_timeout:{x}";
/// How long a place lasts, how long one that was called has to come, and what a JVM takes off.
const PLACE: i64 = 12;
const GRACE: i64 = 2;
const JVM: i64 = 120;
/// Of a head that never had a place.
const NEVER: i64 = -1_000_000;

#[derive(Clone, Debug, Default, PartialEq)]
struct Fair {
    lock: Option<Hash>,
    /// The next first.
    line: Vec<String>,
    /// Until when, counted from now.
    places: BTreeMap<String, i64>,
    listening: Vec<String>,
}

/// Whose turn it is, for how long, how many heard that, and how often somebody was called.
#[derive(Default)]
struct Called {
    first: Option<String>,
    till: i64,
    heard: u64,
    published: u64,
}

impl Called {
    fn answer(&self, code: &str) -> (String, u64) {
        let time = if self.first.is_some() { self.till } else { 0 };
        (format!("{code} {} {time}", self.heard), self.published)
    }
}

impl Fair {
    fn count(&self, id: &str) -> Option<u64> {
        self.lock.as_ref()?.count(id)
    }

    fn place(&self, id: &str) -> Option<usize> {
        self.line.iter().position(|other| other == id)
    }

    fn leave(&mut self, id: &str) {
        self.line.retain(|other| other != id);
        self.places.remove(id);
    }

    /// The lock is free, or `fresh`: free only now.
    fn call_next(&mut self, me: &str, fresh: bool) -> Called {
        let mut published = 0;
        loop {
            let Some(first) = self.line.first().cloned() else { return Called { published, ..Called::default() } };
            if first == me {
                return Called { first: Some(first), published, ..Called::default() };
            }
            let till = self.places.get(&first).copied().unwrap_or(NEVER);
            let is_called = !fresh && till <= GRACE;
            if is_called && till > 0 {
                return Called { first: Some(first), till, heard: 0, published };
            }
            if !is_called {
                published += 1;
                let heard = u64::from(self.listening.contains(&first));
                if let Some(turn) = turn(till, fresh && heard > 0) {
                    self.places.insert(first.clone(), turn);
                    return Called { first: Some(first), till: turn, heard, published };
                }
            }
            self.leave(&first);
            if is_called && !is_of_one_client(&first, me) {
                published += self.sweep(&first);
            }
        }
    }

    /// One did not come: those of its client that do not listen leave. How many were called.
    fn sweep(&mut self, gone: &str) -> u64 {
        let theirs: Vec<_> = self.line.iter().filter(|id| is_of_one_client(id, gone)).cloned().collect();
        for id in &theirs {
            if !self.listening.contains(id) {
                self.leave(id);
            }
        }
        u64::try_from(theirs.len()).expect("few")
    }

    fn acquire(&mut self, id: &str, lease: i64, level: u64, how: &str) -> (String, u64) {
        if let Some(lock) = self.lock.as_mut().filter(|lock| lock.count(id).is_some()) {
            lock.set(id, level);
            lock.lasts(lease);
            return (format!("granted {level}"), 0);
        }
        let theirs = self.lock.as_ref().map_or(Some(String::new()), |lock| lock.holder().cloned());
        match theirs {
            _ if how == "again" => ("lost".to_owned(), 0),
            None => ("conflict".to_owned(), 0),
            _ if how == "stay" && self.place(id).is_none() => ("out".to_owned(), 0),
            Some(theirs) => self.take_or_wait(id, lease, level, (how, &theirs)),
        }
    }

    fn take_or_wait(&mut self, id: &str, lease: i64, level: u64, (how, theirs): (&str, &str)) -> (String, u64) {
        let (left, published) = match &self.lock {
            Some(lock) => (lock.left, 0),
            None => {
                let called = self.call_next(id, false);
                if called.first.as_deref().is_none_or(|first| first == id) {
                    self.leave(id);
                    self.lock = Some(Hash::of(None, id, level, lease));
                    return (format!("granted {level}"), called.published);
                }
                (called.till, called.published)
            }
        };
        if how == "first" {
            return (format!("busy {left} {theirs}"), published);
        }
        let place = self.stand(id);
        (format!("queued {left} {place} {theirs}"), published)
    }

    /// In line: in which place, from 1.
    fn stand(&mut self, id: &str) -> usize {
        let before = self.place(id).unwrap_or(self.line.len());
        if self.place(id) == Some(0) && self.places.get(id).is_some_and(|till| (1 - GRACE..=GRACE).contains(till)) {
            return 1; // it was called a while ago, though its lock is held: for another lock that shares the line
        }
        if before == self.line.len() {
            self.line.push(id.to_owned());
        }
        let jvms = self.line[..before].iter().filter(|other| !ours(other)).count();
        self.places.insert(id.to_owned(), PLACE + JVM * i64::try_from(jvms).expect("few"));
        before + 1
    }

    fn release(&mut self, id: &str, rest: i64, level: u64) -> (String, u64) {
        match (self.count(id), level) {
            (None, 0) if self.count(&rest_of(id)).is_some() => self.told_head(),
            (None, 0) => {
                let was = self.place(id);
                if was.is_some() {
                    self.leave(id);
                }
                if self.lock.is_some() {
                    return ("gone 0 0".to_owned(), 0);
                }
                self.call_next("", was == Some(0)).answer("gone")
            }
            (None, _) => ("gone 0 0".to_owned(), 0),
            (Some(_), 0) if rest > 0 => {
                self.lock = Some(Hash::of(None, &rest_of(id), 1, rest));
                self.told_head()
            }
            (Some(_), 0) => {
                self.lock = None;
                self.call_next("", true).answer("released")
            }
            (Some(_), level) => {
                self.lock.iter_mut().for_each(|lock| lock.set(id, level));
                ("released 0 0".to_owned(), 0)
            }
        }
    }

    /// It is told to look when the time of the one that was released early is over.
    fn told_head(&self) -> (String, u64) {
        let hears = self.line.first().is_some_and(|head| self.listening.contains(head));
        (format!("released {} 0", u8::from(hears)), u64::from(!self.line.is_empty()))
    }

    fn force_unlock(&mut self, id: &str) -> (String, u64) {
        if self.count(id).is_none() {
            return ("gone".to_owned(), 0);
        }
        self.lock = None;
        ("released".to_owned(), self.call_next("", true).published)
    }

    fn waiters(&self) -> (String, u64) {
        let line = self.line.join("\n");
        (if line.is_empty() { "free".to_owned() } else { format!("held {line}") }, 0)
    }

    /// Somebody comes who will not ask again, with a place or without.
    fn stands_in_line(&mut self, id: &str, place: Option<i64>) {
        if self.place(id).is_none() {
            self.line.push(id.to_owned());
        }
        match place {
            Some(place) => _ = self.places.insert(id.to_owned(), place),
            None => _ = self.places.remove(id),
        }
    }
}

/// What stays of a hold that is released early.
fn rest_of(id: &str) -> String {
    format!("{id}:rest")
}

fn is_of_one_client(one: &str, other: &str) -> bool {
    one.rsplit_once(':').map(|id| id.0) == other.rsplit_once(':').map(|id| id.0)
}

/// The turn of one that is called: one whose place is over has it only if it listens.
fn turn(till: i64, listens: bool) -> Option<i64> {
    match listens {
        true => Some(till.max(GRACE)),
        false => (till > 0).then_some(till.min(GRACE)),
    }
}

impl Rules for Fair {
    const CHANNEL: &'static str = "redisson_lock__channel:{x}";

    fn run(&mut self, request: &Request) -> (String, u64) {
        let Request { script, id, lease, level, more, .. } = request;
        match *script {
            "acquire" => self.acquire(id, *lease, *level, more),
            "release" => self.release(id, *lease, *level),
            "force_unlock" => self.force_unlock(id),
            _ => self.waiters(),
        }
    }

    fn source(script: &str) -> String {
        sources! { script;
            "acquire": "lock/holder", "fair/queue", "fair/acquire";
            "release": "lock/rest", "fair/queue", "fair/release";
            "force_unlock": "lock/forced", "fair/queue", "fair/force_unlock";
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
            _ => {
                let time = rng.i64(1..=3);
                self.lock = self.lock.take().and_then(|lock| lock.later(time));
                self.places.values_mut().for_each(|till| *till -= time);
            }
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
