// A redis-server of one's own: free port, temporary folder, ended with its handle.

use std::{
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use redis::{Connection, FromRedisValue};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to start.
const START: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    child: Child,
    port: u16,
    dir: TempDir,
    args: Vec<String>,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::with(&[])
    }

    /// With more arguments for the server's command line.
    pub(crate) fn with(args: &[&str]) -> Server {
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        let dir = TempDir::new().expect("a temporary folder");
        // Between finding a free port and using it somebody else may take it.
        for _ in 0..5 {
            let port = free_port();
            let mut child = spawn(port, dir.path(), &args);
            if answers(&mut child, port) {
                return Server { child, port, dir, args };
            }
            end(&mut child);
        }
        panic!("no private server could be started");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    pub(crate) fn socket_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where it keeps what it writes.
    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// A connection that shares nothing with the code under test.
    pub(crate) fn raw(&self) -> Connection {
        let client = redis::Client::open(self.url()).expect("a good URL");
        client.get_connection().expect("the private server answers")
    }

    /// One command, by its words.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(word));
        command.query(&mut self.raw()).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The fields of a lock: hold id to count.
    pub(crate) fn lock(&self, name: &str) -> Vec<(String, u32)> {
        self.ask(&["HGETALL", name])
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.ask(&["EXISTS", name])
    }

    /// Milliseconds left; -1 without an end, -2 without the key.
    pub(crate) fn pttl(&self, name: &str) -> i64 {
        self.ask(&["PTTL", name])
    }

    pub(crate) fn channels(&self) -> Vec<String> {
        self.ask(&["PUBSUB", "CHANNELS"])
    }

    /// How often a command was called.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info: String = self.ask(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        let line = info.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
    }

    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends the server as a crash would, and starts it again on the same port.
    pub(crate) fn restart(&mut self) {
        self.crash();
        self.revive();
    }

    pub(crate) fn crash(&mut self) {
        end(&mut self.child);
    }

    /// Loses what it had on disk; for a server that is down.
    pub(crate) fn forget(&self) {
        let kept = self.dir.path().join("appendonlydir");
        if kept.exists() {
            std::fs::remove_dir_all(kept).expect("our own folder");
        }
    }

    pub(crate) fn revive(&mut self) {
        self.child = spawn(self.port, self.dir.path(), &self.args);
        assert!(answers(&mut self.child, self.port), "the server does not come back");
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(id, signal).expect("our own server");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn spawn(port: u16, dir: &Path, args: &[String]) -> Child {
    let program = ["redis-server", "valkey-server"].into_iter().find(|name| is_on_path(name));
    let program = program.expect("redis-server or valkey-server must be installed, see scripts/need-redis");
    Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(dir)
        .arg("--unixsocket")
        .arg(dir.join("redis.sock"))
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .expect("the server can be started")
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Waits until the server speaks; false if it ends instead.
fn answers(child: &mut Child, port: u16) -> bool {
    let started = Instant::now();
    while started.elapsed() < START {
        if child.try_wait().expect("our own child").is_some() {
            return false;
        }
        let client = redis::Client::open(("127.0.0.1", port)).expect("a good address");
        match client.get_connection().and_then(|mut raw| redis::cmd("PING").query::<String>(&mut raw)) {
            Ok(_) => return true,
            Err(error) if format!("{error}").contains("NOAUTH") => return true,
            Err(error) if error.code() == Some("NOAUTH") => return true,
            Err(_) => sleep(Duration::from_millis(5)),
        }
    }
    false
}

fn end(child: &mut Child) {
    let _ = child.kill(); // also ends a frozen one
    let _ = child.wait();
}
