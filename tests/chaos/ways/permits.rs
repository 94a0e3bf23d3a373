//! Permits of semaphores: some at once, in parts, and set again where their server has lost them.

use std::time::Duration;

use leasehold::Error;
use tokio::time::sleep;

use super::{alone, now_and_then};
use crate::{
    PERMITS,
    history::{Kind, Room},
    locks::{AnyGuard, Held, Part, Several},
    player::{Player, some},
    worker::OUTAGE,
};

/// How many permits a call asks for.
fn several(player: &mut Player, (name, room): (&str, Room)) -> Several {
    let most = u32::try_from(room.most).expect("few");
    Several(player.client.semaphore(name), player.random.u32(1..=most))
}

pub(super) async fn permits(player: &mut Player) {
    let some = several(player, PERMITS[0]);
    match player.random.u32(..100) {
        0..20 => counted(player, &some).await,
        20..40 => parts(player, &some).await,
        40..55 => alone::in_time(player, &some).await,
        55..67 => alone::cancelled(player, &some).await,
        67..77 => alone::dropped(player, &some).await,
        77..85 => alone::at_once(player, &some).await,
        85..92 => elsewhere(player, &some).await,
        92..94 => alone::long(player, &some).await,
        94..97 => capped(player, &some).await,
        _ => alone::fixed(player, &some).await,
    }
}

/// If a waiter misses its notification, no other release follows soon.
pub(super) async fn permits_now_and_then(player: &mut Player) {
    let some = several(player, PERMITS[1]);
    now_and_then(player, &some, 200).await;
}

async fn counted(player: &mut Player, some: &Several) {
    let Some(part) = player.take(some).await else { return };
    let time = player.millis(0..=8);
    player.hold(&part, time).await;
    if player.random.u32(..4) == 0 {
        player.compare(&part, (part.id(), some.1.into()), || some.counts()).await;
    }
    player.give_back(part).await;
}

/// Split, and each part released by itself.
async fn parts(player: &mut Player, some: &Several) {
    let Some(whole) = player.take(some).await else { return };
    // The log has each part as a hold of its own.
    player.scribe.releasing(&whole);
    let (first, second) = whole.split();
    player.scribe.granted(&first);
    let Some(second) = second else { return player.hold_and_give_back(first, 8).await };
    player.scribe.granted(&second);
    player.scribe.way("permits in two parts");
    let (early, late) = if player.random.bool() { (first, second) } else { (second, first) };
    player.compare(&late, (late.id(), some.1.into()), || some.counts()).await;
    player.hold_and_give_back(early, 5).await;
    rest(player, some, late).await;
}

/// What remains of a hold after its other part was released.
async fn rest(player: &mut Player, some: &Several, part: Part) {
    let left = part.permits().expect("it has some");
    player.compare(&part, (part.id(), left), || some.counts()).await;
    player.hold_and_give_back(part, 5).await;
}

/// Released by another task, or dropped by a plain thread.
async fn elsewhere(player: &mut Player, some: &Several) {
    let Some(part) = player.take(some).await else { return };
    let (other, time) = (player.other(), player.millis(0..=5));
    player.hold(&part, time).await;
    if player.random.bool() {
        return tokio::spawn(async move { other.give_back(part).await }).await.expect("no panic");
    }
    player.scribe.way("permits dropped on a plain thread");
    let dropping = tokio::task::spawn_blocking(move || other.drop(part));
    dropping.await.expect("no panic");
}

async fn capped(player: &mut Player, some: &Several) {
    let cap = player.millis(400..=800);
    let Some(part) = player.take(&Several(some.0.clone().max_hold(cap), some.1)).await else { return };
    player.hold(&part, cap + Duration::from_millis(20)).await;
    player.scribe.way("permits held for longer than max_hold");
    if !part.is_lost() {
        player.scribe.wrong(part.name(), Kind::Hollow, format!("{} is held beyond its max_hold", part.id()));
    }
    player.give_back(part).await;
}

/// Where they are gone. There are never more, and never fewer than none, since nobody takes any away.
pub(super) async fn set(player: &mut Player) {
    let pause = player.millis(50..=400);
    sleep(pause).await;
    for (name, room) in PERMITS {
        let semaphore = player.client.semaphore(name);
        let all = u32::try_from(room.all).expect("few");
        let work = async { Ok(semaphore.try_set_permits(all).await?.then_some(())) };
        match player.scribe.call(name, "try_set_permits", Some(OUTAGE), work, some).await {
            Some(Ok(Some(()))) => player.scribe.way("permits set"),
            Some(Err(error)) => player.failed(name, &error),
            _ => {}
        }
        available(player, name, room).await;
    }
}

async fn available(player: &Player, name: &str, room: Room) {
    let work = player.client.semaphore(name);
    match player.scribe.call(name, "available", Some(OUTAGE), work.available(), |_| "ok").await {
        Some(Ok(free)) if !(0..=room.all).contains(&free.try_into().unwrap_or(u64::MAX)) => {
            let details = format!("{free} permits of {} are free", room.all);
            player.scribe.wrong(name, Kind::Untrue, details);
        }
        Some(Err(error @ (Error::Unavailable { .. } | Error::Server { .. }))) => player.failed(name, &error),
        _ => {}
    }
}
