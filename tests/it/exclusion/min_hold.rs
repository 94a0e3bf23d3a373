//! A lock that is given back early and had by nobody before its time. What only read-write locks do is in `min_hold_rw.rs`.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard, Owner};

use crate::{
    kinds::family::{Way as Kind, clean, idle},
    kinds::family_faults,
    support::{
        Server, Stopwatch, before, begin, behind, client, ms, plain,
        proxy::{Fault, Mode, Rule, Way},
        script, until, with_rights, within,
    },
};

const SOON: Duration = ms(3_000);
const LEAST: Duration = ms(1_500);

/// Acquired and released at once by a client, while a task waits in another client and one in the same.
macro_rules! given_back_early {
    ($make:ident) => {
        given_back_early!($make: lock, lock, try_lock)
    };
    ($make:ident: $hold:ident, $wait:ident, $try:ident) => {{
        let server = Server::start();
        let (one, other) = (plain(&server).await, plain(&server).await);
        let asked = Stopwatch::start();
        let guard = one.$make("x").min_hold(LEAST).$hold().await.expect("free");
        let granted = Stopwatch::start();
        let waiting = [&one, &other].map(|client| {
            let lock = client.$make("x").owner(&Owner::new());
            tokio::spawn(async move {
                let guard = lock.$wait().await.expect("in the end");
                let got = Stopwatch::start();
                guard.unlock().await.expect("ours");
                got
            })
        });
        until("them to wait", SOON, || [&one, &other].iter().all(|client| client.stats().now.waiting == 1)).await;
        until("them to ask", SOON, || other.stats().total.refused >= 1).await;
        guard.unlock().await.expect("ours to the end");
        assert!(granted.elapsed() < LEAST, "nobody waits for the rest of it");
        assert!(one.$make("x").owner(&Owner::new()).$try().await.expect("answered").is_none());
        for waiting in waiting {
            let got = within("its turn", SOON, waiting).await.0.expect("no panic");
            assert!(got.since(&asked) >= LEAST, "{}", got.since(&asked));
            assert!(got.since(&granted) < LEAST + ms(1_000), "{}", got.since(&granted));
        }
        idle(&one).await;
        clean(&server, &other).await;
    }};
}

#[tokio::test]
async fn a_lock() {
    given_back_early!(lock);
}

#[tokio::test]
async fn a_mutex() {
    given_back_early!(mutex);
}

#[tokio::test]
async fn a_fair_lock() {
    given_back_early!(fair_lock);
}

#[tokio::test]
async fn a_fenced_lock() {
    given_back_early!(fenced_lock);
}

#[tokio::test]
async fn a_write_lock() {
    given_back_early!(rw_lock: write, write, try_write);
}

#[tokio::test]
async fn a_write_lock_for_readers() {
    given_back_early!(rw_lock: write, read, try_read);
}

#[tokio::test]
async fn a_read_lock() {
    given_back_early!(rw_lock: read, write, try_write);
}

/// In this process, too, it is passed on as ever when the time is over.
#[tokio::test]
async fn given_back_late_it_goes_on_at_once() {
    let server = Server::start();
    let one = plain(&server).await;
    let guard = one.mutex("x").min_hold(ms(50)).lock().await.expect("free");
    let waiting = tokio::spawn({
        let lock = one.mutex("x");
        async move { lock.lock().await.expect("in the end") }
    });
    until("it to wait", SOON, || one.stats().now.waiting == 1).await;
    tokio::time::sleep(ms(60)).await; // its time itself
    guard.unlock().await.expect("ours");
    let next = within("its turn", SOON, waiting).await.0.expect("no panic");
    assert_eq!(one.stats().total.handed_over, 1);
    next.unlock().await.expect("ours");
    clean(&server, &one).await;
}

#[tokio::test]
async fn dropped_or_closed_it_stays_as_long() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    drop(one.mutex("dropped").min_hold(LEAST).lock().await.expect("free"));
    let guard = one.mutex("closed").min_hold(LEAST).lock().await.expect("free");
    drop(one.rw_lock("read").min_hold(LEAST).read().await.expect("free"));
    let write = one.rw_lock("written").min_hold(LEAST).write().await.expect("free");
    one.close().await.expect("in time");
    drop((guard, write));
    for name in ["dropped", "closed"] {
        assert!(other.mutex(name).try_lock().await.expect("answered").is_none(), "{name}");
    }
    for name in ["read", "written"] {
        assert!(other.rw_lock(name).try_write().await.expect("answered").is_none(), "{name}");
    }
    let names = ["dropped", "closed", "read", "written"];
    for name in names {
        assert!((0..=1_500).contains(&server.pttl(name)), "{name}: {}", server.pttl(name));
    }
    until("their end", SOON, || names.iter().all(|name| !server.exists(name))).await;
    clean(&server, &other).await;
}

/// It counts from the grant of each; the outermost guard gives back.
#[tokio::test]
async fn of_nested_ones_the_latest_counts() {
    let server = Server::start();
    let (one, owner) = (plain(&server).await, Owner::new());
    let lock = |client: &Client| client.lock("x").owner(&owner);
    let outer = lock(&one).lock().await.expect("free");
    lock(&one).min_hold(LEAST).lock().await.expect("nested").unlock().await.expect("ours");
    outer.unlock().await.expect("ours");
    assert!(matches!(server.pttl("x"), 1..=1_500));
    until("its end", SOON, || !server.exists("x")).await;
    clean(&server, &one).await;
}

/// The script may run twice: the second run finds the lock as the first has left it.
#[tokio::test]
async fn a_lost_reply_changes_nothing() {
    let server = Server::start();
    let release = script(&server, "release");
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(300))).await;
    let guard = client.mutex("x").min_hold(ms(1_500)).lock().await.expect("free");
    proxy.rule(Rule::new(release, Fault::Cut(Way::Back)));
    guard.unlock().await.expect("ours to the end");
    assert!(matches!(server.pttl("x"), 1..=1_500), "{}", server.pttl("x"));
    until("its end", SOON, || !server.exists("x")).await;
    clean(&server, &client).await;
}

/// The server counts it from the grant, not from a request that was on its way for long.
#[tokio::test]
async fn a_slow_request_does_not_make_it_shorter() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    client.mutex("x").lock().await.expect("free").unlock().await.expect("ours"); // the server has the scripts
    proxy.rule(Rule::new(script(&server, "acquire"), Fault::Delay(Way::There, ms(400))));
    let guard = client.mutex("x").min_hold(LEAST).lock().await.expect("free");
    let granted = Stopwatch::start();
    guard.unlock().await.expect("ours to the end");
    until("its end", SOON, || !server.exists("x")).await;
    // A busy machine lets the caller look late at the reply, but not by half of the delay.
    assert!(granted.elapsed() >= LEAST - ms(200), "{}", granted.elapsed());
    clean(&server, &client).await;
}

#[tokio::test]
async fn what_cannot_be_is_refused() {
    let server = Server::start();
    let one = plain(&server).await;
    let bad = [
        one.lock("x").min_hold(Duration::ZERO),
        one.lock("x").min_hold(Duration::MAX),
        one.lock("x").lease(ms(100)).min_hold(ms(101)),
    ];
    for lock in bad {
        let error = lock.lock().await.expect_err("nonsense");
        assert!(matches!(error, Error::InvalidConfig { .. }) && error.to_string().contains("min_hold"), "{error}");
    }
    one.lock("x").lease(ms(9_000)).min_hold(ms(9_000)).lock().await.expect("good").unlock().await.expect("ours");
}

/// The holder's client falls silent, as if its process were killed. The lock stays for the whole time, although the watchdog asks for
/// far less.
macro_rules! holder_that_dies {
    ($make:ident) => {
        holder_that_dies!($make: lock, lock)
    };
    ($make:ident: $hold:ident, $next:ident) => {{
        let server = Server::start();
        let proxy = before(&server);
        let (one, other) = (behind(&proxy, |builder| builder.watchdog(ms(300))).await, plain(&server).await);
        let asked = Instant::now();
        let guard = one.$make("x").min_hold(LEAST).$hold().await.expect("free");
        proxy.set(Mode::Swallow);
        let next = within("its end", SOON, other.$make("x").$next()).await.0.expect("in the end");
        assert!(asked.elapsed() >= LEAST, "{:?}", asked.elapsed());
        next.unlock().await.expect("ours");
        drop(guard);
    }};
}

#[tokio::test]
async fn a_holder_that_dies_keeps_a_lock_as_long() {
    holder_that_dies!(lock);
}

#[tokio::test]
async fn a_holder_that_dies_keeps_a_fenced_lock_as_long() {
    holder_that_dies!(fenced_lock);
}

#[tokio::test]
async fn a_holder_that_dies_keeps_a_fair_lock_as_long() {
    holder_that_dies!(fair_lock);
}

#[tokio::test]
async fn a_holder_that_dies_keeps_a_write_lock_as_long() {
    holder_that_dies!(rw_lock: write, read);
}

#[tokio::test]
async fn a_holder_that_dies_keeps_a_read_lock_as_long() {
    holder_that_dies!(rw_lock: read, write);
}

/// The one before had it without a `min_hold`, and passes it on.
#[tokio::test]
async fn a_waiter_that_was_passed_the_lock_and_dies_keeps_it_as_long() {
    let server = Server::start();
    let proxy = before(&server);
    let (one, other) = (behind(&proxy, |builder| builder.watchdog(ms(300))).await, plain(&server).await);
    let first = one.mutex("x").lock().await.expect("free");
    let waiting = tokio::spawn({
        let lock = one.mutex("x").min_hold(LEAST);
        async move { lock.lock().await.expect("in the end") }
    });
    until("it to wait", SOON, || one.stats().now.waiting == 1).await;
    let passed = Instant::now();
    first.unlock().await.expect("ours");
    let second = within("its turn", SOON, waiting).await.0.expect("no panic");
    proxy.set(Mode::Swallow);
    let next = within("its end", SOON, other.mutex("x").lock()).await.0.expect("in the end");
    assert!(passed.elapsed() >= LEAST, "{:?}", passed.elapsed());
    next.unlock().await.expect("ours");
    drop(second);
}

/// The holder must stop after `max_hold`; the others wait for `min_hold` all the same.
macro_rules! shorter_max_hold {
    ($make:ident: $hold:ident, $next:ident) => {{
        let server = Server::start();
        let one = crate::support::client(&server, |builder| builder.watchdog(ms(300))).await;
        for keeps_the_guard in [true, false] {
            let (other, asked) = (plain(&server).await, Instant::now());
            let lock = one.$make("x").owner(&Owner::new()).max_hold(ms(100)).min_hold(LEAST);
            let guard = lock.$hold().await.expect("free");
            assert_eq!(within("its cap", SOON, guard.lost()).await.0, leasehold::Lost::MaxHold);
            let kept = keeps_the_guard.then_some(guard);
            let next = within("its end", SOON, other.$make("x").$next()).await.0.expect("in the end");
            assert!(asked.elapsed() >= LEAST, "{:?}", asked.elapsed());
            next.unlock().await.expect("ours");
            drop(kept);
            idle(&one).await;
        }
    }};
}

#[tokio::test]
async fn a_shorter_max_hold_does_not_end_it() {
    shorter_max_hold!(mutex: lock, lock);
}

#[tokio::test]
async fn a_shorter_max_hold_does_not_end_that_of_a_write_lock() {
    shorter_max_hold!(rw_lock: write, read);
}

#[tokio::test]
async fn a_shorter_max_hold_does_not_end_that_of_a_read_lock() {
    shorter_max_hold!(rw_lock: read, write);
}

/// Each lock is passed on in this process and then released early: what confirms that the first had it must not renew the rest.
#[tokio::test]
async fn a_late_confirmation_does_not_make_it_longer() {
    let server = Server::start();
    let one = plain(&server).await;
    let name = |n: u32| format!("x{n}");
    let pairs: Vec<_> = (0..500)
        .map(|n| {
            let one = one.clone();
            tokio::spawn(async move {
                let first = one.mutex(&name(n)).lock().await.expect("free");
                let next = one.mutex(&name(n)).min_hold(ms(300));
                let (first, next) = tokio::join!(
                    async {
                        tokio::task::yield_now().await;
                        first.unlock().await
                    },
                    async { next.lock().await.expect("in the end").unlock().await }
                );
                first.expect("ours to the end");
                next.expect("ours to the end");
            })
        })
        .collect();
    for pair in pairs {
        pair.await.expect("no panic");
    }
    let longest = (0..500).map(|n| server.pttl(&name(n))).max().expect("some");
    assert!(longest <= 300, "one stays for {longest} ms");
    until("their end", SOON, || (0..500).all(|n| !server.exists(&name(n)))).await;
    idle(&one).await;
}

/// Whatever of the hold comes late does not find it any more: a renewal, a second release, an acquisition of its own.
macro_rules! what_rests {
    ($make:ident, $kind:expr) => {{
        let server = Server::start();
        let scripts = ["renew", "release", "acquire"].map(|name| family_faults::sha(&server, $kind, name));
        let (one, other) = (plain(&server).await, plain(&server).await);
        let guard = one.$make("x").min_hold(ms(1_000)).lock().await.expect("free");
        let id = guard.id().to_owned();
        guard.unlock().await.expect("ours to the end");
        let late = |script: &str, lease: &str, count: &str, more: &str| -> String {
            let (queue, places) = ("redisson_lock_queue:{x}", "redisson_lock_timeout:{x}");
            let keys = ["x", if $kind == Kind::Fenced { "redisson_lock_token:{x}" } else { queue }, places];
            let channel = "redisson_lock__channel:{x}";
            let begin =
                ["EVALSHA", script, "3", keys[0], keys[1], keys[2], "1", "nonce", &id, lease, count, more, channel];
            server.ask(&[&begin[..], &["PUBLISH"]].concat())
        };
        assert_eq!(late(&scripts[0], "30000", "0", ""), "nonce gone");
        assert!(late(&scripts[1], "60000", "0", "PUBLISH").starts_with("nonce released"), "as the first time");
        assert!(late(&scripts[2], "30000", "1", "first").starts_with("nonce busy"), "nobody has it again");
        assert!((1..=1_000).contains(&server.pttl("x")), "{}", server.pttl("x"));
        let rests = other.$make("x").inspect().await.expect("answered").expect("it rests");
        assert_eq!((rests.id, rests.holds), (format!("{id}:rest"), 1));
        assert!(other.$make("x").is_locked().await.expect("answered"));
        assert!(other.$make("x").try_lock().await.expect("answered").is_none());
        assert!(other.$make("x").force_unlock().await.expect("answered"), "it can be forced open");
        other.$make("x").try_lock().await.expect("answered").expect("free").unlock().await.expect("ours");
        idle(&one).await;
        clean(&server, &other).await;
    }};
}

#[tokio::test]
async fn what_rests_of_a_lock_cannot_be_renewed() {
    what_rests!(mutex, Kind::Plain);
}

#[tokio::test]
async fn what_rests_of_a_fenced_lock_cannot_be_renewed() {
    what_rests!(fenced_lock, Kind::Fenced);
}

#[tokio::test]
async fn what_rests_of_a_fair_lock_cannot_be_renewed() {
    what_rests!(fair_lock, Kind::Fair);
}

/// The release is sent twice, since the request or its reply is lost. The rest counts from the grant all the same.
macro_rules! released_twice {
    ($make:ident, $kind:expr) => {
        released_twice!($make: lock, $kind)
    };
    ($make:ident: $hold:ident, $kind:expr) => {{
        for way in [Way::There, Way::Back] {
            let server = Server::start();
            let release = family_faults::script(&server, $kind, "release");
            let proxy = before(&server);
            let client = behind(&proxy, |builder| builder.command_timeout(ms(800))).await;
            let guard = client.$make("x").min_hold(LEAST).$hold().await.expect("free");
            let granted = Stopwatch::start();
            proxy.rule(Rule::new(release, Fault::Swallow(way)));
            guard.unlock().await.expect("ours to the end");
            assert!(proxy.is_spent());
            until("its end", SOON, || !server.exists("x")).await;
            assert!(granted.elapsed() < LEAST + ms(400), "{way:?}: {:?}", granted.elapsed());
            clean(&server, &client).await;
        }
    }};
}

#[tokio::test]
async fn a_second_release_of_a_lock_does_not_make_it_longer() {
    released_twice!(mutex, Kind::Plain);
}

#[tokio::test]
async fn a_second_release_of_a_fair_lock_does_not_make_it_longer() {
    released_twice!(fair_lock, Kind::Fair);
}

#[tokio::test]
async fn a_second_release_of_a_write_lock_does_not_make_it_longer() {
    released_twice!(rw_lock: write, Kind::Write);
}

#[tokio::test]
async fn a_second_release_of_a_read_lock_does_not_make_it_longer() {
    released_twice!(rw_lock: read, Kind::Read);
}

/// What stays takes no more memory than a lock that is there, and the first thing that is done is never refused.
#[tokio::test]
async fn it_is_released_early_although_the_memory_is_full() {
    let server = Server::start();
    let client = plain(&server).await;
    let guards = (
        client.mutex("a lock").min_hold(LEAST).lock().await.expect("free"),
        client.fair_lock("a fair lock").min_hold(LEAST).lock().await.expect("free"),
    );
    let read = client.rw_lock("read").min_hold(LEAST).read().await.expect("free");
    let write = client.rw_lock("written").min_hold(LEAST).write().await.expect("free");
    let _: String = server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let (_, took) = within("the release", SOON, guards.0.unlock()).await;
    within("the release", SOON, guards.1.unlock()).await.0.expect("ours to the end");
    within("the release", SOON, read.unlock()).await.0.expect("ours to the end");
    within("the release", SOON, write.unlock()).await.0.expect("ours to the end");
    assert!(took < ms(1_000), "{took:?}");
    for name in ["read", "written"] {
        let fields: Vec<String> = server.ask(&["HKEYS", name]);
        assert!(fields.len() == 2 && fields[1].ends_with(":rest"), "{fields:?}");
        assert!((1..=1_500).contains(&server.pttl(name)));
    }
    for name in ["a lock", "a fair lock"] {
        assert!(server.lock(name)[0].0.ends_with(":rest"), "{:?}", server.lock(name));
        assert!((1..=1_500).contains(&server.pttl(name)));
    }
}

/// Nobody else runs it, so this caller must, however late it looks.
#[tokio::test]
async fn a_job_whose_caller_looks_late_runs() {
    let server = Server::start();
    let client = plain(&server).await;
    let job = client.mutex("x");
    let mut ran = false;
    let mut run = Box::pin(job.run_once_per(ms(60_000), async || ran = true));
    begin(&server, run.as_mut());
    until("it to be granted", SOON, || server.exists("x")).await;
    until("it to be passed over", SOON, || !server.exists("x")).await;
    let told = run.await.expect("answered");
    assert!(ran, "nobody ran it: {told:?}");
}

#[tokio::test]
async fn a_job_beside_a_branch_that_computes_runs() {
    let server = Server::start();
    let client = client(&server, |builder| builder.own_thread(true)).await;
    let job = client.mutex("x");
    let mut ran = false;
    let computes = async { std::thread::sleep(ms(1_000)) };
    let (told, ()) = tokio::join!(job.run_once_per(ms(60_000), async || ran = true), computes);
    assert!(ran, "nobody ran it: {told:?}");
}

/// The caller begins the work when it looks, so the time counts from then.
#[tokio::test]
async fn it_counts_from_the_time_at_which_the_caller_looks() {
    let server = Server::start();
    let (one, other) = (plain(&server).await, plain(&server).await);
    let lock = one.mutex("x").min_hold(LEAST);
    let mut holding = Box::pin(lock.try_lock());
    begin(&server, holding.as_mut());
    until("it to be granted", SOON, || server.exists("x")).await;
    tokio::time::sleep(ms(200)).await; // less than it takes until others go first
    let looks = Stopwatch::start();
    holding.await.expect("answered").expect("free").unlock().await.expect("ours");
    let next = within("its time to pass", LEAST + SOON, other.mutex("x").lock()).await.0;
    next.expect("free").unlock().await.expect("ours");
    assert!(looks.elapsed() >= LEAST, "{}", looks.elapsed());
}

/// Who gives up before looking has not had the lock.
macro_rules! unseen_it_does_not_rest {
    ($make:ident: $hold:ident, $try:ident) => {{
        let server = Server::start();
        let (one, other) = (plain(&server).await, plain(&server).await);
        let lock = one.$make("x").min_hold(ms(60_000));
        let mut holding = Box::pin(lock.$hold());
        begin(&server, holding.as_mut());
        until("it to be granted", SOON, || server.exists("x")).await;
        drop(holding);
        idle(&one).await;
        assert!(other.$make("x").$try().await.expect("answered").is_some());
    }};
}

#[tokio::test]
async fn a_lock_that_nobody_saw_does_not_rest() {
    unseen_it_does_not_rest!(lock: lock, try_lock);
}

#[tokio::test]
async fn a_fair_lock_that_nobody_saw_does_not_rest() {
    unseen_it_does_not_rest!(fair_lock: lock, try_lock);
}

#[tokio::test]
async fn a_read_lock_that_nobody_saw_does_not_rest() {
    unseen_it_does_not_rest!(rw_lock: read, try_write);
}

/// A lock has one field, whatever this user may not do.
#[tokio::test]
async fn a_lock_of_a_user_without_hdel_stays_until_its_lease_expires() {
    let server = Server::start();
    let one = with_rights(&server, &["~*", "&*", "+@all", "-hdel", "-del"]).await;
    let other = plain(&server).await;
    let rw = |name| one.rw_lock(name).min_hold(LEAST).lease(2 * LEAST);
    let asked = Stopwatch::start();
    let kinds: [Guard; 4] = [
        one.lock("lock").min_hold(LEAST).lease(2 * LEAST).lock().await.expect("free"),
        one.fair_lock("fair").min_hold(LEAST).lease(2 * LEAST).lock().await.expect("free"),
        rw("read").read().await.expect("free").into(),
        rw("write").write().await.expect("free").into(),
    ];
    for guard in kinds {
        let (name, id) = (guard.name().to_owned(), guard.id().to_owned());
        let refused = guard.unlock().await.expect_err("not permitted");
        assert!(matches!(&refused, Error::Denied { reason, .. } if reason.contains("hdel")), "{name}: {refused:?}");
        let fields: Vec<String> = server.ask(&["HKEYS", &name]);
        assert_eq!(fields.iter().filter(|field| *field != "mode").collect::<Vec<_>>(), [&id], "{name}");
    }
    assert!(other.lock("lock").try_lock().await.expect("answered").is_none());
    let next = within("its turn", 2 * LEAST + SOON, other.lock("lock").lock()).await.0.expect("in the end");
    assert!(asked.elapsed() >= 2 * LEAST, "{}", asked.elapsed());
    next.unlock().await.expect("ours");
}
