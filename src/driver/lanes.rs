//! Limits the requests that tasks of the client have under way, for each connection on its own: a server that does not reply must not
//! delay the requests to others.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::Semaphore;

use crate::sync::{dashmap, std, tokio};

/// Each request under way needs a few KiB; one that waits needs a tenth of that.
const AT_ONCE: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Lanes(DashMap<usize, Arc<Semaphore>>);

impl Lanes {
    pub(super) fn of(&self, connection: usize) -> Arc<Semaphore> {
        Arc::clone(&self.0.entry(connection).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))))
    }
}
