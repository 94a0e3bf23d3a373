//! In the place of src/redis/memory/channels.rs: the subscribers are in the world of the execution.

#[derive(Debug, Default)]
pub(super) struct Channels;

impl Channels {
    pub(super) fn publish(&self, channel: &str, _: &str) -> usize {
        super::publish(channel)
    }
}
