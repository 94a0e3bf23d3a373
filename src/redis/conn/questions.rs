//! What this crate asks servers, besides scripts.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use futures_util::future::{BoxFuture, join_all};

use super::resp::Reply;
use crate::redis::{
    fault::{Fault, source},
    url::Address,
};

/// A connection to a server, for questions.
pub(crate) trait Asks: Debug + Send + Sync {
    fn address(&self) -> &Address;
    /// Sends a command and waits for its reply, until the connection is lost or the command timeout is over. A refusal is a fault.
    fn ask<'a>(&'a self, words: &'a [&'a str]) -> BoxFuture<'a, Result<Reply, Fault>>;
}

/// The layout of a cluster, from one of its servers.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The first and the last slot of each range, and its master.
    pub(crate) ranges: Vec<(u16, u16, Address)>,
    /// The ids of all masters and replicas. Unlike addresses, they never change.
    pub(crate) nodes: BTreeSet<String>,
}

/// True if the server says that it is a replica. If the server does not say, it counts as a master.
pub(super) async fn is_replica(server: &dyn Asks) -> bool {
    let role = server.ask(&["ROLE"]).await;
    role.is_ok_and(|role| role.items().first().and_then(Reply::text).is_some_and(|role| role != "master"))
}

/// Asks a sentinel for the master of a service. A sentinel that does not know the service may learn of it later.
pub(crate) async fn master_of(sentinel: &dyn Asks, service: &str) -> Result<Address, Fault> {
    let said = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service]).await?;
    let unknown =
        || Fault::NotReady(source(&format!("sentinel {}: No such master with that name", sentinel.address())));
    match said.items() {
        [host, port] => host.text().zip(port_of(port)).map(|(host, port)| Address::Tcp(host.into(), port)),
        _ => None,
    }
    .ok_or_else(unknown)
}

/// Asks a server of a cluster for the masters of all slots.
pub(crate) async fn slots(server: &dyn Asks) -> Result<Layout, Fault> {
    let said = server.ask(&["CLUSTER", "SLOTS"]).await?;
    let ranges = said.items();
    Ok(Layout {
        ranges: ranges.iter().filter_map(|range| slot_range(range, server.address())).collect(),
        nodes: ranges.iter().flat_map(node_ids).collect(),
    })
}

/// Reads the ids in `first last [host port id ..] ..`.
fn node_ids(range: &Reply) -> impl Iterator<Item = String> {
    range.items().iter().skip(2).filter_map(|server| Some(server.items().get(2)?.text()?.to_owned()))
}

/// Reads `first last [host port ..] ..`. A server that does not know its own host omits it.
fn slot_range(range: &Reply, from: &Address) -> Option<(u16, u16, Address)> {
    let [first, last, master, ..] = range.items() else { return None };
    let [host, port, ..] = master.items() else { return None };
    let host = host.text().filter(|host| !host.is_empty() && *host != "?").map(Arc::from).or_else(|| match from {
        Address::Tcp(host, _) => Some(Arc::clone(host)),
        Address::Unix(_) => None,
    })?;
    Some((port_of(first)?, port_of(last)?, Address::Tcp(host, port_of(port)?)))
}

/// A number as small as a port or a slot.
fn port_of(number: &Reply) -> Option<u16> {
    u16::try_from(number.number()?).ok()
}

/// The id of this server in its cluster. `None` if it does not say: the client works without it.
pub(crate) async fn node_id(server: &dyn Asks) -> Option<String> {
    server.ask(&["CLUSTER", "MYID"]).await.ok()?.text().map(str::to_owned)
}

/// Checks that the server serves all keys: a server of a cluster redirects some of them. Returns true if it is a cluster of which one address
/// serves all slots, as far as some keys from all over the slots show.
pub(crate) async fn is_cluster_with_all_keys(server: &dyn Asks, prefix: &str) -> Result<bool, Fault> {
    const TRIED: usize = 16;
    let keys: Vec<_> = (0..TRIED).map(|n| format!("{prefix}leasehold:{n}")).collect();
    match has_keys(server, &keys).await {
        Err(fault) if fault.is_across_slots() => {}
        Err(Fault::NotReady(_)) => return Ok(false),
        answer => return answer.map(|()| false),
    }
    // A cluster that is down has no slots, and says nothing about this.
    let all = join_all(keys.chunks(1).map(|key| has_keys(server, key))).await;
    match all.into_iter().collect::<Result<Vec<_>, _>>() {
        Err(Fault::NotReady(_)) => Ok(false),
        answers => answers.map(|_| true),
    }
}

/// Fails if the server does not serve these keys. A user who may not access them learns that later.
async fn has_keys(server: &dyn Asks, keys: &[String]) -> Result<(), Fault> {
    let words: Vec<_> = ["EXISTS"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    match server.ask(&words).await {
        Err(fault @ (Fault::Elsewhere(..) | Fault::Unknown(_) | Fault::NotSent(_) | Fault::NotReady(_))) => Err(fault),
        Err(fault) if fault.is_across_slots() => Err(fault),
        _ => Ok(()),
    }
}

/// True if the server has sharded channels.
pub(crate) async fn has_shard_channels(server: &dyn Asks) -> Result<bool, Fault> {
    match server.ask(&["PUBSUB", "SHARDNUMSUB"]).await {
        Ok(_) => Ok(true),
        // Only a server that has this command can refuse it for lack of permission.
        Err(Fault::Denied(denial)) => Ok(denial.right.is_command("pubsub|shardnumsub")),
        Err(Fault::Server(_)) => Ok(false),
        Err(fault) => Err(fault),
    }
}
