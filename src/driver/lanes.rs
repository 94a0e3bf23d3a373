//! Limits the requests that tasks of the client have under way, for each connection on its own: a server that does not reply must not
//! delay the requests to others.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::Semaphore;

use crate::sync::{dashmap, std, tokio};

/// Each request under way needs a few KiB; one that waits needs a tenth of that.
const AT_ONCE: usize = 1024;
/// The same for names about which the last request has failed: thousands that are refused again and again must not delay others.
const IN_TROUBLE_AT_ONCE: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Condition {
    Usual,
    InTrouble,
}

#[derive(Debug, Default)]
pub(super) struct Lanes(DashMap<(usize, Condition), Arc<Semaphore>>);

impl Lanes {
    pub(super) fn of(&self, connection: usize, lane: Condition) -> Arc<Semaphore> {
        let room = match lane {
            Condition::Usual => AT_ONCE,
            Condition::InTrouble => IN_TROUBLE_AT_ONCE,
        };
        Arc::clone(&self.0.entry((connection, lane)).or_insert_with(|| Arc::new(Semaphore::new(room))))
    }
}
