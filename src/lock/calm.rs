//! Ids of permits that need no attention before a time, a reply or a call. A client may have thousands of them. So each is found by an index,
//! and one event costs the same however many there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use super::{
    hold::Holders,
    on_server::OnServer,
    server_hold::ServerHold,
    types::{HoldId, Moment, RequestId, Ticket},
};

/// Locks have none, and need no memory for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Calm(Option<Box<Index>>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Index {
    /// The holds of all guards, also of those that need attention. A hold may have thousands, so none of them moves along with it.
    guards: BTreeMap<Ticket, HoldId>,
    all: BTreeMap<HoldId, Entry>,
    due: BTreeSet<(Moment, HoldId)>,
    requests: BTreeMap<RequestId, HoldId>,
    held: usize,
    /// The releases at their first try, by the time at which they began.
    first_tries: BTreeSet<(Moment, HoldId)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry {
    one: OnServer,
    due: Option<Moment>,
    request: Option<RequestId>,
}

impl Calm {
    /// It may wait until `due`, for the reply to `request`, and for a call of its guards.
    pub(crate) fn put(&mut self, id: HoldId, one: OnServer, due: Option<Moment>, request: Option<RequestId>) {
        let index = self.0.get_or_insert_default();
        index.due.extend(due.map(|due| (due, id)));
        index.requests.extend(request.map(|request| (request, id)));
        index.first_tries.extend(one.first_try().map(|since| (since, id)));
        index.held += usize::from(held(&one).is_some());
        index.all.insert(id, Entry { one, due, request });
    }

    /// The hold with this id has one more guard.
    pub(crate) fn add_guard(&mut self, guard: Ticket, id: HoldId) {
        self.0.get_or_insert_default().guards.insert(guard, id);
    }

    /// Another guard is of the same hold. Returns that hold if it needs no attention.
    pub(crate) fn split(&mut self, guard: Ticket, part: Ticket) -> Option<&mut OnServer> {
        let index = self.0.as_mut()?;
        let id = *index.guards.get(&guard)?;
        index.guards.insert(part, id);
        index.all.get_mut(&id).map(|entry| &mut entry.one)
    }

    /// This guard has left, or is lost.
    pub(crate) fn remove_guard(&mut self, guard: Ticket) {
        self.0.iter_mut().for_each(|index| _ = index.guards.remove(&guard));
    }

    pub(crate) fn take_due(&mut self, now: Moment) -> impl Iterator<Item = OnServer> + '_ {
        std::iter::from_fn(move || {
            let index = self.0.as_mut()?;
            let (_, id) = index.due.first().copied().filter(|(due, _)| *due <= now)?;
            index.take(id)
        })
    }

    pub(crate) fn take_with(&mut self, guard: Ticket) -> Option<OnServer> {
        let index = self.0.as_mut()?;
        index.take(*index.guards.get(&guard)?)
    }

    pub(crate) fn take_awaiting(&mut self, request: RequestId) -> Option<OnServer> {
        let index = self.0.as_mut()?;
        index.take(*index.requests.get(&request)?)
    }

    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = OnServer> + use<> {
        let all = self.0.as_mut().map(|index| {
            let guards = mem::take(&mut index.guards);
            mem::replace(&mut **index, Index { guards, ..Index::default() }).all
        });
        all.into_iter().flat_map(BTreeMap::into_values).map(|entry| entry.one)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|index| index.all.is_empty())
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        self.0.as_ref()?.due.first().map(|(due, _)| *due)
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = (&ServerHold, &Holders)> {
        self.0.iter().flat_map(|index| index.all.values()).filter_map(|entry| held(&entry.one))
    }

    pub(crate) fn held_with(&self, guard: Ticket) -> Option<(&ServerHold, &Holders)> {
        let index = self.0.as_ref()?;
        held(&index.all.get(index.guards.get(&guard)?)?.one)
    }

    /// The number of holds.
    pub(crate) fn held_count(&self) -> usize {
        self.0.as_ref().map_or(0, |index| index.held)
    }

    /// The number of releases, and of those at their first try.
    pub(crate) fn releasing(&self) -> (usize, usize) {
        self.0.as_ref().map_or((0, 0), |index| (index.all.len() - index.held, index.first_tries.len()))
    }

    /// The time at which the oldest release at its first try began.
    pub(crate) fn first_try(&self) -> Option<Moment> {
        self.0.as_ref()?.first_tries.first().map(|(since, _)| *since)
    }
}

impl Index {
    /// `None` if it needs attention already.
    fn take(&mut self, id: HoldId) -> Option<OnServer> {
        let Entry { one, due, request } = self.all.remove(&id)?;
        due.inspect(|due| _ = self.due.remove(&(*due, id)));
        request.inspect(|request| _ = self.requests.remove(request));
        one.first_try().inspect(|since| _ = self.first_tries.remove(&(*since, id)));
        self.held -= usize::from(held(&one).is_some());
        Some(one)
    }
}

fn held(one: &OnServer) -> Option<(&ServerHold, &Holders)> {
    if let OnServer::Held(server, holders) = one { Some((server, holders)) } else { None }
}
