//! The plain semaphore: Redisson's `RSemaphore`, byte for byte in Redis. A bare counter: the server knows no holders.

use super::{
    handle::Handle,
    methods::{acquiring, named},
};
use crate::{
    client::Client,
    error::Result,
    events::KindLabel,
    kind::{ExtraKey, Kind, KindScript, Rules},
    lock::{self, Waits},
    redis::ChannelName,
    request::WaitLimit,
};

const RECEIPT: ExtraKey = ExtraKey::OfRequest("leasehold_receipt");
pub(super) static CHANGE: KindScript =
    script!("latch/latch.lua", "plain_semaphore/receipt.lua", "plain_semaphore/change.lua"; RECEIPT);

/// Its callers keep what they acquire. The machine knows a hold only until then. A confirmation never finds it: after a reconnection, what no
/// caller has seen is released.
pub(super) static PLAIN: Kind = Kind {
    channel: ChannelName::Prefixed("redisson_sc"),
    acquire: script!("latch/latch.lua", "plain_semaphore/receipt.lua", "plain_semaphore/acquire.lua"; RECEIPT),
    release: script!("latch/latch.lua", "plain_semaphore/receipt.lua", "plain_semaphore/release.lua"; RECEIPT),
    renew: script!("latch/latch.lua", "plain_semaphore/available.lua"),
    hand_over: None,
    inspect: script!("latch/latch.lua", "plain_semaphore/available.lua"),
    force_unlock: script!("latch/latch.lua", "plain_semaphore/available.lua"),
    beside: None,
    barred_by: None,
    rules: Rules {
        label: KindLabel::PlainSemaphore,
        shared: true,
        machine: lock::Rules { waits: Waits::ToKeep, passes_on: false, sure: None },
        ..Rules::PLAIN
    },
};

impl Client {
    /// The plain semaphore of this name, to share with JVMs that use `RSemaphore`. **If a process dies, its permits are lost forever**: if
    /// you need no such JVM, use [`semaphore`](Client::semaphore). Sends nothing; the first call reports a name that cannot be used.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let downloads = client.plain_semaphore("downloads"); // in the JVM: redisson.getSemaphore("downloads")
    /// downloads.try_set_permits(10).await?;
    /// downloads.acquire(1).await?; // waits while ten downloads run, on all machines
    /// assert_eq!(downloads.available().await?, 9);
    /// downloads.release(1).await?; // nothing releases it by itself
    /// # Ok(()) }) }
    /// ```
    pub fn plain_semaphore(&self, name: &str) -> PlainSemaphore {
        PlainSemaphore(Handle::new(self, name).non_reentrant())
    }
}

/// A plain semaphore by name. **If a process dies, the permits that it has are lost forever**, until
/// [`add_permits`](PlainSemaphore::add_permits) replaces them: in Redis it is a number and nothing else, as Redisson's `RSemaphore`. Use it
/// to share a semaphore with such JVMs. Without them, [`Semaphore`](crate::Semaphore) is the better one: its permits have a lease.
///
/// * **Nobody owns a permit.** [`acquire`](PlainSemaphore::acquire) subtracts from the number, and [`release`](PlainSemaphore::release)
///   adds to it, in any task and any process. There is no guard: release each permit once. [`with`](PlainSemaphore::with) does that.
/// * **All or none**, in the order of the calls within one client, as with [`Semaphore`](crate::Semaphore). Other clients and JVMs may pass
///   a waiter: one that wants many permits may wait long behind others that want few.
/// * **While it does not exist**, calls wait. [`try_set_permits`](PlainSemaphore::try_set_permits) creates it.
/// * **Each request runs once**, even if its reply was lost and the client sends it again. For that it leaves a key of leasehold's own, a
///   receipt, for 90 s by default: see [`guide::operations`](crate::guide::operations).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let downloads = client.plain_semaphore("downloads");
/// downloads.try_set_permits(2).await?;
/// downloads.acquire(2).await?; // no guard: nothing releases them by itself
/// assert!(!downloads.try_acquire(1).await?);
/// downloads.release(2).await?;
/// # Ok(()) }) }
/// ```
///
/// # Errors
///
/// [`Conflict`](crate::Error::Conflict) if the key is not a number. [`Unavailable`](crate::Error::Unavailable) if the server does not
/// reply for [`outage_timeout`](crate::Builder::outage_timeout), in calls with a limit sooner, as
/// [`Lock::try_lock_for`](crate::Lock::try_lock_for) says. After any error, a change was made once or not at all. If a call to acquire
/// permits got them without a reply, the client returns them in the background; it cannot if the server stays unreachable for longer than a
/// receipt lasts, and then they are lost. [`InvalidConfig`](crate::Error::InvalidConfig) if a call wants no permits, or acquires more than
/// 10,000. Others as [`Error`](crate::Error) says.
///
/// # Cancel safety
///
/// If you drop the future of a call that acquires permits, it leaves nothing behind: no permits, and no place in the queue. A
/// [`release`](PlainSemaphore::release) that has begun goes on in the background. Another change was made once or not at all; if
/// that was [`drain`](PlainSemaphore::drain), the permits may be gone, and the client cannot tell how many. Do not keep a future that
/// acquires permits without polling it: see [`Lock::lock`](crate::Lock::lock).
#[derive(Clone)]
#[must_use = "this only names a semaphore: call `.acquire(n).await?` or another method on it"]
pub struct PlainSemaphore(pub(super) Handle);

named!(PlainSemaphore);
acquiring!(PlainSemaphore -> (), bool; "false", "others of this client", |_acquired| ());

impl PlainSemaphore {
    async fn take(&self, n: u32, what: &'static str, limit: WaitLimit) -> Result<bool> {
        self.0.keep_permits(&PLAIN, n, what, limit).await
    }
}
