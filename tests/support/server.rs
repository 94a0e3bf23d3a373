// A redis-server of one's own: free port, temporary folder, ended with its handle. It is the one that LEASEHOLD_SERVER names,
// which scripts/matrix does, or else the one on the PATH.

use std::{
    env,
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use redis::{Connection, FromRedisValue, RedisResult};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to start.
const START: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    child: Child,
    port: u16,
    dir: TempDir,
    args: Vec<String>,
    look: Look,
    /// Of its process, beside that of the test.
    environment: Vec<(String, String)>,
    is_down: bool,
    is_frozen: AtomicBool,
}

/// How the tests reach a server, whoever else may.
#[derive(Debug, Clone, Default)]
pub(crate) struct Look {
    /// Through its unix socket, where its port speaks TLS only.
    pub(crate) by_socket: bool,
    pub(crate) password: Option<String>,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::with(&[])
    }

    /// With more arguments for the server's command line.
    pub(crate) fn with(args: &[&str]) -> Server {
        Server::made(Look::default(), |port, dir| [usual(port, dir), owned(args)].concat())
    }

    /// With more variables in the environment of its process.
    pub(crate) fn within(environment: impl Into<Vec<(String, String)>>, args: &[&str]) -> Server {
        let args = |port, dir: &Path| [usual(port, dir), owned(args)].concat();
        Server::started(Look::default(), environment.into(), args)
    }

    /// With a whole command line of its own, for that port and that folder. Its socket is `redis.sock` in there.
    pub(crate) fn made(look: Look, args: impl Fn(u16, &Path) -> Vec<String>) -> Server {
        Server::started(look, Vec::new(), args)
    }

    fn started(look: Look, environment: Vec<(String, String)>, args: impl Fn(u16, &Path) -> Vec<String>) -> Server {
        let dir = TempDir::new().expect("a temporary folder");
        // Between finding a free port and using it somebody else may take it.
        for _ in 0..10 {
            let port = free_port();
            let args = args(port, dir.path());
            let mut child = spawn(&args, &environment);
            if answers(&mut child, dir.path()) {
                return Server {
                    child,
                    port,
                    dir,
                    args,
                    look,
                    environment,
                    is_down: false,
                    is_frozen: AtomicBool::new(false),
                };
            }
            end(&mut child);
        }
        panic!("no private server could be started");
    }

    /// On a port that another server had before.
    pub(crate) fn at(port: u16, args: impl Fn(&Path) -> Vec<String>) -> Server {
        let dir = TempDir::new().expect("a temporary folder");
        let (args, look) = (args(dir.path()), Look::default());
        let mut child = spawn(&args, &[]);
        assert!(answers(&mut child, dir.path()), "the port {port} is not free any more");
        Server {
            child,
            port,
            dir,
            args,
            look,
            environment: Vec::new(),
            is_down: false,
            is_frozen: AtomicBool::new(false),
        }
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
        socket_in(self.dir.path())
    }

    /// A connection that shares nothing with the code under test.
    pub(crate) fn raw(&self) -> Connection {
        self.try_raw().expect("the private server answers")
    }

    fn try_raw(&self) -> RedisResult<Connection> {
        let url = if self.look.by_socket { self.socket_url() } else { self.url() };
        let mut raw = redis::Client::open(url)?.get_connection()?;
        if let Some(password) = &self.look.password {
            redis::cmd("AUTH").arg(password).exec(&mut raw)?;
        }
        Ok(raw)
    }

    /// One command, by its words.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// One command that the server may refuse, or close the connection instead, as one does that becomes a replica.
    pub(crate) fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(word));
        command.query(&mut self.try_raw()?)
    }

    /// Before 6.2 everybody may use all channels, and there are no words for it.
    pub(crate) fn set_user(&self, user: &str, rules: &[&str]) {
        let rules = rules.iter().copied().filter(|rule| version() >= (6, 2) || *rule != "&*");
        let _: String = self.ask(&["ACL", "SETUSER", user].into_iter().chain(rules).collect::<Vec<_>>());
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

    /// How often a command was called. Before 7.0 those of two words count as their first.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let command = if version() >= (7, 0) { command } else { command.split('|').next().unwrap_or(command) };
        let info: String = self.ask(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        let line = info.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
    }

    pub(crate) fn freeze(&self) {
        self.is_frozen.store(true, Ordering::SeqCst);
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
        self.is_frozen.store(false, Ordering::SeqCst);
    }

    /// Whether it runs, as far as it lies with us: who asks one that does not would wait or fail.
    pub(crate) fn is_up(&self) -> bool {
        !self.is_down && !self.is_frozen.load(Ordering::SeqCst)
    }

    /// Ends the server as a crash would, and starts it again on the same port.
    pub(crate) fn restart(&mut self) {
        self.crash();
        self.revive();
    }

    pub(crate) fn crash(&mut self) {
        end(&mut self.child);
        self.is_down = true;
    }

    /// Loses what it had on disk; for a server that is down.
    pub(crate) fn forget(&self) {
        let kept = self.dir.path().join("appendonlydir");
        if kept.exists() {
            std::fs::remove_dir_all(kept).expect("our own folder");
        }
        let before_7 = self.dir.path().join("appendonly.aof");
        if before_7.exists() {
            std::fs::remove_file(before_7).expect("our own folder");
        }
    }

    pub(crate) fn revive(&mut self) {
        self.child = spawn(&self.args, &self.environment);
        assert!(answers(&mut self.child, self.dir.path()), "the server does not come back");
        (self.is_down, self.is_frozen) = (false, AtomicBool::new(false));
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

/// What every server is told, if nothing else is said: nothing is kept, nobody else gets in.
pub(crate) fn usual(port: u16, dir: &Path) -> Vec<String> {
    let (port, dir, socket) = (port.to_string(), dir.display().to_string(), socket_in(dir).display().to_string());
    let open = ["--port", &port, "--bind", "127.0.0.1", "--unixsocket", &socket];
    owned(&[&open[..], &["--dir", &dir, "--save", "", "--appendonly", "no"]].concat())
}

pub(crate) fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

pub(crate) fn socket_in(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

fn program() -> PathBuf {
    if let Some(named) = env::var_os("LEASEHOLD_SERVER") {
        return named.into();
    }
    let found = ["redis-server", "valkey-server"].into_iter().find(|name| is_on_path(name));
    found.expect("redis-server or valkey-server must be installed, see scripts/need-redis").into()
}

/// Major and minor, as in `Redis server v=7.0.15 ..` and `Valkey server v=9.1.2 ..`.
pub(crate) fn version() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let told = Command::new(program()).arg("--version").output().expect("the server can be started");
        let told = String::from_utf8_lossy(&told.stdout);
        let numbers = told.split_once("v=").expect("it says its version").1;
        let mut numbers = numbers.split('.').map(|number| number.parse().expect("a number"));
        (numbers.next().expect("major"), numbers.next().expect("minor"))
    })
}

fn spawn(args: &[String], environment: &[(String, String)]) -> Child {
    let mut command = Command::new(program());
    command
        .args(args)
        .envs(environment.iter().cloned())
        .stdout(Stdio::null())
        .spawn()
        .expect("the server can be started")
}

fn is_on_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// What Redisson calls a key or a channel that goes with this lock: it shares the slot of the lock, whose name may have a tag.
pub(crate) fn beside(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// For servers. Below the ports that systems give to connections of clients: one of those could take the port of a server that is down. The
/// bus of a cluster of old servers is 10,000 above.
const PORTS: Range<u16> = 11_000..21_000;

/// Each test program gets each port once, because a server that is down may want its port again.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(7919); // test programs that run at once begin at different ports
    loop {
        let number = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % u32::from(PORTS.end - PORTS.start);
        let port = PORTS.start + u16::try_from(number).expect("less than the number of ports");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Waits until the server speaks; false if it ends instead. Through its socket: a port may be somebody else's.
fn answers(child: &mut Child, dir: &Path) -> bool {
    let started = Instant::now();
    while started.elapsed() < START {
        if child.try_wait().expect("our own child").is_some() {
            return false;
        }
        let client = redis::Client::open(format!("redis+unix://{}", socket_in(dir).display())).expect("a good address");
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
