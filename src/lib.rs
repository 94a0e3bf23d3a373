//! Distributed locks on Redis and Valkey, as Redisson keeps them: reentrant, renewed by a watchdog while they are
//! held, waited for without polling, and shared with JVM services on the same server.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # fn main() { run(async |client| {
//! // let client = leasehold::Client::connect("redis://127.0.0.1:6379").await?;
//! let total = client.lock("invoice:42").with(async || 40 + 2).await?; // alone, on all machines
//! # assert_eq!(total, 42);
//! # Ok(()) }) }
//! ```
//!
//! # The primitives
//!
//! | to have                                                          | take                |
//! |------------------------------------------------------------------|---------------------|
//! | one at a time, by name; functions that call each other may lock again | [`Client::lock`] |
//! | one at a time, by name; also among branches and requests of one task  | [`Client::mutex`] |
//! | one at a time, in the order in which all machines asked               | [`Client::fair_lock`] |
//! | many readers or one writer                                      | [`Client::rw_lock`] |
//! | one at a time, and a number by which a resource refuses a late writer | [`Client::fenced_lock`] |
//!
//! <div class="warning">
//!
//! **`lock` or `mutex`?** The owner of a `lock` is the tokio task, with all that is polled in it. Branches of `join_all`,
//! `FuturesUnordered` and `buffer_unordered`, and all requests of one HTTP/1 connection in axum or hyper, are *one* owner:
//! they re-enter instead of waiting for each other. Where they should exclude each other take `mutex`, whose every call is an
//! owner of its own. A first experiment with two `try_lock` in one test re-enters, too: both succeed. See [`Lock`].
//!
//! </div>
//!
//! # Taking and keeping
//!
//! * [`Lock::lock`] waits, [`Lock::try_lock`] tries once, [`Lock::try_lock_for`] and [`Lock::try_lock_until`] wait for a
//!   while. "Somebody else has it" is `None`, never an error; an unreachable server is an error, never `None`.
//! * [`Lock::with`] takes the lock, does the work and gives it back, all in one.
//! * The same task may lock again, through any number of functions: the hold count grows by one. See [`Owner`] for who
//!   counts as the same.
//! * Without a [`lease`](Lock::lease) the lock is taken for 30 s and renewed every third of that while a [`Guard`]
//!   lives. With one it ends by itself.
//! * [`Guard::lost`] tells when the lock is gone or must be presumed gone; [`Guard::protect`] stops the work then, and
//!   [`Guard::lost_token`] tells other tasks.
//! * A guard that is dropped is given back in the background, from any thread; [`Guard::unlock`] waits and says
//!   whether the lock was ours to the end. (If the answer to its first try is lost and the second finds the lock gone, the
//!   first is taken to have done it; nobody can tell that from a lease that ended in between.)
//!
//! # Beginning and ending
//!
//! [`Builder::connect_timeout`] waits for a server that starts later, [`Builder::connect_lazy`] connects when the client is
//! first used, [`Client::ping`] is for readiness probes. End a program with [`Client::shutdown`], which lets the guards finish,
//! or with [`Client::close`]: without one of them a guard dropped in the last moments of `main` may leave its lock on the
//! server until the lease ends, 30 s by default. The program in the README does so whether its work fails or not.
//!
//! # What a lock cannot promise
//!
//! A lock with a lease is a promise of time. A process that stands still for longer than its lease (suspended, swapped
//! out, out of CPU) wakes up and works on for a moment before it learns that somebody else has the lock. The server
//! keeps locks in memory: one that restarts without persistence, or fails over to a replica that had not heard of the
//! lock yet, gives it away early; [`Builder::replicas`] makes that rarer, not impossible. So use a lock to have work
//! done once *as a rule*; where doing it twice would be a disaster, let the resource itself refuse the second writer, with the
//! token of a [`FencedLock`]: see [`guide::fencing`].
//!
//! # What the server's user needs
//!
//! With ACLs: the rules of [`guide::operations`], which has them to copy for one server, a cluster and sentinels.
//! [`Error::Denied`] names the right that is missing.
//!
//! # Tracing
//!
//! Events and spans of locks have the target `leasehold::lock`, those of connections `leasehold::conn`. They name locks
//! and hold ids, never a URL. A wait that takes long says so while it lasts ([`Builder::slow_wait`]). Gauges and counters:
//! [`Client::stats`]; what is held now: [`Client::held`].
//!
//! # Runtimes
//!
//! Calls need a tokio runtime with time enabled. A multi-threaded runtime also runs the client's own tasks; on a
//! current-thread one they get a thread of their own, see [`Builder::own_thread`].
//!
//! # Platforms
//!
//! Linux, Android and Apple's systems have a clock that goes on while the machine sleeps, and leases are counted on that. On
//! Windows `std::time::Instant` goes on, too. Elsewhere it may stand still: a machine that wakes up believes in leases that
//! ended while it slept, until the next answer of the server tells, at most a third of a lease later.

mod client;
mod clock;
mod config;
mod credentials;
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
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

#[cfg(feature = "bench")]
#[doc(hidden)]
pub use client::RawScript;
pub use client::{Builder, Client, Held};
pub use config::PubSub;
pub use credentials::Credentials;
pub use engine::{Guard, Outcome};
pub use error::{Error, Lost, Result};
pub use owner::Owner;
pub use primitives::{FairLock, FencedGuard, FencedLock, Holder, Lock, ReadGuard, RwLock, RwState, WriteGuard};
pub use stats::{Gauges, Stats, Times, Totals};
#[cfg(feature = "tls")]
pub use tls::Tls;
pub use tokio_util::sync::CancellationToken;
pub use uuid::Uuid;

/// The pages of `docs/`, to read beside the interface.
pub mod guide {
    #[doc = "[guarantees]: crate::guide::guarantees\n[migration]: crate::guide::migration\n[operations]: crate::guide::operations#rights\n\n"]
    #[doc = include_str!("../docs/faq.md")]
    pub mod faq {}

    #[doc = "[guarantees]: crate::guide::guarantees\n[benchmarks]: crate::guide::benchmarks\n\n"]
    #[doc = include_str!("../docs/operations.md")]
    pub mod operations {}

    #[doc = "[operations]: crate::guide::operations#rights\n\n"]
    #[doc = include_str!("../docs/migration.md")]
    pub mod migration {}

    #[doc = include_str!("../docs/fencing.md")]
    pub mod fencing {}

    #[doc = include_str!("../docs/guarantees.md")]
    pub mod guarantees {}

    #[doc = include_str!("../docs/design.md")]
    pub mod design {}

    #[doc = include_str!("../docs/reliability.md")]
    pub mod reliability {}

    #[doc = include_str!("../docs/benchmarks.md")]
    pub mod benchmarks {}
}

/// The programs in the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
