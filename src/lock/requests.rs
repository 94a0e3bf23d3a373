//! Requests that are repeated until they get a reply, and callers that wait for a confirmation.

use std::time::Duration;

use smallvec::SmallVec;

use super::types::{Action, Cx, Moment, Numbers, Outcome, Request, RequestId, Ticket};

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// One request, sent until there is a reply. Its content is decided anew at each try.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PendingRequest {
    state: Try,
    /// The time of the first try.
    since: Option<Moment>,
    /// An earlier try got no reply. The server may have run it, or may run it later.
    in_doubt: bool,
    pause: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Try {
    DueAt(Moment),
    UnderWay(RequestId, Moment),
}

impl PendingRequest {
    pub(crate) fn new(at: Moment) -> PendingRequest {
        PendingRequest { state: Try::DueAt(at), since: None, in_doubt: false, pause: FIRST_PAUSE }
    }

    /// A request for an id that an earlier request may have reached.
    pub(crate) fn in_doubt(at: Moment, in_doubt: bool) -> PendingRequest {
        PendingRequest { in_doubt, ..PendingRequest::new(at) }
    }

    /// The time of the next try; `None` while one is under way.
    pub(crate) fn due(&self) -> Option<Moment> {
        match self.state {
            Try::DueAt(at) => Some(at),
            Try::UnderWay(..) => None,
        }
    }

    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.due().is_some_and(|at| at <= now)
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.due().is_none()
    }

    /// The try that is under way.
    pub(crate) fn under_way(&self) -> Option<RequestId> {
        match self.state {
            Try::UnderWay(id, _) => Some(id),
            Try::DueAt(_) => None,
        }
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// The time since which the server has not replied, if a try has failed.
    pub(crate) fn silent_since(&self) -> Option<Moment> {
        self.since.filter(|_| self.pause > FIRST_PAUSE)
    }

    /// Callers that joined before have stopped waiting for it. The others have waited since then.
    pub(crate) fn waited_for_since(&mut self, since: Moment) {
        self.since = Some(since);
    }

    pub(crate) fn send(&mut self, cx: &mut Cx<'_>, numbers: &mut Numbers, request: Request) -> RequestId {
        let id = numbers.request();
        self.since.get_or_insert(cx.now);
        self.state = Try::UnderWay(id, cx.now);
        cx.actions.push(Action::Send(id, request));
        id
    }

    /// The time at which the try with this id was sent, if it is under way.
    pub(crate) fn sent(&self, request: RequestId) -> Option<Moment> {
        match self.state {
            Try::UnderWay(id, sent) if id == request => Some(sent),
            _ => None,
        }
    }

    pub(crate) fn is(&self, request: RequestId) -> bool {
        self.sent(request).is_some()
    }

    /// The next try is sent no later than this.
    pub(crate) fn hurry(&mut self, to: Moment) {
        if let Try::DueAt(at) = &mut self.state {
            *at = to.min(*at);
        }
    }

    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }

    /// The try under way failed. One that got no reply has mostly waited for long already.
    pub(crate) fn failed(&mut self, now: Moment, failure: Failure) {
        self.in_doubt |= failure.may_have_run();
        self.state = Try::DueAt(now + if failure == Failure::Unknown { FIRST_PAUSE } else { self.pause });
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No reply: the server may have run it.
    Unknown,
    /// An error at once, but the server may have run it.
    Unclear,
    /// The server did not run it, but may run a retry.
    NotNow,
    /// The server did not run it, and will not run a retry.
    Refused,
}

impl Failure {
    pub(crate) fn may_have_run(self) -> bool {
        matches!(self, Failure::Unknown | Failure::Unclear)
    }
}

/// A caller that wants to know whether the lock was held. The first request that is sent after its call answers that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConfirmWaiter {
    pub(crate) ticket: Ticket,
    /// The caller stops waiting then.
    pub(crate) by: Moment,
}

impl ConfirmWaiter {
    pub(crate) fn new(ticket: Ticket, cx: &Cx<'_>) -> ConfirmWaiter {
        ConfirmWaiter { ticket, by: cx.now + cx.config.outage_timeout }
    }
}

/// In the order in which they stop waiting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct ConfirmWaiters(SmallVec<[ConfirmWaiter; 1]>);

impl From<Option<ConfirmWaiter>> for ConfirmWaiters {
    fn from(waiter: Option<ConfirmWaiter>) -> ConfirmWaiters {
        ConfirmWaiters(waiter.into_iter().collect())
    }
}

impl ConfirmWaiters {
    pub(crate) const NONE: ConfirmWaiters = ConfirmWaiters(SmallVec::new_const());

    pub(crate) fn append(&mut self, others: impl Into<ConfirmWaiters>) {
        let mut others = others.into();
        if self.0.is_empty() {
            *self = others;
        } else {
            self.0.append(&mut others.0);
            self.0.sort_by_key(|waiter| waiter.by);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn notify(&mut self, cx: &mut Cx<'_>, outcome: Outcome) {
        self.0.drain(..).for_each(|waiter| cx.notify(waiter.ticket, outcome));
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        self.0.first().map(|waiter| waiter.by)
    }

    /// Callers whose time has ended get `Unavailable`.
    pub(crate) fn expire(&mut self, cx: &mut Cx<'_>) {
        if self.due().is_none_or(|first| first > cx.now) {
            return;
        }
        let ended = self.0.partition_point(|waiter| waiter.by <= cx.now);
        self.0.drain(..ended).for_each(|waiter| cx.notify(waiter.ticket, Outcome::Unavailable));
    }
}
