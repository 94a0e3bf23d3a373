//! Locks for plain threads.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use leasehold::{
    Error, Lost, Outcome,
    blocking::{Client, Guard, MultiLock, Quorum},
};
use tokio::{
    runtime::{Builder, Runtime},
    task::{LocalSet, spawn_local},
};

use crate::support::{Server, Stopwatch, before, ms, process::Process, stall::Took};

/// How long something may take that takes no time.
const SOON: Duration = ms(2_000);
const LONG: Duration = ms(20_000);

fn server_and_client() -> (Server, Client) {
    let server = Server::start();
    let client = connect(&server.url(), |builder| builder);
    (server, client)
}

fn connect(url: &str, settings: impl FnOnce(leasehold::Builder) -> leasehold::Builder) -> Client {
    let builder = leasehold::Client::builder().url(url).connect_timeout(LONG);
    settings(builder).connect_blocking().expect("the private server replies")
}

fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Stopwatch::start();
    while !is_true() {
        assert!(started.elapsed() < LONG, "{what}");
        thread::sleep(ms(1));
    }
}

/// In a thread of its own, which does not hang the test.
fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> (T, Took) {
    let (tell, told) = mpsc::channel();
    let started = Stopwatch::start();
    thread::spawn(move || tell.send(work()));
    (told.recv_timeout(LONG).expect(what), started.elapsed())
}

#[test]
fn a_thread_re_enters_and_another_waits() {
    let (server, client) = server_and_client();
    let lock = client.lock("ledger");
    let outer = lock.lock().expect("it is free");
    let inner = lock.try_lock().expect("the server replies").expect("the same thread");
    assert_eq!((outer.holds(), inner.id()), (2, outer.id()));
    let other = lock.clone();
    let (taken, _) = within("another thread", move || other.try_lock().map(|guard| guard.is_some()));
    assert!(!taken.expect("the server replies"));
    inner.unlock().expect("held");
    let waiting = lock.clone();
    let waiter = thread::spawn(move || waiting.lock().and_then(leasehold::blocking::Guard::unlock));
    until("somebody to wait", || client.stats().now.waiting == 1);
    drop(outer);
    waiter.join().expect("no panic").expect("it is free now");
    assert!(!server.exists("ledger"));
}

#[test]
fn a_dropped_guard_has_released_the_lock_when_drop_returns() {
    let (server, client) = server_and_client();
    for _ in 0..100 {
        drop(client.mutex("ledger").lock().expect("it is free"));
        assert!(!server.exists("ledger"));
    }
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = client.mutex("ledger").lock().expect("it is free");
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert!(!server.exists("ledger"), "released while the thread panicked");
    let both = MultiLock::new(["a", "b"].map(|name| client.mutex(name)));
    drop(both.lock().expect("they are free"));
    assert!(!server.exists("a") && !server.exists("b"));
}

#[test]
fn a_drop_does_not_wait_for_a_server_that_is_frozen() {
    let server = Server::start();
    let client = connect(&server.url(), |builder| builder.command_timeout(ms(300)));
    let guard = client.mutex("ledger").lock().expect("it is free");
    server.freeze();
    let (_, took) = within("the drop to return", move || drop(guard));
    assert!(took >= ms(300) && took < ms(300) + SOON, "{took}");
    server.thaw();
    until("the release in the background", || !server.exists("ledger"));
}

#[test]
fn every_kind_of_lock() {
    let (_server, client) = server_and_client();
    let first = client.fenced_lock("fenced").with(|guard| guard.token()).expect("it is free");
    let fenced = client.fenced_lock("fenced").lock().expect("it is free");
    assert!(fenced.token() > first);
    fenced.write_if_held("result", "done").expect("held");
    fenced.unlock().expect("held");
    let fair = client.fair_lock("fair");
    let guard = fair.lock().expect("it is free");
    assert_eq!(fair.waiters().expect("the server replies"), Vec::<String>::new());
    guard.check().expect("held");
    guard.extend(LONG * 10).expect("held");
    assert!(guard.remaining() > LONG * 9);
    guard.unlock().expect("held");
    let rw = client.rw_lock("rw").non_reentrant();
    let readers = (rw.read().expect("it is free"), rw.try_read().expect("the server replies").expect("no writer"));
    assert!(rw.try_write_for(ms(20)).expect("the server replies").is_none());
    drop(readers);
    let reading = rw.write().expect("it is free").downgrade().expect("held");
    assert!(rw.try_read().expect("the server replies").is_some());
    reading.unlock().expect("held");
    assert_eq!(rw.with_write(|_| 7).expect("it is free"), 7);
    let both = MultiLock::new([client.mutex("a"), client.mutex("b")]);
    let guard = both.try_lock_for(ms(100)).expect("the server replies").expect("they are free");
    assert_eq!(guard.names().collect::<Vec<_>>(), ["a", "b"]);
    guard.unlock().expect("held");
    assert!(client.held().is_empty());
    client.close().expect("closed");
}

#[test]
fn a_wait_ends_with_its_limit() {
    let (_server, client) = server_and_client();
    let _held = client.mutex("ledger").lock().expect("it is free");
    let lock = client.mutex("ledger");
    let (by_time, took) = within("the limit", move || lock.try_lock_for(ms(200)).map(|guard| guard.is_none()));
    assert!(by_time.expect("the server replies") && took >= ms(200) && took < ms(200) + SOON, "{took}");
    let lock = client.mutex("ledger");
    let deadline = Instant::now() + ms(100);
    let (by_deadline, _) = within("the deadline", move || lock.try_lock_until(deadline).map(|guard| guard.is_none()));
    assert!(by_deadline.expect("the server replies") && Instant::now() >= deadline);
}

#[test]
fn a_thread_that_does_not_look_is_told_of_a_loss() {
    let (server, client) = server_and_client();
    let guard = client.mutex("ledger").lock().expect("it is free");
    let (tell, told) = mpsc::channel();
    let again = tell.clone();
    guard.on_lost(move |reason| tell.send(reason).expect("the test waits"));
    let token = guard.lost_token();
    assert!(!token.is_cancelled());
    assert!(client.mutex("ledger").force_unlock().expect("the server replies"));
    assert_eq!(told.recv_timeout(LONG), Ok(Lost::Removed));
    assert!(guard.is_lost() && guard.remaining().is_zero());
    until("the token", || token.is_cancelled());
    guard.on_lost(move |reason| again.send(reason).expect("the test waits"));
    assert_eq!(told.recv_timeout(LONG), Ok(Lost::Removed), "at once, if it is lost already");
    assert!(matches!(guard.unlock(), Err(Error::Lost { .. })));
    assert!(!server.exists("ledger"));
}

/// Its lease ends while it is held; nobody looks.
#[test]
fn a_lease_that_ends_is_told_and_a_release_is_not() {
    let (_server, client) = server_and_client();
    let (tell, told) = mpsc::channel();
    let released = tell.clone();
    let kept = client.mutex("kept").lock().expect("it is free");
    kept.on_lost(move |reason| released.send(("kept", reason)).expect("the test waits"));
    kept.unlock().expect("held");
    let guard = client.mutex("ledger").lease(ms(300)).lock().expect("it is free");
    guard.on_lost(move |reason| tell.send(("ledger", reason)).expect("the test waits"));
    assert_eq!(told.recv_timeout(LONG), Ok(("ledger", Lost::Expired)));
    let ended = told.recv_timeout(LONG);
    assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected), "the watcher of the released lock has ended");
    drop(guard);
}

/// What the callback does is the user's; it may use locks too.
#[test]
fn a_callback_may_use_locks() {
    let (_server, client) = server_and_client();
    let guard = client.mutex("ledger").lock().expect("it is free");
    let (tell, told) = mpsc::channel();
    let other = client.clone();
    guard.on_lost(move |_| tell.send(other.mutex("other").with(|_| 7)).expect("the test waits"));
    client.mutex("ledger").force_unlock().expect("the server replies");
    assert_eq!(told.recv_timeout(LONG).expect("told").expect("it is free"), 7);
}

/// More of them than a runtime has threads for blocking work by default.
#[test]
fn callbacks_that_block_do_not_hold_up_others() {
    const MANY: usize = 600;
    let (_server, client) = server_and_client();
    let guard = client.mutex("ledger").max_hold(ms(300)).lock().expect("it is free");
    let all = Arc::new(Barrier::new(MANY + 1));
    for _ in 0..MANY {
        let all = Arc::clone(&all);
        guard.on_lost(move |_| _ = all.wait());
    }
    within("all of them at once", move || all.wait());
}

/// Waits for a thread when it is dropped.
struct Joins(Option<JoinHandle<()>>);

impl Drop for Joins {
    fn drop(&mut self) {
        self.0.take().expect("dropped once").join().expect("no panic");
    }
}

#[test]
fn what_a_callback_owns_may_block_when_it_is_dropped() {
    let (_server, client) = server_and_client();
    let guard = client.mutex("ledger").lock().expect("it is free");
    let (go_on, waits) = mpsc::channel();
    let lock = client.mutex("other");
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        waits.recv().expect("the test goes on");
        tell.send(lock.with(|_| 7)).expect("the test waits");
    });
    let joins = Joins(Some(thread));
    guard.on_lost(move |_| drop(joins));
    guard.unlock().expect("held");
    thread::sleep(ms(100)); // the callback is given up meanwhile, and waits for the thread
    go_on.send(()).expect("it waits");
    assert_eq!(told.recv_timeout(LONG).expect("the background thread goes on").expect("it is free"), 7);
}

fn refused(outcome: leasehold::Result<impl Sized>) -> bool {
    matches!(outcome, Err(Error::InvalidConfig { setting: "runtime", .. }))
}

#[test]
fn inside_a_current_thread_runtime_it_is_refused() {
    let (server, client) = server_and_client();
    let guard = client.mutex("ledger").lock().expect("it is free");
    let checked = client.mutex("checked").lock().expect("it is free");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let url = server.url();
    runtime.block_on(async {
        assert!(refused(Client::connect(&url)));
        assert!(refused(client.mutex("other").lock()) && refused(client.mutex("other").try_lock()));
        assert!(refused(client.ping()) && refused(checked.check()));
        assert!(refused(checked.unlock()), "and released in the background");
        drop(guard); // the same
    });
    until("the release in the background", || !server.exists("ledger") && !server.exists("checked"));
    client.mutex("ledger").lock().expect("outside again").unlock().expect("held");
}

/// Its tasks run on one thread, also in a multi-threaded runtime. A guard that is dropped while a task panics must not end the process.
#[test]
fn inside_a_local_set_it_is_refused() {
    let (server, client) = server_and_client();
    let guard = client.mutex("ledger").lock().expect("it is free");
    let checked = client.mutex("checked").lock().expect("it is free");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async move {
        assert!(refused(client.mutex("other").lock()) && refused(client.ping()));
        assert!(refused(checked.unlock()), "and released in the background");
        let panicking = spawn_local(async move {
            let _guard = guard;
            panic!("on purpose");
        });
        let panicked = panicking.await.expect_err("it panics").into_panic();
        assert_eq!(panicked.downcast_ref(), Some(&"on purpose"));
    });
    until("the release in the background", || !server.exists("ledger") && !server.exists("checked"));
}

/// The work of a call may panic, and the panic is not taken for a refusal.
#[test]
fn a_panic_inside_a_runtime_is_passed_on() {
    let (server, client) = server_and_client();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let work = runtime.spawn(async move { client.mutex("ledger").with(|_| panic!("on purpose")) });
    let panicked = runtime.block_on(work).expect_err("it panics").into_panic();
    assert_eq!(panicked.downcast_ref(), Some(&"on purpose"));
    assert!(!server.exists("ledger"));
}

struct AtTheEnd(Guard);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        self.0.on_lost(|_| ());
        assert!(!self.0.lost_token().is_cancelled());
    }
}

thread_local! {
    static KEPT: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
}

/// What tokio keeps for a thread is gone then: it was made after the slot, and goes before it.
#[test]
fn a_guard_that_a_thread_keeps_is_released_before_the_thread_has_ended() {
    let (server, client) = server_and_client();
    for _ in 0..20 {
        let lock = client.mutex("ledger");
        let keeping = thread::spawn(move || {
            KEPT.with(|_| ());
            let guard = lock.lock().expect("it is free");
            KEPT.set(Some(AtTheEnd(guard)));
        });
        keeping.join().expect("no panic");
        assert!(!server.exists("ledger"));
    }
}

/// Not a test: tokio is known to the thread before the slot is, and the thread first waits after that.
#[test]
#[ignore = "run by others, in a process of its own"]
fn keeps_a_guard_after_it_used_tokio() {
    let client = connect(&Process::url(), |builder| builder);
    for uses_guard in [false, true] {
        let (lock, passed) = (client.mutex("ledger"), client.mutex("passed").lock().expect("it is free"));
        let keeping = thread::spawn(move || {
            if uses_guard {
                passed.on_lost(|_| ());
            } else {
                assert!(tokio::runtime::Handle::try_current().is_err());
            }
            KEPT.with(|_| ());
            let guard = lock.lock().expect("it is free");
            KEPT.set(Some(AtTheEnd(guard)));
        });
        keeping.join().expect("no panic");
    }
    KEPT.set(Some(AtTheEnd(client.mutex("ledger").lock().expect("released"))));
}

#[test]
fn a_guard_that_a_thread_keeps_does_not_end_the_process() {
    let server = Server::start();
    let mut process = Process::start("interface::blocking::keeps_a_guard_after_it_used_tokio", &server.url());
    until("the process to end", || process.is_done());
    assert!(!server.exists("ledger") && !server.exists("passed"));
    assert!(server.calls("evalsha") > 0, "it held the locks");
}

#[test]
fn inside_a_multi_threaded_runtime_the_other_tasks_go_on() {
    let (_server, client) = server_and_client();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let held = client.mutex("ledger").lock().expect("it is free");
    let (beats, waiting) = (Arc::new(AtomicU32::new(0)), client.clone());
    let count = Arc::clone(&beats);
    let waiter =
        runtime.spawn(async move { waiting.lock("ledger").lock().and_then(leasehold::blocking::Guard::unlock) });
    runtime.spawn(async move {
        loop {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(ms(1)).await;
        }
    });
    until("the task to wait", || client.stats().now.waiting == 1);
    let before = beats.load(Ordering::Relaxed);
    until("the other task", || beats.load(Ordering::Relaxed) > before + 10);
    held.unlock().expect("held");
    runtime.block_on(waiter).expect("no panic").expect("it is free now");
}

/// Both ways, and the client of a runtime that has ended says so.
#[test]
fn a_client_of_the_async_interface_can_be_used() {
    let server = Server::start();
    let runtime = Runtime::new().expect("a runtime");
    let client = runtime.block_on(leasehold::Client::connect(&server.url())).expect("the private server replies");
    let threads = Client::from(client.clone());
    let held = threads.mutex("ledger").lock().expect("it is free");
    assert!(runtime.block_on(client.mutex("ledger").try_lock()).expect("the server replies").is_none());
    held.unlock().expect("held");
    let client = leasehold::Client::from(threads.clone());
    let held = runtime.block_on(client.mutex("ledger").lock()).expect("it is free");
    assert!(threads.mutex("ledger").try_lock().expect("the server replies").is_none());
    drop(runtime);
    drop(held);
    let (ended, _) = within("an error", move || threads.mutex("other").lock().map(drop));
    assert!(ended.is_err_and(|error| error.is_unavailable()));
}

/// Not a test: a process whose main thread ends with a guard that was dropped a moment before.
#[test]
#[ignore = "run by others, in a process of its own"]
fn drops_a_guard_and_exits() {
    let guard = connect(&Process::url(), |builder| builder).mutex("ledger").lock().expect("it is free");
    guard.check().expect("held");
    drop(guard);
    std::process::exit(0);
}

#[test]
fn a_process_that_ends_leaves_nothing() {
    let server = Server::start();
    let mut process = Process::start("interface::blocking::drops_a_guard_and_exits", &server.url());
    until("the process to end", || process.is_done());
    assert!(!server.exists("ledger"));
    let evals = server.calls("evalsha");
    assert!(evals > 0, "it held the lock");
}

const TURNS: u32 = 40;

/// Not a test: eight tasks in another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by others, in a process of its own"]
async fn eight_tasks_take_turns() {
    let client = leasehold::Client::connect(&Process::url()).await.expect("the server is there");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..TURNS {
                    let guard = client.lock("ledger").lock().await.expect("the server replies");
                    add_one_async(&client).await;
                    guard.unlock().await.expect("held");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// Two steps on purpose: turns that overlap lose one.
async fn add_one_async(_client: &leasehold::Client) {
    let url = Process::url();
    tokio::task::spawn_blocking(move || add_one(&url)).await.expect("no panic");
}

fn add_one(url: &str) {
    let mut raw = redis::Client::open(url).and_then(|client| client.get_connection()).expect("the server is there");
    let count: Option<u32> = redis::cmd("GET").arg("count").query(&mut raw).expect("it replies");
    let _: () = redis::cmd("SET").arg("count").arg(count.unwrap_or(0) + 1).query(&mut raw).expect("it replies");
}

#[test]
fn eight_threads_beside_eight_tasks_of_another_process() {
    let (server, client) = server_and_client();
    let mut process = Process::start("interface::blocking::eight_tasks_take_turns", &server.url());
    let url = server.url();
    thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| {
                for _ in 0..TURNS {
                    let guard = client.lock("ledger").lock().expect("the server replies");
                    add_one(&url);
                    guard.unlock().expect("held");
                }
            });
        }
    });
    until("the tasks of the other process", || process.is_done());
    let count: u32 = server.ask(&["GET", "count"]);
    assert_eq!(count, 16 * TURNS);
    assert!(!server.exists("ledger"));
}

/// What is slow is told as the async interface tells it.
#[test]
fn an_outage_is_an_error_in_time() {
    let server = Server::start();
    let proxy = before(&server);
    let client = connect(&proxy.url(), |builder| builder.command_timeout(ms(200)).outage_timeout(ms(400)));
    let guard = client.mutex("held").lock().expect("it is free");
    server.freeze();
    let lock = client.mutex("ledger");
    let (outcome, took) = within("an error", move || lock.lock().map(drop));
    assert!(outcome.is_err_and(|error| error.is_unavailable()) && took < ms(400) + SOON, "{took}");
    assert!(!guard.is_lost());
    server.thaw();
    until("a connection", || client.ping().is_ok());
    guard.unlock().expect("held");
}

#[test]
fn the_release_after_lost_work_is_unconfirmed() {
    let (server, client) = server_and_client();
    let lock = client.mutex("ledger");
    let lose = || server.ask::<u32>(&["DEL", "ledger"]);
    let outcome = lock.with_outcome(|_| lose()).expect("it is free");
    assert!(matches!(outcome, Outcome::Unconfirmed { value: 1, error: Error::Lost { .. } }), "{outcome:?}");
    assert_eq!(lock.with(|_| lose()).expect("the work is complete"), 1);
    let outcome = lock.with_outcome(|_| ()).expect("it is free");
    assert!(matches!(outcome, Outcome::Done(())), "{outcome:?}");
}

/// Whoever is told hears what the release says, also if the release comes at the same moment.
#[test]
fn the_callback_has_the_reason_that_the_release_has() {
    let (_server, client) = server_and_client();
    for _ in 0..50 {
        let guard = loop {
            match client.mutex("ledger").lease(ms(30)).lock() {
                Err(Error::Lost { reason: Lost::Expired, .. }) => {} // the machine stood still for the whole lease
                taken => break taken.expect("it is free"),
            }
        };
        let (tell, told) = mpsc::channel();
        guard.on_lost(move |reason| tell.send(reason).expect("the test waits"));
        until("the end of the lease", || guard.is_lost());
        let Err(Error::Lost { reason, .. }) = guard.unlock() else { panic!("it was lost") };
        assert_eq!((told.recv_timeout(LONG), reason), (Ok(Lost::Expired), Lost::Expired));
    }
}

#[test]
fn a_quorum_of_servers() {
    let servers = [(); 3].map(|()| Server::start());
    let clients =
        || servers.each_ref().map(|server| connect(&server.url(), |builder| builder.command_timeout(ms(500))));
    let (ours, theirs) = (Quorum::new(clients()).expect("three"), Quorum::new(clients()).expect("three"));
    let guard = ours.lock("ledger").lock().expect("it is free");
    assert!(guard.nodes() >= 2 && guard.remaining() > SOON);
    guard.check().expect("held");
    let nested = ours.lock("ledger").try_lock().expect("it replies").expect("the same thread");
    nested.unlock().expect("held");
    assert!(theirs.lock("ledger").try_lock_for(ms(50)).expect("it replies").is_none());
    let waiting = theirs.lock("ledger");
    let waiter = thread::spawn(move || waiting.lock().and_then(leasehold::blocking::QuorumGuard::unlock));
    drop(guard);
    waiter.join().expect("no panic").expect("it is free now");
    let (tell, told) = mpsc::channel();
    let guard = ours.lock("ledger").non_reentrant().lock().expect("it is free");
    let token = guard.lost_token();
    guard.on_lost(move |reason| tell.send(reason).expect("the test waits"));
    assert!(theirs.lock("ledger").force_unlock().expect("it replies"));
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    assert_eq!(told.recv_timeout(LONG), Ok(Lost::Removed));
    until("the token", || token.is_cancelled() && guard.is_lost());
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert!(ours.lock("ledger").with(|guard| guard.nodes() >= 2).expect("it is free"));
    until("the releases that nobody waits for", || servers.iter().all(|server| !server.exists("ledger")));
    servers[0].freeze();
    servers[1].freeze();
    let lock = ours.lock("ledger");
    let (outcome, _) = within("an error", move || lock.try_lock().map(drop));
    assert!(outcome.is_err_and(|error| error.is_unavailable()));
    servers[0].thaw();
    servers[1].thaw();
}

/// A callback belongs to the user: it may panic, and it may release the guard that it watches, or acquire the lock again.
#[test]
fn a_callback_may_panic_or_use_the_guard() {
    let (server, client) = server_and_client();
    let guard = Arc::new(Mutex::new(Some(client.mutex("ledger").lock().expect("it is free"))));
    let (tell, told) = mpsc::channel();
    {
        let held = guard.lock().expect("no panic");
        let held = held.as_ref().expect("held");
        held.on_lost(|_| panic!("on purpose"));
        let (mine, again) = (Arc::clone(&guard), client.mutex("ledger"));
        held.on_lost(move |_| {
            let outcome = mine.lock().expect("no panic").take().expect("held").unlock();
            let next = again.lock().and_then(Guard::unlock);
            tell.send((outcome, next)).expect("the test waits");
        });
        held.on_lost(|_| panic!("on purpose"));
    }
    client.mutex("ledger").force_unlock().expect("the server replies");
    let (outcome, next) = told.recv_timeout(LONG).expect("told");
    assert!(outcome.is_err_and(|error| error.is_lost()));
    next.expect("it is free");
    client.mutex("other").with(|_| ()).expect("the background thread goes on");
    assert!(!server.exists("ledger"));
}

#[test]
fn two_hundred_threads_on_one_name() {
    const THREADS: u32 = 200;
    let (server, client) = server_and_client();
    let (inside, turns) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| {
                for _ in 0..3 {
                    let guard = client.lock("ledger").lock().expect("the server replies");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                    turns.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    });
    assert_eq!(turns.into_inner(), 3 * THREADS);
    assert!(!server.exists("ledger"));
}

/// `spawn_blocking` and `block_in_place` of a multi-threaded runtime, and a runtime inside the work.
#[test]
fn around_and_inside_other_runtimes() {
    let (server, client) = server_and_client();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (one, other) = (client.clone(), client.clone());
    let spawned = runtime.spawn_blocking(move || one.lock("ledger").with(|_| 1));
    let placed = runtime.spawn(async move { tokio::task::block_in_place(|| other.lock("ledger").with(|_| 2)) });
    let both = runtime.block_on(async { (spawned.await, placed.await) });
    assert_eq!((both.0.expect("no panic").expect("free"), both.1.expect("no panic").expect("free")), (1, 2));
    let inner = client.lock("ledger").with(|guard| {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async { tokio::time::sleep(ms(1)).await });
        guard.holds()
    });
    assert_eq!(inner.expect("it is free"), 1);
    assert!(!server.exists("ledger"));
}

/// Not a test: a process that ends while it holds locks and while other threads wait.
#[test]
#[ignore = "run by others, in a process of its own"]
fn exits_with_locks_held() {
    let client = connect(&Process::url(), |builder| builder.watchdog(ms(900)));
    let guard = client.mutex("ledger").lock().expect("it is free");
    guard.on_lost(|_| thread::sleep(LONG));
    for _ in 0..4 {
        let client = client.clone();
        thread::spawn(move || client.mutex("ledger").lock().map(std::mem::forget));
    }
    until("the threads to wait", || client.stats().now.waiting == 4);
    std::process::exit(0);
}

#[test]
fn a_process_can_end_while_it_holds_locks() {
    let server = Server::start();
    let mut process = Process::start("interface::blocking::exits_with_locks_held", &server.url());
    until("the process to end", || process.is_done());
    until("the end of the lease", || !server.exists("ledger"));
}

#[test]
fn threads_wait_for_a_latch() {
    let (server, client) = server_and_client();
    let latch = client.latch("start");
    assert!(latch.try_set_count(2).expect("answered") && !latch.try_set_count(2).expect("answered"));
    assert!(!latch.wait_for(ms(1_000)).expect("answered"));
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let latch = latch.clone();
            thread::spawn(move || latch.wait())
        })
        .collect();
    until("all to wait", || client.stats().now.waiting == 4);
    assert_eq!((latch.count_down().expect("answered"), latch.count().expect("answered")), (1, 1));
    assert_eq!((latch.count_down().expect("answered"), latch.name()), (0, "start"));
    for one in waiting {
        within("to pass", || one.join()).0.expect("no panic").expect("passed");
    }
    assert!(latch.try_set_count(1).expect("answered") && latch.delete().expect("answered"));
    assert!(!server.exists("start") && client.held().is_empty());
}

#[test]
fn threads_share_permits() {
    let (server, client) = server_and_client();
    let permits = client.semaphore("licences");
    assert!(permits.try_set_permits(3).expect("answered") && !permits.try_set_permits(3).expect("answered"));
    let mut held = permits.acquire(3).expect("free");
    assert!(permits.try_acquire(1).expect("answered").is_none());
    assert!(permits.try_acquire_for(1, ms(20)).expect("answered").is_none());
    let waiting = thread::spawn({
        let permits = permits.clone();
        move || permits.with(1, |one| one.count())
    });
    until("it to wait", || client.stats().now.waiting == 1);
    let part = held.split(1).expect("it has three");
    assert_eq!((held.count(), part.count(), held.id() == part.id(), held.name()), (2, 1, true, "licences"));
    drop(part);
    assert_eq!(within("to acquire", || waiting.join()).0.expect("no panic").expect("acquired"), 1);
    held.check().expect("held");
    assert!(!held.is_lost() && held.remaining() > ms(20_000) && permits.inspect().expect("answered").len() == 1);
    held.release().expect("held");
    permits.set_permits(5).expect("answered");
    permits.add_permits(-1).expect("answered");
    assert_eq!((permits.available().expect("answered"), permits.name()), (4, "licences"));
    assert!(!server.exists("{licences}:timeout") && client.held().is_empty());
}

#[test]
fn threads_share_plain_permits() {
    let (server, client) = server_and_client();
    let permits = client.plain_semaphore("licences");
    assert!(permits.try_set_permits(3).expect("answered") && !permits.try_set_permits(3).expect("answered"));
    permits.acquire(3).expect("free");
    assert!(!permits.try_acquire(1).expect("answered"));
    assert!(!permits.try_acquire_for(1, ms(20)).expect("answered"));
    let waiting = thread::spawn({
        let permits = permits.clone();
        move || permits.with(2, || permits.available())
    });
    until("it to wait", || client.stats().now.waiting == 1);
    permits.release(2).expect("answered");
    let seen = within("to acquire", || waiting.join()).0.expect("no panic").expect("acquired");
    assert_eq!((seen.expect("answered"), permits.available().expect("answered")), (0, 2));
    for _ in 0..20 {
        let work = || permits.with(1, || panic!("as meant"));
        assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
        assert_eq!(server.ask::<i64>(&["GET", "licences"]), 2, "released while the thread panicked");
    }
    permits.add_permits(5).expect("answered");
    assert_eq!((permits.drain().expect("answered"), permits.name()), (7, "licences"));
    assert!(client.held().is_empty() && format!("{permits:?}").contains("licences"));
}
