//! Waiting on a bad day: subscribers cut off, servers frozen, crowds in line.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Owner};

use crate::{
    report::{Outcome, Report, raw_round_trip},
    support::Server,
};

/// `CLIENT KILL TYPE pubsub` every 50 ms for 10 s under load: the longest time that the lock lay free while others
/// waited; then the same with the release at the moment of the cut.
pub(crate) async fn cut_off(server: &Server, report: &mut Report) -> Outcome<()> {
    let clients = [patient(server).await?, patient(server).await?];
    let raw = Some(raw_round_trip(&clients[0]).await?);
    let (over, free_since) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new((Instant::now(), Duration::ZERO))));
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let (lock, over, free) = (clients[n % 2].lock("cut-off"), Arc::clone(&over), Arc::clone(&free_since));
            tokio::spawn(async move {
                let mut turns = 0_u32;
                while !over.load(Ordering::Relaxed) {
                    let guard = lock.lock().await?;
                    let lay = |free: &Mutex<(Instant, Duration)>| {
                        let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
                        free.1 = free.1.max(free.0.elapsed());
                    };
                    lay(&free);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    free.lock().unwrap_or_else(PoisonError::into_inner).0 = Instant::now();
                    guard.unlock().await?;
                    turns += 1;
                }
                Outcome::Ok(turns)
            })
        })
        .collect();
    let (started, mut cuts) = (Instant::now(), 0_u32);
    while started.elapsed() < Duration::from_secs(10) {
        cuts += server.ask::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    over.store(true, Ordering::Relaxed);
    let mut turns = 0;
    for task in tasks {
        turns += task.await??;
    }
    let worst = free_since.lock().unwrap_or_else(PoisonError::into_inner).1;
    let measured = format!("lock free for at most {worst:.1?} ({cuts} cuts, {turns} turns)");
    let aim = Some(("at most 1 s", worst <= Duration::from_secs(1)));
    report.row("subscribers cut off every 50 ms for 10 s", measured, raw, aim);

    let mut worst = Duration::ZERO;
    for _ in 0..20 {
        let guard = clients[0].lock("at-the-cut").lock().await?;
        let lock = clients[1].lock("at-the-cut");
        let waiting = tokio::spawn(async move { lock.lock().await });
        while server.channels().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _: u32 = server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let released = Instant::now();
        guard.unlock().await?;
        waiting.await??.unlock().await?;
        worst = worst.max(released.elapsed());
    }
    let aim = Some(("at most 1 s", worst <= Duration::from_secs(1)));
    report.row("released while the waiter is cut off, 20 times", format!("acquired within {worst:.1?}"), raw, aim);
    Ok(())
}

/// Few hand-overs, so that messages matter.
async fn patient(server: &Server) -> Outcome<Client> {
    Ok(Client::builder().url(server.url()).handovers(2).connect().await?)
}

/// How much longer than asked `try_lock_for` takes.
pub(crate) async fn deadlines(server: &Server, report: &mut Report) -> Outcome<()> {
    let client = Client::builder().url(server.url()).command_timeout(Duration::from_secs(1)).connect().await?;
    let raw = raw_round_trip(&client).await?;
    let _: u32 = server.ask(&["HSET", "crowded", "b983c153-7421-469a-addb-44fb92259a1b:7", "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "crowded", "600000"]);
    let crowd: Vec<_> = (0..1_000)
        .map(|_| {
            let lock = client.lock("crowded").owner(&Owner::new());
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    while client.stats().now.waiting < 1_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    report_late(&client, report, raw, "1,000 waiters", || ()).await?;
    report_late(&client, report, raw, "the subscriber cut off", || {
        let _: u32 = server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    })
    .await?;
    server.freeze();
    report_late(&client, report, raw, "the server frozen", || ()).await?;
    server.thaw();
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

async fn report_late(client: &Client, report: &mut Report, raw: f64, what: &str, before: impl Fn()) -> Outcome<()> {
    let mut worst = Duration::ZERO;
    for patience in [1, 10, 50, 100, 250].map(Duration::from_millis) {
        before();
        let lock = client.lock("crowded").owner(&Owner::new());
        let started = Instant::now();
        let taken = lock.try_lock_for(patience).await;
        worst = worst.max(started.elapsed().saturating_sub(patience));
        if matches!(taken, Ok(Some(_))) {
            return Err("it is held".into());
        }
    }
    // A frozen server never answers: then the allowance for a last attempt passes, four round trips or 100 ms.
    let aim = Some(("one round trip; 100 ms for a server that does not answer", worst <= Duration::from_millis(110)));
    report.row(
        format!("`try_lock_for` with {what}: late by"),
        format!("at most {worst:.1?}, round trips seen {:.1?}", client.stats().round_trip),
        Some(raw),
        aim,
    );
    Ok(())
}
