//! Sends the requests of one connection. While few are under way, it sends each request at once. It gathers the requests beyond that
//! and sends them together: one call of a script with many parts. No other place does this.
//!
//! Gathered requests are sent as soon as there are enough of them for a call beside the requests under way ([`Backlog::is_due`]).
//! Otherwise they wait: a reply is about to arrive, and every reply triggers the check again. Without a connection, they wait for one.
//!
//! Each new request and each reply sends what is due then. The sender may hold the lock of a name, so nothing is
//! called with the backlog locked, and no reply is delivered while a request is submitted ([`Later`]).

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use smallvec::smallvec;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    error::Source,
    spawner::Spawner,
    sync::{std, tokio},
};

use super::{
    answer::{Answer, Code},
    confirm::Confirmations,
    conn::{Answers, Attempt, Conn, InFlight, Link, ScriptCall, ScriptCaller, Sent},
    fault::Fault,
    keys::slot_of,
    node_settings::{Company, NodeSettings},
    pending::{Later, PendingRequest, Requests, Urgency, left_for_another},
    script::{Part, Script},
    window::Window,
};

/// The number of requests under way above which others are gathered. Below this number of tasks a separate call for each request is
/// faster than gathering. The exploration has few tasks, and is to gather, too.
const ALONE: usize = if cfg!(leasehold_explore) { 1 } else { 4 };
/// The gathered requests are worth a call if their number, times this, reaches the number of requests under way.
const PART_OF_UNDER_WAY: usize = 2;
/// The number of parts under way that keeps a near server busy. Further parts wait, and make larger calls. All these values were measured
/// by `scripts/bench distinct` with 1 to 2,048 tasks.
const ENOUGH: usize = 3 * PARTS;
/// The two limits above grow with the round trip, in whole units of this. The farther the server is, the more parts are under way to keep it
/// busy, and the less is gained by larger calls.
const NEAR: Duration = Duration::from_millis(1);
/// The limits grow no farther than this.
const FARTHEST: usize = 64;
const MOST_UNDER_WAY: usize = FARTHEST * PARTS;
/// In a cluster each slot needs a call, so the limits grow less there.
const FARTHEST_OF_ONE_SLOT: usize = 3;
/// The number of parts in one call: enough to spread its cost, but few enough not to block the server for long (3 µs each).
const PARTS: usize = 128;

/// One connection, and the requests that wait for it.
#[derive(Debug)]
pub(super) struct Dispatcher {
    this: Weak<Dispatcher>,
    conn: Conn,
    backlog: Mutex<Backlog>,
    /// Notified when requests wait that are not urgent, or cannot be sent: these wait for another connection, or for the end of their time.
    work: Notify,
    confirmations: Confirmations,
    command_timeout: Duration,
    runtime: Spawner,
    /// Cancelled when the client, or this member of the cluster, has ended.
    closed: CancellationToken,
}

#[derive(Debug)]
struct Backlog {
    /// What may share a call. A server that refuses calls across slots is a cluster behind one address, whatever the URL says.
    company: Company,
    under_way: UnderWay,
    /// Gathered requests.
    held: usize,
    /// What the network is known to carry.
    window: Window,
    /// The reason for which no more requests are sent.
    closed: Option<Fault>,
    /// One batch for each script; the script whose turn is next is in front.
    by_script: VecDeque<PendingBatch>,
}

/// The numbers of requests without a reply.
#[derive(Debug, Default)]
struct UnderWay {
    /// Sent in a call of their own.
    alone: usize,
    /// Sent in a call with others.
    together: usize,
}

impl UnderWay {
    fn of(&mut self, sent: Sent) -> &mut usize {
        match sent {
            Sent::Alone => &mut self.alone,
            Sent::Together => &mut self.together,
        }
    }
}

#[derive(Debug)]
struct PendingBatch {
    script: &'static Script,
    is_last: bool,
    waiting: VecDeque<PendingRequest>,
}

/// Closes a dispatcher when the client ends. If this is dropped before, its runtime has ended: even then the client may have been closed,
/// and this task was not polled anymore.
struct CloseOnDrop(Arc<Dispatcher>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(if self.0.closed.is_cancelled() { Fault::Closed } else { Fault::Abandoned });
    }
}

impl Dispatcher {
    pub(super) fn start(conn: Conn, settings: NodeSettings, closed: &CancellationToken) -> Arc<Dispatcher> {
        let dispatcher = Arc::new_cyclic(|this| Dispatcher {
            this: Weak::clone(this),
            conn,
            backlog: Mutex::new(Backlog::new(settings.company)),
            work: Notify::new(),
            confirmations: Confirmations::start(settings, closed),
            command_timeout: settings.command_timeout,
            runtime: Spawner::here(),
            closed: closed.clone(),
        });
        let ends = CloseOnDrop(Arc::clone(&dispatcher));
        tokio::spawn(async move { ends.0.closed.run_until_cancelled(ends.0.keep()).await });
        dispatcher
    }

    /// Sends a request, or lets it wait until it is due. It ends within the command timeout if it cannot be sent, and else within another one.
    pub(super) fn submit(&self, request: PendingRequest) -> Option<Later> {
        let mut backlog = self.backlog();
        let refusal = backlog.closed.clone().or_else(|| self.conn.refusal());
        if let Some(why) = refusal {
            return Some(Later::Failed(Box::new(request), why));
        }
        let (script, urgency, mut unsent) = (request.script, request.urgency, smallvec![request]);
        if urgency == Urgency::Now && backlog.has_room_alone() {
            match self.send(&mut backlog, script, unsent, Sent::Alone) {
                Ok(()) => return None,
                Err(requests) => unsent = requests,
            }
        }
        backlog.join(unsent);
        match urgency {
            Urgency::Now => self.flush(&mut backlog),
            Urgency::Gathered | Urgency::Last => self.work.notify_one(), // others follow, and the task sends them together
        }
        None
    }

    /// Sends one request and waits for its reply.
    pub(super) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        let (request, answer) = PendingRequest::awaited(script, part);
        if let Some(later) = self.submit(request) {
            later.go();
        }
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
        let answer = link.run(script, &part).await?;
        let confirmed = match answer.code {
            Code::Granted => self.answered(self.confirmations.ask(link, wanted, begun)).await?,
            _ => 0,
        };
        Ok((answer, confirmed))
    }

    /// Not gathered, because it checks this connection.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        match self.conn.link().await?.ping().await {
            // The next connection may get its reply in time.
            Err(Fault::Unknown(_) | Fault::NotSent(_)) => self.conn.link().await?.ping().await,
            answered => answered,
        }
    }

    /// The connection.
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

    // ---- sending ----

    /// Sends one call. Returns the requests if that is impossible now.
    fn send(
        &self,
        backlog: &mut Backlog,
        script: &'static Script,
        requests: Requests,
        sent: Sent,
    ) -> Result<(), Requests> {
        let Some(link) = self.conn.link_now() else { return Err(requests) };
        let Some(room) = link.room() else { return Err(requests) };
        let count = requests.len();
        let in_flight = InFlight { caller: self.this(), sent, count };
        room.send(ScriptCall { script, requests, attempt: Attempt::First, in_flight });
        *backlog.under_way.of(sent) += count;
        Ok(())
    }

    /// Sends the gathered requests that are due. If that is impossible now, tells the task that keeps them.
    fn flush(&self, backlog: &mut Backlog) {
        if self.is_stuck_after_sending(backlog) {
            self.work.notify_one();
        }
    }

    fn is_stuck_after_sending(&self, backlog: &mut Backlog) -> bool {
        while let Some((script, batch)) = backlog.take(self.distance(backlog)) {
            let calls = if backlog.company == Company::OfOneSlot { by_slot(batch) } else { vec![batch] };
            let send = |requests| self.send(backlog, script, requests, Sent::Together).err();
            let unsent: Vec<_> = calls.into_iter().filter_map(send).flatten().collect();
            if !unsent.is_empty() {
                backlog.put_back(unsent);
                self.conn.need();
                return true;
            }
        }
        false
    }

    /// How far the server is. Only gathered requests need it.
    fn distance(&self, backlog: &Backlog) -> usize {
        let shortest = if backlog.held == 0 { None } else { self.conn.shortest_round_trip() };
        distance(shortest, backlog.company)
    }

    // ---- replies ----

    /// A call has ended. If its connection was lost before its time was over, that says nothing about what the network carries.
    fn note_call(&self, requests: &Requests, answers: &Result<Answers, Fault>) {
        let is_late = requests.iter().any(|request| request.since.elapsed() >= self.command_timeout);
        let mut backlog = self.backlog();
        let under_way = backlog.under_way.alone + backlog.under_way.together;
        match answers {
            Err(Fault::Unknown(_)) if is_late => {
                backlog.window.shrink(under_way, Instant::now(), self.command_timeout);
            }
            Err(Fault::Unknown(_)) => {}
            _ if self.conn.shortest_round_trip().is_none() => backlog.window.limit(ENOUGH),
            _ => backlog.window.grow(requests.len()),
        }
        if answers.as_ref().is_err_and(Fault::is_across_slots) {
            backlog.company = Company::OfOneSlot;
        }
        let overdue = backlog.take_older(self.command_timeout);
        drop(backlog);
        self.fail_unsent(overdue);
    }

    fn fail_unsent(&self, requests: Vec<PendingRequest>) {
        if !requests.is_empty() {
            fail(requests, &self.conn.why_unsent());
        }
    }

    fn this(&self) -> Arc<Dispatcher> {
        self.this.upgrade().expect("a method of it is running")
    }

    // ---- the task ----

    /// Sends what waits without urgency, or for a connection, and ends what has waited for too long.
    async fn keep(&self) {
        let mut links = self.conn.changes();
        loop {
            let end = self.settle();
            tokio::select! {
                Ok(()) = links.changed() => {}
                () = self.work.notified() => {}
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => {}
            }
        }
    }

    /// Returns the time at which the oldest request has waited for too long.
    fn settle(&self) -> Option<Instant> {
        let refusal = self.conn.refusal();
        let mut backlog = self.backlog();
        if refusal.is_none() {
            self.is_stuck_after_sending(&mut backlog);
        }
        let ended = backlog.take_older(if refusal.is_some() { Duration::ZERO } else { self.command_timeout });
        let next = backlog.oldest().map(|since| since + self.command_timeout);
        drop(backlog);
        match refusal {
            Some(why) => fail(ended, &why),
            None => self.fail_unsent(ended),
        }
        next
    }

    /// Stops sending. The first reason stays.
    fn close(&self, why: Fault) {
        let mut backlog = self.backlog();
        let why = backlog.closed.get_or_insert(why).clone();
        let waiting = backlog.take_all();
        drop(backlog);
        fail(waiting, &why);
    }

    async fn answered<T>(&self, answer: oneshot::Receiver<Result<T, Fault>>) -> Result<T, Fault> {
        answer.await.unwrap_or_else(|_| Err(self.end()))
    }

    /// Why a request has no reply.
    fn end(&self) -> Fault {
        match &self.backlog().closed {
            Some(why) => why.clone(),
            None if self.closed.is_cancelled() => Fault::Closed, // by a task that noticed it first
            None => Fault::unknown("the task of this connection has ended"),
        }
    }

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScriptCaller for Dispatcher {
    /// Delivers the replies. If another call may do better, a task makes it. Requests that were given up remain under way until their reply
    /// arrives: it has to pass through the same network as those after it.
    fn answered(self: Arc<Self>, call: ScriptCall, answers: Result<Answers, Fault>) -> Option<InFlight> {
        if call.attempt == Attempt::First {
            self.note_call(&call.requests, &answers);
        }
        let runtime = self.runtime.clone();
        match answers {
            Ok(answers) => {
                drop(call.in_flight); // what waits is sent before what follows from the replies
                call.requests.into_iter().zip(answers).for_each(|(request, answer)| request.end(answer));
            }
            Err(fault) if fault.is_of_an_unknown_script() && call.attempt == Attempt::First => {
                runtime.spawn(async move { self.load_and_call(call).await });
            }
            Err(fault) if may_succeed_alone(&fault, &call.requests) => {
                runtime.spawn(async move { self.call_one_by_one(call).await });
            }
            Err(fault) => {
                let ScriptCall { script, requests, in_flight, .. } = call;
                let of = |part: &Part| fault.clone().of(script, part);
                requests
                    .into_iter()
                    .map(|request| (of(&request.part), request))
                    .for_each(|(why, request)| request.end(Err(why)));
                return Some(in_flight);
            }
        }
        None
    }

    fn landed(&self, sent: Sent, count: usize) {
        let mut backlog = self.backlog();
        *backlog.under_way.of(sent) -= count;
        self.flush(&mut backlog);
    }
}

impl Dispatcher {
    /// The server did not know the script.
    async fn load_and_call(&self, call: ScriptCall) {
        let ScriptCall { script, requests, in_flight, .. } = call;
        let link = match self.loaded(script).await {
            Ok(link) => link,
            Err(refused) => return fail(requests, &refused),
        };
        let is_late =
            |request: &PendingRequest| left_for_another(request.since, self.command_timeout) < self.command_timeout;
        let (late, in_time): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_late);
        self.fail_unsent(late);
        if in_time.is_empty() {
            return;
        }
        match link.room() {
            Some(room) => {
                room.send(ScriptCall { script, requests: in_time.into(), attempt: Attempt::Second, in_flight })
            }
            None => {
                let mut backlog = self.backlog();
                backlog.put_back(in_time);
                self.flush(&mut backlog);
            }
        }
    }

    async fn loaded(&self, script: &Script) -> Result<Arc<Link>, Fault> {
        let link = self.conn.link().await?;
        link.load(script).await.map(|()| link)
    }

    /// The server has refused a whole call, and does not say because of which keys. It may permit each of them alone.
    async fn call_one_by_one(&self, call: ScriptCall) {
        let ScriptCall { script, requests, in_flight: _in_flight, .. } = call;
        let call = async |request: PendingRequest| {
            let left = left_for_another(request.since, self.command_timeout);
            let run = async { self.conn.link().await?.run(script, &request.part).await };
            let answer = clock::within(left, run).await;
            request.end(answer.unwrap_or_else(|| Err(Fault::Unknown(self.conn.trouble(None)))));
        };
        join_all(requests.into_iter().map(call)).await;
    }
}

impl Backlog {
    fn new(company: Company) -> Backlog {
        let (under_way, by_script) = Default::default();
        Backlog { company, under_way, held: 0, window: Window::new(ENOUGH, MOST_UNDER_WAY), closed: None, by_script }
    }

    fn has_room_alone(&self) -> bool {
        self.under_way.alone + self.under_way.together < ALONE.min(self.window.get()) && self.held == 0
    }

    /// True if the gathered requests are worth a call. If no call with several is under way, any number is.
    fn is_due(&self, distance: usize) -> bool {
        let UnderWay { alone, together } = self.under_way;
        let is_worth_it = self.held * PART_OF_UNDER_WAY * distance >= alone + together
            && together < (ENOUGH * distance).min(self.window.get());
        self.held > 0 && (together == 0 || is_worth_it)
    }

    fn join(&mut self, requests: Requests) {
        self.held += requests.len();
        requests.into_iter().for_each(|request| self.batch_of(&request).push_back(request));
    }

    /// These go first.
    fn put_back(&mut self, requests: Vec<PendingRequest>) {
        self.held += requests.len();
        requests.into_iter().rev().for_each(|request| self.batch_of(&request).push_front(request));
    }

    fn batch_of(&mut self, request: &PendingRequest) -> &mut VecDeque<PendingRequest> {
        let (script, is_last) = (request.script, request.urgency == Urgency::Last);
        let is_it = |pending: &PendingBatch| std::ptr::eq(pending.script, script) && pending.is_last == is_last;
        let known = self.by_script.iter().position(is_it);
        let at = known.unwrap_or_else(|| {
            self.by_script.push_back(PendingBatch { script, is_last, waiting: VecDeque::new() });
            self.by_script.len() - 1
        });
        &mut self.by_script[at].waiting
    }

    /// The requests of the next call, all of one script. The scripts take turns.
    fn take(&mut self, distance: usize) -> Option<(&'static Script, Requests)> {
        if !self.is_due(distance) {
            return None;
        }
        let wait = |is_last| move |pending: &PendingBatch| !pending.waiting.is_empty() && pending.is_last == is_last;
        let mut batches = self.by_script.iter();
        let next = batches.position(wait(false)).or_else(|| self.by_script.iter().position(wait(true)))?;
        self.by_script.rotate_left(next);
        let mut pending = self.by_script.pop_front().expect("it was just found");
        let batch: Requests =
            pending.waiting.drain(..pending.waiting.len().min(PARTS).min(self.window.get())).collect();
        self.held -= batch.len();
        let script = pending.script;
        self.by_script.push_back(pending);
        Some((script, batch))
    }

    fn oldest(&self) -> Option<Instant> {
        self.by_script.iter().filter_map(|pending| pending.waiting.front()).map(|request| request.since).min()
    }

    /// The requests that have waited for so long.
    fn take_older(&mut self, age: Duration) -> Vec<PendingRequest> {
        if self.held == 0 {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for PendingBatch { waiting, .. } in &mut self.by_script {
            let count = waiting.iter().take_while(|request| request.since.elapsed() >= age).count();
            taken.extend(waiting.drain(..count));
        }
        self.held -= taken.len();
        taken
    }

    fn take_all(&mut self) -> Vec<PendingRequest> {
        self.held = 0;
        mem::take(&mut self.by_script).into_iter().flat_map(|pending| pending.waiting).collect()
    }
}

fn fail(requests: impl IntoIterator<Item = PendingRequest>, why: &Fault) {
    requests.into_iter().for_each(|request| request.end(Err(why.clone())));
}

/// True if the requests of a call that was refused may be permitted one by one, or if the server then says more.
fn may_succeed_alone(fault: &Fault, requests: &Requests) -> bool {
    let has_several_keys = requests.len() > 1 || requests.iter().any(|request| request.part.keys().nth(1).is_some());
    fault.is_for_some_keys() && has_several_keys || fault.is_across_slots() && requests.len() > 1
}

/// At least 1, which is near: the factor of the limits.
fn distance(shortest: Option<Duration>, company: Company) -> usize {
    let farthest = match company {
        Company::Any => FARTHEST,
        Company::OfOneSlot => FARTHEST_OF_ONE_SLOT,
    };
    let distance = usize::try_from(shortest.unwrap_or_default().as_micros() / NEAR.as_micros()).unwrap_or(usize::MAX);
    distance.clamp(1, farthest)
}

fn by_slot(batch: Requests) -> Vec<Requests> {
    let mut slots = BTreeMap::<u16, Requests>::new();
    for request in batch {
        slots.entry(slot_of(request.part.key())).or_default().push(request);
    }
    slots.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_grow_with_the_round_trip() {
        let far = |millis, company| distance(Some(Duration::from_millis(millis)), company);
        assert_eq!(distance(None, Company::Any), 1, "nothing is known, or replies take long");
        assert_eq!(far(0, Company::Any), 1);
        assert_eq!(far(50, Company::Any), 50);
        assert_eq!(far(300, Company::Any), FARTHEST);
        assert_eq!(far(50, Company::OfOneSlot), FARTHEST_OF_ONE_SLOT);
    }

    #[test]
    fn the_farther_the_server_the_more_is_under_way() {
        let any = || Backlog::new(Company::Any);
        let wide = || Window::new(MOST_UNDER_WAY, MOST_UNDER_WAY);
        let of = |held, together, window| Backlog { held, under_way: UnderWay { alone: 0, together }, window, ..any() };
        let busy = |held, together| of(held, together, wide());
        assert!(busy(1, 0).is_due(1), "nothing else is under way");
        assert!(busy(PARTS, PARTS).is_due(1));
        assert!(!busy(1, PARTS).is_due(1), "it waits for others");
        assert!(busy(1, PARTS).is_due(FARTHEST), "waiting would cost more");
        assert!(!busy(ENOUGH, ENOUGH).is_due(1), "a near server is busy");
        assert!(busy(ENOUGH, ENOUGH).is_due(2));
        assert!(!busy(2 * ENOUGH, 2 * ENOUGH).is_due(2));
        assert!(!of(PARTS, PARTS, Window::new(PARTS, PARTS)).is_due(FARTHEST), "the network is narrow");
    }
}
