//! Ids of permits that need no attention before a time, a reply or a call.

use std::{collections::BTreeMap, iter, mem};

use super::{
    hold::Holders,
    index::{Index, Key, Keyed},
    on_server::OnServer,
    server_hold::ServerHold,
    types::{HoldId, Moment, RequestId, Ticket},
};

/// Locks have none, and need no memory for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Calm(Option<Box<Permits>>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Permits {
    /// The holds of all guards, also of those that need attention. A hold may have thousands, so none of them moves along with it.
    guards: BTreeMap<Ticket, HoldId>,
    calm: Index<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry {
    one: OnServer,
    due: Option<Moment>,
    request: Option<RequestId>,
}

impl Keyed for Entry {
    fn keys(&self) -> impl Iterator<Item = Key> {
        let release = self.is_release().then(|| self.one.first_try().map_or(Key::Failed, Key::FirstTry));
        [self.due.map(Key::Due), self.request.map(Key::Awaits), release].into_iter().flatten()
    }

    fn is_release(&self) -> bool {
        self.one.held().is_none()
    }
}

impl Calm {
    /// It may wait until `due`, for the reply to `request`, and for a call of its guards.
    pub(crate) fn put(&mut self, id: HoldId, one: OnServer, due: Option<Moment>, request: Option<RequestId>) {
        self.0.get_or_insert_default().calm.put(id, Entry { one, due, request });
    }

    /// The hold with this id has one more guard.
    pub(crate) fn add_guard(&mut self, guard: Ticket, id: HoldId) {
        self.0.get_or_insert_default().guards.insert(guard, id);
    }

    /// Another guard of the same hold has so many of its permits from now on. False if that hold needs attention.
    pub(crate) fn split(&mut self, guard: Ticket, part: (Ticket, u32)) -> bool {
        let Some(permits) = &mut self.0 else { return false };
        let Some(id) = permits.guards.get(&guard).copied() else { return false };
        permits.guards.insert(part.0, id);
        permits.calm.change(id, |entry| entry.one.split(guard, part)).is_some()
    }

    /// This guard has left, or is lost.
    pub(crate) fn remove_guard(&mut self, guard: Ticket) {
        self.0.iter_mut().for_each(|permits| _ = permits.guards.remove(&guard));
    }

    pub(crate) fn take_due(&mut self, now: Moment) -> impl Iterator<Item = OnServer> + '_ {
        iter::from_fn(move || {
            let due = self.all()?.due(now)?;
            self.take(due)
        })
    }

    pub(crate) fn take_with(&mut self, guard: Ticket) -> Option<OnServer> {
        self.take(*self.0.as_ref()?.guards.get(&guard)?)
    }

    pub(crate) fn take_awaiting(&mut self, request: RequestId) -> Option<OnServer> {
        self.take(self.all()?.find(Key::Awaits(request))?)
    }

    /// `None` if it needs attention already.
    fn take(&mut self, id: HoldId) -> Option<OnServer> {
        self.0.as_mut()?.calm.take(id).map(|entry| entry.one)
    }

    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = OnServer> + use<> {
        let all = self.0.as_mut().map(|permits| mem::take(&mut permits.calm));
        all.into_iter().flat_map(Index::into_values).map(|entry| entry.one)
    }

    fn all(&self) -> Option<&Index<Entry>> {
        self.0.as_ref().map(|permits| &permits.calm)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_none_or(|all| all.is_empty())
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        self.all()?.first(Key::Due).map(|(due, _)| due)
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = (&ServerHold, &Holders)> {
        self.all().into_iter().flat_map(Index::iter).filter_map(|(_, entry)| entry.one.held())
    }

    pub(crate) fn held_with(&self, guard: Ticket) -> Option<(&ServerHold, &Holders)> {
        let permits = self.0.as_ref()?;
        permits.calm.get(*permits.guards.get(&guard)?)?.one.held()
    }

    /// The number of holds.
    pub(crate) fn held_count(&self) -> usize {
        self.all().map_or(0, |all| all.len() - all.releases())
    }

    /// The number of releases.
    pub(crate) fn releasing(&self) -> usize {
        self.all().map_or(0, Index::releases)
    }

    pub(crate) fn has_failed_release(&self) -> bool {
        self.all().is_some_and(|all| all.find(Key::Failed).is_some())
    }

    /// The time at which the oldest release at its first try began.
    pub(crate) fn first_try(&self) -> Option<Moment> {
        self.all()?.first(Key::FirstTry).map(|(since, _)| since)
    }
}
