//! What one task does with one lock by itself.

use std::time::Duration;

use tokio::time::timeout;

use crate::{
    history::What,
    locks::{AnyGuard, AnyLock, Counted},
    player::Player,
};

/// The longest fixed lease, in milliseconds.
const FIXED: u64 = 1_200;

pub(super) async fn any<L: Counted>(player: &mut Player, lock: &L) {
    match player.random.u32(..100) {
        0..25 => plain(player, lock).await,
        25..50 => nested(player, lock).await,
        50..65 => in_time(player, lock).await,
        65..75 => cancelled(player, lock).await,
        75..87 => cancelled_within(player, lock).await,
        87..97 => dropped(player, lock).await,
        _ => at_once(player, lock).await,
    }
}

async fn plain<L: Counted>(player: &mut Player, lock: &L) {
    let Some(guard) = player.take(lock).await else { return };
    let time = player.millis(0..=8);
    player.hold(&guard, time).await;
    if player.random.u32(..4) == 0 {
        player.count(lock, guard.guard()).await;
    }
    player.give_back(guard).await;
}

/// Two or three levels, counted, and released in any order.
async fn nested<L: Counted>(player: &mut Player, lock: &L) {
    let Some(outer) = player.take(lock).await else { return };
    let mut guards = vec![outer];
    for _ in 0..player.random.u32(1..=2) {
        guards.extend(player.take(lock).await);
    }
    player.count(lock, guards[0].guard()).await;
    player.random.shuffle(&mut guards);
    for guard in guards {
        player.hold_and_give_back(guard, 5).await;
    }
}

/// Released by `unlock` after at most so many milliseconds.
pub(super) async fn held<L: AnyLock>(player: &mut Player, lock: &L, most: u64) {
    let Some(guard) = player.take(lock).await else { return };
    player.hold_and_give_back(guard, most).await;
}

pub(super) async fn in_time<L: AnyLock>(player: &mut Player, lock: &L) {
    let patience = player.millis(0..=300);
    let Some(guard) = player.take_in_time(lock, patience).await else { return };
    player.hold_and_give_back(guard, 10).await;
}

pub(super) async fn at_once<L: AnyLock>(player: &mut Player, lock: &L) {
    let Some(guard) = player.take_at_once(lock).await else { return };
    player.hold_and_give_back(guard, 10).await;
}

/// The future is dropped at some point. If it acquired the lock before, the lock is released.
pub(super) async fn cancelled<L: AnyLock>(player: &mut Player, lock: &L) {
    let patience = player.micros(0..=30_000);
    let Some(guard) = asked_for(player, lock, patience).await else { return };
    player.hold_and_give_back(guard, 5).await;
}

async fn asked_for<L: AnyLock>(player: &Player, lock: &L, patience: Duration) -> Option<L::Guard> {
    player.scribe.note(lock.name(), What::Asked);
    match timeout(patience, player.scribe.call(lock.name(), "lock", None, lock.take(), |_| "ok")).await {
        Ok(taken) => player.taken(lock.name(), taken?.map(Some)),
        Err(_) => {
            player.scribe.note(lock.name(), What::Left);
            None
        }
    }
}

/// A nested call is dropped while the outer level is held.
async fn cancelled_within<L: Counted>(player: &mut Player, lock: &L) {
    let Some(outer) = player.take(lock).await else { return };
    let patience = player.micros(0..=400);
    if let Ok(Ok(inner)) = timeout(patience, lock.take()).await {
        drop(inner);
    }
    if player.random.bool() {
        player.count(lock, outer.guard()).await;
    }
    player.give_back(outer).await;
}

pub(super) async fn dropped<L: AnyLock>(player: &mut Player, lock: &L) {
    let Some(guard) = player.take(lock).await else { return };
    let time = player.millis(0..=10);
    player.hold(&guard, time).await;
    player.drop(guard);
}

/// Longer than the lease, which the watchdog keeps.
pub(super) async fn long<L: AnyLock>(player: &mut Player, lock: &L) {
    let Some(guard) = player.take(lock).await else { return };
    let time = player.millis(500..=4_000);
    player.hold(&guard, time).await;
    player.give_back(guard).await;
}

/// A lease of its own, sometimes shorter than the work.
pub(super) async fn fixed<L: AnyLock>(player: &mut Player, lock: &L) {
    let lease = player.millis(200..=FIXED);
    let Some(guard) = player.take(&lock.for_lease(lease)).await else { return };
    player.hold_and_give_back(guard, 400).await;
}
