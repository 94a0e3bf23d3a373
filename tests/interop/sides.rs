//! Locks of every kind, taken by either side in the same words.

use std::{fmt, str::FromStr, time::Duration};

use leasehold::{Client, FencedGuard, Guard, Owner, WriteGuard};
use tokio::task::JoinHandle;

use crate::{
    SOON,
    jvm::{Asked, Jvm, clock},
    support::{Server, until, within},
};

/// As the JVM's side calls them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Read,
    Write,
    Fair,
    Fenced,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Plain, "plain"),
    (Kind::Read, "read"),
    (Kind::Write, "write"),
    (Kind::Fair, "fair"),
    (Kind::Fenced, "fenced"),
];

/// One of the JVM's threads or one owner of ours, another each time.
#[derive(Clone, Copy)]
pub(crate) enum Side<'a> {
    Redisson(&'a Jvm),
    Leasehold(&'a Client),
}

/// A lock that was asked for.
#[must_use]
pub(crate) enum Taking<'a> {
    Redisson(Held<'a>, Asked),
    Leasehold(JoinHandle<Held<'static>>),
}

/// A lock that somebody has.
#[must_use]
pub(crate) struct Held<'a> {
    /// When it was granted, on the clock of [`clock`].
    pub(crate) granted: u64,
    /// Of a fenced lock.
    pub(crate) token: Option<u64>,
    by: By<'a>,
}

enum By<'a> {
    Redisson { jvm: &'a Jvm, thread: u32, unlock: String },
    Leasehold(OurGuard),
}

pub(crate) enum OurGuard {
    Plain(Guard),
    Write(WriteGuard),
    Fenced(FencedGuard),
}

impl Kind {
    /// Takes it for somebody new.
    pub(crate) async fn lock(self, client: &Client, name: &str) -> OurGuard {
        let owner = Owner::new();
        let guard = match self {
            Kind::Plain => client.lock(name).owner(&owner).lock().await.map(OurGuard::Plain),
            Kind::Read => client.rw_lock(name).owner(&owner).read().await.map(|guard| OurGuard::Plain(guard.into())),
            Kind::Write => client.rw_lock(name).owner(&owner).write().await.map(OurGuard::Write),
            Kind::Fair => client.fair_lock(name).owner(&owner).lock().await.map(OurGuard::Plain),
            Kind::Fenced => client.fenced_lock(name).owner(&owner).lock().await.map(OurGuard::Fenced),
        };
        guard.expect("the holders go")
    }

    fn is_of_a_pair(self) -> bool {
        matches!(self, Kind::Read | Kind::Write)
    }

    /// How many wait for that name: in line, or of others the processes that do, since each listens once.
    pub(crate) fn waiting(self, server: &Server, name: &str) -> usize {
        match self {
            Kind::Fair => server.ask(&["LLEN", &format!("redisson_lock_queue:{{{name}}}")]),
            Kind::Read | Kind::Write => listening(server, &format!("redisson_rwlock:{{{name}}}")),
            Kind::Plain | Kind::Fenced => listening(server, &format!("redisson_lock__channel:{{{name}}}")),
        }
    }

    /// Runs `start`, which has one more process wait for that name, until the server knows.
    pub(crate) async fn one_more_waits<T>(self, server: &Server, name: &str, start: impl FnOnce() -> T) -> T {
        let before = self.waiting(server, name);
        let started = start();
        until("one more to wait", 10 * SOON, || self.waiting(server, name) > before).await;
        started
    }
}

fn listening(server: &Server, channel: &str) -> usize {
    server.ask::<(String, usize)>(&["PUBSUB", "NUMSUB", channel]).1
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = KINDS.iter().find(|(kind, _)| kind == self).expect("all are listed");
        f.write_str(name)
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let found = KINDS.iter().find(|(_, name)| *name == text);
        found.map(|(kind, _)| *kind).ok_or_else(|| format!("no such kind: {text}"))
    }
}

impl<'a> Side<'a> {
    /// Asks for it.
    pub(crate) fn take(self, kind: Kind, name: &str) -> Taking<'a> {
        match self {
            Side::Redisson(jvm) => {
                let thread = jvm.thread();
                let asked = match kind {
                    Kind::Fenced => jvm.ask(thread, &format!("lockAndGetToken:fenced {name}")),
                    _ => jvm.ask(thread, &format!("lock:{kind} {name} -1")),
                };
                let by = By::Redisson { jvm, thread, unlock: format!("unlock:{kind} {name}") };
                Taking::Redisson(Held { granted: 0, token: None, by }, asked)
            }
            Side::Leasehold(client) => {
                let (client, name) = (client.clone(), name.to_owned());
                Taking::Leasehold(tokio::spawn(async move {
                    let guard = kind.lock(&client, &name).await;
                    Held { granted: clock(), token: guard.token(), by: By::Leasehold(guard) }
                }))
            }
        }
    }

    /// Takes what is free for it.
    pub(crate) async fn has(self, kind: Kind, name: &str) -> Held<'a> {
        self.take(kind, name).granted(&format!("{self} to take the free {kind} lock {name}"), 10 * SOON).await
    }

    /// Behind a hold of its own process, one of ours sends nothing before the release, so the server does not know that it waits.
    async fn waits_here(self, client: &Client, kind: Kind, name: &str) -> Taking<'a> {
        let before = client.stats().now.waiting;
        let taking = self.take(kind, name);
        until("one more to wait in this process", 10 * SOON, || client.stats().now.waiting > before).await;
        taking
    }

    /// Asks for what is taken, from a process that does not wait for it yet, or in line; until it waits.
    ///
    /// A JVM's thread that wants to read or write must sleep: while it is about to, it misses what a writer of any side publishes
    /// (Redisson's issue 4744).
    pub(crate) async fn waits(self, server: &Server, kind: Kind, name: &str) -> Taking<'a> {
        let taking = match self {
            Side::Leasehold(client) if kind != Kind::Fair && client.held().iter().any(|held| held.name == name) => {
                self.waits_here(client, kind, name).await
            }
            _ => kind.one_more_waits(server, name, || self.take(kind, name)).await,
        };
        match &taking {
            Taking::Redisson(Held { by: By::Redisson { jvm, thread, .. }, .. }, _) if kind.is_of_a_pair() => {
                jvm.sleeps(*thread).await;
            }
            _ => {}
        }
        taking
    }
}

impl fmt::Display for Side<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Redisson(_) => "Redisson",
            Side::Leasehold(_) => "leasehold",
        })
    }
}

impl<'a> Taking<'a> {
    pub(crate) async fn granted(self, what: &str, patience: Duration) -> Held<'a> {
        match self {
            Taking::Leasehold(task) => within(what, patience, task).await.0.expect("no panic"),
            Taking::Redisson(held, asked) => {
                let answer = within(what, patience, asked.done()).await.0;
                let token = answer.outcome.as_ref().ok().and_then(|value| value.parse().ok());
                Held { granted: answer.ended, token, ..held }
            }
        }
    }

    /// Whether it has come to something.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Taking::Leasehold(task) => task.is_finished(),
            Taking::Redisson(_, asked) => asked.is_answered(),
        }
    }
}

impl Held<'_> {
    /// Gives it back; with the moment just before, on the clock of [`clock`].
    pub(crate) async fn release(self) -> u64 {
        match self.by {
            By::Redisson { jvm, thread, unlock } => jvm.call(thread, &unlock).await.began,
            By::Leasehold(guard) => {
                let before = clock();
                guard.unlock().await;
                before
            }
        }
    }
}

impl OurGuard {
    fn token(&self) -> Option<u64> {
        match self {
            OurGuard::Fenced(guard) => Some(guard.token()),
            OurGuard::Plain(_) | OurGuard::Write(_) => None,
        }
    }

    async fn unlock(self) {
        let given_back = match self {
            OurGuard::Plain(guard) => guard.unlock().await,
            OurGuard::Write(guard) => guard.unlock().await,
            OurGuard::Fenced(guard) => guard.unlock().await,
        };
        given_back.expect("ours to the end");
    }
}
