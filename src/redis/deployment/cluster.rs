//! A cluster: each slot has its master, until it has another.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{
    future::{BoxFuture, try_join_all},
    stream::{BoxStream, FuturesUnordered, StreamExt, iter},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{access::Access, member::Member, slots::SlotMap, standalone::Fixed};
use crate::{
    error::Source,
    redis::{
        conn::{Dialer, Layout, Link, Locator, NOTHING_HEARD, Reconnected, Target, spread},
        fault::{Fault, Redirection, source},
        keys::slot_of,
        node::NodeSettings,
        script::{Answer, LooksAt, Part, Script},
        url::Address,
        {Way, send},
    },
    stats::Counters,
};

/// How often a request follows a slot; a slot that moves on faster is asked for again later.
const REDIRECTIONS: usize = 5;
/// How often the map is looked at although nothing has happened.
const NOW_AND_THEN: Duration = Duration::from_secs(5);
/// How often the servers are looked at, and how long one may be silent before others are asked about it.
const TICK: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_millis(300);
/// Between two looks at the map, whatever happens. While they find nothing new, as long as a master is dead and no other
/// elected, pauses double from the first to the last: all clients look, and the servers that are well answer them.
const PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// More masters than a cluster has: it is said to work with up to a thousand nodes.
const MOST_MASTERS: usize = 1_000;
/// How long one server may take to say who has which slots, before another is asked.
const ANSWER: Duration = Duration::from_millis(500);

/// All servers of a cluster that we know.
#[derive(Debug)]
pub(in crate::redis) struct Cluster {
    access: Access,
    seeds: Vec<Address>,
    settings: NodeSettings,
    counters: Arc<Counters>,
    closed: CancellationToken,
    map: RwLock<SlotMap>,
    changes: watch::Sender<u64>,
    /// Servers that we were sent to and do not know.
    unknown: Mutex<BTreeSet<Address>>,
    /// Addresses at which servers of other clusters answer. Each is logged once.
    strangers: Mutex<BTreeSet<Address>>,
    /// Told when the map may be old.
    look: Notify,
    /// Told when a server has said so.
    sent_on: Notify,
    /// Why nobody has told us of any server, and told when that is so.
    last: Mutex<Option<Fault>>,
    failed: Notify,
    /// Whether each server that was asked has channels of shards, and what that comes to.
    shards: Mutex<BTreeMap<Address, bool>>,
    sharded: AtomicBool,
    /// Which of the servers was asked last.
    asked: AtomicUsize,
    /// Somebody has needed the map: nobody is asked before.
    wanted: AtomicBool,
    this: Weak<Cluster>,
}

impl Cluster {
    /// Knows nothing yet.
    pub(super) fn new(
        access: Access,
        seeds: Vec<Address>,
        settings: NodeSettings,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Arc<Cluster> {
        Arc::new_cyclic(|this| Cluster {
            access,
            seeds,
            settings,
            counters: Arc::clone(counters),
            closed: closed.clone(),
            map: RwLock::new(SlotMap::new()),
            changes: watch::Sender::new(0),
            unknown: Mutex::default(),
            strangers: Mutex::default(),
            look: Notify::new(),
            sent_on: Notify::new(),
            last: Mutex::default(),
            failed: Notify::new(),
            shards: Mutex::default(),
            sharded: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            wanted: AtomicBool::new(false),
            this: Weak::clone(this),
        })
    }

    /// Learns the map from any of the servers named.
    pub(super) async fn connect(&self) -> Result<(), Fault> {
        self.wanted.store(true, Ordering::Relaxed);
        self.learn_anew().await
    }

    /// Keeps the map up to date until the client closes.
    pub(super) fn start(self: &Arc<Self>) {
        tokio::spawn(self.closed.clone().run_until_cancelled_owned(Arc::clone(self).keep_map()));
    }

    pub(super) async fn send(&self, script: &'static Script, part: Part, way: Way) -> Result<(Answer, u8), Fault> {
        let slot = slot_of(part.key());
        let (mut redirections, mut announced) = (0, None);
        loop {
            let member = match &announced {
                Some(member) => Arc::clone(member),
                None => self.owner(slot).await?,
            };
            let answered = match announced.take() {
                Some(_) => member.announced(script, &part, way).await,
                None => send(&member.node, script, part.clone(), way).await,
            };
            match answered {
                Err(Fault::Elsewhere(there, source)) if there.asking && script.looks_at == LooksAt::OtherKeys => {
                    return Err(Fault::NotReady(source));
                }
                Err(Fault::Elsewhere(there, source)) if redirections < REDIRECTIONS => {
                    redirections += 1;
                    announced = self.follow(&there, &member).await.ok_or(Fault::NotReady(source))?;
                }
                Err(Fault::Elsewhere(_, source)) => return Err(Fault::NotReady(source)),
                Err(Fault::Closed) if self.has_left(&member) => {
                    return Err(Fault::unknown("the server has left the cluster"));
                }
                answered => return answered,
            }
        }
    }

    /// Of the server that has the slot, as far as we know.
    pub(super) fn connection_of(&self, key: &str) -> usize {
        self.owner_now(slot_of(key)).map_or(0, |owner| owner.node.connection_of(key))
    }

    fn has_left(&self, member: &Member) -> bool {
        member.has_ended() && !self.closed.is_cancelled()
    }

    /// The owner of a slot, as far as we know; waits for the first map.
    async fn owner(&self, slot: u16) -> Result<Arc<Member>, Fault> {
        if let Some(owner) = self.owner_now(slot) {
            return Ok(owner);
        }
        self.until(|map| map.owner(slot).cloned()).await.ok_or_else(|| self.why_nobody())
    }

    /// Why no server is known that has a slot.
    fn why_nobody(&self) -> Fault {
        let last = if self.is_empty() { self.last().clone() } else { None };
        last.unwrap_or_else(|| Fault::said("CLUSTERDOWN no server has this slot"))
    }

    /// Nobody was ever welcome, and we are not: that is told at once.
    fn is_denied(&self) -> bool {
        self.is_empty() && matches!(*self.last(), Some(Fault::Denied(_)))
    }

    fn is_empty(&self) -> bool {
        self.map().members().next().is_none()
    }

    fn owner_now(&self, slot: u16) -> Option<Arc<Member>> {
        self.map().owner(slot).cloned()
    }

    /// Goes where a server has sent us. Inside: the server that the request must be announced to, if that is wanted.
    /// `None` if we cannot go there now.
    async fn follow(&self, there: &Redirection, from: &Member) -> Option<Option<Arc<Member>>> {
        let address = self.complete(&there.to, from)?;
        let known = self.map().member(&address).cloned();
        let member = match known {
            Some(member) => member,
            None => {
                self.unknown().insert(address.clone());
                self.was_sent_on();
                self.until(|map| map.member(&address).cloned()).await?
            }
        };
        if there.asking {
            return Some(Some(member));
        }
        self.moved(there.slot, &member);
        Some(None)
    }

    /// A server that does not know its own host says only the port.
    fn complete(&self, to: &str, from: &Member) -> Option<Address> {
        match (to.strip_prefix(':'), &from.address) {
            (Some(port), Address::Tcp(host, _)) => Some(Address::Tcp(Arc::clone(host), port.parse().ok()?)),
            _ => Address::parse(to, 0),
        }
    }

    fn moved(&self, slot: u16, to: &Arc<Member>) {
        let is_known = self.map().owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, to));
        if !is_known {
            tracing::debug!(target: "leasehold::conn", slot, to = %to.address, "a slot has moved");
            self.change(|map| map.moved(slot, to));
        }
        self.was_sent_on(); // it is seldom the only one
    }

    /// A server says that the map is old: that is worth a look soon, however often others found nothing new.
    fn was_sent_on(&self) {
        self.sent_on.notify_one();
        self.look.notify_one();
    }

    /// Waits until the map says what is asked of it, but not for long.
    async fn until<T>(&self, found: impl Fn(&SlotMap) -> Option<T>) -> Option<T> {
        self.wanted.store(true, Ordering::Relaxed);
        let mut changes = self.changes.subscribe();
        let looking = async {
            loop {
                let failed = self.failed.notified(); // from here on no failure is missed
                if let Some(found) = found(&self.map()) {
                    return Some(found);
                }
                self.look.notify_one();
                if self.is_denied() {
                    return None;
                }
                tokio::select! {
                    changed = changes.changed() => changed.ok()?,
                    () = failed => {}
                }
            }
        };
        timeout(self.settings.command_timeout, looking).await.ok().flatten()
    }

    async fn keep_map(self: Arc<Self>) {
        let (mut tick, mut last, mut pause) = (interval(TICK), Instant::now(), PAUSE);
        loop {
            tokio::select! {
                () = self.look.notified() => {}
                _ = tick.tick() => if self.is_calm() {
                    pause = PAUSE;
                    if last.elapsed() < NOW_AND_THEN || !self.was_wanted() {
                        continue;
                    }
                }
            }
            let before = self.map().moves();
            let longest = self.learn().await.map_or_else(|fault| fault.last_pause(LAST_PAUSE), |()| LAST_PAUSE);
            last = Instant::now();
            let is_new = self.map().moves() != before;
            pause = if is_new { PAUSE } else { (pause * 2).min(longest) };
            tokio::select! {
                () = sleep(spread(pause)) => {}
                () = self.sent_on.notified() => {
                    pause = PAUSE;
                    sleep(PAUSE).await;
                }
            }
            self.forget_refusal();
        }
    }

    /// Whoever asks next finds out anew whether we are let in. Until then nobody is asked.
    fn forget_refusal(&self) {
        if self.is_denied() {
            self.wanted.store(false, Ordering::Relaxed);
            *self.last() = None;
        }
    }

    /// All servers are well, and if none is known yet, nobody has asked for one.
    fn is_calm(&self) -> bool {
        let map = self.map();
        let is_known = map.members().next().is_some() || !self.was_wanted();
        is_known && map.members().all(|member| !member.is_unwell(LATE))
    }

    fn was_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Asks one server after the other, beginning with another each time: one may be behind the others.
    async fn learn(&self) -> Result<(), Fault> {
        let mut links: Vec<_> = self.map().members().flat_map(|member| member.node.links().next()).collect();
        let start = self.asked.fetch_add(1, Ordering::Relaxed) % links.len().max(1);
        links.rotate_left(start);
        for link in &links {
            if link.silence() < LATE && matches!(timeout(ANSWER, self.learn_from(link)).await, Ok(Ok(()))) {
                return Ok(());
            }
        }
        let learned = self.learn_anew().await;
        if let Err(fault) = &learned {
            tracing::debug!(target: "leasehold::conn", ?fault, "no server of the cluster returned the slots");
            *self.last() = Some(fault.clone());
            self.failed.notify_waiters();
        }
        learned
    }

    /// By connections of its own to all at once, whoever answers first.
    async fn learn_anew(&self) -> Result<(), Fault> {
        let known: Vec<_> = self.map().members().map(|member| member.address.clone()).collect();
        let all: BTreeSet<_> = known.into_iter().chain(self.seeds.iter().cloned()).collect();
        let mut asked: FuturesUnordered<_> = all.iter().map(|address| self.open(address)).collect();
        let mut last = Fault::said("CLUSTERDOWN no server of the cluster is known");
        while let Some(opened) = asked.next().await {
            match self.learn_from_opened(opened).await {
                Ok(()) => return Ok(()),
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    async fn open(&self, address: &Address) -> Result<Link, Fault> {
        let target = self.access.to(address.clone()).await?;
        Link::open(&target, self.settings.command_timeout, NOTHING_HEARD, &self.counters).await
    }

    async fn learn_from_opened(&self, link: Result<Link, Fault>) -> Result<(), Fault> {
        self.learn_from(&link?).await
    }

    async fn learn_from(&self, link: &Link) -> Result<(), Fault> {
        let layout = link.slots().await?;
        if layout.ranges.is_empty() {
            return Err(Fault::said("CLUSTERDOWN no server has any slot"));
        }
        let masters: BTreeSet<_> = layout.ranges.iter().map(|(_, _, address)| address).collect();
        if masters.len() > MOST_MASTERS {
            return Err(Fault::said(&format!("ERR {} names {} masters", link.address(), masters.len())));
        }
        let has_shards = link.has_shard_channels().await?;
        self.apply(layout).map_err(|Stranger| self.refuse(link.address()))?;
        self.note_shards(Some((link.address(), has_shards)));
        Ok(())
    }

    fn apply(&self, layout: Layout) -> Result<(), Stranger> {
        let gone = self.change(|map| {
            if !map.is_of_this_cluster(&layout) {
                return Err(Stranger);
            }
            let unknown = std::mem::take(&mut *self.unknown());
            for address in layout.ranges.iter().map(|(_, _, address)| address).chain(&unknown) {
                if map.member(address).is_none() {
                    map.add(self.member(address));
                }
            }
            Ok(map.replace(layout, |member| unknown.contains(&member.address)))
        });
        for member in gone? {
            tracing::info!(target: "leasehold::conn", address = %member.address, "this server has no slots anymore; the client disconnects from it");
            member.end();
        }
        self.note_shards(None);
        Ok(())
    }

    /// A server may have the address that one of ours had. Nothing may be asked of it: it would grant what ours have granted.
    async fn recognise(&self, link: &Link) -> Result<(), Fault> {
        let layout = link.slots().await?;
        let is_ours = self.map().is_of_this_cluster(&layout);
        if !is_ours {
            return Err(self.refuse(link.address()));
        }
        self.strangers().remove(link.address());
        self.note_shards(Some((link.address(), link.has_shard_channels().await?)));
        Ok(())
    }

    /// Channels belong to shards where all servers that were asked have those: while a cluster is upgraded from Redis 6 some
    /// do not. A server is asked whenever it is connected to and whenever it says who has which slots, so what is decided
    /// follows an upgrade. Servers that have no slots do not count, nor do names that are not in the map, as in a URL.
    fn note_shards(&self, said: Option<(&Address, bool)>) {
        let mut known = self.shards();
        known.extend(said.map(|(address, has)| (address.clone(), has)));
        known.retain(|address, _| self.map().member(address).is_some());
        let all = if known.is_empty() { said.map(|(_, has)| has) } else { Some(known.values().all(|has| *has)) };
        let is_new = all.is_some_and(|all| self.sharded.swap(all, Ordering::AcqRel) != all);
        drop(known);
        if is_new {
            self.change(SlotMap::heard_elsewhere);
        }
    }

    fn refuse(&self, address: &Address) -> Fault {
        if self.strangers().insert(address.clone()) {
            tracing::warn!(target: "leasehold::conn", %address,
                "the server at this address belongs to another cluster; it is not used");
        }
        let reason = "belongs to another cluster: it names none of the nodes that this client knows";
        Fault::NotReady(source(&format!("the server at {address} {reason}")))
    }

    fn member(&self, address: &Address) -> Arc<Member> {
        let (this, at) = (Weak::clone(&self.this), address.clone());
        let reconnected: Reconnected = Arc::new(move || {
            if let Some(cluster) = this.upgrade() {
                cluster.change(|map| map.renewed(&at));
            }
        });
        Member::new(address.clone(), &self.dial(address), self.settings, &reconnected, &self.closed)
    }

    fn dial(&self, address: &Address) -> Dialer {
        let fixed = Fixed { access: self.access.clone(), address: address.clone(), wants_master: false };
        let one = OneMember { fixed, cluster: Weak::clone(&self.this) };
        Dialer::new(Arc::new(one), self.settings.command_timeout, &self.counters)
    }

    /// Whether all servers answer.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        let members: Vec<_> = self.map().members().cloned().collect();
        if members.is_empty() {
            return self.owner(0).await.map(drop);
        }
        try_join_all(members.iter().map(|member| member.node.ping())).await.map(drop)
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn changed_since(&self, key: &str, changes: u64) -> bool {
        self.map().changed_since(slot_of(key), changes)
    }

    /// Whether channels belong to shards. Until that is known, nothing can be sent anyway.
    pub(super) fn is_sharded(&self) -> bool {
        self.sharded.load(Ordering::Acquire)
    }

    /// The server that publishes to a channel of a shard.
    pub(super) fn shard(&self, channel: &str) -> Option<Address> {
        self.map().owner(slot_of(channel)).map(|owner| owner.address.clone())
    }

    /// Why a request about that key has no reply yet, and from which server; `last` is what its last try came to.
    pub(super) fn trouble(&self, key: &str, last: Option<Source>) -> Source {
        let owner = self.map().owner(slot_of(key)).map(Arc::clone);
        match owner {
            Some(member) => member.node.trouble(key, last),
            None => last.unwrap_or_else(|| source("no server of the cluster says where this slot is")),
        }
    }

    pub(super) fn dial_shard(&self, address: &Address) -> Dialer {
        self.dial(address)
    }

    /// Whether a server has slots, or nothing is known yet.
    pub(super) fn has(&self, address: &Address) -> bool {
        let map = self.map();
        map.changes() == 0 || map.member(address).is_some()
    }

    /// Somebody was sent elsewhere.
    pub(super) fn may_be_old(&self) {
        self.look.notify_one();
    }

    /// To any server that answers.
    pub(super) fn dial_any(self: &Arc<Self>) -> Dialer {
        Dialer::new(Arc::new(AnyMember(Arc::clone(self))), self.settings.command_timeout, &self.counters)
    }

    /// The first server's bare connection.
    #[cfg(feature = "bench")]
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        self.owner(0).await?.node.link().await
    }

    fn change<T>(&self, change: impl FnOnce(&mut SlotMap) -> T) -> T {
        let (changed, changes) = {
            let mut map = self.map_mut();
            let changed = change(&mut map);
            (changed, map.changes())
        };
        self.changes.send_modify(|known| *known = changes.max(*known));
        changed
    }

    fn map(&self) -> RwLockReadGuard<'_, SlotMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_mut(&self) -> RwLockWriteGuard<'_, SlotMap> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> MutexGuard<'_, Option<Fault>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unknown(&self) -> MutexGuard<'_, BTreeSet<Address>> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<Address, bool>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strangers(&self) -> MutexGuard<'_, BTreeSet<Address>> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A map that is not of our cluster.
struct Stranger;

/// One server of the cluster.
#[derive(Debug)]
struct OneMember {
    fixed: Fixed,
    cluster: Weak<Cluster>,
}

impl Locator for OneMember {
    fn find(&self) -> BoxStream<'_, Result<Target, Fault>> {
        self.fixed.find()
    }

    fn place(&self) -> String {
        self.fixed.place()
    }

    fn wants_master(&self) -> bool {
        self.fixed.wants_master()
    }

    fn recognise<'a>(&'a self, link: &'a Link) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async {
            let Some(cluster) = self.cluster.upgrade() else { return Err(Fault::Closed) };
            cluster.recognise(link).await
        })
    }
}

/// Those that we know, and those that we were told of.
#[derive(Debug)]
struct AnyMember(Arc<Cluster>);

impl Locator for AnyMember {
    fn find(&self) -> BoxStream<'_, Result<Target, Fault>> {
        let known: Vec<_> = self.0.map().members().map(|member| member.address.clone()).collect();
        let all = known.into_iter().chain(self.0.seeds.iter().cloned());
        iter(all).then(async |address| self.0.access.to(address).await).boxed()
    }

    fn place(&self) -> String {
        "any server of the cluster".to_owned()
    }

    fn wants_master(&self) -> bool {
        false
    }

    fn recognise<'a>(&'a self, link: &'a Link) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.0.recognise(link))
    }
}
