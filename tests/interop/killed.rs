//! A process of either side is killed while it holds locks and waits for others: when those who live come in.

mod scene;

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::Owner;
use serial_test::parallel;

use crate::{
    SOON, between,
    jvm::{clock, version},
    leases::{ends, in_time},
    sides::{Held, Kind, Side, Taking},
    support::{ms, within},
    workers::Worker,
};
use scene::{LIVING, SHORT, Scene, Victim};

/// For how long a dead writer of ours that waited keeps our readers out.
const MARK: Duration = ms(3_000);
/// What a dead one in line costs when it is its turn: from when we find that out.
const GRACE: Duration = ms(5_000);
/// A JVM that is not notified sleeps for the rest of the lease that it was told: at most for ours.
const LEASE: Duration = ms(30_000);
/// How often those of ours look: the next two in line, and the others.
const NEXT_LOOK: Duration = ms(2_500);
const LOOK: Duration = ms(5_000);

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn a_jvm() {
    follow(Scene::start(Victim::redisson).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn ours() {
    follow(Scene::start(Victim::leasehold).await).await;
}

/// Sets all up, kills, and sees that all the others come in.
async fn follow(mut scene: Scene) {
    let mut victim = scene.victim.take().expect("nobody has killed it");
    let lines = in_line(&scene, &mut victim).await;
    let writers = behind_writers(&scene, &mut victim).await;
    let readers = beside_readers(&scene, &mut victim).await;
    let holders = behind_the_victim(&scene, &mut victim).await;
    victim.kill();
    tokio::join!(holders.come(&scene), writers.come(), lines.come(), readers.come());
}

/// What the victim holds, and what somebody else wants meanwhile.
const HOLDING: [(Kind, Kind); 5] = [
    (Kind::Read, Kind::Write),
    (Kind::Write, Kind::Read),
    (Kind::Write, Kind::Write),
    (Kind::Fair, Kind::Fair),
    (Kind::Fenced, Kind::Fenced),
];

struct Behind<'a>(Vec<(String, Taking<'a>)>);

async fn behind_the_victim<'a>(scene: &'a Scene, victim: &mut Victim) -> Behind<'a> {
    let mut all = Vec::new();
    for (has, wants) in HOLDING {
        for side in scene.sides() {
            let name = format!("{has}-{wants}-{side}");
            victim.has(&scene.server, has, &name).await;
            let waiting = side.waits(&scene.server, wants, &name).await;
            all.push((name, waiting));
        }
    }
    Behind(all)
}

impl Behind<'_> {
    /// Each when the dead one's lease is over.
    async fn come(self, scene: &Scene) {
        let over: Vec<_> = self.0.iter().map(|(name, _)| ends(&scene.server, name)).collect();
        let come = self.0.into_iter().zip(over).map(async |((name, waiting), over)| {
            let held = waiting.granted(&name, 3 * SHORT).await;
            in_time(&name, over, held.granted, SOON);
            assert!(held.token.is_none_or(|token| token == 2), "the second, after the dead one's: {:?}", held.token);
            held.release().await;
        });
        join_all(come).await;
    }
}

/// One who holds, and those who wait in the order in which they came, but for the victim.
struct Waiting<'a> {
    name: String,
    held: Held<'a>,
    others: Vec<Taking<'a>>,
}

impl<'a> Waiting<'a> {
    /// `has` and `wants`: the holder's and the others' kind. The victim comes where it says so.
    async fn set_up(
        (scene, victim): (&'a Scene, &mut Victim),
        (holder, has): (Side<'a>, Kind),
        wants: Kind,
        (place, victim_wants): (usize, Kind),
        others: [Side<'a>; 2],
    ) -> Waiting<'a> {
        let name = format!("{victim_wants}-at-{place}-behind-{holder}-before-{}", others[place]);
        let held = holder.has(has, &name).await;
        let mut waiting = Vec::new();
        for (number, side) in others.into_iter().enumerate() {
            if number == place {
                victim.waits(&scene.server, victim_wants, &name).await;
            }
            waiting.push(side.waits(&scene.server, wants, &name).await);
        }
        Waiting { name, held, others: waiting }
    }
}

/// Behind a writer the victim waits to read or to write, first or second; the others want to read.
struct Writers<'a>(Vec<Waiting<'a>>);

async fn behind_writers<'a>(scene: &'a Scene, victim: &mut Victim) -> Writers<'a> {
    let mut all = Vec::new();
    for holder in scene.sides() {
        for wants in [(0, Kind::Read), (1, Kind::Read), (0, Kind::Write), (1, Kind::Write)] {
            let has = (holder, Kind::Write);
            all.push(Waiting::set_up((scene, victim), has, Kind::Read, wants, scene.sides()).await);
        }
    }
    Writers(all)
}

impl Writers<'_> {
    /// As if the dead one had never been there.
    async fn come(self) {
        for Waiting { name, held, others } in self.0 {
            held.release().await;
            for waiting in others {
                waiting.granted(&name, SOON).await.release().await;
            }
        }
    }
}

/// Of fair locks, with the place of the victim and what it may cost.
struct Lines<'a>(Vec<(Waiting<'a>, usize, Duration)>);

/// Where one of ours gives the lock back, the time of the dead one runs from then; else from when one of ours looks, sooner if it has known
/// before that it is the next but one. A JVM with none of ours behind it notices only when it looks.
async fn in_line<'a>(scene: &'a Scene, victim: &mut Victim) -> Lines<'a> {
    let [theirs, ours] = scene.sides();
    let lines = [
        (ours, 0, [theirs, ours], GRACE),
        (ours, 0, [ours, theirs], GRACE),
        (theirs, 0, [ours, theirs], NEXT_LOOK + GRACE),
        (theirs, 0, [theirs, ours], LOOK + GRACE),
        (theirs, 1, [ours, theirs], LEASE),
        (ours, 1, [theirs, ours], LOOK + GRACE),
    ];
    let mut all = Vec::new();
    for (holder, place, others, costs) in lines {
        let (has, wants) = ((holder, Kind::Fair), (place, Kind::Fair));
        all.push((Waiting::set_up((scene, victim), has, Kind::Fair, wants, others).await, place, costs));
    }
    Lines(all)
}

impl Lines<'_> {
    async fn come(self) {
        join_all(self.0.into_iter().map(async |(line, place, costs)| line_moves(line, place, costs).await)).await;
    }
}

async fn line_moves(Waiting { name, held, others }: Waiting<'_>, place: usize, costs: Duration) {
    let released = held.release().await;
    let turns = join_all(others.into_iter().map(|waiting| has_its_turn(&name, waiting))).await;
    assert!(turns.is_sorted(), "{name}: {turns:?}");
    let free = if place == 0 { released } else { turns[place - 1].1 };
    let took = between(free, turns[place].0);
    println!("{name}: {took:.1?} after it was free; {costs:?} at most");
    assert!(took <= costs + SOON, "{name}: {took:?} instead of {costs:?}");
    assert!(place == 0 || between(released, turns[0].0) < SOON, "{name}: the first had nobody to wait for");
}

/// When it was granted, and when it was given back.
async fn has_its_turn(name: &str, waiting: Taking<'_>) -> (u64, u64) {
    let held = waiting.granted(name, LEASE + GRACE).await;
    (held.granted, held.release().await)
}

/// The victim reads beside one that goes on, and one of ours wants to write.
struct Readers<'a>(Vec<(String, Held<'a>, Taking<'a>)>);

async fn beside_readers<'a>(scene: &'a Scene, victim: &mut Victim) -> Readers<'a> {
    let mut all = Vec::new();
    for living in [Side::Redisson(&scene.jvm), Side::Leasehold(&scene.reader)] {
        let name = format!("beside-{living}");
        let held = living.has(Kind::Read, &name).await;
        victim.has(&scene.server, Kind::Read, &name).await;
        let waiting = Side::Leasehold(&scene.client).waits(&scene.server, Kind::Write, &name).await;
        all.push((name, held, waiting));
    }
    Readers(all)
}

impl Readers<'_> {
    /// The dead one keeps the writer away for its own lease, however long the other reads. But before 4.4 a JVM renews all the
    /// readers that it finds, dead or alive.
    async fn come(self) {
        let costs = if version() < (4, 4) { LIVING } else { ms(0) };
        println!("a dead reader costs {costs:?} at most after a reader of Redisson {:?}", version());
        tokio::time::sleep(2 * SHORT).await; // its lease is over
        let come = self.0.into_iter().map(async |(name, held, waiting)| {
            let released = held.release().await;
            let writer = waiting.granted(&name, costs + SOON).await;
            println!("{name}: we write after {:.1?}", between(released, writer.granted));
            writer.release().await;
        });
        join_all(come).await;
    }
}

/// A writer of ours that waits behind readers leaves a mark, which keeps our other readers out until it is over. A JVM does not
/// see it.
#[tokio::test(flavor = "multi_thread")]
#[parallel(cores)]
async fn ours_that_has_left_its_mark() {
    let scene = Scene::start(Victim::leasehold).await;
    let [theirs, ours] = scene.sides();
    for holder in [theirs, ours] {
        let name = format!("marked-{holder}");
        let held = holder.has(Kind::Read, &name).await;
        let writer = || Worker::start(&["hold", "write", &scene.server.url(), &name, "30000"]);
        let writer = Kind::Write.one_more_waits(&scene.server, &name, writer).await;
        theirs.has(Kind::Read, &name).await.release().await;
        if let Side::Leasehold(client) = ours {
            let another = client.rw_lock(&name).owner(&Owner::new());
            let shares = async { while another.try_read().await.expect("answered").is_some() {} };
            within("the moment in which it shares what it has", SOON, shares).await;
        }
        let waiting = ours.waits(&scene.server, Kind::Read, &name).await;
        assert!(!waiting.is_over(), "a writer was there before");
        drop(writer);
        let killed = clock();
        let reader = waiting.granted(&name, MARK + SOON).await;
        println!("{name}: we read {:.1?} after it was killed", between(killed, reader.granted));
        held.release().await;
        reader.release().await;
    }
}
