//! Distributed locks on Redis and Valkey. A lock is a name, and of all processes on all machines one holds it at a time. The client renews
//! the lock while you hold it, and notifies you if it is lost. A message from the server wakes the waiters, so they do not poll. JVM
//! services that use Redisson share the same locks.
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
//! | the same, but a function that holds the lock may call another that acquires it again (reentrant) | [`Client::lock`] |
//! | first in, first out across all machines | [`Client::fair_lock`] |
//! | many readers or one writer | [`Client::rw_lock`] |
//! | a number with which a database can refuse a write from a holder that has already lost the lock | [`Client::fenced_lock`] |
//! | several locks at once, held all or none | [`MultiLock`] |
//! | a lock that survives the loss of a server, on three or more independent servers | [`Quorum`] |
//! | one leader among all processes; a job once per period | [`Client::leader`]; [`Lock::run_once_per`] |
//! | a limited number of permits for all machines, for example at most ten downloads at once | [`Client::semaphore`]: each holder's permits have a lease |
//! | the same, shared with JVMs that use Redisson's `RSemaphore` | [`Client::plain_semaphore`]: the permits of a process that dies are lost |
//! | tasks that wait until others have counted down to zero, for example to start together | [`Client::latch`]: holds nothing |
//!
//! <div class="warning">
//!
//! **If in doubt, use `mutex`.** A `lock` belongs to the tokio task that acquired it, its *owner*. Futures that run in this task, such as
//! branches of `join_all` or requests of one HTTP/1 connection, re-enter the lock and do **not** exclude each other. The same is true of
//! `fair_lock`, `rw_lock`, `fenced_lock` and the lock of a [`Quorum`]. With `non_reentrant()`, each acquisition has an owner of its own;
//! `mutex` is `lock` with that setting. [`Lock`] has more.
//!
//! </div>
//!
//! The methods of each kind ([`MultiLock`] and [`QuorumLock`] have a part of those of [`Lock`]):
//!
//! | | [`Lock`], [`FairLock`] | [`FencedLock`] | [`RwLock`] |
//! |---|---|---|---|
//! | wait | `lock`, or `.await` | `lock`, or `.await` | `read`, `write` |
//! | make one attempt | `try_lock` | `try_lock` | `try_read`, `try_write` |
//! | wait for a while | `try_lock_for`, `try_lock_until` | `try_lock_for`, `try_lock_until` | `try_read_for`, `try_read_until`, `try_write_for`, `try_write_until` |
//! | acquire, work, release | `with`, `try_with` | `with`, `try_with`: the work gets the token | `with_read`, `try_with_read`, `with_write`, `try_with_write` |
//! | the result | [`Guard`] | [`FencedGuard`] | [`ReadGuard`], [`WriteGuard`] |
//!
//! All have the settings `lease`, `max_hold`, `min_hold`, `owner` and `non_reentrant`. `is_locked` and `inspect` show the holder, `ask` asks
//! it to release the lock, and `force_unlock` releases the lock on behalf of the holder.
//!
//! # Acquire and hold
//!
//! * **Guard.** A call that acquires a lock returns a [`Guard`]. [`Guard::unlock`] releases it, and says whether the lock was held to the
//!   end. A dropped guard is released in the background, from any thread. [`Lock::with`] acquires the lock, does the work and releases
//!   the lock.
//! * **`None` or an error.** If another owner holds the lock, `try_lock`, `try_read`, `try_write` and their variants with a time limit
//!   return `None`. If the server is unreachable, they return an error. (In `try_with` and `try_protect`, `try` means that the *work* can
//!   fail: `try_with` waits for the lock as `with` does.)
//! * **Lease.** Each lock on the server has a lease: a time after which it expires. By default this is 30 s, and a background task of the
//!   client, the *watchdog*, renews it every 9 s while a guard lives. With [`Lock::lease`] you set another time, and the client does not
//!   renew it.
//! * **Hold.** A hold begins when an owner acquires a lock that it does not hold, and ends with the release of the owner's last guard.
//!   An owner that acquires a `lock` again re-enters its hold: the *hold count* grows by one. [`Owner`] says which calls have the same
//!   owner. A hold of a lock for which others wait is also called a *turn*.
//! * **Certain or lost.** A hold is *certain* while [`Guard::remaining`] is above zero: no other owner can have the lock, unless it was
//!   forced open or [the server lost it](#what-a-lock-cannot-promise). A hold is *lost* when that time is over, when the client learns that
//!   the server no longer has the lock, when its [`max_hold`](Lock::max_hold) is over, or when the client is closed. It stays lost. Then
//!   [`Guard::lost`] resolves, [`Guard::protect`] stops the work, and [`Guard::lost_token`] notifies other tasks.
//!
//! # What a lock cannot promise
//!
//! A lock with a lease excludes others only for a limited time. A process that is paused for longer than its lease (suspended, swapped
//! out, out of CPU) continues for a moment before it learns that another holder has the lock. And the server keeps locks in memory. If it
//! restarts without persistence, or a replica takes over that had not received the lock, another owner can acquire the lock early.
//! [`Builder::replicas`] makes that rarer, not impossible.
//!
//! So a lock makes double execution rare. If double execution would be a disaster, let the resource refuse a write from a holder that has
//! lost the lock, with the token of a [`FencedLock`]: see [`guide::fencing`].
//!
//! # Start and stop
//!
//! [`Builder::connect_timeout`] waits for a server that starts later. [`Builder::connect_lazy`] connects at the first call.
//! [`Client::ping`] is for readiness probes.
//!
//! End a program with [`Client::shutdown`], which first waits until the guards are released, or with [`Client::close`]. Without one of
//! them, a guard that is dropped in the last moments of `main` may leave its lock on the server until the lease expires, 30 s by default.
//!
//! # Cargo features
//!
//! None of them is on by default.
//!
//! | feature | what it is for |
//! |---|---|
//! | `tls` | encrypted connections, for URLs that begin with `rediss` or `valkeys` |
//! | `blocking` | the module `blocking`: the same locks for plain threads, without async |
//! | `metrics` | the numbers of [`Client::stats`] for a recorder of the crate `metrics`, for example for Prometheus |
//! | `test-util` | `MemoryServer`, a server in memory for unit tests; enable it only in `[dev-dependencies]`, see [`guide::testing`] |
//! | `cli` | the command `leasehold`, which runs a program under a lock and shows the holders of locks, see [`guide::commands_and_scripts`]; it includes `tls` |
//!
//! # More
//!
//! [`guide`] lists the pages: first steps, what is promised, common mistakes by what you see, what a deployment needs.
//!
//! # Runtimes
//!
//! Calls need a tokio runtime with time enabled; if the client's own tasks run there, also with I/O enabled. On a multi-threaded runtime the
//! client's own tasks run there; on a current-thread runtime they run on a thread of their own, see [`Builder::own_thread`].
//!
//! # Platforms
//!
//! On Linux, Android and Apple's systems leases are counted on a clock that continues while the machine sleeps; on Windows
//! `std::time::Instant` continues, too. On other systems that clock may stop during sleep. When such a machine wakes up, its client may
//! take an expired lease for a valid one until the next reply of the server, at most a third of a lease later.

mod ask;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod clock;
#[cfg(not(leasehold_explore))] // nothing of the driver depends on it
mod combined;
mod config;
mod contained;
mod credentials;
mod deadlock;
mod decimal;
mod driver;
mod engine;
mod error;
mod events;
#[cfg(leasehold_explore)]
#[path = "../tests/explore/mod.rs"]
mod explore;
#[cfg_attr(not(feature = "metrics"), path = "no_export.rs")]
mod export;
mod failed;
mod guard;
mod kind;
mod lock;
mod owner;
mod primitives;
mod record;
mod redis;
mod release_request;
mod request;
#[cfg(not(leasehold_explore))]
mod servers;
mod spans;
mod spawner;
mod stats;
mod sync;
#[cfg_attr(leasehold_explore, path = "../tests/explore/task_runtime.rs")]
mod task_runtime;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

#[cfg(feature = "bench")]
#[doc(hidden)]
pub use client::RawScript;
pub use client::{Builder, Client, Held};
#[cfg(not(leasehold_explore))]
pub use combined::{Leader, MultiGuard, MultiLock, Once, Quorum, QuorumGuard, QuorumLock};
pub use config::{OnDeadlock, PubSub};
pub use credentials::Credentials;
pub use error::{About, Blocked, Error, Lost, Result};
pub use guard::{Guard, Outcome};
pub use owner::Owner;
pub use primitives::{
    FairLock, FencedGuard, FencedLock, Holder, Latch, Lock, Permits, PlainSemaphore, ReadGuard, RwLock, RwState,
    Semaphore, WriteGuard,
};
pub use record::{ClientRecord, Wait};
#[cfg(feature = "test-util")]
pub use redis::MemoryServer;
pub use release_request::{AskOutcome, ReleaseRequest};
#[cfg(not(leasehold_explore))]
pub use servers::{Server, Value};
pub use stats::{Gauges, Stats, Times, Totals};
#[cfg(feature = "tls")]
pub use tls::Tls;
pub use tokio_util::sync::CancellationToken;
pub use uuid::Uuid;

pub mod guide {
    //! The pages of `docs/`.
    //!
    //! | to | page |
    //! |---|---|
    //! | use | [`getting_started`]: A first program, step by step |
    //! |  | [`web_services`]: Locks in request handlers: axum, jobs, shutdown |
    //! |  | [`scheduled_jobs`]: A job on many machines: once, per period, or by a leader |
    //! |  | [`commands_and_scripts`]: A lock around any program: the command `leasehold` |
    //! |  | [`testing`]: Unit tests with a server in memory |
    //! |  | [`faq`]: Common mistakes, by what you see |
    //! | decide | [`guarantees`]: What is promised, and what each failure does |
    //! |  | [`fencing`]: A number with which a resource refuses late writes |
    //! |  | [`quorum`]: One lock over several independent servers |
    //! | run | [`operations`]: What a deployment needs |
    //! |  | [`permissions`]: ACL rules, ready to copy |
    //! |  | [`managed_services`]: What cloud services permit |
    //! |  | [`observing`]: Metrics, spans, deadlocks, alerts |
    //! |  | [`migration`]: From Redisson, rslock, redlock, redsync |
    //! | evidence | [`how_it_is_tested`]: What was tried, and what was not |
    //! |  | [`benchmarks`]: How fast, beside others, and where it is slower |

    // Pages link each other by their files. The first file gives the targets of these links in rustdoc; each page ends with those in `docs/`.
    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/getting-started.md")]
    pub mod getting_started {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/web-services.md")]
    pub mod web_services {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/scheduled-jobs.md")]
    pub mod scheduled_jobs {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/commands-and-scripts.md")]
    pub mod commands_and_scripts {}

    #[doc = include_str!("guide_links.md")]
    #[cfg_attr(feature = "test-util", doc = include_str!("../docs/testing.md"))]
    #[cfg_attr(not(feature = "test-util"), doc = "This page needs the feature `test-util`.")]
    pub mod testing {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/faq.md")]
    pub mod faq {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/guarantees.md")]
    pub mod guarantees {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/fencing.md")]
    pub mod fencing {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/quorum.md")]
    pub mod quorum {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/operations.md")]
    pub mod operations {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/permissions.md")]
    pub mod permissions {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/managed-services.md")]
    pub mod managed_services {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/observing.md")]
    pub mod observing {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/migration.md")]
    pub mod migration {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/how-it-is-tested.md")]
    pub mod how_it_is_tested {}

    #[doc = include_str!("guide_links.md")]
    #[doc = include_str!("../docs/benchmarks.md")]
    pub mod benchmarks {}
}

/// The programs in the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
