//! The rules alone, without a server: `tests/simulation` runs them as its server.

pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod hash;
pub(crate) mod rw;
