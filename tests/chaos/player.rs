//! One task of a client process, and the steps that all its ways are made of.

use std::time::Duration;

use fastrand::Rng;
use leasehold::{Client, Error, Guard, Lock};
use tokio::time::{Instant, sleep};

use crate::{
    clock,
    history::What,
    scribe::{Scribe, holder_of},
    worker::{COMMAND, OUTAGE},
};

/// How often a holder notes until when it is certain.
const NOTE: Duration = Duration::from_millis(20);
/// How long a cancelled request may take to be taken back.
const ON_ITS_WAY_BACK: Duration = Duration::from_secs(3);

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

    pub(crate) async fn take(&self, lock: &Lock) -> Option<Guard> {
        self.scribe.note(lock.name(), What::Asked);
        let taken = self.scribe.call(lock.name(), "lock", None, lock.lock(), |_| "ok").await?;
        self.taken(lock, taken.map(Some))
    }

    /// A server that is slow for a moment can outlast a short patience: that is for the checker to judge.
    pub(crate) async fn take_in_time(&self, lock: &Lock, patience: Duration) -> Option<Guard> {
        self.scribe.note(lock.name(), What::Asked);
        let work = lock.try_lock_for(patience);
        match self.scribe.call(lock.name(), "try_lock_for", Some(patience), work, some).await {
            None | Some(Err(Error::Unavailable { .. })) => {
                self.scribe.note(lock.name(), What::Left);
                None
            }
            Some(taken) => self.taken(lock, taken),
        }
    }

    pub(crate) async fn take_at_once(&self, lock: &Lock) -> Option<Guard> {
        self.scribe.note(lock.name(), What::Asked);
        let taken = self.scribe.call(lock.name(), "try_lock", Some(COMMAND), lock.try_lock(), some).await;
        let Some(taken) = taken else {
            self.scribe.note(lock.name(), What::Left);
            return None;
        };
        self.taken(lock, taken)
    }

    pub(crate) fn taken(&self, lock: &Lock, taken: leasehold::Result<Option<Guard>>) -> Option<Guard> {
        match taken {
            Ok(Some(guard)) => {
                self.scribe.granted(&guard);
                return Some(guard);
            }
            // An owner that had it and lost it is told so.
            Ok(None) | Err(Error::Lost { .. }) => self.scribe.note(lock.name(), What::Left),
            Err(error) => self.failed(lock.name(), &error),
        }
        None
    }

    pub(crate) fn failed(&self, name: &str, error: &Error) {
        self.scribe.note(name, What::Failed { error: error.to_string() });
    }

    /// Keeps it for that long, or until it is lost, and notes until when it is certain.
    pub(crate) async fn hold(&self, guard: &Guard, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || guard.is_lost() {
                return;
            }
            self.scribe.sure(guard);
            tokio::select! {
                biased;
                reason = guard.lost() => return self.scribe.lost(guard.name(), &holder_of(guard), reason),
                () = sleep(left.min(NOTE)) => {}
            }
        }
    }

    pub(crate) async fn give_back(&self, guard: Guard) {
        let (id, name) = (holder_of(&guard), guard.name().to_owned());
        self.scribe.look(&guard);
        self.scribe.note(&name, What::Releasing { id: id.clone() });
        let ended = self.scribe.call(&name, "unlock", Some(OUTAGE), guard.unlock(), |()| "ok").await;
        self.given_back(&name, id, ended);
    }

    pub(crate) fn given_back(&self, name: &str, id: String, ended: Option<leasehold::Result<()>>) {
        match ended {
            Some(Ok(())) => self.scribe.note(name, What::Released { id }),
            Some(Err(Error::Lost { reason, .. })) => self.scribe.lost(name, &id, reason),
            Some(Err(error)) => self.failed(name, &error),
            None => {}
        }
    }

    /// Given back in the background.
    pub(crate) fn drop(&self, guard: Guard) {
        self.scribe.look(&guard);
        self.scribe.note(guard.name(), What::Releasing { id: holder_of(&guard) });
    }

    /// For a while, then gives it back.
    pub(crate) async fn hold_and_give_back(&mut self, guard: Guard, most: u64) {
        let time = self.millis(0..=most);
        self.hold(&guard, time).await;
        self.give_back(guard).await;
    }

    /// Asks the server for the levels. What was cancelled may still be on its way back, so it is given time.
    pub(crate) async fn count(&self, lock: &Lock, guard: &Guard) {
        let (since, id, believed) = (clock(), guard.id(), u64::from(guard.holds()));
        let ends = Instant::now() + ON_ITS_WAY_BACK;
        while let Some(Ok(holder)) = self.scribe.call(lock.name(), "inspect", Some(OUTAGE), lock.inspect(), some).await
        {
            let counted = holder.filter(|holder| holder.id == id).map_or(0, |holder| holder.holds);
            if counted == believed || guard.is_lost() || Instant::now() >= ends {
                let counted = What::Counted { id: holder_of(guard), since, believed, counted };
                return self.scribe.note(lock.name(), counted);
            }
            self.scribe.sure(guard);
            sleep(NOTE).await;
        }
    }
}

pub(crate) fn some<T>(outcome: &Option<T>) -> &'static str {
    if outcome.is_some() { "ok" } else { "none" }
}
