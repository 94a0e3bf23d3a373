//! Every order of events that there is, for small sizes: breadth first, of the same [`LockState`].

use std::{
    collections::{BTreeSet, HashMap, hash_map::DefaultHasher, hash_map::Entry},
    fmt,
    hash::{Hash, Hasher},
    time::{Duration, Instant},
};

use crate::{
    lock::{
        Action, Actions, Channel, Config, Cx, Event, How, Limit, LockState, Loss, Mode, Moment, Nanos, Outcome, Owner,
        Reply, Request, RequestId, Terms, Ticket,
    },
    server::{Kind, Listeners, Published, Server},
    units::FieldId,
    world::{rules_of, state_of},
};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The longest time that a request may take.
const COMMAND: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
struct Size {
    name: &'static str,
    kind: Kind,
    /// For each client: owner and terms of each of its callers.
    callers: Vec<Vec<(u64, Terms)>>,
    handovers: u32,
    cuts: u8,
    /// How often time may go on to where something is due.
    ticks: u8,
    forced: u8,
    /// Requests of a connection that was cut may run later.
    overtaking: bool,
    /// Requests of one client, and answers to them, may come in any order.
    unordered: bool,
    /// Callers may leave while they wait.
    leave: bool,
    /// Holders unlock, drop, look or do not look; else they look and unlock.
    free: bool,
    /// A caller calls once the ones before it are done: it re-enters, downgrades, upgrades.
    deep: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Caller {
    NotYet,
    Waiting,
    /// `was_open`: at some time since it called.
    AtLatch {
        was_open: bool,
    },
    Guard {
        seen: bool,
        lost: Option<Loss>,
    },
    Unlocking {
        there: bool,
        unknown: bool,
    },
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Client {
    state: LockState,
    callers: Vec<Caller>,
    /// On their way there, and back.
    requests: Vec<(RequestId, Request)>,
    replies: Vec<(RequestId, Reply)>,
    /// When each of these was sent, which is to be ended within the command timeout.
    sent: Vec<Moment>,
    late: Vec<Request>,
    listens: BTreeSet<Channel>,
    subscribing: BTreeSet<Channel>,
    messages: Vec<Channel>,
    yields: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    now: Moment,
    server: Server,
    clients: Vec<Client>,
    cuts: u8,
    ticks: u8,
    forced: u8,
    robbed: Vec<FieldId>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Call(usize, usize),
    Look(usize, usize),
    Leave(usize, usize),
    Unlock(usize, usize),
    Run(usize, usize),
    RunLate(usize),
    Reply(usize, usize),
    Cut(usize),
    Force,
    Message(usize),
    Subscribed(usize),
    Yielded(usize),
    Tick,
}

fn config(size: &Size) -> Config {
    Config {
        watchdog: ms(1000),
        command_timeout: COMMAND,
        outage_timeout: ms(600),
        handovers: size.handovers,
        round_trip: ms(1),
        publishes: true,
        first_confirmation: None,
    }
}

/// Whether it leaves nothing on the server.
fn looks(request: &Request) -> bool {
    matches!(request, Request::Acquire { how: How::Look, .. })
}

fn ticket(caller: usize) -> Ticket {
    Ticket(caller as u64 + 1)
}

impl Client {
    fn new(kind: Kind, callers: usize) -> Client {
        Client {
            state: state_of(kind),
            callers: vec![Caller::NotYet; callers],
            requests: Vec::new(),
            replies: Vec::new(),
            sent: Vec::new(),
            late: Vec::new(),
            listens: BTreeSet::new(),
            subscribing: BTreeSet::new(),
            messages: Vec::new(),
            yields: false,
        }
    }

    fn unsubscribe(&mut self, channel: Channel) {
        self.listens.remove(&channel);
        self.subscribing.remove(&channel);
        self.messages.retain(|message| *message != channel);
    }

    fn is_still(&self) -> bool {
        self.requests.is_empty() && self.replies.is_empty() && self.late.is_empty()
    }

    fn is_done(&self) -> bool {
        self.state.is_quiet() && self.is_still() && self.callers.iter().all(|caller| *caller == Caller::Done)
    }

    fn notified(&mut self, ticket: Ticket, outcome: Outcome, is_robbed: bool) -> Result<(), String> {
        let caller = &mut self.callers[ticket.0 as usize - 1];
        *caller = match (&caller, outcome) {
            (Caller::AtLatch { was_open: false }, Outcome::Passed) => {
                return Err(format!("{ticket:?} passed a latch that was not open"));
            }
            (Caller::AtLatch { .. }, _) => Caller::Done,
            (Caller::Waiting, Outcome::Acquired) => Caller::Guard { seen: false, lost: None },
            (Caller::Guard { seen: false, .. }, Outcome::StartAgain) => Caller::Done,
            (Caller::Unlocking { there: false, unknown: false }, Outcome::Confirmed) => {
                return Err(format!("{ticket:?}: unlock confirmed a lock that was gone"));
            }
            (Caller::Unlocking { there: true, unknown: false }, Outcome::Lost(_)) if !is_robbed => {
                return Err(format!("{ticket:?}: a false alarm"));
            }
            (Caller::Waiting | Caller::Unlocking { .. } | Caller::Done, _) => Caller::Done,
            other => return Err(format!("{ticket:?} notified out of turn: {other:?}")),
        };
        Ok(())
    }
}

impl World {
    fn new(size: &Size) -> World {
        let now = Moment::of_nanos(1 << 40);
        let mut server = Server::new(size.kind);
        server.pass_to(now);
        let clients = size.callers.iter().map(|callers| Client::new(size.kind, callers.len())).collect();
        World { now, server, clients, cuts: size.cuts, ticks: size.ticks, forced: size.forced, robbed: Vec::new() }
    }

    // ---- the steps that are possible ----

    fn possible(&self, size: &Size) -> Vec<Step> {
        let mut steps = Vec::new();
        for at in 0..self.clients.len() {
            self.caller_steps(size, at, &mut steps);
            self.network_steps(size, at, &mut steps);
        }
        if self.forced > 0 && (size.kind == Kind::Latch || !self.server.fields().is_empty()) {
            steps.push(Step::Force);
        }
        if self.ticks > 0 && self.next_due(size).is_some() {
            steps.push(Step::Tick);
        }
        steps
    }

    fn caller_steps(&self, size: &Size, at: usize, steps: &mut Vec<Step>) {
        let callers = &self.clients[at].callers;
        for (caller, state) in callers.iter().enumerate() {
            let is_before = |before: &Caller| {
                if size.deep {
                    matches!(before, Caller::Guard { seen: true, .. } | Caller::Done)
                } else {
                    *before != Caller::NotYet
                }
            };
            match state {
                Caller::NotYet if caller == 0 || is_before(&callers[caller - 1]) => steps.push(Step::Call(at, caller)),
                Caller::Waiting | Caller::AtLatch { .. } if size.leave => steps.push(Step::Leave(at, caller)),
                Caller::Guard { seen: false, .. } if !size.free => steps.push(Step::Look(at, caller)),
                Caller::Guard { seen: false, .. } => steps.extend([Step::Look(at, caller), Step::Leave(at, caller)]),
                Caller::Guard { .. } if !size.free => steps.push(Step::Unlock(at, caller)),
                Caller::Guard { .. } => steps.extend([Step::Unlock(at, caller), Step::Leave(at, caller)]),
                _ => {}
            }
        }
    }

    fn network_steps(&self, size: &Size, at: usize, steps: &mut Vec<Step>) {
        let client = &self.clients[at];
        let any = if size.unordered { usize::MAX } else { 1 };
        steps.extend((0..client.requests.len().min(any)).map(|which| Step::Run(at, which)));
        steps.extend((0..client.replies.len().min(any)).map(|which| Step::Reply(at, which)));
        let can_cut = self.cuts > 0 && client.requests.len() + client.replies.len() > 0;
        let more = [
            (!client.late.is_empty(), Step::RunLate(at)),
            (can_cut, Step::Cut(at)),
            (!client.messages.is_empty(), Step::Message(at)),
            (!client.subscribing.is_empty(), Step::Subscribed(at)),
            (client.yields, Step::Yielded(at)),
        ];
        steps.extend(more.into_iter().filter(|(can, _)| *can).map(|(_, step)| step));
    }

    /// Where time goes next, unless a request would then have taken too long.
    fn next_due(&self, size: &Size) -> Option<Moment> {
        let config = config(size);
        let timers = self.clients.iter().filter_map(|client| client.state.due(&config));
        let due = timers.chain(self.server.next_end()).map(|at| at.max(self.now)).min()?;
        let oldest = self.clients.iter().filter_map(|client| client.sent.first()).min();
        oldest.is_none_or(|sent| due <= *sent + COMMAND).then_some(due)
    }

    // ---- one step ----

    fn feed(&mut self, size: &Size, at: usize, event: Event) -> Result<(), String> {
        let (config, rules, mut actions) = (config(size), rules_of(size.kind), Actions::new());
        let (now, is_robbed) = (self.now, !self.robbed.is_empty());
        let client = &mut self.clients[at];
        client.state.handle(event, &mut Cx { now, config: &config, rules: &rules, actions: &mut actions });
        for action in actions {
            match action {
                Action::Send(_, request) if size.kind == Kind::Latch && !looks(&request) => {
                    return Err(format!("{at} sends {request:?}"));
                }
                Action::Send(id, request) => {
                    client.requests.push((id, request));
                    client.sent.push(now);
                }
                Action::Notify(ticket, outcome) => {
                    client.notified(ticket, outcome, is_robbed).map_err(|error| format!("{at} {error}"))?;
                }
                Action::Lost(ticket, loss) => {
                    if let Caller::Guard { lost, .. } = &mut client.callers[ticket.0 as usize - 1] {
                        *lost = Some(loss);
                    }
                }
                Action::Subscribe(channel) => _ = client.subscribing.insert(channel),
                Action::Unsubscribe(channel) => client.unsubscribe(channel),
                Action::Yield => client.yields = true,
                Action::Left { .. } | Action::Ended(..) => {}
                Action::PassedOn => return Err("it keeps no permits".into()),
            }
        }
        if event == Event::Due && client.state.due(&config).is_some_and(|due| due <= now) {
            return Err(format!("{at} spins after {event:?}"));
        }
        Ok(())
    }

    fn run(&mut self, at: usize, request: Request) -> Reply {
        let listeners = self.listeners(at);
        let (reply, published) = self.server.run(self.now, at as u8, request, listeners);
        self.publish(published);
        reply
    }

    /// The subscribers other than this client, and all waiters that listen.
    fn listeners(&self, at: usize) -> Listeners {
        let has_name = |other: &usize| *other != at && self.clients[*other].listens.contains(&Channel::Name);
        let others = (0..self.clients.len()).filter(has_name).count() as u32;
        let mut places = Vec::new();
        for (at, client) in self.clients.iter().enumerate() {
            let id = |channel: &Channel| if let Channel::Place(id) = channel { Some(*id) } else { None };
            places.extend(client.listens.iter().filter_map(id).map(|id| FieldId::new(at as u8, id, Mode::Exclusive)));
        }
        Listeners { others, places }
    }

    fn publish(&mut self, published: Published) {
        let receivers: Vec<_> = match published {
            Published::Nothing => Vec::new(),
            Published::ToAll => (0..self.clients.len()).map(|at| (at, Channel::Name)).collect(),
            Published::To(ids) => ids.iter().map(|id| (usize::from(id.client), Channel::Place(id.id))).collect(),
        };
        for (at, channel) in receivers {
            if let Some(client) = self.clients.get_mut(at).filter(|client| client.listens.contains(&channel)) {
                client.messages.push(channel);
            }
        }
    }

    fn take(&mut self, size: &Size, step: Step) -> Result<(), String> {
        match step {
            Step::Call(at, caller) => {
                let (owner, terms) = size.callers[at][caller];
                if size.kind == Kind::Latch {
                    self.now = self.now + Duration::from_nanos(1); // a call is not at the moment of an earlier request
                }
                self.clients[at].callers[caller] = match size.kind {
                    Kind::Latch => Caller::AtLatch { was_open: self.server.admits(Mode::Exclusive) },
                    _ => Caller::Waiting,
                };
                let limit = Limit::Forever;
                self.feed(size, at, Event::Acquire { ticket: ticket(caller), owner: Owner(owner), terms, limit })
            }
            Step::Look(at, caller) => {
                self.feed(size, at, Event::Seen(ticket(caller)))?;
                if let Caller::Guard { seen, .. } = &mut self.clients[at].callers[caller] {
                    *seen = true;
                }
                Ok(())
            }
            Step::Leave(at, caller) => {
                self.clients[at].callers[caller] = Caller::Done;
                self.feed(size, at, Event::Dropped(ticket(caller)))
            }
            Step::Unlock(at, caller) => self.unlock(size, at, caller),
            _ => self.take_of_network(size, step),
        }
    }

    fn take_of_network(&mut self, size: &Size, step: Step) -> Result<(), String> {
        match step {
            Step::Run(at, which) => {
                let (id, request) = self.clients[at].requests.remove(which);
                let reply = self.run(at, request);
                self.clients[at].replies.push((id, reply));
                Ok(())
            }
            Step::RunLate(at) => {
                let request = self.clients[at].late.remove(0);
                self.run(at, request);
                Ok(())
            }
            Step::Reply(at, which) => {
                let (id, reply) = self.clients[at].replies.remove(which);
                self.clients[at].sent.remove(0);
                self.feed(size, at, Event::Replied(id, reply))
            }
            Step::Cut(at) => self.cut(size, at),
            Step::Force => {
                self.forced -= 1;
                let (gone, published) = self.server.force(self.listeners(usize::MAX));
                self.robbed.extend(gone);
                self.publish(published);
                self.note_open();
                Ok(())
            }
            Step::Message(at) => {
                let channel = self.clients[at].messages.remove(0);
                self.feed(size, at, Event::Message(channel))
            }
            Step::Subscribed(at) => {
                let channel = self.clients[at].subscribing.pop_first().expect("it was just found");
                self.clients[at].listens.insert(channel);
                self.feed(size, at, Event::Subscribed(channel))
            }
            Step::Yielded(at) => {
                self.clients[at].yields = false;
                self.feed(size, at, Event::Yielded)
            }
            Step::Tick => self.tick(size),
            Step::Call(..) | Step::Look(..) | Step::Leave(..) | Step::Unlock(..) => Ok(()),
        }
    }

    /// A latch may be open now.
    fn note_open(&mut self) {
        let is_open = self.server.admits(Mode::Exclusive);
        for caller in self.clients.iter_mut().flat_map(|client| &mut client.callers) {
            if let Caller::AtLatch { was_open } = caller {
                *was_open |= is_open;
            }
        }
    }

    fn unlock(&mut self, size: &Size, at: usize, caller: usize) -> Result<(), String> {
        let there = self.certain_field(at, caller).is_some_and(|field| self.server.count(&field).is_some());
        self.clients[at].callers[caller] = Caller::Unlocking { there, unknown: false };
        self.feed(size, at, Event::Unlock(ticket(caller)))
    }

    fn cut(&mut self, size: &Size, at: usize) -> Result<(), String> {
        self.cuts -= 1;
        let client = &mut self.clients[at];
        let requests = std::mem::take(&mut client.requests);
        let replies = std::mem::take(&mut client.replies);
        client.sent.clear();
        if size.overtaking {
            client.late.extend(requests.iter().map(|(_, request)| *request));
        }
        for caller in &mut client.callers {
            if let Caller::Unlocking { unknown, .. } = caller {
                *unknown = true;
            }
        }
        let lost = replies.iter().map(|(id, _)| *id).chain(requests.iter().map(|(id, _)| *id));
        lost.collect::<Vec<_>>().into_iter().try_for_each(|id| self.feed(size, at, Event::Unknown(id)))?;
        if size.kind == Kind::Latch {
            self.miss_messages(size, at)?;
        }
        self.feed(size, at, Event::Reconnected)
    }

    /// The connection for messages is lost, too, and subscribes again.
    fn miss_messages(&mut self, size: &Size, at: usize) -> Result<(), String> {
        let client = &mut self.clients[at];
        client.messages.clear();
        for channel in std::mem::take(&mut client.listens) {
            self.clients[at].subscribing.insert(channel);
            self.feed(size, at, Event::Unsubscribed(channel))?;
        }
        Ok(())
    }

    fn tick(&mut self, size: &Size) -> Result<(), String> {
        self.ticks -= 1;
        self.now = self.next_due(size).expect("it was just found");
        self.server.pass_to(self.now);
        let config = config(size);
        for at in 0..self.clients.len() {
            if self.clients[at].state.due(&config).is_some_and(|due| due <= self.now) {
                self.feed(size, at, Event::Due)?;
            }
        }
        Ok(())
    }

    // ---- what must be true ----

    /// The field of a hold that is certain.
    fn certain_field(&self, at: usize, caller: usize) -> Option<FieldId> {
        let state = &self.clients[at].state;
        state.certain_until(ticket(caller), self.now)?;
        let (id, mode, _) = state.hold_of(ticket(caller))?;
        Some(FieldId::new(at as u8, id, mode))
    }

    fn look(&self, size: &Size) -> Result<(), String> {
        let mut certain = Vec::new();
        for (at, client) in self.clients.iter().enumerate() {
            for (caller, state) in client.callers.iter().enumerate() {
                if let Caller::Guard { seen, lost } = state {
                    self.look_at_guard(size, (at, caller), *seen && lost.is_none(), &mut certain)?;
                }
            }
        }
        let alone = certain.iter().find(|(_, _, mode)| *mode == Mode::Exclusive);
        if alone.is_some_and(|one| certain.iter().any(|other| (other.0, other.1) != (one.0, one.1))) {
            return Err(format!("two certain holders: {certain:?}"));
        }
        self.look_at_end(size)
    }

    fn look_at_guard(
        &self,
        size: &Size,
        (at, caller): (usize, usize),
        believes: bool,
        certain: &mut Vec<(usize, u64, Mode)>,
    ) -> Result<(), String> {
        let client = &self.clients[at];
        let Some(field) = self.certain_field(at, caller) else {
            let is_late = client.state.due(&config(size)).is_none_or(|due| due > self.now);
            return if believes && is_late {
                Err(format!("{at} {caller} is not certain and was not notified"))
            } else {
                Ok(())
            };
        };
        if self.robbed.contains(&field) {
            return Ok(());
        }
        let Some(count) = self.server.count(&field) else {
            return Err(format!("{at} is certain of {field:?}, and the server has {:?}", self.server));
        };
        let level = client.state.count_of(ticket(caller)).and_then(|(_, level)| level);
        if level.is_some_and(|level| u64::from(level) != count) && client.is_still() && !size.overtaking {
            return Err(format!("{at} has confirmed {level:?}, and the server {count}"));
        }
        certain.push((at, size.callers[at][caller].0, field.mode));
        Ok(())
    }

    fn look_at_end(&self, size: &Size) -> Result<(), String> {
        let crowded = |client: &Client| client.requests.len() + client.replies.len() > 1;
        if size.kind == Kind::Latch && self.clients.iter().any(crowded) {
            return Err("two requests for one message".into());
        }
        let is_over = self.clients.iter().all(Client::is_done);
        if is_over && !size.overtaking && !self.server.is_empty() {
            return Err(format!("left behind: {:?}", self.server));
        }
        if !is_over && self.ticks > 0 && self.possible(size).is_empty() {
            return Err("nothing goes on, and not all were notified".into());
        }
        // The server is still and nothing is due for long: nobody may sleep beside a lock that it could have.
        let is_moving = |client: &Client| {
            !client.is_still() || !client.messages.is_empty() || !client.subscribing.is_empty() || client.yields
        };
        let sleeps = self.next_due(size).is_none_or(|due| due > self.now + ms(300));
        let has_guard = |client: &Client| client.callers.iter().any(|caller| matches!(caller, Caller::Guard { .. }));
        let could_have = |client: &Client| client.state.waiting().1.is_some_and(|mode| self.server.admits(mode));
        // Nobody is told when it is forced open.
        let is_still = !self.clients.iter().any(is_moving) && sleeps && self.robbed.is_empty();
        if is_still && self.clients.iter().any(could_have) && !self.clients.iter().any(has_guard) {
            return Err("free, waited for, and everybody sleeps".into());
        }
        let waits_beside = |at: usize| is_still && self.waits_beside(size, at);
        match (0..self.clients.len()).find(|at| waits_beside(*at)) {
            Some(at) => Err(format!("{at} writes, and waits to read")),
            None => Ok(()),
        }
    }

    /// An owner that writes waits to read.
    fn waits_beside(&self, size: &Size, at: usize) -> bool {
        let callers = || size.callers[at].iter().zip(&self.clients[at].callers).enumerate();
        let writers = callers().filter(|(caller, (_, state))| {
            let is_writer = self.certain_field(at, *caller).is_some_and(|field| field.mode == Mode::Exclusive);
            is_writer && matches!(state, Caller::Guard { .. })
        });
        let reads = |owner| {
            callers().any(|(_, ((other, terms), state))| {
                *other == owner && terms.mode == Mode::Shared && *state == Caller::Waiting
            })
        };
        writers.map(|(_, ((owner, _), _))| *owner).any(reads)
    }
}

/// A state, and the steps that are possible.
pub(crate) trait Orders: Hash + Sized {
    type Size;
    type Step: Copy + fmt::Debug;

    fn name(size: &Self::Size) -> &'static str;
    fn first(size: &Self::Size) -> Self;
    fn steps(&self, size: &Self::Size) -> Vec<Self::Step>;
    /// An error if a rule does not hold afterwards.
    fn step(&self, size: &Self::Size, step: Self::Step) -> Result<Self, String>;
}

impl Orders for World {
    type Size = Size;
    type Step = Step;

    fn name(size: &Size) -> &'static str {
        size.name
    }

    fn first(size: &Size) -> World {
        World::new(size)
    }

    fn steps(&self, size: &Size) -> Vec<Step> {
        self.possible(size)
    }

    fn step(&self, size: &Size, step: Step) -> Result<World, String> {
        let mut next = self.clone();
        next.take(size, step)?;
        next.look(size)?;
        Ok(next)
    }
}

fn print<W: Orders>(world: &W) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

struct Explored<Step> {
    states: usize,
    depth: usize,
    found: Option<(String, Vec<Step>)>,
}

/// The steps that led there.
fn trace<Step: Copy>(from: &HashMap<u64, (u64, Option<Step>)>, mut at: u64, last: Step) -> Vec<Step> {
    let mut trace = vec![last];
    while let Some((before, Some(step))) = from.get(&at) {
        trace.push(*step);
        at = *before;
    }
    trace.reverse();
    trace
}

/// Breadth first: how many states, and the trace to the first bad one.
fn explore<W: Orders>(size: &W::Size, most: usize) -> Explored<W::Step> {
    let first = W::first(size);
    let mut from: HashMap<u64, (u64, Option<W::Step>)> = HashMap::from([(print(&first), (0, None))]);
    let (mut layer, mut depth) = (vec![first], 0);
    while !layer.is_empty() && from.len() <= most {
        let mut next_layer = Vec::new();
        for world in layer {
            let here = print(&world);
            for step in world.steps(size) {
                let next = match world.step(size, step) {
                    Ok(next) => next,
                    Err(error) => {
                        let found = Some((error, trace(&from, here, step)));
                        return Explored { states: from.len(), depth: depth + 1, found };
                    }
                };
                if let Entry::Vacant(entry) = from.entry(print(&next)) {
                    entry.insert((here, Some(step)));
                    next_layer.push(next);
                }
            }
        }
        (layer, depth) = (next_layer, depth + 1);
    }
    Explored { states: from.len(), depth, found: None }
}

const KEPT: Terms = Terms { mode: Mode::Exclusive, lease: None, max_hold: None, min_hold: None, permits: 0 };
const FIXED: Terms = Terms { lease: Some(Nanos::of(Duration::from_millis(400))), ..KEPT };
const CAPPED: Terms = Terms { max_hold: Some(Nanos::of(Duration::from_millis(300))), ..KEPT };
const READ: Terms = Terms { mode: Mode::Shared, ..KEPT };

fn size(name: &'static str, kind: Kind, callers: &[&[(u64, Terms)]], (cuts, ticks): (u8, u8)) -> Size {
    Size {
        name,
        kind,
        callers: callers.iter().map(|callers| callers.to_vec()).collect(),
        handovers: 2,
        cuts,
        ticks,
        forced: 0,
        overtaking: false,
        unordered: false,
        leave: true,
        free: true,
        deep: false,
    }
}

/// Those of the plain and the fenced lock.
fn exclusive_sizes() -> Vec<Size> {
    use Kind::{Fenced, Plain};
    let two: &[_] = &[(1, KEPT), (2, KEPT)];
    let mixed: &[_] = &[(1, KEPT), (2, FIXED)];
    let twins: &[_] = &[(1, KEPT), (1, KEPT)];
    let three: &[_] = &[(1, KEPT), (1, KEPT), (2, KEPT)];
    let stays = |size| Size { leave: false, ..size };
    vec![
        size("plain, 2 x 1, two cuts, 3 ticks", Plain, &[&[(1, KEPT)], &[(1, KEPT)]], (2, 3)),
        size("plain, 1 x 2, a cut, 3 ticks", Plain, &[two], (1, 3)),
        size("plain, 1 x 2 mixed leases, two cuts, 2 ticks", Plain, &[mixed], (2, 2)),
        size("plain, 1 x twins, two cuts, 2 ticks", Plain, &[twins], (2, 2)),
        Size { forced: 1, ..size("plain, 1 x 2, forced, a cut, 2 ticks", Plain, &[two], (1, 2)) },
        Size { overtaking: true, ..size("plain, 1 x 2, overtaking, a cut, 2 ticks", Plain, &[two], (1, 2)) },
        size("plain, 1 x twins and another, a cut, 1 tick", Plain, &[three], (1, 1)),
        stays(size("plain, 2 x 2, two cuts", Plain, &[two, two], (2, 0))),
        Size { unordered: true, ..stays(size("plain, 2 x 2, any order, a cut", Plain, &[two, two], (1, 0))) },
        Size { unordered: true, ..size("plain, 1 x 2, any order, two cuts, 2 ticks", Plain, &[two], (2, 2)) },
        Size {
            unordered: true,
            ..size("plain, 1 x twins and another, any order, a cut, 1 tick", Plain, &[three], (1, 1))
        },
        size("plain, 2 x 2 that may leave", Plain, &[two, two], (0, 0)),
        stays(size("plain, 2 x 2 mixed, a cut", Plain, &[mixed, two], (1, 0))),
        size("plain, 1 x capped and another, a cut, 3 ticks", Plain, &[&[(1, CAPPED), (2, KEPT)]], (1, 3)),
        size("fenced, 1 x 2, two cuts, 2 ticks", Fenced, &[two], (2, 2)),
        stays(size("fenced, 2 x 2, a cut", Fenced, &[two, two], (1, 0))),
    ]
}

fn read_write_sizes() -> Vec<Size> {
    let rw = |name, callers: &[&[(u64, Terms)]], budget| size(name, Kind::ReadWrite, callers, budget);
    let readers: &[_] = &[(1, READ), (2, READ)];
    let mixed: &[_] = &[(1, READ), (2, KEPT)];
    let writers: &[_] = &[(1, KEPT), (2, KEPT)];
    let down: &[_] = &[(1, KEPT), (1, READ)];
    let up: &[_] = &[(1, READ), (1, KEPT)];
    let capped: &[_] = &[(1, Terms { mode: Mode::Shared, ..CAPPED }), (2, READ)];
    let stays = |size| Size { leave: false, ..size };
    let deep = |size| Size { deep: true, ..size };
    vec![
        rw("1 x 2 readers, two cuts, 2 ticks", &[readers], (2, 2)),
        rw("1 x reader and writer, two cuts, 2 ticks", &[mixed], (2, 2)),
        rw("2 x 1, reader and writer, two cuts, 3 ticks", &[&[(1, READ)], &[(1, KEPT)]], (2, 3)),
        rw("2 x 1 writers, two cuts, 2 ticks", &[&[(1, KEPT)], &[(1, KEPT)]], (2, 2)),
        rw("1 x downgrade, two cuts, 3 ticks", &[down], (2, 3)),
        deep(rw("1 x downgrade and a reader, a cut, 1 tick", &[&[(1, KEPT), (1, READ), (2, READ)]], (1, 1))),
        deep(rw("2 x downgrade and a writer, a cut, 1 tick", &[down, &[(1, KEPT)]], (1, 1))),
        rw("1 x upgrade, two cuts, 2 ticks", &[up], (2, 2)),
        deep(rw("1 x nested reads and a writer, a cut, 1 tick", &[&[(1, READ), (1, READ), (2, KEPT)]], (1, 1))),
        rw("1 x capped reader and another, a cut, 3 ticks", &[capped], (1, 3)),
        Size { forced: 1, ..rw("1 x 2 readers, forced, a cut, 2 ticks", &[readers], (1, 2)) },
        Size {
            forced: 1,
            ..rw("2 x 1, reader and writer, forced, a cut, 1 tick", &[&[(1, READ)], &[(1, KEPT)]], (1, 1))
        },
        Size { forced: 1, ..rw("1 x downgrade, forced, a cut, 2 ticks", &[down], (1, 2)) },
        Size { overtaking: true, ..rw("1 x reader and writer, overtaking, a cut, 2 ticks", &[mixed], (1, 2)) },
        Size { unordered: true, ..rw("1 x reader and writer, any order, a cut, 2 ticks", &[mixed], (1, 2)) },
        Size { unordered: true, ..rw("1 x downgrade, any order, two cuts, 2 ticks", &[down], (2, 2)) },
        stays(rw("2 x 2, readers", &[readers, readers], (0, 0))),
        stays(rw("2 x 2, readers and writers", &[readers, writers], (0, 0))),
        stays(rw("2 x 2, reader and writer each", &[mixed, mixed], (0, 0))),
    ]
}

fn fair_sizes() -> Vec<Size> {
    let fair = |name, callers: &[&[(u64, Terms)]], budget| size(name, Kind::Fair, callers, budget);
    let two: &[_] = &[(1, KEPT), (2, KEPT)];
    let mixed: &[_] = &[(1, KEPT), (2, FIXED)];
    let twins: &[_] = &[(1, KEPT), (1, KEPT)];
    let stays = |size| Size { leave: false, ..size };
    let plain = |size| Size { free: false, ..size };
    vec![
        fair("fair, 2 x 1, two cuts, 2 ticks", &[&[(1, KEPT)], &[(1, KEPT)]], (2, 2)),
        fair("fair, 1 x 2, a cut, 2 ticks", &[two], (1, 2)),
        fair("fair, 1 x 2 mixed leases, a cut, 1 tick", &[mixed], (1, 1)),
        fair("fair, 1 x twins, a cut, 2 ticks", &[twins], (1, 2)),
        fair("fair, 1 x capped and another, a cut, 2 ticks", &[&[(1, CAPPED), (2, KEPT)]], (1, 2)),
        Size { forced: 1, ..fair("fair, 1 x 2, forced, a cut, 1 tick", &[two], (1, 1)) },
        Size { forced: 1, ..fair("fair, 2 x 1, forced, a cut, 1 tick", &[&[(1, KEPT)], &[(1, KEPT)]], (1, 1)) },
        Size { overtaking: true, ..fair("fair, 1 x 2, overtaking, a cut, 1 tick", &[two], (1, 1)) },
        Size { unordered: true, ..fair("fair, 1 x 2, any order, a cut, 1 tick", &[two], (1, 1)) },
        Size {
            unordered: true,
            ..fair("fair, 2 x 1, any order, a cut, 1 tick", &[&[(1, KEPT)], &[(1, KEPT)]], (1, 1))
        },
        plain(stays(fair("fair, 2 x 2, a cut", &[two, two], (1, 0)))),
        fair("fair, 2 x 1 and a pair, that may leave", &[two, &[(1, KEPT)]], (0, 0)),
    ]
}

/// The latch opens and is set again, as often as `forced` says.
fn latch_sizes() -> Vec<Size> {
    let latch =
        |name, callers: &[&[(u64, Terms)]], forced, budget| Size { forced, ..size(name, Kind::Latch, callers, budget) };
    let one: &[_] = &[(1, KEPT)];
    let two: &[_] = &[(1, KEPT), (2, KEPT)];
    let three: &[_] = &[(1, KEPT), (2, KEPT), (3, KEPT)];
    vec![
        latch("latch, 1 x 1, opens, two cuts, 4 ticks", &[one], 1, (2, 4)),
        latch("latch, 1 x 2, opens twice, a cut, 2 ticks", &[two], 3, (1, 2)),
        latch("latch, 1 x 3, opens twice, a cut, 1 tick", &[three], 3, (1, 1)),
        latch("latch, 2 x 1, opens twice, a cut", &[one, one], 3, (1, 0)),
        latch("latch, 2 x 2, opens", &[two, two], 1, (0, 0)),
        Size { unordered: true, ..latch("latch, 1 x 2, any order, opens twice, a cut, 1 tick", &[two], 3, (1, 1)) },
        Size { overtaking: true, ..latch("latch, 1 x 2, overtaking, opens, two cuts, 1 tick", &[two], 1, (2, 1)) },
    ]
}

/// Minutes each.
fn large_sizes() -> Vec<Size> {
    let two: &[_] = &[(1, KEPT), (2, KEPT)];
    let readers: &[_] = &[(1, READ), (2, READ)];
    let mixed: &[_] = &[(1, READ), (2, KEPT)];
    let stays = |size| Size { leave: false, ..size };
    let rw = |name, callers: &[&[(u64, Terms)]], budget| size(name, Kind::ReadWrite, callers, budget);
    vec![
        stays(size("plain, 2 x 2, a cut, a tick", Kind::Plain, &[two, two], (1, 1))),
        Size { overtaking: true, ..stays(size("plain, 2 x 2, overtaking, a cut", Kind::Plain, &[two, two], (1, 0))) },
        stays(rw("2 x 2, reader and writer each, a cut", &[mixed, mixed], (1, 0))),
        stays(rw("2 x 2, readers and writers, a cut", &[readers, two], (1, 0))),
        Size { unordered: true, ..stays(rw("2 x 2, reader and writer each, any order", &[mixed, mixed], (0, 0))) },
        rw("2 x 2, reader and writer each, that may leave", &[mixed, mixed], (0, 0)),
        stays(rw("2 x 2, reader and writer each, a tick", &[mixed, mixed], (0, 1))),
    ]
}

/// Explores them all, to the end or as far as the settings say.
pub(crate) fn explore_all<W: Orders>(sizes: Vec<W::Size>) {
    let number = |setting| std::env::var(setting).ok().and_then(|number| number.parse().ok());
    let enough = number("ENOUGH");
    let most = enough.or(number("MOST")).unwrap_or(12_000_000);
    let only = std::env::var("ONLY").unwrap_or_default();
    let mut bad = Vec::new();
    for size in sizes.into_iter().filter(|size| W::name(size).contains(&only)) {
        let (name, since) = (W::name(&size), Instant::now());
        let Explored { states, depth, found } = explore::<W>(&size, most);
        println!("{name:55} {states:>9} states, depth {depth:>2}, {:.1} s", since.elapsed().as_secs_f64());
        if let Some((error, trace)) = found {
            println!("    FOUND at depth {depth}: {error}\n    {trace:?}");
            bad.push(name);
            if std::env::var("FIRST").is_ok() {
                break;
            }
        } else if states > most {
            println!("    not to the end");
            if enough.is_none() {
                bad.push(name);
            }
        }
    }
    assert!(bad.is_empty(), "{bad:?}");
}

/// Sizes that a build without optimization explores in seconds.
#[test]
fn small_orders() {
    let small = ["plain, 1 x 2, a cut", "plain, 1 x capped", "1 x capped reader", "1 x upgrade", "latch, 1 x 2, opens"];
    let is_small = |size: &Size| small.iter().any(|name| size.name.starts_with(name));
    let all = exclusive_sizes().into_iter().chain(read_write_sizes()).chain(latch_sizes());
    explore_all::<World>(all.filter(is_small).collect());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "half a minute in release mode: scripts/simulation")]
fn exclusive_orders() {
    explore_all::<World>(exclusive_sizes());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "half a minute in release mode: scripts/simulation")]
fn read_write_orders() {
    explore_all::<World>(read_write_sizes());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "half a minute in release mode: scripts/simulation")]
fn fair_orders() {
    explore_all::<World>(fair_sizes());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "half a minute in release mode: scripts/simulation")]
fn latch_orders() {
    explore_all::<World>(latch_sizes());
}

#[test]
#[ignore = "minutes, and gigabytes: run it in release mode"]
fn larger_orders() {
    explore_all::<World>(large_sizes());
}
