//! The connection that receives messages.

use std::sync::Arc;

use fred::{
    interfaces::{EventInterface, FredResult, PubsubInterface},
    types::Message,
};
use futures_util::future::{BoxFuture, join, join_all};
use tokio::sync::broadcast;

use super::{Dialer, Link, link::Pong};
use crate::redis::{
    fault::{Fault, source},
    url::Address,
};

/// The number of messages that are buffered before the subscriber counts as lagging. fred keeps eight such buffers per connection, and
/// only the subscriber's is ever filled.
const HEARD: usize = 4096;

/// A connection that only receives messages. No other requests may be under way on it.
#[derive(Debug)]
pub(crate) struct Subscriber {
    link: Link,
    messages: broadcast::Receiver<Message>,
    sharded: bool,
}

/// An event on the connection for messages.
#[derive(Debug)]
pub(crate) enum PubSubEvent {
    /// A message was published on this channel.
    Message(String),
    /// Messages were dropped: any channel may have had one.
    TooMuch,
    /// The connection is lost.
    Silence,
}

impl Subscriber {
    /// With `sharded` it receives the messages of sharded channels, else those of classic channels.
    pub(crate) async fn open(dial: &Dialer, sharded: bool) -> Result<Self, Fault> {
        let link = dial.open(HEARD).await?.link;
        let messages = link.client.message_rx();
        Ok(Subscriber { link, messages, sharded })
    }

    /// Sends one SUBSCRIBE for each channel, and a PING directly after each. fred forgets a SUBSCRIBE once it is written, and reports
    /// its refusal to the request that is in flight then; if there is none yet, to nobody. Then the reply to the PING shows whether the
    /// server refused all channels so far. Returns when the server has processed all of them. An error does not say which channel was
    /// refused.
    pub(crate) async fn subscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        let all = channels.iter().map(|channel| async move {
            let (subscribed, answered) = join(self.link.bounded(self.subscribe_one(channel)), self.link.ping()).await;
            match subscribed.and(answered)? {
                Pong::Subscribed => Ok(()),
                Pong::Plain if self.sharded => Ok(()), // fred waits for the reply to SSUBSCRIBE
                Pong::Plain => Err(Fault::Server(source("the server refused SUBSCRIBE")).at(self.address())),
            }
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

    /// Returns when the server has processed all earlier requests.
    pub(crate) async fn barrier(&self) -> Result<(), Fault> {
        self.link.ping().await.map(drop)
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
