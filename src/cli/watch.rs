//! `leasehold watch`: what `list` or `status` says, again and again.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use leasehold::Client;
use nix::sys::signal::Signal;
use tokio::time::sleep;

use crate::{
    args::{Servers, Watch},
    exit::{self, Failure},
    found::{self, Found},
    signals::Signals,
};

/// The screen of its own, as other full-screen programs use it; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the first line, without a flicker: each line ends with the removal of what stood there before.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

/// The terminal gets its former screen back.
struct Screen;

impl Drop for Screen {
    fn drop(&mut self) {
        print!("{LEAVE}");
        let _ = io::stdout().flush();
    }
}

pub(crate) async fn watch(servers: &Servers, options: &Watch) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let client = servers.connect().await?;
    let is_screen = io::stdout().is_terminal();
    let _screen = is_screen.then(|| {
        print!("{ENTER}");
        Screen
    });
    let mut before = String::new();
    loop {
        let look = async {
            match found_now(&client, servers, options).await {
                Ok(found) => lines(&found),
                Err(failure) => format!("{}\n", failure.message), // the server may come back
            }
        };
        tokio::select! {
            text = look => {
                if is_screen {
                    draw(&title(options), &text)?;
                } else if text != before {
                    io::stdout().write_all(text.as_bytes())?;
                    before = text;
                }
            }
            signal = signals.next_end() => return Ok(ended_by(signal)),
        }
        io::stdout().flush()?;
        tokio::select! {
            () = sleep(options.every) => {}
            signal = signals.next_end() => return Ok(ended_by(signal)),
        }
    }
}

/// Ctrl-C is the usual end.
fn ended_by(signal: Signal) -> u8 {
    if signal == Signal::SIGINT { 0 } else { exit::of_signal(signal) }
}

async fn found_now(client: &Client, servers: &Servers, options: &Watch) -> Result<Vec<Found>, Failure> {
    if let Some(name) = &options.name {
        return Ok(found::status(client, name).await?.into_iter().collect());
    }
    let mut all = Vec::new();
    let keep = |found| {
        all.push(found);
        Ok(())
    };
    found::each(client, (servers.prefix(), "*"), keep).await?;
    all.sort_by(|one, two| one.name.cmp(&two.name));
    Ok(all)
}

fn title(options: &Watch) -> String {
    let what = options.name.as_deref().unwrap_or("all locks");
    format!("leasehold: {what}, every {}; Ctrl-C ends", found::seconds(options.every))
}

fn lines(all: &[Found]) -> String {
    let mut text = String::new();
    for found in all {
        for line in found.lines() {
            let _ = writeln!(text, "{:<30} {:<10} {line}", found.shown(), found.kind); // a string takes everything
        }
    }
    if text.is_empty() { "nothing is held\n".to_owned() } else { text }
}

fn draw(title: &str, text: &str) -> io::Result<()> {
    let (height, width) = size();
    let mut shown: Vec<_> = [title, ""].into_iter().chain(text.lines()).collect();
    let more = format!("and {} more", shown.len().saturating_sub(height));
    if shown.len() >= height {
        shown.truncate(height.saturating_sub(2));
        shown.push(&more);
    }
    let lines = shown.iter().map(|line| format!("{line:.width$}{REST_OF_LINE}\r\n"));
    write!(io::stdout(), "{HOME}{}{REST_OF_SCREEN}", lines.collect::<String>())
}

/// The lines and columns of the terminal.
fn size() -> (usize, usize) {
    terminal_size::terminal_size().map_or((24, 80), |(width, height)| (height.0.into(), width.0.into()))
}

/// The shortest time between two looks.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);
