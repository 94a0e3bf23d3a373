//! One acquisition of a lock, until its release.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{runtime::Handle, task::AbortHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    asked::ReleaseRequests,
    call::{Call, OnDrop, error},
    calls::{CallResult, EndedCall},
    named::{Fed, Inner, NamedLock},
    translate::{from_machine, lost, now},
};
use crate::{
    clock::Moment,
    config::Lease,
    error::{About, Error, Lost, Result},
    events::Subject,
    lock::{Event, HoldId, Mode, Outcome, Ticket, Token},
    owner::Owner,
    redis::ASK_CHANNEL,
    spans::ServerLabel,
    sync::{std, tokio},
    task_runtime::{TaskRuntime, pass_until},
};

/// A lock that this process acquired. Dropping it releases it.
pub(crate) struct HeldLock {
    shared: HeldTicket,
    owner: Owner,
    hold: HoldId,
    mode: Mode,
    token: Option<Token>,
    stage: Stage,
    extras: OnceLock<Box<Extras>>,
}

/// Parts of a guard that most callers never use.
#[derive(Debug, Default)]
struct Extras {
    id: OnceLock<Box<str>>,
    watch: OnceLock<Watch>,
    requests: OnceLock<ReleaseRequests>,
}

/// What futures need that may outlive the guard.
#[derive(Debug, Clone)]
struct HeldTicket {
    lock: Arc<NamedLock>,
    ticket: Ticket,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Held,
    /// The release is done, or goes on without the guard.
    Released,
}

/// The token that is cancelled when the lock is lost, and the tasks that watch for that.
#[derive(Debug, Default)]
struct Watch {
    token: CancellationToken,
    /// Why it was cancelled.
    reason: Arc<OnceLock<Lost>>,
    /// On the client's runtime, and on that of the caller.
    tasks: Mutex<[Option<AbortHandle>; 2]>,
}

impl Watch {
    fn cancel(&self, reason: Lost) {
        self.reason.get_or_init(|| reason);
        self.token.cancel();
    }

    /// After its release the lock is not lost, unless the release finds that it was.
    fn stop(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.iter_mut().filter_map(Option::take).for_each(|task| task.abort());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What has become of an acquisition.
enum Fate {
    Held,
    Lost(Lost),
    Released,
}

impl Fate {
    fn loss(self) -> Option<Lost> {
        match self {
            Fate::Held => None,
            Fate::Lost(reason) => Some(reason),
            Fate::Released => Some(Lost::Removed),
        }
    }
}

impl HeldTicket {
    /// How the lock was lost, if it was. The clock is considered: a timer may be late.
    fn loss(&self) -> Option<Lost> {
        self.fate().loss()
    }

    /// One look under the mutex, so a release that happens meanwhile does not look like a loss.
    fn fate(&self) -> Fate {
        self.lock.with(|inner, fed| self.fate_in(inner, fed))
    }

    fn fate_in(&self, inner: &mut Inner, fed: &mut Fed<'_>) -> Fate {
        if inner.state.certain_until(self.ticket, now()).is_some() {
            return Fate::Held;
        }
        inner.handle(&self.lock, Event::Due, fed);
        inner.state.known_loss_of(self.ticket).map_or(Fate::Released, |loss| Fate::Lost(lost(loss)))
    }

    fn remaining(&self) -> Duration {
        let (inner, now) = (self.lock.inner(), now());
        inner.state.certain_until(self.ticket, now).map_or(Duration::ZERO, |end| end.since(now))
    }

    /// Resolves when it is lost: when the client learns of it, and at the latest at the end of its time by the clock of the caller, because
    /// the runtime of the client may have ended.
    async fn lost(&self) -> Lost {
        self.lost_or_released().await.unwrap_or(Lost::Removed)
    }

    /// The same; `None` if it was released.
    async fn lost_or_released(&self) -> Option<Lost> {
        let mut watcher = Watcher { held: self, key: None };
        loop {
            // The clock is read first, so a pause anywhere here makes the wait shorter, not longer.
            let begun = Instant::now();
            let mut rest = pin!(pass_until(begun + self.remaining()));
            let seen = poll_fn(|cx| match watcher.look(cx.waker()) {
                Fate::Held => rest.as_mut().poll(cx).map(|()| Fate::Held),
                ended => Poll::Ready(ended),
            });
            match seen.await {
                Fate::Held => {}
                Fate::Lost(reason) => return Some(reason),
                Fate::Released => return None,
            }
        }
    }
}

/// Someone that waits for the loss of a guard.
struct Watcher<'a> {
    held: &'a HeldTicket,
    key: Option<(u64, u64)>,
}

impl Watcher<'_> {
    /// While it is held, the waker is kept for the next loss. That is one step with the look.
    fn look(&mut self, waker: &Waker) -> Fate {
        let (fate, replaced) = self.held.lock.with(|inner, fed| {
            let fate = self.held.fate_in(inner, fed);
            let is_held = matches!(fate, Fate::Held);
            (fate, is_held.then(|| inner.watchers.keep(self.held.ticket.0, &mut self.key, waker)))
        });
        drop(replaced); // after the mutex is unlocked
        fate
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        let waker = self.held.lock.inner().watchers.remove(self.key);
        drop(waker); // after the mutex is unlocked
    }
}

impl HeldLock {
    pub(super) fn new(
        lock: Arc<NamedLock>,
        ticket: Ticket,
        owner: Owner,
        (hold, mode): (HoldId, Mode),
        token: Option<Token>,
    ) -> HeldLock {
        let shared = HeldTicket { lock, ticket };
        HeldLock { shared, owner, hold, mode, token, stage: Stage::Held, extras: OnceLock::new() }
    }

    /// Another acquisition, with so many permits of this one.
    pub(crate) fn split(&self, permits: u32) -> HeldLock {
        let lock = Arc::clone(self.lock());
        let ticket = {
            let mut inner = lock.inner();
            let ticket = inner.next_ticket();
            inner.state.split(self.shared.ticket, (ticket, permits));
            ticket
        };
        HeldLock::new(lock, ticket, self.owner.clone(), (self.hold, self.mode), None)
    }

    /// The lock stays held for this long from now, even after its release.
    pub(crate) fn stay_held(&self, time: Duration) {
        self.lock().inner().state.stay_held(self.shared.ticket, now() + time);
    }

    fn lock(&self) -> &Arc<NamedLock> {
        &self.shared.lock
    }

    pub(crate) fn loss(&self) -> Option<Lost> {
        self.shared.loss()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.shared.remaining()
    }

    pub(crate) async fn lost(&self) -> Lost {
        self.shared.lost().await
    }

    /// As [`lost`](HeldLock::lost), without the guard. Does not resolve after a release, unless the release finds that the lock was lost.
    #[cfg(feature = "blocking")]
    pub(crate) fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
        let token = self.lost_token();
        let reason = Arc::clone(&self.extras().watch.get_or_init(Watch::default).reason);
        async move {
            token.cancelled().await;
            reason.get().copied().unwrap_or(Lost::Removed) // a release whose result is unknown cancels it, too
        }
    }

    /// Waits for the next request to release it, as it was sent. Listens from the first call on.
    pub(crate) fn asked(&self) -> impl Future<Output = Box<str>> {
        let listen = || ReleaseRequests::listen(&self.lock().driver.redis, &ASK_CHANNEL.of(self.key()).to_string());
        self.extras().requests.get_or_init(listen).next()
    }

    fn extras(&self) -> &Extras {
        self.extras.get_or_init(Box::default)
    }

    fn watched(&self) -> Option<&Watch> {
        self.extras.get()?.watch.get()
    }

    /// Cancelled when it is lost. A task on the caller's runtime watches the clock.
    pub(crate) fn lost_token(&self) -> CancellationToken {
        let watch = self.extras().watch.get_or_init(Watch::default);
        if let Some(reason) = self.loss() {
            watch.cancel(reason);
        } else {
            // On the client's runtime, because the caller's may not run. And there, because the client's may have ended.
            let runtimes = [Some(self.lock().driver.runtime.handle().clone()), Handle::try_current().ok()];
            self.watch_on(runtimes, watch);
        }
        watch.token.child_token() // a child: a caller that cancels it cancels no other
    }

    fn watch_on(&self, runtimes: [Option<Handle>; 2], watch: &Watch) {
        let mut tasks = watch.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for (task, runtime) in tasks.iter_mut().zip(runtimes) {
            let is_watched = task.as_ref().is_some_and(|task| !task.is_finished());
            if let Some(runtime) = runtime.filter(|_| !is_watched) {
                let (shared, token, reason) = (self.shared.clone(), watch.token.clone(), Arc::clone(&watch.reason));
                let watching = runtime.spawn(async move {
                    if let Some(lost) = shared.lost_or_released().await {
                        reason.get_or_init(|| lost);
                        token.cancel();
                    }
                });
                *task = Some(watching.abort_handle());
            }
        }
    }

    pub(crate) fn holds(&self) -> u32 {
        let count = self.lock().inner().state.count_of(self.shared.ticket);
        count.map_or(0, |(guards, _)| u32::try_from(guards).unwrap_or(u32::MAX))
    }

    pub(crate) fn id(&self) -> &str {
        self.extras().id.get_or_init(|| self.lock().field(self.hold, self.mode))
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn name(&self) -> &str {
        &self.lock().name
    }

    pub(crate) fn key(&self) -> &str {
        self.lock().name.key()
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        self.lock().subject(self.mode)
    }

    /// What errors say that they are about.
    fn about(&self) -> About {
        self.subject().kind.about()
    }

    /// The error of a hold that was lost for that reason.
    pub(crate) fn lost_by(&self, reason: Lost) -> Error {
        Error::lost(self.name(), reason).of(self.about())
    }

    pub(crate) fn server(&self) -> &ServerLabel {
        &self.lock().driver.config.server
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn command_timeout(&self) -> Duration {
        self.lock().driver.config.command_timeout
    }

    /// As [`loss`](HeldLock::loss), unless it was released.
    pub(crate) fn loss_before_release(&self) -> Option<Lost> {
        if self.stage == Stage::Held { self.loss() } else { None }
    }

    pub(crate) fn fence(&self) -> Option<u64> {
        self.token.map(Token::get)
    }

    /// When the last request was sent by which the server had it.
    pub(crate) fn last_confirmed(&self) -> Moment {
        self.lock().inner().state.last_seen(self.shared.ticket).map_or(Moment::PAST, from_machine)
    }

    pub(crate) async fn unlock(&mut self) -> Result<()> {
        let begun = match poll_fn(|cx| Poll::Ready(self.begin_unlock(cx.waker()))).await {
            Err(error) if !error.is_lost() => return Err(error),
            begun => begun,
        };
        let released = self.end(begun).await;
        if let Err(error) = &released {
            self.watched().inspect(|watch| watch.cancel(error.loss().unwrap_or(Lost::Removed)));
        }
        self.release(); // if it was lost before
        released
    }

    fn begin_unlock(&mut self, waker: &Waker) -> Result<Call> {
        let ticket = self.shared.ticket;
        let on_drop = self.watched().map_or(OnDrop::GoesOn, |watch| OnDrop::Releases(watch.token.clone()));
        let call = self.begin((self.about().releasing(), on_drop), waker, |_| (ticket, Event::Unlock(ticket)))?;
        self.stage = Stage::Released; // it goes on in the background
        self.watched().inspect(|watch| watch.stop());
        Ok(call)
    }

    /// Checks on the server that the lock is held, and extends the lease. It may be lost before the reply comes.
    pub(crate) async fn confirm(&self, lease: Option<Lease>) -> Result<()> {
        let guard = self.shared.ticket;
        let check = |inner: &mut Inner| {
            let ticket = inner.next_ticket();
            (ticket, Event::Check { guard, ticket, lease: lease.map(|lease| *lease) })
        };
        let begun =
            poll_fn(|cx| Poll::Ready(self.begin((self.about().confirming(), OnDrop::GoesOn), cx.waker(), check)));
        match (self.end(begun.await).await, self.loss()) {
            (Ok(()) | Err(Error::Unavailable { .. }), Some(reason)) => Err(self.lost_by(reason)), // it was lost meanwhile
            (ended, _) => ended,
        }
    }

    /// An error if the lock is lost already. One look under the mutex.
    fn begin(
        &self,
        (what, ending): (&'static str, OnDrop),
        waker: &Waker,
        event: impl FnOnce(&mut Inner) -> (Ticket, Event),
    ) -> Result<Call> {
        let lock = self.lock();
        let (ticket, waits) = lock.with(|inner, fed| {
            if let Some(reason) = self.shared.fate_in(inner, fed).loss() {
                return Err(self.lost_by(reason));
            }
            TaskRuntime::around(what)?;
            let (ticket, event) = event(inner);
            inner.calls.begin(ticket, now());
            inner.handle(lock, event, fed);
            Ok((ticket, inner.calls.wait(ticket, waker)))
        })?;
        Ok(Call { what, lock: Arc::clone(lock), ticket, ending, waits })
    }

    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its arguments twice")]
    fn end(&self, mut begun: Result<Call>) -> impl Future<Output = Result<()>> {
        async move {
            let call = begun.as_mut().map_err(|error| error.clone())?;
            match poll_fn(|cx| call.poll(cx)).await? {
                EndedCall { result: CallResult { outcome: Outcome::Confirmed, .. }, .. } => Ok(()),
                EndedCall { result, since, .. } => Err(error(self.lock(), call.what, &result, since)),
            }
        }
    }

    fn release(&mut self) {
        if self.stage == Stage::Held {
            self.stage = Stage::Released;
            self.watched().inspect(|watch| watch.stop());
            let token = self.watched().map(|watch| watch.token.clone());
            self.lock().drop_guard(self.shared.ticket, token);
        }
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        self.release();
    }
}
