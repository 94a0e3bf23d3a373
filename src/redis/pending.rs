//! A request that waits for its reply. It is not a future: nobody polls it, so a caller that leaves costs the others nothing.

use std::{fmt, time::Duration};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use tokio::{sync::oneshot, time::Instant};

use super::{
    answer::Answer,
    fault::Fault,
    reply_to::ReplyTo,
    script::{Part, Script},
};
use crate::{
    contained::contained,
    spawner::Spawner,
    sync::{std, tokio},
};

/// What is done with a reply, and with the request, which may be sent again. Called once, by a task of the client that holds no locks. It must
/// not wait. A panic in it ends there: the task has the replies of others.
pub(crate) struct OnReply(Box<dyn FnOnce(Part, Result<Answer, Fault>) + Send>);

impl OnReply {
    pub(crate) fn new(then: impl FnOnce(Result<Answer, Fault>) + Send + 'static) -> OnReply {
        OnReply::with_part(|_, answer| then(answer))
    }

    fn with_part(then: impl FnOnce(Part, Result<Answer, Fault>) + Send + 'static) -> OnReply {
        OnReply(Box::new(then))
    }
}

impl fmt::Debug for OnReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnReply")
    }
}

/// When a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// As soon as that is efficient.
    Now,
    /// In one call with similar requests.
    Gathered,
    /// After all others: thousands that are refused again and again must not delay them.
    Last,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(super) script: &'static Script,
    pub(super) part: Part,
    pub(super) urgency: Urgency,
    pub(super) on_reply: OnReply,
    pub(super) since: Instant,
}

impl PendingRequest {
    pub(crate) fn new(script: &'static Script, part: Part, urgency: Urgency, on_reply: OnReply) -> PendingRequest {
        PendingRequest { script, part, urgency, on_reply, since: Instant::now() }
    }

    /// The same request, whose reply `then` gets first.
    pub(super) fn followed_by(
        self,
        then: impl FnOnce(PendingRequest, Result<Answer, Fault>) + Send + 'static,
    ) -> PendingRequest {
        let PendingRequest { script, part, urgency, on_reply, since } = self;
        let followed = move |part, answer| then(PendingRequest { script, part, urgency, on_reply, since }, answer);
        PendingRequest { script, part, urgency, on_reply: OnReply::with_part(followed), since }
    }

    /// It has its reply.
    pub(crate) fn end(self, answer: Result<Answer, Fault>) {
        contained(|| (self.on_reply.0)(self.part, answer));
    }

    /// For a task that waits for the reply.
    pub(super) fn awaited(
        script: &'static Script,
        part: Part,
    ) -> (PendingRequest, oneshot::Receiver<Result<Answer, Fault>>) {
        let (reply, receiver) = ReplyTo::new();
        let on_reply = OnReply::new(|answer| reply.send(answer));
        (PendingRequest::new(script, part, Urgency::Now, on_reply), receiver)
    }
}

/// What is left for another try of a request, in which it waits for a reply for the second time.
pub(super) fn left_for_another(since: Instant, command_timeout: Duration) -> Duration {
    (command_timeout * 9 / 4).saturating_sub(since.elapsed())
}

/// Most calls have one.
pub(super) type Requests = SmallVec<[PendingRequest; 1]>;

/// What is left to do after a request was sent, or could not be. The sender may hold locks that a reply needs, so it does this after
/// they are unlocked.
#[must_use = "the request has no reply otherwise"]
pub(crate) enum Later {
    Failed(Box<PendingRequest>, Fault),
    Task(Spawner, BoxFuture<'static, ()>),
}

impl Later {
    pub(super) fn task(spawner: &Spawner, work: impl Future<Output = ()> + Send + 'static) -> Later {
        Later::Task(spawner.clone(), Box::pin(work))
    }

    pub(crate) fn go(self) {
        match self {
            Later::Failed(request, fault) => request.end(Err(fault)),
            Later::Task(spawner, work) => spawner.spawn(work),
        }
    }
}
