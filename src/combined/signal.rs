//! Release messages of one lock from several servers.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::{
    error::Result,
    primitives::Lock,
    redis::{Listener, Subscription},
    sync::tokio,
};

/// Subscribed for as long as it lives.
#[derive(Debug)]
pub(super) struct Releases {
    heard: Arc<Heard>,
    _subscriptions: Vec<Subscription>,
}

#[derive(Debug, Default)]
struct Heard(Notify);

impl Releases {
    pub(super) fn of(locks: &[Lock]) -> Result<Releases> {
        let heard = Arc::new(Heard::default());
        let subscribed = locks.iter().map(|lock| lock.listen(Arc::clone(&heard) as Arc<dyn Listener>));
        Ok(Releases { _subscriptions: subscribed.collect::<Result<_>>()?, heard: Arc::clone(&heard) })
    }

    /// Resolves at a message that came since the last call, of any of the servers.
    pub(super) async fn heard(&self) {
        self.heard.0.notified().await;
    }
}

impl Listener for Heard {
    fn message(&self) {
        self.0.notify_one();
    }

    fn subscribed(&self) {
        self.0.notify_one(); // something may have been published before
    }
}
