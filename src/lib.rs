//! Distributed locks on Redis and Valkey, compatible with Redisson: reentrant, renewed while you hold them, without polling, and
//! shared with JVM services on the same server.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # fn main() { run(async |client| {
//! // let client = leasehold::Client::connect("redis://127.0.0.1:6379").await?;
//! let total = client.mutex("invoice:42").with(async || 40 + 2).await?; // one holder on all machines
//! # assert_eq!(total, 42);
//! # Ok(()) }) }
//! ```
//!
//! # Which lock
//!
//! | you need | use |
//! |---|---|
//! | one holder at a time | [`Client::mutex`] |
//! | the same, and functions that call each other lock again | [`Client::lock`] |
//! | first in, first out across all machines | [`Client::fair_lock`] |
//! | many readers or one writer | [`Client::rw_lock`] |
//! | a token by which a resource can refuse a late writer | [`Client::fenced_lock`] |
//! | several locks at once, held all or none | [`MultiLock`] |
//! | a lock that survives the loss of a server, on three or more independent servers | [`Quorum`] |
//! | one leader among all processes; a job once per period | [`Client::leader`]; [`Lock::run_once_per`] |
//!
//! <div class="warning">
//!
//! **If in doubt, use `mutex`.** The owner of a `lock` is the tokio task, with every future that it polls. Branches of `join_all`,
//! `FuturesUnordered` and `buffer_unordered`, and all requests of one keep-alive connection in axum or hyper, are *one* owner: they
//! re-enter and do not exclude each other. The same holds for `fair_lock`, `rw_lock` and `fenced_lock`. With `non_reentrant()` every
//! call is an owner of its own, for each kind; `mutex` is `lock` with that setting. In a test, two `try_lock` of one task both succeed
//! for the same reason. See [`Lock`].
//!
//! </div>
//!
//! Every kind has the same methods:
//!
//! | | [`Lock`], [`FairLock`] | [`FencedLock`] | [`RwLock`] |
//! |---|---|---|---|
//! | wait | `lock`, or `.await` | `lock`, or `.await` | `read`, `write` |
//! | make one attempt | `try_lock` | `try_lock` | `try_read`, `try_write` |
//! | wait for a while | `try_lock_for`, `try_lock_until` | `try_lock_for`, `try_lock_until` | `try_read_for`, `try_read_until`, `try_write_for`, `try_write_until` |
//! | acquire, work, release | `with`, `try_with` | `with`, `try_with`: the work gets the token | `with_read`, `try_with_read`, `with_write`, `try_with_write` |
//! | the result | [`Guard`] | [`FencedGuard`] | [`ReadGuard`], [`WriteGuard`] |
//! | settings | `lease`, `max_hold`, `min_hold`, `owner`, `non_reentrant` | the same | `lease`, `max_hold`, `owner`, `non_reentrant` |
//! | look | `is_locked`, `inspect` | `is_locked`, `inspect` | `is_locked`, `inspect` |
//! | force open | `force_unlock` | `force_unlock` | `force_unlock` |
//!
//! # Acquire and hold
//!
//! * The `try_` calls return `None` if another owner holds the lock. If the server is unreachable, every call returns an error. `None`
//!   never means "unreachable".
//! * [`Lock::with`] acquires the lock, does the work and releases the lock.
//! * A task that holds a `lock` may lock again, through any number of functions: the hold count grows by one. [`Owner`] says which calls
//!   have the same owner.
//! * Without a [`lease`](Lock::lease) the lock has a lease of 30 s, and the client renews it every 10 s while a [`Guard`] lives. With a
//!   lease the lock expires after that time.
//! * [`Guard::lost`] resolves when the lock is lost or must be presumed lost. [`Guard::protect`] then stops the work, and
//!   [`Guard::lost_token`] notifies other tasks.
//! * A dropped guard is released in the background, from any thread. [`Guard::unlock`] waits, and says whether the lock was held to the
//!   end.
//!
//! # Start and stop
//!
//! [`Builder::connect_timeout`] waits for a server that starts later. [`Builder::connect_lazy`] connects at the first call.
//! [`Client::ping`] is for readiness probes.
//!
//! End a program with [`Client::shutdown`], which lets the guards finish, or with [`Client::close`]. Without one of them, a guard that is
//! dropped in the last moments of `main` may leave its lock on the server until the lease expires, 30 s by default.
//!
//! # What a lock cannot promise
//!
//! A lock with a lease is a promise of time. A process that is paused for longer than its lease (suspended, swapped out, out of CPU)
//! continues for a moment before it learns that another holder has the lock. The server keeps locks in memory: a server that restarts
//! without persistence, or a replica that takes over before it received the lock, gives the lock away early. [`Builder::replicas`] makes
//! that rarer, not impossible.
//!
//! So a lock makes double execution rare. If double execution would be a disaster, let the resource refuse the second writer, with the
//! token of a [`FencedLock`]: see [`guide::fencing`].
//!
//! # Permissions on the server
//!
//! [`guide::operations`] lists the ACL rules for one server, a cluster and sentinels, ready to copy. [`Error::Denied`] names a missing
//! permission.
//!
//! # Tracing
//!
//! Events and spans about locks have the target `leasehold::lock`, those about connections `leasehold::conn`. They name locks and hold
//! ids, never a URL. A long wait is logged while it lasts ([`Builder::slow_wait`]). [`Client::stats`] has gauges and counters,
//! [`Client::held`] lists what the client holds now.
//!
//! # Runtimes
//!
//! Calls need a tokio runtime with time enabled. On a multi-threaded runtime the client's own tasks run there; on a current-thread runtime
//! they run on a thread of their own, see [`Builder::own_thread`].
//!
//! # Platforms
//!
//! On Linux, Android and Apple's systems leases are counted on a clock that continues while the machine sleeps; on Windows
//! `std::time::Instant` continues, too. Elsewhere that clock may stop during sleep. A machine that wakes up there may believe in leases
//! that expired meanwhile, until the next reply of the server, at most a third of a lease later.

mod client;
mod clock;
#[cfg(not(leasehold_explore))] // nothing of the engine depends on it
mod combined;
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
#[cfg(not(leasehold_explore))]
pub use combined::{Leader, MultiGuard, MultiLock, Once, Quorum, QuorumGuard, QuorumLock};
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

/// The pages of `docs/`.
pub mod guide {
    #[doc = "[guarantees]: crate::guide::guarantees\n[migration]: crate::guide::migration\n[operations]: crate::guide::operations#permissions\n\n"]
    #[doc = include_str!("../docs/faq.md")]
    pub mod faq {}

    #[doc = "[guarantees]: crate::guide::guarantees\n[benchmarks]: crate::guide::benchmarks\n\n"]
    #[doc = include_str!("../docs/operations.md")]
    pub mod operations {}

    #[doc = "[operations]: crate::guide::operations#permissions\n\n"]
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
