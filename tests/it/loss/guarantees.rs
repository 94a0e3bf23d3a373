//! Rows of docs/guarantees.md that no other file is about: a holder's process ends or stands still, the server ends a
//! lease too early or too late, it refuses for now.

use std::{
    env,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, Guard, Lost, Owner};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinHandle;

use crate::support::{Server, chain, client, ms, plain, until, within};

const LEASE: Duration = ms(1_500);
/// What a busy machine may add.
const LATE: Duration = ms(1_000);
/// A process of this test binary may need that long to start.
const START: Duration = ms(20_000);

/// Tells a child process where its server is.
const URL: &str = "LEASEHOLD_TEST_URL";

/// This binary run again, in which only [`holder`] runs. Ends with its handle.
struct Holder(Child);

impl Holder {
    async fn start(server: &Server) -> Holder {
        let mut command = Command::new(env::current_exe().expect("this test binary"));
        command.args(["--exact", "loss::guarantees::holder", "--ignored"]).env(URL, server.url()).stdout(Stdio::null());
        let child = command.spawn().expect("it runs already");
        until("the child to hold the lock", START, || server.exists("x")).await;
        Holder(child)
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(id, signal).expect("our own child");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill(); // also ends a stopped one
        let _ = self.0.wait();
    }
}

/// Not a test: what the child process does. It holds `x`, and says when it is told that it does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by others, in a process of its own"]
async fn holder() {
    let url = env::var(URL).expect("started by another test");
    let client = Client::builder().url(&url).watchdog(LEASE).connect().await.expect("the server is there");
    let guard = client.lock("x").lock().await.expect("free");
    let lost = guard.lost().await;
    let server = redis::Client::open(url).expect("a good URL");
    let mut raw = server.get_connection().expect("the server is there");
    redis::cmd("SET").arg("told").arg(lost.to_string()).exec(&mut raw).expect("answered");
}

async fn waiter(client: &Client) -> JoinHandle<leasehold::Result<Guard>> {
    let lock = client.lock("x").owner(&Owner::new());
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(2_000), || client.stats().total.refused >= 2).await;
    waiting
}

/// Nobody renews `x` any more: the waiter has it when its lease has ended, not before, and soon then.
async fn has_it_when_the_lease_ends(server: &Server, waiting: JoinHandle<leasehold::Result<Guard>>) -> Guard {
    let (asked, left) = (Instant::now(), server.pttl("x"));
    let left = ms(left.try_into().expect("it is still there"));
    assert!(!waiting.is_finished() && !left.is_zero());
    let (taken, _) = within("the lease to end", left + LATE, waiting).await;
    // The server counts in whole milliseconds.
    assert!(asked.elapsed() + ms(2) >= left, "{:?} before its end", left - asked.elapsed());
    taken.expect("no panic").expect("free")
}

#[tokio::test]
async fn a_killed_holder_is_replaced_when_its_lease_ends() {
    let server = Server::start();
    let holder = Holder::start(&server).await;
    let client = plain(&server).await;
    let waiting = waiter(&client).await;
    drop(holder);
    has_it_when_the_lease_ends(&server, waiting).await.unlock().await.expect("ours");
    assert!(!server.exists("told"));
}

#[tokio::test]
async fn a_holder_that_stands_still_is_replaced_when_its_lease_ends_and_told_when_it_runs_again() {
    let server = Server::start();
    let holder = Holder::start(&server).await;
    let client = plain(&server).await;
    let waiting = waiter(&client).await;
    holder.signal(Signal::STOP);
    let taken = has_it_when_the_lease_ends(&server, waiting).await;
    assert!(!server.exists("told"), "it stands still");
    holder.signal(Signal::CONT);
    until("it to be told", LATE, || server.exists("told")).await;
    taken.unlock().await.expect("left alone");
}

#[tokio::test]
async fn a_guard_dropped_after_its_runtime_leaves_the_lock_for_the_rest_of_its_lease() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let settings = |builder: Builder| builder.watchdog(LEASE).own_thread(false);
    let address = server.url();
    let taking = runtime.spawn(async move {
        let client = settings(Client::builder().url(address)).connect().await.expect("the private server answers");
        client.lock("x").lock().await.expect("free")
    });
    let guard = taking.await.expect("no panic");
    let client = plain(&server).await;
    let waiting = waiter(&client).await;
    runtime.shutdown_background();
    drop(guard);
    has_it_when_the_lease_ends(&server, waiting).await.unlock().await.expect("ours");
}

/// What a server whose clock jumps ahead does to a key: its end is nearer than it said.
#[tokio::test]
async fn a_lease_that_the_server_ends_early_breaks_until_the_next_renewal() {
    let server = Server::start();
    let (holder, other) = (client(&server, |builder| builder.watchdog(ms(4_500))).await, plain(&server).await);
    let guard = holder.lock("x").lock().await.expect("free");
    let _: u32 = server.ask(&["PEXPIRE", "x", "1"]);
    let (taken, _) = within("it to end", LATE, other.lock("x").lock()).await;
    let taken = taken.expect("free");
    assert!(!guard.is_lost() && !guard.remaining().is_zero(), "both are certain");
    let (lost, _) = within("the next renewal", ms(1_500) + LATE, guard.lost()).await;
    assert_eq!(lost, Lost::Removed);
    taken.unlock().await.expect("left alone");
}

/// What a server whose clock jumps back does to a key: its end is farther than it said. The client of the lost hold releases it.
#[tokio::test]
async fn a_lease_that_the_server_would_end_late_is_released_when_it_is_lost() {
    let server = Server::start();
    let (holder, other) = (plain(&server).await, plain(&server).await);
    let guard = holder.lock("x").lease(ms(500)).lock().await.expect("free");
    let _: u32 = server.ask(&["PEXPIRE", "x", "60000"]);
    let waiting = waiter(&other).await;
    let (lost, _) = within("the holder's own end", ms(500) + LATE, guard.lost()).await;
    assert_eq!(lost, Lost::Expired);
    let (taken, _) = within("the release", LATE, waiting).await;
    taken.expect("no panic").expect("free").unlock().await.expect("ours");
}

fn set(server: &Server, setting: &str, value: &str) {
    let _: String = server.ask(&["CONFIG", "SET", setting, value]);
}

#[tokio::test]
async fn without_memory_a_lock_is_renewed_and_given_back_but_not_taken() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(LEASE).outage_timeout(ms(300))).await;
    let guard = client.lock("x").lock().await.expect("free");
    set(&server, "maxmemory", "1");
    let asked = client.lock("y").lock().await.expect_err("there is no room");
    assert!(asked.is_unavailable() && chain(&asked).contains("OOM"), "{asked:?}");
    let renewals = client.stats().total.renewals;
    until("two renewals", LEASE + LATE, || client.stats().total.renewals >= renewals + 2).await;
    guard.unlock().await.expect("ours to the end");
    assert!(!server.exists("x"));
}

/// An evicted key: that is why no lock should be on a server with such a policy.
#[tokio::test]
async fn an_evicted_lock_is_noticed_at_the_next_renewal() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(LEASE)).await;
    let guard = client.lock("x").lock().await.expect("free");
    set(&server, "maxmemory-policy", "allkeys-random");
    set(&server, "maxmemory", "1");
    let (lost, _) = within("to be told", LEASE / 3 + LATE, guard.lost()).await;
    assert_eq!(lost, Lost::Removed);
    set(&server, "maxmemory", "0");
    let next = client.lock("x").owner(&Owner::new());
    next.lock().await.expect("free").unlock().await.expect("ours");
}

#[tokio::test]
async fn a_server_read_only_for_a_while_costs_a_holder_nothing_and_others_their_patience_for_outages() {
    const OUTAGE: Duration = ms(600);
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(6_000)).outage_timeout(OUTAGE)).await;
    let guard = client.lock("x").lock().await.expect("free");
    let _: String = server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let (ended, took) = within("giving up", OUTAGE + ms(1_000) + LATE, client.lock("y").lock()).await;
    assert!(matches!(ended, Err(Error::Unavailable { .. })) && took >= OUTAGE, "{ended:?} after {took:?}");
    // A replica is sent nothing: it is asked whether it is the master again, until it is.
    let asked = server.calls("role");
    until("it to be asked what it is", ms(3_000), || server.calls("role") >= asked + 2).await;
    let _: String = server.ask(&["REPLICAOF", "NO", "ONE"]);
    let renewals = client.stats().total.renewals;
    until("a renewal", ms(3_000), || client.stats().total.renewals > renewals).await;
    assert!(!guard.is_lost());
    guard.unlock().await.expect("ours to the end");
}
