//! The owner of a lock: which calls may re-enter it.

use std::{
    future::Future,
    hash::{Hash, Hasher},
    sync::atomic::{AtomicU64, Ordering},
    thread::ThreadId,
};

tokio::task_local! {
    static SCOPE: Owner;
}

/// The owner of a hold, inside this process: a task, a thread, or an owner made with [`Owner::new`].
///
/// If an owner acquires a lock that it holds, it re-enters and does not wait. Owners exist only inside this process; Redis stores
/// [`Guard::id`](crate::Guard::id).
///
/// # Which owner a call has
///
/// 1. the owner that the lock's [`owner`](crate::Lock::owner) or [`non_reentrant`](crate::Lock::non_reentrant) sets, else
/// 2. the owner of the innermost [`scope`](Owner::scope), else
/// 3. the tokio task that polls the call, whatever thread it runs on, else
/// 4. the thread. The body of `#[tokio::main]`, `#[tokio::test]` and `block_on` belongs to no task.
///
/// Branches of `join!` and `select!` belong to one task, so they do not exclude each other. Use
/// [`non_reentrant`](crate::Lock::non_reentrant), or give each branch an owner of its own:
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::Owner;
///
/// let lock = client.lock("ledger");
/// let (one, two) = (Owner::new(), Owner::new());
/// tokio::join!(
///     one.scope(async { let _guard = lock.lock().await; /* one holder at a time */ }),
///     two.scope(async { let _guard = lock.lock().await; /* one holder at a time */ }),
/// );
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner(Who);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    Unique(u64),
    /// Never given out twice by today's tokio, whose ids come from one 64-bit counter per process.
    Task(tokio::task::Id),
    Thread(ThreadId),
}

impl Owner {
    /// Creates a new, unique owner.
    #[must_use]
    #[allow(clippy::new_without_default)] // a default that differs every time would surprise
    pub fn new() -> Owner {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Owner(Who::Unique(COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The owner that a call has here: of the surrounding [`scope`](Owner::scope), else of this tokio task, else of this thread.
    #[must_use]
    pub fn current() -> Owner {
        SCOPE.try_with(Owner::clone).unwrap_or_else(|_| Owner(Who::here()))
    }

    /// This thread, whatever task runs on it.
    #[cfg(feature = "blocking")]
    pub(crate) fn thread() -> Owner {
        Owner(Who::Thread(std::thread::current().id()))
    }

    /// Runs `work`. Every call inside has this owner, whatever task polls it, unless a setting of the lock says otherwise.
    ///
    /// Tasks that `work` spawns are not part of the scope. To share a hold with such a task, wrap the spawned future:
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use leasehold::Owner;
    ///
    /// let lock = client.lock("report");
    /// let _outer = lock.lock().await?;
    /// let (owner, again) = (Owner::current(), lock.clone());
    /// let helper = tokio::spawn(async move { owner.scope(again.lock()).await });
    /// let _inner = helper.await.expect("the helper does not panic")?; // re-entered
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; nothing else happens.
    pub async fn scope<F: Future>(&self, work: F) -> F::Output {
        SCOPE.scope(self.clone(), work).await
    }
}

impl Owner {
    /// A number that no other owner of this process has.
    pub(crate) fn number(&self) -> u64 {
        match self.0 {
            Who::Unique(number) => number << 2,
            Who::Task(task) => number_in(task) << 2 | 1,
            Who::Thread(thread) => number_in(thread) << 2 | 2,
        }
    }
}

/// True if the first of these numbers is that of a task, or of a thread such as the body of `main`, that may have spawned the second one, and
/// may wait for its end.
pub(crate) fn may_have_spawned(one: u64, task: u64) -> bool {
    const TASK: u64 = 1;
    const THREAD: u64 = 2;
    task & 3 == TASK && (one & 3 == THREAD || one & 3 == TASK && one < task)
}

/// The ids of tasks and threads are numbers that count up, but only their hash shows them. A test checks that this is so.
fn number_in(id: impl Hash) -> u64 {
    let mut number = TheNumber(0);
    id.hash(&mut number);
    number.finish()
}

/// Returns the number that was hashed. If there are several, it mixes them.
struct TheNumber(u64);

impl Hasher for TheNumber {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Who {
    fn here() -> Who {
        match tokio::task::try_id() {
            Some(task) => Who::Task(task),
            None => Who::Thread(std::thread::current().id()),
        }
    }
}
