//! One owner in several places: guards that go to other tasks, and branches of one task.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Guard, Lock, Owner};
use redis::Commands;
use serial_test::serial;
use tokio::runtime::Handle;

use crate::support::{
    Server, client, ms, plain,
    stall::{LAST_ATTEMPT, Took, unless_stalled},
    until, within,
};

/// How long the races are run: thousands of turns, of which about one in some hundreds meets the moment that matters.
const LONG_ENOUGH: Duration = ms(2_500);
/// And no less often than this, for which a busy machine may need longer.
const TURNS: u32 = 200;
const AT_MOST: Duration = ms(60_000);

/// Up to some microseconds, so that both sides meet at every moment there is.
fn a_moment() {
    let until = Instant::now() + Duration::from_nanos(fastrand::u64(0..20_000));
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// Takes it again and again, and sends each guard to another thread that does with it what `last` says: often the hold
/// ends while one more level of it is asked for. What matters lasts for less than a microsecond, so both threads are
/// awake when it comes to it.
async fn race(lock: Lock, is_good: impl Fn(&Guard), last: impl Fn(Guard) + Send + 'static) {
    let (send, guards) = mpsc::channel();
    let is_there = Arc::new(AtomicBool::new(false));
    let elsewhere = thread::spawn({
        let is_there = Arc::clone(&is_there);
        move || {
            for guard in guards {
                is_there.store(true, Ordering::Release);
                a_moment();
                last(guard);
            }
        }
    });
    let (started, mut turns) = (Instant::now(), 0);
    let enough = |turns: u32| started.elapsed() >= LONG_ENOUGH && turns >= TURNS || started.elapsed() >= AT_MOST;
    while !enough(turns) && !elsewhere.is_finished() {
        let guard = lock.lock().await.expect("nobody keeps it");
        is_good(&guard);
        send.send(guard).expect("the other thread has found something, see there");
        while !is_there.swap(false, Ordering::Acquire) && !elsewhere.is_finished() {
            std::hint::spin_loop();
        }
        turns += 1;
    }
    drop(send);
    elsewhere.join().expect("no violation there");
    assert!(turns >= TURNS, "{turns} turns: too slow to see anything");
}

/// Nobody has taken it away, so it is ours, and says so.
fn is_held(guard: &Guard) {
    let left = guard.remaining(); // asked first: it may end between the two questions
    let lost = guard.is_lost();
    assert!(lost || !left.is_zero(), "{guard:?} is not lost and has nothing");
    assert!(!lost, "{guard:?} was lost to nobody");
}

struct Scene {
    server: Server,
    client: Client,
    lock: Lock,
}

impl Scene {
    async fn set() -> Scene {
        let server = Server::start();
        let client = plain(&server).await;
        let lock = client.lock("x").owner(&Owner::new());
        Scene { server, client, lock }
    }

    async fn rests(self) {
        until("it to be given back", ms(2_000), || self.client.stats().now.releasing == 0).await;
        assert!(!self.server.exists("x"));
        assert_eq!((self.client.stats().now.holds, self.client.stats().total.lost), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
async fn entering_while_the_last_guard_goes_elsewhere_is_a_hold() {
    let (scene, runtime) = (Scene::set().await, Handle::current());
    let give_back = move |guard: Guard| {
        if fastrand::u8(0..4) == 0 {
            runtime.block_on(guard.unlock()).expect("ours to the end");
        } else {
            drop(guard);
        }
    };
    race(scene.lock.clone(), is_held, give_back).await;
    scene.rests().await;
}

/// What seems held and is not there, anybody else can take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial(cores)]
async fn entering_while_the_last_guard_goes_elsewhere_excludes_others() {
    let scene = Scene::set().await;
    let raw = RefCell::new(scene.server.raw());
    let is_there = |guard: &Guard| {
        thread::sleep(Duration::from_micros(200)); // a round trip: what is on its way arrives
        let there: bool = raw.borrow_mut().hexists("x", guard.id()).expect("it answers");
        assert!(there || guard.is_lost(), "{guard:?} is not lost, and the server has nothing of it");
    };
    race(scene.lock.clone(), is_there, drop).await;
    scene.rests().await;
}

/// The first branch waits in line, the second for the first.
struct Branches {
    server: Server,
    held: Guard,
    client: Client,
}

impl Branches {
    async fn set() -> Branches {
        let server = Server::start();
        let held = plain(&server).await.lock("x").lock().await.expect("free");
        let client = client(&server, |builder| builder.command_timeout(ms(200)).outage_timeout(ms(500))).await;
        Branches { server, held, client }
    }

    /// What the second branch gets within `patience`, and after how long; the first branch waits for as long.
    async fn second(&self, owner: &Owner, patience: Duration) -> (Result<Option<Guard>, Error>, Took) {
        let lock = self.client.lock("x").owner(owner);
        until("the first to wait", ms(2_000), || self.client.stats().now.waiting == 1).await;
        within("the second branch", patience + ms(1_000), lock.try_lock_for(patience)).await
    }
}

#[tokio::test]
async fn the_second_branch_waits_for_as_long_as_it_may() {
    unless_stalled(LAST_ATTEMPT, both_branches_give_up).await;
}

async fn both_branches_give_up() {
    let scene = Branches::set().await;
    let (owner, patience) = (Owner::new(), ms(1_500));
    let first = scene.client.lock("x").owner(&owner);
    let (first, (second, took)) = tokio::join!(first.try_lock_for(ms(1_800)), scene.second(&owner, patience));
    assert!(first.expect("answered").is_none(), "it was held all the time");
    assert!(second.expect("answered").is_none(), "it was held all the time");
    assert!(took >= patience, "it gave up after {took:?} of {patience:?}");
    scene.held.unlock().await.expect("ours");
}

#[tokio::test]
async fn the_second_branch_enters_when_the_first_was_granted() {
    let Branches { server, held, client } = Branches::set().await;
    let owner = Owner::new();
    let (first, second) = (client.lock("x").owner(&owner), client.lock("x").owner(&owner));
    let second = async {
        until("the first to wait", ms(2_000), || client.stats().now.waiting == 1).await;
        second.try_lock_for(ms(4_000)).await
    };
    let free = async {
        tokio::time::sleep(ms(1_000)).await; // longer than `outage_timeout`
        held.unlock().await.expect("ours");
    };
    let both = async { tokio::join!(first.lock(), second, free) };
    let ((first, second, ()), _) = within("both branches", ms(4_000), both).await;
    let (first, second) = (first.expect("answered"), second.expect("answered").expect("it is the same owner"));
    assert_eq!((first.id(), first.holds()), (second.id(), 2));
    assert_eq!(server.lock("x"), [(first.id().to_owned(), 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_attempts_of_one_owner_end_together_while_the_server_is_frozen() {
    let server = Server::start();
    let client = client(&server, |builder| builder.command_timeout(ms(600))).await;
    let owner = Owner::new();
    let (plain, fair) = (client.lock("x").owner(&owner), client.fair_lock("y").owner(&owner));
    let fenced = client.fenced_lock("z").owner(&owner);
    server.freeze();
    let attempts = async {
        let all = tokio::join!(
            async { tokio::join!(plain.try_lock(), plain.try_lock(), plain.try_lock()) },
            async { tokio::join!(fair.try_lock(), fair.try_lock(), fair.try_lock()) },
            async { tokio::join!(fenced.try_lock(), fenced.try_lock(), fenced.try_lock()) },
        );
        let ((a, b, c), (d, e, f), (g, h, i)) = all;
        let errors = [a, b, c, d, e, f].map(|answer| answer.map(drop).expect_err("frozen"));
        errors.into_iter().chain([g, h, i].map(|answer| answer.map(drop).expect_err("frozen")))
    };
    let (errors, _) = within("the errors", ms(1_000), attempts).await;
    for error in errors {
        assert!(error.is_unavailable(), "{error}");
    }
}
