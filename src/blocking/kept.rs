//! An async guard that a thread keeps: its release, and the callbacks for its loss.

use std::{future::Future, time::Duration};

use tokio_util::sync::CancellationToken;

use super::wait::{released, wait, when};
use crate::{
    combined, engine,
    engine::Outcome,
    error::{Lost, Result},
};

/// What a thread needs of an async guard.
pub(super) trait AsyncGuard: Send + Sync {
    /// For the log: the names of its locks.
    fn names(&self) -> String;
    fn unlock(self) -> impl Future<Output = Result<()>> + Send;
    /// Resolves at a loss, also if the guard is gone by then.
    fn watch(&self) -> impl Future<Output = Lost> + Send + 'static;
    fn command_timeout(&self) -> Duration;
}

/// Released by [`unlock`](Kept::unlock), else by drop.
#[derive(Debug)]
pub(super) struct Kept<G: AsyncGuard> {
    /// `None` once it is released.
    guard: Option<G>,
    /// Cancelled after the release: from then on, no callback waits for a loss.
    over: CancellationToken,
}

impl<G: AsyncGuard> Kept<G> {
    pub(super) fn new(guard: G) -> Kept<G> {
        Kept { guard: Some(guard), over: CancellationToken::new() }
    }

    pub(super) fn get(&self) -> &G {
        self.guard.as_ref().expect("only what consumes the guard takes it out")
    }

    pub(super) fn take(&mut self) -> G {
        self.guard.take().expect("only what consumes the guard takes it out")
    }

    pub(super) fn unlock(mut self) -> Result<()> {
        wait(self.take().unlock())
    }

    pub(super) fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        when(|| self.get().watch(), self.over.clone(), callback);
    }

    /// Releases the guard after completed work.
    pub(super) fn completed<T>(self, value: T) -> Outcome<T> {
        let names = self.get().names();
        Outcome::completed(value, (&names, None), self.unlock())
    }
}

impl<G: AsyncGuard> Drop for Kept<G> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            released(guard.command_timeout(), guard.unlock());
        }
        self.over.cancel();
    }
}

impl AsyncGuard for engine::Guard {
    fn names(&self) -> String {
        self.name().to_owned()
    }

    fn unlock(self) -> impl Future<Output = Result<()>> + Send {
        engine::Guard::unlock(self)
    }

    fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
        engine::Guard::watch(self)
    }

    fn command_timeout(&self) -> Duration {
        engine::Guard::command_timeout(self)
    }
}

impl AsyncGuard for combined::QuorumGuard {
    fn names(&self) -> String {
        self.name().to_owned()
    }

    fn unlock(self) -> impl Future<Output = Result<()>> + Send {
        combined::QuorumGuard::unlock(self)
    }

    fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
        combined::QuorumGuard::watch(self)
    }

    fn command_timeout(&self) -> Duration {
        combined::QuorumGuard::command_timeout(self)
    }
}

impl AsyncGuard for combined::MultiGuard {
    fn names(&self) -> String {
        combined::MultiGuard::names(self).collect::<Vec<_>>().join(", ")
    }

    fn unlock(self) -> impl Future<Output = Result<()>> + Send {
        combined::MultiGuard::unlock(self)
    }

    fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
        combined::MultiGuard::watch(self)
    }

    fn command_timeout(&self) -> Duration {
        combined::MultiGuard::command_timeout(self)
    }
}
