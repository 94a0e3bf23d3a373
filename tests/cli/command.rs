//! Starts the command, and waits for what it does.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::support::Server;

const LIMIT: Duration = Duration::from_secs(30);

/// `leasehold` with that server.
pub(crate) fn leasehold(server: &Server, arguments: &[&str]) -> Command {
    at(&server.url(), arguments)
}

/// `leasehold` with that URL.
pub(crate) fn at(url: &str, arguments: &[&str]) -> Command {
    // What a shell starts in the background ignores these signals, and passes that on.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,QUIT", env!("CARGO_BIN_EXE_leasehold")]);
    command.env_clear().env("PATH", std::env::var_os("PATH").expect("it is set")).env("REDIS_URL", url).args(arguments);
    command
}

pub(crate) fn output(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().expect("it starts")
}

/// The exit code of `leasehold run` with these arguments.
pub(crate) fn code(server: &Server, arguments: &[&str]) -> i32 {
    let output = output(leasehold(server, &[&["run"], arguments].concat()));
    output.status.code().expect("no signal ends it")
}

/// One that runs. It ends with this value.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        Running { child, lines }
    }

    /// `leasehold run` with these arguments, once its command has written its first line.
    pub(crate) fn begun(server: &Server, arguments: &[&str]) -> (Running, String) {
        let mut running = Running::start(leasehold(server, &[&["run"], arguments].concat()));
        let line = running.line();
        (running, line)
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it is text");
        line.trim_end().to_owned()
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.child.stdin.take().expect("it is written to once").write_all(text.as_bytes()).expect("somebody reads");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Its exit code, and what it has written since.
    pub(crate) fn end(mut self) -> (i32, String) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("it is text");
        let code = self.child.wait().expect("it was started").code();
        (code.expect("no signal ends it"), rest.trim_end().to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "not in {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn lives(id: &str) -> bool {
    let id = Pid::from_raw(id.parse().expect("an id")).expect("not zero");
    let is_zombie = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
    };
    test_kill_process(id).is_ok() && !is_zombie()
}
