//! The connection that receives messages, over fred. No other file of this crate uses fred.
//!
//! fred can reconnect by itself, but some of its states never end (docs/dev/connection.md lists the measurements). So here a client of fred is one
//! connection for its whole life, with a time limit for every wait.

use std::{sync::Arc, time::Duration};

use fred::{
    clients::Client,
    error::{Error as FredError, ErrorKind},
    interfaces::{ClientLike, EventInterface, FredResult, PubsubInterface},
    types::{
        Builder, ClusterHash, ConnectHandle, CustomCommand, Message, Value,
        config::{Config as FredConfig, Server, ServerConfig, UnresponsiveConfig},
    },
};
use futures_util::future::{BoxFuture, FutureExt, join, join_all};
use tokio::{
    sync::broadcast,
    task::{AbortHandle, JoinError},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{Connection, Dialer, questions::Asks, resp::Reply, target::Target};
use crate::{
    redis::{
        fault::{Fault, source},
        url::Address,
    },
    stats::Counters,
};

/// The number of messages that are buffered before the subscriber counts as lagging. fred keeps eight such buffers per connection, and
/// only the subscriber's is ever filled.
const HEARD: usize = 4096;

/// A connection that only receives messages. No other requests may be under way on it.
#[derive(Debug)]
pub(crate) struct Subscriber {
    connection: FredConnection,
    messages: broadcast::Receiver<Message>,
    sharded: bool,
}

/// An event on the connection for messages.
#[derive(Debug)]
pub(crate) enum PubSubEvent {
    /// This was published. A text that is no UTF-8 is empty.
    Message { channel: String, text: String },
    /// Messages were dropped: any channel may have had one.
    TooMuch,
    /// The connection is lost.
    Silence,
}

/// The reply to a PING. It has another form once the connection is subscribed to a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pong {
    Plain,
    Subscribed,
}

impl Subscriber {
    /// With `sharded` it receives the messages of sharded channels, else those of classic channels.
    pub(crate) async fn open(dial: &Dialer, sharded: bool) -> Result<Self, Fault> {
        let connection = dial.open::<FredConnection>().await?.link;
        let messages = connection.client.message_rx();
        Ok(Subscriber { connection, messages, sharded })
    }

    /// Sends one SUBSCRIBE for each channel, and a PING directly after each. fred forgets a SUBSCRIBE once it is written, and reports
    /// its refusal to the request that is in flight then; if there is none yet, to nobody. Then the reply to the PING shows whether the
    /// server refused all channels so far. Returns when the server has processed all of them. An error does not say which channel was
    /// refused.
    pub(crate) async fn subscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        let all = channels.iter().map(|channel| async move {
            let subscribing = self.connection.bounded(self.subscribe_one(channel));
            let (subscribed, answered) = join(subscribing, self.ping()).await;
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
            self.connection.bounded(self.unsubscribe_one(channel)).await?;
        }
        Ok(())
    }

    fn subscribe_one<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, FredResult<()>> {
        let client = &self.connection.client;
        if self.sharded { Box::pin(client.ssubscribe(channel)) } else { Box::pin(client.subscribe(channel)) }
    }

    fn unsubscribe_one<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, FredResult<()>> {
        let client = &self.connection.client;
        if self.sharded { Box::pin(client.sunsubscribe(channel)) } else { Box::pin(client.unsubscribe(channel)) }
    }

    async fn ping(&self) -> Result<Pong, Fault> {
        let reply = self.connection.bounded(Box::pin(self.connection.client.ping::<Value>(None))).await?;
        Ok(if reply.is_array() { Pong::Subscribed } else { Pong::Plain })
    }

    pub(crate) fn address(&self) -> &Address {
        &self.connection.address
    }

    /// Returns when the server has processed all earlier requests.
    pub(crate) async fn barrier(&self) -> Result<(), Fault> {
        self.ping().await.map(drop)
    }

    pub(crate) async fn next(&mut self) -> PubSubEvent {
        tokio::select! {
            () = self.connection.down.cancelled() => PubSubEvent::Silence,
            event = self.messages.recv() => match event {
                Ok(message) => {
                    let text = message.value.as_str().unwrap_or_default().into_owned();
                    PubSubEvent::Message { channel: message.channel.to_string(), text }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => PubSubEvent::TooMuch,
                Err(broadcast::error::RecvError::Closed) => PubSubEvent::Silence,
            },
        }
    }
}

/// A client of fred.
#[derive(Debug)]
struct FredConnection {
    client: Client,
    address: Address,
    driver: AbortHandle,
    down: CancellationToken,
    command_timeout: Duration,
}

/// Closes the socket: fred's client would otherwise continue with its task.
impl Drop for FredConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Asks for FredConnection {
    fn address(&self) -> &Address {
        &self.address
    }

    fn ask<'a>(&'a self, words: &'a [&'a str]) -> BoxFuture<'a, Result<Reply, Fault>> {
        Box::pin(async move {
            let command = CustomCommand::new(words[0], ClusterHash::FirstKey, false);
            let args: Vec<_> = words[1..].iter().map(|word| (*word).to_owned()).collect();
            self.bounded(Box::pin(self.client.custom::<Value, _>(command, args))).await.map(reply)
        })
    }
}

impl Connection for FredConnection {
    async fn open(
        target: &Target,
        command_timeout: Duration,
        _counters: &Arc<Counters>,
    ) -> Result<FredConnection, Fault> {
        let client = client(target, command_timeout)?;
        let (mut driver, up) = connecting(&client);
        let (address, down) = (target.address.clone(), CancellationToken::new());
        let connection =
            FredConnection { client, address, driver: driver.abort_handle(), down: down.clone(), command_timeout };
        let connected = async {
            tokio::select! {
                ended = &mut driver => Err(ended.map_or_else(|error| panicked(&error), |end| end.err().unwrap_or_else(closed))),
                up = up => up,
            }
        };
        match timeout(command_timeout, connected).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(target.without_secret(fault(error)).at(&target.address)),
            Err(_) => {
                return Err(Fault::not_sent(&format!("no connection within {command_timeout:?}")).at(&target.address));
            }
        }
        tokio::spawn(async move {
            let _down = down.drop_guard();
            let _ = driver.await; // the end of this task is the only state of fred that is reliable
        });
        if let Some(name) = &target.client_name {
            let _ = connection.ask(&["CLIENT", "SETNAME", name]).await; // without the permission there is no name
        }
        Ok(connection)
    }
}

impl FredConnection {
    /// Waits for a command, until the connection is lost or the command timeout is over. Then this connection is of no use anymore.
    async fn bounded<T>(&self, command: BoxFuture<'_, FredResult<T>>) -> Result<T, Fault> {
        let bounded = self.down.run_until_cancelled(timeout(self.command_timeout, command));
        let answered = match bounded.await {
            Some(Ok(answered)) => answered.map_err(fault),
            Some(Err(_)) => {
                self.driver.abort();
                Err(Fault::unknown(&format!("no reply within {:?}", self.command_timeout)))
            }
            None => Err(Fault::unknown("the connection was closed")),
        };
        answered.map_err(|fault| fault.at(&self.address))
    }
}

fn reply(value: Value) -> Reply {
    match value {
        Value::Array(items) => Reply::List(items.into_iter().map(reply).collect()),
        Value::Integer(number) => Reply::Number(number),
        Value::Null => Reply::Nothing,
        other => Reply::Text(other.as_bytes().unwrap_or_default().into()),
    }
}

fn client(target: &Target, command_timeout: Duration) -> Result<Client, Fault> {
    Builder::from_config(config(target)?)
        .with_connection_config(|conn| {
            conn.connection_timeout = command_timeout;
            conn.internal_command_timeout = command_timeout;
            conn.max_command_attempts = 1;
            conn.auto_client_setname = false;
            conn.unresponsive = UnresponsiveConfig::default();
            conn.tcp.nodelay = Some(true);
        })
        .with_performance_config(|perf| perf.broadcast_channel_capacity = HEARD)
        .build()
        .map_err(fault)
}

fn config(target: &Target) -> Result<FredConfig, Fault> {
    let user = target.credentials.user.clone();
    // Without a password fred would not send the user name, and the server would use its default user.
    let password = target.credentials.password.clone().or_else(|| user.as_ref().map(|_| String::new()));
    let config = FredConfig {
        username: user,
        password,
        database: target.database.filter(|database| *database != 0),
        server: server(target),
        ..FredConfig::default()
    };
    with_tls(target, config)
}

fn server(target: &Target) -> ServerConfig {
    match (&target.address, target.found) {
        (Address::Unix(path), _) => ServerConfig::Unix { path: path.clone() },
        (Address::Tcp(host, port), None) => ServerConfig::Centralized { server: Server::new(host.to_string(), *port) },
        (Address::Tcp(host, _), Some(found)) => {
            let place = match found {
                std::net::SocketAddr::V6(found) if found.scope_id() != 0 => {
                    format!("{}%{}", found.ip(), found.scope_id())
                }
                found => found.ip().to_string(),
            };
            ServerConfig::Centralized { server: named(target, host, Server::new(place, found.port())) }
        }
    }
}

#[cfg(feature = "tls")]
fn named(target: &Target, host: &str, server: Server) -> Server {
    let name = target.tls.as_ref().map(|tls| tls.server_name.clone().unwrap_or_else(|| host.to_owned()));
    Server { tls_server_name: name.map(Into::into), ..server }
}

#[cfg(not(feature = "tls"))]
fn named(_target: &Target, _host: &str, server: Server) -> Server {
    server
}

#[cfg(feature = "tls")]
fn with_tls(target: &Target, config: FredConfig) -> Result<FredConfig, Fault> {
    let Some(tls) = &target.tls else { return Ok(config) };
    let settings = tls.config().map_err(|why| Fault::not_sent(&why))?;
    let connector = fred::types::config::TlsConnector::from((*settings).clone());
    Ok(FredConfig { tls: Some(connector.into()), ..config })
}

#[cfg(not(feature = "tls"))]
fn with_tls(target: &Target, config: FredConfig) -> Result<FredConfig, Fault> {
    match &target.tls {
        None => Ok(config),
        Some(never) => match *never {},
    }
}

/// Starts to connect. The future resolves when the connection is open.
///
/// fred's `wait_for_connect` first checks whether the client is connected, and then subscribes to the notification about that. If the
/// connection opens in between, on another thread, it never resolves. So this polls it once before the client starts to connect: the
/// subscription is there before there is anything to miss.
fn connecting(client: &Client) -> (ConnectHandle, BoxFuture<'static, FredResult<()>>) {
    let waiting = client.clone();
    let mut up = async move { waiting.wait_for_connect().await }.boxed();
    let early = (&mut up).now_or_never();
    debug_assert!(early.is_none(), "a client that has not started to connect is not connected");
    (client.connect(), up)
}

/// The beginnings of fred's errors for commands that it gave up. "channel closed" is the error of a command whose connection was closed.
const LOST_ON_THE_WAY: [&str; 3] = ["Too many failed", "Failed to", "channel closed"];

/// Sorts fred's errors: was it the connection, or did the server refuse?
fn fault(error: FredError) -> Fault {
    let is_lost = match error.kind() {
        ErrorKind::IO | ErrorKind::Timeout | ErrorKind::Canceled | ErrorKind::Protocol | ErrorKind::Parse => true,
        // fred uses this kind for its own errors and for those of the server.
        ErrorKind::Unknown => LOST_ON_THE_WAY.iter().any(|start| error.details().starts_with(start)),
        _ => false,
    };
    if is_lost {
        return Fault::Unknown(Arc::new(error));
    }
    Fault::refused(error.details(), Arc::new(error.clone()))
}

fn closed() -> FredError {
    FredError::new(ErrorKind::IO, "the connection was closed")
}

/// fred's task has ended by itself: the system may have refused a thread, or the runtime may have no I/O.
fn panicked(error: &JoinError) -> FredError {
    if error.is_panic() { FredError::new(ErrorKind::IO, error.to_string()) } else { closed() }
}
