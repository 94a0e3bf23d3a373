//! Futures that are begun, and then not polled for a while.

use std::time::Duration;

use futures_util::FutureExt;
use leasehold::{Guard, Owner, Result};
use tokio::time::{sleep, timeout};

use crate::{PARCEL, history::What, player::Player};

pub(super) async fn kept(player: &mut Player) {
    let lock = player.lock(PARCEL).owner(&Owner::new());
    let pause = player.millis(0..=1_500);
    sleep(pause).await;
    player.scribe.note(PARCEL, What::Asked);
    let mut asking = Box::pin(lock.lock());
    // Once, or for long enough to stand in line.
    let soon = player.millis(0..=20);
    let taken =
        if player.random.bool() { asking.as_mut().now_or_never() } else { timeout(soon, asking.as_mut()).await.ok() };
    if let Some(taken) = taken {
        return ended(player, &lock, taken).await;
    }
    player.scribe.note(PARCEL, What::Kept);
    let time = time(player);
    player.scribe.way(if time > Duration::from_secs(1) {
        "future kept unpolled for long"
    } else {
        "future kept unpolled"
    });
    sleep(time).await;
    if player.random.bool() {
        player.scribe.way("future kept unpolled, and dropped");
        drop(asking);
        return player.scribe.note(PARCEL, What::Left);
    }
    player.scribe.note(PARCEL, What::Asked);
    match player.scribe.call(PARCEL, "lock-polled-on", None, asking, |_| "ok").await {
        // What it met while it was not polled may be over by now.
        None | Some(Err(_)) => player.scribe.note(PARCEL, What::Left),
        Some(taken) => ended(player, &lock, taken).await,
    }
}

fn time(player: &mut Player) -> Duration {
    if player.random.u32(..4) == 0 { player.millis(1_000..=12_000) } else { player.millis(0..=500) }
}

async fn ended(player: &mut Player, lock: &leasehold::Lock, taken: Result<Guard>) {
    let Some(guard) = player.taken(lock.name(), taken.map(Some)) else { return };
    player.hold_and_give_back(guard, 20).await;
}
