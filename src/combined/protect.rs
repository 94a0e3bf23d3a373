//! Work under the protection of a guard that stands for several locks.

use std::future::Future;

use crate::{
    error::{Error, Lost, Result},
    guard::Outcome,
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
    Outcome::completed(value, (&name, None), guard.unlock().await)
}

/// The methods of such a guard that run work. The documentation needs the words for the locks, and for the loss that stops the work.
macro_rules! protecting {
    ($guard:ident, $locks:literal, $lost:literal) => {
        impl $guard {
            #[doc = concat!("Runs `work`, then releases ", $locks, ". If ", $lost, " before `work` is completed, `work` is dropped.")]
            ///
            /// `Ok` says that the work was completed, not that all was held to its end, as with [`Guard::protect`](crate::Guard::protect):
            /// [`protect_outcome`](Self::protect_outcome) says both.
            ///
            /// # Errors
            ///
            #[doc = concat!("[`Error::Lost`](crate::Error::Lost) if ", $lost, " before `work` was completed.")]
            ///
            /// # Cancel safety
            ///
            #[doc = concat!("Dropping the future drops `work` and releases ", $locks, ".")]
            pub async fn protect<T>(self, work: impl Future<Output = T>) -> crate::Result<T> {
                self.protect_outcome(work).await.into_value()
            }

            /// As [`protect`](Self::protect), for work that returns a `Result`: its errors and those of the lock become one `Result`.
            ///
            /// # Errors
            ///
            #[doc = concat!("The error of `work`, after the release of ", $locks, "; else as [`protect`](Self::protect).")]
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

            /// As [`protect`](Self::protect), but distinguishes three cases, see [`Outcome`](crate::Outcome): the release confirmed that
            /// nothing was lost before the end of the work, the work was completed but the release failed, or the work was stopped.
            ///
            /// # Errors
            ///
            /// They are in the [`Outcome`](crate::Outcome).
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
