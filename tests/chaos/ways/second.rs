//! A client made on a second runtime, which ends while guards and calls of it are used on the first.

use std::{thread, time::Duration};

use leasehold::{Client, Error, Guard, Lock, Owner};
use tokio::{
    join,
    runtime::Builder,
    sync::oneshot,
    time::{Instant, sleep_until},
};

use crate::{
    AWAY, LEASE,
    history::{Kind, What},
    player::{Player, some},
    scribe::{Scribe, holder_of},
    worker::{COMMAND, OUTAGE, connect},
};

pub(super) async fn second_runtime(player: &mut Player, url: &str) {
    let pause = player.millis(500..=3_000);
    tokio::time::sleep(pause).await;
    let Some((client, elsewhere)) = elsewhere(url).await else { return };
    let before = player.other();
    let mut there = Player { client, ..before };
    let rival = player.other();
    let Some(guard) = there.take_in_time(&there.lock(AWAY), OUTAGE).await else { return };
    let (ends, unlock) = (Instant::now() + there.millis(0..=300), there.random.bool());
    there.scribe.way("runtime of a client ended");
    let waits = waits(&there.client, there.scribe.other(), ends);
    let ending = async {
        there.hold(&guard, ends - Instant::now()).await;
        elsewhere.end().await;
        after(&there, guard, unlock).await;
    };
    // A task of this runtime that acquires the lock when its lease has expired.
    let rival = async {
        sleep_until(ends).await;
        let Some(guard) = rival.take(&rival.lock(AWAY)).await else { return };
        rival.hold(&guard, Duration::from_millis(100)).await;
        rival.give_back(guard).await;
    };
    join!(waits, ending, rival);
}

/// A runtime on a thread of its own, until it is told to end.
struct Elsewhere {
    end: oneshot::Sender<()>,
    gone: oneshot::Receiver<()>,
}

impl Elsewhere {
    async fn end(self) {
        drop(self.end);
        let _ = self.gone.await; // either way it is gone
    }
}

/// A client that lives there.
async fn elsewhere(url: &str) -> Option<(Client, Elsewhere)> {
    let (made, client) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let (over, gone) = oneshot::channel();
    let url = url.to_owned();
    thread::spawn(move || {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        runtime.block_on(async {
            if let Ok(client) = connect(&url).await {
                let _ = made.send(client); // nobody waits if the task is gone
                let _ = ended.await;
            }
        });
        drop(runtime);
        let _ = over.send(()); // as above
    });
    client.await.ok().map(|client| (client, Elsewhere { end, gone }))
}

/// A call that waits while the runtime ends. If the holder lost the lock before, the call may have acquired it.
async fn waits(client: &Client, scribe: Scribe, ends: Instant) {
    let lock = client.lock(AWAY).owner(&Owner::new());
    let limit = ends.saturating_duration_since(Instant::now()) + LEASE + OUTAGE;
    let waited = scribe.call(AWAY, "lock-while-its-runtime-ends", Some(limit), lock.lock(), |_| "ok").await;
    if Instant::now() > ends && !matches!(waited, Some(Ok(_))) {
        judge(&scribe, "lock", waited);
    }
}

/// All that can be asked of a client whose runtime is gone: each ends in its time and says why.
async fn after(player: &Player, guard: Guard, unlock: bool) {
    let locks: [Lock; 3] = std::array::from_fn(|_| player.lock(AWAY).owner(&Owner::new()));
    let scribes: [Scribe; 5] = std::array::from_fn(|_| player.scribe.other());
    let ([first, second, third], [one, two, three, four, five]) = (&locks, &scribes);
    let short = Duration::from_millis(100);
    let calls = async {
        let calls = join!(
            one.call(AWAY, "lock-after-its-runtime", Some(OUTAGE), first.lock(), |_| "ok"),
            two.call(AWAY, "try_lock-after-its-runtime", Some(COMMAND), second.try_lock(), some),
            three.call(AWAY, "try_lock_for-after-its-runtime", Some(short), third.try_lock_for(short), some),
            four.call(AWAY, "inspect-after-its-runtime", Some(OUTAGE), first.inspect(), some),
            five.call(AWAY, "force_unlock-after-its-runtime", Some(OUTAGE), first.force_unlock(), |_| "ok"),
        );
        judge(one, "lock", calls.0);
        judge(two, "try_lock", calls.1);
        judge(three, "try_lock_for", calls.2);
        judge(four, "inspect", calls.3);
        judge(five, "force_unlock", calls.4);
    };
    join!(calls, ends_of(player, guard, unlock));
}

/// The guard knows by the clock when its lease expires. Before that, `unlock` cannot release the lock.
async fn ends_of(player: &Player, guard: Guard, unlock: bool) {
    let (id, scribe) = (holder_of(&guard), &player.scribe);
    scribe.sure(&guard);
    if !unlock {
        let lost = async { Ok(guard.lost().await) };
        if let Some(Ok(reason)) = scribe.call(AWAY, "lost", Some(guard.remaining()), lost, |_| "ok").await {
            scribe.lost(AWAY, &id, reason);
        }
        scribe.look(&guard);
    }
    let over = guard.is_lost();
    scribe.note(AWAY, What::Releasing { id });
    let unlocked = scribe.call(AWAY, "unlock-after-its-runtime", Some(OUTAGE), guard.unlock(), |()| "ok").await;
    match unlocked {
        Some(Err(Error::Lost { .. })) => {}
        unlocked if over => scribe.wrong(AWAY, Kind::Untrue, format!("unlock of a lost guard returned {unlocked:?}")),
        unlocked => judge(scribe, "unlock", unlocked),
    }
}

fn judge<T>(scribe: &Scribe, call: &str, outcome: Option<leasehold::Result<T>>) {
    let said = match outcome {
        None => return, // late, which the checker finds
        Some(Ok(_)) => "ok".to_owned(),
        Some(Err(error @ Error::Unavailable { .. })) if error.to_string().contains("runtime") => return,
        Some(Err(error)) => format!("{error}"),
    };
    scribe.wrong(AWAY, Kind::Untrue, format!("{call} of a client whose runtime has ended returned: {said}"));
}
