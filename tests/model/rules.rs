//! What the scripts do, as one pure function: a lock and a request give the lock after it and a reply. `lua.rs` holds
//! it against the scripts themselves, `tests/simulation` has it as its server.

// Which hold, and time: the simulation has others than the model.
pub(crate) use super::units::{Id, Ticks, resting};

/// What the server keeps of a lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lock {
    pub(crate) id: Id,
    pub(crate) count: u8,
    /// Until its lease ends; `None` without an end. In this order a time without an end is less than any other, as -1
    /// is for the scripts.
    pub(crate) left: Option<Ticks>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Request {
    pub(crate) id: Id,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum What {
    Acquire {
        level: u8,
        lease: Ticks,
        again: bool,
    },
    Renew {
        lease: Ticks,
    },
    Release {
        level: u8,
    },
    /// The last acquisition, before the time for which nobody else may have the lock.
    ReleaseEarly {
        rest: Ticks,
    },
    HandOver {
        heir: Id,
        lease: Ticks,
    },
    /// Names the hold that was seen to have it.
    ForceUnlock,
    Inspect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Granted(u8),
    Lost,
    Busy(Option<Ticks>, Id),
    Kept(Option<Ticks>),
    Gone,
    Released,
    Handed,
    /// The heir was there already.
    HandedBefore,
    Deeper(u8),
    Free,
    Held(Id, u8, Option<Ticks>),
}

/// What a request leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct After {
    pub(crate) lock: Option<Lock>,
    pub(crate) reply: Reply,
    /// The waiters were told of a release.
    pub(crate) published: bool,
}

pub(crate) fn run(lock: Option<Lock>, Request { id, what }: Request) -> After {
    let mine = lock.filter(|lock| lock.id == id);
    match (what, mine) {
        (What::Acquire { level, lease, again }, _) => {
            acquire(lock, Lock { id, count: level, left: Some(lease) }, again)
        }
        (What::HandOver { heir, lease }, _) => hand_over(lock, id, Lock { id: heir, count: 1, left: Some(lease) }),
        (What::Renew { lease }, Some(lock)) => {
            let lock = if lease > 0 { lock.at_least(Some(lease)) } else { lock };
            quietly(Some(lock), Reply::Kept(lock.left))
        }
        (What::Release { level: 0 } | What::ForceUnlock, Some(_)) => freed(),
        (What::Release { level }, Some(lock)) => quietly(Some(Lock { count: level, ..lock }), Reply::Released),
        (What::ReleaseEarly { rest }, Some(_)) => rests(Lock { id: resting(id), count: 1, left: Some(rest) }),
        (What::Release { level: 0 } | What::ReleaseEarly { .. }, None) => match lock {
            Some(lock) if lock.id == resting(id) => rests(lock),
            _ => quietly(lock, Reply::Gone),
        },
        (What::Renew { .. } | What::Release { .. } | What::ForceUnlock, None) => quietly(lock, Reply::Gone),
        (What::Inspect, _) => {
            quietly(lock, lock.map_or(Reply::Free, |lock| Reply::Held(lock.id, lock.count, lock.left)))
        }
    }
}

fn acquire(lock: Option<Lock>, wanted: Lock, again: bool) -> After {
    match lock {
        None if again => quietly(None, Reply::Lost),
        None => quietly(Some(wanted), Reply::Granted(wanted.count)),
        Some(lock) if lock.id == wanted.id => quietly(Some(wanted.at_least(lock.left)), Reply::Granted(wanted.count)),
        Some(_) if again => quietly(lock, Reply::Lost),
        Some(other) => quietly(lock, Reply::Busy(other.left, other.id)),
    }
}

fn hand_over(lock: Option<Lock>, id: Id, heir: Lock) -> After {
    match lock {
        Some(moved) if moved.id == heir.id => quietly(Some(moved.at_least(heir.left)), Reply::HandedBefore),
        Some(mine) if mine.id == id && mine.count == 1 => quietly(Some(heir), Reply::Handed),
        Some(mine) if mine.id == id => quietly(lock, Reply::Deeper(mine.count)),
        _ => quietly(lock, Reply::Gone),
    }
}

fn quietly(lock: Option<Lock>, reply: Reply) -> After {
    After { lock, reply, published: false }
}

/// The waiters look when its time is over.
fn rests(lock: Lock) -> After {
    After { lock: Some(lock), reply: Reply::Released, published: true }
}

/// A lock after some time; one without an end stays.
pub(crate) fn pass(lock: Option<Lock>, time: Ticks) -> Option<Lock> {
    let lock = lock?;
    let left = match lock.left {
        Some(left) if left <= time => return None,
        left => left.map(|left| left - time),
    };
    Some(Lock { left, ..lock })
}

fn freed() -> After {
    After { lock: None, reply: Reply::Released, published: true }
}

impl Lock {
    /// The same with an end that is no nearer than `left`.
    fn at_least(self, left: Option<Ticks>) -> Lock {
        Lock { left: self.left.max(left), ..self }
    }
}
