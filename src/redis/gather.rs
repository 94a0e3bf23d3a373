//! Requests on one connection: while few are under way each goes out at once; those that arrive beyond that are
//! gathered and go out together, one call of a script for many parts. The one place that does this.
//!
//! What has gathered goes out as soon as it is worth a call beside what is under way ([`Backlog::is_due`]); else it is
//! held, since an answer is about to come, and every answer looks again.

use std::{
    collections::{BTreeMap, VecDeque},
    future::{Future, poll_fn},
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

use crate::sync::{std, tokio};

use super::{
    conn::{Answers, Conn, Link},
    fault::Fault,
    keys::slot_of,
    node::NodeSettings,
    script::{Answer, Code, Part, Script},
};

/// Requests under way before others are gathered. Below this many tasks a call of one's own is faster than waiting for
/// company.
const ALONE: usize = 16;
/// What has gathered is worth a call when it is this part of what is under way.
const PART_OF_UNDER_WAY: usize = 2;
/// Gathered calls under way: enough that the rule above decides, and not this. All of these were measured with 1 to 2,048
/// tasks, see docs/benchmarks.md.
const SENDERS: usize = 8;
/// Parts under way that keep the server busy: more than that wait, and make larger calls.
const ENOUGH: usize = 3 * PARTS;
/// Parts in one call: enough to spread its cost, and the server is not kept from others for long (3 µs each).
const PARTS: usize = 128;

/// Which requests may go in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    /// All of one script.
    Any,
    /// Those of one slot: a server of a cluster refuses others. The calls of several slots are written together.
    OfOneSlot,
}

/// One connection and what waits for it.
#[derive(Debug)]
pub(super) struct Dispatcher {
    conn: Conn,
    company: Company,
    backlog: Mutex<Backlog>,
    /// Told when something waits.
    work: Notify,
    confirmations: mpsc::UnboundedSender<Confirmation>,
}

#[derive(Debug, Default)]
struct Backlog {
    /// Requests that were sent by themselves and not answered, or whose callers are not polled.
    alone: usize,
    /// Those that were sent together. Their senders are sure to look again.
    together: usize,
    /// Requests that have gathered.
    held: usize,
    /// How many of them were left when those whose callers had gone were last taken out.
    swept: usize,
    /// Why nothing is sent any more.
    closed: Option<Fault>,
    /// One batch for each script, the one whose turn it is in front.
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
    answer: oneshot::Sender<Result<Answer, Fault>>,
}

/// Closes a dispatcher whose runtime ends, if nobody closed it before.
struct CloseOnDrop(Arc<Dispatcher>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(Fault::Abandoned);
    }
}

/// Requests under way; whatever becomes of them, those that have gathered are looked at when they end.
struct UnderWay<'a> {
    dispatcher: &'a Dispatcher,
    alone: usize,
    together: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut backlog = self.dispatcher.backlog();
        (backlog.alone, backlog.together) = (backlog.alone - self.alone, backlog.together - self.together);
        self.dispatcher.look_at(&backlog);
    }
}

impl Dispatcher {
    pub(super) fn start(conn: Conn, settings: NodeSettings, closed: &CancellationToken) -> Arc<Dispatcher> {
        let company = settings.company;
        let (confirmations, asked) = mpsc::unbounded_channel();
        let (backlog, work) = (Mutex::default(), Notify::new());
        let dispatcher = Arc::new(Dispatcher { conn, company, backlog, work, confirmations });
        for _ in 0..SENDERS {
            tokio::spawn(closed.clone().run_until_cancelled_owned(Arc::clone(&dispatcher).send_gathered()));
        }
        tokio::spawn(closed.clone().run_until_cancelled_owned(confirm(asked, settings)));
        let (last, closed) = (CloseOnDrop(Arc::clone(&dispatcher)), closed.clone());
        tokio::spawn(async move {
            closed.cancelled().await;
            last.0.close(Fault::Closed);
        });
        dispatcher
    }

    /// Sends one request and waits for its answer.
    pub(super) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        match self.enter(script, &part) {
            Ok(_place) => self.call(script, &part).await,
            Err(answer) => self.answered(answer).await,
        }
    }

    /// Sends one request that is in no hurry, with whatever else gathers.
    pub(super) async fn request_gathered(&self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        let answer = self.join(&mut self.backlog(), script, part);
        self.answered(answer).await
    }

    /// Sends one request, then WAIT on the same connection. Never gathered: WAIT speaks of one connection.
    pub(super) async fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> Result<(Answer, u8), Fault> {
        let (begun, link) = (Instant::now(), self.conn.link().await?);
        if part.is_recalled() {
            return Err(Fault::Closed); // nobody uses it
        }
        let answer = link.run(script, &[part]).await?.pop().expect("one part, one answer")?;
        let confirmed = if answer.code == Code::Granted { self.confirmed(link, wanted, begun).await? } else { 0 };
        Ok((answer, confirmed))
    }

    /// How many replicas have what was written on that link so far.
    async fn confirmed(&self, link: Arc<Link>, wanted: u8, begun: Instant) -> Result<u8, Fault> {
        let (answer, receiver) = oneshot::channel();
        let _ = self.confirmations.send(Confirmation { link, wanted, begun, answer });
        self.answered(receiver).await
    }

    /// Not gathered: it asks whether the connection lives.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        match self.conn.link().await?.ping().await {
            Err(Fault::Unknown(_)) => self.conn.link().await?.ping().await, // the next connection may be answered in time
            answered => answered,
        }
    }

    /// The bare connection, for measurements beside it.
    #[cfg(feature = "bench")]
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        self.conn.link().await
    }

    pub(super) async fn needed(&self) {
        self.conn.needed().await;
    }

    pub(super) fn is_unwell(&self, late: Duration) -> bool {
        self.conn.is_unwell(late)
    }

    /// The same, if there is one that lives.
    pub(super) fn link_now(&self) -> Option<Arc<Link>> {
        self.conn.link_now()
    }

    /// A place for a call of one's own, or else a place among those that wait.
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
        let (answer, receiver) = oneshot::channel();
        if backlog.closed.is_some() {
            return receiver; // whose sender is gone
        }
        backlog.batch_of(script).push_back(PendingRequest { part: part.clone(), answer });
        backlog.held += 1;
        backlog.sweep();
        self.look_at(backlog);
        receiver
    }

    async fn call(&self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        let link = self.conn.link().await?;
        if part.is_recalled() {
            return Err(Fault::Closed); // nobody uses it
        }
        link.run(script, std::slice::from_ref(part)).await?.pop().expect("one part, one answer")
    }

    /// One of the senders: sends what has gathered, call after call.
    async fn send_gathered(self: Arc<Dispatcher>) {
        loop {
            match self.take() {
                Some((_under_way, script, batch)) => self.send_all(script, batch).await,
                None => self.work.notified().await,
            }
        }
    }

    /// The next call: requests of one script; the scripts take turns.
    fn take(&self) -> Option<(UnderWay<'_>, &'static Script, Vec<PendingRequest>)> {
        let mut backlog = self.backlog();
        let (script, batch) = backlog.take()?;
        self.look_at(&backlog); // for another sender
        Some((UnderWay { dispatcher: self, alone: 0, together: batch.len() }, script, batch))
    }

    /// Calls a sender if there is something for it.
    fn look_at(&self, backlog: &Backlog) {
        if backlog.is_due() {
            self.work.notify_one();
        }
    }

    /// One call, or one for each slot, all written at once.
    async fn send_all(&self, script: &'static Script, batch: Vec<PendingRequest>) {
        match self.company {
            Company::Any => self.send(script, batch).await,
            Company::OfOneSlot => _ = join_all(by_slot(batch).map(|batch| self.send(script, batch))).await,
        }
    }

    /// Requests whose caller has left are not sent. Who is still there is decided, and the call written, while the
    /// backlog is locked: a caller who leaves later takes the request back with one that must pass the backlog first, and
    /// so comes after it.
    async fn send(&self, script: &'static Script, mut batch: Vec<PendingRequest>) {
        let answers = match self.conn.link().await {
            Ok(link) => match self.write(&link, script, &mut batch).await {
                // The server did not know the script. Who has left meanwhile is left out of the second try.
                Ok(None) => match link.load(script).await {
                    Ok(()) => self.write(&link, script, &mut batch).await.and_then(known),
                    Err(fault) => Err(fault),
                },
                answers => answers.and_then(known),
            },
            Err(fault) => Err(fault),
        };
        let answers = match answers {
            // Nobody says which key it was, and the others may be allowed.
            Err(fault) if fault.is_for_some_keys() && batch.len() > 1 => {
                return Box::pin(self.send_one_by_one(script, batch)).await;
            }
            answers => answers.unwrap_or_else(|fault| batch.iter().map(|_| Err(fault.clone())).collect()),
        };
        for (waiting, answer) in batch.into_iter().zip(answers) {
            let _ = waiting.answer.send(answer); // who has left takes it back
        }
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
            let recalled = batch.extract_if(.., |waiting| waiting.part.is_recalled());
            recalled.for_each(|waiting| _ = waiting.answer.send(Err(Fault::Closed)));
            batch.retain(|waiting| !waiting.answer.is_closed());
            let parts: Vec<_> = batch.iter().map(|waiting| waiting.part.clone()).collect();
            if parts.is_empty() { Ok(Some(Vec::new())) } else { link.try_run(script, &parts).await }
        });
        match poll_fn(|cx| Poll::Ready(self.locked(|| call.as_mut().poll(cx)))).await {
            Poll::Ready(answers) => answers,
            Poll::Pending => call.await,
        }
    }

    /// Nothing is sent any more: whoever waits is told by the loss of the sender. The first reason stays.
    fn close(&self, why: Fault) {
        let mut backlog = self.backlog();
        backlog.closed.get_or_insert(why);
        (backlog.by_script, backlog.held) = (VecDeque::new(), 0);
    }

    async fn answered<T>(&self, answer: oneshot::Receiver<Result<T, Fault>>) -> Result<T, Fault> {
        let lost = |_| {
            Err(self
                .backlog()
                .closed
                .clone()
                .unwrap_or_else(|| Fault::unknown("the task of this connection has ended")))
        };
        answer.await.unwrap_or_else(lost)
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
    /// In an outage callers come and go, and nothing is sent: what they leave is not kept. Looked at whenever it has doubled.
    fn sweep(&mut self) {
        if self.held < 2 * self.swept.max(PARTS) {
            return;
        }
        for pending in &mut self.by_script {
            pending.waiting.retain(|waiting| !waiting.answer.is_closed());
        }
        self.held = self.by_script.iter().map(|pending| pending.waiting.len()).sum();
        self.swept = self.held;
    }

    /// Whether what has gathered is worth a call; and if nobody is sure to look again, anything is.
    fn is_due(&self) -> bool {
        let is_worth_it = self.held * PART_OF_UNDER_WAY >= self.alone + self.together && self.together < ENOUGH;
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

    fn take(&mut self) -> Option<(&'static Script, Vec<PendingRequest>)> {
        if !self.is_due() {
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

fn by_slot(batch: Vec<PendingRequest>) -> impl Iterator<Item = Vec<PendingRequest>> {
    let mut slots = BTreeMap::<u16, Vec<PendingRequest>>::new();
    for waiting in batch {
        slots.entry(slot_of(waiting.part.key())).or_default().push(waiting);
    }
    slots.into_values()
}

/// Of a script that was loaded just before.
fn known(answers: Option<Answers>) -> Result<Answers, Fault> {
    answers.ok_or_else(|| Fault::said("NOSCRIPT although the script was just loaded"))
}

/// Wants to know how many replicas have what was written on a link before.
#[derive(Debug)]
struct Confirmation {
    link: Arc<Link>,
    wanted: u8,
    /// The request was, which may have waited behind a WAIT.
    begun: Instant,
    answer: oneshot::Sender<Result<u8, Fault>>,
}

/// One WAIT after the other, each for all that was asked before it was sent, as a database commits in groups: so nobody
/// waits for more than two, however many ask. In a task of its own, since one whose caller does not look must not hold up
/// the others. Between two of them the other requests of the connection get through.
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

/// The replicas have half the command timeout from when the first request was begun, or an eighth if little of that is left.
async fn confirm_together(link: &Link, group: Vec<Confirmation>, settings: NodeSettings) {
    let NodeSettings { command_timeout, confirmed, .. } = settings;
    let wanted = group.iter().map(|one| one.wanted).max().unwrap_or(0);
    let waited = group.iter().map(|one| one.begun.elapsed()).max().unwrap_or_default();
    let time = (command_timeout / 2).saturating_sub(waited).max(command_timeout / 8);
    let count = link.confirmed(confirmed, wanted, time).await;
    for one in group {
        let _ = one.answer.send(count.clone()); // who has left gives the lock back
    }
}
