//! Commands to single servers, for tools that look after them.

use std::{fmt, sync::Arc};

use tokio::time::Instant;

use crate::{
    client::Client,
    engine::Engine,
    error::{Error, Result},
    failed,
    redis::{Asks as _, Fault, RawReply, ServerLink, source},
    sync::tokio,
};

/// One server that has locks: a single server, the master that the sentinels name, or a master of a cluster.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// for server in client.servers().await? {
///     server.command(&["PING"]).await?;
///     println!("{} replies", server.address());
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
pub struct Server {
    link: Arc<ServerLink>,
    /// The client lives as long as this.
    engine: Arc<Engine>,
}

/// A reply of a server.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::Value;
///
/// let server = client.servers().await?.remove(0);
/// assert_eq!(server.command(&["ECHO", "42"]).await?.int(), Some(42));
/// assert_eq!(server.command(&["GET", "nothing"]).await?, Value::Nil);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// Nothing is there.
    Nil,
    /// A number.
    Int(i64),
    /// A text. Bytes that are no UTF-8 are replaced.
    Text(String),
    /// Replies in a list, for example the fields and values of a hash one after the other. In version 3 of the protocol, pairs of members and
    /// scores are lists of their own (`ZRANGE .. WITHSCORES`). A client with [`tracking`](crate::Builder::tracking) uses it if the server does.
    List(Vec<Value>),
    /// An error inside a list. As the whole reply it is an [`Error`](crate::Error).
    Error(String),
}

impl Client {
    /// The servers that have locks, each with a connection that is open. For tools: locks need none of this.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// for server in client.servers().await? {
    ///     let policy = server.command(&["CONFIG", "GET", "maxmemory-policy"]).await?;
    ///     println!("{}: {:?}", server.address(), policy.items().last());
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`ping`](Client::ping). A server in memory (`MemoryServer`) is no server of this kind: the list is empty.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn servers(&self) -> Result<Vec<Server>> {
        let links = self.engine().servers().await?;
        let engine = self.engine();
        Ok(links.into_iter().map(|link| Server { link, engine: Arc::clone(engine) }).collect())
    }
}

impl Server {
    /// The address, as `host:port` or a path.
    #[must_use]
    pub fn address(&self) -> String {
        self.link.address().to_string()
    }

    /// Sends one command, and waits for its reply. It is sent once: after [`Error::Unavailable`](crate::Error::Unavailable) the server may have
    /// run it or not. Do not use commands that change the connection, such as `SELECT` or `SUBSCRIBE`: locks use the same one.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Denied`](crate::Error::Denied), or
    /// [`Error::Server`](crate::Error::Server) with what the server says.
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, the server may run the command or not.
    pub async fn command(&self, words: &[&str]) -> Result<Value> {
        const COMMAND: &str = "a command";
        self.engine.driver.refuse_if_closed(COMMAND, "")?;
        let since = Instant::now();
        let reply = self.link.ask(words).await;
        reply.map(Value::from).map_err(|fault| match fault {
            Fault::Conflict => Error::Server { source: source("WRONGTYPE the key holds a value of another type") },
            fault => failed::error(fault, COMMAND, since.elapsed(), ("", "")),
        })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Value {
    /// The text, or a number as a text.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Value::Text(text) => Some(text.clone()),
            Value::Int(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// The number, also one that the server has sent as a text.
    #[must_use]
    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// The items of a list. Of anything else, none.
    #[must_use]
    pub fn items(&self) -> &[Value] {
        if let Value::List(items) = self { items } else { &[] }
    }
}

impl From<RawReply> for Value {
    fn from(reply: RawReply) -> Value {
        match reply {
            RawReply::Nothing => Value::Nil,
            RawReply::Number(number) => Value::Int(number),
            RawReply::Text(text) => Value::Text(String::from_utf8_lossy(&text).into_owned()),
            RawReply::Error(message) => Value::Error(message),
            RawReply::List(items) | RawReply::Push(items) => Value::List(items.into_iter().map(Value::from).collect()),
        }
    }
}
