//! A client whose replies come later than those of the others gets its turns, too.

use super::{History, Hold, Kind, Violation, violation};

/// Every answer to a client came later between two moments, and nothing else was wrong.
#[derive(Debug, Clone)]
pub(crate) struct Far {
    pub(crate) client: String,
    pub(crate) since: u64,
    pub(crate) until: u64,
}

/// So often the others may acquire the lock while one client waits without a turn.
const TURNS: usize = 100;

impl History {
    pub(super) fn starved(&self, name: &str, holds: &[Hold]) -> Vec<Violation> {
        let mut found = Vec::new();
        for Far { client, since, until } in &self.far {
            let in_time = |hold: &&Hold| (*since..*until).contains(&hold.granted);
            let own = holds.iter().filter(in_time).filter(|hold| hold.client == *client).count();
            let others = holds.iter().filter(in_time).filter(|hold| hold.client != *client).count();
            let waits =
                |wait: &super::idle::Wait| wait.client == *client && wait.since < *since && wait.until >= *until;
            if own == 0 && others >= TURNS && self.waits(name).iter().any(waits) {
                let details = format!("{client} waited from {since} to {until}, and others acquired it {others} times");
                found.push(violation(Kind::Starved, name, details));
            }
        }
        found
    }
}
