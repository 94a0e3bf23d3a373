//! One leader at a time among all processes.

use std::time::Duration;

use crate::{
    client::Client,
    error::{Error, Result},
    guard::Guard,
    primitives::Lock,
    sync::tokio,
};

/// The pause between two campaigns while the server is not available; each call has ridden out an outage before.
const PAUSE: Duration = Duration::from_secs(1);

impl Client {
    /// A candidate for the leadership of this name; it does nothing until you call [`run`](Leader::run). In Redis it is the
    /// [`mutex`](Client::mutex) of the same name. Sends nothing.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let answer = client.leader("scheduler").run(async |_guard| 42 /* work that only the leader does */).await?;
    /// # assert_eq!(answer, 42);
    /// # Ok(()) }) }
    /// ```
    pub fn leader(&self, name: &str) -> Leader {
        Leader { client: self.clone(), lock: self.mutex(name) }
    }
}

/// A candidate for the leadership of a name, see [`Client::leader`].
///
/// Among all processes that [`run`](Leader::run) the same name, one leads. If the leader's process dies, the next candidate leads when the
/// lease of the dead one expires ([`Builder::watchdog`](crate::Builder::watchdog), 30 s by default).
///
/// The leadership is a [`Lock`], with its [limits](crate#what-a-lock-cannot-promise). A leader whose process was paused for longer than its
/// lease works on for a moment beside its successor, until it is notified. If the server loses the lock, two leaders can work until the
/// first one's next renewal.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let scheduler = client.leader("scheduler");
/// let jobs = scheduler.run(async |guard| {
///     println!("this process leads, with the hold {}", guard.id());
///     3 // jobs started
/// });
/// assert_eq!(jobs.await?, 3);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a candidate does nothing until you call `.run(work).await?`"]
pub struct Leader {
    client: Client,
    lock: Lock,
}

impl Leader {
    /// Campaigns, runs `work` while this process leads, and returns its result. If the leadership is lost, `work` is dropped and this
    /// process campaigns again. When it leads again, `work` starts from the beginning.
    ///
    /// [`Client::shutdown`] and [`Client::close`] end the leadership at once: `work` is dropped, the lock is released, and the next
    /// candidate leads. `shutdown` lets other holders finish, but not a leader. If `work` must not stop in the middle, let it end by a
    /// signal of your own before you call `shutdown`.
    ///
    /// # Errors
    ///
    /// * [`Error::Closed`]: the client was shut down or closed before `work` was done.
    /// * [`Error::Unavailable`], only if the runtime that the client was connected on has ended. If the server is not available, or
    ///   fewer [replicas](crate::Builder::replicas) than wanted confirm the lock, the campaign goes on.
    /// * [`Error::InvalidName`], [`Error::Denied`], [`Error::Conflict`] and others as [`Error`] says, but not [`Error::Lost`]: after a
    ///   loss this process campaigns again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and ends the campaign or the leadership.
    ///
    /// # In a task of its own
    ///
    /// In a spawned task, `work` must own what it uses: write `async move |guard| ..`, and clone an `Arc` into it. If it borrows a local
    /// value, or `self`, the compiler says "implementation of `Send` is not general enough", or that the value does not live long enough.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// use std::sync::Arc;
    ///
    /// let jobs = Arc::new(vec![1, 2, 3]);
    /// let campaign = tokio::spawn(async move {
    ///     let led = Arc::clone(&jobs);
    ///     let count = client.leader("scheduler").run(async move |_guard| led.len()).await?;
    ///     leasehold::Result::Ok(count == jobs.len())
    /// });
    /// # assert!(campaign.await.expect("it does not panic")?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// The future borrows nothing from the `Leader`, so you can also spawn it as it is: `tokio::spawn(leader.run(async move |guard| ..))`.
    pub fn run<T, W: AsyncFn(&Guard) -> T>(&self, work: W) -> impl Future<Output = Result<T>> + use<T, W> {
        let leader = self.clone();
        async move {
            loop {
                let guard = leader.elected().await?;
                let led = tokio::select! {
                    biased;
                    _ = guard.lost() => None,
                    () = leader.client.engine().stops() => None,
                    value = work(&guard) => Some(value),
                };
                // Else the guard is dropped: whether the server replies to the release or not, the campaign goes on, or ends, at once.
                let Some(value) = led else { continue };
                if let Err(error) = guard.unlock().await {
                    tracing::warn!(target: "leasehold::lock", name = leader.lock.name(), %error,
                        "the leader's work is done, but it may not have led to the end");
                }
                return Ok(value);
            }
        }
    }

    async fn elected(&self) -> Result<Guard> {
        loop {
            match self.lock.lock().await {
                Err(error @ (Error::Unavailable { .. } | Error::Replicas { .. } | Error::Lost { .. })) => {
                    if self.client.is_closed() {
                        // A result from before the end, unless the runtime of the client has ended.
                        return Err(if self.client.engine().driver.is_abandoned() { error } else { Error::Closed });
                    }
                    tracing::warn!(target: "leasehold::lock", name = self.lock.name(), %error, "the campaign goes on");
                    tokio::time::sleep(PAUSE).await;
                }
                elected => return elected,
            }
        }
    }
}
