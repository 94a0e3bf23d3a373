//! A latch for which many wait in several processes: from its last count-down to the last of them that is awake.

use std::time::{Duration, Instant};

use tokio::{task::JoinSet, time::sleep};

use crate::{
    Args, Client, Outcome, clock,
    hand_over::{Link, patience, report},
};

const OTHERS: usize = 3;
/// So long after its last waiter has begun to wait, a process says that all of them are asleep.
const SETTLED: Duration = Duration::from_millis(200);

/// One of the processes. Whoever started us carries each line to all others.
pub(crate) async fn latch<C: Client>(client: &C, args: &Args) -> Outcome<String> {
    let (mut link, opens) = (Link::of_streams(), Instant::now() + args.warm_up);
    let mut times = Vec::new();
    for turn in 0_u32.. {
        let (time, last) = if args.first {
            first(client, args, &mut link, turn, opens + args.seconds).await?
        } else {
            other(client, args, &mut link).await?
        };
        if args.first && Instant::now() >= opens {
            times.push(time);
        }
        if last {
            break;
        }
    }
    Ok(report(&times))
}

/// Sets the latch and counts it down. How long it took until all were awake, and whether it was the last time.
async fn first<C: Client>(
    client: &C,
    args: &Args,
    link: &mut Link,
    turn: u32,
    closes: Instant,
) -> Outcome<(u64, bool)> {
    client.set(&args.name).await?;
    link.send("set".to_owned())?;
    let waiters = waiters(client, args).await;
    for _ in 0..OTHERS {
        link.next(&["ready"]).await?;
    }
    sleep(patience(turn)).await;
    let word = if Instant::now() < closes { "down" } else { "last" };
    let down = clock();
    client.count_down(&args.name).await?;
    let mut awake = awake(waiters).await?;
    link.send(word.to_owned())?;
    for _ in 0..OTHERS {
        awake = awake.max(link.next(&["awake"]).await?.1);
    }
    Ok((awake.saturating_sub(down), word == "last"))
}

async fn other<C: Client>(client: &C, args: &Args, link: &mut Link) -> Outcome<(u64, bool)> {
    link.next(&["set"]).await?;
    let waiters = waiters(client, args).await;
    link.send("ready".to_owned())?;
    let awake = awake(waiters).await?;
    let (word, _) = link.next(&["down", "last"]).await?;
    link.send(format!("awake {awake}"))?;
    Ok((0, word == "last"))
}

async fn waiters<C: Client>(client: &C, args: &Args) -> JoinSet<Outcome<u64>> {
    let mut waiters = JoinSet::new();
    for _ in 0..args.tasks {
        let (client, name) = (client.clone(), args.name.clone());
        waiters.spawn(async move {
            client.wait(&name).await?;
            Ok(clock())
        });
    }
    sleep(SETTLED).await;
    waiters
}

/// When the last of them was awake; 0 if there are none.
async fn awake(mut waiters: JoinSet<Outcome<u64>>) -> Outcome<u64> {
    let mut last = 0;
    while let Some(awake) = waiters.join_next().await {
        last = last.max(awake??);
    }
    Ok(last)
}
