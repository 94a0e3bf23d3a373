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

/// One that has slots, or will have.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) address: Address,
    pub(super) node: Node,
    /// For requests whose slot is on its way here, one after the other.
    announced: Mutex<Conn>,
    settings: NodeSettings,
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
        Arc::new(Member { address, node, announced, settings, ended })
    }

    /// With the number of replicas that have it. They are waited for on the same connection, like all that is asked on it.
    pub(super) async fn announced(
        &self,
        script: &'static Script,
        part: &Part,
        way: Way,
    ) -> Result<(Answer, u8), Fault> {
        let (begun, conn) = (Instant::now(), self.announced.lock().await);
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
