//! The line on a terminal that shows the holder during the wait.

use std::{
    io::{IsTerminal, Write, stderr},
    time::{Duration, Instant},
};

use leasehold::Client;
use tokio::time::{MissedTickBehavior, interval_at, sleep};

use crate::{args::Run, exit, found};

/// Nobody wants to read about a shorter wait.
const FIRST: Duration = Duration::from_millis(300);

/// The line is gone when this is dropped.
#[derive(Debug)]
struct Line;

impl Line {
    fn write(text: &str) {
        let width = terminal_size::terminal_size_of(stderr()).map_or(80, |(width, _)| width.0.saturating_sub(1).into());
        let _ = write!(stderr(), "\r\x1b[K{text:.width$}"); // a terminal that is gone is no reason to stop
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        Line::write("");
    }
}

/// Shows the holder of the lock, until it is dropped. Only on a terminal; elsewhere once, with `--verbose`.
pub(crate) async fn show_wait(client: &Client, run: &Run) -> std::convert::Infallible {
    let name = &run.name;
    if !stderr().is_terminal() {
        if run.verbose {
            sleep(FIRST).await;
            exit::say(format_args!("waiting: {}", found::who_has(client, name).await));
        }
        return std::future::pending().await;
    }
    let since = Instant::now();
    let mut ticks = interval_at(tokio::time::Instant::now() + FIRST, Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let _line = Line;
    loop {
        let who = found::who_has(client, name).await;
        Line::write(&format!("leasehold: waiting for {} s: {who}", since.elapsed().as_secs()));
        ticks.tick().await;
    }
}
