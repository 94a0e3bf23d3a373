//! What the system does to a process of the program: it refuses threads, or the program forks.

use std::{
    env, fs,
    os::unix::process::parent_id,
    path::{Path, PathBuf},
    process::{abort, exit},
    thread,
    time::Duration,
};

use leasehold::{Client, Error, blocking};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::support::{Server, Stopwatch, clock::preloaded, ms, process::Process};

const SOON: Duration = ms(5_000);
/// Read by `system.c`: while this file exists, no thread is started.
const NO_THREADS: &str = "LEASEHOLD_TEST_NO_THREADS";
/// The file that the forked process writes.
const REPORT: &str = "LEASEHOLD_TEST_REPORT";

fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Stopwatch::start();
    while !is_true() {
        assert!(started.elapsed() < 4 * SOON, "{what}");
        thread::sleep(ms(5));
    }
}

/// A test of this file, in a process that loads `system.c`.
fn run(test: &str, server: &Server, variable: &str, file: &Path) -> Process {
    let folder = file.parent().expect("it is in a folder");
    let library = preloaded("tests/support/system.c", folder).display().to_string();
    let file = file.display().to_string();
    Process::start_with(test, &server.url(), &[("LD_PRELOAD", &library), (variable, &file)])
}

fn path_of(variable: &str) -> PathBuf {
    env::var(variable).expect("started by another test").into()
}

#[test]
fn a_client_that_is_refused_threads_goes_on_when_it_gets_them() {
    let (server, folder) = (Server::start(), TempDir::new().expect("a temporary folder"));
    let mut process = run("interface::system::is_refused_threads", &server, NO_THREADS, &folder.path().join("refused"));
    until("it to end", || process.is_done());
}

/// Threads that are idle end at once, so that each look-up needs a new one.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).thread_keep_alive(ms(1)).enable_all().build().expect("a runtime")
}

/// The error, and all its causes.
fn words(error: &Error) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
#[ignore = "run by others, in a process of its own"]
fn is_refused_threads() {
    let (refused, runtime) = (path_of(NO_THREADS), runtime());
    let current = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let url = Process::url().replace("127.0.0.1", "localhost"); // a name, which is looked up for each connection
    let mut raw = redis::Client::open(Process::url()).and_then(|client| client.get_connection()).expect("it replies");
    let client = runtime.block_on(Client::builder().url(&url).watchdog(ms(5_000)).connect()).expect("it replies");
    let guard = runtime.block_on(client.mutex("held").lock()).expect("free");
    fs::write(&refused, "").expect("a file");
    let killed = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query::<u32>(&mut raw).expect("it replies");
    assert!(killed > 0);
    let known = runtime.block_on(Client::builder().url(&url).connect()).expect_err("it has no thread for the look-up");
    assert!(known.is_unavailable() && words(&known).contains("refuses a thread"), "{}", words(&known));
    let own = runtime.block_on(Client::builder().url(&url).own_thread(true).connect()).expect_err("no thread");
    assert!(own.is_unavailable() && words(&own).contains("cannot be started"), "{}", words(&own));
    let lazy = current.block_on(async { Client::builder().url(&url).connect_lazy() }).expect_err("no thread");
    assert!(lazy.is_unavailable() && words(&lazy).contains("cannot be started"), "{}", words(&lazy));
    let blocked = blocking::Client::connect(&url).expect_err("no thread");
    assert!(blocked.is_unavailable(), "{}", words(&blocked));
    thread::sleep(ms(500)); // several attempts to connect
    fs::remove_file(&refused).expect("it is there");
    runtime.block_on(async {
        tokio::time::timeout(SOON, guard.check()).await.expect("in time").expect("held");
        let other = tokio::time::timeout(SOON, client.mutex("other").lock()).await.expect("in time").expect("free");
        other.unlock().await.expect("held");
        guard.unlock().await.expect("held");
        client.close().await.expect("nothing is held");
    });
}

#[test]
fn calls_in_a_forked_process_end_at_once() {
    let (server, folder) = (Server::start(), TempDir::new().expect("a temporary folder"));
    let report = folder.path().join("report");
    // If a thread of the client is inside its code at the fork, the child may hang: the common mistakes say so. That is rare.
    for _ in 0..3 {
        let mut process = run("interface::system::forks", &server, REPORT, &report);
        let words = || fs::read_to_string(&report).unwrap_or_default();
        until("the child to end, or the parent", || !words().is_empty() || process.is_done());
        until("the parent to end", || process.is_done());
        if words() == "done" {
            return;
        }
        let _ = fs::remove_file(&report);
    }
    panic!("three children hung");
}

#[test]
#[ignore = "run by others, in a process of its own"]
fn forks() {
    let (report, runtime) = (path_of(REPORT), runtime());
    let client = runtime.block_on(Client::connect(&Process::url())).expect("it replies");
    let guard = runtime.block_on(client.mutex("held").lock()).expect("free");
    let threads = blocking::Client::connect(&Process::url()).expect("it replies");
    let (lost, kept) = (threads.mutex("lost").lock().expect("free"), threads.mutex("kept").lock().expect("free"));
    if parent_id() == 0 {
        let hung = report.clone();
        thread::spawn(move || {
            thread::sleep(SOON);
            fs::write(hung, "hung").expect("a file");
            abort();
        });
        let current = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let calls = current.block_on(async {
            let calls = [client.mutex("x").lock().await.map(drop), guard.check().await, client.ping().await];
            let more = [guard.unlock().await, client.semaphore("y").set_permits(1).await, client.close().await];
            [calls, more]
        });
        for call in calls.into_iter().flatten() {
            let error = call.expect_err("it has no connection");
            assert!(error.is_unavailable() && error.to_string().contains("forked"), "{error}");
        }
        drop(lost);
        let error = threads.mutex("x").lock().expect_err("it has no thread");
        assert!(error.to_string().contains("forked"), "{error}");
        blocking::Client::connect(&Process::url()).expect_err("the same");
        fs::write(&report, "done").expect("a file");
        exit(0);
    }
    until("the child to end", || report.exists());
    runtime.block_on(async {
        guard.unlock().await.expect("it is the parent's");
        client.close().await.expect("nothing is held");
    });
    lost.unlock().expect("it is the parent's");
    kept.unlock().expect("it is the parent's");
}
