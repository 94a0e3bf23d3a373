//! Whatever fails and whoever prints it: no password is ever shown, neither by us nor by what we use.

use std::{
    fmt::Debug,
    future::pending,
    io::{self, Read, Write},
    net::TcpListener,
    path::Path,
    thread,
    time::Duration,
};

use leasehold::{Builder, Client, Credentials, Error};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::support::{
    Server, chain,
    deployment::sentinels::{Passwords, Sentinels},
    in_a_process_of_its_own, ms, replica_of,
    server::{Look, free_port, owned, usual, version},
    until, within,
};

/// In every password here, however it is written: no letter of it is ever encoded or escaped.
const NEEDLE: &str = "s3cr3t";
const SERVERS: &str = "s3cr3t/of@servers:%";
const SENTINELS: &str = "s3cr3t/of@sentinels:%";
const WRONG: &str = "s3cr3t/wrong?#";
const LATER: &str = "s3cr3t/later";

const RUN: &str = "LEASEHOLD_TEST_PASSWORDS";

/// What is printed, logged and traced is that of a whole process, so it has one of its own.
#[test]
fn passwords_are_never_shown() {
    let output = in_a_process_of_its_own("connection::passwords::everything_that_fails", &[(RUN, Some("1"))]);
    let shown = [output.stdout, output.stderr].concat();
    let shown = String::from_utf8_lossy(&shown);
    let leaks: Vec<_> = shown.lines().filter(|line| line.contains(NEEDLE)).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
    assert!(output.status.success() && shown.contains("1 passed"), "{shown}");
    // It was looked at all: each case, and all who speak.
    for expected in [
        "== alone, wrong password: the server denies access",
        "== sentinels, wrong password of theirs: the server denies access",
        "== sentinels, wrong password of the servers: the server denies access",
        "== cluster, wrong password, later: the server denies access",
        "== cluster, wrong password: the server denies access",
        "== nobody there: the server is not available",
        "== no such host: the server is not available",
        "== nothing is said: the server is not available",
        "== it hangs up: the server is not available",
        "== a replica: the server is not available",
        "== provider fails: the server is not available",
        "== provider is wrong: the server denies access",
        "== provider panics: the server is not available",
        "== provider hangs: the server is not available",
        "== no AUTH: the server refuses the request: 127.0.0.1:",
        ": ERR unknown command",
        "== an echo: the server refuses the request: 127.0.0.1:",
        ": ERR what is",
        "== changed later: the server is not available",
        "== url 0: the setting url cannot be used",
        "Builder {",
        "Client {",
        "Credentials(..)",
        "as the test wants it",
        "leasehold::conn: connection lost",
        "leasehold::lock",
        "log fred::", // and so what it logs was looked at, too
    ] {
        assert!(shown.contains(expected), "{expected:?} is not in\n{shown}");
    }
    if cfg!(feature = "tls") {
        for expected in ["== plain, where TLS is: the server", "== TLS, untrusted: the server", "Tls {"] {
            assert!(shown.contains(expected), "{expected:?} is not in\n{shown}");
        }
    }
}

/// Shows what comes by the older way of logging.
struct Shown;

impl log::Log for Shown {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let _ = writeln!(io::stdout(), "log {}: {}", record.target(), record.args());
    }

    fn flush(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_fails() {
    if std::env::var_os(RUN).is_none() {
        return;
    }
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).init();
    log::set_logger(&Shown).expect("the first");
    log::set_max_level(log::LevelFilter::Trace);

    let where_tls_is = async {
        #[cfg(feature = "tls")]
        encrypted().await;
    };
    tokio::join!(
        alone(),
        sentinels(),
        cluster(),
        unreachable_servers(),
        providers(),
        a_password_that_changes(),
        bad_urls(),
        where_tls_is,
        panics()
    );
    what_repeats_what_it_is_told().await;
}

/// A URL's user and password, with a colon and an @.
fn login(user: &str, password: &str) -> String {
    format!("{user}:{}@", utf8_percent_encode(password, NON_ALPHANUMERIC))
}

fn at(server: &Server, password: &str) -> String {
    server.url().replace("//", &format!("//{}", login("", password)))
}

/// In every way that a program prints something.
fn show(what: &str, value: &impl Debug) {
    println!("== {what}: {value:?}\n{value:#?}");
}

fn show_error(what: &str, error: &Error) {
    println!("== {what}: {}", chain(error));
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        println!("{error} {error:#} {error:?} {error:#?}");
        cause = error.source();
    }
}

async fn fails(what: &str, builder: Builder) {
    fails_within(ms(500), what, builder).await;
}

/// A server that refuses at once, on a machine that may be busy.
async fn is_refused(what: &str, builder: Builder) {
    fails_within(ms(3_000), what, builder).await;
}

async fn fails_within(command_timeout: Duration, what: &str, builder: Builder) {
    show(what, &builder);
    let lazy = builder.clone().command_timeout(command_timeout).connect_lazy();
    let (connected, _) = within(what, ms(10_000), builder.command_timeout(command_timeout).connect()).await;
    let error = connected.expect_err(what);
    show_error(what, &error);
    // Who is let in later is told otherwise.
    if let Ok(lazy) = lazy {
        show(what, &lazy);
        let (taken, _) = within(what, ms(10_000), lazy.lock("x").try_lock()).await;
        show_error(&format!("{what}, later"), &taken.expect_err(what));
    }
}

async fn works(what: &str, builder: Builder) -> Client {
    let client = builder.connect().await.unwrap_or_else(|error| panic!("{what}: {}", chain(&error)));
    let guard = client.lock("x").lock().await.expect("free");
    show(what, &(&client, client.lock("x"), &guard, client.held(), client.stats()));
    guard.unlock().await.expect("ours");
    client
}

fn to(url: impl Into<String>) -> Builder {
    Client::builder().url(url)
}

async fn alone() {
    let server = Server::with(&["--requirepass", SERVERS]);
    works("alone", to(at(&server, SERVERS))).await;
    is_refused("alone, wrong password", to(at(&server, WRONG))).await;
    is_refused("alone, wrong user", to(server.url().replace("//", &format!("//{}", login("nobody", SERVERS))))).await;
    is_refused("alone, over its socket", to(server.socket_url().replace("//", &format!("//{}", login("", WRONG)))))
        .await;
}

async fn sentinels() {
    let passwords = Passwords { servers: Some(SERVERS.to_owned()), sentinels: Some(SENTINELS.to_owned()) };
    let all = Sentinels::with(passwords).await;
    let places: Vec<_> = all.sentinels().iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
    let url = |servers: &str, sentinels: &str| {
        let sentinels = utf8_percent_encode(sentinels, NON_ALPHANUMERIC);
        let places = places.join(",");
        to(format!("redis-sentinel://{}{places}/mymaster?sentinel_password={sentinels}", login("", servers)))
    };
    works("sentinels", url(SERVERS, SENTINELS)).await;
    is_refused("sentinels, wrong password of theirs", url(SERVERS, WRONG)).await;
    is_refused("sentinels, wrong password of the servers", url(WRONG, SENTINELS)).await;
}

/// Of one server, which has all slots.
fn one_of_a_cluster() -> Server {
    let look = Look { password: Some(SERVERS.to_owned()), ..Look::default() };
    let server = Server::made(look, |port: u16, dir: &Path| {
        let bus = if version() >= (7, 0) { owned(&["--cluster-port", &free_port().to_string()]) } else { Vec::new() };
        [usual(port, dir), owned(&["--cluster-enabled", "yes", "--requirepass", SERVERS]), bus].concat()
    });
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let words: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
    let _: String = server.ask(&words);
    server
}

async fn cluster() {
    let server = one_of_a_cluster();
    let ready = || server.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
    until("it to be ready", ms(10_000), ready).await;
    let url = |password| to(at(&server, password).replace("redis", "redis-cluster"));
    works("cluster", url(SERVERS)).await;
    is_refused("cluster, wrong password", url(WRONG)).await;
}

/// Answers everybody with that, whatever is said.
fn answering(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for visitor in listener.incoming() {
            let (mut visitor, mut said) = (visitor.expect("somebody"), [0; 4096]);
            let length = visitor.read(&mut said).unwrap_or(0);
            let _ = visitor.write_all(&answer(&said[..length]));
        }
    });
    place
}

async fn unreachable_servers() {
    let (login, silent) = (login("app", SERVERS), TcpListener::bind("127.0.0.1:0").expect("a port"));
    fails("nobody there", to(format!("redis://{login}127.0.0.1:{}", free_port()))).await;
    fails("no such host", to(format!("redis://{login}nowhere.invalid"))).await;
    fails("nothing is said", to(format!("redis://{login}{}", silent.local_addr().expect("bound")))).await;
    fails("it hangs up", to(format!("redis://{login}{}", answering(|_| Vec::new())))).await;
    fails("no redis", to(format!("redis://{login}{}", answering(|_| b"HTTP/1.1 400 Bad Request\r\n\r\n".into()))))
        .await;
    fails("no cluster", to(format!("redis-cluster://{login}127.0.0.1:{}", free_port()))).await;
    let nobody = format!("redis-sentinel://{login}127.0.0.1:{}/s?sentinel_password={SENTINELS}", free_port());
    fails("no sentinels", to(nobody.replace('%', "%25"))).await;

    let master = Server::start();
    let replica = replica_of(&master).await;
    replica.set_user("app", &["on", &format!(">{SERVERS}"), "~*", "&*", "+@all"]);
    fails("a replica", to(replica.url().replace("//", &format!("//{login}")))).await;
}

async fn providers() {
    let server = Server::with(&["--requirepass", SERVERS]);
    let provided = |password: &'static str| {
        to(server.url()).credentials(move || async move { Ok::<_, io::Error>(Credentials::password(password)) })
    };
    show("credentials", &(Credentials::new("app", SERVERS), Credentials::password(SERVERS)));
    works("provider", provided(SERVERS)).await;
    is_refused("provider is wrong", provided(WRONG)).await;
    // What a provider says is its own: ours is careful.
    fails("provider fails", to(at(&server, SERVERS)).credentials(async || Err(io::Error::other("sealed")))).await;
    let hangs = async || pending::<io::Result<Credentials>>().await;
    fails("provider hangs", to(at(&server, SERVERS)).credentials(hangs)).await;
    let panics = async || -> io::Result<Credentials> { panic!("a provider, as the test wants it") };
    fails("provider panics", to(at(&server, SERVERS)).credentials(panics)).await;
}

/// An error of a server may show the words that it was sent. fred logs that error as it is, at debug level, before we have
/// it: so not below info here.
async fn what_repeats_what_it_is_told() {
    log::set_max_level(log::LevelFilter::Info);
    let without = Server::with(&["--rename-command", "AUTH", ""]);
    is_refused("no AUTH", to(at(&without, SERVERS))).await;
    let long = SERVERS.repeat(40); // it shows the beginning
    is_refused("no AUTH, long", to(at(&without, &long))).await;
    let echo = answering(|said| {
        let said = String::from_utf8_lossy(said).replace("\r\n", " ");
        format!("-ERR what is {said}?\r\n").into_bytes()
    });
    is_refused("an echo", to(format!("redis://{}{echo}", login("app", SERVERS)))).await;
    fails("an echo of a cluster", to(format!("redis-cluster://{}{echo}", login("app", SERVERS)))).await;
}

async fn a_password_that_changes() {
    let server = Server::with(&["--requirepass", SERVERS]);
    let mut raw = server.raw();
    redis::cmd("AUTH").arg(SERVERS).exec(&mut raw).expect("let in");
    let builder = to(at(&server, SERVERS)).watchdog(ms(1_500)).outage_timeout(ms(500)).client_name("us");
    let client = works("before the change", builder).await;
    let guard = client.lock("held").lock().await.expect("free");
    redis::cmd("CONFIG").arg(&["SET", "requirepass", LATER]).exec(&mut raw).expect("it can be changed");
    let _: u32 = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut raw).expect("answered");
    let (taken, _) = within("the refusal", ms(5_000), client.lock("y").lock()).await;
    show_error("changed later", &taken.expect_err("not let in again"));
    show("lost", &guard.lost().await);
    show_error("unlocked", &guard.unlock().await.expect_err("nobody knows"));
    show_error("closed", &client.close().await.err().unwrap_or(Error::Closed));
}

async fn bad_urls() {
    let bad = [
        "app:s3cr3t@h",
        "http://app:s3cr3t@h",
        "s3cr3t://h",
        "redis://app:s3cr3t@",
        "redis://app:s3cr3t@h:99999",
        "redis://app:s3cr3t%ff@h",
        "redis://app:p@h/s3cr3t",
        "redis://app:s3cr3t",
        "redis://h?password=s3cr3t",
        "redis://h?s3cr3t",
        "redis+unix://:s3cr3t@r.sock",
        "redis-sentinel://:s3cr3t@h",
        "redis-sentinel://h/s?sentinel_pass=s3cr3t",
        "redis-cluster://:s3cr3t@h/1",
    ];
    for (number, bad) in bad.into_iter().enumerate() {
        fails(&format!("url {number}"), to(bad)).await;
    }
}

#[cfg(feature = "tls")]
async fn encrypted() {
    use crate::support::deployment::tls::{Certificates, Tls};

    let tls = Tls::for_known_clients();
    let certificates = tls.certificates();
    let trusting = || leasehold::Tls::new().ca_file(certificates.ca()).server_name("localhost");
    let url = tls.url().replace("//", &format!("//{}", login("", SERVERS)));
    show("tls", &trusting());
    fails("plain, where TLS is", to(url.replace("rediss", "redis"))).await;
    fails("TLS, untrusted", to(url.clone())).await;
    fails("TLS, another name", to(url.clone()).tls(trusting().server_name("h"))).await;
    fails("TLS, unknown client", to(url.clone()).tls(trusting())).await;
    fails("TLS, no file", to(url).tls(leasehold::Tls::new().ca_file("/nowhere"))).await;
    let (plain, others) = (Server::with(&["--requirepass", SERVERS]), Certificates::new(&["h"]));
    let builder = to(at(&plain, SERVERS).replace("redis", "rediss"));
    fails("TLS, where plain words are", builder.tls(leasehold::Tls::new().ca_file(others.ca()))).await;
}

/// With all that there is to print in their messages.
async fn panics() {
    let server = Server::with(&["--requirepass", SERVERS]);
    let client = works("before a panic", to(at(&server, SERVERS))).await;
    let builder = to(at(&server, WRONG)).credentials(async || Ok::<_, io::Error>(Credentials::password(WRONG)));
    let refused = builder.clone().connect().await;
    let by_message = tokio::spawn(async move { panic!("as the test wants it: {client:?} {builder:?}") });
    let by_unwrapping = tokio::spawn(async move { drop(refused.expect("as the test wants it")) });
    assert!(by_message.await.is_err() && by_unwrapping.await.is_err());
}
