//! A token that is cancelled with the first of several.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinHandle},
};
use tokio_util::sync::CancellationToken;

use crate::sync::tokio;

/// Made when it is asked for. The task that watches the others ends with this value.
#[derive(Debug, Default)]
pub(super) struct AnyLost(Mutex<Option<Watched>>);

#[derive(Debug)]
struct Watched {
    token: CancellationToken,
    watch: Option<AbortHandle>,
}

impl AnyLost {
    /// Cancelled when that future ends. A child of the token: its caller cannot cancel it for others. Watches anew if no task does: an
    /// earlier call may have been outside a runtime, or on one that has ended.
    pub(super) fn when<F: Future<Output = ()> + Send + 'static>(&self, lost: impl FnOnce() -> F) -> CancellationToken {
        let mut watched = self.watched();
        let Watched { token, watch } =
            watched.get_or_insert_with(|| Watched { token: CancellationToken::new(), watch: None });
        let is_watched = token.is_cancelled() || watch.as_ref().is_some_and(|watch| !watch.is_finished());
        if let (false, Ok(runtime)) = (is_watched, Handle::try_current()) {
            *watch = Some(cancel_after(&runtime, lost(), token.clone()).abort_handle());
        }
        token.child_token()
    }

    /// A loss was found otherwise.
    pub(super) fn cancel(&self) {
        if let Some(watched) = &*self.watched() {
            watched.token.cancel();
        }
    }

    fn watched(&self) -> MutexGuard<'_, Option<Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cancel_after(
    runtime: &Handle,
    lost: impl Future<Output = ()> + Send + 'static,
    token: CancellationToken,
) -> JoinHandle<()> {
    runtime.spawn(async move {
        lost.await;
        token.cancel();
    })
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}
