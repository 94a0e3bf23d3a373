//! Holds that are over before their guards are gone.

use std::time::Duration;

use tokio::time::sleep;

use crate::{OVEN, history::Kind, player::Player};

pub(super) async fn capped(player: &mut Player) {
    let pause = player.millis(0..=1_000);
    sleep(pause).await;
    let cap = player.millis(400..=800); // longer than any answer takes that is not lost
    let lock = player.lock(OVEN);
    let Some(outer) = player.take(&lock.clone().max_hold(cap)).await else { return };
    let inner = player.take(&lock).await;
    player.hold(&outer, cap + Duration::from_millis(20)).await;
    player.scribe.way("held for longer than max_hold");
    let was_lost = outer.is_lost();
    if player.random.bool() {
        // Which of them set the end makes no difference to what the other was told.
        let gone = inner.into_iter();
        gone.for_each(|inner| player.drop(inner));
        revived(player, &outer, was_lost);
        player.give_back(outer).await;
    } else {
        player.drop(outer);
        let Some(inner) = inner else { return };
        revived(player, &inner, was_lost);
        player.give_back(inner).await;
    }
}

fn revived(player: &Player, guard: &leasehold::Guard, was_lost: bool) {
    if was_lost && !guard.is_lost() {
        player.scribe.wrong(OVEN, Kind::Hollow, format!("{} was lost, and its guard is not lost any more", guard.id()));
    }
}
