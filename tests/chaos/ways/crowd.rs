//! Very many waiters whose wait limits end at the same moment.

use futures_util::future::join_all;
use leasehold::Owner;
use tokio::{join, time::sleep};

use crate::{GATE, player::Player};

const CROWD: usize = 1_000;

pub(super) async fn crowd(player: &mut Player) {
    let pause = player.millis(500..=4_000);
    sleep(pause).await;
    let lock = player.lock(GATE);
    let Some(guard) = player.take(&lock).await else { return };
    player.scribe.way("a thousand wait limits that end at once");
    let patience = player.millis(100..=400);
    let crowd: Vec<_> = (0..CROWD).map(|_| player.other()).collect();
    let waiting = join_all(crowd.into_iter().map(async |mut one| {
        let lock = one.lock(GATE).owner(&Owner::new());
        if let Some(guard) = one.take_in_time(&lock, patience).await {
            one.hold_and_give_back(guard, 1).await;
        }
    }));
    let holding = async {
        player.hold(&guard, patience * 2).await;
        player.give_back(guard).await;
    };
    join!(waiting, holding);
}
