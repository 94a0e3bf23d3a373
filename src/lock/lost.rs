//! Holds that were lost before their guards were dropped: those of whole ids, and readers that reached their `max_hold` before the others.

use super::{
    hold::Hold,
    rare::Usual,
    server_hold::ServerHold,
    types::{Cx, HoldId, Loss, Mode, Moment, Owner, Ticket},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LostHold {
    pub(crate) hold: Hold,
    pub(crate) loss: Loss,
    /// The server may still have this id: the holder needs the rest of the lease to stop.
    pub(crate) of: HoldId,
    /// The last request by which the server had it was sent then.
    pub(crate) last_confirmed: Moment,
    /// Its lease ended then. Others that share the id may have renewed it since.
    pub(crate) until: Moment,
}

impl LostHold {
    /// These holds of one id were lost.
    pub(crate) fn all(holds: Vec<Hold>, loss: Loss, server: &ServerHold) -> Vec<LostHold> {
        let (of, last_confirmed, until) = (server.id, server.lease.last_confirmed, server.lease.certain_until);
        holds.into_iter().map(|hold| LostHold { hold, loss, of, last_confirmed, until }).collect()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct LostHolds(Vec<LostHold>);

impl Usual for LostHolds {
    const USUAL: &'static LostHolds = &LostHolds(Vec::new());
}

impl LostHolds {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn extend(&mut self, lost: impl IntoIterator<Item = LostHold>) {
        self.0.extend(lost);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LostHold> {
        self.0.iter()
    }

    /// The hold of this guard.
    pub(crate) fn with(&self, guard: Ticket) -> Option<&LostHold> {
        self.0.iter().find(|lost| lost.hold.has(guard))
    }

    pub(crate) fn by(&self, owner: Owner) -> Option<&LostHold> {
        self.0.iter().find(|lost| lost.hold.owner == owner)
    }

    pub(crate) fn has_by(&self, owner: Owner, mode: Mode) -> bool {
        self.0.iter().any(|lost| lost.hold.owner == owner && lost.hold.mode() == mode)
    }

    pub(crate) fn of(&self, id: HoldId) -> impl Iterator<Item = &LostHold> {
        self.0.iter().filter(move |lost| lost.of == id)
    }

    /// None of the guards of this id needs it for longer; `None` if there are none.
    pub(crate) fn needed_until(&self, id: HoldId) -> Option<Moment> {
        self.of(id).map(|lost| lost.until).max()
    }

    pub(crate) fn has_of(&self, id: HoldId) -> bool {
        self.of(id).next().is_some()
    }

    /// Another guard of the same hold has so many of its permits from now on.
    pub(crate) fn split(&mut self, guard: Ticket, part: (Ticket, u32)) {
        self.0.iter_mut().for_each(|lost| lost.hold.split(guard, part));
    }

    /// This guard has left. Returns the id that no guard of a lost hold is of anymore.
    pub(crate) fn remove(&mut self, guard: Ticket, cx: &mut Cx<'_>) -> Option<HoldId> {
        let at = self.0.iter().position(|lost| lost.hold.has(guard))?;
        self.0[at].hold.remove(guard);
        if self.0[at].hold.has_guards() {
            return None;
        }
        let lost = self.0.swap_remove(at);
        lost.hold.left(cx);
        (!self.has_of(lost.of)).then_some(lost.of)
    }

    /// The client is closed: their guards no longer count.
    pub(crate) fn end(&mut self, cx: &mut Cx<'_>) {
        self.0.drain(..).for_each(|lost| lost.hold.left(cx));
    }
}
