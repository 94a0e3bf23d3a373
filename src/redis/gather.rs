//! Sends the requests of one connection. While few are under way, it sends each request at once. It gathers the requests beyond that
//! and sends them together: one call of a script with many parts. No other place does this.
//!
//! Gathered requests are sent as soon as there are enough of them for a call beside the requests under way ([`Backlog::is_due`]).
//! Otherwise they wait: a reply is about to arrive, and every reply triggers the check again.

use std::{
    collections::{BTreeMap, VecDeque},
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::Source,
    sync::{std, tokio},
};

use super::{
    answer::{Answer, Code},
    conn::{Answers, Conn, Link},
    fault::Fault,
    keys::slot_of,
    node_settings::{Company, NodeSettings},
    reply_to::ReplyTo,
    script::{Part, Script},
};

/// The number of requests under way above which others are gathered. Below this number of tasks a separate call for each request is
/// faster than gathering.
const ALONE: usize = 8;
/// The gathered requests are worth a call if their number, times this, reaches the number of requests under way.
const PART_OF_UNDER_WAY: usize = 2;
/// The number of parts under way that keeps a near server busy. Further parts wait, and make larger calls. All these values were measured
/// with 1 to 2,048 tasks, see docs/benchmarks.md.
const ENOUGH: usize = 3 * PARTS;
/// The two limits above grow with the round trip, in whole units of this. The farther the server is, the more parts are under way to keep it
/// busy, and the less is gained by larger calls.
const NEAR: Duration = Duration::from_millis(1);
/// The number of gathered calls that can be under way: for a near server enough that the rules above are the limit, not this. Idle senders
/// would only slow down the exploration.
const SENDERS: usize = if cfg!(leasehold_explore) { 4 } else { 64 };
/// In a cluster each slot needs a call, so a part can need the 5 KiB of a call. The limit grows no farther than this there.
const FARTHEST_OF_ONE_SLOT: usize = 3;
/// The number of gathered parts that can be under way on a connection to one server that is far away.
pub(crate) const MOST_UNDER_WAY: usize = SENDERS * PARTS;
/// The number of parts in one call: enough to spread its cost, but few enough not to block the server for long (3 µs each).
const PARTS: usize = 128;

/// One connection, and the requests that wait for it.
#[derive(Debug)]
pub(super) struct Dispatcher {
    conn: Conn,
    backlog: Mutex<Backlog>,
    /// Notified when requests wait.
    work: Notify,
    confirmations: mpsc::UnboundedSender<Confirmation>,
    /// Cancelled when the client, or this member of the cluster, has ended.
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct Backlog {
    /// What may share a call. A server that refuses calls across slots is a cluster behind one address, whatever the URL says.
    company: Company,
    /// Requests sent in a call of their own that have no reply yet, or whose callers are not polled.
    alone: usize,
    /// Requests sent in a call with others. Their senders certainly check the backlog again.
    together: usize,
    /// Gathered requests.
    held: usize,
    /// How far the limits have grown: with each reply by one, see [`Dispatcher::note_call`].
    reach: usize,
    /// A sender was told that requests are due, and has not looked yet.
    is_told: bool,
    /// The number of gathered requests after the last removal of those without a caller.
    swept: usize,
    /// The reason for which no more requests are sent.
    closed: Option<Fault>,
    /// One batch for each script; the script whose turn is next is in front.
    by_script: VecDeque<PendingBatch>,
}

#[derive(Debug)]
struct PendingBatch {
    script: &'static Script,
    waiting: VecDeque<PendingRequest>,
}

#[derive(Debug)]
struct PendingRequest {
    part: Part,
    answer: ReplyTo<Result<Answer, Fault>>,
}

/// Closes a dispatcher when the client ends. If this is dropped before, its runtime has ended: even then the client may have been closed,
/// and this task was not polled anymore.
struct CloseOnDrop(Arc<Dispatcher>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(if self.0.closed.is_cancelled() { Fault::Closed } else { Fault::Abandoned });
    }
}

/// Requests under way. When they end, in whatever way, the gathered requests are checked.
struct UnderWay<'a> {
    dispatcher: &'a Dispatcher,
    alone: usize,
    together: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut backlog = self.dispatcher.backlog();
        (backlog.alone, backlog.together) = (backlog.alone - self.alone, backlog.together - self.together);
        self.dispatcher.look_at(&mut backlog);
    }
}

impl Dispatcher {
    pub(super) fn start(conn: Conn, settings: NodeSettings, closed: &CancellationToken) -> Arc<Dispatcher> {
        let (confirmations, asked) = mpsc::unbounded_channel();
        let backlog = Mutex::new(Backlog { company: settings.company, ..Backlog::default() });
        let work = Notify::new();
        let dispatcher = Arc::new(Dispatcher { conn, backlog, work, confirmations, closed: closed.clone() });
        for _ in 0..SENDERS {
            tokio::spawn(closed.clone().run_until_cancelled_owned(Arc::clone(&dispatcher).send_gathered()));
        }
        tokio::spawn(closed.clone().run_until_cancelled_owned(confirm(asked, settings)));
        let last = CloseOnDrop(Arc::clone(&dispatcher));
        tokio::spawn(async move { last.0.closed.cancelled().await });
        dispatcher
    }

    /// Sends one request and waits for its reply. Only a call of its own needs a large future, so that has a box of its own.
    pub(super) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        match self.enter(script, &part) {
            Ok(_place) => Box::pin(self.call(script, &part)).await,
            Err(answer) => self.answered(answer).await,
        }
    }

    /// Sends one request that is not urgent, in one call with others.
    pub(super) async fn request_gathered(&self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        let answer = self.join(&mut self.backlog(), script, part);
        self.answered(answer).await
    }

    /// Sends one request, then WAIT on the same connection. Never gathered: WAIT is about the writes of one connection.
    pub(super) async fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> Result<(Answer, u8), Fault> {
        let (begun, link) = (Instant::now(), self.conn.link().await?);
        let answer = link.run(script, &[part]).await?.pop().expect("one part, one answer")?;
        let confirmed = if answer.code == Code::Granted { self.confirmed(link, wanted, begun).await? } else { 0 };
        Ok((answer, confirmed))
    }

    /// The number of replicas that have all earlier writes of that link.
    async fn confirmed(&self, link: Arc<Link>, wanted: u8, begun: Instant) -> Result<u8, Fault> {
        let (answer, receiver) = ReplyTo::new();
        let _ = self.confirmations.send(Confirmation { link, wanted, begun, answer });
        self.answered(receiver).await
    }

    /// Not gathered, because it checks this connection.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        match self.conn.link().await?.ping().await {
            // The next connection may get its reply in time.
            Err(Fault::Unknown(_) | Fault::NotSent(_)) => self.conn.link().await?.ping().await,
            answered => answered,
        }
    }

    /// The connection, for measurements.
    #[cfg(feature = "bench")]
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        self.conn.link().await
    }

    pub(super) async fn needed(&self) {
        self.conn.needed().await;
    }

    /// As [`Conn::trouble`].
    pub(super) fn trouble(&self, last: Option<Source>) -> Source {
        self.conn.trouble(last)
    }

    pub(super) fn is_unwell(&self, late: Duration) -> bool {
        self.conn.is_unwell(late)
    }

    /// The present connection, if it is alive.
    pub(super) fn link_now(&self) -> Option<Arc<Link>> {
        self.conn.link_now()
    }

    /// Permission for a call of its own; else a place among the gathered requests.
    fn enter(
        &self,
        script: &'static Script,
        part: &Part,
    ) -> Result<UnderWay<'_>, oneshot::Receiver<Result<Answer, Fault>>> {
        let mut backlog = self.backlog();
        if backlog.alone + backlog.together < ALONE && backlog.held == 0 {
            backlog.alone += 1;
            return Ok(UnderWay { dispatcher: self, alone: 1, together: 0 });
        }
        Err(self.join(&mut backlog, script, part))
    }

    fn join(
        &self,
        backlog: &mut Backlog,
        script: &'static Script,
        part: &Part,
    ) -> oneshot::Receiver<Result<Answer, Fault>> {
        let (answer, receiver) = ReplyTo::new();
        if backlog.closed.is_some() {
            return receiver; // its sender is gone
        }
        backlog.batch_of(script).push_back(PendingRequest { part: part.clone(), answer });
        backlog.held += 1;
        backlog.sweep();
        self.look_at(backlog);
        receiver
    }

    async fn call(&self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        let link = self.conn.link().await?;
        link.run(script, std::slice::from_ref(part)).await?.pop().expect("one part, one answer")
    }

    /// One of the senders: sends the gathered requests, one call after the other.
    async fn send_gathered(self: Arc<Dispatcher>) {
        loop {
            match self.take() {
                // Idle senders are small: only a call needs a large future.
                Some((_under_way, script, batch)) => Box::pin(self.send_all(script, batch)).await,
                None => self.work.notified().await,
            }
        }
    }

    /// The requests of the next call, all of one script. The scripts take turns.
    fn take(&self) -> Option<(UnderWay<'_>, &'static Script, Vec<PendingRequest>)> {
        let mut backlog = self.backlog();
        backlog.is_told = false;
        let distance = self.distance(&backlog);
        let (script, batch) = backlog.take(distance)?;
        self.look_at(&mut backlog); // for another sender
        Some((UnderWay { dispatcher: self, alone: 0, together: batch.len() }, script, batch))
    }

    /// Wakes a sender if there are requests to send.
    fn look_at(&self, backlog: &mut Backlog) {
        if !backlog.is_told && backlog.is_due(self.distance(backlog)) {
            backlog.is_told = true;
            self.work.notify_last(); // the sender that was busy last
        }
    }

    /// How far the server is. Only gathered requests need it.
    fn distance(&self, backlog: &Backlog) -> usize {
        let shortest = if backlog.held == 0 { None } else { self.conn.shortest_round_trip() };
        distance(shortest, backlog.reach, backlog.company)
    }

    /// A call has ended. The limits grow step by step, as the window of TCP does (RFC 5681, slow start): a network may be narrow, and then
    /// more requests under way would only come too late. They begin anew when replies take long, or when there is none.
    fn note_call(&self, has_reply: bool) {
        let is_well = has_reply && self.conn.shortest_round_trip().is_some();
        let mut backlog = self.backlog();
        backlog.reach = if is_well { (backlog.reach + 1).min(SENDERS) } else { 1 };
    }

    /// Sends one call, or one for each slot. All are written at once.
    async fn send_all(&self, script: &'static Script, batch: Vec<PendingRequest>) {
        let company = self.backlog().company;
        match company {
            Company::Any => self.send(script, batch).await,
            Company::OfOneSlot => _ = join_all(by_slot(batch).map(|batch| self.send(script, batch))).await,
        }
    }

    /// Does not send requests whose callers have left. It checks the callers and writes the call while the backlog is locked. A caller
    /// that leaves later sends a release; that must lock the backlog first, so it is sent after this call.
    async fn send(&self, script: &'static Script, mut batch: Vec<PendingRequest>) {
        let answers = match self.conn.link().await {
            Ok(link) => match self.write(&link, script, &mut batch).await {
                // The server did not know the script. The second attempt omits callers that have left since.
                Ok(None) => match link.load(script).await {
                    Ok(()) => self.write(&link, script, &mut batch).await.and_then(known),
                    Err(fault) => Err(fault),
                },
                answers => answers.and_then(known),
            },
            Err(fault) => Err(fault),
        };
        self.note_call(!matches!(answers, Err(Fault::Unknown(_) | Fault::NotSent(_))));
        let answers = match answers {
            Err(fault) if batch.len() > 1 && self.may_permit_others(&fault) => {
                return Box::pin(self.send_one_by_one(script, batch)).await;
            }
            answers => answers.unwrap_or_else(|fault| batch.iter().map(|_| Err(fault.clone())).collect()),
        };
        for (waiting, answer) in batch.into_iter().zip(answers) {
            waiting.answer.send(answer);
        }
    }

    /// True if the server refused a whole call because of some of its keys: it does not say which one. It permits each of them alone if they
    /// are only in several slots. Then later calls have one slot each.
    fn may_permit_others(&self, fault: &Fault) -> bool {
        if fault.is_across_slots() {
            self.backlog().company = Company::OfOneSlot;
        }
        fault.is_across_slots() || fault.is_for_some_keys()
    }

    async fn send_one_by_one(&self, script: &'static Script, batch: Vec<PendingRequest>) {
        join_all(batch.into_iter().map(|one| self.send(script, vec![one]))).await;
    }

    async fn write(
        &self,
        link: &Link,
        script: &'static Script,
        batch: &mut Vec<PendingRequest>,
    ) -> Result<Option<Answers>, Fault> {
        let mut call = pin!(async {
            batch.retain(|waiting| !waiting.answer.has_left());
            let parts: Vec<_> = batch.iter().map(|waiting| waiting.part.clone()).collect();
            if parts.is_empty() { Ok(Some(Vec::new())) } else { link.try_run(script, &parts).await }
        });
        match poll_fn(|cx| Poll::Ready(self.locked(|| call.as_mut().poll(cx)))).await {
            Poll::Ready(answers) => answers,
            Poll::Pending => call.await,
        }
    }

    /// Stops sending. All waiting callers notice it, because their senders are dropped. The first reason stays.
    fn close(&self, why: Fault) {
        let mut backlog = self.backlog();
        backlog.closed.get_or_insert(why);
        let (waiting, _) = (mem::take(&mut backlog.by_script), mem::take(&mut backlog.held));
        drop(backlog); // it must not be locked while their wakers run
        drop(waiting);
    }

    async fn answered<T>(&self, answer: oneshot::Receiver<Result<T, Fault>>) -> Result<T, Fault> {
        answer.await.unwrap_or_else(|_| Err(self.end()))
    }

    /// Why a request has no reply.
    fn end(&self) -> Fault {
        match &self.backlog().closed {
            Some(why) => why.clone(),
            None if self.closed.is_cancelled() => Fault::Closed, // by a sender that noticed it first
            None => Fault::unknown("the task of this connection has ended"),
        }
    }

    fn locked<T>(&self, work: impl FnOnce() -> T) -> T {
        let _backlog = self.backlog();
        work()
    }

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backlog {
    /// Removes requests without a caller. In an outage callers come and go, and nothing is sent. Checks whenever the number has doubled.
    fn sweep(&mut self) {
        if self.held < 2 * self.swept.max(PARTS) {
            return;
        }
        for pending in &mut self.by_script {
            pending.waiting.retain(|waiting| !waiting.answer.has_left());
        }
        self.held = self.by_script.iter().map(|pending| pending.waiting.len()).sum();
        self.swept = self.held;
    }

    /// True if the gathered requests are worth a call. If no sender is certain to check again, any number is.
    fn is_due(&self, distance: usize) -> bool {
        let is_worth_it =
            self.held * PART_OF_UNDER_WAY * distance >= self.alone + self.together && self.together < ENOUGH * distance;
        self.held > 0 && (self.together == 0 || is_worth_it)
    }

    fn batch_of(&mut self, script: &'static Script) -> &mut VecDeque<PendingRequest> {
        let known = self.by_script.iter().position(|pending| std::ptr::eq(pending.script, script));
        let at = known.unwrap_or_else(|| {
            self.by_script.push_back(PendingBatch { script, waiting: VecDeque::new() });
            self.by_script.len() - 1
        });
        &mut self.by_script[at].waiting
    }

    fn take(&mut self, distance: usize) -> Option<(&'static Script, Vec<PendingRequest>)> {
        if !self.is_due(distance) {
            return None;
        }
        let next = self.by_script.iter().position(|pending| !pending.waiting.is_empty())?;
        self.by_script.rotate_left(next);
        let mut pending = self.by_script.pop_front().expect("it was just found");
        let batch: Vec<_> = pending.waiting.drain(..pending.waiting.len().min(PARTS)).collect();
        (self.held, self.together) = (self.held - batch.len(), self.together + batch.len());
        let script = pending.script;
        self.by_script.push_back(pending);
        Some((script, batch))
    }
}

/// At least 1, which is near: the factor of the limits.
fn distance(shortest: Option<Duration>, reach: usize, company: Company) -> usize {
    let farthest = match company {
        Company::Any => SENDERS,
        Company::OfOneSlot => FARTHEST_OF_ONE_SLOT,
    };
    let distance = usize::try_from(shortest.unwrap_or_default().as_micros() / NEAR.as_micros()).unwrap_or(usize::MAX);
    distance.min(reach).clamp(1, farthest)
}

fn by_slot(batch: Vec<PendingRequest>) -> impl Iterator<Item = Vec<PendingRequest>> {
    let mut slots = BTreeMap::<u16, Vec<PendingRequest>>::new();
    for waiting in batch {
        slots.entry(slot_of(waiting.part.key())).or_default().push(waiting);
    }
    slots.into_values()
}

/// The replies of a script that was loaded just before.
fn known(answers: Option<Answers>) -> Result<Answers, Fault> {
    answers.ok_or_else(|| Fault::said("NOSCRIPT although the script was just loaded"))
}

/// A request for the number of replicas that have the earlier writes of a link.
#[derive(Debug)]
struct Confirmation {
    link: Arc<Link>,
    wanted: u8,
    /// The time at which the caller's request began. It may have waited behind another WAIT.
    begun: Instant,
    answer: ReplyTo<Result<u8, Fault>>,
}

/// Sends one WAIT after the other, each for all requests before it, as in the group commit of a database. So no caller waits for more than
/// two of them, however many callers there are. This runs in a task of its own, so a caller that is not polled does not delay the others.
/// Between two WAITs the other requests of the connection are sent.
async fn confirm(mut asked: mpsc::UnboundedReceiver<Confirmation>, settings: NodeSettings) {
    while let Some(first) = asked.recv().await {
        let mut group = vec![first];
        while let Ok(next) = asked.try_recv() {
            group.push(next);
        }
        while let Some(Confirmation { link, .. }) = group.first() {
            let link = Arc::clone(link);
            let (same, others) = group.into_iter().partition(|other| Arc::ptr_eq(&other.link, &link));
            confirm_together(&link, same, settings).await;
            group = others;
        }
    }
}

/// The replicas have half the command timeout, counted from the start of the earliest request; but at least an eighth of it.
pub(super) async fn confirmed_within(
    link: &Link,
    wanted: u8,
    waited: Duration,
    settings: NodeSettings,
) -> Result<u8, Fault> {
    let NodeSettings { command_timeout, confirmed, .. } = settings;
    let time = (command_timeout / 2).saturating_sub(waited).max(command_timeout / 8);
    link.confirmed(confirmed, wanted, time).await
}

async fn confirm_together(link: &Link, group: Vec<Confirmation>, settings: NodeSettings) {
    let wanted = group.iter().map(|one| one.wanted).max().unwrap_or(0);
    let waited = group.iter().map(|one| one.begun.elapsed()).max().unwrap_or_default();
    let count = confirmed_within(link, wanted, waited, settings).await;
    for one in group {
        one.answer.send(count.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_grow_with_the_round_trip_and_step_by_step() {
        let far = |millis, reach, company| distance(Some(Duration::from_millis(millis)), reach, company);
        assert_eq!(distance(None, SENDERS, Company::Any), 1, "nothing is known, or replies take long");
        assert_eq!(far(0, SENDERS, Company::Any), 1);
        assert_eq!([0, 1, 5].map(|reach| far(50, reach, Company::Any)), [1, 1, 5], "so many replies came so far");
        assert_eq!(far(50, SENDERS, Company::Any), 50);
        assert_eq!(far(300, SENDERS, Company::Any), SENDERS);
        assert_eq!(far(50, SENDERS, Company::OfOneSlot), FARTHEST_OF_ONE_SLOT);
    }

    #[test]
    fn the_farther_the_server_the_more_is_under_way() {
        let busy = |held, together| Backlog { held, together, ..Backlog::default() };
        assert!(busy(1, 0).is_due(1), "nothing else is under way");
        assert!(busy(PARTS, PARTS).is_due(1));
        assert!(!busy(1, PARTS).is_due(1), "it waits for others");
        assert!(busy(1, PARTS).is_due(SENDERS), "waiting would cost more");
        assert!(!busy(ENOUGH, ENOUGH).is_due(1), "a near server is busy");
        assert!(busy(ENOUGH, ENOUGH).is_due(2));
        assert!(!busy(2 * ENOUGH, 2 * ENOUGH).is_due(2));
    }
}
