//! Several threads use the locks of one client at once, or of two. Each scenario runs again and again, each time with another interleaving of
//! its threads. Requests are lost, subscriptions are cut and time passes where the scenario allows it.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::Driver;
use crate::{
    Builder, Client, Error, Guard, Latch, Lock, Owner, Permits, Result, WriteGuard,
    explore::{explore, server, tokio, world},
    lock::Mode,
    sync::now,
};
use tokio::{
    runtime::Handle,
    spawn,
    task::{JoinHandle, yield_now},
    time::{sleep, timeout},
};

/// The lock they are all about.
const LOCK: &str = "lock";
const LEASE: Duration = Duration::from_secs(2);
/// A waiter acquires a free lock within this, if nothing is lost. A limit ends within this.
const SOON: Duration = Duration::from_millis(300);
/// The same, beside a caller that is not polled: until it loses its request, and until it is passed over.
const PASSED_OVER: Duration = Duration::from_secs(2);
const AT_ONCE: Duration = Duration::from_millis(40);
/// For longer than a name is remembered.
const FORGOTTEN: Duration = Duration::from_secs(25);

fn builder(handovers: u32) -> Builder {
    let (short, never) = (LEASE / 6, Duration::from_secs(3600));
    Client::builder()
        .url("redis://nowhere")
        .watchdog(LEASE)
        .command_timeout(short)
        .outage_timeout(LEASE)
        .slow_wait(never)
        .handovers(handovers)
        .own_thread(false)
}

/// A client in a process of its own.
async fn client(handovers: u32) -> Client {
    builder(handovers).connect().await.expect("it connects")
}

fn driver(client: &Client) -> Weak<Driver> {
    Arc::downgrade(&client.engine().driver)
}

fn rough() {
    world::with(|world| world.rough = true);
}

fn troubles(lost: usize, deaf: usize) {
    server::trouble(server::Troubles { lost, deaf, ..Default::default() });
}

/// Errors need no explanation.
fn is_lenient() -> bool {
    world::is_hasty() || world::is_rough()
}

// ---- callers ----

#[derive(Debug, Clone, Copy)]
enum Limit {
    Once,
    Until(Duration),
    Forever,
}

impl Limit {
    fn any() -> Limit {
        match world::below(4) {
            0 => Limit::Once,
            1 => Limit::Until(Duration::from_millis(50)),
            _ => Limit::Forever,
        }
    }
}

async fn take(client: &Client, owner: &Owner, limit: Limit) -> Result<Option<Held>> {
    take_as(&client.lock(LOCK).owner(owner), limit).await
}

async fn take_as(lock: &Lock, limit: Limit) -> Result<Option<Held>> {
    let begun = now();
    let taken = match limit {
        Limit::Once => lock.try_lock().await,
        Limit::Until(time) => lock.try_lock_for(time).await,
        Limit::Forever => lock.lock().await.map(Some),
    };
    taken_within((limit, begun), (lock.name(), Mode::Exclusive), taken)
}

async fn take_fair(client: &Client, owner: &Owner, limit: Limit) -> Result<Option<Held>> {
    let (lock, begun) = (client.fair_lock(LOCK).owner(owner), now());
    let taken = match limit {
        Limit::Once => lock.try_lock().await,
        Limit::Until(time) => lock.try_lock_for(time).await,
        Limit::Forever => lock.lock().await.map(Some),
    };
    taken_within((limit, begun), (LOCK, Mode::Exclusive), taken)
}

async fn read(client: &Client, owner: &Owner, limit: Limit) -> Result<Option<Held>> {
    let (lock, begun) = (client.rw_lock(LOCK).owner(owner), now());
    let taken = match limit {
        Limit::Once => lock.try_read().await,
        Limit::Until(time) => lock.try_read_for(time).await,
        Limit::Forever => lock.read().await.map(Some),
    };
    taken_within((limit, begun), (LOCK, Mode::Shared), taken.map(|guard| guard.map(Guard::from)))
}

async fn write(client: &Client, owner: &Owner, limit: Limit) -> Result<Option<Held>> {
    let (lock, begun) = (client.rw_lock(LOCK).owner(owner), now());
    let taken = match limit {
        Limit::Once => lock.try_write().await,
        Limit::Until(time) => lock.try_write_for(time).await,
        Limit::Forever => lock.write().await.map(Some),
    };
    taken_within((limit, begun), (LOCK, Mode::Exclusive), taken.map(|guard| guard.map(Guard::from)))
}

/// The result of a call that began then.
fn taken_within(
    (limit, begun): (Limit, Duration),
    (name, mode): (&str, Mode),
    taken: Result<Option<Guard>>,
) -> Result<Option<Held>> {
    world::tell(|| format!("{name} {limit:?} -> {taken:?}"));
    if taken.is_err() && !is_lenient() {
        world::violated("an error without a cause");
    }
    let limit = match limit {
        Limit::Once => SOON,
        Limit::Until(time) => time + SOON,
        Limit::Forever => Duration::MAX,
    };
    if now() - begun > limit && !is_lenient() && !server::is_troubled() {
        world::violated(&format!("the call took {:?}", now() - begun));
    }
    Ok(taken?.map(|guard| Held::new((name, mode), guard)))
}

/// A guard that is checked whenever all tasks are asleep, and whenever its owner calls for it, until its release.
struct Held {
    name: String,
    mode: Mode,
    guard: Arc<Guard>,
    watch: world::Watch,
}

thread_local! {
    /// All guards.
    static GUARDS: RefCell<Vec<(Mode, Weak<Guard>)>> = RefCell::default();
}

impl Held {
    fn new((name, mode): (&str, Mode), guard: Guard) -> Held {
        let (name, guard) = (name.to_owned(), Arc::new(guard));
        let (watched, key) = (Arc::downgrade(&guard), name.clone());
        GUARDS.with_borrow_mut(|guards| {
            guards.retain(|(_, guard)| guard.strong_count() > 0);
            guards.push((mode, Weak::clone(&watched)));
        });
        let watch = world::watch(move || {
            let Some(guard) = watched.upgrade() else { return };
            look((&key, mode), &guard);
            if mode == Mode::Exclusive {
                look_at_count(&key, &guard); // readers share one entry
            }
        });
        let held = Held { name, mode, guard, watch };
        held.look();
        held
    }

    fn look(&self) {
        look((&self.name, self.mode), &self.guard);
    }

    /// Works for a while.
    async fn work(&self) {
        for _ in 0..world::below(6) {
            world::step().await;
            self.look();
        }
    }

    /// Only its owner has it from now on.
    async fn into_guard(self) -> Guard {
        let Held { mut guard, watch, .. } = self;
        drop(watch);
        loop {
            match Arc::try_unwrap(guard) {
                Ok(guard) => return guard,
                Err(shared) => guard = shared,
            }
            yield_now().await; // another task looks at it
        }
    }

    /// By any way; the caller of `unlock` may go away meanwhile.
    async fn give_back(self) {
        self.look();
        match world::below(3) {
            0 => {
                let guard = self.into_guard().await;
                world::tell(|| format!("drop {guard:?}"));
                drop(guard);
            }
            1 => _ = cut_short(self.into_guard().await.unlock()).await,
            _ => _ = self.unlock().await,
        }
    }

    async fn unlock(self) -> Result<()> {
        let name = self.name.clone();
        let guard = self.into_guard().await;
        world::tell(|| format!("unlock {guard:?}"));
        let there = is_there(&name, &guard);
        let unlocked = guard.unlock().await;
        world::tell(|| format!("unlock -> {unlocked:?}"));
        if unlocked.is_ok() && !there && !server::is_troubled() && !world::is_hasty() {
            world::violated("unlock returned Ok for a lock that was already gone");
        }
        if unlocked.is_err() && !is_lenient() {
            world::violated("an error without a cause");
        }
        unlocked
    }
}

fn is_there(name: &str, guard: &Guard) -> bool {
    server::holders(name).iter().any(|(id, _)| id == guard.id())
}

/// A guard that is certain has the lock on the server, and no other owner is certain. One that is not certain says that it is lost.
fn look((name, mode): (&str, Mode), guard: &Guard) {
    let there = is_there(name, guard);
    if guard.remaining().is_zero() {
        if !is_lenient() {
            world::violated(&format!("{guard:?} is lost without a cause"));
        }
        if !guard.is_lost() {
            world::violated(&format!("{guard:?} is not lost, and has no time left"));
        }
        return;
    }
    if world::is_robbed() {
        return;
    }
    if !there {
        world::violated(&format!("{guard:?} is certain, and the server has {:?}", server::holders(name)));
    }
    let others: Vec<_> = GUARDS
        .with_borrow(|guards| guards.iter().filter_map(|(mode, guard)| Some((*mode, guard.upgrade()?))).collect());
    for (other_mode, other) in others {
        let both_read = (mode, other_mode) == (Mode::Shared, Mode::Shared);
        let excluded = other.name() == name && other.owner() != guard.owner() && !both_read;
        if excluded && !other.remaining().is_zero() && !guard.remaining().is_zero() {
            world::violated(&format!("{guard:?} and {other:?} are certain"));
        }
    }
}

/// While nothing is under way, the server counts the guards that the holder has.
fn look_at_count(name: &str, guard: &Guard) {
    let there = server::holders(name).into_iter().find(|(id, _)| id == guard.id());
    if let Some((_, count)) = there
        && server::is_quiet()
        && !server::is_troubled()
        && !is_lenient()
        && count != u64::from(guard.holds())
    {
        world::violated(&format!("{guard:?}, and the hold count on the server is {count}"));
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

/// Polls `work` for a few steps, then for a while not at all, then to its end; or drops it then.
async fn not_polled<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    if let Some(done) = cut_short(work.as_mut()).await {
        return Some(done);
    }
    sleep([SOON, PASSED_OVER * 2][world::below(2)]).await;
    if world::once_in(3) { None } else { Some(work.await) }
}

async fn steps(most: usize) {
    for _ in 0..world::below(most) {
        world::step().await;
    }
}

/// Acquires the lock in one of several ways, works, and releases it.
async fn turn(client: Client, owner: Owner) {
    let limit = Limit::any();
    let taken = match world::below(4) {
        0 => cut_short(take(&client, &owner, limit)).await.unwrap_or(Ok(None)),
        _ => take(&client, &owner, limit).await,
    };
    if let Ok(Some(held)) = taken {
        held.work().await;
        held.give_back().await;
    }
}

/// The same, but it never gives up.
async fn patient_turn(client: Client, owner: Owner) {
    if let Ok(Some(held)) = take(&client, &owner, Limit::Forever).await {
        held.work().await;
        held.give_back().await;
    }
}

async fn all(tasks: impl IntoIterator<Item = JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("nobody ends it");
    }
}

/// The number of a scenario's threads is small: what they do to each other shows between two or three.
fn owners<const N: usize>() -> [Owner; N] {
    std::array::from_fn(|_| Owner::new())
}

// ---- what must be true meanwhile and in the end ----

/// While the lock is free and more than `idle` waiters wait, one of them must acquire it `soon`.
fn watch_over(clients: &[&Client], idle: u64, soon: Duration) -> world::Watch {
    let drivers: Vec<_> = clients.iter().map(|client| driver(client)).collect();
    let free_since = Cell::new(None);
    world::watch(move || {
        let waiting: u64 = drivers.iter().filter_map(Weak::upgrade).map(|driver| driver.counters.waiting.get()).sum();
        let wasted = waiting > idle && server::holder(LOCK).is_none() && !world::is_hasty();
        let since = wasted.then(|| free_since.get().unwrap_or_else(now));
        free_since.set(since);
        if since.is_some_and(|since| now() > since + soon) {
            world::violated("the lock is free, and its waiters sleep");
        }
    })
}

async fn until(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let (end, mut pause) = (now() + limit, Duration::from_millis(10));
    loop {
        let is_over = now() >= end; // first: time may pass before the look
        if is_so() {
            return true;
        }
        if is_over {
            return false;
        }
        sleep(pause).await;
        pause *= 2;
    }
}

/// In the end nothing is left, neither here nor on the server: before any lease could have ended it, unless requests were given up because
/// time passed, for what the server does with those later ends with its lease.
async fn rest(clients: impl IntoIterator<Item = Client>) {
    world::calm_down();
    let clients: Vec<_> = clients.into_iter().collect();
    let drivers: Vec<_> = clients.iter().map(driver).collect();
    let gauges = || drivers.iter().map(gauges).collect::<Vec<_>>();
    let limit = if world::is_hasty() || server::is_troubled() { LEASE * 2 } else { SOON };
    let is_quiet =
        || server::is_quiet() && server::holder(LOCK).is_none() && gauges().iter().flatten().all(|gauge| *gauge == 0);
    if !until(limit, is_quiet).await {
        if let Some(holder) = server::holder(LOCK) {
            world::violated(&format!("the lock is still held at the end: {holder:?}"));
        }
        world::violated(&format!(
            "holds, waiters, releases at the end: {:?}, and requests: {}",
            gauges(),
            !server::is_quiet()
        ));
    }
    if !until(limit, || !server::has_waiters(LOCK)).await {
        world::violated("the server still has waiters at the end");
    }
    if !until(FORGOTTEN, || drivers.iter().all(is_empty)).await {
        world::violated("a name is not forgotten");
    }
    for client in clients {
        end(client).await;
    }
    are_dropped(drivers).await;
}

/// The numbers of holds, waiters and releases.
fn gauges(driver: &Weak<Driver>) -> [u64; 3] {
    let Some(driver) = driver.upgrade() else { return [0; 3] };
    let counters = &driver.counters;
    [counters.holds.get(), counters.waiting.get(), counters.releasing.get()]
}

/// No name is left, and so no timer.
fn is_empty(driver: &Weak<Driver>) -> bool {
    driver.upgrade().is_none_or(|driver| driver.names.is_empty() && driver.timers.is_empty())
}

/// By any way.
async fn end(client: Client) {
    let ended = match world::below(3) {
        0 => return,
        1 => client.close().await,
        _ => client.shutdown(SOON).await,
    };
    if ended.is_err() && !is_lenient() {
        world::violated("the client did not close although nothing was left");
    }
}

async fn are_dropped(drivers: Vec<Weak<Driver>>) {
    if !until(LEASE * 3, || drivers.iter().all(|driver| driver.strong_count() == 0)).await {
        let left: Vec<_> = drivers.iter().filter_map(Weak::upgrade).map(|driver| driver.all().len()).collect();
        world::violated(&format!("the parts of a client are kept after its end: {left:?} names"));
    }
}

// ---- one lock ----

/// A task acquires the lock again while another thread releases the last guard, over and over.
async fn reentering() {
    let (one, owner) = (client(16).await, Owner::new());
    let mut going = Vec::new();
    for _ in 0..3 {
        match take(&one, &owner, Limit::Forever).await {
            Ok(Some(held)) => going.push(spawn(async move {
                held.work().await;
                held.give_back().await;
            })),
            other => drop(other),
        }
    }
    all(going).await;
    rest([one]).await;
}

#[test]
fn reenter() {
    explore("reenter", reentering);
}

/// Three owners of one process and one of another want the lock; some leave.
async fn handing_over() {
    let handovers = [0, 1, 16][world::below(3)];
    let (one, other) = (client(handovers).await, client(handovers).await);
    let watch = watch_over(&[&one, &other], 0, SOON);
    let [a, b, c, d] = owners();
    let tasks = [(&one, a), (&one, b), (&one, c), (&other, d)];
    all(tasks.map(|(client, owner)| spawn(turn(client.clone(), owner)))).await;
    drop(watch);
    rest([one, other]).await;
}

#[test]
fn hand_over() {
    explore("hand_over", handing_over);
}

/// The same, and requests, replies and connections are lost.
#[test]
fn hand_over_in_trouble() {
    explore("hand_over_in_trouble", || async {
        rough();
        troubles(3, 1);
        handing_over().await;
    });
}

/// The last waiter leaves the queue while another joins it.
async fn lining_up() {
    let one = client(16).await;
    let watch = watch_over(&[&one], 0, SOON);
    let [a, b, c] = owners();
    let held = take(&one, &a, Limit::Forever).await;
    let short = |owner: Owner| {
        let one = one.clone();
        async move {
            for _ in 0..2 {
                if let Some(Ok(Some(held))) = cut_short(take(&one, &owner, Limit::Forever)).await {
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
    drop(watch);
    rest([one]).await;
}

#[test]
fn queue() {
    explore("queue", lining_up);
}

/// A waiter of a process with others is not polled for some time.
async fn not_polling() {
    rough(); // the waiters behind it may get `Unavailable`
    let (one, other) = (client(16).await, client(16).await);
    let watch = watch_over(&[&one, &other], 1, PASSED_OVER);
    let [a, b, c, d] = owners();
    let idle = one.clone();
    let idle = spawn(async move {
        if let Some(Ok(Some(held))) = not_polled(take(&idle, &a, Limit::Forever)).await {
            held.work().await;
            held.give_back().await;
        }
    });
    let others = [(&one, b), (&one, c), (&other, d)];
    let others = others.map(|(client, owner)| spawn(turn(client.clone(), owner)));
    all(others.into_iter().chain([idle])).await;
    drop(watch);
    rest([one, other]).await;
}

#[test]
fn unpolled() {
    explore("unpolled", not_polling);
}

/// A caller stops being polled, is polled again for a moment, and stops again, while the replies are slow and a task of the client takes its
/// request over. The callers behind it must not wait for it.
async fn taking_over() {
    server::trouble(server::Troubles { slow: 3, ..Default::default() });
    let (one, other) = (client(16).await, client(16).await);
    let [a, b, c] = owners();
    let idle = one.clone();
    let idle = spawn(async move {
        let mut call = Box::pin(take(&idle, &a, Limit::Forever));
        for pause in [[40, 80, 81, 120][world::below(4)], 5000] {
            if let Some(taken) = cut_short(call.as_mut()).await {
                if let Ok(Some(held)) = taken {
                    held.give_back().await;
                }
                return;
            }
            sleep(Duration::from_millis(pause)).await;
        }
        if let (true, Ok(Some(held))) = (world::once_in(2), call.await) {
            held.give_back().await;
        }
    });
    let others = [(one.clone(), b), (other.clone(), c)].map(|(client, owner)| {
        spawn(async move {
            let begun = now();
            let taken = take(&client, &owner, Limit::Forever).await;
            if now() - begun > PASSED_OVER && !is_lenient() {
                world::violated("a caller waits for one that is not polled");
            }
            if let Ok(Some(held)) = taken {
                held.give_back().await;
            }
        })
    });
    all(others.into_iter().chain([idle])).await;
    rest([one, other]).await;
}

#[test]
fn take_over() {
    explore("take_over", taking_over);
}

/// The hold is lost, by the server or by the clock, while guards of it come and go.
async fn losing() {
    rough();
    let (one, owner, other) = (client(16).await, Owner::new(), Owner::new());
    let again = |owner: Owner| {
        let one = one.clone();
        async move {
            for _ in 0..2 {
                let mut lock = one.lock(LOCK).owner(&owner);
                if world::once_in(3) {
                    lock = lock.lease(SOON);
                }
                if world::once_in(3) {
                    lock = lock.max_hold(SOON);
                }
                if let Ok(Some(held)) = take_as(&lock, Limit::Until(LEASE)).await {
                    held.work().await;
                    if world::once_in(3) {
                        sleep(SOON * 2).await;
                    }
                    let checked = held.guard.check().await;
                    world::tell(|| format!("check -> {checked:?}"));
                    held.give_back().await;
                }
            }
        }
    };
    let tasks = [spawn(again(owner.clone())), spawn(again(owner)), spawn(again(other))];
    if world::below(3) > 0 {
        steps(60).await;
        server::delete(LOCK);
    }
    all(tasks).await;
    rest([one]).await;
}

#[test]
fn lose() {
    explore("lose", losing);
}

/// Several guards of one hold are released at once, by callers that may be cancelled, and requests are lost.
async fn giving_back() {
    rough();
    troubles(3, 0);
    let (one, other) = (client(16).await, client(16).await);
    let watch = watch_over(&[&one, &other], 0, LEASE);
    let [a, b, c] = owners();
    let mut tasks = Vec::new();
    for _ in 0..2 + world::below(2) {
        if let Ok(Some(held)) = take(&one, &a, Limit::Forever).await {
            tasks.push(spawn(held.give_back()));
        }
    }
    tasks.push(spawn(turn(one.clone(), b)));
    tasks.push(spawn(turn(other.clone(), c)));
    all(tasks).await;
    drop(watch);
    rest([one, other]).await;
}

#[test]
fn release() {
    explore("release", giving_back);
}

/// A task drops a guard and tries again as another owner: it acquires the lock at once.
async fn trying_again() {
    let one = client(16).await;
    for owner in owners::<3>() {
        let begun = now();
        let taken = take(&one, &owner, Limit::Once).await;
        let late = now() > begun;
        if (late || matches!(taken, Ok(None))) && !world::is_hasty() {
            world::violated(&format!("the guard was dropped, and the next try took {:?}", now() - begun));
        }
        if let Ok(Some(held)) = taken {
            drop(held.into_guard().await);
        }
    }
    rest([one]).await;
}

#[test]
fn try_again() {
    explore("try_again", trying_again);
}

/// Two branches of one owner, and another owner.
async fn branching() {
    let one = client(16).await;
    let watch = watch_over(&[&one], 0, SOON);
    let [a, b] = owners();
    let owners = [a.clone(), a, b];
    all(owners.map(|owner| spawn(turn(one.clone(), owner)))).await;
    drop(watch);
    rest([one]).await;
}

#[test]
fn branches() {
    explore("branches", branching);
}

/// Anything, by any of them, while anything is lost.
async fn doing_anything() {
    rough();
    troubles(world::below(4), world::below(2));
    let (one, other) = (client(2).await, client(2).await);
    let watch = watch_over(&[&one, &other], 0, LEASE);
    let [a, b, c] = owners();
    let twice = |client: &Client, owner: &Owner| {
        let (client, owner) = (client.clone(), owner.clone());
        async move {
            turn(client.clone(), owner.clone()).await;
            turn(client, owner).await;
        }
    };
    all([spawn(twice(&one, &a)), spawn(twice(&one, &a)), spawn(twice(&one, &b)), spawn(twice(&other, &c))]).await;
    drop(watch);
    rest([one, other]).await;
}

#[test]
fn anything() {
    explore("anything", doing_anything);
}

/// Each call for a fenced lock gets a greater token than the calls before it.
async fn counting() {
    let (one, other) = (client(16).await, client(16).await);
    let last = Arc::new(std::sync::Mutex::new(0));
    let twice = |client: &Client| {
        let (client, last) = (client.clone(), Arc::clone(&last));
        async move {
            for _ in 0..2 {
                let lock = client.fenced_lock(LOCK).non_reentrant();
                let Ok(guard) = lock.lock().await else { continue };
                let token = guard.token();
                let before = std::mem::replace(&mut *last.lock().expect("nobody panics with it"), token);
                if token <= before {
                    world::violated(&format!("token {token} after {before}"));
                }
                steps(4).await;
                if world::once_in(2) {
                    drop(guard);
                } else if guard.unlock().await.is_err() && !is_lenient() {
                    world::violated("an error without a cause");
                }
            }
        }
    };
    all([spawn(twice(&one)), spawn(twice(&one)), spawn(twice(&other))]).await;
    rest([one, other]).await;
}

#[test]
fn fenced() {
    explore("fenced", counting);
}

/// The lock is forced open while its client passes it on.
async fn forcing() {
    rough();
    let (one, other) = (client(16).await, client(16).await);
    let [a, b, c] = owners();
    let tasks = [(&one, a), (&one, b), (&other, c)].map(|(client, owner)| spawn(turn(client.clone(), owner)));
    steps(60).await;
    world::with(|world| world.robbed = true);
    let forced = if world::once_in(2) { &one } else { &other }.lock(LOCK).force_unlock().await;
    world::tell(|| format!("forced -> {forced:?}"));
    all(tasks).await;
    rest([one, other]).await;
}

#[test]
fn force() {
    explore("force", forcing);
}

// ---- messages and timers ----

/// Waiters come and leave, so the client subscribes and unsubscribes, by several threads. Another client has the lock, and the last waiter
/// must hear of its release.
async fn subscribing() {
    let (one, other) = (client(0).await, client(0).await);
    let watch = watch_over(&[&one, &other], 0, SOON);
    let [a, b, c, d] = owners();
    let held = take(&other, &a, Limit::Forever).await;
    let restless = |owner: Owner| {
        let one = one.clone();
        async move {
            for _ in 0..3 {
                if let Some(Ok(Some(held))) = cut_short(take(&one, &owner, Limit::Forever)).await {
                    held.give_back().await;
                }
            }
        }
    };
    let tasks = [spawn(restless(b)), spawn(restless(c)), spawn(patient_turn(one.clone(), d))];
    if let Ok(Some(held)) = held {
        held.work().await;
        if world::once_in(2) {
            sleep(SOON).await;
        }
        held.give_back().await;
    }
    all(tasks).await;
    drop(watch);
    rest([one, other]).await;
}

#[test]
fn subscribe() {
    explore("subscribe", subscribing);
}

/// Calls with limits for several names come and go while the task of the timers naps. Another client has these locks, so only timers can end
/// the calls.
async fn waiting_for_timers() {
    const NAMES: [&str; 3] = ["one", "two", "three"];
    let (one, other) = (client(16).await, client(16).await);
    let mut held = Vec::new();
    for name in NAMES {
        held.push(take_as(&other.mutex(name), Limit::Forever).await);
    }
    let waits = (0..3).map(|_| {
        let one = one.clone();
        spawn(async move {
            for _ in 0..3 {
                let limit = Duration::from_millis([1, 5, 30, 200][world::below(4)]);
                let name = NAMES[world::below(3)];
                if let Ok(Some(held)) = take_as(&one.mutex(name), Limit::Until(limit)).await {
                    held.give_back().await;
                }
                if world::once_in(4) {
                    sleep(Duration::from_millis([3, 1100, 2300][world::below(3)])).await;
                }
            }
        })
    });
    all(waits.collect::<Vec<_>>()).await;
    for held in held.into_iter().flatten().flatten() {
        held.give_back().await;
    }
    rest([one, other]).await;
}

#[test]
fn timers() {
    explore("timers", waiting_for_timers);
}

/// A name is forgotten while a new caller finds it.
async fn forgetting() {
    let one = client(16).await;
    let tasks = owners::<3>().map(|owner| {
        let one = one.clone();
        spawn(async move {
            for _ in 0..3 {
                if let Ok(Some(held)) = take(&one, &owner, Limit::Once).await {
                    held.give_back().await;
                }
            }
        })
    });
    all(tasks).await;
    rest([one]).await;
}

#[test]
fn forget() {
    explore("forget", forgetting);
}

// ---- losses ----

/// Futures and tokens wait for a loss, while the lock is lost or released. They learn of each loss, and of nothing else.
async fn watching_for_losses() {
    rough();
    let (one, owner) = (client(16).await, Owner::new());
    let lock = if world::once_in(3) { one.lock(LOCK).owner(&owner).lease(SOON) } else { one.lock(LOCK).owner(&owner) };
    let taken = take_as(&lock, Limit::Forever).await;
    drop(lock);
    let Ok(Some(held)) = taken else { return rest([one]).await };
    let tokens = [held.guard.lost_token(), held.guard.lost_token()];
    let waiting = Arc::clone(&held.guard);
    let mut waiting = spawn(async move { _ = timeout(LEASE * 20, waiting.lost()).await });
    let robbing = spawn(async {
        if world::once_in(2) {
            steps(20).await;
            server::delete(LOCK);
        }
    });
    if world::once_in(2) {
        all([robbing]).await;
        if world::once_in(2) {
            _ = held.guard.check().await; // notices it at once
        }
        let is_lost = until(LEASE * 2, || held.guard.is_lost()).await;
        let resolves = timeout(SOON, &mut waiting).await.is_ok();
        waiting.abort();
        if is_lost != resolves && !world::is_hasty() || world::is_robbed() && !is_lost {
            world::violated(&format!("lost: {is_lost}, and the future resolves: {resolves}"));
        }
        if is_lost && !until(SOON, || tokens.iter().all(|token| token.is_cancelled())).await {
            world::violated("the lock is lost, and a token is not cancelled");
        }
        held.give_back().await;
    } else {
        waiting.abort();
        let unlocked = held.unlock().await;
        all([robbing]).await;
        let is_lost = matches!(unlocked, Err(Error::Lost { .. }));
        if is_lost && !until(SOON, || tokens.iter().all(|token| token.is_cancelled())).await {
            world::violated("the lock was lost before its release, and a token is not cancelled");
        }
        sleep(LEASE * 2).await;
        if unlocked.is_ok() && tokens.iter().any(|token| token.is_cancelled()) {
            world::violated("the lock was released, and a token is cancelled");
        }
    }
    rest([one]).await;
}

#[test]
fn losses() {
    explore("losses", watching_for_losses);
}

/// A guard is dropped while its lock is lost: its token is cancelled only if it was lost.
async fn dropping_beside_a_loss() {
    let (one, owner) = (client(16).await, Owner::new());
    let held = take(&one, &owner, Limit::Forever).await;
    if world::once_in(2) {
        rough();
    }
    let robbing = spawn(async {
        if world::is_rough() {
            steps(30).await;
            server::delete(LOCK);
        }
    });
    if let Ok(Some(held)) = held {
        let token = held.guard.lost_token();
        let listening = spawn({
            let token = token.clone();
            async move { _ = timeout(LEASE, token.cancelled()).await }
        });
        held.work().await;
        drop(held.into_guard().await);
        all([robbing, listening]).await;
        if token.is_cancelled() && !is_lenient() {
            world::violated("the guard was dropped, and its token is cancelled");
        }
    }
    rest([one]).await;
}

#[test]
fn drop_beside_loss() {
    explore("drop_beside_loss", dropping_beside_a_loss);
}

// ---- read-write locks ----

/// Reads or writes in one of several ways.
async fn rw_turn(client: Client, owner: Owner, mode: Mode) {
    let limit = Limit::any();
    let call = async {
        match mode {
            Mode::Shared => read(&client, &owner, limit).await,
            Mode::Exclusive => write(&client, &owner, limit).await,
        }
    };
    let taken = if world::once_in(3) { cut_short(call).await.unwrap_or(Ok(None)) } else { call.await };
    if let Ok(Some(held)) = taken {
        held.work().await;
        held.give_back().await;
    }
}

/// Readers of one client join while others leave, and a writer of another client waits.
async fn reading() {
    let (one, other) = (client(16).await, client(16).await);
    let watch = watch_over(&[&one, &other], 0, SOON);
    let [a, b, c, d] = owners();
    let twice = |owner: Owner| {
        let one = one.clone();
        async move {
            rw_turn(one.clone(), owner.clone(), Mode::Shared).await;
            rw_turn(one, owner, Mode::Shared).await;
        }
    };
    let readers = [spawn(twice(a)), spawn(twice(b)), spawn(twice(c))];
    let writer = spawn(rw_turn(other.clone(), d, Mode::Exclusive));
    all(readers.into_iter().chain([writer])).await;
    drop(watch);
    rest([one, other]).await;
}

#[test]
fn readers() {
    explore("readers", reading);
}

/// Readers leave while the writer before them releases the lock, or while another client's writer waits for them.
async fn cancelling_readers() {
    let (one, other) = (client(16).await, client(16).await);
    let watch = watch_over(&[&one, &other], 0, SOON);
    let [a, b, c, d] = owners();
    let first = write(if world::once_in(2) { &one } else { &other }, &a, Limit::Forever).await;
    let restless = |owner: Owner| {
        let one = one.clone();
        async move {
            for _ in 0..2 {
                if let Some(Ok(Some(held))) = cut_short(read(&one, &owner, Limit::Forever)).await {
                    held.give_back().await;
                }
            }
        }
    };
    let readers = [spawn(restless(b)), spawn(restless(c))];
    let writer = spawn(rw_turn(other.clone(), d, Mode::Exclusive));
    if let Ok(Some(held)) = first {
        held.work().await;
        held.give_back().await;
    }
    all(readers.into_iter().chain([writer])).await;
    drop(watch);
    rest([one, other]).await;
}

#[test]
fn cancelled_readers() {
    explore("cancelled_readers", cancelling_readers);
}

/// A writer begins to read, and another writer waits. None of them is between.
async fn downgrading() {
    let (one, other) = (client(16).await, client(16).await);
    let watch = watch_over(&[&one, &other], 0, SOON);
    let [a, b, c, d] = owners();
    let writing = one.rw_lock(LOCK).owner(&a).write().await;
    let modes = [Mode::Exclusive, Mode::Shared];
    let waiters = [(&one, b), (&one, c), (&other, d)];
    let waiters = waiters.map(|(client, owner)| spawn(rw_turn(client.clone(), owner, modes[world::below(2)])));
    steps(20).await;
    if let Ok(writing) = writing {
        downgrade(writing).await;
    } else if !is_lenient() {
        world::violated("an error without a cause");
    }
    all(waiters).await;
    drop(watch);
    rest([one, other]).await;
}

async fn downgrade(writing: WriteGuard) {
    let reading = match world::below(3) {
        0 => cut_short(writing.downgrade()).await,
        _ => Some(writing.downgrade().await),
    };
    world::tell(|| format!("downgrade -> {reading:?}"));
    match reading {
        Some(Ok(reading)) => {
            let held = Held::new((LOCK, Mode::Shared), reading.into());
            held.work().await;
            held.give_back().await;
        }
        Some(Err(_)) if !is_lenient() => world::violated("an error without a cause"),
        Some(Err(_)) | None => {}
    }
}

#[test]
fn downgrades() {
    explore("downgrades", downgrading);
}

// ---- fair locks ----

/// For longer than a caller keeps a request that it does not poll.
const CARRIED: [u64; 6] = [0, 1, 20, 79, 81, 200];

fn short_time() -> Duration {
    Duration::from_millis(CARRIED[world::below(CARRIED.len())])
}

async fn fair_turn(client: Client, owner: Owner) {
    let limit = Limit::any();
    let taken = match world::below(3) {
        0 => cut_short(take_fair(&client, &owner, limit)).await.unwrap_or(Ok(None)),
        _ => take_fair(&client, &owner, limit).await,
    };
    if let Ok(Some(held)) = taken {
        held.work().await;
        held.give_back().await;
    }
}

/// Owners of two clients come and leave, two tasks of one owner among them.
async fn standing_in_line() {
    let (one, other) = (client(16).await, client(16).await);
    let watch = watch_over(&[&one, &other], 0, SOON);
    let [a, b, c] = owners();
    let tasks = [(&one, a.clone()), (&one, a), (&one, b), (&other, c)];
    all(tasks.map(|(client, owner)| spawn(fair_turn(client.clone(), owner)))).await;
    drop(watch);
    rest([one, other]).await;
}

#[test]
fn fair() {
    explore("fair", standing_in_line);
}

/// It is the turn of a waiter: the client lends it its next request. It is not polled then, or it leaves, or its time ends. The waiters behind
/// it must not wait for its grace on the server.
async fn beside_an_unpolled_caller() {
    server::trouble(server::Troubles { slow: world::below(3), ..Default::default() });
    let (one, other) = (client(16).await, client(16).await);
    let [a, b, c, d] = owners();
    let held = take_fair(if world::once_in(2) { &one } else { &other }, &a, Limit::Forever).await;
    let idle = one.clone();
    let idle = spawn(async move {
        let lock = idle.fair_lock(LOCK).owner(&b);
        let limit = [LEASE * 5, short_time() + Duration::from_millis(1)][world::below(2)];
        let mut call = Box::pin(lock.try_lock_for(limit));
        for pause in [short_time(), short_time(), PASSED_OVER * 3] {
            if let Some(taken) = cut_short(call.as_mut()).await {
                // An error is its own fault: its request may have been without a reply when its limit ended.
                if let Ok(Some(guard)) = taken {
                    Held::new((LOCK, Mode::Exclusive), guard).give_back().await;
                }
                return;
            }
            if world::once_in(4) {
                return; // the call is dropped
            }
            sleep(pause).await;
        }
    });
    steps(20).await;
    let others = [(one.clone(), c), (other.clone(), d)].map(|(client, owner)| {
        spawn(async move {
            let begun = now();
            let taken = take_fair(&client, &owner, Limit::Forever).await;
            if now() - begun > PASSED_OVER && !is_lenient() {
                world::violated("a caller waits for one that is not polled");
            }
            if let Ok(Some(held)) = taken {
                held.give_back().await;
            }
        })
    });
    sleep(short_time()).await;
    if let Ok(Some(held)) = held {
        held.give_back().await;
    }
    all(others.into_iter().chain([idle])).await;
    rest([one, other]).await;
}

#[test]
fn passed_over() {
    explore("passed_over", beside_an_unpolled_caller);
}

/// The client asks for a waiter as soon as it is notified.
async fn waking() {
    let (one, other) = (client(16).await, client(16).await);
    let [a, b] = owners();
    let held = take_fair(&other, &a, Limit::Forever).await;
    let waiter = one.clone();
    let waiter = spawn(async move {
        if let Ok(Some(held)) = take_fair(&waiter, &b, Limit::Forever).await {
            let acquired = now();
            held.give_back().await;
            return Some(acquired);
        }
        None
    });
    sleep(short_time()).await;
    if let Ok(Some(held)) = held {
        held.give_back().await;
    }
    let released = now();
    let acquired = waiter.await.expect("it does not panic");
    if acquired.is_some_and(|acquired| acquired > released + AT_ONCE) && !is_lenient() {
        world::violated("a waiter that was notified waits for something else");
    }
    rest([one, other]).await;
}

#[test]
fn woken() {
    explore("woken", waking);
}

/// Waiters for one place come and leave, so two threads subscribe and unsubscribe its channel. Subscriptions may be lost.
async fn settling_places() {
    server::trouble(server::Troubles { deaf: world::below(2), ..Default::default() });
    let (one, other) = (client(16).await, client(16).await);
    let [a, b, c] = owners();
    let held = take_fair(&other, &a, Limit::Forever).await;
    let restless = |owner: Owner| {
        let one = one.clone();
        async move {
            for _ in 0..3 {
                if let Some(Ok(Some(held))) = cut_short(take_fair(&one, &owner, Limit::any())).await {
                    held.give_back().await;
                }
            }
        }
    };
    let patient = one.clone();
    let patient = spawn(async move {
        if let Ok(Some(held)) = take_fair(&patient, &c, Limit::Forever).await {
            held.give_back().await;
        }
    });
    let tasks = [spawn(restless(b.clone())), spawn(restless(b)), patient];
    if let Ok(Some(held)) = held {
        held.work().await;
        held.give_back().await;
    }
    all(tasks).await;
    rest([one, other]).await;
}

#[test]
fn places() {
    explore("places", settling_places);
}

/// The client ends, by any way, while its tasks wait for a fair lock or a read-write lock, or have one.
async fn ending_beside_others() {
    rough();
    let runtime = Handle::new();
    let one = runtime.spawn(client(16)).await.expect("nobody ends it");
    let other = client(16).await;
    let is_fair = world::once_in(2);
    let turn = |client: &Client, owner: Owner, mode| {
        let client = client.clone();
        spawn(async move {
            match is_fair {
                true => fair_turn(client, owner).await,
                false => rw_turn(client, owner, mode).await,
            }
        })
    };
    let [a, b, c, d] = owners();
    let tasks = [
        turn(&one, a, Mode::Shared),
        turn(&one, b, Mode::Exclusive),
        turn(&one, c, Mode::Shared),
        turn(&other, d, Mode::Exclusive),
    ];
    steps(60).await;
    let ended = match world::below(4) {
        0 => one.clone().shutdown(LEASE).await,
        1 => one.clone().shutdown(Duration::ZERO).await,
        2 => one.clone().close().await,
        _ => {
            runtime.end();
            Ok(())
        }
    };
    world::tell(|| format!("end -> {ended:?}"));
    let driver = driver(&one);
    drop(one);
    all(tasks).await;
    are_dropped(vec![driver]).await;
    drop(other);
}

#[test]
fn end_of_kinds() {
    explore("end_of_kinds", ending_beside_others);
}

// ---- permits ----

const PERMITS: &str = "permits";
const ALL_PERMITS: u32 = 2;

thread_local! {
    static TAKEN: RefCell<Vec<Weak<Permits>>> = RefCell::default();
}

/// Permits that are checked whenever all tasks are asleep, until their release.
struct Taken(Arc<Permits>, world::Watch);

impl Taken {
    fn new(permits: Permits) -> Taken {
        let permits = Arc::new(permits);
        TAKEN.with_borrow_mut(|all| {
            all.retain(|one| one.strong_count() > 0);
            all.push(Arc::downgrade(&permits));
        });
        look_at_permits();
        Taken(permits, world::watch(look_at_permits))
    }

    /// Only the caller has them from now on.
    async fn into_inner(self) -> Permits {
        let Taken(mut permits, watch) = self;
        drop(watch);
        loop {
            match Arc::try_unwrap(permits) {
                Ok(permits) => return permits,
                Err(shared) => permits = shared,
            }
            yield_now().await; // another task looks at them
        }
    }

    /// By any way; the caller of `release` may go away meanwhile.
    async fn give_back(self) {
        let permits = self.into_inner().await;
        world::tell(|| format!("give back {permits:?}"));
        let released = match world::below(3) {
            0 => Ok(drop(permits)),
            1 => cut_short(permits.release()).await.unwrap_or(Ok(())),
            _ => permits.release().await,
        };
        if released.is_err() && !is_lenient() {
            world::violated(&format!("an error without a cause: {released:?}"));
        }
    }
}

/// No more permits are certain than there are, and the server has each of them.
fn look_at_permits() {
    let all: Vec<_> = TAKEN.with_borrow(|all| all.iter().filter_map(Weak::upgrade).collect());
    let lost = all.iter().find(|permits| permits.remaining().is_zero());
    if let Some(permits) = lost.filter(|_| !is_lenient()) {
        world::violated(&format!("{permits:?} are lost without a cause"));
    }
    let certain: u32 = all.iter().filter(|one| !one.remaining().is_zero()).map(|one| one.count()).sum();
    let free = server::number(PERMITS).unwrap_or_default();
    if i64::from(certain) + free > i64::from(ALL_PERMITS) {
        world::violated(&format!("{certain} permits are certain, and {free} free: {all:?}"));
    }
}

async fn take_permits(client: &Client, wanted: u32, limit: Limit) -> Option<Taken> {
    let (semaphore, begun) = (client.semaphore(PERMITS), now());
    let taken = match limit {
        Limit::Once => semaphore.try_acquire(wanted).await,
        Limit::Until(time) => semaphore.try_acquire_for(wanted, time).await,
        Limit::Forever => semaphore.acquire(wanted).await.map(Some),
    };
    world::tell(|| format!("{wanted} permits, {limit:?} -> {taken:?}"));
    match taken {
        Ok(taken) => {
            let limit = if let Limit::Until(time) = limit { time + SOON } else { SOON };
            if taken.is_none() && now() - begun > limit && !is_lenient() && !server::is_troubled() {
                world::violated(&format!("the call took {:?}", now() - begun));
            }
            taken.map(Taken::new)
        }
        Err(_) if is_lenient() => None,
        Err(error) => world::violated(&format!("an error without a cause: {error}")),
    }
}

/// Acquires permits, and releases them in two parts by two threads.
async fn permits_turn(client: Client, wanted: u32) {
    let limit = Limit::any();
    let taken = match world::below(4) {
        0 => cut_short(take_permits(&client, wanted, limit)).await.flatten(),
        _ => take_permits(&client, wanted, limit).await,
    };
    let Some(taken) = taken else { return };
    steps(6).await;
    if !world::once_in(3) {
        let mut permits = taken.into_inner().await;
        let part = permits.split(1).map(|part| spawn(Taken::new(part).give_back()));
        Taken::new(permits).give_back().await;
        return all(part).await;
    }
    taken.give_back().await;
}

/// While all permits are free, no waiter sleeps.
fn watch_over_permits(clients: &[&Client]) -> world::Watch {
    let drivers: Vec<_> = clients.iter().map(|client| driver(client)).collect();
    let free_since = Cell::new(None);
    world::watch(move || {
        let waiting: u64 = drivers.iter().map(|driver| gauges(driver)[1]).sum();
        let is_free = server::number(PERMITS) == Some(i64::from(ALL_PERMITS));
        let since = (waiting > 0 && is_free && !world::is_hasty()).then(|| free_since.get().unwrap_or_else(now));
        free_since.set(since);
        let soon = if server::is_troubled() { PASSED_OVER } else { SOON };
        if since.is_some_and(|since| now() > since + soon) {
            world::violated("all permits are free, and their waiters sleep");
        }
    })
}

/// Owners of two clients want one permit or both, some leave, and some release parts.
async fn sharing_permits() {
    let (one, other) = (client(16).await, client(16).await);
    while !is_done(other.semaphore(PERMITS).set_permits(ALL_PERMITS).await) {}
    let watch = watch_over_permits(&[&one, &other]);
    let tasks = [(&one, 2), (&one, 1), (&one, 1), (&other, 2)];
    all(tasks.map(|(client, wanted)| spawn(permits_turn(client.clone(), wanted)))).await;
    drop(watch);
    world::calm_down();
    let is_back = || server::number(PERMITS).is_none_or(|free| free == i64::from(ALL_PERMITS));
    let limit = if world::is_hasty() || server::is_troubled() { LEASE * 2 } else { SOON };
    if !until(limit, || is_back() && !server::has_mark(PERMITS)).await && !is_lenient() {
        world::violated("permits or a mark are left at the end");
    }
    rest([one, other]).await;
}

#[test]
fn permits() {
    explore("permits", sharing_permits);
}

/// The same, and requests, replies and connections are lost.
#[test]
fn permits_in_trouble() {
    explore("permits_in_trouble", || async {
        rough();
        troubles(3, 1);
        sharing_permits().await;
    });
}

// ---- a latch ----

const LATCH: &str = "latch";

/// What is certain of the latch. A request that changes it is under way at first, and has a reply later.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gate {
    Shut { times: u32 },
    Moving,
    OpenSince(Duration),
}

thread_local! {
    static GATE: Cell<Gate> = const { Cell::new(Gate::Moving) };
}

/// Opens the latch and sets it again, and opens it at last.
async fn turn_the_latch(client: Client) {
    let latch = client.latch(LATCH);
    for times in 0..3 {
        if times > 0 {
            set_the_latch(&latch, times).await;
            steps(20).await;
        }
        GATE.set(Gate::Moving);
        while !opens(&latch).await {}
        GATE.set(Gate::OpenSince(now()));
        steps(10).await;
    }
}

async fn opens(latch: &Latch) -> bool {
    match world::below(4) {
        0 => is_done(latch.delete().await.map(drop)),
        _ => is_done(latch.count_down().await.map(drop)),
    }
}

async fn set_the_latch(latch: &Latch, times: u32) {
    GATE.set(Gate::Moving);
    while !is_done(latch.try_set_count(1).await.map(drop)) {}
    GATE.set(Gate::Shut { times });
}

/// Without a reply it may have changed or not: the request is sent again.
fn is_done(changed: Result<()>) -> bool {
    world::tell(|| format!("a change -> {changed:?}"));
    if changed.is_err() && !is_lenient() {
        world::violated("an error without a cause");
    }
    changed.is_ok()
}

async fn pass(client: Client) {
    let (latch, limit) = (client.latch(LATCH), Limit::any());
    let (before, begun) = (GATE.get(), now());
    let passing = async {
        match limit {
            Limit::Once => latch.wait_for(Duration::ZERO).await,
            Limit::Until(time) => latch.wait_for(time).await,
            Limit::Forever => latch.wait().await.map(|()| true),
        }
    };
    let passed = if world::once_in(4) { cut_short(passing).await } else { Some(passing.await) };
    world::tell(|| format!("wait, {limit:?} -> {passed:?}"));
    let end = begun + if let Limit::Until(time) = limit { time } else { Duration::ZERO };
    match (passed, GATE.get()) {
        (Some(Ok(true)), after @ Gate::Shut { .. }) if before == after => {
            world::violated("a waiter passed a latch that was not open");
        }
        (Some(Ok(false)), Gate::OpenSince(since)) if since < end => {
            world::violated("a waiter gave up at a latch that was opened before its limit");
        }
        (Some(Err(_)), _) if !is_lenient() => world::violated("an error without a cause"),
        _ => {}
    }
}

/// Waiters of two clients pass while the latch is set again.
async fn passing() {
    let (one, other) = (client(16).await, client(16).await);
    set_the_latch(&other.latch(LATCH), 0).await;
    let (waiting, open_since) = ([driver(&one), driver(&other)], Cell::new(None));
    let watch = world::watch(move || {
        let waits = waiting.iter().any(|driver| gauges(driver)[1] > 0);
        let is_open = server::number(LATCH).is_none() && !world::is_hasty();
        let since = (waits && is_open).then(|| open_since.get().unwrap_or_else(now));
        open_since.set(since);
        let soon = if server::is_troubled() { PASSED_OVER } else { SOON };
        if since.is_some_and(|since| now() > since + soon) {
            world::violated("the latch is open, and its waiters sleep");
        }
    });
    let waiters = [&one, &one, &one, &other].map(|client| spawn(pass(client.clone())));
    let turning = spawn(turn_the_latch(other.clone()));
    all(waiters.into_iter().chain([turning])).await;
    drop(watch);
    rest([one, other]).await;
}

#[test]
fn latch() {
    explore("latch", passing);
}

/// The same, and requests, replies and connections are lost.
#[test]
fn latch_in_trouble() {
    explore("latch_in_trouble", || async {
        rough();
        troubles(3, 1);
        passing().await;
    });
}

// ---- wakers ----

/// A waker that keeps a guard, as that of a task which only its wakers keep. Who drops or wakes it releases the lock.
struct Keeper(#[expect(dead_code, reason = "it is dropped")] Vec<Guard>);

impl Wake for Keeper {
    fn wake(self: Arc<Keeper>) {}
}

/// Polls once, with a waker that has these guards.
async fn polled_by_keeper<T>(work: impl Future<Output = T>, guards: Vec<Guard>) -> Option<T> {
    let mut work = pin!(work);
    let first = {
        let waker = Waker::from(Arc::new(Keeper(guards)));
        work.as_mut().poll(&mut Context::from_waker(&waker))
    };
    match first {
        Poll::Ready(done) => Some(done),
        Poll::Pending => {
            if world::once_in(2) {
                world::step().await;
            }
            match world::below(3) {
                0 => None,                            // the call is dropped, and its waker
                1 => timeout(LEASE, work).await.ok(), // another waker replaces it
                _ => {
                    sleep(SOON).await; // it is woken
                    timeout(LEASE, work).await.ok()
                }
            }
        }
    }
}

/// Guards are dropped by wakers, wherever the client drops or wakes these.
async fn keeping() {
    rough();
    let one = client(16).await;
    let [a, b, c] = owners();
    let both = async |owner: &Owner| {
        let mut guards = Vec::new();
        for _ in 0..1 + world::below(2) {
            if let Ok(Some(held)) = take(&one, owner, Limit::Forever).await {
                guards.push(held.into_guard().await);
            }
        }
        guards
    };
    let guards = both(&a).await;
    let others = [spawn(turn(one.clone(), b.clone())), spawn(turn(one.clone(), c))];
    if world::once_in(3) {
        steps(30).await;
        server::delete(LOCK);
    }
    match world::below(4) {
        0 => drop(polled_by_keeper(take(&one, &b, Limit::Forever), guards).await),
        1 => drop(polled_by_keeper(take(&one, &a, Limit::Forever), guards).await),
        2 => {
            let mut guards = guards;
            if let Some(last) = guards.pop() {
                let token = last.lost_token();
                drop(last);
                _ = polled_by_keeper(token.cancelled(), guards).await;
            }
        }
        _ => {
            let mut guards = guards;
            if let Some(last) = guards.pop() {
                _ = polled_by_keeper(last.lost(), guards).await;
                drop(polled_by_keeper(last.unlock(), Vec::new()).await);
            }
        }
    }
    if world::once_in(3) {
        drop(one.clone().close().await);
    }
    all(others).await;
    rest([one]).await;
}

#[test]
fn wakers() {
    explore("wakers", keeping);
}

// ---- the end of a client ----

/// The client closes while tasks acquire and wait.
async fn closing() {
    rough();
    let one = builder(16).own_thread(world::once_in(2)).connect().await.expect("it connects");
    let [a, b] = owners();
    let mut tasks = vec![spawn(turn(one.clone(), a.clone())), spawn(turn(one.clone(), a))];
    tasks.push(spawn(turn(one.clone(), b)));
    steps(60).await;
    let closed = one.clone().close().await;
    world::tell(|| format!("close -> {closed:?}"));
    if closed.is_err() && !world::is_hasty() {
        world::violated("close failed although each request got its reply");
    }
    all(tasks).await;
    rest([one]).await;
}

#[test]
fn close() {
    explore("close", closing);
}

/// The client is shut down while tasks acquire and wait. It waits for the holders, and closes.
async fn shutting_down() {
    rough();
    let one = builder(16).own_thread(world::once_in(2)).connect().await.expect("it connects");
    let [a, b, c] = owners();
    let mut tasks: Vec<_> = [a.clone(), a, b].map(|owner| spawn(turn(one.clone(), owner))).into();
    steps(60).await;
    let (closing, late) = (one.clone(), one.clone());
    tasks.push(spawn(turn(late, c)));
    if world::once_in(3) {
        let one = one.clone();
        tasks.push(spawn(async move { _ = one.close().await }));
    }
    let (begun, grace) = (now(), if world::once_in(2) { LEASE } else { Duration::ZERO });
    let closed = closing.shutdown(grace).await;
    world::tell(|| format!("shutdown -> {closed:?}"));
    if closed.is_err() && !world::is_hasty() {
        world::violated("shutdown failed although each request got its reply");
    }
    if now() - begun > SOON && !world::is_hasty() {
        world::violated("shutdown slept although all guards were released");
    }
    if take(&one, &Owner::new(), Limit::Once).await.is_ok() {
        world::violated("a closed client acquires a lock");
    }
    all(tasks).await;
    rest([one]).await;
}

#[test]
fn shutdown() {
    explore("shutdown", shutting_down);
}

/// The last handle of a client is dropped while its guards are being released.
async fn leaving() {
    let one = builder(16).own_thread(world::once_in(2)).connect().await.expect("it connects");
    let driver = driver(&one);
    let [a, b, c] = owners();
    let tasks = [a.clone(), a, b, c].map(|owner| spawn(turn(one.clone(), owner)));
    drop(one);
    all(tasks).await;
    are_dropped(vec![driver]).await;
    rest([]).await;
}

#[test]
fn leave() {
    explore("leave", leaving);
}

/// The runtime of a client ends while tasks of another runtime acquire, wait and release. Every call ends, and nothing is kept.
async fn losing_the_runtime() {
    rough();
    let runtime = Handle::new();
    let one = runtime.spawn(client(16)).await.expect("nobody ends it");
    let [a, b, c] = owners();
    let mut tasks: Vec<_> = [a.clone(), a, b].map(|owner| spawn(turn(one.clone(), owner))).into();
    steps(60).await;
    let ending = spawn(async move { runtime.end() });
    tasks.push(spawn(turn(one.clone(), c)));
    if world::once_in(3) {
        let closed = one.clone().close().await;
        world::tell(|| format!("close -> {closed:?}"));
    }
    all(tasks).await;
    all([ending]).await;
    let driver = driver(&one);
    drop(one);
    are_dropped(vec![driver]).await;
}

#[test]
fn runtime_gone() {
    explore("runtime_gone", losing_the_runtime);
}

/// A guard outlives the runtime of its client. Its owner learns of the loss when the lease ends.
async fn outliving_the_runtime() {
    rough();
    let runtime = Handle::new();
    let one = runtime.spawn(client(16)).await.expect("nobody ends it");
    let held = take(&one, &Owner::new(), Limit::Forever).await;
    let driver = driver(&one);
    drop(one);
    if let Ok(Some(held)) = held {
        let token = world::once_in(2).then(|| held.guard.lost_token());
        let waiting = Arc::clone(&held.guard);
        let waiting = spawn(async move { timeout(LEASE * 20, waiting.lost()).await });
        steps(20).await;
        runtime.end();
        if waiting.await.expect("nobody ends it").is_err() {
            world::violated("nobody renews the lease, and the lock is not lost");
        }
        world::calm_down(); // else the clock may run on before the task that cancels the token
        let is_cancelled = || token.as_ref().is_none_or(|token| token.is_cancelled());
        if !until(SOON, is_cancelled).await {
            world::violated("the lock is lost, and its token is not cancelled");
        }
        held.give_back().await;
    }
    are_dropped(vec![driver]).await;
}

#[test]
fn guard_of_no_runtime() {
    explore("guard_of_no_runtime", outliving_the_runtime);
}
