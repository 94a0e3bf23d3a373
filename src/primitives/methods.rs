//! The public methods that several kinds of locks have in common, each written once.

/// The settings of a lock that is a [`Handle`](super::handle::Handle). `$new` is the constructor on `Client`, for the examples.
macro_rules! settings {
    ($lock:ident, $new:literal) => {
        impl $lock {
            /// Sets a fixed lease. The client does not renew it: the lock expires after `d`, unless you release it before that or
            /// [extend](crate::Guard::extend) it. If the process dies, the lock stays held for the rest of `d`. The client only checks,
            /// every third of `d`, and at least every third of
            /// [`watchdog`](crate::Builder::watchdog), that the server still has the lock. To limit long work, prefer
            /// [`max_hold`](Self::max_hold): then the lock of a process that died is free within 30 s.
            ///
            /// `d` must be between 1 ms and one year. With any other value, the call that acquires the lock returns an error. A lease
            /// shorter than one round trip to the server expires before you can use the lock: then that call returns
            /// [`Error::Lost`](crate::Error::Lost). Defaults to no fixed lease: the watchdog renews the lock.
            #[must_use = "the setting is in the value that this returns"]
            pub fn lease(self, d: std::time::Duration) -> Self {
                $lock(self.0.lease(d))
            }

            /// Limits how long the lock is held. After `d` the guard is lost, with [`Lost::MaxHold`](crate::Lost::MaxHold), and
            /// the client stops renewing. The holder can use the rest of the lease to stop. The lock is free when you release or drop
            /// the guard, and at the latest when the lease expires: 30 s after `d`, by default.
            ///
            /// Each acquisition counts `d` from the moment at which the lock was granted to it. If several guards of one hold have a
            /// `max_hold`, the whole hold is lost as soon as the first of these times is over. Guards that were released do not count. If
            /// `d` is zero, the call that acquires the lock returns an error. Defaults to no limit.
            #[must_use = "the setting is in the value that this returns"]
            pub fn max_hold(self, d: std::time::Duration) -> Self {
                $lock(self.0.max_hold(d))
            }

            /// Sets the owner for which calls acquire the lock. Defaults to the [`Owner::current`](crate::Owner::current) of the task or
            /// thread that polls the call.
            ///
            /// Of `owner` and [`non_reentrant`](Self::non_reentrant) the one that is set last counts.
            #[must_use = "the setting is in the value that this returns"]
            pub fn owner(self, o: &crate::Owner) -> Self {
                $lock(self.0.owner(o))
            }

            /// Makes every call an owner of its own, as with `tokio::sync::Mutex`. In Redis it is the same lock.
            ///
            /// Use it wherever the work is not nested, above all where one task runs several pieces of work: branches of
            /// `join_all`, `FuturesUnordered` or `buffer_unordered`, and the requests of one keep-alive connection in axum or
            /// hyper. Without this setting they are one owner, and do **not** exclude each other. With it, a task that holds the lock
            /// and waits for it again waits for itself forever.
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            #[doc = concat!("let one = client.", $new, "(\"stock:7\").non_reentrant();")]
            #[doc = concat!("let other = client.", $new, "(\"stock:7\"); // the same lock in Redis")]
            /// assert_eq!(one.name(), other.name());
            /// # Ok(()) }) }
            /// ```
            #[must_use = "the setting is in the value that this returns"]
            pub fn non_reentrant(self) -> Self {
                $lock(self.0.non_reentrant())
            }
        }

        impl $lock {
            /// Asks the holder to release the lock, and says why. The holder gets the request if it waits for
            /// [`Guard::asked`](crate::Guard::asked), and decides. Nothing else happens: to acquire the lock, wait for it.
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            /// use leasehold::AskOutcome;
            ///
            #[doc = concat!("let reindex = client.", $new, "(\"reindex\");")]
            /// match reindex.ask("a deploy needs the index").await? {
            ///     AskOutcome::Heard => println!("the holder knows"),
            ///     AskOutcome::NotHeard => println!("the holder does not listen: wait for it"),
            ///     AskOutcome::Free => println!("nobody holds it"),
            ///     _ => {}
            /// }
            /// # Ok(()) }) }
            /// ```
            ///
            /// # Errors
            ///
            /// * [`Error::InvalidConfig`](crate::Error::InvalidConfig): `reason` has more than 1,000 bytes, or
            ///   [`pubsub`](crate::Builder::pubsub) is off.
            /// * [`Error::Unavailable`](crate::Error::Unavailable), [`Error::Denied`](crate::Error::Denied) and others as
            ///   [`Error`](crate::Error) says. Perhaps the holder was asked.
            ///
            /// # Cancel safety
            ///
            /// If you drop the future, the holder may or may not be asked.
            pub async fn ask(&self, reason: &str) -> crate::Result<crate::AskOutcome> {
                self.0.ask_to_release(reason).await
            }
        }

        crate::primitives::methods::named!($lock);
    };
}
pub(super) use settings;

/// The name of anything that is a [`Handle`](super::handle::Handle).
macro_rules! named {
    ($type:ident) => {
        impl $type {
            /// The name, without the client's prefix.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.name()
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.debug(stringify!($type), f)
            }
        }
    };
}
pub(super) use named;

/// Acquiring a lock that one owner holds at a time, with guards of its own.
macro_rules! exclusive {
    ($lock:ident, $new:literal -> $guard:ident, $kind:ident, $wrap:path) => {
        impl $lock {
            /// Keeps the lock held for at least `d` after the call that acquired it returned, even if you release it sooner. Use it for
            /// a short job that every machine starts at the same time of day: a machine whose clock is a little slow then still finds
            /// the lock held, and does not run the job a second time.
            ///
            /// A lock released early stays on the server for the rest of `d` and then expires; `unlock` does not wait for that. If the
            /// release reaches the server late, the lock stays for longer by that delay. It also stays for `d` if a shorter
            /// [`max_hold`](Self::max_hold) ends the hold. If the process dies or cannot reach the server, if the guard is kept after
            /// `max_hold`, or if a [`lease`](Self::lease) of the same length expires, `d` counts from the moment at which the server
            /// granted the lock. If one owner acquires the lock several times, it stays until the latest of these times has passed. If
            /// the call that acquires it is dropped before it returns, or before its work begins, the lock does not stay.
            ///
            /// `d` must be between 1 ms and one year, and no longer than a fixed [`lease`](Self::lease). With any other value, the
            /// call that acquires the lock returns an error. Defaults to nothing.
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            /// use std::time::Duration;
            ///
            #[doc = concat!("let nightly = client.", $new, "(\"nightly\").non_reentrant().min_hold(Duration::from_secs(300));")]
            /// if let Some(guard) = nightly.try_lock().await? {
            ///     // one second of work
            ///     guard.unlock().await?;
            /// }
            /// assert!(nightly.try_lock().await?.is_none()); // for five minutes
            /// # Ok(()) }) }
            /// ```
            #[must_use = "the setting is in the value that this returns"]
            pub fn min_hold(self, d: std::time::Duration) -> Self {
                $lock(self.0.min_hold(d))
            }

            /// Acquires the lock; waits for as long as another owner holds it. An owner that holds it already re-enters at once:
            /// its hold count grows by one.
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            #[doc = concat!("let guard = client.", $new, "(\"ledger\").non_reentrant().lock().await?;")]
            /// // only one holder on all machines
            /// guard.unlock().await?; // an error if the lock was lost before
            /// # Ok(()) }) }
            /// ```
            ///
            /// # Errors
            ///
            /// * [`Error::Lost`](crate::Error::Lost): this owner held the lock and lost it; release its other guards first. Also
            ///   when the lock was granted too late three times in a row, which only happens with a lease shorter than a round trip.
            /// * [`Error::Unavailable`](crate::Error::Unavailable): the server did not reply for
            ///   [`outage_timeout`](crate::Builder::outage_timeout).
            /// * Others as [`Error`](crate::Error) says. In each case this call acquired nothing.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future at any point leaves nothing behind: no hold and no place in the queue. A
            /// subscription that no other call needs ends half a second later.
            ///
            /// Await the future or drop it. Do not keep it without polling it, as a `select!` does with a branch that you resume later. An
            /// unpolled call delays the waiters behind it for about half a second; then they pass it over. If you poll it after that, it
            /// waits anew, at the end of the queue. One kind of call is not passed over: `lock` of an owner that already holds the lock.
            /// The hold of that owner lasts until you poll or drop the future, or until the lease expires.
            pub async fn lock(&self) -> crate::Result<$guard> {
                let taken = self.0.take(&$kind, "lock", crate::request::WaitLimit::Forever).await?;
                $wrap(taken.expect("a wait without limit ends with a lock or an error"))
            }

            /// Makes one attempt; `None` if another owner holds the lock, or if this is a fair lock and others wait for it. If this client is
            /// just releasing the lock, the call waits for that first.
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            #[doc = concat!("match client.", $new, "(\"nightly-job\").non_reentrant().try_lock().await? {")]
            ///     Some(guard) => guard.protect(async { /* the job */ }).await?,
            ///     None => println!("another machine does the job"),
            /// }
            /// # Ok(()) }) }
            /// ```
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock). If the server does not reply, the call gives up after
            /// [`command_timeout`](crate::Builder::command_timeout).
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            pub async fn try_lock(&self) -> crate::Result<Option<$guard>> {
                self.take("try_lock", crate::request::WaitLimit::Once).await
            }

            /// Waits until the lock is acquired, but for no longer than `limit`; `None` if another owner held it all that time, or if
            /// this is a fair lock and its turn did not come. When
            /// `limit` is over, the call makes a last attempt, so that it does not miss a lock that was released a moment before. So
            /// it may return a little later than `limit`, by about a round trip. It returns later still if all threads of the runtime on
            /// which the client was connected are busy with code that does not await; then set
            /// [`own_thread`](crate::Builder::own_thread).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock). If the server does not reply, the call gives up soon after `limit`, or after
            /// [`outage_timeout`](crate::Builder::outage_timeout) if that is sooner.
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            pub async fn try_lock_for(&self, limit: std::time::Duration) -> crate::Result<Option<$guard>> {
                self.take("try_lock_for", crate::request::WaitLimit::of(limit)).await
            }

            /// As [`try_lock_for`](Self::try_lock_for), with a deadline: an `Instant` of tokio or of the standard library.
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            /// use std::time::{Duration, Instant};
            ///
            /// let deadline = Instant::now() + Duration::from_secs(2); // of the whole request
            #[doc = concat!("let lock = client.", $new, "(\"stock:7\").non_reentrant();")]
            /// let Some(guard) = lock.try_lock_until(deadline).await? else { return Ok(()) };
            /// # guard.unlock().await?;
            /// # Ok(()) }) }
            /// ```
            ///
            /// # Errors
            ///
            /// As [`try_lock_for`](Self::try_lock_for).
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            pub async fn try_lock_until(
                &self,
                deadline: impl Into<crate::sync::tokio::time::Instant>,
            ) -> crate::Result<Option<$guard>> {
                self.take("try_lock_until", crate::request::WaitLimit::Until(deadline.into())).await
            }

            async fn take(&self, what: &'static str, limit: crate::request::WaitLimit) -> crate::Result<Option<$guard>> {
                self.0.take(&$kind, what, limit).await?.map($wrap).transpose()
            }

            /// Whether any owner holds the lock now.
            ///
            /// # Errors
            ///
            /// As [`inspect`](Self::inspect).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future changes nothing.
            pub async fn is_locked(&self) -> crate::Result<bool> {
                Ok(self.0.inspect(&$kind).await?.is_some())
            }

            /// The holder, its hold count and the time left on its lease; `None` if the lock is free.
            ///
            /// # Errors
            ///
            /// [`Error::Conflict`](crate::Error::Conflict) if the key is not a lock of this kind;
            /// [`Error::Unavailable`](crate::Error::Unavailable) if the server does not reply for
            /// [`outage_timeout`](crate::Builder::outage_timeout); others as [`Error`](crate::Error) says.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future changes nothing.
            pub async fn inspect(&self) -> crate::Result<Option<crate::Holder>> {
                match self.0.inspect(&$kind).await? {
                    Some(holder) => Ok(Some(self.0.with_client(holder).await)),
                    None => Ok(None),
                }
            }
        }

        /// `value.await` is `value.lock().await`. Its future owns the value and is `'static`, so you can spawn it.
        ///
        /// ```
        /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
        /// # fn main() { run(async |client| {
        #[doc = concat!("let guard = client.", $new, "(\"stock:7\").non_reentrant().await?;")]
        /// # guard.unlock().await?;
        #[doc = concat!("let waiting = tokio::spawn(client.", $new, "(\"stock:8\").non_reentrant().into_future());")]
        /// # waiting.await.expect("it does not panic")?.unlock().await?;
        /// # Ok(()) }) }
        /// ```
        impl IntoFuture for $lock {
            type Output = crate::Result<$guard>;
            type IntoFuture = std::pin::Pin<Box<dyn Future<Output = crate::Result<$guard>> + Send>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(async move { self.lock().await })
            }
        }
    };
}
pub(super) use exclusive;

/// Acquiring permits, all or none of so many.
macro_rules! acquiring {
    ($semaphore:ident -> $acquired:ty, $attempt:ty; $none:literal, $others:literal, $without_limit:expr) => {
        impl $semaphore {
            /// Acquires `n` permits; waits until so many are free at once.
            ///
            /// # Errors
            ///
            /// See [the type](Self#errors).
            ///
            /// # Cancel safety
            ///
            /// See [the type](Self#cancel-safety).
            pub async fn acquire(&self, n: u32) -> crate::Result<$acquired> {
                self.take(n, "acquire", crate::request::WaitLimit::Forever).await.map($without_limit)
            }

            ///
            /// # Errors
            ///
            /// See [the type](Self#errors).
            ///
            /// # Cancel safety
            ///
            /// See [the type](Self#cancel-safety).
            #[doc = concat!("Makes one attempt; ", $none, " if fewer than `n` permits are free, or if ", $others, " wait.")]
            pub async fn try_acquire(&self, n: u32) -> crate::Result<$attempt> {
                self.take(n, "try_acquire", crate::request::WaitLimit::Once).await
            }

            #[doc = concat!("Waits for `n` permits, but for no longer than `limit`; then ", $none, ". As")]
            /// [`Lock::try_lock_for`](crate::Lock::try_lock_for), it makes a last attempt at the end.
            ///
            /// # Errors
            ///
            /// See [the type](Self#errors).
            ///
            /// # Cancel safety
            ///
            /// See [the type](Self#cancel-safety).
            pub async fn try_acquire_for(&self, n: u32, limit: std::time::Duration) -> crate::Result<$attempt> {
                self.take(n, "try_acquire_for", crate::request::WaitLimit::of(limit)).await
            }
        }
    };
}
pub(super) use acquiring;

/// `with` and `try_with` of a lock whose guard is a plain [`Guard`](crate::Guard).
macro_rules! working {
    ($lock:ident, $new:literal) => {
        impl $lock {
            /// Acquires the lock, runs `work`, and releases the lock. If the lock is lost, `work` is dropped at its next `await`. `Ok` says that
            /// the work was completed, not that the lock was held to its end: [`with_outcome`](Self::with_outcome) says both.
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            #[doc = concat!("let total = client.", $new, "(\"invoice:42\").non_reentrant().with(async || 40 + 2).await?;")]
            /// # assert_eq!(total, 42);
            /// # Ok(()) }) }
            /// ```
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), and as [`Guard::protect`](crate::Guard::protect).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future drops the work and releases the lock.
            pub async fn with<T, W: Future<Output = T>>(&self, work: impl FnOnce() -> W) -> crate::Result<T> {
                self.lock().await?.protect(work()).await
            }

            /// As [`with`](Self::with), but also says whether the lock was held until the release: see
            /// [`Guard::protect_outcome`](crate::Guard::protect_outcome).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock): then `work` did not begin.
            ///
            /// # Cancel safety
            ///
            /// As [`with`](Self::with).
            pub async fn with_outcome<T, W: Future<Output = T>>(
                &self,
                work: impl FnOnce() -> W,
            ) -> crate::Result<crate::Outcome<T>> {
                Ok(self.lock().await?.protect_outcome(work()).await)
            }

            /// As [`with`](Self::with), for work that returns a `Result`: its errors and those of the lock become one `Result`.
            ///
            /// ```
            /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
            /// # fn main() { run(async |client| {
            /// # type BoxError = Box<dyn std::error::Error + Send + Sync>;
            #[doc = concat!("let invoice = client.", $new, "(\"invoice:42\").non_reentrant();")]
            /// let total = invoice.try_with(async || Ok::<_, BoxError>("42".parse::<u32>()?)).await;
            /// # assert_eq!(total.unwrap(), 42);
            /// # Ok(()) }) }
            /// ```
            ///
            /// # Errors
            ///
            /// The error of `work`, after the lock was released; else as [`with`](Self::with).
            ///
            /// # Cancel safety
            ///
            /// As [`with`](Self::with).
            pub async fn try_with<T, E: From<crate::Error>, W: Future<Output = Result<T, E>>>(
                &self,
                work: impl FnOnce() -> W,
            ) -> Result<T, E> {
                self.with(work).await?
            }
        }
    };
}
pub(super) use working;

/// Forcing a lock open that one owner holds at a time.
macro_rules! forcing {
    ($lock:ident, $kind:ident) => {
        impl $lock {
            /// Releases the lock on behalf of its holder and wakes the waiters; true if this call released it. See
            /// [`Lock::force_unlock`](crate::Lock::force_unlock).
            ///
            /// # Errors
            ///
            /// As [`inspect`](Self::inspect).
            ///
            /// # Cancel safety
            ///
            /// If you drop the future, the lock may or may not be forced open.
            pub async fn force_unlock(&self) -> crate::Result<bool> {
                self.0.force_unlock(&$kind).await
            }
        }
    };
}
pub(super) use forcing;

/// The plain guard in the field `guard` of another: as a target of `Deref`, and by `From`. `Guard` is the one that is in scope.
macro_rules! plain_inside {
    ($more:ident) => {
        impl std::ops::Deref for $more {
            type Target = Guard;

            fn deref(&self) -> &Guard {
                &self.guard
            }
        }

        /// The plain guard of the same hold. The lock stays held; the additional methods are gone.
        impl From<$more> for Guard {
            fn from(more: $more) -> Guard {
                more.guard
            }
        }
    };
}
pub(crate) use plain_inside;

/// A [`Guard`](crate::Guard) with something more, in its field `guard`.
macro_rules! guarding {
    ($more:ident) => {
        impl $more {
            /// As [`Guard::unlock`].
            ///
            /// # Errors
            ///
            /// As [`Guard::unlock`].
            ///
            /// # Cancel safety
            ///
            /// As [`Guard::unlock`].
            pub fn unlock(self) -> impl Future<Output = crate::Result<()>> {
                self.guard.unlock()
            }

            /// As [`Guard::protect`].
            ///
            /// # Errors
            ///
            /// As [`Guard::protect`].
            ///
            /// # Cancel safety
            ///
            /// As [`Guard::protect`].
            pub async fn protect<T>(self, work: impl Future<Output = T>) -> crate::Result<T> {
                self.guard.protect(work).await
            }

            /// As [`Guard::try_protect`].
            ///
            /// # Errors
            ///
            /// As [`Guard::try_protect`].
            ///
            /// # Cancel safety
            ///
            /// As [`Guard::protect`].
            pub async fn try_protect<T, E: From<crate::Error>>(
                self,
                work: impl Future<Output = crate::Result<T, E>>,
            ) -> crate::Result<T, E> {
                self.guard.try_protect(work).await
            }

            /// As [`Guard::protect_outcome`].
            ///
            /// # Errors
            ///
            /// They are in the [`Outcome`](crate::Outcome).
            ///
            /// # Cancel safety
            ///
            /// As [`Guard::protect`].
            pub async fn protect_outcome<T>(self, work: impl Future<Output = T>) -> crate::Outcome<T> {
                self.guard.protect_outcome(work).await
            }
        }

        crate::primitives::plain_inside!($more);
    };
}
pub(super) use guarding;
