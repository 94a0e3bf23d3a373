//! A client is used on one runtime while the one it was connected on has ended: its guards are told by the clock, its
//! calls end and say why.

use std::{
    fmt::Debug,
    future::{Future, pending},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, Guard, Lost, Owner, Quorum};
use tokio::runtime::Runtime;

use crate::support::{
    Server, client, in_a_process_of_its_own, ms, plain, poll_once,
    server::{free_port, usual},
    until, within,
};

/// Far below every timeout of the client: it is no outage, and waiting for it to end would be in vain.
const PROMPTLY: Duration = ms(2_000);
const LEASE: Duration = ms(600);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// A client whose own tasks run on the runtime that it is connected on.
async fn guest(server: &Server, settings: impl FnOnce(Builder) -> Builder) -> Client {
    client(server, |builder| settings(builder).own_thread(false)).await
}

/// The runtime has ended: that is what the error says, and soon.
async fn says_so<T: Debug>(what: &str, call: impl Future<Output = leasehold::Result<T>>) {
    let (ended, _) = within(what, PROMPTLY, call).await;
    match ended {
        Err(error @ Error::Unavailable { .. }) => {
            assert!(error.to_string().contains("runtime"), "{what} does not say what happened: {error}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

/// The client value lives on.
#[test]
fn no_subscriptions_are_left_in_its_numbers() {
    let (server, first) = (Server::start(), runtime());
    let client = first.block_on(async {
        let (client, other) = (guest(&server, |builder| builder).await, plain(&server).await);
        for left in [false, true] {
            let guard = other.lock("held").lock().await.expect("free");
            let waiting = tokio::spawn(client.lock("held").into_future());
            until("it to wait", PROMPTLY, || client.stats().now.subscriptions == 1).await;
            if left {
                waiting.abort(); // the channel stays for a moment
            }
            drop(guard);
        }
        client
    });
    drop(first);
    assert_eq!(client.stats().now.subscriptions, 0);
}

/// A held lock, and the end of the runtime it was taken on.
fn orphan(server: &Server, settings: impl FnOnce(Builder) -> Builder) -> (Client, Guard) {
    let first = runtime();
    let made = first.block_on(async {
        let client = guest(server, settings).await;
        let guard = client.lock("held").lock().await.expect("free");
        (client, guard)
    });
    drop(first);
    made
}

#[test]
fn a_holder_is_told_by_the_clock() {
    let server = Server::start();
    let (_client, guard) = orphan(&server, |builder| builder.watchdog(LEASE));
    let (lost, _) = runtime().block_on(within("to be told", LEASE + PROMPTLY, guard.lost()));
    assert_eq!(lost, Lost::Expired);
    assert!(guard.is_lost() && guard.remaining().is_zero());
}

#[test]
fn all_who_listen_are_told() {
    let server = Server::start();
    let (_client, guard) = orphan(&server, |builder| builder.watchdog(LEASE));
    let guard = Arc::new(guard);
    runtime().block_on(async {
        let told: Vec<_> = (0..3)
            .map(|_| {
                let guard = Arc::clone(&guard);
                tokio::spawn(async move { guard.lost().await })
            })
            .collect();
        for told in told {
            let (lost, _) = within("to be told", LEASE + PROMPTLY, told).await;
            assert_eq!(lost.expect("no panic"), Lost::Expired);
        }
    });
}

/// Says when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn protected_work_is_stopped_before_somebody_else_has_the_lock() {
    let server = Server::start();
    let (_client, guard) = orphan(&server, |builder| builder.watchdog(LEASE));
    let is_over = Arc::new(AtomicBool::new(false));
    let work = Dropped(Arc::clone(&is_over));
    runtime().block_on(async {
        let other = plain(&server).await;
        let protected = tokio::spawn(guard.protect(async move {
            let _work = work;
            pending::<()>().await;
        }));
        let (taken, _) = within("the lease to end", LEASE + PROMPTLY, other.lock("held").lock()).await;
        let _taken = taken.expect("the lease has ended");
        until("the work to be stopped", ms(100), || is_over.load(Ordering::Relaxed)).await;
        let (done, _) = within("protect to end", PROMPTLY, protected).await;
        let done = done.expect("no panic");
        assert!(matches!(done, Err(Error::Lost { reason: Lost::Expired, .. })), "{done:?}");
    });
}

#[test]
fn calls_end_and_say_why() {
    let server = Server::start();
    let (client, guard) = orphan(&server, |builder| builder);
    let lock = |name: &str| client.lock(name).owner(&Owner::new());
    let (waits, tries, tries_for, other) = (lock("a"), lock("b"), lock("c"), lock("held"));
    runtime().block_on(async {
        tokio::join!(
            says_so("lock", waits.lock()),
            says_so("try_lock", tries.try_lock()),
            says_so("try_lock_for", tries_for.try_lock_for(Duration::from_secs(20))),
            says_so("lock of a held one", other.lock()),
            says_so("inspect", other.inspect()),
            says_so("is_locked", other.is_locked()),
            says_so("force_unlock", other.force_unlock()),
            says_so("check", guard.check()),
            says_so("extend", guard.extend(Duration::from_secs(60))),
        );
        assert!(!guard.is_lost(), "its lease has not ended");
        says_so("unlock", guard.unlock()).await;
    });
}

/// It retries in an outage, but this is none.
#[test]
fn a_downgrade_ends_and_says_why() {
    let server = Server::start();
    let first = runtime();
    let writing = first.block_on(async {
        let client = guest(&server, |builder| builder).await;
        client.rw_lock("x").write().await.expect("free")
    });
    drop(first);
    let called = Instant::now();
    runtime().block_on(says_so("downgrade", writing.downgrade()));
    let took = called.elapsed(); // a future that never yields has no timeout
    assert!(took < PROMPTLY, "{took:?}");
}

#[test]
fn one_more_level_is_refused() {
    let server = Server::start();
    let (client, guard) = orphan(&server, |builder| builder);
    let again = client.lock("held").owner(guard.owner());
    runtime().block_on(says_so("one more level", again.lock()));
    assert_eq!(guard.holds(), 1);
}

#[test]
fn closing_ends_in_its_time() {
    let server = Server::start();
    let (client, guard) = orphan(&server, |builder| builder);
    runtime().block_on(async {
        let (_, _) = within("closing", ms(2_500), client.close()).await;
        assert!(guard.is_lost());
        drop(guard);
    });
}

/// The runtime ends while the client closes, and the lock is still held on the server.
#[test]
fn closing_says_so_if_it_ends_meanwhile() {
    let server = Server::start();
    let (first, second) = (runtime(), runtime());
    let (client, guard) = first.block_on(async {
        let client = guest(&server, |builder| builder).await;
        let guard = client.lock("held").lock().await.expect("free");
        (client, guard)
    });
    server.freeze();
    let closing = second.spawn(client.clone().close());
    second.block_on(until("the holder to be told", PROMPTLY, || guard.is_lost()));
    drop(first);
    second.block_on(says_so("close", async { closing.await.expect("no panic") }));
    server.thaw();
    assert!(server.exists("held"), "nothing could release it");
}

/// The first in line and those behind it, who have nobody to ask.
#[test]
fn who_waits_already_is_told() {
    let server = Server::start();
    let (first, second) = (runtime(), runtime());
    let client = first.block_on(guest(&server, |builder| builder));
    let (_holder, _held) = second.block_on(async {
        let holder = plain(&server).await;
        let held = holder.lock("x").lock().await.expect("free");
        (holder, held)
    });
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let lock = client.lock("x").owner(&Owner::new());
            second.spawn(async move { lock.lock().await })
        })
        .collect();
    let asleep = || client.stats().now.waiting == 3 && client.stats().total.refused >= 2;
    second.block_on(until("all to wait", ms(5_000), asleep));
    drop(first);
    second.block_on(async {
        for waiter in waiting {
            says_so("a waiter", async { waiter.await.expect("no panic") }).await;
        }
    });
}

/// The token of a guard whose client's runtime has ended, made here, where the clock goes on. `before` may have made one before.
fn is_told_by_its_token(before: impl FnOnce(&Runtime, &Guard)) {
    let server = Server::start();
    let (elsewhere, here) = (runtime(), runtime());
    let guard = elsewhere.block_on(async {
        let client = guest(&server, |builder| builder).await;
        client.lock("x").lease(LEASE).lock().await.expect("free")
    });
    before(&elsewhere, &guard);
    drop(elsewhere);
    let token = here.block_on(async { guard.lost_token() });
    here.block_on(within("the end of its lease", PROMPTLY, token.cancelled()));
    assert!(guard.is_lost());
}

#[test]
fn a_token_is_cancelled_by_the_clock_of_its_own_runtime() {
    is_told_by_its_token(|_, _| {});
}

#[test]
fn so_is_one_that_was_first_asked_for_outside_a_runtime() {
    is_told_by_its_token(|_, guard| _ = guard.lost_token());
}

#[test]
fn so_is_one_that_was_first_asked_for_on_the_runtime_that_ended() {
    is_told_by_its_token(|elsewhere, guard| elsewhere.block_on(async { _ = guard.lost_token() }));
}

/// A call that is polled where there is no runtime at all says so, and does not panic.
#[test]
fn without_a_runtime_around_it_a_call_says_so() {
    fn says_so<T: Debug>(what: &str, call: impl Future<Output = leasehold::Result<T>>) {
        match poll_once(Box::pin(call).as_mut()) {
            Poll::Ready(Err(Error::InvalidConfig { setting: "runtime", reason, .. })) => {
                assert!(reason.contains("tokio runtime"), "{what}: {reason}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    let server = Server::start();
    let client = Client::builder().url(server.url()).connect_lazy().expect("it needs no runtime");
    let runtime = runtime();
    let held = |name: &str| runtime.block_on(async { client.lock(name).lock().await.expect("free") });
    let (lock, checked, unlocked) = (client.lock("x"), held("checked"), held("unlocked"));
    let others = [Server::start(), Server::start()];
    let voters =
        others.iter().map(|server| Client::builder().url(server.url()).connect_lazy().expect("it needs no runtime"));
    let quorum = Quorum::new(voters.chain([client.clone()])).expect("three servers");
    let voted = runtime.block_on(async { quorum.lock("voted").lock().await.expect("free") });
    says_so("lock", lock.lock());
    says_so("try_lock", lock.try_lock());
    says_so("try_lock_for", lock.try_lock_for(ms(100)));
    says_so("lock in turn", client.fair_lock("x").lock());
    says_so("read", client.rw_lock("x").read());
    says_so("inspect", lock.inspect());
    says_so("force_unlock", lock.force_unlock());
    says_so("of a quorum", quorum.lock("x").lock());
    says_so("of a quorum, once", quorum.lock("x").try_lock());
    says_so("of a quorum, for a while", quorum.lock("x").try_lock_for(ms(100)));
    assert!(poll_once(Box::pin(voted.lost()).as_mut()).is_pending(), "nobody took it away");
    says_so("of a quorum, unlock", voted.unlock());
    says_so("ping", client.ping());
    says_so("check", checked.check());
    says_so("extend", checked.extend(LEASE));
    says_so("unlock", unlocked.unlock());
    assert!(poll_once(Box::pin(checked.protect(async { 7 })).as_mut()).is_ready(), "work that is done keeps its value");
    says_so("close", client.clone().close());
    says_so("shutdown", client.clone().shutdown(LEASE));
    let given_back = until("the guards to be given back", ms(5_000), || {
        !["checked", "unlocked", "voted"].iter().any(|name| server.exists(name))
    });
    runtime.block_on(given_back);
    runtime.block_on(async { client.lock("x").lock().await.expect("free").unlock().await.expect("ours") });
}

/// A caller's runtime ends while its request waits for a connection. A task of the client goes on with the request, and must not panic:
/// what is printed then is that of a whole process, so it has one of its own.
#[test]
fn the_runtime_of_a_caller_ends() {
    let output = in_a_process_of_its_own("interface::runtime_gone::while_requests_wait_for_a_connection", &[]);
    let shown = [output.stdout, output.stderr].concat();
    let shown = String::from_utf8_lossy(&shown);
    assert!(output.status.success() && shown.contains("1 passed") && !shown.contains("panicked"), "{shown}");
}

#[test]
fn while_requests_wait_for_a_connection() {
    let port = free_port();
    let (clients, callers) = (runtime(), runtime());
    let client_of = |scheme| {
        let url = format!("{scheme}://127.0.0.1:{port}");
        clients.block_on(async { Client::builder().url(url).own_thread(false).connect_lazy().expect("it is lazy") })
    };
    let (client, of_cluster) = (client_of("redis"), client_of("redis-cluster"));
    for client in [&client, &of_cluster] {
        let (exclusive, fair, rw) = (client.lock("x"), client.fair_lock("y"), client.rw_lock("z"));
        callers.spawn(async move { exclusive.lock().await });
        callers.spawn(async move { fair.lock().await });
        callers.spawn(async move { rw.read().await });
        callers.block_on(until("all to ask", ms(5_000), || client.stats().now.waiting == 3));
    }
    callers.shutdown_background();
    let have_left = || [&client, &of_cluster].iter().all(|client| client.stats().now.waiting == 0);
    clients.block_on(until("them to have left", ms(5_000), have_left));
    let server = Server::at(port, |dir| usual(port, dir));
    clients.block_on(async {
        client.lock("x").lock().await.expect("free").unlock().await.expect("ours");
        let is_over = || client.stats().now.releasing == 0 && !["x", "y", "z"].iter().any(|name| server.exists(name));
        until("all to be given back", ms(5_000), is_over).await;
    });
}
