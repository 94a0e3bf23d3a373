//! The other kinds of locks: fenced, read-write, fair.

use leasehold::{Error, RwLock};
use tokio::time::sleep;

use super::{alone, forced, now_and_then};
use crate::{
    ATLAS, FENCED, LINES, LONG_LEASE, SHARED,
    history::{Kind, What},
    locks::{Counted, Reading, Writing},
    player::{Player, some},
    worker::{COMMAND, OUTAGE},
};

pub(super) async fn fenced(player: &mut Player) {
    let lock = player.client.fenced_lock(FENCED);
    if player.random.u32(..5) == 0 {
        return for_a_look(player, &lock).await;
    }
    any_or_long(player, &lock, 3).await;
}

/// For so long that the observer can compare its token with the server's.
async fn for_a_look(player: &mut Player, lock: &impl Counted) {
    let Some(guard) = player.take(lock).await else { return };
    let time = player.millis(40..=80);
    player.hold(&guard, time).await;
    player.give_back(guard).await;
}

pub(super) async fn fair(player: &mut Player) {
    let lock = player.client.fair_lock(LINES[0]);
    any_or_long(player, &lock, 3).await;
}

pub(super) async fn read_write(player: &mut Player) {
    let lock = player.client.rw_lock(SHARED[0]);
    match player.random.u32(..100) {
        0..45 => any_or_long(player, &Reading(lock), 12).await,
        45..50 => alone::fixed(player, &Reading(lock)).await,
        50..75 => any_or_long(player, &Writing(lock), 3).await,
        75..85 => downgraded(player, &lock).await,
        85..95 => below(player, &lock).await,
        _ => upgraded(player, &lock).await,
    }
}

/// Read for a moment, with a lease that is long from the start or extended, and with the usual lease. A released read lock keeps no
/// writer out, however long its lease was.
pub(super) async fn long_and_short(player: &mut Player) {
    let pause = player.millis(0..=150);
    sleep(pause).await;
    let lock = player.client.rw_lock(ATLAS);
    let (time, drawn) = (player.millis(0..=60), player.random.u32(..10));
    if drawn < 3 {
        let Some(writing) = player.take(&Writing(lock)).await else { return };
        player.hold(&writing, time).await;
        return player.give_back(writing).await;
    }
    let long = if drawn == 3 { lock.clone().lease(LONG_LEASE) } else { lock };
    let Some(reading) = player.take(&Reading(long)).await else { return };
    if drawn == 4 {
        player.scribe.way("lease of a reader extended");
        let made_long = player.scribe.call(ATLAS, "extend", Some(OUTAGE), reading.extend(LONG_LEASE), |()| "ok").await;
        if let Some(Err(error @ (Error::Unavailable { .. } | Error::Server { .. }))) = &made_long {
            player.failed(ATLAS, error);
        }
    }
    player.hold(&reading, time).await;
    if player.random.u32(..4) == 0 {
        return player.drop(reading);
    }
    player.give_back(reading).await;
}

pub(super) async fn fair_now_and_then(player: &mut Player) {
    let lock = player.client.fair_lock(LINES[1]);
    now_and_then(player, &lock, 200).await;
}

/// Often forced open by its own holder.
pub(super) async fn read_write_now_and_then(player: &mut Player) {
    let lock = player.client.rw_lock(SHARED[1]);
    if player.random.bool() {
        now_and_forced(player, &Reading(lock)).await;
    } else {
        now_and_forced(player, &Writing(lock)).await;
    }
}

async fn now_and_forced<L: Counted>(player: &mut Player, lock: &L) {
    if player.random.bool() {
        return now_and_then(player, lock, 200).await;
    }
    let pause = player.millis(0..=1_500);
    sleep(pause).await;
    let Some(guard) = player.take(lock).await else { return };
    let time = player.millis(30..=200);
    player.hold(&guard, time).await;
    forced::force(player, lock).await;
    player.give_back(guard).await;
}

/// In so many of a hundred for longer than the lease.
async fn any_or_long<L: Counted>(player: &mut Player, lock: &L, long: u32) {
    if player.random.u32(..100) < long {
        alone::long(player, lock).await;
    } else {
        alone::any(player, lock).await;
    }
}

async fn downgraded(player: &mut Player, lock: &RwLock) {
    let Some(writing) = player.take(&Writing(lock.clone())).await else { return };
    player.scribe.way("downgraded");
    let time = player.millis(0..=8);
    player.hold(&writing, time).await;
    let release = player.scribe.releasing(&*writing);
    match player.scribe.call(SHARED[0], "downgrade", Some(OUTAGE), writing.downgrade(), |_| "ok").await {
        Some(Ok(reading)) => {
            player.scribe.granted(&reading);
            player.hold_and_give_back(reading, 8).await;
        }
        Some(Err(Error::Lost { reason, .. })) => player.scribe.lost(SHARED[0], &release.id, reason),
        Some(Err(error)) => player.failed(SHARED[0], &error),
        None => {}
    }
}

/// Reads below its own write lock, and releases one of the two first.
async fn below(player: &mut Player, lock: &RwLock) {
    let Some(writing) = player.take(&Writing(lock.clone())).await else { return };
    let reading = player.take(&Reading(lock.clone())).await;
    player.scribe.way("read lock below a write lock of the same owner");
    if let Some(reading) = reading {
        player.count(&Reading(lock.clone()), &reading).await;
        if player.random.bool() {
            player.hold_and_give_back(writing, 8).await;
            return player.hold_and_give_back(reading, 8).await;
        }
        player.hold_and_give_back(reading, 8).await;
    }
    player.hold_and_give_back(writing, 8).await;
}

/// A reader that asks for the write lock is refused: it would wait for itself.
async fn upgraded(player: &mut Player, lock: &RwLock) {
    let Some(reading) = player.take(&Reading(lock.clone())).await else { return };
    player.scribe.way("upgrade refused");
    player.scribe.note(SHARED[0], What::Asked);
    let writing = player.scribe.call(SHARED[0], "try_write", Some(COMMAND), lock.try_write(), some).await;
    match writing {
        Some(Err(Error::Upgrade { .. })) => player.scribe.note(SHARED[0], What::Left),
        writing => {
            if !reading.is_lost() {
                let said = writing.as_ref().map(|writing| writing.as_ref().map(Option::is_some));
                player.scribe.wrong(
                    SHARED[0],
                    Kind::Untrue,
                    format!("a reader's upgrade was not refused, and returned {said:?}"),
                );
            }
            if let Some(writing) = writing.and_then(|writing| player.taken(SHARED[0], writing)) {
                player.give_back(writing).await;
            }
        }
    }
    player.hold_and_give_back(reading, 5).await;
}
