//! A lock as one state machine for each name: all that one client knows and wants of it. It does no I/O, has no clock, and waits for nothing:
//! events come in with the time, actions come out. So what ships is what `tests/simulation` simulates and explores. `docs/dev/machine.md` has
//! its states, its invariants and its policies.
//!
//! # Contract with the driver
//!
//! Five methods change the machine. All others answer questions.
//!
//! * [`handle`](LockState::handle) takes one event and its time, and adds the actions that follow from it. The driver calls it under the mutex
//!   of the name, with times that never go back, and carries out the actions in their order before the next event.
//! * [`keep`](LockState::keep) and [`split`](LockState::split) are about permits. [`Event::Due`] follows each `keep`.
//! * [`stay_held`](LockState::stay_held) changes what the release of a hold will say.
//! * [`note_seen`](LockState::note_seen) is what [`Event::Seen`] does first, for a driver that has the result of a call in its hands.
//!
//! The driver
//!
//! * ends each [`Action::Send`] by exactly one of `Replied`, `Unknown`, `Unclear`, `NotNow` and `Refused`, within two
//!   [steps](step_of_request). Requests of one name reach one server in the order of their actions;
//! * asks [`due`](LockState::due) after each event, and reports [`Event::Due`] at that time if nothing else happened;
//! * reports [`Event::Seen`] when a caller takes a result `Acquired`, and [`Event::Dropped`] or [`Event::Unlock`] once for each ticket that has
//!   not ended;
//! * subscribes and unsubscribes until [`wants_messages`](LockState::wants_messages) is true, and reports each begin and end of that;
//! * reports [`Event::Reconnected`] for each new connection, [`Event::Yielded`] after each [`Action::Yield`];
//! * may drop the machine once [`is_forgotten`](LockState::is_forgotten), and makes the next one of this name with greater numbers.
//!
//! # Files
//!
//! `tests/layers.rs` checks their order: a file imports only from those before it.

mod callers;
mod calm;
mod confirmations;
mod fair;
mod few;
mod grants;
mod hold;
mod index;
mod lease;
mod listening;
mod lost;
mod machine;
mod on_server;
mod others;
mod places;
mod queue;
mod rare;
mod release;
mod replies;
mod requests;
mod server_hold;
mod state;
mod types;

pub(crate) use few::Few;
pub(crate) use state::LockState;
pub(crate) use types::*;
