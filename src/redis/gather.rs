//! Requests on one connection: alone they go out at once; those that arrive while others are under way are gathered
//! and go out together, one call of a script for many parts. The one place that does this.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    conn::{Conn, Link},
    fault::Fault,
    script::{Answer, Part, Script},
};

/// Calls under way before requests are gathered.
const UNDER_WAY: usize = 4;
/// Parts in one call: enough to spread its cost, and the server is not kept from others for long (3 µs each).
const PARTS: usize = 128;

/// One connection and what waits for it.
#[derive(Debug)]
pub(super) struct Line {
    conn: Conn,
    desk: Mutex<Desk>,
    /// Told when something waits and there is room for a call.
    room: Notify,
}

#[derive(Debug, Default)]
struct Desk {
    under_way: usize,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    script: &'static Script,
    part: Part,
    answer: oneshot::Sender<Result<Answer, Fault>>,
}

/// A call under way; frees its place when it ends, however it ends.
struct Place<'a>(&'a Line);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut desk = self.0.desk();
        desk.under_way -= 1;
        if !desk.waiting.is_empty() {
            self.0.room.notify_one();
        }
    }
}

impl Line {
    pub(super) fn start(conn: Conn, closed: &CancellationToken) -> Arc<Line> {
        let line = Arc::new(Line { conn, desk: Mutex::default(), room: Notify::new() });
        tokio::spawn(closed.clone().run_until_cancelled_owned(Arc::clone(&line).send_gathered()));
        line
    }

    /// Sends one request and waits for its answer.
    pub(super) async fn request(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        match self.enter(script, part) {
            Ok((_place, part)) => self.call(script, part).await,
            Err(answer) => answered(answer).await,
        }
    }

    /// Sends one request that is in no hurry, with whatever else gathers.
    pub(super) async fn request_gathered(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        let answer = self.join(&mut self.desk(), script, part);
        answered(answer).await
    }

    /// Sends one request, then WAIT on the same connection. Never gathered: WAIT speaks of one connection.
    pub(super) async fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> Result<(Answer, u8), Fault> {
        let link = self.conn.link().await?;
        let answer = link.run(script, &[part]).await?.pop().expect("one part, one answer")?;
        Ok((answer, link.confirmed(wanted).await?))
    }

    /// The bare connection, for measurements beside it.
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        self.conn.link().await
    }

    /// A place for a call of one's own, or else a place among those that wait.
    #[allow(clippy::type_complexity)]
    fn enter(
        &self,
        script: &'static Script,
        part: Part,
    ) -> Result<(Place<'_>, Part), oneshot::Receiver<Result<Answer, Fault>>> {
        let mut desk = self.desk();
        if desk.under_way < UNDER_WAY && desk.waiting.is_empty() {
            desk.under_way += 1;
            return Ok((Place(self), part));
        }
        Err(self.join(&mut desk, script, part))
    }

    fn join(&self, desk: &mut Desk, script: &'static Script, part: Part) -> oneshot::Receiver<Result<Answer, Fault>> {
        let (answer, receiver) = oneshot::channel();
        desk.waiting.push(Waiting { script, part, answer });
        if desk.under_way < UNDER_WAY {
            self.room.notify_one();
        }
        receiver
    }

    async fn call(&self, script: &'static Script, part: Part) -> Result<Answer, Fault> {
        let link = self.conn.link().await?;
        link.run(script, &[part]).await?.pop().expect("one part, one answer")
    }

    /// Sends what has gathered, whenever there is room.
    async fn send_gathered(self: Arc<Line>) {
        loop {
            self.room.notified().await;
            while let Some(batch) = self.take() {
                let line = Arc::clone(&self);
                tokio::spawn(async move { line.send(batch).await });
            }
        }
    }

    /// The oldest request that waits and all like it, as one call; `None` without room or without requests.
    /// Requests whose caller is gone are left out: their caller may already be taking them back, and that must not
    /// overtake them.
    fn take(&self) -> Option<Vec<Waiting>> {
        let mut desk = self.desk();
        desk.waiting.retain(|waiting| !waiting.answer.is_closed());
        if desk.under_way >= UNDER_WAY {
            return None;
        }
        let script = desk.waiting.first()?.script;
        desk.under_way += 1;
        let (mut batch, mut rest) = (Vec::new(), Vec::new());
        for waiting in mem::take(&mut desk.waiting) {
            let fits = std::ptr::eq(waiting.script, script) && batch.len() < PARTS;
            if fits { batch.push(waiting) } else { rest.push(waiting) }
        }
        desk.waiting = rest;
        Some(batch)
    }

    async fn send(&self, mut batch: Vec<Waiting>) {
        let _place = Place(self);
        let script = batch[0].script;
        let answers = match self.conn.link().await {
            Ok(link) => {
                let mut call = pin!(async {
                    batch.retain(|waiting| !waiting.answer.is_closed());
                    let parts: Vec<_> = batch.iter().map(|waiting| waiting.part.clone()).collect();
                    link.run(script, &parts).await
                });
                // Who is still there is decided, and the call written, while the desk is locked: a caller who leaves
                // later takes his request back with one that must pass the desk first, and so comes after it.
                match poll_fn(|cx| Poll::Ready(self.locked(|| call.as_mut().poll(cx)))).await {
                    Poll::Ready(answers) => answers,
                    Poll::Pending => call.await,
                }
            }
            Err(fault) => Err(fault),
        };
        let answers = answers.unwrap_or_else(|fault| batch.iter().map(|_| Err(fault.clone())).collect());
        for (waiting, answer) in batch.into_iter().zip(answers) {
            let _ = waiting.answer.send(answer); // who has left takes back what he asked for
        }
    }

    fn locked<T>(&self, work: impl FnOnce() -> T) -> T {
        let _desk = self.desk();
        work()
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn answered(answer: oneshot::Receiver<Result<Answer, Fault>>) -> Result<Answer, Fault> {
    answer.await.unwrap_or_else(|_| Err(Fault::unknown("the client is closed")))
}
