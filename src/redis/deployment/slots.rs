//! The servers of all slots, and when they last changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::member::Member;
use crate::redis::{conn::Layout, keys::SLOTS, url::Address};

/// The slots of a cluster. Counts the changes of each slot. A slot may have lost keys if its server has changed or was reconnected to.
#[derive(Debug)]
pub(super) struct SlotMap {
    owners: Box<[Option<Arc<Member>>]>,
    changed: Box<[u64]>,
    changes: u64,
    /// The number of the change with which a slot last got another server.
    moves: u64,
    members: BTreeMap<Address, Arc<Member>>,
    /// The ids of the cluster's nodes in the last map, and those that its servers have named since. They identify the cluster, because
    /// addresses can be reused. `None` before the first map.
    nodes: Option<BTreeSet<String>>,
}

/// The reason to believe a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Basis {
    /// The majority of the servers in the URL belongs to its cluster.
    Majority,
    /// One server has replied.
    OneServer,
}

impl SlotMap {
    pub(super) fn new() -> SlotMap {
        let slots = usize::from(SLOTS);
        let (owners, changed) = (vec![None; slots].into(), vec![0; slots].into());
        SlotMap { owners, changed, changes: 0, moves: 0, members: BTreeMap::new(), nodes: None }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Member>> {
        self.owners[usize::from(slot)].as_ref()
    }

    pub(super) fn member(&self, address: &Address) -> Option<&Arc<Member>> {
        self.members.get(address)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values()
    }

    /// Counts up with each change.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// A number that changes whenever a slot gets another server.
    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    /// All slots stay where they are, but messages arrive on other channels.
    pub(super) fn heard_elsewhere(&mut self) {
        self.changes += 1;
    }

    /// True if the slot has changed since the count was `changes`.
    pub(super) fn changed_since(&self, slot: u16, changes: u64) -> bool {
        self.changed[usize::from(slot)] > changes
    }

    /// True if there was a first map: the cluster is known.
    pub(super) fn is_known(&self) -> bool {
        self.nodes.is_some()
    }

    /// True if a layout is of the known cluster: it names one of its nodes. Before the first map, one server proves nothing. Servers
    /// without ids cannot be told apart.
    pub(super) fn is_of_this_cluster(&self, layout: &Layout, basis: Basis) -> bool {
        match &self.nodes {
            None => basis == Basis::Majority,
            Some(nodes) => nodes.is_empty() || !nodes.is_disjoint(&layout.nodes),
        }
    }

    /// A server of this cluster has named these nodes, too: they are known before the next map, in case the old ones leave soon.
    pub(super) fn also_knows(&mut self, layout: Layout) {
        if let Some(nodes) = self.nodes.as_mut().filter(|nodes| !nodes.is_empty()) {
            nodes.extend(layout.nodes);
        }
    }

    pub(super) fn add(&mut self, member: Arc<Member>) {
        self.members.insert(member.address.clone(), member);
    }

    /// One slot has another server.
    pub(super) fn moved(&mut self, slot: u16, to: &Arc<Member>) {
        self.changes += 1;
        self.give(slot, Some(Arc::clone(to)));
    }

    /// A server was reconnected to: all its slots may have lost keys.
    pub(super) fn renewed(&mut self, address: &Address) {
        self.changes += 1;
        for slot in 0..usize::from(SLOTS) {
            if self.owners[slot].as_ref().is_some_and(|owner| owner.address == *address) {
                self.changed[slot] = self.changes;
            }
        }
    }

    /// Replaces the whole map. All servers in it are members already. Returns the members that have no slots anymore.
    pub(super) fn replace(
        &mut self,
        Layout { ranges, nodes }: Layout,
        kept: impl Fn(&Member) -> bool,
    ) -> Vec<Arc<Member>> {
        self.nodes = Some(nodes); // nodes are replaced one by one, so the ids of the last map are enough
        let mut owners: Vec<Option<&Address>> = vec![None; usize::from(SLOTS)];
        for (first, last, address) in &ranges {
            (*first..=(*last).min(SLOTS - 1)).for_each(|slot| owners[usize::from(slot)] = Some(address));
        }
        self.changes += 1;
        for (slot, address) in (0..SLOTS).zip(owners) {
            let member = address.and_then(|address| self.members.get(address)).cloned();
            self.give(slot, member);
        }
        let is_needed =
            |member: &Arc<Member>| kept(member) || ranges.iter().any(|(_, _, address)| *address == member.address);
        let (needed, gone) = std::mem::take(&mut self.members).into_iter().partition(|(_, member)| is_needed(member));
        self.members = needed;
        gone.into_values().collect()
    }

    fn give(&mut self, slot: u16, to: Option<Arc<Member>>) {
        let slot = usize::from(slot);
        let same = match (&self.owners[slot], &to) {
            (Some(owner), Some(to)) => Arc::ptr_eq(owner, to),
            (owner, to) => owner.is_none() && to.is_none(),
        };
        if !same {
            (self.owners[slot], self.changed[slot]) = (to, self.changes);
            self.moves = self.changes;
        }
    }
}
