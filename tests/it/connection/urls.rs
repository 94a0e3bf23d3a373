//! What a URL leads to, and what is said of one that leads elsewhere than it says.

use std::{io::Read, net::TcpListener, process::Output, thread};

use leasehold::{Client, Error};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use redis::Connection;

use crate::support::{
    Server, chain,
    deployment::{
        cluster::Cluster,
        sentinels::{Passwords, Sentinels},
    },
    in_a_process_of_its_own, ms,
    server::{free_port, version},
    within,
};

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Takes a lock there and hands it to `look`.
async fn holding(url: &str, look: impl FnOnce(&str)) {
    let client = Client::connect(url).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let guard = client.lock("x").lock().await.expect("free");
    look("x");
    guard.unlock().await.expect("ours");
}

async fn refusal(url: &str) -> Error {
    within("an answer", ms(5_000), Client::connect(url)).await.0.expect_err("not what it says")
}

/// Whether a database has that key.
fn has(raw: &mut Connection, database: u8, key: &str) -> bool {
    redis::cmd("SELECT").arg(database).exec(raw).expect("it has 16");
    redis::cmd("EXISTS").arg(key).query(raw).expect("answered")
}

/// Whether one connection is that user's, as far as the server says whose they are.
fn is_one(server: &Server, user: &str) -> bool {
    let list: String = server.ask(&["CLIENT", "LIST"]);
    version() < (6, 2) || list.lines().filter(|line| line.contains(&format!(" user={user} "))).count() == 1
}

#[tokio::test]
async fn users_and_passwords_of_any_letters() {
    const USER: &str = "a/b:c@d%é?";
    const PASSWORD: &str = "p@:/?#%&=+ ü";
    let server = Server::start();
    server.set_user(USER, &["on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]);
    let place = format!("127.0.0.1:{}", server.port());
    for scheme in ["redis", "valkey"] {
        let url = format!("{scheme}://{}:{}@{place}", encoded(USER), encoded(PASSWORD));
        holding(&url, |name| assert!(server.exists(name) && is_one(&server, USER))).await;
    }
    // An @ that was not encoded: what follows the last one is the host.
    server.set_user("u", &["on", ">p@ss", "~*", "&*", "+@all"]);
    holding(&format!("redis://u:p@ss@{place}"), |_| assert!(is_one(&server, "u"))).await;
    let wrong = refusal(&format!("redis://{}:{}@{place}", encoded(USER), encoded("else"))).await;
    assert!(matches!(wrong, Error::Denied { .. }), "{wrong:?}");
}

/// Not the server's default user, whose rights may be others.
#[tokio::test]
async fn a_user_without_a_password_is_that_user_or_nobody() {
    let server = Server::start();
    server.set_user("open", &["on", "nopass", "~*", "&*", "+@all"]);
    holding(&server.url_as("open", "").replace(":@", "@"), |_| assert!(is_one(&server, "open"))).await;
    server.set_user("closed", &["on", ">p", "~*", "&*", "+@all"]);
    let denied = refusal(&server.url_as("closed", "").replace(":@", "@")).await;
    assert!(matches!(denied, Error::Denied { .. }), "{denied:?}");
}

#[tokio::test]
async fn a_database_is_a_place_of_its_own() {
    let server = Server::start();
    let mut raw = server.raw();
    holding(&format!("{}/3", server.url()), |name| assert!(has(&mut raw, 3, name) && !has(&mut raw, 0, name))).await;
    let url = format!("{}?db=2", server.socket_url());
    holding(&url, |name| assert!(has(&mut raw, 2, name) && !has(&mut raw, 0, name))).await;
    let refused = refusal(&format!("{}/200", server.url())).await;
    assert!(matches!(refused, Error::Server { .. }) && chain(&refused).contains("out of range"), "{}", chain(&refused));
}

#[tokio::test]
async fn a_socket_with_a_password() {
    let server = Server::with(&["--requirepass", "s3c/ret"]);
    let with = |password: &str| server.socket_url().replace("//", &format!("//:{password}@"));
    let twin = with("s3c%2Fret").replace("redis+unix", "valkey+unix");
    for url in [with("s3c%2Fret"), twin] {
        holding(&url, |_| {}).await;
    }
    for url in [with("wrong"), server.socket_url()] {
        let denied = refusal(&url).await;
        assert!(matches!(denied, Error::Denied { .. }), "{denied:?}");
    }
    let nowhere = refusal("redis+unix:///nowhere/redis.sock").await;
    assert!(nowhere.is_unavailable() && chain(&nowhere).contains("No such file"), "{}", chain(&nowhere));
}

#[tokio::test]
async fn an_address_of_the_sixth_version() {
    if TcpListener::bind("[::1]:0").is_err() {
        return; // this machine has none
    }
    let server = Server::with(&["--bind", "::1"]);
    holding(&format!("redis://[::1]:{}", server.port()), |_| {}).await;
}

#[tokio::test]
async fn sentinels_lead_to_a_database_and_may_have_a_password_of_their_own() {
    let (servers, sentinels) = ("for/servers".to_owned(), "for@sentinels".to_owned());
    let all = Sentinels::with(Passwords { servers: Some(servers), sentinels: Some(sentinels) }).await;
    let url = all.url().replace("for/servers", "for%2Fservers");
    let mut raw = all.master().raw();
    for url in [url.clone(), url.replace("redis-", "valkey-")] {
        let url = format!("{}/5?sentinel_password=for%40sentinels", url.strip_suffix("/0").expect("its database"));
        holding(&url, |name| assert!(has(&mut raw, 5, name) && !has(&mut raw, 0, name))).await;
    }
    let denied = refusal(&url).await;
    assert!(matches!(denied, Error::Denied { .. }), "without the sentinels' password: {denied:?}");
    let unknown = url.replace("/mymaster/0", "/yours?sentinel_password=for%40sentinels");
    let unknown = refusal(&unknown).await;
    assert!(unknown.is_unavailable(), "a sentinel may learn of it: {unknown:?}");
    assert!(chain(&unknown).contains("No such master"), "{}", chain(&unknown));
}

#[tokio::test]
async fn a_server_that_is_no_sentinel() {
    let server = Server::start();
    let refused = refusal(&format!("redis-sentinel://127.0.0.1:{}/mymaster", server.port())).await;
    assert!(matches!(refused, Error::Server { .. }) && chain(&refused).contains("unknown command"), "{refused:?}");
}

#[tokio::test]
async fn a_server_that_is_no_cluster() {
    let server = Server::start();
    let refused = refusal(&server.url().replace("redis", "redis-cluster")).await;
    assert!(matches!(refused, Error::Server { .. }), "{refused:?}");
    assert!(chain(&refused).contains("cluster support disabled"), "{}", chain(&refused));
}

#[tokio::test]
async fn a_cluster_is_found_by_any_of_its_servers_and_by_its_name_only() {
    let cluster = Cluster::start().await;
    let (dead, seed) = (free_port(), cluster.nodes()[4].port());
    for scheme in ["redis-cluster", "valkey-cluster"] {
        let url = format!("{scheme}://127.0.0.1:{dead},127.0.0.1:{seed}/0");
        holding(&url, |name| assert!(cluster.master_of(name).exists(name))).await;
    }
    let nobody = refusal(&format!("redis-cluster://127.0.0.1:{dead}")).await;
    assert!(nobody.is_unavailable() && chain(&nobody).contains("refused"), "{}", chain(&nobody));

    // A client that connects later finds out with its first lock.
    let other = cluster.masters().into_iter().find(|&at| at != cluster.owner_of(cluster.slot_of("x")));
    let url = cluster.nodes()[other.expect("three masters")].url();
    let client = Client::builder().url(url).connect_lazy().expect("a good URL");
    let refused = client.lock("x").lock().await.expect_err("it is elsewhere");
    let Error::InvalidConfig { setting: "url", reason, .. } = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("redis-cluster://") && reason.contains("MOVED"), "{reason}");
    assert_eq!(client.stats().now.holds, 0);
}

/// As a balancer of load does that has nobody behind it.
#[tokio::test]
async fn somebody_who_hangs_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for visitor in listener.incoming() {
            let _ = visitor.expect("somebody").read(&mut [0; 64]);
        }
    });
    for login in ["", ":s3cret@", "u:s3cret@"] {
        let error = refusal(&format!("redis://{login}{place}")).await;
        assert!(error.is_unavailable(), "{login}: {error:?}");
        assert!(chain(&error).contains("closed"), "{login}: {}", chain(&error));
    }
}

#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn without_the_feature_nothing_is_encrypted_and_nothing_is_sent_in_plain_words_instead() {
    for url in ["rediss://h", "valkeys://h", "rediss-sentinel://h/s", "rediss-cluster://h"] {
        let Error::InvalidConfig { setting: "url", reason, .. } = refusal(url).await else { panic!("{url}") };
        assert!(reason.contains("feature `tls`"), "{reason}");
    }
}

const WANTED: &str = "LEASEHOLD_TEST_FROM_ENV";

fn from_env(url: Option<&str>, wanted: &str) -> Output {
    let environment = [("REDIS_URL", url), (WANTED, Some(wanted))];
    in_a_process_of_its_own("connection::urls::what_the_environment_says", &environment)
}

/// A process must not change its own environment while others read it, so each case has one of its own.
#[test]
fn the_environment_says_where() {
    let server = Server::with(&["--requirepass", "s3cret"]);
    for (url, wanted) in [
        (Some(server.url_as("", "s3cret")), "a lock"),
        (Some(server.url_as("", "wrong")), "the server denies access"),
        (Some("nonsense".to_owned()), "the setting url cannot be used: it has no scheme such as redis://"),
        (None, "the setting REDIS_URL cannot be used: it is not set, or is not valid UTF-8"),
    ] {
        let output = from_env(url.as_deref(), wanted);
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("1 passed"), "{wanted}: {said}{complained}");
    }
}

#[tokio::test]
async fn what_the_environment_says() {
    let Ok(wanted) = std::env::var(WANTED) else { return };
    match Client::from_env().await {
        Ok(client) => {
            client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
            assert_eq!(wanted, "a lock");
        }
        Err(error) => assert!(error.to_string().starts_with(&wanted), "{error}, not {wanted}"),
    }
}

/// It would work for some names and not for others.
#[tokio::test]
async fn a_server_of_a_cluster_says_so_when_it_is_taken_for_one_that_is_alone() {
    let cluster = Cluster::of_masters().await;
    for node in cluster.nodes() {
        let url = format!("redis://127.0.0.1:{}", node.port());
        for builder in [Client::builder().url(&url), Client::builder().url(&url).prefix("billing:")] {
            let refused =
                within("an answer", ms(5_000), builder.connect()).await.0.expect_err("it has some slots only");
            let words = chain(&refused);
            assert!(matches!(refused, Error::InvalidConfig { .. }) && words.contains("redis-cluster://"), "{words}");
        }
    }
}
