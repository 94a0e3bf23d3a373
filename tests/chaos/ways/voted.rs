//! Locks that a majority of independent servers grants.

use tokio::time::sleep;

use super::alone;
use crate::{
    ARCHIVE, BUSY, LONG_LEASE, QUIET, SLOW, TOOL,
    locks::AnyLock,
    player::Player,
    voted::{Voted, Voters},
};

/// What the tasks of a client do with them, each again and again.
#[derive(Debug, Clone)]
pub(crate) enum Vote {
    Busy,
    Slow,
    Quiet,
    /// With a lease that shows what is left behind.
    Archive,
    Nested,
}

impl Vote {
    pub(crate) fn of_a_client() -> Vec<Vote> {
        vec![Vote::Busy, Vote::Busy, Vote::Busy, Vote::Slow, Vote::Slow, Vote::Quiet, Vote::Archive, Vote::Nested]
    }

    pub(crate) async fn once(&self, player: &mut Player, voters: &Voters) {
        match self {
            Vote::Busy => any(player, &voters.lock(BUSY[0])).await,
            Vote::Slow => slow(player, &voters.lock(SLOW[0])).await,
            Vote::Quiet => super::now_and_then(player, &voters.lock(QUIET), 200).await,
            Vote::Archive => archive(player, &voters.lock(ARCHIVE).for_lease(LONG_LEASE)).await,
            Vote::Nested => nested(player, &voters.nested(TOOL)).await,
        }
    }
}

async fn any(player: &mut Player, lock: &Voted) {
    match player.random.u32(..100) {
        0..40 => alone::held(player, lock, 8).await,
        40..60 => alone::in_time(player, lock).await,
        60..80 => alone::cancelled(player, lock).await,
        80..90 => alone::dropped(player, lock).await,
        _ => alone::at_once(player, lock).await,
    }
}

async fn slow(player: &mut Player, lock: &Voted) {
    match player.random.u32(..4) {
        0 => alone::long(player, lock).await,
        1 => alone::fixed(player, lock).await,
        _ => any(player, lock).await,
    }
}

async fn archive(player: &mut Player, lock: &Voted) {
    let pause = player.millis(0..=500);
    sleep(pause).await;
    any(player, lock).await;
}

/// Two or three levels of one owner, released in any order.
async fn nested(player: &mut Player, lock: &Voted) {
    player.scribe.way("quorum, two or three levels");
    let mut guards = Vec::new();
    for _ in 0..player.random.u32(2..=3) {
        let Some(guard) = player.take(lock).await else { break };
        guards.push(guard);
    }
    player.random.shuffle(&mut guards);
    for guard in guards {
        player.hold_and_give_back(guard, 5).await;
    }
}
