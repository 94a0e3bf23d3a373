//! One id's stay on the server, while holds of this process pass it on in memory, and who waits to hear whether the lock was
//! theirs to the end.
//!
//! Nothing is asked of the server when a hold passes on. Whoever gave it back and wants to know is told by the next request
//! that is sent after that: a confirmation, of which one at a time is under way for all who wait, as a database commits in
//! groups; or the request that gives the lock back. If that finds the id, it was there all the time: an id that is gone never
//! comes back, since nothing that passes on has a request in doubt ([`Hold::pass_on`]).
//!
//! One hold has it at a time, or, where several may hold the lock at once, all that have joined the first ([`Tenure::join`]):
//! then the last of them gives it back.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{Instant, sleep},
};

use super::{
    ask::{Pauses, Reply, ScriptRequest},
    hold::{Ending, Hold, Inheritance},
    queue::Queues,
    releaser::{ReleaseJob, millis},
};
use crate::{
    clock::Moment,
    config::{Lease, Name},
    error::{Error, Lost, Result},
    failed::unexpected,
    kind::Kind,
    redis::{Code, Redis},
    stats::{Counters, Subject},
    sync::{std, tokio},
};

/// Whether the lock was ours until it was passed on.
pub(super) type Word = oneshot::Receiver<Result<Ending>>;
type Waiting = Vec<WaitsForWord>;

/// One that has let go and is to be told.
#[derive(Debug)]
struct WaitsForWord {
    tell: oneshot::Sender<Result<Ending>>,
    /// In the statistics: one guard of each hold.
    counts: bool,
}

/// What came of asking for a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joined {
    Yes,
    No,
    /// The server was not asked since that hold asked.
    NotYet,
}

#[derive(Debug)]
pub(crate) struct Tenure {
    name: Name,
    id: Box<str>,
    kind: &'static Kind,
    /// What confirmations ask for.
    lease: Lease,
    counters: Arc<Counters>,
    state: Mutex<TenureState>,
}

/// | they wait in | and are told by                       |
/// |--------------|---------------------------------------|
/// | `waiting`    | nothing that was sent yet             |
/// | `asked`      | the confirmation under way            |
/// | `ending`     | the request that gives the lock back  |
#[derive(Debug)]
struct TenureState {
    /// All that have not left, by number, also one that is being given back.
    holders: BTreeMap<u64, Weak<Hold>>,
    /// After this, nothing of those who have left can be left on the server.
    bound: Moment,
    /// Whoever gets it after all of them, gets it no earlier than this, because of those who have left.
    not_before: Moment,
    /// Until when the server had it for certain when the last of those who have let go did so, or when it was confirmed since.
    until: Moment,
    /// As long as others may join.
    opening: Option<Opening>,
    /// When the last request was sent that found the id, of those that others may join for.
    found: Option<Moment>,
    waiting: Waiting,
    asked: Waiting,
    /// `None` as long as nobody gives the lock back.
    ending: Option<Waiting>,
    /// Whether it was ours when it was given back.
    ended: Option<Ending>,
    /// How many leases longer than the watchdog's were asked for, and how many of these were taken back since nobody needs them.
    claims: u64,
    settled: u64,
    /// It was passed on, and nobody waits to be told: whoever has it now must be.
    unconfirmed: bool,
    /// Somebody sends confirmations as long as there are any who wait.
    confirming: bool,
    /// Nobody has it for the moment; what there is to do if nobody comes.
    resting: Option<Resting>,
}

/// For how long others may join, and how much longer they may if nobody waits whom that keeps away.
#[derive(Debug, Clone, Copy)]
struct Opening {
    since: Moment,
    time: Duration,
    until: Moment,
}

impl Opening {
    /// The server would have let others in by a request sent then.
    fn seen(self, sent: Moment) -> Opening {
        Opening { until: (sent + self.time).min(self.since + self.time * LONGEST_OPENING), ..self }
    }
}

#[derive(Debug)]
struct Resting {
    release: ReleaseJob,
    inheritance: Inheritance,
    /// Of the one who lets it rest: told when somebody has it again or it is given back, for until then nobody else can have it.
    waiting: Waiting,
}

/// What one of several leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Its id, for it to give back.
    IsLast,
    /// Nothing: others have the id.
    ToOthers,
    /// Nothing: another guard of it has left before.
    HadLeft,
}

/// What a confirmation says where several may have the lock: whether one more would be let in.
const LETS_IN: &str = "yes";
const LETS_NOBODY_IN: &str = "no";
/// How many times as long as at first others may join at the most. Some writers leave no mark: JVMs, and those that try once. They get
/// the lock when all readers have left it for a moment.
const LONGEST_OPENING: u32 = 10;

/// How often the task that has told others lets them run before it takes the lock for unwanted.
const YIELDS: u32 = 2;

impl Tenure {
    /// Begins with the first that passes it on.
    pub(super) fn of(hold: &Arc<Hold>, lease: Lease, counters: &Arc<Counters>) -> Tenure {
        let state = TenureState {
            holders: BTreeMap::from([(hold.number, Arc::downgrade(hold))]),
            bound: Moment::now(),
            not_before: Moment::now(),
            until: Moment::now(),
            opening: None,
            found: None,
            waiting: Vec::new(),
            asked: Vec::new(),
            ending: None,
            ended: None,
            claims: 0,
            settled: 0,
            unconfirmed: false,
            confirming: false,
            resting: None,
        };
        let (name, id, kind, counters) = (hold.name.clone(), hold.id().into(), hold.kind, Arc::clone(counters));
        Tenure { name, id, kind, lease, counters, state: Mutex::new(state) }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The lock's key in Redis.
    /// For statistics.
    fn subject(&self) -> Subject<'_> {
        Subject { kind: self.kind.rules.label, name: &self.name }
    }

    pub(super) fn key(&self) -> &str {
        self.name.key()
    }

    /// Moves it from one hold to another, under one lock with what is confirmed of it. False if `from` must be given back by
    /// request.
    pub(super) fn pass(self: &Arc<Tenure>, from: &Hold, to: &Arc<Hold>) -> bool {
        let mut state = self.state();
        let Some(inheritance) = from.pass_on() else { return false };
        self.move_to(&mut state, from, to, inheritance);
        true
    }

    fn move_to(self: &Arc<Tenure>, state: &mut TenureState, from: &Hold, to: &Arc<Hold>, inheritance: Inheritance) {
        state.until = state.until.max(inheritance.ends());
        from.passed_on();
        to.inherit(self, inheritance);
        state.holders.remove(&from.number);
        state.holders.insert(to.number, Arc::downgrade(to));
    }

    /// The number of one more lease longer than the watchdog's.
    pub(super) fn claim(&self) -> u64 {
        let mut state = self.state();
        state.claims += 1;
        state.claims
    }

    /// It was granted by a request sent then, and others may join for so long.
    pub(super) fn open(&self, sent: Moment, time: Duration) {
        let mut state = self.state();
        (state.found, state.opening) = (Some(sent), Some(Opening { since: sent, time, until: sent + time }));
    }

    pub(super) fn is_open(&self) -> bool {
        self.state().is_open()
    }

    /// Has a part in what others have, or what rests: not if that was closed, or none of those who have it is sure of it.
    pub(super) fn join(self: &Arc<Tenure>, to: &Arc<Hold>) -> Joined {
        let mut state = self.state();
        if state.opening.is_none() {
            return Joined::No;
        }
        if state.found.is_none_or(|sent| sent < to.asked()) {
            return Joined::NotYet;
        }
        let bequest = state.live_holders().find_map(|holder| holder.bequest());
        let joins = match bequest {
            Some(inheritance) => {
                to.inherit(self, inheritance);
                state.holders.insert(to.number, Arc::downgrade(to));
                true
            }
            None => self.resumes(&mut state, to),
        };
        if joins { Joined::Yes } else { Joined::No }
    }

    /// Until when nobody else may have it because of those who have left.
    pub(super) fn not_before(&self) -> Moment {
        self.state().not_before
    }

    /// After this, nothing of the id can be left on the server.
    pub(super) fn bound(&self) -> Moment {
        let state = self.state();
        state.live_holders().map(|holder| holder.bound()).fold(state.bound, Moment::max)
    }

    /// Nobody joins any more.
    pub(super) fn close(&self) {
        self.state().opening = None;
    }

    /// One of several has done with it. The last lets it rest if some are `called` here, or about to be told. False if a request must
    /// give it back, or take back an inner acquisition: then nobody joins any more.
    pub(super) fn leave(&self, from: &Arc<Hold>, called: bool, release: impl FnOnce() -> ReleaseJob) -> bool {
        let mut state = self.state();
        if state.is_alone(from) {
            let rests = state.is_open() && (called || state.tells()) && self.rests(&mut state, from, release);
            state.unconfirmed |= rests && !state.tells(); // until one is answered it rests
            state.opening = state.opening.filter(|_| rests);
            return rests;
        }
        let left = from.step_out();
        if left {
            state.remove(from);
        }
        left
    }

    /// One of several has been given up by its guards, lost or with something of it still under way then.
    pub(super) fn leave_late(&self, from: &Arc<Hold>) -> Leaving {
        let mut state = self.state();
        if !state.holders.contains_key(&from.number) {
            Leaving::HadLeft
        } else if state.resting.is_none() && state.is_alone(from) {
            state.opening = None;
            Leaving::IsLast
        } else {
            state.remove(from);
            Leaving::ToOthers
        }
    }

    /// Lets it rest until the next confirmation is answered: those it tells may come for the lock again, and save giving it back
    /// and asking for it. False if nobody would come.
    pub(super) fn rest(&self, from: &Hold, release: impl FnOnce() -> ReleaseJob) -> bool {
        let mut state = self.state();
        state.tells() && self.rests(&mut state, from, release)
    }

    fn rests(&self, state: &mut TenureState, from: &Hold, release: impl FnOnce() -> ReleaseJob) -> bool {
        let Some(inheritance) = from.pass_on() else { return false };
        state.until = state.until.max(inheritance.ends());
        state.resting = Some(Resting { release: release(), inheritance, waiting: Vec::new() });
        true
    }

    /// Takes what rests. False if it has been given back, or is about to be.
    pub(super) fn resume(self: &Arc<Tenure>, to: &Arc<Hold>) -> bool {
        self.resumes(&mut self.state(), to)
    }

    fn resumes(self: &Arc<Tenure>, state: &mut TenureState, to: &Arc<Hold>) -> bool {
        let Some(Resting { release, inheritance, waiting }) = state.resting.take() else { return false };
        state.waiting.extend(waiting);
        self.move_to(state, release.hold(), to, inheritance);
        true
    }

    /// For one that has passed it on. True beside that: somebody must send confirmations.
    pub(super) fn word(&self, counts: bool) -> (Word, bool) {
        let (tell, word) = oneshot::channel();
        let tell = WaitsForWord { tell, counts };
        let mut state = self.state();
        let mut late = None;
        match (state.ended, &mut state.ending) {
            (Some(ending), _) => late = Some((tell, ending)), // it was given back after we let go
            (None, Some(ending)) => ending.push(tell),
            (None, None) => state.not_asked_yet().push(tell),
        }
        let is_first = (!state.waiting.is_empty() || state.unconfirmed) && !mem::replace(&mut state.confirming, true);
        drop(state);
        if let Some((tell, ending)) = late {
            self.answer(vec![tell], &Ok(ending));
        }
        (word, is_first)
    }

    /// It was passed on by one that does not wait: whoever has it now learns from a confirmation if it was gone. True if somebody
    /// must send one.
    pub(super) fn passed_unheard(&self) -> bool {
        let mut state = self.state();
        state.unconfirmed = state.ended.is_none() && state.ending.is_none();
        state.unconfirmed && !mem::replace(&mut state.confirming, true)
    }

    /// The last claim, if it is to be taken back and nobody is left who waits for the confirmation that does. Then somebody must send
    /// one.
    pub(super) fn settles_unheard(&self) -> bool {
        let to_settle = self.state().to_settle().is_some();
        to_settle && self.passed_unheard()
    }

    /// Confirms until nobody waits any more, or nobody has come for what rests: then that is to be given back.
    pub(super) async fn confirm(&self, redis: &Redis, queues: &Queues) -> Option<ReleaseJob> {
        let (mut pauses, mut unfinished) = (Pauses::default(), AbandonOnDrop(Some(self)));
        while self.begins() {
            let (end, to_settle) = (self.lease_ends(), self.state().to_settle());
            let reply = Box::pin(self.ask(redis, to_settle, end)).await;
            match reply.and_then(|reply| self.outcome(reply)) {
                Ok(Some(reply)) => {
                    self.counters.of(self.subject()).renewed();
                    self.kept(&reply, to_settle, end);
                    pauses = Pauses::default();
                }
                Ok(None) => self.gone(queues),
                Err(Error::Unavailable { .. }) => {
                    self.unanswered();
                    sleep(pauses.next()).await;
                }
                Err(error) => self.refused(&error),
            }
            if let Some(release) = self.come_to_rest().await {
                unfinished.0 = None;
                return Some(release);
            }
        }
        unfinished.0 = None;
        self.state().give_up_rest() // nobody was there to be told
    }

    /// Those who were told run before this goes on.
    async fn come_to_rest(&self) -> Option<ReleaseJob> {
        for _ in 0..YIELDS {
            self.state().resting.as_ref()?;
            yield_now().await;
        }
        let mut state = self.state();
        let release = state.give_up_rest()?;
        state.confirming = false; // the release tells all
        Some(release)
    }

    fn refused(&self, error: &Error) {
        let asked = mem::take(&mut self.state().asked);
        self.answer(asked, &Err(error.clone()));
    }

    /// The end of the lease by the clock of this process.
    fn lease_ends(&self) -> Moment {
        let state = self.state();
        let resting = state.resting.iter().map(|resting| resting.inheritance.lease_ends());
        state.live_holders().map(|holder| holder.lease_ends()).chain(resting).max().unwrap_or_else(Moment::now)
    }

    async fn ask(&self, redis: &Redis, to_settle: Option<u64>, end: Moment) -> Result<Reply> {
        let holders: Vec<_> = self.state().live_holders().filter(|holder| holder.loss().is_none()).collect();
        holders.iter().skip(1).for_each(|holder| holder.asking(self.lease));
        let hold = holders.first().map(|holder| (&**holder, self.lease));
        let time = (Instant::now(), Instant::now() + redis.command_timeout());
        let (settles, claim) = to_settle.map_or((0, String::new()), |claim| (1, claim.to_string()));
        // What takes back a longer lease leaves the `min_hold` of one that has left.
        let lease = if settles == 1 { self.not_before().left().max(*self.lease) } else { *self.lease };
        let id = (&*self.id, millis(lease), settles);
        let part = self.kind.renew_part(self.name.key(), id, &claim, end);
        let request = ScriptRequest::new("confirming the lock", &self.name, (&self.kind.renew.script, part), time);
        ScriptRequest { hold, ..request }.ask(redis).await
    }

    /// The reply that found it; `None` if it is gone.
    fn outcome(&self, reply: Reply) -> Result<Option<Reply>> {
        match reply.answer.code {
            Code::Kept => Ok(Some(reply)),
            Code::Gone => Ok(None),
            _ => Err(unexpected(&reply.answer)),
        }
    }

    /// A confirmation is about to be sent, for all who wait now. False if there is nobody to be told by it.
    fn begins(&self) -> bool {
        let mut state = self.state();
        let left = state.waiting.extract_if(.., |one| one.tell.is_closed()).collect();
        let (waiting, mut late) = (mem::take(&mut state.waiting), None);
        match (state.ended, &mut state.ending) {
            (Some(ending), _) => late = Some((waiting, ending)),
            (None, Some(ending)) => ending.extend(waiting),
            (None, None) => state.asked = waiting,
        }
        let is_due = mem::take(&mut state.unconfirmed) && state.ended.is_none() && state.ending.is_none();
        let begins = is_due || !state.asked.is_empty();
        state.confirming = begins;
        drop(state);
        self.answer(left, &Ok(Ending::Ours)); // as dropped guards
        if let Some((waiting, ending)) = late {
            self.answer(waiting, &Ok(ending));
        }
        begins
    }

    fn unanswered(&self) {
        let mut state = self.state();
        let asked = mem::take(&mut state.asked);
        state.waiting.extend(asked);
    }

    fn kept(&self, Reply { sent, answer, .. }: &Reply, settled: Option<u64>, end: Moment) {
        let (sent, sure) = (*sent, self.kind.rules.sure_after(answer, *sent, end));
        let mut state = self.state();
        state.settled = settled.unwrap_or(state.settled);
        state.found = state.found.map(|before| before.max(sent));
        match answer.words() {
            Some([_, LETS_IN]) => state.opening = state.opening.map(|opening| opening.seen(sent)),
            Some([_, LETS_NOBODY_IN]) => state.opening = None,
            _ => {}
        }
        state.live_holders().for_each(|holder| holder.confirmed(sent, Some(self.lease), sure));
        if let Some(resting) = &mut state.resting {
            resting.inheritance.confirmed(sent, self.lease, sure);
        }
        state.until = state.until.max(sent + self.lease.certain());
        let asked = mem::take(&mut state.asked);
        drop(state);
        self.answer(asked, &Ok(Ending::Ours));
    }

    /// Lost, for all of them and for whoever has it now; unless it was given back meanwhile. Then that tells. If the lease may have
    /// ended since they let go, nobody can know.
    fn gone(&self, queues: &Queues) {
        let mut state = self.state();
        let asked = mem::take(&mut state.asked);
        match (state.ended, &mut state.ending) {
            (Some(ending), _) => {
                drop(state);
                self.answer(asked, &Ok(ending));
            }
            (None, Some(ending)) => ending.extend(asked),
            (None, None) => {
                let release = state.give_up_rest();
                let holders = state.found_gone();
                let found = state.not_found();
                drop(state);
                drop(release); // there is nothing to give back
                self.tell(&holders);
                holders.first().inspect(|holder| queues.wake_head(holder));
                self.answer(asked, &Ok(found));
            }
        }
    }

    /// The server has it no more: all who have it are told, and nobody joins them.
    pub(super) fn found_gone(&self) {
        let holders = self.state().found_gone();
        self.tell(&holders);
    }

    fn tell(&self, holders: &[Arc<Hold>]) {
        holders.iter().for_each(|holder| holder.lose(Lost::Removed, &self.counters));
    }

    /// Whoever has it is about to ask for its return, which tells all who wait now.
    pub(super) fn ends(&self) {
        let mut state = self.state();
        let waiting = mem::take(&mut state.waiting);
        state.ending.get_or_insert_default().extend(waiting);
    }

    /// It is still there.
    pub(super) fn goes_on(&self) {
        let mut state = self.state();
        let ending = state.ending.take().unwrap_or_default();
        state.waiting.extend(ending);
    }

    pub(super) fn ended(&self, ending: Ending) {
        let mut state = self.state();
        // The last hold may not have looked at what it was passed, and so may not know until when the server had it for certain.
        let ending = if ending == Ending::Unknown { state.not_found() } else { ending };
        state.ended.get_or_insert(ending);
        let waiting = state.ending.take().unwrap_or_default();
        drop(state);
        self.answer(waiting, &Ok(ending));
    }

    /// Who has left is told nothing, but counted. Not to be called while the state is locked: a recorder or a subscriber is code of the
    /// program, which may ask for this lock.
    fn answer(&self, waiting: Waiting, what: &Result<Ending>) {
        let (counters, gone) = (self.counters.of(self.subject()), matches!(what, Ok(Ending::Gone)));
        let words = if gone { "found lost at its release" } else { "released" };
        for _ in 0..count(&waiting) {
            if gone {
                counters.lost(Lost::Removed)
            } else {
                counters.released()
            } // perhaps unconfirmed
            tracing::debug!(target: "leasehold::lock", name = &*self.name, id = self.id(), "{words}");
        }
        for one in waiting {
            let _ = one.tell.send(what.clone());
        }
    }

    /// Nobody confirms any more, nor gives back what rests: the runtime ends.
    pub(super) fn abandon(&self) {
        let mut state = self.state();
        let left = (state.give_up_rest(), mem::take(&mut state.waiting), mem::take(&mut state.asked));
        drop(state);
        drop(left);
    }

    fn state(&self) -> MutexGuard<'_, TenureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TenureState {
    fn live_holders(&self) -> impl Iterator<Item = Arc<Hold>> {
        self.holders.values().filter_map(Weak::upgrade)
    }

    /// Beside those who were lost for so long that they would have nothing by themselves.
    fn is_alone(&self, hold: &Hold) -> bool {
        !self.live_holders().any(|holder| holder.number != hold.number && !holder.is_spent())
    }

    /// Who is to be told so, now that nobody can join any more.
    fn found_gone(&mut self) -> Vec<Arc<Hold>> {
        self.opening = None;
        let holders: Vec<_> = self.live_holders().collect();
        holders.iter().for_each(|holder| holder.found_gone());
        holders
    }

    fn remove(&mut self, hold: &Hold) {
        self.holders.remove(&hold.number);
        (self.bound, self.until) = (self.bound.max(hold.bound()), self.until.max(hold.ends()));
        self.not_before = self.not_before.max(hold.own_rest());
        self.unconfirmed |= self.to_settle().is_some() && self.ended.is_none() && self.ending.is_none();
        hold.passed_on();
    }

    /// The last claim of those who have left, if nobody who is there needs a longer lease than the watchdog's: the next confirmation
    /// takes it back. One that is made from now on has a greater number, so that does not touch it, in whatever order the two arrive.
    fn to_settle(&self) -> Option<u64> {
        let is_needed = || self.live_holders().any(|holder| holder.is_lengthened());
        (self.claims > self.settled && !is_needed()).then_some(self.claims)
    }

    /// The server does not have it. If its lease may have ended since it was passed on, that says nothing.
    fn not_found(&self) -> Ending {
        if self.until.left().is_zero() { Ending::Unknown } else { Ending::Gone }
    }

    fn is_open(&self) -> bool {
        self.opening.is_some_and(|opening| Moment::now() < opening.until)
    }

    /// Some wait to be told by a confirmation.
    fn tells(&self) -> bool {
        !self.waiting.is_empty() || !self.asked.is_empty()
    }

    /// Where whoever has just let go waits.
    fn not_asked_yet(&mut self) -> &mut Waiting {
        match &mut self.resting {
            Some(resting) => &mut resting.waiting,
            None => &mut self.waiting,
        }
    }

    fn give_up_rest(&mut self) -> Option<ReleaseJob> {
        let Resting { release, waiting, .. } = self.resting.take()?;
        self.waiting.extend(waiting);
        Some(release)
    }
}

/// Tells all who wait when the task that confirms is dropped.
struct AbandonOnDrop<'a>(Option<&'a Tenure>);

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        self.0.inspect(|tenure| tenure.abandon());
    }
}

/// How many of them have given up something.
fn count(waiting: &Waiting) -> u64 {
    waiting.iter().map(|one| u64::from(one.counts)).sum()
}
