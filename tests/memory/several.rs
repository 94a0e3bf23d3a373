//! Locks over several servers in memory.

use leasehold::{Client, Error, MemoryServer, MultiLock, Quorum};
use tokio::time::{Instant, sleep};

use crate::{HOUR, support::ms};

fn three() -> ([MemoryServer; 3], Quorum) {
    let servers = [(); 3].map(|()| MemoryServer::new());
    let quorum = quorum(&servers);
    (servers, quorum)
}

fn quorum(servers: &[MemoryServer]) -> Quorum {
    let settings = || Client::builder().command_timeout(ms(500));
    let clients = servers.iter().map(|server| settings().connect_in_memory(server).expect("valid settings"));
    Quorum::new(clients).expect("three servers")
}

#[tokio::test(start_paused = true)]
async fn a_quorum_survives_one_server_and_not_two() {
    let (servers, quorum) = three();
    let guard = quorum.lock("ledger").lock().await.expect("it is free");
    sleep(ms(100)).await; // a majority is enough; the third reply may come later
    assert_eq!(guard.nodes(), 3);
    servers[0].freeze();
    sleep(HOUR).await;
    assert!(!guard.is_lost() && guard.nodes() == 2);
    let other = self::quorum(&servers);
    assert!(other.lock("ledger").try_lock().await.expect("a majority replies").is_none());
    let waiting = tokio::spawn({
        let lock = other.lock("ledger");
        async move { lock.lock().await }
    });
    sleep(ms(1_000)).await;
    guard.unlock().await.expect("held");
    let started = Instant::now();
    let guard = waiting.await.expect("no panic").expect("it is free");
    assert!(started.elapsed() < ms(1_000), "{:?}", started.elapsed());
    servers[1].freeze();
    guard.lost().await;
    assert!(quorum.lock("other").try_lock().await.is_err_and(|error| error.is_unavailable()));
    servers.iter().for_each(MemoryServer::thaw);
    drop(guard);
    quorum.lock("ledger").lock().await.expect("it is free").unlock().await.expect("held");
    sleep(HOUR).await;
    assert!(servers.iter().all(|server| server.keys().is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_quorum_survives_the_restart_of_one_server() {
    let (servers, quorum) = three();
    let guard = quorum.lock("ledger").lock().await.expect("it is free");
    servers[1].restart();
    sleep(HOUR).await;
    assert!(!guard.is_lost());
    servers[2].lose_replies(3);
    servers[0].cut();
    guard.unlock().await.expect("held");
    sleep(HOUR).await;
    assert!(servers.iter().all(|server| server.keys().is_empty()));
}

#[tokio::test(start_paused = true)]
async fn two_clients_of_one_server_are_no_quorum() {
    let (servers, _) = three();
    let again = [&servers[0], &servers[1], &servers[0].clone()];
    let clients = again.map(|server| Client::in_memory(server).expect("valid settings"));
    assert!(matches!(Quorum::new(clients), Err(Error::InvalidConfig { setting: "clients", .. })));
}

#[tokio::test(start_paused = true)]
async fn several_locks_on_two_servers_are_acquired_all_or_none() {
    let servers = [(); 2].map(|()| MemoryServer::new());
    let clients = || servers.each_ref().map(|server| Client::in_memory(server).expect("valid settings"));
    let (ours, theirs) = (clients(), clients());
    let both = |clients: &[Client; 2]| MultiLock::new([clients[0].mutex("a"), clients[1].mutex("b")]);
    let guard = both(&ours).lock().await.expect("they are free");
    assert!(both(&theirs).try_lock().await.expect("they reply").is_none());
    let waiting = tokio::spawn({
        let both = both(&theirs);
        async move { both.lock().await }
    });
    sleep(ms(1_000)).await;
    servers[1].freeze();
    assert!(guard.unlock().await.is_err_and(|error| error.is_unavailable()));
    servers[1].thaw();
    waiting.await.expect("no panic").expect("they are free").unlock().await.expect("held");
    assert!(servers.iter().all(|server| server.keys().is_empty()));
}
