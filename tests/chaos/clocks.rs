//! The wall clock of the server is moved by minutes. All leases are shorter than that. A clock that is set ahead ends them all at once, as if the
//! server had lost its data. So the holders are certain of what is not there, until their next renewals.

use std::time::Duration;

use fastrand::Rng;

use crate::{clock, director::Stage, history::Wipe, scene::Alone, troubles::millis};

/// A waiter looks again after this time, even if the holder's lease is said to last for minutes.
const LONGEST_NAP: Duration = Duration::from_millis(5_200);

/// It stays ahead.
pub(crate) fn set_ahead(stage: &mut Stage<Alone>, random: &mut Rng) {
    let by = random.i64(120..=600);
    ahead(stage, by, 0);
}

/// While it is behind, the leases of those who have died last for minutes. Then it is set right. What was granted before, and not renewed with
/// a shorter lease since, is there again as it was.
pub(crate) fn set_back(stage: &mut Stage<Alone>, random: &mut Rng) {
    let by = random.i64(120..=600);
    stage.scene.clock.move_by(-by);
    let was_behind_from = clock();
    stage.pause(millis(random, 500..=4_000));
    ahead(stage, by, was_behind_from);
    stage.pause(LONGEST_NAP);
}

fn ahead(stage: &mut Stage<Alone>, by: i64, all_from: u64) {
    let since = clock();
    stage.scene.clock.move_by(by);
    stage.wiped(Wipe { name: None, beside: false, all_from, since, at: clock() });
}
