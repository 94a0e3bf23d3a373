//! Signals: those that end a wait, and those that the command gets.

use rustix::process::Signal;

use crate::{
    command::{Running, leasehold, wait_until},
    support::Server,
};

#[test]
fn signals_end_a_wait_and_leave_the_queue() {
    let server = Server::start();
    let (mut holder, _) = Running::begun(&server, &["--fair", "name", "-c", "echo held; read line"]);
    let queue = || server.ask::<u64>(&["LLEN", "redisson_lock_queue:{name}"]);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
        let waiter = Running::start(leasehold(&server, &["run", "--fair", "name", "true"]));
        wait_until("it is in the queue", || queue() == 1);
        waiter.signal(signal);
        assert_eq!(waiter.end().0, 128 + signal.as_raw(), "{signal:?}");
        assert_eq!(queue(), 0, "{signal:?}");
    }
    holder.write("\n");
    assert_eq!(holder.end().0, 0);
}

#[test]
fn the_command_gets_the_signals() {
    let server = Server::start();
    for name in ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH"] {
        let words = format!("trap 'echo got {name}; exit 3' {name}; echo begun; while :; do sleep 0.02; done");
        let (mut running, _) = Running::begun(&server, &["name", "-c", &words]);
        running.signal(number(name));
        assert_eq!(running.line(), format!("got {name}"));
        assert_eq!(running.end().0, 3);
    }
}

/// A command that is stopped keeps the lock: it may go on at any time.
#[test]
fn a_command_is_stopped_and_goes_on() {
    let server = Server::start();
    let (mut running, id) = Running::begun(&server, &["name", "-c", "echo $$; read line; exit 4"]);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next())
    };
    running.signal(Signal::TSTP);
    wait_until("it is stopped", || state() == Some('T'));
    assert!(server.exists("name"));
    running.signal(Signal::CONT);
    running.write("\n");
    assert_eq!(running.end().0, 4);
}

/// As `nohup` does it.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let server = Server::start();
    let this = env!("CARGO_BIN_EXE_leasehold");
    let mut command = std::process::Command::new("/bin/sh");
    let line = format!("trap '' HUP; exec {this} run name -c 'echo begun; read line; exit 3'");
    command.env("REDIS_URL", server.url()).args(["-c", &line]);
    let mut running = Running::start(command);
    assert_eq!(running.line(), "begun");
    running.signal(Signal::HUP);
    running.write("\n");
    assert_eq!(running.end().0, 3);
}

fn number(name: &str) -> Signal {
    match name {
        "INT" => Signal::INT,
        "TERM" => Signal::TERM,
        "HUP" => Signal::HUP,
        "QUIT" => Signal::QUIT,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        _ => Signal::WINCH,
    }
}
