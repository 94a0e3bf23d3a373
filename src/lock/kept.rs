//! Permits that callers keep, so that the client has nothing of them anymore. But for a while the server knows by which requests they were
//! acquired. So when a caller returns as many, they can pass to the next waiter: if that one never looks, the client returns what such a
//! request took. Whose permits they are makes no difference, because nobody owns them.

use std::collections::VecDeque;

use super::{server_hold::ServerHold, types::Moment};

/// The most ids that are remembered. Without one, permits are released and acquired by requests.
const MOST: usize = 64;

/// Locks have none, and need no memory for them.
#[allow(clippy::box_collection, reason = "a deque alone has four words")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Kept(Option<Box<VecDeque<ServerHold>>>);

impl Kept {
    pub(crate) fn put(&mut self, server: ServerHold, now: Moment) {
        let all = self.0.get_or_insert_default();
        all.retain(|one| one.ends() > now);
        all.truncate(MOST - 1);
        all.push_front(server);
    }

    /// The newest id of so many permits, if the server knows it for longer than until then.
    pub(crate) fn take(&mut self, permits: u16, until: Moment) -> Option<ServerHold> {
        let all = self.0.as_mut()?;
        let at = all.iter().position(|one| one.count == u32::from(permits) && one.ends() > until)?;
        all.remove(at)
    }
}
