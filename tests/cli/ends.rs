//! The lock is lost, or this process dies: what becomes of the command.

use std::{thread, time::Instant};

use rustix::process::Signal;

use crate::{
    command::{Running, code, lives, wait_until},
    support::{Server, ms},
};

/// A command with a child of its own, which prints both ids.
const FAMILY: &str = "sleep 60 & echo $$ $!; wait";
/// The same, and neither ends by a TERM.
const STUBBORN: &str =
    "trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & echo $$ $!; while :; do sleep 0.05; done";

fn ids(line: &str) -> [String; 2] {
    let (command, child) = line.split_once(' ').expect("two ids");
    [command.to_owned(), child.to_owned()]
}

/// The renewals do not arrive. All processes of the command are gone before the lease is over.
#[test]
fn nothing_runs_when_another_may_acquire_the_lock() {
    for (command, lease) in [(FAMILY, "2"), (STUBBORN, "2")] {
        let server = Server::start();
        let (running, line) = Running::begun(&server, &["--lease", lease, "name", "-c", command]);
        let all = ids(&line);
        while server.exists("name") {
            thread::sleep(ms(1));
        }
        let left: Vec<_> = all.iter().filter(|id| lives(id)).collect();
        assert!(left.is_empty(), "{lease}: {left:?} of {all:?} live, and the lock is free");
        assert_eq!(running.end().0, 73);
    }
}

/// Also if the command was told before to end, and if its family holds another lock.
#[test]
fn nothing_runs_at_the_end_of_the_lease_whatever_came_before() {
    let cases: [&[&str]; 2] = [
        &["--lease", "2", "--max-hold", "500ms", "-k", "30s", "name", "-c", STUBBORN],
        &["--lease", "2", "name", "--", env!("CARGO_BIN_EXE_leasehold"), "run", "other", "-c", STUBBORN],
    ];
    for arguments in cases {
        let server = Server::start();
        let (running, line) = Running::begun(&server, arguments);
        while server.exists("name") {
            thread::sleep(ms(1));
        }
        assert!(ids(&line).iter().all(|id| !lives(id)), "{arguments:?}: somebody lives, and the lock is free");
        assert_eq!(running.end().0, 73);
    }
}

/// A signal without a name.
#[test]
fn a_command_that_a_realtime_signal_ends() {
    let server = Server::start();
    assert_eq!(code(&server, &["name", "-c", "kill -34 $$"]), 128 + 34);
    assert!(!server.exists("name"));
}

/// A process that was there before is none of the command.
#[test]
fn children_of_the_shell_that_became_leasehold_do_not_count() {
    let server = Server::start();
    let began = Instant::now();
    let line = format!("sleep 20 > /dev/null & exec {} run name true", env!("CARGO_BIN_EXE_leasehold"));
    let mut command = std::process::Command::new("/bin/sh");
    command.env("REDIS_URL", server.url()).args(["-c", &line]);
    assert_eq!(Running::start(command).end(), (0, String::new()));
    assert!(began.elapsed() < ms(10_000));
}

/// Each starts another and ends, and none ends by a TERM.
#[test]
fn processes_that_replace_each_other() {
    let server = Server::start();
    let file = server.folder().join("ring");
    let ring = format!("trap '' TERM; sleep 0.01; [ $1 = 1000 ] || sh {} $(($1 + 1)) & exit", file.display());
    std::fs::write(&file, ring).expect("our own folder");
    let begin = format!("for n in 1 2 3; do sh {} 1 & done; echo begun", file.display());
    let (running, _) = Running::begun(&server, &["--lease", "2", "name", "-c", &begin]);
    assert!(server.exists("name"), "the family lives");
    assert_eq!(running.end().0, 73);
    assert!(!server.exists("name"));
}

/// A process in a session of its own is no part of the work.
#[test]
fn a_daemon_does_not_hold_the_lock() {
    let server = Server::start();
    let began = Instant::now();
    assert_eq!(code(&server, &["name", "-c", "setsid sleep 20 > /dev/null 2>&1 & exit 0"]), 0);
    assert!(began.elapsed() < ms(10_000));
    assert!(!server.exists("name"));
}

#[test]
fn a_lock_that_was_deleted_ends_the_command() {
    let server = Server::start();
    // The fixed lease makes no difference but this: the loss is noticed at the next renewal of the watchdog, after 9 s.
    let (running, line) = Running::begun(&server, &["-k", "200ms", "--lost-exit-code", "70", "name", "-c", STUBBORN]);
    let _: u64 = server.ask(&["DEL", "name"]);
    assert_eq!(running.end().0, 70);
    assert!(ids(&line).iter().all(|id| !lives(id)));
}

#[test]
fn a_loss_can_be_ignored() {
    let server = Server::start();
    assert_eq!(code(&server, &["--on-lost", "ignore", "--lease", "300ms", "name", "-c", "sleep 0.6; exit 0"]), 73);
}

/// The lock is free when the lease is over, not before: nobody knows whether the command has ended.
#[test]
#[cfg(target_os = "linux")]
fn the_command_dies_with_a_parent_that_is_killed() {
    let server = Server::start();
    let (running, line) = Running::begun(&server, &["name", "-c", "echo $$; sleep 60"]);
    running.signal(Signal::KILL);
    wait_until("the command is dead", || !lives(&line));
    assert!(server.pttl("name") > 10_000, "{}", server.pttl("name"));
}

/// A process that the command leaves behind still works under the lock.
#[test]
fn the_lock_is_held_until_all_descendants_are_gone() {
    let server = Server::start();
    let began = Instant::now();
    let (running, _) = Running::begun(&server, &["name", "-c", "echo begun; sleep 1 > /dev/null & exit 5"]);
    assert!(server.exists("name"));
    assert_eq!(running.end().0, 5);
    assert!(began.elapsed() >= ms(1_000));
    assert!(!server.exists("name"));
}
