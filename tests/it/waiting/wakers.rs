//! A waker is code of the caller. It may use the lock, and it may panic: others do not suffer from it.

use std::{
    future::Future,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Wake, Waker},
};

use leasehold::{Client, Guard, Lock, Lost, Owner};
use tokio::runtime::Handle;
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::util::SubscriberInitExt;

use crate::support::{
    Server, before, behind, client, master, ms, plain, poll_once, poll_until, proxy::Mode, replica_of, until, within,
};

/// Uses the lock at each wake-up.
struct UsesTheLock {
    lock: Lock,
    /// Where its timers are.
    runtime: Handle,
    is_done: AtomicBool,
}

impl Wake for UsesTheLock {
    fn wake(self: Arc<Self>) {
        let _entered = self.runtime.enter();
        let _ = poll_once(Box::pin(self.lock.try_lock()).as_mut());
        self.is_done.store(true, Ordering::SeqCst);
    }
}

fn user_of(client: &Client, name: &str) -> Arc<UsesTheLock> {
    let lock = client.lock(name).owner(&Owner::new());
    Arc::new(UsesTheLock { lock, runtime: Handle::current(), is_done: AtomicBool::new(false) })
}

fn poll<F: Future>(work: F, waker: &Waker) -> std::pin::Pin<Box<F>> {
    let mut work = Box::pin(work);
    assert!(work.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    work
}

/// The lock was deleted, so the release of a dropped guard cancels its token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_token_may_use_the_lock() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    let (token, user) = (guard.lost_token(), user_of(&client, "x"));
    let waiting = poll(token.cancelled_owned(), &Waker::from(Arc::clone(&user)));
    let _: u32 = server.ask(&["DEL", "x"]);
    drop(guard);
    until("the waker to have used the lock", ms(5_000), || user.is_done.load(Ordering::SeqCst)).await;
    drop(waiting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_waiter_may_use_the_lock() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    let user = user_of(&client, "x");
    let waits = client.lock("x").owner(&Owner::new());
    let waiting = poll(waits.lock(), &Waker::from(Arc::clone(&user)));
    guard.unlock().await.expect("ours");
    until("the waker to have used the lock", ms(5_000), || user.is_done.load(Ordering::SeqCst)).await;
    drop(waiting);
}

/// The same for `lost`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_holder_may_use_the_lock() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    let user = user_of(&client, "x");
    let waiting = poll(guard.lost(), &Waker::from(Arc::clone(&user)));
    let _: u32 = server.ask(&["DEL", "x"]);
    guard.check().await.expect_err("it is gone");
    until("the waker to have used the lock", ms(5_000), || user.is_done.load(Ordering::SeqCst)).await;
    drop(waiting);
}

/// A waker that panics.
#[derive(Default)]
struct Panics {
    was_woken: AtomicBool,
}

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.was_woken.store(true, Ordering::SeqCst);
        std::panic::resume_unwind(Box::new("on purpose"));
    }
}

/// The waiter that is first in the queue has such a waker. The one behind it acquires the lock, and nobody waits for a request in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_panic_delay_no_other() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = || client.lock("x").owner(&Owner::new());
    let guard = lock().lock().await.expect("free");
    let first = lock();
    let panics = poll(first.lock(), &Waker::from(Arc::<Panics>::default()));
    let second = tokio::spawn({
        let lock = lock();
        async move { lock.lock().await }
    });
    until("both to wait", ms(5_000), || client.stats().now.waiting == 2).await;
    within("the release", ms(5_000), guard.unlock()).await.0.expect("ours");
    let second = within("its turn", ms(5_000), second).await.0.expect("no panic").expect("free");
    within("the release", ms(5_000), second.unlock()).await.0.expect("ours");
    drop(panics);
    until("the lock to be free", ms(5_000), || !server.exists("x")).await;
}

/// Two guards of one owner wait for the loss of their hold. The waker of the first one panics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_panic_hide_no_loss() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = client.lock("x").owner(&Owner::new());
    let (one, other) = (lock.lock().await.expect("free"), lock.lock().await.expect("its own"));
    assert_eq!(one.id(), other.id());
    let panics = poll(one.lost(), &Waker::from(Arc::<Panics>::default()));
    let other = tokio::spawn(async move { other.lost().await });
    let watched = poll(one.lost(), &Waker::from(Arc::<Panics>::default()));
    let _: u32 = server.ask(&["DEL", "x"]);
    one.check().await.expect_err("it is gone");
    drop((panics, watched)); // tokio aborts if a waker panics in one of its timers
    let (lost, _) = within("the other one's loss", ms(5_000), other).await;
    assert_eq!(lost.expect("no panic"), Lost::Removed);
}

/// Many locks are lost in one batch of renewals, and the wakers of all their holders panic. The other locks of that batch are renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_panic_cost_others_of_a_batch_nothing() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(3_000))).await;
    let mut guards = Vec::new();
    for at in 0..60 {
        guards.push(client.lock(&format!("x{at}")).lock().await.expect("free"));
    }
    let (gone, kept) = guards.split_at(20);
    let panics: Vec<_> = gone.iter().map(|guard| poll(guard.lost(), &Waker::from(Arc::<Panics>::default()))).collect();
    for guard in gone {
        let _: u32 = server.ask(&["DEL", guard.name()]);
    }
    until("their losses", ms(10_000), || gone.iter().all(Guard::is_lost)).await;
    drop(panics); // tokio aborts if a waker panics in one of its timers
    let renewed = client.stats().total.renewals;
    until("three renewals of each", ms(20_000), || client.stats().total.renewals >= renewed + 3 * 40).await;
    assert!(kept.iter().all(|guard| !guard.is_lost()));
}

impl Panics {
    fn waker() -> (Arc<Panics>, Waker) {
        let panics = Arc::<Panics>::default();
        (Arc::clone(&panics), Waker::from(panics))
    }

    /// Until it has panicked: else a test would show nothing.
    async fn happens(&self) {
        until("the waker to panic", ms(5_000), || self.was_woken.load(Ordering::SeqCst)).await;
    }
}

/// The connection of that client delivers replies, and what was held before is held to the end.
async fn is_well(client: &Client, held: Guard) {
    let (other, _) = within("another lock", ms(5_000), client.lock("z").lock()).await;
    other.expect("the server is well").unlock().await.expect("ours");
    held.unlock().await.expect("ours to the end");
}

/// Two gathered requests have such wakers. The other requests of this connection get their replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_panic_at_a_reply_end_no_task_of_the_connection() {
    let server = Server::start();
    let client = plain(&server).await;
    let lock = |n: usize| client.lock(&format!("x{n}")).owner(&Owner::new());
    server.freeze();
    let before = client.stats().total.calls;
    let alone: Vec<_> = (0..4)
        .map(|n| {
            tokio::spawn({
                let lock = lock(n);
                async move { lock.lock().await }
            })
        })
        .collect();
    until("four requests", ms(5_000), || client.stats().total.calls >= before + 4).await;
    let gathered = [lock(16), lock(17)];
    let wakers = [Panics::waker(), Panics::waker()];
    let waiting = [0, 1].map(|at: usize| poll(gathered[at].lock(), &wakers[at].1));
    server.thaw();
    for (panics, _) in &wakers {
        panics.happens().await;
    }
    drop(waiting);
    for one in alone {
        let guard = within("its reply", ms(5_000), one).await.0.expect("no panic").expect("free");
        within("the release", ms(5_000), guard.unlock()).await.0.expect("ours");
    }
    let renewed = tokio::spawn({
        let lock = lock(18);
        async move { lock.lock().await }
    });
    drop(within("another lock", ms(5_000), renewed).await.0.expect("no panic").expect("free"));
    until("all to be free", ms(5_000), || server.ask::<u64>(&["DBSIZE"]) == 0).await;
}

/// Two requests wait for replies, and their connection is lost. fred drops both at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_panic_when_a_connection_is_lost_end_nothing() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let held = client.lock("x").lock().await.expect("free");
    proxy.set(Mode::Swallow);
    let locks = [client.lock("y"), client.lock("z")];
    let wakers = [Panics::waker(), Panics::waker()];
    let waiting = [0, 1].map(|at: usize| poll(locks[at].inspect(), &wakers[at].1));
    proxy.set(Mode::Pass);
    proxy.cut_all();
    for (panics, _) in &wakers {
        panics.happens().await;
    }
    drop(waiting);
    is_well(&client, held).await;
}

/// A call waits for a connection. The task that opens connections goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_panic_at_a_new_connection_end_no_connection() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(500))).await;
    let held = client.lock("x").lock().await.expect("free");
    proxy.refuse();
    proxy.cut_all();
    client.ping().await.expect_err("there is no connection");
    let (lock, (panics, waker)) = (client.lock("y"), Panics::waker());
    let waiting = poll(lock.inspect(), &waker);
    proxy.accept();
    panics.happens().await;
    drop(waiting);
    proxy.cut_all(); // the task must open the next connection, too
    is_well(&client, held).await;
}

/// The same for the reply to WAIT, of which there is one at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_panic_when_replicas_confirm_end_no_task_of_the_connection() {
    let server = master();
    let replica = replica_of(&server).await;
    let client = client(&server, |builder| builder.replicas(1).command_timeout(ms(9_000))).await;
    client.lock("warm").lock().await.expect("free").unlock().await.expect("ours");
    replica.freeze();
    let first = client.lock("x");
    let mut waits = Box::pin(first.lock());
    poll_until("the grant", waits.as_mut(), || server.exists("x")).await;
    let (panics, waker) = Panics::waker();
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    replica.thaw();
    panics.happens().await;
    drop(waits);
    let (second, _) = within("another lock", ms(10_000), client.lock("y").lock()).await;
    second.expect("its replica confirms").unlock().await.expect("ours");
}

/// Keeps a guard until it is woken.
struct DropsItsGuard {
    guard: Mutex<Option<Guard>>,
    is_done: AtomicBool,
}

impl Wake for DropsItsGuard {
    fn wake(self: Arc<Self>) {
        drop(self.guard.lock().expect("no panic").take());
        self.is_done.store(true, Ordering::SeqCst);
    }
}

/// One that waits for the end of the client is woken when the last name is forgotten. It has a guard of that name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_one_that_shuts_down_may_drop_a_guard() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.lock("x").lock().await.expect("free");
    let waker = Arc::new(DropsItsGuard { guard: Mutex::new(Some(guard)), is_done: AtomicBool::new(false) });
    let ending = poll(client.clone().shutdown(ms(60_000)), &Waker::from(Arc::clone(&waker)));
    within("the end", ms(10_000), client.close()).await.0.expect("closed");
    until("the guard to be dropped", ms(5_000), || waker.is_done.load(Ordering::SeqCst)).await;
    within("the end of the other call", ms(10_000), ending).await.0.expect("closed");
}

// ---- a subscriber, which is code of the program, too ----

/// A subscriber that panics whenever a span changes or ends, from some moment on.
#[derive(Default)]
struct PanicsInSpans {
    spans: AtomicU64,
    is_on: Arc<AtomicBool>,
}

impl PanicsInSpans {
    fn check(&self) {
        if self.is_on.load(Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
}

impl tracing::Subscriber for PanicsInSpans {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        self.check();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, _: Id) -> bool {
        self.check();
        true
    }
}

/// Two panics while a list of guards is dropped would end the process.
#[tokio::test]
async fn a_subscriber_that_panics_costs_no_dropped_guard() {
    let server = Server::start();
    let client = plain(&server).await;
    let subscriber = PanicsInSpans::default();
    let is_on = Arc::clone(&subscriber.is_on);
    let broken = subscriber.set_default();
    let guards = [client.lock("x").lock().await.expect("free"), client.lock("y").lock().await.expect("free")];
    let _: u32 = server.ask(&["DEL", "x", "y"]);
    for guard in &guards {
        guard.check().await.expect_err("it is gone");
    }
    is_on.store(true, Ordering::SeqCst);
    drop(guards);
    is_on.store(false, Ordering::SeqCst);
    drop(broken);
    assert_eq!(client.stats().now.holds, 0);
}

static WRITES: AtomicU64 = AtomicU64::new(0);

/// As `eprintln!` panics when nobody reads it any more.
struct Broken;

impl io::Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        WRITES.fetch_add(1, Ordering::SeqCst);
        panic!("nobody reads the log")
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_ends_no_connection() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.own_thread(false)).await; // on this thread, where the subscriber is
    let held = client.lock("x").lock().await.expect("free");
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(|| Broken).finish();
    let broken = subscriber.set_default();
    proxy.cut_all();
    until("a warning", ms(5_000), || WRITES.load(Ordering::SeqCst) > 0).await;
    let (free, _) = within("another connection", ms(5_000), client.lock("y").lock()).await;
    drop(broken);
    free.expect("the server is well").unlock().await.expect("ours");
    held.unlock().await.expect("ours to the end");
}
