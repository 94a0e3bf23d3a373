//! One name on a server: the rules that `tests/model` holds against the scripts, with a clock.

use std::time::Duration;

use crate::{
    family::{
        fair::{Fair, FairAnswer},
        fenced::Fenced,
        hash::{self, Answer, Hash},
        rw::{self, ReadWrite, life},
    },
    lock::{HoldId, How, Mode, Moment, Queueing, Reply, Request, Token},
    rules::{self, Lock, What, pass},
    units::{FieldId, GRACE, PLACE, is_rest, writes},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Plain,
    Fenced,
    ReadWrite,
    Fair,
    Latch,
}

/// The subscribers at the time of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners {
    /// The number of other clients that listen on the channel of the name.
    pub(crate) others: u32,
    /// Waiters that listen on channels of their own.
    pub(crate) places: Vec<FieldId>,
}

/// The receivers of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    Nothing,
    ToAll,
    To(Vec<FieldId>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    now: Moment,
    name: Name,
    /// Waiters that have had their turn, and that a failover has brought back to the queue of a fair lock.
    brought_back: Vec<FieldId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    Plain(Option<Lock>),
    Fenced(Fenced),
    ReadWrite(ReadWrite),
    Fair(Fair),
    Latch(Gate),
}

/// Whether the count of a latch is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Gate {
    Open,
    Shut,
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).expect("a few seconds")
}

impl Server {
    pub(crate) fn new(kind: Kind) -> Server {
        let name = match kind {
            Kind::Plain => Name::Plain(None),
            Kind::Fenced => Name::Fenced(Fenced::default()),
            Kind::ReadWrite => Name::ReadWrite(ReadWrite::default()),
            Kind::Fair => Name::Fair(Fair::default()),
            Kind::Latch => Name::Latch(Gate::Shut),
        };
        Server { now: Moment::ZERO, name, brought_back: Vec::new() }
    }

    /// Time passes.
    pub(crate) fn pass_to(&mut self, now: Moment) {
        let time = nanos(now.since(self.now));
        self.now = now;
        if time == 0 {
            return;
        }
        match &mut self.name {
            Name::Plain(lock) => *lock = pass(*lock, time as u64),
            Name::Fenced(fenced) => fenced.lock = fenced.lock.take().and_then(|lock| lock.later(time)),
            Name::ReadWrite(rw) => rw.pass(time),
            Name::Fair(fair) => fair.pass(time),
            Name::Latch(_) => {}
        }
    }

    /// The next moment at which something expires.
    pub(crate) fn next_end(&self) -> Option<Moment> {
        let left = match &self.name {
            Name::Plain(lock) => lock.and_then(|lock| lock.left).map(|left| left as i64),
            Name::Fenced(fenced) => fenced.lock.as_ref().map(|lock| lock.left),
            Name::ReadWrite(rw) => {
                let lives = rw.lives.values().map(|life| life.0);
                lives.chain(rw.lock.as_ref().map(|lock| lock.left)).chain(rw.mark.map(|(_, left)| left)).min()
            }
            Name::Fair(fair) => {
                let turns = fair.places.values().flat_map(|till| [*till, till - GRACE]).filter(|left| *left > 0);
                turns.chain(fair.lock.as_ref().map(|lock| lock.left)).min()
            }
            Name::Latch(_) => None,
        };
        left.map(|left| self.now + Duration::from_nanos(left as u64))
    }

    /// The count of a hold that is there now.
    pub(crate) fn count(&self, field: &FieldId) -> Option<u64> {
        match &self.name {
            Name::Plain(lock) => lock.filter(|lock| lock.id == *field).map(|lock| u64::from(lock.count)),
            Name::Fenced(fenced) => fenced.lock.as_ref().and_then(|lock| lock.count(field)),
            Name::ReadWrite(rw) => {
                let is_there = writes(field) || rw.lives.contains_key(&life(field));
                rw.count(field).filter(|_| is_there)
            }
            Name::Fair(fair) => fair.count(field),
            Name::Latch(_) => None,
        }
    }

    /// The time that is left of it, in nanoseconds.
    pub(crate) fn left(&self, field: &FieldId) -> Option<u64> {
        self.count(field)?;
        let left = match &self.name {
            Name::Plain(lock) => return lock.and_then(|lock| lock.left),
            Name::Fenced(Fenced { lock, .. }) | Name::Fair(Fair { lock, .. }) => lock.as_ref()?.left,
            Name::ReadWrite(rw) if writes(field) => rw.lock.as_ref()?.left,
            Name::ReadWrite(rw) => rw.lives.get(&life(field))?.0,
            Name::Latch(_) => return None,
        };
        u64::try_from(left).ok()
    }

    pub(crate) fn fields(&self) -> Vec<FieldId> {
        match &self.name {
            Name::Plain(lock) => lock.iter().map(|lock| lock.id).collect(),
            Name::Fenced(Fenced { lock, .. })
            | Name::ReadWrite(ReadWrite { lock, .. })
            | Name::Fair(Fair { lock, .. }) => {
                lock.iter().flat_map(|lock| lock.fields.iter().map(|(id, _)| *id)).collect()
            }
            Name::Latch(_) => Vec::new(),
        }
    }

    /// Nothing at all is left, but what rests.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields().iter().all(is_rest) && self.mark().is_none() && self.queue().iter().all(|id| self.is_dead(id))
    }

    /// The waiters in the queue of a fair lock, the next one first. A place without a waiter is one, too.
    pub(crate) fn queue(&self) -> Vec<FieldId> {
        let Name::Fair(fair) = &self.name else { return Vec::new() };
        let alone = fair.places.keys().filter(|id| !fair.line.contains(id));
        fair.line.iter().chain(alone).copied().collect()
    }

    /// A waiter whose process was killed, or whose client no longer has it.
    pub(crate) fn is_dead(&self, id: &FieldId) -> bool {
        id.client == DEAD || self.brought_back.contains(id)
    }

    /// How often the queue waits for one that does not come: once for all that were killed, and once for each that was brought back, because
    /// requests of its own client pass over one at a time.
    pub(crate) fn absent(&self) -> u64 {
        let (killed, back): (Vec<_>, Vec<_>) =
            self.queue().into_iter().filter(|id| self.is_dead(id)).partition(|id| id.client == DEAD);
        u64::from(!killed.is_empty()) + back.len() as u64
    }

    /// The queue of a new master begins with these.
    pub(crate) fn bring_back(&mut self, waiters: Vec<FieldId>) {
        let Name::Fair(fair) = &mut self.name else { return };
        let is_there = |fair: &Fair, id: &FieldId| fair.line.contains(id) || fair.count(id).is_some();
        for id in waiters.into_iter().filter(|id| !is_there(fair, id)).collect::<Vec<_>>() {
            fair.line.insert(0, id);
            fair.places.insert(id, PLACE);
            self.brought_back.push(id);
        }
    }

    /// A process joins the queue and is killed.
    pub(crate) fn add_dead(&mut self, id: HoldId) {
        if let Name::Fair(fair) = &mut self.name {
            fair.stands_in_line(&exclusive(DEAD, id), Some(PLACE));
        }
    }

    pub(crate) fn mark(&self) -> Option<FieldId> {
        match &self.name {
            Name::ReadWrite(rw) => rw.mark.map(|(id, _)| id),
            Name::Plain(_) | Name::Fenced(_) | Name::Fair(_) | Name::Latch(_) => None,
        }
    }

    /// A waiter of this mode would be admitted now, if no other waiter has a mark.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        match &self.name {
            Name::Plain(lock) => lock.is_none(),
            Name::Fenced(Fenced { lock, .. }) | Name::Fair(Fair { lock, .. }) => lock.is_none(),
            Name::ReadWrite(rw) => match rw.mode() {
                rw::Mode::Free => mode == Mode::Exclusive || !rw.mark.is_some_and(|(id, _)| writes(&id)),
                rw::Mode::Read => mode == Mode::Shared && !rw.mark.is_some_and(|(id, _)| writes(&id)),
                rw::Mode::Write | rw::Mode::Conflict => false,
            },
            Name::Latch(gate) => *gate == Gate::Open,
        }
    }

    /// A JVM that reads sets all leases to its own, if that is shorter.
    pub(crate) fn shorten(&mut self, lease: Duration) {
        let Name::ReadWrite(rw) = &mut self.name else { return };
        if rw.mode() == rw::Mode::Read {
            let leases = rw.lives.values_mut().map(|life| &mut life.0);
            leases.chain(rw.lock.as_mut().map(|lock| &mut lock.left)).for_each(|left| *left = nanos(lease).min(*left));
        }
    }

    /// All holds end, and nobody is told.
    pub(crate) fn lose_all(&mut self) -> Vec<FieldId> {
        let gone = self.fields();
        match &mut self.name {
            Name::Plain(lock) => *lock = None,
            Name::Fenced(fenced) => fenced.lock = None,
            Name::ReadWrite(rw) => *rw = ReadWrite::default(),
            Name::Fair(fair) => *fair = Fair::default(),
            Name::Latch(gate) => *gate = Gate::Open,
        }
        gone
    }

    /// All holds end. The waiter that is next is notified if it has a place on the server, and otherwise nobody. A latch is counted down to
    /// zero, or set again if it was.
    pub(crate) fn force(&mut self, listeners: Listeners) -> (Vec<FieldId>, Published) {
        let gone = self.fields();
        if let Name::Latch(gate) = &mut self.name {
            *gate = if *gate == Gate::Open { Gate::Shut } else { Gate::Open };
            return (gone, Published::ToAll);
        }
        let Name::Fair(fair) = &mut self.name else { return (self.lose_all(), Published::Nothing) };
        fair.listening = listeners.places;
        let notified = gone.iter().flat_map(|id| fair.force_unlock(id).1).collect();
        fair.listening.clear();
        (gone, Published::To(notified))
    }

    /// The reply, and what was published.
    pub(crate) fn run(
        &mut self,
        now: Moment,
        client: u8,
        request: Request,
        listeners: Listeners,
    ) -> (Reply, Published) {
        self.pass_to(now);
        let told = listeners.others;
        let (reply, published) = match &mut self.name {
            Name::Plain(lock) => plain(lock, client, request, told),
            Name::Fenced(name) => fenced(name, client, request, told),
            Name::ReadWrite(name) => read_write(name, client, request, told),
            Name::Fair(name) => {
                name.listening = listeners.places;
                let (reply, notified) = fair(name, client, request);
                name.listening.clear();
                return (reply, Published::To(notified));
            }
            Name::Latch(Gate::Open) => (Reply::Open, false),
            Name::Latch(Gate::Shut) => (Reply::Busy { left: None, by: Mode::Exclusive, own: None }, false),
        };
        (reply, if published { Published::ToAll } else { Published::Nothing })
    }
}

const DEAD: u8 = u8::MAX;

fn exclusive(client: u8, id: HoldId) -> FieldId {
    FieldId::new(client, id, Mode::Exclusive)
}

fn plain(lock: &mut Option<Lock>, client: u8, request: Request, told: u32) -> (Reply, bool) {
    let field = |id| exclusive(client, id);
    let (id, what) = match request {
        Request::Acquire { id, lease, count, how, .. } => {
            (id, What::Acquire { level: count as u8, lease: nanos(lease) as u64, again: how == How::Again })
        }
        Request::Release { id, count: 0, rest, .. } if !rest.is_zero() => {
            (id, What::ReleaseEarly { rest: nanos(rest) as u64 })
        }
        Request::Release { id, count, .. } => (id, What::Release { level: count as u8 }),
        Request::Renew { id, lease, .. } => (id, What::Renew { lease: lease.map_or(0, nanos) as u64 }),
        Request::HandOver { id, to, lease } => (id, What::HandOver { heir: field(to), lease: nanos(lease) as u64 }),
    };
    let after = rules::run(*lock, rules::Request { id: field(id), what });
    *lock = after.lock;
    let reply = match after.reply {
        rules::Reply::Granted(_) => Reply::Granted(None),
        rules::Reply::Lost => Reply::Lost,
        rules::Reply::Busy(left, by) => {
            Reply::Busy { left: left.map(Duration::from_nanos), by: Mode::Exclusive, own: by.own(client) }
        }
        rules::Reply::Kept(left) => Reply::Kept { admits: true, left: left.map(Duration::from_nanos) },
        rules::Reply::Released => Reply::Released { receivers: if after.published { told } else { 0 } },
        rules::Reply::Handed | rules::Reply::HandedBefore => Reply::Handed(None),
        rules::Reply::Deeper(_) => Reply::Deeper,
        rules::Reply::Gone | rules::Reply::Free | rules::Reply::Held(..) => Reply::Gone,
    };
    (reply, after.published)
}

/// Its own scripts grant; the others are those of the plain lock.
fn fenced(name: &mut Fenced, client: u8, request: Request, told: u32) -> (Reply, bool) {
    let field = |id| exclusive(client, id);
    let answer = match request {
        Request::Acquire { id, lease, count, how, .. } => {
            name.acquire(&field(id), nanos(lease), u64::from(count), how == How::Again)
        }
        Request::HandOver { id, to, lease } => name.hand_over(&field(id), nanos(lease), &field(to)),
        Request::Release { .. } | Request::Renew { .. } => {
            let mut lock = name.lock.as_ref().map(|lock| {
                let (id, count) = lock.fields[0];
                Lock { id, count: count as u8, left: Some(lock.left as u64) }
            });
            let answer = plain(&mut lock, client, request, told);
            name.lock = lock.map(|lock| Hash::of(None, &lock.id, u64::from(lock.count), lock.left.unwrap_or(0) as i64));
            return answer;
        }
    };
    (reply(answer, client, told, true), false)
}

fn read_write(name: &mut ReadWrite, client: u8, request: Request, told: u32) -> (Reply, bool) {
    let field = |id, mode| FieldId::new(client, id, mode);
    let (answer, published) = match request {
        Request::Acquire { id, mode: Mode::Exclusive, lease, count, how } => {
            (name.write_acquire(&field(id, Mode::Exclusive), (nanos(lease), u64::from(count)), asked(how)), 0)
        }
        Request::Acquire { id, mode: Mode::Shared, lease, count, how } => {
            let writer = if let How::Beside(id) = how { Some(exclusive(client, id)) } else { None };
            let terms = (nanos(lease), u64::from(count));
            (name.read_acquire(&field(id, Mode::Shared), terms, asked(how), writer.as_ref()), 0)
        }
        Request::Release { id, mode: Mode::Exclusive, count, rest, .. } => {
            name.write_release(&field(id, Mode::Exclusive), nanos(rest), u64::from(count))
        }
        Request::Release { id, mode: Mode::Shared, count, rest, .. } => {
            name.read_release(&field(id, Mode::Shared), nanos(rest), u64::from(count))
        }
        Request::Renew { id, mode: Mode::Exclusive, lease, .. } => {
            (name.write_renew(&field(id, Mode::Exclusive), lease.map_or(0, nanos)), 0)
        }
        Request::Renew { id, mode: Mode::Shared, lease, .. } => {
            (name.read_renew(&field(id, Mode::Shared), lease.map_or(0, nanos)), 0)
        }
        Request::HandOver { id, to, lease } => {
            (name.write_hand_over(&exclusive(client, id), nanos(lease), &exclusive(client, to)), 0)
        }
    };
    (reply(answer, client, if published > 0 { told } else { 0 }, false), published > 0)
}

/// Its own scripts acquire and release; the lease is that of the plain lock.
fn fair(name: &mut Fair, client: u8, request: Request) -> (Reply, Vec<FieldId>) {
    let (answer, notified) = match request {
        Request::Acquire { id, lease, count, how, .. } => {
            name.acquire(&exclusive(client, id), nanos(lease), u64::from(count), asked(how))
        }
        Request::Release { id, count, rest, .. } => name.release(&exclusive(client, id), nanos(rest), u64::from(count)),
        Request::Renew { id, lease, .. } => {
            let own = name.lock.as_mut().filter(|lock| lock.count(&exclusive(client, id)).is_some());
            let kept = own.map(|lock| {
                lock.left = lock.left.max(lease.map_or(0, nanos));
                u64::try_from(lock.left).ok().map(Duration::from_nanos)
            });
            return (kept.map_or(Reply::Gone, |left| Reply::Kept { admits: false, left }), Vec::new());
        }
        Request::HandOver { .. } => return (Reply::Conflict, Vec::new()), // there is no script for that
    };
    (fair_reply(answer, client), notified)
}

fn fair_reply(answer: FairAnswer, client: u8) -> Reply {
    let time = |left: i64| u64::try_from(left).ok().map(Duration::from_nanos);
    match answer {
        FairAnswer::Granted(_) => Reply::Granted(None),
        FairAnswer::Lost => Reply::Lost,
        FairAnswer::Conflict => Reply::Conflict,
        FairAnswer::Out => Reply::Out,
        FairAnswer::Queued(left, place, by) => {
            Reply::Queued { left: time(left), place: place as u64, own: by.and_then(|by| by.own(client)) }
        }
        FairAnswer::Busy(left, by) => {
            Reply::Busy { left: time(left), by: Mode::Exclusive, own: by.and_then(|by| by.own(client)) }
        }
        FairAnswer::Released => Reply::Released { receivers: 0 },
        FairAnswer::Gone => Reply::Gone,
    }
}

fn asked(how: How) -> hash::How {
    match how {
        How::Try | How::Beside(_) | How::Look | How::Queue(Queueing::Never) => hash::How::First,
        How::Wait | How::Queue(Queueing::Join) => hash::How::Wait,
        How::Queue(Queueing::Stay) => hash::How::Stay,
        How::Turn => hash::How::Turn,
        How::Late => hash::How::Late,
        How::Again => hash::How::Again,
    }
}

fn reply(answer: Answer, client: u8, told: u32, has_token: bool) -> Reply {
    match answer {
        Answer::Granted(token) => Reply::Granted(has_token.then_some(Token::of(token))),
        Answer::Lost => Reply::Lost,
        Answer::Conflict => Reply::Conflict,
        Answer::Busy(left, by) => {
            let left = u64::try_from(left).ok().map(Duration::from_nanos);
            Reply::Busy { left, by: by.mode, own: by.own(client) }
        }
        Answer::Released | Answer::Forced => Reply::Released { receivers: told },
        Answer::Gone | Answer::Free | Answer::Held(_) => Reply::Gone,
        Answer::Kept(left, admits) => Reply::Kept { admits, left: u64::try_from(left).ok().map(Duration::from_nanos) },
        Answer::KeptFor(left) => Reply::Kept { admits: true, left: u64::try_from(left).ok().map(Duration::from_nanos) },
        Answer::Written => Reply::Kept { admits: true, left: None },
        Answer::Handed | Answer::HandedBefore => Reply::Handed(None),
        Answer::HandedWith(token) | Answer::HandedBeforeWith(token) => Reply::Handed(Some(Token::of(token))),
        Answer::Deeper(_) => Reply::Deeper,
    }
}
