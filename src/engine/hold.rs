//! One outermost hold: its count, its end, its loss.

use std::{
    fmt,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, task::AbortHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{queue::LineKey, tenure::Tenure};
use crate::{
    clock::Moment,
    config::{Lease, Name},
    error::{Error, Lost, Result},
    kind::{Kind, KindScript, Sure, Waits},
    owner::Owner,
    redis::{Part, Recall},
    stats::{Counters, Subject},
    sync::{std, tokio},
};

/// From before the first request until nothing of it can be left on the server. What Redis is asked about `id` is
/// asked under `turn`, one after the other, except renewals, which change no count, the hand-over that gives it the
/// lock, which comes to the same as its own attempts, and what takes it back from an asker that is not polled
/// ([`ReleaseJob::turn`](super::releaser::ReleaseJob)): whatever that is granted is not used any more.
pub(crate) struct Hold {
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    /// The hash field in Redis that it asks with. Never used again, so that a late command of this hold cannot touch another.
    own_id: Box<str>,
    /// Of the id that it passed on, or was passed, in memory.
    tenure: OnceLock<Arc<Tenure>>,
    pub(crate) number: u64,
    pub(crate) kind: &'static Kind,
    /// What renewals ask for.
    watchdog: Lease,
    pub(crate) turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// Called when nobody will use what is granted any more: its asker was passed over, or the client closes.
    pub(crate) recall: Recall,
    /// Told when the phase changes.
    changed: Notify,
    /// Made when somebody asks for it.
    lost_token: OnceLock<CancellationToken>,
    /// Watches the clock for the token, on the runtime of whoever asked.
    watcher: Mutex<Option<AbortHandle>>,
    /// The fencing token, of a kind that has them.
    fence: OnceLock<u64>,
}

/// How often a hold is confirmed at the most, however short its lease.
const FLOOR: Duration = Duration::from_millis(10);

/// | phase  | in the registry | on the server      | next                               |
/// |--------|-----------------|--------------------|------------------------------------|
/// | Asked  | yes             | perhaps count 1    | Held, or Over if it came to nothing |
/// | Held   | yes             | `count`            | Lost, or Over at count 0           |
/// | Lost   | yes             | perhaps still      | Over at count 0                    |
/// | Over   | no              | being given back   | -                                  |
///
/// Whoever looks at the state first lets the clock speak ([`Hold::state`]): a hold whose time is up is Lost for good from
/// then on, whatever is confirmed or given up later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Asked,
    Held,
    Lost(Lost),
    Over,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// When the asker came, or the last of several that came one after the other.
    asked: Moment,
    /// The asker waits in the queue, so a second branch of its owner need not.
    queued: bool,
    /// It was handed over, or passed on in memory, and its asker may not know yet.
    given: bool,
    /// Its id went on to another hold, in memory: nothing of this one is on the server.
    passed_on: bool,
    /// What it was passed on with.
    inherited: Option<Inheritance>,
    /// Each request that could change something of it was answered at the first try, and it has had one acquisition only:
    /// whatever the server has of it, it will not change by itself.
    clean: bool,
    /// A longer lease than the watchdog's was asked for.
    lengthened: bool,
    /// Its asker was passed over, and may hold the turn for ever.
    evicted: bool,
    /// Guards alive, and nested requests under way.
    count: u32,
    /// How many of them are kept by the watchdog.
    renewed: u32,
    /// When it was granted.
    since: Option<Moment>,
    /// How often the server is asked to confirm it.
    every: Duration,
    /// When the last request was sent by which the server had it.
    confirmed: Moment,
    /// Certainly ours until then.
    until: Moment,
    /// It was seen so lately that nobody can have brought its end nearer than this.
    sure: Moment,
    /// When the latest request was sent that `sure` is known from.
    sure_since: Moment,
    /// After this, nothing that was sent so far can be left on the server, except through `below`.
    bound: Moment,
    /// A hold of the other kind that was granted because of this one. While the server has it, the lock does not expire, and so neither
    /// does this hold.
    below: Option<Arc<Hold>>,
    /// `max_hold` of each guard that has one; the earliest ends the hold.
    caps: Vec<Moment>,
    /// Whoever gets it after us, gets it no earlier than this.
    not_before: Moment,
    /// The client closes: whatever is granted from now on is lost at once.
    doomed: bool,
    /// Its loss that has been told and counted. It stays when the hold is over.
    told: Option<Lost>,
    /// It was lost, and its lease is over since: nothing of it may be left on the server, whatever guards there are.
    spent: bool,
    /// The server was asked to give back its last acquisition, or to hand it over, and has not answered.
    returning: bool,
    /// The server has confirmed that its last acquisition was given back or handed over.
    returned: bool,
    /// What was found when it was given back. The first answer is that of all its guards.
    ending: Option<Ending>,
    /// How often it came to the server again after it was given up.
    visits: u32,
    /// That it was granted is balanced in the statistics.
    counted: bool,
    confirm_at: Moment,
    /// Its entry in the watchdog's list.
    due: Option<Moment>,
}

/// What goes on with an id that is passed on in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inheritance {
    until: Moment,
    sure: Moment,
    bound: Moment,
    every: Duration,
    confirm_at: Moment,
}

/// That the server has given the lock to a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Just before the request went out that was answered with it.
    pub(super) sent: Moment,
    /// The fencing token of this grant and of no other, of a kind that has them.
    pub(super) token: Option<u64>,
}

impl Grant {
    /// Of a hold that the server was not asked for, or that it had before.
    pub(super) fn without_token(sent: Moment) -> Grant {
        Grant { sent, token: None }
    }
}

/// What one acquisition was made for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LeaseTerms {
    /// The watchdog keeps it.
    pub(crate) renewed: bool,
    /// When it must be over.
    pub(crate) cap: Option<Moment>,
}

/// What came of claiming an acquisition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The acquisition is ours to ask for: the outermost one.
    First,
    /// The acquisition is ours to ask for: a nested one.
    Again,
    /// Refused: the owner has lost it, and must be told so.
    Lost(Lost),
    /// Refused: its last guard has gone. The owner starts afresh.
    Over,
}

/// Whether a hold was ours until it was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Ours,
    /// The server had it no more, although its lease was not over.
    Gone,
    /// The server had it no more when it was heard again, but by then the lease may have ended by itself.
    Unknown,
}

/// That the return of a hold is being asked for.
#[derive(Debug)]
pub(crate) struct Returning {
    /// It was asked before, without an answer.
    pub(crate) before: bool,
    visit: u32,
}

/// What the watchdog has to do about a hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WatchdogStep {
    Ended(Lost),
    /// Ask the server to keep it for this long, or just whether it is there.
    Confirm(Option<Lease>),
    /// It was lost, its lease is over, and yet the server may have it: it must be given back.
    Spent,
    Sleep,
}

impl Hold {
    pub(crate) fn new(
        name: Name,
        owner: Owner,
        (number, id): (u64, Box<str>),
        kind: &'static Kind,
        watchdog: Lease,
    ) -> Hold {
        let state = State {
            phase: Phase::Asked,
            asked: Moment::now(),
            queued: false,
            given: false,
            passed_on: false,
            inherited: None,
            clean: true,
            lengthened: false,
            evicted: false,
            count: 0,
            renewed: 0,
            since: None,
            every: FLOOR,
            confirmed: Moment::now(),
            until: Moment::now(),
            sure: Moment::FAR,
            sure_since: Moment::PAST,
            bound: Moment::now(),
            below: None,
            caps: Vec::new(),
            not_before: Moment::now(),
            doomed: false,
            told: None,
            spent: false,
            returning: false,
            returned: false,
            ending: None,
            visits: 0,
            counted: false,
            confirm_at: Moment::FAR,
            due: None,
        };
        let (state, changed) = (Mutex::new(state), Notify::new());
        let (turn, lost_token) = (tokio::sync::Mutex::new(()), OnceLock::new());
        let recall = Recall::default();
        Hold {
            name,
            owner,
            own_id: id,
            tenure: OnceLock::new(),
            number,
            kind,
            watchdog,
            turn,
            state,
            recall,
            changed,
            lost_token,
            watcher: Mutex::default(),
            fence: OnceLock::new(),
        }
    }

    /// The hash field in Redis, the same along a row of holds that pass it on in memory.
    pub(crate) fn id(&self) -> &str {
        self.tenure.get().map_or(&self.own_id, |tenure| tenure.id())
    }

    /// If it was passed on in memory, or to it.
    pub(super) fn tenure(&self) -> Option<&Arc<Tenure>> {
        self.tenure.get()
    }

    /// That of its id, begun now if it is the first to pass that on.
    pub(super) fn begin_tenure(self: &Arc<Hold>, counters: &Arc<Counters>) -> &Arc<Tenure> {
        self.tenure.get_or_init(|| Arc::new(Tenure::of(self, self.watchdog, counters)))
    }

    /// Whether it may be passed on in memory, as far as can be seen without looking at the clock.
    pub(super) fn may_pass_on(&self) -> bool {
        self.kind.rules.passes_on && self.facts().may_pass_on()
    }

    /// Gives up its only acquisition, the last one, for another hold to have its id. `None`, and nothing is done, unless it is kept by
    /// the watchdog, long enough, and nothing of it is in doubt or under way.
    pub(super) fn pass_on(&self) -> Option<Inheritance> {
        let _turn = self.turn.try_lock().ok()?;
        let mut state = self.state();
        let inheritance = state.inheritance(self.watchdog)?;
        state.end_here();
        self.changed.notify_waiters();
        Some(inheritance)
    }

    /// What another hold that joins it begins with; on the same terms as [`Hold::pass_on`].
    pub(super) fn bequest(&self) -> Option<Inheritance> {
        self.state().inheritance(self.watchdog)
    }

    /// Gives up its only acquisition: others have its id. False, and nothing is done, if it is lost or has inner ones, or anything
    /// of it is under way.
    pub(super) fn step_out(&self) -> bool {
        let Ok(_turn) = self.turn.try_lock() else { return false };
        let mut state = self.state();
        let steps = state.phase == Phase::Held && state.count == 1;
        if steps {
            state.end_here();
            self.changed.notify_waiters();
        }
        steps
    }

    /// Takes over an id with what is known of it. Its asker has it when it looks.
    pub(super) fn inherit(&self, tenure: &Arc<Tenure>, inheritance: Inheritance) {
        let mut state = self.facts();
        self.tenure.set(Arc::clone(tenure)).expect("who waits has passed nothing on, and is passed one lock");
        (state.given, state.inherited) = (true, Some(inheritance));
        state.bound = state.bound.max(inheritance.bound);
        state.visits += 1;
        (state.returning, state.returned) = (false, false);
    }

    /// Another hold has its id now.
    pub(super) fn passed_on(&self) {
        let mut state = self.facts();
        (state.passed_on, state.returned) = (true, true);
    }

    pub(super) fn has_passed_on(&self) -> bool {
        self.facts().passed_on
    }

    /// What it was passed is gone, and it has not looked yet.
    pub(super) fn found_gone(&self) {
        if let Some(inherited) = &mut self.facts().inherited {
            inherited.until = Moment::now();
        }
    }

    /// When its asker came.
    pub(super) fn asked(&self) -> Moment {
        self.facts().asked
    }

    /// Nothing of it is in doubt.
    pub(super) fn is_clean(&self) -> bool {
        self.facts().clean
    }

    /// A request that could change something of it was not answered at the first try.
    pub(crate) fn in_doubt(&self) {
        self.facts().clean = false;
    }

    /// A request for this lease is about to be sent, and its caller may leave at any moment: if that is longer than what the watchdog
    /// asks for, the next holder must not have the id. Where others share it, the claim with which it is asked for, else nothing.
    pub(crate) fn lengthening(&self, lease: Lease) -> String {
        if lease <= self.watchdog {
            return String::new();
        }
        let mut state = self.facts();
        (state.clean, state.lengthened) = (false, true);
        drop(state); // in this order: who takes back a claim sees that this one is lengthened, or a smaller claim
        let shared = self.tenure().filter(|_| self.kind.rules.shared);
        shared.map_or_else(String::new, |tenure| tenure.claim().to_string())
    }

    /// It was asked to last for longer than the watchdog makes it, and may rely on that.
    pub(super) fn is_lengthened(&self) -> bool {
        self.facts().lengthened
    }

    /// Where it waits: in a line of the server's each has a queue of its own here.
    pub(super) fn queue(&self) -> (LineKey, u64) {
        (self.line(), if self.kind.rules.waits == Waits::InLine { self.number } else { 0 })
    }

    /// Where it is told that it may ask.
    pub(super) fn channel(&self) -> String {
        let channel = self.kind.channel(self.name.key());
        if self.kind.rules.waits == Waits::InLine { format!("{channel}:{}", self.id()) } else { channel }
    }

    /// For statistics.
    pub(super) fn subject(&self) -> Subject<'_> {
        Subject { kind: self.kind.rules.label, name: &self.name }
    }

    pub(super) fn line(&self) -> LineKey {
        (Arc::clone(self.name.key()), self.kind)
    }

    /// Where others wait for the same lock, in other ways.
    pub(super) fn other_lines(&self) -> impl Iterator<Item = LineKey> {
        let kinds = self.kind.beside.into_iter().chain(self.kind.barred_by);
        kinds.map(|kind| (Arc::clone(self.name.key()), kind))
    }

    /// A request about this hold.
    pub(crate) fn part(&self, script: &KindScript, lease: u64, count: u32, more: &str) -> Part {
        self.kind.part(script, self.name.key(), (self.id(), lease, count), more)
    }

    pub(crate) fn fence(&self) -> Option<u64> {
        self.fence.get().copied()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state().phase == Phase::Over
    }

    /// Nobody can enter it any more.
    pub(crate) fn is_closed(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Over || state.evicted
    }

    /// When it was granted, if it ever was.
    pub(crate) fn since(&self) -> Option<Moment> {
        self.facts().since
    }

    pub(crate) fn hold_count(&self) -> u32 {
        self.facts().count
    }

    /// The count the server should have. A hold that is lost keeps what its guards have until its lease is over: its holder needs
    /// the rest of the lease to stop, and an inner guard that goes must not let somebody else in.
    pub(crate) fn wanted(&self) -> u32 {
        let state = self.state();
        match state.phase {
            Phase::Held | Phase::Lost(_) if !state.doomed && !state.spent => state.count,
            _ => 0,
        }
    }

    /// A request that confirms it and asks for this lease, or that looks whether it is there, with what it has left by our own count.
    pub(crate) fn renew_part(&self, lease: Option<Lease>, claim: &str, end: Moment) -> Part {
        self.kind.renew_part(self.name.key(), (self.id(), lease.map_or(0, Lease::millis), 0), claim, end)
    }

    /// A request for this many acquisitions of it, which is not sent any more once it has been recalled.
    pub(crate) fn ask_part(&self, (lease, count): (u64, u32), more: &str, last: &str) -> Part {
        let words = self.kind.words(&self.kind.acquire, self.name.key(), (self.id(), lease, count), more);
        let words = if self.kind.has_last_word() { words.arg(last) } else { words };
        words.recalled_by(&self.recall).done()
    }

    /// Its asker goes to wait in the queue.
    pub(crate) fn set_queued(&self) {
        self.facts().queued = true;
        self.changed.notify_waiters();
    }

    /// The server has moved the lock to it.
    pub(crate) fn given(&self) {
        self.facts().given = true;
    }

    pub(crate) fn is_given(&self) -> bool {
        self.facts().given
    }

    /// Its asker is not polled: what the server has of it is given back without waiting for the turn.
    pub(crate) fn evict(&self) {
        self.recall.call();
        self.facts().evicted = true;
        self.changed.notify_waiters();
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.facts().evicted
    }

    /// Resolves when its asker was passed over.
    pub(crate) async fn evicted(&self) {
        self.until(|state| state.evicted).await;
    }

    async fn until(&self, is_true: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_true(&self.state()) {
                return;
            }
            changed.await;
        }
    }

    /// It was granted and has guards, lost or not.
    pub(crate) fn is_granted(&self) -> bool {
        matches!(self.state().phase, Phase::Held | Phase::Lost(_))
    }

    /// It is being asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.state().phase == Phase::Asked
    }

    pub(crate) fn is_doomed(&self) -> bool {
        self.facts().doomed
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.facts().queued
    }

    /// A request that asks for `lease` is about to be sent: the server may keep the hold for that long.
    pub(crate) fn asking(&self, lease: Lease) {
        let mut state = self.facts();
        state.bound = state.bound.max(Moment::now() + (*lease).max(self.kind.rules.trace()));
    }

    /// Given back before this moment, nobody else gets it until then.
    pub(super) fn not_before(&self, moment: Moment) {
        let mut state = self.facts();
        state.not_before = state.not_before.max(moment);
    }

    /// For so long nobody else may have it, even if it is given back now: also because of those who have left its id to this one.
    pub(super) fn rest(&self) -> Duration {
        let own = self.own_rest();
        self.tenure().map_or(own, |tenure| own.max(tenure.not_before())).left()
    }

    /// Until when nobody else may have it because of this one.
    pub(super) fn own_rest(&self) -> Moment {
        self.facts().not_before
    }

    /// After this, nothing of it can be left on the server.
    pub(crate) fn bound(&self) -> Moment {
        let state = self.facts();
        let (bound, below) = (state.bound, state.below.clone());
        drop(state);
        below.map_or(bound, |below| bound.max(below.bound()))
    }

    /// The server is about to be asked for that hold, which it grants because of this one.
    pub(crate) fn keeps_below(&self, hold: &Arc<Hold>) {
        let bound = self.bound(); // that of an earlier one, too
        let mut state = self.facts();
        (state.bound, state.below) = (bound, Some(Arc::clone(hold)));
    }

    /// Claims one more acquisition, before the server is asked for it. Looking whether there is something to claim and claiming
    /// it are one step: between two, the last guard could go on another thread.
    pub(crate) fn claim(&self) -> Claim {
        let mut state = self.state();
        let claim = match state.phase {
            Phase::Asked => Claim::First,
            Phase::Held => Claim::Again,
            Phase::Lost(reason) => return Claim::Lost(reason),
            Phase::Over => return Claim::Over,
        };
        state.count += 1;
        state.clean &= claim == Claim::First;
        state.asked = Moment::now();
        claim
    }

    /// The server granted what was asked for: an acquisition kept by the watchdog or with a fixed lease.
    /// True if it was the first.
    ///
    /// The server may grant one hold twice: it hands the lock over, that ends before the reply arrives, and an attempt of the hold's
    /// own is granted later. So the token is stored here, with the grant that the caller uses.
    pub(crate) fn granted(&self, Grant { sent, token }: Grant, lease: Lease, terms: LeaseTerms) -> bool {
        let mut state = self.state();
        let first = state.phase == Phase::Asked;
        if first {
            if let Some(token) = token.filter(|_| self.kind.rules.has_token) {
                self.fence.get_or_init(|| token); // nested acquisitions have the same one
            }
            state.phase = if state.doomed { Phase::Lost(Lost::Closed) } else { Phase::Held };
            state.told = state.doomed.then_some(Lost::Closed); // whoever asked for it learns that the client is closed
            state.queued = false;
            state.since = Some(sent);
            state.until = sent + lease.certain(); // may be past already: then it is lost from the start
        }
        state.renewed += u32::from(terms.renewed);
        state.caps.extend(terms.cap);
        match state.inherited.take() {
            Some(inherited) => {
                (state.until, state.sure) = (inherited.until, inherited.sure);
                (state.every, state.confirm_at) = (inherited.every, inherited.confirm_at);
            }
            None => {
                state.every = state.every.max(self.looks_every(lease));
                let sure = self.kind.rules.sure.map(|usual| state.sure_as_before(usual));
                state.seen(sent, sure);
                state.confirm(sent, lease);
            }
        }
        first
    }

    /// The server confirmed the hold; where a lease was asked for, its end is that long after `sent`. Where others may bring that
    /// nearer, it is `sure` for so long.
    pub(crate) fn confirmed(&self, sent: Moment, lease: Option<Lease>, sure: Option<Sure>) {
        let mut state = self.state();
        if let (Some(inherited), Some(lease)) = (&mut state.inherited, lease) {
            inherited.confirmed(sent, lease, sure); // its asker has not looked yet
        }
        state.seen(sent, sure);
        match lease {
            Some(lease) => state.confirm(sent, lease),
            None => state.confirm_next(sent),
        }
    }

    /// When the last request was sent by which the server had it.
    pub(super) fn last_confirmed(&self) -> Moment {
        self.facts().confirmed
    }

    /// The end of its lease by the clock of this process.
    pub(super) fn lease_ends(&self) -> Moment {
        let state = self.facts();
        state.inherited.map_or(state.until, |inherited| inherited.until)
    }

    /// How often the server is asked to confirm it.
    fn looks_every(&self, lease: Lease) -> Duration {
        let every = lease.min(self.watchdog).renewal();
        self.kind.rules.sure.map_or(every, |sure| every.min(sure.mul_f64(0.3)))
    }

    /// Gives up one acquisition. True if it was the last: the hold is over and must leave the registry.
    pub(crate) fn let_go(&self, terms: LeaseTerms) -> bool {
        let mut state = self.state();
        state.count -= 1;
        state.renewed -= u32::from(terms.renewed);
        if let Some(at) = state.caps.iter().position(|cap| Some(*cap) == terms.cap) {
            state.caps.swap_remove(at);
        }
        let last = state.count == 0 && state.phase != Phase::Over;
        if last {
            state.phase = Phase::Over;
            self.changed.notify_waiters();
        }
        last
    }

    /// Marks it lost and tells, once; the first reason stays. Without effect once it is over.
    pub(crate) fn lose(&self, reason: Lost, counters: &Counters) {
        let mut state = self.state();
        if state.phase == Phase::Held {
            state.phase = Phase::Lost(reason);
        }
        let Phase::Lost(reason) = state.phase else { return };
        if state.told.is_some() {
            return;
        }
        state.told = Some(reason);
        state.counted = true;
        drop(state);
        self.tell_token();
        counters.of(self.subject()).lost(reason);
        tracing::warn!(target: "leasehold::lock", name = &*self.name, id = self.id(), %reason, "lost");
        self.changed.notify_waiters();
    }

    /// How it was lost, the clock considered: what must be presumed lost is.
    pub(crate) fn loss(&self) -> Option<Lost> {
        let state = self.state();
        match state.phase {
            Phase::Lost(reason) => Some(reason),
            Phase::Over => Some(state.told.unwrap_or(Lost::Removed)),
            Phase::Asked | Phase::Held => None,
        }
    }

    /// The server has it no more: its holder is told, and all who share its id.
    pub(super) fn removed(&self, counters: &Counters) {
        self.lose(Lost::Removed, counters);
        self.tenure().filter(|_| self.kind.rules.shared).inspect(|tenure| tenure.found_gone());
    }

    /// It was lost, and by itself it would have nothing on the server any more.
    pub(super) fn is_spent(&self) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::Lost(_)) && state.bound <= Moment::now()
    }

    /// `Err` if it is lost.
    pub(crate) fn check(&self) -> Result<()> {
        self.loss().map_or(Ok(()), |reason| Err(Error::lost(&self.name, reason)))
    }

    /// Resolves when it is lost: told by the watchdog, or at the end of its time by the clock of whoever asks, since the
    /// runtime that the watchdog runs on may have ended.
    pub(crate) async fn lost(&self) -> Lost {
        loop {
            let changed = self.changed.notified();
            if let Some(reason) = self.loss() {
                return reason;
            }
            tokio::select! {
                () = changed => {}
                () = pass(self.remaining()) => {}
            }
        }
    }

    /// Cancelled when it is lost. A task on the caller's runtime watches the clock until the hold is over, as
    /// [`lost`](Hold::lost) does; there is one at a time.
    pub(crate) fn lost_token(self: &Arc<Hold>) -> CancellationToken {
        let token = self.lost_token.get_or_init(CancellationToken::new);
        if self.is_lost() {
            token.cancel(); // also where it was told before there was a token
        } else if let Ok(runtime) = Handle::try_current() {
            self.watch_the_clock(&runtime, token);
        }
        token.child_token() // a child: whoever cancels it tells nobody else
    }

    /// Once more if the runtime that it was done on has ended.
    fn watch_the_clock(self: &Arc<Hold>, runtime: &Handle, token: &CancellationToken) {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if watcher.as_ref().is_some_and(|watcher| !watcher.is_finished()) {
            return;
        }
        let (hold, token) = (Arc::clone(self), token.clone());
        let watching = runtime.spawn(async move {
            hold.lost().await;
            if hold.is_lost() {
                token.cancel();
            }
        });
        *watcher = Some(watching.abort_handle());
    }

    /// Its loss was found when it had been given up already: there is no guard left to say it, but perhaps a token.
    pub(crate) fn tell_token(&self) {
        if let Some(token) = self.lost_token.get() {
            token.cancel();
        }
    }

    /// Lost, and not just over.
    fn is_lost(&self) -> bool {
        matches!(self.state().phase, Phase::Lost(_))
    }

    /// Resolves when its asker found the lock taken and waits in the queue.
    pub(crate) async fn queued(&self) {
        self.until(|state| state.queued).await;
    }

    /// Certainly ours for this long.
    pub(crate) fn remaining(&self) -> Duration {
        let state = self.state();
        match state.phase {
            Phase::Held => state.end().left(),
            _ => Duration::ZERO,
        }
    }

    /// Since when, with which hold count, and for how much longer it is certainly ours; `None` if it is not.
    pub(crate) fn held(&self) -> Option<(Moment, u32, Duration)> {
        let state = self.state();
        match (state.phase, state.since) {
            (Phase::Held, Some(since)) => Some((since, state.count, state.end().left())),
            _ => None,
        }
    }

    pub(crate) fn step(&self, now: Moment) -> WatchdogStep {
        let mut state = self.state();
        match state.phase {
            Phase::Lost(reason) if state.told.is_none() => WatchdogStep::Ended(reason),
            Phase::Lost(_) if self.kind.may_outlast_its_lease() && !state.spent && now >= state.until => {
                state.spent = true;
                WatchdogStep::Spent
            }
            Phase::Held if now >= state.confirm_at => {
                WatchdogStep::Confirm((state.renewed > 0).then_some(self.watchdog))
            }
            _ => WatchdogStep::Sleep,
        }
    }

    /// When the watchdog must look next; `confirming` leaves out the confirmation that is under way.
    pub(crate) fn next_due(&self, confirming: bool) -> Option<Moment> {
        let state = self.state();
        match state.phase {
            Phase::Held if confirming => Some(state.end()),
            Phase::Held => Some(state.end().min(state.confirm_at)),
            Phase::Lost(_) if state.told.is_none() => Some(Moment::now()),
            Phase::Lost(_) if self.kind.may_outlast_its_lease() && !state.spent => Some(state.until),
            _ => None,
        }
    }

    /// Confirm it now, whatever was planned.
    pub(crate) fn confirm_now(&self) {
        self.facts().confirm_at = Moment::now();
    }

    /// A confirmation failed: try again soon, but not so often that it hurts a server in trouble.
    pub(crate) fn confirm_later(&self) {
        let mut state = self.facts();
        state.confirm_at = Moment::now() + state.every / 10;
    }

    /// The client closes.
    pub(crate) fn doom(&self, counters: &Counters) {
        self.recall.call();
        self.state().doomed = true;
        self.lose(Lost::Closed, counters);
    }

    /// The server is about to be asked for the return of its last acquisition. Says whether that was asked before, by whomever,
    /// without an answer: it may have been done then.
    pub(crate) fn returning(&self) -> Returning {
        let mut state = self.facts();
        Returning { before: std::mem::replace(&mut state.returning, true), visit: state.visits }
    }

    /// The server has answered that it is not at its last acquisition: nothing was done.
    pub(crate) fn not_returned(&self) {
        self.facts().returning = false;
    }

    /// The server has confirmed that nothing is left of it, unless it has come back since that was asked.
    pub(crate) fn returned(&self, asked: &Returning) {
        let mut state = self.facts();
        state.returned = state.visits == asked.visit;
    }

    /// The server has answered what was found when its last acquisition was given back. What that means for all its guards.
    pub(super) fn ended(&self, found: Ending) -> Ending {
        *self.facts().ending.get_or_insert(found)
    }

    /// What was found when it was given back, if anything was.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.facts().ending
    }

    /// The server does not have it. If its lease may have ended since it was given up, that says nothing.
    pub(super) fn not_found(&self) -> Ending {
        if self.ends().left().is_zero() { Ending::Unknown } else { Ending::Gone }
    }

    /// Until when the server had it for certain, as far as is known, unless somebody took it away.
    pub(super) fn ends(&self) -> Moment {
        let state = self.facts();
        state.until.min(state.sure)
    }

    /// It may be on the server again although it was given up: handed over too late, or asked for by a call that had been
    /// passed over. It must be given back once more.
    pub(crate) fn came_again(&self) {
        let mut state = self.facts();
        state.visits += 1;
        state.returned = false; // but what was asked for before may still be done
    }

    /// Whether its return is to be counted: once, and only if its grant was.
    pub(crate) fn count_return(&self) -> bool {
        let mut state = self.state();
        state.phase == Phase::Over && state.since.is_some() && !std::mem::replace(&mut state.counted, true)
    }

    pub(crate) fn is_returned(&self) -> bool {
        self.facts().returned
    }

    /// Swaps the moment under which the watchdog lists it.
    pub(crate) fn swap_due(&self, due: Option<Moment>) -> Option<Moment> {
        std::mem::replace(&mut self.facts().due, due)
    }

    /// The state, after the clock has spoken: for whoever looks at the phase.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.facts();
        state.settle();
        state
    }

    /// The state as it was left: for what the clock has no say in.
    fn facts(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for so long by the clock of whoever waits. Outside a runtime there is none, and the watchdog must tell.
pub(crate) async fn pass(time: Duration) {
    if Handle::try_current().is_err() {
        return pending().await;
    }
    sleep(time).await;
}

impl Inheritance {
    /// As [`Hold::lease_ends`].
    pub(super) fn lease_ends(&self) -> Moment {
        self.until
    }

    pub(super) fn ends(&self) -> Moment {
        self.until.min(self.sure)
    }

    pub(super) fn confirmed(&mut self, sent: Moment, lease: Lease, sure: Option<Sure>) {
        self.sure = sure.map_or(self.sure, |sure| sure.end(sent, self.sure, self.ends()));
        self.until = self.until.max(sent + lease.certain());
    }
}

impl State {
    /// Its last acquisition is given up, and the server is not asked for that.
    fn end_here(&mut self) {
        (self.phase, self.count, self.renewed, self.counted) = (Phase::Over, 0, 0, true);
        self.caps.clear();
    }

    /// What another hold can have of it, while it is sure for long enough, and no longer than the watchdog made it.
    fn inheritance(&self, watchdog: Lease) -> Option<Inheritance> {
        let State { until, sure, bound, every, confirm_at, .. } = *self;
        let is_sure = self.may_pass_on() && (*watchdog / 2..=*watchdog).contains(&until.left());
        is_sure.then_some(Inheritance { until, sure, bound, every, confirm_at })
    }

    fn may_pass_on(&self) -> bool {
        let is_kept = self.phase == Phase::Held && (self.count, self.renewed) == (1, 1);
        is_kept && self.clean && !self.doomed && self.not_before.left().is_zero()
    }

    /// What is past its end is lost for good.
    fn settle(&mut self) {
        if self.phase == Phase::Held
            && let Some(reason) = self.ended(Moment::now())
        {
            self.phase = Phase::Lost(reason);
        }
    }

    /// The server had it when it was asked then.
    ///
    /// A caller may look at a reply late. By then the reply to a later request may have said that another client has shortened the lease,
    /// so an earlier request proves nothing.
    fn seen(&mut self, sent: Moment, sure: Option<Sure>) {
        if let Some(sure) = sure.filter(|_| self.phase == Phase::Held && self.sure_since <= sent) {
            self.sure = sure.end(sent, self.sure, self.until.min(self.sure));
            self.sure_since = sent;
        }
    }

    /// The time for which a nested acquisition makes the hold certain. Its reply does not say how much was left of the lease. A client that
    /// has shortened the lease may do the same again.
    fn sure_as_before(&self, usual: Duration) -> Sure {
        Sure::AsUsual(usual.min(self.sure.since(self.sure_since)))
    }

    fn confirm(&mut self, sent: Moment, lease: Lease) {
        // Lost is lost: an answer that comes too late must not take back what the holder may have been told.
        if self.phase == Phase::Held {
            self.until = self.until.max(sent + lease.certain());
        }
        self.confirm_next(sent);
    }

    /// On a grid, so that holds taken at different moments are confirmed together. In time before others may have ended it.
    fn confirm_next(&mut self, sent: Moment) {
        self.confirmed = self.confirmed.max(sent);
        let every = self.every.min(self.sure.since(sent).mul_f64(0.3)).max(FLOOR);
        self.confirm_at = (sent + every).floor(every / 16);
    }

    fn cap(&self) -> Moment {
        self.caps.iter().copied().min().unwrap_or(Moment::FAR)
    }

    fn end(&self) -> Moment {
        self.until.min(self.sure).min(self.cap())
    }

    fn ended(&self, now: Moment) -> Option<Lost> {
        if now >= self.cap() {
            Some(Lost::MaxHold)
        } else if now >= self.until.min(self.sure) {
            Some(Lost::Expired)
        } else {
            None
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Hold")
            .field("name", &&*self.name)
            .field("id", &self.id())
            .field("phase", &state.phase)
            .field("hold_count", &state.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kind::{KindScript, Rules},
        redis::LOCK_CHANNEL,
    };

    static KIND: Kind = Kind {
        channel: LOCK_CHANNEL,
        acquire: KindScript::new("", &[]),
        release: KindScript::new("", &[]),
        renew: KindScript::new("", &[]),
        hand_over: None,
        inspect: KindScript::new("", &[]),
        force_unlock: KindScript::new("", &[]),
        beside: None,
        barred_by: None,
        rules: Rules::PLAIN,
    };

    fn lease(millis: u64) -> Lease {
        Lease::new("lease", Duration::from_millis(millis)).expect("long enough")
    }

    fn granted(sent: Moment) -> Hold {
        let name = Name::new("", "x").expect("a good name");
        let hold = Hold::new(name, Owner::new(), (1, "u:1".into()), &KIND, lease(30_000));
        hold.claim();
        hold.granted(Grant::without_token(sent), lease(50), LeaseTerms::default());
        hold
    }

    #[test]
    fn an_answer_in_time_puts_the_end_off() {
        let now = Moment::now();
        let hold = granted(now);
        hold.confirmed(now, Some(lease(30_000)), None);
        assert!(hold.remaining() > Duration::from_secs(20));
    }

    #[test]
    fn an_answer_that_comes_after_the_end_changes_nothing() {
        let hold = granted(Moment::now());
        std::thread::sleep(Duration::from_millis(60)); // its lease, and a little
        assert_eq!(hold.loss(), Some(Lost::Expired));
        hold.confirmed(Moment::now(), Some(lease(30_000)), None);
        hold.granted(Grant::without_token(Moment::now()), lease(30_000), LeaseTerms::default());
        assert_eq!(hold.loss(), Some(Lost::Expired));
    }

    #[test]
    fn what_is_over_cannot_be_claimed() {
        let hold = granted(Moment::now());
        assert_eq!(hold.claim(), Claim::Again);
        assert!(!hold.let_go(LeaseTerms::default()));
        assert!(hold.let_go(LeaseTerms::default()), "the last acquisition");
        assert_eq!((hold.claim(), hold.loss(), hold.hold_count()), (Claim::Over, Some(Lost::Removed), 0));
    }

    #[test]
    fn a_cap_that_is_past_stays_past_when_its_guard_goes_first() {
        let hold = granted(Moment::now());
        hold.claim();
        let capped = LeaseTerms { renewed: false, cap: Some(Moment::now()) };
        hold.granted(Grant::without_token(Moment::now()), lease(30_000), capped);
        hold.let_go(capped);
        assert_eq!((hold.loss(), hold.remaining()), (Some(Lost::MaxHold), Duration::ZERO));
        assert_eq!((hold.claim(), hold.wanted()), (Claim::Lost(Lost::MaxHold), 1));
    }

    #[test]
    fn an_answer_about_an_earlier_visit_does_not_count() {
        let hold = granted(Moment::now());
        let asked = hold.returning();
        hold.came_again();
        hold.returned(&asked);
        assert!(!hold.is_returned());
        hold.returned(&hold.returning());
        assert!(hold.is_returned());
    }
}
