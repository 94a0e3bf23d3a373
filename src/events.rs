//! The events and times that a client counts, and the kinds of locks that they belong to.

use crate::error::{About, Failure, Lost};

/// The kinds of locks in metrics and spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KindLabel {
    Lock,
    Fair,
    Fenced,
    Read,
    Write,
    Latch,
    Semaphore,
    PlainSemaphore,
}

impl KindLabel {
    /// How many there are. The last one of the list above stands here.
    #[cfg(feature = "metrics")]
    pub(crate) const NUMBER: usize = KindLabel::PlainSemaphore as usize + 1;

    pub(crate) fn label(self) -> &'static str {
        match self {
            KindLabel::Lock => "lock",
            KindLabel::Fair => "fair",
            KindLabel::Fenced => "fenced",
            KindLabel::Read => "read",
            KindLabel::Write => "write",
            KindLabel::Latch => "latch",
            KindLabel::Semaphore => "semaphore",
            KindLabel::PlainSemaphore => "plain_semaphore",
        }
    }

    /// What errors say that they are about.
    pub(crate) fn about(self) -> About {
        match self {
            KindLabel::Semaphore | KindLabel::PlainSemaphore => About::Permits,
            KindLabel::Latch => About::Latch,
            KindLabel::Lock | KindLabel::Fair | KindLabel::Fenced | KindLabel::Read | KindLabel::Write => About::Lock,
        }
    }
}

/// How an outermost hold was got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcquiredBy {
    FirstTry,
    Woken,
    HandedOver,
    Timer,
}

/// The lock that an event is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) kind: KindLabel,
    /// Without the client's prefix.
    pub(crate) name: &'a str,
}

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockEvent {
    Acquired(AcquiredBy),
    Reentered,
    Passed,
    Released,
    Lost(Lost),
    Failed(Failure),
    Renewed,
    Refused,
}

/// What goes up and down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockGauge {
    Holds,
    Waiting,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockTime {
    Wait,
    Hold,
}
