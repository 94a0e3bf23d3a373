//! A worker that stops cleanly on SIGTERM or Ctrl-C: it starts no new jobs, finishes the running ones, and releases all locks.
//!
//! `scripts/with-redis cargo run --example shutdown` runs until you stop it; with `-- 2` it sends itself SIGTERM after two
//! seconds.

use std::time::Duration;

use leasehold::{Client, Error};
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};

/// The time that jobs get to finish after SIGTERM. Keep it at least three seconds below the time after which your process manager sends SIGKILL.
const GRACE: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::builder().url(url).connect_timeout(Duration::from_secs(30)).connect().await?;
    let mut terminate = signal(SignalKind::terminate())?;
    if let Some(seconds) = std::env::args().nth(1) {
        let seconds = seconds.parse()?;
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            kill_process(getpid(), Signal::TERM).expect("our own process");
        });
    }

    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => println!("SIGTERM"),
            _ = tokio::signal::ctrl_c() => println!("Ctrl-C"),
        }
    };
    run(client, stop).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(client: Client, stop: impl Future<Output = ()>) -> Result<(), Box<dyn std::error::Error>> {
    let workers: Vec<_> = (0..3).map(|worker| tokio::spawn(work(client.clone(), worker))).collect();
    stop.await;
    for held in client.held() {
        println!("still running: {}, started {:?} ago", held.name, held.since.elapsed());
    }
    let released = client.shutdown(GRACE).await; // the workers' next call returns Error::Closed
    for worker in workers {
        println!("{} jobs done", worker.await?);
    }
    Ok(released?)
}

/// Runs one job after the other until the client is shut down. Other errors end one job and not the worker: the server may be back for the
/// next. The client has waited for it before it returns an error.
async fn work(client: Client, worker: u32) -> u32 {
    let mut done = 0;
    loop {
        let job = async || tokio::time::sleep(Duration::from_millis(300)).await;
        match client.mutex(&format!("queue:{}", (worker + done) % 4)).with(job).await {
            Ok(()) => done += 1,
            Err(Error::Closed) => return done,
            Err(error) => eprintln!("a job failed: {error}"),
        }
    }
}
