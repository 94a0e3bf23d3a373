//! From `unlock()` called to `lock()` returned by one who was already waiting. Two sides take turns; neither asks again
//! before the other has it, so that a waiter who is asleep when the lock is released is not passed over.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{Args, Client, Lock, Outcome, clock};

/// To the other side: lines, in memory or through the standard streams.
pub(crate) struct Link {
    inbox: UnboundedReceiver<String>,
    outbox: Outbox,
}

enum Outbox {
    Memory(UnboundedSender<String>),
    Stdout,
}

/// Both sides in this process.
pub(crate) async fn inside<C: Client>(client: &C, args: &Args) -> Outcome<String> {
    let ((to_one, from_other), (to_other, from_one)) = (unbounded_channel(), unbounded_channel());
    let one = Link { inbox: from_other, outbox: Outbox::Memory(to_other) };
    let other = Link { inbox: from_one, outbox: Outbox::Memory(to_one) };
    let one = tokio::spawn(side(client.clone(), args.clone(), one, true));
    let other = tokio::spawn(side(client.clone(), args.clone(), other, false));
    let (one, other) = tokio::try_join!(one, other)?;
    Ok(report(&[one?, other?].concat()))
}

/// One side; whoever started us carries the lines to the other.
pub(crate) async fn half<C: Client>(client: &C, args: &Args) -> Outcome<String> {
    Ok(report(&side(client.clone(), args.clone(), Link::of_streams(), args.first).await?))
}

pub(crate) fn report(times: &[u64]) -> String {
    format!(r#""times":{times:?}"#)
}

async fn side<C: Client>(client: C, args: Args, mut link: Link, first: bool) -> Outcome<Vec<u64>> {
    let opens = Instant::now() + args.warm_up;
    let (mut lock, mut times) = (client.lock(&args.name), Vec::new());
    if first {
        lock.lock().await?;
        link.send("had".to_owned())?;
    } else {
        link.hear("had").await?;
    }
    for turn in 0_u32.. {
        let last = if (turn % 2 == 0) == first {
            give(&mut lock, &mut link, turn, opens + args.seconds).await?
        } else {
            let (time, last) = take(&mut lock, &mut link).await?;
            if Instant::now() >= opens {
                times.push(time);
            }
            last
        };
        if last {
            break;
        }
    }
    Ok(times)
}

/// The holder: waits until the other asks, and a while. Whether it was the last time.
async fn give(lock: &mut impl Lock, link: &mut Link, turn: u32, closes: Instant) -> Outcome<bool> {
    link.hear("ask").await?;
    tokio::time::sleep(patience(turn)).await;
    let word = if Instant::now() < closes { "left" } else { "last" };
    let left = clock();
    lock.unlock().await?;
    link.send(format!("{word} {left}"))?;
    link.hear("had").await?;
    Ok(word == "last")
}

/// The waiter: how long it took from the release on, and whether it was the last time.
async fn take(lock: &mut impl Lock, link: &mut Link) -> Outcome<(u64, bool)> {
    link.send("ask".to_owned())?;
    lock.lock().await?;
    let had = clock();
    link.send("had".to_owned())?;
    let line = link.inbox.recv().await.ok_or("the other side has gone")?;
    let (word, left) = line.split_once(' ').ok_or_else(|| format!("not a release: {line}"))?;
    let time = had.saturating_sub(left.parse()?);
    if word == "last" {
        lock.unlock().await?;
    }
    Ok((time, word == "last"))
}

/// From 3 to 103 ms, evenly spread: the release must not keep step with somebody's polling.
pub(crate) fn patience(turn: u32) -> Duration {
    Duration::from_micros(3_000 + (f64::from(turn) * 0.618_033_988_75 % 1.0 * 100_000.0) as u64)
}

impl Link {
    /// Through the standard streams.
    pub(crate) fn of_streams() -> Link {
        let (lines, inbox) = unbounded_channel();
        std::thread::spawn(move || {
            std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        Link { inbox, outbox: Outbox::Stdout }
    }

    /// The next line with one of these first words; others are not for us.
    pub(crate) async fn next(&mut self, words: &[&str]) -> Outcome<(String, u64)> {
        loop {
            let line = self.inbox.recv().await.ok_or("the other side has gone")?;
            let (word, number) = line.split_once(' ').unwrap_or((&line, "0"));
            if words.contains(&word) {
                return Ok((word.to_owned(), number.parse()?));
            }
        }
    }

    pub(crate) fn send(&self, line: String) -> Outcome<()> {
        match &self.outbox {
            Outbox::Memory(outbox) => Ok(outbox.send(line)?),
            Outbox::Stdout => Ok(writeln!(std::io::stdout(), "{line}")?),
        }
    }

    async fn hear(&mut self, wanted: &str) -> Outcome<()> {
        let line = self.inbox.recv().await.ok_or("the other side has gone")?;
        if line == wanted { Ok(()) } else { Err(format!("{line} instead of {wanted}").into()) }
    }
}
