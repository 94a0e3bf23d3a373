//! Servers and sentinels that are not the ones they seem: an address that another cluster has now, a sentinel that is behind or
//! watches over other servers. Nothing that they say may move a lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::Duration,
};

use leasehold::{Builder, Client, Error};

use crate::support::{
    Server, before, chain,
    deployment::cluster::Cluster,
    fake::{Fake, Said, array, bulk, error, slots},
    ms,
    proxy::{Fault, Rule, Way, Which},
    server::{free_port, version},
    until, within,
};

/// Names in the lower and in the upper half of the slots: 866 and 12,182.
const LOW: &str = "hello";
const HIGH: &str = "foo";
const HALF: u16 = 8_192;
const LAST: u16 = 16_383;

/// Answers CLUSTER SLOTS with that, and all else as the server behind it.
fn naming(layout: Vec<u8>) -> impl FnMut(&[String]) -> Said + Send + 'static {
    move |words| if is(words, &["CLUSTER", "SLOTS"]) { Said::Reply(layout.clone()) } else { Said::Pass }
}

/// The first request for a lock is told that its slot is where it is: the client reads the map then.
fn first_moved(
    port: u16,
    mut script: impl FnMut(&[String]) -> Said + Send + 'static,
) -> impl FnMut(&[String]) -> Said + Send + 'static {
    let mut is_first = true;
    move |words| {
        if is_first && is(words, &["EVALSHA"]) {
            is_first = false;
            return Said::Reply(error(&format!("MOVED 866 127.0.0.1:{port}")));
        }
        script(words)
    }
}

fn is(words: &[String], wanted: &[&str]) -> bool {
    words.len() >= wanted.len() && words.iter().zip(wanted).all(|(word, wanted)| word.eq_ignore_ascii_case(wanted))
}

/// Two servers with half of the slots each, and the same data behind both.
struct Halves {
    server: Server,
    low: Fake,
    high: Fake,
    layout: Vec<u8>,
}

impl Halves {
    fn start() -> Halves {
        let server = Server::start();
        let (low, high) = (Fake::before(&server, |_| Said::Pass), Fake::before(&server, |_| Said::Pass));
        let layout = slots(&[(0, HALF - 1, low.port(), "low-1"), (HALF, LAST, high.port(), "high-1")]);
        low.becomes(naming(layout.clone()));
        high.becomes(naming(layout.clone()));
        Halves { server, low, high, layout }
    }

    fn builder(&self) -> Builder {
        let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", self.low.port(), self.high.port());
        Client::builder().url(url).command_timeout(ms(1_000)).outage_timeout(ms(1_500))
    }

    async fn connect(&self) -> Client {
        self.builder().connect().await.expect("both answer")
    }
}

/// A node of another cluster has the address that a node of ours had, as happens to pods.
#[tokio::test]
async fn another_cluster_at_a_known_address_is_not_used() {
    let halves = Halves::start();
    let client = halves.connect().await;
    let guard = client.lock(HIGH).lock().await.expect("free");

    let theirs = Server::start();
    let layout = slots(&[(0, LAST, halves.low.port(), "of-another-cluster")]);
    halves.low.becomes_before(&theirs, naming(layout));
    let asked = halves.low.asked(&["CLUSTER", "SLOTS"]);
    let refused = client.lock(LOW).lock().await.expect_err("its server is not there");
    assert!(chain(&refused).contains("belongs to another cluster"), "{}", chain(&refused));
    assert!(halves.low.asked(&["CLUSTER", "SLOTS"]) > asked, "nothing was tried");
    guard.check().await.expect("its server is well");
    drop(client.lock(LOW).try_lock().await.expect_err("still not there"));
    drop(client.mutex("bar").try_lock().await.expect_err("a slot of the same server"));
    assert_eq!(theirs.ask::<u32>(&["DBSIZE"]), 0, "a lock was asked for in another cluster");

    halves.low.becomes_before(&halves.server, naming(halves.layout.clone()));
    let again = async { client.lock(LOW).lock().await };
    let (taken, _) = within("its server to be back", ms(8_000), again).await;
    taken.expect("free").unlock().await.expect("ours");
    guard.unlock().await.expect("ours to the end");
}

/// What a cluster is known by follows it: after a while none of its first nodes is left.
#[tokio::test]
async fn nodes_may_be_replaced_one_by_one() {
    let halves = Halves::start();
    let client = halves.connect().await;
    let (low, high) = (&halves.low, &halves.high);
    for ids in [["low-2", "high-1"], ["low-2", "high-2"], ["low-3", "high-2"], ["low-3", "high-3"]] {
        let layout = slots(&[(0, HALF - 1, low.port(), ids[0]), (HALF, LAST, high.port(), ids[1])]);
        high.becomes(naming(layout.clone()));
        low.becomes(first_moved(low.port(), naming(layout)));
        for name in [LOW, HIGH] {
            client.lock(name).lock().await.expect("of the same cluster").unlock().await.expect("ours");
        }
        // New connections ask for the map, too, to recognise their server; the next one after them is that of the client.
        let asked = || low.asked(&["CLUSTER", "SLOTS"]) + high.asked(&["CLUSTER", "SLOTS"]);
        let before = asked();
        until("the map to be read", ms(8_000), || asked() > before).await;
    }
}

/// A cluster that was made anew at the same addresses is another one. That is said, and a new client uses it.
#[tokio::test]
async fn a_cluster_that_was_made_anew_wants_a_new_client() {
    let halves = Halves::start();
    let client = halves.connect().await;
    client.lock(LOW).lock().await.expect("free").unlock().await.expect("ours");
    let anew = Server::start();
    let layout = slots(&[(0, HALF - 1, halves.low.port(), "new-1"), (HALF, LAST, halves.high.port(), "new-2")]);
    for fake in [&halves.low, &halves.high] {
        fake.becomes_before(&anew, naming(layout.clone()));
    }
    let refused = client.lock(LOW).lock().await.expect_err("another cluster");
    assert!(refused.is_unavailable() && chain(&refused).contains("another cluster"), "{}", chain(&refused));
    let client = halves.connect().await;
    client.lock(LOW).lock().await.expect("free").unlock().await.expect("ours");
    assert!(anew.calls("evalsha") > 0);
}

fn cluster_of(places: &[(&str, u16)]) -> Builder {
    let places: Vec<_> = places.iter().map(|(host, port)| format!("{host}:{port}")).collect();
    Client::builder().url(format!("redis-cluster://{}", places.join(",")))
}

fn at(servers: &[&Server]) -> Builder {
    let places: Vec<_> = servers.iter().map(|server| ("127.0.0.1", server.port())).collect();
    cluster_of(&places)
}

fn no_lock_is_in(strangers: &[&Server]) {
    for stranger in strangers {
        assert_eq!(stranger.calls("evalsha"), 0, "a lock was requested in another cluster");
    }
}

/// A new client knows no node ids. The server of the other cluster replies before all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_client_believes_the_majority_not_the_first_reply() {
    let (cluster, stranger) = (Cluster::of_masters().await, Cluster::stranger_at(free_port()));
    let late = &cluster.nodes()[..2];
    for is_lazy in [false, true] {
        let builder = at(&[&stranger, &late[0], &late[1]]).outage_timeout(ms(10_000));
        let asked = stranger.calls("cluster|slots");
        late.iter().for_each(Server::freeze);
        let using = tokio::spawn(async move {
            let client = if is_lazy { builder.connect_lazy()? } else { builder.connect().await? };
            for name in [LOW, HIGH] {
                client.lock(name).lock().await?.unlock().await?;
            }
            Ok::<_, Error>(())
        });
        until("the stranger to reply", ms(5_000), || stranger.calls("cluster|slots") > asked).await;
        late.iter().for_each(Server::thaw);
        let (used, _) = within("the locks", ms(15_000), using).await;
        used.expect("no panic").expect("two of three agree");
        no_lock_is_in(&[&stranger]);
    }
    assert!(cluster.nodes().iter().any(|node| node.calls("evalsha") > 0));
}

/// As chaos does it: the server of the other cluster has the address of a dead master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_client_does_not_use_another_cluster_at_the_address_of_a_dead_master() {
    if version() < (7, 0) {
        return; // as long as the stranger answers there, the others do not notice that the master is dead
    }
    let mut cluster = Cluster::start().await;
    let port = cluster.nodes()[0].port();
    cluster.node_mut(0).crash();
    let stranger = Cluster::stranger_at(port);
    cluster.heir_of(0).await;
    for _ in 0..20 {
        let client = Client::connect(&cluster.url()).await.expect("five of six agree");
        client.lock(LOW).lock().await.expect("free").unlock().await.expect("ours");
        client.close().await.expect("answered");
    }
    no_lock_is_in(&[&stranger]);
}

#[tokio::test]
async fn of_two_clusters_without_a_majority_a_new_client_believes_none() {
    let (one, other) = (Cluster::stranger_at(free_port()), Cluster::stranger_at(free_port()));
    let both = || at(&[&one, &other]).command_timeout(ms(1_000)).outage_timeout(ms(1_500));
    let lazy = both().connect_lazy().expect("good settings");
    let called = lazy.lock("x").lock().await;
    for refused in [both().connect().await.expect_err("a tie"), called.expect_err("a tie")] {
        let words = chain(&refused);
        assert!(refused.is_unavailable() && words.contains("belong to different clusters"), "{words}");
        for server in [&one, &other] {
            assert!(words.contains(&format!("[127.0.0.1:{}]", server.port())), "{words}");
        }
    }
    // A server that is named twice has one vote.
    let twice = cluster_of(&[("127.0.0.1", one.port()), ("localhost", one.port()), ("127.0.0.1", other.port())]);
    let words = chain(&twice.connect().await.expect_err("still a tie"));
    assert!(words.contains("belong to different clusters") && words.contains("localhost"), "{words}");
    no_lock_is_in(&[&one, &other]);

    let asked = other.calls("cluster|slots");
    let connecting = tokio::spawn(both().connect_timeout(ms(10_000)).connect());
    until("a second attempt", ms(5_000), || other.calls("cluster|slots") >= asked + 2).await;
    drop(one);
    let (connected, _) = within("the connection", ms(5_000), connecting).await;
    connected.expect("no panic").expect("there is only one cluster now");
}

#[tokio::test]
async fn a_new_client_needs_one_server_if_the_others_are_down_or_silent() {
    let [one, second, third] = [0; 3].map(|_| Cluster::stranger_at(free_port()));
    let ports = [free_port(), free_port()];
    let down = cluster_of(&[("127.0.0.1", ports[0]), ("127.0.0.1", one.port()), ("127.0.0.1", ports[1])]);
    let (connected, _) = within("the connection", ms(1_000), down.connect()).await;
    connected.expect("nobody contradicts");

    [&second, &third].into_iter().for_each(Server::freeze);
    let (connected, took) = within("the connection", ms(2_000), at(&[&second, &one, &third]).connect()).await;
    connected.expect("nobody contradicts");
    assert!(took >= ms(500), "the others have half a second: {took:?}");
}

/// A sentinel that says that this is the master, after so many failovers, and after some time.
fn sentinel(master: &Server, epoch: u64, late: Duration) -> Fake {
    Fake::alone(says(master.port(), epoch, late))
}

fn says(master: u16, epoch: u64, late: Duration) -> impl FnMut(&[String]) -> Said + Send + 'static {
    move |words| {
        let epoch = epoch.to_string();
        if is(words, &["SENTINEL", "MASTER"]) {
            thread::sleep(late);
            let fields = ["name", "main", "ip", "127.0.0.1", "port", &master.to_string(), "config-epoch", &epoch];
            return Said::Reply(array(&fields.map(bulk)));
        }
        if is(words, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME"]) {
            return Said::Reply(array(&[bulk("127.0.0.1"), bulk(&master.to_string())]));
        }
        Said::Pass
    }
}

fn none() -> Fake {
    Fake::alone(|_| Said::Cut)
}

fn named(sentinels: &[&Fake]) -> Builder {
    let addresses: Vec<_> = sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
    let url = format!("redis-sentinel://{}/main", addresses.join(","));
    Client::builder().url(url).command_timeout(ms(1_000)).outage_timeout(ms(2_000))
}

async fn holds_at(client: &Client, server: &Server) {
    let guard = client.lock("x").lock().await.expect("free");
    assert!(server.exists("x"), "the lock is on another server");
    guard.unlock().await.expect("ours");
}

#[tokio::test]
async fn one_sentinel_does_not_outvote_two() {
    let (old, new) = (Server::start(), Server::start());
    let late = ms(300);
    let [second, third] = [sentinel(&new, 2, late), sentinel(&new, 2, late)];
    // One that is behind and answers first; one that watches over other servers, which have seen more failovers.
    for epoch in [1, 99] {
        let first = sentinel(&old, epoch, Duration::ZERO);
        let client = named(&[&first, &second, &third]).connect().await.expect("two of three agree");
        holds_at(&client, &new).await;
    }
}

#[tokio::test]
async fn without_a_majority_nothing_is_believed() {
    let (one, other) = (Server::start(), Server::start());
    let (first, second, silent) = (sentinel(&one, 1, ms(0)), sentinel(&other, 9, ms(0)), none());
    for sentinels in [&[&first, &second, &silent][..], &[&first, &silent, &none()], &[&first, &second]] {
        let refused = named(sentinels).connect().await.expect_err("nobody knows");
        let words = chain(&refused);
        assert!(refused.is_unavailable() && words.contains("name the same master"), "{words}");
        assert!(words.contains(&format!("127.0.0.1:{} named by 127.0.0.1:{}", one.port(), first.port())), "{words}");
    }
    for sentinels in [&[&first][..], &[&first, &silent]] {
        let client = named(sentinels).connect().await.expect("there is nobody else to ask");
        holds_at(&client, &one).await;
    }
    let url = format!("redis-sentinel://127.0.0.1:{0},127.0.0.1:{0},127.0.0.1:{1}/main", first.port(), second.port());
    let twice = Client::builder().url(url).connect().await;
    twice.expect_err("a sentinel that is named twice has one vote");
}

/// A sentinel changes its mind when all are heard, not before.
#[tokio::test]
async fn a_switch_is_followed_when_a_majority_has_seen_it() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = before(&old); // so that its connection can be cut
    let port = proxy.address().port();
    let sentinels = [0, 1, 2].map(|_| Fake::alone(says(port, 1, ms(0))));
    let client = named(&sentinels.each_ref()).connect().await.expect("all agree");
    holds_at(&client, &old).await;
    sentinels[0].becomes(says(new.port(), 2, ms(0)));
    proxy.cut_all();
    holds_at(&client, &old).await;
    sentinels[1].becomes(says(new.port(), 2, ms(0)));
    proxy.cut_all();
    until("the connection to be replaced", ms(5_000), || client.stats().total.reconnects >= 2).await;
    holds_at(&client, &new).await;
}

/// All sentinels are down, the master is well, and the connection to it is cut.
#[tokio::test]
async fn without_sentinels_the_last_known_master_is_used() {
    let server = Server::start();
    let proxy = before(&server);
    let sentinels = [0, 1, 2].map(|_| Fake::alone(says(proxy.address().port(), 1, ms(0))));
    let client = named(&sentinels.each_ref()).watchdog(ms(4_000)).connect().await.expect("all agree");
    let guard = client.lock("x").lock().await.expect("free");
    sentinels.iter().for_each(|sentinel| sentinel.becomes(|_| Said::Cut));
    proxy.cut_all();
    let (checked, _) = within("the master to answer", ms(3_500), guard.check()).await;
    checked.expect("the master is well");
    drop(client.lock("y").try_lock().await.expect("answered").expect("free"));

    // A new client knows none, and one that is named by a single sentinel is another's.
    named(&sentinels.each_ref()).connect().await.expect_err("nobody says who the master is");
    let other = Server::start();
    sentinels[0].becomes(says(other.port(), 2, ms(0)));
    proxy.cut_all();
    let refused = client.lock("z").lock().await.expect_err("a sentinel names another");
    assert!(chain(&refused).contains("name the same master"), "{}", chain(&refused));
    assert_eq!(other.ask::<u32>(&["DBSIZE"]), 0);
}

#[tokio::test]
async fn without_sentinels_a_replica_is_not_used() {
    let (server, master) = (Server::start(), Server::start());
    let proxy = before(&server);
    let sentinels = [0, 1, 2].map(|_| Fake::alone(says(proxy.address().port(), 1, ms(0))));
    let client = named(&sentinels.each_ref()).connect().await.expect("all agree");
    holds_at(&client, &server).await;
    sentinels.iter().for_each(|sentinel| sentinel.becomes(|_| Said::Cut));
    let _: String = server.ask(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    proxy.cut_all();
    let refused = client.lock("x").lock().await.expect_err("the master is not known");
    assert!(chain(&refused).contains("is a replica"), "{}", chain(&refused));
}

/// A service is made known to its sentinels after its clients have started.
#[tokio::test(flavor = "multi_thread")]
async fn connect_timeout_rides_out_sentinels_that_do_not_know_the_service_yet() {
    let server = Server::start();
    let unknown = |words: &[String]| match () {
        () if is(words, &["SENTINEL", "MASTER"]) => Said::Reply(b"-ERR No such master with that name\r\n".to_vec()),
        () if is(words, &["SENTINEL"]) => Said::Reply(b"*-1\r\n".to_vec()),
        () => Said::Pass,
    };
    let sentinel = Fake::alone(unknown);
    let refused = named(&[&sentinel]).connect().await.expect_err("it is not known");
    assert!(chain(&refused).contains("No such master"), "{}", chain(&refused));
    let before = sentinel.asked(&["SENTINEL"]);
    let connecting = tokio::spawn(named(&[&sentinel]).connect_timeout(ms(10_000)).connect());
    until("it to be asked twice", ms(5_000), || sentinel.asked(&["SENTINEL"]) >= before + 4).await;
    assert!(!connecting.is_finished());
    sentinel.becomes(says(server.port(), 1, ms(0)));
    let (client, _) = within("the connection", ms(5_000), connecting).await;
    let client: Result<Client, Error> = client.expect("no panic");
    holds_at(&client.expect("it is known now"), &server).await;
}

/// It was found, connected and checked before the sentinels named another master, and callers could not use it yet.
#[tokio::test]
async fn a_link_that_was_about_to_be_used_at_a_switch_is_not_kept() {
    let [old, new, messages] = [0; 3].map(|_| Server::start());
    let proxy = before(&old);
    let master = Arc::new(AtomicU16::new(proxy.address().port()));
    let sentinel = Fake::before(&messages, {
        let master = Arc::clone(&master);
        move |words| match is(words, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME"]) {
            true => Said::Reply(array(&[bulk("127.0.0.1"), bulk(&master.load(Ordering::SeqCst).to_string())])),
            false => Said::Pass,
        }
    });
    let looks = || sentinel.asked(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME"]);
    let client = named(&[&sentinel]).command_timeout(ms(3_000)).outage_timeout(ms(10_000)).connect().await;
    let client = client.expect("it names a master");
    holds_at(&client, &old).await;
    until("the client to listen and to look", ms(3_000), || !messages.channels().is_empty() && looks() >= 2).await;
    proxy.rule(Rule::new(Which::Command("CLIENT"), Fault::Delay(Way::Back, ms(1_000))).times(100));
    let begun = old.calls("client|info");
    proxy.cut_all();
    until("the last step before its use", ms(5_000), || old.calls("client|info") > begun).await;
    let (looked, heir) = (looks(), new.port());
    master.store(heir, Ordering::SeqCst);
    let _: u32 = messages.ask(&["PUBLISH", "+switch-master", "main 127.0.0.1 1 127.0.0.1 2"]);
    until("the client to look", ms(3_000), || looks() > looked).await;
    holds_at(&client, &new).await;
}

// ---- pings ----

/// A server leaves the cluster while it is pinged. The client is as open as before.
#[tokio::test]
async fn a_ping_to_a_server_that_leaves_says_nothing_of_the_client() {
    let halves = Halves::start();
    let client = halves.connect().await;
    client.lock(HIGH).lock().await.expect("free").unlock().await.expect("ours");
    halves.high.becomes(|_| Said::Nothing);
    let pings = tokio::spawn({
        let client = client.clone();
        async move { client.ping().await }
    });
    let (low, layout) = (halves.low.port(), slots(&[(0, LAST, halves.low.port(), "low-1")]));
    halves.low.becomes(first_moved(low, naming(layout)));
    client.lock(LOW).lock().await.expect("free").unlock().await.expect("ours");
    let (pinged, _) = within("the ping", ms(8_000), pings).await;
    let pinged = pinged.expect("no panic");
    assert!(!matches!(pinged, Err(Error::Closed)), "{pinged:?}");
}

/// It reads the map first, and then asks all masters, as every later one.
#[tokio::test]
async fn the_first_ping_of_a_lazy_client_asks_all_masters() {
    let halves = Halves::start();
    let lazy = halves.builder().connect_lazy().expect("good settings");
    halves.high.becomes(|_| Said::Nothing);
    let (pinged, _) = within("the ping", ms(8_000), lazy.ping()).await;
    pinged.expect_err("one master does not reply");
}
