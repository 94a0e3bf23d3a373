//! Giving back: to the next in the queue here where that is allowed, else to all. In the background too, for what was
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
    ask::{Pauses, Reply, ScriptRequest},
    hold::Hold,
    queue::Queues,
    waiter::Waiter,
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
/// Jobs under way at once, 5 KiB each; more wait for these, in a tenth of the room.
const AT_ONCE: usize = 4096;

/// One hold whose count on the server has to come down to what is wanted.
#[derive(Debug)]
pub(crate) struct ReleaseJob {
    hold: Arc<Hold>,
    /// It may go to the next in the queue here.
    pass_on: bool,
    /// Whom it is being handed to, while there is no answer.
    heir: Option<Arc<Waiter>>,
    /// It has been tried for as long as a request may take.
    tried: bool,
    /// Between two tries that were refused.
    pauses: Pauses,
    /// That it is under way in the background.
    counted: Option<Counted>,
}

/// A release that is under way in the background, until it is dropped: done, or given up, or with the runtime.
#[derive(Debug)]
struct Counted {
    worker: Arc<ReleaseWorker>,
    /// Whoever asks for this name waits for it.
    awaited: Option<Arc<str>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(key) = &self.awaited {
            self.worker.no_longer_awaited(key);
        }
        self.worker.one_less();
    }
}

/// The server said no, and has done nothing.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Server { .. } | Error::Denied { .. })
}

/// It would be the same for ever.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::Conflict { .. } | Error::Closed)
}

/// One answered request of a job.
#[derive(Debug)]
struct JobProgress {
    was_ours: bool,
    is_last: bool,
}

/// The sending end. Sending neither spawns nor blocks, so guards can be dropped anywhere.
#[derive(Debug)]
pub(crate) struct Releaser {
    jobs: mpsc::UnboundedSender<ReleaseJob>,
    worker: Arc<ReleaseWorker>,
}

#[derive(Debug)]
struct ReleaseWorker {
    redis: Arc<Redis>,
    queues: Arc<Queues>,
    counters: Arc<Counters>,
    /// How many releases of each name are on their way in the background.
    pending: Mutex<HashMap<Arc<str>, usize>>,
    /// Told after each release, in the background or not.
    done: Notify,
    stop: CancellationToken,
}

impl ReleaseJob {
    /// `granted`: the server had granted it; else it is only taken back in case it was, and not passed on.
    pub(crate) fn new(hold: &Arc<Hold>, granted: bool) -> ReleaseJob {
        let (hold, pauses) = (Arc::clone(hold), Pauses::default());
        ReleaseJob { hold, pass_on: granted, heir: None, tried: false, pauses, counted: None }
    }

    /// After this, nothing of it can be left on the server, nor of the heir to which it may have been handed.
    fn bound(&self) -> Moment {
        let heirs = self.heir.as_ref().map(|heir| heir.hold.bound());
        heirs.unwrap_or(self.hold.bound()).max(self.hold.bound())
    }

    /// The right to ask about the hold, or `None` for going ahead although somebody else has it: that was passed over, or
    /// keeps it for so long that it does not look or has no answer either. Once nobody holds an acquisition, or nobody will be
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
            Err(_) => Err(Error::silent("waiting behind a request", &hold.name, started.elapsed(), None)),
        }
    }

    async fn rest(mut self) -> ReleaseJob {
        sleep(self.pauses.next()).await;
        self
    }

    /// Not to the heir it was meant for, nor to any other.
    fn keep_from_heir(&mut self) {
        self.pass_on = false;
        if let Some(heir) = self.heir.take() {
            heir.withdraw();
        }
    }

    /// For all, not for the next in the queue here.
    pub(crate) fn for_all(hold: &Arc<Hold>) -> ReleaseJob {
        ReleaseJob { pass_on: false, ..ReleaseJob::new(hold, true) }
    }
}

/// A release that counts as under way from before its hold leaves the registry: whoever closes finds one or the other.
pub(crate) struct ReleaseUnderWay<'a>(&'a Releaser);

impl Drop for ReleaseUnderWay<'_> {
    fn drop(&mut self) {
        self.0.worker.one_less();
    }
}

/// A job run by its caller; if that goes away, the background takes over, which counts anew before this ends.
struct ForegroundRelease<'a> {
    job: Option<ReleaseJob>,
    begun: ReleaseUnderWay<'a>,
}

impl Drop for ForegroundRelease<'_> {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.begun.0.send(job);
        }
    }
}

impl ReleaseUnderWay<'_> {
    /// Runs a job now and waits for the answer: whether it was ours until then. Without an answer, or without
    /// somebody to wait for it, it goes on in the background.
    pub(crate) async fn run(self, job: ReleaseJob, give_up: Instant) -> Result<bool> {
        let mut running = ForegroundRelease { job: Some(job), begun: self };
        let job = running.job.as_mut().expect("just put there");
        let progress = Box::pin(running.begun.0.worker.bring(job, give_up)).await?;
        if progress.is_last {
            running.job = None;
        }
        Ok(progress.was_ours)
    }
}

impl Releaser {
    /// Starts the task. It ends when it is stopped, or when the sender is gone and all is given back.
    pub(crate) fn start(redis: Arc<Redis>, queues: Arc<Queues>, counters: Arc<Counters>) -> (Releaser, JoinHandle<()>) {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let (pending, done, stop) = (Mutex::default(), Notify::new(), CancellationToken::new());
        let worker = Arc::new(ReleaseWorker { redis, queues, counters, pending, done, stop });
        let run = Arc::clone(&worker).run(inbox);
        (Releaser { jobs, worker }, tokio::spawn(run))
    }

    /// To be held while an acquisition is given up on our side and until its job is under way.
    pub(crate) fn begin(&self) -> ReleaseUnderWay<'_> {
        self.worker.counters.releasing.up();
        ReleaseUnderWay(self)
    }

    /// Runs a job in the background.
    pub(crate) fn send(&self, mut job: ReleaseJob) {
        self.worker.counters.releasing.up();
        let awaited = (job.hold.wanted() == 0).then(|| Arc::clone(job.hold.name.key())); // an inner one frees nothing
        if let Some(key) = &awaited {
            *self.worker.pending().entry(Arc::clone(key)).or_default() += 1;
        }
        job.counted = Some(Counted { worker: Arc::clone(&self.worker), awaited });
        let _ = self.jobs.send(job); // once stopped it is dropped: the lease ends it
    }

    /// Resolves when nothing of this name is on its way back: who dropped a guard and asks again finds it free.
    pub(crate) async fn clear(&self, key: &str) {
        self.until(|pending| !pending.contains_key(key)).await;
    }

    /// Resolves when no release is under way, and that is true: looked at after each release.
    pub(crate) async fn idle(&self, and: impl Fn() -> bool) {
        self.until(|_| and() && self.worker.counters.releasing.get() == 0).await; // in this order: see `begin`
    }

    async fn until(&self, ready: impl Fn(&HashMap<Arc<str>, usize>) -> bool) {
        loop {
            let done = self.worker.done.notified();
            if ready(&self.worker.pending()) {
                return;
            }
            done.await;
        }
    }

    pub(crate) fn stop(&self) {
        self.worker.stop.cancel();
    }
}

impl ReleaseWorker {
    async fn run(self: Arc<ReleaseWorker>, inbox: mpsc::UnboundedReceiver<ReleaseJob>) {
        let _ = self.stop.run_until_cancelled(self.work(inbox)).await; // what is left then is dropped: its lease ends it
    }

    /// What was refused rests beside those that are under way: thousands that are not allowed must not keep others waiting.
    async fn work(self: &Arc<ReleaseWorker>, mut inbox: mpsc::UnboundedReceiver<ReleaseJob>) {
        let (mut under_way, mut resting, mut is_open) = (JoinSet::new(), JoinSet::new(), true);
        while is_open || under_way.len() + resting.len() > 0 {
            let has_room = under_way.len() < AT_ONCE;
            tokio::select! {
                biased;
                Some(ended) = under_way.join_next() => {
                    if let Ok(Some(refused)) = ended {
                        resting.spawn(ReleaseJob::rest(refused));
                    }
                }
                Some(rested) = resting.join_next(), if has_room => {
                    if let Ok(job) = rested {
                        under_way.spawn(Arc::clone(self).in_background(job));
                    }
                }
                job = inbox.recv(), if is_open && has_room => match job {
                    Some(job) => _ = under_way.spawn(Arc::clone(self).in_background(job)),
                    None => is_open = false,
                },
            }
        }
    }

    /// Tries until it is answered or nothing can be left on the server, whatever is answered meanwhile: a right that is
    /// missing may be given, a full server may be emptied. Lets go of the turn between tries. Returns what was refused.
    async fn in_background(self: Arc<ReleaseWorker>, mut job: ReleaseJob) -> Option<ReleaseJob> {
        loop {
            match self.bring(&mut job, Instant::now() + self.redis.command_timeout()).await {
                Ok(progress) if progress.is_last => return None,
                Ok(_) => job.pauses = Pauses::default(),
                Err(error) if is_final(&error) || job.bound() <= Moment::now() => {
                    self.give_up(&job, &error);
                    return None;
                }
                Err(Error::Unavailable { .. }) => job.tried = true, // it has waited
                Err(_) => return Some(job),
            }
        }
    }

    fn give_up(&self, job: &ReleaseJob, error: &Error) {
        tracing::warn!(target: "leasehold::lock", name = &*job.hold.name, id = &*job.hold.id, %error,
            "not given back; it ends with its lease");
        if let Some(heir) = &job.heir {
            heir.withdraw();
        }
        self.queues.wake_head(&job.hold);
    }

    /// Brings the server's count to what is wanted, or the lock to the next in the queue. The job always says what is
    /// left to do, so that somebody else can go on with it.
    async fn bring(&self, job: &mut ReleaseJob, give_up: Instant) -> Result<JobProgress> {
        let hold = Arc::clone(&job.hold);
        let started = Instant::now();
        let _turn = job.turn(&hold, give_up).await?;
        loop {
            let count = hold.wanted();
            if count == 0 && hold.is_returned() {
                return Ok(JobProgress { was_ours: true, is_last: true }); // another guard's job has done it
            }
            if job.heir.is_none() && job.pass_on && count == 0 {
                job.heir = self.queues.heir(&hold);
            }
            let Some(heir) = job.heir.clone() else {
                return self.release(job, count, (started, give_up)).await;
            };
            let asked = hold.returning();
            let reply = match self.hand_over(&hold, &heir, (started, give_up)).await {
                Err(error) if is_refusal(&error) => {
                    job.keep_from_heir(); // for a server without memory, say, a release is less than a hand-over
                    continue;
                }
                reply => reply?,
            };
            job.heir = None;
            match reply.answer.code {
                Code::Handed => {
                    hold.returned(&asked);
                    self.note_released(&hold);
                    let is_last = heir.hand(reply.sent);
                    if !is_last {
                        job.hold = Arc::clone(&heir.hold); // it has left: the lock must go on to the next
                    }
                    return Ok(JobProgress { was_ours: true, is_last });
                }
                Code::Deeper => {
                    hold.not_returned();
                    heir.withdraw();
                    job.pass_on = false;
                }
                _ => {
                    heir.withdraw();
                    let may_be_done = reply.again || asked.before;
                    return Ok(JobProgress { was_ours: self.outcome(&hold, &reply, may_be_done)?, is_last: true });
                }
            }
        }
    }

    async fn hand_over(&self, hold: &Hold, heir: &Waiter, (since, give_up): (Instant, Instant)) -> Result<Reply> {
        let part = hold.part(heir.lease.millis(), 0, &heir.hold.id);
        ScriptRequest {
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

    async fn release(&self, job: &ReleaseJob, count: u32, (since, give_up): (Instant, Instant)) -> Result<JobProgress> {
        let hold = &job.hold;
        let request = ScriptRequest {
            name: &hold.name,
            hold: None,
            script: &hold.kind.release,
            part: hold.part(0, count, PUBLISH),
            replicas: 0,
            what: "giving back the lock",
            pauses: if job.tried { Pauses::last() } else { Pauses::default() },
            insists: job.counted.is_none(), // in the background it rests elsewhere
            since,
            give_up,
        };
        let asked = (count == 0).then(|| hold.returning());
        let reply = request.ask(&self.redis).await?;
        match (reply.answer.code, &asked) {
            (Code::Released, Some(asked)) => {
                hold.returned(asked);
                self.note_released(hold);
                let told = reply.answer.value.int().and_then(|told| u64::try_from(told).ok()).unwrap_or(0);
                self.queues.released(hold, self.others(hold, told));
            }
            (Code::Gone, _) => {
                hold.not_returned(); // there is an answer: no later one may take it for a lost one
                self.queues.wake_head(hold); // nothing was published
            }
            _ => {}
        }
        let may_be_done = asked.is_some_and(|asked| reply.again || asked.before); // an inner acquisition leaves the hold there
        Ok(JobProgress { was_ours: self.outcome(hold, &reply, may_be_done)?, is_last: true })
    }

    /// How many of those who were told are not ourselves.
    fn others(&self, hold: &Hold, told: u64) -> u64 {
        let hears = told > 0 && self.redis.hears(&hold.kind.channel(hold.name.key()));
        told.saturating_sub(hears.into())
    }

    /// Whether it was ours until it was given back. `may_be_done`: by the same request, which had no answer before.
    fn outcome(&self, hold: &Hold, reply: &Reply, may_be_done: bool) -> Result<bool> {
        match reply.answer.code {
            Code::Released | Code::Handed => Ok(true),
            // The first try worked, or the lease had ended: nobody can tell. Nor is it sure to stay gone: a lock that
            // is being handed to this hold may yet arrive, and who brings it must find that it has not been returned.
            Code::Gone if may_be_done => {
                self.note_released(hold);
                Ok(true)
            }
            Code::Gone => Ok(false),
            _ => Err(super::ask::unexpected(&reply.answer)),
        }
    }

    fn note_released(&self, hold: &Hold) {
        if hold.count_return() {
            self.counters.released.up();
            tracing::debug!(target: "leasehold::lock", name = &*hold.name, id = &*hold.id, "released");
        }
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
