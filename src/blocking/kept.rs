//! An async guard that a thread keeps: its release, and the callbacks for its loss.

use std::{future::Future, time::Duration};

use tokio_util::sync::CancellationToken;

use super::wait::{released, wait, when};
use crate::{
    combined,
    error::{Lost, Result},
    guard::{self, Outcome},
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

    pub(super) fn get_mut(&mut self) -> &mut G {
        self.guard.as_mut().expect("only what consumes the guard takes it out")
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

/// By the methods of the guard. `names` is for the log.
macro_rules! async_guard {
    ($guard:ty, $names:expr) => {
        impl AsyncGuard for $guard {
            fn names(&self) -> String {
                let names: fn(&Self) -> String = $names;
                names(self)
            }

            fn unlock(self) -> impl Future<Output = Result<()>> + Send {
                <$guard>::unlock(self)
            }

            fn watch(&self) -> impl Future<Output = Lost> + Send + 'static {
                <$guard>::watch(self)
            }

            fn command_timeout(&self) -> Duration {
                <$guard>::command_timeout(self)
            }
        }
    };
}

async_guard!(guard::Guard, |guard| guard.name().to_owned());
async_guard!(combined::QuorumGuard, |guard| guard.name().to_owned());
async_guard!(combined::MultiGuard, |guard| guard.names().collect::<Vec<_>>().join(", "));
