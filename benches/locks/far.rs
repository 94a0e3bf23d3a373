//! Locks on a server that is far away: each way through the network takes 25 ms, and much can be on the way at once.

use std::{net::SocketAddr, sync::Arc, thread, time::Duration};

use leasehold::{Client, Guard};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinSet,
    time::{sleep, sleep_until},
};

use crate::{
    alone::{lock_pair, pairs_a_second},
    report::{Outcome, Report, median_round_trip},
    support::Server,
};

const ONE_WAY: Duration = Duration::from_millis(25);
const WINDOW: Duration = Duration::from_secs(3);

/// Pairs of lock and unlock beside what the network alone would permit, and the locks that are lost while the watchdog renews many.
pub(crate) async fn far(server: &Server, report: &mut Report) -> Outcome<()> {
    let far = Slow::before(server)?;
    for tasks in [16, 256, 2_048] {
        let client = at(far).watchdog(Duration::from_secs(30)).connect().await?;
        let raw = median_round_trip(&client, 20).await?;
        let locking = client.clone();
        let pairs = pairs_a_second(WINDOW, tasks, move |name| lock_pair(locking.clone(), name)).await?;
        let share = pairs / (tasks as f64 / (2.0 * raw / 1e6));
        let measured = format!("{pairs:.0} per second, {share:.2} of what the network permits");
        report.row(
            format!("{tasks} tasks, one name per task, a round trip of 50 ms"),
            measured,
            Some(raw),
            Some(("at least 0.8", share >= 0.8)),
        );
        client.close().await?;
    }
    for (locks, watchdog, outage) in [(20_000, 6, 0), (20_000, 6, 1_000), (20_000, 6, 2_500), (6_000, 3, 500)] {
        let (watchdog, outage) = (Duration::from_secs(watchdog), Duration::from_millis(outage));
        let client = at(far).watchdog(watchdog).connect().await?;
        let guards = hold(&client, locks).await?;
        sleep(watchdog).await;
        if outage > Duration::ZERO {
            server.freeze();
            sleep(outage).await;
            server.thaw();
        }
        sleep(2 * watchdog).await;
        let lost = client.stats().total.lost;
        report.row(
            format!(
                "{locks} held locks, `watchdog` {} s, a round trip of 50 ms, an outage of {} s: lost",
                watchdog.as_secs(),
                outage.as_secs_f64()
            ),
            lost.to_string(),
            None,
            Some(("none", lost == 0)),
        );
        drop(guards);
        while client.stats().now.releasing > 0 {
            sleep(Duration::from_millis(50)).await;
        }
        client.close().await?;
    }
    Ok(())
}

fn at(far: SocketAddr) -> leasehold::Builder {
    Client::builder().url(format!("redis://{far}"))
}

async fn hold(client: &Client, locks: usize) -> Outcome<Vec<Guard>> {
    let mut all = JoinSet::new();
    for n in 0..locks {
        let lock = client.lock(&format!("far-held-{n}"));
        all.spawn(async move { lock.lock().await });
    }
    let mut guards = Vec::with_capacity(locks);
    while let Some(guard) = all.join_next().await {
        guards.push(guard??);
    }
    Ok(guards)
}

/// Passes everything on, later. It has a thread of its own, which ends with the process.
struct Slow;

impl Slow {
    fn before(server: &Server) -> Outcome<SocketAddr> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let (address, server) = (listener.local_addr()?, SocketAddr::from(([127, 0, 0, 1], server.port())));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::spawn(move || runtime.block_on(accept(listener, server)));
        Ok(address)
    }
}

async fn accept(listener: std::net::TcpListener, server: SocketAddr) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        let server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (client, server) = (client.into_split(), server.into_split());
        later(client.0, server.1);
        later(server.0, client.1);
    }
}

fn later(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let (send, mut receive) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let _ = send.send((tokio::time::Instant::now() + ONE_WAY, Arc::<[u8]>::from(&buffer[..read])));
        }
    });
    tokio::spawn(async move {
        while let Some((at, bytes)) = receive.recv().await {
            sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
}
