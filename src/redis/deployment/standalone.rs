//! One server at a fixed address. The address may be a name that leads to another server after a failover.

use futures_util::stream::{BoxStream, StreamExt, once};

use super::access::Access;
use crate::redis::{
    conn::{Locator, Target},
    fault::Fault,
    url::Address,
};

/// Always the same address. Its host name is resolved for each new connection.
#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) access: Access,
    pub(super) address: Address,
    /// False for a server of a cluster: if it is not the master, it redirects the request.
    pub(super) wants_master: bool,
}

impl Locator for Fixed {
    fn find(&self) -> BoxStream<'_, Result<Target, Fault>> {
        once(self.access.to(self.address.clone())).boxed()
    }

    fn place(&self) -> String {
        self.address.to_string()
    }

    fn wants_master(&self) -> bool {
        self.wants_master
    }
}
