//! Requests of others to release a lock, for a holder that wants to know of them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::Notify;

use crate::{
    redis::{Listener, Redis, Subscription},
    sync::{std, tokio},
};

/// A holder that looks at none for a while finds the last ones.
const MOST: usize = 16;

/// The subscription of a hold, and what has arrived.
#[derive(Debug)]
pub(super) struct ReleaseRequests {
    inbox: Arc<Inbox>,
    _subscription: Subscription,
}

/// What the holder has not looked at yet, as it was sent.
#[derive(Debug, Default)]
struct Inbox {
    texts: Mutex<VecDeque<Box<str>>>,
    arrived: Notify,
}

impl Inbox {
    fn take(&self) -> Option<Box<str>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Listener for Inbox {
    fn message(&self, text: &str) {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if texts.len() == MOST {
            texts.pop_front();
        }
        texts.push_back(text.into());
        drop(texts);
        self.arrived.notify_one();
    }

    fn missed(&self) {}

    fn subscribed(&self) {}
}

impl ReleaseRequests {
    pub(super) fn listen(redis: &Redis, channel: &str) -> ReleaseRequests {
        let inbox = Arc::<Inbox>::default();
        let listener = Arc::clone(&inbox) as Arc<dyn Listener>;
        ReleaseRequests { inbox, _subscription: redis.listen(channel, listener) }
    }

    /// Waits for the next one. Cancel safe.
    pub(super) async fn next(&self) -> Box<str> {
        loop {
            if let Some(text) = self.inbox.take() {
                self.inbox.arrived.notify_one(); // another caller may wait for the next one
                return text;
            }
            self.inbox.arrived.notified().await;
        }
    }
}
