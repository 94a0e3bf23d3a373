//! What is known of one queue: who waits, who was last seen to have the lock, whether the server answers.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{hold::Hold, tenure::Tenure, waiter::Waiter};
use crate::{
    clock::Moment,
    error::Error,
    sync::{std, tokio},
};

/// A queue whose head has not asked for so long is told to: a message may have been lost, and the alarm with it.
const OVERDUE: Duration = Duration::from_secs(4);
/// Those inspected in a queue where something is due: with the head, those that would be next to keep the others waiting.
const INSPECTED: usize = 32;
/// The same where the head seems not to be polled: there may be many like it, and they must not add up.
const SUSPECTED: usize = 4096;
/// For how long a lock stays in a process beyond its turns if nobody else was told of its last release: who comes to wait
/// meanwhile is told of the next. Measured, see docs/benchmarks.md.
const LONGEST_ROW: Duration = Duration::from_millis(10);
/// For how long it is remembered whether others want the lock.
const REMEMBERED: Duration = Duration::from_secs(1);
/// After this, nobody has asked on in an outage: it may be over.
const STALE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct QueueState {
    /// By ticket: first come, first served, and whoever leaves leaves at once however many wait.
    pub(super) waiters: BTreeMap<u64, Arc<Waiter>>,
    pub(super) next_ticket: u64,
    /// Hand-overs since it was last time to release the lock for all.
    pub(super) in_a_row: u32,
    /// When the first of them was, and the last.
    row_began: Instant,
    last_handover: Option<Instant>,
    /// It stays in this process although nobody has it, see [`Tenure::rest`].
    pub(super) resting: Option<Arc<Tenure>>,
    pub(super) others: Others,
    /// The holder that the server named last.
    pub(super) named: Named,
    /// In a line of the server's, when the server was last asked.
    pub(super) place: Option<u64>,
    /// Since when the server was asked in vain, and how that ended for the last one who asked.
    pub(super) silence: Option<Silence>,
    /// When the attempt under way was begun.
    pub(super) asking: Option<Instant>,
    /// When the last attempt was begun, or the queue was.
    pub(super) asked: Instant,
    /// When the last attempt that was answered was begun.
    pub(super) answered: Option<Instant>,
}

/// What the last release for all said of other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    /// Some were told.
    Wait,
    /// Nobody else was told, so nobody else waits.
    Away,
    /// Nobody can be told.
    Unknown,
}

/// The holder that the server named last, by its id. A hold is passed on in memory only while it is this one.
#[derive(Debug)]
pub(super) struct Named {
    holder: Option<Box<str>>,
    /// When it was last told something else than before.
    since: Moment,
}

impl Named {
    fn nobody() -> Named {
        Named { holder: None, since: Moment::now() }
    }

    pub(super) fn is(&self, id: &str) -> bool {
        self.holder() == Some(id)
    }

    pub(super) fn holder(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    /// The reply to a request sent then names this holder. If another reply came since then and named another holder, the two
    /// requests crossed, and nobody can tell which one the server ran last: then no holder is known.
    pub(super) fn name(&mut self, holder: &str, sent: Moment) {
        if !self.is(holder) {
            let is_newer = sent >= self.since && !holder.is_empty();
            *self = Named { holder: is_newer.then(|| holder.into()), ..Named::nobody() };
        }
    }

    /// Whoever it was, it need not be the holder any more.
    pub(super) fn forget(&mut self) {
        *self = Named::nobody();
    }
}

/// The server does not answer.
#[derive(Debug)]
pub(super) struct Silence {
    pub(super) since: Instant,
    /// When the last attempt ended in it.
    pub(super) last: Instant,
    pub(super) error: Error,
}

impl QueueState {
    pub(super) fn new(now: Instant) -> QueueState {
        QueueState {
            waiters: BTreeMap::new(),
            next_ticket: 0,
            in_a_row: 0,
            row_began: now,
            last_handover: None,
            resting: None,
            others: Others::Wait,
            named: Named::nobody(),
            place: None,
            silence: None,
            asking: None,
            asked: now,
            answered: None,
        }
    }

    /// Whether the lock may stay in this process once more: for so many turns, and for longer where nobody else seems to want it.
    pub(super) fn goes_on(&self, handovers: u32) -> bool {
        let is_alone = || self.others == Others::Away && self.row_began.elapsed() < LONGEST_ROW;
        handovers > 0 && (self.in_a_row < handovers || is_alone())
    }

    pub(super) fn count_handover(&mut self, done: bool) {
        if !done {
            return;
        }
        let now = Instant::now();
        if self.in_a_row == 0 {
            self.row_began = now;
        }
        self.in_a_row += 1;
        self.last_handover = Some(now);
    }

    /// For all, and so many others heard of it; `None` where nobody can. How long the row was that ends so.
    pub(super) fn released(&mut self, others: Option<u64>) -> Duration {
        let row = if self.in_a_row > 0 { self.row_began.elapsed() } else { Duration::ZERO };
        self.in_a_row = 0;
        self.others = match others {
            Some(0) => Others::Away,
            Some(_) => Others::Wait,
            None => Others::Unknown,
        };
        row
    }

    /// Nobody needs it, nor what is known here of others.
    pub(super) fn is_done(&self) -> bool {
        let is_recent = |last: Instant| last.elapsed() < REMEMBERED;
        self.waiters.is_empty() && !self.last_handover.is_some_and(is_recent)
    }

    pub(super) fn head(&self) -> Option<&Arc<Waiter>> {
        self.waiters.first_key_value().map(|(_, waiter)| waiter)
    }

    /// Whoever was granted is followed by all who wait. The last of those who were called already marks where they end.
    pub(super) fn call_all(&self) {
        let uncalled = self.waiters.values().rev().take_while(|waiter| !waiter.is_due());
        uncalled.for_each(|waiter| waiter.wake());
    }

    pub(super) fn is_head(&self, waiter: &Arc<Waiter>) -> bool {
        self.head().is_some_and(|head| Arc::ptr_eq(head, waiter))
    }

    pub(super) fn join(&mut self, waiter: &Arc<Waiter>) {
        waiter.ticket.store(self.next_ticket, Ordering::Relaxed);
        self.waiters.insert(self.next_ticket, Arc::clone(waiter));
        self.next_ticket += 1;
    }

    pub(super) fn leave(&mut self, waiter: &Arc<Waiter>) {
        self.waiters.remove(&waiter.ticket.load(Ordering::Relaxed));
    }

    /// The server did not answer an attempt begun then.
    pub(super) fn silent(&mut self, begun: Instant, error: &Error) {
        let begun = self.answered.map_or(begun, |answered| answered.max(begun));
        let since = match &self.silence {
            Some(silence) => begun.min(silence.since),
            None => {
                self.waiters.values().for_each(|waiter| waiter.woken.notify_one()); // they set an alarm
                begun
            }
        };
        self.silence = Some(Silence { since, last: Instant::now(), error: error.clone() });
    }

    /// For one who joined then; `None` while the server answers, as far as is known.
    pub(super) fn outage_ends(&mut self, joined: Instant, timeout: Duration) -> Option<Instant> {
        let others_ask = self.asking.is_some();
        self.silence.take_if(|silence| !others_ask && silence.last.elapsed() > STALE);
        self.silence.as_ref().map(|silence| joined.max(silence.since) + timeout)
    }

    /// Wakes a head that should have asked long ago. Where somebody has something to look at, it passes over those that are
    /// not polled.
    pub(super) fn inspect(&mut self, now: Instant, listens: bool) -> Vec<Arc<Hold>> {
        let Some(head) = self.head() else { return Vec::new() };
        if (now - self.asked >= OVERDUE || !listens) && !head.asks.load(Ordering::Relaxed) {
            head.wake();
        }
        let inspected = if head.seems_absent() { SUSPECTED } else { INSPECTED };
        let first: Vec<_> = self.waiters.values().take(inspected).map(Arc::clone).collect();
        if !first.iter().any(|waiter| waiter.is_due()) {
            return Vec::new();
        }
        // All who were looked at are asked before the first is passed over: each has it polled.
        let absent: Vec<_> = first.into_iter().filter(|waiter| !waiter.is_attended()).collect();
        let passed_over: Vec<_> = absent.into_iter().filter(|waiter| waiter.revoke()).collect();
        for waiter in &passed_over {
            self.leave(waiter);
        }
        if !passed_over.is_empty()
            && let Some(next) = self.head()
        {
            next.wake();
        }
        passed_over.iter().map(|waiter| Arc::clone(&waiter.hold)).collect()
    }
}
