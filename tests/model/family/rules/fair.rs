//! What the scripts of the fair lock do, as pure rules: the lock, and its queue.

use std::{collections::BTreeMap, fmt};

use super::hash::{Hash as Lock, How};
use crate::units::{FieldId as Id, FieldRef, GRACE, JVM, NEVER, PLACE, is_of_one_client, ours, rest_of};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fair {
    pub(crate) lock: Option<Lock>,
    /// The waiters, the next one first.
    pub(crate) line: Vec<Id>,
    /// The time until which each keeps its place, counted from now.
    pub(crate) places: BTreeMap<Id, i64>,
    /// The subscribed waiters.
    pub(crate) listening: Vec<Id>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FairAnswer {
    Granted(u64),
    Lost,
    Conflict,
    Out,
    /// The time until the next request makes sense, the place from 1, and the holder.
    Queued(i64, usize, Option<Id>),
    Busy(i64, Option<Id>),
    Released,
    Gone,
}

/// As the scripts write it.
impl fmt::Display for FairAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |id: &Option<Id>| id.as_ref().map(ToString::to_string).unwrap_or_default();
        match self {
            FairAnswer::Granted(count) => write!(f, "granted {count}"),
            FairAnswer::Lost => f.write_str("lost"),
            FairAnswer::Conflict => f.write_str("conflict"),
            FairAnswer::Out => f.write_str("out"),
            FairAnswer::Queued(left, place, holder) => write!(f, "queued {left} {place} {}", name(holder)),
            FairAnswer::Busy(left, holder) => write!(f, "busy {left} {}", name(holder)),
            FairAnswer::Released => f.write_str("released"),
            FairAnswer::Gone => f.write_str("gone"),
        }
    }
}

/// The waiter that is next, the time that it has, and all waiters that messages were sent to.
#[derive(Default)]
struct Called {
    first: Option<Id>,
    till: i64,
    published: Vec<Id>,
}

impl Fair {
    pub(crate) fn count(&self, id: &FieldRef) -> Option<u64> {
        self.lock.as_ref()?.count(id)
    }

    fn place(&self, id: &FieldRef) -> Option<usize> {
        self.line.iter().position(|other| other == id)
    }

    fn leave(&mut self, id: &FieldRef) {
        self.line.retain(|other| other != id);
        self.places.remove(id);
    }

    pub(crate) fn pass(&mut self, time: i64) {
        self.lock = self.lock.take().and_then(|lock| lock.later(time));
        self.places.values_mut().for_each(|till| *till -= time);
    }

    /// The lock is free, or `fresh`: free only now.
    fn call_next(&mut self, me: Option<&FieldRef>, fresh: bool) -> Called {
        let mut published = Vec::new();
        loop {
            let Some(first) = self.line.first().cloned() else { return Called { published, ..Called::default() } };
            if me.is_some_and(|me| first == *me) {
                return Called { first: Some(first), published, ..Called::default() };
            }
            let till = self.places.get(&first).copied().unwrap_or(NEVER);
            let is_called = !fresh && till <= GRACE;
            if is_called && till > 0 {
                return Called { first: Some(first), till, published };
            }
            if !is_called {
                published.push(first.clone());
                let listens = fresh && self.listening.contains(&first);
                if let Some(turn) = turn(&first, till, listens) {
                    self.places.insert(first.clone(), turn);
                    return Called { first: Some(first), till: turn, published };
                }
            }
            self.leave(&first);
            if is_called && !me.is_some_and(|me| is_of_one_client(&first, me)) {
                published.append(&mut self.sweep(&first));
            }
        }
    }

    /// A waiter did not come. The next waiters of its client leave, up to the first that is subscribed. Returns all these.
    fn sweep(&mut self, gone: &FieldRef) -> Vec<Id> {
        let theirs = self.line.iter().filter(|id| is_of_one_client(id, gone));
        let first = theirs.clone().position(|id| self.listening.contains(id));
        let notified: Vec<_> = theirs.take(first.map_or(usize::MAX, |first| first + 1)).cloned().collect();
        notified.iter().take(first.unwrap_or(usize::MAX)).for_each(|id| self.leave(id));
        notified
    }

    /// The waiters that messages were sent to come second.
    pub(crate) fn acquire(&mut self, id: &FieldRef, lease: i64, level: u64, how: How) -> (FairAnswer, Vec<Id>) {
        if let Some(lock) = self.lock.as_mut().filter(|lock| lock.count(id).is_some()) {
            lock.set(id, level);
            lock.lasts(lease);
            return (FairAnswer::Granted(level), Vec::new());
        }
        let theirs = self.lock.as_ref().map_or(Some(None), |lock| lock.holder().map(|id| Some(id.clone())));
        match theirs {
            _ if how == How::Again => (FairAnswer::Lost, Vec::new()),
            None => (FairAnswer::Conflict, Vec::new()),
            _ if how == How::Stay && self.place(id).is_none() => (FairAnswer::Out, Vec::new()),
            Some(theirs) => self.take_or_wait(id, lease, level, (how, theirs)),
        }
    }

    fn take_or_wait(
        &mut self,
        id: &FieldRef,
        lease: i64,
        level: u64,
        (how, theirs): (How, Option<Id>),
    ) -> (FairAnswer, Vec<Id>) {
        let (left, published) = match &self.lock {
            Some(lock) => (lock.left, Vec::new()),
            None => {
                let called = self.call_next(Some(id), false);
                if called.first.as_ref().is_none_or(|first| first == id) {
                    self.leave(id);
                    self.lock = Some(Lock::of(None, id, level, lease));
                    return (FairAnswer::Granted(level), called.published);
                }
                (called.till, called.published)
            }
        };
        if how == How::First {
            return (FairAnswer::Busy(left, theirs), published);
        }
        let place = self.stand(id);
        (FairAnswer::Queued(left, place, theirs), published)
    }

    /// The waiter joins the queue, or renews its place. Returns that place, from 1.
    fn stand(&mut self, id: &FieldRef) -> usize {
        let before = self.place(id).unwrap_or(self.line.len());
        if self.place(id) == Some(0) && self.places.get(id).is_some_and(|till| (1 - GRACE..=GRACE).contains(till)) {
            return 1; // it was notified a while ago, though its lock is held: for another lock that shares the queue
        }
        if before == self.line.len() {
            self.line.push(id.to_owned());
        }
        let jvms = self.line[..before].iter().filter(|other| !ours(other)).count();
        self.places.insert(id.to_owned(), PLACE + JVM * i64::try_from(jvms).expect("few"));
        before + 1
    }

    pub(crate) fn release(&mut self, id: &FieldRef, rest: i64, level: u64) -> (FairAnswer, Vec<Id>) {
        match (self.count(id), level) {
            (None, 0) if self.count(&rest_of(id)).is_some() => (FairAnswer::Released, self.head()),
            (None, 0) => {
                let was = self.place(id);
                if was.is_some() {
                    self.leave(id);
                }
                if self.lock.is_some() {
                    return (FairAnswer::Gone, Vec::new());
                }
                (FairAnswer::Gone, self.call_next(None, was == Some(0)).published)
            }
            (None, _) => (FairAnswer::Gone, Vec::new()),
            (Some(_), 0) if rest > 0 => {
                self.lock = Some(Lock::of(None, &rest_of(id), 1, rest));
                (FairAnswer::Released, self.head())
            }
            (Some(_), 0) => {
                self.lock = None;
                (FairAnswer::Released, self.call_next(None, true).published)
            }
            (Some(_), level) => {
                self.lock.iter_mut().for_each(|lock| lock.set(id, level));
                (FairAnswer::Released, Vec::new())
            }
        }
    }

    /// The next waiter tries when the rest of the hold that was released early has ended.
    fn head(&self) -> Vec<Id> {
        self.line.first().cloned().into_iter().collect()
    }

    /// Whether the hold was there, and the waiters that messages were sent to.
    pub(crate) fn force_unlock(&mut self, id: &FieldRef) -> (bool, Vec<Id>) {
        if self.count(id).is_none() {
            return (false, Vec::new());
        }
        self.lock = None;
        (true, self.call_next(None, true).published)
    }

    /// A waiter that sends no further request, with a place or without.
    pub(crate) fn stands_in_line(&mut self, id: &FieldRef, place: Option<i64>) {
        if self.place(id).is_none() {
            self.line.push(id.to_owned());
        }
        match place {
            Some(place) => _ = self.places.insert(id.to_owned(), place),
            None => _ = self.places.remove(id),
        }
    }
}

/// The turn of a notified waiter. One whose place has expired has a turn only if it listens.
fn turn(head: &FieldRef, till: i64, listens: bool) -> Option<i64> {
    match listens {
        true if ours(head) => Some(GRACE),
        true => Some(till.max(GRACE)), // another JVM would remove it at the end of its turn
        false => (till > 0).then_some(till.min(GRACE)),
    }
}
