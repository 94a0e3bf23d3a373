//! The examples, with a server in memory. The clock is paused where no real connection is used, so they take no time.

#![cfg(feature = "test-util")]

use std::time::Duration;

use leasehold::{Client, MemoryServer, Result};

/// The examples as they are. Their `main` connects to a real server: scripts/test runs them so, too.
macro_rules! examples {
    ($($(#[$when:meta])* $name:ident $path:literal)*) => {
        $($(#[$when])*
        #[allow(dead_code)]
        #[path = $path]
        mod $name;)*
    };
}

examples! {
    axum_service "../examples/axum.rs"
    contention "../examples/contention.rs"
    cron "../examples/cron.rs"
    leader "../examples/leader.rs"
    long_job "../examples/long_job.rs"
    nested "../examples/nested.rs"
    #[cfg(feature = "metrics")] observe "../examples/observe.rs"
    quorum "../examples/quorum.rs"
    shutdown "../examples/shutdown.rs"
    downloads "../examples/downloads.rs"
    start_together "../examples/start_together.rs"
    #[cfg(feature = "blocking")] threads "../examples/threads.rs"
    transfer "../examples/transfer.rs"
}

fn client() -> Client {
    Client::in_memory(&MemoryServer::new()).expect("valid settings")
}

fn three_clients() -> [Client; 3] {
    let server = MemoryServer::new();
    [(); 3].map(|()| Client::in_memory(&server).expect("valid settings"))
}

#[tokio::test]
async fn runs_axum() {
    axum_service::run(client()).await.expect("no error");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_contention() {
    contention::run(client()).await.expect("no error");
}

#[tokio::test(start_paused = true)]
async fn runs_cron() {
    cron::run(three_clients()).await.expect("no error");
}

#[tokio::test(start_paused = true)]
async fn runs_leader() {
    leader::run(three_clients()).await.expect("no error");
}

#[tokio::test(start_paused = true)]
async fn runs_long_job() {
    let settings = Client::builder().watchdog(Duration::from_millis(900));
    let client = settings.connect_in_memory(&MemoryServer::new()).expect("valid settings");
    long_job::run(client).await.expect("no error");
}

#[tokio::test(start_paused = true)]
async fn runs_nested() {
    nested::run(client()).await.expect("no error");
}

#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn runs_observe() {
    observe::run(client(), Duration::from_secs(60)).await.expect("no error");
}

/// A server that does not reply is as good as none.
#[tokio::test(start_paused = true)]
async fn runs_quorum() {
    let (servers, nowhere) = ([(); 3].map(|()| MemoryServer::new()), [(); 2].map(|()| MemoryServer::new()));
    nowhere.iter().for_each(MemoryServer::freeze);
    let clients =
        |servers: [&MemoryServer; 3]| -> Result<Vec<Client>> { servers.map(Client::in_memory).into_iter().collect() };
    let [a, b, c] = &servers;
    let here = clients([a, b, c]).expect("valid settings");
    let others = clients([a, b, &nowhere[0]]).expect("valid settings");
    let alone = clients([a, &nowhere[0], &nowhere[1]]).expect("valid settings");
    quorum::run(here, others, alone).await.expect("no error");
}

#[tokio::test(start_paused = true)]
async fn runs_shutdown() {
    let stop = tokio::time::sleep(Duration::from_secs(2));
    shutdown::run(client(), stop).await.expect("no error");
}

#[tokio::test(start_paused = true)]
async fn runs_downloads() {
    downloads::run(three_clients()).await.expect("no error");
}

#[tokio::test(start_paused = true)]
async fn runs_start_together() {
    start_together::run(three_clients()).await.expect("no error");
}

#[cfg(feature = "blocking")]
#[test]
fn runs_threads() {
    let server = MemoryServer::new();
    threads::run(leasehold::blocking::Client::in_memory(&server).expect("valid settings")).expect("no error");
}

#[tokio::test(start_paused = true)]
async fn runs_transfer() {
    transfer::run(client()).await.expect("no error");
}

/// None is forgotten here.
#[test]
fn every_example_is_run() {
    let here = std::fs::read_to_string(file!()).expect("this file is there");
    let examples = std::fs::read_dir("examples").expect("the examples are there");
    for example in examples.map(|entry| entry.expect("readable").file_name()) {
        assert!(here.contains(&format!("../examples/{}\"", example.to_string_lossy())), "{example:?}");
    }
}
