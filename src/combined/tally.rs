//! The rules of a majority as pure functions. `tests/model/quorum.rs` explores them, so this file names nothing else of the crate.

/// Whether so many servers can form a quorum. With an even number, one more server must grant a lock, and none more may fail.
pub(super) fn can_vote(servers: usize) -> bool {
    servers >= 3 && !servers.is_multiple_of(2)
}

/// Whether so many of the servers are more than half of them. Two majorities have a server in common.
pub(super) fn is_majority(some: usize, servers: usize) -> bool {
    some > servers / 2
}

/// The longest time that a majority has, from the time that each server has; nothing for a server without the lock.
pub(super) fn time_of_majority<T: Copy + Default + Ord>(mut times: Vec<T>) -> T {
    times.sort_unstable();
    times.get((times.len().max(1) - 1) / 2).copied().unwrap_or_default()
}

/// The replies of one vote so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Servers that granted the lock.
    pub(super) granted: usize,
    /// Those among them whose lease has not expired since.
    pub(super) certain: usize,
    /// Servers on which another owner holds the lock.
    pub(super) refused: usize,
    /// Servers that returned an error, or did not reply in their time.
    pub(super) failed: usize,
    /// Servers whose reply is still to come.
    pub(super) pending: usize,
}

/// What a vote came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Won,
    /// A majority replied, and cannot grant the lock any more.
    Taken,
    /// A majority failed.
    Unavailable,
    /// The next reply can decide.
    Open,
}

impl Tally {
    fn servers(self) -> usize {
        self.granted + self.refused + self.failed + self.pending
    }

    /// Whether a majority of the servers has replied.
    pub(super) fn has_replies(self) -> bool {
        is_majority(self.granted + self.refused, self.servers())
    }

    pub(super) fn verdict(self) -> Verdict {
        let is_majority = |some| is_majority(some, self.servers());
        if is_majority(self.certain) {
            Verdict::Won
        } else if self.refused > 0 && self.has_replies() && !is_majority(self.certain + self.pending) {
            Verdict::Taken
        } else if is_majority(self.failed) {
            Verdict::Unavailable
        } else {
            Verdict::Open
        }
    }

    /// When there is no more time for replies that are still to come.
    pub(super) fn verdict_at_the_end(self) -> Verdict {
        match self.verdict() {
            Verdict::Open if self.has_replies() => Verdict::Taken,
            Verdict::Open => Verdict::Unavailable,
            verdict => verdict,
        }
    }
}
