//! How to observe the locks of a service: `tracing` events, metrics for Prometheus, and the list of held locks. docs/observing.md says what to
//! look at.
//!
//! `scripts/with-redis cargo run --example observe --features metrics` runs for two seconds. `… -- 60 9464` runs for a minute and serves
//! <http://127.0.0.1:9464/metrics>.

use std::{error::Error, future::IntoFuture, time::Duration};

use axum::{Router, routing::get};
use leasehold::{Client, FairLock, Lock};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// The upper bounds of the histograms, in seconds. Without bounds, this exporter writes summaries, which cannot be added up over processes.
const BOUNDS: [f64; 12] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 15.0, 60.0];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().map_or(Ok(2), |arg| arg.parse())?;
    let port = args.next().map_or(Ok(0), |arg| arg.parse())?; // 0: any free port

    // The target `leasehold::lock` has the events of locks, `leasehold::conn` those of connections. Neither ever prints a URL.
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).init();
    // Before the client: a client uses the recorder that is installed when it is created.
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BOUNDS)?
        .install_recorder()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("metrics: http://{}/metrics", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, routes(recorder.clone())).into_future());
    tokio::spawn(upkeep(recorder.clone()));

    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let client = Client::builder()
        .url(url)
        .watchdog(Duration::from_secs(10))
        .outage_timeout(Duration::from_secs(15))
        .slow_wait(Duration::from_secs(5)) // longer waits are logged while they last, with the holder of the lock
        .connect()
        .await?;
    run(client, Duration::from_secs(seconds)).await?;
    let text = recorder.render();
    text.lines().filter(|line| line.starts_with("leasehold_acquired_total")).for_each(|line| println!("{line}"));
    Ok(())
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(client: Client, time: Duration) -> leasehold::Result<()> {
    let service = serve(&client);
    sleep(time).await;
    let (now, wait) = (client.stats().now, client.stats().wait);
    println!("{} held, {} waiting; wait times: p50 {:.0?}, p99 {:.0?}", now.holds, now.waiting, wait.p50, wait.p99);
    for held in client.held() {
        println!("{}: held for {:.1?}, hold count {}", held.name, held.since.elapsed(), held.holds);
    }
    drop(service); // ends its tasks, which drop their guards
    client.shutdown(Duration::from_secs(5)).await
}

fn routes(recorder: PrometheusHandle) -> Router {
    Router::new().route("/metrics", get(async move || recorder.render()))
}

/// The exporter keeps every measured time until somebody reads the metrics, or until this.
async fn upkeep(recorder: PrometheusHandle) {
    loop {
        sleep(Duration::from_secs(5)).await;
        recorder.run_upkeep();
    }
}

/// A service with one lock that all want, one that is held for long, and many that nobody else wants.
fn serve(client: &Client) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        tasks.spawn(work(client.mutex("printer"), Duration::from_millis(40), Duration::from_millis(100)));
    }
    tasks.spawn(work(client.mutex("report"), Duration::from_secs(45), Duration::from_millis(500)));
    for number in 0..2 {
        tasks.spawn(in_turn(client.fair_lock("queue").non_reentrant()));
        let invoice = client.mutex(&format!("invoice:{}:{number}", client.id()));
        tasks.spawn(work(invoice, Duration::from_millis(5), Duration::from_millis(50)));
    }
    tasks
}

async fn work(lock: Lock, holds: Duration, rests: Duration) {
    loop {
        report(lock.with(async || sleep(holds).await).await);
        sleep(rests).await;
    }
}

async fn in_turn(lock: FairLock) {
    loop {
        report(lock.with(async || sleep(Duration::from_millis(15)).await).await);
        sleep(Duration::from_millis(200)).await;
    }
}

/// The next call may succeed.
fn report(result: leasehold::Result<()>) {
    if let Err(error) = result {
        eprintln!("{error}");
    }
}
