//! The plain semaphore: Redisson's `RSemaphore`, byte for byte in Redis. A bare counter: the server knows no holders.

use std::time::Duration;

use super::{handle::Handle, methods::named, owed::OwedPermits};
use crate::{
    client::Client,
    error::{About, Error, Result},
    kind::{ExtraKey, Kind, KindScript, Rules, Waits},
    redis::{Answer, ChannelName, Code},
    request::WaitLimit,
    stats::KindLabel,
};

const RECEIPT: ExtraKey = ExtraKey::OfRequest("leasehold_receipt");
static CHANGE: KindScript =
    script!("latch/latch.lua", "plain_semaphore/receipt.lua", "plain_semaphore/change.lua"; RECEIPT);

/// Its callers keep what they acquire. The machine knows a hold only until then.
static PLAIN: Kind = Kind {
    channel: ChannelName::Prefixed("redisson_sc"),
    acquire: script!("latch/latch.lua", "plain_semaphore/receipt.lua", "plain_semaphore/acquire.lua"; RECEIPT),
    release: script!("latch/latch.lua", "plain_semaphore/receipt.lua", "plain_semaphore/release.lua"; RECEIPT),
    renew: script!("plain_semaphore/renew.lua"; RECEIPT),
    hand_over: None,
    inspect: script!("latch/latch.lua", "plain_semaphore/available.lua"),
    force_unlock: script!("latch/latch.lua", "plain_semaphore/available.lua"),
    beside: None,
    barred_by: None,
    rules: Rules {
        label: KindLabel::PlainSemaphore,
        shared: true,
        waits: Waits::ToKeep,
        passes_on: false,
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

/// A plain semaphore by name. **If a process dies, the permits that it has are lost forever**, until [`add_permits`](PlainSemaphore::add_permits)
/// replaces them: in Redis it is a number and nothing else, as Redisson's `RSemaphore`. Use it to share a semaphore with such JVMs. Without
/// them, [`Semaphore`](crate::Semaphore) is the better one: its permits have a lease.
///
/// * **Nobody owns a permit.** [`acquire`](PlainSemaphore::acquire) subtracts from the number, and [`release`](PlainSemaphore::release)
///   adds to it, in any task and any process. There is no guard: release each permit once. [`with`](PlainSemaphore::with) does that.
/// * **All or none**, in the order of the calls within one client, as with [`Semaphore`](crate::Semaphore). Other clients and JVMs may pass
///   a waiter: one that wants many permits may wait long behind others that want few.
/// * **While it does not exist**, calls wait. [`try_set_permits`](PlainSemaphore::try_set_permits) creates it.
/// * **Each request runs once**, even if its reply was lost and the client sends it again. For that it leaves a key of leasehold's own, a
///   receipt, for 90 s by default: see [`guide::operations`](crate::guide::operations).
///
/// # Errors
///
/// [`Conflict`](crate::Error::Conflict) if the key is not a number. [`Unavailable`](crate::Error::Unavailable) if the server does not
/// reply for [`outage_timeout`](crate::Builder::outage_timeout). After any error, a change was made once or not at all. If a call to acquire permits
/// got them without a reply, the client returns them in the background; it cannot if the server stays unreachable for longer than a receipt
/// lasts, and then they are lost. [`InvalidConfig`](crate::Error::InvalidConfig) if a call wants no permits, or acquires more than 10,000.
/// Others as [`Error`](crate::Error) says.
///
/// # Cancel safety
///
/// If you drop the future of a call that acquires permits, it leaves nothing behind: no permits, and no place in the queue. A
/// [`release`](PlainSemaphore::release) that has begun goes on in the background. Another change was made once or not at all. Do not keep a
/// future that acquires permits without polling it: see [`Lock::lock`](crate::Lock::lock).
#[derive(Clone)]
#[must_use = "this only names a semaphore: call `.acquire(n).await?` or another method on it"]
pub struct PlainSemaphore(Handle);

named!(PlainSemaphore);

#[allow(clippy::missing_errors_doc, reason = "they are those of the type")]
impl PlainSemaphore {
    /// Creates the semaphore with so many permits; false if there is one already.
    pub async fn try_set_permits(&self, n: u32) -> Result<bool> {
        let answer = self.0.change_by("try_set_permits", (&PLAIN, &CHANGE), i64::from(n), "new").await?;
        self.number(&answer).map(|created| created.is_some())
    }

    /// Adds so many permits, or removes them if `n` is negative. Without a semaphore it creates one. `available` may then be below zero.
    pub async fn add_permits(&self, n: i64) -> Result<()> {
        let answer = self.0.change_by("add_permits", (&PLAIN, &CHANGE), n, "more").await?;
        self.number(&answer).map(|_added| ())
    }

    /// The number of free permits: 0 if there is no semaphore.
    pub async fn available(&self) -> Result<i64> {
        let give_up = self.0.engine.outage_ends();
        let answer = self.0.tell("available", (&PLAIN, &PLAIN.inspect), ("", ""), give_up).await?;
        self.number(&answer).map(Option::unwrap_or_default)
    }

    /// Acquires all permits that are free, and returns their number.
    pub async fn drain(&self) -> Result<u64> {
        let answer = self.0.change_by("drain", (&PLAIN, &CHANGE), 0, "all").await?;
        Ok(self.number(&answer)?.and_then(|free| u64::try_from(free).ok()).unwrap_or_default())
    }

    /// The number in the reply; `None` if there is none.
    fn number(&self, answer: &Answer) -> Result<Option<i64>> {
        match answer.code {
            Code::Granted | Code::Held | Code::Free => {
                Ok(answer.words().and_then(|[number]: [&str; 1]| number.parse().ok()))
            }
            _ => Err(self.0.conflict().of(About::Permits)),
        }
    }

    /// Acquires `n` permits; waits until so many are free at once.
    pub async fn acquire(&self, n: u32) -> Result<()> {
        self.take(n, "acquire", WaitLimit::Forever).await.map(|_acquired| ())
    }

    /// Makes one attempt; false if fewer than `n` permits are free, or if others of this client wait.
    pub async fn try_acquire(&self, n: u32) -> Result<bool> {
        self.take(n, "try_acquire", WaitLimit::Once).await
    }

    /// Waits for `n` permits, but for no longer than `limit`; then false. As [`Lock::try_lock_for`](crate::Lock::try_lock_for), it makes a
    /// last attempt at the end.
    pub async fn try_acquire_for(&self, n: u32, limit: Duration) -> Result<bool> {
        self.take(n, "try_acquire_for", WaitLimit::of(limit)).await
    }

    async fn take(&self, n: u32, what: &'static str, limit: WaitLimit) -> Result<bool> {
        self.0.keep_permits(&PLAIN, n, what, limit).await
    }

    /// Releases `n` permits, which any task or process may have acquired. If the first waiter of this client wants as many, it may acquire them
    /// without a request, for 2 ms in a row at most. Once this has begun, it goes on in the background if you drop the future.
    ///
    /// # Errors
    ///
    /// A release in the background that fails is logged, and its permits are lost.
    ///
    /// [`Lost`](crate::Error::Lost) if the server says that there is no semaphore, because it was deleted: unlike Redisson, this does not
    /// create one. Others as for the type.
    pub async fn release(&self, n: u32) -> Result<()> {
        self.owed(n)?.release().await
    }

    /// The same as `acquire`. The permits are released when the caller drops the result.
    pub(crate) async fn acquire_owed(&self, n: u32) -> Result<OwedPermits> {
        self.acquire(n).await?;
        self.owed(n)
    }

    fn owed(&self, n: u32) -> Result<OwedPermits> {
        if n == 0 {
            return Err(Error::config("permits", "it must be greater than zero"));
        }
        let change = self.0.plan("release", (&PLAIN, &CHANGE), i64::from(n), "back")?;
        Ok(OwedPermits::new(&self.0, &PLAIN, n, change))
    }

    /// Acquires `n` permits, runs `work`, and releases them. If you drop the future, or if `work` panics, the client releases them in the
    /// background, and [`Client::close`] waits for that. The value of completed work is returned, even if the release then fails; the client
    /// logs that.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let downloads = client.plain_semaphore("downloads");
    /// # downloads.try_set_permits(10).await?;
    /// let page = downloads.with(1, async || "page").await?;
    /// # assert_eq!(page, "page");
    /// # Ok(()) }) }
    /// ```
    pub async fn with<T, W: Future<Output = T>>(&self, n: u32, work: impl FnOnce() -> W) -> Result<T> {
        let owed = self.acquire_owed(n).await?;
        let value = work().await;
        owed.release_after_work().await;
        Ok(value)
    }
}
