//! The values that go into and come out of a [`LockState`](super::LockState).

use std::{fmt, num::NonZeroU64, ops::Add, time::Duration};

use smallvec::SmallVec;

/// A number below `u64::MAX`. An `Option` of it has eight bytes, and each held lock has several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Small(NonZeroU64);

impl Small {
    /// The greatest there is, if this one is too great.
    const fn of(number: u64) -> Small {
        match NonZeroU64::new(number.wrapping_add(1)) {
            Some(one_more) => Small(one_more),
            None => Small(NonZeroU64::MAX),
        }
    }

    const fn get(self) -> u64 {
        self.0.get() - 1
    }
}

impl fmt::Debug for Small {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A point in time on this client's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(Small);

impl Moment {
    pub(crate) const ZERO: Moment = Moment::of_nanos(0);
    pub(crate) const FAR: Moment = Moment::of_nanos(u64::MAX);

    pub(crate) const fn of_nanos(nanos: u64) -> Moment {
        Moment(Small::of(nanos))
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.nanos().saturating_sub(earlier.nanos()))
    }

    /// The last multiple of `grid` before it, so that one call can renew holds that were acquired at different moments.
    pub(crate) fn floor(self, grid: Duration) -> Moment {
        Moment::of_nanos(self.nanos() - self.nanos() % (grid.as_nanos() as u64).max(1))
    }
}

/// The first of the times that there are.
pub(crate) fn earliest<T: Ord, const N: usize>(times: [Option<T>; N]) -> Option<T> {
    let sooner = |first: Option<T>, time: Option<T>| match (first, time) {
        (Some(first), Some(time)) => Some(first.min(time)),
        (first, time) => first.or(time),
    };
    times.into_iter().fold(None, sooner)
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, time: Duration) -> Moment {
        Moment::of_nanos(self.nanos().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A time that is not zero, in nanoseconds. An `Option` of it has eight bytes: thousands of waiters keep three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Nanos(NonZeroU64);

impl Nanos {
    /// At least a nanosecond, and at most 584 years.
    pub(crate) const fn of(time: Duration) -> Nanos {
        let nanos = time.as_nanos();
        match NonZeroU64::new(nanos as u64) {
            _ if nanos > u64::MAX as u128 => Nanos(NonZeroU64::MAX),
            Some(nanos) => Nanos(nanos),
            None => Nanos(NonZeroU64::MIN),
        }
    }
}

impl From<Duration> for Nanos {
    fn from(time: Duration) -> Nanos {
        Nanos::of(time)
    }
}

impl From<Nanos> for Duration {
    fn from(time: Nanos) -> Duration {
        Duration::from_nanos(time.0.get())
    }
}

/// One call that acquires the lock, and later its guard. Tickets grow: their order is the order of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

impl Ticket {
    /// No call has a later one.
    pub(crate) const LAST: Ticket = Ticket(u64::MAX);
}

/// One request that was sent. A retry has a new id, so the late reply to an earlier try is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(Small);

impl RequestId {
    /// Before all requests.
    pub(crate) const FIRST: RequestId = RequestId(Small::of(0));
}

/// The field of a hold on the server, without the client's own part. Ids are never reused. The id of a hold of permits also says how many
/// it has, so that each request about it names all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HoldId(pub(crate) u64);

/// The last bits of the id of a hold of permits are their number.
const PERMIT_BITS: u32 = 14;
/// The most permits of one hold. The server touches each of them at each renewal.
pub(crate) const MOST_PERMITS: u16 = 10_000;

impl HoldId {
    /// Of a lock, which has no permits, the id is the number.
    fn of(number: u64, permits: u16) -> HoldId {
        if permits == 0 { HoldId(number) } else { HoldId(number << PERMIT_BITS | u64::from(permits)) }
    }

    /// The number of this hold of permits, and how many it has.
    pub(crate) fn of_permits(self) -> (u64, u16) {
        (self.0 >> PERMIT_BITS, (self.0 & ((1 << PERMIT_BITS) - 1)) as u16)
    }
}

/// An owner may re-enter a lock that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner(pub(crate) u64);

/// A fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(Small);

impl Token {
    pub(crate) const fn of(number: u64) -> Token {
        Token(Small::of(number))
    }

    pub(crate) const fn get(self) -> u64 {
        self.0.get()
    }
}

/// How a lock is held: by one owner, as a plain lock or by a writer, or by several at once, as by readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Mode {
    #[default]
    Exclusive,
    Shared,
}

/// What a request is for: it serves each waiter that demands the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Demand {
    pub(crate) mode: Mode,
    /// 0: it is a lock.
    pub(crate) permits: u16,
}

impl Demand {
    /// True if the other may be granted where this one is refused: a reader may enter where a writer may not, and fewer permits may be free.
    pub(crate) fn is_harder_than(self, other: Demand) -> bool {
        self.mode < other.mode || self.permits > other.permits
    }

    /// True if no other owner joins its hold, as readers do.
    pub(crate) fn is_for_one(self) -> bool {
        self.mode == Mode::Exclusive || self.permits > 0
    }
}

/// Where a message about a release arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Channel {
    /// For all waiters.
    Name,
    /// For the waiter with this place in the queue on the server.
    Place(HoldId),
}

/// The settings of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Terms {
    pub(crate) mode: Mode,
    /// A fixed lease. `None`: the client renews the lease.
    pub(crate) lease: Option<Nanos>,
    pub(crate) max_hold: Option<Nanos>,
    /// The lock stays held for at least this long after it was acquired.
    pub(crate) min_hold: Option<Nanos>,
    /// Of a semaphore: all or none of so many. 0: it is a lock.
    pub(crate) permits: u16,
}

impl Terms {
    /// The lease that is requested. It covers `min_hold`, so that the lock stays held if its holder dies.
    pub(crate) fn requested_lease(&self, config: &Config) -> Duration {
        self.lease.map_or(config.watchdog, Duration::from).max(self.min_hold.map_or(Duration::ZERO, Duration::from))
    }

    /// True if a lease that was requested for another call may stay with this one. If the process died, the lock would stay held for a
    /// longer one. A fixed lease is not even as long as the watchdog's if that is longer.
    pub(crate) fn accepts_lease(&self, lease: Duration, config: &Config) -> bool {
        let least = if self.lease.is_some() { Duration::ZERO } else { config.watchdog };
        lease <= self.requested_lease(config).max(least)
    }

    /// `max_hold` ends a hold then that was requested at `sent`.
    pub(crate) fn cap(&self, sent: Moment) -> Moment {
        self.max_hold.map_or(Moment::FAR, |max| sent + max.into())
    }

    pub(crate) fn demand(&self) -> Demand {
        Demand { mode: self.mode, permits: self.permits }
    }

    /// True if a hold that was acquired for another call serves as well.
    pub(crate) fn accepts_any_hold(&self) -> bool {
        self.lease.is_none() && self.min_hold.is_none()
    }
}

/// How long a call waits while another owner holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Limit {
    Once,
    Until(Moment),
    Forever,
}

/// The delay that each of thousands of tasks that wake at once adds to a reply, on a machine that is also busy with other work. With 50 µs,
/// beside twelve processes on two cores, one in twenty of a thousand tasks got an error.
const A_TASK: Duration = Duration::from_micros(200);
/// The least time for the last reply. A busy machine, or a server that forks, delays it by tens of milliseconds. An error would tell the caller
/// less than a reply that is this late.
const LEAST_LAST_REPLY: Duration = Duration::from_millis(100);
/// The longest, however many waiters there are, and however slow the replies of a server were that has just come back.
const LONGEST_LAST_REPLY: Duration = Duration::from_secs(1);

/// The settings of the client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Config {
    /// The lease of a lock without a fixed lease.
    pub(crate) watchdog: Duration,
    /// The time that one request may take on its way, see [`step_of_request`].
    pub(crate) command_timeout: Duration,
    /// A call fails if the server does not reply for this long.
    pub(crate) outage_timeout: Duration,
    /// How often in a row the lock may pass to a waiter of this process while others wait. 0: never.
    pub(crate) handovers: u32,
    /// The round trip time of recent requests.
    pub(crate) round_trip: Duration,
    /// Releases are published.
    pub(crate) publishes: bool,
    /// An exclusive hold is confirmed for the first time no later than this after its request. From then on the server tells of its loss. `None`:
    /// it tells nothing.
    pub(crate) first_confirmation: Option<Duration>,
}

/// A request waits for its turn for at most this long, and then for its reply for as long. The connection reports a missing reply before
/// that.
pub(crate) fn step_of_request(command_timeout: Duration) -> Duration {
    command_timeout + command_timeout / 4
}

impl Config {
    /// The longest time until a request has ended.
    fn longest_request(&self) -> Duration {
        step_of_request(self.command_timeout) * 2
    }

    /// The part of a lease that is certain. Clocks differ by up to 500 ppm each, and timers are up to a millisecond late.
    pub(crate) fn certain(&self, lease: Duration) -> Duration {
        lease.saturating_sub(lease / 1000 + Duration::from_millis(1))
    }

    /// The time that the reply to a waiter may take after its limit, beside so many other waiters.
    pub(crate) fn last_reply(&self, waiters: usize) -> Duration {
        let all = A_TASK.saturating_mul(u32::try_from(waiters).unwrap_or(u32::MAX));
        all.max(self.round_trip * 4).clamp(LEAST_LAST_REPLY, LONGEST_LAST_REPLY).min(self.command_timeout)
    }
}

/// The differences between kinds of locks that requests and replies do not show: one table, which each kind fills in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) waits: Waits,
    /// A hold that nobody joins may pass from owner to owner in this process without a request.
    pub(crate) passes_on: bool,
    /// Other programs may shorten the lease of a shared hold to this. So it is certain for no longer after each confirmation.
    pub(crate) sure: Option<Duration>,
}

/// The place where waiters wait, what they wait for, and the traces of them on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// In a queue of this process. Its head sends the requests.
    Here,
    /// In a queue of this process. While holders of the other mode have the lock, or if other clients are always quicker, its head leaves a mark on the server.
    Marked,
    /// Here, until the server says that all may pass. They hold nothing, so requests only look.
    ToPass,
    /// Here, for a number of permits. Its head also leaves a mark on the server after it was refused several times.
    ForPermits,
    /// Here, for a number of permits that nobody owns on the server. A caller keeps them, and the client has nothing of them anymore.
    ToKeep,
    /// In a queue on the server. Each waiter sends its own requests, and is notified on a channel of its own.
    InLine,
}

impl Waits {
    /// True if each call wants a number of permits, and its hold is its own. Else owners of this client may join a shared hold.
    pub(crate) fn are_for_permits(self) -> bool {
        matches!(self, Waits::ForPermits | Waits::ToKeep)
    }

    /// True if waiters may leave a mark on the server, for three seconds. It keeps the others out, so the next turn is theirs.
    pub(crate) fn leave_marks(self) -> bool {
        matches!(self, Waits::Marked | Waits::ForPermits)
    }
}

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Acquire {
        ticket: Ticket,
        owner: Owner,
        terms: Terms,
        limit: Limit,
    },
    /// The caller knows that it acquired the lock.
    Seen(Ticket),
    /// The future of a waiter, or a guard, was dropped.
    Dropped(Ticket),
    /// The holder unlocks, and wants to know whether the lock was held until now.
    Unlock(Ticket),
    /// The holder of `guard` wants to know whether the lock is held now, and may request a longer lease.
    Check {
        guard: Ticket,
        ticket: Ticket,
        lease: Option<Duration>,
    },
    /// A caller returns so many permits that callers have kept. [`Action::PassedOn`] follows if the next waiter acquires them. Else the
    /// caller releases them by a request of its own.
    GiveBack(u16),
    Replied(RequestId, Reply),
    /// The request was sent and will not get a reply. The server may have run it, or may run it later.
    Unknown(RequestId),
    /// The reply is an error that does not say whether the server has run the request.
    Unclear(RequestId),
    /// The server did not run the request, but may run a retry.
    NotNow(RequestId),
    /// The server did not run the request, and will not run a retry.
    Refused(RequestId),
    /// A release was published.
    Message(Channel),
    /// The subscription began, perhaps once more. Messages may have been missed before.
    Subscribed(Channel),
    /// The subscription ended. The driver restores it.
    Unsubscribed(Channel),
    /// The time that [`LockState::due`](super::LockState::due) returned has come.
    Due,
    /// The other tasks have run, see [`Action::Yield`].
    Yielded,
    /// There is a new connection, perhaps to another server, so the server may have lost the lock.
    Reconnected,
    /// This client forced the lock open, or learned that another client holds it. The driver reports that after the reply.
    Forced,
    /// No new holds.
    Stop,
    /// All holds end.
    Close,
}

/// Something for the driver to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The driver ends each request within two [steps](step_of_request), by exactly one of `Replied`, `Unknown`, `Unclear`, `NotNow` and
    /// `Refused`.
    Send(RequestId, Request),
    /// The call with this ticket ends.
    Notify(Ticket, Outcome),
    /// The guard with this ticket no longer holds the lock.
    Lost(Ticket, Loss),
    /// The last guard of an owner has left. For statistics.
    Left {
        mode: Mode,
        /// The time at which the owner acquired the lock.
        since: Moment,
    },
    /// What became of a hold is known: it was released, or lost. Once for each owner. For statistics.
    Ended(Mode, Option<Loss>),
    Subscribe(Channel),
    Unsubscribe(Channel),
    /// The permits of [`Event::GiveBack`] have passed to a waiter.
    PassedOn,
    /// Let other tasks run, then report [`Event::Yielded`].
    Yield,
}

/// Each request states the wanted state, so running it twice is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    Acquire {
        id: HoldId,
        mode: Mode,
        lease: Duration,
        count: u32,
        how: How,
    },
    /// Sets the count. At zero the hold ends, or rests for `rest`; a mark of this id ends, too. `granted`: the server had granted it, and still
    /// knows whether it has run an earlier try of this release. Else only what it knows counts.
    Release {
        id: HoldId,
        mode: Mode,
        count: u32,
        rest: Duration,
        granted: bool,
    },
    /// Extends the lease; `None`: only checks the hold.
    Renew {
        id: HoldId,
        mode: Mode,
        lease: Option<Duration>,
        /// The count on the server, by its last reply.
        count: u32,
    },
    /// Moves an exclusive hold, at its last acquisition, to another id.
    HandOver {
        id: HoldId,
        to: HoldId,
        lease: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum How {
    /// A new hold.
    Try,
    /// A new hold, for a waiter. If it finds readers, a writer leaves a mark that keeps new readers out.
    Wait,
    /// A new hold, for a waiter for a fair lock.
    Queue(Queueing),
    /// A new hold, for a waiter that was refused at several releases. It leaves a mark, whoever holds the lock. The mark keeps the others
    /// out, so the next turn is that of this waiter.
    Turn,
    /// A new hold, for a waiter that leaves a mark, but only if all holders know marks. For a waiter that has waited for long: its mark would keep out none of the others.
    Late,
    /// A new shared hold beside this exclusive one of the same owner.
    Beside(HoldId),
    /// Only if the hold exists.
    Again,
    /// No hold: the server only says whether the waiters may pass. Nothing is left of this request.
    Look,
}

/// What a request of a waiter does about its place in the queue on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Queueing {
    /// Nothing: it has no place and takes none.
    Never,
    /// It joins the queue, unless it has a place.
    Join,
    /// It keeps its place and creates none, so a late run does no harm.
    Stay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    Granted(Option<Token>),
    /// `Look`, and the waiters may pass.
    Open,
    /// `Again` or `Beside`, and that hold does not exist.
    Lost,
    /// `left`: the next request makes sense after this time, or after a message.
    Busy {
        left: Option<Duration>,
        by: Mode,
        /// The id of the holder, if it is of this client.
        own: Option<HoldId>,
    },
    /// The waiter has a place in the queue on the server, 1 for the next. `left`, `own`: as of `Busy`.
    Queued {
        left: Option<Duration>,
        place: u64,
        own: Option<HoldId>,
    },
    /// `Stay`, and the waiter has no place.
    Out,
    /// `receivers`: this many other clients received the message.
    Released {
        receivers: u32,
    },
    Gone,
    Kept {
        /// The lock would be granted to further readers.
        admits: bool,
        /// The time that was left of the lease: of a shared hold before this renewal, else after it.
        left: Option<Duration>,
    },
    Handed(Option<Token>),
    /// The hold has more than one acquisition, or its owner also reads. Nothing was changed.
    Deeper,
    /// Granted, but fewer replicas than required confirmed it.
    TooFewReplicas,
    /// The key holds something else.
    Conflict,
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Acquired,
    /// The wait is over, and the caller holds nothing.
    Passed,
    /// Another owner holds the lock.
    Busy,
    /// The caller acquired the lock, but was not polled in time, and others went first. It may call again.
    StartAgain,
    /// Of an unlock or a check: the lock was held until now.
    Confirmed,
    Lost(Loss),
    /// The owner reads, and cannot acquire the write lock.
    Upgrade,
    /// Of an unlock or a check: the lease had expired, or may have, before the server was reached. Whether the lock was held until the call
    /// is unknown.
    Unconfirmed,
    /// The server does not reply.
    Unavailable,
    Refused,
    TooFewReplicas,
    Closed,
}

/// The reason why a hold was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Loss {
    Removed,
    Expired,
    MaxHold,
    Closed,
}

/// What follows from one event. Most events have few actions, so these take no memory of their own.
pub(crate) type Actions = SmallVec<[Action; 4]>;

/// One call of [`LockState::handle`](super::LockState::handle): its time, and its results.
#[derive(Debug)]
pub(crate) struct Cx<'a> {
    pub(crate) now: Moment,
    pub(crate) config: &'a Config,
    pub(crate) rules: &'a Rules,
    pub(crate) actions: &'a mut Actions,
}

impl Cx<'_> {
    /// After this time the server has nothing left of a request that is sent now.
    pub(crate) fn gone_by(&self, lease: Duration) -> Moment {
        self.now + lease + self.config.longest_request()
    }

    pub(crate) fn notify(&mut self, ticket: Ticket, outcome: Outcome) {
        self.actions.push(Action::Notify(ticket, outcome));
    }

    /// The actions after `earlier` notify more than one caller.
    pub(crate) fn has_notified_several(&self, earlier: usize) -> bool {
        self.actions[earlier..].iter().filter(|action| matches!(action, Action::Notify(..))).nth(1).is_some()
    }
}

/// Numbers for requests and holds of one name, each used once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Numbers(u64);

impl Numbers {
    /// `used`: no number above this one was ever used for this name by this client.
    pub(crate) fn after(used: u64) -> Numbers {
        Numbers(used)
    }

    /// No number above this one was used.
    pub(crate) fn used(&self) -> u64 {
        self.0
    }

    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    pub(crate) fn hold(&mut self) -> HoldId {
        HoldId(self.next())
    }

    /// An id for a hold that suits this waiter.
    pub(crate) fn hold_for(&mut self, terms: &Terms) -> HoldId {
        HoldId::of(self.next(), terms.permits)
    }

    /// The last request.
    pub(crate) fn last(&self) -> RequestId {
        RequestId(Small::of(self.0))
    }

    pub(crate) fn request(&mut self) -> RequestId {
        RequestId(Small::of(self.next()))
    }
}
