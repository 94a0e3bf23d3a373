//! A terminal, and a shell that has jobs.

use std::{
    io::Write,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    command::{Running, lives, wait_until},
    support::Server,
};

const THIS: &str = env!("CARGO_BIN_EXE_leasehold");

/// An interactive shell in a terminal. What is written to it is typed there.
struct Shell {
    running: Running,
}

impl Shell {
    /// One in which this line was typed, and the id of the command that has begun.
    fn begun(server: &Server, line: &str) -> (Shell, String) {
        let mut command = Command::new("script");
        command
            // A shell that began with an ignored signal passes that on, and these tests may run in the background.
            .args(["-qec", "env --default-signal bash --norc --noprofile -i", "/dev/null"])
            .env("REDIS_URL", server.url())
            .env("PS1", "")
            .env("TERM", "dumb");
        let mut shell = Shell { running: Running::start(command) };
        shell.type_in(line);
        shell.type_in("\n");
        let id = shell.read_to("begun ");
        (shell, id)
    }

    fn type_in(&mut self, text: &str) {
        let input = self.running.child.stdin.as_mut().expect("it is piped");
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).expect("the terminal is there");
    }

    /// Reads up to a line that begins with this word, and returns the rest of that line.
    fn read_to(&mut self, word: &str) -> String {
        loop {
            let line = self.running.line();
            if let Some(rest) = line.trim().strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }
}

/// All of them with their groups and states.
fn processes() -> String {
    let all = Command::new("ps").args(["-eo", "pid,ppid,pgid,tpgid,stat,ignored,args"]).output();
    all.map_or_else(|error| error.to_string(), |all| String::from_utf8_lossy(&all.stdout).into_owned())
}

#[test]
fn ctrl_c_ends_the_command_and_the_script() {
    let server = Server::start();
    let line = format!("for n in 1 2 3; do {THIS} run name -c 'echo begun $$; sleep 60'; done; echo ended");
    let (mut shell, id) = Shell::begun(&server, &line);
    // A key that is typed while a program changes the terminal may be lost, so it is typed until something happens.
    let mut typed = Instant::now();
    shell.type_in("\x03");
    wait_until(&format!("the command ends: {}", processes()), || {
        if typed.elapsed() > Duration::from_secs(1) {
            typed = Instant::now();
            shell.type_in("\x03");
        }
        !lives(&id)
    });
    wait_until("the lock is free", || !server.exists("name"));
    shell.type_in("echo code $?\n");
    assert_eq!(shell.read_to("code "), "130", "the loop does not go on");
}

/// Ctrl-Z, `bg` and `fg`, with a command that reads from the terminal, and in a pipeline.
#[test]
fn a_job_is_stopped_and_goes_on() {
    let server = Server::start();
    let line = format!("{THIS} run name -c 'echo begun $$; read line; echo got $line' | cat; echo ended");
    let (mut shell, id) = Shell::begun(&server, &line);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next())
    };
    shell.type_in("\x1a");
    wait_until("it is stopped", || state() == Some('T'));
    shell.type_in("fg\n");
    wait_until("it goes on", || state() == Some('S'));
    shell.type_in("some words\n");
    assert_eq!(shell.read_to("got "), "some words");
    wait_until("the lock is free", || !server.exists("name"));
    shell.type_in("exit\n");
}
