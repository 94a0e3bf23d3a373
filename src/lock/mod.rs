//! A lock as one state machine for each name: all that one client knows and wants of it. It does no I/O, has no clock, and waits for nothing:
//! events come in with the time, actions come out. So what ships is what `tests/simulation` simulates and explores.
//!
//! From the bottom up: `types`, `rare` and `few`, `requests`, `queue` and `others`, `server_hold`, `hold`, `lost`, `release`, `on_server` and `places`, `calm`,
//! `state`, `grants`, `callers` and `fair`, `replies`, `machine`. Each file imports only from those before it.

mod callers;
mod calm;
mod fair;
mod few;
mod grants;
mod hold;
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
