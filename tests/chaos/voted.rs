//! The locks of a quorum, as the ways use locks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold::{Lost, Owner, Quorum, QuorumGuard, QuorumLock, Result};

use crate::locks::{AnyGuard, AnyLock, Held};

/// Names its holders: on each server, a hold has an id of its own.
#[derive(Debug, Clone)]
pub(crate) struct Voters {
    quorum: Quorum,
    client: Arc<str>,
    holders: Arc<AtomicU64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Voted {
    lock: QuorumLock,
    voters: Voters,
    acts_for: ActsFor,
}

#[derive(Debug, Clone)]
enum ActsFor {
    EachCall,
    /// One owner, which is known by this name.
    Holder(String),
}

pub(crate) struct VotedGuard {
    guard: QuorumGuard,
    name: String,
    holder: String,
}

impl Voters {
    pub(crate) fn new(quorum: Quorum, client: &str) -> Voters {
        Voters { quorum, client: client.into(), holders: Arc::default() }
    }

    /// Each call is an owner of its own.
    pub(crate) fn lock(&self, name: &str) -> Voted {
        let lock = self.quorum.lock(name).non_reentrant();
        Voted { lock, voters: self.clone(), acts_for: ActsFor::EachCall }
    }

    /// For an owner that no other lock has, and that holds it once.
    pub(crate) fn nested(&self, name: &str) -> Voted {
        let lock = self.quorum.lock(name).owner(&Owner::new());
        Voted { lock, voters: self.clone(), acts_for: ActsFor::Holder(self.holder()) }
    }

    fn holder(&self) -> String {
        format!("{}.{}", self.client, self.holders.fetch_add(1, Ordering::Relaxed))
    }
}

impl Voted {
    fn guarded(&self, guard: QuorumGuard) -> VotedGuard {
        let holder = match &self.acts_for {
            ActsFor::EachCall => self.voters.holder(),
            ActsFor::Holder(holder) => holder.clone(),
        };
        VotedGuard { guard, name: self.lock.name().to_owned(), holder }
    }
}

impl AnyLock for Voted {
    type Guard = VotedGuard;

    fn name(&self) -> &str {
        self.lock.name()
    }

    fn for_lease(&self, time: Duration) -> Voted {
        Voted { lock: self.lock.clone().lease(time), ..self.clone() }
    }

    async fn take(&self) -> Result<VotedGuard> {
        Ok(self.guarded(self.lock.lock().await?))
    }

    async fn take_at_once(&self) -> Result<Option<VotedGuard>> {
        Ok(self.lock.try_lock().await?.map(|guard| self.guarded(guard)))
    }

    async fn take_in_time(&self, patience: Duration) -> Result<Option<VotedGuard>> {
        Ok(self.lock.try_lock_for(patience).await?.map(|guard| self.guarded(guard)))
    }
}

impl Held for VotedGuard {
    fn name(&self) -> &str {
        &self.name
    }

    fn holder(&self) -> String {
        self.holder.clone()
    }

    fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    async fn lost(&self) -> Lost {
        self.guard.lost().await
    }
}

impl AnyGuard for VotedGuard {
    type Held = VotedGuard;

    fn guard(&self) -> &VotedGuard {
        self
    }

    async fn give_back(self) -> Result<()> {
        self.guard.unlock().await
    }
}
