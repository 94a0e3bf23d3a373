//! The errors of this crate. Each variant says what is true of the lock afterwards.

use std::{
    error::Error as StdError,
    sync::Arc,
    time::{Duration, Instant as StdInstant},
};

/// The cause of an error. It is shared, because one broken connection can fail many calls.
pub(crate) type Source = Arc<dyn StdError + Send + Sync + 'static>;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a lock failed. Each variant says what is true of the lock afterwards.
///
/// A lock that another owner holds is never an error: `try_lock` and its variants return `None`.
///
/// The cause, such as the error message of the server, is in [`source`](std::error::Error::source). Log the whole chain, not only
/// the first message. The message of [`Error::Server`] already ends with the words of the server, so it has no source.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::Error;
///
/// match client.mutex("invoice:42").try_lock().await {
///     Ok(Some(_guard)) => println!("acquired"),
///     Ok(None) => println!("another owner holds it"),
///     Err(Error::Unavailable { .. }) => println!("unknown: the server does not reply"),
///     Err(other) => println!("{other}"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock name is not valid. The client sent nothing, and no lock has changed. Choose another name.
    ///
    /// A name is 1 to 1,024 bytes long, the client's [prefix](crate::Builder::prefix) included. If it contains a `{` or a `}`, it must
    /// contain a `{tag}`: the first `{`, a `}` after it, and something between them. In a cluster the lock and its channel could
    /// otherwise be on different servers, so the client refuses such names in all deployments.
    #[error("the name {name:?} cannot be used: {reason}")]
    #[non_exhaustive]
    InvalidName {
        /// The name, cut after 64 characters.
        name: String,
        /// The rule that the name breaks.
        reason: &'static str,
    },

    /// A setting is not valid. The call acquired nothing and changed no lock (except `unlock` outside a runtime, see below). Change the
    /// setting. Two values of `setting` have a further meaning:
    ///
    /// * `runtime`: a call was polled outside a tokio runtime. If it was `unlock`, the client releases the lock in the background.
    /// * `url`: the URL is not valid; or the server belongs to a cluster, and the URL does not begin with `redis-cluster`.
    #[error("the setting {setting} cannot be used: {reason}")]
    #[non_exhaustive]
    InvalidConfig {
        /// The name of the method that sets it, or `runtime`, `REDIS_URL`, `permits`, `locks` or `clients`.
        setting: &'static str,
        /// The rule that the setting breaks. Never contains a password.
        reason: String,
    },

    /// This owner held the lock and lost it, or must assume that it did; `reason` says why. Stop the protected work: another owner may
    /// hold the lock now. To continue, release or drop all guards of this owner, then acquire the lock again.
    #[error("{} {name:?} is lost: {reason}; stop the work, {}", about.hold(), about.risk())]
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        name: String,
        /// Why it was lost.
        reason: Lost,
        /// What was lost.
        about: About,
    },

    /// The client could not reach the server, or the server did not reply in time. Or the server refused every request during that
    /// time, for a reason that may pass: it was loading its data, was read-only, could not save, had no free memory, or had too many
    /// clients.
    ///
    /// * If the call was to acquire a lock, it acquired nothing. Whether another owner holds the lock is unknown. If the server granted it
    ///   to this call after all, the client releases it in the background.
    /// * After a failed `unlock`, the client releases the lock in the background. The lock is free at the latest when its lease
    ///   expires.
    /// * After an `unlock` whose message says "could not be confirmed before the lease expired", the lock is free, or another owner holds
    ///   it. It is unknown whether another owner acquired it before the end of the work. Treat the work as in
    ///   [`Outcome::Unconfirmed`](crate::Outcome::Unconfirmed).
    ///
    /// There are four other causes, which the message names:
    ///
    /// * A write of [`FencedGuard::write_if_held`](crate::FencedGuard::write_if_held) had no reply, and when it was sent again, the lock was
    ///   gone. The key may be written. The lock is lost: do not try again with this guard.
    /// * The call's time was over while a release by the same client had no reply yet. The lock may be free, or held by another owner.
    /// * The runtime that the client was connected on has ended. Then the client does nothing in the background anymore, and the locks
    ///   that it holds expire. Connect a new client.
    /// * In a test, tokio's clock is paused (`start_paused`). Then every time limit is over before a server can reply. Only the server in
    ///   memory of the feature `test-util` works with such a clock.
    #[error("the server is not available: {tried}")]
    #[non_exhaustive]
    Unavailable {
        /// The lock's name; `None` if the call was not about one lock.
        name: Option<String>,
        /// The operation, and how long the client tried.
        tried: String,
        /// The last failure, with the server it is about; `None` if the client knows no more than `tried` says.
        #[source]
        source: Option<Source>,
    },

    /// The server refuses this user: the password is missing or wrong, or the user lacks a permission that locks need.
    /// [`guide::permissions`](crate::guide::permissions) lists all permissions.
    ///
    /// The call acquired nothing. It does not change a lock that was held before; but if the server also denies its renewal, that lock
    /// is lost when its lease expires. If the call was a release, the client retries it in the background until the server permits it or
    /// the lease expires.
    #[error("the server denies access: {reason}")]
    #[non_exhaustive]
    Denied {
        /// The missing permission as an ACL rule, for example `this user lacks +hget`. Never contains a password.
        reason: String,
        /// The server, and its error message.
        source: Source,
    },

    /// The key holds a value that is not a lock of this kind. The client did not change the key, and the call acquired nothing. Choose
    /// another name, or remove the key.
    #[error("the key {key:?} holds something that is not a {}; choose another name", about.kind())]
    #[non_exhaustive]
    Conflict {
        /// The lock's name, without the client's prefix.
        name: String,
        /// The key in Redis: the name with the client's prefix.
        key: String,
        /// What the caller wanted of the key.
        about: About,
    },

    /// This owner requested the write lock and already holds the read lock, so the call would wait for its own owner forever. (The owner
    /// may also have acquired the read lock in another future while this call waited.) The call acquired nothing; the read lock stays
    /// held. Release the read guard first. Or acquire the write lock from the start and [downgrade](crate::WriteGuard::downgrade) it.
    #[error("cannot upgrade {name:?}: this owner already holds the read lock; release it first")]
    #[non_exhaustive]
    Upgrade {
        /// The lock's name.
        name: String,
    },

    /// This call waited for a lock whose holder waits for a lock of this owner, perhaps through others: none of them would ever go on. It is
    /// the youngest wait of that circle, and [`Builder::on_deadlock`](crate::Builder::on_deadlock) says that such a wait fails. The call
    /// acquired nothing; the locks that this owner holds stay held. Release them, so that the others go on, and begin again. To avoid
    /// deadlocks, acquire several locks in the same order everywhere, or together with a [`MultiLock`](crate::MultiLock).
    #[error(
        "the lock {name:?} was not acquired, because of a deadlock: {}; release the locks of this owner, and begin again",
        told(circle)
    )]
    #[non_exhaustive]
    Deadlock {
        /// The lock's name.
        name: String,
        /// The waits of the circle, this one first. The holder of each lock is the process of the next wait, that of the last one this process.
        circle: Vec<Blocked>,
    },

    /// Too few replicas confirmed a new hold in time. The client releases it in the background.
    #[error("{got} of {wanted} replicas confirmed {} {name:?} in time; the client releases it", about.hold())]
    #[non_exhaustive]
    Replicas {
        /// The lock's name.
        name: String,
        /// The number of replicas that must confirm, see [`Builder::replicas`](crate::Builder::replicas).
        wanted: u8,
        /// The number of replicas that did.
        got: u8,
        /// What the client releases.
        about: About,
    },

    /// The server refused the request for any other reason, for example because a fencing token is not a number. The call acquired
    /// nothing. (An error with words that no Redis server has, for example of a proxy, does not say that. Then the client tries again, and
    /// returns [`Unavailable`](Error::Unavailable) after the outage timeout.) It does not change a lock that was held before. If the call was a release, the client retries it in the background until
    /// it succeeds or the lease expires.
    #[error("the server refuses the request: {source}")]
    #[non_exhaustive]
    Server {
        /// The error message of the server. It stands in the message of this error, so
        /// [`source`](std::error::Error::source) does not return it a second time.
        r#source: Source, // `source` would be returned by `source()`
    },

    /// The client is closed or is being shut down, so it acquires no more locks. See [`Client::close`](crate::Client::close) and
    /// [`Client::shutdown`](crate::Client::shutdown). Connect a new client.
    #[error("the client is closed or is shutting down")]
    Closed,
}

impl Error {
    /// True for [`Error::Lost`]: this owner lost the lock, and another owner may hold it.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. })
    }

    /// True for [`Error::Unavailable`]: whether another owner holds the lock is unknown. A later attempt may succeed, unless the runtime
    /// that the client was connected on has ended.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Unavailable { .. })
    }

    pub(crate) fn loss(&self) -> Option<Lost> {
        match self {
            Error::Lost { reason, .. } => Some(*reason),
            _ => None,
        }
    }

    /// For metrics and spans.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Error::InvalidName { .. } | Error::InvalidConfig { .. } => Failure::Invalid,
            Error::Lost { .. } => Failure::Lost,
            Error::Unavailable { .. } => Failure::Unavailable,
            Error::Denied { .. } => Failure::Denied,
            Error::Conflict { .. } => Failure::Conflict,
            Error::Upgrade { .. } => Failure::Upgrade,
            Error::Deadlock { .. } => Failure::Deadlock,
            Error::Replicas { .. } => Failure::Replicas,
            Error::Server { .. } => Failure::Server,
            Error::Closed => Failure::Closed,
        }
    }

    /// The name of the lock, if the error knows it. A name that is not valid is cut after 64 characters.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let error = client.mutex("half a {tag").lock().await.expect_err("a name that a cluster cannot hash");
    /// assert_eq!(error.name(), Some("half a {tag"));
    /// assert!(!error.is_lost() && !error.is_unavailable());
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Error::InvalidName { name, .. }
            | Error::Lost { name, .. }
            | Error::Conflict { name, .. }
            | Error::Upgrade { name }
            | Error::Deadlock { name, .. }
            | Error::Replicas { name, .. } => Some(name),
            Error::Unavailable { name, .. } => name.as_deref(),
            Error::InvalidConfig { .. } | Error::Denied { .. } | Error::Server { .. } | Error::Closed => None,
        }
    }

    /// `name` is empty if the call is not about one lock.
    pub(crate) fn silent(what: &str, name: &str, waited: Duration, source: Option<Source>) -> Error {
        Error::no_success(&about(what, name), name, waited, source)
    }

    /// As [`silent`](Error::silent), with the server that did not reply.
    pub(crate) fn silent_at(server: &str, what: &str, name: &str, waited: Duration, source: Source) -> Error {
        Error::no_success(&format!("{} at {server}", about(what, name)), name, waited, Some(source))
    }

    fn no_success(what: &str, name: &str, waited: Duration, source: Option<Source>) -> Error {
        let why = if is_clock_moved() { CLOCK_MOVED } else { "" };
        Error::Unavailable { name: if_any(name), tried: format!("{what} failed after {waited:.1?}{why}"), source }
    }

    /// A call that waits was polled outside a runtime, where nothing could wake it.
    pub(crate) fn no_runtime(what: &str) -> Error {
        let reason =
            format!("{what} needs a tokio runtime around it, for example Handle::block_on; there is none here");
        Error::config("runtime", reason)
    }

    /// The lock was gone when the server replied, but its lease had expired by then.
    pub(crate) fn unconfirmed(name: &str, source: Option<Source>) -> Error {
        let tried = format!("{} could not be confirmed before the lease expired", about("the release of", name));
        Error::Unavailable { name: if_any(name), tried, source }
    }

    /// The lock is lost, but an earlier attempt of the same request had no reply.
    pub(crate) fn may_have_run(what: &str, name: &str) -> Error {
        let tried =
            format!("{} had no reply at first, so it may be done, and later the lock was gone", about(what, name));
        Error::Unavailable { name: if_any(name), tried, source: None }
    }

    /// The tasks that talk to the server have ended.
    pub(crate) fn abandoned(what: &str, name: &str) -> Error {
        let tried = format!(
            "{} failed: the runtime that this client was connected on has ended; connect a new client",
            about(what, name)
        );
        Error::Unavailable { name: if_any(name), tried, source: None }
    }

    /// The tasks that talk to the server are in another process.
    pub(crate) fn forked(what: &str, name: &str) -> Error {
        let tried = format!(
            "{} failed: this process was forked from the one that this client was connected in; connect a new client",
            about(what, name)
        );
        Error::Unavailable { name: if_any(name), tried, source: None }
    }

    /// The system refuses the client a thread.
    pub(crate) fn no_thread(error: std::io::Error) -> Error {
        let tried = "connecting failed: the thread of the client cannot be started".to_owned();
        Error::Unavailable { name: None, tried, source: Some(Arc::new(error)) }
    }

    /// The task that connects has panicked, or its runtime has ended.
    pub(crate) fn connecting_ended(error: tokio::task::JoinError) -> Error {
        let tried = "connecting failed: its task has ended".to_owned();
        Error::Unavailable { name: None, tried, source: Some(Arc::new(error)) }
    }

    /// A reply that no script of this crate gives.
    pub(crate) fn unexpected(answer: &str) -> Error {
        let words = format!("unexpected reply: {answer}");
        Error::Server { source: Source::from(Box::<dyn StdError + Send + Sync>::from(words)) }
    }

    /// Of a lock; see [`of`](Error::of).
    pub(crate) fn lost(name: &str, reason: Lost) -> Error {
        Error::Lost { name: name.to_owned(), reason, about: About::Lock }
    }

    /// The same error, about something else than a lock.
    pub(crate) fn of(mut self, subject: About) -> Error {
        if let Error::Lost { about, .. } | Error::Conflict { about, .. } | Error::Replicas { about, .. } = &mut self {
            *about = subject;
        }
        self
    }

    pub(crate) fn config(setting: &'static str, reason: impl Into<String>) -> Error {
        Error::InvalidConfig { setting, reason: reason.into() }
    }
}

const CLOCK_MOVED: &str = " by tokio's clock, which is paused or was advanced; then every time limit is over before a server can \
    reply, so do not pause the clock in tests that use a server";

/// True if tokio's clock differs from the system's, and the servers count on the latter. Only tests cause that (`start_paused`, `pause`,
/// `advance`).
fn is_clock_moved() -> bool {
    #[cfg(feature = "test-util")]
    if crate::clock::is_tokios() {
        return false; // tests with a server in memory pause the clock on purpose
    }
    let (before, ours) = (StdInstant::now(), tokio::time::Instant::now().into_std());
    is_outside(ours, before, StdInstant::now())
}

/// True if a clock differs from the system clock; it was read between two readings of the system clock.
fn is_outside(ours: StdInstant, before: StdInstant, after: StdInstant) -> bool {
    const FAR: Duration = Duration::from_millis(10);
    before.saturating_duration_since(ours).max(ours.saturating_duration_since(after)) > FAR
}

/// An operation and the name of its lock, for a message.
fn about(what: &str, name: &str) -> String {
    if_any(name).map_or_else(|| what.to_owned(), |name| format!("{what} {name:?}"))
}

fn if_any(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_owned())
}

/// The enum, all of its variants in the order of their numbers, and their labels.
macro_rules! failures {
    ($($variant:ident = $label:literal),* $(,)?) => {
        /// The variant of an [`Error`], without its data.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Failure {
            $($variant),*
        }

        impl Failure {
            #[cfg(feature = "metrics")]
            pub(crate) const ALL: [Failure; [$(Failure::$variant),*].len()] = [$(Failure::$variant),*];

            pub(crate) fn label(self) -> &'static str {
                match self {
                    $(Failure::$variant => $label),*
                }
            }
        }
    };
}

failures! {
    Unavailable = "unavailable",
    Denied = "denied",
    Lost = "lost",
    Closed = "closed",
    Conflict = "conflict",
    Upgrade = "upgrade",
    Deadlock = "deadlock",
    Replicas = "replicas",
    Server = "server",
    Invalid = "invalid",
}

/// One of the waits of a deadlock, see [`Error::Deadlock`] and [`Wait::deadlock`](crate::Wait::deadlock).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::Error;
///
/// if let Err(Error::Deadlock { circle, .. }) = client.lock("account:2").lock().await {
///     for wait in circle {
///         eprintln!("{} waits for {}", wait.process, wait.name);
///     }
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Blocked {
    /// The key in Redis of the lock that it waits for: the name of the lock, with the prefix of the client.
    pub name: String,
    /// The process that waits: its program, its process id and its machine.
    pub process: String,
}

impl std::fmt::Display for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} waits for {:?}", self.process, self.name)
    }
}

/// A circle in words.
pub(crate) fn told(circle: &[Blocked]) -> String {
    let waits: Vec<_> = circle.iter().map(Blocked::to_string).collect();
    let first = circle.first().map_or("", |one| &one.process);
    format!("{}; its holder is {first}", waits.join("; its holder "))
}

/// What an [`Error`] is about.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::{About, Error};
///
/// if let Err(Error::Lost { name, about, .. }) = client.mutex("invoice:42").lock().await {
///     let what = if about == About::Permits { "permits" } else { "lock" };
///     eprintln!("the {what} {name} was lost");
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum About {
    /// A lock of any kind.
    Lock,
    /// Permits of a semaphore.
    Permits,
    /// A latch.
    Latch,
}

impl About {
    fn hold(self) -> &'static str {
        match self {
            About::Lock => "the lock",
            About::Permits => "the hold of permits of",
            About::Latch => "the latch",
        }
    }

    fn risk(self) -> &'static str {
        match self {
            About::Lock | About::Latch => "another owner may hold the lock",
            About::Permits => "others may hold these permits",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            About::Lock => "lock of this kind",
            About::Permits => "semaphore",
            About::Latch => "latch",
        }
    }

    /// The release, as the name of an operation.
    pub(crate) fn releasing(self) -> &'static str {
        if self == About::Permits { "releasing permits" } else { "releasing the lock" }
    }

    /// The confirmation, as the name of an operation.
    pub(crate) fn confirming(self) -> &'static str {
        if self == About::Permits { "confirming permits" } else { "confirming the lock" }
    }
}

/// Why a lock was lost.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use std::time::Duration;
///
/// use leasehold::Lost;
///
/// let guard = client.mutex("slow-job").max_hold(Duration::from_millis(50)).lock().await?;
/// match guard.lost().await {
///     Lost::MaxHold => println!("the work took longer than max_hold"),
///     other => println!("stop: {other}"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// The server no longer has the lock: its key was deleted or evicted, the lock was forced open, or the server lost its data. Another
    /// owner may have acquired it since.
    Removed,
    /// The lease expired, or may have: the server has confirmed no renewal for that long, or a fixed [`lease`](crate::Lock::lease) is
    /// over.
    Expired,
    /// This owner held the lock for as long as [`Lock::max_hold`](crate::Lock::max_hold) allows.
    MaxHold,
    /// This client was closed. Closing a client releases all its locks.
    Closed,
}

impl Lost {
    /// For metrics and spans.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Lost::Removed => "removed",
            Lost::Expired => "expired",
            Lost::MaxHold => "max_hold",
            Lost::Closed => "closed",
        }
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Lost::Removed => "the server no longer has it",
            Lost::Expired => "its lease expired",
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
