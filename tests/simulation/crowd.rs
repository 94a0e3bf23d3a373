//! Waiters for a fair lock in one client, step by step: what they send, and what thousands of them cost when they leave at one moment.

use std::time::{Duration, Instant};

use crate::{
    lock::{
        Action, Actions, Channel, Config, Cx, Event, HoldId, How, Limit, LockState, Loss, Mode, Moment, Outcome, Owner,
        Queueing, Reply, Request, RequestId, Rules, Terms, Ticket, Waits,
    },
    server::Kind,
    world::state_of,
};

const RULES: Rules = Rules { waits: Waits::Here, passes_on: false, sure: None };

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct Crowd {
    state: LockState,
    now: Moment,
    config: Config,
}

impl Crowd {
    fn new() -> Crowd {
        let config = Config {
            watchdog: ms(30_000),
            command_timeout: ms(3_000),
            outage_timeout: ms(30_000),
            handovers: 16,
            round_trip: ms(1),
            publishes: true,
            first_confirmation: None,
        };
        Crowd { state: state_of(Kind::Fair), now: Moment::of_nanos(1 << 40), config }
    }

    fn feed(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Actions::new();
        let (now, config) = (self.now, &self.config);
        self.state.handle(event, &mut Cx { now, config, rules: &RULES, actions: &mut actions });
        actions.into_vec()
    }

    fn call(&mut self, n: u64, limit: Limit) -> Vec<(RequestId, Request)> {
        let terms = Terms::default();
        sent(&self.feed(Event::Acquire { ticket: Ticket(n), owner: Owner(n), terms, limit }))
    }

    /// So many owners call. None of their requests has a reply.
    fn calls(&mut self, count: u64, limit: Limit) -> Vec<(RequestId, HoldId)> {
        let requests: Vec<_> = (1..=count).flat_map(|n| self.call(n, limit)).collect();
        requests.into_iter().map(|(request, what)| (request, id_of(what))).collect()
    }

    fn replied(&mut self, request: RequestId, reply: Reply) -> Vec<Action> {
        self.feed(Event::Replied(request, reply))
    }

    /// All of them have places, behind a holder elsewhere, and listen.
    fn queued(&mut self, requests: &[(RequestId, HoldId)]) {
        for (place, (request, id)) in requests.iter().enumerate() {
            self.replied(*request, behind(place));
            let looks = sent(&self.feed(Event::Subscribed(Channel::Place(*id))));
            looks.into_iter().for_each(|(request, _)| _ = self.replied(request, behind(place)));
        }
    }
}

fn behind(place: usize) -> Reply {
    Reply::Queued { left: Some(ms(30_000)), place: place as u64 + 1, own: None }
}

fn sent(actions: &[Action]) -> Vec<(RequestId, Request)> {
    let one = |action: &Action| if let Action::Send(id, request) = action { Some((*id, *request)) } else { None };
    actions.iter().filter_map(one).collect()
}

fn id_of(request: Request) -> HoldId {
    match request {
        Request::Acquire { id, .. } | Request::Release { id, .. } | Request::Renew { id, .. } => id,
        Request::HandOver { id, .. } => id,
    }
}

fn released(actions: &[Action]) -> Vec<HoldId> {
    let releases = sent(actions).into_iter().filter(|(_, request)| matches!(request, Request::Release { .. }));
    releases.map(|(_, request)| id_of(request)).collect()
}

/// The limits of all end together: each gets its answer at once, and the only requests are the releases, in the order of the queue.
#[test]
fn limits_that_end_together() {
    let mut crowd = Crowd::new();
    let end = crowd.now + ms(1_000);
    let requests = crowd.calls(1_000, Limit::Until(end));
    crowd.queued(&requests);
    crowd.now = end;
    let actions = crowd.feed(Event::Due);
    let busy = actions.iter().filter(|action| matches!(action, Action::Notify(_, Outcome::Busy))).count();
    assert_eq!((busy, sent(&actions).len()), (1_000, 1_000));
    assert_eq!(released(&actions), requests.iter().map(|(_, id)| *id).collect::<Vec<_>>());
}

/// They leave in another order than they came. Each place is released at once.
#[test]
fn waiters_that_leave_one_after_the_other() {
    let mut crowd = Crowd::new();
    let requests = crowd.calls(1_000, Limit::Forever);
    crowd.queued(&requests);
    for n in (1..=1_000).rev() {
        assert_eq!(released(&crowd.feed(Event::Dropped(Ticket(n)))), [requests[n as usize - 1].1]);
    }
}

/// They leave while their first requests are under way: each place is released right after that reply, whatever the others do.
#[test]
fn waiters_that_leave_before_their_first_reply() {
    let mut crowd = Crowd::new();
    let requests = crowd.calls(1_000, Limit::Forever);
    for n in 1..=1_000 {
        assert_eq!(sent(&crowd.feed(Event::Dropped(Ticket(n)))), []);
    }
    for (place, (request, id)) in requests.iter().enumerate().rev() {
        let actions = crowd.replied(*request, behind(place));
        assert_eq!((released(&actions), sent(&actions).len()), (vec![*id], 1));
        crowd.replied(sent(&actions)[0].0, Reply::Gone);
    }
    assert!(crowd.state.is_quiet());
}

/// A place that was confirmed once is released beside a request under way: that creates no place.
#[test]
fn a_waiter_that_leaves_during_a_later_request() {
    let mut crowd = Crowd::new();
    let requests = crowd.calls(1, Limit::Forever);
    let (request, id) = requests[0];
    crowd.replied(request, behind(1));
    let looks = sent(&crowd.feed(Event::Subscribed(Channel::Place(id))));
    assert!(matches!(looks[..], [(_, Request::Acquire { how: How::Queue(Queueing::Stay), .. })]));
    assert_eq!(released(&crowd.feed(Event::Dropped(Ticket(1)))), [id]);
}

/// One attempt leaves no place behind, and needs no release.
#[test]
fn one_attempt_takes_no_place() {
    let mut crowd = Crowd::new();
    let requests = crowd.call(1, Limit::Once);
    assert!(matches!(requests[..], [(_, Request::Acquire { how: How::Queue(Queueing::Never), .. })]));
    let actions = crowd.replied(requests[0].0, Reply::Busy { left: None, by: Default::default(), own: None });
    assert_eq!(actions, [Action::Notify(Ticket(1), Outcome::Busy)]);
    assert!(crowd.state.is_quiet());
}

/// The server does not reply. A branch that called later waits for longer.
#[test]
fn an_outage_ends_the_wait_of_each() {
    let mut crowd = Crowd::new();
    let began = crowd.now;
    let acquire =
        |n| Event::Acquire { ticket: Ticket(n), owner: Owner(1), terms: Terms::default(), limit: Limit::Forever };
    let mut under_way = sent(&crowd.feed(acquire(1)));
    let mut ended = Vec::new();
    while crowd.now < began + ms(70_000) {
        if crowd.now >= began + ms(10_000) && ended.is_empty() && !crowd.state.is_waiting(Ticket(2)) {
            under_way.extend(sent(&crowd.feed(acquire(2))));
        }
        let mut actions: Vec<_> =
            under_way.drain(..).flat_map(|(request, _)| crowd.feed(Event::Unknown(request))).collect();
        crowd.now = crowd.now + ms(100);
        actions.extend(crowd.feed(Event::Due));
        under_way = sent(&actions);
        let is_end = |action: &&Action| matches!(action, Action::Notify(_, Outcome::Unavailable));
        ended.extend(actions.iter().filter(is_end).map(|_| crowd.now.since(began)));
    }
    assert_eq!(ended, [ms(30_000), ms(40_000)]);
}

/// The server grants the lock to another owner of this client: it no longer has the earlier hold, which was forced open.
#[test]
fn a_grant_beside_a_hold_of_this_client() {
    let mut crowd = Crowd::new();
    let requests = crowd.calls(2, Limit::Forever);
    crowd.replied(requests[0].0, Reply::Granted(None));
    crowd.feed(Event::Seen(Ticket(1)));
    let actions = crowd.replied(requests[1].0, Reply::Granted(None));
    assert!(actions.contains(&Action::Lost(Ticket(1), Loss::Removed)));
    assert!(actions.contains(&Action::Notify(Ticket(2), Outcome::Acquired)));
    let is_certain = |n| crowd.state.certain_until(Ticket(n), crowd.now).is_some();
    assert_eq!((is_certain(1), is_certain(2)), (false, true));
}

/// A single attempt does not find a hold of this client that is about to be released. It does not wait for a second try of that release.
#[test]
fn one_attempt_after_a_release_of_this_client() {
    for ends_well in [true, false] {
        let mut crowd = Crowd::new();
        let requests = crowd.call(1, Limit::Forever);
        crowd.replied(requests[0].0, Reply::Granted(None));
        crowd.feed(Event::Seen(Ticket(1)));
        let release = sent(&crowd.feed(Event::Dropped(Ticket(1))))[0].0;
        assert_eq!(crowd.call(2, Limit::Once), []);
        let end =
            if ends_well { Event::Replied(release, Reply::Released { receivers: 0 }) } else { Event::Unknown(release) };
        assert!(matches!(sent(&crowd.feed(end))[..], [(_, Request::Acquire { how: How::Queue(Queueing::Never), .. })]));
    }
}

/// All of them join, leave by their limits, and get all replies.
fn come_and_go(count: u64) {
    let mut crowd = Crowd::new();
    let end = crowd.now + ms(1_000);
    let requests = crowd.calls(count, Limit::Until(end));
    crowd.queued(&requests);
    crowd.now = end;
    let releases = sent(&crowd.feed(Event::Due));
    releases.into_iter().for_each(|(request, _)| _ = crowd.replied(request, Reply::Gone));
    assert!(crowd.state.is_quiet());
}

/// A client of a semaphore. The server grants, renews and releases at once.
fn replied_at_once(crowd: &mut Crowd, rules: &Rules, event: Event) {
    let mut events = vec![event];
    while let Some(event) = events.pop() {
        let (now, mut actions) = (crowd.now, Actions::new());
        crowd.state.handle(event, &mut Cx { now, config: &crowd.config, rules, actions: &mut actions });
        for action in actions {
            events.extend(match action {
                Action::Send(id, Request::Acquire { .. }) => Some(Event::Replied(id, Reply::Granted(None))),
                Action::Send(id, Request::Renew { .. }) => {
                    Some(Event::Replied(id, Reply::Kept { admits: false, left: None }))
                }
                Action::Send(id, _) => Some(Event::Replied(id, Reply::Released { receivers: 0 })),
                Action::Notify(ticket, Outcome::Acquired) => Some(Event::Seen(ticket)),
                _ => None,
            });
        }
        std::hint::black_box(crowd.state.due(&crowd.config)); // as the driver does after each event
    }
}

/// So many holds of permits at once, each split into so many parts: acquired one by one, renewed at one moment, looked at, and released one by
/// one.
fn hold_permits(count: u64, parts: u16) {
    let mut crowd = Crowd { state: state_of(Kind::Plain), ..Crowd::new() };
    let rules = Rules { waits: Waits::ForPermits, ..RULES };
    for n in 1..=count {
        let terms = Terms { mode: Mode::Shared, permits: 2 * parts, ..Terms::default() };
        let acquire = Event::Acquire { ticket: Ticket(n), owner: Owner(n), terms, limit: Limit::Forever };
        replied_at_once(&mut crowd, &rules, acquire);
        for part in 1..u64::from(parts) {
            crowd.state.split(Ticket(n), (Ticket(part * count + n), 2));
        }
        replied_at_once(&mut crowd, &rules, Event::Due);
    }
    crowd.now = crowd.now + ms(9_500);
    let until = crowd.state.certain_until(Ticket(1), crowd.now).expect("held");
    replied_at_once(&mut crowd, &rules, Event::Due);
    assert_eq!((crowd.state.guarded().1, crowd.state.holds().count()), (count as usize, count as usize));
    for n in 1..=count * u64::from(parts) {
        assert!(crowd.state.certain_until(Ticket(n), crowd.now).expect("held") > until, "renewed");
        replied_at_once(&mut crowd, &rules, Event::Unlock(Ticket(n)));
    }
    assert!(crowd.state.is_quiet());
}

/// The time for which this thread has run, so that other work of the machine does not count. Without Linux, the time that has passed.
fn time_of(work: impl Fn()) -> Duration {
    let began = Instant::now();
    let since = time_of_this_thread();
    work();
    match (since, time_of_this_thread()) {
        (Some(since), Some(now)) if now > since => now - since,
        _ => began.elapsed(),
    }
}

fn time_of_this_thread() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

/// Ten crowds cost about as much as one that is ten times as large: ten times as much would be quadratic.
#[test]
fn the_cost_of_a_crowd_is_linear() {
    let best = |work: &dyn Fn()| (0..5).map(|_| time_of(work)).min().expect("five");
    let few = best(&|| (0..10).for_each(|_| come_and_go(1_000)));
    let many = best(&|| come_and_go(10_000));
    println!("10 times 1,000 waiters: {few:?}, 10,000 waiters: {many:?}");
    assert!(many < few * 4, "{few:?}, {many:?}");
}

/// A client may hold thousands of permits, each by a call of its own, and split them.
#[test]
fn the_cost_of_many_holds_is_linear() {
    for (count, parts) in [(300, 1), (60, 20)] {
        let best = |work: &dyn Fn()| (0..3).map(|_| time_of(work)).min().expect("three");
        let few = best(&|| (0..10).for_each(|_| hold_permits(count, parts)));
        let many = best(&|| hold_permits(count * 10, parts));
        println!("10 times {count} holds of {parts} parts: {few:?}, all at once: {many:?}");
        assert!(many < few * 4, "{few:?}, {many:?}");
    }
}
