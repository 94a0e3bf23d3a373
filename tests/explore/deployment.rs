//! In the place of src/redis/deployment: one server, which is always there.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    answer::Answer,
    changed_keys::ChangedKeys,
    conn::{Dialer, Reconnected},
    fault::Fault,
    node::Node,
    node_settings::{Company, NodeSettings},
    pending::{Later, PendingRequest},
    script::{Part, Script},
    url::{Address, Url},
};
use crate::{
    config::{Config, PubSub},
    error::Source,
    stats::Counters,
};

#[derive(Debug)]
pub(super) struct Deployment {
    node: Node,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    None,
    Any,
    Shard(String),
}

impl Deployment {
    /// The server does not tell it.
    pub(super) fn changed_keys(&self) -> Option<Arc<ChangedKeys>> {
        None
    }

    pub(super) fn is_cluster(&self) -> bool {
        false
    }

    pub(super) async fn connect(
        url: &Url,
        config: &Config,
        counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Result<Deployment, Fault> {
        Ok(Deployment::lazy(url, config, counters, closed))
    }

    pub(super) fn lazy(
        _url: &Url,
        config: &Config,
        _counters: &Arc<Counters>,
        closed: &CancellationToken,
    ) -> Deployment {
        let changes = watch::Sender::new(0);
        let counted = changes.clone();
        let reconnected: Reconnected = Arc::new(move || counted.send_modify(|count| *count += 1));
        let Config { connections, command_timeout, confirmed, .. } = *config;
        let settings = NodeSettings { connections, command_timeout, company: Company::Any, confirmed };
        Deployment { node: Node::lazy(&Dialer, settings, &reconnected, closed), changes }
    }

    pub(super) async fn replicated(
        &self,
        script: &'static Script,
        part: Part,
        wanted: u8,
    ) -> Result<(Answer, u8), Fault> {
        self.node.replicated(script, part, wanted).await
    }

    pub(super) fn submit(&self, request: PendingRequest) -> Option<Later> {
        self.node.submit(request)
    }

    pub(super) fn is_unwell(&self, _: &str, late: Duration) -> bool {
        self.node.is_unwell(late)
    }

    pub(super) fn trouble(&self, key: &str, last: Option<Source>) -> Source {
        self.node.trouble(key, last)
    }

    pub(super) async fn ping(&self) -> Result<(), Fault> {
        self.node.ping().await
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn changed_since(&self, _key: &str, changes: u64) -> bool {
        *self.changes.borrow() > changes
    }

    pub(super) async fn knows_channels(&self) -> bool {
        true
    }

    pub(super) fn pubsub(&self) -> PubSub {
        PubSub::Classic
    }

    pub(super) fn line(&self, _channel: &str) -> Line {
        Line::Any
    }

    pub(super) fn dial(&self, _line: &Line) -> Dialer {
        Dialer
    }

    /// Sentinels would name another server.
    pub(super) fn is_behind_one_address(&self) -> bool {
        false
    }

    pub(super) fn leads_to(&self, _line: &Line, _address: &Address) -> bool {
        true
    }

    pub(super) fn may_be_old(&self) {}
}
