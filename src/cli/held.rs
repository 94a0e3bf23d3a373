//! What is held while the command runs.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use leasehold::{Client, Guard, Lost, Permits, ReleaseRequest, Result};
use tokio::time::sleep;

use crate::{args::Run, found};

/// A command that runs once in a period looks this often whether another machine has done the work.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Held {
    holding: Holding,
    pub(crate) token: Option<u64>,
    pub(crate) since: Instant,
}

#[derive(Debug)]
enum Holding {
    Lock(Guard),
    Permits(Permits),
}

macro_rules! either {
    ($holding:expr, $one:ident => $then:expr) => {
        match $holding {
            Holding::Lock($one) => $then,
            Holding::Permits($one) => $then,
        }
    };
}

/// A guard of this lock with the settings of `run`, if the wait is short enough.
macro_rules! acquire {
    ($client:expr, $run:expr, $lock:expr, $at_once:ident, $within:ident) => {{
        let mut lock = $lock;
        if let Some(lease) = $run.lease {
            lock = lock.lease(lease);
        }
        if let Some(least) = $run.min_hold {
            lock = lock.min_hold(least);
        }
        let acquiring = async {
            match $run.limit() {
                Some(limit) => lock.$within(limit).await,
                None => lock.$at_once().await,
            }
        };
        tokio::select! {
            biased;
            guard = acquiring => guard?,
            done = is_done($client, &$run.name), if $run.once_per.is_some() => {
                done?;
                None
            }
        }
    }};
}

/// Resolves when the lock only rests: the work of this period is done.
async fn is_done(client: &Client, name: &str) -> Result<()> {
    while !client.lock(name).inspect().await?.is_some_and(|holder| found::rests(&holder)) {
        sleep(LOOK).await;
    }
    Ok(())
}

/// Acquires the lock; `None` if others have it.
pub(crate) async fn acquire(client: &Client, run: &Run) -> Result<Option<Held>> {
    let name = &run.name;
    if let Some(wanted) = run.permits {
        return acquire_permits(client, run, wanted).await;
    }
    if run.fenced {
        let guard = acquire!(client, run, client.fenced_lock(name), try_lock, try_lock_for);
        return Ok(guard.map(|guard| Held::new(Some(guard.token()), Holding::Lock(guard.into()))));
    }
    let guard = if run.fair {
        acquire!(client, run, client.fair_lock(name), try_lock, try_lock_for)
    } else if run.shared {
        acquire!(client, run, client.rw_lock(name), try_read, try_read_for).map(Guard::from)
    } else if run.exclusive {
        acquire!(client, run, client.rw_lock(name), try_write, try_write_for).map(Guard::from)
    } else {
        acquire!(client, run, client.lock(name), try_lock, try_lock_for)
    };
    Ok(guard.map(|guard| Held::new(None, Holding::Lock(guard))))
}

async fn acquire_permits(client: &Client, run: &Run, wanted: u32) -> Result<Option<Held>> {
    let mut semaphore = client.semaphore(&run.name);
    if let Some(lease) = run.lease {
        semaphore = semaphore.lease(lease);
    }
    if let Some(all) = run.of {
        semaphore.try_set_permits(all).await?;
    }
    let permits = match run.limit() {
        Some(limit) => semaphore.try_acquire_for(wanted, limit).await?,
        None => semaphore.try_acquire(wanted).await?,
    };
    Ok(permits.map(|permits| Held::new(None, Holding::Permits(permits))))
}

impl Held {
    fn new(token: Option<u64>, holding: Holding) -> Held {
        Held { holding, token, since: Instant::now() }
    }

    pub(crate) fn id(&self) -> &str {
        either!(&self.holding, one => one.id())
    }

    pub(crate) fn remaining(&self) -> Duration {
        either!(&self.holding, one => one.remaining())
    }

    /// Resolves when the lock is lost, or will be in so much time, because no renewal arrives.
    pub(crate) async fn ends_in(&self, time: Duration) -> Option<Lost> {
        let late = async {
            while self.remaining() > time {
                sleep(self.remaining().saturating_sub(time)).await;
            }
        };
        tokio::select! {
            biased;
            lost = async { either!(&self.holding, one => one.lost().await) } => Some(lost),
            () = late => None,
        }
    }

    /// Resolves when somebody asks for the lock; never for permits.
    pub(crate) async fn asked(&self) -> ReleaseRequest {
        match &self.holding {
            Holding::Lock(guard) => guard.asked().await,
            Holding::Permits(_) => pending().await,
        }
    }

    /// The lock stays held for this long from now, even after its release.
    pub(crate) fn stays(&self, time: Duration) {
        if let Holding::Lock(guard) = &self.holding {
            let _ = guard.stay_held(time); // an error: no time is left
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        match self.holding {
            Holding::Lock(guard) => guard.unlock().await,
            Holding::Permits(permits) => permits.release().await,
        }
    }
}
