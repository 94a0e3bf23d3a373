//! Who we are on the server, where that changes, and what the server calls our connections.

use std::{
    fmt,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use leasehold::{Builder, Client, Credentials, Error, Guard};
use redis::Connection;

use crate::support::{
    Server, before, chain, client,
    deployment::{cluster::Cluster, sentinels::Sentinels},
    ms,
    proxy::{Fault, Rule, Way, Which},
    server::version,
    until, within,
};

/// A vault of passwords.
#[derive(Debug, Clone, Default)]
struct Vault {
    password: Arc<Mutex<Option<String>>>,
    asked: Arc<AtomicU32>,
}

#[derive(Debug)]
struct Sealed;

impl fmt::Display for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the vault is sealed")
    }
}

impl std::error::Error for Sealed {}

impl Vault {
    fn with(password: &str) -> Vault {
        let vault = Vault::default();
        vault.put(password);
        vault
    }

    fn put(&self, password: &str) {
        *self.password.lock().expect("nobody panicked") = Some(password.to_owned());
    }

    fn seal(&self) {
        *self.password.lock().expect("nobody panicked") = None;
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    /// For the user `app`, or else for the default one.
    fn before(&self, user: Option<&'static str>) -> impl FnOnce(Builder) -> Builder + use<> {
        let vault = self.clone();
        move |builder| {
            builder.credentials(move || {
                vault.asked.fetch_add(1, Ordering::SeqCst);
                let password = vault.password.lock().expect("nobody panicked").clone().ok_or(Sealed);
                async move {
                    tokio::task::yield_now().await;
                    password.map(|password| match user {
                        Some(user) => Credentials::new(user, password),
                        None => Credentials::password(password),
                    })
                }
            })
        }
    }
}

fn set_user(server: &Server, password: &str) {
    server.set_user("app", &["on", "resetpass", &format!(">{password}"), "~*", "&*", "+@all"]);
}

/// All connections but the one that asks.
fn kill_all(raw: &mut Connection) {
    for kind in ["normal", "pubsub"] {
        let _: u32 = redis::cmd("CLIENT").arg(&["KILL", "TYPE", kind]).query(raw).expect("answered");
    }
}

async fn is_kept(guard: &Guard, client: &Client, reconnects: u64) {
    until("it to come back", ms(5_000), || client.stats().total.reconnects >= reconnects).await;
    within("an answer", ms(5_000), guard.check()).await.0.expect("still ours");
    assert!(!guard.is_lost());
}

#[tokio::test]
async fn each_connection_asks_anew() {
    let server = Server::start();
    set_user(&server, "first");
    let vault = Vault::with("first");
    let client = client(&server, |builder| vault.before(Some("app"))(builder).connections(2)).await;
    assert_eq!(vault.asked(), 2, "one for each connection");
    let held = Client::connect(&server.url()).await.expect("the default user needs none");
    let _held = held.lock("taken").lock().await.expect("free");
    let lock = client.lock("taken");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("the one that listens", ms(5_000), || !server.channels().is_empty()).await;
    assert_eq!(vault.asked(), 3);
    kill_all(&mut server.raw());
    until("all to be back", ms(5_000), || vault.asked() >= 6).await;
    until("it to listen again", ms(5_000), || !server.channels().is_empty()).await;
    waiting.abort();
    client.ping().await.expect("welcome");
    // The connection for messages follows those for commands once more, if it was back before them.
    assert!(vault.asked() <= 8, "not for each request: {}", vault.asked());
}

#[tokio::test]
async fn a_password_that_changes_while_a_lock_is_held() {
    let server = Server::start();
    set_user(&server, "first");
    let vault = Vault::with("first");
    let client = client(&server, vault.before(Some("app"))).await;
    let guard = client.lock("x").lock().await.expect("free");
    for (round, password) in [(1, "second"), (2, "third")] {
        set_user(&server, password);
        vault.put(password);
        kill_all(&mut server.raw());
        is_kept(&guard, &client, round).await;
    }
    guard.unlock().await.expect("ours");
    assert!(!server.exists("x"));
}

/// The server is changed first: for a while nobody is welcome, and that is no reason to give up.
#[tokio::test]
async fn the_servers_one_password_changes_and_the_vault_is_late() {
    let server = Server::with(&["--requirepass", "first"]);
    let mut raw = server.raw();
    redis::cmd("AUTH").arg("first").exec(&mut raw).expect("let in");
    let vault = Vault::with("first");
    let client = client(&server, |builder| vault.before(None)(builder).command_timeout(ms(300))).await;
    let guard = client.lock("x").lock().await.expect("free");
    redis::cmd("CONFIG").arg(&["SET", "requirepass", "second"]).exec(&mut raw).expect("it can be changed");
    kill_all(&mut raw);
    let before = vault.asked();
    until("it to be refused some times", ms(5_000), || vault.asked() >= before + 3).await;
    let refused = client.lock("y").try_lock_for(ms(1_000)).await.expect_err("nobody knows");
    assert!(refused.is_unavailable() && chain(&refused).contains("WRONGPASS"), "{}", chain(&refused));
    assert!(!guard.is_lost());
    vault.put("second");
    is_kept(&guard, &client, 1).await;
    guard.unlock().await.expect("ours");
}

#[tokio::test]
async fn what_the_provider_says_instead_is_told() {
    let server = Server::start();
    set_user(&server, "first");
    let vault = Vault::with("first");
    vault.seal();
    let refused = vault.before(Some("app"))(Client::builder().url(server.url())).connect().await;
    let error = refused.expect_err("sealed");
    assert!(error.is_unavailable(), "{error:?}");
    assert_eq!(chain(&error).matches("the vault is sealed").count(), 1, "{}", chain(&error));
    assert!(matches!(&error, Error::Unavailable { source: Some(source), .. } if source.is::<Sealed>()), "{error:?}");

    // Later, too; and it is asked again.
    vault.put("first");
    let client = client(&server, |builder| vault.before(Some("app"))(builder).command_timeout(ms(300))).await;
    let guard = client.lock("x").lock().await.expect("free");
    vault.seal();
    kill_all(&mut server.raw());
    let (taken, _) = within("an answer", ms(5_000), client.lock("y").try_lock_for(ms(1_000))).await;
    let error = taken.expect_err("no connection");
    assert!(error.is_unavailable() && chain(&error).contains("the vault is sealed"), "{}", chain(&error));
    vault.put("first");
    is_kept(&guard, &client, 1).await;
}

#[tokio::test]
async fn wrong_ones_are_told_at_once() {
    let server = Server::start();
    set_user(&server, "first");
    let wrong = Vault::with("else").before(Some("app"));
    let builder = wrong(Client::builder().url(server.url())).connect_timeout(ms(20_000));
    let denied = within("the refusal", ms(2_000), builder.connect()).await.0;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
}

/// Instead of what the URL says, not beside it.
#[tokio::test]
async fn the_provider_comes_before_the_url() {
    let server = Server::start();
    set_user(&server, "first");
    let builder = Client::builder().url(server.url_as("somebody", "else"));
    let client = Vault::with("first").before(Some("app"))(builder).connect().await.expect("let in");
    client.ping().await.expect("answered");
    let said = server.ask::<String>(&["CLIENT", "LIST"]).contains(" user=app ");
    assert!(said || version() < (6, 2), "before, nobody says whose a connection is");
}

#[tokio::test]
async fn a_provider_that_hangs_or_panics_is_one_that_fails() {
    let server = Server::start();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let provider = move || {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match call {
                0 => pending().await,
                1 => panic!("in a provider, as the test wants it"),
                _ => Ok::<_, Sealed>(Credentials::default()),
            }
        }
    };
    let builder = || Client::builder().url(server.url()).command_timeout(ms(300)).credentials(provider.clone());
    let (hung, took) = within("giving up", ms(2_000), builder().connect()).await;
    let hung = hung.expect_err("no answer");
    assert!(hung.is_unavailable() && chain(&hung).contains("has not returned"), "{}", chain(&hung));
    assert!(took >= ms(300), "{took:?}");
    let panicked = builder().connect().await.expect_err("it panics");
    assert!(panicked.is_unavailable() && chain(&panicked).contains("has panicked"), "{}", chain(&panicked));
    let client = builder().connect().await.expect("the third time it works");

    calls.store(0, Ordering::SeqCst);
    let guard = client.lock("x").lock().await.expect("free");
    kill_all(&mut server.raw());
    is_kept(&guard, &client, 1).await;
    assert!(calls.load(Ordering::SeqCst) >= 3, "it hung, it panicked, it answered");
}

/// How many connections the server calls so.
fn named(server: &Server, name: &str) -> usize {
    let list: String = server.ask(&["CLIENT", "LIST"]);
    list.lines().filter(|line| line.contains(&format!(" name={name} "))).count()
}

/// One more waits, so that there is a connection that listens.
async fn waited_for(url: &str, client: &Client, seen: impl Fn() -> bool) {
    let other = Client::connect(url).await.expect("it answers");
    let _held = other.lock("x").lock().await.expect("free");
    let lock = client.lock("x");
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("all connections to have a name", ms(5_000), seen).await;
    waiting.abort();
}

#[tokio::test]
async fn the_name_of_a_client_is_that_of_all_its_connections() {
    let server = Server::start();
    let client = client(&server, |builder| builder.client_name("billing-7").connections(3)).await;
    assert_eq!(named(&server, "billing-7"), 3);
    waited_for(&server.url(), &client, || named(&server, "billing-7") == 4).await;
    kill_all(&mut server.raw());
    until("all to be back", ms(5_000), || named(&server, "billing-7") >= 3).await;
}

/// The connection is open, and then nothing comes anymore: when the client connects, and when it connects again.
#[tokio::test]
async fn a_connection_without_a_reply_to_its_name_is_replaced() {
    let server = Server::start();
    let proxy = before(&server);
    // The first CLIENT of a connection is fred's, the second has the name.
    let swallow_the_name = || proxy.rule(Rule::new(Which::Command("CLIENT"), Fault::Swallow(Way::There)).after(1));
    swallow_the_name();
    let builder =
        Client::builder().url(proxy.url()).client_name("us").command_timeout(ms(300)).connect_timeout(ms(10_000));
    let client = within("another connection", ms(8_000), builder.connect()).await.0.expect("it replies");
    assert_eq!(proxy.tally().swallowed, 1);
    swallow_the_name();
    kill_all(&mut server.raw());
    until("the name of the next one", ms(5_000), || proxy.tally().swallowed == 2).await;
    let taken = within("another connection", ms(8_000), client.lock("x").lock()).await.0;
    taken.expect("it replies").unlock().await.expect("ours");
}

#[tokio::test]
async fn also_of_those_to_sentinels_and_to_a_cluster() {
    let sentinels = Sentinels::start().await;
    let client = Client::builder().url(sentinels.url()).client_name("us").connect().await.expect("it answers");
    let at_sentinels = || sentinels.sentinels().iter().map(|sentinel| named(sentinel, "us")).sum::<usize>();
    let seen = || named(sentinels.master(), "us") == 2 && at_sentinels() >= 1;
    waited_for(&sentinels.url(), &client, seen).await;
    drop((client, sentinels));

    let cluster = Cluster::start().await;
    let client = Client::builder().url(cluster.url()).client_name("us").connect().await.expect("it answers");
    waited_for(&cluster.url(), &client, || named(cluster.master_of("x"), "us") >= 2 || listens(&cluster)).await;
}

/// Before 7.0 the connection that listens may be with any server of a cluster.
fn listens(cluster: &Cluster) -> bool {
    let all = cluster.nodes().iter().map(|node| named(node, "us")).sum::<usize>();
    version() < (7, 0) && all >= 2
}

#[tokio::test]
async fn names_that_a_server_would_not_take() {
    for name in ["", "two words", "line\n", "ü", "tab\t"] {
        let refused = Client::builder().client_name(name).connect().await;
        assert!(matches!(refused, Err(Error::InvalidConfig { setting: "client_name", .. })), "{name:?}: {refused:?}");
    }
}
