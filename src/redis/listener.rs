//! The receiver of the messages of a channel.

/// Receives messages. The hub's task calls it, so it must be quick and must not block.
pub(crate) trait Listener: std::fmt::Debug + Send + Sync {
    /// A message was published.
    fn message(&self);
    /// Messages may have been missed: the channel was just subscribed, or subscribed again, or it cannot be subscribed now.
    fn subscribed(&self);
}
