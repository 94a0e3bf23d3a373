//! Whose time ends at about the same moment: thousands of tasks that wake at once take long until they have run, and the
//! answer that one of them waits for takes as long to be seen.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::sync::{std, tokio};

/// About the same moment: in the same of these, or in one beside it.
const MOMENT: Duration = Duration::from_millis(100);

/// Waiters with a time limit, by the moment at which it ends.
#[derive(Debug)]
pub(crate) struct Crowd {
    since: Instant,
    ends: Mutex<HashMap<u128, u32>>,
}

/// One of them, until it is dropped.
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

    /// How many of them end at about that moment.
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
