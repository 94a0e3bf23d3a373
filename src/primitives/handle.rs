//! The common part of all public lock types: a name, settings, and requests about the lock itself instead of one hold.

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use tracing::{Instrument, Span};
use uuid::Uuid;

use crate::{
    ask::Asked,
    client::Client,
    clock::Moment,
    config::{Lease, Name, start_of},
    driver::{self, HeldLock},
    engine::Engine,
    error::{About, Error, Lost, Result},
    events::{KindLabel, Subject},
    failed::{ASKING, ASKING_PERMITS, WAITING, unexpected},
    guard::Guard,
    kind::{Kind, KindScript},
    lock::{MOST_PERMITS, Nanos, Terms},
    owner::Owner,
    record::ClientRecord,
    redis::{ASK_CHANNEL, Answer, Code, Listener, Part, Script, Subscription},
    release_request::{AskOutcome, ReleaseRequest},
    request::{AcquireRequest, WaitLimit},
    spans,
    sync::tokio,
};
use tokio::time::Instant;

const FORCE_UNLOCK: &str = "force_unlock";
const ASK: &str = "ask";
static ASK_SCRIPT: Script = Script::new(concat!(include_str!("../redis/frame.lua"), include_str!("lock/ask.lua")));
/// The length of a reason, in bytes.
const LONGEST_REASON: usize = 1_000;
/// A lease that no process outlives.
const WITHOUT_END: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// A lock by name, with the settings for acquiring it.
#[derive(Clone)]
pub(super) struct Handle {
    pub(super) engine: Arc<Engine>,
    given: Arc<str>,
    /// The address of the server, as in the client's URL.
    place: Arc<str>,
    database: u8,
    name: Setting<Name>,
    lease: Setting<Option<Lease>>,
    max_hold: Setting<Option<Duration>>,
    min_hold: Setting<Option<Lease>>,
    acts_for: ActsFor,
}

/// An invalid setting is reported by the first call that uses it. The error is in an `Arc`, because tasks keep many handles.
type Setting<T> = std::result::Result<T, Arc<Error>>;

fn valid<T: Clone>(setting: &Setting<T>) -> Result<T> {
    setting.clone().map_err(Arc::unwrap_or_clone)
}

/// The owner of an acquisition.
#[derive(Debug, Clone)]
pub(crate) enum ActsFor {
    /// The [`Owner::current`] of each call.
    Current,
    /// A new owner for each call.
    EachCall,
    This(Owner),
}

impl ActsFor {
    pub(crate) fn owner(&self) -> Owner {
        match self {
            ActsFor::Current => Owner::current(),
            ActsFor::EachCall => Owner::new(),
            ActsFor::This(owner) => owner.clone(),
        }
    }
}

/// The holder of a lock, as the server sees it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let stock = client.mutex("stock:7");
/// let guard = stock.lock().await?;
/// let holder = stock.inspect().await?.expect("it is held");
/// assert_eq!((&*holder.id, holder.holds), (guard.id(), 1));
/// println!("for {:?} more", holder.remaining);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The id of the hold: the name of a field in the hash that is the lock in Redis. For a leasehold client it is [`Guard::id`], for
    /// Redisson `clientUUID:threadId`. If the hold was released before its [`min_hold`](crate::Lock::min_hold) was over, its id ends
    /// with `:rest`.
    pub id: String,
    /// The hold count: how often one owner has acquired the lock. A leasehold client counts its readers by itself, so this is 1 for all
    /// readers that share this entry.
    pub holds: u64,
    /// The time left on the lease. `None` if the key never expires; no client creates such a key on purpose.
    pub remaining: Option<Duration>,
    /// The process behind it. `None` for a JVM and for permits, if the client [writes no record](crate::Builder::announce), or has held
    /// locks for less than a moment.
    pub client: Option<ClientRecord>,
}

impl Handle {
    pub(super) fn new(client: &Client, name: &str) -> Handle {
        Handle {
            engine: Arc::clone(client.engine()),
            given: name.into(),
            place: client.place(),
            database: client.database(),
            name: Name::new(client.prefix(), name).map_err(Arc::new),
            lease: Ok(None),
            max_hold: Ok(None),
            min_hold: Ok(None),
            acts_for: ActsFor::Current,
        }
    }

    pub(super) fn lease(self, d: Duration) -> Self {
        Handle { lease: Lease::new("lease", d).map(Some).map_err(Arc::new), ..self }
    }

    pub(super) fn max_hold(self, d: Duration) -> Self {
        let zero = || Error::config("max_hold", "it must be greater than zero");
        Handle { max_hold: if d.is_zero() { Err(Arc::new(zero())) } else { Ok(Some(d)) }, ..self }
    }

    pub(super) fn min_hold(self, d: Duration) -> Self {
        Handle { min_hold: Lease::new("min_hold", d).map(Some).map_err(Arc::new), ..self }
    }

    pub(super) fn owner(self, o: &Owner) -> Self {
        Handle { acts_for: ActsFor::This(o.clone()), ..self }
    }

    pub(super) fn non_reentrant(self) -> Self {
        Handle { acts_for: ActsFor::EachCall, ..self }
    }

    /// Refuses a name if a cluster would not deliver the messages of this kind.
    pub(super) fn with_channel_of(self, kind: &Kind) -> Self {
        const REASON: &str = "the name or the prefix has a '{', and a cluster would keep a latch and its channel apart";
        let is_apart = |name: &Name| self.engine.is_cluster() && kind.channel.is_apart_from(name.key());
        let name = match &self.name {
            Ok(name) if is_apart(name) => {
                Err(Arc::new(Error::InvalidName { name: start_of(&self.given).to_owned(), reason: REASON }))
            }
            name => name.clone(),
        };
        Handle { name, ..self }
    }

    /// The key in Redis (or the name, if it is not valid) with the server and the database; and the id of the client.
    pub(super) fn rank(&self) -> ((&str, &str, u8), Uuid) {
        let key = self.name.as_ref().map_or(&self.given, |name| name.key());
        ((key, &self.place, self.database), self.engine.id)
    }

    /// Notifies the listener whenever the lock is released for all.
    pub(super) fn listen(&self, kind: &'static Kind, listener: Arc<dyn Listener>) -> Result<Subscription> {
        Ok(self.engine.listen(&kind.channel(valid(&self.name)?.key()), listener))
    }

    /// True if the server of this lock has given no reply for this long, or cannot be connected to.
    pub(super) fn has_unwell_server(&self, late: Duration) -> bool {
        self.name.as_ref().is_ok_and(|name| self.engine.is_unwell(name.key(), late))
    }

    /// True if that owner has a hold of this lock, lost or not.
    pub(super) fn is_held_by(&self, kind: &'static Kind, owner: &Owner) -> bool {
        self.name.as_ref().is_ok_and(|name| self.engine.driver.is_held_by(name, kind, owner))
    }

    /// The interval at which the client renews a lock without a fixed lease.
    pub(super) fn renewal(&self) -> Duration {
        self.engine.config.watchdog.renewal()
    }

    pub(super) fn fixed_lease(&self) -> Option<Duration> {
        self.lease.as_ref().ok()?.map(|lease| *lease)
    }

    pub(super) fn has_min_hold(&self) -> bool {
        !matches!(self.min_hold, Ok(None))
    }

    /// The name, without the client's prefix.
    pub(super) fn name(&self) -> &str {
        &self.given
    }

    pub(super) async fn take(
        &self,
        kind: &'static Kind,
        what: &'static str,
        wait_limit: WaitLimit,
    ) -> Result<Option<Guard>> {
        let request = self.request(kind, ASKING, wait_limit).map_err(|invalid| self.refuse(kind, what, invalid))?;
        self.take_request(what, &request).await
    }

    /// The same for all or none of so many permits.
    pub(super) async fn take_permits(
        &self,
        kind: &'static Kind,
        permits: u32,
        what: &'static str,
        wait_limit: WaitLimit,
    ) -> Result<Option<Guard>> {
        let request = self.permits_request(kind, permits, wait_limit);
        let request = request.map_err(|invalid| self.refuse(kind, what, invalid))?;
        self.take_request(what, &request).await
    }

    fn permits_request(&self, kind: &'static Kind, permits: u32, wait_limit: WaitLimit) -> Result<AcquireRequest> {
        let permits = u16::try_from(permits).ok().filter(|permits| (1..=MOST_PERMITS).contains(permits));
        let permits = permits.ok_or_else(|| Error::config("permits", "it must be from 1 to 10,000"))?;
        let request = self.request(kind, ASKING_PERMITS, wait_limit)?;
        // Each hold of permits is its own, so an owner has nothing to re-enter.
        Ok(AcquireRequest { terms: Terms { permits, ..request.terms }, owner: Owner::new(), ..request })
    }

    /// Thousands of tasks may wait in this future, so it keeps one copy of the request and of the span.
    async fn take_request(&self, what: &'static str, request: &AcquireRequest) -> Result<Option<Guard>> {
        let acquired = driver::acquire(&self.engine.driver, request);
        let mut acquired = pin!(acquired.instrument(self.span(request.kind, what)));
        let held = acquired.as_mut().await;
        self.taken(request.kind, acquired.span(), held)
    }

    /// The same. Tries again after an outage while `may_retry` permits it.
    pub(super) async fn take_through_outages(
        &self,
        kind: &'static Kind,
        what: &'static str,
        may_retry: impl Fn() -> bool,
    ) -> Result<Option<Guard>> {
        let request =
            self.request(kind, ASKING, WaitLimit::Once).map_err(|invalid| self.refuse(kind, what, invalid))?;
        let tries = driver::acquire_through_outages(&self.engine.driver, &request, may_retry);
        let mut tries = pin!(tries.instrument(self.span(kind, what)));
        let held = tries.as_mut().await;
        self.taken(kind, tries.span(), held)
    }

    fn taken(&self, kind: &'static Kind, span: &Span, held: Result<Option<HeldLock>>) -> Result<Option<Guard>> {
        match &held {
            Ok(Some(held)) => spans::note_acquired(span, || held.id()),
            Ok(None) => spans::note_given_up(span),
            Err(error) => self.note_failed(kind, span, error),
        }
        Ok(held?.map(|held| Guard::new(held, &self.engine)))
    }

    /// Waits until the waiters of this kind may pass; false at the wait limit.
    pub(super) async fn pass(&self, kind: &'static Kind, what: &'static str, wait_limit: WaitLimit) -> Result<bool> {
        let request = self.request(kind, WAITING, wait_limit).map_err(|invalid| self.refuse(kind, what, invalid))?;
        self.pass_request(what, &request).await
    }

    /// Waits until the caller has acquired so many permits; false at the wait limit. From then on they are no hold of the client. Until
    /// then they are a hold without an end: the server has no lease for them.
    pub(super) async fn keep_permits(
        &self,
        kind: &'static Kind,
        permits: u32,
        what: &'static str,
        wait_limit: WaitLimit,
    ) -> Result<bool> {
        let request = self.permits_request(kind, permits, wait_limit);
        let request = request.map_err(|invalid| self.refuse(kind, what, invalid))?;
        let terms = Terms { lease: Some(WITHOUT_END.into()), ..request.terms };
        self.pass_request(what, &AcquireRequest { terms, ..request }).await
    }

    /// True if a waiter of this client acquires permits that a caller returns. Not after the end of the client, whose waiters never look.
    pub(super) fn give_back(&self, kind: &'static Kind, permits: u32) -> bool {
        let (Ok(name), Ok(permits)) = (valid(&self.name), u16::try_from(permits)) else { return false };
        let driver = &self.engine.driver;
        driver.refuse_if_closed("release", &name).is_ok() && driver.give_back(&name, kind, permits)
    }

    async fn pass_request(&self, what: &'static str, request: &AcquireRequest) -> Result<bool> {
        let passing = driver::pass(&self.engine.driver, request);
        let mut passing = pin!(passing.instrument(self.span(request.kind, what)));
        let passed = passing.as_mut().await;
        let span = passing.span();
        match &passed {
            Ok(true) => spans::note_passed(span),
            Ok(false) => spans::note_given_up(span),
            Err(error) => self.note_failed(request.kind, span, error),
        }
        passed
    }

    /// A name that was refused may have any length.
    fn subject(&self, kind: &'static Kind) -> Subject<'_> {
        Subject { kind: kind.rules.label, name: if self.name.is_ok() { self.name() } else { start_of(self.name()) } }
    }

    fn span(&self, kind: &'static Kind, what: &'static str) -> Span {
        spans::acquire(&self.engine.config.server, self.subject(kind), what)
    }

    fn note_failed(&self, kind: &'static Kind, span: &Span, error: &Error) {
        spans::note_failed(span, error);
        self.engine.counters.of(self.subject(kind)).failed(error.failure());
    }

    /// A call with an invalid setting fails, too.
    fn refuse(&self, kind: &'static Kind, what: &'static str, invalid: Error) -> Error {
        self.note_failed(kind, &self.span(kind, what), &invalid);
        invalid
    }

    /// An error if a setting is not valid.
    fn request(&self, kind: &'static Kind, what: &'static str, wait_limit: WaitLimit) -> Result<AcquireRequest> {
        let (lease, min_hold) = (valid(&self.lease)?, valid(&self.min_hold)?);
        if lease.is_some_and(|lease| Some(lease) < min_hold) {
            return Err(Error::config("min_hold", "it is longer than the lease"));
        }
        let terms = Terms {
            mode: kind.mode(),
            lease: lease.map(|lease| (*lease).into()),
            max_hold: valid(&self.max_hold)?.map(Nanos::from),
            min_hold: min_hold.map(|min| (*min).into()),
            permits: 0,
        };
        Ok(AcquireRequest { what, name: valid(&self.name)?, owner: self.acts_for.owner(), kind, terms, wait_limit })
    }

    /// The holder of a lock that one owner holds at a time.
    pub(super) async fn inspect(&self, kind: &'static Kind) -> Result<Option<Holder>> {
        let Some(held) = self.look(kind, ("inspect", ""), self.engine.outage_ends()).await? else { return Ok(None) };
        let holder = Holder::of(&held).ok_or_else(|| self.conflict())?;
        self.named(kind, &holder.id)?;
        Ok(Some(holder))
    }

    /// With the record of its client.
    pub(super) async fn with_client(&self, holder: Holder) -> Holder {
        Holder { client: self.engine.record_of(&holder.id).await, ..holder }
    }

    /// The server has said that the lock is free.
    pub(super) fn said_to_be_free(&self, kind: &'static Kind) -> Result<()> {
        self.engine.driver.free_on_server(&valid(&self.name)?, kind);
        Ok(())
    }

    /// The server has named this holder.
    pub(super) fn named(&self, kind: &'static Kind, holder: &str) -> Result<()> {
        self.engine.driver.named_by_server(&valid(&self.name)?, kind, holder);
        Ok(())
    }

    /// The line about the holder, if there is one.
    async fn look(
        &self,
        kind: &'static Kind,
        (what, more): (&'static str, &str),
        give_up: Instant,
    ) -> Result<Option<String>> {
        let answer = self.tell(what, (kind, &kind.inspect), ("", more), give_up).await?;
        match (answer.code, answer.words()) {
            (Code::Held, Some([held])) => Ok(Some(held.to_owned())),
            (Code::Free, _) => Ok(None),
            _ => Err(self.conflict()),
        }
    }

    /// Looks up the holder, then releases the lock of that holder. Does nothing if the lease was renewed in between: the lock may then have
    /// been passed on, and another lookup would not show that.
    pub(super) async fn force_unlock(&self, kind: &'static Kind) -> Result<bool> {
        let give_up = self.engine.outage_ends();
        let Some(held) = self.look(kind, (FORCE_UNLOCK, "ends"), give_up).await? else { return Ok(false) };
        let (ends, held) = held.split_once(' ').ok_or_else(|| self.conflict())?;
        let holder = Holder::of(held).ok_or_else(|| self.conflict())?;
        match self.force(kind, &holder.id, ends, give_up).await? {
            Code::Released => Ok(true),
            Code::Gone | Code::Kept => Ok(false),
            _ => Err(self.conflict()),
        }
    }

    /// Releases the lock of these holds, if their lease still expires at the time that the lookup found.
    pub(super) async fn force(&self, kind: &'static Kind, ids: &str, ends: &str, give_up: Instant) -> Result<Code> {
        // The lookup was sent, so the channels of a cluster are known.
        let (name, script, publish) = (valid(&self.name)?, &kind.force_unlock, self.engine.publish());
        let part =
            kind.words(script, name.key(), (ids, 0, 0), publish).arg(ends).arg(Uuid::new_v4().as_simple()).done();
        let _forced = ForcedOnDrop(&self.engine, &name); // the request may have run even if there is no reply, or no caller
        Ok(self.ask((FORCE_UNLOCK, kind.rules.label), (&script.script, part), give_up).await?.code)
    }

    /// Asks the holders to release the lock.
    pub(super) async fn ask_to_release(&self, reason: &str) -> Result<AskOutcome> {
        if reason.len() > LONGEST_REASON {
            return Err(Error::config("reason", "it has more than 1,000 bytes"));
        }
        let (name, give_up) = (valid(&self.name)?, self.engine.outage_ends());
        let publish = self.engine.publish_when_known(give_up).await;
        if publish.is_empty() {
            return Err(Error::config("pubsub", "it is off, so nobody can be asked"));
        }
        let text = ReleaseRequest::text(reason, self.engine.own_record().as_ref());
        let channel = ASK_CHANNEL.of(name.key());
        let part = Part::of(name.key()).arg(text).arg(0).arg(0).arg(publish).arg(channel).done();
        let answer = self.ask((ASK, KindLabel::Lock), (&ASK_SCRIPT, part), give_up).await?;
        match (answer.code, answer.number()) {
            (Code::Free, _) => Ok(AskOutcome::Free),
            (Code::Held, Some(0)) => Ok(AskOutcome::NotHeard),
            (Code::Held, Some(_)) => Ok(AskOutcome::Heard),
            _ => Err(unexpected(&answer)),
        }
    }

    /// Sends a request about the lock itself, not about a hold of this client.
    pub(super) async fn tell(
        &self,
        what: &'static str,
        (kind, script): (&'static Kind, &'static KindScript),
        (id, more): (&str, &str),
        give_up: Instant,
    ) -> Result<Answer> {
        let part = kind.part(script, valid(&self.name)?.key(), (id, 0, 0), more);
        self.ask((what, kind.rules.label), (&script.script, part), give_up).await
    }

    /// Sends a request that changes something without an owner. If it is sent again, its number shows whether it has run.
    pub(super) async fn change(
        &self,
        what: &'static str,
        (kind, script): (&'static Kind, &'static KindScript),
        count: u32,
    ) -> Result<Answer> {
        self.change_by(what, (kind, script), i64::from(count), "").await
    }

    /// The same, with one more word for the script.
    pub(super) async fn change_by(
        &self,
        what: &'static str,
        (kind, script): (&'static Kind, &'static KindScript),
        count: i64,
        how: &'static str,
    ) -> Result<Answer> {
        self.make(&mut self.plan(what, (kind, script), count, how)?).await
    }

    /// A change that is not sent yet.
    pub(super) fn plan(
        &self,
        what: &'static str,
        (kind, script): (&'static Kind, &'static KindScript),
        count: i64,
        how: &'static str,
    ) -> Result<Change> {
        valid(&self.name)?;
        Ok(Change { what, kind, script, id: Uuid::new_v4(), count, how, until: None })
    }

    /// Sends a change. It may have been sent before.
    pub(super) async fn make(&self, change: &mut Change) -> Result<Answer> {
        let (name, give_up) = (valid(&self.name)?, self.engine.outage_ends());
        let (span, asked) = self.change_asked(change, &name, self.engine.publish_when_known(give_up).await);
        self.told((span, change.kind.rules.label), self.engine.tell(asked, give_up)).await
    }

    /// The same in the background, also while the client closes: its end waits for that.
    pub(super) fn make_in_background(&self, mut change: Change) {
        let handle = self.clone();
        self.engine.driver.run_errand(async move {
            if let Err(error) = handle.make_at_last(&mut change).await {
                let (name, what) = (handle.name(), change.what);
                tracing::warn!(target: "leasehold::lock", name, what, %error, "failed in the background");
            }
        });
    }

    /// The same as [`make`](Handle::make), also while the client closes. An error if there is nothing to change.
    pub(super) async fn make_at_last(&self, change: &mut Change) -> Result<Answer> {
        let (name, give_up) = (valid(&self.name)?, self.engine.outage_ends());
        let (span, asked) = self.change_asked(change, &name, self.engine.publish_when_known(give_up).await);
        let telling = async {
            let answer = self.engine.tell_at_last(asked, give_up).await?;
            if answer.code == Code::Gone { Err(Error::lost(self.name(), Lost::Removed)) } else { Ok(answer) }
        };
        self.told((span, change.kind.rules.label), telling).await
    }

    fn change_asked<'a>(&'a self, change: &mut Change, name: &'a Name, publish: &str) -> (Span, Asked<'a>) {
        let receipt = self.engine.config.receipt();
        let until = *change.until.get_or_insert_with(|| Moment::now() + receipt.repeatable);
        let lasts = u64::try_from(receipt.lasts.as_millis()).expect("a few years at most");
        let Change { what, kind, script, id, count, how, .. } = *change;
        let part = kind.words(script, name.key(), (id.simple(), lasts, count), publish).arg(how).done();
        self.asked((what, kind.rules.label), name, (&script.script, part), until)
    }

    async fn ask(
        &self,
        what: (&'static str, KindLabel),
        request: (&'static Script, Part),
        give_up: Instant,
    ) -> Result<Answer> {
        let name = valid(&self.name)?;
        let (span, asked) = self.asked(what, &name, request, Moment::FAR);
        self.told((span, what.1), self.engine.tell(asked, give_up)).await
    }

    /// The answer, or the error that the caller gets, which the span notes.
    async fn told(
        &self,
        (span, kind): (Span, KindLabel),
        telling: impl Future<Output = Result<Answer>>,
    ) -> Result<Answer> {
        let told = telling.instrument(span.clone()).await;
        let told =
            told.and_then(|answer| if answer.code == Code::Conflict { Err(self.conflict()) } else { Ok(answer) });
        told.map_err(|error| error.of(kind.about())).inspect_err(|error| spans::note_error(&span, error))
    }

    fn asked<'a>(
        &'a self,
        (what, kind): (&'static str, KindLabel),
        name: &'a Name,
        request: (&'static Script, Part),
        until: Moment,
    ) -> (Span, Asked<'a>) {
        let span = spans::tell(&self.engine.config.server, Subject { kind, name: self.name() }, what);
        (span, Asked { what, name, request, until })
    }

    pub(super) fn conflict(&self) -> Error {
        let key = self.name.as_ref().map_or(&self.given, Name::key);
        Error::Conflict { name: self.name().to_owned(), key: key.to_string(), about: About::Lock }
    }

    pub(super) fn debug(&self, what: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(what)
            .field("name", &self.given)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("min_hold", &self.min_hold)
            .field("acts_for", &self.acts_for)
            .finish_non_exhaustive()
    }
}

/// A request that the server runs once, however often it is sent.
#[derive(Debug)]
pub(super) struct Change {
    what: &'static str,
    kind: &'static Kind,
    script: &'static KindScript,
    /// The number of the request.
    id: Uuid,
    count: i64,
    how: &'static str,
    /// It is not sent again after that. `None`: it was not sent yet.
    until: Option<Moment>,
}

/// A request to force the lock open has a reply, has failed, or was given up by its caller.
struct ForcedOnDrop<'a>(&'a Engine, &'a Name);

impl Drop for ForcedOnDrop<'_> {
    fn drop(&mut self) {
        self.0.driver.forced(self.1);
    }
}

impl Holder {
    /// Reads the hold count, the time left in ms, and the id.
    pub(super) fn of(words: &str) -> Option<Holder> {
        let mut words = words.splitn(3, ' ');
        let (holds, left, id) = (words.next()?, words.next()?, words.next()?);
        let remaining = left.parse().ok().map(Duration::from_millis);
        Some(Holder { id: id.to_owned(), holds: holds.parse().ok()?, remaining, client: None })
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.debug("Handle", f)
    }
}
