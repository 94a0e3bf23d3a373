//! Locks for plain threads, without async: the types of this module have the names and the meaning of those in the crate's root.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # fn main() { run_blocking(|client| {
//! // let client = leasehold::blocking::Client::connect("redis://127.0.0.1:6379")?;
//! let total = client.mutex("invoice:42").with(|_guard| 40 + 2)?; // one holder on all machines
//! # assert_eq!(total, 42);
//! # Ok(()) }) }
//! ```
//!
//! What differs from the async interface:
//!
//! * **Owners are threads.** A thread that holds a [`Lock`] acquires it again at once; two threads exclude each other.
//!   [`mutex`](Client::mutex) and `non_reentrant` work as they do there, and so does `owner`.
//! * **Dropping a guard releases the lock before `drop` returns**, as with `std::sync::Mutex`, also while the thread panics. If the server
//!   does not reply, `drop` returns after [`command_timeout`](crate::Builder::command_timeout), and the client continues the release in the
//!   background. A guard that has already lost its lock does not wait either.
//! * **A call cannot be cancelled.** Give it a time limit instead: `try_lock_for`.
//! * **Nothing stops the work of a holder that has lost its lock.** [`Guard::on_lost`] runs a callback on another thread at once.
//!   [`Guard::is_lost`] and [`Guard::remaining`] send no request, so long work can call them often.
//! * **Leaders and periodic jobs are not here.** Their work is async: see [`leasehold::Client::leader`](crate::Client::leader) and
//!   [`leasehold::Lock::run_once_per`](crate::Lock::run_once_per).
//!
//! # Threads and runtimes
//!
//! One background thread serves all clients of a process that were connected with this module. It starts with the first of them and lives
//! as long as the process. It does not survive `fork`: fork before the first
//! call. In a process that is forked later, each call returns an error at once, and dropping a guard releases nothing.
//!
//! Inside a multi-threaded tokio runtime these calls work too: they pass the other tasks of the thread on to other threads while they
//! wait (`tokio::task::block_in_place`). Each waiting call then needs one of the runtime's `max_blocking_threads`, 512 by default: if more
//! tasks wait, the runtime stops, perhaps also the task that holds the lock. Tasks that run on one thread are one owner, so use
//! [`mutex`](Client::mutex) there.
//!
//! Inside a current-thread runtime, or a `LocalSet`, these calls would stop all of its tasks, perhaps also the one that holds the lock.
//! There they return [`Error::InvalidConfig`](crate::Error::InvalidConfig) with the setting `runtime`, and a dropped guard is released in
//! the background. That is also so on the threads of `spawn_blocking` of a current-thread runtime. In a `LocalSet` tokio's panic message
//! is printed, too, and with `panic = "abort"` it ends the process.
//!
//! In the destructor of a thread-local value these calls may return the same error. A guard that is dropped there is released before `drop`
//! returns.
//!
//! [`Client::from`] makes a client of the async interface usable here. Its tasks stay on the runtime that it was connected on. For unit
//! tests, `Client::in_memory` (feature `test-util`) connects to a server in memory.

mod client;
mod guard;
mod kept;
mod latch;
mod lock;
mod multi;
mod plain_semaphore;
mod quorum;
mod rw;
mod semaphore;
mod wait;

pub use client::Client;
pub use guard::{FencedGuard, Guard, ReadGuard, WriteGuard};
pub use latch::Latch;
pub use lock::{FairLock, FencedLock, Lock};
pub use multi::{MultiGuard, MultiLock};
pub use plain_semaphore::PlainSemaphore;
pub use quorum::{Quorum, QuorumGuard, QuorumLock};
pub use rw::RwLock;
pub use semaphore::{Permits, Semaphore};
