//! Limits the requests that tasks of the client have under way, for each connection on its own: a server that does not reply must not
//! delay the requests to others.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::Semaphore;

use super::calls::Cause;
use crate::{
    redis::{Fault, MOST_UNDER_WAY},
    sync::{dashmap, std, tokio},
};

/// Each request under way needs a few KiB; one that waits needs a tenth of that.
const AT_ONCE: usize = 1024;
/// The same for names whose last request failed by a reply, for example a refusal: thousands that are refused again and again must not delay
/// others. A name whose last request had no reply stays with the others: after an outage, all leases must be renewed as fast as possible.
const IN_TROUBLE_AT_ONCE: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Usual,
    InTrouble,
}

impl Condition {
    /// The condition of a name by the failure of its last request.
    pub(super) fn after(failure: Option<&Cause>) -> Condition {
        match failure {
            None | Some(Cause::Fault(Fault::Unknown(_) | Fault::NotSent(_))) => Condition::Usual,
            Some(_) => Condition::InTrouble,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Lane {
    Usual,
    InTrouble,
    /// Renewals are always gathered, so each needs little. The connection limits those under way by its round trip. The room of this lane
    /// must not be a lower limit: leases expire while renewals wait.
    Renewals,
}

impl Lane {
    fn room(self) -> usize {
        match self {
            Lane::Usual => AT_ONCE,
            Lane::InTrouble => IN_TROUBLE_AT_ONCE,
            Lane::Renewals => MOST_UNDER_WAY,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes(DashMap<(usize, Lane), Arc<Semaphore>>);

impl Lanes {
    pub(super) fn of(&self, connection: usize, condition: Condition) -> Arc<Semaphore> {
        self.lane(connection, condition, Lane::Usual)
    }

    pub(super) fn of_renewals(&self, connection: usize, condition: Condition) -> Arc<Semaphore> {
        self.lane(connection, condition, Lane::Renewals)
    }

    fn lane(&self, connection: usize, condition: Condition, usual: Lane) -> Arc<Semaphore> {
        let lane = match condition {
            Condition::Usual => usual,
            Condition::InTrouble => Lane::InTrouble,
        };
        Arc::clone(&self.0.entry((connection, lane)).or_insert_with(|| Arc::new(Semaphore::new(lane.room()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_reply_is_no_trouble() {
        let after = |fault| Condition::after(Some(&Cause::Fault(fault)));
        assert_eq!(Condition::after(None), Condition::Usual);
        for silent in [Fault::unknown("no reply"), Fault::not_sent("no connection")] {
            assert_eq!(after(silent), Condition::Usual);
        }
        for refused in ["NOPERM", "LOADING", "OOM command not allowed", "ERR"].map(Fault::said) {
            assert_eq!(after(refused), Condition::InTrouble);
        }
        assert_eq!(Condition::after(Some(&Cause::Replicas(0))), Condition::InTrouble);
    }
}
