//! Permits of a plain semaphore that are to be released.

use super::handle::{Change, Handle};
use crate::{
    error::{About, Error, Lost, Result},
    kind::Kind,
    redis::Code,
};

/// Permits that are released in the background when this is dropped, unless a release has had its result.
pub(crate) struct OwedPermits {
    semaphore: Handle,
    kind: &'static Kind,
    permits: u32,
    change: Option<Change>,
}

impl OwedPermits {
    pub(super) fn new(semaphore: &Handle, kind: &'static Kind, permits: u32, change: Change) -> OwedPermits {
        OwedPermits { semaphore: semaphore.clone(), kind, permits, change: Some(change) }
    }

    pub(crate) async fn release(mut self) -> Result<()> {
        if self.semaphore.give_back(self.kind, self.permits) {
            self.change = None; // a waiter of this client has them
            return Ok(());
        }
        let change = self.change.as_mut().expect("it is there until the result");
        let result = self.semaphore.make(change).await;
        self.change = None;
        match result?.code {
            Code::Granted => Ok(()),
            Code::Gone => Err(Error::lost(self.semaphore.name(), Lost::Removed).of(About::Permits)),
            _ => Err(self.semaphore.conflict().of(About::Permits)),
        }
    }

    pub(crate) async fn release_after_work(self) {
        let semaphore = self.semaphore.clone();
        if let Err(error) = self.release().await {
            tracing::warn!(target: "leasehold::lock", name = semaphore.name(), %error, "permits were not released after the work");
        }
    }
}

impl Drop for OwedPermits {
    fn drop(&mut self) {
        if let Some(change) = self.change.take() {
            self.semaphore.make_in_background(change);
        }
    }
}
