//! What can go wrong, and what is then true of the lock.

use std::{
    error::Error as StdError,
    sync::Arc,
    time::{Duration, Instant as StdInstant},
};

/// The cause beneath an error, shared because one broken connection fails many calls.
pub(crate) type Source = Arc<dyn StdError + Send + Sync + 'static>;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a lock failed. Each variant says what is true of the lock afterwards.
///
/// "Somebody else has it" is never an error: the `try_` methods answer `None`.
///
/// The server's own words are in [`source`](std::error::Error::source) and not repeated in the message: print the whole
/// chain.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::Error;
///
/// match client.lock("invoice:42").try_lock().await {
///     Ok(Some(_guard)) => println!("ours"),
///     Ok(None) => println!("somebody else is at it"),
///     Err(Error::Unavailable { .. }) => println!("nobody knows: the server does not answer"),
///     Err(other) => println!("{other}"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be used. Nothing was sent and no lock was touched; choose another name.
    ///
    /// A name is 1 to 1,024 bytes long, the client's [prefix](crate::Builder::prefix) included. If it has a `{` or a `}`, it
    /// must have a `{tag}`: the first `{` with a `}` after it and something between them. A cluster would keep the lock and its
    /// channel on different servers otherwise, so such names are refused everywhere.
    #[error("the lock name {name:?} cannot be used: {reason}")]
    #[non_exhaustive]
    InvalidName {
        /// The name as given, cut after 64 characters.
        name: String,
        /// Which rule it breaks.
        reason: &'static str,
    },

    /// A setting cannot be used. Nothing was sent and no lock was touched; change the setting.
    ///
    /// Also where a call is polled outside a tokio runtime: `setting` is `runtime` then. A guard that was to be released is
    /// released in the background.
    #[error("the setting {setting} cannot be used: {reason}")]
    #[non_exhaustive]
    InvalidConfig {
        /// The setting, named like its method.
        setting: &'static str,
        /// Which rule it breaks. Never holds a password.
        reason: String,
    },

    /// The lock was ours and is no more, or must be presumed gone. Stop the protected work: somebody else may be
    /// doing it. To go on, give back every guard of this owner and take the lock anew.
    #[error("the lock {name:?} is lost: {reason}")]
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        name: String,
        /// How it was lost.
        reason: Lost,
    },

    /// The server could not be reached, did not answer in time, or refused for so long (while it loads, is read-only,
    /// cannot save). After a failed `lock` nothing is held: should the server have granted it after all, it is given back
    /// in the background. After a failed `unlock` the lock is given back in the background, and is free at the latest
    /// when its lease ends.
    ///
    /// A failed `unlock` that says that the release could not be confirmed means: the server was silent until the lease ran out, so
    /// nobody can know whether the lock was held to the end.
    ///
    /// Also where tokio's clock is paused, as in tests with `start_paused`: then every time limit is over before a server can
    /// answer, and the text says so.
    ///
    /// Also where the runtime that the client was connected on has ended, which the text says: then nothing happens in the
    /// background any more, what is held ends with its lease, and a new client is needed.
    #[error("the server is not available: {tried}")]
    #[non_exhaustive]
    Unavailable {
        /// The lock's name, where one was asked about.
        name: Option<String>,
        /// What was tried, for how long.
        tried: String,
        /// The last failure, where there was one besides silence.
        #[source]
        source: Option<Source>,
    },

    /// The server refuses us: no or wrong password, or a user without a right that locks need (all of them:
    /// [`guide::operations`](crate::guide::operations)). Nothing new is held; a hold from before stays until its lease ends, and what was to be given back is given back
    /// in the background as soon as that is allowed.
    #[error("the server denies access: {reason}")]
    #[non_exhaustive]
    Denied {
        /// Which right is missing, as a rule of an ACL says it: `this user lacks +hget`. Never holds a password.
        reason: String,
        /// The server's words.
        source: Source,
    },

    /// The key holds something that is not a lock of this kind. It was left as it was and nothing is held; choose
    /// another name, or remove the key.
    #[error("the key {name:?} holds something that is not a lock")]
    #[non_exhaustive]
    Conflict {
        /// The lock's name.
        name: String,
    },

    /// Its owner reads what it asks to write: it would wait for itself. Nothing was sent, and it still reads; give the read guard
    /// back first, or take the lock for writing from the start and [downgrade](crate::WriteGuard::downgrade) it.
    #[error("whoever reads {name:?} cannot ask to write it as well")]
    #[non_exhaustive]
    Upgrade {
        /// The lock's name.
        name: String,
    },

    /// Too few replicas confirmed a new hold in time. It is being given back in the background.
    #[error("{got} of {wanted} replicas confirmed the lock {name:?}; it is being given back")]
    #[non_exhaustive]
    Replicas {
        /// The lock's name.
        name: String,
        /// How many must confirm, see [`Builder::replicas`](crate::Builder::replicas).
        wanted: u8,
        /// How many did.
        got: u8,
    },

    /// Any other answer of the server, such as that its memory is full. Nothing new is held; a hold from before is kept, and
    /// what was to be given back is given back in the background.
    #[error("the server refuses")]
    #[non_exhaustive]
    Server {
        /// The server's words.
        source: Source,
    },

    /// The client was closed. Nothing is held through it any more, see [`Client::close`](crate::Client::close); connect
    /// a new one.
    #[error("the client is closed")]
    Closed,
}

impl Error {
    /// Whether the lock was ours and is no more: [`Error::Lost`]. Then somebody else may be at the work.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. })
    }

    /// Whether nobody knows, since the server did not answer: [`Error::Unavailable`]. Trying again later may help.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Unavailable { .. })
    }

    /// The name of the lock that was asked about, where the error knows it; a name that cannot be used is cut after 64
    /// characters.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let error = client.lock("half a {tag").lock().await.expect_err("a name that a cluster cannot hash");
    /// assert_eq!(error.name(), Some("half a {tag"));
    /// assert!(!error.is_lost() && !error.is_unavailable());
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Error::InvalidName { name, .. }
            | Error::Lost { name, .. }
            | Error::Conflict { name }
            | Error::Upgrade { name }
            | Error::Replicas { name, .. } => Some(name),
            Error::Unavailable { name, .. } => name.as_deref(),
            Error::InvalidConfig { .. } | Error::Denied { .. } | Error::Server { .. } | Error::Closed => None,
        }
    }

    /// An empty `name` for what is about no lock.
    pub(crate) fn silent(what: &str, name: &str, waited: Duration, source: Option<Source>) -> Error {
        let why = if is_clock_moved() { CLOCK_MOVED } else { "" };
        Error::Unavailable { name: if_any(name), tried: format!("{what} for {waited:.1?}{why}"), source }
    }

    /// A call that waits was polled where there is nothing that could wake it.
    pub(crate) fn no_runtime(what: &str) -> Error {
        let reason = format!("{what} needs a tokio runtime around it, as in Handle::block_on; there is none here");
        Error::config("runtime", reason)
    }

    /// The lock was gone when the server answered, but its lease had run out by then.
    pub(crate) fn unconfirmed(name: &str) -> Error {
        let tried = "the release could not be confirmed before the lease ran out".to_owned();
        Error::Unavailable { name: if_any(name), tried, source: None }
    }

    /// Nobody is left to talk to the server.
    pub(crate) fn abandoned(what: &str, name: &str) -> Error {
        let tried = format!("{what}: the runtime that this client was connected on has ended");
        Error::Unavailable { name: if_any(name), tried, source: None }
    }

    /// No script of ours answers so.
    pub(crate) fn unexpected(answer: &str) -> Error {
        let words = format!("unexpected answer {answer}");
        Error::Server { source: Source::from(Box::<dyn StdError + Send + Sync>::from(words)) }
    }

    pub(crate) fn lost(name: &str, reason: Lost) -> Error {
        Error::Lost { name: name.to_owned(), reason }
    }

    pub(crate) fn config(setting: &'static str, reason: impl Into<String>) -> Error {
        Error::InvalidConfig { setting, reason: reason.into() }
    }
}

const CLOCK_MOVED: &str = " by tokio's clock, which is paused here or was moved: then every time limit is over before a \
    server can answer, so tests that talk to one must not pause it";

/// Whether tokio's clock is another than the system's, as only tests have it (`start_paused`, `pause`, `advance`).
fn is_clock_moved() -> bool {
    let (before, ours) = (StdInstant::now(), tokio::time::Instant::now().into_std());
    is_outside(ours, before, StdInstant::now())
}

/// Whether a clock that was looked at between two moments of another cannot be the same.
fn is_outside(ours: StdInstant, before: StdInstant, after: StdInstant) -> bool {
    const FAR: Duration = Duration::from_millis(10);
    before.saturating_duration_since(ours).max(ours.saturating_duration_since(after)) > FAR
}

fn if_any(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_owned())
}

/// How a lock was lost.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use std::time::Duration;
///
/// use leasehold::Lost;
///
/// let guard = client.lock("slow-job").max_hold(Duration::from_millis(50)).lock().await?;
/// match guard.lost().await {
///     Lost::MaxHold => println!("we took longer than we allowed ourselves"),
///     other => println!("stop: {other}"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// The server has it no more: deleted, forced open, taken over, or gone with the server's data.
    Removed,
    /// The lease ran out, or so much time passed without an answer that it may have.
    Expired,
    /// It was held for as long as [`Lock::max_hold`](crate::Lock::max_hold) allows.
    MaxHold,
    /// Our own client was closed, which gives everything back.
    Closed,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Lost::Removed => "the server no longer has it",
            Lost::Expired => "its lease ran out",
            Lost::MaxHold => "it was held for as long as max_hold allows",
            Lost::Closed => "the client was closed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_moved() {
        let (now, hour) = (StdInstant::now(), Duration::from_secs(3_600));
        assert!(is_outside(now + hour, now, now) && is_outside(now, now + hour, now + hour));
        assert!(!is_outside(now, now, now) && !is_outside(now + Duration::from_millis(1), now, now));
        assert!(!is_outside(now, now, now + hour), "the process did not run in between");
    }
}
