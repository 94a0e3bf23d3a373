//! Asks how many replicas have the writes of a connection.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{conn::Link, fault::Fault, node_settings::NodeSettings, reply_to::ReplyTo};
use crate::sync::{std, tokio};

/// A request for the number of replicas that have the earlier writes of a link.
#[derive(Debug)]
struct Confirmation {
    link: Arc<Link>,
    wanted: u8,
    /// The time at which the caller's request began. It may have waited behind another WAIT.
    begun: Instant,
    answer: ReplyTo<Result<u8, Fault>>,
}

/// The place where requests of one connection wait for the task that confirms them.
#[derive(Debug)]
pub(super) struct Confirmations(mpsc::UnboundedSender<Confirmation>);

impl Confirmations {
    pub(super) fn start(settings: NodeSettings, closed: &CancellationToken) -> Confirmations {
        let (confirmations, asked) = mpsc::unbounded_channel();
        tokio::spawn(closed.clone().run_until_cancelled_owned(confirm(asked, settings)));
        Confirmations(confirmations)
    }

    /// The number of replicas that have all earlier writes of that link. The caller's request began then.
    pub(super) fn ask(&self, link: Arc<Link>, wanted: u8, begun: Instant) -> oneshot::Receiver<Result<u8, Fault>> {
        let (answer, receiver) = ReplyTo::new();
        let _ = self.0.send(Confirmation { link, wanted, begun, answer });
        receiver
    }
}

/// Sends one WAIT after the other, each for all requests before it, as in the group commit of a database. So no caller waits for more than
/// two of them, however many callers there are. This runs in a task of its own, so a caller that is not polled does not delay the others.
/// Between two WAITs the other requests of the connection are sent.
async fn confirm(mut asked: mpsc::UnboundedReceiver<Confirmation>, settings: NodeSettings) {
    while let Some(first) = asked.recv().await {
        let mut group = vec![first];
        while let Ok(next) = asked.try_recv() {
            group.push(next);
        }
        while let Some(Confirmation { link, .. }) = group.first() {
            let link = Arc::clone(link);
            let (same, others) = group.into_iter().partition(|other| Arc::ptr_eq(&other.link, &link));
            confirm_together(&link, same, settings).await;
            group = others;
        }
    }
}

/// The replicas have half the command timeout, counted from the start of the earliest request; but at least an eighth of it.
pub(super) async fn confirmed_within(
    link: &Link,
    wanted: u8,
    waited: Duration,
    settings: NodeSettings,
) -> Result<u8, Fault> {
    let NodeSettings { command_timeout, confirmed, .. } = settings;
    let time = (command_timeout / 2).saturating_sub(waited).max(command_timeout / 8);
    link.confirmed(confirmed, wanted, time).await
}

async fn confirm_together(link: &Link, group: Vec<Confirmation>, settings: NodeSettings) {
    let wanted = group.iter().map(|one| one.wanted).max().unwrap_or(0);
    let waited = group.iter().map(|one| one.begun.elapsed()).max().unwrap_or_default();
    let count = confirmed_within(link, wanted, waited, settings).await;
    for one in group {
        one.answer.send(count.clone());
    }
}
