//! Encrypted connections: what is wrong with one is said, and in time.

use std::{fs, path::Path, time::Duration};

use leasehold::{Client, Error, Tls as Settings};
use rustls::crypto::{CryptoProvider, ring};

use crate::support::{
    Server, chain,
    deployment::tls::{Certificates, HERE, Tls},
    in_a_process_of_its_own, ms, within,
};

/// A connection that is not answered is given up then.
const PATIENCE: Duration = ms(3_000);

async fn connect(url: &str, settings: Settings) -> Result<Client, Error> {
    let connecting = Client::builder().url(url).tls(settings).command_timeout(PATIENCE).connect();
    within("connecting", PATIENCE + ms(500), connecting).await.0
}

/// What a client is told that gets no connection.
async fn told(url: &str, settings: Settings) -> String {
    let error = connect(url, settings).await.expect_err("no connection");
    assert!(error.is_unavailable(), "{error:?}");
    chain(&error)
}

async fn works(url: &str, settings: Settings) {
    let client = connect(url, settings).await.expect("let in");
    client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
}

fn trusting(certificates: &Certificates) -> Settings {
    Settings::new().ca_file(certificates.ca())
}

#[tokio::test]
async fn a_server_of_an_authority_that_is_not_trusted() {
    let tls = Tls::start();
    for settings in [Settings::new(), Settings::new().ca_file(tls.certificates().other_ca())] {
        let told = told(&tls.url(), settings).await;
        assert!(told.contains("UnknownIssuer"), "{told}");
    }
    works(&tls.url(), trusting(tls.certificates())).await;
    works(&tls.url_by_address(), trusting(tls.certificates())).await;
    works(&tls.url().replace("redis", "valkey"), trusting(tls.certificates())).await;
}

#[tokio::test]
async fn a_certificate_for_another_name() {
    let named = Tls::named("redis.example");
    let told = told(&named.url(), trusting(named.certificates())).await;
    assert!(told.contains("not valid for name") && told.contains("redis.example"), "{told}");
    works(&named.url(), trusting(named.certificates()).server_name("redis.example")).await;
    works(&named.url_by_address(), trusting(named.certificates()).server_name("redis.example")).await;
}

#[tokio::test]
async fn a_server_that_wants_to_know_its_clients() {
    let tls = Tls::for_known_clients();
    let trusting = || trusting(tls.certificates());
    // The connection is closed behind what the server says, which may be lost then.
    let without = told(&tls.url(), trusting()).await;
    assert!(
        without.contains("CertificateRequired") || without.contains("is a certificate of ours wanted?"),
        "{without}"
    );
    let (certificate, key) = tls.certificates().other_client();
    let of_others = told(&tls.url(), trusting().client_cert(certificate, key)).await;
    assert!(of_others.contains("UnknownCA") || of_others.contains("is a certificate of ours wanted?"), "{of_others}");
    let (certificate, key) = tls.certificates().client();
    works(&tls.url(), trusting().client_cert(certificate, key)).await;
}

#[tokio::test]
async fn plain_words_where_tls_is_spoken() {
    let tls = Tls::start();
    for url in [tls.url(), tls.url().replace("//", "//:s3cret@")] {
        let told = told(&url.replace("rediss", "redis"), Settings::new()).await;
        assert!(told.contains("does the server use TLS (rediss://)?"), "{told}");
    }
}

#[tokio::test]
async fn tls_where_plain_words_are_spoken() {
    let (server, certificates) = (Server::start(), Certificates::new(&["localhost"]));
    let told = told(&server.url().replace("redis", "rediss"), trusting(&certificates)).await;
    assert!(told.contains("does the server use TLS?"), "{told}");
}

/// Nothing is asked of anybody: these are wrong whatever is there.
#[tokio::test]
async fn files_that_are_no_use() {
    let certificates = Certificates::new(&["localhost"]);
    let ((certificate, key), (_, other_key)) = (certificates.client(), certificates.other_client());
    let broken = certificates.ca().with_file_name("broken.pem");
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("our own folder");
    let (nowhere, trusting) = (Path::new("/nowhere/file.pem"), || trusting(&certificates));
    for (settings, words) in [
        (Settings::new().ca_file(nowhere), "/nowhere/file.pem"),
        (Settings::new().ca_file(&key), "client.key"),
        (Settings::new().ca_file(&broken), "broken.pem"),
        (trusting().client_cert(nowhere, &key), "/nowhere/file.pem"),
        (trusting().client_cert(&certificate, nowhere), "/nowhere/file.pem"),
        (trusting().client_cert(&certificate, &certificate), "client.crt"),
        (trusting().client_cert(&certificate, &other_key), "KeyMismatch"),
        (trusting().server_name("two words"), "server_name"),
    ] {
        let refused = Client::builder().url("rediss://localhost:1").tls(settings).connect().await;
        let Err(Error::InvalidConfig { setting: "tls", reason, .. }) = refused else { panic!("{words}: {refused:?}") };
        assert!(reason.contains(words), "{words} is not in {reason}");
    }
}

#[tokio::test]
async fn what_is_set_for_tls_does_nothing_to_plain_connections() {
    let server = Server::start();
    works(&server.url(), Settings::new().ca_file("/nowhere/file.pem")).await;
}

#[tokio::test]
async fn the_same_files_are_used_at_each_connection() {
    let mut tls = Tls::start();
    let client = connect(&tls.url(), trusting(tls.certificates())).await.expect("let in");
    let lock = client.lock("x");
    lock.lock().await.expect("free").unlock().await.expect("ours");
    tls.server_mut().restart();
    lock.lock().await.expect("free").unlock().await.expect("ours");
    assert!(client.stats().total.reconnects >= 1);
}

/// rustls panics where a program has several back ends, none was chosen and somebody asks for the chosen one.
#[tokio::test]
async fn a_back_end_of_its_own_whatever_the_program_has() {
    assert!(CryptoProvider::get_default().is_none(), "nobody chooses one here");
    let tls = Tls::start();
    works(&tls.url(), trusting(tls.certificates())).await;
    assert!(CryptoProvider::get_default().is_none(), "nor do we");

    let test = "connection::tls::beside_a_back_end_that_others_have_chosen";
    let chosen = in_a_process_of_its_own(test, &[(CHOOSE, Some("1"))]);
    assert!(chosen.status.success(), "{}", String::from_utf8_lossy(&chosen.stdout));
}

const CHOOSE: &str = "LEASEHOLD_TEST_CHOOSES_A_BACK_END";

/// In a process of its own, since that is for the whole process. The one that is chosen can do nothing at all.
#[tokio::test]
async fn beside_a_back_end_that_others_have_chosen() {
    if std::env::var_os(CHOOSE).is_none() {
        return;
    }
    let useless = CryptoProvider { cipher_suites: Vec::new(), kx_groups: Vec::new(), ..ring::default_provider() };
    useless.install_default().expect("nobody was before us");
    let tls = Tls::start();
    works(&tls.url(), trusting(tls.certificates())).await;
}

/// Two back ends would be two libraries of cryptography to compile and to trust.
#[test]
fn ring_is_the_only_back_end() {
    let locked = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock")).expect("the lock file");
    let is_locked = |name: &str| locked.contains(&format!("name = \"{name}\"\n"));
    assert!(is_locked("ring") && is_locked("rustls"));
    for other in ["aws-lc-rs", "aws-lc-sys", "openssl", "openssl-sys", "native-tls"] {
        assert!(!is_locked(other), "{other}: something has brought it along");
    }
}

/// The authority, the server's certificate and ours are replaced on disk, as services that issue them do.
#[tokio::test]
async fn files_that_are_replaced_are_used_from_the_next_connection_on() {
    let mut tls = Tls::for_known_clients();
    let (certificate, key) = tls.certificates().client();
    let settings = trusting(tls.certificates()).client_cert(certificate, key);
    let client = connect(&tls.url(), settings).await.expect("let in");
    client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
    tls.certificates().replace(&HERE);
    tls.server_mut().restart();
    let (taken, _) = within("the lock", ms(10_000), client.lock("x").lock()).await;
    taken.expect("the new authority is trusted").unlock().await.expect("ours");
}

/// While they are being replaced, or after a mistake, what they held before is still good.
#[tokio::test]
async fn files_that_are_no_use_any_more_cost_no_connection() {
    let tls = Tls::start();
    let client = connect(&tls.url(), trusting(tls.certificates())).await.expect("let in");
    for break_it in [|path: &Path| fs::write(path, "no certificate"), |path: &Path| fs::remove_file(path)] {
        break_it(&tls.certificates().ca()).expect("our own folder");
        let reconnects = client.stats().total.reconnects;
        let _: u32 = tls.server().ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let (taken, _) = within("the lock", ms(10_000), client.lock("x").lock()).await;
        taken.expect("the authority is still trusted").unlock().await.expect("ours");
        assert!(client.stats().total.reconnects > reconnects);
    }
}

/// What is missing is told as it is, and waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_file_descriptors_that_is_said_and_tried_again() {
    const CHILD: &str = "LEASEHOLD_TEST_NO_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let test = "connection::tls::without_file_descriptors_that_is_said_and_tried_again";
        let output = in_a_process_of_its_own(test, &[(CHILD, Some("1"))]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let tls = Tls::start();
    let certificates = tls.certificates();
    let limit = rustix::process::Rlimit { current: Some(100), maximum: Some(100) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("less is always allowed");
    for (settings, refused) in [(Settings::new(), Some("UnknownIssuer")), (trusting(certificates), None)] {
        let mut full: Vec<_> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
        let told = told(&tls.url_by_address(), settings.clone()).await;
        assert!(told.contains("Too many open files"), "{told}");
        let waiting = Client::builder().url(tls.url_by_address()).tls(settings).connect_timeout(ms(2_000)).connect();
        let waiting = tokio::spawn(waiting);
        tokio::time::sleep(ms(100)).await;
        full.clear();
        let ended = waiting.await.expect("no panic");
        match refused {
            None => drop(ended.expect("there are enough now")),
            Some(words) => assert!(chain(&ended.expect_err("of another authority")).contains(words)),
        }
    }
}
