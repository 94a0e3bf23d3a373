//! A cluster: finds the master of each slot, and follows it when it changes.

mod first_map;
mod locators;
mod reading;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{
    future::{join, try_join_all},
    stream::{FuturesUnordered, StreamExt},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    access::Access,
    member::Member,
    slots::{Basis, SlotMap},
    standalone::Fixed,
};
use crate::{
    clock,
    contained::{conn_event, lasting},
    error::Source,
    redis::{
        answer::Answer,
        changed_keys::ChangedKeys,
        conn::{Asks, Dialer, Layout, Link, Reconnected, has_shard_channels, node_id, slots, spread},
        fault::{Fault, Redirection, source},
        keys::slot_of,
        node_settings::NodeSettings,
        pending::{Later, PendingRequest, left_for_another},
        script::{LooksAt, Part, Script},
        url::Address,
        {Way, send},
    },
    spawner::Spawner,
    stats::Counters,
};
use first_map::{Agreed, SeedReply, agree};
use locators::{AnyMember, OneMember};
use reading::Reading;

/// The number of redirections that a request follows. After that it is sent again later.
const REDIRECTIONS: usize = 5;
/// The interval at which the map is read again without a reason.
const NOW_AND_THEN: Duration = Duration::from_secs(5);
/// The interval at which the servers are checked, and the time without a reply after which the others are asked about a server.
const TICK: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_millis(300);
/// The pause between two readings of the map, in all cases. If a reading finds nothing new, the pauses double from the first to the last,
/// for example while a master is dead and no other is elected: all clients read the map, and the other servers reply to all of them.
const PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// The time that one server has for the reply about all slots, before another server is asked.
const ANSWER: Duration = Duration::from_millis(500);

/// All known servers of a cluster.
#[derive(Debug)]
pub(in crate::redis) struct Cluster {
    access: Access,
    seeds: Vec<Address>,
    settings: NodeSettings,
    counters: Arc<Counters>,
    closed: CancellationToken,
    map: RwLock<SlotMap>,
    changes: watch::Sender<u64>,
    runtime: Spawner,
    /// Servers of redirections that are not known yet.
    unknown: Mutex<BTreeSet<Address>>,
    /// Addresses at which servers of other clusters reply. Each is logged once.
    strangers: Mutex<BTreeSet<Address>>,
    /// Notified when the map may be out of date.
    look: Notify,
    /// Notified when a server has redirected a request.
    sent_on: Notify,
    /// The reason for which no server returned the map, and a notification about it.
    last: Mutex<Option<Fault>>,
    failed: Notify,
    /// For each server whether it has sharded channels, and the conclusion for all of them.
    shards: Mutex<BTreeMap<Address, bool>>,
    sharded: AtomicBool,
    /// The server that was asked last.
    asked: AtomicUsize,
    /// A caller has needed the map. Before that, no server is asked.
    wanted: AtomicBool,
    this: Weak<Cluster>,
}

impl Cluster {
    /// Starts with an empty map.
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
            runtime: Spawner::here(),
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

    /// Reads the map from the servers in the URL.
    pub(super) async fn connect(&self) -> Result<(), Fault> {
        self.wanted.store(true, Ordering::Relaxed);
        self.learn_anew().await
    }

    /// Keeps the map up to date until the client closes.
    pub(super) fn start(self: &Arc<Self>) {
        let cluster = Arc::clone(self);
        let keeping = lasting(move || Arc::clone(&cluster).keep_map());
        tokio::spawn(self.closed.clone().run_until_cancelled_owned(keeping));
    }

    pub(super) async fn send(&self, script: &'static Script, part: Part, way: Way) -> Result<(Answer, u8), Fault> {
        let owner = self.owner(slot_of(part.key())).await?;
        let answered = send(&owner.node, script, part.clone(), way).await;
        self.after(owner, answered, script, part, way).await
    }

    /// Sends a request without waiting, if the server of its slot is known; a task does the rest.
    pub(super) fn submit(&self, request: PendingRequest) -> Option<Later> {
        let this = self.this.upgrade().expect("a method of it is running");
        let Some(owner) = self.owner_now(slot_of(request.part.key())) else {
            let (script, part) = (request.script, request.part.clone());
            let sent = async move { this.send(script, part, Way::Now).await };
            return Some(Later::task(&self.runtime, in_time(sent, request, self.settings.command_timeout)));
        };
        let server = Arc::clone(&owner);
        server.node.submit(request.followed_by(move |request, answer| {
            if !this.is_redirected(&owner, &answer) {
                return request.end(answer);
            }
            let (script, part, limit) = (request.script, request.part.clone(), this.settings.command_timeout);
            let runtime = this.runtime.clone();
            let answered = answer.map(|answer| (answer, 0));
            let after = async move { this.after(owner, answered, script, part, Way::Now).await };
            runtime.spawn(in_time(after, request, limit));
        }))
    }

    fn is_redirected(&self, member: &Member, answer: &Result<Answer, Fault>) -> bool {
        match answer {
            Err(Fault::Elsewhere(..)) => true,
            Err(Fault::Closed) => self.has_left(member),
            _ => false,
        }
    }

    /// The result of a request that a member has answered so. Follows redirections.
    async fn after(
        &self,
        mut member: Arc<Member>,
        mut answered: Result<(Answer, u8), Fault>,
        script: &'static Script,
        part: Part,
        way: Way,
    ) -> Result<(Answer, u8), Fault> {
        for _ in 0..REDIRECTIONS {
            let announced = match answered {
                Err(Fault::Elsewhere(there, source)) if there.asking && script.looks_at == LooksAt::OtherKeys => {
                    return Err(Fault::NotReady(source));
                }
                Err(Fault::Elsewhere(there, source)) => {
                    self.follow(&there, &member).await.ok_or(Fault::NotReady(source))?
                }
                Err(Fault::Closed) if self.has_left(&member) => {
                    return Err(Fault::unknown("the server has left the cluster"));
                }
                answered => return answered,
            };
            answered = match announced {
                Some(new) => {
                    member = new;
                    member.announced(script, &part, way).await
                }
                None => {
                    member = self.owner(slot_of(part.key())).await?;
                    send(&member.node, script, part.clone(), way).await
                }
            };
        }
        answered.map_err(|fault| match fault {
            Fault::Elsewhere(_, source) => Fault::NotReady(source),
            Fault::Closed if self.has_left(&member) => Fault::unknown("the server has left the cluster"),
            fault => fault,
        })
    }

    fn has_left(&self, member: &Member) -> bool {
        member.has_ended() && !self.closed.is_cancelled()
    }

    /// The server of a slot, as far as it is known. Waits for the first map.
    async fn owner(&self, slot: u16) -> Result<Arc<Member>, Fault> {
        if let Some(owner) = self.owner_now(slot) {
            return Ok(owner);
        }
        self.until(|map| map.owner(slot).cloned()).await.ok_or_else(|| self.why_nobody())
    }

    /// The error if no server of a slot is known.
    fn why_nobody(&self) -> Fault {
        if self.closed.is_cancelled() {
            return Fault::Closed;
        }
        let last = if self.is_empty() { self.last().clone() } else { None };
        last.unwrap_or_else(|| Fault::said("CLUSTERDOWN no server has this slot"))
    }

    /// True if no login has succeeded yet and the last one was refused: callers get that error at once.
    fn is_denied(&self) -> bool {
        self.is_empty() && matches!(*self.last(), Some(Fault::Denied(_)))
    }

    fn is_empty(&self) -> bool {
        !self.map().is_known()
    }

    fn owner_now(&self, slot: u16) -> Option<Arc<Member>> {
        self.map().owner(slot).cloned()
    }

    /// Follows a redirection. The inner value is the server that needs an ASKING before the request, if there is one. The outer `None`
    /// means that the server cannot be reached now.
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

    /// Completes an address. A server that does not know a host names only the port, or `?` and the port.
    fn complete(&self, to: &str, from: &Member) -> Option<Address> {
        let port = to.strip_prefix(':').or_else(|| to.strip_prefix("?:")).and_then(|port| port.parse().ok());
        match (port, &from.address) {
            (Some(port), Address::Tcp(host, _)) => Some(Address::Tcp(Arc::clone(host), port)),
            _ => Address::parse(to, 0), // also of an IPv6 address that begins with two colons
        }
    }

    fn moved(&self, slot: u16, to: &Arc<Member>) {
        let is_known = self.map().owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, to));
        if !is_known {
            conn_event!(debug, slot, to = %to.address, "a slot has moved");
            self.change(|map| {
                // A reading of the map may have ended this member since it was looked up.
                let is_member = map.member(&to.address).is_some_and(|member| Arc::ptr_eq(member, to));
                if is_member {
                    map.moved(slot, to);
                }
            });
        }
        self.was_sent_on(); // other slots have often moved, too
    }

    /// A server has shown that the map is out of date: read it again soon, even if earlier readings found nothing new.
    fn was_sent_on(&self) {
        self.sent_on.notify_one();
        self.look.notify_one();
    }

    /// Waits until the map contains the wanted entry, but for at most the command timeout.
    async fn until<T>(&self, found: impl Fn(&SlotMap) -> Option<T>) -> Option<T> {
        self.wanted.store(true, Ordering::Relaxed);
        let mut changes = self.changes.subscribe();
        let looking = async {
            loop {
                let failed = self.failed.notified(); // after this no failure is missed
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
                    () = self.closed.cancelled() => return None,
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

    /// Forgets a refused login. The next caller makes a new attempt. Until then no server is asked.
    fn forget_refusal(&self) {
        if self.is_denied() {
            self.wanted.store(false, Ordering::Relaxed);
            *self.last() = None;
        }
    }

    /// True if all servers reply in time; and if none is known yet, no caller has needed one.
    fn is_calm(&self) -> bool {
        let map = self.map();
        let is_known = map.members().next().is_some() || !self.was_wanted();
        is_known && map.members().all(|member| !member.is_unwell(LATE))
    }

    fn was_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Asks one server after the other, and starts with another one each time, because one may be out of date.
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
            conn_event!(debug, ?fault, "no server of the cluster returned the slots");
            *self.last() = Some(fault.clone());
            self.failed.notify_waiters();
        }
        learned
    }

    /// Asks all servers at once on new connections, and uses the first reply of this cluster.
    async fn learn_anew(&self) -> Result<(), Fault> {
        if !self.map().is_known() {
            return self.learn_first().await;
        }
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

    /// Asks all servers in the URL at once, and uses the map of the cluster to which the majority belongs.
    async fn learn_first(&self) -> Result<(), Fault> {
        let seeds: BTreeSet<_> = self.seeds.iter().collect();
        let asked: FuturesUnordered<_> = seeds.iter().map(|seed| self.ask_seed(seed)).collect();
        let Agreed { reading, strangers } = agree(seeds.len(), asked).await?;
        strangers.iter().for_each(|stranger| _ = self.refuse(stranger));
        self.sharded.store(reading.has_shards, Ordering::Release); // before callers can see the map
        self.learned(reading, Basis::Majority)
    }

    async fn ask_seed(&self, seed: &Address) -> Result<SeedReply, Fault> {
        let link = self.open(seed).await?;
        let (reading, server) = join(Reading::of(&link), node_id(&link)).await;
        Ok(SeedReply { server, reading: reading? })
    }

    async fn open(&self, address: &Address) -> Result<Link, Fault> {
        let target = self.access.to(address.clone()).await?;
        Link::open_at_any_address(target, self.settings.command_timeout, &self.counters).await
    }

    async fn learn_from_opened(&self, link: Result<Link, Fault>) -> Result<(), Fault> {
        self.learn_from(&link?).await
    }

    async fn learn_from(&self, link: &Link) -> Result<(), Fault> {
        self.learned(Reading::of(link).await?, Basis::OneServer)
    }

    fn learned(&self, reading: Reading, basis: Basis) -> Result<(), Fault> {
        let Reading { from, layout, has_shards } = reading;
        self.apply(layout, basis).map_err(|Stranger| self.refuse(&from))?;
        self.note_shards(Some((&from, has_shards)));
        Ok(())
    }

    /// Checks and replaces the map under one lock: two readings at once cannot begin with two clusters.
    fn apply(&self, layout: Layout, basis: Basis) -> Result<(), Stranger> {
        let gone = self.change(|map| {
            if !map.is_of_this_cluster(&layout, basis) {
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
            conn_event!(info, address = %member.address,
                    "this server has no slots anymore; the client disconnects from it");
            member.end();
        }
        self.note_shards(None);
        Ok(())
    }

    /// Checks that a server belongs to this cluster. A server of another cluster may have the address now. It must get no requests, because
    /// it would grant locks that are held in this cluster. Waits for the first map: before it, no server can be recognized.
    async fn recognise(&self, server: &dyn Asks) -> Result<(), Fault> {
        self.until(|map| map.is_known().then_some(())).await.ok_or_else(|| self.why_nobody())?;
        let layout = slots(server).await?;
        if layout.nodes.is_empty() {
            return Err(Fault::NotReady(source(&format!("the server at {} knows no slots", server.address()))));
        }
        {
            let mut map = self.map_mut();
            if !map.is_of_this_cluster(&layout, Basis::OneServer) {
                drop(map);
                return Err(self.refuse(server.address()));
            }
            map.also_knows(layout);
        }
        self.strangers().remove(server.address());
        self.note_shards(Some((server.address(), has_shard_channels(server).await?)));
        Ok(())
    }

    /// The client uses sharded channels if all servers have them. While a cluster is upgraded from Redis 6, some do not. The client asks a
    /// server whenever it connects to it, and whenever it reads the map from it. So the decision follows an upgrade. Servers without slots
    /// do not count, nor do addresses that are not in the map, such as those in a URL.
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
            conn_event!(warn, %address,
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

    /// The members, once the map is known.
    async fn members(&self) -> Result<Vec<Arc<Member>>, Fault> {
        let all = |map: &SlotMap| Some(map.members().cloned().collect::<Vec<_>>()).filter(|all| !all.is_empty());
        self.until(all).await.ok_or_else(|| self.why_nobody())
    }

    /// A connection to each master.
    pub(super) async fn links(&self) -> Result<Vec<Arc<Link>>, Fault> {
        try_join_all(self.members().await?.iter().map(|member| member.node.link())).await
    }

    /// Checks that all servers reply.
    pub(super) async fn ping(&self) -> Result<(), Fault> {
        let members = self.members().await?;
        let ping = async |member: Arc<Member>| match member.node.ping().await {
            Err(Fault::Closed) if self.has_left(&member) => Ok(()), // it counts no more
            replied => replied,
        };
        try_join_all(members.into_iter().map(ping)).await.map(drop)
    }

    /// Waits for the first map, for at most the command timeout. True if the client knows now which channels the servers have, or if they
    /// refuse the login.
    pub(super) async fn knows_channels(&self) -> bool {
        !self.is_empty() || self.until(|map| map.is_known().then_some(())).await.is_some() || self.is_denied()
    }

    pub(super) fn changed_keys(&self) -> Option<Arc<ChangedKeys>> {
        self.access.changed_keys()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn changed_since(&self, key: &str, changes: u64) -> bool {
        self.map().changed_since(slot_of(key), changes)
    }

    /// True if the client uses sharded channels. Until this is known, no request can be sent; but one that is built before has the other
    /// kind.
    pub(super) fn is_sharded(&self) -> bool {
        self.sharded.load(Ordering::Acquire)
    }

    /// The server that publishes the messages of a sharded channel.
    pub(super) fn shard(&self, channel: &str) -> Option<Address> {
        self.map().owner(slot_of(channel)).map(|owner| owner.address.clone())
    }

    /// The reason for which a request about `key` has no reply yet, with its server. `last` is the failure of its last attempt.
    pub(super) fn trouble(&self, key: &str, last: Option<Source>) -> Source {
        let owner = self.map().owner(slot_of(key)).map(Arc::clone);
        match owner {
            Some(member) => member.node.trouble(key, last),
            None => last.unwrap_or_else(|| source("the server of this slot is not known")),
        }
    }

    /// As for one server: for the server of the slot. False while it is not known.
    pub(super) fn is_unwell(&self, key: &str, late: Duration) -> bool {
        self.owner_now(slot_of(key)).is_some_and(|owner| owner.is_unwell(late))
    }

    pub(super) fn dial_shard(&self, address: &Address) -> Dialer {
        self.dial(address)
    }

    /// True if a server has slots, or if no map is known yet.
    pub(super) fn has(&self, address: &Address) -> bool {
        let map = self.map();
        !map.is_known() || map.member(address).is_some()
    }

    /// A request was redirected.
    pub(super) fn may_be_old(&self) {
        self.look.notify_one();
    }

    /// Connects to any server that replies.
    pub(super) fn dial_any(self: &Arc<Self>) -> Dialer {
        Dialer::new(Arc::new(AnyMember(Arc::clone(self))), self.settings.command_timeout, &self.counters)
    }

    /// A connection to the first server, for measurements.
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

/// The error for a map of another cluster.
struct Stranger;

/// Ends a request with the answer, or when there is no more time.
async fn in_time(
    work: impl Future<Output = Result<(Answer, u8), Fault>>,
    request: PendingRequest,
    command_timeout: Duration,
) {
    let answered = clock::within(left_for_another(request.since, command_timeout), work).await;
    let answered = answered.unwrap_or_else(|| Err(Fault::unknown("a redirected request got no reply in time")));
    request.end(answered.map(|(answer, _)| answer));
}
