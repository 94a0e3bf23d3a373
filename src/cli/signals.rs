//! The signals that this process passes on to the command, or that end its wait.

use std::{fs, future::poll_fn, io, task::Poll};

use nix::sys::signal::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

const FORWARDED: [Number; 9] = [
    Number::SIGINT,
    Number::SIGTERM,
    Number::SIGHUP,
    Number::SIGQUIT,
    Number::SIGUSR1,
    Number::SIGUSR2,
    Number::SIGWINCH,
    Number::SIGTSTP,
    Number::SIGCONT,
];

#[derive(Debug)]
pub(crate) struct Signals(Vec<(Number, Signal)>);

impl Signals {
    /// From now on, these signals do not end this process. Those that it ignores, as under `nohup`, stay ignored.
    pub(crate) fn listen() -> io::Result<Signals> {
        let ignored = ignored();
        let listened = FORWARDED.into_iter().filter(|number| ignored >> (*number as i32 - 1) & 1 == 0);
        let listen = |number: Number| Ok((number, signal(SignalKind::from_raw(number as i32))?));
        listened.map(listen).collect::<io::Result<_>>().map(Signals)
    }

    pub(crate) async fn next(&mut self) -> Number {
        poll_fn(|cx| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that ends a wait. While nothing runs, the others mean nothing.
    pub(crate) async fn next_end(&mut self) -> Number {
        loop {
            match self.next().await {
                Number::SIGTSTP => drop(nix::sys::signal::kill(nix::unistd::getpid(), Number::SIGSTOP)),
                Number::SIGWINCH | Number::SIGCONT => {}
                number => return number,
            }
        }
    }
}

/// A bit for each signal, as far as this system says it.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
