//! Several threads of one process use the engine at once. Each scenario runs again and again, each time with another
//! interleaving of its threads. Requests are lost, subscriptions are cut and time passes where the scenario allows it.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt;

use super::{Config, Engine, EngineGuard as Guard, Result, hold::Hold};
use crate::{
    config::{Lease, Name},
    explore::{explore, server, tokio, world},
    kind::{Kind, KindScript, Rules},
    owner::Owner,
    redis::{LOCK_CHANNEL, Url},
    request::{AcquireRequest, WaitLimit},
};
use tokio::{
    spawn,
    task::JoinHandle,
    time::{Instant, sleep},
};

/// The lock they are all about.
const LOCK: &str = "lock";
const LEASE: Duration = Duration::from_secs(2);
/// A waiter acquires a free lock within this, if nothing is lost.
const SOON: Duration = Duration::from_millis(300);

/// Where a waiter is not polled, within this: seven seconds, and four more if it stopped between its wake-up and its
/// question.
const PASSED_OVER: Duration = Duration::from_secs(12);

static KIND: Kind = Kind {
    channel: LOCK_CHANNEL,
    acquire: KindScript::new("acquire", &[]),
    release: KindScript::new("release", &[]),
    renew: KindScript::new("renew", &[]),
    hand_over: Some(KindScript::new("hand_over", &[])),
    inspect: KindScript::new("inspect", &[]),
    force_unlock: KindScript::new("force_unlock", &[]),
    beside: None,
    barred_by: None,
    rules: Rules::PLAIN,
};

/// One client in a process of its own.
async fn process(handovers: u32) -> Arc<Engine> {
    let config = Config { handovers, ..Config::for_checks(LEASE) };
    let (engine, _last_task) = Engine::connect(Url::parse("redis://nowhere").expect("a URL"), config, Arc::default())
        .await
        .expect("it connects");
    engine
}

fn name() -> Name {
    Name::new("", LOCK).expect("a good name")
}

/// A guard that is checked whenever all tasks are asleep, and whenever its owner calls for it, until its release.
#[derive(Debug)]
struct Held {
    guard: Guard,
    _watch: world::Watch,
}

async fn take(engine: &Arc<Engine>, owner: &Owner, wait_limit: WaitLimit) -> Result<Option<Held>> {
    take_for(engine, owner, wait_limit, (None, None)).await
}

async fn take_for(
    engine: &Arc<Engine>,
    owner: &Owner,
    wait_limit: WaitLimit,
    (lease, max_hold): (Option<Lease>, Option<Duration>),
) -> Result<Option<Held>> {
    let (owner, min_hold) = (owner.clone(), None);
    let since = Instant::now();
    let request = AcquireRequest { since, name: name(), owner, kind: &KIND, lease, max_hold, min_hold, wait_limit };
    let taken = engine.take(&request).await;
    world::tell(|| format!("take {wait_limit:?} -> {taken:?}"));
    if taken.is_err() && !world::is_hasty() && !world::is_rough() {
        world::violated("an error without a cause");
    }
    Ok(taken?.map(Held::new))
}

impl Held {
    fn new(guard: Guard) -> Held {
        let hold = Arc::clone(guard.hold());
        let _watch = world::watch(move || {
            look(&hold);
            look_at_count(&hold);
        });
        let held = Held { guard, _watch };
        held.look();
        held
    }

    fn look(&self) {
        look(self.guard.hold());
    }

    /// Works for a while.
    async fn work(&self) {
        for _ in 0..world::below(6) {
            world::step().await;
            self.look();
        }
    }

    /// By either way; the caller of `unlock` may go away meanwhile.
    async fn give_back(self) {
        self.look();
        world::tell(|| format!("release {:?}", self.guard));
        let Held { mut guard, _watch } = self;
        drop(_watch);
        match world::below(3) {
            0 => drop(guard),
            1 => _ = cut_short(guard.unlock()).await,
            _ => {
                let there = server::holder(LOCK).is_some_and(|(id, _)| id == guard.id());
                let unlocked = guard.unlock().await;
                world::tell(|| format!("unlock -> {unlocked:?}"));
                if unlocked.is_ok() && !there && !server::is_troubled() {
                    world::violated("unlock returned Ok for a lock that was already gone");
                }
            }
        }
    }
}

/// A guard that is certain has the lock on the server; one that is not, says that it is lost.
fn look(hold: &Hold) {
    let there = server::holder(LOCK).is_some_and(|(id, _)| id == hold.id());
    let certain = !hold.remaining().is_zero();
    if certain && !there && !world::is_robbed() {
        world::violated(&format!("{hold:?} is certain, and the server has {:?}", server::holder(LOCK)));
    }
    if !certain && hold.loss().is_none() {
        world::violated(&format!("{hold:?} is not lost, and has no time left"));
    }
}

/// While nothing is under way, the server counts the levels that the holder has.
fn look_at_count(hold: &Hold) {
    let there = server::holder(LOCK).filter(|(id, _)| id == hold.id());
    if let Some((_, count)) = there
        && server::is_quiet()
        && !server::is_troubled()
        && u32::from(count) != hold.hold_count()
    {
        world::violated(&format!("{hold:?}, and the hold count on the server is {count}"));
    }
}

/// Polls `work` for as long as it takes, or for a few steps only.
async fn cut_short<T>(work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut steps) = (pin!(work), world::below(20));
    let cut = poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        if steps == 0 {
            return Poll::Ready(None);
        }
        steps -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    if cut.is_none() {
        world::tell(|| "cut short".to_owned());
    }
    cut
}

/// While the lock is free and more than `idle` waiters wait, one of them must acquire it `soon`.
fn watch_over(processes: &[Arc<Engine>], idle: u64, soon: Duration) -> world::Watch {
    let processes = processes.to_vec();
    let free_since = std::cell::Cell::new(None);
    world::watch(move || {
        let waiting: u64 = processes.iter().map(|engine| engine.counters.waiting.get()).sum();
        let wasted = waiting > idle && server::holder(LOCK).is_none() && !world::is_hasty();
        let since = wasted.then(|| free_since.get().unwrap_or_else(crate::sync::now));
        free_since.set(since);
        if since.is_some_and(|since| crate::sync::now() > since + soon) {
            world::violated("the lock is free, and its waiters sleep");
        }
    })
}

/// In the end nothing is left, neither here nor on the server: before any lease could have ended it, unless requests were
/// given up because time passed, for what the server does with those later ends with its lease.
async fn rest(processes: &[Arc<Engine>]) {
    world::calm_down();
    let is_quiet = || {
        let busy = |engine: &Arc<Engine>| engine.counters.releasing.get() + engine.counters.waiting.get() > 0;
        server::is_quiet() && server::holder(LOCK).is_none() && !processes.iter().any(busy)
    };
    let (pause, end) =
        (Duration::from_millis(10), crate::sync::now() + if world::is_hasty() { LEASE * 2 } else { SOON });
    while !is_quiet() && crate::sync::now() < end {
        sleep(pause).await;
    }
    if let Some(holder) = server::holder(LOCK) {
        world::violated(&format!("the lock is still held at the end: {holder:?}"));
    }
    for engine in processes {
        let counters = &engine.counters;
        let left = [
            ("waiting", counters.waiting.get() > 0),
            ("holds", counters.holds.get() > 0),
            ("queues", !engine.queues.is_empty()),
            // A closed client has nobody to take these out.
            ("registry", !engine.is_closed() && !engine.registry.all().is_empty()),
            ("releasing", !engine.is_closed() && counters.releasing.get() > 0),
            (
                "pending",
                !engine.is_closed()
                    && engine.releaser.clear(|| [((LOCK.into(), &KIND), None)].into_iter()).now_or_never().is_none(),
            ),
        ];
        if let Some((what, _)) = left.iter().find(|(_, is_left)| *is_left) {
            world::violated(&format!("{what}: not empty at the end"));
        }
    }
}

/// Acquires the lock in one of several ways, works, and releases it.
async fn turn(engine: Arc<Engine>, owner: Owner) {
    let taken = match world::below(4) {
        0 => take(&engine, &owner, WaitLimit::Once).await,
        1 => take(&engine, &owner, WaitLimit::of(Duration::from_millis(50))).await,
        2 => cut_short(take(&engine, &owner, WaitLimit::Forever)).await.unwrap_or(Ok(None)),
        _ => take(&engine, &owner, WaitLimit::Forever).await,
    };
    if let Ok(Some(held)) = taken {
        held.work().await;
        held.give_back().await;
    }
}

async fn all(tasks: impl IntoIterator<Item = JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("nobody ends it");
    }
}

fn troubles(lost: usize, deaf: usize) {
    server::trouble(server::Troubles { lost, deaf });
}

/// The number of a scenario's threads is small: what they do to each other shows between two or three.
fn owners<const N: usize>() -> [Owner; N] {
    std::array::from_fn(|_| Owner::new())
}

/// Polls `work` for a few steps, then for some seconds not at all, then to its end; or drops it then.
async fn not_polled<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    if let Some(done) = cut_short(work.as_mut()).await {
        return Some(done);
    }
    sleep([SOON, PASSED_OVER * 2][world::below(2)]).await;
    if world::once_in(3) { None } else { Some(work.await) }
}

/// A task acquires the lock again while another thread releases the last guard, over and over.
async fn reentering() {
    let (one, owner) = (process(16).await, Owner::new());
    let mut going = Vec::new();
    for _ in 0..3 {
        match take(&one, &owner, WaitLimit::Forever).await {
            Ok(Some(held)) => going.push(spawn(async move {
                held.work().await;
                held.give_back().await;
            })),
            other => drop(other),
        }
    }
    all(going).await;
    rest(&[one]).await;
}

#[test]
fn reenter() {
    explore("reenter", reentering);
}

/// Three owners of one process and one of another want the lock; some leave.
async fn handing_over() {
    let handovers = [0, 1, 16][world::below(3)];
    let (one, other) = (process(handovers).await, process(handovers).await);
    let _watch = watch_over(&[Arc::clone(&one), Arc::clone(&other)], 0, SOON);
    let [a, b, c, d] = owners();
    let tasks = [(&one, a), (&one, b), (&one, c), (&other, d)];
    all(tasks.map(|(engine, owner)| spawn(turn(Arc::clone(engine), owner)))).await;
    rest(&[one, other]).await;
}

#[test]
fn hand_over() {
    explore("hand_over", handing_over);
}

/// The same, and requests, replies and connections are lost.
#[test]
fn hand_over_in_trouble() {
    explore("hand_over_in_trouble", || async {
        troubles(3, 1);
        handing_over().await;
    });
}

/// The last waiter leaves the queue while another joins it.
async fn lining_up() {
    let one = process(16).await;
    let _watch = watch_over(std::slice::from_ref(&one), 0, SOON);
    let [a, b, c] = owners();
    let held = take(&one, &a, WaitLimit::Forever).await;
    let short = |owner: Owner| {
        let one = Arc::clone(&one);
        async move {
            for _ in 0..2 {
                if let Some(Ok(Some(held))) = cut_short(take(&one, &owner, WaitLimit::Forever)).await {
                    held.give_back().await;
                }
            }
        }
    };
    let tasks = [spawn(short(b)), spawn(short(c))];
    if let Ok(Some(held)) = held {
        held.work().await;
        held.give_back().await;
    }
    all(tasks).await;
    rest(&[one]).await;
}

#[test]
fn queue() {
    explore("queue", lining_up);
}

/// A waiter of a process with others is not polled for some time.
async fn not_polling() {
    world::with(|world| world.rough = true); // the waiters behind it may get `Unavailable`
    let (one, other) = (process(16).await, process(16).await);
    let _watch = watch_over(&[Arc::clone(&one), Arc::clone(&other)], 1, PASSED_OVER);
    let [a, b, c, d] = owners();
    let idle = Arc::clone(&one);
    let idle = spawn(async move {
        if let Some(Ok(Some(held))) = not_polled(take(&idle, &a, WaitLimit::Forever)).await {
            held.work().await;
            held.give_back().await;
        }
    });
    let others = [(&one, b), (&one, c), (&other, d)];
    let others = others.map(|(engine, owner)| spawn(turn(Arc::clone(engine), owner)));
    all(others.into_iter().chain([idle])).await;
    rest(&[one, other]).await;
}

#[test]
fn unpolled() {
    explore("unpolled", not_polling);
}

/// The hold is lost, by the server or by the clock, while guards of it come and go.
async fn losing() {
    world::with(|world| world.rough = true);
    let (one, owner, other) = (process(16).await, Owner::new(), Owner::new());
    let again = |owner: Owner| {
        let one = Arc::clone(&one);
        async move {
            for _ in 0..2 {
                let lease = world::once_in(3).then(|| Lease::new("lease", SOON).expect("long enough"));
                let max_hold = world::once_in(3).then_some(SOON);
                if let Ok(Some(held)) = take_for(&one, &owner, WaitLimit::of(LEASE), (lease, max_hold)).await {
                    held.work().await;
                    if world::once_in(3) {
                        sleep(SOON * 2).await;
                    }
                    let checked = held.guard.confirm(None).await;
                    world::tell(|| format!("check -> {checked:?}"));
                    held.give_back().await;
                }
            }
        }
    };
    let tasks = [spawn(again(owner.clone())), spawn(again(owner)), spawn(again(other))];
    if world::below(3) > 0 {
        for _ in 0..world::below(60) {
            world::step().await;
        }
        server::delete(LOCK);
    }
    all(tasks).await;
    rest(&[one]).await;
}

#[test]
fn lose() {
    explore("lose", losing);
}

/// Several guards of one hold are released at once, by callers that may be cancelled, and requests are lost.
async fn giving_back() {
    troubles(3, 0);
    let (one, other) = (process(16).await, process(16).await);
    let _watch = watch_over(&[Arc::clone(&one), Arc::clone(&other)], 0, SOON);
    let [a, b, c] = owners();
    let mut tasks = Vec::new();
    for _ in 0..2 + world::below(2) {
        if let Ok(Some(held)) = take(&one, &a, WaitLimit::Forever).await {
            tasks.push(spawn(held.give_back()));
        }
    }
    tasks.push(spawn(turn(Arc::clone(&one), b)));
    tasks.push(spawn(turn(Arc::clone(&other), c)));
    all(tasks).await;
    rest(&[one, other]).await;
}

#[test]
fn release() {
    explore("release", giving_back);
}

/// A task drops a guard and tries again as another owner: it acquires the lock at once.
async fn trying_again() {
    let one = process(16).await;
    for owner in owners::<3>() {
        let begun = crate::sync::now();
        let taken = take(&one, &owner, WaitLimit::Once).await;
        let late = crate::sync::now() > begun;
        if (late || matches!(taken, Ok(None))) && !world::is_hasty() {
            world::violated(&format!(
                "the guard was dropped, and the next try returned {taken:?} after {:?}",
                crate::sync::now() - begun
            ));
        }
        drop(taken.ok().flatten().map(|held| held.guard));
    }
    rest(&[one]).await;
}

#[test]
fn try_again() {
    explore("try_again", trying_again);
}

/// The client closes while tasks acquire and wait.
async fn closing() {
    world::with(|world| world.rough = true);
    let one = process(16).await;
    let [a, b] = owners();
    let mut tasks = vec![spawn(turn(Arc::clone(&one), a.clone())), spawn(turn(Arc::clone(&one), a))];
    tasks.push(spawn(turn(Arc::clone(&one), b)));
    for _ in 0..world::below(60) {
        world::step().await;
    }
    let closed = one.close().await;
    world::tell(|| format!("close -> {closed:?}"));
    if closed.is_err() && !world::is_hasty() {
        world::violated("close failed although each request got its reply");
    }
    all(tasks).await;
    rest(&[one]).await;
}

#[test]
fn close() {
    explore("close", closing);
}

/// Two branches of one owner, and another owner.
async fn branching() {
    let one = process(16).await;
    let _watch = watch_over(std::slice::from_ref(&one), 0, SOON);
    let [a, b] = owners();
    let owners = [a.clone(), a, b];
    all(owners.map(|owner| spawn(turn(Arc::clone(&one), owner)))).await;
    rest(&[one]).await;
}

#[test]
fn branches() {
    explore("branches", branching);
}

/// Anything, by any of them, while anything is lost.
async fn doing_anything() {
    troubles(world::below(4), world::below(2));
    let (one, other) = (process(2).await, process(2).await);
    let _watch = watch_over(&[Arc::clone(&one), Arc::clone(&other)], 0, SOON);
    let [a, b, c] = owners();
    let twice = |engine: &Arc<Engine>, owner: &Owner| {
        let (engine, owner) = (Arc::clone(engine), owner.clone());
        async move {
            turn(Arc::clone(&engine), owner.clone()).await;
            turn(engine, owner).await;
        }
    };
    all([spawn(twice(&one, &a)), spawn(twice(&one, &a)), spawn(twice(&one, &b)), spawn(twice(&other, &c))]).await;
    rest(&[one, other]).await;
}

#[test]
fn anything() {
    explore("anything", doing_anything);
}
