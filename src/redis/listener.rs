//! The receiver of the messages of a channel.

use std::sync::Arc;

use crate::{contained::contained, sync::std};

/// Calls each of them. A listener panics if it wakes a caller whose waker panics. That must not end the task that calls it, nor keep the
/// message from the others.
pub(super) fn each(listeners: &[Arc<dyn Listener>], call: impl Fn(&dyn Listener)) {
    listeners.iter().for_each(|listener| contained(|| call(&**listener)));
}

/// Receives messages. The hub's task calls it, so it must be quick and must not block.
pub(crate) trait Listener: std::fmt::Debug + Send + Sync {
    /// This message was published.
    fn message(&self, text: &str);
    /// Messages arrived that were too many to keep.
    fn missed(&self) {
        self.message("");
    }
    /// Messages may have been missed: the channel was just subscribed, or subscribed again, or it cannot be subscribed now.
    fn subscribed(&self);
}
