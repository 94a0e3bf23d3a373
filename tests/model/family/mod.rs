//! What the scripts of the other kinds of locks do, one pure function for each, and these held against the scripts on a real server:
//! random requests, each run one to three times or later, give the same answers and leave the same keys.
//!
//! Time is in ticks of 2.5 s: what a step takes is next to nothing of it, and all times that the scripts know are made of it.

mod fair;
mod fenced;
mod hash;
pub(crate) mod rules;
mod rw;

use std::{
    collections::BTreeSet,
    fmt::Debug,
    io::Write,
    net::TcpStream,
    thread::sleep,
    time::{Duration, Instant},
};

use redis::{Connection, FromRedisValue, Pipeline};

use crate::server::Server;
use hash::Hash;

const TICK: i64 = 2_500; // milliseconds
/// Times are rounded to ticks, so this much may pass without a difference.
const ROUNDED: Duration = Duration::from_millis(TICK as u64 * 2 / 5);

/// Two holds of one client of ours, one of another, one of a JVM.
const IDS: [&str; 4] = [
    "6b1c7d3e-0000-8000-8000-000000000001:1",
    "6b1c7d3e-0000-8000-8000-000000000001:2",
    "77777777-0000-8000-8000-000000000003:1",
    "ffffffff-0000-4000-8000-000000000002:9",
];

/// All scripts have these arguments.
#[derive(Clone, Debug, Default)]
struct Request {
    script: &'static str,
    id: String,
    lease: i64,
    level: u64,
    more: String,
    last: Option<String>,
}

/// What the server has of one lock, and what its scripts make of it.
trait Rules: Clone + Debug + Default + PartialEq {
    const CHANNEL: &'static str;

    /// The answer, with times in ticks, and how often something is published.
    fn run(&mut self, request: &Request) -> (String, u64);

    fn source(script: &str) -> String;
    fn keys(request: &Request) -> Vec<String>;
    fn any(rng: &mut fastrand::Rng) -> Request;

    /// What happens beside the scripts: time passes, JVMs come and go, keys vanish.
    fn disturb(&mut self, rng: &mut fastrand::Rng);

    fn put(&self, commands: &mut Pipeline, now: i64);
    fn look(real: &mut Real) -> Self;
}

macro_rules! sources {
    ($script:expr; $($name:literal: $($file:literal),+;)+) => {
        match $script {
            $($name => concat!(
                include_str!("../../../src/redis/frame.lua"),
                $(include_str!(concat!("../../../src/primitives/", $file, ".lua"))),+
            ),)+
            other => unreachable!("no script {other}"),
        }
        .to_owned()
    };
}
pub(crate) use sources;

/// One lock on a server of its own.
struct Real {
    server: Server,
    raw: Connection,
    /// Who listens on a channel of its own, for good.
    listening: Vec<String>,
    published: u64,
    /// The last time at which a state was put there.
    put_at: Instant,
    /// The kinds of answers that came, by script.
    seen: BTreeSet<String>,
}

impl Real {
    fn start() -> Real {
        let server = Server::start();
        let raw = server.raw();
        Real { server, raw, listening: Vec::new(), published: 0, put_at: Instant::now(), seen: BTreeSet::new() }
    }

    /// Subscribes for these until the stream is dropped.
    fn listen(&mut self, channel: &str, ids: &[&str]) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.server.port())).expect("our own server");
        let channels: String = ids.iter().map(|id| format!(" {channel}:{id}")).collect();
        stream.write_all(format!("SUBSCRIBE{channels}\r\n").as_bytes()).expect("it listens");
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.server.channels().len() < ids.len() {
            assert!(Instant::now() < deadline, "the server does not hear who listens");
            sleep(Duration::from_millis(1));
        }
        self.listening = ids.iter().map(|&id| id.to_owned()).collect();
        stream
    }

    fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(word));
        command.query(&mut self.raw).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The server's clock, in milliseconds.
    fn now(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = self.ask(&["TIME"]);
        seconds * 1_000 + micros / 1_000
    }

    /// Ticks left; -1 without an end, `None` without the key.
    fn left(&mut self, key: &str) -> Option<i64> {
        let left: i64 = self.ask(&["PTTL", key]);
        (left > -2).then(|| ticks(left))
    }

    fn put<R: Rules>(&mut self, state: &R) {
        self.put_at = Instant::now();
        let now = self.now();
        let mut commands = redis::pipe();
        commands.cmd("FLUSHDB");
        state.put(&mut commands, now);
        let _: redis::Value = commands.query(&mut self.raw).expect("what a test puts");
    }

    fn run<R: Rules>(&mut self, request: &Request) -> String {
        let script = redis::Script::new(&R::source(request.script));
        let mut call = script.prepare_invoke();
        R::keys(request).iter().for_each(|key| _ = call.key(key));
        // A lease below zero is a correction, which says what it has seen.
        let keys = R::keys(request);
        let mut seen = |keys: &[String]| self.ask::<i64>(&["PTTL", keys.last().expect("some")]).max(0);
        let lease = match request.lease * TICK {
            lease @ ..0 => format!("{lease}:{}", seen(&keys)),
            lease => lease.to_string(),
        };
        call.arg(1).arg("nonce").arg(&request.id).arg(lease).arg(request.level).arg(&request.more);
        call.arg(R::CHANNEL).arg(&request.last);
        let answer: String = call.invoke(&mut self.raw).expect("it runs");
        let answer = answer.strip_prefix("nonce ").expect("the nonce first");
        self.seen.insert(format!("{}: {}", request.script, answer.split([' ', '\n']).next().expect("a code")));
        in_ticks(answer)
    }

    /// One step of both. The state after it. A machine that stands still for too long repeats it, because the rules have no time in between.
    fn step<R: Rules>(&mut self, state: &R, request: &Request, of: &str) -> R {
        let mut after = state.clone();
        let (answer, published) = after.run(request);
        let really = loop {
            let really = (self.run::<R>(request), R::look(self));
            self.published += published;
            if self.put_at.elapsed() < ROUNDED {
                break really;
            }
            self.put(state);
        };
        assert_eq!(really, (answer, after.clone()), "the scripts, and the rules, {of}: {request:?} of {state:?}");
        after
    }
}

fn ticks(millis: i64) -> i64 {
    if millis < 0 { millis } else { (millis + TICK / 2) / TICK }
}

/// The same answer with its times in ticks.
fn in_ticks(answer: &str) -> String {
    let code = answer.split(' ').next().expect("a code");
    let lines = answer.strip_prefix("held ").filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    match (code, lines) {
        ("busy" | "queued" | "kept", _) => timed(answer, 1),
        ("released" | "gone", _) => timed(answer, 2),
        ("held", Some(lines)) if lines.split(' ').count() > 2 => {
            format!("held {}", lines.lines().map(|line| timed(line, 1)).collect::<Vec<_>>().join("\n"))
        }
        _ => answer.to_owned(),
    }
}

/// The word at that place is a time.
fn timed(words: &str, at: usize) -> String {
    let word = |(n, word): (usize, &str)| match word.parse() {
        Ok(millis) if n == at => ticks(millis).to_string(),
        _ => word.to_owned(),
    };
    words.split(' ').enumerate().map(word).collect::<Vec<_>>().join(" ")
}

fn one_of<T: Clone>(rng: &mut fastrand::Rng, all: &[T]) -> T {
    rng.choice(all).expect("there are some").clone()
}

/// A random sequence. Some requests are kept back and run later, too.
fn walk<R: Rules>(real: &mut Real, seed: u64, steps: usize) {
    let (mut rng, mut state, mut late) = (fastrand::Rng::with_seed(seed), R::default(), Vec::new());
    for step in 0..steps {
        if rng.u8(..4) == 0 {
            state.disturb(&mut rng);
        }
        let request = match rng.u8(..8) {
            0 if !late.is_empty() => late.swap_remove(rng.usize(..late.len())),
            _ => R::any(&mut rng),
        };
        if rng.u8(..8) == 0 {
            late.push(request.clone());
        }
        real.put(&state);
        state = R::look(real);
        for _ in 0..rng.u8(1..=3) {
            state = real.step(&state, &request, &format!("seed {seed}, step {step}"));
        }
    }
}

/// What all walks together have published and answered.
fn assert_seen(real: &Real, answers: &[&str]) {
    assert_eq!(real.server.calls("publish"), real.published, "published");
    let seen: Vec<_> = real.seen.iter().map(String::as_str).collect();
    assert_eq!(seen, answers);
}
