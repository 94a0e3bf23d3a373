//! The rules of a majority as pure functions. `tests/model/quorum.rs` explores them, so this file names nothing else of the crate.

/// Whether so many servers can form a quorum. With an even number, one more server must grant a lock, and none more may fail.
pub(super) fn can_vote(servers: usize) -> bool {
    servers >= 3 && !servers.is_multiple_of(2)
}

/// Whether so many of the servers are more than half of them. Two majorities have a server in common.
pub(super) fn is_majority(some: usize, servers: usize) -> bool {
    some > servers / 2
}

/// Whether a majority has the lock, and has had it without a break. `since` is when each server that has it granted it; `None` is from the
/// start. `gone` is when each server that lost it was last known to have it: another owner may have acquired it there right after that. So
/// a majority must have had it since then, and a server that granted it later does not stand for both times.
pub(super) fn is_unbroken<T: Copy + PartialOrd>(since: &[Option<T>], gone: &[T], servers: usize) -> bool {
    let had_at = |moment: T| since.iter().filter(|since| since.is_none_or(|granted| granted <= moment)).count();
    is_majority(since.len(), servers) && gone.iter().all(|moment| is_majority(had_at(*moment), servers))
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

#[cfg(test)]
mod tests {
    use super::*;

    const START: u32 = 0;
    const NOW: u32 = 3;

    /// One server since a majority acquired the lock.
    #[derive(Debug, Clone, Copy)]
    enum Had {
        Never,
        Since(Option<u32>),
        Until(u32),
    }

    impl Had {
        fn each() -> impl Iterator<Item = Had> {
            let since = (START..=NOW).map(|moment| Had::Since(Some(moment)));
            let until = (START..=NOW).map(Had::Until);
            [Had::Never, Had::Since(None)].into_iter().chain(since).chain(until)
        }

        fn at(self, moment: u32) -> bool {
            match self {
                Had::Never => false,
                Had::Since(since) => since.is_none_or(|since| since <= moment),
                Had::Until(until) => moment <= until,
            }
        }
    }

    fn is_believed(servers: &[Had]) -> bool {
        let since: Vec<_> =
            servers.iter().filter_map(|had| if let Had::Since(since) = had { Some(*since) } else { None }).collect();
        let gone: Vec<_> =
            servers.iter().filter_map(|had| if let Had::Until(until) = had { Some(*until) } else { None }).collect();
        is_unbroken(&since, &gone, servers.len())
    }

    /// Whatever three servers have done: what is called unbroken was held by a majority at every moment.
    #[test]
    fn what_is_unbroken_was_held_by_a_majority_at_every_moment() {
        let held_at = |servers: &[Had], moment| is_majority(servers.iter().filter(|had| had.at(moment)).count(), 3);
        let all = Had::each().flat_map(|a| Had::each().flat_map(move |b| Had::each().map(move |c| [a, b, c])));
        let (mut unbroken, mut broken) = (0, 0);
        for servers in all.filter(|servers| held_at(servers, START)) {
            if !is_believed(&servers) {
                broken += 1;
                continue;
            }
            unbroken += 1;
            assert!((START..=NOW).all(|moment| held_at(&servers, moment)), "{servers:?}");
        }
        assert!(unbroken > 50 && broken > 50, "{unbroken} and {broken}");
    }
}
