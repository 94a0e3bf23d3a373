//! The read-write lock.

use std::collections::BTreeMap;

use redis::Pipeline;

use super::{Hash, IDS, Real, Request, Rules, TICK, assert_seen, later, one_of, ours, sources, walk};

const MARK: &str = "leasehold_rwlock_waits:{x}";
/// What a reader may have left by its own count: nothing, three ticks, nine.
const OWN: [&str; 3] = ["0", "7500", "22500"];
/// For how long a waiting writer keeps readers away: three seconds.
const MARKED: i64 = 1;
/// A tenth of a second, after which a writer looks again if a reader has the mark.
const SOON: i64 = 0;
/// Those of ours that write, and a JVM's.
const WRITERS: [&str; 3] = [
    "6b1c7d3e-0000-8000-8000-000000000001:3:write",
    "77777777-0000-8000-8000-000000000003:2:write",
    "ffffffff-0000-4000-8000-000000000002:9:write",
];

#[derive(Clone, Debug, Default, PartialEq)]
struct ReadWrite {
    lock: Option<Hash>,
    /// The expiry keys of readers, by id and number.
    lives: BTreeMap<(String, u64), Life>,
    mark: Option<(String, i64)>,
}

/// How long it has left, and who claimed that, if it was claimed.
#[derive(Clone, Debug, PartialEq)]
struct Life(i64, String);

impl Life {
    fn of(left: i64) -> Life {
        Life(left, "1".to_owned())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Free,
    Read,
    Write,
    Conflict,
}

fn writes(id: &str) -> bool {
    id.ends_with(":write") || id.ends_with(":write:rest")
}

/// The field of a hold that was released early.
fn rest_of(id: &str) -> String {
    format!("{id}:rest")
}

fn is_rest(id: &str) -> bool {
    id.ends_with(":rest")
}

fn life(id: &str) -> (String, u64) {
    (id.to_owned(), 1)
}

impl ReadWrite {
    fn mode(&self) -> Mode {
        match self.lock.as_ref().map(|lock| lock.mode.as_deref()) {
            None => Mode::Free,
            Some(Some("read")) => Mode::Read,
            Some(Some("write")) => Mode::Write,
            Some(_) => Mode::Conflict,
        }
    }

    fn count(&self, id: &str) -> Option<u64> {
        self.lock.as_ref()?.count(id)
    }

    /// The field of the writer.
    fn writer(&self) -> Option<&str> {
        self.lock.as_ref()?.fields.iter().map(|(id, _)| &**id).find(|id| writes(id))
    }

    /// A writer that rests beside readers has an expiry key of its own; one that rests alone has the lease of the hash.
    fn is_over(&self, writer: &str) -> bool {
        let fields = self.lock.as_ref().map_or(0, |lock| lock.fields.len() + usize::from(lock.mode.is_some()));
        is_rest(writer) && fields > 2 && !self.lives.contains_key(&life(writer))
    }

    fn left_of_writer(&self, writer: &str) -> i64 {
        let rests = self.lives.get(&life(writer)).filter(|_| is_rest(writer)).map(|life| life.0);
        rests.filter(|left| *left >= 0).or(self.lock.as_ref().map(|lock| lock.left)).expect("it is held")
    }

    /// A writer that rests and is over leaves a read lock.
    fn settle(&mut self) {
        let over = self.writer().filter(|writer| self.is_over(writer)).map(str::to_owned);
        if let Some(over) = over {
            let lock = self.held();
            lock.remove(&over);
            lock.mode = Some("read".to_owned());
        }
    }

    /// As the scripts that change something see it.
    fn mode_now(&mut self) -> Mode {
        if self.mode() == Mode::Write {
            self.settle();
        }
        self.mode()
    }

    /// What is there while somebody has it.
    fn held(&mut self) -> &mut Hash {
        self.lock.as_mut().expect("it is held")
    }

    /// The writer, else a reader.
    fn someone(&self) -> &str {
        let last = || self.lock.as_ref()?.fields.last().map(|(id, _)| &**id);
        self.writer().or_else(last).expect("somebody has it")
    }

    /// The next request makes sense after that time, if it is sooner than the end of the lease.
    fn busy_for(&self, time: Option<i64>) -> String {
        let left = self.lock.as_ref().expect("somebody has it").left;
        format!("busy {} {}", time.unwrap_or(left), self.someone())
    }

    /// How long a reader has left, not above 0 if its lease is over.
    fn left_of(&self, id: &str, count: u64) -> i64 {
        let levels = 1..=if ours(id) { 1 } else { count };
        levels.filter_map(|level| self.lives.get(&(id.to_owned(), level))).map(|life| life.0).max().unwrap_or(-2)
    }

    /// The longest that a reader but `skip` has left, and whether one of them does not rest; dead ones of ours are swept away.
    fn longest_reader(&mut self, skip: &str) -> (i64, bool) {
        let (mut longest, mut is_read) = (-2, false);
        for (id, count) in self.held().fields.clone() {
            if id == skip || writes(&id) {
                continue;
            }
            let left = self.left_of(&id, count);
            if left < 0 && ours(&id) {
                self.held().remove(&id);
            }
            longest = longest.max(left);
            is_read |= left > 0 && !is_rest(&id);
        }
        (longest, is_read)
    }

    /// Puts the end of a reader's lease off; it may be claimed.
    fn lives_for(&mut self, id: &str, lease: i64, claim: &str) -> i64 {
        let life = self.lives.entry(life(id)).or_insert(Life::of(-2));
        life.0 = life.0.max(lease);
        if !claim.is_empty() {
            life.1 = claim.to_owned();
        }
        life.0
    }

    fn read_acquire(&mut self, id: &str, lease: i64, level: u64, how: &str, last: &str) -> String {
        let (writer, claim) = if how == "again" { ("", last) } else { (last, "") };
        let mode = self.mode_now();
        let is_held = mode != Mode::Conflict && self.count(id).is_some() && self.lives.contains_key(&life(id));
        if !is_held {
            if how != "again" && writer.is_empty() && mode == Mode::Write {
                self.mark_turn(id, how);
            }
            if let Some(refused) = self.keeps_out(mode, how == "again", writer) {
                return refused;
            }
            self.mark.take_if(|(waits, _)| waits == id && writer.is_empty());
        }
        let left = self.lives_for(id, lease, claim);
        match &mut self.lock {
            Some(lock) => lock.set(id, level),
            None => self.lock = Some(Hash::of(Some("read"), id, level, -1)),
        }
        self.held().lasts(left);
        format!("granted {level}")
    }

    /// Why somebody cannot begin to read.
    fn keeps_out(&self, mode: Mode, again: bool, writer: &str) -> Option<String> {
        match (mode, &self.mark) {
            _ if again => Some("lost".to_owned()),
            (Mode::Conflict, _) => Some("conflict".to_owned()),
            _ if !writer.is_empty() => self.count(writer).is_none().then(|| "lost".to_owned()),
            (Mode::Write, _) => {
                let writer = self.someone();
                Some(format!("busy {} {writer}", self.left_of_writer(writer)))
            }
            (_, mark) => {
                mark.as_ref().filter(|(waits, _)| writes(waits)).map(|(waits, left)| format!("busy {left} {waits}"))
            }
        }
    }

    /// A refused waiter claims the next turn, unless another has done so: returns that one.
    fn mark_turn(&mut self, id: &str, how: &str) -> Option<&str> {
        let foreign = || self.lock.as_ref().is_some_and(|lock| lock.fields.iter().any(|(id, _)| !ours(id)));
        if !(how == "turn" || how == "late" && !foreign()) {
            return None;
        }
        if self.mark.as_ref().is_none_or(|(waits, _)| waits == id) {
            self.mark = Some((id.to_owned(), MARKED));
        }
        self.mark.as_ref().map(|(waits, _)| waits.as_str()).filter(|waits| *waits != id)
    }

    fn read_release(&mut self, id: &str, rest: i64, level: u64) -> (String, u64) {
        if self.count(id).is_none() {
            self.lives.remove(&life(id));
            let waited = level == 0 && self.mark.take_if(|(waits, _)| waits == id).is_some();
            let rests = level == 0 && self.count(&rest_of(id)).is_some();
            return (if rests { "released 0" } else { "gone" }.to_owned(), u64::from(waited));
        }
        let over = !self.lives.contains_key(&life(id));
        if level > 0 && !over {
            self.held().set(id, level);
            return ("released 0".to_owned(), 0);
        }
        let rest = if over { 0 } else { rest };
        let (last, published) = self.lasts_without(id, rest);
        if rest > 0 {
            self.lives.insert(life(&rest_of(id)), Life::of(rest));
            self.held().set(&rest_of(id), 1);
        }
        if self.mode() == Mode::Read && last.is_some_and(|last| last <= 0) {
            self.lock = None;
        } else {
            let lock = self.held();
            lock.remove(id);
            lock.left = last.unwrap_or(lock.left);
            self.lock.take_if(|lock| lock.is_empty());
        }
        self.lives.remove(&life(id));
        (if over { "gone" } else { "released 0" }.to_owned(), published)
    }

    /// How long the lock lasts without that reader, which may rest for a while: `None` if a writer decides that. And how often something
    /// is published: all look if only holds that rest are left, or none.
    fn lasts_without(&mut self, id: &str, rest: i64) -> (Option<i64>, u64) {
        let mode = self.mode_now();
        let writer = self.writer().filter(|_| mode == Mode::Write).map(str::to_owned);
        if mode != Mode::Read && !writer.as_deref().is_some_and(is_rest) {
            return (None, 0);
        }
        let (longest, is_read) = self.longest_reader(id);
        let writes = writer.map_or(0, |writer| self.left_of_writer(&writer));
        (Some(rest.max(longest).max(writes)), u64::from(!is_read))
    }

    /// `own`: what the reader has left by its own count.
    fn read_renew(&mut self, id: &str, lease: i64, (settles, claim): (bool, &str), own: &str) -> String {
        if self.count(id).is_none() || !self.lives.contains_key(&life(id)) {
            return "gone".to_owned();
        }
        let before = self.lives[&life(id)].0.min(self.held().left);
        let mode = self.mode_now();
        let lets_in = if self.mark.as_ref().is_some_and(|(id, _)| writes(id)) { "no" } else { "yes" };
        let left = match self.lives.get_mut(&life(id)) {
            Some(life) if settles && life.1 == claim => {
                life.0 = lease;
                if mode == Mode::Read && self.held().fields.iter().all(|(id, _)| ours(id)) {
                    self.held().left = self.longest_reader("").0;
                }
                lease
            }
            _ if settles => self.lives_for(id, lease, ""),
            _ => {
                let own = own.parse().map_or(0, |own: i64| own / TICK);
                let left = self.lives_for(id, lease, claim).max(own);
                self.lives.get_mut(&life(id)).expect("it is there").0 = left;
                left
            }
        };
        self.held().lasts(left);
        format!("kept {before} {lets_in}")
    }

    fn write_acquire(&mut self, id: &str, lease: i64, level: u64, how: &str) -> String {
        let mode = self.mode_now();
        if !matches!(mode, Mode::Free | Mode::Conflict) && self.count(id).is_some() {
            self.held().set(id, level);
            self.held().lasts(lease);
            return format!("granted {level}");
        }
        match mode {
            _ if how == "again" => "lost".to_owned(),
            Mode::Conflict => "conflict".to_owned(),
            Mode::Free => {
                if let Some((waits, left)) = self.mark.as_ref().filter(|(waits, _)| waits != id) {
                    return format!("busy {} {waits}", if writes(waits) { *left } else { SOON });
                }
                self.lock = Some(Hash::of(Some("write"), id, level, lease));
                self.mark = None;
                format!("granted {level}")
            }
            Mode::Read | Mode::Write => {
                let beside_readers = mode == Mode::Read && matches!(how, "join" | "stay");
                let waits = self.mark_turn(id, if beside_readers { "turn" } else { how });
                let is_soon = mode == Mode::Read && waits.is_some_and(|waits| !writes(waits));
                self.busy_for(is_soon.then_some(SOON))
            }
        }
    }

    fn write_hand_over(&mut self, id: &str, lease: i64, heir: &str) -> String {
        let Some(lock) = &mut self.lock else { return "gone".to_owned() };
        if lock.count(heir).is_some() {
            lock.lasts(lease);
            return "handed before".to_owned();
        }
        let fields = lock.fields.len() + usize::from(lock.mode.is_some());
        match lock.count(id) {
            None => "gone".to_owned(),
            Some(1) if fields == 2 => {
                lock.set(heir, 1);
                lock.remove(id);
                lock.left = lease;
                self.mark.take_if(|(waits, _)| waits == heir);
                "handed".to_owned()
            }
            Some(count) => format!("deeper {count}"),
        }
    }

    fn write_release(&mut self, id: &str, rest: i64, level: u64) -> (String, u64) {
        let waited = level == 0 && self.mark.take_if(|(waits, _)| waits == id).is_some();
        let told = u64::from(waited);
        if self.count(id).is_none() {
            let rests = level == 0 && self.count(&rest_of(id)).is_some();
            return if rests { ("released 0".to_owned(), told + 1) } else { ("gone".to_owned(), told) };
        }
        if level > 0 {
            self.held().set(id, level);
            return ("released 0".to_owned(), told);
        }
        let (longest, _) = self.longest_reader("");
        if rest > 0 {
            if self.held().fields.len() > 1 {
                self.lives.insert(life(&rest_of(id)), Life::of(rest));
            }
            let lock = self.held();
            lock.set(&rest_of(id), 1);
            lock.remove(id);
            lock.left = longest.max(rest);
        } else if longest > 0 {
            let lock = self.held();
            lock.mode = Some("read".to_owned());
            lock.remove(id);
            lock.left = longest;
        } else {
            self.lock = None;
        }
        ("released 0".to_owned(), told + 1)
    }

    fn force_unlock(&mut self, meant: &str) -> (String, u64) {
        let is_meant = |id: &str| meant.lines().any(|line| line == id || rest_of(line) == id);
        self.settle();
        let Some(lock) = &mut self.lock else { return ("gone".to_owned(), 0) };
        let (gone, others): (Vec<_>, Vec<_>) = lock.fields.drain(..).partition(|(id, _)| is_meant(id));
        lock.fields = others;
        if gone.is_empty() {
            return ("gone".to_owned(), 0);
        }
        let is_gone = |id: &str, level| gone.iter().any(|(known, count)| known == id && level <= *count);
        self.lives.retain(|(id, level), _| !is_gone(id, *level));
        match self.writer().map(str::to_owned) {
            _ if self.held().fields.is_empty() => self.lock = None,
            None => {
                self.held().mode = Some("read".to_owned());
                if self.held().fields.iter().all(|(id, _)| ours(id)) {
                    match self.longest_reader("").0 {
                        longest @ 1.. => self.held().left = longest,
                        _ => self.lock = None,
                    }
                }
            }
            Some(writer) if is_rest(&writer) => {
                let left = self.left_of_writer(&writer).max(self.longest_reader("").0);
                self.held().left = left;
            }
            Some(_) => {}
        }
        ("released".to_owned(), 1)
    }

    fn inspect(&self) -> String {
        let lock = match (self.mode(), &self.lock) {
            (Mode::Read | Mode::Write, Some(lock)) => lock,
            (Mode::Free, _) => return "free".to_owned(),
            _ => return "conflict".to_owned(),
        };
        let line = |(id, count): &(String, u64)| match self.left_of(id, *count) {
            _ if self.is_over(id) => None,
            _ if writes(id) => Some(format!("{count} {} {id}", self.left_of_writer(id))),
            -2 if ours(id) => None,
            -2 => Some(format!("{count} {} {id}", lock.left)),
            left => Some(format!("{count} {left} {id}")),
        };
        let lines: Vec<_> = lock.fields.iter().filter_map(line).collect();
        if lines.is_empty() { "free".to_owned() } else { format!("held {}", lines.join("\n")) }
    }

    fn pass(&mut self, time: i64) {
        self.lock = self.lock.take().and_then(|lock| lock.later(time));
        self.mark = self.mark.take().and_then(|(id, left)| Some((id, later(left, time)?)));
        self.lives = std::mem::take(&mut self.lives)
            .into_iter()
            .filter_map(|(level, life)| Some((level, Life(later(life.0, time)?, life.1))))
            .collect();
    }

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

impl Rules for ReadWrite {
    const CHANNEL: &'static str = "redisson_rwlock:{x}";

    fn run(&mut self, request: &Request) -> (String, u64) {
        let Request { script, id, lease, level, more, last } = request;
        match *script {
            "read_acquire" => (self.read_acquire(id, *lease, *level, more, last.as_deref().unwrap_or_default()), 0),
            "read_release" => self.read_release(id, *lease, *level),
            "read_renew" => {
                let own = last.as_deref().unwrap_or_default();
                (self.read_renew(id, *lease, (*level == 1, more), own), 0)
            }
            "write_acquire" => (self.write_acquire(id, *lease, *level, more), 0),
            "write_hand_over" => (self.write_hand_over(id, *lease, more), 0),
            "write_release" => self.write_release(id, *lease, *level),
            "force_unlock" => self.force_unlock(id),
            _ => (self.inspect(), 0),
        }
    }

    fn source(script: &str) -> String {
        sources! { script;
            "read_acquire": "rw/rwlock", "rw/read_acquire";
            "read_release": "rw/rwlock", "rw/read_release";
            "read_renew": "rw/rwlock", "rw/read_renew";
            "write_acquire": "rw/rwlock", "rw/write_acquire";
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
        let scripts =
            ["read_acquire", "read_release", "read_renew", "write_acquire", "write_hand_over", "write_release"];
        let script = if rng.u8(..8) == 0 { one_of(rng, &["force_unlock", "inspect"]) } else { one_of(rng, &scripts) };
        let more = match script {
            "read_acquire" => one_of(rng, &["first", "turn", "late", "again"]),
            "write_acquire" => one_of(rng, &["first", "join", "stay", "turn", "late", "again"]),
            "write_hand_over" => one_of(rng, &WRITERS[..2]),
            "read_renew" => one_of(rng, &["", "1", "2", "3"]),
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
            "read_renew" => u64::from(!more.is_empty() && rng.bool()),
            _ if script.ends_with("release") => one_of(rng, &[0, 0, 1, 2]),
            _ => rng.u64(1..=3),
        };
        let lease = match script {
            "read_renew" if level == 0 => rng.i64(0..=8),
            _ if script.ends_with("release") => one_of(rng, &[0, 0, 1, 2, 5]),
            _ => rng.i64(1..=8),
        };
        let last = match more {
            _ if script == "read_renew" => one_of(rng, &OWN),
            "again" => one_of(rng, &["", "2", "3"]),
            _ => one_of(rng, &["", "", WRITERS[0], WRITERS[0], WRITERS[1]]),
        };
        let last = matches!(script, "read_acquire" | "read_renew").then(|| last.to_owned());
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
        for ((id, level), Life(left, claim)) in &self.lives {
            let key = format!("{{x}}:{id}:rwlock_timeout:{level}");
            commands.cmd("SET").arg(key).arg(claim).arg("PX").arg(left * TICK);
        }
        self.mark.iter().for_each(|(id, left)| _ = commands.cmd("SET").arg(MARK).arg(id).arg("PX").arg(left * TICK));
    }

    fn look(real: &mut Real) -> ReadWrite {
        let mut found = ReadWrite { lock: Hash::look(real, "x"), ..ReadWrite::default() };
        for key in real.ask::<Vec<String>>(&["KEYS", "*"]) {
            let Some(left) = real.left(&key).filter(|_| key != "x") else { continue };
            match key.strip_prefix("{x}:").and_then(|rest| rest.split_once(":rwlock_timeout:")) {
                Some((id, level)) => {
                    let life = Life(left, real.ask(&["GET", &key]));
                    found.lives.insert((id.to_owned(), level.parse().expect("a number")), life);
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
    ];
    assert_seen(&real, &answers);
}
