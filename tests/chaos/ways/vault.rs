//! Long leases that the watchdog of a separate client keeps. A hold outlasts a failover, so its holder learns of a loss only if
//! the client soon asks the new master.

use std::time::Duration;

use leasehold::Client;
use tokio::time::sleep;

use crate::{VAULTS, player::Player};

/// How often it asks whether the servers reply: without requests, a client does not notice that a server is gone.
const PING: Duration = Duration::from_millis(200);
/// A short wait limit, because the locks of a killed client stay on the server for long.
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
