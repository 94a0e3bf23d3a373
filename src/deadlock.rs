//! Finds owners that wait for each other in a circle, in this process and in others, and keeps the record of the client.
//!
//! A client that has slow waits writes them into its record, with what their owners hold. It follows each of them from holder to holder, by its
//! own memory and by the records of others. The client with the youngest wait of a circle reports it.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{
    config::{Config, OnDeadlock},
    driver::{Driver, SlowWait},
    error::Blocked,
    record::{self, Announcement, ClientRecord, FIRST, Wait, WallClock},
    redis::Redis,
    sync::tokio,
};

/// The pause between two looks at slow waits is as long as a wait that is slow, within these bounds.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// No circle is longer, and a client follows no more waits.
const MOST_WAITS: usize = 64;
/// A record of another client must be written anew so often until a circle is certain. What one reading finds was perhaps not true at once, and
/// a process that has died writes nothing. After these, each client has looked at its waits before the end of the first reading and after it.
const NEW_RECORDS: u8 = 3;

/// The task that looks for circles, and writes the record.
pub(crate) struct DeadlockWatch {
    locks: Arc<Driver>,
    redis: Arc<Redis>,
    client: Uuid,
    /// The process.
    here: ClientRecord,
    clock: WallClock,
    /// `None` if the client writes no record.
    record: Option<Announcement>,
    /// By the ids of waits.
    suspects: HashMap<WaitKey, Suspect>,
    then: OnDeadlock,
    pause: Duration,
    reading_limit: Duration,
    has_slow_waits: bool,
}

/// The name that a call of this client waits for, and the id of the wait.
type WaitKey = (String, String);

fn key_of(wait: &Wait) -> WaitKey {
    (wait.name.clone(), wait.id.clone())
}

impl DeadlockWatch {
    pub(crate) fn new(locks: Arc<Driver>, redis: Arc<Redis>, client: Uuid, config: &Config) -> DeadlockWatch {
        let here = ClientRecord::here(config.client_name.as_deref());
        let announced = || Announcement::new(Arc::clone(&redis), client, here.clone(), *config.watchdog);
        let record = config.announce.then(announced);
        let (pause, reading_limit) = (config.slow_wait.clamp(LEAST_PAUSE, LONGEST_PAUSE), config.command_timeout);
        let (clock, suspects, then) = (WallClock::read(), HashMap::new(), config.on_deadlock);
        DeadlockWatch {
            locks,
            redis,
            client,
            here,
            clock,
            record,
            suspects,
            then,
            pause,
            reading_limit,
            has_slow_waits: false,
        }
    }

    /// Resolves when the client has ended.
    pub(crate) async fn run(mut self) {
        let locks = Arc::clone(&self.locks);
        tokio::select! {
            () = locks.done() => {}
            () = self.watch() => {}
        }
        if let Some(record) = self.record {
            record.remove().await;
        }
    }

    async fn watch(&mut self) {
        self.locks.first_use.notified().await;
        sleep(FIRST).await;
        loop {
            let slow = self.locks.slow_waits(&self.clock);
            self.has_slow_waits = slow.is_some();
            let waits = slow.unwrap_or_default();
            self.write(&waits).await;
            self.look(&waits).await;
            drop(waits); // they keep names
            self.sleep().await;
        }
    }

    async fn sleep(&self) {
        let renewal = self.record.as_ref().map_or(Duration::ZERO, Announcement::rest);
        tokio::select! {
            () = sleep(self.pause), if self.has_slow_waits => {}
            () = self.locks.slow.notified(), if !self.has_slow_waits => {}
            () = sleep(renewal), if self.record.is_some() => {}
        }
    }

    async fn write(&mut self, waits: &[SlowWait]) {
        let told = |wait: &Wait| {
            let deadlock = self.suspects.get(&key_of(wait)).filter(|suspect| suspect.is_reported && suspect.is_found);
            let deadlock = deadlock.map(|suspect| suspect.circle.blocked());
            Wait { deadlock: deadlock.unwrap_or_default(), ..wait.clone() }
        };
        let waits = waits.iter().map(|slow| told(&slow.wait)).collect();
        if let Some(record) = &mut self.record
            && !record.write(waits).await
        {
            self.record = None;
        }
    }

    /// Looks for a circle of which each of these waits is the youngest.
    async fn look(&mut self, waits: &[SlowWait]) {
        let keys: HashSet<_> = waits.iter().map(|slow| key_of(&slow.wait)).collect();
        self.suspects.retain(|key, _| keys.contains(key));
        let redis = Arc::clone(&self.redis);
        let mut survey = Survey {
            by_hold: HashMap::new(),
            read: HashSet::new(),
            redis: self.record.as_ref().map(|_| &*redis),
            until: Instant::now() + self.reading_limit,
        };
        let own = waits.iter().map(|slow| slow.wait.clone()).collect();
        survey.add(self.client, ClientRecord { waits: own, ..self.here.clone() });
        for slow in waits {
            let first = Seen { client: self.client, process: self.here.process(), round: 0, wait: slow.wait.clone() };
            let circle = survey.circle(first.into()).await;
            self.suspect(slow, circle);
        }
    }

    fn suspect(&mut self, slow: &SlowWait, circle: Option<Circle>) {
        let key = key_of(&slow.wait);
        match (self.suspects.get_mut(&key), circle) {
            (None, None) => {}
            (None, Some(circle)) => _ = self.suspects.insert(key, Suspect::new(circle, self.client)),
            (Some(suspect), circle) if suspect.is_reported => {
                suspect.is_found = circle.is_some_and(|circle| suspect.circle.is(&circle));
            }
            (Some(_), None) => _ = self.suspects.remove(&key),
            (Some(suspect), Some(circle)) => {
                suspect.is_reported = suspect.is_certain(circle, self.client);
                if suspect.is_reported {
                    slow.is_deadlocked(&suspect.circle.blocked(), self.then == OnDeadlock::Fail);
                }
            }
        }
    }
}

/// A wait as its client has told it.
struct Seen {
    client: Uuid,
    process: String,
    round: u64,
    wait: Wait,
}

impl Seen {
    /// The youngest wait of a circle has the greatest one.
    fn age(&self) -> impl Ord + '_ {
        (self.wait.age(), self.client)
    }
}

/// Waits of which each holder is the owner of the next one, and that of the last one the owner of the first. With the ids of these holders.
struct Circle(Vec<(Arc<Seen>, String)>);

impl Circle {
    fn blocked(&self) -> Vec<Blocked> {
        let blocked = |seen: &Seen| Blocked { name: seen.wait.name.clone(), process: seen.process.clone() };
        self.0.iter().map(|(seen, _)| blocked(seen)).collect()
    }

    /// True if it consists of the same waits and the same holds.
    fn is(&self, other: &Circle) -> bool {
        let facts = |circle: &Circle| -> Vec<_> {
            circle.0.iter().map(|(seen, holder)| (seen.client, key_of(&seen.wait), holder.clone())).collect()
        };
        facts(self) == facts(other)
    }
}

/// A circle that may be one.
struct Suspect {
    circle: Circle,
    /// Of each other client: the last record, and how many new ones were read since the first reading.
    records: HashMap<Uuid, (u64, u8)>,
    /// The last reading has found it.
    is_found: bool,
    is_reported: bool,
}

impl Suspect {
    fn new(circle: Circle, own: Uuid) -> Suspect {
        let others = circle.0.iter().filter(|(seen, _)| seen.client != own);
        let records = others.map(|(seen, _)| (seen.client, (seen.round, 0))).collect();
        Suspect { circle, records, is_found: true, is_reported: false }
    }

    /// A later reading has found this circle. True if it is the same one, and all of it was true at once.
    fn is_certain(&mut self, circle: Circle, own: Uuid) -> bool {
        if !self.circle.is(&circle) {
            *self = Suspect::new(circle, own);
            return false;
        }
        for (seen, _) in &circle.0 {
            if let Some((last, new)) = self.records.get_mut(&seen.client)
                && seen.round > *last
            {
                (*last, *new) = (seen.round, new.saturating_add(1));
            }
        }
        self.records.values().all(|(_, new)| *new >= NEW_RECORDS)
    }
}

/// What one look at memory and records has found.
struct Survey<'a> {
    /// The waits of the owner of each hold, by its key and its id.
    by_hold: HashMap<(String, String), Vec<Arc<Seen>>>,
    read: HashSet<Uuid>,
    /// `None`: others are not read.
    redis: Option<&'a Redis>,
    until: Instant,
}

impl Survey<'_> {
    fn add(&mut self, client: Uuid, record: ClientRecord) {
        self.read.insert(client);
        let (process, round) = (record.process(), record.round);
        for wait in record.waits {
            let seen = Arc::new(Seen { client, process: process.clone(), round, wait });
            for hold in &seen.wait.holds {
                self.by_hold.entry(hold.clone()).or_default().push(Arc::clone(&seen));
            }
        }
    }

    /// The waits of the owners that hold this name by this id.
    async fn of_holder(&mut self, name: &str, holder: &str) -> Vec<Arc<Seen>> {
        let client = record::client_of(holder).filter(|client| !self.read.contains(client));
        if let Some((client, redis)) = client.zip(self.redis) {
            self.read.insert(client);
            let rest = self.until.saturating_duration_since(Instant::now());
            if let Some(record) = record::look_up(redis, client, rest).await {
                self.add(client, record);
            }
        }
        self.by_hold.get(&(name.to_owned(), holder.to_owned())).cloned().unwrap_or_default()
    }

    /// The shortest circle of which this is the youngest wait.
    async fn circle(&mut self, first: Arc<Seen>) -> Option<Circle> {
        // Each wait with the place of the one that leads to it, and the holder that is its owner.
        let mut found: Vec<(Arc<Seen>, usize, String)> = vec![(first, 0, String::new())];
        let mut at = 0;
        while at < found.len() {
            let (first, from) = (Arc::clone(&found[0].0), Arc::clone(&found[at].0));
            for holder in &from.wait.holders {
                for next in self.of_holder(&from.wait.name, holder).await {
                    if next.age() == first.age() {
                        return Some(path(&found, at, holder));
                    }
                    let is_new = !found.iter().any(|(seen, ..)| seen.age() == next.age());
                    if is_new && next.age() < first.age() && found.len() < MOST_WAITS {
                        found.push((next, at, holder.clone()));
                    }
                }
            }
            at += 1;
        }
        None
    }
}

/// From the first wait to that one, whose holder is the owner of the first.
fn path(found: &[(Arc<Seen>, usize, String)], mut at: usize, last: &str) -> Circle {
    let mut holder = last.to_owned();
    let mut waits = Vec::new();
    loop {
        let (seen, from, by) = &found[at];
        waits.push((Arc::clone(seen), mem::replace(&mut holder, by.clone())));
        if at == 0 {
            waits.reverse();
            return Circle(waits);
        }
        at = *from;
    }
}
