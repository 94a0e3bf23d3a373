//! Giving back: to the next in the queue here where that is allowed, else to all. In the background too, for what was
//! dropped, cancelled or left in doubt.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore, mpsc},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    ask::{Anew, Pauses, Reply, ScriptRequest},
    hold::{Ending, Grant, Hold},
    queue::{LineKey, Queues},
    tenure::{Leaving, Tenure},
    waiter::Waiter,
};
use crate::{
    clock::Moment,
    error::{Error, Lost, Result},
    failed::unexpected,
    kind::KindScript,
    owner::Owner,
    redis::{Answer, Code, Part, Persistence, Redis},
    stats::Counters,
    sync::{std, tokio},
};

/// How long closing waits for those who ask still; they are told that the client closes.
const CLOSING: Duration = Duration::from_millis(500);
/// What hand_over.lua adds where the heir was there already.
const HANDED_BEFORE: &str = "before";
/// Jobs under way at once on one connection, 5 KiB each; more wait for these, in a tenth of the room. A server that does not
/// answer holds up its own only.
const AT_ONCE: usize = 1024;
/// The same for jobs that were tried before: thousands that are refused again and again must not delay a new one.
const TRIED_AT_ONCE: usize = 128;

/// What is on its way back: of all owners, what they held; of one, also what it leaves on the server while it waits.
pub(super) type Leftovers = (LineKey, Option<Owner>);

/// One hold whose count on the server has to come down to what is wanted.
#[derive(Debug)]
pub(crate) struct ReleaseJob {
    hold: Arc<Hold>,
    /// It may go to the next in the queue here.
    pass_on: bool,
    /// Nothing is held there, so nobody need wait for it.
    is_trace: bool,
    /// Whom it is being handed to, while there is no answer.
    heir: Option<Arc<Waiter>>,
    /// It has been tried for as long as a request may take.
    tried: bool,
    /// Between two tries that were refused.
    pauses: Pauses,
    /// That it is under way in the background.
    counted: Option<Counted>,
}

/// What is done in the background.
#[derive(Debug)]
enum Work {
    Release(ReleaseJob),
    Confirm(Arc<Tenure>),
    /// Look after so long whether the one that was called has come.
    Call(Arc<Hold>, Duration),
}

/// A release that is under way in the background, until it is dropped: done, or given up, or with the runtime.
#[derive(Debug)]
struct Counted {
    worker: Arc<ReleaseWorker>,
    /// Whoever asks for this name waits for it.
    awaited: Vec<Leftovers>,
    /// The id of the hold, which the server names until the release is done. `None` if the release leaves a hold there.
    leaves: Option<Box<str>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.awaited.iter().for_each(|leftovers| self.worker.no_longer_awaited(leftovers));
        self.leaves.iter().for_each(|holder| self.worker.has_left(holder));
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

/// What a hand-over says: whether the heir was there already, and its fencing token, where there are such.
fn handed(answer: &Answer) -> (bool, Option<u64>) {
    match answer.words() {
        Some([HANDED_BEFORE, token]) => (true, token.parse().ok()),
        _ => (answer.is(HANDED_BEFORE), answer.number()),
    }
}

/// Whether it was ours until it was given back. `may_be_done`: by the same request, which had no answer before.
fn outcome(hold: &Hold, reply: &Reply, may_be_done: bool) -> Result<Ending> {
    match reply.answer.code {
        Code::Released | Code::Handed => Ok(Ending::Ours),
        // The first try worked, or the lease had ended: nobody can tell. Nor is it sure to stay gone: a lock that
        // is being handed to this hold may yet arrive, and who brings it must find that it has not been returned.
        Code::Gone if may_be_done => Ok(Ending::Ours),
        Code::Gone => Ok(hold.not_found()),
        _ => Err(unexpected(&reply.answer)),
    }
}

/// As Redis counts it, and no less.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).expect("a year at most")
}

/// Jobs in the background whose requests take the same connection.
#[derive(Debug)]
struct Lane {
    new: Semaphore,
    tried: Semaphore,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane { new: Semaphore::new(AT_ONCE), tried: Semaphore::new(TRIED_AT_ONCE) }
    }
}

impl Lane {
    fn room_for(&self, failed: Option<&Error>) -> &Semaphore {
        if failed.is_some() { &self.tried } else { &self.new }
    }
}

/// What a job in the background leaves to be done.
#[derive(Debug)]
enum Leftover {
    /// Others have its id, and somebody must take back a lease that none of them needs.
    Claimed(Arc<Tenure>),
    /// As [`JobProgress::unheard`].
    Unheard(Arc<Hold>, Duration),
}

/// How often in a row a release is sent again because nobody heard of it.
const CALLS: u32 = 12;

/// A release that is to be sent again.
#[derive(Debug)]
struct NextCall {
    hold: Arc<Hold>,
    due: Instant,
    /// How often it may still be.
    left: u32,
}

/// Who was called in a line of the server's did not hear, and has so long to come.
fn not_heard(answer: &Answer) -> Option<Duration> {
    let [told, left] = answer.words()?;
    let left = left.parse().ok().filter(|left| *left > 0)?;
    (told == "0").then(|| Duration::from_millis(left))
}

/// One answered request of a job.
#[derive(Debug)]
struct JobProgress {
    ending: Ending,
    is_last: bool,
    /// It was left to those here who have its id, too.
    to_others: bool,
    /// Somebody in a line of the server's was called and did not hear; it has so long to come.
    unheard: Option<Duration>,
}

impl JobProgress {
    fn done(ending: Ending) -> JobProgress {
        JobProgress { ending, is_last: true, to_others: false, unheard: None }
    }
}

/// What came of giving back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GivenBack {
    Ended(Ending),
    /// Others here have its id, and are told whether it is there.
    ToOthers,
}

/// Where others may have its id, whoever is not the last leaves it to them.
fn leave(hold: &Arc<Hold>, count: u32) -> Leaving {
    let shared = hold.tenure().filter(|_| count == 0 && hold.kind.rules.shared);
    shared.map_or(Leaving::IsLast, |tenure| tenure.leave_late(hold))
}

/// The sending end. Sending neither spawns nor blocks, so guards can be dropped anywhere.
#[derive(Debug)]
pub(crate) struct Releaser {
    work: mpsc::UnboundedSender<Work>,
    worker: Arc<ReleaseWorker>,
}

#[derive(Debug)]
struct ReleaseWorker {
    redis: Arc<Redis>,
    queues: Arc<Queues>,
    counters: Arc<Counters>,
    /// One for each connection that has jobs in the background.
    lanes: Mutex<HashMap<usize, Arc<Lane>>>,
    /// Who is to be called next, at most one for each kind and name: a later release stands for the earlier ones.
    calls: Mutex<HashMap<LineKey, NextCall>>,
    /// How many are on their way in the background.
    pending: Mutex<HashMap<Leftovers, usize>>,
    /// The holders among them: how many releases of each, and when the first began.
    leaving: Mutex<HashMap<Box<str>, (usize, Instant)>>,
    /// Releases that this engine has in progress.
    under_way: AtomicUsize,
    /// Told after each release, in the background or not.
    done: Notify,
    stop: CancellationToken,
}

impl ReleaseJob {
    /// `granted`: the server had granted it; else it is only taken back in case it was, and not passed on.
    pub(crate) fn new(hold: &Arc<Hold>, granted: bool) -> ReleaseJob {
        let (hold, pauses) = (Arc::clone(hold), Pauses::default());
        ReleaseJob { hold, pass_on: granted, is_trace: false, heir: None, tried: false, pauses, counted: None }
    }

    /// For one that waited, and was refused each time: what the server has noted of it.
    pub(super) fn of_trace(hold: &Arc<Hold>) -> ReleaseJob {
        ReleaseJob { is_trace: true, ..ReleaseJob::new(hold, false) }
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// After this, nothing of it can be left on the server, nor of the heir to which it may have been handed.
    fn bound(&self) -> Moment {
        let heirs = self.heir.as_ref().map(|heir| heir.hold.bound());
        let shared = self.hold.tenure().map(|tenure| tenure.bound());
        heirs.into_iter().chain(shared).fold(self.hold.bound(), Moment::max)
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
            Err(_) => Err(Error::silent("waiting for an earlier request about", &hold.name, started.elapsed(), None)),
        }
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
    pub(crate) async fn run(self, job: ReleaseJob, give_up: Instant) -> Result<GivenBack> {
        let mut running = ForegroundRelease { job: Some(job), begun: self };
        let job = running.job.as_mut().expect("just put there");
        let progress = Box::pin(running.begun.0.worker.bring(job, give_up)).await?;
        if let Some(time) = progress.unheard {
            let _ = running.begun.0.work.send(Work::Call(Arc::clone(&job.hold), time));
        }
        if progress.is_last {
            running.job = None;
        }
        Ok(if progress.to_others { GivenBack::ToOthers } else { GivenBack::Ended(progress.ending) })
    }
}

impl Releaser {
    /// Starts the task. It ends when it is stopped, or when the sender is gone and all is given back.
    pub(crate) fn start(redis: Arc<Redis>, queues: Arc<Queues>, counters: Arc<Counters>) -> (Releaser, JoinHandle<()>) {
        let (work, inbox) = mpsc::unbounded_channel();
        let (lanes, calls, pending, leaving) = (Mutex::default(), Mutex::default(), Mutex::default(), Mutex::default());
        let (done, stop) = (Notify::new(), CancellationToken::new());
        let under_way = AtomicUsize::new(0);
        let worker = ReleaseWorker { redis, queues, counters, lanes, calls, pending, leaving, under_way, done, stop };
        let worker = Arc::new(worker);
        let run = Arc::clone(&worker).run(inbox);
        (Releaser { work, worker }, tokio::spawn(run))
    }

    /// To be held while an acquisition is given up on our side and until its job is under way.
    pub(crate) fn begin(&self) -> ReleaseUnderWay<'_> {
        self.worker.one_more();
        ReleaseUnderWay(self)
    }

    /// Runs a job in the background.
    pub(crate) fn send(&self, job: ReleaseJob) {
        let is_last = job.hold.wanted() == 0; // an inner one frees nothing
        let job = self.counted(job, is_last);
        let _ = self.work.send(Work::Release(job)); // once stopped it is dropped: the lease ends it
    }

    /// What is to be done about a hold in the end, and counts as under way already.
    pub(super) fn later(&self, hold: &Arc<Hold>) -> ReleaseJob {
        self.counted(ReleaseJob::new(hold, true), true)
    }

    fn counted(&self, mut job: ReleaseJob, is_last: bool) -> ReleaseJob {
        self.worker.one_more();
        let of_all = (is_last && !job.is_trace).then_some(None);
        let of_owner = is_last.then(|| Some(job.hold.owner.clone()));
        let awaited: Vec<_> = of_all.into_iter().chain(of_owner).map(|owner| (job.hold.line(), owner)).collect();
        for leftovers in &awaited {
            *self.worker.pending().entry(leftovers.clone()).or_default() += 1;
        }
        let leaves = (is_last && !job.is_trace).then(|| Box::from(job.hold.id()));
        leaves.iter().for_each(|holder| self.worker.leaves(holder));
        job.counted = Some(Counted { worker: Arc::clone(&self.worker), awaited, leaves });
        job
    }

    /// Asks whether an id is there for as long as somebody waits to be told.
    pub(super) fn confirm(&self, tenure: &Arc<Tenure>) {
        if self.work.send(Work::Confirm(Arc::clone(tenure))).is_err() {
            tenure.abandon(); // once stopped, who waits is told that the client is closed
        }
    }

    /// Resolves when nothing of these is on its way back: a caller that dropped a guard and asks again finds the lock free.
    pub(super) async fn clear<I: Iterator<Item = Leftovers>>(&self, leftovers: impl Fn() -> I) {
        let is_clear = |pending: &HashMap<Leftovers, usize>| {
            pending.is_empty() || !leftovers().any(|leftovers| pending.contains_key(&leftovers))
        };
        self.until(is_clear).await;
    }

    /// When a release of this holder in the background began, if one is under way.
    pub(super) fn began(&self, holder: &str) -> Option<Instant> {
        self.worker.leaving().get(holder).map(|(_, began)| *began)
    }

    /// Resolves when no release of this holder is under way in the background.
    pub(super) async fn has_left(&self, holder: &str) {
        self.until(|_| self.began(holder).is_none()).await;
    }

    /// Resolves when no release is under way, and that is true: looked at after each release.
    pub(crate) async fn idle(&self, and: impl Fn() -> bool) {
        self.until(|_| and() && self.worker.under_way.load(Ordering::SeqCst) == 0).await; // in this order: see `begin`
    }

    async fn until(&self, ready: impl Fn(&HashMap<Leftovers, usize>) -> bool) {
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
    async fn run(self: Arc<ReleaseWorker>, inbox: mpsc::UnboundedReceiver<Work>) {
        let _ = self.stop.run_until_cancelled(self.work(inbox)).await; // what is left then is dropped: its lease ends it
    }

    /// Each job has a task of its own, which waits for room on its connection.
    async fn work(self: &Arc<ReleaseWorker>, mut inbox: mpsc::UnboundedReceiver<Work>) {
        let (mut under_way, mut is_open) = (JoinSet::new(), true);
        let mut calling = JoinSet::new(); // nobody waits for these
        while is_open || !under_way.is_empty() {
            tokio::select! {
                biased;
                Some(ended) = under_way.join_next() => {
                    match ended {
                        Ok(Some(Leftover::Claimed(tenure))) => _ = under_way.spawn(Arc::clone(self).confirm(tenure)),
                        Ok(Some(Leftover::Unheard(hold, time))) => self.call_later(&mut calling, hold, time),
                        _ => {}
                    }
                }
                Some(_) = calling.join_next() => {}
                work = inbox.recv(), if is_open => match work {
                    Some(Work::Release(job)) => _ = under_way.spawn(Arc::clone(self).in_background(job)),
                    Some(Work::Confirm(tenure)) => _ = under_way.spawn(Arc::clone(self).confirm(tenure)),
                    Some(Work::Call(hold, time)) => self.call_later(&mut calling, hold, time),
                    None => is_open = false,
                },
            }
        }
    }

    /// Where the jobs wait that need the same connection as this one.
    fn lane(&self, job: &ReleaseJob) -> Arc<Lane> {
        let connection = self.redis.connection_of(job.hold.name.key());
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if !lanes.contains_key(&connection) {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        Arc::clone(lanes.entry(connection).or_default())
    }

    /// Tries until it is answered or nothing can be left on the server, whatever is answered meanwhile: a right that is
    /// missing may be given, a full server may be emptied. Lets go of the turn, and of its room, between tries.
    async fn in_background(self: Arc<ReleaseWorker>, mut job: ReleaseJob) -> Option<Leftover> {
        let mut failed: Option<Error> = None;
        loop {
            let lane = self.lane(&job);
            let room = lane.room_for(failed.as_ref()).acquire().await;
            if let Some(error) = failed.as_ref().filter(|_| job.bound() <= Moment::now()) {
                self.give_up(&job, error);
                return None;
            }
            let give_up = Instant::now() + self.redis.command_timeout();
            match Box::pin(self.bring(&mut job, give_up)).await {
                Ok(progress) if progress.to_others => {
                    let settles = job.hold.tenure().filter(|tenure| tenure.settles_unheard());
                    return settles.map(|tenure| Leftover::Claimed(Arc::clone(tenure)));
                }
                Ok(progress) if progress.is_last => {
                    return progress.unheard.map(|time| Leftover::Unheard(job.hold, time));
                }
                Ok(_) => (failed, job.pauses) = (None, Pauses::default()),
                Err(error) if is_final(&error) || job.bound() <= Moment::now() => {
                    self.give_up(&job, &error);
                    return None;
                }
                Err(error) => {
                    drop(room);
                    match error {
                        Error::Unavailable { .. } => job.tried = true, // it has waited
                        _ => sleep(job.pauses.next()).await,
                    }
                    failed = Some(error);
                }
            }
        }
    }

    /// One that was called and did not come may be gone: whoever is behind it is called then. Our own waiters look for
    /// themselves, but others sleep until they are told.
    async fn call_next(self: Arc<ReleaseWorker>, line: LineKey) {
        while let Some((hold, due)) = self.next_call(&line) {
            if due > Instant::now() {
                sleep_until(due).await; // it may be put off meanwhile
                continue;
            }
            let time = (Instant::now(), Instant::now() + self.redis.command_timeout());
            let reply = Box::pin(self.release_request(&hold, 0, time).ask(&self.redis)).await;
            let unheard = reply.ok().and_then(|reply| not_heard(&reply.answer));
            let mut calls = self.calls();
            match (calls.get_mut(&line), unheard) {
                (Some(call), _) if call.due != due => {} // a later release has come
                (Some(call), Some(time)) if call.left > 0 => {
                    (call.due, call.left) = (Instant::now() + time, call.left - 1);
                }
                _ => _ = calls.remove(&line),
            }
        }
    }

    fn call_later(self: &Arc<ReleaseWorker>, calling: &mut JoinSet<()>, hold: Arc<Hold>, time: Duration) {
        let line = hold.line();
        let call = NextCall { hold, due: Instant::now() + time, left: CALLS };
        if self.calls().insert(line.clone(), call).is_none() {
            calling.spawn(Arc::clone(self).call_next(line));
        }
    }

    fn next_call(&self, line: &LineKey) -> Option<(Arc<Hold>, Instant)> {
        self.calls().get(line).map(|call| (Arc::clone(&call.hold), call.due))
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<LineKey, NextCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for no room: there is one at a time for each row.
    async fn confirm(self: Arc<ReleaseWorker>, tenure: Arc<Tenure>) -> Option<Leftover> {
        match tenure.confirm(&self.redis, &self.queues).await {
            Some(job) => self.in_background(job).await,
            None => None,
        }
    }

    fn give_up(&self, job: &ReleaseJob, error: &Error) {
        let (name, id) = (&*job.hold.name, job.hold.id());
        if job.hold.since().is_some() {
            tracing::warn!(target: "leasehold::lock", name, id, %error, "the release failed; the lock stays held until its lease expires");
        } else {
            tracing::debug!(target: "leasehold::lock", name, id, %error,
                "the release of an attempt without a reply failed; if it acquired the lock, its lease expires");
        }
        if let Some(heir) = &job.heir {
            heir.withdraw();
        }
        leave(&job.hold, 0); // nobody is to wait for it
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
            if count == 0 && hold.has_passed_on() {
                return Ok(self.left_to_others(job)); // by another guard's job
            }
            if count == 0 && hold.is_returned() {
                return Ok(JobProgress::done(hold.ending().unwrap_or(Ending::Ours))); // another guard's job has done it
            }
            match leave(&hold, count) {
                Leaving::IsLast => {}
                Leaving::HadLeft | Leaving::ToOthers => return Ok(self.left_to_others(job)),
            }
            let hand_over = hold.kind.hand_over.as_ref();
            if hand_over.is_some() && job.heir.is_none() && job.pass_on && count == 0 && hold.rest().is_zero() {
                job.heir = self.queues.heir(&hold);
            }
            let Some((script, heir)) = hand_over.zip(job.heir.clone()) else {
                return self.release(job, count, (started, give_up)).await;
            };
            let asked = hold.returning();
            hold.tenure().inspect(|tenure| tenure.ends());
            let mut in_doubt = false;
            let reply = match self.hand_over((&hold, script), &heir, (started, give_up), &mut in_doubt).await {
                Err(error) if is_refusal(&error) => {
                    if in_doubt {
                        heir.hold.in_doubt(); // an earlier try may have moved it
                    } else if !asked.before {
                        hold.not_returned();
                    }
                    job.keep_from_heir(); // for a server without memory, say, a release is less than a hand-over
                    continue;
                }
                reply => reply?,
            };
            job.heir = None;
            match reply.answer.code {
                Code::Handed => {
                    if reply.again {
                        heir.hold.in_doubt();
                    }
                    hold.returned(&asked);
                    // The heir had it by itself, and no earlier try of ours can have moved it: it was gone before.
                    let (before, token) = handed(&reply.answer);
                    let is_ours = !before || reply.again || asked.before;
                    let ending = self.ended(&hold, if is_ours { Ending::Ours } else { hold.not_found() });
                    let is_last = heir.hand(Grant { sent: reply.sent, token });
                    if !is_last {
                        job.hold = Arc::clone(&heir.hold); // it has left: the lock must go on to the next
                    }
                    return Ok(JobProgress { is_last, ..JobProgress::done(ending) });
                }
                Code::Deeper => {
                    hold.not_returned();
                    hold.tenure().inspect(|tenure| tenure.goes_on());
                    heir.withdraw();
                    job.pass_on = false;
                }
                _ => {
                    heir.withdraw();
                    let may_be_done = reply.again || asked.before;
                    let ending = self.ended(&hold, outcome(&hold, &reply, may_be_done)?);
                    return Ok(JobProgress::done(ending));
                }
            }
        }
    }

    async fn hand_over(
        &self,
        (hold, script): (&Hold, &'static KindScript),
        heir: &Waiter,
        time: (Instant, Instant),
        in_doubt: &mut bool,
    ) -> Result<Reply> {
        let part = hold.part(script, heir.lease.millis(), 0, heir.hold.id());
        let request = ScriptRequest::new("handing over the lock", &hold.name, (&script.script, part), time);
        ScriptRequest { hold: Some((&heir.hold, heir.lease)), persistence: Persistence::Modest, ..request }
            .ask_noting(&self.redis, in_doubt)
            .await
    }

    fn release_request<'a>(&self, hold: &'a Hold, count: u32, time: (Instant, Instant)) -> ScriptRequest<'a> {
        let part = self.release_part(hold, count);
        ScriptRequest::new("releasing the lock", &hold.name, (&hold.kind.release.script, part), time)
    }

    /// With what is left now of the time for which nobody else may have the lock.
    fn release_part(&self, hold: &Hold, count: u32) -> Part {
        let rest = if count == 0 { millis(hold.rest()) } else { 0 };
        hold.part(&hold.kind.release, rest, count, self.redis.publish())
    }

    async fn release(&self, job: &ReleaseJob, count: u32, time: (Instant, Instant)) -> Result<JobProgress> {
        let hold = &job.hold;
        let part = || self.release_part(hold, count);
        let request = ScriptRequest {
            anew: Some(Anew(&part)),
            pauses: if job.tried { Pauses::last() } else { Pauses::default() },
            // In the background it rests elsewhere.
            persistence: if job.counted.is_none() { Persistence::Insistent } else { Persistence::Modest },
            ..self.release_request(hold, count, time)
        };
        let asked = (count == 0).then(|| hold.returning());
        hold.tenure().filter(|_| count == 0).inspect(|tenure| tenure.ends());
        let mut in_doubt = false;
        let reply = request.ask_noting(&self.redis, &mut in_doubt).await.inspect_err(|_| {
            if !in_doubt && asked.as_ref().is_some_and(|asked| !asked.before) {
                hold.not_returned(); // it was refused, or not sent
            }
        })?;
        match (reply.answer.code, &asked) {
            (Code::Released, Some(asked)) => {
                hold.returned(asked);
                let told = reply.answer.number().unwrap_or(0);
                self.queues.released(hold, self.can_tell().then(|| self.others(hold, told)));
            }
            (Code::Gone, _) => {
                hold.not_returned(); // there is an answer: no later one may take it for a lost one
                self.queues.wake_head(hold); // nothing was published
            }
            _ => {}
        }
        let may_be_done = asked.is_some_and(|asked| reply.again || asked.before); // an inner acquisition leaves the hold there
        let found = outcome(hold, &reply, may_be_done)?;
        let ending = match found {
            found if count == 0 => self.ended(hold, found),
            Ending::Unknown => Ending::Gone, // others have it still, and learn by the clock that it has ended
            found => found,
        };
        Ok(JobProgress { unheard: not_heard(&reply.answer).filter(|_| self.can_tell()), ..JobProgress::done(ending) })
    }

    /// The last acquisition was given back, or found gone: noted for all guards of the hold, and for those who had its id before.
    fn ended(&self, hold: &Hold, found: Ending) -> Ending {
        let ending = hold.ended(found);
        hold.tenure().inspect(|tenure| tenure.ended(ending));
        match ending {
            Ending::Ours | Ending::Unknown => self.note_released(hold),
            Ending::Gone if hold.count_return() => self.counters.of(hold.subject()).lost(Lost::Removed),
            Ending::Gone => {}
        }
        ending
    }

    /// Others here have the id of its hold.
    fn left_to_others(&self, job: &ReleaseJob) -> JobProgress {
        if job.counted.is_some() {
            self.note_released(&job.hold); // nobody waits to be told
        }
        JobProgress { to_others: true, ..JobProgress::done(Ending::Ours) }
    }

    /// Somebody can be told of a release.
    fn can_tell(&self) -> bool {
        !self.redis.publish().is_empty()
    }

    /// How many of those who were told are not ourselves.
    fn others(&self, hold: &Hold, told: u64) -> u64 {
        let hears = told > 0 && self.redis.hears(&hold.kind.channel(hold.name.key()));
        told.saturating_sub(hears.into())
    }

    fn note_released(&self, hold: &Hold) {
        if hold.count_return() {
            self.counters.of(hold.subject()).released();
            tracing::debug!(target: "leasehold::lock", name = &*hold.name, id = hold.id(), "released");
        }
    }

    fn no_longer_awaited(&self, leftovers: &Leftovers) {
        let mut pending = self.pending();
        if let Some(count) = pending.get_mut(leftovers) {
            *count -= 1;
            if *count == 0 {
                pending.remove(leftovers);
            }
        }
    }

    fn leaves(&self, holder: &str) {
        self.leaving().entry(holder.into()).or_insert_with(|| (0, Instant::now())).0 += 1;
    }

    fn has_left(&self, holder: &str) {
        let mut leaving = self.leaving();
        let Some((count, _)) = leaving.get_mut(holder) else { return };
        *count -= 1;
        if *count == 0 {
            leaving.remove(holder);
        }
    }

    fn leaving(&self) -> MutexGuard<'_, HashMap<Box<str>, (usize, Instant)>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one_more(&self) {
        self.counters.releasing.up();
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    fn one_less(&self) {
        self.counters.releasing.down();
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.done.notify_waiters();
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<Leftovers, usize>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
