//! The rules of a quorum at small size: every order of events with three servers, two clients, and one server that comes back empty.
//! What the replies come to is decided by the code of the library itself, `src/combined/tally.rs`.
//!
//! The servers do not differ, and neither do the clients, so their order does not count. A release takes no time in the model: while it is
//! under way, the lock excludes others for longer, and no rule depends on it. For the same reason, a late acquisition that is taken back
//! leaves nothing. A request gets its reply within a lease, or fails. A holder sends its next request when the last one has ended.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::{
    CAP,
    tally::{Tally, Verdict, can_vote, is_majority, time_of_majority},
};

/// In the model's own unit.
const LEASE: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Voting {
    servers: usize,
    /// The library's rules.
    is_majority: fn(usize, usize) -> bool,
    verdict: fn(Tally) -> Verdict,
    slip: Option<Slip>,
}

/// What a client can do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slip {
    /// Counts its lease from the reply.
    CountsFromReply,
    /// Counts servers that granted the lock, also if the lease has expired since.
    CountsWhatExpired,
    /// Does not release what it was granted without a majority.
    KeepsMinority,
    /// Counts a server that it asks again before that server has granted the lock.
    CountsAtOnce,
}

impl Voting {
    const THREE: Voting = Voting { servers: 3, is_majority, verdict: Tally::verdict, slip: None };

    fn with(slip: Slip) -> Voting {
        Voting { slip: Some(slip), ..Voting::THREE }
    }

    /// The rules with one half for a majority, which are right for odd numbers only.
    fn of_halves(servers: usize) -> Voting {
        let verdict = |tally: Tally| {
            let servers = tally.granted + tally.refused + tally.failed + tally.pending;
            if half(tally.certain, servers) { Verdict::Won } else { tally.verdict() }
        };
        Voting { servers, is_majority: half, verdict, slip: None }
    }
}

fn half(some: usize, servers: usize) -> bool {
    some >= servers.div_ceil(2)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// In order, so that the same servers make the same world.
    servers: Vec<Server>,
    clients: [Phase; 2],
    /// For a lease after a server has come back empty, two holders can be certain.
    emptied: Option<u8>,
    may_restart: bool,
    /// A call was told "taken" though no majority had replied.
    lied: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Server {
    /// The client that has the lock, and for how long.
    lock: Option<(usize, u8)>,
    seats: [Seat; 2],
}

/// What one client has to do with one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Seat {
    request: Request,
    /// For how long its guard is certain; 0 if it is lost before the vote has ended.
    guard: Option<u8>,
    /// How its vote ended, if it was not granted.
    said: Option<Said>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Said {
    Refused,
    Failed,
}

/// With the time since it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Request {
    #[default]
    None,
    Acquire(u8),
    /// Granted, and the reply is under way.
    Granted(u8),
    Renewed(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Phase {
    Idle,
    Voting,
    Holding,
    Lost,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Begin(usize),
    /// The call is cancelled, or its time is over.
    Leave(usize),
    Unlock(usize),
    // Of a client and a server.
    Run(usize, usize),
    Hear(usize, usize),
    /// No reply in time.
    Fail(usize, usize),
    Renew(usize, usize),
    AskAgain(usize, usize),
    Restart(usize),
    Tick,
}

impl Model for Voting {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let server = Server { lock: None, seats: [Seat::default(); 2] };
        let servers = vec![server; self.servers];
        vec![World { servers, clients: [Phase::Idle; 2], emptied: None, may_restart: true, lied: false }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for client in 0..2 {
            match world.clients[client] {
                Phase::Idle => actions.push(Action::Begin(client)),
                Phase::Voting => actions.push(Action::Leave(client)),
                Phase::Holding | Phase::Lost => actions.push(Action::Unlock(client)),
                Phase::Over => {}
            }
            for server in 0..self.servers {
                world.of_seat(client, server, actions);
            }
        }
        if world.may_restart {
            actions.extend((0..self.servers).map(Action::Restart));
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Begin(client) => world.begin(client),
            Action::Leave(client) => world.end(client, Phase::Idle, self),
            Action::Unlock(client) => world.end(client, Phase::Over, self),
            Action::Run(client, server) => world.servers[server].acquire(client, world.clients[client]),
            Action::Hear(client, server) => world.hear(client, server, self),
            Action::Fail(client, server) => world.servers[server].fail(client, world.clients[client]),
            Action::Renew(client, server) => world.servers[server].renew(client),
            Action::AskAgain(client, server) => {
                let counted = self.slip == Some(Slip::CountsAtOnce);
                let seat = &mut world.servers[server].seats[client];
                (seat.request, seat.guard) = (Request::Acquire(0), counted.then_some(LEASE));
            }
            Action::Restart(server) => {
                world.servers[server].lock = None;
                (world.emptied, world.may_restart) = (Some(LEASE), false);
            }
            Action::Tick => world.tick(),
        }
        (0..2).for_each(|client| world.settle(client, self));
        Some(world.in_order())
    }

    fn properties(&self) -> Vec<Property<Voting>> {
        vec![
            Property::always("exclusive", |_, world: &World| world.emptied.is_some() || world.holders().count() < 2),
            Property::always("kept", |voting: &Voting, world: &World| {
                world.emptied.is_some()
                    || world.holders().all(|client| (voting.is_majority)(world.has(client), voting.servers))
            }),
            Property::always("lasting", |voting: &Voting, world: &World| {
                world.holders().all(|client| world.lasts(client, voting))
            }),
            Property::always("leftover", |_, world: &World| (0..2).all(|client| !world.is_left(client))),
            Property::always("honest", |_, world: &World| !world.lied),
            Property::sometimes("both have had it", |_, world: &World| world.clients == [Phase::Over; 2]),
            Property::sometimes("held without one of the servers", |voting: &Voting, world: &World| {
                world.holders().any(|client| world.certain(client) < voting.servers)
            }),
            Property::sometimes("a vote is split", World::is_split),
            Property::sometimes("a holder is told of a loss", |_, world: &World| world.clients.contains(&Phase::Lost)),
            Property::sometimes("an empty server grants it twice", |_, world: &World| world.holders().count() == 2),
            Property::sometimes("the server that was empty counts", |voting: &Voting, world: &World| {
                !world.may_restart
                    && world.emptied.is_none()
                    && world.holders().any(|client| world.certain(client) == voting.servers)
            }),
        ]
    }
}

impl World {
    fn seats(&self, client: usize) -> impl Iterator<Item = &Seat> {
        self.servers.iter().map(move |server| &server.seats[client])
    }

    fn of_seat(&self, client: usize, server: usize, actions: &mut Vec<Action>) {
        let (phase, seat) = (self.clients[client], self.servers[server].seats[client]);
        let is_busy = || self.seats(client).any(|seat| seat.request != Request::None);
        match seat.request {
            Request::None if phase != Phase::Holding || is_busy() => {}
            Request::None if seat.guard.is_some() => actions.push(Action::Renew(client, server)),
            Request::None => actions.push(Action::AskAgain(client, server)),
            Request::Acquire(_) => actions.extend([Action::Run(client, server), Action::Fail(client, server)]),
            Request::Granted(_) | Request::Renewed(_) => {
                actions.extend([Action::Hear(client, server), Action::Fail(client, server)]);
            }
        }
    }

    /// The one of the worlds that do not differ which stands for all of them.
    fn in_order(mut self) -> World {
        self.servers.sort_unstable();
        let mut other = self.clone();
        other.clients.reverse();
        for server in &mut other.servers {
            server.seats.reverse();
            server.lock = server.lock.map(|(client, left)| (1 - client, left));
        }
        other.servers.sort_unstable();
        let key = |world: &World| (world.clients, world.servers.clone());
        if key(&self) <= key(&other) { self } else { other }
    }

    fn begin(&mut self, client: usize) {
        self.clients[client] = Phase::Voting;
        let asked = Seat { request: Request::Acquire(0), ..Seat::default() };
        self.servers.iter_mut().for_each(|server| server.seats[client] = asked);
    }

    fn hear(&mut self, client: usize, server: usize, voting: &Voting) {
        let votes = self.clients[client] == Phase::Voting;
        let seat = &mut self.servers[server].seats[client];
        let left = |age: u8| if voting.slip == Some(Slip::CountsFromReply) { LEASE } else { LEASE - age };
        match seat.request {
            Request::Granted(age) => seat.guard = Some(left(age)),
            // A guard that is lost stays so.
            Request::Renewed(age) => seat.guard = seat.guard.map(|now| now.max(left(age))),
            other => unreachable!("no reply: {other:?}"),
        }
        (seat.request, seat.guard) = (Request::None, seat.guard.filter(|left| *left > 0 || votes));
    }

    /// Decides a vote; notes a loss.
    fn settle(&mut self, client: usize, voting: &Voting) {
        match self.clients[client] {
            Phase::Voting => match self.verdict(client, voting) {
                Verdict::Won => {
                    self.clients[client] = Phase::Holding;
                    for seat in self.servers.iter_mut().map(|server| &mut server.seats[client]) {
                        (seat.said, seat.guard) = (None, seat.guard.filter(|left| *left > 0));
                    }
                }
                Verdict::Open => {}
                verdict => {
                    self.lied |= verdict == Verdict::Taken && !self.tally(client).has_replies();
                    self.end(client, Phase::Idle, voting);
                }
            },
            Phase::Holding if !(voting.is_majority)(self.certain(client), voting.servers) => {
                self.clients[client] = Phase::Lost;
            }
            Phase::Idle | Phase::Holding | Phase::Lost | Phase::Over => {}
        }
    }

    fn verdict(&self, client: usize, voting: &Voting) -> Verdict {
        let tally = self.tally(client);
        let tally = match voting.slip {
            Some(Slip::CountsWhatExpired) => Tally { certain: tally.granted, ..tally },
            _ => tally,
        };
        match (voting.verdict)(tally) {
            Verdict::Open if tally.pending == 0 => tally.verdict_at_the_end(),
            verdict => verdict,
        }
    }

    fn tally(&self, client: usize) -> Tally {
        let count = |is: fn(&&Seat) -> bool| self.seats(client).filter(is).count();
        Tally {
            granted: count(|seat| seat.guard.is_some()),
            certain: self.certain(client),
            refused: count(|seat| seat.said == Some(Said::Refused)),
            failed: count(|seat| seat.said == Some(Said::Failed)),
            pending: count(|seat| seat.guard.is_none() && seat.said.is_none()),
        }
    }

    /// Releases everything, also what may still be granted.
    fn end(&mut self, client: usize, phase: Phase, voting: &Voting) {
        let keeps = voting.slip == Some(Slip::KeepsMinority) && self.clients[client] == Phase::Voting;
        self.clients[client] = phase;
        for server in &mut self.servers {
            if server.is_of(client) && !keeps {
                server.lock = None;
            }
            server.seats[client] = Seat::default();
        }
    }

    fn tick(&mut self) {
        let clients = self.clients;
        for server in &mut self.servers {
            server.lock = server.lock.and_then(|(client, left)| Some((client, left - 1)).filter(|_| left > 1));
            (0..2).for_each(|client| server.tick(client, clients[client]));
        }
        self.emptied = self.emptied.map(|left| left - 1).filter(|left| *left > 0);
    }

    /// On how many servers its hold is certain.
    fn certain(&self, client: usize) -> usize {
        self.seats(client).filter(|seat| seat.guard.is_some_and(|left| left > 0)).count()
    }

    /// How many servers have its lock.
    fn has(&self, client: usize) -> usize {
        self.servers.iter().filter(|server| server.is_of(client)).count()
    }

    fn holders(&self) -> impl Iterator<Item = usize> {
        (0..2).filter(|client| self.clients[*client] == Phase::Holding)
    }

    /// Whether a majority is certain for as long as its guard says.
    fn lasts(&self, client: usize, voting: &Voting) -> bool {
        let times: Vec<_> = self.seats(client).map(|seat| seat.guard.unwrap_or(0)).collect();
        let least = time_of_majority(times.clone());
        least > 0 && is_majority(times.iter().filter(|time| **time >= least).count(), voting.servers)
    }

    /// Whether a server has a lock that nobody uses.
    fn is_left(&self, client: usize) -> bool {
        let uses = !matches!(self.clients[client], Phase::Idle | Phase::Over);
        !uses && self.has(client) > 0
    }

    fn is_split(_: &Voting, world: &World) -> bool {
        let has_one = |client: usize| world.clients[client] == Phase::Voting && world.certain(client) == 1;
        has_one(0) && has_one(1)
    }
}

impl Server {
    fn is_of(&self, client: usize) -> bool {
        self.lock.is_some_and(|(of, _)| of == client)
    }

    fn tick(&mut self, client: usize, phase: Phase) {
        let seat = &mut self.seats[client];
        seat.guard = seat.guard.map(|left| left.saturating_sub(1)).filter(|left| *left > 0 || phase == Phase::Voting);
        match &mut seat.request {
            Request::Acquire(age) | Request::Granted(age) | Request::Renewed(age) if *age < LEASE => *age += 1,
            Request::None => {}
            _ => self.fail(client, phase),
        }
    }

    fn acquire(&mut self, client: usize, phase: Phase) {
        let may = self.lock.is_none() || self.is_of(client);
        let seat = &mut self.seats[client];
        match seat.request {
            Request::Acquire(age) if may => {
                seat.request = Request::Granted(age);
                self.lock = Some((client, LEASE));
            }
            _ => {
                *seat = Seat { said: (phase == Phase::Voting).then_some(Said::Refused), ..Seat::default() };
            }
        }
    }

    fn renew(&mut self, client: usize) {
        if self.is_of(client) {
            self.lock = Some((client, LEASE));
            self.seats[client].request = Request::Renewed(0);
        } else {
            self.seats[client].guard = None;
        }
    }

    /// An acquisition is taken back; a renewal is forgotten.
    fn fail(&mut self, client: usize, phase: Phase) {
        let seat = &mut self.seats[client];
        if matches!(seat.request, Request::Renewed(_)) {
            seat.request = Request::None;
            return;
        }
        *seat = Seat { said: (phase == Phase::Voting).then_some(Said::Failed), ..Seat::default() };
        if self.is_of(client) {
            self.lock = None;
        }
    }
}

/// Explores everything and checks all properties; a model that explores too little fails too.
fn explore(name: &str, voting: Voting, floor: usize) {
    let started = Instant::now();
    let checked = voting.checker().threads(2).target_state_count(CAP).spawn_bfs().join();
    let (worlds, steps) = (checked.unique_state_count(), checked.state_count());
    println!("{name}: {worlds} worlds, {steps} steps, {:.1?}", started.elapsed());
    checked.assert_properties();
    assert!(steps < CAP && worlds >= floor, "{name}: {worlds} worlds, {steps} steps");
}

fn assert_found(name: &str, voting: Voting, breaks: &'static str) {
    let enough = HasDiscoveries::AllOf([breaks].into());
    let checked = voting.checker().finish_when(enough).target_state_count(CAP).spawn_bfs().join();
    let worlds = checked.unique_state_count();
    assert!(checked.discovery(breaks).is_some(), "{name}: {breaks} holds in all {worlds} worlds");
    println!("{name}: caught by `{breaks}` within {worlds} worlds");
}

#[test]
fn three_servers_two_clients_one_restart() {
    explore("a quorum of three", Voting::THREE, 200_000);
}

#[test]
#[ignore = "nightly"]
fn validity_that_is_not_counted_is_caught() {
    assert_found("lease counted from the reply", Voting::with(Slip::CountsFromReply), "exclusive");
    assert_found("the same", Voting::with(Slip::CountsFromReply), "kept");
}

#[test]
fn a_minority_that_is_not_released_is_caught() {
    assert_found("minority not released", Voting::with(Slip::KeepsMinority), "leftover");
}

#[test]
fn what_has_expired_since_it_was_granted_is_caught() {
    assert_found("expired votes counted", Voting::with(Slip::CountsWhatExpired), "kept");
}

#[test]
#[ignore = "nightly"]
fn a_server_asked_again_that_counts_at_once_is_caught() {
    assert_found("counted at once", Voting::with(Slip::CountsAtOnce), "exclusive");
}

/// With half of the servers for a majority, which is the same for an odd number.
#[test]
fn an_even_number_of_servers_is_caught() {
    assert!((0..4).all(|some| half(some, 3) == is_majority(some, 3)));
    assert_found("halves of two", Voting::of_halves(2), "exclusive");
}

/// With more than half of two servers nothing breaks, but no server may fail.
#[test]
fn two_servers_are_no_better_than_one() {
    let voting = Voting { servers: 2, ..Voting::THREE };
    let checked = voting.checker().target_state_count(CAP).spawn_bfs().join();
    assert!(checked.discovery("exclusive").is_none() && checked.discovery("both have had it").is_some());
    assert!(checked.discovery("held without one of the servers").is_none());
}

#[test]
fn the_numbers_of_servers_that_are_accepted() {
    let accepted: Vec<_> = (0..10).filter(|servers| can_vote(*servers)).collect();
    assert_eq!(accepted, [3, 5, 7, 9]);
}
