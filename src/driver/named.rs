//! One name: the state of its lock behind one mutex, and what follows from each event.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::Waker,
    time::Duration,
};

use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;

use super::{
    calls::{AcquiredHow, CallResult, Calls, Cause, Notice, Polled},
    channels::{Messages, NameChannels},
    notes::{ModeGauges, NameGauges, Note},
    reports::Reporter,
    shared::{self, Shared},
    timers::TimerKey,
    translate::{from_machine, lost, now},
    watchers::Watchers,
    wire::{Field, Replied, Sending, is_new, mode_of},
};
use crate::{
    clock,
    config::Name,
    error::{Blocked, Source},
    events::{AcquiredBy, Subject},
    kind::Kind,
    lock::{
        Action, Actions, Channel, Cx, Event, HoldId, How, LockState, Mode, Moment, Numbers, Outcome, Reply, Request,
        RequestId, Ticket, earliest,
    },
    owner::may_have_spawned,
    redis::{Answer, Code, Fault, Later, Listener, OnReply, PendingRequest, Subscription, Urgency},
    sync::{std, tokio},
};

/// A name that nobody uses is remembered for this long if its machine wants to.
const REMEMBERED: Duration = Duration::from_secs(10);

/// The names of one client, and what they share.
pub(crate) type Driver = Shared<NamedLock>;
pub(crate) type DriverErrand = shared::Errand<NamedLock>;
pub(crate) type DriverWork = shared::Work<NamedLock>;

/// One name of one kind of lock, in one client. Reading and writing are two kinds of one lock.
pub(crate) struct NamedLock {
    this: Weak<NamedLock>,
    pub(super) driver: Arc<Driver>,
    pub(super) name: Name,
    /// Of exclusive holds; [`Kind::of_mode`] has the others.
    pub(super) kind: &'static Kind,
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) state: LockState,
    pub(super) calls: Calls,
    pub(super) watchers: Watchers,
    /// The last ticket.
    tickets: u64,
    timer: Option<TimerKey>,
    channels: NameChannels,
    /// The last attempt for a new hold: its id, and why it was sent.
    attempt: Option<(HoldId, AcquiredBy)>,
    said: Option<Box<Said>>,
    reporter: Reporter,
    gauges: NameGauges,
    /// It is no longer in the client's map, and a caller that finds it makes a new one.
    is_forgotten: bool,
}

/// The server's last words about a name, for errors and logs. Most names need none of them.
#[derive(Default)]
struct Said {
    /// The reason for which the last request has failed.
    trouble: Option<Cause>,
    /// The holder that it named last.
    holder: Option<Box<str>>,
}

/// A request that got a reply, or has failed, and the event that this is.
struct EndedRequest<'a> {
    request: &'a Request,
    event: Event,
    replied: Replied,
}

/// What is done after the mutex is unlocked.
#[derive(Default)]
struct Effects {
    notices: SmallVec<[Notice; 2]>,
    /// Of requests.
    later: SmallVec<[Later; 1]>,
    /// Requests that replicas must confirm.
    replicated: SmallVec<[SentRequest; 1]>,
    notes: SmallVec<[Note; 3]>,
    yields: bool,
    /// A waiter has acquired the permits of [`Event::GiveBack`].
    passed_on: bool,
    /// The name is no longer in the client's map.
    forgets: bool,
    /// To be subscribed, or no longer.
    channels: Vec<Channel>,
}

impl NamedLock {
    pub(super) fn new(driver: &Arc<Driver>, name: &Name, kind: &'static Kind) -> Arc<NamedLock> {
        let inner = Inner {
            state: new_state(driver, kind),
            calls: Calls::default(),
            watchers: Watchers::default(),
            tickets: 0,
            timer: None,
            channels: NameChannels::default(),
            attempt: None,
            said: None,
            reporter: Reporter::default(),
            gauges: NameGauges::default(),
            is_forgotten: false,
        };
        Arc::new_cyclic(|this| NamedLock {
            this: Weak::clone(this),
            driver: Arc::clone(driver),
            name: name.clone(),
            kind,
            inner: Mutex::new(inner),
        })
    }

    fn this(&self) -> Arc<NamedLock> {
        self.this.upgrade().expect("a method of it is running")
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of a hold of this mode.
    pub(super) fn subject(&self, mode: Mode) -> Subject<'_> {
        Subject { kind: self.kind.of_mode(mode).rules.label, name: &self.name }
    }

    /// The field of a hold on the server.
    pub(super) fn field(&self, hold: HoldId, mode: Mode) -> Box<str> {
        let (client, kind, key) = (&*self.driver.client, self.kind.of_mode(mode), &**self.name.key());
        Field { client, kind, key, hold }.to_string().into()
    }

    // ---- events ----

    /// Reports an event.
    pub(super) fn tell(&self, event: Event) {
        self.with(|inner, fed| inner.handle(self, event, fed));
    }

    /// Does `work` under the mutex, then what follows from the events that it reports.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Inner, &mut Fed<'_>) -> T) -> T {
        let mut effects = Effects::default();
        let result = work(&mut self.inner(), &mut Fed { request: None, effects: &mut effects });
        self.carry_out(effects);
        result
    }

    fn carry_out(&self, effects: Effects) {
        if effects.notes.iter().any(|note| matches!(note, Note::StillWaiting { .. })) {
            self.driver.slow.notify_one();
        }
        // First, so that a caller that is woken sees its own call in the statistics.
        effects.notes.into_iter().for_each(|note| note.say(self.kind, &self.name, &self.driver.counters));
        effects.notices.into_iter().for_each(Notice::give);
        effects.later.into_iter().for_each(Later::go);
        for sent in effects.replicated {
            self.driver.spawn(sent.send_replicated());
        }
        if effects.yields {
            let lock = self.this();
            self.driver.spawn(async move {
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                lock.tell(Event::Yielded);
            });
        }
        effects.channels.into_iter().for_each(|channel| self.settle_messages(channel));
        if effects.forgets {
            self.driver.notify_forgotten();
        }
    }

    /// A request got a reply, or has failed.
    pub(super) fn replied(&self, id: RequestId, request: &Request, replied: Replied) {
        let ended = self.ended(id, request, replied);
        self.with(|inner, fed| inner.replied(self, ended, fed));
    }

    fn ended<'a>(&self, id: RequestId, request: &'a Request, replied: Replied) -> EndedRequest<'a> {
        let event = match replied.event(id, request, self.driver.config.replicas) {
            Event::Replied(id, Reply::Released { receivers }) => {
                Event::Replied(id, Reply::Released { receivers: self.others(receivers) })
            }
            event => event,
        };
        EndedRequest { request, event, replied }
    }

    /// The number of receivers of a message for all that are not this client. Without messages, there may always be one.
    fn others(&self, receivers: u32) -> u32 {
        let hears = receivers > 0 && self.driver.redis.hears(&self.kind.channel(self.name.key()));
        receivers - u32::from(hears)
    }

    /// True if the next waiter acquires permits that a caller returns.
    pub(super) fn give_back(&self, permits: u16) -> bool {
        self.with(|inner, fed| {
            inner.handle(self, Event::GiveBack(permits), fed);
            fed.effects.passed_on
        })
    }

    /// The time has come for which the timer was set.
    pub(super) fn due(&self, key: TimerKey) {
        self.with(|inner, fed| {
            inner.timer.take_if(|timer| *timer == key);
            inner.handle(self, Event::Due, fed);
        });
    }

    // ---- requests ----

    fn sending(&self, request: Request) -> Sending<'_> {
        let (key, client) = (self.name.key(), &*self.driver.client);
        let receipt = *self.driver.config.receipt().lasts;
        Sending { kind: self.kind, key, client, receipt, request, publish: self.driver.redis.publish() }
    }

    // ---- messages ----

    /// Subscribes or unsubscribes until that is what the state wants. One thread at a time does it for one channel.
    fn settle_messages(&self, channel: Channel) {
        let mut has_subscribed = false;
        loop {
            let mut inner = self.inner();
            let wants = inner.state.wants_messages(channel);
            match inner.channels.begin_change(channel) {
                Some(Messages::None) if wants => {
                    drop(inner);
                    let subscription = self.subscribe(channel);
                    if self.settled(channel, subscription) {
                        self.subscribed(channel);
                    }
                    has_subscribed = true;
                }
                Some(Messages::Subscribed(subscription)) if !wants => {
                    drop(inner);
                    drop(subscription);
                    self.inner().channels.settled(channel, Messages::None);
                }
                Some(Messages::None) => {
                    inner.channels.remove(channel);
                    let forgets = inner.forget_if_unused(self, now());
                    drop(inner);
                    return if forgets {
                        self.driver.notify_forgotten();
                    };
                }
                Some(settled) => {
                    inner.channels.settled(channel, settled);
                    let is_live = inner.channels.subscription(channel).is_some_and(Subscription::is_live);
                    drop(inner);
                    // The state gave the subscription up, and wants it again before that was done. It takes it for a new one.
                    return if is_live && !has_subscribed {
                        self.subscribed(channel);
                    };
                }
                None => return,
            }
        }
    }

    /// True if messages arrive already.
    fn settled(&self, channel: Channel, subscription: Messages) -> bool {
        let mut inner = self.inner();
        let unused = inner.channels.settled(channel, subscription);
        let is_live = inner.channels.subscription(channel).is_some_and(Subscription::is_live);
        drop(inner);
        drop(unused); // after the mutex is unlocked
        is_live
    }

    fn subscribe(&self, channel: Channel) -> Messages {
        let name = self.kind.channel(self.name.key());
        let redis = &self.driver.redis;
        Messages::Subscribed(match channel {
            Channel::Name => redis.listen(&name, self.this()),
            Channel::Place(id) => {
                let listener = PlaceListener { lock: self.this(), id };
                redis.listen(&format!("{name}:{}", self.field(id, Mode::Exclusive)), Arc::new(listener))
            }
        })
    }

    /// Messages may have been missed. From now on they arrive, or not.
    fn subscribed(&self, channel: Channel) {
        self.with(|inner, fed| {
            let Some(subscription) = inner.channels.subscription(channel) else { return };
            let is_live = subscription.is_live();
            let event = if is_live { Event::Subscribed(channel) } else { Event::Unsubscribed(channel) };
            inner.handle(self, event, fed);
        });
    }
}

/// A request under way. It must end, even if the runtime of the client ends.
struct SentRequest {
    lock: Arc<NamedLock>,
    id: RequestId,
    request: Option<Request>,
    publish: &'static str,
}

impl SentRequest {
    fn sending(&self) -> Sending<'_> {
        let request = self.request.expect("`end` takes it, and this with it");
        Sending { publish: self.publish, ..self.lock.sending(request) }
    }

    fn replied(self, answer: Result<Answer, Fault>) {
        let replied = answer.map_or_else(Replied::Failed, |answer| self.sending().read(&answer));
        self.end(replied);
    }

    /// A task waits for the replicas.
    async fn send_replicated(self) {
        let driver = Arc::clone(&self.lock.driver);
        let wanted = driver.config.replicas;
        let (script, part) = self.sending().part();
        let limit = driver.request_limit();
        match clock::within(limit, driver.redis.replicated(script, part, wanted)).await {
            Some(Ok((answer, got))) if answer.code == Code::Granted && got < wanted => {
                self.end(Replied::TooFewReplicas(got));
            }
            Some(answered) => self.replied(answered.map(|(answer, _)| answer)),
            None => {
                let trouble = driver.redis.trouble(self.lock.name.key(), None);
                self.end(Replied::Failed(Fault::Unknown(trouble)));
            }
        }
    }

    fn end(mut self, replied: Replied) {
        if let Some(request) = self.request.take() {
            self.lock.replied(self.id, &request, replied);
        }
    }
}

impl Drop for SentRequest {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            let fault = Fault::unknown("the task of this request has ended");
            self.lock.replied(self.id, &request, Replied::Failed(fault));
        }
    }
}

impl Listener for NamedLock {
    fn message(&self, _: &str) {
        self.tell(Event::Message(Channel::Name));
    }

    fn subscribed(&self) {
        self.subscribed(Channel::Name);
    }
}

/// Receives the messages for one place in a queue on the server.
#[derive(Debug)]
struct PlaceListener {
    lock: Arc<NamedLock>,
    id: HoldId,
}

impl Listener for PlaceListener {
    fn message(&self, _: &str) {
        self.lock.tell(Event::Message(Channel::Place(self.id)));
    }

    fn subscribed(&self) {
        self.lock.subscribed(Channel::Place(self.id));
    }
}

/// What follows from an event.
pub(super) struct Fed<'a> {
    /// The request that the event is the end of.
    request: Option<Request>,
    effects: &'a mut Effects,
}

impl Inner {
    pub(super) fn next_ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// What a caller gets when it polls. If it acquired the lock, it knows that from here on.
    pub(super) fn poll_call(&mut self, ticket: Ticket, waker: &Waker) -> Polled {
        let mut polled = self.calls.poll(ticket, waker);
        if let Polled::Ended(ended) = &mut polled
            && ended.result.outcome == Outcome::Acquired
            && self.state.note_seen(ticket, now())
        {
            ended.acquired = self.state.hold_of(ticket);
        }
        polled
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.is_forgotten
    }

    fn replied(&mut self, lock: &NamedLock, ended: EndedRequest<'_>, fed: &mut Fed<'_>) {
        let EndedRequest { request, event, replied } = ended;
        self.note(replied);
        fed.request = Some(*request);
        fed.effects.notes.extend(reply_note(&event, request).or_else(|| self.failure_note(&event, request)));
        self.handle(lock, event, fed);
        self.note_position(&event, request);
    }

    /// Feeds the state machine, and does what it says as far as that belongs under the mutex.
    pub(super) fn handle(&mut self, lock: &NamedLock, event: Event, fed: &mut Fed<'_>) {
        let (config, mut actions) = (lock.driver.machine_config(), Actions::new());
        let now = now();
        let mut cx = Cx { now, config: &config, rules: &lock.kind.rules.machine, actions: &mut actions };
        self.state.handle(event, &mut cx);
        for action in actions.drain(..) {
            self.act(lock, action, &event, now, fed);
        }
        self.count(fed);
        if let Some(note) = self.report(lock, now) {
            fed.effects.notes.push(note);
        }
        self.arm(lock, now, &config);
        fed.effects.forgets |= self.forget_if_unused(lock, now);
    }

    fn act(&mut self, lock: &NamedLock, action: Action, event: &Event, now: Moment, fed: &mut Fed<'_>) {
        match action {
            Action::Send(id, request) => self.send(lock, (id, request), event, fed),
            Action::Notify(ticket, outcome) => {
                let result = self.result(ticket, outcome, event, fed.request);
                fed.effects.notices.extend(self.calls.end(ticket, result));
            }
            Action::Lost(guard, _) => fed.effects.notices.extend(self.watchers.take_of(guard.0)),
            Action::Left { mode, since } => fed.effects.notes.push(Note::HeldFor(mode, now.since(since))),
            Action::Ended(mode, loss) => {
                let ended = loss.map(|loss| (lost(loss), self.trouble_now()));
                fed.effects.notes.push(Note::Ended(mode, ended));
            }
            Action::Subscribe(channel) => {
                self.channels.add(channel);
                fed.effects.channels.push(channel);
            }
            Action::Unsubscribe(channel) => fed.effects.channels.push(channel),
            Action::PassedOn => fed.effects.passed_on = true,
            Action::Yield => fed.effects.yields = true,
        }
    }

    /// Sends a request under the mutex, so the requests of a name are sent in the order in which its state made them.
    fn send(&mut self, lock: &NamedLock, (id, request): (RequestId, Request), event: &Event, fed: &mut Fed<'_>) {
        self.note_attempt(&request, event);
        let (driver, sending) = (&lock.driver, lock.sending(request));
        let sent = SentRequest { lock: lock.this(), id, request: Some(request), publish: sending.publish };
        if driver.config.replicas > 0 && is_new(&request) && !driver.is_abandoned() {
            return fed.effects.replicated.push(sent);
        }
        let (script, part) = sending.part();
        let urgency = match request {
            _ if self.trouble().is_some_and(Cause::is_a_refusal) => Urgency::Last,
            Request::Renew { .. } if !matches!(event, Event::Check { .. }) => Urgency::Gathered,
            _ => Urgency::Now,
        };
        let request = PendingRequest::new(script, part, urgency, OnReply::new(|answer| sent.replied(answer)));
        if driver.is_abandoned() {
            driver.set_abandoned(); // a forked process knows it from now on, and has the same socket as the other
            return fed.effects.later.push(Later::Failed(Box::new(request), Fault::Abandoned));
        }
        fed.effects.later.extend(driver.redis.submit(request));
    }

    fn note_attempt(&mut self, request: &Request, event: &Event) {
        let Request::Acquire { id, how, .. } = request else { return };
        if *how == How::Again {
            return;
        }
        let by = match event {
            Event::Acquire { .. } => AcquiredBy::FirstTry,
            Event::Due => AcquiredBy::Timer,
            _ => AcquiredBy::Woken,
        };
        let is_retry = self.attempt.is_some_and(|(last, _)| last == *id);
        if !self.channels.note_sent(*id, by) && !is_retry {
            self.attempt = Some((*id, by));
        }
    }

    /// Why the request that was granted was sent.
    fn sent(&self, request: Option<Request>) -> AcquiredBy {
        let place = match request {
            Some(Request::Acquire { id, .. }) => self.channels.sent(id),
            _ => None,
        };
        place.or(self.attempt.map(|(_, by)| by)).unwrap_or(AcquiredBy::FirstTry)
    }

    fn note_position(&mut self, event: &Event, request: &Request) {
        if let (Event::Replied(_, Reply::Queued { place, .. }), Request::Acquire { id, .. }) = (event, request) {
            self.channels.note_position(*id, *place);
        }
    }

    /// The position of this waiter in the queue on the server, 1 for the next one.
    fn position(&self, waiter: Ticket) -> Option<u64> {
        self.channels.position(self.state.place_of(waiter)?)
    }

    fn result(&self, ticket: Ticket, outcome: Outcome, event: &Event, request: Option<Request>) -> CallResult {
        let way = match event {
            _ if self.state.is_nested(ticket) => AcquiredHow::Nested,
            Event::Replied(_, Reply::Granted(_)) => AcquiredHow::First(self.sent(request)),
            _ => AcquiredHow::First(AcquiredBy::HandedOver),
        };
        let is_explained =
            matches!(outcome, Outcome::Refused | Outcome::Unavailable | Outcome::Unconfirmed | Outcome::TooFewReplicas);
        let cause = match () {
            _ if outcome == Outcome::Unavailable && self.state.is_behind_own_release() => {
                Some(Box::new(Cause::OwnRelease))
            }
            _ => self.trouble().filter(|_| is_explained).cloned().map(Box::new),
        };
        CallResult { outcome, way, cause }
    }

    fn trouble(&self) -> Option<&Cause> {
        self.said.as_ref()?.trouble.as_ref()
    }

    /// Why the last request has failed, if it has.
    pub(super) fn trouble_now(&self) -> Option<Source> {
        self.trouble().and_then(Cause::source)
    }

    /// Keeps what explains later errors.
    fn note(&mut self, replied: Replied) {
        let cause = match replied {
            Replied::Reply(Reply::Conflict, _) => Cause::Fault(Fault::Conflict),
            Replied::Reply(_, holder) => return self.note_reply(holder),
            Replied::TooFewReplicas(got) => Cause::Replicas(got),
            Replied::Failed(fault) => Cause::Fault(fault),
        };
        self.said.get_or_insert_default().trouble = Some(cause);
    }

    fn note_reply(&mut self, holder: Option<Box<str>>) {
        if let Some(said) = &mut self.said {
            said.trouble = None;
        }
        if holder.is_some() {
            self.said.get_or_insert_default().holder = holder;
        }
    }

    // ---- statistics and logs ----

    /// What is to be logged now about the first waiter.
    fn report(&mut self, lock: &NamedLock, now: Moment) -> Option<Note> {
        let (first, slow) = (self.state.first_waiter(), lock.driver.config.slow_wait);
        let (ticket, waited) = self.reporter.report(first, slow, now)?;
        let (holder, by_this_client) = self.holder_now(lock);
        let may_wait_for_it = self.may_be_awaited_by_a_holder();
        Some(Note::StillWaiting { waited, holder, by_this_client, place: self.position(ticket), may_wait_for_it })
    }

    /// True if a holder may have spawned the task that is the first waiter.
    fn may_be_awaited_by_a_holder(&self) -> bool {
        let Some((_, (waiter, _), _)) = self.state.waiters().next() else { return false };
        self.state.held_by().any(|(_, holder)| may_have_spawned(holder.0, waiter.0))
    }

    /// This wait is one of a circle. `fails`: it ends, as if its caller had left, and the caller gets an error. Nothing happens if it waits no
    /// longer: then there is no circle.
    pub(super) fn is_deadlocked(
        &mut self,
        lock: &NamedLock,
        (ticket, circle, fails): (Ticket, &Arc<[Blocked]>, bool),
        fed: &mut Fed<'_>,
    ) {
        if !self.state.is_waiting(ticket) {
            return;
        }
        fed.effects.notes.push(Note::Deadlock { circle: Arc::clone(circle), fails });
        if fails {
            self.handle(lock, Event::Dropped(ticket), fed);
            let cause = Some(Box::new(Cause::Deadlock(Arc::clone(circle))));
            let way = AcquiredHow::First(AcquiredBy::FirstTry);
            fed.effects.notices.extend(self.calls.end(ticket, CallResult { outcome: Outcome::Refused, way, cause }));
        }
    }

    /// What is to be logged about a failed request.
    fn failure_note(&self, event: &Event, request: &Request) -> Option<Note> {
        match (request, event) {
            (Request::Renew { .. }, Event::Unknown(_) | Event::Unclear(_) | Event::NotNow(_) | Event::Refused(_)) => {
                self.trouble_now().filter(|_| self.state.holds().next().is_some()).map(Note::NotRenewed)
            }
            (Request::Release { .. }, Event::Refused(_)) => self.trouble_now().map(Note::NotReleased),
            _ => None,
        }
    }

    /// True if a warning about this waiter was logged.
    pub(super) fn has_reported(&self, ticket: Ticket) -> bool {
        self.reporter.has_reported(ticket)
    }

    /// The holder, and whether it is of this client: else the server has named it last.
    pub(super) fn holder_now(&self, lock: &NamedLock) -> (Option<Box<str>>, bool) {
        match self.state.holds().next() {
            Some(((hold, mode), _)) => (Some(lock.field(hold, mode)), true),
            None => (self.named_holder().map(Box::from), false),
        }
    }

    /// The holder that the server has named last.
    pub(super) fn named_holder(&self) -> Option<&str> {
        self.said.as_ref()?.holder.as_deref()
    }

    fn count(&mut self, fed: &mut Fed<'_>) {
        if self.is_forgotten {
            return;
        }
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let of = |holds, mode| ModeGauges { holds: small(holds), waiting: small(self.state.waiting_of(mode)) };
        let (exclusive, shared) = self.state.guarded();
        let now = NameGauges {
            exclusive: of(exclusive, Mode::Exclusive),
            shared: of(shared, Mode::Shared),
            releasing: small(self.state.releasing()),
        };
        let before = mem::replace(&mut self.gauges, now);
        if before != now {
            fed.effects.notes.push(Note::Gauges { before, now });
        }
    }

    // ---- time ----

    fn arm(&mut self, lock: &NamedLock, now: Moment, config: &crate::lock::Config) {
        if self.is_forgotten {
            return; // nothing is left to do, and the timer would keep it
        }
        let due = self.state.due(config);
        let soon = self.state.next_confirmation().filter(|at| *at > now);
        let remembered = self.state.is_quiet().then(|| clock::Moment::now() + REMEMBERED);
        let report = self.reporter.due(self.state.first_waiter(), lock.driver.config.slow_wait);
        let of_machine = earliest([due, soon, report]).map(from_machine);
        let Some(at) = earliest([of_machine, remembered]) else { return };
        if self.timer.is_some_and(|(set, _)| set <= at) {
            return;
        }
        let timers = &lock.driver.timers;
        self.timer.take().into_iter().for_each(|timer| timers.remove(timer));
        self.timer = Some(timers.add(at, &lock.this()));
    }

    /// True if the name was forgotten. [`notify_forgotten`](Shared::notify_forgotten) follows after the mutex is unlocked.
    fn forget_if_unused(&mut self, lock: &NamedLock, now: Moment) -> bool {
        let is_unused = self.state.is_forgotten(now) || self.state.is_quiet() && lock.driver.is_stopping();
        if !is_unused || self.is_forgotten || !self.channels.is_empty() {
            return false;
        }
        self.is_forgotten = true;
        self.timer.take().into_iter().for_each(|timer| lock.driver.timers.remove(timer));
        lock.driver.forget(&(Arc::clone(lock.name.key()), lock.kind), lock, self.state.numbers().used());
        true
    }
}

impl NamedLock {
    /// The client ends. The gauges of this name go down.
    pub(super) fn end(&self) {
        let mut inner = self.inner();
        let before = mem::take(&mut inner.gauges);
        inner.is_forgotten = true;
        let notices = inner.calls.end_all();
        let timer = inner.timer.take();
        let channels = mem::take(&mut inner.channels);
        drop(inner);
        drop(channels); // a listener keeps this name
        timer.into_iter().for_each(|timer| self.driver.timers.remove(timer));
        notices.into_iter().for_each(Notice::give);
        Note::Gauges { before, now: NameGauges::default() }.say(self.kind, &self.name, &self.driver.counters);
    }

    /// Releases the hold of a guard that was dropped. Its token is cancelled if the lock was lost before.
    pub(super) fn drop_guard(&self, guard: Ticket, token: Option<CancellationToken>) {
        self.with(|inner, fed| match token {
            None => inner.handle(self, Event::Dropped(guard), fed),
            Some(token) => {
                inner.calls.begin_left(guard, token, now());
                inner.handle(self, Event::Unlock(guard), fed);
            }
        });
    }
}

fn new_state(driver: &Driver, kind: &'static Kind) -> LockState {
    let numbers = Numbers::after(driver.used());
    let mut state = LockState::new(&kind.rules.machine, numbers);
    if let Some(event) = driver.life_event() {
        let (config, rules, mut actions) = (driver.machine_config(), &kind.rules.machine, Actions::new());
        state.handle(event, &mut Cx { now: now(), config: &config, rules, actions: &mut actions });
    }
    state
}

impl std::fmt::Debug for NamedLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamedLock")
            .field("name", &&*self.name)
            .field("kind", &self.kind.rules.label)
            .finish_non_exhaustive()
    }
}

/// What the statistics count of a reply.
fn reply_note(event: &Event, request: &Request) -> Option<Note> {
    match event {
        Event::Replied(_, Reply::Busy { .. } | Reply::Queued { .. }) => Some(Note::Refused(mode_of(request))),
        Event::Replied(_, Reply::Kept { .. }) if matches!(request, Request::Renew { .. }) => {
            Some(Note::Renewed(mode_of(request)))
        }
        _ => None,
    }
}
