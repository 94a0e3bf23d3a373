//! The read-write lock: Redisson's `RReadWriteLock`, byte for byte in Redis.

use std::time::Duration;

use super::handle::{ActsFor, Handle, Holder, guarding, settings};
use crate::{
    client::Client,
    engine::{ExtraKey, Guard, Kind, Rules, WaitLimit, Waits},
    error::{Error, Lost, Result},
    redis::{Answer, Code},
};

const CHANNEL: &str = "redisson_rwlock";
const MARK: ExtraKey = ExtraKey::Prefixed("leasehold_rwlock_waits");
const LIVES: ExtraKey = ExtraKey::OfHold("rwlock_timeout:1");
/// The watchdog of a JVM that reads too may bring the end of the lock to its own lease, 30 s by default; less what clocks differ.
const OF_OTHERS: Duration = Duration::from_millis(29_960);

static READ: Kind = Kind {
    channel: CHANNEL,
    acquire: script!("rw/rwlock.lua", "rw/read_acquire.lua"; LIVES, MARK),
    release: script!("rw/rwlock.lua", "rw/read_release.lua"; LIVES),
    renew: script!("rw/rwlock.lua", "rw/read_renew.lua"; LIVES),
    hand_over: None,
    inspect: script!("rw/rwlock.lua", "rw/inspect.lua"),
    force_unlock: script!("rw/rwlock.lua", "rw/force_unlock.lua"),
    beside: Some(&WRITE),
    barred_by: None,
    rules: Rules { shared: true, passes_on: false, sure: Some(OF_OTHERS), ..Rules::PLAIN },
};

static WRITE: Kind = Kind {
    channel: CHANNEL,
    acquire: script!("rw/rwlock.lua", "rw/write_acquire.lua"; MARK),
    release: script!("rw/rwlock.lua", "rw/write_release.lua"; MARK),
    renew: script!("lock/renew.lua"),
    hand_over: Some(script!("lock/move.lua", "rw/write_hand_over.lua")),
    inspect: script!("rw/rwlock.lua", "rw/inspect.lua"),
    force_unlock: script!("rw/rwlock.lua", "rw/force_unlock.lua"),
    beside: None,
    barred_by: Some(&READ),
    rules: Rules { suffix: ":write", waits: Waits::Marked, passes_on: false, ..Rules::PLAIN },
};

impl Client {
    /// The read-write lock of this name. Sends nothing; a name that cannot be used is reported by the first call.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let prices = client.rw_lock("prices");
    /// let guard = prices.read().await?; // beside other readers
    /// guard.unlock().await?;
    /// let guard = prices.write().await?; // alone
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock(Handle::new(self, name, ActsFor::Current))
    }
}

/// Many readers, or one writer. Settings and guards are those of a [`Lock`](crate::Lock).
///
/// * **Reentrant on both sides.** An owner that writes may read as well, past all who wait, and keeps reading when it gives back the
///   writing: [`WriteGuard::downgrade`] does both. One that reads and asks to write would wait for itself: that is
///   [`Error::Upgrade`], at once.
/// * **A lost write hold ends with its lease**, also if its guard is kept and the owner still reads: other readers are admitted then.
/// * **A reader's lease is its client's own**: one that dies keeps nobody from writing for longer than that, however many go on reading.
/// * **Writers are not starved.** One that waits leaves a mark on the server, and readers that come later wait until it has had its
///   turn. JVMs do not know the mark: behind readers of theirs that never leave a gap a writer waits as it does in Redisson, and
///   keeps ours out for no longer than one lease.
/// * **Readers go together**: those of one client who come soon after each other share one hold on the server, and one
///   [`id`](Guard::id); a turn of theirs costs the server next to nothing. Each is given back by itself all the same.
///
/// A name is one kind of lock: a [`Lock`](crate::Lock) of the same name is not excluded in Redisson's layout.
#[derive(Clone)]
pub struct RwLock(Handle);

settings!(RwLock);

/// Who holds a [read-write lock](RwLock), as the server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RwState {
    /// Nobody.
    Free,
    /// Readers only. Those of one client that came soon after each other share an entry.
    Read(Vec<Holder>),
    /// A writer, and its owner as a reader perhaps.
    Write {
        /// Its id ends in `:write`.
        writer: Holder,
        /// Those who read below it.
        readers: Vec<Holder>,
    },
}

impl RwState {
    fn of(answer: &Answer) -> Option<RwState> {
        if answer.code == Code::Free {
            return Some(RwState::Free);
        }
        let [lines] = answer.words()?;
        let holders: Option<Vec<_>> = lines.lines().map(Holder::of).collect();
        let (mut writers, readers): (Vec<_>, Vec<_>) =
            holders?.into_iter().partition(|holder| holder.id.ends_with(WRITE.rules.suffix));
        Some(match writers.pop() {
            Some(writer) => RwState::Write { writer, readers },
            None => RwState::Read(readers),
        })
    }

    /// The ids of all of them, with a line each.
    fn ids(&self) -> String {
        let (writer, readers): (_, &[Holder]) = match self {
            RwState::Free => (None, &[]),
            RwState::Read(readers) => (None, readers),
            RwState::Write { writer, readers } => (Some(writer), readers),
        };
        writer.into_iter().chain(readers).map(|holder| &*holder.id).collect::<Vec<_>>().join("\n")
    }
}

impl RwLock {
    /// Waits until it may be read: nobody writes, and no writer waits that came before.
    ///
    /// # Errors
    ///
    /// As [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn read(&self) -> Result<Guard> {
        let taken = self.0.take(&READ, "read", WaitLimit::Forever).await?;
        Ok(taken.expect("a wait without limit ends with a lock or an error"))
    }

    /// Tries once; `None` if somebody writes, or waits to write.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock`](crate::Lock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.0.take(&READ, "try_read", WaitLimit::Once).await
    }

    /// Waits for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_lock_for`](crate::Lock::try_lock_for).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_read_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.0.take(&READ, "try_read_for", WaitLimit::of(limit)).await
    }

    /// Waits until it is ours alone.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use leasehold::Error;
    ///
    /// let prices = client.rw_lock("prices");
    /// let reading = prices.read().await?;
    /// assert!(matches!(prices.write().await, Err(Error::Upgrade { .. }))); // it would wait for itself
    /// reading.unlock().await?;
    /// prices.write().await?.protect(async { /* new prices */ }).await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Upgrade`] if the same owner reads; else as [`Lock::lock`](crate::Lock::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn write(&self) -> Result<WriteGuard> {
        let taken = self.take("write", WaitLimit::Forever).await?;
        Ok(taken.expect("a wait without limit ends with a lock or an error"))
    }

    /// Tries once; `None` if somebody else has it.
    ///
    /// # Errors
    ///
    /// [`Error::Upgrade`] if the same owner reads; else as [`Lock::try_lock`](crate::Lock::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        self.take("try_write", WaitLimit::Once).await
    }

    /// Waits for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`Error::Upgrade`] if the same owner reads; else as [`Lock::try_lock_for`](crate::Lock::try_lock_for).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn try_write_for(&self, limit: Duration) -> Result<Option<WriteGuard>> {
        self.take("try_write_for", WaitLimit::of(limit)).await
    }

    async fn take(&self, what: &'static str, limit: WaitLimit) -> Result<Option<WriteGuard>> {
        let taken = self.0.take(&WRITE, what, limit).await?;
        Ok(taken.map(|guard| WriteGuard { lock: Box::new(self.0.clone().owner(guard.owner())), guard }))
    }

    /// Who holds it, and how.
    ///
    /// # Errors
    ///
    /// As [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<RwState> {
        let asked = self.0.tell("inspect", (&READ, &READ.inspect), ("", ""), self.0.engine.outage_ends());
        let (answer, _) = asked.await?;
        RwState::of(&answer).ok_or_else(|| self.0.conflict())
    }

    /// Takes the lock away from those who are seen to have it, readers and writer, and wakes all who wait; true if it was taken
    /// away. Holders are not asked, see [`Lock::force_unlock`](crate::Lock::force_unlock); those who come after the look keep what
    /// they have.
    ///
    /// # Errors
    ///
    /// As [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the lock was taken away.
    pub async fn force_unlock(&self) -> Result<bool> {
        let ids = self.inspect().await?.ids();
        if ids.is_empty() {
            return Ok(false);
        }
        let give_up = self.0.engine.outage_ends();
        let request = (&ids[..], self.0.engine.publish());
        let answered = self.0.tell("force_unlock", (&READ, &READ.force_unlock), request, give_up).await;
        self.0.forced(&READ)?;
        let (answer, again) = answered?;
        Ok(answer.code == Code::Released || again) // if it was asked twice, the first time may have done it
    }
}

/// A [`Guard`] of a writer.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct WriteGuard {
    guard: Guard,
    /// Of the same owner. Out of line, for few need it.
    lock: Box<Handle>,
}

guarding!(WriteGuard);

impl WriteGuard {
    /// Gives back the writing and goes on reading: no other writer has had it in between, and readers that wait come in.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let writing = client.rw_lock("prices").write().await?;
    /// // new prices
    /// let reading = writing.downgrade().await?;
    /// // what was written, unchanged
    /// reading.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Guard::unlock`]: [`Error::Lost`] if the lock was lost before. Nothing is held then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives back all of it.
    pub async fn downgrade(self) -> Result<Guard> {
        let reading = self.lock.take(&READ, "downgrade", WaitLimit::Once).await?;
        self.guard.unlock().await?;
        reading.ok_or_else(|| Error::lost(self.lock.name(), Lost::Removed))
    }
}
