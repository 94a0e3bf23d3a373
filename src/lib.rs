//! Distributed locks on Redis and Valkey, as Redisson keeps them: reentrant, renewed by a watchdog while they are
//! held, waited for without polling, and shared with JVM services on the same server.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # fn main() { run(async |client| {
//! // let client = leasehold::Client::connect("redis://127.0.0.1:6379").await?;
//! let guard = client.lock("invoice:42").lock().await?;
//! guard.protect(async { /* alone, on all machines */ }).await?;
//! # Ok(()) }) }
//! ```
//!
//! # The primitives
//!
//! | to have                                      | take                                     |
//! |----------------------------------------------|------------------------------------------|
//! | one at a time, by name                       | [`Client::lock`]                         |
//!
//! # Taking and keeping
//!
//! * [`Lock::lock`] waits, [`Lock::try_lock`] tries once, [`Lock::try_lock_for`] waits for a while. "Somebody else has
//!   it" is `None`, never an error; an unreachable server is an error, never `None`.
//! * The same task may lock again, through any number of functions: it enters one level deeper. See [`Owner`] for who
//!   counts as the same.
//! * Without a [`lease`](Lock::lease) the lock is taken for 30 s and renewed every third of that while a [`Guard`]
//!   lives. With one it ends by itself.
//! * [`Guard::lost`] tells when the lock is gone or must be presumed gone; [`Guard::protect`] stops the work then.
//! * A guard that is dropped is given back in the background, from any thread; [`Guard::unlock`] waits and says
//!   whether the lock was ours to the end. (If the answer to its first try is lost and the second finds the lock gone, the
//!   first is taken to have done it; nobody can tell that from a lease that ended in between.)
//!
//! # What a lock cannot promise
//!
//! A lock with a lease is a promise of time. A process that stands still for longer than its lease (suspended, swapped
//! out, out of CPU) wakes up and works on for a moment before it learns that somebody else has the lock. The server
//! keeps locks in memory: one that restarts without persistence, or fails over to a replica that had not heard of the
//! lock yet, gives it away early; [`Builder::replicas`] makes that rarer, not impossible. So use a lock to have work
//! done once *as a rule*; where doing it twice would be a disaster, let the resource itself refuse the second writer.
//!
//! # What the server's user needs
//!
//! With ACLs: the commands `EVALSHA`, `SCRIPT LOAD`, `EXISTS`, `HGET`, `HGETALL`, `HLEN`, `HEXISTS`, `HINCRBY`, `HDEL`,
//! `DEL`, `PTTL`, `PEXPIRE`, `PUBLISH`, `SUBSCRIBE`, `UNSUBSCRIBE`, `PING`, `SELECT` for a database other than 0, and
//! `WAIT` for [`Builder::replicas`]; `CLIENT INFO` and `CLIENT KILL`, without which a request of a lost connection may be executed
//! after a later one; the keys of the locks and `redisson_lock__channel:*`; the channels `redisson_lock__channel:*`.
//!
//! # Tracing
//!
//! Events and spans of locks have the target `leasehold::lock`, those of connections `leasehold::conn`. They name locks
//! and hold ids, never a URL. Counters: [`Client::stats`].
//!
//! # Runtimes
//!
//! Calls need a tokio runtime with time enabled. A multi-threaded runtime also runs the client's own tasks; on a
//! current-thread one they get a thread of their own, see [`Builder::own_thread`].

mod client;
mod clock;
mod config;
mod engine;
mod error;
#[cfg(leasehold_explore)]
#[path = "../tests/explore/mod.rs"]
mod explore;
mod owner;
mod primitives;
mod redis;
mod stats;
mod sync;

#[doc(hidden)]
pub use client::RawScript;
pub use client::{Builder, Client};
pub use engine::Guard;
pub use error::{Error, Lost, Result};
pub use owner::Owner;
pub use primitives::{Holder, Lock};
pub use stats::{Stats, Times};
