//! A cluster that looks like one server: a service with a proxy before it, or a node that has all slots. A call across slots is refused.

use futures_util::future::join_all;
use tokio::time::sleep;

use leasehold::{Client, Guard};

use crate::support::{Server, client, deployment::cluster::Cluster, ms, plain};

const LEASE: u64 = 1_500;

async fn holder(server: &Server) -> Client {
    client(server, |builder| builder.watchdog(ms(LEASE))).await
}

async fn held(client: &Client, prefix: &str, names: usize) -> Vec<Guard> {
    let locks: Vec<_> = (0..names).map(|number| client.mutex(&format!("{prefix}:{number}"))).collect();
    join_all(locks.iter().map(|lock| lock.lock())).await.into_iter().map(|guard| guard.expect("free")).collect()
}

/// All of them were renewed several times.
async fn stay_held(server: &Server, guards: Vec<Guard>) {
    sleep(ms(3 * LEASE)).await;
    assert!(guards.iter().all(|guard| !guard.is_lost() && server.pttl(guard.name()) > 0));
    for unlocked in join_all(guards.into_iter().map(Guard::unlock)).await {
        unlocked.expect("held to the end");
    }
}

#[tokio::test]
async fn locks_that_are_renewed_together_stay_held() {
    let server = Cluster::of_one().await;
    let few = async { stay_held(&server, held(&holder(&server).await, "few", 2).await).await };
    let many = async { stay_held(&server, held(&holder(&server).await, "many", 200).await).await };
    tokio::join!(few, many);
}

/// The client learns it from the first call across slots.
#[tokio::test]
async fn also_if_the_server_hides_that_it_is_a_cluster() {
    let server = Cluster::of_one().await;
    server.set_user("default", &["-cluster"]);
    let client = Client::builder().url(server.url()).watchdog(ms(LEASE)).connect_lazy().expect("a good URL");
    stay_held(&server, held(&client, "held", 20).await).await;
}

#[tokio::test]
async fn permits_and_readers_are_renewed_too() {
    let server = Cluster::of_one().await;
    let client = holder(&server).await;
    let (mut permits, mut readers) = (Vec::new(), Vec::new());
    for number in 0..20 {
        let semaphore = client.semaphore(&format!("s:{number}"));
        semaphore.set_permits(1).await.expect("reachable");
        permits.push(semaphore.acquire(1).await.expect("free"));
        readers.push(client.rw_lock(&format!("r:{number}")).read().await.expect("free"));
    }
    sleep(ms(3 * LEASE)).await;
    assert!(permits.iter().all(|permits| !permits.is_lost()) && readers.iter().all(|reader| !reader.is_lost()));
}

/// So many that their requests share calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_that_call_at_once_acquire_their_locks() {
    let server = Cluster::of_one().await;
    let client = plain(&server).await;
    let tasks = (0..400).map(|task| {
        let lock = client.mutex(&format!("busy:{}", task % 50));
        tokio::spawn(async move {
            for _ in 0..10 {
                lock.lock().await.expect("granted in turn").unlock().await.expect("held to the end");
            }
        })
    });
    for ended in join_all(tasks).await {
        ended.expect("no panic");
    }
    assert_eq!(client.stats().total.failed, 0);
}
