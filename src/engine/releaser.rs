//! Giving back: to the next in line here where that is allowed, else to all. In the background too, for what was
//! dropped, cancelled or left in doubt.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    ask::{Heard, Pauses, Question},
    hold::Hold,
    queue::{Queues, Waiter},
};
use crate::{
    clock::Moment,
    error::{Error, Result},
    redis::{Code, PUBLISH, Redis},
    stats::Counters,
    sync::{std, tokio},
};

/// How long closing waits for those who ask still; they are told that the client closes.
const CLOSING: Duration = Duration::from_millis(500);
/// Errands under way at once, 5 KiB each; more wait for these, in a tenth of the room.
const AT_ONCE: usize = 4096;

/// One hold whose count on the server has to come down to what is wanted.
#[derive(Debug)]
pub(crate) struct Errand {
    hold: Arc<Hold>,
    /// It may go to the next in line here.
    pass_on: bool,
    /// Whom it is being handed to, while there is no answer.
    heir: Option<Arc<Waiter>>,
    /// It has been tried for as long as a request may take.
    tried: bool,
    /// Whoever asks for the name waits for it.
    awaited: bool,
}

/// The server said no, and has done nothing.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Server { .. } | Error::Denied { .. })
}

/// It would be the same for ever.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::Conflict { .. } | Error::Closed)
}

/// One answered request of an errand.
#[derive(Debug)]
struct Step {
    was_ours: bool,
    is_last: bool,
}

/// The sending end. Sending neither spawns nor blocks, so guards can be dropped anywhere.
#[derive(Debug)]
pub(crate) struct Releaser {
    errands: mpsc::UnboundedSender<Errand>,
    office: Arc<Office>,
}

#[derive(Debug)]
struct Office {
    redis: Arc<Redis>,
    queues: Arc<Queues>,
    counters: Arc<Counters>,
    /// How many releases of each name are on their way in the background.
    pending: Mutex<HashMap<Arc<str>, usize>>,
    /// Told after each release, in the background or not.
    done: Notify,
    stop: CancellationToken,
}

impl Errand {
    /// `granted`: the server had granted it; else it is only taken back in case it was, and not passed on.
    pub(crate) fn new(hold: &Arc<Hold>, granted: bool) -> Errand {
        Errand { hold: Arc::clone(hold), pass_on: granted, heir: None, tried: false, awaited: false }
    }

    /// After this, nothing of it can be left on the server, nor of the heir to which it may have been handed.
    fn bound(&self) -> Moment {
        let heirs = self.heir.as_ref().map(|heir| heir.hold.bound());
        heirs.unwrap_or(self.hold.bound()).max(self.hold.bound())
    }

    /// The right to ask about the hold, or `None` for going ahead although somebody else has it: that was passed over, or
    /// keeps it for so long that it does not look or has no answer either. Once nobody holds a level, or nobody will be
    /// told of it, no order of requests leaves anything there that anybody believes in.
    async fn turn<'a>(&self, hold: &'a Hold, give_up: Instant) -> Result<Option<tokio::sync::MutexGuard<'a, ()>>> {
        let started = Instant::now();
        if hold.is_evicted() || self.tried && hold.is_over() {
            return Ok(None);
        }
        let doomed = hold.is_doomed();
        let until = if doomed { give_up.min(started + CLOSING) } else { give_up };
        match timeout_at(until, hold.turn.lock()).await {
            Ok(turn) => Ok(Some(turn)),
            Err(_) if doomed => Ok(None),
            Err(_) => Err(Error::silent("waiting behind a request", started.elapsed(), None)),
        }
    }

    /// Not to the heir it was meant for, nor to any other.
    fn keep_from_heir(&mut self) {
        self.pass_on = false;
        if let Some(heir) = self.heir.take() {
            heir.withdraw();
        }
    }

    /// For all, not for the next in line here.
    pub(crate) fn for_all(hold: &Arc<Hold>) -> Errand {
        Errand { pass_on: false, ..Errand::new(hold, true) }
    }
}

/// A release that counts as under way from before its hold leaves the registry: whoever closes finds one or the other.
pub(crate) struct Begun<'a>(&'a Releaser);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.office.one_less();
    }
}

/// An errand run by its caller; if that goes away, the background takes over, which counts anew before this ends.
struct Running<'a> {
    errand: Option<Errand>,
    begun: Begun<'a>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(errand) = self.errand.take() {
            self.begun.0.send(errand);
        }
    }
}

impl Begun<'_> {
    /// Runs an errand now and waits for the answer: whether the level was ours until then. Without an answer, or without
    /// somebody to wait for it, it goes on in the background.
    pub(crate) async fn run(self, errand: Errand, give_up: Instant) -> Result<bool> {
        let mut running = Running { errand: Some(errand), begun: self };
        let errand = running.errand.as_mut().expect("just put there");
        let step = Box::pin(running.begun.0.office.bring(errand, give_up)).await?;
        if step.is_last {
            running.errand = None;
        }
        Ok(step.was_ours)
    }
}

impl Releaser {
    /// Starts the task. It ends when it is stopped, or when the sender is gone and all is given back.
    pub(crate) fn start(redis: Arc<Redis>, queues: Arc<Queues>, counters: Arc<Counters>) -> (Releaser, JoinHandle<()>) {
        let (errands, inbox) = mpsc::unbounded_channel();
        let (pending, done, stop) = (Mutex::default(), Notify::new(), CancellationToken::new());
        let office = Arc::new(Office { redis, queues, counters, pending, done, stop });
        let run = Arc::clone(&office).run(inbox);
        (Releaser { errands, office }, tokio::spawn(run))
    }

    /// To be held while a level is given up on our side and until its errand is under way.
    pub(crate) fn begin(&self) -> Begun<'_> {
        self.office.counters.releasing.up();
        Begun(self)
    }

    /// Runs an errand in the background.
    pub(crate) fn send(&self, mut errand: Errand) {
        self.office.counters.releasing.up();
        errand.awaited = errand.hold.wanted() == 0; // an inner level frees nothing
        if errand.awaited {
            *self.office.pending().entry(Arc::clone(errand.hold.name.key())).or_default() += 1;
        }
        if let Err(mpsc::error::SendError(errand)) = self.errands.send(errand) {
            self.office.finished(&errand); // stopped: the lease ends it
        }
    }

    /// Resolves when nothing of this name is on its way back: who dropped a guard and asks again finds it free.
    pub(crate) async fn clear(&self, key: &str) {
        self.until(|pending| !pending.contains_key(key)).await;
    }

    /// Resolves when no release is under way.
    pub(crate) async fn idle(&self) {
        self.until(|_| self.office.counters.releasing.get() == 0).await;
    }

    async fn until(&self, ready: impl Fn(&HashMap<Arc<str>, usize>) -> bool) {
        loop {
            let done = self.office.done.notified();
            if ready(&self.office.pending()) {
                return;
            }
            done.await;
        }
    }

    pub(crate) fn stop(&self) {
        self.office.stop.cancel();
    }
}

impl Office {
    async fn run(self: Arc<Office>, mut inbox: mpsc::UnboundedReceiver<Errand>) {
        let mut under_way = JoinSet::new();
        loop {
            tokio::select! {
                biased; // once stopped, nothing more is begun
                () = self.stop.cancelled() => return self.refuse(inbox).await,
                Some(_) = under_way.join_next() => {}
                errand = inbox.recv(), if under_way.len() < AT_ONCE => match errand {
                    Some(errand) => _ = under_way.spawn(Arc::clone(&self).in_background(errand)),
                    None => break,
                },
            }
        }
        let _ = self.stop.run_until_cancelled(under_way.join_all()).await;
    }

    /// What comes too late is not under way: its lease ends it.
    async fn refuse(&self, mut inbox: mpsc::UnboundedReceiver<Errand>) {
        inbox.close();
        while let Some(errand) = inbox.recv().await {
            self.finished(&errand);
        }
    }

    /// Tries until it is answered or nothing can be left on the server, whatever is answered meanwhile: a right that is
    /// missing may be given, a full server may be emptied. Lets go of the turn between tries.
    async fn in_background(self: Arc<Office>, mut errand: Errand) {
        let mut pauses = Pauses::default();
        loop {
            match self.bring(&mut errand, Instant::now() + self.redis.patience()).await {
                Ok(step) if step.is_last => break,
                Ok(_) => pauses = Pauses::default(),
                Err(error) if is_final(&error) || errand.bound() <= Moment::now() => {
                    self.give_up(&errand, &error);
                    break;
                }
                Err(Error::Unavailable { .. }) => errand.tried = true, // it has waited
                Err(_) => sleep(pauses.next()).await,
            }
        }
        self.finished(&errand);
    }

    fn give_up(&self, errand: &Errand, error: &Error) {
        tracing::warn!(target: "leasehold::lock", name = &*errand.hold.name, id = &*errand.hold.id, %error,
            "not given back; it ends with its lease");
        if let Some(heir) = &errand.heir {
            heir.withdraw();
        }
        self.queues.ring(&errand.hold);
    }

    /// Brings the server's count to what is wanted, or the lock to the next in line. The errand always says what is
    /// left to do, so that somebody else can go on with it.
    async fn bring(&self, errand: &mut Errand, give_up: Instant) -> Result<Step> {
        let hold = Arc::clone(&errand.hold);
        let started = Instant::now();
        let _turn = errand.turn(&hold, give_up).await?;
        loop {
            let level = hold.wanted();
            if level == 0 && hold.is_returned() {
                return Ok(Step { was_ours: true, is_last: true }); // another guard's errand has done it
            }
            if errand.heir.is_none() && errand.pass_on && level == 0 {
                errand.heir = self.queues.heir(&hold);
            }
            let Some(heir) = errand.heir.clone() else {
                return self.release(errand, level, (started, give_up)).await;
            };
            let asked = hold.returning();
            let heard = match self.hand_over(&hold, &heir, (started, give_up)).await {
                Err(error) if is_refusal(&error) => {
                    errand.keep_from_heir(); // for a server without memory, say, a release is less than a hand-over
                    continue;
                }
                heard => heard?,
            };
            errand.heir = None;
            match heard.answer.code {
                Code::Handed => {
                    hold.returned(&asked);
                    self.count(&hold);
                    let is_last = heir.hand(heard.sent);
                    if !is_last {
                        errand.hold = Arc::clone(&heir.hold); // it has left: the lock must go on to the next
                    }
                    return Ok(Step { was_ours: true, is_last });
                }
                Code::Deeper => {
                    hold.not_returned();
                    heir.withdraw();
                    errand.pass_on = false;
                }
                _ => {
                    heir.withdraw();
                    let may_be_done = heard.again || asked.before;
                    return Ok(Step { was_ours: self.outcome(&hold, &heard, may_be_done)?, is_last: true });
                }
            }
        }
    }

    async fn hand_over(&self, hold: &Hold, heir: &Waiter, (since, give_up): (Instant, Instant)) -> Result<Heard> {
        let part = hold.part(heir.lease.millis(), 0, &heir.hold.id);
        Question {
            name: &hold.name,
            hold: Some((&heir.hold, heir.lease)),
            script: &hold.kind.hand_over,
            part,
            replicas: 0,
            what: "handing over the lock",
            pauses: Pauses::default(),
            insists: false,
            since,
            give_up,
        }
        .ask(&self.redis)
        .await
    }

    async fn release(&self, errand: &Errand, level: u32, (since, give_up): (Instant, Instant)) -> Result<Step> {
        let hold = &errand.hold;
        let question = Question {
            name: &hold.name,
            hold: None,
            script: &hold.kind.release,
            part: hold.part(0, level, PUBLISH),
            replicas: 0,
            what: "giving back the lock",
            pauses: if errand.tried { Pauses::last() } else { Pauses::default() },
            insists: true,
            since,
            give_up,
        };
        let asked = (level == 0).then(|| hold.returning());
        let heard = question.ask(&self.redis).await?;
        match (heard.answer.code, &asked) {
            (Code::Released, Some(asked)) => {
                hold.returned(asked);
                self.count(hold);
                let told = heard.answer.value.int().and_then(|told| u64::try_from(told).ok()).unwrap_or(0);
                self.queues.released(hold, self.others(hold, told));
            }
            (Code::Gone, _) => {
                hold.not_returned(); // there is an answer: no later one may take it for a lost one
                self.queues.ring(hold); // nothing was published
            }
            _ => {}
        }
        let may_be_done = asked.is_some_and(|asked| heard.again || asked.before); // an inner level leaves the hold there
        Ok(Step { was_ours: self.outcome(hold, &heard, may_be_done)?, is_last: true })
    }

    /// How many of those who were told are not ourselves.
    fn others(&self, hold: &Hold, told: u64) -> u64 {
        let hears = told > 0 && self.redis.hears(&hold.kind.channel(hold.name.key()));
        told.saturating_sub(hears.into())
    }

    /// Whether the level was ours until it was given back. `may_be_done`: by the same request, which had no answer before.
    fn outcome(&self, hold: &Hold, heard: &Heard, may_be_done: bool) -> Result<bool> {
        match heard.answer.code {
            Code::Released | Code::Handed => Ok(true),
            // The first try worked, or the lease had ended: nobody can tell. Nor is it sure to stay gone: a lock that
            // is being handed to this hold may yet arrive, and who brings it must find that it has not been returned.
            Code::Gone if may_be_done => {
                self.count(hold);
                Ok(true)
            }
            Code::Gone => Ok(false),
            _ => Err(super::ask::unexpected(&heard.answer)),
        }
    }

    fn count(&self, hold: &Hold) {
        if hold.count_return() {
            self.counters.released.up();
            tracing::debug!(target: "leasehold::lock", name = &*hold.name, id = &*hold.id, "released");
        }
    }

    /// The name stays the same, whomever it was passed on to.
    fn finished(&self, errand: &Errand) {
        if errand.awaited {
            self.no_longer_awaited(errand.hold.name.key());
        }
        self.one_less();
    }

    fn no_longer_awaited(&self, key: &str) {
        let mut pending = self.pending();
        if let Some(count) = pending.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                pending.remove(key);
            }
        }
    }

    fn one_less(&self) {
        self.counters.releasing.down();
        self.done.notify_waiters();
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
