//! How many requests may be under way on one connection. A network may be narrow: then more requests would only wait in it, and come too late.
//! It grows and shrinks as the window of TCP does (RFC 5681).

use std::time::Duration;

use tokio::time::Instant;

use crate::sync::tokio;

/// A window shrinks to this part of what was under way.
const SHRINKS: usize = 4;
/// It never shrinks below this: any network carries so many.
const LEAST: usize = 8;
/// Near its threshold it grows by this part of a call that had its reply.
const GROWS: usize = 8;

#[derive(Debug)]
pub(super) struct Window {
    requests: usize,
    most: usize,
    /// Below this it grows by all requests of a call, and else slowly.
    threshold: usize,
    shrank: Option<Instant>,
}

impl Window {
    pub(super) fn new(first: usize, most: usize) -> Window {
        Window { requests: first, most, threshold: most, shrank: None }
    }

    /// The number of requests.
    pub(super) fn get(&self) -> usize {
        self.requests
    }

    /// A call with so many requests had its reply in time.
    pub(super) fn grow(&mut self, requests: usize) {
        let step = if self.requests < self.threshold { requests } else { 1 + requests / GROWS };
        self.requests = (self.requests + step).min(self.most);
    }

    /// Replies take long.
    pub(super) fn limit(&mut self, requests: usize) {
        self.requests = self.requests.min(requests);
    }

    /// A call had no reply in time while so many requests were under way. Those that were sent at the same time have none either, so they count once.
    pub(super) fn shrink(&mut self, under_way: usize, now: Instant, command_timeout: Duration) {
        if self.shrank.is_some_and(|at| now < at + command_timeout) {
            return;
        }
        self.requests = (self.requests.min(under_way) / SHRINKS).max(LEAST);
        self.threshold = self.requests;
        self.shrank = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shrinks_once_for_all_that_were_under_way() {
        let (timeout, now) = (Duration::from_secs(1), Instant::now());
        let mut window = Window::new(400, 10_000);
        window.grow(100);
        assert_eq!(window.get(), 500, "nothing was ever lost");
        [400, 300, 200].iter().for_each(|under_way| window.shrink(*under_way, now, timeout));
        assert_eq!(window.get(), 100);
        window.grow(64);
        assert_eq!(window.get(), 109, "slowly");
        window.shrink(3, now + timeout, timeout);
        assert_eq!(window.get(), LEAST);
        (0..1_000).for_each(|_| window.grow(128));
        assert_eq!(window.get(), 10_000);
        window.limit(384);
        assert_eq!(window.get(), 384);
    }
}
