//! What a holder has in hand: one acquisition of a hold.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    Engine, GIVING_BACK, TaskRuntime,
    ask::{ScriptRequest, unexpected},
    hold::{Ending, Hold, LeaseTerms},
    releaser::{GivenBack, ReleaseJob},
    tenure::Tenure,
};
use crate::{
    clock::Moment,
    config::Lease,
    error::{Error, Lost, Result},
    owner::Owner,
    redis::{Code, Part, Script},
    sync::{std, tokio},
};

/// One acquisition of a held lock. Given back by [`unlock`](Guard::unlock), or in the background when dropped.
///
/// A guard is owned: it may move to another task or thread and be released there; the owner that took it, such as the task that
/// called [`lock`](crate::Lock::lock), can still re-enter until then. It may be dropped anywhere, also
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
    terms: LeaseTerms,
    on_server: OnServer,
}

/// What came of [protected](Guard::protect_outcome) work.
#[derive(Debug)]
#[must_use = "it says whether the work was done"]
pub enum Outcome<T> {
    /// Done, and the lock was ours to the end.
    Done(T),
    /// Done; but the lock was found gone when it was to be given back, or that could not be confirmed. Somebody else may
    /// have been at the same work towards its end.
    Unconfirmed {
        /// What the work came to.
        value: T,
        /// As of [`Guard::unlock`].
        error: Error,
    },
    /// The lock was lost, and the work was dropped before it was done.
    Stopped(Error),
}

impl<T> Outcome<T> {
    /// The value of work that was done, alone to the end or not.
    ///
    /// # Errors
    ///
    /// Why it was stopped.
    pub fn into_value(self) -> Result<T> {
        match self {
            Outcome::Done(value) | Outcome::Unconfirmed { value, .. } => Ok(value),
            Outcome::Stopped(error) => Err(error),
        }
    }

    /// The value of work that was certainly alone to the end.
    ///
    /// # Errors
    ///
    /// Why it was stopped, or why it is not certain: then the value is dropped.
    pub fn into_confirmed(self) -> Result<T> {
        match self {
            Outcome::Done(value) => Ok(value),
            Outcome::Unconfirmed { error, .. } | Outcome::Stopped(error) => Err(error),
        }
    }
}

/// What the server may have of this guard's acquisition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnServer {
    Nothing,
    /// Only what a waiter leaves there.
    Trace,
    InDoubt,
    Granted,
    /// It has been dealt with.
    Settled,
}

impl Guard {
    /// For an acquisition that has been claimed, before the server is asked for it: whatever happens from here on, dropping the
    /// guard undoes it.
    pub(crate) fn of_claim(engine: &Arc<Engine>, hold: &Arc<Hold>) -> Guard {
        Guard {
            engine: Arc::clone(engine),
            hold: Arc::clone(hold),
            terms: LeaseTerms::default(),
            on_server: OnServer::Nothing,
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// The server is about to be asked for it.
    pub(crate) fn asked(&mut self) {
        self.on_server = OnServer::InDoubt;
    }

    /// The server has certainly not given it; but perhaps noted that it is waited for.
    pub(crate) fn refused(&mut self, trace: bool) {
        self.on_server = if trace { OnServer::Trace } else { OnServer::Nothing };
    }

    /// Whether it is ours by the clock.
    pub(crate) fn check_clock(&self) -> Result<()> {
        self.hold.check()
    }

    pub(crate) fn granted(&mut self, sent: Moment, lease: Lease, terms: LeaseTerms) {
        let first = self.hold.granted(sent, lease, terms);
        (self.terms, self.on_server) = (terms, OnServer::Granted);
        self.engine.watchdog.list(&self.hold);
        if first {
            self.engine.counters.holds.up();
            tracing::debug!(target: "leasehold::lock", name = self.name(), id = self.id(), "acquired");
        }
    }

    /// Gives back this acquisition: an error if it was already gone.
    ///
    /// A lock taken several times by one owner is free when the last of its guards is given back, in any order. Where another
    /// task of this client waits for it, that has it at once; the answer comes when the server has confirmed that it was ours.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was lost before; [`Error::Closed`] if the client is closed meanwhile;
    /// [`Error::Unavailable`] if the server does not answer, or refuses, for
    /// [`outage_timeout`](crate::Builder::outage_timeout), while the release goes on in the background; also if the server could
    /// not be asked before the lease ran out and then does not have the lock any more: nobody can know whether it was ours to
    /// the end. Where the first try had no answer and the second finds the lock gone, the first is taken to have done it.
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
        TaskRuntime::around(GIVING_BACK)?; // it goes on in the background
        let engine = Arc::clone(&self.engine);
        if self.pass_on().is_some() {
            return Box::pin(self.told(true)).await; // few need the room for it
        }
        let begun = engine.releaser.begin();
        self.step_down();
        let give_up = engine.outage_ends();
        match begun.run(ReleaseJob::new(&self.hold, true), give_up).await? {
            GivenBack::Ended(ending) => self.outcome(ending),
            GivenBack::ToOthers => {
                let counts = self.hold.count_return(); // not another guard of it
                Box::pin(self.told(counts)).await
            }
        }
    }

    /// By the next request about its id, which others have.
    async fn told(&self, counts: bool) -> Result<()> {
        let tenure = self.hold.tenure().expect("it has left its id to others");
        let ending = self.engine.word(tenure, self.name(), counts).await?;
        self.outcome(ending)
    }

    fn outcome(&self, ending: Ending) -> Result<()> {
        match ending {
            Ending::Ours => Ok(()),
            Ending::Gone => Err(self.gone()),
            Ending::Unknown => {
                self.hold.tell_token();
                Err(Error::unconfirmed(self.name()))
            }
        }
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

    /// Cancelled when [`lost`](Guard::lost) would resolve, for other tasks; not by giving the lock back, unless it is found gone
    /// then. Each call makes a token of its own: cancelling it tells nobody else.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let guard = client.lock("nightly-report").lock().await?;
    /// let lost = guard.lost_token();
    /// let helper = tokio::spawn(async move { lost.run_until_cancelled(async { /* a part of the work */ }).await });
    /// assert!(helper.await.expect("it does not panic").is_some());
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// It is the client's watchdog that cancels it; made inside a tokio runtime (with time enabled), a task there watches the
    /// clock as well, for the case that the runtime which the client was connected on ends first.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        self.hold.lost_token()
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
        let script = &self.hold.kind.renew;
        let claim = lease.map_or_else(String::new, |lease| self.hold.lengthening(lease));
        let part = self.hold.part(script, lease.map_or(0, Lease::millis), 0, &claim);
        let sent = self.ask("confirming the lock", (&script.script, part), lease).await?;
        self.hold.confirmed(sent, lease);
        self.engine.watchdog.list(&self.hold);
        self.hold.check()
    }

    /// What a script does only where the hold is there.
    pub(crate) async fn while_held(&self, what: &'static str, request: (&'static Script, Part)) -> Result<()> {
        self.ask(what, request, None).await.map(drop)
    }

    /// Asks about the hold. When the request was sent that found it.
    async fn ask(&self, what: &'static str, request: (&'static Script, Part), lease: Option<Lease>) -> Result<Moment> {
        self.hold.check()?;
        let time = (Instant::now(), self.engine.outage_ends());
        let hold = lease.map(|lease| (&*self.hold, lease));
        let request = ScriptRequest { hold, ..ScriptRequest::new(what, &self.hold.name, request, time) };
        let reply = Box::pin(request.ask(&self.engine.redis)).await?;
        match reply.answer.code {
            Code::Kept => Ok(reply.sent),
            Code::Gone => Err(self.gone()),
            _ => Err(unexpected(&reply.answer)),
        }
    }

    /// Runs `work` while the lock is ours, then gives it back. If the lock is lost meanwhile, `work` is dropped.
    ///
    /// A value is never thrown away: once `work` has run to its end the answer is `Ok`, even if the release then fails or finds
    /// the lock gone, which is logged. Where that makes a difference, [`protect_outcome`](Guard::protect_outcome) tells.
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
    /// [`Error::Lost`] if the lock was lost before `work` was done: it has been dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and the guard.
    pub async fn protect<T>(self, work: impl Future<Output = T>) -> Result<T> {
        self.protect_outcome(work).await.into_value()
    }

    /// As [`protect`](Guard::protect), for work that can fail itself: one flat result.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// # type BoxError = Box<dyn std::error::Error + Send + Sync>;
    /// let guard = client.lock("invoice:42").lock().await?;
    /// let total: Result<u32, BoxError> = guard.try_protect(async { Ok("42".parse()?) }).await;
    /// # assert_eq!(total.unwrap(), 42);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `work`, after the lock was given back; else as [`protect`](Guard::protect).
    ///
    /// # Cancel safety
    ///
    /// As [`protect`](Guard::protect).
    pub async fn try_protect<T, E: From<Error>>(self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.protect(work).await?
    }

    /// As [`protect`](Guard::protect), and tells work that was ours to the end from work that was done but may not have been
    /// alone to the end.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use leasehold::Outcome;
    ///
    /// let guard = client.lock("invoice:42").lock().await?;
    /// match guard.protect_outcome(async { 40 + 2 }).await {
    ///     Outcome::Done(total) => println!("{total}"),
    ///     Outcome::Unconfirmed { value, error } => println!("{value}, but look into it: {error}"),
    ///     Outcome::Stopped(error) => println!("not done: {error}"),
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As [`protect`](Guard::protect).
    pub async fn protect_outcome<T>(self, work: impl Future<Output = T>) -> Outcome<T> {
        let value = tokio::select! {
            biased;
            reason = self.lost() => return Outcome::Stopped(Error::lost(self.name(), reason)),
            value = work => value,
        };
        let (name, id) = (self.hold.name.clone(), self.hold.id().to_owned());
        match self.unlock().await {
            Ok(()) => Outcome::Done(value),
            Err(error) => {
                tracing::warn!(target: "leasehold::lock", name = &*name, %id, %error, "done, but not confirmed");
                Outcome::Unconfirmed { value, error }
            }
        }
    }

    /// The hold count of this owner now, nested requests under way included.
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.hold.hold_count()
    }

    /// The hash field in Redis, `clientUUID:n`: the same for nested acquisitions, and for those who get the lock in this process
    /// without the server being asked, one after the other or, for reading, beside each other; else new for every outermost hold.
    #[must_use]
    pub fn id(&self) -> &str {
        self.hold.id()
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

    /// The lock's key in Redis.
    pub(crate) fn key(&self) -> &str {
        self.hold.name.key()
    }

    /// The fencing token, where the kind has them.
    pub(crate) fn fence(&self) -> Option<u64> {
        self.hold.fence()
    }

    /// Gives up the acquisition on our side: no more renewals, and the owner's next `lock` is a new hold. True if it was
    /// the last. What the server has is the caller's business.
    fn step_down(&mut self) -> bool {
        let since = self.hold.since();
        self.on_server = OnServer::Settled;
        let last = self.hold.let_go(self.terms);
        if last {
            self.over(since);
        }
        last
    }

    /// Gives it up for the next in the queue here to have, without asking anybody, if that is possible.
    fn pass_on(&mut self) -> Option<Arc<Tenure>> {
        let since = self.hold.since();
        let tenure = self.engine.queues.pass_on(&self.hold, || self.engine.releaser.later(&self.hold))?;
        self.on_server = OnServer::Settled;
        self.over(since);
        Some(tenure)
    }

    fn over(&self, since: Option<Moment>) {
        self.engine.registry.remove(&self.hold);
        self.engine.watchdog.list(&self.hold);
        if let Some(since) = since {
            self.engine.counters.holds.down();
            self.engine.counters.hold.note(Moment::now().since(since));
        }
    }

    /// Gives up the acquisition and leaves the server's side to the releaser, unless there is nothing.
    fn leave(&mut self) {
        let loss = self.hold.loss();
        loss.inspect(|reason| self.hold.lose(*reason, &self.engine.counters)); // the watchdog may not have looked yet
        let given = self.on_server == OnServer::Granted || self.hold.is_given();
        let there = given || self.on_server == OnServer::InDoubt; // even if it was removed: a hand-over may have brought it again
        if self.hold.is_evicted() || self.hold.is_doomed() && self.on_server == OnServer::InDoubt {
            self.hold.came_again(); // it was given back before, and may have been asked for since
        }
        let engine = Arc::clone(&self.engine);
        let _begun = engine.releaser.begin();
        let on_server = self.on_server;
        self.step_down();
        if there {
            engine.releaser.send(ReleaseJob::new(&self.hold, given));
        } else if on_server == OnServer::Trace {
            engine.releaser.send(ReleaseJob::of_trace(&self.hold));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let passed = (self.on_server == OnServer::Granted).then(|| self.pass_on()).flatten();
        if let Some(tenure) = passed {
            self.engine.counters.released.up();
            if tenure.passed_unheard() {
                self.engine.releaser.confirm(&tenure);
            }
        } else if self.on_server != OnServer::Settled {
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
