//! What every primitive must do that can do it at all: one list of cases for each capability, run for each that has it.

use std::{ops::Deref, time::Duration};

use leasehold::{Client, Error, FencedGuard, Guard, Lost, Owner, Result, WriteGuard};
use tokio::task::JoinHandle;

use crate::support::{
    Server, client, ms, plain,
    stall::{LAST_ATTEMPT, unless_stalled},
    until, within,
};

const SOON: Duration = ms(4_000);

/// A primitive, or one side of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    Fenced,
    Read,
    Write,
    Fair,
}

/// What is held, whatever guard it is.
#[derive(Debug)]
pub(crate) enum Held {
    Plain(Guard),
    Fenced(FencedGuard),
    Write(WriteGuard),
}

impl Deref for Held {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        match self {
            Held::Plain(guard) => guard,
            Held::Fenced(guard) => guard,
            Held::Write(guard) => guard,
        }
    }
}

impl Held {
    pub(crate) async fn unlock(self) -> Result<()> {
        match self {
            Held::Plain(guard) => guard.unlock().await,
            Held::Fenced(guard) => guard.unlock().await,
            Held::Write(guard) => guard.unlock().await,
        }
    }
}

/// How to take it.
#[derive(Debug, Clone, Default)]
pub(crate) struct How {
    pub(crate) lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) owner: Option<Owner>,
    /// Once for zero, for ever for none.
    pub(crate) patience: Option<Duration>,
}

impl How {
    pub(crate) fn lease(lease: Duration) -> How {
        How { lease: Some(lease), ..How::default() }
    }

    pub(crate) fn for_other() -> How {
        How { owner: Some(Owner::new()), ..How::default() }
    }

    pub(crate) fn patience(self, time: Duration) -> How {
        How { patience: Some(time), ..self }
    }
}

/// Takes a lock in one of three ways: once, for a time, for ever.
macro_rules! taken {
    ($lock:expr, $how:expr, $wrap:path, $take:ident, $try_take:ident, $try_take_for:ident) => {{
        let mut lock = $lock;
        if let Some(lease) = $how.lease {
            lock = lock.lease(lease);
        }
        if let Some(max_hold) = $how.max_hold {
            lock = lock.max_hold(max_hold);
        }
        if let Some(owner) = &$how.owner {
            lock = lock.owner(owner);
        }
        match $how.patience {
            None => lock.$take().await.map(|guard| Some($wrap(guard.into()))),
            Some(Duration::ZERO) => Ok(lock.$try_take().await?.map(|guard| $wrap(guard.into()))),
            Some(time) => Ok(lock.$try_take_for(time).await?.map(|guard| $wrap(guard.into()))),
        }
    }};
}

impl Way {
    pub(crate) async fn take(self, client: &Client, name: &str, how: How) -> Result<Option<Held>> {
        match self {
            Way::Plain => taken!(client.lock(name), how, Held::Plain, lock, try_lock, try_lock_for),
            Way::Fenced => taken!(client.fenced_lock(name), how, Held::Fenced, lock, try_lock, try_lock_for),
            Way::Read => taken!(client.rw_lock(name), how, Held::Plain, read, try_read, try_read_for),
            Way::Fair => taken!(client.fair_lock(name), how, Held::Plain, lock, try_lock, try_lock_for),
            Way::Write => taken!(client.rw_lock(name), how, Held::Write, write, try_write, try_write_for),
        }
    }

    pub(crate) async fn lock(self, client: &Client, name: &str) -> Held {
        self.take(client, name, How::default()).await.expect("answered").expect("ours in the end")
    }

    /// What keeps others from taking it this way.
    fn excluded_by(self) -> Way {
        if self == Way::Read { Way::Write } else { self }
    }

    /// Somebody else of this client asks once.
    async fn refuses_another(self, client: &Client) -> bool {
        let another = self.take(client, "x", How::for_other().patience(Duration::ZERO));
        another.await.expect("answered").is_none()
    }

    /// Somebody else waits for it, in a task.
    fn waits(self, client: &Client, how: How) -> JoinHandle<Held> {
        let client = client.clone();
        tokio::spawn(async move { self.take(&client, "x", how).await.expect("answered").expect("ours in the end") })
    }

    /// The one waiter of a client that has the lock itself has nothing to do before that is given back.
    pub(crate) fn sleeps_behind_own(client: &Client) -> bool {
        client.stats().now.waiting == 1 // in memory
    }

    /// What Redis counts if one owner holds the lock by that many guards. Readers of one client that share a hold are not counted there.
    pub(crate) fn count_of(self, guards: u32) -> u32 {
        if self == Way::Read { 1 } else { guards }
    }

    async fn force_unlock(self, client: &Client) -> bool {
        match self {
            Way::Plain => client.lock("x").force_unlock().await,
            Way::Fenced => client.fenced_lock("x").force_unlock().await,
            Way::Fair => client.fair_lock("x").force_unlock().await,
            Way::Read | Way::Write => client.rw_lock("x").force_unlock().await,
        }
        .expect("answered")
    }
}

/// What was counted under the lock; it does not stay.
pub(crate) fn counted(server: &Server) -> u32 {
    let count = server.ask(&["GET", "count"]);
    let _: u32 = server.ask(&["DEL", "count"]);
    count
}

/// Nothing of the lock is left in Redis: only the token may stay.
pub(crate) fn is_clean(server: &Server) -> bool {
    let keys: Vec<String> = server.ask(&["KEYS", "*"]);
    // Which call has forced a lock open is there for a minute.
    keys.iter().all(|key| key.starts_with("redisson_lock_token:") || key.starts_with("leasehold_forced:"))
}

/// Nothing of the client is under way any more, also in the background.
pub(crate) async fn idle(client: &Client) {
    let idle = || {
        let now = client.stats().now;
        (now.holds, now.waiting, now.releasing) == (0, 0, 0)
    };
    until("the client to be idle", SOON, idle).await;
}

/// The client has left nothing behind, nor have others: those must be idle by then.
pub(crate) async fn clean(server: &Server, client: &Client) {
    idle(client).await;
    let keys: Vec<String> = server.ask(&["KEYS", "*"]);
    assert!(is_clean(server), "{keys:?}");
}

async fn two_clients() -> (Server, Client, Client) {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    (server, one, two)
}

pub(crate) mod exclusive {
    use super::*;

    pub(crate) async fn one_at_a_time(way: Way) {
        let (server, one, two) = two_clients().await;
        let guard = way.lock(&one, "x").await;
        assert!(way.refuses_another(&one).await && way.refuses_another(&two).await);
        guard.unlock().await.expect("ours");
        let guard = way.lock(&two, "x").await;
        assert!(way.refuses_another(&one).await);
        drop(guard);
        clean(&server, &two).await;
    }

    /// Sixty-four tasks in two clients count on a number that only the holder may change.
    pub(crate) async fn a_counter(way: Way) {
        let (server, one, two) = two_clients().await;
        let turns = (0..64).map(|n| {
            let (client, server) = (if n % 2 == 0 { one.clone() } else { two.clone() }, server.url());
            tokio::spawn(async move {
                for _ in 0..4 {
                    let guard = way.take(&client, "x", How::for_other()).await.expect("answered").expect("ours");
                    let raw = redis::Client::open(&*server).expect("a good URL");
                    let mut raw = raw.get_connection().expect("it answers");
                    let count: Option<u32> = redis::cmd("GET").arg("count").query(&mut raw).expect("a number");
                    tokio::task::yield_now().await;
                    let next = count.unwrap_or_default() + 1;
                    let _: String = redis::cmd("SET").arg("count").arg(next).query(&mut raw).expect("set");
                    guard.unlock().await.expect("ours to the end");
                }
            })
        });
        for turn in turns.collect::<Vec<_>>() {
            within("its turns", ms(20_000), turn).await.0.expect("no panic");
        }
        assert_eq!(counted(&server), 256);
        idle(&one).await;
        clean(&server, &two).await;
    }
}

pub(crate) mod shared {
    use super::*;

    pub(crate) async fn by_all_who_ask(way: Way) {
        let (server, one, two) = two_clients().await;
        let mut held = Vec::new();
        for client in [&one, &one, &two] {
            held.push(way.take(client, "x", How::for_other()).await.expect("answered").expect("shared"));
        }
        assert!(way.excluded_by().refuses_another(&two).await);
        for one in held {
            one.check().await.expect("the others left it alone");
            one.unlock().await.expect("ours");
        }
        idle(&one).await;
        clean(&server, &two).await;
    }

    pub(crate) async fn until_each_lease_ends(way: Way) {
        let (server, one, two) = two_clients().await;
        let short = way.take(&one, "x", How::lease(ms(300))).await.expect("answered").expect("free");
        let long = way.lock(&two, "x").await;
        assert_eq!(within("its end", SOON, short.lost()).await.0, Lost::Expired);
        assert!(long.check().await.is_ok() && server.pttl("x") > 20_000);
        drop(short);
        long.unlock().await.expect("ours");
        clean(&server, &two).await;
    }
}

pub(crate) mod reentrant {
    use super::*;

    pub(crate) async fn counts_in_redis(way: Way) {
        let (server, one, _) = two_clients().await;
        let outer = way.lock(&one, "x").await;
        let inner = way.lock(&one, "x").await;
        let held = |server: &Server, id: &str| server.ask::<Option<u32>>(&["HGET", "x", id]);
        assert_eq!((outer.id(), outer.holds(), held(&server, outer.id())), (inner.id(), 2, Some(way.count_of(2))));
        outer.unlock().await.expect("ours");
        assert_eq!(held(&server, inner.id()), Some(1));
        inner.unlock().await.expect("ours");
        clean(&server, &one).await;
    }

    pub(crate) async fn a_lost_hold_is_not_taken_afresh(way: Way) {
        let (server, one, _) = two_clients().await;
        let outer = way.lock(&one, "x").await;
        let _: u32 = server.ask(&["DEL", "x"]);
        let again = way.take(&one, "x", How::default()).await;
        assert!(matches!(again, Err(Error::Lost { .. })), "{again:?}");
        assert!(outer.is_lost());
    }
}

pub(crate) mod waiting {
    use super::*;

    pub(crate) async fn is_woken_by_a_release_elsewhere(way: Way) {
        let (server, one, two) = two_clients().await;
        let guard = way.excluded_by().lock(&one, "x").await;
        let waiting = way.waits(&two, How::default());
        until("a subscription", SOON, || two.stats().total.refused >= 2).await;
        guard.unlock().await.expect("ours");
        let (next, took) = within("its turn", SOON, waiting).await;
        assert!(took < ms(500), "by message: {took:?}");
        next.expect("no panic").unlock().await.expect("ours");
        clean(&server, &two).await;
    }

    pub(crate) async fn gives_up_in_time(way: Way) {
        unless_stalled(LAST_ATTEMPT, async || gives_up(way).await).await;
    }

    async fn gives_up(way: Way) {
        let (server, one, two) = two_clients().await;
        let guard = way.excluded_by().lock(&one, "x").await;
        for client in [&one, &two] {
            let how = How::for_other().patience(ms(150));
            let (taken, took) = within("its end", SOON, way.take(client, "x", how)).await;
            assert!(taken.expect("answered").is_none() && took >= ms(150), "{took:?}");
        }
        guard.unlock().await.expect("ours");
        idle(&one).await;
        clean(&server, &two).await;
    }

    pub(crate) async fn has_it_when_the_lease_ends(way: Way) {
        let (server, one, two) = two_clients().await;
        let guard = way.excluded_by().take(&one, "x", How::lease(ms(300))).await.expect("answered").expect("free");
        let (next, took) = within("its turn", SOON, way.waits(&two, How::default())).await;
        assert!(took < ms(600), "{took:?}");
        assert!(guard.is_lost());
        next.expect("no panic").unlock().await.expect("ours");
        drop(guard);
        clean(&server, &two).await;
    }
}

pub(crate) mod hand_over {
    use super::*;

    pub(crate) async fn to_the_next_here(way: Way) {
        let (server, one, _) = two_clients().await;
        let guard = way.lock(&one, "x").await;
        let waiting = way.waits(&one, How { lease: Some(ms(60_000)), ..How::for_other() });
        until("it to sleep", SOON, || Way::sleeps_behind_own(&one)).await;
        guard.unlock().await.expect("ours to the end");
        let next = within("the hand-over", SOON, waiting).await.0.expect("no panic");
        assert_eq!((one.stats().total.handed_over, server.calls("publish")), (1, 0));
        next.unlock().await.expect("ours");
        clean(&server, &one).await;
    }
}

pub(crate) mod kept {
    use super::*;

    pub(crate) async fn by_the_watchdog(way: Way) {
        let server = Server::start();
        let client = client(&server, |builder| builder.watchdog(ms(1_000))).await;
        let guard = way.lock(&client, "x").await;
        until("four renewals", ms(10_000), || client.stats().total.renewals >= 4).await;
        assert!(!guard.is_lost() && server.pttl("x") > 0);
        guard.check().await.expect("ours");
        guard.extend(ms(60_000)).await.expect("ours");
        assert!(server.pttl("x") > 50_000);
        // A reader whose request took longer than the one before cannot know from its reply that no JVM has shortened the lease.
        until("a reply that shows it", ms(5_000), || guard.remaining() > ms(20_000)).await;
        guard.unlock().await.expect("ours");
        clean(&server, &client).await;
    }

    pub(crate) async fn no_longer_than_its_lease(way: Way) {
        let (server, one, _) = two_clients().await;
        let guard = way.take(&one, "x", How::lease(ms(200))).await.expect("answered").expect("free");
        assert_eq!(within("its end", SOON, guard.lost()).await.0, Lost::Expired);
        until("the server's end", SOON, || !server.exists("x")).await;
        assert!(matches!(guard.unlock().await, Err(Error::Lost { .. })));
        let capped = How { max_hold: Some(ms(100)), ..How::default() };
        let guard = way.take(&one, "x", capped).await.expect("answered").expect("free");
        assert_eq!(within("its end", SOON, guard.lost()).await.0, Lost::MaxHold);
        drop(guard);
        clean(&server, &one).await;
    }
}

pub(crate) mod lost {
    use super::*;

    pub(crate) async fn is_told_within_a_third(way: Way) {
        let server = Server::start();
        let client = client(&server, |builder| builder.watchdog(ms(900))).await;
        let guard = way.lock(&client, "x").await;
        let _: u32 = server.ask(&["DEL", "x"]);
        let (reason, took) = within("the loss", SOON, guard.lost()).await;
        assert!(reason == Lost::Removed && took < ms(600), "{reason:?} {took:?}");
        assert!(matches!(guard.unlock().await, Err(Error::Lost { .. })));
        clean(&server, &client).await;
    }

    pub(crate) async fn by_force(way: Way) {
        let (server, one, two) = two_clients().await;
        assert!(!way.force_unlock(&two).await, "nobody has it");
        let guard = way.excluded_by().lock(&one, "x").await;
        let waiting = way.waits(&two, How::default());
        until("it to sleep", SOON, || two.stats().total.refused >= 2).await;
        assert!(way.force_unlock(&two).await);
        let (next, took) = within("its turn", SOON, waiting).await;
        assert!(took < ms(500), "by message: {took:?}");
        assert!(matches!(guard.check().await, Err(Error::Lost { .. })));
        drop(guard);
        next.expect("no panic").unlock().await.expect("ours");
        clean(&server, &two).await;
    }
}

pub(crate) mod cancelled {
    use super::*;

    /// Whenever the call is dropped, nothing stays of it.
    pub(crate) async fn at_any_moment(way: Way) {
        let (server, one, two) = two_clients().await;
        for round in 0..60_u64 {
            let guard = if round % 2 == 0 { Some(way.lock(&one, "x").await) } else { None };
            let calls = (0..4).map(|n| {
                let (client, time) = (if n % 2 == 0 { &one } else { &two }, Duration::from_micros(round * 40 + n * 13));
                let taking = async move { drop(way.take(client, "x", How::for_other()).await) };
                tokio::time::timeout(time, taking)
            });
            futures_util::future::join_all(calls).await;
            drop(guard);
        }
        let last = within("the lock", SOON, way.lock(&two, "x")).await.0;
        last.unlock().await.expect("ours");
        idle(&one).await;
        clean(&server, &two).await;
    }
}

pub(crate) mod errors {
    use super::*;

    pub(crate) async fn say_what_is_wrong(way: Way) {
        let (server, one, _) = two_clients().await;
        let _: String = server.ask(&["SET", "text", "x"]);
        let on_text = way.take(&one, "text", How::default()).await;
        assert!(matches!(on_text, Err(Error::Conflict { .. })), "{on_text:?}");
        let _: u32 = server.ask(&["HSET", "hash", "a", "b"]);
        let on_hash = way.take(&one, "hash", How::default()).await;
        assert!(matches!(on_hash, Err(Error::Conflict { .. })), "{on_hash:?}");
        let nameless = way.take(&one, "", How::default()).await;
        assert!(matches!(nameless, Err(Error::InvalidName { .. })), "{nameless:?}");
        let no_time = way.take(&one, "x", How::lease(Duration::ZERO)).await;
        assert!(matches!(no_time, Err(Error::InvalidConfig { .. })), "{no_time:?}");
        let _: u32 = server.ask(&["DEL", "text", "hash"]);
        clean(&server, &one).await;
    }

    pub(crate) async fn say_that_nobody_knows(way: Way) {
        let server = Server::start();
        let client = client(&server, |builder| builder.command_timeout(ms(200)).outage_timeout(ms(500))).await;
        server.freeze();
        for patience in [None, Some(Duration::ZERO), Some(ms(300))] {
            let asked = way.take(&client, "x", How { patience, ..How::for_other() });
            let taken = within("an error", ms(5_000), asked).await.0;
            assert!(matches!(taken, Err(Error::Unavailable { .. })), "{taken:?}");
        }
        server.thaw();
        until("all to be taken back", ms(5_000), || is_clean(&server)).await;
    }
}

pub(crate) mod closing {
    use super::*;

    pub(crate) async fn gives_all_back(way: Way) {
        let (server, one, two) = two_clients().await;
        let guard = way.excluded_by().lock(&one, "x").await;
        let held = way.lock(&two, "y").await;
        let (waiter, name) = (two.clone(), "x");
        let waiting = tokio::spawn(async move { way.take(&waiter, name, How::default()).await });
        until("it to sleep", SOON, || two.stats().total.refused >= 2).await;
        two.close().await.expect("all is given back");
        assert!(matches!(within("its end", SOON, waiting).await.0.expect("no panic"), Err(Error::Closed)));
        assert_eq!(within("its end", SOON, held.lost()).await.0, Lost::Closed);
        until("it to be free", SOON, || !server.exists("y")).await;
        guard.unlock().await.expect("ours");
        clean(&server, &one).await;
    }
}

/// The cases of each capability for a primitive: one test each.
macro_rules! conforms {
    ($($name:ident $way:ident: $($group:ident { $($case:ident)+ })+;)+) => {
        $(mod $name {
            $(mod $group {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        crate::kinds::family::$group::$case(crate::kinds::family::Way::$way).await;
                    }
                )+
            })+
        })+
    };
}

conforms! {
    plain Plain:
        exclusive { one_at_a_time a_counter }
        reentrant { counts_in_redis a_lost_hold_is_not_taken_afresh }
        waiting { is_woken_by_a_release_elsewhere gives_up_in_time has_it_when_the_lease_ends }
        hand_over { to_the_next_here }
        kept { by_the_watchdog no_longer_than_its_lease }
        lost { is_told_within_a_third by_force }
        cancelled { at_any_moment }
        errors { say_what_is_wrong say_that_nobody_knows }
        closing { gives_all_back };
    fenced Fenced:
        exclusive { one_at_a_time a_counter }
        reentrant { counts_in_redis a_lost_hold_is_not_taken_afresh }
        waiting { is_woken_by_a_release_elsewhere gives_up_in_time has_it_when_the_lease_ends }
        hand_over { to_the_next_here }
        kept { by_the_watchdog no_longer_than_its_lease }
        lost { is_told_within_a_third by_force }
        cancelled { at_any_moment }
        errors { say_what_is_wrong say_that_nobody_knows }
        closing { gives_all_back };
    read Read:
        shared { by_all_who_ask until_each_lease_ends }
        reentrant { counts_in_redis a_lost_hold_is_not_taken_afresh }
        waiting { is_woken_by_a_release_elsewhere gives_up_in_time has_it_when_the_lease_ends }
        kept { by_the_watchdog no_longer_than_its_lease }
        lost { is_told_within_a_third by_force }
        cancelled { at_any_moment }
        errors { say_what_is_wrong say_that_nobody_knows }
        closing { gives_all_back };
    write Write:
        exclusive { one_at_a_time a_counter }
        reentrant { counts_in_redis a_lost_hold_is_not_taken_afresh }
        waiting { is_woken_by_a_release_elsewhere gives_up_in_time has_it_when_the_lease_ends }
        hand_over { to_the_next_here }
        kept { by_the_watchdog no_longer_than_its_lease }
        lost { is_told_within_a_third by_force }
        cancelled { at_any_moment }
        errors { say_what_is_wrong say_that_nobody_knows }
        closing { gives_all_back };
    fair Fair:
        exclusive { one_at_a_time a_counter }
        reentrant { counts_in_redis a_lost_hold_is_not_taken_afresh }
        waiting { is_woken_by_a_release_elsewhere gives_up_in_time has_it_when_the_lease_ends }
        kept { by_the_watchdog no_longer_than_its_lease }
        lost { is_told_within_a_third by_force }
        cancelled { at_any_moment }
        errors { say_what_is_wrong say_that_nobody_knows }
        closing { gives_all_back };
}
