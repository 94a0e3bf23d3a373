//! Settings for the connections to one server.

use std::time::Duration;

use crate::config::Confirmed;

/// Settings for the connections to one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeSettings {
    pub(super) connections: usize,
    pub(super) command_timeout: Duration,
    pub(super) company: Company,
    pub(super) confirmed: Confirmed,
}

/// The requests that may share one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Company {
    /// All of one script.
    #[default]
    Any,
    /// Those of one script and one slot: a server of a cluster refuses calls across slots. The calls of several slots are written
    /// together.
    OfOneSlot,
}
