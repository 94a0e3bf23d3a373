//! One task that renews all holds of a client in time, and marks holds as lost when their time is over.

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    hold::{Hold, WatchdogStep},
    queue::Queues,
    releaser::{ReleaseJob, Releaser},
};
use crate::{
    clock::Moment,
    config::Lease,
    error::Lost,
    redis::{Answer, Code, Fault, Redis},
    stats::Counters,
    sync::{std, tokio},
};

/// The longest sleep. Timers stop while the machine is suspended, so expired leases are noticed within this time after it wakes.
const NAP: Duration = Duration::from_secs(1);
/// The number of renewals in one task; together they make one call.
const CHUNK: usize = 128;

#[derive(Debug)]
pub(crate) struct Watchdog {
    list: Mutex<List>,
    /// Notified when a hold becomes due before the sleep ends.
    wake: Notify,
    redis: Arc<Redis>,
    queues: Arc<Queues>,
    releaser: Arc<Releaser>,
    counters: Arc<Counters>,
    /// The number of holds that one task renews.
    at_once: AtomicUsize,
}

/// Every hold that is held, once, by the moment at which it needs attention.
#[derive(Debug)]
struct List {
    due: BTreeMap<(Moment, u64), Arc<Hold>>,
    asleep_until: Moment,
}

type Due = Vec<(Arc<Hold>, Option<Lease>)>;

impl Watchdog {
    /// Starts the task; it ends when the client closes.
    pub(crate) fn start(
        redis: Arc<Redis>,
        queues: Arc<Queues>,
        releaser: Arc<Releaser>,
        counters: Arc<Counters>,
        closing: CancellationToken,
    ) -> Arc<Watchdog> {
        let list = Mutex::new(List { due: BTreeMap::new(), asleep_until: Moment::FAR });
        let mut changes = redis.changes();
        // Read here: holds can be acquired, and their server can change, before the task runs.
        let seen = *changes.borrow_and_update();
        let watchdog = Arc::new(Watchdog {
            list,
            wake: Notify::new(),
            redis,
            queues,
            releaser,
            counters,
            at_once: AtomicUsize::new(CHUNK),
        });
        tokio::spawn(closing.run_until_cancelled_owned(Arc::clone(&watchdog).watch(changes, seen)));
        watchdog
    }

    /// Enters a hold in the list by its next due time. Removes it if it is no longer held.
    pub(crate) fn list(&self, hold: &Arc<Hold>) {
        self.list_by(hold, false);
    }

    /// `confirming`: a renewal is under way, so only the end of the hold is of interest.
    fn list_by(&self, hold: &Arc<Hold>, confirming: bool) {
        let mut list = self.lock();
        let due = hold.next_due(confirming);
        if let Some(before) = hold.swap_due(due) {
            list.due.remove(&(before, hold.number));
        }
        let Some(due) = due else { return };
        list.due.insert((due, hold.number), Arc::clone(hold));
        if due < list.asleep_until {
            self.wake.notify_one();
        }
    }

    async fn watch(self: Arc<Watchdog>, mut changes: watch::Receiver<u64>, mut seen: u64) {
        let mut idle = false;
        loop {
            let due = self.take(Moment::now());
            self.tend(due);
            let nap = self.nap(idle);
            idle = false;
            tokio::select! {
                () = sleep(nap) => idle = true,
                () = self.wake.notified() => {}
                Ok(()) = changes.changed() => {
                    let now = *changes.borrow_and_update();
                    self.confirm_changed(seen);
                    seen = now;
                }
            }
        }
    }

    /// The time to sleep. The task sleeps until it is woken only after a nap in which nothing happened: locks that are held only for a
    /// short time must not wake it each time.
    fn nap(&self, idle: bool) -> Duration {
        let mut list = self.lock();
        let next = list.due.first_key_value().map(|((due, _), _)| *due);
        if next.is_none() && idle {
            list.asleep_until = Moment::FAR;
            return Duration::MAX;
        }
        let latest = Moment::now() + NAP;
        list.asleep_until = next.map_or(latest, |next| next.min(latest));
        list.asleep_until.left()
    }

    /// Removes and returns the holds that are due by `now`.
    fn take(&self, now: Moment) -> Vec<Arc<Hold>> {
        let mut list = self.lock();
        let later = list.due.split_off(&(now, u64::MAX));
        let due = mem::replace(&mut list.due, later).into_values().collect();
        unlisted(due)
    }

    /// Renews the holds of a server that was reconnected to or replaced: the server may have lost them.
    fn confirm_changed(self: &Arc<Self>, since: u64) {
        let is_changed = |hold: &Arc<Hold>| self.redis.changed_since(hold.name.key(), since);
        let mut changed = Vec::new();
        self.lock().due.retain(|_, hold| {
            let keep = !is_changed(hold);
            (!keep).then(|| changed.push(Arc::clone(hold)));
            keep
        });
        let changed = unlisted(changed);
        changed.iter().for_each(|hold| hold.confirm_now());
        self.tend(changed);
    }

    fn tend(self: &Arc<Self>, holds: Vec<Arc<Hold>>) {
        let now = Moment::now();
        let mut confirm = Due::new();
        for hold in holds {
            let step = hold.step(now);
            match step {
                WatchdogStep::Ended(reason) => self.lost(&hold, reason),
                WatchdogStep::Spent => self.releaser.send(ReleaseJob::for_all(&hold)),
                WatchdogStep::Confirm(_) | WatchdogStep::Sleep => {}
            }
            self.list_by(&hold, matches!(step, WatchdogStep::Confirm(_)));
            if let WatchdogStep::Confirm(lease) = step {
                confirm.push((hold, lease));
            }
        }
        let mut confirm = confirm.into_iter().peekable();
        while confirm.peek().is_some() {
            self.confirm(confirm.by_ref().take(self.at_once.load(Ordering::Relaxed)).collect());
        }
    }

    /// Renews several holds at once. In a task of its own, because other leases may expire while this waits.
    fn confirm(self: &Arc<Self>, holds: Due) {
        let watchdog = Arc::clone(self);
        tokio::spawn(async move {
            // Create all of them first: if one of them ends the task, the others return to the list.
            let confirming: Vec<_> = holds.iter().map(|(hold, lease)| (watchdog.confirming(hold), *lease)).collect();
            join_all(confirming.into_iter().map(|(hold, lease)| watchdog.confirm_one(hold, lease))).await
        });
    }

    fn confirming<'a>(&'a self, hold: &'a Arc<Hold>) -> Confirming<'a> {
        Confirming { watchdog: self, hold, is_done: false }
    }

    async fn confirm_one(&self, mut confirming: Confirming<'_>, lease: Option<Lease>) {
        let hold = Arc::clone(confirming.hold);
        if let Some(lease) = lease {
            hold.asking(lease);
        }
        let sent = Moment::now();
        let end = hold.lease_ends();
        let answer = self.redis.request_gathered(&hold.kind.renew.script, hold.renew_part(lease, "", end)).await;
        self.confirmed(&hold, (sent, end), lease, answer);
        confirming.is_done = true;
    }

    /// If the server no longer has the hold, the lock is lost. If there is no reply, it is lost only when its lease is over.
    fn confirmed(
        &self,
        hold: &Hold,
        (sent, end): (Moment, Moment),
        lease: Option<Lease>,
        answer: Result<Answer, Fault>,
    ) {
        match answer {
            Ok(answer) if answer.code == Code::Kept => {
                self.counters.of(hold.subject()).renewed();
                hold.confirmed(sent, lease, hold.kind.rules.sure_after(&answer, sent, end));
            }
            Ok(_) | Err(Fault::Conflict) => {
                hold.removed(&self.counters);
                self.queues.wake_head(hold);
            }
            Err(fault) => {
                tracing::debug!(target: "leasehold::lock", name = &*hold.name, ?fault, "the renewal failed; the client tries again");
                hold.confirm_later();
            }
        }
    }

    fn lost(&self, hold: &Hold, reason: Lost) {
        hold.lose(reason, &self.counters);
        self.queues.wake_head(hold);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hold that is being renewed. It returns to the list in any case, also if the task of the renewal ends.
struct Confirming<'a> {
    watchdog: &'a Watchdog,
    hold: &'a Arc<Hold>,
    is_done: bool,
}

impl Drop for Confirming<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.hold.confirm_later();
            self.watchdog.at_once.store(1, Ordering::Relaxed); // the next time it must not end the renewals of others
        }
        self.watchdog.list(self.hold);
    }
}

fn unlisted(holds: Vec<Arc<Hold>>) -> Vec<Arc<Hold>> {
    for hold in &holds {
        hold.swap_due(None);
    }
    holds
}
