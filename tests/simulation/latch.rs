//! A latch with one client, step by step: who passes, what is sent, and what a thousand waiters cost.

use std::time::Duration;

use crate::{
    lock::{
        Action, Actions, Channel, Config, Cx, Event, How, Limit, LockState, Moment, Outcome, Owner, Reply, Request,
        RequestId, Rules, Terms, Ticket,
    },
    server::Kind,
    world::{rules_of, state_of},
};

const SHUT: Reply = Reply::Busy { left: None, by: crate::lock::Mode::Exclusive, own: None };

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct Client {
    state: LockState,
    config: Config,
    rules: Rules,
    now: Moment,
    requests: Vec<RequestId>,
    sent: usize,
    ended: Vec<(u64, Outcome)>,
    listens: bool,
}

impl Client {
    fn new() -> Client {
        let config = Config {
            watchdog: ms(30_000),
            command_timeout: ms(4_000),
            outage_timeout: ms(30_000),
            handovers: 16,
            round_trip: ms(1),
            publishes: true,
            first_confirmation: None,
        };
        let (state, rules) = (state_of(Kind::Latch), rules_of(Kind::Latch));
        let now = Moment::of_nanos(1 << 40);
        Client { state, config, rules, now, requests: Vec::new(), sent: 0, ended: Vec::new(), listens: false }
    }

    fn feed(&mut self, event: Event) {
        let mut actions = Actions::new();
        let mut cx = Cx { now: self.now, config: &self.config, rules: &self.rules, actions: &mut actions };
        self.state.handle(event, &mut cx);
        self.now = self.now + Duration::from_nanos(1); // no two events at one moment
        for action in actions {
            match action {
                Action::Send(id, Request::Acquire { how: How::Look, .. }) => {
                    self.requests.push(id);
                    self.sent += 1;
                }
                Action::Notify(ticket, outcome) => self.ended.push((ticket.0, outcome)),
                Action::Subscribe(Channel::Name) => self.listens = true,
                Action::Unsubscribe(Channel::Name) => self.listens = false,
                other => panic!("at a latch: {other:?}"),
            }
        }
        assert!(self.requests.len() <= 1, "two requests for one message");
        assert_eq!((self.state.holds().count(), self.state.releasing()), (0, self.unwanted()));
    }

    /// A client that stops does not wait for the reply to a look, and nothing follows from that reply.
    fn stop(&mut self) {
        let sent = std::mem::take(&mut self.requests);
        self.feed(Event::Stop);
        self.assert_over();
        sent.into_iter().for_each(|id| self.feed(Event::Replied(id, Reply::Open)));
        self.assert_over();
    }

    /// A look that no waiter wants anymore.
    fn unwanted(&self) -> usize {
        usize::from(self.state.waiting().0 == 0 && !self.requests.is_empty())
    }

    fn wait(&mut self, ticket: u64, limit: Limit) {
        let terms = Terms::default();
        self.feed(Event::Acquire { ticket: Ticket(ticket), owner: Owner(ticket), terms, limit });
    }

    fn reply(&mut self, reply: Reply) {
        let id = self.requests.remove(0);
        self.feed(Event::Replied(id, reply));
    }

    fn lose(&mut self) {
        let id = self.requests.remove(0);
        self.feed(Event::Unknown(id));
    }

    /// So many waiters that have subscribed and sleep.
    fn asleep(waiters: u64) -> Client {
        let mut client = Client::new();
        (1..=waiters).for_each(|ticket| client.wait(ticket, Limit::Forever));
        client.reply(SHUT);
        assert!(client.listens);
        client.feed(Event::Subscribed(Channel::Name));
        client.reply(SHUT);
        assert!(client.requests.is_empty());
        client
    }

    fn pass(&mut self, time: Duration) {
        let (end, mut served) = (self.now + time, 0);
        while let Some(due) = self.state.due(&self.config).filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.feed(Event::Due);
            served += 1;
            assert!(served < 1_000, "the same timer is due again and again");
        }
        self.now = end;
    }

    fn ended(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.ended)
    }

    fn assert_over(&self) {
        assert!(self.state.is_quiet() && self.state.is_forgotten(self.now) && !self.listens);
    }
}

#[test]
fn an_open_latch_ends_all_waits_in_the_order_of_the_calls() {
    let mut client = Client::asleep(1_000);
    client.feed(Event::Message(Channel::Name));
    assert_eq!(client.sent, 3, "one request for a thousand waiters");
    client.reply(Reply::Open);
    assert_eq!(client.ended(), (1..=1_000).map(|ticket| (ticket, Outcome::Passed)).collect::<Vec<_>>());
    client.assert_over();
}

#[test]
fn messages_during_a_look_are_one_more_look() {
    let mut client = Client::asleep(2);
    (0..5).for_each(|_| client.feed(Event::Message(Channel::Name)));
    assert_eq!(client.requests.len(), 1);
    client.reply(SHUT);
    assert_eq!(client.requests.len(), 1, "it may have been opened since");
    client.reply(SHUT);
    assert!(client.requests.is_empty() && client.ended.is_empty());
}

/// The latch was open when the server looked, perhaps before this call.
#[test]
fn a_reply_counts_for_those_that_called_before_its_request() {
    let mut client = Client::asleep(2);
    client.feed(Event::Message(Channel::Name));
    client.wait(3, Limit::Forever);
    client.reply(Reply::Open);
    assert_eq!(client.ended(), [(1, Outcome::Passed), (2, Outcome::Passed)]);
    assert_eq!((client.requests.len(), client.listens), (1, true), "a look for the third");
    client.reply(SHUT);
    assert!(client.ended().is_empty());
    client.feed(Event::Message(Channel::Name));
    client.reply(Reply::Open);
    assert_eq!(client.ended(), [(3, Outcome::Passed)]);
    client.assert_over();
}

#[test]
fn a_lost_message_costs_five_seconds() {
    let mut client = Client::asleep(2);
    client.pass(ms(4_900));
    assert!(client.requests.is_empty());
    client.pass(ms(200));
    client.reply(Reply::Open);
    assert_eq!(client.ended().len(), 2);
    client.assert_over();
}

#[test]
fn limits_end_after_one_more_look() {
    let mut client = Client::asleep(1);
    let end = client.now + ms(100);
    client.wait(2, Limit::Until(end));
    client.wait(3, Limit::Until(end));
    client.pass(ms(101));
    assert_eq!((client.requests.len(), client.ended().len()), (1, 0));
    client.reply(SHUT);
    assert_eq!(client.ended(), [(2, Outcome::Busy), (3, Outcome::Busy)]);
    client.wait(4, Limit::Until(client.now));
    client.pass(ms(1));
    client.reply(Reply::Open);
    assert_eq!(client.ended(), [(1, Outcome::Passed), (4, Outcome::Passed)]);
    client.assert_over();
}

/// The reply to a look that was sent before the limit says nothing about the limit: the latch may have been opened in between. The waiter has
/// time for another look, however late that reply was.
#[test]
fn a_look_before_the_limit_does_not_end_the_wait() {
    for (last, outcome) in [(Reply::Open, Outcome::Passed), (SHUT, Outcome::Busy)] {
        let mut client = Client::asleep(1);
        client.wait(2, Limit::Until(client.now + ms(50)));
        client.feed(Event::Message(Channel::Name));
        client.pass(ms(140)); // its limit has ended, and most of the time for the last reply
        client.wait(3, Limit::Once);
        client.reply(SHUT);
        assert_eq!((client.ended(), client.requests.len()), (Vec::new(), 1));
        client.pass(ms(90));
        client.reply(last);
        let waiting = client.ended().into_iter().filter(|(ticket, _)| *ticket > 1);
        assert_eq!(waiting.collect::<Vec<_>>(), [(2, outcome), (3, outcome)]);
    }
}

/// Without a reply to the last look the wait ends all the same.
#[test]
fn the_last_look_is_the_last() {
    let mut client = Client::asleep(1);
    client.wait(2, Limit::Until(client.now + ms(50)));
    client.feed(Event::Message(Channel::Name));
    client.pass(ms(60));
    client.reply(SHUT);
    client.pass(ms(99));
    assert!(client.ended().is_empty());
    client.pass(ms(2));
    assert_eq!(client.ended(), [(2, Outcome::Unavailable)]);
}

#[test]
fn a_wait_that_was_dropped_leaves_nothing() {
    let mut client = Client::new();
    client.wait(1, Limit::Forever);
    client.feed(Event::Dropped(Ticket(1)));
    client.lose(); // the server may have run it
    client.assert_over();
    client.wait(2, Limit::Forever);
    client.lose();
    client.feed(Event::Dropped(Ticket(2)));
    client.assert_over();
    let mut client = Client::asleep(1);
    client.feed(Event::Dropped(Ticket(1)));
    client.assert_over();
}

#[test]
fn an_outage_ends_each_wait_after_its_own_time() {
    let mut client = Client::asleep(1);
    client.feed(Event::Reconnected);
    let since = client.now;
    let mut times = Vec::new();
    let mut second = Some(2);
    while client.now < since + ms(60_000) && times.len() < 2 {
        if client.now > since + ms(10_000) {
            second.take().into_iter().for_each(|ticket| client.wait(ticket, Limit::Forever));
        }
        if client.requests.is_empty() {
            client.pass(ms(50));
        } else {
            client.lose();
        }
        let now = client.now;
        times.extend(client.ended().into_iter().map(|(ticket, outcome)| (ticket, outcome, now.since(since).as_secs())));
    }
    assert_eq!(times, [(1, Outcome::Unavailable, 30), (2, Outcome::Unavailable, 40)]);
    if !client.requests.is_empty() {
        client.lose();
    }
    client.assert_over();
}

/// Nothing is left of a look, so nobody waits for its reply.
#[test]
fn a_client_that_stops_waits_for_no_look() {
    for has_left in [false, true] {
        let mut client = Client::new();
        client.wait(1, Limit::Forever);
        if has_left {
            client.feed(Event::Dropped(Ticket(1)));
        }
        assert!(!client.state.is_quiet());
        client.stop();
    }
}

#[test]
fn a_refusal_ends_all_waits_and_so_does_a_client_that_stops() {
    let mut client = Client::asleep(3);
    client.feed(Event::Message(Channel::Name));
    client.reply(Reply::Conflict);
    assert_eq!(client.ended(), [1, 2, 3].map(|ticket| (ticket, Outcome::Refused)));
    assert!(client.requests.is_empty());
    client.wait(4, Limit::Forever);
    client.stop();
    assert_eq!(client.ended(), [(4, Outcome::Closed)]);
    client.wait(5, Limit::Forever);
    assert_eq!(client.ended(), [(5, Outcome::Closed)]);
    client.assert_over();
}
