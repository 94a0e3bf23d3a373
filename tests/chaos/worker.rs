//! One client process: tasks that use locks in every way there is.

use std::{
    io::BufRead,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use leasehold::{Client, Error, Quorum};
use tokio::{
    runtime::Builder,
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::{
    CELLAR_LEASE, LEASE, VAULT_LEASE,
    history::{Kind, What},
    player::Player,
    scribe::Scribe,
    voted::Voters,
    ways::Work,
};

/// How long the client rides out an outage.
pub(crate) const OUTAGE: Duration = Duration::from_secs(3);
/// How long one command may take.
pub(crate) const COMMAND: Duration = Duration::from_millis(500);
/// Waits that are longer are looked at for deadlocks.
const SLOW_WAIT: Duration = Duration::from_millis(200);
/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(2);

/// Between the URLs of independent servers. The URL of a cluster, or of sentinels, has commas.
pub(crate) const SEPARATOR: char = ' ';

/// `worker URL LOG SEED`, with several URLs for a quorum; ends when its standard input does.
pub(crate) fn run(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [url, log, seed] = args else { return Err("worker URL LOG SEED".into()) };
    let seed: u64 = seed.parse()?;
    // Every other client runs on a runtime that runs tasks only inside `block_on`.
    let mut builder = if seed.is_multiple_of(2) { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let (runtime, log) = (builder.worker_threads(2).enable_all().build()?, Path::new(log));
    match url.split_once(SEPARATOR) {
        Some(_) => runtime.block_on(vote(url, log, seed)),
        None => runtime.block_on(work(url, log, seed)),
    }
}

async fn work(url: &str, log: &Path, seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    let scribe = Scribe::create(log)?;
    scribe.other().watch_the_process();
    let client = connect(url).await?;
    let random = Rng::with_seed(seed.wrapping_mul(1_000));
    let mut first = Player { client: client.clone(), scribe: scribe.clone(), random };
    let over = Arc::new(AtomicBool::new(false));
    let mut works = Work::of_a_client(url);
    // In one of the clients at the start, beside all that must not wait for it.
    if url.starts_with("redis-cluster") && seed.is_multiple_of(4) {
        works.push(Work::Heap(url.to_owned()));
    }
    let mut tasks = start(&mut first, works, &over);
    let mut clients = vec![client.clone()];
    let mut others = vec![(CELLAR_LEASE, Work::of_a_resting_client())];
    if !is_single(url) {
        others.push((VAULT_LEASE, Work::of_a_patient_client()));
    }
    for (lease, works) in others {
        let client = connect_with(url, lease).await?;
        let mut other = Player { client: client.clone(), ..first.other() };
        tasks.extend(start(&mut other, works, &over));
        clients.push(client);
    }
    drop(first);
    end(tasks, clients, over, &scribe).await
}

/// The same, with a client of each of several servers. One of the servers may be away at the start.
async fn vote(urls: &str, log: &Path, seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    let scribe = Scribe::create(log)?;
    scribe.other().watch_the_process();
    let settings =
        |url: &str| Client::builder().url(url).watchdog(LEASE).outage_timeout(OUTAGE).command_timeout(COMMAND);
    let clients = urls.split(SEPARATOR).map(|url| settings(url).connect_lazy()).collect::<Result<Vec<_>, _>>()?;
    clients.iter().for_each(|client| scribe.note("-", What::Voter { id: client.id().to_string() }));
    let name = log.file_name().ok_or("a file")?.to_string_lossy();
    let voters = Voters::new(Quorum::new(clients.clone())?, &name);
    let random = Rng::with_seed(seed.wrapping_mul(1_000));
    let mut first = Player { client: clients[0].clone(), scribe: scribe.clone(), random };
    let over = Arc::new(AtomicBool::new(false));
    let tasks = start(&mut first, Work::of_voters(&voters), &over);
    drop((first, voters));
    end(tasks, clients, over, &scribe).await
}

/// When the standard input ends, so do the tasks, and then the clients.
async fn end(
    tasks: Vec<JoinHandle<()>>,
    clients: Vec<Client>,
    over: Arc<AtomicBool>,
    scribe: &Scribe,
) -> Result<(), Box<dyn std::error::Error>> {
    tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().for_each(drop)).await?;
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await?;
    }
    println!("{}", numbers(&clients[0]));
    // All acquire several locks in one order.
    let deadlocks: u64 = clients.iter().map(|client| client.stats().total.deadlocks).sum();
    if deadlocks > 0 {
        scribe.wrong("-", Kind::Untrue, format!("{deadlocks} deadlocks were reported, and there was none"));
    }
    for client in clients {
        match scribe.call("-", "close", Some(CLOSING), client.close(), |()| "ok").await {
            Some(closed) => closed?,
            None => return Err("close() does not end".into()),
        }
    }
    Ok(())
}

/// Whether one server, behind a proxy, is all there is.
fn is_single(url: &str) -> bool {
    url.starts_with("redis://")
}

/// Each task does one kind of work again and again.
fn start(first: &mut Player, all: Vec<Work>, over: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    all.into_iter().map(|work| tokio::spawn(again(first.other(), work, Arc::clone(over)))).collect()
}

async fn again(mut player: Player, work: Work, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        work.once(&mut player).await;
        let pause = player.millis(0..=10);
        sleep(pause).await;
    }
}

pub(crate) async fn connect(url: &str) -> Result<Client, Error> {
    connect_with(url, LEASE).await
}

/// The server may be away when a client starts.
async fn connect_with(url: &str, watchdog: Duration) -> Result<Client, Error> {
    let ends = Instant::now() + Duration::from_secs(20);
    loop {
        let client =
            Client::builder().url(url).watchdog(watchdog).outage_timeout(OUTAGE).handovers(4).slow_wait(SLOW_WAIT);
        match client.command_timeout(COMMAND).connect().await {
            Err(Error::Unavailable { .. } | Error::Server { .. }) if Instant::now() < ends => {
                sleep(Duration::from_millis(50)).await;
            }
            connected => return connected,
        }
    }
}

fn numbers(client: &Client) -> String {
    let stats = client.stats();
    let numbers = [
        stats.total.first_try,
        stats.total.woken,
        stats.total.handed_over,
        stats.total.by_timer,
        stats.total.reentered,
        stats.total.lost,
    ];
    numbers.map(|number| number.to_string()).join(" ")
}
