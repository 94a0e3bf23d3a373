//! The rights that docs/permissions.md lists are enough and none too many: with them everything works and the server has
//! refused nothing; without one of them a call is denied that names it, or something lesser happens, as the page says.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    time::Duration,
};

use leasehold::{Builder, Client, Error, Guard, Owner};
use redis::Value;
use tokio::task::JoinHandle;

use crate::support::{
    Server,
    deployment::{cluster::Cluster, sentinels::Sentinels},
    master, ms, permissions, replica_of,
    server::version,
    until, within,
};

/// A lease that nobody waits for.
const AN_HOUR: Duration = Duration::from_secs(3_600);
/// What a busy machine may need for a few round trips.
const SOON: Duration = ms(10_000);

/// A row of the page's table.
#[derive(Debug)]
struct Right {
    rule: String,
    place: String,
    without: String,
}

impl Right {
    fn read(row: &str) -> Right {
        let cells: Vec<_> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [rule, place, _, without] = cells[..] else { panic!("not four cells: {row}") };
        let rule = rule.trim_matches('`').replace("\\|", "|");
        Right { rule, place: place.to_owned(), without: without.to_owned() }
    }

    fn is_for(&self, place: &str) -> bool {
        self.place == place || self.place == "all servers" && place != "sentinels"
    }

    /// Whether a call fails without it, by the page.
    fn denies(&self) -> bool {
        self.without.starts_with("`Denied`")
    }

    /// Whether this server has it.
    fn is_known(&self) -> bool {
        match &self.rule[..] {
            rule if rule.starts_with('&') => version() >= (6, 2),
            "+client|kill" => version() >= (6, 2), // nobody says before whose connection it is
            "+spublish" | "+ssubscribe" | "+sunsubscribe" => version() >= (7, 0),
            _ => true,
        }
    }

    /// Up to where a pattern begins.
    fn start(&self) -> &str {
        self.rule.split('*').next().expect("something")
    }

    /// Whether that is what a server has refused: a command, a key or a channel.
    fn is_about(&self, refused: &str) -> bool {
        let rule = self.start().strip_prefix(['+', '~', '&']).expect("a sign");
        refused.starts_with(rule) || version() < (7, 0) && rule.split('|').next() == Some(refused)
    }

    /// Whether an error says that it is missing. Redis 6 does not tell subcommands, nor what a script tries before it changes something.
    fn is_named_in(&self, reason: &str) -> bool {
        let rule = self.start();
        let command = rule.split('|').next().expect("a word");
        let is_old = version() < (7, 0);
        reason.contains(rule) || is_old && (reason.contains(command) || rule == "+set" && reason.contains("a command"))
    }
}

struct Page(String);

impl Page {
    fn read() -> Page {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/permissions.md");
        Page(fs::read_to_string(path).expect("the page"))
    }

    fn rights(&self) -> Vec<Right> {
        let tables = self.0.split("| permission | where | for | without it |\n|---|---|---|---|\n").skip(1);
        tables.flat_map(|table| table.lines().take_while(|line| line.starts_with('|'))).map(Right::read).collect()
    }

    fn right(&self, rule: &str) -> Right {
        self.rights().into_iter().find(|right| right.rule == rule).expect("it is on the page")
    }

    /// The rights of that place, as far as this server has them.
    fn rights_for(&self, place: &str) -> Vec<Right> {
        // Channels of shards came with 7.0: before, a cluster is told like one server.
        let is_old = place == "cluster" && version() < (7, 0);
        let is_for = |right: &Right| {
            right.is_for(place)
                || is_old && right.rule.contains("publish")
                || is_old && right.rule.contains("subscribe")
        };
        self.rights().into_iter().filter(|right| is_for(right) && right.is_known()).collect()
    }

    /// The rules of each block that makes a user.
    fn blocks(&self) -> Vec<BTreeSet<String>> {
        permissions::blocks().map(|rules| rules.map(str::to_owned).collect()).collect()
    }
}

#[test]
fn the_table_and_the_rules_say_the_same() {
    let page = Page::read();
    let blocks = page.blocks();
    assert_eq!(blocks.len(), 3, "one server, a cluster, sentinels");
    for (block, place) in blocks.iter().zip(["one server", "cluster", "sentinels"]) {
        let rights = page.rights().into_iter().filter(|right| right.is_for(place)).map(|right| right.rule);
        let table: BTreeSet<_> = rights.chain(["resetchannels".to_owned()]).collect();
        assert_eq!(*block, table, "{place}");
    }
}

/// Servers with a user `u` whose rights change.
enum Site {
    /// Perhaps with a replica.
    One(Server, #[allow(dead_code)] Option<Server>),
    Cluster(Cluster),
    Sentinels(Sentinels),
}

impl Site {
    async fn one() -> Site {
        let server = master();
        let replica = replica_of(&server).await;
        Site::One(server, Some(replica))
    }

    async fn cluster() -> Site {
        Site::Cluster(Cluster::start().await)
    }

    /// Where the sentinels have users, `u` has just what it needs there.
    async fn sentinels() -> Site {
        let sentinels = Sentinels::start().await;
        let rights = Page::read().rights_for("sentinels");
        if version() >= (6, 2) {
            sentinels.sentinels().iter().for_each(|node| allow(node, rights.iter().map(|right| &*right.rule)));
        }
        Site::Sentinels(sentinels)
    }

    fn place(&self) -> &'static str {
        match self {
            Site::One(..) | Site::Sentinels(_) => "one server",
            Site::Cluster(_) => "cluster",
        }
    }

    fn nodes(&self) -> Vec<&Server> {
        match self {
            Site::One(server, _) => vec![server],
            Site::Cluster(cluster) => cluster.nodes().iter().collect(),
            Site::Sentinels(sentinels) => sentinels.servers().iter().collect(),
        }
    }

    fn url(&self) -> String {
        match self {
            Site::One(server, _) => server.url(),
            Site::Cluster(cluster) => cluster.url(),
            Site::Sentinels(sentinels) => sentinels.url(),
        }
    }

    fn keeper(&self, name: &str) -> &Server {
        match self {
            Site::One(server, _) => server,
            Site::Cluster(cluster) => cluster.master_of(name),
            Site::Sentinels(sentinels) => sentinels.master(),
        }
    }

    /// From here on `u` has these rights and no others.
    fn allow<'a>(&self, rights: impl Iterator<Item = &'a Right> + Clone) {
        self.nodes().into_iter().for_each(|node| allow(node, rights.clone().map(|right| &*right.rule)));
    }

    /// Somebody who may do all of it.
    async fn other(&self) -> Client {
        connected(Client::builder().url(self.url())).await
    }

    fn ours(&self) -> Builder {
        let there = if matches!(self, Site::Sentinels(_)) && version() >= (6, 2) {
            "?sentinel_user=u&sentinel_password=p"
        } else {
            ""
        };
        Client::builder().url(as_user(&self.url()) + there).announce(false)
    }

    fn exists(&self, name: &str) -> bool {
        self.keeper(name).exists(name)
    }

    /// The number of clients that the servers notify of the release of a lock.
    fn listeners(&self, name: &str) -> usize {
        let channel = format!("redisson_lock__channel:{{billing:{name}}}");
        let is_sharded = matches!(self, Site::Cluster(_)) && version() >= (7, 0);
        let how = if is_sharded { "SHARDNUMSUB" } else { "NUMSUB" };
        let on = |node: &Server| node.ask::<(String, usize)>(&["PUBSUB", how, &channel]).1;
        self.nodes().into_iter().map(on).sum()
    }

    fn calls(&self, command: &str) -> u64 {
        self.nodes().iter().map(|node| node.calls(command)).sum()
    }

    /// What the servers have refused since they began.
    fn refused(&self) -> Vec<String> {
        let sentinels = match self {
            Site::Sentinels(sentinels) if version() >= (6, 2) => sentinels.sentinels(),
            _ => &[],
        };
        self.nodes().into_iter().chain(sentinels).flat_map(refused).collect()
    }

    /// Forgets what was refused, too.
    fn forget_scripts(&self) {
        for node in self.nodes() {
            let _: String = node.ask(&["SCRIPT", "FLUSH"]);
            let _: String = node.ask(&["ACL", "LOG", "RESET"]);
        }
    }

    fn cut(&self) {
        for node in self.nodes() {
            let _: u32 = node.ask(&["CLIENT", "KILL", "USER", "u"]);
        }
    }
}

fn allow<'a>(server: &Server, rules: impl Iterator<Item = &'a str>) {
    let reset: &[&str] = if version() >= (6, 2) { &["reset", "resetchannels"] } else { &["reset"] };
    let words: Vec<_> =
        ["ACL", "SETUSER", "u"].iter().chain(reset).chain(&["on", ">p"]).copied().chain(rules).collect();
    let _: String = server.ask(&words);
}

fn refused(server: &Server) -> Vec<String> {
    let log: Vec<HashMap<String, Value>> = server.ask(&["ACL", "LOG"]);
    let object = |entry: &HashMap<String, Value>| redis::from_redis_value_ref(&entry["object"]).expect("a text");
    log.iter().map(object).collect()
}

fn as_user(url: &str) -> String {
    url.replace("://", "://u:p@")
}

async fn connected(builder: Builder) -> Client {
    builder.prefix("billing:").connect().await.expect("let in")
}

/// A task that waits, and whose client the server notifies. Two refusals alone do not show that: on a slow machine, the second one can be
/// that of a waiter that polls until its channel is subscribed.
async fn waiter(site: &Site, client: &Client, name: &str) -> JoinHandle<leasehold::Result<Guard>> {
    until("earlier waiters to leave the channel", SOON, || site.listeners(name) == 0).await;
    let (lock, before) = (client.lock(name).owner(&Owner::new()), client.stats().total.refused);
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("the channel to be subscribed", SOON, || site.listeners(name) == 1).await;
    until("it to wait", SOON, || client.stats().total.refused >= before + 2).await;
    waiting
}

/// A task that waits for a lock of its own client. It sends no request.
async fn own_waiter(client: &Client, name: &str) -> JoinHandle<leasehold::Result<Guard>> {
    let lock = client.lock(name).owner(&Owner::new());
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", SOON, || client.stats().now.waiting == 1).await;
    waiting
}

async fn taken(waiting: JoinHandle<leasehold::Result<Guard>>) -> Guard {
    let (taken, _) = within("the lock", SOON, waiting).await;
    taken.expect("no panic").expect("granted")
}

/// All that a lock can do.
async fn everything(site: &Site) {
    let (ours, other) = (connected(site.ours().client_name("us")).await, site.other().await);
    nesting(&ours).await;
    waking(site, &ours, &other).await;
    waking(site, &other, &ours).await;
    handing_over(site, &ours).await;
    forcing(&ours, &other).await;
    replicating(site).await;
    site.cut();
    nesting(&ours).await;
    let _left = ours.lock("left").lock().await.expect("free");
    ours.close().await.expect("given back");
    assert!(!site.exists("billing:left"));
}

async fn nesting(client: &Client) {
    let lock = client.lock("nested");
    let (outer, inner) = (lock.lock().await.expect("free"), lock.lock().await.expect("re-entered"));
    outer.check().await.expect("ours");
    inner.extend(AN_HOUR).await.expect("ours");
    assert_eq!(lock.inspect().await.expect("answered").expect("held").holds, 2);
    assert!(lock.clone().owner(&Owner::new()).try_lock().await.expect("answered").is_none());
    inner.unlock().await.expect("ours");
    outer.unlock().await.expect("ours");
}

async fn waking(site: &Site, holder: &Client, waiting: &Client) {
    let guard = holder.lock("woken").lock().await.expect("free");
    let (before, waiter) = (waiting.stats().total.wakeups, waiter(site, waiting, "woken").await);
    guard.unlock().await.expect("ours");
    taken(waiter).await.unlock().await.expect("ours");
    until("the message", SOON, || waiting.stats().total.wakeups > before).await;
}

/// With a lease of its own a lock is not passed on in memory.
async fn handing_over(site: &Site, client: &Client) {
    let before = site.calls("hdel");
    let guard = client.lock("handed").lease(AN_HOUR).lock().await.expect("free");
    let waiter = own_waiter(client, "handed").await;
    guard.unlock().await.expect("ours");
    taken(waiter).await.unlock().await.expect("ours");
    assert!(site.calls("hdel") > before, "handed over by the server");
}

async fn forcing(client: &Client, other: &Client) {
    let _guard = other.lock("forced").lock().await.expect("free");
    assert!(client.lock("forced").force_unlock().await.expect("answered"));
}

async fn replicating(site: &Site) {
    let client = connected(site.ours().replicas(1)).await;
    client.lock("replicated").lock().await.expect("one replica has it").unlock().await.expect("ours");
    client.close().await.expect("nothing is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn these_rights_are_enough_for_one_server() {
    enough(&Site::one().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn these_rights_are_enough_for_a_cluster() {
    enough(&Site::cluster().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn these_rights_are_enough_behind_sentinels() {
    enough(&Site::sentinels().await).await;
}

async fn enough(site: &Site) {
    let page = Page::read();
    site.allow(page.rights_for(site.place()).iter().chain([&page.right("+wait")]));
    everything(site).await;
    // Before 7.0 a script cannot ask what its user may do. So it tries commands that it can do without.
    let is_tried = |what: &String| version() < (7, 0) && ["get", "set", "time"].contains(&&**what);
    let refused: Vec<_> = site.refused().into_iter().filter(|what| !is_tried(what)).collect();
    assert_eq!(refused, [""; 0], "the servers refused nothing");
}

/// What came of some calls, while something may not be allowed.
#[derive(Debug, Default)]
struct Calls(Vec<(&'static str, Option<Error>)>);

impl Calls {
    fn note<T>(&mut self, call: &'static str, ended: Result<T, Error>) -> Option<T> {
        let (value, error) = match ended {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error)),
        };
        self.0.push((call, error));
        value
    }

    /// All that have failed say that it is for want of this right, and some have if the page says so.
    fn are_denied_for(&self, missing: &Right) {
        for (call, error) in self.0.iter().filter_map(|(call, error)| Some((call, error.as_ref()?))) {
            let Error::Denied { reason, source, .. } = error else { panic!("{missing:?}: {call}: {error:?}") };
            assert!(missing.is_named_in(reason), "{missing:?}: {call}: {error}: {source}");
            assert!(error.to_string().contains(reason), "{error}");
        }
        let some = self.0.iter().any(|(_, error)| error.is_some());
        assert_eq!(some, missing.denies(), "{missing:?}: {self:?}");
    }
}

/// A client of ours in the midst of things, and others who wait for what it has.
struct Scene<'a> {
    site: &'a Site,
    ours: Client,
    other: Client,
    forced: Guard,
    /// Those of the other client, and one of ours.
    waiters: Vec<JoinHandle<leasehold::Result<Guard>>>,
    our_waiter: JoinHandle<leasehold::Result<Guard>>,
}

impl Scene<'_> {
    async fn set(site: &Site) -> (Scene<'_>, [Guard; 3]) {
        let (ours, other) = (connected(site.ours()).await, site.other().await);
        let lock = ours.lock("nested").lease(AN_HOUR);
        let (outer, inner) = (lock.lock().await.expect("free"), lock.lock().await.expect("re-entered"));
        let handed = ours.lock("handed").lease(AN_HOUR).lock().await.expect("free");
        let forced = other.lock("forced").lease(AN_HOUR).lock().await.expect("free");
        let waiters = vec![waiter(site, &other, "nested").await];
        let our_waiter = own_waiter(&ours, "handed").await;
        (Scene { site, ours, other, forced, waiters, our_waiter }, [outer, inner, handed])
    }

    /// Every call there is, of a client that has its connections.
    async fn play(&mut self, [outer, inner, handed]: [Guard; 3], calls: &mut Calls) {
        let ours = &self.ours;
        let lock = ours.lock("nested").lease(AN_HOUR);
        calls.note("ping", ours.ping().await);
        if let Some(free) = calls.note("lock", ours.lock("free").lease(AN_HOUR).lock().await) {
            self.waiters.push(waiter(self.site, &self.other, "free").await);
            calls.note("unlock of what is waited for", free.unlock().await);
        }
        calls.note("lock again", lock.lock().await);
        calls.note("check", outer.check().await);
        calls.note("extend", outer.extend(2 * AN_HOUR).await);
        calls.note("inspect", lock.inspect().await);
        calls.note("try_lock of what is taken", ours.lock("forced").try_lock().await);
        calls.note("unlock of an inner level", inner.unlock().await);
        calls.note("handing over", handed.unlock().await);
        calls.note("unlock", outer.unlock().await);
        calls.note("force_unlock", ours.lock("forced").force_unlock().await);
    }

    /// A client that comes later, waits for a lock, leaves its channel, and asks where a slot moves.
    async fn come_later(&self, calls: &mut Calls) {
        let Some(late) = calls.note("connect", self.site.ours().prefix("billing:").client_name("late").connect().await)
        else {
            return;
        };
        let held = self.other.lock("late").lock().await.expect("free");
        let lock = late.lock("late");
        let waiting = tokio::spawn(async move { lock.lock().await });
        // Before that, it could acquire the released lock by its first attempt, and would have no channel to leave.
        let is_refused = || waiting.is_finished() || !self.site.refused().is_empty();
        until("it to listen, or a refusal", SOON, || self.site.listeners("late") > 0 || is_refused()).await;
        held.unlock().await.expect("ours");
        let (taken, _) = within("the lock or a refusal", SOON, waiting).await;
        drop(calls.note("lock of what is released", taken.expect("no panic")));
        until("its channel to be left", SOON, || late.stats().now.subscriptions == 0).await;
        self.site.cut();
        drop(calls.note("lock on a new connection", late.lock("late").lock().await));
        if let Site::Cluster(cluster) = self.site {
            let slot = cluster.slot_of("billing:moving");
            let migration = cluster.begin_migration(slot, (cluster.owner_of(slot) + 1) % 3);
            calls.note("lock where a slot moves", late.lock("moving").lock().await);
            cluster.move_keys(&migration);
            cluster.end_migration(migration);
        }
    }

    /// With all rights given back: who waits in another client is told, and nothing is left.
    async fn all_is_well(self) {
        let (mut guards, told) = (Vec::new(), self.waiters.len().try_into().expect("few"));
        for waiting in self.waiters {
            guards.push(taken(waiting).await);
        }
        // Before they are released: the client also receives the messages of its own releases.
        let total = || self.other.stats().total;
        until("all to be told", SOON, || total().wakeups >= told || total().by_timer > 0).await;
        assert!(total().wakeups >= told, "not by looking for themselves: {:?}", total());
        for guard in guards {
            guard.unlock().await.expect("ours");
        }
        if let Ok(guard) = within("the lock or a refusal", SOON, self.our_waiter).await.0.expect("no panic") {
            guard.unlock().await.expect("ours");
        }
        drop(self.forced);
        let is_idle = |client: &Client| client.stats().now.releasing == 0 && client.stats().now.holds == 0;
        until("all to be given back", SOON, || is_idle(&self.ours) && is_idle(&self.other)).await;
        self.ours.close().await.expect("nothing is left");
        self.other.close().await.expect("nothing is left");
        let names = ["nested", "handed", "forced", "free", "late", "moving"].map(|name| format!("billing:{name}"));
        let left = || names.iter().filter(|name| self.site.exists(name)).collect::<Vec<_>>();
        until("nothing to be left", SOON, || left().is_empty()).await;
    }
}

/// Every `of`-th of them, from that one on.
async fn one_by_one(site: &Site, first: usize, of: usize) {
    let all = Page::read().rights_for(site.place());
    assert!(all.len() >= of, "{} rights", all.len());
    for missing in all.iter().skip(first).step_by(of) {
        site.allow(all.iter());
        let (mut scene, guards) = Scene::set(site).await;
        site.forget_scripts();
        site.allow(all.iter().filter(|right| right.rule != missing.rule));
        let mut calls = Calls::default();
        scene.play(guards, &mut calls).await;
        scene.come_later(&mut calls).await;
        let refused = site.refused();
        site.allow(all.iter());
        println!("=== without {}", missing.rule);
        scene.all_is_well().await;
        calls.are_denied_for(missing);
        assert!(refused.iter().any(|what| missing.is_about(what)), "{missing:?} is not needed: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_without_each_of_them() {
    const SITES: usize = 8; // they wait most of the time
    let sites = (0..SITES).map(|first| tokio::spawn(async move { one_by_one(&Site::one().await, first, SITES).await }));
    for site in sites.collect::<Vec<_>>() {
        site.await.expect("no panic");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly"]
async fn a_cluster_without_each_of_them() {
    one_by_one(&Site::cluster().await, 0, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_without_each_of_them() {
    if version() < (6, 2) {
        return; // their sentinels know no users
    }
    let site = Site::sentinels().await;
    let page = Page::read();
    site.allow(page.rights_for(site.place()).iter());
    let Site::Sentinels(sentinels) = &site else { unreachable!("it was just made") };
    let all = page.rights_for("sentinels");
    for missing in &all {
        for node in sentinels.sentinels() {
            let _: String = node.ask(&["ACL", "LOG", "RESET"]);
            allow(node, all.iter().map(|right| &*right.rule).filter(|rule| *rule != missing.rule));
        }
        let mut calls = Calls::default();
        let connecting = site.ours().client_name("us").command_timeout(ms(2_000)).connect();
        if let Some(client) = calls.note("connect", connecting.await) {
            drop(calls.note("lock", client.lock("billing:x").lock().await));
            let is_refused = || site.refused().iter().any(|what| missing.is_about(what));
            until("the sentinels to refuse it", SOON, is_refused).await;
        }
        calls.are_denied_for(missing);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_wait_for_replicas_a_lock_is_given_back() {
    let site = Site::one().await;
    let page = Page::read();
    site.allow(page.rights_for(site.place()).iter());
    let client = connected(site.ours().replicas(1)).await;
    let mut calls = Calls::default();
    calls.note("lock", client.lock("x").lock().await);
    calls.are_denied_for(&page.right("+wait"));
    until("it to be given back", SOON, || !site.exists("billing:x")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_database_takes_the_right_to_choose_it() {
    let site = Site::one().await;
    let (page, mut calls) = (Page::read(), Calls::default());
    let rights = page.rights_for(site.place());
    let connect = || Client::builder().url(as_user(&site.url()) + "/2").connect();
    site.allow(rights.iter());
    calls.note("connect", connect().await);
    calls.are_denied_for(&page.right("+select"));
    site.allow(rights.iter().chain([&page.right("+select")]));
    drop(connect().await.expect("let in").lock("billing:x").lock().await.expect("free"));
}

impl Page {
    /// What a kind of lock needs besides.
    fn besides(&self, kind: &str) -> Vec<String> {
        let row = self.0.lines().find_map(|line| line.strip_prefix(&format!("| `{kind}` | `"))).expect("its row");
        row.split_once('`').expect("its end").0.split(' ').map(str::to_owned).collect()
    }

    /// The keys and channels that it needs where names have a tag.
    fn with_a_tag(&self, kind: &str) -> Vec<String> {
        let table = self.0.split_once("| lock | keys and channels with a `{tag}` |\n").expect("the table").1;
        let row = table.lines().find_map(|line| line.strip_prefix(&format!("| `{kind}` | `"))).expect("its row");
        row.split_once('`').expect("its end").0.split(' ').map(str::to_owned).collect()
    }
}

/// Waits for a lock until it is told that somebody else has it, or something else.
async fn in_vain<T>(client: &Client, waiting: impl Future<Output = Result<T, Error>>) -> Result<(), Error> {
    let before = client.stats().total.refused;
    tokio::select! {
        ended = waiting => ended.map(drop),
        () = until("it to be taken", SOON, || client.stats().total.refused > before) => Ok(()),
    }
}

/// What a kind of lock can do, tried beside another client, with names that begin with `tag`.
async fn try_out(kind: &str, tag: &str, ours: &Client, other: &Client, server: &Server, calls: &mut Calls) {
    match kind {
        "lock" => try_plain(tag, ours, other, calls).await,
        "fenced_lock" => try_fenced(tag, ours, calls).await,
        "rw_lock" => try_rw(tag, ours, other, calls).await,
        "latch" => try_latch(tag, ours, other, calls).await,
        "semaphore" => try_semaphore(tag, ours, other, calls).await,
        "plain_semaphore" => try_plain_semaphore(tag, ours, other, calls).await,
        _ => try_fair(tag, ours, other, server, calls).await,
    }
}

async fn try_plain(tag: &str, ours: &Client, other: &Client, calls: &mut Calls) {
    let (free, theirs) = (format!("{tag}free"), format!("{tag}theirs"));
    if let Some(guard) = calls.note("lock", ours.lock(&free).lease(AN_HOUR).lock().await) {
        calls.note("unlock", guard.unlock().await);
    }
    let _held = other.lock(&theirs).lock().await.expect("free");
    calls.note("lock in vain", in_vain(ours, ours.lock(&theirs).lock()).await);
}

async fn try_fenced(tag: &str, ours: &Client, calls: &mut Calls) {
    if let Some(guard) = calls.note("lock", ours.fenced_lock(&format!("{tag}fenced")).lease(AN_HOUR).lock().await) {
        calls.note("unlock", guard.unlock().await);
    }
}

async fn try_rw(tag: &str, ours: &Client, other: &Client, calls: &mut Calls) {
    let (rw, theirs) = (format!("{tag}rw"), format!("{tag}theirs"));
    let (lock, stranger, writer) = (ours.rw_lock(&rw), ours.rw_lock(&rw).owner(&Owner::new()), other.rw_lock(&rw));
    let reading = calls.note("read", lock.read().await);
    in_vain(other, writer.write()).await.expect("answered");
    calls.note("read while a writer waits", stranger.try_read().await);
    if let Some(guard) = reading {
        calls.note("unlock", guard.unlock().await);
    }
    if let Some(guard) = calls.note("write", lock.write().await) {
        calls.note("read while somebody writes", stranger.try_read().await);
        calls.note("downgrade", guard.downgrade().await);
    }
    let _held = other.rw_lock(&theirs).read().await.expect("free");
    calls.note("write in vain", in_vain(ours, ours.rw_lock(&theirs).write()).await);
}

async fn try_latch(tag: &str, ours: &Client, other: &Client, calls: &mut Calls) {
    let (latch, theirs) = (ours.latch(&format!("{tag}latch")), other.latch(&format!("{tag}latch")));
    theirs.try_set_count(3).await.expect("answered");
    calls.note("count", latch.count().await);
    calls.note("wait in vain", in_vain(ours, latch.wait()).await);
    calls.note("count_down", latch.count_down().await);
    theirs.delete().await.expect("answered");
    theirs.try_set_count(1).await.expect("answered");
    calls.note("the last count_down", latch.count_down().await);
    theirs.delete().await.expect("answered");
    calls.note("try_set_count", latch.try_set_count(2).await);
    calls.note("delete", latch.delete().await);
}

async fn try_semaphore(tag: &str, ours: &Client, other: &Client, calls: &mut Calls) {
    let (free, taken) = (format!("{tag}free permits"), format!("{tag}taken permits"));
    other.semaphore(&free).set_permits(3).await.expect("answered");
    other.semaphore(&taken).set_permits(3).await.expect("answered");
    let mine = ours.semaphore(&free);
    calls.note("available", mine.available().await);
    calls.note("inspect", mine.inspect().await);
    if let Some(permits) = calls.note("acquire", mine.clone().lease(AN_HOUR).acquire(2).await) {
        calls.note("check", permits.check().await);
        calls.note("release", permits.release().await);
    }
    let _held = other.semaphore(&taken).acquire(3).await.expect("free");
    calls.note("acquire in vain", in_vain(ours, ours.semaphore(&taken).acquire(1)).await);
    calls.note("set_permits", ours.semaphore(&taken).set_permits(4).await);
}

async fn try_plain_semaphore(tag: &str, ours: &Client, other: &Client, calls: &mut Calls) {
    let name = format!("{tag}plain permits");
    let (mine, theirs) = (ours.plain_semaphore(&name), other.plain_semaphore(&name));
    calls.note("try_set_permits", mine.try_set_permits(3).await);
    theirs.add_permits(0).await.expect("answered");
    theirs.drain().await.expect("answered");
    theirs.add_permits(3).await.expect("answered");
    calls.note("available", mine.available().await);
    calls.note("acquire", mine.acquire(2).await);
    calls.note("acquire in vain", in_vain(ours, mine.acquire(4)).await);
    calls.note("release", mine.release(2).await);
    calls.note("drain", mine.drain().await);
    calls.note("add_permits", mine.add_permits(2).await);
}

async fn try_fair(tag: &str, ours: &Client, other: &Client, server: &Server, calls: &mut Calls) {
    let fair = format!("{tag}fair");
    let (lock, stranger, theirs) =
        (ours.fair_lock(&fair), ours.fair_lock(&fair).owner(&Owner::new()), other.fair_lock(&fair));
    let queue = if tag.is_empty() { "{billing:fair}".to_owned() } else { format!("billing:{fair}") };
    let queue = format!("redisson_lock_queue:{queue}");
    // Somebody died while waiting.
    let _: u32 = server.ask(&["RPUSH", &queue, "somebody:1"]);
    let held = calls.note("lock", lock.lock().await);
    let waiting = tokio::spawn(async move { theirs.lock().await });
    let is_answered = || other.stats().total.refused + other.stats().total.acquired > 0;
    until("it to have a place, or the lock that we could not have", SOON, is_answered).await;
    calls.note("wait", in_vain(ours, stranger.lock()).await);
    calls.note("waiters", lock.waiters().await);
    if let Some(guard) = held {
        let _: u32 = server.ask(&["LPUSH", &queue, "somebody:2"]);
        calls.note("unlock", guard.unlock().await);
    }
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly"]
async fn other_kinds_of_locks_need_what_the_page_says_and_no_more() {
    let page = Page::read();
    for kind in ["fenced_lock", "rw_lock", "fair_lock", "latch", "semaphore", "plain_semaphore"] {
        enough_and_none_too_many(kind, "", &page.besides(kind)).await;
    }
}

/// Names whose keys and channels have no braces of ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly"]
async fn names_with_a_tag_need_what_the_page_says_and_no_more() {
    let page = Page::read();
    for kind in ["lock", "fenced_lock", "rw_lock", "fair_lock", "latch", "semaphore", "plain_semaphore"] {
        let commands = if kind == "lock" { Vec::new() } else { page.besides(kind) };
        let commands = commands.into_iter().filter(|rule| rule.starts_with('+'));
        let besides: Vec<_> = commands.chain(page.with_a_tag(kind)).collect();
        enough_and_none_too_many(kind, "{eu}", &besides).await;
    }
}

/// With the rights of the page and these everything works, and without one of these something is denied that names it.
async fn enough_and_none_too_many(kind: &str, tag: &str, besides: &[String]) {
    let page = Page::read();
    let besides: Vec<_> = besides.iter().filter(|rule| version() >= (6, 2) || !rule.starts_with('&')).collect();
    for missing in [None].into_iter().chain(besides.iter().map(Some)) {
        // What commands are needed is tried without a tag.
        if !tag.is_empty() && missing.is_some_and(|rule| rule.starts_with('+')) {
            continue;
        }
        let site = Site::One(Server::start(), None);
        let rights = page.rights_for(site.place());
        let given = besides.iter().filter(|rule| Some(*rule) != missing).map(|rule| &***rule);
        allow(site.nodes()[0], rights.iter().map(|right| &*right.rule).chain(given));
        let (ours, other, mut calls) = (connected(site.ours()).await, site.other().await, Calls::default());
        try_out(kind, tag, &ours, &other, site.nodes()[0], &mut calls).await;
        if missing.is_none() {
            until("all to be given back", SOON, || ours.stats().now.releasing == 0).await;
        }
        let refused = site.refused();
        match missing {
            None => {
                assert!(refused.is_empty(), "{kind}: {refused:?}");
                assert!(calls.0.iter().all(|(_, error)| error.is_none()), "{kind}: {calls:?}");
            }
            Some(rule) => {
                let missing = Right { rule: (*rule).clone(), place: String::new(), without: "`Denied`".to_owned() };
                assert!(refused.iter().any(|what| missing.is_about(what)), "{kind} without {rule}: {refused:?}");
                calls.are_denied_for(&missing);
            }
        }
    }
}

/// A client may say who it is with these rules, and without any of them it says nothing; its locks work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_need_these_rules() {
    let (page, site) = (Page::read(), Site::one().await);
    let (rights, records) = (page.rights_for("one server"), page.besides("Builder::announce"));
    let server = site.nodes()[0];
    for missing in [None].into_iter().chain(records.iter().map(Some)) {
        site.forget_scripts();
        let given = records.iter().filter(|rule| Some(*rule) != missing).map(|rule| &**rule);
        allow(server, rights.iter().map(|right| &*right.rule).chain(given));
        let ours = connected(site.ours().announce(true)).await;
        let guard = ours.lock("x").lease(AN_HOUR).lock().await.expect("permitted");
        let is_written = || !server.ask::<Vec<String>>(&["KEYS", "leasehold:client:*"]).is_empty();
        let other = site.other().await;
        match missing.map(|rule| &**rule) {
            None => until("its record", SOON, is_written).await,
            Some("+get") => {
                until("its record", SOON, is_written).await;
                let holder = ours.lock("x").inspect().await.expect("permitted").expect("it is held");
                assert!(holder.client.is_none());
            }
            Some(_) => until("the refusal", SOON, || !site.refused().is_empty()).await,
        }
        let holder = other.lock("x").inspect().await.expect("permitted").expect("it is held");
        assert_eq!(holder.client.is_some(), missing.is_none_or(|rule| rule == "+get"));
        assert_eq!(site.refused().is_empty(), missing.is_none(), "{missing:?}");
        guard.unlock().await.expect("held");
        ours.close().await.expect("nothing is left");
        assert!(!is_written());
    }
}

/// A call with several keys is refused as a whole; what is missing is one of them.
#[tokio::test]
async fn only_the_key_that_is_missing_is_named() {
    let page = Page::read();
    for (name, token) in
        [("fenced", "redisson_lock_token:{billing:fenced}"), ("{eu}f", "redisson_lock_token:billing:{eu}f")]
    {
        let site = Site::One(Server::start(), None);
        let commands = page.besides("fenced_lock").into_iter().filter(|rule| rule.starts_with('+')).collect::<Vec<_>>();
        let rights = page.rights_for(site.place());
        allow(site.nodes()[0], rights.iter().map(|right| &*right.rule).chain(commands.iter().map(|rule| &**rule)));
        let ours = connected(site.ours()).await;
        let Err(Error::Denied { reason, .. }) = ours.fenced_lock(name).try_lock().await else { panic!("{name}") };
        assert_eq!(reason, format!("this user lacks ~{token}"));
    }
}
