//! The guard: a lock that is held.

use std::{fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    ask::{Asked, Doubt},
    clock::Moment,
    config::Lease,
    driver::HeldLock,
    engine::Engine,
    error::{Error, Lost, Result},
    events::Subject,
    failed::unexpected,
    owner::Owner,
    redis::{Code, Part, Script},
    release_request::ReleaseRequest,
    spans::{self, HoldSpan, ServerLabel},
    sync::{std, tokio},
};

/// One acquisition of a lock. [`unlock`](Guard::unlock) releases it. If you drop the guard, the client releases it in the background.
///
/// You may move a guard to another task or thread and release it there. That does not change the owner: until the release, the task that
/// called [`lock`](crate::Lock::lock) can still re-enter, and the task that has the guard now cannot.
///
/// You may drop a guard anywhere, also outside a runtime: the client's own tasks send the release. If the process or the runtime of
/// `#[tokio::main]` ends first, the lock stays on the server until its lease expires. To prevent that, call
/// [`unlock`](Guard::unlock) or [`Client::close`](crate::Client::close) before the end.
///
/// A guard does not prove that the lock is still held, because a lease can expire. [`lost`](Guard::lost) notifies you as soon as the
/// client learns of a loss, and at the latest when [`remaining`](Guard::remaining) is zero. [`protect`](Guard::protect) also stops the
/// work.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let guard = client.mutex("nightly-report").lock().await?;
/// tokio::select! {
///     lost = guard.lost() => println!("stop: {lost}"),
///     () = write_report() => println!("done"),
/// }
/// guard.unlock().await?; // an error if the lock was lost before
/// # Ok(()) }) }
/// # async fn write_report() {}
/// ```
#[must_use = "the lock is released when the guard is dropped: write `let _guard = …`"]
pub struct Guard {
    held: HeldLock,
    /// The client lives as long as its guards.
    engine: Arc<Engine>,
    span: HoldSpan,
}

/// The result of [protected](Guard::protect_outcome) work.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let guard = client.mutex("invoice:42").lock().await?;
/// let outcome = guard.protect_outcome(async { 40 + 2 }).await;
/// let total = outcome.into_confirmed()?; // an error unless the lock was held to the end
/// # assert_eq!(total, 42);
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "it says whether the work was completed"]
pub enum Outcome<T> {
    /// The work was completed, and the lock was held until its release.
    Done(T),
    /// The work was completed, but the release failed: the lock was lost before, or the release could not be confirmed. Another owner
    /// may have held the lock during the last part of the work. If the work is idempotent, run it again under the lock. Else compare its
    /// result with the present state. [`guide::faq`](crate::guide::faq#after-an-unclear-end) has more.
    Unconfirmed {
        /// The value that the work returned.
        value: T,
        /// The error of [`Guard::unlock`].
        error: Error,
    },
    /// The lock was lost, and the work was dropped before it was completed.
    Stopped(Error),
}

impl<T> Outcome<T> {
    /// The outcome of completed work. Logs a failed release. `id` is that of the hold, if there is only one.
    pub(crate) fn completed(value: T, (name, id): (&str, Option<&str>), released: Result<()>) -> Outcome<T> {
        match released {
            Ok(()) => Outcome::Done(value),
            Err(error) => {
                tracing::warn!(target: "leasehold::lock", name, id, %error, "the work is completed, but the release failed");
                Outcome::Unconfirmed { value, error }
            }
        }
    }

    /// The value of completed work, even if the release failed.
    ///
    /// # Errors
    ///
    /// The error of [`Stopped`](Outcome::Stopped).
    pub fn into_value(self) -> Result<T> {
        match self {
            Outcome::Done(value) | Outcome::Unconfirmed { value, .. } => Ok(value),
            Outcome::Stopped(error) => Err(error),
        }
    }

    /// The value of completed work, only if the lock was held until its release.
    ///
    /// # Errors
    ///
    /// The error of [`Stopped`](Outcome::Stopped) or [`Unconfirmed`](Outcome::Unconfirmed). The value is dropped.
    pub fn into_confirmed(self) -> Result<T> {
        match self {
            Outcome::Done(value) => Ok(value),
            Outcome::Unconfirmed { error, .. } | Outcome::Stopped(error) => Err(error),
        }
    }
}

impl Guard {
    /// The span of the hold begins, below that of the caller.
    pub(crate) fn new(held: HeldLock, engine: &Arc<Engine>) -> Guard {
        let mut guard = Guard { held, engine: Arc::clone(engine), span: HoldSpan::default() }; // from here on, its drop releases the lock
        let held = &guard.held;
        guard.span = HoldSpan::new(held.server(), held.subject(), || held.id());
        guard
    }

    /// Another guard of the same hold, with so many permits of this one.
    pub(crate) fn split(&self, permits: u32) -> Guard {
        Guard::new(self.held.split(permits), &self.engine)
    }

    fn server(&self) -> &ServerLabel {
        self.held.server()
    }

    fn subject(&self) -> Subject<'_> {
        self.held.subject()
    }

    /// Releases this acquisition. `Ok` means that this owner held the lock until the release, as the server confirmed.
    ///
    /// If one owner acquired the lock several times, the lock is free after the release of its last guard, in any order. If another task of
    /// this client waits, the client may pass the lock on to it at once, without a request to the server. `unlock` then asks the server
    /// whether it still had the lock, and returns when the reply confirms it. Several `unlock` calls share such a request.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: the lock was lost before. That includes a fixed [`lease`](crate::Lock::lease) or a
    ///   [`max_hold`](crate::Lock::max_hold) that was over. If the server still has the lock, the client releases it in the background.
    /// * [`Error::Closed`]: the client was closed after this call began and before the confirmation. (If it was closed before:
    ///   [`Error::Lost`].)
    /// * [`Error::Unavailable`]: the server did not reply, or refused for now, for
    ///   [`outage_timeout`](crate::Builder::outage_timeout). The client continues the release in the background.
    /// * [`Error::Denied`], [`Error::Conflict`] and others as [`Error`] says, at once: the server refused the release. The client tries a
    ///   denied release again in the background.
    /// * [`Error::Unavailable`] with "could not be confirmed": you called `unlock` in time, but no request reached the server before the
    ///   lease expired, and then it no longer had the lock. Normally this means only that the lease expired after your call. But if the
    ///   server lost the lock earlier, or it was forced open, another owner may have acquired it before your call; the client cannot tell.
    ///
    /// There is one case in which `Ok` is an assumption. If the first release request gets no reply and the second finds no lock, `unlock`
    /// assumes that the first request released it.
    ///
    /// # Cancel safety
    ///
    /// You cannot undo the release once the future was polled: if you drop it, the client completes the release in the background.
    /// Await the future or drop it. If you keep it without polling it, the lock may stay held for as long as you keep it.
    #[expect(
        clippy::manual_async_fn,
        reason = "an `async fn` keeps its arguments twice, and thousands of tasks keep this future"
    )]
    pub fn unlock(mut self) -> impl Future<Output = Result<()>> {
        async move {
            let span = self.span.release(self.server(), self.subject(), || self.id());
            let mut releasing = pin!(self.held.unlock().instrument(span)); // pinned here: one copy of the span
            let released = releasing.as_mut().await;
            if let Err(error) = &released {
                spans::note_error(releasing.span(), error);
                self.span.note_loss(|| error.loss());
            }
            released
        }
    }

    /// As [`lost`](Guard::lost), without the guard. Like [`lost_token`](Guard::lost_token), it does not resolve after a release.
    #[cfg(feature = "blocking")]
    pub(crate) fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
        self.held.watch()
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn command_timeout(&self) -> Duration {
        self.held.command_timeout()
    }

    /// Resolves when the client learns that the lock is lost, and at the latest when [`remaining`](Guard::remaining) is zero. Use it in
    /// `select!`.
    ///
    /// Outside a tokio runtime this future has no timer of its own. It then depends on the runtime that the client was connected on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing. You can call it again.
    pub async fn lost(&self) -> Lost {
        self.held.lost().await
    }

    /// A token for other tasks. The client cancels it when [`lost`](Guard::lost) would resolve. A release does not cancel it, unless
    /// it fails: the lock was lost, or the server did not confirm the release. Each call returns a new token: if you cancel it, no other
    /// token is cancelled.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let guard = client.mutex("nightly-report").lock().await?;
    /// let lost = guard.lost_token();
    /// let helper = tokio::spawn(async move { lost.run_until_cancelled(async { /* a part of the work */ }).await });
    /// assert!(helper.await.expect("it does not panic").is_some());
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// The client's watchdog cancels the token. If you call this inside a tokio runtime with a timer, a task on that runtime watches the
    /// lease as well. So the token is cancelled when the lease is over, even if the runtime that the client was connected on has ended
    /// before.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        self.held.lost_token()
    }

    /// True if [`lost`](Guard::lost) would resolve now. Sends no request.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// The time for which this owner *certainly* holds the lock, even if the server never replies again. Zero once the lock is lost. Unless
    /// you release it, the hold can be lost sooner only if the server loses the lock, if it is forced open, or if the client is closed. A
    /// [`max_hold`](crate::Lock::max_hold) is taken into account. See [`guide::guarantees`](crate::guide::guarantees).
    ///
    /// The client counts it from the moment before it sent the last confirmed request. It uses a clock that continues while the machine
    /// sleeps (on most [platforms](crate#platforms)). It subtracts a thousandth of the lease and 1 ms, because the clocks of client and
    /// server may differ.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Resolves when somebody [asks](crate::Lock::ask) for this lock. The holder decides whether it releases the lock. Each call waits for the
    /// next request. The client listens from the first call on until the guard is dropped, over its connection for messages. Requests that come before
    /// that are answered with [`AskOutcome::NotHeard`](crate::AskOutcome::NotHeard).
    ///
    /// All holders of the lock that listen get each request: of a read-write lock, all its readers. A request that is sent while the
    /// connection for messages is down is answered with `NotHeard`, too.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let guard = client.mutex("reindex").lock().await?;
    /// # let lock = client.mutex("reindex");
    /// # let ask = async { while lock.ask("a deploy").await.is_ok_and(|outcome| outcome != leasehold::AskOutcome::Heard) {} };
    /// # let work = async { std::future::pending::<()>().await };
    /// # let work = async { tokio::join!(work, ask).0 };
    /// tokio::select! {
    ///     () = work => {}
    ///     reason = guard.lost() => println!("stop: {reason}"),
    ///     request = guard.asked() => println!("stop: {}", request.reason),
    /// }
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// Work that stops only between its parts looks between them:
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::time::Duration;
    ///
    /// use tokio::time::timeout;
    ///
    /// let guard = client.mutex("reindex").lock().await?;
    /// for _page in 0..100 {
    ///     if let Ok(request) = timeout(Duration::ZERO, guard.asked()).await {
    ///         println!("stop: {}", request.reason);
    ///         break;
    ///     }
    ///     // index one page
    /// }
    /// guard.unlock().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no request: the next call returns it.
    pub fn asked(&self) -> impl Future<Output = ReleaseRequest> + Send {
        let asked = self.held.asked();
        async move { ReleaseRequest::read(&asked.await) }
    }

    /// Checks now on the server that this owner still holds the lock.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`]: this owner no longer holds the lock.
    /// * [`Error::Unavailable`]: the server did not reply for [`outage_timeout`](crate::Builder::outage_timeout).
    ///   [`remaining`](Guard::remaining) still says for how long the lock is certainly held.
    /// * [`Error::Denied`] and others as [`Error`] says, at once: the server refused the check.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn check(&self) -> Result<()> {
        self.held.confirm(None).await
    }

    /// Extends the lease: it expires `lease` from now. Never shortens the lease.
    ///
    /// Use it for fixed leases. The client renews all other locks itself; for those, a longer lease only helps to survive an outage.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `lease` is shorter than 1 ms or longer than one year; else as [`check`](Guard::check).
    /// After [`Error::Unavailable`], the client may still extend the lease later.
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, the lease may or may not be extended. It is never shortened.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        let lease = Lease::new("lease", lease)?;
        self.held.confirm(Some(lease)).await
    }

    /// Keeps the lock held for at least `time` from now, even if it is released before: as [`Lock::min_hold`](crate::Lock::min_hold), decided
    /// while the lock is held. Sends nothing: the release says it to the server. So if the process dies before the release, the lock is free
    /// when its lease expires. If the lock is lost, this changes nothing, and [`unlock`](Guard::unlock) returns the error.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::time::Duration;
    ///
    /// let newsletter = client.mutex("newsletter");
    /// let guard = newsletter.lock().await?;
    /// if send().await {
    ///     guard.stay_held(Duration::from_secs(3600))?; // nobody sends it again within an hour
    /// }
    /// guard.unlock().await?;
    /// assert!(newsletter.try_lock().await?.is_none());
    /// # Ok(()) }) }
    /// # async fn send() -> bool { true }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if `time` is shorter than 1 ms or longer than one year.
    pub fn stay_held(&self, time: Duration) -> Result<()> {
        self.held.stay_held(*Lease::new("time", time)?);
        Ok(())
    }

    /// Runs a script that acts only if the server still has the hold.
    pub(crate) async fn while_held(&self, what: &'static str, request: (&'static Script, Part)) -> Result<()> {
        if let Some(reason) = self.loss() {
            return Err(self.held.lost_by(reason));
        }
        let asked = Asked { what, name: self.name(), request, until: Moment::FAR };
        let (answer, doubt) = self.engine.tell_with_doubt(asked, self.engine.outage_ends()).await?;
        match answer.code {
            Code::Kept => Ok(()),
            Code::Gone => {
                let confirmed = self.held.confirm(None).await; // notifies the holder
                match (doubt, confirmed) {
                    (Doubt::OfEarlier, Ok(()) | Err(Error::Lost { .. })) => Err(Error::may_have_run(what, self.name())),
                    (_, Err(error)) => Err(error),
                    (Doubt::None, Ok(())) => Err(self.held.lost_by(Lost::Removed)),
                }
            }
            _ => Err(unexpected(&answer)),
        }
    }

    /// Runs `work`, then releases the lock. If the lock is lost before `work` is completed, `work` is dropped at its next `await`. `Ok` says
    /// that the work was completed, not that the lock was held to its end: [`protect_outcome`](Guard::protect_outcome) says both.
    ///
    /// The value of completed work is never dropped: the result is `Ok`, even if the release then fails or finds that the lock was
    /// lost. Such a failure is logged as a warning.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let guard = client.mutex("invoice:42").lock().await?;
    /// let total = guard.protect(async { 40 + 2 }).await?;
    /// # assert_eq!(total, 42);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was lost before `work` was completed. Then `work` was dropped, and the client releases the lock in the
    /// background if the server still has it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and the guard, so the lock is released in the background.
    pub async fn protect<T>(self, work: impl Future<Output = T>) -> Result<T> {
        self.protect_outcome(work).await.into_value()
    }

    /// As [`protect`](Guard::protect), for work that returns a `Result`: its errors and those of the lock become one `Result`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// # type BoxError = Box<dyn std::error::Error + Send + Sync>;
    /// let guard = client.mutex("invoice:42").lock().await?;
    /// let total: Result<u32, BoxError> = guard.try_protect(async { Ok("42".parse()?) }).await;
    /// # assert_eq!(total.unwrap(), 42);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `work`, after the lock was released; else as [`protect`](Guard::protect).
    ///
    /// # Cancel safety
    ///
    /// As [`protect`](Guard::protect).
    pub async fn try_protect<T, E: From<Error>>(self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.protect(work).await?
    }

    /// As [`protect`](Guard::protect), but distinguishes three cases: the work was completed while the lock was held, the work was
    /// completed but the release failed, or the work was stopped.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use leasehold::Outcome;
    ///
    /// let guard = client.mutex("invoice:42").lock().await?;
    /// match guard.protect_outcome(async { 40 + 2 }).await {
    ///     Outcome::Done(total) => println!("{total}"),
    ///     Outcome::Unconfirmed { value, error } => println!("{value}, but check it: {error}"),
    ///     Outcome::Stopped(error) => println!("not completed: {error}"),
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// They are in the [`Outcome`].
    ///
    /// # Cancel safety
    ///
    /// As [`protect`](Guard::protect).
    pub async fn protect_outcome<T>(self, work: impl Future<Output = T>) -> Outcome<T> {
        match self.until_lost(work).await {
            Ok(value) => self.unlock_after(value).await,
            Err(lost) => Outcome::Stopped(lost),
        }
    }

    /// Runs `work`; an error if the lock is lost before it is completed.
    pub(crate) async fn until_lost<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.held.lost_by(reason)),
            value = work => Ok(value),
        }
    }

    /// Releases the lock after completed work.
    pub(crate) async fn unlock_after<T>(self, value: T) -> Outcome<T> {
        let (name, id) = (self.name().to_owned(), self.id().to_owned());
        Outcome::completed(value, (&name, Some(&id)), self.unlock().await)
    }

    /// The hold count of this owner now. Nested calls that are still waiting for a reply count too.
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.held.holds()
    }

    /// The id of this hold: `clientUUID:n`, or `clientUUID:n:write` for a write lock. In Redis it is the name of a field in the hash that
    /// is the lock. The server sees one id as one holder.
    ///
    /// Every hold has a new id, with two exceptions. A hold that began when a task of this client passed the lock on in memory, without a
    /// request, has the id of the hold before. And readers of this client may share one hold on the server, and its id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.held.id()
    }

    /// The owner of this hold, which may re-enter. Known only inside this process.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        self.held.owner()
    }

    /// The lock's name, without the client's prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.held.name()
    }

    /// How it was lost, if it is.
    pub(crate) fn loss(&self) -> Option<Lost> {
        self.held.loss()
    }

    /// When the last request was sent by which the server had it. It may have lost it at any time after that.
    pub(crate) fn last_confirmed(&self) -> Moment {
        self.held.last_confirmed()
    }

    /// The lock's key in Redis.
    pub(crate) fn key(&self) -> &str {
        self.held.key()
    }

    /// The fencing token, if locks of this kind have one.
    pub(crate) fn fence(&self) -> Option<u64> {
        self.held.fence()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.span.note_loss(|| self.held.loss_before_release());
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
