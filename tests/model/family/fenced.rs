//! The fenced lock.

use redis::Pipeline;

use super::{Hash, IDS, Real, Request, Rules, assert_seen, one_of, sources, walk};

const TOKEN: &str = "redisson_lock_token:{x}";
const REPORT: &str = "report";

#[derive(Clone, Debug, Default, PartialEq)]
struct Fenced {
    lock: Option<Hash>,
    token: Option<u64>,
    /// What is written while it is held.
    report: Option<String>,
}

impl Fenced {
    fn acquire(&mut self, id: &str, lease: i64, level: u64, again: bool) -> String {
        if let Some(lock) = self.lock.as_mut().filter(|lock| lock.count(id).is_some()) {
            lock.set(id, level);
            lock.lasts(lease);
            return format!("granted {}", self.token_of());
        }
        match &self.lock {
            _ if again => "lost".to_owned(),
            Some(lock) => lock.holder().map_or("conflict".to_owned(), |theirs| format!("busy {} {theirs}", lock.left)),
            None => {
                self.token = Some(self.token.unwrap_or(0) + 1);
                self.lock = Some(Hash::of(None, id, level, lease));
                format!("granted {}", self.token_of())
            }
        }
    }

    fn hand_over(&mut self, id: &str, lease: i64, heir: &str) -> String {
        let Some(lock) = &mut self.lock else { return "gone".to_owned() };
        if lock.count(heir).is_some() {
            lock.lasts(lease);
            return format!("handed before {}", self.token_of());
        }
        match lock.count(id) {
            None => "gone".to_owned(),
            Some(1) => {
                lock.set(heir, 1);
                lock.remove(id);
                lock.left = lease;
                self.token = Some(self.token.unwrap_or(0) + 1);
                format!("handed {}", self.token_of())
            }
            Some(count) => format!("deeper {count}"),
        }
    }

    fn write(&mut self, id: &str, value: &str) -> String {
        if self.lock.as_ref().and_then(|lock| lock.count(id)).is_none() {
            return "gone".to_owned();
        }
        self.report = Some(value.to_owned());
        "kept".to_owned()
    }

    /// One that was deleted begins anew.
    fn token_of(&mut self) -> u64 {
        *self.token.get_or_insert(1)
    }
}

impl Rules for Fenced {
    const CHANNEL: &'static str = "redisson_lock__channel:{x}";

    fn run(&mut self, request: &Request) -> (String, u64) {
        let Request { script, id, lease, level, more, .. } = request;
        let answer = match *script {
            "acquire" => self.acquire(id, *lease, *level, more == "again"),
            "hand_over" => self.hand_over(id, *lease, more),
            _ => self.write(id, &(lease * super::TICK).to_string()),
        };
        (answer, 0)
    }

    fn source(script: &str) -> String {
        sources! { script;
            "acquire": "lock/holder", "fenced/token", "fenced/acquire";
            "hand_over": "lock/move", "fenced/token", "fenced/hand_over";
            "write": "fenced/write";
        }
    }

    fn keys(request: &Request) -> Vec<String> {
        vec!["x".to_owned(), if request.script == "write" { REPORT } else { TOKEN }.to_owned()]
    }

    fn any(rng: &mut fastrand::Rng) -> Request {
        let (script, id) = (one_of(rng, &["acquire", "acquire", "hand_over", "write"]), one_of(rng, &IDS));
        let more = match script {
            "acquire" => one_of(rng, &["first", "first", "again"]),
            _ => one_of(rng, &IDS),
        };
        let (lease, level) = (rng.i64(1..=4), rng.u64(1..=3));
        Request { script, id: id.to_owned(), lease, level, more: more.to_owned(), last: None }
    }

    fn disturb(&mut self, rng: &mut fastrand::Rng) {
        match rng.u8(..12) {
            0 => self.token = None,
            1 => self.token = Some(9_007_199_254_740_993), // a number that a float does not have
            2 => self.lock = Some(Hash::of(None, "no hold", 1, -1)),
            3 => self.lock.iter_mut().for_each(|lock| lock.left = -1),
            4 => self.lock.iter_mut().for_each(|lock| lock.set(IDS[3], 1)),
            5..9 => self.lock = None,
            _ => self.lock = self.lock.take().and_then(|lock| lock.later(2)),
        }
    }

    fn put(&self, commands: &mut Pipeline, _: i64) {
        self.lock.iter().for_each(|lock| lock.put(commands, "x"));
        self.token.iter().for_each(|token| _ = commands.cmd("SET").arg(TOKEN).arg(token));
        self.report.iter().for_each(|report| _ = commands.cmd("SET").arg(REPORT).arg(report));
    }

    fn look(real: &mut Real) -> Fenced {
        let found = Fenced {
            lock: Hash::look(real, "x"),
            token: real.ask(&["GET", TOKEN]),
            report: real.ask(&["GET", REPORT]),
        };
        let known = [found.lock.is_some(), found.token.is_some(), found.report.is_some()];
        assert_eq!(real.ask::<usize>(&["DBSIZE"]), known.iter().filter(|known| **known).count(), "no other keys");
        found
    }
}

#[test]
fn random_sequences() {
    let mut real = Real::start();
    (1..=4).for_each(|seed| walk::<Fenced>(&mut real, seed, 500));
    let answers = [
        "acquire: busy",
        "acquire: conflict",
        "acquire: granted",
        "acquire: lost",
        "hand_over: deeper",
        "hand_over: gone",
        "hand_over: handed",
        "write: gone",
        "write: kept",
    ];
    assert_seen(&real, &answers);
}
