//! Locks forced open by clients.

use tokio::time::sleep;

use crate::{
    BUSY, FENCED, LINES, QUIET, SHARED, SLOW, TOOL,
    history::What,
    locks::{Counted, Reading},
    player::{Player, Way, some},
    worker::OUTAGE,
};

pub(super) async fn forced(player: &mut Player) {
    let pause = player.millis(100..=1_500);
    sleep(pause).await;
    match player.random.u32(..11) {
        0 => row(player, &player.client.fenced_lock(FENCED)).await,
        1 => row(player, &Reading(player.client.rw_lock(SHARED[0]))).await,
        2 => row(player, &player.client.fair_lock(LINES[0])).await,
        _ => {
            let lock = player.one_of(&[SLOW, SLOW, BUSY, &[TOOL, QUIET]].concat());
            row(player, &lock).await;
        }
    }
}

async fn row(player: &mut Player, lock: &impl Counted) {
    // Now and then in a row, so that some of it falls into times in which replies are lost.
    let times = if player.random.u32(..5) == 0 { player.random.u32(5..=12) } else { 1 };
    for _ in 0..times {
        force(player, lock).await;
        let pause = player.millis(10..=60);
        sleep(pause).await;
    }
}

pub(super) async fn force(player: &Player, lock: &impl Counted) {
    player.scribe.way("forced open by a client");
    player.scribe.note(lock.name(), What::Forcing);
    let work = async { lock.force().await.map(|held| held.then_some(())) };
    let way = Way::of(&player.client);
    let outcome = player.scribe.call(lock.name(), "force_unlock", Some(OUTAGE), work, some).await;
    if let Some(Err(error)) = &outcome {
        player.failed(lock.name(), error);
    }
    let found_nobody = matches!(outcome, Some(Ok(None))) && way.is_whole(&player.client);
    player.scribe.note(lock.name(), if found_nobody { What::Spared } else { What::Forced });
}
