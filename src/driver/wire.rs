//! The requests of the state machine as scripts, and the replies to them.

use std::{
    fmt::{self, Display},
    time::Duration,
};

use crate::{
    decimal::Decimal,
    kind::{Kind, NUMBERINGS},
    lock::{Event, HoldId, How, Mode, Queueing, Reply, Request, RequestId, Token, Waits},
    redis::{Answer, Code, Fault, Part, Persistence, Script},
};

/// One request of a name: all that is needed to send it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending<'a> {
    /// Of exclusive holds; [`Kind::of_mode`] has the others.
    pub(super) kind: &'static Kind,
    pub(super) key: &'a str,
    /// The id of the client, the first part of the field of each hold.
    pub(super) client: &'a str,
    /// How long the server remembers a request that runs once.
    pub(super) receipt: Duration,
    pub(super) request: Request,
    /// The command that publishes, or nothing.
    pub(super) publish: &'static str,
}

/// A request that got a usable reply, or did not.
#[derive(Debug)]
pub(super) enum Replied {
    /// The reply, and the id of the holder if another one was named.
    Reply(Reply, Option<Box<str>>),
    /// Granted, but only so many replicas confirmed it.
    TooFewReplicas(u8),
    Failed(Fault),
}

impl Replied {
    pub(super) fn event(&self, id: RequestId, request: &Request, replicas: u8) -> Event {
        match self {
            Replied::Reply(reply, _) => Event::Replied(id, *reply),
            Replied::TooFewReplicas(_) => Event::Replied(id, Reply::TooFewReplicas),
            Replied::Failed(fault) => match failure(fault, id, request) {
                // Perhaps it was granted, and the server refused to wait for replicas.
                Event::Refused(id) if is_new(request) && replicas > 0 => Event::Replied(id, Reply::TooFewReplicas),
                event => event,
            },
        }
    }
}

/// What became of a request that has failed: may the server have run it, and does a retry make sense?
fn failure(fault: &Fault, id: RequestId, request: &Request) -> Event {
    let persistence = match request {
        Request::Release { .. } => Persistence::Insistent,
        Request::HandOver { .. } => Persistence::Modest,
        Request::Acquire { .. } | Request::Renew { .. } => Persistence::Usual,
    };
    match fault {
        Fault::Conflict => Event::Replied(id, Reply::Conflict),
        Fault::Unknown(_) | Fault::Abandoned | Fault::Closed => Event::Unknown(id),
        Fault::Unclear(_) => Event::Unclear(id),
        Fault::NotSent(_) => Event::NotNow(id),
        fault if fault.is_for_now(persistence) => Event::NotNow(id),
        _ => Event::Refused(id),
    }
}

impl Sending<'_> {
    pub(super) fn part(&self) -> (&'static Script, Part) {
        let publish = self.publish;
        let kind = self.kind.of_mode(mode_of(&self.request));
        let id = |hold| IdForScript(self.field(kind, hold));
        match self.request {
            Request::Acquire { id: hold, lease, count, how, .. } => self.acquire_part(kind, (hold, lease, count), how),
            Request::Release { id: hold, count, rest, granted, .. } => {
                let (rest, count) = match self.is_counted_once() {
                    true => (self.receipt, if granted { hold.of_permits().1.into() } else { 0 }),
                    false => (rest, count),
                };
                let terms = (id(hold), Decimal(millis(rest)), Decimal(count.into()));
                (&kind.release.script, kind.part(&kind.release, self.key, terms, publish))
            }
            Request::Renew { id: hold, lease, count, .. } => {
                let lease = Decimal(lease.map_or(0, millis));
                (&kind.renew.script, kind.renew_part(self.key, (id(hold), lease), count))
            }
            Request::HandOver { id: from, to, lease } => {
                let script = kind.hand_over.as_ref().expect("only kinds that hand over make this request");
                (&script.script, kind.part(script, self.key, (id(from), Decimal(millis(lease)), 0), id(to)))
            }
        }
    }

    fn acquire_part(
        &self,
        kind: &'static Kind,
        (hold, lease, count): (HoldId, Duration, u32),
        how: How,
    ) -> (&'static Script, Part) {
        let (lease, count) = match self.is_counted_once() {
            true => (self.receipt, hold.of_permits().1.into()),
            false => (lease, count),
        };
        let terms = (IdForScript(self.field(kind, hold)), Decimal(millis(lease)), Decimal(count.into()));
        let words = kind.words(&kind.acquire, self.key, terms, word(kind, how));
        let part = match (kind.beside, how) {
            (Some(beside), How::Beside(hold)) => words.arg(self.field(beside, hold)),
            (Some(_), _) => words.arg(""),
            (None, _) if matches!(kind.rules.machine.waits, Waits::InLine | Waits::ForPermits) => {
                words.arg(self.publish)
            }
            (None, _) => words,
        };
        (&kind.acquire.script, part.done())
    }

    fn field(&self, kind: &'static Kind, hold: HoldId) -> Field<'_> {
        Field { client: self.client, kind, key: self.key, hold }
    }

    /// The server has no holds of this kind, only a receipt for each request.
    fn is_counted_once(&self) -> bool {
        self.kind.rules.machine.waits == Waits::ToKeep
    }

    pub(super) fn read(&self, answer: &Answer) -> Replied {
        let token = || answer.number().filter(|_| self.kind.rules.has_token).map(Token::of);
        let reply = match answer.code {
            code if self.kind.rules.machine.waits == Waits::ToPass => looked(code),
            Code::Granted => Reply::Granted(token()),
            Code::Lost => Reply::Lost,
            Code::Busy => return busy(answer, self.client, self.kind, self.key),
            Code::Queued => return queued(answer, self.client, self.kind, self.key),
            Code::Out => Reply::Out,
            Code::Released => released(answer),
            Code::Gone => Reply::Gone,
            Code::Kept => kept(answer),
            Code::Handed => Reply::Handed(handed_token(answer).filter(|_| self.kind.rules.has_token).map(Token::of)),
            Code::Deeper => Reply::Deeper,
            _ => Reply::Conflict,
        };
        Replied::Reply(reply, None)
    }
}

/// True if the request is for a hold that replicas must confirm.
pub(super) fn is_new(request: &Request) -> bool {
    matches!(request, Request::Acquire { how, .. } if !matches!(how, How::Again | How::Look))
}

/// The mode of the hold that a request is about.
pub(super) fn mode_of(request: &Request) -> Mode {
    match request {
        Request::Acquire { mode, .. } | Request::Release { mode, .. } | Request::Renew { mode, .. } => *mode,
        Request::HandOver { .. } => Mode::Exclusive,
    }
}

/// How a hold is requested.
fn word(kind: &Kind, how: How) -> &'static str {
    let leaves_traces = kind.rules.machine.waits != Waits::Here;
    match how {
        How::Wait if leaves_traces => "join",
        How::Queue(Queueing::Join) => "join",
        How::Queue(Queueing::Stay) => "stay",
        How::Queue(Queueing::Never) | How::Try | How::Wait | How::Beside(_) | How::Look => "first",
        How::Turn => "turn",
        How::Late => "late",
        How::Again => "again",
    }
}

/// The number of a hold, if this id is of this client. A hold that was released, and rests, has another one.
fn own(client: &str, kind: &'static Kind, key: &str, id: &str) -> Option<HoldId> {
    let number = id.strip_prefix(client)?.strip_prefix(':')?.strip_suffix(kind.rules.suffix)?;
    let hold = HoldId(number.parse::<u64>().ok()? / NUMBERINGS);
    (Field { client, kind, key, hold }.to_string() == id).then_some(hold)
}

/// The field of a hold on the server. Of permits: the first digits of their ids, in hex.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    /// The id of the client.
    pub(super) client: &'a str,
    pub(super) kind: &'static Kind,
    pub(super) key: &'a str,
    pub(super) hold: HoldId,
}

impl Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Field { client, kind, key, hold } = *self;
        if kind.rules.machine.waits.are_for_permits() {
            let mut digits: String = client.chars().filter(|digit| *digit != '-').collect();
            digits.replace_range(12..28, ""); // the client's own digits, of which all are random
            // `a` and `{a}` are two semaphores whose permits are in one sorted set.
            let brace = u64::from(key.contains('{')) << 47;
            return write!(f, "{digits}{:012x}", hold.of_permits().0 | brace);
        }
        f.write_str(client)?;
        f.write_str(":")?;
        Decimal(kind.rules.numbering.number(key, hold.0)).fmt(f)?;
        f.write_str(kind.rules.suffix)
    }
}

/// The same for requests. Of permits, it also says how many there are.
struct IdForScript<'a>(Field<'a>);

impl Display for IdForScript<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        if self.0.kind.rules.machine.waits.are_for_permits() {
            write!(f, "{:04x}", self.0.hold.of_permits().1)?;
        }
        Ok(())
    }
}

fn busy(answer: &Answer, client: &str, kind: &'static Kind, key: &str) -> Replied {
    let [left, holder] = answer.words().unwrap_or_default();
    let left = left.parse().ok().map(Duration::from_millis); // -1: it never expires
    let by = if kind.rules.is_of_kind(holder) { kind.mode() } else { Mode::Shared };
    let own = own(client, kind.of_mode(by), key, holder);
    let holder = Some(holder).filter(|holder| !holder.is_empty()).map(Box::from);
    Replied::Reply(Reply::Busy { left, by, own }, holder)
}

/// Whether the waiters may pass.
fn looked(code: Code) -> Reply {
    match code {
        Code::Free => Reply::Open,
        Code::Held => Reply::Busy { left: None, by: Mode::Exclusive, own: None },
        _ => Reply::Conflict,
    }
}

/// The time that is left. Of a shared hold also whether the lock would be granted to another reader.
fn kept(answer: &Answer) -> Reply {
    let [left, admits] = answer.words().or_else(|| answer.words().map(|[left]| [left, ""])).unwrap_or_default();
    let left = left.parse().ok().map(Duration::from_millis);
    Reply::Kept { admits: admits == "yes", left }
}

fn queued(answer: &Answer, client: &str, kind: &'static Kind, key: &str) -> Replied {
    let [left, place, holder] = answer.words().unwrap_or_default();
    let left = left.parse().ok().map(Duration::from_millis);
    let (own, place) = (own(client, kind, key, holder), place.parse().unwrap_or(u64::MAX));
    let holder = Some(holder).filter(|holder| !holder.is_empty()).map(Box::from);
    Replied::Reply(Reply::Queued { left, place, own }, holder)
}

/// The number of clients that received the message. From a queue on the server, which notifies one waiter, there is no number.
fn released(answer: &Answer) -> Reply {
    Reply::Released { receivers: answer.number().map_or(0, |number| u32::try_from(number).unwrap_or(u32::MAX)) }
}

/// `handed token`, or `handed before token` if an earlier try had worked.
fn handed_token(answer: &Answer) -> Option<u64> {
    answer.number().or_else(|| answer.words().and_then(|[_before, token]| token.parse().ok()))
}

/// As Redis counts it, and no less.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).expect("a year at most")
}
