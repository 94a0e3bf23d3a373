//! The other kinds of locks: fenced, read-write, fair.

use leasehold::{Error, RwLock};

use super::alone;
use crate::{
    FENCED, LINE, SHARED,
    history::{Kind, What},
    locks::{AnyLock, Reading, Writing},
    player::{Player, some},
    scribe::holder_of,
    worker::{COMMAND, OUTAGE},
};

pub(super) async fn fenced(player: &mut Player) {
    let lock = player.client.fenced_lock(FENCED);
    any_or_long(player, &lock, 3).await;
}

pub(super) async fn fair(player: &mut Player) {
    let lock = player.client.fair_lock(LINE);
    any_or_long(player, &lock, 3).await;
}

pub(super) async fn read_write(player: &mut Player) {
    let lock = player.client.rw_lock(SHARED);
    match player.random.u32(..100) {
        0..45 => any_or_long(player, &Reading(lock), 12).await,
        45..50 => alone::fixed(player, &Reading(lock)).await,
        50..75 => any_or_long(player, &Writing(lock), 3).await,
        75..85 => downgraded(player, &lock).await,
        85..95 => below(player, &lock).await,
        _ => upgraded(player, &lock).await,
    }
}

/// In so many of a hundred for longer than the lease.
async fn any_or_long<L: AnyLock>(player: &mut Player, lock: &L, long: u32) {
    if player.random.u32(..100) < long {
        alone::long(player, lock).await;
    } else {
        alone::any(player, lock).await;
    }
}

async fn downgraded(player: &mut Player, lock: &RwLock) {
    let Some(writing) = player.take(&Writing(lock.clone())).await else { return };
    player.scribe.way("downgraded");
    let (id, time) = (holder_of(&writing), player.millis(0..=8));
    player.hold(&writing, time).await;
    player.scribe.note(SHARED, What::Releasing { id: id.clone() });
    match player.scribe.call(SHARED, "downgrade", Some(OUTAGE), writing.downgrade(), |_| "ok").await {
        Some(Ok(reading)) => {
            player.scribe.granted(&reading);
            player.hold_and_give_back(reading, 8).await;
        }
        Some(Err(error)) => player.given_back(SHARED, id, Some(Err(error))),
        None => {}
    }
}

/// Reads below its own writing, and gives back one of the two first.
async fn below(player: &mut Player, lock: &RwLock) {
    let Some(writing) = player.take(&Writing(lock.clone())).await else { return };
    let reading = player.take(&Reading(lock.clone())).await;
    player.scribe.way("read below its own writing");
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

/// Who reads is not let in to write: it would wait for itself.
async fn upgraded(player: &mut Player, lock: &RwLock) {
    let Some(reading) = player.take(&Reading(lock.clone())).await else { return };
    player.scribe.way("upgrade refused");
    player.scribe.note(SHARED, What::Asked);
    let writing = player.scribe.call(SHARED, "try_write", Some(COMMAND), lock.try_write(), some).await;
    match writing {
        Some(Err(Error::Upgrade { .. })) => player.scribe.note(SHARED, What::Left),
        writing => {
            if !reading.is_lost() {
                let said = writing.as_ref().map(|writing| writing.as_ref().map(Option::is_some));
                player.scribe.wrong(
                    SHARED,
                    Kind::Untrue,
                    format!("who reads was not refused to write, but told {said:?}"),
                );
            }
            if let Some(writing) = writing.and_then(|writing| player.taken(SHARED, writing)) {
                player.give_back(writing).await;
            }
        }
    }
    player.hold_and_give_back(reading, 5).await;
}
