//! What the ways need of a lock, whatever its kind; what the troubles know of its keys.

use std::{
    collections::HashMap,
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use leasehold::{
    FairLock, FencedGuard, FencedLock, Guard, Lock, Lost, Permits, ReadGuard, Result, RwLock, RwState, Semaphore,
    WriteGuard,
};

use crate::{FENCED, LINES, PERMITS, SHARED, history::Seen, scene::Scene, scribe::holder_of, server::beside};

/// A lock of any kind.
pub(crate) trait AnyLock: Clone + Send + Sync {
    type Guard: AnyGuard;

    fn name(&self) -> &str;
    fn for_lease(&self, time: Duration) -> Self;
    fn take(&self) -> impl Future<Output = Result<Self::Guard>> + Send;
    fn take_at_once(&self) -> impl Future<Output = Result<Option<Self::Guard>>> + Send;
    fn take_in_time(&self, patience: Duration) -> impl Future<Output = Result<Option<Self::Guard>>> + Send;
}

/// A lock that one server has.
pub(crate) trait Counted: AnyLock<Guard: AnyGuard<Held = Guard>> {
    /// How many levels the server counts of each hold.
    fn counts(&self) -> impl Future<Output = Result<HashMap<String, u64>>> + Send;

    /// The hold count that the server must have of this guard.
    fn believed(guard: &Guard) -> u64 {
        guard.holds().into()
    }

    fn force(&self) -> impl Future<Output = Result<bool>> + Send;
}

/// What a guard says of its hold.
pub(crate) trait Held: Sync {
    fn name(&self) -> &str;
    /// What tells this hold from all others.
    fn holder(&self) -> String;
    fn remaining(&self) -> Duration;
    fn is_lost(&self) -> bool;
    fn lost(&self) -> impl Future<Output = Lost> + Send;
}

impl Held for Guard {
    fn name(&self) -> &str {
        self.name()
    }

    fn holder(&self) -> String {
        holder_of(self)
    }

    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn is_lost(&self) -> bool {
        self.is_lost()
    }

    async fn lost(&self) -> Lost {
        self.lost().await
    }
}

pub(crate) trait AnyGuard: Send {
    type Held: Held;

    fn guard(&self) -> &Self::Held;
    fn give_back(self) -> impl Future<Output = Result<()>> + Send;

    fn token(&self) -> Option<u64> {
        None
    }

    /// How many permits of a semaphore it has.
    fn permits(&self) -> Option<u64> {
        None
    }
}

impl AnyGuard for Guard {
    type Held = Guard;

    fn guard(&self) -> &Guard {
        self
    }

    async fn give_back(self) -> Result<()> {
        self.unlock().await
    }
}

impl AnyGuard for FencedGuard {
    type Held = Guard;

    fn guard(&self) -> &Guard {
        self
    }

    async fn give_back(self) -> Result<()> {
        self.unlock().await
    }

    fn token(&self) -> Option<u64> {
        Some(FencedGuard::token(self))
    }
}

impl AnyGuard for ReadGuard {
    type Held = Guard;

    fn guard(&self) -> &Guard {
        self
    }

    async fn give_back(self) -> Result<()> {
        self.unlock().await
    }
}

impl AnyGuard for WriteGuard {
    type Held = Guard;

    fn guard(&self) -> &Guard {
        self
    }

    async fn give_back(self) -> Result<()> {
        self.unlock().await
    }
}

macro_rules! one_at_a_time {
    ($($lock:ident -> $guard:ident),*) => {$(
        impl AnyLock for $lock {
            type Guard = $guard;

            fn name(&self) -> &str {
                self.name()
            }

            fn for_lease(&self, time: Duration) -> $lock {
                self.clone().lease(time)
            }

            async fn take(&self) -> Result<$guard> {
                self.lock().await
            }

            async fn take_at_once(&self) -> Result<Option<$guard>> {
                self.try_lock().await
            }

            async fn take_in_time(&self, patience: Duration) -> Result<Option<$guard>> {
                self.try_lock_for(patience).await
            }
        }

        impl Counted for $lock {
            async fn counts(&self) -> Result<HashMap<String, u64>> {
                Ok(self.inspect().await?.into_iter().map(|holder| (holder.id, holder.holds)).collect())
            }

            async fn force(&self) -> Result<bool> {
                self.force_unlock().await
            }
        }
    )*};
}
one_at_a_time!(Lock -> Guard, FencedLock -> FencedGuard, FairLock -> Guard);

/// One side of a read-write lock.
#[derive(Debug, Clone)]
pub(crate) struct Reading(pub(crate) RwLock);
#[derive(Debug, Clone)]
pub(crate) struct Writing(pub(crate) RwLock);

macro_rules! side {
    ($side:ident -> $guard:ident, $take:ident, $at_once:ident, $in_time:ident, $believed:expr) => {
        impl AnyLock for $side {
            type Guard = $guard;

            fn name(&self) -> &str {
                self.0.name()
            }

            fn for_lease(&self, time: Duration) -> $side {
                $side(self.0.clone().lease(time))
            }

            async fn take(&self) -> Result<$guard> {
                self.0.$take().await
            }

            async fn take_at_once(&self) -> Result<Option<$guard>> {
                self.0.$at_once().await
            }

            async fn take_in_time(&self, patience: Duration) -> Result<Option<$guard>> {
                self.0.$in_time(patience).await
            }
        }

        impl Counted for $side {
            fn believed(guard: &Guard) -> u64 {
                $believed(guard)
            }

            async fn counts(&self) -> Result<HashMap<String, u64>> {
                let all = match self.0.inspect().await? {
                    RwState::Free => Vec::new(),
                    RwState::Read(readers) => readers,
                    RwState::Write { writer, readers } => [vec![writer], readers].concat(),
                };
                Ok(all.into_iter().map(|holder| (holder.id, holder.holds)).collect())
            }

            async fn force(&self) -> Result<bool> {
                self.0.force_unlock().await
            }
        }
    };
}
// The readers of a client may share one id, which has the hold count 1 whatever they acquire.
side!(Reading -> ReadGuard, read, try_read, try_read_for, |_| 1);
side!(Writing -> WriteGuard, write, try_write, try_write_for, |guard: &Guard| guard.holds().into());

/// A semaphore, and how many of its permits a call asks for.
#[derive(Debug, Clone)]
pub(crate) struct Several(pub(crate) Semaphore, pub(crate) u32);

/// Permits of one hold: all, or a part. The number tells apart the parts of an id, and those that acquire it in memory one after the other.
#[derive(Debug)]
pub(crate) struct Part {
    permits: Permits,
    number: u64,
}

static PARTS: AtomicU64 = AtomicU64::new(0);

impl Part {
    fn new(permits: Permits) -> Part {
        Part { permits, number: PARTS.fetch_add(1, Ordering::Relaxed) }
    }

    /// In two, with one permit in the second, if there are more.
    pub(crate) fn split(mut self) -> (Part, Option<Part>) {
        let second = self.permits.split(1).map(Part::new);
        (Part::new(self.permits), second)
    }

    pub(crate) fn id(&self) -> &str {
        self.permits.id()
    }
}

impl Held for Part {
    fn name(&self) -> &str {
        self.permits.name()
    }

    fn holder(&self) -> String {
        format!("{}~{}", self.permits.id(), self.number)
    }

    fn remaining(&self) -> Duration {
        self.permits.remaining()
    }

    fn is_lost(&self) -> bool {
        self.permits.is_lost()
    }

    async fn lost(&self) -> Lost {
        self.permits.lost().await
    }
}

impl AnyGuard for Part {
    type Held = Part;

    fn guard(&self) -> &Part {
        self
    }

    async fn give_back(self) -> Result<()> {
        self.permits.release().await
    }

    fn permits(&self) -> Option<u64> {
        Some(self.permits.count().into())
    }
}

impl AnyLock for Several {
    type Guard = Part;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn for_lease(&self, time: Duration) -> Several {
        Several(self.0.clone().lease(time), self.1)
    }

    async fn take(&self) -> Result<Part> {
        self.0.acquire(self.1).await.map(Part::new)
    }

    async fn take_at_once(&self) -> Result<Option<Part>> {
        Ok(self.0.try_acquire(self.1).await?.map(Part::new))
    }

    async fn take_in_time(&self, patience: Duration) -> Result<Option<Part>> {
        Ok(self.0.try_acquire_for(self.1, patience).await?.map(Part::new))
    }
}

impl Several {
    /// How many permits the server counts of each hold.
    pub(crate) async fn counts(&self) -> Result<HashMap<String, u64>> {
        let hold = |id: String| id.get(..OF_HOLD).map_or(id.clone(), str::to_owned);
        Ok(self.0.inspect().await?.into_iter().map(|holder| (hold(holder.id), holder.holds)).collect())
    }
}

/// How many digits the ids of all permits of a hold have in common.
const OF_HOLD: usize = 28;
/// All permits that there are, free and taken; then the hold of each that is taken, unless its time is over. Nothing if there is no
/// semaphore and no permit.
const LOOK: &str = r#"
    local free, time, seen = redis.call('GET', KEYS[1]), redis.call('TIME'), {}
    local now, taken = time[1] * 1000 + math.floor(time[2] / 1000), redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
    if not free and #taken == 0 then return {} end
    seen[1] = string.format('%.0f', (tonumber(free) or 0) + #taken / 2)
    for n = 1, #taken, 2 do
      if tonumber(taken[n + 1]) > now then
        seen[#seen + 1] = string.gsub(string.sub(taken[n], 1, 14), '.', function(byte)
          return string.format('%02x', string.byte(byte))
        end)
      end
    end
    return seen"#;

fn is_semaphore(name: &str) -> bool {
    PERMITS.iter().any(|(of, _)| *of == name)
}

/// What asks a server for the holders of that lock.
pub(crate) fn look_at(name: &str) -> Vec<String> {
    match is_semaphore(name) {
        true => ["EVAL", LOOK, "2", name, &taken_of(name)].map(str::to_owned).to_vec(),
        false => ["HKEYS", name].map(str::to_owned).to_vec(),
    }
}

/// What was seen between two moments, from the reply.
pub(crate) fn seen(name: &str, (since, at): (u64, u64), mut said: Vec<String>) -> Seen {
    let mut permits = None;
    if is_semaphore(name) {
        permits = said.first().map(|all| all.parse().expect("a number"));
        said.drain(..said.len().min(1));
    }
    said.retain(|field| field != "mode");
    Seen { since, at, ids: said, permits, ..Seen::default() }
}

/// Where the permits of that semaphore are that are taken.
fn taken_of(name: &str) -> String {
    format!("{{{name}}}:timeout")
}

/// The key of the queue of that fair lock.
pub(crate) fn line_of(name: &str) -> Option<String> {
    LINES.contains(&name).then(|| beside("redisson_lock_queue", name))
}

/// Where the tokens of that lock are counted.
pub(crate) fn tokens_of(name: &str) -> Option<String> {
    (name == FENCED).then(|| beside("redisson_lock_token", name))
}

/// Where a waiter of that lock leaves a mark.
pub(crate) fn mark_of(name: &str) -> Option<String> {
    match name {
        name if SHARED.contains(&name) => Some(beside("leasehold_rwlock_waits", name)),
        name if is_semaphore(name) => Some(beside("leasehold_semaphore_waits", name)),
        _ => None,
    }
}

/// The keys that outlive a hold: tokens, the queue and its places, the mark of a waiting writer.
pub(crate) fn keys_beside(name: &str) -> Vec<String> {
    match name {
        FENCED => tokens_of(name).into_iter().collect(),
        name if mark_of(name).is_some() => mark_of(name).into_iter().collect(),
        name => line_of(name).into_iter().flat_map(|line| [beside("redisson_lock_timeout", name), line]).collect(),
    }
}

/// The keys of its holds.
pub(crate) fn keys_of(scene: &impl Scene, name: &str) -> Vec<String> {
    let leases = match name {
        name if SHARED.contains(&name) => scene.ask(name, &["KEYS", &format!("{{{name}}}:*:rwlock_timeout:*")]),
        name if is_semaphore(name) => vec![taken_of(name)],
        _ => Vec::new(),
    };
    [leases, vec![name.to_owned()]].concat()
}

/// The channel of release notifications, for the next waiter.
pub(crate) fn channel_of(scene: &impl Scene, name: &str) -> String {
    if SHARED.contains(&name) {
        return beside("redisson_rwlock", name);
    }
    if is_semaphore(name) {
        return beside("redisson_sc", name);
    }
    let next: Option<String> = line_of(name).and_then(|line| scene.ask(name, &["LINDEX", &line, "0"]));
    let next = next.map_or_else(String::new, |next| format!(":{next}"));
    beside("redisson_lock__channel", name) + &next
}
