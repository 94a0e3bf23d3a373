//! Owners with more than one call at a time, and guards that end elsewhere while their owner asks again.

use std::{
    hint,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use leasehold::{Guard, Lock, Owner};
use tokio::{
    join,
    sync::oneshot,
    task::{JoinHandle, spawn, yield_now},
    time::sleep,
};

use crate::{TOOL, history::What, player::Player, worker::OUTAGE};

/// How many turns of a loop a guard or its owner waits at the most when both begin at once: some microseconds.
const MOMENTS: u32 = 400;

/// Several tasks that are one owner, and release in any order.
pub(super) async fn members(player: &mut Player) {
    player.scribe.way("owner shared by several tasks");
    let lock = player.lock(TOOL).owner(&Owner::new());
    let members = player.random.u32(2..=4);
    let work: Vec<_> = (0..members).map(|_| spawn(member(player.other(), lock.clone()))).collect();
    for member in work {
        member.await.expect("no panic");
    }
    let pause = player.millis(0..=20);
    sleep(pause).await;
}

async fn member(mut player: Player, lock: Lock) {
    for _ in 0..player.random.u32(3..=12) {
        let Some(guard) = player.take(&lock).await else { continue };
        if player.random.bool() {
            let time = player.millis(0..=3);
            player.hold(&guard, time).await;
        }
        let gone = part_with(&mut player, guard, &Shot::default());
        if player.random.bool() {
            gone.await.expect("no panic");
        }
    }
}

/// One task whose guards go away to others, and that asks again while they end.
pub(super) async fn moving(player: &mut Player) {
    let lock = player.lock(TOOL);
    for _ in 0..player.random.u32(5..=40) {
        let Some(guard) = player.take(&lock).await else { return };
        let shot = Shot::default();
        let gone = part_with(player, guard, &shot);
        let moments = player.random.u32(0..=MOMENTS);
        player.scribe.note(TOOL, What::Asked);
        let work = async {
            shot.heard().await;
            wait(moments);
            lock.lock().await
        };
        let again = player.scribe.call(TOOL, "lock", None, work, |_| "ok").await;
        let again = again.and_then(|taken| player.taken(lock.name(), taken.map(Some)));
        let Some(again) = again else { continue };
        player.scribe.look(&again);
        gone.await.expect("no panic");
        player.scribe.way("re-entered while the previous guard was released elsewhere");
        player.scribe.look(&again);
        yield_now().await;
        player.hold_and_give_back(again, 2).await;
    }
}

/// Two begin at the same moment.
#[derive(Debug, Clone, Default)]
struct Shot(Arc<AtomicBool>);

impl Shot {
    fn fire(&self) {
        self.0.store(true, Ordering::Release);
    }

    async fn heard(&self) {
        while !self.0.load(Ordering::Acquire) {
            yield_now().await;
        }
    }
}

/// Less than any timer can wait.
fn wait(moments: u32) {
    (0..moments).for_each(|_| hint::spin_loop());
}

/// Sends a guard away, to end on another task or on a plain thread, in a way and at a moment of the seed.
fn part_with(player: &mut Player, guard: Guard, shot: &Shot) -> JoinHandle<()> {
    let (manner, moments) = (player.random.u32(..4), player.random.u32(0..=MOMENTS));
    let (other, shot) = (player.other(), shot.clone());
    spawn(async move {
        other.scribe.look(&guard);
        let release = other.scribe.releasing(&guard);
        match manner {
            0 | 1 => {
                let work = async {
                    shot.fire();
                    wait(moments);
                    guard.unlock().await
                };
                let ended = other.scribe.call(TOOL, "unlock", Some(OUTAGE), work, |()| "ok").await;
                other.given_back(TOOL, release, ended);
            }
            2 => {
                shot.fire();
                wait(moments);
                drop(guard);
            }
            _ => {
                other.scribe.way("guard dropped on a plain thread");
                drop_on_a_thread(guard, shot, moments).await;
            }
        }
    })
}

async fn drop_on_a_thread(guard: Guard, shot: Shot, moments: u32) {
    let (end, ended) = oneshot::channel();
    thread::spawn(move || {
        shot.fire();
        wait(moments);
        drop(guard);
        let _ = end.send(()); // nobody listens any more if the client ends
    });
    let _ = ended.await;
}

/// Two calls of one owner at once, one of them with a wait limit that is longer than the `outage_timeout`.
pub(super) async fn branches(player: &mut Player, lock: &Lock) {
    player.scribe.way("two branches of one owner");
    let lock = lock.clone().owner(&Owner::new());
    let patience = OUTAGE + player.millis(200..=1_500);
    let other = player.other();
    let (one, two) = join!(player.take(&lock), other.take_in_time(&lock, patience));
    for guard in [one, two].into_iter().flatten() {
        player.hold_and_give_back(guard, 5).await;
    }
}
