//! Defects that the lock once had, each as a case with one client: events go in, requests and notifications come out.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    lock::{
        Action, Actions, Channel, Config, Cx, Event, HoldId, How, Limit, LockState, Loss, Mode, Moment, Outcome, Owner,
        Queueing, Reply, Request, RequestId, Rules, Terms, Ticket, Token,
    },
    server::Kind,
    world::{rules_of, state_of},
};

const KEPT: Terms = Terms { mode: Mode::Exclusive, lease: None, max_hold: None, min_hold: None, permits: 0 };
/// JVMs may shorten the leases of readers to this.
const SURE: Duration = Duration::from_millis(29_960);
const READ: Terms = Terms { mode: Mode::Shared, ..KEPT };
const A: Owner = Owner(1);
const B: Owner = Owner(2);
const C: Owner = Owner(3);
const GRANTED: Reply = Reply::Granted(None);
const KEEPS: Reply = Reply::Kept { admits: true, left: None };
const RELEASED: Reply = Reply::Released { receivers: 0 };
const BUSY: Reply = Reply::Busy { left: Some(Duration::from_secs(20)), by: Mode::Exclusive, own: None };

/// Microseconds.
fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn t(n: u64) -> Ticket {
    Ticket(n)
}

/// One client of one lock.
struct Client {
    state: LockState,
    config: Config,
    rules: Rules,
    now: Moment,
    /// Requests under way, the oldest first.
    requests: Vec<(RequestId, Request)>,
    sent: usize,
    told: BTreeMap<Ticket, Outcome>,
    lost: BTreeMap<Ticket, Loss>,
    yields: bool,
}

impl Client {
    fn new(kind: Kind) -> Client {
        Client {
            state: state_of(kind),
            config: Config {
                watchdog: ms(30_000),
                command_timeout: ms(4_000),
                outage_timeout: ms(30_000),
                handovers: 16,
                round_trip: ms(1),
                publishes: true,
                first_confirmation: None,
            },
            rules: Rules { sure: rules_of(kind).sure.and(Some(SURE)), ..rules_of(kind) },
            now: Moment::of_nanos(1 << 40),
            requests: Vec::new(),
            sent: 0,
            told: BTreeMap::new(),
            lost: BTreeMap::new(),
            yields: false,
        }
    }

    fn feed(&mut self, event: Event) {
        let mut actions = Actions::new();
        let mut cx = Cx { now: self.now, config: &self.config, rules: &self.rules, actions: &mut actions };
        self.state.handle(event, &mut cx);
        for action in actions {
            match action {
                Action::Send(id, request) => {
                    self.sent += 1;
                    self.requests.push((id, request));
                }
                Action::Notify(ticket, outcome) => {
                    self.told.insert(ticket, outcome);
                }
                Action::Lost(ticket, loss) => {
                    self.lost.insert(ticket, loss);
                }
                Action::Yield => self.yields = true,
                Action::PassedOn => panic!("it keeps no permits"),
                Action::Subscribe(_) | Action::Unsubscribe(_) | Action::Left { .. } | Action::Ended(..) => {}
            }
        }
    }

    fn acquire(&mut self, ticket: u64, owner: Owner, terms: Terms, limit: Limit) {
        self.feed(Event::Acquire { ticket: t(ticket), owner, terms, limit });
    }

    /// Acquires the lock for a caller that looks at once.
    fn hold(&mut self, ticket: u64, owner: Owner, terms: Terms) {
        self.acquire(ticket, owner, terms, Limit::Forever);
        self.reply(GRANTED);
        self.assert_told(ticket, Outcome::Acquired);
        self.feed(Event::Seen(t(ticket)));
    }

    /// Messages arrive for all places.
    fn feed_subscribed(&mut self) {
        let places: Vec<_> = self.state.places().collect();
        places.into_iter().for_each(|id| self.feed(Event::Subscribed(Channel::Place(id))));
    }

    fn unlock(&mut self, ticket: u64) {
        self.told.remove(&t(ticket));
        self.feed(Event::Unlock(t(ticket)));
    }

    /// The oldest request under way.
    fn request(&self) -> Request {
        self.requests.first().expect("a request is under way").1
    }

    /// The reply to the oldest request.
    fn reply(&mut self, reply: Reply) {
        let (id, _) = self.requests.remove(0);
        self.feed(Event::Replied(id, reply));
    }

    /// Time passes. Each timer is served when it is due.
    fn pass(&mut self, time: Duration) {
        let (end, mut served) = (self.now + time, 0);
        while let Some(due) = self.state.due(&self.config).filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.feed(Event::Due);
            served += 1;
            assert!(served < 100_000, "the same timer is due again and again");
        }
        self.now = end;
    }

    /// Time passes. Each request under way ends like that within 100 ms.
    fn outage(&mut self, time: Duration, end: fn(RequestId) -> Event) {
        for _ in 0..time.as_millis() / 100 {
            self.pass(ms(100));
            for (id, _) in std::mem::take(&mut self.requests) {
                self.feed(end(id));
            }
        }
    }

    /// The oldest request of this kind that is under way ends like that.
    fn end(&mut self, is_meant: fn(Request) -> bool, event: impl Fn(RequestId) -> Event) {
        let at = self.requests.iter().position(|(_, request)| is_meant(*request));
        let (id, _) = self.requests.remove(at.expect("such a request is under way"));
        self.feed(event(id));
    }

    fn told(&self, ticket: u64) -> Option<Outcome> {
        self.told.get(&t(ticket)).copied()
    }

    #[track_caller]
    fn assert_told(&self, ticket: u64, outcome: Outcome) {
        assert_eq!(self.told(ticket), Some(outcome), "{:#?}", self.state);
    }

    #[track_caller]
    fn assert_waits(&self, ticket: u64) {
        assert_eq!(self.told(ticket), None, "{:#?}", self.state);
    }
}

fn is_release(request: Request) -> bool {
    matches!(request, Request::Release { count: 0, .. })
}

fn is_hand_over(request: Request) -> bool {
    matches!(request, Request::HandOver { .. })
}

fn is_attempt(request: Request) -> bool {
    matches!(request, Request::Acquire { .. })
}

// ---- what unlock reports ----

/// The lock was held when `unlock` was called, and the lease ended before the release reached the server.
#[test]
fn after_an_outage_unlock_reports_no_loss() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.pass(ms(5_000));
    client.unlock(1);
    assert!(is_release(client.request()));
    client.outage(ms(26_000), Event::NotNow);
    client.pass(ms(1_000));
    client.reply(Reply::Gone);
    client.assert_told(1, Outcome::Unconfirmed);
}

/// A hold that was gone before is lost.
#[test]
fn unlock_of_a_hold_that_was_removed_is_lost() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.unlock(1);
    client.reply(Reply::Gone);
    client.assert_told(1, Outcome::Lost(Loss::Removed));
}

/// A writer that has waited for long has a mark on the server, and its client's readers ask before it. When the last reader leaves, the mark
/// keeps the next one out. That refusal must not use up the wake-up: the writer would wait for a second, and everybody else with it.
#[test]
fn readers_do_not_use_up_the_wake_up_of_a_writer_whose_mark_keeps_them_out() {
    let busy = |by, own| Reply::Busy { left: Some(ms(20_000)), by, own };
    let mut client = Client::new(Kind::ReadWrite);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.reply(busy(Mode::Shared, None));
    client.feed(Event::Subscribed(Channel::Name));
    client.now = client.now + client.config.watchdog;
    client.reply(busy(Mode::Shared, None));
    client.feed(Event::Message(Channel::Name));
    let Request::Acquire { id: mark, how: How::Late, .. } = client.request() else { panic!("{:?}", client.requests) };
    client.reply(busy(Mode::Shared, None));
    client.hold(2, B, READ);
    client.reply(busy(Mode::Shared, None)); // to the writer, which asks after each grant to readers
    client.acquire(3, C, READ, Limit::Forever);
    client.unlock(2);
    client.end(
        |request| matches!(request, Request::Renew { .. }),
        |id| Event::Replied(id, Reply::Kept { admits: false, left: None }),
    );
    client.end(is_release, |id| Event::Replied(id, RELEASED));
    let Request::Acquire { mode: Mode::Shared, .. } = client.request() else { panic!("{:?}", client.requests) };
    client.reply(busy(Mode::Exclusive, Some(mark)));
    assert!(matches!(client.request(), Request::Acquire { id, .. } if id == mark), "{:?}", client.requests);
    client.reply(GRANTED);
    client.assert_told(1, Outcome::Acquired);
}

/// The driver learns that a subscription was lost when it has begun again. A message may have been missed between the two.
#[test]
fn a_subscription_that_begins_again_is_followed_by_a_request() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(1, A, KEPT, Limit::Forever);
    for _ in 0..3 {
        client.reply(Reply::Busy { left: Some(ms(20_000)), by: Mode::Exclusive, own: None });
        assert!(client.requests.is_empty(), "{:?}", client.requests);
        client.feed(Event::Subscribed(Channel::Name));
    }
    client.reply(GRANTED);
    client.assert_told(1, Outcome::Acquired);

    let mut client = Client::new(Kind::Fair);
    client.acquire(1, A, KEPT, Limit::Forever);
    for _ in 0..3 {
        client.reply(Reply::Queued { left: Some(ms(20_000)), place: 1, own: None });
        assert!(client.requests.is_empty(), "{:?}", client.requests);
        client.feed_subscribed();
    }
    client.reply(GRANTED);
    client.assert_told(1, Outcome::Acquired);
}

/// Readers may pass a writer that has waited for a lease. It leaves while its request is under way: they do not pass the next one.
#[test]
fn readers_do_not_pass_a_writer_because_the_one_before_it_had_waited_for_long() {
    let busy = Reply::Busy { left: Some(ms(20_000)), by: Mode::Shared, own: None };
    let mut client = Client::new(Kind::ReadWrite);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.reply(busy);
    client.feed(Event::Subscribed(Channel::Name));
    client.now = client.now + client.config.watchdog;
    client.reply(busy);
    client.feed(Event::Message(Channel::Name));
    assert!(matches!(client.request(), Request::Acquire { how: How::Late, .. }), "{:?}", client.requests);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.acquire(3, C, READ, Limit::Forever);
    client.feed(Event::Dropped(t(1)));
    client.reply(busy);
    let reads = |(_, request): &(_, Request)| matches!(request, Request::Acquire { mode: Mode::Shared, .. });
    assert!(!client.requests.iter().any(reads), "{:?}", client.requests);
}

// ---- forced open ----

/// This client has forced the lock open, so its own hold is gone.
#[test]
fn a_try_after_this_client_forced_the_lock_open_acquires_it() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.feed(Event::Forced);
    client.acquire(2, B, KEPT, Limit::Once);
    client.assert_waits(2);
    client.reply(Reply::Gone);
    assert_eq!(client.lost[&t(1)], Loss::Removed);
    client.reply(GRANTED);
    client.assert_told(2, Outcome::Acquired);
}

/// The same if a confirmation was under way when the lock was forced open: its reply shows nothing.
#[test]
fn a_confirmation_from_before_shows_nothing_after_a_forced_unlock() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.feed(Event::Reconnected);
    client.feed(Event::Forced);
    client.acquire(2, B, KEPT, Limit::Once);
    client.reply(KEEPS);
    client.assert_waits(2);
    client.reply(Reply::Gone);
    client.reply(GRANTED);
    client.assert_told(2, Outcome::Acquired);
}

/// It was not this hold that was forced open: the try is refused as soon as the server has confirmed that.
#[test]
fn a_hold_that_survives_a_forced_unlock_refuses_tries_again() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.feed(Event::Forced);
    client.acquire(2, B, KEPT, Limit::Once);
    client.reply(KEEPS);
    client.assert_told(2, Outcome::Busy);
    client.acquire(3, B, KEPT, Limit::Once);
    client.assert_told(3, Outcome::Busy);
}

#[test]
fn nothing_passes_on_in_memory_after_a_forced_unlock() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.feed(Event::Forced);
    client.unlock(1);
    client.assert_waits(2);
    let last = client.requests.last().expect("a hand-over").1;
    assert!(matches!(last, Request::HandOver { .. }), "{last:?}");
}

/// The request was sent before the lock was forced open, and its reply comes after that.
#[test]
fn a_grant_from_before_a_forced_unlock_is_confirmed_at_once() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.feed(Event::Forced);
    client.reply(GRANTED);
    assert!(matches!(client.request(), Request::Renew { .. }));
}

/// A writer of another client was granted the lock, so this shared hold was forced open. Nobody joins it any more.
#[test]
fn no_reader_joins_once_another_client_writes() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.reply(BUSY);
    assert!(matches!(client.request(), Request::Renew { .. }));
    client.acquire(3, C, READ, Limit::Forever);
    client.reply(Reply::Gone);
    assert_eq!(client.lost[&t(1)], Loss::Removed);
    client.assert_waits(3);
}

/// A writer of another client has left a mark, so the next reader requests a hold of its own, and waits behind that writer.
#[test]
fn no_reader_joins_before_a_writer_of_another_client() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.acquire(2, B, READ, Limit::Forever);
    client.reply(Reply::Kept { admits: false, left: None });
    client.assert_waits(2);
    assert!(is_attempt(client.request()));
}

/// Readers come one after the other. A writer of another client that leaves no mark waits for those of 100 ms only.
#[test]
fn readers_join_a_hold_for_a_limited_time() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    let began = client.now;
    for n in 2..50 {
        client.pass(ms(5));
        client.acquire(n, Owner(n), READ, Limit::Forever);
        if is_attempt(client.request()) {
            return assert!((ms(80)..=ms(110)).contains(&client.now.since(began)), "{:?}", client.now.since(began));
        }
        client.reply(KEEPS);
        client.feed(Event::Seen(t(n)));
    }
    panic!("readers join it forever");
}

/// Two readers were notified together, and both release. One confirmation serves both, not one now and another later.
#[test]
fn readers_that_enter_together_leave_together() {
    let mut client = entered_together();
    client.unlock(2);
    assert!(client.requests.is_empty(), "{:?}", client.requests);
    client.unlock(3);
    client.feed(Event::Yielded);
    client.reply(KEEPS);
    client.assert_told(2, Outcome::Confirmed);
    client.assert_told(3, Outcome::Confirmed);
}

/// The same for three readers that one request has admitted.
#[test]
fn readers_that_one_request_has_admitted_leave_together() {
    let mut client = Client::new(Kind::ReadWrite);
    for (ticket, owner) in [(1, A), (2, B), (3, C)] {
        client.acquire(ticket, owner, READ, Limit::Forever);
    }
    client.reply(GRANTED);
    for ticket in [1, 2, 3] {
        client.assert_told(ticket, Outcome::Acquired);
        client.feed(Event::Seen(t(ticket)));
    }
    client.unlock(2);
    assert!(client.requests.is_empty(), "{:?}", client.requests);
    client.unlock(3);
    client.feed(Event::Yielded);
    client.reply(KEEPS);
    client.assert_told(2, Outcome::Confirmed);
    client.assert_told(3, Outcome::Confirmed);
}

/// A runtime that is busy runs other tasks late. The confirmation waits for them for a millisecond.
#[test]
fn a_reader_does_not_wait_long_for_those_that_entered_with_it() {
    let mut client = entered_together();
    client.unlock(2);
    client.pass(ms(1));
    client.reply(KEEPS);
    client.assert_told(2, Outcome::Confirmed);
}

/// Replies about another id of the same name do not prolong that.
#[test]
fn a_reader_does_not_wait_for_the_readers_of_another_hold() {
    let mut client = entered_together();
    client.acquire(4, Owner(4), Terms { lease: Some(ms(20_000).into()), ..READ }, Limit::Forever);
    client.end(is_attempt, |id| Event::Replied(id, GRANTED));
    client.feed(Event::Seen(t(4)));
    client.unlock(2);
    client.pass(Duration::from_micros(900));
    for ticket in [t(5), t(6), t(7)] {
        client.feed(Event::Check { guard: t(4), ticket, lease: None });
    }
    client.reply(KEEPS); // to the first of them
    client.reply(KEEPS); // to the others
    client.assert_told(6, Outcome::Confirmed);
    client.assert_waits(2);
    client.requests.clear();
    client.pass(Duration::from_micros(100));
    client.reply(KEEPS);
    client.assert_told(2, Outcome::Confirmed);
}

/// A confirmation that was sent before a reader called says nothing to that reader: the server may have lost the hold in between.
#[test]
fn a_reader_joins_by_a_request_that_was_sent_after_its_call() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.feed(Event::Check { guard: t(1), ticket: t(10), lease: None });
    client.pass(us(100));
    client.acquire(2, B, READ, Limit::Forever);
    client.reply(KEEPS);
    client.assert_told(10, Outcome::Confirmed);
    client.assert_waits(2);
    client.reply(KEEPS);
    client.assert_told(2, Outcome::Acquired);
}

/// One reader alone does not wait for others.
#[test]
fn a_reader_that_entered_alone_leaves_at_once() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.acquire(2, B, READ, Limit::Forever);
    client.reply(KEEPS);
    client.unlock(2);
    client.reply(KEEPS);
    client.assert_told(2, Outcome::Confirmed);
}

/// The first of three readers was granted the hold, and a confirmation has admitted the other two.
fn entered_together() -> Client {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.acquire(2, B, READ, Limit::Forever);
    client.acquire(3, C, READ, Limit::Forever);
    client.reply(KEEPS);
    for ticket in [2, 3] {
        client.assert_told(ticket, Outcome::Acquired);
        client.feed(Event::Seen(t(ticket)));
    }
    client
}

/// A hand-over creates an exclusive hold, which a reader cannot use.
#[test]
fn a_write_hold_is_released_if_a_reader_is_next() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, KEPT);
    client.acquire(2, B, READ, Limit::Forever);
    client.unlock(1);
    assert!(is_release(client.request()), "{:?}", client.request());
}

/// The write hold of an owner that also reads is lost by its `max_hold`. Its guard remains, and the read hold renews the lock. So the lost
/// hold would keep other readers out: it is released when its own lease has ended.
#[test]
fn a_lost_write_hold_ends_with_its_lease_beside_a_read_hold() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, Terms { max_hold: Some(ms(1_000).into()), ..KEPT });
    client.hold(2, A, READ);
    let mut released = None;
    for second in 1..60 {
        client.pass(ms(1_000));
        for (id, request) in std::mem::take(&mut client.requests) {
            released = released.or_else(|| is_release(request).then_some(second));
            client.feed(Event::Replied(id, if is_release(request) { RELEASED } else { KEEPS }));
        }
    }
    assert_eq!(client.lost.get(&t(1)), Some(&Loss::MaxHold));
    assert!(released.is_some_and(|second| (30..=31).contains(&second)), "{released:?}");
}

/// A reader is lost by its `max_hold`, and keeps its guard. Others that share its hold renew it for longer, and leave. It is released when the
/// lease ends that the lost reader knew of.
#[test]
fn a_lost_reader_ends_with_its_lease_and_not_with_that_of_others() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, Terms { max_hold: Some(ms(20_000).into()), ..READ });
    client.acquire(2, B, READ, Limit::Forever);
    client.reply(KEEPS);
    client.feed(Event::Seen(t(2)));
    let renew = |client: &mut Client, time: u64| {
        for _ in 0..time / 1_000 {
            client.pass(ms(1_000));
            for (id, _) in std::mem::take(&mut client.requests) {
                client.feed(Event::Replied(id, KEEPS));
            }
        }
    };
    renew(&mut client, 40_000);
    assert_eq!(client.lost.get(&t(1)), Some(&Loss::MaxHold));
    client.unlock(2);
    renew(&mut client, 5_000);
    client.pass(ms(10_000));
    assert!(client.requests.iter().any(|(_, request)| is_release(*request)), "{:?}", client.requests);
}

/// A holder wants a longer lease, and loses the lock before the reply. The retry asks whether the server had the lock, and extends nothing.
#[test]
fn the_lease_of_a_lost_hold_is_not_extended_by_a_retry() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, Terms { max_hold: Some(ms(1_000).into()), ..KEPT });
    client.pass(ms(900));
    client.feed(Event::Check { guard: t(1), ticket: t(10), lease: Some(ms(3_600_000)) });
    assert!(matches!(client.request(), Request::Renew { lease: Some(_), .. }));
    client.pass(ms(200));
    assert_eq!(client.lost.get(&t(1)), Some(&Loss::MaxHold));
    client.end(|_| true, Event::Unknown);
    client.pass(ms(100));
    assert!(matches!(client.request(), Request::Renew { lease: None, .. }), "{:?}", client.request());
}

/// A release of permits that nobody owns gets no reply, though the server runs it. Later the server has forgotten that. So a retry after a long
/// outage does not say that the permits were granted: it would return them a second time.
#[test]
fn permits_are_not_returned_twice_after_a_long_outage() {
    let mut client = Client::new(Kind::Plain);
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    client.acquire(1, A, Terms { lease: Some(century.into()), ..KEPT }, Limit::Forever);
    client.reply(GRANTED);
    client.feed(Event::Dropped(t(1))); // it has not looked
    let granted = |client: &Client| match client.request() {
        Request::Release { granted, .. } => granted,
        other => panic!("{other:?}"),
    };
    assert!(granted(&client));
    client.end(is_release, Event::Unknown);
    client.pass(ms(20_000));
    assert!(granted(&client), "it may not have arrived");
    client.outage(ms(12_000), Event::Unknown);
    client.pass(ms(1_000));
    assert!(!granted(&client));
}

/// The same if its owner has stopped reading before: the requests of the read hold have extended the lease of both, and nothing shortens it.
#[test]
fn a_lost_write_hold_ends_with_its_lease_after_a_read_hold() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, Terms { lease: Some(ms(1_000).into()), ..KEPT });
    client.hold(2, A, READ);
    client.unlock(2);
    client.end(is_release, |id| Event::Replied(id, RELEASED));
    client.pass(ms(990));
    client.requests.clear();
    client.pass(ms(10));
    assert_eq!(client.lost.get(&t(1)), Some(&Loss::Expired));
    assert_eq!(client.requests, [], "the holder has this time to stop");
    client.pass(ms(5));
    assert!(is_release(client.request()), "{:?}", client.request());
    client.reply(RELEASED);
    client.pass(ms(60_000));
    assert_eq!(client.requests, [], "it is gone");
}

/// The requests of a reader beside a writer get no reply, but the server runs them, so they extend the lease of both. The release of the writer
/// does not arrive: it is sent for as long.
#[test]
fn a_write_hold_is_released_for_as_long_as_a_read_hold_in_doubt_may_keep_it() {
    let mut client = Client::new(Kind::ReadWrite);
    client.config.outage_timeout = ms(600_000);
    client.hold(1, A, KEPT);
    client.acquire(2, A, READ, Limit::Forever);
    client.end(is_attempt, Event::Unknown);
    client.unlock(1);
    let mut last = BTreeMap::new();
    for second in 0..120 {
        for (id, request) in std::mem::take(&mut client.requests) {
            last.insert(is_release(request), second);
            client.feed(if is_release(request) { Event::NotNow(id) } else { Event::Unknown(id) });
        }
        client.pass(ms(1_000));
    }
    assert!(last[&true] >= 118 && last[&false] >= 118, "{last:?}");
}

/// A writer of this client was granted the lock, so the readers that shared a hold of it were forced open.
#[test]
fn readers_are_lost_once_a_writer_of_their_own_client_was_granted() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.end(is_attempt, |id| Event::Replied(id, GRANTED));
    client.assert_told(2, Outcome::Acquired);
    assert_eq!(client.lost.get(&t(1)), Some(&Loss::Removed));
}

// ---- outages ----

/// A waiter behind a hold of this client notices an outage by its confirmations, not only after the lease.
#[test]
fn a_waiter_behind_its_own_client_counts_an_outage_from_its_beginning() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.outage(ms(37_000), Event::Unknown);
    client.assert_waits(2);
    client.outage(ms(3_000), Event::Unknown);
    client.assert_told(2, Outcome::Unavailable);
}

// ---- grants for one caller only ----

/// The writer that asked to read leaves both before the reply: its read hold is no one else's.
#[test]
fn a_hold_beside_a_writer_is_only_for_its_owner() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, KEPT);
    client.acquire(2, A, READ, Limit::Forever);
    client.acquire(3, B, READ, Limit::Forever);
    client.feed(Event::Dropped(t(2)));
    client.unlock(1);
    client.reply(GRANTED);
    client.assert_waits(3);
}

/// The same if the reply was lost: the id of that request is not used for another owner.
#[test]
fn a_hold_beside_a_writer_in_doubt_is_released() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, KEPT);
    client.acquire(2, A, READ, Limit::Forever);
    let Request::Acquire { id, .. } = client.request() else { panic!("{:?}", client.request()) };
    client.acquire(3, B, READ, Limit::Forever);
    client.feed(Event::Dropped(t(2)));
    client.unlock(1);
    let (request, _) = client.requests.remove(0);
    client.feed(Event::Unknown(request));
    let is_released = |(_, request): &(_, Request)| matches!(request, Request::Release { id: of, .. } if *of == id);
    assert!(client.requests.iter().any(is_released), "{:?}", client.requests);
}

/// `max_hold` has ended before each reply. The call ends, and does not burden the server.
#[test]
fn a_max_hold_shorter_than_a_reply_ends_the_call() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(1, A, Terms { max_hold: Some(ms(5).into()), ..KEPT }, Limit::Forever);
    while client.told(1).is_none() && client.sent < 20 {
        client.pass(ms(10));
        let reply = if is_release(client.request()) { RELEASED } else { GRANTED };
        client.reply(reply);
    }
    client.assert_told(1, Outcome::Lost(Loss::MaxHold));
    assert!(client.sent <= 6, "{}", client.sent);
}

/// The same for a reader that would join a hold.
#[test]
fn a_max_hold_shorter_than_a_confirmation_admits_no_reader() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.acquire(2, B, Terms { max_hold: Some(ms(3).into()), ..READ }, Limit::Forever);
    client.pass(ms(5));
    client.reply(KEEPS);
    client.assert_waits(2);
}

// ---- branches of one owner ----

/// A branch keeps its own limit when another branch of its owner acquires the lock.
#[test]
fn a_branch_that_tries_once_ends_in_its_time_beside_another() {
    for terms in [KEPT, READ] {
        let mut client = Client::new(Kind::ReadWrite);
        client.acquire(1, A, terms, Limit::Forever);
        client.acquire(2, A, terms, Limit::Once);
        client.acquire(3, A, terms, Limit::Until(client.now + ms(500)));
        client.reply(GRANTED);
        client.assert_told(1, Outcome::Acquired);
        client.feed(Event::Seen(t(1)));
        client.pass(ms(600));
        client.assert_told(3, Outcome::Unavailable);
        client.pass(ms(3_500));
        client.assert_told(2, Outcome::Unavailable);
    }
}

// ---- holds that rest ----

/// Two callers pass the lock to and fro, and a worker without other tasks yields before the first one calls again.
#[test]
fn a_caller_that_comes_back_after_the_yield_finds_the_lock() {
    let mut client = resting();
    client.feed(Event::Yielded);
    assert!(matches!(client.request(), Request::Renew { .. }));
    client.acquire(3, A, KEPT, Limit::Forever);
    client.assert_told(3, Outcome::Acquired);
    client.reply(KEEPS);
    client.reply(KEEPS);
    client.assert_told(2, Outcome::Confirmed);
    assert!(client.requests.is_empty(), "{:?}", client.requests);
}

/// Nobody comes back: the second confirmation releases it.
#[test]
fn a_hold_that_rests_in_vain_is_released() {
    let mut client = resting();
    client.feed(Event::Yielded);
    client.reply(KEEPS);
    assert!(is_release(client.request()));
    client.reply(RELEASED);
    client.assert_told(2, Outcome::Confirmed);
    assert!(client.state.is_quiet());
}

/// The first of two callers that released it in a row has been notified, and the hold rests.
fn resting() -> Client {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, C, KEPT);
    client.unlock(1);
    client.reply(RELEASED);
    client.hold(1, A, KEPT);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.unlock(1);
    client.assert_told(2, Outcome::Acquired);
    client.feed(Event::Seen(t(2)));
    client.feed(Event::Yielded);
    client.unlock(2);
    client.yields = false;
    client.reply(KEEPS);
    client.assert_told(1, Outcome::Confirmed);
    assert!(client.yields);
    client.assert_waits(2);
    client
}

/// Three callers wait, and each releases the lock at once. The client sends no confirmation, because the release of the last one is soon.
#[test]
fn a_short_row_of_turns_needs_one_request() {
    let mut client = row_of_three();
    for ticket in [2, 3] {
        client.feed(Event::Seen(t(ticket)));
        client.unlock(ticket);
    }
    assert!(is_release(client.request()), "{:?}", client.requests);
    client.reply(RELEASED);
    (1..=3).for_each(|ticket| client.assert_told(ticket, Outcome::Confirmed));
    assert_eq!(client.sent, 2, "with the request that acquired it");
}

/// The first confirmation of a row waits until other tasks have run, a millisecond at most, however many turns there are.
#[test]
fn the_confirmation_of_a_row_does_not_wait_for_its_end() {
    let mut client = row_of_three();
    client.pass(us(600));
    client.feed(Event::Seen(t(2)));
    client.unlock(2);
    client.pass(us(399));
    assert!(client.requests.is_empty(), "{:?}", client.requests);
    client.pass(us(1));
    assert!(matches!(client.request(), Request::Renew { .. }));
    client.reply(KEEPS);
    client.assert_told(1, Outcome::Confirmed);

    let mut client = row_of_three();
    client.feed(Event::Yielded);
    assert!(matches!(client.request(), Request::Renew { .. }));
}

/// No timer is served, as on a runtime whose tasks do not yield, and turns are longer than the time that a confirmation may wait.
#[test]
fn a_late_timer_does_not_put_off_the_confirmation_of_a_row() {
    let mut client = row_of_three();
    client.now = client.now + us(1_200);
    client.feed(Event::Seen(t(2)));
    client.unlock(2);
    assert!(matches!(client.request(), Request::Renew { .. }), "{:?}", client.requests);
}

/// A caller of a runtime with one thread acquires the lock whenever it rests, and nothing else runs. The others learn of a release after as
/// long as in any row.
#[test]
fn a_hold_that_rests_again_and_again_is_released() {
    let mut client = resting();
    let begun = client.now;
    for ticket in 3.. {
        client.acquire(ticket, A, KEPT, Limit::Forever);
        client.assert_told(ticket, Outcome::Acquired);
        client.feed(Event::Seen(t(ticket)));
        client.now = client.now + us(500);
        client.feed(Event::Dropped(t(ticket)));
        if client.requests.iter().any(|(_, request)| is_release(*request)) {
            break;
        }
        assert!(client.now.since(begun) < ms(30), "{:#?}", client.state);
    }
    assert!(client.now.since(begun) > ms(9));
}

/// A caller has released the lock, and passed it on to the first of two that wait.
fn row_of_three() -> Client {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.acquire(3, C, KEPT, Limit::Forever);
    client.unlock(1);
    client.assert_told(2, Outcome::Acquired);
    assert!(client.requests.is_empty() && client.yields, "{:?}", client.requests);
    client
}

// ---- one case for each promise ----

/// The reply to a hand-over was lost, and the lease of the next holder ended. Its guard shows the token of its own attempt.
#[test]
fn a_guard_shows_the_token_of_its_grant_after_a_lost_hand_over() {
    let mut client = Client::new(Kind::Fenced);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.reply(Reply::Granted(Some(Token::of(1))));
    client.acquire(2, B, KEPT, Limit::Forever);
    client.unlock(1);
    assert!(matches!(client.request(), Request::HandOver { .. }));
    client.outage(ms(100), Event::Unknown);
    client.pass(ms(50));
    client.reply(Reply::Gone);
    client.reply(Reply::Granted(Some(Token::of(4))));
    client.assert_told(2, Outcome::Acquired);
    assert_eq!(client.state.hold_of(t(2)).and_then(|(_, _, token)| token), Some(Token::of(4)));
}

/// The lock stays held for `min_hold` if its holder dies.
#[test]
fn the_lease_covers_min_hold() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(
        1,
        A,
        Terms { lease: Some(ms(1_000).into()), min_hold: Some(ms(8_000).into()), ..KEPT },
        Limit::Forever,
    );
    assert!(matches!(client.request(), Request::Acquire { lease, .. } if lease == ms(8_000)));
}

/// A renewal that runs after the release would renew what rests.
#[test]
fn a_release_within_min_hold_waits_for_the_renewal_under_way() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, Terms { min_hold: Some(ms(8_000).into()), ..KEPT });
    client.feed(Event::Reconnected);
    client.unlock(1);
    assert_eq!(client.requests.len(), 1, "{:?}", client.requests);
    client.reply(KEEPS);
    assert!(is_release(client.request()));
}

/// The lock stays held for what is left of `min_hold`.
#[test]
fn a_release_within_min_hold_leaves_the_rest() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, Terms { min_hold: Some(ms(4_000).into()), ..KEPT });
    client.pass(ms(1_000));
    client.unlock(1);
    let left = ms(2_900)..=ms(3_000);
    assert!(matches!(client.request(), Request::Release { rest, .. } if left.contains(&rest)), "{:?}", client.requests);
}

/// The same for a holder that decides while it holds the lock; nothing makes the time shorter.
#[test]
fn a_holder_may_decide_that_the_lock_stays_held() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, Terms { min_hold: Some(ms(500).into()), ..KEPT });
    client.state.stay_held(t(1), client.now + ms(4_000));
    client.state.stay_held(t(1), client.now + ms(2_000));
    client.pass(ms(1_000));
    client.unlock(1);
    let left = ms(2_900)..=ms(3_000);
    assert!(matches!(client.request(), Request::Release { rest, .. } if left.contains(&rest)), "{:?}", client.requests);
}

/// It counts from the time at which the caller looks, and begins its work.
#[test]
fn min_hold_counts_from_the_look_of_the_caller() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(1, A, Terms { min_hold: Some(ms(4_000).into()), ..KEPT }, Limit::Forever);
    client.reply(GRANTED);
    client.pass(ms(350));
    client.feed(Event::Seen(t(1)));
    client.pass(ms(50));
    client.unlock(1);
    let left = ms(3_940)..=ms(3_950);
    assert!(matches!(client.request(), Request::Release { rest, .. } if left.contains(&rest)), "{:?}", client.requests);
}

/// A caller that is passed over has begun nothing. If the hold rested, this caller would wait for the end of its own `min_hold`.
#[test]
fn a_hold_that_its_caller_never_saw_does_not_rest() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(1, A, Terms { min_hold: Some(ms(4_000).into()), ..KEPT }, Limit::Forever);
    client.reply(GRANTED);
    client.pass(ms(500));
    client.assert_told(1, Outcome::StartAgain);
    assert!(matches!(client.request(), Request::Release { rest: Duration::ZERO, .. }), "{:?}", client.requests);
}

/// A retry of the release leaves only what is left of `min_hold`.
#[test]
fn a_lost_reply_does_not_prolong_min_hold() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, Terms { min_hold: Some(ms(4_000).into()), ..KEPT });
    client.unlock(1);
    client.outage(ms(3_000), Event::Unknown);
    client.pass(ms(1_500));
    assert!(matches!(client.request(), Request::Release { rest, .. } if rest < ms(1_100)), "{:?}", client.requests);
}

/// A server without memory refuses the hand-over, and the release then finds nothing.
#[test]
fn unlock_is_lost_if_the_hand_over_was_refused_and_the_hold_is_gone() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, KEPT);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.unlock(1);
    if !matches!(client.request(), Request::HandOver { .. }) {
        panic!("{:?}", client.requests);
    }
    let (id, _) = client.requests.remove(0);
    client.feed(Event::Refused(id));
    assert!(is_release(client.request()));
    client.reply(Reply::Gone);
    client.assert_told(1, Outcome::Lost(Loss::Removed));
}

/// However long it waits, a writer asks for its mark again before the mark expires.
#[test]
fn a_writer_renews_its_mark_for_as_long_as_it_waits() {
    let mut client = Client::new(Kind::ReadWrite);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.reply(Reply::Busy { left: Some(ms(40_000)), by: Mode::Shared, own: None });
    client.feed(Event::Subscribed(Channel::Name));
    for _ in 0..200 {
        client.pass(ms(1_001));
        assert!(matches!(client.request(), Request::Acquire { how: How::Wait | How::Late, .. }));
        client.reply(Reply::Busy { left: Some(ms(40_000)), by: Mode::Shared, own: None });
    }
}

/// After a release that others received, they go first.
#[test]
fn other_clients_go_first_after_a_release() {
    let mut client = Client::new(Kind::Plain);
    client.config.handovers = 0;
    client.hold(1, A, KEPT);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.unlock(1);
    client.reply(Reply::Released { receivers: 1 });
    assert!(client.requests.is_empty(), "{:?}", client.requests);
    client.pass(ms(6));
    assert_eq!(client.requests.len(), 1);
}

/// A longer lease, and a request for one, end with their holder.
#[test]
fn a_longer_lease_does_not_pass_to_the_next_holder() {
    let hour = ms(3_600_000);
    for is_late in [false, true] {
        let mut client = Client::new(Kind::Plain);
        client.hold(1, A, KEPT);
        client.acquire(2, B, KEPT, Limit::Forever);
        if is_late {
            client.feed(Event::Reconnected); // the next confirmation would extend the lease
        }
        client.feed(Event::Check { guard: t(1), ticket: t(3), lease: Some(hour) });
        client.unlock(1);
        while let Some((_, request)) = client.requests.first().copied() {
            client.assert_waits(2);
            match request {
                Request::HandOver { lease, .. } => {
                    assert_eq!(lease, ms(30_000));
                    client.reply(Reply::Handed(None));
                }
                _ => client.reply(KEEPS),
            }
        }
        client.assert_told(2, Outcome::Acquired);
    }
}

/// An owner never waits for itself.
#[test]
fn a_branch_that_waits_to_write_ends_when_its_owner_reads() {
    let mut client = Client::new(Kind::ReadWrite);
    client.acquire(1, A, READ, Limit::Forever);
    client.acquire(2, A, KEPT, Limit::Forever);
    client.reply(GRANTED);
    client.assert_told(2, Outcome::Upgrade);
    client.acquire(3, A, KEPT, Limit::Forever);
    client.assert_told(3, Outcome::Upgrade);
}

/// The mark of a writer that gave up would keep out the readers of its own client.
#[test]
fn a_mark_is_released_before_the_next_reader_asks() {
    let mut client = Client::new(Kind::ReadWrite);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.reply(Reply::Busy { left: Some(ms(40_000)), by: Mode::Shared, own: None });
    client.feed(Event::Dropped(t(1)));
    client.acquire(2, A, READ, Limit::Once);
    assert_eq!(client.requests.len(), 1);
    assert!(is_release(client.request()), "{:?}", client.requests);
    client.reply(RELEASED);
    assert!(matches!(client.request(), Request::Acquire { mode: Mode::Shared, .. }));
}

/// A request without a reply may have found readers, and left a mark. The last try of the writer leaves none, but the first one is released.
#[test]
fn a_mark_in_doubt_is_released_after_a_try_that_leaves_none() {
    let mut client = Client::new(Kind::ReadWrite);
    client.acquire(1, A, KEPT, Limit::Until(client.now + ms(5)));
    let (request, Request::Acquire { id: mark, how: How::Wait, .. }) = client.requests.remove(0) else {
        panic!("it waits")
    };
    client.feed(Event::Unknown(request));
    client.pass(ms(11));
    assert!(matches!(client.request(), Request::Acquire { how: How::Try, .. }), "{:?}", client.requests);
    client.reply(Reply::Busy { left: Some(ms(20_000)), by: Mode::Shared, own: None });
    client.assert_told(1, Outcome::Busy);
    assert!(matches!(client.request(), Request::Release { id, .. } if id == mark), "{:?}", client.requests);
}

/// A reader that is next after a writer left asks at once: it may enter beside readers.
#[test]
fn a_reader_behind_a_writer_that_left_asks_at_once() {
    let mut client = Client::new(Kind::ReadWrite);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.reply(Reply::Busy { left: Some(ms(40_000)), by: Mode::Shared, own: None });
    client.feed(Event::Subscribed(Channel::Name));
    client.reply(Reply::Busy { left: Some(ms(40_000)), by: Mode::Shared, own: None });
    client.acquire(2, B, READ, Limit::Forever);
    client.feed(Event::Dropped(t(1)));
    client.reply(Reply::Gone);
    assert!(matches!(client.request(), Request::Acquire { mode: Mode::Shared, .. }));
}

/// A request whose reply was lost may run later, so the hold does not pass on in memory.
#[test]
fn a_grant_in_doubt_does_not_pass_on_in_memory() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.outage(ms(100), Event::Unknown);
    client.pass(ms(50));
    client.reply(GRANTED);
    client.unlock(1);
    client.assert_waits(2);
    assert!(matches!(client.request(), Request::HandOver { .. }));
}

/// A call has left, and the server may have granted it the lock. The next one has a shorter lease of its own, so it does not take that grant.
#[test]
fn a_grant_in_doubt_with_a_longer_lease_is_released_for_that_time() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.acquire(2, B, Terms { lease: Some(ms(100).into()), ..KEPT }, Limit::Forever);
    client.feed(Event::Unknown(client.requests[0].0));
    client.requests.clear();
    client.feed(Event::Dropped(t(1)));
    assert!(is_release(client.request()), "{:?}", client.requests);
    client.feed(Event::Dropped(t(2)));
    client.outage(ms(20_000), Event::NotNow);
    client.pass(ms(1_500));
    assert!(is_release(client.request()), "{:?}", client.requests);
}

// ---- callers that do not look ----

/// In the moment in which its time to look ends, the lock is forced open, or a confirmation does not find the hold, or its caller looks.
#[test]
fn a_hold_of_an_absent_caller_passes_on_only_if_the_event_leaves_it() {
    let gone = |client: &mut Client| client.reply(Reply::Gone);
    let forced = |client: &mut Client| client.feed(Event::Forced);
    let seen = |client: &mut Client| client.feed(Event::Seen(t(1)));
    for event in [gone, forced, seen] {
        let mut client = Client::new(Kind::Plain);
        client.acquire(1, A, KEPT, Limit::Forever);
        client.reply(GRANTED);
        client.acquire(2, B, KEPT, Limit::Forever);
        client.feed(Event::Reconnected);
        client.now = client.now + ms(401);
        event(&mut client);
        client.assert_waits(2);
    }
}

// ---- releases of this client that the server has not run ----

/// A release that the server has not run at its first try, and the id of the hold.
fn releasing(client: &mut Client, terms: Terms) -> HoldId {
    client.hold(1, A, terms);
    let (id, _, _) = client.state.hold_of(t(1)).expect("it was just acquired");
    client.feed(Event::Dropped(t(1)));
    client.end(is_release, Event::NotNow);
    id
}

/// Such a hold refuses nobody. A caller that tries once waits for as long as for a server that does not reply.
#[test]
fn a_try_behind_an_own_release_ends_without_a_result() {
    let mut client = Client::new(Kind::Plain);
    let own = Some(releasing(&mut client, KEPT));
    client.acquire(2, B, KEPT, Limit::Once);
    for _ in 0..400 {
        client.assert_waits(2);
        for (id, request) in std::mem::take(&mut client.requests) {
            let busy = Reply::Busy { left: None, by: Mode::Exclusive, own };
            client.feed(if is_release(request) { Event::NotNow(id) } else { Event::Replied(id, busy) });
        }
        client.pass(ms(10));
    }
    client.assert_told(2, Outcome::Unavailable);
}

/// The server refuses the release of a read lock for as long as its lease. A waiter behind it does not burden the server.
#[test]
fn looks_behind_an_own_release_become_rare() {
    for kind in [Kind::ReadWrite, Kind::Fair] {
        let mut client = Client::new(kind);
        let own = Some(releasing(&mut client, if kind == Kind::Fair { KEPT } else { READ }));
        client.acquire(2, B, KEPT, if kind == Kind::Fair { Limit::Once } else { Limit::Forever });
        let mut looks = 0;
        for _ in 0..300 {
            for (id, request) in std::mem::take(&mut client.requests) {
                looks += u32::from(is_attempt(request));
                let busy = Reply::Busy { left: None, by: Mode::Shared, own };
                client.feed(if is_release(request) { Event::Refused(id) } else { Event::Replied(id, busy) });
            }
            client.pass(ms(10));
        }
        client.assert_waits(2);
        assert!(looks < 25, "{looks} requests in three seconds");
        // Once the release has worked, the waiter does not sleep.
        client.pass(ms(1_000));
        client.end(is_release, |id| Event::Replied(id, RELEASED));
        if kind == Kind::ReadWrite {
            assert!(client.requests.iter().any(|(_, request)| is_attempt(*request)), "{:?}", client.requests);
        }
    }
}

/// A fair waiter has a place, and then the key holds something else. Its call ends, and its place is released, also if the place may only
/// be there.
#[test]
fn a_fair_waiter_leaves_no_place_behind_another_kind_of_lock() {
    for is_in_doubt in [false, true] {
        let mut client = Client::new(Kind::Fair);
        client.acquire(1, A, KEPT, Limit::Forever);
        let (place, Request::Acquire { id, .. }) = client.requests.remove(0) else { panic!("no place is requested") };
        let queued = Reply::Queued { left: Some(ms(20_000)), place: 1, own: None };
        client.feed(if is_in_doubt { Event::Unknown(place) } else { Event::Replied(place, queued) });
        client.pass(ms(2_600));
        client.end(is_attempt, |id| Event::Replied(id, Reply::Conflict));
        client.assert_told(1, Outcome::Refused);
        assert!(is_release(client.request()));
        assert!(matches!(client.request(), Request::Release { id: released, .. } if released == id));
    }
}

/// The place may be there by a request without a reply. The last try of the waiter is refused, and creates none, but the first one is
/// released: with the reply behind a release of the same client or not, and if the waiter leaves before the reply.
#[test]
fn a_fair_waiter_whose_last_try_is_refused_leaves_no_place() {
    for (is_own, leaves_first) in [(false, false), (true, false), (false, true)] {
        let mut client = Client::new(Kind::Fair);
        let own = is_own.then(|| releasing(&mut client, KEPT));
        client.acquire(2, B, KEPT, Limit::Until(client.now + ms(5)));
        let Some((request, Request::Acquire { id, how: How::Queue(Queueing::Join), .. })) = client.requests.pop()
        else {
            panic!("{:?}", client.requests)
        };
        client.feed(Event::Unknown(request));
        client.pass(ms(11));
        let is_single =
            |(_, request): &(_, Request)| matches!(request, Request::Acquire { how: How::Queue(Queueing::Never), .. });
        assert!(client.requests.iter().any(is_single), "{:?}", client.requests);
        if leaves_first {
            client.feed(Event::Dropped(t(2)));
        }
        client.end(is_attempt, |id| Event::Replied(id, Reply::Busy { left: None, by: Mode::Exclusive, own }));
        client.feed(Event::Dropped(t(2)));
        let is_of_place = |(_, request): &(_, Request)| matches!(request, Request::Release { id: of, .. } if *of == id);
        assert!(client.requests.iter().any(is_of_place), "{own:?} {leaves_first}: {:?}", client.requests);
    }
}

/// It may go on writing, so it may also read, and downgrade. All others acquire nothing more.
#[test]
fn an_owner_that_writes_may_read_while_its_client_stops() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, KEPT);
    client.acquire(2, A, READ, Limit::Forever);
    client.acquire(3, B, READ, Limit::Forever);
    client.feed(Event::Stop);
    client.assert_told(3, Outcome::Closed);
    client.assert_waits(2);
    client.end(is_attempt, |id| Event::Replied(id, GRANTED));
    client.assert_told(2, Outcome::Acquired);
    client.acquire(4, B, READ, Limit::Forever);
    client.assert_told(4, Outcome::Closed);
    client.unlock(2);
    client.end(is_release, |id| Event::Replied(id, Reply::Released { receivers: 0 }));
    client.acquire(5, A, READ, Limit::Once);
    client.end(is_attempt, |id| Event::Replied(id, GRANTED));
    client.assert_told(5, Outcome::Acquired);
    client.feed(Event::Close);
    client.acquire(6, A, READ, Limit::Once);
    client.assert_told(6, Outcome::Closed);

    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, KEPT);
    client.acquire(2, A, READ, Limit::Forever);
    client.feed(Event::Stop);
    client.assert_waits(2);
    client.unlock(1);
    client.assert_told(2, Outcome::Closed);
}

/// A failover has lost the release of a hold. Its client knows that it has ended, and releases it again instead of waiting for its lease.
#[test]
fn a_hold_that_has_ended_is_released_again() {
    let kinds = [Kind::Plain, Kind::ReadWrite, Kind::Fair];
    for (kind, limit) in kinds.into_iter().flat_map(|kind| [(kind, Limit::Forever), (kind, Limit::Once)]) {
        let mut client = Client::new(kind);
        client.hold(1, A, KEPT);
        client.unlock(1);
        client.reply(Reply::Released { receivers: 0 });
        client.pass(ms(1_000));
        assert!(client.requests.is_empty());
        client.acquire(2, B, KEPT, limit);
        let (left, own) = (Some(ms(29_000)), Some(HoldId(1)));
        client.reply(match kind {
            Kind::Fair if limit == Limit::Forever => Reply::Queued { left, place: 1, own },
            _ => Reply::Busy { left, by: Mode::Exclusive, own },
        });
        client.end(is_release, |id| Event::Replied(id, Reply::Released { receivers: 0 }));
        client.pass(ms(200));
        client.end(is_attempt, |id| Event::Replied(id, GRANTED));
        client.assert_told(2, Outcome::Acquired);
    }
}

/// What the client still has, or may have, is not released because a reply names it.
#[test]
fn a_hold_that_is_not_over_is_not_released_again() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.end(is_attempt, |id| Event::Replied(id, Reply::Busy { left: None, by: Mode::Shared, own: Some(HoldId(1)) }));
    assert!(!client.requests.iter().any(|(_, request)| is_release(*request)), "it is held");

    let mut client = Client::new(Kind::Fair);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.acquire(2, B, KEPT, Limit::Forever);
    let (first, _) = client.requests.remove(0);
    client.end(is_attempt, |id| Event::Replied(id, Reply::Queued { left: None, place: 1, own: Some(HoldId(1)) }));
    assert!(!client.requests.iter().any(|(_, request)| is_release(*request)), "the reply is on its way");
    client.feed(Event::Replied(first, GRANTED));
    client.assert_told(1, Outcome::Acquired);
}

/// The same in a queue on the server, where a caller with a limit has a place.
#[test]
fn a_fair_waiter_behind_an_own_release_ends_without_a_result() {
    let mut client = Client::new(Kind::Fair);
    let own = Some(releasing(&mut client, KEPT));
    client.acquire(2, B, KEPT, Limit::Once);
    client.acquire(3, C, KEPT, Limit::Until(client.now + ms(100)));
    for _ in 0..500 {
        for (id, request) in std::mem::take(&mut client.requests) {
            let reply = match request {
                Request::Acquire { how: How::Queue(Queueing::Never), .. } => {
                    Reply::Busy { left: None, by: Mode::Exclusive, own }
                }
                _ => Reply::Queued { left: None, place: 1, own },
            };
            client.feed(if is_release(request) { Event::NotNow(id) } else { Event::Replied(id, reply) });
        }
        client.feed_subscribed();
        client.pass(ms(10));
    }
    client.assert_told(2, Outcome::Unavailable);
    client.assert_told(3, Outcome::Unavailable);
    assert!(client.sent < 1_000, "{} requests", client.sent);
}

/// A place was taken before that release was tried. The lock may be free since.
#[test]
fn a_fair_waiter_looks_again_at_its_limit_if_an_own_release_has_failed() {
    let mut client = Client::new(Kind::Fair);
    client.hold(1, A, KEPT);
    let own = client.state.hold_of(t(1)).map(|(id, _, _)| id);
    client.acquire(2, B, KEPT, Limit::Until(client.now + ms(100)));
    client.reply(Reply::Queued { left: None, place: 1, own });
    client.feed_subscribed();
    client.reply(Reply::Queued { left: None, place: 1, own });
    client.feed(Event::Dropped(t(1)));
    client.end(is_release, Event::NotNow);
    client.pass(ms(100));
    client.assert_waits(2);
    client.end(is_attempt, |id| Event::Replied(id, GRANTED));
    client.assert_told(2, Outcome::Acquired);
}

/// The mark that a writer leaves there is released when the writer leaves.
#[test]
fn a_mark_behind_an_own_release_is_released() {
    let mut client = Client::new(Kind::ReadWrite);
    let own = Some(releasing(&mut client, READ));
    client.acquire(2, B, KEPT, Limit::Forever);
    let Some((_, Request::Acquire { id: mark, .. })) = client.requests.last().copied() else {
        panic!("{:?}", client.requests)
    };
    client.end(is_attempt, |id| Event::Replied(id, Reply::Busy { left: None, by: Mode::Shared, own }));
    client.feed(Event::Dropped(t(2)));
    let is_of_mark = |(_, request): &(_, Request)| matches!(request, Request::Release { id, .. } if *id == mark);
    assert!(client.requests.iter().any(is_of_mark), "{:?}", client.requests);
}

// ---- refused requests ----

#[test]
fn a_refused_release_notifies_its_caller_and_is_tried_again() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.unlock(1);
    client.end(is_release, Event::Refused);
    client.assert_told(1, Outcome::Refused);
    client.pass(ms(10));
    client.end(is_release, |id| Event::Replied(id, RELEASED));
    assert!(client.state.is_quiet());
}

/// A server that refuses the login, or the script, refuses all. A later caller gets a reply of its own.
#[test]
fn a_refused_request_ends_all_waiters_that_it_was_for() {
    for reply in [None, Some(Reply::Conflict)] {
        let mut client = Client::new(Kind::Plain);
        for (ticket, owner) in [(1, A), (2, B)] {
            client.acquire(ticket, owner, KEPT, Limit::Forever);
        }
        let (id, _) = client.requests.remove(0);
        client.feed(Event::NotNow(id));
        client.pass(ms(10));
        client.acquire(3, C, KEPT, Limit::Forever);
        client.end(is_attempt, |id| reply.map_or(Event::Refused(id), |reply| Event::Replied(id, reply)));
        [1, 2].into_iter().for_each(|ticket| client.assert_told(ticket, Outcome::Refused));
        client.assert_waits(3);
        client.pass(ms(20));
        client.end(is_attempt, |id| Event::Replied(id, GRANTED));
        client.assert_told(3, Outcome::Acquired);
    }
}

/// The first try was a single attempt and is in doubt. The retry, for another waiter, leaves a mark, and its id is used again. A release of
/// that id that is retried would end the later hold.
#[test]
fn an_id_that_has_become_that_of_a_mark_is_not_released() {
    let mut client = Client::new(Kind::ReadWrite);
    client.acquire(1, A, KEPT, Limit::Once);
    client.end(is_attempt, Event::Unknown);
    client.acquire(2, B, KEPT, Limit::Forever);
    client.feed(Event::Dropped(t(1)));
    client.pass(ms(10));
    client.end(is_attempt, |id| Event::Replied(id, Reply::Busy { left: Some(ms(100)), by: Mode::Shared, own: None }));
    assert!(!client.requests.iter().any(|(_, request)| is_release(*request)), "{:?}", client.requests);
    client.pass(ms(101));
    client.end(is_attempt, |id| Event::Replied(id, GRANTED));
    client.assert_told(2, Outcome::Acquired);
}

/// A request in doubt that was refused may run later, with an id that nobody uses.
#[test]
fn a_refused_request_in_doubt_is_released() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(1, A, KEPT, Limit::Forever);
    client.end(is_attempt, Event::Unknown);
    client.pass(ms(10));
    client.end(is_attempt, |id| Event::Replied(id, BUSY));
    client.end(is_release, |id| Event::Replied(id, Reply::Gone));
}

/// The server refuses both. From then on only the release is tried again, with pauses.
#[test]
fn a_release_whose_hand_over_is_refused_is_only_released() {
    for deeper in [false, true] {
        let mut client = Client::new(Kind::Fenced);
        client.hold(1, A, KEPT);
        client.acquire(2, B, KEPT, Limit::Forever);
        client.unlock(1);
        let end = |id| if deeper { Event::Replied(id, Reply::Deeper) } else { Event::Refused(id) };
        client.end(is_hand_over, end);
        let sent = client.sent;
        for _ in 0..20 {
            client.pass(ms(100));
            for (id, request) in std::mem::take(&mut client.requests) {
                assert!(!is_hand_over(request));
                client.feed(if is_release(request) { Event::Refused(id) } else { Event::NotNow(id) });
            }
        }
        assert!(client.sent - sent < 40, "{}", client.sent - sent);
        client.assert_waits(2);
        client.pass(ms(2_000));
        client.end(is_release, |id| Event::Replied(id, RELEASED));
    }
}

/// The server does not hand over a hold with more than one acquisition. That request would only cost a round trip.
#[test]
fn a_hold_that_may_still_be_nested_is_released_and_not_handed_over() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.hold(2, A, KEPT);
    client.acquire(3, B, KEPT, Limit::Forever);
    client.feed(Event::Dropped(t(2)));
    client.feed(Event::Dropped(t(1)));
    while client.state.releasing() > 0 {
        assert!(!is_hand_over(client.request()), "{:?}", client.requests);
        client.reply(RELEASED);
    }
    assert!(is_attempt(client.request()));
}

/// The hold stays, and its next renewal requests the usual lease.
#[test]
fn a_refused_renewal_notifies_its_caller_and_is_tried_again() {
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.feed(Event::Check { guard: t(1), ticket: t(2), lease: Some(ms(3_600_000)) });
    client.end(|request| matches!(request, Request::Renew { .. }), Event::Refused);
    client.assert_told(2, Outcome::Refused);
    assert!(client.lost.is_empty());
    client.pass(ms(900));
    assert!(matches!(client.request(), Request::Renew { lease, .. } if lease == Some(ms(30_000))));
    client.reply(KEEPS);
    assert!(client.state.certain_until(t(1), client.now).is_some());
}

/// A nested call and an inner unlock. The next request states the count of the guards that are left.
#[test]
fn a_refused_count_notifies_its_callers_and_is_tried_again() {
    let is_count = |request| matches!(request, Request::Release { count: 1, .. });
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.acquire(2, A, KEPT, Limit::Forever);
    client.end(is_attempt, Event::Refused);
    client.assert_told(2, Outcome::Refused);
    client.pass(ms(10));
    client.end(is_count, |id| Event::Replied(id, RELEASED));
    client.hold(3, A, KEPT);
    client.unlock(3);
    client.end(is_count, Event::Refused);
    client.assert_told(3, Outcome::Refused);
    client.pass(ms(10));
    client.end(is_count, |id| Event::Replied(id, RELEASED));
    assert_eq!(client.state.count_of(t(1)), Some((1, Some(1))));
    assert!(client.lost.is_empty());
}

// ---- retries ----

/// A request may wait for its turn, and then for its reply. The server may run it at the end of that time.
#[test]
fn a_hand_over_that_was_sent_late_is_not_forgotten() {
    let mut client = Client::new(Kind::Plain);
    let short = Terms { lease: Some(ms(500).into()), ..KEPT };
    client.hold(1, A, short);
    client.acquire(2, B, short, Limit::Forever);
    client.unlock(1);
    client.pass(ms(9_900));
    let handed = client.request();
    client.end(is_hand_over, Event::Unknown);
    client.pass(ms(10));
    assert_eq!(client.request(), handed, "the same ids again: the first try may have worked");
    client.reply(Reply::Handed(None));
    client.assert_told(2, Outcome::Acquired);
}

/// The limit of a waiter ends in the long pause after some failures.
#[test]
fn a_waiter_gets_one_more_try_at_its_limit() {
    let mut client = Client::new(Kind::Plain);
    client.acquire(1, A, KEPT, Limit::Until(client.now + ms(500)));
    for pause in [10, 20, 40, 80, 160] {
        client.end(is_attempt, Event::NotNow);
        client.pass(ms(pause));
    }
    client.end(is_attempt, Event::NotNow);
    client.pass(ms(189));
    assert!(client.requests.is_empty(), "{:?}", client.requests);
    client.pass(ms(1));
    client.reply(GRANTED);
    client.assert_told(1, Outcome::Acquired);
}

/// The holder requests a longer lease, and the reply to that is lost.
#[test]
fn a_longer_lease_is_requested_again_without_a_reply() {
    let hour = ms(3_600_000);
    let mut client = Client::new(Kind::Plain);
    client.hold(1, A, KEPT);
    client.feed(Event::Check { guard: t(1), ticket: t(2), lease: Some(hour) });
    client.end(|request| matches!(request, Request::Renew { .. }), Event::Unknown);
    client.pass(ms(10));
    assert!(matches!(client.request(), Request::Renew { lease, .. } if lease == Some(hour)), "{:?}", client.requests);
    client.reply(KEEPS);
    client.assert_told(2, Outcome::Confirmed);
    assert!(client.state.certain_until(t(1), client.now + ms(3_500_000)).is_some());
}

/// A request for a short lease, or for the watchdog's, acquires the lock for a caller with a longer fixed lease. Nothing renews that one.
#[test]
fn a_grant_for_another_caller_is_extended_to_a_fixed_lease() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let fixed = Terms { lease: Some(ms(50_000).into()), mode, ..KEPT };
        let mut client = Client::new(Kind::ReadWrite);
        client.acquire(1, A, Terms { mode, ..KEPT }, Limit::Forever);
        client.acquire(2, B, fixed, Limit::Forever);
        client.feed(Event::Dropped(t(1)));
        client.reply(GRANTED);
        client.assert_told(2, Outcome::Acquired);
        client.feed(Event::Seen(t(2)));
        // The reply to the extension is lost, too.
        client.end(
            |request| matches!(request, Request::Renew { lease, .. } if lease == Some(ms(50_000))),
            Event::Unknown,
        );
        client.pass(ms(1_000));
        client.end(
            |request| matches!(request, Request::Renew { lease, .. } if lease == Some(ms(50_000))),
            |id| Event::Replied(id, kept(ms(29_990))),
        );
        client.pass(ms(1));
        assert!(client.requests.is_empty(), "{:?}", client.requests);
        let least = if mode == Mode::Shared { ms(29_500) } else { ms(48_000) }; // a JVM may shorten the lease of a reader
        assert!(client.certain(2) > least, "{:?}", client.certain(2));
    }
}

/// A nested read needs a longer lease than the outer one. It acquires nothing less if the reply to its request is lost.
#[test]
fn a_nested_read_with_a_lease_requests_that_lease_until_there_is_a_reply() {
    let lease = Some(ms(120_000).into());
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.acquire(2, A, Terms { lease, ..READ }, Limit::Forever);
    client.end(|request| matches!(request, Request::Renew { .. }), Event::Unknown);
    client.pass(ms(10));
    let is_long = |request| matches!(request, Request::Renew { lease: Some(lease), .. } if lease == ms(120_000));
    client.end(is_long, |id| Event::Replied(id, kept(ms(29_000))));
    client.assert_told(2, Outcome::Acquired);
}

/// A user may lose a permission while it reads. A nested read fails as a nested write does.
#[test]
fn a_refused_nested_read_ends() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.acquire(2, A, READ, Limit::Forever);
    client.end(|request| matches!(request, Request::Renew { .. }), Event::Refused);
    client.assert_told(2, Outcome::Refused);
    assert!(client.certain(1) > ms(29_000));
}

/// A thousand tasks that wake at once need more time for the last reply.
#[test]
fn the_last_reply_may_take_longer_beside_many_waiters() {
    let mut client = Client::new(Kind::Plain);
    let end = client.now + ms(500);
    (1..=1_000).for_each(|n| client.acquire(n, Owner(n), KEPT, Limit::Until(end)));
    client.pass(ms(699));
    (1..=1_000).for_each(|n| client.assert_waits(n));
    client.pass(ms(1));
    (1..=1_000).for_each(|n| client.assert_told(n, Outcome::Unavailable));
}

/// After replies that came late because the server was away.
#[test]
fn the_last_reply_may_take_a_second_at_most() {
    let mut client = Client::new(Kind::Plain);
    client.config.round_trip = ms(600);
    let end = client.now + ms(500);
    client.acquire(1, A, KEPT, Limit::Until(end));
    client.pass(ms(1_499));
    client.assert_waits(1);
    client.pass(ms(1));
    client.assert_told(1, Outcome::Unavailable);
}

// ---- without messages ----

#[test]
fn looks_without_messages_become_rare() {
    let mut client = Client::new(Kind::Plain);
    client.config.publishes = false;
    client.acquire(1, A, KEPT, Limit::Forever);
    for nap in [10, 20, 40, 80, 160, 200, 200] {
        client.reply(BUSY);
        client.pass(ms(nap - 1));
        assert!(client.requests.is_empty(), "{:?}", client.requests);
        client.pass(ms(1));
        assert_eq!(client.requests.len(), 1, "after {nap} ms");
    }
}

/// After a row of turns in this process the lock stays free for a quarter of that time, so that others find it.
#[test]
fn the_lock_stays_free_after_a_row_of_turns_without_messages() {
    for (row, free) in [(40, 10), (400, 50)] {
        let mut client = Client::new(Kind::Plain);
        (client.config.publishes, client.config.handovers) = (false, 1);
        client.hold(1, A, KEPT);
        client.acquire(2, B, KEPT, Limit::Forever);
        client.acquire(3, C, KEPT, Limit::Forever);
        client.unlock(1);
        client.assert_told(2, Outcome::Acquired);
        client.feed(Event::Seen(t(2)));
        client.feed(Event::Yielded);
        client.reply(KEEPS);
        client.pass(ms(row));
        client.unlock(2);
        client.end(is_release, |id| Event::Replied(id, RELEASED));
        client.pass(ms(free - 1));
        assert!(client.requests.is_empty(), "{:?}", client.requests);
        client.pass(ms(1));
        assert_eq!(client.requests.len(), 1, "after {free} ms");
    }
}

// ---- readers: shortened leases, long leases ----

/// The reply to a renewal: the server had so much left of the lease.
fn kept(left: Duration) -> Reply {
    Reply::Kept { admits: true, left: Some(left) }
}

impl Client {
    /// The time for which this guard is certain.
    fn certain(&self, guard: u64) -> Duration {
        self.state.certain_until(t(guard), self.now).map_or(Duration::ZERO, |end| end.since(self.now))
    }

    fn check(&mut self, guard: u64, ticket: u64, lease: Option<Duration>) {
        self.feed(Event::Check { guard: t(guard), ticket: t(ticket), lease });
    }
}

/// A JVM that reads may set the lease to its own, without notice. Each renewal requests what is left by this client's clock.
#[test]
fn a_reader_is_certain_for_no_longer_than_a_jvm_lets_the_lock_last() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, Terms { lease: Some(ms(120_000).into()), ..READ });
    assert_eq!(client.certain(1), SURE);
    client.pass(ms(8_988));
    let Request::Renew { lease: Some(lease), .. } = client.request() else { panic!("{:?}", client.requests) };
    assert!(lease > ms(110_000), "{lease:?}");
    client.reply(kept(ms(111_000)));
    assert!(client.certain(1) > ms(29_000), "{:?}", client.certain(1));
}

/// What one JVM did it may do again at once. So the next renewal comes in time for that.
#[test]
fn a_shortened_lease_makes_certain_only_for_what_was_left() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.check(1, 2, None);
    client.reply(kept(ms(3_000)));
    assert!((ms(2_900)..=ms(3_000)).contains(&client.certain(1)), "{:?}", client.certain(1));
    client.pass(ms(900));
    client.reply(kept(ms(29_100)));
    assert!(client.certain(1) > ms(29_000), "{:?}", client.certain(1));
}

/// The server may have run the request just before the reply. Then less is left, too, and a holder may rely on what it was told.
#[test]
fn a_slow_renewal_does_not_look_like_a_shortened_lease() {
    let mut client = Client::new(Kind::ReadWrite);
    client.hold(1, A, READ);
    client.check(1, 2, None);
    let before = client.certain(1);
    client.pass(ms(2_000));
    client.reply(kept(ms(28_500)));
    assert_eq!(client.certain(1), before - ms(2_000));
}

/// A renewal was under way when a reader reached its `max_hold`. Its reply shows that the server has the lock for longer, and the reader may
/// use that time to stop, as a writer may.
#[test]
fn a_lost_reader_has_the_lease_that_was_under_way() {
    for mode in [Mode::Shared, Mode::Exclusive] {
        let mut client = Client::new(Kind::ReadWrite);
        client.hold(1, A, Terms { mode, max_hold: Some(ms(9_500).into()), ..READ });
        client.pass(ms(9_500));
        assert_eq!(client.lost.get(&t(1)), Some(&Loss::MaxHold));
        client.reply(kept(ms(21_300)));
        client.pass(ms(29_000));
        assert_eq!(client.requests, [], "it is released while its holder stops");
        client.feed(Event::Dropped(t(1)));
        assert!(is_release(client.request()));
    }
}

// ---- marks of waiters that were refused several times ----

impl Client {
    /// Another client acquires the lock at a release, before this one.
    fn beaten(&mut self, by: Mode) {
        self.feed(Event::Message(Channel::Name));
        self.reply(Reply::Busy { left: Some(ms(20_000)), by, own: None });
    }

    /// This waiter waits behind a writer of another client, and learns of releases.
    fn waits(&mut self, ticket: u64, terms: Terms) {
        self.waits_behind(ticket, terms, Mode::Exclusive);
    }

    fn waits_behind(&mut self, ticket: u64, terms: Terms, by: Mode) {
        self.acquire(ticket, B, terms, Limit::Forever);
        self.pass(ms(10)); // after its own release, a client lets others go first
        self.reply(Reply::Busy { left: Some(ms(20_000)), by, own: None });
        self.feed(Event::Subscribed(Channel::Name));
        self.reply(Reply::Busy { left: Some(ms(20_000)), by, own: None });
    }
}

/// A client whose requests take longer than those of the others would never be first.
#[test]
fn a_waiter_that_was_beaten_three_times_leaves_a_mark() {
    for terms in [KEPT, READ] {
        let mut client = Client::new(Kind::ReadWrite);
        client.waits(1, terms);
        (0..3).for_each(|_| client.beaten(Mode::Exclusive));
        client.feed(Event::Message(Channel::Name));
        let Request::Acquire { id: mark, how: How::Turn, .. } = client.request() else {
            panic!("{:?}", client.requests)
        };
        client.reply(Reply::Busy { left: Some(ms(20_000)), by: Mode::Exclusive, own: None });
        client.pass(ms(1_001)); // before the mark expires
        assert!(matches!(client.request(), Request::Acquire { id, how: How::Turn, .. } if id == mark));
        client.reply(Reply::Busy { left: Some(ms(20_000)), by: Mode::Exclusive, own: None });
        client.feed(Event::Dropped(t(1)));
        let is_of_mark = |(_, request): &(_, Request)| matches!(request, Request::Release { id, .. } if *id == mark);
        assert!(client.requests.iter().any(is_of_mark), "{:?}", client.requests);
    }
}

/// Plain locks promise no turns, and their scripts know no marks.
#[test]
fn waiters_for_a_plain_lock_leave_no_marks() {
    let mut client = Client::new(Kind::Plain);
    client.waits(1, KEPT);
    (0..5).for_each(|_| client.beaten(Mode::Exclusive));
    client.feed(Event::Message(Channel::Name));
    assert!(matches!(client.request(), Request::Acquire { how: How::Wait, .. }), "{:?}", client.requests);
}

/// JVMs that read do not know marks. A writer that has waited for a lease then leaves none, so the readers of its own client may pass it.
#[test]
fn readers_pass_a_writer_that_waits_for_longer_than_a_lease() {
    let mut client = Client::new(Kind::ReadWrite);
    let beside_readers = Reply::Busy { left: Some(ms(600_000)), by: Mode::Shared, own: None };
    client.waits(1, KEPT);
    client.acquire(2, C, READ, Limit::Forever);
    let started = client.now;
    while client.told(2).is_none() && client.now.since(started) < ms(40_000) {
        client.pass(ms(100));
        while let Some((_, Request::Acquire { mode, how, .. })) = client.requests.first().copied() {
            assert!(mode == Mode::Exclusive || how == How::Wait, "readers leave no mark: {how:?}");
            client.reply(if mode == Mode::Shared { GRANTED } else { beside_readers });
        }
    }
    client.assert_told(2, Outcome::Acquired);
    client.assert_waits(1);
    assert!(client.now.since(started) > ms(29_000), "it was its turn for a lease");
    client.acquire(3, A, Terms { lease: Some(ms(60_000).into()), ..READ }, Limit::Once);
    while let Some((_, Request::Acquire { mode, .. })) = client.requests.first().copied() {
        client.reply(if mode == Mode::Shared { GRANTED } else { beside_readers });
    }
    client.assert_told(3, Outcome::Acquired);
}

/// The last request of a waiter has the id of its mark. The server would refuse another one because of that mark.
#[test]
fn the_last_request_of_a_waiter_has_the_id_of_its_mark() {
    let mut client = Client::new(Kind::ReadWrite);
    client.acquire(1, A, KEPT, Limit::Until(client.now + ms(500)));
    let Request::Acquire { id: mark, .. } = client.request() else { panic!("{:?}", client.requests) };
    client.reply(Reply::Busy { left: Some(ms(20_000)), by: Mode::Shared, own: None });
    client.feed(Event::Subscribed(Channel::Name));
    client.reply(Reply::Busy { left: Some(ms(20_000)), by: Mode::Shared, own: None });
    client.pass(ms(510));
    assert!(
        matches!(client.request(), Request::Acquire { id, how: How::Try, .. } if id == mark),
        "{:?}",
        client.requests
    );
    client.reply(GRANTED);
    client.assert_told(1, Outcome::Acquired);
}

/// The client has the lock for some of its readers. Another one is refused because of a mark of the same client, not because of a writer.
#[test]
fn an_own_mark_does_not_look_like_a_writer() {
    let mut client = Client::new(Kind::ReadWrite);
    client.config.watchdog = ms(2_000);
    client.hold(1, A, READ);
    client.acquire(2, B, KEPT, Limit::Forever);
    let beside_readers = Reply::Busy { left: Some(ms(20_000)), by: Mode::Shared, own: None };
    let Request::Acquire { id: mark, .. } = client.request() else { panic!("{:?}", client.requests) };
    client.reply(beside_readers);
    client.feed(Event::Subscribed(Channel::Name));
    client.reply(beside_readers);
    client.acquire(3, C, Terms { lease: Some(ms(60_000).into()), ..READ }, Limit::Forever);
    let own_mark = Reply::Busy { left: Some(ms(3_000)), by: Mode::Exclusive, own: Some(mark) };
    let mut refused = 0;
    for _ in 0..100 {
        client.pass(ms(50));
        while !client.requests.is_empty() {
            let sent = client.sent;
            match client.request() {
                Request::Acquire { mode: Mode::Exclusive, .. } => client.reply(beside_readers),
                Request::Acquire { .. } => {
                    client.reply(own_mark);
                    refused += 1;
                    assert_eq!(client.sent, sent, "it confirms nothing: {:?}", client.requests);
                }
                _ => client.reply(Reply::Kept { admits: false, left: None }),
            }
        }
    }
    assert!(refused >= 2);
}

/// After a lease a waiter leaves no mark beside a JVM. When it has acquired the lock, the next waiter begins anew.
#[test]
fn marks_of_a_waiter_end() {
    let mut client = Client::new(Kind::ReadWrite);
    client.waits(1, READ);
    (0..3).for_each(|_| client.beaten(Mode::Exclusive));
    for _ in 0..31 {
        client.pass(ms(1_001));
        client.reply(BUSY);
    }
    client.pass(ms(1_001));
    assert!(matches!(client.request(), Request::Acquire { how: How::Late, .. }), "{:?}", client.requests);
    client.acquire(2, C, Terms { lease: Some(ms(60_000).into()), ..READ }, Limit::Forever); // it shares no hold
    client.reply(GRANTED);
    client.feed(Event::Seen(t(1)));
    assert!(matches!(client.request(), Request::Acquire { how: How::Wait, .. }), "{:?}", client.requests);
}

/// The lease of the holder is over before the release arrives that follows a refused hand-over. The hand-over has extended nothing, so nobody
/// can know whether the lock was held until the unlock.
#[test]
fn a_refused_hand_over_does_not_extend_the_lease() {
    let mut client = Client::new(Kind::Fenced);
    client.acquire(1, A, Terms { lease: Some(ms(1_000).into()), ..KEPT }, Limit::Forever);
    client.reply(Reply::Granted(Some(Token::of(1))));
    client.feed(Event::Seen(t(1)));
    client.acquire(2, B, KEPT, Limit::Forever);
    client.pass(ms(900));
    client.requests.clear();
    client.unlock(1);
    client.end(|request| matches!(request, Request::HandOver { .. }), |id| Event::Replied(id, Reply::Deeper));
    client.now = client.now + ms(200);
    client.end(is_release, |id| Event::Replied(id, Reply::Gone));
    client.assert_told(1, Outcome::Unconfirmed);
}
