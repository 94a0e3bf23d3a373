//! Semaphores: every order of events that there is, for small sizes, with the server of `permits.rs`.

use std::{mem, time::Duration};

use crate::{
    explore::{Orders, explore_all},
    lock::{
        Action, Actions, Channel, Config, Cx, Event, Limit, LockState, Loss, Mode, Moment, Numbers, Outcome, Owner,
        Reply, Request, RequestId, Terms, Ticket,
    },
    permits::{RULES, Server, told},
};

/// The number of permits.
const ALL: i64 = 2;
/// The longest time that a request may take.
const COMMAND: Duration = ms(100);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[derive(Debug, Clone)]
struct Size {
    name: &'static str,
    /// For each client: how many permits each of its callers wants.
    callers: Vec<Vec<u16>>,
    cuts: u8,
    /// How often time may go on to where something is due.
    ticks: u8,
    callers_do: CallersDo,
}

/// What callers do beside acquiring, looking and releasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallersDo {
    NothingElse,
    /// Waiters leave, and holders drop.
    Leave,
    /// Holders of two permits split them.
    Split,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Caller {
    NotYet(u16),
    Waiting(u16),
    Guard { share: u32, seen: bool, lost: bool },
    Unlocking { is_certain: bool },
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Client {
    state: LockState,
    callers: Vec<Caller>,
    /// On their way there, and back.
    requests: Vec<(RequestId, Request)>,
    replies: Vec<(RequestId, Reply)>,
    /// When each of these was sent.
    sent: Vec<Moment>,
    subscription: Subscription,
    messages: u8,
    yields: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Subscription {
    Off,
    Requested,
    On,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    server: Server,
    clients: Vec<Client>,
    cuts: u8,
    ticks: u8,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Call(usize, usize),
    Look(usize, usize),
    Split(usize, usize),
    Leave(usize, usize),
    Unlock(usize, usize),
    Run(usize),
    Reply(usize),
    Cut(usize),
    Message(usize),
    Subscribed(usize),
    Yielded(usize),
    Tick,
}

fn config() -> Config {
    Config {
        watchdog: ms(1_000),
        command_timeout: COMMAND,
        outage_timeout: ms(600),
        handovers: 2,
        round_trip: ms(1),
        publishes: true,
        first_confirmation: None,
    }
}

fn ticket(caller: usize) -> Ticket {
    Ticket(caller as u64 + 1)
}

impl Client {
    fn new(callers: &[u16]) -> Client {
        Client {
            state: LockState::new(&RULES, Numbers::after(0)),
            callers: callers.iter().map(|permits| Caller::NotYet(*permits)).collect(),
            requests: Vec::new(),
            replies: Vec::new(),
            sent: Vec::new(),
            subscription: Subscription::Off,
            messages: 0,
            yields: false,
        }
    }

    fn is_still(&self) -> bool {
        self.requests.is_empty() && self.replies.is_empty() && !self.yields
    }

    fn is_done(&self) -> bool {
        self.state.is_quiet() && self.is_still() && self.callers.iter().all(|caller| *caller == Caller::Done)
    }

    /// The permits that the first waiter wants.
    fn wants(&self) -> Option<u16> {
        self.callers.iter().find_map(|caller| if let Caller::Waiting(permits) = caller { Some(*permits) } else { None })
    }

    fn notified(&mut self, ticket: Ticket, outcome: Outcome) -> Result<(), String> {
        let at = ticket.0 as usize - 1;
        self.callers[at] = match (&self.callers[at], outcome) {
            (Caller::Waiting(permits), Outcome::Acquired) => {
                let is_behind = |before: &Caller| matches!(before, Caller::Waiting(_));
                if self.callers[..at].iter().any(is_behind) {
                    return Err(format!("{ticket:?} goes before the others"));
                }
                let (hold, ..) = self.state.hold_of(ticket).ok_or("acquired, and no hold")?;
                if hold.of_permits().1 != *permits {
                    return Err(format!("{ticket:?} wanted {permits} and has {hold:?}"));
                }
                Caller::Guard { share: u32::from(*permits), seen: false, lost: false }
            }
            (Caller::Unlocking { is_certain: true }, Outcome::Lost(loss)) => {
                return Err(format!("{ticket:?}: a false alarm, {loss:?}"));
            }
            (Caller::Guard { seen: false, .. }, Outcome::StartAgain)
            | (Caller::Waiting(_) | Caller::Unlocking { .. } | Caller::Done, _) => Caller::Done,
            other => return Err(format!("{ticket:?} notified out of turn: {other:?}")),
        };
        Ok(())
    }
}

impl Orders for World {
    type Size = Size;
    type Step = Step;

    fn name(size: &Size) -> &'static str {
        size.name
    }

    fn first(size: &Size) -> World {
        let clients = size.callers.iter().map(|callers| Client::new(callers)).collect();
        World { server: Server::new(ALL), clients, cuts: size.cuts, ticks: size.ticks }
    }

    fn steps(&self, size: &Size) -> Vec<Step> {
        let mut steps = Vec::new();
        for at in 0..self.clients.len() {
            self.caller_steps(size, at, &mut steps);
            self.network_steps(at, &mut steps);
        }
        if self.ticks > 0 && self.next_due().is_some() {
            steps.push(Step::Tick);
        }
        steps
    }

    fn step(&self, size: &Size, step: Step) -> Result<World, String> {
        let mut next = self.clone();
        next.take(step)?;
        next.look(size)?;
        Ok(next)
    }
}

impl World {
    // ---- the steps that are possible ----

    fn caller_steps(&self, size: &Size, at: usize, steps: &mut Vec<Step>) {
        let (callers, leave) = (&self.clients[at].callers, size.callers_do == CallersDo::Leave);
        let has_called = |caller: usize| !matches!(callers[caller], Caller::NotYet(_));
        for (caller, state) in callers.iter().enumerate() {
            match state {
                Caller::NotYet(_) if caller == 0 || has_called(caller - 1) => steps.push(Step::Call(at, caller)),
                Caller::Waiting(_) if leave => steps.push(Step::Leave(at, caller)),
                Caller::Guard { seen: false, .. } => steps.push(Step::Look(at, caller)),
                Caller::Guard { share, .. } => {
                    steps.push(Step::Unlock(at, caller));
                    steps.extend(leave.then_some(Step::Leave(at, caller)));
                    let splits = size.callers_do == CallersDo::Split && *share > 1;
                    steps.extend(splits.then_some(Step::Split(at, caller)));
                }
                _ => {}
            }
        }
    }

    fn network_steps(&self, at: usize, steps: &mut Vec<Step>) {
        let client = &self.clients[at];
        let possible = [
            (!client.requests.is_empty(), Step::Run(at)),
            (!client.replies.is_empty(), Step::Reply(at)),
            (self.cuts > 0 && !client.is_still(), Step::Cut(at)),
            (client.messages > 0, Step::Message(at)),
            (client.subscription == Subscription::Requested, Step::Subscribed(at)),
            (client.yields, Step::Yielded(at)),
        ];
        steps.extend(possible.into_iter().filter(|(can, _)| *can).map(|(_, step)| step));
    }

    /// Where time goes next, unless a request would then have taken too long.
    fn next_due(&self) -> Option<Moment> {
        let timers = self.clients.iter().filter_map(|client| client.state.due(&config()));
        let mark = self.server.mark.map(|(_, till)| till);
        let ends = self.server.taken.values().copied().chain(mark).filter(|end| *end > self.server.now);
        let due = timers.chain(ends).map(|at| at.max(self.server.now)).min()?;
        let oldest = self.clients.iter().filter_map(|client| client.sent.first()).min();
        oldest.is_none_or(|sent| due <= *sent + COMMAND).then_some(due)
    }

    // ---- one step ----

    fn feed(&mut self, at: usize, event: Event) -> Result<(), String> {
        let (config, mut actions, now) = (config(), Actions::new(), self.server.now);
        let client = &mut self.clients[at];
        client.state.handle(event, &mut Cx { now, config: &config, rules: &RULES, actions: &mut actions });
        for action in actions {
            self.act(at, action).map_err(|error| format!("{at} {error}"))?;
        }
        if event == Event::Due && self.clients[at].state.due(&config).is_some_and(|due| due <= now) {
            return Err(format!("{at} spins after {event:?}"));
        }
        Ok(())
    }

    fn act(&mut self, at: usize, action: Action) -> Result<(), String> {
        let client = &mut self.clients[at];
        match action {
            Action::Send(id, request) => {
                client.requests.push((id, request));
                client.sent.push(self.server.now);
            }
            Action::Notify(ticket, outcome) => client.notified(ticket, outcome)?,
            Action::Lost(ticket, loss) => match &mut client.callers[ticket.0 as usize - 1] {
                Caller::Guard { lost, .. } if loss != Loss::MaxHold => *lost = true,
                other => return Err(format!("{ticket:?} {other:?} loses its permits, {loss:?}")),
            },
            Action::Subscribe(Channel::Name) => client.subscription = Subscription::Requested,
            Action::Unsubscribe(Channel::Name) => (client.subscription, client.messages) = (Subscription::Off, 0),
            Action::Yield => client.yields = true,
            Action::Left { .. } | Action::Ended(..) => {}
            other => return Err(format!("of a semaphore: {other:?}")),
        }
        Ok(())
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Call(at, caller) => self.call(at, caller),
            Step::Look(at, caller) => {
                if let Caller::Guard { seen, .. } = &mut self.clients[at].callers[caller] {
                    *seen = true;
                }
                self.feed(at, Event::Seen(ticket(caller)))
            }
            Step::Split(at, caller) => self.split(at, caller),
            Step::Leave(at, caller) => {
                self.clients[at].callers[caller] = Caller::Done;
                self.feed(at, Event::Dropped(ticket(caller)))
            }
            Step::Unlock(at, caller) => {
                let is_certain = self.is_certain(at, caller);
                self.clients[at].callers[caller] = Caller::Unlocking { is_certain };
                self.feed(at, Event::Unlock(ticket(caller)))
            }
            _ => self.take_of_network(step),
        }
    }

    fn call(&mut self, at: usize, caller: usize) -> Result<(), String> {
        let Caller::NotYet(permits) = self.clients[at].callers[caller] else { return Ok(()) };
        self.clients[at].callers[caller] = Caller::Waiting(permits);
        let terms = Terms { mode: Mode::Shared, permits, ..Terms::default() };
        let (ticket, owner) = (ticket(caller), Owner(caller as u64 + 1));
        self.feed(at, Event::Acquire { ticket, owner, terms, limit: Limit::Forever })
    }

    /// One of two permits gets a guard of its own.
    fn split(&mut self, at: usize, caller: usize) -> Result<(), String> {
        let client = &mut self.clients[at];
        let part = client.callers.len();
        client.state.split(ticket(caller), (ticket(part), 1));
        if let Caller::Guard { share, lost, .. } = &mut client.callers[caller] {
            *share -= 1;
            let part = Caller::Guard { share: 1, seen: true, lost: *lost };
            client.callers.push(part);
        }
        Ok(())
    }

    fn take_of_network(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Run(at) => {
                let (id, request) = self.clients[at].requests.remove(0);
                let reply = self.server.run(at as u64, request);
                let hears =
                    |(other, client): &(usize, &Client)| *other != at && client.subscription == Subscription::On;
                let others = self.clients.iter().enumerate().filter(hears).count();
                self.clients[at].replies.push((id, told(reply, others)));
                if mem::take(&mut self.server.published) {
                    let heard = self.clients.iter_mut().filter(|client| client.subscription == Subscription::On);
                    heard.for_each(|client| client.messages += 1);
                }
                Ok(())
            }
            Step::Reply(at) => {
                let (id, reply) = self.clients[at].replies.remove(0);
                self.clients[at].sent.remove(0);
                self.feed(at, Event::Replied(id, reply))
            }
            Step::Cut(at) => self.cut(at),
            Step::Message(at) => {
                self.clients[at].messages -= 1;
                self.feed(at, Event::Message(Channel::Name))
            }
            Step::Subscribed(at) => {
                self.clients[at].subscription = Subscription::On;
                self.feed(at, Event::Subscribed(Channel::Name))
            }
            Step::Yielded(at) => {
                self.clients[at].yields = false;
                self.feed(at, Event::Yielded)
            }
            _ => self.tick(),
        }
    }

    /// The server has run the requests whose replies were on their way, and none of the others. The subscription is lost, too.
    fn cut(&mut self, at: usize) -> Result<(), String> {
        self.cuts -= 1;
        let client = &mut self.clients[at];
        let (requests, replies) = (mem::take(&mut client.requests), mem::take(&mut client.replies));
        (client.sent, client.messages) = (Vec::new(), 0);
        let lost: Vec<_> = replies.iter().map(|(id, _)| *id).chain(requests.iter().map(|(id, _)| *id)).collect();
        let was_on = client.subscription == Subscription::On;
        for caller in &mut client.callers {
            if let Caller::Unlocking { is_certain } = caller {
                *is_certain = false; // nobody can know
            }
        }
        lost.into_iter().try_for_each(|id| self.feed(at, Event::Unknown(id)))?;
        if was_on && self.clients[at].subscription == Subscription::On {
            self.clients[at].subscription = Subscription::Requested;
            self.feed(at, Event::Unsubscribed(Channel::Name))?;
        }
        self.feed(at, Event::Reconnected)
    }

    fn tick(&mut self) -> Result<(), String> {
        self.ticks -= 1;
        self.server.now = self.next_due().expect("it was just found");
        for at in 0..self.clients.len() {
            if self.clients[at].state.due(&config()).is_some_and(|due| due <= self.server.now) {
                self.feed(at, Event::Due)?;
            }
        }
        Ok(())
    }

    // ---- what must be true ----

    fn is_certain(&self, at: usize, caller: usize) -> bool {
        self.clients[at].state.certain_until(ticket(caller), self.server.now).is_some()
    }

    fn look(&self, size: &Size) -> Result<(), String> {
        let server = &self.server;
        if server.free < 0 || server.free + server.taken.len() as i64 != ALL {
            return Err(format!("{} are free, and {:?} taken", server.free, server.taken));
        }
        let certain = (0..self.clients.len()).map(|at| self.certain_of(at)).sum::<Result<u32, String>>()?;
        if i64::from(certain) > ALL {
            return Err(format!("{certain} permits are certain"));
        }
        self.look_at_end(size)
    }

    /// How many permits of this client are certain. The server has them all.
    fn certain_of(&self, at: usize) -> Result<u32, String> {
        let (client, mut sum) = (&self.clients[at], 0);
        for (caller, state) in client.callers.iter().enumerate() {
            let Caller::Guard { share, seen, lost } = state else { continue };
            if !self.is_certain(at, caller) {
                let is_late = client.state.due(&config()).is_none_or(|due| due > self.server.now);
                if *seen && !lost && is_late {
                    return Err(format!("{at} {caller} is not certain and was not notified"));
                }
                continue;
            }
            let (hold, ..) = client.state.hold_of(ticket(caller)).ok_or("certain, and no hold")?;
            if self.server.alive(at as u64, hold) < *share as usize {
                return Err(format!("{at} is certain of {hold:?}, and the server has {:?}", self.server));
            }
            sum += share;
        }
        Ok(sum)
    }

    fn look_at_end(&self, size: &Size) -> Result<(), String> {
        let is_over = self.clients.iter().all(Client::is_done);
        if is_over && (self.server.free != ALL || self.server.mark.is_some()) {
            return Err(format!("left behind: {:?}", self.server));
        }
        if !is_over && self.ticks > 0 && self.steps(size).is_empty() {
            return Err("nothing goes on, and not all were notified".into());
        }
        let is_moving = |client: &Client| {
            !client.is_still() || client.messages > 0 || client.subscription == Subscription::Requested
        };
        let sleeps = self.next_due().is_none_or(|due| due > self.server.now + ms(300));
        let mark = self.server.mark.map(|((client, _), _)| client);
        let could_have = |at: usize| {
            let is_next = mark.is_none_or(|client| client == at as u64);
            is_next && self.clients[at].wants().is_some_and(|wanted| i64::from(wanted) <= self.server.free)
        };
        let is_still = sleeps && !self.clients.iter().any(is_moving);
        match (0..self.clients.len()).find(|at| is_still && could_have(*at)) {
            Some(at) => Err(format!("{at} could have its permits, and sleeps")),
            None => Ok(()),
        }
    }
}

fn sizes() -> Vec<Size> {
    let size = |name, callers: &[&[u16]], (cuts, ticks), callers_do| {
        let callers = callers.iter().map(|callers| callers.to_vec()).collect();
        Size { name, callers, cuts, ticks, callers_do }
    };
    let (one, two, mixed): (&[u16], &[u16], &[u16]) = (&[1], &[2], &[1, 2]);
    vec![
        size("permits, 1 x 1 and 2, a cut, 2 ticks", &[mixed], (1, 2), CallersDo::Leave),
        size("permits, 1 x 2 and 1, two cuts, 1 tick", &[&[2, 1]], (2, 1), CallersDo::NothingElse),
        size("permits, 1 x 2, 1 and 1, a cut", &[&[2, 1, 1]], (1, 0), CallersDo::Leave),
        size("permits, 1 x 2 that are split, and 1, a cut, 1 tick", &[&[2, 1]], (1, 1), CallersDo::Split),
        size("permits, 2 x 1, 2 that are split, and 1, a cut", &[two, one], (1, 0), CallersDo::Split),
        size("permits, 2 x 1, that may leave, a cut, 1 tick", &[two, one], (1, 1), CallersDo::Leave),
        size("permits, 2 x 1, 2 each, a cut, 2 ticks", &[two, two], (1, 2), CallersDo::NothingElse),
        size("permits, 2 x 2, 1 and 2 each, a cut", &[mixed, &[2, 1]], (1, 0), CallersDo::NothingElse),
        size("permits, 2 x 2, 1 and 2 each, that may leave", &[mixed, &[2, 1]], (0, 0), CallersDo::Leave),
        size("permits, 1 x 2 and 2 that are split, two cuts, 1 tick", &[&[2, 2]], (2, 1), CallersDo::Split),
    ]
}

/// Sizes that a build without optimization explores in seconds.
#[test]
fn small_orders() {
    explore_all::<World>(sizes().into_iter().filter(|size| size.name.starts_with("permits, 1 x 1 and 2")).collect());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "half a minute in release mode: scripts/simulation")]
fn permit_orders() {
    explore_all::<World>(sizes());
}
