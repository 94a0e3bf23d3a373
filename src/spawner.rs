//! The runtime of a client's tasks, for code that runs elsewhere.

use std::future::Future;

use tokio::runtime::Handle;

use crate::sync::tokio;

#[derive(Debug, Clone)]
pub(crate) struct Spawner(Handle);

impl Spawner {
    /// The present runtime.
    pub(crate) fn here() -> Spawner {
        Spawner(Handle::current())
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.spawn(work));
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.0
    }
}
