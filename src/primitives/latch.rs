//! The count-down latch: Redisson's `RCountDownLatch`, byte for byte in Redis. Nothing is held: its waiters pass when the count is zero.

use std::time::Duration;

use super::{handle::Handle, methods::named};
use crate::{
    client::Client,
    error::{About, Result},
    events::KindLabel,
    kind::{ExtraKey, Kind, KindScript, Rules},
    lock::{self, Waits},
    redis::{Answer, ChannelName, Code},
    request::WaitLimit,
};

const RECEIPT: ExtraKey = ExtraKey::OfRequest("leasehold_receipt");
static SET: KindScript = script!("receipt.lua", "latch/latch.lua", "latch/set.lua"; RECEIPT);
static COUNT_DOWN: KindScript = script!("receipt.lua", "latch/latch.lua", "latch/count_down.lua"; RECEIPT);
static DELETE: KindScript = script!("receipt.lua", "latch/latch.lua", "latch/delete.lua"; RECEIPT);

/// Waiters only look, so no request of the state machine does anything else.
static LATCH: Kind = Kind {
    channel: ChannelName::Wrapped("redisson_countdownlatch__channel__"),
    acquire: script!("latch/latch.lua", "latch/look.lua"),
    release: script!("latch/latch.lua", "latch/look.lua"),
    renew: script!("latch/latch.lua", "latch/look.lua"),
    hand_over: None,
    inspect: script!("latch/latch.lua", "latch/look.lua"),
    force_unlock: script!("latch/latch.lua", "latch/look.lua"),
    beside: None,
    barred_by: None,
    rules: Rules {
        label: KindLabel::Latch,
        machine: lock::Rules { waits: Waits::ToPass, passes_on: false, sure: None },
        ..Rules::PLAIN
    },
};

impl Client {
    /// The count-down latch of this name: tasks on all machines wait until others have counted it down to zero. Sends nothing; the first
    /// call reports a name that cannot be used. In a cluster, neither the name nor the prefix may have a `{tag}`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let ready = client.latch("import:ready");
    /// ready.try_set_count(2).await?; // two parts
    /// assert_eq!(ready.count_down().await?, 1); // each part, when it is done
    /// assert_eq!(ready.count_down().await?, 0);
    /// ready.wait().await?; // everywhere: returns once both have counted down
    /// # Ok(()) }) }
    /// ```
    pub fn latch(&self, name: &str) -> Latch {
        Latch(Handle::new(self, name).non_reentrant().with_channel_of(&LATCH))
    }
}

/// A count-down latch by name. [`try_set_count`](Latch::try_set_count) creates it, and each [`count_down`](Latch::count_down) lowers its
/// count by one. At zero the server deletes it, and all waiters pass, on all machines. Then it can be set again. A latch that does not exist
/// is open: set it before others [`wait`](Latch::wait).
/// Nothing is held, so nothing expires. If a process dies before it counts down, the others wait on: limit the wait, or
/// [`delete`](Latch::delete) the latch. If a reply is lost, the client sends the request again, and it counts once.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use std::time::Duration;
///
/// let ready = client.latch("import:ready");
/// ready.try_set_count(1).await?;
/// assert!(!ready.wait_for(Duration::from_millis(10)).await?);
/// ready.count_down().await?;
/// ready.wait().await?; // returns at once
/// # Ok(()) }) }
/// ```
///
/// # Errors
///
/// [`Conflict`](crate::Error::Conflict) if the key is not a latch. A count of 2^53 or more is a conflict, too: scripts do not have such numbers
/// exactly. [`Unavailable`](crate::Error::Unavailable) if the server does not reply for [`outage_timeout`](crate::Builder::outage_timeout),
/// in calls with a limit sooner, as [`Lock::try_lock_for`](crate::Lock::try_lock_for) says. After any error, a change was made once or not at
/// all. Others as [`Error`](crate::Error) says.
///
/// # Cancel safety
///
/// If you drop the future of a change, it was made once or not at all. Dropping another future leaves nothing behind.
#[derive(Clone)]
#[must_use = "this only names a latch: call `.wait().await?` or another method on it"]
pub struct Latch(Handle);

named!(Latch);

impl Latch {
    /// Creates the latch with this count; false if there is one already. Count 0 creates nothing: a latch that does not exist is open.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn try_set_count(&self, n: u32) -> Result<bool> {
        let answer = self.0.change("try_set_count", (&LATCH, &SET), n).await?;
        self.number(&answer, Code::Granted, Code::Held).map(|set| set.is_some())
    }

    /// Counts down by one, and returns the count that is left. Without a latch it changes nothing, and returns 0.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn count_down(&self) -> Result<u64> {
        let answer = self.0.change("count_down", (&LATCH, &COUNT_DOWN), 0).await?;
        self.number(&answer, Code::Released, Code::Gone).map(Option::unwrap_or_default)
    }

    /// The count: 0 if there is no latch.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn count(&self) -> Result<u64> {
        let answer = self.0.tell("count", (&LATCH, &LATCH.inspect), ("", ""), self.0.engine.outage_ends()).await?;
        self.number(&answer, Code::Held, Code::Free).map(Option::unwrap_or_default)
    }

    /// Waits until the count is zero. All waiters of a client share one subscription, and one request after each message.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn wait(&self) -> Result<()> {
        self.0.pass(&LATCH, "wait", WaitLimit::Forever).await.map(|_passed| ())
    }

    /// The same, but for no longer than `limit`; false if the count was above zero all that time. It looks once more when `limit` is over,
    /// so it may return later by about a round trip.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn wait_for(&self, limit: Duration) -> Result<bool> {
        self.0.pass(&LATCH, "wait_for", WaitLimit::of(limit)).await
    }

    /// Deletes the latch; true if there was one. All waiters of leasehold pass. Those of Redisson wait on, as after its own `delete`.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn delete(&self) -> Result<bool> {
        let answer = self.0.change("delete", (&LATCH, &DELETE), 0).await?;
        self.number(&answer, Code::Released, Code::Gone).map(|deleted| deleted.is_some())
    }

    /// The number after the code `yes`, 0 if there is none; `None` after the code `no`.
    fn number(&self, answer: &Answer, yes: Code, no: Code) -> Result<Option<u64>> {
        match answer.code {
            code if code == yes => Ok(Some(answer.number().unwrap_or_default())),
            code if code == no => Ok(None),
            _ => Err(self.0.conflict().of(About::Latch)),
        }
    }
}
