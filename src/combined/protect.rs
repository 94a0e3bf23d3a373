//! Work under the protection of a guard that stands for several locks.

use std::future::Future;

use crate::{
    engine::Outcome,
    error::{Error, Lost, Result},
    sync::tokio,
};

/// A guard of several locks.
pub(super) trait Holding: Sized {
    /// For errors: the names of its locks.
    fn name(&self) -> String;
    fn lost(&self) -> impl Future<Output = Lost> + Send;
    fn unlock(self) -> impl Future<Output = Result<()>> + Send;
}

/// Runs `work` until a lock is lost; then releases all.
pub(super) async fn protect<T>(guard: impl Holding, work: impl Future<Output = T>) -> Outcome<T> {
    let value = tokio::select! {
        biased;
        reason = guard.lost() => return Outcome::Stopped(Error::lost(&guard.name(), reason)),
        value = work => value,
    };
    let name = guard.name();
    match guard.unlock().await {
        Ok(()) => Outcome::Done(value),
        Err(error) => {
            tracing::warn!(target: "leasehold::lock", name, %error, "the work is done, but it may not have been alone to the end");
            Outcome::Unconfirmed { value, error }
        }
    }
}

/// The methods of such a guard that run work.
macro_rules! protecting {
    ($guard:ident) => {
        impl $guard {
            /// Runs `work` while all locks are held, then releases them. If one lock is lost, `work` is dropped.
            ///
            /// A finished value is never thrown away, as with [`Guard::protect`](crate::Guard::protect).
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost) if a lock was lost before `work` was done.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future drops `work` and releases the locks.
            pub async fn protect<T>(self, work: impl Future<Output = T>) -> crate::Result<T> {
                self.protect_outcome(work).await.into_value()
            }

            /// As [`protect`](Self::protect), for work that can fail itself: both kinds of errors in one `Result`.
            ///
            /// # Errors
            ///
            /// The error of `work`, after the locks were released; else as [`protect`](Self::protect).
            ///
            /// # Cancel safety
            ///
            /// As [`protect`](Self::protect).
            pub async fn try_protect<T, E: From<crate::Error>>(
                self,
                work: impl Future<Output = Result<T, E>>,
            ) -> Result<T, E> {
                self.protect(work).await?
            }

            /// As [`protect`](Self::protect), and tells work during which all locks were held to the end from work that may not
            /// have been alone to the end.
            ///
            /// # Cancel safety
            ///
            /// As [`protect`](Self::protect).
            pub async fn protect_outcome<T>(self, work: impl Future<Output = T>) -> crate::Outcome<T> {
                super::protect::protect(self, work).await
            }
        }
    };
}
pub(super) use protecting;
