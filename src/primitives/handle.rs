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

/// Who a call acts for.
#[derive(Debug, Clone)]
pub(super) enum ActsFor {
    /// [`Owner::current`] at the time of the call.
    Current,
    /// Somebody new.
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
    pub(super) fn new(client: &Client, name: &str, acts_for: ActsFor) -> Handle {
        Handle {
            engine: Arc::clone(client.engine()),
            given: name.into(),
            name: Name::new(client.prefix(), name).map_err(Arc::new),
            lease: Ok(None),
            max_hold: Ok(None),
            min_hold: Ok(None),
            acts_for,
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

/// The settings of a lock that is a [`Handle`].
macro_rules! settings {
    ($lock:ident) => {
        impl $lock {
            /// Takes it for this long, without the watchdog: the lock ends by itself unless it is given back or
            /// [extended](crate::Guard::extend).
            ///
            /// Must be between a millisecond and a year; anything else is reported when the lock is taken. One that is not
            /// longer than the way of an answer ends before it can be used: that is [`Error::Lost`](crate::Error::Lost) when
            /// it is taken.
            #[must_use]
            pub fn lease(self, d: std::time::Duration) -> Self {
                $lock(self.0.lease(d))
            }

            /// Never holds it for longer than this: the holder is then told [`Lost::MaxHold`](crate::Lost::MaxHold) and the
            /// watchdog renews no more, so that the lease ends soon after. No cap by default.
            ///
            /// Counted for each call that takes it from its own time; the earliest of the guards alive ends the whole hold.
            /// Zero is refused when the lock is taken.
            #[must_use]
            pub fn max_hold(self, d: std::time::Duration) -> Self {
                $lock(self.0.max_hold(d))
            }

            /// Takes it for this owner, instead of [`Owner::current`](crate::Owner::current) at the time of the call, or of
            /// somebody new each time for a [`mutex`](crate::Client::mutex), which is then reentrant for this owner.
            #[must_use]
            pub fn owner(self, o: &crate::Owner) -> Self {
                $lock(self.0.owner(o))
            }

            /// The name, without the client's prefix.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.name()
            }
        }

        impl std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.debug(stringify!($lock), f)
            }
        }
    };
}
pub(super) use settings;

/// Taking a lock that works as [`Lock`](crate::Lock) does, with guards of its own.
macro_rules! exclusive {
    ($lock:ident -> $guard:ident, $kind:ident, $wrap:path) => {
        impl $lock {
            /// For so long nobody else gets it, as [`Lock::min_hold`](crate::Lock::min_hold).
            #[must_use]
            pub fn min_hold(self, d: std::time::Duration) -> Self {
                $lock(self.0.min_hold(d))
            }

            /// Waits until it is ours, as [`Lock::lock`](crate::Lock::lock).
            ///
            /// # Errors
            ///
            /// As [`Lock::lock`](crate::Lock::lock).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future leaves nothing behind.
            pub async fn lock(&self) -> crate::Result<$guard> {
                let taken = self.0.take(&$kind, "lock", crate::engine::WaitLimit::Forever).await?;
                $wrap(taken.expect("a wait without limit ends with a lock or an error"))
            }

            /// Tries once; `None` if it is not to be had now.
            ///
            /// # Errors
            ///
            /// As [`Lock::try_lock`](crate::Lock::try_lock).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future leaves nothing behind.
            pub async fn try_lock(&self) -> crate::Result<Option<$guard>> {
                self.take("try_lock", crate::engine::WaitLimit::Once).await
            }

            /// Waits for at most `limit`, as [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            ///
            /// # Errors
            ///
            /// As [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future leaves nothing behind.
            pub async fn try_lock_for(&self, limit: std::time::Duration) -> crate::Result<Option<$guard>> {
                self.take("try_lock_for", crate::engine::WaitLimit::of(limit)).await
            }

            /// As [`try_lock_for`](Self::try_lock_for), until a moment of tokio's clock or the standard library's.
            ///
            /// # Errors
            ///
            /// As [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future leaves nothing behind.
            pub async fn try_lock_until(
                &self,
                deadline: impl Into<crate::sync::tokio::time::Instant>,
            ) -> crate::Result<Option<$guard>> {
                self.take("try_lock_until", crate::engine::WaitLimit::Until(deadline.into())).await
            }

            async fn take(&self, what: &'static str, limit: crate::engine::WaitLimit) -> crate::Result<Option<$guard>> {
                self.0.take(&$kind, what, limit).await?.map($wrap).transpose()
            }

            /// Whether anybody holds it.
            ///
            /// # Errors
            ///
            /// As [`inspect`](Self::inspect).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future changes nothing.
            pub async fn is_locked(&self) -> crate::Result<bool> {
                Ok(self.inspect().await?.is_some())
            }

            /// Who holds it, how often and for how much longer; `None` if nobody does.
            ///
            /// # Errors
            ///
            /// As [`Lock::inspect`](crate::Lock::inspect).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future changes nothing.
            pub async fn inspect(&self) -> crate::Result<Option<crate::Holder>> {
                self.0.inspect(&$kind).await
            }

            /// Takes the lock away from whoever has it and wakes who waits, as
            /// [`Lock::force_unlock`](crate::Lock::force_unlock); true if it was taken away.
            ///
            /// # Errors
            ///
            /// As [`Lock::inspect`](crate::Lock::inspect).
            ///
            /// # Cancel safety
            ///
            /// Dropping the future leaves open whether the lock was taken away.
            pub async fn force_unlock(&self) -> crate::Result<bool> {
                self.0.force_unlock(&$kind).await
            }
        }
    };
}
pub(super) use exclusive;

/// A [`Guard`] with something more, in its field `guard`.
macro_rules! guarding {
    ($more:ident) => {
        impl $more {
            /// As [`Guard::unlock`].
            ///
            /// # Errors
            ///
            /// As [`Guard::unlock`].
            ///
            /// # Cancel safety
            ///
            /// As [`Guard::unlock`].
            pub async fn unlock(self) -> crate::Result<()> {
                self.guard.unlock().await
            }

            /// As [`Guard::protect`].
            ///
            /// # Errors
            ///
            /// As [`Guard::protect`].
            ///
            /// # Cancel safety
            ///
            /// As [`Guard::protect`].
            pub async fn protect<T>(self, work: impl Future<Output = T>) -> crate::Result<T> {
                self.guard.protect(work).await
            }

            /// As [`Guard::try_protect`].
            ///
            /// # Errors
            ///
            /// As [`Guard::try_protect`].
            ///
            /// # Cancel safety
            ///
            /// As [`Guard::protect`].
            pub async fn try_protect<T, E: From<crate::Error>>(
                self,
                work: impl Future<Output = crate::Result<T, E>>,
            ) -> crate::Result<T, E> {
                self.guard.try_protect(work).await
            }

            /// As [`Guard::protect_outcome`].
            ///
            /// # Cancel safety
            ///
            /// As [`Guard::protect`].
            pub async fn protect_outcome<T>(self, work: impl Future<Output = T>) -> crate::Outcome<T> {
                self.guard.protect_outcome(work).await
            }
        }

        impl std::ops::Deref for $more {
            type Target = Guard;

            fn deref(&self) -> &Guard {
                &self.guard
            }
        }
    };
}
pub(super) use guarding;
