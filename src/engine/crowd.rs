//! Counts the waiters whose wait limits end at about the same moment. If thousands of tasks wake at once, it takes long until all of
//! them have run; and a task that waits for a reply sees it only that much later.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::sync::{std, tokio};

/// The length of one slot of time. Two limits end at about the same moment if they are in the same slot or in adjacent ones.
const MOMENT: Duration = Duration::from_millis(100);

/// The number of waiters with a wait limit, by the slot in which the limit ends.
#[derive(Debug)]
pub(crate) struct Crowd {
    since: Instant,
    ends: Mutex<HashMap<u128, u32>>,
}

/// One waiter; it counts until this is dropped.
#[derive(Debug)]
pub(crate) struct OneOfCrowd<'a> {
    crowd: &'a Crowd,
    moment: u128,
}

impl Crowd {
    pub(crate) fn new() -> Crowd {
        Crowd { since: Instant::now(), ends: Mutex::default() }
    }

    pub(crate) fn join(&self, end: Instant) -> OneOfCrowd<'_> {
        let moment = self.moment(end);
        *self.ends().entry(moment).or_default() += 1;
        OneOfCrowd { crowd: self, moment }
    }

    /// The number of waiters whose limits end at about that moment.
    pub(crate) fn at(&self, end: Instant) -> u32 {
        let moment = self.moment(end);
        let ends = self.ends();
        (moment.saturating_sub(1)..=moment + 1).filter_map(|moment| ends.get(&moment)).sum()
    }

    fn moment(&self, end: Instant) -> u128 {
        end.saturating_duration_since(self.since).as_millis() / MOMENT.as_millis()
    }

    fn ends(&self) -> MutexGuard<'_, HashMap<u128, u32>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OneOfCrowd<'_> {
    fn drop(&mut self) {
        let mut ends = self.crowd.ends();
        if let Some(count) = ends.get_mut(&self.moment) {
            *count -= 1;
            if *count == 0 {
                ends.remove(&self.moment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_of_about_the_same_moment_count() {
        let crowd = Crowd::new();
        let end = Instant::now() + Duration::from_secs(5);
        let near: Vec<_> = (0..10).map(|n| crowd.join(end + Duration::from_millis(n))).collect();
        let _far = crowd.join(end + Duration::from_secs(60));
        assert_eq!((crowd.at(end), crowd.at(end + Duration::from_secs(60)), crowd.at(Instant::now())), (10, 1, 0));
        drop(near);
        assert_eq!(crowd.at(end), 0);
        assert_eq!(crowd.ends().len(), 1);
    }
}
