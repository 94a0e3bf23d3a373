//! Locks with a `min_hold`, released early or not, by holders that may be cut off or killed meanwhile.

use tokio::time::sleep;

use crate::{CELLAR, REST, history::What, player::Player, scribe::holder_of};

pub(super) async fn rested(player: &mut Player) {
    let pause = player.millis(0..=400);
    sleep(pause).await;
    let most = u64::try_from(REST.as_millis()).expect("short");
    // Seldom for long, so that there are many turns.
    let least = if player.random.u32(..5) == 0 { player.millis(1_000..=most) } else { player.millis(50..=300) };
    let lock = player.lock(CELLAR).min_hold(least);
    // One try knows when the lock was granted. Waiters pass the lock on.
    let taken = if player.random.bool() { player.take_at_once(&lock).await } else { player.take(&lock).await };
    let Some(guard) = taken else { return };
    player.scribe.way("lock with min_hold");
    let least = u64::try_from(least.as_nanos()).expect("short");
    player.scribe.note(CELLAR, What::Rests { id: holder_of(&guard), least });
    let time = if player.random.u32(..4) == 0 { player.millis(0..=1_000) } else { player.millis(0..=20) };
    player.hold(&guard, time).await;
    player.give_back(guard).await;
}
