//! One server of a cluster.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::redis::{
    Way,
    answer::{Answer, Code},
    confirm::confirmed_within,
    conn::{Conn, Dialer, Reconnected},
    fault::Fault,
    node::Node,
    node_settings::NodeSettings,
    reply_to::ReplyTo,
    script::{Part, Script},
    url::Address,
};

/// A server that has slots, or will have some.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) address: Address,
    pub(super) node: Node,
    /// Requests whose slot is being moved to this server, for the task that sends them one after the other.
    announced: mpsc::UnboundedSender<Announced>,
    /// Those of them that wait for replicas.
    replicated: mpsc::UnboundedSender<Announced>,
    /// Cancelled when the server has left the cluster, so that its callers are notified.
    ended: CancellationToken,
}

/// A request whose slot is being moved.
#[derive(Debug)]
struct Announced {
    script: &'static Script,
    part: Part,
    way: Way,
    begun: Instant,
    answer: ReplyTo<Result<(Answer, u8), Fault>>,
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
        let conn = Conn::lazy(dial, &nobody, &ended);
        let ((announced, first), (replicated, second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        tokio::spawn(ended.clone().run_until_cancelled_owned(announce(conn, first, second, settings)));
        Arc::new(Member { address, node, announced, replicated, ended })
    }

    /// Returns the number of replicas that have the write, too. Waits for them on the same connection.
    pub(super) async fn announced(
        &self,
        script: &'static Script,
        part: &Part,
        way: Way,
    ) -> Result<(Answer, u8), Fault> {
        let (answer, receiver) = ReplyTo::new();
        let request = Announced { script, part: part.clone(), way, begun: Instant::now(), answer };
        let queue = if matches!(way, Way::Replicated(_)) { &self.replicated } else { &self.announced };
        let _ = queue.send(request);
        let ended = |_| if self.has_ended() { Fault::Closed } else { Fault::Abandoned };
        receiver.await.map_err(ended)?
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

/// Sends requests one after the other, each after an ASKING. This runs in a task of its own, so a caller that is not polled does not
/// delay the others. Requests that wait for replicas go last: they are slow, and renewals must be in time.
async fn announce(
    conn: Conn,
    mut announced: mpsc::UnboundedReceiver<Announced>,
    mut replicated: mpsc::UnboundedReceiver<Announced>,
    settings: NodeSettings,
) {
    loop {
        let request = tokio::select! {
            biased;
            Some(request) = announced.recv() => request,
            Some(request) = replicated.recv() => request,
            else => return,
        };
        let Announced { mut answer, script, part, way, begun } = request;
        // A caller that leaves sends a release, and that comes after this.
        let sent = tokio::select! {
            biased;
            () = answer.left() => continue,
            sent = send(&conn, script, &part, way, begun, settings) => sent,
        };
        answer.send(sent);
    }
}

async fn send(
    conn: &Conn,
    script: &Script,
    part: &Part,
    way: Way,
    begun: Instant,
    settings: NodeSettings,
) -> Result<(Answer, u8), Fault> {
    let link = conn.link().await?;
    let answer = link.run_announced(script, part).await?;
    let confirmed = match way {
        Way::Replicated(wanted) if answer.code == Code::Granted => {
            confirmed_within(&link, wanted, begun.elapsed(), settings).await?
        }
        _ => 0,
    };
    Ok((answer, confirmed))
}
