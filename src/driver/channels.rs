//! The channels on which the waiters of one name are notified.

use std::{collections::HashMap, mem};

use crate::{
    events::AcquiredBy,
    lock::{Channel, HoldId},
    redis::Subscription,
    sync::std,
};

/// Most names have none, and need no memory for them.
#[derive(Default)]
#[expect(clippy::box_collection, reason = "an empty map has 48 bytes, for each held lock")]
pub(super) struct NameChannels(Option<Box<HashMap<Channel, ListenedChannel>>>);

struct ListenedChannel {
    messages: Messages,
    /// Why the last request for this place was sent.
    sent: AcquiredBy,
    /// The position of this place in the queue on the server, 1 for the next waiter.
    position: Option<u64>,
}

/// The subscription to a channel.
pub(super) enum Messages {
    None,
    /// One thread is about to change it.
    Changing,
    Subscribed(Subscription),
}

impl NameChannels {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn add(&mut self, channel: Channel) {
        let new = ListenedChannel { messages: Messages::None, sent: AcquiredBy::FirstTry, position: None };
        self.0.get_or_insert_default().entry(channel).or_insert(new);
    }

    pub(super) fn remove(&mut self, channel: Channel) {
        if let Some(channels) = &mut self.0 {
            channels.remove(&channel);
        }
        self.0.take_if(|channels| channels.is_empty());
    }

    fn get(&self, channel: Channel) -> Option<&ListenedChannel> {
        self.0.as_ref()?.get(&channel)
    }

    fn get_mut(&mut self, channel: Channel) -> Option<&mut ListenedChannel> {
        self.0.as_mut()?.get_mut(&channel)
    }

    /// What there is, for the one thread that may change it. It must call [`settled`](NameChannels::settled).
    pub(super) fn begin_change(&mut self, channel: Channel) -> Option<Messages> {
        self.get_mut(channel).map(|listened| mem::replace(&mut listened.messages, Messages::Changing))
    }

    /// Returns it if the channel is gone. Drop it after the mutex is unlocked.
    pub(super) fn settled(&mut self, channel: Channel, now: Messages) -> Option<Messages> {
        let Some(listened) = self.get_mut(channel) else { return Some(now) };
        listened.messages = now;
        None
    }

    pub(super) fn subscription(&self, channel: Channel) -> Option<&Subscription> {
        match &self.get(channel)?.messages {
            Messages::Subscribed(subscription) => Some(subscription),
            Messages::None | Messages::Changing => None,
        }
    }

    /// False if this place has no channel yet.
    pub(super) fn note_sent(&mut self, place: HoldId, by: AcquiredBy) -> bool {
        let listened = self.get_mut(Channel::Place(place)).map(|listened| listened.sent = by);
        listened.is_some()
    }

    pub(super) fn sent(&self, place: HoldId) -> Option<AcquiredBy> {
        self.get(Channel::Place(place)).map(|listened| listened.sent)
    }

    pub(super) fn note_position(&mut self, place: HoldId, position: u64) {
        if let Some(listened) = self.get_mut(Channel::Place(place)) {
            listened.position = Some(position);
        }
    }

    pub(super) fn position(&self, place: HoldId) -> Option<u64> {
        self.get(Channel::Place(place))?.position
    }
}
