//! The guard: one acquisition of a hold.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Engine,
    ask::{Reply, ScriptRequest},
    hold::{Ending, Grant, Hold, LeaseTerms},
    releaser::{GivenBack, ReleaseJob},
    tenure::Tenure,
};
use crate::{
    clock::Moment,
    config::Lease,
    error::{Error, Lost, Result},
    failed::{CONFIRMING, GIVING_BACK, unexpected},
    owner::Owner,
    redis::{Code, Part, Script},
    spans::ServerLabel,
    stats::{LockCounters, Subject},
    sync::{std, tokio},
    task_runtime::TaskRuntime,
};

/// One acquisition of a hold. Dropping it releases it.
pub(crate) struct EngineGuard {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    terms: LeaseTerms,
    on_server: OnServer,
}

/// The part of this guard's acquisition that the server may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnServer {
    Nothing,
    /// No hold, but perhaps the mark or the queue entry of a waiter.
    Trace,
    /// A request was sent, and its outcome is unknown.
    InDoubt,
    Granted,
    /// The release is done, or another task does it.
    Settled,
}

impl EngineGuard {
    /// Made for an acquisition that has been claimed, before the first request for it. From here on, dropping the guard undoes the
    /// acquisition.
    pub(crate) fn of_claim(engine: &Arc<Engine>, hold: &Arc<Hold>) -> EngineGuard {
        EngineGuard {
            engine: Arc::clone(engine),
            hold: Arc::clone(hold),
            terms: LeaseTerms::default(),
            on_server: OnServer::Nothing,
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// A request for the lock is about to be sent.
    pub(crate) fn asked(&mut self) {
        self.on_server = OnServer::InDoubt;
    }

    /// The server has certainly not granted it. With `trace`, the server may have noted a waiter.
    pub(crate) fn refused(&mut self, trace: bool) {
        self.on_server = if trace { OnServer::Trace } else { OnServer::Nothing };
    }

    /// An error if the hold is lost, or if its lease may have expired by the clock.
    pub(crate) fn check_clock(&self) -> Result<()> {
        self.hold.check()
    }

    pub(crate) fn granted(&mut self, grant: Grant, lease: Lease, terms: LeaseTerms) {
        let first = self.hold.granted(grant, lease, terms);
        (self.terms, self.on_server) = (terms, OnServer::Granted);
        self.engine.watchdog.list(&self.hold);
        if first {
            self.counters().holds(0, 1);
            tracing::debug!(target: "leasehold::lock", name = self.name(), id = self.id(), "acquired");
        }
    }

    pub(crate) async fn unlock(&mut self) -> Result<()> {
        if let Some(reason) = self.hold.loss() {
            self.leave();
            return Err(Error::lost(&self.hold.name, reason));
        }
        TaskRuntime::around(GIVING_BACK)?; // it goes on in the background
        let engine = Arc::clone(&self.engine);
        if self.pass_on().is_some() {
            return Box::pin(self.told(true)).await; // boxed: few guards need the room for it
        }
        let begun = engine.releaser.begin();
        self.step_down();
        let give_up = engine.outage_ends();
        match begun.run(ReleaseJob::new(&self.hold, true), give_up).await? {
            GivenBack::Ended(ending) => self.outcome(ending),
            GivenBack::ToOthers => {
                let counts = self.hold.count_return(); // only one guard of the hold counts
                Box::pin(self.told(counts)).await
            }
        }
    }

    /// The ending, from the next request about the id of this hold. Other holds of this client use that id now.
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

    /// As [`lost`](Guard::lost), without the guard. Like [`lost_token`](Guard::lost_token), it does not resolve after a release.
    #[cfg(feature = "blocking")]
    pub(crate) fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
        let (hold, token) = (Arc::clone(&self.hold), self.lost_token());
        async move {
            token.cancelled().await;
            hold.loss().unwrap_or(Lost::Removed) // a release whose ending is unknown cancels it, too
        }
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn command_timeout(&self) -> Duration {
        self.engine.config.command_timeout
    }

    pub(crate) async fn lost(&self) -> Lost {
        self.hold.lost().await
    }

    pub(crate) fn lost_token(&self) -> CancellationToken {
        self.hold.lost_token()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    pub(crate) async fn confirm(&self, lease: Option<Lease>) -> Result<()> {
        let script = &self.hold.kind.renew;
        let end = self.hold.lease_ends();
        let claim = lease.map_or_else(String::new, |lease| self.hold.lengthening(lease));
        let part = self.hold.renew_part(lease, &claim, end);
        let Reply { sent, answer, .. } = self.ask(CONFIRMING, (&script.script, part), lease).await?;
        self.hold.confirmed(sent, lease, self.hold.kind.rules.sure_after(&answer, sent, end));
        self.engine.watchdog.list(&self.hold);
        self.hold.check()
    }

    /// Runs a script that acts only if the server still has the hold.
    pub(crate) async fn while_held(&self, what: &'static str, request: (&'static Script, Part)) -> Result<()> {
        self.ask(what, request, None).await.map(drop)
    }

    /// Sends a request about the hold. Returns the reply that found the hold.
    async fn ask(&self, what: &'static str, request: (&'static Script, Part), lease: Option<Lease>) -> Result<Reply> {
        self.hold.check()?;
        let time = (Instant::now(), self.engine.outage_ends());
        let hold = lease.map(|lease| (&*self.hold, lease));
        let request = ScriptRequest { hold, ..ScriptRequest::new(what, &self.hold.name, request, time) };
        let reply = Box::pin(request.ask(&self.engine.redis)).await?;
        match reply.answer.code {
            Code::Kept => Ok(reply),
            Code::Gone => Err(self.gone()),
            _ => Err(unexpected(&reply.answer)),
        }
    }

    pub(crate) fn holds(&self) -> u32 {
        self.hold.hold_count()
    }

    pub(crate) fn id(&self) -> &str {
        self.hold.id()
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.hold.owner
    }

    pub(crate) fn name(&self) -> &str {
        &self.hold.name
    }

    pub(crate) fn server(&self) -> &ServerLabel {
        &self.engine.config.server
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        self.hold.subject()
    }

    /// As [`loss`](EngineGuard::loss), unless it was released.
    pub(crate) fn loss_before_release(&self) -> Option<Lost> {
        if self.on_server == OnServer::Granted { self.hold.loss() } else { None }
    }

    /// How it was lost, if it is.
    pub(crate) fn loss(&self) -> Option<Lost> {
        self.hold.loss()
    }

    /// When the last request was sent by which the server had it. It may have lost it at any time after that.
    pub(crate) fn last_confirmed(&self) -> Moment {
        self.hold.last_confirmed()
    }

    /// The lock's key in Redis.
    pub(crate) fn key(&self) -> &str {
        self.hold.name.key()
    }

    /// The fencing token, if locks of this kind have one.
    pub(crate) fn fence(&self) -> Option<u64> {
        self.hold.fence()
    }

    /// Ends the acquisition inside this process: no more renewals, and the owner's next `lock` is a new hold. True if it was the
    /// last acquisition. The caller must send the release.
    fn step_down(&mut self) -> bool {
        let since = self.hold.since();
        self.on_server = OnServer::Settled;
        let last = self.hold.let_go(self.terms);
        if last {
            self.over(since);
        }
        last
    }

    /// Passes the hold on in memory to the next waiter of this process, without a request, if that is possible.
    fn pass_on(&mut self) -> Option<Arc<Tenure>> {
        let since = self.hold.since();
        let tenure = self.engine.queues.pass_on(&self.hold, || self.engine.releaser.later(&self.hold))?;
        self.on_server = OnServer::Settled;
        self.over(since);
        Some(tenure)
    }

    fn counters(&self) -> LockCounters<'_> {
        self.engine.counters.of(self.hold.subject())
    }

    fn over(&self, since: Option<Moment>) {
        self.engine.registry.remove(&self.hold);
        self.engine.watchdog.list(&self.hold);
        if let Some(since) = since {
            self.counters().holds(1, 0);
            self.counters().held_for(Moment::now().since(since));
        }
    }

    /// Ends the acquisition inside this process. The releaser then clears the server, if the server may have something.
    fn leave(&mut self) {
        let loss = self.hold.loss();
        loss.inspect(|reason| self.hold.lose(*reason, &self.engine.counters)); // the watchdog may not have noticed yet
        let given = self.on_server == OnServer::Granted || self.hold.is_given();
        let there = given || self.on_server == OnServer::InDoubt; // also if it was removed: a hand-over may have created it again
        if self.hold.is_evicted() || self.hold.is_doomed() && self.on_server == OnServer::InDoubt {
            self.hold.came_again(); // it was released before, and a request for it may have been sent since
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

impl Drop for EngineGuard {
    fn drop(&mut self) {
        let passed = (self.on_server == OnServer::Granted).then(|| self.pass_on()).flatten();
        if let Some(tenure) = passed {
            self.counters().released();
            tracing::debug!(target: "leasehold::lock", name = self.name(), id = self.id(), "released");
            if tenure.passed_unheard() {
                self.engine.releaser.confirm(&tenure);
            }
        } else if self.on_server != OnServer::Settled {
            self.leave();
        }
    }
}

impl fmt::Debug for EngineGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineGuard").field("name", &self.name()).field("id", &self.id()).finish_non_exhaustive()
    }
}
