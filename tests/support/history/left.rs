//! The keys that are on the servers at the end.

use super::{History, Kind, Violation, violation};

/// A key that was left.
#[derive(Debug, Clone)]
pub(crate) struct Left {
    key: String,
    /// What it is for.
    pub(crate) kind: &'static str,
    /// How many milliseconds it has before it expires.
    time: Option<u64>,
}

/// What counts tokens must stay.
const TOKENS: &str = "tokens";

impl Left {
    pub(crate) fn new(key: String, time: Option<u64>) -> Left {
        Left { kind: kind_of(&key), key, time }
    }
}

fn kind_of(key: &str) -> &'static str {
    let kinds = [
        ("redisson_lock_token:", TOKENS),
        ("redisson_lock_queue:", "queue"),
        ("redisson_lock_timeout:", "places in a queue"),
        ("leasehold_rwlock_waits:", "marks of waiting writers"),
        ("leasehold_semaphore_waits:", "marks of waiting requests"),
        ("leasehold_receipt:", "receipts"),
        ("leasehold_forced:", "calls that forced a lock open"),
    ];
    let by_start = kinds.iter().find(|(start, _)| key.starts_with(start)).map(|(_, kind)| *kind);
    by_start.unwrap_or(if key.contains(":rwlock_timeout:") { "lease of a reader" } else { "lock" })
}

impl History {
    /// Keys without an expiry time.
    pub(super) fn left_for_ever(&self) -> Vec<Violation> {
        // A semaphore must stay; and permits that nobody looks for after their end do, too.
        let is_semaphore =
            |key: &str| self.rooms.keys().any(|name| key == name || key == format!("{{{name}}}:timeout"));
        let stays = |left: &&Left| left.time.is_none() && left.kind != TOKENS && !is_semaphore(&left.key);
        let say =
            |left: &Left| violation(Kind::Leftover, &left.key, format!("a key ({}) without an expiry time", left.kind));
        self.keys.iter().filter(stays).map(say).collect()
    }
}
