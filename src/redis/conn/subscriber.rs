//! The connection that listens.

use std::sync::Arc;

use fred::{
    interfaces::{EventInterface, FredResult, PubsubInterface},
    types::Message,
};
use futures_util::future::{BoxFuture, join, join_all};
use tokio::sync::broadcast;

use super::{Dialer, Link};
use crate::redis::{fault::Fault, url::Address};

/// Messages that may wait for us before we count as lagging. fred keeps eight such buffers per connection, and only
/// the subscriber's is ever filled.
const HEARD: usize = 4096;

/// A connection that only listens. Nothing else may be under way on it.
#[derive(Debug)]
pub(crate) struct Subscriber {
    link: Link,
    messages: broadcast::Receiver<Message>,
    sharded: bool,
}

/// What a subscriber hears.
#[derive(Debug)]
pub(crate) enum PubSubEvent {
    /// Something was published on this channel.
    Message(String),
    /// More than we could take: any channel may have had something.
    TooMuch,
    /// The connection is gone.
    Silence,
}

impl Subscriber {
    /// One that hears what is published on the channels of shards, or else what is published on all others.
    pub(crate) async fn open(dial: &Dialer, sharded: bool) -> Result<Self, Fault> {
        let link = dial.open(HEARD).await?;
        let messages = link.client.message_rx();
        Ok(Subscriber { link, messages, sharded })
    }

    /// Sends one SUBSCRIBE for each channel, each with a PING close behind: fred forgets a SUBSCRIBE once it is written
    /// and hands its refusal to whatever is in flight then. Done when the server has dealt with all of them; an error
    /// does not say which was refused.
    pub(crate) async fn subscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        let all = channels.iter().map(|channel| async move {
            let (subscribed, answered) = join(self.link.bounded(self.subscribe_one(channel)), self.barrier()).await;
            subscribed.and(answered)
        });
        join_all(all).await.into_iter().collect()
    }

    pub(crate) async fn unsubscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        for channel in channels {
            self.link.bounded(self.unsubscribe_one(channel)).await?;
        }
        Ok(())
    }

    fn subscribe_one<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, FredResult<()>> {
        let client = &self.link.client;
        if self.sharded { Box::pin(client.ssubscribe(channel)) } else { Box::pin(client.subscribe(channel)) }
    }

    fn unsubscribe_one<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, FredResult<()>> {
        let client = &self.link.client;
        if self.sharded { Box::pin(client.sunsubscribe(channel)) } else { Box::pin(client.unsubscribe(channel)) }
    }

    pub(crate) fn address(&self) -> &Address {
        self.link.address()
    }

    /// Answered after the server has dealt with all before it.
    pub(crate) async fn barrier(&self) -> Result<(), Fault> {
        self.link.ping().await
    }

    pub(crate) async fn next(&mut self) -> PubSubEvent {
        tokio::select! {
            () = self.link.down.cancelled() => PubSubEvent::Silence,
            event = self.messages.recv() => match event {
                Ok(message) => PubSubEvent::Message(message.channel.to_string()),
                Err(broadcast::error::RecvError::Lagged(_)) => PubSubEvent::TooMuch,
                Err(broadcast::error::RecvError::Closed) => PubSubEvent::Silence,
            },
        }
    }
}
