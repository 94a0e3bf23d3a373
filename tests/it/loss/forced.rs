//! A lock forced open is taken from the one who had it, however often and late the request arrives.

use leasehold::{Client, Guard, Owner, PubSub};
use tokio::task::JoinHandle;

use crate::support::{
    Server, before, behind, client, ms, plain, poll_until,
    proxy::{Fault, Proxy, Rule, Way},
    script, script_of,
    server::version,
    until, within,
};

/// A holder, one who waits, and one who will force the lock open through a proxy.
struct Scene {
    server: Server,
    proxy: Proxy,
    forcing: Client,
    held: Guard,
    waiting: JoinHandle<leasehold::Result<Guard>>,
}

impl Scene {
    async fn set(fault: Fault) -> Scene {
        let server = Server::start();
        // A new connection must not close the one before: late requests shall arrive.
        let _: String = server.ask(&["ACL", "SETUSER", "default", "-client"]);
        let (which, proxy) = (script(&server, "force_unlock"), before(&server));
        let forcing = behind(&proxy, |builder| builder.command_timeout(ms(300))).await;
        let holding = client(&server, |builder| builder.tracking(false)).await; // no renewal in between
        let other = plain(&server).await;
        let held = holding.lock("x").lock().await.expect("free");
        let lock = other.lock("x").owner(&Owner::new());
        let waiting = tokio::spawn(async move { lock.lock().await });
        until("it to wait", ms(2_000), || other.stats().total.refused >= 2).await;
        proxy.rule(Rule::new(which, fault));
        Scene { server, proxy, forcing, held, waiting }
    }
}

/// The next holder has it, and nobody has taken it away.
async fn untouched(server: &Server, next: &Guard) {
    next.check().await.expect("nobody meant this one");
    assert_eq!(server.lock("x"), [(next.id().to_owned(), 1)]);
    assert!(!next.is_lost());
}

async fn granted(waiting: JoinHandle<leasehold::Result<Guard>>) -> Guard {
    let (taken, _) = within("the next to have it", ms(2_000), waiting).await;
    taken.expect("no panic").expect("it was forced open")
}

#[tokio::test]
async fn the_second_try_does_not_take_it_from_the_next() {
    let Scene { server, proxy, forcing, held, waiting, .. } = Scene::set(Fault::Swallow(Way::Back)).await;
    let lock = forcing.lock("x");
    // The first try works, and before the second the next one has it.
    let both = async { tokio::join!(lock.force_unlock(), granted(waiting)) };
    let ((forced, next), _) = within("an answer", ms(4_000), both).await;
    assert!(forced.expect("answered"), "the first try has done it");
    assert_eq!(proxy.tally().swallowed, 1);
    untouched(&server, &next).await;
    held.check().await.expect_err("it was forced open");
}

#[tokio::test]
async fn a_try_that_arrives_after_the_call_has_returned_does_no_harm() {
    let Scene { server, proxy, forcing, held: _held, waiting, .. } =
        Scene::set(Fault::Delay(Way::There, ms(1_500))).await;
    let lock = forcing.lock("x");
    let (forced, _) = within("an answer", ms(1_400), lock.force_unlock()).await;
    assert!(forced.expect("answered"), "the second try has done it");
    assert_eq!(proxy.tally().delayed, 1);
    let next = granted(waiting).await;
    untouched(&server, &next).await;
    let calls = server.calls("evalsha");
    until("the first try to arrive", ms(5_000), || server.calls("evalsha") > calls).await;
    untouched(&server, &next).await;
}

#[tokio::test]
async fn who_gets_it_while_the_request_is_on_its_way_keeps_it() {
    let Scene { server, proxy, forcing, held, waiting, .. } = Scene::set(Fault::Delay(Way::There, ms(200))).await;
    let lock = forcing.lock("x");
    let changes_hands = async {
        until("the request to be on its way", ms(2_000), || proxy.tally().delayed == 1).await;
        held.unlock().await.expect("ours");
        granted(waiting).await
    };
    let both = async { tokio::join!(lock.force_unlock(), changes_hands) };
    let ((forced, next), _) = within("an answer", ms(4_000), both).await;
    forced.expect("answered");
    untouched(&server, &next).await;
}

/// The holder passes the lock on in memory, so the server knows both by one id. It has confirmed that id for the second one.
#[tokio::test]
async fn the_next_in_a_row_is_not_the_one_who_was_seen() {
    let server = Server::start();
    let (which, proxy) = (script(&server, "force_unlock"), before(&server));
    let (forcing, one) = (behind(&proxy, |builder| builder).await, plain(&server).await);
    let held = one.lock("x").lock().await.expect("free");
    let lock = one.lock("x").owner(&Owner::new());
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to wait", ms(2_000), || one.stats().now.waiting == 1).await;
    proxy.rule(Rule::new(which, Fault::Delay(Way::There, ms(400))));
    let lock = forcing.lock("x");
    let forced = tokio::spawn(async move { lock.force_unlock().await });
    until("the request to be on its way", ms(2_000), || proxy.tally().delayed == 1).await;
    let id = held.id().to_owned();
    held.unlock().await.expect("ours to the end");
    let next = granted(waiting).await;
    assert_eq!(next.id(), id, "it was passed on in memory");
    let (forced, _) = within("an answer", ms(4_000), forced).await;
    assert!(!forced.expect("no panic").expect("answered"), "the holder that was seen has released it");
    untouched(&server, &next).await;
}

const JVM: &str = "6b1c7d3e-0000-4000-8000-000000000001:52";

/// A thread of a JVM acquires the lock, for so long. It has the same id each time.
fn jvm_acquires(server: &Server, lease: &str) {
    let _: u32 = server.ask(&["DEL", "x"]);
    let _: u32 = server.ask(&["HSET", "x", JVM, "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "x", lease]);
}

/// Forces a plain and a fair lock of a JVM open, with this fault. When `is_time`, that thread acquires the lock again. It must keep it.
async fn acquired_again(fault: Fault, is_time: impl Fn(&Proxy) -> bool, says: bool) {
    let fair = ["lock/forced", "lock/ends", "fair/queue", "fair/force_unlock"].map(str::to_owned);
    for is_fair in [false, true] {
        let server = Server::start();
        let which = if is_fair { script_of(&server, fair.clone()) } else { script(&server, "force_unlock") };
        let proxy = before(&server);
        let client = behind(&proxy, |builder| builder.command_timeout(ms(1_000))).await;
        jvm_acquires(&server, "30000");
        proxy.rule(Rule::new(which, fault));
        let forced = tokio::spawn(async move {
            if is_fair { client.fair_lock("x").force_unlock().await } else { client.lock("x").force_unlock().await }
        });
        until("the fault", ms(2_000), || is_time(&proxy)).await;
        jvm_acquires(&server, "50000");
        let (forced, _) = within("an answer", ms(4_000), forced).await;
        assert_eq!(forced.expect("no panic").expect("answered"), says, "fair: {is_fair}");
        assert_eq!(server.lock("x"), [(JVM.to_owned(), 1)]);
    }
}

#[tokio::test]
async fn a_jvm_that_acquires_again_before_the_request_arrives_keeps_it() {
    acquired_again(Fault::Delay(Way::There, ms(900)), |proxy| proxy.tally().delayed == 1, false).await;
}

#[tokio::test]
async fn a_jvm_that_acquires_again_before_the_second_request_arrives_keeps_it() {
    acquired_again(Fault::Swallow(Way::Back), |proxy| proxy.tally().swallowed == 1, true).await;
}

/// Its lease does not change while the request is under way, whatever the clock says. Such a lock can only be forced open.
#[tokio::test]
async fn a_lock_that_never_expires_is_forced_open_without_the_time_of_its_end() {
    let server = Server::start();
    if version() >= (7, 0) {
        let _: String = server.ask(&["ACL", "SETUSER", "default", "-pexpiretime"]);
    }
    let (which, proxy) = (script(&server, "force_unlock"), before(&server));
    let client = behind(&proxy, |builder| builder).await;
    let _: u32 = server.ask(&["HSET", "x", JVM, "1"]);
    proxy.rule(Rule::new(which, Fault::Delay(Way::There, ms(50))));
    assert!(client.lock("x").force_unlock().await.expect("answered"));
    assert_eq!(proxy.tally().delayed, 1);
    assert!(!server.exists("x"));
}

/// Only the second request arrives, when the holder has released by itself.
#[tokio::test]
async fn a_request_that_never_arrived_has_taken_nothing() {
    let Scene { server, proxy, forcing, held, waiting, .. } = Scene::set(Fault::Swallow(Way::There)).await;
    let lock = forcing.lock("x");
    let released = async {
        until("the request to be lost", ms(2_000), || proxy.tally().swallowed == 1).await;
        held.unlock().await.expect("ours to the end");
        granted(waiting).await
    };
    let both = async { tokio::join!(lock.force_unlock(), released) };
    let ((forced, next), _) = within("an answer", ms(4_000), both).await;
    assert!(!forced.expect("answered"));
    untouched(&server, &next).await;
}

/// The call was cancelled when the server had done it. Then nobody here knows it, and another client has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_call_that_was_cancelled_the_lock_is_not_passed_on_in_memory() {
    let server = Server::start();
    let (which, proxy) = (script(&server, "force_unlock"), before(&server));
    let one = behind(&proxy, |builder| builder.pubsub(PubSub::Off)).await;
    let two = plain(&server).await;
    let lock = || one.lock("x").owner(&Owner::new());
    let held = lock().lock().await.expect("free");
    let waiting = tokio::spawn({
        let lock = lock();
        async move { lock.lock().await }
    });
    until("it to wait", ms(2_000), || one.stats().now.waiting == 1).await;
    proxy.rule(Rule::new(which, Fault::Delay(Way::Back, ms(500))));
    let other = {
        let lock = lock();
        let mut forcing = Box::pin(lock.force_unlock());
        poll_until("it to be forced open", forcing.as_mut(), || !server.exists("x")).await;
        two.lock("x").try_lock().await.expect("answered").expect("forced open")
    };
    held.unlock().await.expect_err("it was forced open");
    assert!(!waiting.is_finished(), "another client has it");
    other.unlock().await.expect("ours");
    granted(waiting).await.unlock().await.expect("ours");
}
