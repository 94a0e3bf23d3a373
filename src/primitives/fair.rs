//! The fair lock: Redisson's `RFairLock`, byte for byte in Redis. Those who wait stand in a line of the server's.

use super::handle::{ActsFor, Handle, exclusive, settings};
use crate::{
    client::Client,
    engine::{ExtraKey, Guard, Kind, KindScript, Rules, Waits},
    error::Result,
    redis::{Code, LOCK_CHANNEL},
};

const QUEUE: ExtraKey = ExtraKey::Prefixed("redisson_lock_queue");
const PLACES: ExtraKey = ExtraKey::Prefixed("redisson_lock_timeout");

static FAIR: Kind = Kind {
    channel: LOCK_CHANNEL,
    acquire: script!("lock/holder.lua", "fair/queue.lua", "fair/acquire.lua"; QUEUE, PLACES),
    release: script!("lock/rest.lua", "fair/queue.lua", "fair/release.lua"; QUEUE, PLACES),
    renew: script!("lock/renew.lua"),
    hand_over: None,
    inspect: script!("lock/holder.lua", "lock/inspect.lua"),
    force_unlock: script!("fair/queue.lua", "fair/force_unlock.lua"; QUEUE, PLACES),
    beside: None,
    barred_by: None,
    rules: Rules { waits: Waits::InLine, passes_on: false, ..Rules::PLAIN },
};

static WAITERS: KindScript = script!("fair/waiters.lua"; QUEUE);

impl Client {
    /// The fair lock of this name: first come, first served, whatever machine asks. Sends nothing; a name that cannot be used is
    /// reported by the first call.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # fn main() { run(async |client| {
    /// client.fair_lock("printer").lock().await?.protect(async { /* print */ }).await?;
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> FairLock {
        FairLock(Handle::new(self, name, ActsFor::Current))
    }
}

/// A [`Lock`](crate::Lock) that is had in the order in which it was asked for, by all clients and JVMs together.
///
/// Those who wait have a place in a line on the server. One that leaves, its call dropped or its time over, leaves the line at once.
/// One that died keeps its place until it is its turn, and then costs the others five seconds. `try_lock` does not pass those
/// who wait.
///
/// It costs more than a [`Lock`](crate::Lock): every waiter asks for itself, has a subscription of its own, and looks every five
/// seconds; the lock does not go from task to task of one client without the server. Where the order does not matter, a `Lock`
/// serves the processes in turn, too, and the tasks of one process in order.
///
/// Needs Redis 6.0.6 or newer.
#[derive(Clone)]
pub struct FairLock(Handle);

settings!(FairLock);
exclusive!(FairLock -> Guard, FAIR, Ok);

impl FairLock {
    /// Who waits: the hold ids, the next first. That of one who died is among them until it is passed over.
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
        let (answer, _) = self.0.tell("waiters", (&FAIR, &WAITERS), ("", ""), self.0.engine.outage_ends()).await?;
        match (answer.code, answer.words()) {
            (Code::Free, _) => Ok(Vec::new()),
            (Code::Held, Some([ids])) => Ok(ids.lines().map(str::to_owned).collect()),
            _ => Err(self.0.conflict()),
        }
    }
}
