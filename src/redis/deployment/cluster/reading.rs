//! A map of a cluster, as one server tells it.

use std::collections::BTreeSet;

use crate::redis::{
    conn::{Asks, Layout, has_shard_channels, slots},
    fault::Fault,
    url::Address,
};

/// More masters than a cluster has: Redis recommends at most a thousand nodes.
const MOST_MASTERS: usize = 1_000;

/// The reply of one server about the slots.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) from: Address,
    pub(super) layout: Layout,
    pub(super) has_shards: bool,
}

impl Reading {
    pub(super) async fn of(server: &dyn Asks) -> Result<Reading, Fault> {
        let (from, layout) = (server.address().clone(), slots(server).await?);
        if layout.ranges.is_empty() {
            return Err(Fault::said("CLUSTERDOWN no server has any slot"));
        }
        let masters: BTreeSet<_> = layout.ranges.iter().map(|(_, _, address)| address).collect();
        if masters.len() > MOST_MASTERS {
            return Err(Fault::said(&format!("ERR {from} names {} masters", masters.len())));
        }
        Ok(Reading { from, layout, has_shards: has_shard_channels(server).await? })
    }
}
