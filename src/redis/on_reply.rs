//! What is done with the reply to a request. A request is not a future: nobody polls it, so a caller that leaves costs the others nothing.

use std::fmt;

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::{answer::Answer, fault::Fault, script::Part};
use crate::{
    spawner::Spawner,
    sync::{std, tokio},
};

/// Called once, by a task of the client that holds no locks. It must not wait.
pub(crate) struct OnReply(Box<dyn FnOnce(Result<Answer, Fault>) + Send>);

impl OnReply {
    pub(crate) fn new(then: impl FnOnce(Result<Answer, Fault>) + Send + 'static) -> OnReply {
        OnReply(Box::new(then))
    }

    pub(crate) fn call(self, answer: Result<Answer, Fault>) {
        (self.0)(answer);
    }
}

impl fmt::Debug for OnReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnReply")
    }
}

/// A request, until its reply.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(super) part: Part,
    pub(super) on_reply: OnReply,
    pub(super) since: tokio::time::Instant,
}

/// Most calls have one.
pub(super) type Requests = SmallVec<[PendingRequest; 1]>;

/// What is left to do after a request was sent, or could not be. The sender may hold locks that a reply needs, so it does this after
/// they are unlocked.
#[must_use = "the request has no reply otherwise"]
pub(crate) enum Later {
    Failed(OnReply, Fault),
    Task(Spawner, BoxFuture<'static, ()>),
}

impl Later {
    pub(super) fn task(spawner: &Spawner, work: impl Future<Output = ()> + Send + 'static) -> Later {
        Later::Task(spawner.clone(), Box::pin(work))
    }

    pub(crate) fn go(self) {
        match self {
            Later::Failed(on_reply, fault) => on_reply.call(Err(fault)),
            Later::Task(spawner, work) => spawner.spawn(work),
        }
    }
}
