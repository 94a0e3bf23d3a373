//! Whether it pays to look for replies before sleeping. Beside other work for the processors it does not: who looks keeps the server waiting.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::sync::std;

/// So many looks can be in vain after many that were not.
const MOST: i32 = 8;
/// One look in vain weighs as much as so many that were not.
const IN_VAIN: i32 = 2;
/// So many requests go by without a look if most looks were in vain: then the processors have other work.
const PAUSE: i32 = 64;

/// Whether it pays to look: how often it did. Below zero, for so many requests nobody looks.
#[derive(Debug, Default)]
pub(super) struct Payoff(AtomicI32);

impl Payoff {
    pub(super) fn is_good(&self) -> bool {
        let good = self.0.load(Ordering::Relaxed);
        if good < 0 {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        good >= 0
    }

    /// Two may count at once, and one of them in vain: nothing depends on the exact number.
    pub(super) fn note(&self, was_there: bool) {
        let good = self.0.load(Ordering::Relaxed);
        let now = match was_there {
            true => (good + 1).min(MOST),
            false if good < IN_VAIN => -PAUSE,
            false => good - IN_VAIN,
        };
        self.0.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_looks_in_vain_for_long() {
        let payoff = Payoff::default();
        (0..100).for_each(|_| payoff.note(true));
        let looks = (0..6).take_while(|_| payoff.is_good()).map(|_| payoff.note(false)).count();
        assert_eq!(looks, 5, "four in vain, and the one that ends it");
        assert_eq!((0..200).position(|_| payoff.is_good()), Some(63), "one has gone by");
        payoff.note(true);
        assert!(payoff.is_good());
    }
}
