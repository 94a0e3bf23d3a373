//! Locks that must rest: given back early or not, by holders that may be cut off or die meanwhile.

use tokio::time::sleep;

use crate::{CELLAR, REST, history::What, player::Player, scribe::holder_of};

pub(super) async fn rested(player: &mut Player) {
    let pause = player.millis(0..=400);
    sleep(pause).await;
    let most = u64::try_from(REST.as_millis()).expect("short");
    // Seldom for long, so that there are many turns.
    let least = if player.random.u32(..5) == 0 { player.millis(1_000..=most) } else { player.millis(50..=300) };
    let lock = player.lock(CELLAR).min_hold(least);
    // Who asks once knows when it was granted. Those who wait pass it on.
    let taken = if player.random.bool() { player.take_at_once(&lock).await } else { player.take(&lock).await };
    let Some(guard) = taken else { return };
    player.scribe.way("a lock that must rest");
    let least = u64::try_from(least.as_nanos()).expect("short");
    player.scribe.note(CELLAR, What::Rests { id: holder_of(&guard), least });
    let time = if player.random.u32(..4) == 0 { player.millis(0..=1_000) } else { player.millis(0..=20) };
    player.hold(&guard, time).await;
    player.give_back(guard).await;
}
