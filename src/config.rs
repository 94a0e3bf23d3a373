//! Settings that have been checked: a value of these types is a valid one.

use std::{ops::Deref, sync::Arc, time::Duration};

use crate::{
    credentials::CredentialsProvider,
    error::{Error, Result},
    tls::TlsContext,
};

/// The longest lease: a year. Redis would take more, but a lock of years is a mistake.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The longest name in bytes, prefix included.
const LONGEST_NAME: usize = 1024;

/// What the engine runs on; made by [`Builder`](crate::Builder).
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The lease of a lock without one of its own.
    pub(crate) watchdog: Lease,
    pub(crate) command_timeout: Duration,
    pub(crate) outage_timeout: Duration,
    /// How long connecting is tried; zero for once.
    pub(crate) connect_timeout: Duration,
    /// Longer waits are logged.
    pub(crate) slow_wait: Duration,
    pub(crate) replicas: u8,
    pub(crate) confirmed: Confirmed,
    pub(crate) handovers: u32,
    pub(crate) connections: usize,
    pub(crate) pubsub: PubSub,
    /// Who we are, where that changes.
    pub(crate) credentials: Option<CredentialsProvider>,
    pub(crate) tls: Option<TlsContext>,
    pub(crate) client_name: Option<String>,
}

/// What a replica has done with a write that it confirms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed {
    /// It is in its memory (`WAIT`).
    Received,
    /// It is on its disk (`WAITAOF`).
    Fsynced,
}

/// How waiters learn that a lock is free, see [`Builder::pubsub`](crate::Builder::pubsub).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PubSub {
    /// Sharded in a cluster whose servers have it (Redis and Valkey since 7.0), else classic; as Redisson decides it.
    #[default]
    Auto,
    /// `PUBLISH` and `SUBSCRIBE`, which a cluster sends to all its servers.
    Classic,
    /// `SPUBLISH` and `SSUBSCRIBE`, which stay on the server of the lock.
    Sharded,
    /// Nothing is published or subscribed: of those who wait in one process the first looks for itself, with pauses that grow
    /// up to a fifth of a second. Redisson's spin lock.
    Off,
}

/// A lease between a millisecond and a year, in whole milliseconds as Redis counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lease(Duration);

impl Lease {
    pub(crate) fn new(setting: &'static str, time: Duration) -> Result<Lease> {
        if time < Duration::from_millis(1) || time > LONGEST {
            return Err(Error::config(setting, format!("{time:?} is not between 1 ms and a year")));
        }
        Ok(Lease(Duration::from_millis(time.as_millis().try_into().expect("a year of ms fits 64 bits"))))
    }

    pub(crate) fn millis(self) -> u64 {
        self.0.as_millis().try_into().expect("a year of ms fits 64 bits")
    }

    /// How long the lease is certain on our side. Clocks may differ by 500 ppm each, the most that NTP slews, and
    /// our timers fire up to a millisecond late.
    pub(crate) fn certain(self) -> Duration {
        self.0.saturating_sub(self.0 / 1000 + Duration::from_millis(1))
    }

    /// When to confirm it again: a third of the lease less a little, so that the answer is there within the third.
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

/// A lock name that Redis can hold and a cluster can hash together with its channel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    key: Arc<str>,
    prefix: u16,
}

impl Name {
    pub(crate) fn new(prefix: &str, name: &str) -> Result<Name> {
        let key = format!("{prefix}{name}");
        let invalid = |reason| Err(Error::InvalidName { name: name.chars().take(64).collect(), reason });
        if name.is_empty() {
            return invalid("it is empty");
        }
        if key.len() > LONGEST_NAME {
            return invalid("it is longer than 1 KiB, prefix included");
        }
        if key.contains('{') && hash_tag(&key).is_none() {
            return invalid("it has a '{' but no {tag}, so a cluster would keep the lock and its channel apart");
        }
        if key.contains('}') && !key.contains('{') {
            return invalid("it has a '}' but no {tag}, so a cluster would keep the lock and its channel apart");
        }
        Ok(Name { key: key.into(), prefix: prefix.len().try_into().expect("shorter than 1 KiB") })
    }

    /// The key in Redis.
    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }
}

/// The name as the user gave it, without the client's prefix.
impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.key[usize::from(self.prefix)..]
    }
}

/// What a cluster hashes, by the server's rule: between the first `{` and the next `}`, unless that is empty.
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
    fn leases() {
        for bad in [Duration::ZERO, Duration::from_micros(999), LONGEST + Duration::from_millis(1)] {
            Lease::new("lease", bad).expect_err("out of range");
        }
        assert_eq!(Lease::new("lease", Duration::from_micros(2_500)).expect("good").millis(), 2);
        let lease = Lease::new("lease", Duration::from_secs(30)).expect("good");
        assert_eq!(lease.certain(), Duration::from_millis(29_969));
    }
}
