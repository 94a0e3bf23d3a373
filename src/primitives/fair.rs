//! The fair lock: Redisson's `RFairLock`, byte for byte in Redis. Its waiters are in a queue on the server.

use super::{
    handle::Handle,
    methods::{exclusive, forcing, settings, working},
};
use crate::{
    client::Client,
    error::Result,
    events::KindLabel,
    guard::Guard,
    kind::{ExtraKey, Kind, KindScript, Numbering, Rules},
    lock::{self, Waits},
    redis::{Code, LOCK_CHANNEL},
};

const QUEUE: ExtraKey = ExtraKey::Prefixed("redisson_lock_queue");
const PLACES: ExtraKey = ExtraKey::Prefixed("redisson_lock_timeout");

static FAIR: Kind = Kind {
    channel: LOCK_CHANNEL,
    acquire: script!("lock/holder.lua", "fair/queue.lua", "fair/acquire.lua"; QUEUE, PLACES),
    release: script!("lock/rest.lua", "fair/queue.lua", "fair/release.lua"; QUEUE, PLACES),
    renew: script!(tracked: "lock/renew.lua"),
    hand_over: None,
    inspect: script!("lock/holder.lua", "lock/ends.lua", "lock/inspect.lua"),
    force_unlock: script!("lock/forced.lua", "lock/ends.lua", "fair/queue.lua", "fair/force_unlock.lua"; QUEUE, PLACES),
    beside: None,
    barred_by: None,
    rules: Rules {
        label: KindLabel::Fair,
        numbering: Numbering::Fair,
        machine: lock::Rules { waits: Waits::InLine, passes_on: false, sure: None },
        ..Rules::PLAIN
    },
};

static WAITERS: KindScript = script!("fair/waiters.lua"; QUEUE);

impl Client {
    /// The fair lock of this name: first in, first out across all machines. Sends nothing; the first call reports a name that
    /// cannot be used.
    ///
    /// One task is one owner and re-enters. For futures that run in one task (branches of `join_all`, requests of one keep-alive
    /// connection) add [`non_reentrant`](FairLock::non_reentrant), or they do not exclude each other.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// client.fair_lock("printer").non_reentrant().with(async || { /* print */ }).await?;
    /// # Ok(()) }) }
    /// ```
    pub fn fair_lock(&self, name: &str) -> FairLock {
        FairLock(Handle::new(self, name))
    }
}

/// A first-in, first-out lock across all clients and JVMs: a [`Lock`](crate::Lock) that is acquired in the order of the requests.
///
/// Every waiter has a place in a queue on the server. If its future is dropped or its wait limit ends, it leaves the queue at once.
/// If its process died, it keeps its place until it is the next; then the others wait five seconds for it. If several waiters of that
/// process are in the queue, the others wait only once, or once for each 4,096 of them. `try_lock` returns `None` while others wait, even
/// if the lock is free at this moment.
///
/// Do not use the names `a` and `{a}` together: as in Redisson, they share one queue, and each waiter for one of them can delay
/// the waiters for the other by five seconds.
///
/// # `FairLock` or `Lock`
///
/// A [`Lock`](crate::Lock) serves the tasks of one client in order, too, but not the clients: each client keeps the lock for about
/// [`handovers`](crate::Builder::handovers) turns, and a client that is farther from the server than the others may wait forever. A
/// `FairLock` serves the waiters of all clients in one order. It costs more: every waiter has its own subscription and sends its own
/// requests, at least one every five seconds, and each turn is a request to the server. Use it if you need the order, or if no client may
/// starve.
///
/// Needs Redis 6.0.6 or newer.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let printer = client.fair_lock("printer").non_reentrant();
/// let guard = printer.lock().await?; // after all that called before, on all machines
/// guard.unlock().await?;
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
#[must_use = "this only names a lock and holds nothing: call `.lock().await?` or `.await?` on it"]
pub struct FairLock(Handle);

settings!(FairLock, "fair_lock");
exclusive!(FairLock, "fair_lock" -> Guard, FAIR, Ok);
working!(FairLock, "fair_lock");
forcing!(FairLock, FAIR);

impl FairLock {
    /// The ids of the waiters, the next one first; each is the [`Guard::id`](crate::Guard::id) that the waiter will have. A waiter whose
    /// process died stays in the list until it is passed over.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// let printer = client.fair_lock("printer");
    /// println!("{} before us", printer.waiters().await?.len());
    /// # assert_eq!(printer.waiters().await?.len(), 0);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn waiters(&self) -> Result<Vec<String>> {
        let answer = self.0.tell("waiters", (&FAIR, &WAITERS), ("", ""), self.0.engine.outage_ends()).await?;
        match (answer.code, answer.words()) {
            (Code::Free, _) => Ok(Vec::new()),
            (Code::Held, Some([ids])) => Ok(ids.lines().map(str::to_owned).collect()),
            _ => Err(self.0.conflict()),
        }
    }
}
