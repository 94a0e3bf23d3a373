//! Private servers and what the tests look at them with.

#[allow(dead_code)]
pub(crate) mod clock;
// Used whole by some of the tests, in part by others.
#[allow(dead_code)]
pub(crate) mod deployment;
#[allow(dead_code)]
pub(crate) mod fake;
// Each of these is used whole by scripts/chaos, in part here.
#[allow(dead_code)]
pub(crate) mod history;
#[allow(dead_code)]
pub(crate) mod log;
#[allow(dead_code)]
pub(crate) mod permissions;
#[allow(dead_code)]
pub(crate) mod process;
pub(crate) mod proxy;
#[allow(dead_code)]
pub(crate) mod server;
#[allow(dead_code)]
pub(crate) mod stage;
#[allow(dead_code)]
pub(crate) mod stall;

use std::{
    env, fs,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use leasehold::{Builder, Client};

use proxy::{Proxy, Which};
pub(crate) use server::Server;
pub(crate) use stall::Stopwatch;
use stall::Took;

/// With a short watchdog one attempt to connect is short, too: a busy machine may need more than one.
const CONNECTS: Duration = ms(20_000);

/// A client of that server with the settings of the test. It leaves nothing but locks on the server.
pub(crate) async fn client(server: &Server, settings: impl FnOnce(Builder) -> Builder) -> Client {
    settings(Client::builder().url(server.url()).announce(false).connect_timeout(CONNECTS))
        .connect()
        .await
        .expect("the private server answers")
}

/// A client with default settings.
pub(crate) async fn plain(server: &Server) -> Client {
    client(server, |builder| builder).await
}

/// A client of a user `u` of its own, with these rights.
pub(crate) async fn with_rights(server: &Server, rights: &[&str]) -> Client {
    server.set_user("u", &[&["on", ">p"], rights].concat());
    Client::builder().url(server.url_as("u", "p")).announce(false).connect().await.expect("let in")
}

/// Whether this server has rights of that kind: before 6.2 there are none for channels.
pub(crate) fn has_rights_like(rule: &str) -> bool {
    server::version() >= (6, 2) || !rule.starts_with('&')
}

/// A server that takes replicas at once.
pub(crate) fn master() -> Server {
    Server::with(&["--repl-diskless-sync-delay", "0"])
}

/// A replica that has all that its master has, and hears what comes next at once. `state=online` does not say that: the
/// master may hold back what it has to say for a second more.
pub(crate) async fn replica_of(server: &Server) -> Server {
    const PROBE: &str = "heard by the replica";
    let replica = Server::with(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
    let _: String = server.ask(&["SET", PROBE, "1"]);
    until("the replica to have it all", ms(20_000), || replica.exists(PROBE)).await;
    let _: u32 = server.ask(&["DEL", PROBE]);
    until("the replica to follow", ms(20_000), || !replica.exists(PROBE)).await;
    replica
}

/// A fault proxy before that server.
pub(crate) fn before(server: &Server) -> Proxy {
    Proxy::start(([127, 0, 0, 1], server.port()))
}

/// A client that reaches its server through that proxy.
pub(crate) async fn behind(proxy: &Proxy, settings: impl FnOnce(Builder) -> Builder) -> Client {
    settings(Client::builder().url(proxy.url()).announce(false).connect_timeout(CONNECTS))
        .connect()
        .await
        .expect("the proxy passes all on")
}

/// Loads a script of the lock into the server, so that no call of it is answered with NOSCRIPT, and says which it is.
pub(crate) fn script(server: &Server, name: &str) -> Which {
    let before: &[&str] = match name {
        "hand_over" => &["move"],
        "release" => &["rest"],
        "renew" => &[],
        "force_unlock" => &["forced", "ends"],
        "inspect" => &["holder", "ends"],
        _ => &["holder"],
    };
    script_of(server, before.iter().chain([&name]).map(|file| format!("lock/{file}")))
}

/// The script of these files of the primitives.
pub(crate) fn script_of(server: &Server, files: impl IntoIterator<Item = String>) -> Which {
    let files = files.into_iter().map(|file| format!("primitives/{file}"));
    let paths = ["redis/frame".to_owned()].into_iter().chain(files).map(|file| format!("src/{file}.lua"));
    let read = |path| fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR")));
    let source: String = paths.map(|path: String| read(path).expect("a script of the lock")).collect();
    Which::Script(server.ask(&["SCRIPT", "LOAD", &source]))
}

/// Waits for a condition, and fails the test when it does not come true in time, as far as the machine ran.
pub(crate) async fn until(what: &str, patience: Duration, mut is_true: impl FnMut() -> bool) {
    let started = Stopwatch::start();
    while !is_true() {
        let took = started.elapsed();
        assert!(took < patience, "not within {patience:?}, but {took}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits for a future, and fails the test when it does not end in time, as far as the machine ran; with how long it took.
pub(crate) async fn within<T>(what: &str, patience: Duration, work: impl Future<Output = T>) -> (T, Took) {
    let (started, mut work, mut left) = (Stopwatch::start(), pin!(work), patience);
    loop {
        if let Ok(done) = tokio::time::timeout(left, work.as_mut()).await {
            return (done, started.elapsed());
        }
        let took = started.elapsed();
        assert!(took < patience, "not within {patience:?}, but {took}: {what}");
        left = took.stalled + patience - took.elapsed;
    }
}

/// An error's message and all that is behind it, as programs print it.
pub(crate) fn chain(error: &leasehold::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Runs a test of this program in a process of its own, with that in its environment and all it prints shown.
pub(crate) fn in_a_process_of_its_own(test: &str, environment: &[(&str, Option<&str>)]) -> Output {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture"]);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.output().expect("it can be started again")
}

/// Polls a future `times` times, each time after whatever it waits for had time to happen, and drops it. True if it has ended.
pub(crate) async fn poll_and_drop(times: usize, work: impl Future) -> bool {
    let mut work = pin!(work);
    for _ in 0..times {
        if poll_once(work.as_mut()).is_ready() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    false
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future + ?Sized>(work: Pin<&mut F>) -> Poll<F::Output> {
    work.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a future once while the server is frozen, because the reply may otherwise arrive within that one poll.
pub(crate) fn begin<F: Future + ?Sized>(server: &Server, work: Pin<&mut F>) {
    server.freeze();
    let is_pending = poll_once(work).is_pending();
    server.thaw();
    assert!(is_pending, "it has ended without a reply");
}

/// Polls a future until a condition comes true, and not once more: whatever happens next happens without it.
pub(crate) async fn poll_until<F: Future>(what: &str, mut work: Pin<&mut F>, mut is_true: impl FnMut() -> bool) {
    let polled = || {
        assert!(poll_once(work.as_mut()).is_pending(), "it has ended before: {what}");
        is_true()
    };
    until(what, ms(5_000), polled).await;
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A runtime whose only worker also runs the tasks of its clients.
pub(crate) fn one_worker() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// Keeps the only worker busy with protected work. How many of its polls begin later than that; at most forty.
pub(crate) async fn late_polls<F: Future<Output = leasehold::Result<()>> + Send + 'static>(
    time: Duration,
    protect: impl FnOnce(Pin<Box<dyn Future<Output = ()> + Send>>) -> F,
) -> u32 {
    let (ends, late) = (Instant::now() + time, Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&late);
    let work = poll_fn(move |cx| {
        if Instant::now() > ends && counted.fetch_add(1, Ordering::SeqCst) >= 40 {
            return Poll::Ready(());
        }
        std::thread::sleep(ms(20));
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    let ended = tokio::spawn(protect(Box::pin(work))).await.expect("no panic");
    assert!(late.load(Ordering::SeqCst) > 1 || ended.is_err_and(|error| error.is_lost()), "it was not lost");
    late.load(Ordering::SeqCst)
}
