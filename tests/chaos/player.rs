//! One task of a client process, and the steps that all its ways are made of.

use std::{collections::HashMap, time::Duration};

use fastrand::Rng;
use leasehold::{Client, Error, Guard, Lock};
use tokio::time::{Instant, sleep};

use crate::{
    clock,
    history::{Kind, What},
    locks::{AnyGuard, AnyLock, Counted, Held},
    scribe::{Release, Scribe},
    worker::{COMMAND, OUTAGE},
};

/// How often a holder notes until when it is certain.
const NOTE: Duration = Duration::from_millis(20);
/// How long the release after a cancelled request may take. It needs memory, which the server may not have for 4.5 s.
const ON_ITS_WAY_BACK: Duration = Duration::from_secs(6);

#[derive(Debug)]
pub(crate) struct Player {
    pub(crate) client: Client,
    pub(crate) scribe: Scribe,
    pub(crate) random: Rng,
}

impl Player {
    /// Another of the same client, with dice of its own.
    pub(crate) fn other(&mut self) -> Player {
        let random = Rng::with_seed(self.random.u64(..));
        Player { client: self.client.clone(), scribe: self.scribe.other(), random }
    }

    pub(crate) fn lock(&self, name: &str) -> Lock {
        self.client.lock(name)
    }

    pub(crate) fn one_of(&mut self, names: &[&'static str]) -> Lock {
        self.client.lock(names[self.random.usize(..names.len())])
    }

    pub(crate) fn millis(&mut self, range: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range))
    }

    pub(crate) fn micros(&mut self, range: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_micros(self.random.u64(range))
    }

    pub(crate) async fn take<L: AnyLock>(&self, lock: &L) -> Option<L::Guard> {
        self.scribe.note(lock.name(), What::Asked);
        let taken = self.scribe.call(lock.name(), "lock", None, lock.take(), |_| "ok").await?;
        self.taken(lock.name(), taken.map(Some))
    }

    /// A server that is slow for a moment can outlast a short wait limit. The checker judges that.
    pub(crate) async fn take_in_time<L: AnyLock>(&self, lock: &L, patience: Duration) -> Option<L::Guard> {
        self.scribe.note(lock.name(), What::Asked);
        let work = lock.take_in_time(patience);
        match self.scribe.call(lock.name(), "try_lock_for", Some(patience), work, some).await {
            None | Some(Err(Error::Unavailable { .. })) => {
                self.scribe.note(lock.name(), What::Left);
                None
            }
            Some(taken) => self.taken(lock.name(), taken),
        }
    }

    pub(crate) async fn take_at_once<L: AnyLock>(&self, lock: &L) -> Option<L::Guard> {
        self.scribe.note(lock.name(), What::Asked);
        let taken = self.scribe.call(lock.name(), "try_lock", Some(COMMAND), lock.take_at_once(), some).await;
        let Some(taken) = taken else {
            self.scribe.note(lock.name(), What::Left);
            return None;
        };
        self.taken(lock.name(), taken)
    }

    pub(crate) fn taken<G: AnyGuard>(&self, name: &str, taken: leasehold::Result<Option<G>>) -> Option<G> {
        match taken {
            Ok(Some(guard)) => {
                self.scribe.granted(&guard);
                return Some(guard);
            }
            // An owner that held the lock and lost it gets `Lost`.
            Ok(None) | Err(Error::Lost { .. }) => self.scribe.note(name, What::Left),
            Err(error) => self.failed(name, &error),
        }
        None
    }

    pub(crate) fn failed(&self, name: &str, error: &Error) {
        self.scribe.note(name, What::Failed { error: error.to_string() });
    }

    /// Keeps it for that long, or until it is lost, and notes until when it is certain.
    pub(crate) async fn hold(&self, guard: &impl AnyGuard, time: Duration) {
        let guard = guard.guard();
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || guard.is_lost() {
                return;
            }
            self.scribe.sure(guard);
            tokio::select! {
                biased;
                reason = guard.lost() => return self.scribe.lost(guard.name(), &guard.holder(), reason),
                () = sleep(left.min(NOTE)) => {}
            }
        }
    }

    pub(crate) async fn give_back(&self, guard: impl AnyGuard) {
        let name = guard.guard().name().to_owned();
        self.scribe.look(guard.guard());
        let was_lost = guard.guard().is_lost();
        let (release, way) = (self.scribe.releasing(guard.guard()), Way::of(&self.client));
        let ended = self.scribe.call(&name, "unlock", Some(OUTAGE), guard.give_back(), |()| "ok").await;
        if was_lost && matches!(ended, Some(Ok(()))) {
            let details = format!("unlock of {}, which was lost, returned Ok", release.id);
            self.scribe.wrong(&name, Kind::Untrue, details);
        }
        let confirmed = matches!(ended, Some(Ok(()))) && way.is_whole(&self.client);
        let confirmed = confirmed.then(|| What::Confirmed { id: release.id.clone() });
        self.given_back(&name, release, ended);
        confirmed.into_iter().for_each(|confirmed| self.scribe.note(&name, confirmed));
    }

    /// The checker judges a release that could not be confirmed.
    pub(crate) fn given_back(&self, name: &str, release: Release, ended: Option<leasehold::Result<()>>) {
        let Release { id, since, until } = release;
        match ended {
            Some(Ok(())) => self.scribe.note(name, What::Released { id }),
            Some(Err(Error::Lost { reason, .. })) => self.scribe.lost(name, &id, reason),
            Some(Err(error)) if error.to_string().contains("could not be confirmed") => {
                self.scribe.note(name, What::Unconfirmed { id, since, until });
            }
            Some(Err(error)) => self.failed(name, &error),
            None => {}
        }
    }

    /// Releases in the background.
    pub(crate) fn drop(&self, guard: impl AnyGuard) {
        self.scribe.look(guard.guard());
        self.scribe.releasing(guard.guard());
    }

    /// Holds the lock for a while, then releases it.
    pub(crate) async fn hold_and_give_back(&mut self, guard: impl AnyGuard, most: u64) {
        let time = self.millis(0..=most);
        self.hold(&guard, time).await;
        self.give_back(guard).await;
    }

    /// Asks the server for the levels. What was cancelled may still be on its way back, so it is given time.
    pub(crate) async fn count<L: Counted>(&self, lock: &L, guard: &Guard) {
        self.compare(guard, (guard.id(), L::believed(guard)), || lock.counts()).await;
    }

    /// The same for any hold, with its id on the server and the count that the server must have.
    pub(crate) async fn compare<F: Future<Output = leasehold::Result<HashMap<String, u64>>>>(
        &self,
        guard: &impl Held,
        (id, believed): (&str, u64),
        counts: impl Fn() -> F,
    ) {
        let since = clock();
        let ends = Instant::now() + ON_ITS_WAY_BACK;
        let held = |counts: &HashMap<String, u64>| if counts.is_empty() { "none" } else { "ok" };
        loop {
            let asked = Instant::now(); // a reply may take long, and says what was true before
            let counts = self.scribe.call(guard.name(), "inspect", Some(OUTAGE), counts(), held).await;
            let Some(Ok(counts)) = counts else { return };
            let counted = counts.get(id).copied().unwrap_or(0);
            // A lost hold claims nothing, and the client stops giving back what was cancelled.
            if guard.is_lost() {
                return;
            }
            if counted == believed || asked >= ends {
                let counted = What::Counted { id: guard.holder(), since, believed, counted };
                return self.scribe.note(guard.name(), counted);
            }
            self.scribe.sure(guard);
            sleep(NOTE).await;
        }
    }
}

/// Whether a call can have been sent twice, because its first answer was lost.
#[derive(Debug)]
pub(crate) struct Way {
    since: Instant,
    reconnects: u64,
}

impl Way {
    pub(crate) fn of(client: &Client) -> Way {
        Way { since: Instant::now(), reconnects: client.stats().total.reconnects }
    }

    /// Nothing was cut, and there was no time to wait for an answer in vain.
    pub(crate) fn is_whole(&self, client: &Client) -> bool {
        self.since.elapsed() < COMMAND / 2 && client.stats().total.reconnects == self.reconnects
    }
}

pub(crate) fn some<T>(outcome: &Option<T>) -> &'static str {
    if outcome.is_some() { "ok" } else { "none" }
}
