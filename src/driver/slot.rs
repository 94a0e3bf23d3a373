//! A request under way that its caller polls. The caller can leave it, and the client can take it over.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use smallvec::SmallVec;

use super::wire::Replied;
use crate::{clock::Moment, lock::Request, lock::RequestId, sync::std};

/// Most events cause one request at most, so these take no memory of their own.
pub(super) type Slots = SmallVec<[Arc<Slot>; 2]>;

pub(super) type Work = Pin<Box<dyn Future<Output = Replied> + Send>>;

/// Awaiting a reply in another task costs a third of a round trip on the same machine. So the caller polls the request that its own call
/// made. A caller that is not polled would delay others, so after [`UNPOLLED`](super::named::UNPOLLED) a task of the client goes on with it.
pub(super) struct Slot {
    pub(super) id: RequestId,
    pub(super) request: Request,
    pub(super) sent: Moment,
    /// `None` once it has ended, or another task goes on with it.
    work: Mutex<Option<Work>>,
}

impl Slot {
    pub(super) fn new(id: RequestId, request: Request, sent: Moment, work: Work) -> Slot {
        Slot { id, request, sent, work: Mutex::new(Some(work)) }
    }

    /// Ready with `None` if this is no longer the place where the request goes on.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Replied>> {
        let mut work = self.work();
        let Some(future) = &mut *work else { return Poll::Ready(None) };
        let replied = std::task::ready!(future.as_mut().poll(cx));
        *work = None;
        Poll::Ready(Some(replied))
    }

    pub(super) fn take(&self) -> Option<Work> {
        self.work().take()
    }

    fn work(&self) -> MutexGuard<'_, Option<Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("id", &self.id).field("request", &self.request).finish_non_exhaustive()
    }
}
