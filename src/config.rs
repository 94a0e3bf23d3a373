//! Checked settings: every value of these types is valid.

use std::{ops::Deref, sync::Arc, time::Duration};

use crate::{
    credentials::CredentialsProvider,
    error::{Error, Result},
    spans::ServerLabel,
    tls::TlsContext,
};

/// The longest lease: one year. Redis would accept more, but a lease of several years is a mistake.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The longest name in bytes, prefix included.
const LONGEST_NAME: usize = 1024;

/// The settings of the engine; made by [`Builder`](crate::Builder).
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The lease of a lock for which the user set none.
    pub(crate) watchdog: Lease,
    pub(crate) command_timeout: Duration,
    pub(crate) outage_timeout: Duration,
    /// The time for which connecting is retried; zero means one attempt.
    pub(crate) connect_timeout: Duration,
    /// Waits that are longer than this are logged.
    pub(crate) slow_wait: Duration,
    pub(crate) on_deadlock: OnDeadlock,
    pub(crate) replicas: u8,
    pub(crate) confirmed: Confirmed,
    pub(crate) handovers: u32,
    pub(crate) connections: usize,
    pub(crate) pubsub: PubSub,
    /// The user and the password, if they change.
    pub(crate) credentials: Option<CredentialsProvider>,
    pub(crate) tls: Option<TlsContext>,
    pub(crate) client_name: Option<String>,
    /// The client writes a record of itself.
    pub(crate) announce: bool,
    /// Servers tell that held locks were changed by others.
    pub(crate) tracking: bool,
    /// The prefix of all names.
    pub(crate) prefix: String,
    pub(crate) metrics_with_names: bool,
    /// The server in spans.
    pub(crate) server: ServerLabel,
}

/// A request may be sent again for as long as `outage_timeout`. Its receipt lasts for at least so much longer.
const RECEIPT: Duration = Duration::from_secs(60);

/// The times of a request that the server must run only once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receipt {
    /// The server remembers for so long that it has run the request.
    pub(crate) lasts: Lease,
    /// After this time the request is not sent again.
    pub(crate) repeatable: Duration,
}

impl Config {
    pub(crate) fn receipt(&self) -> Receipt {
        let beyond = RECEIPT.max(self.command_timeout * 3);
        let lasts = Duration::from_millis(
            u64::try_from((self.outage_timeout + beyond).as_millis()).expect("a few years at most"),
        );
        Receipt { lasts: Lease(lasts), repeatable: self.outage_timeout + beyond / 2 }
    }
}

/// For checks inside the crate, which change what matters to them.
#[cfg(test)]
impl Config {
    pub(crate) fn for_checks(watchdog: Duration) -> Config {
        Config {
            watchdog: Lease::new("watchdog", watchdog).expect("a check has a good lease"),
            command_timeout: watchdog / 6,
            outage_timeout: watchdog,
            connect_timeout: Duration::ZERO,
            slow_wait: Duration::MAX,
            on_deadlock: OnDeadlock::Report,
            announce: false,
            tracking: false,
            replicas: 0,
            confirmed: Confirmed::Received,
            handovers: 0,
            connections: 1,
            pubsub: PubSub::Auto,
            credentials: None,
            tls: None,
            client_name: None,
            prefix: String::new(),
            metrics_with_names: false,
            server: ServerLabel::default(),
        }
    }
}

/// Where a replica has a write when it confirms it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed {
    /// In its memory (`WAIT`).
    Received,
    /// On its disk (`WAITAOF`).
    Fsynced,
}

/// What the client does about a deadlock, see [`Builder::on_deadlock`](crate::Builder::on_deadlock).
///
/// ```no_run
/// # async fn run() -> leasehold::Result<()> {
/// use leasehold::{Client, OnDeadlock};
///
/// let client = Client::builder().on_deadlock(OnDeadlock::Fail).connect().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnDeadlock {
    /// Logs it. The calls go on waiting.
    #[default]
    Report,
    /// Logs it, and ends the youngest wait with [`Error::Deadlock`](crate::Error::Deadlock).
    Fail,
}

/// How waiters notice that a lock was released, see [`Builder::pubsub`](crate::Builder::pubsub).
///
/// ```no_run
/// # async fn run() -> leasehold::Result<()> {
/// use leasehold::{Client, PubSub};
///
/// let client = Client::builder().pubsub(PubSub::Off).connect().await?; // waiters poll
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PubSub {
    /// [`Sharded`](PubSub::Sharded) in a cluster whose servers support it (Redis and Valkey from 7.0), else
    /// [`Classic`](PubSub::Classic). Redisson decides in the same way.
    #[default]
    Auto,
    /// `PUBLISH` and `SUBSCRIBE`. A cluster sends each message to all its servers.
    Classic,
    /// `SPUBLISH` and `SSUBSCRIBE`. Each message stays in the shard of the lock.
    Sharded,
    /// No messages. The first waiter of each client polls the server, with pauses that grow up to 0.2 s. Each waiter of a fair lock polls,
    /// every 0.2 s. Redisson calls this a spin lock. The tasks of one client may hold the lock up to [`handovers`](crate::Builder::handovers)
    /// times in a row. Then the client leaves it free for a quarter of the time that these turns took together, but for at most 50 ms, so
    /// that other clients can find it free.
    Off,
}

/// A lease between 1 ms and one year, in whole milliseconds as in Redis: rounded up, because a `min_hold` must not be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lease(Duration);

impl Lease {
    pub(crate) const SHORTEST: Duration = Duration::from_millis(1);

    pub(crate) fn new(setting: &'static str, time: Duration) -> Result<Lease> {
        if time < Lease::SHORTEST || time > LONGEST {
            return Err(Error::config(setting, format!("{time:?} is not between 1 ms and one year")));
        }
        let millis = time.as_nanos().div_ceil(1_000_000);
        Ok(Lease(Duration::from_millis(millis.try_into().expect("a year of ms fits 64 bits"))))
    }

    /// The time after which to renew: a little less than a third of the lease, so that the reply arrives within the third.
    pub(crate) fn renewal(self) -> Duration {
        self.0.mul_f64(0.3)
    }
}

impl Deref for Lease {
    type Target = Duration;

    fn deref(&self) -> &Duration {
        &self.0
    }
}

/// For errors, metrics and spans about a name that was refused: it may have any length.
pub(crate) fn start_of(name: &str) -> &str {
    const SHOWN: usize = 64;
    name.char_indices().nth(SHOWN).map_or(name, |(end, _)| &name[..end])
}

/// A lock name that is a valid key in Redis. A cluster hashes it to the same slot as its channel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    key: Arc<str>,
    prefix: u16,
}

impl Name {
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Name> {
        let key: Arc<str> = if prefix.is_empty() { name.into() } else { format!("{prefix}{name}").into() };
        let invalid = |reason| Err(Error::InvalidName { name: start_of(name).to_owned(), reason });
        if name.is_empty() {
            return invalid("it is empty");
        }
        if key.len() > LONGEST_NAME {
            return invalid("it is longer than 1 KiB, prefix included");
        }
        if key.contains(['{', '}']) && hash_tag(&key).is_none() {
            return invalid(without_tag(prefix, name));
        }
        Ok(Name { key, prefix: prefix.len().try_into().expect("shorter than 1 KiB") })
    }

    /// The key in Redis.
    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }
}

/// The name without the client's prefix, as the user wrote it.
impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.key[usize::from(self.prefix)..]
    }
}

/// The reason for which a name with a brace, but without a tag, is refused. The brace may be in the client's prefix, which the error does
/// not show as a part of the name.
fn without_tag(prefix: &str, name: &str) -> &'static str {
    match (prefix.contains(['{', '}']), name.contains('{')) {
        (true, _) => {
            "the prefix of this client has a brace, but prefix and name have no {tag}, so a cluster would keep the lock \
            and its channel apart; write a whole {tag} in the prefix, or no brace"
        }
        (false, true) => "it has a '{' but no {tag}, so a cluster would keep the lock and its channel apart",
        (false, false) => "it has a '}' but no {tag}, so a cluster would keep the lock and its channel apart",
    }
}

/// The part of a key that a cluster hashes, by the server's rule: between the first `{` and the next `}`, unless that is empty.
pub(crate) fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["plain", "{tag}x", "x}y{z}", "ein Schloß"] {
            assert_eq!(&*Name::new("app:", good).expect(good), good);
        }
        for bad in ["", "a{b", "{}x", "{", "}", "a}b", "}{", &"x".repeat(1021)] {
            Name::new("app:", bad).expect_err(bad);
        }
        assert_eq!(&**Name::new("app:", "x").expect("good").key(), "app:x");
    }

    #[test]
    fn a_brace_in_the_prefix_is_said_to_be_there() {
        let told = |prefix, name| Name::new(prefix, name).expect_err("no tag").to_string();
        for (prefix, name) in [("{eu", "x"), ("eu}", "x"), ("{}", "{a}"), ("eu}:", "a}")] {
            assert!(told(prefix, name).contains("the prefix of this client has a brace"), "{prefix} {name}");
        }
        assert!(told("eu:", "a{b").contains("it has a '{'"));
        assert!(told("eu:", "a}b").contains("it has a '}'"));
        Name::new("{eu", "}x").expect("the tag is whole");
    }

    #[test]
    fn leases() {
        for bad in [Duration::ZERO, Duration::from_micros(999), LONGEST + Duration::from_millis(1)] {
            Lease::new("lease", bad).expect_err("out of range");
        }
        let lease = Lease::new("lease", Duration::from_micros(2_500)).expect("good");
        assert_eq!(*lease, Duration::from_millis(3));
        assert_eq!(*Lease::new("lease", LONGEST).expect("good"), LONGEST);
    }
}
