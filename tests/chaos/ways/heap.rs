//! Thousands of locks on one master of a cluster, dropped together: best of all when that master does not answer.

use futures_util::future::join_all;
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::{HEAP, LONG_LEASE, player::Player};

const MANY: usize = 5_000;
/// How long they are held at the most, and how long the master may take to answer.
const HELD: Duration = Duration::from_secs(6);
const ANSWERS: Duration = Duration::from_millis(200);

pub(super) async fn heap(player: &mut Player) {
    let pause = player.millis(2_000..=4_000);
    sleep(pause).await;
    let locks = (0..MANY).map(|n| player.lock(&format!("{{{HEAP}}}-{n}")).lease(LONG_LEASE));
    let locks: Vec<_> = locks.collect();
    let guards: Vec<_> = join_all(locks.iter().map(|lock| lock.try_lock())).await;
    let guards: Vec<_> = guards.into_iter().filter_map(|taken| taken.ok().flatten()).collect();
    let ends = Instant::now() + HELD;
    while let Some(guard) = guards.first()
        && Instant::now() < ends
    {
        if timeout(ANSWERS, guard.check()).await.is_err() {
            player.scribe.way("five thousand releases for a master that does not answer");
            break;
        }
        sleep(ANSWERS / 2).await;
    }
}
