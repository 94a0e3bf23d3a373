//! The keys that are there when all is over.

use super::{History, Kind, Violation, violation};

/// A key that was left, and how many milliseconds it has before it goes by itself.
#[derive(Debug, Clone)]
pub(crate) struct Left {
    pub(crate) key: String,
    pub(crate) kind: &'static str,
    pub(crate) time: Option<u64>,
}

/// What counts tokens must stay.
pub(crate) const TOKENS: &str = "tokens";

impl History {
    /// Keys that nobody will ever delete.
    pub(super) fn left_for_ever(&self) -> Vec<Violation> {
        let stays = |left: &&Left| left.time.is_none() && left.kind != TOKENS;
        let say = |left: &Left| violation(Kind::Leftover, &left.key, format!("a key ({}) without an end", left.kind));
        self.keys.iter().filter(stays).map(say).collect()
    }
}
