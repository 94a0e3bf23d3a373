//! Requests on one connection: while few are under way each goes out at once; those that arrive beyond that are
//! gathered and go out together, one call of a script for many parts. The one place that does this.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::sync::{std, tokio};

use super::{
    conn::{Answers, Conn, Link},
    fault::Fault,
    script::{Answer, Code, Part, Script},
};

/// Requests under way by themselves before others are gathered. Below this many tasks a call of one's own is faster
/// than waiting for company.
const ALONE: usize = 16;
/// Gathered calls under way: some are made up while another is with the server. Measured with 16 to 2,048 tasks: two
/// are a tenth slower, more make no difference.
const SENDERS: usize = 3;
/// Parts in one call: enough to spread its cost, and the server is not kept from others for long (3 µs each).
const PARTS: usize = 128;

/// One connection and what waits for it.
#[derive(Debug)]
pub(super) struct Dispatcher {
    conn: Conn,
    backlog: Mutex<Backlog>,
    /// Told when something waits.
    work: Notify,
    confirmations: mpsc::UnboundedSender<Confirmation>,
}

#[derive(Debug, Default)]
struct Backlog {
    alone: usize,
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

/// A request under way by itself; frees its place when it ends, however it ends.
struct DirectCall<'a>(&'a Dispatcher);

impl Drop for DirectCall<'_> {
    fn drop(&mut self) {
        self.0.backlog().alone -= 1;
    }
}

impl Dispatcher {
    pub(super) fn start(conn: Conn, command_timeout: Duration, closed: &CancellationToken) -> Arc<Dispatcher> {
        let (confirmations, asked) = mpsc::unbounded_channel();
        let dispatcher = Arc::new(Dispatcher { conn, backlog: Mutex::default(), work: Notify::new(), confirmations });
        for _ in 0..SENDERS {
            tokio::spawn(closed.clone().run_until_cancelled_owned(Arc::clone(&dispatcher).send_gathered()));
        }
        tokio::spawn(closed.clone().run_until_cancelled_owned(confirm(asked, command_timeout)));
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
        self.conn.link().await?.ping().await
    }

    /// The bare connection, for measurements beside it.
    #[cfg(feature = "bench")]
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        self.conn.link().await
    }

    /// A place for a call of one's own, or else a place among those that wait.
    fn enter(
        &self,
        script: &'static Script,
        part: &Part,
    ) -> Result<DirectCall<'_>, oneshot::Receiver<Result<Answer, Fault>>> {
        let mut backlog = self.backlog();
        if backlog.alone < ALONE && backlog.is_empty() {
            backlog.alone += 1;
            return Ok(DirectCall(self));
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
        if backlog.is_empty() {
            self.work.notify_one();
        }
        backlog.batch_of(script).push_back(PendingRequest { part: part.clone(), answer });
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
                Some((script, batch)) => self.send(script, batch).await,
                None => self.work.notified().await,
            }
        }
    }

    /// The next call: requests of one script; the scripts take turns.
    fn take(&self) -> Option<(&'static Script, Vec<PendingRequest>)> {
        let mut backlog = self.backlog();
        let taken = backlog.take();
        if !backlog.is_empty() {
            self.work.notify_one(); // for another sender
        }
        taken
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
        let answers = answers.unwrap_or_else(|fault| batch.iter().map(|_| Err(fault.clone())).collect());
        for (waiting, answer) in batch.into_iter().zip(answers) {
            let _ = waiting.answer.send(answer); // who has left takes it back
        }
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
        backlog.by_script.clear();
    }

    async fn answered<T>(&self, answer: oneshot::Receiver<Result<T, Fault>>) -> Result<T, Fault> {
        let lost = |_| Err(self.backlog().closed.clone().unwrap_or_else(|| Fault::unknown("nobody answers any more")));
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
    fn is_empty(&self) -> bool {
        self.by_script.iter().all(|pending| pending.waiting.is_empty())
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
        let next = self.by_script.iter().position(|pending| !pending.waiting.is_empty())?;
        self.by_script.rotate_left(next);
        let mut pending = self.by_script.pop_front().expect("it was just found");
        let batch = pending.waiting.drain(..pending.waiting.len().min(PARTS)).collect();
        let script = pending.script;
        self.by_script.push_back(pending);
        Some((script, batch))
    }
}

/// Of a script that was loaded just before.
fn known(answers: Option<Answers>) -> Result<Answers, Fault> {
    answers.ok_or_else(|| Fault::said("NOSCRIPT although it was just loaded"))
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
async fn confirm(mut asked: mpsc::UnboundedReceiver<Confirmation>, command_timeout: Duration) {
    while let Some(first) = asked.recv().await {
        let mut group = vec![first];
        while let Ok(next) = asked.try_recv() {
            group.push(next);
        }
        while let Some(Confirmation { link, .. }) = group.first() {
            let link = Arc::clone(link);
            let (same, others) = group.into_iter().partition(|other| Arc::ptr_eq(&other.link, &link));
            confirm_together(&link, same, command_timeout).await;
            group = others;
        }
    }
}

/// The replicas have half the command timeout from when the first request was begun, or an eighth if little of that is left.
async fn confirm_together(link: &Link, group: Vec<Confirmation>, command_timeout: Duration) {
    let wanted = group.iter().map(|one| one.wanted).max().unwrap_or(0);
    let waited = group.iter().map(|one| one.begun.elapsed()).max().unwrap_or_default();
    let confirmed = link.confirmed(wanted, (command_timeout / 2).saturating_sub(waited).max(command_timeout / 8)).await;
    for one in group {
        let _ = one.answer.send(confirmed.clone()); // who has left gives the lock back
    }
}
