//! Sends the renewals that are due at one moment. Thousands of held locks need a few tasks for that, not thousands: a task for each renewal
//! costs as much as the renewal.

use std::{iter, pin::pin, sync::Arc};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;

use super::{
    lanes::Condition,
    named::{Driver, NamedLock, SentRequest, UnsentRequest},
};
use crate::sync::{std, tokio};

/// The number of renewals of one task. A task waits for room for all of them, and other requests need room beside them.
const TOGETHER: usize = 64;

/// By connection: one that does not reply must not delay the others.
#[derive(Default)]
pub(super) struct DueRenewals(Vec<((usize, Condition), Vec<SentRequest>)>);

impl DueRenewals {
    pub(super) fn add(&mut self, lock: &Arc<NamedLock>, (id, request, condition): UnsentRequest) {
        let renewal = SentRequest::new(Arc::clone(lock), id, request);
        self.of((lock.connection(), condition)).push(renewal);
    }

    /// There are few connections.
    fn of(&mut self, of: (usize, Condition)) -> &mut Vec<SentRequest> {
        let known = self.0.iter().position(|(known, _)| *known == of);
        let at = known.unwrap_or_else(|| {
            self.0.push((of, Vec::new()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    pub(super) fn send(self, driver: &Arc<Driver>) {
        for ((connection, condition), renewals) in self.0 {
            for batch in batches(renewals) {
                let (driver, lane) = (Arc::clone(driver), driver.lanes.of_renewals(connection, condition));
                driver.clone().spawn(async move { send(&driver, lane, batch).await });
            }
        }
    }
}

/// In their order, because those that are due first go first.
fn batches<T>(renewals: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut left = renewals.into_iter();
    iter::from_fn(move || Some(left.by_ref().take(TOGETHER).collect::<Vec<_>>()).filter(|batch| !batch.is_empty()))
}

async fn send(driver: &Driver, lane: Arc<Semaphore>, batch: Vec<SentRequest>) {
    let (limit, room) = (driver.request_limit(), batch.len() as u32);
    let Ok(Ok(_permits)) = tokio::time::timeout(limit, lane.acquire_many_owned(room)).await else {
        return batch.into_iter().for_each(SentRequest::has_no_room);
    };
    let numbered = batch.iter().map(SentRequest::send_gathered).enumerate();
    let mut replies: FuturesUnordered<_> = numbered.map(|(at, reply)| async move { (at, reply.await) }).collect();
    let mut left: Vec<_> = batch.into_iter().map(Some).collect();
    let mut end = pin!(tokio::time::sleep(limit));
    loop {
        let reply = tokio::select! {
            reply = replies.next() => reply,
            () = end.as_mut() => break,
        };
        let Some((at, reply)) = reply else { return };
        if let Some(sent) = left[at].take() {
            sent.end(Some(reply));
        }
    }
    drop(replies); // those that wait in the connection's backlog are not sent anymore
    left.into_iter().flatten().for_each(|sent| sent.end(None));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_first_is_sent_first() {
        let sent: Vec<Vec<usize>> = batches((0..TOGETHER * 2 + 1).collect()).collect();
        assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [TOGETHER, TOGETHER, 1]);
        assert!(sent.concat().is_sorted());
    }
}
