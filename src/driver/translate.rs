//! The state machine's times and losses as those of the crate.

use crate::{
    clock,
    error::Lost,
    lock::{Loss, Moment},
};

pub(super) fn now() -> Moment {
    Moment::of_nanos(clock::Moment::now().nanos())
}

pub(super) fn from_machine(moment: Moment) -> clock::Moment {
    clock::Moment::from_nanos(moment.nanos())
}

pub(super) fn lost(loss: Loss) -> Lost {
    match loss {
        Loss::Removed => Lost::Removed,
        Loss::Expired => Lost::Expired,
        Loss::MaxHold => Lost::MaxHold,
        Loss::Closed => Lost::Closed,
    }
}
