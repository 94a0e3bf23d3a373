//! One server of a cluster.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::redis::{
    conn::{Conn, Dialer, Reconnected},
    fault::Fault,
    node::{Node, NodeSettings},
    script::{Answer, Part, Script},
    url::Address,
};

/// One that has slots, or will have.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) address: Address,
    pub(super) node: Node,
    /// For requests whose slot is on its way here, one after the other.
    announced: Mutex<Conn>,
    /// It has left the cluster: whoever waits for it is told.
    ended: CancellationToken,
}

impl Member {
    /// Connects when it is first needed.
    pub(super) fn new(
        address: Address,
        dial: &Dialer,
        settings: NodeSettings,
        reconnected: &Reconnected,
        closed: &CancellationToken,
    ) -> Arc<Member> {
        let ended = closed.child_token();
        let node = Node::lazy(dial, settings, reconnected, &ended);
        let nobody: Reconnected = Arc::new(|| {});
        let announced = Mutex::new(Conn::lazy(dial, &nobody, &ended));
        Arc::new(Member { address, node, announced, ended })
    }

    pub(super) async fn announced(&self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        let conn = self.announced.lock().await;
        conn.link().await?.run_announced(script, part).await
    }

    /// Whether somebody waits for it in vain, or it is late with an answer.
    pub(super) fn is_unwell(&self, late: Duration) -> bool {
        self.node.is_unwell(late)
    }

    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }
}
