//! Who asks for a lock, and so who may re-enter it.

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    thread::ThreadId,
};

tokio::task_local! {
    static SCOPE: Owner;
}

/// Who holds a lock, inside this process: a task, a thread, or somebody made up with [`Owner::new`].
///
/// A lock taken again by the same owner is re-entered instead of waited for. Owners are known only inside this
/// process; what Redis sees is [`Guard::id`](crate::Guard::id).
///
/// # Which owner acts
///
/// 1. the one of the innermost [`scope`](Owner::scope), else
/// 2. the tokio task that polls the call, whatever thread it runs on, else
/// 3. the thread: the body of `#[tokio::main]`, `#[tokio::test]` and `block_on` belongs to no task.
///
/// Branches of `join!` and `select!` belong to one task and therefore do not exclude each other. Give each its own
/// owner where they should:
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::Owner;
///
/// let lock = client.lock("ledger");
/// let (one, two) = (Owner::new(), Owner::new());
/// tokio::join!(
///     one.scope(async { let _guard = lock.lock().await; /* alone */ }),
///     two.scope(async { let _guard = lock.lock().await; /* alone */ }),
/// );
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner(Who);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    Somebody(u64),
    /// Never given out twice by today's tokio, whose ids come from one 64-bit counter per process.
    Task(tokio::task::Id),
    Thread(ThreadId),
}

impl Owner {
    /// Somebody nobody else is.
    #[must_use]
    #[allow(clippy::new_without_default)] // a default that differs every time would surprise
    pub fn new() -> Owner {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Owner(Who::Somebody(COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The surrounding [`scope`](Owner::scope)'s owner, else this tokio task's, else this thread's.
    #[must_use]
    pub fn current() -> Owner {
        SCOPE.try_with(Owner::clone).unwrap_or_else(|_| Owner(Who::here()))
    }

    /// Runs `work`; everything locked inside acts for this owner, on whatever task it is polled.
    ///
    /// Tasks spawned inside are not part of the scope. To share a hold with one, wrap what you spawn:
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

impl Who {
    fn here() -> Who {
        match tokio::task::try_id() {
            Some(task) => Who::Task(task),
            None => Who::Thread(std::thread::current().id()),
        }
    }
}
