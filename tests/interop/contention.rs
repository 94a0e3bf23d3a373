//! Threads of one JVM and processes of ours at one name: never two at once, and neither side starves.

use std::{fs, ops::Range, path::PathBuf, time::Duration};

use serial_test::serial;
use tempfile::TempDir;

use crate::{
    jvm::{Jvm, clock},
    support::{Server, ms},
    workers::Worker,
};

/// Threads of the JVM, and processes of ours.
const EACH: u32 = 4;
const RUN: Duration = ms(10_000);
/// What they have to get ready.
const START: Duration = ms(1_500);
/// Of all turns, what each side gets at least.
const LEAST_SHARE: f64 = 0.2;

/// Where the contenders count and write down their turns.
struct Field {
    dir: TempDir,
    time: Range<u64>,
    work: Duration,
}

/// From when until when each contender of a side certainly had the lock.
type Turns = Vec<Vec<Range<u64>>>;

impl Field {
    fn new(work: Duration) -> Field {
        let start = clock() + nanos(START);
        let dir = TempDir::new().expect("a temporary folder");
        let field = Field { dir, time: start..start + nanos(RUN), work };
        fs::write(field.counter(), "0").expect("it can be written");
        field
    }

    fn counter(&self) -> PathBuf {
        self.dir.path().join("counter")
    }

    fn log(&self, side: &str, number: u32) -> PathBuf {
        self.dir.path().join(format!("{side}-{number}"))
    }

    /// `NAME FROM UNTIL WORK COUNTER LOG`, as both sides understand it.
    fn orders(&self, side: &str, number: u32) -> String {
        let (Range { start, end }, work) = (&self.time, self.work.as_millis());
        let (counter, log) = (self.counter(), self.log(side, number));
        format!("contended {start} {end} {work} {} {}", counter.display(), log.display())
    }

    /// Has them all take turns: Redisson's and ours.
    async fn run(&self, server: &Server, jvm: &Jvm) -> [Turns; 2] {
        let theirs: Vec<_> = (0..EACH).map(|n| jvm.ask(n, &format!("turns {}", self.orders("theirs", n)))).collect();
        let ours: Vec<_> = (0..EACH).map(|n| self.worker(server, n)).collect();
        for asked in theirs {
            asked.done().await;
        }
        assert!(ours.into_iter().all(Worker::wait), "a worker failed");
        ["theirs", "ours"].map(|side| self.turns(side))
    }

    fn worker(&self, server: &Server, number: u32) -> Worker {
        let orders = format!("turns {} {}", server.url(), self.orders("ours", number));
        Worker::start(&orders.split(' ').collect::<Vec<_>>())
    }

    fn turns(&self, side: &str) -> Turns {
        (0..EACH).map(|number| turns(&fs::read_to_string(self.log(side, number)).expect("it was written"))).collect()
    }

    fn counted(&self) -> usize {
        fs::read_to_string(self.counter()).expect("it was written").parse().expect("a number")
    }
}

#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
async fn never_two_at_once_and_nobody_starves() {
    contend(ms(0)).await;
}

/// Who has just had the lock and wants it again is awake, the others are not; the more so the longer the turns.
#[tokio::test(flavor = "multi_thread")]
#[serial(cores)]
#[ignore = "a JVM is one client to our processes, however many threads wait in it: its fair share is that fifth"]
async fn nobody_starves_beside_long_turns() {
    contend(ms(50)).await;
}

async fn contend(work: Duration) {
    let server = Server::start();
    let jvm = Jvm::start(&server).await;
    let field = Field::new(work);
    let sides = field.run(&server, &jvm).await;
    let counts = sides.each_ref().map(|side| side.iter().map(Vec::len).collect::<Vec<_>>());
    println!("turns in {RUN:?}: Redisson's threads {:?}, our processes {:?}", counts[0], counts[1]);
    let overlaps = overlaps(sides.iter().flatten().flatten().cloned().collect());
    assert!(overlaps.is_empty(), "two at once, {} times; first {:?}", overlaps.len(), overlaps[0]);
    let all = counts.iter().flatten().sum::<usize>();
    assert_eq!(field.counted(), all, "turns that were counted, and that were taken");
    for (side, counts) in ["Redisson", "leasehold"].iter().zip(counts) {
        let share = counts.iter().sum::<usize>() as f64 / all as f64;
        assert!(share >= LEAST_SHARE, "{side} has had {share:.2} of the turns");
    }
}

fn turns(log: &str) -> Vec<Range<u64>> {
    let turn = |line: &str| {
        let (granted, left) = line.split_once(' ')?;
        Some(granted.parse().ok()?..left.parse().ok()?)
    };
    log.lines().map(|line| turn(line).expect("two moments")).collect()
}

/// Pairs of turns where the later began before the earlier was over.
fn overlaps(mut turns: Vec<Range<u64>>) -> Vec<[Range<u64>; 2]> {
    turns.sort_unstable_by_key(|turn| turn.start);
    let pairs = turns.windows(2).filter(|pair| pair[1].start < pair[0].end);
    pairs.map(|pair| [pair[0].clone(), pair[1].clone()]).collect()
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().expect("not centuries")
}
