//! What a holder has in hand: one level of a hold.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::Instrument;

use super::{
    Engine,
    ask::{Pauses, Question, unexpected},
    hold::{Hold, Terms},
    releaser::Errand,
};
use crate::{
    clock::Moment,
    config::Lease,
    error::{Error, Lost, Result},
    owner::Owner,
    redis::Code,
    sync::{std, tokio},
};

/// One level of a held lock. Given back by [`unlock`](Guard::unlock), or in the background when dropped.
///
/// A guard is owned: it may move to another task or thread and be released there. It may be dropped anywhere, also
/// outside a runtime; the release is then sent by the client's own tasks. Where these end first, with the process or with the
/// runtime of `#[tokio::main]`, the lock stays until its lease ends: [`unlock`](Guard::unlock) or
/// [`Client::close`](crate::Client::close) before that.
///
/// Holding a guard is no proof of holding the lock: a lease can end. [`lost`](Guard::lost) tells at once,
/// [`protect`](Guard::protect) stops the work by itself.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let guard = client.lock("nightly-report").lock().await?;
/// tokio::select! {
///     lost = guard.lost() => println!("stop: {lost}"),
///     () = write_report() => println!("done"),
/// }
/// guard.unlock().await?; // says whether it was ours to the end
/// # Ok(()) }) }
/// # async fn write_report() {}
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    terms: Terms,
    stake: Stake,
}

/// What the server may have of this guard's level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stake {
    Nothing,
    Doubt,
    Level,
    /// It has been dealt with.
    Left,
}

impl Guard {
    /// For a level that has been claimed, before the server is asked for it: whatever happens from here on, dropping the
    /// guard undoes it.
    pub(crate) fn of_claim(engine: &Arc<Engine>, hold: &Arc<Hold>) -> Guard {
        Guard { engine: Arc::clone(engine), hold: Arc::clone(hold), terms: Terms::default(), stake: Stake::Nothing }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// The server is about to be asked for the level.
    pub(crate) fn asked(&mut self) {
        self.stake = Stake::Doubt;
    }

    /// The server has certainly not given it.
    pub(crate) fn refused(&mut self) {
        self.stake = Stake::Nothing;
    }

    /// Whether it is ours by the clock.
    pub(crate) fn check_clock(&self) -> Result<()> {
        self.hold.check()
    }

    pub(crate) fn granted(&mut self, sent: Moment, lease: Lease, terms: Terms) {
        let first = self.hold.granted(sent, lease, terms);
        (self.terms, self.stake) = (terms, Stake::Level);
        self.engine.watchdog.list(&self.hold);
        if first {
            self.engine.counters.holds.up();
            tracing::debug!(target: "leasehold::lock", name = self.name(), id = self.id(), "acquired");
        }
    }

    /// Gives back this level: an error if it was already gone.
    ///
    /// A lock taken several times by one owner is free when the last of its guards is given back, in any order.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was lost before; [`Error::Unavailable`] if the server does not answer, or refuses, for
    /// [`outage_timeout`](crate::Builder::outage_timeout), while the release goes on in the background. Where the first try
    /// had no answer and the second finds the lock gone, the first is taken to have done it.
    ///
    /// # Cancel safety
    ///
    /// Once polled it cannot be undone: dropping the future leaves the rest to the background. Await or drop it: one that
    /// is kept and not polled may keep the lock for its lease.
    pub async fn unlock(mut self) -> Result<()> {
        let span = tracing::debug_span!(target: "leasehold::lock", "unlock", name = self.name(), id = self.id());
        self.give_back().instrument(span).await
    }

    async fn give_back(&mut self) -> Result<()> {
        if let Some(reason) = self.hold.loss() {
            self.leave();
            return Err(Error::lost(&self.hold.name, reason));
        }
        let engine = Arc::clone(&self.engine);
        let begun = engine.releaser.begin();
        let last = self.step_down();
        let give_up = engine.outage_ends();
        let was_ours = begun.run(Errand::new(&self.hold, true), give_up).await?;
        if was_ours {
            return Ok(());
        }
        engine.counters.lost.add(u64::from(last));
        Err(self.gone())
    }

    fn gone(&self) -> Error {
        self.engine.found_lost(&self.hold)
    }

    /// Resolves when the lock is, or must be presumed, gone. For `select!`.
    ///
    /// Awaited outside a tokio runtime it has no clock of its own and relies on the runtime that the client was connected on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; it can be called again.
    pub async fn lost(&self) -> Lost {
        self.hold.lost().await
    }

    /// Whether [`lost`](Guard::lost) would resolve now. Asks nobody but the clock.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.hold.loss().is_some()
    }

    /// The lock is certainly ours for this long if the server is never heard again; zero once it is lost.
    ///
    /// Counted from before the last confirmed request was sent, on a clock that goes on while the machine sleeps,
    /// less a thousandth for the difference between two clocks.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Asks the server now whether the lock is still ours.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if it is not; [`Error::Unavailable`] if the server does not answer, when
    /// [`remaining`](Guard::remaining) still says how long it certainly is.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn check(&self) -> Result<()> {
        self.confirm(None).await
    }

    /// Moves the end of the lease to `lease` from now, never nearer than it is.
    ///
    /// For fixed leases; one kept by the watchdog needs it only to outlast an outage.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if the lease is shorter than a millisecond or longer than a year; otherwise as
    /// [`check`](Guard::check).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the lease was extended; it is never shortened.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        self.confirm(Some(Lease::new("lease", lease)?)).await
    }

    async fn confirm(&self, lease: Option<Lease>) -> Result<()> {
        self.hold.check()?;
        let heard = Question {
            name: &self.hold.name,
            hold: lease.map(|lease| (&*self.hold, lease)),
            script: &self.hold.kind.renew,
            part: self.hold.part(lease.map_or(0, Lease::millis), 0, ""),
            replicas: 0,
            what: "confirming the lock",
            pauses: Pauses::default(),
            insists: false,
            since: Instant::now(),
            give_up: self.engine.outage_ends(),
        }
        .ask(&self.engine.redis);
        let heard = Box::pin(heard).await?;
        match heard.answer.code {
            Code::Kept => self.hold.confirmed(heard.sent, lease),
            Code::Gone => return Err(self.gone()),
            _ => return Err(unexpected(&heard.answer)),
        }
        self.engine.watchdog.list(&self.hold);
        self.hold.check()
    }

    /// Runs `work` while the lock is ours, then gives it back. If the lock is lost meanwhile, `work` is dropped.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let guard = client.lock("invoice:42").lock().await?;
    /// let total = guard.protect(async { 40 + 2 }).await?;
    /// # assert_eq!(total, 42);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was lost before or while `work` ran, or found lost at the end; else as
    /// [`unlock`](Guard::unlock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and the guard.
    pub async fn protect<T>(self, work: impl Future<Output = T> + Send) -> Result<T> {
        let done = tokio::select! {
            biased;
            reason = self.lost() => Err(Error::lost(self.name(), reason)),
            done = work => Ok(done),
        };
        match done {
            Ok(done) => self.unlock().await.map(|()| done),
            Err(lost) => Err(lost),
        }
    }

    /// How many levels this owner has now, nested requests under way included.
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.hold.levels()
    }

    /// The hash field in Redis, `clientUUID:n`: new for every outermost hold, the same for its nested ones.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.hold.id
    }

    /// Who may re-enter; known only inside this process.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.hold.owner
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.hold.name
    }

    /// Gives up the level on our side: no more renewals, and the owner's next `lock` is a new hold. True if it was
    /// the last. What the server has is the caller's business.
    fn step_down(&mut self) -> bool {
        let since = self.hold.since();
        self.stake = Stake::Left;
        let last = self.hold.let_go(self.terms);
        if last {
            self.engine.registry.remove(&self.hold);
            self.engine.watchdog.list(&self.hold);
            if let Some(since) = since {
                self.engine.counters.holds.down();
                self.engine.counters.hold.note(Moment::now().since(since));
            }
        }
        last
    }

    /// Gives up the level and leaves the server's side to the releaser, unless there is nothing.
    fn leave(&mut self) {
        let loss = self.hold.loss();
        loss.inspect(|reason| self.hold.lose(*reason, &self.engine.counters)); // the watchdog may not have looked yet
        let given = self.stake == Stake::Level || self.hold.is_given();
        let there = given || self.stake == Stake::Doubt; // even if it was removed: a hand-over may have brought it again
        if self.hold.is_evicted() {
            self.hold.came_again(); // it was given back before, and may have been asked for since
        }
        let engine = Arc::clone(&self.engine);
        let _begun = engine.releaser.begin();
        self.step_down();
        if there {
            engine.releaser.send(Errand::new(&self.hold, given));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.stake != Stake::Left {
            self.leave();
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("id", &self.id())
            .field("holds", &self.holds())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
