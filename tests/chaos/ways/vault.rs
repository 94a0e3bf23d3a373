//! Long leases kept by the watchdog of a client of its own, so that a hold outlasts a failover, and only a holder that is
//! told soon after it knows whether the new master has it.

use std::time::Duration;

use leasehold::Client;
use tokio::time::sleep;

use crate::{VAULTS, player::Player};

/// How often it asks whether the servers answer: one that nobody asks is not missed.
const PING: Duration = Duration::from_millis(200);
/// What a client that was killed had stays for long.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) async fn vault(player: &mut Player) {
    let lock = player.one_of(&VAULTS);
    let Some(guard) = player.take_in_time(&lock, PATIENCE).await else { return };
    player.scribe.way("lease that outlasts a failover");
    let time = player.millis(1_000..=8_000);
    player.hold(&guard, time).await;
    if player.random.u32(..4) == 0 {
        player.drop(guard);
    } else {
        player.give_back(guard).await;
    }
}

/// What comes of it is not looked at.
pub(super) async fn ping(client: &Client) {
    let _ = client.ping().await;
    sleep(PING).await;
}
