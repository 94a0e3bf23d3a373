//! One server of a cluster.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::redis::{
    Way,
    conn::{Conn, Dialer, Reconnected},
    fault::Fault,
    gather::confirmed_within,
    node::{Node, NodeSettings},
    script::{Answer, Code, Part, Script},
    url::Address,
};

/// A server that has slots, or will have some.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) address: Address,
    pub(super) node: Node,
    /// The connection for requests whose slot is being moved to this server, one after the other.
    announced: Mutex<Conn>,
    /// Locked by those of them that wait for replicas. So at most one of these is ahead of the others, such as renewals.
    replicated: Mutex<()>,
    settings: NodeSettings,
    /// Cancelled when the server has left the cluster, so that its callers are notified.
    ended: CancellationToken,
}

impl Member {
    /// Does not connect until it is first needed.
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
        let replicated = Mutex::default();
        Arc::new(Member { address, node, announced, replicated, settings, ended })
    }

    /// Returns the number of replicas that have the write, too. Waits for them on the same connection.
    pub(super) async fn announced(
        &self,
        script: &'static Script,
        part: &Part,
        way: Way,
    ) -> Result<(Answer, u8), Fault> {
        let begun = Instant::now();
        let _turn = match way {
            Way::Replicated(_) => Some(self.replicated.lock().await),
            Way::Now | Way::Gathered => None,
        };
        let conn = self.announced.lock().await;
        let link = conn.link().await?;
        let answer = link.run_announced(script, part).await?;
        let confirmed = match way {
            Way::Replicated(wanted) if answer.code == Code::Granted => {
                confirmed_within(&link, wanted, begun.elapsed(), self.settings).await?
            }
            _ => 0,
        };
        Ok((answer, confirmed))
    }

    /// True if a caller waits for a connection that cannot be opened, or if a reply is late.
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
