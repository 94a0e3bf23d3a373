//! What must be true in every world, and what must happen in some so that the rest says something.

use stateright::Property;

use crate::{
    hold::{FOR_EVER, Hold, Offer, Phase, Seen, Word},
    protocol::{Protocol, World},
    rules::{Id, Request},
};

type Condition = fn(&Protocol, &World) -> bool;

const ALWAYS: [(&str, Condition); 11] = [
    ("exclusive", exclusive),
    ("kept", kept),
    ("unbroken", unbroken),
    ("honest", honest),
    ("alive", alive),
    ("level", level),
    ("leftover", leftover),
    ("taken", taken),
    ("truthful", truthful),
    ("no false alarm", no_false_alarm),
    ("bounded", bounded),
];

pub(crate) fn of(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut all: Vec<_> = ALWAYS.into_iter().map(|(name, is)| Property::always(name, is)).collect();
    // A world at rest has no successor. So this is about the last world of each path, and it does no harm that the
    // checker is blind for what is owed at loops and joins.
    all.push(Property::eventually("rest", rest));
    let mut happens = |is_possible: bool, name, is: Condition| {
        if is_possible {
            all.push(Property::sometimes(name, is));
        }
    };
    happens(true, "everybody comes to an end", rest);
    happens(true, "a lease ends under its holder", |_, world| world.any(|hold| hold.phase == Phase::Expired));
    happens(true, "a holder is told of a loss", |_, world| world.any(|hold| hold.phase == Phase::Removed));
    happens(protocol.levels > 1, "a second level", second_level);
    happens(protocol.late > 0 && (protocol.overtaking || protocol.vanishing), "a leftover of a late request", late_one);
    happens(protocol.has_heirs(), "a hand-over", |_, world| world.any(|hold| matches!(hold.offer, Offer::Taken(_))));
    happens(protocol.has_heirs(), "a hand-over to one who leaves", |_, world| {
        world.any(|hold| hold.offer == Offer::Gone)
    });
    let passes = protocol.passes > 0;
    happens(passes, "passed on in memory, and ours to the end", |_, world| world.any(|hold| hold.word == Word::Ours));
    happens(passes, "passed on in memory, and lost", |_, world| world.any(|hold| hold.word == Word::Lost));
    happens(passes, "a confirmation overtaken by the end", |_, world| {
        world.any(|hold| hold.ghost.given_back && matches!(hold.word, Word::Asked(_)))
    });
    happens(protocol.force, "a lock opened by force", |_, world| world.any(|hold| hold.ghost.forced));
    happens(protocol.looks && protocol.levels > 1, "a claim that comes too late", |_, world| {
        world.any(|hold| hold.phase == Phase::Over && hold.seen == Seen::Held)
    });
    happens(protocol.looks && protocol.has_heirs(), "an heir that looks too late", |_, world| {
        world.any(|hold| hold.phase == Phase::Over && hold.seen == Seen::Yours)
    });
    happens(protocol.caps, "a lock held for as long as it may be", |_, world| {
        world.any(|hold| hold.phase == Phase::Capped && hold.left > 0)
    });
    all
}

/// Those who rely on the lock, and were not robbed of it by force.
fn certain(world: &World) -> impl Iterator<Item = (Id, &Hold)> {
    world.ids().zip(&world.holds).filter(|(_, hold)| hold.is_relied_on() && !hold.ghost.forced)
}

/// Never two certain holders.
fn exclusive(_: &Protocol, world: &World) -> bool {
    certain(world).count() <= 1
}

/// Who is certain has it on the server.
fn kept(protocol: &Protocol, world: &World) -> bool {
    certain(world).all(|(id, _)| protocol.count(world, id) > 0)
}

/// Who is certain has had it all the time since it was granted.
fn unbroken(_: &Protocol, world: &World) -> bool {
    certain(world).all(|(_, hold)| !hold.ghost.broken)
}

/// No guard says that the lock is held where there is nothing.
fn honest(_: &Protocol, world: &World) -> bool {
    !world.any(Hold::is_hollow)
}

/// What a caller gets is not lost yet.
fn alive(_: &Protocol, world: &World) -> bool {
    !world.any(|hold| hold.ghost.stillborn)
}

/// The server has the level that a certain holder believes in, when nothing of his is under way.
fn level(protocol: &Protocol, world: &World) -> bool {
    // Excused with overtaking: the next request about its level puts it right.
    certain(world).all(|(id, hold)| {
        hold.ghost.adrift && protocol.excuses()
            || protocol.count(world, id) == hold.levels
            || !protocol.is_settled(world, id)
    })
}

/// What was given back, or taken back, is not on the server when nothing of it is under way.
fn leftover(protocol: &Protocol, world: &World) -> bool {
    world.ids().zip(&world.holds).all(|(id, hold)| {
        hold.phase != Phase::Over
            || hold.ghost.adrift
            || protocol.count(world, id) == 0
            || !protocol.is_settled(world, id)
    }) && !is_stray(world)
}

/// Of an id that its hold has exchanged for another: nobody looks after it.
fn is_stray(world: &World) -> bool {
    let is_exchanged = |id: Id| world.hold(id).adopted.is_some() && !world.hold(id).ghost.adrift;
    let is_late = |id: Id| world.late.iter().any(|late| late.names(id));
    world.lock.is_some_and(|lock| is_exchanged(lock.id) && !is_late(lock.id) && !world.is_being_handed(lock.id))
}

/// An `unlock()` that says Ok was of a lock held to the end.
fn truthful(_: &Protocol, world: &World) -> bool {
    !world.any(|hold| hold.word == Word::Ours && !hold.ghost.kept)
}

/// None says that it was lost because it was given back since.
fn no_false_alarm(_: &Protocol, world: &World) -> bool {
    !world.any(|hold| hold.word == Word::Lost && hold.ghost.given_back)
}

/// Other processes have their turn.
fn bounded(protocol: &Protocol, world: &World) -> bool {
    world.row <= protocol.passes
}

/// A free lock with waiters is taken: one of them is sure to look, whatever else happens or does not.
fn taken(_: &Protocol, world: &World) -> bool {
    let looks = |hold: &Hold| hold.phase == Phase::Asked && (hold.rung || hold.nap != FOR_EVER);
    let acts = |hold: &Hold| hold.is_under_way() || hold.is_in_use();
    let is_free = world.lock.is_none() && world.late.iter().all(Request::is_by_force);
    !is_free || !world.any(|hold| hold.phase == Phase::Asked) || world.any(|hold| looks(hold) || acts(hold))
}

/// Everybody has had or left his turns, nothing is under way, and the lock is free.
fn rest(_: &Protocol, world: &World) -> bool {
    let is_answered = |hold: &Hold| !hold.owes_a_word() && hold.confirmation.is_none();
    let is_done = |hold: &Hold| hold.phase == Phase::Over && !hold.is_under_way() && is_answered(hold);
    world.lock.is_none() && world.late.is_empty() && world.holds.iter().all(is_done)
}

fn second_level(_: &Protocol, world: &World) -> bool {
    world.any(|hold| hold.is_certain() && hold.levels > 1 && hold.turn.is_none())
}

fn late_one(_: &Protocol, world: &World) -> bool {
    let is_over = |id: Id| world.hold(id).phase == Phase::Over && !world.hold(id).is_under_way();
    world.late.is_empty() && world.lock.is_some_and(|lock| is_over(lock.id))
}
