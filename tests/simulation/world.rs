//! Clients, a network and a server in a world of its own, made from a seed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    time::Duration,
};

use crate::{
    lock::{
        Action, Actions, Channel, Config, Cx, Event, HoldId, How, Limit, LockState, Loss, Mode, Moment, Numbers,
        Outcome, Owner, Reply, Request, RequestId, Rules, Terms, Ticket, Token, Waits,
    },
    server::{Kind, Listeners, Published, Server},
    units::FieldId,
};

const MS: u64 = 1_000_000;
const WATCHDOG: Duration = Duration::from_secs(3);
/// JVMs shorten the leases of readers to a little more than this.
const SURE: Duration = Duration::from_secs(2);
const COMMAND: Duration = Duration::from_millis(400);
const OUTAGE: Duration = Duration::from_millis(1500);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What is certain of the time that is left of a lease, because clocks differ.
fn certain(left: u64, lease: u64) -> u64 {
    left.saturating_sub(lease / 500 + 2 * MS)
}

pub(crate) fn state_of(kind: Kind) -> LockState {
    LockState::new(&rules_of(kind), Numbers::after(0))
}

/// The rules of a kind.
pub(crate) fn rules_of(kind: Kind) -> Rules {
    let waits = match kind {
        Kind::Plain | Kind::Fenced => Waits::Here,
        Kind::ReadWrite => Waits::Marked,
        Kind::Fair => Waits::InLine,
        Kind::Latch => Waits::ToPass,
    };
    Rules { waits, passes_on: kind == Kind::Plain, sure: (kind == Kind::ReadWrite).then_some(SURE) }
}

#[derive(Debug, Clone)]
enum Step {
    Arrive {
        client: usize,
        epoch: u32,
        id: RequestId,
        request: Request,
    },
    /// The end of a request, on the connection with that number.
    Back {
        client: usize,
        epoch: u32,
        id: RequestId,
        event: Event,
    },
    Feed {
        client: usize,
        event: Event,
    },
    Timer {
        client: usize,
        at: u64,
    },
    Message {
        client: usize,
        channel: Channel,
        sub: u32,
    },
    Subscribed {
        client: usize,
        channel: Channel,
        sub: u32,
    },
    Reconnect {
        client: usize,
        epoch: u32,
    },
    GiveUp {
        client: usize,
        epoch: u32,
    },
    Fault,
    /// A process joins the queue on the server and is killed.
    Killed,
    /// Another process counts a latch down, or sets it again.
    Gate,
    Caller {
        client: usize,
        owner: usize,
    },
}

/// What one call has come to, as its caller sees it.
#[derive(Debug, Clone)]
struct Call {
    owner: usize,
    terms: Terms,
    since: u64,
    /// Its owner had the lock then, or has acquired it since by another call of the same mode.
    is_nested: bool,
    /// Ids that its client had then, though they had been taken from it: only a server that was asked before can grant these.
    stale: Vec<FieldId>,
    /// It must have ended by then.
    by: Option<u64>,
    /// The latch was open at the call, or since.
    was_open: bool,
    /// Its limit does not end before this.
    limit: Option<u64>,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Wait,
    Guard {
        field: Option<FieldId>,
        seen: bool,
        since: u64,
        lost: Option<LostAt>,
    },
    /// `there`: the hold that was certain and that the server had. `unknown`: how many requests had failed by then.
    Unlock {
        there: Option<FieldId>,
        unknown: u32,
    },
    Check,
}

/// A hold of one owner, from its first guard to its last.
#[derive(Debug, Clone)]
struct OwnerHold {
    owner: usize,
    field: FieldId,
    guards: Vec<Ticket>,
    /// A caller has seen that it acquired the lock.
    shown: bool,
}

/// The holds that guards showed, and what the client reported about them for statistics.
#[derive(Debug, Clone, Copy, Default)]
struct Reported {
    shown: u32,
    /// Shown holds whose last guard has gone.
    over: u32,
    left: u32,
    ended: u32,
}

/// Why a guard was lost, and until when the server had it by then.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LostAt {
    loss: Loss,
    safe_until: u64,
}

struct Client {
    state: LockState,
    config: Config,
    /// The rate of its clock, in parts per million.
    ppm: i64,
    offset: u64,
    epoch: u32,
    connected: bool,
    /// Requests and replies vanish until the connection is given up.
    frozen: bool,
    last_arrival: u64,
    last_back: u64,
    under_way: BTreeSet<RequestId>,
    backlog: Vec<(RequestId, Request)>,
    subs: u32,
    /// The number of each subscription, and whether it has begun.
    channels: BTreeMap<Channel, (u32, bool)>,
    timer: u64,
    tickets: u64,
    /// Requests for leases that have no reply yet, and the certain ends of these leases if they count from the sending.
    asked: BTreeMap<RequestId, (FieldId, u64)>,
    /// The same of leases that replies have confirmed.
    confirmed: BTreeMap<FieldId, u64>,
    calls: BTreeMap<Ticket, Call>,
    /// Its owners are not polled until then.
    away: Vec<u64>,
    /// Requests that failed.
    unknown: u32,
    /// Holds with guards.
    holds: Vec<OwnerHold>,
    reported: Reported,
    is_closed: bool,
    /// Holds of its guards when it forced the lock open, and the time of that.
    forced: BTreeMap<FieldId, u64>,
}

impl Call {
    fn mode(&self) -> Mode {
        self.terms.mode
    }

    fn field(&self) -> Option<FieldId> {
        if let What::Guard { field, lost: None, .. } = self.what { field } else { None }
    }
}

impl Client {
    fn new(rng: &mut fastrand::Rng, kind: Kind, config: Config) -> Client {
        Client {
            state: state_of(kind),
            config,
            ppm: rng.i64(-500..=500),
            offset: rng.u64(..10) * 1000 * MS,
            epoch: 0,
            connected: true,
            frozen: false,
            last_arrival: 0,
            last_back: 0,
            under_way: BTreeSet::new(),
            backlog: Vec::new(),
            subs: 0,
            channels: BTreeMap::new(),
            timer: u64::MAX,
            tickets: 0,
            asked: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            calls: BTreeMap::new(),
            away: vec![0; rng.usize(1..=4)],
            unknown: 0,
            holds: Vec::new(),
            reported: Reported::default(),
            is_closed: false,
            forced: BTreeMap::new(),
        }
    }

    fn local(&self, t: u64) -> Moment {
        Moment::of_nanos((t as i128 + t as i128 * self.ppm as i128 / 1_000_000) as u64 + self.offset)
    }

    /// The first true time at which its clock shows at least that.
    fn true_time(&self, local: Moment) -> u64 {
        let since = local.nanos().saturating_sub(self.offset) as i128;
        (since * 1_000_000 / (1_000_000 + self.ppm as i128) + 2) as u64
    }

    fn listens(&self, channel: Channel) -> Option<u32> {
        self.channels.get(&channel).filter(|(_, on)| *on).map(|(sub, _)| *sub)
    }

    /// The request got this reply.
    fn note_reply(&mut self, request: RequestId, reply: Reply) {
        let Some((field, end)) = self.asked.remove(&request) else { return };
        if matches!(reply, Reply::Granted(_) | Reply::Kept { .. } | Reply::Handed(_)) {
            let known = self.confirmed.entry(field).or_default();
            *known = end.max(*known);
        }
    }

    /// The owner has acquired the lock by this call.
    fn add_guard(&mut self, owner: usize, field: FieldId, ticket: Ticket) {
        let own = self.holds.iter_mut().find(|hold| (hold.owner, hold.field) == (owner, field));
        match own {
            Some(hold) => hold.guards.push(ticket),
            None => self.holds.push(OwnerHold { owner, field, guards: vec![ticket], shown: false }),
        }
    }

    /// The same, but the hold was lost at that moment. So it is one that the owner had before.
    fn add_lost_guard(&mut self, owner: usize, mode: Mode, ticket: Ticket) {
        let own = self.holds.iter_mut().find(|hold| (hold.owner, hold.field.mode) == (owner, mode));
        own.into_iter().for_each(|hold| hold.guards.push(ticket));
    }

    /// The caller has seen that it acquired the lock, unless it was lost before.
    fn show(&mut self, ticket: Ticket) {
        let has_it = self.state.hold_of(ticket).is_some();
        if let Some(hold) = self.holds.iter_mut().find(|hold| has_it && hold.guards.contains(&ticket)) {
            self.reported.shown += u32::from(!hold.shown);
            hold.shown = true;
        }
    }

    /// Holds end here whose last guard has gone. A nested call continues the hold of its owner.
    fn end_holds(&mut self) {
        let is_guard = |call: &Call| matches!(call.what, What::Guard { .. });
        let is_nested = |ticket: &Ticket, call: &Call| call.what == What::Wait && !self.state.is_waiting(*ticket);
        let nested = self.calls.iter().filter(|(ticket, call)| is_nested(ticket, call));
        let nested: BTreeSet<_> = nested.map(|(_, call)| (call.owner, call.mode())).collect();
        for mut hold in std::mem::take(&mut self.holds) {
            hold.guards.retain(|guard| !self.is_closed && self.calls.get(guard).is_some_and(is_guard));
            if hold.guards.is_empty() && (self.is_closed || !nested.contains(&(hold.owner, hold.field.mode))) {
                self.reported.over += u32::from(hold.shown);
            } else {
                self.holds.push(hold);
            }
        }
    }

    fn is_waiting(&self) -> bool {
        self.state.waiting().0 > 0
    }

    /// The owner has an exclusive hold: by a guard, or by a nested call that keeps the hold of a guard that was dropped.
    fn writes(&self, owner: usize) -> bool {
        self.calls.iter().any(|(ticket, call)| match call.what {
            _ if call.owner != owner || call.mode() == Mode::Shared => false,
            What::Guard { .. } => true,
            What::Wait => !self.state.is_waiting(*ticket),
            What::Unlock { .. } | What::Check => false,
        })
    }
}

pub(crate) struct World {
    kind: Kind,
    rules: Rules,
    rng: fastrand::Rng,
    t: u64,
    seq: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    steps_ahead: BTreeMap<u64, Step>,
    server: Server,
    server_ppm: i64,
    clients: Vec<Client>,
    /// Holds that were requested beside that of a writer, and its owner.
    beside: BTreeMap<FieldId, usize>,
    /// Taken from their holders, which are not to blame.
    robbed: BTreeSet<FieldId>,
    faulty: bool,
    /// A fault at least so often, in ms.
    trouble: u64,
    /// What a dead connection sent may run after what the next one sends.
    overtaking: bool,
    /// The connection of the last request for each id that the server has run.
    last_epochs: BTreeMap<FieldId, u32>,
    /// Acquired by a request that ran after one of a later connection for the same id. Its lease may be that of a call before.
    acquired_late: BTreeSet<FieldId>,
    /// Requests of one client may come in any order.
    unordered: bool,
    last_fault: u64,
    free_since: Option<u64>,
    /// The latch is open.
    open_since: Option<u64>,
    ending: bool,
    /// The last request released the lock, and said so.
    freed: bool,
    /// The number of processes that did not come though they had waiters in the queue since the lock is free.
    behind_dead: u64,
    last_token: Option<(Token, FieldId)>,
    /// The mark of a writer, and since when it is there.
    mark: Option<(FieldId, u64)>,
    aloud: bool,
    pub(crate) steps: u64,
    waiting_before: Vec<Ticket>,
    /// A guard has just gone.
    leaving: bool,
    pub(crate) grants: u64,
    pub(crate) confirmed: u64,
    pub(crate) handed: u64,
    pub(crate) passed: u64,
    pub(crate) seen: BTreeMap<String, u64>,
}

fn any_config(rng: &mut fastrand::Rng) -> Config {
    Config {
        handovers: [0, 2, 16][rng.usize(..3)],
        watchdog: [ms(250), ms(700), WATCHDOG][rng.usize(..3)],
        outage_timeout: [ms(500), OUTAGE][rng.usize(..2)],
        command_timeout: COMMAND,
        round_trip: ms(1),
        publishes: true,
        first_confirmation: rng.clone().bool().then(|| ms(60)),
    }
}

type Check = Result<(), String>;

impl World {
    pub(crate) fn new(seed: u64, kinds: &[Kind], aloud: bool) -> World {
        let mut rng = fastrand::Rng::with_seed(seed);
        let kind = kinds[(seed % kinds.len() as u64) as usize];
        let (faulty, overtaking) = (rng.u8(..4) > 0, rng.u8(..3) == 0);
        let config = any_config(&mut rng);
        let trouble = [30, 300, 3000][rng.usize(..3)];
        let clients = (0..rng.usize(1..=3)).map(|_| Client::new(&mut rng, kind, config.clone())).collect();
        let mut world = World {
            kind,
            rules: rules_of(kind),
            server_ppm: rng.i64(-500..=500),
            unordered: rng.u8(..5) == 0,
            rng,
            t: 1000 * MS,
            seq: 0,
            queue: BinaryHeap::new(),
            steps_ahead: BTreeMap::new(),
            server: Server::new(kind),
            clients,
            beside: BTreeMap::new(),
            robbed: BTreeSet::new(),
            faulty,
            trouble,
            overtaking,
            last_epochs: BTreeMap::new(),
            acquired_late: BTreeSet::new(),
            last_fault: 0,
            free_since: None,
            open_since: None,
            ending: false,
            freed: false,
            behind_dead: 0,
            last_token: None,
            mark: None,
            aloud,
            steps: 0,
            waiting_before: Vec::new(),
            leaving: false,
            grants: 0,
            confirmed: 0,
            handed: 0,
            passed: 0,
            seen: BTreeMap::new(),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.server.pass_to(self.server_time());
        for client in 0..self.clients.len() {
            for owner in 0..self.clients[client].away.len() {
                let after = self.rng.u64(..20) * MS;
                self.after(after, Step::Caller { client, owner });
            }
        }
        if self.faulty {
            self.after(50 * MS, Step::Fault);
        }
        if self.kind == Kind::Fair && self.rng.u8(..4) == 0 {
            self.after(50 * MS, Step::Killed);
        }
        if self.kind == Kind::Latch {
            self.after(5 * MS, Step::Gate);
        }
    }

    fn after(&mut self, after: u64, step: Step) {
        self.seq += 1;
        self.queue.push(Reverse((self.t + after, self.seq)));
        self.steps_ahead.insert(self.seq, step);
    }

    fn server_time(&self) -> Moment {
        Moment::of_nanos((self.t as i128 + self.t as i128 * self.server_ppm as i128 / 1_000_000) as u64)
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.aloud {
            println!("{:9.3} ms  {}", self.t as f64 / 1e6 - 1000.0, what());
        }
    }

    fn count(&mut self, what: impl FnOnce() -> String) {
        if self.aloud {
            *self.seen.entry(what()).or_default() += 1;
        }
    }

    fn delay(&mut self) -> u64 {
        if self.faulty && self.rng.u8(..40) == 0 {
            self.last_fault = self.t;
            return self.rng.u64(..200) * MS;
        }
        self.rng.u64(20_000..800_000)
    }

    // ---- a client ----

    fn feed(&mut self, client: usize, event: Event) -> Check {
        self.say(|| format!("{client}: {event:?}"));
        let mut actions = Actions::new();
        self.leaving = matches!(event, Event::Dropped(_) | Event::Unlock(_));
        let one = &mut self.clients[client];
        self.waiting_before.clear();
        self.waiting_before.extend(one.calls.keys().filter(|ticket| one.state.is_waiting(**ticket)));
        if let Event::Replied(request, reply) = event {
            one.note_reply(request, reply);
        }
        let now = one.local(self.t);
        one.state.handle(event, &mut Cx { now, config: &one.config, rules: &self.rules, actions: &mut actions });
        one.unknown += u32::from(matches!(event, Event::Unknown(_)));
        for action in actions {
            self.say(|| format!("{client}:      -> {action:?}"));
            self.act(client, action)?;
        }
        self.check_reported(client, event)?;
        self.set_timer(client, now, event)
    }

    /// For each hold that a guard showed, the client reports once that its last guard has gone, and at most once what became of it.
    fn check_reported(&mut self, client: usize, event: Event) -> Check {
        let one = &mut self.clients[client];
        one.is_closed |= event == Event::Close;
        if let Event::Seen(ticket) = event {
            one.show(ticket);
        }
        one.end_holds();
        let Reported { shown, over, left, ended } = one.reported;
        match left == over && ended <= shown {
            true => Ok(()),
            false => Err(format!("{client} reported other holds: {:?} {:?}", one.reported, one.holds)),
        }
    }

    fn set_timer(&mut self, client: usize, now: Moment, event: Event) -> Check {
        let one = &self.clients[client];
        let Some(due) = one.state.due(&one.config) else { return Ok(()) };
        if due <= now && event == Event::Due {
            return Err(format!("{client} spins: due at {due:?} after {event:?} at {now:?}"));
        }
        let late = self.rng.u64(..MS);
        let at = self.clients[client].true_time(due).max(self.t) + late;
        if at < self.clients[client].timer {
            self.clients[client].timer = at;
            self.after(at - self.t, Step::Timer { client, at });
        }
        Ok(())
    }

    fn act(&mut self, client: usize, action: Action) -> Check {
        match action {
            Action::Send(id, request) => {
                self.note_lease(client, id, request);
                self.send(client, id, request);
            }
            Action::Notify(ticket, outcome) => return self.notified(client, ticket, outcome),
            Action::Lost(ticket, loss) => {
                self.count(|| format!("lost: {loss:?}"));
                return self.lost(client, ticket, loss);
            }
            Action::Subscribe(channel) => {
                let after = self.delay();
                self.subscribe(client, channel, after);
            }
            Action::Left { .. } => self.clients[client].reported.left += 1,
            Action::Ended(..) => self.clients[client].reported.ended += 1,
            Action::Unsubscribe(channel) => _ = self.clients[client].channels.remove(&channel),
            Action::PassedOn => return Err("it keeps no permits".into()),
            Action::Yield => {
                self.count(|| "rests".into());
                let latest = if self.rng.u8(..8) == 0 { 3_000_000 } else { 50_000 };
                let after = self.rng.u64(..latest);
                self.after(after, Step::Feed { client, event: Event::Yielded });
            }
        }
        Ok(())
    }

    fn note_beside(&mut self, client: usize, request: Request) {
        let Request::Acquire { id, mode, how: How::Beside(writer), .. } = request else { return };
        let field = |id, mode| FieldId::new(client as u8, id, mode);
        let writes = |call: &&Call| call.field() == Some(field(writer, Mode::Exclusive));
        if let Some(call) = self.clients[client].calls.values().find(writes) {
            self.beside.insert(field(id, mode), call.owner);
        }
    }

    fn note_lease(&mut self, client: usize, request: RequestId, asked: Request) {
        let (id, mode, lease) = match asked {
            Request::Acquire { id, mode, lease, .. } | Request::Renew { id, mode, lease: Some(lease), .. } => {
                (id, mode, lease)
            }
            Request::HandOver { to, lease, .. } => (to, Mode::Exclusive, lease),
            Request::Release { id, mode, count: 0, .. } => {
                // A reply that arrives later confirms a lease that the client has given up.
                let released = FieldId::new(client as u8, id, mode);
                return self.clients[client].asked.retain(|_, (field, _)| *field != released);
            }
            Request::Renew { lease: None, .. } | Request::Release { .. } => return,
        };
        let lease = lease.as_nanos() as u64;
        let end = self.t + certain(lease, lease);
        self.clients[client].asked.insert(request, (FieldId::new(client as u8, id, mode), end));
    }

    fn subscribe(&mut self, client: usize, channel: Channel, after: u64) {
        let one = &mut self.clients[client];
        one.subs += 1;
        one.channels.insert(channel, (one.subs, false));
        let sub = one.subs;
        self.after(after, Step::Subscribed { client, channel, sub });
    }

    fn send(&mut self, client: usize, id: RequestId, request: Request) {
        self.note_beside(client, request);
        let one = &mut self.clients[client];
        if !one.connected {
            if self.rng.bool() {
                one.backlog.push((id, request));
            } else {
                self.after(5 * MS, Step::Feed { client, event: Event::NotNow(id) });
            }
            return;
        }
        one.under_way.insert(id);
        let (epoch, frozen) = (one.epoch, one.frozen);
        if frozen && self.rng.bool() {
            return; // it vanishes
        }
        let after = self.delay();
        let one = &mut self.clients[client];
        let arrival = if self.unordered { self.t + after } else { (self.t + after).max(one.last_arrival + 1) };
        one.last_arrival = arrival;
        self.after(arrival - self.t, Step::Arrive { client, epoch, id, request });
    }

    // ---- notifications ----

    fn notified(&mut self, client: usize, ticket: Ticket, outcome: Outcome) -> Check {
        // What callers cannot know has one name here.
        let outcome = if outcome == Outcome::Unconfirmed { Outcome::Unavailable } else { outcome };
        let Some(call) = self.clients[client].calls.get(&ticket).cloned() else {
            return Ok(()); // its caller has gone
        };
        self.count(|| format!("{} -> {outcome:?}", format!("{:?}", call.what).split(' ').next().unwrap_or_default()));
        match (call.what, outcome) {
            (What::Wait, Outcome::Acquired) => return self.acquired(client, ticket, call),
            (What::Wait, Outcome::Passed) if !call.was_open => {
                return Err(format!("{client} {ticket:?} passed a latch that was not open"));
            }
            (What::Wait, Outcome::Passed) => self.passed += 1,
            (What::Wait, Outcome::Busy) if self.open_since.zip(call.limit).is_some_and(|(since, end)| since < end) => {
                return Err(format!("{client} {ticket:?} gave up at a latch that was opened before its limit"));
            }
            (What::Wait, Outcome::Unavailable) if !self.is_troubled() => {
                return Err(format!("{client} {ticket:?}: unavailable without trouble"));
            }
            (What::Wait, Outcome::Upgrade) if self.kind != Kind::ReadWrite || call.mode() == Mode::Shared => {
                return Err(format!("{client} {ticket:?}: no upgrade"));
            }
            (What::Guard { seen: true, .. }, Outcome::StartAgain) => {
                return Err("passed over although it was seen".into());
            }
            (What::Guard { .. }, Outcome::StartAgain) | (What::Wait | What::Check, _) => {}
            (What::Unlock { there, unknown }, Outcome::Confirmed) => {
                self.confirmed += 1;
                // A late request of a connection that was cut may bring back an id that was forced open.
                if there.is_none() && self.clients[client].unknown == unknown && !self.overtaking {
                    return Err(format!("{client} {ticket:?}: unlock confirmed a lock that was gone"));
                }
            }
            (What::Unlock { there: Some(field), .. }, Outcome::Lost(loss)) if !self.robbed.contains(&field) => {
                return Err(format!("{client} {ticket:?}: a false alarm, {loss:?}"));
            }
            (What::Unlock { .. }, _) => {}
            other => return Err(format!("{client} {ticket:?}: notified out of turn: {other:?}")),
        }
        self.clients[client].calls.remove(&ticket);
        Ok(())
    }

    fn acquired(&mut self, client: usize, ticket: Ticket, call: Call) -> Check {
        self.grants += 1;
        let one = &self.clients[client];
        let was_first = |(other, waits): (&Ticket, &Call)| {
            *other < ticket
                && !(call.mode() == Mode::Shared && self.lets_readers_pass(client))
                && waits.owner != call.owner
                && self.waiting_before.contains(other)
                && one.state.is_waiting(*other)
        };
        let hold = one.state.hold_of(ticket);
        let field = hold.map(|(id, mode, _)| FieldId::new(client as u8, id, mode));
        // It may have written when this was requested.
        let is_beside = call.mode() == Mode::Shared && (one.writes(call.owner) || self.is_beside(field));
        let is_in_order = self.kind == Kind::Fair || !self.waiting_before.contains(&ticket); // the server has the order
        if !is_in_order && !is_beside && one.calls.iter().any(was_first) {
            return Err(format!("{client} {ticket:?} overtook another"));
        }
        self.check_token(client, ticket)?;
        self.check_entry(client, ticket, &call, field)?;
        self.check_lease(client, ticket, &call, field)?;
        let owner = call.owner;
        match field {
            Some(field) => self.clients[client].add_guard(owner, field, ticket),
            None => self.clients[client].add_lost_guard(owner, call.mode(), ticket),
        }
        let call = Call { by: None, what: What::Guard { field, seen: false, since: self.t, lost: None }, ..call };
        let is_same = |other: &Call| other.what == What::Wait && (other.owner, other.mode()) == (owner, call.mode());
        let others = self.clients[client].calls.values_mut().filter(|other| is_same(other));
        others.for_each(|other| other.is_nested = true);
        self.clients[client].calls.insert(ticket, call);
        let after = if self.rng.u8(..4) == 0 { self.rng.u64(..3 * MS) } else { 1000 };
        self.after(after, Step::Caller { client, owner });
        Ok(())
    }

    /// It was requested beside the hold of a writer.
    fn is_beside(&self, field: Option<FieldId>) -> bool {
        field.is_some_and(|field| self.beside.contains_key(&field))
    }

    /// A writer that has waited for longer than a lease leaves a mark only if all holders know marks. So readers of its client may pass it.
    /// They may do so, too, if its limit ended before this reply: it waited for that, and the same reply ends its call.
    fn lets_readers_pass(&self, client: usize) -> bool {
        let one = &self.clients[client];
        let lease = one.config.watchdog.as_nanos() as u64;
        let is_late = |call: &Call| call.mode() == Mode::Exclusive && self.t > call.since + lease;
        one.calls.iter().any(|(ticket, call)| self.waiting_before.contains(ticket) && is_late(call))
    }

    /// A reader joins, and an owner re-enters, only what the server has confirmed since the call. An owner that has lost the lock does not
    /// acquire it. No new reader enters where a writer has waited for long.
    fn check_entry(&self, client: usize, ticket: Ticket, call: &Call, field: Option<FieldId>) -> Check {
        let own = || self.clients[client].calls.values().filter(|other| other.owner == call.owner);
        let is_nested = own().any(|other| other.field().is_some() && other.field() == field);
        let is_stale = field.is_some_and(|field| call.stale.contains(&field));
        if is_stale && (is_nested || call.mode() == Mode::Shared) {
            return Err(format!("{client} {ticket:?} joined {field:?}, which was gone before its call"));
        }
        let forced = field.and_then(|field| self.clients[client].forced.get(&field));
        let has_waited = self.waiting_before.contains(&ticket);
        if has_waited && forced.is_some_and(|at| call.mode() == Mode::Exclusive || call.since > *at) {
            return Err(format!("{client} {ticket:?} has {field:?}, which this client had forced open"));
        }
        if field.and_then(|field| self.beside.get(&field)).is_some_and(|owner| *owner != call.owner) {
            return Err(format!("{client} {ticket:?} has {field:?}, which another owner asked for beside its own"));
        }
        let has_lost = |other: &Call| matches!(other.what, What::Guard { seen: true, lost: Some(_), .. });
        if own().any(has_lost) && !call.is_nested {
            return Err(format!("{client} {ticket:?} of an owner that has lost it"));
        }
        let is_first = !call.is_nested && !own().any(|other| other.field().is_some());
        let is_new = call.mode() == Mode::Shared && is_first && !self.is_beside(field);
        if is_new && self.mark.is_some_and(|(_, since)| call.since > since + 500 * MS) && !self.is_troubled() {
            return Err(format!("{client} {ticket:?} reads before {:?}", self.mark));
        }
        Ok(())
    }

    /// If its process died now, others would wait no longer for the lock than this call may have wanted.
    fn check_lease(&mut self, client: usize, ticket: Ticket, call: &Call, field: Option<FieldId>) -> Check {
        self.server.pass_to(self.server_time());
        let has_shared = |other: &Call| other.owner == call.owner && other.mode() == Mode::Shared;
        let one = &self.clients[client];
        let is_alone = call.mode() == Mode::Exclusive && !call.is_nested && !one.calls.values().any(has_shared);
        let least = if call.terms.lease.is_some() { Duration::ZERO } else { one.config.watchdog };
        let most = call.terms.requested_lease(&one.config).max(least).as_nanos() as u64;
        // A hold with a longer lease passes on when no more is left, as the client counts: from the request, and with what clocks differ.
        let most = most + COMMAND.as_nanos() as u64 + 10 * MS;
        let left = field.and_then(|field| self.server.left(&field)).unwrap_or(0);
        let is_late = field.is_some_and(|field| self.acquired_late.contains(&field));
        match is_alone && !is_late && left > most {
            true => {
                Err(format!("{client} {ticket:?} has the lease of another call: {} ms of {}", left / MS, most / MS))
            }
            false => Ok(()),
        }
    }

    fn lost(&mut self, client: usize, ticket: Ticket, loss: Loss) -> Check {
        self.server.pass_to(self.server_time());
        let is_guard = |call: &&Call| matches!(call.what, What::Guard { .. });
        let own = self.clients[client].calls.get(&ticket).filter(is_guard).map(|call| (call.owner, call.mode()));
        let owns = |call: &&Call| Some((call.owner, call.mode())) == own && is_guard(call);
        let terms = || self.clients[client].calls.values().filter(owns).map(|call| call.terms);
        if own.is_some() && !self.leaving && loss == Loss::MaxHold && terms().all(|terms| terms.max_hold.is_none()) {
            return Err(format!("{client} {ticket:?} has no max_hold"));
        }
        if loss == Loss::Expired && terms().any(|terms| terms.lease.is_none()) && !self.faulty {
            return Err(format!("{client} {ticket:?} expired, though it is renewed"));
        }
        let leases = terms().map(|terms| terms.requested_lease(&self.clients[client].config));
        let own_lease = leases.max().map_or(0, |lease| lease.as_nanos() as u64);
        let Some(Call { what: What::Guard { field, lost, .. }, .. }) = self.clients[client].calls.get_mut(&ticket)
        else {
            return Ok(());
        };
        let left = field.and_then(|field| self.server.left(&field)).unwrap_or(0);
        // What is longer than its own lease was needed by another reader. The client ends it when it is no longer certain.
        let left = if left > own_lease { 0 } else { certain(left, own_lease) };
        *lost = Some(LostAt { loss, safe_until: self.t + left });
        Ok(())
    }

    /// Each hold of a fenced lock has a greater token than the one before.
    fn check_token(&mut self, client: usize, ticket: Ticket) -> Check {
        let Some((id, mode, token)) = self.clients[client].state.hold_of(ticket) else { return Ok(()) };
        let field = FieldId::new(client as u8, id, mode);
        if (self.kind == Kind::Fenced) != token.is_some() {
            return Err(format!("{client} {ticket:?}: token {token:?}"));
        }
        let Some(token) = token else { return Ok(()) };
        let is_newer = self.last_token.is_none_or(|(last, of)| token > last || token == last && of == field);
        if !is_newer && !self.robbed.contains(&field) {
            return Err(format!("{client} {ticket:?}: {token:?} after {:?}", self.last_token));
        }
        if is_newer {
            self.last_token = Some((token, field));
        }
        Ok(())
    }

    /// Something went wrong so lately that it may show.
    fn is_troubled(&self) -> bool {
        self.last_fault > 0 && self.t < self.last_fault + 8_000 * MS
            || self.clients.iter().any(|one| !one.connected || one.frozen)
    }

    // ---- one step ----

    fn step(&mut self) -> Result<bool, String> {
        let Some(Reverse((t, seq))) = self.queue.pop() else { return Ok(false) };
        self.t = t;
        self.steps += 1;
        match self.steps_ahead.remove(&seq).expect("it was queued") {
            Step::Arrive { client, epoch, id, request } => self.arrive(client, epoch, id, request)?,
            Step::Back { client, epoch, id, event } => {
                let one = &mut self.clients[client];
                if one.epoch == epoch && one.under_way.remove(&id) {
                    self.feed(client, event)?;
                }
            }
            Step::Feed { client, event } => self.feed(client, event)?,
            Step::Timer { client, at } if self.clients[client].timer == at => {
                self.clients[client].timer = u64::MAX;
                self.feed(client, Event::Due)?;
            }
            Step::Timer { .. } => {}
            Step::Message { client, channel, sub } => {
                if self.clients[client].listens(channel) == Some(sub) {
                    self.feed(client, Event::Message(channel))?;
                }
            }
            Step::Subscribed { client, channel, sub } => {
                let known = self.clients[client].channels.get_mut(&channel).filter(|(known, _)| *known == sub);
                if let Some((_, on)) = known {
                    *on = true;
                    self.feed(client, Event::Subscribed(channel))?;
                }
            }
            Step::Reconnect { client, epoch } => self.reconnect(client, epoch)?,
            Step::GiveUp { client, epoch } if self.clients[client].epoch == epoch => self.cut(client)?,
            Step::GiveUp { .. } => {}
            Step::Fault => self.fault()?,
            Step::Killed => self.killed(),
            Step::Gate => self.turn_gate(),
            Step::Caller { client, owner } => self.caller(client, owner)?,
        }
        self.look()?;
        Ok(true)
    }

    /// A request comes to the server.
    fn arrive(&mut self, client: usize, epoch: u32, id: RequestId, request: Request) -> Check {
        if self.clients[client].epoch != epoch && !self.overtaking {
            return Ok(()); // closed before the next connection
        }
        if self.faulty && self.rng.u8(..100) == 0 {
            let event = [Event::Refused, Event::NotNow, Event::Unclear][self.rng.usize(..3)](id);
            (self.last_fault, self.clients[client].unknown) = (self.t, self.clients[client].unknown + 1);
            self.after(MS / 2, Step::Back { client, epoch, id, event });
            return Ok(());
        }
        if self.kind == Kind::Fair && matches!(request, Request::HandOver { .. }) {
            return Err(format!("{client} hands over a fair lock"));
        }
        if self.kind == Kind::Latch && !matches!(request, Request::Acquire { how: How::Look, .. }) {
            return Err(format!("{client} does more than look at a latch: {request:?}"));
        }
        let (listeners, before) = (self.listeners(client), self.server.queue());
        let (reply, published) = self.server.run(self.server_time(), client as u8, request, listeners);
        if let Request::Acquire { id: hold, mode, .. } = request {
            self.note_late(FieldId::new(client as u8, hold, mode), epoch, matches!(reply, Reply::Granted(_)));
        }
        self.say(|| format!("server: {client} {request:?} -> {reply:?}  {:?}", self.server));
        self.count(|| {
            let name = |text: String| text.split([' ', '(']).next().unwrap_or_default().to_owned();
            format!("{} => {}", name(format!("{request:?}")), name(format!("{reply:?}")))
        });
        self.handed += u64::from(matches!(reply, Reply::Handed(_)));
        let is_notified = !matches!(&published, Published::Nothing) && published != Published::To(Vec::new());
        if is_notified && !self.freed {
            // The lease of the lock ended before, of which nobody is told. Waiters learn that it is free by this message, of a late release
            // or of the mark of a waiter that left.
            self.free_since = None;
        }
        self.freed |= is_notified; // requests that find it free and leave it so change nothing
        self.publish(published);
        self.check_passed_over(&before, request)?;
        let after = self.delay();
        let mut event = Event::Replied(id, reply);
        if self.faulty && self.rng.u8(..200) == 0 {
            // A proxy has lost the reply, and answers with an error of its own.
            (self.last_fault, self.clients[client].unknown) = (self.t, self.clients[client].unknown + 1);
            event = Event::Unclear(id);
        }
        let one = &mut self.clients[client];
        let back = (self.t + after).max(one.last_back + 1);
        one.last_back = back;
        if !(one.frozen && self.rng.bool()) {
            self.after(back - self.t, Step::Back { client, epoch, id, event });
        }
        Ok(())
    }

    /// Such a request ran.
    fn note_late(&mut self, field: FieldId, epoch: u32, is_granted: bool) {
        let last = self.last_epochs.entry(field).or_insert(epoch);
        if epoch < *last && is_granted {
            self.acquired_late.insert(field);
        }
        *last = epoch.max(*last);
    }

    /// The subscribers other than this client, and all waiters that listen.
    fn listeners(&self, client: usize) -> Listeners {
        let others = (0..self.clients.len()).filter(|other| *other != client);
        let others = others.filter(|other| self.clients[*other].listens(Channel::Name).is_some()).count() as u32;
        let mut places = Vec::new();
        for (at, one) in self.clients.iter().enumerate() {
            let on = one.channels.iter().filter(|(_, (_, on))| *on).map(|(channel, _)| *channel);
            let ids = on.filter_map(|channel| if let Channel::Place(id) = channel { Some(id) } else { None });
            places.extend(ids.map(|id| FieldId::new(at as u8, id, Mode::Exclusive)));
        }
        Listeners { others, places }
    }

    fn publish(&mut self, published: Published) {
        let receivers: Vec<_> = match published {
            Published::Nothing => Vec::new(),
            Published::ToAll => (0..self.clients.len()).map(|client| (client, Channel::Name)).collect(),
            Published::To(ids) => ids.iter().map(|id| (usize::from(id.client), Channel::Place(id.id))).collect(),
        };
        for (client, channel) in receivers {
            let Some(sub) = self.clients.get(client).and_then(|one| one.listens(channel)) else { continue };
            let after = self.delay();
            self.after(after, Step::Message { client, channel, sub });
        }
    }

    /// The server passes over a waiter only if the waiter does not come.
    fn check_passed_over(&self, before: &[FieldId], request: Request) -> Check {
        let queue = self.server.queue();
        let own = match request {
            Request::Acquire { id, .. } | Request::Release { id, .. } => Some(id),
            Request::Renew { .. } | Request::HandOver { .. } => None,
        };
        let waits = |id: &&FieldId| {
            let client = self.clients.get(usize::from(id.client));
            client.is_some_and(|one| one.state.places().any(|place| place == id.id))
        };
        let mut gone = before.iter().filter(|id| !queue.contains(id) && Some(id.id) != own);
        match gone.find(waits) {
            Some(id) if !self.is_troubled() => Err(format!("{id} was passed over")),
            _ => Ok(()),
        }
    }

    // ---- faults ----

    fn reconnect(&mut self, client: usize, epoch: u32) -> Check {
        let one = &mut self.clients[client];
        if one.epoch != epoch || one.connected {
            return Ok(());
        }
        one.connected = true;
        one.last_arrival = one.last_arrival.max(self.t);
        for (id, request) in std::mem::take(&mut one.backlog) {
            self.send(client, id, request);
        }
        self.feed(client, Event::Reconnected)
    }

    fn cut(&mut self, client: usize) -> Check {
        let one = &mut self.clients[client];
        (one.connected, one.frozen, one.epoch) = (false, false, one.epoch + 1);
        let (epoch, lost) = (one.epoch, std::mem::take(&mut one.under_way));
        let after = self.rng.u64(..300) * MS;
        self.after(after, Step::Reconnect { client, epoch });
        lost.into_iter().try_for_each(|id| self.feed(client, Event::Unknown(id)))
    }

    fn fault(&mut self) -> Check {
        if self.ending {
            return Ok(());
        }
        let next = self.rng.u64(1..self.trouble) * MS;
        self.after(next, Step::Fault);
        self.last_fault = self.t;
        let client = self.rng.usize(..self.clients.len());
        match self.rng.u8(..14) {
            0..=3 => {
                self.say(|| format!("-- cut {client}"));
                self.cut(client)
            }
            4 | 5 => {
                self.say(|| format!("-- freeze {client}"));
                self.clients[client].frozen = true;
                let epoch = self.clients[client].epoch;
                self.after(COMMAND.as_nanos() as u64 * 9 / 10, Step::GiveUp { client, epoch });
                Ok(())
            }
            6 | 7 => self.unsubscribe(client),
            13 => {
                self.say(|| "-- a JVM shortens leases".into());
                self.server.pass_to(self.server_time());
                self.server.shorten(SURE + ms(20));
                Ok(())
            }
            8 => {
                let keeps = self.rng.bool();
                self.say(|| format!("-- server restarts, data kept: {keeps}"));
                if !keeps {
                    self.rob();
                } else if self.rng.bool() {
                    self.bring_back();
                }
                (0..self.clients.len()).try_for_each(|client| self.cut(client))
            }
            _ => {
                self.say(|| "-- forced open".into());
                self.server.pass_to(self.server_time());
                let (gone, published) = self.server.force(self.listeners(usize::MAX));
                self.robbed.extend(gone);
                self.publish(published);
                if self.rng.bool() { self.forced_by(client) } else { Ok(()) }
            }
        }
    }

    /// A client forced the lock open, and knows it.
    fn forced_by(&mut self, client: usize) -> Check {
        let fields: Vec<_> = self.clients[client].calls.values().filter_map(Call::field).collect();
        let gone = fields.into_iter().filter(|field| self.robbed.contains(field)).map(|field| (field, self.t));
        self.clients[client].forced.extend(gone);
        self.feed(client, Event::Forced)
    }

    fn killed(&mut self) {
        if !self.ending {
            self.say(|| "-- a waiter was killed".into());
            self.server.pass_to(self.server_time());
            self.server.add_dead(HoldId(self.seq));
            let next = self.rng.u64(1..6_000) * MS;
            self.after(next, Step::Killed);
        }
    }

    fn turn_gate(&mut self) {
        if !self.ending {
            let (_, published) = self.server.force(self.listeners(usize::MAX));
            self.say(|| format!("-- the latch turns: {:?}", self.server));
            self.publish(published);
            let next = self.rng.u64(1..150) * MS;
            self.after(next, Step::Gate);
        }
    }

    fn unsubscribe(&mut self, client: usize) -> Check {
        self.say(|| format!("-- subscription of {client} ends"));
        let channels: Vec<_> =
            self.clients[client].channels.iter().filter(|(_, (_, on))| *on).map(|(c, _)| *c).collect();
        for channel in channels {
            if self.clients[client].listens(channel).is_some() {
                let after = self.rng.u64(..500) * MS;
                self.subscribe(client, channel, after);
                self.feed(client, Event::Unsubscribed(channel))?;
            }
        }
        Ok(())
    }

    /// The queue of a fair lock has waiters again that have had their turn.
    fn bring_back(&mut self) {
        let mut waiters = Vec::new();
        for _ in 0..self.rng.usize(1..=12) {
            let at = self.rng.usize(..self.clients.len());
            let state = &self.clients[at].state;
            let last = state.numbers().used();
            let id = HoldId(self.rng.u64(1..=last.max(1)));
            let may_be_there = last == 0 || state.places().any(|place| place == id);
            if !may_be_there {
                waiters.push(FieldId::new(at as u8, id, Mode::Exclusive));
            }
        }
        self.say(|| format!("-- waiters are back: {waiters:?}"));
        self.server.pass_to(self.server_time());
        self.server.bring_back(waiters);
    }

    fn rob(&mut self) {
        self.server.pass_to(self.server_time());
        let gone = self.server.lose_all();
        self.robbed.extend(gone);
    }

    // ---- callers ----

    fn new_call(&self, owner: usize, terms: Terms, by: Option<u64>, what: What) -> Call {
        let was_open = self.is_open();
        Call { owner, terms, since: self.t, is_nested: false, stale: Vec::new(), by, was_open, limit: None, what }
    }

    fn call(&mut self, client: usize, call: Call) -> Ticket {
        let one = &mut self.clients[client];
        one.tickets += 1;
        let ticket = Ticket(one.tickets);
        one.calls.insert(ticket, call);
        ticket
    }

    /// What a client measures as that time has passed, and a margin.
    fn by(&self, time: Duration) -> Option<u64> {
        let time = time.as_nanos() as u64;
        Some(self.t + time + time / 500 + 5 * MS)
    }

    /// The tickets of an owner: its guards, and its waiters.
    fn tickets(&self, client: usize, owner: usize) -> (Vec<Ticket>, Vec<Ticket>) {
        let mine = self.clients[client].calls.iter().filter(|(_, call)| call.owner == owner);
        let (mut guards, mut waits) = (Vec::new(), Vec::new());
        for (ticket, call) in mine {
            match call.what {
                What::Guard { .. } => guards.push(*ticket),
                What::Wait => waits.push(*ticket),
                What::Unlock { .. } | What::Check => {}
            }
        }
        (guards, waits)
    }

    /// One step of an owner: it looks at what its calls have come to, and does something.
    fn caller(&mut self, client: usize, owner: usize) -> Check {
        if self.clients[client].away[owner] > self.t && !self.ending {
            let left = self.clients[client].away[owner] - self.t;
            self.after(left, Step::Caller { client, owner });
            return Ok(());
        }
        self.look_at_guards(client, owner)?;
        let (guards, waits) = self.tickets(client, owner);
        if self.ending {
            return self.leave_all(client, guards, waits);
        }
        self.act_of(client, owner, guards, waits)?;
        let after = match self.rng.u8(..30) {
            0..=2 => self.rng.u64(..1500) * MS,
            3..=11 => 1000,
            _ => self.rng.u64(1000..30 * MS),
        };
        self.after(after, Step::Caller { client, owner });
        Ok(())
    }

    fn look_at_guards(&mut self, client: usize, owner: usize) -> Check {
        for ticket in self.tickets(client, owner).0 {
            let Some(Call { what: What::Guard { seen: false, .. }, .. }) = self.clients[client].calls.get(&ticket)
            else {
                continue;
            };
            self.feed(client, Event::Seen(ticket))?;
            if let Some(Call { what: What::Guard { seen, .. }, .. }) = self.clients[client].calls.get_mut(&ticket) {
                *seen = true;
            }
        }
        Ok(())
    }

    fn leave_all(&mut self, client: usize, guards: Vec<Ticket>, waits: Vec<Ticket>) -> Check {
        guards.into_iter().try_for_each(|guard| self.release(client, guard))?;
        waits.into_iter().try_for_each(|wait| self.stop_waiting(client, wait))
    }

    fn stop_waiting(&mut self, client: usize, wait: Ticket) -> Check {
        self.clients[client].calls.remove(&wait);
        self.feed(client, Event::Dropped(wait))
    }

    fn act_of(&mut self, client: usize, owner: usize, guards: Vec<Ticket>, waits: Vec<Ticket>) -> Check {
        let pick = self.rng.u8(..100);
        match (guards.is_empty(), waits.is_empty()) {
            (false, _) if pick < 65 => {
                let guard = guards[self.rng.usize(..guards.len())];
                self.release(client, guard)
            }
            (false, true) if pick < 80 && guards.len() < 3 => self.acquire(client, owner),
            (false, _) if pick < 90 => {
                let guard = guards[self.rng.usize(..guards.len())];
                let lease = self.rng.bool().then(|| ms(self.rng.u64(100..4000)));
                let call = self.new_call(owner, Terms::default(), self.by(OUTAGE), What::Check);
                let ticket = self.call(client, call);
                self.feed(client, Event::Check { guard, ticket, lease })
            }
            (true, false) if pick < 6 => {
                let wait = waits[self.rng.usize(..waits.len())];
                self.stop_waiting(client, wait)
            }
            (true, false) if pick < 8 => {
                self.clients[client].away[owner] = self.t + self.rng.u64(..8_000) * MS;
                Ok(())
            }
            (true, false) if pick < 15 => self.acquire(client, owner), // another branch
            (true, true) if pick < 80 => self.acquire(client, owner),
            _ => Ok(()),
        }
    }

    fn is_open(&self) -> bool {
        self.kind == Kind::Latch && self.server.admits(Mode::Exclusive)
    }

    fn terms(&mut self) -> Terms {
        if self.kind == Kind::Latch {
            return Terms::default();
        }
        let rng = &mut self.rng;
        let is_read = self.kind == Kind::ReadWrite && rng.u8(..100) < 60;
        Terms {
            mode: if is_read { Mode::Shared } else { Mode::Exclusive },
            lease: (rng.u8(..5) == 0).then(|| ms(rng.u64(50..3000)).into()),
            max_hold: (rng.u8(..10) == 0).then(|| ms(rng.u64(10..2000)).into()),
            min_hold: (rng.u8(..20) == 0).then(|| ms(rng.u64(1..50)).into()),
            permits: 0,
        }
    }

    fn acquire(&mut self, client: usize, owner: usize) -> Check {
        let terms = self.terms();
        let wait = ms(self.rng.u64(..800));
        let (limit, time) = match self.rng.u8(..10) {
            0..=1 => (Limit::Once, Some(COMMAND)),
            2..=4 => (Limit::Until(self.clients[client].local(self.t) + wait), Some(wait + ms(105))),
            _ => (Limit::Forever, None),
        };
        let again = if self.kind == Kind::Latch { ms(100) } else { ms(0) }; // for one more look after the limit
        let by = time.and_then(|time| self.by(time + again));
        let ends = match limit {
            Limit::Once => Some(self.t),
            Limit::Until(_) => Some(self.t + (wait - wait / 1_000).as_nanos() as u64),
            Limit::Forever => None,
        };
        let call = Call { limit: ends, ..self.new_call(owner, terms, by, What::Wait) };
        let fields = self.clients[client].calls.values().filter_map(Call::field);
        let is_gone = |field: &FieldId| self.robbed.contains(field) && self.server.count(field).is_none();
        let stale: Vec<_> = fields.filter(is_gone).collect();
        let one = &self.clients[client];
        let is_kept = |hold: &OwnerHold| hold.guards.is_empty() && (hold.owner, hold.field.mode) == (owner, terms.mode);
        let is_nested = one.calls.values().any(|other| other.owner == owner && other.field().is_some())
            || one.holds.iter().any(is_kept); // by a nested call, after its last guard was dropped
        let ticket = self.call(client, Call { is_nested, stale, ..call });
        self.feed(client, Event::Acquire { ticket, owner: Owner(owner as u64), terms, limit })?;
        self.check_upgrade(client, owner, ticket)
    }

    /// Who reads does not wait to write.
    fn check_upgrade(&self, client: usize, owner: usize, ticket: Ticket) -> Check {
        let one = &self.clients[client];
        let mut own = one.calls.values().filter(|call| call.owner == owner && call.mode() == Mode::Shared);
        let waits =
            one.calls.get(&ticket).is_some_and(|call| call.mode() == Mode::Exclusive && one.state.is_waiting(ticket));
        match waits && own.any(|call| call.field().is_some()) {
            true => Err(format!("{client} {ticket:?} waits for itself")),
            false => Ok(()),
        }
    }

    fn release(&mut self, client: usize, guard: Ticket) -> Check {
        let Some(call) = self.clients[client].calls.remove(&guard) else { return Ok(()) };
        if self.rng.u8(..3) == 0 {
            return self.feed(client, Event::Dropped(guard));
        }
        self.server.pass_to(self.server_time());
        let one = &self.clients[client];
        let field = one.state.hold_of(guard).map(|(id, mode, _)| FieldId::new(client as u8, id, mode));
        let is_certain = one.state.certain_until(guard, one.local(self.t)).is_some();
        let there = field.filter(|field| is_certain && self.server.count(field).is_some());
        let what = What::Unlock { there, unknown: one.unknown };
        let by = self.by(OUTAGE);
        self.clients[client].calls.insert(guard, Call { by, what, ..call });
        self.feed(client, Event::Unlock(guard))
    }

    // ---- what must be true at all times ----

    fn look(&mut self) -> Check {
        self.server.pass_to(self.server_time());
        if self.is_open() {
            let calls = self.clients.iter_mut().flat_map(|one| one.calls.values_mut());
            calls.for_each(|call| call.was_open = true);
        }
        self.open_since = if self.is_open() { self.open_since.or(Some(self.t)) } else { None };
        let mark = self.server.mark().filter(|mark| mark.mode == Mode::Exclusive);
        self.mark = mark.map(|mark| self.mark.filter(|(known, _)| *known == mark).unwrap_or((mark, self.t)));
        let mut certain = Vec::new();
        for at in 0..self.clients.len() {
            self.check_one_holder(at)?;
            for (ticket, call) in &self.clients[at].calls {
                match call.what {
                    What::Guard { seen, since, lost, field } => {
                        certain.extend(self.check_guard(at, *ticket, call)?);
                        self.check_notified(at, *ticket, (seen, since, lost.is_some()), call)?;
                        if let Some((field, lost)) = field.zip(lost) {
                            self.check_lost(at, *ticket, field, lost)?;
                        }
                    }
                    What::Wait => self.check_beside(at, *ticket, call)?,
                    What::Unlock { .. } | What::Check => {}
                }
                if call.by.is_some_and(|by| by < self.t) {
                    return Err(format!("{at} {ticket:?} was to be notified before: {call:?}"));
                }
            }
        }
        let alone = certain.iter().find(|(_, _, mode)| *mode == Mode::Exclusive);
        if alone.is_some_and(|one| certain.iter().any(|other| (other.0, other.1) != (one.0, one.1))) {
            return Err(format!("two certain holders: {certain:?}"));
        }
        self.check_free()
    }

    /// A client knows that two of its owners cannot hold a lock, also if it was taken from one of them.
    fn check_one_holder(&self, at: usize) -> Check {
        let one = &self.clients[at];
        let is_certain = |ticket: &Ticket| one.state.certain_until(*ticket, one.local(self.t)).is_some();
        let is_guard = |call: &Call| call.field().is_some_and(|field| field.mode == Mode::Exclusive);
        let certain = one.calls.iter().filter(|(ticket, call)| is_guard(call) && is_certain(ticket));
        let owners: BTreeSet<_> = certain.map(|(_, call)| call.owner).collect();
        match owners.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("{at} has two certain owners: {owners:?}")),
        }
    }

    /// A certain holder has the lock on the server, and the counts agree.
    fn check_guard(&self, at: usize, ticket: Ticket, call: &Call) -> Result<Option<(usize, usize, Mode)>, String> {
        let one = &self.clients[at];
        let Some((id, mode, _)) = one.state.hold_of(ticket) else { return Ok(None) };
        let field = FieldId::new(at as u8, id, mode);
        if one.state.certain_until(ticket, one.local(self.t)).is_none() || self.robbed.contains(&field) {
            return Ok(None);
        }
        let Some(count) = self.server.count(&field) else {
            return Err(format!("{at} is certain of {id:?} {mode:?}, and the server has {:?}", self.server));
        };
        let level = one.state.count_of(ticket).and_then(|(_, level)| level);
        if level.is_some_and(|level| u64::from(level) != count) && one.under_way.is_empty() && !self.overtaking {
            return Err(format!("{at} has confirmed {level:?}, and the server {count}"));
        }
        Ok(Some((at, call.owner, mode)))
    }

    /// A holder that is not certain was told, and a caller that does not look was passed over.
    fn check_notified(&self, at: usize, ticket: Ticket, (seen, since, lost): (bool, u64, bool), call: &Call) -> Check {
        let one = &self.clients[at];
        let local = one.local(self.t);
        let is_certain = |at| one.state.certain_until(ticket, at).is_some();
        if seen && !lost && !is_certain(local) && !is_certain(Moment::of_nanos(local.nanos() - 3 * MS)) {
            return Err(format!("{at} {ticket:?} is not certain and was not notified"));
        }
        let has_others = || one.calls.iter().any(|(other, two)| *other != ticket && two.owner == call.owner);
        if !seen && self.t > since + 500 * MS && one.timer > self.t + 2 * MS && !has_others() {
            return Err(format!("{at} {ticket:?} was notified long ago and nobody looks"));
        }
        Ok(())
    }

    /// A holder that reached its `max_hold` has the rest of its lease to stop, as far as replies confirmed it. Its client counts each lease
    /// from the sending of a request, which the server may run much later. A writer that is lost is gone after that.
    fn check_lost(&self, at: usize, ticket: Ticket, field: FieldId, lost: LostAt) -> Check {
        let is_there = self.server.count(&field).is_some();
        let is_excused = self.robbed.contains(&field) || self.overtaking || self.ending;
        let confirmed = self.clients[at].confirmed.get(&field).copied().unwrap_or_default();
        if lost.loss == Loss::MaxHold && self.t < lost.safe_until.min(confirmed) && !is_there && !is_excused {
            return Err(format!("{at} {ticket:?} was released before it could stop"));
        }
        let is_late = self.t > lost.safe_until.saturating_add(6_000 * MS);
        if field.mode == Mode::Exclusive && is_late && is_there && !self.is_troubled() {
            return Err(format!("{at} {ticket:?} is lost, and still there"));
        }
        Ok(())
    }

    /// Who writes may read, before all others.
    fn check_beside(&self, at: usize, ticket: Ticket, call: &Call) -> Check {
        let writes = |other: &Call| {
            other.owner == call.owner && other.field().is_some_and(|field| field.mode == Mode::Exclusive)
        };
        let since =
            |other: &Call| if let What::Guard { since, .. } = other.what { since.max(call.since) } else { self.t };
        let has_waited = |other: &Call| writes(other) && self.t > since(other) + 100 * MS;
        let waits = call.mode() == Mode::Shared && !self.is_troubled();
        match waits && self.clients[at].calls.values().any(has_waited) {
            true => Err(format!("{at} {ticket:?} writes, and waits to read")),
            false => Ok(()),
        }
    }

    /// A lock that a waiter could have is not left alone.
    fn check_free(&mut self) -> Check {
        let could_have = |one: &Client| one.state.waiting().1.is_some_and(|mode| self.server.admits(mode));
        let is_left = self.clients.iter().any(|one| one.is_waiting() && could_have(one));
        self.free_since = if is_left { self.free_since.or(Some(self.t)) } else { None };
        if self.free_since.is_none() {
            self.freed = false; // the next release counts
        }
        self.behind_dead = if self.free_since.is_some() { self.behind_dead.max(self.server.absent()) } else { 0 };
        // Where a lease ends nobody is told, and others sleep as long as they were told that it lasts. A latch has no lease.
        let bound = match (self.is_troubled(), self.freed || self.kind == Kind::Latch) {
            (true, _) => 8_000,
            (false, true) => 60,
            (false, false) => 5_100,
        };
        let bound = bound + 5_050 * self.behind_dead;
        match self.free_since {
            Some(since) if self.t > since + bound * MS => {
                Err(format!("could be had, and waited for since {} ms", (self.t - since) / MS))
            }
            _ => Ok(()),
        }
    }

    // ---- the end ----

    fn finish(&mut self) -> Check {
        self.ending = true;
        for client in 0..self.clients.len() {
            match self.rng.u8(..4) {
                0 => self.feed(client, Event::Close)?,
                1 => self.feed(client, Event::Stop)?,
                _ => {}
            }
        }
        // Waiters end after the queue has passed over each one that does not come.
        let limit = self.t + (20_000 + 5_050 * self.server.absent()) * MS;
        while self.t < limit {
            for client in 0..self.clients.len() {
                for owner in 0..self.clients[client].away.len() {
                    self.caller(client, owner)?;
                }
            }
            if self.clients.iter().all(|one| one.state.is_quiet() && one.calls.is_empty() && one.connected) {
                return self.check_left();
            }
            if !self.step()? {
                break;
            }
        }
        let loud = self.clients.iter().filter(|one| !one.state.is_quiet() || !one.calls.is_empty());
        let states: Vec<_> = loud.map(|one| (&one.state, &one.calls)).collect();
        Err(format!("not quiet in the end: {states:#?}"))
    }

    fn check_left(&mut self) -> Check {
        if let Some(one) = self.clients.iter().find(|one| one.reported.ended != one.reported.shown) {
            return Err(format!("not reported what became of each hold: {:?}", one.reported));
        }
        self.server.pass_to(self.server_time());
        let is_robbed = self.server.fields().iter().all(|field| self.robbed.contains(field));
        let is_excused = self.overtaking || is_robbed && self.server.mark().is_none();
        match self.server.is_empty() || is_excused {
            true => Ok(()),
            false => Err(format!("left behind: {:?}", self.server)),
        }
    }

    pub(crate) fn run(&mut self, steps: u64) -> Check {
        while self.steps < steps && self.step()? {}
        self.finish()
    }
}
