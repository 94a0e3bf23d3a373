//! The fenced lock.

use redis::Pipeline;

use super::{Hash, IDS, Real, Request, Rules, assert_seen, one_of, rules::fenced::Fenced, sources, walk};

const TOKEN: &str = "redisson_lock_token:{x}";
const REPORT: &str = "report";

impl Rules for Fenced {
    const CHANNEL: &'static str = "redisson_lock__channel:{x}";

    fn run(&mut self, request: &Request) -> (String, u64) {
        let Request { script, id, lease, level, more, .. } = request;
        let answer = match *script {
            "acquire" => self.acquire(id, *lease, *level, more == "again"),
            "hand_over" => self.hand_over(id, *lease, more),
            _ => self.write(id, &(lease * super::TICK).to_string()),
        };
        (answer.to_string(), 0)
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
