//! What a client says of itself on the server.

use std::time::{Duration, SystemTime};

use leasehold::{Builder, Client, RwState};

use crate::support::{Server, log::Sink, ms, process::Process, until};

const LEASE: Duration = ms(1_500);
const CHILDREN: usize = 20;
const EACH: usize = 10;
/// So many processes of this binary may need that long to start.
const START: Duration = ms(90_000);

/// A client that says who it is.
async fn client(server: &Server, settings: impl FnOnce(Builder) -> Builder) -> Client {
    let builder = Client::builder().url(server.url()).connect_timeout(START);
    settings(builder).connect().await.expect("the server is there")
}

async fn plain(server: &Server) -> Client {
    client(server, |builder| builder).await
}

fn records(server: &Server) -> Vec<String> {
    let mut cursor = "0".to_owned();
    let mut all = Vec::new();
    loop {
        let (next, some): (String, Vec<String>) =
            server.ask(&["SCAN", &cursor, "MATCH", "leasehold:client:*", "COUNT", "1000"]);
        all.extend(some);
        if next == "0" {
            return all;
        }
        cursor = next;
    }
}

async fn written(server: &Server, count: usize) {
    until("the records", START, || records(server).len() == count).await;
}

#[tokio::test]
async fn a_holder_is_a_process() {
    let server = Server::start();
    let began = SystemTime::now();
    let one = client(&server, |builder| builder.client_name("billing-1")).await;
    let other = plain(&server).await;
    let held = one.lock("x").lock().await.expect("free");
    let reader = one.rw_lock("rw").read().await.expect("free");
    written(&server, 1).await;
    let holder = other.lock("x").inspect().await.expect("answered").expect("it is held");
    let record = holder.client.expect("it says who it is");
    assert_eq!((record.pid, record.label.as_deref()), (std::process::id(), Some("billing-1")));
    assert!(!record.host.is_empty() && record.program.starts_with("it-"), "{record:?}");
    assert!(record.since >= began - ms(5) && record.since <= SystemTime::now(), "{record:?}");
    let RwState::Read(readers) = other.rw_lock("rw").inspect().await.expect("answered") else { panic!("it is read") };
    assert_eq!(readers[0].client.as_ref(), Some(&record));
    assert!(other.lock("free").inspect().await.expect("answered").is_none());
    drop((held, reader));
    one.close().await.expect("all is released");
    assert!(records(&server).is_empty(), "it is gone with its client");
}

#[tokio::test]
async fn a_pair_sends_no_more_for_it() {
    let server = Server::start();
    let one = plain(&server).await;
    let lock = one.mutex("x");
    drop(lock.lock().await.expect("free"));
    written(&server, 1).await;
    let but_records = || server.calls("evalsha") - server.calls("set"); // each request of a record has one `SET`, and those of locks have none
    let before = but_records();
    for _ in 0..500 {
        lock.lock().await.expect("free").unlock().await.expect("held");
    }
    assert_eq!(but_records() - before, 1_000);
}

#[tokio::test]
async fn none_of_a_client_that_is_told_not_to_or_uses_nothing() {
    let server = Server::start();
    let silent = client(&server, |builder| builder.announce(false)).await;
    let idle = plain(&server).await;
    let held = silent.lock("x").lock().await.expect("free");
    tokio::time::sleep(ms(600)).await;
    assert!(records(&server).is_empty());
    let holder = idle.lock("x").inspect().await.expect("answered").expect("it is held");
    assert_eq!(holder.client, None);
    held.unlock().await.expect("held");
}

/// Said once, and no error.
#[tokio::test]
async fn a_user_who_may_not_write_it() {
    let log = Sink::install(tracing::Level::INFO);
    let server = Server::start();
    server.set_user("limited", &["on", ">p", "~x", "&*", "+@all"]);
    let limited = Client::connect(&server.url_as("limited", "p")).await.expect("let in");
    let guard = limited.lock("x").lock().await.expect("permitted");
    until("it is said", ms(5_000), || log.text().contains("no record says which process this is")).await;
    guard.unlock().await.expect("held");
    assert!(limited.lock("x").inspect().await.expect("answered").is_none());
    limited.close().await.expect("nothing is left");
    assert_eq!(log.text().matches("no record says").count(), 1);
}

/// Not a test: a process whose clients hold a lock each, until they are told to go.
#[tokio::test]
#[ignore = "run by others, in a process of its own"]
async fn holds_some() {
    let mut guards = Vec::new();
    let mut clients = Vec::new();
    for n in 0..EACH {
        let client = Client::builder().url(Process::url()).watchdog(LEASE).connect_timeout(START).connect();
        let client = client.await.expect("the server is there");
        guards.push(client.lock(&format!("{}:{n}", std::process::id())).lock().await.expect("free"));
        clients.push(client);
    }
    // A server that is busy with many may not reply at once, and then there is another connection.
    let is_told = async || {
        let servers = clients[0].servers().await.ok()?;
        servers[0].command(&["EXISTS", "go"]).await.ok()?.int()
    };
    while is_told().await != Some(1) {
        tokio::time::sleep(ms(50)).await;
    }
    drop(guards);
    for client in clients {
        client.close().await.expect("all is released");
    }
}

#[tokio::test]
async fn only_those_of_clients_that_live() {
    let server = Server::start();
    let stays = client(&server, |builder| builder.watchdog(LEASE)).await;
    let _held = stays.lock("x").lock().await.expect("free");
    let mut all: Vec<_> =
        (0..CHILDREN).map(|_| Process::start("interface::records::holds_some", &server.url())).collect();
    written(&server, CHILDREN * EACH + 1).await;
    let mut living = all.split_off(CHILDREN / 2);
    all.iter_mut().for_each(Process::kill);
    let _: () = server.ask(&["SET", "go", "1"]);
    until("the others to end", START, || living.iter_mut().all(Process::is_done)).await;
    written(&server, 1).await;
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!(records(&server).len(), 1, "it is renewed");
}
