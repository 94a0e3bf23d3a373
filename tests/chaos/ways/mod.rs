//! What the tasks of a client do, each again and again.

mod alone;
mod capped;
mod crowd;
mod family;
mod forced;
mod heap;
mod kept;
mod permits;
mod rested;
mod second;
mod shared;
mod vault;
mod voted;

use tokio::time::sleep;

use crate::{ARCHIVE, BUSY, LONG_LEASE, PARCEL, QUIET, SLOW, TWINS, locks::AnyLock, player::Player, voted::Voters};

pub(crate) use voted::Vote;

#[derive(Debug, Clone)]
pub(crate) enum Work {
    /// Long holds on a few names and by a few tasks, so that the others see many turns.
    Slow,
    Busy,
    /// A name that few tasks use, held for so many milliseconds. If a waiter misses its notification, no other release follows soon.
    Now(&'static str, u64),
    LongLease,
    Members,
    Moving,
    Fenced,
    ReadWrite,
    Fair,
    /// The same, of names that few want.
    QuietReadWrite,
    QuietFair,
    Kept,
    Crowd,
    Forced,
    Capped,
    SecondRuntime(String),
    Vault,
    Rested,
    LongAndShort,
    Permits,
    QuietPermits,
    /// Sets the permits of the semaphores again where they are gone.
    Janitor,
    Heap(String),
    Ping,
    /// On several servers that do not know of each other.
    Voted(Vote, Voters),
}

impl Work {
    /// All that goes on at once in one client; `url` is where its server is.
    pub(crate) fn of_a_client(url: &str) -> Vec<Work> {
        let mut all = vec![Work::Slow; 2];
        all.extend(vec![Work::Busy; 5]);
        all.extend([Work::Now(QUIET, 120), Work::Now(TWINS[0], 200), Work::Now(TWINS[1], 200), Work::Now(PARCEL, 120)]);
        all.extend([Work::LongLease, Work::Members, Work::Moving, Work::Kept, Work::Crowd, Work::Forced, Work::Capped]);
        all.extend([vec![Work::Fenced; 3], vec![Work::ReadWrite; 4], vec![Work::Fair; 2]].concat());
        all.extend([Work::LongAndShort, Work::LongAndShort]);
        all.extend([Work::QuietReadWrite, Work::QuietReadWrite, Work::QuietFair]);
        all.extend([vec![Work::Permits; 3], vec![Work::QuietPermits; 2], vec![Work::Janitor]].concat());
        all.push(Work::SecondRuntime(url.to_owned()));
        all
    }

    pub(crate) fn of_voters(voters: &Voters) -> Vec<Work> {
        Vote::of_a_client().into_iter().map(|vote| Work::Voted(vote, voters.clone())).collect()
    }

    /// Beside it in the same process, with a lease that outlasts a stop.
    pub(crate) fn of_a_resting_client() -> Vec<Work> {
        vec![Work::Rested; 3]
    }

    /// Beside it in the same process, where masters come and go.
    pub(crate) fn of_a_patient_client() -> Vec<Work> {
        [vec![Work::Vault; 8], vec![Work::Ping]].concat()
    }

    pub(crate) async fn once(&self, player: &mut Player) {
        match self {
            Work::Slow => Box::pin(slow(player)).await,
            Work::Busy => Box::pin(busy(player)).await,
            Work::Now(name, most) => {
                let lock = player.lock(name);
                now_and_then(player, &lock, *most).await;
            }
            Work::LongLease => long_lease(player).await,
            Work::Members => shared::members(player).await,
            Work::Moving => shared::moving(player).await,
            Work::Fenced => Box::pin(family::fenced(player)).await,
            Work::ReadWrite => Box::pin(family::read_write(player)).await,
            Work::Fair => Box::pin(family::fair(player)).await,
            Work::QuietReadWrite => Box::pin(family::read_write_now_and_then(player)).await,
            Work::QuietFair => Box::pin(family::fair_now_and_then(player)).await,
            Work::Kept => kept::kept(player).await,
            Work::Crowd => crowd::crowd(player).await,
            Work::Forced => forced::forced(player).await,
            Work::Capped => capped::capped(player).await,
            Work::SecondRuntime(url) => Box::pin(second::second_runtime(player, url)).await,
            Work::Rested => rested::rested(player).await,
            Work::LongAndShort => Box::pin(family::long_and_short(player)).await,
            Work::Permits => Box::pin(permits::permits(player)).await,
            Work::QuietPermits => Box::pin(permits::permits_now_and_then(player)).await,
            Work::Janitor => permits::set(player).await,
            Work::Heap(url) => Box::pin(heap::heap(player, url)).await,
            Work::Vault => vault::vault(player).await,
            Work::Ping => vault::ping(&player.client).await,
            Work::Voted(vote, voters) => Box::pin(vote.once(player, voters)).await,
        }
    }
}

async fn slow(player: &mut Player) {
    let lock = player.one_of(SLOW);
    match player.random.u32(..110) {
        0..20 => alone::long(player, &lock).await,
        20..40 => alone::fixed(player, &lock).await,
        40..50 => shared::branches(player, &lock).await,
        _ => alone::any(player, &lock).await,
    }
}

async fn busy(player: &mut Player) {
    let lock = player.one_of(BUSY);
    alone::any(player, &lock).await;
}

async fn now_and_then<L: AnyLock>(player: &mut Player, lock: &L, most: u64) {
    let pause = player.millis(0..=1_500);
    sleep(pause).await;
    let Some(guard) = player.take(lock).await else { return };
    let time = player.millis(30..=most);
    player.hold(&guard, time).await;
    player.give_back(guard).await;
}

/// A lock of these that is not released stays on the server for long.
async fn long_lease(player: &mut Player) {
    let pause = player.millis(0..=300);
    sleep(pause).await;
    let Some(guard) = player.take(&player.lock(ARCHIVE).lease(LONG_LEASE)).await else { return };
    player.scribe.way("long lease, released soon");
    let time = player.millis(0..=50);
    player.hold(&guard, time).await;
    if player.random.bool() {
        player.give_back(guard).await;
    } else {
        player.drop(guard);
    }
}
