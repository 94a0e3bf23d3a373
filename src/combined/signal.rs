//! Release messages of one lock from several servers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::tally::is_majority;
use crate::{
    error::Result,
    primitives::Lock,
    redis::{Listener, Subscription, spread},
    request::WaitLimit,
    sync::tokio,
};

/// The longest pause between two votes.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// The servers announce one release at slightly different moments. A waiter lets them all do so, but for no longer than about this.
const SETTLE: Duration = Duration::from_millis(2);

/// Subscribed for as long as it lives.
#[derive(Debug)]
pub(super) struct Releases {
    heard: Arc<Heard>,
    _subscriptions: Vec<Subscription>,
}

#[derive(Debug)]
struct Heard {
    /// Which servers have announced a release since the last vote.
    announced: Vec<AtomicBool>,
    notify: Notify,
}

/// The messages of one server.
#[derive(Debug)]
struct ServerListener {
    server: usize,
    heard: Arc<Heard>,
}

impl Releases {
    pub(super) fn of(locks: &[Lock]) -> Result<Releases> {
        let announced = locks.iter().map(|_| AtomicBool::new(false)).collect();
        let heard = Arc::new(Heard { announced, notify: Notify::new() });
        let subscribed = locks.iter().enumerate().map(|(server, lock)| {
            let listener: Arc<dyn Listener> = Arc::new(ServerListener { server, heard: Arc::clone(&heard) });
            lock.listen(listener)
        });
        Ok(Releases { _subscriptions: subscribed.collect::<Result<_>>()?, heard: Arc::clone(&heard) })
    }

    /// Before a vote: releases that are announced from now on may be news to it.
    pub(super) fn forget(&self) {
        self.heard.announced.iter().for_each(|server| server.store(false, Ordering::SeqCst));
    }

    /// Until a release, or for about this pause. Returns the next pause.
    pub(super) async fn wait(&self, limit: WaitLimit, last_vote: Option<Instant>, pause: Duration) -> Duration {
        let next = limit.before(Instant::now() + spread(pause));
        let until = last_vote.map_or(next, |last| next.min(last));
        tokio::select! {
            () = self.heard() => pause,
            () = sleep_until(until) => (pause * 2).min(LAST_PAUSE),
        }
    }

    /// Resolves when a majority of the servers has announced a release since the last vote, and the others had time to. Only a holder releases
    /// the lock on a majority: while another one holds it, a vote that failed is released on the other servers, this one's own too, and
    /// calls nobody.
    async fn heard(&self) {
        self.heard.until(Heard::is_majority).await;
        // A vote right now would find the lock still held on the other servers, and be one of several that split them.
        _ = timeout(spread(SETTLE), self.heard.until(Heard::is_all)).await;
    }
}

impl Heard {
    async fn until(&self, is_true: impl Fn(&Heard) -> bool) {
        while !is_true(self) {
            self.notify.notified().await;
        }
    }

    fn is_all(&self) -> bool {
        self.announced.iter().all(|server| server.load(Ordering::SeqCst))
    }

    fn is_majority(&self) -> bool {
        let announced = self.announced.iter().filter(|server| server.load(Ordering::SeqCst)).count();
        is_majority(announced, self.announced.len())
    }
}

impl Listener for ServerListener {
    fn message(&self, _: &str) {
        self.heard.announced[self.server].store(true, Ordering::SeqCst);
        self.heard.notify.notify_one();
    }

    fn subscribed(&self) {
        self.message(""); // something may have been published before
    }
}
