//! Semaphores: clients, and a server by the rules of `src/primitives/semaphore/*.lua`, in random orders. Requests and replies are lost, callers
//! leave, permits are split, and clients die. After every step: no more permits are certain than there are, the server has those of each
//! guard, waiters of a client go in order, and none sleeps while it could acquire. `PERMITS_SEED=s` runs one seed, `PERMITS_SEEDS=n` so many.
//!
//! The same for plain semaphores, by the rules of `src/primitives/plain_semaphore/*.lua`: their callers keep what they acquire, and requests
//! whose connection was lost may run much later. No permit is lost or counted twice while all clients live.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::lock::{
    Action, Actions, Channel, Config, Cx, Event, HoldId, How, Limit, LockState, Loss, Mode, Moment, Nanos, Numbers,
    Outcome, Owner, Reply, Request, RequestId, Rules, Terms, Ticket, Waits,
};

const ALL: i64 = 5;
const WATCHDOG: Duration = ms(1_000);
const MARK: Duration = ms(3_000);
pub(crate) const RULES: Rules = Rules { waits: Waits::ForPermits, passes_on: true, sure: None };
/// The lease of a hold of a plain semaphore, until its caller keeps it.
const RECEIPT: Duration = ms(90_000);
/// The lease of what callers of a plain semaphore acquire.
const KEPT: Duration = ms(365 * 24 * 3_600_000);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A permit: of which client, of which hold, and its number.
type Permit = (u64, u64, u16);

/// What the server knows of the permits that are not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Knows {
    /// Each of them has a lease.
    Leases,
    /// Nothing, as with a plain semaphore. Each request has a receipt.
    Receipts,
}

/// What became of a request for permits of a plain semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Receipt {
    Took(u16),
    Void,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    knows: Knows,
    receipts: BTreeMap<(u64, HoldId), Receipt>,
    /// Permits of a plain semaphore that callers have returned by requests of their own.
    returned: i64,
    pub(crate) now: Moment,
    all: i64,
    pub(crate) free: i64,
    pub(crate) taken: BTreeMap<Permit, Moment>,
    pub(crate) mark: Option<((u64, u64), Moment)>,
    /// The last request has published a message.
    pub(crate) published: bool,
}

impl Server {
    pub(crate) fn new(all: i64) -> Server {
        Server {
            knows: Knows::Leases,
            receipts: BTreeMap::new(),
            returned: 0,
            now: Moment::of_nanos(1 << 40),
            all,
            free: all,
            taken: BTreeMap::new(),
            mark: None,
            published: false,
        }
    }

    fn of(&self, client: u64, id: HoldId) -> impl Iterator<Item = (Permit, Moment)> + '_ {
        let (hold, _) = id.of_permits();
        self.taken.range((client, hold, 0)..=(client, hold, u16::MAX)).map(|(permit, ends)| (*permit, *ends))
    }

    pub(crate) fn alive(&self, client: u64, id: HoldId) -> usize {
        self.of(client, id).filter(|(_, ends)| *ends > self.now).count()
    }

    fn give_back(&mut self, back: Vec<Permit>) {
        self.free += i64::try_from(back.len()).expect("a few");
        self.published |= !back.is_empty() && self.free > 0;
        back.iter().for_each(|permit| _ = self.taken.remove(permit));
    }

    pub(crate) fn reap(&mut self) {
        let over = self.taken.iter().filter(|(_, ends)| **ends <= self.now).map(|(permit, _)| *permit).collect();
        self.give_back(over);
    }

    pub(crate) fn run(&mut self, client: u64, request: Request) -> Reply {
        if self.knows == Knows::Receipts {
            return self.run_once(client, request);
        }
        self.mark.take_if(|(_, till)| *till <= self.now);
        match request {
            Request::Acquire { id, lease, how, .. } => self.acquire(client, id, lease, how),
            Request::Release { id, count, .. } => self.release(client, id, count),
            Request::Renew { id, lease, count, .. } => self.renew(client, id, lease, count),
            Request::HandOver { .. } => panic!("permits are not handed over"),
        }
    }

    fn run_once(&mut self, client: u64, request: Request) -> Reply {
        match request {
            Request::Acquire { id, .. } => self.take_once(client, id),
            Request::Release { id, granted, .. } => {
                let took = match self.receipts.insert((client, id), Receipt::Void) {
                    Some(Receipt::Took(permits)) => permits,
                    Some(Receipt::Void) => 0,
                    None if granted => {
                        self.returned += i64::from(id.of_permits().1); // its receipt has ended, or it passed on
                        id.of_permits().1
                    }
                    None => 0,
                };
                self.add(took);
                if took > 0 { Reply::Released { receivers: 0 } } else { Reply::Gone }
            }
            Request::Renew { .. } => Reply::Conflict, // there is nothing that could be kept
            Request::HandOver { .. } => panic!("permits are not handed over"),
        }
    }

    fn take_once(&mut self, client: u64, id: HoldId) -> Reply {
        let (_, wanted) = id.of_permits();
        match self.receipts.get(&(client, id)) {
            Some(Receipt::Took(_)) => Reply::Granted(None),
            Some(Receipt::Void) => Reply::Lost,
            None if i64::from(wanted) > self.free => Reply::Busy { left: None, by: Mode::Shared, own: None },
            None => {
                self.free -= i64::from(wanted);
                self.receipts.insert((client, id), Receipt::Took(wanted));
                Reply::Granted(None)
            }
        }
    }

    fn add(&mut self, permits: u16) {
        self.free += i64::from(permits);
        self.published |= permits > 0 && self.free > 0;
    }

    /// Permits that were acquired and not returned.
    fn out(&self) -> i64 {
        let took = |receipt: &Receipt| if let Receipt::Took(permits) = receipt { i64::from(*permits) } else { 0 };
        self.receipts.values().map(took).sum::<i64>() - self.returned
    }

    fn acquire(&mut self, client: u64, id: HoldId, lease: Duration, how: How) -> Reply {
        let ((hold, wanted), ends) = (id.of_permits(), self.now + lease);
        self.reap();
        let is_known = self.taken.contains_key(&(client, hold, 0));
        let missing = if is_known { 0 } else { i64::from(wanted) };
        let theirs = self.mark.filter(|(waiter, _)| *waiter != (client, hold));
        if missing > 0 && (missing > self.free || theirs.is_some()) {
            let ends = self.taken.values().chain(theirs.iter().map(|(_, till)| till)).min();
            let left = ends.map(|ends| ends.since(self.now));
            let may_mark = i64::from(wanted) <= self.all && theirs.is_none();
            if may_mark && (self.mark.is_some() || matches!(how, How::Turn | How::Late)) {
                self.mark = Some(((client, hold), self.now + MARK));
            }
            return Reply::Busy { left, by: Mode::Shared, own: None };
        }
        self.free -= missing;
        self.published |= self.mark.take_if(|(waiter, _)| *waiter == (client, hold)).is_some() && self.free > 0;
        for permit in (0..wanted).map(|n| (client, hold, n)) {
            match self.taken.get_mut(&permit) {
                Some(known) => *known = ends.max(*known),
                None if is_known => {} // a part that was released
                None => _ = self.taken.insert(permit, ends),
            }
        }
        Reply::Granted(None)
    }

    fn release(&mut self, client: u64, id: HoldId, keep: u32) -> Reply {
        let is_held = self.alive(client, id) > 0;
        let back = self.of(client, id).map(|(permit, _)| permit).filter(|permit| u32::from(permit.2) >= keep).collect();
        self.give_back(back);
        if keep == 0 && self.mark.take_if(|(waiter, _)| *waiter == (client, id.of_permits().0)).is_some() {
            self.published |= self.free > 0;
        }
        if is_held { Reply::Released { receivers: 0 } } else { Reply::Gone }
    }

    fn renew(&mut self, client: u64, id: HoldId, lease: Option<Duration>, count: u32) -> Reply {
        if self.alive(client, id) == 0 {
            return Reply::Gone;
        }
        let (hold, _) = id.of_permits();
        for (permit, ends) in self.taken.range_mut((client, hold, 0)..(client, hold, count as u16)) {
            assert_eq!(permit.0, client);
            *ends = lease.map_or(*ends, |lease| (self.now + lease).max(*ends));
        }
        Reply::Kept { admits: false, left: None }
    }
}

/// A release was published, and so many other clients received the message.
pub(crate) fn told(reply: Reply, receivers: usize) -> Reply {
    let receivers = u32::try_from(receivers).expect("a few");
    if matches!(reply, Reply::Released { .. }) { Reply::Released { receivers } } else { reply }
}

struct Client {
    id: u64,
    state: LockState,
    config: Config,
    /// Not run yet, and run without a reply so far.
    there: VecDeque<(RequestId, Request)>,
    back: VecDeque<(RequestId, Reply)>,
    messages: u32,
    listens: bool,
    yields: bool,
    passed_on: bool,
    waiting: BTreeMap<u64, u16>,
    /// The leases that these have wanted.
    leases: BTreeMap<u64, Duration>,
    guards: BTreeMap<u64, u32>,
    unlocking: Vec<u64>,
    /// Permits that callers have kept.
    kept: Vec<u16>,
    tickets: u64,
}

struct World {
    seed: u64,
    rng: fastrand::Rng,
    server: Server,
    clients: Vec<Client>,
    /// Requests of lost connections that the server may still run.
    late: Vec<(u64, Request)>,
    died: u64,
}

impl Client {
    fn new(id: u64, publishes: bool) -> Client {
        let config = Config {
            watchdog: WATCHDOG,
            command_timeout: ms(300),
            outage_timeout: ms(20_000),
            handovers: 16,
            round_trip: ms(1),
            publishes,
            first_confirmation: None,
        };
        let state = LockState::new(&RULES, Numbers::after(0));
        let (there, back, waiting, guards) = (VecDeque::new(), VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        let (messages, listens, yields, passed_on) = (0, false, false, false);
        let (unlocking, kept, tickets) = (Vec::new(), Vec::new(), 0);
        Client {
            id,
            state,
            config,
            there,
            back,
            messages,
            listens,
            yields,
            passed_on,
            waiting,
            leases: BTreeMap::new(),
            guards,
            unlocking,
            kept,
            tickets,
        }
    }

    fn hears(&self) -> bool {
        self.listens && self.config.publishes
    }

    fn is_quiet(&self) -> bool {
        self.there.is_empty() && self.back.is_empty() && self.messages == 0 && !self.yields
    }
}

impl World {
    fn new(seed: u64, knows: Knows) -> World {
        let mut rng = fastrand::Rng::with_seed(seed);
        let publishes = rng.u8(..4) > 0;
        let clients = (0..rng.u64(1..4)).map(|id| Client::new(id, publishes)).collect();
        let server = Server { knows, ..Server::new(ALL) };
        World { seed, rng, server, clients, late: Vec::new(), died: 100 }
    }

    fn is_plain(&self) -> bool {
        self.server.knows == Knows::Receipts
    }

    fn rules(&self) -> Rules {
        match self.is_plain() {
            true => Rules { waits: Waits::ToKeep, passes_on: false, ..RULES },
            false => RULES,
        }
    }

    fn now(&self) -> Moment {
        self.server.now
    }

    fn feed(&mut self, at: usize, event: Event) {
        self.server.now = self.server.now + Duration::from_nanos(1); // no two events at one moment
        let (now, rules, mut actions) = (self.now(), self.rules(), Actions::new());
        let client = &mut self.clients[at];
        let mut cx = Cx { now, config: &client.config, rules: &rules, actions: &mut actions };
        client.state.handle(event, &mut cx);
        for action in actions {
            self.act(at, action);
        }
    }

    fn act(&mut self, at: usize, action: Action) {
        let client = &mut self.clients[at];
        match action {
            Action::Send(id, request) => client.there.push_back((id, request)),
            Action::Notify(Ticket(ticket), outcome) => self.notified(at, ticket, outcome),
            Action::Lost(Ticket(ticket), loss) => {
                let hold = client.state.hold_of(Ticket(ticket));
                assert!(hold.is_none() && client.guards.contains_key(&ticket), "seed {}", self.seed);
                assert!(loss != Loss::MaxHold, "seed {}", self.seed);
            }
            Action::Subscribe(Channel::Name) => client.listens = true,
            Action::Unsubscribe(Channel::Name) => client.listens = false,
            Action::Yield => client.yields = true,
            Action::PassedOn => client.passed_on = true,
            Action::Left { .. } | Action::Ended(..) => {}
            other => panic!("of a semaphore: {other:?}"),
        }
    }

    fn notified(&mut self, at: usize, ticket: u64, outcome: Outcome) {
        let (seed, client) = (self.seed, &mut self.clients[at]);
        if let Some(index) = client.unlocking.iter().position(|known| *known == ticket) {
            client.unlocking.swap_remove(index);
            return assert!(!matches!(outcome, Outcome::Acquired | Outcome::Busy), "seed {seed}: {outcome:?}");
        }
        let Some(wanted) = client.waiting.remove(&ticket) else {
            return assert_eq!(outcome, Outcome::StartAgain, "seed {seed}");
        };
        match outcome {
            Outcome::Acquired => {
                let first = client.waiting.keys().next().is_none_or(|first| *first > ticket);
                assert!(first, "seed {seed}: {ticket} goes before {:?}", client.waiting);
                let (hold, ..) = client.state.hold_of(Ticket(ticket)).expect("it was acquired");
                assert_eq!(hold.of_permits().1, wanted, "seed {seed}: as many as were wanted");
                client.guards.insert(ticket, u32::from(wanted));
                let most = self.server.now + client.leases.get(&ticket).map_or(WATCHDOG, |lease| WATCHDOG.max(*lease));
                let is_longer = self.server.of(client.id, hold).any(|(_, ends)| ends > most);
                assert!(!is_longer, "seed {seed}: {ticket} has the lease of another call");
            }
            Outcome::Busy | Outcome::StartAgain | Outcome::Unavailable | Outcome::Closed => {}
            Outcome::Lost(loss) => assert_eq!(loss, Loss::Expired, "seed {seed}"),
            other => panic!("seed {seed}: {other:?}"),
        }
    }

    fn acquire(&mut self, at: usize) {
        let permits = self.rng.u16(1..=4);
        let lease = match self.server.knows {
            Knows::Receipts => Some(KEPT.into()),
            Knows::Leases => (self.rng.u8(..6) == 0).then(|| ms(self.rng.u64(100..3_000)).into()), // also longer than the watchdog's
        };
        let limit = match self.rng.u8(..6) {
            0 => Limit::Once,
            1 => Limit::Until(self.now() + ms(self.rng.u64(..400))),
            _ => Limit::Forever,
        };
        let client = &mut self.clients[at];
        client.tickets += 1;
        let ticket = client.tickets;
        client.waiting.insert(ticket, permits);
        client.leases.extend(lease.map(|lease: Nanos| (ticket, lease.into())));
        let terms = Terms { mode: Mode::Shared, lease, permits, ..Terms::default() };
        self.feed(at, Event::Acquire { ticket: Ticket(ticket), owner: Owner(ticket), terms, limit });
        if self.clients[at].guards.contains_key(&ticket) {
            self.feed(at, Event::Seen(Ticket(ticket)));
        }
    }

    /// Callers keep what they have, unless it was lost before.
    fn keep(&mut self, at: usize) {
        let now = self.now();
        for (ticket, permits) in std::mem::take(&mut self.clients[at].guards) {
            let state = &mut self.clients[at].state;
            let hold = state.hold_of(Ticket(ticket));
            let is_kept = state.keep(Ticket(ticket), now);
            assert_eq!(state.hold_of(Ticket(ticket)).is_some(), !is_kept && hold.is_some(), "seed {}", self.seed);
            if is_kept {
                assert!(hold.is_some(), "seed {}: nothing was kept", self.seed);
                self.clients[at].kept.push(permits as u16);
            }
            self.feed(at, if is_kept { Event::Due } else { Event::Dropped(Ticket(ticket)) });
        }
    }

    /// A caller returns what it has kept, as any program could. A waiter acquires that, or a request of its own releases it.
    fn give_back(&mut self, at: usize) {
        let Some(permits) = self.clients[at].kept.pop() else { return };
        self.feed(at, Event::GiveBack(permits));
        if std::mem::take(&mut self.clients[at].passed_on) {
            return;
        }
        self.server.returned += i64::from(permits);
        self.server.add(permits);
        self.publish();
    }

    fn run_late(&mut self) {
        if !self.late.is_empty() {
            let (client, request) = self.late.swap_remove(self.rng.usize(..self.late.len()));
            self.server.run(client, request);
            self.publish();
        }
    }

    /// One more caller acquires a permit of a plain semaphore.
    fn acquire_one(&mut self) {
        self.acquire_one_by(|_| ());
        while !self.clients[0].is_quiet() {
            self.run_next(0);
            self.reply_next(0);
        }
    }

    /// The same. `then` follows before its request arrives.
    fn acquire_one_by(&mut self, then: impl FnOnce(&mut World)) {
        self.clients[0].tickets += 1;
        let (ticket, limit) = (self.clients[0].tickets, Limit::Forever);
        self.clients[0].waiting.insert(ticket, 1);
        let terms = Terms { mode: Mode::Shared, lease: Some(KEPT.into()), permits: 1, ..Terms::default() };
        self.feed(0, Event::Acquire { ticket: Ticket(ticket), owner: Owner(ticket), terms, limit });
        then(self);
    }

    /// The requests under way get no reply, and arrive much later.
    fn delay(&mut self) {
        let delayed: Vec<_> = self.clients[0].there.drain(..).collect();
        for (id, request) in delayed {
            self.late.push((0, request));
            self.feed(0, Event::Unknown(id));
        }
    }

    /// Callers look at what they got.
    fn look(&mut self, at: usize) {
        let guards: Vec<_> = self.clients[at].guards.keys().copied().collect();
        guards.into_iter().for_each(|guard| self.feed(at, Event::Seen(Ticket(guard))));
    }

    fn leave(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let all: Vec<_> = client.guards.keys().chain(client.waiting.keys()).copied().collect();
        let Some(ticket) = self.rng.choice(all) else { return };
        let was_guard = client.guards.remove(&ticket).is_some();
        client.waiting.remove(&ticket);
        if was_guard && self.server.knows == Knows::Leases && self.rng.bool() {
            client.unlocking.push(ticket);
            return self.feed(at, Event::Unlock(Ticket(ticket)));
        }
        self.feed(at, Event::Dropped(Ticket(ticket)));
    }

    fn split(&mut self, at: usize) {
        if self.is_plain() {
            return self.give_back(at);
        }
        let client = &mut self.clients[at];
        let Some((guard, share)) = client.guards.iter().find(|(_, share)| **share > 1).map(|(a, b)| (*a, *b)) else {
            return;
        };
        let part = self.rng.u32(1..share);
        client.tickets += 1;
        client.state.split(Ticket(guard), (Ticket(client.tickets), part));
        client.guards.insert(guard, share - part);
        client.guards.insert(client.tickets, part);
    }

    fn run_next(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let Some((id, request)) = client.there.pop_front() else { return };
        let reply = self.server.run(client.id, request);
        let others = self.clients.iter().enumerate().filter(|(other, client)| *other != at && client.hears()).count();
        self.clients[at].back.push_back((id, told(reply, others)));
        self.publish();
    }

    fn publish(&mut self) {
        if std::mem::take(&mut self.server.published) {
            let heard = self.clients.iter_mut().filter(|client| client.hears());
            heard.for_each(|client| client.messages += 1);
        }
    }

    fn reply_next(&mut self, at: usize) {
        let Some((id, reply)) = self.clients[at].back.pop_front() else { return };
        self.feed(at, Event::Replied(id, reply));
    }

    /// The server runs some of the requests that are under way, and no reply comes.
    fn cut(&mut self, at: usize) {
        for _ in 0..self.rng.usize(..=self.clients[at].there.len()) {
            self.run_next(at);
        }
        let client = &mut self.clients[at];
        let lost = client.back.drain(..).map(|(id, _)| id).collect::<Vec<_>>();
        let late = client.there.iter().map(|(_, request)| (client.id, *request));
        self.late.extend(late.filter(|_| self.server.knows == Knows::Receipts));
        let lost: Vec<_> = lost.into_iter().chain(client.there.drain(..).map(|(id, _)| id)).collect();
        client.messages = 0;
        lost.into_iter().for_each(|id| self.feed(at, Event::Unknown(id)));
        self.feed(at, Event::Reconnected);
        self.subscribe(at);
    }

    fn subscribe(&mut self, at: usize) {
        if self.clients[at].listens && self.clients[at].config.publishes {
            self.feed(at, Event::Unsubscribed(Channel::Name));
            self.feed(at, Event::Subscribed(Channel::Name));
        }
    }

    fn die(&mut self, at: usize) {
        if self.is_plain() {
            return self.run_late(); // else permits are lost, as they are meant to be
        }
        self.died += 1;
        self.clients[at] = Client::new(self.died, self.clients[at].config.publishes);
    }

    /// Time passes, and timers are served.
    fn pass(&mut self, time: Duration) {
        let (end, mut served) = (self.now() + time, 0);
        loop {
            let due = |client: &Client| client.state.due(&client.config);
            let next = self.clients.iter().enumerate().filter_map(|(at, client)| Some((due(client)?, at))).min();
            let Some((due, at)) = next.filter(|(due, _)| *due <= end) else { break };
            self.server.now = due.max(self.now());
            self.feed(at, Event::Due);
            served += 1;
            assert!(served < 1_000, "seed {}: the same timer is due again and again", self.seed);
        }
        self.server.now = end.max(self.now());
    }

    fn step(&mut self) {
        let at = self.rng.usize(..self.clients.len());
        match self.rng.u8(..100) {
            0..=11 => self.acquire(at),
            12..=19 => self.leave(at),
            20..=23 => self.split(at),
            24..=49 => self.run_next(at),
            50..=74 => self.reply_next(at),
            75 => self.look(at),
            76 => self.let_others_run(at),
            77..=79 if self.is_plain() => self.keep(at),
            77..=79 => self.look(at),
            80..=86 => self.hear(at),
            87..=88 => self.cut(at),
            89 if self.rng.u8(..4) == 0 => self.die(at),
            90..=98 => {
                let longest = if self.rng.u8(..9) == 0 { 800 } else { 30 };
                let time = ms(self.rng.u64(..longest));
                self.pass(time);
            }
            _ => self.subscribe(at),
        }
        self.check();
    }

    /// Other tasks have run.
    fn let_others_run(&mut self, at: usize) {
        if std::mem::take(&mut self.clients[at].yields) {
            self.feed(at, Event::Yielded);
        }
    }

    fn hear(&mut self, at: usize) {
        if self.clients[at].messages > 0 {
            self.clients[at].messages -= 1;
            self.feed(at, Event::Message(Channel::Name));
        }
    }

    fn check_plain(&self) {
        let seed = self.seed;
        assert_eq!(self.server.free + self.server.out(), ALL, "seed {seed}");
        let mut callers_have = 0;
        for client in &self.clients {
            let guards = client.guards.keys().filter_map(|guard| client.state.hold_of(Ticket(*guard)));
            let holds = guards.map(|(hold, ..)| hold.of_permits().1);
            callers_have += holds.chain(client.kept.iter().copied()).map(i64::from).sum::<i64>();
        }
        assert!(callers_have <= ALL - self.server.free, "seed {seed}: callers have {callers_have}");
    }

    fn check(&self) {
        assert!(self.server.free >= 0, "seed {}", self.seed);
        if self.is_plain() {
            return self.check_plain();
        }
        let (now, seed) = (self.now(), self.seed);
        assert_eq!(self.server.free + self.server.taken.len() as i64, ALL, "seed {seed}");
        let mut certain = 0;
        for client in &self.clients {
            let mut holds: BTreeMap<HoldId, u32> = BTreeMap::new();
            for (guard, share) in &client.guards {
                if client.state.certain_until(Ticket(*guard), now).is_some() {
                    let (hold, ..) = client.state.hold_of(Ticket(*guard)).expect("it is held");
                    *holds.entry(hold).or_default() += share;
                }
            }
            certain += holds.values().sum::<u32>();
            for (hold, share) in holds {
                let there = self.server.alive(client.id, hold);
                assert!(there >= share as usize, "seed {seed}: {share} of {hold:?} are certain, and {there} there");
            }
            let held: u32 = client.state.holds().map(|(_, (_, count, _))| count as u32).sum();
            assert!(held <= ALL as u32 + 4, "seed {seed}");
        }
        assert!(i64::from(certain) <= ALL, "seed {seed}: {certain} are certain");
    }

    /// Everything arrives. Whoever could acquire is about to.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let Some(at) = self.clients.iter().position(|client| !client.is_quiet()) else { return };
            self.run_next(at);
            self.reply_next(at);
            self.hear(at);
            self.see(at);
            self.let_others_run(at);
            self.check();
        }
        panic!("seed {}: requests without end", self.seed);
    }

    fn see(&mut self, at: usize) {
        if self.is_plain() { self.keep(at) } else { self.look(at) }
    }

    fn nobody_sleeps(&self) {
        let mark = self.server.mark.filter(|(_, till)| *till > self.now());
        for client in &self.clients {
            let Some((_, wanted)) = client.waiting.first_key_value() else { continue };
            let is_next = mark.is_none_or(|((owner, _), _)| owner == client.id);
            if is_next && i64::from(*wanted) <= self.server.free {
                let due = client.state.due(&client.config).expect("it waits");
                let naps = due.since(self.now());
                let most = if client.config.publishes { ms(10) } else { ms(201) }; // a request may be sent again
                assert!(naps <= most, "seed {}: {:?} sleeps for {naps:?}", self.seed, client.waiting);
            }
        }
    }

    /// All leave in some order, and nothing is left.
    fn end(&mut self) {
        for _ in 0..400 {
            for _ in 0..2 {
                (0..self.clients.len()).for_each(|at| self.subscribe(at)); // also those that have begun to wait
                self.settle();
            }
            self.nobody_sleeps();
            self.pass(ms(3));
            let at = self.rng.usize(..self.clients.len());
            self.give_back(at);
            if let Some(guard) = self.clients[at].guards.keys().next().copied() {
                self.clients[at].guards.remove(&guard);
                self.feed(at, Event::Dropped(Ticket(guard)));
            }
            self.check();
        }
        for _ in 0..60 {
            self.pass(ms(500));
            self.settle();
            self.run_late();
            (0..self.clients.len()).for_each(|at| self.give_back(at));
            let guards: Vec<_> = (0..self.clients.len())
                .flat_map(|at| self.clients[at].guards.keys().map(move |guard| (at, *guard)).collect::<Vec<_>>())
                .collect();
            for (at, guard) in guards {
                self.clients[at].guards.remove(&guard);
                self.feed(at, Event::Dropped(Ticket(guard)));
            }
        }
        self.server.reap();
        while !self.late.is_empty() {
            self.run_late();
        }
        for client in &self.clients {
            assert!(client.waiting.is_empty(), "seed {}: {:?} wait forever", self.seed, client.waiting);
            assert!(client.unlocking.is_empty() && client.state.is_quiet(), "seed {}", self.seed);
        }
        let kept: Vec<_> = self.clients.iter().map(|client| &client.kept).collect();
        assert_eq!(self.server.free, ALL, "seed {}: {kept:?}, {:?}", self.seed, self.server.receipts);
        assert!(self.server.mark.is_none_or(|(_, till)| till <= self.now()), "seed {}", self.seed);
    }
}

/// A client alone, with so many permits held and a waiter that nobody notifies.
fn held_and_wanted(held: u16, wanted: u16) -> World {
    let mut world = World { clients: vec![Client::new(0, false)], ..World::new(0, Knows::Leases) };
    for (ticket, permits) in [(1, held), (2, wanted)] {
        call(&mut world, ticket, permits);
        world.settle();
    }
    world.clients[0].tickets = 2;
    assert!(world.clients[0].waiting.contains_key(&2));
    world
}

fn call(world: &mut World, ticket: u64, permits: u16) {
    world.clients[0].waiting.insert(ticket, permits);
    let terms = Terms { mode: Mode::Shared, permits, ..Terms::default() };
    let (owner, limit) = (Owner(ticket), Limit::Forever);
    world.feed(0, Event::Acquire { ticket: Ticket(ticket), owner, terms, limit });
}

#[test]
fn a_waiter_requests_as_soon_as_a_part_is_released() {
    let mut world = held_and_wanted(4, 2);
    world.clients[0].state.split(Ticket(1), (Ticket(3), 1));
    world.clients[0].guards = BTreeMap::from([(1, 3), (3, 1)]);
    world.feed(0, Event::Dropped(Ticket(3)));
    world.clients[0].guards.remove(&3);
    world.settle();
    assert_eq!((world.server.free, &world.clients[0].guards), (0, &BTreeMap::from([(1, 3), (2, 2)])));
}

#[test]
fn a_waiter_requests_as_soon_as_a_hold_of_its_client_is_released() {
    let mut world = held_and_wanted(4, 2);
    world.clients[0].guards.remove(&1);
    world.feed(0, Event::Dropped(Ticket(1)));
    world.settle();
    assert_eq!((world.server.free, &world.clients[0].guards), (ALL - 2, &BTreeMap::from([(2, 2)])));
}

#[test]
fn a_waiter_for_fewer_permits_requests_as_soon_as_it_is_first() {
    let mut world = held_and_wanted(3, 4);
    call(&mut world, 3, 2);
    world.settle();
    assert_eq!(world.clients[0].guards.len(), 1, "it waits behind the other");
    world.clients[0].waiting.remove(&2);
    world.feed(0, Event::Dropped(Ticket(2)));
    world.settle();
    assert!(world.clients[0].guards.contains_key(&3));
}

/// A client that has just released permits for all. Tickets up to 1 are used.
fn after_a_release() -> World {
    let mut world = World { clients: vec![Client::new(0, true)], ..World::new(0, Knows::Leases) };
    call(&mut world, 1, 1);
    world.settle();
    unlock(&mut world, 1);
    world.settle();
    world
}

fn unlock(world: &mut World, ticket: u64) {
    world.clients[0].guards.remove(&ticket);
    world.clients[0].unlocking.push(ticket);
    world.feed(0, Event::Unlock(Ticket(ticket)));
}

/// A caller has released three permits, and passed them on to the first of two that wait.
fn row_of_permits() -> World {
    let mut world = after_a_release();
    for (ticket, permits) in [(2, 3), (3, 3), (4, 4)] {
        call(&mut world, ticket, permits);
        world.settle();
    }
    unlock(&mut world, 2);
    world
}

/// One request for both: it keeps the permits for the waiter, and shows that the one before had them until it left.
#[test]
fn permits_pass_on_in_memory_to_a_waiter_for_as_many() {
    let mut world = row_of_permits();
    assert_eq!(world.clients[0].guards, BTreeMap::from([(3, 3)]), "without a reply");
    world.let_others_run(0);
    assert!(matches!(world.clients[0].there.make_contiguous(), [(_, Request::Renew { count: 3, .. })]));
    world.settle();
    assert!(world.clients[0].unlocking.is_empty());
    unlock(&mut world, 3);
    world.settle();
    assert_eq!((world.server.free, &world.clients[0].guards), (ALL - 4, &BTreeMap::from([(4, 4)])), "released");
}

/// The next holder looks, and another caller joins, before other tasks have run.
#[test]
fn the_confirmation_of_permits_that_passed_on_is_not_forgotten() {
    let mut world = row_of_permits();
    world.feed(0, Event::Seen(Ticket(3)));
    call(&mut world, 5, 4);
    world.let_others_run(0);
    let mut sent = world.clients[0].there.iter();
    assert!(
        sent.any(|(_, request)| matches!(request, Request::Renew { count: 3, .. })),
        "{:?}",
        world.clients[0].there
    );
}

/// Others may need them: many at once, or there are fewer than before.
#[test]
fn permits_that_were_held_for_long_do_not_pass_on() {
    for (long, passes) in [(ms(5), true), (ms(11), false)] {
        let mut world = after_a_release();
        call(&mut world, 2, 3);
        world.settle();
        call(&mut world, 3, 3);
        world.settle();
        world.pass(long);
        unlock(&mut world, 2);
        assert_eq!(world.clients[0].guards.contains_key(&3), passes);
    }
}

/// A client that has waited for longer than a row has a row as long as the other's. Else the other would have most turns.
#[test]
fn permits_pass_on_after_a_release_of_another_client() {
    for is_heard in [true, false] {
        let mut world = after_a_release();
        call(&mut world, 2, 3);
        world.settle();
        call(&mut world, 3, 3);
        world.settle();
        world.pass(ms(11));
        if is_heard {
            world.feed(0, Event::Message(Channel::Name));
            world.settle();
        }
        unlock(&mut world, 2);
        assert_eq!(world.clients[0].guards.contains_key(&3), is_heard);
    }
}

/// A client that releases permits all the time can acquire others.
#[test]
fn releases_that_begin_later_do_not_hold_a_call_off() {
    let mut world = World { clients: vec![Client::new(0, true)], ..World::new(0, Knows::Leases) };
    for ticket in 1..=3 {
        call(&mut world, ticket, 1);
        world.settle();
    }
    unlock(&mut world, 1);
    call(&mut world, 4, 2);
    world.pass(ms(1));
    unlock(&mut world, 2);
    assert_eq!(world.clients[0].there.len(), 2, "both releases, and the call waits for the first");
    world.run_next(0);
    world.reply_next(0);
    assert_eq!(world.clients[0].there.len(), 2, "the second release, and the request");
    world.settle();
    assert!(world.clients[0].guards.contains_key(&4));
}

/// Its lease would be that of the others, and nothing would end it in time if this process died.
#[test]
fn permits_do_not_pass_on_to_a_waiter_with_a_lease_of_its_own() {
    let mut world = after_a_release();
    call(&mut world, 2, 3);
    world.settle();
    let terms = Terms { mode: Mode::Shared, lease: Some(ms(300).into()), permits: 3, ..Terms::default() };
    world.clients[0].waiting.insert(3, 3);
    world.feed(0, Event::Acquire { ticket: Ticket(3), owner: Owner(3), terms, limit: Limit::Forever });
    world.settle();
    unlock(&mut world, 2);
    assert!(matches!(world.clients[0].there.make_contiguous(), [(_, Request::Release { count: 0, .. })]));
    world.settle();
    assert!(world.clients[0].state.certain_until(Ticket(3), world.now()).expect("it has them") < world.now() + ms(300));
}

/// Callers have kept all permits of a plain semaphore, and one has just been released for all. Then so many callers want one.
fn kept_after_a_release(callers: u16) -> World {
    let mut world = World { clients: vec![Client::new(0, true)], ..World::new(0, Knows::Receipts) };
    for _ in 0..ALL {
        world.acquire_one();
        world.keep(0);
    }
    world.give_back(0);
    for _ in 0..callers {
        world.acquire_one();
        world.keep(0);
    }
    world
}

/// What a caller returns goes to the next waiter, and is returned once if that one never looks.
#[test]
fn kept_permits_pass_on_in_memory_for_a_moment() {
    for is_dropped in [false, true] {
        let mut world = kept_after_a_release(2);
        assert_eq!((world.server.free, world.clients[0].waiting.len()), (0, 1));
        world.give_back(0);
        assert!(world.clients[0].there.is_empty(), "without a request");
        let (guard, _) = world.clients[0].guards.pop_first().expect("it has what the other had");
        if is_dropped {
            world.feed(0, Event::Dropped(Ticket(guard)));
            assert!(matches!(world.clients[0].there.make_contiguous(), [(_, Request::Release { .. })]));
            world.settle();
            assert_eq!(world.server.free, 1);
        } else {
            world.clients[0].guards.insert(guard, 1);
            world.keep(0);
            world.acquire_one();
            world.pass(ms(11)); // longer than a row
            world.give_back(0);
            assert!(world.clients[0].guards.is_empty() && world.server.free == 1, "released");
        }
    }
}

/// A client releases permits for all. Others go first there, although its other permits pass on in memory meanwhile.
#[test]
fn permits_that_pass_on_do_not_shorten_the_time_of_others() {
    let mut world = World { clients: vec![Client::new(0, true), Client::new(1, true)], ..World::new(0, Knows::Leases) };
    world.clients[0].config.handovers = 1;
    world.clients[1].listens = true; // it waits for permits
    call(&mut world, 100, 1);
    world.settle();
    unlock(&mut world, 100); // is released for all
    world.settle();
    world.pass(ms(6)); // others go first
    for permits in [1, 1, 1, 2] {
        world.clients[0].tickets += 1;
        let ticket = world.clients[0].tickets;
        call(&mut world, ticket, permits);
        world.settle();
    }
    for ticket in 5..=7 {
        call(&mut world, ticket, 1);
        world.settle();
    }
    world.subscribe(0);
    world.settle();
    unlock(&mut world, 1); // passes on
    world.settle();
    unlock(&mut world, 2); // is released for all
    world.settle();
    assert_eq!((world.server.free, world.clients[0].guards.len()), (1, 3));
    unlock(&mut world, 3); // passes on
    world.settle();
    assert_eq!((world.server.free, world.clients[0].guards.contains_key(&6)), (1, true));
    world.pass(ms(10));
    world.settle();
    assert_eq!((world.server.free, world.clients[0].guards.contains_key(&7)), (0, true), "nobody came");
}

/// They rest for callers that are about to come back, and no longer.
#[test]
fn permits_rest_for_callers_that_come_back() {
    let mut world = after_a_release(); // nobody else has received the message
    call(&mut world, 2, 3);
    world.settle();
    call(&mut world, 3, 3);
    for ticket in [2, 3] {
        world.look(0);
        unlock(&mut world, ticket);
    }
    call(&mut world, 4, 3);
    assert_eq!(world.clients[0].guards, BTreeMap::from([(4, 3)]), "without a reply");
    world.look(0);
    unlock(&mut world, 4);
    world.settle();
    assert!(world.clients[0].unlocking.is_empty() && world.clients[0].state.is_quiet());
    assert_eq!(world.server.free, ALL, "nobody came");
}

/// The first waiter has left while its request was under way: its permits are not those of the next one.
#[test]
fn a_grant_for_another_number_is_released() {
    let mut world = World { clients: vec![Client::new(0, true)], ..World::new(0, Knows::Leases) };
    for (ticket, permits) in [(1, 4), (2, 1)] {
        let terms = Terms { mode: Mode::Shared, permits, ..Terms::default() };
        world.clients[0].waiting.insert(ticket, permits);
        let (owner, limit) = (Owner(ticket), Limit::Forever);
        world.feed(0, Event::Acquire { ticket: Ticket(ticket), owner, terms, limit });
    }
    world.clients[0].waiting.remove(&1);
    world.feed(0, Event::Dropped(Ticket(1)));
    world.settle();
    assert_eq!((world.server.free, &world.clients[0].guards), (ALL - 1, &BTreeMap::from([(2, 1)])));
}

/// The server may have lost its data.
#[test]
fn a_reconnection_confirms_all_holds_at_once() {
    let mut world = held_and_wanted(2, 4);
    world.look(0);
    world.feed(0, Event::Message(Channel::Name)); // nothing is to be done about the hold
    world.settle();
    world.server.free += 2;
    world.server.taken.clear();
    world.feed(0, Event::Reconnected);
    let is_renewal = |request: &Request| matches!(request, Request::Renew { .. });
    assert!(world.clients[0].there.iter().any(|(_, request)| is_renewal(request)));
}

/// A plain semaphore with one client, whose waiters want so many permits. What they acquire they have not seen.
fn plain_waiters(permits: &[u16]) -> World {
    let mut world = World { clients: vec![Client::new(0, true)], ..World::new(0, Knows::Receipts) };
    for (ticket, permits) in (1..).zip(permits) {
        let terms = Terms { mode: Mode::Shared, lease: Some(KEPT.into()), permits: *permits, ..Terms::default() };
        world.clients[0].waiting.insert(ticket, *permits);
        let (owner, limit) = (Owner(ticket), Limit::Forever);
        world.feed(0, Event::Acquire { ticket: Ticket(ticket), owner, terms, limit });
    }
    while !world.clients[0].is_quiet() {
        world.run_next(0);
        world.reply_next(0);
    }
    world
}

#[test]
fn what_is_kept_is_forgotten_and_nothing_else() {
    let mut world = plain_waiters(&[2, 3]);
    assert_eq!((world.server.free, world.clients[0].guards.len()), (0, 2));
    let state = &mut world.clients[0].state;
    assert!(state.keep(Ticket(1), world.server.now) && !state.keep(Ticket(1), world.server.now));
    assert_eq!(state.holds().count(), 1);
    world.clients[0].guards.remove(&1);
    world.pass(ms(500)); // the other does not look
    world.settle();
    assert_eq!((world.server.free, world.clients[0].state.holds().count()), (3, 0));
}

/// The process was paused for longer than the receipt of its request lasts. The reply to that request is there when it goes on.
fn granted_after_its_receipt() -> World {
    let mut world = plain_waiters(&[]);
    world.acquire_one_by(|world| {
        world.run_next(0);
        world.server.now = world.server.now + RECEIPT + RECEIPT;
        world.server.receipts.clear();
        world.server.returned -= 1; // taken, as no receipt says anymore
    });
    world.reply_next(0);
    world
}

#[test]
fn permits_are_the_callers_however_late_the_reply_is() {
    let mut world = granted_after_its_receipt();
    world.keep(0);
    world.clients[0].there.clear(); // a late confirmation
    assert!(world.clients[0].is_quiet() && world.clients[0].state.is_quiet());
    assert_eq!((world.clients[0].kept.len(), world.server.free), (1, ALL - 1));
}

/// The caller has left by then, or does not look. The first release has no reply, and its retry returns nothing more.
#[test]
fn what_nobody_has_seen_returns_however_late_the_reply_is() {
    for is_dropped in [true, false] {
        let mut world = granted_after_its_receipt();
        match is_dropped {
            true => world.feed(0, Event::Dropped(Ticket(world.clients[0].tickets))),
            false => world.pass(ms(401)),
        }
        world.clients[0].guards.clear();
        world.run_next(0);
        let (lost, _) = world.clients[0].back.pop_front().expect("the release was sent");
        world.feed(0, Event::Unknown(lost));
        world.pass(ms(50));
        assert_eq!(world.clients[0].there.len(), 1, "it is sent again");
        world.settle();
        assert!(world.clients[0].state.is_quiet());
        assert_eq!(world.server.free, ALL);
    }
}

/// A caller that looks in time gives the others their full time again.
#[test]
fn a_caller_that_keeps_has_looked() {
    let mut world = plain_waiters(&[1]);
    world.pass(ms(401));
    world.settle();
    assert_eq!((world.server.free, world.clients[0].kept.len()), (ALL, 0), "it was passed over");
    for look_after in [ms(100), ms(300)] {
        world.acquire_one();
        world.pass(look_after);
        assert!(!world.clients[0].guards.is_empty());
        world.keep(0);
        assert_eq!(world.clients[0].kept.pop(), Some(1));
    }
}

/// Until its receipt ends, the server may have what was acquired without a reply.
#[test]
fn a_release_is_sent_for_as_long_as_its_receipt_lasts() {
    for in_doubt in [false, true] {
        let mut world = plain_waiters(&[]);
        world.clients[0].config.outage_timeout = ms(10_000);
        world.acquire_one_by(|world| {
            if in_doubt {
                world.cut(0)
            }
        });
        world.feed(0, Event::Dropped(Ticket(world.clients[0].tickets)));
        world.clients[0].guards.clear();
        world.clients[0].waiting.clear();
        let mut sent = 0;
        while world.server.now < Moment::of_nanos(1 << 40) + (RECEIPT - ms(2_000)) {
            world.pass(ms(1_000));
            sent += world.clients[0].there.len();
            let lost: Vec<_> = world.clients[0].there.drain(..).map(|(id, _)| id).collect();
            assert!(!lost.is_empty(), "at least once a second");
            lost.into_iter().for_each(|id| world.feed(0, Event::Unknown(id)));
        }
        assert!(sent > 80);
        world.pass(ms(1_000));
        world.settle();
        assert_eq!(world.server.free, ALL);
    }
}

/// The release of what nobody has seen came first. The request that it is about takes nothing when it runs.
#[test]
fn a_request_that_runs_after_its_release_takes_nothing() {
    let mut world = plain_waiters(&[]);
    world.acquire_one_by(World::delay);
    world.feed(0, Event::Dropped(Ticket(world.clients[0].tickets)));
    world.clients[0].waiting.clear();
    world.pass(ms(50));
    world.settle();
    assert!(world.clients[0].state.is_quiet() && !world.late.is_empty());
    while !world.late.is_empty() {
        world.run_late();
    }
    assert_eq!(world.server.free, ALL);
}

/// Its retry was refused, so the client goes on with another id. The first try takes nothing when it runs after that.
#[test]
fn a_request_that_was_refused_at_its_retry_takes_nothing_later() {
    let mut world = plain_waiters(&[5]);
    world.keep(0);
    world.acquire_one_by(World::delay);
    assert_eq!((world.clients[0].kept.len(), world.late.len()), (1, 1));
    world.pass(ms(50));
    world.settle();
    assert!(world.clients[0].waiting.len() == 1 && world.server.free == 0);
    world.feed(0, Event::Dropped(Ticket(world.clients[0].tickets)));
    world.clients[0].waiting.clear();
    world.give_back(0);
    world.settle();
    world.run_late();
    assert!(world.clients[0].state.is_quiet());
    assert_eq!(world.server.free, ALL);
}

fn in_random_orders(knows: Knows) {
    let given = |name| std::env::var(name).ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let seeds = given("PERMITS_SEEDS").unwrap_or(2_000);
    for seed in given("PERMITS_SEED").map_or(0..seeds, |seed| seed..seed + 1) {
        let mut world = World::new(seed, knows);
        for _ in 0..400 {
            world.step();
        }
        world.end();
    }
}

#[test]
fn random_orders() {
    in_random_orders(Knows::Leases);
}

#[test]
fn random_orders_of_plain_ones() {
    in_random_orders(Knows::Receipts);
}
