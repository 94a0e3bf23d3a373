//! One execution: its time, its server, its random numbers, its checks, and its events so far. All tasks of an execution run
//! on one thread of the machine, so this is a thread-local, and no task ever waits for it.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

use shuttle::current::TaskId;

use super::{
    server::{self, Server},
    tasks::Runtimes,
};

/// When a sleeper is woken, and which one.
pub(super) type Alarm = (Duration, u64);

pub(crate) struct World {
    pub(super) now: Duration,
    pub(super) alarms: BTreeMap<Alarm, Waker>,
    pub(super) numbers: u64,
    /// The task that moves the time.
    pub(super) clock: Option<TaskId>,
    /// The clock runs because no other task can.
    pub(super) all_asleep: bool,
    /// Time passes at some moments, not only while all are asleep.
    hasty: bool,
    /// At so many.
    pub(super) haste: usize,
    /// Errors are no surprise: the key is deleted, say, or the client closed.
    pub(crate) rough: bool,
    /// The key of a held lock was deleted.
    pub(crate) robbed: bool,
    pub(crate) luck: fastrand::Rng,
    pub(super) server: Server,
    pub(super) runtimes: Runtimes,
    /// The mutexes that each task has locked, by the types of their contents.
    pub(super) locked: HashMap<Option<TaskId>, Vec<&'static str>>,
    /// Looked at whenever all are asleep.
    watched: Vec<(u64, Rc<dyn Fn()>)>,
    story: Vec<String>,
    violation: Option<String>,
}

impl Default for World {
    fn default() -> World {
        World {
            now: Duration::from_secs(1000),
            alarms: BTreeMap::new(),
            numbers: 0,
            clock: None,
            all_asleep: false,
            hasty: false,
            haste: 0,
            rough: false,
            robbed: false,
            luck: fastrand::Rng::with_seed(0),
            server: Server::default(),
            runtimes: Runtimes::default(),
            locked: HashMap::new(),
            watched: Vec::new(),
            story: Vec::new(),
            violation: None,
        }
    }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

/// Looks at the world or changes it. Never wakes or switches meanwhile.
pub(crate) fn with<T>(look: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(look)
}

/// A new world.
pub(super) fn begin(seed: u64, haste: usize) {
    end();
    server::begin();
    let luck = fastrand::Rng::with_seed(seed);
    with(|world| (world.luck, world.hasty, world.haste) = (luck, haste > 0, haste));
}

/// Forgets the channels of a failed execution: their wake-ups would have no execution to reach.
pub(super) fn end() {
    std::mem::forget(WORLD.take().server);
}

/// True once in `n` times.
pub(crate) fn once_in(n: usize) -> bool {
    below(n) == 0
}

pub(crate) fn below(n: usize) -> usize {
    with(|world| world.luck.usize(..n))
}

/// From here on time passes only while all are asleep, and nothing is lost any more.
pub(crate) fn calm_down() {
    with(|world| {
        world.haste = 0;
        world.server.troubles = Default::default();
    });
}

pub(crate) fn is_hasty() -> bool {
    with(|world| world.hasty)
}

pub(crate) fn is_rough() -> bool {
    with(|world| world.rough)
}

pub(crate) fn is_robbed() -> bool {
    with(|world| world.robbed)
}

/// Others may run here.
pub(crate) async fn step() {
    let mut stepped = false;
    poll_fn(|cx| {
        if stepped {
            return Poll::Ready(());
        }
        stepped = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Has `look` called whenever all are asleep, until it is dropped.
pub(crate) fn watch(look: impl Fn() + 'static) -> Watch {
    with(|world| {
        world.numbers += 1;
        world.watched.push((world.numbers, Rc::new(look)));
        Watch(world.numbers)
    })
}

#[derive(Debug)]
pub(crate) struct Watch(u64);

impl Drop for Watch {
    fn drop(&mut self) {
        let gone = with(|world| {
            let at = world.watched.iter().position(|(number, _)| *number == self.0)?;
            Some(world.watched.swap_remove(at))
        });
        drop(gone);
    }
}

pub(super) fn look_around() {
    let watched: Vec<_> = with(|world| world.watched.iter().map(|(_, look)| Rc::clone(look)).collect());
    watched.iter().for_each(|look| look());
}

/// Adds an event to the list that a violation prints.
pub(crate) fn tell(line: impl FnOnce() -> String) {
    let who = shuttle::current::get_current_task();
    let line = line();
    with(|world| {
        let time = world.now.saturating_sub(World::default().now);
        world.story.push(format!("{time:>8.1?}  {:>4}  {line}", who.map_or(0, usize::from)));
    });
}

/// A check failed: ends the execution, and prints the events that led here.
pub(crate) fn violated(what: &str) -> ! {
    let story = with(|world| std::mem::take(&mut world.story)).join("\n");
    let violation = format!("{story}\nVIOLATION: {what}");
    with(|world| world.violation = Some(violation.clone()));
    panic!("{violation}");
}

/// A check may have failed in code whose panics the client contains.
pub(super) fn check_contained() {
    if let Some(violation) = with(|world| world.violation.take()) {
        panic!("{violation}");
    }
}
