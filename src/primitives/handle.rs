//! What all locks have in common for their users: a name and settings, and what can be asked of the lock as such.

use std::{fmt, sync::Arc, time::Duration};

use tracing::Instrument;

use crate::{
    client::Client,
    config::{Lease, Name},
    engine::{AcquireRequest, Engine, Guard, Kind, KindScript, WaitLimit},
    error::{Error, Result},
    owner::Owner,
    redis::{Answer, Code},
    sync::tokio,
};
use tokio::time::Instant;

/// A lock by name, with the settings for taking it.
#[derive(Clone)]
pub(super) struct Handle {
    pub(super) engine: Arc<Engine>,
    given: Arc<str>,
    name: Setting<Name>,
    lease: Setting<Option<Lease>>,
    max_hold: Setting<Option<Duration>>,
    min_hold: Setting<Option<Lease>>,
    acts_for: ActsFor,
}

/// What is wrong is said when it is used; out of line, for tasks carry locks along.
type Setting<T> = std::result::Result<T, Arc<Error>>;

fn valid<T: Clone>(setting: &Setting<T>) -> Result<T> {
    setting.clone().map_err(Arc::unwrap_or_clone)
}

/// The owner of an acquisition.
#[derive(Debug, Clone)]
enum ActsFor {
    /// [`Owner::current`] at the time of the call.
    Current,
    /// A new owner for each call.
    EachCall,
    This(Owner),
}

impl ActsFor {
    fn owner(&self) -> Owner {
        match self {
            ActsFor::Current => Owner::current(),
            ActsFor::EachCall => Owner::new(),
            ActsFor::This(owner) => owner.clone(),
        }
    }
}

/// Who holds a lock, as the server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The hash field in Redis: ours is [`Guard::id`], Redisson's `clientUUID:threadId`. A lock that was released before its
    /// [`min_hold`](crate::Lock::min_hold) has `:rest` after the id of its last holder.
    pub id: String,
    /// Its hold count. Readers of one client may share an entry: then that of one of them.
    pub holds: u64,
    /// How long the lease still lasts; `None` if it has no end, which no client leaves behind on purpose.
    pub remaining: Option<Duration>,
}

impl Handle {
    pub(super) fn new(client: &Client, name: &str) -> Handle {
        Handle {
            engine: Arc::clone(client.engine()),
            given: name.into(),
            name: Name::new(client.prefix(), name).map_err(Arc::new),
            lease: Ok(None),
            max_hold: Ok(None),
            min_hold: Ok(None),
            acts_for: ActsFor::Current,
        }
    }

    pub(super) fn lease(self, d: Duration) -> Self {
        Handle { lease: Lease::new("lease", d).map(Some).map_err(Arc::new), ..self }
    }

    pub(super) fn max_hold(self, d: Duration) -> Self {
        let zero = || Error::config("max_hold", "a hold of no time is none");
        Handle { max_hold: if d.is_zero() { Err(Arc::new(zero())) } else { Ok(Some(d)) }, ..self }
    }

    pub(super) fn min_hold(self, d: Duration) -> Self {
        Handle { min_hold: Lease::new("min_hold", d).map(Some).map_err(Arc::new), ..self }
    }

    pub(super) fn owner(self, o: &Owner) -> Self {
        Handle { acts_for: ActsFor::This(o.clone()), ..self }
    }

    pub(super) fn non_reentrant(self) -> Self {
        Handle { acts_for: ActsFor::EachCall, ..self }
    }

    /// The name, without the client's prefix.
    pub(super) fn name(&self) -> &str {
        &self.given
    }

    pub(super) async fn take(
        &self,
        kind: &'static Kind,
        what: &'static str,
        wait_limit: WaitLimit,
    ) -> Result<Option<Guard>> {
        let (lease, min_hold) = (valid(&self.lease)?, valid(&self.min_hold)?);
        if lease.is_some_and(|lease| Some(lease) < min_hold) {
            return Err(Error::config("min_hold", "it is longer than the lease"));
        }
        let request = AcquireRequest {
            name: valid(&self.name)?,
            owner: self.acts_for.owner(),
            kind,
            lease,
            max_hold: valid(&self.max_hold)?,
            min_hold,
            wait_limit,
        };
        let span = tracing::debug_span!(target: "leasehold::lock", "take", how = what, name = self.name());
        self.engine.take(&request).instrument(span).await
    }

    /// Who holds a lock that one can hold at a time.
    pub(super) async fn inspect(&self, kind: &'static Kind) -> Result<Option<Holder>> {
        self.look(kind, "inspect", self.engine.outage_ends()).await
    }

    async fn look(&self, kind: &'static Kind, what: &'static str, give_up: Instant) -> Result<Option<Holder>> {
        let (answer, _) = self.tell(what, (kind, &kind.inspect), ("", ""), give_up).await?;
        match answer.code {
            Code::Held => answer.words().and_then(|[held]| Holder::of(held)).map(Some).ok_or_else(|| self.conflict()),
            Code::Free => Ok(None),
            _ => Err(self.conflict()),
        }
    }

    /// Takes the lock away from the one who is seen to have it.
    pub(super) async fn force_unlock(&self, kind: &'static Kind) -> Result<bool> {
        const WHAT: &str = "force_unlock";
        let give_up = self.engine.outage_ends();
        let Some(holder) = self.look(kind, WHAT, give_up).await? else { return Ok(false) };
        let meant = (holder.id.as_str(), self.engine.publish());
        let (answer, again) = self.tell(WHAT, (kind, &kind.force_unlock), meant, give_up).await?;
        match answer.code {
            Code::Released => Ok(true),
            Code::Gone => Ok(again), // if it was asked twice, the first time may have done it
            _ => Err(self.conflict()),
        }
    }

    /// Asks about the lock itself, not about a hold of ours.
    pub(super) async fn tell(
        &self,
        what: &'static str,
        (kind, script): (&'static Kind, &'static KindScript),
        (id, more): (&str, &str),
        give_up: Instant,
    ) -> Result<(Answer, bool)> {
        let name = valid(&self.name)?;
        let span = tracing::debug_span!(target: "leasehold::lock", "tell", how = what, name = self.name());
        let part = kind.part(script, name.key(), (id, 0, 0), more);
        self.engine.tell(what, &name, (&script.script, part), give_up).instrument(span).await
    }

    /// Whoever comes now asks the server, whatever is known here.
    pub(super) fn forced(&self, kind: &'static Kind) -> Result<()> {
        self.engine.forced(&valid(&self.name)?, kind);
        Ok(())
    }

    pub(super) fn conflict(&self) -> Error {
        Error::Conflict { name: self.name().to_owned() }
    }

    pub(super) fn debug(&self, what: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(what)
            .field("name", &self.given)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("min_hold", &self.min_hold)
            .field("acts_for", &self.acts_for)
            .finish_non_exhaustive()
    }
}

impl Holder {
    /// From its hold count, the ms it has left, and its id.
    pub(super) fn of(words: &str) -> Option<Holder> {
        let mut words = words.splitn(3, ' ');
        let (holds, left, id) = (words.next()?, words.next()?, words.next()?);
        let remaining = left.parse().ok().map(Duration::from_millis);
        Some(Holder { id: id.to_owned(), holds: holds.parse().ok()?, remaining })
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.debug("Handle", f)
    }
}
