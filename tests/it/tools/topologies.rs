//! The servers of other shapes are what they seem, as an independent client sees it: else tests on them would prove nothing.

use std::{
    fs::File,
    io::{BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    sync::Arc,
};

use redis::RedisResult;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::support::{
    Server, Stopwatch,
    deployment::{
        cluster::Cluster,
        sentinels::{Passwords, Sentinels},
        tls::Tls,
    },
    ms, until,
};

/// What a server says to one command of a client that is not sent elsewhere.
fn said(server: &Server, words: &[&str]) -> String {
    let answer: RedisResult<String> = server.try_ask(words);
    answer.unwrap_or_else(|error| format!("{} {}", error.code().unwrap_or("?"), error.detail().unwrap_or("")))
}

#[tokio::test]
async fn a_cluster_is_soon_there_and_sends_each_key_to_its_owner() {
    let started = Stopwatch::start();
    let cluster = Cluster::start().await;
    assert!(started.elapsed() < ms(10_000), "{:?}, and 3 s as a rule", started.elapsed());
    assert_eq!(cluster.masters(), [0, 1, 2]);
    for key in ["a", "b", "c"] {
        let (slot, owner) = (cluster.slot_of(key), cluster.owner_of(cluster.slot_of(key)));
        assert_eq!(said(cluster.master_of(key), &["SET", key, "1"]), "OK");
        let moved = format!("MOVED {slot} 127.0.0.1:{}", cluster.nodes()[owner].port());
        let elsewhere = (0..6).filter(|&at| at != owner);
        assert!(elsewhere.map(|at| said(&cluster.nodes()[at], &["GET", key])).all(|said| said == moved));
    }
}

#[tokio::test]
async fn a_slot_that_moves_asks_for_patience() {
    let cluster = Cluster::start().await;
    let slot = cluster.slot_of("{x}");
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    let (old, new) = (&cluster.nodes()[from], &cluster.nodes()[to]);
    assert_eq!(said(old, &["SET", "{x}here", "1"]), "OK");

    let migration = cluster.begin_migration(slot, to);
    let ask = format!("ASK {slot} 127.0.0.1:{}", new.port());
    assert_eq!(said(old, &["GET", "{x}here"]), "1", "not moved yet");
    assert_eq!(said(old, &["SET", "{x}new", "1"]), ask);
    assert_eq!(said(old, &["GET", "{x}here"]), "1");
    let both = said(old, &["EVAL", "return 'both'", "2", "{x}here", "{x}new"]);
    assert!(both.starts_with("TRYAGAIN") || both == ask, "{both}"); // the latter before 7.0
    cluster.move_keys(&migration);
    assert_eq!(said(old, &["GET", "{x}here"]), ask);
    assert!(said(new, &["GET", "{x}here"]).starts_with("MOVED"), "it is not the owner yet");
    cluster.end_migration(migration);
    assert_eq!((cluster.owner_of(slot), said(new, &["GET", "{x}here"]).as_str()), (to, "1"));
    assert!(said(old, &["GET", "{x}here"]).starts_with("MOVED"));

    cluster.migrate(slot, from);
    assert_eq!((cluster.owner_of(slot), said(old, &["GET", "{x}here"]).as_str()), (from, "1"));
}

#[tokio::test]
async fn a_cluster_fails_over_when_told_and_when_a_master_dies() {
    let mut cluster = Cluster::start().await;
    let slot = cluster.slot_of("x");
    let first = cluster.owner_of(slot);
    let second = cluster.fail_over(first).await;
    assert_eq!((cluster.owner_of(slot), second), (second, cluster.partner_of(first)));
    assert_eq!(said(cluster.master_of("x"), &["SET", "x", "1"]), "OK");

    cluster.node_mut(second).crash();
    assert_eq!(cluster.heir_of(second).await, first);
    assert_eq!(said(cluster.master_of("x"), &["SET", "x", "2"]), "OK");
    cluster.node_mut(second).revive();
    cluster.settled().await;
}

#[tokio::test]
async fn sentinels_change_the_master_when_told_and_when_it_dies() {
    let sentinels = Sentinels::start().await;
    assert_eq!(sentinels.master_at(), 0);
    let second = sentinels.fail_over().await;
    assert_ne!(second, 0);
    assert_eq!(said(sentinels.master(), &["SET", "x", "1"]), "OK");
    sentinels.settled().await;

    sentinels.master().freeze();
    let third = sentinels.heir_of(second).await;
    assert_eq!(said(sentinels.master(), &["SET", "x", "2"]), "OK");
    sentinels.servers()[second].thaw();
    until("the old master to be one no longer", ms(20_000), || {
        said(&sentinels.servers()[second], &["SET", "x", "3"]).starts_with("READONLY")
    })
    .await;
    assert_ne!(third, second);
}

#[tokio::test]
async fn sentinels_and_servers_can_have_passwords_of_their_own() {
    let [servers, sentinels] = ["for-servers", "for-sentinels"].map(str::to_owned);
    let both = Sentinels::with(Passwords { servers: Some(servers), sentinels: Some(sentinels) }).await;
    assert!(both.url().starts_with("redis-sentinel://:for-servers@127.0.0.1:"));
    for server in [both.master(), &both.sentinels()[0]] {
        let stranger = redis::Client::open(server.url()).expect("a good URL").get_connection();
        let refused = stranger.and_then(|mut raw| redis::cmd("PING").query::<String>(&mut raw));
        assert_eq!(refused.expect_err("it asks for a password").code(), Some("NOAUTH"));
    }
}

/// What a client does to be let in.
struct Visitor {
    name: &'static str,
    trusts: PathBuf,
    shows: Option<(PathBuf, PathBuf)>,
}

impl Visitor {
    fn of(tls: &Tls) -> Visitor {
        Visitor { name: "localhost", trusts: tls.certificates().ca(), shows: None }
    }

    /// PING, and what comes back.
    fn visit(&self, tls: &Tls) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(read(&self.trusts)).expect("a CA");
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("it knows them")
            .with_root_certificates(roots);
        let config = match &self.shows {
            Some((cert, key)) => {
                let key = PrivateKeyDer::from_pem_file(key).expect("a key");
                config.with_client_auth_cert(vec![read(cert)], key).expect("they belong together")
            }
            None => config.with_no_client_auth(),
        };
        let name = self.name.try_into().expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("good settings");
        let mut stream = StreamOwned::new(connection, TcpStream::connect(("127.0.0.1", tls.server().port()))?);
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

fn read(file: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_reader(BufReader::new(File::open(file).expect("it was written"))).expect("a certificate")
}

#[test]
fn tls_lets_in_who_trusts_its_ca() {
    let tls = Tls::start();
    for name in ["localhost", "127.0.0.1"] {
        assert_eq!(Visitor { name, ..Visitor::of(&tls) }.visit(&tls).expect("let in"), "+PONG\r\n");
    }
    Visitor { name: "redis.example", ..Visitor::of(&tls) }.visit(&tls).expect_err("another name");
    Visitor { trusts: tls.certificates().other_ca(), ..Visitor::of(&tls) }.visit(&tls).expect_err("a CA of others");
    assert_eq!(said(tls.server(), &["PING"]), "PONG", "looked at without TLS");

    let named = Tls::named("redis.example");
    Visitor::of(&named).visit(&named).expect_err("not where it is");
    Visitor { name: "redis.example", ..Visitor::of(&named) }.visit(&named).expect("but that name");
}

#[test]
fn tls_can_ask_clients_for_a_certificate() {
    let tls = Tls::for_known_clients();
    let [own, other] = [tls.certificates().client(), tls.certificates().other_client()];
    Visitor::of(&tls).visit(&tls).expect_err("without one");
    Visitor { shows: Some(other), ..Visitor::of(&tls) }.visit(&tls).expect_err("one of others");
    Visitor { shows: Some(own), ..Visitor::of(&tls) }.visit(&tls).expect("one of its CA");
}
