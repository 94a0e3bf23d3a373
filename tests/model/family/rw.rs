//! The read-write lock.

use std::collections::BTreeMap;

use redis::Pipeline;

use super::{
    Hash, IDS, Real, Request, Rules, TICK, assert_seen, one_of,
    rules::{
        hash::{Answer, How},
        rw::{Life, Mode, ReadWrite, life},
    },
    sources, walk,
};
use crate::units::{is_rest, ours, rest_of};

const MARK: &str = "leasehold_rwlock_waits:{x}";
/// Those of ours that write, and a JVM's.
const WRITERS: [&str; 3] = [
    "6b1c7d3e-0000-8000-8000-000000000001:3:write",
    "77777777-0000-8000-8000-000000000003:2:write",
    "ffffffff-0000-4000-8000-000000000002:9:write",
];

impl ReadWrite {
    /// As Redisson's script does it: an expiry key for each level. Its multi-lock has a lease on the hash only.
    fn jvm_reads(&mut self, lease: i64, has_lives: bool) {
        let jvm = IDS[3];
        if self.mode() == Mode::Free {
            self.lock = Some(Hash::of(Some("read"), jvm, 0, -1));
        }
        if self.mode() == Mode::Read {
            let level = self.count(jvm).unwrap_or(0) + 1;
            self.held().set(jvm, level);
            self.held().lasts(lease);
            if has_lives {
                self.lives.insert((jvm.to_owned(), level), Life::of(lease));
            }
        }
    }
}

impl ReadWrite {
    /// The last word is the id of its owner's write hold.
    fn reads(&mut self, Request { id, lease, level, more, last, .. }: &Request) -> Answer {
        let (how, last) = (how(more), last.clone().unwrap_or_default());
        let writer = Some(&last).filter(|last| how != How::Again && !last.is_empty());
        self.read_acquire(id, (*lease, *level), how, writer)
    }

    /// One owner has written, which may rest, and reads.
    fn writes_and_reads(&mut self, rng: &mut fastrand::Rng) {
        let (writer, left) = (if rng.bool() { WRITERS[0].to_owned() } else { rest_of(WRITERS[0]) }, rng.i64(4..=8));
        let mut lock = Hash::of(Some("write"), &writer, 1, left);
        lock.set(IDS[0], 1);
        self.lock = Some(lock);
        self.lives = BTreeMap::from([(life(IDS[0]), Life::of(rng.i64(1..=left)))]);
        if is_rest(&writer) && rng.bool() {
            self.lives.insert(life(&writer), Life::of(rng.i64(1..=3)));
        }
    }
}

fn how(word: &str) -> How {
    match word {
        "join" | "stay" => How::Wait,
        "turn" => How::Turn,
        "late" => How::Late,
        "again" => How::Again,
        _ => How::First,
    }
}

impl Rules for ReadWrite {
    const CHANNEL: &'static str = "redisson_rwlock:{x}";

    fn run(&mut self, request: &Request) -> (String, u64) {
        let Request { script, id, lease, level, more, .. } = request;
        let (answer, published) = match *script {
            "read_acquire" => (self.reads(request), 0),
            "read_release" => self.read_release(id, *lease, *level),
            "read_renew" => (self.read_renew(id, *lease), 0),
            "write_acquire" => (self.write_acquire(id, (*lease, *level), how(more)), 0),
            "write_renew" => (self.write_renew(id, *lease), 0),
            "write_hand_over" => (self.write_hand_over(id, *lease, more), 0),
            "write_release" => self.write_release(id, *lease, *level),
            "force_unlock" => self.force_unlock(&id.lines().map(str::to_owned).collect::<Vec<_>>()),
            _ => (self.inspect(), 0),
        };
        (answer.to_string(), published)
    }

    fn source(script: &str) -> String {
        sources! { script;
            "read_acquire": "rw/rwlock", "rw/read_acquire";
            "read_release": "rw/rwlock", "rw/read_release";
            "read_renew": "rw/rwlock", "rw/read_renew";
            "write_acquire": "rw/rwlock", "rw/write_acquire";
            "write_renew": "lock/renew";
            "write_hand_over": "lock/move", "rw/write_hand_over";
            "write_release": "rw/rwlock", "rw/write_release";
            "force_unlock": "lock/forced", "rw/rwlock", "rw/force_unlock";
            "inspect": "rw/rwlock", "rw/inspect";
        }
    }

    fn keys(request: &Request) -> Vec<String> {
        let lives = format!("{{x}}:{}:rwlock_timeout:1", request.id);
        let beside = match request.script {
            "read_acquire" => vec![lives, MARK.to_owned()],
            "read_release" | "read_renew" => vec![lives],
            "write_acquire" | "write_release" => vec![MARK.to_owned()],
            _ => vec![],
        };
        [vec!["x".to_owned()], beside].concat()
    }

    fn any(rng: &mut fastrand::Rng) -> Request {
        let scripts = [
            "read_acquire",
            "read_release",
            "read_renew",
            "write_acquire",
            "write_renew",
            "write_hand_over",
            "write_release",
        ];
        let script = if rng.u8(..8) == 0 { one_of(rng, &["force_unlock", "inspect"]) } else { one_of(rng, &scripts) };
        let more = match script {
            "read_acquire" => one_of(rng, &["first", "turn", "late", "again"]),
            "write_acquire" => one_of(rng, &["first", "join", "stay", "turn", "late", "again"]),
            "write_hand_over" => one_of(rng, &WRITERS[..2]),
            "read_renew" | "write_renew" => "",
            _ => "PUBLISH",
        };
        let id = match script {
            "force_unlock" => {
                let some = |rng: &mut fastrand::Rng, ids: &[&str]| {
                    let id = one_of(rng, ids);
                    if rng.bool() { id.to_owned() } else { rest_of(id) }
                };
                [some(rng, &IDS[..3]), some(rng, &WRITERS[..2]), one_of(rng, &IDS).to_owned()].join("\n")
            }
            _ if script.starts_with("read") => one_of(rng, &IDS[..3]).to_owned(),
            _ => WRITERS[usize::from(rng.u8(..4) == 0)].to_owned(),
        };
        let level = match script {
            "read_renew" => 0,
            _ if script.ends_with("release") => one_of(rng, &[0, 0, 1, 2]),
            _ => rng.u64(1..=3),
        };
        let lease = match script {
            "read_renew" | "write_renew" => rng.i64(0..=8),
            _ if script.ends_with("release") => one_of(rng, &[0, 0, 1, 2, 5]),
            _ => rng.i64(1..=8),
        };
        let last = match more {
            "again" => "",
            _ => one_of(rng, &["", "", WRITERS[0], WRITERS[0], WRITERS[1]]),
        };
        let last = (script == "read_acquire").then(|| last.to_owned());
        Request { script, id, lease, level, more: more.to_owned(), last }
    }

    fn disturb(&mut self, rng: &mut fastrand::Rng) {
        match rng.u8(..19) {
            0 => self.lock = Some(Hash::of(None, one_of(rng, &IDS), 1, 3)),
            1 => self.lock = None,
            2 => self.lives.clear(),
            3 => self.lock.iter_mut().for_each(|lock| lock.left = rng.i64(1..=2)),
            4 | 5 => self.lives.retain(|(id, _), _| ours(id)),
            6 => self.lock = Some(Hash::of(Some("write"), WRITERS[2], 1, 3)),
            16..19 => self.writes_and_reads(rng),
            7..11 => self.jvm_reads(rng.i64(1..=4), rng.bool()),
            _ => self.pass(rng.i64(1..=2)),
        }
    }

    fn put(&self, commands: &mut Pipeline, _: i64) {
        self.lock.iter().for_each(|lock| lock.put(commands, "x"));
        for ((id, level), Life(left)) in &self.lives {
            let key = format!("{{x}}:{id}:rwlock_timeout:{level}");
            commands.cmd("SET").arg(key).arg(1).arg("PX").arg(left * TICK);
        }
        self.mark.iter().for_each(|(id, left)| _ = commands.cmd("SET").arg(MARK).arg(id).arg("PX").arg(left * TICK));
    }

    fn look(real: &mut Real) -> ReadWrite {
        let mut found = ReadWrite { lock: Hash::look(real, "x"), ..ReadWrite::default() };
        for key in real.ask::<Vec<String>>(&["KEYS", "*"]) {
            let Some(left) = real.left(&key).filter(|_| key != "x") else { continue };
            match key.strip_prefix("{x}:").and_then(|rest| rest.split_once(":rwlock_timeout:")) {
                Some((id, level)) => {
                    found.lives.insert((id.to_owned(), level.parse().expect("a number")), Life(left));
                }
                None => found.mark = Some((real.ask(&["GET", MARK]), left)),
            }
        }
        found
    }
}

#[test]
fn random_sequences() {
    let mut real = Real::start();
    (1..=6).for_each(|seed| walk::<ReadWrite>(&mut real, seed, 1_000));
    let answers = [
        "force_unlock: gone",
        "force_unlock: released",
        "inspect: conflict",
        "inspect: free",
        "inspect: held",
        "read_acquire: busy",
        "read_acquire: conflict",
        "read_acquire: granted",
        "read_acquire: lost",
        "read_release: gone",
        "read_release: released",
        "read_renew: gone",
        "read_renew: kept",
        "write_acquire: busy",
        "write_acquire: conflict",
        "write_acquire: granted",
        "write_acquire: lost",
        "write_hand_over: deeper",
        "write_hand_over: gone",
        "write_hand_over: handed",
        "write_release: gone",
        "write_release: released",
        "write_renew: gone",
        "write_renew: kept",
    ];
    assert_seen(&real, &answers);
}
