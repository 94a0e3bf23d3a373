//! Decides which task runs next. Each execution follows from the seed and its own number, so it can be repeated alone.

use std::{
    collections::HashMap,
    env,
    future::Future,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use shuttle::{
    Config, FailurePersistence, Runner,
    current::TaskId,
    scheduler::{Schedule, Scheduler, Task},
};

use super::{clock, tasks, world};

/// In hasty executions, one step in so many is the clock's, a few times: the task of the last rank must run between them.
const HASTE: usize = 40;

/// Runs a scenario over and over, with the threads interleaved another way each time: for EXPLORE_SECONDS (5), from
/// EXPLORE_SEED (1), or only execution EXPLORE_ONLY.
pub(crate) fn explore<F: Future<Output = ()> + 'static>(name: &str, scenario: fn() -> F) {
    let (seed, seconds) = (setting("EXPLORE_SEED", 1), setting("EXPLORE_SECONDS", 5));
    let last = Arc::new(AtomicU64::new(0));
    let on_failure = Hint { name: name.to_owned(), seed, last: Arc::clone(&last) };
    let scheduler = Explorer::new(seed, Duration::from_secs(seconds), Arc::clone(&last));
    let mut config = Config::new();
    config.stack_size = 0x40000;
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    let executions = Runner::new(scheduler, config).run(move || {
        drop(tasks::spawn(clock::run()));
        tasks::block_on(async {
            scenario().await;
            world::calm_down();
            clock::sleep(Duration::from_nanos(1)).await; // all are asleep: none is dropped while it has a lock
            world::check_contained();
        });
    });
    assert!(executions > 0, "there was no time for one execution");
    drop(on_failure);
    println!("{name}: {executions} executions without a violation");
}

fn setting<T: FromStr>(name: &str, otherwise: T) -> T {
    env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Prints how to repeat a failure.
struct Hint {
    name: String,
    seed: u64,
    last: Arc<AtomicU64>,
}

impl Drop for Hint {
    fn drop(&mut self) {
        world::end();
        if std::thread::panicking() {
            let (seed, number, name) = (self.seed, self.last.load(Ordering::Relaxed), &self.name);
            eprintln!("repeat with: scripts/explore --seed {seed} --only {number} {name}");
        }
    }
}

struct Explorer {
    seed: u64,
    until: Instant,
    only: Option<u64>,
    /// The execution that runs, counted from one.
    number: Arc<AtomicU64>,
    luck: fastrand::Rng,
    way: Way,
}

/// How an execution picks the next task. No method finds everything.
enum Way {
    /// Any task next; or the same task again, except for one step in so many.
    Random { stay: usize },
    /// The first in rank runs for as long as it can; at a few steps it falls behind all others. (PCT, Burckhardt et al.,
    /// ASPLOS 2010, with the length of the execution guessed.)
    Ranks { ranks: HashMap<TaskId, u64>, falls: Vec<usize>, lowest: u64, step: usize },
}

impl Explorer {
    fn new(seed: u64, time: Duration, number: Arc<AtomicU64>) -> Explorer {
        let only = env::var("EXPLORE_ONLY").ok().map(|_| setting("EXPLORE_ONLY", 0));
        let way = Way::Random { stay: 1 };
        Explorer { seed, until: Instant::now() + time, only, number, luck: fastrand::Rng::new(), way }
    }

    fn next_number(&self) -> Option<u64> {
        let before = self.number.load(Ordering::Relaxed);
        match self.only {
            Some(only) => (before != only).then_some(only),
            None => (Instant::now() < self.until).then_some(before + 1),
        }
    }
}

impl Way {
    fn any(luck: &mut fastrand::Rng) -> Way {
        if luck.bool() {
            return Way::Random { stay: [1, 4, 16][luck.usize(..3)] };
        }
        let length = 1 << luck.u32(5..12);
        let falls = (0..luck.usize(..5)).map(|_| luck.usize(..length)).collect();
        Way::Ranks { ranks: HashMap::new(), falls, lowest: 1 << 32, step: 0 }
    }

    fn next(
        &mut self,
        luck: &mut fastrand::Rng,
        ready: &[TaskId],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> TaskId {
        match self {
            Way::Random { stay } => match current.filter(|current| ready.contains(current)) {
                Some(current) if !is_yielding && luck.usize(..*stay) > 0 => current,
                _ => ready[luck.usize(..ready.len())],
            },
            Way::Ranks { ranks, falls, lowest, step } => {
                *step += usize::from(ready.len() > 1);
                if (is_yielding || falls.contains(step))
                    && let Some(current) = current
                {
                    falls.retain(|fall| fall != step);
                    *lowest += 1;
                    ranks.insert(current, *lowest);
                }
                let mut rank = |task| *ranks.entry(task).or_insert_with(|| luck.u64(..1 << 32));
                ready.iter().copied().min_by_key(|task| rank(*task)).expect("somebody is ready")
            }
        }
    }
}

impl Scheduler for Explorer {
    fn new_execution(&mut self) -> Option<Schedule> {
        let number = self.next_number()?;
        self.number.store(number, Ordering::Relaxed);
        let mut luck = fastrand::Rng::with_seed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number));
        let haste = if luck.usize(..3) == 0 { luck.usize(1..8) } else { 0 };
        world::begin(luck.u64(..), haste);
        self.way = Way::any(&mut luck);
        self.luck = luck;
        Some(Schedule::new(number))
    }

    fn next_task(&mut self, ready: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        let clock = world::with(|world| world.clock);
        let others: Vec<_> = ready.iter().map(|task| task.id()).filter(|task| Some(*task) != clock).collect();
        let time_passes = others.len() < ready.len();
        let hasty = time_passes && world::with(|world| world.haste > 0) && self.luck.usize(..HASTE) == 0;
        if others.is_empty() || hasty {
            world::with(|world| world.all_asleep = others.is_empty());
            world::with(|world| world.haste -= usize::from(hasty && !world.all_asleep));
            return clock;
        }
        Some(self.way.next(&mut self.luck, &others, current, is_yielding))
    }

    fn next_u64(&mut self) -> u64 {
        self.luck.u64(..)
    }
}
