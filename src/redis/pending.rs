//! A request that waits for its reply. It is not a future: nobody polls it, so a caller that leaves costs the others nothing.

use std::{cell::RefCell, collections::VecDeque, fmt, time::Duration};

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
            Later::Failed(request, fault) => end_in_turn(*request, fault),
            Later::Task(spawner, work) => spawner.spawn(work),
        }
    }
}

thread_local! {
    /// Requests that fail while this thread handles the failure of another. `None`: it handles none.
    static FAILED: RefCell<Option<VecDeque<(PendingRequest, Fault)>>> = const { RefCell::new(None) };
}

/// What follows from a failure is often a request that fails, too. Thousands of them, one inside the other, would fill the stack.
fn end_in_turn(request: PendingRequest, fault: Fault) {
    let mut next = Some((request, fault));
    let is_inside = FAILED.try_with(|failed| match &mut *failed.borrow_mut() {
        Some(failed) => {
            failed.extend(next.take());
            true
        }
        idle => idle.replace(VecDeque::new()).is_some(),
    });
    if is_inside.unwrap_or(false) {
        return;
    }
    while let Some((request, fault)) = next {
        request.end(Err(fault)); // a panic ends there
        next = FAILED.try_with(|failed| failed.borrow_mut().as_mut().and_then(VecDeque::pop_front)).ok().flatten();
    }
    let _ = FAILED.try_with(RefCell::take); // a thread that ends has no such list anymore
}

#[cfg(test)]
mod tests {
    use ::std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;

    static NOTHING: Script = Script::new("return 0");

    /// A request that fails, after which another is made that fails.
    fn failing(more: u32, ended: Arc<AtomicU32>) -> Later {
        let then = move |_| {
            ended.fetch_add(1, Ordering::Relaxed);
            if more > 0 {
                failing(more - 1, ended).go();
            }
        };
        let request = PendingRequest::new(&NOTHING, Part::of("key").done(), Urgency::Now, OnReply::new(then));
        Later::Failed(Box::new(request), Fault::Abandoned)
    }

    #[test]
    fn failures_that_follow_from_failures_do_not_fill_the_stack() {
        let ended = Arc::new(AtomicU32::new(0));
        failing(200_000, Arc::clone(&ended)).go();
        assert_eq!(ended.load(Ordering::Relaxed), 200_001);
    }
}
