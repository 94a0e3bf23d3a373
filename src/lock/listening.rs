//! Whether a message can wake a waiter, and how long it sleeps between two requests.

use std::time::Duration;

/// The longest sleep. It is the cost of a lost message.
const LONGEST: Duration = Duration::from_secs(5);
/// The longest sleep of the next waiters in a queue on the server, which notice that the one before them does not come.
const OF_NEXT: Duration = Duration::from_millis(2_500);
/// The longest sleep with a mark on the server, which must not expire.
const WITH_MARK: Duration = Duration::from_secs(1);
/// The longest sleep while no message can arrive.
const WITHOUT_MESSAGES: Duration = Duration::from_millis(200);
/// The first sleep if no message is ever published. Each is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Listening {
    Off,
    /// No message can arrive yet, and this many requests have found the lock held.
    Requested(u8),
    On,
}

impl Listening {
    /// The longest sleep of the first waiter in the queue of this process.
    pub(crate) fn nap(self, has_mark: bool, publishes: bool) -> Duration {
        match self {
            Listening::On if has_mark => WITH_MARK,
            Listening::On => LONGEST,
            Listening::Off | Listening::Requested(_) if publishes => WITHOUT_MESSAGES,
            Listening::Off => FIRST,
            Listening::Requested(looks) => (FIRST * (1 << looks.min(8))).min(WITHOUT_MESSAGES),
        }
    }

    /// The longest sleep of the waiter with this place in a queue on the server, 1 for the next.
    pub(crate) fn nap_at(self, place: u64) -> Duration {
        match self {
            Listening::On if place <= 2 => OF_NEXT,
            Listening::On => LONGEST,
            Listening::Off | Listening::Requested(_) => WITHOUT_MESSAGES,
        }
    }
}

/// The time until the next request makes sense, if this much is left of the lease. The server deletes a key only after the millisecond in
/// which it expires.
pub(crate) fn until_next(left: Option<Duration>, longest: Duration) -> Duration {
    left.map_or(longest, |left| (left + Duration::from_millis(1)).min(longest))
}
